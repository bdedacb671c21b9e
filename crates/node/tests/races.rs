//! Two at one file, one of them held at a fail point while the other does all of its work: what was
//! acknowledged counts, whoever comes last.
#![cfg(feature = "failpoints")]

mod rig;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_node::{Ino, NameIn, NewFile, Node, SetAttr, SetTime, Timestamp, WritebackPolicy};
use forebay_store::decorators::{Interceptor, Operation, Transparent, Verdict};
use parking_lot::Mutex;
use rig::{CONTEXT, KIB, MIB, Rig, noise, same};

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(20);

/// The first to come to a fail point, held there.
struct Held {
    point: &'static str,
    arrived: Receiver<()>,
    go: SyncSender<()>,
}

impl Held {
    fn at(point: &'static str) -> Self {
        let (come, arrived) = sync_channel(1);
        let (go, gone) = sync_channel(1);
        let (first, gone) = (AtomicBool::new(true), Mutex::new(gone));
        fail::cfg_callback(point, move || {
            if first.swap(false, Ordering::AcqRel) {
                come.send(()).unwrap();
                let _ = gone.lock().recv_timeout(LIMIT);
            }
        })
        .unwrap();
        Held { point, arrived, go }
    }

    fn wait(&self) {
        self.arrived
            .recv_timeout(LIMIT)
            .unwrap_or_else(|_| panic!("nobody came by {}", self.point));
    }

    fn release(&self) {
        self.go.send(()).unwrap();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        fail::remove(self.point);
    }
}

/// A rig with `content` in a file of the backing store and one tier of 1 MiB with `free` bytes that
/// stay free: the rest is held by a file that is being written. Its handle.
fn with_room(free: u64, content: &[u8]) -> (Rig, u64) {
    let rig = Rig::small(MIB);
    std::fs::write(rig.backing().join("file"), content).unwrap();
    let fh = rig.create("filler");
    // A block of the object is its header's.
    rig.write(fh, 0, &noise(1, MIB - free - 4 * KIB));
    (rig, fh)
}

#[test]
fn extent_that_is_filled_when_it_is_written_past_the_tier_then_shows_what_was_written() {
    let _alone = rig::alone();
    let mut content = noise(9, 600_000);
    let (rig, filler) = with_room(112 * KIB, &content);
    let fh = rig.open("file", libc::O_RDWR);
    let held = Held::at("node.fill.begin");
    let mut buffer = vec![0; 50_000];
    for at in [0, 50_000] {
        assert_eq!(rig.node().read(&CONTEXT, fh, at, &mut buffer).unwrap(), buffer.len());
    }
    // The reader is run ahead of, with the version that the backing store has.
    held.wait();
    let new = noise(10, 128 * KIB);
    rig.write(fh, 0, &new);
    content[..new.len()].copy_from_slice(&new);
    held.release();
    std::thread::sleep(Duration::from_millis(300));
    same(&rig.read_all(fh), &content, "while it is open");
    for fh in [fh, filler] {
        rig.node().release(fh);
    }
    rig.drain();
    same(&rig.get("file"), &content, "after the write-back");
    same(&rig.plain("file"), &content, "in the backing store");
}

/// A file of 300,000 bytes in the backing store, none of them on the tier, which was written past
/// its end. Its handle, its contents, and that of what holds the tier.
fn grown_past_the_tier() -> (Rig, u64, Vec<u8>, u64) {
    let mut content = noise(9, 300_000);
    let (rig, filler) = with_room(4 * KIB, &content);
    let fh = rig.open("file", libc::O_RDWR);
    let more = noise(10, 100_000);
    rig.write(fh, 300_000, &more);
    content.extend(&more);
    (rig, fh, content, filler)
}

#[test]
fn write_past_the_tier_when_the_file_is_published_meanwhile_then_nothing_is_cut() {
    let _alone = rig::alone();
    let (rig, fh, mut content, filler) = grown_past_the_tier();
    let held = Held::at("node.spill.begin");
    let new = noise(11, 1000);
    std::thread::scope(|scope| {
        scope.spawn(|| rig.write(fh, 0, &new));
        held.wait();
        rig.node().writeback().reconcile(rig.ino("file")).unwrap();
        held.release();
    });
    content[..new.len()].copy_from_slice(&new);
    same(&rig.read_all(fh), &content, "while it is open");
    for fh in [fh, filler] {
        rig.node().release(fh);
    }
    rig.drain();
    same(&rig.plain("file"), &content, "in the backing store");
}

/// What shows through the new spill file is the version that is published then.
#[test]
fn file_that_is_first_written_past_the_tier_while_it_is_published_then_all_of_it_can_be_read() {
    let _alone = rig::alone();
    let mut content = noise(9, 600_000);
    let (rig, filler) = with_room(112 * KIB, &content);
    let fh = rig.open("file", libc::O_RDWR);
    let mut write = |at: usize, data: Vec<u8>| {
        rig.write(fh, at as u64, &data);
        content[at..][..data.len()].copy_from_slice(&data);
    };
    write(0, noise(10, 60_000));
    let held = Held::at("node.flush.copied");
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| {
            let until = Instant::now() + LIMIT;
            rig.node().writeback().sync_subtree(rig.ino("file"), until, &mut |_| true)
        });
        held.wait();
        write(300_000, noise(11, 200_000));
        // From the version that is still the one below.
        let mut rest = [0; 1000];
        assert_eq!(rig.node().read(&CONTEXT, fh, 599_000, &mut rest).unwrap(), rest.len());
        held.release();
        sync.join().unwrap().unwrap();
    });
    same(&rig.read_all(fh), &content, "while it is open");
    for fh in [fh, filler] {
        rig.node().release(fh);
    }
    rig.drain();
    assert_eq!(rig.node().writeback().conflicts().0, 0);
    same(&rig.get("file"), &content, "after the write-back");
    same(&rig.plain("file"), &content, "in the backing store");
}

#[test]
fn open_when_the_file_is_published_meanwhile_then_all_of_it_is_seen() {
    let _alone = rig::alone();
    let (rig, fh, content, filler) = grown_past_the_tier();
    let shorter = SetAttr { size: Some(MIB / 2), ..SetAttr::default() };
    rig.node().setattr(&CONTEXT, rig.ino("filler"), &shorter).unwrap();
    let held = Held::at("node.open.prepare");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| rig.open("file", libc::O_RDONLY));
        held.wait();
        rig.node().writeback().reconcile(rig.ino("file")).unwrap();
        held.release();
        let reader = reader.join().unwrap();
        same(&rig.read_all(reader), &content, "as it was opened");
        rig.node().release(reader);
    });
    for fh in [fh, filler] {
        rig.node().release(fh);
    }
    rig.drain();
    same(&rig.get("file"), &content, "after the write-back");
}

#[test]
fn file_written_while_its_eviction_ends_then_is_known_to_be_on_the_tier() {
    let _alone = rig::alone();
    let rig = Rig::small(MIB);
    let old = noise(9, 20_000);
    std::fs::write(rig.backing().join("file"), &old).unwrap();
    same(&rig.get("file"), &old, "at first");
    let ino = rig.ino("file");
    let held = Held::at("node.evict.before_forget");
    let new = noise(10, 20_000);
    std::thread::scope(|scope| {
        let evicted = scope.spawn(|| rig.node().residency().evict_file(ino));
        held.wait();
        let (done, written) = sync_channel(1);
        let (rig, new) = (&rig, &new);
        scope.spawn(move || {
            let fh = rig.open("file", libc::O_RDWR);
            rig.write(fh, 0, new);
            rig.node().release(fh);
            done.send(()).unwrap();
        });
        // It may have to wait for the end of the eviction.
        let _ = written.recv_timeout(Duration::from_millis(500));
        held.release();
        assert!(evicted.join().unwrap().unwrap());
        let _ = written.recv_timeout(LIMIT);
    });
    same(&rig.get("file"), &new, "after the write");
    rig.drain();
    same(&rig.plain("file"), &new, "in the backing store");
}

#[test]
fn truncation_of_a_file_that_is_to_be_evicted_then_cuts_its_bytes_and_no_zeros() {
    let _alone = rig::alone();
    let rig = Rig::small(MIB);
    let content = noise(9, 100_000);
    let fh = rig.create("file");
    rig.write(fh, 0, &content);
    let ino = rig.ino("file");
    let held = Held::at("node.truncate.loaded");
    std::thread::scope(|scope| {
        let cut = scope.spawn(|| {
            let set = SetAttr { size: Some(50_000), ..SetAttr::default() };
            rig.node().setattr(&CONTEXT, ino, &set)
        });
        held.wait();
        rig.node().release(fh);
        rig.drain();
        // Whether it goes or not.
        rig.node().residency().evict_file(ino).unwrap();
        held.release();
        cut.join().unwrap().unwrap();
    });
    same(&rig.get("file"), &content[..50_000], "after the cut");
    rig.drain();
    same(&rig.plain("file"), &content[..50_000], "in the backing store");
}

#[test]
fn write_that_is_under_way_during_a_flush_in_place_then_reaches_the_backing_store() {
    let _alone = rig::alone();
    let rig = Rig::small(MIB);
    let mut content = noise(9, 300_000);
    std::fs::write(rig.backing().join("file"), &content).unwrap();
    std::fs::hard_link(rig.backing().join("file"), rig.backing().join("link")).unwrap();
    rig.ino("link");
    let fh = rig.open("file", libc::O_RDWR);
    // An extent of its own on the tier.
    rig.write(fh, 0, &noise(10, 64 * KIB));
    let new = noise(11, 64 * KIB);
    content[..new.len()].copy_from_slice(&new);
    let rig = &rig;
    let (writer, flush) = (Held::at("node.write.marked"), Held::at("node.flush.in_place_copied"));
    std::thread::scope(|scope| {
        scope.spawn(|| rig.write(fh, 0, &new));
        writer.wait();
        let soon = Instant::now() + Duration::from_millis(200);
        // As a whole it stays dirty, for it is open.
        scope.spawn(move || rig.node().writeback().drain(soon, &mut |_| true).unwrap());
        flush.wait();
        writer.release();
        flush.release();
    });
    rig.node().release(fh);
    rig.drain();
    assert!(rig.node().residency().evict_file(rig.ino("file")).unwrap());
    same(&rig.plain("file"), &content, "in the backing store");
    same(&rig.get("link"), &content, "after the eviction");
}

#[test]
fn file_published_before_its_close_is_settled_then_has_its_length() {
    let _alone = rig::alone();
    let rig = Rig::small(MIB);
    let content = noise(9, 2000);
    let fh = rig.create("file");
    rig.write(fh, 0, &content[..1000]);
    rig.node().release(fh);
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 1000, &content[1000..]);
    let held = Held::at("node.release.before_settle");
    std::thread::scope(|scope| {
        scope.spawn(|| rig.node().release(fh));
        held.wait();
        rig.node().writeback().reconcile(rig.ino("file")).unwrap();
        held.release();
    });
    assert_eq!(rig.size("file"), 2000);
    rig.drain();
    assert!(rig.node().residency().evict_file(rig.ino("file")).unwrap());
    same(&rig.get("file"), &content, "after the eviction");
    same(&rig.plain("file"), &content, "in the backing store");
}

#[test]
fn truncation_that_is_noted_after_a_newer_write_was_published_then_the_file_has_its_length() {
    let _alone = rig::alone();
    for size in [0, 500] {
        let rig = Rig::small(MIB);
        rig.put("file", &noise(9, 2000));
        rig.drain();
        let ino = rig.ino("file");
        let new = noise(10, 3000);
        let held = Held::at("node.truncate.before_record");
        std::thread::scope(|scope| {
            let cut = scope.spawn(|| {
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                rig.node().setattr(&CONTEXT, ino, &set)
            });
            held.wait();
            let (done, written) = sync_channel(1);
            let (rig, new) = (&rig, &new);
            scope.spawn(move || {
                let fh = rig.open("file", libc::O_RDWR);
                rig.write(fh, 0, new);
                rig.node().release(fh);
                rig.node().writeback().reconcile(ino).unwrap();
                done.send(()).unwrap();
            });
            // It may have to wait for the end of the truncation.
            let _ = written.recv_timeout(Duration::from_millis(500));
            held.release();
            cut.join().unwrap().unwrap();
            let _ = written.recv_timeout(LIMIT);
        });
        assert_eq!(rig.size("file"), 3000);
        same(&rig.get("file"), &new, "after the truncation");
        rig.drain();
        same(&rig.plain("file"), &new, "in the backing store");
        assert!(rig.node().residency().evict_file(ino).unwrap());
        assert_eq!(rig.size("file"), 3000);
        same(&rig.get("file"), &new, "after the eviction");
    }
}

/// Has a worker move a file on, from `0` to `1` and so forth, whenever a file is about to be opened
/// in the backing store, some times.
#[derive(Default)]
struct Moving {
    node: Mutex<Weak<Node>>,
    moves: Mutex<u32>,
}

const MOVES: u32 = 3;

impl Interceptor for Moving {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        // A listing in the background looks at files, too.
        if operation != Operation::Open {
            return Verdict::Pass;
        }
        // None while it is at it.
        let Some(mut moves) = self.moves.try_lock() else { return Verdict::Pass };
        let node = self.node.lock().upgrade();
        if let Some(node) = node.filter(|_| *moves < MOVES) {
            let [from, to] = [*moves, *moves + 1].map(|number| number.to_string());
            let [from, to] = [&from, &to].map(|name| NameIn::new(Ino::ROOT, name.as_bytes()));
            node.rename(&CONTEXT, from, to, 0).unwrap();
            let moved = node.lookup(&CONTEXT, Ino::ROOT, to.name).unwrap().unwrap();
            node.writeback().reconcile(moved.ino).unwrap();
            *moves += 1;
        }
        Verdict::Pass
    }
}

#[test]
fn file_that_workers_move_again_and_again_when_opened_then_is_found() {
    for size in [20_000, 200_000] {
        let moving = Arc::new(Moving::default());
        let rig = Rig::new(&[MIB], moving.clone(), |_| {});
        let content = noise(9, size);
        std::fs::write(rig.backing().join("0"), &content).unwrap();
        let ino = rig.ino("0");
        *moving.node.lock() = Arc::downgrade(rig.node());
        let fh = rig.node().open(&CONTEXT, ino, libc::O_RDONLY).unwrap().fh;
        same(&rig.read_all(fh), &content, "read");
        assert_eq!(*moving.moves.lock(), MOVES);
        rig.node().release(fh);
        same(&rig.plain(&MOVES.to_string()), &content, "in the backing store");
    }
}

fn timed(file: i64) -> SetAttr {
    SetAttr {
        mtime: Some(SetTime::At(Timestamp::new(1_000_000_000 + file, 0))),
        ..SetAttr::default()
    }
}

fn mtime_below(rig: &Rig, name: &str) -> i64 {
    std::os::unix::fs::MetadataExt::mtime(&std::fs::metadata(rig.backing().join(name)).unwrap())
}

/// A file that is closed, written back and given a time, which comes while the one who does the rest
/// is held at a point.
fn set_time_while_held_at(point: &'static str) {
    set_time_of_one_held_at(point, (16 * MIB, 3000));
}

fn set_time_of_one_held_at(point: &'static str, (tier, len): (u64, u64)) {
    let _alone = rig::alone();
    let (writeback, tier) = (WritebackPolicy::OnClose, [tier]);
    let rig = Rig::new(&tier, Arc::new(Transparent), |config| config.writeback = writeback);
    let fh = rig.create("file");
    rig.write(fh, 0, &noise(1, len));
    let ino = rig.ino("file");
    let held = Held::at(point);
    std::thread::scope(|scope| {
        scope.spawn(|| rig.node().release(fh));
        held.wait();
        scope.spawn(|| rig.node().setattr(&CONTEXT, ino, &timed(5)).unwrap());
        std::thread::sleep(Duration::from_millis(100));
        held.release();
    });
    rig.drain();
    let shown = rig.node().getattr(&CONTEXT, ino).unwrap().attr.mtime;
    assert_eq!(shown, Timestamp::new(1_000_000_005, 0), "on the mount, {point}");
    assert_eq!(mtime_below(&rig, "file"), 1_000_000_005, "in the backing store, {point}");
}

#[test]
fn time_that_is_set_while_a_close_is_settled_then_stays() {
    set_time_while_held_at("node.settle.before_record");
    set_time_while_held_at("node.settle.after_record");
}

#[test]
fn time_that_is_set_while_a_close_is_written_back_then_stays() {
    let points = ["copied", "publish", "published"].map(|point| format!("node.flush.{point}"));
    for point in points.into_iter().chain(["node.clean.after_header".into()]) {
        set_time_while_held_at(point.leak());
    }
    set_time_while_held_at("node.reconcile.before_report");
}

#[test]
fn time_that_is_set_while_a_file_past_the_tier_is_written_back_then_stays() {
    set_time_of_one_held_at("node.settle.after_record", (4 * KIB, 300_000));
    for point in ["publish", "spill_published", "spill_noted", "published"] {
        let point = format!("node.flush.{point}");
        set_time_of_one_held_at(point.leak(), (4 * KIB, 300_000));
    }
    set_time_of_one_held_at("node.reconcile.before_report", (4 * KIB, 300_000));
}

#[test]
fn time_that_is_set_of_a_file_that_is_not_reported_when_the_daemon_dies_then_stays() {
    let _alone = rig::alone();
    let mut rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |_| {});
    rig.put("file", &noise(1, 3000));
    let ino = rig.ino("file");
    fail::cfg("node.clean.after_header", "panic").unwrap();
    let reconcile = std::panic::AssertUnwindSafe(|| rig.node().writeback().reconcile(ino));
    let died = std::panic::catch_unwind(reconcile).is_err();
    fail::remove("node.clean.after_header");
    assert!(died, "the worker does not come by there");
    rig.node().setattr(&CONTEXT, ino, &timed(5)).unwrap();
    rig.crash();
    rig.start();
    let shown = || rig.node().getattr(&CONTEXT, ino).unwrap().attr.mtime;
    assert_eq!(shown(), Timestamp::new(1_000_000_005, 0), "after the start");
    rig.drain();
    assert_eq!(shown(), Timestamp::new(1_000_000_005, 0), "after the drain");
    assert_eq!(mtime_below(&rig, "file"), 1_000_000_005);
    assert_eq!(rig.get("file"), noise(1, 3000));
}

#[test]
fn directory_when_synced_while_a_worker_reports_its_entries_then_has_its_time_below() {
    let _alone = rig::alone();
    let rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |_| {});
    let made = rig.node().mkdir(&CONTEXT, Ino::ROOT, b"dir", 0o755, 0o022).unwrap();
    rig.drain();
    let (new, flags) = (NewFile { mode: 0o644, umask: 0o022 }, libc::O_RDWR);
    let opened = rig.node().create_and_open(&CONTEXT, made.ino, b"file", new, flags).unwrap();
    rig.write(opened.1.fh, 0, b"content");
    rig.node().release(opened.1.fh);
    let shown = rig.node().getattr(&CONTEXT, made.ino).unwrap().attr.mtime;
    let held = Held::at("node.reconcile.after_report");
    std::thread::scope(|scope| {
        scope.spawn(|| rig.node().writeback().reconcile(opened.0.ino).unwrap());
        held.wait();
        let until = Instant::now() + LIMIT;
        rig.node().writeback().sync_subtree(made.ino, until, &mut |_| true).unwrap();
        let below = std::fs::metadata(rig.backing().join("dir")).unwrap().modified().unwrap();
        held.release();
        let below = below.duration_since(std::time::UNIX_EPOCH).unwrap();
        assert_eq!((below.as_secs().cast_signed(), below.subsec_nanos()), (shown.sec, shown.nsec));
    });
}

/// The worker ends as if the daemon had died, between the publication of a file and the report of the
/// directory that it was made in.
#[test]
fn file_published_into_a_new_directory_when_the_daemon_dies_before_the_report_then_it_opens() {
    for point in ["node.flush.spill_published", "node.flush.spill_noted"] {
        publish_and_die_at(point);
    }
}

fn publish_and_die_at(point: &str) {
    let _alone = rig::alone();
    let (writeback, tier) = (WritebackPolicy::OnEviction, [64 * KIB]);
    let mut rig = Rig::new(&tier, Arc::new(Transparent), |config| config.writeback = writeback);
    let bytes = noise(3, 200_000);
    let made = rig.node().mkdir(&CONTEXT, Ino::ROOT, b"dir", 0o755, 0o022).unwrap();
    let (new, flags) = (NewFile { mode: 0o644, umask: 0o022 }, libc::O_RDWR);
    let opened = rig.node().create_and_open(&CONTEXT, made.ino, b"file", new, flags).unwrap();
    rig.write(opened.1.fh, 0, &bytes);
    rig.node().release(opened.1.fh);
    fail::cfg(point, "panic").unwrap();
    let reconcile = std::panic::AssertUnwindSafe(|| rig.node().writeback().reconcile(opened.0.ino));
    let died = std::panic::catch_unwind(reconcile).is_err();
    fail::remove(point);
    assert!(died, "the file was not spilled");
    rig.crash();
    rig.start();
    let fh = rig.node().open(&CONTEXT, opened.0.ino, libc::O_RDONLY).unwrap().fh;
    assert_eq!(rig.read_all(fh), bytes);
    rig.node().release(fh);
    rig.drain();
    assert_eq!(std::fs::read(rig.backing().join("dir/file")).unwrap(), bytes);
}

/// What was published is not what the tier has, once somebody has written since.
#[test]
fn file_written_between_its_publication_and_its_report_then_stays_dirty_and_is_written_again() {
    let _alone = rig::alone();
    for point in ["node.flush.copied", "node.flush.published", "node.reconcile.before_report"] {
        for part_of_it in [false, true] {
            let what = format!("{point}, a part: {part_of_it}");
            let rig = Rig::small(16 * MIB);
            let mut content = noise(9, 600_000);
            std::fs::write(rig.backing().join("file"), &content).unwrap();
            if !part_of_it {
                rig.put("file", &content);
            }
            let write = |rig: &Rig, content: &mut [u8], seed| {
                let fh = rig.open("file", libc::O_WRONLY);
                let new = noise(seed, 5000);
                rig.write(fh, 100_000, &new);
                content[100_000..105_000].copy_from_slice(&new);
                rig.node().release(fh);
            };
            write(&rig, &mut content, 10);
            let held = Held::at(point);
            std::thread::scope(|scope| {
                let ino = rig.ino("file");
                let node = rig.node();
                scope.spawn(move || drop(node.writeback().reconcile(ino)));
                held.wait();
                write(&rig, &mut content, 11);
                held.release();
            });
            drop(held);
            rig.drain();
            same(&rig.plain("file"), &content, &what);
            assert!(rig.node().residency().evict_file(rig.ino("file")).unwrap(), "{what}");
            same(&rig.get("file"), &content, &what);
        }
    }
}

/// Notes the syncs of objects and the publications, in their order.
#[derive(Default)]
struct Order(Mutex<Vec<Operation>>);

impl Interceptor for Order {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }

    fn after(&self, operation: Operation) {
        if matches!(operation, Operation::Sync | Operation::Commit) {
            self.0.lock().push(operation);
        }
    }
}

/// A power cut could bring the header back as it was when the program synced, and the version that is
/// published without what was synced would count as the newer one.
#[test]
fn file_synced_while_an_older_copy_of_it_is_published_then_its_header_knows_that_one_before() {
    let _alone = rig::alone();
    for kept_open in [false, true] {
        let order = Arc::new(Order::default());
        let mut rig = Rig::unstarted(&[16 * MIB], order.clone(), |config| {
            config.writeback = WritebackPolicy::OnEviction;
        });
        rig.by_tier = Some(order.clone());
        rig.start();
        rig.put("file", &noise(1, 20_480));
        let (node, ino) = (rig.node(), rig.ino("file"));
        let open = || node.open(&CONTEXT, ino, libc::O_WRONLY).unwrap().fh;
        let before = kept_open.then(open);
        let held = Held::at("node.flush.checked");
        let bytes = noise(2, 20_480);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(node.writeback().reconcile(ino)));
            held.wait();
            let fh = before.unwrap_or_else(open);
            rig.write(fh, 0, &bytes);
            node.fsync(&CONTEXT, fh, true).unwrap();
            node.release(fh);
            order.0.lock().clear();
            held.release();
        });
        let done = order.0.lock().clone();
        let published = done.iter().position(|operation| *operation == Operation::Commit);
        let before = &done[..published.unwrap_or(done.len())];
        assert!(before.contains(&Operation::Sync), "kept open: {kept_open}: {done:?}");
        rig.drain();
        same(&rig.plain("file"), &bytes, "in the backing store");
    }
}

/// A program sets a time while the file is written back: in the record it is there, on the tier it comes
/// a moment later.
#[test]
fn times_when_set_while_their_file_is_copied_then_are_those_below() {
    let _alone = rig::alone();
    // A file alone, several that are staged together, and one that is written in place.
    let cases = [("node.flush.publish", 1, 1), ("node.flush.publish", 3, 1)];
    for (point, files, names) in cases.into_iter().chain([("node.flush.in_place_copied", 1, 2)]) {
        let rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |config| {
            config.writeback = WritebackPolicy::OnEviction;
        });
        let node = rig.node();
        for file in 0..files {
            rig.put(&format!("f{file}"), &noise(file, 3000));
        }
        let ino = rig.ino("f0");
        if names > 1 {
            node.link(&CONTEXT, ino, Ino::ROOT, b"other").unwrap();
            rig.drain();
            let fh = rig.open("f0", libc::O_WRONLY);
            rig.write(fh, 0, b"written");
            node.release(fh);
        }
        let mtime = Timestamp::new(1_000_000_000, 7);
        let setting = Held::at("node.attributes.before_object");
        let written = Held::at(point);
        let set = SetAttr { mtime: Some(SetTime::At(mtime)), ..SetAttr::default() };
        std::thread::scope(|scope| {
            let (come, arrived) = sync_channel(1);
            let (go, gone) = sync_channel(1);
            scope.spawn(move || {
                let mut first = true;
                let mut progress = |_| {
                    // It has looked for what was written, and has yet to write back.
                    if std::mem::take(&mut first) {
                        come.send(()).unwrap();
                        gone.recv_timeout(LIMIT).unwrap();
                    }
                    true
                };
                node.writeback()
                    .sync_subtree(Ino::ROOT, Instant::now() + LIMIT, &mut progress)
                    .unwrap();
            });
            arrived.recv_timeout(LIMIT).unwrap();
            scope.spawn(|| node.setattr(&CONTEXT, ino, &set).unwrap());
            setting.wait();
            go.send(()).unwrap();
            // It may also wait for the time.
            let _ = written.arrived.recv_timeout(Duration::from_secs(1));
            setting.release();
            written.release();
        });
        rig.drain();
        let found = std::fs::metadata(rig.backing().join("f0")).unwrap().modified().unwrap();
        let wanted = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 7);
        assert_eq!(found, wanted, "below, {files} files of {names} names");
        assert_eq!(node.getattr(&CONTEXT, ino).unwrap().attr.mtime, mtime);
    }
}

/// Others write into the version that is held for a file in conflict, under the name that they gave it.
#[test]
fn version_that_is_held_when_others_write_into_it_then_is_not_taken_for_the_one_written_over() {
    let _alone = rig::alone();
    let rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |config| {
        config.writeback = WritebackPolicy::OnEviction;
    });
    let at = |name: &str| rig.backing().join(name);
    std::fs::write(at("file"), vec![b'1'; 3 << 20]).unwrap();
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 0, &[b'0'; 1 << 20]);
    let mut buffer = [0; 100];
    rig.node().read(&CONTEXT, fh, 2 << 20, &mut buffer).unwrap();
    assert_eq!(buffer, [b'1'; 100]);
    std::fs::rename(at("file"), at("moved")).unwrap();
    std::fs::write(at("file"), b"theirs").unwrap();
    // The first flush finds the conflict, the second one writes the copy beside it.
    fail::cfg("node.flush.begin", "1*off->pause").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rig.node()
                .writeback()
                .sync_subtree(Ino::ROOT, Instant::now() + LIMIT, &mut |_| true)
                .unwrap()
        });
        let until = Instant::now() + LIMIT;
        while rig.node().writeback().conflicts().0 == 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::write(at("moved"), vec![b'2'; 3 << 20]).unwrap();
        let read = rig.node().read(&CONTEXT, fh, 2 << 20, &mut buffer);
        fail::remove("node.flush.begin");
        assert!(matches!(read, Err(forebay_node::NodeError::RestGone)), "{read:?}");
    });
    rig.node().release(fh);
    rig.drain();
    let (_, conflicts) = rig.node().writeback().conflicts();
    assert!(conflicts.iter().any(|conflict| conflict.why.contains("zeros")), "{conflicts:?}");
    let ours = conflicts.iter().find_map(|conflict| conflict.ours.as_deref()).unwrap();
    let copy = rig.plain(std::str::from_utf8(ours).unwrap());
    assert!(!copy.contains(&b'2'), "nothing of theirs");
    assert_eq!(copy[..1 << 20], [b'0'; 1 << 20]);
}

/// The empty version is an older one, and what the writer begins has to know it.
#[test]
fn file_published_empty_while_its_writer_waits_for_room_when_synced_then_outlives_a_power_cut() {
    let _alone = rig::alone();
    let mut rig = Rig::small(MIB);
    // Open and dirty, so that nothing makes room.
    let filler = rig.create("filler");
    rig.write(filler, 0, &noise(1, MIB - 64 * KIB));
    while rig.used() + 8 * KIB <= MIB {
        rig.put(&format!("small{}", rig.used()), &noise(2, 4 * KIB));
    }
    let (fh, data) = (rig.create("new"), noise(3, 100_000));
    let held = Held::at("node.spill.begin");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| rig.write(fh, 0, &data));
        held.wait();
        drop(rig.node().writeback().reconcile(rig.ino("new")));
        assert_eq!(rig.plain("new").len(), 0, "published empty");
        let empty = SetAttr { size: Some(0), ..SetAttr::default() };
        rig.node().setattr(&CONTEXT, rig.ino("filler"), &empty).unwrap();
        held.release();
        writer.join().unwrap();
    });
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    rig.crash();
    std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
    rig.start();
    same(&rig.get("new"), &data, "after the power cut");
}
