//! The bytes of a file between the namespace and the tiers: looked up at first use, marked dirty
//! before they change, settled when the last writer has closed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_core::steward::Event;
use forebay_core::unit;
use forebay_meta::{Attr, Moment, Record, Times};
use forebay_store::{Believed, ErrorClass, Presence};
use forebay_types::{FileKind, Ino, Timestamp};
use rustix::io::Errno;

use crate::config::WritebackPolicy;
use crate::context::Context;
use crate::defects::BackgroundKind;
use crate::error::Result;
use crate::failpoints::fail_at;
use crate::metrics::Source;
use crate::residency::Residency;
use crate::residency::data_location::{
    Charge, DataLocation, TierObject, Underlay, is_built_upon_another,
};
use crate::residency::files::{File, FileRef};
use crate::residency::overlay::compose;
use crate::residency::residents::Resident;
use crate::residency::unsettled::IN_HAND;

/// How long `stat` waits for whoever changes where a file's bytes are; then the record counts.
const ATTRIBUTES_WAIT: Duration = Duration::from_millis(50);
/// Whoever has a file in hand for longer may wait for the backing store.
const IN_HAND_WAIT: Duration = Duration::from_millis(10);
/// How often an object is looked for that has just moved.
const MAX_LOOKS: usize = 8;
/// The longest step of the clock by which files get their times.
pub(crate) const CLOCK_STEP: Duration = Duration::from_millis(10);

/// Allocation grain that charges are rounded to.
pub(crate) const BLOCK: u64 = 4096;

impl Residency {
    /// Looks up where the bytes of a file are, once while it is in use. A spill file is looked up in
    /// the backing store.
    ///
    /// # Errors
    /// What the tier, the backing store or the namespace says.
    pub(crate) fn load(&self, context: &Context, file: &File) -> Result<()> {
        if file.location_for(context)?.loaded {
            return Ok(());
        }
        // As it is now: the caller's may be older than the last use of the file.
        let record = self.meta.get(file.ino)?;
        if record.spilled && !self.peers.is_elsewhere(&record) {
            context.wait()?;
        }
        let mut location = file.location.write();
        if location.loaded {
            return Ok(());
        }
        self.look_up(file, &mut location)
    }

    /// Reads what is on the tier from there and the rest from the base. Nobody waits for an extent
    /// to be filled: a miss costs what it costs without a cache.
    pub(crate) fn read_with_gaps(
        &self,
        file: &File,
        location: &DataLocation,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let Some(place) = &location.place else {
            return self.read_base(file, &location.base, offset, buffer);
        };
        let len = place.object.len()?;
        if offset >= len {
            return Ok(0);
        }
        let want = buffer.len().min(usize::try_from(len - offset).unwrap_or(usize::MAX));
        let buffer = &mut buffer[..want];
        let range = offset..offset + want as u64;
        if place.is_marked_whole() {
            return Ok(place.object.read_at(buffer, offset)?);
        }
        let absent = place.absent(range);
        let from_tier = |from: u64, part: &mut [u8]| {
            let read = place.object.read_at(part, from)?;
            part[read..].fill(0);
            self.metrics.bytes.of(Source::Tier).add(part.len() as u64);
            Ok(())
        };
        let from_base = |from: u64, part: &mut [u8]| {
            // Others may have changed it in place, and what is here was written over what it was.
            let read = match place.is_dirty() {
                true => self.read_known_base(file, &location.base, from, part)?,
                false => self.read_base(file, &location.base, from, part)?,
            };
            part[read..].fill(0);
            Ok(())
        };
        compose(&absent, offset, buffer, from_tier, from_base)?;
        Ok(want)
    }

    /// Looks up where the bytes of a file are.
    pub(crate) fn look_up(&self, file: &File, location: &mut DataLocation) -> Result<()> {
        let record = self.record_for_look_up(file)?;
        if let Some(resident) = self.residents.get(file.ino.0) {
            location.place = self.open_place(file.ino, resident)?;
        } else if let Some(resident) = self.peers.adopt_copy(&record)? {
            location.place = self.open_place(file.ino, resident)?;
        }
        let lacks_some = location.place.is_none() || record.spilled;
        if lacks_some && self.troubles.is_lost(file.ino) {
            location.place = None;
            return Err(self.troubles.error_of(file.ino));
        }
        let emptied = record.is_dirty() && record.attr.size == 0;
        let has_version = record.backing.fingerprint.is_some();
        location.base = if record.spilled {
            self.spill_base(file, &record)?
        } else if has_version && (location.place.is_some() || !emptied)
            || self.peers.judges_store_alone() && is_built_upon_another(location.place.as_ref())?
        {
            Underlay::backing()
        } else {
            Underlay::Zeros
        };
        location.loaded = true;
        Ok(())
    }

    /// As [`Residency::load`], of a file that another daemon had open when others had removed it: there is
    /// no record of it. What is on a tier can be read, and the rest was open there alone.
    pub(crate) fn load_vanished(&self, file: &File) -> Result<()> {
        let mut location = file.location.write();
        if let Some(resident) = self.residents.get(file.ino.0) {
            location.place = self.open_place(file.ino, resident)?;
        }
        location.base = Underlay::backing();
        location.loaded = true;
        Ok(())
    }

    /// The record of a file, and whether its next write takes set-id bits away as that says. A
    /// change of the mode in between counts, not what was read before it.
    fn record_for_look_up(&self, file: &File) -> Result<Arc<Record>> {
        loop {
            let changes = file.set_ids.changes();
            let record = self.as_seen_here(&self.meta.get(file.ino)?);
            fail::fail_point!("node.look_up.record");
            if file.set_ids.learn(changes, &record) {
                return Ok(record);
            }
        }
    }

    /// The object of a file that comes into use.
    fn open_place(&self, ino: Ino, resident: Resident) -> Result<Option<TierObject>> {
        let place = self.open_place_to_read(ino, resident)?;
        if let Some(place) = &place {
            place.charge.paid_end.store(place.end_of_blocks(), Ordering::Release);
        }
        Ok(place)
    }

    /// The same for a moment, for who does not write: where its blocks end is not looked up, which
    /// takes as long as the object has pages.
    pub(crate) fn open_place_to_read(
        &self,
        ino: Ino,
        resident: Resident,
    ) -> Result<Option<TierObject>> {
        let tier = &self.tiers[usize::from(resident.tier)].tier;
        let object = match tier.open(ino.0) {
            Ok(object) => object,
            Err(error) if error.class() == ErrorClass::NotFound && !resident.dirty => {
                tracing::warn!(
                    %ino,
                    "a clean copy has vanished from its tier: the backing store's version is used"
                );
                self.forget_resident(ino, None);
                return Ok(None);
            }
            Err(error) if !resident.dirty && self.is_tiers_failure(resident.tier, &error) => {
                self.forget_resident(ino, None);
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let presence = match resident.whole {
            true => None,
            false => match tier.open_map(ino.0, Believed::Written) {
                Err(error) if !resident.dirty && self.is_tiers_failure(resident.tier, &error) => {
                    self.forget_resident(ino, None);
                    return Ok(None);
                }
                map => map?,
            },
        };
        let charge = Charge::new(resident.charged, 0);
        Ok(Some(TierObject::new(resident.tier, object, presence, charge, resident.dirty)))
    }

    /// The spill file of a file, or what became of it.
    fn spill_base(&self, file: &File, record: &Record) -> Result<Underlay> {
        if let Some(spill) = self.open_spilled(record.ino)? {
            spill.set_mtime(spill.mtime_known_by(&record.attr));
            return Ok(file.spilled_to(Arc::new(spill)));
        }
        match self.published_spill(record)? {
            Some(found) => {
                self.note_published_spill(record.ino, found)?;
                Ok(Underlay::backing())
            }
            None => {
                tracing::error!(ino = %record.ino, "the file's spill file is gone from the backing store");
                Err(Errno::IO.into())
            }
        }
    }

    /// Whether a file may become so long: a map must be possible of it, which it needs as soon as a tier has
    /// only a part. Before anything is changed.
    ///
    /// # Errors
    /// `EFBIG`.
    pub(crate) fn check_length(&self, len: u64) -> Result<()> {
        let longest = Presence::longest(self.config.extent_bytes).min(i64::MAX as u64);
        if len <= longest { Ok(()) } else { Err(Errno::FBIG.into()) }
    }

    /// Corrects a charge to what the object really takes up. The caller has the location for
    /// itself: a writer that has paid and not written yet would lose its charge.
    pub(crate) fn true_up(&self, file: &File, place: &TierObject) -> Result<()> {
        let _growing = place.charge.growing.lock();
        let real = place.allocated_bytes()?;
        self.charge(file, place, real);
        place.charge.paid_end.store(place.end_of_blocks(), Ordering::Release);
        Ok(())
    }

    /// As [`Residency::true_up`], beside others: what they have paid and not written yet stays charged. The
    /// residency index has to know the charge before the file leaves the table.
    fn charge_at_least(&self, file: &File, place: &TierObject) -> Result<()> {
        let _growing = place.charge.growing.lock();
        let real = place.allocated_bytes()?;
        self.charge(file, place, real.max(place.charge.bytes()));
        Ok(())
    }

    fn charge(&self, file: &File, place: &TierObject, bytes: u64) {
        let charged = place.charge.bytes.swap(bytes, Ordering::AcqRel);
        let room = &self.tiers[usize::from(place.tier)].room;
        if bytes > charged {
            // Only a passthrough writer can do that.
            room.force(bytes - charged);
        } else {
            room.give(charged - bytes);
        }
        self.set_resident(file.ino, place);
        self.decide(Event::Resident {
            object: file.ino,
            tier: unit::Tier(place.tier),
            bytes: unit::Bytes(bytes),
        });
    }

    /// The last writer has closed (or a sync asks): size and times go into the record, and the file
    /// into the backlog.
    pub(crate) fn settle(&self, file: &FileRef) -> Result<()> {
        self.settle_by(file, None).map(drop)
    }

    /// As [`Residency::settle`], but if a deadline is given, gives up at it when somebody waits for a slow
    /// device with the file in hand; false then.
    pub(crate) fn settle_by(&self, file: &FileRef, deadline: Option<Instant>) -> Result<bool> {
        if let Some(location) = file.location.try_write()
            && let Some(place) = &location.place
            && place.is_dirty()
        {
            self.true_up(file, place)?;
            // Nobody writes, opens or closes it now.
            if self.is_proved_unwritten(file, place)? {
                return self.mark_clean(file, place, None).map(|()| true);
            }
        }
        let location = match deadline {
            None => file.location.read(),
            Some(deadline) => match file.location.try_read_until(deadline) {
                Some(location) => location,
                None => return Ok(false),
            },
        };
        if let Some(place) = location.place.as_ref().filter(|place| place.is_dirty()) {
            self.charge_at_least(file, place)?;
        }
        let one_at_a_time = file.times.lock();
        let (size, mtime) = match (&location.place, &location.base) {
            (Some(place), _) if place.is_dirty() => {
                let stat = place.object.stat()?;
                (stat.size, stat.mtime)
            }
            (None, Underlay::Spill(spill)) => {
                let (size, mtime) = spill.size_and_mtime();
                (size, mtime)
            }
            _ => return Ok(true),
        };
        fail_at!("node.settle.before_record");
        let settled = self.record_written(file.ino, size, mtime)?;
        drop(one_at_a_time);
        fail_at!("node.settle.after_record");
        if settled {
            self.above.hold_opened_rest(file, &location);
            self.written_back_in(file.ino);
        }
        Ok(true)
    }

    /// The record of a file that is to be judged says what was written to it.
    pub(crate) fn settle_if_unsettled(&self, ino: Ino) -> Result<bool> {
        let unsettled = self.is_unsettled(ino);
        if unsettled {
            self.settle(&self.files.get(ino))?;
        }
        Ok(unsettled)
    }

    /// Asks for the write-back of a file that was closed just now.
    pub(crate) fn written_back_in(&self, ino: Ino) {
        match self.config.writeback {
            WritebackPolicy::After(delay) => self.above.reconcile_later(ino, delay),
            WritebackPolicy::OnClose | WritebackPolicy::Through => {
                self.above.reconcile_later(ino, std::time::Duration::ZERO);
            }
            // What has to be written all the same, also by who had no turn while it was open.
            WritebackPolicy::OnEviction if self.above.is_wanted(ino) => {
                self.above.reconcile_later(ino, std::time::Duration::ZERO);
            }
            WritebackPolicy::OnEviction => {}
        }
    }

    /// Settles every file in use that has unsettled changes, for a sync or a drain. Says which could
    /// not be until the deadline, and why: as somebody waits for a slow device with them in hand, or as a
    /// tier or the namespace fails. The next start takes their sizes and times from the tiers.
    pub(crate) fn settle_all(&self, deadline: Instant) -> Vec<(Ino, String)> {
        let mut left = Vec::new();
        for ino in self.files.in_use() {
            let Some(file) = self.files.peek(ino) else { continue };
            let settle = || self.settle_by(&file, Some(deadline));
            match self.defects.attempt(BackgroundKind::WriteBack, ino.0, settle) {
                // It waits for the next daemon, which must not be kept from coming.
                None => {}
                Some(Ok(true)) => {}
                Some(Ok(false)) => left.push((ino, IN_HAND.into())),
                Some(Err(error)) => {
                    tracing::warn!(
                        %ino,
                        %error,
                        "can't record the size and times of a file that was written: they are taken \
                         from its tier later"
                    );
                    left.push((ino, error.to_string()));
                }
            }
        }
        left
    }

    /// The attributes of an inode as programs see them now, and its blocks of 512 bytes: those of
    /// the record, or of the object while that is newer.
    pub(crate) fn live_attr(&self, record: &Record) -> (Attr, u64) {
        self.live_attr_since(record, None)
    }

    /// The size and time of a file that somebody has in hand, if it has bytes of which its record does not
    /// speak yet. With those of the record the kernel would put the next append where it ended before.
    fn written_in_hand(&self, file: &File) -> Option<(u64, Timestamp)> {
        self.written_to_object(file.ino).or_else(|| {
            let spill = file.spill.lock().upgrade();
            spill.map(|spill| spill.size_and_mtime())
        })
    }

    /// The size and time of a file's object, if that has bytes of which the record may not speak yet.
    fn written_to_object(&self, ino: Ino) -> Option<(u64, Timestamp)> {
        // An object that is not there is being moved.
        for _ in 0..MAX_LOOKS {
            let resident = self.residents.get(ino.0).filter(|known| known.dirty)?;
            let tier = &self.tiers[usize::from(resident.tier)].tier;
            if let Ok(stat) = tier.open(ino.0).and_then(|object| object.stat()) {
                return Some((stat.size, stat.mtime));
            }
        }
        None
    }

    /// As [`Residency::live_attr`]; the record was read after the moment.
    pub(crate) fn live_attr_since(&self, record: &Record, moment: Option<Moment>) -> (Attr, u64) {
        let (ino, mut attr) = (record.ino, record.attr.clone());
        if attr.kind != FileKind::Regular {
            let blocks = if attr.kind == FileKind::Directory { 8 } else { 0 };
            if attr.kind == FileKind::Directory {
                attr.size = 4096;
            }
            return (attr, blocks);
        }
        let file = self.files.peek(record.ino);
        // Whoever has the file in hand for long waits for a slow device, and may hang there.
        let location =
            file.as_ref().map(|file| (file, file.location.try_read_for(ATTRIBUTES_WAIT)));
        if let Some((file, None)) = &location
            && let Some((size, mtime)) = self.written_in_hand(file)
        {
            show_written(&mut attr, size, mtime);
            return (attr, size.div_ceil(512));
        }
        if let Some((file, Some(location))) = &location {
            let stat = match (&location.place, &location.base) {
                (Some(place), _) if place.is_dirty() => place.object.stat().ok(),
                (None, Underlay::Spill(spill)) => {
                    let (size, mtime) = spill.size_and_mtime();
                    show_written(&mut attr, size, mtime);
                    return (attr, size.div_ceil(512));
                }
                _ => None,
            };
            if let Some(stat) = stat {
                if let Some(perm) = file.set_ids.perm_left(attr.perm, &stat) {
                    attr.perm = perm;
                    self.above.look_for_lost_set_ids_later(ino);
                }
                show_written(&mut attr, stat.size, stat.mtime);
                if !self.config.keep_access_times {
                    attr.atime = attr.atime.max(stat.atime);
                }
                let whole = location.place.as_ref().is_some_and(TierObject::is_marked_whole);
                let blocks = if whole { stat.blocks } else { stat.size.div_ceil(512) };
                return (attr, blocks);
            }
        }
        // In the table, and not loaded: its record is all that it says of itself.
        let loaded = matches!(&location, Some((_, Some(location))) if location.loaded);
        drop(location);
        if !loaded
            && self.unsettled.has(ino)
            && let Some((size, mtime)) = self.written_to_object(ino)
        {
            show_written(&mut attr, size, mtime);
            return (attr, size.div_ceil(512));
        }
        // Settled since the record was read, perhaps: a close is not waited for.
        let unchanged = moment.is_some_and(|then| !self.meta.changed_since(record.ino, then));
        if !unchanged && let Ok(settled) = self.meta.get(record.ino) {
            attr = settled.attr.clone();
        }
        attr.atime = self.accesses.latest(record.ino, attr.atime);
        // What a whole object takes up is what its tier was charged when its last writer closed.
        let blocks = match self.residents.get(record.ino.0) {
            Some(resident) if resident.whole => resident.charged / 512,
            _ => attr.size.div_ceil(512),
        };
        (attr, blocks)
    }

    /// Whether a program has `ino` open.
    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.files.peek(ino).is_some_and(|file| file.is_open())
    }

    /// Whether a program has opened `ino` and not closed it yet; one that is about to open it does not
    /// count.
    pub(crate) fn is_held(&self, ino: Ino) -> bool {
        self.files.peek(ino).is_some_and(|file| file.opens.lock().count > 0)
    }

    /// The file is removed and nobody uses it: drops all its bytes. Those that the backing store lacks
    /// go when the namespace has forgotten the file durably, for after a power cut it would be there
    /// without them.
    pub(crate) fn discard_data(&self, ino: Ino) {
        let dirty = self.residents.get(ino.0).is_some_and(|resident| resident.dirty);
        if (dirty || !self.meta.is_surely_clean(ino))
            && let Err(error) = self.meta.sync()
        {
            tracing::warn!(
                %ino,
                %error,
                "the namespace can't be synced, so the bytes of a removed file stay on their tier \
                 until the next start"
            );
            return;
        }
        self.discard_forgotten(ino);
    }

    /// As [`Residency::discard_data`], of a file that the namespace has forgotten durably.
    pub(crate) fn discard_forgotten(&self, ino: Ino) {
        self.above.let_go_of_rest(ino);
        let file = self.files.get(ino);
        self.discard_in(ino, &mut file.location.write());
    }

    /// As [`Residency::discard_forgotten`], unless somebody has the file in hand for longer than a moment;
    /// says whether it is gone.
    pub(crate) fn discard_at_once(&self, ino: Ino) -> bool {
        self.above.let_go_of_rest(ino);
        let file = self.files.get(ino);
        let Some(mut location) = file.location.try_write_for(IN_HAND_WAIT) else { return false };
        self.discard_in(ino, &mut location);
        true
    }

    fn discard_in(&self, ino: Ino, location: &mut DataLocation) {
        let place = location.place.take();
        // By what was noted: the record may be gone already, and nobody has looked at the spill file.
        let spilled = matches!(std::mem::take(&mut location.base), Underlay::Spill(_))
            || self.has_spill_noted(ino);
        location.loaded = true;
        if self.troubles.is_lost(ino)
            && let Err(error) = self.give_up_all_objects(ino)
        {
            tracing::warn!(%ino, %error, "what a removed file has on the tiers may stay there");
        }
        self.troubles.forget_lost(ino);
        self.above.forget_rest_gone(ino);
        self.note_removed(ino);
        fail::fail_point!("node.discard.before_object");
        if let Some(resident) = self.residents.get(ino.0) {
            if let Err(error) = self.give_up_object(resident.tier, ino) {
                tracing::warn!(
                    %ino,
                    %error,
                    "can't remove the object of a removed file from its tier, nor note that: the next \
                     start tries again"
                );
            }
            self.forget_resident(ino, place.as_ref());
        }
        if spilled {
            self.drop_spill_soon(ino);
        }
        self.forget_tomb(ino);
    }

    /// The copy of a clean file is stale: drops it; programs that have it open keep what they have.
    pub(crate) fn drop_copy(&self, ino: Ino) {
        if self.residents.get(ino.0).is_none() {
            if let Some(file) = self.files.peek(ino) {
                let mut location = file.location.write();
                if matches!(location.base, Underlay::Backing(_)) {
                    location.base = Underlay::backing();
                }
            }
            return;
        }
        let file = self.files.get(ino);
        let mut location = file.location.write();
        // Only under the lock: it may have been written or moved since.
        let Some(resident) = self.residents.get(ino.0).filter(|resident| !resident.dirty) else {
            return;
        };
        let place = location.place.take();
        location.base = Underlay::backing();
        location.loaded = true;
        if let Err(error) = self.give_up_object(resident.tier, ino) {
            tracing::warn!(
                %ino,
                %error,
                "can't remove a stale copy from its tier, nor note that it is stale: nothing is written \
                 to its file before that can be done"
            );
        }
        self.forget_resident(ino, place.as_ref());
    }

    /// Times of a file were set in its record: those of its object follow, and of its spill file. The
    /// caller holds [`File::times`].
    pub(crate) fn set_object_times(&self, file: &File, times: Times) {
        if times == Times::default() {
            return;
        }
        // Who has written may put the times back.
        file.clean_as.lock().take();
        let [atime, mtime] = [times.atime, times.mtime].map(|t| t);
        let Some(resident) = self.residents.get(file.ino.0) else {
            if let (Some(mtime), Some(spill)) = (mtime, file.spill.lock().upgrade()) {
                spill.set_mtime(mtime);
            }
            return;
        };
        // The object itself: whoever has the location in hand may wait for the backing store. Also a
        // clean one, whose times count as soon as somebody opens it to write.
        let tier = &self.tiers[usize::from(resident.tier)].tier;
        let set = tier.open(file.ino.0).and_then(|object| object.set_times(atime, mtime));
        if let Err(error) = set {
            tracing::warn!(
                ino = %file.ino,
                %error,
                "times that a program has set could not be set on the file's object: only its \
                 record has them"
            );
        }
    }

    /// Bytes that only the tiers hold.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        let mut bytes = 0;
        self.residents.for_each(|_, resident| {
            bytes += if resident.dirty { resident.charged } else { 0 };
        });
        bytes
    }
}

/// Size and time of the object or spill file are newer than the record, or the same. One that differs
/// is that of a change, which nobody has noted yet; one that a program has set is in the record.
pub(crate) fn show_written(attr: &mut Attr, size: u64, mtime: Timestamp) {
    if attr.size != size || attr.mtime != mtime {
        attr.ctime = attr.ctime.max(mtime);
    }
    (attr.size, attr.mtime) = (size, mtime);
}
