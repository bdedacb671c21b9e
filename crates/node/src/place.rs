//! Where a file's bytes are: an object on a tier, and the base that fills its gaps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_store::{BackingFile, Object, Presence, Temporary, Timestamp};
use parking_lot::{Mutex, RwLock};

/// Where the bytes of one file are.
#[derive(Default)]
pub struct Residence {
    /// Whether the rest was looked up since the file came into use.
    pub loaded: bool,
    /// The object on a tier, if any.
    pub place: Option<Place>,
    /// What the bytes are that the object does not hold.
    pub base: Base,
}

/// An object on a tier.
pub struct Place {
    /// Which tier, 0 the fastest.
    pub tier: u8,
    /// The object. The node holds this one descriptor of it, so that a lease can prove that
    /// nobody else has it open or mapped.
    pub object: Arc<dyn Object>,
    /// Which extents are there; `None` when all bytes are.
    pub presence: Option<RwLock<Presence>>,
    /// What it takes up of its tier's room.
    pub charge: Charge,
    /// Whether the header says dirty.
    pub dirty: AtomicBool,
    /// Size and modification time when a passthrough writer came to a clean object: if they are the
    /// same when it has left, it wrote nothing.
    pub clean_as: Mutex<Option<(u64, Timestamp)>>,
}

/// What an object is charged, kept so that a write inside charged bytes asks nobody.
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
}

/// What absent extents stand for.
#[derive(Default)]
pub enum Base {
    /// Zeros: a file that the backing store does not have, or whose every byte is on the tier.
    #[default]
    Zeros,
    /// The file in the backing store; opened at the first use.
    Backing(Mutex<Option<Arc<dyn BackingFile>>>),
    /// A spill file in the backing store: bytes for which no tier had room.
    Spill(Arc<Temporary>),
}

impl Base {
    /// The backing file, not opened yet.
    pub fn backing() -> Self {
        Base::Backing(Mutex::new(None))
    }
}
