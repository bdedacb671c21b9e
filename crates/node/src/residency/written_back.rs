//! What becomes of a file by its write-back: what its object knows of versions that are about to appear, and the
//! transitions when they are there.
//!
//! `writeback/flush.rs` says in which order: the announcement is durable before the version appears, and a
//! file is clean when the version is durable.

use std::sync::atomic::Ordering;

use forebay_meta::{Queue, Record};
use forebay_store::{Attributes, Flush, Header};
use forebay_types::{Fingerprint, Ino};
use parking_lot::Mutex;

use crate::clock;
use crate::context::Context;
use crate::error::Result;
use crate::residency::Residency;
use crate::residency::data_location::{DataLocation, TierObject, Underlay};
use crate::residency::files::{File, FileRef};
use crate::residency::synced::{is_announced, may_get_an_older_version};

/// A version that is about to be published under a name.
pub(crate) struct Announcement {
    /// The version.
    pub(crate) pending: Fingerprint,
    /// What stands under the name, unless others have changed it.
    pub(crate) found: Option<Fingerprint>,
    /// The version that the record knows.
    pub(crate) known: Option<Fingerprint>,
    /// What should stand under the name: an earlier flush of this object may have put it there.
    pub(crate) expect: Option<Fingerprint>,
}

impl TierObject {
    /// Takes changed extents of up to so many bytes to copy them to where the others are; `None` if nothing is
    /// changed, or all bytes are here.
    pub(crate) fn take_changed(&self, most: u64) -> Option<Flush> {
        self.presence.as_ref()?.write().take_flush(most)
    }

    /// Those extents count as unchanged once they are durable there, and as changed again if that failed.
    pub(crate) fn changed_copied(&self, flush: Flush, copied: Result<()>) -> Result<()> {
        let Some(presence) = &self.presence else { return copied };
        match copied {
            Ok(()) => Ok(presence.write().finish_flush(flush)?),
            Err(_) => {
                presence.write().abort_flush(flush);
                copied
            }
        }
    }

    /// Has taken off below what a truncation took from the file, by a function that is told how much of the
    /// file below counts, and the file's length. From then on all of that length counts.
    pub(crate) fn cut_below(&self, cut: impl FnOnce(u64, u64) -> Result<()>) -> Result<()> {
        let Some(presence) = &self.presence else { return Ok(()) };
        let mut presence = presence.write();
        let (limit, size) = (presence.base_limit(), presence.size());
        if limit < size {
            // What was copied there behind that before, and counts as unchanged, goes with it.
            presence.mark_changed(limit..size)?;
            cut(limit, size)?;
            presence.rebase()?;
        }
        Ok(())
    }
}

/// The backing store has the bytes of a file: so says the record of it.
pub(crate) fn record_written_back(record: &mut Record) {
    record.mark_clean();
    record.spilled = false;
}

impl Residency {
    /// The object of a file knows a version before that appears. Says what stands under its name, as far as
    /// that is this file's, and whether the object counts as synced only now: it has to be synced then.
    pub(crate) fn announce_version(
        &self,
        place: &TierObject,
        &Announcement { pending, found, known, mut expect }: &Announcement,
    ) -> Result<(Option<Fingerprint>, bool)> {
        let mut was_empty = false;
        self.edit_header(place, |header| {
            if let Some(found) = found.filter(|found| is_announced(header, found))
                && expect != Some(found)
            {
                expect = Some(found);
                header.base = expect;
            }
            if known.zip(found).is_some_and(|(known, found)| known.same_content(&found)) {
                // It may have been announced as pending: the next one takes its place there.
                header.base = found;
            }
            header.pending = Some(pending);
            was_empty = may_get_an_older_version(header);
            Ok(())
        })?;
        Ok((expect, was_empty))
    }

    /// As [`Residency::announce_version`], of one that comes to be piece by piece: the base and the announced
    /// version are of one inode, which changes in place.
    pub(crate) fn announce_in_place(&self, place: &TierObject, found: Fingerprint) -> Result<()> {
        self.edit_header(place, |header| {
            (header.base, header.pending) = (Some(found), Some(found));
            Ok(())
        })
    }

    /// An announced version does not appear after all.
    pub(crate) fn take_back_announcement(&self, place: &TierObject) -> Result<()> {
        self.edit_header(place, |header| {
            header.pending = None;
            Ok(())
        })
    }

    /// As [`Residency::announce_version`], of one that has none of the object's bytes, under the name of a
    /// file that was written and is still open, or is taken over there: durably, or the object would be taken
    /// for older than that after a power cut.
    pub(crate) fn announce_theirs(&self, ino: Ino, version: Fingerprint) -> Result<()> {
        if !self.is_unsettled(ino) {
            return Ok(());
        }
        let file = self.files.get(ino);
        self.load(&Context::DAEMON, &file)?;
        self.write_again(&file)?;
        let location = file.location.read();
        let Some(place) = &location.place else { return Ok(()) };
        self.edit_header(place, |header| {
            header.pending = Some(version);
            Ok(())
        })?;
        self.sync_object(&file, place, false)
    }

    /// The version that a copy equals was given other times by a worker: the copy is of the version that is
    /// there now.
    pub(crate) fn copy_has_other_times(
        &self,
        file: &File,
        before: &Fingerprint,
        after: Fingerprint,
    ) -> Result<()> {
        self.load(&Context::DAEMON, file)?;
        let location = file.location.read();
        let Some(place) = &location.place else { return Ok(()) };
        self.edit_header(place, |header| {
            if let Some(base) = header.base.filter(|base| base.same_content(before)) {
                header.base = Some(Fingerprint { edition: base.edition, ..after });
            }
            Ok(())
        })
    }

    /// The header of a dirty object has the path that its file has now.
    pub(crate) fn follow_path(&self, ino: Ino) -> Result<()> {
        if !self.is_unsettled(ino) {
            return Ok(());
        }
        let file = self.files.get(ino);
        self.load(&Context::DAEMON, &file)?;
        let location = file.location.read();
        let Some(place) = &location.place else { return Ok(()) };
        let record = self.meta.get(ino)?;
        if record.links.is_empty() {
            return Ok(());
        }
        let Header { path, path_truncated, .. } = self.header_for(&record, false, true);
        if place.object.header()?.path == path {
            return Ok(());
        }
        self.edit_header(place, |header| {
            (header.path, header.path_truncated) = (path, path_truncated);
            Ok(())
        })
    }

    /// Whether nobody has written a file since its count of writes was this, and nobody can. The caller has the
    /// location in hand.
    pub(crate) fn is_quiet(&self, file: &File, place: &TierObject, seen: u64) -> bool {
        file.writes.load(Ordering::Acquire) == seen
            && file.opens.lock().writers == 0
            && !self.maybe_stored_into(file, place)
    }

    /// A version of a file is durable in the backing store. The file is clean if it is as it was published:
    /// `quiet` is its count of writes then. Whether it is. The caller has the location for itself.
    pub(crate) fn become_published(
        &self,
        file: &File,
        location: &DataLocation,
        version: Fingerprint,
        quiet: Option<u64>,
    ) -> Result<bool> {
        let Some(place) = &location.place else { return Ok(false) };
        if !quiet.is_some_and(|seen| self.is_quiet(file, place, seen)) {
            self.edit_header(place, |header| {
                (header.base, header.pending) = (Some(version), None);
                Ok(())
            })?;
            return Ok(false);
        }
        while let Some(flush) = place.take_changed(u64::MAX) {
            place.changed_copied(flush, Ok(()))?;
        }
        if let Some(presence) = &place.presence {
            presence.write().rebase()?;
        }
        self.settle_before_clean(file, place)?;
        self.mark_clean(file, place, Some(version))?;
        self.drop_useless_spill(file, location);
        Ok(true)
    }

    /// What was spilled is in the backing store's file now: what the tier lacks is read from there.
    pub(crate) fn spill_published(
        &self,
        file: &FileRef,
        location: &mut DataLocation,
        version: Fingerprint,
    ) -> Result<()> {
        let Underlay::Spill(spill) = &location.base else { return Ok(()) };
        let spill = spill.clone();
        // Whoever goes on to write needs the rest of it even if others take it away at once.
        let published = spill.file().clone();
        let is_it = published.stat()?.fingerprint().same_inode(&version);
        location.base = Underlay::Backing(Mutex::new(is_it.then_some(published)));
        if let Some(place) = &location.place {
            self.edit_header(place, |header| {
                header.spilled = false;
                header.base = Some(version);
                Ok(())
            })?;
        }
        self.let_go_of_spill(file.ino)?;
        // Not left to the report of the worker: from here on nothing but this record knows it.
        let one_at_a_time = file.times.lock();
        if location.place.is_some() {
            self.meta.note_written(file.ino, |record| {
                record.spilled = false;
                record.backing.fingerprint = Some(version);
            })?;
        } else {
            let (size, mtime) = spill.size_and_mtime();
            self.meta.update(file.ino, None, |record| {
                record_written_back(record);
                record.backing.attrs_differ |= mtime != version.mtime;
                (record.attr.size, record.attr.mtime) = (size, mtime);
                record.backing.fingerprint = Some(version);
                Queue::Yes
            })?;
        }
        drop(one_at_a_time);
        self.note_spill_due(file.ino);
        Ok(())
    }

    /// Whether a file is in the backing store, may be changed there, and has no byte elsewhere.
    pub(crate) fn is_below_alone(&self, location: &DataLocation, record: &Record) -> bool {
        location.place.is_none()
            && matches!(location.base, Underlay::Backing(_))
            && !self.is_unsettled(record.ino)
            && !record.differs()
            && !record.links.is_empty()
            && record.backing.fingerprint.is_some_and(|known| known.size == record.attr.size)
            && self.peers.may_write_below()
    }

    /// Such a file was cut there, durably, and is as `found` now.
    pub(crate) fn was_cut_below(
        &self,
        ino: Ino,
        location: &mut DataLocation,
        found: &Attributes,
    ) -> Result<()> {
        self.meta.update(ino, Some(clock::wall_time()), |record| {
            record.attr.size = found.size;
            record.attr.mtime = found.mtime;
            record.backing.fingerprint = Some(found.fingerprint());
            Queue::No
        })?;
        location.base = Underlay::backing();
        Ok(())
    }
}
