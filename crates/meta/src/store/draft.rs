//! A transaction in the making. Records are edited as a whole; the keys that follow from a record
//! (its place in the backlog, ghosts, orphan and hard-link marks) are derived from the difference
//! between what it was and what it becomes, so no operation can forget one.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{COUNTS, Counts, MetaStore, compare};
use crate::codec;
use crate::engine::{Expect, Key, MiniTransaction, Stamp, Write};
use crate::error::{Error, Result};
use crate::keys;
use crate::types::{FileKind, Ino, Link, Record, Seq, XattrState};

#[derive(Debug)]
struct Edit {
    before: Option<Arc<Record>>,
    after: Record,
    /// From before the commit.
    stamp: Option<Stamp>,
}

struct EntryChange {
    dir: Ino,
    name: Box<[u8]>,
    now: Option<(Ino, FileKind)>,
    /// From before the commit.
    stamp: Option<Stamp>,
}

/// Changes of the counts.
#[derive(Default, PartialEq, Eq)]
struct Delta {
    inodes: i64,
    queued: i64,
    orphans: i64,
    ghosts: i64,
}

impl Delta {
    fn apply(&self, counts: &Counts) -> Counts {
        let add = |count: u64, delta: i64| count.saturating_add_signed(delta);
        Counts {
            inodes: add(counts.inodes, self.inodes),
            queued: add(counts.queued, self.queued),
            orphans: add(counts.orphans, self.orphans),
            ghosts: add(counts.ghosts, self.ghosts),
        }
    }
}

/// The records of a committed draft, after it, in the order in which they were first edited.
pub(super) type Committed = SmallVec<[Arc<Record>; 4]>;

pub(super) struct Draft<'a> {
    store: &'a MetaStore,
    transaction: MiniTransaction,
    edits: SmallVec<[Edit; 4]>,
    entries: SmallVec<[EntryChange; 2]>,
    seqs: SmallVec<[Seq; 2]>,
    delta: Delta,
}

impl<'a> Draft<'a> {
    pub fn new(store: &'a MetaStore) -> Self {
        Draft {
            store,
            transaction: MiniTransaction { write: Vec::with_capacity(8), ..Default::default() },
            edits: SmallVec::new(),
            entries: SmallVec::new(),
            seqs: SmallVec::new(),
            delta: Delta::default(),
        }
    }

    /// The record of an inode whose exclusive lock is held, to be changed.
    pub fn edit(&mut self, ino: Ino) -> Result<&mut Record> {
        let at = match self.edits.iter().position(|edit| edit.after.ino == ino) {
            Some(at) => at,
            None => {
                let before = self.store.load_to_change(ino)?.ok_or(Error::Stale(ino))?;
                let after = (*before).clone();
                self.edits.push(Edit { after, before: Some(before), stamp: None });
                self.edits.len() - 1
            }
        };
        Ok(&mut self.edits[at].after)
    }

    /// Whether a commit would change nothing.
    pub fn changes_nothing(&self) -> bool {
        let same = |edit: &Edit| edit.before.as_deref() == Some(&edit.after);
        self.transaction.write.is_empty() && self.entries.is_empty() && self.edits.iter().all(same)
    }

    /// A directory to which entries can be added, to be changed.
    pub fn edit_directory(&mut self, ino: Ino) -> Result<&mut Record> {
        let record = self.edit(ino)?;
        if !record.is_directory() {
            return Err(Error::NotDirectory);
        }
        if record.links.is_empty() && ino != Ino::ROOT {
            return Err(Error::NotFound);
        }
        Ok(record)
    }

    /// A new record.
    pub fn add(&mut self, record: Record) {
        self.edits.push(Edit { before: None, after: record, stamp: None });
    }

    /// Puts an edited record into the backlog; one that is there keeps its place.
    pub fn enqueue(&mut self, ino: Ino) -> Result<()> {
        let queued = self.edit(ino)?.queued;
        // Whoever owns a file brings it in line: what another node was to do is its own from now on.
        let taken_over = queued.is_some_and(|seq| !self.store.is_mine(seq))
            && self.edit(ino)?.owner.map(|owner| owner.node)
                == self.store.member().map(|me| me.node);
        if queued.is_none() || taken_over {
            let seq = self.store.places.allot();
            self.seqs.push(seq);
            self.edit(ino)?.queued = Some(seq);
        }
        Ok(())
    }

    /// After a change of names: enqueues if the backing store differs now; takes out of the backlog
    /// what has no name here and none there.
    pub fn settle(&mut self, ino: Ino) -> Result<()> {
        let record = self.edit(ino)?;
        if record.differs() {
            self.enqueue(ino)?;
        } else if record.links.is_empty() {
            record.queued = None;
        }
        Ok(())
    }

    pub fn put(&mut self, key: Key, value: Vec<u8>) {
        self.transaction.write.push(Write::Put(key, value));
    }

    pub fn delete(&mut self, key: Key) {
        self.transaction.write.push(Write::Delete(key));
    }

    /// The commit depends on what was read under a lock. Where nobody else can have changed it, only
    /// debug builds look again: to find an operation that takes too few locks.
    pub fn expect(&mut self, key: &Key, expect: Expect) {
        if !self.store.exclusive || cfg!(debug_assertions) {
            self.transaction.compare.push(compare(key.clone(), expect));
        }
    }

    /// Makes an entry where there is none, which was seen under the directory's lock.
    pub fn add_entry(&mut self, dir: Ino, name: &[u8], ino: Ino, kind: FileKind) {
        let key = self.store.layout.entry(dir, name);
        self.expect(&key, Expect::Absent);
        self.put(key, codec::encode_entry(ino, kind));
        self.entry_changes(dir, name, Some((ino, kind)));
    }

    /// Makes an entry lead elsewhere, or nowhere.
    pub fn change_entry(
        &mut self,
        dir: Ino,
        name: &[u8],
        was: (Ino, FileKind),
        now: Option<(Ino, FileKind)>,
    ) {
        let key = self.store.layout.entry(dir, name);
        self.expect(&key, Expect::Value(codec::encode_entry(was.0, was.1)));
        match now {
            Some((ino, kind)) => self.put(key, codec::encode_entry(ino, kind)),
            None => self.delete(key),
        }
        self.entry_changes(dir, name, now);
    }

    fn entry_changes(&mut self, dir: Ino, name: &[u8], now: Option<(Ino, FileKind)>) {
        let stamp = self.store.stamp(self.store.layout.entries_partition(dir));
        self.entries.push(EntryChange { dir, name: name.into(), now, stamp });
    }

    /// Commits. Fails with `Conflict` if somebody else changed what this draft builds on; what is
    /// cached of it is forgotten then.
    pub fn commit(mut self) -> Result<Committed> {
        let mut edits = std::mem::take(&mut self.edits);
        for edit in &mut edits {
            self.derive(edit)?;
        }
        let committed = if self.transaction.write.is_empty() {
            Ok(true)
        } else if self.delta == Delta::default() && self.seqs.is_empty() {
            self.store.execute(&self.transaction).map(|reads| reads.is_some())
        } else {
            self.execute_with_counts()
        };
        if !matches!(committed, Ok(true)) {
            self.forget(&edits);
        }
        if committed.is_err() {
            self.store.marks.doubt(edits.iter().map(|edit| edit.after.ino));
        }
        if !committed? {
            debug_assert!(!self.store.exclusive, "changed without its lock: {edits:?}");
            return Err(Error::Conflict(1));
        }
        Ok(self.publish(edits))
    }

    fn execute_with_counts(&mut self) -> Result<bool> {
        let store = self.store;
        if store.is_gathered() {
            let committed = store.execute(&self.transaction)?.is_some();
            if committed {
                let mut counts = store.counts.lock();
                *counts = self.delta.apply(&counts);
                store.shown.show(&counts);
            }
            return Ok(committed);
        }
        let mut counts = store.counts.lock();
        let next = self.delta.apply(&counts);
        self.put(keys::setting(COUNTS), codec::encode_counts(&next, store.places.next()));
        let committed = store.execute(&self.transaction)?.is_some();
        if committed {
            *counts = next;
            store.shown.show(&counts);
        }
        Ok(committed)
    }

    /// Adds the writes that follow from an edit.
    fn derive(&mut self, edit: &mut Edit) -> Result<()> {
        let before = edit.before.as_deref();
        let ino = edit.after.ino;
        edit.stamp = self.store.stamp(ino.partition());
        // The backing store has all, or nobody wants it any more: no copy counts from here on.
        edit.after.copied &= (edit.after.dirty || edit.after.spilled) && !edit.after.is_dead();
        // Other processes must notice that entries changed, also where the times don't.
        let entries_changed = self.store.is_gathered() && self.entries.iter().any(|e| e.dir == ino);
        if before == Some(&edit.after) && !entries_changed {
            if self.store.member().is_some() {
                // Nothing is compared: it may be as old as it was.
                edit.stamp = None;
            }
            return Ok(());
        }
        if let Some(before) = before {
            self.expect(&keys::record(ino), Expect::Prefix(codec::record_prefix(before.revision)));
            edit.after.revision = before.revision.wrapping_add(1);
        }
        let after = (!edit.after.is_dead()).then_some(&edit.after);
        self.derive_marks(ino, before, after);
        self.derive_ghosts(before, after);
        match (before, after) {
            (_, Some(after)) => self.put(keys::record(ino), codec::encode_record(after)),
            (Some(before), None) => self.delete_record(before)?,
            (None, None) => {}
        }
        self.delta.inodes += i64::from(after.is_some()) - i64::from(before.is_some());
        Ok(())
    }

    fn derive_marks(&mut self, ino: Ino, before: Option<&Record>, after: Option<&Record>) {
        let queued = |record: Option<&Record>| record.and_then(|record| record.queued);
        let layout = self.store.layout;
        let queue_key = |record| queued(record).map(|seq| layout.queue(ino, seq));
        self.replace(queue_key(before), queue_key(after), ino);
        let orphan = |record: Option<&Record>| record.is_some_and(|record| record.orphan);
        let orphan_key = |record| orphan(record).then(|| layout.orphan(ino));
        self.replace(orphan_key(before), orphan_key(after), ino);
        let copied = |record: Option<&Record>| record.is_some_and(|record| record.copied);
        if copied(before) && !copied(after) {
            self.delete(keys::copies(ino));
        }
        let hard_link = |record: Option<&Record>| record?.hard_link.map(keys::hard_link);
        self.replace(hard_link(before), hard_link(after), ino);
        self.delta.queued += i64::from(queued(after).is_some());
        self.delta.queued -= i64::from(queued(before).is_some());
        self.delta.orphans += i64::from(orphan(after)) - i64::from(orphan(before));
    }

    fn replace(&mut self, before: Option<Key>, after: Option<Key>, ino: Ino) {
        if before == after {
            return;
        }
        if let Some(key) = before {
            self.delete(key);
        }
        if let Some(key) = after {
            self.put(key, codec::encode_ino(ino));
        }
    }

    fn derive_ghosts(&mut self, before: Option<&Record>, after: Option<&Record>) {
        fn ghosts(record: Option<&Record>) -> SmallVec<[&Link; 2]> {
            record.map(|record| record.ghosts().collect()).unwrap_or_default()
        }
        let Some(ino) = before.or(after).map(|record| record.ino) else { return };
        let (old, new) = (ghosts(before), ghosts(after));
        let layout = self.store.layout;
        for link in old.iter().filter(|link| !new.contains(link)) {
            self.delete(layout.ghost(link.parent, &link.name, ino));
            self.delta.ghosts -= 1;
        }
        for link in new.iter().filter(|link| !old.contains(link)) {
            self.put(layout.ghost(link.parent, &link.name, ino), codec::encode_ino(ino));
            self.delta.ghosts += 1;
        }
    }

    fn delete_record(&mut self, record: &Record) -> Result<()> {
        self.delete(keys::record(record.ino));
        if record.xattrs == XattrState::Some {
            let prefix = keys::xattr(record.ino, b"");
            for (bytes, _) in self.store.scan(&prefix, None, usize::MAX)?.items {
                self.delete(Key::new(prefix.partition(), &bytes));
            }
        }
        Ok(())
    }

    fn forget(&self, edits: &[Edit]) {
        for edit in edits {
            self.store.records.remove(&edit.after.ino);
            // Whether an engine that failed has done it is unknown.
            self.store.changes.note(edit.after.ino);
        }
        for entry in &self.entries {
            self.store.forget_entry(entry.dir, &entry.name);
        }
    }

    fn publish(&self, edits: SmallVec<[Edit; 4]>) -> Committed {
        let store = self.store;
        for entry in &self.entries {
            store.cache_entry(entry.dir, &entry.name, entry.now, entry.stamp);
        }
        let mut committed = Committed::new();
        for edit in edits {
            if store.is_gathered() {
                let before = edit.before.as_ref().and_then(|record| record.queued);
                let after = edit.after.queued.filter(|_| !edit.after.is_dead());
                let mine = |seq: &Seq| store.is_mine(*seq);
                store.marks.moved(edit.after.ino, before.filter(mine), after.filter(mine));
            }
            let record = Arc::new(edit.after);
            if record.is_dead() {
                store.records.remove(&record.ino);
            } else {
                store.cache_record(&record, edit.stamp);
            }
            store.changes.note(record.ino);
            committed.push(record);
        }
        committed
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        self.store.places.settle(&self.seqs);
    }
}

/// The record of an inode among those committed.
pub(super) fn committed_record(committed: &Committed, ino: Ino) -> Result<Arc<Record>> {
    committed.iter().find(|record| record.ino == ino).cloned().ok_or(Error::Stale(ino))
}
