//! Nodes that fail, the repair of what they had, drains and rebalancing.

use std::collections::BTreeMap;

use forebay_core::cluster::balance::{BalanceConfig, Level, imbalance, plan};
use forebay_core::cluster::membership::{Membership, Terms};
use forebay_core::cluster::placement::{Site, Topology};
use forebay_core::cluster::repair::{Action, GroupId, Redundancy, Repair, RepairConfig, Transfer};
use forebay_core::cluster::{Epoch, NodeId};
use forebay_core::unit::Tick;

use super::model::{Events, Hardware, Network, Server, quantile, takes};
use crate::rng::Rng;

/// A cluster that fails.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Failures {
    /// Nodes.
    pub nodes: u32,
    /// How files are kept.
    pub redundancy: Redundancy,
    /// Groups whose first shard is on a node, on average.
    pub groups: u32,
    /// Bytes of a shard.
    pub shard: u64,
    /// Failures an hour, of all nodes together.
    pub per_hour: f64,
    /// Hours until an empty node takes the place of a dead one.
    pub replaced_after: f64,
    /// Hours to simulate.
    pub hours: f64,
    /// Bytes a second that a node spends on repair.
    pub rate: u64,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FailureReport {
    /// Nodes that failed.
    pub failures: u64,
    /// Groups in all.
    pub groups: u64,
    /// Groups of which too little was left.
    pub lost: u64,
    /// Seconds from the death of a node until all that it had was whole again: half take less.
    pub repair_median: f64,
    /// 99 of 100 take less.
    pub repair_p99: f64,
    /// Bytes written by repair.
    pub repaired: f64,
    /// Groups lost in a year, by arithmetic from the measured time of repair.
    pub expected_year: f64,
}

#[derive(Debug)]
enum Event {
    Fails(u32),
    /// Its lease has ended.
    Noticed,
    Replaced(u32),
    Done(Transfer),
    Step,
}

/// A planner with its transfers on modelled links and devices.
struct Cluster<'a> {
    hardware: &'a Hardware,
    repair: Repair,
    network: Network,
    tiers: Vec<Server>,
    /// What each node spends on repair.
    shares: Vec<Server>,
    rate: f64,
    events: Events<Event>,
    /// The next step that is planned.
    step_at: u64,
    lost: Vec<GroupId>,
    alive: Vec<bool>,
    actions: Vec<Action>,
}

impl<'a> Cluster<'a> {
    fn new(hardware: &'a Hardware, nodes: u32, rate: u64) -> Self {
        let config = RepairConfig { rate, transfers: 8, ..RepairConfig::default() };
        let mut repair = Repair::new(config);
        for node in 0..nodes {
            repair.node_up(Tick(0), &site(hardware, node));
        }
        Self {
            hardware,
            repair,
            network: Network::new(*hardware, nodes),
            tiers: vec![Server::default(); nodes as usize],
            shares: vec![Server::default(); nodes as usize],
            rate: rate as f64,
            events: Events::default(),
            step_at: u64::MAX,
            lost: Vec::new(),
            alive: vec![true; nodes as usize],
            actions: Vec::new(),
        }
    }

    /// Lets the planner say what is to be done, and begins it.
    fn step(&mut self, now: u64) {
        let mut actions = std::mem::take(&mut self.actions);
        self.repair.step(Tick(now), &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Copy(transfer) => self.begin(now, transfer),
                Action::Drop { .. } => {}
                Action::Unavailable(group) => {
                    self.lost.push(group);
                    self.repair.remove(Tick(now), group);
                }
            }
        }
        self.actions = actions;
        if let Some(Tick(deadline)) = self.repair.next_deadline()
            && (deadline < self.step_at || self.step_at <= now)
        {
            self.step_at = deadline.max(now + 1);
            self.events.at(self.step_at, Event::Step);
        }
    }

    fn begin(&mut self, now: u64, transfer: Transfer) {
        let bytes = transfer.bytes as f64;
        let (read, write) =
            (takes(bytes, self.hardware.tier_read), takes(bytes, self.hardware.tier_write));
        let target = transfer.target.0;
        let mut arrived = now;
        for source in &transfer.sources {
            let served = self.tiers[source.0 as usize].serve(now, read);
            let at = self.network.send(served - read, source.0, target, bytes);
            arrived = arrived.max(at).max(served);
        }
        let begins = arrived.saturating_sub(write).max(now);
        let done = self.tiers[target as usize].serve(begins, write).max(arrived);
        // Never faster than the nodes' shares for repair.
        let share = takes(bytes, self.rate.min(self.hardware.software));
        let nodes = transfer.sources.iter().chain([&transfer.target]);
        let shares = nodes.map(|node| self.shares[node.0 as usize].serve(now, share));
        let paced = shares.max().unwrap_or(now);
        self.events.at(done.max(paced), Event::Done(transfer));
    }

    /// Returns whether the group is whole now.
    fn done(&mut self, now: u64, transfer: &Transfer) -> bool {
        let alive = |node: &NodeId| self.alive[node.0 as usize];
        let well = alive(&transfer.target) && transfer.sources.iter().all(alive);
        let Transfer { group, shard, target, .. } = transfer;
        if well {
            self.repair.done(Tick(now), *group, *shard, *target);
        } else {
            self.repair.failed(Tick(now), *group, *shard, *target);
        }
        self.repair.shards(*group).is_some_and(|shards| shards.iter().all(Option::is_some))
    }
}

/// Which failures are not made good yet, and how long the others took.
#[derive(Default)]
struct Repairs {
    /// When each failure was, how many groups are not whole since, and how many were made whole.
    failures: Vec<(u64, usize, usize)>,
    of_group: BTreeMap<GroupId, Vec<usize>>,
    times: Vec<u64>,
}

impl Repairs {
    fn begins(&mut self, since: u64, groups: impl Iterator<Item = GroupId>) {
        let failure = self.failures.len();
        let mut count = 0;
        for group in groups {
            self.of_group.entry(group).or_default().push(failure);
            count += 1;
        }
        self.failures.push((since, count, 0));
    }

    /// A group is whole, or lost for good.
    fn over(&mut self, now: u64, group: GroupId, whole: bool) {
        for failure in self.of_group.remove(&group).unwrap_or_default() {
            let (since, left, made_whole) = &mut self.failures[failure];
            *left -= 1;
            *made_whole += usize::from(whole);
            if *left == 0 && *made_whole > 0 {
                self.times.push(now - *since);
            }
        }
    }
}

fn site(hardware: &Hardware, node: u32) -> Site {
    Site { node: NodeId(node), domain: Some(node / hardware.rack), weight: 1 << 30 }
}

/// When which nodes fail, until the end, which it returns.
fn plan_failures(cluster: &mut Cluster<'_>, load: &Failures, rng: &mut Rng) -> u64 {
    let end = (load.hours * 3600e9) as u64;
    let mut at = 0.0;
    loop {
        at += -(1.0 - rng.unit()).ln() / load.per_hour * 3600e9;
        if at >= end as f64 {
            return end;
        }
        let node = rng.between(0, u64::from(load.nodes) - 1) as u32;
        cluster.events.at(at as u64, Event::Fails(node));
    }
}

/// Runs it. Lost groups stay lost: a dead node comes back empty.
#[must_use]
pub fn run(hardware: &Hardware, load: &Failures) -> FailureReport {
    let mut rng = Rng::new(load.seed);
    let mut cluster = Cluster::new(hardware, load.nodes, load.rate);
    let groups = u64::from(load.nodes) * u64::from(load.groups);
    for id in 0..groups {
        let nodes = cluster.repair.topology().place(id, load.redundancy.shards(), &[]);
        let held: Vec<Option<NodeId>> = nodes.into_iter().map(Some).collect();
        cluster.repair.add(Tick(0), GroupId(id), load.redundancy, load.shard, &held);
    }
    let mut members = Membership::new(Terms::default(), Epoch(0));
    let end = plan_failures(&mut cluster, load, &mut rng);
    let (mut failures, mut failed_at) = (0, BTreeMap::new());
    let (mut repairs, mut known) = (Repairs::default(), 0);
    while let Some((now, event)) = cluster.events.take() {
        match event {
            Event::Fails(node) if cluster.alive[node as usize] => {
                failures += 1;
                cluster.alive[node as usize] = false;
                // Its last heartbeat was about now: the lease runs from here.
                members.join(Tick(now), NodeId(node));
                cluster.events.at(now + Terms::default().timeout(), Event::Noticed);
                failed_at.insert(NodeId(node), now);
                let back = now + (load.replaced_after * 3600e9) as u64;
                cluster.events.at(back, Event::Replaced(node));
            }
            Event::Fails(_) => {}
            Event::Noticed => {
                for node in members.step(Tick(now)) {
                    let since = failed_at.get(&node).copied().unwrap_or(now);
                    repairs.begins(since, cluster.repair.groups_of(node));
                    cluster.repair.node_dead(Tick(now), node);
                }
            }
            Event::Replaced(node) => {
                cluster.alive[node as usize] = true;
                cluster.repair.node_up(Tick(now), &site(hardware, node));
            }
            Event::Done(transfer) => {
                if cluster.done(now, &transfer) {
                    repairs.over(now, transfer.group, true);
                }
            }
            Event::Step => {}
        }
        cluster.step(now);
        for group in &cluster.lost[known..] {
            repairs.over(now, *group, false);
        }
        known = cluster.lost.len();
        if now > end && cluster.repair.progress().lacking == 0 {
            break;
        }
    }
    let mut times = repairs.times;
    let repaired = cluster.repair.progress().done_bytes as f64;
    let repair_median = quantile(&mut times, 0.5) as f64 / 1e9;
    FailureReport {
        failures,
        groups,
        lost: cluster.lost.len() as u64,
        repair_median,
        repair_p99: quantile(&mut times, 0.99) as f64 / 1e9,
        repaired,
        expected_year: expected_lost(load, groups as f64, repair_median),
    }
}

/// Groups lost in a year if nodes fail independently and a repair takes as long as measured: the
/// rate of the first loss, times the probability that the next ones follow before the repair is
/// over (Patterson, Gibson, Katz: "A case for redundant arrays of inexpensive disks", SIGMOD 1988,
/// for more than one parity).
fn expected_lost(load: &Failures, groups: f64, repair: f64) -> f64 {
    let per_second = load.per_hour / f64::from(load.nodes) / 3600.0;
    let shards = load.redundancy.shards() as f64;
    let mut rate = shards * per_second;
    for lost in 1..=load.redundancy.tolerates() {
        rate *= ((shards - lost as f64) * per_second * repair / lost as f64).min(1.0);
    }
    groups * rate * 365.25 * 86_400.0
}

/// How evenly nodes are filled, and what rebalancing and a drain cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BalanceReport {
    /// The fullest node as a multiple of the mean, when the core places all shards.
    pub placed: f64,
    /// The same when every file stays where it was written and writers are skewed.
    pub skewed: f64,
    /// The same after rebalancing.
    pub balanced: f64,
    /// Bytes moved for that, as a share of all.
    pub moved: f64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Seconds to drain one node.
    pub drain: f64,
}

/// Where [`Topology::place`] puts the second copy of a group whose first one is on a node: that is the
/// first of the group's `pairs` that does not fail together with it, if there is one.
fn second_copy(
    topology: &Topology,
    pairs: &[Vec<NodeId>],
    id: u64,
    node: NodeId,
) -> Option<NodeId> {
    let pair = usize::try_from(id).ok().and_then(|at| pairs.get(at));
    let apart = |other: &&NodeId| !topology.together(**other, node);
    match pair.and_then(|pair| pair.iter().find(apart)) {
        Some(other) => Some(*other),
        None => topology.place(id, 1, &[node]).first().copied(),
    }
}

/// Skewed local writes, then rebalancing within a rate, then the drain of one node.
#[must_use]
pub fn balance(
    hardware: &Hardware,
    nodes: u32,
    groups: u32,
    shard: u64,
    rate: u64,
    seed: u64,
) -> BalanceReport {
    let mut rng = Rng::new(seed);
    let mut cluster = Cluster::new(hardware, nodes, rate);
    let all = u64::from(nodes) * u64::from(groups);
    let topology = cluster.repair.topology();
    let pairs: Vec<Vec<NodeId>> = (0..all).map(|id| topology.place(id, 2, &[])).collect();
    let mut placed = vec![0u64; nodes as usize];
    for node in pairs.iter().flatten() {
        placed[node.0 as usize] += 1;
    }
    // Every node writes, but some write up to three times as much as the mean: the owner's copy
    // stays there, the second one is placed.
    let mut id = 0;
    for node in 0..nodes {
        let share = 3.0 * rng.unit().powi(2);
        for _ in 0..(f64::from(groups) * share).round() as u64 {
            let mut held = vec![Some(NodeId(node))];
            held.extend(second_copy(cluster.repair.topology(), &pairs, id, NodeId(node)).map(Some));
            cluster.repair.add(Tick(0), GroupId(id), Redundancy::Replicas(2), shard, &held);
            id += 1;
        }
    }
    let levels = |cluster: &Cluster<'_>| -> Vec<Level> {
        let load = |node| cluster.repair.shards_of(NodeId(node)) as u64;
        let capacity = 4 * u64::from(groups);
        (0..nodes).map(|node| Level { node: NodeId(node), load: load(node), capacity }).collect()
    };
    let placed = placed.iter().enumerate().map(|(node, load)| Level {
        node: NodeId(node as u32),
        load: *load,
        capacity: 1,
    });
    let placed = imbalance(&placed.collect::<Vec<_>>());
    let skewed = imbalance(&levels(&cluster));
    for shift in plan(&levels(&cluster), &BalanceConfig::default()) {
        cluster.repair.shift(Tick(0), shift.from, shift.to, shift.amount * shard);
    }
    let seconds = settle(&mut cluster, 0);
    let moved = cluster.repair.progress().done as f64 / (2 * id) as f64;
    let balanced = imbalance(&levels(&cluster));
    let begin = (seconds * 1e9) as u64;
    cluster.repair.drain(Tick(begin), NodeId(0));
    let drain = settle(&mut cluster, begin) - seconds;
    BalanceReport { placed, skewed, balanced, moved, seconds, drain }
}

/// Runs until nothing is left to do; returns the second of the last transfer's end.
fn settle(cluster: &mut Cluster<'_>, begin: u64) -> f64 {
    let mut last = begin;
    cluster.step_at = u64::MAX;
    cluster.step(begin);
    while let Some((now, event)) = cluster.events.take() {
        if let Event::Done(transfer) = event {
            cluster.done(now, &transfer);
            last = last.max(now);
        }
        cluster.step(now);
    }
    last as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::model::{Machine, topology};

    #[test]
    fn second_copy_then_as_the_core_would_place_it() {
        for nodes in [16, 64, 200] {
            let topology = topology(&Machine::Today.hardware(), nodes);
            let pairs: Vec<Vec<NodeId>> = (0..500).map(|id| topology.place(id, 2, &[])).collect();
            for id in 0..600 {
                let node = NodeId(id as u32 * 7 % nodes);
                let placed = topology.place(id, 1, &[node]).first().copied();
                assert_eq!(second_copy(&topology, &pairs, id, node), placed, "{id} on {node:?}");
            }
        }
    }
}
