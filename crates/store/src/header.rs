//! The header that every object carries in an extended attribute.

use std::ffi::OsString;

use crate::{Fingerprint, Timestamp};

/// What an object says about itself, so that a tier can be understood without any index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Forebay's inode number.
    pub ino: u64,
    /// Tells a reused inode number from its predecessor.
    pub generation: u64,
    /// The object holds bytes that the backing store has not.
    pub dirty: bool,
    /// All bytes are resident; without it a presence map stands beside the object.
    pub whole: bool,
    /// Open for writing: after a crash take size and times from the object and treat it as dirty.
    pub writing: bool,
    /// Part of the bytes stands in the backing store's spill area.
    pub spilled: bool,
    /// Length of the file in bytes when the header was written.
    pub size: u64,
    /// The version in the backing store that the clean bytes are a copy of; `None` for a file that
    /// the backing store does not have yet.
    pub base: Option<Fingerprint>,
    /// The version that a commit in progress is about to publish (its ctime is not yet known and
    /// is ignored). After a crash a backing file with the same content is this object's own.
    pub pending: Option<Fingerprint>,
    /// Permission bits for a rebuild.
    pub mode: u32,
    /// Owner for a rebuild.
    pub uid: u32,
    /// Group for a rebuild.
    pub gid: u32,
    /// Modification time for a rebuild.
    pub mtime: Timestamp,
    /// Path below the root of the backing store, for people and for a rebuild.
    pub path: OsString,
    /// The path was longer than [`Header::PATH_MAX`] bytes and only its end is kept.
    pub path_truncated: bool,
}

impl Header {
    /// Longest path kept, in bytes.
    pub const PATH_MAX: usize = 2048;
}
