//! fsck of the namespace of a cluster that no node uses.

use std::thread;
use std::time::Duration;

use forebay_meta::{Engine, MetaStore, Options, Redis, RedisOptions};

use crate::cluster::life::BEAT;
use crate::error::{NodeError, Result};
use crate::lifecycle::check::Checked;

/// Whoever lives shows it meanwhile.
const LOOK: Duration = BEAT.saturating_mul(4);

/// Checks every rule of the namespace on metadata servers, and repairs what can be repaired without
/// loss, if asked. `replicas` of each server must have a repair before it counts.
///
/// # Errors
/// [`NodeError::Config`] if there is no namespace, [`NodeError::NodeLives`], an error of the servers.
pub fn check_cluster(address: &str, replicas: u32, repair: bool) -> Result<Checked> {
    let options = RedisOptions { replicas, ..RedisOptions::default() };
    let engine = Redis::open(address, &options).map_err(forebay_meta::Error::from)?;
    let some = engine.sweep(None, 1).map_err(forebay_meta::Error::from)?;
    if some.is_empty() {
        return Err(NodeError::Config(
            "the metadata servers have nothing of that name; is the address the one of the mounts?"
                .into(),
        ));
    }
    let meta = MetaStore::open(Box::new(engine), &Options::default())?;
    let before = meta.members()?;
    thread::sleep(LOOK);
    let lives = meta.members()?.into_iter().find(|now| {
        let same = |then: &&forebay_meta::Member| {
            (then.node, then.epoch, then.beat) == (now.node, now.epoch, now.beat)
        };
        !now.left && !before.iter().any(|then| same(&then))
    });
    if let Some(node) = lives {
        return Err(NodeError::NodeLives { node: node.node, address: node.address });
    }
    let report = meta.check(repair)?;
    let mut checked =
        Checked { inodes: report.inodes, names: report.entries, ..Checked::default() };
    for violation in report.violations {
        checked.problem(violation.repaired, violation.what);
    }
    checked.problems += report.omitted;
    Ok(checked)
}
