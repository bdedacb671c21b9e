//! Small files that the kernel keeps in its page cache, on a real mount. Skipped, with the reason
//! printed, where there is no `/dev/fuse`.

mod lab;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_node::metrics::Op;
use forebay_node::{Node, NodeConfig, WritebackPolicy};
use rustix::fs::{FallocateFlags, Timespec, Timestamps};
use rustix::mm::{MapFlags, ProtFlags};

use lab::{Lab, names};

impl Lab {
    fn with(adapt: impl FnOnce(&mut NodeConfig)) -> Option<Self> {
        let at_once = |config: &mut NodeConfig| config.writeback = WritebackPolicy::OnClose;
        Self::start(
            |config| {
                at_once(config);
                adapt(config);
            },
            Node::start,
        )
    }

    fn below(&self, name: &str) -> PathBuf {
        self.home.path().join("backing").join(name)
    }

    /// How many requests of some kinds it takes to do something, with what follows a close.
    fn requests(&self, ops: &[Op], what: impl FnOnce()) -> u64 {
        let count = || ops.iter().map(|op| self.node.metrics().op_seconds.of(*op).count()).sum();
        std::thread::sleep(Duration::from_millis(20));
        let before: u64 = count();
        what();
        std::thread::sleep(Duration::from_millis(20));
        let after: u64 = count();
        after - before
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).expect("read")
    }

    /// Reads a file until the kernel has it: it is written back first, and its access time moves.
    fn is_kept(&self, name: &str) -> bool {
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            if self.requests(&[Op::Read], || drop(self.read(name))) == 0 {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// Whether reads of a file pass the daemon by without its page cache: nobody could tell.
    fn has_passthrough(&self) -> bool {
        let can = self.node.residency().passthrough_refusal().is_none();
        if !can {
            eprintln!("skipped: no passthrough on this machine");
        }
        can
    }
}

fn old_times(path: &std::path::Path) {
    let at = Timespec { tv_sec: 1_000_000_000, tv_nsec: 5 };
    let times = Timestamps { last_access: at, last_modification: at };
    let flags = rustix::fs::AtFlags::empty();
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags).expect("times set");
}

#[test]
fn small_file_when_read_again_then_only_opened_and_closed_and_its_attributes_are_known() {
    let Some(lab) = Lab::with(|_| {}) else { return };
    if !lab.has_passthrough() {
        return;
    }
    fs::write(lab.below("f"), [7; 5000]).expect("written");
    assert!(lab.is_kept("f"));
    assert!(fs::metadata(lab.path("f")).expect("attributes").is_file());
    let asked = lab.requests(&[Op::Read, Op::Getattr, Op::Lookup], || {
        for _ in 0..10 {
            assert_eq!(lab.read("f"), [7; 5000]);
            assert_eq!(fs::metadata(lab.path("f")).expect("attributes").len(), 5000);
        }
    });
    assert_eq!(asked, 0);
}

#[test]
fn large_file_when_read_then_passed_through() {
    let Some(lab) = Lab::with(|_| {}) else { return };
    if !lab.has_passthrough() {
        return;
    }
    fs::write(lab.below("f"), [7; 100_000]).expect("written");
    assert_eq!(lab.read("f").len(), 100_000);
    let passed = lab.node.metrics().passthrough_opens.get();
    let asked = lab.requests(&[Op::Read], || assert_eq!(lab.read("f"), [7; 100_000]));
    assert_eq!((asked, lab.node.metrics().passthrough_opens.get()), (0, passed + 1));
}

/// Nobody would know that it was read if the kernel had answered.
#[test]
fn small_file_whose_access_time_is_due_when_read_then_it_moves() {
    let Some(lab) = Lab::with(|_| {}) else { return };
    fs::write(lab.below("f"), [7; 5000]).expect("written");
    assert!(lab.is_kept("f"));
    let path = lab.path("f");
    let accessed = || fs::metadata(&path).expect("attributes").accessed().expect("a time");
    old_times(&path);
    let old = accessed();
    assert_eq!(lab.read("f"), [7; 5000]);
    let until = Instant::now() + Duration::from_secs(10);
    while accessed() == old && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(accessed() > old);
}

#[test]
fn small_file_that_is_kept_when_changed_in_any_way_then_read_as_it_is() {
    let Some(lab) = Lab::with(|_| {}) else { return };
    let path = lab.path("f");
    fs::write(lab.below("f"), [1; 5000]).expect("written");
    let open = || OpenOptions::new().read(true).write(true).open(&path).expect("opened");
    type Change<'a> = Box<dyn Fn() -> Vec<u8> + 'a>;
    let changes: [(&str, Change<'_>); 7] = [
        (
            "write",
            Box::new(|| {
                open().write_all_at(&[2; 5000], 0).expect("written");
                vec![2; 5000]
            }),
        ),
        (
            "write and put the times back",
            Box::new(|| {
                open().write_all_at(&[3; 5000], 0).expect("written");
                old_times(&path);
                vec![3; 5000]
            }),
        ),
        (
            "truncate",
            Box::new(|| {
                open().set_len(0).expect("emptied");
                open().set_len(5000).expect("longer");
                vec![0; 5000]
            }),
        ),
        (
            "replace",
            Box::new(|| {
                fs::write(lab.path("g"), [4; 5000]).expect("written");
                fs::rename(lab.path("g"), &path).expect("renamed");
                vec![4; 5000]
            }),
        ),
        (
            "store",
            Box::new(|| {
                store(&open(), 5000, 5);
                vec![5; 5000]
            }),
        ),
        (
            "punch",
            Box::new(|| {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(open(), how, 0, 5000).expect("punched");
                vec![0; 5000]
            }),
        ),
        (
            "copy",
            Box::new(|| {
                fs::write(lab.path("g"), [6; 5000]).expect("written");
                let from = File::open(lab.path("g")).expect("opened");
                let copied = rustix::fs::copy_file_range(&from, None, open(), None, 5000);
                assert_eq!(copied.expect("copied"), 5000);
                vec![6; 5000]
            }),
        ),
    ];
    for (what, change) in changes {
        assert!(lab.is_kept("f"), "before {what}");
        let expected = change();
        assert!(lab.read("f") == expected, "{what}");
        assert!(lab.is_kept("f"), "after {what}");
        assert!(lab.read("f") == expected, "{what}, kept");
    }
}

#[test]
fn small_file_that_is_kept_when_others_change_it_below_then_seen_after_the_time_out() {
    let short = Duration::from_millis(300);
    let set =
        |config: &mut NodeConfig| (config.attr_timeout, config.entry_timeout) = (short, short);
    let Some(lab) = Lab::with(set) else { return };
    for round in 0..5_u8 {
        // In place, another file of the name, and with the time of the one before.
        let at = match round % 2 {
            0 => lab.below("f"),
            _ => lab.below("new"),
        };
        fs::write(&at, [round; 5000]).expect("written");
        if round > 2 {
            old_times(&at);
        }
        if round % 2 == 1 {
            fs::rename(&at, lab.below("f")).expect("renamed");
        }
        std::thread::sleep(short * 2);
        for _ in 0..5 {
            assert!(lab.read("f") == [round; 5000], "round {round}");
        }
    }
}

/// As with a file that another takes the place of here.
#[test]
fn small_file_that_is_open_when_others_replace_it_below_then_its_reader_keeps_what_it_has() {
    let short = Duration::from_millis(300);
    let set =
        |config: &mut NodeConfig| (config.attr_timeout, config.entry_timeout) = (short, short);
    let Some(lab) = Lab::with(set) else { return };
    if !lab.has_passthrough() {
        return;
    }
    let old: Vec<u8> = (0..5000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(lab.below("f"), &old).expect("written");
    assert!(lab.is_kept("f"));
    let reader = File::open(lab.path("f")).expect("opened");
    let mut bytes = vec![0; 100];
    reader.read_exact_at(&mut bytes, 0).expect("read");
    fs::write(lab.below("new"), [9; 9000]).expect("written");
    fs::rename(lab.below("new"), lab.below("f")).expect("replaced");
    std::thread::sleep(short * 2);
    for _ in 0..5 {
        assert!(lab.read("f") == [9; 9000], "the new one");
        let mut bytes = vec![0; 10_000];
        let read = reader.read_at(&mut bytes, 0).expect("read");
        assert!(bytes[..read] == old, "{read} bytes");
        assert_eq!(reader.metadata().expect("attributes").len(), 5000);
        std::thread::sleep(short);
    }
}

/// Programs change small files in every way and read them, while others read them all the time, so that
/// the kernel has pages of them at any moment.
#[test]
fn small_files_when_changed_at_random_then_every_read_is_of_the_last_change() {
    const FILES: usize = 4;
    let Some(lab) = Lab::with(|_| {}) else { return };
    let mut random = Random(22);
    let mut model: Vec<Vec<u8>> = vec![vec![0; 6000]; FILES];
    for (number, bytes) in model.iter().enumerate() {
        fs::write(lab.path(&format!("f{number}")), bytes).expect("written");
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (lab, done) = (&lab, &done);
            scope.spawn(move || {
                let mut at = reader;
                while !done.load(Ordering::Relaxed) {
                    at = (at + 1) % FILES;
                    // The name may be on its way to another file.
                    drop(fs::read(lab.path(&format!("f{at}"))));
                }
            });
        }
        for step in 0..1500 {
            let number = random.below(FILES);
            let (name, bytes) = (format!("f{number}"), &mut model[number]);
            change(&lab, &name, bytes, &mut random);
            if random.below(10) == 0 {
                std::thread::sleep(Duration::from_millis(random.below(60) as u64));
            }
            assert!(lab.read(&name) == *bytes, "{name} at step {step}");
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(names(&lab.path("")), ["f0", "f1", "f2", "f3"]);
}

/// A sequence that looks random (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % limit as u64) as usize
    }
}

/// One change of a file, and of what it is to have.
fn change(lab: &Lab, name: &str, bytes: &mut Vec<u8>, random: &mut Random) {
    let path = lab.path(name);
    let open = || OpenOptions::new().read(true).write(true).open(&path).expect("opened");
    let (value, at) = (random.below(256) as u8, random.below(bytes.len().max(1)));
    match random.below(7) {
        0 => {
            open().write_all_at(&[value; 700], at as u64).expect("written");
            let end = bytes.len().max(at + 700);
            bytes.resize(end, 0);
            bytes[at..at + 700].fill(value);
        }
        1 => {
            open().write_all_at(&vec![value; bytes.len()], 0).expect("written");
            bytes.fill(value);
            old_times(&path);
        }
        2 => {
            open().set_len(at as u64).expect("cut");
            bytes.truncate(at);
        }
        3 => {
            *bytes = vec![value; 1 + random.below(70_000)];
            fs::write(&path, &*bytes).expect("written anew");
        }
        4 => {
            *bytes = vec![value; 1 + random.below(10_000)];
            fs::write(lab.path("new"), &*bytes).expect("written");
            fs::rename(lab.path("new"), &path).expect("replaced");
        }
        5 if !bytes.is_empty() => {
            store(&open(), bytes.len(), value);
            bytes.fill(value);
        }
        _ => {}
    }
}

/// Stores into a shared mapping of the first bytes of a file.
fn store(file: &File, len: usize, value: u8) {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: the kernel chooses a fresh range; it is written within its length and unmapped once.
    unsafe {
        let start = rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, file, 0);
        let start = start.expect("mapped");
        start.cast::<u8>().write_bytes(value, len);
        rustix::mm::munmap(start, len).expect("unmapped");
    }
}
