//! What programs do with directories until the power fails.
//!
//! Files are replaced and moved over others here only if they are durable: the other mixes ask what becomes
//! of those that are not.

use super::oracle::Oracle;
use super::work::{Mix, Op, choose_for};
use crate::random::Random;

/// So many of each kind have names in a directory.
const DIRS: u64 = 3;
const FILES: u64 = 4;
const WAYS: u64 = 2;
/// How deep directories are.
const DEEPEST: usize = 3;
/// So much is held open at a time.
const HELD: usize = 6;
/// Blocks of a file.
const BLOCKS: u64 = 4;

/// What there is now.
struct There {
    /// The worker's own directory, which is "", and those below.
    dirs: Vec<String>,
    files: Vec<String>,
    ways: Vec<String>,
}

impl There {
    fn of(expected: &Oracle) -> Self {
        let mut there = There { dirs: vec![String::new()], files: Vec::new(), ways: Vec::new() };
        for path in expected.paths() {
            match path.strip_suffix('/') {
                Some(dir) => there.dirs.push(dir.into()),
                // The large ones stay where they are.
                None if path.starts_with("large") => {}
                None if expected.blocks(&path).is_some() => there.files.push(path),
                None => there.ways.push(path),
            }
        }
        there
    }

    fn has(&self, path: &str) -> bool {
        [&self.dirs, &self.files, &self.ways].iter().any(|all| all.iter().any(|it| it == path))
    }

    /// A directory that is not the worker's own.
    fn some_dir(&self, random: &mut Random) -> Option<String> {
        (self.dirs.len() > 1).then(|| random.pick(&self.dirs[1..]).clone())
    }

    fn some_file(&self, random: &mut Random) -> Option<String> {
        (!self.files.is_empty()).then(|| random.pick(&self.files).clone())
    }

    fn is_empty(&self, dir: &str) -> bool {
        let all = self.dirs.iter().chain(&self.files).chain(&self.ways);
        !all.into_iter().any(|path| is_below(path, dir))
    }

    /// How many directories are nested in one, with it.
    fn height(&self, dir: &str) -> usize {
        let below = self.dirs.iter().filter(|path| is_below(path, dir));
        below.map(|path| depth(path)).max().map_or(1, |deepest| deepest - depth(dir) + 1)
    }
}

fn depth(path: &str) -> usize {
    if path.is_empty() { 0 } else { path.split('/').count() }
}

fn is_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
}

fn in_dir(dir: &str, kind: &str, number: u64) -> String {
    format!("{dir}{}{kind}{number}", if dir.is_empty() { "" } else { "/" })
}

/// One step.
pub(super) fn choose(random: &mut Random, expected: &Oracle, stamp: &mut u64) -> Option<Op> {
    let there = There::of(expected);
    let home = random.pick(&there.dirs).clone();
    let small = in_dir(&home, "small", random.below(FILES));
    let dir = random.one_in(3);
    *stamp += 1 << 12;
    Some(match random.below(26) {
        0..=2 => {
            let name = in_dir(&home, "dir", random.below(DIRS));
            let is_free = !there.has(&name) && depth(&name) <= DEEPEST;
            is_free.then_some(Op::MakeDir { name })?
        }
        3..=5 => move_dir(random, &there, dir)?,
        6 => Op::RemoveTree { name: there.some_dir(random)?, dir },
        7 => {
            let (from, to) = (there.some_file(random)?, small);
            (!there.has(&to)).then_some(Op::Link { from, to, dir })?
        }
        8 => {
            let name = in_dir(&home, "way", random.below(WAYS));
            match there.has(&name) {
                true => Op::Remove { name, dir },
                false => Op::Symlink { name, way: *stamp, dir },
            }
        }
        9 | 10 => {
            let (count, stamp) = (random.between(1, BLOCKS) as usize, *stamp);
            let sync = random.one_in(2);
            let unnamed = Op::Unnamed { name: small, count, stamp, sync, dir };
            unnamed.names().iter().all(|name| !there.has(name)).then_some(unnamed)?
        }
        11 | 12 => attributes(random, &there, *stamp)?,
        13 => Op::SyncDir { name: small },
        14..=16 => hold(random, &there, expected, *stamp)?,
        17 | 18 => move_file(random, &there, expected, (small, dir))?,
        _ => match choose_for(random, Mix::Trees, expected, stamp, (small, false))? {
            Op::Replace { name, count, stamp, dir, .. } => {
                Op::Replace { name, count, stamp, sync: true, dir }
            }
            Op::Move { .. } | Op::Exchange { .. } => return None,
            op => op,
        },
    })
}

/// Into another directory, or over an empty one; or two are exchanged.
fn move_dir(random: &mut Random, there: &There, dir: bool) -> Option<Op> {
    let from = there.some_dir(random)?;
    if random.one_in(5) {
        let other = there.some_dir(random)?;
        let is_apart = from != other && !is_below(&from, &other) && !is_below(&other, &from);
        let fits = depth(&from) + there.height(&other) <= DEEPEST + 1
            && depth(&other) + there.height(&from) <= DEEPEST + 1;
        return (is_apart && fits).then_some(Op::Exchange { one: from, other, dir });
    }
    let parent = random.pick(&there.dirs).clone();
    let to = in_dir(&parent, "dir", random.below(DIRS));
    let is_apart = from != to && !is_below(&to, &from);
    let is_free = !there.has(&to) || there.is_empty(&to);
    let fits = depth(&to) + there.height(&from) <= DEEPEST + 1;
    (is_apart && is_free && fits).then_some(Op::Move { from, to, dir })
}

fn move_file(
    random: &mut Random,
    there: &There,
    expected: &Oracle,
    (to, dir): (String, bool),
) -> Option<Op> {
    let from = there.some_file(random)?;
    if !there.has(&to) {
        return Some(Op::Move { from, to, dir });
    }
    if !expected.is_durable(&from) || expected.is_same(&from, &to) {
        return None;
    }
    let is_exchange = random.one_in(3) && expected.is_durable(&to);
    Some(match is_exchange {
        true => Op::Exchange { one: from, other: to, dir },
        false => Op::Move { from, to, dir },
    })
}

fn attributes(random: &mut Random, there: &There, mark: u64) -> Option<Op> {
    let is_dir = random.one_in(3);
    let name = if is_dir { there.some_dir(random)? } else { there.some_file(random)? };
    let sync = !random.one_in(3);
    Some(match random.one_in(2) {
        true => {
            let modes = if is_dir { [0o700, 0o750, 0o755] } else { [0o600, 0o640, 0o755] };
            Op::Mode { name, mode: *random.pick(&modes), sync }
        }
        false => Op::Mark { name, mark, sync },
    })
}

/// Something is opened and stays so, or is closed, or is written or synced by what is open.
fn hold(random: &mut Random, there: &There, expected: &Oracle, stamp: u64) -> Option<Op> {
    let held: Vec<(&String, bool)> = expected.held().collect();
    if held.is_empty() || held.len() < HELD && random.one_in(3) {
        return Some(match random.one_in(3) {
            true => Op::HoldDir { name: there.some_dir(random)? },
            false => Op::Hold { name: there.some_file(random)?, fresh: false },
        });
    }
    let (name, is_dir) = *random.pick(&held);
    let name = name.clone();
    Some(match random.below(5) {
        0 => Op::Release { name },
        1 => Op::SyncHeld { name },
        _ if is_dir => Op::SyncHeld { name },
        _ => {
            let (at, count) = (random.below(BLOCKS) as usize, random.between(1, 2) as usize);
            Op::WriteHeld { name, at, count, stamp, sync: random.one_in(2) }
        }
    })
}
