//! Forked children: other users, other lock owners, and stores that may raise SIGBUS.

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::failure::{Failure, Outcome};
use crate::os::{self, Call, Errno};

/// The longest that a check waits for another process.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Who a child runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// Real, effective and saved user id.
    pub uid: u32,
    /// Real, effective and saved group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'static [u32],
}

/// An ordinary user.
pub const ALICE: User = User { uid: 70_001, gid: 70_001, groups: &[] };
/// Another one, who shares no group with ALICE.
pub const BOB: User = User { uid: 70_002, gid: 70_002, groups: &[] };
/// One whose supplementary group is ALICE's primary group.
pub const CAROL: User = User { uid: 70_003, gid: 70_003, groups: &[70_001] };

impl User {
    /// Makes the calling process (a forked child) this user, for good.
    pub fn assume(&self) -> Call {
        let groups: Vec<libc::gid_t> = self.groups.to_vec();
        // SAFETY: plain calls on numbers and a live array; the caller is a single-threaded child.
        let returned = unsafe {
            libc::setgroups(groups.len(), groups.as_ptr())
                | libc::setresgid(self.gid, self.gid, self.gid)
                | libc::setresuid(self.uid, self.uid, self.uid)
        };
        if returned == 0 { Ok(()) } else { Err(Errno::PERM) }
    }
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It returned.
    Returned(Outcome),
    /// A signal killed it.
    Killed(i32),
}

/// Held by each who starts a program, until it runs.
static STARTING: RwLock<()> = RwLock::new(());

/// Starts a program. Until it runs, its process has copies of all that is open here, also of what is
/// closed on exec.
pub fn spawn(command: &mut Command) -> std::io::Result<std::process::Child> {
    let _starting = STARTING.read();
    command.spawn()
}

/// Returns when no program that is being started by [`spawn`] has copies any more of what was closed here
/// before: what was open on a mount would keep it busy.
pub fn wait_for_starts() {
    drop(STARTING.write());
}

/// A forked child that runs one closure. Dropping it kills and reaps it.
pub struct Child {
    pid: Pid,
    handle: OwnedFd,
    report: OwnedFd,
    reaped: bool,
}

impl Child {
    /// Forks and runs `work` in the child, whose umask is 022.
    pub fn start(work: impl FnOnce() -> Outcome) -> Outcome<Self> {
        let (report, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        // SAFETY: the child runs `work` and leaves by _exit. It is a copy of a process that may
        // have other threads; work keeps to system calls and allocation, which glibc makes safe.
        match unsafe { libc::fork() } {
            -1 => Err(Failure::at("fork failed")),
            0 => {
                drop(report);
                run_child(work, &writer)
            }
            raw => {
                let pid = Pid::from_raw(raw).ok_or_else(|| Failure::at("fork returned no pid"))?;
                let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
                Ok(Self { pid, handle, report, reaped: false })
            }
        }
    }

    /// The child's process id.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// True when the child has ended.
    pub fn has_ended(&self) -> bool {
        readable(&self.handle, Duration::ZERO)
    }

    /// Sends SIGKILL; the end is still to be waited for.
    pub fn kill(&self) -> Call {
        rustix::process::pidfd_send_signal(&self.handle, Signal::KILL)
    }

    /// Waits for the end, at most `limit`; later than that is a failure.
    pub fn end(mut self, limit: Duration) -> Outcome<End> {
        if !readable(&self.handle, limit) {
            return Err(Failure::at(format_args!("child {} hangs", self.pid())));
        }
        let text = os::read_to_end(&self.report)?;
        let status = self.reap()?;
        if let Some(signal) = status {
            return Ok(End::Killed(signal));
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok(End::Returned(match text.split_at_checked(1) {
            Some(("F", reason)) => Err(Failure::Failed(reason.to_owned())),
            Some(("S", reason)) => Err(Failure::Skipped(reason.to_owned())),
            Some(("K", _)) => Ok(()),
            _ => Err(Failure::at("child ended without a report")),
        }))
    }

    /// Waits as [`Child::end`] does and hands on what the child found.
    pub fn join(self) -> Outcome {
        match self.end(TIMEOUT)? {
            End::Returned(outcome) => outcome,
            End::Killed(signal) => {
                Err(Failure::at(format_args!("child was killed by signal {signal}")))
            }
        }
    }

    fn reap(&mut self) -> Outcome<Option<i32>> {
        self.reaped = true;
        let mut status = 0;
        // SAFETY: waits for our own child, `status` outlives the call.
        if unsafe { libc::waitpid(self.pid(), &raw mut status, 0) } == -1 {
            return Err(Failure::at("waitpid failed"));
        }
        Ok(libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            // The child may be gone already, and nobody is left to tell.
            let _ = self.kill();
            let _ = self.reap();
        }
    }
}

fn run_child(work: impl FnOnce() -> Outcome, report: &OwnedFd) -> ! {
    os::umask(0o022);
    let outcome =
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Failure::at("child panicked")));
    let text = match outcome {
        Ok(()) => "K".to_owned(),
        Err(Failure::Failed(reason)) => format!("F{reason}"),
        Err(Failure::Skipped(reason)) => format!("S{reason}"),
    };
    // Without a report the parent says so.
    let _ = os::write_all(report, text.as_bytes());
    // SAFETY: ends this process at once, without running the parent's exit handlers.
    unsafe { libc::_exit(0) }
}

/// Runs `work` in a child with its own umask and ids and returns what it found.
pub fn in_child(work: impl FnOnce() -> Outcome) -> Outcome {
    Child::start(work)?.join()
}

/// Runs `work` in a child as `user`.
pub fn as_user(user: User, work: impl FnOnce() -> Outcome) -> Outcome {
    in_child(|| {
        user.assume()?;
        work()
    })
}

/// A one-way signal between a process and its child, made before the fork.
pub struct Gate {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Outcome<Self> {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        Ok(Self { reader, writer })
    }

    /// Lets one waiter through.
    pub fn open(&self) -> Outcome {
        Ok(os::write_all(&self.writer, b"x")?)
    }

    /// Waits until the gate is opened, at most [`TIMEOUT`].
    pub fn pass(&self) -> Outcome {
        ensure!(readable(&self.reader, TIMEOUT), "the other process never opened the gate");
        rustix::io::read(&self.reader, &mut [0_u8][..])?;
        Ok(())
    }
}

/// True when `fd` becomes readable within `limit`.
pub fn readable(fd: impl AsFd, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(n) => return n > 0,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Calls `probe` until it is true or `limit` has passed; returns its last answer.
pub fn eventually(limit: Duration, mut probe: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if probe() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_child_when_the_work_fails_then_its_reason_comes_back() {
        let outcome = in_child(|| Err(Failure::Failed("because".into())));
        assert_eq!(outcome, Err(Failure::Failed("because".into())));
        assert_eq!(in_child(|| Ok(())), Ok(()));
    }

    #[test]
    fn program_when_it_does_not_run_yet_then_wait_for_starts_waits_for_it() {
        use std::os::unix::process::CommandExt;

        const PAUSE: Duration = Duration::from_millis(500);
        let (forked, says) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let mut command = Command::new("true");
        let slowly = move || {
            rustix::io::write(&says, b"x")?;
            std::thread::sleep(PAUSE);
            Ok(())
        };
        // SAFETY: system calls only.
        unsafe { command.pre_exec(slowly) };
        std::thread::scope(|scope| {
            let begun = Instant::now();
            let started = scope.spawn(|| spawn(&mut command).unwrap().wait().unwrap());
            rustix::io::read(&forked, &mut [0; 1]).unwrap();
            wait_for_starts();
            assert!(begun.elapsed() >= PAUSE, "{:?}", begun.elapsed());
            assert!(started.join().unwrap().success());
        });
    }

    #[test]
    fn end_when_the_child_dies_by_a_signal_then_names_it() {
        let child = Child::start(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        })
        .unwrap();
        child.kill().unwrap();
        assert_eq!(child.end(TIMEOUT).unwrap(), End::Killed(libc::SIGKILL));
    }

    #[test]
    fn end_when_the_child_hangs_then_the_limit_holds_and_it_is_killed() {
        let child = Child::start(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        })
        .unwrap();
        assert!(child.end(Duration::from_millis(50)).is_err());
    }
}
