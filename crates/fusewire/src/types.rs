//! What replies and SETATTR are made of.

use std::time::Duration;

use crate::abi;
use crate::flags::{AttrFlags, OpenOutFlags};

/// A point in time: seconds since the epoch (negative before 1970) and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 UTC.
    pub seconds: i64,
    /// 0 to 999 999 999.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// From seconds and nanoseconds.
    pub const fn new(seconds: i64, nanoseconds: u32) -> Self {
        Self { seconds, nanoseconds }
    }

    /// The present.
    pub fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Self::new(now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))
    }
}

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// What programs see as `st_ino`; need not be the node id.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// 512-byte blocks.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Type and permission bits, as `st_mode`.
    pub mode: u32,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number in the kernel's 32-bit encoding (major in bits 8-19, minor in the others),
    /// the same as MKNOD brings.
    pub rdev: u32,
    /// Preferred I/O size.
    pub blksize: u32,
    /// Special properties.
    pub flags: AttrFlags,
}

impl Attr {
    pub(crate) fn to_wire(self) -> abi::Attr {
        abi::Attr {
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime.seconds,
            mtime: self.mtime.seconds,
            ctime: self.ctime.seconds,
            atimensec: self.atime.nanoseconds,
            mtimensec: self.mtime.nanoseconds,
            ctimensec: self.ctime.nanoseconds,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.blksize,
            flags: self.flags.bits(),
        }
    }
}

/// A name that was resolved: the answer to LOOKUP, MKNOD, MKDIR, SYMLINK, LINK, and a part of
/// CREATE and READDIRPLUS. Each one that reaches the kernel adds one reference, which FORGET
/// gives back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The node id that later requests carry. 0: a negative entry, "no such name" that the
    /// kernel may cache for `entry_valid` (no reference).
    pub node: u64,
    /// Distinguishes reuses of a node id; (node, generation) is unique for ever.
    pub generation: u64,
    /// The inode.
    pub attr: Attr,
    /// How long the kernel may cache the name.
    pub entry_valid: Duration,
    /// How long the kernel may cache the attributes.
    pub attr_valid: Duration,
}

impl Entry {
    /// A negative entry that the kernel may cache for `valid`.
    pub fn negative(valid: Duration) -> Self {
        Self { entry_valid: valid, ..Self::default() }
    }

    pub(crate) fn to_wire(self) -> abi::EntryOut {
        abi::EntryOut {
            nodeid: self.node,
            generation: self.generation,
            entry_valid: self.entry_valid.as_secs(),
            attr_valid: self.attr_valid.as_secs(),
            entry_valid_nsec: self.entry_valid.subsec_nanos(),
            attr_valid_nsec: self.attr_valid.subsec_nanos(),
            attr: self.attr.to_wire(),
        }
    }
}

/// An open file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Handle that later requests on this open file carry.
    pub fh: u64,
    /// How the kernel treats it.
    pub flags: OpenOutFlags,
    /// Passthrough to a file registered by
    /// [`Connection::backing_open`](crate::Connection::backing_open).
    pub backing_id: Option<u32>,
}

impl Opened {
    pub(crate) fn to_wire(self) -> abi::OpenOut {
        let flags = match self.backing_id {
            Some(_) => self.flags.with(OpenOutFlags::PASSTHROUGH),
            None => self.flags.without(OpenOutFlags::PASSTHROUGH),
        };
        abi::OpenOut {
            fh: self.fh,
            open_flags: flags.bits(),
            backing_id: self.backing_id.unwrap_or(0),
        }
    }
}

/// The type of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Unknown: programs have to stat.
    Unknown,
    /// Named pipe.
    Fifo,
    /// Character device.
    CharDevice,
    /// Directory.
    Directory,
    /// Block device.
    BlockDevice,
    /// Regular file.
    Regular,
    /// Symbolic link.
    Symlink,
    /// Unix socket.
    Socket,
}

impl FileKind {
    /// The type in the upper bits of `st_mode`.
    pub const fn from_mode(mode: u32) -> Self {
        match mode & libc::S_IFMT {
            libc::S_IFIFO => Self::Fifo,
            libc::S_IFCHR => Self::CharDevice,
            libc::S_IFDIR => Self::Directory,
            libc::S_IFBLK => Self::BlockDevice,
            libc::S_IFREG => Self::Regular,
            libc::S_IFLNK => Self::Symlink,
            libc::S_IFSOCK => Self::Socket,
            _ => Self::Unknown,
        }
    }

    pub(crate) const fn to_dirent(self) -> u32 {
        (match self {
            Self::Unknown => libc::DT_UNKNOWN,
            Self::Fifo => libc::DT_FIFO,
            Self::CharDevice => libc::DT_CHR,
            Self::Directory => libc::DT_DIR,
            Self::BlockDevice => libc::DT_BLK,
            Self::Regular => libc::DT_REG,
            Self::Symlink => libc::DT_LNK,
            Self::Socket => libc::DT_SOCK,
        }) as u32
    }
}

/// A new value for a time in SETATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The present, by the file system's clock.
    Now,
    /// This one.
    At(Timestamp),
}

/// Arguments of SETATTR: what is `Some` is to be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// The open file through which it is done (ftruncate, fchmod ...).
    pub fh: Option<u64>,
    /// Permission bits (the type bits are there, too, and do not change).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: truncate or extend.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the data.
    pub mtime: Option<SetTime>,
    /// Last change of the inode (with the write-back cache only).
    pub ctime: Option<Timestamp>,
    /// Owner of the locks, for mandatory locking on truncate.
    pub lock_owner: Option<u64>,
    /// Clear setuid and setgid.
    pub kill_suidgid: bool,
}

/// A POSIX or BSD lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `i64::MAX` means to the end.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
    /// Process that holds it.
    pub pid: u32,
}

/// Answer to STATFS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// Blocks of `frsize`.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for ordinary users.
    pub bavail: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Preferred I/O size.
    pub bsize: u32,
    /// Longest name.
    pub namelen: u32,
    /// Block size in bytes.
    pub frsize: u32,
}

/// Answer to STATX. `mask` says which of the fields are valid (`STATX_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statx {
    /// `STATX_*` bits of the valid fields.
    pub mask: u32,
    /// Preferred I/O size.
    pub blksize: u32,
    /// `STATX_ATTR_*` bits that are set.
    pub attributes: u64,
    /// `STATX_ATTR_*` bits that the file system knows.
    pub attributes_mask: u64,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Type and permissions.
    pub mode: u16,
    /// Inode number.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// 512-byte blocks.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Device number (device files): major and minor.
    pub rdev: (u32, u32),
}

impl Statx {
    pub(crate) fn to_wire(self) -> abi::StatxBody {
        abi::StatxBody {
            mask: self.mask,
            blksize: self.blksize,
            attributes: self.attributes,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            mode: self.mode,
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            attributes_mask: self.attributes_mask,
            atime: wire_time(self.atime),
            btime: wire_time(self.btime),
            ctime: wire_time(self.ctime),
            mtime: wire_time(self.mtime),
            rdev_major: self.rdev.0,
            rdev_minor: self.rdev.1,
            ..abi::StatxBody::default()
        }
    }
}

fn wire_time(time: Timestamp) -> abi::SxTime {
    abi::SxTime { tv_sec: time.seconds, tv_nsec: time.nanoseconds, reserved: 0 }
}
