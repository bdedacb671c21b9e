//! Requests at random over hours: who plays what, how long they wait, and whether one runs dry.

use std::collections::VecDeque;

use forebay_core::streams::admission::{AdmissionConfig, Assurance};
use forebay_core::streams::disk::Disk;
use forebay_core::streams::layout::Layout;
use forebay_core::streams::machine::{Config, Machine, Rounds, Scheme as Order};
use forebay_core::streams::rate::Rate;
use forebay_core::unit::Tick;

use super::device::{Device, DeviceKind};
use super::driver::Driver;
use super::paper::{Model, Variant};
use super::ring::partition;
use super::{Scheme, StreamsArgs, Table};
use crate::SimError;
use crate::rng::Rng;

const SHORTEST: f64 = 90.0 * 60.0;
const LONGEST: f64 = 120.0 * 60.0;
/// Clients that wait for others to leave are tried again so often in a second.
const RETRIES: u64 = 50;

/// What is asked of a system.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// Of what.
    pub device: DeviceKind,
    /// In which order.
    pub scheme: Scheme,
    /// Bytes a second of a stream.
    pub rate: f64,
    /// Seconds of a round.
    pub round: f64,
    /// Groups.
    pub k: u64,
    /// Bytes of the disk's cache.
    pub cache: f64,
    /// Bytes of buffers.
    pub memory: f64,
    /// Deviations that the ring's admission allows for; none for the longest times.
    pub statistical: Option<f64>,
    /// Titles, and the exponent of their popularity.
    pub titles: (u64, f64),
    /// Requests a second.
    pub arrivals: f64,
    /// Seconds.
    pub duration: f64,
    /// Of all random numbers.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Most streams of rounds of fixed length; none for the ring.
    pub places: Option<u64>,
    /// Requests.
    pub requests: u64,
    /// Streams that have begun.
    pub started: u64,
    /// Requests that had to wait for others to leave.
    pub queued: u64,
    /// Times that a stream ran dry.
    pub glitches: u64,
    /// Most bytes of buffers in use.
    pub memory: u64,
    /// Seconds from request to playback, in order of length. Who waits at the end has waited till
    /// then.
    pub startups: Vec<f64>,
}

impl Report {
    /// Mean start-up.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.startups.iter().sum::<f64>() / self.startups.len().max(1) as f64
    }

    /// The start-up that a share of the requests did not exceed.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        let last = self.startups.len().saturating_sub(1);
        self.startups.get((share * last as f64).round() as usize).copied().unwrap_or(0.0)
    }
}

/// Rounds of fixed length for a load.
fn rounds(load: &Load) -> Result<Rounds, SimError> {
    let disk = match load.device {
        DeviceKind::Table1 => Disk::table_1(),
        DeviceKind::Disk => Disk::modern(),
        _ => return Err(SimError::Usage("rounds need a disk: --device table1|disk")),
    };
    let model = Model::new(&disk, Variant::default(), load.rate, load.round);
    let round = (load.round * 1e9) as u64;
    let places = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    Ok(match load.scheme {
        Scheme::Sweep => Rounds::sweep(round, places(model.sweep())),
        Scheme::Sp | Scheme::Gradual => {
            let depth = if load.scheme == Scheme::Sp { load.k.max(2) - 1 } else { 1 };
            let carried = model.sweep_and_prefetch(depth, load.cache);
            let (v, m) = (places(carried.v), places(carried.prefetching));
            if load.scheme == Scheme::Gradual {
                Rounds::gradual(round, v, m)
            } else {
                Rounds::sweep_and_prefetch(round, v, m, places(carried.depth))
            }
        }
        _ => Rounds::gpmp(round, places(model.gpmp(load.k).v), places(load.k)),
    })
}

/// The machine for a load, its chunk, and its places.
fn machine(load: &Load) -> Result<(Machine, u64, Option<u64>), SimError> {
    let mut config = Config { request: 1 << 30, ..Config::default() };
    let mut places = None;
    if load.scheme == Scheme::Ring {
        let assurance = load.statistical.map_or(Assurance::Deterministic, Assurance::Statistical);
        let chunk = ((load.rate / 16.0) as u64).clamp(4096, 256 << 10) / 4096 * 4096;
        let memory = load.memory as u64;
        config.admission = AdmissionConfig { assurance, memory, chunk, ..config.admission };
    } else {
        let rounds = rounds(load)?;
        // Chunks are the paper's blocks.
        let chunk = (load.rate * load.round).ceil() as u64;
        let blocks = u64::from(rounds.streams + 1) * u64::from(rounds.depth + 3);
        config.admission = AdmissionConfig { memory: blocks * chunk, chunk, ..config.admission };
        config.scheme = Order::Rounds(rounds);
        places = Some(u64::from(rounds.streams));
    }
    config.request = config.request.max(config.admission.chunk);
    let chunk = config.admission.chunk;
    Ok((Machine::new(load.device.profile(), config)?, chunk, places))
}

/// Titles in parts of the device of equal size, each 90 to 120 minutes long.
fn titles(load: &Load, rate: &Rate, rng: &mut Rng) -> Result<Vec<Layout>, SimError> {
    let part = load.device.profile().capacity / load.titles.0.max(1) / 4096 * 4096;
    let titles = (0..load.titles.0).map(|at| {
        let seconds = SHORTEST + (LONGEST - SHORTEST) * rng.unit();
        let bytes = rate.bytes_at((seconds * 1e9) as u64);
        partition(at * part, part.min(bytes), bytes, part)
    });
    let mut titles: Vec<Layout> = titles.collect::<Result<_, _>>()?;
    rng.shuffle(&mut titles);
    Ok(titles)
}

/// Sums of the weights of titles up to each (Zipf).
fn popularity((titles, exponent): (u64, f64)) -> Vec<f64> {
    let mut sum = 0.0;
    let sums = (1..=titles).map(|rank| {
        sum += (rank as f64).powf(-exponent);
        sum
    });
    sums.collect()
}

/// Seconds that clients waited, until the end if they still do.
fn waits(driver: &Driver, arrived: &[Tick], waiting: &[Tick], end: Tick) -> Vec<f64> {
    let seconds = |from: Tick, to: Tick| (to.0 - from.0) as f64 / 1e9;
    let started = driver.outcome.startups.iter();
    let started = started.map(|(stream, at, _)| seconds(arrived[stream.0 as usize], *at));
    started.chain(waiting.iter().map(|from| seconds(*from, end))).collect()
}

/// Runs a load.
///
/// # Errors
/// [`SimError`] for numbers that make no system.
pub fn run(load: &Load) -> Result<Report, SimError> {
    let mut rng = Rng::new(load.seed);
    let rate = Rate::constant(load.rate as u64).map_err(|_| SimError::Usage("rate of 0"))?;
    let (machine, chunk, places) = machine(load)?;
    let mut driver = Driver::new(machine, Device::new(load.device, rng.bits()), chunk);
    let titles = titles(load, &rate, &mut rng)?;
    let sums = popularity(load.titles);
    let all = sums.last().copied().ok_or(SimError::Usage("give titles"))?;
    let slice = Tick::SECOND / RETRIES;
    let end = Tick((load.duration * 1e9) as u64);
    let mut arrived: Vec<Tick> = Vec::new();
    let mut wanted: Vec<usize> = Vec::new();
    let mut queue: VecDeque<u64> = VecDeque::new();
    let gap = |rng: &mut Rng| (-(1.0 - rng.unit()).ln() / load.arrivals * 1e9) as u64;
    let mut next = Tick(gap(&mut rng));
    let (mut now, mut queued, mut left) = (Tick(0), 0, u64::MAX);
    while now < end {
        now = now.after(slice);
        // The first who waits tries again when somebody has left.
        if driver.outcome.ended != left
            && let Some(stream) = queue.pop_front()
        {
            left = driver.outcome.ended;
            let before = driver.outcome.refused;
            let title = wanted[stream as usize];
            driver.join_at(driver.now(), stream, title as u64, &rate, &titles[title]);
            driver.run_until(driver.now());
            if driver.outcome.refused > before {
                queue.push_front(stream);
            } else {
                left = u64::MAX;
            }
        }
        while next <= now {
            driver.run_until(next);
            let stream = arrived.len() as u64;
            let title = sums.partition_point(|sum| *sum <= rng.unit() * all).min(titles.len() - 1);
            arrived.push(next);
            wanted.push(title);
            let before = driver.outcome.refused;
            if queue.is_empty() {
                driver.join_at(next, stream, title as u64, &rate, &titles[title]);
                driver.run_until(next);
            }
            if !queue.is_empty() || driver.outcome.refused > before {
                queue.push_back(stream);
                queued += 1;
                left = driver.outcome.ended;
            }
            next = next.after(gap(&mut rng).max(1));
        }
        driver.run_until(now);
    }
    let waiting: Vec<Tick> = queue.iter().map(|stream| arrived[*stream as usize]).collect();
    let mut startups = waits(&driver, &arrived, &waiting, end);
    startups.sort_by(f64::total_cmp);
    Ok(Report {
        places,
        requests: arrived.len() as u64,
        started: driver.outcome.startups.len() as u64,
        queued,
        glitches: driver.outcome.glitches.len() as u64,
        memory: driver.machine.memory().1,
        startups,
    })
}

/// One load, as the arguments have it.
///
/// # Errors
/// [`SimError`] for numbers that make no system.
pub fn table(args: &StreamsArgs) -> Result<Table, SimError> {
    let load = Load {
        device: args.device,
        scheme: args.policy,
        rate: args.stream_rate(),
        round: args.round(),
        k: args.k.unwrap_or(6),
        cache: args.disk_cache_bytes.unwrap_or(f64::MAX),
        memory: args.memory,
        statistical: args.statistical,
        titles: (args.titles, args.zipf),
        arrivals: args.arrivals_per_hour / 3600.0,
        duration: args.hours * 3600.0,
        seed: args.seed,
    };
    let report = run(&load)?;
    let columns = vec![
        "places",
        "requests",
        "started",
        "queued",
        "glitches",
        "memory_bytes",
        "startup_mean_s",
        "startup_p50_s",
        "startup_p95_s",
        "startup_p99_s",
    ];
    let second = |value: f64| format!("{value:.3}");
    let row = vec![
        report.places.map_or(String::from("-"), |places| places.to_string()),
        report.requests.to_string(),
        report.started.to_string(),
        report.queued.to_string(),
        report.glitches.to_string(),
        report.memory.to_string(),
        second(report.mean()),
        second(report.quantile(0.5)),
        second(report.quantile(0.95)),
        second(report.quantile(0.99)),
    ];
    Ok(Table { columns, rows: vec![row], notes: Vec::new(), chart: None })
}
