//! What is under-replicated, what leaves a draining node, what is moved: one planner, in order of
//! risk and within a rate.
//!
//! A *group* is what is lost or kept as one: the replicas of a file, or the shards of a stripe. The
//! planner knows where the shards of each group are, is told what happens to nodes, and asks for
//! transfers. What the next failure would destroy comes first, then what is one failure further
//! away; then drains, then moves for balance. Each node sends and receives at a limited rate and few
//! transfers at a time. As the groups of a node have their other shards on many nodes, all of those
//! take part in its repair ("declustered": the more nodes, the faster).
//!
//! A shard is dropped only after another one in its place has been reported done, so no order of
//! events can drop the last.
//!
//! # Invariants
//! - Repair never drops the last copy, converges, and loses nothing while failures stay within the
//!   redundancy (`repair/tests.rs`).

mod group;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use self::group::{ActiveTransfer, Group, Rank};
pub use self::group::{GroupId, Redundancy};
use super::NodeId;
use super::hash::mix;
use super::placement::{Site, Topology};
use crate::unit::Tick;

/// Limits of repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RepairConfig {
    /// Bytes a second that a node sends and receives for repair, together.
    pub rate: u64,
    /// Transfers at a time that a node takes part in. They share the rate: on average it is kept,
    /// whatever is begun ahead.
    pub transfers: u32,
    /// A transfer may take so many times as long as its share of the rate says, and a minute more;
    /// then it counts as failed.
    pub slack: u32,
    /// Nanoseconds until something that failed is tried again.
    pub pause: u64,
}

impl Default for RepairConfig {
    /// 64 MiB/s a node, four transfers at a time.
    fn default() -> Self {
        Self { rate: 64 << 20, transfers: 4, slack: 8, pause: Tick::SECOND }
    }
}

/// A copy to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// The group.
    pub group: GroupId,
    /// Which of its shards.
    pub shard: u8,
    /// Where to read: one node that has this shard or another replica; or as many as the code needs,
    /// each for a shard of its own, to make this one from theirs.
    pub sources: Vec<NodeId>,
    /// Where to write.
    pub target: NodeId,
    /// Bytes from each source, and to write.
    pub bytes: u64,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make a copy; report [`Repair::done`] or [`Repair::failed`].
    Copy(Transfer),
    /// A shard that is not needed any more: remove it. A later [`Action::Copy`] may bring it back to
    /// the same node, so each node's actions are done in order.
    Drop {
        /// The group.
        group: GroupId,
        /// The shard.
        shard: u8,
        /// The node that has it.
        node: NodeId,
    },
    /// Too few shards are left on live nodes. If one of those that had a shard comes back with it,
    /// the group is repaired all the same.
    Unavailable(GroupId),
}

/// How far repair is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Groups with missing shards that can be made.
    pub lacking: u64,
    /// Of these, groups that the next loss would make unavailable.
    pub critical: u64,
    /// Groups with too few shards on live nodes.
    pub unavailable: u64,
    /// Shards missing of groups that can be repaired, in bytes.
    pub missing_bytes: u64,
    /// Transfers under way.
    pub under_way: u64,
    /// Bytes written by transfers that were done.
    pub done_bytes: u64,
    /// Transfers that were done.
    pub done: u64,
}

impl Progress {
    /// Adds a group to the sums of [`Progress`], or takes it out.
    fn count(&mut self, group: &Group, add: bool) {
        let missing = group.missing() as u64;
        if missing == 0 {
            return;
        }
        let step = |value: &mut u64, by: u64| {
            *value = if add { *value + by } else { value.saturating_sub(by) };
        };
        match group.margin() {
            Some(margin) => {
                step(&mut self.lacking, 1);
                step(&mut self.critical, u64::from(margin == 0));
                step(&mut self.missing_bytes, missing * group.bytes);
            }
            None => step(&mut self.unavailable, 1),
        }
    }
}

#[derive(Debug, Default, Clone)]
struct Node {
    alive: bool,
    draining: bool,
    /// Until then its share of the rate is spent.
    free_at: Tick,
    /// When it tries again what waits for it.
    wake_at: Option<Tick>,
    shards: BTreeSet<(GroupId, u8)>,
    active: BTreeSet<(GroupId, u8)>,
    /// Groups whose next transfer waits for this node.
    waiting: BTreeSet<(Rank, GroupId)>,
}

/// The list in which a group waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitList {
    Queue(Rank),
    Node(NodeId, Rank),
    /// For a node to join or to get room.
    Stuck,
    /// For time to pass after a failure.
    Until(Tick),
}

/// What came of trying to begin a transfer.
enum Outcome {
    Begun,
    Blocked(NodeId),
    Stuck,
    Nothing,
}

/// The planner.
#[derive(Debug, Clone)]
pub struct Repair {
    config: RepairConfig,
    topology: Topology,
    nodes: BTreeMap<NodeId, Node>,
    groups: BTreeMap<GroupId, Group>,
    wait_lists: BTreeMap<GroupId, WaitList>,
    queue: BTreeSet<(Rank, GroupId)>,
    stuck: BTreeSet<GroupId>,
    pauses: BTreeSet<(Tick, GroupId)>,
    /// When nodes for which others wait have paid for what they did.
    wakes: BTreeSet<(Tick, NodeId)>,
    limits: BTreeSet<(Tick, GroupId, u8)>,
    unreported: BTreeSet<GroupId>,
    /// Copies to remove, unless they have become needed by then.
    drops: Vec<(GroupId, u8, NodeId)>,
    /// Groups that a node let go of to try again: if they need it no more, the next may.
    released: BTreeMap<GroupId, NodeId>,
    progress: Progress,
}

impl Repair {
    /// No nodes and no groups yet.
    #[must_use]
    pub fn new(config: RepairConfig) -> Self {
        Self {
            config,
            topology: Topology::default(),
            nodes: BTreeMap::new(),
            groups: BTreeMap::new(),
            wait_lists: BTreeMap::new(),
            queue: BTreeSet::new(),
            stuck: BTreeSet::new(),
            pauses: BTreeSet::new(),
            wakes: BTreeSet::new(),
            limits: BTreeSet::new(),
            unreported: BTreeSet::new(),
            drops: Vec::new(),
            released: BTreeMap::new(),
            progress: Progress::default(),
        }
    }

    /// How far repair is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress { under_way: self.limits.len() as u64, ..self.progress }
    }

    /// Where placement stands: the nodes and their free space.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The nodes of a group's shards; `None` for one that is missing. Nothing for an unknown group.
    #[must_use]
    pub fn shards(&self, group: GroupId) -> Option<&[Option<NodeId>]> {
        self.groups.get(&group).map(|group| &group.held[..])
    }

    /// How many shards a node has.
    #[must_use]
    pub fn shards_of(&self, node: NodeId) -> usize {
        self.nodes.get(&node).map_or(0, |node| node.shards.len())
    }

    /// The groups that a node has shards of.
    pub fn groups_of(&self, node: NodeId) -> impl Iterator<Item = GroupId> + '_ {
        let shards = self.nodes.get(&node).into_iter().flat_map(|node| &node.shards);
        shards.map(|(group, _)| *group)
    }

    /// Bytes of the shards that a node has.
    #[must_use]
    pub fn bytes_on(&self, node: NodeId) -> u64 {
        let bytes = |id| self.groups.get(&id).map_or(0, |group| group.bytes);
        self.groups_of(node).map(bytes).sum()
    }

    /// Shards that are to move for balance, and their bytes.
    #[must_use]
    pub fn moves(&self) -> (u64, u64) {
        let asked = self.groups.values().filter(|group| group.wanted.is_some());
        asked.fold((0, 0), |(count, bytes), group| (count + 1, bytes + group.bytes))
    }

    /// A node takes part, or has another weight (free space), or is back: what it still has is told
    /// by [`Repair::offer`].
    pub fn node_up(&mut self, now: Tick, site: &Site) {
        let node = self.nodes.entry(site.node).or_default();
        node.alive = true;
        let weight = if node.draining { 0 } else { site.weight };
        self.topology.put(&Site { weight, ..*site });
        for group in std::mem::take(&mut self.stuck) {
            self.sort_in(now, group);
        }
    }

    /// A node is dead: what it had is missing, what went to or from it has failed.
    pub fn node_dead(&mut self, now: Tick, node: NodeId) {
        self.topology.set_weight(node, 0);
        let Some(state) = self.nodes.get_mut(&node) else { return };
        state.alive = false;
        state.draining = false;
        let shards = std::mem::take(&mut state.shards);
        for (group, shard) in state.active.clone() {
            self.end_transfer(now, group, shard);
            self.sort_in(now, group);
        }
        for (group, shard) in shards {
            self.change(group, |group| group.held[usize::from(shard)] = None);
            self.sort_in(now, group);
        }
        self.release_all(now, node);
    }

    /// The node's shards go elsewhere. [`Repair::shards_of`] is 0 when it is done.
    pub fn drain(&mut self, now: Tick, node: NodeId) {
        self.topology.set_weight(node, 0);
        let Some(state) = self.nodes.get_mut(&node) else { return };
        state.draining = true;
        let groups: BTreeSet<GroupId> = state.shards.iter().map(|(group, _)| *group).collect();
        for group in groups {
            self.sort_in(now, group);
        }
    }

    /// A new group, with the node of each shard: what is `None`, or on a node that is not alive, is
    /// missing. `bytes` are those of one shard. A group that is known already is left as it is.
    pub fn add(
        &mut self,
        now: Tick,
        id: GroupId,
        redundancy: Redundancy,
        bytes: u64,
        held: &[Option<NodeId>],
    ) {
        if self.groups.contains_key(&id) {
            return;
        }
        let mut group = Group::new(redundancy, bytes, now);
        for (shard, node) in held.iter().enumerate().take(redundancy.shards()) {
            let state = node.and_then(|node| self.nodes.get_mut(&node));
            if let Some(state) = state.filter(|state| state.alive) {
                group.held[shard] = *node;
                state.shards.insert((id, shard as u8));
            }
        }
        self.progress.count(&group, true);
        self.groups.insert(id, group);
        self.sort_in(now, id);
    }

    /// A group is no more, or has become another version.
    pub fn remove(&mut self, now: Tick, id: GroupId) {
        let shards = self.groups.get(&id).map_or(0, |group| group.held.len());
        for shard in 0..shards {
            self.end_transfer(now, id, shard as u8);
        }
        self.take_out(id);
        self.unreported.remove(&id);
        self.released.remove(&id);
        if let Some(group) = self.groups.remove(&id) {
            self.progress.count(&group, false);
            for (shard, node) in group.held.iter().enumerate() {
                if let Some(state) = node.and_then(|node| self.nodes.get_mut(&node)) {
                    state.shards.remove(&(id, shard as u8));
                }
            }
        }
    }

    /// A node that is up says that it has a shard of the group's present version: it counts if it
    /// was missing, else the node is told to drop it.
    pub fn offer(&mut self, now: Tick, node: NodeId, id: GroupId, shard: u8) {
        let at = usize::from(shard);
        let alive = self.nodes.get(&node).is_some_and(|node| node.alive);
        let Some(group) = self.groups.get(&id).filter(|group| at < group.held.len() && alive)
        else {
            return;
        };
        if group.held[at] == Some(node) {
            return;
        }
        if group.held[at].is_none() && !group.held.contains(&Some(node)) {
            self.end_transfer(now, id, shard);
            self.hold(id, shard, node);
            self.sort_in(now, id);
        } else {
            self.drops.push((id, shard, node));
        }
    }

    /// A transfer was done.
    pub fn done(&mut self, now: Tick, id: GroupId, shard: u8, target: NodeId) {
        let at = usize::from(shard);
        let Some(group) = self.groups.get(&id).filter(|group| at < group.held.len()) else {
            self.drops.push((id, shard, target));
            return;
        };
        if group.active[at].as_ref().is_none_or(|active| active.target != target) {
            // Too late: it was given up. It may still be what is missing.
            self.offer(now, target, id, shard);
            return;
        }
        let (bytes, former) = (group.bytes, group.held[at]);
        // The target may have come to have another shard of the group, by a transfer that had been
        // given up: one failure would take both.
        if group.held.contains(&Some(target)) {
            self.end_transfer(now, id, shard);
            self.drops.push((id, shard, target));
            self.sort_in(now, id);
            return;
        }
        self.end_transfer(now, id, shard);
        self.progress.done += 1;
        self.progress.done_bytes += bytes;
        if let Some(node) = former {
            if let Some(state) = self.nodes.get_mut(&node) {
                state.shards.remove(&(id, shard));
            }
            self.let_go(id, shard, node);
        }
        self.hold(id, shard, target);
        self.sort_in(now, id);
    }

    /// A transfer came to nothing: it is tried again after a pause, and perhaps elsewhere.
    pub fn failed(&mut self, now: Tick, id: GroupId, shard: u8, target: NodeId) {
        let active = |group: &Group| group.active.get(usize::from(shard)).cloned().flatten();
        if self.groups.get(&id).and_then(active).is_none_or(|active| active.target != target) {
            return;
        }
        self.end_transfer(now, id, shard);
        self.take_out(id);
        let until = now.after(self.config.pause);
        self.pauses.insert((until, id));
        self.wait_lists.insert(id, WaitList::Until(until));
    }

    /// Moves shards of at most `bytes` from one node to another, and returns how many bytes it will
    /// be. Only healthy groups move, none that has a shard at `to`, and none that would come to have
    /// more shards in one failure domain than it has.
    pub fn shift(&mut self, now: Tick, from: NodeId, to: NodeId, bytes: u64) -> u64 {
        let Some(state) = self.nodes.get(&from) else { return 0 };
        let (mut moved, mut chosen) = (0u64, Vec::new());
        for (id, shard) in &state.shards {
            let Some(group) = self.groups.get(id) else { continue };
            // The whole is where its owner is.
            if *shard == 0 && matches!(group.redundancy, Redundancy::Whole { .. }) {
                continue;
            }
            let healthy = group.missing() == 0 && group.wanted.is_none() && group.is_quiet();
            let others = || group.held.iter().flatten().filter(|node| **node != from);
            let near = |node: &NodeId| self.topology.together(*node, to);
            let apart = self.topology.together(from, to) || !others().any(near);
            if healthy
                && apart
                && !others().any(|node| *node == to)
                && moved + group.bytes <= bytes
                && !chosen.iter().any(|(other, _)| other == id)
            {
                moved += group.bytes;
                chosen.push((*id, *shard));
            }
            if moved == bytes {
                break;
            }
        }
        for (id, shard) in chosen {
            if let Some(group) = self.groups.get_mut(&id) {
                group.wanted = Some((shard, to));
            }
            self.sort_in(now, id);
        }
        moved
    }

    /// Time passes, or something has changed: says what is to be done now.
    pub fn step(&mut self, now: Tick, actions: &mut Vec<Action>) {
        self.drop_copies(now, actions);
        for id in std::mem::take(&mut self.unreported) {
            actions.push(Action::Unavailable(id));
        }
        while let Some((until, id, shard)) = self.limits.first().copied()
            && until <= now
        {
            self.end_transfer(now, id, shard);
            self.sort_in(now, id);
        }
        while let Some((until, id)) = self.pauses.first().copied()
            && until <= now
        {
            self.sort_in(now, id);
        }
        while let Some((until, node)) = self.wakes.first().copied()
            && until <= now
        {
            self.wakes.remove(&(until, node));
            if let Some(state) = self.nodes.get_mut(&node) {
                state.wake_at = None;
            }
            self.release(now, node);
        }
        while let Some((rank, id)) = self.queue.pop_first() {
            self.wait_lists.remove(&id);
            let from = self.released.remove(&id);
            match self.begin(now, id, actions) {
                Outcome::Begun => self.sort_in(now, id),
                Outcome::Blocked(node) => self.park(now, id, rank, node),
                Outcome::Stuck => {
                    self.stuck.insert(id);
                    self.wait_lists.insert(id, WaitList::Stuck);
                }
                Outcome::Nothing => {}
            }
            if let Some(node) = from {
                self.release(now, node);
            }
        }
        self.drop_copies(now, actions);
    }

    /// When to call [`Repair::step`] again if nothing else happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Tick> {
        let ends = [
            self.limits.first().map(|(at, _, _)| *at),
            self.pauses.first().map(|(at, _)| *at),
            self.wakes.first().map(|(at, _)| *at),
        ];
        ends.into_iter().flatten().min()
    }
}

/// What the events above are made of.
impl Repair {
    /// Changes where shards of a group are, and keeps the sums.
    fn change(&mut self, id: GroupId, change: impl FnOnce(&mut Group)) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        self.progress.count(group, false);
        let before = group.margin();
        change(group);
        if before.is_some() && group.margin().is_none() {
            self.unreported.insert(id);
        } else if group.margin().is_some() {
            self.unreported.remove(&id);
        }
        self.progress.count(group, true);
    }

    fn hold(&mut self, id: GroupId, shard: u8, node: NodeId) {
        if let Some(state) = self.nodes.get_mut(&node) {
            state.shards.insert((id, shard));
        }
        self.change(id, |group| {
            group.held[usize::from(shard)] = Some(node);
            group.leaving.retain(|copy| *copy != (shard, node));
            if group.wanted.is_some_and(|(asked, _)| asked == shard) {
                group.wanted = None;
            }
        });
    }

    /// Drops a copy, but not from under those who read it.
    fn let_go(&mut self, id: GroupId, shard: u8, node: NodeId) {
        match self.groups.get_mut(&id).filter(|group| group.is_read(node)) {
            Some(group) => group.leaving.push((shard, node)),
            None => self.drops.push((id, shard, node)),
        }
    }

    /// Says what is to be removed. If the copy that took its place is lost meanwhile, it is needed
    /// after all.
    fn drop_copies(&mut self, now: Tick, actions: &mut Vec<Action>) {
        for (group, shard, node) in std::mem::take(&mut self.drops) {
            let held = |g: &Group| g.held.get(usize::from(shard)).copied().flatten();
            let held = self.groups.get(&group).map(|g| (held(g), g));
            match held {
                Some((Some(holder), _)) if holder == node => {}
                Some((None, g)) if !g.held.contains(&Some(node)) => {
                    self.offer(now, node, group, shard);
                }
                _ => actions.push(Action::Drop { group, shard, node }),
            }
        }
    }

    fn take_out(&mut self, id: GroupId) {
        match self.wait_lists.remove(&id) {
            Some(WaitList::Queue(rank)) => {
                self.queue.remove(&(rank, id));
            }
            Some(WaitList::Node(node, rank)) => {
                if let Some(state) = self.nodes.get_mut(&node) {
                    state.waiting.remove(&(rank, id));
                }
            }
            Some(WaitList::Stuck) => {
                self.stuck.remove(&id);
            }
            Some(WaitList::Until(until)) => {
                self.pauses.remove(&(until, id));
            }
            None => {}
        }
    }

    /// Puts a group where it now belongs: into the queue if there is anything to do for it.
    fn sort_in(&mut self, now: Tick, id: GroupId) {
        self.take_out(id);
        let Some(group) = self.groups.get_mut(&id) else { return };
        if group.missing() == 0 {
            group.since = now;
        }
        let nodes = &self.nodes;
        let draining = |node| nodes.get(&node).is_some_and(|node| node.draining);
        if let Some((rank, _)) = group.next(draining) {
            self.queue.insert((rank, id));
            self.wait_lists.insert(id, WaitList::Queue(rank));
        }
    }

    fn park(&mut self, now: Tick, id: GroupId, rank: Rank, node: NodeId) {
        let Some(state) = self.nodes.get_mut(&node) else { return };
        state.waiting.insert((rank, id));
        self.wait_lists.insert(id, WaitList::Node(node, rank));
        self.wake(now, node);
    }

    /// Sees to it that what waits for a node is tried again when its rate allows. If it has too many
    /// transfers instead, the end of one does that.
    fn wake(&mut self, now: Tick, node: NodeId) {
        let Some(first) = self.first_waiting(node) else { return };
        let ahead = self.ahead(self.takes(first));
        let Some(state) = self.nodes.get_mut(&node) else { return };
        let at = Tick(state.free_at.0.saturating_sub(ahead));
        if at > now && state.wake_at.is_none_or(|earlier| at < earlier) {
            if let Some(earlier) = state.wake_at.replace(at) {
                self.wakes.remove(&(earlier, node));
            }
            self.wakes.insert((at, node));
        }
    }

    fn first_waiting(&self, node: NodeId) -> Option<GroupId> {
        self.nodes.get(&node)?.waiting.first().map(|(_, id)| *id)
    }

    /// A node may be free: the most urgent that waits for it tries again. If that one turns out to
    /// wait for another node, [`Repair::step`] comes back for the next.
    fn release(&mut self, now: Tick, node: NodeId) {
        let Some(first) = self.first_waiting(node) else { return };
        if self.is_busy(now, node, self.takes(first)) {
            self.wake(now, node);
            return;
        }
        let Some(state) = self.nodes.get_mut(&node) else { return };
        if let Some((rank, id)) = state.waiting.pop_first() {
            self.queue.insert((rank, id));
            self.wait_lists.insert(id, WaitList::Queue(rank));
            self.released.insert(id, node);
        }
    }

    fn release_all(&mut self, now: Tick, node: NodeId) {
        let waiting = self.nodes.get(&node).map(|state| state.waiting.clone());
        for (_, id) in waiting.into_iter().flatten() {
            self.sort_in(now, id);
        }
    }

    fn end_transfer(&mut self, now: Tick, id: GroupId, shard: u8) {
        let group = self.groups.get_mut(&id);
        let Some(active) = group.and_then(|g| g.active[usize::from(shard)].take()) else { return };
        self.limits.remove(&(active.until, id, shard));
        for node in active.sources.iter().chain([&active.target]) {
            if let Some(state) = self.nodes.get_mut(node) {
                state.active.remove(&(id, shard));
            }
        }
        for node in active.sources.iter().chain([&active.target]) {
            self.release(now, *node);
        }
        let leaving = self.groups.get_mut(&id).map(|group| std::mem::take(&mut group.leaving));
        for (shard, node) in leaving.into_iter().flatten() {
            self.let_go(id, shard, node);
        }
    }

    /// Nanoseconds of a node's rate that a shard of the group takes.
    fn takes(&self, id: GroupId) -> u64 {
        let bytes = self.groups.get(&id).map_or(0, |group| group.bytes);
        bytes.saturating_mul(Tick::SECOND / 1_000) / (self.config.rate / 1_000).max(1)
    }

    /// How much of its rate a node may spend ahead, so that it has several transfers at a time: one
    /// that needs many nodes at once would else hardly ever find all of them free.
    fn ahead(&self, takes: u64) -> u64 {
        takes.saturating_mul(u64::from(self.config.transfers.saturating_sub(1)))
    }

    /// Whether a node can't take part in one more transfer now.
    fn is_busy(&self, now: Tick, node: NodeId, takes: u64) -> bool {
        let free = |state: &Node| {
            state.free_at <= now.after(self.ahead(takes))
                && state.active.len() < self.config.transfers as usize
        };
        !self.nodes.get(&node).is_some_and(free)
    }

    /// Begins the most urgent transfer of a group, if the nodes that it needs are free.
    fn begin(&mut self, now: Tick, id: GroupId, actions: &mut Vec<Action>) -> Outcome {
        let Some(group) = self.groups.get(&id) else { return Outcome::Nothing };
        let draining = |node| self.nodes.get(&node).is_some_and(|node| node.draining);
        let Some((_, shard)) = group.next(draining) else { return Outcome::Nothing };
        let takes = self.takes(id);
        let sources = match self.sources(now, group, shard, takes) {
            Ok(sources) => sources,
            Err(busy) => return Outcome::Blocked(busy),
        };
        let target = match self.target(now, id, group, shard) {
            Ok(Some(target)) => target,
            Ok(None) if group.missing() == 0 && group.wanted.is_some() => {
                // The place that was wished for is gone; balance is planned again some time.
                self.change(id, |group| group.wanted = None);
                return Outcome::Begun;
            }
            Ok(None) => return Outcome::Stuck,
            Err(busy) => return Outcome::Blocked(busy),
        };
        let bytes = group.bytes;
        let share = self.ahead(takes).saturating_add(takes);
        let slack = share.saturating_mul(u64::from(self.config.slack));
        let until = now.after(slack).after(60 * Tick::SECOND);
        for node in sources.iter().chain([&target]) {
            if let Some(state) = self.nodes.get_mut(node) {
                state.free_at = state.free_at.max(now).after(takes);
                state.active.insert((id, shard));
            }
        }
        self.limits.insert((until, id, shard));
        let active = ActiveTransfer { sources: sources.clone(), target, until };
        if let Some(group) = self.groups.get_mut(&id) {
            group.active[usize::from(shard)] = Some(active);
        }
        actions.push(Action::Copy(Transfer { group: id, shard, sources, target, bytes }));
        Outcome::Begun
    }

    /// The nodes to read from, or the one to wait for.
    fn sources(
        &self,
        now: Tick,
        group: &Group,
        shard: u8,
        takes: u64,
    ) -> Result<Vec<NodeId>, NodeId> {
        let itself = group.held[usize::from(shard)];
        if let (Redundancy::Whole { .. }, Some(owner)) = (group.redundancy, group.held[0]) {
            return if self.is_busy(now, owner, takes) { Err(owner) } else { Ok(vec![owner]) };
        }
        let needed = match (group.redundancy, itself) {
            // The shard itself is there: it need not be made from others.
            (Redundancy::Code { .. }, Some(node)) => {
                return if self.is_busy(now, node, takes) { Err(node) } else { Ok(vec![node]) };
            }
            (redundancy, _) => redundancy.needed(),
        };
        let mut holders: Vec<NodeId> = group.held.iter().flatten().copied().collect();
        let free_at = |node: &NodeId| self.nodes.get(node).map_or(now, |state| state.free_at);
        holders.sort_by_key(|node| (self.is_busy(now, *node, takes), free_at(node), *node));
        holders.truncate(needed);
        match holders.iter().find(|node| self.is_busy(now, **node, takes)) {
            Some(busy) => Err(*busy),
            None => Ok(holders),
        }
    }

    /// The node to write to; nothing if there is none; or the one to wait for.
    fn target(
        &self,
        now: Tick,
        id: GroupId,
        group: &Group,
        shard: u8,
    ) -> Result<Option<NodeId>, NodeId> {
        let takes = self.takes(id);
        let targets = group.active.iter().flatten().map(|active| active.target);
        // A shard that moves does not keep its own domain occupied.
        let leaving = group.held[usize::from(shard)];
        let staying = group.held.iter().flatten().copied().filter(|node| Some(*node) != leaving);
        let dropped = group.leaving.iter().map(|(_, node)| *node);
        let taken: Vec<NodeId> = staying.chain(targets).chain(dropped).collect();
        let asked = group.wanted.filter(|(asked, _)| group.missing() == 0 && *asked == shard);
        if let Some((_, node)) = asked
            && !leaving.is_some_and(|node| self.nodes.get(&node).is_some_and(|n| n.draining))
        {
            let fit = self.topology.weight(node) > 0 && !taken.contains(&node);
            return match fit {
                true if self.is_busy(now, node, takes) => Err(node),
                fit => Ok(fit.then_some(node)),
            };
        }
        let candidates = self.topology.place(mix(id.0, u64::from(shard)), 4, &taken);
        let free = candidates.iter().find(|node| !self.is_busy(now, **node, takes));
        match (free, candidates.first()) {
            (Some(node), _) => Ok(Some(*node)),
            (None, Some(busy)) => Err(*busy),
            (None, None) => Ok(None),
        }
    }
}
