//! Directories, and what may be found of a tree.
//!
//! A directory has a number. What it has is known by that number and a name (`#7/small1`; `small1` in the
//! worker's own directory), so that a move of a directory is a change of two names, as on the disk.
//!
//! An fsync of a file or of a directory acknowledges, besides what it is of, that all directories above are
//! there, each under one of the names that it had since its name was durable: so do ext4 and XFS, and without
//! that nothing could be found. It does not acknowledge a move of one of them: that takes an fsync of a
//! directory that has the old name or the new one.
//!
//! What is `kept` is under exactly one of its names, whatever was lost: a move is made, or not made.

use std::collections::{BTreeMap, BTreeSet};

use super::traits::Traits;
use super::{Below, Oracle, State};
use crate::power::seen::{Kind, Seen};
use crate::power::work::Op;

/// The permissions of a directory that a worker makes.
pub(super) const NEW_DIR: u32 = 0o755;
/// Of what is missing so much is told.
const TOLD: usize = 5;

/// A directory.
#[derive(Clone, Debug, Default)]
pub(super) struct Dir {
    /// Its name, if it has one.
    pub(super) at: Option<String>,
    /// Its number on the mount, which never changes.
    ino: Option<u64>,
    pub(super) traits: Traits,
    /// It must be there, as of a file.
    is_kept: bool,
}

/// What a comparison has found.
#[derive(Debug, Default)]
#[allow(missing_docs)] // They are what they say.
pub struct Found {
    pub wrong: Vec<String>,
    /// What is to be removed, as nothing can be said of it any more.
    pub remove: Vec<String>,
    pub conflicts: usize,
}

/// A comparison that is under way.
struct Walk<'a> {
    /// What was known right after the cut.
    before: &'a Oracle,
    below: &'a Below,
    found: Found,
    /// Which directories have been met, and where.
    dirs: BTreeMap<usize, String>,
    /// The numbers of the files that names lead to.
    inos: BTreeMap<String, u64>,
}

/// The directory that a name is in.
pub(super) fn dir_of(name: &str) -> usize {
    let number = name.strip_prefix('#').and_then(|rest| rest.split_once('/'));
    number.and_then(|(number, _)| number.parse().ok()).unwrap_or(0)
}

fn in_dir(dir: usize, name: &str) -> String {
    if dir == 0 { name.into() } else { format!("#{dir}/{name}") }
}

fn last(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(_, last)| last)
}

fn joined(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.into() } else { format!("{dir}/{name}") }
}

/// What a path is after something has got another name.
pub fn renamed(path: &str, name: &str, to: &str) -> Option<String> {
    let rest = path.strip_prefix(name)?;
    (rest.is_empty() || rest.starts_with('/')).then(|| format!("{to}{rest}"))
}

/// Temporary names of replacements that were interrupted.
fn is_stray(name: &str) -> bool {
    name.contains(".new") || name.contains("conflict")
}

impl Oracle {
    /// The name of a path: that in its directory.
    pub(super) fn key(&self, path: &str) -> String {
        let (mut dir, mut rest) = (0, path);
        while let Some((name, below)) = rest.split_once('/') {
            let State::Dir(next) = self.now(&in_dir(dir, name)) else { return path.into() };
            (dir, rest) = (next, below);
        }
        in_dir(dir, rest)
    }

    /// The path of a name, if its directory has one.
    pub fn path(&self, name: &str) -> Option<String> {
        let mut path = last(name).to_string();
        let mut dir = dir_of(name);
        while dir != 0 {
            let at = self.dirs[dir].at.as_deref()?;
            path = joined(last(at), &path);
            dir = dir_of(at);
        }
        Some(path)
    }

    /// What happened to a path lately.
    pub fn trail_of(&self, path: &str) -> String {
        self.trail(&self.key(path))
    }

    /// The names that a directory has or had.
    fn names_in(&self, dir: usize) -> Vec<String> {
        let is_in = |name: &&String| dir_of(name) == dir;
        match dir {
            0 => self.names.keys().filter(is_in).cloned().collect(),
            _ => {
                let from = in_dir(dir, "");
                let names = self.names.range(from.clone()..);
                let names = names.map(|(name, _)| name).take_while(|name| name.starts_with(&from));
                names.cloned().collect()
            }
        }
    }

    /// All paths that lead to something now; those of directories end with a slash.
    pub fn paths(&self) -> Vec<String> {
        let mut all = Vec::new();
        self.add_paths(0, "", &mut all);
        all
    }

    fn add_paths(&self, dir: usize, path: &str, all: &mut Vec<String>) {
        for name in self.names_in(dir) {
            let below = joined(path, last(&name));
            match self.now(&name) {
                State::Dir(next) => {
                    all.push(format!("{below}/"));
                    self.add_paths(next, &below, all);
                }
                State::File(_) | State::Way(_) => all.push(below),
                State::Absent | State::Any => {}
            }
        }
    }

    /// What is found of which nobody knows, without what is below that.
    pub fn strangers(&self, seen: &Seen) -> Vec<String> {
        let mut all = Vec::new();
        self.add_strangers(0, "", seen, &mut all);
        all
    }

    fn add_strangers(&self, dir: usize, path: &str, seen: &Seen, all: &mut Vec<String>) {
        for (name, seen) in seen.entries() {
            let below = joined(path, name);
            match self.now(&in_dir(dir, name)) {
                State::Absent => all.push(below),
                State::Dir(next) => self.add_strangers(next, &below, seen, all),
                State::File(_) | State::Way(_) | State::Any => {}
            }
        }
    }

    /// The paths of all that is held open.
    pub fn held(&self) -> impl Iterator<Item = (&String, bool)> {
        self.open.iter().map(|(path, state)| (path, matches!(state, State::Dir(_))))
    }

    /// The names of what a step does something with that is held open.
    pub(super) fn names_held_by(&self, op: &Op) -> Vec<String> {
        let (Op::WriteHeld { name, .. } | Op::SyncHeld { name }) = op else { return Vec::new() };
        let Some(state) = self.open.get(name) else { return Vec::new() };
        self.names().into_iter().filter(|name| self.now(name) == *state).collect()
    }

    /// Whether a path leads to a file that is durable as it is.
    pub fn is_durable(&self, path: &str) -> bool {
        matches!(self.now(&self.key(path)), State::File(file) if self.files[file].is_durable())
    }

    /// Whether two paths lead to the same file.
    pub fn is_same(&self, one: &str, other: &str) -> bool {
        self.now(&self.key(one)) == self.now(&self.key(other))
    }

    /// Whether a path leads to a file of several names.
    pub fn is_linked(&self, path: &str) -> bool {
        matches!(self.now(&self.key(path)), State::File(file) if self.files[file].is_linked)
    }

    /// A directory was made, and has this number.
    pub fn is_made(&mut self, path: &str, ino: u64) {
        if let State::Dir(dir) = self.now(&self.key(path)) {
            self.dirs[dir].ino = Some(ino);
        }
    }

    /// A step, if it is of directories or what is in them.
    pub(super) fn apply_to_trees(&mut self, op: &Op, done: bool) {
        match op {
            Op::SyncDir { name } if done => self.dir_synced(dir_of(name)),
            Op::Unnamed { name, count, stamp, sync, dir } => {
                let file = self.new_file();
                self.files[file].write(0, *count, *stamp);
                if *sync && done {
                    self.files[file].all_durable();
                }
                self.push(name, State::File(file));
                self.done_in_dir(&[name], done && *dir);
            }
            Op::MakeDir { name } => self.make_dir(name),
            Op::RemoveTree { name, dir } => {
                self.remove_tree(name);
                self.done_in_dir(&[name], done && *dir);
            }
            Op::Symlink { name, way, dir } => {
                self.push(name, State::Way(*way));
                self.done_in_dir(&[name], done && *dir);
            }
            // These change nothing.
            _ => {}
        }
    }

    fn make_dir(&mut self, name: &str) {
        if self.dirs.is_empty() {
            self.dirs.push(Dir::default());
        }
        self.dirs.push(Dir::default());
        self.push(name, State::Dir(self.dirs.len() - 1));
    }

    fn remove_tree(&mut self, name: &str) {
        if let State::Dir(dir) = self.now(name) {
            self.names_in(dir).iter().for_each(|name| self.remove_tree(name));
        }
        if self.now(name) != State::Absent {
            self.remove(name);
        }
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.replace(name, State::Absent);
    }

    /// A name leads to something else.
    pub(super) fn replace(&mut self, name: &str, state: State) {
        let before = self.now(name);
        self.push(name, state);
        self.let_go(before);
    }

    /// It has one name less. It is still kept if another one is durable.
    fn let_go(&mut self, state: State) {
        match state {
            State::File(file) => {
                let is_sure = |states: &Vec<State>| states[..] == [state];
                if !self.names.values().any(is_sure) {
                    self.files[file].is_kept = false;
                }
            }
            State::Dir(dir) => (self.dirs[dir].at, self.dirs[dir].is_kept) = (None, false),
            State::Absent | State::Way(_) | State::Any => {}
        }
    }

    /// What a name leads to is there, and so are the directories above.
    pub(super) fn keep(&mut self, name: &str) {
        match self.now(name) {
            State::File(file) => self.files[file].is_kept = true,
            State::Dir(dir) => self.dirs[dir].is_kept = true,
            State::Absent | State::Way(_) | State::Any => {}
        }
        self.keep_dirs(dir_of(name));
    }

    fn keep_dirs(&mut self, mut dir: usize) {
        while dir != 0 {
            // Nothing is said of one that was removed.
            let Some(at) = &self.dirs[dir].at else { return };
            let above = dir_of(at);
            self.dirs[dir].is_kept = true;
            dir = above;
        }
    }

    /// fsync of a directory, if it has a name still.
    fn dir_synced(&mut self, dir: usize) {
        if dir != 0 && self.dirs[dir].at.is_none() {
            return;
        }
        let names = self.names_in(dir);
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        self.done_in_dir(&names, true);
        if dir != 0 {
            self.dirs[dir].traits.durable();
            self.keep_dirs(dir);
        }
    }

    /// fsync of whatever it is, if somebody was told so. Of what has no name it says nothing.
    pub(super) fn synced_by(&mut self, state: State, is_told: bool) {
        match state {
            State::File(file) if is_told => {
                let name = self.names().into_iter().find(|name| self.now(name) == state);
                if let Some(name) = name {
                    self.whole_durable(&name, file, true);
                }
            }
            State::Dir(dir) if is_told => self.dir_synced(dir),
            _ => {}
        }
    }

    /// What can't come back any more is forgotten.
    pub(super) fn forget_what_is_gone(&mut self) {
        let (mut reached, mut next) = (BTreeSet::from([0]), vec![0]);
        while let Some(dir) = next.pop() {
            for name in self.names_in(dir) {
                for state in &self.names[&name] {
                    if let State::Dir(below) = state
                        && reached.insert(*below)
                    {
                        next.push(*below);
                    }
                }
            }
        }
        self.names.retain(|name, states| {
            let dir = dir_of(name);
            dir == 0 || reached.contains(&dir) && states[..] != [State::Absent]
        });
    }

    /// Compares what a worker's directory has after a cut with what it may have, and goes on from there.
    /// `below` is what the backing store had then.
    pub fn compare(&mut self, seen: &Seen, below: &Below) -> Found {
        self.open.clear();
        self.settled.clear();
        self.met.clear();
        let before = self.clone();
        let (dirs, inos) = (BTreeMap::from([(0, String::new())]), BTreeMap::new());
        let mut walk = Walk { before: &before, below, found: Found::default(), dirs, inos };
        self.walk(&mut walk, 0, "", seen);
        self.ask_for_both(&mut walk);
        self.ask_for_neither(&mut walk);
        self.nothing_elsewhere(&walk.dirs);
        self.tell_apart(&walk.inos);
        self.forget_what_is_gone();
        self.settled.clear();
        walk.found
    }

    fn walk(&mut self, walk: &mut Walk<'_>, dir: usize, path: &str, seen: &Seen) {
        let entries: BTreeMap<&str, &Seen> =
            seen.entries().map(|(name, seen)| (name.as_str(), seen)).collect();
        let known = walk.before.names_in(dir);
        let names: BTreeSet<&str> =
            known.iter().map(|name| last(name)).chain(entries.keys().copied()).collect();
        for name in names {
            let (key, path) = (in_dir(dir, name), joined(path, name));
            if is_stray(name) {
                walk.found.conflicts += usize::from(name.contains("conflict"));
                walk.found.remove.push(path);
                continue;
            }
            self.meet(walk, &key, &path, entries.get(name).copied());
        }
    }

    /// Compares what a name leads to.
    fn meet(&mut self, walk: &mut Walk<'_>, name: &str, path: &str, seen: Option<&Seen>) {
        let (wrong, remove) = match seen.map(|seen| (&seen.kind, seen)) {
            None => self.found(walk.before, name, None, walk.below),
            Some((Kind::File(bytes), seen)) => {
                walk.inos.insert(name.into(), seen.ino);
                self.found(walk.before, name, Some(bytes), walk.below)
            }
            Some((Kind::Unseen(why), _)) => {
                let (_, remove) = self.found(walk.before, name, Some(&[]), walk.below);
                (Some(why.clone()), remove)
            }
            Some((Kind::Way(says), _)) => {
                let is_it =
                    |state: &State| matches!(state, State::Way(way) if way.to_string() == *says);
                let states = walk.before.names.get(name);
                let is = states.and_then(|states| states.iter().copied().rev().find(is_it));
                self.met_other(name, is, &format!("a link to {says}"))
            }
            Some((Kind::Dir(_), seen)) => {
                let is = walk.choose_dir(name, seen);
                let met = self.met_other(name, is.map(State::Dir), "a directory");
                if let Some(dir) = is {
                    self.meet_dir(walk, dir, name, path, seen);
                }
                met
            }
        };
        let is_wrong = wrong.is_some();
        if let Some(why) = wrong {
            let trail = self.trail(name);
            walk.found.wrong.push(format!("{path}: {why}; {trail}"));
        }
        if remove || is_wrong {
            let lost = walk.before.names.get(name).into_iter().flatten();
            lost.for_each(|state| self.let_go_of_lost(*state));
        }
        if remove {
            walk.found.remove.push(path.into());
        } else if let (Some(seen), State::File(file)) = (seen, self.now(name))
            && !self.is_from_below(walk.before, name, file)
            && let Some(why) = self.files[file].traits.found(seen.mode, seen.mark)
        {
            walk.found.wrong.push(format!("{path}: {why}; {}", self.trail(name)));
        }
    }

    /// What is instead of a file that nobody has synced, and that had replaced it, is as the backing store has
    /// it: what was not carried out there is gone, and nobody asks.
    fn is_from_below(&mut self, before: &Oracle, name: &str, file: usize) -> bool {
        let has_replaced = |now: usize| before.files[now].instead.is_some() && now != file;
        let is_from_below = matches!(before.now(name), State::File(now) if has_replaced(now));
        if is_from_below {
            self.files[file].traits = Traits::default();
        }
        is_from_below
    }

    fn meet_dir(&mut self, walk: &mut Walk<'_>, dir: usize, name: &str, path: &str, seen: &Seen) {
        self.dirs[dir].at = Some(name.into());
        if let Some(first) = walk.dirs.insert(dir, path.into()) {
            let trail = self.trail(name);
            walk.found.wrong.push(format!("one directory is {first} and {path}: {trail}"));
        }
        self.dirs[dir].ino = Some(seen.ino);
        if let Some(why) = self.dirs[dir].traits.found(seen.mode, seen.mark) {
            walk.found.wrong.push(format!("{path}/: {why}; {}", self.trail(name)));
        }
        self.walk(walk, dir, path, seen);
    }

    /// The same, of something that is no file. `is` is what it is, if it is known.
    fn met_other(&mut self, name: &str, is: Option<State>, what: &str) -> (Option<String>, bool) {
        let states = self.names.get(name).cloned().unwrap_or_default();
        self.note(name, format!("found {what}, of {states:?}"));
        if let Some(state) = is {
            return self.known(name, state, None);
        }
        self.names.insert(name.into(), vec![State::Any, State::Absent]);
        let is_any = states.contains(&State::Any);
        ((!is_any).then(|| format!("{what}, none of {states:?} that may be")), true)
    }

    /// It was told that it is lost, or is removed without anybody having been told so.
    fn let_go_of_lost(&mut self, state: State) {
        match state {
            State::File(file) => self.files[file].is_kept = false,
            State::Dir(dir) => self.dirs[dir].is_kept = false,
            State::Absent | State::Way(_) | State::Any => {}
        }
    }

    /// What has one name is not found under two, and has one inode under all.
    fn ask_for_both(&self, walk: &mut Walk<'_>) {
        let mut first: BTreeMap<usize, &String> = BTreeMap::new();
        for (file, name) in &self.met {
            let of = &walk.before.files[*file];
            let Some(other) = first.insert(*file, name).filter(|_| of.is_unmistakable()) else {
                continue;
            };
            let inos = (walk.inos.get(name), walk.inos.get(other));
            if !of.is_linked || inos.0 != inos.1 {
                let what = format!("file {file} is {other} and {name}, {inos:?}");
                let (one, two) = (self.trail(other), self.trail(name));
                walk.found.wrong.push(format!("{what}: {one}\nand: {two}"));
            }
        }
    }

    /// What is kept is under one of the names that it may have.
    fn ask_for_neither(&self, walk: &mut Walk<'_>) {
        let met: BTreeSet<usize> = self.met.iter().map(|(file, _)| *file).collect();
        let files = self.files.iter().enumerate().filter(|(number, file)| {
            file.is_kept && !met.contains(number) && file.is_unmistakable()
        });
        let dirs = self.dirs.iter().enumerate();
        let dirs = dirs.filter(|(dir, is)| is.is_kept && !walk.dirs.contains_key(dir));
        let lost = dirs.map(|(dir, _)| State::Dir(dir));
        for state in lost.chain(files.map(|(file, _)| State::File(file))).take(TOLD) {
            let places = walk.before.names.iter().filter(|(_, states)| states.contains(&state));
            let trails = places.map(|(name, _)| format!("{name}: {}", self.trail(name)));
            let trails = trails.collect::<Vec<_>>().join("\n ");
            walk.found.wrong.push(format!("{state:?} is under none of its names: {trails}"));
        }
    }

    /// Nothing is in directories that are not there.
    fn nothing_elsewhere(&mut self, met: &BTreeMap<usize, String>) {
        for (name, states) in &mut self.names {
            let is_there = met.contains_key(&dir_of(name));
            if !is_there && states.last() != Some(&State::Absent) {
                states.push(State::Absent);
            }
        }
        for (number, dir) in self.dirs.iter_mut().enumerate() {
            if !met.contains_key(&number) {
                (dir.at, dir.is_kept) = (None, false);
            }
        }
        let met: BTreeSet<usize> = self.met.iter().map(|(file, _)| *file).collect();
        for (number, file) in self.files.iter_mut().enumerate() {
            file.is_kept &= met.contains(&number);
        }
    }

    /// Each inode is a file of its own. Two files that are alike, as empty ones, were taken for the same one.
    pub(super) fn tell_apart(&mut self, inos: &BTreeMap<String, u64>) {
        let (mut by_ino, mut names) = (BTreeMap::new(), BTreeMap::<usize, usize>::new());
        for (name, ino) in inos {
            let State::File(mut number) = self.now(name) else { continue };
            match by_ino.get(ino) {
                Some(known) => number = *known,
                None if names.contains_key(&number) => {
                    let alike = self.files[number].clone();
                    self.files.push(super::File { is_kept: false, ..alike });
                    number = self.files.len() - 1;
                }
                None => {}
            }
            by_ino.insert(*ino, number);
            *names.entry(number).or_default() += 1;
            if let Some(now) = self.names.get_mut(name).and_then(|states| states.last_mut()) {
                *now = State::File(number);
            }
        }
        for (number, count) in names {
            self.files[number].is_linked = count > 1;
        }
    }
}

impl Walk<'_> {
    /// Which directory a name leads to: the one with its number; else that which explains best what is in it.
    fn choose_dir(&self, name: &str, seen: &Seen) -> Option<usize> {
        let may_be = self.before.dirs_of(name);
        let by_number = may_be.iter().find(|dir| self.before.dirs[**dir].ino == Some(seen.ino));
        by_number.copied().or_else(|| {
            may_be.into_iter().min_by_key(|dir| {
                (self.dirs.contains_key(dir), self.before.unexplained_in(*dir, seen, self.below))
            })
        })
    }
}

impl Oracle {
    /// The directories that a name may lead to, the latest first.
    fn dirs_of(&self, name: &str) -> Vec<usize> {
        let mut dirs = Vec::new();
        for state in self.names.get(name).into_iter().flatten().rev() {
            if let State::Dir(dir) = state
                && !dirs.contains(dir)
            {
                dirs.push(*dir);
            }
        }
        dirs
    }

    /// How many names would be wrong if this were that directory.
    fn unexplained_in(&self, dir: usize, seen: &Seen, below: &Below) -> usize {
        let entries: BTreeMap<_, _> =
            seen.entries().map(|(name, seen)| (name.as_str(), seen)).collect();
        let known = self.names_in(dir);
        let names: BTreeSet<_> =
            known.iter().map(|name| last(name)).chain(entries.keys().copied()).collect();
        let names = names.into_iter().filter(|name| !is_stray(name));
        names
            .map(|name| self.unexplained(&in_dir(dir, name), entries.get(name).copied(), below))
            .sum()
    }

    fn unexplained(&self, name: &str, seen: Option<&Seen>, below: &Below) -> usize {
        let absent = vec![State::Absent];
        let states = self.names.get(name).unwrap_or(&absent);
        let is_known = match seen.map(|seen| &seen.kind) {
            _ if states.contains(&State::Any) => true,
            None => states.contains(&State::Absent),
            Some(Kind::File(bytes)) => states.iter().any(|state| {
                matches!(state, State::File(file) if self.may_be(name, *file, bytes, below).is_ok())
            }),
            Some(Kind::Way(says)) => states
                .iter()
                .any(|state| matches!(state, State::Way(way) if way.to_string() == *says)),
            Some(Kind::Unseen(_)) => false,
            Some(Kind::Dir(_)) => {
                let seen = seen.into_iter();
                let least = seen.flat_map(|seen| {
                    let dirs = self.dirs_of(name).into_iter();
                    dirs.map(|dir| self.unexplained_in(dir, seen, below))
                });
                return least.min().unwrap_or(1);
            }
        };
        usize::from(!is_known)
    }
}

#[cfg(test)]
mod tests;
