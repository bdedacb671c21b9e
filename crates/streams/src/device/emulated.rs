//! A disk that exists as a model only: it holds no bytes but takes, in real time, as long as the
//! model says for each read of a file that lies elsewhere. So a service can be tried at its limits
//! on any machine, without privileges and with the same outcome each time.

use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::model::{AccessTime, DeviceProfile, Disk, Layout, Throttle};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use parking_lot::{Condvar, Mutex};

use super::{Device, Read};
use crate::media::{Access, FileKey};
use crate::priority::ask_for_promptness;

/// Files whose places are remembered; further ones are placed by a hash.
const PLACES_MAX: usize = 1 << 16;

/// How long a read takes.
#[derive(Clone, Debug)]
pub enum Model {
    /// By the formula of a disk: seeks, rotation, zones.
    Disk(Disk),
    /// By a profile: access times are drawn so that its quantiles come out, a token bucket counts,
    /// as many reads as it says are served at once, and where it says that reads are delayed in a lump,
    /// time for them is given in slices of that length.
    Profile(DeviceProfile),
}

impl Model {
    /// A model by its name: that of a built-in profile.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "table1" => Some(Self::Disk(Disk::table_1())),
            "disk" => Some(Self::Disk(Disk::modern())),
            other => DeviceProfile::built_in(other).map(Self::Profile),
        }
    }

    /// The profile by which streams are admitted to it.
    pub fn profile(&self, name: &str) -> DeviceProfile {
        match self {
            Self::Disk(disk) => DeviceProfile::of_disk(name, disk),
            Self::Profile(profile) => profile.clone(),
        }
    }

    fn capacity(&self) -> u64 {
        match self {
            Self::Disk(disk) => disk.capacity,
            Self::Profile(profile) => profile.capacity,
        }
    }

    /// Seconds to read `bytes` at `to` with the head at `from`; `chance` is from 0 to 1.
    fn service(&self, from: u64, to: u64, bytes: u64, chance: f64) -> f64 {
        match self {
            Self::Disk(disk) => disk.service(from, to, bytes, chance),
            Self::Profile(profile) => {
                let transfer = bytes as f64 / profile.rate_at(to);
                if from == to {
                    return transfer;
                }
                let AccessTime { least, median, q99, worst, .. } =
                    profile.access(from.abs_diff(to));
                let mix = |(low, from): (f64, f64), (high, to): (f64, f64)| {
                    from + (to - from) * (chance - low) / (high - low)
                };
                let access = match chance {
                    ..0.5 => mix((0.0, least), (0.5, median)),
                    ..0.99 => mix((0.5, median), (0.99, q99)),
                    _ => mix((0.99, q99), (1.0, worst)),
                };
                access + transfer
            }
        }
    }

    fn throttle(&self) -> Option<Throttle> {
        match self {
            Self::Disk(_) => None,
            Self::Profile(profile) => profile.throttle,
        }
    }

    /// Seconds of a slice; 0 if there are none.
    fn slice(&self) -> f64 {
        match self {
            Self::Disk(_) => 0.0,
            Self::Profile(profile) => profile.delay,
        }
    }

    fn parallel(&self) -> usize {
        match self {
            Self::Disk(_) => 1,
            Self::Profile(profile) => profile.parallel as usize,
        }
    }
}

/// Makes an emulated disk misbehave.
#[derive(Debug)]
pub struct Control {
    slowness_permille: AtomicU64,
    failures: AtomicU64,
    stall_nanos: AtomicU64,
    held: Mutex<bool>,
    let_go: Condvar,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl Control {
    /// From the next read on all take `factor` times as long.
    pub fn degrade(&self, factor: f64) {
        self.slowness_permille.store((factor * 1000.0) as u64, Ordering::Relaxed);
    }

    /// The next `count` reads fail with `EIO`.
    pub fn fail_next(&self, count: u64) {
        self.failures.store(count, Ordering::Relaxed);
    }

    /// The next read takes so much longer.
    pub fn stall(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.stall_nanos.store(nanos, Ordering::Relaxed);
    }

    /// From now on nobody hears of a read that has ended, until [`Control::release`]; as if this host
    /// did not run, and not the disk's time.
    pub fn hold(&self) {
        *self.held.lock() = true;
    }

    /// Ends [`Control::hold`].
    pub fn release(&self) {
        *self.held.lock() = false;
        self.let_go.notify_all();
    }

    /// Reads that were done.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Bytes that were read.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// An emulated disk. Its thread ends when this is dropped and the last read is done.
pub struct Emulated {
    model: Model,
    queue: Sender<Job>,
    control: Arc<Control>,
    places: Mutex<HashMap<FileKey, u64>>,
}

/// What the disk is to do.
enum Job {
    Read(Read),
    /// A read that takes its time here and is done elsewhere; answered when it would have ended.
    Foreign {
        physical: u64,
        bytes: u64,
        ended: Sender<Instant>,
    },
}

impl fmt::Debug for Emulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emulated").field("model", &self.model).finish_non_exhaustive()
    }
}

impl Emulated {
    /// Starts the disk; `seed` is where the random numbers of its accesses begin.
    ///
    /// # Errors
    /// If its thread can't be started.
    pub fn start(model: Model, seed: u64) -> io::Result<Self> {
        let control = Arc::new(Control {
            slowness_permille: 1000.into(),
            failures: 0.into(),
            stall_nanos: 0.into(),
            held: false.into(),
            let_go: Condvar::new(),
            reads: 0.into(),
            bytes: 0.into(),
        });
        // Whoever submits keeps the number of reads small; see `Device`.
        let (queue, jobs) = unbounded();
        let now = Instant::now();
        let arm = Arm {
            heads: vec![Head { position: 0, free_at: now }; model.parallel()],
            random: seed,
            tokens: model.throttle().map_or(0.0, |throttle| throttle.burst),
            tokens_at: now,
            slices: Slices { began: now, length: model.slice(), used: 0.0 },
            model: model.clone(),
            control: Arc::clone(&control),
            order: 0,
            pending: BinaryHeap::new(),
        };
        std::thread::Builder::new().name("stream-disk".into()).spawn(move || arm.run(&jobs))?;
        Ok(Self { model, queue, control, places: Mutex::default() })
    }

    /// What makes it misbehave.
    pub fn control(&self) -> Arc<Control> {
        Arc::clone(&self.control)
    }
}

impl Device for Emulated {
    fn name(&self) -> String {
        "emulated disk".into()
    }

    fn access(&self) -> Access {
        Access::Buffered
    }

    /// Files lie in one piece each, spread over the disk in the order in which they are first
    /// opened: the n-th at the fractional part of n times the golden ratio.
    fn layout(&self, _file: &File, key: FileKey) -> Layout {
        let capacity = self.model.capacity();
        let bytes = key.size().clamp(1, capacity);
        let mut places = self.places.lock();
        let place = places.get(&key).copied().unwrap_or_else(|| {
            let count = places.len() as f64;
            let fraction = if places.len() < PLACES_MAX {
                ((count + 1.0) * 0.618_033_988_749_895).fract()
            } else {
                key.spread() as f64 / u64::MAX as f64
            };
            let place = (fraction * (capacity - bytes) as f64) as u64;
            if places.len() < PLACES_MAX {
                places.insert(key, place);
            }
            place
        });
        Layout::contiguous(place, key.size().max(1)).expect("it lies within the disk")
    }

    fn submit(&self, read: Read) {
        if let Err(refused) = self.queue.send(Job::Read(read))
            && let Job::Read(read) = refused.into_inner()
        {
            let error = io::Error::other("the emulated disk has ended");
            read.complete(Err(error), Instant::now());
        }
    }

    /// Some place of this disk: what the file system says is of another one, which may be larger.
    fn capacity(&self, _directory: &Path) -> Option<u64> {
        Some(self.model.capacity())
    }

    fn place(&self, physical: u64) -> u64 {
        physical % self.model.capacity().max(1)
    }

    fn occupy(&self, physical: u64, bytes: u64) -> Duration {
        let (ended, end) = bounded(1);
        let sent = self.queue.send(Job::Foreign { physical, bytes, ended });
        // Nothing comes if the disk has ended, and nothing is left to wait for.
        let ended = sent.ok().and_then(|()| end.recv().ok());
        ended.map_or(Duration::ZERO, |ended| ended.elapsed())
    }
}

/// One of the heads (a disk has one, an object store one for each connection).
#[derive(Clone, Copy)]
struct Head {
    /// The place after the last byte that it read.
    position: u64,
    free_at: Instant,
}

/// Time of the device, given in slices as throttles do: what a slice has is there at its beginning, and
/// what nobody uses of it is lost.
struct Slices {
    began: Instant,
    /// Seconds; 0 if time is given as it passes.
    length: f64,
    /// Seconds since the beginning that are used up.
    used: f64,
}

impl Slices {
    /// When a read ends that takes so long and begins now.
    fn grant(&mut self, now: Instant, service: Duration) -> Instant {
        if self.length <= 0.0 {
            return now + service;
        }
        let passed = now.saturating_duration_since(self.began).as_secs_f64();
        let slice = (passed / self.length).floor();
        self.used = self.used.max(slice * self.length) + service.as_secs_f64();
        let given = (self.used / self.length).floor() * self.length;
        self.began + Duration::from_secs_f64(given.max(passed))
    }
}

/// A read that ends at a known time.
struct Pending {
    ends: Instant,
    order: u64,
    started: Instant,
    job: Job,
}

impl PartialEq for Pending {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Pending {}
impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Pending {
    /// The one that ends first is the greatest, which is what a heap gives first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.ends, other.order).cmp(&(self.ends, self.order))
    }
}

/// What moves.
struct Arm {
    model: Model,
    control: Arc<Control>,
    heads: Vec<Head>,
    random: u64,
    tokens: f64,
    tokens_at: Instant,
    slices: Slices,
    order: u64,
    pending: BinaryHeap<Pending>,
}

impl Arm {
    fn run(mut self, jobs: &Receiver<Job>) {
        ask_for_promptness("disk");
        loop {
            let received = match self.pending.peek() {
                Some(first) => jobs.recv_deadline(first.ends),
                None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match received {
                Ok(job) => self.take_up(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => match self.pending.peek() {
                    None => return,
                    Some(first) => {
                        std::thread::sleep(first.ends.saturating_duration_since(Instant::now()));
                    }
                },
            }
            while self.pending.peek().is_some_and(|first| first.ends <= Instant::now()) {
                if let Some(pending) = self.pending.pop() {
                    self.finish(pending);
                }
            }
        }
    }

    /// Decides when a read will end. Time is the model's: a thread that wakes late does not make
    /// the disk slower.
    fn take_up(&mut self, mut job: Job) {
        let heads = self.heads.iter().enumerate();
        let (head, _) = heads.min_by_key(|(_, head)| head.free_at).expect("a device has a head");
        let started = self.heads[head].free_at.max(Instant::now());
        let service = match &mut job {
            Job::Read(read) => {
                let wanted: usize = read.chunks.iter_mut().map(|chunk| chunk.room().len()).sum();
                let left = read.media.size().saturating_sub(read.offset);
                self.service(read, (wanted as u64).min(left), head, started)
            }
            Job::Foreign { physical, bytes, .. } => {
                let seconds = self.move_and_read(head, *physical, *bytes);
                Duration::from_secs_f64(seconds)
            }
        };
        let ends = self.slices.grant(started, service);
        self.heads[head].free_at = ends;
        self.order += 1;
        self.pending.push(Pending { ends, order: self.order, started, job });
    }

    fn finish(&mut self, pending: Pending) {
        let Pending { ends, started, job, .. } = pending;
        self.control.let_go.wait_while(&mut self.control.held.lock(), |held| *held);
        let mut read = match job {
            Job::Read(read) => read,
            Job::Foreign { ended, .. } => {
                let _ = ended.send(ends);
                return;
            }
        };
        self.control.reads.fetch_add(1, Ordering::Relaxed);
        let failing = |left: u64| left.checked_sub(1);
        let failed =
            self.control.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, failing);
        let result = if failed.is_ok() {
            Err(io::Error::from_raw_os_error(libc::EIO))
        } else {
            read.perform()
        };
        self.control.bytes.fetch_add(*result.as_ref().unwrap_or(&0) as u64, Ordering::Relaxed);
        read.complete_at(result, started, ends, Duration::ZERO);
    }

    /// How long a head works on a read that it begins at `now`.
    fn service(&mut self, read: &Read, bytes: u64, head: usize, now: Instant) -> Duration {
        let mut seconds = 0.0;
        let (mut offset, end) = (read.offset, read.offset + bytes);
        while offset < end {
            let place = read.media.layout().locate(offset);
            let (position, run) = place.unwrap_or((self.heads[head].position, end - offset));
            let piece = run.min(end - offset);
            seconds += self.move_and_read(head, position, piece);
            offset += piece;
        }
        seconds += self.wait_for_tokens(bytes as f64, now);
        let stall = self.control.stall_nanos.swap(0, Ordering::Relaxed);
        let slowness = self.control.slowness_permille.load(Ordering::Relaxed) as f64 / 1000.0;
        Duration::from_secs_f64(seconds * slowness) + Duration::from_nanos(stall)
    }

    /// Seconds to get to a place and to read there.
    fn move_and_read(&mut self, head: usize, position: u64, bytes: u64) -> f64 {
        let chance = self.draw();
        let seconds = self.model.service(self.heads[head].position, position, bytes, chance);
        self.heads[head].position = position.saturating_add(bytes);
        seconds
    }

    fn wait_for_tokens(&mut self, bytes: f64, now: Instant) -> f64 {
        let Some(Throttle { rate, burst }) = self.model.throttle() else { return 0.0 };
        let passed = now.saturating_duration_since(self.tokens_at).as_secs_f64();
        self.tokens = (self.tokens + passed * rate).min(burst) - bytes;
        self.tokens_at = now;
        (-self.tokens / rate).max(0.0)
    }

    /// A number from 0 to 1: SplitMix64 (Steele, Lea and Flood, 2014).
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) as f64 / u64::MAX as f64
    }
}
