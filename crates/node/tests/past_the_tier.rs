//! Writes that no tier has room for: what programs and the backing store see of them.

mod rig;

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use forebay_node::metrics::Source;
use forebay_node::{
    AtOnce, Coherence, Context, Durability, NodeConfig, Passthrough, SetAttr, SetTime, Timestamp,
    WritebackPolicy,
};
use forebay_store::decorators::{Interceptor, Operation, Stuck, Transparent, Verdict};
use forebay_testing::wait_until;
use rig::passing::PassingRig;
use rig::{CONTEXT, KIB, MIB, Rig, noise, same};

/// A thread that reads requests.
const READER: Context = Context { waiter: Some(&AtOnce), ..CONTEXT };
/// For what must not wait for a store that hangs, on any machine.
const LIMIT: Duration = Duration::from_secs(30);

fn truncate(rig: &Rig, name: &str, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    rig.node().setattr(&CONTEXT, rig.ino(name), &set).unwrap();
}

/// Writes a file that is larger than the tier in pieces of which every third is left out.
fn rewrite(rig: &Rig, fh: u64, data: &mut [u8], seed: u64, mut between: impl FnMut()) {
    for (index, piece) in noise(seed, data.len() as u64).chunks(150_000).enumerate() {
        let at = index * 150_000;
        if index % 3 != 2 {
            rig.write(fh, at as u64, piece);
            data[at..at + piece.len()].copy_from_slice(piece);
            between();
        }
    }
}

#[test]
fn published_file_when_written_past_the_tier_then_its_name_shows_the_old_version_until_the_new() {
    let mut rig = Rig::small(MIB);
    let old = noise(3, 3 * MIB);
    std::fs::write(rig.backing().join("old"), &old).unwrap();
    let mut data = old.clone();
    let fh = rig.open("old", libc::O_RDWR);
    rewrite(&rig, fh, &mut data, 4, || same(&rig.plain("old"), &old, "while it is written"));
    assert!(rig.backing().join(".forebay/spill").is_dir(), "some of it went past the tier");
    truncate(&rig, "old", 2 * MIB + 77);
    data.truncate(2 * MIB as usize + 77);
    truncate(&rig, "old", 3 * MIB);
    data.resize(3 * MIB as usize, 0);
    same(&rig.plain("old"), &old, "truncated");
    same(&rig.read_all(fh), &data, "while open");
    rig.crash();
    rig.start();
    same(&rig.plain("old"), &old, "after a crash");
    same(&rig.get("old"), &data, "on the mount after a crash");
    rig.drain();
    same(&rig.plain("old"), &data, "after the drain");
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

#[test]
fn partly_resident_file_when_written_back_then_its_name_shows_the_old_version_until_the_new() {
    let rig = Rig::small(8 * MIB);
    let old = noise(3, 2 * MIB);
    std::fs::write(rig.backing().join("old"), &old).unwrap();
    let kept = std::fs::File::open(rig.backing().join("old")).unwrap();
    let mut data = old.clone();
    let fh = rig.open("old", libc::O_RDWR);
    rig.write(fh, MIB, &[7; 1000]);
    data[MIB as usize..][..1000].fill(7);
    rig.node().release(fh);
    rig.drain();
    same(&rig.plain("old"), &data, "written back");
    let mut seen = Vec::new();
    std::io::Read::read_to_end(&mut &kept, &mut seen).unwrap();
    same(&seen, &old, "to whoever opened it before");
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

/// A backing store that takes nothing new once it is full.
#[derive(Default)]
struct Full(AtomicBool);

impl Interceptor for Full {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        match operation == Operation::Create && self.0.load(Ordering::SeqCst) {
            true => Verdict::Fail(libc::ENOSPC),
            false => Verdict::Pass,
        }
    }
}

/// As after a publication that could not be settled. A copy would need room, and have nothing new.
#[test]
fn part_that_counts_as_dirty_when_the_store_has_all_of_it_and_is_full_then_nothing_is_copied() {
    let full = Arc::new(Full::default());
    let mut rig = Rig::new(&[8 * MIB], full.clone(), |_| {});
    std::fs::write(rig.backing().join("file"), noise(3, 2 * MIB)).unwrap();
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, MIB, &[7; 1000]);
    rig.node().release(fh);
    rig.drain();
    let (data, ino) = (rig.plain("file"), rig.ino("file"));
    rig.crash();
    let object = find_object(&rig, ino.0);
    let mut bytes = [0; 4096];
    let len = rustix::fs::getxattr(&object, "user.forebay", &mut bytes[..]).unwrap();
    let header = forebay_store::Header::decode(&bytes[..len]).unwrap();
    assert!(!header.whole && !header.dirty, "{header:?}");
    let header = forebay_store::Header { dirty: true, ..header };
    let replace = rustix::fs::XattrFlags::REPLACE;
    rustix::fs::setxattr(&object, "user.forebay", &header.encode(), replace).unwrap();
    rig.start();
    assert!(rig.node().whereabouts(ino).unwrap().dirty);
    let version = || std::fs::metadata(rig.backing().join("file")).unwrap().ino();
    let before = version();
    full.0.store(true, Ordering::SeqCst);
    rig.drain();
    assert!(!rig.node().whereabouts(ino).unwrap().dirty);
    assert_eq!(version(), before, "it is another file");
    same(&rig.plain("file"), &data, "in the backing store");
    same(&rig.get("file"), &data, "on the mount");
}

/// The object of a file in the only tier.
fn find_object(rig: &Rig, ino: u64) -> std::path::PathBuf {
    let fans = std::fs::read_dir(rig.config.tiers[0].dir.join("objects")).unwrap();
    let paths = fans.map(|fan| fan.unwrap().path().join(format!("{ino:016x}")));
    paths.into_iter().find(|path| path.exists()).unwrap()
}

#[test]
fn spilled_file_when_flushed_and_written_again_then_there_is_no_conflict() {
    let mut rig = Rig::new(&[MIB], Arc::new(Transparent), |config| {
        config.backing_timeout = Duration::from_millis(200);
    });
    let mut data = noise(3, 900_000);
    std::fs::write(rig.backing().join("old"), &data).unwrap();
    rig.put("filler", &noise(1, MIB - 200 * KIB));
    for round in 5..9 {
        let fh = rig.open("old", libc::O_RDWR);
        rewrite(&rig, fh, &mut data, round, || {});
        truncate(&rig, "old", 700_000);
        data.truncate(700_000);
        // It stays open: the flush leaves it dirty.
        drop(rig.node().writeback().reconcile(rig.ino("old")));
        truncate(&rig, "old", 900_000);
        data.resize(900_000, 0);
        rewrite(&rig, fh, &mut data, round + 10, || {});
        if round % 2 == 0 {
            rig.crash();
            rig.start();
        } else {
            rig.node().release(fh);
        }
        same(&rig.get("old"), &data, "on the mount");
    }
    rig.drain();
    same(&rig.plain("old"), &data, "in the backing store");
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

#[test]
fn writers_past_the_tier_when_a_drain_runs_beside_them_then_no_byte_is_lost() {
    let rig = Rig::new(&[MIB], Arc::new(Transparent), |config| {
        config.backing_timeout = Duration::from_millis(500);
    });
    for id in 0..3 {
        std::fs::write(rig.backing().join(id.to_string()), noise(id, 600_000)).unwrap();
    }
    let over = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let drainer = scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                let until = Instant::now() + Duration::from_millis(100);
                rig.node().writeback().drain(until, &mut |_| true).unwrap();
            }
        });
        let writers: Vec<_> = (0..3)
            .map(|id| {
                let rig = &rig;
                scope.spawn(move || {
                    let mut data = noise(id, 600_000);
                    for round in 1..4 {
                        let fh = rig.open(&id.to_string(), libc::O_RDWR);
                        rewrite(rig, fh, &mut data, id * 100 + round, || {});
                        same(&rig.read_all(fh), &data, "while open");
                        rig.node().release(fh);
                    }
                    data
                })
            })
            .collect();
        let written: Vec<_> = writers.into_iter().map(ScopedJoinHandle::join).collect();
        // Before a writer's failure is told, which the drainer would never hear of.
        over.store(true, Ordering::Release);
        drainer.join().unwrap();
        written.into_iter().map(Result::unwrap).collect::<Vec<_>>()
    });
    for (id, data) in written.iter().enumerate() {
        same(&rig.get(&id.to_string()), data, "on the mount");
    }
    rig.drain();
    for (id, data) in written.iter().enumerate() {
        same(&rig.plain(&id.to_string()), data, "in the backing store");
    }
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

#[test]
fn file_larger_than_all_tiers_when_written_then_whole_and_every_tier_keeps_its_size() {
    let rig = Rig::new(&[MIB, 2 * MIB], Arc::new(Transparent), |_| {});
    let data = noise(1, 6 * MIB + 77);
    rig.watch_sizes(|| rig.put("large", &data));
    same(&rig.get("large"), &data, "on the mount");
    rig.drain();
    same(&rig.plain("large"), &data, "in the backing store");
}

#[test]
fn sparse_file_when_its_holes_are_written_then_the_tier_keeps_its_size() {
    let rig = Rig::small(MIB);
    let mut data = vec![0; 2 * MIB as usize];
    rig.watch_sizes(|| {
        let fh = rig.create("sparse");
        truncate(&rig, "sparse", 2 * MIB);
        for index in (0..32_u64).map(|index| index * 13 % 32) {
            let (at, piece) = (index * 64 * KIB + 100, noise(index, 50_000));
            rig.write(fh, at, &piece);
            data[at as usize..][..piece.len()].copy_from_slice(&piece);
        }
        same(&rig.read_all(fh), &data, "while open");
        rig.node().release(fh);
    });
    rig.drain();
    same(&rig.plain("sparse"), &data, "in the backing store");
}

#[test]
fn sparse_file_when_all_of_it_leaves_the_tier_then_its_holes_stay_holes() {
    let rig = Rig::small(MIB);
    let len = 64 * MIB;
    let mut data = vec![0; len as usize];
    let fh = rig.create("sparse");
    for (seed, at) in [(1, 0), (2, 40 * MIB + 100)] {
        let piece = noise(seed, 4096);
        rig.write(fh, at, &piece);
        data[at as usize..][..4096].copy_from_slice(&piece);
    }
    truncate(&rig, "sparse", len);
    // There is not even room for a map of it.
    let filler = rig.create("filler");
    let mut at = 0;
    while rig.used() + 4096 <= MIB {
        rig.write(filler, at, &[1; 4096]);
        at += 4096;
    }
    let area = rig.backing().join(".forebay/spill");
    for at in (20 * MIB..30 * MIB).step_by(MIB as usize / 4) {
        if area.is_dir() {
            break;
        }
        rig.write(fh, at, b"past the tier");
        data[at as usize..][..13].copy_from_slice(b"past the tier");
    }
    let spills = std::fs::read_dir(area).unwrap();
    let found: Vec<_> = spills.map(|spill| spill.unwrap().metadata().unwrap()).collect();
    let taken: u64 = found.iter().map(|spill| spill.blocks() * 512).sum();
    assert!(found.iter().any(|spill| spill.len() == len), "{found:?}");
    assert!(taken < 2 * MIB, "{taken} bytes for a few blocks");
    same(&rig.read_all(fh), &data, "read");
    rig.node().release(fh);
    rig.node().release(filler);
    rig.drain();
    same(&rig.plain("sparse"), &data, "in the backing store");
}

/// What a program finds that copies a file without its holes.
fn by_its_data(rig: &Rig, fh: u64, len: u64) -> Vec<u8> {
    let (mut found, mut at) = (vec![0; len as usize], 0);
    while let Ok(data) = rig.node().seek(&CONTEXT, fh, at, libc::SEEK_DATA) {
        let hole = rig.node().seek(&CONTEXT, fh, data, libc::SEEK_HOLE).unwrap();
        let mut done = data;
        while done < hole {
            let part = &mut found[done as usize..hole as usize];
            done += rig.node().read(&CONTEXT, fh, done, part).unwrap() as u64;
        }
        at = hole;
    }
    found
}

#[test]
fn file_written_past_the_tier_when_its_holes_are_sought_then_what_shows_through_is_none() {
    let rig = Rig::small(MIB);
    let mut data = noise(3, 3 * MIB);
    std::fs::write(rig.backing().join("old"), &data).unwrap();
    let fh = rig.open("old", libc::O_RDWR);
    rig.write(fh, 0, &[7; 1000]);
    data[..1000].fill(7);
    assert!(rig.backing().join(".forebay/spill").is_dir(), "it went past the tier");
    same(&by_its_data(&rig, fh, 3 * MIB), &data, "by its data");
    rig.node().release(fh);
    rig.drain();
    same(&rig.plain("old"), &data, "in the backing store");
}

#[test]
fn holes_and_zeros_in_files_past_the_tier_when_made_then_read_so_and_get_there() {
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let zero = libc::FALLOC_FL_ZERO_RANGE;
    for filler in [0, MIB - 150 * KIB] {
        let mut rig = Rig::small(MIB);
        let mut data = noise(3, 3 * MIB);
        std::fs::write(rig.backing().join("old"), &data).unwrap();
        if filler > 0 {
            // A part of it is on the tier then.
            rig.put("filler", &noise(1, filler));
        }
        let fh = rig.open("old", libc::O_RDWR);
        let mut change = |at: u64, len: u64, mode| {
            rig.node().fallocate(&CONTEXT, fh, at, len, mode).unwrap();
            let keeps = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
            let end = if keeps { (at + len).min(data.len() as u64) } else { at + len };
            data.resize(data.len().max(end as usize), 0);
            data[at.min(end) as usize..end as usize].fill(0);
            same(&rig.read_all(fh), &data, "while open");
        };
        change(10_000, 500_000, punch);
        change(MIB + 1, 64 * KIB, zero);
        change(3 * MIB - 100, 100_000, punch);
        change(3 * MIB - 100, 100_000, zero);
        change(4 * MIB, 1000, punch);
        assert_eq!(rig.size("old"), 3 * MIB + 99_900);
        rig.crash();
        rig.start();
        same(&rig.get("old"), &data, "after a crash");
        rig.drain();
        same(&rig.plain("old"), &data, "in the backing store");
        assert_eq!(rig.node().writeback().conflicts().0, 0);
    }
}

#[test]
fn time_that_was_set_of_a_file_past_the_tier_when_the_daemon_dies_then_stays() {
    // Nothing of it has room on the tier.
    let mut rig = Rig::small(4 * KIB);
    rig.put("large", &noise(1, 300 * KIB));
    let time = Timestamp::new(1_000_000_005, 7);
    let set = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
    let ino = rig.ino("large");
    rig.node().setattr(&CONTEXT, ino, &set).unwrap();
    rig.crash();
    rig.start();
    let shown = || rig.node().getattr(&CONTEXT, ino).unwrap().attr.mtime;
    assert_eq!(shown(), time, "after the start");
    let fh = rig.open("large", libc::O_RDWR);
    assert_eq!(shown(), time, "while it is open");
    rig.node().release(fh);
    rig.drain();
    assert_eq!(shown(), time, "after the drain");
    let below = std::fs::metadata(rig.backing().join("large")).unwrap();
    assert_eq!((below.mtime(), below.mtime_nsec()), (1_000_000_005, 7));
}

/// Nobody has it open when the next program comes, and nothing else says that it is mapped.
#[test]
fn file_that_is_mapped_and_closed_when_written_past_a_full_tier_then_the_mapping_shows_all_of_it() {
    let mut rig = Rig::unstarted(&[MIB], Arc::new(Transparent), |_| {});
    rig.config.passthrough_reserve_bytes = 4 * KIB;
    let rig = PassingRig::passing(rig, Passthrough::Read);
    let mut data = noise(3, 100 * KIB);
    rig.put("mapped", &data);
    let program = rig.program("mapped", libc::O_RDWR);
    let map = program.map(data.len());
    drop(program);
    // Open and dirty, so that nothing makes room.
    let filler = rig.create("filler");
    rig.write(filler, 0, &noise(1, MIB - 128 * KIB));
    while rig.used() < MIB {
        let before = rig.used();
        let fh = rig.create(&format!("small{before}"));
        rig.write(fh, 0, &noise(2, 4 * KIB));
        if rig.used() == before {
            break;
        }
    }
    let writer = rig.program("mapped", libc::O_RDWR);
    assert!(!writer.maps_object(), "it got room");
    let more = noise(4, 64 * KIB);
    writer.write(100 * KIB, &more);
    data.extend_from_slice(&more);
    let seen = |at: usize| map.load(at) == data[at];
    assert!((0..map.len).all(seen), "other bytes are mapped");
    map.store(99 * KIB as usize, b"stored afterwards");
    data[99 * KIB as usize..][..17].copy_from_slice(b"stored afterwards");
    same(&rig.read_all(writer.fh), &data, "what was stored");
    drop((map, writer));
    rig.node().writeback().reconcile(rig.ino("mapped")).unwrap();
    same(&rig.plain("mapped"), &data, "in the backing store");
}

#[test]
fn file_that_no_tier_admits_when_it_is_changed_then_whoever_has_it_open_sees_it() {
    let mut rig = Rig::small(MIB);
    rig.bare = true;
    let rig = PassingRig::over(rig);
    std::fs::write(rig.backing().join("large"), noise(3, 3 * MIB)).unwrap();
    let before = rig.program("large", libc::O_RDONLY);
    assert_eq!(before.read(0, 1000), noise(3, 1000));
    let writer = rig.program("large", libc::O_RDWR);
    writer.write(0, &[7; 1000]);
    writer.write(3 * MIB, b"the end");
    let beside = rig.program("large", libc::O_RDONLY);
    for reader in [&before, &beside] {
        assert_eq!(reader.read(0, 1000), [7; 1000], "while it is written");
        assert_eq!(reader.read(3 * MIB, 100), b"the end");
    }
    drop((beside, writer));
    rig.drain();
    let after = rig.program("large", libc::O_RDONLY);
    for reader in [&before, &after] {
        assert_eq!(reader.read(0, 1000), [7; 1000], "when it is written back");
        assert_eq!(reader.read(3 * MIB, 100), b"the end");
    }
    truncate(&rig, "large", 5);
    assert_eq!(before.read(0, 1000), [7; 5], "when it is cut");
}

#[test]
fn file_that_no_tier_admits_when_the_mount_only_reads_then_passed_through_as_it_is_now() {
    let mut rig = Rig::small(MIB);
    (rig.bare, rig.config.read_only) = (true, true);
    rig.config.attr_timeout = Duration::ZERO;
    let rig = PassingRig::over(rig);
    std::fs::write(rig.backing().join("large"), noise(3, 3 * MIB)).unwrap();
    let before = rig.program("large", libc::O_RDONLY);
    assert!(before.passes());
    std::fs::write(rig.backing().join("other"), noise(4, 2 * MIB)).unwrap();
    std::fs::rename(rig.backing().join("other"), rig.backing().join("large")).unwrap();
    let after = rig.program("large", libc::O_RDONLY);
    assert!(after.passes());
    same(&after.read(0, 3 << 20), &noise(4, 2 * MIB), "the new version");
    same(&before.read(0, 3 << 20), &noise(3, 3 * MIB), "to whoever has the old one open");
}

/// A node whose tier is full and whose file `spilled` is open and lies past it, wholly or in part.
fn spilled(stuck: &Arc<Stuck>) -> (Rig, u64) {
    let change = |config: &mut NodeConfig| {
        config.backing_timeout = Duration::from_secs(3);
        // Or a flush that came before would let the file be compared with the backing store.
        config.coherence = Coherence::Exclusive;
    };
    let rig = Rig::new(&[MIB], stuck.clone(), change);
    rig.put("filler", &noise(1, MIB - 100 * KIB));
    rig.node().walk(forebay_node::Ino::ROOT, &mut |_| true).unwrap();
    let fh = rig.create("spilled");
    for (index, piece) in noise(2, 900_000).chunks(100_000).enumerate() {
        rig.write(fh, index as u64 * 100_000, piece);
    }
    (rig, fh)
}

#[test]
fn spilled_file_when_the_store_hangs_then_attributes_and_close_do_not_wait() {
    let stuck = Arc::new(Stuck::default());
    let (rig, fh) = spilled(&stuck);
    let ino = rig.ino("spilled");
    stuck.hang(&[]);
    let began = Instant::now();
    assert_eq!(rig.node().getattr(&READER, ino).unwrap().attr.size, 900_000);
    rig.node().release(fh);
    assert_eq!(rig.node().getattr(&READER, ino).unwrap().attr.size, 900_000);
    let took = began.elapsed();
    // Workers may be at the store and hang there; these calls may not.
    stuck.release();
    assert!(took < LIMIT, "took {took:?}");
    same(&rig.get("spilled"), &noise(2, 900_000), "later");
}

#[test]
fn stop_when_a_writer_hangs_past_the_tier_then_it_keeps_its_time_limit_and_nothing_is_lost() {
    let stuck = Arc::new(Stuck::default());
    let (mut rig, fh) = spilled(&stuck);
    stuck.hang(&[]);
    let node = rig.node().clone();
    let writer = std::thread::spawn(move || drop(node.write(&CONTEXT, fh, 890_000, &[1; 5])));
    wait_until("the writer gets to the store", || stuck.waiting() > 0);
    let began = Instant::now();
    assert_eq!(rig.node().getattr(&READER, rig.ino("spilled")).unwrap().ino, rig.ino("spilled"));
    let ended = rig.node().stop(Duration::from_secs(1));
    let took = began.elapsed();
    stuck.release();
    assert!(took < LIMIT, "stop took {took:?}");
    assert!(!ended, "a file in use remains");
    writer.join().unwrap();
    rig.crash();
    rig.start();
    let found = rig.get("spilled");
    assert_eq!(found.len(), 900_000);
    same(&found[..890_000], &noise(2, 900_000)[..890_000], "after the next start");
}

/// Holds a worker right after it has set the times of a file in the backing store, before it can say so.
#[derive(Default)]
struct AfterTimes {
    wanted: AtomicBool,
    there: AtomicBool,
    goes_on: AtomicBool,
}

impl Interceptor for AfterTimes {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }

    fn after(&self, operation: Operation) {
        if operation != Operation::SetAttributes || !self.wanted.swap(false, Ordering::AcqRel) {
            return;
        }
        self.there.store(true, Ordering::Release);
        let until = Instant::now() + LIMIT;
        while !self.goes_on.load(Ordering::Acquire) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn version_below_whose_times_a_worker_is_setting_when_written_past_the_tier_then_not_taken_for_anothers()
 {
    let worker = Arc::new(AfterTimes::default());
    let rig = Rig::new(&[64 * KIB], worker.clone(), |_| {});
    let mut data = noise(3, 600_000);
    std::fs::write(rig.backing().join("file"), &data).unwrap();
    let ino = rig.ino("file");
    let time = SetTime::At(Timestamp::new(1_000_000_000, 7));
    let set = SetAttr { mtime: Some(time), ..SetAttr::default() };
    rig.node().setattr(&CONTEXT, ino, &set).unwrap();
    worker.wanted.store(true, Ordering::Release);
    std::thread::scope(|scope| {
        let turn = scope.spawn(|| rig.node().writeback().reconcile(ino));
        let until = Instant::now() + LIMIT;
        while !worker.there.load(Ordering::Acquire) {
            assert!(!turn.is_finished() && Instant::now() < until, "no worker has set the times");
            std::thread::sleep(Duration::from_millis(1));
        }
        // The only writer, and nobody else is there: what shows through is read for the edges.
        let fh = rig.open("file", libc::O_RDWR);
        for at in [1000, 300_000, 590_000] {
            rig.write(fh, at as u64, b"past the tier");
            data[at..at + 13].copy_from_slice(b"past the tier");
        }
        same(&rig.read_all(fh), &data, "while the worker is at it");
        rig.node().fsync(&CONTEXT, fh, false).unwrap();
        worker.goes_on.store(true, Ordering::Release);
        drop(turn.join().unwrap());
        same(&rig.read_all(fh), &data, "afterwards");
        rig.node().release(fh);
    });
    rig.drain();
    same(&rig.plain("file"), &data, "in the backing store");
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

/// A store that takes its time for what may be slow, once it is told to.
#[derive(Default)]
struct Slow(AtomicBool);

impl Interceptor for Slow {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        let is_slow = matches!(operation, Operation::Rename | Operation::Commit);
        if is_slow && self.0.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(200));
        }
        Verdict::Pass
    }
}

/// The kernel would put the next append where the file ended before.
#[test]
fn attributes_of_a_file_that_is_written_while_a_slow_store_gets_it_then_are_not_those_of_before() {
    for (tier, size) in [(64 * MIB, 300 * KIB), (512 * KIB, 900 * KIB)] {
        let slow = Arc::new(Slow::default());
        let rig = Rig::new(&[tier], slow.clone(), |config| config.durability = Durability::Backing);
        let (node, fh, ino) = (rig.node(), rig.create("file"), rig.ino("file"));
        rig.write(fh, 0, &noise(3, size));
        node.fsync(&CONTEXT, fh, false).unwrap();
        slow.0.store(true, Ordering::Release);
        let (end, acknowledged) = (AtomicBool::new(false), AtomicU64::new(size));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !end.load(Ordering::Acquire) {
                    let at = acknowledged.load(Ordering::Acquire);
                    rig.write(fh, at, b"more of it");
                    acknowledged.store(at + 10, Ordering::Release);
                    std::thread::sleep(Duration::from_millis(3));
                }
            });
            for sync in [true, false].into_iter().cycle().take(4) {
                let done = threads.spawn(move || match sync {
                    true => drop(node.fsync(&CONTEXT, fh, false)),
                    false => drop(node.writeback().reconcile(ino)),
                });
                while !done.is_finished() {
                    let at_least = acknowledged.load(Ordering::Acquire);
                    let shown = node.getattr(&CONTEXT, ino).unwrap().attr.size;
                    if shown < at_least {
                        end.store(true, Ordering::Release);
                        panic!("{shown} of {at_least} bytes, tier of {tier}");
                    }
                }
            }
            end.store(true, Ordering::Release);
        });
        slow.0.store(false, Ordering::Release);
        rig.node().release(fh);
    }
}

/// Whoever looks at an object for a moment is taken for a mapping of it. What is written then must not go
/// where the map says that nothing is.
#[test]
fn write_for_which_no_tier_has_room_when_somebody_looks_at_the_part_that_is_here_then_it_is_there()
{
    let rig = PassingRig::passing(Rig::small(MIB), Passthrough::Read);
    let mut bytes = noise(1, 700 * KIB);
    std::fs::write(rig.backing().join("file"), &bytes).unwrap();
    let fh = rig.open("file", libc::O_RDWR);
    let mut part = vec![0; 1000];
    rig.node().read(&CONTEXT, fh, 0, &mut part).unwrap();
    rig.write(fh, 0, &noise(2, 100_000));
    bytes[..100_000].copy_from_slice(&noise(2, 100_000));
    rig.put("other", &noise(4, 600 * KIB));
    let fans = std::fs::read_dir(rig.dir.join("tier0/objects")).unwrap();
    let files = fans.flat_map(|fan| std::fs::read_dir(fan.unwrap().path()).unwrap());
    let paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    let has_map = paths.iter().any(|path| path.extension().is_some_and(|end| end == "map"));
    assert!(has_map, "it is not here in part: {paths:?}");
    let looks: Vec<_> = paths.iter().map(|path| std::fs::File::open(path).unwrap()).collect();
    for (at, piece) in (100_000..).step_by(100_000).zip(noise(3, 600_000).chunks(100_000)) {
        rig.write(fh, at, piece);
        bytes[at as usize..at as usize + piece.len()].copy_from_slice(piece);
    }
    rig::same(&rig.read_all(fh), &bytes, "read");
    drop(looks);
    rig.node().release(fh);
    rig.drain();
    rig::same(&rig.plain("file"), &bytes, "below");
}

/// A store in which nothing is published for as long as it is said.
#[derive(Default)]
struct Unpublished(AtomicBool);

impl Interceptor for Unpublished {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        while operation == Operation::Commit && self.0.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Verdict::Pass
    }
}

#[test]
fn writes_when_an_open_file_has_most_of_the_tier_and_clean_files_the_rest_then_they_go_at_once() {
    let slow = Arc::new(Unpublished::default());
    let rig = Rig::new(&[20 * MIB], slow.clone(), |config| {
        config.writeback = WritebackPolicy::OnClose;
    });
    let log = rig.create("log");
    for at in 0..64 {
        rig.write(log, at * 256 * KIB, &[1; 256 << 10]);
    }
    for name in 0..8 {
        rig.put(&format!("clean-{name}"), &noise(name, 400 * KIB));
    }
    let metrics = rig.node().metrics();
    let all_clean = || metrics.flushes.get() == 8 && rig.node().writeback().backlog_len() <= 1;
    wait_until("the others are written back", all_clean);
    slow.0.store(true, Ordering::Release);
    // Somebody is at work on the store all the time.
    rig.put("slow", b"bytes");
    let fh = rig.create("new");
    for at in 0..32 {
        rig.write(fh, at * 64 * KIB, &[2; 64 << 10]);
    }
    assert_eq!(metrics.vain_waits.get(), 0, "it waits for what does not come");
    assert_eq!(metrics.bytes.of(Source::Spill).get(), 0, "it goes past the tier");
    slow.0.store(false, Ordering::Release);
    rig.node().release(fh);
    rig.node().release(log);
    rig.drain();
    rig::same(&rig.plain("new"), &[2; 2 << 20], "below");
}
