//! The data side of a real node over directories, with faulty devices under it: what was written is
//! read back, whatever was full, failed or died meanwhile.

mod rig;

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_node::{Ino, Node, NodeConfig, NodeError, SetAttr, WritebackPolicy};
use forebay_store::StoreError;
use forebay_store::decorators::{Flaky, Operation, Rule, Stuck, Transparent, Verdict};
use forebay_testing::{LIMIT, wait_for, wait_until};
use rig::{CONTEXT, KIB, MIB, Rig, noise, random, same};

/// What takes this long waits for a device that hangs.
const HANGS: Duration = Duration::from_secs(30);

#[test]
fn file_larger_than_the_tier_when_written_then_whole_before_and_after_the_drain() {
    let rig = Rig::small(MIB);
    let data = noise(1, 5 * MIB + 77);
    rig.put("large", &data);
    assert!(rig.used() <= MIB, "used {}", rig.used());
    same(&rig.get("large"), &data, "before the drain");
    rig.drain();
    same(&rig.plain("large"), &data, "in the backing store");
    same(&rig.get("large"), &data, "after the drain");
}

#[test]
fn file_that_is_there_in_part_when_opened_then_counts_as_a_miss_until_all_is_there() {
    let rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |config| {
        config.fetch_on_open_bytes = 128 * KIB;
    });
    std::fs::write(rig.backing().join("large"), noise(1, 3 * MIB)).unwrap();
    let opens = || {
        let fh = rig.open("large", libc::O_RDONLY);
        rig.node().release(fh);
        let metrics = rig.node().metrics();
        (metrics.hits.get(), metrics.misses.get())
    };
    assert_eq!(opens(), (0, 1), "nothing is there");
    assert_eq!(opens(), (0, 2), "an object without bytes");
    same(&rig.get("large"), &noise(1, 3 * MIB), "read");
    wait_until("it becomes whole", || opens().0 > 0);
    let (hits, misses) = opens();
    assert_eq!(opens(), (hits + 1, misses), "all is there");
}

/// What programs do every day: one makes the file, another appends to it later.
#[test]
fn empty_file_of_the_backing_store_when_written_then_its_bytes_are_on_the_tier() {
    let rig = Rig::small(16 * MIB);
    std::fs::write(rig.backing().join("old"), b"").unwrap();
    rig.put("new", b"");
    rig.drain();
    for (id, name) in [(1, "old"), (2, "new")] {
        let before = rig.used();
        let fh = rig.open(name, libc::O_RDWR);
        rig.write(fh, 0, &noise(id, MIB));
        rig.node().release(fh);
        assert!(rig.used() >= before + MIB, "{name} is not on the tier");
        assert_eq!(rig.node().residency().spilled_files(), (0, 0), "{name} went past the tier");
        same(&rig.get(name), &noise(id, MIB), name);
    }
    rig.drain();
    for (id, name) in [(1, "old"), (2, "new")] {
        same(&rig.plain(name), &noise(id, MIB), "in the backing store");
    }
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

#[test]
fn empty_file_of_the_backing_store_when_grown_or_allocated_then_on_the_tier() {
    let rig = Rig::small(16 * MIB);
    for name in ["grown", "allocated", "zeroed"] {
        std::fs::write(rig.backing().join(name), b"").unwrap();
    }
    let ranges = [("allocated", 0), ("zeroed", libc::FALLOC_FL_ZERO_RANGE)];
    for (name, mode) in ranges {
        let fh = rig.open(name, libc::O_RDWR);
        rig.node().fallocate(&CONTEXT, fh, 4096, MIB, mode).unwrap();
        rig.node().release(fh);
        assert_eq!(rig.size(name), MIB + 4096, "{name}");
    }
    let size = SetAttr { size: Some(MIB), ..SetAttr::default() };
    rig.node().setattr(&CONTEXT, rig.ino("grown"), &size).unwrap();
    assert_eq!(rig.node().residency().spilled_files(), (0, 0));
    rig.drain();
    for (name, len) in [("grown", MIB), ("allocated", MIB + 4096), ("zeroed", MIB + 4096)] {
        same(&rig.plain(name), &vec![0; len as usize], name);
    }
}

#[test]
fn sixteen_writers_when_nothing_can_be_flushed_then_all_is_kept() {
    let rig = Rig::small(2 * MIB);
    rig.watch_sizes(|| {
        std::thread::scope(|scope| {
            for id in 0..16 {
                let rig = &rig;
                scope.spawn(move || rig.put(&format!("w{id}"), &noise(id, 400_000)));
            }
        });
    });
    for id in 0..16 {
        same(&rig.get(&format!("w{id}")), &noise(id, 400_000), "on the mount");
    }
    rig.drain();
    for id in 0..16 {
        same(&rig.plain(&format!("w{id}")), &noise(id, 400_000), "in the backing store");
    }
}

#[test]
fn existing_file_when_rewritten_on_a_full_tier_then_no_conflict_and_all_bytes() {
    let mut rig = Rig::small(MIB);
    let mut data = noise(3, 3 * MIB);
    std::fs::write(rig.backing().join("old"), &data).unwrap();
    let fh = rig.open("old", libc::O_RDWR);
    for (index, piece) in noise(4, 3 * MIB).chunks(150_000).enumerate() {
        let at = index * 150_000;
        if index % 3 != 2 {
            rig.write(fh, at as u64, piece);
            data[at..at + piece.len()].copy_from_slice(piece);
        }
    }
    same(&rig.read_all(fh), &data, "while open");
    rig.node().release(fh);
    rig.crash();
    rig.start();
    same(&rig.get("old"), &data, "after a crash");
    rig.drain();
    same(&rig.plain("old"), &data, "in the backing store");
    assert_eq!(rig.node().writeback().conflicts().0, 0);
    assert!(rig.node.take().unwrap().stop(Duration::from_secs(5)));
    assert_eq!(rig.left_in_backing(), ["old"], "only the file");
}

#[test]
fn backing_store_when_full_then_its_own_error_and_what_was_written_stays() {
    for errno in [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT] {
        full_backing_store(errno);
    }
}

fn full_backing_store(errno: rustix::io::Errno) {
    let flaky = Arc::new(Flaky::new(1));
    let rig = Rig::new(&[MIB], flaky.clone(), |_| {});
    flaky.set_rules([Rule::always(Operation::Write, errno.raw_os_error())]);
    let fh = rig.create("file");
    let data = noise(5, 3 * MIB);
    let mut written = 0;
    let error = loop {
        let piece = &data[written..written + 50_000];
        match rig.node().write(&CONTEXT, fh, written as u64, piece) {
            Ok(done) => written += done,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, NodeError::Posix(told) if told == errno), "{error}");
    assert!(written as u64 >= MIB / 2, "the tier was used: {written}");
    rig.node().release(fh);
    same(&rig.get("file")[..written], &data[..written], "after the refusal");
    flaky.set_rules([]);
    rig.drain();
    same(&rig.plain("file")[..written], &data[..written], "in the backing store");
}

#[test]
fn flush_when_the_backing_store_fails_then_it_is_repeated_and_nothing_is_lost() {
    let flaky = Arc::new(Flaky::new(7));
    let rig = Rig::new(&[4 * MIB], flaky.clone(), |_| {});
    let torn = Verdict::Torn { bytes: 1000, errno: libc::EIO };
    let rule = |operation, fault| Rule { fault, per_mille: 300, ..Rule::always(operation, 0) };
    flaky.set_rules([
        rule(Operation::Write, torn),
        rule(Operation::Commit, Verdict::Fail(libc::EIO)),
        rule(Operation::Sync, Verdict::Fail(libc::EIO)),
    ]);
    for id in 0..10 {
        rig.put(&format!("f{id}"), &noise(id, 100_000 + id));
        drop(rig.node().writeback().reconcile(rig.ino(&format!("f{id}"))));
    }
    assert!(flaky.faults() > 0);
    flaky.set_rules([]);
    rig.drain();
    for id in 0..10 {
        same(&rig.plain(&format!("f{id}")), &noise(id, 100_000 + id), "in the backing store");
    }
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

#[test]
fn spilled_file_when_the_daemon_dies_then_it_has_its_size_and_bytes() {
    let mut rig = Rig::small(MIB);
    rig.put("filler", &noise(1, MIB - 100 * KIB));
    let data = noise(2, 900_000);
    let fh = rig.create("spilled");
    rig.write(fh, 0, &data);
    rig.crash();
    rig.start();
    assert_eq!(rig.size("spilled"), data.len() as u64);
    same(&rig.get("spilled"), &data, "after the crash");
    rig.drain();
    same(&rig.plain("spilled"), &data, "in the backing store");
    rig.node.take().unwrap().stop(Duration::from_secs(5));
    let found = rig.check(false);
    assert_eq!(found.problems, 0, "{found:?}");
}

#[test]
fn metadata_when_lost_then_the_mount_refuses_and_a_rebuild_brings_all_back() {
    let mut rig = Rig::small(4 * MIB);
    for id in 1..5 {
        rig.put(&format!("d{id}"), &noise(id, 70_000 * id));
    }
    // Open, so that it is not written back to make room.
    let large = rig.create("large");
    for (index, piece) in noise(9, 5 * MIB).chunks(100_000).enumerate() {
        rig.write(large, index as u64 * 100_000, piece);
    }
    rig.crash();
    std::fs::remove_dir_all(rig.config.tiers[0].dir.join("state/meta")).unwrap();
    let refused = loop {
        match Node::start(rig.config.clone()).err().expect("it must not start") {
            // A thread of the node before is at its last breath.
            NodeError::Store(StoreError::Locked { .. }) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            refused => break refused,
        }
    };
    assert!(refused.to_string().contains("--rebuild"), "{refused}");
    let found = rig.check(true);
    assert_eq!(found.problems, found.repaired, "{found:?}");
    rig.start();
    for id in 1..5 {
        same(&rig.get(&format!("d{id}")), &noise(id, 70_000 * id), "after the rebuild");
    }
    same(&rig.get("large"), &noise(9, 5 * MIB), "partly spilled, after the rebuild");
}

#[test]
fn backing_store_when_stuck_then_residents_are_served_and_stop_returns() {
    let stuck = Arc::new(Stuck::default());
    let rig = Rig::new(&[8 * MIB], stuck.clone(), |_| {});
    rig.put("resident", &noise(1, 300_000));
    // Names of a directory that is not listed yet have to be looked up in the backing store.
    rig.node().walk(Ino::ROOT, &mut |_| true).unwrap();
    // The lists of access that new files get from it as well.
    rig.put("before", &noise(3, 1000));
    let kinds = [Operation::Read, Operation::Write, Operation::Stat, Operation::Commit];
    stuck.hang(&[&kinds[..], &[Operation::Sync, Operation::Create, Operation::Open]].concat());
    let began = Instant::now();
    same(&rig.get("resident"), &noise(1, 300_000), "while stuck");
    rig.put("other", &noise(2, 200_000));
    assert!(began.elapsed() < HANGS, "took {:?}", began.elapsed());
    let began = Instant::now();
    rig.node().stop(Duration::from_secs(1));
    let took = began.elapsed();
    stuck.release();
    assert!(took < HANGS, "stop took {took:?}");
}

#[test]
fn two_tiers_when_the_first_is_full_then_objects_move_down_and_sizes_hold() {
    let rig = Rig::new(&[MIB, 4 * MIB], Arc::new(Transparent), |_| {});
    rig.watch_sizes(|| {
        for id in 0..12 {
            rig.put(&format!("f{id}"), &noise(id, 300_000));
        }
    });
    let comes = wait_for(LIMIT, || rig.node().tier_reports()[1].objects > 0);
    let reports = rig.node().tier_reports();
    assert!(comes, "{reports:?}");
    assert!(reports.iter().all(|tier| tier.used <= tier.size), "{reports:?}");
    for id in 0..12 {
        same(&rig.get(&format!("f{id}")), &noise(id, 300_000), "on either tier");
    }
    rig.drain();
    for id in 0..12 {
        same(&rig.plain(&format!("f{id}")), &noise(id, 300_000), "in the backing store");
    }
}

#[test]
fn pinned_file_when_others_need_room_then_it_stays() {
    let rig = Rig::small(MIB);
    rig.put("pinned", &noise(1, 200_000));
    rig.node().pin(rig.ino("pinned"), true).unwrap();
    rig.drain();
    for id in 0..10 {
        rig.put(&format!("f{id}"), &noise(id, 300_000));
        rig.drain();
    }
    let place = rig.node().whereabouts(rig.ino("pinned")).unwrap();
    assert!(format!("{place:?}").contains("tier"), "{place:?}");
    assert!(!rig.node().residency().evict_file(rig.ino("pinned")).unwrap());
    rig.node().pin(rig.ino("pinned"), false).unwrap();
    assert!(rig.node().residency().evict_file(rig.ino("pinned")).unwrap());
    same(&rig.get("pinned"), &noise(1, 200_000), "evicted");
}

#[test]
fn write_on_eviction_when_room_is_needed_then_files_are_written_back() {
    let change = |config: &mut NodeConfig| config.writeback = WritebackPolicy::OnEviction;
    let rig = Rig::new(&[2 * MIB], Arc::new(Transparent), change);
    for id in 0..8 {
        rig.put(&format!("f{id}"), &noise(id, 300_000));
    }
    let whole = |id: u64| {
        let path = rig.backing().join(format!("f{id}"));
        std::fs::metadata(path).is_ok_and(|found| found.len() == 300_000)
    };
    wait_until("something is written back", || (0..8).any(whole));
    assert!(!(0..8).all(whole), "only what must make room is written");
}

/// Random work on a few files that are larger than the tier together, and each may be: compared with
/// bytes in memory at every step.
fn random_work(seeds: std::ops::RangeInclusive<u64>) {
    for seed in seeds {
        Work::new(seed, MIB).run(120);
    }
}

#[test]
fn random_work_when_compared_with_memory_then_the_same_seeds_1_to_3() {
    random_work(1..=3);
}

#[test]
fn random_work_when_compared_with_memory_then_the_same_seeds_4_to_6() {
    random_work(4..=6);
}

#[test]
fn random_work_when_compared_with_memory_then_the_same_seeds_7_to_9() {
    random_work(7..=9);
}

#[test]
fn random_work_when_compared_with_memory_then_the_same_seeds_10_to_12() {
    random_work(10..=12);
}

struct Work {
    rig: Rig,
    state: u64,
    model: Vec<Option<Vec<u8>>>,
    open: Vec<Option<u64>>,
    log: Vec<String>,
}

impl Work {
    fn new(seed: u64, tier: u64) -> Self {
        let rig = Rig::new(&[tier], Arc::new(Transparent), |config| {
            config.high_percent = 70;
            config.low_percent = 50;
            // So long a write-back of a file that stays open is repeated.
            config.backing_timeout = Duration::from_millis(200);
        });
        let old = noise(seed, 700_000);
        std::fs::write(rig.backing().join("0"), &old).unwrap();
        let model = vec![Some(old), None, None];
        Work { rig, state: seed * 7919, model, open: vec![None; 3], log: Vec::new() }
    }

    fn below(&mut self, end: u64) -> u64 {
        random(&mut self.state) % end
    }

    fn run(mut self, steps: usize) {
        for step in 0..steps {
            let file = self.below(3) as usize;
            self.step(file);
            let report = &self.rig.node().tier_reports()[0];
            assert!(report.used <= report.size, "{report:?} after {:#?}", self.log);
            if step % 10 == 0 {
                (0..3).for_each(|file| self.compare(file));
            }
        }
        (0..3).for_each(|file| self.close(file));
        self.rig.drain();
        for (file, model) in self.model.iter().enumerate() {
            if let Some(model) = model {
                let what = format!("{file} in the backing store after {:#?}", self.log);
                same(&self.rig.plain(&file.to_string()), model, &what);
            }
        }
        assert_eq!(self.rig.node().writeback().conflicts().0, 0, "after {:#?}", self.log);
    }

    fn close(&mut self, file: usize) {
        if let Some(fh) = self.open[file].take() {
            self.rig.node().release(fh);
        }
    }

    fn compare(&mut self, file: usize) {
        let Some(model) = self.model[file].clone() else { return };
        let name = file.to_string();
        let what = format!("{file} after {:#?}", self.log);
        same(&self.rig.get(&name), &model, &what);
        assert_eq!(self.rig.size(&name), model.len() as u64, "the size of {what}");
    }

    fn step(&mut self, file: usize) {
        let name = file.to_string();
        if self.model[file].is_none() {
            self.log.push(format!("create {file}"));
            self.open[file] = Some(self.rig.create(&name));
            self.model[file] = Some(Vec::new());
            return;
        }
        let len = self.model[file].as_ref().map_or(0, Vec::len) as u64;
        match self.below(20) {
            0..9 => self.write(file, len),
            9..11 => self.truncate(file, len),
            11..13 => {
                self.log.push(format!("close {file}"));
                self.close(file);
            }
            13..15 => {
                self.log.push(format!("flush {file}"));
                // Refused while it is open or busy: another time.
                drop(self.rig.node().writeback().reconcile(self.rig.ino(&name)));
            }
            15 => {
                self.log.push(format!("evict {file}"));
                self.rig.node().residency().evict_file(self.rig.ino(&name)).unwrap();
            }
            16 => {
                self.log.push(format!("warm {file}"));
                drop(self.rig.node().residency().warm_file(self.rig.ino(&name), &mut |_| true));
            }
            17 => {
                self.log.push("crash".into());
                (0..3).for_each(|file| self.open[file] = None);
                self.rig.crash();
                self.rig.start();
                (0..3).for_each(|file| self.compare(file));
            }
            18 => {
                self.log.push(format!("sync {file}"));
                if let Some(fh) = self.open[file] {
                    self.rig.node().fsync(&CONTEXT, fh, false).unwrap();
                }
            }
            _ => self.compare(file),
        }
    }

    fn write(&mut self, file: usize, len: u64) {
        let at = self.below(len + 100_000);
        let count = self.below(200_000) + 1;
        let data = noise(self.state, count);
        self.log.push(format!("write {file} {at}+{count}"));
        let fh = match self.open[file] {
            Some(fh) => fh,
            None => self.rig.open(&file.to_string(), libc::O_RDWR),
        };
        self.open[file] = Some(fh);
        self.rig.write(fh, at, &data);
        let model = self.model[file].get_or_insert_default();
        let end = (at + count) as usize;
        model.resize(model.len().max(end), 0);
        model[at as usize..end].copy_from_slice(&data);
    }

    fn truncate(&mut self, file: usize, len: u64) {
        let size = if self.below(3) == 0 { 0 } else { self.below(len + 50_000) };
        self.log.push(format!("truncate {file} to {size}"));
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.rig.node().setattr(&CONTEXT, self.rig.ino(&file.to_string()), &set).unwrap();
        self.model[file].get_or_insert_default().resize(size as usize, 0);
    }
}

#[test]
fn range_that_is_allocated_again_and_again_then_is_charged_once() {
    let rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |_| {});
    let fh = rig.create("file");
    let mut data = noise(1, 100);
    rig.write(fh, 0, &data);
    let allocate = |at: u64, len: u64| {
        rig.node().fallocate(&CONTEXT, fh, at, len, libc::FALLOC_FL_KEEP_SIZE).unwrap();
    };
    for _ in 0..100 {
        allocate(0, MIB);
    }
    assert!(rig.used() <= MIB + 64 * KIB, "{} bytes for one range", rig.used());
    // What is paid for is not paid for again when it is written.
    data = noise(2, MIB);
    for (index, piece) in data.chunks(64 << 10).enumerate() {
        rig.write(fh, index as u64 * 64 * KIB, piece);
    }
    assert!(rig.used() <= MIB + 64 * KIB, "{} bytes for what was allocated", rig.used());
    // Behind a hole as well.
    for _ in 0..100 {
        allocate(4 * MIB, MIB);
    }
    assert!(rig.used() <= 2 * MIB + 64 * KIB, "{} bytes for two ranges", rig.used());
    assert!(rig.occupied(0) <= rig.used(), "less is charged than there is");
    same(&rig.read_all(fh), &data, "as it was written");
}

#[test]
fn range_that_the_device_does_not_allocate_then_is_not_charged() {
    let flaky = Arc::new(Flaky::new(1));
    flaky.set_rules([Rule::always(Operation::Allocate, libc::EIO)]);
    let mut rig = Rig::unstarted(&[16 * MIB], Arc::new(Transparent), |_| {});
    rig.by_tier = Some(flaky);
    rig.start();
    let fh = rig.create("file");
    rig.write(fh, 0, b"short");
    let before = rig.used();
    for _ in 0..10 {
        let mode = libc::FALLOC_FL_KEEP_SIZE;
        assert!(rig.node().fallocate(&CONTEXT, fh, 0, MIB, mode).is_err());
    }
    assert!(rig.used() <= before, "{} bytes are charged, and were {before}", rig.used());
}

#[test]
fn sparse_file_when_read_or_fetched_then_its_holes_stay_holes_on_the_tier_and_below() {
    const SIZE: u64 = 20 * MIB;
    let blocks = |path: &std::path::Path| {
        512 * std::os::unix::fs::MetadataExt::blocks(&path.metadata().unwrap())
    };
    for is_warmed in [false, true] {
        let rig = Rig::small(64 * MIB);
        let path = rig.backing().join("sparse");
        let below = std::fs::File::create(&path).unwrap();
        below.set_len(SIZE).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&below, b"middle", 7 * MIB).unwrap();
        let mut bytes = vec![0; SIZE as usize];
        bytes[7 * MIB as usize..][..6].copy_from_slice(b"middle");
        if is_warmed {
            rig.node().residency().warm_file(rig.ino("sparse"), &mut |_| true).unwrap();
        }
        same(&rig.get("sparse"), &bytes, "brought in");
        assert!(rig.occupied(0) < MIB, "{} bytes on the tier", rig.occupied(0));
        let fh = rig.open("sparse", libc::O_RDWR);
        rig.write(fh, 3, b"x");
        bytes[3] = b'x';
        rig.node().release(fh);
        rig.drain();
        same(&rig.plain("sparse"), &bytes, "written back");
        assert!(blocks(&path) < MIB, "{} bytes below", blocks(&path));
    }
}
