//! The backlog and the import against real directories.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_core::steward::{Steward, StewardConfig, TierConfig};
use forebay_core::unit::Bytes;
use forebay_meta::{
    Link, Memory, MetaStore, NameIn, NewInode, Options, Queue, Record, RenameFlags,
};
use forebay_store::BackingStore;
use forebay_store::backing::DirBacking;
use forebay_store::decorators::{Flaky, InterceptedBacking, Interceptor, Operation, Rule, Verdict};
use forebay_types::{FileKind, Fingerprint, Ino};
use parking_lot::Mutex;

use self::contents::Contents;
use super::Remaining;
use super::queue::Wanted;
use crate::clock;
use crate::config::{Coherence, NodeConfig, WritebackPolicy};
use crate::context::Context;
use crate::error::Result;
use crate::node::Node;
use crate::pool::Pool;

/// A directory that goes with its owner.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        Scratch(forebay_testing::new_dir(forebay_testing::memory(), "forebay-backlog"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Counts operations that change the backing store.
#[derive(Default)]
struct Counter {
    changes: AtomicU64,
    all: AtomicU64,
}

impl Interceptor for Counter {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        self.all.fetch_add(1, Ordering::Relaxed);
        use Operation::{Commit, Create, Limbo, Link, Remove, Rename, SetAttributes, Write};
        let changes = [Commit, Create, Limbo, Link, Remove, Rename, SetAttributes, Write]
            .contains(&operation);
        self.changes.fetch_add(u64::from(changes), Ordering::Relaxed);
        Verdict::Pass
    }
}

/// A node without tiers whose data side is [`Contents`].
pub(crate) struct Bench {
    node: Arc<Node>,
    contents: Arc<Contents>,
    root: PathBuf,
    _scratch: Scratch,
}

fn node_on(
    backing: Arc<dyn BackingStore>,
    meta: MetaStore,
    contents: &Arc<Contents>,
    change: impl FnOnce(&mut NodeConfig),
) -> Arc<Node> {
    let mut config = NodeConfig::new(PathBuf::new(), Vec::new());
    config.attr_timeout = Duration::ZERO;
    config.backing_timeout = Duration::from_secs(5);
    config.flush_threads = 4;
    change(&mut config);
    let steward = StewardConfig::new(vec![TierConfig::new(Bytes(1 << 20))], "lru");
    let config = Arc::new(config);
    Arc::new_cyclic(|this: &std::sync::Weak<Node>| {
        let given = crate::residency::Given {
            slow: Arc::new(Pool::new(4, 1000)),
            config: config.clone(),
            meta: Arc::new(meta),
            backing,
            defects: Arc::new(crate::defects::Defects::known_from(&[])),
            state_dir: PathBuf::new(),
            left_behind: crate::residency::left_behind::LeftBehind::load(Path::new(""))
                .expect("nothing is left behind"),
            failed_syncs: crate::residency::failed_syncs::FailedSyncs::load(Path::new(""))
                .expect("none has failed"),
            peers: Box::new(crate::residency::seams::NoPeers),
            above: Box::new(crate::seams::Upper(this.clone())),
            cold: None,
        };
        let steward = Steward::new(&steward).expect("a sound configuration");
        let decider = crate::residency::Decider { steward, event_log: None };
        let residency = crate::residency::Residency::new(given, Vec::new(), decider, false);
        let reconciler =
            super::Reconciler { data_side: Box::new(contents.clone()), ..Default::default() };
        let above = crate::writeback::WritebackSeams {
            rights: Arc::new(crate::writeback::seams::AllRights),
            above: Box::new(crate::seams::Upper(this.clone())),
        };
        let writeback =
            crate::writeback::Writeback::new(residency, reconciler, Default::default(), above);
        Node::of(this, writeback, crate::node::OptionalParts::default(), 0)
    })
}

pub(crate) fn test_node(dir: &Path) -> (Arc<Node>, Arc<Contents>) {
    let contents = Arc::new(Contents::default());
    let backing = Arc::new(DirBacking::open(dir, "test").expect("the backing store opens"));
    let meta = MetaStore::open(Box::new(Memory::new()), &Options::default()).expect("opens");
    let node = node_on(backing, meta, &contents, |_| {});
    node.writeback.import_root().expect("the root is there");
    (node, contents)
}

impl Bench {
    fn new() -> Self {
        let scratch = Scratch::new();
        let (node, contents) = test_node(&scratch.0);
        Bench { node, contents, root: scratch.0.clone(), _scratch: scratch }
    }

    fn with(by: Arc<dyn Interceptor>, change: impl FnOnce(&mut NodeConfig)) -> Self {
        Self::on(by, Box::new(Memory::new()), change)
    }

    fn on(
        by: Arc<dyn Interceptor>,
        engine: Box<dyn forebay_meta::Engine>,
        change: impl FnOnce(&mut NodeConfig),
    ) -> Self {
        let scratch = Scratch::new();
        let contents = Arc::new(Contents::default());
        let inner = Arc::new(DirBacking::open(&scratch.0, "test").expect("opens"));
        let backing = Arc::new(InterceptedBacking::new(inner, by));
        let meta = MetaStore::open(engine, &Options::default()).expect("opens");
        let node = node_on(backing, meta, &contents, change);
        node.writeback.import_root().expect("the root is there");
        Bench { node, contents, root: scratch.0.clone(), _scratch: scratch }
    }

    fn dir(&self, path: &str) -> Ino {
        let mut at = Ino::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self.find(at, name).expect("the directory is known").ino;
        }
        at
    }

    fn find(&self, dir: Ino, name: &str) -> Option<Arc<Record>> {
        self.node.writeback.find(&Context::DAEMON, dir, name.as_bytes()).expect("a look-up")
    }

    fn split<'p>(&self, path: &'p str) -> (Ino, &'p str) {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        (self.dir(dir), name)
    }

    fn make(&self, path: &str, kind: FileKind, perm: u32) -> Ino {
        let (dir, name) = self.split(path);
        let mut new = NewInode::new(kind, perm, 0, 0);
        if kind == FileKind::Symlink {
            new.target = Some(b"to/nowhere"[..].into());
        }
        let made = self.node.meta.create(dir, name.as_bytes(), new, clock::wall_time());
        made.expect("it can be made").ino
    }

    fn mkdir(&self, path: &str) -> Ino {
        self.make(path, FileKind::Directory, 0o755)
    }

    /// A file with these bytes, dirty.
    fn write(&self, path: &str, bytes: &[u8]) -> Ino {
        let (dir, name) = self.split(path);
        let ino = match self.find(dir, name) {
            Some(record) => record.ino,
            None => self.make(path, FileKind::Regular, 0o644),
        };
        self.fill(ino, bytes);
        ino
    }

    fn fill(&self, ino: Ino, bytes: &[u8]) {
        self.contents.bytes.lock().insert(ino.0, bytes.to_vec());
        let size = bytes.len() as u64;
        let now = clock::wall_time();
        let update = |record: &mut Record| {
            record.attr.size = size;
            record.attr.mtime = now;
            record.mark_dirty();
            Queue::Yes
        };
        self.node.meta.update(ino, Some(now), update).expect("it is there");
    }

    fn rename(&self, from: &str, to: &str, exchange: bool) {
        let ((from_dir, from), (to_dir, to)) = (self.split(from), self.split(to));
        let flags = RenameFlags { exchange, ..RenameFlags::default() };
        let from = NameIn::new(from_dir, from.as_bytes());
        let to = NameIn::new(to_dir, to.as_bytes());
        let now = clock::wall_time();
        let renamed = self.node.meta.rename(from, to, flags, now, &|_| false);
        renamed.expect("it can be renamed");
    }

    fn unlink(&self, path: &str) {
        let (dir, name) = self.split(path);
        self.node.meta.unlink(dir, name.as_bytes(), clock::wall_time(), false).expect("unlinked");
    }

    fn rmdir(&self, path: &str) {
        let (dir, name) = self.split(path);
        self.node.writeback.ensure_listed(&Context::DAEMON, self.dir(path)).expect("listed");
        self.node.meta.rmdir(dir, name.as_bytes(), clock::wall_time(), false).expect("removed");
    }

    fn drain(&self) -> Remaining {
        let until = Instant::now() + Duration::from_secs(20);
        self.node.writeback.drain(until, &mut |_| true).expect("the namespace works")
    }

    fn drained(&self) {
        let remaining = self.drain();
        let error = self.node.writeback.last_backlog_error();
        let left = self.node.writeback.unwritten(5);
        assert_eq!(remaining, Remaining::default(), "{error:?} {left:?}");
    }

    fn read(&self, path: &str) -> Vec<u8> {
        fs::read(self.root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn names(&self, path: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.root.join(path))
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("ASCII"))
            .filter(|name| name != ".forebay")
            .collect();
        names.sort();
        names
    }
}

#[test]
fn drain_when_a_tree_was_made_then_the_backing_store_has_it() {
    let bench = Bench::new();
    bench.mkdir("a");
    bench.mkdir("a/b");
    bench.write("a/b/file", b"hello");
    bench.make("a/empty", FileKind::Regular, 0o640);
    bench.make("a/link", FileKind::Symlink, 0o777);
    bench.make("a/pipe", FileKind::Fifo, 0o600);
    bench.drained();
    assert_eq!(bench.read("a/b/file"), b"hello");
    assert_eq!(bench.read("a/empty"), b"");
    let mode = fs::metadata(bench.root.join("a/empty")).expect("there").permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
    assert_eq!(fs::read_link(bench.root.join("a/link")).expect("there"), Path::new("to/nowhere"));
    assert_eq!(bench.names("a"), ["b", "empty", "link", "pipe"]);
    let record = bench.find(Ino::ROOT, "a").expect("known");
    let times = fs::metadata(bench.root.join("a")).expect("there");
    assert_eq!((times.mtime(), times.mtime_nsec()), {
        (record.attr.mtime.sec, i64::from(record.attr.mtime.nsec))
    });
}

#[test]
fn created_and_removed_when_drained_then_costs_the_backing_store_nothing() {
    let counter = Arc::new(Counter::default());
    let bench = Bench::with(counter.clone(), |_| {});
    let before = counter.all.load(Ordering::Relaxed);
    bench.node.meta.get(Ino::ROOT).expect("the root");
    for _ in 0..100 {
        let meta = &bench.node.meta;
        let new = NewInode::new(FileKind::Regular, 0o600, 0, 0);
        meta.create(Ino::ROOT, b"temporary", new, clock::wall_time()).expect("made");
        meta.unlink(Ino::ROOT, b"temporary", clock::wall_time(), false).expect("removed");
    }
    bench.drained();
    assert_eq!(counter.all.load(Ordering::Relaxed) - before, 0);
}

#[test]
fn two_names_swapped_when_drained_then_swapped_below() {
    let bench = Bench::new();
    bench.write("x", b"first");
    bench.write("y", b"second");
    bench.mkdir("d");
    bench.mkdir("e");
    bench.write("d/in-d", b"1");
    bench.drained();
    bench.rename("x", "y", true);
    bench.rename("d", "e", true);
    bench.drained();
    assert_eq!((bench.read("x"), bench.read("y")), (b"second".to_vec(), b"first".to_vec()));
    assert_eq!(bench.read("e/in-d"), b"1");
    assert_eq!(bench.names("d"), Vec::<String>::new());
    assert_eq!(bench.node.backing.list_parked().expect("limbo"), Vec::<u64>::new());
}

#[test]
fn parent_and_child_turned_around_when_drained_then_turned_around_below() {
    let bench = Bench::new();
    bench.mkdir("a");
    bench.mkdir("a/b");
    bench.write("a/b/file", b"deep");
    bench.drained();
    bench.rename("a/b", "b", false);
    bench.rename("a", "b/a", false);
    bench.drained();
    assert_eq!(bench.read("b/file"), b"deep");
    assert_eq!(bench.names("b/a"), Vec::<String>::new());
    assert_eq!(bench.names(""), ["b"]);
}

#[test]
fn version_that_is_not_there_when_the_replaced_file_still_is_then_it_is_published_in_its_place() {
    let bench = Bench::new();
    bench.write("file", b"the first");
    bench.drained();
    let replaced = bench.find(Ino::ROOT, "file").expect("known").backing.fingerprint;
    let ino = bench.write("new", b"the second");
    bench.rename("new", "file", false);
    // What a store leaves that has lost a name, or that was brought back from a copy.
    bench.node.meta.claim(ino, &Link::new(Ino::ROOT, *b"file")).expect("claimed");
    let known =
        replaced.map(|replaced| Fingerprint { ino: replaced.ino + 1000, size: 10, ..replaced });
    let known = |record: &mut Record| record.backing.fingerprint = known;
    bench.node.meta.reconciled(ino, u64::MAX, known).expect("reported");
    bench.drained();
    assert_eq!(bench.read("file"), b"the second");
    assert_eq!(bench.names(""), ["file"]);
}

#[test]
fn rename_over_when_drained_then_replaced_and_the_old_one_forgotten() {
    let bench = Bench::new();
    bench.write("target", b"old");
    bench.drained();
    bench.write("new", b"new");
    bench.rename("new", "target", false);
    bench.drained();
    bench.write("again", b"newest");
    bench.drained();
    bench.rename("again", "target", false);
    bench.drained();
    assert_eq!(bench.read("target"), b"newest");
    assert_eq!(bench.names(""), ["target"]);
    assert_eq!(bench.node.meta.counts().stale_names, 0);
    assert_eq!(bench.node.meta.counts().inodes, 2);
}

#[test]
fn both_names_of_a_removed_file_when_another_has_them_now_then_no_conflict() {
    for kind in [FileKind::Fifo, FileKind::Regular] {
        let bench = Bench::new();
        let link = |ino: Ino| {
            let linked = bench.node.meta.link(ino, Ino::ROOT, b"two", clock::wall_time());
            linked.expect("it can be linked");
        };
        link(bench.write("one", b"old"));
        bench.drained();
        bench.unlink("one");
        bench.unlink("two");
        link(bench.make("one", kind, 0o600));
        bench.drained();
        assert_eq!(bench.node.writeback.conflicts(), (0, vec![]), "{kind:?}");
        assert_eq!(bench.names(""), ["one", "two"], "{kind:?}");
        let number = |name: &str| fs::metadata(bench.root.join(name)).expect("it is there").ino();
        assert_eq!(number("one"), number("two"), "{kind:?}");
    }
}

#[test]
fn a_tree_removed_when_drained_in_any_order_then_gone() {
    let bench = Bench::new();
    for dir in ["t", "t/u", "t/u/v"] {
        bench.mkdir(dir);
        bench.write(&format!("{dir}/f"), b"x");
    }
    bench.drained();
    let top = bench.dir("t");
    for path in ["t/u/v/f", "t/u/f", "t/f"] {
        bench.unlink(path);
    }
    for path in ["t/u/v", "t/u", "t"] {
        bench.rmdir(path);
    }
    bench.node.writeback.reconcile(top).expect("the top goes with all below");
    bench.drained();
    assert_eq!(bench.names(""), Vec::<String>::new());
    assert_eq!(bench.node.meta.counts().inodes, 1);
}

#[test]
fn changed_on_both_sides_when_drained_then_both_are_kept() {
    let bench = Bench::new();
    bench.write("file", b"base");
    bench.drained();
    bench.write("file", b"ours");
    fs::write(bench.root.join("file"), b"from others").expect("written");
    bench.drained();
    assert_eq!(bench.read("file"), b"from others");
    let names = bench.names("");
    assert_eq!(names.len(), 2, "{names:?}");
    let ours = names.iter().find(|name| name.contains(".forebay-conflict-")).expect("kept");
    assert_eq!(bench.read(ours), b"ours");
    assert_eq!(bench.find(Ino::ROOT, "file").expect("visible").attr.size, 11);
    let (count, conflicts) = bench.node.writeback.conflicts();
    assert_eq!((count, conflicts[0].path.as_slice()), (1, &b"file"[..]));
}

#[test]
fn new_on_both_sides_when_drained_then_both_are_kept() {
    let bench = Bench::new();
    bench.write("file", b"ours");
    bench.make("empty", FileKind::Regular, 0o644);
    bench.make("dir", FileKind::Directory, 0o750);
    fs::write(bench.root.join("file"), b"theirs").expect("written");
    fs::write(bench.root.join("empty"), b"theirs").expect("written");
    fs::create_dir(bench.root.join("dir")).expect("made");
    fs::write(bench.root.join("dir/inside"), b"theirs").expect("written");
    bench.drained();
    assert_eq!(bench.read("file"), b"theirs");
    assert_eq!(bench.read("empty"), b"theirs");
    assert_eq!(bench.node.writeback.conflicts().0, 2);
    assert_eq!(bench.names("").len(), 5);
    let dir = bench.dir("dir");
    assert_eq!(bench.find(dir, "inside").expect("the directories are one").attr.size, 6);
}

#[test]
fn removed_here_and_changed_outside_when_drained_then_it_comes_back() {
    let bench = Bench::new();
    bench.write("file", b"base");
    bench.mkdir("dir");
    bench.drained();
    bench.unlink("file");
    bench.rmdir("dir");
    fs::write(bench.root.join("file"), b"still needed").expect("written");
    fs::write(bench.root.join("dir/foreign"), b"x").expect("written");
    bench.drained();
    assert_eq!(bench.read("file"), b"still needed");
    assert_eq!(bench.find(Ino::ROOT, "file").expect("visible again").attr.size, 12);
    let dir = bench.find(Ino::ROOT, "dir").expect("visible again").ino;
    assert!(bench.find(dir, "foreign").is_some());
    assert_eq!(bench.node.writeback.conflicts().0, 2);
}

#[test]
fn removed_outside_when_dirty_here_then_written_again() {
    let bench = Bench::new();
    bench.write("file", b"base");
    bench.drained();
    bench.write("file", b"ours");
    fs::remove_file(bench.root.join("file")).expect("removed");
    bench.drained();
    assert_eq!(bench.read("file"), b"ours");
}

#[test]
fn a_removed_file_in_use_when_drained_then_hidden_until_released() {
    let bench = Bench::new();
    let ino = bench.write("file", b"bytes");
    bench.drained();
    let meta = &bench.node.meta;
    meta.unlink(Ino::ROOT, b"file", clock::wall_time(), true).expect("unlinked");
    bench.drained();
    assert_eq!(bench.names(""), Vec::<String>::new());
    let record = meta.get(ino).expect("in use");
    let file = bench.node.writeback.open_backing(&record, forebay_store::backing::Access::Read);
    assert_eq!(file.expect("within reach").stat().expect("stat").size, 5);
    meta.release_orphan(ino, clock::wall_time()).expect("released");
    bench.node.writeback.reconcile(ino).expect("removed for good");
    assert_eq!(bench.node.backing.list_parked().expect("limbo"), Vec::<u64>::new());
    assert!(meta.get(ino).is_err());
}

#[test]
fn a_failing_store_when_it_works_again_then_all_converges() {
    let flaky = Arc::new(Flaky::new(7));
    let bench = Bench::with(flaky.clone(), |_| {});
    bench.mkdir("d");
    for index in 0..40 {
        bench.write(&format!("d/{index}"), format!("{index}").as_bytes());
    }
    let some = |errno| {
        let fault = Verdict::Fail(errno);
        vec![Rule { operation: None, fault, skip: 0, times: 300, per_mille: 200 }]
    };
    flaky.set_rules(some(libc::EIO));
    bench
        .node
        .writeback
        .drain(Instant::now() + Duration::from_secs(2), &mut |_| true)
        .expect("no panic");
    flaky.set_rules(vec![]);
    for index in 0..20 {
        bench.rename(&format!("d/{index}"), &format!("moved-{index}"), false);
    }
    flaky.set_rules(some(libc::ENOSPC));
    bench
        .node
        .writeback
        .drain(Instant::now() + Duration::from_secs(2), &mut |_| true)
        .expect("no panic");
    assert!(flaky.faults() > 50, "{}", flaky.faults());
    flaky.set_rules(vec![]);
    bench.drained();
    for index in 0..20 {
        assert_eq!(bench.read(&format!("moved-{index}")), format!("{index}").as_bytes());
    }
    assert_eq!(bench.node.writeback.conflicts(), (0, vec![]));
    assert_eq!(bench.names("d").len(), 20, "{:?}", bench.names("d"));
    assert_eq!(bench.node.writeback.last_backlog_error(), None);
}

#[test]
fn the_queue_when_started_then_writes_by_itself_but_not_open_files() {
    let bench = Bench::with(Arc::new(Counter::default()), |config| {
        config.writeback = WritebackPolicy::After(Duration::from_millis(100));
    });
    let closed = bench.write("closed", b"1");
    let open = bench.write("open", b"2");
    bench.contents.open.lock().insert(open.0);
    bench.node.writeback.start_reconciler();
    bench.node.writeback.reconcile_later(closed, Duration::from_millis(100));
    bench.node.writeback.reconcile_later(open, Duration::from_millis(100));
    let until = Instant::now() + Duration::from_secs(5);
    while bench.node.writeback.backlog_len() > 1 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(bench.names(""), ["closed"]);
    bench.drained();
    assert_eq!(bench.names(""), ["closed", "open"]);
    bench.node.writeback.stop_reconciler();
    for thread in bench.node.threads.lock().drain(..) {
        thread.join().expect("it ends");
    }
}

#[test]
fn sync_when_files_are_queued_again_as_soon_as_they_are_in_line_then_ends() {
    let bench = Bench::new();
    let files: Vec<Ino> =
        (0..20).map(|number| bench.write(&format!("file{number}"), b"x")).collect();
    let (meta, over) = (&bench.node.meta, AtomicBool::new(false));
    let began = Instant::now();
    let limit = Duration::from_secs(20);
    let synced = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) && began.elapsed() < limit {
                for ino in &files {
                    if meta.get(*ino).expect("known").queued.is_none() {
                        let again = |record: &mut Record| {
                            record.mark_dirty();
                            Queue::Yes
                        };
                        meta.update(*ino, None, again).expect("known");
                    }
                }
            }
        });
        let synced = bench.node.writeback.sync_subtree(Ino::ROOT, began + 2 * limit, &mut |_| true);
        over.store(true, Ordering::Relaxed);
        synced.expect("the namespace works")
    });
    assert!(began.elapsed() < limit, "{synced:?}");
    assert!(synced.complete, "{synced:?}");
}

#[test]
fn sync_subtree_when_asked_for_one_directory_then_leaves_the_others() {
    let bench = Bench::new();
    bench.mkdir("one");
    bench.mkdir("two");
    bench.mkdir("one/sub");
    bench.write("one/sub/file", b"1");
    bench.write("two/file", b"2");
    let until = Instant::now() + Duration::from_secs(10);
    let remaining = bench.node.writeback.sync_subtree(bench.dir("one"), until, &mut |_| true);
    assert_eq!(remaining.expect("it works").left.entries, 0);
    assert_eq!(bench.read("one/sub/file"), b"1");
    assert_eq!(bench.names(""), ["one"]);
}

#[test]
fn sync_when_another_worker_has_a_file_in_hand_then_does_not_say_that_programs_change_it() {
    let bench = Bench::with(Arc::new(Counter::default()), |config| {
        config.backing_timeout = Duration::from_millis(100);
    });
    let ino = bench.write("file", b"1");
    let held = bench.node.writeback().own(ino, Duration::ZERO).expect("nobody has it");
    let until = Instant::now() + Duration::from_secs(60);
    let synced =
        bench.node.writeback().sync_subtree(Ino::ROOT, until, &mut |_| true).expect("it works");
    drop(held);
    let [(path, why)] = &synced.failures[..] else { panic!("{synced:?}") };
    assert_eq!(path, b"file");
    assert!(why.contains("other work") && !why.contains("programs"), "{why}");
    let synced =
        bench.node.writeback().sync_subtree(Ino::ROOT, until, &mut |_| true).expect("it works");
    assert!(synced.complete, "{synced:?}");
}

#[test]
fn removed_file_in_use_when_its_last_close_comes_then_limbo_is_not_searched_for_it() {
    #[derive(Default)]
    struct Lists(AtomicU64);
    impl Interceptor for Lists {
        fn before(&self, operation: Operation, _: u64) -> Verdict {
            self.0.fetch_add(u64::from(operation == Operation::List), Ordering::Relaxed);
            Verdict::Pass
        }
    }
    let lists = Arc::new(Lists::default());
    let bench = Bench::with(lists.clone(), |_| {});
    let inos: Vec<Ino> = (0..5).map(|n| bench.write(&format!("file-{n}"), b"x")).collect();
    bench.drained();
    let before = lists.0.load(Ordering::Relaxed);
    for (number, ino) in inos.iter().enumerate() {
        bench.contents.open.lock().insert(ino.0);
        let name = format!("file-{number}");
        bench
            .node
            .meta
            .unlink(Ino::ROOT, name.as_bytes(), clock::wall_time(), true)
            .expect("removed");
        bench.node.writeback.reconcile(*ino).expect("hidden");
    }
    assert_eq!(bench.node.backing.list_parked().expect("limbo").len(), inos.len());
    for ino in &inos {
        bench.contents.open.lock().remove(&ino.0);
        bench.node.meta.release_orphan(*ino, clock::wall_time()).expect("released");
        bench.node.writeback.reconcile(*ino).expect("removed");
    }
    // The root may be listed in the background.
    assert!(lists.0.load(Ordering::Relaxed) <= before + 1);
    assert!(bench.node.backing.list_parked().expect("limbo").is_empty());
}

mod contents;
mod durable;
mod imports;
mod interleaved;
mod model;
mod moved;
mod nested;
mod overtaken;
mod replaced;
mod stale;
mod times_kept;
mod unanswered;
mod unseen;
mod way;

/// Fails every commit and notes when it was asked for.
#[derive(Default)]
struct Refusing {
    at: Mutex<Vec<Instant>>,
    works: std::sync::atomic::AtomicBool,
}

impl Interceptor for Refusing {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        if operation != Operation::Commit || self.works.load(Ordering::Acquire) {
            return Verdict::Pass;
        }
        self.at.lock().push(Instant::now());
        Verdict::Fail(libc::EIO)
    }
}

#[test]
fn a_publish_that_fails_when_nobody_waits_then_shown_and_tried_again_with_pauses() {
    let refusing = Arc::new(Refusing::default());
    let bench = Bench::with(refusing.clone(), |config| {
        config.writeback = WritebackPolicy::After(Duration::from_millis(1));
    });
    let ino = bench.write("file", b"bytes");
    bench.node.writeback.start_reconciler();
    bench.node.writeback.reconcile_later(ino, Duration::ZERO);
    let wait_for = |what: &dyn Fn() -> bool| {
        let until = Instant::now() + Duration::from_secs(10);
        while !what() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for(&|| refusing.at.lock().len() >= 4);
    let pauses: Vec<Duration> = refusing.at.lock().windows(2).map(|at| at[1] - at[0]).collect();
    assert!(pauses.iter().all(|pause| *pause >= Duration::from_millis(100)), "{pauses:?}");
    wait_for(&|| bench.node.writeback.write_error(ino).is_some());
    let error = bench.node.writeback.write_error(ino).expect("shown for the file");
    assert!(error.contains("file"), "{error}");
    assert!(bench.node.writeback.last_backlog_error().expect("shown").starts_with("/file: "));
    assert!(bench.node.metrics.flush_failures.get() >= 3);
    refusing.works.store(true, Ordering::Release);
    wait_for(&|| {
        bench.node.writeback.backlog_len() == 0 && bench.node.writeback.write_error(ino).is_none()
    });
    assert_eq!(bench.read("file"), b"bytes");
    assert_eq!(
        (bench.node.writeback.write_error(ino), bench.node.writeback.last_backlog_error()),
        (None, None)
    );
    bench.node.writeback.stop_reconciler();
    for thread in bench.node.threads.lock().drain(..) {
        thread.join().expect("it ends");
    }
}
