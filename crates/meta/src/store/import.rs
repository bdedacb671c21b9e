//! Import: what the backing store has becomes known here.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::draft::committed_record;
use super::{Draft, Found, MetaStore, NewInode, Refreshed, check_name, new_record};
use crate::codec;
use crate::engine::{Expect, Key, MiniTransaction, Write};
use crate::error::{Error, Result};
use crate::keys;
use crate::types::{Attr, FileKind, Fingerprint, Ino, Link, Record, Spread, Timestamp, XattrState};

/// Entries imported in one transaction.
const BATCH: usize = 256;
/// Keys per step of a sweep.
const STEP: usize = 4096;

impl MetaStore {
    /// Adds entries found in the backing directory for names that are neither logical entries nor
    /// stale names; none to a directory that was removed. Names of one file (found by its inode
    /// number in the backing store where `nlink` exceeds 1) become links of one inode. Returns how
    /// many entries were added.
    ///
    /// In bounded transactions: if it fails, a prefix may have been added, and it may be repeated.
    ///
    /// # Errors
    /// `Stale`, `NotDirectory` for the directory; an invalid name.
    pub fn import(&self, dir: Ino, found: &[Found]) -> Result<u64> {
        self.import_into(dir, found, false)
    }

    /// As [`MetaStore::import`], but adds nothing once the directory is listed: what is found in it
    /// and not known may have been removed by another node since it was found.
    ///
    /// # Errors
    /// As [`MetaStore::import`].
    pub fn import_unless_listed(&self, dir: Ino, found: &[Found]) -> Result<u64> {
        self.import_into(dir, found, true)
    }

    fn import_into(&self, dir: Ino, found: &[Found], unless_listed: bool) -> Result<u64> {
        for found in found {
            check_name(&found.name)?;
        }
        self.split_if_large(dir, found.len() as u64)?;
        // What lies in one bucket is one partition's.
        let mut sorted: Vec<&Found> = found.iter().collect();
        sorted.sort_by_key(|found| keys::bucket_of(keys::name_hash(&found.name)));
        let bucket = |found: &Found| match self.believed_spread(dir) {
            Spread::Split => keys::bucket_of(keys::name_hash(&found.name)),
            _ => 0,
        };
        let mut imported = 0;
        for part in sorted.chunk_by(|a, b| bucket(a) == bucket(b)) {
            for batch in part.chunks(BATCH) {
                imported += self.retry(|| self.import_batch(dir, batch, unless_listed))?;
            }
        }
        Ok(imported)
    }

    fn import_batch(&self, dir: Ino, batch: &[&Found], unless_listed: bool) -> Result<u64> {
        let known = self.known_inodes(batch)?;
        let _locked = self.lock(&to_lock(dir, batch, &known));
        // Somebody else may have imported another name before the locks were taken.
        if self.known_inodes(batch)? != known {
            return Err(Error::Conflict(1));
        }
        let mut draft = Draft::new(self);
        draft.imports = true;
        if draft.edit(dir)?.is_removed() {
            // What is found in it is on its way out, and would outlive the directory as an entry.
            return Ok(0);
        }
        let (taken, has_stale_names) = self.taken(&draft, dir, batch)?;
        let mut names = HashSet::new();
        let mut inodes: Vec<(u64, Ino)> = Vec::new();
        let mut subdirs = 0;
        let mut imported = 0;
        if !draft.edit(dir)?.is_directory() {
            return Err(Error::NotDirectory);
        }
        if unless_listed && draft.edit(dir)?.listed {
            return Ok(0);
        }
        for ((found, taken), known) in batch.iter().zip(taken).zip(known) {
            let name = &*found.name;
            let is_stale = has_stale_names && !self.stale_inodes_at(dir, name)?.is_empty();
            if taken.is_some() || is_stale || !names.insert(name) {
                continue;
            }
            let in_batch = inodes.iter().find(|(backing, _)| *backing == found.fingerprint.ino);
            let same = in_batch.filter(|_| may_have_names(found)).map(|(_, ino)| *ino).or(known);
            let link = Link::new(dir, name);
            let ino = match same {
                Some(ino) if is_same_file(draft.edit(ino)?, found) => {
                    let record = draft.edit(ino)?;
                    forget_lost_bytes(record, found);
                    record.links.push(link.clone());
                    record.backing.links.push(link);
                    record.orphan = false;
                    record.attr.nlink = record.attr.nlink.max(record.links.len() as u32);
                    ino
                }
                other => {
                    let mut record =
                        imported_record(draft.new_ino(dir, name, found.attr.kind)?, found, link);
                    if may_have_names(found) {
                        if other.is_none() {
                            record.hard_link = Some(found.fingerprint.ino);
                            draft.expect(&keys::hard_link(found.fingerprint.ino), Expect::Absent);
                        }
                        inodes.retain(|(backing, _)| *backing != found.fingerprint.ino);
                        inodes.push((found.fingerprint.ino, record.ino));
                    }
                    let ino = record.ino;
                    draft.add(record);
                    ino
                }
            };
            draft.add_entry(dir, name, ino, found.attr.kind);
            subdirs += u32::from(found.attr.kind == FileKind::Directory);
            imported += 1;
        }
        let parent = draft.edit(dir)?;
        parent.subdirs += subdirs;
        if parent.listed {
            parent.attr.nlink = parent.subdirs.saturating_add(2);
        }
        draft.commit()?;
        Ok(imported)
    }

    /// The entries that there are of these names, and whether any of them may be a stale name.
    #[allow(clippy::type_complexity)]
    fn taken(
        &self,
        draft: &Draft<'_>,
        dir: Ino,
        batch: &[&Found],
    ) -> Result<(Vec<Option<Vec<u8>>>, bool)> {
        let mut partitions = HashSet::new();
        let place = |found: &&Found| {
            let partition = draft.entry_partition(dir, &found.name);
            partitions.insert(partition);
            keys::entry(partition, dir, &found.name)
        };
        let taken = self.read_each(batch.iter().map(place).collect())?;
        let mut has_stale_names = false;
        for partition in partitions {
            has_stale_names |=
                !self.scan(&keys::stale_names(partition, dir), None, 1)?.items.is_empty();
        }
        Ok((taken, has_stale_names))
    }

    /// The number in the backing store by which an inode is found if another name of it appears
    /// there. Where that costs a partition more, it is known of those alone that had several names
    /// when they were imported.
    pub(super) fn backing_number(&self, record: &Record) -> Option<u64> {
        let print = record.backing.fingerprint.filter(|print| print.ino != 0);
        let of_any = print.filter(|_| !self.is_gathered() && !record.is_directory());
        record.hard_link.or(of_any.map(|print| print.ino))
    }

    /// Marks all inodes by their numbers in the backing store, as programs before format 4 did not.
    pub(super) fn mark_numbers(&self) -> Result<()> {
        let mut after: Option<Key> = None;
        loop {
            let step = self.engine.sweep(after.as_ref(), STEP)?;
            let Some((last, _)) = step.last() else { return Ok(()) };
            after = Some(last.clone());
            let mut marks = BTreeMap::new();
            for (key, value) in &step {
                let number = keys::number(key.bytes());
                // What is damaged must not keep the store from being opened: the check finds it.
                if let (Some(&keys::RECORD), Some(ino)) = (key.bytes().first(), number)
                    && let Ok(record) = codec::decode_record(Ino(ino), value)
                {
                    marks.extend(self.backing_number(&record).map(|number| (number, record.ino)));
                }
            }
            let put = |(number, ino)| Write::Put(keys::hard_link(number), codec::encode_ino(ino));
            let write = marks.into_iter().map(put).collect();
            self.execute(&MiniTransaction { write, ..MiniTransaction::default() })?;
        }
    }

    /// The inode that a number in the backing store was last known to be of; it may have another one by
    /// now.
    ///
    /// # Errors
    /// What the engine says.
    pub fn known_by_number(&self, number: u64) -> Result<Option<Ino>> {
        let value = self.read(vec![keys::hard_link(number)])?.into_iter().next().flatten();
        value.map(|value| codec::decode_ino("a hard link", &value)).transpose()
    }

    /// The inodes that are known by their backing inode number.
    fn known_inodes(&self, batch: &[&Found]) -> Result<Vec<Option<Ino>>> {
        let mut known = vec![None; batch.len()];
        let asked: Vec<usize> = (0..batch.len()).filter(|at| may_have_names(batch[*at])).collect();
        if asked.is_empty() {
            return Ok(known);
        }
        let keys = asked.iter().map(|at| keys::hard_link(batch[*at].fingerprint.ino)).collect();
        for (at, value) in asked.into_iter().zip(self.read(keys)?) {
            known[at] = value.map(|value| codec::decode_ino("a hard link", &value)).transpose()?;
        }
        Ok(known)
    }

    /// All entries of the backing directory, which was like `fingerprint` before it was read, are
    /// imported.
    ///
    /// # Errors
    /// `Stale`, `NotDirectory`.
    pub fn set_listed(&self, dir: Ino, fingerprint: Fingerprint) -> Result<Arc<Record>> {
        self.edit_one(dir, |draft, _| {
            let record = draft.edit(dir)?;
            if !record.is_directory() {
                return Err(Error::NotDirectory);
            }
            record.listed = true;
            record.backing.fingerprint = Some(fingerprint);
            // A directory that was removed while it was read stays removed.
            if dir == Ino::ROOT || !record.links.is_empty() {
                record.attr.nlink = record.subdirs.saturating_add(2);
            }
            Ok(())
        })
    }

    /// What the backing store says now about an inode (`found.name` is ignored). An object of
    /// another type is a `Conflict`: the name has vanished and another has appeared. So is one of a
    /// file with changes, also if only `unsettled` knows of them, which is asked with it locked.
    ///
    /// # Errors
    /// `Stale` if there is no such inode.
    pub fn refresh(
        &self,
        ino: Ino,
        found: &Found,
        unsettled: &dyn Fn(Ino) -> bool,
    ) -> Result<Refreshed> {
        self.retry(|| {
            let _locked = self.lock(&[ino]);
            let before = self.load_locked(ino)?.ok_or(Error::Stale(ino))?;
            // That of a directory says nothing of its mode and owner.
            let owned = |attr: &Attr| (attr.perm, attr.uid, attr.gid);
            let same = !before.is_directory() || owned(&before.attr) == owned(&found.attr);
            if same && before.backing.fingerprint == Some(found.fingerprint) {
                return Ok(Refreshed::Unchanged(before));
            }
            let pending = before.dirty || before.spilled || before.backing.attrs_differ;
            if pending || before.attr.kind != found.attr.kind || unsettled(ino) {
                return Ok(Refreshed::Conflict(before));
            }
            let mut draft = Draft::new(self);
            if !before.backing.xattrs_differ {
                self.forget_xattrs(&mut draft, ino)?;
            }
            let record = draft.edit(ino)?;
            let nlink = refreshed_nlink(record, found);
            record.attr = found.attr.clone();
            record.attr.nlink = nlink;
            record.target.clone_from(&found.target);
            record.backing.fingerprint = Some(found.fingerprint);
            record.change += 1;
            Ok(Refreshed::Updated(committed_record(&draft.commit()?, ino)?))
        })
    }

    /// The extended attributes of a directory are read from the backing store again when they are wanted,
    /// but for one that differs from it. Says whether any were known.
    ///
    /// # Errors
    /// `Stale` if there is no such inode.
    pub fn forget_xattrs_of_directory(&self, dir: Ino) -> Result<bool> {
        self.retry(|| {
            let _locked = self.lock(&[dir]);
            let before = self.load_locked(dir)?.ok_or(Error::Stale(dir))?;
            if before.differs() || !before.is_directory() || before.xattrs == XattrState::Unknown {
                return Ok(false);
            }
            let mut draft = Draft::new(self);
            self.forget_xattrs(&mut draft, dir)?;
            draft.commit()?;
            Ok(true)
        })
    }

    /// Others have set the time of a directory that had the time `known` when it was last as here: it has the
    /// new one, unless it has yet another one here. Says whether it has.
    ///
    /// # Errors
    /// `Stale`.
    pub fn replace_time(&self, dir: Ino, known: Timestamp, theirs: &Fingerprint) -> Result<bool> {
        self.retry(|| {
            let _locked = self.lock(&[dir]);
            let before = self.load_locked(dir)?.ok_or(Error::Stale(dir))?;
            if !before.is_directory() || before.differs() || before.attr.mtime != known {
                return Ok(false);
            }
            let mut draft = Draft::new(self);
            let attr = &mut draft.edit(dir)?.attr;
            attr.mtime = theirs.mtime;
            attr.ctime = attr.ctime.max(theirs.ctime);
            draft.commit()?;
            Ok(true)
        })
    }

    /// The entries of a directory were changed by others at this time: it is that of the directory, unless
    /// something of it was changed here later. Says whether that was not so.
    ///
    /// # Errors
    /// `Stale` if there is no such inode.
    pub fn advance_times(&self, dir: Ino, changed: Timestamp) -> Result<bool> {
        self.retry(|| {
            let _locked = self.lock(&[dir]);
            let before = self.load_locked(dir)?.ok_or(Error::Stale(dir))?;
            if !before.is_directory() {
                return Ok(false);
            }
            let mut draft = Draft::new(self);
            if !draft.edit(dir)?.entries_changed_by_others(changed) {
                return Ok(false);
            }
            draft.commit()?;
            Ok(true)
        })
    }
}

/// What an import locks. Of two names of one file that are found at a time, the second is to find the inode of
/// the first: a number in the backing store is locked as if it were that of an inode here. Other nodes take no
/// part in these locks: of them, the mark of a number that this node finds without one is expected to be absent
/// still.
fn to_lock(dir: Ino, batch: &[&Found], known: &[Option<Ino>]) -> Vec<Ino> {
    let numbers = batch.iter().filter(|found| may_have_names(found));
    let numbers = numbers.map(|found| Ino(found.fingerprint.ino));
    known.iter().flatten().copied().chain(numbers).chain([dir]).collect()
}

/// Whether the object may have other names.
fn may_have_names(found: &Found) -> bool {
    found.attr.kind != FileKind::Directory && found.attr.nlink > 1
}

/// Backing inode numbers are used again after a removal: an object counts as the same if it is of
/// the same type and was born at the same time, or, where births are not known, has the same size and
/// modification time. One that was imported with several names, and was changed here, may have another
/// time: a worker may be writing it. What others have made of it is not its own any more: then no version
/// is known of it.
fn is_same_file(record: &Record, found: &Found) -> bool {
    let number = found.fingerprint.ino;
    let known = record.backing.fingerprint;
    let same_inode =
        known.is_none_or(|print| print.ino != number || print.same_inode(&found.fingerprint));
    let unchanged = known.is_some_and(|print| {
        let same = print.size == found.fingerprint.size && print.mtime == found.fingerprint.mtime;
        same && print.ino == number
    });
    let same_birth = known.is_some_and(|print| {
        print.born != Timestamp::default()
            && print.born == found.fingerprint.born
            && print.ino == number
    });
    let may_be_written = record.hard_link == Some(number)
        && known.is_some_and(|print| print.ino == number)
        && record.differs();
    let proven = same_birth || unchanged || may_be_written;
    record.attr.kind == found.attr.kind && same_inode && proven
}

/// What was written here to a file went with its last known name. If others had given it one more by then,
/// that shows what the backing store has.
fn forget_lost_bytes(record: &mut Record, found: &Found) {
    if !record.is_gone() || !(record.dirty || record.spilled) {
        return;
    }
    record.mark_clean();
    record.spilled = false;
    record.attr.size = found.attr.size;
    record.attr.mtime = found.attr.mtime;
    record.change += 1;
}

fn imported_record(ino: Ino, found: &Found, link: Link) -> Record {
    let attr = &found.attr;
    let new = NewInode::new(attr.kind, attr.perm, attr.uid, attr.gid);
    let mut record = new_record(ino, &new, Timestamp::default());
    record.attr = attr.clone();
    record.target.clone_from(&found.target);
    record.xattrs = XattrState::Unknown;
    record.links.push(link.clone());
    record.backing.links.push(link);
    record.backing.fingerprint = Some(found.fingerprint);
    if record.is_directory() {
        record.attr.nlink = record.attr.nlink.max(2);
        // Its contents are not known yet; this is set when they are.
        record.backing.fingerprint = None;
    }
    record
}

/// The link count after the backing store said it anew: what is pending here comes on top.
fn refreshed_nlink(record: &Record, found: &Found) -> u32 {
    if record.is_directory() {
        return match record.listed {
            true => record.subdirs.saturating_add(2),
            false => found.attr.nlink.max(2),
        };
    }
    let added = record.missing().len();
    let removed = record.stale_names().len();
    (i64::from(found.attr.nlink) + added as i64 - removed as i64)
        .max(record.links.len() as i64)
        .min(u32::MAX.into()) as u32
}
