//! Is a concurrent history linearizable? The search of Wing and Gong (*Testing and verifying
//! concurrent objects*, 1993) with the memory of Lowe (*Testing for linearizability*, 2017).

use std::collections::{BTreeMap, HashSet};

/// The state of a partition: its keys.
pub type State = BTreeMap<u8, u64>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Reads keys at one instant.
    Read(Vec<(u8, Option<u64>)>),
    /// If the first key has the first value, all are set.
    Swap { key: u8, from: Option<u64>, to: u64, also: u8, done: bool },
}

/// An operation, the moments between which it happened; without an end nobody knows whether it has,
/// or will.
#[derive(Debug, Clone)]
pub struct Event {
    pub begin: u64,
    pub end: Option<u64>,
    pub op: Op,
}

impl Op {
    /// The state after it, if it can happen in `state` as it was answered.
    fn apply(&self, state: &State, answered: bool) -> Option<State> {
        match self {
            Op::Read(found) => {
                let same = found.iter().all(|(key, value)| state.get(key) == value.as_ref());
                (same || !answered).then(|| state.clone())
            }
            Op::Swap { key, from, to, also, done } => {
                let holds = state.get(key).copied() == *from;
                match (holds, *done || !answered) {
                    (true, true) => {
                        let mut state = state.clone();
                        state.insert(*key, *to);
                        state.insert(*also, *to);
                        Some(state)
                    }
                    (false, _) if !answered || !done => Some(state.clone()),
                    _ => None,
                }
            }
        }
    }
}

/// Whether the events can be put into an order that each answer fits, from the empty state.
pub fn is_linearizable(events: &[Event]) -> bool {
    let mut events = events.to_vec();
    events.sort_by_key(|event| event.begin);
    let words = events.len().div_ceil(64);
    let mut stack = vec![(vec![0u64; words], State::new())];
    let mut seen = HashSet::new();
    while let Some((done, state)) = stack.pop() {
        if !seen.insert((done.clone(), state.clone())) {
            continue;
        }
        let is_done = |at: usize| done[at / 64] >> (at % 64) & 1 == 1;
        let open = (0..events.len()).filter(|at| !is_done(*at));
        let Some(first_end) = open.clone().filter_map(|at| events[at].end).min() else {
            return true;
        };
        for at in open.take_while(|at| events[*at].begin <= first_end) {
            let event = &events[at];
            if let Some(next) = event.op.apply(&state, event.end.is_some()) {
                let mut done = done.clone();
                done[at / 64] |= 1 << (at % 64);
                stack.push((done, next));
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(begin: u64, end: u64, op: Op) -> Event {
        Event { begin, end: (end > 0).then_some(end), op }
    }

    fn read(value: Option<u64>) -> Op {
        Op::Read(vec![(1, value)])
    }

    fn swap(from: Option<u64>, to: u64, done: bool) -> Op {
        Op::Swap { key: 1, from, to, also: 2, done }
    }

    #[test]
    fn history_that_is_sound_then_is_accepted() {
        let overlapping = [
            event(1, 10, swap(None, 5, true)),
            event(2, 9, read(None)),
            event(3, 8, read(Some(5))),
            event(11, 12, swap(None, 6, false)),
            event(13, 14, Op::Read(vec![(1, Some(5)), (2, Some(5))])),
        ];
        assert!(is_linearizable(&overlapping));
        // An operation without an answer may happen late, or never.
        assert!(is_linearizable(&[event(1, 0, swap(None, 5, true)), event(2, 3, read(None))]));
        let late =
            [event(1, 0, swap(None, 5, true)), event(2, 3, read(None)), event(4, 5, read(Some(5)))];
        assert!(is_linearizable(&late));
    }

    #[test]
    fn history_that_is_unsound_then_is_refused() {
        let stale = [event(1, 2, swap(None, 5, true)), event(3, 4, read(None))];
        assert!(!is_linearizable(&stale));
        let backwards =
            [event(1, 9, swap(None, 5, true)), event(2, 3, read(Some(5))), event(4, 5, read(None))];
        assert!(!is_linearizable(&backwards));
        let twice = [event(1, 9, swap(None, 5, true)), event(2, 8, swap(None, 6, true))];
        assert!(!is_linearizable(&twice));
        let half = [event(1, 2, swap(None, 5, true)), event(3, 4, Op::Read(vec![(2, None)]))];
        assert!(!is_linearizable(&half));
        let without_reason = [event(1, 2, swap(None, 5, false))];
        assert!(!is_linearizable(&without_reason));
    }
}
