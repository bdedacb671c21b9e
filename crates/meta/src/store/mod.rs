//! The store: the logical tree and where each inode stands in the backing store.

mod api;

use std::sync::Arc;

pub use api::*;

use crate::engine::Engine;
use crate::error::Result;
use crate::types::{Fingerprint, Ino, Link, Record, Seq, Timestamp};

/// The namespace. See the crate's documentation. All methods block, take `&self` and may be called
/// from any thread; none reads a clock.
pub struct MetaStore {}

#[allow(unused_variables)]
impl MetaStore {
    /// Opens the namespace kept by an engine. A new one gets a root directory (mode 0755, owner 0,
    /// neither listed nor queued); call [`MetaStore::refresh`] with the backing root's attributes.
    ///
    /// # Errors
    /// If the engine fails, can't span partitions, or holds a newer format.
    pub fn open(engine: Box<dyn Engine>, options: &Options) -> Result<Self> {
        todo!()
    }
    /// The record of an inode. Fails with `Stale` if there is none.
    pub fn get(&self, ino: Ino) -> Result<Arc<Record>> {
        todo!()
    }
    /// The record behind a name, if any.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<Arc<Record>>> {
        todo!()
    }
    /// The path from the root by first links, without a leading slash; `None` if unreachable.
    pub fn path(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        todo!()
    }
    /// The path in the backing store by first backing links; `None` if it isn't there (yet).
    pub fn backing_path(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        todo!()
    }
    /// The backing path of one backing name.
    pub fn backing_path_of(&self, link: &Link) -> Result<Option<Vec<u8>>> {
        todo!()
    }

    /// Creates an inode under a name (queued). A directory is `listed` from the start.
    pub fn create(
        &self,
        dir: Ino,
        name: &[u8],
        new: NewInode,
        now: Timestamp,
    ) -> Result<Arc<Record>> {
        todo!()
    }
    /// Creates an inode without a name (`O_TMPFILE`): an orphan with nlink 0, not queued.
    pub fn create_unlinked(&self, dir: Ino, new: NewInode, now: Timestamp) -> Result<Arc<Record>> {
        todo!()
    }
    /// Gives an inode (also an orphan) another name.
    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8], now: Timestamp) -> Result<Arc<Record>> {
        todo!()
    }
    /// Removes a name of anything but a directory.
    pub fn unlink(&self, dir: Ino, name: &[u8], now: Timestamp, in_use: bool) -> Result<Unlinked> {
        todo!()
    }
    /// Removes an empty directory. Only logical entries are looked at: the caller sees to it that
    /// the directory is listed.
    pub fn rmdir(&self, dir: Ino, name: &[u8], now: Timestamp, in_use: bool) -> Result<Unlinked> {
        todo!()
    }
    /// Renames.
    pub fn rename(
        &self,
        from_dir: Ino,
        from: &[u8],
        to_dir: Ino,
        to: &[u8],
        flags: RenameFlags,
        now: Timestamp,
        in_use: &dyn Fn(Ino) -> bool,
    ) -> Result<Renamed> {
        todo!()
    }

    /// Changes attributes and flags, bumps `change`, sets ctime if `now` is given. Numbers, names,
    /// type and place in the backlog can't be changed.
    pub fn update(
        &self,
        ino: Ino,
        now: Option<Timestamp>,
        change: impl FnMut(&mut Record) -> Queue,
    ) -> Result<Arc<Record>> {
        todo!()
    }
    /// Sets times only: neither a logical change nor queued.
    pub fn touch_times(&self, ino: Ino, times: Times) -> Result<Arc<Record>> {
        todo!()
    }
    /// Marks as to be kept on the tier, or not; not queued.
    pub fn set_pinned(&self, ino: Ino, pinned: bool) -> Result<Arc<Record>> {
        todo!()
    }

    /// Entries whose cursor is greater than `after` (0 to begin), about `limit` of them: entries
    /// of equal cursors always come in one page. Empty at the end.
    pub fn entries(&self, dir: Ino, after: u64, limit: usize) -> Result<Vec<Entry>> {
        todo!()
    }
    /// As [`MetaStore::entries`], with records.
    pub fn entries_plus(&self, dir: Ino, after: u64, limit: usize) -> Result<Vec<EntryPlus>> {
        todo!()
    }
    /// Whether a directory has no logical entries.
    pub fn is_empty(&self, dir: Ino) -> Result<bool> {
        todo!()
    }

    /// The value of an extended attribute. All xattr calls fail with `XattrsUnknown` while the
    /// attributes are not imported.
    pub fn xattr_get(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        todo!()
    }
    /// Names of the extended attributes.
    pub fn xattr_list(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        todo!()
    }
    /// All extended attributes.
    pub fn xattr_all(&self, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        todo!()
    }
    /// Sets an extended attribute (queued).
    pub fn xattr_set(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
        now: Timestamp,
    ) -> Result<Arc<Record>> {
        todo!()
    }
    /// Removes an extended attribute (queued); `NoXattr` if there is none.
    pub fn xattr_remove(&self, ino: Ino, name: &[u8], now: Timestamp) -> Result<Arc<Record>> {
        todo!()
    }
    /// Import: what the backing store has; not queued. Does nothing if they are known already.
    pub fn xattr_replace_all(
        &self,
        ino: Ino,
        xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<Arc<Record>> {
        todo!()
    }

    /// Adds entries found in the backing directory for names that are neither logical entries nor
    /// ghosts. Returns how many were added. In bounded transactions: a prefix may have been added
    /// when it fails.
    pub fn import(&self, dir: Ino, found: &[Found]) -> Result<u64> {
        todo!()
    }
    /// All entries of the backing directory, which was like `fingerprint` before it was read, are
    /// imported.
    pub fn set_listed(&self, dir: Ino, fingerprint: Fingerprint) -> Result<Arc<Record>> {
        todo!()
    }
    /// What the backing store says now about an inode (`found.name` is ignored).
    pub fn refresh(&self, ino: Ino, found: &Found) -> Result<Refreshed> {
        todo!()
    }
    /// The backing store no longer has a name that it had: removes it with all below that has no
    /// pending changes. `removed` is called for each inode removed.
    pub fn vanished(
        &self,
        dir: Ino,
        name: &[u8],
        now: Timestamp,
        removed: &mut dyn FnMut(Ino),
    ) -> Result<Vanished> {
        todo!()
    }

    /// Up to `limit` records in the backlog after `after` (`Seq(0)` to begin), oldest first.
    pub fn backlog(&self, after: Seq, limit: usize) -> Result<Vec<(Seq, Ino)>> {
        todo!()
    }
    /// Number of records in the backlog.
    pub fn backlog_len(&self) -> u64 {
        todo!()
    }
    /// The oldest record in the backlog.
    pub fn backlog_oldest(&self) -> Result<Option<(Seq, Ino)>> {
        todo!()
    }
    /// Stores what a worker did in the backing store: `facts` sets [`Record::backing`], `dirty`,
    /// `spilled`. The record leaves the backlog if `change` is still `seen_change` and nothing
    /// differs; a dead one is deleted. Returns whether it is still queued. `Stale` if the record is
    /// gone: what the worker made has to be removed again.
    pub fn reconciled(
        &self,
        ino: Ino,
        seen_change: u64,
        facts: impl FnMut(&mut Record),
    ) -> Result<bool> {
        todo!()
    }
    /// Notes that the backing store may have the inode under `link` from now on. Call it before
    /// making the name there, so that neither a crash nor a concurrent removal leaves a name that
    /// nobody remembers.
    pub fn claim(&self, ino: Ino, link: Link) -> Result<Arc<Record>> {
        todo!()
    }
    /// Puts a record at the end of the backlog.
    pub fn requeue_last(&self, ino: Ino) -> Result<()> {
        todo!()
    }
    /// Backing names in a directory that are held by inodes which logically are elsewhere.
    pub fn ghosts(&self, dir: Ino) -> Result<Vec<(Box<[u8]>, Ino)>> {
        todo!()
    }
    /// The inode that holds a backing name which logically it no longer has.
    pub fn ghost(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        todo!()
    }

    /// Inodes without a name that were in use.
    pub fn orphans(&self) -> Result<Vec<Ino>> {
        todo!()
    }
    /// An orphan is no longer in use. Returns whether its record is gone already.
    pub fn release_orphan(&self, ino: Ino, now: Timestamp) -> Result<bool> {
        todo!()
    }

    /// Sizes.
    pub fn counts(&self) -> Counts {
        todo!()
    }
    /// Engine calls so far.
    pub fn round_trips(&self) -> RoundTrips {
        todo!()
    }
    /// A free-form setting.
    pub fn setting(&self, name: &str) -> Result<Option<Vec<u8>>> {
        todo!()
    }
    /// Stores a free-form setting.
    pub fn set_setting(&self, name: &str, value: &[u8]) -> Result<()> {
        todo!()
    }
    /// Returns when all that was done before survives the loss of power.
    pub fn sync(&self) -> Result<()> {
        todo!()
    }
    /// Checks every rule; repairs what can be repaired without loss, if asked. Nothing else may
    /// use the store meanwhile.
    pub fn check(&self, repair: bool) -> Result<Report> {
        todo!()
    }
}
