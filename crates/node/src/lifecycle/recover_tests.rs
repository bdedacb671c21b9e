//! Starts after a crash of the machine, over states of namespace and tiers that only a power cut leaves.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::config::{NodeConfig, TierConfig, WritebackPolicy};
use crate::context::Context;
use crate::error::NodeError;
use crate::namespace::NewFile;
use crate::node::Node;
use forebay_core::steward::Action;
use forebay_core::unit;
use forebay_meta::NameIn;
use forebay_meta::Queue;
use forebay_store::decorators::{InterceptedBacking, Interceptor, Operation, Verdict};
use forebay_store::{DirBacking, Header, StoreError, Tier};
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

fn stop_the_machine(dir: &Path, node: Arc<Node>) {
    let gone = Arc::downgrade(&node);
    drop(node);
    let until = Instant::now() + LIMIT;
    while gone.strong_count() > 0 {
        assert!(Instant::now() < until, "a thread keeps the node");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::write(dir.join("tier/state/running"), "another boot").expect("state");
}

/// The machine has stopped, and starts again.
fn restart(dir: &tempfile::TempDir, node: Arc<Node>) -> Arc<Node> {
    stop_the_machine(dir.path(), node);
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
    let made = node.create_and_open(
        &DAEMON,
        Ino::ROOT,
        b"file",
        NewFile { mode: 0o644, umask: 0 },
        libc::O_RDWR,
    );
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
        record.mark_dirty();
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
    let made = node.create_and_open(
        &DAEMON,
        Ino::ROOT,
        b"file",
        NewFile { mode: 0o644, umask: 0 },
        libc::O_RDWR,
    );
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
            let new = NewFile { mode: 0o644, umask: 0 };
            let made = node.create_and_open(&DAEMON, Ino::ROOT, name.as_bytes(), new, flags);
            made.map(|(stat, opened)| (stat.ino, opened)).expect("create")
        }
    };
    node.write(&DAEMON, opened.fh, 0, &[byte; 8192]).expect("write");
    node.release(opened.fh);
    ino
}

fn rename(node: &Node, from: &str, to: &str) {
    let (from, to) =
        (NameIn::new(Ino::ROOT, from.as_bytes()), NameIn::new(Ino::ROOT, to.as_bytes()));
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
        record.mark_dirty();
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

/// The backing store has the new file as an empty one elsewhere, and a worker has claimed the name for it.
#[test]
fn file_whose_name_is_claimed_for_an_empty_one_when_the_power_fails_then_it_or_the_new_one_is_there()
 {
    for has_object in [true, false] {
        let (dir, node) = written_back(&[("name", 2)]);
        let made = node.create_and_open(
            &DAEMON,
            Ino::ROOT,
            b"new",
            NewFile { mode: 0o644, umask: 0 },
            libc::O_RDWR,
        );
        node.release(made.expect("create").1.fh);
        node.writeback.drain(Instant::now() + LIMIT, &mut |_| true).expect("drain");
        let new = write(&node, "new", 3, 0);
        rename(&node, "new", "name");
        let link = forebay_meta::Link::new(Ino::ROOT, b"name".to_vec());
        node.meta.claim_found(new, &link).expect("claimed");
        node.meta.sync().expect("sync");
        match has_object {
            true => {
                node.residency.tiers[0].tier.open(new.0).expect("object").set_len(0).expect("cut");
            }
            false => node.residency.tiers[0].tier.remove(new.0).expect("object"),
        }
        let node = restart(&dir, node);
        let found = node.lookup(&DAEMON, Ino::ROOT, b"name").expect("lookup").expect("there");
        let shown = content(&node, found.ino);
        assert!(is_old_or_new(&shown), "{} bytes of {:?}", shown.len(), shown.first());
        node.stop(LIMIT);
    }
}

/// A new file has taken the name of a removed one, which a worker has claimed for it and not made.
#[test]
fn name_that_is_claimed_for_a_new_file_when_replaced_and_the_power_fails_then_no_removed_one_is_there()
 {
    let (dir, node) = written_back(&[("name", 1)]);
    let new = write(&node, "saved", 2, 0);
    node.unlink(&DAEMON, Ino::ROOT, b"name").expect("unlink");
    rename(&node, "saved", "name");
    let link = forebay_meta::Link::new(Ino::ROOT, b"name".to_vec());
    node.meta.claim_found(new, &link).expect("claimed");
    let shown = shown_after_a_cut(&dir, node, "name");
    assert!(is_old_or_new(&shown), "{} bytes of {:?}", shown.len(), shown.first());
}

/// The power fails and takes all of what was written to a file since it took `name`, but its length.
fn shown_after_it_was_written_anew(dir: &tempfile::TempDir, node: Arc<Node>) -> Vec<u8> {
    let ino = write(&node, "name", 3, libc::O_TRUNC);
    node.meta.sync().expect("sync");
    node.residency.tiers[0].tier.open(ino.0).expect("object").set_len(0).expect("cut");
    let node = restart(dir, node);
    let found = node.lookup(&DAEMON, Ino::ROOT, b"name").expect("lookup").expect("there");
    let shown = content(&node, found.ino);
    assert_eq!(node.writeback.conflicts().0, 0);
    node.stop(LIMIT);
    shown
}

/// The backing store has it as an empty file, which somebody may have been told of: the file that it has
/// replaced does not come back.
#[test]
fn empty_file_that_took_a_name_and_was_written_anew_when_the_power_fails_then_what_it_replaced_stays_away()
 {
    let (dir, node) = written_back(&[("name", 1)]);
    let made = node.create_and_open(
        &DAEMON,
        Ino::ROOT,
        b"new",
        NewFile { mode: 0o644, umask: 0 },
        libc::O_RDWR,
    );
    node.release(made.expect("create").1.fh);
    node.writeback.drain(Instant::now() + LIMIT, &mut |_| true).expect("drain");
    rename(&node, "new", "name");
    let shown = shown_after_it_was_written_anew(&dir, node);
    assert!(shown.is_empty(), "{} bytes of {:?}", shown.len(), shown.first());
}

/// What a file replaces was synced, and the backing store has an older version of that. The file is
/// written back elsewhere, and that is not reported yet.
#[test]
fn file_that_replaced_a_synced_one_and_was_written_anew_when_the_power_fails_then_none_older_comes_back()
 {
    let (dir, node) = written_back(&[("name", 1), ("saved", 2)]);
    let synced = write(&node, "name", 4, libc::O_TRUNC);
    let opened = node.open(&DAEMON, synced, libc::O_RDWR).expect("open");
    node.fsync(&DAEMON, opened.fh, false).expect("sync");
    node.release(opened.fh);
    let saved = node.lookup(&DAEMON, Ino::ROOT, b"saved").expect("lookup").expect("there").ino;
    let unreported = |record: &mut forebay_meta::Record| {
        record.backing.pending = record.backing.fingerprint.take();
        record.mark_dirty();
        Queue::Yes
    };
    node.meta.update(saved, None, unreported).expect("record");
    rename(&node, "saved", "name");
    let shown = shown_after_it_was_written_anew(&dir, node);
    assert!(shown == [2; 8192], "{} bytes of {:?}", shown.len(), shown.first());
}

/// What a device may have of an object or its map.
#[derive(Clone, Copy, Debug, PartialEq)]
enum As {
    /// Not even its name.
    Absent,
    /// No byte.
    Empty,
    /// As it was when the version had appeared in the backing store, and the object was dirty yet.
    Published,
    /// As it was when the object was clean.
    Clean,
    /// As it is after its tail was evicted.
    Evicted,
}

/// Copies an object and its map, with their attributes.
fn copy_object(from: &Path, ino: u64, end: &str, to: &Path) {
    let file = from.join(format!("{ino:016x}{end}"));
    if file.exists() {
        let mut copy = std::process::Command::new("cp");
        assert!(copy.arg("-a").arg(file).arg(to).status().expect("cp").success());
    }
}

/// The directory that the tier has an object in.
fn fan_of(tier: &Path, ino: u64) -> PathBuf {
    let fans = std::fs::read_dir(tier.join("objects")).expect("objects");
    let mut fans = fans.map(|fan| fan.expect("fan").path());
    fans.find(|fan| fan.join(format!("{ino:016x}")).exists()).expect("an object")
}

/// Copies an object right after a version of its file has appeared.
#[derive(Default)]
struct AtPublication {
    ino: AtomicU64,
    appeared: AtomicBool,
    dir: PathBuf,
}

impl Interceptor for AtPublication {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        let ino = self.ino.load(Ordering::SeqCst);
        if ino != 0 && operation == Operation::Sync && self.appeared.swap(false, Ordering::SeqCst) {
            let fan = fan_of(&self.dir.join("tier"), ino);
            for end in ["", ".map"] {
                copy_object(&fan, ino, end, &self.dir.join("published"));
            }
        }
        Verdict::Pass
    }

    fn after(&self, operation: Operation) {
        if operation == Operation::Commit {
            self.appeared.store(true, Ordering::SeqCst);
        }
    }
}

/// A mount that notes how an object was at a publication.
fn start_watched(watch: &Arc<AtPublication>, in_part: bool) -> Arc<Node> {
    let dir = &watch.dir;
    let tier = TierConfig { dir: dir.join("tier"), size_bytes: 64 << 20 };
    let mut config = NodeConfig::new(dir.join("backing"), vec![tier]);
    (config.writeback, config.extent_bytes) = (WritebackPolicy::OnEviction, 64 << 10);
    config.fetch_on_open_bytes = if in_part { 0 } else { 1 << 20 };
    let owner =
        forebay_store::tier::DirTier::open(dir.join("tier")).expect("tier").id().to_string();
    let inner = Arc::new(DirBacking::open(dir.join("backing"), &owner).expect("store"));
    let backing = Arc::new(InterceptedBacking::new(inner, watch.clone()));
    Node::start_between(config, backing, &|tier| tier).expect("node")
}

/// A file is changed and synced, changed and made longer, and closed.
fn change_and_sync(node: &Node, bytes: &mut Vec<u8>) -> Ino {
    let ino = node.lookup(&DAEMON, Ino::ROOT, b"file").expect("lookup").expect("there").ino;
    let opened = node.open(&DAEMON, ino, libc::O_RDWR).expect("open");
    for (at, byte, len) in [(200_000, 254, 70_000), (330_000, 253, 10_000), (400_000, 252, 100_000)]
    {
        bytes.resize(bytes.len().max(at + len), 0);
        bytes[at..at + len].fill(byte);
        node.write(&DAEMON, opened.fh, at as u64, &bytes[at..at + len]).expect("write");
        if at == 200_000 {
            node.fsync(&DAEMON, opened.fh, false).expect("sync");
        }
    }
    node.release(opened.fh);
    ino
}

/// The tail of an object that was written back goes.
fn evict_tail(node: &Node, dir: &Path, ino: Ino) {
    use std::os::unix::fs::MetadataExt;
    let fan = fan_of(&dir.join("tier"), ino.0);
    let keep = |moment: &str| {
        ["", ".map"].iter().for_each(|end| copy_object(&fan, ino.0, end, &dir.join(moment)));
        let object = fan.join(format!("{:016x}", ino.0));
        std::fs::metadata(object).expect("object").blocks()
    };
    let before = keep("clean");
    let (tier, bytes) = (unit::Tier(0), unit::Bytes(64 << 10));
    node.residency.perform(Action::Truncate { object: ino, tier, keep: bytes });
    assert!(keep("evicted") < before, "nothing was evicted");
}

/// The power fails when a file of which a part or all is on the tier was synced, made longer and written back,
/// and its tail evicted; the tier has the object and its map as they were at some time.
fn evicted_when(in_part: bool, object: As, map: As) {
    let what = format!("in part: {in_part}, object: {object:?}, map: {map:?}");
    let dir = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
    for name in ["backing", "tier", "published", "clean", "evicted"] {
        std::fs::create_dir(dir.path().join(name)).expect(name);
    }
    let mut bytes: Vec<u8> = (0..400_000_u32).map(|at| (at / 1000 % 251) as u8).collect();
    std::fs::write(dir.path().join("backing/file"), &bytes).expect("below");
    let watch = AtPublication { dir: dir.path().to_owned(), ..AtPublication::default() };
    let watch = Arc::new(watch);
    let node = start_watched(&watch, in_part);
    let ino = change_and_sync(&node, &mut bytes);
    watch.ino.store(ino.0, Ordering::SeqCst);
    let left = node.writeback.drain(Instant::now() + LIMIT, &mut |_| true).expect("drain");
    assert_eq!(left.bytes, 0, "{what}");
    watch.ino.store(0, Ordering::SeqCst);
    evict_tail(&node, dir.path(), ino);
    stop_the_machine(dir.path(), node);
    let fan = fan_of(&dir.path().join("tier"), ino.0);
    for (end, state) in [("", object), (".map", map)] {
        let file = fan.join(format!("{:016x}{end}", ino.0));
        let _there_or_not = std::fs::remove_file(&file);
        let moment = match state {
            As::Absent => continue,
            As::Empty => {
                drop(std::fs::File::create(&file).expect("map"));
                continue;
            }
            As::Published => "published",
            As::Clean => "clean",
            As::Evicted => "evicted",
        };
        copy_object(&dir.path().join(moment), ino.0, end, &fan);
    }
    let node = start_watched(&watch, in_part);
    let opened = node.open(&DAEMON, ino, libc::O_RDONLY).expect("open");
    let mut shown = vec![0; 600_000];
    let read = node.read(&DAEMON, opened.fh, 0, &mut shown).expect("read");
    node.release(opened.fh);
    assert!(shown[..read] == bytes, "{what}");
    node.writeback.drain(Instant::now() + LIMIT, &mut |_| true).expect("drain");
    assert!(std::fs::read(dir.path().join("backing/file")).expect("below") == bytes, "{what}");
    assert_eq!((node.writeback.conflicts().0, node.residency.lost_files().files), (0, 0), "{what}");
    node.stop(LIMIT);
}

/// The map is durable without what is evicted before that goes: older maps are there with older objects alone.
#[test]
fn part_when_written_back_and_evicted_and_the_tier_has_it_as_of_any_moment_then_it_is_whole() {
    use As::{Absent, Clean, Empty, Evicted, Published};
    for object in [Published, Clean, Evicted] {
        evicted_when(true, object, Evicted);
    }
    for (object, map) in [
        (Published, Published),
        (Published, Clean),
        (Clean, Published),
        (Clean, Clean),
        (Absent, Clean),
        (Absent, Absent),
    ] {
        evicted_when(true, object, map);
    }
    // It gets a map with its eviction, of which nothing need be durable.
    for object in [Published, Clean, Evicted] {
        for map in [Empty, Evicted] {
            evicted_when(false, object, map);
        }
    }
    evicted_when(false, Published, Absent);
    evicted_when(false, Clean, Absent);
}
