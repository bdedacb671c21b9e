//! Which records, and which directories' entries, have changed since a moment, in little memory: so
//! that what a listing has read can be used as long as it is true.

use std::sync::atomic::{AtomicU64, Ordering};

use super::MetaStore;
use crate::types::Ino;

/// Inodes share slots: who shares one with a changed inode seems changed as well.
const SLOTS: usize = 16_384;

/// A moment in the history of a namespace; see [`MetaStore::moment`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

/// The moment of the latest change, by inode.
pub(super) struct Changes {
    clock: AtomicU64,
    latest: Box<[AtomicU64]>,
}

impl Default for Changes {
    fn default() -> Self {
        let latest = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        Changes { clock: AtomicU64::new(0), latest }
    }
}

impl Changes {
    fn slot(&self, ino: Ino) -> &AtomicU64 {
        let spread = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.latest[spread as usize % SLOTS]
    }

    /// A record, or an entry of a directory, may have changed. To be called after the commit and before it is reported: then a
    /// reader that has seen the state before it finds a moment later than its own.
    pub fn note(&self, ino: Ino) {
        let now = self.clock.fetch_add(1, Ordering::SeqCst) + 1;
        self.slot(ino).fetch_max(now, Ordering::SeqCst);
    }
}

impl MetaStore {
    /// The present moment, to be taken before records are read.
    #[must_use]
    pub fn moment(&self) -> Moment {
        Moment(self.changes.clock.load(Ordering::SeqCst))
    }

    /// Whether a change of a record, or of an entry of the directory that it is, may have been reported
    /// after `moment`. If not, what was read of them since is still true. Now and then true of a record
    /// that did not change.
    #[must_use]
    pub fn changed_since(&self, ino: Ino, moment: Moment) -> bool {
        self.changes.slot(ino).load(Ordering::SeqCst) > moment.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_when_inodes_are_consecutive_then_shared_by_few() {
        let changes = Changes::default();
        changes.note(Ino(1 << 48 | 7));
        let seem = |count: u64| {
            let slot = |n| changes.slot(Ino(1 << 48 | n)).load(Ordering::SeqCst);
            (0..count).filter(|n| slot(*n) > 0).count()
        };
        assert_eq!(seem(100), 1);
        assert!(seem(10 * SLOTS as u64) <= 40);
    }
}
