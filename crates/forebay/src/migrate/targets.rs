//! Where a task may go: to a mount where its files are as they are where it is.

use std::path::Path;
use std::time::Duration;

use crate::control::{Client, ClusterReply, ClusterRequest, ClusterStatus, Reply, Request};
use crate::error::Error;
use crate::mountinfo::{self, Mount};

/// How long a daemon may take to say who is in its cluster.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Whether these mount points are two nodes of one cluster. What is written at one of them is seen at
/// the other only then, also where both have the same backing store.
pub fn check(from: &Path, to: &Path, mounts: &[Mount]) -> Result<(), Error> {
    let (ours, theirs) = same_source(from, to, mounts)?;
    let (ours, theirs) = (nodes_of(ours, mounts)?, nodes_of(theirs, mounts)?);
    match (ours, theirs) {
        (Some(ours), Some(theirs)) if are_one(&ours, &theirs) => Ok(()),
        _ => Err(Error::Usage(format!(
            "{} and {} are not nodes of one cluster, and what is written at one of them is not seen at \
             the other: mount both with the same --cluster",
            from.display(),
            to.display()
        ))),
    }
}

fn same_source<'a>(
    from: &Path,
    to: &Path,
    mounts: &'a [Mount],
) -> Result<(&'a Mount, &'a Mount), Error> {
    let at = |path: &Path| {
        let found = mountinfo::at(mounts, path).filter(|mount| mount.is_forebay());
        found.ok_or_else(|| Error::NotMounted(path.to_owned()))
    };
    let (ours, theirs) = (at(from)?, at(to)?);
    if ours.source != theirs.source {
        return Err(Error::Usage(format!(
            "{} and {} have different files: the task can go only where its files are",
            from.display(),
            to.display()
        )));
    }
    Ok((ours, theirs))
}

/// The cluster as a mount sees it; none if it is in none.
fn nodes_of(mount: &Mount, mounts: &[Mount]) -> Result<Option<ClusterStatus>, Error> {
    let mut client = Client::for_mount(mount, mounts)?;
    let asked = Request::Cluster(ClusterRequest::Status);
    match client.call(asked, Some(ANSWER_LIMIT), &mut |_| {}) {
        Ok(Reply::Cluster(ClusterReply::Status(status))) => Ok(Some(status)),
        Ok(_) | Err(Error::Control(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether each has the other among its nodes.
fn are_one(ours: &ClusterStatus, theirs: &ClusterStatus) -> bool {
    let knows = |one: &ClusterStatus, other: &ClusterStatus| {
        let own = other.nodes.iter().find(|node| node.node == other.this);
        own.is_some_and(|own| {
            let same = |node: &&crate::control::ClusterNode| node.node == own.node;
            let seen = one.nodes.iter().find(same);
            seen.is_some_and(|seen| {
                (&seen.host, &seen.reach, seen.epoch) == (&own.host, &own.reach, own.epoch)
            })
        })
    };
    ours.this != theirs.this && knows(ours, theirs) && knows(theirs, ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ClusterNode;

    fn mount(at: &str, source: &str) -> Mount {
        Mount {
            mountpoint: at.into(),
            source: source.into(),
            kind: mountinfo::FILE_SYSTEM_TYPE.into(),
            ..Mount::default()
        }
    }

    #[test]
    fn target_when_a_mount_of_the_same_files_then_taken_and_others_refused() {
        let mounts = [mount("/a", "/store"), mount("/b", "/store"), mount("/c", "/other")];
        let of = |from: &str, to: &str| same_source(Path::new(from), Path::new(to), &mounts);
        assert_eq!(of("/a", "/b").unwrap().1.mountpoint, Path::new("/b"));
        for (from, to, part) in [
            ("/a", "/c", "different files"),
            ("/a", "/d", "/d: not on a Forebay mount"),
            // It was unmounted, and the task is to go home.
            ("/d", "/a", "/d: not on a Forebay mount"),
        ] {
            let error = of(from, to).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn clusters_when_each_knows_the_other_node_then_one_and_else_not() {
        let node = |node: u16, reach: &str, epoch: u64| {
            let (host, reach) = ("h".into(), reach.into());
            ClusterNode { node, host, reach, epoch, ..ClusterNode::default() }
        };
        let seen = |this: u16, nodes: Vec<ClusterNode>| ClusterStatus {
            this,
            nodes,
            ..ClusterStatus::default()
        };
        let both = || vec![node(1, "h:1", 3), node(2, "h:2", 1)];
        assert!(are_one(&seen(1, both()), &seen(2, both())));
        assert!(
            !are_one(&seen(1, both()), &seen(1, both())),
            "two clusters with a first node each"
        );
        let other = vec![node(1, "h:9", 3), node(2, "h:2", 1)];
        assert!(!are_one(&seen(1, both()), &seen(2, other)));
        assert!(!are_one(&seen(1, vec![node(1, "h:1", 3)]), &seen(2, both())));
    }
}
