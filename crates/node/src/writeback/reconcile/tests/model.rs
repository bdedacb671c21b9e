//! Random operations, interleaved with partial reconciling, faults and restarts: at the end the
//! backing directory equals the logical tree.

use proptest::prelude::*;

use forebay_meta::NameIn;

use super::*;

#[derive(Debug, Clone)]
enum Action {
    Create(u8, u8, u8),
    Write(u8, u8),
    Rename { from: (u8, u8), to: (u8, u8), exchange: bool },
    Link((u8, u8), (u8, u8)),
    Unlink(u8, u8),
    Chmod(u8, u8, u32),
    Reconcile(u16),
    Drain,
    Restart,
    Faults(u16),
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

fn action() -> impl Strategy<Value = Action> {
    let place = || (any::<u8>(), 0..NAMES.len() as u8);
    prop_oneof![
        6 => (any::<u8>(), 0..5_u8, 0..4_u8).prop_map(|(dir, name, kind)| Action::Create(dir, name, kind)),
        3 => place().prop_map(|(dir, name)| Action::Write(dir, name)),
        6 => (place(), place(), proptest::bool::weighted(0.3))
            .prop_map(|(from, to, exchange)| Action::Rename { from, to, exchange }),
        2 => (place(), place()).prop_map(|(from, to)| Action::Link(from, to)),
        4 => place().prop_map(|(dir, name)| Action::Unlink(dir, name)),
        1 => (place(), 0..0o777_u32).prop_map(|((dir, name), mode)| Action::Chmod(dir, name, mode | 0o700)),
        6 => any::<u16>().prop_map(Action::Reconcile),
        1 => Just(Action::Drain),
        1 => Just(Action::Restart),
        2 => any::<u16>().prop_map(Action::Faults),
    ]
}

/// The bench's node, replaced at a restart.
struct World {
    node: Arc<Node>,
    meta_dir: PathBuf,
    backing: Arc<dyn BackingStore>,
    flaky: Arc<Flaky>,
    contents: Arc<Contents>,
    root: PathBuf,
    _scratch: Scratch,
}

fn open_meta(dir: &Path) -> MetaStore {
    let engine = forebay_meta::Embedded::open(dir, &forebay_meta::EmbeddedOptions::default());
    let engine = engine.expect("the engine opens");
    MetaStore::open(Box::new(engine), &Options { cached_records: 64, ..Options::default() })
        .expect("the store opens")
}

impl World {
    fn new() -> Self {
        let scratch = Scratch::new();
        let (root, meta_dir) = (scratch.0.join("backing"), scratch.0.join("meta"));
        fs::create_dir_all(&root).expect("made");
        fs::create_dir_all(&meta_dir).expect("made");
        let contents = Arc::new(Contents::default());
        let inner = Arc::new(DirBacking::open(&root, "test").expect("opens"));
        let flaky = Arc::new(Flaky::new(1));
        let backing: Arc<dyn BackingStore> =
            Arc::new(InterceptedBacking::new(inner, flaky.clone()));
        let node = node_on(backing.clone(), open_meta(&meta_dir), &contents, |_| {});
        node.writeback.import_root().expect("the root is there");
        node.writeback.ensure_listed(&Context::DAEMON, Ino::ROOT).expect("listed");
        World { node, meta_dir, backing, flaky, contents, root, _scratch: scratch }
    }

    /// The directories of the logical tree, in the order of a walk.
    fn directories(&self) -> Vec<Ino> {
        let mut found = vec![Ino::ROOT];
        let mut at = 0;
        while at < found.len() {
            for item in self.node.meta.entries_plus(found[at], 0, 100).expect("entries") {
                if item.record.is_directory() {
                    found.push(item.record.ino);
                }
            }
            at += 1;
        }
        found
    }

    fn dir(&self, choice: u8) -> Ino {
        let all = self.directories();
        all[choice as usize % all.len()]
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each action")]
    fn apply(&mut self, action: &Action) {
        let meta = &self.node.meta;
        let name = |index: u8| NAMES[index as usize].as_bytes();
        let now = crate::clock::wall_time();
        // Refusals (no such name, not empty, a directory below itself) are the namespace's matter.
        match *action {
            Action::Create(dir, at, kind) => {
                let kinds =
                    [FileKind::Regular, FileKind::Directory, FileKind::Symlink, FileKind::Regular];
                let mut new = NewInode::new(kinds[kind as usize], 0o644, 0, 0);
                new.target = (new.kind == FileKind::Symlink).then(|| name(at).into());
                new.perm |= if new.kind == FileKind::Directory { 0o111 } else { 0 };
                meta.create(self.dir(dir), name(at), new, now).ok();
            }
            Action::Write(dir, at) => {
                if let Ok(Some(record)) = meta.lookup(self.dir(dir), name(at))
                    && record.attr.kind == FileKind::Regular
                {
                    let bytes = format!("{} {}", record.ino, now.nsec).into_bytes();
                    let size = bytes.len() as u64;
                    self.contents.bytes.lock().insert(record.ino.0, bytes);
                    let update = |record: &mut Record| {
                        record.attr.size = size;
                        record.attr.mtime = now;
                        record.mark_dirty();
                        Queue::Yes
                    };
                    meta.update(record.ino, Some(now), update).expect("it is there");
                }
            }
            Action::Rename { from, to, exchange } => {
                let flags = RenameFlags { exchange, ..RenameFlags::default() };
                let (from_dir, to_dir) = (self.dir(from.0), self.dir(to.0));
                meta.rename(
                    NameIn::new(from_dir, name(from.1)),
                    NameIn::new(to_dir, name(to.1)),
                    flags,
                    now,
                    &|_| false,
                )
                .ok();
            }
            Action::Link(from, to) => {
                if let Ok(Some(record)) = meta.lookup(self.dir(from.0), name(from.1)) {
                    meta.link(record.ino, self.dir(to.0), name(to.1), now).ok();
                }
            }
            Action::Unlink(dir, at) => {
                let dir = self.dir(dir);
                if meta.unlink(dir, name(at), now, false).is_err() {
                    meta.rmdir(dir, name(at), now, false).ok();
                }
            }
            Action::Chmod(dir, at, mode) => {
                if let Ok(Some(record)) = meta.lookup(self.dir(dir), name(at))
                    && record.attr.kind != FileKind::Symlink
                {
                    let update = |record: &mut Record| {
                        record.attr.perm = mode;
                        record.backing.attrs_differ = true;
                        Queue::Yes
                    };
                    meta.update(record.ino, Some(now), update).expect("it is there");
                }
            }
            Action::Reconcile(choice) => {
                let queued = meta.backlog(forebay_meta::Seq(0), 1000).expect("the backlog");
                if !queued.is_empty() {
                    let (_, ino) = queued[choice as usize % queued.len()];
                    self.node.writeback.take_turns(&[(ino, 0)], Wanted::All, &mut |_, _| {});
                }
            }
            Action::Drain => {
                self.node
                    .writeback
                    .drain(Instant::now() + Duration::from_secs(5), &mut |_| true)
                    .expect("drained");
            }
            Action::Restart => self.restart(),
            Action::Faults(seed) => {
                let lost = seed / 240 % 2 == 1;
                let fault = if lost { Verdict::Lost(libc::EIO) } else { Verdict::Fail(libc::EIO) };
                let (skip, times) = (u64::from(seed % 40), u64::from(seed / 40 % 6));
                let rule = Rule { operation: None, fault, skip, times, per_mille: 1000 };
                self.flaky.set_rules(vec![rule]);
            }
        }
    }

    fn restart(&mut self) {
        let contents = self.contents.clone();
        let unused = MetaStore::open(Box::new(Memory::new()), &Options::default()).expect("opens");
        let old = std::mem::replace(
            &mut self.node,
            node_on(self.backing.clone(), unused, &contents, |_| {}),
        );
        assert!(
            old.slow.close(Duration::from_secs(5))
                && old.writeback.flushers.close(Duration::from_secs(5))
        );
        drop(old);
        self.node = node_on(self.backing.clone(), open_meta(&self.meta_dir), &contents, |_| {});
    }

    /// Name, type, mode, contents or target, and the group of hard links, of all below a directory
    /// as the namespace says.
    fn logical(&self, dir: Ino, path: &Path, tree: &mut BTreeMap<PathBuf, (String, u64)>) {
        for item in self.node.meta.entries_plus(dir, 0, 1000).expect("entries") {
            let record = &item.record;
            let path = path.join(super::super::names::os(&item.entry.name));
            let bytes = self.contents.bytes.lock().get(&record.ino.0).cloned().unwrap_or_default();
            let what = match record.attr.kind {
                FileKind::Directory => format!("dir {:o}", record.attr.perm),
                FileKind::Symlink => {
                    format!("symlink {:?}", record.target.as_deref().map(<[u8]>::to_vec))
                }
                _ => format!("file {:o} {:?}", record.attr.perm, bytes),
            };
            tree.insert(path.clone(), (what, record.ino.0));
            if record.is_directory() {
                self.logical(record.ino, &path, tree);
            }
        }
    }

    fn physical(&self, path: &Path, tree: &mut BTreeMap<PathBuf, (String, u64)>) {
        use std::os::unix::ffi::OsStrExt;
        for entry in fs::read_dir(self.root.join(path)).expect("a directory") {
            let entry = entry.expect("an entry");
            let below = path.join(entry.file_name());
            if below == Path::new(".forebay") {
                continue;
            }
            let found = fs::symlink_metadata(entry.path()).expect("there");
            let mode = found.permissions().mode() & 0o7777;
            let what = if found.is_dir() {
                format!("dir {mode:o}")
            } else if found.is_symlink() {
                let target = fs::read_link(entry.path()).expect("a link");
                format!("symlink {:?}", Some(target.as_os_str().as_bytes().to_vec()))
            } else {
                format!("file {mode:o} {:?}", fs::read(entry.path()).expect("a file"))
            };
            tree.insert(below.clone(), (what, found.ino()));
            if found.is_dir() {
                self.physical(&below, tree);
            }
        }
    }

    fn check(&self) {
        let (mut logical, mut physical) = (BTreeMap::new(), BTreeMap::new());
        self.logical(Ino::ROOT, Path::new(""), &mut logical);
        self.physical(Path::new(""), &mut physical);
        let shown = |tree: &BTreeMap<PathBuf, (String, u64)>| -> Vec<_> {
            tree.iter().map(|(path, (what, _))| (path.clone(), what.clone())).collect()
        };
        assert_eq!(shown(&physical), shown(&logical));
        let mut groups = HashMap::new();
        for (path, (_, ino)) in &logical {
            let below = physical[path].1;
            assert_eq!(*groups.entry(*ino).or_insert(below), below, "{path:?}: hard links");
        }
        assert_eq!(self.node.writeback.conflicts().0, 0, "{:?}", self.node.writeback.conflicts());
        assert_eq!(self.backing.list_parked().expect("limbo"), Vec::<u64>::new());
        let counts = self.node.meta.counts();
        assert_eq!((counts.queued, counts.stale_names, counts.orphans), (0, 0, 0));
    }
}

fn run(actions: &[Action]) {
    let mut world = World::new();
    for action in actions {
        world.apply(action);
    }
    world.flaky.set_rules(vec![]);
    let until = Instant::now() + Duration::from_secs(10);
    let remaining = world.node.writeback.drain(until, &mut |_| true).expect("drained");
    let error = world.node.writeback.last_backlog_error();
    let left = world.node.writeback.unwritten(9).map(|paths| {
        paths.into_iter().map(|path| String::from_utf8(path).expect("ASCII")).collect::<Vec<_>>()
    });
    assert_eq!(remaining, Remaining::default(), "{error:?} {left:?}");
    world.check();
}

/// The number of runs of each test: `FOREBAY_MODEL_CASES`, else 48.
fn cases() -> u32 {
    std::env::var("FOREBAY_MODEL_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(48)
}

/// The seed of a test, which is told when it fails: `FOREBAY_SEED`, else another one each time.
fn seed() -> proptest::test_runner::RngSeed {
    let given = std::env::var("FOREBAY_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| {
        use std::hash::BuildHasher;
        std::hash::RandomState::new().hash_one(std::process::id())
    });
    eprintln!("these operations again: FOREBAY_SEED={seed}");
    proptest::test_runner::RngSeed::Fixed(seed)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        max_shrink_iters: 60,
        failure_persistence: None,
        rng_seed: seed(),
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_operations_without_faults_when_drained_then_nothing_conflicts(
        actions in proptest::collection::vec(action(), 1..60)
    ) {
        let sound: Vec<Action> =
            actions.into_iter().filter(|action| !matches!(action, Action::Faults(_))).collect();
        run(&sound);
    }

    #[test]
    fn random_operations_when_drained_then_the_backing_store_equals_the_namespace(
        actions in proptest::collection::vec(action(), 1..60)
    ) {
        run(&actions);
    }
}

#[test]
fn directory_made_again_when_the_answers_to_its_removal_and_its_making_are_lost_then_no_conflict() {
    use Action::{Create, Drain, Faults, Reconcile, Unlink};
    for faults in [17212, 17211, 17213] {
        run(&[
            Create(0, 1, 1),
            Reconcile(52288),
            Unlink(234, 1),
            Faults(faults),
            Create(115, 4, 0),
            Create(81, 1, 1),
            Reconcile(6940),
            Create(121, 3, 0),
            Drain,
        ]);
    }
}

#[test]
fn symlink_of_two_names_when_answers_to_its_moves_are_lost_then_no_conflict() {
    use Action::{Create, Drain, Faults, Link, Reconcile, Rename};
    let rename = |from, to, exchange| Rename { from, to, exchange };
    run(&[
        Create(27, 1, 2),
        Create(111, 2, 2),
        Drain,
        Faults(290),
        Create(12, 4, 2),
        Reconcile(13493),
        Link((138, 4), (232, 0)),
        rename((150, 4), (201, 2), false),
        rename((246, 1), (96, 4), false),
        Faults(346),
        rename((183, 0), (176, 4), true),
        Create(183, 1, 1),
        rename((28, 4), (189, 3), false),
        Drain,
    ]);
}
