//! A task on this machine: a process tree, and what it prints.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::criu::{self, Criu};
use super::launch::{self, Beginning};
use super::tree::{self, Tree};
use crate::error::Error;
use crate::run::children::code_of;

/// How long what a task has printed is waited for when it has ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Which output of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Where what a task prints goes. Called from threads of its own, for one stream in order.
pub trait Sink: Send + Sync {
    /// Takes a piece; waits as long as whoever reads it. False says that nobody reads any more.
    fn put(&self, stream: Stream, bytes: &[u8]) -> bool;
}

/// Holds what a restored task prints back until all was read that it had printed before.
pub struct Gate {
    to: Arc<dyn Sink>,
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// Shut, in front of this sink.
    pub fn new(to: &Arc<dyn Sink>) -> Arc<Self> {
        let (open, opened) = (Mutex::new(false), Condvar::new());
        Arc::new(Self { to: Arc::clone(to), open, opened })
    }

    /// Opens it.
    pub fn open(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }

    /// Opens it when all was read; waits in a thread of its own.
    pub fn open_after(self: &Arc<Self>, before: Printing) {
        if before.is_over() {
            return self.open();
        }
        let gate = Arc::clone(self);
        let wait = move || {
            before.wait();
            gate.open();
        };
        let thread = std::thread::Builder::new().name("last words".into()).spawn(wait);
        if thread.is_err() {
            // Better in a wrong order than never.
            self.open();
        }
    }
}

impl Sink for Gate {
    fn put(&self, stream: Stream, bytes: &[u8]) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        while !*open {
            open = self.opened.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
        drop(open);
        self.to.put(stream, bytes)
    }
}

/// The threads that read what a tree prints; they end when nobody can print any more.
#[derive(Default)]
pub struct Printing(Vec<JoinHandle<()>>);

impl Printing {
    fn start(pipes: [OwnedFd; 2], sink: &Arc<dyn Sink>) -> io::Result<Self> {
        let mut threads = Vec::new();
        for (stream, pipe) in [Stream::Out, Stream::Err].into_iter().zip(pipes) {
            let sink = Arc::clone(sink);
            let thread = std::thread::Builder::new().name("printing".into()).spawn(move || {
                copy(pipe, stream, &*sink);
            })?;
            threads.push(thread);
        }
        Ok(Self(threads))
    }

    /// That of one thread.
    pub fn of(thread: Option<JoinHandle<()>>) -> Self {
        Self(thread.into_iter().collect())
    }

    /// Waits until all was read; not for ever, for somebody outside may have got hold of a pipe.
    pub fn finish(self) {
        let limit = Instant::now() + LAST_WORDS;
        while !self.is_over() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_over(&self) -> bool {
        self.0.iter().all(JoinHandle::is_finished)
    }

    /// Waits until all was read, however long that takes.
    pub fn wait(self) {
        for thread in self.0 {
            let _ = thread.join();
        }
    }
}

fn copy(pipe: OwnedFd, stream: Stream, sink: &dyn Sink) {
    let mut pipe = std::fs::File::from(pipe);
    let mut buffer = vec![0; 64 << 10];
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => return,
            // With the pipe gone, the task is told as if it had printed there itself.
            Ok(bytes) if !sink.put(stream, &buffer[..bytes]) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Two pipes: what is read from, and what is written to.
struct Pipes {
    read: [OwnedFd; 2],
    write: [OwnedFd; 2],
    inodes: [u64; 2],
}

impl Pipes {
    fn new() -> Result<Self, Error> {
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
        let failed = |error: rustix::io::Errno| Error::io("making a pipe")(error.into());
        let ((out, to_out), (err, to_err)) = (pipe().map_err(failed)?, pipe().map_err(failed)?);
        let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|found| found.st_ino);
        let inodes = [inode(&to_out).map_err(failed)?, inode(&to_err).map_err(failed)?];
        Ok(Self { read: [out, err], write: [to_out, to_err], inodes })
    }
}

/// A process tree that is a child of the thread that started or restored it, and is killed with it.
pub struct Task {
    /// Its first process.
    pub init: i32,
    /// The pipes that it prints to.
    pub pipes: [u64; 2],
    /// Those that had been stopped when its image was made.
    pub stopped: BTreeSet<i32>,
    printing: Printing,
    /// The pipe by which its command is told to begin.
    hold: Option<OwnedFd>,
    reaped: bool,
}

impl Task {
    /// Starts a command, which begins when the task is told to go on.
    pub fn start(start: &Start, sink: &Arc<dyn Sink>) -> Result<Self, Error> {
        let pipes = Pipes::new()?;
        let hold = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
        let (held, hold) = hold.map_err(|error| Error::io("making a pipe")(error.into()))?;
        let beginning = Beginning {
            command: &start.command,
            dir: &start.dir,
            outputs: &pipes.write,
            env: &start.env,
            mount: start.mount.as_ref().map(|(seen, real)| (&**seen, &**real)),
            hold: &held,
        };
        let init = launch::launch(&beginning).map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => Error::Unsupported(
                "a task that can be migrated needs namespaces of its own, which only root may \
                     make; leave out --migratable, or run it as root"
                    .into(),
            ),
            _ => Error::io("starting a task in namespaces of its own")(error),
        })?;
        let mut task = Self::over(init, pipes, BTreeSet::new(), sink)?;
        task.hold = Some(hold);
        Ok(task)
    }

    fn over(
        init: i32,
        pipes: Pipes,
        stopped: BTreeSet<i32>,
        sink: &Arc<dyn Sink>,
    ) -> Result<Self, Error> {
        let Pipes { read, write, inodes } = pipes;
        drop(write);
        let printing = Printing::start(read, sink);
        let mut task = Self {
            init,
            pipes: inodes,
            stopped,
            printing: Printing::default(),
            hold: None,
            reaped: false,
        };
        match printing {
            Ok(printing) => task.printing = printing,
            // It is ended with the value.
            Err(error) => return Err(Error::io("starting a thread")(error)),
        }
        Ok(task)
    }

    /// Writes it down and leaves it stopped, but for those of its tree that are stopped already. It goes
    /// on if that fails.
    pub fn freeze(&mut self, criu: &Criu, tree: &Tree, images: &Path) -> Result<(), Error> {
        self.stopped = tree.stopped();
        criu.dump(self.init, images)
    }

    /// Restores one, stopped, from an image.
    pub fn restore(criu: &Criu, image: &Image<'_>, sink: &Arc<dyn Sink>) -> Result<Self, Error> {
        let pipes = Pipes::new()?;
        let outputs = criu::Outputs { old: image.pipes, new: &pipes.write };
        let others = tree::children_of(own());
        let restored = criu.restore(image.dir, &outputs, image.mount);
        let init = restored.inspect_err(|_| end_strays(&others))?;
        Self::over(init, pipes, image.stopped.clone(), sink)
    }

    /// Has it go on, but for those that had been stopped before; one that was started begins.
    pub fn go_on(&self) -> Result<(), Error> {
        if let Some(hold) = &self.hold {
            // If it has ended, that is heard of; if it has begun, it is not read.
            let _ = rustix::io::write(hold, &[1]);
        }
        let tree = match Tree::of(self.init) {
            // It has ended already, which is heard of.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            tree => tree.map_err(Error::io("looking at the task"))?,
        };
        // The first one last: whoever waits for others finds them going.
        for process in tree.processes.iter().rev() {
            if !self.stopped.contains(&process.inner)
                && let Some(pid) = Pid::from_raw(process.pid)
            {
                let _ = rustix::process::kill_process(pid, Signal::CONT);
            }
        }
        Ok(())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        if let (Some(pid), Some(signal), false) =
            (Pid::from_raw(self.init), Signal::from_named_raw(signal), self.reaped)
        {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Has the kernel end all of it. Of a tree that is stopped, nothing runs any more from here on.
    pub fn doom(&self) {
        self.signal(libc::SIGKILL);
    }

    /// Waits until it has ended by itself; false if it has not within this time.
    pub fn ends_within(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while !has_ended(self.init) {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Ends all of it, and waits for that. What it has printed is still to be read.
    pub fn kill(mut self) -> Printing {
        self.end();
        std::mem::take(&mut self.printing)
    }

    /// It has ended: its exit code, and what is still to be read.
    pub fn ended(mut self) -> (i32, Printing) {
        let code = self.reap().map_or(1, code_of);
        (code, std::mem::take(&mut self.printing))
    }

    fn end(&mut self) {
        if !self.reaped {
            self.signal(libc::SIGKILL);
            self.reap();
        }
    }

    fn reap(&mut self) -> Option<ExitStatus> {
        let mut status = 0;
        loop {
            // SAFETY: the pointer is valid for the call.
            let found = unsafe { libc::waitpid(self.init, &mut status, 0) };
            if found < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                continue;
            }
            self.reaped = true;
            return (found == self.init).then(|| ExitStatus::from_raw(status));
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.end();
    }
}

fn own() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Ends what a restore that failed has left: what it makes are children of this process.
fn end_strays(others: &[i32]) {
    for child in tree::children_of(own()).into_iter().filter(|child| !others.contains(child)) {
        if let Some(pid) = Pid::from_raw(child) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        }
    }
}

/// A task that was written down.
pub struct Image<'a> {
    /// Where.
    pub dir: &'a Path,
    /// The pipes that it printed to.
    pub pipes: [u64; 2],
    /// Those that had been stopped.
    pub stopped: BTreeSet<i32>,
    /// The mount as it sees it, and the one that takes its place.
    pub mount: Option<(&'a Path, &'a Path)>,
}

/// How a task is started.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Where it runs.
    pub dir: PathBuf,
    /// Its environment.
    pub env: Vec<(OsString, OsString)>,
    /// The mount as it sees it, and the one that is there for it.
    pub mount: Option<(PathBuf, PathBuf)>,
}

impl Start {
    /// Sets a variable of its environment.
    pub fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.env.retain(|(other, _)| other != name);
        self.env.push((name.into(), value.into()));
    }
}

/// Whether a child has ended; it is left to be waited for.
fn has_ended(init: i32) -> bool {
    let Ok(id) = libc::id_t::try_from(init) else { return true };
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
    // SAFETY: the pointer is valid for the calls, and zeros are a valid siginfo_t.
    unsafe {
        libc::waitid(libc::P_PID, id, info.as_mut_ptr(), options) == 0
            && info.assume_init().si_pid() == init
    }
}

/// Waits until a child has ended, and leaves it to be waited for.
pub fn wait_for_end(init: i32) {
    let Ok(id) = libc::id_t::try_from(init) else { return };
    loop {
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the pointer is valid for the call, and zeros are a valid siginfo_t.
        let code = unsafe {
            libc::waitid(libc::P_PID, id, info.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT)
        };
        if code == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}
