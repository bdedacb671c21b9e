//! The steward: the machine that decides what stays on which tier of a node, what moves down, and
//! what must be flushed first.
//!
//! Driven by [`Steward::step`]: every event in, the actions out. Each action is owed one answer:
//!
//! | action | answer |
//! |---|---|
//! | `Evict`, `Truncate` | `Removed`, `Resident` (with the bytes that are left), or `Refused` |
//! | `Demote`, `Promote` | `Resident` on the new tier, `Removed`, or `Refused` |
//! | `Flush` | `Clean`, `Removed`, or `Unflushed` |
//! | `Place` | `Resident`, or `Removed` when the fetch failed |
//! | `Fetch` | `Resident` or `Removed`, then `Fetched` |
//! | `Place` of what is there already, `Bypass`, `Cancel` | none |
//!
//! Any `Resident` of the object on that tier answers a `Place`, and a `Truncate` if no more is left
//! than was to be kept: also one that a writer caused.
//!
//! # Room
//! The policies decide within the high mark of a tier; what lies between it and the capacity lets
//! newcomers start while victims are still on their way out. A `Place` is given only when the
//! promised bytes fit into the capacity beside everything that is still there, so the capacity
//! holds even when no victim leaves. Growing files (`Resident` with more bytes) may lift a tier
//! above the high mark; then room is made in the background down to the low mark.
//!
//! # Fetching ahead
//! Along the reference sequences of hints ([`crate::prefetch`]). The policies decide what a fetch
//! ahead may replace; the steward passes a fetch by that would cost an object which is needed
//! sooner, whatever the policy.
//!
//! # Invariants
//! - What is in use is never touched, dirty bytes are never dropped, and the books agree with the
//!   tiers (`tests/steward.rs`).

mod event;
pub mod log;
mod machine;

pub use event::{Action, Event, HintChange, Reference};
pub use machine::Steward;

use crate::policy::{PolicyConfig, Snapshot, UnknownPolicy};
use crate::unit::{Bytes, Tick, Tier};

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
    /// Most bytes that may be fetched ahead along hints and not be used yet; 0 for no fetches ahead.
    pub prefetch: Bytes,
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
            prefetch: Bytes::ZERO,
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
    /// Bytes that may not leave because they are pinned.
    pub pinned: Bytes,
    /// The policy's counters.
    pub policy: Snapshot,
}
