//! What one daemon of a mount hands to the next, as messages. Each room fills in and takes up what
//! is its own; `lifecycle/hand_over.rs` brings them together.
//!
//! Owns: the form of the messages (`docs/reference/format.md`). Must not know: how they travel
//! (`forebay-fuse` and `forebay` do), when a hand-over happens.
//!
//! # Invariants
//! - A field keeps its tag and its meaning: the other daemon may be of another version.
//! - Nothing in it is the only copy of anything on disk: a message that is lost costs open files,
//!   never bytes.
//! - No two daemons with open files in the message give out numbers of one generation (tests of
//!   this file).

use std::collections::HashSet;

use forebay_core::cluster::locks::Family;
use forebay_core::cluster::redundancy::Redundancy;
use forebay_meta::Attr;
use forebay_meta::Incarnation;
use forebay_types::{FileKind, Ino, Timestamp};
use prost::Message;

use crate::defects::BackgroundWork;
use crate::handles::{GENERATIONS, Handle, Handles, OpenMode};
use crate::residency::inode_alias::Opens;
use crate::stream::CarriedStream;

/// What a node hands on. A Protocol Buffers message; `docs/reference/format.md` has its fields.
#[derive(Clone, PartialEq, Message)]
pub struct HandOverState {
    /// All open files.
    #[prost(message, repeated, tag = "1")]
    pub handles: Vec<OpenHandle>,
    /// The generation of the node's own handles.
    #[prost(uint32, tag = "2")]
    pub generation: u32,
    /// Whether the node came to rest: `residents` are all that lies on the tiers, and no work was
    /// interrupted.
    #[prost(bool, tag = "3")]
    pub at_rest: bool,
    /// What lies on the tiers.
    #[prost(message, repeated, tag = "4")]
    pub residents: Vec<ResidentObject>,
    /// Files that a rename has replaced a moment ago, by inode number.
    #[prost(uint64, repeated, tag = "5")]
    pub replaced: Vec<u64>,
    /// Attributes of removed inodes that may still be somebody's working directory.
    #[prost(message, repeated, tag = "6")]
    pub removed_inodes: Vec<RemovedInode>,
    /// Which node of a cluster it is.
    #[prost(message, optional, tag = "7")]
    pub membership: Option<Membership>,
    /// Who may have locks, in a cluster.
    #[prost(message, repeated, tag = "8")]
    pub locks: Vec<LockOwner>,
    /// Requests that wait for locks: the kernel is to give them to whoever takes over.
    #[prost(uint64, tag = "9")]
    pub waiters: u64,
    /// Dirty files of which nothing is left.
    #[prost(uint64, repeated, tag = "10")]
    pub lost: Vec<u64>,
    /// What ended the last daemon, or one before it, by a defect.
    #[prost(message, repeated, tag = "11")]
    pub defects: Vec<BackgroundWork>,
    /// How objects were when set-id bits were set that the next unseen write of a plain user takes away.
    #[prost(message, repeated, tag = "12")]
    pub set_ids: Vec<SetIdsSince>,
    /// Closed files of which the records do not say yet what was written to them, by inode number.
    #[prost(uint64, repeated, tag = "13")]
    pub unsettled: Vec<u64>,
    /// Of the lost files, those that could only not be looked at.
    #[prost(uint64, repeated, tag = "14")]
    pub unseen: Vec<u64>,
}

/// How the object of a file was when its set-id bits were set.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SetIdsSince {
    /// The inode number.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// Length of the object in bytes.
    #[prost(uint64, tag = "2")]
    pub size: u64,
    /// Its modification time: seconds since 1970.
    #[prost(sint64, tag = "3")]
    pub sec: i64,
    /// And nanoseconds.
    #[prost(uint32, tag = "4")]
    pub nsec: u32,
}

/// An open file.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct OpenHandle {
    /// The number by which the kernel knows it.
    #[prost(uint64, tag = "1")]
    pub fh: u64,
    /// The inode number.
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    /// Whether it may be written through.
    #[prost(bool, tag = "3")]
    pub write: bool,
    /// How the kernel treats it.
    #[prost(enumeration = "HandleMode", tag = "4")]
    pub mode: i32,
    /// The registration, in a mode with passthrough.
    #[prost(uint32, tag = "5")]
    pub registration: u32,
    /// Whether the file in the backing store is registered, not the object.
    #[prost(bool, tag = "6")]
    pub bypass: bool,
    /// Bytes promised to a passthrough writer on the tier of its object.
    #[prost(uint64, optional, tag = "7")]
    pub promised: Option<u64>,
    /// Its stream, if it is one.
    #[prost(message, optional, tag = "8")]
    pub stream: Option<CarriedStream>,
    /// Whether writes go to the end of the file.
    #[prost(bool, tag = "9")]
    pub append: bool,
    /// The node that its reads and writes are forwarded to, 0 if the file is here.
    #[prost(uint32, tag = "10")]
    pub owner_node: u32,
    /// That node's start.
    #[prost(uint64, tag = "11")]
    pub owner_epoch: u64,
    /// The alias of the file that it is of.
    #[prost(uint32, tag = "12")]
    pub alias: u32,
    /// Tells the registered object from others; 0 if it is not known.
    #[prost(fixed64, tag = "13")]
    pub object: u64,
    /// Whether set-id bits stay over its writes.
    #[prost(bool, tag = "14")]
    pub keeps_set_ids: bool,
    /// Whether whatever changes the file through it is durable when it returns.
    #[prost(bool, tag = "15")]
    pub durably: bool,
}

/// How the kernel treats an open file: [`OpenMode`] without its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
pub enum HandleMode {
    /// Every read and write comes to the daemon.
    Direct = 0,
    /// Through the kernel's page cache.
    Cached = 1,
    /// Reads and writes go to the registered file.
    Passthrough = 2,
    /// Reads and writes come to the daemon, mappings go to the registered file.
    PassthroughDirect = 3,
}

/// An object on a tier.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ResidentObject {
    /// The inode number.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// Which tier, 0 the fastest.
    #[prost(uint32, tag = "2")]
    pub tier: u32,
    /// Whether every byte of the file is there.
    #[prost(bool, tag = "3")]
    pub whole: bool,
    /// Whether the backing store lacks some of it.
    #[prost(bool, tag = "4")]
    pub dirty: bool,
    /// Bytes charged to the tier.
    #[prost(uint64, tag = "5")]
    pub charged: u64,
}

/// The last attributes of a removed inode.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RemovedInode {
    /// The inode number.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// The type as the upper bits of `st_mode`, and the permissions.
    #[prost(uint32, tag = "2")]
    pub mode: u32,
    /// Owner.
    #[prost(uint32, tag = "3")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, tag = "4")]
    pub gid: u32,
    /// Device number.
    #[prost(uint64, tag = "5")]
    pub rdev: u64,
    /// Length.
    #[prost(uint64, tag = "6")]
    pub size: u64,
    /// Access, modification, change, birth: seconds since 1970 and nanoseconds of each.
    #[prost(sint64, repeated, tag = "7")]
    pub times: Vec<i64>,
    /// Extended attributes of a directory: names and values in turn.
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub xattrs: Vec<Vec<u8>>,
}

impl HandOverState {
    /// Another daemon has gone on from here, and ended: what is said of the tiers is not true any more, and
    /// it has given out numbers of handles.
    pub fn was_taken_over(&mut self) {
        self.at_rest = false;
        self.generation = self.next_generation().into();
    }

    /// A generation that no handle is of.
    pub(crate) fn next_generation(&self) -> u16 {
        let used: HashSet<u16> =
            self.handles.iter().map(|handle| Handles::generation_of(handle.fh)).collect();
        let last = u16::try_from(self.generation).unwrap_or_default();
        let free = (1..=GENERATIONS).map(|step| last.wrapping_add(step) % GENERATIONS);
        // All of them in use would need a file kept open over thousands of hand-overs by each.
        free.into_iter().find(|generation| !used.contains(generation)).unwrap_or_default()
    }

    pub(crate) fn open_inodes(&self) -> HashSet<Ino> {
        let open = self.handles.iter().map(|handle| handle.ino);
        open.chain(self.replaced.iter().copied()).map(Ino).collect()
    }
}

impl RemovedInode {
    pub(crate) fn new(ino: u64, attr: &Attr) -> Self {
        let times = [attr.atime, attr.mtime, attr.ctime, attr.btime];
        RemovedInode {
            ino,
            mode: attr.kind.mode_bits() | attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: attr.size,
            times: times.iter().flat_map(|time| [time.sec, i64::from(time.nsec)]).collect(),
            xattrs: Vec::new(),
        }
    }

    pub(crate) fn attr(&self) -> Option<Attr> {
        let time = |index: usize| {
            let sec = self.times.get(2 * index).copied().unwrap_or_default();
            let nsec = self.times.get(2 * index + 1).copied().unwrap_or_default();
            Timestamp::new(sec, u32::try_from(nsec).unwrap_or_default())
        };
        Some(Attr {
            kind: FileKind::from_mode(self.mode)?,
            perm: self.mode & 0o7777,
            uid: self.uid,
            gid: self.gid,
            nlink: 0,
            rdev: self.rdev,
            size: self.size,
            atime: time(0),
            mtime: time(1),
            ctime: time(2),
            btime: time(3),
        })
    }
}

impl OpenHandle {
    pub(crate) fn new(fh: u64, handle: &Handle, opens: &mut Opens) -> Self {
        let (mode, registration) = match handle.mode {
            OpenMode::Direct => (HandleMode::Direct, 0),
            OpenMode::Cached { .. } => (HandleMode::Cached, 0),
            OpenMode::Passthrough { id } => (HandleMode::Passthrough, id),
            OpenMode::PassthroughDirect { id } => (HandleMode::PassthroughDirect, id),
        };
        let owner = handle.remote.owner();
        let registered = opens.registration(registration).filter(|_| handle.mode.passes());
        let (bypass, object) = registered.map_or((false, 0), |r| (r.bypass, r.object));
        OpenHandle {
            fh,
            ino: handle.file.ino.0,
            write: handle.write,
            mode: mode.into(),
            registration,
            bypass,
            promised: handle.promised.map(|(_, bytes)| bytes),
            stream: handle.stream.get().map(|stream| stream.carried()),
            append: handle.append,
            owner_node: owner.map_or(0, |owner| owner.node.into()),
            owner_epoch: owner.map_or(0, |owner| owner.epoch),
            alias: handle.alias.into(),
            object,
            keeps_set_ids: handle.keeps_set_ids,
            durably: handle.durably,
        }
    }

    /// The alias of the file that it is of.
    #[must_use]
    pub fn alias(&self) -> u8 {
        u8::try_from(self.alias).unwrap_or(0)
    }

    /// How the kernel treats it.
    #[must_use]
    pub fn open_mode(&self) -> OpenMode {
        let id = self.registration;
        match self.mode() {
            HandleMode::Direct => OpenMode::Direct,
            HandleMode::Cached => OpenMode::Cached { keep: true },
            HandleMode::Passthrough => OpenMode::Passthrough { id },
            HandleMode::PassthroughDirect => OpenMode::PassthroughDirect { id },
        }
    }
}

/// Which node of a cluster a daemon is.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Membership {
    /// Its number.
    #[prost(uint32, tag = "1")]
    pub node: u32,
    /// Its start.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// Where it listens for other nodes; empty if it does not.
    #[prost(string, tag = "3")]
    pub listens: String,
    /// How many replicas of a metadata server confirm a change; not known of earlier versions.
    #[prost(uint32, optional, tag = "4")]
    pub replicas: Option<u32>,
    /// What other nodes keep of what is written here.
    #[prost(string, tag = "5")]
    pub redundancy: String,
}

/// Somebody who may have locks of a file, and a handle through which he took some.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LockOwner {
    /// The inode number.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// The handle.
    #[prost(uint64, tag = "2")]
    pub fh: u64,
    /// The kernel's number of him.
    #[prost(uint64, tag = "3")]
    pub owner: u64,
    /// By `flock`, not by `fcntl`.
    #[prost(bool, tag = "4")]
    pub whole: bool,
}

impl Membership {
    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        let node = u16::try_from(self.node).ok()?;
        Some(Incarnation { node, epoch: self.epoch })
    }

    /// What was agreed on when it was mounted, as far as that is known.
    #[must_use]
    pub fn agreed(&self) -> Option<(u32, Redundancy)> {
        self.replicas.zip(self.redundancy.parse().ok())
    }
}

impl LockOwner {
    pub(crate) fn new(ino: Ino, fh: u64, family: Family, owner: u64) -> Self {
        LockOwner { ino: ino.0, fh, owner, whole: family == Family::Whole }
    }

    pub(crate) fn family(&self) -> Family {
        if self.whole { Family::Whole } else { Family::Ranges }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_meta::FileKind;

    #[test]
    fn next_generation_when_handles_are_old_then_none_of_theirs() {
        let handle =
            |generation: u64| OpenHandle { fh: generation << 52 | 7, ..Default::default() };
        let handed_over = HandOverState {
            generation: u32::from(GENERATIONS) - 1,
            handles: vec![handle(0), handle(1), handle(3)],
            ..HandOverState::default()
        };
        assert_eq!(handed_over.next_generation(), 2);
        assert_eq!(HandOverState::default().next_generation(), 1);
    }

    #[test]
    fn departed_when_handed_on_then_all_attributes_are_there() {
        let time = |sec| Timestamp::new(sec, 999_999_999);
        let attr = Attr {
            kind: FileKind::Directory,
            perm: 0o1777,
            uid: 1,
            gid: 2,
            nlink: 0,
            rdev: 3,
            size: 4,
            atime: time(-5),
            mtime: time(6),
            ctime: time(7),
            btime: time(8),
        };
        let bytes = RemovedInode::new(9, &attr).encode_to_vec();
        let back = RemovedInode::decode(&bytes[..]).expect("decodes");
        assert_eq!((back.ino, back.attr()), (9, Some(attr)));
        assert_eq!(RemovedInode::default().attr(), None);
    }
}
