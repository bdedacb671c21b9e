//! What programs do until the power fails.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, RenameFlags, XattrFlags, fallocate, fdatasync, fsync, ftruncate,
    link, linkat, rename, renameat_with, syncfs, unlink,
};
use rustix::io::{Errno, ReadWriteFlags};

use super::oracle::{BLOCK, Oracle, block, renamed};
use super::seen::MARK;
use super::trees;
use crate::failure::{Failure, Outcome};
use crate::os::{self, Map, OFlags};
use crate::process::eventually;
use crate::random::Random;
use crate::subject::{binary, run_command};

/// How a write is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Not at all.
    None,
    /// fsync(2) after it.
    Fsync,
    /// fdatasync(2) after it.
    Fdatasync,
    /// `O_SYNC` or `O_DSYNC`.
    Open(OFlags),
    /// `RWF_SYNC` or `RWF_DSYNC`.
    Each(ReadWriteFlags),
    /// msync(2) of a mapping.
    Msync,
    /// syncfs(2) of the mount, of which the kernel tells no daemon: it acknowledges nothing.
    Syncfs,
}

/// By the flag of one write that acts as fdatasync(2) after it.
pub const RWF_DSYNC: Sync = Sync::Each(ReadWriteFlags::DSYNC);
/// And the one that acts as fsync(2).
pub const RWF_SYNC: Sync = Sync::Each(ReadWriteFlags::SYNC);

/// Where a file is to be before a case goes on: without that it would be another case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// All that there is of it is on the tier of this number.
    Tier(usize),
    /// A part of it is on a tier.
    Partial,
    /// Some of it is in a spill file.
    Spilled,
    /// All of it that counts is in a spill file.
    OnlySpilled,
    /// It is on no tier, and in no spill file.
    Nowhere,
}

/// What is open, by its name.
pub type Held = BTreeMap<String, OwnedFd>;

const EVICTION_TRIES: usize = 5;
/// How long a file may take to come to its place.
const MOVES: Duration = Duration::from_secs(10);

/// One step. Places and counts are in blocks; block i of a write has the stamp + i.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // They are what the system calls say.
pub enum Op {
    Write { name: String, at: usize, count: usize, stamp: u64, fresh: bool, sync: Sync },
    Truncate { name: String, blocks: usize, sync: bool },
    Punch { name: String, at: usize, count: usize, sync: bool },
    Replace { name: String, count: usize, stamp: u64, sync: bool, dir: bool },
    Remove { name: String, dir: bool },
    Move { from: String, to: String, dir: bool },
    Drain { name: String },
    Read { name: String },
    Evict { name: String },
    Pause { millis: u64 },
    Hold { name: String, fresh: bool },
    Release { name: String },
    Renamed { name: String, to: String },
    SyncDir { name: String },
    Exchange { one: String, other: String, dir: bool },
    Link { from: String, to: String, dir: bool },
    Mode { name: String, mode: u32, sync: bool },
    MakeDir { name: String },
    RemoveTree { name: String, dir: bool },
    Symlink { name: String, way: u64, dir: bool },
    Unnamed { name: String, count: usize, stamp: u64, sync: bool, dir: bool },
    Mark { name: String, mark: u64, sync: bool },
    HoldDir { name: String },
    WriteHeld { name: String, at: usize, count: usize, stamp: u64, sync: bool },
    SyncHeld { name: String },
    Look { name: String, place: Place },
}

impl Op {
    /// A write, of a file that is emptied as it is opened.
    pub fn emptying(mut self) -> Self {
        if let Op::Write { fresh, .. } = &mut self {
            *fresh = true;
        }
        self
    }

    /// The names that it concerns.
    pub fn names(&self) -> Vec<String> {
        self.clone().names_mut().into_iter().map(std::mem::take).collect()
    }

    /// The same, to be put in other words.
    pub fn names_mut(&mut self) -> Vec<&mut String> {
        match self {
            Op::Write { name, .. }
            | Op::Truncate { name, .. }
            | Op::Punch { name, .. }
            | Op::Replace { name, .. }
            | Op::Remove { name, .. }
            | Op::Drain { name }
            | Op::Read { name }
            | Op::Evict { name }
            | Op::Hold { name, .. }
            | Op::HoldDir { name }
            | Op::Release { name }
            | Op::Mode { name, .. }
            | Op::Mark { name, .. }
            | Op::SyncDir { name }
            | Op::MakeDir { name }
            | Op::RemoveTree { name, .. }
            | Op::Symlink { name, .. }
            | Op::Unnamed { name, .. }
            | Op::Look { name, .. } => vec![name],
            Op::Renamed { name, to } => vec![name, to],
            Op::Move { from, to, .. } | Op::Link { from, to, .. } => vec![from, to],
            Op::Exchange { one, other, .. } => vec![one, other],
            // What is held goes by names of its own.
            Op::Pause { .. } | Op::WriteHeld { .. } | Op::SyncHeld { .. } => Vec::new(),
        }
    }
}

/// Small files of a worker, and large ones, which become resident piece by piece.
const SMALL: u64 = 12;
const LARGE: u64 = 3;
/// Blocks of a large file.
pub const LARGE_BLOCKS: usize = 200;
/// A change needs a process.
const COMMANDS_ONE_IN: u64 = 6;

/// The names of the large files, which the backing store has from the beginning.
pub fn large_names() -> Vec<String> {
    (0..LARGE).map(|number| format!("large{number}")).collect()
}

/// What the steps of a worker are mostly about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// Many files, and their bytes.
    Bytes,
    /// Few files, which take each other's names again and again.
    Names,
    /// Few files, which are open over many steps, also without a name, and whose permissions change.
    Held,
    /// Directories, and files in them.
    Trees,
}

impl Mix {
    /// Those without directories.
    pub const FLAT: [Mix; 3] = [Mix::Bytes, Mix::Names, Mix::Held];

    /// So many small files have names.
    fn small(self) -> u64 {
        match self {
            Mix::Bytes => SMALL,
            Mix::Names => 3,
            Mix::Held => 5,
            Mix::Trees => 4,
        }
    }
}

/// The next steps of a worker.
pub fn plan(
    random: &mut Random,
    mix: Mix,
    oracle: &Oracle,
    stamp: &mut u64,
    count: usize,
) -> Vec<Op> {
    let mut expected = oracle.clone();
    let mut ops = Vec::new();
    while ops.len() < count {
        let step = match mix {
            Mix::Trees => trees::choose(random, &expected, stamp),
            Mix::Held if random.one_in(5) => hold_or_change_mode(random, &expected),
            _ => choose(random, mix, &expected, stamp),
        };
        if let Some(op) = step {
            // What a sync makes durable matters only there.
            expected.apply(&op, mix == Mix::Trees);
            let follow = follow_held(&op, ops.len());
            follow.iter().for_each(|op| expected.apply(op, true));
            ops.push(op);
            ops.extend(follow);
        }
    }
    ops
}

/// A file is opened and stays so, or is closed, or gets other permissions.
fn hold_or_change_mode(random: &mut Random, expected: &Oracle) -> Option<Op> {
    let name = format!("small{}", random.below(Mix::Held.small()));
    expected.blocks(&name)?;
    Some(match random.below(4) {
        0 | 1 => Op::Hold { name, fresh: false },
        2 => Op::Release { name },
        _ => {
            let mode = *random.pick(&[0o600, 0o640, 0o644, 0o755]);
            Op::Mode { name, mode, sync: !random.one_in(3) }
        }
    })
}

/// What is open goes by the names that the files have after a step; what has none any more stays open.
fn follow_held(op: &Op, number: usize) -> Vec<Op> {
    let renamed = |name: &str, to: &str| Op::Renamed { name: name.into(), to: to.into() };
    let gone = format!("gone{number}");
    match op {
        Op::Replace { name, .. } | Op::Remove { name, .. } | Op::RemoveTree { name, .. } => {
            vec![renamed(name, &gone)]
        }
        Op::Move { from, to, .. } => vec![renamed(to, &gone), renamed(from, to)],
        Op::Exchange { one, other, .. } => {
            vec![renamed(one, &gone), renamed(other, one), renamed(&gone, other)]
        }
        _ => Vec::new(),
    }
}

/// How writes are made durable, by how often.
const SYNCS: [Sync; 9] = [
    Sync::None,
    Sync::Fsync,
    Sync::Fsync,
    Sync::Fdatasync,
    Sync::Open(OFlags::SYNC),
    Sync::Open(OFlags::DSYNC),
    RWF_DSYNC,
    RWF_SYNC,
    Sync::Syncfs,
];

fn choose(random: &mut Random, mix: Mix, expected: &Oracle, stamp: &mut u64) -> Option<Op> {
    let large = random.one_in(if mix == Mix::Names { 12 } else { 4 });
    let name = match large {
        true => format!("large{}", random.below(LARGE)),
        false => format!("small{}", random.below(mix.small())),
    };
    choose_for(random, mix, expected, stamp, (name, large))
}

/// A step for a file.
pub(super) fn choose_for(
    random: &mut Random,
    mix: Mix,
    expected: &Oracle,
    stamp: &mut u64,
    (name, large): (String, bool),
) -> Option<Op> {
    let there = expected.blocks(&name);
    let mut take = |count: usize| {
        *stamp += 1 << 12;
        (count, *stamp)
    };
    let sync = *random.pick(&SYNCS);
    let dir = !random.one_in(3);
    let kind = random.below(20);
    Some(match (kind, there) {
        (0..=2, _) | (3..=8, None) if !large => {
            let (count, stamp) = take(random.between(1, 8) as usize);
            Op::Write { name, at: 0, count, stamp, fresh: there.is_some(), sync }
        }
        (3..=8, Some(blocks)) if blocks > 0 => {
            let at = random.below(blocks as u64) as usize;
            let (count, stamp) = take(random.between(1, 4) as usize);
            // Within the file, except where it grows.
            let inside = count.min(blocks - at);
            match random.below(4) {
                0 => Op::Write { name, at: blocks, count, stamp, fresh: false, sync },
                1 => {
                    let sync = Sync::Msync;
                    Op::Write { name, at, count: inside, stamp, fresh: false, sync }
                }
                _ => Op::Write { name, at, count: inside, stamp, fresh: false, sync },
            }
        }
        (9, Some(blocks)) if blocks > 0 && random.one_in(2) => {
            let at = random.below(blocks as u64) as usize;
            let count = (random.between(1, 4) as usize).min(blocks - at);
            Op::Punch { name, at, count, sync: !random.one_in(3) }
        }
        (9, Some(blocks)) => {
            let blocks = random.below(blocks as u64 + 4) as usize;
            Op::Truncate { name, blocks, sync: !random.one_in(3) }
        }
        (10..=12, _) => {
            let (count, stamp) = take(if large { LARGE_BLOCKS } else { 4 });
            Op::Replace { name, count, stamp, sync: !random.one_in(3), dir }
        }
        (13, Some(_)) => Op::Remove { name, dir },
        (14..=17, Some(_)) if !large && (kind == 14 || mix == Mix::Names) => {
            let to = format!("small{}", random.below(mix.small()));
            if to == name {
                return None;
            }
            if random.one_in(3) && expected.blocks(&to).is_some() {
                return Some(Op::Exchange { one: name, other: to, dir });
            }
            // What becomes of its other names cannot be told from what becomes of this one.
            if expected.is_linked(&name) && expected.blocks(&to).is_some() {
                return None;
            }
            Op::Move { from: name, to, dir }
        }
        (15 | 16, Some(_)) => Op::Read { name },
        (17, Some(_)) if random.one_in(COMMANDS_ONE_IN) => Op::Evict { name },
        (18, Some(_)) if random.one_in(COMMANDS_ONE_IN) => Op::Drain { name },
        (19, _) => Op::Pause { millis: random.below(30) },
        _ => return None,
    })
}

/// Carries a step out. Once the power has `ended`, nothing follows a sync: a file system that goes down
/// while it syncs may say that it has.
pub fn carry_out(home: &Path, op: &Op, held: &mut Held, ended: &dyn Fn() -> bool) -> Outcome {
    let at = |name: &str| home.join(name);
    match op {
        Op::Write { name, at: from, count, stamp, fresh, sync } => {
            let bytes = content(*count, *stamp);
            if let (Some(fd), false, false) =
                (held.get(name), *fresh, matches!(sync, Sync::Open(_)))
            {
                return write(fd, from * BLOCK, &bytes, *sync);
            }
            let mut flags = OFlags::RDWR | OFlags::CREATE;
            flags.set(OFlags::TRUNC, *fresh);
            if let Sync::Open(how) = sync {
                flags |= *how;
            }
            write(&os::open(at(name), flags, 0o644)?, from * BLOCK, &bytes, *sync)
        }
        Op::Truncate { name, blocks, sync } => {
            let len = (blocks * BLOCK) as u64;
            change(home, name, held, *sync, |fd| Ok(ftruncate(fd, len)?))
        }
        Op::Punch { name, at: from, count, sync } => {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let (from, len) = ((from * BLOCK) as u64, (count * BLOCK) as u64);
            change(home, name, held, *sync, |fd| Ok(fallocate(fd, how, from, len)?))
        }
        Op::Mode { name, mode, sync } => {
            change(home, name, held, *sync, |fd| Ok(os::fchmod(fd, *mode)?))
        }
        Op::Mark { name, mark, sync } => change(home, name, held, *sync, |fd| {
            let value = mark.to_string();
            Ok(rustix::fs::fsetxattr(fd, MARK, value.as_bytes(), XattrFlags::empty())?)
        }),
        Op::Drain { name } => forebay("sync", home, name),
        // It may be in use, also for a moment after a close.
        Op::Evict { name } => {
            let pause = Duration::from_millis(100);
            for _ in 0..EVICTION_TRIES {
                if forebay("evict", home, name).is_ok() || ended() {
                    break;
                }
                std::thread::sleep(pause);
            }
            Ok(())
        }
        Op::Read { name } => Ok(os::read_all(at(name)).map(drop)?),
        Op::Look { name, place } => look(home, name, *place),
        Op::Pause { millis } => {
            std::thread::sleep(Duration::from_millis(*millis));
            Ok(())
        }
        Op::Hold { .. }
        | Op::HoldDir { .. }
        | Op::Release { .. }
        | Op::Renamed { .. }
        | Op::WriteHeld { .. }
        | Op::SyncHeld { .. } => carry_out_held(home, op, held),
        _ => carry_out_names(home, op, ended),
    }
}

/// The same, of what is held open.
fn carry_out_held(home: &Path, op: &Op, held: &mut Held) -> Outcome {
    let at = |name: &str| home.join(name);
    let missing = |name: &str| Failure::at(format_args!("{name} is not held"));
    match op {
        Op::HoldDir { name } => {
            held.insert(name.clone(), os::open(at(name), OFlags::RDONLY | OFlags::DIRECTORY, 0)?);
            Ok(())
        }
        Op::WriteHeld { name, at, count, stamp, sync } => {
            let fd = held.get(name).ok_or_else(|| missing(name))?;
            let sync = if *sync { Sync::Fsync } else { Sync::None };
            write(fd, at * BLOCK, &content(*count, *stamp), sync)
        }
        Op::SyncHeld { name } => Ok(fsync(held.get(name).ok_or_else(|| missing(name))?)?),
        Op::Hold { name, fresh } => {
            let mut flags = OFlags::RDWR | OFlags::CREATE;
            flags.set(OFlags::TRUNC, *fresh);
            held.insert(name.clone(), os::open(at(name), flags, 0o644)?);
            Ok(())
        }
        Op::Release { name } => {
            held.remove(name);
            Ok(())
        }
        Op::Renamed { name, to } => {
            let all = std::mem::take(held).into_iter();
            held.extend(all.map(|(at, fd)| (renamed(&at, name, to).unwrap_or(at), fd)));
            Ok(())
        }
        _ => Err(Failure::at(format_args!("{op:?} is not of what is held"))),
    }
}

/// The same, of names.
fn carry_out_names(home: &Path, op: &Op, ended: &dyn Fn() -> bool) -> Outcome {
    let at = |name: &str| home.join(name);
    match op {
        Op::Replace { name, count, stamp, sync, dir } => {
            let new = at(&format!("{name}.new{stamp}"));
            let fd = os::open(&new, OFlags::RDWR | OFlags::CREATE, 0o644)?;
            os::write_at(&fd, 0, &content(*count, *stamp))?;
            if *sync {
                fsync(&fd)?;
            }
            drop(fd);
            if ended() {
                return Ok(());
            }
            rename(&new, at(name))?;
            sync_dir(&at(name), *dir)
        }
        Op::Remove { name, dir } => {
            unlink(at(name))?;
            sync_dir(&at(name), *dir)
        }
        Op::Move { from, to, dir } => {
            rename(at(from), at(to))?;
            sync_dir(&at(to), *dir)
        }
        Op::Exchange { one, other, dir } => {
            renameat_with(CWD, at(one), CWD, at(other), RenameFlags::EXCHANGE)?;
            sync_dir(&at(one), *dir)
        }
        Op::Link { from, to, dir } => {
            link(at(from), at(to))?;
            sync_dir(&at(to), *dir)
        }
        Op::MakeDir { name } => Ok(os::mkdir(at(name), 0o755)?),
        Op::SyncDir { name } => sync_dir(&at(name), true),
        Op::RemoveTree { name, dir } => {
            std::fs::remove_dir_all(at(name))?;
            sync_dir(&at(name), *dir)
        }
        Op::Symlink { name, way, dir } => {
            std::os::unix::fs::symlink(way.to_string(), at(name))?;
            sync_dir(&at(name), *dir)
        }
        Op::Unnamed { name, count, stamp, sync, dir } => {
            let path = at(name);
            let fd = unnamed(&path, &content(*count, *stamp))?;
            if *sync {
                fsync(&fd)?;
            }
            if ended() {
                return Ok(());
            }
            let of = format!("/proc/self/fd/{}", fd.as_raw_fd());
            linkat(CWD, of, CWD, &path, AtFlags::SYMLINK_FOLLOW)?;
            sync_dir(&path, *dir)
        }
        _ => Err(Failure::at(format_args!("{op:?} is not of names"))),
    }
}

/// A file without a name, in the directory of a path.
fn unnamed(path: &Path, bytes: &[u8]) -> Outcome<OwnedFd> {
    let dir = path.parent().ok_or_else(|| Failure::at("a name has a directory"))?;
    let fd = os::open(dir, OFlags::TMPFILE | OFlags::RDWR, 0o644)?;
    os::write_at(&fd, 0, bytes)?;
    Ok(fd)
}

/// Changes a file that is there, by the descriptor that is held of it, if there is one.
fn change(
    home: &Path,
    name: &str,
    held: &Held,
    sync: bool,
    how: impl FnOnce(&OwnedFd) -> Outcome,
) -> Outcome {
    let opened;
    let fd = match held.get(name) {
        Some(fd) => fd,
        None => {
            opened = match os::open(home.join(name), OFlags::RDWR, 0) {
                Err(Errno::ISDIR) => os::open(home.join(name), OFlags::RDONLY, 0)?,
                other => other?,
            };
            &opened
        }
    };
    how(fd)?;
    if sync {
        fsync(fd)?;
    }
    Ok(())
}

/// Waits until a file is where it is to be.
fn look(home: &Path, name: &str, place: Place) -> Outcome {
    let inode = format!("{:016x}", std::fs::metadata(home.join(name))?.ino());
    let site = home.join("../..");
    let object = |tier: usize, end: &str| {
        let all = site.join(format!("tier{tier}/tier/objects"));
        let dirs = os::names(&all).unwrap_or_default();
        dirs.iter().any(|dir| all.join(dir).join(format!("{inode}{end}")).exists())
    };
    let objects = || [0, 1].into_iter().filter(|tier| object(*tier, "")).collect::<Vec<usize>>();
    let spilled = || {
        let files = os::names(site.join("backing/data/.forebay/spill")).unwrap_or_default();
        files.iter().any(|file| file.to_string_lossy().ends_with(&inode))
    };
    let is_there = || match place {
        Place::Tier(tier) => objects() == [tier] && !spilled(),
        Place::Partial => objects().iter().any(|tier| object(*tier, ".map")) && !spilled(),
        Place::Spilled => spilled() && !objects().is_empty(),
        Place::OnlySpilled => spilled() && objects().is_empty(),
        Place::Nowhere => objects().is_empty() && !spilled(),
    };
    let came = eventually(MOVES, is_there);
    ensure!(
        came,
        "{name} ({inode}) is on the tiers {:?}, spilled {}, not {place:?}: no such case",
        objects(),
        spilled()
    );
    Ok(())
}

fn content(count: usize, stamp: u64) -> Vec<u8> {
    (0..count as u64).flat_map(|number| block(stamp + number)).collect()
}

fn write(fd: &OwnedFd, at: usize, bytes: &[u8], sync: Sync) -> Outcome {
    match sync {
        Sync::Msync => {
            let mut map = Map::new(fd.as_fd(), at as u64, bytes.len(), true, true)?;
            map.write(0, bytes);
            return Ok(map.sync()?);
        }
        Sync::Each(how) => write_durably(fd, at, bytes, how)?,
        Sync::None | Sync::Fsync | Sync::Fdatasync | Sync::Open(_) | Sync::Syncfs => {
            os::write_at(fd, at as u64, bytes)?;
        }
    }
    match sync {
        Sync::Fsync => fsync(fd)?,
        Sync::Fdatasync => fdatasync(fd)?,
        Sync::Syncfs => syncfs(fd)?,
        Sync::None | Sync::Open(_) | Sync::Each(_) | Sync::Msync => {}
    }
    Ok(())
}

fn write_durably(fd: &OwnedFd, at: usize, bytes: &[u8], how: ReadWriteFlags) -> Outcome {
    let written = rustix::io::pwritev2(fd, &[IoSlice::new(bytes)], at as u64, how)?;
    ensure!(written == bytes.len(), "pwritev2: {written} bytes of {}", bytes.len());
    Ok(())
}

/// fsync of the directory of a name.
fn sync_dir(path: &Path, sync: bool) -> Outcome {
    if let (true, Some(dir)) = (sync, path.parent()) {
        fsync(os::open(dir, OFlags::RDONLY | OFlags::DIRECTORY, 0)?)?;
    }
    Ok(())
}

fn forebay(what: &str, home: &Path, name: &str) -> Outcome {
    let mut command = Command::new(binary()?);
    command.arg(what).arg(home.join(name)).env("FOREBAY_RUNTIME_DIR", home.join("../../run"));
    let output = run_command(&mut command, Duration::from_secs(30))?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "forebay {what}: {text}");
    Ok(())
}
