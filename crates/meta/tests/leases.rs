//! Leases of partitions: others see every change, nothing that was acknowledged is lost, and no
//! dead holder stands in the way for ever.

mod linearize;
mod servers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_meta::{
    Compare, Engine, EngineError, Error, Expect, FileKind, Ino, Key, LeaseObserver, LeaseOptions,
    Leased, MetaStore, MiniTransaction, NameIn, NewInode, Options, Outcome, RedisOptions,
    RenameFlags, Timestamp, Write,
};
use linearize::{Event, Op, is_linearizable};
use parking_lot::Mutex;
use servers::{Servers, eager, leased};

fn key(partition: u16, number: u32) -> Key {
    Key::new(partition, &[&b"k"[..], &number.to_be_bytes()].concat())
}

fn put(partition: u16, number: u32) -> MiniTransaction {
    let value = number.to_be_bytes().to_vec();
    MiniTransaction { write: vec![Write::Put(key(partition, number), value)], ..Default::default() }
}

/// Puts numbers in a range, one after the other.
fn put_all(engine: &dyn Engine, partition: u16, range: std::ops::Range<u32>) {
    for n in range {
        let done = engine.execute(&put(partition, n)).unwrap();
        assert_eq!(done, Outcome::Committed(vec![]));
    }
}

fn numbers(engine: &dyn Engine, partition: u16) -> Vec<u32> {
    let page = engine.scan(partition, b"k", None, usize::MAX).unwrap();
    let number = |key: &[u8]| u32::from_be_bytes(key[1..].try_into().unwrap());
    page.items.iter().map(|(key, _)| number(key)).collect()
}

#[test]
fn node_alone_in_a_partition_then_ships_in_batches_and_whoever_looks_sees_all() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::cluster(2, 0, &[]);
    let plain = servers.open("t", &RedisOptions::default());
    let timeout = Duration::from_secs(120);
    let engine = leased(&servers, "t", &LeaseOptions { timeout, ..LeaseOptions::default() });
    let before = engine.below().requests();
    put_all(&*engine, 7, 0..3000);
    assert_eq!(engine.held(), 1);
    let sent = engine.below().requests() - before;
    assert!(sent < 1500, "{sent} requests for 3000 changes");
    // Whoever looks gets the lease back, and all.
    let begun = Instant::now();
    assert_eq!(numbers(&plain, 7), (0..3000).collect::<Vec<_>>());
    assert!(begun.elapsed() < timeout / 2, "recalled, not broken");
    servers.wait("it knows that it has given the lease back", |_| engine.held() == 0);
    // It goes on, without a lease at first.
    put_all(&*engine, 7, 3000..3010);
    plain.execute(&put(7, 3010)).unwrap();
    assert_eq!(numbers(&*engine, 7), (0..=3010).collect::<Vec<_>>());
    // The end of the process gives all back.
    put_all(&*engine, 8, 0..100);
    assert_eq!(engine.held(), 1);
    drop(engine);
    let begun = Instant::now();
    assert_eq!(numbers(&plain, 8).len(), 100);
    assert!(begun.elapsed() < timeout / 2);
}

#[test]
fn partition_with_too_many_records_then_is_not_leased() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let engine = leased(&servers, "t", &LeaseOptions { records: 20, ..eager() });
    put_all(&*engine, 3, 0..1);
    assert_eq!(engine.held(), 1);
    let other = servers.open("t", &RedisOptions::default());
    put_all(&other, 3, 1..40);
    put_all(&*engine, 3, 40..60);
    assert_eq!(engine.held(), 0);
    assert_eq!(numbers(&*engine, 3).len(), 60);
}

#[test]
fn stamp_under_a_lease_then_stays_and_changes_with_its_end() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let engine = leased(&servers, "t", &eager());
    put_all(&*engine, 3, 0..2);
    let stamp = engine.watch(3).unwrap();
    put_all(&*engine, 3, 2..50);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(engine.watch(3), Some(stamp), "own changes make no difference");
    let other = servers.open("t", &RedisOptions::default());
    other.execute(&put(3, 50)).unwrap();
    assert_ne!(engine.watch(3), Some(stamp));
    let until = Instant::now() + Duration::from_secs(20);
    while engine.held() == 0 && Instant::now() < until {
        put_all(&*engine, 3, 51..53);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(engine.held() == 1 && engine.watch(3) != Some(stamp));
}

/// Several engines on some partitions, and what happened there.
struct Load {
    began: Instant,
    next: AtomicU64,
    stop: AtomicBool,
    histories: BTreeMap<u16, Mutex<Vec<Event>>>,
}

impl Load {
    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Works on one partition for a while, then on another.
    fn work(&self, engine: &dyn Engine, seed: usize) {
        let mut round = seed;
        // The search for an order takes long if there is much.
        while !self.stop.load(Ordering::SeqCst) && round < seed + 250 {
            let at = round / 9 % self.histories.len();
            let (partition, history) = self.histories.iter().nth(at).unwrap();
            let mut seen = None;
            for _ in 0..7 {
                round += 1;
                let (event, found) = self.one(engine, *partition, seen, round.is_multiple_of(4));
                history.lock().push(event);
                seen = found;
            }
            round += 2;
            std::thread::sleep(Duration::from_millis((round % 3) as u64));
        }
    }

    /// Reads, or swaps from what was seen; the event, and what is seen after it.
    fn one(
        &self,
        engine: &dyn Engine,
        partition: u16,
        seen: Option<u64>,
        only_read: bool,
    ) -> (Event, Option<u64>) {
        let [a, b] = [1u8, 2].map(|key| Key::new(partition, &[b'k', key]));
        let number = |value: &Option<Vec<u8>>| {
            value.as_ref().map(|bytes| u64::from_be_bytes(bytes.as_slice().try_into().unwrap()))
        };
        let mut transaction = MiniTransaction::reading(vec![a.clone(), b.clone()]);
        let to = self.next.fetch_add(1, Ordering::SeqCst);
        if !only_read {
            let from = seen.map(|value| value.to_be_bytes().to_vec());
            let expect = from.map_or(Expect::Absent, Expect::Value);
            transaction.compare.push(Compare { key: a.clone(), expect });
            let value = to.to_be_bytes().to_vec();
            transaction.write = vec![Write::Put(a.clone(), value.clone()), Write::Put(b, value)];
        }
        let begin = self.now();
        let answer = engine.execute(&transaction).unwrap();
        let end = Some(self.now());
        let (op, after) = match answer {
            Outcome::Committed(found) if only_read => {
                let found = [number(&found[0]), number(&found[1])];
                (Op::Read(vec![(1, found[0]), (2, found[1])]), found[0])
            }
            Outcome::Committed(_) => {
                (Op::Swap { key: 1, from: seen, to, also: 2, done: true }, Some(to))
            }
            Outcome::Conflict => {
                let Ok(Outcome::Committed(found)) =
                    engine.execute(&MiniTransaction::reading(vec![a]))
                else {
                    panic!("a read has no conflicts")
                };
                let op = Op::Swap { key: 1, from: seen, to, also: 2, done: false };
                (op, number(&found[0]))
            }
        };
        (Event { begin, end, op }, after)
    }
}

#[test]
fn concurrent_histories_of_engines_with_leases_and_without_then_are_linearizable() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::cluster(2, 0, &[]);
    let [one, two] = [(); 2].map(|()| leased(&servers, "t", &eager()));
    let plain = Arc::new(servers.open("t", &RedisOptions::default()));
    let engines: [Arc<dyn Engine>; 5] = [one.clone(), two.clone(), one, two, plain];
    let load = Load {
        began: Instant::now(),
        next: AtomicU64::new(1),
        stop: AtomicBool::new(false),
        histories: (1..6).map(|partition| (partition, Mutex::default())).collect(),
    };
    std::thread::scope(|scope| {
        for (seed, engine) in engines.iter().enumerate() {
            let load = &load;
            scope.spawn(move || load.work(&**engine, seed * 1000));
        }
        std::thread::sleep(Duration::from_millis(2500));
        load.stop.store(true, Ordering::SeqCst);
    });
    let mut events = 0;
    for (partition, history) in &load.histories {
        let history = history.lock();
        events += history.len();
        assert!(is_linearizable(&history), "partition {partition}: {history:#?}");
    }
    assert!(events > 200, "only {events}");
}

fn store(engine: Arc<Leased>) -> MetaStore {
    MetaStore::open(Box::new(engine), &Options::default()).unwrap()
}

const NOW: Timestamp = Timestamp { sec: 7, nsec: 0 };

fn new(kind: FileKind) -> NewInode {
    NewInode::new(kind, 0o755, 1, 1)
}

fn directory(store: &MetaStore, name: &[u8]) -> Ino {
    store.create(Ino::ROOT, name, new(FileKind::Directory), NOW).unwrap().ino
}

/// Changes of many kinds in two directories.
fn work_in(store: &MetaStore, dirs: &[Ino; 2], seed: usize) {
    let mut random = seed;
    for _ in 0..400 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040);
        let pick = random >> 33;
        // For a while in one, then in the other.
        let (from, to) = (dirs[pick % 8 / 7], dirs[pick / 8 % 8 / 7]);
        let name = |n: usize| format!("n{}", n % 7);
        let (a, b) = (name(pick / 64), name(pick / 448));
        let (a, b) = (a.as_bytes(), b.as_bytes());
        let kind =
            if (pick / 3136).is_multiple_of(4) { FileKind::Directory } else { FileKind::Regular };
        let done = match pick / 12_544 % 6 {
            0 | 1 => store.create(from, a, new(kind), NOW).map(drop),
            2 => store.unlink(from, a, NOW, false).map(drop),
            3 => store.rmdir(from, a, NOW, false).map(drop),
            4 => match store.lookup(from, a) {
                Ok(Some(found)) => store.link(found.ino, to, b, NOW).map(drop),
                other => other.map(drop),
            },
            _ => store
                .rename(
                    NameIn::new(from, a),
                    NameIn::new(to, b),
                    RenameFlags::default(),
                    NOW,
                    &|_| false,
                )
                .map(drop),
        };
        match done {
            Ok(()) | Err(Error::NotFound | Error::Exists | Error::NotEmpty) => {}
            Err(Error::IsDirectory | Error::NotDirectory | Error::Stale(_)) => {}
            Err(Error::NotPermitted(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn namespaces_with_leases_when_two_change_one_tree_then_it_stays_sound() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::cluster(3, 0, &[]);
    let [one, two] = [(); 2].map(|()| store(leased(&servers, "t", &eager())));
    let dirs = [directory(&one, b"a"), directory(&one, b"b")];
    let swapped = [dirs[1], dirs[0]];
    std::thread::scope(|scope| {
        scope.spawn(|| work_in(&one, &dirs, 1));
        scope.spawn(|| work_in(&two, &swapped, 2));
    });
    for dir in dirs {
        let names = |store: &MetaStore| {
            let entries = store.entries(dir, 0, usize::MAX).unwrap();
            entries.into_iter().map(|entry| (entry.name.to_vec(), entry.ino)).collect::<Vec<_>>()
        };
        assert_eq!(names(&one), names(&two));
    }
    let fresh =
        MetaStore::open(Box::new(servers.open("t", &RedisOptions::default())), &Options::default());
    let report = fresh.unwrap().check(false).unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

#[test]
fn files_of_a_namespace_when_made_in_a_directory_of_ones_own_then_cost_few_requests() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let engine = leased(&servers, "t", &LeaseOptions::default());
    let one = store(engine.clone());
    let dir = directory(&one, b"d");
    let before = engine.below().requests();
    for n in 0..1000 {
        let name = format!("file-{n}");
        let made = one.create(dir, name.as_bytes(), new(FileKind::Regular), NOW).unwrap();
        assert_eq!(one.lookup_now(dir, name.as_bytes()).unwrap().unwrap().ino, made.ino);
        assert!(one.lookup(dir, b"none").unwrap().is_none());
    }
    let requests = engine.below().requests() - before;
    assert!(requests < 600, "{requests} requests");
    assert_eq!(engine.held(), 1);
    assert_eq!(one.entries(dir, 0, usize::MAX).unwrap().len(), 1000);
    let two = store(leased(&servers, "t", &LeaseOptions::default()));
    assert_eq!(two.entries(dir, 0, usize::MAX).unwrap().len(), 1000);
    assert!(two.check(false).unwrap().is_clean());
}

#[test]
fn holder_when_dead_then_others_go_on_after_its_time_and_it_finds_out() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let state = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = LeaseOptions { journal: Some(state.path().to_path_buf()), ..eager() };
    let holder = leased(&servers, "t", &options);
    put_all(&*holder, 3, 0..1000);
    assert_eq!(holder.held(), 1);
    Arc::into_inner(holder).unwrap().die();
    let other = servers.open("t", &RedisOptions::default());
    let begun = Instant::now();
    let found = numbers(&other, 3);
    assert!((Duration::from_secs(2)..Duration::from_secs(12)).contains(&begun.elapsed()));
    let count = found.len() as u32;
    assert_eq!(found, (0..count).collect::<Vec<_>>(), "the beginning, without gaps");
    other.execute(&put(3, 5000)).unwrap();
    // What comes after that is refused, and kept for people.
    let back = leased(&servers, "t", &options);
    assert_eq!(numbers(&*back, 3).len() as u32, count + 1);
    let refused = state.path().join("refused");
    assert_eq!(refused.exists(), count < 1000);
    put_all(&*back, 3, 6000..6100);
    assert_eq!(back.held(), 1);
}

#[test]
fn holder_when_its_lease_was_broken_and_nobody_has_changed_anything_then_nothing_is_lost() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let state = tempfile::tempdir_in("/dev/shm").unwrap();
    let journal = Some(state.path().to_path_buf());
    let options = LeaseOptions { journal, timeout: Duration::from_secs(1), ..eager() };
    let holder = leased(&servers, "t", &options);
    put_all(&*holder, 3, 0..1000);
    Arc::into_inner(holder).unwrap().die();
    let other = servers.open("t", &RedisOptions::default());
    let seen = numbers(&other, 3).len() as u32;
    let back = leased(&servers, "t", &options);
    assert_eq!(numbers(&other, 3), (0..1000).collect::<Vec<_>>(), "{seen} were there before");
    put_all(&*back, 3, 1000..1010);
    assert_eq!(numbers(&other, 3).len(), 1010);
}

#[test]
fn process_when_it_dies_while_it_gives_a_lease_back_then_the_next_does_not_wait_for_it() {
    if !servers::installed() {
        return;
    }
    let mut servers = Servers::single(&["--appendonly", "yes", "--appendfsync", "always"]);
    let state = tempfile::tempdir_in("/dev/shm").unwrap();
    let timeout = Duration::from_secs(60);
    let journal = Some(state.path().to_path_buf());
    let options = LeaseOptions { journal, timeout, ..eager() };
    let give_up = Duration::from_secs(2);
    let below = Arc::new(servers.open("t", &RedisOptions { give_up, ..RedisOptions::default() }));
    servers.wait("changes are heard", |_| below.watch(3).is_some());
    let holder = Leased::open(below, options.clone()).unwrap();
    put_all(&holder, 3, 0..100);
    assert_eq!(holder.held(), 1);
    holder.sync().unwrap();
    // Its mark stays where it is, as its request to take it away finds nobody.
    servers.kill(0);
    holder.close();
    holder.die();
    servers.restart(0);
    let begun = Instant::now();
    let next = leased(&servers, "t", &options);
    put_all(&*next, 3, 100..110);
    let plain = servers.open("t", &RedisOptions::default());
    assert_eq!(numbers(&plain, 3), (0..110).collect::<Vec<_>>());
    assert!(begun.elapsed() < timeout / 2, "it waited for itself: {:?}", begun.elapsed());
    assert!(!state.path().join("refused").exists());
}

#[test]
fn holder_when_it_comes_back_in_time_then_all_that_it_acknowledged_is_there() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let state = tempfile::tempdir_in("/dev/shm").unwrap();
    let timeout = Duration::from_secs(60);
    let journal = Some(state.path().to_path_buf());
    let options = LeaseOptions { journal, timeout, ..eager() };
    for round in 0..4 {
        let holder = leased(&servers, "t", &options);
        for partition in [3, 4] {
            put_all(&*holder, partition, round * 500..(round + 1) * 500);
        }
        assert_eq!(holder.held(), 2);
        Arc::into_inner(holder).unwrap().die();
    }
    let back = leased(&servers, "t", &options);
    let begun = Instant::now();
    let other = servers.open("t", &RedisOptions::default());
    for partition in [3, 4] {
        assert_eq!(numbers(&other, partition), (0..2000).collect::<Vec<_>>());
        assert_eq!(numbers(&*back, partition).len(), 2000);
    }
    assert!(begun.elapsed() < timeout / 2, "nobody waited for the dead");
    assert!(!state.path().join("refused").exists());
}

#[test]
fn holder_when_cut_off_then_it_acknowledges_nothing_after_its_time() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let redis = RedisOptions {
        timeout: Duration::from_millis(200),
        give_up: Duration::from_millis(600),
        ..RedisOptions::default()
    };
    let below = Arc::new(servers.open("t", &redis));
    servers.wait("changes are heard", |_| below.watch(3).is_some());
    let options = LeaseOptions { timeout: Duration::from_secs(12), ..eager() };
    let engine = Leased::open(below, options).unwrap();
    put_all(&engine, 3, 0..10);
    assert_eq!(engine.held(), 1);
    servers.freeze(0, true);
    let begun = Instant::now();
    let mut acknowledged = 10;
    let error = loop {
        match engine.execute(&put(3, acknowledged)) {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(begun.elapsed() < Duration::from_secs(12), "it goes on for ever");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(matches!(error, EngineError::Unreachable { .. } | EngineError::Unknown { .. }));
    assert!(acknowledged > 10, "for a while it goes on");
    servers.freeze(0, false);
    servers.wait("it goes on", |_| engine.execute(&put(3, 10_000)).is_ok());
    let found = numbers(&engine, 3);
    assert!((0..acknowledged).all(|n| found.contains(&n)), "{acknowledged}: {found:?}");
}

#[test]
fn note_when_it_must_arrive_then_others_have_it_and_else_that_is_said() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let redis = RedisOptions {
        timeout: Duration::from_millis(200),
        give_up: Duration::from_millis(600),
        ..RedisOptions::default()
    };
    let below = Arc::new(servers.open("t", &redis));
    servers.wait("changes are heard", |_| below.watch(3).is_some());
    let options = LeaseOptions { timeout: Duration::from_secs(60), ..eager() };
    let engine = Leased::open(below, options).unwrap();
    put_all(&engine, 3, 0..10);
    assert_eq!(engine.held(), 1);
    servers.freeze(0, true);
    put_all(&engine, 3, 10..12);
    let error = engine.arrive(3).expect_err("nobody else has it");
    assert!(matches!(error, EngineError::Unknown { .. }), "{error}");
    servers.freeze(0, false);
    servers.wait("it arrives", |_| engine.arrive(3).is_ok());
    let requests = engine.below().requests();
    // There is nothing more to be waited for, nor where there is no lease.
    engine.arrive(3).unwrap();
    engine.arrive(4).unwrap();
    assert!(engine.below().requests() - requests < 3);
}

/// Somebody who lets go of leases when he is allowed to.
#[derive(Default)]
struct Holder {
    lets_go: AtomicBool,
    asked: Mutex<Vec<(u16, u64, bool)>>,
}

impl Holder {
    fn was_asked(&self, partition: u16, lease: u64, for_good: bool) -> bool {
        self.asked.lock().contains(&(partition, lease, for_good))
    }
}

impl LeaseObserver for Holder {
    fn let_go(&self, partition: u16, lease: u64, for_good: bool) -> bool {
        self.asked.lock().push((partition, lease, for_good));
        self.lets_go.load(Ordering::Acquire)
    }
}

#[test]
fn lease_when_others_rely_on_it_then_it_goes_when_they_have_let_go_and_serves_until_then() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let plain = servers.open("t", &RedisOptions::default());
    let engine = leased(&servers, "t", &LeaseOptions::default());
    let holder = Arc::new(Holder::default());
    engine.rely(holder.clone());
    assert_eq!(engine.tenure(7), None);
    put_all(&*engine, 7, 0..20);
    let tenure = engine.tenure(7).expect("it is leased");
    let limit = Duration::from_secs(8);
    assert!(tenure.left > Duration::from_secs(5) && tenure.left <= limit, "{tenure:?}");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| numbers(&plain, 7));
        servers.wait("it is asked", |_| holder.was_asked(7, tenure.lease, true));
        put_all(&*engine, 7, 20..40);
        assert!(engine.tenure(7).is_none(), "nobody is to rely on it any more");
        assert!(!reader.is_finished() && engine.held() == 1);
        holder.lets_go.store(true, Ordering::Release);
        assert_eq!(reader.join().unwrap(), (0..40).collect::<Vec<_>>());
    });
    servers.wait("the next one is taken", |_| {
        put_all(&*engine, 7, 0..10);
        engine.tenure(7).is_some()
    });
    assert!(engine.tenure(7).unwrap().lease > tenure.lease);
}

#[test]
fn holder_when_cut_off_then_those_who_rely_on_it_are_told_within_its_time() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let options = LeaseOptions { timeout: Duration::from_secs(12), ..eager() };
    let engine = leased(&servers, "t", &options);
    let holder = Arc::new(Holder::default());
    holder.lets_go.store(true, Ordering::Release);
    engine.rely(holder.clone());
    put_all(&*engine, 3, 0..10);
    let tenure = engine.tenure(3).expect("it is leased");
    // As long as somebody relies on it, it shows that it lives, used or not.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(
        engine.tenure(3).is_some_and(|now| now.lease == tenure.lease && now.left > tenure.left / 2)
    );
    assert!(holder.asked.lock().is_empty());
    servers.freeze(0, true);
    let begun = Instant::now();
    servers.wait("they are told", |_| holder.was_asked(3, tenure.lease, false));
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    assert_eq!(engine.tenure(3), None);
    servers.freeze(0, false);
    servers.wait("it goes on", |_| engine.tenure(3).is_some() || engine.held() == 0);
}

#[test]
fn process_when_it_dies_and_others_rely_on_its_leases_then_the_next_goes_on_with_them() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let state = tempfile::tempdir().unwrap();
    let options = LeaseOptions { journal: Some(state.path().to_path_buf()), ..eager() };
    let engine = leased(&servers, "t", &options);
    put_all(&*engine, 7, 0..300);
    Arc::into_inner(engine).unwrap().die();
    let begun = Instant::now();
    let next = leased(&servers, "t", &LeaseOptions { outlived: true, ..options });
    assert_eq!(next.held(), 1);
    put_all(&*next, 7, 300..320);
    assert!(next.tenure(7).is_some());
    // Two thirds of its timeout of three seconds: so long others may have been told before.
    let plain = servers.open("t", &RedisOptions::default());
    assert_eq!(numbers(&plain, 7), (0..320).collect::<Vec<_>>());
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(next.held(), 0);
}
