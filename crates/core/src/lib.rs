//! Every decision Forebay takes, as pure state machines: no I/O, clock, thread or hidden randomness.
//!
//! - [`mod@unit`]: inode numbers, bytes, ticks.
//! - [`policy`]: replacement policies behind one trait, one file each.
//! - [`prefetch`]: what to fetch ahead along reference sequences.
//! - [`mod@reference`]: what jobs are going to access.
//! - [`steward`]: the machine that ties the residency decisions of a node's tiers together.
//! - [`streams`]: continuous media: device profiles, admission, rounds with deadlines.
#![forbid(unsafe_code)]

pub mod policy;
pub mod prefetch;
pub mod reference;
pub mod steward;
pub mod streams;
pub mod unit;
