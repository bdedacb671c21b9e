//! The heuristic of HyCache+ (section III-B, algorithms 2 and 3, rules 1 to 3): a file is worth its
//! size times the references to it still ahead. A newcomer gets in if what must leave, cheapest
//! first, is worth less than it.
//!
//! Two readings. The corrected one fixes what the printed algorithms leave open or get wrong:
//! - **D4** the first reference is fetched like any other (`FETCH(i)` handles r(i+1), and nothing
//!   calls `FETCH(0)`);
//! - **D5** a file larger than the cache is read through (the printed loop ends with everything
//!   chosen for eviction and reports success);
//! - **D6** counts run from the current reference: no cached file is the one being fetched, so
//!   counting costs from i+1 and gains from j+1 agree with the printed indices at j = i+1;
//! - **D7** the cumulative test in the loop is one test on the final prefix, as costs are sorted
//!   and not negative; it is strict, as printed, though rule 2 in words admits equality;
//! - **D10** open files do not leave;
//! - **D12** ties, which nothing specifies, go to the smaller number.
//!
//! **D8** (sorting by total instead of density), **D9** (counts ignore when a use comes) and **D11**
//! (dirty victims cost a write) are properties of the heuristic and stay. **D1-D3** concern
//! algorithm 1, **D13** is a slip in the text.
//!
//! Files that no reference sequence names are outside the papers' model: they are kept in LRU
//! order, leave before any named file, and get only the room that named files do not fill.

use super::lru::Lru;
use super::rank::Ranking;
use super::slab::TOGETHER;
use super::{Access, Admission, Candidate, Demand, Hint, Order, Room, Snapshot, Victim};
use crate::reference::References;

/// Cost, then number (D12).
type Key = (u64, u64);

/// The papers' heuristic.
#[derive(Debug)]
pub struct Heuristic {
    printed: bool,
    references: References,
    named: Ranking<Key, ()>,
    unnamed: Lru,
    /// Whether anything was accessed yet (D4).
    started: bool,
    /// The access being served is the first of all.
    first: bool,
    discard: Vec<Victim>,
}

impl Heuristic {
    /// The corrected reading.
    #[must_use]
    pub fn corrected() -> Self {
        Self::new(false)
    }

    /// Strictly as printed, for reproduction.
    #[must_use]
    pub fn printed() -> Self {
        Self::new(true)
    }

    fn new(printed: bool) -> Self {
        Self {
            printed,
            references: References::new(),
            named: Ranking::default(),
            unnamed: Lru::default(),
            started: false,
            first: false,
            discard: Vec::new(),
        }
    }

    fn bytes_of(&self, object: u64) -> Option<u64> {
        self.named.bytes_of(object).or_else(|| self.unnamed.bytes_of(object))
    }

    /// These objects will be looked for soon.
    fn warm(&self, objects: &[u64]) {
        self.named.warm(objects);
        self.unnamed.warm(objects);
    }

    /// Puts a resident object where its future says.
    fn file(&mut self, object: u64, bytes: u64) {
        self.file_from(self.named.find(object), object, bytes);
    }

    /// The same for an object whose slot among the named is known, or that is not among them.
    fn file_from(&mut self, named: Option<u32>, object: u64, bytes: u64) {
        let Some(uses) = self.references.uses(object) else {
            named.into_iter().for_each(|slot| self.named.remove(slot));
            return self.unnamed.insert(object, bytes);
        };
        let key = (uses.saturating_mul(bytes), object);
        match named {
            Some(slot) => {
                self.named.resize(slot, bytes);
                self.named.place(slot, key);
            }
            None => {
                self.unnamed.remove(object);
                self.named.add(object, bytes, key, ());
            }
        }
    }

    /// Algorithm 3: the files to discard for a gain, cheapest first. Whether it was successful;
    /// otherwise nothing is discarded.
    fn discard(&mut self, need: u64, gain: u64, room: &Room<'_>, out: &mut Vec<Victim>) -> bool {
        let mut cost: u64 = 0;
        let mut freed = 0;
        let mut successful = true;
        self.discard.clear();
        while freed < need {
            let Some(first) = self.named.first() else { break };
            if (room.busy)(first.object) {
                self.named.set_first_aside();
                continue;
            }
            cost = cost.saturating_add(first.key.0);
            // D7: strict, in the loop as printed; equal to one test at its end.
            if cost >= gain || self.discard.len() == room.limit {
                successful = false;
                break;
            }
            self.named.pop();
            self.discard.push(Victim::whole(first.object, first.bytes));
            freed += first.bytes;
        }
        // Running out of files counts as success in print (D5).
        successful &= freed >= need || self.printed;
        if successful {
            out.extend_from_slice(&self.discard);
        } else {
            let mut kept = std::mem::take(&mut self.discard);
            for victim in kept.drain(..) {
                self.file(victim.object, victim.bytes);
            }
            self.discard = kept;
        }
        successful
    }

    fn decide(&mut self, candidate: &Candidate, room: &Room<'_>, out: &mut Vec<Victim>) -> bool {
        let Candidate { object, size, .. } = *candidate;
        if self.printed && self.first {
            return false; // D4
        }
        let fits = size <= room.capacity;
        if !fits && !self.printed {
            return false; // D5
        }
        let uses = self.references.uses(object);
        if uses == Some(0) {
            return false; // Algorithm 2, line 2.
        }
        let need = room.lacking(candidate.incoming());
        let spare = self.unnamed.books().bytes.min(need);
        let demand = Demand { bytes: spare, ..room.demand(spare) };
        let Some(uses) = uses else {
            return fits && spare == need && self.unnamed.make_room(&demand, out) >= need;
        };
        if need > spare && !self.discard(need - spare, uses.saturating_mul(size), room, out) {
            return false;
        }
        (spare == 0 || self.unnamed.make_room(&demand, out) >= spare) && fits
    }
}

impl Order for Heuristic {
    fn name(&self) -> &'static str {
        if self.printed { "heuristic-printed" } else { "heuristic" }
    }

    fn touch(&mut self, access: &Access) {
        self.first = !self.started;
        self.started = true;
        self.references.observe(access.object);
        self.warm(self.references.soon());
        match self.named.find(access.object) {
            slot @ Some(at) => self.file_from(slot, access.object, self.named.bytes_at(at)),
            None => self.unnamed.touch(access),
        }
    }

    fn looks_ahead(&self) -> bool {
        true
    }

    fn hint(&mut self, hint: &Hint<'_>) {
        if let Hint::Append { job, objects } = *hint
            && objects.len() > TOGETHER
        {
            // A few at a time: what the references have just looked up is at hand for what follows.
            let parts = objects.chunks(TOGETHER);
            return parts.for_each(|objects| self.hint(&Hint::Append { job, objects }));
        }
        self.references.hint(hint);
        self.warm(hint.objects());
        for &object in hint.objects() {
            let named = self.named.find(object);
            let bytes = match named {
                Some(slot) => Some(self.named.bytes_at(slot)),
                None => self.unnamed.bytes_of(object),
            };
            bytes.into_iter().for_each(|bytes| self.file_from(named, object, bytes));
        }
    }

    fn insert(&mut self, object: u64, bytes: u64) {
        self.file(object, bytes);
    }

    fn resize(&mut self, object: u64, bytes: u64) {
        if self.bytes_of(object).is_some() {
            self.file(object, bytes);
        }
    }

    fn remove(&mut self, object: u64) {
        if self.named.forget(object).is_none() {
            self.unnamed.remove(object);
        }
    }

    fn evict(&mut self, busy: &dyn Fn(u64) -> bool) -> Option<Victim> {
        let unnamed = self.unnamed.evict(busy);
        unnamed.or_else(|| self.named.evict(busy).map(|(victim, _)| victim))
    }

    fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        let admitted = self.decide(candidate, room, out);
        if admitted { Admission::Whole } else { Admission::Bypass }
    }

    fn books(&self) -> Snapshot {
        let (named, unnamed) = (self.named.books(), self.unnamed.books());
        Snapshot {
            objects: named.objects + unnamed.objects,
            bytes: named.bytes + unnamed.bytes,
            ahead: self.references.ahead(),
            ..unnamed
        }
    }
}
