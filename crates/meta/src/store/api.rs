//! The words of the store's interface: what goes into its operations and what comes out.

use std::sync::Arc;

use super::NodeName;
use crate::types::{Attr, FileKind, Fingerprint, Incarnation, Ino, Record, Timestamp};

/// How the store uses memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Number of inode records, and of directory entries, kept in memory.
    pub cached_records: usize,
    /// Entries of a directory above which they are spread over several partitions, where an engine
    /// commits only within one.
    pub split_above: u64,
    /// As which node of a cluster to join; `None` for a process that has the namespace, and all of
    /// the backlog, for itself.
    pub node: Option<NodeName>,
    /// Go on as this incarnation of the node instead of a new one: for a process that takes the place
    /// of another under the same programs, which is gone or writes no more.
    pub resume: Option<Incarnation>,
}

impl Default for Options {
    fn default() -> Self {
        Options { cached_records: 65_536, split_above: 4096, node: None, resume: None }
    }
}

/// A new inode.
#[derive(Debug, Clone)]
pub struct NewInode {
    /// The type.
    pub kind: FileKind,
    /// Permission bits (12).
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for a device node.
    pub rdev: u64,
    /// Target, for a symbolic link.
    pub target: Option<Box<[u8]>>,
    /// Extended attributes to begin with, e.g. inherited access control lists.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// To be kept on the tier.
    pub pinned: bool,
    /// In a cluster: to be owned by this node from the start.
    pub owned: bool,
}

impl NewInode {
    /// A new inode of a kind, without target, device number or extended attributes.
    #[must_use]
    pub fn new(kind: FileKind, perm: u32, uid: u32, gid: u32) -> Self {
        NewInode {
            kind,
            perm,
            uid,
            gid,
            rdev: 0,
            target: None,
            xattrs: Vec::new(),
            pinned: false,
            owned: false,
        }
    }
}

/// Whether a change must reach the backing store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// Put the record into the backlog (where it is already, it keeps its place).
    Yes,
    /// Leave the backlog alone.
    No,
}

/// What an unlink did.
#[derive(Debug, Clone)]
pub struct Unlinked {
    /// The record after it.
    pub record: Arc<Record>,
    /// The bytes can be dropped: see [`Record::is_gone`].
    pub gone: bool,
}

/// Flags of `renameat2`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Fail with `Exists` if the new name is taken.
    pub noreplace: bool,
    /// Swap the two names; both must exist.
    pub exchange: bool,
    /// What is moved is durable as it is: see [`Record::replaces`].
    pub durable: bool,
}

/// What a rename did.
#[derive(Debug, Clone)]
pub struct Renamed {
    /// The record moved, after the move.
    pub moved: Arc<Record>,
    /// What was replaced.
    pub replaced: Option<Unlinked>,
    /// The other record of an exchange, after it.
    pub exchanged: Option<Arc<Record>>,
}

/// Times to set without further ado.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Last access.
    pub atime: Option<Timestamp>,
    /// Last change of the contents.
    pub mtime: Option<Timestamp>,
    /// Last change of the inode.
    pub ctime: Option<Timestamp>,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where a listing continues after this entry: a stable hash of the name, 16 or more, below
    /// 2^62.
    pub cursor: u64,
    /// The name.
    pub name: Box<[u8]>,
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: FileKind,
}

/// A file that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accessed {
    /// The inode.
    pub ino: Ino,
    /// Its access time when that was noticed.
    pub known: Timestamp,
    /// Its access time now.
    pub seen: Timestamp,
}

/// An entry with its inode's record.
#[derive(Debug, Clone)]
pub struct EntryPlus {
    /// The entry.
    pub entry: Entry,
    /// The record.
    pub record: Arc<Record>,
}

/// Flags of `setxattr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrFlags {
    /// Create or replace.
    Either,
    /// Fail with `Exists` if it exists.
    Create,
    /// Fail with `NoXattr` if it doesn't exist.
    Replace,
}

/// An object found in the backing store.
#[derive(Debug, Clone)]
pub struct Found {
    /// Its name.
    pub name: Box<[u8]>,
    /// Its attributes; `nlink` as the backing store says.
    pub attr: Attr,
    /// The target of a symbolic link.
    pub target: Option<Box<[u8]>>,
    /// What identifies its contents.
    pub fingerprint: Fingerprint,
}

/// What a refresh found.
#[derive(Debug, Clone)]
pub enum Refreshed {
    /// The backing object is as known.
    Unchanged(Arc<Record>),
    /// It was changed by others; the record follows. Copies of its bytes are stale.
    Updated(Arc<Record>),
    /// It was changed by others, and has changes here that are not reconciled: the record is left
    /// as it is.
    Conflict(Arc<Record>),
}

/// What became of an entry that vanished from the backing store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vanished {
    /// Number of inodes removed.
    pub removed: u64,
    /// Inodes kept, as they have changes that are not reconciled (they are in the backlog, to be
    /// written to the backing store again).
    pub kept: Vec<Ino>,
}

/// Sizes of the namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Inode records, including removed ones that are not reconciled.
    pub inodes: u64,
    /// Records in the backlog.
    pub queued: u64,
    /// Inodes without a name that are in use.
    pub orphans: u64,
    /// Backing names that the logical tree no longer has.
    pub stale_names: u64,
}

/// Calls of the engine so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoundTrips {
    /// Mini-transactions.
    pub executes: u64,
    /// Scans.
    pub scans: u64,
}

/// A broken rule found by a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What is wrong, with the inode or name concerned.
    pub what: String,
    /// Whether it was repaired.
    pub repaired: bool,
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Records seen.
    pub inodes: u64,
    /// Directory entries seen.
    pub entries: u64,
    /// Broken rules, at most 10,000.
    pub violations: Vec<Violation>,
    /// Broken rules beyond those listed.
    pub omitted: u64,
}

impl Report {
    /// Nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }
}
