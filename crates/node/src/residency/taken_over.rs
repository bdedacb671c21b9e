//! Files whose bytes change hands: another node has a newer version or has taken the file, this one takes a file
//! over, or a daemon takes over from another one.

use std::path::{Path, PathBuf};

use forebay_core::steward::Event;
use forebay_core::unit;
use forebay_meta::Record;
use forebay_store::ErrorClass;
use forebay_types::{Ino, Timestamp};
use rustix::io::Errno;

use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::residency::Residency;
use crate::residency::data_location::{DataLocation, TierObject, Underlay};
use crate::residency::files::File;
use crate::residency::residents::Resident;

/// The change time of an object that an interrupted worker of ours may have moved. No version has it:
/// copies are fetched again.
pub(crate) const UNKNOWN: Timestamp = Timestamp::new(0, 0);

impl Residency {
    /// Whether a file has anything here that the backing store lacks, or a place for it. The caller has the
    /// location in hand.
    pub(crate) fn is_changed_here(&self, ino: Ino, location: &DataLocation) -> bool {
        location.place().is_some_and(TierObject::is_dirty)
            || location.is_spilled()
            || self.is_unsettled(ino)
    }

    /// Drops the clean copy of a file, and where its bytes were read: programs that have it open go on with
    /// the version that counts now. The caller has seen that nothing is changed here.
    pub(crate) fn forget_copy(&self, file: &File, location: &mut DataLocation) -> Result<()> {
        if let Some(resident) = self.residents.get(file.ino.0) {
            self.give_up_object(resident.tier, file.ino)?;
            self.forget_resident(file.ino, location.place.take().as_ref());
        }
        if std::mem::take(&mut location.loaded) {
            self.look_up(file, location)?;
        }
        Ok(())
    }

    /// What a file has on a tier does not count any more. A clean copy goes; what is dirty may be the only copy
    /// of what was written here, and is moved by `aside`, which is told the tier and says where it is now.
    pub(crate) fn make_way(
        &self,
        file: &File,
        location: &mut DataLocation,
        aside: impl FnOnce(u8) -> Result<PathBuf>,
    ) -> Result<Option<PathBuf>> {
        let place = location.place.take();
        (location.base, location.loaded) = (Underlay::backing(), false);
        let Some(resident) = self.residents.get(file.ino.0) else { return Ok(None) };
        let kept = match resident.dirty {
            true => Some(aside(resident.tier)?),
            false => self.give_up_object(resident.tier, file.ino).map(|()| None)?,
        };
        self.forget_resident(file.ino, place.as_ref());
        Ok(kept)
    }

    /// A file at `path` on a tier, for which `charged` bytes are charged, has all bytes of a file that this node
    /// has taken over, and becomes its object.
    pub(crate) fn adopt_object(
        &self,
        record: &Record,
        tier: u8,
        path: &Path,
        charged: u64,
    ) -> Result<Resident> {
        let (ino, slot) = (record.ino, &self.tiers[usize::from(tier)]);
        self.clear_left_behind(tier, ino)?;
        self.keep_out_left_behind(ino)?;
        let object = slot.tier.adopt(ino.0, path, &self.header_for(record, true, true))?;
        object.set_times(None, Some(record.attr.mtime))?;
        slot.tier.sync_dir(ino.0)?;
        let real = object.allocated_bytes()?;
        match real > charged {
            true => slot.room.force(real - charged),
            false => slot.room.give(charged - real),
        }
        let resident = Resident { tier, whole: true, dirty: true, charged: real };
        self.enter(ino, resident);
        Ok(resident)
    }

    /// The backing store has lost the version of a file that its copy equals, and the file stays: a copy of all
    /// of it counts from here on, as if it had been written here. Whether there is one; none of another version than
    /// `record` knows, and none on a tier that can't say so: those who wait for the file learn that it is lost.
    pub(crate) fn whole_copy_counts(&self, record: &Record) -> Result<bool> {
        let resident = self.residents.get(record.ino.0);
        if !resident.is_some_and(|it| it.whole) || !self.peers.may_have_written(record) {
            return Ok(false);
        }
        let file = self.files.get(record.ino);
        let is_dirty = resident.is_some_and(|it| it.dirty);
        match self.load(&Context::DAEMON, &file) {
            Err(error) if !is_dirty => return self.copy_is_unusable(record.ino, error),
            loaded => loaded?,
        }
        let location = file.location.read();
        let whole = location.place.as_ref().filter(|place| place.is_marked_whole());
        let Some(place) = whole else { return Ok(false) };
        if !place.is_dirty() {
            match self.clean_copy_counts(&file, place, record) {
                Ok(true) => {}
                Err(error) if !place.is_dirty() => {
                    drop(location);
                    return self.copy_is_unusable(record.ino, error);
                }
                counts => return counts,
            }
        }
        let _one_at_a_time = file.times.lock();
        let stat = place.object.stat()?;
        self.record_written(record.ino, stat.size, stat.mtime)?;
        Ok(true)
    }

    /// The tier can't make a copy the only one: it is set aside, as nothing else has these bytes. What passes, or
    /// says nothing of the copy, is no reason for that: it is tried again.
    fn copy_is_unusable(&self, ino: Ino, error: NodeError) -> Result<bool> {
        let is_for_good = match &error {
            NodeError::Store(error) => {
                let is_refusal = matches!(error.class(), ErrorClass::NoSpace | ErrorClass::Denied);
                !error.is_no_answer() && !is_refusal
            }
            NodeError::Posix(errno) => *errno == Errno::IO,
            _ => false,
        };
        let file = self.files.get(ino);
        let mut location = file.location.write();
        if !is_for_good || file.is_open() {
            return Err(error);
        }
        if let Some(resident) = self.residents.get(ino.0) {
            if resident.dirty {
                // Written meanwhile.
                return Err(error);
            }
            let place = location.place.take();
            location.base = Underlay::default();
            location.loaded = false;
            let why = format!("others removed its file below, and it can't be used: {error}");
            self.set_object_aside(usize::from(resident.tier), ino, &why);
            // Also if it stays where it is: the next start finds it there, and names it.
            self.forget_resident(ino, place.as_ref());
            drop(location);
            self.count_set_aside();
        }
        Ok(false)
    }

    /// Makes a clean copy count if it is of the version that the record knows. A record that knows of none any
    /// more says nothing against it.
    fn clean_copy_counts(&self, file: &File, place: &TierObject, record: &Record) -> Result<bool> {
        let header = place.object.header()?;
        let is_known = record.backing.fingerprint.is_none_or(|known| {
            known.ctime != UNKNOWN && header.base.is_some_and(|base| base.same_content(&known))
        });
        if !is_known || place.object.len()? != record.attr.size {
            return Ok(false);
        }
        self.follow_record(file, place)?;
        self.mark_dirty(file, place)?;
        Ok(true)
    }

    /// An object that a start has found on its tier, or that another daemon hands on, counts.
    pub(crate) fn found_on_tier(&self, ino: Ino, resident: Resident) {
        self.tiers[usize::from(resident.tier)].room.force(resident.charged);
        self.enter(ino, resident);
    }

    /// The steward's decisions wait until all is read: an object that moves to a tier before that one is
    /// looked at would be taken for the rest of a move.
    fn enter(&self, object: Ino, resident: Resident) {
        self.residents.set(object.0, resident);
        let (tier, bytes) = (unit::Tier(resident.tier), unit::Bytes(resident.charged));
        self.decide_later(Event::Resident { object, tier, bytes });
        if resident.dirty {
            self.decide_later(Event::Dirty { object });
        }
        if self.meta.get(object).is_ok_and(|record| record.pinned) {
            self.decide_later(Event::Pinned { object });
        }
    }

    /// The kernel goes on to read an object by itself for an open that was handed over, and to write it.
    pub(crate) fn take_over_passed(
        &self,
        file: &File,
        place: &TierObject,
        write: bool,
    ) -> Result<()> {
        place.note_passed();
        if write { self.mark_dirty(file, place) } else { Ok(()) }
    }
}
