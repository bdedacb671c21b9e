//! Objects ordered by weight x (next use - now), an order that changes as time passes: a kinetic
//! tournament (Basch, Guibas, Hershberger: "Data structures for mobile data", 1997). Every match of
//! a binary tree remembers its winner and when the earliest match below it turns.

use super::Snapshot;
use super::slab::{NIL, Slab};

const NEVER: u64 = u64::MAX;

/// A contestant: its value at a moment is weight x (next - moment).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contestant {
    pub object: u64,
    pub bytes: u64,
    pub weight: u64,
    pub next: u64,
}

impl Contestant {
    fn value(&self, now: u64) -> i128 {
        i128::from(self.weight) * (i128::from(self.next) - i128::from(now))
    }

    /// Whether it wins against another now; ties go to the smaller number.
    pub fn beats(&self, other: &Self, now: u64) -> bool {
        let (mine, theirs) = (self.value(now), other.value(now));
        mine > theirs || (mine == theirs && self.object < other.object)
    }

    /// The first moment from which `loser` wins against it.
    fn overtaken_by(&self, loser: &Self) -> u64 {
        if loser.weight >= self.weight {
            return NEVER;
        }
        let head = i128::from(self.weight) * i128::from(self.next)
            - i128::from(loser.weight) * i128::from(loser.next);
        let closing = i128::from(self.weight - loser.weight);
        let (whole, rest) = (head.div_euclid(closing), head.rem_euclid(closing));
        let at = if loser.object < self.object { whole + i128::from(rest > 0) } else { whole + 1 };
        u64::try_from(at.max(0)).unwrap_or(NEVER)
    }
}

/// What the slot of a contestant holds.
#[derive(Debug, Clone, Copy)]
struct ContestantState {
    bytes: u64,
    /// 0 for a slot that takes no part: free, or set aside.
    weight: u64,
    next: u64,
}

#[derive(Debug, Clone, Copy)]
struct Match {
    winner: u32,
    turns: u64,
}

const EMPTY: Match = Match { winner: NIL, turns: NEVER };

/// The tournament.
#[derive(Debug)]
pub(crate) struct Tournament {
    slab: Slab<ContestantState>,
    /// A heap-shaped tree of as many matches as there can be slots; the final is at 1, and the slots
    /// follow as leaves.
    matches: Vec<Match>,
    now: u64,
    bytes: u64,
}

impl Default for Tournament {
    fn default() -> Self {
        Self { slab: Slab::default(), matches: vec![EMPTY; 2], now: 0, bytes: 0 }
    }
}

impl Tournament {
    /// What is on the books.
    pub fn books(&self) -> Snapshot {
        Snapshot { objects: self.slab.len(), bytes: self.bytes, ..Snapshot::default() }
    }

    pub fn bytes_of(&self, object: u64) -> Option<u64> {
        self.slab.find(object).map(|slot| self.slab[slot].bytes)
    }

    /// Adds or changes a contestant; brings it back if it was set aside. Its weight is not 0.
    pub fn set(&mut self, contestant: Contestant) {
        let Contestant { object, bytes, weight, next } = contestant;
        let state = ContestantState { bytes, weight, next };
        let slot = match self.slab.find(object) {
            Some(slot) => {
                let before = std::mem::replace(&mut self.slab[slot], state);
                self.bytes -= before.bytes;
                slot
            }
            None => self.slab.insert(object, state),
        };
        self.bytes += bytes;
        if slot as usize >= self.matches.len() {
            self.grow();
        }
        self.replay(slot);
    }

    /// Looks for contestants that will be changed soon: see [`Slab::warm`].
    pub fn warm(&self, objects: &[u64]) {
        self.slab.warm(objects);
    }

    /// Leaves a contestant out until it is [`Self::set`] again.
    pub fn set_aside(&mut self, object: u64) {
        if let Some(slot) = self.slab.find(object) {
            self.slab[slot].weight = 0;
            self.replay(slot);
        }
    }

    /// Takes a contestant off; gives back its bytes.
    pub fn remove(&mut self, object: u64) -> Option<u64> {
        let slot = self.slab.find(object)?;
        self.slab[slot].weight = 0;
        self.replay(slot);
        let gone = self.slab.remove(slot);
        self.bytes -= gone.bytes;
        Some(gone.bytes)
    }

    /// The contestant of the largest value at a moment, which must not lie before the last one.
    pub fn best(&mut self, now: u64) -> Option<Contestant> {
        self.now = self.now.max(now);
        if self.matches[1].turns <= self.now {
            self.refresh(1);
        }
        let winner = self.matches[1].winner;
        (winner != NIL).then(|| self.contestant(winner))
    }

    fn contestant(&self, slot: u32) -> Contestant {
        let ContestantState { bytes, weight, next } = self.slab[slot];
        Contestant { object: self.slab.object(slot), bytes, weight, next }
    }

    fn grow(&mut self) {
        self.matches = vec![EMPTY; 2 * self.matches.len()];
        for at in (1..self.matches.len()).rev() {
            self.matches[at] = self.play(at);
        }
    }

    /// Plays the matches from a slot up to the final again.
    fn replay(&mut self, slot: u32) {
        let mut at = (self.matches.len() + slot as usize) / 2;
        while at > 0 {
            self.matches[at] = self.play(at);
            at /= 2;
        }
    }

    /// Plays those matches at and below a place again whose time has come.
    fn refresh(&mut self, at: usize) {
        if at >= self.matches.len() || self.matches[at].turns > self.now {
            return;
        }
        self.refresh(2 * at);
        self.refresh(2 * at + 1);
        self.matches[at] = self.play(at);
    }

    /// What comes out of a place: a match, or a slot that takes part or not.
    fn outcome(&self, at: usize) -> Match {
        if let Some(played) = self.matches.get(at) {
            return *played;
        }
        let slot = (at - self.matches.len()) as u32;
        let present = self.slab.get(slot).is_some_and(|state| state.weight > 0);
        Match { winner: if present { slot } else { NIL }, turns: NEVER }
    }

    fn play(&self, at: usize) -> Match {
        let (left, right) = (self.outcome(2 * at), self.outcome(2 * at + 1));
        let turns = left.turns.min(right.turns);
        if left.winner == NIL || right.winner == NIL {
            let winner = if left.winner == NIL { right.winner } else { left.winner };
            return Match { winner, turns };
        }
        let (one, other) = (self.contestant(left.winner), self.contestant(right.winner));
        let (winner, won, lost) = if one.beats(&other, self.now) {
            (left.winner, one, other)
        } else {
            (right.winner, other, one)
        };
        Match { winner, turns: turns.min(won.overtaken_by(&lost)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn best_any_history_then_the_maximum_of_a_scan(
            steps in prop::collection::vec((0..30u64, 0..60u64, 0..50u64, 0..4u64), 1..200),
        ) {
            let mut tournament = Tournament::default();
            let mut model: BTreeMap<u64, Contestant> = BTreeMap::new();
            let mut now = 0;
            for (object, weight, ahead, pass) in steps {
                now += pass;
                if weight == 0 {
                    let known = model.remove(&object).is_some();
                    prop_assert_eq!(tournament.remove(object).is_some(), known);
                } else {
                    let contestant = Contestant { object, bytes: weight, weight, next: now + ahead };
                    tournament.set(contestant);
                    model.insert(object, contestant);
                }
                let best = model.values().max_by_key(|c| (c.value(now), std::cmp::Reverse(c.object)));
                let found = tournament.best(now);
                prop_assert_eq!(found.map(|c| c.object), best.map(|c| c.object));
                prop_assert_eq!(tournament.books().bytes, model.values().map(|c| c.bytes).sum::<u64>());
            }
        }
    }
}
