//! Who works on which inode.

use std::collections::HashMap;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use forebay_types::Ino;
use parking_lot::{Condvar, Mutex};

use crate::waits::Wait;
use crate::writeback::Writeback;

const SHARDS: usize = 32;

/// Inodes, and since when which thread works on each.
type Shard = (Mutex<HashMap<u64, (Instant, ThreadId)>>, Condvar);

/// The inodes that somebody works on.
#[derive(Default)]
pub(super) struct Owners {
    shards: [Shard; SHARDS],
}

impl Owners {
    fn shard(&self, ino: Ino) -> &Shard {
        &self.shards[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SHARDS]
    }
}

/// The sole right to change an inode in the backing store and to report about it.
pub(crate) struct Owned<'a> {
    node: &'a Writeback,
    pub(super) ino: Ino,
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        self.node.rights.end_work(self.ino);
        let (owned, freed) = self.node.reconciler.owners.shard(self.ino);
        owned.lock().remove(&self.ino.0);
        freed.notify_all();
    }
}

impl Writeback {
    /// Whether nobody works on the backing store.
    pub(crate) fn reconciler_is_idle(&self) -> bool {
        self.reconciler.owners.shards.iter().all(|(owned, _)| owned.lock().is_empty())
    }

    /// The inodes that somebody works on, and for how long.
    pub(crate) fn owned_since(&self) -> Vec<(Ino, Duration)> {
        let shards = self.reconciler.owners.shards.iter();
        shards
            .flat_map(|(owned, _)| {
                let owned = owned.lock();
                owned
                    .iter()
                    .map(|(&ino, (since, _))| (Ino(ino), since.elapsed()))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Whether another thread works on an inode.
    pub(super) fn is_in_other_hands(&self, ino: Ino) -> bool {
        let (owned, _) = self.reconciler.owners.shard(ino);
        owned.lock().get(&ino.0).is_some_and(|(_, who)| *who != thread::current().id())
    }

    /// Whether this thread works on an inode.
    pub(super) fn is_in_own_hands(&self, ino: Ino) -> bool {
        let (owned, _) = self.reconciler.owners.shard(ino);
        owned.lock().get(&ino.0).is_some_and(|(_, who)| *who == thread::current().id())
    }

    /// Becomes the owner of an inode; `None` if somebody else is for longer than `timeout`.
    ///
    /// Whoever owns inodes already may only wait for one with a larger number than all of them, so
    /// that nobody waits in a circle.
    pub(crate) fn own(&self, ino: Ino, timeout: Duration) -> Option<Owned<'_>> {
        let owners = &self.reconciler.owners;
        let until = Instant::now() + timeout;
        let (owned, freed) = owners.shard(ino);
        let mut owned = owned.lock();
        let mut wait = Wait::until(until);
        while owned.contains_key(&ino.0) {
            if timeout.is_zero() || !wait.goes_on(freed, &mut owned) {
                return None;
            }
        }
        owned.insert(ino.0, (Instant::now(), thread::current().id()));
        drop(owned);
        let right = Owned { node: self, ino };
        self.rights.begin_work(ino, until).then_some(right)
    }
}
