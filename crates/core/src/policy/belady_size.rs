//! Belady-size: what occupies the most bytes for the longest time to its next use leaves first, the
//! exact maximum of size x (next use - now) where libCacheSim samples. What is used never again is
//! not kept. Needs a reference sequence; what none names counts as used never.

use super::kinetic::{Contestant, Tournament};
use super::lru::Lru;
use super::{Access, Admission, Candidate, Demand, Hint, Policy, Room, Snapshot, Tally, Victim};
use crate::reference::{Future, References};

/// Largest size x time to the next use first.
#[derive(Debug)]
pub struct BeladySize {
    references: References,
    alive: Tournament,
    /// Resident and never used again: free room.
    dead: Lru,
    aside: Vec<Contestant>,
    tally: Tally,
}

impl BeladySize {
    /// An empty one that knows of no sequence yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            references: References::new(),
            alive: Tournament::new(),
            dead: Lru::new(),
            aside: Vec::new(),
            tally: Tally::default(),
        }
    }

    fn file(&mut self, object: u64, bytes: u64) {
        if let Future::At(next) = self.references.future(object) {
            self.alive.set(Contestant { object, bytes, weight: bytes, next });
        } else {
            self.alive.remove(object);
            self.dead.inserted(object, bytes);
        }
    }

    /// Bytes of a resident object, which is taken off the dead.
    fn revive(&mut self, object: u64) -> Option<u64> {
        let bytes = self.dead.bytes_of(object);
        self.dead.removed(object);
        bytes.or(self.alive.get(object).map(|known| known.bytes))
    }
}

impl Default for BeladySize {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy for BeladySize {
    fn name(&self) -> &'static str {
        "belady-size"
    }

    fn observe(&mut self, accesses: &[Access]) {
        for access in accesses {
            self.references.observe(access.object);
            if let Some(&Contestant { bytes, .. }) = self.alive.get(access.object) {
                self.file(access.object, bytes);
            }
        }
    }

    fn hint(&mut self, hint: &Hint<'_>) {
        self.references.hint(hint);
        if let Hint::Append { objects, .. } = *hint {
            for &object in objects {
                if let Some(bytes) = self.revive(object) {
                    self.file(object, bytes);
                }
            }
        }
    }

    fn inserted(&mut self, object: u64, bytes: u64) {
        self.revive(object);
        self.file(object, bytes);
    }

    fn resized(&mut self, object: u64, bytes: u64) {
        if self.revive(object).is_some() {
            self.file(object, bytes);
        }
    }

    fn removed(&mut self, object: u64) {
        self.revive(object);
        self.alive.remove(object);
    }

    fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        let admission = match self.references.future(candidate.object) {
            Future::At(_) => super::make_room(self, candidate, room, out),
            Future::Unknown | Future::Dead => {
                super::make_room(self, candidate, room, out);
                Admission::Bypass
            }
        };
        self.tally.admission(admission)
    }

    fn victims(&mut self, demand: &Demand<'_>, out: &mut Vec<Victim>) -> u64 {
        let before = out.len();
        let mut freed = self.dead.victims(demand, out);
        for victim in &mut out[before..] {
            victim.dead = true;
        }
        // The reference being served has been consumed; distances count from it.
        let now = self.references.now().saturating_sub(1);
        while freed < demand.bytes && out.len() - before < demand.limit {
            let Some(best) = self.alive.best(now) else { break };
            self.alive.remove(best.object);
            if (demand.busy)(best.object) {
                self.aside.push(best);
                continue;
            }
            freed += best.bytes;
            out.push(Victim::whole(best.object, best.bytes));
        }
        for busy in std::mem::take(&mut self.aside) {
            self.alive.set(busy);
        }
        self.tally.victims += (out.len() - before) as u64;
        freed
    }

    fn snapshot(&self) -> Snapshot {
        let dead = self.dead.snapshot();
        Snapshot {
            objects: self.alive.len() + dead.objects,
            bytes: self.alive.bytes() + dead.bytes,
            ahead: self.references.ahead(),
            ..self.tally.snapshot()
        }
    }
}
