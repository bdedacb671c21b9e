//! What programs have locked of a file: one value, changed as a whole by those nodes that do.

use forebay_core::cluster::locks::Locks;

use super::{MetaStore, compare};
use crate::codec;
use crate::engine::{Expect, Key, MiniTransaction, Stamp, Write};
use crate::error::Result;
use crate::keys;
use crate::types::Ino;

impl MetaStore {
    /// All locks of a file, as they are now.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn locks(&self, ino: Ino) -> Result<Locks> {
        match self.read_one(keys::locks(ino))? {
            Some(value) => codec::decode_locks(ino, &value),
            None => Ok(Locks::default()),
        }
    }

    /// Replaces the locks of a file; false if they are not `before` any more.
    ///
    /// # Errors
    /// If the engine fails: then they may be replaced or not.
    pub fn replace_locks(&self, ino: Ino, before: &Locks, after: &Locks) -> Result<bool> {
        let key = keys::locks(ino);
        let write = match after.is_empty() {
            true => Write::Delete(key.clone()),
            false => Write::Put(key.clone(), codec::encode_locks(after)),
        };
        if before.is_empty() {
            let mut transaction = MiniTransaction::default();
            transaction.compare.push(compare(key, Expect::Absent));
            transaction.write.push(write);
            return Ok(self.execute(&transaction)?.is_some());
        }
        let is_same = |found: &[u8]| Ok(codec::decode_locks(ino, found)? == *before);
        let keeping = |found: &[u8]| match &write {
            Write::Put(key, value) => {
                let value = codec::keep_later(value.clone(), found, codec::LOCKS_TAGS)?;
                Ok(Write::Put(key.clone(), value))
            }
            delete => Ok(delete.clone()),
        };
        self.swap_if_same(&key, codec::encode_locks(before), keeping, is_same)
    }

    /// Notes whether programs of this node wait for locks of ranges of a file, or may soon: where to
    /// look for those who wait for each other.
    ///
    /// # Errors
    /// If the engine fails; `Unsupported` if this process is no node.
    pub fn note_lock_waits(&self, ino: Ino, waits: bool) -> Result<()> {
        let key = keys::waiting(self.this_node()?.node, ino);
        let mut transaction = MiniTransaction::default();
        transaction.write.push(match waits {
            true => Write::Put(key, codec::encode_ino(ino)),
            false => Write::Delete(key),
        });
        self.execute(&transaction).map(drop)
    }

    /// The files of which programs of any node may wait for locks of ranges, `most` of them, in
    /// ascending order.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn lock_waits(&self, most: usize) -> Result<Vec<Ino>> {
        let noted = self.scan(&keys::all_waiting(), None, most)?.items;
        let mut inos: Vec<Ino> =
            noted.iter().filter_map(|(key, _)| keys::waiting_for(key)).collect();
        inos.sort_unstable();
        inos.dedup();
        Ok(inos)
    }

    /// Takes back what an earlier incarnation of this node has noted of who waits.
    ///
    /// # Errors
    /// As [`MetaStore::note_lock_waits`].
    pub fn forget_lock_waits(&self) -> Result<()> {
        let mine = keys::waiting_on(self.this_node()?.node);
        let mut transaction = MiniTransaction::default();
        for (key, _) in self.scan(&mine, None, usize::MAX)?.items {
            transaction.write.push(Write::Delete(Key::new(mine.partition(), &key)));
        }
        self.execute(&transaction).map(drop)
    }

    /// A stamp of what the locks of a file are part of: while it stays the same, so do they.
    #[must_use]
    pub fn locks_stamp(&self, ino: Ino) -> Option<Stamp> {
        self.stamp(keys::locks(ino).partition())
    }
}
