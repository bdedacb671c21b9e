//! Jobs as processes: each is the head of a process group of its own, which ends with it.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal};

use super::local::Event;
use super::watch::Watch;

/// The processes of a run. One thread waits for all of them.
pub struct Children(Arc<ChildTable>);

/// The processes that live, for those who start them and the thread that waits for them.
struct ChildTable {
    live: Mutex<Live>,
    more: Condvar,
}

/// Processes that were not waited for yet, so that their numbers are still theirs.
struct Live {
    numbers: HashMap<i32, usize>,
    watch: Watch,
}

impl ChildTable {
    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Children {
    /// None yet. What jobs leave behind becomes a child of this process, so that it can be ended.
    pub fn new(run: &str, events: Sender<Event>) -> io::Result<Self> {
        let live = Live { numbers: HashMap::new(), watch: Watch::start(run)? };
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let shared = Arc::new(ChildTable { live: Mutex::new(live), more: Condvar::new() });
        let for_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("children".into())
            .spawn(move || reap(&for_thread, &events))?;
        Ok(Self(shared))
    }

    /// Starts a job; its number comes back with its end.
    pub fn start(&self, number: usize, command: &mut Command) -> io::Result<Started> {
        // Whoever ends at once is not looked at before it is known.
        let mut live = self.0.live();
        let mut child = command.process_group(0).spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        live.watch.began(pid);
        live.numbers.insert(pid, number);
        self.0.more.notify_one();
        Ok(Started { pid, stdout: child.stdout.take(), stderr: child.stderr.take() })
    }

    /// Sends a signal to all of a job, if it has not ended.
    pub fn signal(&self, pid: i32, signal: Signal) {
        let live = self.0.live();
        if live.numbers.contains_key(&pid) {
            signal_group(pid, signal);
        }
    }

    /// Ends whatever jobs have left behind in groups of its own.
    pub fn end_leftovers(&self) {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let watch = self.0.live().watch.pid();
        for _ in 0..100 {
            let left: Vec<i32> = children_of(own).into_iter().filter(|pid| *pid != watch).collect();
            if left.is_empty() {
                return;
            }
            for pid in left.into_iter().filter_map(Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// A job that runs.
pub struct Started {
    /// Its process, and its process group.
    pub pid: i32,
    /// What it prints, if that was asked for.
    pub stdout: Option<std::process::ChildStdout>,
    /// Its complaints, if they were asked for.
    pub stderr: Option<std::process::ChildStderr>,
}

/// Has a job listen to all signals, of which this process blocks those that it waits for.
fn unblock_signals() -> io::Result<()> {
    let mut none = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set that it is given, which outlives both calls.
    let code = unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut())
    };
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

/// Sends a signal to all of a job.
pub fn signal_group(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process_group(pid, signal);
    }
}

/// The command of a job, whose output goes where `output` says.
pub fn command(job: &super::job::Job, piped: bool) -> Command {
    let mut command = Command::new(&job.command[0]);
    command.args(&job.command[1..]).current_dir(&job.dir).envs(&job.env);
    let from_terminal = io::stdin().is_terminal();
    if piped || from_terminal {
        // The group of a job is never the one that a terminal listens to.
        command.stdin(Stdio::null());
    }
    if piped {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    // SAFETY: what runs between fork and exec makes two system calls and allocates nothing.
    unsafe { command.pre_exec(unblock_signals) };
    command
}

/// The exit code of a process as shells have it.
pub fn code_of(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

fn reap(shared: &ChildTable, events: &Sender<Event>) {
    loop {
        let Some(pid) = next_ended() else {
            let pause = std::time::Duration::from_millis(200);
            drop(shared.more.wait_timeout(shared.live(), pause));
            continue;
        };
        let number = {
            let mut live = shared.live();
            let number = live.numbers.remove(&pid);
            if number.is_some() {
                // Before its number can be another's: nobody of its group goes on.
                signal_group(pid, Signal::KILL);
                live.watch.ended(pid);
            }
            number
        };
        let code = wait_for(pid).map_or(1, code_of);
        if let Some(number) = number
            && events.send(Event::Ended { number, code }).is_err()
        {
            return;
        }
    }
}

/// The next child that has ended, which stays to be waited for; none if there is no child.
fn next_ended() -> Option<i32> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let what = libc::WEXITED | libc::WNOWAIT;
    // SAFETY: the pointer is valid for the call, and zeros are a valid siginfo_t.
    let info = unsafe {
        if libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), what) != 0 {
            return None;
        }
        info.assume_init()
    };
    // SAFETY: waitid has filled in the fields of SIGCHLD, of which this is one.
    Some(unsafe { info.si_pid() }).filter(|pid| *pid > 0)
}

fn wait_for(pid: i32) -> Option<ExitStatus> {
    let mut status = 0;
    // SAFETY: the pointer is valid for the call.
    let found = unsafe { libc::waitpid(pid, &mut status, 0) };
    (found == pid).then(|| ExitStatus::from_raw(status))
}

fn children_of(parent: i32) -> Vec<i32> {
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default();
        let mut fields = after_name.split(' ');
        let (state, of) = (fields.next(), fields.next());
        if state != Some("Z") && of.and_then(|of| of.parse().ok()) == Some(parent) {
            children.push(pid);
        }
    }
    children
}
