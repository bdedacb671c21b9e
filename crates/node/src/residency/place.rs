//! A place for what is written to a file that no tier has: an object is begun for it, or a spill file gets
//! its first blocks.

use std::iter;
use std::ops::Range;

use forebay_store::{AllocateMode, ErrorClass, Header, Presence};
use forebay_types::Ino;

use crate::error::Result;
use crate::residency::Residency;
use crate::residency::charge::STEP;
use crate::residency::data::BLOCK;
use crate::residency::data_location::{Charge, DataLocation, TierObject, Underlay};
use crate::residency::files::{File, FileRef};
use crate::residency::overlay::Spill;
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
            if !self.take_room_for_file(tier, BEGIN) {
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
        if file.location.read().place.is_some() {
            return Ok(());
        }
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

    /// On which tier a write needs room, and how much it may be; none if that would not help. `begins`: an
    /// object is begun for it then, also of a file that the backing store has bytes of.
    pub(super) fn room_to_write(
        &self,
        file: &File,
        location: &DataLocation,
        Range { start: offset, end }: Range<u64>,
        begins: bool,
    ) -> Result<Option<(u8, u64)>> {
        let extent = self.config.extent_bytes;
        let bytes = end.next_multiple_of(BLOCK) - offset / BLOCK * BLOCK;
        if let Some(place) = &location.place {
            let mut edges = Vec::new();
            let mut map = 0;
            if let Some(presence) = &place.presence {
                let presence = presence.read();
                presence.fill_before_write(offset..end, &mut edges);
                let grown = Presence::sidecar_bytes_for(extent, end.max(presence.size()));
                map = grown.saturating_sub(presence.sidecar_bytes());
            }
            let edges = edges.iter().map(|run| (run.end - run.start).next_multiple_of(BLOCK));
            return Ok(Some((place.tier, bytes + map + edges.sum::<u64>())));
        }
        let begins_empty = self.begins_empty(file.ino, location)?;
        if location.is_spilled() || !(begins_empty || begins) {
            return Ok(None);
        }
        let size = self.meta.get(file.ino)?.attr.size;
        let most = (2 * extent).min(size.next_multiple_of(BLOCK));
        let edges = if begins_empty { 0 } else { most };
        let map = Presence::sidecar_bytes_for(extent, size.max(end));
        Ok(Some((0, bytes + edges + map + 2 * BLOCK)))
    }

    /// Whether `bytes` may be charged to a tier now.
    pub(super) fn has_room(&self, tier: u8, bytes: u64) -> bool {
        !self.tier_has_failed(tier) && self.free_on(tier) >= bytes
    }

    /// Makes room for a write, and if that is possible for those that follow it.
    pub(super) fn make_room_to_write(&self, tier: u8, need: u64) -> bool {
        self.free_room(tier, need + STEP) || self.free_room(tier, need)
    }

    /// Gives a new spill file the blocks for the first byte of a write, with what is brought in beside it, and
    /// for what moves there from the tier. Where the store can't say whether it has them, the write will.
    pub(super) fn reserve(
        &self,
        spill: &Spill,
        location: &DataLocation,
        Range { start: offset, end }: Range<u64>,
    ) -> Result<()> {
        let extent = self.config.extent_bytes;
        let is_laid_over = spill.with_map(|map| map.is_some());
        let unit = if is_laid_over { extent } else { BLOCK };
        let first = offset - offset % unit;
        let mut parts: Vec<Range<u64>> = iter::once(first..first + unit).collect();
        if let Some(place) = &location.place {
            let size = place.object.len()?;
            let map = Presence::sidecar_bytes_for(extent, size);
            // All of it where the tier has not even room for a map.
            let moves = match place.presence.is_some() || self.has_room(place.tier, map) {
                true => {
                    (offset - offset % extent).min(size)..end.next_multiple_of(extent).min(size)
                }
                false => 0..size,
            };
            let mut at = moves.start;
            let absent = place.absent(moves.clone());
            for run in absent.into_iter().chain(iter::once(moves.end..moves.end)) {
                parts.push(at..run.start);
                at = run.end;
            }
        }
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let len = part.end - part.start;
            match spill.file().allocate(part.start, len, AllocateMode::KeepSize) {
                Err(error) if error.class() == ErrorClass::NoSpace => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}
