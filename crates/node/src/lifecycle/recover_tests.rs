//! Starts after a crash of the machine, over states of namespace and tiers that only a power cut leaves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::{NodeConfig, TierConfig, WritebackPolicy};
use crate::context::Context;
use crate::error::NodeError;
use crate::node::Node;
use forebay_meta::Queue;
use forebay_store::{Header, StoreError};
use forebay_types::Ino;

const DAEMON: Context = Context::DAEMON;
/// No record has this count of changes.
const NEVER: u64 = u64::MAX;
const LIMIT: Duration = Duration::from_secs(20);

fn start(dir: &tempfile::TempDir) -> Arc<Node> {
    let tier = TierConfig { dir: dir.path().join("tier"), size_bytes: 64 << 20 };
    let mut config = NodeConfig::new(dir.path().join("backing"), vec![tier]);
    config.writeback = WritebackPolicy::OnEviction;
    let until = Instant::now() + LIMIT;
    loop {
        match Node::start(config.clone()) {
            // A thread of the one before is at its last breath.
            Err(NodeError::Store(StoreError::Locked { .. })) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            started => return started.expect("node"),
        }
    }
}

/// The machine has stopped, and starts again.
fn restart(dir: &tempfile::TempDir, node: Arc<Node>) -> Arc<Node> {
    let gone = Arc::downgrade(&node);
    drop(node);
    let until = Instant::now() + LIMIT;
    while gone.strong_count() > 0 {
        assert!(Instant::now() < until, "a thread keeps the node");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::write(dir.path().join("tier/state/running"), "another boot").expect("state");
    start(dir)
}

fn content(node: &Node, ino: Ino) -> Vec<u8> {
    let opened = node.open(&DAEMON, ino, libc::O_RDONLY).expect("open");
    let mut bytes = vec![0; 10_000];
    let read = node.read(&DAEMON, opened.fh, 0, &mut bytes).expect("read");
    node.release(opened.fh);
    bytes.truncate(read);
    bytes
}

/// A small file is announced together with others, and its name claimed after that: the log of the
/// namespace may have the one and not the other, and the backing store the file.
#[test]
fn version_whose_claim_the_power_took_when_started_then_it_is_known_and_what_is_synced_later_counts()
 {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
    std::fs::create_dir(dir.path().join("backing")).expect("backing");
    let node = start(&dir);
    let made = node.create_and_open(&DAEMON, Ino::ROOT, b"file", (0o644, 0), libc::O_RDWR);
    let (stat, opened) = made.expect("create");
    node.write(&DAEMON, opened.fh, 0, &[1; 8192]).expect("write");
    node.fsync(&DAEMON, opened.fh, false).expect("sync");
    node.release(opened.fh);
    let object = || node.residency.tiers[0].tier.open(stat.ino.0).expect("object");
    let before: Header = object().header().expect("header");
    let left = node.writeback.drain(Instant::now() + LIMIT, &mut |_| true).expect("drain");
    assert_eq!(left.bytes, 0);
    // The header as it was last synced, and the namespace as of the announcement.
    object().set_header(&before).expect("header");
    let lost = |record: &mut forebay_meta::Record| {
        let link = record.links.first().cloned().expect("a name");
        record.backing.links.remove(&link);
        record.backing.pending = record.backing.fingerprint.take();
    };
    node.meta.reconciled(stat.ino, NEVER, lost).expect("record");
    let dirty = |record: &mut forebay_meta::Record| {
        record.dirty = true;
        Queue::Yes
    };
    node.meta.update(stat.ino, None, dirty).expect("record");

    let node = restart(&dir, node);
    let record = node.meta.get(stat.ino).expect("record");
    assert_eq!(record.backing.links, record.links, "its name is known");
    assert!(record.backing.fingerprint.is_some(), "its version is known");
    let opened = node.open(&DAEMON, stat.ino, libc::O_RDWR).expect("open");
    node.write(&DAEMON, opened.fh, 4096, &[2; 4096]).expect("write");
    node.fsync(&DAEMON, opened.fh, false).expect("sync");
    node.release(opened.fh);

    let node = restart(&dir, node);
    assert!(content(&node, stat.ino) == [[1; 4096], [2; 4096]].concat(), "what was synced");
    assert_eq!(node.writeback.conflicts().0, 0);
    node.stop(LIMIT);
}

/// The header of an object is durable with what it announces, and its bytes are not; the namespace knows
/// that the backing store has them.
#[test]
fn published_file_whose_bytes_the_power_took_when_started_then_it_is_as_published() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
    std::fs::create_dir(dir.path().join("backing")).expect("backing");
    let node = start(&dir);
    let made = node.create_and_open(&DAEMON, Ino::ROOT, b"file", (0o644, 0), libc::O_RDWR);
    let (stat, opened) = made.expect("create");
    node.write(&DAEMON, opened.fh, 0, &[1; 8192]).expect("write");
    let object = || node.residency.tiers[0].tier.open(stat.ino.0).expect("object");
    let before: Header = object().header().expect("header");
    node.release(opened.fh);
    let left = node.writeback.drain(Instant::now() + LIMIT, &mut |_| true).expect("drain");
    assert_eq!(left.bytes, 0);
    let known = node.meta.get(stat.ino).expect("known").backing.fingerprint;
    let pending = known;
    let header = Header { dirty: true, synced: false, covered: false, pending, ..before };
    object().set_header(&header).expect("header");
    object().set_len(0).expect("cut");
    node.meta.sync().expect("sync");
    let node = restart(&dir, node);
    assert_eq!(content(&node, stat.ino), [1; 8192]);
    node.writeback.drain(Instant::now() + LIMIT, &mut |_| true).expect("drain");
    assert_eq!(std::fs::read(dir.path().join("backing/file")).expect("there"), [1; 8192]);
}

/// A mount whose backing store has `name`, of 8192 times `byte`. Nobody works on the backlog any more.
fn written_back(names: &[(&str, u8)]) -> (tempfile::TempDir, Arc<Node>) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
    std::fs::create_dir(dir.path().join("backing")).expect("backing");
    let node = start(&dir);
    for (name, byte) in names {
        write(&node, name, *byte, 0);
    }
    let left = node.writeback.drain(Instant::now() + LIMIT, &mut |_| true).expect("drain");
    assert_eq!(left.bytes, 0);
    node.writeback.stop_reconciler();
    (dir, node)
}

/// Writes 8192 bytes to a file, without a sync.
fn write(node: &Node, name: &str, byte: u8, flags: libc::c_int) -> Ino {
    let flags = flags | libc::O_RDWR;
    let (ino, opened) = match node.lookup(&DAEMON, Ino::ROOT, name.as_bytes()).expect("lookup") {
        Some(stat) => (stat.ino, node.open(&DAEMON, stat.ino, flags).expect("open")),
        None => {
            let mode = (0o644, 0);
            let made = node.create_and_open(&DAEMON, Ino::ROOT, name.as_bytes(), mode, flags);
            made.map(|(stat, opened)| (stat.ino, opened)).expect("create")
        }
    };
    node.write(&DAEMON, opened.fh, 0, &[byte; 8192]).expect("write");
    node.release(opened.fh);
    ino
}

fn rename(node: &Node, from: &str, to: &str) {
    let (from, to) = ((Ino::ROOT, from.as_bytes()), (Ino::ROOT, to.as_bytes()));
    node.rename(&DAEMON, from, to, 0).expect("rename");
}

/// What a name shows after a power cut that takes a new file of 3, which took the name from a file of 2,
/// unless it was synced.
fn shown_after_a_cut(dir: &tempfile::TempDir, node: Arc<Node>, name: &str) -> Vec<u8> {
    let new = write(&node, "new", 3, 0);
    rename(&node, "new", name);
    node.meta.sync().expect("sync");
    let object = node.residency.tiers[0].tier.open(new.0).expect("object");
    if !object.header().expect("header").synced {
        object.set_len(0).expect("cut");
    }
    drop(object);
    let node = restart(dir, node);
    let found = node.lookup(&DAEMON, Ino::ROOT, name.as_bytes()).expect("lookup").expect("there");
    content(&node, found.ino)
}

fn is_old_or_new(shown: &[u8]) -> bool {
    [2, 3].iter().any(|byte| shown == vec![*byte; 8192])
}

/// A worker claims the name that it is about to give to a file in the backing store.
#[test]
fn file_whose_move_is_only_claimed_when_replaced_and_the_power_fails_then_it_or_the_new_one_is_there()
 {
    let (dir, node) = written_back(&[("name", 1), ("saved", 2)]);
    let saved = node.lookup(&DAEMON, Ino::ROOT, b"saved").expect("lookup").expect("there").ino;
    rename(&node, "saved", "name");
    let link = forebay_meta::Link::new(Ino::ROOT, b"name".to_vec());
    node.meta.claim_found(saved, &link).expect("claimed");
    let shown = shown_after_a_cut(&dir, node, "name");
    assert!(is_old_or_new(&shown), "{} bytes of {:?}", shown.len(), shown.first());
}

/// Its object is clean right before its record says so.
#[test]
fn file_written_back_elsewhere_and_not_reported_when_replaced_then_it_or_the_new_one_is_there() {
    let (dir, node) = written_back(&[("saved", 2)]);
    let saved = node.lookup(&DAEMON, Ino::ROOT, b"saved").expect("lookup").expect("there").ino;
    rename(&node, "saved", "name");
    let unreported = |record: &mut forebay_meta::Record| {
        record.dirty = true;
        Queue::Yes
    };
    node.meta.update(saved, None, unreported).expect("record");
    let shown = shown_after_a_cut(&dir, node, "name");
    assert!(is_old_or_new(&shown), "{} bytes of {:?}", shown.len(), shown.first());
}

#[test]
fn file_written_anew_and_moved_without_a_sync_when_replaced_and_the_power_fails_then_not_empty() {
    let (dir, node) = written_back(&[("saved", 1)]);
    write(&node, "saved", 2, libc::O_TRUNC);
    rename(&node, "saved", "name");
    let shown = shown_after_a_cut(&dir, node, "name");
    let old = shown == [1; 8192];
    assert!(old || is_old_or_new(&shown), "{} bytes of {:?}", shown.len(), shown.first());
}
