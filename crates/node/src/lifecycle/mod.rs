//! The start after an end of any kind, the end, the hand-over to another daemon, and fsck: check,
//! repair, rebuild.
//!
//! Owns: the order in which the parts of a node begin and end (`start.rs`, `stop.rs`), which tiers
//! a mount has (`members.rs`), what a start believes of what lies on them (`recover.rs`), and what
//! is handed over (`hand_over.rs`). It is the highest room: it may call every other one, and no
//! room calls it. Must not know: FUSE, the command line, who starts daemons.
//!
//! # Invariants
//! - Before anything is opened or made, the tiers are compared with those that the mount had: it is
//!   refused by name when one is missing that may have the only copy of something
//!   (`crates/forebay/tests/tiers.rs`). Who can't join a cluster is refused before anything is
//!   written (`admission.rs`).
//! - A start that ends half-way lets the next one believe no more (`tests/half_a_start.rs`).
//! - Nothing moves between tiers until all of them are read: what the steward decides meanwhile
//!   waits for the first tick (`tests/death_leaves.rs`).
//! - What can't be used and may be the only copy is set aside (`residency/aside.rs`), and a dirty
//!   record without object and spill file is lost: `EIO`, and dirty
//!   (`crates/forebay/tests/damage.rs`).
//! - A rebuild vouches for what it brings back (`readopt.rs`), and one that was interrupted is run again
//!   before anything else uses the state (`former.rs`).
//! - A mount outlives its daemons: handles keep their numbers and meaning, never two daemons work
//!   on one tier, and what was under way at a death is carried out once (`crates/forebay/tests/`:
//!   `upgrade.rs`, `restart.rs`, `fdstore.rs`). Until `Node::hand_over_state` has closed the
//!   namespace, the old daemon can go on at once.
//!
//! # What a start believes
//! - Orphans are released and the temporaries of the last daemon are removed.
//! - A clean object stays if its base is the version that the namespace knows. After a crash of the
//!   machine all clean ones go, for the backing store has them.
//! - A dirty object goes into the backlog with the size and times that it has. If the backing store
//!   already shows the version that its header announces, the flush had happened.
//! - After a crash of the machine, an object that is shorter than its record says counts if its
//!   header says that something of it was acknowledged (`residency/synced.rs`); else the version
//!   that it has replaced keeps its name (`reconcile/unsynced.rs`).
//! - A map of what is dirty is brought in line with the length of its object or spill file, which
//!   changes first. A copy of another length than its map's is none, and goes.

pub(crate) mod admission;
pub(crate) mod check;
pub(crate) mod check_cluster;
mod check_lost;
mod check_store;
pub(crate) mod former;
pub(crate) mod hand_over;
pub(crate) mod members;
pub(crate) mod mounts_below;
pub(crate) mod nested_tiers;
pub(crate) mod readopt;
pub(crate) mod rebuild;
pub(crate) mod recover;
mod recover_spills;
#[cfg(test)]
mod recover_tests;
pub(crate) mod right_store;
mod said_drained;
pub(crate) mod start;
pub(crate) mod stop;
pub(crate) mod trust;
pub(crate) mod which_counts;
