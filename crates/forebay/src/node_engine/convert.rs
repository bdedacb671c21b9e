//! Between the command line's types and the node's.

use std::ffi::OsString;
use std::path::PathBuf;

use forebay::config::{self, MountConfig, SpaceSize};
use forebay::control::{ControlError, ControlResult, ErrorKind};
use forebay_fuse::Transport;
use forebay_node::{
    ClusterConfig, Coherence, Durability, Membership, NodeConfig, NodeError, Passthrough,
    PeerConfig, Redundancy, TierConfig, WritebackPolicy,
};

use super::streams;

/// How requests come from the kernel. The rings have a thread for each CPU, so one thread means that
/// there are none.
pub fn transport(config: &MountConfig) -> Transport {
    match config.transport {
        _ if config.threads == 1 => Transport::Classic,
        config::Transport::Auto => Transport::Auto,
        config::Transport::Classic => Transport::Classic,
        config::Transport::Uring => Transport::Uring,
    }
}

/// What the node is told.
pub fn node_config(config: &MountConfig) -> ControlResult<NodeConfig> {
    let tiers =
        config.tiers.iter().map(|tier| usable(tier, config)).collect::<ControlResult<Vec<_>>>()?;
    let largest = tiers.iter().map(|tier| tier.size_bytes).max().unwrap_or(0);
    let fastest = tiers.first().map_or(0, |tier| tier.size_bytes);
    let defaults = NodeConfig::new(config.backing.clone(), tiers);
    let node_config = NodeConfig {
        state_dir: config.state_dir_given.then(|| config.state_dir.clone()),
        policy: config.policy.clone(),
        writeback: match config.writeback {
            config::Writeback::After(delay) => WritebackPolicy::After(delay),
            config::Writeback::Close => WritebackPolicy::OnClose,
            config::Writeback::Through => WritebackPolicy::Through,
            config::Writeback::Evict => WritebackPolicy::OnEviction,
        },
        durability: match config.durability {
            config::Durability::Local => Durability::Local,
            config::Durability::Backing => Durability::Backing,
        },
        passthrough: match config.passthrough {
            config::Passthrough::Off => Passthrough::Off,
            config::Passthrough::Read => Passthrough::Read,
            config::Passthrough::ReadWrite => Passthrough::ReadWrite,
        },
        read_only: config.read_only,
        dataset: config.dataset,
        create_tier: config.create_tier,
        coherence: match config.coherence {
            config::Coherence::Open => Coherence::Open,
            config::Coherence::Exclusive => Coherence::Exclusive,
        },
        attr_timeout: config.attr_timeout,
        entry_timeout: config.entry_timeout,
        keep_access_times: config.noatime,
        high_percent: percent(config.high_mark),
        low_percent: percent(config.low_mark),
        extent_bytes: config.extent_size,
        prefetch_bytes: config.prefetch.of(fastest).min(fastest),
        streams: streams::config(config, fastest)?,
        event_log: config.event_log.clone(),
        backing_timeout: config.backing_timeout,
        passthrough_reserve_bytes: defaults
            .passthrough_reserve_bytes
            .min(largest / 64)
            .max(1 << 20),
        throttle: config
            .throttle
            .map(|limit| (limit.bytes_per_second, limit.iops.unwrap_or(u64::MAX))),
        ..defaults
    };
    match &config.cluster {
        None => Ok(node_config),
        Some(cluster) => in_cluster(node_config, cluster),
    }
}

/// Where a cluster's metadata are, which may be written in a file.
pub fn cluster_address(given: &str) -> ControlResult<String> {
    let Some(path) = given.strip_prefix("file:") else { return Ok(given.to_owned()) };
    let text = std::fs::read_to_string(path).map_err(|error| {
        ControlError::new(ErrorKind::Usage, format!("--cluster file:{path}: {error}"))
    })?;
    Ok(text.trim().to_owned())
}

/// Fills in what the nodes of the cluster have agreed on and this one was not told, or what the daemon
/// `before` this one of the mount went by. Then the servers are not asked: what that one has leased of
/// them nobody gives back until this one has taken its place, and others would take it for dead.
///
/// # Errors
/// If the servers do not answer; if this node can't do what was agreed on.
pub fn agreed(config: &MountConfig, before: Option<&Membership>) -> ControlResult<MountConfig> {
    let mut config = config.clone();
    let Some(cluster) = &mut config.cluster else { return Ok(config) };
    if cluster.replicas.is_some() && cluster.redundancy.is_some() {
        return Ok(config);
    }
    if let Some((replicas, level)) = before.and_then(Membership::agreed) {
        cluster.replicas = cluster.replicas.or(Some(replicas));
        cluster.redundancy = cluster.redundancy.or(Some(level));
        return Ok(config);
    }
    let address = cluster_address(&cluster.address)?;
    let terms = forebay_node::cluster_terms(&address).map_err(|error| control_error(&error))?;
    cluster.replicas = cluster.replicas.or(terms.replicas);
    cluster.redundancy = cluster.redundancy.or(terms.redundancy);
    match cluster.redundancy {
        Some(level) if level != Redundancy::None && cluster.listen.is_none() => {
            Err(ControlError::new(
                ErrorKind::Usage,
                format!(
                    "the nodes of this cluster keep what is written on others ({level}): give \
                     --cluster-listen and --cluster-secret, or --redundancy none"
                ),
            ))
        }
        _ => Ok(config),
    }
}

/// A node of a cluster knows who else changes the backing store: the other nodes. What the kernel may
/// do by itself others have to be told of, so it may where they can ask.
fn in_cluster(config: NodeConfig, given: &config::ClusterSettings) -> ControlResult<NodeConfig> {
    let address = cluster_address(&given.address)?;
    let cluster = ClusterConfig {
        timeout: config.backing_timeout.mul_f64(0.6),
        replicas: given.replicas.unwrap_or(0),
        leases: given.leases,
        redundancy: given.redundancy.unwrap_or(Redundancy::None),
        repair_rate: given.repair_rate,
        peers: given.listen.clone().map(|listen| PeerConfig {
            listen,
            secret: given.secret.clone(),
            other_secret: given.other_secret.clone(),
        }),
        ..ClusterConfig::new(address)
    };
    Ok(NodeConfig {
        passthrough: if given.listen.is_some() { config.passthrough } else { Passthrough::Off },
        coherence: Coherence::Exclusive,
        cluster: Some(cluster),
        ..config
    })
}

fn percent(share: f64) -> u8 {
    // Between 0 and 100 by the checks of the configuration.
    share.round() as u8
}

/// What files may take of a tier: its size without the reserve.
fn usable(tier: &config::TierConfig, config: &MountConfig) -> ControlResult<TierConfig> {
    let size = tier_size(tier)?;
    let size_bytes = size.saturating_sub(config.reserve.of(size));
    if size_bytes == 0 {
        return Err(ControlError::new(
            ErrorKind::Usage,
            format!("--reserve {}: leaves nothing of tier {}", config.reserve, tier.dir.display()),
        ));
    }
    Ok(TierConfig { dir: tier.dir.clone(), size_bytes })
}

/// The size of a tier in bytes.
///
/// # Errors
/// When its file system can't be looked at.
pub fn tier_size(tier: &config::TierConfig) -> ControlResult<u64> {
    Ok(match tier.size {
        SpaceSize::Bytes(bytes) => bytes,
        SpaceSize::Percent(share) => {
            let exists = tier.dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(&tier.dir);
            let usage = rustix::fs::statvfs(exists).map_err(|error| {
                ControlError::new(ErrorKind::Failed, format!("{}: {error}", tier.dir.display()))
            })?;
            ((usage.f_blocks * usage.f_frsize) as f64 * share / 100.0) as u64
        }
    })
}

/// A node's error as it is told to whoever asked.
pub fn control_error(error: &NodeError) -> ControlError {
    use forebay_node::{EngineError, MetaError, StoreError};
    let kind = match error {
        NodeError::Store(StoreError::Locked { .. })
        | NodeError::NodeLives { .. }
        | NodeError::Meta(MetaError::Engine(EngineError::InUse { .. })) => ErrorKind::Locked,
        NodeError::Store(
            StoreError::Foreign { .. }
            | StoreError::Untrusted { .. }
            | StoreError::ReadOnly { .. }
            | StoreError::Version { .. }
            | StoreError::Damaged { .. },
        )
        | NodeError::Meta(
            MetaError::Corrupt { .. }
            | MetaError::NewerFormat { .. }
            | MetaError::HeldBack { .. }
            | MetaError::Engine(EngineError::Damaged { .. }),
        )
        | NodeError::Config(_)
        | NodeError::BadState(_) => ErrorKind::BadState,
        NodeError::Store(StoreError::SmallAttributes { .. }) => ErrorKind::Unsupported,
        _ => ErrorKind::Failed,
    };
    ControlError::new(kind, error.to_string())
}

/// Why the front could not be set up.
pub fn mount_error(error: &fusewire::Error) -> ControlError {
    ControlError::new(ErrorKind::Unsupported, error.to_string())
}

/// A path for JSON.
pub fn wire_path(bytes: Vec<u8>) -> forebay::control::WirePath {
    let path: PathBuf = <OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes).into();
    path.into()
}
