//! Making, finding, moving and removing names.

use std::sync::Arc;
use std::time::Instant;

use forebay_meta::{
    Attr, Error as MetaError, Link, NameIn, NewInode, Record, RenameFlags, Unlinked, XattrState,
};
use forebay_types::{FileKind, Ino};
use rustix::io::Errno;

use crate::clock;
use crate::cluster::REDUNDANCY;
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::hand_over_state::RemovedInode;
use crate::node::Node;
use crate::residency::removals::Announced;
use crate::residency::synced::Replacing;

use super::acl::{self, Acl};
use super::groups::{Membership, membership};
use super::{check_name, reserved};
use crate::stat::Stat;

/// How often a creation looks again at a name that was free and then taken by somebody else.
const MAX_LOOKS: u32 = 16;

/// A new inode as its creator asks for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewName<'a> {
    /// The type.
    pub kind: FileKind,
    /// Permission bits, without the umask taken off.
    pub mode: u32,
    /// The creator's umask.
    pub umask: u32,
    /// Device number, for a device node.
    pub rdev: u64,
    /// Target, for a symbolic link.
    pub target: Option<&'a [u8]>,
}

impl NewName<'_> {
    /// A regular file.
    pub(crate) fn file(mode: u32, umask: u32) -> Self {
        NewName { kind: FileKind::Regular, mode, umask, rdev: 0, target: None }
    }
}

/// A file that an open makes, as its creator asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewFile {
    /// Permission bits, without the umask taken off.
    pub mode: u32,
    /// The creator's umask.
    pub umask: u32,
}

/// What an `open` with `O_CREAT` finds.
pub(crate) enum Found {
    /// It was there.
    Existing,
    /// It was made.
    Created(Arc<Record>),
}

/// What a rename moves, what it replaces, and how.
struct Begun {
    source: Arc<Record>,
    target: Option<Arc<Record>>,
    replacing: Replacing,
}

impl Node {
    /// The inode behind a name; `None` if there is none. `.` is the inode itself, of whatever kind, and
    /// `..` its directory: so the kernel asks for what a file handle means.
    ///
    /// # Errors
    /// What the backing store says. `ESTALE` for an inode that has no name any more.
    pub fn lookup(&self, context: &Context, dir: Ino, name: &[u8]) -> Result<Option<Stat>> {
        if let b"." | b".." = name {
            let mut record = self.record(dir)?;
            if name == b".." && dir != Ino::ROOT {
                let link = record.links.iter().next();
                record = self.record(link.ok_or(Errno::STALE)?.parent)?;
            }
            if record.links.is_empty() && record.ino != Ino::ROOT {
                return Err(Errno::STALE.into());
            }
            return self.getattr(context, record.ino).map(Some);
        }
        Ok(self.entry(context, dir, name)?.map(|record| self.stat(&record)))
    }

    fn entry(&self, context: &Context, dir: Ino, name: &[u8]) -> Result<Option<Arc<Record>>> {
        check_name(name)?;
        if reserved(dir, name) {
            return Ok(None);
        }
        self.writeback.find(context, dir, name)
    }

    fn existing(&self, context: &Context, dir: Ino, name: &[u8]) -> Result<Arc<Record>> {
        self.entry(context, dir, name)?.ok_or(NodeError::Posix(Errno::NOENT))
    }

    /// Makes an inode of any kind under a name that must be free.
    pub(crate) fn make(
        &self,
        context: &Context,
        dir: Ino,
        name: &[u8],
        new: &NewName<'_>,
    ) -> Result<Arc<Record>> {
        match self.find_or_make(context, dir, name, new, false, &mut |_| {})? {
            Found::Created(record) => Ok(record),
            Found::Existing => Err(Errno::EXIST.into()),
        }
    }

    /// Finds a name or makes an inode under it, whose number `announce` hears before anybody else.
    pub(crate) fn find_or_make(
        &self,
        context: &Context,
        dir: Ino,
        name: &[u8],
        new: &NewName<'_>,
        owned: bool,
        announce: &mut dyn FnMut(Ino),
    ) -> Result<Found> {
        self.check_new_name(dir, name)?;
        // Between nodes the commit finds out whether the name is free: to look first is a round trip.
        let mut looks = self.residency.peers.changes_namespace_alone() || !self.meta.is_listed(dir);
        let mut looked = 0;
        loop {
            if looks && self.writeback.find(context, dir, name)?.is_some() {
                return Ok(Found::Existing);
            }
            let mut inode = self.new_inode(context, dir, new)?;
            inode.owned = owned;
            self.given_up.check(context)?;
            match self.meta.create_announced(dir, name, inode, clock::wall_time(), announce) {
                // Imported since, or made by another node. It may be gone when it is looked for.
                Err(MetaError::Exists) if looked < MAX_LOOKS => {
                    looks = true;
                    looked += 1;
                }
                made => {
                    let record = made?;
                    self.queue(&record);
                    return Ok(Found::Created(record));
                }
            }
        }
    }

    /// Makes a file without a name in a directory (`O_TMPFILE`).
    pub(crate) fn make_unnamed(
        &self,
        context: &Context,
        dir: Ino,
        new: NewFile,
    ) -> Result<Arc<Record>> {
        let mut inode = self.new_inode(context, dir, &NewName::file(new.mode, new.umask))?;
        inode.owned = true;
        Ok(self.meta.create_unlinked(dir, inode, clock::wall_time())?)
    }

    /// What a new inode gets from its creator and from its directory: in a set-group-id directory
    /// the group, and for a directory that bit; from a default access list the permissions, else
    /// from the umask.
    fn new_inode(&self, context: &Context, dir: Ino, new: &NewName<'_>) -> Result<NewInode> {
        let parent = self.record(dir)?;
        if !parent.is_directory() {
            return Err(Errno::NOTDIR.into());
        }
        let inherits_group = parent.attr.perm & libc::S_ISGID != 0;
        let gid = if inherits_group { parent.attr.gid } else { context.gid };
        let mut inode = NewInode::new(new.kind, new.mode & 0o7777, context.uid, gid);
        inode.rdev = new.rdev;
        inode.target = new.target.map(Into::into);
        if new.kind == FileKind::Symlink {
            return Ok(inode);
        }
        if new.kind == FileKind::Directory
            && let Some(redundancy) =
                self.in_cluster(|cluster| cluster.inherited_redundancy(dir))?
        {
            inode.xattrs.push((REDUNDANCY.to_vec(), redundancy));
        }
        match self.default_acl(context, &parent)? {
            Some((list, wire)) => {
                let (access, mode) = list.inherited(inode.perm);
                inode.perm = mode;
                if !access.is_minimal() {
                    inode.xattrs.push((acl::ACCESS.to_vec(), access.to_wire()));
                }
                if new.kind == FileKind::Directory {
                    inode.xattrs.push((acl::DEFAULT.to_vec(), wire));
                }
            }
            None => inode.perm &= !(new.umask & 0o777),
        }
        let group_runs = libc::S_ISGID | libc::S_IXGRP;
        if new.kind == FileKind::Directory {
            if inherits_group {
                inode.perm |= libc::S_ISGID;
            }
        } else if inode.perm & group_runs == group_runs
            && membership(context, gid) != Membership::Member
        {
            inode.perm &= !libc::S_ISGID;
        }
        Ok(inode)
    }

    fn default_acl(&self, context: &Context, dir: &Record) -> Result<Option<(Acl, Vec<u8>)>> {
        if dir.xattrs == XattrState::None {
            return Ok(None);
        }
        let Some(wire) = self.known_xattr(context, dir.ino, acl::DEFAULT)? else {
            return Ok(None);
        };
        match Acl::parse(&wire) {
            Ok(list) => Ok(list.map(|list| (list, wire))),
            Err(acl::Malformed) => {
                tracing::warn!(ino = %dir.ino, "a malformed default access list is left aside");
                Ok(None)
            }
        }
    }

    /// Makes a regular file, pipe, socket or device node. `mode` has its type (`S_IFMT`).
    ///
    /// # Errors
    /// `EEXIST`, `EPERM` for a reserved name, `EINVAL` for another type.
    pub fn mknod(
        &self,
        context: &Context,
        dir: Ino,
        name: &[u8],
        mode: u32,
        umask: u32,
        rdev: u64,
    ) -> Result<Stat> {
        let kind = match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => FileKind::Regular,
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            libc::S_IFCHR => FileKind::CharDevice,
            libc::S_IFBLK => FileKind::BlockDevice,
            _ => return Err(Errno::INVAL.into()),
        };
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let rdev = if device { rdev } else { 0 };
        let new = NewName { kind, mode, umask, rdev, target: None };
        Ok(self.stat(&*self.make(context, dir, name, &new)?))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `EEXIST`, `EPERM` for a reserved name.
    pub fn mkdir(
        &self,
        context: &Context,
        dir: Ino,
        name: &[u8],
        mode: u32,
        umask: u32,
    ) -> Result<Stat> {
        let new = NewName { kind: FileKind::Directory, mode, umask, rdev: 0, target: None };
        Ok(self.stat(&*self.make(context, dir, name, &new)?))
    }

    /// Makes a symbolic link to `target`.
    ///
    /// # Errors
    /// `EEXIST`, `EPERM` for a reserved name, `ENAMETOOLONG` for a target of `PATH_MAX` bytes.
    pub fn symlink(&self, context: &Context, dir: Ino, name: &[u8], target: &[u8]) -> Result<Stat> {
        if target.len() >= usize::try_from(libc::PATH_MAX).unwrap_or(4096) {
            return Err(Errno::NAMETOOLONG.into());
        }
        let kind = FileKind::Symlink;
        let new = NewName { kind, mode: 0o777, umask: 0, rdev: 0, target: Some(target) };
        Ok(self.stat(&*self.make(context, dir, name, &new)?))
    }

    /// Gives an inode another name.
    ///
    /// # Errors
    /// `EEXIST`; `EPERM` for a directory or a reserved name, and where the backing store was found to
    /// have no hard links.
    pub fn link(&self, context: &Context, ino: Ino, dir: Ino, name: &[u8]) -> Result<Stat> {
        self.check_new_name(dir, name)?;
        let before = self.record(ino)?;
        if before.is_directory() {
            return Err(Errno::PERM.into());
        }
        if self.writeback.find(context, dir, name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        if self.writeback.store_lacks_links() {
            return Err(Errno::PERM.into());
        }
        self.given_up.check(context)?;
        // As it is now, however long the name was looked for.
        self.residency.begin_link(context, &*self.record(ino)?)?;
        let record = self.meta.link(ino, dir, name, clock::wall_time())?;
        self.note_name_came(&record, NameIn::new(dir, name));
        self.queue(&record);
        Ok(self.stat(&record))
    }

    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`.
    pub fn unlink(&self, context: &Context, dir: Ino, name: &[u8]) -> Result<()> {
        // Between nodes the commit finds out what the name means now.
        let alone = self.residency.peers.changes_namespace_alone();
        let believed = if alone { None } else { self.meta.lookup_believed(dir, name) };
        let old = believed.is_some();
        let mut record = match believed.filter(|record| !record.is_directory()) {
            Some(record) => record,
            None => self.existing(context, dir, name)?,
        };
        loop {
            if record.is_directory() {
                return Err(Errno::ISDIR.into());
            }
            if self.is_settled_before_removal(context, &record)? {
                break;
            }
            record = self.existing(context, dir, name)?;
        }
        self.given_up.check(context)?;
        let mut before = self.stat(&record);
        let in_use = |ino| {
            let open = self.residency.is_open(ino);
            fail::fail_point!("node.unlink.asked");
            open
        };
        self.note_leaving(&before);
        let announced =
            (before.attr.nlink <= 1).then(|| self.residency.announce_removal(before.ino)).flatten();
        let unlinked = self
            .meta
            .unlink_asking(dir, name, clock::wall_time(), &in_use)
            .inspect_err(|_| announced.iter().for_each(Announced::take_back))?;
        fail::fail_point!("node.unlink.removed");
        if old || before.ino != unlinked.record.ino {
            // Somebody else was quicker, and it is another file of that name that was removed; or it
            // was changed by another node.
            before = self.stat(&unlinked.record);
        }
        self.after_removal(before, &unlinked, announced);
        self.note_name_went(&unlinked.record, NameIn::new(dir, name));
        self.writeback.conflict_name_went(dir, name);
        fail::fail_point!("node.unlink.done");
        Ok(())
    }

    /// See [`Node::settle_for_unseen_names`]. False after a wait, without the file in hand: the name is to
    /// be looked at again, and then this waits no more.
    fn is_settled_before_removal(&self, context: &Context, record: &Record) -> Result<bool> {
        if context.may_wait() {
            return self.settle_for_unseen_names(record, None);
        }
        let settled = self.settle_for_unseen_names(record, Some(Instant::now()))?;
        if !settled {
            context.wait()?;
        }
        Ok(settled)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`.
    pub fn rmdir(&self, context: &Context, dir: Ino, name: &[u8]) -> Result<()> {
        let record = self.existing(context, dir, name)?;
        if !record.is_directory() {
            return Err(Errno::NOTDIR.into());
        }
        self.writeback.ensure_listed(context, record.ino)?;
        self.given_up.check(context)?;
        let before = self.stat(&record);
        let xattrs = self.xattrs_of_leaving(&record);
        self.note_leaving(&before);
        let unlinked = self.meta.rmdir(dir, name, clock::wall_time(), false)?;
        fail::fail_point!("node.rmdir.made");
        let same = unlinked.record.ino == record.ino;
        self.after_removal(before, &unlinked, None);
        self.note_name_went(&unlinked.record, NameIn::new(dir, name));
        self.writeback.conflict_name_went(dir, name);
        if same {
            self.names.removed_inodes.remember_xattrs(record.ino, xattrs);
        }
        Ok(())
    }

    /// An inode has lost a name: if the backing store does not have it, nothing will be done there.
    fn note_name_went(&self, record: &Record, name: NameIn<'_>) {
        if !record.backing.links.contains(&Link::new(name.dir, name.name)) {
            self.writeback.entries_changed_here_alone(name.dir);
        }
    }

    /// An inode has got a name: if the backing store has it still, nothing will be done there.
    fn note_name_came(&self, record: &Record, name: NameIn<'_>) {
        if record.backing.links.contains(&Link::new(name.dir, name.name)) {
            self.writeback.entries_changed_here_alone(name.dir);
        }
    }

    /// An inode is about to lose a name, which may be its last. The next daemon must know before it is
    /// done: one that dies between the two leaves no record of it, and its user would get `ESTALE`.
    fn note_leaving(&self, leaving: &Stat) {
        let last = leaving.attr.kind == FileKind::Directory || leaving.attr.nlink <= 1;
        if let Some(kernel) = self.kernel.get().filter(|_| last) {
            kernel.note_removed(&RemovedInode::new(leaving.ino.0, &leaving.attr));
        }
    }

    /// An inode has lost its last name, and perhaps has a user still.
    pub(crate) fn remember_removed(&self, ino: Ino, attr: Attr) {
        if let Some(kernel) = self.kernel.get() {
            kernel.note_removed(&RemovedInode::new(ino.0, &attr));
        }
        self.names.removed_inodes.remember(ino, attr);
    }

    /// Whether a directory was removed a short while ago: there is nothing in it, nor can be.
    #[must_use]
    pub fn is_removed_directory(&self, ino: Ino) -> bool {
        self.names.removed_inodes.has_directory(ino)
    }

    fn after_removal(&self, before: Stat, unlinked: &Unlinked, announced: Option<Announced<'_>>) {
        let is_noted = announced.as_ref().is_some_and(|it| it.is_of(before.ino));
        if !(is_noted && unlinked.gone) {
            announced.iter().for_each(Announced::take_back);
        }
        if unlinked.record.links.is_empty() {
            self.remember_removed(before.ino, before.attr);
        } else {
            self.writeback.note_moved(&unlinked.record);
        }
        // Opened at the last moment: whoever did has its record, and discards the data at the end.
        if unlinked.gone {
            match self.residency.is_open(before.ino) {
                true => self.residency.note_removed(before.ino),
                false if is_noted => self.residency.discard_announced(before.ino),
                false => self.residency.discard_soon(before.ino),
            }
        }
        self.queue(&unlinked.record);
    }

    /// Renames. `flags` are those of `renameat2`.
    ///
    /// # Errors
    /// `EINVAL` for `RENAME_WHITEOUT`, unknown flags, and a directory moved below itself;
    /// `ENOENT`, `EEXIST`, `ENOTEMPTY`, `EISDIR`, `ENOTDIR` as `rename(2)` says; `EPERM` for a
    /// reserved name.
    pub fn rename(
        &self,
        context: &Context,
        from: NameIn<'_>,
        to: NameIn<'_>,
        flags: u32,
    ) -> Result<()> {
        self.rename_once(context, from, to, flags, &mut || Ok(()))
    }

    /// As [`Node::rename`]. When nothing is to be waited for any more, right before the names change,
    /// `before` is called: for what nobody else can have meanwhile.
    ///
    /// # Errors
    /// As [`Node::rename`]; that of `before`.
    pub fn rename_once(
        &self,
        context: &Context,
        from: NameIn<'_>,
        to: NameIn<'_>,
        flags: u32,
        before: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let flags = rename_flags(flags)?;
        self.check_new_name(to.dir, to.name)?;
        let begun = self.begin_rename(context, from, to, flags)?;
        let Some(Begun { source, target, replacing }) = begun else { return before() };
        let leaving = target.as_ref().filter(|_| !flags.exchange);
        let xattrs = leaving.map(|target| self.xattrs_of_leaving(target)).unwrap_or_default();
        let known = target.map(|target| self.stat(&target));
        let seen = known.as_ref().map(|known| known.ino);
        let file = known.as_ref().is_some_and(|known| known.attr.kind == FileKind::Regular);
        let has_grace = file && !flags.exchange;
        let in_use = |ino: Ino| has_grace || self.residency.is_open(ino);
        let now = clock::wall_time();
        known.iter().filter(|_| !flags.exchange).for_each(|known| self.note_leaving(known));
        let renamed = self.residency.replace(context, &source, replacing, |durable| {
            before()?;
            let flags = RenameFlags { durable, ..flags };
            Ok(self.meta.rename(from, to, flags, now, &in_use)?)
        })?;
        self.tell_cluster(|cluster| cluster.tell_of_moved(&renamed, from, to));
        self.note_name_went(&renamed.moved, from);
        self.note_name_came(&renamed.moved, to);
        if renamed.exchanged.is_none() {
            self.writeback.conflict_name_went(from.dir, from.name);
        }
        self.queue(&renamed.moved);
        self.writeback.note_moved(&renamed.moved);
        if let Some(other) = &renamed.exchanged {
            self.queue(other);
            self.writeback.note_moved(other);
        }
        if let Some(replaced) = &renamed.replaced {
            // Another inode than the one seen before, if somebody else was quicker.
            let known = known
                .filter(|known| known.ino == replaced.record.ino)
                .unwrap_or_else(|| self.stat(&replaced.record));
            self.after_removal(known, replaced, None);
            if seen == Some(replaced.record.ino) {
                self.names.removed_inodes.remember_xattrs(replaced.record.ino, xattrs);
            }
            if has_grace && replaced.record.orphan {
                self.begin_unlink_grace(replaced.record.ino);
            }
        }
        Ok(())
    }

    /// What a rename moves and what it replaces, as they are when nothing of it is to be waited for any
    /// more: after a wait all is looked at once more. `None` if they are the same.
    fn begin_rename(
        &self,
        context: &Context,
        from: NameIn<'_>,
        to: NameIn<'_>,
        flags: RenameFlags,
    ) -> Result<Option<Begun>> {
        let (stands, at) = (Link::new(from.dir, from.name), Link::new(to.dir, to.name));
        loop {
            let waited = context.may_wait();
            let source = self.existing(context, from.dir, from.name)?;
            let target = self.writeback.find(context, to.dir, to.name)?;
            match &target {
                None if flags.exchange => return Err(Errno::NOENT.into()),
                Some(_) if flags.noreplace => return Err(Errno::EXIST.into()),
                Some(target) if target.ino == source.ino => return Ok(None),
                Some(target) if !flags.exchange && target.is_directory() => {
                    self.writeback.ensure_listed(context, target.ino)?;
                }
                _ => {}
            }
            self.given_up.check(context)?;
            let replacing = match (flags.exchange, target.as_deref()) {
                (true, Some(other)) => {
                    self.begin_exchange(context, &source, &at, other, &stands)?
                }
                (_, target) => self.begin_replacing(context, &source, target, &at)?,
            };
            let leaving = target.as_ref().filter(|_| !flags.exchange);
            let settled = leaving.map(|leaving| self.is_settled_before_removal(context, leaving));
            if settled.transpose()?.unwrap_or(true) && waited == context.may_wait() {
                return Ok(Some(Begun { source, target, replacing }));
            }
        }
    }

    /// A file is about to take a name, which may be another one's.
    fn begin_replacing(
        &self,
        context: &Context,
        source: &Record,
        target: Option<&Record>,
        at: &Link,
    ) -> Result<Replacing> {
        if target.is_some() && !source.is_dirty() && self.residency.is_unsettled(source.ino) {
            // A crash of the machine may leave less of it than there is now, and then what it is to
            // replace stays: how much there is must be known.
            match self
                .residency
                .settle_by(&self.residency.files.get(source.ino), Some(Instant::now()))
            {
                // Another node has it by now, and says how much there is.
                Err(NodeError::Posix(Errno::STALE)) => {}
                settled => drop(settled?),
            }
        }
        self.residency.begin_replacing(context, source, target, at)
    }

    /// Two files are about to take each other's names: each goes on from its own, and replaces nobody.
    fn begin_exchange(
        &self,
        context: &Context,
        one: &Record,
        at: &Link,
        other: &Record,
        at_other: &Link,
    ) -> Result<Replacing> {
        self.residency.begin_replacing(context, one, None, at)?;
        self.residency.begin_replacing(context, other, None, at_other)?;
        Ok(Replacing::default())
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` for anything else.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match &self.record(ino)?.target {
            Some(target) => Ok(target.to_vec()),
            None => Err(Errno::INVAL.into()),
        }
    }
}

fn rename_flags(flags: u32) -> Result<RenameFlags> {
    let noreplace = flags & libc::RENAME_NOREPLACE != 0;
    let exchange = flags & libc::RENAME_EXCHANGE != 0;
    let known = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE;
    if flags & !known != 0 || noreplace && exchange {
        return Err(Errno::INVAL.into());
    }
    Ok(RenameFlags { noreplace, exchange, durable: false })
}
