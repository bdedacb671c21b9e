//! What `stat` says, in this crate's own types.

use rustix::fs::Stat;

/// A point in time of a file, since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds within the second, below 1,000,000,000.
    pub nanos: u32,
}

/// The type of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

impl FileKind {
    /// The kind in a `st_mode`.
    #[must_use]
    pub fn from_mode(mode: u32) -> Self {
        match mode & libc::S_IFMT {
            libc::S_IFDIR => Self::Directory,
            libc::S_IFLNK => Self::Symlink,
            libc::S_IFIFO => Self::Fifo,
            libc::S_IFSOCK => Self::Socket,
            libc::S_IFCHR => Self::CharDevice,
            libc::S_IFBLK => Self::BlockDevice,
            _ => Self::Regular,
        }
    }

    /// The `S_IFMT` bits of the kind.
    #[must_use]
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::Regular => libc::S_IFREG,
            Self::Directory => libc::S_IFDIR,
            Self::Symlink => libc::S_IFLNK,
            Self::Fifo => libc::S_IFIFO,
            Self::Socket => libc::S_IFSOCK,
            Self::CharDevice => libc::S_IFCHR,
            Self::BlockDevice => libc::S_IFBLK,
        }
    }
}

/// Identifies one version of a file in the backing store. Two equal fingerprints mean the same
/// bytes, as far as the file system's time stamps can tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// Inode number in the backing file system (not Forebay's).
    pub ino: u64,
    /// Length in bytes.
    pub size: u64,
    /// Last change of the bytes.
    pub mtime: Timestamp,
    /// Last change of the inode. Changes on rename and chmod too.
    pub ctime: Timestamp,
}

impl Fingerprint {
    /// Whether inode, size and mtime agree; the ctime, which renames change, is left out.
    #[must_use]
    pub fn same_content(&self, other: &Self) -> bool {
        (self.ino, self.size, self.mtime) == (other.ino, other.size, other.mtime)
    }
}

/// Attributes of a file, as in `struct stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Device that holds the file.
    pub dev: u64,
    /// Inode number there.
    pub ino: u64,
    /// Type.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky bits (07777).
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u64,
    /// Length in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Preferred I/O size.
    pub blksize: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the bytes.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
}

impl Attributes {
    /// The version these attributes show.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint { ino: self.ino, size: self.size, mtime: self.mtime, ctime: self.ctime }
    }
}

#[allow(clippy::useless_conversion, clippy::unnecessary_cast, reason = "types differ by platform")]
impl From<Stat> for Attributes {
    fn from(stat: Stat) -> Self {
        let time = |seconds, nanos| Timestamp { seconds, nanos };
        Self {
            dev: stat.st_dev as u64,
            ino: stat.st_ino as u64,
            kind: FileKind::from_mode(stat.st_mode as u32),
            mode: stat.st_mode as u32 & 0o7777,
            nlink: stat.st_nlink as u64,
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: stat.st_rdev as u64,
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            blksize: stat.st_blksize as u32,
            atime: time(stat.st_atime as i64, stat.st_atime_nsec as u32),
            mtime: time(stat.st_mtime as i64, stat.st_mtime_nsec as u32),
            ctime: time(stat.st_ctime as i64, stat.st_ctime_nsec as u32),
        }
    }
}
