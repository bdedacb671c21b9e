//! What rounds of fixed length carry, by arithmetic: Sweep, Sweep & Prefetch, Gradual Prefetching and
//! Grouped Periodic Multiround Prefetching of Harizopoulos, Harizakis, Triantafillou ("Hierarchical
//! Caching and Prefetching for Continuous Media Servers with Smart Disks", IEEE Concurrency 8(3),
//! 2000), on a device that takes a constant time to get to a block.
//!
//! With `o` seconds to get to a block, `t` to read it and rounds of `T`:
//! - Sweep: every stream reads a block a round, `N (o + t) <= T`.
//! - Sweep & Prefetch: `v` blocks a round are got to; of those, `m` are followed by the next `u`
//!   blocks of the same stream, which wait in the device's buffer: `v (o + t) + m u t <= T`,
//!   `N = v + m u`, `m <= v`, `m u (u + 1) / 2` blocks in the buffer. The paper has `u = 1`.
//! - Gradual Prefetching: the same, but half of the streams prefetch from the start.
//! - GPMP: `v` streams of a group read `k` blocks a round, one of `k` groups: `v (o + k t) <= T`,
//!   `N = v k`.

use serde::Serialize;

/// Quotients this close below a whole number are that number: decimal inputs that divide exactly do
/// not always in binary.
const NEARLY: f64 = 1e-9;
/// More streams than any device has.
const MAX: f64 = 1e9;

/// What the arithmetic is about.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Model {
    /// Seconds to get to a block.
    pub overhead: f64,
    /// Bytes a second that the device reads.
    pub device_rate: f64,
    /// Bytes a second of a stream.
    pub stream_rate: f64,
    /// Seconds of a round.
    pub round: f64,
}

/// What a scheme carries.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Outcome {
    /// Streams.
    pub streams: u64,
    /// Blocks got to in a round.
    pub v: u64,
    /// Blocks in a round that are read without getting to them.
    pub p: u64,
    /// Bytes of buffers, on the host and in the device.
    pub memory_bytes: f64,
    /// Mean seconds from a request to the start of playback, when there is room.
    pub startup_mean_s: f64,
    /// Longest; when only the last group has room, with GPMP.
    pub startup_max_s: f64,
}

/// A model that is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "rates and rounds must be positive, overheads not negative, k at least 1 and at most 10000"
)]
pub struct BadModel;

fn whole(quotient: f64) -> u64 {
    // The distance below which rounding errors lie grows with the number.
    let floor = (quotient + NEARLY * quotient.abs().max(1.0)).floor();
    floor.clamp(0.0, MAX) as u64
}

impl Model {
    fn check(&self, k: u64) -> Result<(), BadModel> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let rates = positive(self.device_rate) && positive(self.stream_rate);
        let times = positive(self.round) && self.overhead.is_finite() && self.overhead >= 0.0;
        if rates && times && (1..=10_000).contains(&k) { Ok(()) } else { Err(BadModel) }
    }

    /// Bytes that a stream consumes in a round.
    #[must_use]
    pub fn block(&self) -> f64 {
        self.stream_rate * self.round
    }

    /// Seconds to read a block.
    #[must_use]
    pub fn transfer(&self) -> f64 {
        self.block() / self.device_rate
    }

    /// Sweep, double buffers.
    ///
    /// # Errors
    /// [`BadModel`].
    pub fn sweep(&self) -> Result<Outcome, BadModel> {
        self.check(1)?;
        let streams = whole(self.round / (self.overhead + self.transfer()));
        Ok(Outcome {
            streams,
            v: streams,
            p: 0,
            memory_bytes: 2.0 * streams as f64 * self.block(),
            startup_mean_s: 1.5 * self.round,
            startup_max_s: 2.0 * self.round,
        })
    }

    /// Sweep & Prefetch of `depth` blocks with so many bytes of buffer in the device: the most
    /// streams, with the least prefetching. Start-up is that of streams that are admitted when the
    /// device is full already, and so are triple-buffered.
    ///
    /// # Errors
    /// [`BadModel`].
    pub fn sweep_and_prefetch(&self, depth: u64, cache: Option<f64>) -> Result<Outcome, BadModel> {
        self.check(depth + 1)?;
        let (u, t) = (depth as f64, self.transfer());
        let waiting = u * (u + 1.0) / 2.0;
        let room = cache.map_or(u64::MAX, |bytes| whole(bytes / (self.block() * waiting.max(1.0))));
        let most = whole(self.round / (self.overhead + t));
        // From most blocks got to downwards; the first best has the least prefetching.
        let mut best = (most, 0);
        for v in (1..=most).rev() {
            let left = self.round - v as f64 * (self.overhead + t);
            let m = if depth == 0 { 0 } else { whole(left / (u * t)).min(room).min(v) };
            if v + m * depth > best.0 + best.1 * depth {
                best = (v, m);
            }
            if v * (1 + depth) < best.0 + best.1 * depth {
                break;
            }
        }
        let (v, m) = best;
        let streams = v + m * depth;
        let blocks = 2.0 * streams as f64 + m as f64 * waiting;
        Ok(Outcome {
            streams,
            v,
            p: m * depth,
            memory_bytes: blocks * self.block(),
            startup_mean_s: 2.5 * self.round,
            startup_max_s: 3.0 * self.round,
        })
    }

    /// Gradual Prefetching: carries what [`Self::sweep_and_prefetch`] of one block does, without the
    /// third buffer and the wait for it.
    ///
    /// # Errors
    /// [`BadModel`].
    pub fn gradual(&self, cache: Option<f64>) -> Result<Outcome, BadModel> {
        let full = self.sweep_and_prefetch(1, cache)?;
        let (startup_mean_s, startup_max_s) = (1.5 * self.round, 2.0 * self.round);
        Ok(Outcome { startup_mean_s, startup_max_s, ..full })
    }

    /// GPMP in `k` groups of equal size.
    ///
    /// # Errors
    /// [`BadModel`].
    pub fn gpmp(&self, k: u64) -> Result<Outcome, BadModel> {
        self.check(k)?;
        let v = whole(self.round / (self.overhead + k as f64 * self.transfer()));
        Ok(self.groups(v * k, v, k, 3.0))
    }

    /// GPMP in `k` groups, some with one stream more: only the epoch of `k` rounds has to suffice. A
    /// round with a visit more can end late by less than a round, for which each stream has a block
    /// more.
    ///
    /// # Errors
    /// [`BadModel`].
    pub fn gpmp_unequal(&self, k: u64) -> Result<Outcome, BadModel> {
        self.check(k)?;
        let each = self.overhead + k as f64 * self.transfer();
        let streams = whole(k as f64 * self.round / each);
        Ok(self.groups(streams, streams.div_ceil(k), k, 5.0))
    }

    /// Streams in groups hold half of what they read in an epoch on average, and `spare` half-blocks.
    fn groups(&self, streams: u64, v: u64, k: u64, spare: f64) -> Outcome {
        Outcome {
            streams,
            v,
            p: v * (k - 1),
            memory_bytes: streams as f64 * self.block() * (k as f64 + spare) / 2.0,
            startup_mean_s: 1.5 * self.round,
            startup_max_s: (k + 1) as f64 * self.round,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toy(round: f64) -> Model {
        Model { overhead: 0.015, device_rate: 10e6, stream_rate: 0.25e6, round }
    }

    #[test]
    fn toy_disk_then_the_figures_of_the_paper() {
        let sweep = toy(1.0).sweep().expect("a model");
        assert_eq!((sweep.streams, sweep.memory_bytes), (25, 12.5e6));
        let prefetch = toy(1.0).sweep_and_prefetch(1, Some(2e6)).expect("a model");
        assert_eq!((prefetch.v, prefetch.p, prefetch.streams), (20, 8, 28));
        assert_eq!(prefetch.memory_bytes, 16e6);
        let more = toy(1.0).sweep_and_prefetch(1, Some(3.5e6)).expect("a model");
        assert_eq!((more.v, more.p, more.streams), (16, 14, 30));
        let groups = toy(1.0).gpmp(6).expect("a model");
        assert_eq!((groups.v, groups.p, groups.streams), (6, 30, 36));
        assert_eq!((groups.memory_bytes, groups.startup_max_s), (40.5e6, 7.0));
        let unequal = toy(1.0).gpmp_unequal(4).expect("a model");
        assert_eq!((unequal.streams, unequal.v), (34, 9));
    }

    #[test]
    fn deeper_prefetch_then_never_fewer_streams_without_a_limit() {
        let one = toy(0.5).sweep_and_prefetch(1, None).expect("a model");
        let three = toy(0.5).sweep_and_prefetch(3, None).expect("a model");
        assert!(three.streams > one.streams, "{one:?} {three:?}");
        let none = toy(0.5).sweep_and_prefetch(0, None).expect("a model");
        assert_eq!(none.streams, toy(0.5).sweep().expect("a model").streams);
    }

    #[test]
    fn rounds_that_divide_exactly_then_the_whole_number() {
        // 0.3 / 0.1 and 0.7 / 0.1 are just below whole numbers in binary.
        for (round, overhead, streams) in [(0.3, 0.1, 3), (0.7, 0.1, 7), (1.1, 0.11, 10)] {
            let model = Model { overhead, device_rate: 1e18, stream_rate: 1.0, round };
            assert_eq!(model.sweep().expect("a model").streams, streams, "{round}");
        }
    }

    #[test]
    fn nonsense_then_refused() {
        assert_eq!(Model { device_rate: 0.0, ..toy(1.0) }.sweep(), Err(BadModel));
        assert_eq!(Model { overhead: f64::NAN, ..toy(1.0) }.sweep(), Err(BadModel));
        assert_eq!(toy(1.0).gpmp(0), Err(BadModel));
        assert_eq!(toy(1e-3).gpmp(3).expect("too short a round").streams, 0);
    }
}
