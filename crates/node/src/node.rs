//! The node itself: its parts, its start and its end.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use forebay_core::steward::{Event, Steward, StewardConfig, TierConfig};
use forebay_core::unit::Bytes;
use forebay_meta::{
    Embedded, EmbeddedOptions, Engine, LeaseOptions, Leased, MetaStore, NodeName, Options, Redis,
    RedisOptions,
};
use forebay_store::backing::BackingStore;
use forebay_store::decorators::{InterceptedBacking, Throttled};
use forebay_store::{DirBacking, StoreIdentity, Tier};
use parking_lot::Mutex;

use crate::cluster::{self, Cluster, Membership};
use crate::config::NodeConfig;
use crate::defects::Defects;
use crate::error::{NodeError, Result};
use crate::kernel::Kernel;
use crate::lifecycle::hand_over::HandOverState;
use crate::lifecycle::members::{self, Expected};
use crate::metrics::Metrics;
use crate::namespace::Namespace;
use crate::pool::{Pool, Urgency};
use crate::requests::handle::Handles;
use crate::requests::hints::Hints;
use crate::residency::room::Room;
use crate::residency::seams::{ColdReads, NoPeers};
use crate::residency::{Given, Residency, TierSlot};
use crate::seams::Upper;
use crate::stream::Streams;
use crate::trace::{EventLog, Tracer};
use crate::writeback::Writeback;
use crate::writeback::reconcile::Reconciler;
use crate::writeback::seams::{AboveWriteback, AllRights, WorkRights};
use crate::writeback::upkeep::Step;

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
    pub(crate) cluster: Option<Cluster>,
    pub(crate) state_dir: PathBuf,
    /// Which directory the backing store is.
    pub(crate) store: StoreIdentity,
}

/// The metadata engine's directory in the state directory.
pub(crate) const METADATA: &str = "meta";

/// Under which name the namespace knows the path of its backing store.
pub(crate) const BACKING_SETTING: &str = "backing";

/// Under which name the namespace of a cluster knows the mark of its backing store.
pub(crate) const STORE_SETTING: &str = "store";

/// Where it notes what it has committed under leases, there.
pub(crate) const LEASES: &str = "leases";

/// Name of this mount among all that share a backing store: the identity of its first tier.
pub(crate) fn owner_of(tier: &dyn Tier) -> String {
    tier.id().to_string()
}

impl Node {
    /// Starts a node on a directory as backing store and directories as tiers: opens the state that
    /// an earlier one left, and recovers what it did not finish.
    ///
    /// # Errors
    /// A tier in use by another daemon, damaged or newer state, a backing store that can't be read.
    pub fn start(config: NodeConfig) -> Result<Arc<Node>> {
        Self::start_after(config, None)
    }

    /// As [`Node::start`], in place of a node that served the same programs until now: what they
    /// have open stays open under the same numbers.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_after(
        config: NodeConfig,
        handed_over: Option<&HandOverState>,
    ) -> Result<Arc<Node>> {
        let mut expected = members::check(&config)?;
        let tiers = open_tiers(&config)?;
        let first = tiers.first().ok_or_else(|| {
            NodeError::Config("at least one tier is needed: give --tier DIR=SIZE".into())
        })?;
        let owner = owner_of(&*first.tier);
        let directory = Arc::new(DirBacking::open(&config.backing, &owner)?);
        directory.claim_private_area()?;
        expected.markable = Some(directory.clone());
        let own: Vec<&dyn Tier> = tiers.iter().map(|slot| &*slot.tier).collect();
        let unbound = match handed_over {
            None => cluster::unbound(&config, &expected),
            Some(_) => Vec::new(),
        };
        // Before the root is looked at, whose times this changes.
        let noted = members::leave_note(&directory, &config, &own);
        let backing: Arc<dyn BackingStore> = directory.clone();
        let backing = match config.throttle {
            None => backing,
            Some((bytes, operations)) => {
                let throttle = Throttled::new(bytes, operations, Duration::ZERO);
                Arc::new(InterceptedBacking::new(backing, Arc::new(throttle)))
            }
        };
        match Self::assemble(config, (tiers, &expected), backing, handed_over) {
            Ok(node) => {
                drop(node.residency.troubles.noted.set(directory));
                Ok(node)
            }
            Err(error) => {
                cluster::unbind(&unbound);
                if noted && let Err(error) = directory.forget_mount(&owner) {
                    tracing::debug!(%error, "the note of the mount stays in the backing store");
                }
                Err(error)
            }
        }
    }

    /// Starts a node on given parts, for tests with faulty ones.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_on(config: NodeConfig, backing: Arc<dyn BackingStore>) -> Result<Arc<Node>> {
        Self::start_between(config, backing, &|tier| tier)
    }

    /// As [`Node::start_on`], on tiers that something else stands in front of.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_between(
        config: NodeConfig,
        backing: Arc<dyn BackingStore>,
        in_front: &dyn Fn(Arc<dyn Tier>) -> Arc<dyn Tier>,
    ) -> Result<Arc<Node>> {
        let expected = members::check(&config)?;
        let mut tiers = open_tiers(&config)?;
        for slot in &mut tiers {
            slot.tier = in_front(slot.tier.clone());
        }
        Self::assemble(config, (tiers, &expected), backing, None)
    }

    /// A node on an empty namespace whose tiers are not looked at, for a rebuild.
    pub(crate) fn start_for_rebuild(config: NodeConfig) -> Result<Arc<Node>> {
        let tiers = open_tiers(&config)?;
        let owner = tiers.first().map(|first| owner_of(&*first.tier)).unwrap_or_default();
        let backing = Arc::new(DirBacking::open(&config.backing, &owner)?);
        let expected = Expected::of(&backing)?;
        let node = Self::build(config, (tiers, &expected), backing, None)?;
        node.writeback.import_root()?;
        Ok(node)
    }

    fn assemble(
        config: NodeConfig,
        tiers: (Vec<TierSlot>, &Expected),
        backing: Arc<dyn BackingStore>,
        handed_over: Option<&HandOverState>,
    ) -> Result<Arc<Node>> {
        let is_new = handed_over.is_none() && !tiers.1.is_known();
        let node = Self::build(config, tiers, backing, handed_over)?;
        match node.begin(handed_over) {
            Ok(()) => Ok(node),
            Err(error) => {
                // It has nothing that anybody could wait for.
                node.leave_cluster(is_new);
                Err(error)
            }
        }
    }

    /// Takes up what an earlier node left, and serves.
    fn begin(self: &Arc<Self>, handed_over: Option<&HandOverState>) -> Result<()> {
        self.note_members(false)?;
        self.start_heartbeat();
        self.writeback.import_root()?;
        match handed_over {
            None => {
                self.recover(&HashSet::new())?;
                self.writeback.look_at_a_replaced_root()?;
            }
            Some(handed_over) => self.resume(handed_over)?,
        }
        self.tell_set_aside_work();
        if !self.config.read_only {
            self.writeback.look_at_rights();
            self.writeback.look_at_names();
        }
        self.writeback.note_all_moved();
        self.writeback.take_up_written_entries()?;
        self.writeback.take_up_rest_gone()?;
        self.writeback.start_reconciler();
        self.start_ticker();
        self.start_peers()?;
        self.start_cluster_life();
        self.start_keeping_copies();
        self.start_cluster_locks();
        Ok(())
    }

    fn build(
        config: NodeConfig,
        (tiers, expected): (Vec<TierSlot>, &Expected),
        backing: Arc<dyn BackingStore>,
        handed_over: Option<&HandOverState>,
    ) -> Result<Arc<Node>> {
        let generation = handed_over.map_or(0, HandOverState::next_generation);
        let former = handed_over.and_then(|handed_over| handed_over.membership.as_ref());
        let state_dir = make_state_dir(&config, &tiers)?;
        let meta = open_namespace(&config, (&state_dir, &tiers, expected), former)?;
        expected.confirm(&meta, &state_dir, &tiers)?;
        let cluster = meta.member().zip(config.cluster.clone());
        let cluster =
            cluster.map(|(me, config)| Cluster::new(me, config, former, expected.markable.clone()));
        if let Some(cluster) = &cluster {
            meta.rely(cluster.kernel_grants.clone());
            cluster.enter_store()?;
        }
        let store = bind(&meta, &config, (&state_dir, &tiers, expected), former)?;
        let spills_noted = meta.has_setting_like(crate::residency::spill::SETTING)?;
        let decisions = steward_config(&config);
        let steward =
            Steward::new(&decisions).map_err(|error| NodeError::Config(error.to_string()))?;
        let event_log = config.event_log.as_deref();
        let event_log = event_log.map(|path| EventLog::create(path, &decisions)).transpose()?;
        let streams = config.streams.as_ref();
        let streams =
            streams.map(|streams| Streams::start(streams, &config.backing, config.extent_bytes));
        let streams = streams.transpose()?;
        let slow = Arc::new(Pool::new(config.slow_threads, 4096));
        let reconciler = Reconciler::load(&state_dir);
        let defects = Arc::new(Defects::known_from(handed_over));
        let (config, meta) = (Arc::new(config), Arc::new(meta));
        Ok(Arc::new_cyclic(|this: &Weak<Node>| {
            let given = Given {
                config,
                meta,
                backing,
                slow,
                defects,
                state_dir,
                peers: match cluster.is_some() {
                    true => Box::new(Upper(this.clone())),
                    false => Box::new(NoPeers),
                },
                above: Box::new(Upper(this.clone())),
                cold: streams.clone().map(|streams| streams as Arc<dyn ColdReads>),
            };
            let residency = Residency::new(given, tiers, (steward, event_log), spills_noted);
            let rights: Arc<dyn WorkRights> = match cluster.is_some() {
                true => Arc::new(Upper(this.clone())),
                false => Arc::new(AllRights),
            };
            let above = (rights, Box::new(Upper(this.clone())) as Box<dyn AboveWriteback>);
            let writeback = Writeback::new(residency, reconciler, store, above);
            Node::of(this, writeback, (streams, cluster), generation)
        }))
    }

    /// A node that has done nothing yet.
    pub(crate) fn of(
        this: &Weak<Node>,
        writeback: Arc<Writeback>,
        (streams, cluster): (Option<Arc<Streams>>, Option<Cluster>),
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
        if let Some(cluster) = &self.cluster {
            cluster.kernel_grants.attach(kernel.clone());
        }
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

    /// A thread that lets the steward see time pass.
    pub(crate) fn start_ticker(self: &Arc<Self>) {
        self.writeback.note_backing_place();
        let this = self.this.clone();
        let ticker = thread::Builder::new().name("steward".into()).spawn(move || {
            let mut switches = 0;
            while let Some(node) = this.upgrade() {
                if node.stopping.load(Ordering::Acquire) {
                    break;
                }
                node.residency.decide(Event::Tick);
                node.log_switches(&mut switches);
                node.residency.perform_put_off();
                node.residency.drop_spills_later();
                node.writeback.upkeep_now_and_then();
                node.expire_hints();
                node.expire_listings();
                if node.writeback.moved.is_due() {
                    node.later(|node| node.writeback.keep_up(Step::Restamp));
                }
                if let Some(log) = &node.residency.event_log {
                    log.write_out();
                }
                drop(node);
                thread::sleep(Duration::from_millis(100));
            }
        });
        match ticker {
            Ok(handle) => self.threads.lock().push(handle),
            Err(error) => tracing::error!(%error, "no thread for the steward"),
        }
    }

    /// Lets go of the namespace and the tiers, so that another node can take them over: nothing
    /// that this one does later changes either.
    pub(crate) fn let_go_of_state(&self) {
        self.meta.close();
        for slot in &self.residency.tiers {
            *slot.lock.lock() = None;
        }
    }

    /// Ends all work that is in hand and makes the state durable. What is not in the backing store
    /// stays on the tiers for the next start. Waits at most `limit`; says whether all ended. What did
    /// not is logged.
    pub fn stop(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        if let Some(cluster) = &self.cluster {
            cluster.close_to_peers();
        }
        if let Some(streams) = &self.streams {
            // Nobody plays any more; whoever waits for a turn goes on.
            streams.stop();
        }
        let unsettled = self.residency.settle_all(until);
        self.writeback.restamp_moved();
        // While the reconciler can still take away what they had spilled.
        self.residency.discard_removed();
        self.stopping.store(true, Ordering::Release);
        self.writeback.stop_reconciler();
        self.residency.discard_removed();
        self.residency.write_accesses();
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let mut ended = self.writeback.flushers.close(left(until)) & self.slow.close(left(until));
        ended &= self.streams.as_ref().is_none_or(|streams| streams.readers().close(left(until)));
        ended &= self.cluster.as_ref().is_none_or(|cluster| cluster.close(left(until)));
        for handle in self.threads.lock().drain(..) {
            // One that hangs in the backing store is left behind.
            while !handle.is_finished() && Instant::now() < until {
                thread::sleep(Duration::from_millis(5));
            }
            ended &= handle.is_finished();
        }
        if let Some(log) = &self.residency.event_log {
            log.write_out();
        }
        if !ended || unsettled > 0 {
            tracing::warn!(
                files_in_use = unsettled,
                threads_left = !ended,
                "the backing store did not answer in time; the next start goes on from the tiers"
            );
            ended = false;
        }
        let tidied = || {
            self.wanted_spills()?;
            Ok::<_, NodeError>(self.backing.tidy()?)
        };
        if ended && let Err(error) = tidied() {
            tracing::debug!(%error, "the private area stays in the backing store");
        }
        if let Err(error) =
            self.meta.sync().map_err(NodeError::from).and_then(|()| self.note_clean_end(ended))
        {
            tracing::error!(%error, "the state may not survive a reboot");
        } else if self.residency.has_tiers()
            && let Err(error) = self.note_members_at_end(ended)
        {
            tracing::warn!(%error, "the tiers count as having files that the backing store lacks");
        }
        if let Some(cluster) = &self.cluster {
            cluster.end_heartbeat(left(until));
        }
        self.leave_cluster(ended);
        if let Some(cluster) = &self.cluster {
            // Nobody has to wait for what this node worked in.
            self.meta.close();
            cluster.end();
        }
        ended
    }
}

/// Where the state is, which is made if need be.
fn make_state_dir(config: &NodeConfig, tiers: &[TierSlot]) -> Result<PathBuf> {
    let dir = match (&config.state_dir, tiers.first()) {
        (Some(dir), _) => dir.clone(),
        (None, Some(first)) => first.tier.path().join("state"),
        (None, None) => return Err(NodeError::Config("no tier".into())),
    };
    drop(forebay_store::make_own(&dir)?);
    Ok(dir)
}

fn open_tiers(config: &NodeConfig) -> Result<Vec<TierSlot>> {
    let mut tiers = Vec::new();
    for wanted in &config.tiers {
        let tier = forebay_store::tier::DirTier::open(&wanted.dir)?;
        let lock = tier.lock()?;
        tiers.push(TierSlot {
            tier: Arc::new(tier),
            room: Room::new(wanted.size_bytes),
            health: crate::residency::failed::Health::default(),
            lock: Mutex::new(Some(lock)),
        });
    }
    Ok(tiers)
}

fn open_namespace(
    config: &NodeConfig,
    (state_dir, tiers, expected): (&Path, &[TierSlot], &Expected),
    former: Option<&Membership>,
) -> Result<MetaStore> {
    let Some(cluster) = &config.cluster else {
        cluster::bind_to_namespace(state_dir, None)?;
        return open_meta(&state_dir.join(METADATA));
    };
    let redis = RedisOptions {
        replicas: cluster.replicas,
        memory_only: cluster.memory_only,
        ..RedisOptions::default()
    };
    let engine = Redis::open(&cluster.address, &redis).map_err(forebay_meta::Error::from)?;
    if former.is_none() {
        engine.abandon(forebay_meta::sessions_left(&state_dir.join(LEASES)));
    }
    // One that goes on for programs does so with the servers that there are.
    if former.is_none() {
        engine.check_replicas().map_err(forebay_meta::Error::from)?;
        cluster::admit(&engine, config, cluster, (state_dir, &id_of(tiers)), expected)?;
    }
    let engine: Box<dyn Engine> = match cluster.leases {
        true => {
            let leases = LeaseOptions {
                timeout: cluster.lease,
                who: format!("the node on {}", cluster.host),
                journal: Some(state_dir.join(LEASES)),
                outlived: former.is_some(),
                ..LeaseOptions::default()
            };
            let leased = Leased::open(Arc::new(engine), leases);
            Box::new(leased.map_err(forebay_meta::Error::from)?)
        }
        false => Box::new(engine),
    };
    let node = Some(NodeName { id: id_of(tiers), address: cluster.host.clone() });
    let resume = former.and_then(Membership::incarnation);
    let options = Options { node, resume, ..Options::default() };
    Ok(MetaStore::open(engine, &options)?)
}

/// What tells this node from others.
fn id_of(tiers: &[TierSlot]) -> String {
    tiers.first().map(|first| owner_of(&*first.tier)).unwrap_or_default()
}

fn open_meta(dir: &Path) -> Result<MetaStore> {
    std::fs::create_dir_all(dir)?;
    let engine =
        Embedded::open(dir, &EmbeddedOptions::default()).map_err(forebay_meta::Error::from)?;
    Ok(MetaStore::open(Box::new(engine), &Options::default())?)
}

/// A tier belongs to one backing store: with another one under it, names would be mixed up.
fn bind_to_backing(meta: &MetaStore, backing: &Path) -> Result<()> {
    const SETTING: &str = BACKING_SETTING;
    use std::os::unix::ffi::OsStrExt;
    let path = std::fs::canonicalize(backing)?;
    match meta.setting(SETTING)? {
        None => Ok(meta.set_setting(SETTING, path.as_os_str().as_bytes())?),
        Some(known) if known == path.as_os_str().as_bytes() => Ok(()),
        Some(known) => Err(NodeError::Config(format!(
            "this tier holds the cache of {}: mount that, or use another tier directory for {}",
            String::from_utf8_lossy(&known),
            path.display()
        ))),
    }
}

/// Ties the namespace, the tiers and the backing store to each other. Which directory that is.
fn bind(
    meta: &MetaStore,
    config: &NodeConfig,
    (state_dir, tiers, expected): (&Path, &[TierSlot], &Expected),
    former: Option<&Membership>,
) -> Result<StoreIdentity> {
    bind_to_backing(meta, &config.backing)?;
    let store = bind_to_store(meta, expected, config)?;
    if let Some(joined) = &config.cluster {
        if former.is_none() {
            cluster::note_secret(meta, joined, &id_of(tiers))?;
        }
        // Last, when nothing is left that speaks against it.
        cluster::bind_to_namespace(state_dir, Some(meta))?;
    }
    Ok(store)
}

/// The backing store below the path is marked, so that it is known again. All nodes of a cluster must
/// have the same.
fn bind_to_store(
    meta: &MetaStore,
    expected: &Expected,
    config: &NodeConfig,
) -> Result<StoreIdentity> {
    let shared = config.cluster.is_some();
    let known = if shared { meta.setting(STORE_SETTING)? } else { None };
    check_shared_store(known.as_deref(), expected, config)?;
    let Some(directory) = &expected.markable else { return Ok(expected.store.clone()) };
    let store = directory.marked_identity()?;
    if shared && !store.mark.is_empty() {
        meta.set_setting(STORE_SETTING, store.mark.as_bytes())?;
    }
    Ok(store)
}

/// Refuses a backing store that is not that of the other nodes, which is known by its mark.
pub(crate) fn check_shared_store(
    known: Option<&[u8]>,
    expected: &Expected,
    config: &NodeConfig,
) -> Result<()> {
    // Again, after the setting: another node may have made both in this moment.
    let found = match &expected.markable {
        Some(directory) if config.cluster.is_some() => directory.identity()?,
        _ => expected.store.clone(),
    };
    match known.filter(|known| *known != found.mark.as_bytes()) {
        None => Ok(()),
        Some(known) => Err(NodeError::BadState(format!(
            "{0} on this node is not the backing store of the cluster, though it has its path: mount \
             its file system there. If it is the right one and has lost its mark, put it back: \
             `echo forebay-store 1 {1} > {0}/.forebay/store`",
            config.backing.display(),
            String::from_utf8_lossy(known),
        ))),
    }
}

fn steward_config(config: &NodeConfig) -> StewardConfig {
    let share = |size: u64, percent: u8| Bytes(size / 100 * u64::from(percent));
    let tiers = config
        .tiers
        .iter()
        .map(|tier| TierConfig {
            capacity: Bytes(tier.size_bytes),
            high: share(tier.size_bytes, config.high_percent),
            low: share(tier.size_bytes, config.low_percent),
        })
        .collect();
    let mut decisions = StewardConfig::new(tiers, &config.policy);
    decisions.prefetch = Bytes(config.prefetch_bytes);
    // Parts of files come and go in whole extents.
    decisions.options.chunk = decisions.options.chunk.next_multiple_of(config.extent_bytes.max(1));
    decisions
}
