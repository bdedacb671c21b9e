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
use super::{Access, Admission, Candidate, Demand, Hint, Policy, Room, Snapshot, Tally, Victim};
use crate::reference::{Future, References};

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
    tally: Tally,
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
            named: Ranking::new(),
            unnamed: Lru::new(),
            started: false,
            first: false,
            discard: Vec::new(),
            tally: Tally::default(),
        }
    }

    fn key(&self, object: u64, bytes: u64) -> Key {
        (self.references.uses(object).saturating_mul(bytes), object)
    }

    fn is_named(&self, object: u64) -> bool {
        self.references.future(object) != Future::Unknown
    }

    /// Puts a resident object where its future says.
    fn file(&mut self, object: u64, bytes: u64) {
        if self.is_named(object) {
            self.unnamed.removed(object);
            self.named.set(object, bytes, self.key(object, bytes), ());
        } else {
            self.named.remove(object);
            self.unnamed.inserted(object, bytes);
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
            self.tally.victims += self.discard.len() as u64;
            out.extend_from_slice(&self.discard);
        } else {
            for victim in std::mem::take(&mut self.discard) {
                self.file(victim.object, victim.bytes);
            }
        }
        successful
    }

    fn decide(&mut self, candidate: &Candidate, room: &Room<'_>, out: &mut Vec<Victim>) -> bool {
        let Candidate { object, size, resident, .. } = *candidate;
        if self.printed && self.first {
            return false; // D4
        }
        let fits = size <= room.capacity;
        if !fits && !self.printed {
            return false; // D5
        }
        let named = self.is_named(object);
        let uses = self.references.uses(object);
        if named && uses == 0 {
            return false; // Algorithm 2, line 2.
        }
        let need = room.lacking(size.saturating_sub(resident));
        let spare = self.unnamed.snapshot().bytes.min(need);
        let demand = Demand { bytes: spare, ..room.demand(spare) };
        if !named {
            return fits && spare == need && self.unnamed.victims(&demand, out) >= need;
        }
        if need > spare && !self.discard(need - spare, uses.saturating_mul(size), room, out) {
            return false;
        }
        (spare == 0 || self.unnamed.victims(&demand, out) >= spare) && fits
    }
}

impl Policy for Heuristic {
    fn name(&self) -> &'static str {
        if self.printed { "heuristic-printed" } else { "heuristic" }
    }

    fn observe(&mut self, accesses: &[Access]) {
        for access in accesses {
            self.first = !self.started;
            self.started = true;
            self.references.observe(access.object);
            self.unnamed.observe(std::slice::from_ref(access));
            if let Some((bytes, ())) = self.named.get(access.object) {
                self.file(access.object, bytes);
            }
        }
    }

    fn hint(&mut self, hint: &Hint<'_>) {
        self.references.hint(hint);
        if let Hint::Append { objects, .. } = *hint {
            for &object in objects {
                let bytes = self.named.get(object).map(|(bytes, ())| bytes);
                if let Some(bytes) = bytes.or(self.unnamed.bytes_of(object)) {
                    self.file(object, bytes);
                }
            }
        }
    }

    fn inserted(&mut self, object: u64, bytes: u64) {
        self.file(object, bytes);
    }

    fn resized(&mut self, object: u64, bytes: u64) {
        if self.named.get(object).is_some() {
            self.named.resize(object, bytes);
            self.named.update(object, self.key(object, bytes), ());
        }
        self.unnamed.resized(object, bytes);
    }

    fn removed(&mut self, object: u64) {
        self.named.remove(object);
        self.unnamed.removed(object);
    }

    fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        let admitted = self.decide(candidate, room, out);
        self.tally.admission(if admitted { Admission::Whole } else { Admission::Bypass })
    }

    fn victims(&mut self, demand: &Demand<'_>, out: &mut Vec<Victim>) -> u64 {
        let before = out.len();
        let mut freed = self.unnamed.victims(demand, out);
        let given = out.len() - before;
        let rest = Demand {
            bytes: demand.bytes.saturating_sub(freed),
            limit: demand.limit - given,
            busy: demand.busy,
        };
        freed += self.named.give_up(&rest, out, |_| {});
        self.tally.victims += (out.len() - before) as u64;
        freed
    }

    fn snapshot(&self) -> Snapshot {
        let unnamed = self.unnamed.snapshot();
        Snapshot {
            objects: self.named.len() + unnamed.objects,
            bytes: self.named.bytes() + unnamed.bytes,
            ahead: self.references.ahead(),
            ..self.tally.snapshot()
        }
    }
}
