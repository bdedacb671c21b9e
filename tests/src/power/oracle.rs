//! What was acknowledged, and hence what may be found after a cut.

use std::collections::BTreeMap;

use super::work::{Op, Sync};
use crate::random::pattern;

/// The unit of content. Every block says by a stamp which write it is of.
pub const BLOCK: usize = 4096;

/// What a block repeats.
const UNIT: usize = 64;
/// The permissions of a file that a worker makes.
const NEW_MODE: u32 = 0o644;

/// The content of a block with a stamp; 0 is zeros.
pub fn block(stamp: u64) -> Vec<u8> {
    if stamp == 0 { vec![0; BLOCK] } else { pattern(stamp, UNIT).repeat(BLOCK / UNIT) }
}

/// One inode.
#[derive(Clone, Debug, Default)]
struct File {
    /// For each block the stamps that it may hold: first the durable one, then those since.
    stamps: Vec<Vec<u64>>,
    /// The lengths in bytes that it may have: first the durable one, then those since.
    lens: Vec<usize>,
    /// Somebody was told that it is durable.
    synced: bool,
    /// Or that a part of it is.
    synced_in_part: bool,
    /// It came by a rename over another one, and nobody had synced it before.
    instead: Option<Instead>,
    /// What it is called where a rename of it is not durable: the same file, which may be in parts there.
    was: Option<usize>,
    /// The permissions that it may have: first the durable ones, then those since. None at all: nobody asks.
    modes: Vec<u32>,
}

/// What a file replaced that nobody had synced. If any of that was durable, or is in the backing store,
/// the file must be whole, as ext4's `auto_da_alloc` has it; else it may be a part of itself.
#[derive(Clone, Debug)]
struct Instead {
    /// The file that it has replaced.
    of: usize,
    /// The name that it had before, if the backing store may have had it there.
    from: Option<String>,
    /// It, if what it replaced was nowhere durable: the file around this one is what was there at the
    /// rename, and what was done since.
    part: Box<File>,
}

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    File(usize),
    /// Nobody knows: something was lost here, and reported.
    Any,
}

/// What the backing store has under each name after a cut, before the next mount.
pub type Below = BTreeMap<String, Vec<u8>>;

/// What one worker did, as far as it may matter after a cut.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    files: Vec<File>,
    names: BTreeMap<String, Vec<State>>,
    /// What happened to each name lately, for reports.
    trails: BTreeMap<String, Vec<String>>,
    /// All stamps that were ever written, with their counts of blocks and their names: for reports.
    written: Vec<(u64, usize, String)>,
    /// What was found of each file in the comparison that is under way: its length and stamps.
    settled: BTreeMap<usize, (usize, Vec<u64>)>,
}

/// Steps that are remembered of a name.
const TRAIL: usize = 24;

impl File {
    fn len(&self) -> usize {
        self.lens.last().copied().unwrap_or(0)
    }

    /// Somebody was told that it is durable as it is.
    fn is_durable(&self) -> bool {
        self.synced && self.lens.len() == 1 && self.stamps.iter().all(|stamps| stamps.len() == 1)
    }

    /// Whatever is done to it is done to the part of it, too.
    fn part(&mut self) -> Option<&mut File> {
        self.instead.as_mut().map(|instead| &mut *instead.part)
    }

    /// It took the place of another file by a rename, and must be whole. If it, or a part of it, was synced
    /// before, or has come by such a rename itself, what was written over since may be as it was then: ext4
    /// writes at such a rename only what has no place on the disk yet.
    fn replace(&mut self, of: usize, from: Option<String>) {
        let part = Box::new(self.clone());
        let len = self.len();
        if self.synced || self.synced_in_part || self.instead.is_some() {
            self.lens.iter_mut().for_each(|known| *known = (*known).max(len));
        } else {
            self.stamps.iter_mut().for_each(|stamps| drop(stamps.drain(..stamps.len() - 1)));
            self.lens = vec![len];
            self.stamps.truncate(len.div_ceil(BLOCK));
        }
        self.instead = Some(Instead { of, from, part });
    }

    fn write(&mut self, at: usize, count: usize, stamp: u64) {
        if let Some(part) = self.part() {
            part.write(at, count, stamp);
        }
        for number in 0..count {
            if self.stamps.len() <= at + number {
                self.stamps.resize(at + number + 1, vec![0]);
            }
            self.stamps[at + number].push(stamp + number as u64);
        }
        self.lens.push(self.len().max((at + count) * BLOCK));
    }

    fn set_len(&mut self, blocks: usize) {
        if let Some(part) = self.part() {
            part.set_len(blocks);
        }
        let gone = self.stamps.iter_mut().skip(blocks);
        gone.for_each(|stamps| stamps.push(0));
        if self.stamps.len() < blocks {
            self.stamps.resize(blocks, vec![0]);
        }
        self.lens.push(blocks * BLOCK);
    }

    fn punch(&mut self, at: usize, count: usize) {
        if let Some(part) = self.part() {
            part.punch(at, count);
        }
        self.stamps.iter_mut().skip(at).take(count).for_each(|stamps| stamps.push(0));
    }

    /// Somebody was told of at least one block that it is durable, and nobody has changed that block since.
    /// What a rename makes whole was told to nobody.
    fn has_acknowledged(&self) -> bool {
        if let Some(instead) = &self.instead {
            return instead.part.has_acknowledged();
        }
        let least = self.lens.iter().min().map_or(0, |len| len / BLOCK);
        self.stamps.iter().take(least).any(|stamps| stamps.len() == 1)
    }

    fn all_durable(&mut self) {
        (self.synced, self.instead) = (true, None);
        self.mode_durable();
        let len = self.len();
        self.lens = vec![len];
        self.stamps.truncate(len.div_ceil(BLOCK));
        self.part_durable(0, self.stamps.len());
    }

    fn part_durable(&mut self, at: usize, count: usize) {
        if let Some(part) = self.part() {
            part.part_durable(at, count);
        }
        for stamps in self.stamps.iter_mut().skip(at).take(count) {
            stamps.drain(..stamps.len() - 1);
        }
    }

    fn set_mode(&mut self, mode: u32) {
        if self.modes.is_empty() {
            self.modes.push(NEW_MODE);
        }
        self.modes.push(mode);
    }

    fn mode_durable(&mut self) {
        self.modes.drain(..self.modes.len().saturating_sub(1));
    }

    fn at_least(&mut self, least: usize) {
        if let Some(part) = self.part() {
            part.at_least(least);
        }
        self.lens.iter_mut().for_each(|len| *len = (*len).max(least));
    }

    /// From here on it is as found, or as it was at any time since it was durable: that it was found does not
    /// say that it is on every disk. What came after what was found is gone.
    fn settle(&mut self, len: usize, found: &[u64]) {
        if let Some(part) = self.part() {
            part.settle(len, found);
        }
        end_with(&mut self.lens, len);
        for (at, stamps) in self.stamps.iter_mut().enumerate() {
            end_with(stamps, found.get(at).copied().unwrap_or(0));
        }
    }

    /// The stamps of what was found, if it may be found.
    fn matches(&self, found: &[u8]) -> Result<Vec<u64>, String> {
        let (least, most) = (self.lens.iter().min(), self.lens.iter().max());
        let (least, most) = (least.copied().unwrap_or(0), most.copied().unwrap_or(0));
        if found.len() < least || found.len() > most {
            return Err(format!("{} bytes instead of {least} to {most}", found.len()));
        }
        let zeros = vec![0];
        let stamps = found.chunks(BLOCK).enumerate().map(|(at, bytes)| {
            let may = self.stamps.get(at).unwrap_or(&zeros);
            may.iter().copied().find(|stamp| block(*stamp)[..bytes.len()] == *bytes).ok_or_else(
                || {
                    let zero = bytes.iter().all(|byte| *byte == 0);
                    let what = if zero { "zeros" } else { "something else" };
                    format!("block {at} of {} is {what}", found.len() / BLOCK)
                },
            )
        });
        stamps.collect()
    }
}

/// Takes away what came after this.
fn end_with<T: PartialEq>(states: &mut Vec<T>, last: T) {
    let known = states.iter().rposition(|state| *state == last);
    states.truncate(known.unwrap_or(states.len()));
    states.push(last);
}

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
    pub fn blocks(&self, name: &str) -> Option<usize> {
        match self.now(name) {
            State::File(file) => Some(self.files[file].len() / BLOCK),
            State::Absent | State::Any => None,
        }
    }

    fn push(&mut self, name: &str, state: State) {
        self.names.entry(name.into()).or_insert_with(|| vec![State::Absent]).push(state);
    }

    fn durable(&mut self, name: &str) {
        if let Some(states) = self.names.get_mut(name) {
            states.drain(..states.len() - 1);
        }
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
        if let Op::Write { name, stamp, count, .. } | Op::Replace { name, stamp, count, .. } = op {
            self.written.push((*stamp, *count, name.clone()));
        }
        for name in op.names() {
            self.note(name, format!("{round} {}: {op:?}", if done { "done" } else { "begun" }));
        }
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
        for name in names {
            self.push(name, State::Any);
        }
    }

    /// As [`Oracle::carried_out`], of what is only planned.
    pub fn apply(&mut self, op: &Op, done: bool) {
        self.settled.clear();
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
                let State::File(file) = self.now(name) else { return };
                self.change(file, |file| file.set_mode(*mode));
                self.whole_durable(name, file, done && *sync);
            }
            Op::Hold { name, fresh } => {
                let file = self.file(name);
                if *fresh {
                    self.change(file, |file| file.set_len(0));
                }
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
                    State::Absent | State::Any => {}
                }
                self.push(name, State::File(file));
                self.done_in_dir(&[name], done && *dir);
            }
            Op::Remove { name, dir } => {
                self.push(name, State::Absent);
                self.done_in_dir(&[name], done && *dir);
            }
            Op::Move { from, to, dir } => {
                let mut state = self.now(from);
                // As of a replacement without a sync. What was durable once may be so, too.
                if let (State::File(file), State::File(of)) = (state, self.now(to))
                    && !self.files[file].is_durable()
                {
                    let mut moved = self.files[file].clone();
                    moved.replace(of, Some(from.clone()));
                    moved.was = Some(file);
                    self.files.push(moved);
                    state = State::File(self.files.len() - 1);
                }
                self.push(to, state);
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
                self.push(to, self.now(from));
                self.done_in_dir(&[to], done && *dir);
            }
            Op::SyncDir { name } => {
                let dir = |name: &str| name.rsplit_once('/').map(|(dir, _)| dir.to_string());
                let of = dir(name);
                let names = self.names().into_iter().filter(|name| dir(name) == of);
                let names: Vec<_> = names.collect();
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                self.done_in_dir(&names, done);
            }
            // These change nothing.
            _ => {}
        }
    }

    /// If somebody was told so, the file and its name last.
    fn whole_durable(&mut self, name: &str, file: usize, is_told: bool) {
        if is_told {
            self.files[file].all_durable();
            self.names_durable(name, file);
        }
    }

    /// All files as they were found are in the backing store.
    pub fn all_written_back(&mut self) {
        for name in self.names() {
            if let State::File(file) = self.now(&name) {
                self.whole_durable(&name, file, true);
            }
        }
    }

    /// A directory was synced. What was synced itself, or a part of it, is there from now on; instead of a
    /// file of which nothing was, what it has replaced may still be.
    fn done_in_dir(&mut self, names: &[&str], durable: bool) {
        for name in names.iter().filter(|_| durable) {
            let instead = match self.now(name) {
                State::File(file) => self.files[file].instead.as_ref(),
                State::Absent | State::Any => None,
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

    /// After a comparison: each name leads to a file of its own. Two files that are alike, as empty ones,
    /// were taken for the same one.
    pub fn tell_apart(&mut self) {
        self.settled.clear();
        let mut seen = std::collections::BTreeSet::new();
        for states in self.names.values_mut() {
            if let Some(State::File(number)) = states.last_mut()
                && !seen.insert(*number)
            {
                self.files.push(self.files[*number].clone());
                *number = self.files.len() - 1;
            }
        }
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

    /// Compares what a name leads to after a cut with what it may, and goes on from there. `before` is what
    /// was known right after the cut: a file that may have one of two names is not known by one that was
    /// looked at before. `below` is what the backing store had then. Says what was wrong, and whether the
    /// file is to be removed, as nothing can be said of it any more.
    pub fn found(
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
                (State::File(_), None) => whys.push("missing".to_string()),
                (State::File(file), Some(found)) => {
                    match before.may_be(name, *file, found, below) {
                        Ok(stamps) => {
                            let outcome = self.known(name, *state, Some(found));
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

    /// Compares the permissions of what a name leads to, once that is found, with what they may be, and goes
    /// on from there.
    pub fn found_mode(&mut self, name: &str, mode: u32) -> Option<String> {
        let State::File(file) = self.now(name) else { return None };
        let may_be = &mut self.files[file].modes;
        if may_be.is_empty() || may_be.contains(&mode) {
            if !may_be.is_empty() {
                end_with(may_be, mode);
            }
            return None;
        }
        let told = may_be.iter().map(|mode| format!("{mode:o}")).collect::<Vec<_>>().join(" ");
        Some(format!("mode {mode:o}, none of {told} that may be"))
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
