//! A node among others: one namespace, one backing store, tiers of its own.
//!
//! A file's newest bytes are in the backing store, unless a node *owns* it: that one may write it,
//! on its own tiers. Whoever opens a file that another node owns asks the owner first, through the
//! metadata engine ([`forebay_meta::MetaStore::ask`]): to write back what it has, and whoever wants
//! to write, to give the file up. So nobody reads old bytes after a close elsewhere, and no two
//! nodes write one file at once.
//!
//! What a node believes to be dead it takes nothing from but the right to work on an inode in the
//! backing store, and files of which other nodes have copies; all others wait for its return.
//!
//! [`Cluster`] owns what this node knows of the others and has agreed on with them: who lives, the files
//! that it owns, the locks of its programs, what its kernel may keep, and the copies that it has of what
//! others have written, and they of what it has. It stands on `residency` and `writeback`, which ask it
//! for the other nodes by their seams. It knows no requests, no names and no streams: a node alone has
//! none of it, and whoever stands above says what is done then.
//!
//! - `life.rs`, `nodes.rs`, `orders.rs`, `terms.rs`: who lives, who is to leave, what all agree on.
//!   `peers.rs`: who listens. `hand_over.rs`: what one daemon of the node hands to the next.
//! - `recalls.rs`, `versions.rs`, `write_pins.rs`, `work.rs`: owners are asked, an open shows the
//!   last close anywhere, files stay with their writers, and one node at a time changes an inode in
//!   the backing store.
//! - `forwarding.rs`, `replay_cache.rs`: reads and writes through an owner, each carried out once.
//! - `pages.rs`, `kernel_grants.rs`, `moved.rs`: what the kernel may keep. `locks.rs`,
//!   `lock_record.rs`, `deadlock.rs`: locks of programs.
//! - `sources.rs`, `peer_cache.rs`: from which node an extent is read, and clean copies that nodes
//!   lend. `redundancy/`: copies of what the backing store lacks. `hosting.rs`: tasks of other
//!   nodes.
//!
//! # Invariants
//! - Nothing is dropped because the metadata can't be asked, and what this node has published
//!   counts before the record says so (`crates/forebay/tests/cluster_failover.rs`,
//!   `crates/forebay/tests/testbed.rs`).

mod deadlock;
pub(crate) mod faults;
mod file;
pub(crate) mod forwarding;
mod hand_over;
pub(crate) mod hosting;
mod kernel_grants;
pub(crate) mod life;
mod lock_record;
mod locks;
pub(crate) mod moved;
mod nodes;
mod orders;
mod pages;
pub(crate) mod peer_cache;
pub(crate) mod peers;
mod recalls;
pub(crate) mod redundancy;
pub(crate) mod replay_cache;
pub(crate) mod sources;
mod terms;
mod versions;
mod work;
mod write_pins;

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_meta::{BootInstant, Incarnation, MetaStore, Record};
use forebay_store::DirBacking;
use parking_lot::Mutex;

use crate::config::ClusterConfig;
use crate::error::{NodeError, Result};
use crate::hand_over_state::Membership;
use crate::kernel::Kernel;
use crate::metrics::Metrics;
use crate::pool::{Pool, Urgency};
use crate::residency::Residency;
use crate::writeback::Writeback;

pub(crate) use file::FileInCluster;
pub use hosting::TaskHost;
pub use kernel_grants::{KernelGrant, LeaseBasis, Renaming, Shown};
pub use locks::{InTheWay, LockDone, LockRequest, Waited};
pub use nodes::NodeReport;
pub(crate) use pages::Seen;
use peers::Peers;
pub use redundancy::{FileTotals, SafetyReport};
pub(crate) use redundancy::{REDUNDANCY, check_redundancy};
pub use terms::{
    ClusterReport, ClusterTerms, NewTerms, cluster_terms, look_at_cluster, set_cluster_terms,
};
pub(crate) use write_pins::AccessMode;

/// Threads that do what other nodes ask for: never those that wait for other nodes.
const WORKERS: usize = 8;
/// Requests of other nodes that may wait for such a thread.
const MAX_RECALLS: usize = 1024;
/// Where a tier notes whose files it holds.
pub(crate) const BOUND: &str = "cluster";
/// The setting by which namespaces are told apart.
pub(crate) const IDENTITY: &str = "cluster.identity";

/// What tells the secret of the nodes from others, without telling it.
pub(crate) const SECRET: &str = "cluster.secret";
/// In its place where nodes talk without one.
pub(crate) const NO_SECRET: &str = "off";

/// This node's part in its cluster.
///
/// Holds: what a node owns is written by no other; nothing is taken from a node that has shown a sign of
/// life since it counted as dead; whoever may count as dead itself gives no locks and begins no work.
pub struct Cluster {
    // What it was given, and others have as well.
    meta: Arc<MetaStore>,
    metrics: Arc<Metrics>,
    kernel: Arc<OnceLock<Arc<dyn Kernel>>>,
    /// Threads that wait for slow devices.
    slow: Arc<Pool>,
    stopping: Arc<AtomicBool>,
    residency: Arc<Residency>,
    pub(crate) writeback: Arc<Writeback>,
    // Its own.
    this: Weak<Cluster>,
    me: Incarnation,
    config: ClusterConfig,
    write_pins: write_pins::WritePins,
    recalls: recalls::Recalls,
    /// From when on its time is counted.
    started: BootInstant,
    /// What was seen of the nodes, by this one's clock.
    seen: Mutex<life::Seen>,
    /// When the last heartbeat that was heard was sent. Locked after `seen`.
    beaten: Mutex<BootInstant>,
    /// The backing store, from which it may be shut out.
    store: Option<Arc<DirBacking>>,
    /// The inodes that it works on there.
    works: Mutex<HashSet<u64>>,
    /// Another incarnation of this node has taken its place.
    fenced: AtomicBool,
    /// It does nothing for others, as it ends or is about to be handed on.
    resting: AtomicBool,
    /// It says no more that it lives.
    ended: AtomicBool,
    /// Says that it lives.
    heart: Mutex<Option<JoinHandle<()>>>,
    /// Those that end when it comes to rest.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Where it listens, for a successor.
    listens: Mutex<String>,
    /// The programs are those of another daemon before this one.
    resumed: bool,
    lock_records: lock_record::LockRecords,
    locks: locks::FileLocks,
    nodes: nodes::Nodes,
    pages: pages::Pages,
    orders: orders::Orders,
    workers: Pool,
    replay_cache: replay_cache::ReplayCache,
    /// The nodes that it talks to without the metadata engine between.
    peers: OnceLock<Peers>,
    safety: redundancy::Safety,
    hosting: hosting::Hosting,
    /// What its kernel may keep.
    pub(crate) kernel_grants: Arc<kernel_grants::KernelGrants>,
}

/// A node that has joined a cluster, before it is known what lies on its tiers.
pub(crate) struct Joined {
    pub(crate) me: Incarnation,
    pub(crate) config: ClusterConfig,
    /// The daemon before this one, under the same programs.
    pub(crate) former: Option<Membership>,
    /// Where what it writes back is published by renames alone, so that others can shut it out.
    pub(crate) store: Option<Arc<DirBacking>>,
    pub(crate) kernel_grants: Arc<kernel_grants::KernelGrants>,
    /// The join counted as its first heartbeat.
    since: BootInstant,
}

impl Joined {
    pub(crate) fn new(
        me: Incarnation,
        config: ClusterConfig,
        former: Option<&Membership>,
        store: Option<Arc<DirBacking>>,
    ) -> Self {
        let (former, kernel_grants) = (former.cloned(), kernel_grants::KernelGrants::new());
        Joined { me, config, former, store, kernel_grants, since: BootInstant::now() }
    }

    /// As [`Cluster::enter_store`].
    pub(crate) fn enter_store(&self) -> Result<()> {
        work::enter_store(self.store.as_deref(), self.me.epoch)
    }
}

impl Cluster {
    /// Looks at nothing yet. `below` makes the rooms that it stands on, which ask it for the other nodes.
    pub(crate) fn new(
        joined: Joined,
        below: impl FnOnce(&Weak<Cluster>) -> Arc<Writeback>,
    ) -> Arc<Self> {
        let Joined { me, config, former, store, kernel_grants, since } = joined;
        Arc::new_cyclic(|this| {
            let writeback = below(this);
            let residency = writeback.residency.clone();
            Cluster {
                meta: residency.meta.clone(),
                metrics: residency.metrics.clone(),
                kernel: residency.kernel.clone(),
                slow: residency.slow.clone(),
                stopping: residency.stopping.clone(),
                safety: redundancy::Safety::new(residency.clone(), config.repair_rate),
                residency,
                writeback,
                this: this.clone(),
                me,
                started: since,
                seen: Mutex::new(life::Seen::new(config.lease)),
                store,
                works: Mutex::default(),
                config,
                write_pins: write_pins::WritePins::default(),
                recalls: recalls::Recalls::default(),
                beaten: Mutex::new(since),
                fenced: AtomicBool::new(false),
                resting: AtomicBool::new(false),
                ended: AtomicBool::new(false),
                heart: Mutex::default(),
                threads: Mutex::default(),
                resumed: former.is_some(),
                listens: Mutex::new(former.map(|former| former.listens).unwrap_or_default()),
                lock_records: lock_record::LockRecords::default(),
                locks: locks::FileLocks::default(),
                nodes: nodes::Nodes::default(),
                pages: pages::Pages::default(),
                orders: orders::Orders::default(),
                workers: Pool::new(WORKERS, MAX_RECALLS),
                replay_cache: replay_cache::ReplayCache::new(),
                kernel_grants,
                peers: OnceLock::new(),
                hosting: hosting::Hosting::default(),
            }
        })
    }

    /// Runs `job` on a thread that may wait; false if the pool is full or closed.
    fn later(&self, job: impl FnOnce(&Cluster) + Send + 'static) -> bool {
        let Some(this) = self.this.upgrade() else { return true };
        self.slow.run(Urgency::Background, move || job(&this)).is_ok()
    }

    /// Which start of this node it is.
    pub(crate) fn epoch(&self) -> u64 {
        self.me.epoch
    }

    /// How long others are waited for.
    pub(crate) fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// Whether this node may not write any more, as another has taken its place.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    pub(crate) fn is_mine(&self, record: &Record) -> bool {
        record.owner.is_some_and(|owner| owner.node == self.me.node)
    }

    /// Whether another node owns the file.
    pub(crate) fn is_elsewhere(&self, record: &Record) -> bool {
        record.owner.is_some() && !self.is_mine(record)
    }

    /// Says that this node ends; in good order if it has nothing left to write back.
    pub(crate) fn leave(&self, in_order: bool) {
        if !in_order || self.meta.backlog_len() > 0 {
            return;
        }
        if let Err(error) = self.meta.leave() {
            tracing::warn!(
                %error,
                "can't tell the other nodes that this one ends: they will take it for dead. \
                 Nothing is lost, all was written back"
            );
        }
    }

    /// Lets no other node begin anything here.
    pub(crate) fn close_to_peers(&self) {
        if let Some(peers) = self.peers.get() {
            peers.close();
        }
    }

    /// The process is about to end.
    pub(crate) fn end(&self) {
        if let Some(peers) = self.peers.get() {
            peers.end();
        }
    }

    /// Ends the threads that work for others.
    pub(crate) fn close(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let ended = self.end_threads(limit);
        self.workers.close(until.saturating_duration_since(Instant::now())) && ended
    }
}

/// The namespace of a cluster that a state directory belongs to.
pub(crate) fn bound_to(state_dir: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(state_dir.join(BOUND)) {
        Ok(bound) => Ok(Some(bound)),
        Err(error)
            if [std::io::ErrorKind::NotFound, std::io::ErrorKind::NotADirectory]
                .contains(&error.kind()) =>
        {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// A tier belongs to one namespace: its objects bear that one's inode numbers.
pub(crate) fn bind_to_namespace(state_dir: &Path, meta: Option<&MetaStore>) -> Result<()> {
    let path = state_dir.join(BOUND);
    let bound = bound_to(state_dir)?;
    let shown = state_dir.display();
    let Some(meta) = meta else {
        return match bound {
            None => Ok(()),
            Some(_) => Err(NodeError::Config(format!(
                "the tier of {shown} belongs to a cluster: mount it with --cluster, or use another \
                 tier directory"
            ))),
        };
    };
    let identity = identity_of(meta)?;
    meta.identify_by(IDENTITY)?;
    match bound {
        Some(bound) if bound == identity => Ok(()),
        Some(_) => Err(NodeError::Config(format!(
            "the tier of {shown} holds files of another cluster, or of this one before its metadata \
             was lost: give the address of that cluster, or use another tier directory"
        ))),
        None => {
            std::fs::write(&path, identity)?;
            std::fs::File::open(&path)?.sync_all()?;
            Ok(std::fs::File::open(state_dir)?.sync_all()?)
        }
    }
}

/// What tells a namespace from all others.
pub(crate) fn identity_of(meta: &MetaStore) -> Result<String> {
    let made = || Ok::<_, NodeError>(std::fs::read_to_string("/proc/sys/kernel/random/uuid")?);
    let identity = meta.setting_or(IDENTITY, made()?.trim().as_bytes())?;
    Ok(String::from_utf8_lossy(&identity).into_owned())
}
