//! What goes into the machine and what comes out.

use super::super::admission::Refusal;
use super::super::layout::Layout;
use super::super::rate::Rate;
use super::super::ring::ChunkId;
use crate::unit::Tick;

/// A stream, by the driver's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// What a stream plays: streams of the same title can share what has been read. Equal titles have
/// equal layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Title(pub u64);

/// A read under way. The number is used again when the read is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u32);

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A client asks for a stream. Answered at once by [`Action::Admitted`] or [`Action::Refused`].
    Join {
        /// A number that no other stream has.
        stream: StreamId,
        /// What it plays.
        title: Title,
        /// How fast.
        rate: Rate,
        /// Where it is on the device.
        layout: Layout,
        /// From which byte of the file.
        offset: u64,
        /// It is refused if it will probably wait for longer, in nanoseconds; nothing for the limit of
        /// [`AdmissionConfig::startup`](crate::streams::admission::AdmissionConfig::startup).
        max_startup: Option<u64>,
    },
    /// The client is gone, or has all it wants.
    Leave(StreamId),
    /// The client takes nothing until it resumes. Its place is kept, unless it shares one.
    Pause(StreamId),
    /// The client has taken nothing for long: its place goes to others. It is paused, and comes back by
    /// [`Event::Resume`], which is an admission then.
    Park(StreamId),
    /// It wants to take again, and may when [`Action::Playing`] says so: at once, or with deterministic
    /// admission as soon as nobody suffers. Refused if its place was shared and there is none now: it stays paused.
    Resume(StreamId),
    /// The client wants another part of the file. Refused if it shared its place and there is no
    /// other: then it goes on where it was. Otherwise admitted, like a new stream.
    Seek {
        /// Which.
        stream: StreamId,
        /// The next byte that it wants.
        offset: u64,
    },
    /// The client takes at another rate from now on. Admitted, or refused: then the old one holds.
    SetRate {
        /// Which.
        stream: StreamId,
        /// How fast.
        rate: Rate,
    },
    /// The client took so many bytes more.
    Consumed {
        /// Which.
        stream: StreamId,
        /// Bytes since the last report.
        bytes: u64,
    },
    /// A read is done, all of it.
    ReadDone {
        /// Which.
        read: ReadId,
        /// Nanoseconds that the device took.
        service: u64,
    },
    /// A read failed. It is tried again in the next sweep.
    ReadFailed {
        /// Which.
        read: ReadId,
        /// Nanoseconds that the device took.
        service: u64,
    },
    /// Somebody without a guarantee wants to read. Answered by [`Action::BestEffort`] when no
    /// guarantee suffers, or [`Action::Declined`] at once.
    BestEffort {
        /// The driver's number.
        id: u64,
        /// First byte on the device.
        physical: u64,
        /// Bytes; keep them few, a read is not interrupted.
        bytes: u64,
    },
    /// What [`Action::BestEffort`] allowed is done, or was not wanted any more.
    BestEffortDone {
        /// Nanoseconds that the device took.
        service: u64,
    },
    /// Time has passed.
    Tick,
}

/// Why a client ran out of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GlitchCause {
    /// The device could not read it.
    ReadError,
    /// The stream had lost its guarantee, since the device or the client was too slow.
    Degraded,
    /// The device took longer than admission allows for.
    SlowDevice,
    /// No buffer was free.
    Memory,
    /// None of those: the driver was late, or a statistical guarantee has failed.
    Late,
}

/// A read that the driver is to start at once. Answered by [`Event::ReadDone`] or
/// [`Event::ReadFailed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// For the answer.
    pub read: ReadId,
    /// What is read.
    pub title: Title,
    /// First byte in the file.
    pub offset: u64,
    /// First byte on the device.
    pub physical: u64,
    /// Bytes; contiguous on the device.
    pub bytes: u64,
    /// Where its chunks are in [`Actions::chunks`]: the first.
    pub first_chunk: u32,
    /// And how many. The first begins in the file at `offset` rounded down to a chunk.
    pub chunks: u32,
}

/// What the driver is to do or to know.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// The stream is admitted; its first byte is there by then.
    Admitted {
        /// Which.
        stream: StreamId,
        /// The latest start.
        first_byte_by: Tick,
    },
    /// It is not.
    Refused {
        /// Which.
        stream: StreamId,
        /// Why, and what would help.
        refusal: Refusal,
    },
    /// Read.
    Read(Read),
    /// The client can take the bytes of the file up to here.
    Filled {
        /// Which.
        stream: StreamId,
        /// The first byte that is not there.
        up_to: u64,
    },
    /// The client may begin to take: from now on its rate is guaranteed.
    Playing(StreamId),
    /// A client had nothing to take for a while, which is over now.
    Glitch {
        /// Which.
        stream: StreamId,
        /// Why.
        cause: GlitchCause,
        /// Nanoseconds.
        late: u64,
    },
    /// The stream has no guarantee any more.
    Degraded(StreamId),
    /// It has one again.
    Restored(StreamId),
    /// Read now what was asked for without a guarantee, answered by [`Event::BestEffortDone`].
    BestEffort {
        /// The driver's number.
        id: u64,
    },
    /// Too many such reads wait.
    Declined {
        /// The driver's number.
        id: u64,
    },
}

/// Actions and the chunks that they name; used again for every step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Actions {
    /// In the order in which they are to be done.
    pub list: Vec<Action>,
    /// Chunks of the reads.
    pub chunks: Vec<ChunkId>,
}

impl Actions {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.list.clear();
        self.chunks.clear();
    }

    /// The chunks of a read.
    #[must_use]
    pub fn chunks_of(&self, read: &Read) -> &[ChunkId] {
        &self.chunks[read.first_chunk as usize..(read.first_chunk + read.chunks) as usize]
    }

    pub(super) fn push(&mut self, action: Action) {
        self.list.push(action);
    }
}
