//! A task that another node hosts, as its keeper sees it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::channel::{self, Frame, Incoming, Message, Outgoing, Written};
use super::task::{Printing, Sink, Stream};
use super::transfer::{Arriving, Sending};
use crate::control::{TaskHost, WirePath};
use crate::error::Error;

/// How long the other side may take to get ready, or to answer what needs no work.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// How long a restore, or an image on its way, may take, and what is given to each MiB of it.
const WORK_LIMIT: Duration = Duration::from_secs(60);
const WORK_LIMIT_MIB: Duration = Duration::from_millis(50);
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
        bytes: u64,
        sink: Arc<dyn Sink>,
        end: OnEnd,
    ) -> Result<Self, Error> {
        let other = host.other_secret.as_ref().map(WirePath::as_path);
        let wire = channel::connect(&host.at, host.secret.as_path(), other)?;
        let failed = || Error::io("talking to the node");
        let (out, incoming) = channel::ways(wire).map_err(failed())?;
        let (frames, heard) = mpsc::sync_channel(WAITING);
        let (prints, to_print) = mpsc::channel();
        let acknowledge = out.clone();
        let printing = std::thread::Builder::new()
            .name("printing".into())
            .spawn(move || print(&to_print, &*sink, &acknowledge))
            .map_err(Error::io("starting a thread"))?;
        let remote = Self { out, heard, printing: Some(printing), bytes };
        std::thread::Builder::new()
            .name("host".into())
            .spawn(move || hear(incoming, &frames, &prints, end))
            .map_err(Error::io("starting a thread"))?;
        let seen = seen.into();
        remote.say(&Message::Open { token: host.token.clone(), seen, bytes })?;
        match remote.answer(ANSWER_LIMIT)? {
            Message::Ready => Ok(remote),
            other => Err(unfit(&other)),
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
            other => Err(unfit(&other)),
        }
    }

    /// From here on it is the task. If this fails, the node was not told, and never runs it.
    pub fn go(&self) -> Result<(), Error> {
        self.say(&Message::Go)
    }

    /// Waits until it runs. If it does not, its end is heard of.
    pub fn wait_until_going(&self) {
        let _ = self.answer(ANSWER_LIMIT);
    }

    /// Bytes that it has in memory, if it can be migrated.
    pub fn look(&mut self) -> Result<u64, Error> {
        self.say(&Message::Look)?;
        match self.answer(ANSWER_LIMIT)? {
            Message::Looked { bytes } => {
                self.bytes = bytes;
                Ok(bytes)
            }
            other => Err(unfit(&other)),
        }
    }

    /// Stops it there and brings its image here. If that fails, it goes on there.
    pub fn write_down(&self, images: &Path) -> Result<Written, Error> {
        self.say(&Message::Freeze)?;
        let mut arriving = Arriving::into(images);
        // What can't be written here is still taken from the connection, until the node is done.
        let mut trouble = None;
        // If the node hangs, so does the task, wherever it was to go: there is nothing to give up.
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
                Frame::Message(other) => return Err(unfit(&other)),
                Frame::Piece(_) | Frame::Print(..) => Ok(()),
            };
            trouble = trouble.or(taken.err());
        }
    }

    /// It goes on there.
    pub fn go_on(&self) -> Result<(), Error> {
        self.say(&Message::Resume)
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
            Frame::Piece(_) | Frame::Print(..) => Err(unfit(&"bytes")),
        }
    }

    fn next(&self, until: Instant) -> Result<Frame, Error> {
        let left = until.saturating_duration_since(Instant::now());
        self.heard.recv_timeout(left).map_err(|error| {
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

fn unfit(what: &dyn std::fmt::Debug) -> Error {
    Error::Failed(format!("the node says something that does not fit: {what:?}"))
}

/// Reads what comes until the connection ends.
fn hear(mut incoming: Incoming, frames: &SyncSender<Frame>, prints: &Prints, end: OnEnd) {
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
    if why.kind() == io::ErrorKind::TimedOut {
        std::thread::sleep(NOTICED_LATER);
    }
    end(End::Lost(why.to_string()));
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
