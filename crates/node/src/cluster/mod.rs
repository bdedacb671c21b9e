//! A node among others: one namespace, one backing store, tiers of its own.
//!
//! A file's newest bytes are in the backing store, unless a node *owns* it: that one may write it,
//! on its own tiers. Whoever opens a file that another node owns asks the owner first, through the
//! metadata engine ([`forebay_meta::MetaStore::ask`]): to write back what it has, and whoever wants
//! to write, to give the file up. So nobody reads old bytes after a close elsewhere, and no two
//! nodes write one file at once.
//!
//! What a node believes to be dead it takes nothing from but the right to work on an inode in the
//! backing store; files that a dead node owned wait for its return.

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
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_meta::{BootInstant, Incarnation, MetaStore, Record};
use forebay_store::DirBacking;
use forebay_types::Ino;
use parking_lot::Mutex;

use crate::config::ClusterConfig;
use crate::error::{NodeError, Result};
use crate::hand_over_state::Membership;
use crate::node::Node;
use crate::pool::Pool;

pub(crate) use file::FileInCluster;
pub use hosting::TaskHost;
pub use kernel_grants::{KernelGrant, LeaseBasis, Renaming, Shown};
pub use locks::{InTheWay, LockDone, LockRequest, Waited};
pub use nodes::NodeReport;
pub(crate) use pages::Seen;
use peers::Peers;
pub(crate) use redundancy::REDUNDANCY;
pub use redundancy::{FileTotals, SafetyReport};
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
pub(crate) struct Cluster {
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
    turns: replay_cache::ReplayCache,
    /// The nodes that it talks to without the metadata engine between.
    peers: OnceLock<Peers>,
    safety: redundancy::Safety,
    hosting: hosting::Hosting,
    /// What its kernel may keep.
    pub(crate) kernel_grants: Arc<kernel_grants::KernelGrants>,
}

impl Cluster {
    /// `store`: where what it writes back is published by renames alone, so that others can shut it out.
    pub(crate) fn new(
        me: Incarnation,
        config: ClusterConfig,
        former: Option<&Membership>,
        store: Option<Arc<DirBacking>>,
    ) -> Self {
        Cluster {
            safety: redundancy::Safety::new(config.repair_rate),
            me,
            started: BootInstant::now(),
            seen: Mutex::new(life::Seen::new(config.lease)),
            store,
            works: Mutex::default(),
            config,
            write_pins: write_pins::WritePins::default(),
            recalls: recalls::Recalls::default(),
            beaten: Mutex::new(BootInstant::now()),
            fenced: AtomicBool::new(false),
            resting: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            heart: Mutex::default(),
            threads: Mutex::default(),
            listens: Mutex::new(former.map(|former| former.listens.clone()).unwrap_or_default()),
            resumed: former.is_some(),
            lock_records: lock_record::LockRecords::default(),
            locks: locks::FileLocks::default(),
            nodes: nodes::Nodes::default(),
            pages: pages::Pages::default(),
            orders: orders::Orders::default(),
            workers: Pool::new(WORKERS, MAX_RECALLS),
            turns: replay_cache::ReplayCache::new(),
            kernel_grants: kernel_grants::KernelGrants::new(),
            peers: OnceLock::new(),
            hosting: hosting::Hosting::default(),
        }
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

impl Node {
    /// Whether this node is one of a cluster.
    pub fn is_clustered(&self) -> bool {
        self.cluster.is_some()
    }

    /// Whether another node owns the file.
    pub(crate) fn is_elsewhere(&self, record: &Record) -> bool {
        let mine = |cluster: &Cluster| cluster.is_mine(record);
        record.owner.is_some() && !self.cluster.as_ref().is_some_and(mine)
    }

    /// The record of an inode: in a cluster as it is now, whatever is cached.
    pub(crate) fn record_now(&self, ino: Ino) -> Result<Arc<Record>> {
        Ok(match self.cluster {
            Some(_) => self.meta.get_now(ino)?,
            None => self.meta.get(ino)?,
        })
    }

    /// Says that this node ends; in good order if it has nothing left to write back.
    pub(crate) fn leave_cluster(&self, in_order: bool) {
        if self.cluster.is_none() || !in_order || self.meta.backlog_len() > 0 {
            return;
        }
        if let Err(error) = self.meta.leave() {
            tracing::warn!(%error, "other nodes will take this one for dead");
        }
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
