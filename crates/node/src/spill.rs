//! Writes that no tier has room for: room is made, and where that fails the bytes go to the
//! backing store at once, so that a full tier is never the writer's problem.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_meta::{Queue, Record};
use forebay_store::backing::Access;
use forebay_store::{BackingFile, Bytes, ErrorClass};
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;

use crate::error::{NodeError, Result};
use crate::files::{File, FileRef};
use crate::io::no_room;
use crate::metrics::Source;
use crate::node::Node;
use crate::place::{Base, Charge, Place, Residence};

/// An object is begun on a tier only if this much can be charged at once.
const BEGIN: u64 = 4096;

impl Node {
    /// Gives a file without bytes an object on the fastest tier that has room; says whether one
    /// had.
    pub(crate) fn ensure_place(&self, file: &FileRef, record: &Record) -> Result<bool> {
        let mut residence = file.residence.write();
        if residence.place.is_some() {
            return Ok(true);
        }
        if !matches!(residence.base, Base::Zeros) {
            return Ok(false);
        }
        for (index, slot) in self.tiers.iter().enumerate() {
            if !slot.room.take(BEGIN) {
                continue;
            }
            let header = self.header_for(record, true, true);
            let object = match slot.tier.create(file.ino.0, &header) {
                Ok(object) => object,
                Err(error) if no_room(&error) => {
                    slot.room.give(BEGIN);
                    continue;
                }
                Err(error) => {
                    slot.room.give(BEGIN);
                    return Err(error.into());
                }
            };
            let tier = u8::try_from(index).unwrap_or(u8::MAX);
            let place = Place {
                tier,
                object,
                presence: None,
                charge: Charge::new(BEGIN, BEGIN),
                dirty: true.into(),
                clean_as: Mutex::new(None),
            };
            self.set_resident(file.ino, &place);
            self.announce_resident(file.ino, &place);
            residence.place = Some(place);
            return Ok(true);
        }
        Ok(false)
    }

    /// Writes when the short way was barred: absent extents are fetched or passed over, room is
    /// made, and what still has none goes to the base.
    pub(crate) fn write_the_hard_way(
        &self,
        file: &FileRef,
        offset: u64,
        data: &[u8],
        end: u64,
    ) -> Result<usize> {
        let record = self.meta.get(file.ino)?;
        let tier = file.residence.read().place.as_ref().map_or(0, |place| place.tier);
        for attempt in 0..2 {
            let room_needed = data.len() as u64 + (1 << 20);
            if attempt == 1 && !self.free_room(tier, room_needed) {
                break;
            }
            if file.residence.read().place.is_none() {
                self.ensure_place(file, &record)?;
            }
            let residence = file.residence.write();
            if let Some(place) = &residence.place
                && self.fetch_edges(file, &residence, place, offset, end)?
                && let Some(written) = self.write_exclusively(file, place, offset, data)?
            {
                return Ok(written);
            }
        }
        let mut residence = file.residence.write();
        self.write_around(file, &record, &mut residence, offset, data)
    }

    /// Fetches the absent extents that a write covers only in part. Says whether the write may go
    /// to the object then.
    pub(crate) fn fetch_edges(
        &self,
        file: &File,
        residence: &Residence,
        place: &Place,
        offset: u64,
        end: u64,
    ) -> Result<bool> {
        let Some(presence) = &place.presence else { return Ok(true) };
        let mut runs = Vec::new();
        presence.read().fill_before_write(offset..end, &mut runs);
        let room = &self.tiers[usize::from(place.tier)].room;
        for run in runs {
            let len = run.end - run.start;
            if !room.take(len) {
                return Ok(false);
            }
            place.charge.bytes.fetch_add(len, Ordering::AcqRel);
            let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
            let read = self.read_base(file, &residence.base, run.start, &mut bytes)?;
            bytes[read..].fill(0);
            if write_all(&*place.object, &bytes, run.start)?.is_none() {
                return Ok(false);
            }
            presence.write().mark_clean(run)?;
        }
        Ok(true)
    }

    /// Writes into the object while nobody else touches the file; `None` without room.
    fn write_exclusively(
        &self,
        file: &File,
        place: &Place,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<usize>> {
        let end = offset + data.len() as u64;
        let Some(presence) = &place.presence else {
            if !self.pay(place, offset, end) {
                return Ok(None);
            }
            self.mark_dirty(file, place)?;
            file.count_write();
            return write_all(&*place.object, data, offset);
        };
        // Whole extents are charged: a later write inside them needs no room.
        let mut missing = Vec::new();
        let (extent, size) = {
            let presence = presence.read();
            presence.missing_runs(offset..end, &mut missing);
            (presence.extent_size(), presence.size())
        };
        let absent: u64 = missing.iter().map(|run| run.end - run.start).sum();
        let grown = end.next_multiple_of(extent).saturating_sub(size.next_multiple_of(extent));
        let room = &self.tiers[usize::from(place.tier)].room;
        if !room.take(absent + grown) {
            return Ok(None);
        }
        place.charge.bytes.fetch_add(absent + grown, Ordering::AcqRel);
        self.mark_dirty(file, place)?;
        file.count_write();
        let Some(written) = write_all(&*place.object, data, offset)? else { return Ok(None) };
        presence.write().mark_dirty(offset..end)?;
        Ok(Some(written))
    }

    /// Sends a write past the tiers: to the spill file of a file that the backing store does not
    /// have yet, else to the backing file itself. Extents on the tier that it touches move there
    /// first.
    fn write_around(
        &self,
        file: &FileRef,
        record: &Arc<Record>,
        residence: &mut Residence,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        if residence.place.is_some() && file.opens.lock().passes_to_object() {
            // Programs read the object without asking us: its bytes can't move.
            return Err(NodeError::Posix(Errno::NOSPC));
        }
        self.ensure_base(file, residence)?;
        let base = self.base_for_writing(file, record, residence)?;
        let end = offset + data.len() as u64;
        if let Some(place) = &mut residence.place {
            self.make_partial(file, record, place)?;
            self.cut_base(place, &*base)?;
            self.move_out(file, place, &*base, offset, end)?;
        }
        file.count_write();
        let Some(written) = write_all(&*base, data, offset)? else {
            return Err(NodeError::Posix(Errno::NOSPC));
        };
        if let Some(place) = &residence.place {
            self.mark_dirty(file, place)?;
            if let Some(presence) = &place.presence {
                let mut presence = presence.write();
                presence.leave_to_base(offset..end)?;
                let size = presence.size();
                drop(presence);
                if place.object.len()? < size {
                    place.object.set_len(size)?;
                }
            }
            place
                .object
                .set_times(None, Some(crate::convert::store_time(crate::convert::now())))?;
        }
        self.metrics.bytes.of(Source::Spill).add(written as u64);
        Ok(written)
    }

    /// A file of which the backing store has nothing gets a spill file, noted first.
    fn ensure_base(&self, file: &File, residence: &mut Residence) -> Result<()> {
        if !matches!(residence.base, Base::Zeros) {
            return Ok(());
        }
        let spill = self.backing.spill(file.ino.0)?;
        self.meta.update(file.ino, None, |record| {
            record.spilled = true;
            record.dirty = true;
            Queue::No
        })?;
        residence.base = Base::Spill(Arc::new(spill));
        Ok(())
    }

    fn base_for_writing(
        &self,
        _file: &File,
        record: &Arc<Record>,
        residence: &Residence,
    ) -> Result<Arc<dyn BackingFile>> {
        match &residence.base {
            Base::Spill(spill) => Ok(spill.file().clone()),
            Base::Backing(opened) => {
                let backing = self.open_backing(record, Access::ReadWrite)?;
                *opened.lock() = Some(backing.clone());
                Ok(backing)
            }
            Base::Zeros => Err(NodeError::Posix(Errno::NOSPC)),
        }
    }

    /// Gives a whole object a presence map, all dirty.
    fn make_partial(&self, file: &File, record: &Record, place: &mut Place) -> Result<()> {
        if place.presence.is_some() {
            return Ok(());
        }
        let tier = &self.tiers[usize::from(place.tier)].tier;
        let size = place.object.len()?;
        let mut presence = tier.create_map(file.ino.0, self.config.extent_bytes, size)?;
        if size > 0 {
            presence.mark_dirty(0..size)?;
        }
        let mut header = self.header_for(record, false, true);
        header.spilled = record.spilled;
        place.object.set_header(&header)?;
        place.dirty.store(true, Ordering::Release);
        place.presence = Some(RwLock::new(presence));
        place.charge.paid_end.store(0, Ordering::Release);
        self.set_resident(file.ino, place);
        Ok(())
    }

    /// Cuts what a truncation took from the file off its base, so that growing it again shows
    /// zeros.
    fn cut_base(&self, place: &Place, base: &dyn BackingFile) -> Result<()> {
        if let Some(presence) = &place.presence {
            let limit = presence.read().base_limit();
            if base.len()? > limit {
                base.set_len(limit)?;
            }
        }
        Ok(())
    }

    /// Moves the present extents that a range touches to the base, and gives their room back.
    fn move_out(
        &self,
        file: &File,
        place: &Place,
        base: &dyn BackingFile,
        offset: u64,
        end: u64,
    ) -> Result<()> {
        let Some(presence) = &place.presence else { return Ok(()) };
        let mut presence = presence.write();
        let extent = presence.extent_size();
        let size = presence.size();
        let mut at = offset - offset % extent;
        let mut buffer = Vec::new();
        while at < end.min(size) {
            let stop = (at + extent).min(size);
            if presence.is_present(at..stop) {
                buffer.resize(usize::try_from(stop - at).unwrap_or(0), 0);
                let read = place.object.read_at(&mut buffer, at)?;
                if write_all(base, &buffer[..read], at)?.is_none() {
                    return Err(NodeError::Posix(Errno::NOSPC));
                }
                presence.leave_to_base(at..stop)?;
                match place.object.punch(at, extent) {
                    Ok(()) => {}
                    Err(error) if error.class() == ErrorClass::Unsupported => {}
                    Err(error) => return Err(error.into()),
                }
            }
            at += extent;
        }
        drop(presence);
        self.true_up(file, place)
    }
}

/// Writes all of `data`; `None` when the device has no room.
pub(crate) fn write_all<B: Bytes + ?Sized>(
    target: &B,
    data: &[u8],
    offset: u64,
) -> Result<Option<usize>> {
    let mut done = 0;
    while done < data.len() {
        match target.write_at(&data[done..], offset + done as u64) {
            Ok(0) => return Err(NodeError::Posix(Errno::IO)),
            Ok(written) => done += written,
            Err(error) if no_room(&error) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(done))
}
