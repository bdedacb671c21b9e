//! The node itself: its parts. `lifecycle` has its start and its end.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;

use forebay_meta::MetaStore;
use forebay_store::backing::BackingStore;
use forebay_store::{StoreIdentity, Tier};
use parking_lot::Mutex;

use crate::cluster::Cluster;
use crate::config::NodeConfig;
use crate::defects::Defects;
use crate::error::Result;
use crate::handles::Handles;
use crate::kernel::Kernel;
use crate::metrics::Metrics;
use crate::namespace::Namespace;
use crate::pool::{Pool, Urgency};
use crate::requests::hints::Hints;
use crate::residency::Residency;
use crate::stream::Streams;
use crate::trace::Tracer;
use crate::writeback::Writeback;

/// A node: one mount's namespace, tiers, backing store and workers.
pub struct Node {
    pub(crate) config: Arc<NodeConfig>,
    pub(crate) meta: Arc<MetaStore>,
    pub(crate) backing: Arc<dyn BackingStore>,
    /// Where the bytes of files are.
    pub(crate) residency: Arc<Residency>,
    /// What is brought to the backing store, and what is known of it.
    pub(crate) writeback: Arc<Writeback>,
    /// What ended earlier daemons and is not tried again.
    pub(crate) defects: Arc<Defects>,
    pub(crate) given_up: Arc<crate::context::GivenUp>,
    pub(crate) handles: Handles,
    /// The reference sequences that were given.
    pub(crate) hints: Hints,
    /// Who is told of opens.
    pub(crate) tracer: Tracer,
    /// Who records accesses.
    pub(crate) patterns: crate::patterns::Recorder,
    /// Threads that wait for slow devices.
    pub(crate) slow: Arc<Pool>,
    pub(crate) names: Namespace,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) busiest: crate::busiest::Busiest,
    pub(crate) kernel: Arc<OnceLock<Arc<dyn Kernel>>>,
    pub(crate) stopping: Arc<AtomicBool>,
    /// This node, for the jobs that it hands to its pools.
    pub(crate) this: Weak<Node>,
    /// Those of write-back among them.
    pub(crate) threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
    /// Its streams, if it serves any.
    pub(crate) streams: Option<Arc<Streams>>,
    /// Its part in a cluster, if it is in one.
    pub(crate) cluster: Option<Arc<Cluster>>,
    pub(crate) state_dir: PathBuf,
    /// Which directory the backing store is.
    pub(crate) store: StoreIdentity,
}

/// What not every mount has.
#[derive(Default)]
pub(crate) struct OptionalParts {
    pub(crate) streams: Option<Arc<Streams>>,
    pub(crate) cluster: Option<Arc<Cluster>>,
}

/// The metadata engine's directory in the state directory.
pub(crate) const METADATA: &str = "meta";

/// Name of this mount among all that share a backing store: the identity of its first tier.
pub(crate) fn owner_of(tier: &dyn Tier) -> String {
    tier.id().to_string()
}

impl Node {
    /// A node that has done nothing yet.
    pub(crate) fn of(
        this: &Weak<Node>,
        writeback: Arc<Writeback>,
        OptionalParts { streams, cluster }: OptionalParts,
        generation: u16,
    ) -> Node {
        let residency = writeback.residency.clone();
        Node {
            defects: residency.defects.clone(),
            given_up: residency.given_up.clone(),
            handles: Handles::new(generation),
            hints: Hints::default(),
            tracer: Tracer::default(),
            patterns: Default::default(),
            slow: residency.slow.clone(),
            names: Namespace::default(),
            metrics: residency.metrics.clone(),
            busiest: Default::default(),
            kernel: residency.kernel.clone(),
            stopping: residency.stopping.clone(),
            this: this.clone(),
            threads: writeback.threads.clone(),
            streams,
            cluster,
            store: writeback.store.clone(),
            state_dir: residency.state_dir.clone(),
            config: residency.config.clone(),
            meta: residency.meta.clone(),
            backing: residency.backing.clone(),
            residency,
            writeback,
        }
    }

    /// Connects the front. Called once, before the first request.
    pub fn attach_kernel(&self, kernel: Arc<dyn Kernel>) {
        self.tell_cluster(|cluster| cluster.kernel_grants.attach(kernel.clone()));
        if self.kernel.set(kernel).is_err() {
            tracing::error!("a second front was connected; it is ignored");
        }
    }

    /// The configuration.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// Where the bytes of files are.
    pub fn residency(&self) -> &Residency {
        &self.residency
    }

    /// What is brought to the backing store, and what is known of it.
    pub fn writeback(&self) -> &Writeback {
        &self.writeback
    }

    /// Its part in a cluster, if it is in one.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_deref()
    }

    /// What its cluster answers; nothing, if it is in none.
    ///
    /// # Errors
    /// What the cluster says.
    pub(crate) fn in_cluster<T: Default>(
        &self,
        ask: impl FnOnce(&Cluster) -> Result<T>,
    ) -> Result<T> {
        self.cluster().map_or_else(|| Ok(T::default()), ask)
    }

    /// Its cluster is told of something, if it is in one.
    pub(crate) fn tell_cluster(&self, tell: impl FnOnce(&Cluster)) {
        if let Some(cluster) = &self.cluster {
            tell(cluster);
        }
    }

    /// Whether this node is one of a cluster.
    pub fn is_clustered(&self) -> bool {
        self.cluster.is_some()
    }

    /// Runs `job` on a thread that may wait; false if the pool is full or closed.
    pub(crate) fn later(&self, job: impl FnOnce(&Node) + Send + 'static) -> bool {
        let Some(node) = self.this.upgrade() else { return true };
        self.slow.run(Urgency::Background, move || job(&node)).is_ok()
    }

    /// The pool of threads that may wait.
    pub fn slow_pool(&self) -> &Pool {
        &self.slow
    }

    /// The pool of threads that may wait for reads of a handle.
    pub fn pool_of_reads(&self, fh: u64) -> &Pool {
        let streamed = || self.handles.get(fh).is_some_and(|handle| handle.stream.get().is_some());
        match &self.streams {
            Some(streams) if streamed() => streams.readers(),
            _ => &self.slow,
        }
    }

    /// The program that made a request is about to be told that it failed, while a thread is still
    /// at it: what the thread has not done yet it must not do any more, for the program may make
    /// the same call again, and others after it.
    pub fn give_up_request(&self, request: u64) {
        self.given_up.give_up(request);
    }

    /// The thread is done.
    pub fn forget_request(&self, request: u64) {
        self.given_up.forget(request);
    }
}
