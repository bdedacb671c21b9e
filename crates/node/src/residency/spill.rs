//! Writes that no tier has room for: room is made, and where that fails the bytes go to a spill file
//! in the backing store at once, so that a full tier is never the writer's problem.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_meta::{Queue, SPILL_OF_REMOVED, spill_of_removed};
use forebay_store::{Attributes, Believed, ErrorClass, Presence, StoreError};
use forebay_types::{Fingerprint, Ino, Timestamp};
use parking_lot::RwLock;
use rustix::io::Errno;

use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::failpoints::fail_at;
use crate::metrics::Source;
use crate::residency::Residency;
use crate::residency::charge::blocks_of_gap_write;
use crate::residency::data::BLOCK;
use crate::residency::data_location::{DataLocation, TierObject, Underlay};
use crate::residency::files::{File, FileRef};
use crate::residency::holes::next_data;
use crate::residency::overlay::Spill;
use crate::residency::room::{no_room, write_all, write_what_fits};
use crate::residency::synced::is_acknowledged;

/// Room that was made for a write, and is there, may so often not be what it lacks.
const MAX_USELESS: u32 = 2;

impl Residency {
    /// Writes when the short way was barred: absent extents are fetched or passed over, room is
    /// made, and what still has none goes to the base.
    pub(crate) fn write_the_hard_way(
        &self,
        context: &Context,
        file: &FileRef,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let end = offset + data.len() as u64;
        fail_at!("node.spill.begin");
        let limit = Instant::now() + self.config.backing_timeout;
        // Where the store has no room either, room is made again for as long as there is any.
        let (mut made, mut full, mut useless) = (false, false, 0);
        loop {
            if full {
                self.ensure_place_in_made_room(file)?;
            } else if file.location.read().place.is_none() {
                drop(file.fetching.lock());
                self.ensure_place(file)?;
            }
            let location = file.location.write();
            self.given_up.check(context)?;
            if let Some(place) = &location.place {
                // Charges of writes that were repeated go, for nobody else writes now.
                self.true_up(file, place)?;
                self.above.check_rest_below(file, &location, place)?;
                if self.fetch_edges(file, &location, place, offset, end)?
                    && let Some(written) = self.write_exclusively(file, place, offset, data)?
                {
                    return Ok(written);
                }
            }
            let wanted = self.room_to_write(file, &location, offset..end, full)?;
            drop(location);
            if let Some((tier, need)) = wanted.filter(|_| full || !made) {
                // Others may take what was made free, again and again. What is free and does not help is
                // another matter, as where the device fails.
                useless += u32::from(made && self.has_room(tier, need));
                made = useless <= MAX_USELESS
                    && Instant::now() < limit
                    && self.make_room_to_write(tier, need);
                if made {
                    continue;
                }
            }
            let mut location = file.location.write();
            self.given_up.check(context)?;
            match self.write_around(file, &mut location, offset, data) {
                Err(error) if is_full(&error) && !full => (full, made) = (true, false),
                done => return done,
            }
        }
    }

    /// Fetches the absent extents that a write covers only in part. Says whether the write may go
    /// to the object then.
    pub(crate) fn fetch_edges(
        &self,
        file: &File,
        location: &DataLocation,
        place: &TierObject,
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
            let read = self.read_known_base(file, &location.base, run.start, &mut bytes)?;
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
        place: &TierObject,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<usize>> {
        let end = offset + data.len() as u64;
        if !self.pay(place, offset, end) {
            return Ok(None);
        }
        self.mark_dirty(file, place)?;
        // As in `write_placed`; what is absent is there only after the bytes.
        file.count_write();
        if let Some(presence) = &place.presence {
            presence.write().mark_changed(offset..end)?;
        }
        fail_at!("node.write.exclusive");
        let written = write_all(&*place.object, data, offset);
        file.count_write();
        if let Some(presence) = &place.presence {
            let mut presence = presence.write();
            if matches!(written, Ok(Some(_))) {
                presence.mark_dirty(offset..end)?;
            } else {
                presence.mark_changed(offset..end)?;
                let len = place.object.len()?;
                if len > presence.size() {
                    presence.set_len(len)?;
                }
            }
        }
        written
    }

    /// Sends a write past the tiers, to the file's spill file. Extents on the tier that it touches
    /// move there first.
    fn write_around(
        &self,
        file: &FileRef,
        location: &mut DataLocation,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        // The kernel has none of which only a part is here, and what is written there without a word in the map
        // is nowhere. Whoever has it open looks at it for a moment.
        if let Some(place) = &location.place
            && place.is_marked_whole()
            && self.is_read_by_the_kernel(file, place)
        {
            return self.write_under_readers(file, place, offset, data);
        }
        let range = offset..offset + data.len() as u64;
        let end = self.change_around(file, location, range, true, |spill| {
            self.write_spill_what_fits(file, spill, offset, data)
        })?;
        self.metrics.bytes.of(Source::Spill).add(end - offset);
        Ok((end - offset) as usize)
    }

    /// Makes zeros of a range past the tiers, as [`Residency::write_around`] writes. Not of an object that
    /// the kernel reads by itself.
    pub(crate) fn zero_around(
        &self,
        file: &FileRef,
        location: &mut DataLocation,
        range: Range<u64>,
    ) -> Result<()> {
        let end = range.end;
        self.change_around(file, location, range.clone(), false, |spill| {
            self.zero_spill(file, spill, range).map(|()| end)
        })?;
        Ok(())
    }

    /// Changes a range of a file in its spill file up to where `change` says that it came. The spill file has
    /// all extents of the range from then on, with what the tier had of them. If something of it `must_fit`,
    /// and has no room, the file stays as it was.
    fn change_around(
        &self,
        file: &FileRef,
        location: &mut DataLocation,
        Range { start: offset, end }: Range<u64>,
        must_fit: bool,
        change: impl FnOnce(&Spill) -> Result<u64>,
    ) -> Result<u64> {
        if let Some(place) = &location.place
            && (!must_fit || location.is_spilled())
        {
            // First: a clean object may go at any time, and its bytes with it.
            self.mark_dirty(file, place)?;
        }
        let fitting = must_fit.then_some(offset..end);
        let spill = self.ensure_spill_with_room(file, location, fitting)?;
        if location.place.is_some() {
            match self.yield_range(file, location, &spill, offset, end) {
                Err(error) if is_no_room(&error) => self.evacuate(file, location, &spill)?,
                other => other?,
            }
        }
        file.count_write();
        let changed = change(&spill)?;
        fail_at!("node.spill.written");
        if let Some(place) = &location.place {
            if let Some(presence) = &place.presence {
                let mut presence = presence.write();
                presence.leave_to_base(offset..changed)?;
                let size = presence.size();
                drop(presence);
                if place.object.len()? < size {
                    place.object.set_len(size)?;
                }
            }
            place.object.set_times(None, Some(crate::clock::wall_time()))?;
        }
        Ok(changed)
    }

    /// Whether programs may read the object without asking the daemon, so that its bytes can't move:
    /// a passthrough open lives, or a mapping that outlasted one, perhaps of an earlier use of the file,
    /// of which only a lease tells. (Who looks at the object for a moment is taken for such a mapping.)
    fn is_read_by_the_kernel(&self, file: &File, place: &TierObject) -> bool {
        if file.opens.lock().passes_to_object() {
            return true;
        }
        match place.object.exclusive() {
            Ok(lease) => lease.is_none() && self.kernel.get().is_some(),
            // Else nothing could ever leave a tier that has no leases.
            Err(_) => place.passed.load(Ordering::Acquire) && self.maybe_mapped(place),
        }
    }

    /// Whether a mapping of the object may live that outlasted a passthrough open, and that may be
    /// stored into.
    pub(crate) fn is_mapped_by_the_kernel(&self, file: &File) -> Result<bool> {
        if self.passthrough_refusal().is_some() {
            return Ok(false);
        }
        // It may be in use by nobody else.
        self.load(&Context::DAEMON, file)?;
        let location = file.location.read();
        Ok(location.place.as_ref().is_some_and(|place| self.maybe_stored_into(file, place)))
    }

    /// Writes to a spill file as much as the backing store has room for, and says where it came: a program
    /// that is told of an error takes the file for unchanged. What an extent that the map lacks gets is not
    /// seen before all of it is there; of any other each block is seen at once.
    fn write_spill_what_fits(
        &self,
        file: &File,
        spill: &Spill,
        offset: u64,
        data: &[u8],
    ) -> Result<u64> {
        let end = offset + data.len() as u64;
        let refused = match self.write_spill(file, spill, offset, data) {
            Err(error) if is_full(&error) => error,
            written => return written.map(|_| end),
        };
        let mut at = offset;
        while at < end {
            let step = spill.with_map(|map| match map {
                Some(map) if at < map.size() && !map.is_present(at..at + 1) => map.extent_size(),
                _ => BLOCK,
            });
            let stop = (at - at % step + step).min(end);
            let piece = &data[(at - offset) as usize..(stop - offset) as usize];
            match self.write_spill(file, spill, at, piece) {
                Ok(_) => at = stop,
                Err(error) if is_full(&error) => break,
                Err(error) => return Err(error),
            }
        }
        if at > offset { Ok(at) } else { Err(refused) }
    }

    /// Writes for which no room could be made into an object that the kernel reads by itself. The
    /// kernel gives up a passthrough file only at its last close, and what it reads until then is
    /// the object: so the bytes go there, over the tier's size by what the file grows, and only a
    /// full device refuses them. What is overwritten needs no room.
    fn write_under_readers(
        &self,
        file: &File,
        place: &TierObject,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let end = offset + data.len() as u64;
        if !self.pay(place, offset, end) {
            let bytes = blocks_of_gap_write(place, offset, end);
            self.tiers[usize::from(place.tier)].room.force(bytes);
            place.charge.bytes.fetch_add(bytes, Ordering::AcqRel);
        }
        self.mark_dirty(file, place)?;
        file.count_write();
        let written = write_what_fits(&*place.object, data, offset);
        if !matches!(written, Ok(written) if written == data.len()) {
            self.true_up(file, place)?;
        }
        written
    }

    /// Prepares an object for bytes of a range that will be in the base.
    fn yield_range(
        &self,
        file: &FileRef,
        location: &mut DataLocation,
        spill: &Spill,
        offset: u64,
        end: u64,
    ) -> Result<()> {
        let Some(place) = &mut location.place else { return Ok(()) };
        self.write_parts_again(file, Some(place), Some(spill))?;
        self.make_partial(file, place)?;
        cut_base(place, spill)?;
        self.move_out(file, place, spill, offset, end)
    }

    /// The tier has not even room to note which bytes it has: all of them go to the spill file, and
    /// the object goes.
    pub(crate) fn evacuate(
        &self,
        file: &File,
        location: &mut DataLocation,
        spill: &Spill,
    ) -> Result<()> {
        let Some(place) = &location.place else { return Ok(()) };
        let stat = place.object.stat()?;
        cut_base(place, spill)?;
        let mut absent = place.absent(0..stat.size);
        let mut buffer = vec![0; 1 << 20];
        let mut at = 0;
        // Of what is written in part the rest is brought in.
        let unit = spill.with_map(|map| map.map_or(BLOCK, Presence::extent_size));
        absent.push(stat.size..stat.size);
        for run in absent {
            while at < run.start {
                let data = next_data(&*place.object, at..run.start, unit)?;
                if data.start > at {
                    self.zero_spill(file, spill, at..data.start)?;
                    at = data.start;
                    continue;
                }
                let left = data.end - at;
                let want = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let read = place.object.read_at(&mut buffer[..want], at)?;
                buffer[read..want].fill(0);
                self.write_spill(file, spill, at, &buffer[..want])?;
                at += want as u64;
            }
            at = run.end;
        }
        spill.set_len(stat.size)?;
        self.write_parts_again(file, location.place.as_ref(), Some(spill))?;
        self.sync_spill(file, spill, false)?;
        let notes = is_acknowledged(&place.object.header()?, stat.size) && spill.acknowledge();
        if notes {
            self.note_acknowledged(file.ino)?;
        }
        // The record first: until the object is gone, a restart finds all bytes in it as well.
        self.meta.update(file.ino, None, |record| {
            record.attr.size = stat.size;
            record.attr.mtime = stat.mtime;
            record.spilled = true;
            record.mark_dirty();
            Queue::Yes
        })?;
        self.meta.sync()?;
        if notes {
            spill.acknowledgement_noted();
        }
        fail_at!("node.spill.evacuated");
        self.remove_object(place.tier, file.ino)?;
        self.forget_resident(file.ino, location.place.take().as_ref());
        Ok(())
    }

    /// The spill file of a file, made and noted if there is none yet. A version that the backing
    /// store has stays as it is and shows through. The caller has the location for itself.
    pub(crate) fn ensure_spill(
        &self,
        file: &File,
        location: &mut DataLocation,
    ) -> Result<Arc<Spill>> {
        self.ensure_spill_with_room(file, location, None)
    }

    /// The same. One that is made for a write has room for the beginning of it, or is none: a file of which
    /// nothing was written would wait to be written back, and be bound to it. So it is dirty only then.
    fn ensure_spill_with_room(
        &self,
        file: &File,
        location: &mut DataLocation,
        fitting: Option<Range<u64>>,
    ) -> Result<Arc<Spill>> {
        if !location.is_spilled() {
            self.keep_out_left_behind(file.ino)?;
        }
        let over = match &location.base {
            Underlay::Spill(spill) => return Ok(spill.clone()),
            Underlay::Zeros => None,
            Underlay::Backing(_) => match &location.place {
                // Every byte is in the object.
                Some(place) if place.is_marked_whole() => None,
                Some(TierObject { presence: Some(presence), .. }) => {
                    Some(presence.read().base_limit())
                }
                // By the record as it is now: one that the caller has from before it had the
                // location may be older than the version, and a part of the file be cut with it.
                _ => Some(self.meta.get(file.ino)?.attr.size),
            },
        };
        let made = self.make_spill(file.ino, over).and_then(|spill| {
            if let Some(range) = fitting {
                self.reserve(&spill, location, range)?;
                location.place.as_ref().map_or(Ok(()), |place| self.mark_dirty(file, place))?;
            }
            Ok(spill)
        });
        let spill = Arc::new(made.inspect_err(|_| {
            // Nobody knows of it.
            self.drop_spill_soon(file.ino);
        })?);
        if let Some(place) = &location.place
            && let Err(error) = self.mark_spilled(place, true)
        {
            // Nobody knows of it, if the header does not say so after all.
            if self.mark_spilled(place, false).is_ok() {
                self.drop_spill_soon(file.ino);
            }
            return Err(error);
        }
        self.meta.update(file.ino, None, |record| {
            record.spilled = true;
            record.mark_dirty();
            Queue::Yes
        })?;
        fail_at!("node.spill.noted");
        if location.place.as_ref().is_some_and(TierObject::is_marked_whole)
            && self
                .meta
                .get(file.ino)
                .is_ok_and(|now| now.backing.fingerprint.or(now.backing.pending).is_some())
        {
            // All of the file was in the object until now. A start that finds less of it there, and knows
            // of no spill file, would take the rest from an older version.
            self.meta.sync()?;
        }
        location.base = file.spilled_to(spill.clone());
        Ok(spill)
    }

    /// The header of an object says whether its file has a spill file.
    fn mark_spilled(&self, place: &TierObject, spilled: bool) -> Result<()> {
        self.edit_header(place, |header| {
            header.spilled = spilled;
            Ok(())
        })
    }

    /// The spill file of a file that the backing store has, made for a write that came to nothing as the
    /// tier failed in that moment.
    pub(crate) fn drop_useless_spill(&self, file: &File, location: &DataLocation) {
        if !location.is_spilled() && self.has_spill_noted(file.ino) {
            self.drop_spill_soon(file.ino);
        }
    }

    /// An empty spill file, and a map if it is laid over a version of so many bytes.
    fn make_spill(&self, ino: Ino, over: Option<u64>) -> Result<Spill> {
        // What an earlier use may have left there is not this file's.
        self.keep_spill(ino);
        self.above.forget_half_written(ino)?;
        if self.has_spill_noted(ino) {
            // Until that is durable the file may have to be read from there after a power cut.
            fail_at!("node.spill.before_sync");
            self.meta.sync()?;
        }
        self.backing.remove_spill(ino.0)?;
        let map = match over {
            None => None,
            Some(size) => Some(self.backing.spill_map(ino.0, self.config.extent_bytes, size)?),
        };
        let made = self.backing.spill(ino.0)?;
        fail_at!("node.spill.made");
        made.file().set_len(over.unwrap_or(0))?;
        self.spills_noted.store(true, Ordering::Release);
        let note = inode_note(&made.file().stat()?, map.is_some());
        self.meta.set_setting(&spill_setting(ino), &note)?;
        let spill = Spill::new(made, map, false)?;
        // Before anything says that it is there: without it the file could not be read any more.
        spill.sync(false)?;
        Ok(spill)
    }

    /// The spill file of a file, laid over the published version as its map says.
    ///
    /// # Errors
    /// What the backing store says; [`NodeError::Lost`] if its map is gone.
    pub(crate) fn open_spilled(&self, ino: Ino) -> Result<Option<Spill>> {
        self.open_spilled_as(ino, Believed::Written, &|_| Ok(()))
    }

    /// The same; its map is told first what is believed of it.
    pub(crate) fn open_spilled_as(
        &self,
        ino: Ino,
        believed: Believed,
        believe: &dyn Fn(&mut Presence) -> forebay_store::Result<()>,
    ) -> Result<Option<Spill>> {
        let Some(spill) = self.backing.open_spill(ino.0)? else { return Ok(None) };
        let mut map = self.backing.open_spill_map(ino.0, believed)?;
        map.as_mut().map_or(Ok(()), believe)?;
        let note = self.meta.setting(&spill_setting(ino))?;
        let flags = note.and_then(|note| note.get(8).copied()).unwrap_or_default();
        if map.is_none() && flags & HAS_MAP != 0 {
            return Err(NodeError::Lost);
        }
        Spill::new(spill, map, flags & ACKNOWLEDGED != 0).map(Some)
    }

    /// Whether a spill file of a file may be in the backing store. What can't be read may be so.
    pub(crate) fn has_spill_noted(&self, ino: Ino) -> bool {
        self.spills_noted.load(Ordering::Acquire)
            && self.meta.setting(&spill_setting(ino)).map_or(true, |noted| noted.is_some())
    }

    /// The files of whose spill files something is noted.
    pub(crate) fn noted_spills(&self) -> Result<Vec<Ino>> {
        if !self.spills_noted.load(Ordering::Acquire) {
            return Ok(Vec::new());
        }
        let mut noted = self.meta.settings_like(SETTING)?;
        // Among the others these are no numbers.
        noted.extend(self.meta.settings_like(SPILL_OF_REMOVED)?);
        let mut noted: Vec<u64> =
            noted.iter().filter_map(|ino| u64::from_str_radix(ino, 16).ok()).collect();
        noted.sort_unstable();
        noted.dedup();
        Ok(noted.into_iter().map(Ino).collect())
    }

    /// Whether a file without a record was removed when that said that it has a spill file.
    pub(crate) fn is_spill_of_removed(&self, ino: Ino) -> Result<bool> {
        Ok(self.meta.setting(&spill_of_removed(ino))?.is_some())
    }

    /// Notes that a file's record is about to let go of its spill file.
    pub(crate) fn let_go_of_spill(&self, ino: Ino) -> Result<()> {
        self.flag_spill(ino, LET_GO)
    }

    /// Notes that a program may be told that what a file has in its spill file lasts, once the note is
    /// durable.
    pub(crate) fn note_acknowledged(&self, ino: Ino) -> Result<()> {
        self.flag_spill(ino, ACKNOWLEDGED)
    }

    fn flag_spill(&self, ino: Ino, flag: u8) -> Result<()> {
        let setting = spill_setting(ino);
        let Some(mut note) = self.meta.setting(&setting)? else { return Ok(()) };
        if let Some(flags) = note.get_mut(8) {
            *flags |= flag;
        }
        Ok(self.meta.set_setting(&setting, &note)?)
    }

    /// What the spill area has for a file that needs no spill file, as it was removed, or let go of it, or
    /// as nothing was written to it yet, goes with the next batch. Any other may be the only copy of
    /// somebody's bytes, as when the end of the index's log is lost, and is set aside.
    pub(crate) fn dismiss_spill(&self, ino: Ino, removed: bool) -> Result<()> {
        let Some(spill) = self.backing.open_spill(ino.0)? else {
            self.note_spill_due(ino);
            return Ok(());
        };
        let noted = self.meta.setting(&spill_setting(ino))?;
        let found = spill.file().stat()?.fingerprint();
        let known = noted.as_deref().is_some_and(|note| {
            let flags = note.get(8).copied().unwrap_or_default();
            let same = noted_inode(note).is_some_and(|noted| noted.same_inode(&found));
            same && (removed || flags & LET_GO != 0)
        });
        let empty = || match spill.file().seek_data(0) {
            Ok(data) => Ok(data.is_none()),
            Err(error) if error.class() == ErrorClass::Unsupported => {
                spill.file().allocated_bytes().map(|bytes| bytes == 0)
            }
            Err(error) => Err(error),
        };
        if known || empty()? {
            self.note_spill_due(ino);
            return Ok(());
        }
        self.set_spill_aside(ino, "the index does not know it")
    }

    /// Removes the spill file of a file that was removed or has let go of it, which is durable: it, its map,
    /// and what was noted about it.
    pub(super) fn drop_forgotten_spill(&self, ino: Ino) -> Result<()> {
        self.backing.remove_spill(ino.0)?;
        self.failed_syncs.forget(ino);
        Ok(self.meta.remove_settings(&[&spill_setting(ino), &spill_of_removed(ino)])?)
    }

    /// Gives a whole object of a spilled file a presence map, all dirty.
    fn make_partial(&self, file: &File, place: &mut TierObject) -> Result<()> {
        if place.presence.is_some() {
            return Ok(());
        }
        let tier = &self.tiers[usize::from(place.tier)].tier;
        let size = place.object.len()?;
        let map = Presence::sidecar_bytes_for(self.config.extent_bytes, size);
        if !self.take_room_for_file(place.tier, map) {
            let source = StoreError::errno_of("make a map on", tier.path(), libc::ENOSPC);
            return Err(source.into());
        }
        place.charge.bytes.fetch_add(map, Ordering::AcqRel);
        let mut presence = tier.create_map(file.ino.0, self.config.extent_bytes, size)?;
        if size > 0 {
            presence.mark_dirty(0..size)?;
        }
        // What was synced is in the object alone, and counts by the map from here on.
        self.write_parts_again(file, Some(place), None)?;
        self.heeding(file, || presence.sync(&*place.object))?;
        fail_at!("node.spill.mapped");
        let mut header = place.object.header()?;
        (header.whole, header.spilled) = (false, true);
        (header.dirty, header.writing) = (true, true);
        // What the kernel has synced without asking may be in it.
        header.synced |= header.covered;
        place.set_header(&header)?;
        place.dirty.store(true, Ordering::Release);
        place.presence = Some(RwLock::new(presence));
        place.charge.paid_end.store(0, Ordering::Release);
        self.set_resident(file.ino, place);
        Ok(())
    }

    /// Moves the present extents that a range touches to the spill file, and gives their room back.
    fn move_out(
        &self,
        file: &File,
        place: &TierObject,
        spill: &Spill,
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
                self.write_spill(file, spill, at, &buffer[..read])?;
                fail_at!("node.spill.moved");
                let durable = presence.may_be_durable(at..stop);
                if durable {
                    // It must not be less so there, nor be looked for where it is not any more.
                    self.sync_spill(file, spill, false)?;
                    self.meta.sync()?;
                }
                presence.leave_to_base(at..stop)?;
                if durable {
                    self.heeding(file, || presence.sync_map())?;
                }
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

/// Cuts what a truncation took from the file off its base, so that growing it again shows zeros.
fn cut_base(place: &TierObject, spill: &Spill) -> Result<()> {
    if let Some(presence) = &place.presence {
        let limit = presence.read().base_limit();
        if spill.size_and_mtime().0 > limit {
            // What a write-back had copied there behind that, and counts as unchanged, goes with it.
            presence.write().mark_changed(limit..u64::MAX)?;
            spill.set_len(limit)?;
        }
    }
    Ok(())
}

/// What the names of those settings begin with.
pub(crate) const SETTING: &str = "spill.";

/// Where the inode number of a file's spill file is noted: by it a restart knows the file again
/// that the spill file has become.
pub(crate) fn spill_setting(ino: Ino) -> String {
    format!("{SETTING}{:x}", ino.0)
}

/// Stands behind the inode number of a spill file that has a map: without it the spill file would
/// count as complete.
const HAS_MAP: u8 = 1;
/// Set before the file's record lets go of the spill file: from then on it is not the only copy of
/// anything, whatever of the index is lost.
const LET_GO: u8 = 2;
/// A program may have been told that what the spill file has lasts. If a crash of the machine leaves less
/// of it than the namespace knows of, an older version does not take its place: see `synced.rs`.
const ACKNOWLEDGED: u8 = 4;

/// What is noted about a spill file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpillNote {
    /// It has a map: without it nobody knows which of its bytes count.
    pub(crate) has_map: bool,
    /// All that was to be written to it is there, and a program may have been told so.
    pub(crate) acknowledged: bool,
}

impl SpillNote {
    /// Earlier versions noted nothing where there is no map.
    pub(crate) fn read(note: Option<&[u8]>) -> Self {
        let flags = note.and_then(|note| note.get(8).copied()).unwrap_or_default();
        SpillNote { has_map: flags & HAS_MAP != 0, acknowledged: flags & ACKNOWLEDGED != 0 }
    }
}

/// The inode number of a file in the backing store, whether it is a spill file with a map, and when the inode was made: seconds and
/// nanoseconds, zero if that is not known.
pub(crate) fn inode_note(made: &Attributes, has_map: bool) -> Vec<u8> {
    let mut note = made.ino.to_le_bytes().to_vec();
    note.push(if has_map { HAS_MAP } else { 0 });
    note.extend(made.btime.sec.to_le_bytes());
    note.extend(made.btime.nsec.to_le_bytes());
    note
}

/// The inode of which such a note is; earlier versions noted no time, and nothing where there is no map.
pub(crate) fn noted_inode(note: &[u8]) -> Option<Fingerprint> {
    let ino = u64::from_le_bytes(note.get(..8)?.try_into().ok()?);
    let time = |note: &[u8]| {
        let seconds = i64::from_le_bytes(note.get(9..17)?.try_into().ok()?);
        let nanos = u32::from_le_bytes(note.get(17..21)?.try_into().ok()?);
        Some(Timestamp::new(seconds, nanos))
    };
    Some(Fingerprint { ino, born: time(note).unwrap_or_default(), ..Fingerprint::default() })
}

/// Whether a tier has no room.
pub(crate) fn is_no_room(error: &NodeError) -> bool {
    matches!(error, NodeError::Store(error) if no_room(error))
}

/// Whether a spill file could not grow.
fn is_full(error: &NodeError) -> bool {
    is_no_room(error) || matches!(error, NodeError::Posix(Errno::NOSPC | Errno::DQUOT))
}
