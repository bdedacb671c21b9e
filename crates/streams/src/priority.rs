//! Priority for the threads on which deadlines depend.

/// How much more than others such a thread counts where it may not be a real-time one: as a nice value.
const NICE: i32 = -15;
/// The least of the real-time priorities: before all ordinary threads, after all other such ones.
const LEAST_REAL_TIME: libc::c_int = 1;

/// Classes of I/O priority (ioprio_set(2)): before all others, and the usual one.
const REAL_TIME: libc::c_int = 1;
const BEST_EFFORT: libc::c_int = 2;

/// Asks the kernel to prefer this thread, and its I/O, to all that is not urgent; says in words what
/// came of it. Without the privilege (CAP_SYS_NICE, or a limit `rtprio` or `nice`; CAP_SYS_ADMIN for
/// I/O) it stays an ordinary one, whose I/O is the first among the ordinary: then a busy machine shows
/// as a slow device.
///
/// A nice value counts only among the threads of one session or control group, so that a build in
/// another terminal had as much of a processor as the thread, and glitches came of it: hence real-time
/// scheduling. Such threads sleep nearly all the time, and one that ran away would leave others the
/// part that the kernel sets aside for them (`kernel.sched_rt_runtime_us`, five percent).
pub(crate) fn ask_for_promptness(thread: &str) -> String {
    let this = rustix::thread::gettid();
    let processor = if become_real_time() {
        "real-time".to_owned()
    } else {
        match rustix::process::setpriority_process(Some(this), NICE) {
            Ok(()) => format!("nice {NICE}"),
            Err(error) => format!("ordinary ({error})"),
        }
    };
    let io = if prefer_io(REAL_TIME, 4) {
        "real-time"
    } else if prefer_io(BEST_EFFORT, 0) {
        "first of best-effort"
    } else {
        "ordinary"
    };
    tracing::debug!(thread, processor, io, "priority");
    format!("processor {processor}, I/O {io}")
}

/// Has this thread, and none that it starts, scheduled before all ordinary ones; whether the kernel
/// allowed it.
fn become_real_time() -> bool {
    let least = libc::sched_param { sched_priority: LEAST_REAL_TIME };
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the structure outlives the call; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, policy, &raw const least) == 0 }
}

/// Sets this thread's class of I/O priority and its level in it, 0 to 7; whether the kernel allowed it.
fn prefer_io(class: libc::c_int, level: libc::c_int) -> bool {
    const WHO_PROCESS: libc::c_int = 1;
    const CLASS_SHIFT: u32 = 13;
    let value = (class << CLASS_SHIFT) | level;
    // SAFETY: plain numbers; 0 is the calling thread.
    unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, value) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promptness_when_asked_for_then_said_what_came_of_it_whatever_is_allowed() {
        let asked = std::thread::spawn(|| ask_for_promptness("test"));
        let said = asked.join().expect("it asks politely");
        assert!(said.starts_with("processor ") && said.contains(", I/O "), "{said}");
    }
}
