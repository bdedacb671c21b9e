//! Who may join a cluster: all reasons to refuse a mount that can be known before it has joined are
//! looked at before anything is written, on its tiers or on the metadata servers. And what the nodes of
//! a cluster agree on, which is kept there.

use std::path::{Path, PathBuf};

use forebay_meta::{Engine, Member, MetaStore, Redis, members_of, settings_of};

use crate::cluster::{BOUND, IDENTITY, NO_SECRET, SECRET, bound_to, peers};
use crate::config::{BACKING_SETTING, ClusterConfig, NodeConfig, PeerConfig, STORE_SETTING};
use crate::error::{NodeError, Result};
use crate::lifecycle::members::{self, Expected};
use crate::node::METADATA;

/// Refuses a node that can't be one of the cluster, with the reason. Nothing has changed then.
///
/// # Errors
/// The reason; if the servers do not answer.
pub(crate) fn admit(
    engine: &Redis,
    config: &NodeConfig,
    cluster: &ClusterConfig,
    state_dir: &Path,
    me: &str,
    expected: &Expected,
) -> Result<()> {
    if !cluster.memory_only {
        engine.check_logs().map_err(forebay_meta::Error::from)?;
    }
    let names = [IDENTITY, BACKING_SETTING, STORE_SETTING, SECRET];
    let said: Vec<_> = settings_of(engine, &names)?;
    let text = |at: usize| said[at].as_ref().map(|bytes| String::from_utf8_lossy(bytes));
    check_tier(state_dir, text(0).as_deref())?;
    if let Some(known) = text(1) {
        let path = std::fs::canonicalize(&config.backing)?;
        if *known != *path.to_string_lossy() {
            return Err(NodeError::Config(format!(
                "the backing store of this cluster is {known} on all nodes, not {}: mount it there, or \
                 give the address another name at its end (redis://HOST/NAME) for another cluster",
                path.display()
            )));
        }
    }
    crate::lifecycle::start::check_shared_store(said[2].as_deref(), expected, config)?;
    match &cluster.peers {
        Some(peers) => judge_secret(engine, text(3).as_deref(), peers, me).map(drop),
        None => Ok(()),
    }
}

/// A tier belongs to one namespace.
fn check_tier(state_dir: &Path, identity: Option<&str>) -> Result<()> {
    let shown = state_dir.display();
    if state_dir.join(METADATA).exists() {
        return Err(NodeError::Config(format!(
            "the tier of {shown} was used without a cluster: use another tier directory, or unmount \
             cleanly and empty this one"
        )));
    }
    match bound_to(state_dir)? {
        Some(bound) if Some(&*bound) != identity => Err(NodeError::Config(format!(
            "the tier of {shown} holds files of another cluster, or of this one before its metadata \
             was lost: give the address of that cluster, or use another tier directory"
        ))),
        _ => Ok(()),
    }
}

/// Whether this node's secret is that of the others; what is to be kept, if it is not kept yet.
fn judge_secret(
    engine: &dyn Engine,
    known: Option<&str>,
    config: &PeerConfig,
    me: &str,
) -> Result<Option<String>> {
    let (own, other) = peers::fingerprints(config)?;
    match known {
        Some(known) if known == own => return Ok(None),
        // Node by node the secret becomes another one.
        Some(known) if other.as_deref() != Some(known) => {
            let is_other = |member: &Member| !member.left && member.id != me;
            let others = members_of(engine)?.into_iter().filter(is_other);
            let others: Vec<String> = others.map(|member| member.node.to_string()).collect();
            if !others.is_empty() {
                return Err(NodeError::Config(refusal(known, &own, &others.join(", "))));
            }
        }
        _ => {}
    }
    Ok(Some(own))
}

fn refusal(known: &str, own: &str, others: &str) -> String {
    let what = match (known, own) {
        (NO_SECRET, _) => {
            "the nodes of this cluster talk without a secret (--cluster-tls off), and this one has one"
        }
        (_, NO_SECRET) => {
            "the nodes of this cluster talk with a secret, and this one has none: give it by \
             --cluster-secret"
        }
        _ => {
            "--cluster-secret: this is not the secret that the other nodes of the cluster have: copy \
             theirs here"
        }
    };
    format!(
        "{what}. (Its fingerprint is {own}, theirs {known}. Node {others} may have files that the \
         backing store lacks; docs/reference/cluster.md says how a secret is changed.)"
    )
}

/// Notes which secret the nodes have, if nobody has, or if it changes.
pub(crate) fn note_secret(meta: &MetaStore, cluster: &ClusterConfig, me: &str) -> Result<()> {
    let Some(config) = &cluster.peers else { return Ok(()) };
    let (own, _) = peers::fingerprints(config)?;
    // Another node may have been first, in this moment.
    let known = meta.setting_or(SECRET, own.as_bytes())?;
    let known = String::from_utf8_lossy(&known);
    match judge_secret(meta.engine(), Some(&known), config, me)? {
        Some(own) => Ok(meta.set_setting(SECRET, own.as_bytes())?),
        None => Ok(()),
    }
}

/// The directories in which a node that joins for the first time notes to what they belong; none if it
/// has done so before.
pub(crate) fn unbound(config: &NodeConfig, expected: &Expected) -> Vec<PathBuf> {
    if config.cluster.is_none() || expected.is_known() {
        return Vec::new();
    }
    let tiers = config.tiers.iter().map(|tier| tier.dir.clone());
    members::state_dir(config).into_iter().chain(tiers).collect()
}

/// A node was refused when it had begun to join for the first time: its tiers belong to nobody.
pub(crate) fn unbind(dirs: &[PathBuf]) {
    for path in dirs.iter().flat_map(|dir| [dir.join(members::FILE), dir.join(BOUND)]) {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(
                    %error,
                    path = %path.display(),
                    "can't remove the note that binds a tier to the cluster that has refused this \
                     node: remove the file by hand"
                );
            }
            _ => {}
        }
    }
}
