//! The words that all rooms share: inode numbers, points in time, file types, versions of files in
//! the backing store, incarnations of nodes.
//!
//! Values only: nothing here reads a clock, a file or a device.

use std::fmt;

/// An inode number of the mount: the identity of a file in every room. The upper 16 bits are the
/// partition of the namespace in which its record lives; then comes a sequence of 48 bits, of which
/// the upper 8 are always 0 and left to whoever shows inodes to others.
///
/// Inode numbers are never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);

    /// Where the 8 bits begin that are 0 in every inode number.
    pub const SPARE_SHIFT: u32 = 40;

    /// How many of the lower bits are the sequence.
    pub const SEQUENCE_BITS: u32 = 48;

    /// The partition in which the inode's record lives.
    #[must_use]
    pub fn partition(self) -> u16 {
        (self.0 >> Self::SEQUENCE_BITS) as u16
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A number that grows with each joining of any node: what carries an older one of the same node
/// is refused.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A point in time: seconds since 1970-01-01 UTC, negative before it, and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00:00 UTC.
    pub sec: i64,
    /// Nanoseconds within the second, below 1,000,000,000.
    pub nsec: u32,
}

impl Timestamp {
    /// A timestamp from its parts.
    #[must_use]
    pub const fn new(sec: i64, nsec: u32) -> Self {
        Timestamp { sec, nsec }
    }
}

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A Unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    /// The type in the `S_IFMT` bits of a mode; other bits do not matter. `None` if they are no
    /// known type.
    #[must_use]
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & libc::S_IFMT {
            libc::S_IFREG => Self::Regular,
            libc::S_IFDIR => Self::Directory,
            libc::S_IFLNK => Self::Symlink,
            libc::S_IFIFO => Self::Fifo,
            libc::S_IFSOCK => Self::Socket,
            libc::S_IFCHR => Self::CharDevice,
            libc::S_IFBLK => Self::BlockDevice,
            _ => return None,
        })
    }

    /// The `S_IFMT` bits of the type.
    #[must_use]
    pub const fn mode_bits(self) -> u32 {
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

/// Identifies one version of a file in the backing store: a change of any part means that somebody
/// changed the file. Two equal ones mean the same bytes, as far as the file system's time stamps
/// can tell.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fingerprint {
    /// Length in bytes.
    pub size: u64,
    /// Last change of the bytes.
    pub mtime: Timestamp,
    /// Last change of the inode. Changes on rename and chmod, too.
    pub ctime: Timestamp,
    /// Inode number in the backing file system, not Forebay's.
    pub ino: u64,
    /// When that inode was made, which tells it from others that have its number later; zero where
    /// that is not known, and then it differs from none.
    pub born: Timestamp,
    /// Of how many versions that were published of the file it is the last: tells it from an earlier
    /// one of the same inode, length and time. Only the record of the file knows it, and who has a copy
    /// by that record; zero where it is not known, and then it differs from none.
    pub edition: u16,
}

impl PartialEq for Fingerprint {
    fn eq(&self, other: &Self) -> bool {
        self.ctime == other.ctime && self.same_content(other)
    }
}

impl Eq for Fingerprint {}

impl Fingerprint {
    /// Whether inode, size, mtime and edition agree; the ctime, which renames change, is left out.
    #[must_use]
    pub fn same_content(&self, other: &Self) -> bool {
        let either_unknown = self.edition == 0 || other.edition == 0;
        (self.size, self.mtime) == (other.size, other.mtime)
            && (either_unknown || self.edition == other.edition)
            && self.same_inode(other)
    }

    /// The edition that follows: after the last number the first one again.
    #[must_use]
    pub fn next_edition(&self) -> u16 {
        self.edition.checked_add(1).unwrap_or(1)
    }

    /// Whether both are of one inode.
    #[must_use]
    pub fn same_inode(&self, other: &Self) -> bool {
        let unknown = Timestamp::default();
        let either_unknown = self.born == unknown || other.born == unknown;
        self.ino == other.ino && (either_unknown || self.born == other.born)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_when_made_of_its_own_mode_then_the_same() {
        for kind in [
            FileKind::Regular,
            FileKind::Directory,
            FileKind::Symlink,
            FileKind::Fifo,
            FileKind::Socket,
            FileKind::CharDevice,
            FileKind::BlockDevice,
        ] {
            assert_eq!(FileKind::from_mode(kind.mode_bits() | 0o7777), Some(kind));
        }
        assert_eq!(FileKind::from_mode(0o644), None);
    }

    #[test]
    fn fingerprints_when_a_birth_or_an_edition_is_unknown_then_only_the_rest_counts() {
        let known =
            Fingerprint { ino: 7, size: 1, born: Timestamp::new(5, 0), ..Default::default() };
        let unknown = Fingerprint { born: Timestamp::default(), ..known };
        let other = Fingerprint { born: Timestamp::new(6, 0), ..known };
        assert_eq!(known, unknown);
        assert_ne!(known, other);
        let (first, last) =
            (Fingerprint { edition: 1, ..known }, Fingerprint { edition: u16::MAX, ..known });
        assert!(known.same_content(&first) && !first.same_content(&last) && first != last);
        assert_eq!((known.next_edition(), last.next_edition()), (1, 1));
        let moved = Fingerprint { ctime: Timestamp::new(9, 9), ..known };
        assert!(known.same_content(&moved) && known != moved);
    }
}
