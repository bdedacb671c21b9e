//! Warm-up: many nodes want one data set at once.
//!
//! Each extent has its home on a node, which keeps the core's [`Sources`] for it: a node asks there,
//! and is told to read the backing store, to read at a peer, or to wait.

use std::collections::BTreeSet;

use forebay_core::cluster::NodeId;
use forebay_core::cluster::source::{Extent, Grant, Peers, Source, SourceConfig, Sources};
use forebay_core::unit::{Ino, Tick};

use super::model::{Backing, Events, Hardware, Network, Server, takes};
use crate::rng::Rng;

/// Who wants what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WarmUp {
    /// Nodes.
    pub nodes: u32,
    /// Extents of the data set.
    pub extents: u32,
    /// Bytes of one.
    pub bytes: f64,
    /// Extents that a node fetches at a time.
    pub depth: u32,
    /// Share of the nodes that die meanwhile.
    pub dying: f64,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WarmUpReport {
    /// Seconds until the last living node had everything.
    pub seconds: f64,
    /// Bytes read from the backing store, as a multiple of the data set.
    pub from_backing: f64,
    /// Share of the reads from peers that stayed in a rack.
    pub near: f64,
    /// Claims that another node took over.
    pub taken_over: u64,
    /// Nodes that have everything.
    pub complete: u32,
    /// Seconds that it would take without coordination: everything for everybody from the backing
    /// store.
    pub alone: f64,
}

/// How long the others take to believe that a node is dead: the lease.
const DETECTION: u64 = 10 * Tick::SECOND;

struct Racks(u32);

impl Peers for Racks {
    fn domain(&self, node: NodeId) -> u32 {
        node.0 / self.0
    }

    fn load(&self, _: NodeId) -> u32 {
        0
    }
}

#[derive(Debug)]
enum Event {
    /// A node has room for one more extent.
    Next(u32),
    /// A request arrives at the home of an extent.
    Wish { node: u32, extent: u32 },
    /// A node learns where to read.
    Told { node: u32, extent: u32, source: Source },
    /// The bytes are there.
    Read { node: u32, extent: u32, from: Option<u32> },
    /// The home learns that a node has an extent, or that it could not get it.
    Report { node: u32, extent: u32, well: bool },
    /// A node dies.
    Dies(u32),
    /// Everybody knows.
    Buried(u32),
    /// Limits are looked at.
    Clock,
}

struct Node {
    tier: Server,
    /// Serves wishes, as a metadata server does.
    home: Server,
    dead: bool,
    next: u32,
    left: u32,
}

struct World<'a> {
    hardware: &'a Hardware,
    load: &'a WarmUp,
    racks: Racks,
    network: Network,
    backing: Backing,
    nodes: Vec<Node>,
    homes: Vec<Sources>,
    events: Events<Event>,
    last: u64,
    open: u32,
    grants: Vec<Grant>,
    reading: BTreeSet<(u32, u32)>,
}

/// Runs it to the end.
#[must_use]
pub fn run(hardware: &Hardware, load: &WarmUp) -> WarmUpReport {
    let mut rng = Rng::new(load.seed);
    let none = Server::default();
    let node = |_| Node { tier: none, home: none, dead: false, next: 0, left: load.extents };
    // A limit that the slowest read of a healthy system keeps.
    let whole = takes(load.bytes * f64::from(load.extents), hardware.backing.min(hardware.gateway));
    let lease = (5 * Tick::SECOND).max(2 * whole);
    let config = SourceConfig { lease, ..SourceConfig::default() };
    let homes = load.extents.min(load.nodes) as usize;
    let mut world = World {
        hardware,
        load,
        racks: Racks(hardware.rack),
        network: Network::new(*hardware, load.nodes),
        backing: Backing::new(*hardware, load.nodes),
        nodes: (0..load.nodes).map(node).collect(),
        homes: vec![Sources::new(config); homes],
        events: Events::default(),
        last: 0,
        open: load.nodes,
        grants: Vec::new(),
        reading: BTreeSet::new(),
    };
    for node in 0..load.nodes {
        for _ in 0..load.depth.min(load.extents) {
            let start = rng.between(0, 1_000_000);
            world.events.at(start, Event::Next(node));
        }
        if rng.unit() < load.dying {
            // Soon enough to hit claims and copies.
            let at = rng.between(0, 2 * whole);
            world.events.at(at, Event::Dies(node));
        }
    }
    world.events.at(Tick::SECOND, Event::Clock);
    while let Some((now, event)) = world.events.take() {
        world.handle(now, event);
        if world.open == 0 {
            break;
        }
    }
    world.report()
}

impl World<'_> {
    fn extent(&self, extent: u32) -> Extent {
        Extent { ino: Ino(1), version: 1, index: u64::from(extent) }
    }

    fn home(&self, extent: u32) -> u32 {
        // Spread over the racks.
        let step = (self.load.nodes / self.homes.len() as u32).max(1);
        extent % self.homes.len() as u32 * step
    }

    /// The next extent of a node: each begins elsewhere, so that all extents are claimed at once.
    fn next(&mut self, now: u64, node: u32) {
        let (extents, state) = (self.load.extents, &mut self.nodes[node as usize]);
        if state.dead || state.next == extents {
            return;
        }
        let start = (Rng::new(u64::from(node) ^ self.load.seed).bits() % u64::from(extents)) as u32;
        let extent = (start + state.next) % extents;
        state.next += 1;
        self.request(now, node, extent);
    }

    fn request(&mut self, now: u64, node: u32, extent: u32) {
        let at = now + self.network.latency(node, self.home(extent));
        self.events.at(at, Event::Wish { node, extent });
    }

    fn tell(&mut self, now: u64, node: u32, extent: u32, source: Source) {
        let at = now + self.network.latency(self.home(extent), node);
        self.events.at(at, Event::Told { node, extent, source });
    }

    fn tell_all(&mut self, now: u64) {
        for Grant { node, extent, source } in std::mem::take(&mut self.grants) {
            self.tell(now, node.0, extent.index as u32, source);
        }
    }

    /// When the home has dealt with a message.
    fn served(&mut self, now: u64, extent: u32) -> u64 {
        let home = self.home(extent) as usize;
        self.nodes[home].home.serve(now, self.hardware.service)
    }

    fn read(&mut self, now: u64, node: u32, extent: u32, source: Source) {
        let bytes = self.load.bytes;
        let (at, from) = match source {
            Source::Own => (now, None),
            Source::Wait => return,
            Source::Backing | Source::Uncoordinated => {
                (self.backing.move_bytes(now, node, bytes), None)
            }
            Source::Peer(peer) => {
                let tier = takes(bytes, self.hardware.tier_read);
                let served = self.nodes[peer.0 as usize].tier.serve(now, tier);
                // Sent as it is read: the network begins when the tier does.
                let begin = served - tier;
                (self.network.send(begin, peer.0, node, bytes).max(served), Some(peer.0))
            }
        };
        if self.reading.insert((node, extent)) {
            self.events.at(at, Event::Read { node, extent, from });
        }
    }

    fn handle(&mut self, now: u64, event: Event) {
        match event {
            Event::Next(node) => self.next(now, node),
            Event::Wish { node, extent } => {
                let at = self.served(now, extent);
                let (key, slot) = (self.extent(extent), extent as usize % self.homes.len());
                let source = self.homes[slot].want(Tick(now), NodeId(node), key, &self.racks);
                if source != Source::Wait {
                    self.tell(at, node, extent, source);
                }
            }
            Event::Told { node, extent, source } => {
                if !self.nodes[node as usize].dead {
                    self.read(now, node, extent, source);
                }
            }
            Event::Read { node, extent, from } => {
                self.reading.remove(&(node, extent));
                if self.nodes[node as usize].dead {
                    return;
                }
                let well = from.is_none_or(|from| !self.nodes[from as usize].dead);
                let at = now + self.network.latency(node, self.home(extent));
                self.events.at(at, Event::Report { node, extent, well });
                if well {
                    self.has(now, node);
                }
            }
            Event::Report { node, extent, well } => {
                let at = self.served(now, extent);
                let (key, slot) = (self.extent(extent), extent as usize % self.homes.len());
                let (home, grants) = (&mut self.homes[slot], &mut self.grants);
                if well {
                    home.fetched(Tick(now), NodeId(node), key, &self.racks, grants);
                } else {
                    home.failed(Tick(now), NodeId(node), key, &self.racks, grants);
                    let again = home.want(Tick(now), NodeId(node), key, &self.racks);
                    if again != Source::Wait {
                        self.grants.push(Grant { node: NodeId(node), extent: key, source: again });
                    }
                }
                self.tell_all(at);
            }
            Event::Dies(node) => {
                let state = &mut self.nodes[node as usize];
                if !state.dead && state.left > 0 {
                    self.open -= 1;
                }
                state.dead = true;
                self.events.at(now + DETECTION, Event::Buried(node));
            }
            Event::Buried(node) => {
                for slot in 0..self.homes.len() {
                    let grants = &mut self.grants;
                    self.homes[slot].lost(Tick(now), NodeId(node), &self.racks, grants);
                }
                self.tell_all(now);
            }
            Event::Clock => {
                for slot in 0..self.homes.len() {
                    self.homes[slot].step(Tick(now), &self.racks, &mut self.grants);
                }
                self.tell_all(now);
                self.events.at(now + Tick::SECOND, Event::Clock);
            }
        }
    }

    /// A node has one more extent.
    fn has(&mut self, now: u64, node: u32) {
        let state = &mut self.nodes[node as usize];
        state.left -= 1;
        if state.left == 0 {
            self.open -= 1;
            self.last = now;
        }
        self.next(now, node);
    }

    fn report(&self) -> WarmUpReport {
        let set = self.load.bytes * f64::from(self.load.extents);
        let counters = || self.homes.iter().map(Sources::counters);
        let (near, peer) = (counters().map(|c| c.near), counters().map(|c| c.peer));
        let (near, peer): (u64, u64) = (near.sum(), peer.sum());
        WarmUpReport {
            seconds: self.last as f64 / 1e9,
            from_backing: self.backing.bytes / set,
            near: near as f64 / peer.max(1) as f64,
            taken_over: counters().map(|c| c.taken_over).sum(),
            complete: self.nodes.iter().filter(|node| node.left == 0).count() as u32,
            alone: set * f64::from(self.load.nodes) / self.backing.limit(),
        }
    }
}
