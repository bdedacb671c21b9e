//! The engine on Redis under whatever befalls a cluster: dead, hanging and restarted servers, slots
//! that move, lost replies, passwords and TLS.

mod linearize;
mod servers;

use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_meta::{
    Compare, Engine, EngineError, Error, Expect, FileKind, Ino, Key, MetaStore, MiniTransaction,
    NameIn, NewInode, Options, Outcome, Queue, Redis, RedisOptions, RenameFlags, Timestamp, Write,
};
use forebay_testing::wait_until;
use linearize::{Event, Op, is_linearizable};
use parking_lot::Mutex;
use servers::Servers;

fn put(partition: u16, key: &[u8], value: &[u8]) -> MiniTransaction {
    let write = vec![Write::Put(Key::new(partition, key), value.to_vec())];
    MiniTransaction { write, ..MiniTransaction::default() }
}

fn read(engine: &Redis, partition: u16, key: &[u8]) -> Option<Vec<u8>> {
    let read = MiniTransaction::reading(vec![Key::new(partition, key)]);
    match engine.execute(&read).unwrap() {
        Outcome::Committed(mut values) => values.pop().unwrap(),
        Outcome::Conflict => panic!("a read has no conflicts"),
    }
}

fn number(value: &Option<Vec<u8>>) -> Option<u64> {
    value.as_ref().map(|bytes| u64::from_be_bytes(bytes.as_slice().try_into().unwrap()))
}

/// Threads that read and swap, and what they were told.
struct Load {
    partitions: Vec<u16>,
    began: Instant,
    stop: AtomicBool,
    next: AtomicU64,
    unknown: AtomicU64,
    histories: Vec<Mutex<Vec<Event>>>,
}

impl Load {
    fn new(partitions: Vec<u16>) -> Self {
        let histories = partitions.iter().map(|_| Mutex::default()).collect();
        Load {
            partitions,
            began: Instant::now(),
            stop: AtomicBool::new(false),
            next: AtomicU64::new(1),
            unknown: AtomicU64::new(0),
            histories,
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// One thread's work: mostly swaps, from what it read last.
    fn work(&self, engine: &Redis, seed: usize, pause: Duration) {
        let mut seen = vec![None; self.partitions.len()];
        let mut round = seed;
        while !self.stop.load(Ordering::SeqCst) {
            round += 1;
            let at = round.wrapping_mul(2_654_435_761) / 7 % self.partitions.len();
            self.one(engine, at, &mut seen[at], round.is_multiple_of(3));
            std::thread::sleep(pause);
        }
    }

    fn one(&self, engine: &Redis, at: usize, seen: &mut Option<u64>, only_read: bool) {
        let [a, b] = [1u8, 2].map(|key| Key::new(self.partitions[at], &[key]));
        let mut transaction = MiniTransaction::reading(vec![a.clone(), b.clone()]);
        let to = self.next.fetch_add(1, Ordering::SeqCst);
        if !only_read {
            let from = seen.map(|value: u64| value.to_be_bytes().to_vec());
            let expect = from.map_or(Expect::Absent, Expect::Value);
            transaction.compare.push(Compare { key: a.clone(), expect });
            let value = to.to_be_bytes().to_vec();
            transaction.write = vec![Write::Put(a, value.clone()), Write::Put(b, value)];
        }
        let begin = self.now();
        let answer = engine.execute(&transaction);
        let end = Some(self.now());
        let swap = |done| Op::Swap { key: 1, from: *seen, to, also: 2, done };
        let event = match &answer {
            Ok(Outcome::Committed(found)) if only_read => {
                let found = vec![(1, number(&found[0])), (2, number(&found[1]))];
                Event { begin, end, op: Op::Read(found) }
            }
            Ok(outcome) => Event { begin, end, op: swap(*outcome != Outcome::Conflict) },
            Err(EngineError::Unknown { .. }) if !only_read => {
                self.unknown.fetch_add(1, Ordering::SeqCst);
                Event { begin, end: None, op: swap(true) }
            }
            // Nothing was changed, or nothing was to be.
            Err(EngineError::Unreachable { .. } | EngineError::Unknown { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        self.histories[at].lock().push(event);
        *seen = match answer {
            Ok(Outcome::Committed(found)) if only_read => number(&found[0]),
            Ok(Outcome::Committed(_)) => Some(to),
            _ => match engine
                .execute(&MiniTransaction::reading(vec![Key::new(self.partitions[at], &[1])]))
            {
                Ok(Outcome::Committed(found)) => number(&found[0]),
                _ => *seen,
            },
        };
    }

    /// Runs threads while `event` happens, until it is over, and judges.
    fn run(&self, engine: &Redis, threads: usize, pause: Duration, event: impl FnOnce()) -> usize {
        std::thread::scope(|scope| {
            for seed in 0..threads {
                scope.spawn(move || self.work(engine, seed * 1000, pause));
            }
            let stop = StopOnDrop(&self.stop);
            event();
            drop(stop);
        });
        let mut events = 0;
        for (partition, history) in self.partitions.iter().zip(&self.histories) {
            let history = history.lock();
            events += history.len();
            assert!(is_linearizable(&history), "partition {partition}: {history:#?}");
        }
        events
    }
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn sleep_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

#[test]
fn concurrent_histories_then_are_linearizable_in_every_partition() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::cluster(3, 0, &[]);
    let engine = servers.open("t", &RedisOptions::default());
    let load = Load::new(vec![1, 2, 3, 4, 5, 6]);
    let events = load.run(&engine, 6, Duration::from_micros(500), || sleep_ms(700));
    assert!(events > 500, "only {events}");
}

#[test]
fn primary_when_killed_under_load_then_a_replica_takes_over_and_no_answer_is_wrong() {
    if !servers::installed() {
        return;
    }
    let mut servers = Servers::cluster(3, 1, &[]);
    let options = RedisOptions {
        replicas: 1,
        confirm_within: Duration::from_millis(300),
        ..RedisOptions::default()
    };
    let engine = servers.open("t", &options);
    let load = Load::new((0..9).collect());
    let counts = || load.histories.iter().map(|history| history.lock().len()).collect::<Vec<_>>();
    let mut before = Vec::new();
    let events = load.run(&engine, 4, Duration::from_millis(4), || {
        sleep_ms(500);
        let victim = servers.owner(0);
        servers.kill(victim);
        servers.wait("a replica took over", |servers| servers.owner(0) != victim);
        // A primary without a replica can't confirm: the old one comes back as one.
        servers.restart(victim);
        servers.wait_ready(1);
        before = counts();
        sleep_ms(1500);
    });
    assert!(events > 300, "only {events}");
    let went_on = counts().iter().zip(&before).all(|(now, before)| now > before);
    assert!(went_on, "some partition stands still: {before:?}, then {:?}", counts());
}

#[test]
fn slot_when_it_moves_under_load_then_no_answer_is_wrong() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::cluster(2, 0, &[]);
    let engine = servers.open("t", &RedisOptions::default());
    let load = Load::new(vec![0, 1, 2]);
    let events = load.run(&engine, 4, Duration::from_millis(1), || {
        sleep_ms(200);
        for _ in 0..3 {
            move_slot(&servers, 1);
            sleep_ms(200);
        }
    });
    assert!(events > 300, "only {events}");
    assert_eq!(load.unknown.load(Ordering::SeqCst), 0, "a moving slot leaves nothing unknown");
}

/// Moves the slot of a partition to the other server, key by key and slowly.
fn move_slot(servers: &Servers, partition: u16) {
    let from = servers.owner(partition);
    let to = 1 - from;
    let ids = [0, 1].map(|at| servers.command(at, &["CLUSTER", "MYID"]));
    let slot = servers.command(0, &["CLUSTER", "KEYSLOT", &format!("{{{partition:04x}}}")]);
    servers.command(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[from]]);
    servers.command(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[to]]);
    sleep_ms(30);
    let port = servers.port(to).to_string();
    loop {
        let client = redis::Client::open(("127.0.0.1", servers.port(from))).unwrap();
        let mut connection = client.get_connection().unwrap();
        let keys: Vec<String> = redis::cmd("CLUSTER")
            .arg("GETKEYSINSLOT")
            .arg(&slot)
            .arg(1)
            .query(&mut connection)
            .unwrap();
        let Some(key) = keys.first() else { break };
        servers.command(from, &["MIGRATE", "127.0.0.1", &port, key, "0", "1000"]);
        sleep_ms(20);
    }
    for at in [to, from] {
        servers.command(at, &["CLUSTER", "SETSLOT", &slot, "NODE", &ids[to]]);
    }
}

#[test]
fn reply_when_it_is_lost_then_the_repeated_transaction_is_executed_once() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let proxy = Proxy::start(servers.port(0));
    let options = RedisOptions { timeout: Duration::from_millis(300), ..RedisOptions::default() };
    let engine = Redis::open(&format!("redis://127.0.0.1:{}/t", proxy.port), &options).unwrap();
    for n in 0..20u64 {
        let key = Key::new(3, b"n");
        let old = n.checked_sub(1).map(|old| old.to_be_bytes().to_vec());
        let transaction = MiniTransaction {
            compare: vec![Compare {
                key: key.clone(),
                expect: old.clone().map_or(Expect::Absent, Expect::Value),
            }],
            read: vec![key.clone()],
            write: vec![Write::Put(key, n.to_be_bytes().to_vec())],
        };
        let lost = proxy.lost.load(Ordering::SeqCst);
        proxy.swallow.store(true, Ordering::SeqCst);
        // Without the token the second attempt would meet the first one's value.
        assert_eq!(engine.execute(&transaction).unwrap(), Outcome::Committed(vec![old]));
        assert!(proxy.lost.load(Ordering::SeqCst) > lost, "no reply was lost");
    }
    assert_eq!(number(&read(&engine, 3, b"n")), Some(19));
}

/// Stands between client and server, and swallows a reply with its connection when told to.
struct Proxy {
    port: u16,
    swallow: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
}

impl Proxy {
    fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (swallow, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let proxy = Proxy { port, swallow: swallow.clone(), lost: lost.clone() };
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
                let (to_server, to_client) = (server.try_clone(), client.try_clone());
                std::thread::spawn(move || forward(client, to_server.unwrap(), |_| true));
                let (swallow, lost) = (swallow.clone(), lost.clone());
                let pass = move |bytes: &[u8]| {
                    // Only an answer to a transaction, not the cluster's heartbeat.
                    let wanted = bytes.starts_with(b"*");
                    let swallowed = wanted && swallow.swap(false, Ordering::SeqCst);
                    lost.fetch_add(u64::from(swallowed), Ordering::SeqCst);
                    !swallowed
                };
                std::thread::spawn(move || forward(server, to_client.unwrap(), pass));
            }
        });
        proxy
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, pass: impl Fn(&[u8]) -> bool) {
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if !pass(&buffer[..count]) || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}

#[test]
fn server_when_it_hangs_then_a_call_ends_in_time_as_unknown_and_later_ones_succeed() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let options = RedisOptions {
        timeout: Duration::from_millis(200),
        confirm_within: Duration::ZERO,
        give_up: Duration::from_millis(600),
        ..RedisOptions::default()
    };
    let engine = servers.open("t", &options);
    engine.execute(&put(1, b"a", b"1")).unwrap();
    servers.freeze(0, true);
    let begin = Instant::now();
    let answer = engine.execute(&put(1, b"a", b"2"));
    servers.freeze(0, false);
    assert!(matches!(answer, Err(EngineError::Unknown { .. })), "{answer:?}");
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    engine.execute(&put(1, b"a", b"3")).unwrap();
    assert_eq!(read(&engine, 1, b"a").unwrap(), b"3");
}

#[test]
fn server_when_down_then_a_call_says_that_nothing_was_changed() {
    if !servers::installed() {
        return;
    }
    let mut servers = Servers::single(&[]);
    let options = RedisOptions { give_up: Duration::from_millis(400), ..RedisOptions::default() };
    let engine = servers.open("t", &options);
    engine.execute(&put(1, b"a", b"1")).unwrap();
    servers.kill(0);
    // The first one may have met the dying connection.
    let _ = engine.execute(&put(1, b"a", b"2"));
    let answer = engine.execute(&put(1, b"a", b"3"));
    assert!(matches!(answer, Err(EngineError::Unreachable { .. })), "{answer:?}");
    servers.restart(0);
    assert_eq!(read(&engine, 1, b"a").unwrap(), b"1", "the log brings it back");
    let nobody = Redis::open("redis://127.0.0.1:1/t", &options);
    assert!(matches!(nobody, Err(EngineError::Unreachable { .. })));
}

#[test]
fn functions_when_they_are_gone_then_they_are_loaded_again() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let engine = servers.open("t", &RedisOptions::default());
    servers.command(0, &["FUNCTION", "FLUSH"]);
    engine.execute(&put(1, b"a", b"1")).unwrap();
    assert_eq!(read(&engine, 1, b"a").unwrap(), b"1");
}

#[test]
fn operations_then_take_one_round_trip_each() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::cluster(3, 0, &[]);
    let engine = servers.open("t", &RedisOptions::default());
    for partition in 0..50 {
        let before = engine.requests();
        let mut transaction = put(partition, b"a", b"1");
        let key = Key::new(partition, b"a");
        transaction.compare.push(Compare { key: key.clone(), expect: Expect::Absent });
        transaction.read.push(key);
        engine.execute(&transaction).unwrap();
        assert_eq!(engine.requests() - before, 1);
        engine.scan(partition, b"", None, 10).unwrap();
        assert_eq!(engine.requests() - before, 2);
        assert_eq!(read(&engine, partition, b"a").unwrap(), b"1");
        assert_eq!(engine.requests() - before, 3);
    }
}

#[test]
fn operations_on_files_of_a_namespace_then_take_one_round_trip_each() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::cluster(3, 0, &[]);
    let engine = Arc::new(servers.open("t", &RedisOptions::default()));
    let store = MetaStore::open(Box::new(engine.clone()), &Options::default()).unwrap();
    let now = Timestamp::new(1, 0);
    let new = |kind| NewInode::new(kind, 0o755, 1, 1);
    let dir = store.create(Ino::ROOT, b"d", new(FileKind::Directory), now).unwrap().ino;
    let cost = |operation: &dyn Fn()| {
        let before = engine.requests();
        operation();
        engine.requests() - before
    };
    let file =
        |name: &str| drop(store.create(dir, name.as_bytes(), new(FileKind::Regular), now).unwrap());
    file("a");
    assert_eq!(cost(&|| file("b")), 1);
    let ino = store.lookup(dir, b"b").unwrap().unwrap().ino;
    let change = || {
        drop(store.update(ino, Some(now), |record| {
            record.attr.perm = 0o600;
            Queue::Yes
        }));
    };
    assert_eq!(cost(&change), 1);
    assert_eq!(cost(&|| assert!(store.lookup(dir, b"none").unwrap().is_none())), 1);
    let flags = RenameFlags::default();
    let rename = || {
        drop(
            store
                .rename(NameIn::new(dir, b"b"), NameIn::new(dir, b"c"), flags, now, &|_| false)
                .unwrap(),
        );
    };
    // The new name is looked for first, then both names once more under their locks.
    assert!(cost(&rename) <= 4);
    assert_eq!(cost(&|| drop(store.unlink(dir, b"c", now, false).unwrap())), 1);
    // With nothing in the caches.
    drop(store);
    let store = MetaStore::open(Box::new(engine.clone()), &Options::default()).unwrap();
    wait_until("the partition is watched", || engine.watch(dir.partition()).is_some());
    assert_eq!(cost(&|| drop(store.get(dir).unwrap())), 1);
    assert_eq!(cost(&|| assert!(store.lookup(dir, b"a").unwrap().is_some())), 2);
    assert_eq!(cost(&|| drop(store.lookup(dir, b"a").unwrap())), 0);
    let report = store.check(false).unwrap();
    assert!(report.is_clean(), "{report:#?}");
    assert_eq!((report.inodes, report.entries), (3, 2));
    assert_eq!(store.backlog_len(), 2);
}

/// One process's share of the work in directories that two processes use.
fn work_in(store: &MetaStore, dirs: &[Ino; 2], seed: usize) {
    let mut random = seed;
    for n in 0..150 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040);
        let pick = random >> 33;
        let (from, to) = (dirs[pick % 2], dirs[pick / 2 % 2]);
        let name = |n: usize| format!("n{}", n % 7);
        let (a, b) = (name(pick / 4), name(pick / 28));
        let (a, b) = (a.as_bytes(), b.as_bytes());
        let kind =
            if (pick / 196).is_multiple_of(4) { FileKind::Directory } else { FileKind::Regular };
        let now = Timestamp::new(n, 0);
        let done = match pick / 800 % 5 {
            0 | 1 => store.create(from, a, NewInode::new(kind, 0o755, 1, 1), now).map(drop),
            2 => store.unlink(from, a, now, false).map(drop),
            3 => store.rmdir(from, a, now, false).map(drop),
            _ => store
                .rename(
                    NameIn::new(from, a),
                    NameIn::new(to, b),
                    RenameFlags::default(),
                    now,
                    &|_| false,
                )
                .map(drop),
        };
        match done {
            Ok(()) | Err(Error::NotFound | Error::Exists | Error::NotEmpty) => {}
            Err(Error::IsDirectory | Error::NotDirectory | Error::Stale(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn processes_when_two_change_one_tree_then_it_stays_sound_and_each_sees_the_other() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::cluster(3, 0, &[]);
    let open = || {
        let engine = Arc::new(servers.open("t", &RedisOptions::default()));
        let store = MetaStore::open(Box::new(engine.clone()), &Options::default()).unwrap();
        (engine, store)
    };
    let ((one_engine, one), (two_engine, two)) = (open(), open());
    let now = Timestamp::new(1, 0);
    let dirs = [b"a", b"b"].map(|name| {
        one.create(Ino::ROOT, name, NewInode::new(FileKind::Directory, 0o755, 1, 1), now)
            .unwrap()
            .ino
    });
    std::thread::scope(|scope| {
        scope.spawn(|| work_in(&one, &dirs, 1));
        scope.spawn(|| work_in(&two, &dirs, 2));
    });
    let (_, fresh) = open();
    let report = fresh.check(false).unwrap();
    assert!(report.is_clean(), "{report:#?}");
    // What one has cached, it gives up when the other changes it.
    let file = one.create(dirs[0], b"shared", NewInode::new(FileKind::Regular, 0o644, 1, 1), now);
    let ino = file.unwrap().ino;
    for perm in [0o600, 0o640, 0o755] {
        wait_until("the partition is watched", || two_engine.watch(ino.partition()).is_some());
        sleep_ms(20);
        two.get(ino).unwrap();
        let before = two_engine.requests();
        two.get(ino).unwrap();
        assert_eq!(two_engine.requests(), before, "what nobody changes is cached");
        let change = |record: &mut forebay_meta::Record| {
            record.attr.perm = perm;
            Queue::Yes
        };
        one.update(ino, Some(now), change).unwrap();
        wait_until("the change is seen", || two.get(ino).unwrap().attr.perm == perm);
    }
    two.unlink(dirs[0], b"shared", now, false).unwrap();
    wait_until("the other one is seen", || one.lookup(dirs[0], b"shared").unwrap().is_none());
    assert!(one_engine.requests() > 100);
}

#[test]
fn names_of_file_systems_then_keep_them_apart() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let [one, two] = ["one", "two"].map(|name| servers.open(name, &RedisOptions::default()));
    one.execute(&put(1, b"a", b"1")).unwrap();
    assert_eq!(read(&two, 1, b"a"), None);
    assert_eq!(two.sweep(None, 10).unwrap(), []);
    assert_eq!(one.sweep(None, 10).unwrap().len(), 1);
}

#[test]
fn password_then_opens_and_a_wrong_one_is_refused() {
    if !servers::installed() {
        return;
    }
    let mut servers = Servers::single(&[]);
    servers.command(0, &["CONFIG", "SET", "requirepass", "se:cr@t"]);
    servers.password = Some("se:cr@t".to_string());
    let port = servers.port(0);
    let options = RedisOptions { give_up: Duration::from_secs(2), ..RedisOptions::default() };
    let open = |login: &str| Redis::open(&format!("redis://{login}127.0.0.1:{port}/t"), &options);
    let engine = open(":se:cr%40t@").unwrap();
    engine.execute(&put(1, b"a", b"1")).unwrap();
    wait_until("the partition is watched", || engine.watch(1).is_some());
    let user = ["ACL", "SETUSER", "fb", "on", ">word", "~fb*", "&*", "+@all"];
    servers.command(0, &user);
    open("fb:word@").unwrap().execute(&put(1, b"a", b"2")).unwrap();
    for wrong in ["", ":wrong@", "fb:wrong@", "nobody:word@"] {
        let refused = open(wrong).map(|_| ());
        assert!(matches!(refused, Err(EngineError::Refused { .. })), "{wrong}: {refused:?}");
    }
}

/// A certificate authority and a certificate of localhost, made by the command `openssl`.
fn certificates(servers: &std::path::Path) -> bool {
    let run = |words: &str| {
        let mut command = std::process::Command::new("openssl");
        command.args(words.split(' ')).current_dir(servers);
        command.output().is_ok_and(|output| output.status.success())
    };
    std::fs::write(servers.join("names"), "subjectAltName=IP:127.0.0.1,DNS:localhost").unwrap();
    run("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca")
        && run("req -newkey rsa:2048 -nodes -keyout key.pem -out csr.pem -subj /CN=localhost")
        && run("x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -out cert.pem \
                -days 2 -extfile names"
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .as_str())
}

#[test]
fn tls_then_encrypts_and_nobody_unknown_gets_in() {
    if !servers::installed() {
        return;
    }
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    if !certificates(directory.path()) {
        eprintln!("SKIPPED: the command openssl is not installed");
        return;
    }
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_string();
    let bytes = |name: &str| std::fs::read(directory.path().join(name)).unwrap();
    let mut servers = Servers::single(&[]);
    let tls_port = servers.unused_port();
    for (name, value) in [
        ("tls-cert-file", file("cert.pem")),
        ("tls-key-file", file("key.pem")),
        ("tls-ca-cert-file", file("ca.pem")),
        ("tls-port", tls_port.to_string()),
    ] {
        servers.command(0, &["CONFIG", "SET", name, &value]);
    }
    servers.tls = true;
    let address = format!("rediss://127.0.0.1:{tls_port}/t");
    let known = RedisOptions {
        tls_root: Some(bytes("ca.pem")),
        tls_client: Some((bytes("cert.pem"), bytes("key.pem"))),
        give_up: Duration::from_secs(2),
        ..RedisOptions::default()
    };
    let engine = Redis::open(&address, &known).unwrap();
    engine.execute(&put(1, b"a", b"1")).unwrap();
    assert_eq!(read(&engine, 1, b"a").unwrap(), b"1");
    wait_until("the partition is watched", || engine.watch(1).is_some());
    // A stranger to the server, a server that is a stranger, and no TLS at all.
    let without_certificate = RedisOptions { tls_client: None, ..known.clone() };
    let without_root = RedisOptions { tls_root: None, ..known.clone() };
    for (address, options) in [
        (&address, &without_certificate),
        (&address, &without_root),
        (&address.replace("rediss", "redis"), &known),
    ] {
        let refused = Redis::open(address, options).map(|_| ());
        assert!(refused.is_err(), "{address}");
    }
}

/// Reads through a cache that believes a value as long as its stamp is confirmed, while another
/// client counts: no value is believed for longer than the lease after a newer one was acknowledged.
struct CacheReader<'a> {
    engine: &'a Redis,
    partition: u16,
    cached: Option<(forebay_meta::Stamp, u64)>,
    hits: u64,
    misses: u64,
}

impl CacheReader<'_> {
    fn get(&mut self) -> Option<u64> {
        let stamp = self.engine.watch(self.partition);
        if let (Some(stamp), Some((then, value))) = (stamp, self.cached)
            && stamp == then
        {
            self.hits += 1;
            return Some(value);
        }
        self.misses += 1;
        let key = MiniTransaction::reading(vec![Key::new(self.partition, b"n")]);
        let Ok(Outcome::Committed(found)) = self.engine.execute(&key) else { return None };
        let value = number(&found[0]).unwrap_or(0);
        self.cached = stamp.map(|stamp| (stamp, value));
        Some(value)
    }
}

/// What a reader knows a partition by, when it watches it.
fn stamp_of(reader: &impl Engine) -> Option<forebay_meta::Stamp> {
    let mut stamp = None;
    wait_until("the partition is watched", || {
        stamp = reader.watch(0);
        stamp.is_some()
    });
    stamp
}

#[test]
fn cache_when_its_primary_dies_then_never_shows_what_is_older_than_the_lease() {
    if !servers::installed() {
        return;
    }
    let mut servers = Servers::cluster(3, 1, &[]);
    let options = RedisOptions {
        replicas: 1,
        confirm_within: Duration::from_millis(300),
        lease: Duration::from_millis(400),
        ..RedisOptions::default()
    };
    let (writer, reader) = (servers.open("t", &options), servers.open("t", &options));
    wait_until("the partition is watched", || {
        (0..100).all(|partition| reader.watch(partition).is_some())
    });
    // Every acknowledged value and when.
    let acknowledged = Mutex::new(vec![(Instant::now(), 0u64)]);
    let stop = AtomicBool::new(false);
    let victim = servers.owner(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1u64.. {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                if writer.execute(&put(0, b"n", &n.to_be_bytes())).is_ok() {
                    acknowledged.lock().push((Instant::now(), n));
                }
                // Pauses make hits possible.
                sleep_ms(if n % 4 == 0 { 60 } else { 3 });
            }
        });
        let check = scope.spawn(|| {
            let mut cache =
                CacheReader { engine: &reader, partition: 0, cached: None, hits: 0, misses: 0 };
            let grace = options.lease + Duration::from_millis(150);
            while !stop.load(Ordering::SeqCst) {
                let begin = Instant::now();
                let Some(value) = cache.get() else { continue };
                let acknowledged = acknowledged.lock();
                let old = acknowledged.iter().rev().find(|(when, _)| *when + grace < begin);
                assert!(old.is_none_or(|(_, least)| value >= *least), "{value} but {old:?}");
                drop(acknowledged);
                sleep_ms(1);
            }
            (cache.hits, cache.misses)
        });
        let stop = StopOnDrop(&stop);
        sleep_ms(700);
        servers.kill(victim);
        servers.wait("a replica took over", |servers| servers.owner(0) != victim);
        servers.restart(victim);
        servers.wait_ready(1);
        sleep_ms(1200);
        drop(stop);
        let (hits, misses) = check.join().unwrap();
        assert!(hits > 50 && misses > 20, "{hits} hits, {misses} misses");
    });
    // Where the replica took over, every change is told again, at once.
    wait_until("the partition is watched", || reader.watch(0).is_some());
    for n in 0..100u64 {
        // On a busy machine a lease may have run out.
        let stamp = stamp_of(&reader);
        writer.execute(&put(0, b"n", &n.to_be_bytes())).unwrap();
        wait_until("the change is heard of", || reader.watch(0) != stamp);
    }
    let others = (1..100).filter(|partition| servers.owner(*partition) != servers.owner(0));
    let other = others.into_iter().next().unwrap();
    let stamp = reader.watch(other).unwrap();
    writer.execute(&put(0, b"n", b"........")).unwrap();
    sleep_ms(50);
    assert_eq!(reader.watch(other), Some(stamp), "changes elsewhere cost nothing");
}
