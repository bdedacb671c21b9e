//! Tiers: the node's own fast devices, one sparse local file per inode.
//!
//! An object that a mapping may still store into gives no lease, so nothing evicts it
//! (`tests/tier.rs`).

use std::fmt;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Attributes, Believed, Bytes, Header, Presence, Result};

pub use crate::dir_tier::{DirTier, check_dir, identity, is_label_torn, restore_label};

/// Identity of a tier, made at random when it is formatted; it survives renames of the directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TierId(pub [u8; 16]);

impl fmt::Display for TierId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl TierId {
    /// From its text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
        let mut id = [0; 16];
        if digits.len() != 2 * id.len() {
            return None;
        }
        for (byte, pair) in id.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(TierId(id))
    }
}

impl fmt::Debug for TierId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Room on the file system that holds a tier. The configured size of the tier is the caller's
/// business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierUsage {
    /// Bytes of the file system.
    pub total: u64,
    /// Bytes that this process may still allocate.
    pub free: u64,
    /// Inodes that are still free; `u64::MAX` where the file system sets no limit.
    pub free_inodes: u64,
}

/// Proof that this process alone works on a tier; released on drop or death.
#[derive(Debug)]
pub struct TierLock {
    #[allow(dead_code, reason = "held for its lock, which ends when the descriptor closes")]
    pub(crate) fd: Option<OwnedFd>,
}

/// A write lease on an object (`F_SETLEASE`): while it is held no one else has the object open or
/// mapped. Opening it elsewhere blocks until the guard is dropped (the kernel breaks the lease by
/// force after `/proc/sys/fs/lease-break-time` seconds, 45 by default). Released on drop.
pub struct LeaseGuard<'a> {
    pub(crate) held: Option<std::os::fd::BorrowedFd<'a>>,
}

/// One object: the local file that holds an inode's bytes.
pub trait Object: Bytes {
    /// Forebay's inode number.
    fn ino(&self) -> u64;

    /// Reads the header from the object.
    fn header(&self) -> Result<Header>;

    /// Replaces the header, atomically for every reader and across a kill of the daemon. It is
    /// durable after [`Bytes::sync`] with `data_only = false`.
    fn set_header(&self, header: &Header) -> Result<()>;

    /// Takes a write lease: `None` when any other open or mapping of the object exists, in this
    /// process or elsewhere (a mapping outlives the close of a passthrough file, so this is the only
    /// proof that nobody stores into the object). This `Object` must be the only open descriptor;
    /// drop all other `Arc`s made by separate [`Tier::open`] calls and backing registrations first.
    ///
    /// On a file system without leases the error has class `Unsupported`: the caller then has to
    /// treat an object as in use if it was open through passthrough recently.
    fn exclusive(&self) -> Result<Option<LeaseGuard<'_>>>;
}

/// A directory on a fast device. All calls block.
pub trait Tier: Send + Sync {
    /// Identity.
    fn id(&self) -> TierId;

    /// The directory.
    fn path(&self) -> &Path;

    /// Takes the tier for this process. Whoever has it may be about to end and is waited for, some
    /// seconds; then this fails with [`crate::StoreError::Locked`], naming the process.
    fn lock(&self) -> Result<TierLock>;

    /// Makes an empty object with a header. `Exists` if there is one.
    fn create(&self, ino: u64, header: &Header) -> Result<Arc<dyn Object>>;

    /// Makes a file on the tier's file system an object, with a header; it has no other name from then
    /// on. `Exists` if there is an object of this inode. A crash leaves one or the other.
    fn adopt(&self, ino: u64, file: &Path, header: &Header) -> Result<Arc<dyn Object>>;

    /// Moves an object out of the tier, to a path on its file system, and its map to that path with
    /// `.map`. `NotFound` if there is none.
    fn detach(&self, ino: u64, to: &Path) -> Result<()>;

    /// Moves an object that can't be used, and may be the only copy of its bytes, to a free name in
    /// `lost/`, its map beside it. Where it is now. `NotFound` if there is none.
    fn set_aside(&self, ino: u64) -> Result<PathBuf> {
        let to = crate::recover::free_name(self.path(), &crate::dir_tier::object_name(ino))?;
        self.detach(ino, &to)?;
        Ok(to)
    }

    /// Opens an object for reading and writing. `NotFound` if there is none.
    fn open(&self, ino: u64) -> Result<Arc<dyn Object>>;

    /// What the file system says of an object, which need not be opened for that. `NotFound` if there is none.
    fn stat(&self, ino: u64) -> Result<Attributes>;

    /// Removes an object and its map. `NotFound` if there is none. Open ones live on until closed.
    fn remove(&self, ino: u64) -> Result<()>;

    /// Calls `each` for every object, in no order, with its header or the reason why it has none.
    /// Holds one directory block in memory. Files that are no objects are passed over
    ///.
    fn list(&self, each: &mut dyn FnMut(u64, Result<Header>) -> ControlFlow<()>) -> Result<()>;

    /// Makes the presence map of a partly resident object of `size` bytes, all absent.
    /// `extent_size` is a power of two from 4 KiB to 1 GiB.
    fn create_map(&self, ino: u64, extent_size: u64, size: u64) -> Result<Presence>;

    /// Opens a presence map as it is, and writes nothing; `None` when there is none (the object is then
    /// whole). After a crash of the machine ([`Believed::Synced`]) the caller goes on with
    /// [`Presence::believe_what_was_synced`].
    fn open_map(&self, ino: u64, believed: Believed) -> Result<Option<Presence>>;

    /// Removes the map of an object that has become whole. No error when there is none. The object
    /// must be synced before, or it counts as whole after a crash without being so.
    fn remove_map(&self, ino: u64) -> Result<()>;

    /// Whether the first store into each page of a mapping moves an object's modification time, also
    /// when the page was loaded before. On other file systems (tmpfs) a store may leave no trace.
    fn tells_stores(&self) -> bool {
        false
    }

    /// Room on the file system.
    fn usage(&self) -> Result<TierUsage>;

    /// Makes the directory entry of an object durable (after `create` or `remove`).
    fn sync_dir(&self, ino: u64) -> Result<()>;

    /// Makes it durable that objects are gone that were removed, in the directory of this one.
    fn settle_removals(&self, ino: u64) -> Result<()>;

    /// Makes everything on the tier's file system durable.
    fn sync(&self) -> Result<()>;
}
