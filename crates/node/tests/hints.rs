//! Hints on a node over a slow backing store: what is hinted is there before it is opened, and hints
//! that do not come true cost no more than their budget.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::steward::log;
use forebay_node::{
    AtOnce, Context, HintPart, HintReport, Hinted, Ino, Node, NodeConfig, TierConfig,
};
use forebay_store::backing::BackingStore;
use forebay_store::decorators::{InterceptedBacking, Interceptor, Operation, Verdict};
use forebay_store::tier::DirTier;
use forebay_store::{DirBacking, Tier};
use forebay_testing::{LIMIT, memory, new_dir, wait_for};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const CONTEXT: Context = Context::DAEMON;

/// A store that takes its time for each read, and counts bytes.
#[derive(Default)]
struct Slow {
    latency: Duration,
    read: AtomicU64,
}

impl Interceptor for Slow {
    fn before(&self, operation: Operation, bytes: u64) -> Verdict {
        if operation == Operation::Read {
            self.read.fetch_add(bytes, Ordering::Relaxed);
            std::thread::sleep(self.latency);
        }
        Verdict::Pass
    }
}

/// A node with its directories, which go with it.
struct Rig {
    dir: PathBuf,
    node: Arc<Node>,
    slow: Arc<Slow>,
}

impl Rig {
    /// With files `0`, `1`, ... of `size` bytes in the backing store.
    fn new(
        files: u64,
        size: u64,
        tier: u64,
        latency: Duration,
        change: impl FnOnce(&mut NodeConfig),
    ) -> Self {
        let dir = new_dir(memory(), "forebay-hints");
        let backing = dir.join("backing");
        std::fs::create_dir_all(&backing).unwrap();
        for file in 0..files {
            std::fs::write(backing.join(file.to_string()), vec![file as u8; size as usize])
                .unwrap();
        }
        let tier = TierConfig { dir: dir.join("tier"), size_bytes: tier };
        std::fs::create_dir_all(&tier.dir).unwrap();
        let owner = DirTier::open(&tier.dir).unwrap().id().to_string();
        let mut config = NodeConfig::new(backing.clone(), vec![tier]);
        config.policy = "min".into();
        config.high_percent = 95;
        config.low_percent = 85;
        config.extent_bytes = 64 * KIB;
        config.fetch_on_open_bytes = 128 * KIB;
        config.attr_timeout = Duration::from_secs(3600);
        change(&mut config);
        let slow = Arc::new(Slow { latency, ..Slow::default() });
        let inner = Arc::new(DirBacking::open(&backing, &owner).unwrap());
        let store: Arc<dyn BackingStore> = Arc::new(InterceptedBacking::new(inner, slow.clone()));
        let node = Node::start_on(config, store).unwrap();
        Self { dir, node, slow }
    }

    fn give(&self, job: &str, files: &[u64]) -> Hinted {
        self.part(job, files, true, true)
    }

    fn part(&self, job: &str, files: &[u64], replace: bool, last: bool) -> Hinted {
        let paths: Vec<PathBuf> = files.iter().map(|file| file.to_string().into()).collect();
        let part = HintPart { job, replace, last, expires: Duration::from_secs(600) };
        let mut paths = paths.iter().map(PathBuf::as_path);
        self.node.hint(&part, &mut paths, &mut |_| true).unwrap()
    }

    fn ino(&self, file: u64) -> Ino {
        self.node.find_path(Path::new(&file.to_string())).unwrap()
    }

    /// Whether all of a file is on the tier.
    fn is_there(&self, file: u64) -> bool {
        let found = self.node.whereabouts(self.ino(file)).unwrap();
        found.residency == forebay_node::Coverage::Whole
    }

    /// Opens a file, reads it, closes it.
    fn read(&self, file: u64) {
        let fh = self.node.open(&CONTEXT, self.ino(file), libc::O_RDONLY).unwrap().fh;
        let mut buffer = vec![0; 64 << 10];
        let mut at = 0;
        loop {
            let read = self.node.read(&CONTEXT, fh, at, &mut buffer).unwrap();
            assert!(buffer[..read].iter().all(|byte| *byte == file as u8), "of another file");
            at += read as u64;
            if read == 0 {
                break;
            }
        }
        self.node.release(fh);
    }

    fn report(&self, job: &str) -> HintReport {
        let reports = self.node.hint_reports();
        reports.into_iter().find(|report| report.job == job).unwrap()
    }

    fn store_bytes(&self) -> u64 {
        self.slow.read.load(Ordering::Relaxed)
    }

    fn wait_until(&self, what: &str, holds: impl FnMut() -> bool) {
        assert!(wait_for(LIMIT, holds), "{what}: {:?}", self.node.hint_reports());
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.node.stop(Duration::from_secs(5));
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

/// Epochs over `files` files, each in another order.
fn epochs(files: u64, count: u64) -> Vec<u64> {
    let mut sequence = Vec::new();
    for epoch in 1..=count {
        let mut order: Vec<u64> = (0..files).collect();
        order.sort_by_key(|file| ((file + 1) * epoch).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        sequence.extend(order);
    }
    sequence
}

#[test]
fn shuffled_epochs_over_twice_the_tier_when_hinted_then_files_are_there_before_their_open() {
    let (files, size) = (64, 64 * KIB);
    let sequence = epochs(files, 3);
    let rig = Rig::new(files, size, 2 * MIB, Duration::from_millis(3), |_| {});
    let hinted = rig.give("train", &sequence);
    assert_eq!((hinted.accepted, hinted.refused_count), (3 * files, 0));
    // The program computes as long as two files take to come.
    let mut there = 0;
    for &file in &sequence {
        std::thread::sleep(Duration::from_millis(10));
        there += u64::from(rig.is_there(file));
        rig.read(file);
    }
    let report = rig.report("train");
    assert!(there * 100 >= 3 * files * 95, "{there} of {}: {report:?}", 3 * files);
    assert_eq!(report.state.progress.followed, 3 * files);
    assert_eq!(report.state.outstanding.0, 0);
    // Least-recently-used would read all of it three times.
    let read = rig.store_bytes();
    assert!(read <= 3 * files * size * 85 / 100, "{} files were read", read / size);
}

#[test]
fn hints_that_never_come_true_when_given_then_cost_at_most_their_budget() {
    let (files, size) = (200, 32 * KIB);
    let budget = MIB;
    let run = |hinted: bool| {
        let rig = Rig::new(files, size, 4 * MIB, Duration::ZERO, |config| {
            config.prefetch_bytes = budget;
        });
        if hinted {
            rig.give("wrong", &(100..200).rev().collect::<Vec<_>>());
        }
        for _ in 0..3 {
            (0..60).for_each(|file| rig.read(file));
        }
        rig.store_bytes()
    };
    let (with, without) = (run(true), run(false));
    assert!(with <= without + budget, "{with} bytes instead of {without}");
}

#[test]
fn program_that_leaves_its_sequence_when_it_comes_back_then_is_followed_again() {
    let rig = Rig::new(400, 16 * KIB, 2 * MIB, Duration::ZERO, |_| {});
    rig.give("job", &(0..400).collect::<Vec<_>>());
    (0..50).for_each(|file| rig.read(file));
    // It leaves a part out, and does the rest in blocks turned around.
    let mut rest: Vec<u64> = (200..400).collect();
    rest.chunks_mut(4).for_each(<[u64]>::reverse);
    let mut there = 0;
    for &file in &rest {
        std::thread::sleep(Duration::from_millis(3));
        there += u64::from(rig.is_there(file));
        rig.read(file);
    }
    let report = rig.report("job");
    assert!(there >= 170, "{there} of 200: {report:?}");
    assert!(report.state.progress.trusted && report.state.progress.skipped >= 140, "{report:?}");
}

#[test]
fn several_jobs_when_appended_withdrawn_and_expired_then_each_is_its_own() {
    let rig = Rig::new(40, 4 * KIB, 2 * MIB, Duration::ZERO, |_| {});
    rig.part("a", &[1, 2], true, false);
    let second = rig.part("a", &[3, 99, 4], false, true);
    assert_eq!((second.accepted, second.bytes), (2, 8 * KIB));
    assert_eq!(second.refused[0].0, Path::new("99"));
    rig.give("b", &[5]);
    let report = rig.report("a");
    assert_eq!((report.state.progress.given, report.refused), (4, 1));
    rig.wait_until("fetched ahead", || (1..=5).all(|file| rig.is_there(file)));
    rig.read(1);
    assert_eq!(rig.report("a").state.counts.used, 1);
    // Given anew, it begins anew.
    rig.give("a", &[6, 7]);
    assert_eq!(rig.report("a").state.progress.given, 2);
    assert!(rig.node.withdraw_hint("a") && !rig.node.withdraw_hint("a"));
    assert_eq!(rig.node.hint_reports().len(), 1);
    let part =
        HintPart { job: "brief", replace: true, last: true, expires: Duration::from_millis(1) };
    let mut paths = [Path::new("8")].into_iter();
    rig.node.hint(&part, &mut paths, &mut |_| true).unwrap();
    rig.wait_until("expired", || rig.node.hint_reports().len() == 1);
}

#[test]
fn hints_beyond_the_limits_when_given_then_refused_with_a_remedy() {
    let rig = Rig::new(1, 4 * KIB, 2 * MIB, Duration::ZERO, |_| {});
    for job in 0..forebay_node::MAX_JOBS {
        rig.give(&job.to_string(), &[0]);
    }
    let part = HintPart { job: "more", replace: true, last: true, expires: Duration::ZERO };
    let mut paths = [Path::new("0")].into_iter();
    let error = rig.node.hint(&part, &mut paths, &mut |_| true).unwrap_err();
    assert!(error.to_string().contains("withdraw"), "{error}");
}

#[test]
fn hints_with_other_policies_when_given_then_files_are_there_too() {
    for policy in ["lru", "s3fifo", "heuristic"] {
        let rig = Rig::new(60, 32 * KIB, MIB, Duration::ZERO, |config| {
            config.policy = policy.into();
        });
        let sequence: Vec<u64> = (0..60).collect();
        rig.give("scan", &sequence);
        let mut there = 0;
        for &file in &sequence {
            std::thread::sleep(Duration::from_millis(5));
            there += u64::from(rig.is_there(file));
            rig.read(file);
        }
        assert!(there >= 50, "{policy}: {there} of 60, {:?}", rig.report("scan"));
    }
}

#[test]
fn large_files_when_hinted_then_their_heads_are_there_and_the_rest_follows() {
    let rig = Rig::new(6, MIB, 8 * MIB, Duration::ZERO, |config| {
        config.prefetch_bytes = 2 * MIB;
    });
    rig.give("scan", &[0, 1, 2, 3, 4, 5]);
    let resident = |file| rig.node.whereabouts(rig.ino(file)).unwrap().resident_bytes;
    rig.wait_until("the first head", || resident(0) >= 448 * KIB);
    for file in 0..6 {
        rig.wait_until("a head", || resident(file) >= 448 * KIB);
        rig.read(file);
    }
    assert_eq!(rig.report("scan").state.counts.used, 6);
}

#[test]
fn event_log_of_a_node_when_replayed_then_every_action_is_the_same() {
    let dir = new_dir(std::env::temp_dir(), "forebay-events");
    let path = dir.join("log");
    let rig = Rig::new(64, 32 * KIB, MIB, Duration::ZERO, |config| {
        config.event_log = Some(path.clone());
    });
    let sequence = epochs(64, 3);
    rig.give("train", &sequence);
    for &file in &sequence {
        rig.read(file);
    }
    drop(rig);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let replay = log::replay(&text).unwrap();
    assert_eq!(replay.divergence, None);
    assert!(text.contains("> fetch ") && text.contains("> evict "), "nothing happened");
    assert!(replay.events > 500 && replay.actions > 64, "{replay:?}");
}

#[test]
fn open_that_has_to_wait_when_made_again_then_counts_once() {
    let rig = Rig::new(2, 4 * KIB, MIB, Duration::ZERO, |_| {});
    let ino = rig.ino(1);
    rig.node.start_trace().unwrap();
    let hasty = Context { waiter: Some(&AtOnce), ..CONTEXT };
    let refused = rig.node.open(&hasty, ino, libc::O_RDONLY).unwrap_err();
    assert!(matches!(refused, forebay_node::NodeError::Busy), "{refused}");
    rig.read(1);
    assert_eq!(rig.node.take_trace(10, true).unwrap().opens.len(), 1);
}

#[test]
fn opens_when_traced_then_each_is_there_once_with_its_path() {
    let rig = Rig::new(5, 4 * KIB, MIB, Duration::ZERO, |_| {});
    rig.read(0);
    rig.node.start_trace().unwrap();
    assert!(rig.node.start_trace().is_err(), "one at a time");
    for file in [3, 1, 3] {
        rig.read(file);
    }
    let first = rig.node.take_trace(2, false).unwrap();
    let last = rig.node.take_trace(2, true).unwrap();
    let paths: Vec<_> = first.opens.iter().chain(&last.opens).map(|open| &open.path[..]).collect();
    assert_eq!(paths, [b"3", b"1", b"3"]);
    assert_eq!((first.opens[0].size, first.lost, last.lost), (4 * KIB, 0, 0));
    assert!(rig.node.take_trace(1, false).is_err(), "it has ended");
    rig.read(1);
    rig.node.start_trace().unwrap();
}
