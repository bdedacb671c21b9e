//! The copy engine: every way gives the same bytes and holes.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_store::copy::{
    BufferPool, Cancel, Gate, Limits, Means, Priority, RateLimiter, copy_range,
};
use forebay_store::decorators::{Flaky, InterceptedTier, Operation, Rule, Transparent};
use forebay_store::tier::DirTier;
use forebay_store::{Bytes, ErrorClass, Header, Object, StoreError, Tier};
use proptest::prelude::*;

struct Bench {
    _dirs: [tempfile::TempDir; 2],
    disk: Arc<DirTier>,
    memory: Arc<DirTier>,
}

impl Bench {
    fn new() -> Self {
        let dirs =
            [tempfile::tempdir_in("/tmp").unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()];
        let [disk, memory] =
            [0, 1].map(|i: usize| Arc::new(DirTier::open(dirs[i].path()).unwrap()));
        Self { _dirs: dirs, disk, memory }
    }
}

fn object(tier: &dyn Tier, ino: u64) -> Arc<dyn Object> {
    tier.create(ino, &Header { ino, ..Header::default() }).unwrap()
}

fn content(file: &dyn Bytes) -> Vec<u8> {
    let mut bytes = vec![0; file.len().unwrap() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

fn limits() -> Limits {
    Limits { buffers: Arc::new(BufferPool::new(64 << 10, 2)), ..Limits::plain(Priority::Demand) }
}

fn never() -> Cancel {
    Cancel::default()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn copy_of_any_range_by_any_means_equals_the_model(
        runs in prop::collection::vec((0u64..400_000, 1usize..90_000), 0..5),
        old in prop::collection::vec((0u64..400_000, 1usize..90_000), 0..5),
        start in 0u64..300_000, len in 1u64..300_000, means in 0..3,
    ) {
        let bench = Bench::new();
        let source = object(&*bench.memory, 1);
        source.set_len(600_000).unwrap();
        for (at, len) in runs {
            source.write_at(&vec![7; len], at).unwrap();
        }
        let through = InterceptedTier::new(bench.disk.clone(), Arc::new(Transparent));
        let target = match means {
            0 => object(&*bench.memory, 2),
            1 => object(&*bench.disk, 2),
            _ => object(&through, 2),
        };
        for (at, len) in old {
            target.write_at(&vec![9; len], at).unwrap();
        }
        let mut model = content(&*target);
        let end = start + len;
        model.resize(model.len().max(end as usize), 0);
        let span = start as usize..end as usize;
        model[span.clone()].copy_from_slice(&content(&*source)[span]);
        let copied = copy_range(&*source, &*target, start..end, &limits(), &never()).unwrap();
        prop_assert_eq!(copied.bytes + copied.holes, len);
        prop_assert!(means < 2 || copied.means == Means::Buffers || copied.bytes == 0);
        prop_assert!(content(&*target) == model);
    }
}

#[test]
fn copy_of_a_sparse_file_stays_sparse() {
    let bench = Bench::new();
    let (source, target) = (object(&*bench.memory, 1), object(&*bench.disk, 1));
    source.set_len(1 << 30).unwrap();
    source.write_at(&[1; 4096], 512 << 20).unwrap();
    let copied = copy_range(&*source, &*target, 0..1 << 30, &limits(), &never()).unwrap();
    assert_eq!((copied.bytes, copied.holes), (4096, (1 << 30) - 4096));
    assert_eq!(target.len().unwrap(), 1 << 30);
    target.sync(false).unwrap();
    assert!(target.allocated_bytes().unwrap() < 1 << 20);
}

#[test]
fn copy_beyond_the_end_says_where_the_source_ends() {
    let bench = Bench::new();
    let (source, target) = (object(&*bench.memory, 1), object(&*bench.disk, 1));
    source.write_at(&[1; 100], 0).unwrap();
    let result = copy_range(&*source, &*target, 0..101, &limits(), &never());
    assert!(matches!(result, Err(StoreError::Shrunk { at: 100, wanted: 101, .. })), "{result:?}");
}

/// A source that is shortened after the copy has begun.
struct Shrinking(Arc<dyn Object>);

impl Bytes for Shrinking {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> forebay_store::Result<usize> {
        let read = self.0.read_at(buffer, offset);
        self.0.set_len(offset + 1000)?;
        read
    }
    fn write_at(&self, data: &[u8], offset: u64) -> forebay_store::Result<usize> {
        self.0.write_at(data, offset)
    }
    fn sync(&self, data_only: bool) -> forebay_store::Result<()> {
        self.0.sync(data_only)
    }
    fn set_len(&self, len: u64) -> forebay_store::Result<()> {
        self.0.set_len(len)
    }
    fn stat(&self) -> forebay_store::Result<forebay_store::Attributes> {
        self.0.stat()
    }
    fn allocate(
        &self,
        offset: u64,
        len: u64,
        mode: forebay_store::AllocateMode,
    ) -> forebay_store::Result<()> {
        self.0.allocate(offset, len, mode)
    }
    fn punch(&self, offset: u64, len: u64) -> forebay_store::Result<()> {
        self.0.punch(offset, len)
    }
    fn seek_data(&self, offset: u64) -> forebay_store::Result<Option<u64>> {
        self.0.seek_data(offset)
    }
    fn seek_hole(&self, offset: u64) -> forebay_store::Result<Option<u64>> {
        self.0.seek_hole(offset)
    }
    fn set_times(
        &self,
        atime: Option<forebay_store::Timestamp>,
        mtime: Option<forebay_store::Timestamp>,
    ) -> forebay_store::Result<()> {
        self.0.set_times(atime, mtime)
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn label(&self) -> &Path {
        self.0.label()
    }
}

#[test]
fn copy_of_a_file_that_shrinks_meanwhile_fails_as_stale() {
    let bench = Bench::new();
    let source = object(&*bench.memory, 1);
    source.write_at(&vec![1; 1 << 20], 0).unwrap();
    let target = object(&*bench.disk, 1);
    let result = copy_range(&Shrinking(source), &*target, 0..1 << 20, &limits(), &never());
    assert_eq!(result.unwrap_err().class(), ErrorClass::Stale);
}

#[test]
fn copy_with_a_rate_takes_the_time_and_counts_progress() {
    let bench = Bench::new();
    let (source, target) = (object(&*bench.memory, 1), object(&*bench.disk, 1));
    source.write_at(&vec![1; 1 << 20], 0).unwrap();
    let rate = Arc::new(RateLimiter::new(4 << 20));
    let limits = Limits { rate: Some(rate), ..limits() };
    let start = Instant::now();
    copy_range(&*source, &*target, 0..1 << 20, &limits, &never()).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
    assert_eq!(limits.progress.bytes.load(Ordering::Relaxed), 1 << 20);
}

#[test]
fn copy_when_cancelled_during_its_wait_returns_soon() {
    let bench = Bench::new();
    let (source, target) = (object(&*bench.memory, 1), object(&*bench.disk, 1));
    source.write_at(&vec![1; 1 << 20], 0).unwrap();
    let limits = Limits { rate: Some(Arc::new(RateLimiter::new(1000))), ..limits() };
    let cancel = Cancel::default();
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            cancel.cancel();
        });
        let result = copy_range(&*source, &*target, 0..1 << 20, &limits, &cancel);
        assert!(matches!(result, Err(StoreError::Cancelled)));
    });
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn gate_holds_less_urgent_work_back_but_not_for_ever() {
    let gate = Gate::new(Duration::from_millis(100));
    let low = gate.enter(Priority::Prefetch);
    assert!(low.wait(&never()).unwrap(), "nobody else is there");
    let other = gate.enter(Priority::Rebalance);
    assert!(low.wait(&never()).unwrap(), "less urgent work does not count");
    let demand = gate.enter(Priority::Demand);
    assert!(demand.wait(&never()).unwrap());
    let start = Instant::now();
    assert!(!low.wait(&never()).unwrap(), "the bound passed");
    assert!(start.elapsed() >= Duration::from_millis(100));
    drop((demand, other));
    assert!(low.wait(&never()).unwrap());
}

#[test]
fn speculation_on_a_busy_device_takes_a_small_share_of_its_time() {
    let gate = Gate::new(Duration::from_millis(5));
    let nap = Duration::from_millis(2);
    let demand = gate.enter(Priority::Demand);
    let (began, mut spent, mut first, mut done) = (Instant::now(), Duration::ZERO, nap, 0);
    // As long as it takes on a busy machine, within reason.
    let limit = |done| Duration::from_millis(if done < 2 { 20_000 } else { 500 });
    while began.elapsed() < limit(done) {
        let work = || {
            let began = Instant::now();
            std::thread::sleep(nap);
            began.elapsed()
        };
        if let Some(took) = gate.speculate(work) {
            spent += took;
            done += 1;
            first = if done == 1 { took } else { first };
        }
    }
    assert!(done >= 2, "it is not starved: {done}");
    // The first is on credit.
    assert!(spent < began.elapsed() / 16 + first, "{spent:?} in {:?}", began.elapsed());
    drop(demand);
    std::thread::sleep(Duration::from_millis(25));
    for _ in 0..20 {
        assert!(gate.speculate(|| ()).is_some(), "a quiet device is free to use");
    }
}

#[test]
fn copy_onto_a_full_target_fails_as_no_space() {
    let bench = Bench::new();
    let flaky = Arc::new(Flaky::new(1));
    let through = InterceptedTier::new(bench.disk.clone(), flaky.clone());
    let (source, target) = (object(&*bench.memory, 1), object(&through, 1));
    source.write_at(&vec![1; 1 << 20], 0).unwrap();
    flaky.set_rules([Rule::nth(Operation::Write, 3, libc::ENOSPC)]);
    let result = copy_range(&*source, &*target, 0..1 << 20, &limits(), &never());
    assert_eq!(result.unwrap_err().class(), ErrorClass::NoSpace);
    assert_eq!(flaky.faults(), 1);
    copy_range(&*source, &*target, 0..1 << 20, &limits(), &never()).unwrap();
    assert_eq!(content(&*target), content(&*source));
}
