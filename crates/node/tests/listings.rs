//! What listings of large directories cost, in memory and in work.

mod rig;

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use forebay_node::metrics::Op;
use forebay_node::{Ino, NodeError};
use forebay_store::decorators::{Interceptor, Operation, Transparent, Verdict};
use forebay_testing::wait_for;
use rig::{CONTEXT, MIB, Rig};
use rustix::io::Errno;

const LIMIT: Duration = Duration::from_secs(60);

fn many_files(rig: &Rig, count: usize) {
    for index in 0..count {
        std::fs::write(rig.backing().join(format!("file-{index}")), b"").unwrap();
    }
}

/// Lists the root with attributes, and does something with each name as it comes.
fn list(rig: &Rig, mut each: impl FnMut(Ino, &[u8])) {
    let (mut offset, mut seen) = (0, HashSet::new());
    loop {
        let mut page = Vec::new();
        rig.node()
            .read_dir(&CONTEXT, Ino::ROOT, offset, 100, true, &mut |entry| {
                offset = entry.offset;
                page.push((entry.ino, entry.name.to_vec()));
                page.len() < 100
            })
            .unwrap();
        page.retain(|(_, name)| !matches!(&name[..], b"." | b".."));
        if page.is_empty() {
            return;
        }
        for (ino, name) in page {
            if seen.insert(name.clone()) {
                each(ino, &name);
            }
        }
    }
}

#[test]
fn access_lists_when_asked_for_along_a_listing_then_read_many_at_once() {
    const FILES: usize = 1000;
    let rig = Rig::new(&[64 * MIB], Arc::new(Transparent), |_| {});
    many_files(&rig, FILES);
    let with_attribute = rig.backing().join("file-7");
    let has_attributes =
        rustix::fs::lsetxattr(&with_attribute, "user.a", b"1", rustix::fs::XattrFlags::empty());
    let before = rig.node().engine_calls();
    let mut asked = 0;
    list(&rig, |ino, name| {
        asked += 1;
        let list = rig.node().get_xattr(&CONTEXT, ino, b"system.posix_acl_access");
        assert!(matches!(list, Err(NodeError::Posix(Errno::NODATA))), "{list:?}");
        if name == b"file-7" && has_attributes.is_ok() {
            assert_eq!(rig.node().get_xattr(&CONTEXT, ino, b"user.a").unwrap(), b"1");
        }
    });
    assert_eq!(asked, FILES);
    let calls = rig.node().engine_calls() - before;
    assert!(calls < FILES as u64 / 2, "{calls} calls of the metadata engine for {FILES} files");
}

#[test]
fn attribute_that_is_set_when_others_are_read_along_then_stays() {
    let rig = Rig::new(&[64 * MIB], Arc::new(Transparent), |_| {});
    many_files(&rig, 300);
    let mut number = 0;
    list(&rig, |ino, _| {
        number += 1;
        if number % 3 == 0 {
            rig.node().set_xattr(&CONTEXT, ino, b"user.mine", b"new", 0, false).unwrap();
        } else {
            let _ = rig.node().get_xattr(&CONTEXT, ino, b"user.mine");
        }
    });
    let mut number = 0;
    list(&rig, |ino, name| {
        number += 1;
        let found = rig.node().get_xattr(&CONTEXT, ino, b"user.mine").ok();
        let wanted = (number % 3 == 0).then(|| b"new".to_vec());
        assert_eq!(found, wanted, "{}", name.escape_ascii());
    });
}

#[test]
fn memory_when_nobody_asks_for_anything_then_what_is_cached_goes_and_comes_back() {
    let rig = Rig::new(&[64 * MIB], Arc::new(Transparent), |config| {
        config.memory_idle = Duration::from_secs(1);
    });
    many_files(&rig, 500);
    list(&rig, |_, name| {
        let name = std::str::from_utf8(name).unwrap();
        assert_eq!(rig.size(name), 0);
    });
    let in_memory = || rig.node().writeback().cached_records();
    assert!(wait_for(LIMIT, || in_memory() <= 50), "{} stay in memory", in_memory());
    let mut listed = 0;
    list(&rig, |_, _| listed += 1);
    assert_eq!(listed, 500);
    assert_eq!(rig.size("file-499"), 0);
}

#[test]
fn memory_when_somebody_only_looks_now_and_then_then_what_is_cached_goes_all_the_same() {
    let rig = Rig::new(&[64 * MIB], Arc::new(Transparent), |config| {
        config.memory_idle = Duration::from_secs(1);
    });
    many_files(&rig, 500);
    list(&rig, |_, _| {});
    let until = Instant::now() + LIMIT;
    while rig.node().writeback().cached_records() > 50 {
        assert!(
            Instant::now() < until,
            "{} stay in memory",
            rig.node().writeback().cached_records()
        );
        // As a program does that watches all file systems. The front counts what it serves.
        rig.node().statfs(&CONTEXT).unwrap();
        rig.node().metrics().op_seconds.of(Op::Other).observe(Duration::from_micros(3));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A store that takes its time for each listing.
#[derive(Default)]
struct SlowToList(AtomicU32);

impl SlowToList {
    const TAKES: Duration = Duration::from_millis(50);
}

impl Interceptor for SlowToList {
    fn before(&self, operation: Operation, _bytes: u64) -> Verdict {
        if operation == Operation::List {
            self.0.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Self::TAKES);
        }
        Verdict::Pass
    }
}

#[test]
fn directory_that_lists_slowly_when_others_change_it_all_the_time_then_most_of_the_time_is_left() {
    let slow = Arc::new(SlowToList::default());
    let rig = Rig::new(&[16 * MIB], slow.clone(), |config| config.attr_timeout = Duration::ZERO);
    let names = || {
        let mut names = 0;
        list(&rig, |_, _| names += 1);
        names
    };
    names();
    let (begun, listed) = (Instant::now(), slow.0.load(Ordering::Relaxed));
    let mut made = 0;
    while begun.elapsed() < 40 * SlowToList::TAKES {
        std::fs::write(rig.backing().join(format!("theirs{made}")), b"").unwrap();
        made += 1;
        names();
        std::thread::sleep(Duration::from_millis(5));
    }
    // Each lasts for as long as twenty.
    let listings = slow.0.load(Ordering::Relaxed) - listed;
    assert!((1..=2).contains(&listings), "{listings} listings in {:?}", begun.elapsed());
    assert!(wait_for(LIMIT, || names() == made), "{made} files of others");
}

/// The time of a directory here, and the one that the store has.
fn times(rig: &Rig, dir: &str) -> [(i64, i64); 2] {
    let here = rig.node().getattr(&CONTEXT, rig.ino(dir)).unwrap().attr.mtime;
    let below = std::fs::metadata(rig.backing().join(dir)).unwrap();
    [(here.sec, i64::from(here.nsec)), (below.mtime(), below.mtime_nsec())]
}

fn set_time_below(rig: &Rig, dir: &str, sec: u64) {
    let dir = std::fs::File::open(rig.backing().join(dir)).unwrap();
    dir.set_modified(UNIX_EPOCH + Duration::from_secs(sec)).unwrap();
}

#[test]
fn time_of_a_directory_when_others_set_it_then_it_is_seen_unless_another_is_due_here() {
    let rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |_| {});
    let refresh = || rig.node().writeback().refresh(Path::new(""), &mut |_| true).unwrap();
    for dir in ["just-set", "filled", "ours", "never-listed"] {
        std::fs::create_dir(rig.backing().join(dir)).unwrap();
        std::fs::write(rig.backing().join(dir).join("file"), b"bytes").unwrap();
    }
    let list = |ino| rig.node().read_dir(&CONTEXT, ino, 0, 100, false, &mut |_| true).unwrap();
    list(Ino::ROOT);
    ["just-set", "filled", "ours"].into_iter().for_each(|dir| list(rig.ino(dir)));
    for year in 1..3 {
        set_time_below(&rig, "just-set", year * 31_000_000);
        set_time_below(&rig, "never-listed", year * 32_000_000);
        std::fs::create_dir(rig.backing().join(format!("filled/{year}"))).unwrap();
        set_time_below(&rig, "filled", year * 30_000_000);
        refresh();
        for dir in ["just-set", "filled", "never-listed"] {
            let [here, below] = times(&rig, dir);
            assert_eq!(here, below, "{dir}");
        }
    }
    // What was made here is later, also where it is not there yet when theirs is seen.
    for is_drained in [false, true] {
        std::thread::sleep(Duration::from_millis(20));
        rig.node()
            .mkdir(&CONTEXT, rig.ino("ours"), [b'a' + u8::from(is_drained)].as_slice(), 0o755, 0)
            .unwrap();
        let [ours, _] = times(&rig, "ours");
        if is_drained {
            rig.drain();
        } else {
            set_time_below(&rig, "ours", 33_000_000);
            refresh();
            assert_eq!(times(&rig, "ours")[0], ours);
            rig.drain();
        }
        assert_eq!(times(&rig, "ours"), [ours, ours]);
        refresh();
        assert_eq!(times(&rig, "ours"), [ours, ours], "nobody has set another one");
    }
    set_time_below(&rig, "ours", 34_000_000);
    refresh();
    assert_eq!(times(&rig, "ours")[0], (34_000_000, 0));
}

/// The next daemon took the time of the write-back for one that others had set.
#[test]
fn time_of_a_directory_when_the_daemon_dies_amid_the_write_back_of_its_files_then_it_stays() {
    let _alone = rig::alone();
    let mut rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |_| {});
    std::fs::create_dir(rig.backing().join("dir")).unwrap();
    std::fs::write(rig.backing().join("dir/file"), b"bytes").unwrap();
    set_time_below(&rig, "dir", 31_000_000);
    let list = |rig: &Rig, ino| {
        rig.node().read_dir(&CONTEXT, ino, 0, 100, false, &mut |_| true).unwrap();
    };
    let dir = rig.ino("dir");
    list(&rig, dir);
    let before = times(&rig, "dir");
    let ino = rig.node().lookup(&CONTEXT, dir, b"file").unwrap().unwrap().ino;
    let fh = rig.node().open(&CONTEXT, ino, libc::O_WRONLY | libc::O_TRUNC).unwrap().fh;
    rig.write(fh, 0, b"others");
    rig.node().release(fh);
    fail::cfg("node.flush.published", "1*panic->off").unwrap();
    let written = std::panic::AssertUnwindSafe(|| rig.node().writeback().reconcile(ino));
    assert!(std::panic::catch_unwind(written).is_err(), "it was not published");
    fail::remove("node.flush.published");
    rig.crash();
    rig.start();
    list(&rig, Ino::ROOT);
    list(&rig, dir);
    assert_eq!(times(&rig, "dir")[0], before[0]);
    rig.drain();
    rig.node().writeback().refresh(Path::new(""), &mut |_| true).unwrap();
    assert_eq!(times(&rig, "dir"), before);
}
