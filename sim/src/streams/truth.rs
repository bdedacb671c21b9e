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

/// Seconds that a set is played, unless said otherwise.
pub const LENGTH: u64 = 300;

/// A way to admit, as it is configured unless said otherwise.
#[derive(Debug, Clone, Copy)]
struct Way {
    name: &'static str,
    assurance: Assurance,
}

impl Way {
    /// What the streams may use of the device at most: a set would play if it does in this share of it.
    fn share() -> f64 {
        1.0 - AdmissionConfig::default().least
    }
}

/// What came of a way to admit, over all placements.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    admitted: u64,
    glitches: u64,
    refused: u64,
    /// Refused ones that play in a run with random rotation.
    lucky: u64,
    /// Refused ones that nothing can make run dry.
    certain: u64,
}

/// Streams in the order in which they ask, each with a file somewhere on the device.
#[derive(Debug)]
struct Requests {
    args: StreamsArgs,
    seed: u64,
    length: u64,
    rate: Rate,
    layouts: Vec<Layout>,
}

/// As many streams as the device could carry if it never had to seek: no set of more can play.
fn requests(args: &StreamsArgs, seed: u64, length: u64) -> Result<Requests, SimError> {
    let rate = args.stream_rate() as u64;
    let profile = args.device.profile();
    let count = (profile.fastest() / rate.max(1) as f64) as u64;
    let rate = Rate::constant(rate).map_err(|_| SimError::Usage("a stream needs a rate"))?;
    // They ask a second apart, and play on till the last of them has played for long enough.
    let bytes = rate.bytes_at((length + count) * Tick::SECOND);
    let mut places = Rng::new(seed ^ 0x7247);
    let last = profile.capacity.saturating_sub(bytes) / CHUNK;
    let layouts = (0..count).map(|_| Layout::contiguous(places.between(0, last) * CHUNK, bytes));
    let layouts = layouts.collect::<Result<Vec<_>, _>>();
    let layouts = layouts.map_err(|_| SimError::Usage("too long streams for the device"))?;
    Ok(Requests { args: args.clone(), seed, length, rate, layouts })
}

impl Requests {
    /// How many are admitted, and the glitches of these, or of as many with the longest access times.
    fn admitted(&self, way: Way) -> Result<(u64, u64), SimError> {
        let admission = AdmissionConfig {
            assurance: way.assurance,
            memory: self.args.memory as u64,
            chunk: CHUNK,
            ..AdmissionConfig::default()
        };
        let config = Config { admission, request: 1 << 30, interval: 0, ..Config::default() };
        let sure = way.assurance == Assurance::Deterministic;
        let (mut admitted, mut glitches) = (u64::MAX, 0);
        for worst in [false, true].into_iter().take(if sure { 2 } else { 1 }) {
            let machine = Machine::new(self.args.device.profile(), config.clone())?;
            let mut device = Device::new(self.args.device, self.seed);
            device.worst = worst;
            let mut driver = Driver::new(machine, device, CHUNK);
            for (stream, layout) in (0..).zip(&self.layouts) {
                driver.join_at(Tick(stream * Tick::SECOND), stream, stream, &self.rate, layout);
            }
            driver.run_until(Tick((self.length + self.layouts.len() as u64) * Tick::SECOND));
            let outcome = &driver.outcome;
            admitted = admitted.min(outcome.admitted);
            glitches += outcome.glitches.len() as u64 + driver.waiting() as u64;
        }
        Ok((admitted, glitches))
    }

    /// Whether the first of them play in this share of the device if nobody is asked.
    fn would_play(&self, streams: u64, share: f64) -> Result<bool, SimError> {
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
        let mut device = Device::new(self.args.device, self.seed);
        device.slowdown = 1.0 / share;
        trial.cycle = ring::longest_cycle(&trial, &self.rate, &layouts, device.slowdown);
        trial.sweeps = self.length * Tick::SECOND / trial.cycle.max(1);
        let verdict = ring::play_on(device, &trial, &self.rate, &layouts)?;
        Ok(verdict.underflows == 0 && verdict.playing == streams)
    }

    /// Whether nothing that the deterministic model allows makes one of the first of them run dry in
    /// this share of the device. It allows that every access takes its longest, and that clients
    /// pause when they have just been served and go on later: so each has its own share of the memory
    /// and no more. The worst sequence: all are full and go on together, and sweeps follow each other.
    fn survives(&self, streams: u64, share: f64) -> bool {
        let profile = self.args.device.profile();
        let rate = self.args.stream_rate();
        let full = self.args.memory / (rate * streams as f64);
        let mut extents: Vec<_> =
            self.layouts[..streams as usize].iter().map(|layout| layout.extents()[0]).collect();
        extents.sort_unstable_by_key(|extent| extent.physical);
        let mut served = vec![0.0; extents.len()];
        let (mut now, mut head, mut before) = (0.0, 0, 0.0);
        loop {
            let begun: f64 = now;
            for (extent, served) in extents.iter().zip(&mut served) {
                let access = profile.access(extent.physical.abs_diff(head)).worst;
                let end = extent.physical + extent.bytes - 1;
                let read = rate * (now - *served) / profile.slowest_in(extent.physical, end);
                let ready = now + (access + read) / share;
                if ready - *served > full {
                    return false;
                }
                (*served, now, head) = (now, ready, extent.physical);
            }
            let sweep = now - begun;
            if (sweep - before).abs() < 1e-6 * sweep {
                return true;
            }
            before = sweep;
        }
    }

    /// How many more than `admitted` play, by a judge.
    fn more(
        &self,
        admitted: u64,
        judge: impl Fn(u64) -> Result<bool, SimError>,
    ) -> Result<u64, SimError> {
        let (all, mut most) = (self.layouts.len() as u64, admitted);
        while most < all && judge(most + 1)? {
            most += 1;
        }
        Ok(most - admitted)
    }
}

/// A row for each way to admit, over all placements, played for `length` seconds. Sets are of 1, 2, ... streams in the order in
/// which they ask.
///
/// # Errors
/// [`SimError`] for numbers that make no machine.
pub fn table(args: &StreamsArgs, length: u64) -> Result<Table, SimError> {
    let statistical = Assurance::Statistical(args.statistical.unwrap_or(4.0));
    let ways = [
        Way { name: "deterministic", assurance: Assurance::Deterministic },
        Way { name: "statistical", assurance: statistical },
    ];
    let mut sums = [Sums::default(); 2];
    let share = Way::share();
    for placement in 0..args.placements {
        let requests = requests(args, args.seed + placement, length)?;
        let all = requests.layouts.len() as u64;
        for (way, sum) in ways.iter().zip(&mut sums) {
            let (admitted, glitches) = requests.admitted(*way)?;
            sum.admitted += admitted;
            sum.glitches += glitches;
            sum.refused += all - admitted;
            sum.lucky += requests.more(admitted, |streams| requests.would_play(streams, share))?;
            sum.certain +=
                requests.more(admitted, |streams| Ok(requests.survives(streams, share)))?;
        }
    }
    let row = |(way, sum): (&Way, &Sums)| {
        let share = |of: u64| format!("{:.1}", 100.0 * of as f64 / sum.refused.max(1) as f64);
        let mut row = vec![way.name.to_owned()];
        row.extend([sum.admitted, sum.glitches, sum.refused].iter().map(ToString::to_string));
        row.extend([sum.lucky.to_string(), share(sum.lucky)]);
        row.extend([sum.certain.to_string(), share(sum.certain)]);
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
        "never_dry",
        "never_dry_%",
    ];
    let notes = vec![
        format!(
            "Sets of 1 stream up to as many as the device reads without any seek, in {} placements. \
             Those who judge leave {:.1} % of the device unused, as admission does at least.",
            args.placements,
            100.0 * (1.0 - share)
        ),
        format!(
            "would_play: refused sets that play for {length} s with random rotation, by a ring that \
             refuses nobody: the measure for statistical admission."
        ),
        "never_dry: refused sets that nothing can make run dry that the model allows (longest \
         access times, clients that pause when their buffers are full): the measure for \
         deterministic admission. Its glitches are also counted with the longest access times."
            .into(),
    ];
    Ok(Table { columns, rows, notes, chart: None })
}
