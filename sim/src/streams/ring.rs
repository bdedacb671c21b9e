//! The elastic ring at its limits: a number of streams for which admission is not asked.

use forebay_core::streams::admission::{AdmissionConfig, Assurance};
use forebay_core::streams::layout::{Extent, Layout};
use forebay_core::streams::machine::{Config, Machine};
use forebay_core::streams::rate::Rate;
use forebay_core::unit::Tick;

use super::device::{Device, DeviceKind};
use super::driver::Driver;
use super::{StreamsArgs, Table};
use crate::SimError;
use crate::rng::Rng;

/// Deviations of a sweep for which streams have headroom.
const DEVIATIONS: f64 = 6.0;
/// Bytes of a chunk: small, since many streams share little memory.
const CHUNK: u64 = 4096;

/// What is tried.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    /// On what.
    pub device: DeviceKind,
    /// Streams.
    pub streams: u64,
    /// Bytes a second of each.
    pub rate: u64,
    /// Nanoseconds of a sweep.
    pub cycle: u64,
    /// Bytes of buffers.
    pub memory: u64,
    /// Sweeps.
    pub sweeps: u64,
    /// Where the files are, and how the disk turns.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Streams that play.
    pub playing: u64,
    /// Times that one ran dry.
    pub underflows: u64,
    /// Most bytes of buffers in use.
    pub memory: u64,
    /// Visits out of order.
    pub early: u64,
    /// Sweeps.
    pub sweeps: u64,
}

/// A file that goes round and round in a part of the device: its next part is brought in from
/// elsewhere whenever one has been played. It begins `phase` bytes before the end of the part.
///
/// # Errors
/// [`SimError::Usage`] if it is too long for its part.
pub fn partition(start: u64, part: u64, bytes: u64, phase: u64) -> Result<Layout, SimError> {
    let wrong = SimError::Usage("too many or too long streams for the device");
    if part == 0 || bytes / part > 100_000 {
        return Err(wrong);
    }
    let mut extents = Vec::new();
    let (mut logical, mut ahead) = (0, phase.clamp(1, part));
    while logical < bytes {
        let length = ahead.min(bytes - logical);
        extents.push(Extent { logical, physical: start + part - ahead, bytes: length });
        (logical, ahead) = (logical + length, part);
    }
    Layout::new(&extents).map_err(|_| wrong)
}

/// Runs one trial. Streams begin one after the other, as fast as the ring takes them.
///
/// # Errors
/// [`SimError`] for numbers that make no machine.
pub fn run(trial: &Trial) -> Result<Verdict, SimError> {
    let profile = trial.device.profile();
    let admission = AdmissionConfig {
        assurance: Assurance::Statistical(DEVIATIONS),
        cycles: vec![trial.cycle],
        margin: 0.0,
        reserve: 0.0,
        joins: 0,
        memory: trial.memory,
        chunk: CHUNK,
    };
    let config =
        Config { admission, enforce: false, request: 1 << 30, interval: 0, ..Config::default() };
    let capacity = profile.capacity;
    let machine = Machine::new(profile, config)?;
    let mut driver = Driver::new(machine, Device::new(trial.device, trial.seed), CHUNK);
    let rate = Rate::constant(trial.rate).map_err(|_| SimError::Usage("a stream needs a rate"))?;
    let end = Tick(trial.cycle.saturating_mul(trial.sweeps));
    // One sweep more than is played, in parts that all streams together need half of the device for.
    let bytes = rate.bytes_at(end.0.saturating_add(trial.cycle));
    let part = capacity / (2 * trial.streams.max(1)) / CHUNK * CHUNK;
    let mut places = Rng::new(trial.seed ^ 0x5eed);
    let mut place = |_| places.between(0, capacity.saturating_sub(part) / CHUNK) * CHUNK;
    // Started in the order of position, the first fillings are the first sweep.
    let mut starts: Vec<u64> = (0..trial.streams).map(&mut place).collect();
    starts.sort_unstable();
    for (stream, start) in (0..).zip(starts) {
        let phase = places.between(1, part / CHUNK) * CHUNK;
        let layout = partition(start, part, bytes, phase)?;
        driver.join_at(Tick(0), stream, stream, &rate, &layout);
    }
    driver.run_until(end);
    let counters = driver.machine.counters();
    Ok(Verdict {
        playing: (driver.playing() - driver.waiting()) as u64,
        underflows: driver.outcome.glitches.len() as u64,
        memory: driver.machine.memory().1,
        early: counters.early,
        sweeps: counters.sweeps,
    })
}

/// A trial for each placement.
///
/// # Errors
/// [`SimError`] for numbers that make no machine.
pub fn table(args: &StreamsArgs) -> Result<Table, SimError> {
    let mut rows = Vec::new();
    let mut clean = 0;
    for placement in 0..args.placements {
        let trial = Trial {
            device: args.device,
            streams: args.streams,
            rate: args.stream_rate() as u64,
            cycle: (args.cycle_s * 1e9) as u64,
            memory: args.memory as u64,
            sweeps: args.sweeps,
            seed: args.seed + placement,
        };
        let verdict = run(&trial)?;
        let held = verdict.underflows == 0 && verdict.playing == args.streams;
        clean += u64::from(held);
        let fields = [
            trial.seed,
            args.streams,
            verdict.playing,
            verdict.underflows,
            verdict.memory,
            verdict.early,
            verdict.sweeps,
        ];
        rows.push(fields.iter().map(ToString::to_string).collect());
    }
    let columns =
        vec!["placement", "streams", "playing", "underflows", "memory_bytes", "early", "sweeps"];
    let notes = vec![format!("{clean} of {} placements without underflow", args.placements)];
    Ok(Table { columns, rows, notes, chart: None })
}
