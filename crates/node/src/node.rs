//! The node itself: its parts, its start and its end.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_core::steward::{Event, Steward};
use forebay_core::unit::Tick;
use forebay_meta::MetaStore;
use forebay_store::{BackingStore, Tier, TierLock};
use parking_lot::Mutex;
use sharded_slab::Slab;

use crate::config::NodeConfig;
use crate::files::Files;
use crate::handle::Handle;
use crate::import::Imports;
use crate::kernel::Kernel;
use crate::metrics::Metrics;
use crate::namespace::Namespace;
use crate::pool::Pool;
use crate::reconcile::Reconciler;
use crate::residents::Residents;
use crate::room::Room;

/// One tier in use.
pub struct TierSlot {
    /// The tier.
    pub tier: Arc<dyn Tier>,
    /// Its room.
    pub room: Room,
    pub(crate) _lock: TierLock,
}

/// A node: one mount's namespace, tiers, backing store and workers.
pub struct Node {
    pub(crate) config: NodeConfig,
    pub(crate) meta: MetaStore,
    pub(crate) tiers: Vec<TierSlot>,
    pub(crate) backing: Arc<dyn BackingStore>,
    pub(crate) files: Arc<Files>,
    pub(crate) residents: Residents,
    pub(crate) handles: Slab<Handle>,
    pub(crate) steward: Mutex<Steward>,
    pub(crate) started: Instant,
    /// Threads that wait for slow devices.
    pub(crate) slow: Pool,
    /// Threads that bring the backing store in line.
    pub(crate) flushers: Pool,
    pub(crate) imports: Imports,
    pub(crate) reconciler: Reconciler,
    pub(crate) names: Namespace,
    pub(crate) metrics: Metrics,
    pub(crate) kernel: OnceLock<Arc<dyn Kernel>>,
    pub(crate) stopping: AtomicBool,
    /// This node, for the jobs that it hands to its pools.
    pub(crate) this: Weak<Node>,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) state_dir: PathBuf,
}
