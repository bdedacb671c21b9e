//! Syncs that failed: the kernel does not write again what it could not write, and confirms the next sync
//! of the same file whatever became of it.
//!
//! So a file of which a sync failed is remembered, whether it is in use or not, also by the next daemon
//! until the machine restarts; after that what is read is what the device has. Before the next sync all
//! that the file has here is written again, as it is read then: a sync that succeeds means that what is
//! read is on the device. Where that can't be done the sync fails again.
//!
//! No sync is confirmed after one that failed before all was written again, also past the last
//! close and the end of a daemon; and whatever is called clean was synced so
//! (`tests/failed_sync.rs`, `crates/forebay/tests/failing_disk.rs`).

use std::collections::HashSet;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_store::{Object, Presence, StoreError};
use forebay_types::Ino;
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;

use crate::error::{NodeError, Result};
use crate::residency::Residency;
use crate::residency::data_location::{TierObject, Underlay};
use crate::residency::files::File;
use crate::residency::overlay::Spill;
use crate::residency::synced::is_same_boot;
use crate::state_files;

/// Where a state directory notes them: eight bytes for each. What the kernel has of it survives a daemon,
/// and nothing has to survive the kernel.
const NOTE: &str = "failed-syncs";
/// A note that has grown so much longer than what it has to say is written anew.
const SLACK: u64 = 64 << 10;

/// The files of which a sync failed that was not made good yet: at most one number for each object and
/// each spill file.
pub(crate) struct FailedSyncs {
    /// Whether there are any, so that nobody has to take the lock as long as no device fails.
    any: AtomicBool,
    of: Mutex<HashSet<u64>>,
    note: PathBuf,
}

impl FailedSyncs {
    /// With those that an earlier daemon has noted since the machine started.
    ///
    /// # Errors
    /// There is a note that can't be read: without it the next syncs would be confirmed.
    pub(crate) fn load(state_dir: &Path) -> Result<Self> {
        let note = state_dir.join(NOTE);
        let said = match fs::read(&note) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(StoreError::io("read", &note, error).into()),
            Ok(_) if !is_same_boot(state_dir) => Vec::new(),
            Ok(said) => said,
        };
        let (numbers, _) = said.as_chunks::<8>();
        let of: HashSet<u64> = numbers.iter().map(|number| u64::from_le_bytes(*number)).collect();
        let failed = FailedSyncs { any: (!of.is_empty()).into(), of: Mutex::new(of), note };
        if failed.any.load(Ordering::Relaxed) || failed.note.exists() {
            failed.write_note(&failed.of.lock());
        }
        Ok(failed)
    }

    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.any.load(Ordering::Acquire) && self.of.lock().contains(&ino.0)
    }

    /// A sync of something that a file has here has failed.
    pub(crate) fn remember(&self, ino: Ino) {
        let mut of = self.of.lock();
        self.any.store(true, Ordering::Release);
        if !of.insert(ino.0) {
            return;
        }
        let long = 8 * of.len() as u64 + SLACK;
        let appended = fs::OpenOptions::new().create(true).append(true).open(&self.note).and_then(
            |mut note| {
                note.write_all(&ino.0.to_le_bytes())?;
                Ok(note.metadata()?.len())
            },
        );
        match appended {
            Ok(len) if len > long => self.write_note(&of),
            Ok(_) => {}
            Err(error) => tracing::warn!(%ino, %error, "can't note that a sync failed"),
        }
    }

    /// All that the file has is going to be written again, or is gone.
    pub(crate) fn forget(&self, ino: Ino) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut of = self.of.lock();
        // Of others the note says too much until it is written anew: they are written again once more.
        if of.remove(&ino.0) && of.is_empty() {
            self.any.store(false, Ordering::Release);
            self.write_note(&of);
        }
    }

    fn write_note(&self, of: &HashSet<u64>) {
        let text: Vec<u8> = of.iter().flat_map(|ino| ino.to_le_bytes()).collect();
        let dir = self.note.parent().unwrap_or(Path::new(""));
        // Who dies here, or has no room, leaves the one that was there.
        let written = match text.is_empty() {
            true => fs::remove_file(&self.note),
            false => state_files::replace(dir, NOTE, &text),
        };
        if let Err(error) = written {
            tracing::debug!(%error, "can't note which syncs failed");
        }
    }
}

impl Residency {
    /// Carries out a sync of something that a file has here. A failure is remembered; while one is, no
    /// sync of the file succeeds.
    ///
    /// It waits for other syncs of the file: whoever needs its map of extents as well locks that before, as
    /// `sync` must not wait for it.
    pub(crate) fn heeding(
        &self,
        file: &File,
        sync: impl FnOnce() -> forebay_store::Result<()>,
    ) -> Result<()> {
        {
            let _under_way = file.syncing.read();
            sync().inspect_err(|_| self.failed_syncs.remember(file.ino))?;
        }
        if file.syncing.is_locked() {
            // The kernel tells a failure once: another one may have been told of what this one waited for.
            drop(file.syncing.write());
        }
        self.refuse_after_failed_sync(file.ino)
    }

    fn refuse_after_failed_sync(&self, ino: Ino) -> Result<()> {
        if self.failed_syncs.has(ino) { Err(NodeError::Posix(Errno::IO)) } else { Ok(()) }
    }

    /// Makes the bytes of an object durable.
    pub(crate) fn sync_object(
        &self,
        file: &File,
        place: &TierObject,
        data_only: bool,
    ) -> Result<()> {
        self.heeding(file, || place.object.sync(data_only))
    }

    /// Makes a part durable, and what says which part it is. Who reads or writes the file meanwhile is not
    /// held up: nothing waits for the device with the map in hand.
    pub(crate) fn sync_part(
        &self,
        file: &File,
        presence: &RwLock<Presence>,
        object: &dyn Object,
        data_only: bool,
    ) -> Result<()> {
        let _one_at_a_time = file.part_syncs.lock();
        presence.write().begin_sync();
        let synced = self.heeding(file, || object.sync(data_only));
        if synced.is_err() {
            presence.write().abort_sync();
            return synced;
        }
        let map = presence.write().finish_sync();
        self.heeding(file, || map?.sync())
    }

    /// Makes a spill file durable.
    pub(crate) fn sync_spill(&self, file: &File, spill: &Spill, data_only: bool) -> Result<()> {
        self.heeding(file, || spill.sync(data_only))
    }

    /// If a sync of a file has failed: has the next one write all that the file has here. The caller has
    /// no part of the file in hand.
    pub(crate) fn write_again(&self, file: &File) -> Result<()> {
        if !self.failed_syncs.has(file.ino) {
            return Ok(());
        }
        let location = file.location.write();
        let spill = match &location.base {
            Underlay::Spill(spill) => Some(&**spill),
            Underlay::Backing(_) | Underlay::Zeros => None,
        };
        self.write_parts_again(file, location.place.as_ref(), spill)
    }

    /// As [`Residency::write_again`], of a file that the caller has for itself: its object, and its spill
    /// file.
    pub(crate) fn write_parts_again(
        &self,
        file: &File,
        place: Option<&TierObject>,
        spill: Option<&Spill>,
    ) -> Result<()> {
        if !self.failed_syncs.has(file.ino) {
            return Ok(());
        }
        let by_kernel = {
            let opens = file.opens.lock();
            opens.writers > 0 && opens.passes_to_object()
        };
        let mut presence = place.and_then(|place| place.presence.as_ref()).map(RwLock::write);
        // A sync that fails meanwhile is of another time.
        let _none_under_way = file.syncing.write();
        if let Some(place) = place {
            let alone = !by_kernel && !self.maybe_stored_into(file, place);
            let _one_at_a_time = file.times.lock();
            Self::write_object_again(place, alone)?;
        }
        if let Some(presence) = &mut presence {
            presence.save_all()?;
        }
        if let Some(spill) = spill {
            spill.write_again()?;
        }
        self.failed_syncs.forget(file.ino);
        tracing::info!(ino = %file.ino, "a sync failed: all of the file is written again");
        Ok(())
    }

    /// As [`Residency::write_again`], of a whole object that is clean: nobody can write before it is
    /// marked as dirty, for which the caller holds what that takes.
    pub(crate) fn write_clean_again(&self, file: &File, place: &TierObject) -> Result<()> {
        if !self.failed_syncs.has(file.ino) {
            return Ok(());
        }
        let mut presence = place.presence.as_ref().map(RwLock::write);
        let _none_under_way = file.syncing.write();
        let alone = !self.maybe_stored_into(file, place);
        Self::write_object_again(place, alone)?;
        if let Some(presence) = &mut presence {
            presence.save_all()?;
        }
        self.failed_syncs.forget(file.ino);
        Ok(())
    }

    fn write_object_again(place: &TierObject, alone: bool) -> Result<()> {
        let mtime = place.object.stat()?.mtime;
        forebay_store::write_again(&*place.object, alone)?;
        if alone {
            // Of a writer beside this one nobody can tell which time is his.
            place.object.set_times(None, Some(mtime))?;
        }
        Ok(())
    }
}
