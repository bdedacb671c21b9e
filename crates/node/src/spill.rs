//! Writes that no tier has room for: room is made, and where that fails the bytes go to the
//! backing store at once, so that a full tier is never the writer's problem.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_core::steward::Event;
use forebay_core::unit;
use forebay_meta::{Ino, Queue, Record};
use forebay_store::backing::Access;
use forebay_store::copy::{self, Cancel};
use forebay_store::{Attributes, BackingFile, Bytes, ErrorClass};
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;

use crate::data::BLOCK;
use crate::error::{NodeError, Result};
use crate::failpoints::fail_at;
use crate::files::{File, FileRef};
use crate::io::no_room;
use crate::metrics::Source;
use crate::node::Node;
use crate::place::{Base, Charge, Place, Residence};

/// An object is begun on a tier only if this much can be charged at once: a block for its header,
/// where the file system keeps that outside the inode, and one for its first bytes.
const BEGIN: u64 = 2 * BLOCK;

impl Node {
    /// Gives a file without bytes an object on the fastest tier that has room; says whether one
    /// had.
    pub(crate) fn ensure_place(&self, file: &FileRef, record: &Record) -> Result<bool> {
        // A fetch under way makes an object of the same name.
        let Some(_alone) = file.fetching.try_lock() else { return Ok(false) };
        let mut residence = file.residence.write();
        if residence.place.is_some() {
            return Ok(true);
        }
        if !matches!(residence.base, Base::Zeros) {
            return Ok(false);
        }
        for (index, slot) in self.tiers.iter().enumerate() {
            let tier = u8::try_from(index).unwrap_or(u8::MAX);
            if !self.take_room(tier, BEGIN) {
                continue;
            }
            let header = self.header_for(record, true, true);
            let object = match self.create_object(tier, file.ino.0, &header) {
                Ok(object) => object,
                Err(error) => {
                    slot.room.give(BEGIN);
                    // The rest of an object without a header is nothing.
                    drop(slot.tier.remove(file.ino.0));
                    if is_no_room(&error) {
                        continue;
                    }
                    return Err(error);
                }
            };
            let place = Place {
                tier,
                object,
                presence: None,
                charge: Charge::new(BEGIN, BLOCK),
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
                drop(file.fetching.lock());
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
        for run in runs {
            let len = run.end - run.start;
            let charge = len.next_multiple_of(BLOCK);
            if !self.take_room(place.tier, charge) {
                return Ok(false);
            }
            place.charge.bytes.fetch_add(charge, Ordering::AcqRel);
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
        let absent: u64 =
            missing.iter().map(|run| run.end.next_multiple_of(extent) - run.start).sum();
        let grown = end.next_multiple_of(extent).saturating_sub(size.next_multiple_of(extent));
        if !self.take_room(place.tier, absent + grown) {
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
        if residence.place.is_some() {
            match self.yield_range(file, record, residence, &*base, offset, end) {
                Err(error) if is_no_room(&error) => self.evacuate(file, residence, &*base)?,
                other => other?,
            }
        }
        file.count_write();
        let Some(written) = write_all(&*base, data, offset)? else {
            return Err(NodeError::Posix(Errno::NOSPC));
        };
        fail_at!("node.spill.written");
        if let Some(place) = &residence.place {
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

    /// Prepares an object for bytes of a range that will be in the base.
    fn yield_range(
        &self,
        file: &FileRef,
        record: &Record,
        residence: &mut Residence,
        base: &dyn BackingFile,
        offset: u64,
        end: u64,
    ) -> Result<()> {
        let spilled = matches!(residence.base, Base::Spill(_));
        let Some(place) = &mut residence.place else { return Ok(()) };
        self.mark_dirty(file, place)?;
        self.make_partial(file, record, place, spilled)?;
        self.cut_base(place, base)?;
        self.move_out(file, place, base, offset, end)
    }

    /// The tier has not even room to note which bytes it has: all of them go to the base, and the
    /// object goes.
    fn evacuate(
        &self,
        file: &FileRef,
        residence: &mut Residence,
        base: &dyn BackingFile,
    ) -> Result<()> {
        let Some(place) = &residence.place else { return Ok(()) };
        let stat = place.object.stat()?;
        let limits = self.limits(forebay_store::copy::Priority::Demand);
        let mut runs = Vec::new();
        match &place.presence {
            None => runs.push(0..stat.size),
            Some(presence) => {
                let presence = presence.read();
                if base.len()? > presence.base_limit() {
                    base.set_len(presence.base_limit())?;
                }
                let mut missing = Vec::new();
                presence.missing_runs(0..stat.size, &mut missing);
                let mut at = 0;
                for run in missing {
                    runs.push(at..run.start);
                    at = run.end;
                }
                runs.push(at..stat.size);
            }
        }
        for run in runs.into_iter().filter(|run| !run.is_empty()) {
            copy::copy_range(&*place.object, base, run, &limits, &Cancel::default())?;
        }
        base.set_len(stat.size)?;
        base.set_times(None, Some(stat.mtime))?;
        base.sync(false)?;
        let stat = base.stat()?;
        let spilled = matches!(residence.base, Base::Spill(_));
        // The record first: until the object is gone, a restart finds all bytes in it as well.
        self.meta.update(file.ino, None, |record| {
            record.attr.size = stat.size;
            record.attr.mtime = crate::convert::time(stat.mtime);
            record.spilled = spilled;
            record.dirty = spilled;
            if !spilled {
                record.backing.fingerprint = Some(crate::convert::fingerprint(stat.fingerprint()));
            }
            Queue::Yes
        })?;
        let tier = place.tier;
        residence.place = None;
        self.tiers[usize::from(tier)].tier.remove(file.ino.0)?;
        self.forget_resident(file.ino);
        if !spilled {
            file.around.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// A file of which the backing store has nothing gets a spill file, noted first.
    pub(crate) fn ensure_base(&self, file: &File, residence: &mut Residence) -> Result<()> {
        if !matches!(residence.base, Base::Zeros) {
            return Ok(());
        }
        let spill = self.backing.spill(file.ino.0)?;
        fail_at!("node.spill.made");
        // What an earlier use may have left there is not this file's.
        spill.file().set_len(0)?;
        self.meta.set_setting(&spill_setting(file.ino), &spill.file().stat()?.ino.to_le_bytes())?;
        self.meta.update(file.ino, None, |record| {
            record.spilled = true;
            record.dirty = true;
            Queue::Yes
        })?;
        fail_at!("node.spill.noted");
        residence.base = Base::Spill(Arc::new(spill));
        Ok(())
    }

    fn base_for_writing(
        &self,
        file: &File,
        record: &Arc<Record>,
        residence: &Residence,
    ) -> Result<Arc<dyn BackingFile>> {
        match &residence.base {
            Base::Spill(spill) => Ok(spill.file().clone()),
            Base::Backing(opened) => {
                let mut opened = opened.lock();
                let backing = match &*opened {
                    Some(backing) if file.around.load(Ordering::Acquire) => backing.clone(),
                    _ => self.open_backing(record, Access::ReadWrite)?,
                };
                if let Some(place) = &residence.place {
                    self.announce_changes(file, place, &*backing)?;
                }
                if residence.place.is_none() {
                    file.around.store(true, Ordering::Release);
                }
                *opened = Some(backing.clone());
                Ok(backing)
            }
            Base::Zeros => Err(NodeError::Posix(Errno::NOSPC)),
        }
    }

    /// Notes at an object that the file in the backing store is about to change by our hand: the
    /// flush that completes it must not take that for a change by others.
    fn announce_changes(
        &self,
        file: &File,
        place: &Place,
        backing: &dyn BackingFile,
    ) -> Result<()> {
        let mut header = place.object.header()?;
        let found = backing.stat()?.fingerprint();
        if header.pending.is_some_and(|print| print.ino == found.ino) {
            return Ok(());
        }
        let known = self.meta.get(file.ino)?.backing.fingerprint;
        let known = known.map(crate::convert::store_fingerprint);
        if ![known, header.base].iter().flatten().any(|known| known.same_content(&found)) {
            // Others changed it: their version must not be mixed with this one.
            return Err(NodeError::Posix(Errno::NOSPC));
        }
        header.pending = Some(found);
        header.dirty = true;
        header.writing = true;
        place.object.set_header(&header)?;
        place.dirty.store(true, Ordering::Release);
        self.set_resident(file.ino, place);
        self.decide(Event::Dirty { object: unit::Ino(file.ino.0) });
        self.meta.update(file.ino, None, |record| {
            record.dirty = true;
            Queue::Yes
        })?;
        Ok(())
    }

    /// The version in the backing store that the spill file of a file has become, if its
    /// publication was the last thing that an earlier daemon did.
    pub(crate) fn published_spill(&self, record: &Record) -> Result<Option<Attributes>> {
        let noted = self.meta.setting(&spill_setting(record.ino))?;
        let Some(noted) = noted.and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
        else {
            return Ok(None);
        };
        for link in record.links.iter().chain(&record.backing.links) {
            let Ok(dir) = self.backing_dir(link.parent) else { continue };
            match self.backing.stat(&dir, OsStr::from_bytes(&link.name)) {
                Ok(found) if found.ino == noted => return Ok(Some(found)),
                Ok(_) => {}
                Err(error) if error.class() == ErrorClass::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// The record follows the publication of its spill file.
    pub(crate) fn note_published_spill(&self, ino: Ino, found: Attributes) -> Result<()> {
        let on_tier = self.residents.get(ino.0).is_some_and(|resident| resident.dirty);
        self.meta.update(ino, None, |record| {
            record.spilled = false;
            record.dirty = on_tier;
            if !on_tier {
                record.attr.size = found.size;
                record.attr.mtime = crate::convert::time(found.mtime);
            }
            record.backing.fingerprint = Some(crate::convert::fingerprint(found.fingerprint()));
            Queue::Yes
        })?;
        Ok(self.meta.remove_setting(&spill_setting(ino))?)
    }

    /// Removes the spill file of a file, and what was noted about it.
    pub(crate) fn drop_spill(&self, ino: Ino) -> Result<()> {
        self.backing.remove_spill(ino.0)?;
        Ok(self.meta.remove_setting(&spill_setting(ino))?)
    }

    /// Gives a whole object a presence map, all dirty.
    fn make_partial(
        &self,
        file: &File,
        record: &Record,
        place: &mut Place,
        spilled: bool,
    ) -> Result<()> {
        if place.presence.is_some() {
            return Ok(());
        }
        let tier = &self.tiers[usize::from(place.tier)].tier;
        let size = place.object.len()?;
        let mut presence = tier.create_map(file.ino.0, self.config.extent_bytes, size)?;
        if size > 0 {
            presence.mark_dirty(0..size)?;
        }
        fail_at!("node.spill.mapped");
        let pending = place.object.header()?.pending;
        let mut header = self.header_for(record, false, true);
        header.spilled = spilled;
        header.pending = pending;
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
                fail_at!("node.spill.moved");
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

/// Where the inode number of a file's spill file is noted: by it a restart knows the file again
/// that the spill file has become.
fn spill_setting(ino: Ino) -> String {
    format!("spill.{:x}", ino.0)
}

fn is_no_room(error: &NodeError) -> bool {
    matches!(error, NodeError::Store(error) if no_room(error))
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
