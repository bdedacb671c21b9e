//! Bytes: local writes with and without redundancy, reads from peers, swapping with the backing
//! store.

use std::collections::VecDeque;

use forebay_core::cluster::NodeId;

use super::model::{Backing, Events, Hardware, Network, Server, takes, topology};
use crate::rng::Rng;

const MIB: f64 = 1_048_576.0;
/// Files that a node writes one after the other, each with its own replicas.
const FILES: u32 = 4;

/// What a node does with a block of 1 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Write it to the own tier.
    Local,
    /// The same, acknowledged at once, while so many others get copies.
    Asynchronous(u8),
    /// Acknowledged when so many others have copies.
    Synchronous(u8),
    /// Acknowledged when the shards are on other nodes; one stays.
    Code(u8, u8),
    /// Read it from a peer's tier.
    Peer,
    /// Write it to the backing store, without any cache.
    Backing,
}

impl Mode {
    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Local => "local".into(),
            Self::Asynchronous(others) => format!("async-{}", others + 1),
            Self::Synchronous(others) => format!("sync-{}", others + 1),
            Self::Code(data, parity) => format!("ec-{data}+{parity}"),
            Self::Peer => "peer-read".into(),
            Self::Backing => "no-cache".into(),
        }
    }

    /// How many nodes get something, and how much of a block.
    fn sends(self) -> (usize, f64) {
        match self {
            Self::Local | Self::Peer | Self::Backing => (0, 0.0),
            Self::Asynchronous(others) | Self::Synchronous(others) => (usize::from(others), 1.0),
            Self::Code(data, parity) => {
                (usize::from(data) + usize::from(parity) - 1, 1.0 / f64::from(data))
            }
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IoReport {
    /// Acknowledged bytes a second: the sum of what each node reached until its own last block.
    pub rate: f64,
    /// Bytes on the network for each byte acknowledged.
    pub network: f64,
    /// Seconds until the last byte was also where asynchronous copies put it.
    pub settled: f64,
}

#[derive(Debug)]
enum Event {
    /// A node begins a block.
    Begin(u32),
    /// A block has come out of the node's software.
    Ready { node: u32, block: u32 },
    /// A part arrives at another node.
    Arrived { node: u32, block: u32, at: u32 },
    /// A part is safe.
    Safe { node: u32, block: u32, copy: bool },
    /// A tier has done a job.
    Tier { at: u32, job: Job },
}

/// What a tier does.
#[derive(Debug, Clone, Copy)]
struct Job {
    takes: u64,
    kind: Kind,
    /// Whose block.
    node: u32,
    block: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The owner's own write.
    Own,
    /// A part for another node.
    Copy,
    /// A read for another node.
    Read,
}

/// A device that does what somebody waits for before what nobody waits for.
#[derive(Default)]
struct Tier {
    busy: bool,
    demand: VecDeque<Job>,
    behind: VecDeque<Job>,
}

struct Node {
    software: Server,
    tier: Tier,
    begun: u32,
    /// Parts of each block that are not safe yet.
    left: Vec<u8>,
    /// Blocks begun and not acknowledged.
    open: u32,
    /// Parts on their way to others.
    behind: u32,
    targets: Vec<NodeId>,
    /// When its last block was acknowledged.
    last: u64,
}

/// Blocks begun and not acknowledged at a time: what the kernel keeps under way.
const DEPTH: u32 = 8;
/// Parts that asynchronous copies may lag behind, per copy.
const BEHIND: u32 = 64;

struct World<'a> {
    hardware: &'a Hardware,
    mode: Mode,
    blocks: u32,
    network: Network,
    backing: Backing,
    nodes: Vec<Node>,
    events: Events<Event>,
    rng: Rng,
    topology: forebay_core::cluster::placement::Topology,
}

/// Each of so many nodes does so many blocks.
#[must_use]
pub fn run(hardware: &Hardware, nodes: u32, mode: Mode, blocks: u32, seed: u64) -> IoReport {
    let node = || Node {
        software: Server::default(),
        tier: Tier::default(),
        begun: 0,
        left: vec![0; blocks as usize],
        open: 0,
        behind: 0,
        targets: Vec::new(),
        last: 0,
    };
    let mut world = World {
        hardware,
        mode,
        blocks,
        network: Network::new(*hardware, nodes),
        backing: Backing::new(*hardware, nodes),
        nodes: (0..nodes).map(|_| node()).collect(),
        events: Events::default(),
        rng: Rng::new(seed),
        topology: topology(hardware, nodes),
    };
    for node in 0..nodes {
        let start = world.rng.between(0, 100_000);
        world.events.at(start, Event::Begin(node));
    }
    let mut settled = 0;
    while let Some((now, event)) = world.events.take() {
        settled = now;
        world.handle(now, event);
    }
    let each = f64::from(blocks) * MIB;
    let rates = world.nodes.iter().map(|node| each / (node.last.max(1) as f64 / 1e9));
    let (rate, bytes) = (rates.sum(), f64::from(nodes) * each);
    IoReport { rate, network: world.network.bytes / bytes, settled: settled as f64 / 1e9 }
}

impl World<'_> {
    /// Begins blocks as long as there are some and not too many are open.
    fn begin(&mut self, now: u64, id: u32) {
        let (copies, _) = self.mode.sends();
        let asynchronous = matches!(self.mode, Mode::Asynchronous(_));
        loop {
            let node = &mut self.nodes[id as usize];
            let lags = asynchronous && node.behind >= BEHIND * copies as u32;
            if node.begun == self.blocks || node.open >= DEPTH || lags {
                return;
            }
            let block = node.begun;
            node.begun += 1;
            node.open += 1;
            if self.mode == Mode::Peer {
                let from = self.rng.between(0, self.nodes.len() as u64 - 1) as u32;
                let takes = takes(MIB, self.hardware.tier_read);
                self.submit(now, from, Job { takes, kind: Kind::Read, node: id, block });
                continue;
            }
            if copies > 0 && block.is_multiple_of(self.blocks.div_ceil(FILES)) {
                let key = u64::from(id) << 32 | u64::from(block);
                node.targets = self.topology.place(key, copies, &[NodeId(id)]);
            }
            let mut work = takes(MIB, self.hardware.software);
            if matches!(self.mode, Mode::Code(..)) {
                work += takes(MIB, self.hardware.encode);
            }
            let at = node.software.serve(now, work);
            self.events.at(at, Event::Ready { node: id, block });
        }
    }

    fn ready(&mut self, now: u64, id: u32, block: u32) {
        if self.mode == Mode::Backing {
            let at = self.backing.move_bytes(now, id, MIB);
            self.nodes[id as usize].left[block as usize] = 1;
            self.events.at(at, Event::Safe { node: id, block, copy: false });
            return;
        }
        let targets = self.nodes[id as usize].targets.clone();
        let waits = match self.mode {
            Mode::Synchronous(_) | Mode::Code(..) => targets.len() as u8 + 1,
            _ => 1,
        };
        let node = &mut self.nodes[id as usize];
        node.left[block as usize] = waits;
        node.behind += targets.len() as u32;
        let takes = takes(MIB, self.hardware.tier_write);
        self.submit(now, id, Job { takes, kind: Kind::Own, node: id, block });
        let (_, share) = self.mode.sends();
        for target in targets {
            let at = self.network.send(now, id, target.0, MIB * share);
            self.events.at(at, Event::Arrived { node: id, block, at: target.0 });
        }
    }

    fn handle(&mut self, now: u64, event: Event) {
        match event {
            Event::Begin(node) => self.begin(now, node),
            Event::Ready { node, block } => self.ready(now, node, block),
            Event::Arrived { node, block, at } => {
                let (_, share) = self.mode.sends();
                let takes = takes(MIB * share, self.hardware.tier_write);
                self.submit(now, at, Job { takes, kind: Kind::Copy, node, block });
            }
            Event::Tier { at, job } => {
                self.nodes[at as usize].tier.busy = false;
                self.begin_job(now, at);
                self.job_done(now, at, job);
            }
            Event::Safe { node, block, copy } => self.safe(now, node, block, copy),
        }
    }

    fn safe(&mut self, now: u64, id: u32, block: u32, copy: bool) {
        let asynchronous = matches!(self.mode, Mode::Asynchronous(_));
        let node = &mut self.nodes[id as usize];
        node.behind -= u32::from(copy);
        if !(copy && asynchronous) {
            node.left[block as usize] -= 1;
            if node.left[block as usize] == 0 {
                node.open -= 1;
                node.last = now;
            }
        }
        self.begin(now, id);
    }

    /// Gives a tier something to do.
    fn submit(&mut self, now: u64, at: u32, job: Job) {
        let waits = !(job.kind == Kind::Copy && matches!(self.mode, Mode::Asynchronous(_)));
        let tier = &mut self.nodes[at as usize].tier;
        let queue = if waits { &mut tier.demand } else { &mut tier.behind };
        queue.push_back(job);
        self.begin_job(now, at);
    }

    fn begin_job(&mut self, now: u64, at: u32) {
        let tier = &mut self.nodes[at as usize].tier;
        if !tier.busy
            && let Some(job) = tier.demand.pop_front().or_else(|| tier.behind.pop_front())
        {
            tier.busy = true;
            self.events.at(now + job.takes, Event::Tier { at, job });
        }
    }

    fn job_done(&mut self, now: u64, at: u32, job: Job) {
        let Job { kind, node, block, .. } = job;
        match kind {
            Kind::Own => self.safe(now, node, block, false),
            Kind::Copy => {
                let safe = now + self.network.latency(at, node);
                self.events.at(safe, Event::Safe { node, block, copy: true });
            }
            Kind::Read => {
                let arrives = self.network.send(now, at, node, MIB);
                let work = takes(MIB, self.hardware.software);
                let receiver = &mut self.nodes[node as usize];
                receiver.left[block as usize] = 1;
                // The software takes it as it comes in.
                let done = receiver.software.serve(now, work).max(arrives);
                self.events.at(done, Event::Safe { node, block, copy: false });
            }
        }
    }
}

/// Bytes a second of all nodes, second by second, while each writes so many bytes to its cache and
/// then `swapped` bytes more that go to the backing store (HyCache+, figures 5 and 6).
#[must_use]
pub fn swap(hardware: &Hardware, nodes: u32, cached: f64, swapped: f64, bin: f64) -> Vec<f64> {
    const PIECE: f64 = 16e6;
    let mut backing = Backing::new(*hardware, nodes);
    let mut bins: Vec<f64> = Vec::new();
    let mut note = |from: u64, to: u64, bytes: f64| {
        // Spread over the time that it took.
        let (mut at, end) = (from as f64 / 1e9, to as f64 / 1e9);
        let density = bytes / (end - at).max(1e-9);
        while at < end {
            let next = ((at / bin).floor() + 1.0) * bin;
            let slot = (at / bin) as usize;
            bins.resize(bins.len().max(slot + 1), 0.0);
            bins[slot] += density * (next.min(end) - at) / bin;
            at = next;
        }
    };
    let mut events = Events::default();
    for node in 0..nodes {
        events.at(0, (node, 0.0));
    }
    let rate = hardware.software.min(hardware.tier_write);
    while let Some((now, (node, written))) = events.take() {
        if written >= cached + swapped {
            continue;
        }
        let end = if written < cached {
            now + takes(PIECE, rate)
        } else {
            backing.move_bytes(now, node, PIECE)
        };
        note(now, end, PIECE);
        events.at(end, (node, written + PIECE));
    }
    bins
}
