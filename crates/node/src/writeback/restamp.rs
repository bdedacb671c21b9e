//! The paths in the headers of dirty objects follow what is renamed.
//!
//! After a loss of the index `forebay fsck --rebuild` gives what is dirty the name that its object
//! carries. A rename does not wait for that: the paths follow within about a second, of all that
//! is dirty when a directory was moved. Most are written back sooner, and need it no more.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use forebay_meta::Record;
use forebay_types::Ino;
use parking_lot::Mutex;

use crate::writeback::Writeback;

/// How long a path may lag behind.
const DELAY: Duration = Duration::from_secs(1);
/// With more files than this all that is dirty is looked at.
const MAX_PENDING: usize = 4096;

/// Files whose objects may carry a path that is not theirs any more.
#[derive(Default)]
pub(crate) struct Moved(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    files: HashSet<Ino>,
    /// A directory was moved, or too many files.
    all: bool,
    /// When the first of them was.
    since: Option<Instant>,
}

impl Moved {
    /// Whether it is time to see to them.
    pub fn is_due(&self) -> bool {
        self.0.lock().since.is_some_and(|since| since.elapsed() >= DELAY)
    }
}

impl Writeback {
    /// A file or directory has another path now.
    pub(crate) fn note_moved(&self, record: &Record) {
        let directory = record.is_directory();
        if !directory && self.residency.residents.get(record.ino.0).is_none() {
            return;
        }
        let mut pending = self.moved.0.lock();
        if directory || pending.files.len() >= MAX_PENDING {
            pending.all = true;
        } else {
            pending.files.insert(record.ino);
        }
        pending.since.get_or_insert_with(Instant::now);
    }

    /// Whatever is dirty may have another path than its object says: nobody knows what a daemon
    /// that is gone had yet to do.
    pub(crate) fn note_all_moved(&self) {
        let mut pending = self.moved.0.lock();
        pending.all = true;
        pending.since = Some(Instant::now());
    }

    /// Sets all paths that lag behind.
    pub(crate) fn restamp_moved(&self) {
        let Pending { mut files, all, .. } = std::mem::take(&mut *self.moved.0.lock());
        if all {
            self.residency.residents.for_each(|ino, resident| {
                if resident.dirty {
                    files.insert(Ino(ino));
                }
            });
        }
        for ino in files {
            if let Err(error) = self.residency.follow_path(ino) {
                tracing::debug!(%ino, %error, "an object keeps the path that its file had");
            }
        }
    }
}
