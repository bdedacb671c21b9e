//! A directory shown as it is: the file system that fusewire and fuser both serve, each through an
//! adapter of its own, so that only the transports differ.
//!
//! Nodes are inodes of the directory's file system, held by `O_PATH` descriptors; handles are open
//! files. Failures are numbers as in <errno.h>.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;
use rustix::fs::{
    AtFlags, CWD, Dir, FallocateFlags, Gid, Mode, OFlags, RawMode, RenameFlags, SeekFrom, Stat,
    Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

/// The root's node, in every FUSE file system.
pub const ROOT: u64 = 1;

pub type Outcome<T> = Result<T, i32>;

/// A directory, shown.
pub struct Mirror {
    nodes: RwLock<HashMap<u64, Node>>,
    files: RwLock<HashMap<u64, Arc<File>>>,
    listings: RwLock<HashMap<u64, Arc<Vec<Listed>>>>,
    root: u64,
}

struct Node {
    at: Arc<OwnedFd>,
    lookups: u64,
}

/// An entry of a directory.
pub struct Listed {
    pub ino: u64,
    /// The type, as in `st_mode`.
    pub mode: u32,
    pub name: Vec<u8>,
}

impl Listed {
    /// One of the two that every directory has.
    pub fn is_dot(&self) -> bool {
        matches!(&self.name[..], b"." | b"..")
    }
}

/// What a SETATTR wants to be changed.
#[derive(Default)]
pub struct Changes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<Timespec>,
    pub mtime: Option<Timespec>,
    pub fh: Option<u64>,
}

/// The time of now, for [`Changes`].
pub const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
const OMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };

fn failed(error: Errno) -> i32 {
    error.raw_os_error()
}

fn io_failed(error: std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn name(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// The path by which the kernel finds what an `O_PATH` descriptor stands for.
fn through(at: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", at.as_raw_fd())
}

/// A device number in 32 bits, as FUSE has it.
pub fn device_to_wire(device: u64) -> u32 {
    let (major, minor) = (libc::major(device), libc::minor(device));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

fn device_from_wire(device: u32) -> u64 {
    libc::makedev(device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff00)
}

impl Mirror {
    pub fn new(directory: &Path) -> std::io::Result<Self> {
        let at = rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        let root = rustix::fs::fstat(&at)?.st_ino;
        let nodes = HashMap::from([(ROOT, Node { at: Arc::new(at), lookups: 1 })]);
        Ok(Self {
            nodes: RwLock::new(nodes),
            files: RwLock::default(),
            listings: RwLock::default(),
            root,
        })
    }

    fn at(&self, node: u64) -> Outcome<Arc<OwnedFd>> {
        self.nodes.read().get(&node).map(|node| Arc::clone(&node.at)).ok_or(libc::ESTALE)
    }

    /// The open file `fh`.
    pub fn file(&self, fh: u64) -> Outcome<Arc<File>> {
        self.files.read().get(&fh).cloned().ok_or(libc::EBADF)
    }

    /// The node of an inode.
    pub fn node_of(&self, stat: &Stat) -> u64 {
        if stat.st_ino == self.root { ROOT } else { stat.st_ino }
    }

    /// Adds a lookup of the entry.
    pub fn lookup(&self, parent: u64, entry: &[u8]) -> Outcome<Stat> {
        let parent = self.at(parent)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let at = rustix::fs::openat(&parent, name(entry), flags, Mode::empty()).map_err(failed)?;
        let stat = rustix::fs::fstat(&at).map_err(failed)?;
        let mut nodes = self.nodes.write();
        let node =
            nodes.entry(self.node_of(&stat)).or_insert(Node { at: Arc::new(at), lookups: 0 });
        node.lookups += 1;
        Ok(stat)
    }

    pub fn forget(&self, node: u64, lookups: u64) {
        let mut nodes = self.nodes.write();
        let Some(known) = nodes.get_mut(&node) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups == 0 && node != ROOT {
            nodes.remove(&node);
        }
    }

    pub fn getattr(&self, node: u64, fh: Option<u64>) -> Outcome<Stat> {
        match fh {
            Some(fh) => rustix::fs::fstat(&*self.file(fh)?).map_err(failed),
            None => rustix::fs::fstat(&*self.at(node)?).map_err(failed),
        }
    }

    pub fn setattr(&self, node: u64, changes: &Changes) -> Outcome<Stat> {
        let at = self.at(node)?;
        if let Some(mode) = changes.mode {
            let mode = Mode::from_raw_mode(mode as RawMode & 0o7777);
            rustix::fs::chmod(through(&at), mode).map_err(failed)?;
        }
        if changes.uid.is_some() || changes.gid.is_some() {
            let (uid, gid) = (changes.uid.map(Uid::from_raw), changes.gid.map(Gid::from_raw));
            rustix::fs::chownat(&at, "", uid, gid, AtFlags::EMPTY_PATH).map_err(failed)?;
        }
        if let Some(size) = changes.size {
            match changes.fh {
                Some(fh) => rustix::fs::ftruncate(&*self.file(fh)?, size).map_err(failed)?,
                None => File::options()
                    .write(true)
                    .open(through(&at))
                    .and_then(|file| file.set_len(size))
                    .map_err(io_failed)?,
            }
        }
        if changes.atime.is_some() || changes.mtime.is_some() {
            let times = Timestamps {
                last_access: changes.atime.unwrap_or(OMIT),
                last_modification: changes.mtime.unwrap_or(OMIT),
            };
            rustix::fs::utimensat(CWD, through(&at), &times, AtFlags::empty()).map_err(failed)?;
        }
        rustix::fs::fstat(&*at).map_err(failed)
    }

    pub fn readlink(&self, node: u64) -> Outcome<Vec<u8>> {
        let target = rustix::fs::readlinkat(&*self.at(node)?, "", Vec::new()).map_err(failed)?;
        Ok(target.into_bytes())
    }

    pub fn symlink(&self, parent: u64, entry: &[u8], target: &[u8]) -> Outcome<Stat> {
        rustix::fs::symlinkat(name(target), &*self.at(parent)?, name(entry)).map_err(failed)?;
        self.lookup(parent, entry)
    }

    pub fn mknod(&self, parent: u64, entry: &[u8], mode: u32, device: u32) -> Outcome<Stat> {
        let kind = rustix::fs::FileType::from_raw_mode(mode);
        let permissions = Mode::from_raw_mode(mode & 0o7777);
        let device = device_from_wire(device);
        rustix::fs::mknodat(&*self.at(parent)?, name(entry), kind, permissions, device)
            .map_err(failed)?;
        self.lookup(parent, entry)
    }

    pub fn mkdir(&self, parent: u64, entry: &[u8], mode: u32) -> Outcome<Stat> {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        rustix::fs::mkdirat(&*self.at(parent)?, name(entry), mode).map_err(failed)?;
        self.lookup(parent, entry)
    }

    pub fn remove(&self, parent: u64, entry: &[u8], is_directory: bool) -> Outcome<()> {
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        rustix::fs::unlinkat(&*self.at(parent)?, name(entry), flags).map_err(failed)
    }

    pub fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Outcome<()> {
        let flags = RenameFlags::from_bits_retain(flags);
        let (old, new) = (self.at(from.0)?, self.at(to.0)?);
        rustix::fs::renameat_with(&*old, name(from.1), &*new, name(to.1), flags).map_err(failed)
    }

    pub fn link(&self, node: u64, parent: u64, entry: &[u8]) -> Outcome<Stat> {
        let (at, parent_at) = (self.at(node)?, self.at(parent)?);
        let flags = AtFlags::SYMLINK_FOLLOW;
        rustix::fs::linkat(CWD, through(&at), &*parent_at, name(entry), flags).map_err(failed)?;
        self.lookup(parent, entry)
    }

    fn keep(&self, file: OwnedFd) -> u64 {
        let fh = RawFd::from(file.as_raw_fd()).cast_unsigned().into();
        self.files.write().insert(fh, Arc::new(File::from(file)));
        fh
    }

    pub fn open(&self, node: u64, flags: u32) -> Outcome<u64> {
        let unwanted = (libc::O_NOFOLLOW | libc::O_CREAT | libc::O_EXCL).cast_unsigned();
        let flags = OFlags::from_bits_retain(flags & !unwanted) | OFlags::CLOEXEC;
        // The kernel has found the end of the file already, and says where to write.
        let flags = flags.difference(OFlags::APPEND);
        let file = rustix::fs::open(through(&*self.at(node)?), flags, Mode::empty());
        file.map(|file| self.keep(file)).map_err(failed)
    }

    pub fn create(&self, parent: u64, entry: &[u8], mode: u32, flags: u32) -> Outcome<(Stat, u64)> {
        let flags = OFlags::from_bits_retain(flags) | OFlags::CREATE | OFlags::CLOEXEC;
        let flags = flags.union(OFlags::NOFOLLOW).difference(OFlags::APPEND);
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let file = rustix::fs::openat(&*self.at(parent)?, name(entry), flags, mode);
        let file = file.map_err(failed)?;
        Ok((self.lookup(parent, entry)?, self.keep(file)))
    }

    pub fn read(&self, fh: u64, offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
        let file = self.file(fh)?;
        let mut done = 0;
        while done < buffer.len() {
            match file.read_at(&mut buffer[done..], offset + done as u64).map_err(io_failed)? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    pub fn write(&self, fh: u64, offset: u64, data: &[u8]) -> Outcome<u32> {
        let written = self.file(fh)?.write_at(data, offset).map_err(io_failed)?;
        u32::try_from(written).map_err(|_| libc::EIO)
    }

    pub fn release(&self, fh: u64) {
        // The number is free as soon as the file is closed: first out of the table, then closed.
        let file = self.files.write().remove(&fh);
        drop(file);
    }

    pub fn fsync(&self, fh: u64, datasync: bool) -> Outcome<()> {
        let file = self.file(fh)?;
        if datasync { file.sync_data() } else { file.sync_all() }.map_err(io_failed)
    }

    pub fn fallocate(&self, fh: u64, offset: u64, length: u64, mode: u32) -> Outcome<()> {
        let mode = FallocateFlags::from_bits_retain(mode);
        rustix::fs::fallocate(&*self.file(fh)?, mode, offset, length).map_err(failed)
    }

    pub fn seek(&self, fh: u64, offset: u64, whence: u32) -> Outcome<u64> {
        let offset = i64::try_from(offset).map_err(|_| libc::EINVAL)?;
        let place = match whence.cast_signed() {
            libc::SEEK_DATA => SeekFrom::Data(offset.cast_unsigned()),
            libc::SEEK_HOLE => SeekFrom::Hole(offset.cast_unsigned()),
            _ => return Err(libc::EINVAL),
        };
        rustix::fs::seek(&*self.file(fh)?, place).map_err(failed)
    }

    /// Copies between open files.
    pub fn copy(&self, from: (u64, u64), to: (u64, u64), length: u64) -> Outcome<u32> {
        let (source, target) = (self.file(from.0)?, self.file(to.0)?);
        let (mut read_at, mut write_at) = (from.1, to.1);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (old, new) = (Some(&mut read_at), Some(&mut write_at));
        let copied = rustix::fs::copy_file_range(&*source, old, &*target, new, length);
        u32::try_from(copied.map_err(failed)?).map_err(|_| libc::EIO)
    }

    pub fn opendir(&self, node: u64) -> Outcome<u64> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(through(&*self.at(node)?), flags, Mode::empty());
        let directory = directory.map_err(failed)?;
        let fh = u64::from(directory.as_raw_fd().cast_unsigned());
        let mut listed = Vec::new();
        for entry in Dir::read_from(directory.as_fd()).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            listed.push(Listed {
                ino: entry.ino(),
                mode: entry.file_type().as_raw_mode(),
                name: entry.file_name().to_bytes().to_vec(),
            });
        }
        self.files.write().insert(fh, Arc::new(File::from(directory)));
        self.listings.write().insert(fh, Arc::new(listed));
        Ok(fh)
    }

    /// The entries of an open directory.
    pub fn list(&self, fh: u64) -> Outcome<Arc<Vec<Listed>>> {
        self.listings.read().get(&fh).cloned().ok_or(libc::EBADF)
    }

    pub fn releasedir(&self, fh: u64) {
        self.listings.write().remove(&fh);
        self.release(fh);
    }

    pub fn statfs(&self, node: u64) -> Outcome<rustix::fs::StatVfs> {
        rustix::fs::fstatvfs(&*self.at(node)?).map_err(failed)
    }

    pub fn setxattr(&self, node: u64, key: &[u8], value: &[u8], flags: u32) -> Outcome<()> {
        let flags = XattrFlags::from_bits_retain(flags);
        rustix::fs::setxattr(through(&*self.at(node)?), name(key), value, flags).map_err(failed)
    }

    /// The value; its length is at most that of the longest there are.
    pub fn getxattr(&self, node: u64, key: &[u8]) -> Outcome<Vec<u8>> {
        let mut value = vec![0; 64 << 10];
        let length = rustix::fs::getxattr(through(&*self.at(node)?), name(key), &mut value[..]);
        value.truncate(length.map_err(failed)?);
        Ok(value)
    }

    pub fn listxattr(&self, node: u64) -> Outcome<Vec<u8>> {
        let mut names = vec![0; 64 << 10];
        let length = rustix::fs::listxattr(through(&*self.at(node)?), &mut names[..]);
        names.truncate(length.map_err(failed)?);
        Ok(names)
    }

    pub fn removexattr(&self, node: u64, key: &[u8]) -> Outcome<()> {
        rustix::fs::removexattr(through(&*self.at(node)?), name(key)).map_err(failed)
    }
}
