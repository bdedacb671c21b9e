//! A file system in memory.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use fusewire::{
    Attr, Connection, DirectoryBuffer, Entry, FileKind, Handler, OpenOutFlags, Opened, Operation,
    ROOT_NODE, Reply, Request, SetAttributes, SetTime, Statfs, Timestamp,
};
use parking_lot::Mutex;

/// How long the kernel may cache names and attributes: only this process changes them, so long.
const VALID: Duration = Duration::from_secs(60);
/// Cookies of the two entries that every directory has.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
const NAME_MAX: usize = 255;
/// Largest file, so that no request can make the process allocate without bound.
const SIZE_MAX: u64 = 1 << 30;

/// Files, directories and symbolic links, kept until unmounted.
pub struct Ramfs {
    state: Mutex<State>,
    /// Whether every read and write comes here: the kernel keeps no bytes of files.
    pub direct: bool,
}

struct State {
    inodes: HashMap<u64, Inode>,
    next: u64,
}

struct Inode {
    attr: Attr,
    body: Body,
    lookups: u64,
    opens: u64,
}

enum Body {
    File(Vec<u8>),
    /// Names, and the directory above.
    Directory(Children, u64),
    Symlink(Vec<u8>),
    Special,
}

type Children = BTreeMap<Vec<u8>, Child>;

#[derive(Clone, Copy)]
struct Child {
    node: u64,
    /// Where a listing goes on after this entry; grows with every entry made, so that entries
    /// that come and go while someone lists do not make others appear twice or not at all.
    cookie: u64,
}

type Outcome<T> = Result<T, i32>;

/// What the caller brings to a new inode.
#[derive(Clone, Copy)]
struct Creator {
    parent: u64,
    uid: u32,
    gid: u32,
}

impl Default for Ramfs {
    fn default() -> Self {
        let now = Timestamp::now();
        let attr = Attr {
            ino: ROOT_NODE,
            mode: libc::S_IFDIR | 0o755,
            nlink: 2,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            blksize: 4096,
            atime: now,
            mtime: now,
            ctime: now,
            ..Attr::default()
        };
        let body = Body::Directory(BTreeMap::new(), ROOT_NODE);
        let root = Inode { attr, body, lookups: 1, opens: 0 };
        let inodes = HashMap::from([(ROOT_NODE, root)]);
        Self { state: Mutex::new(State { inodes, next: DOT_DOT + 1 }), direct: false }
    }
}

impl Inode {
    fn entry(&self) -> Entry {
        let node = self.attr.ino;
        Entry { node, generation: 0, attr: self.attr, entry_valid: VALID, attr_valid: VALID }
    }

    fn children(&mut self) -> Outcome<&mut Children> {
        match &mut self.body {
            Body::Directory(children, _) => Ok(children),
            _ => Err(libc::ENOTDIR),
        }
    }

    fn content(&mut self) -> Outcome<&mut Vec<u8>> {
        match &mut self.body {
            Body::File(content) => Ok(content),
            Body::Directory(..) => Err(libc::EISDIR),
            _ => Err(libc::EINVAL),
        }
    }

    fn resize(&mut self, size: u64) -> Outcome<()> {
        if size > SIZE_MAX {
            return Err(libc::EFBIG);
        }
        self.content()?.resize(size as usize, 0);
        self.attr.size = size;
        self.attr.blocks = size.div_ceil(512);
        self.touch();
        Ok(())
    }

    fn touch(&mut self) {
        self.attr.mtime = Timestamp::now();
        self.attr.ctime = self.attr.mtime;
    }

    fn set(&mut self, wanted: &SetAttributes) -> Outcome<()> {
        if let Some(size) = wanted.size {
            self.resize(size)?;
        }
        let attr = &mut self.attr;
        if let Some(mode) = wanted.mode {
            attr.mode = attr.mode & libc::S_IFMT | mode & !libc::S_IFMT;
        }
        attr.uid = wanted.uid.unwrap_or(attr.uid);
        attr.gid = wanted.gid.unwrap_or(attr.gid);
        let time = |wanted: SetTime| match wanted {
            SetTime::Now => Timestamp::now(),
            SetTime::At(time) => time,
        };
        attr.atime = wanted.atime.map_or(attr.atime, time);
        attr.mtime = wanted.mtime.map_or(attr.mtime, time);
        attr.ctime = Timestamp::now();
        Ok(())
    }
}

impl State {
    fn inode(&mut self, node: u64) -> Outcome<&mut Inode> {
        self.inodes.get_mut(&node).ok_or(libc::ESTALE)
    }

    fn child(&mut self, parent: u64, name: &[u8]) -> Outcome<u64> {
        self.inode(parent)?.children()?.get(name).map(|child| child.node).ok_or(libc::ENOENT)
    }

    fn lookup(&mut self, parent: u64, name: &[u8]) -> Outcome<Entry> {
        if name.len() > NAME_MAX {
            return Err(libc::ENAMETOOLONG);
        }
        let node = self.child(parent, name)?;
        let inode = self.inode(node)?;
        inode.lookups += 1;
        Ok(inode.entry())
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn create(&mut self, by: Creator, name: &[u8], mode: u32, body: Body) -> Outcome<Entry> {
        if name.len() > NAME_MAX {
            return Err(libc::ENAMETOOLONG);
        }
        let (node, cookie) = (self.number(), self.number());
        let directory = matches!(body, Body::Directory(..));
        let parent = self.inode(by.parent)?;
        let children = parent.children()?;
        if children.contains_key(name) {
            return Err(libc::EEXIST);
        }
        children.insert(name.to_vec(), Child { node, cookie });
        parent.attr.nlink += u32::from(directory);
        parent.touch();
        let now = Timestamp::now();
        let size = if let Body::Symlink(target) = &body { target.len() as u64 } else { 0 };
        let attr = Attr {
            ino: node,
            size,
            mode,
            nlink: 1 + u32::from(directory),
            uid: by.uid,
            gid: by.gid,
            blksize: 4096,
            atime: now,
            mtime: now,
            ctime: now,
            ..Attr::default()
        };
        let inode = Inode { attr, body, lookups: 1, opens: 0 };
        let entry = inode.entry();
        self.inodes.insert(node, inode);
        Ok(entry)
    }

    fn remove(&mut self, parent: u64, name: &[u8], directory: bool) -> Outcome<()> {
        let node = self.child(parent, name)?;
        let inode = self.inode(node)?;
        match &inode.body {
            Body::Directory(children, _) if directory && !children.is_empty() => {
                return Err(libc::ENOTEMPTY);
            }
            Body::Directory(..) if !directory => return Err(libc::EISDIR),
            Body::Directory(..) => inode.attr.nlink = 0,
            _ if directory => return Err(libc::ENOTDIR),
            _ => inode.attr.nlink -= 1,
        }
        inode.attr.ctime = Timestamp::now();
        self.collect(node);
        let parent = self.inode(parent)?;
        parent.children()?.remove(name);
        parent.attr.nlink -= u32::from(directory);
        parent.touch();
        Ok(())
    }

    /// Drops an inode that nothing refers to.
    fn collect(&mut self, node: u64) {
        let unused =
            |inode: &Inode| inode.attr.nlink == 0 && inode.lookups == 0 && inode.opens == 0;
        if self.inodes.get(&node).is_some_and(unused) {
            self.inodes.remove(&node);
        }
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Outcome<()> {
        if flags & !libc::RENAME_NOREPLACE != 0 {
            return Err(libc::EINVAL);
        }
        let node = self.child(from.0, from.1)?;
        let directory = matches!(self.inode(node)?.body, Body::Directory(..));
        match self.child(to.0, to.1) {
            Ok(_) if flags & libc::RENAME_NOREPLACE != 0 => return Err(libc::EEXIST),
            Ok(same) if same == node => return Ok(()),
            Ok(_) => self.remove(to.0, to.1, directory)?,
            Err(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
        let cookie = self.number();
        self.inode(from.0)?.children()?.remove(from.1);
        self.inode(to.0)?.children()?.insert(to.1.to_vec(), Child { node, cookie });
        if directory {
            self.inode(from.0)?.attr.nlink -= 1;
            self.inode(to.0)?.attr.nlink += 1;
            if let Body::Directory(_, above) = &mut self.inode(node)?.body {
                *above = to.0;
            }
        }
        self.inode(from.0)?.touch();
        self.inode(to.0)?.touch();
        Ok(())
    }

    fn link(&mut self, node: u64, parent: u64, name: &[u8]) -> Outcome<Entry> {
        let cookie = self.number();
        let children = self.inode(parent)?.children()?;
        if children.contains_key(name) {
            return Err(libc::EEXIST);
        }
        children.insert(name.to_vec(), Child { node, cookie });
        let inode = self.inode(node)?;
        inode.attr.nlink += 1;
        inode.attr.ctime = Timestamp::now();
        inode.lookups += 1;
        Ok(inode.entry())
    }

    fn write(&mut self, node: u64, offset: u64, data: &[u8]) -> Outcome<u32> {
        let end = offset.checked_add(data.len() as u64).ok_or(libc::EFBIG)?;
        let inode = self.inode(node)?;
        if end > inode.attr.size {
            inode.resize(end)?;
        }
        inode.content()?[offset as usize..end as usize].copy_from_slice(data);
        inode.touch();
        u32::try_from(data.len()).map_err(|_| libc::EFBIG)
    }

    fn open(&mut self, node: u64, truncate: bool) -> Outcome<Opened> {
        let inode = self.inode(node)?;
        if truncate {
            inode.resize(0)?;
        }
        inode.opens += 1;
        Ok(Opened::default())
    }

    fn release(&mut self, node: u64) -> Outcome<()> {
        let inode = self.inode(node)?;
        inode.opens = inode.opens.saturating_sub(1);
        self.collect(node);
        Ok(())
    }

    /// Fills `list` from the entry after the cookie `offset`; "." and ".." come first.
    fn list(
        &mut self,
        node: u64,
        offset: u64,
        plus: bool,
        list: &mut DirectoryBuffer,
    ) -> Outcome<()> {
        let directory = self.inodes.get(&node).ok_or(libc::ESTALE)?;
        let Body::Directory(children, above) = &directory.body else { return Err(libc::ENOTDIR) };
        let mut entries = vec![(DOT, node, &b"."[..]), (DOT_DOT, *above, &b".."[..])];
        entries.extend(children.iter().map(|(name, child)| (child.cookie, child.node, &name[..])));
        entries.sort_unstable_by_key(|entry| entry.0);
        let mut listed = Vec::new();
        for (cookie, child, name) in entries.into_iter().filter(|entry| entry.0 > offset) {
            let inode = self.inodes.get(&child).ok_or(libc::ESTALE)?;
            let attr = inode.attr;
            let added = if plus {
                let mut entry = inode.entry();
                if cookie <= DOT_DOT {
                    entry.node = 0;
                }
                list.add_plus(&entry, cookie, name)
            } else {
                list.add(child, cookie, FileKind::from_mode(attr.mode), name)
            };
            if !added {
                break;
            }
            if plus && cookie > DOT_DOT {
                listed.push(child);
            }
        }
        for child in listed {
            self.inode(child)?.lookups += 1;
        }
        Ok(())
    }
}

/// Sends what `outcome` says.
fn answer<T>(reply: Reply, outcome: Outcome<T>, send: impl FnOnce(Reply, T)) {
    match outcome {
        Ok(value) => send(reply, value),
        Err(errno) => reply.error(errno),
    }
}

impl Ramfs {
    /// What the kernel is told of an open file.
    fn way(&self, opened: Opened) -> Opened {
        if !self.direct {
            return opened;
        }
        Opened { flags: opened.flags | OpenOutFlags::DIRECT_IO, ..opened }
    }

    fn handle_names(&self, request: &Request, operation: Operation<'_>, reply: Reply) {
        let header = request.header();
        let by = Creator { parent: header.node, uid: header.uid, gid: header.gid };
        let state = &mut *self.state.lock();
        let entry = |reply: Reply, entry: Entry| reply.entry(&entry);
        match operation {
            Operation::Lookup { name } => answer(reply, state.lookup(header.node, name), entry),
            Operation::Mkdir { name, mode, .. } => {
                let body = Body::Directory(BTreeMap::new(), header.node);
                answer(reply, state.create(by, name, mode & 0o7777 | libc::S_IFDIR, body), entry);
            }
            Operation::Mknod { name, mode, .. } => {
                let regular = FileKind::from_mode(mode) == FileKind::Regular;
                let body = if regular { Body::File(Vec::new()) } else { Body::Special };
                answer(reply, state.create(by, name, mode, body), entry);
            }
            Operation::Symlink { name, target } => {
                let body = Body::Symlink(target.to_vec());
                answer(reply, state.create(by, name, libc::S_IFLNK | 0o777, body), entry);
            }
            Operation::Link { node, name } => {
                answer(reply, state.link(node, header.node, name), entry);
            }
            Operation::Create { name, mode, .. } => {
                let body = Body::File(Vec::new());
                let made = state.create(by, name, mode & 0o7777 | libc::S_IFREG, body);
                let opened = made.and_then(|entry| Ok((entry, state.open(entry.node, false)?)));
                answer(reply, opened, |reply, (entry, opened)| {
                    reply.created(&entry, &self.way(opened));
                });
            }
            Operation::Unlink { name } => {
                answer(reply, state.remove(header.node, name, false), |reply, ()| reply.ok());
            }
            Operation::Rmdir { name } => {
                answer(reply, state.remove(header.node, name, true), |reply, ()| reply.ok());
            }
            Operation::Rename { old, new_parent, new, flags } => {
                let outcome = state.rename((header.node, old), (new_parent, new), flags);
                answer(reply, outcome, |reply, ()| reply.ok());
            }
            _ => reply.error(libc::ENOSYS),
        }
    }

    fn handle_nodes(&self, node: u64, operation: Operation<'_>, reply: Reply) {
        let state = &mut *self.state.lock();
        match operation {
            Operation::Getattr { .. } => {
                let outcome = state.inode(node).map(|inode| inode.attr);
                answer(reply, outcome, |reply, attr| reply.attr(&attr, VALID));
            }
            Operation::Setattr(wanted) => {
                let outcome = state.inode(node).and_then(|inode| {
                    inode.set(&wanted)?;
                    Ok(inode.attr)
                });
                answer(reply, outcome, |reply, attr| reply.attr(&attr, VALID));
            }
            Operation::Readlink => match state.inode(node).map(|inode| &inode.body) {
                Ok(Body::Symlink(target)) => reply.readlink(target),
                _ => reply.error(libc::EINVAL),
            },
            Operation::Open { flags, .. } => {
                let truncate = flags & libc::O_TRUNC.cast_unsigned() != 0;
                let outcome = state.open(node, truncate);
                answer(reply, outcome, |reply, opened| reply.open(&self.way(opened)));
            }
            Operation::Opendir { .. } => {
                answer(reply, state.open(node, false), |reply, opened| reply.open(&opened));
            }
            Operation::Release { .. } | Operation::Releasedir { .. } => {
                answer(reply, state.release(node), |reply, ()| reply.ok());
            }
            Operation::Read { offset, size, .. } => {
                match state.inode(node).and_then(|inode| inode.content()) {
                    Ok(content) => {
                        let start = content.len().min(offset as usize);
                        let end = content.len().min(start + size as usize);
                        reply.data(&content[start..end]);
                    }
                    Err(errno) => reply.error(errno),
                }
            }
            Operation::Write { offset, data, .. } => {
                let outcome = state.write(node, offset, data);
                answer(reply, outcome, Reply::written);
            }
            Operation::Readdir { offset, size, .. }
            | Operation::Readdirplus { offset, size, .. } => {
                let plus = matches!(operation, Operation::Readdirplus { .. });
                let mut list = DirectoryBuffer::new(reply.connection(), size);
                let outcome = state.list(node, offset, plus, &mut list);
                answer(reply, outcome, |reply, ()| reply.directory(list));
            }
            _ => reply.error(libc::ENOSYS),
        }
    }
}

impl Handler for Ramfs {
    fn init(&self, connection: &Connection) {
        tracing::debug!(?connection, "serving");
    }

    fn handle(&self, request: Request, reply: Reply) {
        let Ok(operation) = request.operation() else { return reply.error(libc::EIO) };
        match operation {
            Operation::Statfs => reply.statfs(&Statfs {
                blocks: 1 << 20,
                bfree: 1 << 19,
                bavail: 1 << 19,
                files: 1 << 20,
                ffree: 1 << 19,
                bsize: 4096,
                namelen: NAME_MAX as u32,
                frsize: 4096,
            }),
            // All is in memory: nothing to flush or to make durable.
            Operation::Flush { .. } | Operation::Fsync { .. } | Operation::Fsyncdir { .. } => {
                reply.ok();
            }
            Operation::Lookup { .. }
            | Operation::Mkdir { .. }
            | Operation::Mknod { .. }
            | Operation::Symlink { .. }
            | Operation::Link { .. }
            | Operation::Create { .. }
            | Operation::Unlink { .. }
            | Operation::Rmdir { .. }
            | Operation::Rename { .. } => self.handle_names(&request, operation, reply),
            operation => self.handle_nodes(request.header().node, operation, reply),
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        let state = &mut *self.state.lock();
        if let Ok(inode) = state.inode(node) {
            inode.lookups = inode.lookups.saturating_sub(lookups);
            state.collect(node);
        }
    }
}
