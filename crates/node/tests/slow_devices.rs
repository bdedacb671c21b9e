//! Devices and stores that take long, or do not answer: who waits for them, and who goes on.

mod rig;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use forebay_node::{AtOnce, Context, Ino, NodeError, SetAttr, WritebackPolicy};
use forebay_store::decorators::{Interceptor, Operation, Stuck, Transparent, Verdict};
use forebay_testing::{LIMIT, wait_until};
use rig::{CONTEXT, KIB, MIB, Rig, noise, same};
use rustix::io::Errno;

/// A thread that reads requests: it must not wait for a device.
const READER: Context = Context { waiter: Some(&AtOnce), ..CONTEXT };
/// Whoever has come to a device is surely there after this.
const SETTLES: Duration = Duration::from_millis(100);

/// Lets all go on at the end, also of a test that fails: its threads have to end.
struct Hung<'a>(&'a Stuck);

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// What `work` answers, if it does not wait for what hangs; that goes on in either case.
fn answer<T: Send>(stuck: &Stuck, work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let (tell, told) = channel();
        scope.spawn(move || tell.send(work()));
        let answer = told.recv_timeout(LIMIT).ok();
        stuck.release();
        answer
    })
}

/// A file of which only the first bytes are on the tier, whose device `stuck` may hold up.
fn partly_here(stuck: &Arc<Stuck>, len: u64) -> (Rig, Vec<u8>, u64) {
    let mut rig = Rig::unstarted(&[16 * MIB], Arc::new(Transparent), |_| {});
    rig.by_tier = Some(stuck.clone());
    let mut bytes = noise(1, len);
    std::fs::write(rig.backing().join("large"), &bytes).unwrap();
    rig.start();
    let fh = rig.open("large", libc::O_RDWR);
    bytes[..100].copy_from_slice(&noise(2, 100));
    rig.write(fh, 0, &bytes[..100]);
    (rig, bytes, fh)
}

#[test]
fn part_when_its_sync_hangs_then_what_is_there_is_read_and_written() {
    let stuck = Arc::new(Stuck::default());
    let (rig, mut bytes, fh) = partly_here(&stuck, 4 * MIB);
    let synced = std::thread::scope(|scope| {
        let _hung = Hung(&stuck);
        stuck.hang(&[Operation::Sync]);
        let sync = scope.spawn(|| rig.node().fsync(&CONTEXT, fh, false));
        wait_until("the sync is at the device", || stuck.waiting() > 0);
        std::thread::sleep(SETTLES);
        let answered = answer(&stuck, || {
            let mut found = [0; 100];
            let read = rig.node().read(&READER, fh, 0, &mut found);
            let written = rig.node().write(&READER, fh, 50, b"newer");
            (read.map(|read| found[..read].to_vec()), written)
        });
        let (read, written) = answered.expect("a reader waits for the sync of another");
        same(&read.unwrap(), &bytes[..100], "during the sync");
        assert_eq!(written.unwrap(), 5);
        sync.join().unwrap()
    });
    synced.unwrap();
    bytes[50..55].copy_from_slice(b"newer");
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    rig.node().release(fh);
    rig.drain();
    same(&rig.plain("large"), &bytes, "in the backing store");
}

#[test]
fn file_when_its_last_part_has_come_and_the_sync_hangs_then_it_is_read() {
    let stuck = Arc::new(Stuck::default());
    let (rig, bytes, fh) = partly_here(&stuck, 300 * KIB);
    std::thread::scope(|scope| {
        let _hung = Hung(&stuck);
        stuck.hang(&[Operation::Sync]);
        let whole = scope.spawn(|| rig.read_all(fh));
        wait_until("all of it is there, and synced", || stuck.waiting() > 0);
        std::thread::sleep(SETTLES);
        let mut found = [0; 100];
        let read = answer(&stuck, || rig.node().read(&CONTEXT, fh, 0, &mut found));
        assert_eq!(read.expect("a reader waits for the sync").unwrap(), 100);
        same(&found, &bytes[..100], "meanwhile");
        same(&whole.join().unwrap(), &bytes, "all of it");
    });
}

#[test]
fn removed_files_when_their_write_back_hangs_then_the_others_go_and_the_daemon_ends() {
    let stuck = Arc::new(Stuck::default());
    let rig = Rig::new(&[16 * MIB], stuck.clone(), |config| {
        config.writeback = WritebackPolicy::OnClose;
    });
    let hung = Hung(&stuck);
    rig.node().walk(Ino::ROOT, &mut |_| true).unwrap();
    stuck.hang(&[Operation::Commit]);
    for name in ["a", "b"] {
        rig.put(name, &noise(1, 2 * MIB));
    }
    // The other waits for the same directory.
    wait_until("one is being published", || stuck.waiting() >= 1);
    std::thread::sleep(SETTLES);
    let fh = rig.create("c");
    rig.write(fh, 0, &noise(2, 2 * MIB));
    let used = rig.used();
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"a").unwrap();
    std::thread::sleep(SETTLES);
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"b").unwrap();
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"c").unwrap();
    rig.node().release(fh);
    wait_until("the room of the third comes back", || rig.used() + 2 * MIB <= used);
    let began = Instant::now();
    rig.node().stop(Duration::from_secs(1));
    let took = began.elapsed();
    drop(hung);
    assert!(took < LIMIT, "stop took {took:?}");
}

/// Says when something is copied to a second tier, and holds that up.
struct SecondTier {
    dir: PathBuf,
    writes: AtomicU64,
    held: Stuck,
}

impl Interceptor for SecondTier {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }

    fn before_at(&self, operation: Operation, bytes: u64, label: &Path) -> Verdict {
        if operation != Operation::Write || !label.starts_with(&self.dir) {
            return Verdict::Pass;
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.held.before(operation, bytes)
    }
}

#[test]
fn file_that_is_moved_when_it_is_opened_then_the_move_ends_and_it_stays() {
    const SIZE: u64 = 12 * MIB;
    let mut rig = Rig::unstarted(&[16 * MIB, 64 * MIB], Arc::new(Transparent), |_| {});
    let dir = rig.config.tiers[1].dir.clone();
    let second = Arc::new(SecondTier { dir, writes: AtomicU64::new(0), held: Stuck::default() });
    rig.by_tier = Some(second.clone());
    rig.start();
    rig.put("file", &noise(1, SIZE));
    second.held.hang(&[]);
    std::thread::scope(|scope| {
        let _hung = Hung(&second.held);
        scope.spawn(|| rig.put("other", &noise(2, 8 * MIB)));
        wait_until("the file is moved", || second.held.waiting() > 0);
        // It may be moved again when it is closed.
        let opened = scope.spawn(|| {
            let fh = rig.open("file", libc::O_RDONLY);
            let writes = second.writes.load(Ordering::Relaxed);
            let bytes = rig.read_all(fh);
            rig.node().release(fh);
            (bytes, writes)
        });
        std::thread::sleep(SETTLES);
        second.held.release();
        let (bytes, writes) = opened.join().unwrap();
        same(&bytes, &noise(1, SIZE), "opened during the move");
        assert!(writes < SIZE / MIB, "{writes} pieces were copied");
    });
    same(&rig.get("other"), &noise(2, 8 * MIB), "the other");
}

#[test]
fn file_that_is_read_when_its_writer_closes_it_then_its_room_comes_back_whole() {
    let stuck = Arc::new(Stuck::default());
    let mut rig = Rig::unstarted(&[16 * MIB], Arc::new(Transparent), |_| {});
    rig.by_tier = Some(stuck.clone());
    rig.start();
    let before = rig.used();
    let writer = rig.create("file");
    for (index, piece) in noise(1, 4 * MIB).chunks(100_000).enumerate() {
        rig.write(writer, index as u64 * 100_000, piece);
    }
    let reader = rig.open("file", libc::O_RDONLY);
    std::thread::scope(|scope| {
        let _hung = Hung(&stuck);
        stuck.hang(&[Operation::Read]);
        let read = scope.spawn(|| rig.node().read(&CONTEXT, reader, 0, &mut [0; 100]));
        wait_until("the reader is at the device", || stuck.waiting() > 0);
        std::thread::sleep(SETTLES);
        rig.node().release(writer);
        stuck.release();
        assert_eq!(read.join().unwrap().unwrap(), 100);
    });
    rig.node().release(reader);
    rig.drain();
    assert!(rig.node().residency().evict_file(rig.ino("file")).unwrap(), "not evicted");
    assert_eq!(rig.used(), before, "room that nobody has");
}

#[test]
fn file_with_a_hole_of_a_pebibyte_when_written_back_then_the_hole_costs_nothing() {
    let rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |config| config.extent_bytes = 64 * MIB);
    let fh = rig.create("sparse");
    let set = SetAttr { size: Some(1 << 50), ..SetAttr::default() };
    rig.node().setattr(&CONTEXT, rig.ino("sparse"), &set).unwrap();
    rig.write(fh, 1 << 49, b"in the middle");
    rig.node().release(fh);
    rig.drain();
    let below = std::fs::File::open(rig.backing().join("sparse")).unwrap();
    assert_eq!(below.metadata().unwrap().len(), 1 << 50);
    let mut found = [0; 13];
    std::os::unix::fs::FileExt::read_exact_at(&below, &mut found, 1 << 49).unwrap();
    same(&found, b"in the middle", "below");
}

#[test]
fn length_of_which_there_can_be_no_map_when_asked_for_then_refused_and_nothing_changes() {
    const LONGEST: u64 = 256 << 30;
    let rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |config| config.extent_bytes = 4 * KIB);
    let bytes = noise(1, MIB);
    std::fs::write(rig.backing().join("part"), &bytes).unwrap();
    for name in ["part", "whole"] {
        let fh = match name {
            "part" => rig.open(name, libc::O_RDWR),
            _ => rig.create(name),
        };
        rig.write(fh, 0, &bytes);
        let too_long = SetAttr { size: Some(LONGEST + 1), ..SetAttr::default() };
        let node = rig.node();
        for refused in [
            node.setattr(&CONTEXT, rig.ino(name), &too_long).map(drop),
            node.write(&CONTEXT, fh, LONGEST, b"x").map(drop),
            node.fallocate(&CONTEXT, fh, LONGEST, 1, 0),
        ] {
            let refused = refused.unwrap_err();
            assert!(matches!(refused, NodeError::Posix(Errno::FBIG)), "{name}: {refused}");
        }
        assert_eq!(rig.size(name), MIB, "{name}");
        rig.node().release(fh);
        rig.drain();
        same(&rig.plain(name), &bytes, name);
    }
}
