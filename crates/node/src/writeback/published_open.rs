//! Versions that were published while a program had their file open to write.
//!
//! Whether a program has written since then can't be known before the last close, as the kernel writes
//! files of the tiers without the daemon. So the file stays dirty, and if others take it out of the backing
//! store meanwhile it would be written there anew, though nothing of it is newer than what they have taken.
//! Such a version is held open until the file is clean or has another one. Whoever finds the name gone
//! after the last close compares.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_meta::Record;
use forebay_store::BackingFile;
use forebay_types::{FileKind, Ino};
use parking_lot::Mutex;

use crate::error::Result;
use crate::residency::doubt::is_equal;
use crate::residency::files::FileRef;
use crate::writeback::Writeback;

/// So many are held open. Of others, what was taken comes back as it was.
const MAX_HELD: usize = 256;

/// The versions that are held open, by inode.
#[derive(Default)]
pub(crate) struct PublishedOpen(Mutex<HashMap<u64, Held>>);

/// The file stays in use as well: what shows through its object is open there.
type Held = (FileRef, Arc<dyn BackingFile>);

impl PublishedOpen {
    /// Holds a version that was published now, and lets go of the one before.
    pub(crate) fn hold(&self, file: &FileRef, version: Option<Arc<dyn BackingFile>>) {
        let mut held = self.0.lock();
        let before = held.remove(&file.ino.0);
        if let Some(version) = version
            && held.len() < MAX_HELD
        {
            held.insert(file.ino.0, (file.clone(), version));
        }
        drop(held);
        drop(before);
    }

    /// Nothing is newer than the version any more, or nobody asks.
    pub(crate) fn let_go(&self, ino: Ino) {
        let before = self.0.lock().remove(&ino.0);
        drop(before);
    }

    fn of(&self, ino: Ino) -> Option<Held> {
        self.0.lock().get(&ino.0).cloned()
    }

    fn all(&self) -> Vec<Ino> {
        self.0.lock().keys().map(|&ino| Ino(ino)).collect()
    }
}

/// A file that was as it was published when it had been written so often.
pub(crate) struct AsPublished {
    file: FileRef,
    writes: u64,
}

impl AsPublished {
    /// Whether nobody has written, or opened it to write, since.
    pub(crate) fn holds(&self) -> bool {
        self.file.writes.load(Ordering::Acquire) == self.writes
    }
}

impl Writeback {
    /// Whether a file counts as dirty only as a program had it open when its version was published, and
    /// nobody has written since. To be asked when its name is gone: what is written from now on would be
    /// gone as well had the program written it there.
    pub(crate) fn is_as_published(&self, ino: Ino) -> bool {
        self.compared(ino).is_some_and(|found| found.holds())
    }

    /// Those of the files at or below an inode of which this held when it was looked at.
    pub(crate) fn as_published_below(&self, record: &Record) -> HashMap<Ino, AsPublished> {
        let candidates = match record.attr.kind {
            FileKind::Directory => {
                let mut all = self.reconciler.published_open.all();
                all.retain(|ino| self.is_below(*ino, record.ino).unwrap_or(false));
                all
            }
            _ => vec![record.ino],
        };
        candidates.into_iter().filter_map(|ino| Some((ino, self.compared(ino)?))).collect()
    }

    fn compared(&self, ino: Ino) -> Option<AsPublished> {
        let (file, version) = self.reconciler.published_open.of(ino)?;
        // Before anything is looked at: an open to write counts, too.
        let writes = file.writes.load(Ordering::Acquire);
        let is = self.is_as(&file, &*version).unwrap_or_else(|error| {
            tracing::debug!(%ino, %error, "can't be compared with what was published");
            false
        });
        tracing::debug!(%ino, is, "compared with what was published while it was open");
        is.then_some(AsPublished { file, writes })
    }

    fn is_as(&self, file: &FileRef, version: &dyn BackingFile) -> Result<bool> {
        let record = self.meta.get(file.ino)?;
        let found = version.stat()?.fingerprint();
        let is_known = record
            .backing
            .fingerprint
            .is_some_and(|known| known.same_inode(&found) && known.same_content(&found));
        if !is_known || file.opens.lock().writers > 0 {
            return Ok(false);
        }
        let location = file.location.read();
        if location.is_spilled() {
            return Ok(false);
        }
        let Some(place) = location.place() else {
            return Ok(location.base().is_open_as_version(&found));
        };
        let stat = file.stat_with_time(place.bytes())?;
        if (stat.size, stat.mtime) != (found.size, found.mtime)
            || self.residency.maybe_stored_into(file, place)
        {
            return Ok(false);
        }
        if !place.is_marked_whole() && !location.base().is_open_as_version(&found) {
            return Ok(false);
        }
        let mut at = 0;
        for run in
            place.absent(0..stat.size).into_iter().chain(std::iter::once(stat.size..stat.size))
        {
            if !is_equal(place.bytes(), version, at..run.start)? {
                return Ok(false);
            }
            at = run.end;
        }
        Ok(true)
    }
}
