//! Comparing two whole trees.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::lstat;
use xxhash_rust::xxh3::xxh3_64;

use crate::failure::{Failure, Outcome};
use crate::os::{self, Call, Errno, FileType};

/// Moments between the intervals of a run: both sides must have changed a file in the same one.
pub struct Epochs(Vec<Duration>);

/// The clock that stamps files may lag behind the exact one by a tick.
const TICK: Duration = Duration::from_millis(20);

impl Epochs {
    pub fn start() -> Self {
        let mut epochs = Self(Vec::new());
        epochs.next();
        epochs
    }

    /// Begins a new interval, clearly apart from the one before.
    pub fn next(&mut self) {
        std::thread::sleep(TICK);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0.push(now);
        std::thread::sleep(TICK);
    }

    /// Times before the run were set explicitly and count exactly, later ones by interval.
    fn class(&self, (seconds, nanos): (i64, i64)) -> (usize, i64, i64) {
        let time = Duration::new(seconds.max(0) as u64, nanos as u32);
        match self.0.partition_point(|start| *start <= time) {
            0 => (0, seconds, nanos),
            interval => (interval, 0, 0),
        }
    }
}

/// Everything about one file that both sides must agree on. What may not be looked at is refused alike.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    mode: u32,
    owner: (u32, u32),
    links: u64,
    size: u64,
    mtime: (usize, i64, i64),
    content: Call<u64>,
    xattrs: Call<Vec<(String, Vec<u8>)>>,
    /// Of a directory: whether it can be listed.
    listed: Call,
    /// The first path of the same inode: tells which names are one file.
    same_as: PathBuf,
}

/// Fails with the first difference between two trees.
pub fn compare(subject: &Path, reference: &Path, epochs: &Epochs) -> Outcome {
    let (got, want) = (scan(subject, epochs)?, scan(reference, epochs)?);
    for path in got.keys().chain(want.keys()) {
        let (a, b) = (got.get(path), want.get(path));
        ensure!(a == b, "{} differs:\n   got {a:?}\nwanted {b:?}", path.display());
    }
    Ok(())
}

fn scan(root: &Path, epochs: &Epochs) -> Outcome<BTreeMap<PathBuf, Entry>> {
    let mut found = BTreeMap::new();
    let mut first_names = BTreeMap::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(path) = pending.pop() {
        let full = root.join(&path);
        let mut entry = match describe(&full, &path, epochs, &mut first_names) {
            // Its directory can be listed and not entered.
            Err(Errno::ACCESS) => continue,
            entry => {
                entry.map_err(|why| Failure::at(format_args!("{}: {why:?}", full.display())))?
            }
        };
        if FileType::from_raw_mode(entry.mode) == FileType::Directory {
            let names = os::names(&full);
            entry.listed = names.as_ref().map(drop).map_err(|why| *why);
            // In reverse, because the last one pushed is the next one taken.
            let names = names.unwrap_or_default();
            pending.extend(names.into_iter().rev().map(|name| path.join(name)));
        }
        found.insert(path, entry);
    }
    Ok(found)
}

fn describe(
    full: &Path,
    path: &Path,
    epochs: &Epochs,
    first_names: &mut BTreeMap<u64, PathBuf>,
) -> Call<Entry> {
    let stat = lstat(full)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let content = match kind {
        FileType::RegularFile => os::read_all(full).map(|bytes| xxh3_64(&bytes)),
        FileType::Symlink => os::readlink(full).map(|target| xxh3_64(target.as_encoded_bytes())),
        _ => Ok(0),
    };
    let xattrs = match kind {
        FileType::RegularFile | FileType::Directory => user_xattrs(full),
        _ => Ok(Vec::new()),
    };
    let directory = kind == FileType::Directory;
    Ok(Entry {
        mode: stat.st_mode,
        owner: (stat.st_uid, stat.st_gid),
        links: if directory { 0 } else { stat.st_nlink },
        size: if directory { 0 } else { stat.st_size as u64 },
        mtime: epochs.class(os::mtime(&stat)),
        content,
        xattrs,
        listed: Ok(()),
        same_as: first_names.entry(stat.st_ino).or_insert_with(|| path.to_owned()).clone(),
    })
}

fn user_xattrs(full: &Path) -> Call<Vec<(String, Vec<u8>)>> {
    let names = os::listxattr(full)?.into_iter().filter(|name| name.starts_with("user."));
    names.map(|name| os::getxattr(full, &name).map(|value| (name, value))).collect()
}
