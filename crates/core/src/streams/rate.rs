//! How fast a stream is consumed: at one rate, or along a profile (variable bit rate).

use std::sync::Arc;

use crate::unit::Tick;

/// Most steps of a profile.
pub const MAX_STEPS: usize = 1 << 20;

/// Up to here in media time, so many bytes have been consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Knot {
    nanos: u64,
    bytes: u64,
}

/// The consumption curve of a stream: bytes against media time. Media time runs with the clock while
/// the stream plays, and stands while it does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rate {
    /// Beyond the last knot, in bytes a second; never 0.
    last: u64,
    /// From (0, 0) on; empty for a constant rate.
    knots: Arc<[Knot]>,
}

/// A rate that is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a rate needs at least one byte a second, and steps longer than 0, {MAX_STEPS} at most")]
pub struct BadRate;

fn scale(value: u64, by: u64, over: u64) -> u64 {
    let result = u128::from(value) * u128::from(by) / u128::from(over.max(1));
    u64::try_from(result).unwrap_or(u64::MAX)
}

fn scale_up(value: u64, by: u64, over: u64) -> u64 {
    let result = (u128::from(value) * u128::from(by)).div_ceil(u128::from(over.max(1)));
    u64::try_from(result).unwrap_or(u64::MAX)
}

impl Rate {
    /// The same rate all the time, in bytes a second.
    ///
    /// # Errors
    /// [`BadRate`] for 0.
    pub fn constant(bytes_per_second: u64) -> Result<Self, BadRate> {
        if bytes_per_second == 0 {
            return Err(BadRate);
        }
        Ok(Self { last: bytes_per_second, knots: Arc::new([]) })
    }

    /// Steps of (nanoseconds, bytes a second); the last rate goes on for ever.
    ///
    /// # Errors
    /// [`BadRate`] for no step, too many, an empty one, or a rate of 0 in the last.
    pub fn profile(steps: &[(u64, u64)]) -> Result<Self, BadRate> {
        let last = steps.last().ok_or(BadRate)?.1;
        if last == 0 || steps.len() > MAX_STEPS || steps.iter().any(|step| step.0 == 0) {
            return Err(BadRate);
        }
        let mut knots = vec![Knot { nanos: 0, bytes: 0 }];
        let (mut nanos, mut bytes) = (0u64, 0u64);
        for (length, rate) in steps {
            nanos = nanos.checked_add(*length).ok_or(BadRate)?;
            bytes = bytes.checked_add(scale(*rate, *length, Tick::SECOND)).ok_or(BadRate)?;
            knots.push(Knot { nanos, bytes });
        }
        Ok(Self { last, knots: knots.into() })
    }

    /// Whether it is the same all the time.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.knots.is_empty()
    }

    /// Bytes consumed in the first `nanos` nanoseconds of media time.
    #[must_use]
    pub fn bytes_at(&self, nanos: u64) -> u64 {
        let after = self.knots.partition_point(|knot| knot.nanos <= nanos);
        let Some(from) = after.checked_sub(1).map(|at| self.knots[at]) else {
            return scale(nanos, self.last, Tick::SECOND);
        };
        let span = nanos - from.nanos;
        let more = match self.knots.get(after) {
            Some(to) => scale(span, to.bytes - from.bytes, to.nanos - from.nanos),
            None => scale(span, self.last, Tick::SECOND),
        };
        from.bytes.saturating_add(more)
    }

    /// The media time at which the first `bytes` bytes have been consumed: the least with
    /// `bytes_at(time) >= bytes`.
    #[must_use]
    pub fn time_of(&self, bytes: u64) -> u64 {
        let after = self.knots.partition_point(|knot| knot.bytes < bytes);
        let Some(from) = after.checked_sub(1).map(|at| self.knots[at]) else {
            return if self.knots.is_empty() {
                scale_up(bytes, Tick::SECOND, self.last)
            } else {
                0
            };
        };
        let span = bytes - from.bytes;
        let more = match self.knots.get(after) {
            Some(to) => scale_up(span, to.nanos - from.nanos, to.bytes - from.bytes),
            None => scale_up(span, Tick::SECOND, self.last),
        };
        from.nanos.saturating_add(more)
    }

    /// Most bytes consumed in any span of media time of this length.
    #[must_use]
    pub fn most_in(&self, nanos: u64) -> u64 {
        self.extreme(nanos, u64::max)
    }

    /// Highest rate at any moment, in bytes a second.
    #[must_use]
    pub fn peak(&self) -> f64 {
        let slope = |pair: &[Knot]| {
            let nanos = (pair[1].nanos - pair[0].nanos) as f64;
            (pair[1].bytes - pair[0].bytes) as f64 / nanos * Tick::SECOND as f64
        };
        self.knots.windows(2).map(slope).fold(self.last as f64, f64::max)
    }

    /// Fewest bytes consumed in any span of media time of this length.
    #[must_use]
    pub fn fewest_in(&self, nanos: u64) -> u64 {
        self.extreme(nanos, u64::min)
    }

    /// The curve is piecewise linear, so an extreme window begins or ends at a knot.
    fn extreme(&self, nanos: u64, choose: impl Fn(u64, u64) -> u64) -> u64 {
        let after = scale(nanos, self.last, Tick::SECOND);
        self.knots.iter().fold(after, |extreme, knot| {
            let ahead = self.bytes_at(knot.nanos.saturating_add(nanos)) - knot.bytes;
            let extreme = choose(extreme, ahead);
            match knot.nanos.checked_sub(nanos) {
                Some(start) => choose(extreme, knot.bytes - self.bytes_at(start)),
                None => extreme,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = Tick::SECOND;

    #[test]
    fn constant_then_bytes_and_times_are_inverse() {
        let rate = Rate::constant(250_000).expect("a rate");
        assert_eq!((rate.bytes_at(SECOND), rate.time_of(250_000)), (250_000, SECOND));
        assert_eq!((rate.most_in(SECOND), rate.fewest_in(SECOND)), (250_000, 250_000));
        assert_eq!(Rate::constant(0), Err(BadRate));
    }

    #[test]
    fn profile_then_extremes_of_a_window() {
        let steps = [(2 * SECOND, 100), (SECOND, 900), (2 * SECOND, 0), (SECOND, 100)];
        let rate = Rate::profile(&steps).expect("a rate");
        assert_eq!(rate.bytes_at(3 * SECOND), 1_100);
        assert_eq!(rate.most_in(2 * SECOND), 1_000);
        assert_eq!(rate.fewest_in(2 * SECOND), 0);
        assert_eq!(rate.time_of(1_101), 5 * SECOND + SECOND / 100);
    }

    proptest! {
        #[test]
        fn time_of_any_bytes_then_the_first_moment(
            steps in prop::collection::vec((1..5 * SECOND, 0..1_000_000u64), 0..6),
            last in 1..1_000_000u64,
            bytes in 1..20_000_000u64,
        ) {
            let mut steps = steps;
            steps.push((SECOND, last));
            let rate = Rate::profile(&steps).expect("a rate");
            let time = rate.time_of(bytes);
            prop_assert!(rate.bytes_at(time) >= bytes);
            prop_assert!(time == 0 || rate.bytes_at(time - 1) < bytes);
            let window = SECOND;
            let ahead = rate.bytes_at(time + window) - rate.bytes_at(time);
            prop_assert!(ahead <= rate.most_in(window) + 2 && ahead + 2 >= rate.fewest_in(window));
        }
    }
}
