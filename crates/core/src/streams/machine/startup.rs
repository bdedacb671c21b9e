//! How long a new stream will wait for its first data.

use super::Machine;
use super::reader::{Reader, State};
use crate::streams::admission::Plan;
use crate::unit::Tick;

/// Less than this share of a device is never assumed to be left.
const LEAST_SPARE: f64 = 1.0 / 1024.0;
/// Few who wait alone wait longer than by so many means more than the mean; what many wait for together
/// differs less.
const DOUBT: f64 = 0.9;
/// Buffers grow once in a sweep, in steps that the least slack of all allows for: in about twice the time
/// that reading it takes.
const GROWING: f64 = 2.0;

/// What streams take of a device, all together.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    streams: f64,
    /// Share of the time for what they read.
    share: f64,
}

impl Load {
    fn add(&mut self, share: f64) {
        self.streams += 1.0;
        self.share += share;
    }

    /// The share that they leave if each is visited once in `cycle`, which takes `access` to get there.
    fn spare(self, access: f64, cycle: f64) -> f64 {
        (1.0 - self.share - access * self.streams / cycle.max(1.0)).max(LEAST_SPARE)
    }
}

impl Machine {
    /// Nanoseconds in which a stream that is admitted now, with this plan, will most probably have its
    /// first data, with a statistical guarantee; for certain it is told how long it is at most.
    ///
    /// Those who wait start one after the other. Before each the buffers of those who play then grow to
    /// what it needs, and it is visited, in the time that they leave in cycles as long as the buffers are
    /// by then. The device is ahead of them by some time, which is used up first, but for what a sweep may
    /// take longer than on average.
    pub(super) fn expected_wait(&self, now: Tick, plan: &Plan) -> u64 {
        if self.sure() {
            return 0;
        }
        let share = |reader: &Reader| reader.rate.peak() / reader.slowest * self.slowdown;
        let mut load = Load::default();
        for reader in self.owners.iter().map(|at| &self.readers[*at as usize]) {
            if reader.state != State::Starting {
                load.add(share(reader));
            }
        }
        let waiting = self.starters.len() as f64 + 1.0;
        // Of a crowd each reads all that it may before others go on; who comes while many play reads until
        // its turn, half of that on average, and is visited in its turn as well.
        let alone = load.streams / (load.streams + waiting);
        let profile = self.admission.profile();
        let way = profile.access(profile.capacity / 3).mean * self.slowdown * Tick::SECOND as f64;
        let access = plan.access as f64;
        let ways = 2.0 * way + alone * access;
        let own = self.demands.last().map_or(0.0, |demand| demand.share() * self.slowdown);
        let starters = self.starters.iter().map(|at| &self.readers[*at as usize]);
        let starters = starters.map(|reader| (share(reader), reader.needs.min(plan.needs)));
        let ahead = self.latest().saturating_sub(now.0 as i64).max(0) as f64;
        let mut ahead = (ahead - self.plan.spread as f64).max(0.0);
        let (mut target, mut wait) = (self.target as f64, 0.0);
        for (share, needs) in starters.chain([(own, plan.needs)]) {
            let growth = load.share * (needs as f64 - target).max(0.0);
            target = target.max(needs as f64);
            let work = ways + share * target * (1.0 - alone / 2.0) + GROWING * growth;
            let cycle = (target - plan.headroom as f64).max(target / 2.0).min(plan.cycle as f64);
            let at_once = work.min(ahead);
            wait += at_once + (work - at_once) / load.spare(access, cycle);
            ahead -= at_once;
            load.add(share);
        }
        (wait * (1.0 + DOUBT / waiting.sqrt())) as u64
    }
}
