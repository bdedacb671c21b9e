//! How many streams are admitted, which is what a service plays, beside what GPMP carries by
//! arithmetic in the same memory; and whether they play.

use forebay_core::streams::admission::{AdmissionConfig, Assurance};
use forebay_core::streams::layout::Layout;
use forebay_core::streams::machine::{Config, Machine};
use forebay_core::streams::rate::Rate;
use forebay_core::unit::Tick;

use super::device::Device;
use super::driver::Driver;
use super::figures::gpmp_most;
use super::{StreamsArgs, Table};
use crate::SimError;
use crate::rng::Rng;

/// Bytes of a sector of the disk.
const SECTOR: u64 = 512;
/// A chunk is this part of the memory, in whole sectors: the arithmetic of GPMP rounds nothing up.
const PARTS: u64 = 16_384;
/// Files begin at multiples of so many bytes.
const PLACE: u64 = 1024;
/// Of figure 4.
const MEMORIES: [f64; 9] = [2e6, 4e6, 7e6, 12e6, 17e6, 24e6, 30e6, 40e6, 64e6];
/// Seconds that a set is played after the last has asked.
pub const LENGTH: u64 = 300;

/// What came of one way to admit in one memory, over all placements.
#[derive(Debug, Clone, Default)]
pub struct Sums {
    /// Streams, or what they need over the rate of one.
    admitted: Vec<f64>,
    /// Times that one ran dry, and streams that never began.
    pub glitches: usize,
    /// Visits: each had a moment at which it had to be there.
    pub deadlines: u64,
    /// How many streams those were.
    streams: usize,
    /// Seconds, and seconds with the longest access times.
    startups: Vec<f64>,
    slowest_startups: Vec<f64>,
    /// Streams that began later than they were told.
    pub late: usize,
    /// Shares of the memory in use at most.
    used: Vec<f64>,
}

impl Sums {
    /// Streams admitted on average; of unequal rates what they need over the rate of one.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.admitted.iter().sum::<f64>() / self.admitted.len().max(1) as f64
    }

    fn least(&self) -> f64 {
        self.admitted.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The share of the memory that was in use at most.
    #[must_use]
    pub fn used(&self) -> f64 {
        self.used.iter().sum::<f64>() / self.used.len().max(1) as f64
    }

    /// Seconds in which 99 of 100 streams began.
    pub fn startup_p99(&mut self) -> f64 {
        p99(&mut self.startups)
    }

    /// The same if every access takes its longest; 0 if that was not tried.
    pub fn slowest_startup_p99(&mut self) -> f64 {
        p99(&mut self.slowest_startups)
    }

    /// The mean rate of the streams that were admitted, over the usual one.
    #[must_use]
    pub fn mean_rate(&self) -> f64 {
        self.admitted.iter().sum::<f64>() / self.streams.max(1) as f64
    }
}

fn p99(seconds: &mut [f64]) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() * 99 / 100).copied().unwrap_or(0.0)
}

/// What GPMP carries by arithmetic of streams of this rate, over the usual one, at which `mean` counts as 1.
/// Many slow streams need more of the device than few fast ones: what was admitted of unequal rates is
/// compared with GPMP at their mean.
#[must_use]
pub fn gpmp(args: &StreamsArgs, memory: f64, mean: f64) -> f64 {
    gpmp_most(args.stream_rate() * mean, memory) as f64 * mean
}

impl std::fmt::Display for Sums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { glitches, deadlines, late, .. } = self;
        let (mean, least, used) = (self.mean(), self.least(), 100.0 * self.used());
        write!(
            f,
            "{mean:.1}, {least:.1} at least, {glitches} glitches in {deadlines}, {late} late, "
        )?;
        write!(f, "{used:.0} % of the memory used")
    }
}

/// Asks for streams at random places, a second apart, twice as many as the device could carry if it
/// never had to seek; plays those that are admitted. Who is refused does not come again.
fn play(
    args: &StreamsArgs,
    (memory, assurance, unequal): (f64, Assurance, bool),
    (seed, worst, length): (u64, bool, u64),
    sums: &mut Sums,
) -> Result<(), SimError> {
    let usual = args.stream_rate() as u64;
    let profile = args.device.profile();
    let count = (profile.fastest() / usual.max(1) as f64) as u64 * 2;
    let chunk = (memory as u64 / PARTS).next_multiple_of(SECTOR).max(SECTOR);
    let admission =
        AdmissionConfig { assurance, memory: memory as u64, chunk, ..AdmissionConfig::default() };
    let config = Config { admission, request: 1 << 30, interval: 0, ..Config::default() };
    let machine = Machine::new(profile.clone(), config)?;
    let mut device = Device::new(args.device, seed);
    device.worst = worst;
    let mut driver = Driver::new(machine, device, chunk);
    let mut random = Rng::new(seed ^ 0x7247);
    let mut rates = Vec::new();
    for stream in 0..count {
        // From a quarter of the usual rate to seven quarters.
        let rate = if unequal { usual / 4 * random.between(1, 7) } else { usual };
        let wrong = SimError::Usage("a stream needs a rate");
        let curve = Rate::constant(rate).map_err(|_| wrong)?;
        let bytes = curve.bytes_at((length + count) * Tick::SECOND);
        let last = profile.capacity.saturating_sub(bytes) / PLACE;
        let layout = Layout::contiguous(random.between(0, last) * PLACE, bytes);
        let layout = layout.map_err(|_| SimError::Usage("too long streams for the device"))?;
        driver.join_at(Tick(stream * Tick::SECOND), stream, stream, &curve, &layout);
        rates.push(rate);
    }
    driver.run_until(Tick((length + count) * Tick::SECOND));
    let outcome = &driver.outcome;
    let started = outcome.startups.iter().map(|(stream, _, _)| rates[stream.0 as usize]);
    sums.admitted.push(started.sum::<u64>() as f64 / usual as f64);
    sums.glitches += outcome.glitches.len() + driver.waiting();
    sums.deadlines += driver.machine.counters().visits;
    sums.streams += outcome.startups.len();
    let seconds = outcome.startups.iter().map(|(_, _, nanos)| *nanos as f64 / 1e9);
    if worst { &mut sums.slowest_startups } else { &mut sums.startups }.extend(seconds);
    sums.late += outcome.broken_promises.len();
    sums.used.push(driver.machine.memory().1 as f64 / memory);
    Ok(())
}

/// What is admitted in one memory, in all placements, each played for so many seconds; for certain, or
/// with the deviations of the arguments. What is admitted for certain is also played with the longest
/// access times.
///
/// # Errors
/// [`SimError`] for numbers that make no machine.
pub fn sums(args: &StreamsArgs, memory: f64, unequal: bool, length: u64) -> Result<Sums, SimError> {
    let assurance = args.statistical.map_or(Assurance::Deterministic, Assurance::Statistical);
    let times = if args.statistical.is_some() { &[false][..] } else { &[false, true][..] };
    let mut sums = Sums::default();
    for placement in 0..args.placements {
        for worst in times {
            let run = (args.seed + placement, *worst, length);
            play(args, (memory, assurance, unequal), run, &mut sums)?;
        }
    }
    Ok(sums)
}

/// A row for each memory of figure 4, or of the arguments, and each kind of rates, for one way to admit.
///
/// # Errors
/// [`SimError`] for numbers that make no machine.
pub fn table(args: &StreamsArgs) -> Result<Table, SimError> {
    let (mut rows, mut all) = (Vec::new(), Sums::default());
    let given = args.memories.iter().map(|memory| memory * 1e6);
    let usual = MEMORIES.into_iter().filter(|_| args.memories.is_empty());
    for memory in given.chain(usual) {
        for unequal in [false, true] {
            let mut sums = sums(args, memory, unequal, LENGTH)?;
            let gpmp = gpmp(args, memory, if unequal { sums.mean_rate() } else { 1.0 });
            let rates = if unequal { "unequal" } else { "equal" };
            let (startup, slowest) = (sums.startup_p99(), sums.slowest_startup_p99());
            eprintln!(
                "{} MB, {rates}: {sums}, start-up {startup:.2} and {slowest:.2} s, GPMP {gpmp:.1}",
                memory / 1e6
            );
            rows.push(vec![
                format!("{}", memory / 1e6),
                rates.to_owned(),
                format!("{gpmp:.1}"),
                format!("{:.1}", sums.mean()),
                format!("{:.1}", sums.least()),
                format!("{:.2}", sums.mean() / gpmp.max(1.0)),
                sums.glitches.to_string(),
                sums.deadlines.to_string(),
                format!("{startup:.2}"),
                format!("{slowest:.2}"),
                sums.late.to_string(),
                format!("{:.0}", 100.0 * sums.used()),
            ]);
            all.glitches += sums.glitches;
            all.deadlines += sums.deadlines;
            all.startups.append(&mut sums.startups);
        }
    }
    let columns = vec![
        "memory_MB",
        "rates",
        "gpmp",
        "admitted",
        "fewest",
        "admitted/gpmp",
        "glitches",
        "deadlines",
        "startup_p99_s",
        "with_longest_s",
        "started_late",
        "memory_used_%",
    ];
    Ok(Table { columns, rows, notes: notes(args, &mut all), chart: None })
}

fn notes(args: &StreamsArgs, all: &mut Sums) -> Vec<String> {
    let (way, times) = match args.statistical {
        Some(deviations) => (format!("statistical ({deviations} deviations)"), "random rotation"),
        None => ("deterministic".into(), "random rotation, and again with the longest times"),
    };
    let Sums { glitches, deadlines, .. } = *all;
    let startup = all.startup_p99();
    vec![
        format!("{way}: {glitches} glitches in {deadlines} deadlines, start-up p99 {startup:.2} s."),
        format!(
            "Streams that ask a second apart, in {} placements, as the service admits them; of unequal \
             rates (a quarter to seven quarters) what they need over the rate of one. Played for \
             {LENGTH} s more, with {times}.",
            args.placements
        ),
        "gpmp: arithmetic, at the best round of 0.1 to 8 s, random places, four deviations, nothing \
         kept for others; beside unequal rates at the mean of those that were admitted."
            .into(),
    ]
}
