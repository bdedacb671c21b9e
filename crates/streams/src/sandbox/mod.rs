//! Runs a program that reads bytes of unknown origin, such as ffprobe, with next to no rights.
//!
//! The child is a process of its own, in a session of its own. It may use so much memory, processor
//! time and so many open files, writes no file, gains no privileges, and of a server that runs as
//! root it is somebody else: nobody, or the owner of what it reads. Where the kernel has Landlock it
//! opens nothing but libraries and its input and reaches no network; where it has seccomp it makes
//! only the system calls that a reader needs, and no processes. Whatever it does, it is over within
//! its time.

mod landlock;
mod seccomp;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process_group};

/// Address space: libraries of ffprobe alone map some 200 MB.
const MEMORY: u64 = 1 << 30;
/// Open files.
const FILES: u64 = 64;
/// Who has no rights to anything, by convention.
const NOBODY: u32 = 65_534;
/// How often a child is looked at.
const OFTEN: Duration = Duration::from_millis(5);

/// Why a program gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error("it could not be started: {0}")]
    NotStarted(#[source] io::Error),
    #[error("it took more than {} s and was ended", .0.as_secs_f64())]
    TimedOut(Duration),
    #[error("it failed: {0}")]
    Failed(ExitStatus),
}

/// Which of the kernel's means there are, for people.
pub(crate) fn means() -> String {
    let landlock = match landlock::abi() {
        0 => "no Landlock".to_owned(),
        abi => format!("Landlock {abi}"),
    };
    let seccomp = if seccomp::available() { "seccomp" } else { "no seccomp" };
    format!("no new privileges, limits of memory, time and files, {landlock}, {seccomp}")
}

/// What the child becomes before it is the program. Everything is prepared before the fork, for
/// after it only system calls are allowed.
struct Cage {
    ruleset: Option<landlock::Ruleset>,
    filter: Option<seccomp::Filter>,
    /// User and group to become.
    identity: Option<(u32, u32)>,
    processor_seconds: u64,
}

impl Cage {
    fn new(program: &Path, input: &File, limit: Duration) -> io::Result<Self> {
        let found = input.metadata()?;
        let root = rustix::process::geteuid().is_root();
        // It opens its input anew, and so must be allowed to read it.
        let identity = match (found.mode(), found.uid()) {
            _ if !root => None,
            (mode, _) if mode & 0o004 != 0 => Some((NOBODY, NOBODY)),
            (mode, owner) if mode & 0o400 != 0 && owner != 0 => Some((owner, NOBODY)),
            _ => None,
        };
        Ok(Self {
            ruleset: landlock::Ruleset::new(program, input.as_fd())?,
            filter: seccomp::Filter::new(),
            identity,
            processor_seconds: limit.as_secs().max(1),
        })
    }

    /// Goes into the cage. Runs between fork and exec: system calls only.
    fn enter(&self) -> io::Result<()> {
        let check = |result: libc::c_long| {
            if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        };
        // SAFETY: system calls with numbers and with memory that outlives them.
        unsafe {
            check(libc::c_long::from(libc::setsid()))?;
            let all = libc::c_uint::MAX;
            let on_exec = libc::CLOSE_RANGE_CLOEXEC;
            // Old kernels have it not; then what is to be closed is marked so where it was opened.
            libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, all, on_exec);
            for (resource, most) in [
                (libc::RLIMIT_AS, MEMORY),
                (libc::RLIMIT_CPU, self.processor_seconds),
                (libc::RLIMIT_NOFILE, FILES),
                (libc::RLIMIT_FSIZE, 0),
                (libc::RLIMIT_CORE, 0),
                (libc::RLIMIT_MEMLOCK, 0),
                (libc::RLIMIT_MSGQUEUE, 0),
            ] {
                let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
                check(libc::c_long::from(libc::setrlimit(resource, &raw const limit)))?;
            }
            // Streams come first: the idle class of I/O (3) for this process (1, 0).
            libc::syscall(libc::SYS_ioprio_set, 1, 0, 3 << 13);
            libc::setpriority(libc::PRIO_PROCESS, 0, 10);
            if let Some((user, group)) = self.identity {
                check(libc::c_long::from(libc::setgroups(0, std::ptr::null())))?;
                check(libc::c_long::from(libc::setresgid(group, group, group)))?;
                check(libc::c_long::from(libc::setresuid(user, user, user)))?;
            } else {
                drop_capabilities();
            }
            // After the change of user, which undoes it.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            check(libc::c_long::from(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)))?;
        }
        if let Some(ruleset) = &self.ruleset {
            ruleset.enter()?;
        }
        self.filter.as_ref().map_or(Ok(()), seccomp::Filter::enter)
    }
}

/// Gives up what root can do but for what it owns: a program that root starts would get all of it.
///
/// # Safety
/// Always safe; it makes system calls only.
unsafe fn drop_capabilities() {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: libc::c_int,
    }
    const LAST: libc::c_ulong = 63;
    const VERSION_3: u32 = 0x2008_0522;
    // SAFETY: numbers, and memory that outlives the call: three words for each of two sets.
    unsafe {
        for capability in 0..=LAST {
            libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
        }
        let (header, none) = (Header { version: VERSION_3, pid: 0 }, [0u32; 6]);
        libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr());
    }
}

/// Runs `program` on `input`, which is its standard input, and returns what it writes, which is at
/// most what a pipe holds.
///
/// # Errors
/// [`Ended`] says why there is no answer.
pub(crate) fn run(
    program: &Path,
    args: &[&str],
    input: File,
    limit: Duration,
) -> Result<String, Ended> {
    let cage = Cage::new(program, &input, limit).map_err(Ended::NotStarted)?;
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(input))
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    // SAFETY: it makes system calls only, with what was prepared before.
    unsafe { command.pre_exec(move || cage.enter()) };
    let mut child = command.spawn().map_err(Ended::NotStarted)?;
    let ended = wait(&mut child, limit);
    // Whatever it may have started goes with it.
    let group = Pid::from_raw(child.id().cast_signed());
    let _ = group.map(|group| kill_process_group(group, Signal::KILL));
    let status = match ended {
        Ok(Some(status)) => status,
        Ok(None) | Err(_) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Ended::TimedOut(limit));
        }
    };
    if !status.success() {
        return Err(Ended::Failed(status));
    }
    Ok(written(child))
}

/// What is in the pipe; nobody is waited for who may still hold its other end.
fn written(mut child: Child) -> String {
    let mut text = Vec::new();
    if let Some(mut output) = child.stdout.take() {
        let nonblocking = fcntl_getfl(&output)
            .and_then(|flags| fcntl_setfl(&output, flags | OFlags::NONBLOCK))
            .is_ok();
        if nonblocking {
            let mut piece = [0; 4096];
            while let Ok(bytes @ 1..) = output.read(&mut piece) {
                text.extend_from_slice(&piece[..bytes]);
            }
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait()? {
            // The limit of processor time ends it with a signal of its own.
            Some(status) if status.signal() == Some(libc::SIGXCPU) => return Ok(None),
            Some(status) => return Ok(Some(status)),
            None if Instant::now() >= deadline => return Ok(None),
            None => std::thread::sleep(OFTEN),
        }
    }
}

/// The number of an open file, for system calls that have no name in libc.
fn number(fd: &impl AsRawFd) -> libc::c_long {
    libc::c_long::from(fd.as_raw_fd())
}

#[cfg(test)]
mod tests;
