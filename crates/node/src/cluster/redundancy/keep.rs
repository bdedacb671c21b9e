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
use forebay_core::cluster::balance::{self, Balancer, Shift};
use forebay_core::cluster::placement::{Site, Topology};
use forebay_core::cluster::repair::{self, Action, GroupId, Repair, RepairConfig, Transfer};
use forebay_core::unit::Tick;
use forebay_meta::{Copies, Error as MetaError, Incarnation};
use forebay_types::Ino;
use parking_lot::Mutex;

use super::super::{Cluster, Peers};
use super::held::Key;
use super::level::{self, Level};
use super::send::{Cargo, Failed};
use crate::context::Context;
use crate::error::Result;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Copies that are asked about at each look.
const ASKED: usize = 64;
/// A copy that the metadata do not know may be one that is being made.
const UNKNOWN_FOR: Duration = Duration::from_secs(60);
/// How long one that has a copy waits for another to take the file over before it does itself.
const TURN: Duration = Duration::from_secs(5);
/// The nodes that were up at the last look, and the planner.
pub(super) struct Keeper {
    planner: Mutex<Planner>,
    started: Instant,
}

struct Planner {
    repair: Repair,
    balancer: Balancer,
    up: BTreeSet<u16>,
    leaving: BTreeSet<u16>,
}

/// The nodes among which copies are placed, as each has room.
pub(super) fn topology(cluster: &Cluster, nodes: &[u16]) -> Topology {
    Topology::new(&sites(cluster, nodes))
}

fn sites(cluster: &Cluster, nodes: &[u16]) -> Vec<Site> {
    let weights = cluster.nodes.free_room(nodes);
    nodes.iter().zip(weights).map(|(node, weight)| site(*node, weight)).collect()
}

fn site(node: u16, weight: u64) -> Site {
    Site { node: NodeId(node.into()), domain: None, weight }
}

/// What a file has and should have.
fn planned(copies: &Copies, level: Option<Level>) -> Level {
    match (Level::as_made(copies), level) {
        (Level::Copies(there), Some(Level::Copies(wanted))) => Level::Copies(there.max(wanted)),
        (made, _) => made,
    }
}

impl Keeper {
    pub fn new(rate: u64) -> Self {
        let repair = Repair::new(RepairConfig { rate, ..RepairConfig::default() });
        let balancer = Balancer::default();
        let planner = Planner { repair, balancer, up: BTreeSet::new(), leaving: BTreeSet::new() };
        Keeper { planner: Mutex::new(planner), started: Instant::now() }
    }

    fn now(&self) -> Tick {
        Tick(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Copies of a file are to be looked after as they are now; `None` for not any more.
    pub fn watch(&self, ino: u64, me: u16, wanted: Option<(&Copies, Option<Level>)>) {
        let now = self.now();
        let mut planner = self.planner.lock();
        let Planner { repair, up, .. } = &mut *planner;
        repair.remove(now, GroupId(ino));
        if let Some((copies, level)) = wanted {
            // Those that are not there any more are found so at the next look.
            for (node, _) in copies.parts().into_iter().chain([(me, 0)]) {
                if up.insert(node) {
                    repair.node_up(now, &site(node, 1));
                }
            }
            let holder = |node: &u16| (*node != 0).then(|| NodeId((*node).into()));
            let holders = copies.holders.iter().map(holder);
            let held: Vec<_> = std::iter::once(Some(NodeId(me.into()))).chain(holders).collect();
            let redundancy = planned(copies, level).planned();
            let bytes = level::bytes_of_each(copies).max(1);
            repair.add(now, GroupId(ino), redundancy, bytes, &held);
        }
    }

    /// How far repair is.
    pub fn progress(&self) -> repair::Progress {
        self.planner.lock().repair.progress()
    }

    /// How many copies are about to move, and their bytes.
    pub fn moves(&self) -> (u64, u64) {
        self.planner.lock().repair.moves()
    }

    /// What is to move between nodes that have these levels, if it is time.
    pub fn due(&self, levels: &[balance::Level]) -> Vec<Shift> {
        let now = self.now();
        self.planner.lock().balancer.look(now, levels)
    }

    /// Has copies of this node's files move; how many bytes it will be.
    pub fn shift(&self, shifts: &[Shift], held: impl Fn(u16) -> u64) -> u64 {
        let now = self.now();
        let repair = &mut self.planner.lock().repair;
        let mut moved = 0;
        for shift in shifts {
            // Each owner moves its part of what a node gives.
            let all = u16::try_from(shift.from.0).map_or(0, &held);
            let share = balance::share(shift.amount, repair.bytes_on(shift.from), all);
            moved += repair.shift(now, shift.from, shift.to, share);
        }
        moved
    }

    /// Takes in which nodes are there; what is to be done now.
    fn look(&self, sites: &[Site], leaving: BTreeSet<u16>) -> Vec<Action> {
        let now = self.now();
        let number = |site: &Site| u16::try_from(site.node.0).ok();
        let up: BTreeSet<u16> = sites.iter().filter_map(number).collect();
        let mut planner = self.planner.lock();
        let Planner { repair, up: before, leaving: left, .. } = &mut *planner;
        for node in before.difference(&up) {
            repair.node_dead(now, NodeId((*node).into()));
        }
        for site in sites {
            let stays = |node: u16| left.contains(&node) && !leaving.contains(&node);
            if number(site).is_some_and(|node| before.contains(&node) && stays(node)) {
                // It stays after all.
                repair.node_dead(now, site.node);
            }
            let joins = number(site).is_some_and(|node| !before.contains(&node) || stays(node));
            if joins || repair.topology().weight(site.node) != site.weight {
                repair.node_up(now, site);
            }
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

impl Cluster {
    /// A thread that keeps copies.
    pub(crate) fn start_keeping_copies(&self) {
        if self.peers.get().is_none() {
            return;
        }
        let this = self.this.clone();
        let keep = move || {
            let mut last = None;
            while let Some(cluster) = this.upgrade() {
                if cluster.stopping.load(Ordering::Acquire) {
                    return;
                }
                // A daemon that is handed on leaves it to the next one.
                if let Some(peers) = cluster.peers.get()
                    && !cluster.is_at_rest()
                {
                    cluster.copy_waiting_again();
                    cluster.look_after_own();
                    cluster.repair_copies(peers);
                    cluster.balance_sometimes();
                    last = cluster.ask_about_held(last);
                    cluster.look_at_aside_sometimes();
                }
                drop(cluster);
                thread::sleep(LOOK);
            }
        };
        match thread::Builder::new().name("copies".into()).spawn(keep) {
            Ok(thread) => self.writeback.threads.lock().push(thread),
            Err(error) => tracing::error!(
                %error,
                "no thread to look after copies on other nodes: lost ones are not made again, and \
                 useless ones stay. Raise the limit of threads, and mount again"
            ),
        }
    }

    /// Drops the copies of files that the backing store has or that are gone.
    fn look_after_own(&self) {
        for (ino, copies) in self.safety.all_made() {
            let (copied, mine) = match self.meta.get(ino) {
                Ok(record) => (record.copied, self.is_mine(&record)),
                Err(MetaError::Stale(_)) => (false, true),
                Err(_) => continue,
            };
            if copied && mine {
                continue;
            }
            // Made anew since they were looked at, perhaps.
            if self.safety.forget(self.me.node, ino, &copies) && !copied {
                self.drop_copies(ino, &copies);
            }
        }
    }

    fn repair_copies(&self, peers: &Peers) {
        let up = self.within_reach(peers);
        let leaving =
            up.iter().copied().filter(|node| self.nodes.is_told_to_leave(*node)).collect();
        for action in self.safety.keeper.look(&sites(self, &up), leaving) {
            match action {
                Action::Copy(transfer) => {
                    let failed = transfer.clone();
                    let begun = self.later(move |cluster| {
                        let done = cluster.copy_again(&transfer).unwrap_or_else(|error| {
                            tracing::warn!(
                                ino = transfer.group.0,
                                %error,
                                "a lost copy of a file could not be made again on another node; it \
                                 will be tried again"
                            );
                            false
                        });
                        cluster.safety.keeper.ended(&transfer, done);
                    });
                    if !begun {
                        self.safety.keeper.ended(&failed, false);
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
    fn copy_again(&self, transfer: &Transfer) -> Result<bool> {
        let (ino, at) = (Ino(transfer.group.0), usize::from(transfer.shard));
        let Ok(target) = u16::try_from(transfer.target.0) else { return Ok(false) };
        let Some((file, known, grows)) = self.safety.made_of(ino) else { return Ok(false) };
        let one = file.cluster.copying.lock();
        let same = self.safety.known(ino).is_some_and(|(now, _)| now == known);
        let (Some(place), true) = (at.checked_sub(1), same && !known.holders.contains(&target))
        else {
            return Ok(false);
        };
        let whole = |file: &crate::residency::files::File| {
            file.cluster.changed_from.load(Ordering::Acquire) >= known.size
        };
        if !grows || !whole(&file) {
            // Others made them, or bytes were overwritten since: it takes a version of this node's.
            drop(one);
            let level = self.level_of(ino).unwrap_or(Level::Copies(1));
            return Ok(self.make_copies(&file, level)? == super::make::Outcome::Made
                && self.safety.known(ino).is_some_and(|(now, _)| now.holders.contains(&target)));
        }
        self.residency.load(&Context::DAEMON, &file)?;
        let cargo = Cargo {
            file: &file,
            version: known.version,
            level: Level::as_made(&known),
            layout: level::layout(&known)?,
            range: 0..known.size,
            last: true,
        };
        let sent = match self.send_to(&cargo, &[(place, target)]) {
            Ok(sent) => sent == [true],
            Err(Failed::Here(error)) => return Err(error),
            Err(Failed::Moved) => false,
        };
        if !sent || !whole(&file) {
            // What was sent may arrive at any later time: never again under this version.
            self.safety.grow_no_more(ino);
            return Ok(false);
        }
        let mut after = known.clone();
        let former = match after.holders.get_mut(place) {
            Some(holder) => std::mem::replace(holder, target),
            None => {
                after.holders.push(target);
                0
            }
        };
        let moved = self.meta.move_copies(ino, &known, &after)?;
        if moved {
            self.safety.moved(ino, after);
            let balanced =
                former != 0 && !self.is_silent(former) && !self.nodes.is_told_to_leave(former);
            match balanced {
                true => self.metrics.copies_moved.inc(),
                false => self.metrics.copies_repaired.inc(),
            }
            if former != 0 {
                self.drop_elsewhere(ino, known.version, vec![(former, known.part(place))]);
            }
        }
        Ok(moved)
    }

    /// Asks about some of the copies that this node has whether they count: those that do not go, and
    /// files whose owner is gone are taken over.
    fn ask_about_held(&self, last: Option<Key>) -> Option<Key> {
        let some = self.safety.held.after(last, ASKED);
        for (key, untouched) in &some {
            // One that was just put is most likely not known yet.
            if *untouched >= 2 * LOOK
                && let Err(error) = self.ask_about(*key, *untouched)
            {
                tracing::debug!(ino = key.0, %error, "whether a copy counts is not known");
            }
        }
        some.last().map(|(key, _)| *key)
    }

    fn ask_about(&self, (number, version, part): Key, untouched: Duration) -> Result<()> {
        let ino = Ino(number);
        let known = self.meta.record_and_copies(ino)?;
        let known = known.and_then(|(record, copies)| Some((record, copies?)));
        match known {
            Some((record, copies))
                if copies.version == version && copies.counts(self.me.node, part) =>
            {
                let gone = record
                    .owner
                    .filter(|owner| owner.node != self.me.node && self.is_silent(owner.node));
                if let Some(owner) = gone.filter(|owner| self.is_my_turn(&copies, *owner)) {
                    self.take_over(&record, owner, &copies)?;
                }
            }
            // Taken over, and this node died before it was an object.
            Some((record, copies))
                if copies.version == version && part == 0 && self.is_mine(&record) =>
            {
                self.residency.load(&Context::DAEMON, &self.residency.files.get(ino))?;
            }
            _ if untouched >= UNKNOWN_FOR => {
                self.safety.held.drop_copy_held((number, version, part))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Those that have copies take a file over one after the other, should the first not be able to.
    fn is_my_turn(&self, copies: &Copies, owner: Incarnation) -> bool {
        let live = |node: &u16| *node == self.me.node || !self.is_silent(*node);
        let mut able = copies.parts().into_iter().map(|(node, _)| node).filter(live);
        let before = able.position(|node| node == self.me.node).unwrap_or(usize::MAX);
        let silence = self.silence_of(owner.node).saturating_sub(self.config.lease);
        u32::try_from(before).is_ok_and(|before| silence >= TURN * before)
    }

    /// Whether a copy that this node has counts, or may.
    pub(super) fn has_needed_copies(&self) -> bool {
        let mut last = None;
        loop {
            let some = self.safety.held.after(last, ASKED);
            let Some((end, _)) = some.last() else { return false };
            last = Some(*end);
            let counts = |(ino, version, part): Key| match self.meta.copies(Ino(ino)) {
                Ok(Some(copies)) => copies.version == version && copies.counts(self.me.node, part),
                Ok(None) => false,
                Err(_) => true,
            };
            if some.iter().any(|(key, _)| counts(*key)) {
                return true;
            }
        }
    }

    /// What other nodes should have of a file.
    pub(super) fn level_of(&self, ino: Ino) -> Option<Level> {
        let said =
            self.meta.get(ino).map_err(Into::into).and_then(|record| self.redundancy_of(&record));
        said.ok().and_then(Level::of)
    }
}
