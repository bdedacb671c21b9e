//! What removed files leave on the tiers, taken away behind the back of those who removed them.
//!
//! The namespace has forgotten such a file; to remove its object is housekeeping that grows with the
//! file. If the daemon dies before it is done, the next start finds objects without a record and
//! removes them. Bytes that the backing store lacks stay until the namespace is durable: many files
//! share one sync of it.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_meta::Ino;
use parking_lot::Mutex;

use crate::node::Node;

/// Files that may wait; more are taken away by those who remove them.
const MOST: usize = 4096;
/// Pause in which others come together: to wake a thread for each costs more than the work.
const GATHER: Duration = Duration::from_millis(2);

/// Removed files whose bytes are still there.
#[derive(Default)]
pub(crate) struct Removals(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    files: VecDeque<Ino>,
    /// A job sees to them.
    attended: bool,
}

impl Node {
    /// Drops the bytes of a removed file that nobody uses, in a moment.
    pub(crate) fn discard_soon(&self, ino: Ino) {
        let mut waiting = self.removals.0.lock();
        if waiting.files.len() >= MOST {
            drop(waiting);
            return self.discard_data(ino);
        }
        waiting.files.push_back(ino);
        let start = !std::mem::replace(&mut waiting.attended, true);
        drop(waiting);
        if start && !self.later(Node::attend_to_removals) {
            self.removals.0.lock().attended = false;
            self.discard_removed();
        }
    }

    fn attend_to_removals(&self) {
        loop {
            std::thread::sleep(GATHER);
            self.discard_removed();
            let mut waiting = self.removals.0.lock();
            // A daemon that comes to rest does not wait for its users to pause.
            if waiting.files.is_empty() || self.stopping.load(Ordering::Acquire) {
                waiting.attended = false;
                return;
            }
        }
    }

    /// Drops the bytes of all removed files now: somebody needs their room, or the daemon ends.
    pub(crate) fn discard_removed(&self) {
        loop {
            let files = std::mem::take(&mut self.removals.0.lock().files);
            let dirty = |ino: &Ino| self.residents.get(ino.0).is_some_and(|found| found.dirty);
            let durable = !files.iter().any(dirty) || self.meta.sync().is_ok();
            if files.is_empty() {
                return;
            }
            // Opened at the last moment: whoever did discards the data at the end.
            for ino in files.into_iter().filter(|ino| !self.is_open(*ino)) {
                if durable {
                    self.discard_forgotten(ino);
                } else {
                    self.discard_data(ino);
                }
            }
        }
    }
}
