//! Carrying out one operation on both sides.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    fallocate, fstat, fsync, ftruncate, link, linkat, lstat, renameat_with, rmdir, stat, symlink,
};
use xxhash_rust::xxh3::xxh3_64;

use super::{Answer, Op, Place, Slot};
use crate::os::{self, AtFlags, CWD, Errno, FallocateFlags, FileType, Map, OFlags, RenameFlags};
use crate::random::pattern;

/// Few names, so that operations meet each other often.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Open files at a time.
const SLOTS: usize = 6;

/// Both sides, what is known to exist on them, and the open files.
pub struct World<'a> {
    roots: &'a [PathBuf; 2],
    names: &'static [&'static str],
    existing: BTreeSet<String>,
    open: Vec<Option<Opened>>,
    user: u32,
    closes: bool,
}

/// An open file on both sides.
struct Opened {
    fds: [OwnedFd; 2],
    /// Its name when it was opened.
    path: String,
    by: u32,
    /// The file got set-id bits when this was open.
    got_set_ids: bool,
}

/// The bits of a mode that a write takes away.
const SET_IDS: u32 = 0o6000;

impl<'a> World<'a> {
    pub fn new(roots: &'a [PathBuf; 2]) -> Self {
        let open = (0..SLOTS).map(|_| None).collect();
        let existing = BTreeSet::new();
        Self { roots, names: &NAMES, existing, open, user: 0, closes: false }
    }

    /// Of trees that are there already, alike: these paths of them are known to exist, new ones have these
    /// names, and owners may close files and directories to themselves.
    pub fn of_trees(
        roots: &'a [PathBuf; 2],
        names: &'static [&'static str],
        existing: BTreeSet<String>,
    ) -> Self {
        Self { names, existing, closes: true, ..Self::new(roots) }
    }

    /// Two times out of three a path that exists, else a combination of names.
    pub fn path(&self, place: Place) -> String {
        let number = (place / 3) as usize;
        if !place.is_multiple_of(3) && !self.existing.is_empty() {
            return self
                .existing
                .iter()
                .nth(number % self.existing.len())
                .cloned()
                .unwrap_or_default();
        }
        // A new name below an existing place or at the top.
        let name = self.names[number % self.names.len()];
        let rest = number / self.names.len();
        let parents = self.existing.len() + 1;
        match self.existing.iter().nth(rest % parents) {
            Some(parent) if parent.matches('/').count() < 5 => format!("{parent}/{name}"),
            _ => name.to_owned(),
        }
    }

    fn slot(&self, slot: Slot) -> usize {
        slot as usize % SLOTS
    }

    /// The paths of an operation, for messages.
    pub fn describe(&self, op: Op) -> String {
        match op {
            Op::Rename { from, to, .. } | Op::Link { from, to } => {
                format!("{} and {}", self.path(from), self.path(to))
            }
            Op::Create { at, .. }
            | Op::Mkdir { at, .. }
            | Op::Mknod { at, .. }
            | Op::Symlink { at, .. }
            | Op::Chmod { at, .. }
            | Op::Chown { at, .. }
            | Op::Utimens { at, .. }
            | Op::Truncate { at, .. }
            | Op::SetXattr { at, .. }
            | Op::RemoveXattr { at, .. }
            | Op::Unlink { at }
            | Op::Rmdir { at }
            | Op::Stat { at }
            | Op::Readlink { at }
            | Op::Readdir { at }
            | Op::ReadAll { at }
            | Op::Unnamed { at, .. }
            | Op::Open { at, .. } => self.path(at),
            Op::Close { slot }
            | Op::Read { slot, .. }
            | Op::Write { slot, .. }
            | Op::MapWrite { slot, .. }
            | Op::Ftruncate { slot, .. }
            | Op::Allocate { slot, .. }
            | Op::Copy { from: slot, .. }
            | Op::Fstat { slot }
            | Op::Fsync { slot } => match &self.open[self.slot(slot)] {
                Some(opened) => opened.path.clone(),
                None => "no open file".to_owned(),
            },
            Op::User { .. } => "no file".to_owned(),
        }
    }

    /// Carries out `op` on the subject, then on the reference.
    pub fn apply(&mut self, op: Op) -> [Result<Answer, Errno>; 2] {
        if let Op::User { user } = op {
            self.user = [0, 70_001, 70_002][usize::from(user) % 3];
            return [Ok(Answer::Done), Ok(Answer::Done)];
        }
        if let Op::Open { slot, at, how } = op {
            return self.open(slot, at, how);
        }
        if let Op::Close { slot } = op {
            let slot = self.slot(slot);
            self.open[slot] = None;
            return [Ok(Answer::Done), Ok(Answer::Done)];
        }
        become_user(self.user);
        let answers = [0, 1].map(|side| self.on_side(op, side));
        become_user(0);
        if answers.iter().all(Result::is_ok) {
            self.note(op);
            self.bear_unseen_writes(op);
        }
        answers
    }

    /// The documented differences of mounts whose files the kernel writes by itself for a program that had
    /// them open when they got set-id bits: nobody tells the daemon who writes. What a plain user writes
    /// through a descriptor of root's leaves the bits; what is written through a descriptor of somebody
    /// else takes them away, also if root writes, or somebody stores into a mapping. Nothing but these
    /// bits may differ, and after nothing but such a write; then the mode is made the same again.
    fn bear_unseen_writes(&self, op: Op) {
        let (slot, stores) = match op {
            Op::Write { slot, .. } => (slot, false),
            Op::MapWrite { slot, .. } => (slot, true),
            _ => return,
        };
        let Some(opened) = &self.open[self.slot(slot)] else { return };
        let [Ok(got), Ok(want)] = [0, 1].map(|side| fstat(&opened.fds[side])) else { return };
        let (got, want) = (got.st_mode, want.st_mode);
        let stay = opened.by == 0 && self.user != 0 && !stores && got & want == want;
        let go = opened.by != 0 && (self.user == 0 || stores) && got & want == got;
        let differ = got != want && got & !SET_IDS == want & !SET_IDS;
        if opened.got_set_ids && differ && (stay || go) {
            // What fails here shows as the difference that it is.
            let _ = os::fchmod(&opened.fds[0], want & 0o7777);
        }
    }

    /// Closes every open file.
    pub fn close_all(&mut self) {
        self.open.iter_mut().for_each(|slot| *slot = None);
    }

    fn open(&mut self, slot: Slot, at: Place, how: u8) -> [Result<Answer, Errno>; 2] {
        let flags = match how % 6 {
            0 | 1 => OFlags::RDWR,
            2 => OFlags::RDONLY,
            3 => OFlags::RDWR | OFlags::APPEND,
            4 => OFlags::RDWR | OFlags::TRUNC,
            _ => OFlags::RDWR | OFlags::CREATE,
        };
        let path = self.path(at);
        become_user(self.user);
        // Without O_NONBLOCK a fifo would wait for its other end.
        let opened = [0, 1]
            .map(|side| os::open(self.roots[side].join(&path), flags | OFlags::NONBLOCK, 0o644));
        become_user(0);
        let answers =
            [0, 1].map(|side| opened[side].as_ref().map(|_| Answer::Done).map_err(|e| *e));
        if let [Ok(a), Ok(b)] = opened {
            let slot = self.slot(slot);
            let (by, got_set_ids) = (self.user, false);
            self.existing.insert(path.clone());
            self.open[slot] = Some(Opened { fds: [a, b], path, by, got_set_ids });
        }
        answers
    }

    fn on_side(&self, op: Op, side: usize) -> Result<Answer, Errno> {
        match op {
            Op::Read { slot, .. }
            | Op::Write { slot, .. }
            | Op::MapWrite { slot, .. }
            | Op::Ftruncate { slot, .. }
            | Op::Allocate { slot, .. }
            | Op::Copy { from: slot, .. }
            | Op::Fstat { slot }
            | Op::Fsync { slot } => match &self.open[self.slot(slot)] {
                Some(opened) => self.on_file(op, &opened.fds[side], side),
                None => Ok(Answer::Done),
            },
            other => self.on_path(other, side),
        }
    }

    fn on_path(&self, op: Op, side: usize) -> Result<Answer, Errno> {
        let full = |place: Place| self.roots[side].join(self.path(place));
        match op {
            Op::Create { at, mode, excl } => {
                let excl = if excl { OFlags::EXCL } else { OFlags::NONBLOCK };
                os::open(full(at), OFlags::CREATE | OFlags::WRONLY | excl, mode).map(drop)?;
            }
            Op::Mkdir { at, mode } => os::mkdir(full(at), mode)?,
            Op::Mknod { at, kind, mode } => {
                let kind = [FileType::Fifo, FileType::Socket, FileType::RegularFile]
                    [usize::from(kind) % 3];
                os::mknod(full(at), kind, mode, 0)?;
            }
            Op::Symlink { at, target } => symlink(self.path(target), full(at))?,
            Op::Link { from, to } => link(full(from), full(to))?,
            Op::Rename { from, to, flags } => {
                renameat_with(CWD, full(from), CWD, full(to), rename_flags(flags))?;
            }
            Op::Unlink { at } => rustix::fs::unlink(full(at))?,
            Op::Rmdir { at } => rmdir(full(at))?,
            // Directories keep the owner's rights, so that the tree can be walked and removed.
            Op::Chmod { at, mode } if self.closes => os::chmod(full(at), mode)?,
            Op::Chmod { at, mode } => os::chmod(full(at), mode | 0o700)?,
            Op::Chown { at, uid, gid } => {
                let id = |number: u8| Some([0, 70_001, 70_002][usize::from(number) % 3]);
                os::lchown(full(at), id(uid), id(gid))?;
            }
            Op::Utimens { at, seconds, nanos } => {
                let time = (i64::from(seconds), i64::from(nanos));
                os::utimens(full(at), &os::times(time, time))?;
            }
            Op::Truncate { at, len } => os::truncate(full(at), i64::from(len))?,
            Op::SetXattr { at, name, len, tag } => {
                let value = pattern(tag.into(), len.into());
                os::setxattr(full(at), xattr_name(name), &value, os::XattrFlags::empty())?;
            }
            Op::RemoveXattr { at, name } => os::removexattr(full(at), xattr_name(name))?,
            Op::Unnamed { at, len, tag } => make_unnamed(&full(at), len, tag)?,
            Op::Stat { at } => return Ok(attributes(&lstat(full(at))?)),
            Op::Readlink { at } => return Ok(Answer::Names(vec![os::readlink(full(at))?])),
            Op::Readdir { at } => return Ok(Answer::Names(os::names(full(at))?)),
            Op::ReadAll { at } => {
                let fd = os::open(full(at), OFlags::RDONLY | OFlags::NONBLOCK, 0)?;
                let bytes = os::read_to_end(fd)?;
                return Ok(Answer::Bytes(bytes.len(), xxh3_64(&bytes)));
            }
            _ => {}
        }
        Ok(Answer::Done)
    }

    fn on_file(&self, op: Op, fd: &OwnedFd, side: usize) -> Result<Answer, Errno> {
        match op {
            Op::Read { at, len, .. } => {
                let bytes = os::read_at(fd, at.into(), len as usize)?;
                return Ok(Answer::Bytes(bytes.len(), xxh3_64(&bytes)));
            }
            Op::Write { at, len, tag, .. } => {
                let before = fstat(fd)?;
                os::write_at(fd, at.into(), &pattern(tag.into(), len as usize))?;
                if tag.is_multiple_of(4) {
                    // Who puts the times back, as programs that copy do, owns the file or is root.
                    let times = os::times(os::atime(&before), os::mtime(&before));
                    let _ = rustix::fs::futimens(fd, &times);
                }
            }
            Op::MapWrite { at, len, tag, .. } => return map_write(fd, at, len, tag),
            Op::Ftruncate { len, .. } => ftruncate(fd, len.into())?,
            Op::Allocate { mode, at, len, .. } => {
                let mode = [
                    FallocateFlags::empty(),
                    FallocateFlags::KEEP_SIZE,
                    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                ][usize::from(mode) % 3];
                fallocate(fd, mode, at.into(), len.into())?;
            }
            Op::Copy { to, at, len, .. } => {
                let Some(target) = &self.open[self.slot(to)] else { return Ok(Answer::Done) };
                let (mut from, mut to) = (u64::from(at), u64::from(at) + 100_000);
                let copied = rustix::fs::copy_file_range(
                    fd,
                    Some(&mut from),
                    &target.fds[side],
                    Some(&mut to),
                    len as usize,
                )?;
                return Ok(Answer::Number(copied as u64));
            }
            Op::Fstat { .. } => return Ok(attributes(&fstat(fd)?)),
            Op::Fsync { .. } => fsync(fd)?,
            _ => {}
        }
        Ok(Answer::Done)
    }

    /// Keeps the set of existing paths up to date after an operation that succeeded.
    fn note(&mut self, op: Op) {
        match op {
            Op::Create { at, .. }
            | Op::Mkdir { at, .. }
            | Op::Mknod { at, .. }
            | Op::Unnamed { at, .. }
            | Op::Symlink { at, .. } => {
                self.existing.insert(self.path(at));
            }
            Op::Link { to, .. } => {
                self.existing.insert(self.path(to));
            }
            Op::Unlink { at } | Op::Rmdir { at } => {
                let path = self.path(at);
                self.existing.remove(&path);
            }
            Op::Rename { from, to, flags } => {
                self.note_rename(&self.path(from), &self.path(to), flags);
            }
            Op::Chmod { at, mode } if mode & SET_IDS != 0 => {
                let Ok(changed) = stat(self.roots[1].join(self.path(at))) else { return };
                for opened in self.open.iter_mut().flatten() {
                    let same =
                        fstat(&opened.fds[1]).is_ok_and(|found| found.st_ino == changed.st_ino);
                    opened.got_set_ids |= same;
                }
            }
            _ => {}
        }
    }

    fn note_rename(&mut self, from: &str, to: &str, flags: u8) {
        let take = |existing: &mut BTreeSet<String>, top: &str| -> BTreeSet<String> {
            let below = format!("{top}/");
            let (gone, kept): (BTreeSet<String>, _) = std::mem::take(existing)
                .into_iter()
                .partition(|path| path == top || path.starts_with(&below));
            *existing = kept;
            gone
        };
        let put =
            |existing: &mut BTreeSet<String>, paths: BTreeSet<String>, old: &str, new: &str| {
                existing.extend(paths.iter().map(|path| format!("{new}{}", &path[old.len()..])));
            };
        let moved = take(&mut self.existing, from);
        let replaced = take(&mut self.existing, to);
        put(&mut self.existing, moved, from, to);
        if rename_flags(flags) == RenameFlags::EXCHANGE {
            put(&mut self.existing, replaced, to, from);
        }
    }
}

/// A file that gets its only name when it is written (`O_TMPFILE`).
fn make_unnamed(path: &Path, len: u32, tag: u32) -> Result<(), Errno> {
    let dir = path.parent().ok_or(Errno::NOENT)?;
    let fd = os::open(dir, OFlags::TMPFILE | OFlags::RDWR, 0o644)?;
    os::write_at(&fd, 0, &pattern(tag.into(), len as usize))?;
    let itself = format!("/proc/self/fd/{}", fd.as_raw_fd());
    linkat(CWD, itself, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

fn rename_flags(number: u8) -> RenameFlags {
    match number % 8 {
        0 => RenameFlags::NOREPLACE,
        1 | 2 => RenameFlags::EXCHANGE,
        _ => RenameFlags::empty(),
    }
}

fn xattr_name(number: u8) -> &'static str {
    ["user.one", "user.two", "user.three"][usize::from(number) % 3]
}

fn attributes(stat: &os::Stat) -> Answer {
    let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let (links, size) = if directory { (0, 0) } else { (stat.st_nlink, stat.st_size as u64) };
    Answer::Attributes(stat.st_mode, links, stat.st_uid, stat.st_gid, size)
}

/// Stores through a mapping where the file has pages; beyond its end there is nothing to map.
fn map_write(fd: &OwnedFd, at: u32, len: u32, tag: u32) -> Result<Answer, Errno> {
    let stat = fstat(fd)?;
    let end = (u64::from(at) + u64::from(len)).min(stat.st_size as u64);
    let at = u64::from(at);
    if at >= end || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(Answer::Done);
    }
    let start = at / 4096 * 4096;
    let mut map = Map::new(fd.as_fd(), start, (end - start) as usize, true, true)?;
    let times = os::times(os::atime(&stat), os::mtime(&stat));
    // Stores into what was loaded need no fault on some file systems, and leave the times alone: so
    // they are put back everywhere, by who may.
    let loads = tag.is_multiple_of(2) && rustix::fs::futimens(fd, &times).is_ok();
    if loads {
        map.load();
    }
    map.write((at - start) as usize, &pattern(tag.into(), (end - at) as usize));
    if loads {
        rustix::fs::futimens(fd, &times)?;
        drop(map);
        // What the kernel does not write by itself comes to the daemon no sooner, and as a write.
        rustix::fs::futimens(fd, &times)?;
    }
    Ok(Answer::Number(end))
}

/// Acts as `user` with its own group from now on; only this thread and only on files.
fn become_user(user: u32) {
    // SAFETY: setfsuid and setfsgid change numbers of the calling thread and cannot fail for root.
    unsafe {
        if user == 0 {
            libc::setfsuid(0);
            libc::setfsgid(0);
        } else {
            libc::setfsgid(user);
            libc::setfsuid(user);
        }
    }
}
