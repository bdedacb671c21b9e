//! The start of a node: its state is opened, its parts are put together, and its threads begin.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use forebay_core::steward::{Event, Steward, StewardConfig, TierConfig};
use forebay_core::unit::Bytes;
use forebay_meta::{
    Embedded, EmbeddedOptions, Engine, LeaseOptions, Leased, MetaStore, NodeName, Options, Redis,
    RedisOptions,
};
use forebay_store::backing::BackingStore;
use forebay_store::decorators::{InterceptedBacking, Throttled};
use forebay_store::tier::DirTier;
use forebay_store::{DirBacking, StoreIdentity, Tier, TierLock};
use parking_lot::Mutex;

use crate::cluster::{self, Cluster, Joined};
use crate::config::{BACKING_SETTING, NodeConfig, STORE_SETTING};
use crate::defects::Defects;
use crate::defects::Step;
use crate::error::{NodeError, Result};
use crate::hand_over_state::{HandOverState, Membership};
use crate::lifecycle::members::{self, Expected};
use crate::lifecycle::{admission, former};
use crate::node::{METADATA, Node, OptionalParts, owner_of};
use crate::pool::Pool;
use crate::residency::failed_syncs::FailedSyncs;
use crate::residency::left_behind::LeftBehind;
use crate::residency::room::Room;
use crate::residency::seams::{ColdReads, NoPeers};
use crate::residency::{Decider, Given, Residency, TierSlot};
use crate::seams::{Others, Upper};
use crate::serving::Serve;
use crate::stream::Streams;
use crate::trace::EventLog;
use crate::writeback::reconcile::Reconciler;
use crate::writeback::seams::{AllRights, WorkRights};
use crate::writeback::{Writeback, WritebackSeams};

/// Where it notes what it has committed under leases, there.
const LEASES: &str = "leases";

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
        former::refuse_half_made_for(&config)?;
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
            None => admission::unbound(&config, &expected),
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
        match Self::assemble(
            config,
            OpenedTiers { slots: tiers, expected: &expected },
            backing,
            handed_over,
        ) {
            Ok(node) => {
                drop(node.residency.troubles.noted.set(directory));
                Ok(node)
            }
            Err(error) => {
                admission::unbind(&unbound);
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
        former::refuse_half_made_for(&config)?;
        let expected = members::check(&config)?;
        let mut tiers = open_tiers(&config)?;
        for slot in &mut tiers {
            slot.tier = in_front(slot.tier.clone());
        }
        Self::assemble(config, OpenedTiers { slots: tiers, expected: &expected }, backing, None)
    }

    /// A node on an empty namespace whose tiers, those of `config`, are locked and not looked at, for a
    /// rebuild.
    pub(crate) fn start_for_rebuild(
        config: NodeConfig,
        locked: Vec<(DirTier, TierLock)>,
    ) -> Result<Arc<Node>> {
        let sizes = config.tiers.iter().map(|tier| tier.size_bytes);
        let tiers = locked.into_iter().zip(sizes);
        let tiers: Vec<_> = tiers.map(|((tier, lock), size)| slot(tier, lock, size)).collect();
        let owner = tiers.first().map(|first| owner_of(&*first.tier)).unwrap_or_default();
        let backing = Arc::new(DirBacking::open(&config.backing, &owner)?);
        let expected = Expected::of(&backing)?;
        let node =
            Self::build(config, OpenedTiers { slots: tiers, expected: &expected }, backing, None)?;
        node.writeback.import_root()?;
        Ok(node)
    }

    fn assemble(
        config: NodeConfig,
        tiers: OpenedTiers<'_>,
        backing: Arc<dyn BackingStore>,
        handed_over: Option<&HandOverState>,
    ) -> Result<Arc<Node>> {
        let is_new = handed_over.is_none() && !tiers.expected.is_known();
        let node = Self::build(config, tiers, backing, handed_over)?;
        match node.begin(handed_over) {
            Ok(()) => Ok(node),
            Err(error) => {
                // It has nothing that anybody could wait for.
                node.tell_cluster(|cluster| cluster.leave(is_new));
                Err(error)
            }
        }
    }

    /// Names in the log what an earlier daemon died at.
    fn tell_set_aside_work(&self) {
        for work in self.defects.known() {
            let path =
                self.meta.path(forebay_types::Ino(work.number)).ok().flatten().unwrap_or_default();
            tracing::error!(
                path = %String::from_utf8_lossy(&path), number = work.number,
                "a daemon ended by a defect of Forebay at {}: that is not tried again before the next \
                 mount or `forebay upgrade`. What is not written back stays on its tier and can be \
                 read and copied; please report the defect with this log",
                work.kind().told()
            );
        }
    }

    /// Takes up what an earlier node left, and serves.
    fn begin(self: &Arc<Self>, handed_over: Option<&HandOverState>) -> Result<()> {
        self.note_members(members::StoreHas::NotKnown)?;
        self.tell_cluster(Cluster::start_heartbeat);
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
        if let Some(cluster) = &self.cluster {
            cluster.start_peers(Arc::new(Serve::of(self.this.clone())))?;
            cluster.start_cluster_life();
            cluster.start_keeping_copies();
            cluster.start_cluster_locks();
        }
        Ok(())
    }

    fn build(
        config: NodeConfig,
        OpenedTiers { slots: tiers, expected }: OpenedTiers<'_>,
        backing: Arc<dyn BackingStore>,
        handed_over: Option<&HandOverState>,
    ) -> Result<Arc<Node>> {
        let generation = handed_over.map_or(0, HandOverState::next_generation);
        let former = handed_over.and_then(|handed_over| handed_over.membership.as_ref());
        let state_dir = make_state_dir(&config, &tiers)?;
        let meta = open_namespace(
            &config,
            Members { state_dir: &state_dir, tiers: &tiers, expected },
            former,
        )?;
        expected.confirm(&meta, &state_dir, &tiers)?;
        let join = |(me, config)| Joined::new(me, config, former, expected.markable.clone());
        let joined = meta.member().zip(config.cluster.clone()).map(join);
        if let Some(joined) = &joined {
            meta.rely(joined.kernel_grants.clone());
            joined.enter_store()?;
        }
        let store = bind(
            &meta,
            &config,
            Members { state_dir: &state_dir, tiers: &tiers, expected },
            former,
        )?;
        let spills_noted = meta.has_setting_like(crate::residency::spill::SETTING)?;
        let decisions = steward_config(&config);
        let steward =
            Steward::new(&decisions).map_err(|error| NodeError::Config(error.to_string()))?;
        let log = |path| EventLog::create(path, &decisions);
        let event_log = config.event_log.as_deref().map(log).transpose()?;
        let streams = start_streams(&config)?;
        let slow = Arc::new(Pool::new(config.slow_threads, 4096));
        let reconciler = Reconciler::load(&state_dir);
        let (left_behind, failed_syncs) =
            (LeftBehind::load(&state_dir)?, FailedSyncs::load(&state_dir)?);
        let defects = Arc::new(Defects::known_from(handed_over.map_or(&[], |left| &left.defects)));
        let (config, meta) = (Arc::new(config), Arc::new(meta));
        Ok(Arc::new_cyclic(|this: &Weak<Node>| {
            let below = |cluster: Option<&Weak<Cluster>>| {
                let given = Given {
                    config,
                    meta,
                    backing,
                    slow,
                    defects,
                    state_dir,
                    left_behind,
                    failed_syncs,
                    peers: match cluster {
                        Some(cluster) => Box::new(Others(cluster.clone())),
                        None => Box::new(NoPeers),
                    },
                    above: Box::new(Upper(this.clone())),
                    cold: streams.clone().map(|streams| streams as Arc<dyn ColdReads>),
                };
                let residency =
                    Residency::new(given, tiers, Decider { steward, event_log }, spills_noted);
                let rights: Arc<dyn WorkRights> = match cluster {
                    Some(cluster) => Arc::new(Others(cluster.clone())),
                    None => Arc::new(AllRights),
                };
                let above = WritebackSeams { rights, above: Box::new(Upper(this.clone())) };
                Writeback::new(residency, reconciler, store, above)
            };
            let (writeback, cluster) = match joined {
                None => (below(None), None),
                Some(joined) => {
                    let cluster = Cluster::new(joined, |cluster| below(Some(cluster)));
                    (cluster.writeback.clone(), Some(cluster))
                }
            };
            Node::of(this, writeback, OptionalParts { streams, cluster }, generation)
        }))
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
                node.writeback.write_conflicts();
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
            Err(error) => tracing::error!(
                %error,
                "no thread for the steward's ticks and the upkeep: what was put off is not done. \
                 Raise the limit of threads, and mount again"
            ),
        }
    }
}

/// Where the state is, which is made if need be.
fn make_state_dir(config: &NodeConfig, tiers: &[TierSlot]) -> Result<PathBuf> {
    let dir = match (&config.state_dir, tiers.first()) {
        (Some(dir), _) => dir.clone(),
        (None, Some(first)) => first.tier.path().join("state"),
        (None, None) => return Err(NodeError::Config("no tier".into())),
    };
    drop(forebay_store::make_own(&dir).map_err(|error| error.or_read_only(&dir))?);
    Ok(dir)
}

fn open_tiers(config: &NodeConfig) -> Result<Vec<TierSlot>> {
    let mut tiers = Vec::new();
    for wanted in &config.tiers {
        let tier = DirTier::open(&wanted.dir)?;
        let lock = tier.lock()?;
        tiers.push(slot(tier, lock, wanted.size_bytes));
    }
    Ok(tiers)
}

fn slot(tier: DirTier, lock: TierLock, size_bytes: u64) -> TierSlot {
    TierSlot {
        tier: Arc::new(tier),
        room: Room::new(size_bytes),
        health: crate::residency::failed::Health::default(),
        in_use: Mutex::default(),
        lock: Mutex::new(Some(lock)),
    }
}

/// The tiers of a mount that are open, and what is known of them and of the backing store.
struct OpenedTiers<'a> {
    slots: Vec<TierSlot>,
    expected: &'a Expected,
}

/// As [`OpenedTiers`], with the directory of the state in one of them.
#[derive(Clone, Copy)]
struct Members<'a> {
    state_dir: &'a Path,
    tiers: &'a [TierSlot],
    expected: &'a Expected,
}

fn open_namespace(
    config: &NodeConfig,
    Members { state_dir, tiers, expected }: Members<'_>,
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
    // One that goes on for programs does so with the servers that there are.
    if former.is_none() {
        engine.check_replicas().map_err(forebay_meta::Error::from)?;
        admission::admit(&engine, config, cluster, state_dir, &id_of(tiers), expected)?;
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

fn start_streams(config: &NodeConfig) -> Result<Option<Arc<Streams>>> {
    let streams = config.streams.as_ref();
    let streams =
        streams.map(|streams| Streams::start(streams, &config.backing, config.extent_bytes));
    streams.transpose()
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
    Members { state_dir, tiers, expected }: Members<'_>,
    former: Option<&Membership>,
) -> Result<StoreIdentity> {
    bind_to_backing(meta, &config.backing)?;
    let store = bind_to_store(meta, expected, config)?;
    if let Some(joined) = &config.cluster {
        if former.is_none() {
            admission::note_secret(meta, joined, &id_of(tiers))?;
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
