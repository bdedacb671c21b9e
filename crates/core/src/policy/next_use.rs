//! Resident objects whose next use is known, in the order in which they had better leave: the common
//! ground of Belady's rule, Belady-size and Forebay-MIN.

use std::cmp::Reverse;

use super::kinetic::{Contestant, Tournament};
use super::rank::{Ranked, Ranking};
use super::{PolicyConfig, Snapshot, Victim};

/// The next use of what is dead.
pub(super) const NEVER: u64 = u64::MAX;

/// An object with its next use, on the clock of [`References::now`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub object: u64,
    pub bytes: u64,
    pub next: u64,
}

impl Known {
    /// All of it, as a victim.
    pub fn victim(&self) -> Victim {
        Victim { dead: self.next == NEVER, ..Victim::whole(self.object, self.bytes) }
    }
}

/// An order among objects of known next use.
pub(super) trait NextUseOrder: Send + std::fmt::Debug {
    /// Adds the object or changes it; brings it back if it was set aside.
    fn set(&mut self, known: Known);

    /// Gives the object another next use and brings it back if it was set aside; whether it is there.
    fn reschedule(&mut self, object: u64, next: u64) -> bool;

    /// Takes the object off; gives back its bytes.
    fn remove(&mut self, object: u64) -> Option<u64>;

    /// These objects will be looked for soon.
    fn warm(&self, objects: &[u64]);

    /// The object's bytes, if it is known.
    fn bytes_of(&self, object: u64) -> Option<u64>;

    /// The first to leave at a moment.
    fn first(&mut self, now: u64) -> Option<Known>;

    /// Leaves the object out until it is set again.
    fn set_aside(&mut self, object: u64);

    /// Whether `first` is to leave rather than `newcomer` to be passed by.
    fn leaves_before(&self, first: &Known, newcomer: &Known, now: u64) -> bool;

    /// Objects and bytes.
    fn books(&self) -> Snapshot;

    /// The first to leave that is not busy; what is busy is set aside.
    fn first_free(&mut self, now: u64, busy: &dyn Fn(u64) -> bool) -> Option<Known> {
        loop {
            let first = self.first(now)?;
            if !busy(first.object) {
                return Some(first);
            }
            self.set_aside(first.object);
        }
    }
}

/// Farthest next use first: fewest bytes missed.
#[derive(Debug, Default)]
pub(super) struct Farthest(Ranking<Reverse<u64>, ()>);

impl NextUseOrder for Farthest {
    fn set(&mut self, Known { object, bytes, next }: Known) {
        match self.0.find(object) {
            Some(slot) => {
                self.0.resize(slot, bytes);
                self.0.place(slot, Reverse(next));
            }
            None => self.0.add(object, bytes, Reverse(next), ()),
        }
    }

    fn reschedule(&mut self, object: u64, next: u64) -> bool {
        let slot = self.0.find(object);
        slot.into_iter().for_each(|slot| self.0.place(slot, Reverse(next)));
        slot.is_some()
    }

    fn remove(&mut self, object: u64) -> Option<u64> {
        self.0.forget(object)
    }

    fn warm(&self, objects: &[u64]) {
        self.0.warm(objects);
    }

    fn bytes_of(&self, object: u64) -> Option<u64> {
        self.0.bytes_of(object)
    }

    fn first(&mut self, _now: u64) -> Option<Known> {
        let Ranked { object, bytes, key: Reverse(next) } = self.0.first()?;
        Some(Known { object, bytes, next })
    }

    fn set_aside(&mut self, object: u64) {
        debug_assert_eq!(self.0.first().map(|first| first.object), Some(object));
        self.0.set_first_aside();
    }

    fn leaves_before(&self, first: &Known, newcomer: &Known, _now: u64) -> bool {
        first.next > newcomer.next
    }

    fn books(&self) -> Snapshot {
        self.0.books()
    }
}

/// What an object's bytes weigh against the time to its next use.
#[derive(Debug, Clone, Copy)]
enum Weight {
    /// Their number.
    Bytes,
    /// Their share in what a miss costs; a request costs as much as so many bytes.
    Share(u64),
}

/// Largest weight x (next use - now) first.
#[derive(Debug)]
pub(super) struct Weighted {
    tournament: Tournament,
    weight: Weight,
}

impl Weighted {
    /// By bytes x time: fewest requests missed, as Belady-size approximates it.
    pub fn by_bytes() -> Self {
        Self { tournament: Tournament::default(), weight: Weight::Bytes }
    }

    /// By what is saved for the room taken. A miss costs as much as reading `request cost + size`
    /// bytes, and keeping a file takes `size` bytes for `next use - now`, so that the largest
    /// (next use - now) x size / (request cost + size) leaves first.
    pub fn by_cost(config: &PolicyConfig) -> Self {
        Self { tournament: Tournament::default(), weight: Weight::Share(config.request_cost) }
    }

    fn contestant(&self, Known { object, bytes, next }: Known) -> Contestant {
        let weight = match self.weight {
            // The dead before everything else.
            _ if next == NEVER => 1 << 62,
            Weight::Bytes => bytes.max(1),
            Weight::Share(request_cost) => {
                let whole = u128::from(request_cost) + u128::from(bytes.max(1));
                ((u128::from(bytes.max(1)) << 20) / whole).max(1) as u64
            }
        };
        Contestant { object, bytes, weight, next }
    }
}

impl NextUseOrder for Weighted {
    fn set(&mut self, known: Known) {
        self.tournament.set(self.contestant(known));
    }

    fn reschedule(&mut self, object: u64, next: u64) -> bool {
        let bytes = self.bytes_of(object);
        bytes.into_iter().for_each(|bytes| self.set(Known { object, bytes, next }));
        bytes.is_some()
    }

    fn remove(&mut self, object: u64) -> Option<u64> {
        self.tournament.remove(object)
    }

    fn warm(&self, objects: &[u64]) {
        self.tournament.warm(objects);
    }

    fn bytes_of(&self, object: u64) -> Option<u64> {
        self.tournament.bytes_of(object)
    }

    fn first(&mut self, now: u64) -> Option<Known> {
        let Contestant { object, bytes, next, .. } = self.tournament.best(now)?;
        Some(Known { object, bytes, next })
    }

    fn set_aside(&mut self, object: u64) {
        self.tournament.set_aside(object);
    }

    fn leaves_before(&self, first: &Known, newcomer: &Known, now: u64) -> bool {
        self.contestant(*first).beats(&self.contestant(*newcomer), now)
    }

    fn books(&self) -> Snapshot {
        self.tournament.books()
    }
}
