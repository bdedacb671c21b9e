//! The caches of records and entries. What is cached counts only as long as the engine's stamp of
//! its partition is the one from before it was read: others may have changed it since. An operation
//! that is about to change a record may build on it nevertheless, as its transaction compares.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::MetaStore;
use crate::codec;
use crate::engine::{Key, Stamp};
use crate::error::{Error, Result};
use crate::keys;
use crate::types::{FileKind, Ino, Record, Spread};

/// What is known of a name, in the cache.
pub(super) struct Dentry {
    name: Box<[u8]>,
    /// Where the entry was, or would be.
    partition: u16,
    /// `None`: there is no such entry.
    found: Option<(Ino, FileKind)>,
}

/// Something cached, with the stamp that its partition had before it was read.
#[derive(Clone)]
pub(super) struct Cached<T> {
    value: T,
    stamp: Option<Stamp>,
}

/// What a look at a name found.
struct Seen {
    found: Option<(Ino, FileKind)>,
    partition: u16,
    /// From before the look.
    stamp: Option<Stamp>,
    /// The directory, if it was looked at, too.
    parent: Option<(Arc<Record>, Option<Stamp>)>,
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

    pub(super) fn read_record(&self, ino: Ino) -> Result<Option<Arc<Record>>> {
        if !self.is_gathered() {
            let value = self.read_one(keys::record(ino))?;
            return self.decode_record(ino, value, None);
        }
        let mut values = self.read(self.record_keys(ino).into())?.into_iter();
        self.decode_record(ino, values.next().flatten(), values.next().flatten())
    }

    /// What has to be read of a record: itself, and when entries beside it were changed.
    pub(super) fn record_keys(&self, ino: Ino) -> [Key; 2] {
        [keys::record(ino), keys::times(ino.partition(), ino)]
    }

    /// A record of the values of [`Self::record_keys`].
    pub(super) fn decode_record(
        &self,
        ino: Ino,
        record: Option<Vec<u8>>,
        times: Option<Vec<u8>>,
    ) -> Result<Option<Arc<Record>>> {
        let Some(value) = record else { return Ok(None) };
        let mut record = match self.with_names(codec::decode_record(ino, &value)?) {
            // Removed while its names were read.
            Err(Error::Stale(_)) => return Ok(None),
            record => record?,
        };
        if let Some(times) = times.filter(|_| record.spread != Spread::Split) {
            record.take_times(std::iter::once(codec::decode_touched(ino, &times)?));
        }
        Ok(Some(Arc::new(record)))
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
        let record = match self.believed(ino) {
            Some(record) => Some(record),
            None => self.load_locked(ino)?,
        };
        if record.as_ref().is_some_and(|record| record.spread == Spread::Splitting) {
            self.finish_split(ino)?;
            return self.reload_locked(ino);
        }
        Ok(record)
    }

    /// As [`Self::load_to_change`] without a lock, to depend on where entries are.
    pub(super) fn settled(&self, dir: Ino) -> Result<Option<Arc<Record>>> {
        let record = match self.believed(dir) {
            Some(record) => Some(record),
            None => self.load(dir)?,
        };
        if record.as_ref().is_some_and(|record| record.spread == Spread::Splitting) {
            self.finish_split(dir)?;
            return self.read_record(dir);
        }
        Ok(record)
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
        let holds = *dentry.name == *name && self.is_current(dentry.partition, cached.stamp);
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
            None => Ok(self.read_entry(dir, name)?.found),
        }
    }

    /// Reads an entry: one round trip, unless the directory turns out to have been split.
    fn read_entry(&self, dir: Ino, name: &[u8]) -> Result<Seen> {
        let hash = keys::name_hash(name);
        let at = |spread| self.layout.entry_partition(dir, spread, hash);
        let decode = |value: Option<Vec<u8>>| {
            value.map(|value| codec::decode_entry(name, &value)).transpose()
        };
        let mut parent = None;
        let believed = self.believed_spread(dir);
        if self.is_gathered() && believed != Spread::Split {
            let partition = at(believed);
            let stamp = self.stamp(partition);
            let mut wanted = vec![keys::entry(partition, dir, name)];
            wanted.extend(self.record_keys(dir));
            let mut values = self.read(wanted)?.into_iter();
            let mut next = || values.next().flatten();
            let (entry, record, times) = (next(), next(), next());
            parent = self.decode_record(dir, record, times)?.map(|record| (record, stamp));
            if parent.as_ref().is_none_or(|(record, _)| record.spread != Spread::Split) {
                return Ok(Seen { found: decode(entry)?, partition, stamp, parent });
            }
        }
        let partition = at(if self.is_gathered() { Spread::Split } else { believed });
        let stamp = self.stamp(partition);
        let found = decode(self.read_one(keys::entry(partition, dir, name))?)?;
        Ok(Seen { found, partition, stamp, parent })
    }

    /// Where entries of a directory are, as far as is known. Who relies on it finds out from what he
    /// reads or compares there.
    pub(super) fn believed_spread(&self, dir: Ino) -> Spread {
        self.believed(dir).map_or(Spread::Whole, |record| record.spread)
    }

    /// An entry of a directory whose lock (shared or exclusive) is held.
    pub(super) fn find_locked(&self, dir: Ino, name: &[u8]) -> Result<Option<(Ino, FileKind)>> {
        if let Some(found) = self.cached_entry(dir, name) {
            return Ok(found);
        }
        let seen = self.read_entry(dir, name)?;
        if let Some((record, stamp)) = &seen.parent {
            self.cache_record(record, *stamp);
        }
        self.cache_entry(dir, name, seen.partition, seen.found, seen.stamp);
        Ok(seen.found)
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
        partition: u16,
        found: Option<(Ino, FileKind)>,
        stamp: Option<Stamp>,
    ) {
        if found.is_some() || self.exclusive {
            let value = Arc::new(Dentry { name: name.into(), partition, found });
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
