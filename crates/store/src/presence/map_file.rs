//! The file beside an object in which its map stands.
//!
//! Owns: the open file. It must never know what the bytes mean.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use crate::failpoints::fail_at;
use crate::local::LocalFile;
use crate::{Bytes, Result};

/// The sidecar file of a map.
pub(crate) struct MapFile(pub(super) LocalFile);

impl MapFile {
    pub(crate) fn new(fd: OwnedFd, path: PathBuf) -> Self {
        Self(LocalFile::new(fd, path))
    }

    pub(super) fn write_all(&self, mut data: &[u8], mut at: u64) -> Result<()> {
        while !data.is_empty() {
            let done = self.0.write_at(data, at)?;
            data = &data[done..];
            at += done as u64;
        }
        Ok(())
    }
}

/// A map as it was written to its file, if it has one, and not synced yet.
#[must_use = "what was synced counts once the map is on the device"]
pub struct WrittenMap(pub(super) Option<Arc<MapFile>>);

impl WrittenMap {
    /// Makes it durable.
    ///
    /// # Errors
    /// What the device says.
    pub fn sync(&self) -> Result<()> {
        let Some(file) = &self.0 else { return Ok(()) };
        fail_at!("store.presence.before_sync", file.0.label());
        file.0.sync(true)
    }
}
