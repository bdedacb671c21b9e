//! One writer: a plan of steps that follows from a seed alone, its execution, and what may be found
//! after any number of its steps.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{RenameFlags, fdatasync, fsync, link, rename, renameat_with, rmdir, unlink};
use xxhash_rust::xxh3::xxh3_64;

use crate::failure::{Failure, Outcome};
use crate::os::{self, Call, FileType, Map, OFlags};
use crate::random::{Random, pattern};

/// The smallest unit of content; every block says who wrote it, in which step, and carries a
/// checksum.
pub const BLOCK: usize = 512;

/// The unit of content of a writer of large files.
const LARGE_BLOCK: usize = 128 * BLOCK;

/// After so many steps a writer pauses, often for longer than the second after which what rests is
/// written back.
const STEPS_BETWEEN_PAUSES: u64 = 24;

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
    /// Cut a file to so many blocks, if it has more.
    Truncate {
        file: u8,
        blocks: u8,
    },
    /// Give a file a second name, if that is free.
    Link {
        from: u8,
        to: u8,
    },
    /// Swap two files' names.
    Exchange {
        one: u8,
        other: u8,
    },
    Chmod {
        file: u8,
        mode: u16,
    },
    /// Read some blocks, or all, and compare them.
    Read {
        file: u8,
        block: u8,
    },
}

/// The steps of one writer.
#[derive(Clone, Debug)]
pub struct Plan {
    seed: u64,
    block: usize,
    /// Steps with which it begins, each at rest before the next.
    first: &'static [Step],
}

/// What happens to a file with two names while both are in the backing store.
const TWO_NAMES: &[Step] = &[
    Step::Replace { file: 0, blocks: 8 },
    Step::Link { from: 0, to: 1 },
    Step::Overwrite { file: 1, block: 3 },
    Step::Unlink { file: 1 },
];

/// Longer than changes of names and, in the suites that write back soon, of contents are put off.
const AT_REST: Duration = Duration::from_millis(1400);

impl Plan {
    /// The plan of writer `id` of a load.
    pub fn new(seed: u64, id: usize) -> Self {
        Self {
            seed: seed ^ (id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            block: BLOCK,
            first: &[],
        }
    }

    /// The same plan after some steps with a file that has two names.
    #[must_use]
    pub fn with_two_names(self) -> Self {
        Self { first: TWO_NAMES, ..self }
    }

    /// The same plan with blocks so large that a few files fill a small tier.
    #[must_use]
    pub fn large(self) -> Self {
        Self { block: LARGE_BLOCK, ..self }
    }

    /// Step number `number`.
    pub fn step(&self, number: u64) -> Step {
        if let Some(step) = usize::try_from(number).ok().and_then(|number| self.first.get(number)) {
            return *step;
        }
        let mut random = Random::new(self.seed.wrapping_add(number.wrapping_mul(0x1_0001)));
        random.bits();
        let file = random.below(10) as u8;
        let block = random.below(40) as u8;
        let blocks = random.between(1, 40) as u8;
        match random.below(100) {
            0..16 => Step::Replace { file, blocks },
            16..29 => Step::Append { file, blocks: blocks % 5 + 1 },
            29..40 => Step::Overwrite { file, block },
            40..47 => Step::MapWrite { file, block },
            47..54 => Step::Rewrite { file, blocks },
            54..61 => Step::Rename { from: file, to: random.below(10) as u8 },
            61..67 => Step::Unlink { file },
            67..72 => Step::Mkdir { dir: file },
            72..76 => Step::Rmdir { dir: file },
            76..80 => Step::Truncate { file, blocks },
            80..87 => Step::Link { from: file, to: random.below(10) as u8 },
            87..90 => Step::Exchange { one: file, other: random.below(10) as u8 },
            90..93 => Step::Chmod { file, mode: 0o600 | (blocks as u16 & 0o77) },
            _ => Step::Read { file, block },
        }
    }

    /// The content of block `index` as step `step` writes it.
    fn block(&self, step: u64, index: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.block);
        for word in [self.seed, step, index as u64] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend(pattern(self.seed ^ step ^ ((index as u64) << 40), self.block - 32));
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    fn blocks(&self, step: u64, range: std::ops::Range<usize>) -> Vec<u8> {
        range.flat_map(|index| self.block(step, index)).collect()
    }
}

/// What a writer's directory holds: which file each name leads to, and per file the step that wrote
/// each block. A file is known by the step that made it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    names: BTreeMap<u8, u64>,
    contents: BTreeMap<u64, Vec<u64>>,
    dirs: BTreeSet<u8>,
}

impl State {
    /// The state after `count` steps.
    fn after(plan: &Plan, count: u64) -> Self {
        let mut state = Self::default();
        (0..count).for_each(|number| state.apply(plan.step(number), number));
        state
    }

    fn has(&self, file: u8) -> bool {
        self.names.contains_key(&file)
    }

    /// The number of blocks of a file.
    fn length(&self, file: u8) -> usize {
        self.blocks_of(file).map_or(0, Vec::len)
    }

    fn blocks_of(&self, file: u8) -> Option<&Vec<u64>> {
        self.contents.get(self.names.get(&file)?)
    }

    /// The content behind a name, made if there is none.
    fn content_of(&mut self, file: u8, number: u64) -> &mut Vec<u64> {
        let id = *self.names.entry(file).or_insert(number);
        self.contents.entry(id).or_default()
    }

    fn same_file(&self, one: u8, other: u8) -> bool {
        self.has(one) && self.names.get(&one) == self.names.get(&other)
    }

    fn apply(&mut self, step: Step, number: u64) {
        match step {
            Step::Replace { file, blocks } => {
                self.names.insert(file, number);
                self.contents.insert(number, vec![number; blocks.into()]);
            }
            Step::Rewrite { file, blocks } => {
                *self.content_of(file, number) = vec![number; blocks.into()];
            }
            Step::Append { file, blocks } => {
                let content = self.content_of(file, number);
                content.resize(content.len() + usize::from(blocks), number);
            }
            Step::Overwrite { file, block } | Step::MapWrite { file, block }
                if self.length(file) > 0 =>
            {
                let content = self.content_of(file, number);
                let index = usize::from(block) % content.len();
                content[index] = number;
            }
            Step::Rename { from, to } if self.has(from) && !self.same_file(from, to) => {
                let id = self.names.remove(&from).expect("the guard has seen it");
                self.names.insert(to, id);
            }
            Step::Unlink { file } => drop(self.names.remove(&file)),
            Step::Mkdir { dir } => drop(self.dirs.insert(dir)),
            Step::Rmdir { dir } => drop(self.dirs.remove(&dir)),
            Step::Truncate { file, blocks } if self.has(file) => {
                self.content_of(file, number).truncate(blocks.into());
            }
            Step::Link { from, to } if self.has(from) && !self.has(to) => {
                self.names.insert(to, self.names[&from]);
            }
            Step::Exchange { one, other } if self.has(one) && self.has(other) => {
                let (a, b) = (self.names[&one], self.names[&other]);
                self.names.extend([(one, b), (other, a)]);
            }
            _ => {}
        }
        let State { names, contents, .. } = self;
        contents.retain(|id, _| names.values().any(|named| named == id));
    }

    fn content(&self, plan: &Plan, file: u8) -> Option<Vec<u8>> {
        let blocks = self.blocks_of(file)?.iter().enumerate();
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

    /// Whether [`Progress::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.get(STOPPING) != 0
    }

    /// Whether [`Progress::expect_death`] was called.
    pub fn expects_death(&self) -> bool {
        self.get(DYING) != 0
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
    while !progress.is_stopping() {
        progress.set(at, number + 1)?;
        let step = plan.step(number);
        if let Err(failure) = carry_out(home, plan, &state, step, number) {
            // The flag is set before the daemon is killed, so an error without it is its fault.
            let errno = matches!(failure, Failed::Call(_));
            ensure!(errno && progress.expects_death(), "step {number} {step:?}: {failure:?}");
            return Ok(());
        }
        state.apply(step, number);
        progress.set(at + 8, number + 1)?;
        number += 1;
        if (2..=plan.first.len() as u64).contains(&number) {
            std::thread::sleep(AT_REST);
        }
        if number.is_multiple_of(STEPS_BETWEEN_PAUSES) {
            std::thread::sleep(Duration::from_millis(Random::new(plan.seed ^ number).below(1500)));
        }
    }
    Ok(())
}

/// Why a step did not succeed.
#[derive(Debug)]
enum Failed {
    /// A call failed, as calls do when the daemon dies.
    Call(#[allow(dead_code, reason = "shown by Debug")] os::Errno),
    /// It succeeded with wrong bytes.
    Wrong(#[allow(dead_code, reason = "shown by Debug")] String),
}

impl From<os::Errno> for Failed {
    fn from(errno: os::Errno) -> Self {
        Self::Call(errno)
    }
}

fn file_name(file: u8) -> String {
    format!("file{file}")
}

fn dir_name(dir: u8) -> String {
    format!("dir{dir}")
}

fn carry_out(
    home: &Path,
    plan: &Plan,
    state: &State,
    step: Step,
    number: u64,
) -> Result<(), Failed> {
    if let Step::Read { file, block } = step {
        return read_and_compare(home, plan, state, file, block);
    }
    Ok(change(home, plan, state, step, number)?)
}

/// One block at random, then all when the number of the block says so.
fn read_and_compare(
    home: &Path,
    plan: &Plan,
    state: &State,
    file: u8,
    block: u8,
) -> Result<(), Failed> {
    let Some(steps) = state.blocks_of(file).filter(|steps| !steps.is_empty()) else {
        return Ok(());
    };
    let fd = os::open(home.join(file_name(file)), OFlags::RDONLY, 0)?;
    let first = usize::from(block) % steps.len();
    let rest = if block.is_multiple_of(4) { 0..steps.len() } else { 0..0 };
    for index in std::iter::once(first).chain(rest) {
        let read = os::read_at(&fd, (index * plan.block) as u64, plan.block)?;
        if read != plan.block(steps[index], index) {
            return Err(Failed::Wrong(format!("block {index} of {}", steps.len())));
        }
    }
    Ok(())
}

fn change(home: &Path, plan: &Plan, state: &State, step: Step, number: u64) -> Call {
    let path = |file: u8| home.join(file_name(file));
    let length = |file: u8| state.length(file);
    match step {
        Step::Replace { file, blocks } => replace(home, plan, file, blocks, number),
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
            os::write_at(&fd, (index * plan.block) as u64, &plan.block(number, index))?;
            fdatasync(&fd)
        }
        Step::MapWrite { file, block } if length(file) > 0 => {
            let index = usize::from(block) % length(file);
            let fd = os::open(path(file), OFlags::RDWR, 0)?;
            let mut map = Map::new(fd.as_fd(), 0, length(file) * plan.block, true, true)?;
            map.write(index * plan.block, &plan.block(number, index));
            map.sync()
        }
        Step::Rewrite { file, blocks } => {
            let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY;
            let fd = os::open(path(file), flags, 0o644)?;
            os::write_all(&fd, &plan.blocks(number, 0..blocks.into()))?;
            close(fd)
        }
        Step::Truncate { file, blocks } if length(file) > usize::from(blocks) => {
            os::truncate(path(file), (usize::from(blocks) * plan.block) as i64)
        }
        _ => change_names(home, state, step),
    }
}

fn replace(home: &Path, plan: &Plan, file: u8, blocks: u8, number: u64) -> Call {
    let temporary = home.join(TEMPORARY);
    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY;
    let fd = os::open(&temporary, flags, 0o644)?;
    os::write_all(&fd, &plan.blocks(number, 0..blocks.into()))?;
    fsync(&fd)?;
    drop(fd);
    rename(&temporary, home.join(file_name(file)))
}

fn change_names(home: &Path, state: &State, step: Step) -> Call {
    let path = |file: u8| home.join(file_name(file));
    match step {
        Step::Rename { from, to } if state.has(from) => rename(path(from), path(to)),
        Step::Unlink { file } if state.has(file) => unlink(path(file)),
        Step::Mkdir { dir } if !state.dirs.contains(&dir) => {
            os::mkdir(home.join(dir_name(dir)), 0o755)
        }
        Step::Rmdir { dir } if state.dirs.contains(&dir) => rmdir(home.join(dir_name(dir))),
        Step::Link { from, to } if state.has(from) && !state.has(to) => link(path(from), path(to)),
        Step::Exchange { one, other } if state.has(one) && state.has(other) => {
            let flags = RenameFlags::EXCHANGE;
            renameat_with(rustix::fs::CWD, path(one), rustix::fs::CWD, path(other), flags)
        }
        Step::Chmod { file, mode } if state.has(file) => os::chmod(path(file), mode.into()),
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
        let partial = pending.is_some_and(|step| {
            let of = written_by(step).filter(|of| *of == file || before.same_file(*of, file));
            of.is_some() && is_partial(step, content.as_deref(), &allowed, plan.block > BLOCK)
        });
        if !allowed.contains(&content) && !partial {
            let differs = differs(plan, content.as_deref(), &allowed, pending);
            return Err(Failure::Failed(format!("{name} {differs}")));
        }
    }
    ensure!(names.is_empty(), "left over: {names:?}");
    if let Some(Step::Rename { from, to }) = pending {
        // Never neither: a rename moves a file, it does not lose it.
        let moved = before.has(from);
        let there =
            os::exists(home.join(file_name(from)))? || os::exists(home.join(file_name(to)))?;
        ensure!(!moved || there, "a pending rename lost file{from}");
    }
    Ok(())
}

/// Compares the contents below `root`, under whatever names, with those that a writer's files had
/// after `done` steps. What the step that had perhaps begun changes is left out.
pub fn verify_contents(found: &BTreeSet<u64>, plan: &Plan, begun: u64, done: u64) -> Outcome {
    let state = State::after(plan, done);
    let mut after = state.clone();
    if begun > done {
        after.apply(plan.step(done), done);
    }
    for file in 0..10 {
        let Some(content) = state.content(plan, file).filter(|content| !content.is_empty()) else {
            continue;
        };
        let settled = after.content(plan, file).as_ref() == Some(&content);
        ensure!(!settled || found.contains(&xxh3_64(&content)), "{} is lost", file_name(file));
    }
    Ok(())
}

fn read_file(path: &Path) -> Outcome<Vec<u8>> {
    equal!(os::file_type(path)?, FileType::RegularFile);
    Ok(os::read_all(path)?)
}

/// The file whose content a step changes in place.
fn written_by(step: Step) -> Option<u8> {
    match step {
        Step::Append { file, .. }
        | Step::Rewrite { file, .. }
        | Step::Overwrite { file, .. }
        | Step::MapWrite { file, .. } => Some(file),
        _ => None,
    }
}

/// States that only a step cut off in the middle may leave.
fn is_partial(
    step: Step,
    content: Option<&[u8]>,
    [before, after]: &[Option<Vec<u8>>; 2],
    is_large: bool,
) -> bool {
    let (Some(content), Some(after)) = (content, after) else { return false };
    let old = before.as_deref().unwrap_or_default();
    match step {
        Step::Append { .. } => content.len() >= old.len() && after.starts_with(content),
        Step::Rewrite { .. } => after.starts_with(content),
        // Only a small write is one step for the device.
        Step::Overwrite { .. } if !is_large => false,
        // Stores through a mapping reach the file in any order.
        Step::Overwrite { .. } | Step::MapWrite { .. } => {
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
    plan: &Plan,
    content: Option<&[u8]>,
    allowed: &[Option<Vec<u8>>; 2],
    pending: Option<Step>,
) -> String {
    let lengths = allowed.each_ref().map(|bytes| bytes.as_ref().map(Vec::len));
    let wrong: Vec<String> = match allowed[0].as_ref().zip(content) {
        None => Vec::new(),
        Some((want, got)) => {
            let blocks = want.chunks(plan.block).zip(got.chunks(plan.block)).enumerate();
            let wrong = blocks.filter(|(_, (want, got))| want != got);
            let told = |(index, (want, got))| {
                format!("{index} is {}, not {}", origin(plan, got), origin(plan, want))
            };
            wrong.map(told).collect()
        }
    };
    format!(
        "has {:?} bytes, allowed are {lengths:?}; wrong blocks {wrong:?}; pending {pending:?}",
        content.map(<[u8]>::len)
    )
}

/// Who wrote a block, by its own word: its first bytes tell the plan, the step and the index.
fn origin(plan: &Plan, block: &[u8]) -> String {
    if block.iter().all(|byte| *byte == 0) {
        return "zeros".into();
    }
    let words: Vec<u64> = block[..24.min(block.len())]
        .as_chunks()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
        .collect();
    match words[..] {
        [seed, step, index] if seed == plan.seed => {
            let whole = block == plan.block(step, index as usize);
            format!("block {index} of step {step}{}", if whole { "" } else { ", in part" })
        }
        _ => "another's".into(),
    }
}
