//! `cluster`: metadata servers for a test or a job, and the nodes that share a tree.

mod outside;
mod servers;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::{print, print_json};
use crate::cli::cluster::{
    ClusterCommand, ClusterDrainArgs, ClusterForgetArgs, ClusterMigrationsArgs,
    ClusterRebalanceArgs, ClusterStatusArgs,
};
use crate::control::{
    Client, ClusterReply, ClusterRequest, ClusterStatus, NodeState, Reply, Request,
};
use crate::engine::Engine;
use crate::error::{Error, Exit};
use crate::{mountinfo, render};

pub use outside::{Outlook, agreed, log_of, survives};

/// For what needs no look at the whole namespace.
const QUESTION_LIMIT: Duration = Duration::from_secs(20);
/// For what does.
const FORGET_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// Between two looks at a node that is to leave.
const LOOK: Duration = Duration::from_millis(300);
/// What each node says of itself is known after so long.
const NEWS: Duration = Duration::from_secs(4);
/// To have all nodes plan what moves.
const PLAN_LIMIT: Duration = Duration::from_secs(120);

/// Runs one of the commands.
pub fn run(command: &ClusterCommand, engine: &dyn Engine) -> Result<u8, Error> {
    match command {
        ClusterCommand::Init(args) => servers::init(args, engine),
        ClusterCommand::Stop(args) => servers::stop(&args.dir),
        ClusterCommand::Status(ClusterStatusArgs { cluster: Some(address), json, .. }) => {
            return outside::status(address, *json, engine);
        }
        ClusterCommand::Status(args) => status(args),
        ClusterCommand::Drain(args) => drain(args),
        ClusterCommand::Rebalance(args) => rebalance(args),
        ClusterCommand::Migrations(args) => migrations(args),
        ClusterCommand::Forget(args) => forget(args),
    }
    .map(|()| Exit::Ok.code())
}

fn ask(
    client: &mut Client,
    request: ClusterRequest,
    limit: Duration,
) -> Result<ClusterReply, Error> {
    match client.call(Request::Cluster(request), Some(limit), &mut |_| {})? {
        Reply::Cluster(reply) => Ok(reply),
        _ => Err(Error::Protocol("not an answer about a cluster".into())),
    }
}

fn status_of(client: &mut Client) -> Result<ClusterStatus, Error> {
    match ask(client, ClusterRequest::Status, QUESTION_LIMIT)? {
        ClusterReply::Status(status) => Ok(status),
        _ => Err(Error::Protocol("not the status of a cluster".into())),
    }
}

/// The mount that was named, or the only one on this machine that is part of a cluster.
fn member(named: Option<&Path>) -> Result<PathBuf, Error> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    let mounts = mountinfo::read().map_err(Error::io("/proc/self/mountinfo"))?;
    let is_member = |mount: &&mountinfo::Mount| {
        let client = Client::for_mount(mount, &mounts);
        client.and_then(|mut client| status_of(&mut client)).is_ok()
    };
    let mut found = mounts.iter().filter(|mount| mount.is_forebay()).filter(is_member);
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only.mountpoint.clone()),
        (Some(_), Some(_)) => {
            Err(Error::Usage("several mounts here are in clusters: name the mount point".into()))
        }
        (None, _) => {
            Err(Error::Usage("no mount here is in a cluster: name the mount point".into()))
        }
    }
}

fn status(args: &ClusterStatusArgs) -> Result<(), Error> {
    let mut client = Client::for_path(&member(args.mountpoint.as_deref())?)?;
    let status = status_of(&mut client)?;
    if args.json { print_json(&status) } else { print(&render::cluster(&status)) }
}

fn drain(args: &ClusterDrainArgs) -> Result<(), Error> {
    let path = member(args.mountpoint.as_deref())?;
    let mut client = Client::for_path(&path)?;
    let number = args.node;
    let until = Instant::now() + args.timeout;
    let this = status_of(&mut client)?.this;
    ask(&mut client, ClusterRequest::Drain { node: number }, QUESTION_LIMIT)?;
    loop {
        let status = match status_of(&mut client) {
            Ok(status) => status,
            // It is the one that has left.
            Err(Error::NoDaemon { .. }) if this == number => break,
            Err(error) => return Err(error),
        };
        let node = status.nodes.iter().find(|node| node.node == number);
        let node = node.ok_or_else(|| Error::Failed(format!("node {number} is gone")))?;
        if let Some(refusal) = &node.refusal {
            return Err(Error::Failed(format!("node {number} stays: {refusal}")));
        }
        match node.state {
            NodeState::Left => break,
            NodeState::Dead => {
                return Err(Error::Failed(format!(
                    "node {number} has died: mount it again with the same tiers, or give up what \
                     it had (`forebay cluster forget {number}`)"
                )));
            }
            NodeState::Up | NodeState::Leaving | NodeState::Silent => {}
        }
        if Instant::now() >= until {
            return Err(Error::NotDrained(format!(
                "node {number} has not left yet: {} to write back; it goes on",
                crate::units::format_bytes(node.dirty_bytes)
            )));
        }
        thread::sleep(LOOK);
    }
    print(&format!("node {number} has written everything back and left\n"))
}

fn migrations(args: &ClusterMigrationsArgs) -> Result<(), Error> {
    let mut client = Client::for_path(&member(args.mountpoint.as_deref())?)?;
    let ClusterReply::Migrations(all) =
        ask(&mut client, ClusterRequest::Migrations, QUESTION_LIMIT)?
    else {
        return Err(Error::Protocol("not an answer about migrations".into()));
    };
    if args.json {
        return print_json(&all);
    }
    let mut text = match all.plans {
        true => format!("this node plans: {} scans, {} nodes in the last\n", all.scans, all.nodes),
        false => "a node with a lower number plans\n".to_owned(),
    };
    for one in &all.migrations {
        let outcome = one.outcome.as_deref().unwrap_or("under way");
        text.push_str(&crate::printable::one_line(&format!(
            "{} from node {} to node {}, where {} is, to save {:.1} s: {}{outcome}",
            one.task,
            one.from,
            one.to,
            one.with,
            one.worth_ms as f64 / 1000.0,
            if one.moved || one.outcome.is_none() { "" } else { "not moved, " },
        )));
        text.push('\n');
    }
    print(&text)
}

fn rebalance(args: &ClusterRebalanceArgs) -> Result<(), Error> {
    let mut client = Client::for_path(&member(args.mountpoint.as_deref())?)?;
    let (begun, until) = (Instant::now(), Instant::now() + args.timeout);
    let told = match ask(&mut client, ClusterRequest::Rebalance, PLAN_LIMIT)? {
        ClusterReply::Rebalancing(told) => told,
        _ => return Err(Error::Protocol("not an answer about rebalancing".into())),
    };
    let mut shown = None;
    loop {
        let status = status_of(&mut client)?;
        let alive = |node: &&crate::control::ClusterNode| {
            matches!(node.state, NodeState::Up | NodeState::Leaving)
        };
        let left: u64 = status.nodes.iter().filter(alive).map(|node| node.moving_bytes).sum();
        if left == 0 && begun.elapsed() >= NEWS {
            return print(&format!("{told} nodes have moved what was to move\n"));
        }
        if shown.replace(left) != Some(left) && left > 0 {
            print(&format!("{} to move\n", crate::units::format_bytes(left)))?;
        }
        if Instant::now() >= until {
            let left = crate::units::format_bytes(left);
            return Err(Error::NotDrained(format!("{left} have not moved yet; it goes on")));
        }
        thread::sleep(LOOK);
    }
}

fn forget(args: &ClusterForgetArgs) -> Result<(), Error> {
    let mut client = Client::for_path(&member(args.mountpoint.as_deref())?)?;
    let request = ClusterRequest::Forget { node: args.node, really: args.yes };
    let ClusterReply::Forgotten(forgotten) = ask(&mut client, request, FORGET_LIMIT)? else {
        return Err(Error::Protocol("not an answer about a dead node".into()));
    };
    if args.json {
        print_json(&forgotten)?;
    } else {
        print(&render::forgotten(&forgotten))?;
    }
    match forgotten.done {
        true => Ok(()),
        false => Err(Error::Usage("nothing was done yet: give --yes to lose this".into())),
    }
}
