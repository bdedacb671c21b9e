//! One writer: a plan of steps that follows from a seed alone, its execution, and what may be found
//! after any number of its steps.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{fdatasync, fsync, rename, rmdir, unlink};
use xxhash_rust::xxh3::xxh3_64;

use crate::failure::{Failure, Outcome};
use crate::os::{self, Call, FileType, Map, OFlags};
use crate::random::{Random, pattern};

/// The unit of content; every block says who wrote it, in which step, and carries a checksum.
pub const BLOCK: usize = 512;

/// The writer's own temporary name, as a program that saves safely uses one.
const TEMPORARY: &str = "new";

/// One step. Files are named by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Variants are described by the work they stand for.
pub enum Step {
    /// Write a temporary, sync it, rename it over the file.
    Replace {
        file: u8,
        blocks: u8,
    },
    /// Append blocks and sync.
    Append {
        file: u8,
        blocks: u8,
    },
    /// Overwrite one block in place and sync its data.
    Overwrite {
        file: u8,
        block: u8,
    },
    /// Overwrite one block through a shared mapping and msync.
    MapWrite {
        file: u8,
        block: u8,
    },
    /// Rewrite from the start without any sync but the close.
    Rewrite {
        file: u8,
        blocks: u8,
    },
    Rename {
        from: u8,
        to: u8,
    },
    Unlink {
        file: u8,
    },
    Mkdir {
        dir: u8,
    },
    Rmdir {
        dir: u8,
    },
}

/// The steps of one writer.
#[derive(Clone, Debug)]
pub struct Plan {
    seed: u64,
}

impl Plan {
    /// The plan of writer `id` of a load.
    pub fn new(seed: u64, id: usize) -> Self {
        Self { seed: seed ^ (id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) }
    }

    /// Step number `number`.
    pub fn step(&self, number: u64) -> Step {
        let mut random = Random::new(self.seed.wrapping_add(number.wrapping_mul(0x1_0001)));
        random.bits();
        let file = random.below(10) as u8;
        let block = random.below(40) as u8;
        let blocks = random.between(1, 40) as u8;
        match random.below(100) {
            0..25 => Step::Replace { file, blocks },
            25..45 => Step::Append { file, blocks: blocks % 5 + 1 },
            45..57 => Step::Overwrite { file, block },
            57..65 => Step::MapWrite { file, block },
            65..75 => Step::Rewrite { file, blocks },
            75..83 => Step::Rename { from: file, to: random.below(10) as u8 },
            83..90 => Step::Unlink { file },
            90..96 => Step::Mkdir { dir: file },
            _ => Step::Rmdir { dir: file },
        }
    }

    /// The content of block `index` as step `step` writes it.
    fn block(&self, step: u64, index: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BLOCK);
        for word in [self.seed, step, index as u64] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend(pattern(self.seed ^ step ^ ((index as u64) << 40), BLOCK - 32));
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    fn blocks(&self, step: u64, range: std::ops::Range<usize>) -> Vec<u8> {
        range.flat_map(|index| self.block(step, index)).collect()
    }
}

/// What a writer's directory holds: per file the step that wrote each block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    files: BTreeMap<u8, Vec<u64>>,
    dirs: BTreeSet<u8>,
}

impl State {
    /// The state after `count` steps.
    fn after(plan: &Plan, count: u64) -> Self {
        let mut state = Self::default();
        (0..count).for_each(|number| state.apply(plan.step(number), number));
        state
    }

    fn apply(&mut self, step: Step, number: u64) {
        match step {
            Step::Replace { file, blocks } | Step::Rewrite { file, blocks } => {
                self.files.insert(file, vec![number; blocks.into()]);
            }
            Step::Append { file, blocks } => {
                let content = self.files.entry(file).or_default();
                content.resize(content.len() + usize::from(blocks), number);
            }
            Step::Overwrite { file, block } | Step::MapWrite { file, block } => {
                if let Some(content) = self.files.get_mut(&file).filter(|c| !c.is_empty()) {
                    let index = usize::from(block) % content.len();
                    content[index] = number;
                }
            }
            Step::Rename { from, to } => {
                if let Some(content) = self.files.remove(&from) {
                    self.files.insert(to, content);
                }
            }
            Step::Unlink { file } => drop(self.files.remove(&file)),
            Step::Mkdir { dir } => drop(self.dirs.insert(dir)),
            Step::Rmdir { dir } => drop(self.dirs.remove(&dir)),
        }
    }

    fn content(&self, plan: &Plan, file: u8) -> Option<Vec<u8>> {
        let blocks = self.files.get(&file)?.iter().enumerate();
        Some(blocks.flat_map(|(index, step)| plan.block(*step, index)).collect())
    }
}

/// The progress of all writers in memory that outlives them, and two flags for them.
pub struct Progress {
    memory: OwnedFd,
}

const DYING: u64 = 0;
const STOPPING: u64 = 8;

impl Progress {
    /// Progress of nothing yet.
    pub fn new(writers: usize) -> Outcome<Self> {
        let memory = rustix::fs::memfd_create("progress", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, 16 + 16 * writers as u64)?;
        Ok(Self { memory })
    }

    fn get(&self, at: u64) -> u64 {
        let bytes = os::read_at(&self.memory, at, 8).unwrap_or_default();
        bytes.try_into().map_or(0, u64::from_le_bytes)
    }

    fn set(&self, at: u64, value: u64) -> Call {
        os::write_at(&self.memory, at, &value.to_le_bytes())
    }

    /// From now on errors are expected.
    pub fn expect_death(&self) {
        self.set(DYING, 1).expect("memory of fixed size takes a number");
    }

    /// Asks the writers to end after their present step.
    pub fn stop(&self) {
        self.set(STOPPING, 1).expect("memory of fixed size takes a number");
    }

    /// (steps begun, steps done) of one writer.
    pub fn read(&self, id: usize) -> (u64, u64) {
        let at = 16 + 16 * id as u64;
        (self.get(at), self.get(at + 8))
    }
}

/// Works through the plan until told to stop or until the mount dies.
pub fn work(home: &Path, plan: &Plan, progress: &Progress, id: usize) -> Outcome {
    let at = 16 + 16 * id as u64;
    let mut state = State::default();
    let mut number = 0;
    while progress.get(STOPPING) == 0 {
        progress.set(at, number + 1)?;
        let step = plan.step(number);
        if let Err(errno) = carry_out(home, plan, &state, step, number) {
            // The flag is set before the daemon is killed, so an error without it is its fault.
            ensure!(progress.get(DYING) != 0, "step {number} {step:?} failed with {errno:?}");
            return Ok(());
        }
        state.apply(step, number);
        progress.set(at + 8, number + 1)?;
        number += 1;
    }
    Ok(())
}

fn file_name(file: u8) -> String {
    format!("file{file}")
}

fn dir_name(dir: u8) -> String {
    format!("dir{dir}")
}

fn carry_out(home: &Path, plan: &Plan, state: &State, step: Step, number: u64) -> Call {
    let path = |file: u8| home.join(file_name(file));
    let length = |file: u8| state.files.get(&file).map_or(0, Vec::len);
    match step {
        Step::Replace { file, blocks } => {
            let temporary = home.join(TEMPORARY);
            let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY;
            let fd = os::open(&temporary, flags, 0o644)?;
            os::write_all(&fd, &plan.blocks(number, 0..blocks.into()))?;
            fsync(&fd)?;
            drop(fd);
            rename(&temporary, path(file))
        }
        Step::Append { file, blocks } => {
            let flags = OFlags::CREATE | OFlags::APPEND | OFlags::WRONLY;
            let fd = os::open(path(file), flags, 0o644)?;
            let start = length(file);
            os::write_all(&fd, &plan.blocks(number, start..start + usize::from(blocks)))?;
            fsync(&fd)
        }
        Step::Overwrite { file, block } if length(file) > 0 => {
            let index = usize::from(block) % length(file);
            let fd = os::open(path(file), OFlags::WRONLY, 0)?;
            os::write_at(&fd, (index * BLOCK) as u64, &plan.block(number, index))?;
            fdatasync(&fd)
        }
        Step::MapWrite { file, block } if length(file) > 0 => {
            let index = usize::from(block) % length(file);
            let fd = os::open(path(file), OFlags::RDWR, 0)?;
            let mut map = Map::new(fd.as_fd(), 0, length(file) * BLOCK, true, true)?;
            map.write(index * BLOCK, &plan.block(number, index));
            map.sync()
        }
        Step::Rewrite { file, blocks } => {
            let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY;
            let fd = os::open(path(file), flags, 0o644)?;
            os::write_all(&fd, &plan.blocks(number, 0..blocks.into()))?;
            close(fd)
        }
        Step::Rename { from, to } if state.files.contains_key(&from) => {
            rename(path(from), path(to))
        }
        Step::Unlink { file } if state.files.contains_key(&file) => unlink(path(file)),
        Step::Mkdir { dir } if !state.dirs.contains(&dir) => {
            os::mkdir(home.join(dir_name(dir)), 0o755)
        }
        Step::Rmdir { dir } if state.dirs.contains(&dir) => rmdir(home.join(dir_name(dir))),
        _ => Ok(()),
    }
}

/// close(2) with its answer, which acknowledges what was written.
fn close(fd: OwnedFd) -> Call {
    use std::os::fd::IntoRawFd;
    // SAFETY: the descriptor is owned and given up here.
    if unsafe { libc::close(fd.into_raw_fd()) } == 0 { Ok(()) } else { Err(os::Errno::IO) }
}

/// Compares a writer's directory with what may be there after `done` complete steps, when step
/// `done` had perhaps `begun`.
pub fn verify(home: &Path, plan: &Plan, begun: u64, done: u64) -> Outcome {
    let before = State::after(plan, done);
    let pending = (begun > done).then(|| plan.step(done));
    let mut after = before.clone();
    if let Some(step) = pending {
        after.apply(step, done);
    }
    let mut names: BTreeSet<_> = os::names(home)?.into_iter().collect();
    if matches!(pending, Some(Step::Replace { .. })) {
        names.remove(std::ffi::OsStr::new(TEMPORARY));
    }
    for dir in 0..10 {
        let found = names.remove(std::ffi::OsStr::new(&dir_name(dir)));
        let allowed = [before.dirs.contains(&dir), after.dirs.contains(&dir)];
        ensure!(allowed.contains(&found), "dir{dir} there: {found}, allowed: {allowed:?}");
    }
    for file in 0..10 {
        let name = file_name(file);
        let found = names.remove(std::ffi::OsStr::new(&name));
        let content = if found { Some(read_file(&home.join(&name))?) } else { None };
        let allowed = [before.content(plan, file), after.content(plan, file)];
        if !allowed.contains(&content) && !is_partial(pending, file, content.as_deref(), &allowed) {
            return Err(Failure::Failed(differs(&name, content.as_deref(), &allowed, pending)));
        }
    }
    ensure!(names.is_empty(), "left over: {names:?}");
    if let Some(Step::Rename { from, to }) = pending {
        // Never neither: a rename moves a file, it does not lose it.
        let moved = before.files.contains_key(&from);
        let there =
            os::exists(home.join(file_name(from)))? || os::exists(home.join(file_name(to)))?;
        ensure!(!moved || there, "a pending rename lost file{from}");
    }
    Ok(())
}

fn read_file(path: &Path) -> Outcome<Vec<u8>> {
    equal!(os::file_type(path)?, FileType::RegularFile);
    Ok(os::read_all(path)?)
}

/// States that only a step cut off in the middle may leave.
fn is_partial(
    pending: Option<Step>,
    file: u8,
    content: Option<&[u8]>,
    [before, after]: &[Option<Vec<u8>>; 2],
) -> bool {
    let (Some(step), Some(content), Some(after)) = (pending, content, after) else { return false };
    let old = before.as_deref().unwrap_or_default();
    match step {
        Step::Append { file: f, .. } if f == file => {
            content.len() >= old.len() && after.starts_with(content)
        }
        Step::Rewrite { file: f, .. } if f == file => after.starts_with(content),
        // Stores through a mapping reach the file in any order.
        Step::MapWrite { file: f, .. } if f == file => {
            content.len() == after.len()
                && content
                    .iter()
                    .zip(after)
                    .zip(old)
                    .all(|((got, new), old)| got == new || got == old)
        }
        _ => false,
    }
}

fn differs(
    name: &str,
    content: Option<&[u8]>,
    allowed: &[Option<Vec<u8>>; 2],
    pending: Option<Step>,
) -> String {
    let lengths = allowed.each_ref().map(|bytes| bytes.as_ref().map(Vec::len));
    let first = allowed[0].as_ref().zip(content).and_then(|(want, got)| {
        want.chunks(BLOCK).zip(got.chunks(BLOCK)).position(|(want, got)| want != got)
    });
    format!(
        "{name} has {:?} bytes, allowed are {lengths:?}; first wrong block {first:?}; pending {pending:?}",
        content.map(<[u8]>::len)
    )
}
