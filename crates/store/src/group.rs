//! Making many files durable by one sync of their file system.
//!
//! A sync of one file costs a journalling file system a commit and a flush of the device, however
//! small the file is. Where one sync of the whole file system gives the same guarantee, and tells
//! whether the device failed, a group of files shares it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, Mode, OFlags};

use crate::backing::Dir;
use crate::local::{retry, sync_by};
use crate::{Result, StoreError};

/// File systems on local devices whose `syncfs` waits for bytes and journal: ext2 to ext4, XFS,
/// Btrfs, F2FS, tmpfs. On others (NFS, Lustre, FUSE) each file is synced by itself.
const KNOWN: [u32; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];

/// Since this release `syncfs` reports that bytes could not be written.
const REPORTS_SINCE: (u32, u32) = (5, 8);

/// What is written to a file system from now on, until it is made durable at once by
/// [`BackingStore::sync_group`](crate::BackingStore::sync_group).
///
/// It covers the files of the backing store's root file system, not those of others mounted below.
#[derive(Debug)]
pub struct Group {
    /// Open since before the first write: it hears of every failure since.
    fd: OwnedFd,
}

/// Proof that a group was made durable.
#[derive(Debug)]
pub struct Synced(());

impl Group {
    /// `None` where the file system at `root` can't do it, or does not say when it failed.
    pub(crate) fn begin(root: &Dir) -> Option<Self> {
        let known = fs::fstatfs(root).is_ok_and(|stat| KNOWN.contains(&(stat.f_type as u32)));
        if !known || release() < REPORTS_SINCE {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry(|| fs::openat(root, ".", flags, Mode::empty())).ok()?;
        Some(Group { fd })
    }

    pub(crate) fn sync(&self) -> Result<Synced> {
        sync_by(&self.fd, |fd| fs::syncfs(fd))
            .map_err(|e| StoreError::io("sync the file system of", "the backing store", e))?;
        Ok(Synced(()))
    }

    /// Whether a directory lies on the group's file system.
    pub(crate) fn covers(&self, dir: &Dir) -> bool {
        match (fs::fstat(self.fd.as_fd()), fs::fstat(dir)) {
            (Ok(own), Ok(other)) => own.st_dev == other.st_dev,
            _ => false,
        }
    }
}

/// Major and minor number of the kernel's release.
fn release() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (0, 0),
    }
}
