//! What a node is told when it starts.

use std::path::PathBuf;
use std::time::Duration;

use forebay_core::cluster::redundancy::Redundancy;
use forebay_core::streams::profile::DeviceProfile;
use forebay_streams::device::Model;

/// Under which name the namespace knows the path of its backing store.
pub(crate) const BACKING_SETTING: &str = "backing";

/// Under which name the namespace of a cluster knows the mark of its backing store.
pub(crate) const STORE_SETTING: &str = "store";

/// How files are streamed.
#[derive(Debug, Clone)]
pub struct StreamsConfig {
    /// The device below the backing store, by which streams are admitted.
    pub profile: DeviceProfile,
    /// Bytes of memory for what is read ahead.
    pub memory: u64,
    /// Bytes of the tiers for beginnings of popular files; 0 for none.
    pub beginnings: u64,
    /// Bytes of the tiers for popular files as a whole; 0 for none.
    pub titles: u64,
    /// Streams that nobody reads for so long give their places back; [`forebay_streams::IDLE`] unless
    /// there is a reason.
    pub idle: Duration,
    /// Take as long for each read as this device would; for tests and demonstrations.
    pub emulate: Option<Model>,
}

/// One tier: a local directory and how much of it Forebay may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierConfig {
    /// The directory; made when missing.
    pub dir: PathBuf,
    /// The bytes that objects on this tier may take up; any reserve is taken off already.
    pub size_bytes: u64,
}

/// When a written file is copied to the backing store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WritebackPolicy {
    /// This long after its last close.
    After(Duration),
    /// At the last close, in the background.
    OnClose,
    /// Before close and fsync return.
    Through,
    /// Only when its room is needed, on `sync` and on `umount`.
    OnEviction,
}

/// What an acknowledged `fsync` survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The death of the daemon and a reboot of the node.
    Local,
    /// The loss of everything local: `fsync` waits for the backing store.
    Backing,
}

/// Which opens may bypass the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passthrough {
    /// None.
    Off,
    /// Reads, and writes in place where room is guaranteed.
    Read,
    /// Every open of a wholly resident file; a tier may be overfilled by it.
    ReadWrite,
}

/// Whether others may change the backing store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coherence {
    /// Compare at open, after the attribute time-out.
    Open,
    /// Nobody else writes to the backing store.
    Exclusive,
}

/// How a node talks to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerConfig {
    /// Where it listens: `host:port` for TCP, or what [`forebay_peer::Address`] knows; port 0 is any
    /// free one.
    pub listen: String,
    /// The file with the secret of the cluster, by which nodes know each other (mutual TLS). Without
    /// one whoever reaches the address is believed.
    pub secret: Option<PathBuf>,
    /// The file with another secret; who has that one is believed, too.
    pub other_secret: Option<PathBuf>,
}

/// Which cluster a node joins, and how it behaves there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The metadata engine: `redis://[user:password@]host:port[,host:port...][/name]`.
    pub address: String,
    /// What people shall see of where this node runs.
    pub host: String,
    /// Replicas of the metadata that must confirm a change.
    pub replicas: u32,
    /// Whether metadata servers that keep nothing on disk will do.
    pub memory_only: bool,
    /// Whether it takes leases of directories in which it alone works.
    pub leases: bool,
    /// A node that shows no sign of life for so long counts as dead.
    pub lease: Duration,
    /// How long an open waits for the owner of the file.
    pub timeout: Duration,
    /// What is kept on other nodes of what is written here.
    pub redundancy: Redundancy,
    /// Bytes a second that are sent to make lost copies again.
    pub repair_rate: u64,
    /// How it talks to the other nodes; `None` for by the metadata engine alone.
    pub peers: Option<PeerConfig>,
}

impl ClusterConfig {
    /// The defaults for an address.
    pub fn new(address: String) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        ClusterConfig {
            address,
            host: host.trim().to_string(),
            replicas: 0,
            memory_only: false,
            leases: true,
            lease: Duration::from_secs(12),
            timeout: Duration::from_secs(20),
            redundancy: Redundancy::None,
            repair_rate: 64 << 20,
            peers: None,
        }
    }
}

/// The configuration of a node. Sizes are in bytes.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The directory of the slow store.
    pub backing: PathBuf,
    /// The tiers, fastest first; at least one.
    pub tiers: Vec<TierConfig>,
    /// Where the metadata engine keeps its files; by default inside the first tier.
    pub state_dir: Option<PathBuf>,
    /// The replacement policy by name.
    pub policy: String,
    /// When written files go to the backing store.
    pub writeback: WritebackPolicy,
    /// What `fsync` promises.
    pub durability: Durability,
    /// Which opens bypass the daemon.
    pub passthrough: Passthrough,
    /// Whether nothing can be changed through the mount.
    pub read_only: bool,
    /// Nothing in the backing store changes while it is mounted: the kernel need not ask for each open.
    pub dataset: bool,
    /// Whether outside changes are looked for.
    pub coherence: Coherence,
    /// How long attributes count as fresh.
    pub attr_timeout: Duration,
    /// How long the kernel may remember which names exist.
    pub entry_timeout: Duration,
    /// Whether reads leave access times as they are.
    pub keep_access_times: bool,
    /// Eviction starts above this share of a tier, in percent.
    pub high_percent: u8,
    /// Eviction ends below this share of a tier, in percent.
    pub low_percent: u8,
    /// The unit of partial residency.
    pub extent_bytes: u64,
    /// Files up to this size are fetched whole before a cold open returns.
    pub fetch_on_open_bytes: u64,
    /// A passthrough writer gets this much room reserved beyond its file.
    pub passthrough_reserve_bytes: u64,
    /// How long a request waits for the backing store.
    pub backing_timeout: Duration,
    /// When no program has asked for anything for so long, memory that only makes answers faster is
    /// given back.
    pub memory_idle: Duration,
    /// Threads that wait for slow devices on behalf of requests.
    pub slow_threads: usize,
    /// Threads that copy files to the backing store.
    pub flush_threads: usize,
    /// Limits for a backing store that can't be throttled otherwise: bytes a second and operations
    /// a second.
    pub throttle: Option<(u64, u64)>,
    /// Bytes that may be fetched ahead along hints and not be used yet; 0 for no fetches ahead.
    pub prefetch_bytes: u64,
    /// How files are streamed; `None` for a node without streams.
    pub streams: Option<StreamsConfig>,
    /// A tier that was in a place before, and is not there any more, is made anew.
    pub create_tier: bool,
    /// The cluster to join; `None` for a node that has its backing store for itself.
    pub cluster: Option<ClusterConfig>,
    /// Where the event log of the steward is recorded, if anywhere. Begins with the start of the node.
    pub event_log: Option<PathBuf>,
}

impl NodeConfig {
    /// The defaults for `backing` with `tiers`.
    pub fn new(backing: PathBuf, tiers: Vec<TierConfig>) -> Self {
        let prefetch_bytes = tiers.first().map_or(0, |tier| tier.size_bytes / 4);
        NodeConfig {
            backing,
            tiers,
            state_dir: None,
            policy: "s3fifo".into(),
            writeback: WritebackPolicy::After(Duration::from_secs(5)),
            durability: Durability::Local,
            passthrough: Passthrough::Read,
            read_only: false,
            dataset: false,
            coherence: Coherence::Open,
            attr_timeout: Duration::from_secs(10),
            entry_timeout: Duration::from_secs(10),
            keep_access_times: false,
            high_percent: 90,
            low_percent: 80,
            extent_bytes: 1 << 20,
            fetch_on_open_bytes: 512 << 10,
            passthrough_reserve_bytes: 256 << 20,
            backing_timeout: Duration::from_secs(30),
            memory_idle: Duration::from_secs(30),
            slow_threads: 32,
            flush_threads: 8,
            throttle: None,
            prefetch_bytes,
            streams: None,
            create_tier: false,
            cluster: None,
            event_log: None,
        }
    }
}
