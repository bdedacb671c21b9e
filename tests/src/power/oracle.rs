//! What was acknowledged, and hence what may be found after a cut.
//!
//! Names are those of a directory that is known by a number (see `trees`), so that what is said of a name
//! holds wherever its directory has been moved.

mod file;
mod traits;
mod trees;

use std::collections::BTreeMap;

use file::File;
use trees::Dir;
pub use trees::renamed;

use super::work::{Op, Sync};
use crate::random::pattern;

/// The unit of content. Every block says by a stamp which write it is of.
pub const BLOCK: usize = 4096;

/// What a block repeats.
const UNIT: usize = 64;
/// The permissions of a file that a worker makes.
const NEW_FILE: u32 = 0o644;

/// The content of a block with a stamp; 0 is zeros.
pub fn block(stamp: u64) -> Vec<u8> {
    if stamp == 0 { vec![0; BLOCK] } else { pattern(stamp, UNIT).repeat(BLOCK / UNIT) }
}

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    File(usize),
    Dir(usize),
    /// A symbolic link, by the number that it says.
    Way(u64),
    /// Nobody knows: something was lost here, and reported.
    Any,
}

/// What the backing store has under each name after a cut, before the next mount.
pub type Below = BTreeMap<String, Vec<u8>>;

/// What one worker did, as far as it may matter after a cut.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    files: Vec<File>,
    dirs: Vec<Dir>,
    names: BTreeMap<String, Vec<State>>,
    /// What is held open, by the path that it had at last.
    open: BTreeMap<String, State>,
    /// What happened to each name lately, for reports.
    trails: BTreeMap<String, Vec<String>>,
    /// All stamps that were ever written, with their counts of blocks and their names: for reports.
    written: Vec<(u64, usize, String)>,
    /// What was found of each file in the comparison that is under way: its length and stamps.
    settled: BTreeMap<usize, (usize, Vec<u64>)>,
    /// And where.
    met: Vec<(usize, String)>,
}

/// Steps that are remembered of a name.
const TRAIL: usize = 24;

impl Oracle {
    /// A file that is in the backing store from the beginning.
    pub fn add(&mut self, name: &str, blocks: usize, stamp: u64) -> Vec<u8> {
        let mut file = File::default();
        file.write(0, blocks, stamp);
        file.all_durable();
        self.files.push(file);
        self.names.insert(name.into(), vec![State::File(self.files.len() - 1)]);
        (0..blocks as u64).flat_map(|number| block(stamp + number)).collect()
    }

    fn now(&self, name: &str) -> State {
        self.names.get(name).and_then(|states| states.last()).copied().unwrap_or(State::Absent)
    }

    /// Whether the name leads to a file now, and of how many blocks.
    pub fn blocks(&self, path: &str) -> Option<usize> {
        match self.now(&self.key(path)) {
            State::File(file) => Some(self.files[file].len() / BLOCK),
            _ => None,
        }
    }

    fn push(&mut self, name: &str, state: State) {
        self.names.entry(name.into()).or_insert_with(|| vec![State::Absent]).push(state);
        if let State::Dir(dir) = state {
            self.dirs[dir].at = Some(name.into());
        }
    }

    /// A name is as it is now, and what it leads to is there, in a directory that is there.
    fn durable(&mut self, name: &str) {
        let Some(states) = self.names.get_mut(name) else { return };
        states.drain(..states.len() - 1);
        self.keep(name);
    }

    fn new_file(&mut self) -> usize {
        self.files.push(File { lens: vec![0], ..File::default() });
        self.files.len() - 1
    }

    /// What a name leads to; a new file, if there is none.
    fn file(&mut self, name: &str) -> usize {
        if let State::File(file) = self.now(name) {
            return file;
        }
        let file = self.new_file();
        self.push(name, State::File(file));
        file
    }

    /// A file is changed, also where a rename of it is lost with the power.
    fn change(&mut self, file: usize, change: impl Fn(&mut File)) {
        let mut next = Some(file);
        while let Some(file) = next {
            change(&mut self.files[file]);
            next = self.files[file].was;
        }
    }

    fn note(&mut self, name: &str, what: String) {
        let trail = self.trails.entry(name.into()).or_default();
        if trail.len() == TRAIL {
            trail.remove(0);
        }
        trail.push(what);
    }

    /// What happened to a name lately.
    pub fn trail(&self, name: &str) -> String {
        self.trails.get(name).map(|trail| trail.join("\n  ")).unwrap_or_default()
    }

    /// A worker did this in round `round`, and was told so (`done`), or was at it.
    pub fn carried_out(&mut self, round: usize, op: &Op, done: bool) {
        if let Op::Write { name, stamp, count, .. }
        | Op::Replace { name, stamp, count, .. }
        | Op::Unnamed { name, stamp, count, .. }
        | Op::WriteHeld { name, stamp, count, .. } = op
        {
            self.written.push((*stamp, *count, name.clone()));
        }
        let what = format!("{round} {}: {op:?}", if done { "done" } else { "begun" });
        let named = op.names().into_iter().map(|name| self.key(&name));
        let names: Vec<_> = named.chain(self.names_held_by(op)).collect();
        names.iter().for_each(|name| self.note(name, what.clone()));
        self.apply(op, done);
    }

    /// It was under way while disks were cut off below a living daemon, which syncs a file before such a
    /// rename: a file system that goes down while it syncs may say that it has.
    pub fn doubt(&mut self, op: &Op) {
        let names = match op {
            Op::Replace { name, sync: false, .. } => vec![name],
            Op::Move { to, .. } => vec![to],
            Op::Exchange { one, other, .. } => vec![one, other],
            _ => return,
        };
        let names: Vec<_> = names.into_iter().map(|name| self.key(name)).collect();
        for name in names {
            // What is durable, or no file, needs no sync.
            let is_sure = match self.now(&name) {
                State::File(file) => self.files[file].is_durable(),
                _ => true,
            };
            if !is_sure {
                self.push(&name, State::Any);
            }
        }
    }

    /// As [`Oracle::carried_out`], of what is only planned.
    pub fn apply(&mut self, op: &Op, done: bool) {
        self.settled.clear();
        // What is held is known by its path.
        if let Op::Renamed { name, to } = op {
            let open = std::mem::take(&mut self.open).into_iter();
            self.open = open.map(|(at, is)| (renamed(&at, name, to).unwrap_or(at), is)).collect();
            return;
        }
        let mut keyed = op.clone();
        for name in keyed.names_mut() {
            *name = self.key(name);
        }
        self.apply_to_files(&keyed, done);
        match op {
            Op::Hold { name, .. } | Op::HoldDir { name } => {
                self.open.insert(name.clone(), self.now(&self.key(name)));
            }
            Op::Release { name } => drop(self.open.remove(name)),
            _ => {}
        }
    }

    /// The same, of a step whose names are those of their directories.
    fn apply_to_files(&mut self, op: &Op, done: bool) {
        match op {
            Op::Write { name, at, count, stamp, fresh, sync } => {
                let file = self.file(name);
                if *fresh {
                    self.change(file, |file| file.set_len(0));
                }
                self.change(file, |file| file.write(*at, *count, *stamp));
                if done {
                    self.synced(name, file, (*at, *count), *sync);
                }
            }
            Op::Truncate { name, blocks, sync } => {
                let State::File(file) = self.now(name) else { return };
                self.change(file, |file| file.set_len(*blocks));
                self.whole_durable(name, file, done && *sync);
            }
            Op::Punch { name, at, count, sync } => {
                let State::File(file) = self.now(name) else { return };
                self.change(file, |file| file.punch(*at, *count));
                self.whole_durable(name, file, done && *sync);
            }
            Op::Drain { name } => {
                let State::File(file) = self.now(name) else { return };
                self.whole_durable(name, file, done);
            }
            Op::Mode { name, mode, sync } => {
                match self.now(name) {
                    State::File(file) => {
                        self.change(file, |file| file.traits.set_mode(NEW_FILE, *mode));
                    }
                    State::Dir(dir) => self.dirs[dir].traits.set_mode(trees::NEW_DIR, *mode),
                    _ => {}
                }
                self.synced_by(self.now(name), done && *sync);
            }
            Op::Mark { name, mark, sync } => {
                match self.now(name) {
                    State::File(file) => self.change(file, |file| file.traits.set_mark(*mark)),
                    State::Dir(dir) => self.dirs[dir].traits.set_mark(*mark),
                    _ => {}
                }
                self.synced_by(self.now(name), done && *sync);
            }
            Op::Hold { name, fresh } => {
                let file = self.file(name);
                if *fresh {
                    self.change(file, |file| file.set_len(0));
                }
            }
            Op::WriteHeld { name, at, count, stamp, sync } => {
                let Some(State::File(file)) = self.open.get(name).copied() else { return };
                self.change(file, |file| file.write(*at, *count, *stamp));
                self.synced_by(State::File(file), done && *sync);
            }
            Op::SyncHeld { name } => {
                let state = self.open.get(name).copied().unwrap_or(State::Absent);
                self.synced_by(state, done);
            }
            _ => self.apply_to_names(op, done),
        }
    }

    /// The same, if it is of names.
    fn apply_to_names(&mut self, op: &Op, done: bool) {
        match op {
            Op::Replace { name, count, stamp, sync, dir } => {
                let file = self.new_file();
                self.files[file].write(0, *count, *stamp);
                match self.now(name) {
                    _ if *sync => self.files[file].all_durable(),
                    State::File(of) => self.files[file].replace(of, None),
                    _ => {}
                }
                self.replace(name, State::File(file));
                self.done_in_dir(&[name], done && *dir);
            }
            Op::Remove { name, dir } => {
                self.remove(name);
                self.done_in_dir(&[name], done && *dir);
            }
            Op::Move { from, to, dir } => {
                let mut state = self.now(from);
                // Two names of one file stay.
                if state == self.now(to) {
                    return;
                }
                // As of a replacement without a sync. What was durable once may be so, too.
                if let (State::File(file), State::File(of)) = (state, self.now(to))
                    && !self.files[file].is_durable()
                {
                    let mut moved = self.files[file].clone();
                    moved.replace(of, Some(from.clone()));
                    (moved.was, moved.is_kept) = (Some(file), false);
                    self.files[file].is_kept = false;
                    self.files.push(moved);
                    state = State::File(self.files.len() - 1);
                }
                self.replace(to, state);
                self.push(from, State::Absent);
                self.done_in_dir(&[from, to], done && *dir);
            }
            Op::Exchange { one, other, dir } => {
                let (first, second) = (self.now(one), self.now(other));
                self.push(one, second);
                self.push(other, first);
                self.done_in_dir(&[one, other], done && *dir);
            }
            Op::Link { from, to, dir } => {
                if let State::File(file) = self.now(from) {
                    self.files[file].is_linked = true;
                }
                self.push(to, self.now(from));
                self.done_in_dir(&[to], done && *dir);
            }
            _ => self.apply_to_trees(op, done),
        }
    }

    /// If somebody was told so, the file and its name last.
    fn whole_durable(&mut self, name: &str, file: usize, is_told: bool) {
        if is_told {
            self.files[file].all_durable();
            self.names_durable(name, file);
        }
    }

    /// All that was found is in the backing store as it was found.
    pub fn all_written_back(&mut self) {
        for name in self.names() {
            self.durable(&name);
            match self.now(&name) {
                State::File(file) => self.files[file].all_durable(),
                State::Dir(dir) => self.dirs[dir].traits.durable(),
                _ => {}
            }
        }
        self.forget_what_is_gone();
    }

    /// A directory was synced. What was synced itself, or a part of it, is there from now on; instead of a
    /// file of which nothing was, what it has replaced may still be.
    fn done_in_dir(&mut self, names: &[&str], durable: bool) {
        for name in names.iter().filter(|_| durable) {
            let instead = match self.now(name) {
                State::File(file) => self.files[file].instead.as_ref(),
                _ => None,
            };
            if instead.is_none_or(|instead| instead.part.has_acknowledged()) {
                self.durable(name);
            }
        }
    }

    fn synced(&mut self, name: &str, file: usize, (at, count): (usize, usize), sync: Sync) {
        let (number, file) = (file, &mut self.files[file]);
        file.synced_in_part |= !matches!(sync, Sync::None | Sync::Syncfs);
        match sync {
            Sync::None | Sync::Syncfs => return,
            // Of a file that has a name that lasts.
            Sync::Msync => return file.part_durable(at, count),
            Sync::Fsync | Sync::Fdatasync => file.all_durable(),
            Sync::Open(_) | Sync::Each(_) => {
                file.part_durable(at, count);
                let least = (at + count) * BLOCK;
                file.at_least(least);
                if matches!(sync, Sync::Each(_)) {
                    return;
                }
                file.synced = true;
            }
        }
        self.names_durable(name, number);
    }

    /// All names that a file has now, and the one by which it was synced.
    fn names_durable(&mut self, name: &str, file: usize) {
        self.durable(name);
        for other in self.names() {
            if self.now(&other) == State::File(file) {
                self.durable(&other);
            }
        }
    }

    /// From here on a file is as it was found. Where another name of it showed something else, one of both
    /// is another file that may look the same: what is found now is a copy of it.
    fn settle(&mut self, before: &Oracle, file: usize, len: usize, stamps: Vec<u64>) -> usize {
        let found = (len, stamps);
        let file = match self.settled.get(&file) {
            Some(other) if *other != found => {
                self.files.push(before.files[file].clone());
                self.files.len() - 1
            }
            _ => file,
        };
        self.files[file].settle(found.0, &found.1);
        self.settled.insert(file, found);
        file
    }

    /// All names that there are or were.
    pub fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    /// Whether a file that nobody has synced has replaced something that must not be lost with it.
    fn is_guarded(&self, file: usize, below: Option<&[u8]>) -> bool {
        let is_below = |file: &File| {
            below.is_some_and(|below| !below.is_empty() && file.matches(below).is_ok())
        };
        let mut at = &self.files[file];
        if is_below(at) {
            return true;
        }
        while let Some(instead) = &at.instead {
            at = &self.files[instead.of];
            if at.synced || is_below(at) {
                return true;
            }
        }
        false
    }

    /// The stamps of what was found, if a file may be so.
    fn may_be(
        &self,
        name: &str,
        file: usize,
        found: &[u8],
        below: &Below,
    ) -> Result<Vec<u64>, String> {
        let whole = self.files[file].matches(found);
        let (Some(instead), Err(why)) = (&self.files[file].instead, &whole) else { return whole };
        if !self.is_guarded(file, below.get(name).map(Vec::as_slice)) {
            return instead.part.matches(found);
        }
        // It was moved, and is as the backing store has it, which may have moved it as well.
        let places = [instead.from.as_deref(), Some(name)];
        let mut before = places.into_iter().flatten().filter_map(|place| below.get(place));
        if !found.is_empty() && before.any(|before| before == found) {
            return instead.part.matches(found);
        }
        Err(format!("{why}, and it has replaced what was durable"))
    }

    /// Compares what a name of a file leads to after a cut with what it may, and goes on from there. `before` is what
    /// was known right after the cut: a file that may have one of two names is not known by one that was
    /// looked at before. `below` is what the backing store had then. Says what was wrong, and whether the
    /// file is to be removed, as nothing can be said of it any more.
    fn found(
        &mut self,
        before: &Oracle,
        name: &str,
        found: Option<&[u8]>,
        below: &Below,
    ) -> (Option<String>, bool) {
        let len = found.map_or("nothing".into(), |found| format!("{} bytes", found.len()));
        self.note(name, format!("found {len}, of {:?}", self.names.get(name)));
        let states = self.names.get(name).cloned().unwrap_or_default();
        let mut whys = Vec::new();
        for state in states.iter().rev() {
            match (state, found) {
                (State::Any, _) | (State::Absent, None) => {
                    return self.known(name, *state, found);
                }
                (State::Absent, Some(_)) => {}
                (State::Dir(_) | State::Way(_), Some(_)) => whys.push("no file".to_string()),
                (_, None) => whys.push("missing".to_string()),
                (State::File(file), Some(found)) => {
                    match before.may_be(name, *file, found, below) {
                        Ok(stamps) => {
                            let outcome = self.known(name, *state, Some(found));
                            self.met.push((*file, name.into()));
                            let settled = self.settle(before, *file, found.len(), stamps);
                            let names = self.names.get_mut(name).into_iter().flatten();
                            let is_it = |at: &&mut State| **at == State::File(*file);
                            names.filter(is_it).for_each(|at| *at = State::File(settled));
                            return outcome;
                        }
                        Err(why) => whys.push(why),
                    }
                }
            }
        }
        self.names.insert(name.into(), vec![State::Any, State::Absent]);
        let what = self.told(found);
        let why = format!("{what}, none of {} that may be: {}", states.len(), whys.join("; "));
        (Some(why), found.is_some())
    }

    /// How much was found, and which files have been so.
    fn told(&self, found: Option<&[u8]>) -> String {
        let Some(found) = found else { return "nothing".into() };
        let same = |file: &File| {
            let stamp = |at: usize| file.stamps.get(at).and_then(|may| may.last()).copied();
            let known = |(at, bytes): (usize, &[u8])| {
                stamp(at).is_some_and(|stamp| block(stamp)[..bytes.len()] == *bytes)
            };
            !found.is_empty() && found.chunks(BLOCK).enumerate().all(known)
        };
        let of: Vec<_> = (0..self.files.len()).filter(|at| same(&self.files[*at])).collect();
        match of.is_empty() {
            true => format!("{} bytes of {}", found.len(), self.origins(found)),
            false => format!("{} bytes of files {of:?}", found.len()),
        }
    }

    /// The writes that blocks are of.
    fn origins(&self, found: &[u8]) -> String {
        let mut known = BTreeMap::new();
        for (stamp, count, name) in &self.written {
            for number in 0..*count as u64 {
                known.insert(pattern(stamp + number, UNIT), (name, *stamp, number));
            }
        }
        let mut runs: Vec<(String, usize)> = Vec::new();
        for (at, bytes) in found.chunks(BLOCK).enumerate() {
            let from = match known.get(&bytes[..UNIT.min(bytes.len())]) {
                Some((name, stamp, number)) if block(stamp + number)[..bytes.len()] == *bytes => {
                    format!("{name} {stamp} from {}", at as i64 - *number as i64)
                }
                _ if bytes.iter().all(|byte| *byte == 0) => "zeros".into(),
                _ => "nothing known".into(),
            };
            match runs.last_mut() {
                Some((last, count)) if *last == from => *count += 1,
                _ => runs.push((from, 1)),
            }
        }
        let told = runs.iter().map(|(from, count)| format!("{count} blocks of {from}"));
        told.collect::<Vec<_>>().join(", ")
    }

    fn known(&mut self, name: &str, state: State, found: Option<&[u8]>) -> (Option<String>, bool) {
        // The rest of a block would have to be told from zeros.
        let odd = found.is_some_and(|found| !found.len().is_multiple_of(BLOCK));
        let remove = found.is_some() && (odd || state == State::Any);
        // What is found need not be durable, if it is not what was acknowledged.
        let before = self.names.get(name).into_iter().flatten();
        let mut states: Vec<_> = before.copied().take_while(|known| *known != state).collect();
        states.push(state);
        states.extend(remove.then_some(State::Absent));
        states.dedup();
        self.names.insert(name.into(), states);
        (None, remove)
    }
}

#[cfg(test)]
mod tests;
