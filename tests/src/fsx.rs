//! Random I/O on one file against an in-memory model, after the idea of the fsx exerciser
//! (Avadis Tevanian, Apple; part of xfstests): every way to change a file's bytes, in every order.

use std::fmt::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use rustix::fs::{copy_file_range, fallocate, fstat, fsync, ftruncate};

use crate::failure::{Failure, Outcome};
use crate::os::{self, AlignedBuffer, Errno, FallocateFlags as Mode, Map, OFlags};
use crate::random::{Random, pattern};
use crate::shrink::minimise;
use crate::watchdog::{self, LOOK_LIMIT, OPERATION_LIMIT};

/// The alignment that O_DIRECT gets.
const BLOCK: u64 = 4096;

/// How the file is opened anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Reading and writing.
    Plain,
    /// With O_APPEND: writes go to the end.
    Append,
    /// With O_DIRECT, where offered: reads and writes are aligned.
    Direct,
    /// With O_TRUNC.
    Truncate,
}

/// One operation. Offsets and lengths are in bytes; `tag` chooses the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields of every variant are those of the system call it names.
pub enum Op {
    Read {
        at: u64,
        len: u64,
    },
    Write {
        at: u64,
        len: u64,
        tag: u64,
    },
    MapRead {
        at: u64,
        len: u64,
    },
    MapWrite {
        at: u64,
        len: u64,
        tag: u64,
    },
    Truncate {
        len: u64,
    },
    Allocate {
        at: u64,
        len: u64,
        keep_size: bool,
    },
    Punch {
        at: u64,
        len: u64,
    },
    Zero {
        at: u64,
        len: u64,
        keep_size: bool,
    },
    Copy {
        from: u64,
        to: u64,
        len: u64,
    },
    Reopen {
        how: How,
    },
    Sync,
    Pause,
    /// A write after which the times are put back.
    WriteTimed {
        at: u64,
        len: u64,
        tag: u64,
    },
    /// Stores into a mapping that was loaded first, after the close of the file.
    MapLate {
        at: u64,
        len: u64,
        tag: u64,
    },
    /// Closes the file; `old`: its times are set far back.
    Rest {
        old: bool,
    },
}

/// A random sequence of `count` operations on a file of at most `max_len` bytes.
pub fn random_ops(seed: u64, count: usize, max_len: u64) -> Vec<Op> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random_op(&mut random, max_len)).collect()
}

fn random_op(random: &mut Random, max_len: u64) -> Op {
    let at = random.below(max_len);
    let longest = if random.one_in(4) { 65_536 } else { 9000 };
    let len = random.between(1, longest.min(max_len - at));
    let tag = random.below(1 << 20);
    let keep_size = random.one_in(2);
    match random.below(114) {
        0..20 => Op::Read { at, len },
        20..45 => Op::Write { at, len, tag },
        45..55 => Op::MapRead { at, len },
        55..66 => Op::MapWrite { at, len, tag },
        66..74 => Op::Truncate { len: random.below(max_len) },
        74..78 => Op::Allocate { at, len, keep_size },
        78..83 => Op::Punch { at, len },
        83..87 => Op::Zero { at, len, keep_size },
        87..92 => Op::Copy { from: at, to: random.below(max_len - len + 1), len },
        92..97 => Op::Reopen {
            how: *random.pick(&[How::Plain, How::Plain, How::Append, How::Direct, How::Truncate]),
        },
        97..99 => Op::Sync,
        99..100 => Op::Pause,
        100..104 => Op::WriteTimed { at, len, tag },
        104..108 => Op::MapLate { at, len, tag },
        _ => Op::Rest { old: keep_size },
    }
}

struct File<'a> {
    path: &'a Path,
    /// Opened at the next use.
    fd: Option<OwnedFd>,
    how: How,
    model: Vec<u8>,
}

impl File<'_> {
    fn fd(&mut self) -> Result<&OwnedFd, Failure> {
        if self.fd.is_none() {
            self.reopen(How::Plain)?;
        }
        self.fd.as_ref().ok_or_else(|| Failure::at("not open"))
    }

    fn apply(&mut self, op: Op) -> Outcome {
        match op {
            Op::Read { at, len } => self.read(at, len),
            Op::Write { at, len, tag } => self.write(at, &pattern(tag, len as usize)),
            Op::MapRead { at, len } => self.map_read(at, len),
            Op::MapWrite { at, len, tag } => self.map_write(at, &pattern(tag, len as usize)),
            Op::Truncate { len } => {
                ftruncate(self.fd()?, len)?;
                self.model.resize(len as usize, 0);
                Ok(())
            }
            Op::Allocate { at, len, keep_size } => self.allocate(Mode::empty(), at, len, keep_size),
            Op::Punch { at, len } => self.allocate(Mode::PUNCH_HOLE, at, len, true),
            Op::Zero { at, len, keep_size } => self.allocate(Mode::ZERO_RANGE, at, len, keep_size),
            Op::Copy { from, to, len } => self.copy(from, to, len),
            Op::Reopen { how } => self.reopen(how),
            Op::Sync => Ok(fsync(self.fd()?)?),
            Op::Pause => {
                std::thread::sleep(std::time::Duration::from_millis(1));
                Ok(())
            }
            Op::WriteTimed { at, len, tag } => {
                let before = fstat(self.fd()?)?;
                self.write(at, &pattern(tag, len as usize))?;
                let times = os::times(os::atime(&before), os::mtime(&before));
                Ok(rustix::fs::futimens(self.fd()?, &times)?)
            }
            Op::MapLate { at, len, tag } => self.map_late(at, &pattern(tag, len as usize)),
            Op::Rest { old } => {
                self.fd = None;
                if old {
                    os::utimens(self.path, &os::times((1_000_000, 0), (1_000_000, 0)))?;
                }
                Ok(())
            }
        }
    }

    fn want(&self, at: u64, len: u64) -> &[u8] {
        let end = self.model.len() as u64;
        &self.model[at.min(end) as usize..(at + len).min(end) as usize]
    }

    fn read(&mut self, at: u64, len: u64) -> Outcome {
        self.fd()?;
        if self.how == How::Direct {
            let (at, len) = (at / BLOCK * BLOCK, len.next_multiple_of(BLOCK));
            let mut buffer = AlignedBuffer::new(len as usize);
            let got = rustix::io::pread(self.fd()?, buffer.as_mut_slice(), at)?;
            return same(&buffer.as_slice()[..got], self.want(at, len), at);
        }
        let got = os::read_at(self.fd()?, at, len as usize)?;
        same(&got, self.want(at, len), at)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Outcome {
        self.fd()?;
        match self.how {
            How::Append => {
                os::write_all(self.fd()?, bytes)?;
                self.model.extend_from_slice(bytes);
            }
            How::Direct => {
                let at = at / BLOCK * BLOCK;
                let mut buffer = AlignedBuffer::new(bytes.len().next_multiple_of(BLOCK as usize));
                buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
                os::write_at(self.fd()?, at, buffer.as_slice())?;
                self.store(at, buffer.as_slice());
            }
            How::Plain | How::Truncate => {
                os::write_at(self.fd()?, at, bytes)?;
                self.store(at, bytes);
            }
        }
        Ok(())
    }

    fn store(&mut self, at: u64, bytes: &[u8]) {
        let (at, end) = (at as usize, at as usize + bytes.len());
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[at..end].copy_from_slice(bytes);
    }

    /// The part of a range that a mapping may touch without SIGBUS, as (page start, at, len).
    fn mappable(&self, at: u64, len: u64) -> Option<(u64, u64, usize)> {
        let end = (at + len).min(self.model.len() as u64);
        (at < end).then(|| (at / BLOCK * BLOCK, at, (end - at) as usize))
    }

    fn map_read(&mut self, at: u64, len: u64) -> Outcome {
        let Some((start, at, len)) = self.mappable(at, len) else { return Ok(()) };
        let inside = (at - start) as usize;
        let map = Map::new(self.fd()?.as_fd(), start, inside + len, false, true)?;
        same(&map.read(inside, len), self.want(at, len as u64), at)
    }

    fn map_write(&mut self, at: u64, bytes: &[u8]) -> Outcome {
        let Some((start, at, len)) = self.mappable(at, bytes.len() as u64) else { return Ok(()) };
        let inside = (at - start) as usize;
        let mut map = Map::new(self.fd()?.as_fd(), start, inside + len, true, true)?;
        if at.is_multiple_of(2) {
            // Stores into what was loaded need no fault on some file systems.
            map.load();
        }
        map.write(inside, &bytes[..len]);
        if at % 3 == 0 {
            map.sync()?;
        }
        self.store(at, &bytes[..len]);
        Ok(())
    }

    fn map_late(&mut self, at: u64, bytes: &[u8]) -> Outcome {
        let Some((start, at, len)) = self.mappable(at, bytes.len() as u64) else { return Ok(()) };
        let inside = (at - start) as usize;
        let mut map = Map::new(self.fd()?.as_fd(), start, inside + len, true, true)?;
        map.load();
        self.fd = None;
        map.write(inside, &bytes[..len]);
        self.store(at, &bytes[..len]);
        Ok(())
    }

    fn allocate(&mut self, mode: Mode, at: u64, len: u64, keep_size: bool) -> Outcome {
        let flags = if keep_size { mode | Mode::KEEP_SIZE } else { mode };
        match fallocate(self.fd()?, flags, at, len) {
            Err(Errno::OPNOTSUPP) if !flags.is_empty() => return Ok(()),
            other => other?,
        }
        if !keep_size && self.model.len() < (at + len) as usize {
            self.model.resize((at + len) as usize, 0);
        }
        if !mode.is_empty() {
            let end = self.model.len().min((at + len) as usize);
            self.model[(at as usize).min(end)..end].fill(0);
        }
        Ok(())
    }

    fn copy(&mut self, from: u64, to: u64, len: u64) -> Outcome {
        let source = self.want(from, len).to_vec();
        let overlap = from < to + len && to < from + len;
        // O_APPEND forbids the call and O_DIRECT its odd offsets: then beside a plain descriptor.
        let plain = match self.how {
            How::Append | How::Direct => Some(os::open(self.path, OFlags::RDWR, 0)?),
            How::Plain | How::Truncate => None,
        };
        let fd = match &plain {
            Some(fd) => fd,
            None => self.fd()?,
        };
        let (mut source_at, mut target_at, mut done) = (from, to, 0);
        while done < source.len() {
            let left = source.len() - done;
            match copy_file_range(fd, Some(&mut source_at), fd, Some(&mut target_at), left) {
                Err(Errno::INVAL) if overlap => return Ok(()),
                Ok(0) => return Err(Failure::at("copy_file_range stopped before the end")),
                other => done += other?,
            }
        }
        if !source.is_empty() {
            self.store(to, &source);
        }
        Ok(())
    }

    fn reopen(&mut self, how: How) -> Outcome {
        let flag = match how {
            How::Plain => OFlags::empty(),
            How::Append => OFlags::APPEND,
            How::Direct => OFlags::DIRECT,
            How::Truncate => OFlags::TRUNC,
        };
        let (fd, how) = match os::open(self.path, OFlags::RDWR | flag, 0) {
            Err(Errno::INVAL) if how == How::Direct => {
                (os::open(self.path, OFlags::RDWR, 0)?, How::Plain)
            }
            other => (other?, how),
        };
        if how == How::Truncate {
            self.model.clear();
        }
        self.fd = Some(fd);
        self.how = how;
        Ok(())
    }
}

fn same(got: &[u8], want: &[u8], at: u64) -> Outcome {
    if got == want {
        return Ok(());
    }
    let first = got.iter().zip(want).position(|(a, b)| a != b);
    let first = first.unwrap_or_else(|| got.len().min(want.len()));
    Err(Failure::at(format_args!(
        "at byte {}: got {:?}, wanted {:?} ({} and {} bytes from {at})",
        at as usize + first,
        got.get(first),
        want.get(first),
        got.len(),
        want.len()
    )))
}

/// Applies `ops` to a fresh file in `dir`. `after` is called after each operation with its index and
/// what the file must be; self tests break the file there.
pub fn run_ops(
    dir: &Path,
    ops: &[Op],
    mut after: impl FnMut(usize, Op, &Path, &[u8]) -> Outcome,
) -> Outcome {
    let path = dir.join("fsx");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::TRUNC;
    let fd = os::open(&path, flags, 0o644)?;
    let mut file = File { path: &path, fd: Some(fd), how: How::Plain, model: Vec::new() };
    let guard = watchdog::guard(OPERATION_LIMIT, "fsx");
    for (index, op) in ops.iter().enumerate() {
        guard.renew(OPERATION_LIMIT);
        let step = file.apply(*op).and_then(|()| {
            guard.renew(LOOK_LIMIT);
            after(index, *op, &path, &file.model)?;
            guard.renew(OPERATION_LIMIT);
            let size = rustix::fs::stat(&path)?.st_size as usize;
            ensure!(size == file.model.len(), "size {size}, wanted {}", file.model.len());
            Ok(())
        });
        if let Err(failure) = step {
            return Err(Failure::Failed(format!("operation {index} {op:?}: {failure}")));
        }
    }
    same(&os::read_all(&path)?, &file.model, 0)?;
    drop(file.fd);
    same(&os::read_all(&path)?, &file.model, 0)?;
    Ok(rustix::fs::unlink(&path)?)
}

/// Runs `count` random operations; a failure names the seed and the smallest failing sequence.
pub fn run(dir: &Path, seed: u64, count: usize, max_len: u64) -> Outcome {
    let ops = random_ops(seed, count, max_len);
    run_ops(dir, &ops, |_, _, _, _| Ok(())).map_err(|failure| {
        let fails = |ops: &[Op]| run_ops(dir, ops, |_, _, _, _| Ok(())).is_err();
        explain(seed, &minimise(&ops, 2000, fails), &failure)
    })
}

/// As [`run`], with what is to be looked at after each operation.
pub fn run_with(
    dir: &Path,
    seed: u64,
    count: usize,
    max_len: u64,
    mut after: impl FnMut(usize, Op, &Path, &[u8]) -> Outcome,
) -> Outcome {
    let ops = random_ops(seed, count, max_len);
    run_ops(dir, &ops, &mut after).map_err(|failure| {
        let until = Instant::now() + LOOK_LIMIT;
        let fails = |ops: &[Op]| Instant::now() < until && run_ops(dir, ops, &mut after).is_err();
        explain(seed, &minimise(&ops, LOOKED_AT_ATTEMPTS, fails), &failure)
    })
}

/// Sequences tried to shrink one whose every step is looked at, which takes long.
const LOOKED_AT_ATTEMPTS: usize = 40;

fn explain(seed: u64, small: &[Op], failure: &Failure) -> Failure {
    let mut text = format!("fsx seed {seed}: {failure}\nsmallest sequence:\n#[test]\n");
    let _ = writeln!(text, "fn fsx_seed_{seed}() {{\n    let ops = [");
    for op in small {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "        Op::{op:?},");
    }
    text.push_str("    ];\n    run_ops(dir.path(), &ops, |_, _, _, _| Ok(())).unwrap();\n}\n");
    Failure::Failed(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{NativeDir, Subject};

    /// A file system that forgets to zero what truncate adds.
    fn broken_truncate(_: usize, op: Op, path: &Path, _: &[u8]) -> Outcome {
        if let Op::Truncate { len } = op
            && len > 10_000
        {
            let fd = os::open(path, OFlags::WRONLY, 0).unwrap();
            os::write_at(fd, len - 1, b"!")?;
        }
        Ok(())
    }

    #[test]
    fn run_ops_when_the_file_system_is_broken_then_it_fails_and_shrinks_to_the_cause() {
        let dir = NativeDir::in_memory().unwrap();
        let ops = random_ops(11, 400, 100_000);
        let failure = run_ops(dir.dir(), &ops, broken_truncate).unwrap_err();
        let fails = |ops: &[Op]| run_ops(dir.dir(), ops, broken_truncate).is_err();
        let text = explain(11, &minimise(&ops, 2000, fails), &failure).to_string();
        assert_eq!(text.matches("Op::").count(), 1, "{text}");
        assert!(text.contains("Op::Truncate"), "{text}");
    }

    #[test]
    fn random_ops_when_same_seed_then_same_sequence() {
        assert_eq!(random_ops(3, 50, 1000), random_ops(3, 50, 1000));
        assert_ne!(random_ops(3, 50, 1000), random_ops(4, 50, 1000));
    }
}
