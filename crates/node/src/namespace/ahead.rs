//! Listings with attributes, read ahead.
//!
//! The kernel asks for a few hundred entries at a time. They come in the order of their names'
//! hashes, and their records lie in the order of their creation: to look up each costs some
//! microseconds. Read for many thousand entries at once they are found by scans. What is read ahead
//! is checked for changes when it is handed out, and soon forgotten.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_meta::{Entry, EntryPlus, Error as MetaError, Ino, Moment, Record};
use parking_lot::Mutex;

use crate::context::Context;
use crate::error::Result;
use crate::node::Node;

/// Entries read ahead at once (about 15 MiB).
const PART: usize = 32_768;
/// Parts kept at once; who finds no place for one reads without.
const MOST: usize = 4;
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
#[derive(Default)]
pub(super) struct Ahead(Mutex<Vec<(Instant, Arc<Part>)>>);

impl Ahead {
    /// A listing begins: it shows all that is there now.
    fn forget(&self, dir: Ino) {
        let mut parts = self.0.lock();
        parts.retain(|(_, part)| part.dir != dir);
    }

    fn find(&self, dir: Ino, after: u64) -> Option<(Arc<Part>, usize)> {
        let mut parts = self.0.lock();
        parts.iter_mut().find_map(|(used, part)| {
            let at = part.position(after).filter(|_| part.dir == dir)?;
            *used = Instant::now();
            Some((part.clone(), at))
        })
    }

    /// Makes place for a part behind `after`: whoever asks for it has read what ends there. False if
    /// others need all places.
    fn make_place(&self, dir: Ino, after: u64) -> bool {
        let mut parts = self.0.lock();
        parts.retain(|(used, part)| {
            used.elapsed() < IDLE && !(part.dir == dir && part.last() == Some(after))
        });
        parts.len() < MOST
    }

    fn keep(&self, part: &Arc<Part>) {
        let mut parts = self.0.lock();
        if parts.len() < MOST {
            parts.push((Instant::now(), part.clone()));
        }
    }

    /// Forgets parts that nobody asks for.
    pub(super) fn expire(&self) {
        let mut parts = self.0.lock();
        parts.retain(|(used, _)| used.elapsed() < IDLE);
    }
}

impl Node {
    /// About `limit` entries with records behind the cursor `after`, none at the end; and a moment
    /// since which they were read.
    ///
    /// # Errors
    /// `MustWait` where many are to be read ahead.
    pub(super) fn page_plus(
        &self,
        context: &Context,
        dir: Ino,
        mut after: u64,
        limit: usize,
    ) -> Result<(Vec<EntryPlus>, Moment)> {
        if after == 0 || self.is_clustered() {
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
        let most = if ahead.make_place(dir, after) {
            // For so many a reader would be away for long.
            context.wait()?;
            PART
        } else {
            limit
        };
        let moment = self.meta.moment();
        let entries = self.meta.entries_plus(dir, after, most)?;
        let part = Arc::new(Part { dir, after, moment, entries });
        if part.entries.len() > limit {
            ahead.keep(&part);
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
