//! Spill files that nobody needs any more: they go together, after what let go of them is durable, and
//! nobody waits for that.
#![cfg(feature = "failpoints")]

mod rig;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use forebay_meta::{Embedded, EmbeddedOptions, MetaStore, Options, Timestamp};
use forebay_node::{AtOnce, Context, Ino, NodeConfig, NodeError, SetAttr, WritebackPolicy};
use forebay_store::decorators::{Interceptor, Operation, Transparent, Verdict};
use forebay_testing::{wait_for, wait_until};
use parking_lot::Mutex;
use rig::{CONTEXT, KIB, MIB, Rig, noise, same};

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(20);

/// Where the namespace is made durable before spill files go.
const SYNC: &str = "node.spill.before_sync";

/// Whose request is not carried out if it has to wait.
const READER: Context = Context { waiter: Some(&AtOnce), ..CONTEXT };

/// Takes a fail point back at the end.
struct Point(&'static str);

impl Drop for Point {
    fn drop(&mut self) {
        fail::remove(self.0);
    }
}

/// How often somebody comes by a fail point.
fn counted(point: &'static str) -> (Point, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let counter = count.clone();
    fail::cfg_callback(point, move || {
        counter.fetch_add(1, Ordering::AcqRel);
    })
    .unwrap();
    (Point(point), count)
}

/// Holds the first who comes by a fail point: says that he has come, and lets him go.
fn held(point: &'static str) -> (Point, Receiver<()>, SyncSender<()>) {
    held_when(point, || true)
}

/// As [`held`], the first for whom `when` holds.
fn held_when(
    point: &'static str,
    when: impl Fn() -> bool + Send + Sync + 'static,
) -> (Point, Receiver<()>, SyncSender<()>) {
    let (come, arrived) = sync_channel(1);
    let (go, gone) = sync_channel(1);
    let (first, gone) = (AtomicBool::new(true), Mutex::new(gone));
    fail::cfg_callback(point, move || {
        if when() && first.swap(false, Ordering::AcqRel) {
            come.send(()).unwrap();
            let _ = gone.lock().recv_timeout(LIMIT);
        }
    })
    .unwrap();
    (Point(point), arrived, go)
}

/// A node whose only tier is held by a file that is open, so that all else goes past it; its handle.
fn full() -> (Rig, u64) {
    let rig = Rig::small(MIB);
    let fh = rig.create("filler");
    rig.write(fh, 0, &noise(1, MIB - 8 * KIB));
    (rig, fh)
}

fn spill_files(rig: &Rig) -> Vec<PathBuf> {
    let found = std::fs::read_dir(rig.backing().join(".forebay/spill"));
    found.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn wait_until_all_went(rig: &Rig) {
    assert!(wait_for(LIMIT, || spill_files(rig).is_empty()), "{:?}", spill_files(rig));
}

fn empty(rig: &Rig, name: &str, by: &Context) -> Result<(), NodeError> {
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    rig.node().setattr(by, rig.ino(name), &set).map(drop)
}

const MANY: u64 = 40;

/// Files that lay past the tier and were emptied, and whose spill files are there still, until the
/// point goes.
fn many_let_go_of() -> (Rig, Point) {
    let (rig, filler) = full();
    let unsynced = Point(SYNC);
    fail::cfg(SYNC, "return").unwrap();
    for number in 0..MANY {
        let name = format!("file{number}");
        rig.put(&name, &noise(number, 30 * KIB));
        empty(&rig, &name, &CONTEXT).unwrap();
    }
    assert!(spill_files(&rig).len() as u64 >= MANY, "{:?}", spill_files(&rig));
    rig.node().release(filler);
    (rig, unsynced)
}

#[test]
fn spill_files_when_many_are_needed_no_more_then_a_start_syncs_once_for_all() {
    let _alone = rig::alone();
    let (mut rig, unsynced) = many_let_go_of();
    rig.crash();
    drop(unsynced);
    let (_point, syncs) = counted(SYNC);
    rig.start();
    wait_until_all_went(&rig);
    // The thread that looks now and then may find the last of them.
    assert!(syncs.load(Ordering::Acquire) <= 3, "{syncs:?}");
    for number in 0..MANY {
        assert_eq!(rig.size(&format!("file{number}")), 0);
    }
}

#[test]
fn spill_files_when_many_are_needed_no_more_then_a_stop_syncs_once_for_all() {
    let _alone = rig::alone();
    let (rig, unsynced) = many_let_go_of();
    drop(unsynced);
    let (_point, syncs) = counted(SYNC);
    rig.node().stop(LIMIT);
    assert!(spill_files(&rig).is_empty());
    assert!(syncs.load(Ordering::Acquire) <= 3, "{syncs:?}");
}

#[test]
fn spill_file_of_a_removed_file_when_the_daemon_dies_first_then_the_next_start_removes_it() {
    let _alone = rig::alone();
    let (mut rig, filler) = full();
    let unsynced = Point(SYNC);
    fail::cfg(SYNC, "return").unwrap();
    rig.put("file", &noise(2, 30 * KIB));
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"file").unwrap();
    rig.node().release(filler);
    assert_eq!(spill_files(&rig).len(), 1);
    rig.crash();
    drop(unsynced);
    rig.start();
    wait_until_all_went(&rig);
    assert_eq!(rig.node().residency().set_aside().files, 0);
}

#[test]
fn spill_file_of_a_file_that_is_removed_while_open_when_the_daemon_ends_then_the_next_start_removes_it()
 {
    let _alone = rig::alone();
    for is_killed in [true, false] {
        let (mut rig, filler) = full();
        let fh = rig.create("file");
        rig.write(fh, 0, &noise(2, 30 * KIB));
        rig.node().unlink(&CONTEXT, Ino::ROOT, b"file").unwrap();
        rig.node().release(filler);
        assert_eq!(spill_files(&rig).len(), 1);
        if !is_killed {
            rig.node().stop(LIMIT);
        }
        rig.crash();
        rig.start();
        wait_until_all_went(&rig);
        assert_eq!(rig.node().residency().set_aside().files, 0, "killed: {is_killed}");
    }
}

/// As when the daemon dies right after it has removed the record, or another node removes it while this one
/// is down.
#[test]
fn spill_file_when_only_the_namespace_says_that_its_file_was_removed_then_the_next_start_removes_it()
 {
    let _alone = rig::alone();
    let (mut rig, filler) = full();
    rig.put("file", &noise(2, 30 * KIB));
    rig.node().release(filler);
    rig.crash();
    assert_eq!(spill_files(&rig).len(), 1);
    let meta = namespace(&rig);
    meta.unlink(Ino::ROOT, b"file", Timestamp::new(9, 0), false).unwrap();
    meta.close();
    drop(meta);
    rig.start();
    wait_until_all_went(&rig);
    assert_eq!(rig.node().residency().set_aside().files, 0);
    rig.crash();
    assert_eq!(noted(&rig), 0, "what was noted of it stays");
}

/// The namespace of a node that does not run.
fn namespace(rig: &Rig) -> MetaStore {
    let state = rig.config.tiers[0].dir.join("state/meta");
    let engine = Embedded::open(&state, &EmbeddedOptions::default()).unwrap();
    MetaStore::open(Box::new(engine), &Options::default()).unwrap()
}

/// The files of whose spill files the namespace of a node that does not run has notes.
fn noted(rig: &Rig) -> usize {
    let meta = namespace(rig);
    let noted = meta.settings_like("spill.").unwrap().len();
    meta.close();
    noted
}

#[test]
fn notes_of_spill_files_that_a_killed_daemon_had_removed_then_go_with_the_next_start() {
    let _alone = rig::alone();
    let (mut rig, unsynced) = many_let_go_of();
    rig.put("kept", &noise(7, 30 * KIB));
    let kept = rig.ino("kept");
    let is_kept = |path: &PathBuf| path.to_string_lossy().contains(&format!("{:x}", kept.0));
    rig.crash();
    drop(unsynced);
    for gone in spill_files(&rig).into_iter().filter(|path| !is_kept(path)) {
        std::fs::remove_file(gone).unwrap();
    }
    assert!(noted(&rig) as u64 >= MANY);
    rig.start();
    same(&rig.get("kept"), &noise(7, 30 * KIB), "kept");
    rig.crash();
    assert!(noted(&rig) <= 1, "{}", noted(&rig));
}

#[test]
fn writer_past_the_tier_when_others_spill_files_wait_for_a_sync_then_does_not_wait_for_it() {
    let _alone = rig::alone();
    let (rig, filler) = full();
    for name in ["emptied", "removed"] {
        rig.put(name, &noise(2, 30 * KIB));
    }
    let unsynced = Point(SYNC);
    fail::cfg(SYNC, "return").unwrap();
    empty(&rig, "emptied", &CONTEXT).unwrap();
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"removed").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    drop(unsynced);
    let (_point, arrived, go) = held(SYNC);
    arrived.recv_timeout(LIMIT).expect("nobody makes it durable");
    let begun = Instant::now();
    rig.put("new", &noise(3, 30 * KIB));
    // And the very file: what it has now must not go with what it had.
    let fh = rig.open("emptied", libc::O_RDWR);
    rig.write(fh, 0, &noise(4, 30 * KIB));
    let took = begun.elapsed();
    go.send(()).unwrap();
    assert!(took < LIMIT / 2, "{took:?}");
    std::thread::sleep(Duration::from_millis(300));
    rig.node().release(fh);
    for (name, seed) in [("new", 3), ("emptied", 4)] {
        same(&rig.get(name), &noise(seed, 30 * KIB), name);
    }
    rig.node().release(filler);
    rig.drain();
    same(&rig.plain("emptied"), &noise(4, 30 * KIB), "in the backing store");
    wait_until_all_went(&rig);
}

/// A file lets go of its spill file, gets another and lets go of that, all while the batch of the first
/// waits to be durable: the second is not, and stays until it is.
#[test]
fn spill_file_when_let_go_of_twice_during_a_sync_then_the_second_waits_for_the_next() {
    let _alone = rig::alone();
    let (rig, _filler) = full();
    rig.put("file", &noise(2, 30 * KIB));
    let (_point, arrived, go) = held(SYNC);
    empty(&rig, "file", &CONTEXT).unwrap();
    arrived.recv_timeout(LIMIT).expect("nobody makes it durable");
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 0, &noise(4, 30 * KIB));
    empty(&rig, "file", &CONTEXT).unwrap();
    fail::cfg(SYNC, "return").unwrap();
    go.send(()).unwrap();
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(spill_files(&rig).len(), 1);
    fail::remove(SYNC);
    rig.node().release(fh);
    wait_until_all_went(&rig);
}

#[test]
fn reader_that_empties_a_file_when_it_goes_past_the_tier_meanwhile_then_has_to_wait() {
    let _alone = rig::alone();
    let (rig, _filler) = full();
    let fh = rig.create("file");
    let (_point, arrived, go) = held("node.truncate.looked");
    let (_syncs_point, syncs) = counted(SYNC);
    std::thread::scope(|scope| {
        let emptied = scope.spawn(|| empty(&rig, "file", &READER));
        arrived.recv_timeout(LIMIT).expect("nobody truncates");
        rig.write(fh, 0, &noise(4, 60 * KIB));
        let before = syncs.load(Ordering::Acquire);
        go.send(()).unwrap();
        let done = emptied.join().unwrap();
        assert!(matches!(done, Err(NodeError::Busy)), "{done:?}");
        assert_eq!(syncs.load(Ordering::Acquire), before);
    });
    same(&rig.read_all(fh), &noise(4, 60 * KIB), "nothing has changed");
    empty(&rig, "file", &CONTEXT).unwrap();
    assert_eq!(rig.size("file"), 0);
    rig.node().release(fh);
}

/// Takes a file away in the backing store, as a program does that waits for finished ones there.
fn take(rig: &Rig, name: &str) -> Vec<u8> {
    let taken = rig.dir.join("taken");
    std::fs::rename(rig.backing().join(name), &taken).unwrap();
    std::fs::read(taken).unwrap()
}

/// What others have taken stays away, and no conflict is made of it.
fn assert_stays_away(rig: &Rig, name: &str) {
    std::thread::sleep(Duration::from_secs(2));
    rig.drain();
    assert!(!rig.backing().join(name).exists(), "it is in the backing store again");
    let found = rig.node().lookup(&CONTEXT, Ino::ROOT, name.as_bytes()).unwrap();
    assert!(found.is_none(), "it is on the mount again: {found:?}");
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

fn written_back_at_once(config: &mut NodeConfig) {
    config.writeback = WritebackPolicy::After(Duration::from_millis(50));
    config.attr_timeout = Duration::ZERO;
}

#[test]
fn new_file_past_the_tier_when_others_take_it_as_soon_as_it_is_there_then_it_does_not_come_back() {
    for size in [3 * MIB, 300 * KIB] {
        let rig = Rig::new(&[MIB], Arc::new(Transparent), written_back_at_once);
        let bytes = noise(7, size);
        rig.put("file", &bytes);
        let published = || rig.backing().join("file").exists();
        assert!(wait_for(LIMIT, published), "it was not written back");
        same(&take(&rig, "file"), &bytes, "what was taken");
        assert_stays_away(&rig, "file");
    }
}

/// As with `--writeback through`, where a close ends later than the write-back.
#[test]
fn file_when_its_writer_closes_it_after_others_took_what_was_published_then_it_does_not_come_back()
{
    for (size, changes) in
        [(3 * MIB, false), (300 * KIB, false), (3 * MIB, true), (300 * KIB, true)]
    {
        let mut rig = Rig::new(&[MIB], Arc::new(Transparent), written_back_at_once);
        let mut bytes = noise(7, size);
        let fh = rig.create("file");
        for (piece, at) in bytes.chunks(100_000).zip((0..).step_by(100_000)) {
            rig.write(fh, at, piece);
        }
        let until = Instant::now() + LIMIT;
        let synced = rig.node().writeback().sync_subtree(Ino::ROOT, until, &mut |_| true).unwrap();
        assert_eq!(synced.failed, 0);
        same(&take(&rig, "file"), &bytes, "what was taken");
        if changes {
            // Of a length that it had.
            rig.write(fh, 1000, b"newer");
            bytes[1000..1005].copy_from_slice(b"newer");
        }
        let ino = rig.ino("file");
        rig.node().release(fh);
        if !changes {
            let is_gone = || rig.node().getattr(&CONTEXT, ino).is_err();
            assert!(wait_for(LIMIT, is_gone), "nobody has noticed that it was taken");
            assert!(wait_for(LIMIT, || rig.used() == 0), "it takes room on the tier still");
            rig.crash();
            rig.start();
            assert!(!rig.dir.join("tier0/lost").exists(), "it was set aside");
            assert_stays_away(&rig, "file");
            continue;
        }
        rig.drain();
        same(&rig.plain("file"), &bytes, "what came back");
        assert_eq!(rig.node().writeback().conflicts().0, 0);
    }
}

/// What was published while a file was open is not held any longer than the file is there.
#[test]
fn file_that_was_published_while_it_was_open_when_removed_then_its_bytes_below_go() {
    let rig = Rig::new(&[MIB], Arc::new(Transparent), written_back_at_once);
    let fh = rig.create("file");
    rig.write(fh, 0, &noise(7, 300 * KIB));
    let until = Instant::now() + LIMIT;
    rig.node().writeback().sync_subtree(Ino::ROOT, until, &mut |_| true).unwrap();
    let below = std::fs::metadata(rig.backing().join("file")).unwrap().ino();
    let holds = || {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let found = descriptors.filter_map(|one| std::fs::metadata(one.path()).ok());
        found.filter(|found| found.ino() == below && found.len() == 300 * KIB).count()
    };
    assert_eq!(holds(), 1, "nothing to compare with is held");
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"file").unwrap();
    rig.node().release(fh);
    assert!(wait_for(LIMIT, || holds() == 0), "it is held still");
}

/// The mode changes between the publication and its report, as with `cp -p` and `rsync`.
#[test]
fn new_file_when_its_mode_changes_as_it_is_written_back_and_others_take_it_then_does_not_come_back()
{
    let _alone = rig::alone();
    for size in [3 * MIB, 300 * KIB] {
        let rig = Rig::new(&[MIB], Arc::new(Transparent), written_back_at_once);
        let bytes = noise(7, size);
        let published = rig.backing().join("file");
        let (_point, arrived, go) =
            held_when("node.reconcile.before_report", move || published.exists());
        rig.put("file", &bytes);
        arrived.recv_timeout(LIMIT).unwrap();
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        rig.node().setattr(&CONTEXT, rig.ino("file"), &mode).unwrap();
        same(&take(&rig, "file"), &bytes, "what was taken");
        go.send(()).unwrap();
        assert_stays_away(&rig, "file");
    }
}

#[test]
fn file_past_the_tier_when_others_take_it_while_its_writer_has_it_open_then_none_of_it_becomes_zeros()
 {
    let rig =
        Rig::new(&[MIB], Arc::new(Transparent), |config| config.attr_timeout = Duration::ZERO);
    let mut bytes = noise(7, 3 * MIB);
    let fh = rig.create("file");
    rig.write(fh, 0, &bytes);
    let sync = || {
        let until = Instant::now() + LIMIT;
        rig.node().writeback().sync_subtree(Ino::ROOT, until, &mut |_| true).unwrap()
    };
    assert_eq!(sync().failed, 0);
    same(&take(&rig, "file"), &bytes, "what was taken");
    // A change is written to all of it, or the file stays away: never to a part.
    rig.write(fh, 10, b"changed");
    bytes[10..17].copy_from_slice(b"changed");
    same(&rig.read_all(fh), &bytes, "while it is open");
    rig.node().release(fh);
    rig.drain();
    same(&rig.plain("file"), &bytes, "in the backing store");
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

#[test]
fn file_past_the_tier_when_written_during_its_write_back_then_no_half_of_that_is_published() {
    let _alone = rig::alone();
    let (rig, filler) = full();
    let old = noise(2, 300 * KIB);
    rig.put("file", &old);
    let path = rig.backing().join("file");
    let (first, at_second) = (AtomicU64::new(0), Arc::new(Mutex::new(None)));
    let (come, arrived) = sync_channel(1);
    let (go, gone) = sync_channel(1);
    let (gone, seen) = (Mutex::new(gone), at_second.clone());
    let _point = Point("node.flush.spill_filled");
    fail::cfg_callback("node.flush.spill_filled", move || {
        match first.fetch_add(1, Ordering::AcqRel) {
            0 => {
                come.send(()).unwrap();
                let _ = gone.lock().recv_timeout(LIMIT);
            }
            _ => drop(seen.lock().get_or_insert_with(|| path.exists())),
        }
    })
    .unwrap();
    std::thread::scope(|scope| {
        let (node, until) = (rig.node(), Instant::now() + LIMIT);
        let drain = scope.spawn(move || node.writeback().drain(until, &mut |_| true).map(drop));
        arrived.recv_timeout(LIMIT).expect("nobody writes back");
        let fh = rig.open("file", libc::O_RDWR);
        rig.write(fh, 100, b"newer");
        go.send(()).unwrap();
        wait_until("it is tried again", || at_second.lock().is_some());
        rig.node().release(fh);
        rig.node().release(filler);
        drain.join().unwrap().unwrap();
    });
    rig.drain();
    assert_eq!(*at_second.lock(), Some(false), "published as it never was");
    let mut expected = old;
    expected[100..105].copy_from_slice(b"newer");
    same(&rig.plain("file"), &expected, "at the end");
}

/// Fails the first sync that follows the first publication, and says so.
struct FailsAfterCommit {
    committed: AtomicBool,
    failed: AtomicBool,
    tell: SyncSender<()>,
}

impl FailsAfterCommit {
    fn telling(tell: SyncSender<()>) -> Arc<Self> {
        let (committed, failed) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(FailsAfterCommit { committed, failed, tell })
    }
}

impl Interceptor for FailsAfterCommit {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        if operation == Operation::Sync
            && self.committed.load(Ordering::Acquire)
            && !self.failed.swap(true, Ordering::AcqRel)
        {
            let _ = self.tell.try_send(());
            return Verdict::Fail(libc::EIO);
        }
        Verdict::Pass
    }

    fn after(&self, operation: Operation) {
        if operation == Operation::Commit {
            self.committed.store(true, Ordering::Release);
        }
    }
}

#[test]
fn spill_file_when_published_and_the_directory_can_not_be_synced_then_nobody_writes_into_it() {
    let (tell, told) = sync_channel(1);
    let rig = Rig::new(&[MIB], FailsAfterCommit::telling(tell), |_| {});
    let filler = rig.create("filler");
    rig.write(filler, 0, &noise(1, MIB - 8 * KIB));
    let mut bytes = noise(2, 300 * KIB);
    let fh = rig.create("file");
    rig.write(fh, 0, &bytes);
    std::thread::scope(|scope| {
        let ino = rig.ino("file");
        let until = Instant::now() + Duration::from_millis(200);
        let node = rig.node();
        let sync = scope.spawn(move || node.writeback().sync_subtree(ino, until, &mut |_| true));
        told.recv_timeout(LIMIT).expect("nothing is published");
        std::thread::sleep(Duration::from_millis(50));
        let written = rig.node().write(&CONTEXT, fh, 100, b"newer");
        same(&rig.plain("file"), &bytes, "what was published");
        if written.is_ok() {
            bytes[100..105].copy_from_slice(b"newer");
        }
        sync.join().unwrap().unwrap();
    });
    // Nobody has to ask for that again.
    wait_until("it can be written again", || rig.node().write(&CONTEXT, fh, 200, b"later").is_ok());
    bytes[200..205].copy_from_slice(b"later");
    for handle in [fh, filler] {
        rig.node().release(handle);
    }
    rig.drain();
    same(&rig.plain("file"), &bytes, "at the end");
}

/// What the tier has of it was written after the spill file had been filled.
#[test]
fn part_on_the_tier_when_written_after_a_publication_without_an_answer_then_it_is_written_back() {
    let (tell, told) = sync_channel(1);
    let rig = Rig::new(&[512 * KIB], FailsAfterCommit::telling(tell), |_| {});
    let mut bytes = noise(2, 600 * KIB);
    let (fh, filler) = (rig.create("file"), rig.create("filler"));
    rig.write(fh, 0, &bytes[..128 << 10]);
    rig.write(filler, 0, &noise(1, 350 * KIB));
    for at in (128..600).step_by(8) {
        rig.write(fh, at * KIB, &bytes[at as usize * 1024..][..8 << 10]);
    }
    rig.node().release(fh);
    // It has the file in use all the while.
    let reader = rig.open("file", libc::O_RDONLY);
    let place = rig.node().whereabouts(rig.ino("file")).unwrap();
    assert!(!spill_files(&rig).is_empty() && place.resident_bytes > 64 * KIB, "{place:?}");
    std::thread::scope(|scope| {
        let (node, ino) = (rig.node(), rig.ino("file"));
        let until = Instant::now() + LIMIT;
        let sync = scope.spawn(move || node.writeback().sync_subtree(ino, until, &mut |_| true));
        told.recv_timeout(LIMIT).expect("nothing is published");
        let writer = rig.open("file", libc::O_RDWR);
        rig.write(writer, 100, b"newer");
        bytes[100..105].copy_from_slice(b"newer");
        rig.node().release(writer);
        sync.join().unwrap().unwrap();
    });
    rig.node().release(filler);
    rig.drain();
    same(&rig.plain("file"), &bytes, "at the end");
    rig.node().release(reader);
}

/// Its spill file goes before the write-back deletes its record, which notes that it had one.
#[test]
fn note_of_a_spill_file_when_the_write_back_deletes_the_record_then_it_goes_as_well() {
    let _alone = rig::alone();
    let mut rig = Rig::small(MIB);
    std::fs::write(rig.backing().join("known"), noise(1, 30 * KIB)).unwrap();
    let filler = rig.create("filler");
    rig.write(filler, 0, &noise(1, MIB - 8 * KIB));
    let fh = rig.open("known", libc::O_RDWR);
    rig.write(fh, 0, &noise(2, 30 * KIB));
    rig.node().release(fh);
    assert!(!spill_files(&rig).is_empty());
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"known").unwrap();
    wait_until_all_went(&rig);
    rig.node().release(filler);
    rig.drain();
    assert_eq!(rig.names_below(), ["filler"]);
    rig.crash();
    assert_eq!(noted(&rig), 0, "what was noted of it stays");
}
