//! What is left of an object when the tier fails while a part of it goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use forebay_core::steward::Action;
use forebay_core::unit;
use forebay_store::decorators::{InterceptedTier, Interceptor, Operation, Verdict};
use forebay_store::tier::DirTier;
use forebay_store::{DirBacking, Tier};
use forebay_types::Ino;

use crate::config::{NodeConfig, TierConfig, WritebackPolicy};
use crate::context::Context;
use crate::error::NodeError;
use crate::node::Node;

const DAEMON: Context = Context::DAEMON;

/// After so many operations on headers one is carried out, and answered with an error.
struct Unanswered(AtomicI64);

impl Interceptor for Unanswered {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        let hit = operation == Operation::Header && self.0.fetch_sub(1, Ordering::AcqRel) == 0;
        if hit { Verdict::Lost(libc::EIO) } else { Verdict::Pass }
    }
}

fn start(dir: &tempfile::TempDir, by: &Arc<Unanswered>) -> Arc<Node> {
    let path = dir.path().join("tier");
    std::fs::create_dir_all(&path).expect("tier");
    let owner = DirTier::open(&path).expect("tier").id().to_string();
    let mut config = NodeConfig::new(
        dir.path().join("backing"),
        vec![TierConfig { dir: path, size_bytes: 64 << 20 }],
    );
    config.writeback = WritebackPolicy::OnEviction;
    config.extent_bytes = 64 << 10;
    let backing = Arc::new(DirBacking::open(dir.path().join("backing"), &owner).expect("backing"));
    let by = Arc::clone(by);
    let in_front = move |tier: Arc<dyn Tier>| -> Arc<dyn Tier> {
        Arc::new(InterceptedTier::new(tier, by.clone()))
    };
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match Node::start_between(config.clone(), backing.clone(), &in_front) {
            // A thread of the one before is at its last breath.
            Err(NodeError::Store(forebay_store::StoreError::Locked { .. }))
                if Instant::now() < until =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            started => return started.expect("node"),
        }
    }
}

/// A file of several names is written back in place, by what its map says; a map that counts again after a
/// death, and was not kept up to date, does not know of what was written.
#[test]
fn tail_that_goes_when_the_header_is_answered_with_an_error_then_later_writes_get_below() {
    for headers in 0..3 {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
        let backing = dir.path().join("backing");
        std::fs::create_dir(&backing).expect("backing");
        std::fs::write(backing.join("file"), vec![7; 300 << 10]).expect("file");
        std::fs::hard_link(backing.join("file"), backing.join("link")).expect("link");
        let by = Arc::new(Unanswered(AtomicI64::new(-1)));
        let node = start(&dir, &by);
        let ino = |node: &Node, name: &[u8]| {
            node.lookup(&DAEMON, Ino::ROOT, name).expect("looked up").expect("there").ino
        };
        let file = ino(&node, b"file");
        ino(&node, b"link");
        node.residency().warm_file(file, &mut |_| true).expect("fetched");
        by.0.store(headers, Ordering::Release);
        let (object, tier, keep) = (file, unit::Tier(0), unit::Bytes(128 << 10));
        node.residency.perform(Action::Truncate { object, tier, keep });
        by.0.store(-1, Ordering::Release);
        let opened = node.open(&DAEMON, file, libc::O_RDWR).expect("open");
        node.write(&DAEMON, opened.fh, 1000, b"written after it").expect("write");
        let gone = Arc::downgrade(&node);
        drop(node);
        while gone.strong_count() > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let node = start(&dir, &by);
        let until = Instant::now() + Duration::from_secs(20);
        let left = node.writeback().drain(until, &mut |_| true).expect("drained");
        assert_eq!(left.entries, 0, "after {headers}");
        let below = std::fs::read(backing.join("link")).expect("below");
        assert!(&below[1000..1016] == b"written after it", "after {headers}");
    }
}

/// How something is to make way, and whether it does.
type Way = Box<dyn Fn(&Node) -> bool + Send>;

/// A tier with one clean file, of which another has the location in hand.
#[test]
fn victim_when_somebody_has_it_in_hand_then_a_writer_does_not_wait_for_him() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
    let backing = dir.path().join("backing");
    std::fs::create_dir(&backing).expect("backing");
    std::fs::write(backing.join("file"), vec![7; 300 << 10]).expect("file");
    let node = start(&dir, &Arc::new(Unanswered(AtomicI64::new(-1))));
    let found = node.lookup(&DAEMON, Ino::ROOT, b"file").expect("looked up").expect("there");
    let (ino, tier) = (found.ino, unit::Tier(0));
    node.residency().warm_file(ino, &mut |_| true).expect("fetched");
    let file = node.residency.files.get(ino);
    let in_hand = file.location.read();
    let (object, keep) = (ino, unit::Bytes(128 << 10));
    let ways: [Way; 4] = [
        Box::new(move |node| node.residency.perform(Action::Evict { object, tier })),
        Box::new(move |node| node.residency.perform(Action::Truncate { object, tier, keep })),
        Box::new(move |node| {
            let (from, to) = (tier, tier);
            node.residency.perform(Action::Demote { object, from, to })
        }),
        Box::new(|node| node.residency.free_room(0, 64 << 20)),
    ];
    for (way, done) in ways.into_iter().enumerate() {
        let (node, (tell, told)) = (node.clone(), std::sync::mpsc::channel());
        let begun = Instant::now();
        std::thread::spawn(move || {
            // Nobody hears it who has given up.
            tell.send(done(&node)).ok();
        });
        let done = told.recv_timeout(Duration::from_secs(5));
        assert_eq!(done, Ok(false), "way {way}, after {:?}", begun.elapsed());
    }
    drop(in_hand);
    drop(file);
    assert!(node.residency().evict_file(ino).expect("evicted"));
}
