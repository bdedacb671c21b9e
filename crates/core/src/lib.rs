//! Every decision Forebay takes, as pure state machines: no I/O, clock, thread or hidden randomness.
//!
//! - [`mod@unit`]: inode numbers, bytes, ticks.
//! - [`cluster`]: many nodes: placement, membership, ownership, sources, repair, rebalancing.
//! - [`policy`]: replacement policies behind one trait, one file each.
//! - [`prefetch`]: what to fetch ahead along reference sequences.
//! - [`mod@reference`]: what jobs are going to access.
//! - [`steward`]: the machine that ties the residency decisions of a node's tiers together.
//! - [`streams`]: continuous media: device profiles, admission, rounds with deadlines.
//!
//! # Invariants
//! - The same events give the same actions, byte for byte, so that a run can be recorded and
//!   replayed (`tests/steward.rs`; `crates/node/tests/hints.rs`, `sim/tests/acceptance.rs`).
#![forbid(unsafe_code)]

pub mod cluster;
pub mod policy;
pub mod prefetch;
pub mod reference;
pub mod steward;
pub mod streams;
pub mod unit;
