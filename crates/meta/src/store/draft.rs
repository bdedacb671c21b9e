//! A transaction in the making. Records are edited as a whole; the keys that follow from a record
//! (its place in the backlog, stale names, orphan and hard-link marks) are derived from the difference
//! between what it was and what it becomes, so no operation can forget one.

use std::collections::HashSet;
use std::sync::Arc;

use smallvec::SmallVec;

use super::names_apart::changed_names;
use super::{COUNTS, Counts, MetaStore, compare};
use crate::codec;
use crate::engine::{Expect, Key, MiniTransaction, Stamp, Write};
use crate::error::{Error, Result};
use crate::keys;
use crate::types::{Backing, FileKind, Ino, Link, Record, Seq, Spread, Touched, XattrState};

#[derive(Debug)]
struct Edit {
    before: Option<Arc<Record>>,
    after: Record,
    /// From before the commit.
    stamp: Option<Stamp>,
}

struct EntryChange {
    dir: Ino,
    partition: u16,
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
    stale_names: i64,
}

impl Delta {
    fn apply(&self, counts: &Counts) -> Counts {
        let add = |count: u64, delta: i64| count.saturating_add_signed(delta);
        Counts {
            inodes: add(counts.inodes, self.inodes),
            queued: add(counts.queued, self.queued),
            orphans: add(counts.orphans, self.orphans),
            stale_names: add(counts.stale_names, self.stale_names),
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
    /// Directories that have to be alive and spread as they were at a revision.
    bases: SmallVec<[(Ino, u64); 2]>,
    /// Inode numbers in the backing store whose marks are changed.
    numbers: HashSet<u64>,
    /// Entries are added that were there before: their directories' times stay.
    pub imports: bool,
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
            bases: SmallVec::new(),
            numbers: HashSet::new(),
            imports: false,
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

    /// Changes the count of a directory's subdirectories. The commit depends on the whole record,
    /// also where nothing seems to change: a count that others have raised meanwhile would stay at
    /// zero here.
    pub fn add_subdirs(&mut self, dir: Ino, count: i64) -> Result<()> {
        self.edit(dir)?.add_subdirs(count);
        let before = self.edits.iter().find(|edit| edit.after.ino == dir);
        if let Some(before) = before.and_then(|edit| edit.before.clone()) {
            let same = Expect::Prefix(codec::record_prefix(before.revision));
            self.expect(&keys::record(dir), same);
        }
        Ok(())
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

    pub(super) fn write_all(&mut self, writes: Vec<Write>) {
        self.transaction.write.extend(writes);
    }

    /// The commit depends on what was read under a lock. Where nobody else can have changed it, only
    /// debug builds look again: to find an operation that takes too few locks.
    pub fn expect(&mut self, key: &Key, expect: Expect) {
        if !self.store.exclusive || cfg!(debug_assertions) {
            self.transaction.compare.push(compare(key.clone(), expect));
        }
    }

    /// The partition of a name of a directory that is edited.
    pub fn entry_partition(&self, dir: Ino, name: &[u8]) -> u16 {
        let edited = self.edits.iter().find(|edit| edit.after.ino == dir);
        let spread = match edited.and_then(|edit| edit.before.as_deref()) {
            Some(before) => before.spread,
            None => self.store.believed_spread(dir),
        };
        self.store.layout.entry_partition(dir, spread, keys::name_hash(name))
    }

    /// A number for an inode created under a name in a directory that is edited.
    pub fn new_ino(&self, dir: Ino, name: &[u8], kind: FileKind) -> Result<Ino> {
        self.store.new_ino(self.entry_partition(dir, name), kind)
    }

    /// Makes an entry where there is none, which was seen under the directory's lock.
    pub fn add_entry(&mut self, dir: Ino, name: &[u8], ino: Ino, kind: FileKind) {
        let partition = self.entry_partition(dir, name);
        let key = keys::entry(partition, dir, name);
        self.expect(&key, Expect::Absent);
        self.put(key, codec::encode_entry(ino, kind));
        self.entry_changes(partition, dir, name, Some((ino, kind)));
    }

    /// Makes an entry lead elsewhere, or nowhere.
    pub fn change_entry(
        &mut self,
        dir: Ino,
        name: &[u8],
        was: (Ino, FileKind),
        now: Option<(Ino, FileKind)>,
    ) {
        let partition = self.entry_partition(dir, name);
        let key = keys::entry(partition, dir, name);
        self.expect(&key, Expect::Value(codec::encode_entry(was.0, was.1)));
        match now {
            Some((ino, kind)) => self.put(key, codec::encode_entry(ino, kind)),
            None => self.delete(key),
        }
        self.entry_changes(partition, dir, name, now);
    }

    fn entry_changes(
        &mut self,
        partition: u16,
        dir: Ino,
        name: &[u8],
        now: Option<(Ino, FileKind)>,
    ) {
        let stamp = self.store.stamp(partition);
        self.entries.push(EntryChange { dir, partition, name: name.into(), now, stamp });
    }

    /// Whether a directory has no entries. If so, the commit fails should it have got some since:
    /// for its removal, as what says that none came is removed as well.
    pub fn expect_empty(&mut self, dir: Ino) -> Result<bool> {
        if !self.edit(dir)?.is_directory() {
            return Err(Error::NotDirectory);
        }
        if !self.store.is_gathered() {
            return self.store.is_empty(dir);
        }
        // The record was read first, then what every change of entries writes, then the entries: what
        // comes in between changes one of those before it.
        let spread = self.edit(dir)?.spread;
        let mut touched = Vec::new();
        for partition in self.store.layout.entries_partitions(dir, spread) {
            let witnesses = [keys::times(partition, dir), keys::imports(partition, dir)];
            let found = self.store.read(witnesses.to_vec())?;
            let removed = spread == Spread::Split && found[0].is_none();
            let entries = self.store.scan(&keys::entries(partition, dir), None, 1)?.items;
            let moved = keys::moved(partition, dir);
            match entries.first() {
                Some((key, _)) if key != moved.bytes() => return Ok(false),
                None if !removed => {}
                _ => {
                    // It was removed, or split, since its record was read.
                    self.store.records.remove(&dir);
                    return Err(Error::Conflict(1));
                }
            }
            for (key, value) in witnesses.into_iter().zip(found) {
                if let Some(value) = &value {
                    self.delete(key.clone());
                    if key.bytes().starts_with(&[keys::TIMES]) {
                        touched.push(codec::decode_touched(dir, value)?);
                    }
                }
                self.expect(&key, value.map_or(Expect::Absent, Expect::Value));
            }
        }
        if spread == Spread::Split {
            self.delete(keys::moved(dir.partition(), dir));
        }
        self.edit(dir)?.take_times(touched.into_iter());
        Ok(true)
    }

    /// Commits. Fails with `Conflict` if somebody else changed what this draft builds on; what is
    /// cached of it is forgotten then.
    pub fn commit(mut self) -> Result<Committed> {
        let mut edits = std::mem::take(&mut self.edits);
        for edit in &mut edits {
            self.derive(edit)?;
        }
        let bases = std::mem::take(&mut self.bases);
        self.expect_bases(&bases);
        let is_fresh = |edit: &&Edit| edit.before.is_none() && !edit.after.is_directory();
        let fresh: SmallVec<[Ino; 4]> =
            edits.iter().filter(is_fresh).map(|edit| edit.after.ino).collect();
        let is_clean_now = |edit: &&Edit| {
            edit.before.as_ref().is_some_and(|before| before.is_dirty()) && !edit.after.is_dirty()
        };
        let clean: SmallVec<[Ino; 4]> =
            edits.iter().filter(is_clean_now).map(|edit| edit.after.ino).collect();
        // Before and after: a sync that begins in between may or may not have them.
        self.store.fresh.note(&fresh, &clean);
        let committed = if self.transaction.write.is_empty() {
            Ok(true)
        } else if self.delta == Delta::default() && self.seqs.is_empty() {
            self.store.execute(&self.transaction).map(|reads| reads.is_some())
        } else {
            self.execute_with_counts()
        };
        self.store.fresh.note(&fresh, &clean);
        if !matches!(committed, Ok(true)) {
            self.forget(&edits, &bases);
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
        // What comes from a look at the backing store knows nothing of earlier versions.
        if edit.after.attr.kind == FileKind::Regular
            && let Some(print) = edit.after.backing.fingerprint
        {
            let numbered = match before {
                Some(before) => before.backing.numbered(print),
                None => Backing::default().numbered(print),
            };
            edit.after.backing.fingerprint = Some(numbered);
        }
        // The backing store has all, or nobody wants it any more: no copy counts from here on.
        edit.after.copied &= (edit.after.dirty || edit.after.spilled) && !edit.after.is_dead();
        let same = match before {
            Some(before) if self.store.is_gathered() && before.is_directory() => {
                self.derive_times(before, &edit.after)
            }
            before => before == Some(&edit.after),
        };
        if same {
            if self.store.is_gathered() {
                // Nothing is compared: it may be as old as it was.
                edit.stamp = None;
            }
            return Ok(());
        }
        if let Some(before) = before {
            self.expect(&keys::record(ino), Expect::Prefix(codec::record_prefix(before.revision)));
            edit.after.revision = edit.after.next_revision(before);
        }
        self.derive_names(before, &mut edit.after);
        let after = (!edit.after.is_dead()).then_some(&edit.after);
        self.derive_marks(ino, before, after);
        self.derive_stale_names(before, after)?;
        match (before, after) {
            (_, Some(after)) => self.put(keys::record(ino), codec::encode_record(after)),
            (Some(before), None) => self.delete_record(before)?,
            (None, None) => {}
        }
        self.delta.inodes += i64::from(after.is_some()) - i64::from(before.is_some());
        Ok(())
    }

    /// Notes when entries changed, and says whether the directory's record is the same apart from
    /// that. Whoever changes entries only depends on the directory being there, not on the rest of
    /// its record: others may change other entries at the same time.
    fn derive_times(&mut self, before: &Record, after: &Record) -> bool {
        let dir = before.ino;
        let mut partitions: SmallVec<[u16; 2]> =
            self.entries.iter().filter(|e| e.dir == dir).map(|e| e.partition).collect();
        partitions.sort_unstable();
        partitions.dedup();
        let now = (after.attr.mtime, after.attr.ctime);
        let was = (before.attr.mtime, before.attr.ctime);
        for partition in &partitions {
            if before.spread == Spread::Split {
                self.expect(&keys::times(*partition, dir), Expect::Present);
            }
            let (key, times) = match self.imports {
                true => (keys::imports(*partition, dir), None),
                false => (keys::times(*partition, dir), Some(now)),
            };
            let nonce = self.store.nonce();
            self.put(key, codec::encode_touched(Touched { times, nonce }));
        }
        if partitions.is_empty() {
            if now.0 != was.0 && !after.is_removed() {
                self.clear_times(before);
            }
            return before == after;
        }
        if self.imports {
            self.expect(&keys::record(dir), Expect::Prefix(codec::record_prefix(before.revision)));
        } else if before.spread != Spread::Split {
            self.bases.push((dir, before.revision));
        }
        let attr = crate::types::Attr { mtime: was.0, ctime: was.1, ..after.attr.clone() };
        attr == before.attr && Record { attr, ..after.clone() } == *before
    }

    /// From here on the record says when entries of a directory were last changed.
    fn clear_times(&mut self, before: &Record) {
        let dir = before.ino;
        for partition in self.store.layout.entries_partitions(dir, before.spread) {
            let key = keys::times(partition, dir);
            if before.spread == Spread::Split {
                let nonce = self.store.nonce();
                self.expect(&key, Expect::Present);
                self.put(key, codec::encode_touched(Touched { times: None, nonce }));
            } else {
                self.delete(key);
            }
        }
    }

    /// The directories on which the commit depends must be as they were; where their whole records
    /// are compared, they are.
    fn expect_bases(&mut self, bases: &[(Ino, u64)]) {
        for (dir, revision) in bases {
            let key = keys::record(*dir);
            if self.transaction.compare.iter().all(|compare| compare.key != key) {
                self.expect(&key, Expect::Prefix(codec::life_prefix(*revision)));
            }
        }
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
        let store = self.store;
        let number = |record: Option<&Record>| store.backing_number(record?);
        if number(before) != number(after) {
            // Of two inodes of one number the one that comes first in a transaction has the mark.
            let mut free = |number: &u64| self.numbers.insert(*number);
            // Others may have renamed the file: then the mark is that of the inode with the new name.
            let own = |number: &u64| {
                store.is_gathered()
                    || store.known_by_number(*number).is_ok_and(|known| known == Some(ino))
            };
            let was = number(before).filter(own).filter(&mut free).map(keys::hard_link);
            let is = number(after).filter(&mut free).map(keys::hard_link);
            self.replace(was, is, ino);
        }
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

    fn derive_stale_names(
        &mut self,
        before: Option<&Record>,
        after: Option<&Record>,
    ) -> Result<()> {
        let Some(ino) = before.or(after).map(|record| record.ino) else { return Ok(()) };
        let in_backing =
            |record: Option<&Record>| record.is_some_and(|record| !record.backing.links.is_empty());
        if !in_backing(before) && !in_backing(after) {
            return Ok(());
        }
        let is_stale = |record: Option<&Record>, link: &Link| {
            record.is_some_and(|record| {
                record.backing.links.contains(link) && !record.links.contains(link)
            })
        };
        for link in changed_names(before, after) {
            match (is_stale(before, &link), is_stale(after, &link)) {
                (true, false) => {
                    for partition in self.stale_name_partitions(&link)? {
                        self.delete(keys::stale_name(partition, link.parent, &link.name, ino));
                    }
                    self.delta.stale_names -= 1;
                }
                (false, true) => {
                    // Of several it may be in any.
                    for partition in self.stale_name_partitions(&link)?.into_iter().take(1) {
                        let key = keys::stale_name(partition, link.parent, &link.name, ino);
                        self.put(key, codec::encode_ino(ino));
                    }
                    self.delta.stale_names += 1;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Where the stale name of a name may be; the commit fails if it goes elsewhere meanwhile.
    fn stale_name_partitions(&mut self, link: &Link) -> Result<SmallVec<[u16; 2]>> {
        let store = self.store;
        let mut spread = Some(Spread::Whole);
        if store.is_gathered() {
            let parent = store.settled(link.parent)?;
            spread = parent.as_ref().map(|parent| parent.spread);
            if let Some(parent) = parent.filter(|parent| parent.spread != Spread::Split) {
                self.bases.push((link.parent, parent.revision));
            }
        }
        let hash = keys::name_hash(&link.name);
        Ok(store.layout.possible_partitions(link.parent, spread, hash))
    }

    fn delete_record(&mut self, record: &Record) -> Result<()> {
        self.delete(keys::record(record.ino));
        if record.spilled {
            // Without it the spill file could be the only copy of a file whose record is lost.
            let removed = super::spill_of_removed(record.ino);
            self.put(keys::setting(&removed), codec::encode_bytes(&[]));
        }
        if record.xattrs == XattrState::Some {
            let prefix = keys::xattr(record.ino, b"");
            for (bytes, _) in self.store.scan(&prefix, None, usize::MAX)?.items {
                self.delete(Key::new(prefix.partition(), &bytes));
            }
        }
        Ok(())
    }

    fn forget(&self, edits: &[Edit], bases: &[(Ino, u64)]) {
        for (dir, _) in bases {
            self.store.records.remove(dir);
        }
        for edit in edits {
            self.store.records.remove(&edit.after.ino);
            // Whether an engine that failed has done it is unknown.
            self.store.changes.note(edit.after.ino);
        }
        for entry in &self.entries {
            self.store.forget_entry(entry.dir, &entry.name);
            self.store.changes.note(entry.dir);
        }
    }

    fn publish(&self, edits: SmallVec<[Edit; 4]>) -> Committed {
        let store = self.store;
        for entry in &self.entries {
            store.cache_entry(entry.dir, &entry.name, entry.partition, entry.now, entry.stamp);
            store.changes.note(entry.dir);
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
