//! Priority for the threads on which deadlines depend.

/// How much more than others such a thread counts: as a nice value.
const NICE: i32 = -15;

/// Classes of I/O priority (ioprio_set(2)): before all others, and the usual one.
const REAL_TIME: libc::c_int = 1;
const BEST_EFFORT: libc::c_int = 2;

/// Asks the kernel to prefer this thread, and its I/O, to all that is not urgent; says in words what
/// came of it. Without the privilege (CAP_SYS_NICE, or a limit `nice`; CAP_SYS_ADMIN for I/O) it stays
/// an ordinary one, whose I/O is the first among the ordinary: then a busy machine shows as a slow
/// device. Such threads sleep nearly all the time; real-time scheduling would be a little more prompt,
/// but a thread that runs away would then stop the machine.
pub(crate) fn ask_for_promptness(thread: &str) -> String {
    let this = rustix::thread::gettid();
    let processor = match rustix::process::setpriority_process(Some(this), NICE) {
        Ok(()) => format!("nice {NICE}"),
        Err(error) => format!("ordinary ({error})"),
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
