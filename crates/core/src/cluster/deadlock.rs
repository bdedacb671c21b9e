//! Programs on several nodes that wait for each other in a circle.
//!
//! A program that waits for a lock of a range waits for all who have what is in its way. If one of
//! those waits itself, and so on until it comes back to the first, none of them ever goes on: the
//! one that closed the circle is told (`EDEADLK`, POSIX.1-2017, `fcntl`). Such a circle stays as it
//! is, so it can be looked for in the locks of several files that were not read at one moment, if
//! they are the same when they are read again.

use std::collections::{BTreeMap, BTreeSet};

use super::locks::{Family, Holder, Locks};

/// Whether somebody who waits in one of these files waits for himself in the end. Locks of whole
/// files (`flock`) count for nothing here, as on a node by itself.
#[must_use]
pub fn is_in_circle<'a>(waiter: Holder, files: impl IntoIterator<Item = &'a Locks>) -> bool {
    let mut waits_for: BTreeMap<Holder, BTreeSet<Holder>> = BTreeMap::new();
    for locks in files {
        for waiting in locks.waiting() {
            let holder = waiting.wanted.holder;
            if holder.family == Family::Ranges {
                let blockers = locks.blockers(&waiting.wanted).map(|lock| lock.holder);
                waits_for.entry(holder).or_default().extend(blockers);
            }
        }
    }
    let mut seen = BTreeSet::new();
    let mut next = vec![waiter];
    while let Some(holder) = next.pop() {
        for other in waits_for.get(&holder).into_iter().flatten() {
            if *other == waiter {
                return true;
            }
            if seen.insert(*other) {
                next.push(*other);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::locks::{Lock, Mode, Outcome, Span};
    use super::super::ownership::Incarnation;
    use super::super::{Epoch, NodeId};
    use super::*;

    fn holder(number: u64, family: Family) -> Holder {
        let incarnation = Incarnation { node: NodeId(number as u32 % 3), epoch: Epoch(1) };
        Holder { family, incarnation, owner: number }
    }

    fn wanted(number: u64, family: Family, mode: Mode) -> Lock {
        Lock { holder: holder(number, family), span: Span::ALL, mode, pid: 1 }
    }

    fn takes(locks: &mut Locks, number: u64, family: Family) -> Outcome {
        locks.acquire_or_wait(wanted(number, family, Mode::Exclusive), number).unwrap()
    }

    #[test]
    fn waiters_when_each_has_what_the_next_wants_then_the_last_is_in_a_circle() {
        for count in 2..5 {
            let mut files = vec![Locks::default(); count as usize];
            for number in 0..count {
                takes(&mut files[number as usize], number, Family::Ranges);
            }
            for number in 0..count {
                assert!(!is_in_circle(holder(number, Family::Ranges), &files));
                takes(&mut files[((number + 1) % count) as usize], number, Family::Ranges);
            }
            for number in 0..count {
                assert!(is_in_circle(holder(number, Family::Ranges), &files));
            }
            // Who waits for one of them is in no circle himself.
            takes(&mut files[0], 9, Family::Ranges);
            assert!(!is_in_circle(holder(9, Family::Ranges), &files));
            files[0].cancel(holder(count - 1, Family::Ranges).incarnation, count - 1);
            assert!(!is_in_circle(holder(0, Family::Ranges), &files));
        }
    }

    #[test]
    fn waiters_for_whole_files_then_are_in_no_circle() {
        let mut files = [Locks::default(), Locks::default()];
        for number in [0, 1] {
            takes(&mut files[number as usize], number, Family::Whole);
        }
        for number in [0, 1] {
            takes(&mut files[1 - number as usize], number, Family::Whole);
        }
        assert!(!is_in_circle(holder(0, Family::Whole), &files));
    }

    #[test]
    fn waiter_when_several_are_in_the_way_then_a_circle_through_any_counts() {
        let mut files = [Locks::default(), Locks::default()];
        for number in [1, 2, 3] {
            let shared = wanted(number, Family::Ranges, Mode::Shared);
            assert_eq!(files[0].acquire(shared), Ok(Outcome::Held));
        }
        takes(&mut files[1], 4, Family::Ranges);
        takes(&mut files[0], 4, Family::Ranges);
        assert!(!is_in_circle(holder(4, Family::Ranges), &files));
        takes(&mut files[1], 3, Family::Ranges);
        assert!(is_in_circle(holder(3, Family::Ranges), &files));
    }

    proptest! {
        /// Nobody is in a circle exactly if all can go on one after the other.
        #[test]
        fn waiters_of_any_files_then_in_a_circle_exactly_if_some_can_never_go_on(
            steps in prop::collection::vec((0u64..6, 0usize..4, any::<bool>()), 0..30)
        ) {
            let mut files = vec![Locks::default(); 4];
            for (ticket, (number, file, shared)) in (0..).zip(steps) {
                let is_waiting = files.iter().any(|locks| {
                    locks.waiting().iter().any(|waiting| waiting.wanted.holder.owner == number)
                });
                if !is_waiting {
                    let mode = if shared { Mode::Shared } else { Mode::Exclusive };
                    let wanted = wanted(number, Family::Ranges, mode);
                    files[file].acquire_or_wait(wanted, ticket).unwrap();
                }
            }
            let circle = (0..6).any(|number| is_in_circle(holder(number, Family::Ranges), &files));
            // Who does not wait ends, with all that he has, until nobody is left to end.
            let mut left: BTreeSet<u64> = (0..6).collect();
            loop {
                let waits = |number: &u64| files.iter().any(|locks| {
                    locks.waiting().iter().any(|waiting| waiting.wanted.holder.owner == *number)
                });
                let Some(number) = left.iter().copied().find(|number| !waits(number)) else { break };
                left.remove(&number);
                for locks in &mut files {
                    locks.release(holder(number, Family::Ranges), Span::ALL);
                }
            }
            prop_assert_eq!(circle, !left.is_empty());
        }
    }
}
