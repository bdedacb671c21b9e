//! A sync that a device failed once: the kernel has dropped the mark of the pages that it could not
//! write, and confirms the next sync of the same file whatever became of them.

mod rig;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use forebay_node::{Ino, NameIn, SetAttr};
use forebay_store::decorators::{Interceptor, Operation, Transparent, Verdict};
use rig::{CONTEXT, KIB, MIB, Rig, noise, same};

/// A device that fails a sync once, and has nothing of what was written before it and not again.
#[derive(Default)]
struct FailsOnce {
    /// A part of the paths of the files that it has.
    of: &'static str,
    fails: AtomicBool,
    /// Syncs that it has failed.
    failed: AtomicU64,
    /// Bytes that were written before the failure, and not again since.
    lost: AtomicU64,
    /// Bytes written since the last sync that succeeded or failed.
    written: AtomicU64,
    /// Met by the sync that fails and by the next one, which passes before the other one has its answer.
    beside: Option<Barrier>,
}

impl FailsOnce {
    fn of(of: &'static str) -> Arc<Self> {
        Arc::new(FailsOnce { of, ..FailsOnce::default() })
    }

    fn fail_next(&self) {
        self.fails.store(true, Ordering::SeqCst);
    }

    fn lost(&self) -> u64 {
        self.lost.load(Ordering::SeqCst)
    }

    fn failed(&self) -> u64 {
        self.failed.load(Ordering::SeqCst)
    }
}

impl Interceptor for FailsOnce {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }

    fn before_at(&self, operation: Operation, bytes: u64, label: &Path) -> Verdict {
        if !label.to_string_lossy().contains(self.of) {
            return Verdict::Pass;
        }
        match operation {
            Operation::Write => {
                self.written.fetch_add(bytes, Ordering::SeqCst);
                let less = |lost: u64| Some(lost.saturating_sub(bytes));
                let _all = self.lost.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
                Verdict::Pass
            }
            Operation::Sync => {
                let written = self.written.swap(0, Ordering::SeqCst);
                if written > 0 && self.fails.swap(false, Ordering::SeqCst) {
                    // What was written twice is lost once.
                    self.lost.store(written.min(bytes_in(label)), Ordering::SeqCst);
                    self.failed.fetch_add(1, Ordering::SeqCst);
                    if let Some(beside) = &self.beside {
                        beside.wait();
                        // The other one passes.
                        beside.wait();
                        std::thread::sleep(Duration::from_millis(100));
                    }
                    return Verdict::Fail(libc::EIO);
                }
                Verdict::Pass
            }
            _ => Verdict::Pass,
        }
    }

    fn after(&self, operation: Operation) {
        let failed = self.failed() > 0 && self.lost() > 0;
        if let (Operation::Sync, Some(beside), true) = (operation, &self.beside, failed) {
            beside.wait();
        }
    }
}

/// Bytes that a file has.
fn bytes_in(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata(path).unwrap();
    found.len().min(found.blocks() * 512)
}

/// A node whose tier is such a device.
fn over(device: &Arc<FailsOnce>) -> Rig {
    let mut rig = Rig::unstarted(&[16 * MIB], Arc::new(Transparent), |_| {});
    rig.by_tier = Some(device.clone());
    rig.start();
    rig
}

/// What is acknowledged is on the device.
fn sync_is_true(rig: &Rig, fh: u64, device: &FailsOnce) {
    let synced = rig.node().fsync(&CONTEXT, fh, false);
    let lost = device.lost();
    assert!(synced.is_err() || lost == 0, "{lost} bytes count as synced that are nowhere");
}

#[test]
fn sync_of_an_object_that_failed_once_when_asked_for_again_then_it_fails_or_all_was_written_again()
{
    let device = FailsOnce::of("objects");
    let rig = over(&device);
    let bytes = noise(1, 100 * KIB);
    let fh = rig.create("file");
    rig.write(fh, 0, &bytes);
    device.fail_next();
    assert!(rig.node().fsync(&CONTEXT, fh, false).is_err(), "the failure is told");
    for _ in 0..3 {
        sync_is_true(&rig, fh, &device);
    }
    // What the program writes once more can be synced again.
    rig.write(fh, 0, &bytes);
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    same(&rig.read_all(fh), &bytes, "read");
    rig.node().release(fh);
    rig.drain();
    same(&rig.plain("file"), &bytes, "in the backing store");
}

#[test]
fn sync_that_failed_before_the_last_close_when_asked_for_again_then_all_was_written_again() {
    let device = FailsOnce::of("objects");
    let rig = over(&device);
    let bytes = noise(2, 100 * KIB);
    let fh = rig.create("file");
    rig.write(fh, 0, &bytes);
    device.fail_next();
    assert!(rig.node().fsync(&CONTEXT, fh, false).is_err(), "the failure is told");
    let mtime = rig.node().getattr(&CONTEXT, rig.ino("file")).unwrap().attr.mtime;
    rig.node().release(fh);
    let fh = rig.open("file", libc::O_RDONLY);
    sync_is_true(&rig, fh, &device);
    assert_eq!(device.lost(), 0, "nobody else has it open: it can be written again");
    let now = rig.node().getattr(&CONTEXT, rig.ino("file")).unwrap().attr.mtime;
    assert_eq!(now, mtime, "nothing was written as programs see it");
    rig.node().release(fh);
}

#[test]
fn sync_that_failed_before_the_daemon_died_when_asked_for_again_then_all_was_written_again() {
    let device = FailsOnce::of("objects");
    let mut rig = over(&device);
    let bytes = noise(3, 100 * KIB);
    let fh = rig.create("file");
    rig.write(fh, 0, &bytes);
    device.fail_next();
    assert!(rig.node().fsync(&CONTEXT, fh, false).is_err(), "the failure is told");
    rig.crash();
    rig.start();
    let fh = rig.open("file", libc::O_RDONLY);
    sync_is_true(&rig, fh, &device);
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    assert!(!rig.config.tiers[0].dir.join("state/failed-syncs").exists(), "it is made good");
    rig.node().release(fh);
}

#[test]
fn sync_beside_one_that_fails_then_does_not_take_its_bytes_for_written() {
    let device = FailsOnce { of: "objects", beside: Some(Barrier::new(2)), ..FailsOnce::default() };
    let device = Arc::new(device);
    let rig = over(&device);
    let fh = rig.create("file");
    rig.write(fh, 0, &noise(4, 100 * KIB));
    let other = rig.open("file", libc::O_RDONLY);
    device.fail_next();
    std::thread::scope(|scope| {
        let failing = scope.spawn(|| rig.node().fsync(&CONTEXT, fh, true));
        device.beside.as_ref().unwrap().wait();
        let beside = rig.node().fsync(&CONTEXT, other, true);
        assert!(failing.join().unwrap().is_err(), "the failure is told");
        assert!(beside.is_err(), "{} bytes count as synced that are nowhere", device.lost());
    });
    rig.node().release(other);
    rig.node().release(fh);
}

#[test]
fn write_back_when_a_sync_of_the_object_fails_then_all_of_it_is_written_again() {
    let device = FailsOnce::of("objects");
    let rig = over(&device);
    let bytes = noise(5, 100 * KIB);
    rig.put("file", &bytes);
    device.fail_next();
    let until = std::time::Instant::now() + Duration::from_secs(20);
    let _left = rig.node().writeback().drain(until, &mut |_| true);
    rig.drain();
    assert_eq!((device.failed(), device.lost()), (1, 0), "clean, and not on the tier's device");
    same(&rig.plain("file"), &bytes, "in the backing store");
}

#[test]
fn copy_of_a_version_when_its_sync_fails_then_it_is_not_changed_before_it_is_written_again() {
    let device = FailsOnce::of("objects");
    let rig = over(&device);
    let bytes = noise(6, 100 * KIB);
    std::fs::write(rig.backing().join("file"), &bytes).unwrap();
    let fh = rig.open("file", libc::O_RDWR);
    device.fail_next();
    let mut tries = 0;
    while let Err(error) = rig.node().residency().warm_file(rig.ino("file"), &mut |_| true) {
        tries += 1;
        assert!(tries < 3, "{error:?}");
    }
    rig.write(fh, 10, b"changed");
    assert_eq!(device.failed(), 1, "a copy is durable before it is taken for whole and changed");
    assert_eq!(device.lost(), 0, "what a power cut leaves counts in place of the version");
    rig.node().release(fh);
}

#[test]
fn spill_file_when_its_sync_failed_once_then_the_next_one_writes_it_again() {
    let device = FailsOnce::of(".forebay/spill");
    let rig = Rig::new(&[64 * KIB], device.clone(), |_| {});
    let bytes = noise(7, 400 * KIB);
    let fh = rig.create("file");
    for (index, piece) in bytes.chunks(100_000).enumerate() {
        rig.write(fh, index as u64 * 100_000, piece);
    }
    device.fail_next();
    assert!(rig.node().fsync(&CONTEXT, fh, false).is_err(), "the failure is told");
    assert!(device.lost() > 0, "it was the spill file's");
    sync_is_true(&rig, fh, &device);
    same(&rig.read_all(fh), &bytes, "read");
    rig.node().release(fh);
    rig.drain();
    same(&rig.plain("file"), &bytes, "in the backing store");
}

#[test]
fn spill_file_when_its_sync_failed_before_the_last_close_then_it_is_not_published_as_it_is() {
    let device = FailsOnce::of(".forebay/spill");
    let rig = Rig::new(&[64 * KIB], device.clone(), |_| {});
    let bytes = noise(8, 400 * KIB);
    let fh = rig.create("file");
    for (index, piece) in bytes.chunks(100_000).enumerate() {
        rig.write(fh, index as u64 * 100_000, piece);
    }
    device.fail_next();
    assert!(rig.node().fsync(&CONTEXT, fh, false).is_err(), "the failure is told");
    rig.node().release(fh);
    rig.drain();
    assert_eq!((device.failed(), device.lost()), (1, 0), "published, and not on the device");
    same(&rig.plain("file"), &bytes, "in the backing store");
}

#[test]
fn new_version_when_its_sync_fails_then_it_is_begun_anew() {
    let device = FailsOnce::of(".forebay/tmp");
    let rig = Rig::new(&[16 * MIB], device.clone(), |_| {});
    let bytes = noise(9, 100 * KIB);
    rig.put("file", &bytes);
    device.fail_next();
    let until = std::time::Instant::now() + Duration::from_secs(20);
    let _left = rig.node().writeback().drain(until, &mut |_| true);
    rig.drain();
    assert_eq!((device.failed(), device.lost()), (1, 0), "published, and not on the device");
    same(&rig.plain("file"), &bytes, "in the backing store");
}

/// A store that takes its time to sync spill files.
struct SlowToSync;

impl Interceptor for SlowToSync {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }

    fn before_at(&self, operation: Operation, _: u64, label: &Path) -> Verdict {
        if operation == Operation::Sync && label.to_string_lossy().contains(".forebay/spill") {
            std::thread::sleep(Duration::from_millis(150));
        }
        Verdict::Pass
    }
}

/// Each locks the map of the file, and waits for other syncs of it: `sed -i` on a full tier.
#[test]
fn file_that_was_cut_when_renamed_over_another_beside_its_write_back_then_neither_waits_for_ever() {
    let rig = Rig::new(&[512 * KIB], Arc::new(SlowToSync), |_| {});
    rig.put("old", b"what was there");
    rig.drain();
    let fh = rig.create("new");
    for (index, piece) in noise(9, 900 * KIB).chunks(100_000).enumerate() {
        rig.write(fh, index as u64 * 100_000, piece);
    }
    let size = SetAttr { size: Some(100_000), ..SetAttr::default() };
    rig.node().setattr(&CONTEXT, rig.ino("new"), &size).unwrap();
    rig.write(fh, 300_000, b"its end");
    rig.node().release(fh);
    let (node, new) = (rig.node().clone(), rig.ino("new"));
    let (told, done) = std::sync::mpsc::channel();
    let also_told = told.clone();
    let written = node.clone();
    std::thread::spawn(move || {
        // It is in the hands of a worker, or has its other name by then.
        written.writeback().reconcile(new).ok();
        told.send("written back").ok();
    });
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        let [from, to] = [b"new", b"old"].map(|name| NameIn::new(Ino::ROOT, name));
        node.rename(&CONTEXT, from, to, 0).unwrap();
        also_told.send("renamed").ok();
    });
    for _ in 0..2 {
        done.recv_timeout(Duration::from_secs(30)).expect("one waits for the other");
    }
    rig.drain();
    let mut wanted = noise(9, 900 * KIB)[..100_000].to_vec();
    wanted.resize(300_000, 0);
    wanted.extend_from_slice(b"its end");
    same(&rig.plain("old"), &wanted, "in the backing store");
}

/// Else the next sync would be confirmed without what the kernel has dropped.
#[test]
fn note_of_failed_syncs_when_it_cannot_be_read_then_the_start_is_refused_and_it_stays() {
    let device = FailsOnce::of("objects");
    let mut rig = over(&device);
    let fh = rig.create("file");
    rig.write(fh, 0, &noise(4, 100 * KIB));
    device.fail_next();
    assert!(rig.node().fsync(&CONTEXT, fh, false).is_err(), "the failure is told");
    rig.crash();
    let note = rig.config.tiers[0].dir.join("state/failed-syncs");
    let kept = note.with_extension("kept");
    std::fs::rename(&note, &kept).unwrap();
    // What stands there can't be read as a file.
    std::fs::create_dir(&note).unwrap();
    let backing = Arc::new(forebay_store::DirBacking::open(rig.backing(), "n").unwrap());
    let started = loop {
        match forebay_node::Node::start_on(rig.config.clone(), backing.clone()) {
            Err(forebay_node::NodeError::Store(forebay_store::StoreError::Locked { .. })) => {}
            started => break started,
        }
    };
    let said = started.err().map(|error| error.to_string()).expect("it starts without the note");
    assert!(said.contains("failed-syncs"), "{said}");
    std::fs::remove_dir(&note).unwrap();
    std::fs::rename(&kept, &note).unwrap();
    rig.start();
    let fh = rig.open("file", libc::O_RDONLY);
    sync_is_true(&rig, fh, &device);
    rig.node().release(fh);
}
