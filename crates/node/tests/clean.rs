//! Clean is proved: what counts as clean equals the backing store byte for byte, whatever programs did
//! to it behind the daemon's back, and on tiers whose file systems do not tell of every store.

mod rig;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_node::{Ino, NewFile, SetAttr, SetTime, Timestamp, WritebackPolicy};
use forebay_store::decorators::Transparent;
use forebay_testing::new_dir;
use rig::passing::{Map, PassingRig, Program};
use rig::{CONTEXT, KIB, MIB, Rig, noise, random, same};

/// Directories of a file system that tells of every store into a mapping, and of one that does not.
const BASES: [&str; 2] = ["/tmp", "/dev/shm"];

fn dir_in(base: &str) -> PathBuf {
    new_dir(base, "forebay-clean")
}

fn rig_in(base: &str, tier: u64) -> PassingRig {
    PassingRig::over(Rig::at(dir_in(base), &[tier], Arc::new(Transparent), |_| {}))
}

/// Puts a file into the backing store that was last changed long ago.
fn put_old(rig: &Rig, name: &str, content: &[u8]) {
    let path = rig.backing().join(name);
    std::fs::write(&path, content).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(1000)).unwrap();
}

/// An old file that is resident.
fn resident_in(base: &str, content: &[u8]) -> PassingRig {
    let rig = rig_in(base, 64 * MIB);
    put_old(&rig, "file", content);
    same(&rig.get("file"), content, "fetched");
    rig
}

/// What counts as clean equals the backing store.
fn clean_is_equal(rig: &Rig, name: &str, what: &str) {
    let Ok(Some(found)) = rig.node().lookup(&CONTEXT, Ino::ROOT, name.as_bytes()) else { return };
    if !rig.node().whereabouts(found.ino).unwrap().dirty {
        same(&rig.get(name), &rig.plain(name), &format!("{name} counts as clean {what}"));
    }
}

fn brought_back(rig: &Rig, name: &str, content: &[u8]) {
    clean_is_equal(rig, name, "after the close");
    rig.drain();
    same(&rig.plain(name), content, "in the backing store");
    clean_is_equal(rig, name, "after the drain");
    assert!(rig.node().residency().evict_file(rig.ino(name)).unwrap(), "not evicted");
    same(&rig.get(name), content, "after the eviction");
}

fn set_times(rig: &Rig, ino: Ino, mtime: Timestamp) {
    let set = SetAttr { mtime: Some(SetTime::At(mtime)), ..SetAttr::default() };
    rig.node().setattr(&CONTEXT, ino, &set).unwrap();
}

fn mtime(rig: &Rig, name: &str) -> Timestamp {
    rig.node().getattr(&CONTEXT, rig.ino(name)).unwrap().attr.mtime
}

fn mtime_below(rig: &Rig, name: &str) -> Timestamp {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata(rig.backing().join(name)).unwrap();
    Timestamp::new(found.mtime(), u32::try_from(found.mtime_nsec()).unwrap())
}

#[test]
fn store_into_a_mapping_that_was_loaded_first_then_reaches_the_backing_store() {
    for base in BASES {
        let mut content = noise(1, 20 * KIB);
        let rig = resident_in(base, &content);
        let program = rig.program("file", libc::O_RDWR);
        assert!(program.passes());
        let map = program.map(content.len());
        map.load_all();
        map.store(5000, b"stored");
        content[5000..5006].copy_from_slice(b"stored");
        map.sync();
        program.fsync();
        drop(map);
        drop(program);
        brought_back(&rig, "file", &content);
    }
}

#[test]
fn store_into_a_mapping_after_the_close_then_reaches_the_backing_store() {
    for base in BASES {
        let mut content = noise(1, 20 * KIB);
        let rig = resident_in(base, &content);
        let program = rig.program("file", libc::O_RDWR);
        let map = program.map(content.len());
        map.load_all();
        drop(program);
        // A sync while it is mapped can't leave it clean.
        let until = std::time::Instant::now() + Duration::from_secs(20);
        rig.node().writeback().drain(until, &mut |_| true).unwrap();
        map.store(9000, b"later");
        content[9000..9005].copy_from_slice(b"later");
        drop(map);
        brought_back(&rig, "file", &content);
    }
}

#[test]
fn store_into_a_mapping_of_a_writer_beside_a_reader_then_reaches_the_backing_store() {
    for base in BASES {
        let mut content = noise(1, 20 * KIB);
        let dir = dir_in(base);
        let rig = Rig::at(dir, &[64 * MIB], Arc::new(Transparent), |config| {
            // No passthrough for who writes, but for mappings beside a reader.
            config.writeback = WritebackPolicy::Through;
        });
        let rig = PassingRig::over(rig);
        put_old(&rig, "file", &content);
        same(&rig.get("file"), &content, "fetched");
        let reader = rig.program("file", libc::O_RDONLY);
        assert!(reader.passes());
        let program = rig.program("file", libc::O_RDWR);
        assert!(!program.passes() && program.maps_object());
        let map = program.map(content.len());
        map.load_all();
        map.store(5000, b"stored");
        content[5000..5006].copy_from_slice(b"stored");
        drop(map);
        drop(program);
        drop(reader);
        brought_back(&rig, "file", &content);
    }
}

#[test]
fn write_when_the_times_are_put_back_then_reaches_the_backing_store() {
    for base in BASES {
        let mut content = noise(1, 20 * KIB);
        let rig = resident_in(base, &content);
        let before = mtime(&rig, "file");
        let program = rig.program("file", libc::O_RDWR);
        assert!(program.passes());
        program.write(7000, b"written");
        content[7000..7007].copy_from_slice(b"written");
        set_times(&rig, program.ino, before);
        drop(program);
        assert_eq!(mtime(&rig, "file"), before, "on {base}");
        brought_back(&rig, "file", &content);
        assert_eq!(mtime_below(&rig, "file"), before, "on {base}");
    }
}

#[test]
fn file_when_opened_to_write_and_not_written_then_its_version_stays() {
    for base in BASES {
        let content = noise(1, 20 * KIB);
        let rig = resident_in(base, &content);
        let version = |rig: &Rig| {
            use std::os::unix::fs::MetadataExt;
            let found = std::fs::metadata(rig.backing().join("file")).unwrap();
            (found.ino(), found.ctime(), found.ctime_nsec())
        };
        let before = version(&rig);
        let program = rig.program("file", libc::O_RDWR);
        assert!(program.passes());
        let map = program.map(content.len());
        map.load_all();
        drop(map);
        drop(program);
        rig.drain();
        assert!(!rig.node().whereabouts(rig.ino("file")).unwrap().dirty, "on {base}");
        assert_eq!(version(&rig), before, "rewritten on {base}");
        same(&rig.plain("file"), &content, "in the backing store");
    }
}

#[test]
fn mode_when_set_on_a_file_that_was_not_written_then_reaches_the_backing_store() {
    use std::os::unix::fs::PermissionsExt;
    for base in BASES {
        let content = noise(1, 20 * KIB);
        let rig = resident_in(base, &content);
        let program = rig.program("file", libc::O_RDWR);
        let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        rig.node().setattr(&CONTEXT, program.ino, &set).unwrap();
        drop(program);
        brought_back(&rig, "file", &content);
        let found = std::fs::metadata(rig.backing().join("file")).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o640, "on {base}");
    }
}

#[test]
fn times_when_set_on_a_resident_file_then_an_open_to_write_shows_and_keeps_them() {
    for base in BASES {
        let content = noise(1, 20 * KIB);
        let rig = resident_in(base, &content);
        let set = Timestamp::new(1_000_000_000, 123_456_789);
        set_times(&rig, rig.ino("file"), set);
        rig.drain();
        let program = rig.program("file", libc::O_RDWR);
        assert_eq!(mtime(&rig, "file"), set, "while it is open on {base}");
        drop(program);
        assert_eq!(mtime(&rig, "file"), set, "after the close on {base}");
        brought_back(&rig, "file", &content);
        assert_eq!(mtime_below(&rig, "file"), set, "below on {base}");
    }
}

/// Files that are closed and given a time at about the same moment.
fn close_and_set_times(writeback: WritebackPolicy) {
    let rig = Rig::new(&[64 * MIB], Arc::new(Transparent), |config| config.writeback = writeback);
    let set = |file: u32| Timestamp::new(1_000_000_000 + i64::from(file), file);
    for file in 0..120 {
        let name = format!("f{file}");
        let fh = rig.create(&name);
        rig.write(fh, 0, &noise(file.into(), 3000));
        rig.node().flush(&CONTEXT, fh).unwrap();
        let ino = rig.ino(&name);
        std::thread::scope(|scope| {
            // The kernel tells of a close after it has returned.
            scope.spawn(|| rig.node().release(fh));
            std::thread::sleep(Duration::from_micros(u64::from(file % 24) * 400));
            set_times(&rig, ino, set(file));
        });
        assert_eq!(mtime(&rig, &name), set(file), "{name}");
    }
    rig.drain();
    let wrong = |found: &dyn Fn(&str) -> Timestamp| {
        (0..120).filter(|&file| found(&format!("f{file}")) != set(file)).collect::<Vec<_>>()
    };
    assert_eq!(wrong(&|name| mtime(&rig, name)), [0; 0], "on the mount");
    assert_eq!(wrong(&|name| mtime_below(&rig, name)), [0; 0], "in the backing store");
}

#[test]
fn times_when_set_right_after_a_close_that_is_written_back_then_stay() {
    close_and_set_times(WritebackPolicy::OnClose);
}

#[test]
fn times_when_set_right_after_a_close_that_is_written_through_then_stay() {
    close_and_set_times(WritebackPolicy::Through);
}

#[test]
fn times_when_set_beside_a_sync_then_stay() {
    let rig = Rig::small(64 * MIB);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Acquire) {
                let until = std::time::Instant::now() + Duration::from_secs(5);
                rig.node().writeback().sync_subtree(Ino::ROOT, until, &mut |_| true).unwrap();
            }
        });
        for file in 0..150_u32 {
            let name = format!("f{file}");
            rig.put(&name, &noise(file.into(), 3000));
            set_times(&rig, rig.ino(&name), Timestamp::new(1_000_000_000 + i64::from(file), 0));
        }
        over.store(true, std::sync::atomic::Ordering::Release);
    });
    rig.drain();
    for file in 0..150_u32 {
        let (name, set) = (format!("f{file}"), Timestamp::new(1_000_000_000 + i64::from(file), 0));
        assert_eq!((mtime(&rig, &name), mtime_below(&rig, &name)), (set, set), "{name}");
    }
}

#[test]
fn directories_when_synced_beside_a_write_back_then_have_their_times_below() {
    let rig = Rig::new(&[64 * MIB], Arc::new(Transparent), |config| {
        config.writeback = WritebackPolicy::OnClose;
    });
    for round in 0..40_u32 {
        let name = format!("d{round}");
        let made = rig.node().mkdir(&CONTEXT, Ino::ROOT, name.as_bytes(), 0o755, 0o022).unwrap();
        for file in 0..8_u32 {
            let file = format!("f{file}");
            let (new, flags) = (NewFile { mode: 0o644, umask: 0o022 }, libc::O_RDWR);
            let opened =
                rig.node().create_and_open(&CONTEXT, made.ino, file.as_bytes(), new, flags);
            let fh = opened.unwrap().1.fh;
            rig.write(fh, 0, b"content");
            rig.node().release(fh);
        }
        set_times(&rig, made.ino, Timestamp::new(1_000_000_000 + i64::from(round), 0));
        std::thread::sleep(Duration::from_micros(u64::from(round) * 300));
        let until = std::time::Instant::now() + Duration::from_secs(10);
        rig.node().writeback().sync_subtree(made.ino, until, &mut |_| true).unwrap();
        assert_eq!(mtime_below(&rig, &name), mtime(&rig, &name), "{name} after its sync");
    }
}

#[test]
fn times_when_set_to_the_future_then_the_change_time_stays_in_the_present() {
    for base in BASES {
        let content = noise(1, 20 * KIB);
        let rig = resident_in(base, &content);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let future = Timestamp::new(i64::try_from(now).unwrap() + 5000, 0);
        let program = rig.program("file", libc::O_RDWR);
        program.write(0, b"written");
        set_times(&rig, program.ino, future);
        let changed = |rig: &Rig| rig.node().getattr(&CONTEXT, rig.ino("file")).unwrap().attr.ctime;
        let first = changed(&rig);
        assert!(first < future, "it follows the future on {base}");
        drop(program);
        assert_eq!(changed(&rig), first, "it moved with the close on {base}");
        rig.drain();
        assert_eq!(changed(&rig), first, "it moved with the write-back on {base}");
        assert_eq!(mtime_below(&rig, "file"), future);
    }
}

#[test]
fn allocation_when_the_tier_is_full_then_the_file_is_longer() {
    let rig = Rig::small(MIB);
    std::fs::write(rig.backing().join("old"), noise(2, 200_000)).unwrap();
    let filler = rig.create("filler");
    rig.write(filler, 0, &noise(1, MIB - 4 * KIB));
    let fh = rig.create("new");
    rig.node().fallocate(&CONTEXT, fh, 0, 100_000, 0).unwrap();
    assert_eq!(rig.size("new"), 100_000, "of a new file");
    rig.node().fallocate(&CONTEXT, fh, 90_000, 60_000, 0).unwrap();
    assert_eq!(rig.size("new"), 150_000, "of one past the tier");
    rig.write(fh, 149_999, b"x");
    let old = rig.open("old", libc::O_RDWR);
    rig.node().fallocate(&CONTEXT, old, 150_000, 150_000, 0).unwrap();
    assert_eq!(rig.size("old"), 300_000, "of one that only the backing store has");
    for fh in [fh, old, filler] {
        rig.node().release(fh);
    }
    rig.drain();
    let mut new = vec![0; 150_000];
    new[149_999] = b'x';
    same(&rig.plain("new"), &new, "new");
    let mut old = noise(2, 200_000);
    old.resize(300_000, 0);
    same(&rig.plain("old"), &old, "old");
}

#[test]
fn allocation_when_neither_tier_nor_backing_store_has_the_room_then_no_space() {
    let rig = Rig::small(MIB);
    let fh = rig.create("new");
    let refused = rig.node().fallocate(&CONTEXT, fh, 0, 1 << 41, 0).unwrap_err();
    assert!(refused.to_string().contains("space"), "{refused}");
    assert_eq!(rig.size("new"), 0);
    rig.write(fh, 0, b"still");
    let refused = rig.node().fallocate(&CONTEXT, fh, 0, 1 << 41, libc::FALLOC_FL_KEEP_SIZE);
    assert!(refused.is_err(), "kept at its size");
    assert_eq!(rig.size("new"), 5);
    rig.node().release(fh);
}

/// A program that has a file open, and its mapping, which may outlive it.
#[derive(Default)]
struct Hands {
    program: Option<Program>,
    map: Option<Map>,
}

/// Random work of programs on files that the kernel passes through, compared with what they must be,
/// and with the backing store wherever the node says that they are clean.
struct Work {
    rig: PassingRig,
    state: u64,
    content: Vec<Vec<u8>>,
    times: Vec<Timestamp>,
    hands: Vec<Hands>,
}

const FILES: u64 = 3;

impl Work {
    fn new(base: &str, seed: u64) -> Self {
        let rig = rig_in(base, 4 * MIB);
        let content: Vec<_> =
            (0..FILES).map(|file| noise(seed + file, 3000 + file * 9000)).collect();
        for (file, content) in content.iter().enumerate() {
            put_old(&rig, &name(file), content);
        }
        for (file, content) in content.iter().enumerate() {
            same(&rig.get(&name(file)), content, "fetched");
        }
        let times = (0..content.len()).map(|file| mtime(&rig, &name(file))).collect();
        let hands = content.iter().map(|_| Hands::default()).collect();
        Work { rig, state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, content, times, hands }
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(random(&mut self.state) >> 11).unwrap() % end.max(1)
    }

    fn run(mut self, steps: usize) {
        for step in 0..steps {
            let file = self.below(self.content.len());
            let kind = self.below(12);
            self.step(file, kind);
            for file in 0..self.content.len() {
                let what = format!("after step {step} ({kind})");
                let found = self.rig.node().whereabouts(self.rig.ino(&name(file))).unwrap();
                if !found.dirty {
                    same(&self.rig.plain(&name(file)), &self.content[file], &what);
                }
            }
        }
        self.hands.clear();
        self.rig.drain();
        for (file, content) in self.content.iter().enumerate() {
            same(&self.rig.plain(&name(file)), content, "at the end");
            assert_eq!(mtime_below(&self.rig, &name(file)), mtime(&self.rig, &name(file)));
        }
    }

    fn step(&mut self, file: usize, kind: usize) {
        let len = self.content[file].len();
        let at = self.below(len - 8);
        let bytes = random(&mut self.state).to_le_bytes();
        match kind {
            0 | 1 => {
                let program = self.rig.program(&name(file), libc::O_RDWR);
                self.hands[file].program = Some(program);
            }
            2 | 3 => self.hands[file].program = None,
            4 => {
                let program = self.hands[file].program.as_ref().filter(|p| p.maps_object());
                self.hands[file].map = program.map(|program| program.map(len));
                if let Some(map) = &self.hands[file].map {
                    map.load_all();
                }
            }
            5 => self.hands[file].map = None,
            6 | 7 => {
                if let Some(map) = &self.hands[file].map {
                    map.store(at, &bytes);
                    self.content[file][at..at + 8].copy_from_slice(&bytes);
                }
            }
            8 => {
                if let Some(program) = &self.hands[file].program {
                    program.write(at as u64, &bytes);
                    self.content[file][at..at + 8].copy_from_slice(&bytes);
                }
            }
            9 => set_times(&self.rig, self.rig.ino(&name(file)), self.times[file]),
            10 => drop(self.rig.node().residency().evict_file(self.rig.ino(&name(file))).unwrap()),
            _ => {
                // Fails for what is in use, which is its right; not for long.
                let until = std::time::Instant::now() + Duration::from_millis(40);
                self.rig.node().writeback().drain(until, &mut |_| true).unwrap();
            }
        }
    }
}

fn name(file: usize) -> String {
    format!("file{file}")
}

#[test]
fn programs_when_they_write_map_and_put_times_back_then_clean_implies_equal() {
    let first = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for base in BASES {
        for seed in first..first + 6 {
            println!("seed {seed} in {base}");
            Work::new(base, seed).run(150);
        }
    }
}

/// Whether a file system tells of each store into a mapping.
fn tells_stores(base: &str) -> bool {
    const TELLING: [i64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];
    TELLING.contains(&rustix::fs::statfs(base).unwrap().f_type)
}

#[test]
fn file_when_opened_to_write_then_dirty_from_then_on_and_clean_at_its_last_close_if_nobody_wrote() {
    for base in BASES {
        let content = noise(1, 20 * KIB);
        let rig = resident_in(base, &content);
        let is_dirty = || rig.node().whereabouts(rig.ino("file")).unwrap().dirty;
        assert!(!is_dirty(), "on {base}");
        let programs = [libc::O_RDWR, libc::O_WRONLY].map(|flags| rig.program("file", flags));
        assert!(programs.iter().all(Program::passes), "on {base}");
        assert!(is_dirty(), "a kill now would take what they write for nothing, on {base}");
        let [one, other] = programs;
        drop(one);
        assert!(is_dirty(), "somebody may still write, on {base}");
        drop(other);
        assert_eq!(is_dirty(), !tells_stores(base), "after the last close, on {base}");
        let writer = rig.program("file", libc::O_RDWR);
        writer.write(7, b"written");
        drop(writer);
        assert!(is_dirty(), "it was written, on {base}");
    }
}

#[test]
fn large_file_when_opened_to_write_on_a_tier_in_memory_then_it_is_written_back_and_not_compared() {
    const LIMIT: u64 = 256 * MIB;
    for (len, again) in [(LIMIT, false), (LIMIT + 1, true)] {
        let rig = rig_in("/dev/shm", 1024 * MIB);
        let path = rig.backing().join("file");
        put_old(&rig, "file", b"with a hole behind it");
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(len).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(1000)).unwrap();
        rig.node().residency().warm_file(rig.ino("file"), &mut |_| true).unwrap();
        let version = || {
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(&path).unwrap().ino()
        };
        let before = version();
        let program = rig.program("file", libc::O_RDWR);
        assert!(program.passes(), "{len}");
        drop(program);
        rig.drain();
        assert!(!rig.node().whereabouts(rig.ino("file")).unwrap().dirty, "{len}");
        assert_eq!(version() != before, again, "a new version of {len} bytes");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), len);
    }
}
