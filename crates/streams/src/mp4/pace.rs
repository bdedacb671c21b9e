//! How fast a file of variable bit rate has to be read to be played, by its index.
//!
//! The samples say up to which byte the file must be there at which time. A player has room for some
//! seconds, so that much may come earlier. Between these two curves the shortest way is the smoothest:
//! its highest rate is the least that will do (Salehi, Zhang, Kurose, Towsley: "Supporting Stored
//! Video: Reducing Rate Variability and End-to-End Resource Requirements through Optimal Smoothing",
//! IEEE/ACM Transactions on Networking 6(4), 1998).

use super::{Index, NoIndex};
use crate::model::Rate;

/// Seconds of media that a player keeps ahead.
const AHEAD_S: u64 = 10;
/// Points of time that are looked at.
const POINTS: u64 = 4096;
/// Most steps of a pace.
const STEPS: usize = 128;
/// If the highest rate is so many times the mean, the order of the file is not that of playing.
const PEAK_MAX: u64 = 8;
/// What is added to a mean rate of which the course is not known.
const MARGIN: f64 = 1.1;

/// The rate of a file, and its course if that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Bytes a second: the highest.
    pub rate: u64,
    /// Steps of (milliseconds, bytes a second), from the beginning of the file; none if the rate is the
    /// same all the time.
    pub steps: Vec<(u32, u64)>,
}

impl Pace {
    /// The same rate all the time.
    pub fn constant(rate: u64) -> Self {
        Self { rate, steps: Vec::new() }
    }

    /// A mean rate, of media of which nobody knows the course.
    pub fn mean(bytes_a_second: f64) -> Option<Self> {
        let rate = (bytes_a_second * MARGIN).round();
        (1.0..=1e12).contains(&rate).then(|| Self::constant(rate as u64))
    }

    /// By the index of a file.
    ///
    /// # Errors
    /// If the tables contradict each other, or the file is not in the order of playing.
    pub fn of(index: &Index) -> Result<Self, NoIndex> {
        // Twice, so that no more than the samples of one track are in memory.
        let ms = |time: u64, scale: u32| time.saturating_mul(1000) / u64::from(scale);
        let (mut end_ms, mut first, mut last) = (0, u64::MAX, 0);
        for track in &index.tracks {
            for sample in track.samples(index.size)? {
                let shown = sample.decoded.saturating_add(sample.duration.into());
                let end = sample.offset + u64::from(sample.size);
                end_ms = end_ms.max(ms(shown, track.timescale));
                (first, last) = (first.min(end), last.max(end));
            }
        }
        if end_ms == 0 || end_ms > u64::from(u32::MAX) / 4 {
            return Err(NoIndex::Damaged("it lasts for no time, or for ever"));
        }
        let mean = (last.saturating_mul(1000) / end_ms).max(1);
        let point_ms = end_ms.div_ceil(POINTS).max(1000);
        let points = end_ms.div_ceil(point_ms) as usize;
        // What comes before the first sample, the index mostly, takes its time as well.
        let shift = (first.saturating_mul(1000) / mean).div_ceil(point_ms) as usize;
        let shift = shift.min(points);
        let mut lower = vec![0u64; points + shift + 1];
        for track in &index.tracks {
            for sample in track.samples(index.size)? {
                let at = (ms(sample.decoded, track.timescale) / point_ms) as usize + 1 + shift;
                let at = at.min(points + shift);
                lower[at] = lower[at].max(sample.offset + u64::from(sample.size));
            }
        }
        for at in 1..lower.len() {
            lower[at] = lower[at].max(lower[at - 1]);
        }
        let mut ahead = AHEAD_S.saturating_mul(1000).div_ceil(point_ms).max(1) as usize;
        loop {
            let mut steps = smooth(&lower, ahead, point_ms);
            if steps.len() > STEPS && ahead < lower.len() {
                // Smoother, for a player with more room.
                ahead *= 2;
                continue;
            }
            let rate = steps.iter().map(|step| step.1).max().unwrap_or(mean);
            if rate > PEAK_MAX * mean {
                return Err(NoIndex::NotInterleaved);
            }
            // What comes behind the last sample is nothing that is played.
            if steps.len() > 1 && steps.last().is_some_and(|step| step.1 < mean) {
                steps.push((1000, mean));
            }
            if steps.len() == 1 {
                steps.clear();
            }
            return Ok(Self { rate, steps });
        }
    }

    /// The rate as the machine knows it, so many times as fast.
    pub fn rate(&self, factor: f64) -> Option<Rate> {
        let faster = |rate: u64| ((rate as f64 * factor) as u64).max(1);
        if self.steps.is_empty() {
            return Rate::constant(faster(self.rate)).ok();
        }
        // The same bytes in a shorter time.
        let nanos = |ms: u32| ((f64::from(ms) * 1e6 / factor) as u64).max(1);
        let steps: Vec<(u64, u64)> =
            self.steps.iter().map(|(ms, rate)| (nanos(*ms), faster(*rate))).collect();
        Rate::profile(&steps).ok()
    }
}

/// The shortest way between `lower` and what is `ahead` points further there, as steps.
fn smooth(lower: &[u64], ahead: usize, point_ms: u64) -> Vec<(u32, u64)> {
    let end = lower.len() - 1;
    let upper = |at: usize| if at == 0 { lower[0] } else { lower[(at + ahead).min(end)] };
    let mut steps: Vec<(u32, u64)> = Vec::new();
    let (mut from, mut bytes) = (0, lower[0] as f64);
    while from < end {
        let (mut low, mut high) = (f64::MIN, f64::MAX);
        let (mut low_at, mut high_at) = (from + 1, from + 1);
        let mut bend = (end, lower[end] as f64);
        for at in from + 1..=end {
            let slope = |to: u64| (to as f64 - bytes) / (at - from) as f64;
            let (least, most) = (slope(lower[at]), slope(upper(at)));
            if least > high {
                bend = (high_at, upper(high_at) as f64);
                break;
            }
            if most < low {
                bend = (low_at, lower[low_at] as f64);
                break;
            }
            if least >= low {
                (low, low_at) = (least, at);
            }
            if most <= high {
                (high, high_at) = (most, at);
            }
        }
        let ms = (bend.0 - from) as u64 * point_ms;
        let rate = ((bend.1 - bytes).max(0.0) * 1000.0 / ms as f64).ceil().max(1.0) as u64;
        steps.push((u32::try_from(ms).unwrap_or(u32::MAX), rate));
        (from, bytes) = bend;
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bursts_of_a_film_when_smoothed_then_less_than_the_peak_and_never_late() {
        // A quiet film, with a loud second after 20.
        let mut lower = vec![0u64];
        for second in 0..40 {
            let bytes = if second == 20 { 1_000_000 } else { 100_000 };
            lower.push(lower.last().unwrap() + bytes);
        }
        let steps = smooth(&lower, 10, 1000);
        let peak = steps.iter().map(|step| step.1).max().unwrap();
        assert!(peak < 200_000, "ten seconds ahead share the loud one: {steps:?}");
        let hasty = smooth(&lower, 1, 1000).iter().map(|step| step.1).max().unwrap();
        assert!(hasty > 2 * peak, "a player with room for a second: {hasty}");
    }

    proptest! {
        #[test]
        fn any_film_when_smoothed_then_between_what_is_needed_and_what_there_is_room_for(
            sizes in prop::collection::vec(0..2_000_000u64, 1..200),
            ahead in 1..20usize,
        ) {
            let mut lower = vec![0u64];
            for size in sizes {
                lower.push(lower.last().unwrap() + size);
            }
            let end = lower.len() - 1;
            let steps = smooth(&lower, ahead, 1000);
            let (mut at, mut bytes) = (0usize, 0u64);
            for (ms, rate) in steps {
                for _ in 0..ms / 1000 {
                    at += 1;
                    bytes += rate;
                    // Each step may have been rounded up by a byte a second.
                    prop_assert!(bytes + 1 >= lower[at]);
                    prop_assert!(bytes <= lower[(at + ahead).min(end)] + at as u64 + 1);
                }
            }
            prop_assert_eq!(at, end);
        }
    }
}
