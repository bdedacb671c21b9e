//! A file reached by its descriptor: what objects and backing files are made of.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{self, FallocateFlags, SeekFrom, Timespec, Timestamps};
use rustix::io::Errno;

use crate::attributes::Births;
use crate::{AllocateMode, Attributes, Bytes, Result, StoreError, Timestamp};

/// An attribute that nothing has.
const NOBODYS: &str = "user.forebay.none";

/// Syncs, and looks whether the file system has gone down meanwhile: one that does may confirm the sync of
/// what it throws away.
pub(crate) fn sync_by(
    fd: impl AsFd,
    sync: impl Fn(BorrowedFd<'_>) -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    retry(|| sync(fd.as_fd()))?;
    is_up(fd)
}

/// Whether the file system of something that is open is up. One that has gone down gives no attributes
/// from then on: XFS none at all, ext4 no extended ones.
///
/// # Errors
/// What it says then.
pub fn is_up(fd: impl AsFd) -> rustix::io::Result<()> {
    let found = retry(|| fs::fstat(fd.as_fd()))?;
    // Those that lie on no block device of this machine might ask a server, and have no log here.
    if libc::major(found.st_dev) == 0 {
        return Ok(());
    }
    match retry(|| fs::fgetxattr(fd.as_fd(), NOBODYS, &mut [0_u8; 0][..])) {
        Err(Errno::IO) => Err(Errno::IO),
        _ => Ok(()),
    }
}

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// An open local file.
pub(crate) struct LocalFile {
    fd: OwnedFd,
    path: PathBuf,
    births: Births,
}

impl LocalFile {
    pub(crate) fn new(fd: OwnedFd, path: PathBuf) -> Self {
        Self { fd, path, births: Births::default() }
    }

    /// As [`LocalFile::new`], of a file whose time of birth is looked at as well.
    pub(crate) fn with_births(fd: OwnedFd, path: PathBuf, births: Births) -> Self {
        Self { fd, path, births }
    }

    pub(crate) fn births(&self) -> Births {
        self.births
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// What it has open, and nothing else.
    pub(crate) fn into_descriptor(self) -> OwnedFd {
        self.fd
    }

    fn err(&self, operation: &'static str, source: impl Into<io::Error>) -> StoreError {
        StoreError::io(operation, &self.path, source)
    }

    fn fallocate(&self, mode: FallocateFlags, offset: u64, len: u64) -> rustix::io::Result<()> {
        retry(|| fs::fallocate(&self.fd, mode, offset, len))
    }

    fn write_zeros(&self, offset: u64, end: u64) -> Result<()> {
        let mut at = offset;
        while at < end {
            let len = (end - at).min(ZEROS.len() as u64) as usize;
            at += self.write_at(&ZEROS[..len], at)? as u64;
        }
        Ok(())
    }

    fn zero(&self, offset: u64, len: u64, keep_size: bool) -> Result<()> {
        let mut flags = FallocateFlags::ZERO_RANGE;
        flags.set(FallocateFlags::KEEP_SIZE, keep_size);
        match self.fallocate(flags, offset, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            other => return other.map_err(|e| self.err("zero a range of", e)),
        }
        let size = self.len()?;
        let end = offset.saturating_add(len);
        if !keep_size && end > size {
            self.set_len(end)?;
        }
        let inside = if keep_size { end.min(size) } else { end };
        if inside <= offset {
            return Ok(());
        }
        match self.fallocate(
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            offset,
            inside - offset,
        ) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeros(offset, inside),
            other => other.map_err(|e| self.err("zero a range of", e)),
        }
    }

    fn seek(&self, to: SeekFrom) -> Result<Option<u64>> {
        match fs::seek(&self.fd, to) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(e) => Err(self.err("seek in", e)),
        }
    }
}

/// Repeats a call that a signal interrupted.
pub(crate) fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn timespec(time: Option<Timestamp>) -> Timespec {
    match time {
        Some(time) => Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() },
        None => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT },
    }
}

pub(crate) fn timestamps(atime: Option<Timestamp>, mtime: Option<Timestamp>) -> Timestamps {
    Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) }
}

impl Bytes for LocalFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::pread(&self.fd, &mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(self.err("read", e)),
            }
        }
        Ok(done)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(&self.fd, &data[done..], offset + done as u64) {
                Ok(0) if done > 0 => break,
                Ok(0) => return Err(self.err("write", Errno::IO)),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(_) if done > 0 => break,
                Err(e) => return Err(self.err("write", e)),
            }
        }
        Ok(done)
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        // An interrupted fsync is repeated; a failed one is not: the kernel drops the dirty mark
        // of pages that it could not write, so that a second one would lie.
        let sync = |fd: BorrowedFd<'_>| if data_only { fs::fdatasync(fd) } else { fs::fsync(fd) };
        sync_by(&self.fd, sync).map_err(|e| self.err("sync", e))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        retry(|| fs::ftruncate(&self.fd, len)).map_err(|e| self.err("set the length of", e))
    }

    fn stat(&self) -> Result<Attributes> {
        self.births.of_open(&self.fd).map_err(|e| self.err("stat", e))
    }

    fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        let flags = match mode {
            AllocateMode::Zero => return self.zero(offset, len, false),
            AllocateMode::ZeroKeepSize => return self.zero(offset, len, true),
            AllocateMode::Extend => FallocateFlags::empty(),
            AllocateMode::KeepSize => FallocateFlags::KEEP_SIZE,
        };
        self.fallocate(flags, offset, len).map_err(|e| self.err("allocate", e))
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        self.fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
            .map_err(|e| self.err("punch a hole into", e))
    }

    fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.seek(SeekFrom::Data(offset))
    }

    fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.seek(SeekFrom::Hole(offset))
    }

    fn set_times(&self, atime: Option<Timestamp>, mtime: Option<Timestamp>) -> Result<()> {
        fs::futimens(&self.fd, &timestamps(atime, mtime))
            .map_err(|e| self.err("set the times of", e))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn label(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests;
