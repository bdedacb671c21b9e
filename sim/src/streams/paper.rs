//! The paper's disk under its schemes: how many streams rounds of fixed length carry when a round may
//! overrun as rarely as a normal variable exceeds its mean by four deviations.
//!
//! Streams are at random places. A round gets to `v` of them in the order of position: the gaps
//! between `v` uniform places are distributed as Beta(1, v); rotation is uniform over a revolution;
//! the transfer rate is that of the place.

use forebay_core::streams::disk::Disk;

/// Deviations of a round that are allowed for.
pub const DEVIATIONS: f64 = 4.0;
/// Deepest prefetch that is tried.
pub const DEPTHS: u64 = 8;
const QUANTILES: u32 = 200;

/// How an access to the disk is taken.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Variant {
    /// A whole revolution for every access, not a random part of one.
    pub full_rotation: bool,
    /// Seconds of controller time for every access.
    pub controller: f64,
}

/// A disk that serves streams of one rate in rounds of one length.
#[derive(Debug, Clone)]
pub struct Model {
    round: f64,
    block: f64,
    /// Mean and variance of getting to a block, by the number of blocks.
    access: Vec<(f64, f64)>,
    /// Mean of seconds a byte, and its variance.
    inverse_rate: (f64, f64),
}

/// What a round carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Carried {
    /// Streams.
    pub streams: u64,
    /// Blocks that the round gets to.
    pub v: u64,
    /// Of those, the ones that are followed by prefetched blocks.
    pub prefetching: u64,
    /// How many follow.
    pub depth: u64,
}

/// Mean and variance of getting to one of `v` random places in order.
fn access(disk: &Disk, variant: Variant, v: u64) -> (f64, f64) {
    let (mut sum, mut squares, mut gaps, mut gap_squares, mut product) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for at in 0..QUANTILES {
        let q = (f64::from(at) + 0.5) / f64::from(QUANTILES);
        let gap = 1.0 - (1.0 - q).powf(1.0 / v.max(1) as f64);
        let seek = disk.seek_cylinders(gap * f64::from(disk.cylinders));
        sum += seek;
        squares += seek * seek;
        gaps += gap;
        gap_squares += gap * gap;
        product += gap * seek;
    }
    let count = f64::from(QUANTILES);
    let (mean, gap) = (sum / count, gaps / count);
    let (gap_variance, together) = (gap_squares / count - gap * gap, product / count - gap * mean);
    // Gaps add up to the disk, so that long ones go with short ones (Darling, "On a class of
    // problems related to the random division of an interval", Ann. Math. Stat. 24, 1953).
    let variance = squares / count - mean * mean - together * together / gap_variance;
    let turn = disk.revolution;
    let (wait, spread) =
        if variant.full_rotation { (turn, 0.0) } else { (turn / 2.0, turn * turn / 12.0) };
    (mean + wait + variant.controller, variance + spread)
}

impl Model {
    /// A model for a disk, a stream rate in bytes a second, and rounds in seconds.
    #[must_use]
    pub fn new(disk: &Disk, variant: Variant, stream_rate: f64, round: f64) -> Self {
        let block = stream_rate * round;
        let (outer, inner) = (disk.outer_rate, disk.inner_rate);
        let mean = (outer / inner).ln() / (outer - inner);
        // The mean of 1 / rate^2 over a rate that falls linearly.
        let inverse_rate = (mean, 1.0 / (outer * inner) - mean * mean);
        let most = (round * outer / block).ceil() as u64 + 2;
        let access = (0..=most).map(|v| access(disk, variant, v)).collect();
        Self { round, block, access, inverse_rate }
    }

    /// Whether a round of `v` accesses, `m` of them to `1 + u` blocks, ends in time.
    fn fits(&self, v: u64, m: u64, u: u64) -> bool {
        self.fits_with(DEVIATIONS, v, m, u)
    }

    fn fits_with(&self, deviations: f64, v: u64, m: u64, u: u64) -> bool {
        let Some((mean, variance)) = self.access.get(v as usize).copied() else { return false };
        let per_block =
            (self.block * self.inverse_rate.0, self.block * self.block * self.inverse_rate.1);
        let (v, m, u) = (v as f64, m as f64, u as f64);
        let mean = v * mean + (v + m * u) * per_block.0;
        let blocks = (v - m) + m * (1.0 + u) * (1.0 + u);
        let variance = v * variance + blocks * per_block.1;
        mean + deviations * variance.sqrt() <= self.round
    }

    /// Sweep.
    #[must_use]
    pub fn sweep(&self) -> u64 {
        (1..).take_while(|v| self.fits(*v, 0, 0)).last().unwrap_or(0)
    }

    /// Sweep & Prefetch of up to `deepest` blocks, with so many bytes of buffer in the disk.
    #[must_use]
    pub fn sweep_and_prefetch(&self, deepest: u64, cache: f64) -> Carried {
        let sweep = self.sweep();
        let mut best = Carried { streams: sweep, v: sweep, prefetching: 0, depth: 0 };
        for depth in 1..=deepest {
            let waiting = (depth * (depth + 1) / 2) as f64 * self.block;
            let room = (cache / waiting + 1e-9).floor() as u64;
            for v in 1..=sweep {
                let fits = |m: &u64| self.fits(v, *m, depth);
                let prefetching = (1..=room.min(v)).take_while(fits).last().unwrap_or(0);
                let streams = v + prefetching * depth;
                if streams > best.streams {
                    best = Carried { streams, v, prefetching, depth };
                }
            }
        }
        best
    }

    /// GPMP in `k` equal groups.
    #[must_use]
    pub fn gpmp(&self, k: u64) -> Carried {
        let v = (1..).take_while(|v| self.fits(*v, *v, k - 1)).last().unwrap_or(0);
        Carried { streams: v * k, v, prefetching: v, depth: k - 1 }
    }

    /// More streams than GPMP's plan carries for certain with so many bytes of buffers, if clients may
    /// stop with full buffers and keep them: a stream of which `k` blocks have just been read has the one
    /// of this round as well, so each needs `k + 1`. Rounds only have to suffice for mean seeks and mean
    /// transfers. Make the model with whole revolutions, which is what an access can always take.
    #[must_use]
    pub fn gpmp_at_best(&self, memory: f64) -> u64 {
        let streams = |k: u64| {
            let v = (1..).take_while(|v| self.fits_with(0.0, *v, *v, k - 1)).last().unwrap_or(0);
            (v * k).min((memory / ((k + 1) as f64 * self.block)) as u64)
        };
        (1..=24).map(streams).max().unwrap_or(0)
    }

    /// GPMP in `k` groups that may differ by one stream, when only the mean of an epoch counts.
    #[must_use]
    pub fn gpmp_on_average(&self, k: u64) -> f64 {
        let mean = |v: f64| {
            let at = self.access.get(v.round() as usize).map_or(0.0, |access| access.0);
            v * (at + k as f64 * self.block * self.inverse_rate.0)
        };
        let steps = (self.access.len() - 1) * 100;
        let fits = |at: &usize| mean(*at as f64 / 100.0) <= self.round;
        (0..steps).take_while(fits).last().unwrap_or(0) as f64 / 100.0 * k as f64
    }

    /// Streams that no policy exceeds with so many bytes of buffers: half of what a visit reads is
    /// there on average, so that visits are no further apart than `2 memory / (N c)`, each gets to its
    /// place in the order of position and waits for half a revolution, and nobody needs a margin.
    #[must_use]
    pub fn bound(&self, memory: f64) -> u64 {
        let rate = self.block / self.round;
        let fits = |streams: &usize| {
            let (count, access) = (*streams as f64, self.access[*streams].0);
            let cycle = 2.0 * memory / (count * rate);
            count * access + count * rate * cycle * self.inverse_rate.0 <= cycle
        };
        (1..self.access.len()).take_while(fits).last().unwrap_or(0) as u64
    }

    /// Bytes that a stream consumes in a round.
    #[must_use]
    pub fn block(&self) -> f64 {
        self.block
    }
}
