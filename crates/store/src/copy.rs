//! The copy engine.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{Bytes, Result};

/// Classes of copies, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A program waits for the bytes.
    Demand,
    /// Dirty bytes on their way to the backing store.
    WriteBack,
    /// Bytes that will be wanted.
    Prefetch,
    /// Moves between tiers and nodes.
    Rebalance,
}

/// Stops a copy from another thread. Clones share one flag.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks the copy to stop; it returns `Cancelled` at its next step.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was asked to.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Progress of one or several copies, readable at any time.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes of data moved (also those that the kernel cloned).
    pub bytes: AtomicU64,
    /// Bytes of holes passed over.
    pub holes: AtomicU64,
}

/// How a copy was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// Blocks are shared (reflink).
    Clone,
    /// Inside the kernel (`copy_file_range`).
    Kernel,
    /// Through this process.
    Buffers,
}

/// What a copy did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Bytes of data moved.
    pub bytes: u64,
    /// Bytes of holes passed over.
    pub holes: u64,
    /// How.
    pub means: Means,
}

/// A token bucket (bytes per second), shared by all copies of a class.
pub struct RateLimiter;

/// Lets urgent copies on one device go first.
pub struct Gate;

/// Aligned buffers for copies, at most a fixed number.
pub struct BufferPool;

/// The conditions of a copy.
#[derive(Clone)]
pub struct Limits {
    /// Class.
    pub priority: Priority,
    /// Rate, if limited.
    pub rate: Option<Arc<RateLimiter>>,
    /// One gate per device.
    pub gate: Option<Arc<Gate>>,
    /// Buffers.
    pub buffers: Arc<BufferPool>,
    /// Counters to add to.
    pub progress: Arc<Progress>,
}

/// Copies a range from `source` to the same offsets of `target`, blocking. Holes of the source stay
/// holes: what the target has there is punched if it has any. Does not sync and does not set the
/// length beyond the range. Fails with `Shrunk` when the source ends before the range does.
pub fn copy_range(
    _source: &dyn Bytes,
    _target: &dyn Bytes,
    _range: Range<u64>,
    _limits: &Limits,
    _cancel: &Cancel,
) -> Result<Copied> {
    todo!()
}
