//! Listing directories.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Entry, EntryPlus, MetaStore, corrupt};
use crate::codec;
use crate::engine::Key;
use crate::error::{Error, Result};
use crate::keys;
use crate::types::{FileKind, Ino, Record, Spread};

/// Entries read in one scan, and records in one transaction, at most.
const PAGE: usize = 4096;

/// So many records whose numbers are never farther apart than this are read by one scan: to pass
/// over a record costs about a tenth of looking one up.
const RUN: usize = 16;
const RUN_GAP: u64 = 16;

/// Records that one scan passes at most.
const RUN_STEP: u64 = 8192;

impl MetaStore {
    /// Entries whose cursor is greater than `after` (0 to begin), about `limit` of them: entries
    /// of equal cursors always come in one page. Empty at the end.
    ///
    /// Entries that exist during the whole listing are listed exactly once, whatever happens to
    /// others meanwhile.
    ///
    /// # Errors
    /// If the engine fails. A directory that doesn't exist has no entries.
    pub fn entries(&self, dir: Ino, after: u64, limit: usize) -> Result<Vec<Entry>> {
        let limit = limit.max(1);
        let mut entries = Vec::new();
        let spread = self.believed_spread(dir);
        if spread != Spread::Split {
            let partition = self.layout.entry_partition(dir, spread, after);
            if self.entries_in(partition, dir, after, limit, &mut entries)? {
                return Ok(entries);
            }
            // It was split since.
            entries.clear();
        }
        for bucket in keys::bucket_of(after)..keys::BUCKETS {
            let partition = keys::bucket_partition(dir, bucket);
            self.entries_in(partition, dir, after, limit, &mut entries)?;
            if entries.len() >= limit {
                break;
            }
        }
        Ok(entries)
    }

    /// Adds entries of a partition until there are `limit`, and those that share the last one's
    /// cursor; false if the directory's entries are elsewhere.
    fn entries_in(
        &self,
        partition: u16,
        dir: Ino,
        after: u64,
        limit: usize,
        entries: &mut Vec<Entry>,
    ) -> Result<bool> {
        let prefix = keys::entries(partition, dir);
        let moved = keys::moved(partition, dir);
        // No key ends right after the hash, as names are not empty: the next hash is a bound
        // between all keys of `after` and all keys behind.
        let mut last = prefix.bytes().to_vec();
        last.extend_from_slice(&after.saturating_add(1).to_be_bytes());
        loop {
            let want = limit.saturating_sub(entries.len()).clamp(1, PAGE);
            let page = self.scan(&prefix, Some(&last), want)?;
            for (key, value) in &page.items {
                if key == moved.bytes() {
                    return Ok(false);
                }
                let (cursor, name) =
                    keys::entry_name(key).ok_or_else(|| corrupt("an entry", "short key"))?;
                let full = entries.len() >= limit;
                if full && entries.last().is_some_and(|entry| entry.cursor != cursor) {
                    return Ok(true);
                }
                let (ino, kind) = codec::decode_entry(name, value)?;
                entries.push(Entry { cursor, name: name.into(), ino, kind });
            }
            match page.items.into_iter().last() {
                Some((key, _)) if page.more => last = key,
                _ => return Ok(true),
            }
        }
    }

    /// As [`MetaStore::entries`], with records. An entry removed while this runs is left out.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn entries_plus(&self, dir: Ino, after: u64, limit: usize) -> Result<Vec<EntryPlus>> {
        let entries = self.entries(dir, after, limit)?;
        let records = self.records_of(&entries)?;
        // Several names may share a record.
        let with_record = entries.into_iter().filter_map(|entry| {
            let record = records.get(&entry.ino)?.clone();
            Some(EntryPlus { entry, record })
        });
        Ok(with_record.collect())
    }

    /// Records from the cache, all others in one transaction. They are not put into the cache: a
    /// listing must not displace what is in use.
    fn records_of(&self, entries: &[Entry]) -> Result<HashMap<Ino, Arc<Record>>> {
        let mut records = HashMap::with_capacity(entries.len());
        let mut missing = Vec::new();
        let is_directory = |entry: &&Entry| entry.kind == FileKind::Directory;
        let dirs: HashSet<Ino> =
            entries.iter().filter(is_directory).map(|entry| entry.ino).collect();
        for entry in entries {
            match self.cached_record(entry.ino) {
                Some(record) => {
                    records.insert(entry.ino, record);
                }
                None => missing.push(entry.ino),
            }
        }
        if missing.is_empty() {
            return Ok(records);
        }
        missing.sort_unstable();
        let mut single = Vec::new();
        for run in missing.chunk_by(|a, b| b.0 - a.0 <= RUN_GAP) {
            // Where directories' times lie apart from their records they are not in the run.
            if !is_dense(run) || self.is_gathered() && run.iter().any(|ino| dirs.contains(ino)) {
                single.extend_from_slice(run);
                continue;
            }
            for step in run.chunk_by(|a, b| a.0 / RUN_STEP == b.0 / RUN_STEP) {
                self.records_in_run(step, &mut records)?;
            }
        }
        for part in single.chunks(PAGE) {
            if !self.is_gathered() {
                let values = self.read_each(part.iter().map(|ino| keys::record(*ino)).collect())?;
                for (ino, value) in part.iter().zip(values) {
                    records
                        .extend(self.decode_record(*ino, value, None)?.map(|found| (*ino, found)));
                }
                continue;
            }
            let wanted = part.iter().flat_map(|ino| self.record_keys(*ino)).collect();
            let mut values = self.read_each(wanted)?.into_iter();
            for ino in part {
                let (record, times) = (values.next().flatten(), values.next().flatten());
                records.extend(self.decode_record(*ino, record, times)?.map(|found| (*ino, found)));
            }
        }
        Ok(records)
    }

    /// Records whose numbers lie close together, ascending, by one scan.
    fn records_in_run(&self, run: &[Ino], records: &mut HashMap<Ino, Arc<Record>>) -> Result<()> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
        let before = keys::record(Ino(first.0 - 1));
        let prefix = Key::new(before.partition(), &[keys::RECORD]);
        let most = usize::try_from(last.0 - first.0 + 1).unwrap_or(usize::MAX);
        let mut wanted = run.iter().copied().peekable();
        for (key, value) in self.scan(&prefix, Some(before.bytes()), most)?.items {
            let ino = Ino(keys::number(&key).ok_or_else(|| corrupt("a record", "short key"))?);
            while wanted.next_if(|wanted| *wanted < ino).is_some() {}
            if wanted.next_if_eq(&ino).is_some() {
                records
                    .extend(self.decode_record(ino, Some(value), None)?.map(|found| (ino, found)));
            }
        }
        Ok(())
    }

    /// Records whose numbers follow that of `ino`, in their order, `most` at most. Inodes that were
    /// imported together follow each other as they are listed.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn records_after(&self, ino: Ino, most: usize) -> Result<Vec<Arc<Record>>> {
        let before = keys::record(ino);
        let prefix = Key::new(before.partition(), &[keys::RECORD]);
        let mut records = Vec::new();
        for (key, value) in self.scan(&prefix, Some(before.bytes()), most)?.items {
            let ino = Ino(keys::number(&key).ok_or_else(|| corrupt("a record", "short key"))?);
            records.extend(self.decode_record(ino, Some(value), None)?);
        }
        Ok(records)
    }

    /// By what a directory's entries are listed in ascending order. Inodes that are imported in this
    /// order are listed faster.
    #[must_use]
    pub fn listing_order(name: &[u8]) -> u64 {
        keys::name_hash(name)
    }

    /// Whether a directory has no logical entries.
    ///
    /// # Errors
    /// `Stale` if there is no such inode; `NotDirectory`.
    pub fn is_empty(&self, dir: Ino) -> Result<bool> {
        let record = self.load(dir)?.ok_or(Error::Stale(dir))?;
        if !record.is_directory() {
            return Err(Error::NotDirectory);
        }
        Ok(self.entries(dir, 0, 1)?.is_empty())
    }
}

/// Whether a scan from the first to the last of these numbers costs less than a look-up of each.
fn is_dense(run: &[Ino]) -> bool {
    match run {
        [first, .., last] => {
            run.len() >= RUN && (last.0 - first.0) / RUN_GAP <= run.len() as u64 / 2
        }
        _ => false,
    }
}
