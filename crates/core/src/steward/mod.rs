//! The steward: the machine that decides what stays on which tier of a node, what moves down, and
//! what must be flushed first.
//!
//! Driven by [`Steward::step`]: every event in, the actions out. Each action is owed one answer:
//!
//! | action | answer |
//! |---|---|
//! | `Evict`, `Truncate` | `Removed`, `Resident` (with the bytes that are left), or `Refused` |
//! | `Demote`, `Promote` | `Resident` on the new tier, `Removed`, or `Refused` |
//! | `Flush` | `Clean`, `Removed`, or `Refused` |
//! | `Place` | `Resident`, or `Removed` when the fetch failed |
//! | `Bypass` | none |

use crate::policy::{PolicyConfig, Snapshot, UnknownPolicy};
use crate::unit::{Bytes, Ino, Tick, Tier};

/// One tier of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierConfig {
    /// Bytes that the tier may hold.
    pub capacity: Bytes,
    /// Above this many bytes the steward starts to make room in the background.
    pub high: Bytes,
    /// It stops when no more than this many bytes are left.
    pub low: Bytes,
}

impl TierConfig {
    /// A tier that is kept between 90 % and 95 % of its capacity once it has filled.
    #[must_use]
    pub fn new(capacity: Bytes) -> Self {
        Self {
            capacity,
            high: Bytes(capacity.0 - capacity.0 / 20),
            low: Bytes(capacity.0 - capacity.0 / 10),
        }
    }
}

/// What a steward is made from. Recorded as the head of its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StewardConfig {
    /// The tiers, fastest first. At least one.
    pub tiers: Vec<TierConfig>,
    /// Name of the replacement policy of every tier.
    pub policy: String,
    /// Options for the policies; `capacity` is overwritten by each tier's own.
    pub options: PolicyConfig,
    /// Most evictions, demotions and flushes of one step.
    pub batch: usize,
    /// Nanoseconds for which an object that could not leave is left alone.
    pub refusal_pause: u64,
}

impl StewardConfig {
    /// The defaults for these tiers and this policy.
    #[must_use]
    pub fn new(tiers: Vec<TierConfig>, policy: &str) -> Self {
        let largest = tiers.iter().map(|tier| tier.capacity.0).max().unwrap_or(0);
        Self {
            tiers,
            policy: policy.to_owned(),
            options: PolicyConfig { admit_large: true, ..PolicyConfig::new(largest) },
            batch: 64,
            refusal_pause: Tick::SECOND,
        }
    }
}

/// A configuration that no steward can serve.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There is no tier, or there are more than 255.
    #[error("a mount needs at least one tier and at most 255; give --tier DIR=SIZE")]
    Tiers,
    /// The marks are not in order.
    #[error("tier {0}: needs low <= high <= capacity, and a capacity above 0")]
    Marks(Tier),
    /// No such policy.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
}

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
    /// The object has data that the backing store has not.
    Dirty {
        /// The object.
        object: Ino,
    },
    /// The backing store has everything.
    Clean {
        /// The object.
        object: Ino,
    },
    /// The object was opened or mapped: it cannot leave. Counted by the driver: said at the first.
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
    /// A writer needs this many more bytes on the tier now.
    Pressure {
        /// Where.
        tier: Tier,
        /// How many more than are in use.
        need: Bytes,
    },
    /// What was asked for by an action cannot be done now.
    Refused {
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
    /// Nothing but that time has passed.
    Tick,
}

/// News about a reference sequence, owned so that it can be queued and recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HintChange {
    /// More references at its end.
    Append(Vec<u64>),
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
    /// Serve the wanted object from the backing store.
    Bypass {
        /// The object.
        object: Ino,
    },
}

/// Where a wanted object goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Its first `bytes` to this tier.
    Tier(Tier, Bytes),
    /// Past all tiers.
    Bypass,
}

/// A tier as status shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierSnapshot {
    /// Bytes resident.
    pub used: Bytes,
    /// Bytes on their way out.
    pub leaving: Bytes,
    /// Bytes promised to what is on its way in.
    pub incoming: Bytes,
    /// The policy's counters.
    pub policy: Snapshot,
}

/// The machine itself.
#[derive(Debug)]
pub struct Steward {}

#[expect(clippy::todo, reason = "the bodies follow the interface")]
impl Steward {
    /// A steward of empty tiers.
    ///
    /// # Errors
    /// [`ConfigError`] when the tiers, their marks or the policy's name make no sense.
    pub fn new(_config: &StewardConfig) -> Result<Self, ConfigError> {
        todo!()
    }

    /// Takes one event in and appends what should be done to `actions`. Bounded work: what does not
    /// fit into one step is due at [`Self::next_deadline`].
    pub fn step(&mut self, _now: Tick, _event: &Event, _actions: &mut Vec<Action>) {
        todo!()
    }

    /// When to call [`Self::step`] with [`Event::Tick`] if nothing else happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Tick> {
        todo!()
    }

    /// Asks where a wanted object should go: [`Event::Wanted`] as a function.
    pub fn admit(
        &mut self,
        _now: Tick,
        _object: Ino,
        _size: Bytes,
        _prefetch: bool,
        _actions: &mut Vec<Action>,
    ) -> Placement {
        todo!()
    }

    /// The tiers as status shows them, fastest first.
    #[must_use]
    pub fn snapshot(&self) -> Vec<TierSnapshot> {
        todo!()
    }
}
