//! Metadata: a hash table over all nodes, zero hops, one round trip.
//!
//! Each node runs clients and one server. A directory is a partition; its slot, one of 16,384 or as
//! many as there are servers, is on one server, and every client knows which. A client sends a
//! mini-transaction (a create), waits for the answer, and sends the next.

use super::model::{Events, Hardware, Network, Server, quantile};
use crate::rng::Rng;

/// Who asks for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetadataLoad {
    /// Nodes.
    pub nodes: u32,
    /// Servers; the first nodes have them.
    pub servers: u32,
    /// Clients on each node.
    pub clients: u32,
    /// Directories of each client, or, if `shared`, parts that the one directory of all is split in.
    pub directories: u32,
    /// Whether all work in one directory.
    pub shared: bool,
    /// Replicas that must have a change before it is acknowledged.
    pub replicas: u32,
    /// Operations to simulate, about.
    pub operations: u64,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MetadataReport {
    /// Operations a second, of all.
    pub rate: f64,
    /// Nanoseconds from the request to the answer, the client's own work left out: half take less.
    pub median: u64,
    /// 99 of 100 take less.
    pub p99: u64,
    /// The busiest server's share of operations, as a multiple of the mean.
    pub imbalance: f64,
}

#[derive(Debug)]
enum Event {
    /// A request arrives at its server.
    Request { client: u32, server: u32, sent: u64 },
    /// A change arrives at a replica.
    Replicate { client: u32, server: u32, left: u32, sent: u64 },
    /// The answer arrives.
    Answer { client: u32, sent: u64 },
}

/// Runs the clients for as long as the operations asked for take without queues.
#[must_use]
pub fn run(hardware: &Hardware, load: &MetadataLoad) -> MetadataReport {
    let mut rng = Rng::new(load.seed);
    let network = Network::new(*hardware, load.nodes.max(load.servers));
    let mut servers = vec![Server::default(); load.servers as usize];
    let mut counts = vec![0u64; load.servers as usize];
    let clients = load.nodes * load.clients;
    let cycle = hardware.client + hardware.service + 4 * hardware.latency;
    // Long enough for the longest queue to be gone through three times before counting ends.
    let queue = u64::from(clients) * hardware.service / u64::from(load.servers);
    let end = ((load.operations / u64::from(clients)).max(40) * cycle).max(4 * queue);
    let begin = end / 4;
    let (mut latencies, mut done) = (Vec::new(), 0u64);
    let mut events = Events::default();
    let node_of = |client: u32| client / load.clients;
    let send = |events: &mut Events<Event>, rng: &mut Rng, client: u32, now: u64| {
        let server = server_of(load, client, rng);
        let arrives = now + network.latency(node_of(client), server);
        events.at(arrives, Event::Request { client, server, sent: now });
    };
    for client in 0..clients {
        let start = rng.between(0, cycle);
        send(&mut events, &mut rng, client, start);
    }
    while let Some((now, event)) = events.take() {
        if now > end {
            break;
        }
        match event {
            Event::Request { client, server, sent } => {
                let served = servers[server as usize].serve(now, service(hardware, &mut rng));
                counts[server as usize] += 1;
                if load.replicas > 0 {
                    let replica = (server + 1) % load.servers;
                    let at = served + network.latency(server, replica);
                    let left = load.replicas;
                    events.at(at, Event::Replicate { client, server: replica, left, sent });
                } else {
                    let at = served + network.latency(server, node_of(client));
                    events.at(at, Event::Answer { client, sent });
                }
            }
            Event::Replicate { client, server, left, sent } => {
                let served = servers[server as usize].serve(now, service(hardware, &mut rng));
                // The acknowledgement goes back over the primary.
                let primary = (server + load.servers - 1) % load.servers;
                let back =
                    network.latency(server, primary) + network.latency(primary, node_of(client));
                if left > 1 {
                    let next = (server + 1) % load.servers;
                    let at = served + network.latency(server, next);
                    events.at(at, Event::Replicate { client, server: next, left: left - 1, sent });
                } else {
                    events.at(served + back, Event::Answer { client, sent });
                }
            }
            Event::Answer { client, sent } => {
                if now >= begin {
                    done += 1;
                    latencies.push(now - sent);
                }
                send(&mut events, &mut rng, client, now + hardware.client);
            }
        }
    }
    let mean = counts.iter().sum::<u64>() as f64 / f64::from(load.servers);
    let most = counts.iter().copied().max().unwrap_or(0) as f64;
    MetadataReport {
        rate: done as f64 / ((end - begin) as f64 / 1e9),
        median: quantile(&mut latencies, 0.5),
        p99: quantile(&mut latencies, 0.99),
        imbalance: if mean > 0.0 { most / mean } else { 1.0 },
    }
}

/// Seven tenths of the service time are always needed, the rest is exponential.
fn service(hardware: &Hardware, rng: &mut Rng) -> u64 {
    let random = -(1.0 - rng.unit()).ln();
    (hardware.service as f64 * (0.7 + 0.3 * random)) as u64
}

/// The server of the directory, or of the part of the directory, that the next name is in.
fn server_of(load: &MetadataLoad, client: u32, rng: &mut Rng) -> u32 {
    let part = rng.between(0, u64::from(load.directories.max(1)) - 1);
    let directory = if load.shared { part } else { u64::from(client) << 16 | part };
    let slots = u64::from(load.servers).max(16_384);
    let slot = Rng::new(directory ^ load.seed << 40).between(0, slots - 1);
    (slot * u64::from(load.servers) / slots) as u32
}
