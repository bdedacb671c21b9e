//! Reading and setting attributes.

use std::sync::Arc;

use forebay_meta::{
    Attr, Error as MetaError, Incarnation, Queue, Record, Teller, Times, XattrState,
};
use forebay_types::{FileKind, Ino, Timestamp};
use rustix::io::Errno;

use crate::clock;
use crate::config::Durability;
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::failpoints::fail_at;
use crate::node::Node;

use super::acl::{self, Acl};
use super::groups::{Membership, membership};
use super::set_ids::without_set_ids;
use crate::stat::Stat;

/// A new value for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The present.
    Now,
    /// This one.
    At(Timestamp),
}

/// Attributes to set; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (12).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
    /// The set-id bits are to be cleared, as the caller is not privileged.
    pub kill_set_ids: bool,
}

impl SetAttr {
    fn changes_owner(&self) -> bool {
        self.uid.is_some() || self.gid.is_some()
    }

    /// Whether something beside the length is to be set.
    pub(crate) fn beside_size(&self) -> bool {
        *self != SetAttr { size: self.size, ..SetAttr::default() }
    }
}

/// What is to be set of a file, but for its length.
pub(crate) struct BesideSize<'a> {
    /// The attributes.
    pub set: &'a SetAttr,
    /// The access list that it has after a change of its mode, if it has one.
    pub list: Option<Vec<u8>>,
    /// The node that owns it, if another one does: it is told of new times.
    pub owner: Option<Incarnation>,
}

impl Node {
    /// The attributes of an inode, also of one that was removed a short while ago.
    ///
    /// # Errors
    /// `ESTALE`; what the backing store says.
    pub fn getattr(&self, context: &Context, ino: Ino) -> Result<Stat> {
        match self.fresh(context, ino) {
            Err(NodeError::Meta(MetaError::Stale(_)) | NodeError::Posix(Errno::STALE)) => {
                let attr = self.names.removed_inodes.recall(ino);
                let open = || self.residency.files.peek(ino)?.gone.get().cloned();
                let attr = attr.or_else(open).ok_or(MetaError::Stale(ino))?;
                let blocks = attr.size.div_ceil(512);
                Ok(Stat { ino, attr, blocks, open: false, alias: 0, is_fleeting: false })
            }
            record => {
                let record = self.meta.with_times(record?)?;
                match self.in_cluster(|cluster| cluster.attr_forwarded(context, &record))? {
                    Some(attr) => {
                        let blocks = attr.size.div_ceil(512);
                        Ok(Stat { attr, blocks, ..self.stat(&record) })
                    }
                    None => Ok(self.stat(&record)),
                }
            }
        }
    }

    /// The record of an inode: in a cluster as it is now, whatever is cached.
    pub(crate) fn record_now(&self, ino: Ino) -> Result<Arc<Record>> {
        Ok(match self.residency.peers.changes_namespace_alone() {
            true => self.meta.get(ino)?,
            false => self.meta.get_now(ino)?,
        })
    }

    /// The record of an inode, compared with the backing store if it is time.
    pub(crate) fn fresh(&self, context: &Context, ino: Ino) -> Result<Arc<Record>> {
        let record = self.record_now(ino)?;
        if record.links.is_empty() && ino != Ino::ROOT {
            return Ok(record);
        }
        self.writeback.revalidate(context, record)
    }

    /// Sets everything but the length. Whoever calls has all that may have to be waited for.
    pub(crate) fn set_beside_size(
        &self,
        context: &Context,
        record: &Record,
        what: &BesideSize<'_>,
    ) -> Result<Arc<Record>> {
        let (set, ino) = (what.set, record.ino);
        self.given_up.check(context)?;
        let now = clock::wall_time();
        if let Some(list) = &what.list {
            let flags = forebay_meta::XattrFlags::Either;
            self.meta.xattr_set(ino, acl::ACCESS, list, flags, now)?;
        }
        if set.changes_owner() && !record.is_directory() {
            self.drop_capabilities(record, now)?;
        }
        if set.atime.is_some() {
            self.residency.accesses.forget(ino);
        }
        let (record, times) = self.apply_attributes(context, record, set, now)?;
        self.attributes_changed(&record);
        self.remember_if_removed(&record);
        if let Some(owner) = what.owner {
            self.in_cluster(|cluster| cluster.times_forwarded(owner, ino, times))?;
        }
        self.queue(&record);
        Ok(record)
    }

    /// Sets attributes in the record, and times on the object as well: the record as it is then, and
    /// the times that were set.
    fn apply_attributes(
        &self,
        context: &Context,
        seen: &Record,
        set: &SetAttr,
        now: Timestamp,
    ) -> Result<(Arc<Record>, Times)> {
        let live = self.stat(seen).attr;
        let file =
            (seen.attr.kind == FileKind::Regular).then(|| self.residency.files.get(seen.ino));
        let _one_at_a_time = file.as_ref().map(|file| file.times.lock());
        let record = self.meta.update(seen.ino, Some(now), |record| {
            // The object may be ahead of the record, and follows it below.
            let unmoved = record.attr.mtime == seen.attr.mtime;
            let newest = record.attr.mtime.max(live.mtime);
            record.attr.mtime = if unmoved { live.mtime } else { newest };
            record.attr.atime = record.attr.atime.max(live.atime);
            apply(context, set, &mut record.attr, now);
            record.backing.attrs_differ = true;
            Queue::Yes
        })?;
        let times = Times {
            atime: set.atime.map(|_| record.attr.atime),
            mtime: set.mtime.map(|_| record.attr.mtime),
            ..Times::default()
        };
        fail_at!("node.attributes.before_object");
        if let Some(file) = &file {
            self.residency.set_object_times(file, times);
        }
        Ok((record, times))
    }

    /// The record of a removed directory goes with its name in the backing store, and its users may
    /// stay.
    fn remember_if_removed(&self, record: &Record) {
        if record.links.is_empty() && record.is_directory() {
            self.names.removed_inodes.change(record.ino, |attr| *attr = record.attr.clone());
        }
    }

    /// Sets attributes of a directory that was removed and is still somebody's: nobody else can see
    /// them any more.
    pub(crate) fn set_removed(&self, context: &Context, ino: Ino, set: &SetAttr) -> Result<Stat> {
        let now = clock::wall_time();
        let mut refused = None;
        let changed = self.names.removed_inodes.change(ino, |attr| {
            if attr.kind != FileKind::Directory {
                refused = Some(NodeError::Meta(MetaError::Stale(ino)));
            } else if set.size.is_some() {
                refused = Some(Errno::ISDIR.into());
            } else {
                apply(context, set, attr, now);
                attr.ctime = now;
            }
        });
        match refused {
            Some(error) => Err(error),
            None if !changed => Err(MetaError::Stale(ino).into()),
            None => self.getattr(context, ino),
        }
    }

    /// Clears the set-id bits of a file and takes its capabilities away: somebody without privilege
    /// has written to it.
    ///
    /// # Errors
    /// What the metadata engine says.
    pub fn kill_set_ids(&self, context: &Context, ino: Ino) -> Result<()> {
        let record = self.record(ino)?;
        let now = clock::wall_time();
        self.drop_capabilities(&record, now)?;
        if record.is_directory() || perm_after_write(context, &record.attr) == record.attr.perm {
            return Ok(());
        }
        let record = self.meta.update(ino, Some(now), |record| {
            record.attr.perm = perm_after_write(context, &record.attr);
            record.backing.attrs_differ = true;
            Queue::Yes
        })?;
        self.attributes_changed(&record);
        // The kernel takes them away only in its mind, and only after some of the calls that do.
        self.residency.forget_attributes_at_once(ino);
        self.queue(&record);
        Ok(())
    }

    /// The access list of a file after a chmod, if it has one.
    pub(crate) fn acl_after_chmod(
        &self,
        context: &Context,
        record: &Record,
        mode: u32,
    ) -> Result<Option<Vec<u8>>> {
        if record.attr.kind == FileKind::Symlink {
            return Ok(None);
        }
        if record.xattrs == XattrState::None {
            return Ok(None);
        }
        let wire = self.known_xattr(context, record.ino, acl::ACCESS)?;
        let list = wire.and_then(|wire| Acl::parse(&wire).ok().flatten());
        Ok(list.map(|list| list.after_chmod(mode).to_wire()))
    }

    /// File capabilities go with a change of owner. Those that were not imported go when the change
    /// reaches the backing store, whose kernel does the same.
    fn drop_capabilities(&self, record: &Record, now: Timestamp) -> Result<()> {
        if record.xattrs != XattrState::Some {
            return Ok(());
        }
        match self.meta.xattr_remove(record.ino, b"security.capability", now) {
            Ok(_) | Err(MetaError::NoXattr) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns when all changes of names in a directory are as durable as the mount promises.
    ///
    /// # Errors
    /// What the metadata engine or the backing store says.
    pub fn fsync_dir(&self, context: &Context, ino: Ino) -> Result<()> {
        const PAGE: usize = 256;
        context.wait()?;
        self.meta.sync()?;
        self.in_cluster(|cluster| cluster.tell_losses(ino, Teller::Sync))?;
        if self.config.durability != Durability::Backing {
            return Ok(());
        }
        self.writeback.reconcile(ino)?;
        // What was removed, or moved elsewhere, has its old name there still.
        for (_, gone) in self.meta.stale_names(ino)? {
            self.writeback.reconcile_as_it_is(gone)?;
        }
        let mut after = 0;
        loop {
            let page = self.meta.entries_plus(ino, after, PAGE)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.entry.cursor;
            for entry in page.iter().filter(|entry| entry.record.queued.is_some()) {
                // A file may be open: what it has now is enough.
                self.writeback.reconcile_as_it_is(entry.record.ino)?;
            }
        }
    }
}

fn apply(context: &Context, set: &SetAttr, attr: &mut Attr, now: Timestamp) {
    let directory = attr.kind == FileKind::Directory;
    if (set.changes_owner() || set.kill_set_ids) && !directory {
        attr.perm = perm_after_write(context, attr);
    }
    attr.uid = set.uid.unwrap_or(attr.uid);
    attr.gid = set.gid.unwrap_or(attr.gid);
    if let Some(mode) = set.mode {
        attr.perm = mode & 0o7777;
        // The kernel has checked this already for what it can see; a caller that can't be seen
        // from here is left to it.
        if attr.perm & libc::S_ISGID != 0 && membership(context, attr.gid) == Membership::Stranger {
            attr.perm &= !libc::S_ISGID;
        }
    }
    let time = |set: SetTime| match set {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    attr.atime = set.atime.map_or(attr.atime, time);
    attr.mtime = set.mtime.map_or(attr.mtime, time);
}

/// Permission bits after the caller, who has no privilege, wrote the file or gave it away.
pub(crate) fn perm_after_write(context: &Context, attr: &Attr) -> u32 {
    let perm = without_set_ids(attr.perm);
    if perm & libc::S_ISGID != 0 && membership(context, attr.gid) == Membership::Stranger {
        perm & !libc::S_ISGID
    } else {
        perm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_ids_when_cleared_then_only_executable_groups_lose_theirs() {
        assert_eq!(without_set_ids(0o6755), 0o755);
        assert_eq!(without_set_ids(0o6745), 0o2745);
        assert_eq!(without_set_ids(0o1644), 0o1644);
    }

    #[test]
    fn set_attr_when_only_the_size_then_nothing_beside_it() {
        assert!(!SetAttr { size: Some(3), ..SetAttr::default() }.beside_size());
        let set = SetAttr { size: Some(3), mtime: Some(SetTime::Now), ..SetAttr::default() };
        assert!(set.beside_size());
    }
}
