//! A program that makes, moves and removes names, and knows what a plain directory would show it.

use super::ledger::{Ledger, is_of_names};
use super::*;

/// What a program has made, by path.
pub(super) type Made = BTreeMap<String, (FileKind, Ino)>;

/// A program, and all that it knows.
pub(super) struct Program {
    pub(super) node: Arc<Node>,
    pub(super) contents: Arc<Contents>,
    pub(super) random: Random,
    pub(super) made: Made,
    /// An extended attribute of each that has one.
    pub(super) xattrs: BTreeMap<u64, Vec<u8>>,
    pub(super) trace: Arc<Trace>,
    /// What it was about to do when the daemon was killed may be done or not.
    pub(super) in_flight: bool,
    pub(super) ledger: Arc<Ledger>,
    /// Others change the backing store: what they touched is not certain.
    pub(super) lenient: bool,
}

pub(super) const NAMES: [&str; 3] = ["a", "b", "c"];

impl Program {
    fn told<T>(&self, what: &str, path: &str, done: Result<T>) -> Option<T> {
        self.told_of(what, &[path], done)
    }

    fn told_of<T>(&self, what: &str, paths: &[&str], done: Result<T>) -> Option<T> {
        match done {
            Ok(done) => Some(done),
            Err(error) if is_of_names(&error) && self.may_be_of_others(paths) => None,
            Err(error) => {
                self.trace.add(format!("PROGRAM FAILED {what} {paths:?}: {error}"));
                panic!("{what} {paths:?}: {error} ({error:?})");
            }
        }
    }

    fn may_be_of_others(&self, paths: &[&str]) -> bool {
        self.lenient && self.ledger.may_be_of_others(paths)
    }

    fn wrong(&self, path: &str, what: String) {
        if !self.may_be_of_others(&[path]) {
            self.trace.add(format!("PROGRAM {what}"));
            panic!("{what}");
        }
    }

    /// The directory of a path and the name in it: as the kernel remembers it, or looked up anew.
    fn place<'p>(&mut self, path: &'p str) -> Option<(Ino, &'p [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let known = self.made.get(dir).map(|(_, ino)| *ino);
        if self.random.below(2) == 0 || self.lenient {
            let mut at = Ino::ROOT;
            for part in dir.split('/').filter(|part| !part.is_empty()) {
                let found = self.node.writeback.find(&Context::DAEMON, at, part.as_bytes());
                let Some(found) = self.told("find", path, found)? else {
                    self.wrong(path, format!("{path}: {part} is missing"));
                    return None;
                };
                at = found.ino;
            }
            if !dir.is_empty() && Some(at) != known {
                self.wrong(dir, format!("{dir} is {at}, not {known:?}"));
            }
            return Some((at, name.as_bytes()));
        }
        Some((known.unwrap_or(Ino::ROOT), name.as_bytes()))
    }

    fn say(&self, what: &str, path: &str) {
        self.trace.add(format!("program: {what} {path}"));
    }

    fn mkdir(&mut self, path: &str) {
        self.say("mkdir", path);
        let Some((dir, name)) = self.place(path) else { return };
        self.in_flight = true;
        let made = self.node.mkdir(&Context::DAEMON, dir, name, 0o755, 0);
        self.in_flight = false;
        if let Some(stat) = self.told("mkdir", path, made) {
            self.made.insert(path.into(), (FileKind::Directory, stat.ino));
        }
    }

    fn write(&mut self, path: &str) {
        self.say("write", path);
        let Some((dir, name)) = self.place(path) else { return };
        let new = NewName::file(0o644, 0);
        self.in_flight = true;
        let found = self.node.find_or_make(&Context::DAEMON, dir, name, &new, false, &mut |_| {});
        let record = match self.told("write", path, found) {
            None => return,
            Some(crate::namespace::Found::Created(record)) => record,
            Some(crate::namespace::Found::Existing) => {
                let found = self.node.writeback.find(&Context::DAEMON, dir, name);
                let Some(Some(record)) = self.told("open", path, found) else { return };
                if record.attr.kind != FileKind::Regular {
                    return;
                }
                let fresh = self.node.writeback.revalidate(&Context::DAEMON, record);
                let Some(record) = self.told("open", path, fresh) else { return };
                record
            }
        };
        let known = self.made.insert(path.into(), (FileKind::Regular, record.ino));
        if known.is_some_and(|(_, ino)| ino != record.ino) {
            self.wrong(path, format!("{path} is {}, not {known:?}", record.ino));
        }
        let bytes = self.ledger.begin_write(record.ino, path, self.random.below(1000));
        let size = bytes.len() as u64;
        self.contents.bytes.lock().insert(record.ino.0, bytes);
        self.contents.stale.lock().remove(&record.ino.0);
        let now = crate::clock::wall_time();
        let update = |record: &mut Record| {
            record.attr.size = size;
            record.attr.mtime = now;
            record.mark_dirty();
            Queue::Yes
        };
        let updated = self.node.meta.update(record.ino, Some(now), update);
        self.in_flight = false;
        if self.told("write to", path, updated.map_err(Into::into)).is_some() {
            self.ledger.wrote(record.ino);
        }
    }

    fn chmod(&mut self, path: &str) {
        let Some((_, ino)) = self.made.get(path).copied() else { return };
        let perm = [0o700, 0o750, 0o755][self.random.below(3)];
        let update = |record: &mut Record| {
            record.attr.perm = perm;
            record.backing.attrs_differ = true;
            Queue::Yes
        };
        let updated = self.node.meta.update(ino, Some(crate::clock::wall_time()), update);
        self.told("chmod", path, updated.map_err(Into::into));
    }

    fn set_xattr(&mut self, path: &str) {
        self.say("setxattr", path);
        let Some((_, ino)) = self.made.get(path).copied() else { return };
        let value = format!("value {}", self.random.below(1000)).into_bytes();
        self.in_flight = true;
        let set = self.node.set_xattr(&Context::DAEMON, ino, b"user.test", &value, 0, false);
        self.in_flight = false;
        if self.told("setxattr", path, set).is_some() {
            self.xattrs.insert(ino.0, value);
        }
    }

    fn link(&mut self, from: &str, to: &str) {
        self.say("link", &format!("{from} {to}"));
        let Some((_, ino)) = self.made.get(from).copied() else { return };
        let Some((dir, name)) = self.place(to) else { return };
        self.in_flight = true;
        let linked = self.node.link(&Context::DAEMON, ino, dir, name);
        self.in_flight = false;
        if self.told_of("link", &[from, to], linked).is_some() {
            self.ledger.moved(from, to);
            self.ledger.moved(to, from);
            self.made.insert(to.into(), (FileKind::Regular, ino));
        }
    }

    fn below(&self, path: &str) -> Vec<String> {
        let prefix = format!("{path}/");
        self.made.keys().filter(|known| known.starts_with(&prefix)).cloned().collect()
    }

    /// As `rm -r`.
    fn remove(&mut self, path: &str) {
        let mut paths = self.below(path);
        paths.push(path.into());
        paths.sort_by_key(|path| std::cmp::Reverse((path.matches('/').count(), path.clone())));
        for path in paths {
            let Some((kind, ino)) = self.made.get(&path).copied() else { continue };
            self.say("remove", &path);
            if kind == FileKind::Directory {
                self.compare(&path);
            }
            let Some((dir, name)) = self.place(&path) else { continue };
            self.in_flight = true;
            self.ledger.begin_removal(&self.node, dir, name, Some(ino));
            let removed = match kind {
                FileKind::Directory => self.node.rmdir(&Context::DAEMON, dir, name),
                _ => self.node.unlink(&Context::DAEMON, dir, name),
            };
            self.in_flight = false;
            self.ledger.end_removal(&self.node);
            self.told("remove", &path, removed);
            self.made.remove(&path);
            lockstep::step();
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        self.say("rename", &format!("{from} {to}"));
        let Some((from_dir, old)) = self.place(from) else { return };
        let Some((to_dir, new)) = self.place(to) else { return };
        let ctx = Context::DAEMON;
        self.in_flight = true;
        let over = self.made.get(to).map(|(_, ino)| *ino);
        self.ledger.begin_removal(&self.node, to_dir, new, over);
        let renamed =
            self.node.rename(&ctx, NameIn::new(from_dir, old), NameIn::new(to_dir, new), 0);
        self.in_flight = false;
        self.ledger.end_removal(&self.node);
        if self.told_of("rename", &[from, to], renamed).is_none() {
            return;
        }
        self.ledger.moved(from, to);
        // Over an empty directory, or another file.
        self.made.remove(to);
        let moved: Vec<String> = self.below(from);
        let Some(itself) = self.made.remove(from) else { return };
        self.made.insert(to.into(), itself);
        for path in moved {
            let Some(known) = self.made.remove(&path) else { continue };
            self.made.insert(format!("{to}{}", &path[from.len()..]), known);
        }
    }

    /// Two names change their meaning at once.
    fn exchange(&mut self, one: &str, other: &str) {
        self.say("exchange", &format!("{one} {other}"));
        let Some((one_dir, one_name)) = self.place(one) else { return };
        let Some((other_dir, other_name)) = self.place(other) else { return };
        let (one_at, other_at) =
            (NameIn::new(one_dir, one_name), NameIn::new(other_dir, other_name));
        self.in_flight = true;
        let done = self.node.rename(&Context::DAEMON, one_at, other_at, libc::RENAME_EXCHANGE);
        self.in_flight = false;
        if self.told_of("exchange", &[one, other], done).is_none() {
            return;
        }
        self.ledger.moved(one, other);
        self.ledger.moved(other, one);
        let moved: Vec<(String, String)> = [(one, other), (other, one)]
            .into_iter()
            .flat_map(|(from, to)| {
                let below = self.below(from).into_iter();
                let below = below.map(move |path| (format!("{to}{}", &path[from.len()..]), path));
                below.chain([(to.to_owned(), from.to_owned())])
            })
            .collect();
        let known: Vec<_> = moved
            .into_iter()
            .filter_map(|(to, from)| Some((to, self.made.remove(&from)?)))
            .collect();
        self.made.extend(known);
    }

    /// Two names, of which neither lies below the other.
    fn two_apart(&mut self) -> Option<(String, String)> {
        let (one, other) = (self.any(None)?, self.any(None)?);
        let below = |a: &str, b: &str| a == b || a.starts_with(&format!("{b}/"));
        (!below(&one, &other) && !below(&other, &one)).then_some((one, other))
    }

    fn exchange_any(&mut self) {
        if let Some((one, other)) = self.two_apart() {
            self.exchange(&one, &other);
        }
    }

    /// As programs exchange two names that know no exchange in one step.
    fn rotate(&mut self) {
        let Some((one, other)) = self.two_apart() else { return };
        let Some(free) = self.fresh() else { return };
        if [&one, &other].iter().any(|path| free.starts_with(&format!("{path}/"))) {
            return;
        }
        for (from, to) in [(&one, &free), (&other, &one), (&free, &other)] {
            if !self.made.contains_key(from) || self.made.contains_key(to) {
                return;
            }
            self.rename(from, to);
            lockstep::step();
        }
    }

    /// Looks whether a directory shows what was made in it.
    pub(super) fn compare(&mut self, path: &str) {
        let Some(dir) = (match path {
            "" => Some(Ino::ROOT),
            _ => self.made.get(path).map(|(_, ino)| *ino),
        }) else {
            return;
        };
        self.say("list", path);
        let listed = self.node.writeback.ensure_listed(&Context::DAEMON, dir);
        self.told("list", path, listed);
        let Some(shown) =
            self.told("list", path, self.node.meta.entries(dir, 0, 1000).map_err(Into::into))
        else {
            return;
        };
        let shown: BTreeMap<String, Ino> = shown
            .into_iter()
            .map(|entry| (String::from_utf8_lossy(&entry.name).into_owned(), entry.ino))
            .collect();
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let made: BTreeMap<String, Ino> = self
            .made
            .iter()
            .filter_map(|(known, (_, ino))| {
                let name = known.strip_prefix(&prefix).filter(|name| !name.contains('/'))?;
                (!name.is_empty()).then(|| (name.to_owned(), *ino))
            })
            .collect();
        if shown != made {
            self.wrong(path, format!("{path:?} shows {shown:?}, not {made:?}"));
        }
    }

    /// A path that nothing has, in a directory that is there.
    fn fresh(&mut self) -> Option<String> {
        let dirs: Vec<String> = std::iter::once(String::new())
            .chain(
                self.made
                    .iter()
                    .filter(|(_, (kind, _))| *kind == FileKind::Directory)
                    .map(|(path, _)| path.clone()),
            )
            .filter(|path| path.matches('/').count() < 3)
            .collect();
        let dir = dirs[self.random.below(dirs.len())].clone();
        let name = NAMES[self.random.below(NAMES.len())];
        let path = if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
        (!self.made.contains_key(&path)).then_some(path)
    }

    pub(super) fn any(&mut self, kind: Option<FileKind>) -> Option<String> {
        let all: Vec<&String> = self
            .made
            .iter()
            .filter(|(_, (known, _))| kind.is_none_or(|kind| kind == *known))
            .map(|(path, _)| path)
            .collect();
        (!all.is_empty()).then(|| all[self.random.below(all.len())].clone())
    }

    fn make_tree(&mut self, path: &str) {
        self.mkdir(path);
        for name in NAMES {
            if !self.made.contains_key(path) {
                return;
            }
            match self.random.below(4) {
                0 => {}
                1 => {
                    let below = format!("{path}/{name}");
                    self.mkdir(&below);
                    if self.made.contains_key(&below) {
                        self.write(&format!("{below}/a"));
                    }
                }
                _ => self.write(&format!("{path}/{name}")),
            }
            lockstep::step();
        }
    }

    /// As a journal or a lock file, of which one comes after the other.
    fn make_and_remove(&mut self, path: &str) {
        for _ in 0..6 {
            self.write(path);
            for _ in 0..self.random.below(30) {
                lockstep::step();
            }
            if !self.made.contains_key(path) {
                return;
            }
            self.remove(path);
        }
    }

    /// A directory takes the place of another one, which is emptied before.
    fn rename_over_directory(&mut self) {
        let kind = Some(FileKind::Directory);
        let (Some(from), Some(to)) = (self.any(kind), self.any(kind)) else { return };
        let apart = |a: &str, b: &str| a != b && !a.starts_with(&format!("{b}/"));
        if apart(&from, &to) && apart(&to, &from) {
            for path in self.below(&to).into_iter().rev() {
                self.remove(&path);
            }
            self.rename(&from, &to);
        }
    }

    pub(super) fn act(&mut self) {
        lockstep::step();
        match self.random.below(27) {
            24 => self.rotate(),
            25 => self.exchange_any(),
            20 => {
                if let Some(path) = self.any(None) {
                    self.set_xattr(&path);
                }
            }
            21 => self.rename_over_directory(),
            22..24 => {
                if let Some(path) = self.fresh() {
                    self.make_and_remove(&path);
                }
            }
            0..5 => {
                let Some(path) = self.fresh() else { return };
                self.make_tree(&path);
            }
            5..9 => {
                let Some(path) = self.any(None) else { return };
                self.remove(&path);
                // And again at once.
                if self.random.below(2) == 0 && !self.made.contains_key(&path) {
                    self.make_tree(&path);
                }
            }
            9..11 => {
                if let Some(path) = self.any(Some(FileKind::Regular)) {
                    self.write(&path);
                }
            }
            11..13 => {
                if let Some(path) = self.fresh() {
                    self.write(&path);
                }
            }
            13..15 => {
                let (Some(from), Some(to)) = (self.any(None), self.fresh()) else { return };
                if to != from && !to.starts_with(&format!("{from}/")) {
                    self.rename(&from, &to);
                }
            }
            15 => {
                // Over another file.
                let file = Some(FileKind::Regular);
                let (Some(from), Some(to)) = (self.any(file), self.any(file)) else { return };
                if self.made[&from].1 != self.made[&to].1 {
                    self.rename(&from, &to);
                }
            }
            16 => {
                if let Some(path) = self.any(None) {
                    self.chmod(&path);
                }
            }
            17 => {
                let (Some(from), Some(to)) = (self.any(Some(FileKind::Regular)), self.fresh())
                else {
                    return;
                };
                self.link(&from, &to);
            }
            _ => {
                self.compare("");
                if let Some(path) = self.any(Some(FileKind::Directory)) {
                    self.compare(&path);
                }
            }
        }
    }
}
