//! A process killed with -9 loses nothing that it acknowledged, on any engine.

mod servers;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use forebay_meta::{
    Embedded, EmbeddedOptions, FileKind, Ino, LeaseOptions, Leased, MetaStore, NameIn, NewInode,
    Options, Redis, RedisOptions, RenameFlags, Timestamp,
};
use servers::Servers;

const CHILD: &str = "FOREBAY_META_CRASH_CHILD";

/// Between the address of a cluster and the directory for the journal of leases.
const LEASES: &str = " with ";

/// `place` is a directory or the address of a cluster.
fn open(place: &str) -> MetaStore {
    if let Some((address, journal)) = place.split_once(LEASES) {
        let engine = Arc::new(Redis::open(address, &RedisOptions::default()).unwrap());
        let journal = Some(journal.into());
        let options = LeaseOptions { journal, ..LeaseOptions::default() };
        let engine = Leased::open(engine, options).unwrap();
        return MetaStore::open(Box::new(engine), &Options::default()).unwrap();
    }
    if place.starts_with("redis://") {
        let engine = Redis::open(place, &RedisOptions::default()).unwrap();
        return MetaStore::open(Box::new(engine), &Options::default()).unwrap();
    }
    let options = EmbeddedOptions { write_buffer_mib: 1, ..EmbeddedOptions::default() };
    let engine = Embedded::open(Path::new(place), &options).unwrap();
    MetaStore::open(Box::new(engine), &Options::default()).unwrap()
}

/// Where the process works.
fn directory(store: &MetaStore) -> Ino {
    match store.lookup(Ino::ROOT, b"dir").unwrap() {
        Some(found) => found.ino,
        None => {
            let new = NewInode::new(FileKind::Directory, 0o755, 0, 0);
            store.create(Ino::ROOT, b"dir", new, Timestamp::new(1, 0)).unwrap().ino
        }
    }
}

/// Not a test by itself: what the killed process does. Acknowledges each step on standard output.
#[test]
fn child_works_until_killed() {
    let Ok(place) = std::env::var(CHILD) else { return };
    let store = open(&place);
    let dir = directory(&store);
    let first = store.counts().inodes;
    let mut out = std::io::stdout();
    let now = Timestamp::new(1, 0);
    for n in first..first + 1_000_000 {
        let new = NewInode::new(FileKind::Regular, 0o644, 0, 0);
        store.create(dir, format!("file-{n}").as_bytes(), new, now).unwrap();
        writeln!(out, "created {n}").unwrap();
        if n % 3 == 0 {
            let (from, to) = (format!("file-{n}"), format!("moved-{n}"));
            let (from, to) = (from.as_bytes(), to.as_bytes());
            let flags = RenameFlags::default();
            store
                .rename(NameIn::new(dir, from), NameIn::new(dir, to), flags, now, &|_| false)
                .unwrap();
            writeln!(out, "moved {n}").unwrap();
        }
    }
}

#[test]
fn process_killed_at_random_moments_then_all_it_acknowledged_is_there_and_the_check_is_clean() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    kill_at_random_moments(directory.path().join("meta").to_str().unwrap(), 5);
}

#[test]
fn process_killed_at_random_moments_with_its_namespace_on_a_cluster_then_the_same_holds() {
    if servers::installed() {
        let servers = Servers::cluster(2, 0, &[]);
        kill_at_random_moments(&servers.address("crash"), 3);
    }
}

#[test]
fn process_killed_at_random_moments_while_it_has_leases_then_the_same_holds() {
    if servers::installed() {
        let servers = Servers::cluster(2, 0, &[]);
        let state = tempfile::tempdir_in("/dev/shm").unwrap();
        let journal = state.path().join("leases");
        let place = format!("{}{LEASES}{}", servers.address("crash"), journal.display());
        kill_at_random_moments(&place, 5);
    }
}

fn kill_at_random_moments(place: &str, rounds: u64) {
    let mut acknowledged = Vec::new();
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_works_until_killed", "--nocapture", "--test-threads=1"])
            .env(CHILD, place)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (begun, first) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let steps = lines.map_while(Result::ok).filter_map(|line| parse(&line));
            steps.inspect(|_| _ = begun.send(())).collect::<Vec<_>>()
        });
        // To open takes its time; what counts is the time at work.
        first.recv_timeout(Duration::from_secs(20)).unwrap();
        std::thread::sleep(Duration::from_millis(50 + 120 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        acknowledged.extend(reader.join().unwrap());

        let store = open(place);
        let dir = directory(&store);
        for (moved, n) in &acknowledged {
            let old = store.lookup(dir, format!("file-{n}").as_bytes()).unwrap();
            let new = store.lookup(dir, format!("moved-{n}").as_bytes()).unwrap();
            assert!(old.is_some() ^ new.is_some(), "file {n}");
            assert!(!moved || new.is_some(), "the move of file {n} is lost");
        }
        let report = store.check(false).unwrap();
        assert!(report.is_clean(), "{:?}", report.violations.first());
        assert_eq!(store.backlog_len(), report.entries);
    }
    assert!(acknowledged.len() > 100, "only {} steps were taken", acknowledged.len());
}

/// `test harness` text may precede the first line.
fn parse(line: &str) -> Option<(bool, u64)> {
    let (what, n) = line.rsplit_once(' ')?;
    let moved = what.ends_with("moved");
    (moved || what.ends_with("created")).then_some((moved, n.parse().ok()?))
}
