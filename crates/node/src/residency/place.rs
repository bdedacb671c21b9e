//! A place for what is written to a file that no tier has: an object is begun for it.

use forebay_store::Header;
use forebay_types::Ino;

use crate::error::Result;
use crate::residency::Residency;
use crate::residency::data::BLOCK;
use crate::residency::data_location::{Charge, DataLocation, TierObject, Underlay};
use crate::residency::files::FileRef;
use crate::residency::spill::is_no_room;

/// An object is begun on a tier only if this much can be charged at once: a block for its header,
/// where the file system keeps that outside the inode, and one for its first bytes.
const BEGIN: u64 = 2 * BLOCK;

impl Residency {
    /// Gives a file without bytes an object on the fastest tier that has room; says whether one
    /// had.
    pub(crate) fn ensure_place(&self, file: &FileRef) -> Result<bool> {
        // A fetch under way makes an object of the same name.
        let Some(_alone) = file.fetching.try_lock() else { return Ok(false) };
        let mut location = file.location.write();
        if location.place.is_some() {
            return Ok(true);
        }
        if !self.begins_empty(file.ino, &location)? {
            return Ok(false);
        }
        for (index, slot) in self.tiers.iter().enumerate() {
            let tier = u8::try_from(index).unwrap_or(u8::MAX);
            if !self.take_room(tier, BEGIN) {
                continue;
            }
            // As it is now: a version may be about to appear, or have appeared while room was made. One
            // that the object does not know as its own counts as newer after a power cut.
            let now = self.meta.get(file.ino)?;
            let pending = now.backing.pending;
            let header = Header { pending, ..self.header_for(&now, true, true) };
            let object = match self.create_object(tier, file.ino.0, &header) {
                Ok(object) => object,
                Err(error) => {
                    slot.room.give(BEGIN);
                    let failed = matches!(&error, crate::error::NodeError::Store(error)
                        if self.is_tiers_failure(tier, error));
                    self.give_up_object(tier, file.ino)?;
                    // Nor does one that keeps an older object of the file take a new one.
                    let kept = self.is_known_left_behind(index, file.ino, None);
                    if is_no_room(&error) || failed || kept {
                        continue;
                    }
                    return Err(error);
                }
            };
            let charge = Charge::new(BEGIN, BLOCK);
            let place = TierObject::new(tier, object, None, charge, true);
            self.set_resident(file.ino, &place);
            self.announce_resident(file.ino, &place);
            (location.place, location.base) = (Some(place), Underlay::Zeros);
            return Ok(true);
        }
        Ok(false)
    }

    /// Whether the bytes of a file without an object are zeros, so that an object can be begun without
    /// the backing store: the file is new, or was empty there when it was last looked at.
    pub(crate) fn begins_empty(&self, ino: Ino, location: &DataLocation) -> Result<bool> {
        Ok(match location.base {
            Underlay::Zeros => true,
            Underlay::Spill(_) => false,
            Underlay::Backing(_) => {
                let record = self.meta.get(ino)?;
                let empty = record.backing.fingerprint.is_some_and(|there| there.size == 0);
                empty && !record.is_dirty() && !record.spilled
            }
        })
    }

    /// The same for any file, after room was made: of one that the backing store has bytes of, the object
    /// gets what is written and the rest of those extents, as if there had been room for it when it was
    /// opened.
    pub(crate) fn ensure_place_in_made_room(&self, file: &FileRef) -> Result<()> {
        drop(file.fetching.lock());
        if self.ensure_place(file)? {
            return Ok(());
        }
        for tier in 0..self.tiers.len() {
            let tier = u8::try_from(tier).unwrap_or(u8::MAX);
            let begun = self.begin_partial_on(file, tier);
            self.pass_by_failed(tier, begun)?;
            if file.location.read().place.is_some() {
                break;
            }
        }
        Ok(())
    }
}
