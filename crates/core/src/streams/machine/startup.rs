//! How long a new stream will wait for its first data.

use super::Machine;
use crate::streams::admission::Plan;
use crate::unit::Tick;

/// Less than this share of a device is never assumed to be left.
const LEAST_SPARE: f64 = 1.0 / 1024.0;
/// Few wait longer than so many times the mean.
const DOUBT: f64 = 2.0;

impl Machine {
    /// Nanoseconds in which a stream that is admitted now, with this plan, will most probably have its
    /// first data, with a statistical guarantee; for certain it is told how long it is at most. It waits
    /// until the device is ahead of all others by its first visit, by those of all who wait before it,
    /// and by what a sweep may take longer than on average; and until all buffers are filled to what its
    /// plan needs. For that there is the time that the others leave.
    pub(super) fn expected_wait(&self, now: Tick, plan: &Plan) -> u64 {
        if self.sure() {
            return 0;
        }
        let count = self.owners.len() as f64;
        let shares = self.owners.iter().map(|at| {
            let reader = &self.readers[*at as usize];
            reader.rate.peak() / reader.slowest * self.slowdown
        });
        let share: f64 = shares.sum();
        let access = self.plan.access as f64;
        let spare = 1.0 - share - access * count / self.horizon().max(1) as f64;
        // There and back, with half of a cycle to read until the order comes to its place, and its visit
        // there.
        let read = share / count.max(1.0);
        let each = 3.0 * access + read * (self.target / 2 + self.horizon()) as f64;
        let waiting = self.starters.len() as f64 + 1.0;
        let growth = share * plan.needs.saturating_sub(self.target) as f64;
        let ahead = self.latest().saturating_sub(now.0 as i64).max(0) as f64;
        let lack = waiting * each + self.plan.spread as f64 + growth - ahead;
        (DOUBT * lack.max(0.0) / spare.max(LEAST_SPARE)) as u64
    }
}
