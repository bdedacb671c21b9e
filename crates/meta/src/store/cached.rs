//! The caches of records and entries. What is cached counts only as long as the engine's stamp of
//! its partition is the one from before it was read: others may have changed it since. An operation
//! that is about to change a record may build on it nevertheless, as its transaction compares.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::MetaStore;
use crate::codec;
use crate::engine::{Key, Stamp};
use crate::error::Result;
use crate::keys;
use crate::types::{FileKind, Ino, Record};

/// What is known of a name, in the cache.
pub(super) struct Dentry {
    name: Box<[u8]>,
    /// `None`: there is no such entry.
    found: Option<(Ino, FileKind)>,
}

/// Something cached, with the stamp that its partition had before it was read.
#[derive(Clone)]
pub(super) struct Cached<T> {
    value: T,
    stamp: Option<Stamp>,
}

impl MetaStore {
    /// The stamp of a partition now.
    pub(super) fn stamp(&self, partition: u16) -> Option<Stamp> {
        self.engine.watch(partition)
    }

    fn is_current(&self, partition: u16, stamp: Option<Stamp>) -> bool {
        stamp.is_some() && self.stamp(partition) == stamp
    }

    /// A cached record that still holds.
    pub(super) fn cached_record(&self, ino: Ino) -> Option<Arc<Record>> {
        let cached = self.records.get(&ino)?;
        self.is_current(ino.partition(), cached.stamp).then_some(cached.value)
    }

    /// A record without a lock: as of now, not cached.
    pub(super) fn load(&self, ino: Ino) -> Result<Option<Arc<Record>>> {
        match self.cached_record(ino) {
            Some(record) => Ok(Some(record)),
            None => self.read_record(ino),
        }
    }

    fn read_record(&self, ino: Ino) -> Result<Option<Arc<Record>>> {
        let value = self.read_one(keys::record(ino))?;
        value.map(|value| codec::decode_record(ino, &value).map(Arc::new)).transpose()
    }

    /// A record whose lock (shared or exclusive) is held.
    pub(super) fn load_locked(&self, ino: Ino) -> Result<Option<Arc<Record>>> {
        if let Some(record) = self.cached_record(ino) {
            return Ok(Some(record));
        }
        self.reload_locked(ino)
    }

    /// A record whose lock is held, as it is now.
    pub(super) fn reload_locked(&self, ino: Ino) -> Result<Option<Arc<Record>>> {
        let stamp = self.stamp(ino.partition());
        let record = self.read_record(ino)?;
        match &record {
            Some(record) => self.cache_record(record, stamp),
            None => {
                self.records.remove(&ino);
            }
        }
        Ok(record)
    }

    /// A record whose exclusive lock is held, to be changed by a transaction that compares its
    /// revision. It may be old: then that transaction conflicts, and the next attempt reads anew.
    pub(super) fn load_to_change(&self, ino: Ino) -> Result<Option<Arc<Record>>> {
        match self.believed(ino) {
            Some(record) => Ok(Some(record)),
            None => self.load_locked(ino),
        }
    }

    /// A cached record that may be old: enough for what never changes, as the type.
    pub(super) fn believed(&self, ino: Ino) -> Option<Arc<Record>> {
        self.records.get(&ino).map(|cached| cached.value)
    }

    /// What was read under a stamp may be older than what another thread has cached under the same
    /// since: that stays.
    pub(super) fn cache_record(&self, record: &Arc<Record>, stamp: Option<Stamp>) {
        let is_newer = |known: &Cached<Arc<Record>>| {
            stamp.is_some() && known.stamp == stamp && known.value.revision > record.revision
        };
        if self.records.get(&record.ino).is_some_and(|known| is_newer(&known)) {
            return;
        }
        self.records.insert(record.ino, Cached { value: record.clone(), stamp });
    }

    /// What the cache knows of a name, and still holds; `Some(None)` that it is not there.
    pub(super) fn cached_entry(&self, dir: Ino, name: &[u8]) -> Option<Option<(Ino, FileKind)>> {
        let cached = self.dentries.get(&(dir, keys::name_hash(name)))?;
        let dentry = &cached.value;
        let holds = *dentry.name == *name
            && self.is_current(self.layout.entries_partition(dir), cached.stamp);
        holds.then_some(dentry.found)
    }

    /// What the cache says of a name that was there, however old.
    pub(super) fn believed_entry(&self, dir: Ino, name: &[u8]) -> Option<(Ino, FileKind)> {
        let cached = self.dentries.get(&(dir, keys::name_hash(name)))?;
        cached.value.found.filter(|_| *cached.value.name == *name)
    }

    /// An entry without a lock: as of now, not cached.
    pub(super) fn find(&self, dir: Ino, name: &[u8]) -> Result<Option<(Ino, FileKind)>> {
        match self.cached_entry(dir, name) {
            Some(found) => Ok(found),
            None => self.read_entry(dir, name),
        }
    }

    fn read_entry(&self, dir: Ino, name: &[u8]) -> Result<Option<(Ino, FileKind)>> {
        let value = self.read_one(self.layout.entry(dir, name))?;
        value.map(|value| codec::decode_entry(name, &value)).transpose()
    }

    /// An entry of a directory whose lock (shared or exclusive) is held.
    pub(super) fn find_locked(&self, dir: Ino, name: &[u8]) -> Result<Option<(Ino, FileKind)>> {
        if let Some(found) = self.cached_entry(dir, name) {
            return Ok(found);
        }
        let stamp = self.stamp(self.layout.entries_partition(dir));
        let found = self.read_entry(dir, name)?;
        self.cache_entry(dir, name, found, stamp);
        Ok(found)
    }

    /// An entry to be changed by a transaction that compares it, as [`Self::load_to_change`].
    pub(super) fn find_to_change(&self, dir: Ino, name: &[u8]) -> Result<Option<(Ino, FileKind)>> {
        match self.believed_entry(dir, name) {
            Some(found) => Ok(Some(found)),
            None => self.find(dir, name),
        }
    }

    pub(super) fn cache_entry(
        &self,
        dir: Ino,
        name: &[u8],
        found: Option<(Ino, FileKind)>,
        stamp: Option<Stamp>,
    ) {
        if found.is_some() || self.exclusive {
            let value = Arc::new(Dentry { name: name.into(), found });
            self.dentries.insert((dir, keys::name_hash(name)), Cached { value, stamp });
        } else {
            self.forget_entry(dir, name);
        }
    }

    pub(super) fn forget_entry(&self, dir: Ino, name: &[u8]) {
        self.dentries.remove(&(dir, keys::name_hash(name)));
    }

    /// Reads keys, those of each partition at one instant.
    pub(super) fn read_each(&self, keys: Vec<Key>) -> Result<Vec<Option<Vec<u8>>>> {
        if !self.is_gathered() {
            return self.read(keys);
        }
        let mut values = vec![None; keys.len()];
        let mut parts: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (at, key) in keys.iter().enumerate() {
            parts.entry(key.partition()).or_default().push(at);
        }
        for places in parts.into_values() {
            let wanted = places.iter().map(|at| keys[*at].clone()).collect();
            for (at, value) in places.into_iter().zip(self.read(wanted)?) {
                values[at] = value;
            }
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Memory;
    use crate::store::Options;

    #[test]
    fn record_when_an_older_one_of_the_same_stamp_comes_then_stays() {
        let store = MetaStore::open(Box::new(Memory::default()), &Options::default()).unwrap();
        let old = store.get(Ino::ROOT).unwrap();
        let stamp = store.stamp(Ino::ROOT.partition());
        assert!(stamp.is_some());
        let new = Arc::new(Record { revision: old.revision + 1, ..(*old).clone() });
        let known = || store.believed(Ino::ROOT).unwrap().revision;
        store.cache_record(&new, stamp);
        store.cache_record(&old, stamp);
        assert_eq!(known(), new.revision);
        // What counts under another stamp is the engine's word, whatever was there before.
        store.cache_record(&old, None);
        assert_eq!(known(), old.revision);
        store.cache_record(&new, stamp);
        assert_eq!(known(), new.revision);
    }
}
