//! The locks of a file as the metadata have them, changed by compare-and-swap.

use std::collections::HashMap;

use forebay_core::cluster::locks::Locks;
use forebay_core::cluster::ownership::Incarnation as Holder;
use forebay_core::cluster::{Epoch, NodeId};
use forebay_meta::Incarnation;
use forebay_types::Ino;
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

use super::Cluster;
use crate::error::Result;

const STRIPES: usize = 64;
/// Of one change, while others change the same.
const ATTEMPTS: u32 = 256;

/// What was last seen of the locks of files of which this node has some: mostly they are so still,
/// and a change is one round trip.
pub(super) struct LockRecords([Mutex<HashMap<u64, Locks>>; STRIPES]);

impl Default for LockRecords {
    fn default() -> Self {
        LockRecords(std::array::from_fn(|_| Mutex::default()))
    }
}

/// The locks of one file; no other thread of this node changes them meanwhile.
pub(super) struct LockRecord<'a> {
    cluster: &'a Cluster,
    ino: Ino,
    known: MutexGuard<'a, HashMap<u64, Locks>>,
}

impl Cluster {
    /// This incarnation, as the holder of locks.
    pub(super) fn as_holder(&self) -> Holder {
        Holder { node: NodeId(self.me.node.into()), epoch: Epoch(self.me.epoch) }
    }

    /// Whether an incarnation that has locks lives no longer, as far as is known.
    fn is_gone(&self, who: Holder) -> bool {
        let Ok(node) = u16::try_from(who.node.0) else { return true };
        if node == self.me.node {
            return who.epoch.0 < self.me.epoch;
        }
        self.is_dead(Incarnation { node, epoch: who.epoch.0 })
    }

    pub(super) fn lock_record(&self, ino: Ino) -> LockRecord<'_> {
        let stripe = &self.lock_records.0[ino.0 as usize % STRIPES];
        LockRecord { cluster: self, ino, known: stripe.lock() }
    }
}

impl LockRecord<'_> {
    /// Changes the locks, after those of dead nodes are dropped. What `change` returns is true of
    /// them as they are when this returns.
    ///
    /// # Errors
    /// If the metadata can't be changed; `EAGAIN` if others were always first.
    pub fn change<T>(&mut self, mut change: impl FnMut(&mut Locks) -> T) -> Result<T> {
        let (cluster, ino) = (self.cluster, self.ino);
        // Not there after a failure: what is known then may not be so.
        let (mut before, mut is_now) = (self.known.remove(&ino.0).unwrap_or_default(), false);
        for _ in 0..ATTEMPTS {
            let mut after = before.clone();
            if after.fence(|who| cluster.is_gone(who)) {
                // What it has is free only if it gives no sign of life at this moment either.
                cluster.look_at_members()?;
                after = before.clone();
                after.fence(|who| cluster.is_gone(who));
            }
            let done = change(&mut after);
            let changed = after != before;
            if changed && cluster.meta.replace_locks(ino, &before, &after)? || !changed && is_now {
                let me = cluster.as_holder();
                if after.held().iter().any(|lock| lock.holder.incarnation == me) {
                    self.known.insert(ino.0, after);
                }
                return Ok(done);
            }
            (before, is_now) = (cluster.meta.locks(ino)?, true);
        }
        Err(Errno::AGAIN.into())
    }

    /// The locks without those of dead nodes, read anew.
    ///
    /// # Errors
    /// As [`LockRecord::change`].
    pub fn look(&mut self) -> Result<Locks> {
        self.change(|locks| locks.clone())
    }
}
