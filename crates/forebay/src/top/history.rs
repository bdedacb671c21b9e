//! What the view remembers: the last status and the rates between statuses.

use std::collections::VecDeque;
use std::time::Instant;

use crate::control::{BytesBySource, Status};

/// How many samples are remembered; as many as the widest terminal shows.
const SAMPLES_MAX: usize = 512;

/// What happened between two statuses, for each second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Opens.
    pub opens: f64,
    /// Hits per hundred opens; the last known where there were no opens.
    pub hit_percent: f64,
    /// Bytes by source, for each second.
    pub bytes: BytesBySource,
}

/// The last status and the samples before it.
#[derive(Debug)]
pub struct History {
    last: Status,
    at: Instant,
    samples: VecDeque<Sample>,
}

impl History {
    /// Starts with a first status.
    pub fn new(status: Status, at: Instant) -> Self {
        Self { last: status, at, samples: VecDeque::new() }
    }

    /// Adds a status. Counters that went back (another daemon) count from zero.
    pub fn push(&mut self, status: Status, at: Instant) {
        let seconds = at.duration_since(self.at).as_secs_f64().max(1e-3);
        let rate =
            |new: u64, old: u64| (new.checked_sub(old).unwrap_or(new) as f64 / seconds) as u64;
        let hits = status.hits.checked_sub(self.last.hits).unwrap_or(status.hits) as f64;
        let misses = status.misses.checked_sub(self.last.misses).unwrap_or(status.misses) as f64;
        let opens = hits + misses;
        let before = self.samples.back().map(|sample| sample.hit_percent);
        let known = before.or(status.hit_percent()).unwrap_or(0.0);
        let (new, old) = (status.bytes, self.last.bytes);
        self.samples.push_back(Sample {
            opens: opens / seconds,
            hit_percent: if opens > 0.0 { hits * 100.0 / opens } else { known },
            bytes: BytesBySource {
                tier: rate(new.tier, old.tier),
                backing: rate(new.backing, old.backing),
                spill: rate(new.spill, old.spill),
                filled: rate(new.filled, old.filled),
                peers: rate(new.peers, old.peers),
                owners: rate(new.owners, old.owners),
                flushed: rate(new.flushed, old.flushed),
            },
        });
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.last = status;
        self.at = at;
    }

    /// The last status.
    pub fn status(&self) -> &Status {
        &self.last
    }

    /// The newest sample.
    pub fn newest(&self) -> Sample {
        self.samples.back().copied().unwrap_or_default()
    }

    /// The last `count` values of something, oldest first.
    pub fn series(&self, count: usize, value: impl Fn(&Sample) -> f64) -> Vec<u64> {
        let skip = self.samples.len().saturating_sub(count);
        self.samples.iter().skip(skip).map(|sample| value(sample).round() as u64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn status(hits: u64, misses: u64, tier: u64) -> Status {
        Status {
            hits,
            misses,
            bytes: BytesBySource { tier, ..Default::default() },
            ..Status::default()
        }
    }

    #[test]
    fn push_when_time_passes_then_rates_are_per_second() {
        let start = Instant::now();
        let mut history = History::new(status(0, 0, 0), start);
        history.push(status(30, 10, 1000), start + Duration::from_secs(2));
        assert_eq!(history.newest().opens, 20.0);
        assert_eq!(history.newest().hit_percent, 75.0);
        assert_eq!(history.newest().bytes.tier, 500);
        history.push(status(30, 10, 1000), start + Duration::from_secs(3));
        assert_eq!(history.newest().hit_percent, 75.0);
        assert_eq!(history.series(9, |sample| sample.opens), [20, 0]);
    }

    #[test]
    fn push_when_counters_restart_then_nothing_overflows() {
        let start = Instant::now();
        let mut history = History::new(status(100, 100, 100), start);
        history.push(status(5, 5, 7), start + Duration::from_secs(1));
        assert_eq!(history.newest().opens, 10.0);
        assert_eq!(history.newest().bytes.tier, 7);
    }

    #[test]
    fn push_when_it_never_ends_then_memory_is_bounded() {
        let start = Instant::now();
        let mut history = History::new(status(0, 0, 0), start);
        for n in 0..2000u64 {
            history.push(status(n, 0, 0), start + Duration::from_secs(n + 1));
        }
        assert_eq!(history.series(usize::MAX, |_| 0.0).len(), SAMPLES_MAX);
    }
}
