//! A regular file of a backing store in a directory.

use std::ffi::OsStr;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use crate::backing::{BackingFile, SetAttributes};
use crate::dir_backing::owner_of;
use crate::local::{LocalFile, retry};
use crate::{AllocateMode, Attributes, Bytes, Result, StoreError, Timestamp, closing};

/// A regular file of a [`DirBacking`].
pub(crate) struct DirFile(ManuallyDrop<LocalFile>);

impl DirFile {
    pub(crate) fn new(file: LocalFile) -> Self {
        Self(ManuallyDrop::new(file))
    }
}

impl Drop for DirFile {
    fn drop(&mut self) {
        // SAFETY: it is taken here alone, and nobody has it after this.
        let file = unsafe { ManuallyDrop::take(&mut self.0) };
        closing::close(file.into_descriptor());
    }
}

crate::bytes::delegate_bytes!(DirFile, 0);

impl BackingFile for DirFile {
    fn set_attributes(&self, attributes: &SetAttributes) -> Result<()> {
        let fd = self.0.descriptor();
        let err = |e: Errno| StoreError::io("set attributes of", self.0.label(), e);
        if attributes.uid.is_some() || attributes.gid.is_some() {
            let (uid, gid) = owner_of(attributes);
            fs::fchown(fd, uid, gid).map_err(err)?;
        }
        if let Some(mode) = attributes.mode {
            fs::fchmod(fd, Mode::from_raw_mode(mode & 0o7777)).map_err(err)?;
        }
        if attributes.atime.is_some() || attributes.mtime.is_some() {
            self.0.set_times(attributes.atime, attributes.mtime)?;
        }
        Ok(())
    }

    fn set_xattr(&self, attribute: &OsStr, value: &[u8]) -> Result<()> {
        fs::fsetxattr(self.0.descriptor(), attribute, value, XattrFlags::empty())
            .map_err(|e| StoreError::io("set an extended attribute of", self.0.label(), e))
    }

    fn start_writing_out(&self) {
        let fd = self.0.descriptor().as_raw_fd();
        // SAFETY: only integers are passed, and the descriptor is open. A file system that does not
        // know the call writes at the sync.
        unsafe { libc::sync_file_range(fd, 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    }

    fn reopened(&self) -> Result<Arc<dyn BackingFile>> {
        let link = format!("/proc/self/fd/{}", self.0.descriptor().as_raw_fd());
        let opened = retry(|| fs::open(&link, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()))
            .map_err(|e| StoreError::io("open once more", self.0.label(), e))?;
        let (path, births) = (self.0.label().to_owned(), self.0.births());
        Ok(Arc::new(DirFile::new(LocalFile::with_births(opened, path, births))))
    }
}
