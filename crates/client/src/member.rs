//! A process in a group.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::address::{CLIENTS, dirs_of, ids_of, mount_of};
use crate::protocol::{Join, NEWEST, OLDEST, Reply, Request};
use crate::{Error, Memory, socket};

/// How long an answer is waited for. The daemon has nothing to wait for itself.
const LIMIT: Duration = Duration::from_secs(10);

/// A connection to the daemon of a mount. A child has no use of it after a fork, and does no harm to it.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    version: u32,
    process: u32,
}

impl Client {
    /// Connects to the daemon of the mount that an open file lies on.
    pub fn of_file(file: impl AsFd) -> Result<Self, Error> {
        let (mount, mounts) = mount_of(file)?.ok_or(Error::NotOnMount)?;
        let mut reason = format!("no socket for clients in {}", dirs_of(&mount)[0].display());
        for dir in dirs_of(&mount) {
            for id in ids_of(&mount, &mounts) {
                let path = dir.join(format!("{id}.{CLIENTS}"));
                match Self::at(&path, mount.user_id()) {
                    Err(Error::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(Error::Io(error)) => reason = format!("{}: {error}", path.display()),
                    other => return other,
                }
            }
        }
        Err(Error::NoDaemon(reason))
    }

    /// Connects to who listens at a path, if that is root, this user, or the one given.
    pub fn at(path: &Path, user: Option<u32>) -> Result<Self, Error> {
        let socket = socket::connect(path, LIMIT)?;
        let (peer, _) = socket::peer(&socket)?;
        if peer != 0 && peer != rustix::process::geteuid().as_raw() && Some(peer) != user {
            return Err(Error::NoDaemon(format!("user {peer} listens at {}", path.display())));
        }
        Self::over(socket)
    }

    /// Says hello over a connected socket.
    pub fn over(socket: OwnedFd) -> Result<Self, Error> {
        set_socket_timeout(&socket, Timeout::Recv, Some(LIMIT))?;
        let mut client = Self { socket, version: 0, process: std::process::id() };
        let hello = Request::Hello { oldest: OLDEST, newest: NEWEST };
        match client.ask(&hello)? {
            (Reply::Welcome { version }, _) if (OLDEST..=NEWEST).contains(&version) => {
                client.version = version;
                Ok(client)
            }
            _ => Err(Error::Protocol("not welcome")),
        }
    }

    /// The version that both speak.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    fn ask(&self, request: &Request) -> Result<(Reply, Option<OwnedFd>), Error> {
        if self.process != std::process::id() {
            return Err(Error::Forked);
        }
        socket::send(&self.socket, &request.encode(), None)?;
        let received = socket::receive(&self.socket, true)?;
        let received = received.ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))?;
        let reply = received.bytes.as_deref().and_then(Reply::decode);
        match reply.ok_or(Error::Protocol("no message"))? {
            Reply::Refused(refusal, text) => Err(Error::Refused(refusal, text)),
            reply => Ok((reply, received.descriptor)),
        }
    }

    /// Joins a group whose members have this file open.
    pub fn join(self, join: &Join, file: impl AsFd) -> Result<Member, Error> {
        let descriptor = file.as_fd().as_raw_fd().cast_unsigned();
        let (reply, memory) = self.ask(&Request::Join(Join { descriptor, ..*join }))?;
        let (Reply::Joined { bytes }, Some(memory)) = (reply, memory) else {
            return Err(Error::Protocol("no memory came"));
        };
        if bytes < join.bytes {
            return Err(Error::Protocol("less memory than was asked for"));
        }
        let memory = Arc::new(Memory::map(&memory, bytes)?);
        Ok(Member { client: self, memory })
    }
}

/// A process in a group. It leaves when this is dropped, and when it dies in whatever way; the memory
/// stays mapped for as long as somebody has it.
#[derive(Debug)]
pub struct Member {
    client: Client,
    memory: Arc<Memory>,
}

impl Member {
    /// The group's memory; zeros where no member has written yet.
    #[must_use]
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Leaves the group, and waits until the daemon has taken note of it.
    pub fn leave(self) -> Result<Client, Error> {
        match self.client.ask(&Request::Leave)? {
            (Reply::Left, _) => Ok(self.client),
            _ => Err(Error::Protocol("not left")),
        }
    }

    /// Whether the daemon is gone, or has ended the connection. The memory is there nevertheless.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        let mut polled = [PollFd::new(&self.client.socket, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ended = PollFlags::HUP | PollFlags::ERR;
        rustix::event::poll(&mut polled, Some(&now)).is_err()
            || polled[0].revents().intersects(ended)
    }
}
