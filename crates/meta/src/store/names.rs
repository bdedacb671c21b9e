//! Names: create, link, unlink, rmdir.

use std::sync::Arc;

use super::draft::committed_record;
use super::{Draft, MetaStore, NewInode, Unlinked, check_name, new_record};
use crate::codec;
use crate::error::{Error, Result};
use crate::keys;
use crate::types::{FileKind, Ino, Link, Record, Spread, Timestamp, XattrState};

impl MetaStore {
    /// Creates an inode under a name, queued. A directory is `listed` from the start.
    ///
    /// # Errors
    /// `Exists`; `NotFound` if the directory was removed; `NotDirectory`, `NameTooLong`,
    /// `Invalid` name.
    pub fn create(
        &self,
        dir: Ino,
        name: &[u8],
        new: NewInode,
        now: Timestamp,
    ) -> Result<Arc<Record>> {
        self.create_announced(dir, name, new, now, &mut |_| {})
    }

    /// As [`MetaStore::create`]; `announce` hears the number before anybody can find the inode, so
    /// that whoever makes it can be counted as its user before others remove it. It may hear
    /// several: the last one counts.
    ///
    /// # Errors
    /// As [`MetaStore::create`].
    pub fn create_announced(
        &self,
        dir: Ino,
        name: &[u8],
        new: NewInode,
        now: Timestamp,
        announce: &mut dyn FnMut(Ino),
    ) -> Result<Arc<Record>> {
        check_name(name)?;
        let mut conflicts = false;
        let created = self.retry(|| {
            let _locked = self.lock(&[dir]);
            // Elsewhere the commit finds out: the first attempt spares a round trip.
            let taken = if self.exclusive || std::mem::replace(&mut conflicts, true) {
                self.find_locked(dir, name)?
            } else {
                self.cached_entry(dir, name).flatten()
            };
            if taken.is_some() {
                return Err(Error::Exists);
            }
            let mut draft = Draft::new(self);
            let is_directory = new.kind == FileKind::Directory;
            draft.edit_directory(dir)?.entries_changed(now);
            if is_directory {
                draft.add_subdirs(dir, 1)?;
            }
            let ino = draft.new_ino(dir, name, new.kind)?;
            announce(ino);
            let mut record = new_record(ino, &new, now);
            record.links.push(Link::new(dir, name));
            record.attr.nlink = if is_directory { 2 } else { 1 };
            record.listed = is_directory;
            record.owner = self.member().filter(|_| new.owned);
            record.backing.xattrs_differ = !new.xattrs.is_empty();
            for (name, value) in &new.xattrs {
                draft.put(keys::xattr(ino, name), codec::encode_bytes(value));
            }
            draft.add(record);
            draft.enqueue(ino)?;
            draft.add_entry(dir, name, ino, new.kind);
            committed_record(&draft.commit()?, ino)
        })?;
        self.has_grown(dir);
        Ok(created)
    }

    /// Creates an inode without a name (`O_TMPFILE`): an orphan with nlink 0, not queued.
    ///
    /// # Errors
    /// `NotFound` if the directory was removed; `NotDirectory`.
    pub fn create_unlinked(&self, dir: Ino, new: NewInode, now: Timestamp) -> Result<Arc<Record>> {
        let parent = self.get(dir)?;
        if !parent.is_directory() {
            return Err(Error::NotDirectory);
        }
        if parent.links.is_empty() && dir != Ino::ROOT {
            return Err(Error::NotFound);
        }
        let partition = self.layout.entry_partition(dir, Spread::Whole, 0);
        let ino = self.new_ino(partition, new.kind)?;
        let _locked = self.lock(&[ino]);
        let mut draft = Draft::new(self);
        let mut record = new_record(ino, &new, now);
        record.orphan = true;
        record.owner = self.member().filter(|_| new.owned);
        record.orphan_of = self.member().map_or(0, |me| me.node);
        record.backing.xattrs_differ = record.xattrs == XattrState::Some;
        for (name, value) in &new.xattrs {
            draft.put(keys::xattr(ino, name), codec::encode_bytes(value));
        }
        draft.add(record);
        committed_record(&draft.commit()?, ino)
    }

    /// Gives an inode (also an orphan) another name.
    ///
    /// # Errors
    /// `Exists`; `NotPermitted` for a directory; `Stale` for a removed inode; as
    /// [`MetaStore::create`] for the directory and the name.
    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8], now: Timestamp) -> Result<Arc<Record>> {
        check_name(name)?;
        let linked = self.retry(|| {
            let _locked = self.lock(&[dir, ino]);
            let mut draft = Draft::new(self);
            draft.edit_directory(dir)?;
            if self.find_locked(dir, name)?.is_some() {
                return Err(Error::Exists);
            }
            let record = draft.edit(ino)?;
            if record.is_directory() {
                return Err(Error::NotPermitted("hard link to a directory"));
            }
            if record.links.is_empty() && !record.orphan {
                return Err(Error::Stale(ino));
            }
            record.attr.nlink = record.attr.nlink.checked_add(1).ok_or(Error::TooManyLinks)?;
            record.attr.ctime = now;
            record.links.push(Link::new(dir, name));
            record.orphan = false;
            record.change += 1;
            let kind = record.attr.kind;
            draft.settle(ino)?;
            draft.edit_directory(dir)?.entries_changed(now);
            draft.add_entry(dir, name, ino, kind);
            committed_record(&draft.commit()?, ino)
        })?;
        self.has_grown(dir);
        Ok(linked)
    }

    /// Removes a name of anything but a directory. If it was the last one known and the inode is
    /// `in_use`, the record stays as an orphan until [`MetaStore::release_orphan`].
    ///
    /// # Errors
    /// `NotFound`; `IsDirectory`; `NotDirectory`.
    pub fn unlink(&self, dir: Ino, name: &[u8], now: Timestamp, in_use: bool) -> Result<Unlinked> {
        self.unlink_asking(dir, name, now, &|_| in_use)
    }

    /// As [`MetaStore::unlink`]; `in_use` is asked about the inode that the name turns out to mean,
    /// with its lock held: who counts as a user and then gets the record by
    /// [`MetaStore::get_settled`] is either seen by it or finds the inode removed.
    ///
    /// # Errors
    /// As [`MetaStore::unlink`].
    pub fn unlink_asking(
        &self,
        dir: Ino,
        name: &[u8],
        now: Timestamp,
        in_use: &dyn Fn(Ino) -> bool,
    ) -> Result<Unlinked> {
        self.remove(dir, name, now, in_use, |_, _, kind| match kind {
            FileKind::Directory => Err(Error::IsDirectory),
            _ => Ok(()),
        })
    }

    /// Removes an empty directory. Only logical entries are looked at: the caller sees to it that
    /// the directory is listed.
    ///
    /// # Errors
    /// `NotFound`; `NotDirectory`; `NotEmpty`.
    pub fn rmdir(&self, dir: Ino, name: &[u8], now: Timestamp, in_use: bool) -> Result<Unlinked> {
        self.remove(dir, name, now, &|_| in_use, |draft, ino, kind| {
            if kind != FileKind::Directory {
                return Err(Error::NotDirectory);
            }
            if draft.expect_empty(ino)? { Ok(()) } else { Err(Error::NotEmpty) }
        })
    }

    fn remove(
        &self,
        dir: Ino,
        name: &[u8],
        now: Timestamp,
        in_use: &dyn Fn(Ino) -> bool,
        may: impl Fn(&mut Draft<'_>, Ino, FileKind) -> Result<()>,
    ) -> Result<Unlinked> {
        // What others may have changed is believed until it is a reason to refuse.
        let mut believe = self.is_gathered();
        self.retry(|| {
            let (_locked, found) = match believe {
                true => self.lock_believed(dir, name)?,
                false => self.lock_entry(dir, name)?,
            };
            let mut draft = Draft::new(self);
            let allowed = found.ok_or(Error::NotFound);
            let allowed = allowed.and_then(|(ino, kind)| may(&mut draft, ino, kind));
            if allowed.is_err() && std::mem::replace(&mut believe, false) {
                return Err(Error::Conflict(1));
            }
            allowed?;
            let (ino, kind) = found.ok_or(Error::NotFound)?;
            draft.edit(dir)?.entries_changed(now);
            if kind == FileKind::Directory {
                draft.add_subdirs(dir, -1)?;
            }
            let record = match draft.edit(ino) {
                Err(Error::Stale(_)) => {
                    // Others have removed it, and its name with it.
                    self.forget_entry(dir, name);
                    believe = false;
                    return Err(Error::Conflict(1));
                }
                record => record?,
            };
            detach(record, dir, name, now, in_use(ino));
            self.note_holder(&mut draft, ino)?;
            draft.settle(ino)?;
            draft.change_entry(dir, name, (ino, kind), None);
            let record = committed_record(&draft.commit()?, ino)?;
            Ok(Unlinked { gone: record.is_gone(), record })
        })
    }

    /// As [`MetaStore::lock_entry`], by what is cached: a transaction must compare it.
    #[allow(clippy::type_complexity)]
    fn lock_believed(
        &self,
        dir: Ino,
        name: &[u8],
    ) -> Result<(super::Guards<'_>, Option<(Ino, FileKind)>)> {
        let found = self.find_to_change(dir, name)?;
        let locked = match found {
            Some((ino, _)) => self.lock(&[dir, ino]),
            None => self.lock(&[dir]),
        };
        Ok((locked, found))
    }

    /// Locks a directory and the inode behind one of its names.
    #[allow(clippy::type_complexity)]
    pub(super) fn lock_entry(
        &self,
        dir: Ino,
        name: &[u8],
    ) -> Result<(super::Guards<'_>, Option<(Ino, FileKind)>)> {
        let parent = self.load(dir)?.ok_or(Error::Stale(dir))?;
        if !parent.is_directory() {
            return Err(Error::NotDirectory);
        }
        let expected = self.find(dir, name)?;
        let locked = match expected {
            Some((ino, _)) => self.lock(&[dir, ino]),
            None => self.lock(&[dir]),
        };
        if self.find_locked(dir, name)? != expected {
            return Err(Error::Conflict(1));
        }
        Ok((locked, expected))
    }
}

/// Takes a name from a record.
pub(super) fn detach(record: &mut Record, dir: Ino, name: &[u8], now: Timestamp, in_use: bool) {
    record.links.remove(&Link::new(dir, name));
    record.attr.nlink = match record.attr.kind {
        FileKind::Directory => 0,
        _ => record.attr.nlink.saturating_sub(1).max(record.links.len() as u32),
    };
    record.attr.ctime = now;
    record.change += 1;
    record.orphan = record.links.is_empty() && in_use;
}
