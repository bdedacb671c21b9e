//! Attributes and extended attributes.

use std::sync::Arc;

use parking_lot::Mutex;

use super::draft::committed_record;
use super::{Accessed, Draft, MetaStore, Queue, Times, XattrFlags};
use crate::codec;
use crate::engine::Key;
use crate::error::{Error, Result};
use crate::keys;
use crate::types::{Ino, Record, Timestamp, XattrState};

/// Extended attributes of an inode: names and values.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// How much room extended attributes take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XattrSizes {
    /// Bytes of their names in a list, each with a zero byte.
    pub listed: usize,
    /// Bytes of names and values.
    pub kept: usize,
}

impl XattrSizes {
    fn of(name: &[u8], value: &[u8]) -> Self {
        Self { listed: name.len() + 1, kept: name.len() + value.len() }
    }

    fn with(self, other: Self) -> Self {
        Self { listed: self.listed + other.listed, kept: self.kept + other.kept }
    }

    fn without(self, other: Self) -> Self {
        Self {
            listed: self.listed.saturating_sub(other.listed),
            kept: self.kept.saturating_sub(other.kept),
        }
    }
}

/// The room that the extended attributes of some inodes take, so that one more need not look at all
/// others. Each is of one state of its record.
#[derive(Default)]
pub(super) struct KnownSizes(Mutex<Sizes>);

#[derive(Default)]
struct Sizes {
    known: Vec<(Ino, u64, XattrSizes)>,
    /// How often some were forgotten.
    forgotten: u64,
}

impl KnownSizes {
    /// Programs set the attributes of one file after the other.
    const MAX: usize = 64;

    fn get(&self, ino: Ino, change: u64) -> Option<XattrSizes> {
        let sizes = self.0.lock();
        let found = sizes.known.iter().find(|(of, at, _)| (*of, *at) == (ino, change));
        found.map(|(_, _, sizes)| *sizes)
    }

    fn forgotten(&self) -> u64 {
        self.0.lock().forgotten
    }

    /// Unless any were forgotten since: attributes that are read anew leave the record as it is.
    fn set(&self, ino: Ino, change: u64, found: XattrSizes, forgotten: u64) {
        let mut sizes = self.0.lock();
        if sizes.forgotten != forgotten {
            return;
        }
        sizes.known.retain(|(of, ..)| *of != ino);
        if sizes.known.len() >= Self::MAX {
            sizes.known.remove(0);
        }
        sizes.known.push((ino, change, found));
    }

    fn forget(&self, ino: Ino) {
        let mut sizes = self.0.lock();
        sizes.known.retain(|(of, ..)| *of != ino);
        sizes.forgotten += 1;
    }
}

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

    /// The room that all extended attributes take but the one of this name.
    ///
    /// # Errors
    /// As [`MetaStore::xattr_get`].
    pub fn xattr_others(&self, ino: Ino, name: &[u8]) -> Result<XattrSizes> {
        let _locked = self.lock(&[ino]);
        let record = self.load_locked(ino)?.ok_or(Error::Stale(ino))?;
        if known(&record)? != XattrState::Some {
            return Ok(XattrSizes::default());
        }
        // What others change, no state of the record that is known here need tell.
        let known = self.xattr_sizes.get(ino, record.change).filter(|_| self.exclusive);
        let all = match known {
            Some(sizes) => sizes,
            None => {
                let forgotten = self.xattr_sizes.forgotten();
                let sizes = self.scan_xattr_sizes(ino)?;
                self.xattr_sizes.set(ino, record.change, sizes, forgotten);
                sizes
            }
        };
        let own = self.read_xattr(ino, name)?;
        Ok(own.map_or(all, |value| all.without(XattrSizes::of(name, &value))))
    }

    fn scan_xattr_sizes(&self, ino: Ino) -> Result<XattrSizes> {
        let mut all = XattrSizes::default();
        for (key, value) in self.scan(&keys::xattr(ino, b""), None, usize::MAX)?.items {
            let value = codec::decode_bytes("an extended attribute", &value)?;
            all = all.with(XattrSizes::of(key.get(9..).unwrap_or_default(), &value));
        }
        Ok(all)
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
        let mut sizes = None;
        let record = self.edit_one(ino, |draft, before| {
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
            sizes = self.sizes_after(ino, before, name, Some(value))?;
            xattrs_changed(draft, ino, now)
        })?;
        self.sizes_follow(&record, sizes);
        Ok(record)
    }

    /// The room that extended attributes take after a change of one, if it is known, and how often some
    /// were forgotten until now.
    fn sizes_after(
        &self,
        ino: Ino,
        before: &Record,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<Option<(XattrSizes, u64)>> {
        let forgotten = self.xattr_sizes.forgotten();
        let all = match before.xattrs {
            XattrState::None => Some(XattrSizes::default()),
            _ => self.xattr_sizes.get(ino, before.change),
        };
        let Some(mut all) = all.filter(|_| self.exclusive) else { return Ok(None) };
        if before.xattrs == XattrState::Some
            && let Some(old) = self.read_xattr(ino, name)?
        {
            all = all.without(XattrSizes::of(name, &old));
        }
        all = value.map_or(all, |value| all.with(XattrSizes::of(name, value)));
        Ok(Some((all, forgotten)))
    }

    /// After that change.
    fn sizes_follow(&self, record: &Record, sizes: Option<(XattrSizes, u64)>) {
        if let Some((sizes, forgotten)) = sizes {
            self.xattr_sizes.set(record.ino, record.change, sizes, forgotten);
        }
    }

    /// Removes an extended attribute, queued.
    ///
    /// # Errors
    /// `NoXattr` if there is none; as [`MetaStore::xattr_get`].
    pub fn xattr_remove(&self, ino: Ino, name: &[u8], now: Timestamp) -> Result<Arc<Record>> {
        self.get(ino)?;
        let mut sizes = None;
        let record = self.edit_one(ino, |draft, before| {
            if known(before)? == XattrState::None || self.read_xattr(ino, name)?.is_none() {
                return Err(Error::NoXattr);
            }
            draft.delete(keys::xattr(ino, name));
            if self.scan(&keys::xattr(ino, b""), None, 2)?.items.len() == 1 {
                draft.edit(ino)?.xattrs = XattrState::None;
            }
            sizes = self.sizes_after(ino, before, name, None)?;
            xattrs_changed(draft, ino, now)
        })?;
        self.sizes_follow(&record, sizes);
        Ok(record)
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
            self.xattr_sizes.forget(ino);
            for (name, value) in xattrs {
                draft.put(keys::xattr(ino, name), codec::encode_bytes(value));
            }
            draft.edit(ino)?.xattrs =
                if xattrs.is_empty() { XattrState::None } else { XattrState::Some };
            Ok(())
        })
    }

    /// As [`MetaStore::xattr_replace_all`] for several inodes at once, in one transaction: what the backing
    /// store had for them when their records were so. What is gone, known or another version by now is left
    /// as it is.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn xattrs_import(&self, found: &[(Arc<Record>, Xattrs)]) -> Result<()> {
        let inos: Vec<Ino> = found.iter().map(|(record, _)| record.ino).collect();
        self.retry(|| {
            let _locked = self.lock(&inos);
            let mut draft = Draft::new(self);
            for (record, xattrs) in found {
                let ino = record.ino;
                let Some(before) = self.load_to_change(ino)? else { continue };
                if before.xattrs != XattrState::Unknown || !is_same_version(&before, record) {
                    continue;
                }
                self.xattr_sizes.forget(ino);
                for (name, value) in xattrs {
                    draft.put(keys::xattr(ino, name), codec::encode_bytes(value));
                }
                draft.edit(ino)?.xattrs =
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
        self.xattr_sizes.forget(ino);
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

/// Whether two records of an inode are of the same object of the backing store, which nobody there has
/// changed between them.
fn is_same_version(one: &Record, two: &Record) -> bool {
    let known = one.backing.fingerprint.is_some();
    one.change == two.change || known && one.backing.fingerprint == two.backing.fingerprint
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
