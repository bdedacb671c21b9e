//! Access times on their way into the namespace.
//!
//! The first read after a change moves a file's access time (`relatime`). One transaction for each
//! such close would cost a program that reads many small files more than their opening, so they are
//! gathered for a moment. Whoever asks for attributes sees them at once; a crash loses those of the
//! moment before it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_meta::Accessed;
use forebay_types::{Ino, Timestamp};
use parking_lot::Mutex;

use crate::residency::Residency;

/// How long they are gathered.
const GATHER: Duration = Duration::from_millis(100);
/// Access times that may wait; more are left to the next read.
const MAX: usize = 16_384;
/// So many are written in one transaction.
const BATCH: usize = 32;

/// Access times that the records do not show yet.
#[derive(Default)]
pub(crate) struct Accesses {
    pending: Mutex<PendingTimes>,
    /// As in `pending`, for those who only look.
    count: AtomicUsize,
}

/// Access times that are to be written to the records.
#[derive(Default)]
struct PendingTimes {
    /// The record's access time when it was noted, and the newer one.
    times: HashMap<u64, (Timestamp, Timestamp)>,
    /// A job sees to them.
    attended: bool,
}

impl Accesses {
    /// The access time of an inode whose record says `known`.
    pub(crate) fn latest(&self, ino: Ino, known: Timestamp) -> Timestamp {
        if self.count.load(Ordering::Acquire) == 0 {
            return known;
        }
        match self.pending.lock().times.get(&ino.0) {
            Some((then, seen)) if *then == known => *seen,
            _ => known,
        }
    }

    /// The access time of an inode is set to something else.
    pub(crate) fn forget(&self, ino: Ino) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut pending = self.pending.lock();
            pending.times.remove(&ino.0);
            self.count.store(pending.times.len(), Ordering::Release);
        }
    }

    /// Notes a newer one. True: somebody has to see to them.
    fn note(&self, ino: Ino, known: Timestamp, seen: Timestamp) -> bool {
        let mut pending = self.pending.lock();
        if pending.times.len() >= MAX && !pending.times.contains_key(&ino.0) {
            return false;
        }
        pending.times.insert(ino.0, (known, seen));
        self.count.store(pending.times.len(), Ordering::Release);
        !std::mem::replace(&mut pending.attended, true)
    }

    fn all(&self) -> Vec<Accessed> {
        let pending = self.pending.lock();
        let accessed = pending.times.iter().map(|(&ino, &(known, seen))| Accessed {
            ino: Ino(ino),
            known,
            seen,
        });
        accessed.collect()
    }

    /// They are in their records now, but for those that were noted anew.
    fn written(&self, accessed: &[Accessed]) {
        let mut pending = self.pending.lock();
        for Accessed { ino, known, seen } in accessed {
            if pending.times.get(&ino.0) == Some(&(*known, *seen)) {
                pending.times.remove(&ino.0);
            }
        }
        self.count.store(pending.times.len(), Ordering::Release);
    }
}

impl Residency {
    /// The access time of a file has moved from `known` to `seen`.
    pub(crate) fn note_access(&self, ino: Ino, known: Timestamp, seen: Timestamp) {
        if self.accesses.note(ino, known, seen) && !self.later(Residency::attend_to_accesses) {
            self.accesses.pending.lock().attended = false;
        }
    }

    fn attend_to_accesses(&self) {
        loop {
            std::thread::sleep(GATHER);
            self.write_accesses();
            let mut pending = self.accesses.pending.lock();
            // A daemon that comes to rest does not wait for its users to pause.
            if pending.times.is_empty() || self.stopping.load(Ordering::Acquire) {
                pending.attended = false;
                return;
            }
        }
    }

    /// Brings the access times into their records.
    pub(crate) fn write_accesses(&self) {
        let mut all = self.accesses.all();
        // Neighbours in a transaction, as their records are in the tables.
        all.sort_unstable_by_key(|accessed| accessed.ino);
        for batch in all.chunks(BATCH) {
            if let Err(error) = self.meta.touch_accessed(batch) {
                tracing::debug!(%error, "access times not kept");
            }
            self.accesses.written(batch);
        }
    }
}
