//! A task that another node hosts, as its keeper sees it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::body::Looked;
use super::channel::{self, Beginning, Frame, Incoming, Message, Outgoing, Saved, Written};
use super::task::{Printing, Sink, Stream};
use super::transfer::{Arriving, Sending};
use crate::control::{TaskHost, WirePath};
use crate::error::Error;

/// How long the other side may take to get ready.
const READY_LIMIT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 30 });
/// How long a restore, or an image on its way, may take, and what is given to each MiB of it.
const WORK_LIMIT: Duration = Duration::from_secs(60);
const WORK_LIMIT_MIB: Duration = Duration::from_millis(50);
/// What is asked where the task is may take as long as its files take to be written. If the node hangs, so
/// does the task; if it is lost, the connection ends.
const A_DAY: Duration = Duration::from_secs(24 * 3600);
/// Frames that wait to be looked at: an image comes faster than it is written.
const WAITING: usize = 32;
/// After the network was cut, the other side may take so much longer than this one to notice.
const NOTICED_LATER: Duration = Duration::from_secs(20);

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// With this exit code.
    Code(i32),
    /// The node, or the way to it, is gone, and the task with it.
    Lost(String),
}

/// Hears of the end, in a thread of its own; not if nobody would ask, as the task is gone from there.
pub type OnEnd = Box<dyn FnOnce(End) + Send>;

/// The keeper's end of the connection.
pub struct Remote {
    out: Outgoing,
    heard: Receiver<Frame>,
    printing: Option<JoinHandle<()>>,
    bytes: u64,
}

/// What the task prints, on its way to where the keeper prints.
type Prints = Sender<(Stream, Vec<u8>)>;

impl Remote {
    /// Connects to a node that waits for the task, and asks whether it may come.
    pub fn reach(
        host: &TaskHost,
        seen: &Path,
        looked: Looked,
        sink: Arc<dyn Sink>,
        end: OnEnd,
    ) -> Result<Self, Error> {
        let Looked { bytes, by_itself } = looked;
        let other = host.other_secret.as_ref().map(WirePath::as_path);
        let wire = channel::connect(&host.at, host.secret.as_path(), other)?;
        let failed = || Error::io("talking to the node");
        let (out, incoming) = channel::ways(wire).map_err(failed())?;
        let (frames, heard) = mpsc::sync_channel(WAITING);
        let (prints, to_print) = mpsc::channel();
        let (acknowledge, own) = (out.clone(), out.clone());
        let printing = std::thread::Builder::new()
            .name("printing".into())
            .spawn(move || print(&to_print, &*sink, &acknowledge))
            .map_err(Error::io("starting a thread"))?;
        let remote = Self { out, heard, printing: Some(printing), bytes };
        std::thread::Builder::new()
            .name("host".into())
            .spawn(move || hear(incoming, &own, &frames, &prints, end))
            .map_err(Error::io("starting a thread"))?;
        let seen = seen.into();
        remote.say(&Message::Open { token: host.token.clone(), seen, bytes, by_itself })?;
        match remote.answer(READY_LIMIT)? {
            Message::Ready => Ok(remote),
            other => Err(remote.unfit(&other)),
        }
    }

    /// Sends an image while it is written.
    pub fn send(&self, images: &Path) -> Result<Sending, Error> {
        Sending::start(images, &self.out).map_err(Error::io("starting a thread"))
    }

    /// The image is complete: has the task restored there, stopped.
    pub fn restore(&self, sending: Sending, written: &Written) -> Result<(), Error> {
        sending.finish().map_err(Error::io("sending the image"))?;
        self.say(&Message::Restore(written.clone()))?;
        match self.answer(self.work_limit())? {
            Message::Restored => Ok(()),
            other => Err(self.unfit(&other)),
        }
    }

    /// Has a task that has saved its state started there; it does not run yet.
    pub fn start(&self, beginning: &Beginning) -> Result<(), Error> {
        self.say(&Message::Start(Box::new(beginning.clone())))?;
        match self.answer(WORK_LIMIT)? {
            Message::Started => Ok(()),
            other => Err(self.unfit(&other)),
        }
    }

    /// Has it save its state itself, after which it waits. If that fails, it goes on there, unless it has
    /// ended or the connection is gone.
    pub fn save(&self, within: Duration) -> Result<Saved, Error> {
        let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        self.say(&Message::Save { within_ms })?;
        match self.answer(A_DAY)? {
            Message::Saved(saved) => Ok(saved),
            other => Err(self.unfit(&other)),
        }
    }

    /// Has it end there, as it has saved its state.
    pub fn finish(&self) -> Result<(), Error> {
        self.say(&Message::Finish)?;
        match self.answer(A_DAY)? {
            Message::Finished => Ok(()),
            other => Err(self.unfit(&other)),
        }
    }

    /// From here on it is the task. If this fails, the node was not told, and never runs it.
    pub fn go(&self) -> Result<(), Error> {
        self.say(&Message::Go)
    }

    /// Waits until it runs. If it does not, its end is heard of.
    pub fn wait_until_going(&self) {
        let _ = self.answer(A_DAY);
    }

    /// How large it is, if it can be migrated.
    pub fn look(&mut self) -> Result<Looked, Error> {
        self.say(&Message::Look)?;
        match self.answer(A_DAY)? {
            Message::Looked { bytes, by_itself } => {
                self.bytes = bytes;
                Ok(Looked { bytes, by_itself })
            }
            other => Err(self.unfit(&other)),
        }
    }

    /// Stops it there and brings its image here. If that fails, it goes on there, unless the connection is
    /// gone.
    pub fn write_down(&self, images: &Path) -> Result<Written, Error> {
        self.say(&Message::Freeze)?;
        let mut arriving = Arriving::into(images);
        // What can't be written here is still taken from the connection, until the node is done.
        let mut trouble = None;
        let until = Instant::now() + A_DAY;
        loop {
            let taken = match self.next(until)? {
                Frame::Message(Message::File(name)) => arriving.file(&name),
                Frame::Piece(bytes) if trouble.is_none() => arriving.piece(&bytes),
                Frame::Message(Message::Frozen(written)) => match trouble {
                    None => return Ok(written),
                    Some(error) => {
                        self.go_on()?;
                        return Err(Error::io("writing the image")(error));
                    }
                },
                Frame::Message(Message::Failed(error)) => return Err(error.into()),
                Frame::Message(other) => return Err(self.unfit(&other)),
                Frame::Piece(_) | Frame::Print(..) => Ok(()),
            };
            trouble = trouble.or(taken.err());
        }
    }

    /// It goes on there.
    pub fn go_on(&self) -> Result<(), Error> {
        self.say(&Message::Resume)
    }

    /// Whether the connection is gone, and the task with it.
    pub fn is_gone(&self) -> bool {
        self.out.is_closed()
    }

    /// Sends it a signal. If that fails, its end is heard of.
    pub fn signal(&self, signal: i32) {
        let _ = self.say(&Message::Signal(signal));
    }

    /// Has the node end all of it. What it has printed is still to be read.
    pub fn kill(mut self) -> Printing {
        let told = self.say(&Message::Kill);
        if told.is_err() {
            self.out.close();
        }
        // The node closes the connection when all was sent.
        Printing::of(self.printing.take())
    }

    /// It has ended: what is still to be printed.
    pub fn ended(mut self) -> Printing {
        self.out.close();
        Printing::of(self.printing.take())
    }

    fn work_limit(&self) -> Duration {
        let mib = u32::try_from(self.bytes >> 20).unwrap_or(u32::MAX);
        WORK_LIMIT.saturating_add(WORK_LIMIT_MIB.saturating_mul(mib))
    }

    fn say(&self, message: &Message) -> Result<(), Error> {
        self.out.say(message).map_err(Error::io("talking to the node"))
    }

    fn answer(&self, limit: Duration) -> Result<Message, Error> {
        match self.next(Instant::now() + limit)? {
            Frame::Message(Message::Failed(error)) => Err(error.into()),
            Frame::Message(message) => Ok(message),
            Frame::Piece(_) | Frame::Print(..) => Err(self.unfit(&"bytes")),
        }
    }

    /// What was said fits nothing that was asked: who knows what the node does with the task.
    fn unfit(&self, what: &dyn std::fmt::Debug) -> Error {
        self.out.close();
        Error::Failed(format!("the node says something that does not fit: {what:?}"))
    }

    fn next(&self, until: Instant) -> Result<Frame, Error> {
        let left = until.saturating_duration_since(Instant::now());
        self.heard.recv_timeout(left).map_err(|error| {
            // An answer that comes late must not be taken for that to another question.
            self.out.close();
            Error::Failed(match error {
                RecvTimeoutError::Timeout => "the node does not answer in time".into(),
                RecvTimeoutError::Disconnected => "the connection to the node is gone".to_owned(),
            })
        })
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The node then ends what it has of the task; of one that was killed or has ended it says the rest.
        if self.printing.is_some() {
            self.out.close();
        }
    }
}

/// Reads what comes until the connection ends.
fn hear(
    mut incoming: Incoming,
    own: &Outgoing,
    frames: &SyncSender<Frame>,
    prints: &Prints,
    end: OnEnd,
) {
    let why = loop {
        match incoming.hear() {
            Ok(Frame::Print(stream, bytes)) => {
                if prints.send((stream, bytes)).is_err() {
                    return;
                }
            }
            Ok(Frame::Message(Message::Ended(code))) => return end(End::Code(code)),
            // Nobody waits for an answer any more, but for the end somebody does.
            Ok(frame) => drop(frames.send(frame)),
            Err(error) => break error,
        }
    };
    if !is_by_other_side(&why, own.is_closed()) {
        std::thread::sleep(NOTICED_LATER);
    }
    own.close();
    end(End::Lost(why.to_string()));
}

/// Whether the other side has ended the connection. If not, it may not know yet: of a network that was cut
/// the kernel says that there is no route, or that time is over, and if it tells that to a thread that sends,
/// the one that reads is told of an end.
fn is_by_other_side(error: &io::Error, closed_here: bool) -> bool {
    let ends = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
    ends.contains(&error.kind()) && !closed_here
}

fn print(prints: &Receiver<(Stream, Vec<u8>)>, sink: &dyn Sink, acknowledge: &Outgoing) {
    while let Ok((stream, bytes)) = prints.recv() {
        let read = sink.put(stream, &bytes);
        // If the connection is gone, whoever reads from it hears of that.
        let _ = acknowledge.say(&Message::Printed(bytes.len()));
        if !read {
            let _ = acknowledge.say(&Message::Deaf { err: stream == Stream::Err });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_peer::Address;
    use std::os::unix::fs::PermissionsExt;

    /// Nobody reads.
    struct Nowhere;

    impl Sink for Nowhere {
        fn put(&self, _: Stream, _: &[u8]) -> bool {
            false
        }
    }

    /// A task on a node that answers so.
    fn on_node(
        dir: &Path,
        answers: impl FnOnce(&Outgoing, &mut Incoming) + Send + 'static,
    ) -> (Remote, Receiver<End>, JoinHandle<()>) {
        let secret = dir.join("secret");
        std::fs::write(&secret, [7; 32]).unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let listener = channel::listen("127.0.0.1", &secret, None).unwrap();
        let Address::Tcp(at) = listener.address() else { panic!("not TCP") };
        let node = std::thread::spawn(move || {
            let wire = channel::accept(&*listener).unwrap().unwrap();
            let (out, mut incoming) = channel::ways(wire).unwrap();
            assert!(matches!(incoming.hear(), Ok(Frame::Message(Message::Open { .. }))));
            out.say(&Message::Ready).unwrap();
            answers(&out, &mut incoming);
        });
        let secret = WirePath(secret);
        let host = TaskHost { at, token: "t".into(), secret, other_secret: None };
        let (ended, end) = mpsc::channel();
        let looked = Looked { bytes: 0, by_itself: false };
        let on_end = Box::new(move |end| drop(ended.send(end)));
        let remote = Remote::reach(&host, dir, looked, Arc::new(Nowhere), on_end).unwrap();
        (remote, end, node)
    }

    fn said(incoming: &mut Incoming) -> Message {
        match incoming.hear() {
            Ok(Frame::Message(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn node_when_it_answers_late_then_waited_for_and_the_next_migration_is_in_step() {
        let dir = tempfile::tempdir().unwrap();
        let (mut remote, _end, node) = on_node(dir.path(), |out, incoming| {
            assert_eq!(said(incoming), Message::Look);
            // Later than one that is to get ready may be.
            std::thread::sleep(READY_LIMIT + READY_LIMIT / 2);
            out.say(&Message::Looked { bytes: 5, by_itself: false }).unwrap();
            assert_eq!(said(incoming), Message::Look);
            out.say(&Message::Looked { bytes: 6, by_itself: true }).unwrap();
            assert_eq!(said(incoming), Message::Freeze);
            out.say(&Message::Frozen(Written { processes: 3, ..Written::default() })).unwrap();
            assert_eq!(said(incoming), Message::Resume);
        });
        assert_eq!(remote.look().unwrap(), Looked { bytes: 5, by_itself: false });
        assert_eq!(remote.look().unwrap(), Looked { bytes: 6, by_itself: true });
        assert_eq!(remote.write_down(dir.path()).unwrap().processes, 3);
        assert!(!remote.is_gone());
        remote.go_on().unwrap();
        node.join().unwrap();
    }

    #[test]
    fn node_when_it_says_what_does_not_fit_then_the_connection_ends_and_it_is_told_so() {
        let dir = tempfile::tempdir().unwrap();
        let (remote, _end, node) = on_node(dir.path(), |out, incoming| {
            assert_eq!(said(incoming), Message::Freeze);
            out.say(&Message::Looked { bytes: 5, by_itself: false }).unwrap();
            // A node that has stopped the task must not wait for what nobody says.
            assert!(incoming.hear().is_err());
        });
        assert!(remote.write_down(dir.path()).unwrap_err().to_string().contains("does not fit"));
        assert!(remote.is_gone());
        node.join().unwrap();
    }

    #[test]
    fn connection_when_the_network_is_cut_then_the_other_side_may_not_know_yet() {
        let of = |code: i32| io::Error::from_raw_os_error(code);
        for error in [of(libc::EHOSTUNREACH), of(libc::ENETUNREACH), of(libc::ETIMEDOUT)] {
            assert!(!is_by_other_side(&error, false), "{error}");
        }
        assert!(is_by_other_side(&of(libc::ECONNRESET), false));
        assert!(is_by_other_side(&io::ErrorKind::UnexpectedEof.into(), false));
        // What could not be sent has closed it, and who reads is told of an end.
        assert!(!is_by_other_side(&io::ErrorKind::UnexpectedEof.into(), true));
    }
}
