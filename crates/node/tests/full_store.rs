//! A backing store without room: the reason is told as long as something is kept back by it. And what one
//! name more costs it.

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_node::{Ino, SetAttr, SetTime, Timestamp, WritebackPolicy};
use forebay_store::decorators::{Flaky, Interceptor, Operation, Rule, Verdict};
use rig::{CONTEXT, MIB, Rig, noise};

fn rig(by: Arc<dyn Interceptor>) -> Rig {
    Rig::new(&[4 * MIB], by, |config| config.writeback = WritebackPolicy::OnEviction)
}

#[test]
fn full_store_when_it_keeps_files_back_then_the_reason_says_what_to_do_until_all_are_written() {
    let flaky = Arc::new(Flaky::new(7));
    let rig = rig(flaky.clone());
    let node = rig.node();
    for name in ["first", "second", "third"] {
        rig.put(name, b"bytes");
    }
    let told = || node.writeback().last_backlog_error().unwrap_or_default();
    for (name, errno) in [("first", libc::ENOSPC), ("second", libc::EDQUOT)] {
        flaky.set_rules([Rule::always(Operation::Commit, errno)]);
        node.writeback().reconcile(rig.ino(name)).expect_err("there is no room");
        assert!(told().starts_with(&format!("/{name}: ")), "{}", told());
        assert!(told().contains("is full") && told().contains("make room"), "{}", told());
    }
    flaky.set_rules([]);
    node.writeback().reconcile(rig.ino("second")).expect("there is room");
    assert!(told().starts_with("/first: "), "what is kept back still: {}", told());
    node.writeback().reconcile(rig.ino("first")).expect("there is room");
    assert_eq!((told(), node.writeback().backlog_len()), (String::new(), 1));
    rig.drain();
}

#[test]
fn sync_of_what_a_full_store_keeps_back_when_its_time_passes_then_it_fails_with_the_reason() {
    let flaky = Arc::new(Flaky::new(7));
    let rig = rig(flaky.clone());
    rig.put("file", b"bytes");
    flaky.set_rules([Rule::always(Operation::Commit, libc::ENOSPC)]);
    for limit in [0, 1, 100, 3000] {
        let until = Instant::now() + Duration::from_millis(limit);
        let synced = rig.node().writeback().sync_subtree(Ino::ROOT, until, &mut |_| true);
        let synced = synced.expect("it ends");
        assert!(!synced.complete, "{limit} ms: {synced:?}");
        if limit >= 3000 {
            let [(path, why)] = &synced.failures[..] else { panic!("{limit} ms: {synced:?}") };
            assert!(path == b"file" && why.contains("make room"), "{why}");
        }
    }
    flaky.set_rules([]);
    rig.drain();
}

/// Counts what the backing store is asked.
#[derive(Default)]
struct Counter(AtomicU64);

impl Interceptor for Counter {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        self.0.fetch_add(1, Ordering::Relaxed);
        Verdict::Pass
    }
}

/// Operations for a hundred names more, and a hundred less, of a file that has so many.
fn cost(count: usize) -> u64 {
    let counter = Arc::new(Counter::default());
    let rig = rig(counter.clone());
    let (node, root) = (rig.node(), Ino::ROOT);
    rig.put("name-0", b"bytes");
    let file = rig.ino("name-0");
    let link = |name: usize| {
        let name = format!("name-{name}");
        node.link(&CONTEXT, file, root, name.as_bytes()).expect("linked");
    };
    (1..count).for_each(link);
    rig.drain();
    let before = counter.0.load(Ordering::Relaxed);
    for step in 0..100 {
        link(count + step);
        node.writeback().reconcile(file).expect("the new name is there");
        node.unlink(&CONTEXT, root, format!("name-{step}").as_bytes()).expect("unlinked");
        node.writeback().reconcile(file).expect("the old one is gone");
    }
    let cost = counter.0.load(Ordering::Relaxed) - before;
    rig.drain();
    let names = std::fs::read_dir(rig.backing()).expect("the store").flatten();
    let names = names.filter(|entry| entry.file_name().to_string_lossy().starts_with("name-"));
    assert_eq!(names.count(), count);
    cost
}

#[test]
fn names_of_a_file_when_there_are_many_then_one_more_is_written_back_as_with_few() {
    let (few, many) = (cost(10), cost(1000));
    // The root may be listed in the background.
    assert!(many <= few + few / 4, "{many} operations with a thousand names, {few} with ten");
}

/// A backing store that is full from some moment on: what is there can be cut and removed.
#[derive(Default)]
struct Full(AtomicBool);

impl Interceptor for Full {
    fn before(&self, operation: Operation, bytes: u64) -> Verdict {
        let needs_room = match operation {
            Operation::Write => bytes > 0,
            Operation::Create | Operation::Map | Operation::Commit => true,
            _ => false,
        };
        match needs_room && self.0.load(Ordering::Relaxed) {
            true => Verdict::Fail(libc::ENOSPC),
            false => Verdict::Pass,
        }
    }
}

/// Takes all room that there is, with a file that stays open.
fn fill(rig: &Rig) -> u64 {
    let fill = rig.create("fill");
    let mut at = 0;
    for piece in [32 << 10, 4096] {
        while let Ok(written) = rig.node().write(&CONTEXT, fill, at, &vec![b'f'; piece]) {
            at += written as u64;
        }
    }
    fill
}

fn cut(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

#[test]
fn file_in_a_full_store_when_made_shorter_while_the_tiers_are_full_then_it_is_and_gives_room_back()
{
    for is_open in [false, true] {
        for second_name in [false, true] {
            let what = format!("open: {is_open}, two names: {second_name}");
            let full = Arc::new(Full::default());
            let mut rig = Rig::new(&[MIB], full.clone(), |config| {
                config.writeback = WritebackPolicy::OnEviction;
                config.attr_timeout = Duration::ZERO;
            });
            let mut old = noise(1, 600_000);
            std::fs::write(rig.backing().join("file"), &old).unwrap();
            if second_name {
                std::fs::hard_link(rig.backing().join("file"), rig.backing().join("other"))
                    .unwrap();
            }
            let ino = rig.ino("file");
            full.0.store(true, Ordering::Relaxed);
            let fill = fill(&rig);
            let fh = is_open.then(|| rig.open("file", libc::O_RDWR));
            if let Some(fh) = fh {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                // The second one goes beyond the end.
                for (at, len) in [(100_000, 50_000), (590_000, 50_000)] {
                    rig.node().fallocate(&CONTEXT, fh, at, len, mode).unwrap();
                    let (from, to) = (at as usize, (at + len).min(600_000) as usize);
                    old[from..to].fill(0);
                    assert!(rig.plain("file") == old && rig.read_all(fh) == old, "{what}");
                }
            }
            for size in [300_000, 4096, 1] {
                let set = rig.node().setattr(&CONTEXT, ino, &cut(size));
                let found = set.unwrap_or_else(|error| panic!("to {size}: {error}, {what}"));
                assert_eq!(found.attr.size, size, "{what}");
                let size = usize::try_from(size).unwrap();
                assert!(rig.plain("file") == old[..size], "it gives its room back: {what}");
                assert!(rig.get("file") == old[..size], "{what}");
                if let Some(fh) = fh {
                    assert!(rig.read_all(fh) == old[..size], "{what}");
                }
            }
            // Longer ones need room.
            let before = rig.node().getattr(&CONTEXT, ino).unwrap().attr.mtime;
            assert!(rig.node().setattr(&CONTEXT, ino, &cut(700_000)).is_err(), "{what}");
            assert_eq!(rig.node().getattr(&CONTEXT, ino).unwrap().attr.mtime, before, "{what}");
            assert_eq!(rig.size("file"), 1, "{what}");
            fh.into_iter().chain([fill]).for_each(|fh| rig.node().release(fh));
            rig.crash();
            rig.start();
            assert!(rig.get("file") == old[..1], "{what}");
            full.0.store(false, Ordering::Relaxed);
            rig.drain();
            assert!(rig.plain("file") == old[..1], "{what}");
            if second_name {
                assert!(rig.plain("other") == old[..1] && rig.get("other") == old[..1], "{what}");
            }
            assert_eq!(rig.node().writeback().conflicts().0, 0, "{what}");
        }
    }
}

/// Sets something of a file that needs no room and has not reached the backing store when the file is cut.
type Change = fn(&Rig, Ino);

#[test]
fn file_in_a_full_store_when_its_attributes_are_on_their_way_then_it_can_be_made_shorter() {
    let changes: [(&str, Change); 4] = [
        ("times", |rig, ino| {
            let time = SetTime::At(Timestamp::new(1_000_000_000, 0));
            let set = SetAttr { mtime: Some(time), ..SetAttr::default() };
            rig.node().setattr(&CONTEXT, ino, &set).unwrap();
        }),
        ("a mode", |rig, ino| {
            let set = SetAttr { mode: Some(0o6777), ..SetAttr::default() };
            rig.node().setattr(&CONTEXT, ino, &set).unwrap();
        }),
        ("an attribute", |rig, ino| {
            rig.node().set_xattr(&CONTEXT, ino, b"user.a", b"1", 0, false).unwrap();
        }),
        ("a link", |rig, ino| {
            rig.node().link(&CONTEXT, ino, Ino::ROOT, b"link").unwrap();
        }),
    ];
    for (what, change) in changes {
        let full = Arc::new(Full::default());
        let rig = Rig::new(&[MIB], full.clone(), |config| {
            config.writeback = WritebackPolicy::OnEviction;
        });
        let old = noise(1, 600_000);
        std::fs::write(rig.backing().join("file"), &old).unwrap();
        let ino = rig.ino("file");
        full.0.store(true, Ordering::Relaxed);
        let fill = fill(&rig);
        change(&rig, ino);
        let set = rig.node().setattr(&CONTEXT, ino, &cut(300_000));
        assert_eq!(set.unwrap_or_else(|error| panic!("{error}: {what}")).attr.size, 300_000);
        assert!(rig.get("file") == old[..300_000], "{what}");
        rig.node().release(fill);
        full.0.store(false, Ordering::Relaxed);
        rig.drain();
        assert!(rig.plain("file") == old[..300_000], "{what}");
        assert_eq!(rig.node().writeback().conflicts().0, 0, "{what}");
        if what == "a link" {
            assert!(rig.plain("link") == old[..300_000], "{what}");
        }
    }
}

#[test]
fn file_in_a_full_store_when_others_changed_it_before_it_is_made_shorter_then_theirs_is() {
    for in_place in [false, true] {
        let full = Arc::new(Full::default());
        let rig = Rig::new(&[MIB], full.clone(), |config| {
            config.writeback = WritebackPolicy::OnEviction;
            // Nobody looks by himself.
            config.attr_timeout = Duration::from_secs(3600);
        });
        std::fs::write(rig.backing().join("file"), noise(1, 600_000)).unwrap();
        let ino = rig.ino("file");
        full.0.store(true, Ordering::Relaxed);
        let fill = fill(&rig);
        let theirs = noise(2, 500_000);
        let to = if in_place { "file" } else { "new" };
        std::fs::write(rig.backing().join(to), &theirs).unwrap();
        if !in_place {
            std::fs::rename(rig.backing().join("new"), rig.backing().join("file")).unwrap();
        }
        let set = rig.node().setattr(&CONTEXT, ino, &cut(100_000));
        assert_eq!(set.expect("it is cut").attr.size, 100_000, "in place: {in_place}");
        assert!(rig.plain("file") == theirs[..100_000], "in place: {in_place}");
        assert!(rig.get("file") == theirs[..100_000], "in place: {in_place}");
        rig.node().release(fill);
        full.0.store(false, Ordering::Relaxed);
        rig.drain();
    }
}

/// A backing store without a free block: names can be made and removed.
#[derive(Default)]
struct NoBlocks(AtomicBool);

impl Interceptor for NoBlocks {
    fn before(&self, operation: Operation, bytes: u64) -> Verdict {
        let needs_blocks = match operation {
            Operation::Write => bytes > 0,
            Operation::Commit | Operation::Allocate => true,
            _ => false,
        };
        match needs_blocks && self.0.load(Ordering::Relaxed) {
            true => Verdict::Fail(libc::ENOSPC),
            false => Verdict::Pass,
        }
    }
}

/// A tier of eight mebibytes full of clean files, `old-0` and so on, over a store that is full; and the bytes of
/// `known`, of which the tier has nothing.
fn full_of_clean_files() -> (Rig, Arc<NoBlocks>, Vec<u8>) {
    let full = Arc::new(NoBlocks::default());
    let rig = Rig::new(&[8 * MIB], full.clone(), |config| {
        config.writeback = WritebackPolicy::After(Duration::from_millis(200));
        config.fetch_on_open_bytes = 2 * MIB;
    });
    let known = noise(1, 3 * MIB / 2);
    std::fs::write(rig.backing().join("known"), &known).unwrap();
    let old = (0..8).map(|name| format!("old-{name}")).collect::<Vec<_>>();
    for name in &old {
        std::fs::write(rig.backing().join(name), noise(2, 900_000)).unwrap();
    }
    old.iter().for_each(|name| assert_eq!(rig.get(name).len(), 900_000));
    full.0.store(true, Ordering::Relaxed);
    (rig, full, known)
}

#[test]
fn file_in_a_full_store_when_written_while_the_tier_has_clean_files_then_they_make_room() {
    let (rig, full, mut known) = full_of_clean_files();
    for round in 0..3_u8 {
        let at = usize::from(round) * 500_000;
        let fh = rig.open("known", libc::O_WRONLY);
        rig.write(fh, at as u64, &[round; 4096]);
        rig.node().release(fh);
        known[at..at + 4096].fill(round);
    }
    assert!(rig.get("known") == known);
    full.0.store(false, Ordering::Relaxed);
    rig.drain();
    assert!(rig.plain("known") == known);
}

#[test]
fn new_files_when_the_store_is_full_and_the_tier_has_clean_files_then_they_take_their_room() {
    let (rig, full, _) = full_of_clean_files();
    for name in 0..6 {
        let fh = rig.create(&format!("new-{name}"));
        let data = noise(name, MIB);
        for (part, piece) in data.chunks(128 << 10).enumerate() {
            let at = (part * (128 << 10)) as u64;
            let written = rig.node().write(&CONTEXT, fh, at, piece);
            assert_eq!(written.ok(), Some(piece.len()), "new-{name} at {at}");
        }
        rig.node().release(fh);
        // The worker finds that it can't be written back.
        std::thread::sleep(Duration::from_millis(500));
    }
    full.0.store(false, Ordering::Relaxed);
    rig.drain();
    for name in 0..6 {
        assert!(rig.plain(&format!("new-{name}")) == noise(name, MIB), "new-{name}");
    }
}

/// Extents may be larger than what is to be written to one of them.
#[test]
fn file_in_a_full_store_when_its_extents_are_large_then_clean_files_make_room_for_two_of_them() {
    let full = Arc::new(NoBlocks::default());
    let rig = Rig::new(&[16 * MIB], full.clone(), |config| {
        config.writeback = WritebackPolicy::After(Duration::from_millis(200));
        config.extent_bytes = 4 * MIB;
    });
    let mut known = noise(1, 12 * MIB);
    std::fs::write(rig.backing().join("known"), &known).unwrap();
    for name in 0..180 {
        std::fs::write(rig.backing().join(format!("old-{name}")), noise(2, 100_000)).unwrap();
    }
    (0..180).for_each(|name| assert_eq!(rig.get(&format!("old-{name}")).len(), 100_000));
    full.0.store(true, Ordering::Relaxed);
    let fh = rig.open("known", libc::O_WRONLY);
    for at in [MIB + 1000, 4 * MIB - 2048] {
        rig.write(fh, at, &[9; 4096]);
        let at = usize::try_from(at).unwrap();
        known[at..at + 4096].fill(9);
    }
    rig.node().release(fh);
    assert!(rig.get("known") == known);
    full.0.store(false, Ordering::Relaxed);
    rig.drain();
    assert!(rig.plain("known") == known);
}

#[test]
fn writers_when_many_want_the_room_of_clean_files_at_once_then_none_is_refused() {
    let full = Arc::new(NoBlocks::default());
    let rig = Rig::new(&[32 * MIB], full.clone(), |config| {
        config.writeback = WritebackPolicy::After(Duration::from_millis(200));
    });
    for name in 0..390 {
        std::fs::write(rig.backing().join(format!("old-{name}")), noise(2, 80_000)).unwrap();
    }
    (0..390).for_each(|name| assert_eq!(rig.get(&format!("old-{name}")).len(), 80_000));
    full.0.store(true, Ordering::Relaxed);
    std::thread::scope(|threads| {
        for name in 0..16 {
            let rig = &rig;
            threads.spawn(move || {
                let fh = rig.create(&format!("new-{name}"));
                for at in 0..8 {
                    let written = rig.node().write(&CONTEXT, fh, at << 17, &[name; 128 << 10]);
                    assert_eq!(written.ok(), Some(128 << 10), "new-{name}, piece {at}");
                }
                rig.node().release(fh);
            });
        }
    });
    full.0.store(false, Ordering::Relaxed);
    rig.drain();
    (0..16).for_each(|name| assert!(rig.plain(&format!("new-{name}")) == [name; 1 << 20]));
}

/// Counts what a store without a free block is asked to take.
#[derive(Default)]
struct Refusals(NoBlocks, AtomicU64);

impl Interceptor for Refusals {
    fn before(&self, operation: Operation, bytes: u64) -> Verdict {
        let verdict = self.0.before(operation, bytes);
        self.1.fetch_add(u64::from(verdict != Verdict::Pass), Ordering::Relaxed);
        verdict
    }
}

#[test]
fn full_store_when_many_files_wait_for_it_and_no_writer_does_then_it_is_left_alone() {
    const FILES: u64 = 100;
    let full = Arc::new(Refusals::default());
    let rig = Rig::new(&[MIB], full.clone(), |config| {
        config.writeback = WritebackPolicy::After(Duration::from_millis(200));
    });
    full.0.0.store(true, Ordering::Relaxed);
    (0..FILES).for_each(|name| rig.put(&format!("file-{name}"), &[1; 4096]));
    let fill = fill(&rig);
    for _ in 0..3 {
        rig.node().write(&CONTEXT, fill, MIB, &[1; 4096]).expect_err("nothing has room");
    }
    // Each was tried some times, and is in pauses of more than ten seconds by now.
    std::thread::sleep(Duration::from_secs(17));
    let before = full.1.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_secs(10));
    let tries = full.1.load(Ordering::Relaxed) - before;
    // One that fails asks twice. With a try each five seconds it would be four times for each.
    assert!(tries <= 7 * FILES / 2, "{tries} in ten seconds for {FILES} files");
    rig.node().release(fill);
    full.0.0.store(false, Ordering::Relaxed);
    rig.drain();
}

/// Changes nothing of what is here: neither of what the tier has a part of, nor of what it has all of.
#[test]
fn write_when_nothing_has_room_and_the_tier_has_the_file_then_that_stays_clean() {
    for (what, len) in [("a part", 3 * MIB / 2), ("all", 900_000)] {
        let full = Arc::new(NoBlocks::default());
        let rig = Rig::new(&[4 * MIB], full.clone(), |config| {
            config.writeback = WritebackPolicy::After(Duration::from_millis(200));
            config.fetch_on_open_bytes = MIB;
        });
        let mut known = noise(1, len);
        std::fs::write(rig.backing().join("known"), &known).unwrap();
        let fh = rig.open("known", libc::O_RDWR);
        rig.node().read(&CONTEXT, fh, 0, &mut [0; 4096]).unwrap();
        full.0.store(true, Ordering::Relaxed);
        let fill = fill(&rig);
        let backlog = rig.node().writeback().backlog_len();
        let at = len + 10 * MIB;
        for at in [at, at, len + 5000] {
            let refused = rig.node().write(&CONTEXT, fh, at, &[7; 256 << 10]);
            assert!(refused.is_err(), "{what} at {at}: {refused:?}");
        }
        assert_eq!(rig.size("known"), len, "{what}");
        rig.node().release(fh);
        assert_eq!(
            rig.node().writeback().backlog_len(),
            backlog,
            "{what}: nothing is to be written"
        );
        rig.node().release(fill);
        rig.node().unlink(&CONTEXT, Ino::ROOT, b"fill").unwrap();
        full.0.store(false, Ordering::Relaxed);
        let fh = rig.open("known", libc::O_RDWR);
        rig.write(fh, 5000, &[7; 4096]);
        known[5000..9096].fill(7);
        assert!(rig.read_all(fh) == known, "{what}");
        rig.node().release(fh);
        rig.drain();
        assert!(rig.plain("known") == known, "{what}");
    }
}

#[test]
fn write_when_nothing_has_room_then_the_file_stays_as_it_was_and_takes_the_next_one() {
    let (rig, full, mut known) = full_of_clean_files();
    let fill = fill(&rig);
    let backlog = rig.node().writeback().backlog_len();
    let fh = rig.open("known", libc::O_RDWR);
    for _ in 0..2 {
        let refused = rig.node().write(&CONTEXT, fh, 500_000, &[7; 4096]);
        assert!(refused.is_err(), "{refused:?}");
        assert_eq!(rig.node().writeback().backlog_len(), backlog, "it has nothing to be written");
        assert!(rig.read_all(fh) == known);
    }
    rig.node().release(fill);
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"fill").unwrap();
    rig.write(fh, 500_000, &[7; 4096]);
    known[500_000..504_096].fill(7);
    assert!(rig.read_all(fh) == known);
    rig.node().release(fh);
    full.0.store(false, Ordering::Relaxed);
    rig.drain();
    assert!(rig.plain("known") == known);
    assert_eq!(rig.left_in_backing().iter().filter(|name| name.contains("spill/")).count(), 0);
}
