//! How long a new stream will wait for its first data.

use super::Machine;
use crate::unit::Tick;

/// Less than this share of a device is never assumed to be left.
const LEAST_SPARE: f64 = 1.0 / 1024.0;
/// Few wait longer than so many times the mean.
const DOUBT: f64 = 2.0;

impl Machine {
    /// Nanoseconds in which a stream that is admitted now will most probably have its first data, with a
    /// statistical guarantee. It waits until the device is ahead of all others by its first visit, by
    /// those of all who wait before it, and by what a sweep may take longer than on average; and until
    /// all buffers are filled to what its plan needs. For that there is the time that the others leave.
    pub(super) fn expected_wait(&self, now: Tick, needs: u64) -> u64 {
        let count = self.owners.len() as f64;
        let shares = self.owners.iter().map(|at| {
            let reader = &self.readers[*at as usize];
            reader.rate.peak() / reader.slowest * self.slowdown
        });
        let share: f64 = shares.sum();
        let access = self.plan.access as f64;
        let spare = 1.0 - share - access * count / self.horizon().max(1) as f64;
        // There and back, and half of a cycle until the order comes to its place.
        let each = 2.0 * access + share / count.max(1.0) * self.target as f64 / 2.0;
        let waiting = self.starters.len() as f64 + 1.0;
        let growth = share * needs.saturating_sub(self.target) as f64;
        let ahead = self.latest().saturating_sub(now.0 as i64).max(0) as f64;
        let lack = waiting * each + self.plan.spread as f64 + growth - ahead;
        (DOUBT * lack.max(0.0) / spare.max(LEAST_SPARE)) as u64
    }
}
