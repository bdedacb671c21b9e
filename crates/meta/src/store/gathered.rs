//! What differs where keys lie by [`Layout::Gathered`]: places in the backlog and orphan marks stand
//! in the partitions of their inodes, and counts nowhere. This process keeps both in memory; at the
//! start they are collected from all partitions.

use std::collections::BTreeMap;
use std::ops::Range;

use parking_lot::Mutex;

use super::{Counts, MetaStore, compare, corrupt};
use crate::codec;
use crate::engine::{Expect, Key, MiniTransaction, Write};
use crate::error::{Error, Result};
use crate::keys::{self, Layout};
use crate::types::{Ino, Seq};

/// Partitions are looked through by so many threads at once: their requests share round trips.
const THREADS: u16 = 8;

/// Places in the backlog are handed out among so many processes without meeting: far more than have
/// opened the store between any two that are alive.
pub(super) const PROCESSES: u64 = 1 << 16;
const OPENED: &str = "forebay.opened";

/// The places of the backlog.
#[derive(Default)]
pub(super) struct Marks(Mutex<MarksState>);

#[derive(Default)]
struct MarksState {
    places: BTreeMap<u64, Ino>,
    /// Inodes whose place was about to change when the engine failed.
    doubtful: Vec<Ino>,
}

impl Marks {
    /// A record has left one place and taken another.
    pub fn moved(&self, ino: Ino, before: Option<Seq>, after: Option<Seq>) {
        if before != after {
            let mut state = self.0.lock();
            before.map(|seq| state.places.remove(&seq.0));
            after.map(|seq| state.places.insert(seq.0, ino));
        }
    }

    /// Nobody knows whether a change of these inodes was made.
    pub fn doubt(&self, inos: impl Iterator<Item = Ino>) {
        self.0.lock().doubtful.extend(inos);
    }

    /// Places known.
    pub fn len(&self) -> u64 {
        self.0.lock().places.len() as u64
    }

    fn range(&self, range: Range<u64>, limit: usize) -> Vec<(Seq, Ino)> {
        let state = self.0.lock();
        let places = state.places.range(range.start..range.end.max(range.start)).take(limit);
        places.map(|(seq, ino)| (Seq(*seq), *ino)).collect()
    }
}

/// What the partitions hold.
#[derive(Default)]
struct Census {
    counts: Counts,
    places: BTreeMap<u64, Ino>,
    orphans: Vec<Ino>,
}

impl MetaStore {
    /// Collects places and counts from all partitions.
    pub(super) fn collect(&self) -> Result<()> {
        let census = self.census()?;
        self.shown.show(&census.counts);
        *self.counts.lock() = census.counts;
        *self.marks.0.lock() = MarksState { places: census.places, doubtful: Vec::new() };
        Ok(())
    }

    /// Takes places that no other process takes, and collects those that are taken.
    pub(super) fn join(&self) -> Result<()> {
        let number = match &self.name {
            None => self.retry(|| self.next_process())?,
            Some(name) => {
                let me = match self.resume {
                    None => self.register(name)?,
                    Some(me) => self.resume(name, me)?,
                };
                // Set once: a store is opened once.
                u64::from(self.member.get_or_init(|| me).node)
            }
        };
        self.collect()?;
        let last = self.marks.0.lock().places.last_key_value().map_or(0, |(seq, _)| *seq);
        self.places.share(last, number, PROCESSES);
        Ok(())
    }

    /// Counts the processes that have opened the store.
    fn next_process(&self) -> Result<u64> {
        let key = keys::setting(OPENED);
        let old = self.read_one(key.clone())?;
        let number = match &old {
            None => 0,
            Some(value) => {
                let bytes = codec::decode_bytes(OPENED, value)?;
                let bytes = bytes.try_into().map_err(|_| corrupt(OPENED, "no number"))?;
                u64::from_be_bytes(bytes)
            }
        };
        let mut transaction = MiniTransaction::default();
        transaction.compare.push(compare(key.clone(), old.map_or(Expect::Absent, Expect::Value)));
        let next = codec::encode_bytes(&number.wrapping_add(1).to_be_bytes());
        transaction.write.push(Write::Put(key, next));
        self.execute(&transaction)?.ok_or(Error::Conflict(1))?;
        Ok(number)
    }

    /// Inodes without a name that were in use, in ascending order.
    pub(super) fn collect_orphans(&self) -> Result<Vec<Ino>> {
        let mut orphans = self.census()?.orphans;
        if self.member().is_some() {
            let held = |ino: &Ino| {
                self.load(*ino).map(|found| found.is_some_and(|record| self.holds_orphan(&record)))
            };
            let known = orphans.iter().map(held).collect::<Result<Vec<bool>>>()?;
            let mut known = known.into_iter();
            orphans.retain(|_| known.next().unwrap_or(true));
        }
        orphans.sort_unstable();
        Ok(orphans)
    }

    fn census(&self) -> Result<Census> {
        let share = keys::GATHERED / THREADS;
        let part = |n: u16| n * share..(n + 1) * share;
        let parts = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..THREADS).map(|n| scope.spawn(move || self.census_of(part(n)))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
                Ok(census) => census,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            threads.into_iter().map(join).collect::<Result<Vec<Census>>>()
        })?;
        Ok(parts.into_iter().fold(Census::default(), |mut sum, part| {
            sum.counts.inodes += part.counts.inodes;
            sum.counts.stale_names += part.counts.stale_names;
            sum.counts.queued += part.counts.queued;
            sum.counts.orphans += part.counts.orphans;
            sum.places.extend(part.places);
            sum.orphans.extend(part.orphans);
            sum
        }))
    }

    fn census_of(&self, partitions: Range<u16>) -> Result<Census> {
        let mut census = Census::default();
        for partition in self.engine.partitions(partitions)? {
            for (key, value) in
                self.scan(&Key::new(partition, &[keys::QUEUE]), None, usize::MAX)?.items
            {
                let seq = keys::number(&key).ok_or_else(|| corrupt("the backlog", "short key"))?;
                // Those of other nodes are theirs.
                if !self.is_mine(Seq(seq)) {
                    continue;
                }
                // A place that can't be read is left to the check.
                if let Ok(ino) = codec::decode_ino("the backlog", &value) {
                    census.places.insert(seq, ino);
                }
                census.counts.queued += 1;
            }
            let orphans = self.scan(&Key::new(partition, &[keys::ORPHAN]), None, usize::MAX)?;
            census.counts.orphans += orphans.items.len() as u64;
            let numbers = orphans.items.iter().filter_map(|(key, _)| keys::number(key));
            census.orphans.extend(numbers.map(Ino));
            // After the scans, which finish what others left half done.
            census.counts.inodes += self.engine.count(partition, &[keys::RECORD])?;
            census.counts.stale_names += self.engine.count(partition, &[keys::STALE_NAME])?;
        }
        Ok(census)
    }

    /// Places of the backlog in a range, in order.
    pub(super) fn marked(&self, range: Range<u64>, limit: usize) -> Result<Vec<(Seq, Ino)>> {
        self.settle_doubts()?;
        Ok(self.marks.range(range, limit))
    }

    /// Asks what became of the changes that were in doubt.
    fn settle_doubts(&self) -> Result<()> {
        loop {
            let Some(ino) = self.marks.0.lock().doubtful.last().copied() else { return Ok(()) };
            let _shared = self.stripe(ino).read();
            let stored = self.read_one(keys::record(ino))?;
            let record = stored.map(|value| codec::decode_record(ino, &value)).transpose()?;
            let mut state = self.marks.0.lock();
            state.places.retain(|_, other| *other != ino);
            let queued = record.and_then(|record| record.queued);
            if let Some(seq) = queued.filter(|seq| self.is_mine(*seq)) {
                state.places.insert(seq.0, ino);
            }
            state.doubtful.retain(|other| *other != ino);
        }
    }

    pub(super) fn is_gathered(&self) -> bool {
        self.layout == Layout::Gathered
    }
}
