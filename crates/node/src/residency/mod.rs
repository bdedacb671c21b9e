//! Where the bytes of files are: tiers and the objects on them, what they may take up, how they come in,
//! are spilled past the tiers, moved and evicted, and what drives the steward.
//!
//! Only this room says that a file is clean, dirty or resident. It knows no requests and no names, and
//! is to know nothing of write-back and of other nodes; the calls by which it still does are counted in
//! `xtask/src/tidy/calls.rs`, and none may be added.

pub(crate) mod access;
pub(crate) mod aside;
pub(crate) mod charge;
pub(crate) mod data;
pub(crate) mod data_location;
pub(crate) mod doubt;
pub(crate) mod evict;
pub(crate) mod failed;
pub(crate) mod fetch;
pub(crate) mod files;
pub(crate) mod inode_alias;
pub(crate) mod overlay;
pub(crate) mod page_cache;
pub(crate) mod prefetch;
pub(crate) mod removals;
pub(crate) mod residents;
pub(crate) mod room;
pub(crate) mod shares;
pub(crate) mod spill;
pub(crate) mod synced;
pub(crate) mod unwritten;
