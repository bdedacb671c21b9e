//! A stream as its reader has it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::model::{Rate, StreamId};
use bytes::Bytes;
use crossbeam_channel::{Sender, bounded};
use parking_lot::{Condvar, Mutex};

use super::beginnings::Copier;
use super::{ANSWER_LIMIT, Command, Rejected};
use crate::pool::{Chunk, Span};

/// Why a stream ended before its time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The device could not read the file, again and again.
    #[error("the file can't be read: {0}")]
    Device(String),
    /// The service was stopped.
    #[error("the service was stopped")]
    Stopped,
    /// Nobody had taken anything for long, so the stream had given its place back, and there is none
    /// for it now. Reading again asks again.
    #[error("it has given its place back and there is none now: {0}")]
    Refused(Rejected),
    /// Nothing came within the time that the reader gave.
    #[error("nothing came within {} ms", .0.as_millis())]
    TimedOut(Duration),
}

/// Bytes on their way to the reader.
pub(super) enum Piece {
    /// In the machine's memory.
    Guaranteed(Span),
    /// In memory of their own: a chunk, and which of its bytes.
    BestEffort(Chunk, std::ops::Range<usize>),
}

impl Piece {
    pub fn len(&self) -> usize {
        match self {
            Self::Guaranteed(span) => span.as_ref().len(),
            Self::BestEffort(_, range) => range.len(),
        }
    }
}

/// What passes from the driver to the reader.
#[derive(Default)]
pub(super) struct Queue {
    /// Bytes to be taken, in the order of the file.
    pub ready: VecDeque<Piece>,
    /// No more will come.
    pub ended: bool,
    pub failed: Option<StreamError>,
    /// It has given its place back: whoever reads has to ask for one.
    pub parked: bool,
    /// Why there was none.
    pub refused: Option<Rejected>,
    waker: Option<Waker>,
}

/// What reader and driver share. The stream leaves the machine when the last of its holders is
/// gone: the reader, and every piece of memory that it was given.
pub(crate) struct Core {
    pub id: StreamId,
    queue: Mutex<Queue>,
    filled: Condvar,
    commands: Sender<Command>,
}

impl Core {
    pub(super) fn new(id: StreamId, commands: Sender<Command>) -> Arc<Self> {
        Arc::new(Self { id, queue: Mutex::default(), filled: Condvar::new(), commands })
    }

    /// Looks at the queue.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Queue) -> T) -> T {
        look(&self.queue.lock())
    }

    /// Nothing is ready: the reason, if it is that the stream has no place. Asks for one if nobody
    /// has yet.
    fn without_place(&self, queue: &mut Queue) -> Option<StreamError> {
        if let Some(refused) = queue.refused.take() {
            return Some(StreamError::Refused(refused));
        }
        if std::mem::take(&mut queue.parked) {
            let _ = self.commands.send(Command::Wake(self.id));
        }
        None
    }

    /// Changes the queue and wakes the reader.
    pub(super) fn update(&self, change: impl FnOnce(&mut Queue)) {
        let waker = {
            let mut queue = self.queue.lock();
            change(&mut queue);
            queue.waker.take()
        };
        self.filled.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // A driver that is gone needs no telling.
        let _ = self.commands.send(Command::Leave(self.id));
    }
}

/// Bytes that were given to a reader. The driver is told when the reader is done with them, and
/// keeps the machine's memory until then.
struct Given {
    /// There until it is dropped.
    piece: Option<Piece>,
    core: Arc<Core>,
}

impl Given {
    fn bytes(piece: Piece, core: &Arc<Core>) -> Bytes {
        Bytes::from_owner(Self { piece: Some(piece), core: Arc::clone(core) })
    }
}

impl AsRef<[u8]> for Given {
    fn as_ref(&self) -> &[u8] {
        match &self.piece {
            Some(Piece::Guaranteed(span)) => span.as_ref(),
            Some(Piece::BestEffort(chunk, range)) => &chunk.as_ref()[range.clone()],
            None => &[],
        }
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        let bytes = self.as_ref().len() as u64;
        // The memory first: the driver gives it to others as soon as it hears of this.
        self.piece = None;
        let _ = self.core.commands.send(Command::Consumed { stream: self.core.id, bytes });
    }
}

/// An open stream. Dropping it closes it, once all bytes that it gave are dropped as well: memory
/// is limited, so use them soon.
pub struct Stream {
    pub(super) core: Arc<Core>,
    pub(super) first_byte_within: Duration,
    /// What it begins with, which is at hand.
    pub(super) beginning: Option<Bytes>,
    /// Who wants to see what it gives.
    pub(super) copier: Option<Copier>,
}

impl Stream {
    pub(super) fn new(core: Arc<Core>, first_byte_within: Duration) -> Self {
        Self { core, first_byte_within, beginning: None, copier: None }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({})", self.core.id.0)
    }
}

impl Stream {
    /// What is left of it when another takes its place.
    pub(crate) fn into_core(self) -> Arc<Core> {
        self.core
    }

    /// Its number, as `forebay stream status` shows it.
    pub fn id(&self) -> u64 {
        self.core.id.0
    }

    /// The bound on its start-up that was given at admission: the first byte is there within this
    /// time. Zero if it has no guarantee.
    pub fn first_byte_within(&self) -> Duration {
        self.first_byte_within
    }

    /// The next bytes, as soon as there are some; `None` at the end. A reader that takes them faster
    /// than the stream's rate waits for the rate.
    ///
    /// # Errors
    /// [`StreamError`] says why there is no more.
    pub fn read(&mut self, limit: Duration) -> Result<Option<Bytes>, StreamError> {
        let deadline = Instant::now() + limit;
        if let Some(beginning) = self.beginning.take() {
            return Ok(Some(beginning));
        }
        let mut queue = self.core.queue.lock();
        loop {
            if let Some(piece) = queue.ready.pop_front() {
                drop(queue);
                return Ok(Some(self.given(piece)));
            }
            if let Some(error) = &queue.failed {
                return Err(error.clone());
            }
            if queue.ended {
                return Ok(None);
            }
            if let Some(error) = self.core.without_place(&mut queue) {
                return Err(error);
            }
            if self.core.filled.wait_until(&mut queue, deadline).timed_out() {
                return match queue.ready.pop_front() {
                    Some(piece) => {
                        drop(queue);
                        Ok(Some(self.given(piece)))
                    }
                    None => Err(StreamError::TimedOut(limit)),
                };
            }
        }
    }

    /// Bytes that [`Stream::read`] would give without waiting.
    pub fn ready(&self) -> u64 {
        let beginning = self.beginning.as_ref().map_or(0, Bytes::len) as u64;
        let queue = self.core.queue.lock();
        beginning + queue.ready.iter().map(|piece| piece.len() as u64).sum::<u64>()
    }

    /// As [`Stream::read`], for asynchronous readers.
    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, StreamError>>> {
        if let Some(beginning) = self.beginning.take() {
            return Poll::Ready(Some(Ok(beginning)));
        }
        let mut queue = self.core.queue.lock();
        if let Some(piece) = queue.ready.pop_front() {
            drop(queue);
            return Poll::Ready(Some(Ok(self.given(piece))));
        }
        if let Some(error) = &queue.failed {
            return Poll::Ready(Some(Err(error.clone())));
        }
        if queue.ended {
            return Poll::Ready(None);
        }
        if let Some(error) = self.core.without_place(&mut queue) {
            return Poll::Ready(Some(Err(error)));
        }
        queue.waker = Some(context.waker().clone());
        Poll::Pending
    }

    fn given(&mut self, piece: Piece) -> Bytes {
        let bytes = Given::bytes(piece, &self.core);
        if let Some(copier) = &mut self.copier
            && !copier.saw(&bytes)
        {
            self.copier = None;
        }
        bytes
    }

    fn ask(
        &self,
        command: impl FnOnce(Sender<Result<Duration, Rejected>>) -> Command,
    ) -> Result<Duration, Rejected> {
        let (reply, replies) = bounded(1);
        self.core.commands.send(command(reply)).map_err(|_| Rejected::stopped())?;
        replies.recv_timeout(ANSWER_LIMIT).unwrap_or_else(|_| Err(Rejected::stopped()))
    }

    /// Goes on at another byte of the file: an admission in place, which keeps the stream's share of
    /// the device. All bytes that were read must have been dropped. What was read ahead is dropped.
    /// Returns the bound on the time until the first byte from there.
    ///
    /// # Errors
    /// [`Rejected`]: the stream goes on where it was.
    pub fn seek(&mut self, offset: u64) -> Result<Duration, Rejected> {
        let stream = self.core.id;
        (self.beginning, self.copier) = (None, None);
        self.ask(|reply| Command::Seek { stream, offset, reply })
    }

    /// Takes nothing for a while, as soon as all bytes that were read are dropped; what is read ahead
    /// is kept, for [`crate::ServiceConfig::idle`].
    pub fn pause(&mut self) {
        let _ = self.core.commands.send(Command::Pause(self.core.id));
    }

    /// Goes on after a pause.
    ///
    /// # Errors
    /// [`Rejected`] if its share of the device was given away meanwhile; it stays paused.
    pub fn resume(&mut self) -> Result<(), Rejected> {
        let stream = self.core.id;
        self.ask(|reply| Command::Resume { stream, reply }).map(drop)
    }

    /// Takes at another rate from now on, in bytes a second. All bytes that were read must have been
    /// dropped.
    ///
    /// # Errors
    /// [`Rejected`]: the old rate holds.
    pub fn set_rate(&mut self, rate: u64) -> Result<(), Rejected> {
        let rate = Rate::constant(rate).map_err(|error| Rejected::senseless(error.to_string()))?;
        let stream = self.core.id;
        self.ask(|reply| Command::SetRate { stream, rate, reply }).map(drop)
    }
}
