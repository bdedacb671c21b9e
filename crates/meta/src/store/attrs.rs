//! Attributes and extended attributes.

use std::sync::Arc;

use super::draft::committed_record;
use super::{Accessed, Draft, MetaStore, Queue, Times, XattrFlags};
use crate::codec;
use crate::engine::Key;
use crate::error::{Error, Result};
use crate::keys;
use crate::types::{Ino, Record, Timestamp, XattrState};

/// Extended attributes of an inode: names and values.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

impl MetaStore {
    /// Changes attributes and flags, bumps `change`, sets ctime if `now` is given. Number, type,
    /// names, link count, orphan mark and place in the backlog can't be changed.
    ///
    /// `change` may be called again after a conflict. If the backing store must follow, it marks
    /// what differs ([`crate::Backing::attrs_differ`], `dirty`, ...) and answers [`Queue::Yes`].
    ///
    /// # Errors
    /// `Stale` if there is no such inode.
    pub fn update(
        &self,
        ino: Ino,
        now: Option<Timestamp>,
        mut change: impl FnMut(&mut Record) -> Queue,
    ) -> Result<Arc<Record>> {
        self.edit_one(ino, |draft, before| {
            let record = draft.edit(ino)?;
            let queue = change(record);
            restore_identity(record, before);
            record.change = before.change + 1;
            if let Some(now) = now {
                record.attr.ctime = now;
            }
            if queue == Queue::Yes && (!record.links.is_empty() || ino == Ino::ROOT) {
                draft.enqueue(ino)?;
            }
            Ok(())
        })
    }

    /// Sets times only: neither a logical change nor queued.
    ///
    /// # Errors
    /// `Stale` if there is no such inode.
    pub fn touch_times(&self, ino: Ino, times: Times) -> Result<Arc<Record>> {
        self.edit_one(ino, |draft, _| {
            let attr = &mut draft.edit(ino)?.attr;
            attr.atime = times.atime.unwrap_or(attr.atime);
            attr.mtime = times.mtime.unwrap_or(attr.mtime);
            attr.ctime = times.ctime.unwrap_or(attr.ctime);
            Ok(())
        })
    }

    /// Moves access times in one transaction. Inodes that are gone, or whose access time was set
    /// otherwise since it was `known`, are left out. As [`MetaStore::touch_times`] else.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn touch_accessed(&self, accessed: &[Accessed]) -> Result<()> {
        let inos: Vec<Ino> = accessed.iter().map(|one| one.ino).collect();
        self.retry(|| {
            let _locked = self.lock(&inos);
            let mut draft = Draft::new(self);
            for Accessed { ino, known, seen } in accessed {
                if self.load_locked(*ino)?.is_some_and(|record| record.attr.atime == *known) {
                    draft.edit(*ino)?.attr.atime = *seen;
                }
            }
            draft.commit().map(drop)
        })
    }

    /// Marks as to be kept on the tier, or not; not queued.
    ///
    /// # Errors
    /// `Stale` if there is no such inode.
    pub fn set_pinned(&self, ino: Ino, pinned: bool) -> Result<Arc<Record>> {
        self.edit_one(ino, |draft, _| {
            draft.edit(ino)?.pinned = pinned;
            Ok(())
        })
    }

    /// Locks one inode, edits and commits.
    pub(super) fn edit_one(
        &self,
        ino: Ino,
        mut edit: impl FnMut(&mut Draft<'_>, &Record) -> Result<()>,
    ) -> Result<Arc<Record>> {
        self.retry(|| {
            let _locked = self.lock(&[ino]);
            let mut sure = self.member().is_none();
            loop {
                let before = self.load_to_change(ino)?.ok_or(Error::Stale(ino))?;
                let mut draft = Draft::new(self);
                draft.edit(ino)?;
                edit(&mut draft, &before)?;
                if sure || !draft.changes_nothing() {
                    return committed_record(&draft.commit()?, ino);
                }
                // No transaction finds out that this was decided by what was believed.
                self.reload_locked(ino)?;
                sure = true;
            }
        })
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// As all calls for extended attributes: `Stale`; `XattrsUnknown` while they are not imported.
    pub fn xattr_get(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        match known(&*self.get(ino)?)? {
            XattrState::Some => self.read_xattr(ino, name),
            _ => Ok(None),
        }
    }

    /// Names of the extended attributes.
    ///
    /// # Errors
    /// As [`MetaStore::xattr_get`].
    pub fn xattr_list(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(self.xattr_all(ino)?.into_iter().map(|(name, _)| name).collect())
    }

    /// All extended attributes, sorted by name.
    ///
    /// # Errors
    /// As [`MetaStore::xattr_get`].
    pub fn xattr_all(&self, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        match known(&*self.get(ino)?)? {
            XattrState::Some => {}
            _ => return Ok(Vec::new()),
        }
        let page = self.scan(&keys::xattr(ino, b""), None, usize::MAX)?;
        let named = page.items.into_iter().map(|(key, value)| {
            let name = key.get(9..).unwrap_or_default().to_vec();
            Ok((name, codec::decode_bytes("an extended attribute", &value)?))
        });
        named.collect()
    }

    /// Sets an extended attribute, queued.
    ///
    /// # Errors
    /// `Exists`, `NoXattr` as the flags say; as [`MetaStore::xattr_get`].
    pub fn xattr_set(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
        now: Timestamp,
    ) -> Result<Arc<Record>> {
        // What it answers may depend on it.
        self.get(ino)?;
        self.edit_one(ino, |draft, before| {
            let state = known(before)?;
            if flags != XattrFlags::Either {
                let exists = state == XattrState::Some && self.read_xattr(ino, name)?.is_some();
                match flags {
                    XattrFlags::Create if exists => return Err(Error::Exists),
                    XattrFlags::Replace if !exists => return Err(Error::NoXattr),
                    _ => {}
                }
            }
            draft.put(keys::xattr(ino, name), codec::encode_bytes(value));
            draft.edit(ino)?.xattrs = XattrState::Some;
            xattrs_changed(draft, ino, now)
        })
    }

    /// Removes an extended attribute, queued.
    ///
    /// # Errors
    /// `NoXattr` if there is none; as [`MetaStore::xattr_get`].
    pub fn xattr_remove(&self, ino: Ino, name: &[u8], now: Timestamp) -> Result<Arc<Record>> {
        self.get(ino)?;
        self.edit_one(ino, |draft, before| {
            if known(before)? == XattrState::None || self.read_xattr(ino, name)?.is_none() {
                return Err(Error::NoXattr);
            }
            draft.delete(keys::xattr(ino, name));
            if self.scan(&keys::xattr(ino, b""), None, 2)?.items.len() == 1 {
                draft.edit(ino)?.xattrs = XattrState::None;
            }
            xattrs_changed(draft, ino, now)
        })
    }

    /// Import: what the backing store has; not queued. Does nothing if they are known already.
    ///
    /// # Errors
    /// `Stale` if there is no such inode.
    pub fn xattr_replace_all(
        &self,
        ino: Ino,
        xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<Arc<Record>> {
        self.edit_one(ino, |draft, before| {
            if before.xattrs != XattrState::Unknown {
                return Ok(());
            }
            for (name, value) in xattrs {
                draft.put(keys::xattr(ino, name), codec::encode_bytes(value));
            }
            draft.edit(ino)?.xattrs =
                if xattrs.is_empty() { XattrState::None } else { XattrState::Some };
            Ok(())
        })
    }

    /// As [`MetaStore::xattr_replace_all`] for several inodes at once, in one transaction. What is gone
    /// or known by now is left as it is.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn xattrs_import(&self, found: &[(Ino, Xattrs)]) -> Result<()> {
        let inos: Vec<Ino> = found.iter().map(|(ino, _)| *ino).collect();
        self.retry(|| {
            let _locked = self.lock(&inos);
            let mut draft = Draft::new(self);
            for (ino, xattrs) in found {
                let before = self.load_to_change(*ino)?;
                if before.is_none_or(|before| before.xattrs != XattrState::Unknown) {
                    continue;
                }
                for (name, value) in xattrs {
                    draft.put(keys::xattr(*ino, name), codec::encode_bytes(value));
                }
                draft.edit(*ino)?.xattrs =
                    if xattrs.is_empty() { XattrState::None } else { XattrState::Some };
            }
            if !draft.changes_nothing() {
                draft.commit()?;
            }
            Ok(())
        })
    }

    fn read_xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let value = self.read_one(keys::xattr(ino, name))?;
        value.map(|value| codec::decode_bytes("an extended attribute", &value)).transpose()
    }

    /// Forgets imported extended attributes: they are read again when needed.
    pub(super) fn forget_xattrs(&self, draft: &mut Draft<'_>, ino: Ino) -> Result<()> {
        if draft.edit(ino)?.xattrs == XattrState::Some {
            let prefix = keys::xattr(ino, b"");
            for (bytes, _) in self.scan(&prefix, None, usize::MAX)?.items {
                draft.delete(Key::new(prefix.partition(), &bytes));
            }
        }
        draft.edit(ino)?.xattrs = XattrState::Unknown;
        Ok(())
    }
}

fn known(record: &Record) -> Result<XattrState> {
    match record.xattrs {
        XattrState::Unknown => Err(Error::XattrsUnknown(record.ino)),
        state => Ok(state),
    }
}

fn xattrs_changed(draft: &mut Draft<'_>, ino: Ino, now: Timestamp) -> Result<()> {
    let record = draft.edit(ino)?;
    record.backing.xattrs_differ = true;
    record.change += 1;
    record.attr.ctime = now;
    if !record.links.is_empty() || ino == Ino::ROOT {
        draft.enqueue(ino)?;
    }
    Ok(())
}

/// Puts back what a caller's closure must not change.
pub(super) fn restore_identity(record: &mut Record, before: &Record) {
    record.ino = before.ino;
    record.attr.kind = before.attr.kind;
    record.attr.nlink = before.attr.nlink;
    if record.links != before.links {
        record.links.clone_from(&before.links);
    }
    record.xattrs = before.xattrs;
    record.orphan = before.orphan;
    record.orphan_of = before.orphan_of;
    record.owner = before.owner;
    record.copied = before.copied;
    record.subdirs = before.subdirs;
    record.change = before.change;
    record.queued = before.queued;
    record.hard_link = before.hard_link;
    record.apart = before.apart;
    record.spread = before.spread;
    record.revision = before.revision;
}
