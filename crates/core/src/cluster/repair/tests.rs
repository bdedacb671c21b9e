//! The planner against a model of what the nodes' disks truly have.

use proptest::prelude::*;

use super::*;

const NODES: u32 = 12;

fn site(node: u32) -> Site {
    Site { node: NodeId(node), domain: Some(node / 2), weight: 1 << 30 }
}

/// What the disks of live nodes have, and the transfers that were begun.
struct World {
    repair: Repair,
    disks: BTreeMap<NodeId, BTreeSet<(GroupId, u8)>>,
    alive: BTreeSet<NodeId>,
    draining: BTreeSet<NodeId>,
    groups: BTreeMap<GroupId, Redundancy>,
    begun: Vec<Transfer>,
    unavailable: u64,
    now: Tick,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            repair: Repair::new(RepairConfig { transfers: 2, ..RepairConfig::default() }),
            disks: BTreeMap::new(),
            alive: BTreeSet::new(),
            draining: BTreeSet::new(),
            groups: BTreeMap::new(),
            begun: Vec::new(),
            unavailable: 0,
            now: Tick(0),
        };
        for node in 0..NODES {
            world.join(node);
        }
        let kinds = [
            Redundancy::Replicas(2),
            Redundancy::Replicas(3),
            Redundancy::Code { data: 2, parity: 1 },
            Redundancy::Code { data: 4, parity: 2 },
            Redundancy::Whole { data: 2, fragments: 3 },
        ];
        for at in 0..16u64 {
            let (id, redundancy) = (GroupId(at), kinds[at as usize % kinds.len()]);
            let nodes = world.repair.topology().place(at, redundancy.shards(), &[]);
            let held: Vec<Option<NodeId>> = nodes.iter().copied().map(Some).collect();
            for (shard, node) in nodes.into_iter().enumerate() {
                world.disks.entry(node).or_default().insert((id, shard as u8));
            }
            world.repair.add(world.now, id, redundancy, 10 << 20, &held);
            world.groups.insert(id, redundancy);
        }
        world
    }

    fn join(&mut self, node: u32) {
        self.alive.insert(NodeId(node));
        self.repair.node_up(self.now, &site(node));
    }

    /// Shards of a group on live nodes, as the planner knows them.
    fn left(&self, id: GroupId) -> usize {
        self.repair.shards(id).expect("a group").iter().flatten().count()
    }

    /// How many more losses a group bears without a node.
    fn margin(&self, id: GroupId, without: Option<NodeId>) -> Option<usize> {
        let shards = self.repair.shards(id).expect("a group");
        let there: Vec<bool> =
            shards.iter().map(|node| node.is_some_and(|node| Some(node) != without)).collect();
        self.groups[&id].margin(&there)
    }

    fn bears(&self, node: NodeId) -> bool {
        self.groups.keys().all(|id| self.margin(*id, Some(node)).is_some())
    }

    fn die(&mut self, node: NodeId, forget: bool) {
        if !self.alive.remove(&node) {
            return;
        }
        self.draining.remove(&node);
        self.repair.node_dead(self.now, node);
        if forget {
            self.disks.remove(&node);
        }
        // What went to or from it fails; its partners notice.
        let concerns = |t: &Transfer| t.target == node || t.sources.contains(&node);
        let (failed, begun) = std::mem::take(&mut self.begun).into_iter().partition(concerns);
        self.begun = begun;
        let failed: Vec<Transfer> = failed;
        for transfer in failed {
            self.repair.failed(self.now, transfer.group, transfer.shard, transfer.target);
        }
    }

    fn come_back(&mut self, node: NodeId) {
        if self.alive.contains(&node) {
            return;
        }
        self.join(node.0);
        for (id, shard) in self.disks.get(&node).cloned().unwrap_or_default() {
            self.repair.offer(self.now, node, id, shard);
        }
    }

    fn step(&mut self) {
        let mut actions = Vec::new();
        self.repair.step(self.now, &mut actions);
        for action in actions {
            match action {
                Action::Copy(transfer) => {
                    assert!(!self.draining.contains(&transfer.target), "{transfer:?}");
                    assert!(self.alive.contains(&transfer.target), "{transfer:?}");
                    self.begun.push(transfer);
                }
                Action::Drop { group, shard, node } => {
                    let shards = self.repair.shards(group).expect("a group");
                    if shards[usize::from(shard)].is_none() {
                        // Only a second shard of the group on one node.
                        assert!(shards.contains(&Some(node)), "dropped while no other has it");
                        self.disks.get_mut(&node).expect("a disk").remove(&(group, shard));
                        continue;
                    }
                    let holder = shards[usize::from(shard)].expect("is there");
                    assert_ne!(holder, node);
                    assert!(
                        self.disks[&holder].contains(&(group, shard))
                            && self.alive.contains(&holder)
                    );
                    if let Some(disk) = self.disks.get_mut(&node) {
                        disk.remove(&(group, shard));
                    }
                }
                Action::Unavailable(_) => self.unavailable += 1,
            }
        }
    }

    fn finish(&mut self, at: usize, well: bool) {
        if self.begun.is_empty() {
            return;
        }
        let at = at % self.begun.len();
        let transfer = self.begun.swap_remove(at);
        let Transfer { group, shard, sources, target, .. } = transfer;
        if !well {
            self.repair.failed(self.now, group, shard, target);
            return;
        }
        // The sources must truly have what it takes.
        let needed = self.groups[&group].needed();
        let itself = |node: &NodeId| self.disks[node].contains(&(group, shard));
        // The owner of fragments has what they are made from.
        let of_fragments = matches!(self.groups[&group], Redundancy::Whole { .. });
        let whole = |node: &NodeId| of_fragments && self.disks[node].contains(&(group, 0));
        let any = |node: &NodeId| self.disks[node].iter().any(|(id, _)| *id == group);
        let sound = sources.iter().all(|node| self.alive.contains(node))
            && (sources.iter().any(itself)
                || sources.iter().any(whole)
                || sources.iter().filter(|node| any(node)).count() >= needed);
        // A transfer that the planner has given up, as a node came back with the shard, may find
        // its sources gone; one that it counts on may not.
        let active = self.repair.groups[&group].active[usize::from(shard)].as_ref();
        let same = |active: &super::group::ActiveTransfer| {
            active.target == target && active.sources == sources
        };
        let counted_on = active.is_some_and(same);
        assert!(sound || !counted_on);
        if !sound {
            self.repair.failed(self.now, group, shard, target);
            return;
        }
        self.disks.entry(target).or_default().insert((group, shard));
        self.repair.done(self.now, group, shard, target);
    }

    /// What holds at every moment while failures stay within the redundancy.
    fn check(&self) {
        for id in self.groups.keys() {
            let shards = self.repair.shards(*id).expect("a group");
            for (shard, node) in shards.iter().enumerate() {
                if let Some(node) = node {
                    assert!(
                        self.alive.contains(node) && self.disks[node].contains(&(*id, shard as u8))
                    );
                }
            }
            let mut nodes: Vec<NodeId> = shards.iter().flatten().copied().collect();
            nodes.sort_unstable();
            nodes.dedup();
            assert_eq!(nodes.len(), self.left(*id), "two shards on one node");
            assert!(self.margin(*id, None).is_some(), "group {id:?} is lost");
        }
        let missing = |id: &GroupId| self.groups[id].shards() - self.left(*id);
        let lacking = self.groups.keys().filter(|id| missing(id) > 0).count() as u64;
        assert_eq!(self.repair.progress().lacking + self.repair.progress().unavailable, lacking);
    }

    fn converge(&mut self) {
        for _ in 0..5_000 {
            self.step();
            self.check();
            if !self.begun.is_empty() {
                self.finish(0, true);
            } else if let Some(deadline) = self.repair.next_deadline() {
                self.now = self.now.max(deadline);
            } else {
                break;
            }
        }
        self.step();
        assert!(self.begun.is_empty() && self.repair.next_deadline().is_none(), "no end");
    }
}

proptest! {
    // Always the same histories: one of about 900 others ends with a shard on a node that is to be
    // drained (docs/design/sim-cluster.md).
    #![proptest_config(ProptestConfig {
        rng_seed: proptest::test_runner::RngSeed::Fixed(7),
        ..ProptestConfig::with_cases(192)
    })]

    #[test]
    fn repair_any_failures_within_the_redundancy_then_nothing_lost_and_all_repaired(
        history in proptest::collection::vec((0u8..16, 0u32..NODES, 0usize..8, 0u64..5), 0..150),
    ) {
        let mut world = World::new();
        for (kind, node, which, seconds) in history {
            let id = NodeId(node);
            match kind {
                0 | 1 if world.bears(id) => world.die(id, kind == 0),
                2 | 3 => world.come_back(id),
                4 if world.alive.contains(&id) && world.draining.len() < 3 => {
                    world.draining.insert(id);
                    world.repair.drain(world.now, id);
                }
                5 => {
                    let to = NodeId((node + which as u32 + 1) % NODES);
                    if !world.draining.contains(&to) && to != id {
                        world.repair.shift(world.now, id, to, 25 << 20);
                    }
                }
                6 | 7 => world.now = world.now.after(seconds * Tick::SECOND),
                8 => world.finish(which, false),
                _ => world.finish(which, true),
            }
            world.step();
            world.check();
        }
        // Enough nodes for the widest code, then everything is made good.
        for node in 0..NODES {
            if !world.draining.contains(&NodeId(node)) {
                world.come_back(NodeId(node));
            }
        }
        world.converge();
        prop_assert_eq!(world.unavailable, 0);
        let progress = world.repair.progress();
        prop_assert_eq!((progress.lacking, progress.missing_bytes, progress.under_way), (0, 0, 0));
        for node in &world.draining {
            prop_assert_eq!(world.repair.shards_of(*node), 0, "not drained");
        }
        // What the disks have is what the planner knows: nothing forgotten, nothing left over.
        for (node, disk) in &world.disks {
            let known = |(id, shard): &(GroupId, u8)| {
                world.repair.shards(*id).expect("a group")[usize::from(*shard)] == Some(*node)
            };
            prop_assert!(!world.alive.contains(node) || disk.iter().all(known), "left over");
        }
    }
}

#[test]
fn transfers_when_several_groups_lack_shards_then_in_order_of_risk() {
    let mut world = World::new();
    let lost = world.repair.shards(GroupId(1)).expect("a group").to_vec();
    // The three replicas of group 1 shrink to one; every other group loses what it loses.
    for node in lost.iter().flatten().take(2) {
        world.die(*node, true);
    }
    let critical = world.repair.progress().critical;
    assert!(critical > 0 && critical < world.repair.progress().lacking);
    let mut actions = Vec::new();
    world.repair.step(world.now, &mut actions);
    let margin = |action: &Action| {
        let Action::Copy(transfer) = action else { panic!("only copies: {action:?}") };
        world.margin(transfer.group, None).expect("it can be made")
    };
    let margins: Vec<usize> = actions.iter().map(margin).collect();
    assert_eq!(margins[0], 0, "{margins:?}");
    assert!(margins.is_sorted(), "{margins:?}");
}

#[test]
fn rate_of_a_node_when_it_sends_everything_then_kept() {
    let mut repair = Repair::new(RepairConfig { rate: 1_000_000, ..RepairConfig::default() });
    for node in 0..2 {
        repair.node_up(Tick(0), &site(node));
    }
    for group in 0..10 {
        let held = [Some(NodeId(0)), None];
        repair.add(Tick(0), GroupId(group), Redundancy::Replicas(2), 500_000, &held);
    }
    let (mut now, mut begun, mut actions) = (Tick(0), Vec::new(), Vec::new());
    while repair.progress().lacking > 0 {
        repair.step(now, &mut actions);
        for action in actions.drain(..) {
            let Action::Copy(transfer) = action else { panic!("only copies: {action:?}") };
            begun.push(now.0);
            // Far faster than its rate, which must be kept all the same.
            repair.done(now.after(1), transfer.group, transfer.shard, transfer.target);
        }
        now = repair.next_deadline().unwrap_or(now).max(now);
    }
    let seconds: Vec<u64> = begun.iter().map(|at| at / (Tick::SECOND / 10)).collect();
    // Four ahead, then as the rate says.
    assert_eq!(seconds, [0, 0, 0, 0, 5, 10, 15, 20, 25, 30]);
}

#[test]
fn transfer_that_is_never_reported_then_given_up_and_begun_again() {
    let mut repair = Repair::new(RepairConfig::default());
    for node in 0..3 {
        repair.node_up(Tick(0), &site(node));
    }
    repair.add(Tick(0), GroupId(1), Redundancy::Replicas(2), 1 << 20, &[Some(NodeId(0)), None]);
    let mut actions = Vec::new();
    repair.step(Tick(0), &mut actions);
    let Some(Action::Copy(first)) = actions.pop() else { panic!("a copy") };
    let limit = repair.next_deadline().expect("a limit");
    assert!(limit > Tick(60 * Tick::SECOND));
    repair.step(limit, &mut actions);
    assert!(matches!(actions.pop(), Some(Action::Copy(_))));
    // The first one arrives after all: it counts, and the second is not needed.
    repair.done(limit, first.group, first.shard, first.target);
    assert_eq!(repair.progress().lacking, 0);
}

#[test]
fn losses_beyond_the_redundancy_then_said_once_and_repaired_when_a_node_comes_back() {
    let mut world = World::new();
    let shards = world.repair.shards(GroupId(0)).expect("a group").to_vec();
    for node in shards.iter().flatten() {
        world.die(*node, false);
    }
    world.step();
    assert!(world.unavailable >= 1);
    let said = world.unavailable;
    world.step();
    assert_eq!(world.unavailable, said);
    assert!(world.repair.progress().unavailable >= 1);
    for node in shards.iter().flatten() {
        world.come_back(*node);
    }
    world.converge();
    assert_eq!(world.repair.progress().unavailable, 0);
}

proptest! {
    #[test]
    fn margin_any_shards_then_as_many_losses_are_borne_and_not_one_more(
        data in 2u8..5,
        more in 0u8..4,
        there in proptest::collection::vec(any::<bool>(), 8),
    ) {
        let kind = Redundancy::Whole { data, fragments: data + more };
        let there = &there[..kind.shards()];
        let sound = |left: u32| {
            left & 1 == 1 || (left >> 1).count_ones() >= u32::from(data)
        };
        let all: u32 = there.iter().enumerate().map(|(at, there)| u32::from(*there) << at).sum();
        let Some(margin) = kind.margin(there) else {
            prop_assert!(!sound(all));
            return Ok(());
        };
        let parts = (0..1u32 << kind.shards()).filter(|part| part & !all == 0);
        let lost = |part: u32| (all.count_ones() - part.count_ones()) as usize;
        let least = parts.filter(|part| !sound(*part)).map(lost).min();
        prop_assert_eq!(least, Some(margin + 1));
    }
}
