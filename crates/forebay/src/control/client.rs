//! The command line's side of the control socket.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::wire::{Envelope, read_line, write_line};
use super::{
    Address, ControlError, ErrorKind, Location, Outcome, PROTOCOL_VERSION, Progress, Recorded,
    Reply, Request, Status, runtime_dir,
};
use crate::error::Error;
use crate::mountinfo::{self, Mount};

/// The longest reply: status lists are bounded, `where` is asked in portions.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// How long a question that needs no work may take.
const QUESTION_LIMIT: Duration = Duration::from_secs(10);

/// A connection to the daemon of one mount.
#[derive(Debug)]
pub struct Client {
    mountpoint: PathBuf,
    /// What of the mount is at this mount point: not all of it if that is a bind mount of a part.
    root: PathBuf,
    pid: i32,
    uid: u32,
    reader: BufReader<UnixStream>,
}

/// A path below another one, without a slash at its end if it is the other one itself.
fn joined(above: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { above.to_owned() } else { above.join(rest) }
}

impl Client {
    /// Connects to the daemon of the mount that `path` lies on.
    pub fn for_path(path: &Path) -> Result<Self, Error> {
        let path = mountinfo::resolve(path).map_err(Error::io(path.display().to_string()))?;
        let mounts = mountinfo::read().map_err(Error::io("/proc/self/mountinfo"))?;
        match mountinfo::containing(&mounts, &path).filter(|mount| mount.is_forebay()) {
            Some(mount) => Self::for_mount(mount, &mounts),
            None => Self::without_mount(&path),
        }
    }

    /// Connects to a daemon whose mount is not (or no longer) in the list of mounts.
    fn without_mount(path: &Path) -> Result<Self, Error> {
        let mount = Mount { mountpoint: path.to_owned(), ..Mount::default() };
        Self::for_mount(&mount, &[]).map_err(|error| match error {
            Error::NoDaemon { .. } => Error::NotMounted(path.to_owned()),
            other => other,
        })
    }

    /// Connects to the daemon of a mount.
    pub fn for_mount(mount: &Mount, mounts: &[Mount]) -> Result<Self, Error> {
        let own = runtime_dir(rustix::process::geteuid().as_raw());
        let mut reason = format!(
            "no control socket in {}; if it was mounted with another FOREBAY_RUNTIME_DIR or \
             XDG_RUNTIME_DIR, set that",
            own.display()
        );
        for socket in Address::candidates(mount, mounts) {
            match UnixStream::connect(&socket) {
                Ok(stream) => {
                    let client = Self::over(mount.mountpoint.clone(), stream)
                        .map_err(Error::io(socket.display().to_string()))?;
                    let root = mount.root.strip_prefix("/").unwrap_or(&mount.root).to_owned();
                    return Ok(Self { root, ..client });
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(Error::Denied { mountpoint: mount.mountpoint.clone(), socket });
                }
                Err(error) => reason = format!("{}: {error}", socket.display()),
            }
        }
        Err(Error::NoDaemon { mountpoint: mount.mountpoint.clone(), reason })
    }

    /// Speaks over a connected socket.
    pub fn over(mountpoint: PathBuf, stream: UnixStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(QUESTION_LIMIT))?;
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        let (pid, uid) = (peer.pid.as_raw_nonzero().get(), peer.uid.as_raw());
        let reader = BufReader::new(stream);
        Ok(Self { mountpoint, root: PathBuf::new(), pid, uid, reader })
    }

    /// The mount point as this process sees it.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// What the daemon calls a path that this process sees below the mount point.
    pub fn inside(&self, path: &Path) -> Option<PathBuf> {
        Some(joined(&self.root, path.strip_prefix(&self.mountpoint).ok()?))
    }

    /// Where this process sees what the daemon calls so; nowhere if a bind mount does not show it.
    pub fn outside(&self, path: &Path) -> Option<PathBuf> {
        Some(joined(&self.mountpoint, path.strip_prefix(&self.root).ok()?))
    }

    /// The process id of the daemon.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The user that the daemon runs as.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Asks and waits for the final reply, for at most `limit` where one is given.
    pub fn call(
        &mut self,
        request: Request,
        limit: Option<Duration>,
        on_progress: &mut dyn FnMut(&Progress),
    ) -> Result<Reply, Error> {
        let envelope = Envelope { v: PROTOCOL_VERSION, request };
        write_line(self.reader.get_mut(), &envelope).map_err(|error| self.lost(error))?;
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            match self.next_reply(deadline)? {
                Reply::Progress(progress) => on_progress(&progress),
                Reply::Error(error) => return Err(error.into()),
                reply => return Ok(reply),
            }
        }
    }

    fn next_reply(&mut self, deadline: Option<Instant>) -> Result<Reply, Error> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let late = || {
            Error::Control(ControlError::new(
                ErrorKind::NotMounted,
                "the daemon did not answer in time",
            ))
        };
        if left == Some(Duration::ZERO) {
            return Err(late());
        }
        self.reader.get_ref().set_read_timeout(left).map_err(|error| self.lost(error))?;
        let line = match read_line(&mut self.reader, REPLY_BYTES_MAX) {
            Ok(line) => line.ok_or_else(|| self.lost(io::ErrorKind::UnexpectedEof.into()))?,
            Err(error) => {
                return Err(match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => late(),
                    _ => self.lost(error),
                });
            }
        };
        serde_json::from_slice(&line).map_err(|error| Error::Protocol(error.to_string()))
    }

    /// The daemon ended while it was asked.
    fn lost(&self, error: io::Error) -> Error {
        let reason = format!("connection lost: {error}");
        Error::NoDaemon { mountpoint: self.mountpoint.clone(), reason }
    }

    /// Asks what needs no work.
    fn question(&mut self, request: Request) -> Result<Reply, Error> {
        self.call(request, Some(QUESTION_LIMIT), &mut |_| {})
    }

    /// The status of the mount.
    pub fn status(&mut self) -> Result<Status, Error> {
        match self.question(Request::Status)? {
            Reply::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    /// All metrics as text.
    pub fn metrics(&mut self) -> Result<String, Error> {
        match self.question(Request::Metrics)? {
            Reply::Text(text) => Ok(text),
            other => Err(unexpected(&other)),
        }
    }

    /// Where paths are.
    pub fn locate(&mut self, paths: Vec<super::WirePath>) -> Result<Vec<Location>, Error> {
        match self.question(Request::Locate { paths })? {
            Reply::Locations(locations) => Ok(locations),
            other => Err(unexpected(&other)),
        }
    }

    /// Conflicts that nobody has resolved.
    pub fn conflicts(&mut self) -> Result<Vec<super::Conflict>, Error> {
        match self.call(Request::Conflicts, None, &mut |_| {})? {
            Reply::Conflicts(conflicts) => Ok(conflicts),
            other => Err(unexpected(&other)),
        }
    }

    /// Forgets conflicts by their paths, and says how many they were.
    pub fn forget_conflicts(&mut self, paths: Vec<super::WirePath>) -> Result<u64, Error> {
        match self.question(Request::ForgetConflicts { paths })? {
            Reply::Forgotten(forgotten) => Ok(forgotten),
            other => Err(unexpected(&other)),
        }
    }

    /// What was recorded of opens since the last call.
    pub fn trace(&mut self, most: usize, stop: bool) -> Result<Recorded, Error> {
        match self.question(Request::TraceTake { most, stop })? {
            Reply::Recorded(recorded) => Ok(recorded),
            other => Err(unexpected(&other)),
        }
    }

    /// What was recorded of accesses.
    pub fn patterns(&mut self) -> Result<super::Patterns, Error> {
        match self.question(Request::Patterns)? {
            Reply::Patterns(patterns) => Ok(patterns),
            other => Err(unexpected(&other)),
        }
    }

    /// A request whose only answer is that it was done.
    pub fn order(&mut self, request: Request, limit: Duration) -> Result<(), Error> {
        match self.call(request, Some(limit), &mut |_| {})? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// A request that works on files.
    pub fn work(
        &mut self,
        request: Request,
        limit: Option<Duration>,
        on_progress: &mut dyn FnMut(&Progress),
    ) -> Result<Outcome, Error> {
        match self.call(request, limit, on_progress)? {
            Reply::Outcome(outcome) => Ok(outcome),
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(reply: &Reply) -> Error {
    Error::Protocol(format!("an answer to another question: {reply:?}"))
}
