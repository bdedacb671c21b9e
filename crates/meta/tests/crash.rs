//! A process killed with -9 loses nothing that it acknowledged.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_meta::{
    Embedded, EmbeddedOptions, FileKind, Ino, MetaStore, NewInode, Options, RenameFlags, Timestamp,
};

const CHILD: &str = "FOREBAY_META_CRASH_CHILD";

fn open(path: &Path) -> MetaStore {
    let options = EmbeddedOptions { write_buffer_mib: 1, ..EmbeddedOptions::default() };
    let engine = Embedded::open(path, &options).unwrap();
    MetaStore::open(Box::new(engine), &Options::default()).unwrap()
}

/// Not a test by itself: what the killed process does. Acknowledges each step on standard output.
#[test]
fn child_works_until_killed() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let store = open(Path::new(&path));
    let first = store.counts().inodes;
    let mut out = std::io::stdout();
    let now = Timestamp::new(1, 0);
    for n in first..first + 1_000_000 {
        let new = NewInode::new(FileKind::File, 0o644, 0, 0);
        store.create(Ino::ROOT, format!("file-{n}").as_bytes(), new, now).unwrap();
        writeln!(out, "created {n}").unwrap();
        if n % 3 == 0 {
            let (from, to) = (format!("file-{n}"), format!("moved-{n}"));
            let (from, to) = (from.as_bytes(), to.as_bytes());
            let root = Ino::ROOT;
            let flags = RenameFlags::default();
            store.rename(root, from, root, to, flags, now, &|_| false).unwrap();
            writeln!(out, "moved {n}").unwrap();
        }
    }
}

#[test]
fn process_killed_at_random_moments_then_all_it_acknowledged_is_there_and_the_check_is_clean() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut acknowledged = Vec::new();
    for round in 0..5u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_works_until_killed", "--nocapture", "--test-threads=1"])
            .env(CHILD, directory.path().join("meta"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let reader = std::thread::spawn(move || {
            lines.map_while(Result::ok).filter_map(|line| parse(&line)).collect::<Vec<_>>()
        });
        std::thread::sleep(Duration::from_millis(150 + 170 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        acknowledged.extend(reader.join().unwrap());

        let store = open(&directory.path().join("meta"));
        for (moved, n) in &acknowledged {
            let old = store.lookup(Ino::ROOT, format!("file-{n}").as_bytes()).unwrap();
            let new = store.lookup(Ino::ROOT, format!("moved-{n}").as_bytes()).unwrap();
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
