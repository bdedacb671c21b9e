//! Programs on the mounts of a cluster: each notes what it was told is done, and checks all that it sees against what
//! the others have noted.
#![allow(dead_code, missing_docs, reason = "each user of this module needs a part of it")]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

/// Far more than anything here takes, and than documented errors take to come.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Between two things that a program does.
const PAUSE: Duration = Duration::from_millis(150);
/// Directories of each node, so that all metadata servers have some.
const DIRS: u64 = 6;

/// What a file of a node is to hold.
fn contents(node: usize, number: u64) -> Vec<u8> {
    let line = format!("node {node} file {number}\n");
    line.bytes().cycle().take(3_000 + (number % 5 * 9_000) as usize).collect()
}

fn name(node: usize, number: u64) -> String {
    format!("n{node}/d{}/{number}", number % DIRS)
}

fn counter(node: usize) -> String {
    format!("counter{node}")
}

/// What one node has done, and seen of each.
#[derive(Default)]
struct Side {
    /// The last value of its counter that was tried, and that was acknowledged.
    tried: AtomicU64,
    acknowledged: AtomicU64,
    files: Mutex<Vec<u64>>,
    /// Errors of its writes by number, and how many there were.
    write_errors: Mutex<BTreeMap<i32, u64>>,
    /// How often it has read the counter of each node.
    reads: Vec<AtomicU64>,
    read_errors: Vec<Mutex<BTreeMap<i32, u64>>>,
}

struct Shared {
    mounts: Vec<PathBuf>,
    sides: Vec<Side>,
    stop: AtomicBool,
    /// What must not be.
    wrong: Mutex<Vec<String>>,
}

/// The programs; they stop with the value.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// A writer and a reader on each mount.
    pub fn start(mounts: Vec<PathBuf>) -> Load {
        for (node, mount) in mounts.iter().enumerate() {
            fs::write(mount.join(counter(node)), format!("{:08}", 0)).unwrap();
            for dir in 0..DIRS {
                fs::create_dir_all(mount.join(format!("n{node}/d{dir}"))).unwrap();
            }
        }
        let nodes = mounts.len();
        let side = || Side {
            reads: (0..nodes).map(|_| AtomicU64::new(0)).collect(),
            read_errors: (0..nodes).map(|_| Mutex::default()).collect(),
            ..Side::default()
        };
        let sides = (0..nodes).map(|_| side()).collect();
        let (stop, wrong) = (AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared { mounts, sides, stop, wrong });
        let mut threads = Vec::new();
        for node in 0..nodes {
            let of = shared.clone();
            threads.push(thread::spawn(move || of.write(node)));
            let of = shared.clone();
            threads.push(thread::spawn(move || of.read(node)));
        }
        Load { shared, threads }
    }

    /// How many writes of a node were acknowledged.
    pub fn written(&self, node: usize) -> u64 {
        self.shared.sides[node].acknowledged.load(Ordering::Acquire)
    }

    /// How often a node has read what another one writes.
    pub fn read(&self, node: usize, of: usize) -> u64 {
        self.shared.sides[node].reads[of].load(Ordering::Acquire)
    }

    /// Errors that the writer on a node has met, by number.
    pub fn write_errors(&self, node: usize) -> BTreeMap<i32, u64> {
        self.shared.sides[node].write_errors.lock().clone()
    }

    /// Errors that the reader on a node has met with what another one writes, by number.
    pub fn read_errors(&self, node: usize, of: usize) -> BTreeMap<i32, u64> {
        self.shared.sides[node].read_errors[of].lock().clone()
    }

    /// All that was done, for a message.
    pub fn told(&self) -> String {
        let nodes = 0..self.shared.mounts.len();
        let line = |node: usize| {
            let reads: Vec<_> =
                nodes.clone().map(|of| (self.read(node, of), self.read_errors(node, of))).collect();
            format!("node {node}: {} {:?} {reads:?}\n", self.written(node), self.write_errors(node))
        };
        nodes.clone().map(line).collect::<String>() + &self.shared.wrong.lock().join("\n")
    }

    /// What must not be has not been.
    pub fn check(&self) {
        assert!(self.shared.wrong.lock().is_empty(), "{}", self.told());
    }

    /// Waits for something, while all is right.
    pub fn wait(&self, what: &str, condition: impl Fn() -> bool) {
        let came = crate::site::wait_for(LIMIT, || {
            self.check();
            condition()
        });
        assert!(came, "{what} does not come: {}", self.told());
    }

    /// Stops the programs, and returns how many files were acknowledged of each node.
    pub fn stop(&mut self) -> Vec<usize> {
        self.shared.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        self.check();
        self.shared.sides.iter().map(|side| side.files.lock().len()).collect()
    }

    /// Every acknowledged file of a node is as it was written, in some directory that shows all.
    pub fn verify(&self, node: usize, root: &Path) {
        let side = &self.shared.sides[node];
        for number in &*side.files.lock() {
            let path = root.join(name(node, *number));
            let found = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert!(found == contents(node, *number), "{}: {} bytes", path.display(), found.len());
        }
        let text = fs::read_to_string(root.join(counter(node))).unwrap();
        let value: u64 = text.parse().unwrap_or_else(|_| panic!("{text:?}"));
        let (least, most) = (self.written(node), side.tried.load(Ordering::Acquire));
        assert!((least..=most).contains(&value), "{value} is not in {least}..={most}");
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // Whoever hangs ends with his mount, which is not taken away here.
        self.shared.stop.store(true, Ordering::Release);
    }
}

fn note(errors: &Mutex<BTreeMap<i32, u64>>, error: &io::Error) {
    *errors.lock().entry(error.raw_os_error().unwrap_or(0)).or_default() += 1;
}

impl Shared {
    fn goes_on(&self) -> bool {
        thread::sleep(PAUSE);
        !self.stop.load(Ordering::Acquire)
    }

    fn wrong(&self, what: String) {
        self.wrong.lock().push(what);
    }

    fn write(&self, node: usize) {
        let (mount, side) = (&self.mounts[node], &self.sides[node]);
        let mut number = 0;
        while self.goes_on() {
            number += 1;
            match make(&mount.join(name(node, number)), &contents(node, number)) {
                Ok(()) => side.files.lock().push(number),
                Err(error) => self.failed(node, "create", &error),
            }
            side.tried.store(number, Ordering::Release);
            match put(&mount.join(counter(node)), number) {
                Ok(()) => side.acknowledged.store(number, Ordering::Release),
                Err(error) => self.failed(node, "count", &error),
            }
        }
    }

    fn failed(&self, node: usize, what: &str, error: &io::Error) {
        note(&self.sides[node].write_errors, error);
        if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) {
            self.wrong(format!("{what} on node {node}: {error}"));
        }
    }

    fn read(&self, node: usize) {
        while self.goes_on() {
            for of in 0..self.mounts.len() {
                let errors = &self.sides[node].read_errors[of];
                match self.look(node, of) {
                    Ok(()) => {
                        self.sides[node].reads[of].fetch_add(1, Ordering::AcqRel);
                    }
                    Err(error) => note(errors, &error),
                }
            }
        }
    }

    /// Reads the counter and the last file of a node. What was acknowledged before is there, or there is an error that
    /// says otherwise than that there is no such file.
    fn look(&self, node: usize, of: usize) -> io::Result<()> {
        let (mount, side) = (&self.mounts[node], &self.sides[of]);
        let least = side.acknowledged.load(Ordering::Acquire);
        let text = self.found(fs::read_to_string(mount.join(counter(of))))?;
        let most = side.tried.load(Ordering::Acquire);
        if !text.parse::<u64>().is_ok_and(|value| (least..=most).contains(&value)) {
            self.wrong(format!("node {node}: {text:?} of node {of} is not in {least}..={most}"));
        }
        let Some(number) = side.files.lock().last().copied() else { return Ok(()) };
        let found = self.found(fs::read(mount.join(name(of, number))))?;
        if found != contents(of, number) {
            self.wrong(format!(
                "node {node}: file {number} of node {of}: {} bytes, or others",
                found.len()
            ));
        }
        Ok(())
    }

    fn found<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() == io::ErrorKind::NotFound
        {
            self.wrong(format!("what was acknowledged is not found: {error}"));
        }
        result
    }
}

/// A new file, done when it is synced.
fn make(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

/// Another value in the same bytes.
fn put(path: &Path, value: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(format!("{value:08}").as_bytes(), 0)?;
    file.sync_all()
}
