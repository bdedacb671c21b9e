//! What a service does and has done, as numbers.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Counts of durations in buckets that double from one millisecond to about 33 seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Observations no longer than 1, 2, 4, ... milliseconds each, and longer ones in the last.
    pub buckets: [u64; 17],
    /// Of all.
    pub sum_seconds: f64,
}

impl Histogram {
    pub(super) fn observe(&mut self, duration: Duration) {
        let millis = u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
        let index = (u64::BITS - millis.saturating_sub(1).leading_zeros()) as usize;
        self.buckets[index.min(self.buckets.len() - 1)] += 1;
        self.sum_seconds += duration.as_secs_f64();
    }

    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// One stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamLine {
    /// Its number.
    pub id: u64,
    /// What it plays.
    pub path: String,
    /// Bytes a second; 0 without a guarantee.
    pub rate: u64,
    /// `starting`, `playing`, `paused`, `idle`, `waiting` (for a place), `degraded`, `best-effort`,
    /// `failed`.
    pub state: String,
    /// Share of it that was given to the reader.
    pub done: f64,
    /// Times it had nothing when it should have had.
    pub glitches: u64,
}

/// Streams that are shown one by one, at most.
pub const LINES_MAX: usize = 1000;

/// What a service does and has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The directory.
    pub library: String,
    /// What is read from, and how.
    pub device: String,
    /// What the kernel allows the threads that read: priority for the processor and for I/O.
    #[serde(default)]
    pub priority: String,
    /// By which profile streams are admitted.
    pub profile: String,
    /// Observed service times over those of the profile.
    pub slowdown: f64,
    /// Streams with a guarantee, those that lost it included.
    pub guaranteed: u64,
    /// What they need together, in bytes a second.
    pub guaranteed_rate: u64,
    /// Those of them that have lost it at the moment.
    pub degraded: u64,
    /// Those of them that have given their places back, since nobody takes anything.
    #[serde(default)]
    pub idle: u64,
    /// Streams that wait for the first of those that ask for the same, to share what it reads.
    #[serde(default)]
    pub joining: u64,
    /// Streams without a guarantee.
    pub best_effort: u64,
    /// Time between visits of a stream.
    pub cycle_seconds: f64,
    /// Share of a cycle that the admitted streams may take.
    pub load: f64,
    /// Memory in use, in bytes.
    pub memory_used: u64,
    /// The most that was ever in use.
    pub memory_peak: u64,
    /// The limit.
    pub memory_limit: u64,
    /// Streams that were opened.
    pub opened: u64,
    /// Streams that were refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Clients that the server has turned away or cut off, by why: `client-connections`,
    /// `client-streams`, `client-rate`, `token`, `stalled`.
    #[serde(default)]
    pub turned_away: BTreeMap<String, u64>,
    /// Players of HLS and DASH that have a place.
    #[serde(default)]
    pub sessions: u64,
    /// Files that were looked at for their rates.
    #[serde(default)]
    pub probed: u64,
    /// Those of them of which none was found.
    #[serde(default)]
    pub without_rate: u64,
    /// Times a stream had nothing when it should have had, by cause.
    pub glitches: BTreeMap<String, u64>,
    /// How long they were late, in seconds.
    pub glitch_seconds: f64,
    /// Times a guarantee was taken away, and given back.
    pub degradations: u64,
    /// Times an idle stream gave its place back.
    #[serde(default)]
    pub parked: u64,
    /// Guarantees given back.
    pub restorations: u64,
    /// Streams that broke off because their file could not be read.
    pub broken: u64,
    /// Bytes read from the device.
    pub bytes_read: u64,
    /// Bytes that readers took.
    pub bytes_taken: u64,
    /// Bytes read for streams without a guarantee.
    pub bytes_best_effort: u64,
    /// Turns of the device that others had, for what is no stream.
    #[serde(default)]
    pub turns: u64,
    /// Visits of the machine.
    pub visits: u64,
    /// Visits out of order, to meet a deadline.
    pub early_visits: u64,
    /// Streams that came to share what another one reads.
    pub shared: u64,
    /// Bytes of beginnings of popular files that are at hand.
    #[serde(default)]
    pub beginnings_bytes: u64,
    /// Streams that have begun with one.
    #[serde(default)]
    pub beginnings_used: u64,
    /// Times a stream fell behind the others of its title and lost its place among them.
    #[serde(default)]
    pub behind: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Time from the request to the first bytes.
    pub startup: Histogram,
    /// Time of the device for one read.
    pub service: Histogram,
    /// Time from the end of a read until the driver has seen it: what a busy machine adds.
    pub hand_over: Histogram,
    /// Processor time of the driver, in seconds.
    pub driver_seconds: f64,
    /// Some of the streams.
    pub streams: Vec<StreamLine>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_when_observed_then_in_the_bucket_that_its_bound_says() {
        let mut histogram = Histogram::default();
        for (micros, bucket) in
            [(0, 0), (1_000, 0), (1_001, 1), (2_000, 1), (4_001, 3), (90_000_000, 16)]
        {
            histogram.observe(Duration::from_micros(micros));
            assert!(histogram.buckets[bucket] > 0, "{micros}");
        }
        assert_eq!(histogram.count(), 6);
    }
}
