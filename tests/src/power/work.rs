//! What programs do until the power fails.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate, fdatasync, fsync, ftruncate, rename, unlink};

use super::oracle::{BLOCK, Oracle, block};
use crate::failure::Outcome;
use crate::os::{self, Map, OFlags};
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
    /// `RWF_DSYNC`.
    Each,
    /// msync(2) of a mapping.
    Msync,
}

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
}

impl Op {
    /// The names that it concerns.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Op::Write { name, .. }
            | Op::Truncate { name, .. }
            | Op::Punch { name, .. }
            | Op::Replace { name, .. }
            | Op::Remove { name, .. }
            | Op::Drain { name }
            | Op::Read { name }
            | Op::Evict { name } => vec![name],
            Op::Move { from, to, .. } => vec![from, to],
            Op::Pause { .. } => Vec::new(),
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

/// The next steps of a worker.
pub fn plan(random: &mut Random, oracle: &Oracle, stamp: &mut u64, count: usize) -> Vec<Op> {
    let mut expected = oracle.clone();
    let mut ops = Vec::new();
    while ops.len() < count {
        if let Some(op) = choose(random, &expected, stamp) {
            expected.apply(&op, false);
            ops.push(op);
        }
    }
    ops
}

fn choose(random: &mut Random, expected: &Oracle, stamp: &mut u64) -> Option<Op> {
    let large = random.one_in(4);
    let name = match large {
        true => format!("large{}", random.below(LARGE)),
        false => format!("small{}", random.below(SMALL)),
    };
    let there = expected.blocks(&name);
    let mut take = |count: usize| {
        *stamp += 1 << 12;
        (count, *stamp)
    };
    let sync = *random.pick(&[
        Sync::None,
        Sync::Fsync,
        Sync::Fsync,
        Sync::Fdatasync,
        Sync::Open(OFlags::SYNC),
        Sync::Open(OFlags::DSYNC),
        Sync::Each,
    ]);
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
        (14, Some(_)) if !large => {
            let to = format!("small{}", random.below(SMALL));
            if to == name {
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
pub fn carry_out(home: &Path, op: &Op, ended: &dyn Fn() -> bool) -> Outcome {
    let at = |name: &str| home.join(name);
    match op {
        Op::Write { name, at: from, count, stamp, fresh, sync } => {
            let mut flags = OFlags::RDWR | OFlags::CREATE;
            flags.set(OFlags::TRUNC, *fresh);
            if let Sync::Open(how) = sync {
                flags |= *how;
            }
            let fd = os::open(at(name), flags, 0o644)?;
            write(&fd, from * BLOCK, &content(*count, *stamp), *sync)
        }
        Op::Truncate { name, blocks, sync } => {
            let fd = os::open(at(name), OFlags::RDWR, 0)?;
            ftruncate(&fd, (blocks * BLOCK) as u64)?;
            if *sync {
                fsync(&fd)?;
            }
            Ok(())
        }
        Op::Punch { name, at: from, count, sync } => {
            let fd = os::open(at(name), OFlags::RDWR, 0)?;
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&fd, how, (from * BLOCK) as u64, (count * BLOCK) as u64)?;
            if *sync {
                fsync(&fd)?;
            }
            Ok(())
        }
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
            sync_dir(home, *dir)
        }
        Op::Remove { name, dir } => {
            unlink(at(name))?;
            sync_dir(home, *dir)
        }
        Op::Move { from, to, dir } => {
            rename(at(from), at(to))?;
            sync_dir(home, *dir)
        }
        Op::Drain { name } => forebay("sync", home, name),
        // It may be in use.
        Op::Evict { name } => forebay("evict", home, name).or(Ok(())),
        Op::Read { name } => Ok(os::read_all(at(name)).map(drop)?),
        Op::Pause { millis } => {
            std::thread::sleep(Duration::from_millis(*millis));
            Ok(())
        }
    }
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
        Sync::Each => write_durably(fd, at, bytes)?,
        Sync::None | Sync::Fsync | Sync::Fdatasync | Sync::Open(_) => {
            os::write_at(fd, at as u64, bytes)?;
        }
    }
    match sync {
        Sync::Fsync => fsync(fd)?,
        Sync::Fdatasync => fdatasync(fd)?,
        _ => {}
    }
    Ok(())
}

fn write_durably(fd: &OwnedFd, at: usize, bytes: &[u8]) -> Outcome {
    let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the descriptor is open, and the kernel only reads the bytes, which outlive the call.
    let written = unsafe {
        libc::pwritev2(fd.as_raw_fd(), &raw const part, 1, at as libc::off_t, libc::RWF_DSYNC)
    };
    ensure!(
        usize::try_from(written) == Ok(bytes.len()),
        "pwritev2: {written}, {}",
        std::io::Error::last_os_error()
    );
    Ok(())
}

fn sync_dir(home: &Path, sync: bool) -> Outcome {
    if sync {
        let dir = os::open(home, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
        fsync(&dir)?;
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
