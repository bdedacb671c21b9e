//! What of their memory the streams really hold.

use super::{Machine, Scheme};
use crate::unit::Tick;

/// It is looked at so often in a cycle, and not more often than after so many nanoseconds.
const LOOKS: u64 = 8;
const LEAST: u64 = Tick::SECOND / 8;
/// The most of so many looks counts.
const KEPT: usize = 16;

/// What was seen lately.
#[derive(Debug, Default)]
pub(super) struct Looks {
    last: Tick,
    shares: [f64; KEPT],
    /// How many were seen.
    count: usize,
}

impl Machine {
    /// Looks whether clients take what is there at once, or by their clocks, and tells admission.
    pub(super) fn look_at_memory(&mut self, now: Tick) {
        let statistical =
            self.config.enforce && self.config.scheme == Scheme::Elastic && !self.sure();
        let next = self.looks.last.0.saturating_add((self.plan.cycle / LOOKS).max(LEAST));
        if !statistical || now.0 < next {
            return;
        }
        self.looks.last = now;
        let share = self.held_share(now);
        self.looks.shares[self.looks.count % KEPT] = share;
        self.looks.count += 1;
        let seen = &self.looks.shares[..self.looks.count.min(KEPT)];
        let most = seen.iter().copied().fold(0.0, f64::max);
        // Few looks prove nothing.
        let share = if self.looks.count < KEPT / 2 { 1.0 } else { most };
        self.admission.count_held(share, self.target);
    }

    /// What streams hold over what they would hold if they took by their clocks.
    fn held_share(&self, now: Tick) -> f64 {
        let chunk = self.config.admission.chunk;
        let (mut held, mut due) = (0, 0);
        for reader in self.owners.iter().map(|at| &self.readers[*at as usize]) {
            let holds = (reader.ring.back() - reader.ring.front()) * chunk;
            held += holds;
            due += match reader.members.as_slice() {
                [slot] if self.member(*slot).clock.running => {
                    let member = self.member(*slot);
                    let played = member.rate.bytes_at(member.clock.media(now));
                    reader.filled.saturating_sub(played)
                }
                // Nothing is known of those who share or have stopped.
                _ => holds,
            };
        }
        if due == 0 { 1.0 } else { held as f64 / due as f64 }
    }
}
