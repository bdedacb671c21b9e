//! Where a file's bytes are: an object on a tier, and the underlay that fills its gaps.
//!
//! `state.rs` has the states that this makes, and who changes them. Rooms above read it here.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_store::{BackingFile, Bytes, Header, Object, Presence};
use forebay_types::Fingerprint;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::error::Result;
use crate::residency::data::BLOCK;
use crate::residency::overlay::Spill;

/// Where the bytes of one file are. Only residency makes and changes it.
pub struct DataLocation {
    /// Whether the rest was looked up since the file came into use.
    pub(super) loaded: bool,
    /// The object on a tier, if any.
    pub(super) place: Option<TierObject>,
    /// What the bytes are that the object does not hold.
    pub(super) base: Underlay,
}

/// An object on a tier.
pub struct TierObject {
    /// Which tier, 0 the fastest.
    pub(super) tier: u8,
    /// The object. The node holds this one descriptor of it, so that a lease can prove that
    /// nobody else has it open or mapped.
    pub(super) object: Arc<dyn Object>,
    /// Which extents are there; `None` once the header says that all are ([`Self::is_marked_whole`]).
    pub(super) presence: Option<RwLock<Presence>>,
    /// What it takes up of its tier's room.
    pub(super) charge: Charge,
    /// Whether the header says dirty.
    pub(super) dirty: AtomicBool,
    /// Whether the kernel was given the object for passthrough since it is in use: programs may
    /// read it, or have it mapped, without asking.
    pub(super) passed: AtomicBool,
    /// What of its header is durable.
    pub(super) headers: Headers,
}

impl DataLocation {
    /// That of a file that comes into use, and is not looked up yet.
    pub(super) fn unknown() -> Self {
        DataLocation { loaded: false, place: None, base: Underlay::Zeros }
    }

    /// The object on a tier, if there is one.
    pub(crate) fn place(&self) -> Option<&TierObject> {
        self.place.as_ref()
    }

    /// What the bytes are that the object does not hold.
    pub(crate) fn base(&self) -> &Underlay {
        &self.base
    }

    /// Whether it was looked up since the file came into use.
    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// Whether bytes of the file are in a spill file.
    pub(crate) fn is_spilled(&self) -> bool {
        matches!(self.base, Underlay::Spill(_))
    }
}

impl TierObject {
    /// An object that nobody has in use yet.
    pub(super) fn new(
        tier: u8,
        object: Arc<dyn Object>,
        map: Option<Presence>,
        charge: Charge,
        dirty: bool,
    ) -> Self {
        TierObject {
            tier,
            object,
            presence: map.map(RwLock::new),
            charge,
            dirty: dirty.into(),
            passed: false.into(),
            headers: Headers::default(),
        }
    }

    /// Which tier, 0 the fastest.
    pub(crate) fn tier(&self) -> u8 {
        self.tier
    }

    /// Its bytes, to be read. Whoever changes them says so before ([`Residency`](super::Residency)).
    pub(crate) fn bytes(&self) -> &dyn Bytes {
        &*self.object
    }

    /// As [`Self::bytes`], for who has not got the file in hand.
    pub(crate) fn shared_bytes(&self) -> Arc<dyn Bytes> {
        self.object.clone()
    }

    /// What the object says of itself.
    ///
    /// # Errors
    /// What the tier says.
    pub(crate) fn header(&self) -> Result<Header> {
        Ok(self.object.header()?)
    }

    /// Whether the object has bytes that the backing store lacks, or may get some at any moment.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// The map of an object that is not marked whole.
    pub(crate) fn map(&self) -> Option<RwLockReadGuard<'_, Presence>> {
        self.presence.as_ref().map(RwLock::read)
    }

    /// Whether every byte of a range is in the object.
    pub(crate) fn is_present(&self, range: Range<u64>) -> bool {
        self.map().is_none_or(|map| map.is_present(range))
    }

    /// What of a range is not in the object, and has to be read from below.
    pub(crate) fn absent(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut absent = Vec::new();
        if let Some(map) = self.map() {
            map.missing_runs(range, &mut absent);
        }
        absent
    }

    /// The kernel reads the object by itself from now on.
    pub(crate) fn note_passed(&self) {
        self.passed.store(true, Ordering::Release);
    }

    /// Whether the object is not known to be durable as its header says.
    pub(crate) fn has_unsynced_header(&self) -> bool {
        self.headers.unsynced().is_some()
    }

    /// How much of a range is not charged to its tier yet.
    pub(crate) fn unpaid(&self, range: Range<u64>) -> u64 {
        self.charge.unpaid(range)
    }

    /// Whether the header says that the object has all bytes. No map counts then, and none is to be kept
    /// up to date: this is what lets the kernel have the object.
    pub fn is_marked_whole(&self) -> bool {
        self.presence.is_none()
    }

    /// Whether the object has all bytes. Its map may be in use still: until it was made durable that
    /// they are there, and as long as a spill file lies below.
    pub fn has_all_bytes(&self) -> bool {
        self.map().is_none_or(|map| map.is_whole())
    }

    /// Whether bytes of the file are neither in the object nor zeros, but those of a version below. An
    /// object may lack extents and no bytes: those beyond the end of what lies below.
    pub fn lacks_bytes(&self) -> bool {
        !self.absent(0..u64::MAX).is_empty()
    }
}

/// A tier has taken a file, whose count of writes was this then.
#[derive(Clone, Copy)]
pub(crate) struct Admitted {
    pub(crate) tier: u8,
    pub(crate) seen: u64,
}

/// What an object on a tier lacks, and the version whose bytes belong there.
#[derive(Clone, Copy)]
pub(crate) struct Gaps<'a> {
    pub(crate) tier: u8,
    pub(crate) base: &'a Arc<dyn BackingFile>,
}

/// Bytes, and where they belong.
pub(crate) struct AtRange<'a> {
    pub(crate) range: Range<u64>,
    pub(crate) bytes: &'a [u8],
}

/// Whether an object lacks bytes of a version that it belongs to. Nothing may be known of that any more,
/// after a conflict or because others have removed it; what it had is no zeros for that.
pub(crate) fn is_built_upon_another(object: Option<&TierObject>) -> Result<bool> {
    match object {
        Some(place) if place.lacks_bytes() => Ok(place.object.header()?.base.is_some()),
        _ => Ok(false),
    }
}

/// How often the header of an object was written since the object is in use, and which of them a sync
/// has covered. Bytes that are durable without the header that says so are lost with the power.
#[derive(Default)]
pub struct Headers {
    written: AtomicU64,
    durable: AtomicU64,
    /// Whether the newest one says that a program has had the file synced.
    says_synced: AtomicBool,
}

impl Headers {
    /// To be called before a sync of the object, with its name and what says that there is no other
    /// one; the result goes to [`Headers::synced`]. `None` if all of that is durable.
    pub fn unsynced(&self) -> Option<u64> {
        // The first one counts as well: it may be another daemon's.
        let written = self.written.load(Ordering::Acquire) + 1;
        (self.durable.load(Ordering::Acquire) < written).then_some(written)
    }

    /// Whether the header is known to say that a program has had the file synced.
    pub fn say_synced(&self) -> bool {
        self.says_synced.load(Ordering::Acquire)
    }

    /// What the header says of that.
    pub fn hear_synced(&self, synced: bool) {
        self.says_synced.store(synced, Ordering::Release);
    }

    /// The sync is done.
    pub fn synced(&self, seen: u64) {
        self.durable.fetch_max(seen, Ordering::AcqRel);
    }
}

impl TierObject {
    /// Writes the header of the object. An error is no proof that nothing happened: if the object has the
    /// header all the same, it counts as written.
    ///
    /// # Errors
    /// What the tier says.
    pub(super) fn set_header(&self, header: &Header) -> Result<()> {
        let set = match self.object.set_header(header) {
            Err(error) if !self.object.header().is_ok_and(|now| now == *header) => Err(error),
            _ => Ok(()),
        };
        self.headers.hear_synced(set.is_ok() && header.synced);
        // After it: a sync that does not see this one is repeated. And after a failure, too.
        self.headers.written.fetch_add(1, Ordering::AcqRel);
        Ok(set?)
    }

    /// Bytes that the object and its map take up.
    ///
    /// # Errors
    /// What the tier says.
    pub fn allocated_bytes(&self) -> Result<u64> {
        let map = self.presence.as_ref().map_or(0, |presence| presence.read().sidecar_bytes());
        Ok(self.object.allocated_bytes()? + map)
    }

    /// Whether a write from `offset` to `end` needs no block that the object does not have.
    pub fn has_blocks(&self, offset: u64, end: u64) -> bool {
        let hole = self.object.seek_hole(offset);
        matches!(hole, Ok(Some(hole)) if end <= hole.next_multiple_of(BLOCK))
    }

    /// The end of the blocks that a whole object has without a gap.
    pub fn end_of_blocks(&self) -> u64 {
        match (&self.presence, self.object.seek_hole(0)) {
            (None, Ok(Some(hole))) => hole.next_multiple_of(BLOCK),
            _ => 0,
        }
    }
}

/// What an object is charged, kept so that a write inside charged bytes asks nobody.
///
/// The charge is never below what the object and its map take up, but for what a passthrough writer
/// does behind the daemon's back: it grows before the bytes are written, in whole blocks, and shrinks
/// only while nobody writes ([`Residency::true_up`](crate::residency::Residency)).
#[derive(Default)]
pub struct Charge {
    /// Writes that end here or before are paid for.
    pub paid_end: AtomicU64,
    /// Bytes charged to the tier.
    pub bytes: AtomicU64,
    /// Held while the charge grows.
    pub growing: Mutex<()>,
}

impl Charge {
    /// A charge of `bytes` for an object whose bytes up to `end` are allocated.
    pub fn new(bytes: u64, end: u64) -> Self {
        Charge {
            paid_end: AtomicU64::new(end),
            bytes: AtomicU64::new(bytes),
            growing: Mutex::new(()),
        }
    }

    /// Bytes charged.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How much of a range is not charged yet.
    pub(crate) fn unpaid(&self, Range { start, end }: Range<u64>) -> u64 {
        end.saturating_sub(start.max(self.paid_end.load(Ordering::Acquire)))
    }
}

/// What absent extents stand for.
#[derive(Default)]
pub enum Underlay {
    /// Zeros: a file that the backing store does not have, or whose every byte is on the tier.
    #[default]
    Zeros,
    /// The file in the backing store; opened at the first use.
    Backing(Mutex<Option<Arc<dyn BackingFile>>>),
    /// A spill file in the backing store: bytes for which no tier had room, over the published
    /// version if there is one.
    Spill(Arc<Spill>),
}

impl Underlay {
    /// The backing file, not opened yet.
    pub fn backing() -> Self {
        Underlay::Backing(Mutex::new(None))
    }

    /// The version in the backing store is opened anew when it is needed: there may be another one.
    pub fn close_version(&self) {
        match self {
            Underlay::Zeros => {}
            Underlay::Backing(opened) => *opened.lock() = None,
            Underlay::Spill(spill) => spill.close_below(),
        }
    }

    /// Whether it is the backing file, and this version of it is open.
    pub fn is_open_as_version(&self, version: &Fingerprint) -> bool {
        let Underlay::Backing(opened) = self else { return false };
        let opened = opened.lock().clone();
        let found = opened.and_then(|opened| opened.stat().ok());
        found.is_some_and(|found| found.fingerprint().same_inode(version))
    }

    /// Whether it is the backing file that was opened as `file`, and no version that was put in its
    /// place since.
    pub fn is_opened_as(&self, file: &Arc<dyn BackingFile>) -> bool {
        let Underlay::Backing(opened) = self else { return false };
        opened.lock().as_ref().is_some_and(|now| Arc::ptr_eq(now, file))
    }
}
