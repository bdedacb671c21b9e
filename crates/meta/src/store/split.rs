//! Directories with many entries, where a partition is one server's: their entries, with the files
//! created under them, are spread over [`keys::BUCKETS`] partitions, so that those who create in one
//! directory do not all wait for one server.
//!
//! A split has three steps, of which each may be repeated, by anybody:
//! 1. The directory's record says `Splitting`, in one transaction with a note that there is a split
//!    to be finished. From then on nobody changes an entry: each such transaction compares what the
//!    record's revision says of it. Whoever wants to, finishes the split first.
//! 2. Entries and stale names are copied to their buckets, and each bucket gets its times, which say that
//!    it is open. Each of these transactions compares the directory's record, so one of somebody who
//!    comes late changes nothing.
//! 3. In one transaction the record says `Split` and the entries are gone from where they were. What
//!    stays there is an entry without a name, which tells those who list that they are at the wrong
//!    place; those who look for one name read the directory's record along with it.
//!
//! Inodes that were created before keep their numbers, hence their places.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{ATTEMPTS, MetaStore, compare, corrupt};
use crate::codec;
use crate::engine::{Expect, Key, MiniTransaction, Write};
use crate::error::{Error, Result};
use crate::keys;
use crate::types::{FileKind, Ino, Record, Spread, Touched};

/// Entries copied in one transaction.
const BATCH: usize = 1024;

/// After so many new entries of this process the directory of the last one is counted, at most.
const LOOK_EVERY: u64 = 256;

/// Buckets whose times are cached.
pub(super) const CACHED_TIMES: usize = 1024;

/// When directories are looked at, and numbers that nobody uses twice.
pub(super) struct Growth {
    split_above: u64,
    added: AtomicU64,
    nonce: AtomicU64,
}

impl Growth {
    pub fn new(split_above: u64) -> Result<Self> {
        let mut nonce = [0; 8];
        let fill = rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty());
        let io = |error| crate::EngineError::Io(Box::new(std::io::Error::from(error)));
        fill.map_err(io)?;
        let nonce = AtomicU64::new(u64::from_ne_bytes(nonce));
        Ok(Growth { split_above, added: AtomicU64::new(0), nonce })
    }

    /// Whether it is time to look at the directory that has got an entry.
    fn is_time(&self) -> bool {
        let every = (self.split_above / 16).clamp(1, LOOK_EVERY);
        (self.added.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(every)
    }
}

impl MetaStore {
    /// A number that no process has used.
    pub(super) fn nonce(&self) -> u64 {
        self.growth.nonce.fetch_add(1, Ordering::Relaxed)
    }

    /// A directory has got an entry: splits it if it has become large. No lock may be held.
    pub(super) fn has_grown(&self, dir: Ino) {
        if self.is_gathered()
            && self.growth.is_time()
            && let Err(error) = self.split_if_large(dir, 0)
        {
            // The entry is there, which was asked for. The next ones try again.
            tracing::debug!("directory {dir} is not split: {error}");
        }
    }

    /// Splits a directory that is large, or is about to get so many entries. No lock may be held.
    pub(super) fn split_if_large(&self, dir: Ino, coming: u64) -> Result<()> {
        if !self.is_gathered() || self.believed_spread(dir) == Spread::Split {
            return Ok(());
        }
        let Some(record) = self.load(dir)? else { return Ok(()) };
        let stays = record.spread == Spread::Split || record.is_removed();
        if stays || !record.is_directory() {
            return Ok(());
        }
        if record.spread == Spread::Whole {
            let prefix = keys::entries(dir.partition(), dir);
            if coming <= self.growth.split_above {
                self.scans.fetch_add(1, Ordering::Relaxed);
                let count = self.engine.count(prefix.partition(), prefix.bytes())?;
                if count <= self.growth.split_above {
                    return Ok(());
                }
            }
            self.edit_one(dir, |draft, before| {
                if before.spread == Spread::Whole && !before.is_removed() {
                    draft.edit(dir)?.spread = Spread::Splitting;
                    draft.put(keys::split(dir), codec::encode_ino(dir));
                }
                Ok(())
            })?;
        }
        self.finish_split(dir)
    }

    /// Finishes the split of a directory that is being split.
    pub(super) fn finish_split(&self, dir: Ino) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let Some(record) = self.read_record(dir)? else { return Ok(()) };
            if record.spread != Spread::Splitting {
                return Ok(());
            }
            let items = self.all_in(dir)?;
            if self.copy_to_buckets(&record, &items)? && self.leave_for_buckets(&record, &items)? {
                let mut done = MiniTransaction::default();
                done.write.push(Write::Delete(keys::split(dir)));
                self.execute(&done)?;
                return Ok(());
            }
        }
        Err(Error::Conflict(ATTEMPTS))
    }

    /// Finishes the splits that dead processes left.
    pub(super) fn finish_splits(&self) -> Result<()> {
        for (key, _) in self.scan(&keys::splits(), None, usize::MAX)?.items {
            let dir = Ino(keys::number(&key).ok_or_else(|| corrupt("a split", "short key"))?);
            self.finish_split(dir)?;
            let mut done = MiniTransaction::default();
            done.write.push(Write::Delete(keys::split(dir)));
            self.execute(&done)?;
        }
        Ok(())
    }

    /// The entries and stale names of a directory that is not split, as they are now.
    fn all_in(&self, dir: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let home = dir.partition();
        let mut items = Vec::new();
        for prefix in [keys::entries(home, dir), keys::stale_names(home, dir)] {
            let mut after: Option<Vec<u8>> = None;
            loop {
                let page = self.scan(&prefix, after.as_deref(), 4 * BATCH)?;
                after = page.items.last().map(|(key, _)| key.clone());
                items.extend(page.items);
                if !page.more {
                    break;
                }
            }
        }
        Ok(items)
    }

    /// The second step; false if the directory has changed.
    fn copy_to_buckets(&self, record: &Record, items: &[(Vec<u8>, Vec<u8>)]) -> Result<bool> {
        let dir = record.ino;
        let mut buckets = vec![Vec::new(); usize::from(keys::BUCKETS)];
        for (key, value) in items {
            let (hash, _) =
                keys::entry_name(key).ok_or_else(|| corrupt("an entry", "short key"))?;
            buckets[usize::from(keys::bucket_of(hash))].push((key, value));
        }
        for (bucket, items) in (0..).zip(buckets) {
            let partition = keys::bucket_partition(dir, bucket);
            let mut writes: Vec<Write> = items
                .into_iter()
                .map(|(key, value)| Write::Put(Key::new(partition, key), value.clone()))
                .collect();
            let open = Touched { times: None, nonce: self.nonce() };
            let open = codec::encode_touched(open);
            writes.push(Write::Put(keys::times(partition, dir), open));
            for part in writes.chunks(BATCH) {
                if !self.change_splitting(record, part.to_vec())? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The third step; false if the directory has changed.
    fn leave_for_buckets(&self, record: &Record, items: &[(Vec<u8>, Vec<u8>)]) -> Result<bool> {
        let (dir, home) = (record.ino, record.ino.partition());
        let mut split = Record { spread: Spread::Split, ..record.clone() };
        split.revision = split.next_revision(record);
        let mut writes = vec![
            Write::Put(keys::record(dir), codec::encode_record(&split)),
            Write::Put(keys::moved(home, dir), codec::encode_entry(dir, FileKind::Directory)),
            Write::Delete(keys::times(home, dir)),
            Write::Delete(keys::imports(home, dir)),
        ];
        writes.extend(items.iter().map(|(key, _)| Write::Delete(Key::new(home, key))));
        let done = self.change_splitting(record, writes)?;
        self.records.remove(&dir);
        self.changes.note(dir);
        Ok(done)
    }

    fn change_splitting(&self, record: &Record, write: Vec<Write>) -> Result<bool> {
        let same = Expect::Prefix(codec::record_prefix(record.revision));
        let compare = vec![compare(keys::record(record.ino), same)];
        let transaction = MiniTransaction { compare, write, ..MiniTransaction::default() };
        Ok(self.execute(&transaction)?.is_some())
    }

    /// A record with the times of its directory's entries, where those are spread: a few round trips
    /// for those of which others changed some.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn with_times(&self, record: Arc<Record>) -> Result<Arc<Record>> {
        if record.spread != Spread::Split || record.is_removed() {
            return Ok(record);
        }
        let mut latest = Vec::new();
        for partition in self.layout.entries_partitions(record.ino, record.spread) {
            latest.extend(self.touched(record.ino, partition)?);
        }
        let mut record = Record::clone(&record);
        record.take_times(latest.into_iter());
        Ok(Arc::new(record))
    }

    fn touched(&self, dir: Ino, partition: u16) -> Result<Option<Touched>> {
        let known = self.touched.get(&(dir, partition));
        if let Some((touched, stamp)) = known
            && stamp.is_some()
            && self.stamp(partition) == stamp
        {
            return Ok(Some(touched));
        }
        let stamp = self.stamp(partition);
        let Some(value) = self.read_one(keys::times(partition, dir))? else { return Ok(None) };
        let touched = codec::decode_touched(dir, &value)?;
        self.touched.insert((dir, partition), (touched, stamp));
        Ok(Some(touched))
    }

    /// Whether a directory may have been split since it was thought to be spread otherwise: it was, or
    /// its record is gone.
    pub(super) fn is_elsewhere_since(&self, dir: Ino, thought: Option<Spread>) -> Result<bool> {
        if !self.is_gathered() || matches!(thought, None | Some(Spread::Split)) {
            return Ok(false);
        }
        let moved = self.read_record(dir)?.is_none_or(|record| record.spread == Spread::Split);
        if moved {
            self.records.remove(&dir);
        }
        Ok(moved)
    }
}
