//! Listings with attributes, read ahead.
//!
//! The kernel asks for a few hundred entries at a time. They come in the order of their names'
//! hashes, and their records lie in the order of their creation: to look up each costs some
//! microseconds. Read for many thousand entries at once they are found by scans. What is read ahead
//! is checked for changes when it is handed out, and soon forgotten. So whoever is slow (`ls -l` asks
//! for the access list of each file before it reads on) must not have much read ahead, or most of it
//! would be read again for every page: it grows with what was used of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_meta::{Entry, EntryPlus, Error as MetaError, Moment, Record};
use forebay_types::Ino;
use parking_lot::Mutex;

use crate::context::Context;
use crate::error::Result;
use crate::node::Node;

/// Entries read ahead at once, at most (about 15 MiB).
const PART: usize = 32_768;
/// How much larger the part is that follows one that was used up. The records of a part are scattered
/// over those of the directory, so that the scans for each part pass most of them: few parts it is.
const GROWTH: usize = 16;
/// Parts kept at once; who finds no place for one reads without.
const MAX: usize = 4;
/// A part that nobody has asked for in so long is forgotten.
const IDLE: Duration = Duration::from_secs(1);

/// A part of a directory's listing.
pub(super) struct Part {
    dir: Ino,
    /// Begins behind this cursor.
    after: u64,
    /// Taken before it was read.
    moment: Moment,
    entries: Vec<EntryPlus>,
}

impl Part {
    /// Where the entries behind `after` begin; `None` if it ends before.
    fn position(&self, after: u64) -> Option<usize> {
        if after < self.after {
            return None;
        }
        let at = self.entries.partition_point(|listed| listed.entry.cursor <= after);
        (at < self.entries.len()).then_some(at)
    }

    fn last(&self) -> Option<u64> {
        self.entries.last().map(|listed| listed.entry.cursor)
    }

    /// About `limit` entries from a position on: those of equal cursors stay together.
    fn page(&self, at: usize, limit: usize) -> &[EntryPlus] {
        let rest = &self.entries[at..];
        let mut end = limit.clamp(1, rest.len());
        while end < rest.len() && rest[end].entry.cursor == rest[end - 1].entry.cursor {
            end += 1;
        }
        &rest[..end]
    }
}

/// The parts that are read ahead.
pub(super) struct Ahead {
    parts: Mutex<Vec<(Instant, Arc<Part>)>>,
    /// How many listings have begun, of directories that share a counter: what was read before one of
    /// them did is not kept for it.
    begun: [AtomicU64; 64],
}

impl Default for Ahead {
    fn default() -> Self {
        Ahead { parts: Mutex::default(), begun: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Ahead {
    fn begun(&self, dir: Ino) -> &AtomicU64 {
        &self.begun[dir.0 as usize % 64]
    }

    /// A listing begins: it shows all that is there now.
    fn forget(&self, dir: Ino) {
        let mut parts = self.parts.lock();
        self.begun(dir).fetch_add(1, Ordering::AcqRel);
        parts.retain(|(_, part)| part.dir != dir);
    }

    fn find(&self, dir: Ino, after: u64) -> Option<(Arc<Part>, usize)> {
        let mut parts = self.parts.lock();
        parts.iter_mut().find_map(|(used, part)| {
            let at = part.position(after).filter(|_| part.dir == dir)?;
            *used = Instant::now();
            Some((part.clone(), at))
        })
    }

    /// Makes place for a part behind `after`: whoever asks for it has read what ends there. How many
    /// entries to read for somebody who reads `limit` at a time: two pages, and [`GROWTH`] times as many
    /// as a part that was used up.
    fn make_place(&self, dir: Ino, after: u64, limit: usize) -> usize {
        let mut parts = self.parts.lock();
        let mut wanted = limit.saturating_mul(2);
        parts.retain(|(used, part)| {
            let is_used_up = part.dir == dir && part.last() == Some(after);
            if is_used_up {
                wanted = wanted.max(part.entries.len() * GROWTH);
            }
            used.elapsed() < IDLE && !is_used_up
        });
        if parts.len() < MAX { wanted.clamp(limit, PART.max(limit)) } else { limit }
    }

    /// Keeps a part that was read when so many listings had begun.
    fn keep(&self, part: &Arc<Part>, begun: u64) {
        let mut parts = self.parts.lock();
        if parts.len() < MAX && self.begun(part.dir).load(Ordering::Acquire) == begun {
            parts.push((Instant::now(), part.clone()));
        }
    }

    /// Forgets parts that nobody asks for.
    pub(super) fn expire(&self) {
        let mut parts = self.parts.lock();
        parts.retain(|(used, _)| used.elapsed() < IDLE);
    }
}

impl Node {
    /// About `limit` entries with records behind the cursor `after`, none at the end; and a moment
    /// since which they were read.
    ///
    /// # Errors
    /// What the namespace says.
    pub(super) fn page_plus(
        &self,
        context: &Context,
        dir: Ino,
        mut after: u64,
        limit: usize,
    ) -> Result<(Vec<EntryPlus>, Moment)> {
        if after == 0 || !self.residency.peers.changes_namespace_alone() {
            // What is read ahead does not show what other nodes change.
            self.names.ahead.forget(dir);
            let moment = self.meta.moment();
            return Ok((self.meta.entries_plus(dir, after, limit)?, moment));
        }
        loop {
            let Some((part, at)) = self.part(context, dir, after, limit)? else {
                return Ok((Vec::new(), self.meta.moment()));
            };
            let page = part.page(at, limit);
            let entries = self.still_true(&part, page)?;
            match page.last() {
                // All of them are gone meanwhile.
                Some(last) if entries.is_empty() => after = last.entry.cursor,
                _ => return Ok((entries, part.moment)),
            }
        }
    }

    /// A part with entries behind `after`, and where in it they begin.
    fn part(
        &self,
        context: &Context,
        dir: Ino,
        after: u64,
        limit: usize,
    ) -> Result<Option<(Arc<Part>, usize)>> {
        let ahead = &self.names.ahead;
        if let Some(found) = ahead.find(dir, after) {
            return Ok(Some(found));
        }
        let most = ahead.make_place(dir, after, limit);
        if most > limit {
            // For so many a reader would be away for long.
            context.wait()?;
        }
        let begun = ahead.begun(dir).load(Ordering::Acquire);
        let moment = self.meta.moment();
        let entries = self.meta.entries_plus(dir, after, most)?;
        let part = Arc::new(Part { dir, after, moment, entries });
        if part.entries.len() > limit {
            ahead.keep(&part, begun);
        }
        Ok(part.position(after).map(|at| (part, at)))
    }

    /// Entries of a part as they are now. A name that was given to another inode meanwhile was there
    /// all the time.
    fn still_true(&self, part: &Part, page: &[EntryPlus]) -> Result<Vec<EntryPlus>> {
        let mut entries = Vec::with_capacity(page.len());
        for listed in page {
            let mut listed = listed.clone();
            if self.meta.changed_since(listed.entry.ino, part.moment) {
                let Some(record) = self.behind(part.dir, &listed.entry)? else { continue };
                (listed.entry.ino, listed.entry.kind) = (record.ino, record.attr.kind);
                listed.record = record;
            }
            entries.push(listed);
        }
        Ok(entries)
    }

    /// The record that an entry leads to now.
    fn behind(&self, dir: Ino, entry: &Entry) -> Result<Option<Arc<Record>>> {
        match self.meta.get(entry.ino) {
            Ok(record) if has_name(&record, dir, &entry.name) => Ok(Some(record)),
            Ok(_) | Err(MetaError::Stale(_)) => Ok(self.meta.lookup(dir, &entry.name)?),
            Err(error) => Err(error.into()),
        }
    }

    /// Forgets what was read ahead for listings that are given up.
    pub(crate) fn expire_listings(&self) {
        self.names.ahead.expire();
    }
}

fn has_name(record: &Record, dir: Ino, name: &[u8]) -> bool {
    record.links.has(dir, name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_meta::{Engine, FileKind, Memory, MetaStore, Options};

    const LIMIT: usize = 400;
    const ENTRIES: usize = 200_000;

    /// Entries that are read, and how often, for a listing whose reader comes back after the parts
    /// were forgotten, or before.
    fn read_for_listing(comes_late: bool) -> (usize, usize) {
        let engine: Box<dyn Engine> = Box::new(Memory::default());
        let meta = MetaStore::open(engine, &Options::default()).unwrap();
        let (record, moment) = (meta.get(Ino::ROOT).unwrap(), meta.moment());
        let dir = Ino::ROOT;
        let listed = |cursor: usize| EntryPlus {
            entry: Entry {
                cursor: cursor as u64,
                name: (*b"name").into(),
                ino: Ino(cursor as u64),
                kind: FileKind::Regular,
            },
            record: record.clone(),
        };
        let ahead = Ahead::default();
        let (mut read, mut times, mut after) = (0, 0, 0);
        while after < ENTRIES as u64 {
            if let Some((part, at)) = ahead.find(dir, after) {
                after = part.page(at, LIMIT).last().unwrap().entry.cursor;
                if comes_late {
                    ahead.parts.lock().clear();
                }
                continue;
            }
            let most = ahead.make_place(dir, after, LIMIT);
            let from = after as usize + 1;
            let entries: Vec<_> = (from..=ENTRIES.min(from + most - 1)).map(listed).collect();
            (read, times) = (read + entries.len(), times + 1);
            ahead.keep(&Arc::new(Part { dir, after, moment, entries }), 0);
        }
        (read, times)
    }

    #[test]
    fn listing_when_its_reader_is_slow_then_each_entry_is_read_twice_at_most() {
        let (read, _) = read_for_listing(true);
        assert!(read <= 2 * ENTRIES, "{read} entries were read for {ENTRIES}");
    }

    #[test]
    fn listing_when_its_reader_is_fast_then_read_once_in_few_parts() {
        let (read, times) = read_for_listing(false);
        assert_eq!(read, ENTRIES);
        assert!(times < 10, "{times}");
    }
}
