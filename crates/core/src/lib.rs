//! Every decision Forebay takes, as pure state machines: no I/O, clock, thread or hidden randomness.
//!
//! - [`mod@unit`]: inode numbers, bytes, ticks.
//! - [`cluster`]: many nodes: placement, membership, ownership, sources, repair, rebalancing.
//! - [`policy`]: replacement policies behind one trait, one file each.
//! - [`prefetch`]: what to fetch ahead along reference sequences.
//! - [`mod@reference`]: what jobs are going to access.
//! - [`steward`]: the machine that ties the residency decisions of a node's tiers together.
//! - [`streams`]: continuous media: device profiles, admission, rounds with deadlines.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod policy;
pub mod prefetch;
pub mod reference;
pub mod steward;
pub mod streams;
pub mod unit;
