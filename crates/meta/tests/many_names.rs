//! Files with many names: what they cost, and that nothing gets lost when names become keys of
//! their own and go back into the record.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_meta::{
    Attr, Engine, EngineError, FileKind, Fingerprint, Found, Ino, Key, Link, Memory, MetaStore,
    MiniTransaction, NameIn, NewInode, NodeName, Options, Outcome, Page, Queue, RenameFlags,
    Timestamp, Write,
};
use proptest::prelude::*;

const NOW: Timestamp = Timestamp { sec: 100, nsec: 5 };

/// Counts what is asked of an engine.
struct Counted {
    engine: Memory,
    /// Bytes that are written.
    bytes: AtomicU64,
    /// Nobody else has the engine.
    alone: AtomicBool,
    /// Transactions and scans, keys that are compared or read, and entries that scans find.
    work: AtomicU64,
}

#[derive(Clone)]
struct Way(Arc<Counted>);

impl Way {
    fn new(engine: Memory) -> Self {
        let (bytes, work) = (AtomicU64::new(0), AtomicU64::new(0));
        Way(Arc::new(Counted { engine, bytes, alone: AtomicBool::new(false), work }))
    }

    fn open(&self) -> MetaStore {
        MetaStore::open(Box::new(self.clone()), &Options::default()).unwrap()
    }

    /// The bytes that an operation writes.
    fn cost(&self, operation: impl FnOnce()) -> u64 {
        let before = self.0.bytes.load(Ordering::SeqCst);
        operation();
        self.0.bytes.load(Ordering::SeqCst) - before
    }
}

impl Engine for Way {
    fn execute(&self, transaction: &MiniTransaction) -> Result<Outcome, EngineError> {
        let size = |write: &Write| match write {
            Write::Put(key, value) => key.bytes().len() + value.len(),
            Write::Delete(key) => key.bytes().len(),
        };
        let bytes: usize = transaction.write.iter().map(size).sum();
        self.0.bytes.fetch_add(bytes as u64, Ordering::SeqCst);
        let work = 1 + transaction.compare.len() + transaction.read.len() + transaction.write.len();
        self.0.work.fetch_add(work as u64, Ordering::SeqCst);
        self.0.engine.execute(transaction)
    }

    fn scan(
        &self,
        partition: u16,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Page, EngineError> {
        let page = self.0.engine.scan(partition, prefix, after, limit)?;
        self.0.work.fetch_add(1 + page.items.len() as u64, Ordering::SeqCst);
        Ok(page)
    }

    fn sweep(&self, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Vec<u8>)>, EngineError> {
        self.0.engine.sweep(after, limit)
    }

    fn spans_partitions(&self) -> bool {
        self.0.engine.spans_partitions()
    }

    fn exclusive(&self) -> bool {
        self.0.alone.load(Ordering::SeqCst)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.0.engine.sync()
    }
}

fn create(store: &MetaStore, name: &[u8]) -> Ino {
    store.create(Ino::ROOT, name, NewInode::new(FileKind::Regular, 0o644, 1, 2), NOW).unwrap().ino
}

fn name(number: u32) -> Vec<u8> {
    format!("name-{number:05}").into_bytes()
}

/// A worker brings the backing store in line.
fn reconcile(store: &MetaStore, ino: Ino) {
    let record = store.get(ino).unwrap();
    for link in record.missing() {
        store.claim(ino, link).unwrap();
    }
    let claimed = store.get(ino).unwrap();
    let (gone, made) =
        (claimed.stale_names().into_iter().cloned().collect::<Vec<_>>(), &claimed.links);
    store
        .reconciled(ino, record.change, |record| {
            for link in &gone {
                record.backing.links.remove(link);
            }
            record.claims_made(made);
            record.backing.attrs_differ = false;
        })
        .unwrap();
}

#[test]
fn names_when_a_file_has_many_then_one_more_or_less_costs_as_with_few() {
    for engine in [Memory::new(), Memory::partitioned()] {
        let way = Way::new(engine);
        let store = way.open();
        let ino = create(&store, b"file");
        let mut costs = Vec::new();
        for names in [20, 2000] {
            for number in 0..names {
                store.link(ino, Ino::ROOT, &name(number), NOW).ok();
            }
            reconcile(&store, ino);
            assert!(!store.get(ino).unwrap().namespace_differs());
            costs.push([
                way.cost(|| drop(store.link(ino, Ino::ROOT, b"more", NOW).unwrap())),
                way.cost(|| {
                    store.claim(ino, &Link::new(Ino::ROOT, *b"more")).unwrap();
                }),
                way.cost(|| {
                    let flags = RenameFlags::default();
                    let (from, to) = (b"more", b"less");
                    let renamed = store.rename(
                        NameIn::new(Ino::ROOT, from),
                        NameIn::new(Ino::ROOT, to),
                        flags,
                        NOW,
                        &|_| false,
                    );
                    renamed.unwrap();
                }),
                way.cost(|| drop(store.unlink(Ino::ROOT, b"less", NOW, false).unwrap())),
                way.cost(|| reconcile(&store, ino)),
            ]);
        }
        for (few, many) in costs[0].iter().zip(costs[1]) {
            assert!(many < few + 100, "{costs:?}");
        }
        assert!(store.check(false).unwrap().is_clean());
    }
}

/// Five hundred names are added and removed again, with write-back under way, of a file that has a
/// thousand and of one that has four thousand.
#[test]
fn five_hundred_names_more_or_less_when_there_are_thousands_then_cost_as_with_one_thousand() {
    const MORE: u32 = 500;
    for engine in [Memory::new(), Memory::partitioned()] {
        let way = Way::new(engine);
        let store = way.open();
        let ino = create(&store, b"file");
        // In directories so small that none is split meanwhile, which costs once what it has.
        let dirs: Vec<Ino> = (0..50u32)
            .map(|number| {
                let dir = NewInode::new(FileKind::Directory, 0o755, 1, 2);
                store.create(Ino::ROOT, format!("dir{number}").as_bytes(), dir, NOW).unwrap().ino
            })
            .collect();
        let dir_of = |number: u32| dirs[number as usize % dirs.len()];
        let mut costs = Vec::new();
        for names in [1000, 4000] {
            for number in 0..names {
                store.link(ino, dir_of(number), &name(number), NOW).ok();
            }
            reconcile(&store, ino);
            let work = way.0.work.load(Ordering::SeqCst);
            let bytes = way.cost(|| {
                for number in names..names + MORE {
                    store.link(ino, dir_of(number), &name(number), NOW).unwrap();
                    if number % 100 == 50 {
                        reconcile(&store, ino);
                    }
                }
                for number in names..names + MORE {
                    store.unlink(dir_of(number), &name(number), NOW, false).unwrap();
                    if number % 100 == 50 {
                        reconcile(&store, ino);
                    }
                }
                reconcile(&store, ino);
            });
            costs.push([bytes, way.0.work.load(Ordering::SeqCst) - work]);
        }
        println!("bytes and steps: {costs:?}");
        for (few, many) in costs[0].iter().zip(costs[1]) {
            assert!(many <= few + few / 10, "{costs:?}");
        }
        assert!(store.check(false).unwrap().is_clean());
    }
}

#[derive(Debug, Clone)]
enum Step {
    Link(u32),
    Unlink(u32),
    Rename(u32, u32),
    Claim,
    Reconcile,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u32..24).prop_map(Step::Link),
        6 => (0u32..24).prop_map(Step::Unlink),
        3 => (0u32..24, 0u32..24).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => Just(Step::Claim),
        1 => Just(Step::Reconcile),
        1 => Just(Step::Restart),
    ]
}

fn names_of<'a>(links: impl IntoIterator<Item = &'a Link>) -> BTreeSet<Vec<u8>> {
    links.into_iter().map(|link| link.name.to_vec()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn names_any_history_then_all_are_known_after_each_restart(
        steps in prop::collection::vec(step(), 1..120),
        partitioned: bool,
    ) {
        let way = Way::new(if partitioned { Memory::partitioned() } else { Memory::new() });
        let mut store = way.open();
        let ino = create(&store, b"file");
        let mut here = BTreeSet::from([b"file".to_vec()]);
        let mut there = BTreeSet::new();
        for step in steps {
            match step {
                Step::Link(number) => {
                    let linked = store.link(ino, Ino::ROOT, &name(number), NOW);
                    prop_assert_eq!(linked.is_ok(), here.insert(name(number)));
                }
                Step::Unlink(number) => {
                    let removed = store.unlink(Ino::ROOT, &name(number), NOW, false);
                    prop_assert_eq!(removed.is_ok(), here.remove(&name(number)));
                }
                Step::Rename(from, to) => {
                    let (from, to) = (name(from), name(to));
                    let flags = RenameFlags { noreplace: true, ..RenameFlags::default() };
                    let in_use = |_| false;
                    let renamed =
                        store.rename(NameIn::new(Ino::ROOT, &from), NameIn::new(Ino::ROOT, &to), flags, NOW, &in_use);
                    prop_assert_eq!(renamed.is_ok(), here.contains(&from) && !here.contains(&to));
                    if renamed.is_ok() {
                        here.remove(&from);
                        here.insert(to);
                    }
                }
                Step::Claim => {
                    let record = store.get(ino).unwrap();
                    if let Some(link) = record.missing().first() {
                        there.insert(link.name.to_vec());
                        let record = store.claim(ino, link).unwrap();
                        prop_assert!(record.claims().contains(link));
                    }
                }
                Step::Reconcile => {
                    reconcile(&store, ino);
                    there.clone_from(&here);
                }
                Step::Restart => {
                    let before = store.get(ino).unwrap();
                    store = way.open();
                    let now = store.get(ino).unwrap();
                    prop_assert_eq!(names_of(now.claims()), names_of(before.claims()));
                }
            }
            let record = store.get(ino).unwrap();
            prop_assert_eq!(names_of(&record.links), here.clone());
            prop_assert_eq!(names_of(&record.backing.links), there.clone());
            prop_assert_eq!(names_of(record.stale_names()), &there - &here);
            prop_assert_eq!(record.namespace_differs(), here != there);
        }
        let report = store.check(false).unwrap();
        prop_assert!(report.is_clean(), "{:?}", report.violations);
    }
}

#[test]
fn file_with_many_names_when_removed_then_nothing_of_it_is_left() {
    let way = Way::new(Memory::new());
    let store = way.open();
    let clean = way.sweep(None, usize::MAX).unwrap().len();
    let ino = create(&store, b"file");
    (0..30).for_each(|number| drop(store.link(ino, Ino::ROOT, &name(number), NOW).unwrap()));
    reconcile(&store, ino);
    (0..30).for_each(|number| drop(store.unlink(Ino::ROOT, &name(number), NOW, false).unwrap()));
    store.unlink(Ino::ROOT, b"file", NOW, false).unwrap();
    reconcile(&store, ino);
    assert!(store.get(ino).is_err());
    // The mark of the inode numbers that are used up stays.
    assert_eq!(way.sweep(None, usize::MAX).unwrap().len(), clean + 1);
}

#[test]
fn check_when_a_name_of_its_own_is_lost_then_found_and_repaired() {
    let way = Way::new(Memory::new());
    let store = way.open();
    let ino = create(&store, b"file");
    (0..30).for_each(|number| drop(store.link(ino, Ino::ROOT, &name(number), NOW).unwrap()));
    reconcile(&store, ino);
    let all = way.sweep(None, usize::MAX).unwrap();
    let lost =
        all.iter().find(|(key, _)| key.bytes().ends_with(&name(7)) && key.bytes()[0] == b'F');
    let write = vec![Write::Delete(lost.expect("it is a key").0.clone())];
    way.execute(&MiniTransaction { write, ..Default::default() }).unwrap();
    assert!(!store.check(false).unwrap().is_clean());
    store.check(true).unwrap();
    let report = store.check(false).unwrap();
    assert!(report.is_clean(), "{:?}", report.violations);
    assert_eq!(store.get(ino).unwrap().links.len(), 31);
}

#[test]
fn attributes_when_a_file_has_many_then_one_more_costs_as_with_few() {
    use forebay_meta::XattrFlags::Either;
    let way = Way::new(Memory::new());
    // As that of a single node, whose engine nobody else changes.
    way.0.alone.store(true, Ordering::SeqCst);
    let store = way.open();
    let ino = create(&store, b"file");
    store.xattr_replace_all(ino, &[]).unwrap();
    let set = |number: usize, len: usize| {
        let name = format!("user.{number:04}").into_bytes();
        let others = store.xattr_others(ino, &name).unwrap();
        store.xattr_set(ino, &name, &vec![7; len], Either, NOW).unwrap();
        (others.listed, others.kept)
    };
    let work = |operation: &mut dyn FnMut()| {
        let before = way.0.work.load(Ordering::SeqCst);
        operation();
        way.0.work.load(Ordering::SeqCst) - before
    };
    let mut costs = Vec::new();
    for number in 0..3000 {
        let mut found = (0, 0);
        costs.push(work(&mut || found = set(number, 10)));
        assert_eq!(found, (number * 10, number * 19));
        if number % 500 == 0 {
            // Other changes of the file come between; they cost one look at all.
            store.update(ino, None, |_| Queue::No).unwrap();
        }
    }
    let mut sorted = costs.clone();
    sorted.sort_unstable();
    assert_eq!(sorted[2900], costs[2], "the last of {} and the first", costs.len());
    // One that is there already does not count, and one that is removed counts no more.
    assert_eq!(set(5, 100), (2999 * 10, 2999 * 19));
    assert_eq!(set(6, 10), (2999 * 10, 2999 * 19 + 90));
    store.xattr_remove(ino, b"user.0005", NOW).unwrap();
    assert_eq!(set(6, 10), (2998 * 10, 2998 * 19));
    assert_eq!(store.xattr_all(ino).unwrap().len(), 2999);
}

/// Two directories, each of which has a name of every file, that are imported at the same time.
fn find_names_at_a_time(stores: [&MetaStore; 2]) {
    let dirs = ["one", "other"].map(|name| {
        let new = NewInode::new(FileKind::Directory, 0o755, 0, 0);
        stores[0].create(Ino::ROOT, name.as_bytes(), new, NOW).unwrap().ino
    });
    for round in 0..300_u64 {
        let name = format!("file{round}").into_bytes();
        let print = Fingerprint {
            size: 7,
            mtime: NOW,
            ctime: NOW,
            ino: 1000 + round,
            ..Fingerprint::default()
        };
        let begin = std::sync::Barrier::new(2);
        std::thread::scope(|threads| {
            for (dir, store) in dirs.into_iter().zip(stores) {
                let (begin, name) = (&begin, &name);
                threads.spawn(move || {
                    let attr = Attr {
                        kind: FileKind::Regular,
                        perm: 0o600,
                        uid: 1,
                        gid: 2,
                        nlink: 2,
                        rdev: 0,
                        size: 7,
                        atime: NOW,
                        mtime: NOW,
                        ctime: NOW,
                        btime: NOW,
                    };
                    let name = name.clone().into();
                    let found = Found { name, attr, target: None, fingerprint: print };
                    begin.wait();
                    store.import(dir, &[found]).unwrap();
                });
            }
        });
        let [one, other] = dirs.map(|dir| stores[0].lookup(dir, &name).unwrap().unwrap());
        assert_eq!(one.ino, other.ino, "round {round}");
        assert_eq!(stores[0].get_now(one.ino).unwrap().links.len(), 2);
    }
}

/// The daemon looks a name up while a listing finds the other one.
#[test]
fn names_of_one_file_when_found_at_a_time_in_two_directories_then_names_of_one_inode() {
    let store = MetaStore::open(Box::new(Memory::new()), &Options::default()).unwrap();
    find_names_at_a_time([&store, &store]);
}

#[test]
fn names_of_one_file_when_two_nodes_find_them_at_a_time_then_names_of_one_inode() {
    let engine = Arc::new(Memory::partitioned());
    let stores = ["one", "other"].map(|id| {
        let node = Some(NodeName { id: id.into(), address: "here".into() });
        let options = Options { node, ..Options::default() };
        MetaStore::open(Box::new(engine.clone()), &options).unwrap()
    });
    find_names_at_a_time([&stores[0], &stores[1]]);
}
