//! What changes a file in hand on its tier: writes, holes, its length. Each marks the file dirty before it
//! changes a byte, in the header and in the map, so that a death among them never makes of a changed
//! object a clean one.

use std::ops::Range;
use std::sync::atomic::Ordering;

use forebay_meta::{Queue, Record};
use forebay_store::{AllocateMode, ErrorClass, Presence};
use forebay_types::{Ino, Timestamp};

use crate::clock;
use crate::error::Result;
use crate::failpoints::fail_at;
use crate::residency::Residency;
use crate::residency::data::BLOCK;
use crate::residency::data_location::{DataLocation, TierObject, Underlay};
use crate::residency::files::{File, FileRef};
use crate::residency::room::write_all;

impl Residency {
    /// Writes into an object whose extents are all there, if its tier has the room.
    pub(crate) fn write_placed(
        &self,
        file: &File,
        place: &TierObject,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<usize>> {
        let end = offset + data.len() as u64;
        if !self.pay(place, offset, end) {
            return Ok(None);
        }
        self.mark_dirty(file, place)?;
        // Before the bytes, should the daemon die among them, and after them: a flush that copies
        // at the same time may have missed them.
        let mark = || -> Result<()> {
            file.count_write_from(offset);
            match &place.presence {
                Some(presence) => Ok(presence.write().mark_dirty(offset..end)?),
                None => Ok(()),
            }
        };
        mark()?;
        fail_at!("node.write.marked");
        let written = write_all(&*place.object, data, offset);
        mark()?;
        written
    }

    /// Makes a hole in an object whose edges are all there, and the object longer if that is asked for.
    pub(crate) fn punch(
        &self,
        file: &File,
        place: &TierObject,
        hole: Range<u64>,
        longer: Option<u64>,
    ) -> Result<()> {
        self.mark_dirty(file, place)?;
        self.note_cut(place, hole.start)?;
        if let Some(len) = longer {
            place.object.set_len(len)?;
        }
        if !hole.is_empty() {
            if let Some(presence) = &place.presence {
                presence.write().mark_dirty(hole.clone())?;
            }
            place.object.punch(hole.start, hole.end - hole.start)?;
        }
        Ok(())
    }

    /// Whether the tier has given a range its room. The caller has the location for itself.
    pub(crate) fn allocate_on_tier(
        &self,
        file: &FileRef,
        location: &DataLocation,
        Range { start: offset, end }: Range<u64>,
        keep: bool,
    ) -> Result<bool> {
        let whole = location.place.as_ref().filter(|place| place.is_marked_whole());
        let Some(place) = whole else { return Ok(false) };
        let wanted = place.charge.unpaid(offset..end);
        if wanted == 0 || !self.take_room(place.tier, wanted) {
            return Ok(false);
        }
        place.charge.bytes.fetch_add(wanted, Ordering::AcqRel);
        file.count_write();
        let mode = if keep { AllocateMode::KeepSize } else { AllocateMode::Extend };
        let marked = self.mark_dirty(file, place);
        let allocated = marked.map(|()| place.object.allocate(offset, end - offset, mode));
        // It may have had blocks of the range before, and has got none if that failed.
        self.true_up(file, place)?;
        match allocated? {
            Ok(()) => {
                if offset <= place.charge.paid_end.load(Ordering::Acquire) {
                    place.charge.paid_end.fetch_max(end.next_multiple_of(BLOCK), Ordering::AcqRel);
                }
                Ok(true)
            }
            Err(error)
                if matches!(error.class(), ErrorClass::NoSpace | ErrorClass::Unsupported) =>
            {
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A record never says more than there is: it comes first where the file becomes shorter, and last
    /// where it becomes longer. So bytes that are missing after the death of a daemon are a damage.
    ///
    /// Nor does a record say that a file is dirty before there is something that it is dirty for: one that
    /// no tier has room for gets its spill file first.
    pub(crate) fn change_length(
        &self,
        file: &FileRef,
        location: &mut DataLocation,
        size: u64,
    ) -> Result<()> {
        let ino = file.ino;
        let now = clock::wall_time();
        let before = self.meta.get(ino)?;
        let shrinks = size < before.attr.size;
        if shrinks {
            if size > 0 && location.place.is_none() {
                self.ensure_spill(file, location)?;
            }
            self.record_length(ino, size, now)?;
        }
        let changed = self.change_bytes(file, location, size, now).and_then(|()| match shrinks {
            true => Ok(()),
            false => self.record_length(ino, size, now),
        });
        if changed.is_err() {
            self.take_back_length(location, &before);
        }
        changed
    }

    fn change_bytes(
        &self,
        file: &FileRef,
        location: &mut DataLocation,
        size: u64,
        now: Timestamp,
    ) -> Result<()> {
        if size == 0 {
            self.empty(file, location)?;
        } else {
            self.resize(file, location, size)?;
        }
        if let Some(place) = &location.place {
            place.object.set_times(None, Some(now))?;
        }
        Ok(())
    }

    /// With the file in hand: what is written and published after this has the last word.
    fn record_length(&self, ino: Ino, size: u64, now: Timestamp) -> Result<()> {
        fail_at!("node.truncate.before_record");
        self.meta.update(ino, Some(now), |record| {
            record.attr.size = size;
            record.attr.mtime = now;
            record.mark_dirty();
            Queue::Yes
        })?;
        Ok(())
    }

    /// After a failure the record says what there is.
    fn take_back_length(&self, location: &DataLocation, before: &Record) {
        let (len, dirty) = match (&location.place, &location.base) {
            (Some(place), _) => (place.object.len().ok(), place.is_dirty()),
            (None, Underlay::Spill(spill)) => (Some(spill.size_and_mtime().0), true),
            (None, _) => (None, false),
        };
        let put_back = self.meta.update(before.ino, None, |record| {
            record.attr.size = len.unwrap_or(before.attr.size);
            if dirty || before.is_dirty() {
                record.mark_dirty();
            } else {
                record.mark_clean();
                record.attr.mtime = before.attr.mtime;
            }
            Queue::Yes
        });
        if let Err(error) = put_back {
            tracing::warn!(
                ino = %before.ino,
                %error,
                "a file's length could not be changed, and its record can't be set back: `stat` \
                 may show the new length. Check it, and set it again"
            );
        }
    }

    /// Nothing is left: no extent, no base. But of a file that has nothing else a spill file of which a
    /// program was told stays, empty: what the backing store has is older.
    fn empty(&self, file: &FileRef, location: &mut DataLocation) -> Result<()> {
        let spill = match &location.base {
            Underlay::Spill(spill) => Some(spill.clone()),
            Underlay::Backing(_) | Underlay::Zeros => None,
        };
        if let Some(place) = &mut location.place {
            // Cut first: what is cut need not be durable before the object counts. Should the daemon
            // die now, a clean copy of another length is none.
            self.note_syncs_before_emptying(place)?;
            place.object.set_len(0)?;
            if let Err(error) = self.mark_dirty(file, place) {
                if !place.is_dirty() {
                    let given_up = self.give_up_object(place.tier, file.ino);
                    // It has another length than its version: to a start it is no copy, wherever it is.
                    self.forget_resident(file.ino, location.place.take().as_ref());
                    given_up?;
                }
                return Err(error);
            }
            self.note_emptied(place)?;
            self.mark_emptied_whole(file, place)?;
            self.true_up(file, place)?;
        }
        if let Some(spill) = spill {
            match &location.place {
                None if spill.is_acknowledged() => return spill.set_len(0),
                None => {}
                Some(place) => {
                    self.settle_emptied(file.ino, place, spill.is_acknowledged())?;
                }
            }
            fail_at!("node.truncate.emptied");
            self.let_go_of_emptied_spill(file.ino, None)?;
        }
        location.base = Underlay::Zeros;
        Ok(())
    }

    /// An emptied object lacks nothing. Its map is kept up to date until the header says so, and goes only
    /// then: should that fail, the next start goes by the map.
    fn mark_emptied_whole(&self, file: &File, place: &mut TierObject) -> Result<()> {
        match &place.presence {
            Some(presence) => presence.write().set_len(0)?,
            None if place.object.header()?.whole => return Ok(()),
            None => {}
        }
        self.edit_header(place, |header| {
            (header.whole, header.spilled) = (true, false);
            Ok(())
        })?;
        self.let_go_of_map(file, place);
        Ok(())
    }

    /// The header of an object says that it has all bytes. From here on no map counts, whether or not the
    /// tier lets it go: to go on with it, and to punch holes into an object that says that it has none, would
    /// make zeros of them.
    ///
    /// Of a file that was synced it goes when that header is durable: a power cut may undo the one and not
    /// the other, and nothing would tell then what the object has.
    pub(super) fn let_go_of_map(&self, file: &File, place: &mut TierObject) {
        let counts = place.object.header().map_or(true, |header| header.dirty && header.synced);
        let durable = if counts { self.sync_object(file, place, false) } else { Ok(()) };
        let tier = &self.tiers[usize::from(place.tier)].tier;
        if let Err(error) = durable.and_then(|()| Ok(tier.remove_map(file.ino.0)?)) {
            tracing::debug!(ino = %file.ino, %error, "a map that nobody needs stays");
        }
        place.presence = None;
    }

    /// Of an emptied file a spill file does not count any more.
    pub(super) fn let_go_of_emptied_spill(
        &self,
        ino: Ino,
        changed: Option<Timestamp>,
    ) -> Result<()> {
        self.let_go_of_spill(ino)?;
        // Also the length: without the spill file, an older version would show.
        self.meta.update(ino, changed, |record| {
            (record.spilled, record.attr.size) = (false, 0);
            record.mark_dirty();
            Queue::Yes
        })?;
        self.drop_spill_soon(ino);
        Ok(())
    }

    pub(crate) fn resize(
        &self,
        file: &FileRef,
        location: &mut DataLocation,
        size: u64,
    ) -> Result<()> {
        let Some(place) = &mut location.place else {
            // No tier has room for it.
            return self.ensure_spill(file, location)?.set_len(size);
        };
        self.mark_dirty(file, place)?;
        let map = place.presence.as_ref().map_or(0, |presence| {
            let presence = presence.read();
            Presence::sidecar_bytes_for(presence.extent_size(), size.max(presence.size()))
                - presence.sidecar_bytes()
        });
        if !self.take_room(place.tier, map) {
            let spill = self.ensure_spill(file, location)?;
            self.evacuate(file, location, &spill)?;
            return spill.set_len(size);
        }
        place.charge.bytes.fetch_add(map, Ordering::AcqRel);
        let before = place.object.len()?;
        if size < before {
            self.note_cut(place, size)?;
        }
        // The object first: a restart cuts the map to it, and what the map forgets too early would
        // read as zeros.
        place.object.set_len(size)?;
        fail_at!("node.truncate.object_cut");
        if let Some(presence) = &place.presence {
            presence.write().set_len(size)?;
        }
        if size < before {
            self.true_up(file, place)?;
        }
        Ok(())
    }
}
