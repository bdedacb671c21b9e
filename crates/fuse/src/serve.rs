//! Every operation of the protocol as a call of the node.

use std::time::Duration;

use forebay_node::{
    Cluster, Context, FilePosition, Ino, Kernel, NameIn, NewFile, Node, NodeError, OpenMode,
    Opened, Renaming, Result, Stat, Teller,
};
use fusewire::{
    CopyRange, DirectoryBuffer, Entry, OpenInFlags, OpenOutFlags, Operation, Request, SetxattrFlags,
};
use rustix::io::Errno;

use crate::answer::Answer;
use crate::dataset::Dataset;
use crate::errno::errno;
use crate::kernel::Notifier;
use crate::listings::{Grant, Listings};
use crate::reply_builder::{ReplyBuilder, kept};
use crate::wire::{self, CachePolicy};

/// Bytes that an entry of a listing takes up beside its name, without and with attributes.
const ENTRY_BYTES: u32 = 24;
const ENTRY_PLUS_BYTES: u32 = 152;
/// What names are taken to be long when the number of entries for a buffer is estimated.
const NAME_BYTES: u32 = 12;
/// Entries fetched at once at most.
const MAX_ENTRIES: u32 = 1024;

/// Serves one request.
pub struct Serve<'a> {
    pub node: &'a Node,
    pub cache_policy: &'a CachePolicy,
    pub notifier: Option<&'a Notifier>,
    pub listings: &'a Listings,
    /// Set if nothing changes, so that the kernel need not ask for each open.
    pub dataset: Option<&'a Dataset>,
    pub request: &'a Request,
    pub context: Context<'a>,
}

impl Serve<'_> {
    /// Does what the request asks for.
    pub fn serve(&self, operation: Operation<'_>) -> Result<Answer> {
        if let Some(cluster) = self.node.cluster()
            && changes(&operation)
        {
            cluster.may_change(&self.context)?;
            self.tell_losses(cluster, &operation)?;
        }
        if let Some(answer) = self.without_open(&operation) {
            return answer;
        }
        if is_in_directory(&operation) {
            let to = match operation {
                Operation::Rename { new_parent, .. } => Ino(new_parent),
                _ => self.ino(),
            };
            return self.serve_by_kind(operation).map_err(|error| self.in_removed(error, to));
        }
        self.serve_by_kind(operation)
    }

    fn serve_by_kind(&self, operation: Operation<'_>) -> Result<Answer> {
        use Operation as Op;
        match operation {
            Op::Lookup { .. }
            | Op::Symlink { .. }
            | Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Link { .. }
            | Op::Readlink => self.name_operation(operation),
            // Not `Statx`: the mount has no times of birth. The kernel keeps none, so that programs
            // which ask for them in passing would cost a request for each file of a listing.
            Op::Getattr { .. } | Op::Setattr(_) | Op::Statfs => self.attribute_operation(operation),
            Op::Setxattr { .. }
            | Op::Getxattr { .. }
            | Op::Listxattr { .. }
            | Op::Removexattr { .. } => self.xattr_operation(operation),
            Op::Opendir { .. }
            | Op::Readdir { .. }
            | Op::Readdirplus { .. }
            | Op::Releasedir { .. }
            | Op::Fsyncdir { .. } => self.directory_operation(operation),
            Op::Open { .. }
            | Op::Create { .. }
            | Op::Tmpfile { .. }
            | Op::Read { .. }
            | Op::Write { .. }
            | Op::Release { .. }
            | Op::Flush { .. }
            | Op::Fsync { .. }
            | Op::Fallocate { .. }
            | Op::Lseek { .. }
            | Op::CopyFileRange(_)
            | Op::CopyFileRange64(_) => self.file_operation(operation),
            Op::Ioctl { .. } => Err(Errno::NOTTY.into()),
            // Answered so, the kernel does by itself what can be done, and never asks again: locks
            // and polls it handles, permissions it checks.
            _ => Err(Errno::NOSYS.into()),
        }
    }

    /// The answer of a mount whose contents do not change to what has to do with open files. That opens
    /// and closes are nothing to it the kernel hears once, and then does them by itself.
    fn without_open(&self, operation: &Operation<'_>) -> Option<Result<Answer>> {
        let (dataset, ino) = (self.dataset?, self.ino());
        Some(match *operation {
            Operation::Open { .. }
            | Operation::Opendir { .. }
            | Operation::Release { .. }
            | Operation::Releasedir { .. }
            | Operation::Flush { .. } => Err(Errno::NOSYS.into()),
            Operation::Fsync { .. } | Operation::Fsyncdir { .. } => Ok(Answer::Done),
            Operation::Read { offset, size, .. } => {
                let mut buffer = self.request.connection().buffer();
                let size = buffer.len().min(size as usize);
                let read = dataset.read(&self.context, ino, offset, &mut buffer[..size]);
                read.map(|len| Answer::Data(buffer, len.min(size)))
            }
            Operation::Lseek { offset, whence, .. } => {
                let found = dataset.seek(&self.context, ino, offset, whence.cast_signed());
                found.map(Answer::Offset)
            }
            _ => return None,
        })
    }

    /// The failure of an operation on a name. Of a directory that others have removed the kernel does not
    /// know that it is so, and asks; there is no such name, nor can be. A rename has two of them.
    fn in_removed(&self, error: NodeError, to: Ino) -> NodeError {
        let is_removed = || [self.ino(), to].iter().any(|dir| self.node.is_removed_directory(*dir));
        match errno(&error) == libc::ESTALE && is_removed() {
            true => Errno::NOENT.into(),
            false => error,
        }
    }

    pub(crate) fn ino(&self) -> Ino {
        forebay_node::of_node_id(self.request.header().node).0
    }

    /// Fails, once, if something is lost that was acknowledged of what an operation changes.
    fn tell_losses(&self, cluster: &Cluster, operation: &Operation<'_>) -> Result<()> {
        let other = match operation {
            Operation::Rename { new_parent, .. } => Some(Ino(*new_parent)),
            Operation::Link { node, .. } => Some(forebay_node::of_node_id(*node).0),
            _ => None,
        };
        for ino in [Some(self.ino()), other].into_iter().flatten() {
            cluster.tell_losses(ino, Teller::Change)?;
        }
        Ok(())
    }

    pub(crate) fn entry(&self, stat: &Stat) -> Answer {
        Answer::Entry(self.cache_policy.entry(stat))
    }

    /// What a file handle means that a program kept while the kernel forgot the inode; or its directory.
    fn by_handle(&self, name: &[u8]) -> Result<Answer> {
        let stat = self.node.lookup(&self.context, self.ino(), name)?.ok_or(Errno::STALE)?;
        // A file that the kernel has to know anew is none that an old handle means.
        let id = forebay_node::node_id(stat.ino, stat.alias);
        if name == b"." && id != self.request.header().node {
            return Err(Errno::STALE.into());
        }
        // Nobody tells the kernel when it is something else: it asks again when it matters.
        let never = Duration::ZERO;
        Ok(Answer::Entry(Entry {
            entry_valid: never,
            attr_valid: never,
            ..self.cache_policy.entry(&stat)
        }))
    }

    fn name_operation(&self, operation: Operation<'_>) -> Result<Answer> {
        let (node, context, dir) = (self.node, &self.context, self.ino());
        let builder = ReplyBuilder::new(self, dir);
        Ok(match operation {
            Operation::Lookup { name: name @ (b"." | b"..") } => self.by_handle(name)?,
            Operation::Lookup { name } => {
                let builder = builder.also_behind(name);
                builder.found(name, node.lookup(context, dir, name)?.as_ref())
            }
            Operation::Symlink { name, target } => {
                builder.made(name, &node.symlink(context, dir, name, target)?)
            }
            Operation::Mknod { name, mode, rdev, umask } => {
                let rdev = wire::device_from_wire(rdev);
                builder.made(name, &node.mknod(context, dir, name, mode, umask, rdev)?)
            }
            Operation::Mkdir { name, mode, umask } => {
                builder.made(name, &node.mkdir(context, dir, name, mode, umask)?)
            }
            Operation::Unlink { name } => {
                node.unlink(context, dir, name)?;
                Answer::Done
            }
            Operation::Rmdir { name } => {
                node.rmdir(context, dir, name)?;
                Answer::Done
            }
            Operation::Rename { old, new_parent, new, flags } => {
                self.rename(NameIn::new(dir, old), NameIn::new(Ino(new_parent), new), flags)?
            }
            Operation::Link { node: ino, name } => {
                let (ino, _) = forebay_node::of_node_id(ino);
                builder.made(name, &node.link(context, ino, dir, name)?)
            }
            Operation::Readlink => Answer::Bytes(node.readlink(dir)?),
            _ => return Err(Errno::NOSYS.into()),
        })
    }

    fn rename(&self, from: NameIn<'_>, to: NameIn<'_>, flags: u32) -> Result<Answer> {
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        let mut renaming = Renaming::default();
        // Not before: while names are about to be moved, other nodes wait for their leases.
        let mut before = || {
            if let Some(cluster) = self.node.cluster() {
                renaming = cluster.before_rename(from, to, exchange)?;
            }
            Ok(())
        };
        if let Err(error) = self.node.rename_once(&self.context, from, to, flags, &mut before) {
            renaming.fails();
            return Err(error);
        }
        if let Some(cluster) = self.node.cluster() {
            cluster.after_rename(&mut renaming);
        }
        Ok(kept(Answer::Done, renaming.kernel_grants))
    }

    fn attribute_operation(&self, operation: Operation<'_>) -> Result<Answer> {
        let (node, context, ino) = (self.node, &self.context, self.ino());
        let builder = ReplyBuilder::new(self, ino);
        let attr = |stat: Stat| builder.attributes(&stat);
        Ok(match operation {
            Operation::Getattr { .. } => attr(node.getattr(context, ino)?),
            Operation::Setattr(set) => attr(node.setattr(context, ino, &wire::set_attr(&set))?),
            Operation::Statfs => Answer::Statfs(wire::statfs(&node.statfs(context)?)),
            _ => return Err(Errno::NOSYS.into()),
        })
    }

    fn xattr_operation(&self, operation: Operation<'_>) -> Result<Answer> {
        let (node, context, ino) = (self.node, &self.context, self.ino());
        match operation {
            Operation::Getxattr { name, size } => sized(node.get_xattr(context, ino, name)?, size),
            Operation::Listxattr { size } => sized(node.list_xattrs(context, ino)?, size),
            Operation::Setxattr { name, value, flags, setxattr_flags } => {
                let kill = setxattr_flags.contains(SetxattrFlags::ACL_KILL_SGID);
                node.set_xattr(context, ino, name, value, flags.cast_signed(), kill)?;
                Ok(Answer::Done)
            }
            Operation::Removexattr { name } => {
                node.remove_xattr(context, ino, name)?;
                Ok(Answer::Done)
            }
            _ => Err(Errno::NOSYS.into()),
        }
    }

    fn directory_operation(&self, operation: Operation<'_>) -> Result<Answer> {
        let (node, ino) = (self.node, self.ino());
        match operation {
            Operation::Opendir { .. } => self.open_directory(),
            Operation::Readdir { offset, size, .. } => self.list(offset, size, false),
            Operation::Readdirplus { offset, size, .. } => self.list(offset, size, true),
            Operation::Releasedir { fh, .. } => {
                self.listings.close(ino.0, fh);
                Ok(Answer::Done)
            }
            Operation::Fsyncdir { .. } => {
                node.fsync_dir(&self.context, ino)?;
                Ok(Answer::Done)
            }
            _ => Err(Errno::NOSYS.into()),
        }
    }

    fn open_directory(&self) -> Result<Answer> {
        let (node, ino) = (self.node, self.ino());
        node.opendir(ino)?;
        if self.listings.may_keep(ino.0) {
            // Nobody asks for entries that would look at the backing store.
            node.look_at_entries(&self.context, ino)?;
        }
        let changed = |since| node.entries_changed_since(ino, since);
        let kept = OpenOutFlags::CACHE_DIR;
        let (fh, flags) = match self.listings.open(ino.0, node.moment(), changed) {
            Grant::Ask => (0, OpenOutFlags::NONE),
            Grant::Fill(fh) => (fh, kept),
            Grant::Keep(fh) => (fh, kept.with(OpenOutFlags::KEEP_CACHE)),
        };
        Ok(Answer::OpenedDirectory(fusewire::Opened { fh, flags, backing_id: None }))
    }

    fn list(&self, offset: u64, size: u32, plus: bool) -> Result<Answer> {
        let mut directory = DirectoryBuffer::new(self.request.connection(), size);
        let fixed = if plus { ENTRY_PLUS_BYTES } else { ENTRY_BYTES };
        let limit = (size / (fixed + NAME_BYTES)).clamp(1, MAX_ENTRIES) as usize;
        let ino = self.ino();
        if !plus {
            self.node.read_dir(&self.context, ino, offset, limit, false, &mut |entry| {
                let kind = wire::kind(entry.kind);
                directory.add(entry.ino.0, entry.offset, kind, entry.name)
            })?;
            return Ok(Answer::Directory(directory));
        }
        let builder = ReplyBuilder::new(self, ino);
        builder.listing(directory, |directory, listed| {
            self.node.read_dir(&self.context, ino, offset, limit, true, &mut |entry| {
                let full = match &entry.stat {
                    Some(stat) => self.cache_policy.entry(stat),
                    None => wire::dot_entry(entry.ino),
                };
                let at = directory.end();
                let fits = directory.add_plus(&full, entry.offset, entry.name);
                listed.extend(builder.listed(at, full, &entry).filter(|_| fits));
                fits
            })
        })
    }

    fn file_operation(&self, operation: Operation<'_>) -> Result<Answer> {
        let (node, context, ino) = (self.node, &self.context, self.ino());
        Ok(match operation {
            Operation::Open { flags, open_flags } => self.open(flags, open_flags)?,
            Operation::Create { name, flags, mode, umask, .. } => {
                let (new, builder) = (NewFile { mode, umask }, ReplyBuilder::new(self, ino));
                let (stat, opened) =
                    node.create_and_open(context, ino, name, new, flags.cast_signed())?;
                builder.created(name, &stat, opened, flags)
            }
            Operation::Tmpfile { flags, mode, umask, .. } => {
                let new = NewFile { mode, umask };
                let (stat, opened) =
                    node.tmpfile_and_open(context, ino, new, flags.cast_signed())?;
                self.created(&stat, opened, flags)
            }
            Operation::Read { fh, offset, size, .. } => {
                let mut buffer = self.request.connection().buffer();
                let size = buffer.len().min(size as usize);
                let len = node.read(context, fh, offset, &mut buffer[..size])?;
                Answer::Data(buffer, len.min(size))
            }
            Operation::Write { fh, offset, data, flags, .. } => {
                let written = match durability(flags) {
                    None => node.write(context, fh, offset, data)?,
                    Some(data_only) => node.write_durably(context, fh, offset, data, data_only)?,
                };
                Answer::Written(narrow(written as u64))
            }
            Operation::Release { fh, .. } => {
                node.release(fh);
                if let Some(cluster) = node.cluster() {
                    cluster.handle_is_gone(ino, fh);
                }
                Answer::Done
            }
            Operation::Flush { fh, lock_owner } => self.close(fh, lock_owner)?,
            Operation::Fsync { fh, datasync } => {
                node.fsync(context, fh, datasync)?;
                Answer::Done
            }
            Operation::Fallocate { fh, offset, length, mode } => {
                node.fallocate(context, fh, offset, length, mode.cast_signed())?;
                Answer::Done
            }
            Operation::Lseek { fh, offset, whence } => {
                Answer::Offset(node.seek(context, fh, offset, whence.cast_signed())?)
            }
            // The answer has 32 bits.
            Operation::CopyFileRange(range) => {
                let most = u64::from(!4095_u32);
                Answer::Written(narrow(self.copy(&range, range.length.min(most))?))
            }
            Operation::CopyFileRange64(range) => Answer::Copied(self.copy(&range, range.length)?),
            _ => return Err(Errno::NOSYS.into()),
        })
    }

    fn open(&self, flags: u32, open_flags: OpenInFlags) -> Result<Answer> {
        let id = self.request.header().node;
        let (ino, alias) = forebay_node::of_node_id(id);
        let opened = self.node.open_alias(&self.context, ino, alias, flags.cast_signed())?;
        // The open truncated the file on behalf of somebody without privilege. The kernel has
        // taken care of the rest: the file is his to write.
        if open_flags.contains(OpenInFlags::KILL_SUIDGID)
            && let Err(error) = self.node.kill_set_ids(&self.context, ino)
        {
            self.node.release(opened.fh);
            return Err(error);
        }
        if let Some(dir) = opened.dir {
            self.listings.file_opened(dir.0);
        }
        if changes_unseen(opened, flags)
            && let Some(notifier) = self.notifier
        {
            // What the kernel was told before the open holds for long.
            notifier.forget_attributes(id);
        }
        Ok(Answer::Opened(self.cache_policy.opened(opened, flags)))
    }

    pub(crate) fn created(&self, stat: &Stat, opened: Opened, flags: u32) -> Answer {
        ReplyBuilder::blind(self).created(b"", stat, opened, flags)
    }

    fn copy(&self, range: &CopyRange, length: u64) -> Result<u64> {
        if range.flags != 0 {
            return Err(Errno::INVAL.into());
        }
        let from = FilePosition { fh: range.fh_in, offset: range.offset_in };
        let to = FilePosition { fh: range.fh_out, offset: range.offset_out };
        self.node.copy_range(&self.context, from, to, length)
    }
}

/// Whether stores into a mapping of the file change its times without anybody being told.
pub(crate) fn changes_unseen(opened: Opened, flags: u32) -> bool {
    let to_kernel = match opened.mode {
        OpenMode::Passthrough { .. } | OpenMode::PassthroughDirect { .. } => true,
        OpenMode::Cached { .. } | OpenMode::Direct => false,
    };
    to_kernel && wire::may_write(flags)
}

/// Whether a write with these flags is to be durable, and if so whether its data alone. `O_SYNC` has
/// the bit of `O_DSYNC`, too.
fn durability(flags: u32) -> Option<bool> {
    let flags = flags.cast_signed();
    (flags & libc::O_DSYNC != 0).then_some(flags & libc::O_SYNC != libc::O_SYNC)
}

/// A value for a request that said how much room it has: 0 asks for the size.
fn sized(value: Vec<u8>, size: u32) -> Result<Answer> {
    if size == 0 {
        return Ok(Answer::XattrSize(narrow(value.len() as u64)));
    }
    if value.len() > size as usize {
        return Err(NodeError::Posix(Errno::RANGE));
    }
    Ok(Answer::Bytes(value))
}

fn narrow(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Whether an operation changes the namespace. An open for writing is not among them, for it takes the
/// right to write, which a node that is fenced does not get; nor is a write, which asks for itself.
fn changes(operation: &Operation<'_>) -> bool {
    use Operation as Op;
    matches!(
        operation,
        Op::Symlink { .. }
            | Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Link { .. }
            | Op::Setattr(_)
            | Op::Setxattr { .. }
            | Op::Removexattr { .. }
            | Op::Create { .. }
            | Op::Tmpfile { .. }
            | Op::Fallocate { .. }
            | Op::CopyFileRange(_)
            | Op::CopyFileRange64(_)
    )
}

/// How a request may be treated when it takes long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimits {
    /// Nothing is half done if nobody waits for the end: it only reads, or it makes durable what
    /// was done before.
    pub abandonable: bool,
    /// The work grows with a file or a directory, and may go on for long with a healthy store.
    pub long: bool,
}

/// The time limits of an operation.
pub fn timeout(operation: &Operation<'_>) -> TimeLimits {
    use Operation as Op;
    let (abandonable, long) = match operation {
        Op::Lookup { .. }
        | Op::Getattr { .. }
        | Op::Readlink
        | Op::Read { .. }
        | Op::Opendir { .. }
        | Op::Getxattr { .. }
        | Op::Listxattr { .. }
        | Op::Lseek { .. }
        | Op::Statfs => (true, false),
        Op::Open { flags, .. } => (flags & libc::O_TRUNC.cast_unsigned() == 0, false),
        Op::Readdir { .. }
        | Op::Readdirplus { .. }
        | Op::Fsync { .. }
        | Op::Fsyncdir { .. }
        | Op::Flush { .. } => (true, true),
        Op::Rmdir { .. }
        | Op::Rename { .. }
        | Op::Setattr(_)
        | Op::Fallocate { .. }
        | Op::CopyFileRange(_)
        | Op::CopyFileRange64(_) => (false, true),
        _ => (false, false),
    };
    TimeLimits { abandonable, long }
}

/// Whether an operation is about a name in the directory that it is sent to. (By "." and ".." the kernel
/// asks for what it has forgotten.)
fn is_in_directory(operation: &Operation<'_>) -> bool {
    use Operation as Op;
    match operation {
        Op::Lookup { name } => !matches!(*name, b"." | b".."),
        Op::Symlink { .. }
        | Op::Mknod { .. }
        | Op::Mkdir { .. }
        | Op::Unlink { .. }
        | Op::Rmdir { .. }
        | Op::Rename { .. }
        | Op::Link { .. }
        | Op::Create { .. }
        | Op::Tmpfile { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xattr_sizes_as_the_protocol_has_them() {
        assert!(matches!(sized(vec![1; 5], 0), Ok(Answer::XattrSize(5))));
        assert!(matches!(sized(vec![1; 5], 5), Ok(Answer::Bytes(value)) if value.len() == 5));
        assert!(matches!(sized(vec![1; 5], 4), Err(NodeError::Posix(Errno::RANGE))));
    }

    #[test]
    fn timeout_when_an_operation_changes_something_then_it_is_not_abandoned() {
        let open = |flags: i32| {
            let open_flags = OpenInFlags::NONE;
            timeout(&Operation::Open { flags: flags.cast_unsigned(), open_flags }).abandonable
        };
        assert!(open(libc::O_RDWR));
        assert!(!open(libc::O_WRONLY | libc::O_TRUNC));
        assert!(!timeout(&Operation::Unlink { name: b"x" }).abandonable);
        assert!(!timeout(&Operation::Mkdir { name: b"x", mode: 0, umask: 0 }).abandonable);
        assert!(timeout(&Operation::Fsync { fh: 1, datasync: true }).abandonable);
    }
}
