//! What the nodes of a cluster cost one metadata server while they do nothing but live.
//!
//! `cargo bench -p forebay-meta --bench nodes -- [NODES...]`
//!
//! Each node is a thread with a namespace and connections of its own, as a daemon has them, and does
//! once a second what a daemon's heartbeat does: it counts its heartbeat, looks who else is there, says
//! what it has, and every other second looks what others have. First each of these alone, then all of
//! them. Measured is the server's processor time, which does not depend on how the clients, on the same
//! machine, are held up by each other; so the cost of a heartbeat is that time over the heartbeats that
//! came about.

#[path = "../tests/servers/mod.rs"]
mod servers;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_meta::{MetaStore, NodeName, NodeStatus, Options, RedisOptions};
use servers::Servers;

/// Between two heartbeats of a node.
const BEAT: Duration = Duration::from_secs(1);
/// So long is measured.
const WINDOW: Duration = Duration::from_secs(10);

/// What a node does each second.
type Part = (&'static str, fn(&MetaStore, u64));

const PARTS: [Part; 5] = [
    ("connections", |_, _| {}),
    ("beat", |store, _| assert!(store.beat().expect("the server answers"))),
    ("status", |store, _| say(store)),
    ("look", |store, second| look(store, second)),
    ("all", |store, second| {
        assert!(store.beat().expect("the server answers"));
        look(store, second);
        say(store);
    }),
];

fn say(store: &MetaStore) {
    let status = NodeStatus { files: 3, bytes: 1 << 20, ..NodeStatus::default() };
    store.report_node_status(&status).expect("the server answers");
}

fn look(store: &MetaStore, second: u64) {
    store.members().expect("the server answers");
    if second.is_multiple_of(2) {
        store.node_statuses().expect("the server answers");
        store.leave_orders().expect("the server answers");
    }
}

fn main() {
    let counts: Vec<usize> = std::env::args().filter_map(|word| word.parse().ok()).collect();
    let counts = if counts.is_empty() { vec![10, 100, 1000] } else { counts };
    if !servers::installed() {
        return;
    }
    println!("nodes part beats/s ms_of_server_per_node_second percent_of_a_processor MB/s_out");
    for nodes in counts {
        let servers = Servers::single(&["--appendonly", "yes", "--maxclients", "20000"]);
        let stores = open(&servers, nodes);
        for (name, part) in PARTS {
            measure(&servers, &stores, name, part);
        }
    }
}

fn open(servers: &Servers, nodes: usize) -> Vec<MetaStore> {
    let one = |number: usize| {
        let node =
            Some(NodeName { id: format!("node-{number}"), address: format!("host{number}") });
        let options = Options { node, cached_records: 16, ..Options::default() };
        let engine = servers.open("nodes", &RedisOptions::default());
        MetaStore::open(Box::new(engine), &options).expect("joins")
    };
    (0..nodes).map(one).collect()
}

fn measure(servers: &Servers, stores: &[MetaStore], name: &str, part: fn(&MetaStore, u64)) {
    let (stop, beats) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for (at, store) in stores.iter().enumerate() {
            let (stop, beats) = (&stop, &beats);
            let live = move || {
                // Nodes do not start in the same moment.
                std::thread::sleep(BEAT.mul_f64(at as f64 / stores.len() as f64));
                let mut second = at as u64;
                while !stop.load(Ordering::Acquire) {
                    let next = Instant::now() + BEAT;
                    part(store, second);
                    beats.fetch_add(1, Ordering::AcqRel);
                    second += 1;
                    std::thread::sleep(next.saturating_duration_since(Instant::now()));
                }
            };
            let thread = std::thread::Builder::new().stack_size(256 << 10);
            thread.spawn_scoped(scope, live).expect("a thread");
        }
        std::thread::sleep(BEAT * 2);
        let state = |name: &str| -> f64 {
            let said = servers.command(0, &["INFO", "all"]);
            let value = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.and_then(|value| value.trim().parse().ok()).unwrap_or_default()
        };
        let used = || state("used_cpu_user") + state("used_cpu_sys");
        let out = || state("total_net_output_bytes");
        let before = (used(), out(), beats.load(Ordering::Acquire), Instant::now());
        std::thread::sleep(WINDOW);
        let (cpu, bytes) = (used() - before.0, out() - before.1);
        let done = (beats.load(Ordering::Acquire) - before.2) as f64;
        let seconds = before.3.elapsed().as_secs_f64();
        stop.store(true, Ordering::Release);
        println!(
            "{} {name} {:.0} {:.4} {:.1} {:.2}",
            stores.len(),
            done / seconds,
            cpu * 1000.0 / done.max(1.0),
            cpu / seconds * 100.0,
            bytes / seconds / 1e6,
        );
    });
}
