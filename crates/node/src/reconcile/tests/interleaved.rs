//! Names and the backlog in one thread at a time: a program, two workers, another reader, and on
//! request somebody who changes the backing store behind their backs, interleaved from a seed at
//! every operation of the backing store, which uses its inode numbers again at once.
//!
//! What must hold: the program sees nothing that a plain directory would not show it; nothing
//! conflicts where nobody else changes anything; the backlog empties; the check finds nothing; and
//! the backing store equals the namespace in the end.

use forebay_store::decorators::RenumberedBacking;

use super::*;
use crate::lockstep::{self, Lockstep};
use crate::namespace::NewName;

/// The last lines that are told of a run that failed.
const TOLD: usize = 300;

#[derive(Default)]
struct Trace(Mutex<std::collections::VecDeque<String>>);

impl Trace {
    fn add(&self, line: String) {
        let mut lines = self.0.lock();
        lines.push_back(line);
        if lines.len() > TOLD {
            lines.pop_front();
        }
    }
}

thread_local! {
    static ROLE: std::cell::Cell<&'static str> = const { std::cell::Cell::new("") };
}

/// Gives the turn away before and after each operation, some of which fail for workers, half of these
/// after the deed.
struct Steps {
    trace: Arc<Trace>,
    faults: Mutex<Random>,
    per_mille: std::sync::atomic::AtomicUsize,
}

impl Steps {
    fn fault(&self) -> Verdict {
        let per_mille = self.per_mille.load(Ordering::Acquire);
        if per_mille == 0 || !ROLE.get().starts_with("worker") {
            return Verdict::Pass;
        }
        let mut random = self.faults.lock();
        match (random.below(1000) < per_mille, random.below(2)) {
            (false, _) => Verdict::Pass,
            (true, 0) => Verdict::Fail(libc::EIO),
            (true, _) => Verdict::Lost(libc::EIO),
        }
    }
}

impl Interceptor for Steps {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        lockstep::step();
        Verdict::Pass
    }

    fn before_at(&self, operation: Operation, bytes: u64, label: &Path) -> Verdict {
        let verdict = self.fault();
        if !ROLE.get().is_empty() {
            let wrong = if verdict == Verdict::Pass { "" } else { " FAULT" };
            let what = format!("{}: {operation:?} {}{wrong}", ROLE.get(), label.display());
            self.trace.add(what);
        }
        let _passed = self.before(operation, bytes);
        verdict
    }

    fn after(&self, _: Operation) {
        lockstep::step();
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most.max(1)
    }
}

/// What a program has made, by path.
type Made = BTreeMap<String, (FileKind, Ino)>;

/// A program, and all that it knows.
struct Program {
    node: Arc<Node>,
    contents: Arc<Contents>,
    random: Random,
    made: Made,
    /// An extended attribute of each that has one.
    xattrs: BTreeMap<u64, Vec<u8>>,
    trace: Arc<Trace>,
    /// Others change the backing store: nothing is certain.
    lenient: bool,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Program {
    fn told<T>(&self, what: &str, path: &str, done: Result<T>) -> Option<T> {
        match done {
            Ok(done) => Some(done),
            Err(_) if self.lenient => None,
            Err(error) => {
                self.trace.add(format!("PROGRAM FAILED {what} {path}: {error}"));
                panic!("{what} {path}: {error}");
            }
        }
    }

    fn wrong(&self, what: String) {
        if !self.lenient {
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
                let found = self.node.find(&Context::DAEMON, at, part.as_bytes());
                let Some(found) = self.told("find", path, found)? else {
                    self.wrong(format!("{path}: {part} is missing"));
                    return None;
                };
                at = found.ino;
            }
            if !dir.is_empty() && Some(at) != known {
                self.wrong(format!("{dir} is {at}, not {known:?}"));
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
        let made = self.node.mkdir(&Context::DAEMON, dir, name, 0o755, 0);
        if let Some(stat) = self.told("mkdir", path, made) {
            self.made.insert(path.into(), (FileKind::Directory, stat.ino));
        }
    }

    fn write(&mut self, path: &str) {
        self.say("write", path);
        let Some((dir, name)) = self.place(path) else { return };
        let new = NewName::file(0o644, 0);
        let found = self.node.find_or_make(&Context::DAEMON, dir, name, &new, false, &mut |_| {});
        let record = match self.told("write", path, found) {
            None => return,
            Some(crate::namespace::Found::Created(record)) => record,
            Some(crate::namespace::Found::Existing(record)) => {
                if record.attr.kind != FileKind::File {
                    return;
                }
                let fresh = self.node.revalidate(&Context::DAEMON, record);
                let Some(record) = self.told("open", path, fresh) else { return };
                record
            }
        };
        let known = self.made.insert(path.into(), (FileKind::File, record.ino));
        if known.is_some_and(|(_, ino)| ino != record.ino) {
            self.wrong(format!("{path} is {}, not {known:?}", record.ino));
        }
        let bytes = format!("{path} {}", self.random.below(1000)).into_bytes();
        let size = bytes.len() as u64;
        self.contents.bytes.lock().insert(record.ino.0, bytes);
        let now = convert::now();
        let update = |record: &mut Record| {
            record.attr.size = size;
            record.attr.mtime = now;
            record.dirty = true;
            Queue::Yes
        };
        let updated = self.node.meta.update(record.ino, Some(now), update);
        self.told("write to", path, updated.map_err(Into::into));
    }

    fn chmod(&mut self, path: &str) {
        let Some((_, ino)) = self.made.get(path).copied() else { return };
        let perm = [0o700, 0o750, 0o755][self.random.below(3)];
        let update = |record: &mut Record| {
            record.attr.perm = perm;
            record.backing.attrs_differ = true;
            Queue::Yes
        };
        let updated = self.node.meta.update(ino, Some(convert::now()), update);
        self.told("chmod", path, updated.map_err(Into::into));
    }

    fn set_xattr(&mut self, path: &str) {
        self.say("setxattr", path);
        let Some((_, ino)) = self.made.get(path).copied() else { return };
        let value = format!("value {}", self.random.below(1000)).into_bytes();
        let named = (&b"user.test"[..], &value[..]);
        let set = self.node.set_xattr(&Context::DAEMON, ino, named, 0, false);
        if self.told("setxattr", path, set).is_some() {
            self.xattrs.insert(ino.0, value);
        }
    }

    fn link(&mut self, from: &str, to: &str) {
        self.say("link", &format!("{from} {to}"));
        let Some((_, ino)) = self.made.get(from).copied() else { return };
        let Some((dir, name)) = self.place(to) else { return };
        let linked = self.node.link(&Context::DAEMON, ino, dir, name);
        if self.told("link", to, linked).is_some() {
            self.made.insert(to.into(), (FileKind::File, ino));
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
            let Some((kind, _)) = self.made.get(&path).copied() else { continue };
            self.say("remove", &path);
            if kind == FileKind::Directory {
                self.compare(&path);
            }
            let Some((dir, name)) = self.place(&path) else { continue };
            let removed = match kind {
                FileKind::Directory => self.node.rmdir(&Context::DAEMON, dir, name),
                _ => self.node.unlink(&Context::DAEMON, dir, name),
            };
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
        let renamed = self.node.rename(&ctx, (from_dir, old), (to_dir, new), 0);
        if self.told("rename", to, renamed).is_none() {
            return;
        }
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

    /// Looks whether a directory shows what was made in it.
    fn compare(&mut self, path: &str) {
        let Some(dir) = (match path {
            "" => Some(Ino::ROOT),
            _ => self.made.get(path).map(|(_, ino)| *ino),
        }) else {
            return;
        };
        self.say("list", path);
        let listed = self.node.ensure_listed(&Context::DAEMON, dir);
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
            self.wrong(format!("{path:?} shows {shown:?}, not {made:?}"));
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

    fn any(&mut self, kind: Option<FileKind>) -> Option<String> {
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

    fn act(&mut self) {
        lockstep::step();
        match self.random.below(24) {
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
                if let Some(path) = self.any(Some(FileKind::File)) {
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
                let file = Some(FileKind::File);
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
                let (Some(from), Some(to)) = (self.any(Some(FileKind::File)), self.fresh()) else {
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

/// Takes from the backlog, a few at a time.
fn work(node: &Node, mut random: Random, over: &std::sync::atomic::AtomicBool) {
    ROLE.set(if random.0.is_multiple_of(2) { "worker 0" } else { "worker 1" });
    while !over.load(Ordering::Acquire) {
        let queued = node.meta.backlog(forebay_meta::Seq(0), 1000).expect("the backlog");
        let first = random.below(queued.len());
        let many = 1 + random.below(6);
        let due: Vec<(Ino, u32)> =
            queued.iter().skip(first).take(many).map(|(_, ino)| (*ino, 0)).collect();
        if !due.is_empty() && random.below(3) > 0 {
            node.take_turns(&due, true, &mut |_, _| {});
        }
        lockstep::blocked();
    }
}

/// Looks at names, and at files as if to open them.
fn look(node: &Node, mut random: Random, over: &std::sync::atomic::AtomicBool) {
    ROLE.set("reader");
    while !over.load(Ordering::Acquire) {
        let mut at = Ino::ROOT;
        for _ in 0..4 {
            let context = Context::DAEMON;
            match random.below(4) {
                0 => drop(node.ensure_listed(&context, at)),
                1 => node.drop_handle(at),
                _ => {}
            }
            let name = NAMES[random.below(NAMES.len())].as_bytes();
            let Ok(Some(record)) = node.find(&context, at, name) else { break };
            if record.is_directory() {
                at = record.ino;
            } else {
                drop(node.revalidate(&context, record));
                break;
            }
        }
        lockstep::blocked();
    }
}

/// Changes the backing store behind everybody's back; but not between the two looks by which a change
/// of a directory is known to be our own, where nobody could tell.
fn meddle(root: &Path, mut random: Random, over: &std::sync::atomic::AtomicBool, trace: &Trace) {
    while !over.load(Ordering::Acquire) {
        let mut at = root.to_owned();
        for _ in 0..=random.below(3) {
            at.push(NAMES[random.below(NAMES.len())]);
        }
        let other = root.join(NAMES[random.below(NAMES.len())]);
        lockstep::until_watched();
        trace.add(format!("others: at {}", at.display()));
        match random.below(12) {
            0 => drop(fs::write(&at, format!("others {}", random.below(100)))),
            1 => drop(fs::create_dir(&at)),
            2 => drop(fs::remove_file(&at)),
            3 => drop(fs::remove_dir_all(&at)),
            4 => drop(fs::rename(&at, &other)),
            5 => drop(fs::hard_link(&at, &other)),
            6 => drop(fs::set_permissions(&at, fs::Permissions::from_mode(0o711))),
            _ => {}
        }
        for _ in 0..random.below(100) {
            lockstep::blocked();
        }
    }
}

struct Scene {
    coherence: Coherence,
    others: bool,
    /// Of each thousand operations of workers so many fail.
    faults: usize,
    actions: usize,
}

fn tree_of(node: &Node, dir: Ino, path: &Path, tree: &mut BTreeMap<PathBuf, String>) {
    for item in node.meta.entries_plus(dir, 0, 1000).expect("entries") {
        let record = &item.record;
        let path = path.join(super::super::names::os(&item.entry.name));
        tree.insert(path.clone(), format!("{:?} {:o}", record.attr.kind, record.attr.perm));
        if record.is_directory() {
            tree_of(node, record.ino, &path, tree);
        }
    }
}

fn tree_below(root: &Path, path: &Path, tree: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(root.join(path)).expect("a directory") {
        let entry = entry.expect("an entry");
        let below = path.join(entry.file_name());
        if below == Path::new(".forebay") {
            continue;
        }
        let found = fs::symlink_metadata(entry.path()).expect("there");
        let kind = if found.is_dir() { FileKind::Directory } else { FileKind::File };
        tree.insert(below.clone(), format!("{kind:?} {:o}", found.permissions().mode() & 0o7777));
        if found.is_dir() {
            tree_below(root, &below, tree);
        }
    }
}

fn run(seed: u64, scene: &Scene) {
    let trace = Arc::new(Trace::default());
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(seed, scene, &trace)));
    if let Err(panic) = ran {
        for line in &*trace.0.lock() {
            eprintln!("{line}");
        }
        eprintln!("seed {seed} failed");
        std::panic::resume_unwind(panic);
    }
}

#[expect(clippy::too_many_lines, reason = "one scene from its beginning to its end")]
fn act(seed: u64, scene: &Scene, trace: &Arc<Trace>) {
    let scratch = Scratch::new();
    let root = scratch.0.join("backing");
    fs::create_dir_all(&root).expect("made");
    let contents = Arc::new(Contents::default());
    let inner = Arc::new(DirBacking::open(&root, "test").expect("opens"));
    let numbered = Arc::new(match seed % 2 {
        0 => RenumberedBacking::new(inner),
        _ => RenumberedBacking::with_births(inner),
    });
    let steps = Arc::new(Steps {
        trace: trace.clone(),
        faults: Mutex::new(Random(seed ^ 0x0bad_cafe)),
        per_mille: 0.into(),
    });
    let backing = Arc::new(InterceptedBacking::new(numbered, steps.clone()));
    let meta = MetaStore::open(Box::new(Memory::new()), &Options::default()).expect("opens");
    let node = node_on(backing, meta, &contents, |config| config.coherence = scene.coherence);
    // Nobody works but those who take turns.
    assert!(node.slow.close(Duration::from_secs(5)) && node.flushers.close(Duration::from_secs(5)));
    node.import_root().expect("the root is there");
    node.ensure_listed(&Context::DAEMON, Ino::ROOT).expect("listed");
    let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let random = |number: u64| Random(seed.wrapping_mul(1000).wrapping_add(number) ^ 0x5dee_ce66);
    let mut program = Program {
        node: node.clone(),
        contents: contents.clone(),
        random: random(0),
        made: Made::new(),
        xattrs: BTreeMap::new(),
        trace: trace.clone(),
        lenient: scene.others,
    };
    let made = Arc::new(Mutex::new(None));
    let mut parts: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
    let (ended, result, actions) = (over.clone(), made.clone(), scene.actions);
    parts.push(Box::new(move || {
        ROLE.set("program");
        for _ in 0..actions {
            program.act();
        }
        ended.store(true, Ordering::Release);
        *result.lock() = Some(program);
    }));
    for number in 1..3 {
        let (node, random, over) = (node.clone(), random(number), over.clone());
        parts.push(Box::new(move || work(&node, random, &over)));
    }
    let (reading, chance, ending) = (node.clone(), random(3), over.clone());
    parts.push(Box::new(move || look(&reading, chance, &ending)));
    if scene.others {
        let (root, random, over, trace) = (root.clone(), random(4), over.clone(), trace.clone());
        parts.push(Box::new(move || meddle(&root, random, &over, &trace)));
    }
    steps.per_mille.store(scene.faults, Ordering::Release);
    Lockstep::run(seed, parts);
    steps.per_mille.store(0, Ordering::Release);
    ROLE.set("drain");
    let until = Instant::now() + Duration::from_secs(5);
    let remaining = node.drain(until, &mut |_| true).expect("drained");
    let left: Vec<String> = node.unwritten(9).map_or_else(
        |error| vec![error.to_string()],
        |paths| paths.iter().map(|path| path.escape_ascii().to_string()).collect(),
    );
    assert_eq!(remaining, Remaining::default(), "{:?} {left:?}", node.last_backlog_error());
    let report = node.meta.check(false).expect("a check");
    let violations: Vec<&String> = report.violations.iter().map(|found| &found.what).collect();
    assert!(violations.is_empty(), "{violations:?}");
    let mut program = made.lock().take().expect("it ended");
    if scene.others {
        // What others did last becomes known by another look.
        node.walk(Ino::ROOT, &mut |record| {
            node.time_passes(record.ino);
            true
        })
        .expect("walked");
        let until = Instant::now() + Duration::from_secs(5);
        assert_eq!(node.drain(until, &mut |_| true).expect("drained"), Remaining::default());
    } else {
        program.compare("");
        for (path, (kind, _)) in program.made.clone() {
            if kind == FileKind::Directory {
                program.compare(&path);
            }
        }
        assert_eq!(node.conflicts().0, 0, "{:?}", node.conflicts());
        for (path, (kind, ino)) in &program.made {
            if *kind == FileKind::File {
                let bytes = contents.bytes.lock().get(&ino.0).cloned().unwrap_or_default();
                let written = fs::read(root.join(path)).expect("it is there");
                assert_eq!(String::from_utf8_lossy(&written), String::from_utf8_lossy(&bytes));
            }
            if let Some(value) = program.xattrs.get(&ino.0) {
                let mut found = [0; 64];
                let len = rustix::fs::lgetxattr(root.join(path), "user.test", &mut found[..]);
                assert_eq!(
                    len.map(|len| found[..len].to_vec()).ok().as_ref(),
                    Some(value),
                    "{path}"
                );
            }
        }
    }
    let (mut logical, mut physical) = (BTreeMap::new(), BTreeMap::new());
    tree_of(&node, Ino::ROOT, Path::new(""), &mut logical);
    tree_below(&root, Path::new(""), &mut physical);
    if scene.others {
        // A mode that others set is noticed with the next change of the entries beside it.
        for tree in [&mut logical, &mut physical] {
            tree.values_mut().for_each(|what| what.truncate(4));
        }
    }
    assert_eq!(physical, logical);
    assert_eq!(node.backing.list_limbo().expect("limbo"), Vec::<u64>::new());
    let counts = node.meta.counts();
    assert_eq!((counts.queued, counts.ghosts, counts.orphans), (0, 0, 0));
}

/// The seeds of a test: `FOREBAY_MODEL_SEED` alone, or `FOREBAY_MODEL_CASES` of them, else 60.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("FOREBAY_MODEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FOREBAY_MODEL_CASES").unwrap_or(60),
    }
}

#[test]
fn trees_removed_and_made_again_while_written_back_when_interleaved_then_as_a_plain_directory() {
    for seed in seeds() {
        run(seed, &Scene { coherence: Coherence::Open, others: false, faults: 0, actions: 40 });
    }
}

#[test]
fn trees_removed_and_made_again_by_a_sole_user_when_interleaved_then_as_a_plain_directory() {
    for seed in seeds() {
        run(
            seed,
            &Scene { coherence: Coherence::Exclusive, others: false, faults: 0, actions: 40 },
        );
    }
}

#[test]
fn names_when_others_change_the_backing_store_at_any_moment_then_the_backlog_empties() {
    for seed in seeds() {
        run(seed, &Scene { coherence: Coherence::Open, others: true, faults: 0, actions: 30 });
    }
}

#[test]
fn trees_removed_and_made_again_when_the_store_fails_now_and_then_then_as_a_plain_directory() {
    for seed in seeds() {
        let faults = [5, 30, 100][seed as usize % 3];
        run(seed, &Scene { coherence: Coherence::Open, others: false, faults, actions: 40 });
    }
}

#[test]
fn names_when_others_change_a_store_that_fails_now_and_then_then_the_backlog_empties() {
    for seed in seeds() {
        let faults = [5, 30, 100][seed as usize % 3];
        run(seed, &Scene { coherence: Coherence::Open, others: true, faults, actions: 30 });
    }
}
