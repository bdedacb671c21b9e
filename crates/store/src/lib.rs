//! Bytes on tiers and in the backing store.
//!
//! This crate moves and keeps bytes; it knows no policy and no namespace. A [`Tier`] holds one sparse
//! local file per inode, a [`Presence`] map says which extents of it are there, a [`BackingStore`]
//! is the large, slow directory underneath, reached by directory handles only, and [`copy`]
//! moves byte ranges between the two. All calls block; threads belong to the caller.
//!
//! - [`tier`], `dir_tier.rs`: one file per inode, with its header in an extended attribute
//!   (`header.rs`); `presence.rs`: which extents are there, dirty, durable.
//! - [`backing`], `dir_backing.rs`: the backing store; `commit.rs` publishes a file under its name;
//!   `private.rs` is the private area; `incarnation.rs` is how a node of a cluster can be shut out.
//! - [`copy`], `limits.rs`: reflink, `copy_file_range` or pooled buffers; priorities, rates,
//!   cancellation. `group.rs`: one sync for many files.
//! - `recover.rs` scans a tier. `decorators/` make slow, failing, stuck and forgetful devices;
//!   [`conformance`] is the suite that every tier and backing store must pass.
//!
//! # Invariants
//! - No symbolic link is followed, and every implementation behaves alike (`tests/conformance.rs`).
//! - No bytes of a header or a map make the process panic, and a newer format is refused, not
//!   guessed (`header.rs`, `presence/tests.rs`, `tests/tier.rs`).
//! - A process may die at any point of a publication: nothing is lost and nothing is left behind
//!   (`tests/crash.rs`, `tests/kill.rs`).

mod attributes;
pub mod backing;
mod bytes;
mod closing;
mod commit;
pub mod conformance;
pub mod copy;
pub mod decorators;
mod dir_backing;
mod dir_file;
mod dir_tier;
mod error;
mod failpoints;
mod group;
mod header;
pub mod identity;
mod incarnation;
mod limits;
mod local;
mod mount_notes;
mod ownership;
mod presence;
mod private;
pub mod recover;
mod removal;
mod rename;
mod store_mark;
pub mod tier;
mod write_again;

pub use attributes::{Attributes, FileKind, Fingerprint, Timestamp};
pub use backing::{BackingFile, BackingStore, Commit, Dir, Expect, Temporary};
pub use bytes::{AllocateMode, Bytes};
pub use dir_backing::DirBacking;
pub use error::{ErrorClass, Result, StoreError};
pub use failpoints::FAILPOINTS;
pub use group::{Group, Synced};
pub use header::{Header, HeaderFault};
pub use local::is_up;
pub use ownership::{check_own, make_own};
pub use presence::{Believed, Flush, Presence, WrittenMap};
pub use store_mark::StoreIdentity;
pub use tier::{LeaseGuard, Object, Tier, TierId, TierLock, TierUsage};
pub use write_again::write_again;
