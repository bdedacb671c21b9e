//! Small files that are due at the same time are copied and synced together before they are
//! published one by one: a sync of one file makes a journalling file system commit what was done to
//! all of them, so that the syncs after the first cost next to nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_meta::Record;
use forebay_store::copy::{self, Cancel, Priority};
use forebay_store::{Bytes, Synced, Temporary};
use forebay_types::{FileKind, Ino};

use crate::context::Context;
use crate::defects::BackgroundKind;
use crate::error::Result;
use crate::metrics::Source;
use crate::residency::files::{File, FileRef};
use crate::writeback::Writeback;

/// Larger files are bound by their bytes, not by their syncs.
const SMALL_FILE: u64 = 1 << 20;

/// A copy of a file that only lacks its name.
pub struct Staged {
    temporary: Temporary,
    /// [`File::writes`] and the record's change count before the copy.
    writes: u64,
    change: u64,
}

impl Staged {
    fn seal(&mut self, synced: Option<&Synced>) -> bool {
        match synced {
            Some(synced) => {
                self.temporary.seal_in(synced);
                true
            }
            None => self.temporary.seal().is_ok(),
        }
    }
}

/// The staged copies of a batch. Those that were not published go when it is dropped.
#[derive(Default)]
pub(crate) struct Stage {
    files: Vec<FileRef>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        for file in &self.files {
            file.writeback.staged.lock().take();
        }
    }
}

impl File {
    /// The staged copy, if the file is still as it was copied.
    pub(crate) fn take_staged(&self, record: &Record) -> Option<Temporary> {
        let staged = self.writeback.staged.lock().take()?;
        let same =
            staged.change == record.change && staged.writes == self.writes.load(Ordering::Acquire);
        same.then_some(staged.temporary)
    }
}

impl Writeback {
    /// Stages the small ones among files that are due. What can't be staged, for whatever reason,
    /// is left to its turn.
    pub(crate) fn stage(&self, due: &[Ino]) -> Stage {
        let mut stage = Stage::default();
        if due.len() < 2 {
            return stage;
        }
        let group = self.backing.begin_group();
        for &ino in due {
            let Ok(record) = self.meta.get(ino) else { continue };
            // What has its owner from its directory, or keeps its inode, is made there.
            if may_be_staged(&record) && self.may_give(&record.attr).unwrap_or(false) {
                let file = self.residency.files.get(ino);
                let staged = self
                    .defects
                    .attempt(BackgroundKind::WriteBack, ino.0, || self.stage_file(&file, &record));
                match staged.unwrap_or(Ok(false)) {
                    Ok(true) => stage.files.push(file),
                    Ok(false) => {}
                    Err(error) => tracing::debug!(%ino, %error, "not staged"),
                }
            }
        }
        if stage.files.is_empty() {
            return stage;
        }
        let synced = group.and_then(|group| self.backing.sync_group(&group).ok());
        for file in &stage.files {
            let mut staged = file.writeback.staged.lock();
            if !staged.as_mut().is_some_and(|staged| staged.seal(synced.as_ref())) {
                *staged = None;
            }
        }
        if let Err(error) = self.intend_staged(&stage) {
            // They would be published without having been announced.
            tracing::debug!(%error, "nothing is staged");
            return Stage::default();
        }
        stage
    }

    /// Announces what is staged with one sync of the namespace. Each is announced once more when its
    /// turn comes, which costs no sync if it is the same.
    fn intend_staged(&self, stage: &Stage) -> Result<()> {
        for file in &stage.files {
            let staged = file.writeback.staged.lock();
            let Some(staged) = &*staged else { continue };
            let Ok(record) = self.meta.get(file.ino) else { continue };
            self.entries_will_change(record.links.only().map(|link| link.parent).into_iter());
            // What is under way is not to be forgotten.
            if record.backing.pending.is_none() {
                let pending = staged.temporary.pending()?;
                self.meta.intend_ahead(file.ino, pending)?;
            }
        }
        Ok(self.meta.sync()?)
    }

    fn stage_file(&self, file: &FileRef, record: &Arc<Record>) -> Result<bool> {
        let Some(_one) = file.writeback.flushing.try_lock() else { return Ok(false) };
        self.residency.load(&Context::DAEMON, file)?;
        let writes = file.writes.load(Ordering::Acquire);
        if file.opens.lock().writers > 0 || file.writeback.staged.lock().is_some() {
            return Ok(false);
        }
        let location = file.location.read();
        let Some(place) = location.place() else { return Ok(false) };
        if !place.is_marked_whole()
            || location.is_spilled()
            || self.residency.maybe_stored_into(file, place)
        {
            return Ok(false);
        }
        if self.residency.may_be_published(record, place)? {
            // What there is may do.
            return Ok(false);
        }
        let object = place.shared_bytes();
        drop(location);
        let temporary = self.copy_to_temporary(file, record, &*object)?;
        temporary.file().start_writing_out();
        *file.writeback.staged.lock() = Some(Staged { temporary, writes, change: record.change });
        Ok(true)
    }

    /// A temporary with a whole object's bytes, attributes and extended attributes.
    fn copy_to_temporary(
        &self,
        file: &File,
        record: &Record,
        object: &dyn Bytes,
    ) -> Result<Temporary> {
        let temporary = self.backing.temporary(record.ino.0)?;
        let stat = file.stat_with_time(object)?;
        let limits = self.residency.limits(Priority::WriteBack);
        let to = &**temporary.file();
        copy::copy_range(object, to, 0..stat.size, &limits, &Cancel::default())?;
        to.set_len(stat.size)?;
        self.metrics.bytes.of(Source::Flush).add(stat.size);
        self.copy_attributes(record, stat.mtime, to)?;
        Ok(temporary)
    }
}

fn may_be_staged(record: &Record) -> bool {
    record.attr.kind == FileKind::Regular
        && record.is_dirty()
        && !record.spilled
        && record.links.len() == 1
        && record.attr.nlink == 1
        && record.attr.size <= SMALL_FILE
}
