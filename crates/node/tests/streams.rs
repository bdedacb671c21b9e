//! Files that are played from a node, on an emulated disk in real time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_core::streams::disk::Disk;
use forebay_node::metrics::Source;
use forebay_node::{
    AtOnce, Context, Ino, Node, NodeConfig, NodeError, OpenMode, StreamsConfig, TierConfig,
};
use forebay_streams::device::Model;

const CONTEXT: Context = Context::DAEMON;
const RATE: u64 = 250_000;
const RATE_NAME: &[u8] = b"user.forebay.stream.rate";
const STATE_NAME: &[u8] = b"user.forebay.stream.state";
/// Nothing is judged by this time; it only ends what hangs.
/// Discs are models here that take real time, of which a busy machine leaves little.
const LIMIT: Duration = Duration::from_secs(300);

/// A node over a directory of titles.
struct Stage {
    node: Arc<Node>,
    dir: tempfile::TempDir,
}

/// Bytes that tell of which title they are and roughly from where.
fn content(title: usize, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    for (at, part) in all.chunks_mut(1000).enumerate() {
        part.fill((at * 7 + title * 13) as u8);
    }
    all
}

impl Stage {
    fn new(titles: usize, bytes: usize) -> Self {
        Self::with(titles, bytes, |config| {
            let model = Model::Disk(Disk::table_1());
            let profile = model.profile("table1");
            let (memory, emulate, idle) = (16 << 20, Some(model), forebay_streams::IDLE);
            let streams =
                StreamsConfig { profile, memory, beginnings: 0, titles: 0, idle, emulate };
            config.streams = Some(streams);
        })
    }

    fn with(titles: usize, bytes: usize, change: impl FnOnce(&mut NodeConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let backing = dir.path().join("backing");
        std::fs::create_dir(&backing).unwrap();
        for title in 0..titles {
            std::fs::write(backing.join(title.to_string()), content(title, bytes)).unwrap();
        }
        let tier = TierConfig { dir: dir.path().join("tier"), size_bytes: 256 << 20 };
        std::fs::create_dir(&tier.dir).unwrap();
        let mut config = NodeConfig::new(backing, vec![tier]);
        config.fetch_on_open_bytes = 64 << 10;
        config.extent_bytes = 64 << 10;
        change(&mut config);
        let node = Node::start(config).unwrap();
        Stage { node, dir }
    }

    fn backing(&self, title: usize) -> std::path::PathBuf {
        self.dir.path().join("backing").join(title.to_string())
    }

    fn ino(&self, title: usize) -> Ino {
        let name = title.to_string();
        self.node.lookup(&CONTEXT, Ino::ROOT, name.as_bytes()).unwrap().unwrap().ino
    }

    fn set_rate(&self, title: usize, rate: &str) -> Result<(), NodeError> {
        self.node.set_xattr(&CONTEXT, self.ino(title), RATE_NAME, rate.as_bytes(), 0, false)
    }

    fn state(&self, title: usize) -> String {
        let state = self.node.get_xattr(&CONTEXT, self.ino(title), STATE_NAME);
        state.map_or(String::new(), |state| String::from_utf8(state).unwrap())
    }

    /// Opens a title that has a rate.
    fn open(&self, title: usize) -> u64 {
        self.set_rate(title, &RATE.to_string()).unwrap();
        self.node.open(&CONTEXT, self.ino(title), libc::O_RDONLY).unwrap().fh
    }

    /// Opens titles from the first on until one gets no stream; their handles, the last without.
    fn fill(&self, titles: usize) -> Vec<u64> {
        let mut handles = Vec::new();
        for title in 0..titles {
            handles.push(self.open(title));
            if self.state(title).starts_with("refused") {
                return handles;
            }
        }
        panic!("{titles} streams were admitted, which no such disk carries");
    }

    fn read(&self, fh: u64, from: usize, until: usize) -> Vec<u8> {
        read(&self.node, fh, from, until)
    }

    /// Bytes that came along streams.
    fn taken(&self) -> u64 {
        // What was taken before the first look is counted by the second.
        self.node.streams_report();
        self.node.streams_report().unwrap().status.bytes_taken
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.node.stop(Duration::from_secs(10));
    }
}

fn read(node: &Node, fh: u64, from: usize, until: usize) -> Vec<u8> {
    let (mut data, mut buffer) = (Vec::new(), vec![0; 60_000]);
    while from + data.len() < until {
        let want = buffer.len().min(until - from - data.len());
        let at = (from + data.len()) as u64;
        let read = node.read(&CONTEXT, fh, at, &mut buffer[..want]).unwrap();
        if read == 0 {
            break;
        }
        data.extend_from_slice(&buffer[..read]);
    }
    data
}

/// What a busy machine adds to the wake-ups of threads, measured beside a test that runs in real
/// time. A glitch that is no longer than that is the machine's, not the streams'.
struct Beside {
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<Duration>>,
}

impl Beside {
    fn start() -> Self {
        const STEP: Duration = Duration::from_millis(2);
        const USUAL: Duration = Duration::from_millis(3);
        let over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let mut added = Duration::ZERO;
            while !ended.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::thread::sleep(STEP);
                let late = begun.elapsed().saturating_sub(STEP);
                added += if late > USUAL { late } else { Duration::ZERO };
            }
            added
        });
        Beside { over, thread: Some(thread) }
    }

    /// Checks that no stream was late, but for what the machine has added for each of them.
    fn judge(mut self, stage: &Stage, streams: usize) {
        self.over.store(true, Ordering::Relaxed);
        let added = self.thread.take().unwrap().join().unwrap();
        let status = stage.node.streams_report().unwrap().status;
        let others: Vec<_> = status.glitches.keys().filter(|cause| *cause != "host-busy").collect();
        let excused = added.as_secs_f64() * streams as f64;
        assert!(
            others.is_empty() || status.glitch_seconds <= excused,
            "{streams} streams; the machine added {added:?}: {status:?}"
        );
    }
}

fn errno<T>(result: Result<T, NodeError>) -> i32 {
    match result {
        Err(NodeError::Posix(errno)) => errno.raw_os_error(),
        Err(other) => panic!("{other}"),
        Ok(_) => 0,
    }
}

#[test]
fn file_with_a_rate_when_opened_then_a_stream_with_its_bytes() {
    let stage = Stage::new(2, 700_001);
    assert_eq!(errno(stage.node.get_xattr(&CONTEXT, stage.ino(0), STATE_NAME)), libc::ENODATA);
    stage.set_rate(0, "500K").unwrap();
    let opened = stage.node.open(&CONTEXT, stage.ino(0), libc::O_RDONLY).unwrap();
    assert_eq!(opened.mode, OpenMode::Direct, "the kernel's cache would hide where the reader is");
    let state = stage.state(0);
    assert!(state.starts_with("admitted rate=500000 streams=1 first-byte-within-ms="), "{state}");
    assert_eq!(stage.node.open_streams(), 1);
    assert!(stage.read(opened.fh, 0, usize::MAX) == content(0, 700_001));
    assert_eq!(stage.taken(), 700_001, "all of it came along the stream");
    let line = stage.node.streams_report().unwrap().status.streams.remove(0);
    assert_eq!((line.path.as_str(), line.rate), ("0", 500_000));
    let metrics = stage.node.render_metrics();
    assert!(metrics.contains("forebay_stream_guaranteed 1\n"), "{metrics}");
    stage.node.release(opened.fh);
    assert_eq!((stage.node.open_streams(), stage.state(0).as_str()), (0, ""));
    // Nothing of it has moved to a tier, and a file without a rate is none.
    assert_eq!(stage.node.tier_reports()[0].used, 0);
    let plain = stage.node.open(&CONTEXT, stage.ino(1), libc::O_RDONLY).unwrap().fh;
    assert_eq!(stage.node.open_streams(), 0);
    assert!(stage.read(plain, 0, usize::MAX) == content(1, 700_001));
    stage.node.release(plain);
}

#[test]
fn rates_when_senseless_or_without_streams_then_refused() {
    let stage = Stage::new(1, 100_000);
    for wrong in ["", "fast", "0", "-5"] {
        assert_eq!(errno(stage.set_rate(0, wrong)), libc::EINVAL, "{wrong}");
    }
    let dir = stage.node.mkdir(&CONTEXT, Ino::ROOT, b"dir", 0o755, 0).unwrap().ino;
    let on_dir = stage.node.set_xattr(&CONTEXT, dir, RATE_NAME, b"1M", 0, false);
    assert_eq!(errno(on_dir), libc::EINVAL);
    let ino = stage.ino(0);
    let set = stage.node.set_xattr(&CONTEXT, ino, STATE_NAME, b"admitted", 0, false);
    assert_eq!(errno(set), libc::EPERM);
    stage.set_rate(0, "1M").unwrap();
    stage.node.remove_xattr(&CONTEXT, stage.ino(0), RATE_NAME).unwrap();
    let without = Stage::with(1, 100_000, |_| {});
    assert_eq!(errno(without.set_rate(0, "1M")), libc::EOPNOTSUPP);
    assert!(without.node.streams_report().is_none());
}

#[test]
fn admitted_maximum_of_a_node_when_played_beside_cold_reads_then_no_glitch() {
    let bytes = 4 * RATE as usize;
    let stage = Stage::new(60, bytes);
    let beside = Beside::start();
    let mut handles = stage.fill(60);
    let refused = handles.pop().unwrap();
    let streams = handles.len();
    assert!(streams >= 15, "only {streams}");
    let (over, noise) = (AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let stage = &stage;
        let play = |fh: u64| scope.spawn(move || stage.read(fh, 0, usize::MAX));
        let players: Vec<_> = handles.iter().map(|&fh| play(fh)).collect();
        // Who has no stream, and files that have no rate, are read meanwhile.
        scope.spawn(|| {
            noise.fetch_add(stage.read(refused, 0, usize::MAX).len(), Ordering::Relaxed);
            for title in streams + 1..60 {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let fh = stage.node.open(&CONTEXT, stage.ino(title), libc::O_RDONLY).unwrap().fh;
                noise.fetch_add(stage.read(fh, 0, usize::MAX).len(), Ordering::Relaxed);
                stage.node.release(fh);
            }
        });
        for (title, player) in players.into_iter().enumerate() {
            assert!(player.join().unwrap() == content(title, bytes), "title {title}");
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(stage.taken(), (streams * bytes) as u64, "all came along the streams");
    assert!(noise.load(Ordering::Relaxed) > 0);
    handles.into_iter().chain([refused]).for_each(|fh| stage.node.release(fh));
    beside.judge(&stage, streams);
}

#[test]
fn stream_that_does_not_fit_when_opened_then_read_without_and_told_why() {
    let stage = Stage::new(60, 600_000);
    let handles = stage.fill(60);
    let last = handles.len() - 1;
    let state = stage.state(last);
    assert!(state.starts_with("refused ") && state.contains(" retry-after-ms="), "{state}");
    let report = stage.node.streams_report().unwrap();
    let told = report.refused.last().unwrap();
    assert_eq!((told.path.clone(), told.rate), (last.to_string().into_bytes(), RATE));
    assert!(["device", "memory"].contains(&told.why.reason.as_str()), "{told:?}");
    assert_eq!(stage.node.open_streams(), last);
    // A place that is given back is had by the next.
    handles[..3].iter().chain([&handles[last]]).for_each(|&fh| stage.node.release(fh));
    let again = stage.open(last);
    assert!(stage.state(last).starts_with("admitted"), "{}", stage.state(last));
    assert!(stage.node.streams_report().unwrap().refused.is_empty(), "it has one now");
    assert!(stage.read(again, 0, usize::MAX) == content(last, 600_000));
    handles[3..last].iter().chain([&again]).for_each(|&fh| stage.node.release(fh));
}

#[test]
fn stream_when_its_file_is_written_then_the_new_bytes_are_read() {
    let bytes = 600_000;
    let stage = Stage::new(1, bytes);
    let fh = stage.open(0);
    let mut expected = content(0, bytes);
    assert!(stage.read(fh, 0, 100_000) == expected[..100_000]);
    let writer = stage.node.open(&CONTEXT, stage.ino(0), libc::O_RDWR).unwrap().fh;
    for (at, byte) in [(50_000, 1), (300_000, 2), (590_000, 3)] {
        let data = vec![byte; 20_000];
        assert_eq!(stage.node.write(&CONTEXT, writer, at as u64, &data).unwrap(), data.len());
        expected.resize(expected.len().max(at + data.len()), 0);
        expected[at..at + data.len()].copy_from_slice(&data);
    }
    assert!(stage.read(fh, 100_000, usize::MAX) == expected[100_000..]);
    assert!(stage.read(fh, 0, usize::MAX) == expected);
    stage.node.release(writer);
    stage.node.release(fh);
    assert_eq!(stage.node.open_streams(), 0);
}

#[test]
fn reader_when_it_jumps_then_the_right_bytes_and_the_stream_comes_along() {
    let bytes = 2_000_000;
    let stage = Stage::new(1, bytes);
    let (fh, expected) = (stage.open(0), content(0, bytes));
    let part = |from: usize, until: usize| {
        assert!(stage.read(fh, from, until) == expected[from..until], "{from}..{until}");
    };
    // Memory of the stream is given back in whole pieces.
    let piece = 16 << 10;
    part(0, 3 * piece);
    let along = stage.taken();
    assert_eq!(along, 3 * piece as u64);
    // An index at the end, as players look for it.
    part(bytes - 1_000, bytes);
    assert_eq!(stage.taken(), along, "aside");
    part(3 * piece, 6 * piece);
    assert_eq!(stage.taken(), 6 * piece as u64, "and back");
    // A jump: the second read there has the stream follow.
    part(1_500_000, 1_500_001);
    part(1_500_001, bytes);
    let after = stage.taken();
    assert!(after >= 6 * piece as u64 + 499_999, "{after}");
    assert!(stage.state(0).starts_with("admitted"));
    stage.node.release(fh);
}

#[test]
fn requests_that_may_not_wait_when_the_stream_has_nothing_then_told_so() {
    let stage = Stage::new(1, 600_000);
    let fh = stage.open(0);
    let not_waiting = Context { waiter: Some(&AtOnce), ..CONTEXT };
    let mut buffer = vec![0; 1000];
    let expected = content(0, 600_000);
    // What a stream has read ahead is had at once, in the end; until then nobody's time is taken.
    let begun = Instant::now();
    loop {
        match stage.node.read(&not_waiting, fh, 0, &mut buffer) {
            Ok(read) => break assert!(buffer[..read] == expected[..read]),
            Err(NodeError::Busy) => std::thread::sleep(Duration::from_millis(10)),
            Err(other) => panic!("{other}"),
        }
        assert!(begun.elapsed() < LIMIT);
    }
    let far = stage.node.read(&not_waiting, fh, 500_000, &mut buffer);
    assert!(matches!(far, Err(NodeError::Busy)));
    stage.node.release(fh);
}

#[test]
fn beginning_of_a_popular_file_when_on_the_tier_then_there_at_once_and_the_stream_follows() {
    let bytes = 1_500_000;
    let stage = Stage::with(2, bytes, |config| {
        let model = Model::Disk(Disk::table_1());
        let (profile, memory) = (model.profile("table1"), 16 << 20);
        let (emulate, idle) = (Some(model), forebay_streams::IDLE);
        config.streams =
            Some(StreamsConfig { profile, memory, beginnings: 1 << 20, titles: 0, idle, emulate });
    });
    let first = stage.open(0);
    assert!(!stage.state(0).ends_with("first-byte-within-ms=0"), "{}", stage.state(0));
    // In the time that the stream leaves.
    let begun = Instant::now();
    let mut buffer = vec![0; 1000];
    let not_waiting = Context { waiter: Some(&AtOnce), ..CONTEXT };
    while stage.node.metrics().bytes.of(Source::Fill).get() < 64 << 10 {
        assert!(begun.elapsed() < LIMIT, "nothing of it came to the tier");
        std::thread::sleep(Duration::from_millis(10));
    }
    stage.node.release(first);
    let second = stage.open(0);
    assert!(stage.state(0).ends_with("first-byte-within-ms=0"), "{}", stage.state(0));
    assert_eq!(stage.node.read(&not_waiting, second, 0, &mut buffer).unwrap(), 1000);
    assert!(buffer == content(0, bytes)[..1000]);
    assert!(stage.read(second, 0, usize::MAX) == content(0, bytes));
    assert!(stage.taken() > 0, "the rest came along the stream");
    stage.node.release(second);
}

#[test]
fn popular_title_when_whole_on_the_tier_then_it_needs_no_stream_and_the_device_has_others() {
    let bytes = 1_500_000;
    let stage = Stage::with(60, bytes, |config| {
        let model = Model::Disk(Disk::table_1());
        let (profile, memory) = (model.profile("table1"), 16 << 20);
        let (emulate, idle) = (Some(model), forebay_streams::IDLE);
        let titles = 2 << 20;
        config.streams =
            Some(StreamsConfig { profile, memory, beginnings: 0, titles, idle, emulate });
    });
    // Room is for one of them: the one that was opened most.
    for _ in 0..3 {
        stage.node.release(stage.open(0));
    }
    let begun = Instant::now();
    while stage.node.metrics().bytes.of(Source::Fill).get() < bytes as u64 {
        assert!(begun.elapsed() < LIMIT, "it did not come to the tier");
        std::thread::sleep(Duration::from_millis(10));
    }
    let streams = || stage.node.streams_report().unwrap().status.guaranteed;
    // The last extent is noted a moment after it was filled.
    let mut popular = stage.open(0);
    while streams() > 0 {
        assert!(begun.elapsed() < LIMIT, "it still needs a stream");
        stage.node.release(popular);
        std::thread::sleep(Duration::from_millis(10));
        popular = stage.open(0);
    }
    let taken = stage.taken();
    assert!(stage.read(popular, 0, usize::MAX) == content(0, bytes));
    assert_eq!(stage.taken(), taken, "nothing of it comes from the device");
    let others = stage.fill(60);
    assert_eq!(streams(), others.len() as u64 - 2, "all but it and the one that was refused");
    stage.node.release(popular);
}

#[test]
fn handle_that_nobody_reads_then_its_place_goes_to_others_and_it_reads_on_all_the_same() {
    let bytes = 1_500_000;
    let stage = Stage::with(60, bytes, |config| {
        let model = Model::Disk(Disk::table_1());
        let (profile, memory) = (model.profile("table1"), 16 << 20);
        // Longer than a busy machine takes to open all that find a place.
        let (emulate, idle) = (Some(model), Duration::from_secs(5));
        config.streams =
            Some(StreamsConfig { profile, memory, beginnings: 0, titles: 0, idle, emulate });
    });
    let handles = stage.fill(60);
    let (refused, streams) = (handles.len() - 1, handles.len() as u64 - 1);
    let idle = || stage.node.streams_report().unwrap().status.idle;
    let begun = Instant::now();
    while idle() < streams {
        assert!(begun.elapsed() < LIMIT, "{} of {streams} are idle", idle());
        std::thread::sleep(Duration::from_millis(20));
    }
    let again = stage.open(refused);
    assert!(stage.state(refused).starts_with("admitted"), "{}", stage.state(refused));
    // The first byte of one that has a place again, and all of it.
    assert!(stage.read(handles[0], 0, usize::MAX) == content(0, bytes));
    assert!(stage.taken() > 0, "it came along the stream");
    handles.into_iter().chain([again]).for_each(|fh| stage.node.release(fh));
    assert_eq!(stage.node.open_streams(), 0);
}

#[test]
fn file_when_written_back_beside_a_stream_then_in_turns() {
    let bytes = 600_000;
    let stage = Stage::new(2, bytes);
    let writer = stage.node.open(&CONTEXT, stage.ino(1), libc::O_RDWR).unwrap().fh;
    let data = vec![7; 1 << 20];
    assert_eq!(stage.node.write(&CONTEXT, writer, 0, &data).unwrap(), data.len());
    stage.node.release(writer);
    let stream = stage.open(0);
    let turns = || stage.node.streams_report().unwrap().status.turns;
    let before = turns();
    let begun = Instant::now();
    while stage.node.writeback().backlog_len() > 0 {
        assert!(begun.elapsed() < LIMIT, "{} are left", stage.node.writeback().backlog_len());
        // Somebody else may be at it, or the file may be busy for a moment.
        let _ = stage.node.writeback().reconcile(stage.ino(1));
        std::thread::sleep(Duration::from_millis(20));
    }
    // 64 KiB each.
    assert!(turns() >= before + 16, "{} turns", turns() - before);
    assert!(std::fs::read(stage.backing(1)).unwrap() == data, "it is in the backing store");
    assert!(stage.read(stream, 0, usize::MAX) == content(0, bytes));
    stage.node.release(stream);
}
