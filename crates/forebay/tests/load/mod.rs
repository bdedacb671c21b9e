//! Programs that use a mount while its daemons change: each checks all that it sees, and none may
//! ever see an error.
#![allow(dead_code, missing_docs, reason = "each user of this module needs a part of it")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, StatxFlags};

/// All that the programs of a load have in common.
pub struct Common {
    dir: PathBuf,
    stop: AtomicBool,
    operations: AtomicU64,
    worst_us: AtomicU64,
    /// Whether a call that was cancelled, which means that it was not carried out, is made again.
    forgiving: bool,
    cancelled: AtomicU64,
    complaints: Mutex<Vec<String>>,
}

/// A load under way.
pub struct Load {
    common: Arc<Common>,
    names: Vec<&'static str>,
    threads: Vec<JoinHandle<()>>,
}

/// What came of a load.
#[derive(Debug)]
pub struct Result {
    pub operations: u64,
    pub worst: Duration,
    pub cancelled: u64,
    pub complaints: Vec<String>,
}

type Program = fn(&Common) -> io::Result<()>;

const PROGRAMS: [(&str, Program); 8] = [
    ("counter-0", |common| counter(common, 0)),
    ("counter-1", |common| counter(common, 1)),
    ("names", names),
    ("mapping", mapping),
    ("locks", locks),
    ("removed", removed),
    ("unnamed", unnamed),
    ("listing", listing),
];

impl Load {
    /// Starts all programs below `mount`.
    pub fn start(mount: &Path) -> Self {
        Self::start_as(mount, false, &[])
    }

    /// Starts them without some.
    pub fn start_without(mount: &Path, left_out: &[&str]) -> Self {
        Self::start_as(mount, false, left_out)
    }

    /// The same with programs that make a call again which fails with `ECANCELED`, and was not
    /// carried out. Without the one that stores into a mapping: of what was on its way from there,
    /// nobody can make the call again.
    pub fn start_forgiving(mount: &Path) -> Self {
        Self::start_as(mount, true, &["mapping"])
    }

    fn start_as(mount: &Path, forgiving: bool, left_out: &[&str]) -> Self {
        let dir = mount.join("load");
        fs::create_dir_all(&dir).unwrap();
        let common = Arc::new(Common {
            dir,
            stop: AtomicBool::new(false),
            operations: AtomicU64::new(0),
            worst_us: AtomicU64::new(0),
            forgiving,
            cancelled: AtomicU64::new(0),
            complaints: Mutex::default(),
        });
        let start = |(name, program): (&'static str, Program)| {
            let common = Arc::clone(&common);
            std::thread::spawn(move || {
                if let Err(error) = program(&common) {
                    common.complain(format!("{name}: {error}"));
                }
            })
        };
        let programs = PROGRAMS.into_iter().filter(|(name, _)| !left_out.contains(name));
        let names = programs.clone().map(|(name, _)| name).collect();
        Load { threads: programs.map(start).collect(), names, common }
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.common.operations.load(Ordering::Relaxed)
    }

    /// Whether a program has complained.
    pub fn has_failed(&self) -> bool {
        !self.common.complaints.lock().is_empty()
    }

    /// Ends all programs, waiting at most `limit` for each.
    pub fn stop(self, limit: Duration) -> Result {
        self.common.stop.store(true, Ordering::Relaxed);
        let until = Instant::now() + limit;
        for (name, thread) in self.names.iter().zip(self.threads) {
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            match thread.is_finished() {
                true if thread.join().is_err() => self.common.complain(format!("{name}: panicked")),
                true => {}
                false => self.common.complain(format!("{name}: hangs")),
            }
        }
        Result {
            operations: self.common.operations.load(Ordering::Relaxed),
            worst: Duration::from_micros(self.common.worst_us.load(Ordering::Relaxed)),
            cancelled: self.common.cancelled.load(Ordering::Relaxed),
            complaints: std::mem::take(&mut *self.common.complaints.lock()),
        }
    }
}

impl Common {
    fn go_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && self.complaints.lock().is_empty()
    }

    fn complain(&self, what: String) {
        self.complaints.lock().push(what);
    }

    /// Makes one attempt, and notes how long it took.
    fn measure<T, E: Into<io::Error>>(
        &self,
        work: impl FnOnce() -> std::result::Result<T, E>,
    ) -> io::Result<T> {
        let begin = Instant::now();
        let done = work();
        let took = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.worst_us.fetch_max(took, Ordering::Relaxed);
        self.operations.fetch_add(1, Ordering::Relaxed);
        done.map_err(Into::into)
    }

    /// Whether this was cancelled, and is to be done again.
    fn is_forgiven<T>(&self, done: &io::Result<T>) -> bool {
        let cancelled = |error: &io::Error| error.raw_os_error() == Some(libc::ECANCELED);
        let forgiven = self.forgiving && done.as_ref().is_err_and(cancelled);
        self.cancelled.fetch_add(forgiven.into(), Ordering::Relaxed);
        forgiven
    }

    /// Does one operation.
    fn time<T, E: Into<io::Error>>(
        &self,
        what: &str,
        mut work: impl FnMut() -> std::result::Result<T, E>,
    ) -> io::Result<T> {
        let mut done = self.measure(&mut work);
        while self.is_forgiven(&done) {
            done = self.measure(&mut work);
        }
        done.map_err(|error| io::Error::new(error.kind(), format!("{what}: {error}")))
    }
}

fn expect(true_: bool, what: impl FnOnce() -> String) -> io::Result<()> {
    if true_ { Ok(()) } else { Err(io::Error::other(what())) }
}

/// A counter in a file that stays open: attributes, writes and reads, new files that come and go,
/// and a second descriptor of the same file.
fn counter(common: &Common, number: usize) -> io::Result<()> {
    let path = common.dir.join(format!("counter{number}"));
    let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
    let mut count = 0_u64;
    while common.go_on() {
        count += 1;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        common.time("statx", || rustix::fs::statx(&file, c"", flags, StatxFlags::BASIC_STATS))?;
        common.time("pwrite", || file.write_all_at(&count.to_le_bytes(), 0))?;
        let mut found = [0; 8];
        common.time("pread", || file.read_exact_at(&mut found, 0))?;
        expect(u64::from_le_bytes(found) == count, || format!("counter {count}: {found:?}"))?;
        if count.is_multiple_of(5) {
            let other = common.dir.join(format!("t{number}-{count}"));
            common.time("create", || File::create_new(&other))?;
            common.time("unlink", || fs::remove_file(&other))?;
            let second = common.time("open", || File::open(&path))?;
            common.time("pread of another", || second.read_exact_at(&mut found, 0))?;
            expect(u64::from_le_bytes(found) == count, || format!("other {count}: {found:?}"))?;
        }
    }
    Ok(())
}

/// Every operation on names, each of which can succeed only once.
fn names(common: &Common) -> io::Result<()> {
    let mut count = 0_u64;
    while common.go_on() {
        count += 1;
        let path = |what: &str| common.dir.join(format!("{what}{count}"));
        let (dir, moved) = (path("dir"), path("moved"));
        common.time("mkdir", || fs::create_dir(&dir))?;
        common.time("rename of a directory", || fs::rename(&dir, &moved))?;
        let (file, link, symbolic) = (moved.join("file"), moved.join("link"), moved.join("sym"));
        let new = common.time("create", || File::create_new(&file))?;
        common.time("write", || new.write_all_at(b"text", 0))?;
        drop(new);
        common.time("link", || fs::hard_link(&file, &link))?;
        common.time("symlink", || std::os::unix::fs::symlink("file", &symbolic))?;
        let known = common.time("stat", || fs::metadata(&link))?;
        expect(known.nlink() == 2 && known.len() == 4, || format!("{count}: {known:?}"))?;
        let text = common.time("read", || fs::read(&symbolic))?;
        expect(text == b"text", || format!("{count}: {text:?}"))?;
        let again = moved.join("again");
        common.time("rename", || fs::rename(&file, &again))?;
        common.time("rename over", || {
            fs::write(&file, b"new")?;
            fs::rename(&file, &again)
        })?;
        let text = common.time("read again", || fs::read(&again))?;
        expect(text == b"new", || format!("{count}: {text:?}"))?;
        for name in [&again, &link, &symbolic] {
            common.time("unlink", || fs::remove_file(name))?;
        }
        common.time("rmdir", || fs::remove_dir(&moved))?;
        expect(!moved.exists(), || format!("{count}: still there"))?;
    }
    Ok(())
}

/// Stores through a shared mapping, seen by a descriptor.
fn mapping(common: &Common) -> io::Result<()> {
    const LENGTH: usize = 64 << 10;
    let path = common.dir.join("mapping");
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    file.set_len(LENGTH as u64)?;
    let flags = rustix::mm::MapFlags::SHARED;
    let prot = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    // SAFETY: a new mapping of a file of that length, which nobody shortens.
    let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), LENGTH, prot, flags, &file, 0)? };
    let mut count = 0_u64;
    let done = loop {
        if !common.go_on() {
            break Ok(());
        }
        count += 1;
        let page = (count as usize % 16) * 4096;
        // SAFETY: within the mapping, and aligned; only this thread uses it.
        unsafe { at.cast::<u8>().add(page).cast::<u64>().write_volatile(count) };
        if count.is_multiple_of(64) {
            let sync = rustix::mm::MsyncFlags::SYNC;
            // SAFETY: the whole mapping.
            common.time("msync", || unsafe { rustix::mm::msync(at, LENGTH, sync) })?;
        }
        let mut found = [0; 8];
        common.time("pread of a mapping", || file.read_exact_at(&mut found, page as u64))?;
        if u64::from_le_bytes(found) != count {
            break Err(io::Error::other(format!("mapping {count}: {found:?}")));
        }
        std::thread::sleep(Duration::from_micros(200));
    };
    // SAFETY: the whole mapping, which nobody uses any more.
    unsafe { rustix::mm::munmap(at, LENGTH)? };
    done
}

/// A lock that is held, and one that changes hands.
fn locks(common: &Common) -> io::Result<()> {
    let open = |name: &str| {
        let path = common.dir.join(name);
        File::options().read(true).write(true).create(true).truncate(false).open(path)
    };
    let (held, other) = (open("lock")?, open("lock")?);
    rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive)?;
    let (one, two) = (open("turns")?, open("turns")?);
    while common.go_on() {
        let taken = rustix::fs::flock(&other, FlockOperation::NonBlockingLockShared);
        expect(taken == Err(rustix::io::Errno::WOULDBLOCK), || format!("lock: {taken:?}"))?;
        for (mine, theirs) in [(&one, &two), (&two, &one)] {
            let lock = FlockOperation::NonBlockingLockExclusive;
            common.time("flock", || rustix::fs::flock(mine, lock))?;
            let taken = rustix::fs::flock(theirs, lock);
            expect(taken == Err(rustix::io::Errno::WOULDBLOCK), || format!("turn: {taken:?}"))?;
            rustix::fs::flock(mine, FlockOperation::Unlock)?;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}

/// A file that was removed, and one that was replaced, both still open; a removed directory.
fn removed(common: &Common) -> io::Result<()> {
    let path = common.dir.join("removed");
    let mut kept = Vec::new();
    for replaced in [false, true] {
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        file.write_all_at(&[7; 10_000], 0)?;
        if replaced {
            let new = common.dir.join("new");
            fs::write(&new, b"another")?;
            fs::rename(&new, &path)?;
        } else {
            fs::remove_file(&path)?;
        }
        kept.push(file);
    }
    let gone = common.dir.join("gone");
    fs::create_dir(&gone)?;
    let dir = File::open(&gone)?;
    fs::remove_dir(&gone)?;
    let mut count = 0_u64;
    while common.go_on() {
        count += 1;
        for file in &kept {
            let known = common.time("fstat of a removed file", || file.metadata())?;
            expect(known.nlink() == 0 && known.len() == 10_000, || format!("{known:?}"))?;
            common.time("write of a removed file", || {
                file.write_all_at(&count.to_le_bytes(), 5000)
            })?;
            let mut found = vec![0; 10_000];
            common.time("read of a removed file", || file.read_exact_at(&mut found, 0))?;
            let expected = [&[7; 5000][..], &count.to_le_bytes(), &[7; 4992]].concat();
            expect(found == expected, || format!("removed {count}: other bytes"))?;
        }
        let known = common.time("fstat of a removed directory", || dir.metadata())?;
        expect(known.nlink() == 0 && known.is_dir(), || format!("{known:?}"))?;
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}

/// Files without a name.
fn unnamed(common: &Common) -> io::Result<()> {
    // A child that the test starts meanwhile would keep it open.
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let make = || rustix::fs::open(&common.dir, flags, Mode::RUSR);
    let kept = File::from(make()?);
    let mut count = 0_u64;
    while common.go_on() {
        count += 1;
        common.time("write of an unnamed file", || kept.write_all_at(&count.to_le_bytes(), 0))?;
        let short = File::from(common.time("tmpfile", make)?);
        common.time("write of a new one", || short.write_all_at(b"x", 99))?;
        expect(short.metadata()?.len() == 100, || format!("unnamed {count}"))?;
        let mut found = [0; 8];
        common.time("read of an unnamed file", || kept.read_exact_at(&mut found, 0))?;
        expect(u64::from_le_bytes(found) == count, || format!("unnamed {count}: {found:?}"))?;
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}

/// Listings that take their time: each must be complete, whoever answers its parts.
fn listing(common: &Common) -> io::Result<()> {
    const FILES: usize = 400;
    let path = common.dir.join("listing");
    fs::create_dir_all(&path)?;
    // Long names: a listing takes several requests.
    let name = |index: usize| format!("{index:0>120}");
    for index in 0..FILES {
        common.time("create", || File::create(path.join(name(index))))?;
    }
    let expected: BTreeSet<Vec<u8>> = (0..FILES).map(|index| name(index).into_bytes()).collect();
    while common.go_on() {
        let found = names_in(common, &path);
        // A directory stream does not go on after an error.
        if common.is_forgiven(&found) {
            continue;
        }
        let found = found?;
        expect(found == expected, || format!("a listing of {} of {FILES}", found.len()))?;
    }
    Ok(())
}

fn names_in(common: &Common, path: &Path) -> io::Result<BTreeSet<Vec<u8>>> {
    let mut found = BTreeSet::new();
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut dir = Dir::new(rustix::fs::open(path, flags, Mode::empty())?)?;
    while let Some(entry) = common.measure(|| dir.read().transpose())? {
        let name = entry.file_name().to_bytes().to_vec();
        if !name.starts_with(b".") && !found.insert(name) {
            return Err(io::Error::other("a name came twice"));
        }
        if found.len().is_multiple_of(50) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    Ok(found)
}
