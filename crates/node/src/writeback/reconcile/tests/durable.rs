//! What must be durable before what: of power cuts only the order of syncs is known.

use forebay_meta::{Engine, EngineError, Key, MiniTransaction, Outcome, Page};

use super::*;
use crate::writeback::parked::parked_link;

/// An engine that knows whether all that was committed to it is durable.
struct Committing {
    inner: Memory,
    unsynced: Arc<std::sync::atomic::AtomicBool>,
}

impl Engine for Committing {
    fn execute(&self, transaction: &MiniTransaction) -> std::result::Result<Outcome, EngineError> {
        let done = self.inner.execute(transaction)?;
        if matches!(done, Outcome::Committed(_)) && !transaction.write.is_empty() {
            self.unsynced.store(true, Ordering::Release);
        }
        Ok(done)
    }

    fn scan(
        &self,
        partition: u16,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> std::result::Result<Page, EngineError> {
        self.inner.scan(partition, prefix, after, limit)
    }

    fn sweep(
        &self,
        after: Option<&Key>,
        limit: usize,
    ) -> std::result::Result<Vec<(Key, Vec<u8>)>, EngineError> {
        self.inner.sweep(after, limit)
    }

    fn spans_partitions(&self) -> bool {
        self.inner.spans_partitions()
    }

    fn sync(&self) -> std::result::Result<(), EngineError> {
        self.unsynced.store(false, Ordering::Release);
        self.inner.sync()
    }
}

/// Notes the operations, and those before which something in the namespace was not durable.
struct Order {
    unsynced: Arc<std::sync::atomic::AtomicBool>,
    seen: Mutex<Vec<(Operation, bool)>>,
    flaky: Flaky,
}

impl Interceptor for Order {
    fn before(&self, operation: Operation, bytes: u64) -> Verdict {
        self.seen.lock().push((operation, self.unsynced.load(Ordering::Acquire)));
        self.flaky.before(operation, bytes)
    }
}

impl Order {
    fn saw(&self, wanted: Operation) -> bool {
        self.seen.lock().iter().any(|(operation, _)| *operation == wanted)
    }
}

fn bench() -> (Bench, Arc<Order>) {
    let unsynced = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let order = Arc::new(Order {
        unsynced: unsynced.clone(),
        seen: Mutex::default(),
        flaky: Flaky::new(1),
    });
    let engine = Committing { inner: Memory::new(), unsynced };
    (Bench::on(order.clone(), Box::new(engine), |_| {}), order)
}

fn change(bench: &Bench, ino: Ino, perm: u32, seconds: i64) {
    let update = |record: &mut Record| {
        record.attr.perm = perm;
        record.attr.mtime = forebay_meta::Timestamp::new(seconds, 0);
        record.backing.attrs_differ = true;
        Queue::Yes
    };
    bench.node.meta.update(ino, Some(crate::clock::wall_time()), update).expect("it is there");
}

/// What a power cut leaves in the backing store must be known to the namespace that it leaves, or it
/// seems to be a change by others.
#[test]
fn namespace_when_the_backing_store_is_changed_then_durable_before() {
    let (bench, order) = bench();
    let ino = bench.write("file", b"first");
    bench.write("other", b"to be replaced");
    bench.drained();
    bench.write("file", b"second");
    bench.drained();
    change(&bench, ino, 0o600, 1_000_000_000);
    bench.drained();
    change(&bench, ino, 0o640, 1_000_000_000);
    bench.drained();
    bench.rename("file", "moved", false);
    bench.drained();
    bench.rename("moved", "other", false);
    bench.drained();
    let changes = [Operation::Commit, Operation::Rename, Operation::SetAttributes];
    let seen = order.seen.lock();
    for wanted in changes {
        assert!(seen.iter().any(|(operation, _)| *operation == wanted), "no {wanted:?}");
    }
    let early: Vec<_> =
        seen.iter().filter(|(operation, early)| *early && changes.contains(operation)).collect();
    // The file that a version is put together in has no name yet.
    let in_place = early.iter().filter(|(operation, _)| *operation != Operation::SetAttributes);
    assert_eq!(in_place.count(), 0, "{early:?}");
    assert_eq!(bench.node.writeback.conflicts().0, 0);
}

#[test]
fn attributes_set_in_place_when_noted_then_durably_and_before() {
    for perm in [0o600, 0o644] {
        let (bench, order) = bench();
        let ino = bench.write("file", b"bytes");
        bench.drained();
        order.seen.lock().clear();
        change(&bench, ino, perm, 1_000_000_000);
        bench.node.writeback.reconcile(ino).expect("set");
        let seen = order.seen.lock();
        let set: Vec<_> = seen.iter().filter(|it| it.0 == Operation::SetAttributes).collect();
        assert!(!set.is_empty() && set.iter().all(|(_, early)| !early), "{seen:?}");
    }
}

/// A machine of the backing store that stops right after must not have the old permissions.
#[test]
fn attributes_written_back_alone_when_reported_then_durable_in_the_backing_store() {
    for kind in [FileKind::Regular, FileKind::Symlink, FileKind::Fifo, FileKind::Directory] {
        let (bench, order) = bench();
        let ino = bench.make("it", kind, 0o644);
        bench.drained();
        let differs = || bench.node.meta.get(ino).expect("it is there").backing.attrs_differ;
        change(&bench, ino, 0o640, 1_000_000_000);
        order.flaky.set_rules(vec![Rule::always(Operation::Sync, libc::EIO)]);
        bench.node.writeback.reconcile(ino).expect_err("the sync fails");
        assert!(differs(), "{kind:?}: what is not durable is not reported");
        order.flaky.set_rules(Vec::new());
        order.seen.lock().clear();
        bench.node.writeback.reconcile(ino).expect("written");
        assert!(!differs(), "{kind:?}");
        let seen = order.seen.lock();
        let last = |wanted| seen.iter().rposition(|(operation, _)| *operation == wanted);
        assert!(last(Operation::Sync) > last(Operation::SetAttributes), "{kind:?}: {seen:?}");
    }
}

/// More than are held open at once share several syncs, of which any may fail.
#[test]
fn attributes_of_many_when_one_of_their_syncs_fails_then_none_of_them_counts_as_written() {
    for failing in [1, 2, 3] {
        let (bench, order) = bench();
        let files: Vec<Ino> =
            (0..70).map(|number| bench.write(&number.to_string(), b"x")).collect();
        bench.drained();
        // The times of the directory are set again, and synced, once nothing else is to be done.
        assert!(bench.node.writeback.flushers.rest(Duration::from_secs(20)));
        for &file in &files {
            change(&bench, file, 0o640, 1_000_000_000);
        }
        let differing = || {
            let differs = |file: &&Ino| {
                bench.node.meta.get(**file).expect("it is there").backing.attrs_differ
            };
            files.iter().filter(differs).count()
        };
        order.flaky.set_rules(vec![Rule::nth(Operation::Sync, failing, libc::EIO)]);
        let due: Vec<_> = files.iter().map(|&file| (file, 0)).collect();
        bench.node.writeback.take_turns(&due, Wanted::All, &mut |_, _| {});
        assert_eq!(differing(), files.len(), "sync {failing} has failed");
        order.flaky.set_rules(Vec::new());
        order.seen.lock().clear();
        bench.node.writeback.take_turns(&due, Wanted::All, &mut |_, _| {});
        assert_eq!(differing(), 0);
        let seen = order.seen.lock();
        let syncs = seen.iter().filter(|(operation, _)| *operation == Operation::Sync).count();
        assert!(syncs <= 3, "{syncs} syncs for all");
    }
}

/// They are set again when the names in it are written, and what says so goes after that only.
#[test]
fn times_of_a_directory_when_set_again_then_durable_before_that_is_forgotten() {
    let (bench, order) = bench();
    let dir = bench.mkdir("dir");
    bench.write("dir/file", b"bytes");
    change(&bench, dir, 0o755, 1_000_000_000);
    bench.node.writeback.reconcile(dir).expect("made");
    bench.node.writeback.reconcile(bench.dir("dir/file")).expect("made");
    let noted = || bench.node.meta.settings_like("entries-written.").expect("settings").len();
    let before = noted();
    assert!(before > 0, "a directory waits for its times");
    order.flaky.set_rules(vec![Rule::always(Operation::Sync, libc::EIO)]);
    bench.node.writeback.restore_directory_times();
    assert_eq!(noted(), before, "nothing is forgotten that is not durable");
    order.flaky.set_rules(Vec::new());
    bench.node.writeback.take_up_written_entries().expect("taken up");
    bench.node.writeback.restore_directory_times();
    assert_eq!(noted(), 0);
}

#[test]
fn rename_that_got_no_answer_when_found_then_durable_before_it_is_reported() {
    let (bench, order) = bench();
    let ino = bench.write("one", b"bytes");
    bench.drained();
    bench.rename("one", "two", false);
    let lost =
        Rule { fault: Verdict::Lost(libc::EIO), ..Rule::nth(Operation::Rename, 1, libc::EIO) };
    order.flaky.set_rules(vec![lost]);
    bench.node.writeback.reconcile(ino).expect_err("the answer was lost");
    assert_eq!(bench.names(""), ["two"]);
    order.seen.lock().clear();
    bench.node.writeback.reconcile(ino).expect("found");
    assert!(order.saw(Operation::Sync), "{:?}", order.seen.lock());
    assert_eq!(bench.node.meta.get(ino).expect("it is there").backing.links.len(), 1);
    // The change time that the rename has moved is not one of others' making.
    bench.write("two", b"other bytes");
    bench.drained();
    assert_eq!(
        (bench.node.writeback.conflicts().0, bench.read("two")),
        (0, b"other bytes".to_vec())
    );
}

/// A daemon that dies before it moves a file aside leaves a claim of a place that is not there; until a
/// worker has looked, the file was not found.
#[test]
fn file_that_only_claims_a_place_in_limbo_when_opened_then_it_is_where_it_was() {
    let bench = Bench::new();
    let ino = bench.write("file", b"bytes");
    bench.drained();
    bench.node.meta.claim(ino, &parked_link(ino)).expect("claimed");
    let opened = bench.node.writeback.open_version(ino).expect("it is there");
    assert_eq!(opened.len().expect("its length"), 5);
}

/// A daemon that dies between the claim of a name and the publication leaves the removed file there, which
/// was then taken for what others had made of the new one.
#[test]
fn new_file_that_only_claims_its_name_when_looked_at_then_the_removed_one_does_not_come_back() {
    let bench = Bench::new();
    bench.write("name", b"what was removed");
    bench.drained();
    bench.unlink("name");
    let new = bench.make("name", FileKind::Regular, 0o644);
    let link = forebay_meta::Link::new(Ino::ROOT, b"name".to_vec());
    bench.node.meta.claim(new, &link).expect("claimed");
    bench.time_passes(new);
    let known = bench.node.meta.get(new).expect("it is there");
    let record = bench.node.writeback.revalidate(&Context::DAEMON, known).expect("it is there");
    assert_eq!((record.attr.size, record.backing.fingerprint), (0, None));
    bench.drained();
    assert_eq!((bench.read("name"), bench.node.writeback.conflicts().0), (Vec::new(), 0));
}
