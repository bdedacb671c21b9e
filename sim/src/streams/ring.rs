//! The elastic ring at its limits: a number of streams for which admission is not asked.

use forebay_core::streams::admission::{Admission, AdmissionConfig, Assurance};
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
pub(super) const CHUNK: u64 = 4096;
/// Bytes of a read: a visit has several, which follow each other on the disk, so that a stream has its
/// first data before the last of them.
pub(super) const REQUEST: u64 = 64 << 10;

/// What is tried.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    /// On what.
    pub device: DeviceKind,
    /// Streams.
    pub streams: u64,
    /// Bytes a second of each.
    pub rate: u64,
    /// Nanoseconds of a sweep; 0 for as many as the memory allows.
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
    /// Nanoseconds of a sweep.
    pub cycle: u64,
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

/// What the ring keeps to in a trial: nothing is set aside for others.
fn admission(trial: &Trial, cycle: u64) -> AdmissionConfig {
    AdmissionConfig {
        assurance: Assurance::Statistical(DEVIATIONS),
        cycles: vec![cycle],
        margin: 0.0,
        reserve: 0.0,
        least: 0.0,
        startup: u64::MAX,
        joins: 0,
        memory: trial.memory,
        chunk: CHUNK,
    }
}

/// The longest cycle for a trial's memory. Streams that are served one after the other in a sweep that
/// takes `S` have consumed for `S / 2` on average since their visits: together they hold
/// `sum of c (P + H - S / 2)` and two chunks for each, and what is being read; a twentieth is left,
/// since chance has them hold more at times.
pub(super) fn longest_cycle(trial: &Trial, rate: &Rate, layouts: &[Layout], slowdown: f64) -> u64 {
    let holds = |cycle: u64| {
        let mut admission = Admission::new(trial.device.profile(), admission(trial, cycle));
        admission.slow_down(slowdown);
        let demand = |layout| admission.demand(rate, layout, 0);
        let demands: Vec<_> = layouts.iter().map(demand).collect();
        let plan = admission.unchecked(&demands);
        let full = cycle + plan.headroom;
        let each = rate.most_in(full - plan.busy.min(cycle) / 2);
        (each + 2 * CHUNK).saturating_mul(trial.streams) + rate.most_in(full)
    };
    let (mut low, mut high) = (Tick::SECOND / 100, 60 * Tick::SECOND);
    while high - low > Tick::SECOND / 1000 {
        let middle = low.midpoint(high);
        if holds(middle) <= trial.memory / 20 * 19 {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Runs one trial on files at random places. Streams begin one after the other, as fast as the ring
/// takes them.
///
/// # Errors
/// [`SimError`] for numbers that make no machine.
pub fn run(trial: &Trial) -> Result<Verdict, SimError> {
    let rate = Rate::constant(trial.rate).map_err(|_| SimError::Usage("a stream needs a rate"))?;
    let capacity = trial.device.profile().capacity;
    let part = capacity / (2 * trial.streams.max(1)) / CHUNK * CHUNK;
    let mut places = Rng::new(trial.seed ^ 0x5eed);
    let mut place = |_| places.between(0, capacity.saturating_sub(part) / CHUNK) * CHUNK;
    // Started in the order of position, the first fillings are the first sweep.
    let mut starts: Vec<u64> = (0..trial.streams).map(&mut place).collect();
    starts.sort_unstable();
    let phases: Vec<u64> = starts.iter().map(|_| places.between(1, part / CHUNK) * CHUNK).collect();
    let mut cycle = trial.cycle;
    if cycle == 0 {
        let whole = |start: &u64| partition(*start, part, part, part);
        let layouts = starts.iter().map(whole).collect::<Result<Vec<_>, _>>()?;
        cycle = longest_cycle(trial, &rate, &layouts, 1.0);
    }
    // One sweep more than is played, in parts that all streams together need half of the device for.
    let bytes = rate.bytes_at(cycle.saturating_mul(trial.sweeps).saturating_add(cycle));
    let layouts = starts.iter().zip(phases);
    let layouts = layouts.map(|(start, phase)| partition(*start, part, bytes, phase));
    play(&Trial { cycle, ..*trial }, &rate, &layouts.collect::<Result<Vec<_>, _>>()?)
}

/// Runs one trial on these files, of which all streams together play one each.
///
/// # Errors
/// [`SimError`] for numbers that make no machine.
pub fn play(trial: &Trial, rate: &Rate, layouts: &[Layout]) -> Result<Verdict, SimError> {
    play_on(Device::new(trial.device, trial.seed), trial, rate, layouts)
}

/// The same on a device that may be slower than it should be.
pub(super) fn play_on(
    device: Device,
    trial: &Trial,
    rate: &Rate,
    layouts: &[Layout],
) -> Result<Verdict, SimError> {
    let cycle = match trial.cycle {
        0 => longest_cycle(trial, rate, layouts, device.slowdown),
        cycle => cycle,
    };
    let admission = admission(trial, cycle);
    let config =
        Config { admission, enforce: false, request: REQUEST, interval: 0, ..Config::default() };
    let machine = Machine::new(trial.device.profile(), config)?;
    let mut driver = Driver::new(machine, device, CHUNK);
    for (stream, layout) in (0..).zip(layouts) {
        driver.join_at(Tick(0), stream, stream, rate, layout);
    }
    driver.run_until(Tick(cycle.saturating_mul(trial.sweeps)));
    Ok(verdict(&driver, cycle))
}

/// What a driver's run has come to.
fn verdict(driver: &Driver, cycle: u64) -> Verdict {
    let counters = driver.machine.counters();
    Verdict {
        cycle,
        playing: (driver.playing() - driver.waiting()) as u64,
        underflows: driver.outcome.glitches.len() as u64,
        memory: driver.machine.memory().1,
        early: counters.early,
        sweeps: counters.sweeps,
    }
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
            cycle: (args.cycle_s.unwrap_or(0.0) * 1e9) as u64,
            memory: args.memory as u64,
            sweeps: args.sweeps,
            seed: args.seed + placement,
        };
        let verdict = run(&trial)?;
        let held = verdict.underflows == 0 && verdict.playing == args.streams;
        clean += u64::from(held);
        let fields = [
            args.streams,
            verdict.playing,
            verdict.underflows,
            verdict.memory,
            verdict.early,
            verdict.sweeps,
        ];
        let mut row = vec![trial.seed.to_string(), format!("{:.3}", verdict.cycle as f64 / 1e9)];
        row.extend(fields.iter().map(ToString::to_string));
        rows.push(row);
    }
    let columns = vec![
        "placement",
        "cycle_s",
        "streams",
        "playing",
        "underflows",
        "memory_bytes",
        "early",
        "sweeps",
    ];
    let notes = vec![format!("{clean} of {} placements without underflow", args.placements)];
    Ok(Table { columns, rows, notes, chart: None })
}
