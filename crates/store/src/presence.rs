//! Which extents of a partly resident object are there.
//!
//! One byte per extent, in memory and in the sidecar file alike (1 MiB of map for 1 TiB of file at
//! the default extent size), so that every change is one `pwrite` of the changed bytes. What the
//! kernel has of the sidecar survives a kill of the daemon. After a crash of the machine only extents
//! that a sync has covered are believed. Whether it has crashed the caller knows: a map is read as it
//! is, and nothing is written by that.
//!
//! # Invariants
//! - A present extent reads from the object. An absent one reads as the base up to the base limit,
//!   and as zeros beyond.
//! - A write during a flush stays dirty after it.
//! - After a crash of the machine only what was synced is believed.
//! - Reading a map changes nothing on disk.
//! - A state that was damaged is never taken for another one (all: `presence/tests.rs`).

use std::ops::Range;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::failpoints::fail_at;
use crate::header::{array_at, u32_at, u64_at};
use crate::{Bytes, Result, StoreError};

pub(crate) use map_file::MapFile;
pub use map_file::WrittenMap;

mod map_file;

const MAGIC: &[u8; 8] = b"FBAYMAP\0";
const VERSION: u32 = 2;
/// The version whose states have no check bits. Such a map stays as it is.
const VERSION_UNCHECKED: u32 = 1;
const HEADER_LEN: usize = 64;
/// Largest map: 64 MiB, so that a damaged size cannot exhaust the memory.
const MAX_EXTENTS: u64 = 64 << 20;

const PRESENT: u8 = 1 << 0;
const DIRTY: u8 = 1 << 1;
/// The extent was present when its object was last synced.
const DURABLE: u8 = 1 << 2;
/// Being flushed: dirty on disk, in memory dirty only if written again. Never written to disk.
const FLUSHING: u8 = 1 << 3;
/// Present when the sync under way began. Never written to disk.
const SYNCING: u8 = 1 << 4;

/// What may be missing in a map that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Believed {
    /// Nothing: all that was written is there. A map that is too short is damaged.
    Written,
    /// What was not synced: the machine, or the device, has gone down since.
    Synced,
}

/// Which extents of an object are present and which of them are dirty.
///
/// Ranges are in bytes. Not synchronised: put it behind the inode's lock. Changes reach the sidecar
/// file by `pwrite` at once, so they survive a kill of the daemon. Write the bytes first and mark
/// them then; when evicting, clear first and punch then. An error means that the change is in force
/// in memory and will be written with the next one.
///
/// The invariant that the caller may build on: a present extent reads from the object; an absent one
/// reads as the base version up to [`Presence::base_limit`] and as zeros beyond.
pub struct Presence {
    file: Option<Arc<MapFile>>,
    ino: u64,
    shift: u32,
    size: u64,
    base_limit: u64,
    states: Vec<u8>,
    present: u64,
    dirty: u64,
    /// Extents whose state on disk is behind.
    unsaved: Range<usize>,
    /// Whatever is present and not durable lies in here: a sync looks at nothing else.
    unsynced: Range<usize>,
    /// What the sync under way looks at.
    syncing: Range<usize>,
    header_unsaved: bool,
    /// The map on the device may call extents durable that this one does not: also after a load, as who was
    /// before may have died before the map was synced.
    behind: bool,
    /// Of the format on disk.
    version: u32,
    /// The run of the machine in which the header on disk was written.
    boot: [u8; 16],
}

/// Dirty runs taken for a flush; give it back to [`Presence::finish_flush`] or
/// [`Presence::abort_flush`].
#[derive(Debug)]
#[must_use = "a flush must be finished or aborted"]
pub struct Flush {
    runs: Vec<Range<u64>>,
}

impl Flush {
    /// The runs to write, in ascending order, within the file as it was when they were taken.
    #[must_use]
    pub fn runs(&self) -> &[Range<u64>] {
        &self.runs
    }

    /// Bytes in all runs.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.end - run.start).sum()
    }
}

/// Adds a run, joining it with the last one if they touch.
fn push_run(runs: &mut Vec<Range<u64>>, run: Range<u64>) {
    match runs.last_mut() {
        Some(last) if last.end == run.start => last.end = run.end,
        _ => runs.push(run),
    }
}

fn boot_id() -> Result<[u8; 16]> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(PATH).map_err(|e| StoreError::io("read", PATH, e))?;
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&hex, 16)
        .map_err(|_| StoreError::Damaged { path: PATH.into(), what: "boot id" })?;
    Ok(id.to_be_bytes())
}

impl Presence {
    /// Smallest extent: one page.
    pub const MIN_EXTENT: u64 = 4 << 10;
    /// Largest extent.
    pub const MAX_EXTENT: u64 = 1 << 30;
    /// Extent size for most uses.
    pub const DEFAULT_EXTENT: u64 = 1 << 20;

    /// The longest file that a map can be made of, in bytes.
    #[must_use]
    pub fn longest(extent_size: u64) -> u64 {
        extent_size.saturating_mul(MAX_EXTENTS)
    }

    /// A map without a sidecar file, all absent. `Invalid` if the extent size is no power of two
    /// from [`Self::MIN_EXTENT`] to [`Self::MAX_EXTENT`], or if the map would be larger than 64 MiB.
    pub fn in_memory(extent_size: u64, size: u64) -> Result<Self> {
        let valid = extent_size.is_power_of_two()
            && (Self::MIN_EXTENT..=Self::MAX_EXTENT).contains(&extent_size);
        if !valid {
            return Err(StoreError::errno_of(
                "use the extent size of",
                "a presence map",
                libc::EINVAL,
            ));
        }
        let mut map = Self {
            file: None,
            ino: 0,
            shift: extent_size.trailing_zeros(),
            size,
            base_limit: size,
            states: Vec::new(),
            present: 0,
            dirty: 0,
            unsaved: 0..0,
            unsynced: 0..0,
            syncing: 0..0,
            header_unsaved: true,
            behind: false,
            version: VERSION,
            boot: [0; 16],
        };
        let count = map.checked_count(size)?;
        map.states = vec![0; count];
        Ok(map)
    }

    pub(crate) fn create(file: MapFile, ino: u64, extent_size: u64, size: u64) -> Result<Self> {
        let mut map = Self::in_memory(extent_size, size)?;
        map.file = Some(Arc::new(file));
        map.ino = ino;
        // All of it: what is missing later was lost.
        map.unsaved = 0..map.states.len();
        map.save()?;
        Ok(map)
    }

    /// Reads a map as it is. Where what was not synced may be missing, extents of which nothing stands
    /// there are absent.
    pub(crate) fn load(file: MapFile, ino: u64, believed: Believed) -> Result<Self> {
        let damaged =
            || StoreError::Damaged { path: file.0.label().to_owned(), what: "presence map" };
        let mut head = [0; HEADER_LEN];
        let unreadable = |error: StoreError| error.or_damaged("presence map, which can't be read");
        let len = file.0.read_at(&mut head, 0).map_err(unreadable)?;
        if len < HEADER_LEN || &head[..8] != MAGIC {
            return Err(damaged());
        }
        let found = u32_at(&head, 8);
        if !(VERSION_UNCHECKED..=VERSION).contains(&found) {
            let path = file.0.label().to_owned();
            return Err(StoreError::Version { path, found, known: VERSION });
        }
        let shift = u32_at(&head, 12);
        let sound = u64_at(&head, 56) == xxh3_64(&head[..56])
            && u64_at(&head, 16) == ino
            && (12..=30).contains(&shift);
        if !sound {
            return Err(damaged());
        }
        let mut map = Self::in_memory(1 << shift, u64_at(&head, 24)).map_err(|_| damaged())?;
        map.ino = ino;
        map.base_limit = u64_at(&head, 32).min(map.size);
        map.version = found;
        let read = file.0.read_at(&mut map.states, HEADER_LEN as u64).map_err(unreadable)?;
        map.states[read..].fill(UNWRITTEN);
        for index in 0..map.states.len() {
            map.states[index] = match (map.states[index], believed) {
                (UNWRITTEN, _) if found == VERSION_UNCHECKED => 0,
                (UNWRITTEN, Believed::Synced) => {
                    map.note_unsaved(index);
                    0
                }
                (byte, _) => decoded(found, byte).ok_or_else(damaged)?,
            };
        }
        map.boot = array_at::<16>(&head, 40);
        map.file = Some(Arc::new(file));
        map.header_unsaved = false;
        map.behind = true;
        map.normalise(false, false);
        Ok(map)
    }

    /// Whether the machine has not restarted since the header of the map was written.
    ///
    /// # Errors
    /// When the kernel does not say which run of the machine this is.
    pub fn is_of_this_boot(&self) -> Result<bool> {
        Ok(self.boot == boot_id()?)
    }

    /// The kernel has lost what was not synced: only extents that a sync has covered count. If the file
    /// `was_writing`, one that is clean on disk may be dirty in truth.
    ///
    /// # Errors
    /// When the map can't be written.
    pub fn believe_what_was_synced(&mut self, was_writing: bool) -> Result<()> {
        (self.present, self.dirty) = (0, 0);
        self.normalise(true, was_writing);
        self.header_unsaved |= !self.is_of_this_boot()?;
        self.save()
    }

    /// All that was written is there; with `durable`, the file systems of object and map were synced
    /// since, so that it is there after the next crash as well.
    ///
    /// # Errors
    /// When the map can't be written.
    pub fn believe_all(&mut self, durable: bool) -> Result<()> {
        let count = if durable { self.states.len() } else { 0 };
        for index in 0..count {
            let state = self.states[index];
            if state & (PRESENT | DURABLE) == PRESENT {
                self.set_state(index, state | DURABLE);
            }
        }
        if durable {
            self.unsynced = 0..0;
        }
        self.header_unsaved |= !self.is_of_this_boot()?;
        self.save()
    }

    /// Makes loaded states sound; after a crash of the machine, believes only what was synced.
    fn normalise(&mut self, crashed: bool, was_writing: bool) {
        for index in 0..self.states.len() {
            let mut state = self.states[index] & (PRESENT | DIRTY | DURABLE);
            if state & PRESENT == 0 || (crashed && state & DURABLE == 0) {
                state = 0;
            }
            // Clean on disk may be dirty in truth when the crash came before the mark was written.
            if crashed && was_writing && state != 0 {
                state |= DIRTY;
            }
            if self.extent(index).start >= self.base_limit && state == 0 {
                state = PRESENT | DIRTY;
            }
            if state != self.states[index] {
                self.note_unsaved(index);
            }
            self.states[index] = state;
            self.note_unsynced(index);
            self.present += u64::from(state & PRESENT != 0);
            self.dirty += u64::from(state & DIRTY != 0);
        }
    }

    fn checked_count(&self, size: u64) -> Result<usize> {
        let count = size.div_ceil(1 << self.shift);
        if count > MAX_EXTENTS {
            let path = self.file.as_ref().map_or("a presence map".as_ref(), |f| f.0.label());
            return Err(StoreError::errno_of("grow (choose larger extents)", path, libc::EFBIG));
        }
        Ok(count as usize)
    }

    fn head(&self) -> Result<[u8; HEADER_LEN]> {
        let mut head = [0; HEADER_LEN];
        head[..8].copy_from_slice(MAGIC);
        head[8..12].copy_from_slice(&self.version.to_le_bytes());
        head[12..16].copy_from_slice(&self.shift.to_le_bytes());
        head[16..24].copy_from_slice(&self.ino.to_le_bytes());
        head[24..32].copy_from_slice(&self.size.to_le_bytes());
        head[32..40].copy_from_slice(&self.base_limit.to_le_bytes());
        head[40..56].copy_from_slice(&boot_id()?);
        let sum = xxh3_64(&head[..56]);
        head[56..].copy_from_slice(&sum.to_le_bytes());
        Ok(head)
    }

    fn note_unsaved(&mut self, index: usize) {
        self.unsaved = spanning(&self.unsaved, &(index..index + 1));
    }

    /// After a change of a state.
    fn note_unsynced(&mut self, index: usize) {
        if self.states[index] & (PRESENT | DURABLE) == PRESENT {
            self.unsynced = spanning(&self.unsynced, &(index..index + 1));
        }
    }

    /// Writes what changed. States go before the header: a longer file is harmless, a size without
    /// states is not.
    fn save(&mut self) -> Result<()> {
        let Some(file) = &self.file else {
            self.unsaved = 0..0;
            self.header_unsaved = false;
            return Ok(());
        };
        let range = self.unsaved.start..self.unsaved.end.min(self.states.len());
        if !range.is_empty() {
            fail_at!("store.presence.before_write", file.0.label());
            let mut at = (HEADER_LEN + range.start) as u64;
            let mut block = [0; 4096];
            for states in self.states[range].chunks(block.len()) {
                for (out, state) in block.iter_mut().zip(states) {
                    *out = encoded(self.version, on_disk(*state));
                }
                file.write_all(&block[..states.len()], at)?;
                at += states.len() as u64;
            }
        }
        self.unsaved = 0..0;
        if self.header_unsaved {
            let head = self.head()?;
            file.write_all(&head, 0)?;
            self.boot = array_at::<16>(&head, 40);
            self.header_unsaved = false;
        }
        Ok(())
    }

    fn set_state(&mut self, index: usize, state: u8) {
        let old = self.states[index];
        if old == state {
            return;
        }
        self.present += u64::from(state & PRESENT != 0);
        self.present -= u64::from(old & PRESENT != 0);
        self.dirty += u64::from(state & (DIRTY | FLUSHING) != 0);
        self.dirty -= u64::from(old & (DIRTY | FLUSHING) != 0);
        self.states[index] = state;
        self.behind |= old & !state & DURABLE != 0;
        self.note_unsynced(index);
        if on_disk(old) != on_disk(state) {
            self.note_unsaved(index);
        }
    }

    /// The bytes of an extent, clipped to the file.
    fn extent(&self, index: usize) -> Range<u64> {
        let start = (index as u64) << self.shift;
        start..(start + (1 << self.shift)).min(self.size)
    }

    /// The bytes of an extent that the base version has.
    fn base_part(&self, index: usize) -> Range<u64> {
        let extent = self.extent(index);
        extent.start..extent.end.min(self.base_limit)
    }

    /// The extents that a range touches.
    fn touched(&self, range: &Range<u64>) -> Range<usize> {
        let end = range.end.min(self.size);
        if range.start >= end {
            return 0..0;
        }
        (range.start >> self.shift) as usize..end.div_ceil(1 << self.shift) as usize
    }

    fn touched_by(&self, flush: &Flush) -> Vec<usize> {
        flush.runs.iter().flat_map(|run| self.touched(run)).collect()
    }

    fn is_absent(&self, index: usize) -> bool {
        self.states[index] & PRESENT == 0
    }

    /// Extent size in bytes.
    #[must_use]
    pub fn extent_size(&self) -> u64 {
        1 << self.shift
    }

    /// Length of the file in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of the base version at or after this offset are no longer part of the file (it was
    /// shortened since): absent extents read as the base up to here and as zeros beyond.
    #[must_use]
    pub fn base_limit(&self) -> u64 {
        self.base_limit
    }

    /// The backing store now has a version with all of the file's bytes: absent extents may be read
    /// from it up to the end.
    pub fn rebase(&mut self) -> Result<()> {
        self.header_unsaved |= self.base_limit != self.size;
        self.base_limit = self.size;
        self.save()
    }

    /// Whether every byte of the range (clipped to the file) is present.
    #[must_use]
    pub fn is_present(&self, range: Range<u64>) -> bool {
        self.touched(&range).all(|index| !self.is_absent(index))
    }

    /// Whether any extent that the range touches may count after a crash of the machine.
    #[must_use]
    pub fn may_be_durable(&self, range: Range<u64>) -> bool {
        self.behind || self.touched(&range).any(|index| self.states[index] & DURABLE != 0)
    }

    /// Appends the runs of absent extents that the range touches: what must be fetched from the
    /// base version for the range to be present. Extent aligned, clipped to the file and to
    /// [`Self::base_limit`], so that a fetch never overwrites bytes beyond it.
    pub fn missing_runs(&self, range: Range<u64>, runs: &mut Vec<Range<u64>>) {
        for index in self.touched(&range).filter(|index| self.is_absent(*index)) {
            push_run(runs, self.base_part(index));
        }
    }

    /// The end of an absent extent that its base does not have either: zeros, also in the object, which
    /// shows through there.
    #[must_use]
    pub fn beyond_base(&self) -> Option<Range<u64>> {
        let index = usize::try_from(self.base_limit >> self.shift).ok()?;
        let is_there = index < self.states.len() && self.is_absent(index);
        let beyond = self.base_limit..self.extent(index).end;
        (is_there && !beyond.is_empty()).then_some(beyond)
    }

    /// Appends the runs that must be fetched before `range` may be written: absent extents that it
    /// covers only in part, and those of which it covers zeros beyond the base. There the object shows
    /// through, and what a device takes of a write that it then refuses must not be seen as long as the
    /// extent is absent.
    pub fn fill_before_write(&self, range: Range<u64>, runs: &mut Vec<Range<u64>>) {
        // A write behind the end still changes the extent that the end lies in.
        let existing = (self.states.len() as u64) << self.shift;
        let first = (range.start >> self.shift) as usize;
        let end = range.end.min(existing).div_ceil(1 << self.shift) as usize;
        for index in (first..end).filter(|index| self.is_absent(*index)) {
            let base = self.base_part(index);
            let covers_beyond = range.end > base.end && base.end < self.extent(index).end;
            if range.start > base.start || range.end < base.end || covers_beyond {
                push_run(runs, base);
            }
        }
    }

    /// Marks fetched extents. Only extents that lie in the range as a whole count (the last one up
    /// to the end of the file or to the base limit); dirty extents stay dirty.
    pub fn mark_clean(&mut self, range: Range<u64>) -> Result<()> {
        for index in self.touched(&range) {
            let base = self.base_part(index);
            if self.is_absent(index) && range.start <= base.start && base.end <= range.end {
                self.set_state(index, PRESENT);
            }
        }
        self.save()
    }

    /// Marks written extents: every extent that the range touches. Grows the file if need be.
    pub fn mark_dirty(&mut self, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        if range.end > self.size {
            self.grow(range.end)?;
        }
        for index in self.touched(&range) {
            self.set_state(index, self.states[index] | PRESENT | DIRTY);
        }
        self.save()
    }

    /// Marks those extents dirty that the range touches and that are present, for bytes that are about to
    /// change or may have: an absent one is not there before all of its bytes are.
    pub fn mark_changed(&mut self, range: Range<u64>) -> Result<()> {
        for index in self.touched(&range) {
            if !self.is_absent(index) {
                self.set_state(index, self.states[index] | DIRTY);
            }
        }
        self.save()
    }

    /// Takes dirty runs of up to `max_bytes` (at least one extent) for a flush; `None` when nothing
    /// is dirty or all of it is being flushed. What is written during the flush is dirty again.
    pub fn take_flush(&mut self, max_bytes: u64) -> Option<Flush> {
        let (mut runs, mut bytes) = (Vec::new(), 0);
        if self.dirty == 0 {
            return None;
        }
        for index in 0..self.states.len() {
            let state = self.states[index];
            if state & (DIRTY | FLUSHING) != DIRTY {
                continue;
            }
            let extent = self.extent(index);
            bytes += extent.end - extent.start;
            if bytes > max_bytes && !runs.is_empty() {
                break;
            }
            push_run(&mut runs, extent);
            self.set_state(index, (state & !DIRTY) | FLUSHING);
        }
        (!runs.is_empty()).then_some(Flush { runs })
    }

    /// The flush reached the backing store: its runs are clean, save where written meanwhile.
    pub fn finish_flush(&mut self, flush: Flush) -> Result<()> {
        for index in self.touched_by(&flush) {
            self.set_state(index, self.states[index] & !FLUSHING);
        }
        self.save()
    }

    /// The flush failed: its runs are dirty again.
    pub fn abort_flush(&mut self, flush: Flush) {
        for index in self.touched_by(&flush) {
            let state = self.states[index];
            if state & FLUSHING != 0 {
                self.set_state(index, (state & !FLUSHING) | DIRTY);
            }
        }
    }

    /// Sets the length. Shrinking forgets extents beyond; growing adds extents that are present and
    /// dirty (holes). Set the length of the object first.
    pub fn set_len(&mut self, len: u64) -> Result<()> {
        if len > self.size {
            self.grow(len)?;
        } else if len < self.size {
            let count = self.checked_count(len)?;
            for index in count..self.states.len() {
                self.set_state(index, 0);
            }
            self.states.truncate(count);
            self.size = len;
            self.base_limit = self.base_limit.min(len);
            self.header_unsaved = true;
            self.cut_last();
        }
        self.save()
    }

    /// After shrinking: the last extent has lost bytes that the backing store may still have, so it
    /// is dirty if it is present, and a hole if the base has nothing left of it.
    fn cut_last(&mut self) {
        let Some(last) = self.states.len().checked_sub(1) else { return };
        let extent = self.extent(last);
        let cut = extent.end - extent.start < self.extent_size();
        if (cut && !self.is_absent(last)) || self.base_part(last).is_empty() {
            self.set_state(last, self.states[last] | PRESENT | DIRTY);
        }
    }

    fn grow(&mut self, len: u64) -> Result<()> {
        let (old, count) = (self.states.len(), self.checked_count(len)?);
        self.states.resize(count, 0);
        self.size = len;
        self.header_unsaved = true;
        for index in old..count {
            self.set_state(index, PRESENT | DIRTY);
        }
        Ok(())
    }

    /// Forgets clean extents that lie in the range as a whole and returns their runs, durably, so
    /// that the caller may punch them.
    pub fn clear(&mut self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        let mut runs = Vec::new();
        for index in self.touched(&range) {
            let (extent, state) = (self.extent(index), self.states[index]);
            let clean = state & (PRESENT | DIRTY | FLUSHING) == PRESENT;
            let inside = range.start <= extent.start && extent.end <= range.end;
            if clean && inside && extent.end <= self.base_limit {
                self.set_state(index, 0);
                push_run(&mut runs, extent);
            }
        }
        self.save()?;
        // The punch may reach the disk before the map does: after a crash of the machine, zeros
        // would count as data.
        if let Some(file) = self.file.as_ref().filter(|_| self.behind && !runs.is_empty()) {
            file.0.sync(true)?;
            self.behind = false;
            fail_at!("store.presence.after_clear", file.0.label());
        }
        Ok(runs)
    }

    /// The base version has the bytes of these extents from now on (the caller has written them
    /// there, dirty ones too): forgets every extent that the range touches. Grows the file if need
    /// be; extents between the old end and the range read as the base, too.
    pub fn leave_to_base(&mut self, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        if range.end > self.size {
            let (old, count) = (self.states.len(), self.checked_count(range.end)?);
            self.states.resize(count, 0);
            self.size = range.end;
            // What stands there on disk is of a longer file.
            self.unsaved = spanning(&self.unsaved, &(old..count));
        }
        self.base_limit = self.base_limit.max(range.end);
        self.header_unsaved = true;
        for index in self.touched(&range) {
            self.set_state(index, 0);
            self.note_unsaved(index);
        }
        self.save()
    }

    /// Bytes that the sidecar file of a map takes up for a file of `size` bytes, in blocks of 4 KiB.
    #[must_use]
    pub fn sidecar_bytes_for(extent_size: u64, size: u64) -> u64 {
        (HEADER_LEN as u64 + size.div_ceil(extent_size)).next_multiple_of(4096)
    }

    /// Bytes that the sidecar file takes up now.
    #[must_use]
    pub fn sidecar_bytes(&self) -> u64 {
        Self::sidecar_bytes_for(self.extent_size(), self.size)
    }

    /// Bytes present.
    #[must_use]
    pub fn present_bytes(&self) -> u64 {
        self.bytes_of(self.present, PRESENT)
    }

    /// Bytes dirty or being flushed, in whole extents.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.bytes_of(self.dirty, DIRTY | FLUSHING)
    }

    fn bytes_of(&self, count: u64, mask: u8) -> u64 {
        let slack = ((self.states.len() as u64) << self.shift) - self.size;
        let last = self.states.last().is_some_and(|state| state & mask != 0);
        (count << self.shift) - if last { slack } else { 0 }
    }

    /// Whether all is present.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.present == self.states.len() as u64
    }

    /// Whether anything is dirty or being flushed.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty > 0
    }

    /// First step of a sync: call it, then sync the object (the lock may be let go meanwhile), then
    /// [`Self::finish_sync`] if that succeeded or [`Self::abort_sync`] if not. One sync at a time: the
    /// first to end speaks for all that was present when the last began.
    pub fn begin_sync(&mut self) {
        let unsynced = std::mem::replace(&mut self.unsynced, 0..0);
        // Another one may be under way.
        self.syncing = spanning(&self.syncing, &unsynced);
        for index in self.existing(&unsynced) {
            let state = &mut self.states[index];
            if *state & (PRESENT | DURABLE) == PRESENT {
                *state |= SYNCING;
            }
        }
    }

    /// The object is synced: the extents that were present at [`Self::begin_sync`] survive a crash of the
    /// machine, once what is returned is synced as well, for which nobody needs the map.
    pub fn finish_sync(&mut self) -> Result<WrittenMap> {
        let syncing = std::mem::replace(&mut self.syncing, 0..0);
        for index in self.existing(&syncing) {
            let state = self.states[index];
            if state & SYNCING != 0 {
                self.set_state(index, (state & !SYNCING) | DURABLE);
            }
        }
        self.save()?;
        Ok(WrittenMap(self.file.clone()))
    }

    /// Of a range of extents those that there are: the file may have been cut.
    fn existing(&self, range: &Range<usize>) -> Range<usize> {
        range.start.min(self.states.len())..range.end.min(self.states.len())
    }

    /// Makes the map itself durable as it is.
    pub fn sync_map(&mut self) -> Result<()> {
        self.save()?;
        WrittenMap(self.file.clone()).sync()?;
        self.behind = false;
        Ok(())
    }

    /// Writes all of the map to its file once more: a sync of the file failed.
    pub fn save_all(&mut self) -> Result<()> {
        self.unsaved = 0..self.states.len();
        self.header_unsaved = true;
        self.save()
    }

    /// The sync of the object failed.
    pub fn abort_sync(&mut self) {
        let syncing = std::mem::replace(&mut self.syncing, 0..0);
        for index in self.existing(&syncing) {
            self.states[index] &= !SYNCING;
            self.note_unsynced(index);
        }
    }

    /// Syncs object and map in one call.
    pub fn sync(&mut self, object: &dyn Bytes) -> Result<()> {
        self.begin_sync();
        match object.sync(false) {
            Ok(()) => self.finish_sync()?.sync(),
            Err(e) => {
                self.abort_sync();
                Err(e)
            }
        }
    }
}

/// The smallest range with both in it.
fn spanning(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    match (one.is_empty(), other.is_empty()) {
        (true, _) => other.clone(),
        (_, true) => one.clone(),
        _ => one.start.min(other.start)..one.end.max(other.end),
    }
}

/// The byte that stands on disk for a state in memory.
fn on_disk(state: u8) -> u8 {
    let dirty = if state & FLUSHING != 0 { DIRTY } else { 0 };
    (state & (PRESENT | DIRTY | DURABLE)) | dirty
}

/// What stands where no state was ever written.
const UNWRITTEN: u8 = 0;

/// A state with its check bits: the upper half of the byte has each bit of the lower one inverted, so
/// that no damage of one half alone makes another state of it, nor do zeros.
fn encoded(version: u32, state: u8) -> u8 {
    if version == VERSION_UNCHECKED { state } else { state | (!state << 4) }
}

/// The state that a byte on disk stands for, if it is one that is ever written.
fn decoded(version: u32, byte: u8) -> Option<u8> {
    let state = if version == VERSION_UNCHECKED { byte } else { byte & 0x0f };
    let is_sound =
        state & !(PRESENT | DIRTY | DURABLE) == 0 && (state == 0 || state & PRESENT != 0);
    (is_sound && encoded(version, state) == byte).then_some(state)
}

#[cfg(test)]
mod tests;
