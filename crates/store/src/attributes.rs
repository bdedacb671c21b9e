//! What `stat` says, in this crate's own types.

use std::os::fd::AsFd;

pub use forebay_types::{FileKind, Fingerprint, Timestamp};
use rustix::fs::{self, AtFlags, Stat, Statx, StatxFlags, StatxTimestamp};

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
    /// When the inode was made; zero where the file system does not know, or can't be relied on.
    pub btime: Timestamp,
}

impl Attributes {
    /// Whether this is the inode of which a version is known.
    #[must_use]
    pub fn same_inode(&self, known: &Fingerprint) -> bool {
        known.same_inode(&self.fingerprint())
    }

    /// The version these attributes show.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint {
            ino: self.ino,
            size: self.size,
            mtime: self.mtime,
            ctime: self.ctime,
            born: self.btime,
            edition: 0,
        }
    }
}

/// On which device the times at which inodes were made can be relied on, if on any: where an inode
/// keeps its own for as long as it lives. (On overlayfs it is another one after the first change.)
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Births(Option<u64>);

impl Births {
    /// Of the file system that `dir` is in: ext2 to ext4, XFS, Btrfs, F2FS or tmpfs.
    pub(crate) fn of(dir: impl AsFd) -> Self {
        const KEPT: [u32; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
        let kept = fs::fstatfs(&dir).is_ok_and(|found| KEPT.contains(&(found.f_type as u32)));
        let device = || fs::fstat(&dir).ok().map(|found| found.st_dev);
        Births(if kept { device() } else { None })
    }

    /// As `fstatat`, with the time of birth where that can be relied on.
    pub(crate) fn stat(
        self,
        dir: impl AsFd,
        name: impl rustix::path::Arg,
        flags: AtFlags,
    ) -> rustix::io::Result<Attributes> {
        let Some(device) = self.0 else {
            return fs::statat(dir, name, flags).map(Attributes::from);
        };
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let mut found = Attributes::from(fs::statx(dir, name, flags, wanted)?);
        if found.dev != device {
            found.btime = Timestamp::default();
        }
        Ok(found)
    }
}

impl Births {
    /// As [`Births::stat`], for who is about to replace or remove what stands there: a file system of a network
    /// asks its server, whatever it remembers.
    pub(crate) fn look(
        self,
        dir: impl AsFd,
        name: impl rustix::path::Arg,
        flags: AtFlags,
    ) -> rustix::io::Result<Attributes> {
        let now = AtFlags::STATX_FORCE_SYNC;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        // If the directory has changed, it forgets which names are there and which are not.
        fs::statx(&dir, c"", AtFlags::EMPTY_PATH | now, StatxFlags::BASIC_STATS)?;
        let mut found = Attributes::from(fs::statx(&dir, name, flags | now, wanted)?);
        if self.0 != Some(found.dev) {
            found.btime = Timestamp::default();
        }
        Ok(found)
    }

    /// As `fstat`, with the time of birth where that can be relied on.
    pub(crate) fn of_open(self, file: impl AsFd) -> rustix::io::Result<Attributes> {
        match self.0 {
            Some(_) => self.stat(file, c"", AtFlags::EMPTY_PATH),
            None => fs::fstat(file).map(Attributes::from),
        }
    }
}

impl From<Statx> for Attributes {
    fn from(stat: Statx) -> Self {
        let time = |time: StatxTimestamp| Timestamp::new(time.tv_sec, time.tv_nsec);
        let born = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        Self {
            dev: fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            ino: stat.stx_ino,
            kind: FileKind::from_mode(stat.stx_mode.into()).unwrap_or(FileKind::Regular),
            mode: u32::from(stat.stx_mode) & 0o7777,
            nlink: stat.stx_nlink.into(),
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            rdev: fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            blksize: stat.stx_blksize,
            atime: time(stat.stx_atime),
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            btime: if born { time(stat.stx_btime) } else { Timestamp::default() },
        }
    }
}

#[allow(clippy::useless_conversion, clippy::unnecessary_cast, reason = "types differ by platform")]
impl From<Stat> for Attributes {
    fn from(stat: Stat) -> Self {
        let time = |sec, nsec| Timestamp::new(sec, nsec);
        Self {
            dev: stat.st_dev as u64,
            ino: stat.st_ino as u64,
            kind: FileKind::from_mode(stat.st_mode).unwrap_or(FileKind::Regular),
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
            btime: Timestamp::default(),
        }
    }
}
