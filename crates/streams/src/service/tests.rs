use super::*;
use crate::device::{Control, Emulated, Model};
use crate::model::Disk;
use forebay_testing::wait_until;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const LIMIT: Duration = Duration::from_secs(15);
/// 2 Mbit/s.
const RATE: u64 = 250_000;

/// A service of an emulated disk, over a directory of files.
struct Stage {
    service: Service,
    control: Arc<Control>,
    dir: tempfile::TempDir,
}

/// Where tests keep files: in memory if there is such a place, for the disk is emulated.
fn temporary() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

/// Bytes that tell from which title they are and roughly where from.
fn content(title: usize, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    for (at, part) in all.chunks_mut(1000).enumerate() {
        part.fill((at * 7 + title * 13) as u8);
    }
    all
}

impl Stage {
    /// `titles` files of `bytes` each on the disk of Table 1.
    fn new(titles: usize, bytes: usize) -> Self {
        Self::with(titles, bytes, 16 << 20, Assurance::Deterministic)
    }

    fn with(titles: usize, bytes: usize, memory: u64, assurance: Assurance) -> Self {
        Self::of(titles, bytes, |config| (config.memory, config.assurance) = (memory, assurance))
    }

    fn of(titles: usize, bytes: usize, change: impl FnOnce(&mut ServiceConfig)) -> Self {
        let dir = temporary();
        for title in 0..titles {
            std::fs::write(dir.path().join(format!("{title}")), content(title, bytes)).unwrap();
        }
        let model = Model::Disk(Disk::table_1());
        let profile = model.profile("table1");
        let device = Emulated::start(model, 1).unwrap();
        let control = device.control();
        let library = dir.path().to_path_buf();
        let mut config = ServiceConfig {
            library,
            memory: 16 << 20,
            chunk: 16 << 10,
            assurance: Assurance::Deterministic,
            beginnings: 1 << 20,
            idle: IDLE,
        };
        change(&mut config);
        let service = Service::start(config, Arc::new(device), profile).unwrap();
        Self { service, control, dir }
    }

    fn open(&self, title: usize, request: &StreamRequest) -> Result<Stream, Rejected> {
        match self.service.open_stream(Path::new(&title.to_string()), request) {
            Ok(stream) => Ok(stream),
            Err(OpenError::Rejected(rejected)) => Err(rejected),
            Err(OpenError::Failed(error)) => panic!("{error}"),
        }
    }
}

/// Whether there was no glitch but those that a host without free processors explains: what is
/// measured here goes on in real time.
fn undisturbed(status: &Status) -> bool {
    status.glitches.keys().all(|cause| cause == "host-busy")
}

/// Reads to the end; the bytes, and the time to the first of them.
fn read_all(mut stream: Stream) -> Result<(Vec<u8>, Duration), StreamError> {
    let (mut all, begun, mut first) = (Vec::new(), Instant::now(), None);
    while let Some(bytes) = stream.read(LIMIT)? {
        first.get_or_insert_with(|| begun.elapsed());
        all.extend_from_slice(&bytes);
    }
    Ok((all, first.unwrap_or_default()))
}

#[test]
fn one_stream_when_read_then_its_bytes_at_its_rate_and_no_glitch() {
    let stage = Stage::new(1, 1_000_000);
    let begun = Instant::now();
    let stream = stage.open(0, &StreamRequest::at_rate(2 * RATE)).unwrap();
    let bound = stream.first_byte_within();
    let (bytes, first) = read_all(stream).unwrap();
    assert!(bytes == content(0, 1_000_000));
    assert!(first <= bound, "first byte after {first:?}, promised within {bound:?}");
    let took = begun.elapsed().as_secs_f64();
    assert!((0.5..4.0).contains(&took), "{took}");
    let status = stage.service.status();
    assert!(undisturbed(&status) && status.opened == 1, "{status:?}");
}

#[test]
fn part_of_a_file_when_read_then_just_these_bytes() {
    let stage = Stage::new(1, 700_001);
    let all = content(0, 700_001);
    for (start, length) in [(0, 1), (5, 70_000), (65_535, 2), (400_001, 300_000), (700_000, 1)] {
        for class in [Class::Guaranteed { rate: 8 * RATE }, Class::BestEffort] {
            let request =
                StreamRequest { class, start, length: Some(length), max_startup_ms: None };
            let (bytes, _) = read_all(stage.open(0, &request).unwrap()).unwrap();
            let from = start as usize;
            assert!(bytes == all[from..from + length as usize], "{start}+{length} {class:?}");
        }
    }
    let beyond = StreamRequest { start: 700_001, ..StreamRequest::at_rate(RATE) };
    assert_eq!(stage.open(0, &beyond).unwrap_err().reason, "senseless");
}

/// Opens a stream of each title in turn until one is refused.
fn fill(stage: &Stage, titles: usize, rate: u64) -> (Vec<Stream>, Rejected) {
    let mut streams = Vec::new();
    for title in 0..titles {
        match stage.open(title, &StreamRequest::at_rate(rate)) {
            Ok(stream) => streams.push(stream),
            Err(rejected) => return (streams, rejected),
        }
    }
    panic!("{titles} streams were admitted, which no such disk carries");
}

/// Reads all streams to their ends, each in a thread; what each got.
fn play(streams: Vec<Stream>) -> Vec<Result<(Vec<u8>, Duration), StreamError>> {
    let players: Vec<_> =
        streams.into_iter().map(|stream| std::thread::spawn(move || read_all(stream))).collect();
    players.into_iter().map(|player| player.join().unwrap()).collect()
}

#[test]
fn admitted_maximum_when_played_beside_best_effort_reads_then_no_glitch() {
    let bytes = 6 * RATE as usize;
    let stage = Stage::new(60, bytes);
    let (streams, rejected) = fill(&stage, 60, RATE);
    let count = streams.len();
    assert!(count >= 20, "only {count}: {rejected}");
    assert!(["device", "memory"].contains(&rejected.reason.as_str()), "{rejected:?}");
    assert!(rejected.retry_after_ms > 0, "{rejected:?}");
    assert!(rejected.suggested_rate.is_none_or(|rate| rate < RATE), "{rejected:?}");
    let bounds: Vec<Duration> = streams.iter().map(Stream::first_byte_within).collect();
    let over = Arc::new(AtomicBool::new(false));
    let noise: Vec<_> = (0..4)
        .map(|title| {
            let (service, over) = (stage.service.clone(), Arc::clone(&over));
            std::thread::spawn(move || {
                let request =
                    StreamRequest { class: Class::BestEffort, ..StreamRequest::at_rate(1) };
                while !over.load(Ordering::Relaxed) {
                    let path = format!("{}", 59 - title);
                    let mut stream = service.open_stream(Path::new(&path), &request).unwrap();
                    while !over.load(Ordering::Relaxed)
                        && stream.read(LIMIT).is_ok_and(|bytes| bytes.is_some())
                    {
                    }
                }
            })
        })
        .collect();
    for (title, (played, bound)) in play(streams).into_iter().zip(bounds).enumerate() {
        let (got, first) = played.unwrap();
        assert!(got == content(title, bytes), "title {title}");
        assert!(first <= bound, "title {title} began after {first:?}, promised within {bound:?}");
    }
    over.store(true, Ordering::Relaxed);
    noise.into_iter().for_each(|thread| thread.join().unwrap());
    let status = stage.service.status();
    assert!(undisturbed(&status), "{count} streams: {status:?}");
    assert!(status.bytes_best_effort > 0 && status.memory_peak <= status.memory_limit);
}

#[test]
fn clients_when_slow_then_others_play_on_and_the_slow_ones_get_everything() {
    let bytes = 3 * RATE as usize;
    let stage = Stage::new(20, bytes);
    let mut streams: Vec<Stream> =
        (0..20).map(|title| stage.open(title, &StreamRequest::at_rate(RATE)).unwrap()).collect();
    let slow = streams.split_off(15);
    for (title, played) in play(streams).into_iter().enumerate() {
        assert!(played.unwrap().0 == content(title, bytes));
    }
    let status = stage.service.status();
    assert!(undisturbed(&status), "{status:?}");
    assert!(status.memory_used > 0 && status.memory_used <= status.memory_limit);
    for (at, played) in play(slow).into_iter().enumerate() {
        assert!(played.unwrap().0 == content(15 + at, bytes));
    }
}

#[test]
fn clients_when_they_vanish_then_their_place_is_free_at_once() {
    let stage = Stage::new(60, 20 * RATE as usize);
    let (mut streams, _) = fill(&stage, 60, RATE);
    let count = streams.len();
    // One has bytes in its hands when it goes.
    let held = streams[0].read(LIMIT).unwrap();
    streams.truncate(1);
    let first = streams.pop();
    drop(first);
    drop(held);
    let (again, _) = fill(&stage, 60, RATE);
    assert!(again.len() + 1 >= count, "{} of {count}", again.len());
    drop(again);
    let begun = Instant::now();
    while stage.service.status().memory_used > 0 {
        assert!(begun.elapsed() < LIMIT, "{:?}", stage.service.status());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(stage.service.status().guaranteed, 0);
}

#[test]
fn device_when_it_becomes_slow_then_the_last_lose_their_guarantee_and_the_first_play_on() {
    let bytes = 12 * RATE as usize;
    let stage = Stage::new(60, bytes);
    let streams: Vec<Stream> =
        (0..14).map(|title| stage.open(title, &StreamRequest::at_rate(RATE)).unwrap()).collect();
    let players: Vec<_> =
        streams.into_iter().map(|stream| std::thread::spawn(move || read_all(stream))).collect();
    let ids_in = |status: &Status, state: &str| -> Vec<u64> {
        status.streams.iter().filter(|line| line.state == state).map(|line| line.id).collect()
    };
    std::thread::sleep(Duration::from_secs(4));
    let before = ids_in(&stage.service.status(), "playing");
    stage.control.degrade(4.0);
    let begun = Instant::now();
    let during = loop {
        std::thread::sleep(Duration::from_millis(50));
        let status = stage.service.status();
        if status.degraded >= 2 || begun.elapsed() > Duration::from_secs(6) {
            break status;
        }
    };
    assert!(during.slowdown > 1.1 && during.degraded >= 2, "{during:?}");
    // In the stated order: of those that play, who was admitted last goes first.
    let lost = ids_in(&during, "degraded");
    let lost: Vec<u64> = lost.into_iter().filter(|id| before.contains(id)).collect();
    assert_eq!(lost, before[before.len() - lost.len()..], "of {before:?}");
    let refused = stage.open(59, &StreamRequest::at_rate(RATE)).unwrap_err();
    assert!(["device", "memory"].contains(&refused.reason.as_str()), "{refused:?}");
    stage.control.degrade(1.0);
    for player in players {
        player.join().unwrap().unwrap();
    }
    let after = stage.service.status();
    let glitches: u64 = after.glitches.values().sum();
    let told: u64 = during.streams.iter().map(|s| s.glitches).sum();
    assert!(glitches >= told, "every glitch is counted");
    for cause in after.glitches.keys() {
        assert!(crate::metrics::CAUSES.contains(&cause.as_str()), "{cause}");
    }
}

#[test]
fn reads_when_they_fail_then_tried_again_and_only_hopeless_streams_break_off() {
    let bytes = 2 * RATE as usize;
    let stage = Stage::new(3, bytes);
    let streams: Vec<Stream> =
        (0..3).map(|title| stage.open(title, &StreamRequest::at_rate(RATE)).unwrap()).collect();
    stage.control.fail_next(2);
    for (title, played) in play(streams).into_iter().enumerate() {
        assert!(played.unwrap().0 == content(title, bytes));
    }
    assert_eq!((stage.service.status().read_errors, stage.service.status().broken), (2, 0));
    stage.control.fail_next(1000);
    for class in [Class::Guaranteed { rate: RATE }, Class::BestEffort] {
        let request = StreamRequest { class, ..StreamRequest::at_rate(RATE) };
        let broken = read_all(stage.open(0, &request).unwrap()).unwrap_err();
        assert!(matches!(broken, StreamError::Device(_)), "{broken}");
    }
    stage.control.fail_next(0);
    let (got, _) = read_all(stage.open(1, &StreamRequest::at_rate(4 * RATE)).unwrap()).unwrap();
    assert!(got == content(1, bytes), "the service goes on");
}

#[test]
fn file_when_it_becomes_shorter_then_its_stream_breaks_off_and_says_so() {
    let stage = Stage::new(1, 20 * RATE as usize);
    let mut stream = stage.open(0, &StreamRequest::at_rate(2 * RATE)).unwrap();
    stream.read(LIMIT).unwrap().unwrap();
    let file = File::options().write(true).open(stage.dir.path().join("0")).unwrap();
    file.set_len(100_000).unwrap();
    let broken = read_all(stream).unwrap_err();
    assert!(broken.to_string().contains("shorter"), "{broken}");
}

#[test]
fn flash_crowd_of_one_title_then_all_play_and_the_device_reads_it_about_once() {
    let bytes = 4 * RATE as usize;
    let stage = Stage::new(1, bytes);
    let streams: Vec<Stream> =
        (0..100).map(|_| stage.open(0, &StreamRequest::at_rate(RATE)).unwrap()).collect();
    for played in play(streams) {
        assert!(played.unwrap().0 == content(0, bytes));
    }
    let status = stage.service.status();
    assert!(undisturbed(&status), "{status:?}");
    assert!(status.bytes_read < 3 * bytes as u64, "{status:?}");
    assert!(status.shared >= 95, "{status:?}");
}

#[test]
fn crowd_that_comes_one_after_the_other_then_followers_share_what_is_read() {
    let bytes = 4 * RATE as usize;
    // Deterministic admission shares only what is still there: how long a gap takes to close has no
    // bound.
    let stage = Stage::with(1, bytes, 16 << 20, Assurance::Statistical(4.0));
    let mut players = Vec::new();
    for _ in 0..12 {
        let stream = stage.open(0, &StreamRequest::at_rate(RATE)).unwrap();
        players.push(std::thread::spawn(move || read_all(stream)));
        std::thread::sleep(Duration::from_millis(150));
    }
    for player in players {
        assert!(player.join().unwrap().unwrap().0 == content(0, bytes));
    }
    let status = stage.service.status();
    assert!(undisturbed(&status), "{status:?}");
    assert!(status.bytes_read < 7 * bytes as u64, "{status:?}");
}

#[test]
fn stream_when_moved_paused_and_changed_then_the_right_bytes() {
    let bytes = 40 * RATE as usize;
    let stage = Stage::new(1, bytes);
    let all = content(0, bytes);
    let mut stream = stage.open(0, &StreamRequest::at_rate(RATE)).unwrap();
    let first = stream.read(LIMIT).unwrap().unwrap();
    assert!(first[..] == all[..first.len()]);
    drop(first);
    for offset in [5_000_123_usize, 9_999_999, 17] {
        stream.seek(offset as u64).unwrap();
        let bytes = stream.read(LIMIT).unwrap().unwrap();
        assert!(bytes[..] == all[offset..offset + bytes.len()], "at {offset}");
    }
    stream.pause();
    std::thread::sleep(Duration::from_millis(300));
    stream.resume().unwrap();
    stream.set_rate(2 * RATE).unwrap();
    let rejected = stream.set_rate(1_000 * RATE).unwrap_err();
    assert!(["device", "rate"].contains(&rejected.reason.as_str()), "{rejected:?}");
    assert_eq!(stream.seek(bytes as u64).unwrap_err().reason, "senseless");
    assert!(stream.read(LIMIT).unwrap().is_some());
    let status = stage.service.status();
    assert!(undisturbed(&status), "{status:?}");
    assert_eq!(status.guaranteed_rate, 2 * RATE);
}

#[test]
fn streams_that_nobody_reads_then_their_places_go_to_others_and_the_next_read_asks_again() {
    let bytes = 20 * RATE as usize;
    let stage = Stage::of(60, bytes, |config| config.idle = Duration::from_secs(2));
    let rate = 4 * RATE;
    let (mut idle, _) = fill(&stage, 60, rate);
    let admitted = idle.len() as u64;
    wait_until("all give their places back", || stage.service.status().idle == admitted);
    // Whoever reads is not idle, and nothing is lost.
    let mut back = idle.remove(0);
    let first = back.read(LIMIT).unwrap().unwrap();
    assert!(first[..] == content(0, bytes)[..first.len()]);
    drop((first, back));
    let (others, _) = fill(&stage, 60, rate);
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = others
        .into_iter()
        .map(|mut stream| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) && stream.read(LIMIT).unwrap().is_some() {}
            })
        })
        .collect();
    let mut late = idle.remove(0);
    let refused = late.read(LIMIT).unwrap_err();
    assert!(matches!(refused, StreamError::Refused(_)), "{refused}");
    stop.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    let mut came = None;
    wait_until("it is admitted again", || match late.read(LIMIT) {
        Ok(bytes) => {
            came = bytes;
            true
        }
        Err(StreamError::Refused(_)) => false,
        Err(other) => panic!("{other}"),
    });
    let came = came.unwrap();
    assert!(came[..] == content(1, bytes)[..came.len()]);
}

#[test]
fn stream_of_which_somebody_takes_a_drop_now_and_then_then_its_place_goes_to_others() {
    let bytes = 20 * RATE as usize;
    let stage = Stage::of(1, bytes, |config| config.idle = Duration::from_secs(2));
    let mut dripping = stage.open(0, &StreamRequest::at_rate(4 * RATE)).unwrap();
    wait_until("it has given its place back", || {
        std::thread::sleep(Duration::from_millis(350));
        // At most a chunk, of what is a hundred of them.
        drop(dripping.read(LIMIT).unwrap());
        stage.service.status().parked > 0
    });
}

#[test]
fn paused_stream_of_a_shared_title_when_it_has_taken_nothing_then_it_resumes_with_the_right_bytes()
{
    let bytes = 4 * RATE as usize;
    let stage = Stage::with(4, bytes, 4 << 20, Assurance::Deterministic);
    let wanted = StreamRequest::at_rate(RATE);
    let (first, mut second) = (stage.open(0, &wanted).unwrap(), stage.open(0, &wanted).unwrap());
    wait_until("both have something", || first.ready() > 0 && second.ready() > 0);
    assert!(stage.service.status().shared > 0, "they share what is read");
    second.pause();
    // The memory that the second did not take is used for others meanwhile.
    let others = (1..4).map(|title| stage.open(title, &wanted).unwrap());
    let players: Vec<_> = others.chain([first]).collect();
    for (played, title) in play(players).into_iter().zip([1, 2, 3, 0]) {
        assert!(played.unwrap().0 == content(title, bytes), "{title}");
    }
    second.resume().unwrap();
    assert!(read_all(second).unwrap().0 == content(0, bytes));
}

#[test]
fn stream_when_its_rate_changes_before_it_has_taken_all_then_the_right_bytes() {
    let bytes = 4 * RATE as usize;
    let stage = Stage::with(2, bytes, 4 << 20, Assurance::Deterministic);
    let mut stream = stage.open(0, &StreamRequest::at_rate(RATE)).unwrap();
    wait_until("it has something", || stream.ready() > 0);
    stream.set_rate(2 * RATE).unwrap();
    let other = stage.open(1, &StreamRequest::at_rate(RATE)).unwrap();
    let played = play(vec![stream, other]);
    for (title, played) in played.into_iter().enumerate() {
        assert!(played.unwrap().0 == content(title, bytes), "{title}");
    }
}

#[test]
fn wish_when_its_start_is_too_far_then_refused_for_that() {
    let stage = Stage::new(1, 1_000_000);
    let request = StreamRequest { max_startup_ms: Some(0), ..StreamRequest::at_rate(RATE) };
    assert_eq!(stage.open(0, &request).unwrap_err().reason, "startup");
    assert_eq!(stage.service.status().guaranteed, 0);
}

#[test]
fn service_when_stopped_then_streams_break_off_and_new_ones_are_refused() {
    let stage = Stage::new(1, 20 * RATE as usize);
    let stream = stage.open(0, &StreamRequest::at_rate(RATE)).unwrap();
    stage.service.stop();
    assert_eq!(read_all(stream).unwrap_err(), StreamError::Stopped);
    assert_eq!(stage.open(0, &StreamRequest::at_rate(RATE)).unwrap_err().reason, "stopped");
}

#[test]
fn turns_of_others_when_taken_beside_the_admitted_maximum_then_granted_until_the_end() {
    let bytes = 4 * RATE as usize;
    let stage = Stage::new(60, bytes);
    let (streams, _) = fill(&stage, 60, RATE);
    let over = Arc::new(AtomicBool::new(false));
    let others: Vec<_> = (1..4_u64)
        .map(|at| {
            let (service, over) = (stage.service.clone(), Arc::clone(&over));
            std::thread::spawn(move || {
                let mut turns = 0;
                while !over.load(Ordering::Relaxed) {
                    drop(service.turn(at << 30, 64 << 10).unwrap());
                    turns += 1;
                }
                turns
            })
        })
        .collect();
    for (title, played) in play(streams).into_iter().enumerate() {
        assert!(played.unwrap().0 == content(title, bytes), "title {title}");
    }
    over.store(true, Ordering::Relaxed);
    let turns: u32 = others.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert!(turns > 0);
    stage.service.stop();
    // It is heard of a moment later; then nobody is waited for.
    let begun = Instant::now();
    while stage.service.turn(0, 1).is_some() {
        assert!(begun.elapsed() < LIMIT);
    }
}

#[test]
fn beginning_of_a_title_when_popular_then_at_hand_at_once_and_the_rest_follows() {
    let bytes = 3 * RATE as usize;
    let stage = Stage::new(2, bytes);
    let first = stage.open(0, &StreamRequest::at_rate(2 * RATE)).unwrap();
    assert!(first.first_byte_within() > Duration::ZERO);
    assert!(read_all(first).unwrap().0 == content(0, bytes));
    let reads = stage.control.reads();
    let mut second = stage.open(0, &StreamRequest::at_rate(2 * RATE)).unwrap();
    assert_eq!(second.first_byte_within(), Duration::ZERO);
    let beginning = second.read(Duration::ZERO).unwrap().unwrap();
    assert!(beginning[..] == content(0, bytes)[..beginning.len()]);
    let (rest, _) = read_all(second).unwrap();
    assert!([&beginning[..], &rest[..]].concat() == content(0, bytes));
    let status = stage.service.status();
    assert!(stage.control.reads() > reads && status.beginnings_used == 1, "{status:?}");
    assert!(status.beginnings_bytes >= beginning.len() as u64, "{status:?}");
    // In the middle of it, beyond it, and moved within it.
    for start in [5, beginning.len() as u64 - 1, beginning.len() as u64, 700_000] {
        let request = StreamRequest { start, ..StreamRequest::at_rate(2 * RATE) };
        let (got, _) = read_all(stage.open(0, &request).unwrap()).unwrap();
        assert!(got == content(0, bytes)[start as usize..], "from {start}");
    }
    let mut moved = stage.open(0, &StreamRequest::at_rate(2 * RATE)).unwrap();
    moved.seek(100).unwrap();
    assert!(read_all(moved).unwrap().0 == content(0, bytes)[100..]);
    // A file that has changed is another one.
    std::fs::write(stage.dir.path().join("0"), content(1, bytes - 1)).unwrap();
    let changed = stage.open(0, &StreamRequest::at_rate(2 * RATE)).unwrap();
    assert!(read_all(changed).unwrap().0 == content(1, bytes - 1));
}

#[test]
fn turn_far_beyond_the_device_when_taken_then_the_next_stream_starts_all_the_same() {
    let stage = Stage::new(1, 600_000);
    let mut stream = stage.open(0, &StreamRequest::at_rate(RATE)).unwrap();
    stream.read(LIMIT).unwrap().unwrap();
    drop(stage.service.turn(1 << 50, 64 << 10).unwrap());
    stream.seek(500_000).unwrap();
    let bytes = stream.read(LIMIT).unwrap().unwrap();
    assert!(bytes[..] == content(0, 600_000)[500_000..500_000 + bytes.len()]);
}
