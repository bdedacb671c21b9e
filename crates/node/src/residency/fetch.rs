//! From the backing store to a tier: small files at once, large ones piece by piece behind and
//! ahead of their readers.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_core::steward::{Event, Placement};
use forebay_core::unit;
use forebay_meta::Record;
use forebay_store::copy::{self, Cancel, Limits, Pass, Priority, Turns};
use forebay_store::{BackingFile, ErrorClass, Object, Presence};
use forebay_types::Ino;
use parking_lot::Mutex;

use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::failpoints::fail_at;
use crate::metrics::Source;
use crate::pool::Urgency;
use crate::residency::Residency;
use crate::residency::data::BLOCK;
use crate::residency::data_location::{Admitted, AtRange, Charge, Gaps, TierObject, Underlay};
use crate::residency::files::{File, FileRef};
use crate::residency::holes::write_around_holes;
use crate::residency::room::no_room;
use crate::residency::room::write_all;
use crate::residency::seams::SharedCopy;

/// What is copied ahead of a file's readers.
#[derive(Default)]
pub struct Filler {
    /// A job is under way.
    active: bool,
    /// Where it goes on.
    next: u64,
    /// Where it ends.
    until: u64,
    /// Nobody is known to want what it copies.
    speculative: bool,
    /// Extents that a random reader has missed once.
    touched: Vec<u64>,
}

/// How a file is brought in.
#[derive(Clone, Copy)]
pub(crate) enum FetchMode<'a> {
    /// Somebody waits for it, or asked for it: room is made where there is none.
    Now,
    /// Ahead of its use, into room that is there, until it is cancelled.
    Ahead(&'a Cancel),
}

impl FetchMode<'_> {
    fn priority(self) -> Priority {
        match self {
            FetchMode::Now => Priority::Demand,
            FetchMode::Ahead(_) => Priority::Prefetch,
        }
    }

    fn cancel(self) -> Cancel {
        match self {
            FetchMode::Now => Cancel::default(),
            FetchMode::Ahead(cancel) => cancel.clone(),
        }
    }
}

/// What became of bytes for an absent part of an object.
enum Installed {
    Done,
    /// The file was written, or moved, meanwhile.
    Overtaken,
    /// The device is full.
    NoRoom,
}

/// Extents that are brought in at a time where other nodes may have them.
pub(crate) const WINDOW: u64 = 16;

/// Random misses remembered for a file.
const TOUCHED: usize = 64;
/// How far a sequential reader is run ahead of, at most.
const AHEAD: u64 = 16 << 20;

/// The count of writes of a file that no tier has. The caller holds `fetching`.
fn absent(file: &File) -> Option<u64> {
    let seen = file.writes.load(Ordering::Acquire);
    let location = file.location.read();
    (location.place.is_none() && matches!(location.base, Underlay::Backing(_))).then_some(seen)
}

/// As far as a reader has come it is likely to go on; so far and further is run ahead of it.
fn ahead_of(sequence: u64) -> u64 {
    sequence.saturating_mul(4).min(AHEAD)
}

/// From where a file is copied: the backing store, or other nodes where that may be.
#[derive(Clone, Copy)]
struct CopySource<'a> {
    backing: &'a dyn BackingFile,
    shared: Option<&'a SharedCopy>,
}

impl Residency {
    /// Copies a small file to a tier before its open returns.
    pub(crate) fn fetch_whole(&self, file: &FileRef, record: &Arc<Record>) -> Result<()> {
        let _one = file.fetching.lock();
        let Some(seen) = absent(file) else { return Ok(()) };
        let size = record.attr.size;
        let Some(tier) = self.admit(file.ino, size, size) else { return Ok(()) };
        let _demand = self.demand_gate();
        let fetched = self.fetch_admitted(file, record, Admitted { tier, seen }, FetchMode::Now);
        self.pass_by_failed(tier, fetched)
    }

    /// Copies a small file to a tier that has taken it already.
    pub(crate) fn fetch_to(
        &self,
        file: &FileRef,
        record: &Arc<Record>,
        tier: u8,
        mode: FetchMode<'_>,
    ) -> Result<()> {
        let _one = file.fetching.lock();
        match absent(file) {
            Some(seen) => self.fetch_admitted(file, record, Admitted { tier, seen }, mode),
            None => Ok(()),
        }
    }

    /// The caller holds the file's `fetching`.
    fn fetch_admitted(
        &self,
        file: &FileRef,
        record: &Arc<Record>,
        Admitted { tier, seen }: Admitted,
        mode: FetchMode<'_>,
    ) -> Result<()> {
        let print = record.backing.fingerprint;
        let size = record.attr.size;
        // All of it is one extent to other nodes.
        let shared = print.filter(|print| print.size == size).and_then(|print| {
            self.peers
                .shared(file.ino, &print, self.config.fetch_on_open_bytes.max(size))
                .map(SharedCopy::at_once)
        });
        let fetched = self.above.open_version(file.ino).and_then(|backing| {
            let from = CopySource { backing: &*backing, shared: shared.as_ref() };
            self.fetch_into(file, record, tier, from, mode)
        });
        let installed = match fetched {
            Ok(Some(place)) => self.install(file, record, place, seen),
            other => {
                self.decide(Event::Removed { object: file.ino });
                other.map(|_| false)
            }
        };
        if let Some(shared) = shared {
            match installed {
                Ok(true) => self.peers.announce(&shared, vec![0]),
                _ => self.peers.renounce(&shared, vec![0]),
            }
        }
        installed.map(drop)
    }

    /// Gives a file the object that was made for it, if the file is still as it was then: not
    /// written, and its version in the backing store the one of the record. Whether it got it.
    fn install(
        &self,
        file: &FileRef,
        record: &Record,
        place: TierObject,
        seen: u64,
    ) -> Result<bool> {
        let mut location = file.location.write();
        let now = self.meta.get(file.ino);
        let same = |now: &Record| {
            (now.attr.size, now.backing.fingerprint, now.spilled)
                == (record.attr.size, record.backing.fingerprint, record.spilled)
        };
        let overtaken = location.place.is_some()
            || !matches!(location.base, Underlay::Backing(_))
            || file.writes.load(Ordering::Acquire) != seen
            || !now.is_ok_and(|now| same(&now));
        if overtaken {
            let here = location.place.as_ref().map(|now| now.tier);
            return self.abandon(file.ino, &place, here).map(|()| false);
        }
        self.set_resident(file.ino, &place);
        self.announce_resident(file.ino, &place);
        location.place = Some(place);
        Ok(true)
    }

    fn make_room(&self, tier: u8, bytes: u64, mode: FetchMode<'_>) -> bool {
        self.take_room_for_file(tier, bytes)
            || matches!(mode, FetchMode::Now)
                && self.free_room(tier, bytes)
                && self.take_room_for_file(tier, bytes)
    }

    /// Gives an object up that was made for a file which was written meanwhile, and may have one by now, on
    /// the same tier in its place.
    fn abandon(&self, ino: Ino, place: &TierObject, now: Option<u8>) -> Result<()> {
        self.tiers[usize::from(place.tier)].room.give(place.charge.bytes());
        if now != Some(place.tier) {
            self.give_up_object(place.tier, ino)?;
        }
        if now.is_none() {
            self.decide(Event::Removed { object: ino });
        }
        Ok(())
    }

    /// Makes the object and fills it; `None` when the tier has no room or the file changed
    /// meanwhile, and the file is then served from the backing store.
    fn fetch_into(
        &self,
        file: &File,
        record: &Arc<Record>,
        tier: u8,
        CopySource { backing, shared }: CopySource<'_>,
        mode: FetchMode<'_>,
    ) -> Result<Option<TierObject>> {
        let size = record.attr.size;
        let slot = &self.tiers[usize::from(tier)];
        let charge = size.next_multiple_of(BLOCK) + BLOCK;
        if !self.make_room(tier, charge, mode) {
            return Ok(None);
        }
        let ino = file.ino.0;
        let (mut source, mut begun) = (Source::Fill, false);
        let made = (|| -> Result<Option<Arc<dyn Object>>> {
            // Neither whole nor with a map: should the daemon die now, it is nothing.
            let mut header = self.header_for(record, false, false);
            let object = self.create_object(tier, ino, &header)?;
            begun = true;
            match shared {
                None if self.copied_cold(backing, &*object, size)? => {}
                None => {
                    let limits = self.limits(mode.priority());
                    copy::copy_range(backing, &*object, 0..size, &limits, &mode.cancel())?;
                }
                Some(shared) => {
                    self.peers.fetch_from_peers(
                        shared,
                        backing,
                        &[0],
                        &mut |range, bytes, from| {
                            write_all(&*object, bytes, range.start)?;
                            source = from;
                            Ok(true)
                        },
                    )?;
                }
            }
            fail_at!("node.fetch.copied");
            let stat = backing.stat()?;
            if record.backing.fingerprint != Some(stat.fingerprint()) {
                return Ok(None);
            }
            object.set_len(size)?;
            object.set_times(Some(record.attr.atime), Some(record.attr.mtime))?;
            header.whole = true;
            object.set_header(&header)?;
            fail_at!("node.fetch.whole");
            Ok(Some(object))
        })();
        match made {
            Ok(Some(object)) => {
                self.metrics.bytes.of(source).add(size);
                let charge = Charge::new(charge, charge - BLOCK);
                Ok(Some(TierObject::new(tier, object, None, charge, false)))
            }
            failed => {
                slot.room.give(charge);
                self.end_of_fetch(tier, file.ino, begun, failed.map(drop)).map(|()| None)
            }
        }
    }

    /// Makes an object. The caller holds the file's `fetching` or is alone with it.
    pub(crate) fn create_object(
        &self,
        index: u8,
        ino: u64,
        header: &forebay_store::Header,
    ) -> Result<Arc<dyn Object>> {
        self.clear_left_behind(index, Ino(ino))?;
        if header.dirty {
            self.keep_out_left_behind(Ino(ino))?;
        }
        let tier = &self.tiers[usize::from(index)].tier;
        // A map that outlived its object: it would say of this one what is there.
        tier.remove_map(ino)?;
        match tier.create(ino, header) {
            Err(error) if error.class() == ErrorClass::Exists => {
                // The rest of a fetch that failed: the residency index does not know it.
                self.give_up_object(index, Ino(ino))?;
                Ok(tier.create(ino, header)?)
            }
            other => Ok(other?),
        }
    }

    /// Gives a large file an object without any extent, to be filled behind its readers.
    pub(crate) fn begin_partial(&self, file: &FileRef, record: &Arc<Record>) -> Result<()> {
        let _one = file.fetching.lock();
        let Some(seen) = absent(file) else { return Ok(()) };
        let size = record.attr.size;
        match self.admit(file.ino, size, size.min(self.config.extent_bytes)) {
            Some(tier) => {
                let begun = self.begin_admitted(file, tier, seen);
                self.pass_by_failed(tier, begun)
            }
            None => Ok(()),
        }
    }

    /// As [`Residency::begin_partial`], on a tier that has taken the file already.
    pub(crate) fn begin_partial_on(&self, file: &FileRef, tier: u8) -> Result<()> {
        let _one = file.fetching.lock();
        match absent(file) {
            Some(seen) => self.begin_admitted(file, tier, seen),
            None => Ok(()),
        }
    }

    /// The caller holds the file's `fetching`.
    fn begin_admitted(&self, file: &FileRef, tier: u8, seen: u64) -> Result<()> {
        // As it is now: a publication may have made the caller's an old one.
        let record = &self.meta.get(file.ino)?;
        let size = record.attr.size;
        let slot = &self.tiers[usize::from(tier)];
        let charge = BLOCK + Presence::sidecar_bytes_for(self.config.extent_bytes, size);
        if self.check_length(size).is_err() || !self.take_room_for_file(tier, charge) {
            self.decide(Event::Removed { object: file.ino });
            return Ok(());
        }
        let made = (|| -> Result<TierObject> {
            let header = self.header_for(record, false, false);
            self.clear_left_behind(tier, file.ino)?;
            match slot.tier.remove(file.ino.0) {
                Err(error) if error.class() != ErrorClass::NotFound => return Err(error.into()),
                // The rest of a fetch that failed, or nothing.
                _ => {}
            }
            // Before the object, which must never be without one.
            let presence = slot.tier.create_map(file.ino.0, self.config.extent_bytes, size)?;
            fail_at!("node.partial.mapped");
            let object = slot.tier.create(file.ino.0, &header)?;
            fail_at!("node.partial.made");
            object.set_len(size)?;
            object.set_times(Some(record.attr.atime), Some(record.attr.mtime))?;
            Ok(TierObject::new(tier, object, Some(presence), Charge::new(charge, 0), false))
        })();
        let place = match made {
            Ok(place) => place,
            Err(error) => {
                slot.room.give(charge);
                self.decide(Event::Removed { object: file.ino });
                if self.has_tier_failed_at(tier, &error) {
                    return Err(error);
                }
                self.give_up_begun(tier, file.ino);
                drop(slot.tier.remove_map(file.ino.0));
                return match error {
                    _ if self.is_known_left_behind(usize::from(tier), file.ino, None) => Ok(()),
                    NodeError::Store(error) if no_room(&error) => Ok(()),
                    other => Err(other),
                };
            }
        };
        self.install(file, record, place, seen).map(drop)
    }

    /// Asks the steward where an object may go; `None` to pass the tiers over.
    fn admit(&self, ino: Ino, size: u64, first: u64) -> Option<u8> {
        let wanted = Event::Wanted { object: ino, size: unit::Bytes(size), prefetch: false };
        match self.decide(wanted) {
            Some(Placement::Tier(tier, bytes))
                if bytes.0 >= first.min(size) && !self.tier_has_failed(tier.0) =>
            {
                Some(tier.0)
            }
            Some(Placement::Tier(..)) => {
                self.decide(Event::Removed { object: ino });
                None
            }
            _ => None,
        }
    }

    /// The opened backing file of a base.
    pub(crate) fn opened_base(
        &self,
        file: &File,
        opened: &Mutex<Option<Arc<dyn BackingFile>>>,
    ) -> Result<Arc<dyn BackingFile>> {
        let mut opened = opened.lock();
        if let Some(backing) = &*opened {
            return Ok(backing.clone());
        }
        let backing = self.above.open_known_version(file.ino)?;
        *opened = Some(backing.clone());
        Ok(backing)
    }

    /// A reader missed: a sequential one is run ahead of, a random one gets an extent that it
    /// misses twice.
    pub(crate) fn fill_after_miss(&self, file: &FileRef, read: Range<u64>, sequence: u64) {
        if file.location.read().place.is_none() || read.is_empty() {
            return;
        }
        let extent = self.config.extent_bytes;
        let sequential = sequence > 0;
        let mut filler = file.filler.lock();
        let first = read.start - read.start % extent;
        if !sequential {
            let index = first / extent;
            if !filler.touched.contains(&index) {
                if filler.touched.len() >= TOUCHED {
                    filler.touched.remove(0);
                }
                filler.touched.push(index);
                return;
            }
        }
        let until = if sequential { read.end + ahead_of(sequence) } else { first + extent };
        if filler.active {
            if sequential {
                filler.until = filler.until.max(until);
                filler.speculative = false;
            }
            return;
        }
        filler.next = first;
        filler.until = until;
        filler.speculative = !sequential;
        filler.active = true;
        drop(filler);
        let job = file.clone();
        let started = self.this.upgrade().is_some_and(|node| {
            self.slow
                .run(Urgency::Background, move || {
                    if let Err(error) = node.fill(&job)
                        && !node.above.takes_newer_version(&job, &error)
                    {
                        tracing::debug!(ino = %job.ino, %error, "filling stopped");
                    }
                    job.filler.lock().active = false;
                })
                .is_ok()
        });
        if !started {
            file.filler.lock().active = false;
        }
    }

    /// Copies absent extents until the filler's end.
    fn fill(&self, file: &FileRef) -> Result<()> {
        let extent = self.config.extent_bytes;
        let mut buffer = vec![0; usize::try_from(extent).unwrap_or(1 << 20)];
        let (mut filled, mut asked_to) = (0, 0);
        loop {
            let (at, speculative) = {
                let mut filler = file.filler.lock();
                let size = file.location.read().place.as_ref().map_or(0, |place| {
                    place.presence.as_ref().map_or(0, |presence| presence.read().size())
                });
                let (at, until) = (filler.next, filler.until.min(size));
                if at >= until || self.stopping.load(Ordering::Relaxed) {
                    break;
                }
                filler.next = at + extent;
                let speculative = filler.speculative;
                drop(filler);
                if !speculative && at >= asked_to {
                    // Of other nodes many extents are asked at once, so that none waits for questions.
                    asked_to = until.min(at + WINDOW * extent);
                    if !self.peers.fill_shared(file, at..asked_to, FetchMode::Now)? {
                        break;
                    }
                }
                (at, speculative)
            };
            let range = at..at + extent;
            let gate = self.copies.gate.as_ref().filter(|_| speculative);
            let copied = match gate {
                Some(gate) => {
                    gate.speculate(|| self.fill_extent(file, range, &mut buffer, FetchMode::Now))
                }
                None => Some(self.fill_extent(file, range, &mut buffer, FetchMode::Now)),
            };
            if !copied.unwrap_or(Ok(false))? {
                break;
            }
            filled += 1;
        }
        if filled > 0 {
            self.finish_if_whole(file)?;
        }
        Ok(())
    }

    /// Copies one extent if it is absent; false when its tier has no room.
    pub(crate) fn fill_extent(
        &self,
        file: &FileRef,
        range: Range<u64>,
        buffer: &mut [u8],
        mode: FetchMode<'_>,
    ) -> Result<bool> {
        if !self.peers.fill_shared(file, range.clone(), mode)? {
            return Ok(false);
        }
        let Some((tier, base)) = self.base_to_fill_from(file)? else { return Ok(false) };
        let runs = file.location.read().place().map_or_else(Vec::new, |place| place.absent(range));
        fail_at!("node.fill.begin");
        for run in runs {
            let len = run.end - run.start;
            // Before the slow store is asked; paid for when the bytes are there.
            if !self.make_room(tier, len.next_multiple_of(BLOCK), mode) {
                return Ok(false);
            }
            self.prefetch_gate();
            let bytes = &mut buffer[..usize::try_from(len).unwrap_or(0)];
            let read = self.read_cold(&*base, bytes, run.start);
            // Others may have changed it in place since it was opened.
            let same = read.and_then(|read| self.check_version(file.ino, &*base).map(|()| read));
            let read = match same {
                Ok(read) => read,
                Err(error) => {
                    self.tiers[usize::from(tier)].room.give(len.next_multiple_of(BLOCK));
                    return Err(error);
                }
            };
            let gaps = Gaps { tier, base: &base };
            match self.install_run(file, gaps, run, &bytes[..read], Source::Fill)? {
                Installed::Done => {}
                Installed::Overtaken => return Ok(true),
                Installed::NoRoom => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The tier of a partly resident file, and what its absent extents are read from.
    pub(crate) fn base_to_fill_from(
        &self,
        file: &File,
    ) -> Result<Option<(u8, Arc<dyn BackingFile>)>> {
        let location = file.location.read();
        match (&location.place, &location.base) {
            (Some(place), Underlay::Backing(opened)) if place.presence.is_some() => {
                Ok(Some((place.tier, self.opened_base(file, opened)?)))
            }
            _ => Ok(None),
        }
    }

    /// As [`Residency::install_run`] of a whole extent, whose room is not charged yet; false if there is
    /// none.
    pub(crate) fn install_extent(
        &self,
        file: &FileRef,
        gaps: Gaps<'_>,
        AtRange { range, bytes }: AtRange<'_>,
        source: Source,
        mode: FetchMode<'_>,
    ) -> Result<bool> {
        if !self.make_room(gaps.tier, (range.end - range.start).next_multiple_of(BLOCK), mode) {
            return Ok(false);
        }
        let installed = self.install_run(file, gaps, range, bytes, source)?;
        Ok(matches!(installed, Installed::Done))
    }

    /// Puts bytes into an absent part of an object, for which its tier was charged.
    fn install_run(
        &self,
        file: &FileRef,
        Gaps { tier, base }: Gaps<'_>,
        run: Range<u64>,
        bytes: &[u8],
        source: Source,
    ) -> Result<Installed> {
        let len = run.end - run.start;
        let charge = len.next_multiple_of(BLOCK);
        let room = &self.tiers[usize::from(tier)].room;
        // The write lock keeps out a writer of the same extent, whose bytes would be newer.
        let location = file.location.write();
        // What was written past the tier meanwhile is absent as well, and in another base.
        let same_base = location.base.is_opened_as(base);
        let still = location.place.as_ref().filter(|_| same_base).and_then(|place| {
            let presence = place.presence.as_ref()?;
            let missing = place.absent(run.clone());
            (place.tier == tier && missing == [run.clone()] && bytes.len() as u64 == len)
                .then_some((place, presence))
        });
        let Some((place, presence)) = still else {
            room.give(charge);
            return Ok(Installed::Overtaken);
        };
        match self.write_fetched(file, place, run.start, bytes) {
            Ok(written) if written == bytes.len() => {}
            Ok(_) => {
                room.give(charge);
                return Ok(Installed::NoRoom);
            }
            Err(error) => {
                room.give(charge);
                return if no_room(&error) { Ok(Installed::NoRoom) } else { Err(error.into()) };
            }
        }
        place.charge.bytes.fetch_add(charge, Ordering::AcqRel);
        fail_at!("node.fill.written");
        presence.write().mark_clean(run)?;
        self.metrics.bytes.of(source).add(len);
        self.set_resident(file.ino, place);
        self.announce_resident(file.ino, place);
        Ok(Installed::Done)
    }

    /// Writes what was fetched into an object, which keeps the time of the last change.
    fn write_fetched(
        &self,
        file: &File,
        place: &TierObject,
        offset: u64,
        bytes: &[u8],
    ) -> forebay_store::Result<usize> {
        let _one_at_a_time = file.times.lock();
        let mtime = place.object.stat()?.mtime;
        let written = write_around_holes(&*place.object, bytes, offset);
        place.object.set_times(None, Some(mtime))?;
        written
    }

    /// A file all of whose extents are there loses its map: the next first open can bypass the
    /// daemon.
    pub(crate) fn finish_if_whole(&self, file: &FileRef) -> Result<()> {
        let is_due = |place: &&TierObject| !place.is_marked_whole() && place.has_all_bytes();
        {
            let location = file.location.read();
            let place = location.place.as_ref().filter(|_| !location.is_spilled()).filter(is_due);
            let Some(place) = place else { return Ok(()) };
            // Most of it, while the file is read: it may be gigabytes. After a failure it is written again first.
            if !self.failed_syncs.has(file.ino) {
                self.sync_object(file, place, true)?;
            }
        }
        let mut location = file.location.write();
        if location.is_spilled() {
            return Ok(());
        }
        let Some(place) = &mut location.place else { return Ok(()) };
        if !is_due(&&*place) {
            return Ok(());
        }
        let dirty = place.is_dirty();
        // Copying stored the bytes now, but they are as old as the record says.
        if !dirty {
            let record = self.meta.get(file.ino)?;
            place.object.set_times(None, Some(record.attr.mtime))?;
        }
        self.write_parts_again(file, Some(place), None)?;
        self.sync_object(file, place, true)?;
        fail_at!("node.fill.finish");
        let mut header = place.object.header()?;
        header.whole = true;
        place.set_header(&header)?;
        fail_at!("node.fill.whole");
        self.let_go_of_map(file, place);
        place.charge.paid_end.store(place.end_of_blocks(), Ordering::Release);
        self.set_resident(file.ino, place);
        Ok(())
    }

    /// Tells the steward what an object takes up.
    pub(crate) fn announce_resident(&self, ino: Ino, place: &TierObject) {
        self.decide(Event::Resident {
            object: ino,
            tier: unit::Tier(place.tier),
            bytes: unit::Bytes(place.charge.bytes()),
        });
        if place.is_dirty() {
            self.decide(Event::Dirty { object: ino });
        }
    }

    /// Copies all of a file to a tier now, for `warm`. Says how many bytes of it are there. `advance` is
    /// told up to where it has come, and ends it by saying false.
    ///
    /// # Errors
    /// What the backing store or the tier says.
    pub fn warm_file(&self, ino: Ino, advance: &mut dyn FnMut(u64) -> bool) -> Result<u64> {
        match self.warm_once(ino, advance) {
            Err(error) if self.above.takes_newer_version(&self.files.get(ino), &error) => {
                self.warm_once(ino, advance)
            }
            warmed => warmed,
        }
    }

    fn warm_once(&self, ino: Ino, advance: &mut dyn FnMut(u64) -> bool) -> Result<u64> {
        let record = self.meta.get(ino)?;
        if record.attr.kind != forebay_meta::FileKind::Regular || record.attr.size == 0 {
            return Ok(0);
        }
        let file = self.files.get(ino);
        self.load(&Context::DAEMON, &file)?;
        if file.location.read().place.is_none() {
            if record.is_dirty() {
                return Ok(0);
            }
            if record.attr.size <= self.config.fetch_on_open_bytes {
                self.fetch_whole(&file, &record)?;
            } else {
                self.begin_partial(&file, &record)?;
            }
        }
        let extent = self.config.extent_bytes;
        let mut buffer = vec![0; usize::try_from(extent).unwrap_or(1 << 20)];
        let mut at = 0;
        while at < record.attr.size {
            if at % (WINDOW * extent) == 0 {
                self.peers.fill_shared(&file, at..at + WINDOW * extent, FetchMode::Now)?;
            }
            if !self.fill_extent(&file, at..at + extent, &mut buffer, FetchMode::Now)?
                || !advance((at + extent).min(record.attr.size))
            {
                break;
            }
            at += extent;
        }
        self.finish_if_whole(&file)?;
        let resident = self.residents.get(ino.0).map_or(0, |resident| resident.charged);
        Ok(resident.min(record.attr.size))
    }

    /// The conditions of copies of a class.
    pub(crate) fn limits(&self, priority: Priority) -> Limits {
        let cold = self.cold.clone().filter(|_| priority == Priority::WriteBack);
        let turns = cold.map(|cold| cold as Arc<dyn Turns>);
        let limits = Limits { priority, turns, ..self.copies.clone() };
        match priority {
            Priority::WriteBack => Limits { progress: self.written_back.clone(), ..limits },
            _ => limits,
        }
    }

    /// Bytes copied to the backing store since the start, as they are copied: a file counts before it
    /// is whole there.
    pub fn bytes_written_back(&self) -> u64 {
        self.written_back.bytes.load(Ordering::Relaxed)
    }

    /// While it is held, copies that nobody waits for stand back.
    pub(crate) fn demand_gate(&self) -> Option<Pass<'_>> {
        self.copies.gate.as_ref().map(|gate| gate.enter(Priority::Demand))
    }

    fn prefetch_gate(&self) {
        if let Some(gate) = &self.copies.gate {
            drop(gate.enter(Priority::Prefetch).wait(&Cancel::default()));
        }
    }
}
