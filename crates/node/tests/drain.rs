//! Write-back of everything while removed files are kept by those who have them open.

mod rig;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_node::{
    Durability, Ino, NameIn, NodeConfig, Remaining, SetAttr, SetTime, Timestamp, WritebackPolicy,
};
use forebay_store::decorators::{Flaky, Interceptor, Operation, Rule, Transparent, Verdict};
use forebay_testing::wait_until;
use rig::{CONTEXT, MIB, Rig, noise};

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(20);
/// Longer than a drain takes that waits for nobody.
const MEANWHILE: Duration = Duration::from_millis(300);

fn drain(rig: &Rig) -> Remaining {
    rig.node().writeback().drain(Instant::now() + LIMIT, &mut |_| true).unwrap()
}

#[test]
fn directory_when_synced_to_the_backing_store_while_files_in_it_are_open_then_it_does_not_wait() {
    let rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |config| {
        config.durability = Durability::Backing;
        config.backing_timeout = Duration::from_secs(60);
    });
    let (journal, empty) = (rig.create("journal"), rig.create("empty"));
    for round in 1..4 {
        let data = noise(round, 5000 * round);
        rig.write(journal, 0, &data);
        let began = Instant::now();
        rig.node().fsync(&CONTEXT, journal, false).unwrap();
        rig.node().fsync_dir(&CONTEXT, Ino::ROOT).unwrap();
        assert!(began.elapsed() < Duration::from_secs(50), "took {:?}", began.elapsed());
        assert_eq!((rig.plain("journal"), rig.plain("empty")), (data, vec![]));
    }
    rig.node().release(journal);
    rig.node().release(empty);
}

#[test]
fn file_that_is_open_and_written_when_its_copy_is_to_go_then_it_stays_at_once() {
    let rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |config| {
        config.backing_timeout = Duration::from_secs(60);
    });
    let fh = rig.create("file");
    rig.write(fh, 0, &noise(1, 5000));
    rig.node().writeback().sync_subtree(Ino::ROOT, Instant::now() + LIMIT, &mut |_| true).unwrap();
    let began = Instant::now();
    assert!(!rig.node().writeback().write_back_unused(rig.ino("file")).unwrap());
    assert!(began.elapsed() < Duration::from_secs(50), "took {:?}", began.elapsed());
    rig.node().release(fh);
    assert!(rig.node().writeback().write_back_unused(rig.ino("file")).unwrap());
    assert!(rig.node().residency().evict_file(rig.ino("file")).unwrap());
    assert_eq!(rig.get("file"), noise(1, 5000));
}

/// Counts what is asked of the backing store.
#[derive(Default)]
struct Asked(AtomicU64);

impl Interceptor for Asked {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        self.0.fetch_add(1, Ordering::Relaxed);
        Verdict::Pass
    }
}

/// A sync came to each of them again and again for two seconds, as none could be called clean.
#[test]
fn sync_when_files_are_open_for_writing_then_each_has_one_turn() {
    let asked = Arc::new(Asked::default());
    let rig = Rig::new(&[16 * MIB], asked.clone(), |config| {
        config.writeback = WritebackPolicy::OnEviction;
    });
    let names = ["first", "second", "third"];
    let open: Vec<_> = names.iter().map(|name| rig.create(name)).collect();
    for round in 1..4 {
        let data = noise(round, 100_000);
        open.iter().for_each(|fh| rig.write(*fh, 0, &data));
        let before = asked.0.load(Ordering::Relaxed);
        let until = Instant::now() + LIMIT;
        let synced = rig.node().writeback().sync_subtree(Ino::ROOT, until, &mut |_| true).unwrap();
        let asked = asked.0.load(Ordering::Relaxed) - before;
        assert_eq!((synced.complete, synced.in_use), (true, 3), "{synced:?}");
        // Just as many as after a close: 58.
        assert!(asked < 100, "{asked} questions for three files");
        names.iter().for_each(|name| assert_eq!(rig.plain(name), data, "{name} in round {round}"));
    }
    open.into_iter().for_each(|fh| rig.node().release(fh));
    rig.drain();
}

/// It was said that all is there, and these waited for the close.
#[test]
fn sync_when_the_attributes_of_an_open_file_were_changed_then_they_are_below() {
    let rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |config| {
        config.writeback = WritebackPolicy::OnEviction;
    });
    let fh = rig.create("file");
    rig.write(fh, 0, &noise(1, 5000));
    let sync = || {
        let until = Instant::now() + LIMIT;
        rig.node().writeback().sync_subtree(Ino::ROOT, until, &mut |_| true).unwrap()
    };
    assert!(sync().complete);
    let ino = rig.ino("file");
    for mode in [0o600, 0o640] {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        rig.node().setattr(&CONTEXT, ino, &set).unwrap();
        rig.node().set_xattr(&CONTEXT, ino, b"user.mode", &mode.to_le_bytes(), 0, false).unwrap();
        let synced = sync();
        assert_eq!((synced.complete, synced.in_use), (true, 1), "{synced:?}");
        let below = rig.backing().join("file");
        assert_eq!(below.metadata().unwrap().mode() & 0o7777, mode);
        let mut value = [0; 4];
        rustix::fs::getxattr(&below, "user.mode", &mut value).unwrap();
        assert_eq!(value, mode.to_le_bytes());
    }
    rig.node().release(fh);
    rig.drain();
    assert!(rig.plain("file") == noise(1, 5000));
}

#[test]
fn fsync_to_the_backing_store_when_the_file_was_removed_and_has_a_name_that_nobody_has_looked_at_then_it_returns()
 {
    let rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |config| {
        config.durability = Durability::Backing;
        config.backing_timeout = Duration::from_secs(20);
    });
    for dir in ["known", "unseen"] {
        std::fs::create_dir(rig.backing().join(dir)).unwrap();
    }
    let [known, unseen] = ["known/file", "unseen/file"].map(|name| rig.backing().join(name));
    std::fs::write(&known, b"bytes").unwrap();
    std::fs::hard_link(&known, &unseen).unwrap();
    let dir = rig.ino("known");
    let ino = rig.node().lookup(&CONTEXT, dir, b"file").unwrap().unwrap().ino;
    let fh = rig.node().open(&CONTEXT, ino, libc::O_RDWR).unwrap().fh;
    rig.node().unlink(&CONTEXT, dir, b"file").unwrap();
    rig.write(fh, 0, b"after");
    let began = Instant::now();
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "took {:?}", began.elapsed());
    assert_eq!(std::fs::read(unseen).unwrap(), b"after");
    rig.node().release(fh);
}

#[test]
fn drain_when_a_removed_file_is_closed_meanwhile_then_ends_after_it() {
    let rig = Rig::small(16 * MIB);
    let fh = rig.create("gone");
    rig.write(fh, 0, &noise(1, 10_000));
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"gone").unwrap();
    let left = std::thread::scope(|scope| {
        let drained = scope.spawn(|| (drain(&rig), rig.used()));
        std::thread::sleep(MEANWHILE);
        rig.node().release(fh);
        drained.join().unwrap()
    });
    assert_eq!(left, (Remaining::default(), 0));
}

#[test]
fn drain_when_a_removed_file_stays_open_then_says_that_it_is_in_use() {
    let rig = Rig::small(16 * MIB);
    rig.put("stays", b"written back");
    let fh = rig.create("gone");
    rig.write(fh, 0, &noise(1, 10_000));
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"gone").unwrap();
    let begun = Instant::now();
    let left = drain(&rig);
    assert_eq!((left.entries, left.in_use), (0, true), "{left:?}");
    assert!(begun.elapsed() < LIMIT / 2, "{:?}", begun.elapsed());
    assert_eq!(rig.plain("stays"), b"written back");
    rig.node().release(fh);
    assert_eq!((drain(&rig), rig.node().writeback().removed_in_use()), (Remaining::default(), 0));
}

/// Its entries are written back, which moves its time; then the daemon is gone before that was undone.
#[test]
fn directory_when_the_daemon_dies_after_its_entries_were_written_then_it_gets_its_time() {
    let late = |config: &mut NodeConfig| config.writeback = WritebackPolicy::OnEviction;
    let mut rig = Rig::new(&[16 * MIB], Arc::new(Transparent), late);
    let dir = rig.node().mkdir(&CONTEXT, Ino::ROOT, b"dir", 0o755, 0).unwrap().ino;
    rig.put("file", b"bytes");
    rig.node()
        .rename(&CONTEXT, NameIn::new(Ino::ROOT, b"file"), NameIn::new(dir, b"file"), 0)
        .unwrap();
    let then = Timestamp::new(1_000_000_000, 0);
    let set = SetAttr { mtime: Some(SetTime::At(then)), ..SetAttr::default() };
    rig.node().setattr(&CONTEXT, dir, &set).unwrap();
    let file = rig.node().lookup(&CONTEXT, dir, b"file").unwrap().unwrap().ino;
    rig.node().writeback().reconcile(file).unwrap();
    rig.crash();
    rig.start();
    rig.drain();
    let found = std::fs::metadata(rig.backing().join("dir")).unwrap();
    assert_eq!(found.mtime(), 1_000_000_000);
}

/// Holds a flush of `file` up before it begins, and then the sync of its name.
#[derive(Default)]
struct SlowSync {
    armed: AtomicBool,
    looked: AtomicBool,
    goes_on: AtomicBool,
    /// A sync of names takes long.
    syncing: AtomicBool,
    durable: AtomicBool,
}

impl Interceptor for SlowSync {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }

    fn before_at(&self, operation: Operation, _: u64, label: &Path) -> Verdict {
        if !self.armed.load(Ordering::Acquire) {
            return Verdict::Pass;
        }
        if operation == Operation::Stat && label == Path::new("file") {
            self.looked.store(true, Ordering::Release);
            wait_until("another worker", || self.goes_on.load(Ordering::Acquire));
        }
        if operation == Operation::Sync && label.as_os_str().is_empty() {
            self.syncing.store(true, Ordering::Release);
            // Longer than another worker waits for this one.
            std::thread::sleep(Duration::from_secs(4));
            self.durable.store(true, Ordering::Release);
        }
        Verdict::Pass
    }
}

#[test]
fn fsync_when_another_worker_has_published_the_file_then_waits_until_its_name_is_durable() {
    let by = Arc::new(SlowSync::default());
    let rig = Rig::new(&[16 * MIB], by.clone(), |config| {
        config.durability = Durability::Backing;
        config.backing_timeout = Duration::from_secs(60);
    });
    rig.put("file", b"first");
    rig.drain();
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 0, b"other");
    by.armed.store(true, Ordering::Release);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| {
            let until = Instant::now() + LIMIT;
            rig.node().writeback().sync_subtree(Ino::ROOT, until, &mut |_| true).unwrap();
        });
        wait_until("a look", || by.looked.load(Ordering::Acquire));
        let fsync = scope.spawn(|| {
            rig.node().fsync(&CONTEXT, fh, false).unwrap();
            by.durable.load(Ordering::Acquire)
        });
        std::thread::sleep(MEANWHILE);
        by.goes_on.store(true, Ordering::Release);
        assert!(fsync.join().unwrap(), "confirmed before the name was durable");
        sync.join().unwrap();
    });
    assert!(by.syncing.load(Ordering::Acquire));
    assert_eq!(rig.plain("file"), b"other");
    rig.node().release(fh);
}

/// It has no path here any more, and was named by none.
#[test]
fn sync_when_the_store_refuses_a_removal_then_it_is_named_by_its_path_there() {
    let flaky = Arc::new(Flaky::new(1));
    let rig = Rig::new(&[16 * MIB], flaky.clone(), |_| {});
    std::fs::create_dir(rig.backing().join("dir")).unwrap();
    std::fs::write(rig.backing().join("dir/file"), b"bytes").unwrap();
    let dir = rig.ino("dir");
    assert!(rig.node().lookup(&CONTEXT, dir, b"file").unwrap().is_some());
    flaky.set_rules([Rule::always(Operation::Remove, libc::EPERM)]);
    rig.node().unlink(&CONTEXT, dir, b"file").unwrap();
    let until = Instant::now() + LIMIT;
    let synced = rig.node().writeback().sync_subtree(Ino::ROOT, until, &mut |_| true).unwrap();
    let named: Vec<_> = synced.failures.iter().map(|(path, _)| &path[..]).collect();
    assert_eq!((synced.complete, named), (false, vec![&b"dir/file"[..]]), "{synced:?}");
    flaky.set_rules([]);
    rig.drain();
}
