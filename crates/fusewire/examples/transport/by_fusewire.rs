//! The mirror, served by fusewire.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::Duration;

use fusewire::{
    Attr, DirectoryBuffer, Entry, FileKind, Handler, OpenOutFlags, Opened, Operation, Reply,
    Request, SetAttributes, SetTime, Statfs, Timestamp,
};
use parking_lot::Mutex;
use rustix::fs::{Stat, Timespec};

use crate::mirror::{Changes, Listed, Mirror, NOW, Outcome, device_to_wire};

/// A mirror behind fusewire.
pub struct ByFusewire {
    pub mirror: Mirror,
    /// How long the kernel may believe what it was told.
    pub valid: Duration,
    /// Open files are read and written by the kernel itself.
    pub passthrough: bool,
    pub backing: Mutex<HashMap<u64, u32>>,
}

impl ByFusewire {
    pub fn new(mirror: Mirror, valid: Duration, passthrough: bool) -> Self {
        Self { mirror, valid, passthrough, backing: Mutex::default() }
    }

    fn attr(&self, stat: &Stat) -> Attr {
        let time = |seconds, nanoseconds: u64| {
            Timestamp::new(seconds, u32::try_from(nanoseconds).unwrap_or(0))
        };
        Attr {
            ino: self.mirror.node_of(stat),
            size: stat.st_size.cast_unsigned(),
            blocks: stat.st_blocks.cast_unsigned(),
            atime: time(stat.st_atime, stat.st_atime_nsec),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            ctime: time(stat.st_ctime, stat.st_ctime_nsec),
            mode: stat.st_mode,
            nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: device_to_wire(stat.st_rdev),
            blksize: 4096,
            ..Attr::default()
        }
    }

    fn entry(&self, stat: &Stat) -> Entry {
        let attr = self.attr(stat);
        let node = attr.ino;
        Entry { node, generation: 0, attr, entry_valid: self.valid, attr_valid: self.valid }
    }

    fn opened(&self, reply: &Reply, fh: u64) -> Opened {
        let mut opened = Opened { fh, ..Opened::default() };
        if self.passthrough
            && let Ok(file) = self.mirror.file(fh)
            && let Ok(id) = reply.connection().backing_open(file.as_fd())
        {
            self.backing.lock().insert(fh, id);
            opened.backing_id = Some(id);
            opened.flags = OpenOutFlags::NOFLUSH;
        }
        opened
    }

    fn names(&self, node: u64, operation: Operation<'_>, reply: Reply) {
        let mirror = &self.mirror;
        let entry = |reply: Reply, made: Outcome<Stat>| match made {
            Ok(stat) => reply.entry(&self.entry(&stat)),
            Err(errno) => reply.error(errno),
        };
        match operation {
            Operation::Lookup { name } => entry(reply, mirror.lookup(node, name)),
            Operation::Symlink { name, target } => entry(reply, mirror.symlink(node, name, target)),
            Operation::Mknod { name, mode, rdev, .. } => {
                entry(reply, mirror.mknod(node, name, mode, rdev));
            }
            Operation::Mkdir { name, mode, .. } => entry(reply, mirror.mkdir(node, name, mode)),
            Operation::Link { node: of, name } => entry(reply, mirror.link(of, node, name)),
            Operation::Unlink { name } => done(reply, mirror.remove(node, name, false)),
            Operation::Rmdir { name } => done(reply, mirror.remove(node, name, true)),
            Operation::Rename { old, new_parent, new, flags } => {
                done(reply, mirror.rename((node, old), (new_parent, new), flags));
            }
            Operation::Create { name, mode, flags, .. } => {
                match mirror.create(node, name, mode, flags) {
                    Ok((stat, fh)) => {
                        let opened = self.opened(&reply, fh);
                        reply.created(&self.entry(&stat), &opened);
                    }
                    Err(errno) => reply.error(errno),
                }
            }
            _ => reply.error(libc::ENOSYS),
        }
    }

    fn attributes(&self, node: u64, operation: Operation<'_>, reply: Reply) {
        let mirror = &self.mirror;
        let attr = |reply: Reply, stat: Outcome<Stat>| match stat {
            Ok(stat) => reply.attr(&self.attr(&stat), self.valid),
            Err(errno) => reply.error(errno),
        };
        let sized = |reply: Reply, value: Outcome<Vec<u8>>, size: u32| match value {
            Ok(value) if size == 0 => {
                reply.xattr_size(u32::try_from(value.len()).unwrap_or(u32::MAX));
            }
            Ok(value) if value.len() > size as usize => reply.error(libc::ERANGE),
            Ok(value) => reply.data(&value),
            Err(errno) => reply.error(errno),
        };
        match operation {
            Operation::Getattr { fh } => attr(reply, mirror.getattr(node, fh)),
            Operation::Setattr(set) => attr(reply, mirror.setattr(node, &changes(&set))),
            Operation::Readlink => match mirror.readlink(node) {
                Ok(target) => reply.readlink(&target),
                Err(errno) => reply.error(errno),
            },
            Operation::Getxattr { name, size } => sized(reply, mirror.getxattr(node, name), size),
            Operation::Listxattr { size } => sized(reply, mirror.listxattr(node), size),
            Operation::Setxattr { name, value, flags, .. } => {
                done(reply, mirror.setxattr(node, name, value, flags));
            }
            Operation::Removexattr { name } => done(reply, mirror.removexattr(node, name)),
            Operation::Statfs => match mirror.statfs(node) {
                Ok(found) => reply.statfs(&Statfs {
                    blocks: found.f_blocks,
                    bfree: found.f_bfree,
                    bavail: found.f_bavail,
                    files: found.f_files,
                    ffree: found.f_ffree,
                    bsize: u32::try_from(found.f_bsize).unwrap_or(4096),
                    namelen: u32::try_from(found.f_namemax).unwrap_or(255),
                    frsize: u32::try_from(found.f_frsize).unwrap_or(4096),
                }),
                Err(errno) => reply.error(errno),
            },
            _ => reply.error(libc::ENOSYS),
        }
    }

    fn files(&self, node: u64, operation: Operation<'_>, reply: Reply) {
        let mirror = &self.mirror;
        match operation {
            Operation::Open { flags, .. } => match mirror.open(node, flags) {
                Ok(fh) => {
                    let opened = self.opened(&reply, fh);
                    reply.open(&opened);
                }
                Err(errno) => reply.error(errno),
            },
            Operation::Read { fh, offset, size, .. } => {
                let mut buffer = reply.connection().buffer();
                let size = buffer.len().min(size as usize);
                match mirror.read(fh, offset, &mut buffer[..size]) {
                    Ok(length) => reply.data(&buffer[..length]),
                    Err(errno) => reply.error(errno),
                }
            }
            Operation::Write { fh, offset, data, .. } => match mirror.write(fh, offset, data) {
                Ok(written) => reply.written(written),
                Err(errno) => reply.error(errno),
            },
            Operation::Flush { .. } => reply.ok(),
            Operation::Release { fh, .. } => {
                let id = self.backing.lock().remove(&fh);
                if let Some(id) = id {
                    // Nothing can be done about a failure, and it hurts nobody.
                    let _ = reply.connection().backing_close(id);
                }
                mirror.release(fh);
                reply.ok();
            }
            Operation::Fsync { fh, datasync } | Operation::Fsyncdir { fh, datasync } => {
                done(reply, mirror.fsync(fh, datasync));
            }
            Operation::Fallocate { fh, offset, length, mode } => {
                done(reply, mirror.fallocate(fh, offset, length, mode));
            }
            Operation::Lseek { fh, offset, whence } => match mirror.seek(fh, offset, whence) {
                Ok(offset) => reply.lseek(offset),
                Err(errno) => reply.error(errno),
            },
            Operation::CopyFileRange(range) => {
                let (from, to) = ((range.fh_in, range.offset_in), (range.fh_out, range.offset_out));
                match mirror.copy(from, to, range.length) {
                    Ok(copied) => reply.written(copied),
                    Err(errno) => reply.error(errno),
                }
            }
            _ => reply.error(libc::ENOSYS),
        }
    }

    fn list_plus(&self, node: u64, listed: &[Listed], offset: u64, list: &mut DirectoryBuffer) {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, listed) in listed.iter().enumerate().skip(start) {
            let next = index as u64 + 1;
            let attr = Attr { ino: listed.ino, mode: listed.mode, ..Attr::default() };
            let mut entry = Entry { attr, ..Entry::default() };
            if !listed.is_dot() {
                // Removed meanwhile: no entry any more.
                let Ok(stat) = self.mirror.lookup(node, &listed.name) else { continue };
                entry = self.entry(&stat);
            }
            if !list.add_plus(&entry, next, &listed.name) {
                self.mirror.forget(entry.node, 1);
                return;
            }
        }
    }

    fn directories(&self, node: u64, operation: Operation<'_>, reply: Reply) {
        match operation {
            Operation::Opendir { .. } => match self.mirror.opendir(node) {
                Ok(fh) => reply.open(&Opened { fh, ..Opened::default() }),
                Err(errno) => reply.error(errno),
            },
            Operation::Readdir { fh, offset, size } => match self.mirror.list(fh) {
                Ok(listed) => {
                    let mut list = DirectoryBuffer::new(reply.connection(), size);
                    let start = usize::try_from(offset).unwrap_or(usize::MAX);
                    for (index, entry) in listed.iter().enumerate().skip(start) {
                        let kind = FileKind::from_mode(entry.mode);
                        if !list.add(entry.ino, index as u64 + 1, kind, &entry.name) {
                            break;
                        }
                    }
                    reply.directory(list);
                }
                Err(errno) => reply.error(errno),
            },
            Operation::Readdirplus { fh, offset, size } => match self.mirror.list(fh) {
                Ok(listed) => {
                    let mut list = DirectoryBuffer::new(reply.connection(), size);
                    self.list_plus(node, &listed, offset, &mut list);
                    reply.directory(list);
                }
                Err(errno) => reply.error(errno),
            },
            Operation::Releasedir { fh, .. } => {
                self.mirror.releasedir(fh);
                reply.ok();
            }
            _ => reply.error(libc::ENOSYS),
        }
    }
}

fn done(reply: Reply, outcome: Outcome<()>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn changes(set: &SetAttributes) -> Changes {
    let time = |time: SetTime| match time {
        SetTime::Now => NOW,
        SetTime::At(at) => Timespec { tv_sec: at.seconds, tv_nsec: i64::from(at.nanoseconds) },
    };
    Changes {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.atime.map(time),
        mtime: set.mtime.map(time),
        fh: set.fh,
    }
}

impl Handler for ByFusewire {
    fn handle(&self, request: Request, reply: Reply) {
        let node = request.header().node;
        let Ok(operation) = request.operation() else { return reply.error(libc::EIO) };
        match operation {
            Operation::Lookup { .. }
            | Operation::Symlink { .. }
            | Operation::Mknod { .. }
            | Operation::Mkdir { .. }
            | Operation::Link { .. }
            | Operation::Unlink { .. }
            | Operation::Rmdir { .. }
            | Operation::Rename { .. }
            | Operation::Create { .. } => self.names(node, operation, reply),
            Operation::Opendir { .. }
            | Operation::Readdir { .. }
            | Operation::Readdirplus { .. }
            | Operation::Releasedir { .. } => {
                self.directories(node, operation, reply);
            }
            Operation::Getattr { .. }
            | Operation::Setattr(_)
            | Operation::Readlink
            | Operation::Getxattr { .. }
            | Operation::Listxattr { .. }
            | Operation::Setxattr { .. }
            | Operation::Removexattr { .. }
            | Operation::Statfs => self.attributes(node, operation, reply),
            operation => self.files(node, operation, reply),
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.mirror.forget(node, lookups);
    }
}
