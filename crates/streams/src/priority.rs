//! Priority for the threads on which deadlines depend.

/// How much more than others such a thread counts: as a nice value.
const NICE: i32 = -15;

/// Asks the kernel to prefer this thread to all that is not urgent. Without the privilege
/// (CAP_SYS_NICE, or a limit `nice`) it stays an ordinary one: then a busy machine shows as a slow
/// device. Such threads sleep nearly all the time; real-time priority would be a little more prompt,
/// but a thread that runs away would then stop the machine.
pub(crate) fn ask_for_promptness(thread: &str) {
    let this = rustix::thread::gettid();
    if let Err(error) = rustix::process::setpriority_process(Some(this), NICE) {
        tracing::debug!(thread, %error, "ordinary priority");
    }
}
