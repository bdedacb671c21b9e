//! Programs that use a directory until they are told to stop, and check all that they see: for
//! measuring what others do to a mount meanwhile.
//!
//! A record or name that a call acknowledged must be there exactly once. What is missing is *lost*,
//! what is there twice (or says that it is there already when it is made) is *doubled*, every other
//! failure and every wrong byte is an *error*.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Error;

/// Bytes of an appended record: its number in decimal and a line feed.
const RECORD: usize = 16;
/// Records after which an appender has all of them made durable.
const SYNC_EVERY: u64 = 64;
/// Bytes that a mapping has.
const MAPPED: usize = 1 << 20;
const PAGE: usize = 4096;
/// Complaints that are kept; the rest is only counted.
const COMPLAINTS: usize = 20;
/// What a program rests between two rounds, so that many of them share a processor.
const REST: Duration = Duration::from_micros(500);

/// What came of a load.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    /// Calls.
    pub operations: u64,
    /// Calls that failed, and wrong bytes.
    pub errors: u64,
    /// What was acknowledged and is not there.
    pub lost: u64,
    /// What is there twice.
    pub doubled: u64,
    /// What half of the calls, and 99 of 100, took at most, in microseconds (to an eighth).
    pub p50_us: u64,
    /// See `p50_us`.
    pub p99_us: u64,
    /// The longest call, in microseconds.
    pub longest_us: u64,
    /// The first things that went wrong.
    pub complaints: Vec<String>,
}

struct Common {
    dir: PathBuf,
    stop: PathBuf,
    operations: AtomicU64,
    longest_us: AtomicU64,
    times: Times,
    found: Mutex<Outcome>,
}

/// How long calls took: counts by powers of two, each in eight parts.
struct Times([AtomicU64; 8 * 64]);

impl Times {
    fn note(&self, us: u64) {
        if let Some(count) = self.0.get(Self::place(us)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Below 8 each number has a place of its own.
    fn place(us: u64) -> usize {
        let power = us.max(8).ilog2() - 3;
        (power as usize) * 8 + (us >> power) as usize
    }

    /// The largest time of a place.
    fn end(place: usize) -> u64 {
        let power = (place / 8).saturating_sub(1);
        ((place - power * 8) as u64 + 1).checked_shl(power as u32).map_or(u64::MAX, |end| end - 1)
    }

    /// What this share of the calls took at most.
    fn share(&self, share: f64) -> u64 {
        let counts: Vec<u64> = self.0.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let wanted = (counts.iter().sum::<u64>() as f64 * share).ceil() as u64;
        let mut sum = 0;
        let reached = counts.iter().position(|count| {
            sum += count;
            sum >= wanted && sum > 0
        });
        reached.map_or(0, Self::end)
    }
}

#[derive(Clone, Copy)]
enum Fault {
    Error,
    Lost,
    Doubled,
}

type Program = fn(&Common, usize) -> io::Result<()>;

const PROGRAMS: [(&str, Program); 8] = [
    ("appender", append),
    ("appender", append),
    ("reopening appender", append_reopened),
    ("mapping", map),
    ("mapping", map),
    ("locks", lock),
    ("names", names),
    ("attributes", attributes),
];

/// Runs all programs in a new directory `dir` until the file `stop` exists.
pub fn run(dir: &Path, stop: &Path) -> Result<Outcome, Error> {
    fs::create_dir(dir).map_err(Error::io(dir.display().to_string()))?;
    let common = Common {
        dir: dir.to_owned(),
        stop: stop.to_owned(),
        operations: AtomicU64::new(0),
        longest_us: AtomicU64::new(0),
        times: Times([const { AtomicU64::new(0) }; 8 * 64]),
        found: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for (index, (name, program)) in PROGRAMS.into_iter().enumerate() {
            let common = &common;
            scope.spawn(move || {
                if let Err(error) = program(common, index) {
                    common.complain(Fault::Error, format!("{name}: {error}"));
                }
            });
        }
    });
    let operations = common.operations.into_inner();
    let longest_us = common.longest_us.into_inner();
    let (p50_us, p99_us) = (common.times.share(0.5), common.times.share(0.99));
    let found = common.found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(Outcome { operations, p50_us, p99_us, longest_us, ..found })
}

impl Common {
    fn go_on(&self) -> bool {
        !self.stop.exists()
    }

    fn path(&self, name: &str, number: usize) -> PathBuf {
        self.dir.join(format!("{name}{number}"))
    }

    fn complain(&self, fault: Fault, what: String) {
        let mut found = self.found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match fault {
            Fault::Error => found.errors += 1,
            Fault::Lost => found.lost += 1,
            Fault::Doubled => found.doubled += 1,
        }
        if found.complaints.len() < COMPLAINTS {
            found.complaints.push(what);
        }
    }

    /// Does one call and notes how long it took. A failure is counted; `None` then.
    fn call<T>(&self, what: &str, work: impl FnOnce() -> io::Result<T>) -> Option<T> {
        let begin = Instant::now();
        let done = work();
        let took = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.longest_us.fetch_max(took, Ordering::Relaxed);
        self.times.note(took);
        self.operations.fetch_add(1, Ordering::Relaxed);
        done.inspect_err(|error| {
            let fault = match error.kind() {
                io::ErrorKind::AlreadyExists => Fault::Doubled,
                io::ErrorKind::NotFound => Fault::Lost,
                _ => Fault::Error,
            };
            self.complain(fault, format!("{what}: {error}"));
        })
        .ok()
    }

    fn expect(&self, is_right: bool, what: impl FnOnce() -> String) {
        if !is_right {
            self.complain(Fault::Error, what());
        }
    }
}

fn checked(code: libc::c_int) -> io::Result<()> {
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn record(number: u64) -> [u8; RECORD] {
    let mut record = [b'\n'; RECORD];
    record[..RECORD - 1].copy_from_slice(format!("{number:015}").as_bytes());
    record
}

/// Compares the file with the numbers that were acknowledged, all of them in order.
fn check_records(common: &Common, path: &Path, acknowledged: &[u64]) {
    let Some(bytes) = common.call("read of all records", || fs::read(path)) else { return };
    let (lost, doubled, wrong) = compare(&bytes, acknowledged);
    let name = path.display();
    (0..lost).for_each(|_| common.complain(Fault::Lost, format!("{name}: a record is lost")));
    (0..doubled).for_each(|_| common.complain(Fault::Doubled, format!("{name}: a record twice")));
    (0..wrong).for_each(|_| common.complain(Fault::Error, format!("{name}: a wrong record")));
}

/// How many records are lost, how many are too many, and how many make no sense.
fn compare(bytes: &[u8], acknowledged: &[u64]) -> (usize, usize, usize) {
    let mut times = std::collections::HashMap::<u64, usize>::new();
    let mut wrong = usize::from(!bytes.len().is_multiple_of(RECORD));
    for record in bytes.chunks_exact(RECORD) {
        let number = std::str::from_utf8(&record[..RECORD - 1]).ok().and_then(|t| t.parse().ok());
        match number.filter(|_| record[RECORD - 1] == b'\n') {
            Some(number) => *times.entry(number).or_default() += 1,
            None => wrong += 1,
        }
    }
    let lost = acknowledged.iter().filter(|number| !times.contains_key(number)).count();
    let doubled = times.values().map(|count| count - 1).sum();
    let known = acknowledged.iter().filter(|number| times.contains_key(number)).count();
    (lost, doubled, wrong + times.len() - known)
}

/// Appends records to a file that stays open.
fn append(common: &Common, index: usize) -> io::Result<()> {
    let path = common.path("records", index);
    let mut file = File::options().append(true).create_new(true).open(&path)?;
    let mut acknowledged = Vec::new();
    let mut number = 0;
    while common.go_on() {
        number += 1;
        // One call, as a logger does it: a short count would tear the record.
        let written = common.call("append", || file.write(&record(number)));
        if written == Some(RECORD) {
            acknowledged.push(number);
        } else if let Some(count) = written {
            common.complain(Fault::Error, format!("append: {count} of {RECORD} bytes"));
        }
        if number.is_multiple_of(SYNC_EVERY) {
            common.call("fdatasync", || file.sync_data());
        }
        if number.is_multiple_of(SYNC_EVERY * 64) {
            check_records(common, &path, &acknowledged);
        }
        std::thread::sleep(REST);
    }
    check_records(common, &path, &acknowledged);
    Ok(())
}

/// Appends each record with an open and a close of its own.
fn append_reopened(common: &Common, index: usize) -> io::Result<()> {
    let path = common.path("reopened", index);
    File::create_new(&path)?;
    let mut acknowledged = Vec::new();
    let mut number = 0;
    while common.go_on() {
        number += 1;
        let opened = common.call("open", || File::options().append(true).open(&path));
        let Some(mut file) = opened else { continue };
        if common.call("append", || file.write(&record(number))) == Some(RECORD) {
            acknowledged.push(number);
        }
        drop(file);
        std::thread::sleep(REST);
    }
    check_records(common, &path, &acknowledged);
    Ok(())
}

/// Stores through a shared mapping, and reads them by a descriptor.
fn map(common: &Common, index: usize) -> io::Result<()> {
    let path = common.path("mapped", index);
    let file = File::options().read(true).write(true).create_new(true).open(path)?;
    file.set_len(MAPPED as u64)?;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of a file of that length, which nobody shortens.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), MAPPED, prot, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mut count = 0_u64;
    while common.go_on() {
        count += 1;
        let place = (count as usize * 7 % (MAPPED / PAGE)) * PAGE;
        // SAFETY: within the mapping and aligned; only this thread uses it.
        unsafe { at.cast::<u8>().add(place).cast::<u64>().write_volatile(count) };
        if count.is_multiple_of(32) {
            // SAFETY: the whole mapping.
            common.call("msync", || checked(unsafe { libc::msync(at, MAPPED, libc::MS_SYNC) }));
        }
        let mut found = [0; 8];
        let read = common.call("pread", || file.read_exact_at(&mut found, place as u64));
        let same = u64::from_ne_bytes(found) == count;
        common.expect(read.is_none() || same, || format!("mapping: {found:?} for {count}"));
        std::thread::sleep(REST);
    }
    // SAFETY: the whole mapping, which nobody uses any more.
    checked(unsafe { libc::munmap(at, MAPPED) })
}

fn flock(file: &File, how: libc::c_int) -> io::Result<()> {
    // SAFETY: a descriptor that lives as long as the borrow.
    checked(unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) })
}

/// A lock that is held all the time, and one that two descriptors take in turn.
fn lock(common: &Common, index: usize) -> io::Result<()> {
    let open = |name: &str| {
        let path = common.path(name, index);
        File::options().read(true).write(true).create(true).truncate(false).open(path)
    };
    let (held, other) = (open("held")?, open("held")?);
    let (one, two) = (open("turns")?, open("turns")?);
    flock(&held, libc::LOCK_EX)?;
    let is_refused = |outcome: io::Result<()>| {
        outcome.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    };
    while common.go_on() {
        common.expect(is_refused(flock(&other, libc::LOCK_SH)), || "a held lock is free".into());
        for (mine, theirs) in [(&one, &two), (&two, &one)] {
            common.call("flock", || flock(mine, libc::LOCK_EX));
            common.expect(is_refused(flock(theirs, libc::LOCK_EX)), || "two have a lock".into());
            common.call("unlock", || flock(mine, libc::LOCK_UN));
        }
        std::thread::sleep(REST);
    }
    Ok(())
}

/// Every operation on names, each of which can succeed only once.
fn names(common: &Common, index: usize) -> io::Result<()> {
    let mut count = 0_u64;
    while common.go_on() {
        count += 1;
        let dir = common.path(&format!("dir{count}-"), index);
        let moved = common.path(&format!("moved{count}-"), index);
        common.call("mkdir", || fs::create_dir(&dir));
        common.call("rename of a directory", || fs::rename(&dir, &moved));
        let [file, link, symbolic, node, again] =
            ["file", "link", "symbolic", "node", "again"].map(|name| moved.join(name));
        common.call("create", || File::create_new(&file)?.write_all(b"text"));
        common.call("link", || fs::hard_link(&file, &link));
        common.call("symlink", || std::os::unix::fs::symlink("file", &symbolic));
        common.call("mknod", || mknod(&node));
        let links = common.call("stat", || fs::metadata(&link)).map(|known| known.nlink());
        common.expect(matches!(links, None | Some(2)), || format!("{links:?} links"));
        let text = common.call("read", || fs::read(&symbolic));
        common.expect(text.is_none_or(|text| text == b"text"), || "other text".into());
        common.call("rename", || fs::rename(&file, &again));
        common.call("rename over", || fs::rename(&node, &again));
        for name in [&again, &link, &symbolic] {
            common.call("unlink", || fs::remove_file(name));
        }
        common.call("rmdir", || fs::remove_dir(&moved));
    }
    Ok(())
}

fn mknod(path: &Path) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with NUL.
    checked(unsafe { libc::mknod(path.as_ptr(), libc::S_IFREG | 0o644, 0) })
}

/// Attributes, asked of the file system each time.
fn attributes(common: &Common, index: usize) -> io::Result<()> {
    let file = File::create_new(common.path("attributes", index))?;
    let (mask, flags) = (libc::STATX_BASIC_STATS, libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC);
    while common.go_on() {
        let mut stat = std::mem::MaybeUninit::<libc::statx>::uninit();
        common.call("statx", || {
            // SAFETY: an empty path and a buffer of the right size.
            checked(unsafe {
                libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, mask, stat.as_mut_ptr())
            })
        });
        std::thread::sleep(REST);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_when_noted_then_their_shares_are_right_to_an_eighth() {
        for us in (0..5000).chain([1 << 20, (1 << 40) + 12345]) {
            let end = Times::end(Times::place(us));
            assert!(end >= us && end <= us + us / 8, "{us}: {end}");
        }
        let times = Times([const { AtomicU64::new(0) }; 8 * 64]);
        assert_eq!(times.share(0.5), 0);
        (1..=100).for_each(|us| times.note(us * 10));
        assert!((500..=562).contains(&times.share(0.5)), "{}", times.share(0.5));
        assert!((990..=1113).contains(&times.share(0.99)), "{}", times.share(0.99));
        times.note(u64::MAX);
    }

    #[test]
    fn compare_when_records_are_missing_double_or_wrong_then_counted() {
        let bytes = |numbers: &[u64]| numbers.iter().flat_map(|n| record(*n)).collect::<Vec<u8>>();
        assert_eq!(compare(&bytes(&[1, 2, 3]), &[1, 2, 3]), (0, 0, 0));
        assert_eq!(compare(&bytes(&[1, 3, 3]), &[1, 2, 3]), (1, 1, 0));
        assert_eq!(compare(&bytes(&[1, 2, 9]), &[1, 2]), (0, 0, 1), "nobody wrote 9");
        let torn = [&bytes(&[1])[..], b"00000"].concat();
        assert_eq!(compare(&torn, &[1]), (0, 0, 1));
    }

    #[test]
    fn run_when_the_directory_is_sound_then_nothing_is_wrong() {
        let home = tempfile::tempdir().unwrap();
        let (dir, stop) = (home.path().join("load"), home.path().join("stop"));
        let outcome = std::thread::scope(|scope| {
            let load = scope.spawn(|| run(&dir, &stop));
            // Long enough for each program to have begun.
            let begun = |name: &str| {
                fs::read_dir(&dir).is_ok_and(|mut entries| {
                    entries.any(|e| e.is_ok_and(|e| e.file_name().to_string_lossy().contains(name)))
                })
            };
            let start = Instant::now();
            let all = ["records", "reopened", "mapped", "turns", "attributes"];
            while !all.iter().all(|name| begun(name)) && start.elapsed().as_secs() < 60 {
                std::thread::sleep(Duration::from_millis(5));
            }
            File::create(&stop).unwrap();
            load.join().unwrap().unwrap()
        });
        assert!(outcome.complaints.is_empty(), "{outcome:?}");
        assert_eq!((outcome.errors, outcome.lost, outcome.doubled), (0, 0, 0));
        assert!(outcome.operations > 0);
    }
}
