//! Objects ordered by weight x (next use - now), an order that changes as time passes: a kinetic
//! tournament (Basch, Guibas, Hershberger: "Data structures for mobile data", 1997). Every match of
//! a binary tree remembers its winner and when the earliest match below it turns.

use super::index::Map;

const NIL: u32 = u32::MAX;
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

#[derive(Debug, Clone, Copy)]
struct Match {
    winner: u32,
    turns: u64,
}

/// The tournament.
#[derive(Debug)]
pub(crate) struct Tournament {
    index: Map<u32>,
    slots: Vec<Contestant>,
    free: Vec<u32>,
    /// A heap-shaped tree over `leaves` slots; the root is at 1, the leaves follow the matches.
    matches: Vec<Match>,
    leaves: usize,
    now: u64,
    bytes: u64,
}

impl Tournament {
    pub fn new() -> Self {
        let empty = Match { winner: NIL, turns: NEVER };
        Self {
            index: Map::default(),
            slots: Vec::new(),
            free: Vec::new(),
            matches: vec![empty; 2],
            leaves: 1,
            now: 0,
            bytes: 0,
        }
    }

    pub fn len(&self) -> u64 {
        self.index.len() as u64
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn get(&self, object: u64) -> Option<&Contestant> {
        self.index.get(&object).map(|slot| &self.slots[*slot as usize])
    }

    /// Adds or changes a contestant.
    pub fn set(&mut self, contestant: Contestant) {
        let slot = match self.index.get(&contestant.object) {
            Some(&slot) => {
                self.bytes -= self.slots[slot as usize].bytes;
                self.slots[slot as usize] = contestant;
                slot
            }
            None => self.add(contestant),
        };
        self.bytes += contestant.bytes;
        self.matches[self.leaves + slot as usize].winner = slot;
        self.replay(slot);
    }

    pub fn remove(&mut self, object: u64) -> Option<Contestant> {
        let slot = self.index.remove(&object)?;
        self.matches[self.leaves + slot as usize].winner = NIL;
        self.replay(slot);
        self.free.push(slot);
        let gone = self.slots[slot as usize];
        self.bytes -= gone.bytes;
        Some(gone)
    }

    /// The contestant of the largest value at a moment, which must not lie before the last one.
    pub fn best(&mut self, now: u64) -> Option<Contestant> {
        self.now = self.now.max(now);
        if self.matches[1].turns <= self.now {
            self.refresh(1);
        }
        let winner = self.matches[1].winner;
        (winner != NIL).then(|| self.slots[winner as usize])
    }

    fn add(&mut self, contestant: Contestant) -> u32 {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = contestant;
                slot
            }
            None => {
                self.slots.push(contestant);
                (self.slots.len() - 1) as u32
            }
        };
        if slot as usize >= self.leaves {
            self.grow();
        }
        self.index.insert(contestant.object, slot);
        slot
    }

    fn grow(&mut self) {
        let empty = Match { winner: NIL, turns: NEVER };
        let mut matches = vec![empty; 4 * self.leaves];
        matches[2 * self.leaves..3 * self.leaves].copy_from_slice(&self.matches[self.leaves..]);
        self.matches = matches;
        self.leaves *= 2;
        for at in (1..self.leaves).rev() {
            self.matches[at] = self.play(at);
        }
    }

    /// Plays the matches from a slot up to the root again.
    fn replay(&mut self, slot: u32) {
        let mut at = (self.leaves + slot as usize) / 2;
        while at > 0 {
            self.matches[at] = self.play(at);
            at /= 2;
        }
    }

    /// Plays those matches at and below a place again whose time has come.
    fn refresh(&mut self, at: usize) {
        if at >= self.leaves || self.matches[at].turns > self.now {
            return;
        }
        self.refresh(2 * at);
        self.refresh(2 * at + 1);
        self.matches[at] = self.play(at);
    }

    fn play(&self, at: usize) -> Match {
        let (left, right) = (self.matches[2 * at], self.matches[2 * at + 1]);
        let turns = left.turns.min(right.turns);
        if left.winner == NIL || right.winner == NIL {
            let winner = if left.winner == NIL { right.winner } else { left.winner };
            return Match { winner, turns };
        }
        let (one, other) = (&self.slots[left.winner as usize], &self.slots[right.winner as usize]);
        let (winner, won, lost) = if one.beats(other, self.now) {
            (left.winner, one, other)
        } else {
            (right.winner, other, one)
        };
        Match { winner, turns: turns.min(won.overtaken_by(lost)) }
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
            let mut tournament = Tournament::new();
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
                prop_assert_eq!(tournament.bytes(), model.values().map(|c| c.bytes).sum::<u64>());
            }
        }
    }
}
