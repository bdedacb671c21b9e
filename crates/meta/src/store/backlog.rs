//! The backlog: records whose backing state differs, in the order of their first change that is
//! not reconciled.
//!
//! # Invariants
//! - A record that differs from the backing store is in the backlog (`tests/written_back.rs`).
//! - A cursor through the backlog misses nothing (`tests/namespace.rs`).

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use super::attrs::restore_identity;
use super::{Draft, MetaStore, corrupt};
use crate::codec;
use crate::engine::Key;
use crate::error::{Error, Result};
use crate::keys;
use crate::types::{Fingerprint, Ino, Link, Record, Seq, Timestamp};

/// Places that are looked at together.
const PAGE: usize = 1000;

/// Hands out places in the backlog, and knows which of them are not committed yet: readers see
/// only what lies before those, so that a cursor never passes a place that is filled later.
#[derive(Default)]
pub(super) struct Places(Mutex<PlacesState>);

struct PlacesState {
    next: u64,
    in_flight: BTreeSet<u64>,
    /// Nothing in the backlog is older. Spares scans the long way over what was removed.
    oldest: u64,
    /// From one place to the next: those between are other processes'.
    step: u64,
}

impl Default for PlacesState {
    fn default() -> Self {
        PlacesState { next: 1, in_flight: BTreeSet::new(), oldest: 0, step: 1 }
    }
}

impl PlacesState {
    /// All places below are committed or given up.
    fn settled(&self) -> u64 {
        self.in_flight.first().copied().unwrap_or(self.next)
    }
}

impl Places {
    pub fn start_at(&self, next: u64) {
        self.0.lock().next = next.max(1);
    }

    /// Shares places with other processes: this one gets those that are `number` modulo `step`,
    /// after `last`.
    pub fn share(&self, last: u64, number: u64, step: u64) {
        let mut state = self.0.lock();
        let next = (last / step + 1) * step + number % step;
        (state.step, state.next) = (step, state.next.max(next));
    }

    pub fn next(&self) -> u64 {
        self.0.lock().next
    }

    pub fn allot(&self) -> Seq {
        let mut state = self.0.lock();
        let seq = state.next;
        state.next += state.step;
        state.in_flight.insert(seq);
        Seq(seq)
    }

    /// The places are committed, or given up.
    pub fn settle(&self, seqs: &[Seq]) {
        if !seqs.is_empty() {
            let mut state = self.0.lock();
            for seq in seqs {
                state.in_flight.remove(&seq.0);
            }
        }
    }

    /// Where to begin a scan after `after`, and where to end.
    fn bounds(&self, after: Seq) -> (u64, u64) {
        let state = self.0.lock();
        (after.0.saturating_add(1).max(state.oldest), state.settled())
    }

    fn found_none_before(&self, seq: u64) {
        let mut state = self.0.lock();
        state.oldest = state.oldest.max(seq);
    }
}

impl MetaStore {
    /// Up to `limit` records in the backlog after `after` (`Seq(0)` to begin), oldest first.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn backlog(&self, after: Seq, limit: usize) -> Result<Vec<(Seq, Ino)>> {
        let (from, end) = self.places.bounds(after);
        if self.is_gathered() {
            return self.marked(from..end, limit);
        }
        let prefix = Key::new(keys::GLOBAL, &[keys::QUEUE]);
        let start = self.layout.queue(Ino::ROOT, Seq(from - 1));
        let page = self.scan(&prefix, Some(start.bytes()), limit)?;
        let mut queued = Vec::with_capacity(page.items.len());
        for (key, value) in &page.items {
            let seq = keys::number(key).ok_or_else(|| corrupt("the backlog", "short key"))?;
            if seq < end {
                queued.push((Seq(seq), codec::decode_ino("the backlog", value)?));
            }
        }
        let first = queued.first().map_or(end, |(seq, _)| seq.0);
        let from_the_oldest = after.0 == 0 || after.0.saturating_add(1) < from;
        if limit > 0 && from_the_oldest {
            self.places.found_none_before(first);
        }
        Ok(queued)
    }

    /// The last place in the backlog if it is not before `next`, as it is where nothing is damaged.
    pub(super) fn last_queued_from(&self, next: u64) -> Result<Option<u64>> {
        let prefix = Key::new(keys::GLOBAL, &[keys::QUEUE]);
        let mut after = next.saturating_sub(1);
        let mut last = None;
        loop {
            let start = self.layout.queue(Ino::ROOT, Seq(after));
            let page = self.scan(&prefix, Some(start.bytes()), PAGE)?;
            let Some((key, _)) = page.items.last() else { return Ok(last) };
            after = keys::number(key).ok_or_else(|| corrupt("the backlog", "short key"))?;
            last = Some(after);
        }
    }

    /// Number of records in the backlog.
    #[must_use]
    pub fn backlog_len(&self) -> u64 {
        self.counts().queued
    }

    /// The oldest record in the backlog.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn backlog_oldest(&self) -> Result<Option<(Seq, Ino)>> {
        Ok(self.backlog(Seq(0), 1)?.pop())
    }

    /// Stores what a worker did in the backing store: `facts` sets [`Record::backing`], `dirty`,
    /// `spilled`. The record leaves the backlog if `change` is still `seen_change` and nothing
    /// differs; one that nobody needs any more is deleted. Returns whether it is still queued.
    ///
    /// If `change` moved on, marks of a difference (`attrs_differ`, `xattrs_differ`) stay, whatever
    /// `facts` says: they may be newer than what the worker did. So do `dirty` and `spilled` if it
    /// moved by a change of bytes.
    ///
    /// # Errors
    /// `Stale` if the record is gone: what the worker made has to be removed again (which
    /// [`MetaStore::claim`] spares). Of a node `NotInHand` if it has not the right to work on it.
    pub fn reconciled(
        &self,
        ino: Ino,
        seen_change: u64,
        facts: impl FnMut(&mut Record),
    ) -> Result<bool> {
        let mut looks = false;
        let mut may = |draft: &mut Draft<'_>| self.expect_in_hand(draft, ino, &mut looks);
        self.reconciled_if(ino, seen_change, facts, &mut may)
    }

    /// As [`MetaStore::reconciled`], of what was found at the start of a node, before it works.
    ///
    /// # Errors
    /// As [`MetaStore::reconciled`].
    pub fn reconciled_at_start(
        &self,
        ino: Ino,
        seen_change: u64,
        facts: impl FnMut(&mut Record),
    ) -> Result<bool> {
        self.reconciled_if(ino, seen_change, facts, &mut |_| Ok(()))
    }

    fn reconciled_if(
        &self,
        ino: Ino,
        seen_change: u64,
        mut facts: impl FnMut(&mut Record),
        may: &mut dyn FnMut(&mut Draft<'_>) -> Result<()>,
    ) -> Result<bool> {
        let record = self.edit_one(ino, |draft, before| {
            may(draft)?;
            let record = draft.edit(ino)?;
            facts(record);
            restore_identity(record, before);
            if record.change != seen_change {
                record.backing.attrs_differ |= before.backing.attrs_differ;
                record.backing.xattrs_differ |= before.backing.xattrs_differ;
                if before.bytes_changed_since(seen_change) {
                    record.dirty |= before.dirty;
                    record.spilled |= before.spilled;
                }
            } else if !record.differs() {
                record.queued = None;
            }
            if record.differs() {
                draft.enqueue(ino)?;
            }
            Ok(())
        })?;
        Ok(record.queued.is_some() && !record.is_dead())
    }

    /// Notes that the backing store may have the inode under `link` from now on. Call it before
    /// making the name there, so that neither a crash nor a concurrent removal leaves a name that
    /// nobody remembers.
    ///
    /// # Errors
    /// `Stale` if the record is gone. Of a node `NotInHand` if it has not the right to work on the
    /// inode any more, or if nothing of it was published yet and another node owns its bytes.
    pub fn claim(&self, ino: Ino, link: &Link) -> Result<Arc<Record>> {
        let mut looks = false;
        self.claim_if(ino, link, &mut |draft, before| {
            // A version that is there may be moved by whoever needs its name.
            if before.backing.fingerprint.is_none() {
                self.expect_own_bytes(before)?;
            }
            self.expect_in_hand(draft, ino, &mut looks)
        })
    }

    /// As [`MetaStore::claim`], of a name that was found at the start of a node, before it works.
    ///
    /// # Errors
    /// `Stale` if the record is gone.
    pub fn claim_found(&self, ino: Ino, link: &Link) -> Result<Arc<Record>> {
        self.claim_if(ino, link, &mut |_, _| Ok(()))
    }

    fn claim_if(
        &self,
        ino: Ino,
        link: &Link,
        may: &mut dyn FnMut(&mut Draft<'_>, &Record) -> Result<()>,
    ) -> Result<Arc<Record>> {
        self.edit_one(ino, |draft, before| {
            may(draft, before)?;
            if !before.backing.links.contains(link) {
                let backing = &mut draft.edit(ino)?.backing;
                backing.links.push(link.clone());
                if before.apart > 0 {
                    backing.claimed.push(link.clone());
                }
                draft.enqueue(ino)?;
            }
            Ok(())
        })
    }

    /// Returns when what was noted of an inode is where other nodes see it: before the backing store is
    /// changed by what [`MetaStore::claim`] or [`MetaStore::intend`] has announced.
    ///
    /// # Errors
    /// If that is not known, or it is lost: then nothing may be changed.
    pub fn arrive(&self, ino: Ino) -> Result<()> {
        Ok(self.engine.arrive(ino.partition())?)
    }

    /// Notes the version that a worker is about to make in the backing store, so that whoever comes
    /// after an interruption knows it again; `found`, if given, is what stands there now. Call it
    /// before making the version.
    ///
    /// # Errors
    /// As [`MetaStore::claim`].
    pub fn intend(
        &self,
        ino: Ino,
        found: Option<Fingerprint>,
        pending: Fingerprint,
    ) -> Result<Arc<Record>> {
        let mut looks = false;
        self.edit_one(ino, |draft, before| {
            self.expect_own_bytes(before)?;
            self.expect_in_hand(draft, ino, &mut looks)?;
            let backing = &mut draft.edit(ino)?.backing;
            backing.fingerprint =
                found.map(|print| backing.numbered(print)).or(backing.fingerprint);
            backing.announce(pending);
            draft.enqueue(ino)
        })
    }

    /// As [`MetaStore::intend`], of a version that is made ahead of the turn of its file, in which it
    /// is announced once more.
    ///
    /// # Errors
    /// `Stale` if the record is gone; of a node `NotInHand` if it does not own the bytes.
    pub fn intend_ahead(&self, ino: Ino, pending: Fingerprint) -> Result<Arc<Record>> {
        self.edit_one(ino, |draft, before| {
            self.expect_own_bytes(before)?;
            draft.edit(ino)?.backing.announce(pending);
            draft.enqueue(ino)
        })
    }

    /// Changes what is known of an inode's bytes while a worker is at it, ahead of its report. It is no
    /// change of the inode: [`Record::change`] stays, or the report would be taken for one that was
    /// overtaken, and what it says is written would still count as changed here.
    ///
    /// # Errors
    /// `Stale` if the record is gone.
    pub fn note_written(
        &self,
        ino: Ino,
        mut facts: impl FnMut(&mut Record),
    ) -> Result<Arc<Record>> {
        self.edit_one(ino, |draft, before| {
            let record = draft.edit(ino)?;
            facts(record);
            restore_identity(record, before);
            draft.enqueue(ino)
        })
    }

    /// Puts a record at the end of this process's backlog, unless it is in another's.
    ///
    /// # Errors
    /// `Stale` if the record is gone.
    pub fn requeue_last(&self, ino: Ino) -> Result<()> {
        self.edit_one(ino, |draft, before| {
            if before.queued.is_some_and(|seq| !self.is_mine(seq)) {
                return Ok(());
            }
            draft.edit(ino)?.queued = None;
            draft.enqueue(ino)
        })?;
        Ok(())
    }

    /// Backing names in a directory that are held by inodes which logically are elsewhere (or
    /// removed).
    ///
    /// # Errors
    /// If the engine fails.
    pub fn stale_names(&self, dir: Ino) -> Result<Vec<(Box<[u8]>, Ino)>> {
        let spread = self.settled(dir)?.map(|record| record.spread);
        let mut stale_names = Vec::new();
        for partition in self.layout.all_possible_partitions(dir, spread) {
            for (key, _) in self.scan(&keys::stale_names(partition, dir), None, usize::MAX)?.items {
                let stale_name = keys::stale_name_parts(&key);
                let (name, ino) = stale_name.ok_or_else(|| corrupt("a stale name", "short key"))?;
                stale_names.push((name.into(), ino));
            }
        }
        match self.is_elsewhere_since(dir, spread)? {
            true => self.stale_names(dir),
            false => Ok(stale_names),
        }
    }

    /// The inodes that hold, or after an interruption may hold, a backing name which logically they
    /// no longer have.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn stale_inodes_at(&self, dir: Ino, name: &[u8]) -> Result<Vec<Ino>> {
        let spread = self.settled(dir)?.map(|record| record.spread);
        let mut items = Vec::new();
        for partition in self.layout.possible_partitions(dir, spread, keys::name_hash(name)) {
            let prefix = keys::stale_inodes_of_name(partition, dir, name);
            items.extend(self.scan(&prefix, None, usize::MAX)?.items);
        }
        if self.is_elsewhere_since(dir, spread)? {
            return self.stale_inodes_at(dir, name);
        }
        let stale_names = items.iter().filter_map(|(key, _)| keys::stale_name_parts(key));
        Ok(stale_names.filter(|(found, _)| *found == name).map(|(_, ino)| ino).collect())
    }

    /// Inodes without a name that were in use.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn orphans(&self) -> Result<Vec<Ino>> {
        if self.is_gathered() {
            return self.collect_orphans();
        }
        let prefix = Key::new(keys::GLOBAL, &[keys::ORPHAN]);
        let page = self.scan(&prefix, None, usize::MAX)?;
        Ok(page.items.iter().filter_map(|(key, _)| keys::number(key).map(Ino)).collect())
    }

    /// An orphan is no longer in use. Returns whether its bytes can be dropped (unless it got a
    /// name again, or is owed to names that are not known here). Its record stays while the backing store still has its names.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn release_orphan(&self, ino: Ino, now: Timestamp) -> Result<bool> {
        let released = self.edit_one(ino, |draft, before| {
            if before.orphan && self.holds_orphan(before) {
                let record = draft.edit(ino)?;
                record.orphan = false;
                record.attr.ctime = now;
                draft.settle(ino)?;
            }
            Ok(())
        });
        match released {
            Ok(record) => Ok(record.is_gone()),
            Err(Error::Stale(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Memory;
    use crate::store::{NewInode, Options};
    use crate::types::FileKind;

    fn print(number: u64, mtime: i64) -> Fingerprint {
        let mtime = Timestamp::new(mtime, 0);
        Fingerprint { ino: number, size: 3, mtime, ..Fingerprint::default() }
    }

    /// What a worker reports that has found or made a version; the edition that it has then.
    fn report(store: &MetaStore, ino: Ino, found: Fingerprint) -> u16 {
        let change = store.get(ino).unwrap().change;
        let facts = |record: &mut Record| {
            record.backing.fingerprint = Some(found);
            record.backing.pending = None;
        };
        store.reconciled(ino, change, facts).unwrap();
        store.get(ino).unwrap().backing.fingerprint.unwrap().edition
    }

    #[test]
    fn version_when_published_then_has_the_next_edition_and_keeps_it_while_it_is_the_same() {
        let store = MetaStore::open(Box::new(Memory::new()), &Options::default()).unwrap();
        let new = NewInode::new(FileKind::Regular, 0o644, 1, 2);
        let ino = store.create(Ino::ROOT, b"file", new, Timestamp::new(1, 0)).unwrap().ino;
        let publish = |found| {
            let announced = store.intend(ino, None, found).unwrap().backing.pending;
            let edition = report(&store, ino, found);
            assert_eq!(announced.unwrap().edition, edition);
            edition
        };
        assert_eq!(publish(print(7, 1)), 1);
        assert_eq!(publish(print(8, 1)), 2);
        // An inode number comes again; then the file is written in place, and its time put back.
        assert_eq!(publish(print(7, 1)), 3);
        assert_eq!(publish(print(7, 1)), 4);
        // A change of names moves the change time alone.
        let moved = Fingerprint { ctime: Timestamp::new(9, 9), ..print(7, 1) };
        assert_eq!(report(&store, ino, moved), 4);
        // Others have changed it.
        assert_eq!(report(&store, ino, print(7, 5)), 5);
        // Its times are set: the bytes are the same.
        let known = store.get(ino).unwrap().backing.fingerprint.unwrap();
        let pending = Fingerprint { mtime: Timestamp::new(6, 0), ..known };
        store.intend(ino, None, pending).unwrap();
        assert_eq!(report(&store, ino, print(7, 6)), 5);
    }
}
