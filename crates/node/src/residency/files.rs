//! Files in use: one [`File`] for every inode that is open or being worked on.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use forebay_meta::Record;
use forebay_store::{Attributes, Object};
use forebay_types::{Fingerprint, Ino, Timestamp};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::context::Context;
use crate::error::{NodeError, Result};

use crate::residency::data_location::{DataLocation, Underlay};
use crate::residency::fetch::Filler;
use crate::residency::inode_alias::Opens;
use crate::residency::overlay::Spill;
use crate::residency::unwritten::Look;
use crate::writeback::staging::Staged;

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
    /// One at a time copies it to the backing store.
    pub flushing: Mutex<()>,
    /// A copy that is ready to be published.
    pub staged: Mutex<Option<Staged>>,
    /// Counts writes that the daemon served, opens for writing and truncations: a flush during
    /// which it moved has a torn copy.
    pub writes: AtomicU64,
    /// Numbers the flushes of this file.
    pub flush_begun: AtomicU64,
    /// The number of the latest flush that the backing store has.
    pub flush_done: AtomicU64,
    /// Opens that are being made.
    pub opening: AtomicU32,
    /// What is copied from the backing store ahead of its readers.
    pub filler: Mutex<Filler>,
    /// The record's `change` when the namespace was last made durable for this file, plus one.
    pub durable_change: AtomicU64,
    /// In a cluster: the version in the backing store that counted at the last open.
    pub shown: Mutex<Option<Option<Fingerprint>>>,
    /// In a cluster: opens by way of the owner since the file came into use, whatever they are now.
    pub remote_opens: AtomicU32,
    /// In a cluster: one at a time makes copies of it on other nodes, of which this was sent ahead.
    pub copying: Mutex<Option<crate::cluster::Begun>>,
    /// Who waits to make copies, for which sending ahead stops.
    pub copies_wanted: AtomicU32,
    /// Somebody is about to send it ahead.
    pub ahead_queued: AtomicBool,
    /// There is no use in sending it ahead until copies of it were made.
    pub ahead_refused: AtomicBool,
    /// The first byte that was written since a part was last begun to be sent ahead; `u64::MAX` for
    /// nothing.
    pub lowest_write: AtomicU64,
    /// In a cluster: the first byte that was changed since copies of it were last made; `u64::MAX` for
    /// nothing.
    pub changed_from: AtomicU64,
    /// In a cluster: whoever writes at the end holds it between the look where that is and the write.
    pub appending: Mutex<()>,
    /// The setuid or setgid bit or file capabilities must go at the next write.
    pub privileged: AtomicBool,
    /// Length and time of the object when set-id bits were set while programs had the file open that write
    /// it without the daemon.
    pub set_ids_since: Mutex<Option<(u64, Timestamp)>>,
    /// Changes of mode or owner since the file came into use: a record read before one is old.
    pub attribute_changes: AtomicU32,
    /// Whether a mapping may live that outlasted a passthrough open and that programs store into.
    pub stored_unseen: StoredUnseen,
    /// How the clean object looked to a passthrough writer, if a change would show.
    pub clean_as: Mutex<Option<Look>>,
    /// Held by whoever has the record follow the size and time of the object, or the object a time
    /// that was set in the record: of two neither may undo what the other did.
    pub times: Mutex<()>,
    /// The spill file, for who sets its time: whoever has the location in hand may wait for the backing
    /// store.
    pub spill: Mutex<Weak<Spill>>,
    /// In a cluster: counts replacements of bytes that the kernel had not asked for.
    pub pages_replaced: AtomicU64,
    /// The version below when it was last seen to be the one that is known.
    pub below: Mutex<Option<Fingerprint>>,
    /// Syncs of which somebody may have been told. Whoever is about to give the name of the file to another
    /// one holds it, so that nobody is told between the look whether the file was synced and the change.
    pub syncs: Mutex<u64>,
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
    pub fn stat_with_time(&self, object: &dyn Object) -> forebay_store::Result<Attributes> {
        let _one_at_a_time = self.times.lock();
        object.stat()
    }

    fn new(ino: Ino) -> Self {
        File {
            ino,
            location: RwLock::default(),
            opens: Mutex::default(),
            fetching: Mutex::new(()),
            flushing: Mutex::new(()),
            staged: Mutex::default(),
            writes: AtomicU64::new(0),
            flush_begun: AtomicU64::new(0),
            flush_done: AtomicU64::new(0),
            opening: AtomicU32::new(0),
            filler: Mutex::default(),
            durable_change: AtomicU64::new(0),
            shown: Mutex::default(),
            remote_opens: AtomicU32::new(0),
            copying: Mutex::default(),
            copies_wanted: AtomicU32::new(0),
            ahead_queued: AtomicBool::new(false),
            ahead_refused: AtomicBool::new(false),
            lowest_write: AtomicU64::new(u64::MAX),
            changed_from: AtomicU64::new(0),
            appending: Mutex::new(()),
            privileged: AtomicBool::new(false),
            set_ids_since: Mutex::default(),
            attribute_changes: AtomicU32::new(0),
            stored_unseen: StoredUnseen::default(),
            clean_as: Mutex::default(),
            times: Mutex::new(()),
            spill: Mutex::default(),
            pages_replaced: AtomicU64::new(0),
            below: Mutex::default(),
            syncs: Mutex::default(),
        }
    }

    /// Where the bytes are, for a transfer. A thread that may not wait does not queue behind one that
    /// waits for a slow device with the file in its hands.
    ///
    /// # Errors
    /// `MustWait`.
    pub fn location_for(&self, context: &Context) -> Result<RwLockReadGuard<'_, DataLocation>> {
        if context.may_wait {
            return Ok(self.location.read());
        }
        self.location.try_read().ok_or(NodeError::MustWait)
    }

    /// Whether its object was written since set-id bits were set that this takes away.
    pub fn has_lost_set_ids(&self, now: &Attributes) -> bool {
        self.set_ids_since.lock().is_some_and(|since| since != (now.size, now.mtime))
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

    /// Says that the contents change, anywhere.
    pub fn count_write(&self) {
        self.count_write_from(0);
    }

    /// Says that the contents change, nowhere before `offset`.
    pub fn count_write_from(&self, offset: u64) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.changed_from.fetch_min(offset, Ordering::AcqRel);
        self.lowest_write.fetch_min(offset, Ordering::AcqRel);
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

/// Whether a write by somebody without privilege may change the mode. (File capabilities are the
/// kernel's to notice: it asks for them and sends a SETATTR.)
pub(crate) fn is_privileged(record: &Record) -> bool {
    record.attr.perm & (libc::S_ISUID | libc::S_ISGID) != 0
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
