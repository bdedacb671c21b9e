//! Mounting and unmounting.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::options::Options;

/// A mounted file system whose requests nobody reads yet. Dropping it unmounts lazily.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    device: Option<OwnedFd>,
}

impl Mount {
    /// Mounts on `mountpoint`: by mount(2) where allowed, else through fusermount3.
    pub fn new(mountpoint: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let _ = (mountpoint.as_ref(), options);
        todo!()
    }

    /// Where it is mounted (absolute).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor and the path; dropping them unmounts nothing.
    pub fn into_parts(mut self) -> (OwnedFd, PathBuf) {
        let _ = self.device.take();
        todo!()
    }

    /// Unmounts; with `lazy` even while it is in use (it then ends when the last user leaves).
    pub fn unmount(&mut self, lazy: bool) -> Result<()> {
        let _ = lazy;
        todo!()
    }
}
