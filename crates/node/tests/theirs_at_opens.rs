//! What others did in the backing store, as opens, listings and looks at attributes meet it: nobody is
//! given another's file, nor told that nothing is there where something can be made.

mod rig;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use forebay_node::{Ino, NewFile, NodeError};
use forebay_store::decorators::{Interceptor, Operation, Transparent, Verdict};
use rig::{CONTEXT, MIB, Rig, noise};
use rustix::fs::{CWD, RenameFlags, XattrFlags};
use rustix::io::Errno;

const NEVER: Duration = Duration::from_secs(3600);

fn rig(attr_timeout: Duration) -> Rig {
    Rig::new(&[16 * MIB], Arc::new(Transparent), |config| config.attr_timeout = attr_timeout)
}

fn posix<T>(result: Result<T, NodeError>) -> Option<Errno> {
    match result {
        Err(NodeError::Posix(errno)) => Some(errno),
        Err(NodeError::Meta(forebay_meta::Error::Stale(_))) => Some(Errno::STALE),
        _ => None,
    }
}

/// The kernel asks for the permissions of what a name means, but not of what it has made.
#[test]
fn open_that_is_to_make_a_file_when_one_is_there_then_the_kernel_has_to_look_it_up() {
    let rig = rig(NEVER);
    std::fs::write(rig.backing().join("file"), b"theirs").unwrap();
    let create = |flags: i32| {
        let new = NewFile { mode: 0o644, umask: 0 };
        let flags = libc::O_RDWR | libc::O_CREAT | flags;
        rig.node().create_and_open(&CONTEXT, Ino::ROOT, b"file", new, flags)
    };
    assert_eq!(posix(create(libc::O_TRUNC)), Some(Errno::STALE));
    assert_eq!(posix(create(libc::O_EXCL)), Some(Errno::EXIST));
    assert_eq!(rig.plain("file"), b"theirs");
    assert_eq!(rig.get("file"), b"theirs", "nothing has emptied it");
}

/// `ENOENT` would be told to a program that wants to make the file.
#[test]
fn open_of_a_file_that_others_removed_then_the_kernel_has_to_look_the_name_up() {
    for (attr_timeout, size) in [(Duration::ZERO, 100), (NEVER, 100), (NEVER, MIB)] {
        let rig = rig(attr_timeout);
        std::fs::write(rig.backing().join("file"), noise(1, size)).unwrap();
        // The lookup has the directory listed behind it, from when on the file may be taken for fresh.
        let held = rig.hold_workers();
        let ino = rig.ino("file");
        std::fs::remove_file(rig.backing().join("file")).unwrap();
        let opened = rig.node().open(&CONTEXT, ino, libc::O_RDWR);
        drop(held);
        assert_eq!(posix(opened), Some(Errno::STALE), "{attr_timeout:?}, {size}");
        let found = rig.node().lookup(&CONTEXT, Ino::ROOT, b"file").unwrap();
        assert!(found.is_none(), "{attr_timeout:?}, {size}: found again");
    }
}

/// Each look at a file of this name takes its time.
#[derive(Default)]
struct SlowLooks(AtomicBool, AtomicU32);

impl Interceptor for SlowLooks {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }

    fn before_at(&self, operation: Operation, _: u64, label: &Path) -> Verdict {
        if operation == Operation::Stat
            && self.0.load(Ordering::Acquire)
            && label.to_string_lossy().contains("slow")
        {
            self.1.fetch_add(1, Ordering::AcqRel);
            std::thread::sleep(Duration::from_millis(100));
        }
        Verdict::Pass
    }
}

#[test]
fn listing_that_takes_long_when_the_store_answers_then_other_files_are_compared_meanwhile() {
    let by = Arc::new(SlowLooks::default());
    let zero = Duration::ZERO;
    let rig = Rig::new(&[16 * MIB], by.clone(), |config| config.attr_timeout = zero);
    std::fs::create_dir(rig.backing().join("dir")).unwrap();
    for number in 0..40 {
        std::fs::write(rig.backing().join(format!("dir/slow{number}")), b"before").unwrap();
    }
    std::fs::write(rig.backing().join("file"), b"before").unwrap();
    let (dir, file) = (rig.ino("dir"), rig.ino("file"));
    let list = || rig.node().read_dir(&CONTEXT, dir, 0, 100, true, &mut |_| true).unwrap();
    list();
    assert_eq!(rig.get("file"), b"before");
    for number in 0..40 {
        std::fs::write(rig.backing().join(format!("dir/slow{number}")), b"changed").unwrap();
    }
    std::fs::write(rig.backing().join("dir/another"), b"").unwrap();
    by.0.store(true, Ordering::Release);
    std::thread::scope(|scope| {
        let listing = scope.spawn(|| {
            // What took long to be listed is left alone for a while.
            while by.1.load(Ordering::Acquire) == 0 {
                list();
            }
        });
        while by.1.load(Ordering::Acquire) < 20 {
            assert!(!listing.is_finished(), "the names are not looked at");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::write(rig.backing().join("file"), b"after").unwrap();
        let fh = rig.node().open(&CONTEXT, file, libc::O_RDONLY).unwrap().fh;
        let read = rig.read_all(fh);
        rig.node().release(fh);
        assert!(!listing.is_finished(), "it took no time");
        assert_eq!(String::from_utf8_lossy(&read), "after");
        by.0.store(false, Ordering::Release);
        listing.join().unwrap();
    });
}

/// Somebody exchanges two files right before the attributes of one are asked for.
struct Exchange {
    dir: std::sync::OnceLock<std::path::PathBuf>,
    at: &'static str,
}

impl Interceptor for Exchange {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }

    fn before_at(&self, operation: Operation, _: u64, label: &Path) -> Verdict {
        if operation == Operation::Xattr
            && label.ends_with(self.at)
            && let Some(dir) = self.dir.get()
            && std::fs::read(dir.join(self.at)).unwrap() == b"own"
        {
            let (one, two) = (dir.join(self.at), dir.join("other"));
            rustix::fs::renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE).unwrap();
        }
        Verdict::Pass
    }
}

fn mark(rig: &Rig, name: &str, value: &[u8]) {
    let path = rig.backing().join(name);
    std::fs::write(&path, value).unwrap();
    rustix::fs::setxattr(&path, "user.mark", value, XattrFlags::empty()).unwrap();
}

#[test]
fn attributes_of_a_file_when_others_exchange_it_meanwhile_then_never_those_of_the_other() {
    let by = Arc::new(Exchange { dir: Default::default(), at: "f5" });
    let rig = Rig::new(&[16 * MIB], by.clone(), |config| config.attr_timeout = NEVER);
    for number in 0..8 {
        mark(&rig, &format!("f{number}"), b"own");
    }
    mark(&rig, "other", b"theirs");
    by.dir.set(rig.backing()).unwrap();
    rig.node().read_dir(&CONTEXT, Ino::ROOT, 0, 100, true, &mut |_| true).unwrap();
    let held = rig.open("f5", libc::O_RDONLY);
    let ino = rig.ino("f5");
    let get = |ino| rig.node().get_xattr(&CONTEXT, ino, b"user.mark");
    // One after the other of a listing, so that others are read ahead.
    let mut all = Vec::new();
    rig.node()
        .read_dir(&CONTEXT, Ino::ROOT, 0, 100, true, &mut |entry| {
            if entry.name.starts_with(b"f") {
                all.push(entry.ino);
            }
            true
        })
        .unwrap();
    for other in all.into_iter().filter(|other| *other != ino) {
        assert_eq!(get(other).unwrap(), b"own");
    }
    let of_held = get(ino);
    assert!(of_held.as_ref().map_or(true, |value| value == b"own"), "{of_held:?}");
    assert_eq!(rig.read_all(held), b"own");
    rig.node().release(held);
}

/// Counts how often a directory is listed, and may take its time for that.
#[derive(Default)]
struct Listings(AtomicU32, AtomicBool);

impl Interceptor for Listings {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        if operation == Operation::List {
            self.0.fetch_add(1, Ordering::AcqRel);
            if self.1.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(500));
            }
        }
        Verdict::Pass
    }
}

#[test]
fn directory_that_was_changed_right_before_it_was_read_then_is_read_once_more() {
    let by = Arc::new(Listings::default());
    let zero = Duration::ZERO;
    let rig = Rig::new(&[16 * MIB], by.clone(), |config| config.attr_timeout = zero);
    std::fs::create_dir(rig.backing().join("dir")).unwrap();
    let dir = rig.ino("dir");
    std::thread::sleep(Duration::from_millis(100));
    let list = || {
        let before = by.0.load(Ordering::Acquire);
        rig.node().read_dir(&CONTEXT, dir, 0, 100, true, &mut |_| true).unwrap();
        by.0.load(Ordering::Acquire) - before
    };
    // What took long to be listed is left alone for a while.
    let rest = || std::thread::sleep(Duration::from_millis(200));
    list();
    rest();
    assert_eq!(list(), 0, "it was at rest for long");
    // Whatever comes in the same step of the store's clock leaves the same time.
    let again = (0..20).any(|number| {
        std::fs::write(rig.backing().join(format!("dir/{number}")), b"").unwrap();
        let first = list();
        rest();
        first == 1 && list() == 1
    });
    assert!(again, "what comes in the same moment would never be seen");
    rest();
    assert_eq!(list(), 0, "known from now on");
    // A time of contents that is yet to come says nothing of when it was changed.
    let below = std::fs::File::open(rig.backing().join("dir")).unwrap();
    below.set_modified(SystemTime::now() + Duration::from_secs(3600)).unwrap();
    rest();
    list();
    rest();
    assert_eq!(list(), 0, "it is not read again and again");
}

#[test]
fn refresh_when_another_lists_the_directory_then_waits_and_does_it() {
    let by = Arc::new(Listings::default());
    let zero = Duration::ZERO;
    let rig = Rig::new(&[16 * MIB], by.clone(), |config| config.attr_timeout = zero);
    std::fs::write(rig.backing().join("file"), b"").unwrap();
    rig.node().read_dir(&CONTEXT, Ino::ROOT, 0, 100, true, &mut |_| true).unwrap();
    by.1.store(true, Ordering::Release);
    let refresh = || rig.node().writeback().refresh(Path::new(""), &mut |_| true).map(drop);
    std::thread::scope(|scope| {
        let first = scope.spawn(refresh);
        std::thread::sleep(Duration::from_millis(100));
        refresh().unwrap();
        first.join().unwrap().unwrap();
    });
}
