//! Random operations against a naive tree in memory, error by error, with a worker that reconciles
//! and restarts in between: on the embedded engine, and on one that commits only within a partition.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use forebay_meta::{
    Embedded, EmbeddedOptions, Error, FileKind, Ino, Memory, MetaStore, NameIn, NewInode, Options,
    Queue, RenameFlags, Seq, Timestamp,
};
use proptest::prelude::*;

const NAMES: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];

#[derive(Debug, Clone)]
enum Op {
    Create { dir: usize, name: usize, directory: bool },
    Tmpfile { dir: usize },
    Link { inode: usize, dir: usize, name: usize },
    Unlink { dir: usize, name: usize, in_use: bool },
    Rmdir { dir: usize, name: usize, in_use: bool },
    Rename { from: (usize, usize), to: (usize, usize), flags: u8, in_use: bool },
    Release { orphan: usize },
    Chmod { inode: usize },
    Reconcile { at: usize },
    Requeue { at: usize },
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let (d, n) = (0usize..8, 0usize..NAMES.len());
    let place = (d.clone(), n.clone());
    prop_oneof![
        6 => (d.clone(), n.clone(), any::<bool>())
            .prop_map(|(dir, name, directory)| Op::Create { dir, name, directory }),
        1 => d.clone().prop_map(|dir| Op::Tmpfile { dir }),
        2 => (0usize..20, d.clone(), n.clone())
            .prop_map(|(inode, dir, name)| Op::Link { inode, dir, name }),
        3 => (d.clone(), n.clone(), any::<bool>())
            .prop_map(|(dir, name, in_use)| Op::Unlink { dir, name, in_use }),
        2 => (d, n, any::<bool>())
            .prop_map(|(dir, name, in_use)| Op::Rmdir { dir, name, in_use }),
        6 => (place.clone(), place, 0u8..4, any::<bool>())
            .prop_map(|(from, to, flags, in_use)| Op::Rename { from, to, flags, in_use }),
        1 => (0usize..5).prop_map(|orphan| Op::Release { orphan }),
        1 => (0usize..20).prop_map(|inode| Op::Chmod { inode }),
        5 => (0usize..6).prop_map(|at| Op::Reconcile { at }),
        1 => (0usize..6).prop_map(|at| Op::Requeue { at }),
        1 => Just(Op::Restart),
    ]
}

#[derive(Debug, Default)]
struct Model {
    /// Directories, removed ones too, in the order of their creation.
    dirs: Vec<Ino>,
    files: Vec<Ino>,
    kinds: HashMap<Ino, FileKind>,
    entries: BTreeMap<(Ino, &'static [u8]), Ino>,
    orphans: BTreeSet<Ino>,
    removed: BTreeSet<Ino>,
}

type Answer = Result<(), &'static str>;

impl Model {
    fn is_dir(&self, ino: Ino) -> bool {
        self.kinds[&ino] == FileKind::Directory
    }

    fn names(&self, ino: Ino) -> u32 {
        self.entries.values().filter(|other| **other == ino).count() as u32
    }

    fn is_empty(&self, dir: Ino) -> bool {
        !self.entries.keys().any(|(parent, _)| *parent == dir)
    }

    fn within(&self, dir: Ino, above: Ino) -> bool {
        if dir == above || dir == Ino::ROOT {
            return dir == above;
        }
        let parent = self.entries.iter().find(|(_, ino)| **ino == dir).map(|((p, _), _)| *p);
        parent.is_some_and(|parent| self.within(parent, above))
    }

    fn detach(&mut self, dir: Ino, name: &'static [u8], in_use: bool) {
        let ino = self.entries.remove(&(dir, name)).unwrap();
        if self.names(ino) == 0 {
            self.removed.insert(ino);
            if in_use {
                self.orphans.insert(ino);
            }
        }
    }

    fn may_create(&self, dir: Ino, name: &'static [u8]) -> Answer {
        if self.removed.contains(&dir) {
            return Err("ENOENT");
        }
        if self.entries.contains_key(&(dir, name)) { Err("EEXIST") } else { Ok(()) }
    }

    fn rename(
        &mut self,
        (from, a): (Ino, &'static [u8]),
        (to, b): (Ino, &'static [u8]),
        flags: RenameFlags,
        in_use: bool,
    ) -> Answer {
        if flags.exchange && flags.noreplace {
            return Err("EINVAL");
        }
        let source = *self.entries.get(&(from, a)).ok_or("ENOENT")?;
        let target = self.entries.get(&(to, b)).copied();
        if flags.noreplace && target.is_some() {
            return Err("EEXIST");
        }
        if flags.exchange && target.is_none() {
            return Err("ENOENT");
        }
        if self.is_dir(source) && self.within(to, source) {
            return Err("EINVAL");
        }
        if let Some(target) = target {
            if self.is_dir(target) && from != to && self.within(from, target) {
                return Err(if flags.exchange { "EINVAL" } else { "ENOTEMPTY" });
            }
            if target == source {
                return Ok(());
            }
        }
        if self.removed.contains(&to) {
            return Err("ENOENT");
        }
        if let Some(target) = target {
            if flags.exchange {
                self.entries.insert((from, a), target);
                self.entries.insert((to, b), source);
                return Ok(());
            }
            match (self.is_dir(source), self.is_dir(target)) {
                (true, false) => return Err("ENOTDIR"),
                (false, true) => return Err("EISDIR"),
                (true, true) if !self.is_empty(target) => return Err("ENOTEMPTY"),
                _ => self.detach(to, b, in_use),
            }
        }
        self.entries.remove(&(from, a));
        self.entries.insert((to, b), source);
        Ok(())
    }
}

fn errno<T>(result: Result<T, Error>) -> Result<T, &'static str> {
    result.map_err(|error| match error {
        Error::NotFound | Error::Stale(_) => "ENOENT",
        Error::Exists => "EEXIST",
        Error::NotDirectory => "ENOTDIR",
        Error::IsDirectory => "EISDIR",
        Error::NotEmpty => "ENOTEMPTY",
        Error::NotPermitted(_) => "EPERM",
        Error::Invalid(_) => "EINVAL",
        other => panic!("unexpected: {other}"),
    })
}

/// A cache this small makes most reads go to the engine.
const SMALL: Options = Options { cached_records: 16, split_above: 4096, node: None, resume: None };

fn open_embedded(path: &Path) -> MetaStore {
    let small = EmbeddedOptions { write_buffer_mib: 1, workers: 1, ..EmbeddedOptions::default() };
    let engine = Embedded::open(path, &small).unwrap();
    MetaStore::open(Box::new(engine), &SMALL).unwrap()
}

struct World<'a> {
    open: &'a dyn Fn() -> MetaStore,
    store: Option<MetaStore>,
    model: Model,
    clock: i64,
}

impl World<'_> {
    fn store(&self) -> &MetaStore {
        self.store.as_ref().unwrap()
    }

    fn dir(&self, at: usize) -> Ino {
        self.model.dirs[at % self.model.dirs.len()]
    }

    fn now(&mut self) -> Timestamp {
        self.clock += 1;
        Timestamp::new(self.clock, 0)
    }

    fn step(&mut self, op: &Op) {
        let now = self.now();
        match *op {
            Op::Create { dir, name, directory } => self.create(dir, NAMES[name], directory, now),
            Op::Tmpfile { dir } => {
                let dir = self.dir(dir);
                let new = NewInode::new(FileKind::Regular, 0o600, 0, 0);
                let got = errno(self.store().create_unlinked(dir, new, now));
                assert_eq!(got.is_err(), self.model.removed.contains(&dir));
                if let Ok(record) = got {
                    self.model.kinds.insert(record.ino, FileKind::Regular);
                    self.model.files.push(record.ino);
                    self.model.orphans.insert(record.ino);
                    self.model.removed.insert(record.ino);
                }
            }
            Op::Link { inode, dir, name } => self.link(inode, dir, NAMES[name], now),
            Op::Unlink { dir, name, in_use } => self.remove(dir, NAMES[name], false, in_use, now),
            Op::Rmdir { dir, name, in_use } => self.remove(dir, NAMES[name], true, in_use, now),
            Op::Rename { from, to, flags, in_use } => self.rename(from, to, flags, in_use, now),
            Op::Release { orphan } => {
                if let Some(ino) = self.model.orphans.iter().nth(orphan).copied() {
                    assert!(self.store().release_orphan(ino, now).unwrap());
                    self.model.orphans.remove(&ino);
                }
            }
            Op::Chmod { inode } => {
                let Some(ino) = self.model.files.get(inode).copied() else { return };
                if self.model.removed.contains(&ino) {
                    return;
                }
                let changed = self.store().update(ino, Some(now), |record| {
                    record.attr.perm = 0o600;
                    record.backing.attrs_differ = true;
                    Queue::Yes
                });
                assert!(changed.unwrap().queued.is_some());
            }
            Op::Reconcile { at } => {
                let queued = self.store().backlog(Seq(0), at + 1).unwrap();
                if let Some((_, ino)) = queued.last() {
                    reconcile(self.store(), *ino);
                }
            }
            Op::Requeue { at } => {
                let queued = self.store().backlog(Seq(0), at + 1).unwrap();
                if let Some((_, ino)) = queued.last() {
                    self.store().requeue_last(*ino).unwrap();
                    let all = self.store().backlog(Seq(0), usize::MAX).unwrap();
                    assert_eq!(all.last().map(|(_, ino)| ino), Some(ino));
                }
            }
            Op::Restart => {
                let counts = self.store().counts();
                self.store = None;
                self.store = Some((self.open)());
                assert_eq!(self.store().counts(), counts);
            }
        }
    }

    fn create(&mut self, dir: usize, name: &'static [u8], directory: bool, now: Timestamp) {
        let dir = self.dir(dir);
        let kind = if directory { FileKind::Directory } else { FileKind::Regular };
        let got = errno(self.store().create(dir, name, NewInode::new(kind, 0o755, 1, 1), now));
        let want = self.model.may_create(dir, name);
        assert_eq!(got.as_ref().map(|_| ()).map_err(|error| *error), want);
        if let Ok(record) = got {
            self.model.kinds.insert(record.ino, kind);
            self.model.entries.insert((dir, name), record.ino);
            if directory { &mut self.model.dirs } else { &mut self.model.files }.push(record.ino);
        }
    }

    fn link(&mut self, inode: usize, dir: usize, name: &'static [u8], now: Timestamp) {
        let dir = self.dir(dir);
        let Some(ino) = self.model.files.get(inode).copied() else { return };
        let mut want = self.model.may_create(dir, name);
        let unnamed = self.model.removed.contains(&ino) && !self.model.orphans.contains(&ino);
        if want.is_ok() && unnamed {
            want = Err("ENOENT");
        }
        assert_eq!(errno(self.store().link(ino, dir, name, now)).map(|_| ()), want);
        if want.is_ok() {
            self.model.entries.insert((dir, name), ino);
            self.model.orphans.remove(&ino);
            self.model.removed.remove(&ino);
        }
    }

    fn remove(
        &mut self,
        dir: usize,
        name: &'static [u8],
        rmdir: bool,
        in_use: bool,
        now: Timestamp,
    ) {
        let dir = self.dir(dir);
        let want = match self.model.entries.get(&(dir, name)).copied() {
            None => Err("ENOENT"),
            Some(ino) if !rmdir && self.model.is_dir(ino) => Err("EISDIR"),
            Some(ino) if rmdir && !self.model.is_dir(ino) => Err("ENOTDIR"),
            Some(ino) if rmdir && !self.model.is_empty(ino) => Err("ENOTEMPTY"),
            Some(_) => Ok(()),
        };
        let got = match rmdir {
            true => self.store().rmdir(dir, name, now, in_use),
            false => self.store().unlink(dir, name, now, in_use),
        };
        let got = errno(got);
        assert_eq!(got.as_ref().map(|_| ()).map_err(|error| *error), want);
        if let Ok(unlinked) = got {
            self.model.detach(dir, name, in_use);
            let ino = unlinked.record.ino;
            let gone = self.model.removed.contains(&ino) && !self.model.orphans.contains(&ino);
            assert_eq!(unlinked.gone, gone);
        }
    }

    fn rename(
        &mut self,
        from: (usize, usize),
        to: (usize, usize),
        flags: u8,
        in_use: bool,
        now: Timestamp,
    ) {
        let flags = RenameFlags { noreplace: flags == 1, exchange: flags == 2, durable: false };
        let from = (self.dir(from.0), NAMES[from.1]);
        let to = (self.dir(to.0), NAMES[to.1]);
        let got = self.store().rename(
            NameIn::new(from.0, from.1),
            NameIn::new(to.0, to.1),
            flags,
            now,
            &|_| in_use,
        );
        let got = errno(got).map(|_| ());
        assert_eq!(got, self.model.rename(from, to, flags, in_use), "{from:?} {to:?} {flags:?}");
    }

    fn verify(&self) {
        let store = self.store();
        for dir in &self.model.dirs {
            let listed = store.entries_plus(*dir, 0, 1000).unwrap();
            let listed: BTreeMap<Vec<u8>, Ino> =
                listed.into_iter().map(|e| (e.entry.name.to_vec(), e.record.ino)).collect();
            let inside = self.model.entries.iter().filter(|((parent, _), _)| parent == dir);
            let want: BTreeMap<Vec<u8>, Ino> =
                inside.map(|((_, name), ino)| (name.to_vec(), *ino)).collect();
            assert_eq!(listed, want);
        }
        for ((dir, name), ino) in &self.model.entries {
            let record = store.lookup(*dir, name).unwrap().unwrap();
            assert_eq!(record.ino, *ino);
            let below = |inside: &&Ino| self.model.is_dir(**inside);
            let want = match self.model.is_dir(*ino) {
                true => {
                    let entries = self.model.entries.iter().filter(|((p, _), _)| p == ino);
                    2 + entries.map(|(_, inside)| inside).filter(below).count() as u32
                }
                false => self.model.names(*ino),
            };
            assert_eq!(record.attr.nlink, want);
        }
        assert_eq!(store.orphans().unwrap(), Vec::from_iter(self.model.orphans.clone()));
        let report = store.check(false).unwrap();
        assert!(report.is_clean(), "{report:#?}");
        assert_eq!(report.entries, self.model.entries.len() as u64);
    }
}

/// What a worker does that finds everything possible.
fn reconcile(store: &MetaStore, ino: Ino) {
    let seen = store.get(ino).unwrap();
    let queued = store.reconciled(ino, seen.change, |record| {
        record.backing.links = seen.links.clone();
        record.backing.attrs_differ = false;
        record.backing.xattrs_differ = false;
        record.mark_clean();
    });
    assert!(!queued.unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_when_compared_with_a_naive_tree_agree(
        ops in proptest::collection::vec(op(), 1..120)
    ) {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        compare_with_model(&ops, &|| open_embedded(&directory.path().join("meta")));
    }

    #[test]
    fn random_operations_on_an_engine_of_partitions_when_compared_with_a_naive_tree_agree(
        ops in proptest::collection::vec(op(), 1..120)
    ) {
        let engine = Arc::new(Memory::partitioned());
        compare_with_model(&ops, &|| MetaStore::open(Box::new(engine.clone()), &SMALL).unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_in_directories_that_are_split_when_compared_with_a_naive_tree_agree(
        ops in proptest::collection::vec(op(), 1..120),
        split_above in 0u64..3,
    ) {
        let engine = Arc::new(Memory::partitioned());
        let options = Options { split_above, ..SMALL };
        compare_with_model(&ops, &|| MetaStore::open(Box::new(engine.clone()), &options).unwrap());
    }
}

fn compare_with_model(ops: &[Op], open: &dyn Fn() -> MetaStore) {
    let model = Model {
        dirs: vec![Ino::ROOT],
        kinds: HashMap::from([(Ino::ROOT, FileKind::Directory)]),
        ..Model::default()
    };
    let mut world = World { open, store: Some(open()), model, clock: 0 };
    world
        .store()
        .set_listed(
            Ino::ROOT,
            forebay_meta::Fingerprint {
                size: 0,
                mtime: Timestamp::default(),
                ctime: Timestamp::default(),
                ino: 1,
                ..Default::default()
            },
        )
        .unwrap();
    for op in ops {
        world.step(op);
    }
    world.verify();
    // Drain: nothing but the tree and the orphans remains.
    while let Some((_, ino)) = world.store().backlog_oldest().unwrap() {
        reconcile(world.store(), ino);
    }
    world.verify();
    let counts = world.store().counts();
    let inodes = world.model.entries.values().collect::<BTreeSet<_>>().len() + 1;
    assert_eq!(counts.inodes, (inodes + world.model.orphans.len()) as u64);
    assert_eq!((counts.queued, counts.stale_names), (0, 0));
}
