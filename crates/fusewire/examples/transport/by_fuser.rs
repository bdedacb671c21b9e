//! The mirror, served by fuser.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackingId, BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use rustix::fs::{Stat, Timespec};

use crate::mirror::{Changes, Mirror, NOW, Outcome, device_to_wire};

const GENERATION: Generation = Generation(0);

/// A mirror behind fuser.
pub struct ByFuser {
    mirror: Mirror,
    valid: Duration,
    passthrough: bool,
    backing: Mutex<HashMap<u64, BackingId>>,
}

fn time(seconds: i64, nanoseconds: u64) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole };
    base + Duration::from_nanos(nanoseconds)
}

fn kind(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn wanted(time: TimeOrNow) -> Timespec {
    let at = match time {
        TimeOrNow::Now => return NOW,
        TimeOrNow::SpecificTime(at) => at,
    };
    let signed = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
    match at.duration_since(UNIX_EPOCH) {
        Ok(since) => {
            Timespec { tv_sec: signed(since.as_secs()), tv_nsec: since.subsec_nanos().into() }
        }
        Err(before) => {
            let before = before.duration();
            let borrow = i64::from(before.subsec_nanos() > 0);
            let nanoseconds = borrow * 1_000_000_000 - i64::from(before.subsec_nanos());
            Timespec { tv_sec: -signed(before.as_secs()) - borrow, tv_nsec: nanoseconds }
        }
    }
}

impl ByFuser {
    pub fn new(mirror: Mirror, valid: Duration, passthrough: bool) -> Self {
        Self { mirror, valid, passthrough, backing: Mutex::default() }
    }

    fn attr(&self, stat: &Stat) -> FileAttr {
        FileAttr {
            ino: INodeNo(self.mirror.node_of(stat)),
            size: stat.st_size.cast_unsigned(),
            blocks: stat.st_blocks.cast_unsigned(),
            atime: time(stat.st_atime, stat.st_atime_nsec),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            ctime: time(stat.st_ctime, stat.st_ctime_nsec),
            crtime: UNIX_EPOCH,
            kind: kind(stat.st_mode),
            perm: (stat.st_mode & 0o7777) as u16,
            nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: device_to_wire(stat.st_rdev),
            blksize: 4096,
            flags: 0,
        }
    }

    fn entry(&self, reply: ReplyEntry, made: Outcome<Stat>) {
        match made {
            Ok(stat) => reply.entry(&self.valid, &self.attr(&stat), GENERATION),
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }

    fn attributes(&self, reply: ReplyAttr, stat: Outcome<Stat>) {
        match stat {
            Ok(stat) => reply.attr(&self.valid, &self.attr(&stat)),
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }

    fn backing(&self, fh: u64, open: impl FnOnce(&std::fs::File) -> io::Result<BackingId>) -> bool {
        if !self.passthrough {
            return false;
        }
        let Some(id) = self.mirror.file(fh).ok().and_then(|file| open(&file).ok()) else {
            return false;
        };
        self.backing.lock().insert(fh, id);
        true
    }
}

fn done(reply: ReplyEmpty, outcome: Outcome<()>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(Errno::from_i32(errno)),
    }
}

fn data(reply: ReplyData, outcome: Outcome<Vec<u8>>) {
    match outcome {
        Ok(bytes) => reply.data(&bytes),
        Err(errno) => reply.error(Errno::from_i32(errno)),
    }
}

fn sized(reply: ReplyXattr, value: Outcome<Vec<u8>>, size: u32) {
    match value {
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(Errno::from_i32(errno)),
    }
}

fn written(reply: ReplyWrite, outcome: Outcome<u32>) {
    match outcome {
        Ok(count) => reply.written(count),
        Err(errno) => reply.error(Errno::from_i32(errno)),
    }
}

#[rustfmt::skip] // one line for each operation where that is all it is
impl Filesystem for ByFuser {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // As much as fusewire is asked for; what the kernel lacks is left out.
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        let _ = config.add_capabilities(InitFlags::FUSE_DO_READDIRPLUS);
        let _ = config.add_capabilities(InitFlags::FUSE_READDIRPLUS_AUTO);
        let _ = config.set_max_write(1 << 20);
        let _ = config.set_max_background(64);
        if self.passthrough {
            let _ = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH);
            let _ = config.set_max_stack_depth(1);
        }
        Ok(())
    }
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(reply, self.mirror.lookup(parent.0, name.as_bytes()));
    }
    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.mirror.forget(node.0, lookups);
    }
    fn getattr(&self, _: &Request, node: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        self.attributes(reply, self.mirror.getattr(node.0, fh.map(|fh| fh.0)));
    }
    fn setattr(
        &self, _: &Request, node: INodeNo, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>,
        size: Option<u64>, atime: Option<TimeOrNow>, mtime: Option<TimeOrNow>,
        _: Option<SystemTime>, fh: Option<FileHandle>, _: Option<SystemTime>,
        _: Option<SystemTime>, _: Option<SystemTime>, _: Option<BsdFileFlags>, reply: ReplyAttr,
    ) {
        let (atime, mtime) = (atime.map(wanted), mtime.map(wanted));
        let changes = Changes { mode, uid, gid, size, atime, mtime, fh: fh.map(|fh| fh.0) };
        self.attributes(reply, self.mirror.setattr(node.0, &changes));
    }
    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        data(reply, self.mirror.readlink(node.0));
    }
    fn mknod(
        &self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, rdev: u32,
        reply: ReplyEntry,
    ) {
        self.entry(reply, self.mirror.mknod(parent.0, name.as_bytes(), mode, rdev));
    }
    fn mkdir(
        &self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry,
    ) {
        self.entry(reply, self.mirror.mkdir(parent.0, name.as_bytes(), mode));
    }
    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(reply, self.mirror.remove(parent.0, name.as_bytes(), false));
    }
    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(reply, self.mirror.remove(parent.0, name.as_bytes(), true));
    }
    fn symlink(
        &self, _: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry,
    ) {
        let target = target.as_os_str().as_bytes();
        self.entry(reply, self.mirror.symlink(parent.0, name.as_bytes(), target));
    }
    fn rename(
        &self, _: &Request, parent: INodeNo, name: &OsStr, new_parent: INodeNo, new: &OsStr,
        flags: RenameFlags, reply: ReplyEmpty,
    ) {
        let (old, new) = ((parent.0, name.as_bytes()), (new_parent.0, new.as_bytes()));
        done(reply, self.mirror.rename(old, new, flags.bits()));
    }
    fn link(
        &self, _: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry,
    ) {
        self.entry(reply, self.mirror.link(node.0, parent.0, name.as_bytes()));
    }
    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.mirror.open(node.0, flags.0.cast_unsigned()) {
            Ok(fh) if self.backing(fh, |file| reply.open_backing(file)) => {
                // The id leaves the table with the handle, which nobody knows yet.
                let table = self.backing.lock();
                let Some(id) = table.get(&fh) else { return reply.error(Errno::EIO) };
                reply.opened_passthrough(FileHandle(fh), FopenFlags::FOPEN_NOFLUSH, id);
            }
            Ok(fh) => reply.opened(FileHandle(fh), FopenFlags::empty()),
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }
    fn create(
        &self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self.mirror.create(parent.0, name.as_bytes(), mode, flags.cast_unsigned());
        match made {
            Ok((stat, fh)) if self.backing(fh, |file| reply.open_backing(file)) => {
                let table = self.backing.lock();
                let Some(id) = table.get(&fh) else { return reply.error(Errno::EIO) };
                let (attr, flags) = (self.attr(&stat), FopenFlags::FOPEN_NOFLUSH);
                let fh = FileHandle(fh);
                reply.created_passthrough(&self.valid, &attr, GENERATION, fh, flags, id);
            }
            Ok((stat, fh)) => {
                let (attr, flags) = (self.attr(&stat), FopenFlags::empty());
                reply.created(&self.valid, &attr, GENERATION, FileHandle(fh), flags);
            }
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }
    fn read(
        &self, _: &Request, _: INodeNo, fh: FileHandle, offset: u64, size: u32, _: OpenFlags,
        _: Option<LockOwner>, reply: ReplyData,
    ) {
        let mut buffer = vec![0; size as usize];
        match self.mirror.read(fh.0, offset, &mut buffer) {
            Ok(length) => reply.data(&buffer[..length]),
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }
    fn write(
        &self, _: &Request, _: INodeNo, fh: FileHandle, offset: u64, data: &[u8], _: WriteFlags,
        _: OpenFlags, _: Option<LockOwner>, reply: ReplyWrite,
    ) {
        written(reply, self.mirror.write(fh.0, offset, data));
    }
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
    fn release(
        &self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, _: Option<LockOwner>,
        _: bool, reply: ReplyEmpty,
    ) {
        drop(self.backing.lock().remove(&fh.0));
        self.mirror.release(fh.0);
        reply.ok();
    }
    fn fsync(&self, _: &Request, _: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        done(reply, self.mirror.fsync(fh.0, datasync));
    }
    fn opendir(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.mirror.opendir(node.0) {
            Ok(fh) => reply.opened(FileHandle(fh), FopenFlags::empty()),
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }
    fn readdir(
        &self, _: &Request, _: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory,
    ) {
        let listed = match self.mirror.list(fh.0) {
            Ok(listed) => listed,
            Err(errno) => return reply.error(Errno::from_i32(errno)),
        };
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, entry) in listed.iter().enumerate().skip(start) {
            let (next, name) = (index as u64 + 1, OsStr::from_bytes(&entry.name));
            if reply.add(INodeNo(entry.ino), next, kind(entry.mode), name) {
                break;
            }
        }
        reply.ok();
    }
    fn readdirplus(
        &self, _: &Request, node: INodeNo, fh: FileHandle, offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = match self.mirror.list(fh.0) {
            Ok(listed) => listed,
            Err(errno) => return reply.error(Errno::from_i32(errno)),
        };
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, listed) in listed.iter().enumerate().skip(start) {
            let found = match listed.is_dot() {
                true => self.mirror.getattr(node.0, None),
                false => self.mirror.lookup(node.0, &listed.name),
            };
            // Removed meanwhile: no entry any more.
            let Ok(stat) = found else { continue };
            let (next, name) = (index as u64 + 1, OsStr::from_bytes(&listed.name));
            let attr = self.attr(&stat);
            if reply.add(attr.ino, next, name, &self.valid, &attr, GENERATION) {
                if !listed.is_dot() {
                    self.mirror.forget(attr.ino.0, 1);
                }
                break;
            }
        }
        reply.ok();
    }
    fn releasedir(
        &self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty,
    ) {
        self.mirror.releasedir(fh.0);
        reply.ok();
    }
    fn fsyncdir(&self, _: &Request, _: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        done(reply, self.mirror.fsync(fh.0, datasync));
    }
    fn statfs(&self, _: &Request, node: INodeNo, reply: ReplyStatfs) {
        let narrow = |number: u64| u32::try_from(number).unwrap_or(4096);
        match self.mirror.statfs(node.0) {
            Ok(found) => reply.statfs(
                found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree,
                narrow(found.f_bsize), narrow(found.f_namemax), narrow(found.f_frsize),
            ),
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }
    fn setxattr(
        &self, _: &Request, node: INodeNo, name: &OsStr, value: &[u8], flags: i32, _: u32,
        reply: ReplyEmpty,
    ) {
        let flags = flags.cast_unsigned();
        done(reply, self.mirror.setxattr(node.0, name.as_bytes(), value, flags));
    }
    fn getxattr(&self, _: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        sized(reply, self.mirror.getxattr(node.0, name.as_bytes()), size);
    }
    fn listxattr(&self, _: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        sized(reply, self.mirror.listxattr(node.0), size);
    }
    fn removexattr(&self, _: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(reply, self.mirror.removexattr(node.0, name.as_bytes()));
    }
    fn fallocate(
        &self, _: &Request, _: INodeNo, fh: FileHandle, offset: u64, length: u64, mode: i32,
        reply: ReplyEmpty,
    ) {
        done(reply, self.mirror.fallocate(fh.0, offset, length, mode.cast_unsigned()));
    }
    fn lseek(
        &self, _: &Request, _: INodeNo, fh: FileHandle, offset: i64, whence: i32,
        reply: ReplyLseek,
    ) {
        let found = self.mirror.seek(fh.0, offset.cast_unsigned(), whence.cast_unsigned());
        match found.map(|offset| i64::try_from(offset).unwrap_or(i64::MAX)) {
            Ok(offset) => reply.offset(offset),
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }
    fn copy_file_range(
        &self, _: &Request, _: INodeNo, from: FileHandle, from_offset: u64, _: INodeNo,
        to: FileHandle, to_offset: u64, length: u64, _: CopyFileRangeFlags, reply: ReplyWrite,
    ) {
        written(reply, self.mirror.copy((from.0, from_offset), (to.0, to_offset), length));
    }
}
