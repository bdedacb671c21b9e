//! Which files may be unknown after a power cut.

use std::collections::HashSet;

use parking_lot::Mutex;

use super::MetaStore;
use crate::error::Result;
use crate::types::Ino;

/// Files that got their records since the last sync.
pub(super) struct Fresh(Mutex<Since>);

struct Since {
    files: HashSet<Ino>,
    /// It may be any: there are too many, or they are of the process before.
    any: bool,
}

/// More than a directory has mostly; a sync is cheap beside what brought so many.
const MAX: usize = 1 << 16;

impl Default for Fresh {
    fn default() -> Self {
        Self(Mutex::new(Since { files: HashSet::new(), any: true }))
    }
}

impl Fresh {
    pub(super) fn note(&self, files: &[Ino]) {
        if files.is_empty() {
            return;
        }
        let mut since = self.0.lock();
        if since.files.len() + files.len() > MAX {
            *since = Since { files: HashSet::new(), any: true };
        } else if !since.any {
            since.files.extend(files);
        }
    }
}

impl MetaStore {
    /// Returns when all that was done before survives the loss of power.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn sync(&self) -> Result<()> {
        let none = Since { files: HashSet::new(), any: false };
        let before = std::mem::replace(&mut *self.fresh.0.lock(), none);
        let synced = self.engine.sync();
        if synced.is_err() {
            let mut since = self.fresh.0.lock();
            since.any |= before.any;
            since.files.extend(before.files);
        }
        Ok(synced?)
    }

    /// Whether a file is surely known after a power cut, under whatever name.
    pub fn is_surely_kept(&self, ino: Ino) -> bool {
        let since = self.fresh.0.lock();
        !since.any && !since.files.contains(&ino)
    }
}
