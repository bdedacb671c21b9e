//! Making room: the steward decides ([`steward`](super::steward)), this does.
//!
//! An eviction takes the lock of the file's data location, looks again, and removes a clean object
//! that nobody uses. One that is open, dirty or pinned stays, and so does one of which no lease
//! proves that nobody has it mapped. A dirty victim is flushed first, a large one may lose only its
//! tail (`evict_tail`), and with several tiers a victim moves down (`move_object`). A writer that
//! needs room takes that of removed files first (`free_room`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_core::steward::{Action, Event};
use forebay_core::unit::{self, Bytes};
use forebay_meta::Record;
use forebay_store::copy::{self, Cancel, Limits, Permit, Priority};
use forebay_store::tier::TierUsage;
use forebay_store::{ErrorClass, Header, Object, Presence, StoreError};
use forebay_types::Ino;
use parking_lot::RwLockWriteGuard;

use crate::error::{NodeError, Result};
use crate::failpoints::fail_at;
use crate::residency::Residency;
use crate::residency::TierSlot;
use crate::residency::data_location::{Charge, DataLocation, TierObject, Underlay};
use crate::residency::files::{File, FileRef};
use crate::residency::room::Waited;

/// A writer waits this long for the next byte of room before it goes past the tiers.
const ROOM_TIMEOUT: Duration = Duration::from_millis(500);

/// So much is moved to another tier by the very thread that wants the room.
const MOVED_AT_ONCE: u64 = 16 << 20;

/// A thirty-second part of a tier's file system is not filled with objects, within these bounds.
const MIN_KEPT: u64 = 2 << 20;
const MAX_KEPT: u64 = 32 << 20;

/// So many inodes of a tier's file system are left to the metadata, which may lie there, and to directories.
const KEPT_INODES: u64 = 128;

/// A writer that wants so much room on a tier. As long as there is one, the steward has others make way.
struct Wanting<'a> {
    residency: &'a Residency,
    tier: u8,
    need: u64,
    /// What the tier's file system lacked at the beginning, and the bytes of the objects that had gone by then.
    /// What goes need not show there at once: it is not asked for a second time.
    disk_lacks: u64,
    gone_before: u64,
}

/// What came of having others make way.
#[derive(Default)]
struct Pressed {
    /// Some have gone, or a part of them.
    gone: bool,
    /// Some are written back first.
    flushing: bool,
    /// Some could not go.
    refused: bool,
}

impl<'a> Wanting<'a> {
    fn new(residency: &'a Residency, tier: u8, need: u64) -> Self {
        let room = &residency.slot(tier).room;
        room.start_wanting();
        let disk_lacks = need.saturating_sub(residency.free_on_disk(tier));
        Wanting { residency, tier, need, disk_lacks, gone_before: room.gone().1 }
    }

    /// Bytes that have to go still.
    fn missing(&self) -> u64 {
        let room = &self.residency.slot(self.tier).room;
        let disk = self.disk_lacks.saturating_sub(room.gone().1 - self.gone_before);
        self.need.saturating_sub(room.free()).max(disk)
    }

    fn lacks_room(&self) -> bool {
        self.missing() > 0
    }

    /// Whether a decision is to copy so much to another tier that who wants room does not wait for all of it.
    fn moves_for_long(&self, action: &Action) -> bool {
        let (Action::Demote { object, .. } | Action::Promote { object, .. }) = action else {
            return false;
        };
        self.residency.residents.get(object.0).is_some_and(|found| found.charged > MOVED_AT_ONCE)
    }

    /// Has others make way. All of them together are waited for as long as for the next byte of room.
    fn press(&self) -> Pressed {
        let until = Instant::now() + ROOM_TIMEOUT;
        let mut actions = Vec::new();
        let need = Bytes(self.missing());
        self.residency.step(Event::Pressure { tier: unit::Tier(self.tier), need }, &mut actions);
        let mut pressed = Pressed::default();
        for action in actions {
            if self.moves_for_long(&action) {
                // It counts as on its way out.
                self.residency.perform_later(action);
                continue;
            }
            let flushes = matches!(action, Action::Flush { .. });
            let done = self.residency.perform_until(action, until);
            pressed.flushing |= flushes && done;
            pressed.gone |= !flushes && done;
            pressed.refused |= !done;
        }
        pressed
    }
}

impl Drop for Wanting<'_> {
    fn drop(&mut self) {
        let none = Event::Pressure { tier: unit::Tier(self.tier), need: Bytes(0) };
        let room = &self.residency.slot(self.tier).room;
        room.stop_wanting(|| {
            self.residency.decide(none);
        });
    }
}

impl Residency {
    /// Charges `bytes` to a tier if both its configured size and its file system have them. The last
    /// bytes of the file system are left to the metadata, whoever took the others.
    #[must_use]
    pub(crate) fn take_room(&self, tier: u8, bytes: u64) -> bool {
        if self.tier_has_failed(tier) {
            return false;
        }
        bytes == 0 || self.free_on_disk(tier) >= bytes && self.slot(tier).room.take(bytes)
    }

    /// As [`Residency::take_room`], for what is a file of its own there: an object, or its map. Where the file
    /// system has hardly any inodes left it is refused, and others make way for those that come next.
    #[must_use]
    pub(crate) fn take_room_for_file(&self, tier: u8, bytes: u64) -> bool {
        if self.tier_has_failed(tier) {
            return false;
        }
        let slot = self.slot(tier);
        let Ok(usage) = slot.tier.usage() else { return false };
        if usage.free_inodes <= KEPT_INODES {
            let _wanting = Wanting::new(self, tier, 0);
            let need = Bytes(slot.room.used() / 64 + 1);
            self.decide(Event::Pressure { tier: unit::Tier(tier), need });
            return false;
        }
        free_of(&usage) >= bytes && slot.room.take(bytes)
    }

    fn free_on_disk(&self, tier: u8) -> u64 {
        self.slot(tier).tier.usage().map_or(0, |usage| free_of(&usage))
    }

    /// Bytes that may still be charged to a tier.
    pub(super) fn free_on(&self, tier: u8) -> u64 {
        self.slot(tier).room.free().min(self.free_on_disk(tier))
    }

    fn slot(&self, tier: u8) -> &TierSlot {
        &self.tiers[usize::from(tier)]
    }

    /// Makes `need` bytes free on a tier if that is possible: evicts and demotes, and waits for
    /// flushes as long as they bring something. Where they do not (all is open, or the backing store
    /// is too slow), only the first writer waits, and those after it go past the tier at once.
    ///
    /// What is not yet in the backing store and does not get there, as in one that is full, leaves its turn to
    /// what is. What is made free is nobody's: another writer may take it first.
    pub(crate) fn free_room(&self, tier: u8, need: u64) -> bool {
        self.discard_removed();
        if self.free_on(tier) >= need || self.is_used_up(tier, need) {
            return self.free_on(tier) >= need;
        }
        let room = &self.slot(tier).room;
        let wanting = Wanting::new(self, tier, need);
        let limit = Instant::now() + self.config.backing_timeout;
        let mut patience = Instant::now() + ROOM_TIMEOUT;
        loop {
            // Before the look: what comes from here on need not be waited for.
            let (seen, (gone, _)) = (room.freed(), room.gone());
            if self.free_on(tier) >= need {
                return true;
            }
            if Instant::now() >= limit || !wanting.lacks_room() {
                return false;
            }
            let pressed = wanting.press();
            // What a file in use gives back is no sign that more will come.
            let comes = || room.gone().0 != gone;
            if pressed.gone || comes() {
                patience = Instant::now() + ROOM_TIMEOUT;
                continue;
            }
            let patient = Instant::now() < patience;
            // Others have their turn: these are left alone for a while.
            if pressed.refused && patient {
                continue;
            }
            // Others may be at it: what leaves counts as gone where it is decided what goes.
            let leaves = self.steward.lock().is_leaving(unit::Tier(tier));
            let may_come = pressed.flushing || leaves || !self.above.is_idle();
            if !may_come && patient && room.freed() != seen {
                continue;
            }
            if !may_come || !room.is_worth_waiting() || self.is_used_up(tier, need) {
                return self.free_on(tier) >= need;
            }
            let waited = room.wait(seen, patience);
            if comes() {
                patience = Instant::now() + ROOM_TIMEOUT;
            } else if waited == Waited::Long {
                self.metrics.vain_waits.inc();
                room.waited_in_vain();
                return self.free_on(tier) >= need;
            }
        }
    }

    /// As [`Residency::free_room`], but waits for nothing.
    pub(crate) fn free_room_at_once(&self, tier: u8, need: u64) -> bool {
        self.discard_removed();
        if self.free_on(tier) < need {
            let wanting = Wanting::new(self, tier, need);
            if wanting.lacks_room() {
                wanting.press();
            }
        }
        self.free_on(tier) >= need
    }

    /// Whether less than `need` bytes would be free of a tier if all went that is not in use.
    fn is_used_up(&self, tier: u8, need: u64) -> bool {
        let here = |ino: &Ino| self.residents.get(ino.0).filter(|found| found.tier == tier);
        let now = Instant::now();
        let in_use = &self.slot(tier).in_use;
        let known = in_use.lock().known(now);
        let held = known.unwrap_or_else(|| {
            let files = self.files.in_use().into_iter().filter(|ino| self.is_open(*ino));
            // As the steward knows them: what a file has grown by since it was opened is in neither.
            let held = files.filter_map(|ino| here(&ino)).map(|found| found.charged).sum();
            in_use.lock().counted(held, now, now.elapsed());
            held
        });
        let unused = self.steward.lock().used(unit::Tier(tier)).0.saturating_sub(held);
        self.slot(tier).room.free() + unused < need
    }

    /// Removes an object; an error that comes after the deed is none.
    pub(crate) fn remove_object(&self, tier: u8, ino: Ino) -> Result<()> {
        let tier = &*self.slot(tier).tier;
        match tier.remove(ino.0) {
            Err(error)
                if !tier.open(ino.0).is_err_and(|look| look.class() == ErrorClass::NotFound) =>
            {
                Err(error.into())
            }
            _ => Ok(()),
        }
    }

    /// What a tier has of a clean file is about to go. That the backing store has it must be known after a
    /// power cut, too: it is not always found there, as in a directory of which nobody knows that it is there.
    pub(crate) fn be_surely_clean(&self, ino: Ino) -> Result<()> {
        if !self.meta.is_surely_clean(ino) {
            self.meta.sync()?;
        }
        Ok(())
    }

    /// The location of a file of which an object is to make way; none if somebody has it in hand until then, or
    /// its bytes would have to be looked for in the backing store. Who wants room must not wait for what has
    /// nothing to do with him.
    fn location_to_leave<'a>(
        &self,
        file: &'a File,
        until: Instant,
    ) -> Result<Option<RwLockWriteGuard<'a, DataLocation>>> {
        let Some(mut location) = file.location.try_write_until(until) else { return Ok(None) };
        if !location.loaded {
            if self.meta.get(file.ino)?.spilled {
                return Ok(None);
            }
            self.look_up(file, &mut location)?;
        }
        Ok(Some(location))
    }

    /// Removes a clean object that nobody uses; false when that is not so, or somebody has it in hand until then.
    pub(super) fn evict(&self, ino: Ino, tier: u8, until: Instant) -> Result<bool> {
        let file = self.files.get(ino);
        let Some(mut location) = file.location.try_write_until(until) else { return Ok(false) };
        // Only under the lock: it may have been written, closed and moved since this was decided.
        let Some(resident) = self.residents.get(ino.0).filter(|found| found.tier == tier) else {
            drop(location);
            if self.residents.get(ino.0).is_none() {
                self.decide(Event::Removed { object: ino });
            }
            return Ok(true);
        };
        if resident.dirty {
            self.decide(Event::Dirty { object: ino });
            return Ok(false);
        }
        let kept = match self.meta.get(ino) {
            Ok(record) => record.is_dirty() || record.pinned || may_stand_nowhere(&record),
            Err(error) => !matches!(error, forebay_meta::Error::Stale(_)),
        };
        if file.is_open() || kept {
            return Ok(false);
        }
        let slot = &self.tiers[usize::from(tier)];
        let object = match &location.place {
            Some(place) => place.object.clone(),
            None => slot.tier.open(ino.0)?,
        };
        // A mapping outlives its open file: stores into it would be lost.
        let unused = match object.exclusive() {
            Ok(lease) => lease.is_some(),
            Err(_) => self.config.passthrough == crate::Passthrough::Off,
        };
        if !unused {
            return Ok(false);
        }
        self.remove_left_behind_of(ino);
        self.keep_out_left_behind(ino)?;
        self.be_surely_clean(ino)?;
        fail_at!("node.evict.before_remove");
        self.remove_object(tier, ino)?;
        fail_at!("node.evict.after_remove");
        let place = location.place.take();
        location.loaded = false;
        self.metrics.evictions.inc();
        self.metrics.evicted_bytes.add(resident.charged);
        fail::fail_point!("node.evict.before_forget");
        // Before the next one comes to the file: it may bring an object of its own.
        self.forget_resident(ino, place.as_ref());
        drop(location);
        Ok(true)
    }

    /// Keeps only the first bytes of a clean object.
    pub(super) fn evict_tail(&self, ino: Ino, tier: u8, keep: u64, until: Instant) -> Result<bool> {
        let extent = self.config.extent_bytes;
        let file = self.files.get(ino);
        let Some(mut location) = self.location_to_leave(&file, until)? else { return Ok(false) };
        // Only under the lock: it may have been written, closed and published since this was decided.
        let record = self.meta.get(ino)?;
        // Whole extents, and at least one goes: what is asked for is not there otherwise.
        let keep = keep.min(record.attr.size.saturating_sub(1)) / extent * extent;
        if keep == 0 {
            drop(location);
            return self.evict(ino, tier, until);
        }
        if file.is_open() || record.is_dirty() || record.pinned || may_stand_nowhere(&record) {
            return Ok(false);
        }
        let Some(place) = location.place.as_mut().filter(|place| place.tier == tier) else {
            return Ok(false);
        };
        if place.is_dirty() || self.maybe_mapped(place) {
            return Ok(false);
        }
        self.be_surely_clean(ino)?;
        if place.is_marked_whole() {
            let map = Presence::sidecar_bytes_for(extent, record.attr.size);
            if !self.take_room_for_file(tier, map) {
                return Ok(false);
            }
            place.charge.bytes.fetch_add(map, Ordering::AcqRel);
            let slot = &self.tiers[usize::from(tier)].tier;
            let mut presence = slot.create_map(ino.0, extent, record.attr.size)?;
            presence.mark_clean(0..record.attr.size)?;
            let moves = place.object.header()?.moves;
            place.set_header(&Header { moves, ..self.header_for(&record, false, false) })?;
            place.presence = Some(parking_lot::RwLock::new(presence));
            place.charge.paid_end.store(0, Ordering::Release);
        }
        let DataLocation { place: Some(place), base, .. } = &mut *location else {
            return Ok(false);
        };
        // Before the map says that these bytes are there: of a file that was made here zeros were beneath.
        *base = Underlay::backing();
        let runs = match &place.presence {
            Some(presence) => {
                let (mut presence, mut runs) = (presence.write(), Vec::new());
                self.heeding(&file, || {
                    runs = presence.clear(keep..record.attr.size)?;
                    Ok(())
                })?;
                runs
            }
            None => Vec::new(),
        };
        fail_at!("node.evict.tail");
        for run in runs {
            place.object.punch(run.start, run.end - run.start)?;
        }
        self.true_up(&file, place)?;
        Ok(true)
    }

    /// Moves an object that nobody uses to another tier, dirty or not.
    pub(super) fn move_object(&self, ino: Ino, from: u8, to: u8, until: Instant) -> Result<bool> {
        let file = self.files.get(ino);
        let Some(mut location) = self.location_to_leave(&file, until)? else { return Ok(false) };
        let Some(place) = location.place.as_ref().filter(|place| place.tier == from) else {
            return Ok(false);
        };
        if file.is_open() || place.presence.is_some() || self.maybe_mapped(place) {
            return Ok(false);
        }
        let target = &self.tiers[usize::from(to)];
        let (charged, dirty) = (place.charge.bytes(), place.is_dirty());
        if !dirty {
            self.be_surely_clean(ino)?;
        }
        if !self.take_room_for_file(to, charged) {
            return Ok(false);
        }
        let (object, size) = match self.copy_to_tier(&file, place, to) {
            Ok(Some(copied)) => copied,
            not_copied => {
                target.room.give(charged);
                self.take_back_move(ino, place, to)?;
                return not_copied.map(|_| false);
            }
        };
        let old = &self.tiers[usize::from(from)];
        // Times that are set from here on are set on the new one.
        let _one_at_a_time = file.times.lock();
        if let Err(error) = self.complete_move(ino, place, &*object, to) {
            target.room.give(charged);
            self.take_back_move(ino, place, to)?;
            return Err(error);
        }
        if let Err(error) = self.remove_moved(ino, from)
            && self.counts_still(ino, place, &*object).inspect_err(|_| target.room.give(charged))?
        {
            target.room.give(charged);
            self.drop_moved_copy(ino, to);
            return Err(error);
        }
        if dirty && let Err(error) = old.tier.settle_removals(ino.0) {
            // After a power cut it may be back: it was moved less often, and does not count.
            tracing::warn!(%ino, %error, "the removal of an object is not durable yet");
        }
        old.room.give_all(charged);
        let charge = Charge::new(charged, if size <= charged { size } else { 0 });
        let place = TierObject::new(to, object, None, charge, dirty);
        self.set_resident(ino, &place);
        self.announce_resident(ino, &place);
        location.place = Some(place);
        self.metrics.demotions.add(1);
        Ok(true)
    }

    /// Copies a whole object to another tier, where it is nothing until [`Residency::complete_move`]; `None`
    /// if somebody wants the file meanwhile.
    fn copy_to_tier(
        &self,
        file: &FileRef,
        place: &TierObject,
        to: u8,
    ) -> Result<Option<(Arc<dyn Object>, u64)>> {
        let header = place.object.header()?;
        // Neither whole nor with a map nor dirty.
        let begun = Header { whole: false, dirty: false, writing: false, ..header };
        let object = self.create_object(to, file.ino.0, &begun)?;
        let stat = place.object.stat()?;
        let nobody_waits = NobodyWaits { file: file.clone(), stopping: self.stopping.clone() };
        let limits =
            Limits { permit: Some(Arc::new(nobody_waits)), ..self.limits(Priority::Rebalance) };
        match copy::copy_range(&*place.object, &*object, 0..stat.size, &limits, &Cancel::default())
        {
            Err(StoreError::Cancelled) => return Ok(None),
            copied => copied?,
        };
        object.set_len(stat.size)?;
        if place.is_dirty() {
            object.sync(false)?;
        }
        fail_at!("node.move.copied");
        Ok(Some((object, stat.size)))
    }

    /// The copy on another tier counts from here on, and no longer the object that it was made of. If
    /// it is dirty, bytes and header are durable there in this order, before the other one goes.
    fn complete_move(
        &self,
        ino: Ino,
        place: &TierObject,
        object: &dyn Object,
        to: u8,
    ) -> Result<()> {
        let stat = place.object.stat()?;
        object.set_times(Some(stat.atime), Some(stat.mtime))?;
        let mut header = place.object.header()?;
        header.whole = true;
        header.moves += 1;
        object.set_header(&header)?;
        if place.is_dirty() {
            object.sync(false)?;
            self.tiers[usize::from(to)].tier.sync_dir(ino.0)?;
        }
        fail_at!("node.move.whole");
        Ok(())
    }

    fn remove_moved(&self, ino: Ino, from: u8) -> Result<()> {
        fail_at!("node.move.before_remove");
        Ok(self.tiers[usize::from(from)].tier.remove(ino.0)?)
    }

    /// Whether an object counts that was moved, and that could not be removed afterwards: then it says so
    /// from here on. The copy is complete, and may be all that is left: it gives way only if the object can
    /// be opened and read, and takes a new header. An error may have come after the deed.
    fn counts_still(&self, ino: Ino, place: &TierObject, copy: &dyn Object) -> Result<bool> {
        let tier = &self.tiers[usize::from(place.tier)].tier;
        let is_there = tier.open(ino.0).and_then(|object| object.header());
        match is_there.map_err(NodeError::from).and_then(|_| self.count_again(place)) {
            Ok(()) => Ok(true),
            Err(NodeError::Store(error)) if error.class() == ErrorClass::NotFound => Ok(false),
            Err(error) => {
                // The new header may be there all the same.
                let header = copy.header()?;
                copy.set_header(&Header { moves: header.moves + 2, ..header })?;
                copy.sync(false)?;
                if let Err(error) = self.leave_behind(place.tier, ino, &error) {
                    tracing::warn!(%ino, %error, "nor can that be noted");
                }
                Ok(false)
            }
        }
    }

    /// An object says that it is newer than what was made of it elsewhere.
    fn count_again(&self, place: &TierObject) -> Result<()> {
        self.edit_header(place, |header| {
            header.moves += 2;
            Ok(())
        })
    }

    /// An object stays where it is. What was made of it elsewhere will be the older of the two, and must not
    /// count any more, though it can't be removed, or comes back after a power cut.
    fn take_back_move(&self, ino: Ino, place: &TierObject, to: u8) -> Result<()> {
        self.drop_moved_copy(ino, to);
        self.count_again(place)
    }

    fn drop_moved_copy(&self, ino: Ino, to: u8) {
        let tier = &self.tiers[usize::from(to)].tier;
        if self.give_up_object(to, ino).is_ok() {
            return;
        }
        // Nor when the object is gone: as one that was begun and never counted.
        let begun = tier.open(ino.0).and_then(|object| {
            let header = object.header()?;
            object.set_header(&Header { whole: false, dirty: false, writing: false, ..header })
        });
        drop(begun);
    }

    /// Drops the copy of a clean file that nobody uses, for `forebay evict`; says whether it went.
    ///
    /// # Errors
    /// What the tier says.
    pub fn evict_file(&self, ino: Ino) -> Result<bool> {
        match self.residents.get(ino.0) {
            Some(resident) => {
                let until = Instant::now() + self.config.backing_timeout;
                self.evict(ino, resident.tier, until)
            }
            None => Ok(true),
        }
    }
}

/// Bytes of a tier's file system that objects may take.
fn free_of(usage: &TierUsage) -> u64 {
    usage.free.saturating_sub((usage.total / 32).clamp(MIN_KEPT, MAX_KEPT))
}

/// A file can't be opened while it is moved, which may take minutes: the move goes on as long as nobody wants to,
/// nor does the daemon end.
struct NobodyWaits {
    file: FileRef,
    stopping: Arc<AtomicBool>,
}

impl Permit for NobodyWaits {
    fn holds(&self) -> bool {
        !self.file.is_open() && !self.stopping.load(Ordering::Acquire)
    }
}

/// Whether a worker has yet to give a file the names that it has here. Those that it has in the backing store
/// may be gone by now, or only be claimed: then nothing but its copy has it.
fn may_stand_nowhere(record: &Record) -> bool {
    !record.links.is_empty() && !record.links.same(&record.backing.links)
}
