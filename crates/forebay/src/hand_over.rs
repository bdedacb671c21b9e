//! How one daemon takes over from another: the words that both say, and the descriptors that pass.
//!
//! The old daemon starts the new program with one end of a socket as its standard input, and offers
//! the mount. The new one looks whether it could serve it; until it has accepted, nothing has
//! changed. Then the old one comes to rest, closes everything, and sends the descriptors. The new
//! one opens everything, serves, and says so. If it fails before, or says nothing for too long, it
//! is ended, and the old one opens everything again and serves on.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};

use crate::control::{ControlError, ControlResult, ErrorKind};
use crate::descriptors::{self, in_memory, out_of_memory, words_in_memory, words_out_of_memory};
use crate::engine::HandOver;

/// How long a new program may take to look at the offer.
const OFFER_LIMIT: Duration = Duration::from_secs(20);
/// How long it may take to open everything and serve.
const TAKE_LIMIT: Duration = Duration::from_secs(60);
/// How long it waits for the old daemon to come to rest.
const REST_LIMIT: Duration = Duration::from_secs(3600);
/// The longest message.
const MESSAGE_MAX: usize = 64 << 10;
/// Descriptors of a message: the connection, the state, the lock and the socket of the address, what
/// holds the requests if they come by io_uring, and the supervisor if there is one.
const DESCRIPTORS: usize = 6;

/// What the two say to each other, one message each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
enum Word {
    /// The old one, with my settings in memory: take my mount, whose state will have this version.
    Offer { state: u32, version: String },
    /// The new one: I can.
    Accept { version: String },
    /// The new one: I can't, or could not.
    Refuse { error: ControlError },
    /// The old one, with the descriptors: it is yours. What holds the requests is among them if
    /// they come by io_uring.
    Take {
        #[serde(default)]
        rings: bool,
        /// What the service manager keeps was left under this number, if it keeps anything.
        #[serde(default)]
        stored: u64,
    },
    /// The new one: it is served.
    Serving,
}

/// The new daemon, as the old one sees it.
#[derive(Debug)]
pub struct Successor {
    child: Child,
    socket: OwnedFd,
    version: String,
    serves: bool,
}

impl Successor {
    /// Starts `program` and offers it the mount with the daemon's settings. The mount point on its
    /// command line is for people who list processes.
    ///
    /// # Errors
    /// When it can't be started or refuses.
    pub fn start(
        program: &Path,
        settings: &[OsString],
        mountpoint: &Path,
        state: u32,
    ) -> ControlResult<Self> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|error| failed("a socket for the new daemon", &error.into()))?;
        let settings =
            words_in_memory(settings).map_err(|error| failed("settings in memory", &error))?;
        let child = Command::new(program)
            .args(["daemon", "--successor"])
            .arg(mountpoint)
            .stdin(Stdio::from(theirs))
            .spawn()
            .map_err(|error| failed(&program.display().to_string(), &error))?;
        let mut successor = Self { child, socket: ours, version: String::new(), serves: false };
        let offer = Word::Offer { state, version: env!("CARGO_PKG_VERSION").into() };
        let answer = send(successor.socket.as_fd(), &offer, &[settings.as_fd()])
            .and_then(|()| receive(successor.socket.as_fd(), OFFER_LIMIT));
        match answer {
            Ok((Word::Accept { version }, _)) => {
                successor.version = version;
                Ok(successor)
            }
            Ok((Word::Refuse { error }, _)) => Err(error),
            Ok(_) => Err(unexpected()),
            Err(error) => {
                Err(failed(&format!("{}: it does not answer the offer", program.display()), &error))
            }
        }
    }

    /// The version of its program.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Hands the mount over and waits until it is served.
    ///
    /// # Errors
    /// Why it is not; the new daemon is gone then.
    pub fn take(
        &mut self,
        handed: &HandOver,
        lock: BorrowedFd<'_>,
        listener: BorrowedFd<'_>,
        supervisor: Option<BorrowedFd<'_>>,
        stored: u64,
    ) -> ControlResult<()> {
        let state = in_memory(&handed.state).map_err(|error| failed("the state", &error))?;
        let mut descriptors = vec![handed.device.as_fd(), state.as_fd(), lock, listener];
        descriptors.extend(handed.rings.as_ref().map(OwnedFd::as_fd));
        descriptors.extend(supervisor);
        let take = Word::Take { rings: handed.rings.is_some(), stored };
        let answer = send(self.socket.as_fd(), &take, &descriptors)
            .and_then(|()| receive(self.socket.as_fd(), TAKE_LIMIT));
        let error = match answer {
            Ok((Word::Serving, _)) => {
                self.serves = true;
                return Ok(());
            }
            Ok((Word::Refuse { error }, _)) => error,
            Ok(_) => unexpected(),
            Err(error) => failed("the new daemon failed before it served", &error),
        };
        self.end();
        Err(error)
    }

    /// Waits until it ends, for a program that somebody watches.
    pub fn wait(mut self) -> io::Result<std::process::ExitStatus> {
        self.child.wait()
    }

    fn end(&mut self) {
        // It may have ended by itself; either way it is gone after this.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if !self.serves {
            self.end();
        }
    }
}

/// The old daemon, as the new one sees it.
#[derive(Debug)]
pub struct Predecessor {
    socket: OwnedFd,
}

/// What the old daemon hands over.
#[derive(Debug)]
pub struct HandedOver {
    /// The mount.
    pub handed: HandOver,
    /// The lock of the address.
    pub lock: OwnedFd,
    /// The control socket.
    pub listener: UnixListener,
    /// The socket to the supervisor.
    pub supervisor: Option<OwnedFd>,
    /// Under which number the service manager keeps what the old daemon left; 0 for nothing.
    pub stored: u64,
}

impl Predecessor {
    /// The one that started this process.
    ///
    /// # Errors
    /// When there is none.
    pub fn from_stdin() -> io::Result<Self> {
        let socket = descriptors::take_stdin()?;
        rustix::net::sockopt::socket_type(&socket)?;
        Ok(Self { socket })
    }

    /// Hears the offer and answers it with what `look` says of the settings and of the version of the
    /// state.
    ///
    /// # Errors
    /// The refusal, or why nothing was heard.
    pub fn accept(
        &self,
        look: impl FnOnce(&[OsString], u32) -> ControlResult<()>,
    ) -> ControlResult<()> {
        let offer = receive(self.socket.as_fd(), OFFER_LIMIT);
        let (word, descriptors) = offer.map_err(|error| failed("the offer", &error))?;
        let Word::Offer { state, .. } = word else { return Err(unexpected()) };
        let settings = descriptors.into_iter().next().ok_or_else(unexpected).and_then(|settings| {
            words_out_of_memory(&settings.into()).map_err(|error| failed("the settings", &error))
        });
        settings
            .and_then(|settings| look(&settings, state))
            .inspect_err(|error| self.refuse(error))?;
        let accept = Word::Accept { version: env!("CARGO_PKG_VERSION").into() };
        send(self.socket.as_fd(), &accept, &[]).map_err(|error| failed("the offer", &error))
    }

    /// Waits for the mount.
    ///
    /// # Errors
    /// When the old daemon has changed its mind or died.
    pub fn take(&self) -> ControlResult<HandedOver> {
        let lost = |error: io::Error| failed("the old daemon has not handed over", &error);
        let (word, descriptors) = receive(self.socket.as_fd(), REST_LIMIT).map_err(lost)?;
        let since = Instant::now();
        let Word::Take { rings, stored } = word else { return Err(unexpected()) };
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or_else(unexpected);
        let (device, state, lock, listener) = (next()?, next()?, next()?, next()?);
        let rings = if rings { Some(next()?) } else { None };
        let supervisor = descriptors.next();
        let state = out_of_memory(&File::from(state)).map_err(lost)?;
        let handed = HandOver { device, rings, state, open_files: 0, since };
        Ok(HandedOver { handed, lock, listener: listener.into(), supervisor, stored })
    }

    /// Tells why not.
    pub fn refuse(&self, error: &ControlError) {
        // If it does not arrive, they notice that this process has ended.
        let _ = send(self.socket.as_fd(), &Word::Refuse { error: error.clone() }, &[]);
    }

    /// Tells that the mount is served.
    pub fn serving(&self) {
        // A predecessor that has died meanwhile needs not know.
        let _ = send(self.socket.as_fd(), &Word::Serving, &[]);
    }
}

fn failed(doing: &str, error: &io::Error) -> ControlError {
    ControlError::new(ErrorKind::Failed, format!("{doing}: {error}"))
}

fn unexpected() -> ControlError {
    ControlError::new(ErrorKind::Failed, "the other daemon says something that makes no sense")
}

fn send(socket: BorrowedFd<'_>, word: &Word, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(word)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors"));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(socket: BorrowedFd<'_>, limit: Duration) -> io::Result<(Word, Vec<OwnedFd>)> {
    let limit = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    if poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&limit))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut bytes = vec![0; MESSAGE_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut data = [IoSliceMut::new(&mut bytes)];
    let received = rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let word = serde_json::from_slice(&bytes[..received.bytes])?;
    Ok((word, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn words_and_descriptors_when_sent_then_received() {
        let (one, other) = pair();
        let file = in_memory(b"what is in it").unwrap();
        let passed = [file.as_fd(), one.as_fd()];
        send(one.as_fd(), &Word::Take { rings: false, stored: 3 }, &passed).unwrap();
        let (word, descriptors) = receive(other.as_fd(), Duration::from_secs(5)).unwrap();
        assert!(matches!(word, Word::Take { rings: false, stored: 3 }));
        assert_eq!(descriptors.len(), 2);
        let first = File::from(descriptors.into_iter().next().unwrap());
        assert_eq!(out_of_memory(&first).unwrap(), b"what is in it");
    }

    #[test]
    fn take_when_a_program_that_knows_no_rings_and_no_store_says_it_then_understood() {
        let word: Word = serde_json::from_str(r#"{"say":"take"}"#).unwrap();
        assert!(matches!(word, Word::Take { rings: false, stored: 0 }));
    }

    #[test]
    fn receive_when_nothing_or_the_end_comes_then_error() {
        let (one, other) = pair();
        let error = receive(other.as_fd(), Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(one);
        let error = receive(other.as_fd(), Duration::from_secs(5)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn accept_when_the_version_is_unknown_then_the_old_one_hears_why() {
        let (old, new) = pair();
        let predecessor = Predecessor { socket: new };
        let settings = words_in_memory(&["policy=lru".into()]).unwrap();
        let offer = Word::Offer { state: 9, version: "x".into() };
        send(old.as_fd(), &offer, &[settings.as_fd()]).unwrap();
        let refusal = ControlError::new(ErrorKind::BadState, "version 9 is unknown");
        let refused = predecessor.accept(|settings, version| {
            assert_eq!((settings, version), (["policy=lru".into()].as_slice(), 9));
            Err(refusal.clone())
        });
        assert_eq!(refused, Err(refusal.clone()));
        match receive(old.as_fd(), Duration::from_secs(5)).unwrap().0 {
            Word::Refuse { error } => assert_eq!(error, refusal),
            word => panic!("{word:?}"),
        }
    }
}
