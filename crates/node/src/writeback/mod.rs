//! The node and its backing store: what is to be brought there (`reconcile`, the backlog), how bytes get
//! there (`flush`, `staging`), and how what is there, also by others, becomes known (`import`).
//!
//! [`Writeback`] owns the backlog, what is known of the backing store's tree, and the threads that bring
//! it in line. It stands on `residency` and the namespace; it knows no requests, no streams and no other
//! nodes: what it has to ask of those who stand on it is in [`seams`].
//!
//! # Invariants
//! - Who works on an inode owns it, and nobody else changes what its record says of the backing store
//!   meanwhile (`tests/interleaved.rs`).
//! - What differs from the backing store is in the backlog, and the backlog empties (`tests/model.rs`).
//! - Nothing is published over a version that was not known (`crates/node/tests/foreign_changes.rs`).
//!
//! # Parts
//! - `reconcile/`: the backlog. `flush.rs`, `staging.rs`, `in_place.rs`: bytes on their way.
//! - `import/`: what the store has becomes known, and changes by others are noticed.
//! - `published_open.rs`, `rest_gone.rs`, `parked.rs`: what must not be lost between the two.
//!   `restamp.rs`: paths in the headers of dirty objects. `upkeep.rs`: what is looked after every
//!   few seconds.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;

use forebay_meta::MetaStore;
use forebay_store::StoreIdentity;
use forebay_store::backing::BackingStore;
use parking_lot::Mutex;

use crate::config::NodeConfig;
use crate::defects::Defects;
use crate::kernel::Kernel;
use crate::metrics::Metrics;
use crate::pool::{Pool, Urgency};
use crate::residency::Residency;

pub(crate) mod file;
pub(crate) mod flush;
pub(crate) mod import;
pub(crate) mod in_place;
pub(crate) mod parked;
pub(crate) mod published_open;
pub(crate) mod reconcile;
pub(crate) mod rest_gone;
pub(crate) mod restamp;
pub(crate) mod seams;
pub(crate) mod staging;
pub(crate) mod upkeep;

/// What is brought to the backing store, and what is known of it.
pub struct Writeback {
    // What it was given, and others have as well.
    pub(crate) config: Arc<NodeConfig>,
    pub(crate) meta: Arc<MetaStore>,
    pub(crate) backing: Arc<dyn BackingStore>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) kernel: Arc<OnceLock<Arc<dyn Kernel>>>,
    pub(crate) slow: Arc<Pool>,
    pub(crate) stopping: Arc<AtomicBool>,
    pub(crate) defects: Arc<Defects>,
    /// Which directory the backing store is.
    pub(crate) store: StoreIdentity,
    pub(crate) residency: Arc<Residency>,
    // Who stands on it.
    pub(crate) rights: Arc<dyn seams::WorkRights>,
    pub(crate) above: Box<dyn seams::AboveWriteback>,
    // Its own.
    pub(crate) this: Weak<Writeback>,
    pub(crate) reconciler: reconcile::Reconciler,
    pub(crate) imports: import::Imports,
    /// Files whose headers on tiers have another path than their records.
    pub(crate) moved: restamp::Moved,
    pub(crate) upkeep: upkeep::Upkeep,
    /// Threads that bring the backing store in line.
    pub(crate) flushers: Pool,
    /// To be waited for at the end.
    pub(crate) threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

/// The rooms above, as this one sees them.
pub(crate) struct WritebackSeams {
    pub(crate) rights: Arc<dyn seams::WorkRights>,
    pub(crate) above: Box<dyn seams::AboveWriteback>,
}

impl Writeback {
    /// Looks at nothing yet.
    pub(crate) fn new(
        residency: Arc<Residency>,
        reconciler: reconcile::Reconciler,
        store: StoreIdentity,
        WritebackSeams { rights, above }: WritebackSeams,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Writeback {
            config: residency.config.clone(),
            meta: residency.meta.clone(),
            backing: residency.backing.clone(),
            metrics: residency.metrics.clone(),
            kernel: residency.kernel.clone(),
            slow: residency.slow.clone(),
            stopping: residency.stopping.clone(),
            defects: residency.defects.clone(),
            store,
            rights,
            above,
            this: this.clone(),
            reconciler,
            imports: Default::default(),
            moved: Default::default(),
            upkeep: Default::default(),
            flushers: Pool::new(residency.config.flush_threads, 1024),
            threads: Arc::default(),
            residency,
        })
    }

    fn later(&self, job: impl FnOnce(&Writeback) + Send + 'static) -> bool {
        let Some(this) = self.this.upgrade() else { return true };
        self.slow.run(Urgency::Background, move || job(&this)).is_ok()
    }
}
