//! Machines, links and queues, in virtual time.
//!
//! Every link and server does one thing after the other, in the order in which things arrive. A transfer takes its links one after the other without waiting at one for the
//! whole to pass the one before (cut-through), so a busy link delays it and nothing else.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_core::cluster::NodeId;
use forebay_core::cluster::placement::{Site, Topology};

/// What a node, its network and the backing store can do. Times in nanoseconds, rates in bytes a
/// second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hardware {
    /// Its name.
    pub name: &'static str,
    /// One way between nodes of a rack; twice as much between racks.
    pub latency: u64,
    /// A node's link, each way.
    pub link: f64,
    /// Nodes in a rack.
    pub rack: u32,
    /// A rack's link to the others, each way.
    pub uplink: f64,
    /// A node's tier.
    pub tier_write: f64,
    /// A node's tier.
    pub tier_read: f64,
    /// What a node's file system in user space passes at most.
    pub software: f64,
    /// What a core encodes (4+2).
    pub encode: f64,
    /// A metadata server's time for a mini-transaction.
    pub service: u64,
    /// A client's time for one.
    pub client: u64,
    /// All of the backing store.
    pub backing: f64,
    /// Nodes behind one gateway to it.
    pub gateway_nodes: u32,
    /// Such a gateway.
    pub gateway: f64,
}

/// A machine to model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Machine {
    /// NVMe, 100 Gb/s, racks of 32 with half of that to the others; backing store of 200 GB/s
    Today,
    /// Intrepid of HyCache+: memory as cache, a gateway for 64 nodes
    Bluegene,
    /// Kodiak of HyCache, figure 10: 1 Gb/s
    Kodiak,
}

impl Machine {
    /// Its numbers. What the papers do not say is assumed; docs/design/sim-cluster.md says which.
    #[must_use]
    pub fn hardware(self) -> Hardware {
        let today = Hardware {
            name: "today",
            latency: 5_000,
            link: 11.5e9,
            rack: 32,
            uplink: 184e9,
            tier_write: 4e9,
            tier_read: 6e9,
            software: 2.5e9,
            encode: 6e9,
            service: 5_000,
            client: 25_000,
            backing: 200e9,
            gateway_nodes: 128,
            gateway: 24e9,
        };
        match self {
            Self::Today => today,
            Self::Bluegene => Hardware {
                name: "bluegene",
                latency: 5_000,
                link: 375e6,
                rack: 64,
                uplink: 12e9,
                tier_write: 400e6,
                tier_read: 400e6,
                software: 175e6,
                encode: 100e6,
                service: 60_000,
                client: 300_000,
                backing: 60e9,
                gateway_nodes: 64,
                gateway: 350e6,
            },
            Self::Kodiak => Hardware {
                name: "kodiak",
                latency: 60_000,
                link: 117e6,
                rack: 32,
                uplink: 1.2e9,
                tier_write: 400e6,
                tier_read: 400e6,
                software: 300e6,
                encode: 500e6,
                service: 30_000,
                client: 150_000,
                backing: 2e9,
                gateway_nodes: 1 << 20,
                gateway: 2e9,
            },
        }
    }
}

/// Nanoseconds that so many bytes take.
#[must_use]
pub fn takes(bytes: f64, rate: f64) -> u64 {
    (bytes / rate * 1e9).ceil() as u64
}

/// One thing after the other.
#[derive(Debug, Default, Clone, Copy)]
pub struct Server {
    free_at: u64,
}

impl Server {
    /// Takes in what arrives now; returns when it is done. To be called in order of time.
    pub fn serve(&mut self, now: u64, duration: u64) -> u64 {
        self.free_at = self.free_at.max(now) + duration;
        self.free_at
    }

    /// As [`Server::serve`]; returns when it begins and ends.
    fn pass(&mut self, now: u64, duration: u64) -> (u64, u64) {
        let begin = self.free_at.max(now);
        self.free_at = begin + duration;
        (begin, self.free_at)
    }
}

/// What happens when; of two at the same time, what was planned first.
#[derive(Debug)]
pub struct Events<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    planned: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: u64,
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), planned: 0 }
    }
}

impl<E> Events<E> {
    /// Plans an event.
    pub fn at(&mut self, at: u64, event: E) {
        self.planned += 1;
        self.heap.push(Reverse(Entry { at, number: self.planned, event }));
    }

    /// The next event and its time.
    pub fn take(&mut self) -> Option<(u64, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}

/// The links between nodes.
#[derive(Debug)]
pub struct Network {
    hardware: Hardware,
    out: Vec<Server>,
    into: Vec<Server>,
    up: Vec<Server>,
    down: Vec<Server>,
    /// Bytes that left a node.
    pub bytes: f64,
}

impl Network {
    /// So many nodes, in racks.
    #[must_use]
    pub fn new(hardware: Hardware, nodes: u32) -> Self {
        let racks = nodes.div_ceil(hardware.rack) as usize;
        let (nodes, none) = (nodes as usize, Server::default());
        let (out, into) = (vec![none; nodes], vec![none; nodes]);
        Self { hardware, out, into, up: vec![none; racks], down: vec![none; racks], bytes: 0.0 }
    }

    /// One way.
    #[must_use]
    pub fn latency(&self, from: u32, to: u32) -> u64 {
        match () {
            () if from == to => 0,
            () if from / self.hardware.rack == to / self.hardware.rack => self.hardware.latency,
            () => 2 * self.hardware.latency,
        }
    }

    /// When the last byte arrives.
    pub fn send(&mut self, now: u64, from: u32, to: u32, bytes: f64) -> u64 {
        if from == to {
            return now;
        }
        self.bytes += bytes;
        let (link, uplink) = (takes(bytes, self.hardware.link), takes(bytes, self.hardware.uplink));
        let (mut begin, mut end) = self.out[from as usize].pass(now, link);
        let (rack, other) =
            ((from / self.hardware.rack) as usize, (to / self.hardware.rack) as usize);
        let mut hop = |server: &mut Server, duration| {
            let (start, done) = server.pass(begin, duration);
            begin = start;
            end = end.max(done);
        };
        if rack != other {
            hop(&mut self.up[rack], uplink);
            hop(&mut self.down[other], uplink);
        }
        hop(&mut self.into[to as usize], link);
        end + self.latency(from, to)
    }
}

/// The backing store and the gateways to it.
#[derive(Debug)]
pub struct Backing {
    hardware: Hardware,
    all: Server,
    gateways: Vec<Server>,
    /// Bytes that it moved.
    pub bytes: f64,
}

impl Backing {
    /// For so many nodes.
    #[must_use]
    pub fn new(hardware: Hardware, nodes: u32) -> Self {
        let gateways = nodes.div_ceil(hardware.gateway_nodes) as usize;
        let none = Server::default();
        Self { hardware, all: none, gateways: vec![none; gateways], bytes: 0.0 }
    }

    /// When so many bytes are read or written by a node.
    pub fn move_bytes(&mut self, now: u64, node: u32, bytes: f64) -> u64 {
        self.bytes += bytes;
        let gateway = &mut self.gateways[(node / self.hardware.gateway_nodes) as usize];
        let (begin, through) = gateway.pass(now, takes(bytes, self.hardware.gateway));
        let (_, done) = self.all.pass(begin, takes(bytes, self.hardware.backing));
        // A request to a parallel file system takes its time whatever its size.
        through.max(done) + 40 * self.hardware.latency
    }

    /// What so many nodes get at most together, in bytes a second.
    #[must_use]
    pub fn limit(&self) -> f64 {
        (self.gateways.len() as f64 * self.hardware.gateway).min(self.hardware.backing)
    }
}

/// The nodes by rack, all with the same free space.
#[must_use]
pub fn topology(hardware: &Hardware, nodes: u32) -> Topology {
    let site =
        |node| Site { node: NodeId(node), domain: Some(node / hardware.rack), weight: 1 << 30 };
    Topology::new(&(0..nodes).map(site).collect::<Vec<_>>())
}

/// The value below which a share of the values lies.
#[must_use]
pub fn quantile(values: &mut [u64], share: f64) -> u64 {
    if values.is_empty() {
        return 0;
    }
    let at = ((values.len() - 1) as f64 * share).round() as usize;
    *values.select_nth_unstable(at).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_when_many_send_to_one_then_its_link_is_the_limit() {
        let hardware = Machine::Today.hardware();
        let mut network = Network::new(hardware, 64);
        let last = (1..=20).map(|from| network.send(0, from, 0, 1e9)).max().expect("some");
        let expected = takes(20e9, hardware.link) + hardware.latency;
        assert!(last.abs_diff(expected) < 100, "{last} {expected}");
        // Another pair is not disturbed.
        let other = network.send(0, 30, 31, 1e9);
        assert_eq!(other, takes(1e9, hardware.link) + hardware.latency);
    }

    #[test]
    fn racks_when_they_talk_to_each_other_then_the_uplink_is_the_limit() {
        let hardware = Machine::Today.hardware();
        let mut network = Network::new(hardware, 64);
        let last = (0..32).map(|node| network.send(0, node, 32 + node, 1e9)).max().expect("some");
        // The uplink takes them one after the other, and the last still has its own link to pass.
        let uplink = takes(32e9, hardware.uplink);
        let most = uplink + takes(1e9, hardware.link) + 2 * hardware.latency;
        assert!((uplink..=most).contains(&last), "{last} {uplink} {most}");
    }

    #[test]
    fn events_then_in_order_of_time_and_of_planning() {
        let mut events = Events::default();
        for (at, name) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            events.at(at, name);
        }
        let order: Vec<(u64, char)> = std::iter::from_fn(|| events.take()).collect();
        assert_eq!(order, [(1, 'a'), (2, 'b'), (5, 'c'), (5, 'd')]);
        assert_eq!(quantile(&mut [5, 1, 3], 0.5), 3);
    }
}
