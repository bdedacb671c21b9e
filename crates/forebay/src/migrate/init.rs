//! The first process of a task's PID namespace: starts the command, passes signals on, waits for
//! whoever has lost his parent, and ends as the command does. Everything else ends with it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::run::children::code_of;

/// The argument that stands for it. It is looked for before all others are parsed: this process is
/// part of each image, and what it has not allocated is not copied.
pub const NAME: &str = "run-init";
/// The pipe by which a byte comes when the command is to begin.
pub const HOLD: i32 = 4;

/// What is passed on to the command.
const SIGNALS: [libc::c_int; 6] =
    [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

static COMMAND: AtomicI32 = AtomicI32::new(0);

extern "C" fn pass_on(signal: libc::c_int) {
    let group = COMMAND.load(Ordering::Relaxed);
    if group > 0 {
        // SAFETY: a system call that may be made in a handler, and changes no memory.
        unsafe { libc::kill(-group, signal) };
    }
}

/// Waits for the byte; false if it does not come, as whoever would send it is gone.
fn is_told_to_begin() -> bool {
    // SAFETY: whoever has started this process has put a pipe there, and nobody else uses it.
    let mut pipe = File::from(unsafe { OwnedFd::from_raw_fd(HOLD) });
    pipe.read_exact(&mut [0]).is_ok()
}

/// Runs the command and returns its exit code.
pub fn run(command: &[OsString]) -> u8 {
    if !is_told_to_begin() {
        return 1;
    }
    let Some((program, args)) = command.split_first() else { return 127 };
    let child = match Command::new(program).args(args).process_group(0).spawn() {
        Ok(child) => child,
        Err(error) => {
            let missing = error.kind() == io::ErrorKind::NotFound;
            crate::commands::tell(&format!("{}: {error}", program.to_string_lossy()));
            return if missing { 127 } else { 126 };
        }
    };
    let pid = child.id().cast_signed();
    COMMAND.store(pid, Ordering::Relaxed);
    for signal in SIGNALS {
        let handler: extern "C" fn(libc::c_int) = pass_on;
        // SAFETY: the handler only makes a system call.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
    loop {
        let mut status = 0;
        // SAFETY: the pointer is valid for the call.
        let ended = unsafe { libc::waitpid(-1, &mut status, 0) };
        if ended == pid {
            let code = code_of(ExitStatus::from_raw(status));
            return u8::try_from(code).unwrap_or(1);
        }
        if ended < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return 1;
        }
    }
}
