//! What programs have locked of a file: one value, changed as a whole by those nodes that do.

use forebay_core::cluster::locks::Locks;

use super::{MetaStore, compare};
use crate::codec;
use crate::engine::{Expect, MiniTransaction, Stamp, Write};
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
        let expect = match before.is_empty() {
            true => Expect::Absent,
            false => Expect::Value(codec::encode_locks(before)),
        };
        let mut transaction = MiniTransaction::default();
        transaction.compare.push(compare(key.clone(), expect));
        transaction.write.push(match after.is_empty() {
            true => Write::Delete(key),
            false => Write::Put(key, codec::encode_locks(after)),
        });
        Ok(self.execute(&transaction)?.is_some())
    }

    /// A stamp of what the locks of a file are part of: while it stays the same, so do they.
    #[must_use]
    pub fn locks_stamp(&self, ino: Ino) -> Option<Stamp> {
        self.stamp(keys::locks(ino).partition())
    }
}
