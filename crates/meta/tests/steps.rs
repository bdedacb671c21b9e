//! A process that dies between any two steps of an operation, on an engine that commits only within
//! a partition: the operation has happened or it hasn't, for everybody, and nothing stays behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use forebay_meta::{
    Engine, EngineError, Error, FileKind, Ino, Key, Memory, MetaStore, MiniTransaction, NameIn,
    NewInode, Options, Outcome, Page, RenameFlags, Result, Spanning, Timestamp,
};

const NOW: Timestamp = Timestamp { sec: 7, nsec: 0 };

/// Executes a number of transactions, then no more.
struct Dying {
    engine: Arc<Memory>,
    left: AtomicI64,
    /// The last one takes effect, but its caller gets no answer.
    half: bool,
}

fn dead() -> EngineError {
    EngineError::Unknown { reason: "the process died".into() }
}

impl Engine for Dying {
    fn execute(&self, transaction: &MiniTransaction) -> std::result::Result<Outcome, EngineError> {
        match self.left.fetch_sub(1, Ordering::SeqCst) {
            1.. => self.engine.execute(transaction),
            0 if self.half => self.engine.execute(transaction).and_then(|_| Err(dead())),
            _ => Err(dead()),
        }
    }

    fn scan(
        &self,
        partition: u16,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> std::result::Result<Page, EngineError> {
        self.engine.scan(partition, prefix, after, limit)
    }

    fn sweep(
        &self,
        after: Option<&Key>,
        limit: usize,
    ) -> std::result::Result<Vec<(Key, Vec<u8>)>, EngineError> {
        self.engine.sweep(after, limit)
    }

    fn spans_partitions(&self) -> bool {
        false
    }

    fn sync(&self) -> std::result::Result<(), EngineError> {
        Ok(())
    }
}

/// Others give up at once what stands still.
fn open(engine: Arc<Memory>) -> MetaStore {
    let engine = Spanning::new(engine, Duration::ZERO).unwrap();
    MetaStore::open(Box::new(engine), &Options::default()).unwrap()
}

fn file() -> NewInode {
    let mut new = NewInode::new(FileKind::Regular, 0o644, 1, 1);
    new.xattrs.push((b"user.a".to_vec(), b"b".to_vec()));
    new
}

fn directory() -> NewInode {
    NewInode::new(FileKind::Directory, 0o755, 1, 1)
}

fn ino(store: &MetaStore, path: &str) -> Result<Ino> {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.into_iter().try_fold(Ino::ROOT, |dir, name| {
        store.lookup(dir, name.as_bytes())?.map(|record| record.ino).ok_or(Error::NotFound)
    })
}

/// /a/f, /a/g with the second name /b/g, /a/sub/deep, /b/other, /b/empty
fn prepare(store: &MetaStore) {
    for dir in ["a", "b"] {
        store.create(Ino::ROOT, dir.as_bytes(), directory(), NOW).unwrap();
    }
    let (a, b) = (ino(store, "a").unwrap(), ino(store, "b").unwrap());
    store.create(a, b"f", file(), NOW).unwrap();
    let g = store.create(a, b"g", file(), NOW).unwrap();
    store.link(g.ino, b, b"g", NOW).unwrap();
    let sub = store.create(a, b"sub", directory(), NOW).unwrap();
    store.create(sub.ino, b"deep", file(), NOW).unwrap();
    store.create(b, b"other", file(), NOW).unwrap();
    store.create(b, b"empty", directory(), NOW).unwrap();
}

/// Every path with what can be seen of its inode.
fn tree(store: &MetaStore) -> BTreeMap<Vec<u8>, (Ino, u32, FileKind)> {
    let mut tree = BTreeMap::new();
    let mut below = vec![(Vec::new(), Ino::ROOT)];
    while let Some((path, dir)) = below.pop() {
        for found in store.entries_plus(dir, 0, usize::MAX).unwrap() {
            let path = [&path[..], b"/", &found.entry.name].concat();
            let (ino, kind) = (found.entry.ino, found.entry.kind);
            tree.insert(path.clone(), (ino, found.record.attr.nlink, kind));
            if kind == FileKind::Directory {
                below.push((path, ino));
            }
        }
    }
    tree
}

type Operation = fn(&MetaStore) -> Result<()>;

fn move_to(store: &MetaStore, from: (&str, &str), to: (&str, &str), exchange: bool) -> Result<()> {
    let flags = RenameFlags { exchange, ..RenameFlags::default() };
    let (from_dir, to_dir) = (ino(store, from.0)?, ino(store, to.0)?);
    let (from, to) = (from.1.as_bytes(), to.1.as_bytes());
    store
        .rename(NameIn::new(from_dir, from), NameIn::new(to_dir, to), flags, NOW, &|_| false)
        .map(|_| ())
}

const OPERATIONS: [(&str, Operation); 13] = [
    ("create", |store| store.create(ino(store, "a")?, b"new", file(), NOW).map(|_| ())),
    ("mkdir", |store| store.create(ino(store, "a")?, b"new", directory(), NOW).map(|_| ())),
    ("link", |store| store.link(ino(store, "a/f")?, ino(store, "b")?, b"l", NOW).map(|_| ())),
    ("unlink", |store| store.unlink(ino(store, "a")?, b"f", NOW, false).map(|_| ())),
    ("unlink one of two", |store| store.unlink(ino(store, "a")?, b"g", NOW, false).map(|_| ())),
    ("unlink in use", |store| store.unlink(ino(store, "a")?, b"f", NOW, true).map(|_| ())),
    ("rmdir", |store| store.rmdir(ino(store, "b")?, b"empty", NOW, false).map(|_| ())),
    ("rename", |store| move_to(store, ("a", "f"), ("a", "h"), false)),
    ("rename elsewhere", |store| move_to(store, ("a", "f"), ("b", "h"), false)),
    ("rename over", |store| move_to(store, ("a", "f"), ("b", "other"), false)),
    ("rename over one of two", |store| move_to(store, ("a", "f"), ("b", "g"), false)),
    ("rename a directory", |store| move_to(store, ("a", "sub"), ("b", "empty"), false)),
    ("exchange", |store| move_to(store, ("a", "sub"), ("b", "other"), true)),
];

#[test]
fn process_when_it_dies_between_any_two_steps_then_all_or_nothing_has_happened() {
    let mut steps = 0;
    for (name, operation) in OPERATIONS {
        let (before, after) = {
            let engine = Arc::new(Memory::partitioned());
            let store = open(engine);
            prepare(&store);
            let before = tree(&store);
            operation(&store).unwrap();
            (before, tree(&store))
        };
        assert_ne!(before, after, "{name}");
        for half in [false, true] {
            let mut seen = (false, false);
            for step in 0.. {
                let engine = Arc::new(Memory::partitioned());
                prepare(&open(engine.clone()));
                let dying = Dying { engine: engine.clone(), left: AtomicI64::new(i64::MAX), half };
                let dying = Arc::new(dying);
                let store = MetaStore::open(Box::new(dying.clone()), &Options::default()).unwrap();
                // The caches know what is there, and a number is at hand, as in any process.
                tree(&store);
                dying.left.store(step, Ordering::SeqCst);
                let done = operation(&store);
                let died = dying.left.load(Ordering::SeqCst) < 0;
                drop(store);

                let observer = open(engine.clone());
                let found = tree(&observer);
                assert!(
                    shape(&found) == shape(&before) || shape(&found) == shape(&after),
                    "{name}, {step} steps: {found:#?}"
                );
                let happened = shape(&found) == shape(&after);
                assert!(done.is_err() || happened, "{name} was acknowledged after {step} steps");
                seen = (seen.0 | !happened, seen.1 | happened);
                let report = observer.check(false).unwrap();
                assert!(report.is_clean(), "{name}, {step} steps: {report:#?}");
                let left = engine.sweep(None, usize::MAX).unwrap();
                assert!(left.iter().all(|(key, _)| key.bytes()[0] != 0), "{name}: litter");
                steps += 1;
                if !died {
                    break;
                }
            }
            assert_eq!(seen, (true, true), "{name} was met before and after");
        }
    }
    assert!(steps > 100, "only {steps} deaths");
}

/// Inode numbers of what is new differ from run to run.
fn shape(tree: &BTreeMap<Vec<u8>, (Ino, u32, FileKind)>) -> Vec<(&[u8], u32, FileKind)> {
    tree.iter().map(|(path, (_, nlink, kind))| (&path[..], *nlink, *kind)).collect()
}

/// A file moves to and fro between two directories while others look it up: it always has exactly
/// one of its names, also where movers die half way.
#[test]
fn rename_across_partitions_then_is_atomic_for_every_observer_also_when_movers_die() {
    let engine = Arc::new(Memory::partitioned());
    let store = open(engine.clone());
    prepare(&store);
    let (a, b) = (ino(&store, "a").unwrap(), ino(&store, "b").unwrap());
    let moved = store.lookup(a, b"f").unwrap().unwrap().ino;
    let stop = AtomicI64::new(0);
    std::thread::scope(|scope| {
        let (engine, stop) = (&engine, &stop);
        for _ in 0..2 {
            scope.spawn(move || {
                // Entries and the record at one instant, by one transaction.
                let look = Spanning::new(engine.clone(), Duration::from_millis(2)).unwrap();
                let keys = engine.sweep(None, usize::MAX).unwrap();
                let entry = |dir: Ino| {
                    let probe = keys.iter().map(|(key, _)| key.clone()).find(|key| {
                        key.bytes().starts_with(b"D") && key.bytes()[1..9] == dir.0.to_be_bytes()
                    });
                    let template = probe.unwrap();
                    let hash = xxh(b"f");
                    let bytes = [&template.bytes()[..9], &hash.to_be_bytes(), b"f"].concat();
                    Key::new(template.partition(), &bytes)
                };
                let reads = MiniTransaction::reading(vec![entry(a), entry(b)]);
                while stop.load(Ordering::SeqCst) == 0 {
                    let Outcome::Committed(found) = look.execute(&reads).unwrap() else {
                        panic!("a read has no conflicts")
                    };
                    assert!(found[0].is_some() ^ found[1].is_some(), "{found:?}");
                }
            });
        }
        let mut places = [a, b];
        for round in 0..150 {
            let left = AtomicI64::new(if round % 3 == 0 { round / 3 % 9 } else { i64::MAX });
            let dying = Arc::new(Dying { engine: engine.clone(), left, half: round % 2 == 0 });
            let below = Spanning::new(dying, Duration::from_millis(2)).unwrap();
            let Ok(mover) = MetaStore::open(Box::new(below), &Options::default()) else { continue };
            let flags = RenameFlags::default();
            let done = mover.rename(
                NameIn::new(places[0], b"f"),
                NameIn::new(places[1], b"f"),
                flags,
                NOW,
                &|_| false,
            );
            // A mover that died may have moved it, or not.
            match done {
                Ok(done) => assert_eq!(done.moved.ino, moved),
                Err(Error::Engine(_)) => {}
                Err(error) => panic!("{error}"),
            }
            let fresh = open(engine.clone());
            let there = [a, b].map(|dir| fresh.lookup(dir, b"f").unwrap().is_some());
            assert!(there[0] ^ there[1]);
            places = if there[0] { [a, b] } else { [b, a] };
        }
        stop.store(1, Ordering::SeqCst);
    });
    let report = open(engine).check(false).unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

/// By what entries are ordered: see the formats.
fn xxh(name: &[u8]) -> u64 {
    MetaStore::listing_order(name)
}
