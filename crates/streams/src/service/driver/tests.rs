//! The driver in virtual time, on a device that does what a test says: each cause of a glitch alone,
//! and what becomes of readers that fall behind.

use super::*;
use crate::device::Read;
use crate::media::Access;
use crate::model::{AdmissionConfig, Assurance, DeviceProfile, GlitchCause, Layout, MachineConfig};
use bytes::Bytes;
use crossbeam_channel::bounded;
use parking_lot::Mutex;

const CHUNK: usize = 16 << 10;
/// 2 Mbit/s.
const RATE: u64 = 250_000;
const STEP: Duration = Duration::from_millis(4);

/// A device that keeps what it is asked for.
#[derive(Debug, Default)]
struct Fake(Mutex<VecDeque<Read>>);

impl Device for Fake {
    fn name(&self) -> String {
        "fake".into()
    }
    fn access(&self) -> Access {
        Access::Buffered
    }
    fn layout(&self, _: &std::fs::File, key: FileKey) -> Layout {
        Layout::contiguous(0, key.size().max(1)).unwrap()
    }
    fn submit(&self, read: Read) {
        self.0.lock().push_back(read);
    }
}

type Reply = Receiver<Result<Stream, Rejected>>;

/// Bytes of the device between the beginnings of titles.
const APART: u64 = 200_000_000;

/// What a read comes to.
#[derive(Clone, Copy)]
enum Fate {
    /// The device takes so long.
    Takes(Duration),
    /// It takes a moment, of which nobody hears for so long.
    Heard(Duration),
    /// It takes a moment, and the thread that waits for it is not run for so long.
    Noticed(Duration),
    /// It fails after so long.
    Fails(Duration),
}

const MOMENT: Fate = Fate::Takes(STEP);

struct Player {
    stream: Stream,
    rate: u64,
    since: Option<Instant>,
    got: Vec<u8>,
    end: usize,
    title: usize,
    /// Bytes that it keeps in its hands.
    hands: Vec<Bytes>,
    /// It takes, and lets go of nothing.
    hoards: bool,
}

struct Stage {
    driver: Driver,
    device: Arc<Fake>,
    commands: Receiver<Command>,
    clock: Arc<Mutex<Instant>>,
    actions: Actions,
    players: Vec<Player>,
    fate: fn(usize) -> Fate,
    began: Option<(Read, Instant, Fate)>,
    dir: tempfile::TempDir,
    bytes: usize,
}

fn content(title: usize, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    for (at, part) in all.chunks_mut(1000).enumerate() {
        part.fill((at * 7 + title * 13) as u8);
    }
    all
}

impl Stage {
    /// For titles of so many bytes.
    fn new(bytes: usize, memory: u64, assurance: Assurance) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(Mutex::new(Instant::now()));
        let pool = Pool::with_apart(memory, CHUNK, memory / 8 * 7).unwrap();
        let admission = AdmissionConfig {
            assurance,
            memory: (pool.apart() * CHUNK) as u64,
            chunk: CHUNK as u64,
            ..AdmissionConfig::default()
        };
        let settings = MachineConfig { admission, ..MachineConfig::default() };
        let profile = DeviceProfile::built_in("table1").unwrap();
        let device = Arc::new(Fake::default());
        let (sender, commands) = unbounded();
        let time = Arc::clone(&clock);
        let parts = Parts {
            machine: Machine::new(profile, settings).unwrap(),
            pool,
            device: Arc::<Fake>::clone(&device),
            library: String::new(),
            profile: String::new(),
            commands: sender,
            idle: Duration::from_secs(3600),
            clock: Box::new(move || *time.lock()),
        };
        Self {
            driver: Driver::new(parts),
            device,
            commands,
            clock,
            actions: Actions::default(),
            players: Vec::new(),
            fate: |_| MOMENT,
            began: None,
            dir,
            bytes,
        }
    }

    fn now(&self) -> Instant {
        *self.clock.lock()
    }

    fn pass(&self, time: Duration) {
        *self.clock.lock() += time;
    }

    /// Opens a title at a rate, or says why not.
    fn open(
        &mut self,
        title: usize,
        rate: u64,
        dry_at: Option<Instant>,
    ) -> Result<usize, Rejected> {
        self.open_until(title, rate, self.bytes, dry_at)
    }

    fn open_until(
        &mut self,
        title: usize,
        rate: u64,
        end: usize,
        dry_at: Option<Instant>,
    ) -> Result<usize, Rejected> {
        let reply = self.ask(title, Some(rate), end, dry_at);
        let stream = self.answer(&reply)?;
        let (since, got, hands) = (None, Vec::new(), Vec::new());
        let hoards = false;
        self.players.push(Player { stream, rate, end, since, got, title, hands, hoards });
        Ok(self.players.len() - 1)
    }

    fn ask(
        &mut self,
        title: usize,
        rate: Option<u64>,
        end: usize,
        dry_at: Option<Instant>,
    ) -> Reply {
        let path = self.dir.path().join(title.to_string());
        if !path.exists() {
            std::fs::write(&path, content(title, self.bytes)).unwrap();
        }
        let file = std::fs::File::open(path).unwrap();
        // Titles lie apart.
        let layout = Layout::contiguous(title as u64 * APART, self.bytes as u64).unwrap();
        let wanted = OpenRequest {
            media: Arc::new(Media::new(file, Access::Buffered, layout).unwrap()),
            path: title.to_string(),
            rate: rate.map(|rate| Rate::constant(rate).unwrap()),
            start: 0,
            end: end as u64,
            max_startup: None,
            dry_at,
            burst: None,
            instead_of: None,
            least: None,
        };
        let (sender, reply) = bounded(1);
        self.driver.obey(Command::Open {
            wanted,
            reply: Box::new(move |answer| drop(sender.send(answer))),
        });
        self.work();
        reply
    }

    fn answer(&mut self, reply: &Reply) -> Result<Stream, Rejected> {
        for _ in 0..10_000 {
            match reply.try_recv() {
                Ok(answer) => return answer,
                // Whoever asks for the same at the same moment waits for the first.
                Err(_) => self.turn(),
            }
        }
        panic!("no answer");
    }

    fn work(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            self.driver.obey(command);
        }
        self.driver.work(&mut self.actions);
    }

    /// What happens in a step of time: players take, the device goes on.
    fn turn(&mut self) {
        self.pass(STEP);
        self.take();
        self.work();
        if self.began.is_none()
            && let Some(read) = self.device.0.lock().pop_front()
        {
            let title = read.media.layout().locate(0).unwrap().0 / APART;
            self.began = Some((read, self.now(), (self.fate)(title as usize)));
        }
        let now = self.now();
        let over = self.began.as_ref().is_some_and(|(_, since, fate)| {
            let (Fate::Takes(time) | Fate::Heard(time) | Fate::Noticed(time) | Fate::Fails(time)) =
                fate;
            now - *since >= *time
        });
        if let Some((read, since, fate)) = self.began.take_if(|_| over) {
            self.complete(read, since, fate);
            self.work();
        }
    }

    fn complete(&mut self, mut read: Read, started: Instant, fate: Fate) {
        let result = match fate {
            Fate::Fails(_) => Err(std::io::Error::from_raw_os_error(libc::EIO)),
            _ => read.perform(),
        };
        let now = self.now();
        let (ended, late) = match fate {
            Fate::Heard(_) => (started + STEP, Duration::ZERO),
            Fate::Noticed(_) => (now, now - started - STEP),
            _ => (now, Duration::ZERO),
        };
        let mut left = *result.as_ref().unwrap_or(&0);
        for chunk in &mut read.chunks {
            let filled = left.min(chunk.room().len());
            chunk.set_len(filled);
            left -= filled;
        }
        let (token, chunks) = (read.token, read.chunks);
        self.driver.complete(Completion { token, chunks, result, started, ended, late });
    }

    /// Each player takes what its rate allows.
    fn take(&mut self) {
        let now = self.now();
        for player in &mut self.players {
            if player.stream.ready() == 0 {
                continue;
            }
            let since = *player.since.get_or_insert(now);
            let allowed = (now - since).as_secs_f64() * player.rate as f64;
            let held: usize = player.hands.iter().map(Bytes::len).sum();
            let mut had = player.got.len() + held;
            while (had as f64) < allowed
                && let Ok(Some(bytes)) = player.stream.read(Duration::ZERO)
            {
                had += bytes.len();
                if player.hoards {
                    player.hands.push(bytes);
                } else {
                    player.got.extend_from_slice(&bytes);
                }
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.now() + time;
        while self.now() < until {
            self.turn();
        }
    }

    /// Runs until something is so.
    fn until(&mut self, what: &str, mut so: impl FnMut(&Self) -> bool) {
        for _ in 0..100_000 {
            if so(self) {
                return;
            }
            self.turn();
        }
        panic!("{what}: {:?}", self.driver.status());
    }

    fn state(&self, player: usize) -> String {
        let id = self.players[player].stream.id();
        let lines = self.driver.status().streams;
        lines.iter().find(|line| line.id == id).unwrap().state.clone()
    }

    /// Plays until all have everything, and compares the bytes.
    fn finish(&mut self) {
        assert!(self.players.iter().all(|player| !player.hoards));
        let bytes = self.bytes;
        self.until("all play to the end", |stage| {
            stage.players.iter().all(|player| player.got.len() >= player.end)
        });
        for (at, player) in self.players.iter().enumerate() {
            let all = content(player.title, bytes);
            assert!(player.got == all[..player.end], "player {at} has other bytes");
        }
    }

    fn nobody_disturbed(&self) {
        let status = self.driver.status();
        assert!(status.glitches.is_empty(), "{:?} {:?}", status.glitches, status.streams);
    }

    /// Glitches were counted, all of this cause.
    fn only(&self, cause: &str) {
        let glitches = &self.driver.tally.glitches;
        let causes: Vec<&String> = glitches.keys().collect();
        assert_eq!(causes, [cause], "{glitches:?}");
        assert!(crate::metrics::CAUSES.contains(&cause));
    }
}

fn sure(seconds: usize) -> Stage {
    Stage::new(seconds * RATE as usize, 8 << 20, Assurance::Deterministic)
}

const LONG: Duration = Duration::from_secs(4);

/// A stream that plays undisturbed until its reads come to `fate`, and then as before.
fn one_with(fate: fn(usize) -> Fate) -> Stage {
    let mut stage = sure(12);
    stage.open(0, RATE, None).unwrap();
    stage.run(Duration::from_secs(3));
    assert!(stage.driver.tally.glitches.is_empty(), "{:?}", stage.driver.tally);
    stage.fate = fate;
    stage.until("it runs dry", |stage| !stage.driver.tally.glitches.is_empty());
    stage.fate = |_| MOMENT;
    stage.finish();
    stage
}

#[test]
fn device_that_takes_too_long_then_device_slow_alone() {
    one_with(|_| Fate::Takes(LONG)).only("device-slow");
}

#[test]
fn driver_that_is_told_too_late_then_host_busy_alone() {
    let stage = one_with(|_| Fate::Heard(LONG));
    stage.only("host-busy");
    assert!(stage.driver.machine.slowdown() < 1.1, "the device is as fast as it was");
}

#[test]
fn thread_that_reads_and_wakes_too_late_then_host_busy_alone() {
    let stage = one_with(|_| Fate::Noticed(LONG));
    stage.only("host-busy");
    assert!(stage.driver.machine.slowdown() < 1.1, "the device is as fast as it was");
}

#[test]
fn reads_that_fail_for_a_while_then_read_error_alone() {
    let mut stage = sure(12);
    stage.open(0, RATE, None).unwrap();
    stage.run(Duration::from_secs(3));
    stage.fate = |_| Fate::Fails(Duration::from_millis(1200));
    stage.until("it has failed thrice", |stage| stage.driver.tally.read_errors == 3);
    stage.fate = |_| MOMENT;
    stage.finish();
    stage.only("read-error");
}

#[test]
fn driver_that_sleeps_for_no_known_reason_then_late_alone() {
    let mut stage = sure(12);
    stage.open(0, RATE, None).unwrap();
    stage.run(Duration::from_secs(3));
    stage.until("nothing is under way", |stage| {
        stage.began.is_none() && stage.device.0.lock().is_empty()
    });
    stage.pass(LONG);
    stage.finish();
    stage.only("late");
}

#[test]
fn driver_that_is_woken_too_late_then_host_busy_alone() {
    let mut stage = sure(12);
    stage.open(0, RATE, None).unwrap();
    stage.run(Duration::from_secs(3));
    stage.until("nothing is under way", |stage| {
        stage.began.is_none() && stage.device.0.lock().is_empty()
    });
    let due = stage.now() + STEP;
    stage.pass(LONG);
    let now = stage.now();
    stage.driver.causes.note(due, now);
    stage.finish();
    stage.only("host-busy");
}

#[test]
fn stream_that_began_with_another_daemon_when_it_is_dry_then_daemon_change_alone() {
    let mut stage = sure(4);
    let dry_at = stage.now();
    stage.pass(STEP);
    stage.open(0, RATE, Some(dry_at)).unwrap();
    stage.finish();
    stage.only("daemon-change");
}

#[test]
fn stream_that_has_lost_its_guarantee_then_degraded_alone() {
    let rate = 4 * RATE;
    let mut stage = Stage::new(12_000_000, 64 << 20, Assurance::Deterministic);
    // Streams take what the device carries, and have all of their titles already.
    while stage.open_until(stage.players.len(), rate, 20_000, None).is_ok() {
        stage.run(Duration::from_millis(30));
    }
    // One goes, and in its place comes one that plays on.
    stage.players.pop();
    stage.run(Duration::from_millis(50));
    let last = stage.players.len();
    assert_eq!(stage.open(last, rate, None), Ok(last));
    stage.until("the others have all", |stage| {
        stage.players[..last].iter().all(|player| player.got.len() == player.end)
            && stage.state(last) == "playing"
    });
    // Its reads take longer than they may, though it does not suffer yet.
    stage.fate = |_| Fate::Takes(Duration::from_millis(300));
    stage.until("it has lost its guarantee", |stage| stage.driver.tally.degradations == 1);
    stage.nobody_disturbed();
    stage.fate = |_| Fate::Takes(LONG);
    stage.until("it is fed too late", |stage| !stage.driver.tally.glitches.is_empty());
    assert_eq!(stage.state(last), "degraded");
    // Whoever comes now comes after it, however little he wants.
    stage.players.drain(..last);
    assert_eq!(stage.open(0, 1000, None).unwrap_err().reason, "device");
    stage.fate = |_| MOMENT;
    stage.until("it has its guarantee again", |stage| stage.driver.tally.restorations == 1);
    stage.finish();
    stage.only("degraded");
    stage.open(0, 1000, None).unwrap();
}

#[test]
fn stream_that_has_run_dry_without_its_guarantee_when_fed_with_it_then_degraded_alone() {
    let mut stage = sure(4);
    let player = stage.open(0, RATE, None).unwrap();
    let stream = StreamId(stage.players[player].stream.id());
    stage.driver.set_degraded(stream, true);
    stage.pass(Duration::from_secs(2));
    stage.driver.set_degraded(stream, false);
    stage.pass(Duration::from_secs(1));
    for cause in [GlitchCause::SlowDevice, GlitchCause::Late, GlitchCause::Memory] {
        stage.driver.glitch(stream, cause, Duration::from_millis(1500));
    }
    stage.only("degraded");
    stage.driver.tally.glitches.clear();
    // It ran dry after that.
    stage.driver.glitch(stream, GlitchCause::SlowDevice, Duration::from_millis(900));
    stage.only("device-slow");
}

/// Two players of one title, of which the second lets go of nothing any more.
fn dawdler(memory: u64, assurance: Assurance) -> Stage {
    let mut stage = Stage::new(12 * RATE as usize, memory, assurance);
    stage.open(0, RATE, None).unwrap();
    stage.open(0, RATE, None).unwrap();
    stage.until("both play", |stage| stage.players.iter().all(|player| !player.got.is_empty()));
    assert_eq!(stage.driver.status().shared, 1, "they share what is read");
    stage.run(Duration::from_secs(1));
    stage.players[1].hoards = true;
    stage
}

/// What the dawdler has in its hands is still what it was given. It plays on from there.
fn let_go(stage: &mut Stage) {
    let slow = &mut stage.players[1];
    assert!(!slow.hands.is_empty());
    for bytes in slow.hands.drain(..) {
        slow.got.extend_from_slice(&bytes);
    }
    (slow.hoards, slow.since) = (false, None);
    let (title, had) = (slow.title, slow.got.len());
    assert!(stage.players[1].got == content(title, stage.bytes)[..had], "other bytes in hand");
}

#[test]
fn reader_that_falls_behind_with_bytes_in_hand_then_they_stay_and_it_plays_on_from_there() {
    for assurance in [Assurance::Deterministic, Assurance::Statistical(4.0)] {
        let mut stage = dawdler(8 << 20, assurance);
        // Others use all memory that becomes free.
        stage.open(1, RATE, None).unwrap();
        stage.open(2, RATE, None).unwrap();
        stage.until("it is behind", |stage| stage.driver.tally.behind > 0);
        stage.run(Duration::from_secs(8));
        stage.nobody_disturbed();
        let (used, limit) = (stage.driver.status().memory_used, stage.driver.status().memory_limit);
        assert!(used <= limit, "{used} of {limit}");
        let_go(&mut stage);
        stage.finish();
        stage.nobody_disturbed();
    }
}

/// The device carries no other stream.
fn dawdler_on_a_full_device() -> Stage {
    let mut stage = dawdler(64 << 20, Assurance::Deterministic);
    let refused = stage.open(1, 100_000_000, None).unwrap_err();
    stage.open(1, refused.suggested_rate.unwrap(), None).unwrap();
    assert!(stage.open(2, RATE, None).is_err(), "the device is full");
    stage
}

/// The dawdler has lost its place.
fn dawdler_without_a_place() -> Stage {
    let mut stage = dawdler_on_a_full_device();
    stage.until("it has lost its place", |stage| stage.driver.tally.behind > 0);
    assert_eq!(stage.state(1), "waiting");
    stage
}

#[test]
fn reader_that_falls_behind_when_there_is_no_place_then_it_waits_in_order_and_plays_on() {
    let mut stage = dawdler_without_a_place();
    let refused = stage.driver.tally.refused.clone();
    stage.run(Duration::from_secs(3));
    assert_eq!(stage.state(1), "waiting");
    assert_eq!(stage.driver.tally.refused, refused, "who waits is told nothing");
    stage.players.pop();
    stage.until("it has a place again", |stage| stage.state(1) != "waiting");
    let_go(&mut stage);
    stage.finish();
    stage.nobody_disturbed();
}

#[test]
fn reader_that_falls_behind_when_no_place_comes_free_then_told_so_and_asks_again() {
    let mut stage = dawdler_without_a_place();
    stage.run(Duration::from_secs(25));
    let_go(&mut stage);
    let told = stage.players[1].stream.read(Duration::ZERO).unwrap_err();
    assert!(matches!(told, StreamError::Refused(_)), "{told}");
    stage.players.pop();
    let asked = stage.players[1].stream.read(Duration::ZERO).unwrap_err();
    assert!(matches!(asked, StreamError::TimedOut(_)), "{asked}");
    stage.finish();
}

#[test]
fn memory_that_dawdlers_have_in_hand_when_there_is_no_other_then_memory_alone() {
    let mut stage = dawdler_on_a_full_device();
    // Readers without a guarantee have all the other memory.
    let others: Vec<_> = std::iter::from_fn(|| stage.driver.pool.take()).collect();
    stage.until("there is no memory for a read", |stage| {
        stage.driver.titles.values().any(|reading| reading.crowded)
    });
    stage.run(Duration::from_secs(10));
    drop(others);
    stage.players.pop();
    stage.until("somebody was late", |stage| !stage.driver.tally.glitches.is_empty());
    let_go(&mut stage);
    stage.finish();
    stage.only("memory");
}

#[test]
fn crowd_when_the_first_of_it_can_not_be_read_then_the_others_hear_of_it_while_that_one_stays() {
    let mut stage = sure(4);
    stage.fate = |_| Fate::Fails(STEP);
    let first = stage.ask(0, Some(RATE), stage.bytes, None);
    let second = stage.ask(0, Some(RATE), stage.bytes, None);
    let first = stage.answer(&first).unwrap();
    let mut second = stage.answer(&second).unwrap();
    stage.until("both have failed", |stage| stage.driver.tally.broken == 2);
    assert!(matches!(second.read(Duration::ZERO), Err(StreamError::Device(_))));
    drop(first);
}

#[test]
fn stream_without_a_guarantee_when_moved_while_a_read_is_under_way_then_the_right_bytes() {
    let mut stage = sure(4);
    let reply = stage.ask(0, None, stage.bytes, None);
    let mut stream = stage.answer(&reply).unwrap();
    let all = content(0, stage.bytes);
    for place in [500_000, 17, 900_001] {
        stage.until("a read is under way", |stage| stage.began.is_some());
        let (answer, answers) = bounded(1);
        let offset = place as u64;
        stage.driver.obey(Command::Seek { stream: StreamId(stream.id()), offset, reply: answer });
        assert!(answers.try_recv().unwrap().is_ok());
        let mut at = place;
        for _ in 0..5 {
            let mut came = None;
            stage.until("bytes come", |_| {
                came = stream.read(Duration::ZERO).ok().flatten();
                came.is_some()
            });
            let came = came.unwrap();
            assert!(came[..] == all[at..at + came.len()], "at {at}");
            at += came.len();
        }
        while stream.ready() > 0 {
            stream.read(Duration::ZERO).unwrap();
        }
    }
}
