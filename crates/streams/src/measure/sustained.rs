//! How long reads take in the long run. What throttles a device (a limit of a control group, of a
//! virtual disk) lets some reads pass at once and makes those after them wait, in lumps: times of
//! single reads then say little. What counts is how long a run of them takes beyond what they take on
//! average, at most, wherever in it one begins to count: the latency of a latency-rate server, see
//! [`DeviceProfile::delay`].

use std::time::Instant;

use super::{Bench, Error, LARGE};
use crate::model::{AccessTime, DeviceProfile};

/// Bytes of the smaller reads; those of the larger ones are [`LARGE`], the most that the service reads
/// at once.
const PART: usize = LARGE / 16;
/// A device that takes so many times as long as single reads have shown is throttled.
const SLOWER: f64 = 1.25;
/// A read that takes so many times as long as most do has waited for something else.
const OUTLIER: f64 = 4.0;
/// What is measured for a while is exceeded at times.
const MARGIN: f64 = 1.1;

/// Reads one after the other, of equal size, at random places.
#[derive(Debug, Default)]
struct Run {
    /// Seconds since the first began until each was over.
    over: Vec<f64>,
    /// Seconds that the device took for each.
    took: Vec<f64>,
    /// Seconds that all should have taken by what single reads have shown.
    expected: f64,
}

impl Run {
    /// Seconds of a read in the long run: by the second half, when nothing is left of what the device
    /// lets pass at once.
    fn mean(&self) -> f64 {
        let last = self.over.len() - 1;
        let middle = last / 2;
        (self.over[last] - self.over[middle]) / (last - middle).max(1) as f64
    }

    /// By how much some part of the run took longer than its reads do on average: seconds.
    fn lump(&self, mean: f64) -> f64 {
        let (mut beyond, mut most) = (0.0f64, 0.0f64);
        for took in &self.took {
            beyond = (beyond + took - mean).max(0.0);
            most = most.max(beyond);
        }
        most
    }

    /// Whether it took longer than single reads have shown; by the times of the device, since a busy
    /// host is no throttle.
    fn is_slower(&self) -> bool {
        let (last, middle) = (self.took.len(), self.took.len() / 2);
        let rest: f64 = self.took[middle..].iter().sum();
        rest / (last - middle) as f64 > SLOWER * self.expected / last as f64
    }

    /// Whether most of the time went into a few of the reads.
    fn is_lumpy(&self) -> bool {
        let mut sorted = self.took.clone();
        sorted.sort_by(f64::total_cmp);
        let usual = sorted[sorted.len() / 2];
        let outliers: f64 = sorted.iter().filter(|took| **took > OUTLIER * usual).sum();
        outliers > 0.5 * sorted.iter().sum::<f64>()
    }
}

/// What two runs say of a device if it is throttled: the time of any read is `access + bytes / rate`
/// at most, but for `delay` once in whatever run of them.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sustained {
    access: f64,
    rate: f64,
    delay: f64,
}

impl Sustained {
    fn of(small: &Run, large: &Run) -> Option<Self> {
        if ![small, large].iter().any(|run| run.is_slower() || run.is_lumpy()) {
            return None;
        }
        // Larger reads are several of the large ones, each of which counts for a throttle.
        let rate = LARGE as f64 / large.mean().max(1e-9);
        let access = (small.mean() - PART as f64 / rate).max(0.0);
        let lump = small.lump(small.mean()).max(large.lump(large.mean()));
        Some(Self { access, rate, delay: lump * MARGIN })
    }

    fn apply(self, profile: &mut DeviceProfile) {
        let Self { access, rate, delay } = self;
        for zone in &mut profile.zones {
            zone.rate = zone.rate.min(rate);
        }
        for time in &mut profile.access {
            let least = time.least.min(access);
            let (mean, median, q99, worst) = (access, access, access, access);
            // What they differ by is in the delay.
            *time = AccessTime { mean, variance: 0.0, least, median, q99, worst, ..*time };
        }
        // The rate is that of the throttle; and it serves one read after the other.
        (profile.delay, profile.throttle, profile.parallel) = (delay, None, 1);
    }
}

impl Bench<'_> {
    /// Reads for longer, and has the profile say what they take in the long run; for the rest of the
    /// time, half of it each.
    pub(super) fn sustained(
        &mut self,
        mut profile: DeviceProfile,
        notes: &mut Vec<String>,
    ) -> Result<DeviceProfile, Error> {
        let small = self.run(PART, &profile, 0.8)?;
        let large = self.run(LARGE, &profile, 1.0)?;
        if let Some(sustained) = Sustained::of(&small, &large) {
            notes.push(format!(
                "something throttles it: in the long run {:.1} ms for 64 KiB, {:.1} ms for 1 MiB, \
                 and up to {:.0} ms now and then",
                small.mean() * 1e3,
                large.mean() * 1e3,
                sustained.delay * 1e3
            ));
            sustained.apply(&mut profile);
        }
        Ok(profile)
    }

    /// Reads of so many bytes at random places until so much of the time is over.
    fn run(&mut self, bytes: usize, profile: &DeviceProfile, until: f64) -> Result<Run, Error> {
        let (mut run, begun, mut head) = (Run::default(), Instant::now(), None);
        while run.took.len() < 16 || self.passed() < until {
            self.show("long runs");
            let place = self.anywhere();
            let (file, offset, at) = self.near(place, bytes as u64);
            let took = self.timed(file, offset, bytes)?;
            let distance = head.map_or(1, |head: u64| head.abs_diff(at));
            head = Some(at + bytes as u64);
            run.expected += profile.expected(distance, at, bytes as u64);
            run.took.push(took.as_secs_f64());
            run.over.push(begun.elapsed().as_secs_f64());
            if self.passed() > 3.0 && run.took.len() > 3 {
                break;
            }
        }
        Ok(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run on a device that takes `usual` for a read, of which `many` fit into a slice.
    fn run(usual: f64, slice: f64, many: usize, count: usize) -> Run {
        let mut run = Run::default();
        let mut now = 0.0;
        for at in 0..count {
            let waits =
                if many > 0 && at % many == many - 1 { slice - usual * many as f64 } else { 0.0 };
            now += usual + waits;
            run.took.push(usual + waits);
            run.over.push(now);
            run.expected += usual;
        }
        run
    }

    #[test]
    fn runs_on_a_device_that_nothing_throttles_then_nothing_is_said() {
        assert_eq!(Sustained::of(&run(0.005, 0.0, 0, 200), &run(0.02, 0.0, 0, 50)), None);
    }

    #[test]
    fn runs_in_slices_then_the_rate_of_the_slices_and_one_of_them_as_delay() {
        // 200 small reads a second, in slices of 100 ms; 20 MiB a second.
        let (small, large) = (run(0.0001, 0.1, 20, 400), run(0.0005, 0.1, 2, 80));
        let Sustained { access, rate, delay } = Sustained::of(&small, &large).unwrap();
        assert!((rate / (20.0 * LARGE as f64) - 1.0).abs() < 0.05, "{rate}");
        let part = access + PART as f64 / rate;
        assert!((part / 0.005 - 1.0).abs() < 0.05, "{part}");
        assert!((0.08..0.12).contains(&delay), "{delay}");
    }

    #[test]
    fn burst_before_a_run_then_what_comes_after_it_counts() {
        let mut small = run(0.0001, 0.0, 0, 100);
        let rest = run(0.005, 0.0, 0, 300);
        let begun = small.over.last().copied().unwrap();
        small.over.extend(rest.over.iter().map(|over| begun + over));
        small.took.extend(&rest.took);
        small.expected += 300.0 * 0.0001;
        assert!(small.is_slower() && !rest.is_slower());
        assert!((small.mean() / 0.005 - 1.0).abs() < 0.01, "{}", small.mean());
    }
}
