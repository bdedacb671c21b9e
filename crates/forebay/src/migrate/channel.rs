//! What the keeper of a task and the node that hosts it say to each other: frames over a connection
//! whose two ends know each other by the secret of the cluster.
//!
//! A frame is a byte that says what it is, its length (four bytes, little-endian), and its bytes: a
//! [`Message`] as JSON, or bytes of an image, or what the task prints.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_peer::transport::tcp::Tcp;
use forebay_peer::transport::{Closer, Listener, Sink, Source, TimeLimits, Transport, Wire};
use forebay_peer::{Address, ClusterSecret, Security};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::task::Stream;
use crate::control::{ControlError, WirePath};
use crate::error::Error;

/// The longest message: an environment, and the words of a command.
const MAX_MESSAGE: usize = 4 << 20;
/// The longest piece of an image, or of what is printed.
pub const MAX_PIECE: usize = 256 << 10;
/// The size of a frame's head.
const HEAD: usize = 5;
/// What may pass until the other side answers, until both know each other, and until a write is given
/// up.
const LIMITS: TimeLimits = TimeLimits {
    connect: Duration::from_secs(10),
    handshake: Duration::from_secs(10),
    stall: Duration::from_secs(15),
};
/// A read that gives nothing for so long is begun again: whether the other host is there TCP finds out.
const IDLE: Duration = Duration::from_secs(3600);

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message {
    /// The keeper: who it is, by a token; the mount as the task sees it; bytes of the task's memory.
    Open {
        /// The token that the host was started with.
        token: String,
        /// The mount as the task sees it.
        seen: WirePath,
        /// Bytes that the task has in memory.
        bytes: u64,
        /// Whether it is started anew there, from a state that it saves itself.
        #[serde(default)]
        by_itself: bool,
    },
    /// The host: the task may come.
    Ready,
    /// Both: bytes of this file of the image follow, at its end.
    File(String),
    /// The keeper: the image is complete, restore it, stopped.
    Restore(Written),
    /// The host: the task is there, stopped.
    Restored,
    /// The keeper: start the task, which has saved its state; it does not begin yet.
    Start(Box<Beginning>),
    /// The host: it is there, and does not run yet.
    Started,
    /// The keeper: have the task save its state within so many milliseconds. Then it waits.
    Save {
        /// Milliseconds.
        within_ms: u64,
    },
    /// The host: it has.
    Saved(Saved),
    /// The keeper: have the task, which has saved its state, end.
    Finish,
    /// The host: it has ended.
    Finished,
    /// The keeper: the other copy is stopped and goes on no more; this one is the task.
    Go,
    /// The host: it runs.
    Going,
    /// The keeper: how large is the task, and can it be written down?
    Look,
    /// The host: so many bytes of memory; it can.
    Looked {
        /// Bytes that the task has in memory.
        bytes: u64,
        /// Whether it saves its state itself, and so can't be written down.
        #[serde(default)]
        by_itself: bool,
    },
    /// The keeper: stop the task and write it down. The image is sent, then this is answered.
    Freeze,
    /// The host: it is stopped, and all of the image was sent.
    Frozen(Written),
    /// The host: what was asked for was not done, and the task is as it was.
    Failed(ControlError),
    /// The keeper: the task goes on here.
    Resume,
    /// The keeper: end the task, and print the rest.
    Kill,
    /// The keeper: a signal for the task.
    Signal(i32),
    /// The keeper: so much of what was sent was printed.
    Printed(usize),
    /// The keeper: nobody reads standard output any more, or standard error.
    Deaf {
        /// Whether it is standard error.
        err: bool,
    },
    /// The host: the task has ended, with this exit code, and all that it printed was sent.
    Ended(i32),
}

/// What is known of a task that was written down, beside its image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Written {
    /// The pipes that it printed to.
    pub pipes: [u64; 2],
    /// Those of its processes that a signal had stopped, by their numbers in the task.
    pub stopped: BTreeSet<i32>,
    /// Its processes.
    pub processes: usize,
    /// Files that were open for writing, and brought to where other nodes see them.
    pub files: usize,
}

/// What is known of a task that has saved its state itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Saved {
    /// What it said of its state: a path, as a rule.
    pub state: String,
    /// Its processes.
    pub processes: usize,
    /// Files that were brought to where other nodes see them.
    pub files: usize,
}

/// How a task is started on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Beginning {
    /// The program and its arguments.
    pub command: Vec<WirePath>,
    /// Where it runs.
    pub dir: WirePath,
    /// Its environment.
    pub env: Vec<(WirePath, WirePath)>,
}

/// What comes.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    /// Something said.
    Message(Message),
    /// Bytes of the file of the image that was named last.
    Piece(Vec<u8>),
    /// Something that the task printed.
    Print(Stream, Vec<u8>),
}

const MESSAGE: u8 = 0;
const PIECE: u8 = 1;
const PRINTED_OUT: u8 = 2;
const PRINTED_ERR: u8 = 3;

/// The way out, for any number of threads.
#[derive(Clone)]
pub struct Outgoing {
    sink: Arc<Mutex<Box<dyn Sink>>>,
    closer: Arc<dyn Closer>,
    closed: Arc<AtomicBool>,
}

/// The way in.
pub struct Incoming(Box<dyn Source>);

/// Both ways of a connection.
pub fn ways(wire: Wire) -> io::Result<(Outgoing, Incoming)> {
    let Wire { mut source, sink, closer } = wire;
    source.set_timeout(IDLE)?;
    let (sink, closed) = (Arc::new(Mutex::new(sink)), Arc::new(AtomicBool::new(false)));
    Ok((Outgoing { sink, closer, closed }, Incoming(source)))
}

impl Outgoing {
    /// Says something.
    pub fn say(&self, message: &Message) -> io::Result<()> {
        self.send(MESSAGE, &serde_json::to_vec(message)?)
    }

    /// Sends bytes of an image.
    pub fn piece(&self, bytes: &[u8]) -> io::Result<()> {
        self.send(PIECE, bytes)
    }

    /// Sends what the task prints.
    pub fn print(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let kind = match stream {
            Stream::Out => PRINTED_OUT,
            Stream::Err => PRINTED_ERR,
        };
        self.send(kind, bytes)
    }

    fn send(&self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let mut head = [kind, 0, 0, 0, 0];
        head[1..].copy_from_slice(&length.to_le_bytes());
        let mut sink = self.sink.lock();
        let sent = sink.send(&mut [IoSlice::new(&head), IoSlice::new(bytes)]);
        let sent = sent.and_then(|()| sink.end_frame());
        // A frame that was sent in part is never followed by another.
        sent.inspect_err(|_| self.close())
    }

    /// Ends both ways.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.closer.close();
    }

    /// Whether this side has ended them, or could not send.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Incoming {
    /// The next frame; `UnexpectedEof` says that the other side is gone.
    pub fn hear(&mut self) -> io::Result<Frame> {
        let mut head = [0; HEAD];
        self.fill(&mut head)?;
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let most = if head[0] == MESSAGE { MAX_MESSAGE } else { MAX_PIECE };
        if length > most {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is too long"));
        }
        let mut bytes = vec![0; length];
        self.fill(&mut bytes)?;
        match head[0] {
            MESSAGE => Ok(Frame::Message(serde_json::from_slice(&bytes)?)),
            PIECE => Ok(Frame::Piece(bytes)),
            PRINTED_OUT => Ok(Frame::Print(Stream::Out, bytes)),
            PRINTED_ERR => Ok(Frame::Print(Stream::Err, bytes)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "an unknown kind of frame")),
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let mut at = 0;
        while at < bytes.len() {
            match self.0.read(&mut bytes[at..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => at += read,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn security(secret: &Path, other: Option<&Path>) -> Result<Security, Error> {
    let read = |path: &Path| {
        // A daemon has named it.
        ClusterSecret::read_of(path, &super::targets::believed())
            .map_err(|error| Error::Failed(format!("{}: {error}", path.display())))
    };
    let other = other.map(read).transpose()?;
    let identity = read(secret)?.identity_beside(other.as_ref());
    identity.map(Security::Tls).map_err(|error| Error::Failed(error.to_string()))
}

/// Listens on a free port of this host, for those who share a secret.
pub fn listen(host: &str, secret: &Path, other: Option<&Path>) -> Result<Box<dyn Listener>, Error> {
    let way = Tcp::new(security(secret, other)?);
    let listener = way.listen(&Address::Tcp(format!("{host}:0")));
    listener.map_err(|error| Error::Failed(error.to_string()))
}

/// The next one who comes and has the secret; an error if the listener was closed.
pub fn accept(listener: &dyn Listener) -> io::Result<Option<Wire>> {
    match listener.accept()?.admit(LIMITS) {
        Ok(wire) => Ok(Some(wire)),
        Err(_) => Ok(None),
    }
}

/// Connects to one who listens.
pub fn connect(at: &str, secret: &Path, other: Option<&Path>) -> Result<Wire, Error> {
    let way = Tcp::new(security(secret, other)?);
    let wire = way.connect(&Address::Tcp(at.to_owned()), LIMITS);
    wire.map_err(|error| Error::Failed(error.to_string()))
}

/// Whether this is a name that CRIU gives to a file of an image, and not a way out of its directory.
pub fn is_image(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    name.ends_with(".img") && !name.starts_with('.') && name.len() < 256 && name.bytes().all(plain)
}

/// The files of an image, by name.
pub fn images_in(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.extend(entry?.file_name().into_string().ok().filter(|name| is_image(name)));
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn secret(dir: &Path, name: &str, byte: u8) -> std::path::PathBuf {
        let path = dir.join(name);
        fs::write(&path, [byte; 32]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn port(listener: &dyn Listener) -> String {
        match listener.address() {
            Address::Tcp(at) => at,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn frames_when_sent_then_received_as_they_were_and_the_end_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let secret = secret(dir.path(), "secret", 7);
        let listener = listen("127.0.0.1", &secret, None).unwrap();
        let at = port(&*listener);
        let there = std::thread::spawn(move || {
            let (out, _incoming) = ways(connect(&at, &secret, None).unwrap()).unwrap();
            out.say(&Message::Signal(15)).unwrap();
            out.piece(&[9; MAX_PIECE]).unwrap();
            out.print(Stream::Err, b"x").unwrap();
            out.print(Stream::Out, b"").unwrap();
        });
        let (_out, mut incoming) = ways(accept(&*listener).unwrap().unwrap()).unwrap();
        assert_eq!(incoming.hear().unwrap(), Frame::Message(Message::Signal(15)));
        assert_eq!(incoming.hear().unwrap(), Frame::Piece(vec![9; MAX_PIECE]));
        assert_eq!(incoming.hear().unwrap(), Frame::Print(Stream::Err, b"x".to_vec()));
        assert_eq!(incoming.hear().unwrap(), Frame::Print(Stream::Out, vec![]));
        there.join().unwrap();
        assert!(incoming.hear().is_err());
    }

    #[test]
    fn stranger_when_without_the_secret_then_not_let_in() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, theirs) = (secret(dir.path(), "ours", 7), secret(dir.path(), "theirs", 8));
        let listener = listen("127.0.0.1", &ours, None).unwrap();
        let at = port(&*listener);
        let there = std::thread::spawn(move || {
            // With TLS 1.3 whoever connects may hear only afterwards that he was refused.
            let wire = connect(&at, &theirs, None);
            wire.is_err() || ways(wire.unwrap()).unwrap().1.hear().is_err()
        });
        assert!(accept(&*listener).unwrap().is_none());
        assert!(there.join().unwrap());
    }

    #[test]
    fn names_when_of_images_then_taken_and_ways_out_refused() {
        for name in ["core-1.img", "pages-12.img", "tmpfs-dev-33.tar.gz.img", "ids-1.img"] {
            assert!(is_image(name), "{name}");
        }
        for name in ["../x.img", "/x.img", ".img", "dump.log", "a/b.img", ""] {
            assert!(!is_image(name), "{name}");
        }
    }
}
