//! Whether admission tells the truth: what it admits must play without a glitch, and of what it
//! refuses as little as possible would have played.

use forebay_core::streams::admission::{AdmissionConfig, Assurance};
use forebay_core::streams::layout::Layout;
use forebay_core::streams::machine::{Config, Machine};
use forebay_core::streams::rate::Rate;
use forebay_core::unit::Tick;

use super::device::Device;
use super::driver::Driver;
use super::ring::{self, CHUNK, Trial};
use super::{StreamsArgs, Table};
use crate::SimError;
use crate::rng::Rng;

/// Seconds that a set is played.
const LENGTH: u64 = 300;

/// A way to admit.
#[derive(Debug, Clone, Copy)]
struct Way {
    name: &'static str,
    assurance: Assurance,
}

/// Streams in the order in which they ask, each with a file somewhere on the device.
#[derive(Debug)]
struct Wishes {
    args: StreamsArgs,
    seed: u64,
    rate: Rate,
    layouts: Vec<Layout>,
}

/// As many streams as the device could carry if it never had to seek: no set of more can play.
fn wishes(args: &StreamsArgs, seed: u64) -> Result<Wishes, SimError> {
    let rate = args.stream_rate() as u64;
    let profile = args.device.profile();
    let count = (profile.fastest() / rate.max(1) as f64) as u64;
    let rate = Rate::constant(rate).map_err(|_| SimError::Usage("a stream needs a rate"))?;
    // They ask a second apart, and play on till the last of them has played for long enough.
    let bytes = rate.bytes_at((LENGTH + count) * Tick::SECOND);
    let mut places = Rng::new(seed ^ 0x7247);
    let last = profile.capacity.saturating_sub(bytes) / CHUNK;
    let layouts = (0..count).map(|_| Layout::contiguous(places.between(0, last) * CHUNK, bytes));
    let layouts = layouts.collect::<Result<Vec<_>, _>>();
    let layouts = layouts.map_err(|_| SimError::Usage("too long streams for the device"))?;
    Ok(Wishes { args: args.clone(), seed, rate, layouts })
}

impl Wishes {
    /// How many are admitted, and the glitches of these.
    fn admitted(&self, way: Way) -> Result<(u64, u64), SimError> {
        let admission = AdmissionConfig {
            assurance: way.assurance,
            memory: self.args.memory as u64,
            chunk: CHUNK,
            ..AdmissionConfig::default()
        };
        let config = Config { admission, request: 1 << 30, interval: 0, ..Config::default() };
        let machine = Machine::new(self.args.device.profile(), config)?;
        let device = Device::new(self.args.device, self.seed);
        let mut driver = Driver::new(machine, device, CHUNK);
        for (stream, layout) in (0..).zip(&self.layouts) {
            driver.join_at(Tick(stream * Tick::SECOND), stream, stream, &self.rate, layout);
        }
        driver.run_until(Tick((LENGTH + self.layouts.len() as u64) * Tick::SECOND));
        let outcome = &driver.outcome;
        Ok((outcome.admitted, outcome.glitches.len() as u64 + driver.waiting() as u64))
    }

    /// Whether the first of them would play if nobody were asked.
    fn would_play(&self, streams: u64) -> Result<bool, SimError> {
        let mut layouts = self.layouts[..streams as usize].to_vec();
        layouts.sort_unstable_by_key(|layout| layout.extents()[0].physical);
        let mut trial = Trial {
            device: self.args.device,
            streams,
            rate: self.args.stream_rate() as u64,
            cycle: 0,
            memory: self.args.memory as u64,
            sweeps: 0,
            seed: self.seed,
        };
        trial.cycle = ring::longest_cycle(&trial, &self.rate, &layouts);
        trial.sweeps = LENGTH * Tick::SECOND / trial.cycle.max(1);
        let verdict = ring::play(&trial, &self.rate, &layouts)?;
        Ok(verdict.underflows == 0 && verdict.playing == streams)
    }
}

/// A row for each way to admit, over all placements. Sets are of 1, 2, ... streams in the order in
/// which they ask.
///
/// # Errors
/// [`SimError`] for numbers that make no machine.
pub fn table(args: &StreamsArgs) -> Result<Table, SimError> {
    let statistical = Assurance::Statistical(args.statistical.unwrap_or(4.0));
    let ways = [
        Way { name: "deterministic", assurance: Assurance::Deterministic },
        Way { name: "statistical", assurance: statistical },
    ];
    let mut sums = [[0u64; 4]; 2];
    for placement in 0..args.placements {
        let wishes = wishes(args, args.seed + placement)?;
        let all = wishes.layouts.len() as u64;
        let mut admitted = [(0, 0); 2];
        for (way, admitted) in ways.iter().zip(&mut admitted) {
            *admitted = wishes.admitted(*way)?;
        }
        let fewest = admitted.iter().map(|(count, _)| *count).min().unwrap_or(0);
        let mut most = fewest;
        while most < all && wishes.would_play(most + 1)? {
            most += 1;
        }
        for ((count, glitches), sum) in admitted.iter().zip(&mut sums) {
            let numbers = [*count, *glitches, all - count, most.saturating_sub(*count)];
            sum.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
    }
    let row = |(way, [admitted, glitches, refused, playable]): (&Way, &[u64; 4])| {
        let share = 100.0 * *playable as f64 / (*refused).max(1) as f64;
        let counts = [admitted, glitches, refused, playable];
        let mut row = vec![way.name.to_owned()];
        row.extend(counts.iter().map(ToString::to_string));
        row.push(format!("{share:.1}"));
        row
    };
    let rows = ways.iter().zip(&sums).map(row).collect();
    let columns = vec![
        "admission",
        "admitted_sets",
        "glitches",
        "refused_sets",
        "would_play",
        "would_play_%",
    ];
    let notes = vec![format!(
        "Sets of 1 stream up to as many as the device reads without any seek, in {} placements; \
         would play: for {LENGTH} s, by a ring that refuses nobody and reads for nobody else.",
        args.placements
    )];
    Ok(Table { columns, rows, notes, chart: None })
}
