//! What a daemon answers about its cluster, and what it does when it is told to leave.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use forebay::ClusterSetUp;
use forebay::config::{ClusterSettings, MountConfig};
use forebay::control::{
    ClusterLook, ClusterNode, ClusterReply, ClusterRequest, ClusterServer, ClusterStatus,
    ClusterTerms, Control, ControlError, ControlResult, ErrorKind, Forgotten, LostFile, NodeState,
    Peer, Safety, ServerLog, Shutdown,
};
use forebay::migrate::hosts;
use forebay_node::{Cluster, Node, NodeReport, Owned, SafetyReport};

use super::auto::Auto;
use super::control::NodeControl;
use super::convert::{cluster_address, control_error, wire_path};

/// Files that are named to whoever gives a node up.
const NAMED: usize = 10_000;
/// Between two looks whether this node is to leave.
const LOOK: Duration = Duration::from_millis(200);
/// How long a node that is to leave waits for the copies that it has for others to be moved.
const COPIES_LIMIT: Duration = Duration::from_secs(600);

/// Answers.
pub fn answer(
    node: &Node,
    settings: Option<&ClusterSettings>,
    auto: Option<&Auto>,
    request: &ClusterRequest,
) -> ControlResult<ClusterReply> {
    let Some(cluster) = node.cluster() else {
        let why = "this mount is not part of a cluster";
        return Err(ControlError::new(ErrorKind::Unsupported, why));
    };
    match *request {
        ClusterRequest::Status => {
            cluster.refresh().map_err(|error| control_error(&error))?;
            let nodes = cluster.nodes().into_iter().map(describe).collect();
            let safety = Some(describe_safety(cluster.safety()));
            let this = cluster.number();
            Ok(ClusterReply::Status(ClusterStatus { this, nodes, safety }))
        }
        ClusterRequest::Drain { node: number } => {
            cluster.order_to_leave(number).map_err(|error| refused(&error))?;
            Ok(ClusterReply::Done)
        }
        ClusterRequest::Rebalance => {
            let told = cluster.rebalance().map_err(|error| refused(&error))?;
            Ok(ClusterReply::Rebalancing(told))
        }
        ClusterRequest::Forget { node: number, really } => forget(cluster, number, really),
        ClusterRequest::Migrations => match auto {
            Some(auto) => Ok(ClusterReply::Migrations(auto.report())),
            None => Err(ControlError::new(
                ErrorKind::Unsupported,
                "no task is migrated by itself: mount with --auto-migrate on",
            )),
        },
        ClusterRequest::Host { node: number } => host(cluster, settings, number),
    }
}

/// Has another node get ready for a task.
fn host(
    cluster: &Cluster,
    settings: Option<&ClusterSettings>,
    number: u16,
) -> ControlResult<ClusterReply> {
    let found = cluster.nodes().into_iter().find(|report| report.node == number);
    let reach = found.map(|report| report.reach).unwrap_or_default();
    let ask = |body| cluster.ask_for_host(number, body).map_err(|error| refused(&error));
    hosts::ask(settings, &reach, &ask).map(ClusterReply::Host)
}

/// Tasks of other nodes may go on here, if this mount was told so.
pub fn take_tasks(node: &Node, config: &MountConfig) {
    if let Some(cluster) = node.cluster()
        && config.cluster.as_ref().is_some_and(|settings| settings.host_tasks)
    {
        let config = config.clone();
        cluster.take_tasks(Arc::new(move |asker, _| {
            tracing::info!(asker, "a task of another node is to go on here");
            hosts::answer(&config)
        }));
    }
}

/// Stores what the nodes of a cluster are to agree on.
pub fn set_up(address: &str, new: &ClusterSetUp) -> ControlResult<ClusterTerms> {
    let new = forebay_node::NewTerms {
        replicas: new.replicas,
        redundancy: new.redundancy,
        secret: new.secret.clone(),
    };
    let address = cluster_address(address)?;
    let agreed = forebay_node::set_cluster_terms(&address, &new);
    agreed.map(describe_terms).map_err(|error| control_error(&error))
}

/// How a cluster is, seen from outside.
pub fn look_at(address: &str) -> ControlResult<ClusterLook> {
    let found = forebay_node::look_at_cluster(&cluster_address(address)?);
    let found = found.map_err(|error| control_error(&error))?;
    let nodes = found.nodes.into_iter().map(describe).map(|node| match node.state {
        // Whoever looks for a moment can't know.
        NodeState::Dead => ClusterNode { state: NodeState::Silent, ..node },
        _ => node,
    });
    Ok(ClusterLook {
        servers: found.servers.into_iter().map(describe_server).collect(),
        terms: describe_terms(found.terms),
        nodes: nodes.collect(),
        trouble: found.trouble,
    })
}

fn describe_terms(terms: forebay_node::ClusterTerms) -> ClusterTerms {
    ClusterTerms {
        replicas: terms.replicas,
        redundancy: terms.redundancy.map(|level| level.to_string()),
        secret: terms.secret,
        backing: terms.backing.map(wire_path),
        store: terms.store,
    }
}

fn describe_server(report: forebay_node::ServerReport) -> ClusterServer {
    ClusterServer {
        address: report.address,
        version: report.version,
        in_cluster: report.in_cluster,
        primary: report.primary,
        serves: report.serves,
        replicas: report.replicas,
        log: report.log.map(|log| match log {
            forebay_node::ServerLog::Nothing => ServerLog::Nothing,
            forebay_node::ServerLog::EverySecond => ServerLog::EverySecond,
            forebay_node::ServerLog::Always => ServerLog::Always,
        }),
        trouble: report.trouble,
    }
}

/// A node that is not as the caller takes it to be is his mistake.
fn refused(error: &forebay_node::NodeError) -> ControlError {
    let mut error = control_error(error);
    if error.kind == ErrorKind::BadState {
        error.kind = ErrorKind::Failed;
    }
    error
}

fn describe(report: NodeReport) -> ClusterNode {
    ClusterNode {
        node: report.node,
        state: match () {
            () if report.left => NodeState::Left,
            () if report.dead => NodeState::Dead,
            () if report.leaving => NodeState::Leaving,
            () => NodeState::Up,
        },
        host: report.host,
        reach: report.reach,
        epoch: report.epoch,
        silent_s: report.silence.as_secs(),
        dirty_files: report.status.files,
        dirty_bytes: report.status.bytes,
        backlog: report.status.backlog,
        held_bytes: report.status.held,
        room_bytes: report.status.room,
        moving_bytes: report.status.moving,
        lost_changes: report.status.lost,
        refusal: report.refusal,
    }
}

fn describe_safety(report: SafetyReport) -> Safety {
    Safety {
        copied_files: report.copied,
        lacking_files: report.lacking,
        missing_bytes: report.missing_bytes,
        waiting_files: report.waiting,
        lag_ms: u64::try_from(report.lag.as_millis()).unwrap_or(u64::MAX),
        held_files: report.held.files,
        held_bytes: report.held.bytes,
        aside_files: report.aside.files,
        aside_bytes: report.aside.bytes,
        moving_files: report.moving,
        moving_bytes: report.moving_bytes,
        wanted_nodes: report.wanted_nodes as u64,
        able_nodes: report.able_nodes as u64,
    }
}

fn forget(cluster: &Cluster, number: u16, really: bool) -> ControlResult<ClusterReply> {
    let mut forgotten = Forgotten { done: really, ..Forgotten::default() };
    let each = &mut |owned: Owned| {
        if !owned.behind {
            forgotten.uncertain += 1;
            return;
        }
        forgotten.files_total += 1;
        if forgotten.files.len() < NAMED {
            forgotten.files.push(LostFile {
                path: wire_path(owned.path.unwrap_or_default()),
                size_bytes: owned.size,
                has_older: owned.published,
            });
        }
    };
    cluster.forget_node(number, really, each).map_err(|error| refused(&error))?;
    Ok(ClusterReply::Forgotten(forgotten))
}

/// The other nodes, in a line each.
pub fn peers(node: &Node) -> Vec<Peer> {
    let Some(cluster) = node.cluster() else { return Vec::new() };
    let this = cluster.number();
    let others = cluster.nodes().into_iter().filter(|report| report.node != this);
    let peer = |report: NodeReport| Peer {
        name: format!("node {} on {}", report.node, report.host),
        state: match describe(report) {
            node if node.state == NodeState::Left => "left".into(),
            node if node.state == NodeState::Dead => {
                format!("dead: silent for {} s", node.silent_s)
            }
            node => format!(
                "up; {} dirty files, {} bytes; backlog {}",
                node.dirty_files, node.dirty_bytes, node.backlog
            ),
        },
    };
    others.map(peer).collect()
}

/// A thread that has the node leave when it is told to.
pub fn obey(node: &Arc<Node>, control: &Arc<NodeControl>) {
    if !node.is_clustered() {
        return;
    }
    let (node, control) = (Arc::downgrade(node), Arc::downgrade(control));
    let obey = move || {
        while let Some(step) = look(&node, &control) {
            if let Err(error) = step {
                tracing::error!(
                    %error,
                    "this node was told to leave, can't, and can't tell the others so; it will be \
                     tried again"
                );
            }
            thread::sleep(LOOK);
        }
    };
    if let Err(error) = thread::Builder::new().name("cluster-orders".into()).spawn(obey) {
        tracing::error!(
            %error,
            "no thread to hear orders: `forebay cluster drain` does nothing on this node. Raise \
             the limit of threads, and mount again"
        );
    }
}

/// One look; nothing when the mount has ended.
fn look(
    node: &Weak<Node>,
    control: &Weak<NodeControl>,
) -> Option<Result<(), forebay_node::NodeError>> {
    let (node, control) = (node.upgrade()?, control.upgrade()?);
    let cluster = node.cluster()?;
    if !cluster.is_to_leave() {
        return Some(Ok(()));
    }
    match leave(cluster, &control) {
        Ok(()) => {
            tracing::info!("this node leaves the cluster, as it was told to");
            None
        }
        Err(why) => {
            tracing::warn!(why, "this node was told to leave the cluster, and can't");
            Some(cluster.refuse_to_leave(&why))
        }
    }
}

fn leave(cluster: &Cluster, control: &NodeControl) -> Result<(), String> {
    let outcome = control.drain(None, &mut |_| true).map_err(|error| error.to_string())?;
    if !outcome.complete && !outcome.in_use {
        return Err(format!(
            "{} files and {} names could not be written back in time",
            outcome.remaining_files, outcome.remaining_backlog
        ));
    }
    if !cluster.await_copies_moved(COPIES_LIMIT) {
        return Err("other nodes have not moved the copies that it has for them".into());
    }
    control.shutdown(Shutdown::IfIdle).map_err(|error| error.to_string())
}
