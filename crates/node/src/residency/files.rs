//! Files in use: one [`File`] for every inode that is open or being worked on.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use forebay_meta::Attr;
use forebay_store::{Attributes, Bytes};
use forebay_types::Ino;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::context::Context;
use crate::error::Result;

use crate::cluster::FileInCluster;
use crate::namespace::set_ids::SetIds;
use crate::residency::data_location::{DataLocation, Underlay};
use crate::residency::fetch::Filler;
use crate::residency::inode_alias::Opens;
use crate::residency::overlay::Spill;
use crate::residency::unwritten::Look;
use crate::writeback::file::FileInWriteback;

/// A regular file in use. Its bytes are reached through [`File::location`].
pub struct File {
    /// The inode number.
    pub ino: Ino,
    /// Where the bytes are. Read-locked by every transfer, write-locked to change what lies
    /// where.
    pub location: RwLock<DataLocation>,
    /// Who has it open, and how.
    pub opens: Mutex<Opens>,
    /// One at a time copies it from the backing store.
    pub fetching: Mutex<()>,
    /// Counts writes that the daemon served, opens for writing and truncations: a flush during
    /// which it moved has a torn copy.
    pub writes: AtomicU64,
    /// Opens that are being made.
    pub opening: AtomicU32,
    /// What write-back has of it.
    pub writeback: FileInWriteback,
    /// What the cluster has of it.
    pub cluster: FileInCluster,
    /// Its set-id bits.
    pub set_ids: SetIds,
    /// What is copied from the backing store ahead of its readers.
    pub filler: Mutex<Filler>,
    /// The record's `change` when the namespace was last made durable for this file, plus one.
    pub durable_change: AtomicU64,
    /// Whether a mapping may live that outlasted a passthrough open and that programs store into.
    pub stored_unseen: StoredUnseen,
    /// Whether the kernel may have pages of it in its cache: what programs store into them through
    /// mappings, nobody hears of before the kernel writes it.
    pub pages_in_kernel: AtomicBool,
    /// How the clean object looked to a passthrough writer, if a change would show.
    pub clean_as: Mutex<Option<Look>>,
    /// Held by whoever has the record follow the size and time of the object, or the object a time
    /// that was set in the record: of two neither may undo what the other did.
    pub times: Mutex<()>,
    /// The spill file, for who sets its time: whoever has the location in hand may wait for the backing
    /// store.
    pub spill: Mutex<Weak<Spill>>,
    /// Syncs of which somebody may have been told. Whoever is about to give the name of the file to another
    /// one holds it, so that nobody is told between the look whether the file was synced and the change.
    pub syncs: Mutex<u64>,
    /// Others have removed it below while it was open: the attributes that it had then.
    pub gone: OnceLock<Attr>,
    /// Held by each sync that is under way: see `failed_syncs.rs`.
    pub syncing: RwLock<()>,
    /// Held over the whole sync of a part, from the look at its map to the map on the device.
    pub part_syncs: Mutex<()>,
}

/// Counts what may leave a mapping that programs store into without the daemon: opens and closes of
/// writers whose file the kernel writes by itself. Both counts only grow, so that who has looked for a
/// mapping can't take a writer that came meanwhile for one of those from before.
pub struct StoredUnseen {
    counted: AtomicU64,
    /// Of those up to this one no mapping is left.
    settled: AtomicU64,
}

impl Default for StoredUnseen {
    fn default() -> Self {
        // Nobody knows what was before the file came into use.
        StoredUnseen { counted: AtomicU64::new(1), settled: AtomicU64::new(0) }
    }
}

impl StoredUnseen {
    /// Another one came, or went.
    pub fn count(&self) {
        self.counted.fetch_add(1, Ordering::AcqRel);
    }

    /// Up to which one a mapping may be left; `None` if none is.
    pub fn pending(&self) -> Option<u64> {
        let counted = self.counted.load(Ordering::Acquire);
        (self.settled.load(Ordering::Acquire) < counted).then_some(counted)
    }

    /// Of those up to this one no mapping was left when somebody looked after it had been told.
    pub fn settle(&self, seen: u64) {
        self.settled.fetch_max(seen, Ordering::AcqRel);
    }
}

impl File {
    /// How an object of the file is, with the time that its record has: a program may have set that in
    /// the record, and not on the object yet. Whoever publishes what it finds here, as of a record that
    /// it has read before, publishes the time that this record says.
    pub fn stat_with_time(&self, object: &dyn Bytes) -> forebay_store::Result<Attributes> {
        let _one_at_a_time = self.times.lock();
        object.stat()
    }

    /// Others have removed the file, which had these attributes, and it is open.
    pub(crate) fn vanished(&self, attr: &Attr) {
        // Once is enough: nobody finds it again.
        let _known = self.gone.set(Attr { nlink: 0, ..attr.clone() });
    }

    fn new(ino: Ino) -> Self {
        File {
            ino,
            location: RwLock::new(DataLocation::unknown()),
            opens: Mutex::default(),
            fetching: Mutex::new(()),
            writes: AtomicU64::new(0),
            opening: AtomicU32::new(0),
            writeback: FileInWriteback::default(),
            cluster: FileInCluster::default(),
            set_ids: SetIds::default(),
            filler: Mutex::default(),
            durable_change: AtomicU64::new(0),
            stored_unseen: StoredUnseen::default(),
            pages_in_kernel: AtomicBool::new(false),
            clean_as: Mutex::default(),
            times: Mutex::new(()),
            spill: Mutex::default(),
            syncs: Mutex::default(),
            syncing: RwLock::default(),
            part_syncs: Mutex::default(),
            gone: OnceLock::new(),
        }
    }

    /// Where the bytes are, for a transfer. Whoever has the file in hand may wait for a slow device.
    ///
    /// # Errors
    /// As [`Context::wait`].
    pub fn location_for(&self, context: &Context) -> Result<RwLockReadGuard<'_, DataLocation>> {
        if let Some(location) = self.location.try_read() {
            return Ok(location);
        }
        context.wait()?;
        Ok(self.location.read())
    }

    /// Waits, where that is still to be done, without the file in hand: where the bytes are then.
    ///
    /// # Errors
    /// As [`Context::wait`].
    pub fn wait_with<'a>(
        &'a self,
        context: &Context,
        location: RwLockReadGuard<'a, DataLocation>,
    ) -> Result<RwLockReadGuard<'a, DataLocation>> {
        if context.may_wait() {
            return Ok(location);
        }
        drop(location);
        context.wait()?;
        Ok(self.location.read())
    }

    /// Whether a program has it open, or is about to.
    pub fn is_open(&self) -> bool {
        self.opening.load(Ordering::Acquire) > 0 || self.opens.lock().count > 0
    }

    /// The base of a file that has a spill file.
    pub fn spilled_to(&self, spill: Arc<Spill>) -> Underlay {
        *self.spill.lock() = Arc::downgrade(&spill);
        Underlay::Spill(spill)
    }

    /// Says that the kernel may have pages of it from now on.
    pub fn note_pages_in_kernel(&self) {
        // Mostly it is known; a store would take the line from the other readers.
        if !self.pages_in_kernel.load(Ordering::Relaxed) {
            self.pages_in_kernel.store(true, Ordering::Release);
        }
    }

    /// Says that the contents change, anywhere.
    pub fn count_write(&self) {
        self.count_write_from(0);
    }

    /// Says that the contents change, nowhere before `offset`.
    pub fn count_write_from(&self, offset: u64) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.cluster.bytes_changed_from(offset);
    }
}

const SHARDS: usize = 64;

type Shard = RwLock<HashMap<u64, Slot>>;

pub(crate) struct Slot {
    file: Arc<File>,
    users: u64,
}

/// The table of files in use. A file leaves it with its last [`FileRef`].
pub struct Files {
    shards: [Shard; SHARDS],
}

impl Default for Files {
    fn default() -> Self {
        Files { shards: std::array::from_fn(|_| RwLock::default()) }
    }
}

impl Files {
    fn shard(&self, ino: Ino) -> &Shard {
        let spread = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.shards[spread as usize % SHARDS]
    }

    /// The file of `ino`, entered into the table if it was not in use.
    pub fn get(self: &Arc<Self>, ino: Ino) -> FileRef {
        let mut shard = self.shard(ino).write();
        let slot =
            shard.entry(ino.0).or_insert_with(|| Slot { file: Arc::new(File::new(ino)), users: 0 });
        slot.users += 1;
        FileRef { file: slot.file.clone(), files: self.clone() }
    }

    /// The file of `ino` if it is in use.
    pub fn peek(self: &Arc<Self>, ino: Ino) -> Option<FileRef> {
        if !self.shard(ino).read().contains_key(&ino.0) {
            return None;
        }
        let mut shard = self.shard(ino).write();
        let slot = shard.get_mut(&ino.0)?;
        slot.users += 1;
        Some(FileRef { file: slot.file.clone(), files: self.clone() })
    }

    /// The inode numbers of all files in use.
    pub fn in_use(&self) -> Vec<Ino> {
        self.shards
            .iter()
            .flat_map(|shard| shard.read().keys().map(|&ino| Ino(ino)).collect::<Vec<_>>())
            .collect()
    }

    /// Holds every lock of the table, for a test of who needs them.
    #[cfg(test)]
    pub(crate) fn lock_all(&self) -> Vec<parking_lot::RwLockWriteGuard<'_, HashMap<u64, Slot>>> {
        self.shards.iter().map(|shard| shard.write()).collect()
    }

    /// Files in use.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Whether no file is in use.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A use of a file: keeps it in the table.
pub struct FileRef {
    file: Arc<File>,
    files: Arc<Files>,
}

impl Clone for FileRef {
    fn clone(&self) -> Self {
        self.files.get(self.file.ino)
    }
}

impl Deref for FileRef {
    type Target = File;
    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for FileRef {
    fn drop(&mut self) {
        let mut shard = self.files.shard(self.file.ino).write();
        if let Some(slot) = shard.get_mut(&self.file.ino.0) {
            slot.users -= 1;
            if slot.users == 0 {
                shard.remove(&self.file.ino.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writer_that_comes_while_somebody_looks_for_mappings_then_is_looked_for_as_well() {
        let unseen = StoredUnseen::default();
        let looking = unseen.pending().expect("nobody knows what was before");
        // Another looks meanwhile and finds nothing; then a writer comes.
        unseen.settle(looking);
        assert_eq!(unseen.pending(), None);
        unseen.count();
        unseen.settle(looking);
        let writer = unseen.pending().expect("the writer may have left a mapping");
        unseen.settle(writer);
        assert_eq!(unseen.pending(), None);
    }

    #[test]
    fn a_file_leaves_with_its_last_user() {
        let files = Arc::new(Files::default());
        assert!(files.peek(Ino(7)).is_none());
        let one = files.get(Ino(7));
        let two = files.peek(Ino(7)).expect("in use");
        assert!(Arc::ptr_eq(&one.file, &two.file));
        drop(one);
        assert_eq!(files.in_use(), vec![Ino(7)]);
        drop(two.clone());
        drop(two);
        assert!(files.is_empty());
    }
}
