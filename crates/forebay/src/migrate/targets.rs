//! Where a task may go: to a mount where its files are as they are where it is.

use std::path::Path;
use std::time::Duration;

use super::protocol::HOME;
use crate::control::{
    Client, ClusterNode, ClusterReply, ClusterRequest, ClusterStatus, NodeState, Reply, Request,
    TaskHost,
};
use crate::error::Error;
use crate::mountinfo::{self, Mount};

/// How long a daemon may take to say who is in its cluster.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// How long it, and the other node, may take to get ready for a task.
const HOST_LIMIT: Duration = Duration::from_secs(30);

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

/// Whether this mount is there.
pub fn check_one(at: &Path, mounts: &[Mount]) -> Result<(), Error> {
    forebay_at(at, mounts).map(drop)
}

/// The node of a mount's cluster that somebody means, by its number or its machine; nothing if it is the
/// mount's own.
pub fn node(mount: &Path, mounts: &[Mount], name: &str) -> Result<Option<(u16, String)>, Error> {
    let status = nodes_of(forebay_at(mount, mounts)?, mounts)?;
    let none = || Error::Usage(format!("{} is not part of a cluster", mount.display()));
    choose(&status.ok_or_else(none)?, name)
}

/// The machines of nodes of a mount's cluster, each by its number or its machine, or [`HOME`] for the
/// mount's own; none if it is in no cluster and its own alone is meant.
pub fn machines(mount: &Path, mounts: &[Mount], names: &[String]) -> Result<Vec<String>, Error> {
    let status = nodes_of(forebay_at(mount, mounts)?, mounts)?;
    match &status {
        None if names == [HOME] => Ok(Vec::new()),
        None => Err(Error::Usage(format!("{} is not part of a cluster", mount.display()))),
        Some(status) => names.iter().map(|name| machine(status, name)).collect(),
    }
}

fn machine(status: &ClusterStatus, name: &str) -> Result<String, Error> {
    let chosen = if name == HOME { None } else { choose(status, name)? };
    let own = || status.nodes.iter().find(|node| node.node == status.this);
    Ok(chosen.map_or_else(|| own().map_or_else(String::new, |node| node.host.clone()), |it| it.1))
}

fn choose(status: &ClusterStatus, name: &str) -> Result<Option<(u16, String)>, Error> {
    let number = name.parse::<u16>().ok();
    let meant =
        |node: &&ClusterNode| number.map_or(node.host == name, |number| node.node == number);
    let lives = |node: &&ClusterNode| matches!(node.state, NodeState::Up | NodeState::Leaving);
    let found: Vec<&ClusterNode> = status.nodes.iter().filter(meant).collect();
    let living: Vec<&ClusterNode> = found.iter().copied().filter(|node| lives(node)).collect();
    match (&living[..], &found[..]) {
        ([node], _) if node.node == status.this => Ok(None),
        ([node], _) => Ok(Some((node.node, node.host.clone()))),
        ([], []) => Err(Error::Usage(format!(
            "there is no node {name} in this cluster; `forebay cluster status` shows them"
        ))),
        ([], _) => Err(Error::Failed(format!("node {name} shows no sign of life"))),
        _ => Err(Error::Usage(format!("several nodes are on {name}: give the number of one"))),
    }
}

/// Asks a node of a mount's cluster to get ready for a task. The answer decides who gets the task's memory
/// and whose image comes back, so that only a daemon of this user or of root is asked.
pub fn host(mount: &Path, mounts: &[Mount], node: u16) -> Result<TaskHost, Error> {
    ask_host(Client::for_mount(forebay_at(mount, mounts)?, mounts)?, &believed(), node)
}

/// The users whose daemons, and whose files with secrets, decide where a task goes.
pub fn believed() -> [u32; 2] {
    [0, rustix::process::geteuid().as_raw()]
}

fn ask_host(mut client: Client, believed: &[u32], node: u16) -> Result<TaskHost, Error> {
    if !believed.contains(&client.uid()) {
        return Err(Error::Usage(format!(
            "the mount {} is another user's: its daemon would say where the task goes",
            client.mountpoint().display()
        )));
    }
    let asked = Request::Cluster(ClusterRequest::Host { node });
    match client.call(asked, Some(HOST_LIMIT), &mut |_| {})? {
        Reply::Cluster(ClusterReply::Host(host)) => Ok(host),
        _ => Err(Error::Protocol("an answer that does not fit".into())),
    }
}

fn forebay_at<'a>(path: &Path, mounts: &'a [Mount]) -> Result<&'a Mount, Error> {
    let found = mountinfo::at(mounts, path).filter(|mount| mount.is_forebay());
    found.ok_or_else(|| Error::NotMounted(path.to_owned()))
}

fn same_source<'a>(
    from: &Path,
    to: &Path,
    mounts: &'a [Mount],
) -> Result<(&'a Mount, &'a Mount), Error> {
    let (ours, theirs) = (forebay_at(from, mounts)?, forebay_at(to, mounts)?);
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
    fn node_when_named_by_number_or_machine_then_the_living_one_and_else_the_reason() {
        let node = |node: u16, host: &str, state: NodeState| ClusterNode {
            node,
            host: host.into(),
            state,
            ..ClusterNode::default()
        };
        let (up, dead, left) = (NodeState::Up, NodeState::Dead, NodeState::Left);
        let nodes = vec![
            node(1, "a", up),
            node(2, "b", up),
            node(3, "b", left),
            node(4, "c", up),
            node(5, "c", up),
            node(6, "d", dead),
        ];
        let status = ClusterStatus { this: 1, nodes, ..ClusterStatus::default() };
        let of = |name: &str| choose(&status, name);
        assert_eq!(of("1").unwrap(), None);
        assert_eq!(of("a").unwrap(), None);
        assert_eq!(of("b").unwrap(), Some((2, "b".into())));
        assert_eq!(of("5").unwrap(), Some((5, "c".into())));
        for (name, part) in [("c", "several nodes"), ("d", "no sign of life"), ("9", "no node 9")] {
            let error = of(name).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn daemon_when_of_another_user_then_not_asked_where_a_task_goes() {
        let ask = |believed: &[u32]| {
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            let client = Client::over("/m".into(), ours).unwrap();
            drop(theirs);
            ask_host(client, believed, 2).unwrap_err()
        };
        let own = rustix::process::geteuid().as_raw();
        assert!(ask(&[own + 1]).to_string().contains("another user's"));
        // It would be asked, and is gone.
        assert!(!ask(&believed()).to_string().contains("another user's"));
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
