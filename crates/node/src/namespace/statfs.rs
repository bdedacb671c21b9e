//! Size and room of the file system: the backing store's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_store::backing::FileSystemUsage;
use parking_lot::Mutex;

use crate::context::Context;
use crate::defects::Step;
use crate::error::Result;
use crate::node::Node;
use crate::pool::Urgency;

use super::NAME_MAX;

/// How long an answer of the backing store is used.
const FRESH: Duration = Duration::from_secs(1);
/// How long an older one is given, while it is asked again.
const STALE: Duration = Duration::from_secs(5);

/// Size and room, as `statvfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statfs {
    /// Block size in bytes.
    pub block_size: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for ordinary users.
    pub blocks_available: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// The longest name in bytes.
    pub name_max: u64,
}

impl From<FileSystemUsage> for Statfs {
    fn from(usage: FileSystemUsage) -> Self {
        Statfs {
            block_size: usage.block_size.max(1),
            blocks: usage.blocks,
            blocks_free: usage.blocks_free,
            blocks_available: usage.blocks_available,
            inodes: usage.inodes,
            inodes_free: usage.inodes_free,
            name_max: usage.name_max.min(NAME_MAX as u64),
        }
    }
}

/// The last answer of the backing store.
#[derive(Default)]
pub(super) struct Cached {
    last: Mutex<Option<(Statfs, Instant)>>,
    refreshing: AtomicBool,
}

impl Node {
    /// Size and room of the backing store, as of the last few seconds. Who asks again and again does not
    /// wait for it: his answers are refreshed in the background.
    ///
    /// # Errors
    /// What the backing store says.
    pub fn statfs(&self, context: &Context) -> Result<Statfs> {
        if let Some(statfs) = self.statfs_at_once() {
            return Ok(statfs);
        }
        context.wait()?;
        self.refresh_statfs()
    }

    /// The same for who has a lock in hand: `None` if somebody would have to wait for it.
    pub(crate) fn statfs_at_once(&self) -> Option<Statfs> {
        let last = *self.names.statfs.last.lock();
        let (statfs, at) = last.filter(|(_, at)| at.elapsed() <= STALE)?;
        if at.elapsed() > FRESH {
            self.refresh_statfs_later();
        }
        Some(statfs)
    }

    fn refresh_statfs(&self) -> Result<Statfs> {
        let statfs = Statfs::from(self.backing.statfs()?);
        *self.names.statfs.last.lock() = Some((statfs, Instant::now()));
        Ok(statfs)
    }

    pub(crate) fn try_to_refresh_statfs(&self) {
        if let Err(error) = self.refresh_statfs() {
            tracing::debug!(%error, "the backing store does not tell its room");
        }
    }

    fn refresh_statfs_later(&self) {
        let cached = &self.names.statfs;
        if cached.refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = self.this.clone();
        let started = self.slow.run(Urgency::Background, move || {
            let Some(node) = this.upgrade() else { return };
            node.writeback.keep_up(Step::Statfs);
            node.names.statfs.refreshing.store(false, Ordering::Release);
        });
        if started.is_err() {
            cached.refreshing.store(false, Ordering::Release);
        }
    }
}
