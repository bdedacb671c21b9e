//! For how long others have given no sign of life, as one who looks may say.
//!
//! Nodes count their heartbeats in a table that all of them read. A count that stands still says that
//! its node is silent only if whoever looks saw it stand still all the time: over a gap in his looks,
//! and as long as he could not have counted a heartbeat of his own, nobody else may have been able to
//! either. So after such a time the silence of all others begins anew. The daemon decides by this.

use std::collections::BTreeMap;

use super::{Epoch, NodeId};
use crate::unit::Tick;

/// A node in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sign {
    /// Its latest start.
    pub epoch: Epoch,
    /// Its count.
    pub beat: u64,
}

/// A look at the table, by the clock of whoever looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// When it began.
    pub asked: Tick,
    /// When the answer was there.
    pub answered: Tick,
    /// When the latest heartbeat of his own that was counted was sent.
    pub beaten: Tick,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    sign: Sign,
    /// The first and the last moment at which it is known to have been so.
    since: Tick,
    until: Tick,
}

/// What has been seen of the table.
#[derive(Debug, Clone)]
pub struct Silence {
    gap: u64,
    last: Option<Tick>,
    seen: BTreeMap<NodeId, Seen>,
}

impl Silence {
    /// Nothing seen yet. Between two looks lie `gap` nanoseconds at most, from the beginning of one to
    /// the answer of the next.
    #[must_use]
    pub fn new(gap: u64) -> Self {
        Silence { gap, last: None, seen: BTreeMap::new() }
    }

    /// Notes what a look has shown.
    pub fn look(&mut self, look: Look, signs: impl IntoIterator<Item = (NodeId, Sign)>) {
        let Look { asked, answered, beaten } = look;
        let near = |before: Tick, after: Tick| after.0.saturating_sub(before.0) <= self.gap;
        let listened = self.last.is_none_or(|last| near(last, answered)) && near(beaten, answered);
        self.last = Some(self.last.map_or(asked, |last| last.max(asked)));
        for (node, sign) in signs {
            let same = self.seen.get(&node).filter(|seen| seen.sign == sign && listened);
            let since = same.map_or(answered, |seen| seen.since);
            let until = same.map_or(since, |seen| seen.until.max(asked).max(since));
            self.seen.insert(node, Seen { sign, since, until });
        }
    }

    /// For how long a node is known to have been silent, in nanoseconds.
    #[must_use]
    pub fn of(&self, node: NodeId) -> u64 {
        self.seen.get(&node).map_or(0, |seen| seen.until.0 - seen.since.0)
    }

    /// What was last seen of a node.
    #[must_use]
    pub fn sign(&self, node: NodeId) -> Option<Sign> {
        self.seen.get(&node).map(|seen| seen.sign)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = Tick::SECOND;
    const GAP: u64 = 4 * SECOND;
    const OTHER: NodeId = NodeId(2);

    fn sign(beat: u64) -> [(NodeId, Sign); 1] {
        [(OTHER, Sign { epoch: Epoch(1), beat })]
    }

    fn at(asked: u64, answered: u64) -> Look {
        let (asked, answered) = (Tick(asked * SECOND), Tick(answered * SECOND));
        Look { asked, answered, beaten: asked }
    }

    #[test]
    fn silence_when_looked_at_all_the_time_then_it_is_what_was_seen() {
        let mut silence = Silence::new(GAP);
        for second in 0..=13 {
            silence.look(at(second, second), sign(7));
        }
        assert_eq!(silence.of(OTHER), 13 * SECOND);
        silence.look(at(14, 14), sign(8));
        assert_eq!(silence.of(OTHER), 0);
    }

    #[test]
    fn silence_when_nobody_answered_for_long_then_it_begins_anew() {
        let mut silence = Silence::new(GAP);
        silence.look(at(0, 0), sign(7));
        silence.look(at(1, 1), sign(7));
        // The servers are away, and so is every heartbeat.
        silence.look(at(14, 14), sign(7));
        assert_eq!(silence.of(OTHER), 0);
        // A look that was asked for before and answered after.
        let mut silence = Silence::new(GAP);
        silence.look(at(0, 0), sign(7));
        silence.look(at(1, 14), sign(7));
        silence.look(at(15, 15), sign(7));
        assert_eq!(silence.of(OTHER), 0, "what it says may be as old as its question");
        silence.look(at(16, 16), sign(7));
        assert_eq!(silence.of(OTHER), SECOND);
    }

    #[test]
    fn silence_when_no_heartbeat_of_ones_own_is_counted_then_it_says_nothing() {
        let mut silence = Silence::new(GAP);
        for second in 0..=20 {
            let look = Look { beaten: Tick(0), ..at(second, second) };
            silence.look(look, sign(7));
        }
        assert_eq!(silence.of(OTHER), 0);
    }

    proptest! {
        /// Whatever fails and how long it takes: a node that counts a heartbeat whenever it can, every
        /// second while the table is there, is never silent for longer than the gap and two seconds.
        #[test]
        fn silence_of_a_node_that_beats_when_it_can_then_never_long(
            outages in proptest::collection::vec((1u64..40, 1u64..40), 0..8),
            delays in proptest::collection::vec(0u64..3, 200),
        ) {
            let mut away = vec![false; 700];
            let mut time = 0;
            for (up, down) in outages {
                time += up;
                (time..time + down).for_each(|second| away[second as usize] = true);
                time += down;
            }
            let mut silence = Silence::new(GAP);
            let (mut beat, mut beaten) = (0, Tick(0));
            let mut now = 0usize;
            for delay in delays {
                let asked = now;
                while away[now] {
                    now += 1;
                }
                // The other one counts at each second of its own at which the table is there.
                beat += (asked..=now).filter(|second| !away[*second]).count() as u64;
                beaten = beaten.max(Tick(asked as u64 * SECOND));
                let look = Look { beaten, ..at(asked as u64, now as u64) };
                silence.look(look, sign(beat / 2));
                prop_assert!(silence.of(OTHER) <= GAP + 2 * SECOND, "at {now}");
                now += 1 + delay as usize;
                if now > 600 {
                    break;
                }
            }
        }
    }
}
