//! Directories with many entries: split while others use them, by processes that die at any step.

mod linearize;
mod servers;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_meta::{
    Attr, BytesHere, Engine, EngineError, Error, FileKind, Fingerprint, Found, Ino, Key, Link,
    Memory, MetaStore, MiniTransaction, NameIn, NewInode, Options, Outcome, Page, Queue, Record,
    RedisOptions, RenameFlags, Spanning, Stamp, Timestamp, Write,
};
use linearize::{Event, Op, is_linearizable};
use servers::Servers;

const NOW: Timestamp = Timestamp { sec: 7, nsec: 0 };
const ABOVE: u64 = 32;

/// One process's way to an engine that several share: counts its requests, and dies after some.
/// Nothing that is cached is believed.
struct Process {
    engine: Arc<Memory>,
    requests: AtomicU64,
    left: AtomicI64,
    /// The last one takes effect, but its caller gets no answer.
    half: bool,
}

impl Process {
    fn new(engine: &Arc<Memory>) -> Arc<Self> {
        Self::dying(engine, false)
    }

    fn dying(engine: &Arc<Memory>, half: bool) -> Arc<Self> {
        let (requests, left) = (AtomicU64::new(0), AtomicI64::new(i64::MAX));
        Arc::new(Process { engine: engine.clone(), requests, left, half })
    }

    fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }
}

fn dead() -> EngineError {
    EngineError::Unknown { reason: "the process died".into() }
}

impl Engine for Process {
    fn execute(&self, transaction: &MiniTransaction) -> Result<Outcome, EngineError> {
        self.requests.fetch_add(1, Ordering::SeqCst);
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
    ) -> Result<Page, EngineError> {
        self.engine.scan(partition, prefix, after, limit)
    }

    fn sweep(&self, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Vec<u8>)>, EngineError> {
        self.engine.sweep(after, limit)
    }

    fn spans_partitions(&self) -> bool {
        false
    }

    fn sync(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn watch(&self, _: u16) -> Option<Stamp> {
        None
    }
}

fn options() -> Options {
    Options { split_above: ABOVE, ..Options::default() }
}

fn join(process: &Arc<Process>) -> MetaStore {
    // Others give up at once what stands still.
    let engine = Spanning::new(process.clone(), Duration::ZERO).unwrap();
    MetaStore::open(Box::new(engine), &options()).unwrap()
}

fn open(engine: &Arc<Memory>) -> MetaStore {
    join(&Process::new(engine))
}

fn file() -> NewInode {
    NewInode::new(FileKind::Regular, 0o644, 1, 1)
}

fn mkdir(store: &MetaStore, dir: Ino, name: &str) -> Ino {
    let new = NewInode::new(FileKind::Directory, 0o755, 1, 1);
    store.create(dir, name.as_bytes(), new, NOW).unwrap().ino
}

fn create(store: &MetaStore, dir: Ino, name: &str) -> Ino {
    store.create(dir, name.as_bytes(), file(), NOW).unwrap().ino
}

fn make<'a>(store: &MetaStore, dir: Ino, names: impl IntoIterator<Item = &'a String>) {
    for name in names {
        create(store, dir, name);
    }
}

/// Creates files until the directory is split, and a few more.
fn fill(store: &MetaStore, dir: Ino) -> BTreeSet<String> {
    let names: BTreeSet<String> = (0..2 * ABOVE).map(|n| format!("file-{n}")).collect();
    make(store, dir, &names);
    assert!(partitions(store, dir) > 8, "it is split");
    names
}

/// In how many partitions there are inodes that are listed in a directory.
fn partitions(store: &MetaStore, dir: Ino) -> usize {
    let files = store.entries(dir, 0, usize::MAX).unwrap();
    files.iter().map(|entry| entry.ino.partition()).collect::<BTreeSet<_>>().len()
}

fn listed(store: &MetaStore, dir: Ino, limit: usize) -> Vec<String> {
    let (mut names, mut after) = (Vec::new(), 0);
    loop {
        let page = store.entries(dir, after, limit).unwrap();
        let Some(last) = page.last() else { return names };
        after = last.cursor;
        names.extend(page.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()));
    }
}

fn set(names: Vec<String>) -> BTreeSet<String> {
    let count = names.len();
    let set = BTreeSet::from_iter(names);
    assert_eq!(set.len(), count, "no name twice");
    set
}

fn clean(store: &MetaStore) {
    let report = store.check(false).unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

fn reconcile(store: &MetaStore, ino: Ino) {
    let seen = store.get(ino).unwrap();
    let all = |record: &mut Record| {
        record.backing.links = seen.links.clone();
        record.backing.attrs_differ = false;
    };
    assert!(!store.reconciled(ino, seen.change, all).unwrap());
}

#[test]
fn directory_when_it_becomes_large_then_its_entries_are_spread_and_stay_what_they_are() {
    let engine = Arc::new(Memory::partitioned());
    let store = open(&engine);
    let dir = mkdir(&store, Ino::ROOT, "d");
    let few: BTreeSet<String> = (0..ABOVE - 1).map(|n| format!("file-{n}")).collect();
    make(&store, dir, &few);
    assert_eq!(partitions(&store, dir), 1);
    let before = store.entries(dir, 0, usize::MAX).unwrap();
    let names: BTreeSet<String> = (0..4 * ABOVE).map(|n| format!("file-{n}")).collect();
    make(&store, dir, names.difference(&few));
    assert!(partitions(&store, dir) > 8);
    for limit in [1, 7, usize::MAX] {
        assert_eq!(set(listed(&store, dir, limit)), names);
    }
    // What was there has its number and its cursor.
    let after = store.entries_plus(dir, 0, usize::MAX).unwrap();
    assert!(after.is_sorted_by_key(|found| found.entry.cursor));
    for entry in &before {
        let found = after.iter().find(|found| found.entry.name == entry.name).unwrap();
        assert_eq!(found.entry, *entry);
    }
    let fresh = open(&engine);
    for name in &names {
        let record = fresh.lookup(dir, name.as_bytes()).unwrap().unwrap();
        assert_eq!(fresh.lookup_now(dir, name.as_bytes()).unwrap().unwrap(), record);
    }
    assert!(fresh.lookup(dir, b"none").unwrap().is_none());
    assert!(fresh.lookup_now(dir, b"none").unwrap().is_none());
    clean(&fresh);
    names.iter().for_each(|name| drop(fresh.unlink(dir, name.as_bytes(), NOW, false).unwrap()));
    assert!(fresh.is_empty(dir).unwrap());
    fresh.rmdir(Ino::ROOT, b"d", NOW, false).unwrap();
    let Err(error) = store.create(dir, b"late", file(), NOW) else { panic!("it is gone") };
    assert!(matches!(error, Error::NotFound | Error::Stale(_)), "{error}");
    clean(&store);
    let left = engine.sweep(None, usize::MAX).unwrap();
    let of_directory = |key: &Key| key.bytes().get(1..9) == Some(&dir.0.to_be_bytes());
    assert!(!left.iter().any(|(key, _)| of_directory(key)), "nothing is left of it");
}

#[test]
fn file_of_a_split_directory_when_made_found_looked_at_and_removed_then_one_round_trip_each() {
    let engine = Arc::new(Memory::partitioned());
    let process = Process::new(&engine);
    let store = join(&process);
    let dir = mkdir(&store, Ino::ROOT, "d");
    for split in [false, true] {
        if split {
            fill(&store, dir);
        }
        create(&store, dir, "first");
        let cost = |operation: &dyn Fn()| {
            let before = process.requests();
            operation();
            process.requests() - before
        };
        assert_eq!(cost(&|| make(&store, dir, [&"a".to_string()])), 1);
        assert_eq!(cost(&|| assert!(store.lookup_now(dir, b"a").unwrap().is_some())), 1);
        assert_eq!(cost(&|| assert!(store.lookup_now(dir, b"none").unwrap().is_none())), 1);
        let ino = store.lookup(dir, b"a").unwrap().unwrap().ino;
        assert_eq!(cost(&|| drop(store.get(ino).unwrap())), 1);
        assert_eq!(cost(&|| drop(store.unlink(dir, b"a", NOW, false).unwrap())), 1);
        // Also of a file that the backing store has: what is left there is noted beside it.
        let ino = create(&store, dir, "b");
        reconcile(&store, ino);
        assert_eq!(cost(&|| drop(store.unlink(dir, b"b", NOW, false).unwrap())), 1);
        assert_eq!(store.stale_names(dir).unwrap(), [(b"b".as_slice().into(), ino)]);
        assert_eq!(store.stale_inodes_at(dir, b"b").unwrap(), [ino]);
        reconcile(&store, ino);
        assert!(store.stale_names(dir).unwrap().is_empty());
        store.unlink(dir, b"first", NOW, false).unwrap();
    }
    clean(&store);
}

#[test]
fn creators_in_several_processes_then_take_one_round_trip_each_before_and_after_a_split() {
    let engine = Arc::new(Memory::partitioned());
    let processes = [(); 4].map(|()| Process::new(&engine));
    let stores = processes.each_ref().map(join);
    let dir = mkdir(&stores[0], Ino::ROOT, "d");
    for split in [false, true] {
        if split {
            fill(&stores[0], dir);
        }
        for (number, store) in stores.iter().enumerate() {
            create(store, dir, &format!("first-{number}-{split}"));
        }
        let before: u64 = processes.iter().map(|process| process.requests()).sum();
        for n in 0..4 {
            for (number, store) in stores.iter().enumerate() {
                create(store, dir, &format!("{split}-{number}-{n}"));
            }
        }
        let after: u64 = processes.iter().map(|process| process.requests()).sum();
        // Every other creation looks whether the directory is to be split: with so small ones.
        let looks = if split { 0 } else { 8 };
        assert_eq!(after - before, 16 + looks);
    }
    clean(&stores[0]);
}

#[test]
fn count_of_subdirectories_when_a_process_believes_an_old_one_then_stays_right() {
    let engine = Arc::new(Memory::partitioned());
    let (one, two) = (open(&engine), open(&engine));
    let dir = mkdir(&one, Ino::ROOT, "dir");
    // From now on the second process has the record in which there is no subdirectory.
    create(&two, dir, "file");
    mkdir(&one, dir, "below");
    two.lookup(dir, b"below").unwrap();
    create(&two, dir, "another");
    two.rmdir(dir, b"below", NOW, false).unwrap();
    clean(&one);
    mkdir(&one, dir, "moving");
    create(&two, dir, "third");
    two.rename(
        NameIn::new(dir, b"moving"),
        NameIn::new(Ino::ROOT, b"moved"),
        RenameFlags::default(),
        NOW,
        &|_| false,
    )
    .unwrap();
    clean(&one);
}

#[test]
fn process_with_an_old_picture_of_a_directory_then_finds_and_changes_what_is_there() {
    let engine = Arc::new(Memory::partitioned());
    let (one, two) = (open(&engine), open(&engine));
    let dir = mkdir(&one, Ino::ROOT, "d");
    create(&one, dir, "old");
    // Each has looked at the directory before it was split by the other.
    let stale = || {
        let fresh = open(&engine);
        fresh.lookup(Ino::ROOT, b"d").unwrap().unwrap();
        fresh.entries(dir, 0, 10).unwrap();
        fresh
    };
    let late = [(); 8].map(|()| stale());
    assert_eq!(two.lookup(dir, b"old").unwrap().unwrap().links.len(), 1);
    let names = fill(&one, dir);
    assert!(two.lookup(dir, b"old").unwrap().is_some());
    assert!(late[0].lookup_now(dir, b"old").unwrap().is_some());
    assert_eq!(late[1].entries(dir, 0, usize::MAX).unwrap().len(), names.len() + 1);
    create(&late[2], dir, "new");
    late[3].unlink(dir, b"old", NOW, false).unwrap();
    let flags = RenameFlags::default();
    let renamed = late[4]
        .rename(NameIn::new(dir, b"new"), NameIn::new(dir, b"newer"), flags, NOW, &|_| false)
        .unwrap();
    late[5].link(renamed.moved.ino, dir, b"newest", NOW).unwrap();
    assert!(matches!(late[6].create(dir, b"newest", file(), NOW), Err(Error::Exists)));
    assert!(matches!(late[7].rmdir(Ino::ROOT, b"d", NOW, false), Err(Error::NotEmpty)));
    let found = one.lookup(dir, b"newest").unwrap().unwrap();
    assert_eq!(found.attr.nlink, 2);
    clean(&one);
}

/// A worker has claimed names in a directory that goes before it has its turn: it never was below.
fn with_names_in_a_split_directory_that_is_gone(store: &MetaStore) -> (Ino, Vec<(String, Ino)>) {
    let dir = mkdir(store, Ino::ROOT, "d");
    let claim = |name: String| {
        let ino = store.lookup(dir, name.as_bytes()).unwrap().unwrap().ino;
        store.claim(ino, &Link::new(dir, name.as_bytes())).unwrap();
        store.unlink(dir, name.as_bytes(), NOW, false).unwrap();
        (name, ino)
    };
    let claimed = fill(store, dir).into_iter().map(claim).collect();
    store.rmdir(Ino::ROOT, b"d", NOW, false).unwrap();
    assert!(matches!(store.get(dir), Err(Error::Stale(_))), "it has a record");
    (dir, claimed)
}

#[test]
fn stale_names_when_their_split_directory_has_no_record_any_more_then_are_found_and_leave_nothing()
{
    let engine = Arc::new(Memory::partitioned());
    let store = open(&engine);
    let (dir, claimed) = with_names_in_a_split_directory_that_is_gone(&store);
    // Also by who has never heard of the directory.
    for store in [&store, &open(&engine)] {
        clean(store);
        assert_eq!(store.stale_names(dir).unwrap().len(), claimed.len());
        for (name, ino) in &claimed {
            assert_eq!(store.stale_inodes_at(dir, name.as_bytes()).unwrap(), [*ino], "{name}");
        }
    }
    claimed.iter().for_each(|(_, ino)| reconcile(&store, *ino));
    assert!(store.stale_names(dir).unwrap().is_empty());
    assert_eq!(store.counts().stale_names, 0);
    clean(&store);
    let left = engine.sweep(None, usize::MAX).unwrap();
    let of_directory = |key: &Key| key.bytes().get(1..9) == Some(&dir.0.to_be_bytes());
    assert!(!left.iter().any(|(key, _)| of_directory(key)), "something is left of it");
}

#[test]
fn stale_names_when_their_directory_goes_while_another_process_believes_it_whole_then_are_found() {
    let engine = Arc::new(Memory::partitioned());
    let (one, two) = (open(&engine), open(&engine));
    let dir = mkdir(&one, Ino::ROOT, "d");
    two.lookup(Ino::ROOT, b"d").unwrap().unwrap();
    let ino = create(&two, dir, "here");
    two.claim(ino, &Link::new(dir, *b"here")).unwrap();
    let names = fill(&one, dir);
    names.iter().for_each(|name| drop(one.unlink(dir, name.as_bytes(), NOW, false).unwrap()));
    one.unlink(dir, b"here", NOW, false).unwrap();
    one.rmdir(Ino::ROOT, b"d", NOW, false).unwrap();
    assert_eq!(two.stale_inodes_at(dir, b"here").unwrap(), [ino]);
    assert_eq!(two.stale_names(dir).unwrap().len(), 1);
    reconcile(&two, ino);
    clean(&one);
}

#[test]
fn split_directory_when_its_record_is_lost_then_the_check_finds_its_files_and_ends_clean() {
    let engine = Arc::new(Memory::partitioned());
    let store = open(&engine);
    let dir = mkdir(&store, Ino::ROOT, "d");
    let names = fill(&store, dir);
    let record = engine.sweep(None, usize::MAX).unwrap().into_iter().map(|(key, _)| key);
    let number = dir.0.to_be_bytes();
    let is_record = |key: &Key| key.bytes()[0] == b'I' && key.bytes()[1..] == number;
    let write = record.filter(is_record).map(Write::Delete).collect();
    engine.execute(&MiniTransaction { write, ..MiniTransaction::default() }).unwrap();
    let store = open(&engine);
    assert!(!store.check(true).unwrap().is_clean());
    clean(&store);
    let found = listed(&store, Ino::ROOT, 1000);
    for name in &names {
        let is_it = |found: &&String| found.starts_with(&format!("{name}.forebay-recovered-"));
        assert_eq!(found.iter().filter(is_it).count(), 1, "{name} in {found:?}");
    }
}

#[test]
fn directory_when_a_process_dies_at_any_step_of_its_split_then_nothing_is_lost_and_others_go_on() {
    let mut deaths = 0;
    for half in [false, true] {
        for step in 0.. {
            let engine = Arc::new(Memory::partitioned());
            let store = open(&engine);
            let dir = mkdir(&store, Ino::ROOT, "d");
            let gone = create(&store, dir, "gone");
            reconcile(&store, gone);
            store.unlink(dir, b"gone", NOW, false).unwrap();
            let mut names: BTreeSet<String> = (0..ABOVE).map(|n| format!("n{n}")).collect();
            make(&store, dir, &names);
            let dying = Process::dying(&engine, half);
            let splitter = join(&dying);
            splitter.lookup(Ino::ROOT, b"d").unwrap();
            splitter.create(dir, b"one-more", file(), NOW).unwrap();
            names.insert("one-more".into());
            dying.left.store(step, Ordering::SeqCst);
            let second = splitter.create(dir, b"and-another", file(), NOW);
            let died = dying.left.load(Ordering::SeqCst) < 0;
            assert!(second.is_ok() || step <= 1, "the entry is made before the split begins");
            drop(splitter);

            let observer = open(&engine);
            if observer.lookup(dir, b"and-another").unwrap().is_some() {
                names.insert("and-another".into());
            }
            assert_eq!(set(listed(&observer, dir, 5)), names);
            assert_eq!(observer.stale_names(dir).unwrap(), [(b"gone".as_slice().into(), gone)]);
            // Half of the time the check finishes it, else whoever comes next.
            if step % 2 == 0 {
                clean(&observer);
            }
            create(&observer, dir, "late");
            names.insert("late".into());
            observer.unlink(dir, b"n0", NOW, false).unwrap();
            names.remove("n0");
            reconcile(&observer, gone);
            assert!(observer.stale_names(dir).unwrap().is_empty());
            assert_eq!(set(listed(&observer, dir, 5)), names);
            clean(&observer);
            let left = engine.sweep(None, usize::MAX).unwrap();
            assert!(left.iter().all(|(key, _)| ![0, b'P'].contains(&key.bytes()[0])), "litter");
            deaths += 1;
            if !died {
                break;
            }
        }
    }
    assert!(deaths > 60, "only {deaths}");
}

#[test]
fn listing_when_the_directory_is_split_meanwhile_then_what_stays_comes_once() {
    let engine = Arc::new(Memory::partitioned());
    let (one, two) = (open(&engine), open(&engine));
    let dir = mkdir(&one, Ino::ROOT, "d");
    let stay: BTreeSet<String> = (0..ABOVE - 2).map(|n| format!("stays-{n}")).collect();
    make(&one, dir, &stay);
    for split_after in [1, 5, 9] {
        let (mut names, mut after) = (Vec::new(), 0);
        for page in 0.. {
            if page == split_after {
                fill(&one, dir);
            }
            let found = two.entries(dir, after, 3).unwrap();
            let Some(last) = found.last() else { break };
            after = last.cursor;
            names.extend(found.iter().map(|e| String::from_utf8(e.name.to_vec()).unwrap()));
        }
        let seen = set(names);
        assert!(seen.is_superset(&stay));
        for n in 0..2 * ABOVE {
            one.unlink(dir, format!("file-{n}").as_bytes(), NOW, false).unwrap();
        }
    }
    clean(&two);
}

#[test]
fn times_of_a_split_directory_then_are_those_of_the_last_change_of_an_entry_or_those_set_since() {
    let engine = Arc::new(Memory::partitioned());
    let (one, two) = (open(&engine), open(&engine));
    let dir = mkdir(&one, Ino::ROOT, "d");
    let at = |sec| Timestamp::new(sec, 0);
    let times = |store: &MetaStore| {
        let record = store.with_times(store.get(dir).unwrap()).unwrap();
        (record.attr.mtime.sec, record.attr.ctime.sec)
    };
    for split in [false, true] {
        if split {
            fill(&one, dir);
        }
        let base = if split { 1000 } else { 100 };
        let name = format!("x{split}");
        one.create(dir, name.as_bytes(), file(), at(base)).unwrap();
        assert_eq!(times(&two), (base, base));
        two.unlink(dir, name.as_bytes(), at(base + 1), false).unwrap();
        assert_eq!(times(&one), (base + 1, base + 1));
        let chmod = |record: &mut Record| {
            record.attr.perm = 0o700;
            Queue::Yes
        };
        one.update(dir, Some(at(base + 2)), chmod).unwrap();
        assert_eq!(times(&two), (base + 1, base + 2));
        let utimes = |record: &mut Record| {
            record.attr.mtime = at(5);
            Queue::Yes
        };
        two.update(dir, Some(at(base + 3)), utimes).unwrap();
        assert_eq!(times(&one), (5, base + 3));
        one.create(dir, b"y", file(), at(base + 4)).unwrap();
        assert_eq!(times(&two), (base + 4, base + 4));
        one.unlink(dir, b"y", at(base + 5), false).unwrap();
        assert_eq!(two.get(dir).unwrap().attr.perm, 0o700);
    }
    clean(&one);
}

fn found(name: &str, kind: FileKind, number: u64) -> Found {
    let attr = Attr {
        kind,
        perm: 0o600,
        uid: 1,
        gid: 2,
        nlink: 1,
        rdev: 0,
        size: 7,
        atime: NOW,
        mtime: NOW,
        ctime: NOW,
        btime: NOW,
    };
    let fingerprint =
        Fingerprint { size: 7, mtime: NOW, ctime: NOW, ino: number, ..Default::default() };
    Found { name: name.as_bytes().into(), attr, target: None, fingerprint }
}

#[test]
fn large_directory_of_the_backing_store_when_imported_then_is_split_before() {
    let engine = Arc::new(Memory::partitioned());
    let store = open(&engine);
    let dir = mkdir(&store, Ino::ROOT, "d");
    create(&store, dir, "mine");
    let kind = |n| if n % 50 == 0 { FileKind::Directory } else { FileKind::Regular };
    let all: Vec<Found> = (0..600).map(|n| found(&format!("f{n}"), kind(n), 100 + n)).collect();
    assert_eq!(store.import(dir, &all).unwrap(), 600);
    assert_eq!(store.import_unless_listed(dir, &all).unwrap(), 0);
    assert!(partitions(&store, dir) > 16);
    let fingerprint = found("", FileKind::Directory, 99).fingerprint;
    assert_eq!(store.set_listed(dir, fingerprint).unwrap().attr.nlink, 14);
    assert_eq!(store.import_unless_listed(dir, &[found("late", FileKind::Regular, 9)]).unwrap(), 0);
    assert_eq!(store.entries_plus(dir, 0, usize::MAX).unwrap().len(), 601);
    // Its times are not those of the import.
    let record = store.with_times(store.get(dir).unwrap()).unwrap();
    assert_eq!(record.attr.mtime, NOW);
    clean(&store);
    // What others removed goes from every bucket.
    let sub = store.lookup(dir, b"f50").unwrap().unwrap().ino;
    let gone =
        store.vanished(dir, b"f50", sub, NOW, &|_| BytesHere::AsRecorded, &mut |_, _| {}).unwrap();
    assert_eq!(gone.removed, 1);
    let plain = store.lookup(dir, b"f51").unwrap().unwrap().ino;
    assert_eq!(
        store
            .vanished(dir, b"f51", plain, NOW, &|_| BytesHere::AsRecorded, &mut |_, _| {})
            .unwrap()
            .removed,
        1
    );
    assert_eq!(store.get(dir).unwrap().attr.nlink, 13);
    clean(&store);
}

/// A directory that others fill while it is removed, or replaced by a rename: either it goes, and
/// nothing can be created in it any more, or it stays with what was.
#[test]
fn directory_when_filled_and_removed_at_once_then_one_of_both_happens() {
    let engine = Arc::new(Memory::partitioned());
    let (one, two) = (open(&engine), open(&engine));
    let mut seen = [0; 2];
    for round in 0..240 {
        let (split, by_rename) = (round % 3 == 0, round % 2 == 0);
        let dir = mkdir(&one, Ino::ROOT, "victim");
        if split {
            for name in fill(&one, dir) {
                one.unlink(dir, name.as_bytes(), NOW, false).unwrap();
            }
        }
        mkdir(&one, Ino::ROOT, "other");
        two.lookup(Ino::ROOT, b"victim").unwrap().unwrap();
        let name = format!("late-{round}");
        let begun = std::sync::Barrier::new(2);
        let (removed, created) = std::thread::scope(|scope| {
            let creator = scope.spawn(|| {
                begun.wait();
                for _ in 0..round % 7 {
                    std::thread::yield_now();
                }
                two.create(dir, name.as_bytes(), file(), NOW).map(drop)
            });
            begun.wait();
            let flags = RenameFlags::default();
            let root = Ino::ROOT;
            let removed = match by_rename {
                true => one
                    .rename(
                        NameIn::new(root, b"other"),
                        NameIn::new(root, b"victim"),
                        flags,
                        NOW,
                        &|_| false,
                    )
                    .map(drop),
                false => one.rmdir(root, b"victim", NOW, false).map(drop),
            };
            (removed, creator.join().unwrap())
        });
        let fresh = open(&engine);
        match removed {
            Ok(()) => {
                let Err(error) = created else { panic!("round {round}: created in what is gone") };
                assert!(matches!(error, Error::NotFound | Error::Stale(_)), "{error}");
                seen[0] += 1;
            }
            Err(Error::NotEmpty) => {
                created.unwrap();
                assert!(fresh.lookup(dir, name.as_bytes()).unwrap().is_some());
                fresh.unlink(dir, name.as_bytes(), NOW, false).unwrap();
                seen[1] += 1;
            }
            Err(error) => panic!("round {round}: {error}"),
        }
        for name in [b"victim".as_slice(), b"other"] {
            match fresh.rmdir(Ino::ROOT, name, NOW, false) {
                Ok(_) | Err(Error::NotFound) => {}
                Err(error) => panic!("round {round}: {error}"),
            }
        }
    }
    clean(&one);
    assert!(seen[0] + seen[1] == 240, "{seen:?}");
}

#[test]
fn names_when_processes_fight_over_them_while_their_directory_is_split_then_are_linearizable() {
    const NAMES: u8 = 8;
    if !servers::installed() {
        return;
    }
    let servers = Servers::cluster(2, 0, &[]);
    let open = || {
        let engine = servers.open("t", &RedisOptions::default());
        MetaStore::open(Box::new(engine), &Options { split_above: 160, ..Options::default() })
            .unwrap()
    };
    let stores = [(); 3].map(|()| open());
    let dir = mkdir(&stores[0], Ino::ROOT, "d");
    let began = Instant::now();
    let now = || began.elapsed().as_nanos() as u64;
    let work = |store: &MetaStore, process: usize| {
        let mut history = Vec::new();
        for n in 0..150 {
            create(store, dir, &format!("filler-{process}-{n}"));
            let number = ((n * 7 + process * 3) % usize::from(NAMES)) as u8;
            let name = format!("fought-{number}");
            let begin = now();
            let op = match (n + process) % 3 {
                0 => match store.create(dir, name.as_bytes(), file(), NOW) {
                    Ok(record) => swap(number, 0, record.ino.0, true),
                    Err(Error::Exists) => swap(number, 0, 1, false),
                    Err(error) => panic!("{error}"),
                },
                1 => match store.unlink(dir, name.as_bytes(), NOW, false) {
                    Ok(done) => swap(number, done.record.ino.0, 0, true),
                    Err(Error::NotFound) => Op::Read(vec![(number, Some(0))]),
                    Err(error) => panic!("{error}"),
                },
                _ => {
                    let found = store.lookup_now(dir, name.as_bytes()).unwrap();
                    Op::Read(vec![(number, Some(found.map_or(0, |record| record.ino.0)))])
                }
            };
            history.push((number, Event { begin, end: Some(now()), op }));
        }
        history
    };
    let histories: Vec<(u8, Event)> = std::thread::scope(|scope| {
        let work = &work;
        let spawn = |(number, store)| scope.spawn(move || work(store, number));
        let threads: Vec<_> = stores.iter().enumerate().map(spawn).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    for number in 0..NAMES {
        // Before all, the name is not there.
        let absent = Op::Swap { key: number, from: None, to: 0, also: number, done: true };
        let mut events = vec![Event { begin: 0, end: Some(1), op: absent }];
        let of_name = histories.iter().filter(|(name, _)| *name == number);
        events.extend(of_name.map(|(_, event)| event.clone()));
        assert!(is_linearizable(&events), "{events:#?}");
    }
    let fresh = open();
    assert!(partitions(&fresh, dir) > 8, "it was split");
    let names = set(listed(&fresh, dir, 50));
    for process in 0..3 {
        assert!((0..150).all(|n| names.contains(&format!("filler-{process}-{n}"))));
    }
    clean(&fresh);
}

fn swap(key: u8, from: u64, to: u64, done: bool) -> Op {
    Op::Swap { key, from: Some(from), to, also: key, done }
}
