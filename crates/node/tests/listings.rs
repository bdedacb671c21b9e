//! What listings of large directories cost, in memory and in work.

mod rig;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

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
