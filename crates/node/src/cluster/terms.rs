//! What the nodes of a cluster agree on and keep on its metadata servers, so that a mount need not be
//! told; and how a cluster is, seen by whoever has not joined it.

use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use forebay_core::cluster::redundancy::Redundancy;
use forebay_meta::{
    Member, MetaStore, NodeStatus, Options, Redis, RedisOptions, ServerReport, look_at_servers,
    members_of, node_statuses_of, settings_of,
};

use super::SECRET;
use super::life::BEAT;
use super::nodes::NodeReport;
use super::{identity_of, peers};
use crate::config::PeerConfig;
use crate::config::{BACKING_SETTING, STORE_SETTING};
use crate::error::{NodeError, Result};

const REPLICAS: &str = "cluster.replicas";
const REDUNDANCY: &str = "cluster.redundancy";
/// Whoever lives shows it meanwhile.
const LOOK: Duration = BEAT.saturating_mul(4);
/// How long servers are tried that are only looked at.
const LIMIT: Duration = Duration::from_secs(5);

/// What the nodes of a cluster agree on, as far as anybody has said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterTerms {
    /// Replicas of the metadata that must confirm a change.
    pub replicas: Option<u32>,
    /// What is kept on other nodes of what a node writes.
    pub redundancy: Option<Redundancy>,
    /// The fingerprint of the nodes' secret; `off` where they have none.
    pub secret: Option<String>,
    /// The path of the backing store.
    pub backing: Option<Vec<u8>>,
    /// The mark of the backing store.
    pub store: Option<String>,
}

/// What is to be agreed on; what is `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewTerms {
    /// As in [`ClusterTerms`].
    pub replicas: Option<u32>,
    /// As in [`ClusterTerms`].
    pub redundancy: Option<Redundancy>,
    /// The file with the nodes' secret.
    pub secret: Option<PathBuf>,
}

/// How a cluster is, seen from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterReport {
    /// Its metadata servers.
    pub servers: Vec<ServerReport>,
    /// What its nodes agree on.
    pub terms: ClusterTerms,
    /// Its nodes; `dead` are those that gave no sign of life while they were looked at.
    pub nodes: Vec<NodeReport>,
    /// Why its names can't be used, if they can't.
    pub trouble: Option<String>,
}

fn open(address: &str, replicas: u32, give_up: Option<Duration>) -> Result<Redis> {
    let mut options = RedisOptions { replicas, ..RedisOptions::default() };
    options.give_up = give_up.unwrap_or(options.give_up);
    Ok(Redis::open(address, &options).map_err(forebay_meta::Error::from)?)
}

fn terms_of(engine: &Redis) -> Result<ClusterTerms> {
    let names = [REPLICAS, REDUNDANCY, SECRET, BACKING_SETTING, STORE_SETTING];
    let said = settings_of(engine, &names)?;
    let text = |at: usize| {
        said[at].as_ref().map(|bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned())
    };
    fn parsed<T: FromStr>(name: &str, text: Option<String>) -> Result<Option<T>> {
        let Some(text) = text else { return Ok(None) };
        let wrong = |_| {
            NodeError::Config(format!(
                "the cluster's setting {name} is '{text}', which this version does not know: set it \
                 again with `forebay cluster init`, or upgrade"
            ))
        };
        text.parse().map(Some).map_err(wrong)
    }
    Ok(ClusterTerms {
        replicas: parsed(REPLICAS, text(0))?,
        redundancy: parsed(REDUNDANCY, text(1))?,
        secret: text(2),
        backing: said[3].clone(),
        store: text(4),
    })
}

/// What the nodes of a cluster agree on.
///
/// # Errors
/// If no server answers, or one refuses.
pub fn cluster_terms(address: &str) -> Result<ClusterTerms> {
    terms_of(&open(address, 0, None)?)
}

/// Stores what the nodes of a cluster shall agree on; makes the cluster, if there is none.
///
/// # Errors
/// If the servers can't keep what they acknowledge, or do not answer; a secret that can't be used.
pub fn set_cluster_terms(address: &str, new: &NewTerms) -> Result<ClusterTerms> {
    let secret = new.secret.clone().map(|secret| {
        let (listen, secret) = (String::new(), Some(secret));
        peers::fingerprints(&PeerConfig { listen, secret, other_secret: None })
    });
    let secret = secret.transpose()?.map(|(own, _)| own);
    let engine = open(address, 0, None)?;
    let replicas = new.replicas.or(terms_of(&engine)?.replicas).unwrap_or(0);
    drop(engine);
    let engine = open(address, replicas, None)?;
    engine.check_replicas().map_err(forebay_meta::Error::from)?;
    engine.check_logs().map_err(forebay_meta::Error::from)?;
    let meta = MetaStore::open(Box::new(engine), &Options::default())?;
    identity_of(&meta)?;
    let settings = [
        (REPLICAS, new.replicas.map(|replicas| replicas.to_string())),
        (REDUNDANCY, new.redundancy.map(|level| level.to_string())),
        (SECRET, secret),
    ];
    for (name, value) in settings {
        if let Some(value) = value {
            meta.set_setting(name, value.as_bytes())?;
        }
    }
    meta.sync()?;
    terms_of(&open(address, 0, None)?)
}

/// How a cluster is, seen from outside. Takes some seconds if it has nodes.
///
/// # Errors
/// If the address makes no sense.
pub fn look_at_cluster(address: &str) -> Result<ClusterReport> {
    let servers = look_at_servers(address).map_err(forebay_meta::Error::from)?;
    let (terms, nodes, trouble) = match inside(address) {
        Ok((terms, nodes)) => (terms, nodes, None),
        Err(error) => (ClusterTerms::default(), Vec::new(), Some(error.to_string())),
    };
    Ok(ClusterReport { servers, terms, nodes, trouble })
}

fn inside(address: &str) -> Result<(ClusterTerms, Vec<NodeReport>)> {
    let engine = open(address, 0, Some(LIMIT))?;
    let terms = terms_of(&engine)?;
    let before = members_of(&engine)?;
    if before.iter().any(|member| !member.left) {
        thread::sleep(LOOK);
    }
    let mut statuses = node_statuses_of(&engine)?;
    let report = |now: Member| {
        let same =
            |then: &&Member| (then.node, then.epoch, then.beat) == (now.node, now.epoch, now.beat);
        let silent = before.iter().any(|then| same(&then));
        let status = statuses.remove(&now.node).filter(|_| !now.left);
        NodeReport {
            node: now.node,
            host: now.address,
            reach: now.reach,
            epoch: now.epoch,
            left: now.left,
            dead: silent && !now.left,
            leaving: false,
            refusal: None,
            silence: if silent { LOOK } else { Duration::ZERO },
            status: status.unwrap_or_else(NodeStatus::default),
        }
    };
    Ok((terms, members_of(&engine)?.into_iter().map(report).collect()))
}
