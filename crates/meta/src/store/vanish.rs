//! Names that others removed from the backing store.

use super::{Draft, MetaStore, Vanished};
use crate::error::Result;
use crate::keys;
use crate::types::{Attr, FileKind, Ino, Link, Record, Timestamp};

/// Entries looked at in one go.
const PAGE: usize = 256;

/// What became of one entry.
enum Fate {
    /// With the attributes that it had.
    Removed(Ino, Attr),
    Kept(Ino),
    /// There was no such entry, or the backing store isn't known to have had it.
    Untouched,
}

/// What is here of the bytes of a file whose name is gone from the backing store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BytesHere {
    /// What its record says.
    AsRecorded,
    /// Some that its record does not speak of yet: if it stays, it counts as dirty from then on.
    Unsettled,
    /// Just those of the version that had the name, whatever the record says.
    AsPublished,
}

/// Whether an inode stood under a name in the backing store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stood {
    There,
    /// It is in the backlog, and its worker looks where it stands.
    Perhaps,
    Never,
}

/// An entry that is gone from the backing store, and which directories go with it.
struct Going<'a> {
    dir: Ino,
    name: &'a [u8],
    ino: Ino,
    with: &'a dyn Fn(Ino) -> bool,
}

/// A directory on the way down.
struct Level {
    /// The name by which it goes after its entries.
    above: Option<(Ino, Box<[u8]>)>,
    ino: Ino,
    cursor: u64,
}

impl Vanished {
    fn note(&mut self, fate: Fate, removed: &mut dyn FnMut(Ino, &Attr)) {
        match fate {
            Fate::Removed(ino, attr) => {
                self.removed += 1;
                removed(ino, &attr);
            }
            Fate::Kept(ino) => self.kept.push(ino),
            Fate::Untouched => {}
        }
    }
}

impl MetaStore {
    /// The backing store no longer has `expected` under a name: removes the entry with all below
    /// that has no pending changes. What has is kept, its vanished names forgotten, and queued, so
    /// that it is written again. So is a directory that may stand elsewhere, for a worker has only
    /// claimed this name, with all below it. `bytes` says of a file what is here of it, and is asked with
    /// the inode locked. `removed` is called for each inode removed, with the attributes that it had:
    /// programs may be in a directory, or have a file open. Nothing happens if the name has come to mean
    /// another inode meanwhile.
    ///
    /// # Errors
    /// If the engine fails; part of the subtree may be removed then, and it may be repeated.
    pub fn vanished(
        &self,
        dir: Ino,
        name: &[u8],
        expected: Ino,
        now: Timestamp,
        bytes: &dyn Fn(Ino) -> BytesHere,
        removed: &mut dyn FnMut(Ino, &Attr),
    ) -> Result<Vanished> {
        let mut result = Vanished::default();
        let Some((ino, kind)) = self.find(dir, name)? else { return Ok(result) };
        if ino != expected {
            return Ok(result);
        }
        let stood = self.stood(ino, dir, name)?;
        if stood == Stood::Never {
            return Ok(result);
        }
        let mut settle = |fate| result.note(fate, removed);
        if stood == Stood::Perhaps {
            settle(Fate::Kept(ino));
            return Ok(result);
        }
        if kind == FileKind::Directory {
            self.vanish_below(ino, now, bytes, &mut settle)?;
        }
        let at = Going { dir, name, ino, with: &|_| false };
        settle(self.retry(|| self.vanish_one(&at, now, bytes))?);
        Ok(result)
    }

    /// The backing store no longer has a directory that it had, or has another in its place, and the
    /// directory is to be made anew: as [`MetaStore::vanished`] for all that is below it.
    ///
    /// # Errors
    /// As [`MetaStore::vanished`].
    pub fn emptied(
        &self,
        dir: Ino,
        now: Timestamp,
        bytes: &dyn Fn(Ino) -> BytesHere,
        removed: &mut dyn FnMut(Ino, &Attr),
    ) -> Result<Vanished> {
        let mut result = Vanished::default();
        let mut settle = |fate| result.note(fate, removed);
        self.vanish_below(dir, now, bytes, &mut settle)?;
        Ok(result)
    }

    /// Depth first; a directory goes after its entries.
    fn vanish_below(
        &self,
        top: Ino,
        now: Timestamp,
        bytes: &dyn Fn(Ino) -> BytesHere,
        settle: &mut dyn FnMut(Fate),
    ) -> Result<()> {
        let mut way = vec![Level { above: None, ino: top, cursor: 0 }];
        while let Some(level) = way.last_mut() {
            let entries = self.entries(level.ino, level.cursor, PAGE)?;
            let parent = level.ino;
            if entries.is_empty() {
                let (above, ino) = (level.above.take(), level.ino);
                way.pop();
                if let Some((dir, name)) = above {
                    let at = Going { dir, name: &name, ino, with: &|_| false };
                    settle(self.retry(|| self.vanish_one(&at, now, bytes))?);
                }
                continue;
            }
            let mut below = Vec::new();
            level.cursor = entries.last().map_or(level.cursor, |entry| entry.cursor);
            let above: Vec<Ino> = way.iter().map(|level| level.ino).collect();
            for entry in entries {
                if entry.kind == FileKind::Directory {
                    if self.stood(entry.ino, parent, &entry.name)? != Stood::There {
                        settle(Fate::Kept(entry.ino));
                        continue;
                    }
                    let above = Some((parent, entry.name));
                    below.push(Level { above, ino: entry.ino, cursor: 0 });
                } else {
                    let (name, ino) = (&entry.name, entry.ino);
                    let at = Going { dir: parent, name, ino, with: &|dir| above.contains(&dir) };
                    settle(self.retry(|| self.vanish_one(&at, now, bytes))?);
                }
            }
            way.append(&mut below);
        }
        Ok(())
    }

    /// Whether the backing store was known to have the inode under this name. A directory has one
    /// name: of several, a worker has claimed all but one, and may not have moved it yet.
    fn stood(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Stood> {
        let Some(record) = self.load(ino)? else { return Ok(Stood::Never) };
        let links = &record.backing.links;
        Ok(match links.has(dir, name) {
            false => Stood::Never,
            true if record.is_directory() && links.len() > 1 => Stood::Perhaps,
            true => Stood::There,
        })
    }

    fn vanish_one(
        &self,
        at: &Going<'_>,
        now: Timestamp,
        bytes: &dyn Fn(Ino) -> BytesHere,
    ) -> Result<Fate> {
        let &Going { dir, name, ino: expected, with } = at;
        let (_locked, found) = self.lock_entry(dir, name)?;
        let Some((ino, kind)) = found.filter(|(ino, _)| *ino == expected) else {
            return Ok(Fate::Untouched);
        };
        let mut draft = Draft::new(self);
        let bytes = match kind {
            FileKind::Regular => bytes(ino),
            _ => BytesHere::AsRecorded,
        };
        let mut names_gone = Vec::new();
        for link in draft.edit(ino)?.stale_names() {
            // What is parked stands in a directory of no record, which never goes.
            let may_go = link.parent.0 > keys::LAST_FIXED.0;
            if may_go && (with(link.parent) || self.load(link.parent)?.is_none()) {
                names_gone.push(link.clone());
            }
        }
        let stays = must_stay(draft.edit(ino)?, &Link::new(dir, name), names_gone.len(), bytes);
        if stays || kind == FileKind::Directory && !draft.expect_empty(ino)? {
            let record = draft.edit(ino)?;
            if record.backing.links.remove(&Link::new(dir, name)) {
                if record.backing.links.is_empty() {
                    // Else it is known again by it where it stands, if it was not moved here yet.
                    record.backing.fingerprint = None;
                }
                record.backing.attrs_differ = true;
                record.backing.xattrs_differ = true;
                record.listed |= kind == FileKind::Directory;
                // A report about the version that is gone must not say that it has the bytes.
                if bytes != BytesHere::AsRecorded || record.dirty || record.spilled {
                    record.mark_dirty();
                }
                record.change += 1;
                draft.enqueue(ino)?;
                draft.commit()?;
            }
            return Ok(Fate::Kept(ino));
        }
        let record = draft.edit(ino)?;
        record.links.remove(&Link::new(dir, name));
        // Of its other names a worker may have claimed some only. It looks for this one as for the old name of a
        // file that was moved, and whether a copy counts if it finds none of them: until then the version stays
        // known, by which a start knows that copy.
        let is_looked_for = kind == FileKind::Regular
            && record.queued.is_some()
            && record.links.iter().any(|link| !with(link.parent));
        if !is_looked_for {
            record.backing.links.remove(&Link::new(dir, name));
        }
        if record.links.is_empty() {
            for link in &names_gone {
                record.backing.links.remove(link);
            }
        }
        record.attr.nlink = record.attr.nlink.saturating_sub(1);
        record.attr.ctime = record.attr.ctime.max(now);
        record.change += 1;
        if record.links.is_empty() {
            record.queued = None;
        }
        let gone = record.links.is_empty();
        let attr = record.attr.clone();
        draft.change_entry(dir, name, (ino, kind), None);
        draft.edit(dir)?.entries_changed_by_others(now);
        if kind == FileKind::Directory {
            draft.add_subdirs(dir, -1)?;
        }
        draft.commit()?;
        Ok(if gone { Fate::Removed(ino, attr) } else { Fate::Untouched })
    }
}

/// Whether something would be lost with a name: bytes that are only here, or, with the last one, names that the
/// backing store doesn't have yet. Changed attributes of a file alone don't count: its bytes are gone.
/// Of its names in the backing store that it has no more here, so many went with their directories.
fn must_stay(record: &Record, name: &Link, names_gone: usize, bytes: BytesHere) -> bool {
    // Claimed and never seen there: nobody can have removed it. (What was imported is not queued.)
    let unconfirmed = record.backing.fingerprint.is_none() && record.queued.is_some();
    // Else it is a move that queued it, and the new name may only be claimed.
    let only_changed = record.backing.attrs_differ || record.backing.xattrs_differ;
    let names_gone = if only_changed { names_gone } else { 0 };
    let is_stale = || record.stale_names().len() > names_gone || !record.missing().is_empty();
    let names_differ = unconfirmed || !record.links.same(&record.backing.links) && is_stale();
    match record.attr.kind {
        FileKind::Regular => {
            // One of several that stood there goes alone: the others see to what is missing.
            let others_see_to_it =
                !unconfirmed && record.links.len() > 1 && record.backing.links.contains(name);
            names_differ && !others_see_to_it
                || match bytes {
                    BytesHere::AsPublished => false,
                    BytesHere::AsRecorded => record.dirty || record.spilled,
                    BytesHere::Unsettled => true,
                }
        }
        _ => unconfirmed || record.differs(),
    }
}
