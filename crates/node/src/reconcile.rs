//! The backlog: brings the backing store in line with the namespace, inode by inode.

use std::time::{Duration, Instant};

use forebay_meta::Ino;

use crate::error::Result;
use crate::node::Node;

/// The state of the backlog's workers.
#[derive(Default)]
pub struct Reconciler {}

/// What is not in the backing store yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Remaining {
    /// Inodes whose names, attributes or bytes differ.
    pub entries: u64,
    /// Bytes that only the tiers hold.
    pub bytes: u64,
}

impl Node {
    /// Tells the workers that `ino` has something for the backing store from `delay` on.
    pub(crate) fn reconcile_later(&self, ino: Ino, delay: Duration) {
        todo!()
    }

    /// Brings the backing store in line with `ino` now, its parents first. On a thread that may
    /// wait.
    pub(crate) fn reconcile(&self, ino: Ino) -> Result<()> {
        todo!()
    }

    /// Brings everything in line until nothing remains or `until` has passed. `progress` is told
    /// what remains, about ten times a second, and may stop it by returning false.
    pub fn drain(
        &self,
        until: Instant,
        progress: &mut dyn FnMut(Remaining) -> bool,
    ) -> Result<Remaining> {
        todo!()
    }

    pub(crate) fn start_reconciler(self: &std::sync::Arc<Self>) {
        todo!()
    }
    pub(crate) fn stop_reconciler(&self) {
        todo!()
    }
    pub(crate) fn reconciler_is_idle(&self) -> bool {
        todo!()
    }
}
