//! Forebay-MIN for whole files where a request costs time besides its bytes: what saves the least
//! for the room it takes leaves first.
//!
//! A miss costs as much as reading `request cost + size` bytes. Kept until its next use, a file takes
//! `size` bytes for `next use - now`, so that the largest (next use - now) x size / (request cost +
//! size) leaves first. With a request cost of 0 this is MIN's order. (Weighting by `size` alone, as
//! Belady-size does, minimises requests, not bytes.) The order changes with time, hence a kinetic
//! tournament. Classes and bypass are as in [`super::Min`].

use super::kinetic::{Contestant, Tournament};
use super::s3fifo::S3Fifo;
use super::{
    Access, Admission, Candidate, Demand, Hint, Policy, PolicyConfig, Room, Snapshot, Tally, Victim,
};
use crate::reference::{Future, References};

/// The next use of what is dead: farther than any other, near enough not to overflow.
const NEVER: u64 = u64::MAX;
/// Weight 1.
const UNIT: u64 = 1 << 20;

/// Whole files by next use and what a miss costs.
#[derive(Debug)]
pub struct MinCost {
    request_cost: u64,
    references: References,
    known: Tournament,
    unknown: S3Fifo,
    taken: Vec<Contestant>,
    tally: Tally,
}

impl MinCost {
    /// An empty one; `config.request_cost` is what a request costs, in bytes.
    #[must_use]
    pub fn new(config: &PolicyConfig) -> Self {
        Self {
            request_cost: config.request_cost,
            references: References::new(),
            known: Tournament::new(),
            unknown: S3Fifo::new(&PolicyConfig { admit_large: true, ..*config }),
            taken: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// What the order makes of an object, if its future is known.
    fn contestant(&self, object: u64, bytes: u64) -> Option<Contestant> {
        let next = match self.references.future(object) {
            Future::At(at) => at,
            Future::Dead => NEVER,
            Future::Unknown => return None,
        };
        let whole = u128::from(self.request_cost) + u128::from(bytes.max(1));
        let weight = (u128::from(bytes.max(1)) * u128::from(UNIT) / whole) as u64;
        Some(Contestant { object, bytes, weight: weight.max(1), next })
    }

    fn file(&mut self, object: u64, bytes: u64) {
        if let Some(contestant) = self.contestant(object, bytes) {
            self.unknown.removed(object);
            self.known.set(contestant);
        } else {
            self.known.remove(object);
            self.unknown.inserted(object, bytes);
        }
    }

    fn bytes_of(&self, object: u64) -> Option<u64> {
        self.known.get(object).map(|known| known.bytes).or_else(|| self.unknown.bytes_of(object))
    }

    /// The reference being served has been consumed; distances count from it.
    fn now(&self) -> u64 {
        self.references.now().saturating_sub(1)
    }

    /// Takes what leaves before `newcomer` (anything if there is none) until `need` is met. Busy ones
    /// and, if that is not enough and all or nothing is wanted, all of them are put back.
    fn take(
        &mut self,
        need: u64,
        newcomer: Option<&Contestant>,
        demand: &Demand<'_>,
        out: &mut Vec<Victim>,
    ) -> u64 {
        let now = self.now();
        let (mut freed, mut busy) = (0, Vec::new());
        self.taken.clear();
        while freed < need && self.taken.len() < demand.limit {
            let Some(best) = self.known.best(now) else { break };
            if newcomer.is_some_and(|newcomer| !best.beats(newcomer, now)) {
                break;
            }
            self.known.remove(best.object);
            if (demand.busy)(best.object) {
                busy.push(best);
                continue;
            }
            freed += best.bytes;
            self.taken.push(best);
        }
        let enough = freed >= need || newcomer.is_none();
        for back in busy {
            self.known.set(back);
        }
        // Most precious first: give back what was not needed.
        self.taken.reverse();
        let known = &mut self.known;
        self.taken.retain(|one| {
            let needed = enough && freed < need.saturating_add(one.bytes);
            if !needed {
                freed -= one.bytes;
                known.set(*one);
            }
            needed
        });
        out.extend(self.taken.iter().rev().map(|gone| Victim {
            dead: gone.next == NEVER,
            ..Victim::whole(gone.object, gone.bytes)
        }));
        freed
    }

    fn decide(&mut self, candidate: &Candidate, room: &Room<'_>, out: &mut Vec<Victim>) -> bool {
        let newcomer = self.contestant(candidate.object, candidate.size);
        if candidate.size > room.capacity || newcomer.is_some_and(|one| one.next == NEVER) {
            return false;
        }
        let need = room.lacking(candidate.size.saturating_sub(candidate.resident));
        let spare = self.unknown.snapshot().bytes.min(need);
        if spare < need {
            // What is unknown never displaces what is known, but the dead make room for all.
            let rival = newcomer.unwrap_or(Contestant {
                object: candidate.object,
                bytes: candidate.size,
                weight: UNIT,
                next: NEVER - 1,
            });
            let demand = room.demand(need - spare);
            if self.take(need - spare, Some(&rival), &demand, out) < need - spare {
                return false;
            }
        }
        spare == 0 || self.unknown.victims(&room.demand(spare), out) >= spare
    }
}

impl Policy for MinCost {
    fn name(&self) -> &'static str {
        "min-whole"
    }

    fn observe(&mut self, accesses: &[Access]) {
        for access in accesses {
            self.references.observe(access.object);
            self.unknown.observe(std::slice::from_ref(access));
            if let Some(&Contestant { bytes, .. }) = self.known.get(access.object) {
                self.file(access.object, bytes);
            }
        }
    }

    fn hint(&mut self, hint: &Hint<'_>) {
        self.references.hint(hint);
        if let Hint::Append { objects, .. } = *hint {
            for &object in objects {
                if let Some(bytes) = self.bytes_of(object) {
                    self.file(object, bytes);
                }
            }
        }
    }

    fn inserted(&mut self, object: u64, bytes: u64) {
        self.file(object, bytes);
    }

    fn resized(&mut self, object: u64, bytes: u64) {
        if self.bytes_of(object).is_some() {
            self.file(object, bytes);
            self.unknown.resized(object, bytes);
        }
    }

    fn removed(&mut self, object: u64) {
        self.known.remove(object);
        self.unknown.removed(object);
    }

    fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        let before = out.len();
        let admitted = self.decide(candidate, room, out);
        self.tally.victims += (out.len() - before) as u64;
        self.tally.admission(if admitted { Admission::Whole } else { Admission::Bypass })
    }

    fn victims(&mut self, demand: &Demand<'_>, out: &mut Vec<Victim>) -> u64 {
        let before = out.len();
        let mut freed = self.unknown.victims(demand, out);
        let limit = demand.limit - (out.len() - before);
        let need = demand.bytes.saturating_sub(freed);
        freed += self.take(need, None, &Demand { bytes: need, limit, busy: demand.busy }, out);
        self.tally.victims += (out.len() - before) as u64;
        freed
    }

    fn snapshot(&self) -> Snapshot {
        let unknown = self.unknown.snapshot();
        Snapshot {
            objects: self.known.len() + unknown.objects,
            bytes: self.known.bytes() + unknown.bytes,
            ghosts: unknown.ghosts,
            ahead: self.references.ahead(),
            ..self.tally.snapshot()
        }
    }
}
