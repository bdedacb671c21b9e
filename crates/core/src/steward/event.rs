//! What the steward is told and what it asks for.

use crate::unit::{Bytes, Ino, Tier};

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A program opened, read or wrote the object, whose whole size is `size`.
    Access {
        /// The object.
        object: Ino,
        /// Its whole size.
        size: Bytes,
        /// Whether it was for writing.
        write: bool,
    },
    /// Somebody would like to have the object on a tier. Answered by `Place` or `Bypass`.
    Wanted {
        /// The object.
        object: Ino,
        /// Its whole size.
        size: Bytes,
        /// Whether nobody waits for it.
        prefetch: bool,
    },
    /// The object holds `bytes` on `tier`, and nothing on the others: it arrived, grew, shrank.
    Resident {
        /// The object.
        object: Ino,
        /// Where it is.
        tier: Tier,
        /// Bytes that it holds there.
        bytes: Bytes,
    },
    /// The object holds nothing on any tier: evicted, unlinked, or its fetch failed.
    Removed {
        /// The object.
        object: Ino,
    },
    /// The object has data that the backing store has not. Said before the `Resident` of a write:
    /// between the two it must not look like a copy that may be dropped.
    Dirty {
        /// The object.
        object: Ino,
    },
    /// The backing store has everything, and the driver would let it go. Also ends what it was left alone
    /// for.
    Clean {
        /// The object.
        object: Ino,
    },
    /// The object, resident or not, was opened or mapped: it cannot leave. Counted by the driver:
    /// said at the first.
    Busy {
        /// The object.
        object: Ino,
    },
    /// The last close.
    Idle {
        /// The object.
        object: Ino,
    },
    /// The user wants the object to stay.
    Pinned {
        /// The object.
        object: Ino,
    },
    /// The user does not any more.
    Unpinned {
        /// The object.
        object: Ino,
    },
    /// A writer waits for room on the tier. How much of it the tier has is for the driver to say: open files
    /// grow without a word.
    Pressure {
        /// Where.
        tier: Tier,
        /// Bytes that have to go, with those that are on their way out. 0: no writer waits there any more.
        need: Bytes,
    },
    /// What was asked for by an action cannot be done now.
    Refused {
        /// The object.
        object: Ino,
    },
    /// The object was to be flushed and could not be written back: it stays, and is tried again by whoever
    /// writes it back, without being asked.
    Unflushed {
        /// The object.
        object: Ino,
    },
    /// News about a job's reference sequence.
    Hint {
        /// The job.
        job: u64,
        /// The news.
        change: HintChange,
    },
    /// A fetch ahead that was asked for has ended, well or not: what came of it was said before, by
    /// `Resident` or `Removed`.
    Fetched {
        /// The object.
        object: Ino,
    },
    /// Nothing but that time has passed.
    Tick,
}

/// A reference that a job is going to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// The object.
    pub object: Ino,
    /// Its whole size now.
    pub size: Bytes,
}

/// News about a reference sequence, owned so that it can be queued and recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HintChange {
    /// More references at its end.
    Append(Vec<Reference>),
    /// It is complete.
    Close,
    /// The job has gone past so many references.
    Advance(u64),
    /// Forget it.
    Withdraw,
}

/// What the driver should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Remove the (clean) object from the tier.
    Evict {
        /// The object.
        object: Ino,
        /// Where from.
        tier: Tier,
    },
    /// Keep only the first `keep` bytes of the (clean) object.
    Truncate {
        /// The object.
        object: Ino,
        /// Where.
        tier: Tier,
        /// Bytes that stay.
        keep: Bytes,
    },
    /// Move the object to a slower tier, dirty or not.
    Demote {
        /// The object.
        object: Ino,
        /// Where from.
        from: Tier,
        /// Where to.
        to: Tier,
    },
    /// Copy the object to a faster tier.
    Promote {
        /// The object.
        object: Ino,
        /// Where from.
        from: Tier,
        /// Where to.
        to: Tier,
    },
    /// Write the object back: it must leave and is dirty. The eviction follows when it is clean.
    Flush {
        /// The object.
        object: Ino,
    },
    /// Bring the first `bytes` of the wanted object to the tier: the room is promised.
    Place {
        /// The object.
        object: Ino,
        /// Where to.
        tier: Tier,
        /// How many bytes, from its head.
        bytes: Bytes,
    },
    /// Bring the object to the tier ahead of its use, until `bytes` of it are there from its head:
    /// the room is promised. Nobody waits for it.
    Fetch {
        /// The object.
        object: Ino,
        /// Where to.
        tier: Tier,
        /// How many bytes, from its head.
        bytes: Bytes,
    },
    /// What is being fetched ahead is not worth it any more: the fetch may end early.
    Cancel {
        /// The object.
        object: Ino,
    },
    /// Serve the wanted object from the backing store.
    Bypass {
        /// The object.
        object: Ino,
    },
}
