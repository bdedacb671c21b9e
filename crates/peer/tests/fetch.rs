//! Extents from several nodes, some of which misbehave.

use forebay_peer::conformance::faulty::{Faulty, Switches};
use forebay_peer::fetch::{Copy, Extent, Fetched, Fetcher, Wanted};
use forebay_peer::message::{Fault, Presence, Read};
use forebay_peer::transport::Transport;
use forebay_peer::transport::tcp::Tcp;
use forebay_peer::{
    Body, Call, Client, ClientConfig, Error, Found, Identity, Limits, Security, Server, Service,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const EXTENT: u32 = 64 << 10;
const VERSION: u64 = 5;

/// What a node does wrong, if anything.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Behaviour {
    Honest,
    /// Answers so many reads and then nothing for long.
    StallsAfter(u64),
    /// Sends other bytes, with sums that fit.
    Lies,
    /// Sends fewer bytes than were asked for.
    Stingy,
    /// Sends another version.
    Old,
    /// Has nothing.
    Empty,
    /// Takes its time for every read.
    Slow,
}

struct Peer {
    behaviour: Behaviour,
    asked: AtomicU64,
}

fn byte(at: u64) -> u8 {
    (at ^ at >> 9 ^ at >> 17) as u8
}

fn bytes(extent: Extent) -> Vec<u8> {
    (extent.offset..extent.offset + u64::from(extent.len)).map(byte).collect()
}

impl Service for Peer {
    fn read(&self, call: &Call, read: &Read) -> Result<Found, Fault> {
        let asked = self.asked.fetch_add(1, Ordering::AcqRel);
        let mut body = bytes(Extent { offset: read.offset, len: read.len });
        let mut version = VERSION;
        match self.behaviour {
            Behaviour::Honest => {}
            Behaviour::StallsAfter(many) if asked < many => {}
            Behaviour::StallsAfter(_) => {
                while !call.cancelled() && !call.left().is_zero() {
                    std::thread::sleep(Duration::from_millis(2));
                }
                return Err(Fault::Cancelled);
            }
            Behaviour::Lies => body[1000] ^= 1,
            Behaviour::Stingy => body.truncate(1000),
            Behaviour::Old => version -= 1,
            Behaviour::Empty => return Err(Fault::NotHere),
            Behaviour::Slow => std::thread::sleep(Duration::from_millis(30)),
        }
        Ok(Found { version, body: Body::Bytes(body) })
    }
}

/// A node and a client of it.
struct Node {
    peer: Arc<Peer>,
    server: Server,
    client: Client,
    switches: Arc<Switches>,
}

fn node(behaviour: Behaviour) -> Node {
    let peer = Arc::new(Peer { behaviour, asked: AtomicU64::new(0) });
    let me = |node| Identity::new("c".into(), node, 1);
    // Far longer than an honest node takes on a busy machine.
    let limits = Limits { stall: Duration::from_secs(3), ..Limits::default() };
    let tcp = Tcp::new(Security::Off);
    let mut server = Server::start(peer.clone(), me(1), limits.clone()).unwrap();
    let address = server.listen(&tcp, &"tcp://127.0.0.1:0".parse().unwrap()).unwrap();
    let faulty = Faulty::around(Arc::new(tcp) as Arc<dyn Transport>);
    let switches = faulty.switches();
    let config = ClientConfig { limits, ..ClientConfig::new(me(2)) };
    let client = Client::new(Arc::new(faulty), address, config);
    Node { peer, server, client, switches }
}

fn extents(count: u64) -> Vec<Extent> {
    let mut extents: Vec<_> =
        (0..count).map(|at| Extent { offset: at * u64::from(EXTENT), len: EXTENT }).collect();
    extents.push(Extent { offset: count * u64::from(EXTENT), len: 77 });
    extents
}

fn fetcher() -> Fetcher {
    Fetcher { timeout: Duration::from_secs(2), ..Fetcher::default() }
}

/// Fetches, and checks that each extent came once, and right.
fn fetch(nodes: &[&Node], extents: &[Extent]) -> Fetched {
    let copies: Vec<_> =
        nodes.iter().map(|node| Copy { node: &node.client, presence: None }).collect();
    let verify = |extent: Extent, got: &[u8]| got == bytes(extent);
    let wanted = Wanted { ino: 9, version: VERSION, extents, verify: Some(&verify) };
    let mut got = BTreeMap::new();
    let fetched = fetcher()
        .fetch(&wanted, &copies, |extent, bytes| {
            assert!(got.insert(extent, bytes.to_vec()).is_none(), "{extent:?} came twice");
            Ok::<(), ()>(())
        })
        .unwrap();
    for (extent, got) in &got {
        assert!(*got == bytes(*extent), "{extent:?} is wrong");
    }
    let mut all: Vec<_> = got.into_keys().chain(fetched.missing.iter().copied()).collect();
    all.sort_unstable();
    assert_eq!(all, extents, "each extent comes or is missing");
    fetched
}

#[test]
fn fetch_when_three_have_it_then_all_three_deliver() {
    let nodes = [node(Behaviour::Slow), node(Behaviour::Slow), node(Behaviour::Slow)];
    let fetched = fetch(&nodes.each_ref(), &extents(40));
    assert!(fetched.missing.is_empty() && fetched.failures.is_empty());
    assert!(fetched.delivered.iter().all(|many| *many >= 5), "{:?}", fetched.delivered);
}

#[test]
fn fetch_when_a_node_misbehaves_then_the_others_deliver_and_it_is_asked_no_more() {
    for behaviour in [Behaviour::Lies, Behaviour::Stingy, Behaviour::Old] {
        let (bad, good) = (node(behaviour), node(Behaviour::Slow));
        let fetched = fetch(&[&bad, &good], &extents(30));
        assert!(fetched.missing.is_empty(), "{behaviour:?}");
        assert_eq!(fetched.delivered[0], 0, "{behaviour:?}");
        assert!(matches!(fetched.failures[..], [(0, _)]), "{:?}", fetched.failures);
        // Only what was under way when the first false answer came.
        assert!(bad.peer.asked.load(Ordering::Acquire) <= 8, "{behaviour:?} is asked on");
    }
}

#[test]
fn fetch_when_a_node_corrupts_then_its_sum_tells_and_the_other_delivers() {
    let (bad, good) = (node(Behaviour::Honest), node(Behaviour::Slow));
    bad.client.ping(Duration::from_secs(5)).unwrap();
    bad.switches.change_after(150_000);
    let fetched = fetch(&[&bad, &good], &extents(30));
    assert!(fetched.missing.is_empty());
    assert!(matches!(fetched.failures[..], [(0, Error::Corrupt(_))]), "{:?}", fetched.failures);
}

#[test]
fn fetch_when_a_node_dies_in_the_middle_then_the_other_delivers_the_rest() {
    let (mut dying, good) = (node(Behaviour::Slow), node(Behaviour::Slow));
    let (peer, client) = (dying.peer.clone(), &dying.client);
    let server = parking_lot::Mutex::new(&mut dying.server);
    let copies =
        [Copy { node: client, presence: None }, Copy { node: &good.client, presence: None }];
    let extents = extents(40);
    let wanted = Wanted { ino: 9, version: VERSION, extents: &extents, verify: None };
    let mut came = 0;
    let fetched = fetcher().fetch(&wanted, &copies, |extent, got| {
        assert!(got[..] == bytes(extent)[..]);
        came += 1;
        if came == 5 {
            server.lock().close(Duration::ZERO);
        }
        Ok::<(), ()>(())
    });
    let fetched = fetched.unwrap();
    assert_eq!((came, fetched.missing.len()), (41, 0));
    assert!(peer.asked.load(Ordering::Acquire) > 0 && fetched.delivered[1] > 20);
    assert!(fetched.failures.iter().any(|(place, _)| *place == 0), "{:?}", fetched.failures);
}

#[test]
fn fetch_when_a_node_stalls_then_its_extents_go_to_the_other_in_time() {
    let (stalling, good) = (node(Behaviour::StallsAfter(3)), node(Behaviour::Honest));
    let begun = Instant::now();
    let fetched = fetch(&[&stalling, &good], &extents(30));
    assert!(fetched.missing.is_empty());
    assert!(begun.elapsed() < Duration::from_secs(30), "it took {:?}", begun.elapsed());
    assert!(fetched.delivered[1] >= 28, "{:?}", fetched.delivered);
}

#[test]
fn fetch_when_no_node_can_then_all_is_missing_and_soon() {
    let (empty, lying) = (node(Behaviour::Empty), node(Behaviour::Lies));
    let mut gone = node(Behaviour::Honest);
    gone.server.close(Duration::ZERO);
    let begun = Instant::now();
    let fetched = fetch(&[&empty, &lying, &gone], &extents(10));
    assert_eq!((fetched.missing.len(), fetched.failures.len()), (11, 3));
    assert!(begun.elapsed() < Duration::from_secs(30), "it took {:?}", begun.elapsed());
    assert_eq!(fetch(&[], &extents(3)).missing.len(), 4);
}

#[test]
fn fetch_when_nodes_have_parts_then_each_is_asked_for_its_own() {
    let nodes = [node(Behaviour::Honest), node(Behaviour::Honest)];
    let extents = extents(6);
    let size = u64::from(EXTENT);
    let part = |runs| Presence { version: VERSION, size: 0, runs, next: None };
    let parts = [part(vec![(0, 2 * size)]), part(vec![(size, 3 * size)])];
    let copies: Vec<_> = nodes
        .iter()
        .zip(&parts)
        .map(|(node, part)| Copy { node: &node.client, presence: Some(part) })
        .collect();
    let wanted = Wanted { ino: 9, version: VERSION, extents: &extents, verify: None };
    let mut came = Vec::new();
    let fetched = fetcher().fetch(&wanted, &copies, |extent, _| {
        came.push(extent);
        Ok::<(), ()>(())
    });
    came.sort_unstable();
    assert_eq!(came, extents[..4]);
    assert_eq!(fetched.unwrap().missing, extents[4..]);
}

#[test]
fn fetch_when_its_taker_fails_then_ends() {
    let node = node(Behaviour::Honest);
    let copies = [Copy { node: &node.client, presence: None }];
    let extents = extents(50);
    let wanted = Wanted { ino: 9, version: VERSION, extents: &extents, verify: None };
    let mut came = 0;
    let ended = fetcher().fetch(&wanted, &copies, |_, _| {
        came += 1;
        if came < 3 { Ok(()) } else { Err("no space") }
    });
    assert_eq!((ended.unwrap_err(), came), ("no space", 3));
    assert!(node.peer.asked.load(Ordering::Acquire) < 40, "it goes on asking");
}
