//! Keeping copies: those that died with their nodes are made again, those on nodes that are to leave
//! move, and those that nobody needs any more go.
//!
//! Each owner looks after the copies of its own files, by [`Repair`]: it says what is copied where,
//! what is most at risk first and within a rate. Each node that has copies asks the metadata from time
//! to time whether they count.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use forebay_core::cluster::NodeId;
use forebay_core::cluster::placement::{Site, Topology};
use forebay_core::cluster::redundancy::Redundancy;
use forebay_core::cluster::repair::{self, Action, GroupId, Repair, RepairConfig, Transfer};
use forebay_core::unit::Tick;
use forebay_meta::{Copies, Error as MetaError, Ino};
use parking_lot::Mutex;

use super::super::{Cluster, Peers};
use crate::error::Result;
use crate::node::Node;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Copies that are asked about at each look.
const ASKED: usize = 64;
/// A copy that the metadata do not know may be one that is being made.
const UNKNOWN_FOR: Duration = Duration::from_secs(60);
/// The nodes that were up at the last look, and the planner.
pub(super) struct Keeper {
    planner: Mutex<Planner>,
    started: Instant,
}

struct Planner {
    repair: Repair,
    up: BTreeSet<u16>,
    leaving: BTreeSet<u16>,
}

/// The nodes among which copies are placed. All count alike.
pub(super) fn topology(nodes: &[u16]) -> Topology {
    Topology::new(&nodes.iter().map(|node| site(*node)).collect::<Vec<_>>())
}

fn site(node: u16) -> Site {
    Site { node: NodeId(node.into()), domain: None, weight: 1 }
}

impl Keeper {
    pub fn new(rate: u64) -> Self {
        let repair = Repair::new(RepairConfig { rate, ..RepairConfig::default() });
        let planner = Planner { repair, up: BTreeSet::new(), leaving: BTreeSet::new() };
        Keeper { planner: Mutex::new(planner), started: Instant::now() }
    }

    fn now(&self) -> Tick {
        Tick(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Copies of a file are to be looked after as they are now; `None` for not any more.
    pub fn watch(&self, ino: u64, me: u16, wanted: Option<(&Copies, usize)>) {
        let now = self.now();
        let mut planner = self.planner.lock();
        let Planner { repair, up, .. } = &mut *planner;
        repair.remove(now, GroupId(ino));
        if let Some((copies, level)) = wanted {
            // Those that are not there any more are found so at the next look.
            for node in copies.holders.iter().copied().chain([me]) {
                if up.insert(node) {
                    repair.node_up(now, &site(node));
                }
            }
            let level = level.max(copies.holders.len());
            let holders = copies.holders.iter().map(|node| Some(NodeId((*node).into())));
            let held: Vec<_> = std::iter::once(Some(NodeId(me.into()))).chain(holders).collect();
            let redundancy =
                repair::Redundancy::Replicas(u8::try_from(level + 1).unwrap_or(u8::MAX));
            repair.add(now, GroupId(ino), redundancy, copies.size.max(1), &held);
        }
    }

    /// How far repair is.
    pub fn progress(&self) -> repair::Progress {
        self.planner.lock().repair.progress()
    }

    /// Takes in which nodes are there; what is to be done now.
    fn look(&self, up: BTreeSet<u16>, leaving: BTreeSet<u16>) -> Vec<Action> {
        let now = self.now();
        let mut planner = self.planner.lock();
        let Planner { repair, up: before, leaving: left } = &mut *planner;
        for node in before.difference(&up) {
            repair.node_dead(now, NodeId((*node).into()));
        }
        for node in up
            .iter()
            .filter(|node| !before.contains(node) || left.contains(node) && !leaving.contains(node))
        {
            if before.contains(node) {
                // It stays after all.
                repair.node_dead(now, NodeId((*node).into()));
            }
            repair.node_up(now, &site(*node));
        }
        for node in leaving.iter().filter(|node| !left.contains(node) && up.contains(node)) {
            repair.drain(now, NodeId((*node).into()));
        }
        (*before, *left) = (up, leaving);
        let mut actions = Vec::new();
        repair.step(now, &mut actions);
        actions
    }

    fn ended(&self, transfer: &Transfer, done: bool) {
        let now = self.now();
        let repair = &mut self.planner.lock().repair;
        match done {
            true => repair.done(now, transfer.group, transfer.shard, transfer.target),
            false => repair.failed(now, transfer.group, transfer.shard, transfer.target),
        }
    }
}

impl Node {
    /// A thread that keeps copies.
    pub(crate) fn start_keeping_copies(&self) {
        if self.cluster.as_ref().is_none_or(|cluster| cluster.peers.get().is_none()) {
            return;
        }
        let this = self.this.clone();
        let keep = move || {
            let mut last = None;
            while let Some(node) = this.upgrade() {
                let Some(cluster) = &node.cluster else { return };
                if node.stopping.load(Ordering::Acquire) {
                    return;
                }
                // A daemon that is handed on leaves it to the next one.
                if let Some(peers) = cluster.peers.get()
                    && !cluster.is_at_rest()
                {
                    node.copy_waiting_again(cluster);
                    node.look_after_own(cluster);
                    node.repair_copies(cluster, peers);
                    last = node.ask_about_held(cluster, last);
                }
                drop(node);
                thread::sleep(LOOK);
            }
        };
        match thread::Builder::new().name("copies".into()).spawn(keep) {
            Ok(thread) => self.threads.lock().push(thread),
            Err(error) => tracing::error!(%error, "nobody looks after copies"),
        }
    }

    /// Drops the copies of files that the backing store has or that are gone.
    fn look_after_own(&self, cluster: &Cluster) {
        for (ino, copies) in cluster.safety.all_made() {
            let (copied, mine) = match self.meta.get(ino) {
                Ok(record) => (record.copied, cluster.is_mine(&record)),
                Err(MetaError::Stale(_)) => (false, true),
                Err(_) => continue,
            };
            if copied && mine {
                continue;
            }
            // Made anew since they were looked at, perhaps.
            if cluster.safety.forget(cluster.me.node, ino, &copies) && !copied {
                self.drop_elsewhere(ino, copies.version, copies.holders);
            }
        }
    }

    fn repair_copies(&self, cluster: &Cluster, peers: &Peers) {
        let up: BTreeSet<u16> = cluster.within_reach(peers).into_iter().collect();
        let leaving =
            up.iter().copied().filter(|node| cluster.nodes.is_told_to_leave(*node)).collect();
        for action in cluster.safety.keeper.look(up, leaving) {
            match action {
                Action::Copy(transfer) => {
                    let failed = transfer.clone();
                    let begun = self.later(move |node| {
                        let Some(cluster) = &node.cluster else { return };
                        let done = node.copy_again(cluster, &transfer).unwrap_or_else(|error| {
                            tracing::warn!(ino = transfer.group.0, %error, "copies are not made again");
                            false
                        });
                        cluster.safety.keeper.ended(&transfer, done);
                    });
                    if !begun {
                        cluster.safety.keeper.ended(&failed, false);
                    }
                }
                // Already gone with the change of the record.
                Action::Drop { .. } => {}
                Action::Unavailable(group) => {
                    tracing::debug!(ino = group.0, "no node has a copy");
                }
            }
        }
    }

    /// Makes the copy that a node had, or should have, on another one.
    fn copy_again(&self, cluster: &Cluster, transfer: &Transfer) -> Result<bool> {
        let (ino, at) = (Ino(transfer.group.0), usize::from(transfer.shard));
        let Ok(target) = u16::try_from(transfer.target.0) else { return Ok(false) };
        let Some((file, known, grows)) = cluster.safety.made_of(ino) else { return Ok(false) };
        let one = file.copying.lock();
        let same = cluster.safety.known(ino).is_some_and(|(now, _)| now == known);
        if !same || at == 0 || known.holders.contains(&target) {
            return Ok(false);
        }
        let whole =
            |file: &crate::files::File| file.changed_from.load(Ordering::Acquire) >= known.size;
        if !grows || !whole(&file) {
            // Others made them, or bytes were overwritten since: it takes a version of this node's.
            drop(one);
            let level = self.level_of(ino).max(1);
            return Ok(self.make_copies(cluster, &file, level)? == super::make::Outcome::Made
                && cluster
                    .safety
                    .known(ino)
                    .is_some_and(|(now, _)| now.holders.contains(&target)));
        }
        let Some(client) = self.peer(cluster, target) else { return Ok(false) };
        if !self.send_copy(&file, &client, known.version, (0, known.size))? || !whole(&file) {
            // What was sent may arrive at any later time: never again under this version.
            cluster.safety.grow_no_more(ino);
            return Ok(false);
        }
        let mut after = known.clone();
        let former = match after.holders.get_mut(at - 1) {
            Some(holder) => Some(std::mem::replace(holder, target)),
            None => {
                after.holders.push(target);
                None
            }
        };
        let moved = self.meta.move_copies(ino, &known, &after)?;
        if moved {
            cluster.safety.moved(ino, after);
            self.metrics.copies_repaired.inc();
            self.drop_elsewhere(ino, known.version, former.into_iter().collect());
        }
        Ok(moved)
    }

    /// Asks about some of the copies that this node has whether they count: those that do not go, and
    /// files whose owner is gone are taken over.
    fn ask_about_held(&self, cluster: &Cluster, last: Option<(u64, u64)>) -> Option<(u64, u64)> {
        let some = cluster.safety.held.after(last, ASKED);
        for ((ino, version), untouched) in &some {
            // One that was just put is most likely not known yet.
            if *untouched >= 2 * LOOK
                && let Err(error) = self.ask_about(cluster, (Ino(*ino), *version), *untouched)
            {
                tracing::debug!(ino, %error, "whether a copy counts is not known");
            }
        }
        some.last().map(|(key, _)| *key)
    }

    fn ask_about(
        &self,
        cluster: &Cluster,
        (ino, version): (Ino, u64),
        untouched: Duration,
    ) -> Result<()> {
        let held = &cluster.safety.held;
        let known = self.meta.record_and_copies(ino)?;
        let known = known.and_then(|(record, copies)| Some((record, copies?)));
        let counts = |copies: &Copies| {
            copies.version == version && copies.holders.contains(&cluster.me.node)
        };
        match known {
            Some((record, copies)) if counts(&copies) => {
                let first = copies
                    .holders
                    .iter()
                    .find(|node| **node == cluster.me.node || !cluster.is_silent(**node));
                let gone = record
                    .owner
                    .filter(|owner| owner.node != cluster.me.node && cluster.is_silent(owner.node));
                if let Some(owner) = gone.filter(|_| first == Some(&cluster.me.node)) {
                    self.take_over(cluster, &record, owner, &copies)?;
                }
            }
            // Taken over, and this node died before it was an object.
            Some((record, copies)) if copies.version == version && cluster.is_mine(&record) => {
                self.load(&crate::context::Context::DAEMON, &self.files.get(ino))?;
            }
            _ if untouched >= UNKNOWN_FOR => self.drop_copy_held(held, ino.0, version)?,
            _ => {}
        }
        Ok(())
    }

    /// Whether a copy that this node has counts, or may.
    pub(super) fn has_needed_copies(&self, cluster: &Cluster) -> bool {
        let mut last = None;
        loop {
            let some = cluster.safety.held.after(last, ASKED);
            let Some((end, _)) = some.last() else { return false };
            last = Some(*end);
            let counts = |ino: u64, version: u64| match self.meta.copies(Ino(ino)) {
                Ok(Some(copies)) => {
                    copies.version == version && copies.holders.contains(&cluster.me.node)
                }
                Ok(None) => false,
                Err(_) => true,
            };
            if some.iter().any(|((ino, version), _)| counts(*ino, *version)) {
                return true;
            }
        }
    }

    /// How many copies a file should have.
    pub(super) fn level_of(&self, ino: Ino) -> usize {
        let said =
            self.meta.get(ino).map_err(Into::into).and_then(|record| self.redundancy_of(&record));
        match said {
            Ok(Redundancy::Replicas { copies, .. }) => copies.into(),
            Ok(Redundancy::None) | Err(_) => 0,
        }
    }
}
