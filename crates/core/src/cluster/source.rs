//! From where a byte is read: the own tier, a peer, or the backing store, and from there once.
//!
//! Each extent has a home (a node, or a partition of the metadata) that keeps a [`Sources`]. Whoever
//! lacks an extent asks it. The first is told to read the backing store and holds a *claim* on the
//! extent, with a limit in time; the others wait, and read from a peer as soon as one has it. A copy
//! serves a few readers at a time and each of them becomes a copy, so that a tree of peers grows by
//! itself and N nodes have an extent after about log N transfers (as in cooperative distribution;
//! Cohen, "Incentives build robustness in BitTorrent", 2003, without the incentives). A claimant
//! that dies or is too slow is succeeded by the one that waited longest.
//!
//! All of it is advice: a node that is told nothing, or reads the backing store all the same, reads
//! right bytes.
//!
//! # Invariants
//! - Nodes that warm up together read each extent from the backing store once, and once more for
//!   each claim that failed (tests of this file, `crates/forebay/tests/peers.rs`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::NodeId;
use super::hash::mix;
use crate::unit::{Ino, Tick};

/// A piece of a version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The file.
    pub ino: Ino,
    /// Its version.
    pub version: u64,
    /// The number of the extent in the file.
    pub index: u64,
}

/// Where to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// In the own tier: it is there.
    Own,
    /// At this node. If it does not have it any more, say [`Sources::failed`] and ask again.
    Peer(NodeId),
    /// In the backing store, for all others as well. Say [`Sources::renew`] if it takes long.
    Backing,
    /// Nowhere yet: a [`Grant`] follows, after the limit of a claim at the latest.
    Wait,
    /// In the backing store, for oneself: the tables are full.
    Uncoordinated,
}

/// What one that waited is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Who.
    pub node: NodeId,
    /// What it wanted.
    pub extent: Extent,
    /// Where to read it.
    pub source: Source,
}

/// What is known about other nodes.
pub trait Peers {
    /// Nodes with the same number are near each other: a rack, a switch.
    fn domain(&self, node: NodeId) -> u32;
    /// How loaded a node is, from its heartbeat, in any unit.
    fn load(&self, node: NodeId) -> u32;
}

/// Limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceConfig {
    /// How long a claim, or a reader's place at a copy, lasts without renewal, in nanoseconds.
    pub lease: u64,
    /// Readers of an extent at one copy at a time.
    pub readers: u32,
    /// Extents known at a time; those that nobody reads are forgotten first.
    pub extents: usize,
    /// Nodes that wait for one extent at a time.
    pub waiting: usize,
}

impl Default for SourceConfig {
    /// Five seconds, two readers, a million extents, as many waiting as there may be nodes.
    fn default() -> Self {
        Self { lease: 5 * Tick::SECOND, readers: 2, extents: 1 << 20, waiting: 1 << 16 }
    }
}

/// What has been decided so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SourceCounters {
    /// Reads of the backing store for all.
    pub backing: u64,
    /// Reads from peers.
    pub peer: u64,
    /// Of these, from a peer of the same domain.
    pub near: u64,
    /// Reads of the backing store for oneself.
    pub uncoordinated: u64,
    /// Claims that ended without a copy.
    pub taken_over: u64,
}

#[derive(Debug, Default, Clone)]
struct State {
    /// Copies, and how many read there.
    copies: BTreeMap<NodeId, u32>,
    /// Copies with room for a reader, by domain.
    spare: BTreeMap<u32, BTreeSet<NodeId>>,
    /// Who reads: from a peer or, by the claim, from the backing store; until when.
    reading: BTreeMap<NodeId, (Option<NodeId>, Tick)>,
    /// Who waits, in the order in which they came.
    waiting: VecDeque<NodeId>,
    /// The same, to find one.
    waits: BTreeSet<NodeId>,
    idle_since: Option<Tick>,
}

/// Looked at before one is chosen: two are nearly as good as all (Mitzenmacher, 2001), four better.
const CANDIDATES: usize = 4;

impl State {
    fn claimed(&self) -> bool {
        self.reading.values().any(|(source, _)| source.is_none())
    }

    /// A copy with room near the reader, else anywhere: the least loaded of a few.
    fn nearest(&self, reader: NodeId, extent: Extent, peers: &dyn Peers) -> Option<NodeId> {
        let domain = peers.domain(reader);
        let hash = mix(mix(extent.ino.0, extent.index), u64::from(reader.0));
        let nodes = self.spare.get(&domain).or_else(|| {
            let start = hash as u32;
            let first = self.first_and_last().map(|(low, high)| low + start % (high - low + 1))?;
            let mut after = self.spare.range(first..).chain(self.spare.range(..first));
            after.next().map(|(_, nodes)| nodes)
        })?;
        let (low, high) = (nodes.first()?.0, nodes.last()?.0);
        let start = NodeId(low + (hash >> 32) as u32 % (high - low + 1));
        let candidates = nodes.range(start..).chain(nodes.range(..start)).take(CANDIDATES);
        candidates.min_by_key(|node| (peers.load(**node), self.copies[*node])).copied()
    }

    fn first_and_last(&self) -> Option<(u32, u32)> {
        Some((*self.spare.first_key_value()?.0, *self.spare.last_key_value()?.0))
    }

    fn stop_waiting(&mut self, node: NodeId) {
        if self.waits.remove(&node) {
            self.waiting.retain(|other| *other != node);
        }
    }

    /// Notes whether a copy has room.
    fn sort_in(&mut self, copy: NodeId, limit: u32, peers: &dyn Peers) {
        let domain = peers.domain(copy);
        if self.copies.get(&copy).is_some_and(|readers| *readers < limit) {
            self.spare.entry(domain).or_default().insert(copy);
        } else if let Some(nodes) = self.spare.get_mut(&domain) {
            nodes.remove(&copy);
            if nodes.is_empty() {
                self.spare.remove(&domain);
            }
        }
    }
}

/// The extents that have their home here.
#[derive(Debug, Clone)]
pub struct Sources {
    config: SourceConfig,
    extents: BTreeMap<Extent, State>,
    /// When the claims and places of readers end.
    ends: BTreeSet<(Tick, Extent, NodeId)>,
    /// Extents that nobody reads, by when they became so.
    idle: BTreeSet<(Tick, Extent)>,
    counters: SourceCounters,
}

impl Sources {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(config: SourceConfig) -> Self {
        Self {
            config,
            extents: BTreeMap::new(),
            ends: BTreeSet::new(),
            idle: BTreeSet::new(),
            counters: SourceCounters::default(),
        }
    }

    /// What has been decided so far.
    #[must_use]
    pub fn counters(&self) -> SourceCounters {
        self.counters
    }

    /// Where `node` is to read an extent. To ask again gives the same answer.
    pub fn want(&mut self, now: Tick, node: NodeId, extent: Extent, peers: &dyn Peers) -> Source {
        if !self.extents.contains_key(&extent) && !self.make_room() {
            self.counters.uncoordinated += 1;
            return Source::Uncoordinated;
        }
        let state = self.extents.entry(extent).or_default();
        if state.copies.contains_key(&node) {
            return Source::Own;
        }
        if let Some((source, _)) = state.reading.get(&node) {
            return source.map_or(Source::Backing, Source::Peer);
        }
        if state.waits.contains(&node) {
            return Source::Wait;
        }
        // Who came first is served first.
        if state.waiting.is_empty()
            && let Some(source) = self.assign(now, node, extent, peers)
        {
            return source;
        }
        let limit = self.config.waiting;
        match self.extents.get_mut(&extent) {
            Some(state) if state.waiting.len() < limit => {
                state.waiting.push_back(node);
                state.waits.insert(node);
                Source::Wait
            }
            _ => {
                self.counters.uncoordinated += 1;
                Source::Uncoordinated
            }
        }
    }

    /// `node` has the extent now, from wherever; those who wait may be told where to read.
    pub fn fetched(
        &mut self,
        now: Tick,
        node: NodeId,
        extent: Extent,
        peers: &dyn Peers,
        grants: &mut Vec<Grant>,
    ) {
        if !self.extents.contains_key(&extent) && !self.make_room() {
            return;
        }
        self.end_reading(node, extent, peers);
        let limit = self.config.readers;
        let state = self.extents.entry(extent).or_default();
        state.stop_waiting(node);
        state.copies.entry(node).or_insert(0);
        state.sort_in(node, limit, peers);
        self.serve(now, extent, peers, grants);
    }

    /// `node` could not read where it was told: a peer that failed it counts as a copy no more. The
    /// node is not waiting after this; it asks again, or gives up.
    pub fn failed(
        &mut self,
        now: Tick,
        node: NodeId,
        extent: Extent,
        peers: &dyn Peers,
        grants: &mut Vec<Grant>,
    ) {
        let ended = self.end_reading(node, extent, peers);
        if let Some(state) = self.extents.get_mut(&extent) {
            state.stop_waiting(node);
        }
        match ended {
            Some(Some(peer)) => self.forget_copy(peer, extent, peers),
            Some(None) => self.counters.taken_over += 1,
            None => {}
        }
        self.serve(now, extent, peers, grants);
    }

    /// A read goes on: its limit begins again. False if it is not known any more.
    pub fn renew(&mut self, now: Tick, node: NodeId, extent: Extent) -> bool {
        let until = now.after(self.config.lease);
        let state = self.extents.get_mut(&extent);
        let Some((_, end)) = state.and_then(|state| state.reading.get_mut(&node)) else {
            return false;
        };
        self.ends.remove(&(*end, extent, node));
        *end = until;
        self.ends.insert((until, extent, node))
    }

    /// `node` has evicted the extent.
    pub fn evicted(&mut self, now: Tick, node: NodeId, extent: Extent, peers: &dyn Peers) {
        self.forget_copy(node, extent, peers);
        self.settle(now, extent);
    }

    /// `node` is dead: its copies, claims and requests are gone.
    pub fn lost(&mut self, now: Tick, node: NodeId, peers: &dyn Peers, grants: &mut Vec<Grant>) {
        let concerned = |state: &State| {
            state.copies.contains_key(&node)
                || state.reading.contains_key(&node)
                || state.waits.contains(&node)
        };
        let extents: Vec<Extent> =
            self.extents.iter().filter(|(_, s)| concerned(s)).map(|(extent, _)| *extent).collect();
        for extent in extents {
            if self.end_reading(node, extent, peers) == Some(None) {
                self.counters.taken_over += 1;
            }
            self.forget_copy(node, extent, peers);
            if let Some(state) = self.extents.get_mut(&extent) {
                state.stop_waiting(node);
            }
            self.serve(now, extent, peers, grants);
        }
    }

    /// Time passes: claims that are over go to the next, and readers that say nothing lose their
    /// place.
    pub fn step(&mut self, now: Tick, peers: &dyn Peers, grants: &mut Vec<Grant>) {
        while let Some((until, extent, node)) = self.ends.first().copied()
            && until <= now
        {
            if self.end_reading(node, extent, peers) == Some(None) {
                self.counters.taken_over += 1;
            }
            self.serve(now, extent, peers, grants);
        }
    }

    /// When the next limit ends.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Tick> {
        self.ends.first().map(|(until, _, _)| *until)
    }

    /// The nodes that have an extent.
    pub fn copies(&self, extent: Extent) -> impl Iterator<Item = NodeId> + '_ {
        self.extents.get(&extent).into_iter().flat_map(|state| state.copies.keys().copied())
    }

    /// Room in the table for one more extent, if need be in place of one that nobody reads.
    fn make_room(&mut self) -> bool {
        if self.extents.len() < self.config.extents {
            return true;
        }
        match self.idle.pop_first() {
            Some((_, extent)) => self.extents.remove(&extent).is_some(),
            None => false,
        }
    }

    /// Gives `node` a place to read; nothing if it must wait.
    fn assign(
        &mut self,
        now: Tick,
        node: NodeId,
        extent: Extent,
        peers: &dyn Peers,
    ) -> Option<Source> {
        let until = now.after(self.config.lease);
        let limit = self.config.readers;
        let state = self.extents.get_mut(&extent)?;
        let source = match state.nearest(node, extent, peers) {
            Some(copy) => {
                *state.copies.entry(copy).or_insert(0) += 1;
                state.sort_in(copy, limit, peers);
                self.counters.peer += 1;
                self.counters.near += u64::from(peers.domain(copy) == peers.domain(node));
                Some(copy)
            }
            None if state.copies.is_empty() && !state.claimed() => {
                self.counters.backing += 1;
                None
            }
            None => return None,
        };
        state.reading.insert(node, (source, until));
        self.ends.insert((until, extent, node));
        self.settle(now, extent);
        Some(source.map_or(Source::Backing, Source::Peer))
    }

    /// Lets in whom there is room for, in the order in which they came.
    fn serve(&mut self, now: Tick, extent: Extent, peers: &dyn Peers, grants: &mut Vec<Grant>) {
        while let Some(node) = self.extents.get(&extent).and_then(|s| s.waiting.front().copied()) {
            let Some(source) = self.assign(now, node, extent, peers) else { break };
            if let Some(state) = self.extents.get_mut(&extent) {
                state.waiting.pop_front();
                state.waits.remove(&node);
            }
            grants.push(Grant { node, extent, source });
        }
        self.settle(now, extent);
    }

    /// Ends a read: `Some(None)` if it was a claim, `Some(Some(peer))` if from a peer.
    fn end_reading(
        &mut self,
        node: NodeId,
        extent: Extent,
        peers: &dyn Peers,
    ) -> Option<Option<NodeId>> {
        let limit = self.config.readers;
        let state = self.extents.get_mut(&extent)?;
        let (source, until) = state.reading.remove(&node)?;
        self.ends.remove(&(until, extent, node));
        if let Some(copy) = source {
            if let Some(readers) = state.copies.get_mut(&copy) {
                *readers = readers.saturating_sub(1);
            }
            state.sort_in(copy, limit, peers);
        }
        Some(source)
    }

    fn forget_copy(&mut self, node: NodeId, extent: Extent, peers: &dyn Peers) {
        let limit = self.config.readers;
        if let Some(state) = self.extents.get_mut(&extent) {
            state.copies.remove(&node);
            state.sort_in(node, limit, peers);
        }
    }

    /// Keeps the list of what may be forgotten, and forgets what says nothing.
    fn settle(&mut self, now: Tick, extent: Extent) {
        let Some(state) = self.extents.get_mut(&extent) else { return };
        if let Some(since) = state.idle_since.take() {
            self.idle.remove(&(since, extent));
        }
        if state.reading.is_empty() && state.waiting.is_empty() {
            if state.copies.is_empty() {
                self.extents.remove(&extent);
            } else {
                state.idle_since = Some(now);
                self.idle.insert((now, extent));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Racks;

    impl Peers for Racks {
        fn domain(&self, node: NodeId) -> u32 {
            node.0 / 4
        }

        fn load(&self, _: NodeId) -> u32 {
            0
        }
    }

    fn extent(index: u64) -> Extent {
        Extent { ino: Ino(7), version: 1, index }
    }

    /// What each node was told about each extent last, and has.
    struct World {
        sources: Sources,
        told: BTreeMap<(NodeId, Extent), Source>,
        has: BTreeSet<(NodeId, Extent)>,
        now: Tick,
    }

    impl World {
        fn new(config: SourceConfig) -> Self {
            let (told, has) = (BTreeMap::new(), BTreeSet::new());
            Self { sources: Sources::new(config), told, has, now: Tick(0) }
        }

        fn grants(&mut self, grants: Vec<Grant>) {
            for grant in grants {
                let told = self.told.insert((grant.node, grant.extent), grant.source);
                assert_eq!(told, Some(Source::Wait), "only who waits is told");
            }
        }

        fn want(&mut self, node: NodeId, extent: Extent) {
            if self.has.contains(&(node, extent)) || self.told.contains_key(&(node, extent)) {
                return;
            }
            let source = self.sources.want(self.now, node, extent, &Racks);
            self.told.insert((node, extent), source);
        }

        fn finish(&mut self, node: NodeId, extent: Extent) {
            let source = self.told.get(&(node, extent)).copied();
            if !matches!(source, None | Some(Source::Wait)) {
                self.told.remove(&(node, extent));
                self.has.insert((node, extent));
                let mut grants = Vec::new();
                self.sources.fetched(self.now, node, extent, &Racks, &mut grants);
                self.grants(grants);
            }
        }

        fn fail(&mut self, node: NodeId, extent: Extent) {
            let source = self.told.get(&(node, extent)).copied();
            if !matches!(source, None | Some(Source::Wait)) {
                self.told.remove(&(node, extent));
                let mut grants = Vec::new();
                self.sources.failed(self.now, node, extent, &Racks, &mut grants);
                self.grants(grants);
            }
        }

        fn die(&mut self, node: NodeId) {
            self.told.retain(|(other, _), _| *other != node);
            self.has.retain(|(other, _)| *other != node);
            let mut grants = Vec::new();
            self.sources.lost(self.now, node, &Racks, &mut grants);
            self.grants(grants);
        }

        fn pass(&mut self, nanoseconds: u64) {
            self.now = self.now.after(nanoseconds);
            let mut grants = Vec::new();
            self.sources.step(self.now, &Racks, &mut grants);
            self.grants(grants);
        }

        /// No copy serves more readers than it may, and all of them have the extent.
        fn check(&self) {
            let mut readers: BTreeMap<(NodeId, Extent), u32> = BTreeMap::new();
            for ((_, extent), source) in &self.told {
                if let Source::Peer(peer) = source {
                    *readers.entry((*peer, *extent)).or_default() += 1;
                }
            }
            assert!(readers.values().all(|count| *count <= self.sources.config.readers));
        }
    }

    proptest! {
        #[test]
        fn warm_up_without_failures_any_order_then_each_extent_from_backing_once(
            nodes in 1u32..40,
            order in proptest::collection::vec(any::<(bool, u32, u8)>(), 0..600),
        ) {
            let mut world = World::new(SourceConfig::default());
            for (wants, node, index) in order {
                let (node, extent) = (NodeId(node % nodes), extent(u64::from(index % 4)));
                if wants { world.want(node, extent) } else { world.finish(node, extent) }
                world.check();
            }
            for index in 0..4 {
                for node in 0..nodes {
                    world.want(NodeId(node), extent(index));
                }
            }
            for _ in 0..nodes {
                for (node, extent) in world.told.keys().copied().collect::<Vec<_>>() {
                    world.finish(node, extent);
                    world.check();
                }
            }
            prop_assert!(world.told.is_empty(), "someone waits for ever");
            let counters = world.sources.counters();
            prop_assert_eq!((counters.backing, counters.uncoordinated), (4, 0));
            prop_assert_eq!(counters.peer, u64::from(nodes - 1) * 4);
        }

        #[test]
        fn warm_up_any_failures_then_all_served_and_one_more_read_for_each_claim_that_failed(
            history in proptest::collection::vec((0u8..8, 0u32..12, 0u64..2, 0u64..4), 0..300),
        ) {
            let mut world = World::new(SourceConfig { readers: 1, ..SourceConfig::default() });
            let mut emptied = 0;
            for (kind, node, index, seconds) in history {
                let (node, extent) = (NodeId(node), extent(index));
                let had: Vec<bool> = (0..2).map(|at| world.sources.copies(self::extent(at)).next().is_some()).collect();
                match kind {
                    0..=2 => world.want(node, extent),
                    3 | 4 => world.finish(node, extent),
                    5 => world.fail(node, extent),
                    6 => world.die(node),
                    _ => world.pass(seconds * Tick::SECOND),
                }
                let has = |at: u64| world.sources.copies(self::extent(at)).next().is_some();
                emptied += (0..2).filter(|at| had[*at as usize] && !has(*at)).count() as u64;
            }
            for index in 0..2 {
                for node in 0..12 {
                    world.want(NodeId(node), extent(index));
                }
            }
            for _ in 0..40 {
                world.pass(SourceConfig::default().lease);
                for (node, extent) in world.told.keys().copied().collect::<Vec<_>>() {
                    world.finish(node, extent);
                }
            }
            prop_assert!(world.told.is_empty(), "someone waits for ever");
            let counters = world.sources.counters();
            prop_assert_eq!(counters.uncoordinated, 0);
            prop_assert!(counters.backing <= 2 + counters.taken_over + emptied, "{:?}", counters);
        }
    }

    #[test]
    fn claim_that_is_not_renewed_then_the_next_takes_over_and_a_renewed_one_is_left() {
        let mut world = World::new(SourceConfig::default());
        let (first, second) = (NodeId(0), NodeId(9));
        world.want(first, extent(0));
        world.want(second, extent(0));
        assert_eq!(world.told[&(first, extent(0))], Source::Backing);
        assert_eq!(world.told[&(second, extent(0))], Source::Wait);
        world.pass(4 * Tick::SECOND);
        assert!(world.sources.renew(world.now, first, extent(0)));
        world.pass(4 * Tick::SECOND);
        assert_eq!(world.told[&(second, extent(0))], Source::Wait);
        assert_eq!(world.sources.next_deadline(), Some(Tick(9 * Tick::SECOND)));
        world.pass(Tick::SECOND);
        assert_eq!(world.told[&(second, extent(0))], Source::Backing);
        assert!(!world.sources.renew(world.now, first, extent(0)));
        assert_eq!(world.sources.counters().taken_over, 1);
    }

    #[test]
    fn copy_in_the_own_rack_then_preferred_and_an_evicted_one_not_offered() {
        let mut world = World::new(SourceConfig::default());
        for node in [1, 17, 33] {
            world.want(NodeId(node), extent(0));
            world.finish(NodeId(node), extent(0));
        }
        world.want(NodeId(18), extent(0));
        assert_eq!(world.told[&(NodeId(18), extent(0))], Source::Peer(NodeId(17)));
        world.sources.evicted(world.now, NodeId(33), extent(0), &Racks);
        world.want(NodeId(34), extent(0));
        let Source::Peer(peer) = world.told[&(NodeId(34), extent(0))] else { panic!("a peer") };
        assert!(peer == NodeId(1) || peer == NodeId(17));
        assert_eq!(world.sources.counters().near, 1);
    }

    #[test]
    fn tables_when_full_then_idle_extents_go_and_busy_ones_stay() {
        let config = SourceConfig { extents: 2, waiting: 1, ..SourceConfig::default() };
        let mut world = World::new(config);
        world.want(NodeId(0), extent(0));
        world.finish(NodeId(0), extent(0));
        world.want(NodeId(0), extent(1));
        world.want(NodeId(0), extent(2));
        assert_eq!(world.told[&(NodeId(0), extent(2))], Source::Backing, "in place of extent 0");
        world.want(NodeId(0), extent(3));
        assert_eq!(world.told[&(NodeId(0), extent(3))], Source::Uncoordinated);
        world.want(NodeId(1), extent(1));
        world.want(NodeId(2), extent(1));
        assert_eq!(world.told[&(NodeId(1), extent(1))], Source::Wait);
        assert_eq!(world.told[&(NodeId(2), extent(1))], Source::Uncoordinated);
    }
}
