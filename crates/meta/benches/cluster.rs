//! Creations per second on clusters of 1, 2 and 4 primaries, by 1, 4 and 24 threads of one process.
//!
//! `cargo bench -p forebay-meta --bench cluster -- [SECONDS]`
//!
//! Also the servers' processor time for each, which tells more than rates where clients and servers share cores.
//!
//! First transactions like a creation's, each in one partition, straight to the engine, and the
//! server's memory for each of their records; then creations in the namespace, each thread in a
//! directory of its own, without leases and with them; then by 1, 2 and 4 processes (each with a namespace and connections of its
//! own) in one directory, which is whole or split over partitions, and how many requests each
//! creation took. Clients and servers share the machine, whose cores limit both.

#[path = "../tests/servers/mod.rs"]
mod servers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_meta::{
    Compare, Engine, Expect, FileKind, Ino, Key, LeaseOptions, MetaStore, MiniTransaction,
    NewInode, Options, Outcome, Redis, RedisOptions, Timestamp, Write,
};
use servers::Servers;

fn main() {
    let seconds = std::env::args().filter_map(|word| word.parse().ok()).next().unwrap_or(2.0);
    if !servers::installed() {
        return;
    }
    for primaries in [1, 2, 4] {
        let servers = Servers::cluster(primaries, 0, &[]);
        for threads in [1, 4, 24] {
            let engine = servers.open(&format!("t{threads}"), &RedisOptions::default());
            measure(&servers, (primaries, threads), seconds, "engine", |thread, n| {
                create(&engine, thread, n);
            });
        }
        let kinds = [false, true].into_iter();
        for (leases, threads) in kinds.flat_map(|leases| [1, 4, 24].map(|n| (leases, n))) {
            let engine: Box<dyn Engine> = match leases {
                false => Box::new(servers.open(&format!("n{threads}"), &RedisOptions::default())),
                true => {
                    let name = format!("l{threads}");
                    Box::new(servers::leased(&servers, &name, &LeaseOptions::default()))
                }
            };
            let store = MetaStore::open(engine, &Options::default()).expect("opens");
            let new = |kind| NewInode::new(kind, 0o755, 1000, 1000);
            let what = if leases { "leases" } else { "namespace" };
            let now = |n| Timestamp::new(1_700_000_000, n as u32);
            let make = |name: &str| {
                store.create(Ino::ROOT, name.as_bytes(), new(FileKind::Directory), now(0))
            };
            let dirs: Vec<Ino> =
                (0..threads).map(|n| make(&format!("d{n}")).expect("mkdir").ino).collect();
            measure(&servers, (primaries, threads), seconds, what, |thread, n| {
                let name = format!("result-{n:08}.dat");
                let dir = dirs[thread as usize];
                store.create(dir, name.as_bytes(), new(FileKind::Regular), now(n)).expect("create");
            });
        }
        for split in [false, true] {
            for processes in [1, 2, 4] {
                one_directory(&servers, (primaries, processes), seconds, split);
            }
        }
    }
    memory();
}

/// Several processes that create in one directory.
fn one_directory(servers: &Servers, shape: (usize, u64), seconds: f64, split: bool) {
    let name = format!("o{}-{split}", shape.1);
    let split_above = if split { 64 } else { u64::MAX };
    let options = Options { split_above, ..Options::default() };
    let join = |_| {
        let engine = Arc::new(servers.open(&name, &RedisOptions::default()));
        let store = MetaStore::open(Box::new(engine.clone()), &options).expect("opens");
        (engine, store)
    };
    let processes: Vec<_> = (0..shape.1).map(join).collect();
    let new = |kind| NewInode::new(kind, 0o755, 1000, 1000);
    let now = |n| Timestamp::new(1_700_000_000, n as u32);
    let store = &processes[0].1;
    let dir = store.create(Ino::ROOT, b"d", new(FileKind::Directory), now(0)).expect("mkdir").ino;
    let create = |process: u64, n: u64| {
        let name = format!("result-{process}-{n:08}.dat");
        let store = &processes[process as usize].1;
        store.create(dir, name.as_bytes(), new(FileKind::Regular), now(n)).expect("create");
    };
    // Each has seen the directory as it is from here on.
    (0..100).for_each(|n| create(0, u64::MAX - n));
    (0..shape.1).for_each(|process| create(process, u64::MAX / 2));
    let requests = || processes.iter().map(|(engine, _)| engine.requests()).sum::<u64>();
    let made = AtomicU64::new(0);
    let before = requests();
    let what = if split { "one-split" } else { "one-whole" };
    measure(servers, shape, seconds, what, |process, n| {
        create(process, n);
        made.fetch_add(1, Ordering::Relaxed);
    });
    let each = (requests() - before) as f64 / made.load(Ordering::Relaxed) as f64;
    println!("{what:10} {each:.3} requests a creation");
}

/// Seconds of processor time that the servers have taken.
fn worked(servers: &Servers, count: usize) -> f64 {
    let field = |line: &str| -> Option<f64> {
        let (name, value) = line.split_once(':')?;
        let own = ["used_cpu_sys", "used_cpu_user"].contains(&name);
        own.then(|| value.trim().parse().ok())?
    };
    let of = |server| -> f64 {
        servers.command(server, &["INFO", "cpu"]).lines().filter_map(field).sum()
    };
    (0..count).map(of).sum()
}

fn measure(
    servers: &Servers,
    (primaries, threads): (usize, u64),
    seconds: f64,
    what: &str,
    create: impl Fn(u64, u64) + Sync,
) {
    let (done, begin) = (AtomicU64::new(0), Instant::now());
    let before = worked(servers, primaries);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (done, create) = (&done, &create);
            scope.spawn(move || {
                let mut n = 0;
                while begin.elapsed() < Duration::from_secs_f64(seconds) {
                    create(thread, n);
                    n += 1;
                }
                done.fetch_add(n, Ordering::Relaxed);
            });
        }
    });
    let done = done.load(Ordering::Relaxed) as f64;
    let rate = done / begin.elapsed().as_secs_f64();
    let each = threads as f64 / rate * 1e6;
    let cpu = (worked(servers, primaries) - before) / done * 1e6;
    println!(
        "{what:10} {primaries} primaries {threads:2} threads {rate:8.0}/s {each:7.0} us each \
         {cpu:6.1} us of the servers"
    );
}

/// As a creation: an entry that must not exist, a record, a mark, and the directory's record.
fn create(engine: &Redis, thread: u64, n: u64) {
    let partition = (thread * 7919 + n / 100) as u16;
    let key = |tag: u8, n: u64| Key::new(partition, &[&[tag][..], &n.to_be_bytes()].concat());
    let name = [b"D".as_slice(), &thread.to_be_bytes(), &n.to_be_bytes(), b"result.dat"].concat();
    let entry = Key::new(partition, &name);
    let transaction = MiniTransaction {
        compare: vec![Compare { key: entry.clone(), expect: Expect::Absent }],
        read: Vec::new(),
        write: vec![
            Write::Put(entry, vec![1; 12]),
            Write::Put(key(b'I', thread << 32 | n), vec![2; 150]),
            Write::Put(key(b'Q', thread << 32 | n), vec![3; 10]),
            Write::Put(key(b'I', u64::MAX), vec![4; 150]),
        ],
    };
    let outcome = engine.execute(&transaction).expect("the cluster answers");
    assert_ne!(outcome, Outcome::Conflict);
}

fn memory() {
    const RECORDS: u64 = 50_000;
    let servers = Servers::single(&[]);
    let engine = Arc::new(servers.open("m", &RedisOptions::default()));
    let used = || -> f64 {
        let info = servers.command(0, &["INFO", "memory"]);
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        line.and_then(|bytes| bytes.trim().parse().ok()).expect("INFO has it")
    };
    let before = used();
    for batch in 0..RECORDS / 100 {
        let write = |n| {
            let key = [b"I".as_slice(), &u64::to_be_bytes(n)].concat();
            Write::Put(Key::new((batch / 10) as u16, &key), vec![0; 150])
        };
        let write = (batch * 100..batch * 100 + 100).map(write).collect();
        let transaction = MiniTransaction { write, ..MiniTransaction::default() };
        engine.execute(&transaction).expect("the server answers");
    }
    let each = (used() - before) / RECORDS as f64;
    println!("memory: {each:.0} bytes for a key of 9 and a value of 150, 1000 in a partition");
}
