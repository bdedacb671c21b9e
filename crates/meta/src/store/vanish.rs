//! Names that others removed from the backing store.

use super::{Draft, MetaStore, Vanished};
use crate::error::Result;
use crate::types::{FileKind, Ino, Link, Record, Timestamp};

/// Entries looked at in one go.
const PAGE: usize = 256;

/// What became of one entry.
enum Fate {
    Removed(Ino),
    Kept(Ino),
    /// There was no such entry, or the backing store isn't known to have had it.
    Untouched,
}

/// A directory on the way down.
struct Level {
    dir: Ino,
    name: Box<[u8]>,
    ino: Ino,
    cursor: u64,
}

impl MetaStore {
    /// The backing store no longer has `expected` under a name: removes the entry with all below
    /// that has no pending changes. What has is kept, its vanished names forgotten, and queued, so
    /// that it is written again. `removed` is called for each inode removed. Nothing happens if the
    /// name has come to mean another inode meanwhile.
    ///
    /// # Errors
    /// If the engine fails; part of the subtree may be removed then, and it may be repeated.
    pub fn vanished(
        &self,
        dir: Ino,
        name: &[u8],
        expected: Ino,
        now: Timestamp,
        removed: &mut dyn FnMut(Ino),
    ) -> Result<Vanished> {
        let mut result = Vanished::default();
        let Some((ino, kind)) = self.find(dir, name)? else { return Ok(result) };
        if ino != expected || !self.backing_has(ino, dir, name)? {
            return Ok(result);
        }
        let mut settle = |fate| match fate {
            Fate::Removed(ino) => {
                result.removed += 1;
                removed(ino);
            }
            Fate::Kept(ino) => result.kept.push(ino),
            Fate::Untouched => {}
        };
        if kind != FileKind::Directory {
            settle(self.retry(|| self.vanish_one(dir, name, ino, now))?);
            return Ok(result);
        }
        // Depth first; a directory goes after its entries.
        let mut way = vec![Level { dir, name: name.into(), ino, cursor: 0 }];
        while let Some(level) = way.last_mut() {
            let entries = self.entries(level.ino, level.cursor, PAGE)?;
            let parent = level.ino;
            if entries.is_empty() {
                let (dir, name, ino) = (level.dir, std::mem::take(&mut level.name), level.ino);
                way.pop();
                settle(self.retry(|| self.vanish_one(dir, &name, ino, now))?);
                continue;
            }
            let mut below = Vec::new();
            for entry in entries {
                level.cursor = entry.cursor;
                if entry.kind == FileKind::Directory {
                    if !self.backing_has(entry.ino, parent, &entry.name)? {
                        settle(Fate::Kept(entry.ino));
                        continue;
                    }
                    below.push(Level { dir: parent, name: entry.name, ino: entry.ino, cursor: 0 });
                } else {
                    let (name, ino) = (&entry.name, entry.ino);
                    settle(self.retry(|| self.vanish_one(parent, name, ino, now))?);
                }
            }
            way.append(&mut below);
        }
        Ok(result)
    }

    /// Whether the backing store was known to have the inode under this name.
    fn backing_has(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<bool> {
        let record = self.load(ino)?;
        Ok(record.is_some_and(|record| record.backing.links.has(dir, name)))
    }

    fn vanish_one(&self, dir: Ino, name: &[u8], expected: Ino, now: Timestamp) -> Result<Fate> {
        let (_locked, found) = self.lock_entry(dir, name)?;
        let Some((ino, kind)) = found.filter(|(ino, _)| *ino == expected) else {
            return Ok(Fate::Untouched);
        };
        let mut draft = Draft::new(self);
        let stays = must_stay(draft.edit(ino)?);
        if stays || kind == FileKind::Directory && !draft.expect_empty(ino)? {
            let record = draft.edit(ino)?;
            if record.backing.links.remove(&Link::new(dir, name)) {
                record.backing.fingerprint = None;
                record.backing.attrs_differ = true;
                record.backing.xattrs_differ = true;
                record.listed |= kind == FileKind::Directory;
                record.change += 1;
                draft.enqueue(ino)?;
                draft.commit()?;
            }
            return Ok(Fate::Kept(ino));
        }
        let record = draft.edit(ino)?;
        record.links.remove(&Link::new(dir, name));
        record.backing.links.remove(&Link::new(dir, name));
        record.attr.nlink = record.attr.nlink.saturating_sub(1);
        record.attr.ctime = now;
        record.change += 1;
        if record.links.is_empty() {
            record.queued = None;
        }
        let gone = record.links.is_empty();
        draft.change_entry(dir, name, (ino, kind), None);
        draft.edit(dir)?.entries_changed(now);
        if kind == FileKind::Directory {
            draft.add_subdirs(dir, -1)?;
        }
        draft.commit()?;
        Ok(if gone { Fate::Removed(ino) } else { Fate::Untouched })
    }
}

/// Whether something would be lost with the record: bytes that are only here, or names the backing
/// store doesn't have yet. Changed attributes of a file alone don't count: its bytes are gone.
fn must_stay(record: &Record) -> bool {
    // Claimed and never seen there: nobody can have removed it. (What was imported is not queued.)
    let unconfirmed = record.backing.fingerprint.is_none() && record.queued.is_some();
    let names_differ = unconfirmed || !record.links.same(&record.backing.links);
    match record.attr.kind {
        FileKind::File => record.dirty || record.spilled || names_differ,
        _ => unconfirmed || record.differs(),
    }
}
