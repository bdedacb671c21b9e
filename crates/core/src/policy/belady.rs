//! Belady's rule (L. A. Belady, IBM Systems Journal 5(2), 1966): what is used farthest in the
//! future leaves first. Always admits, as in its original setting. Needs a reference sequence; what
//! none names counts as used never.

use std::cmp::Reverse;

use super::rank::Ranking;
use super::{Access, Admission, Candidate, Demand, Hint, Policy, Room, Snapshot, Tally, Victim};
use crate::reference::{Future, References};

/// Farthest next use first.
#[derive(Debug)]
pub struct Belady {
    references: References,
    ranking: Ranking<Reverse<u64>, ()>,
    tally: Tally,
}

impl Belady {
    /// An empty one that knows of no sequence yet.
    #[must_use]
    pub fn new() -> Self {
        Self { references: References::new(), ranking: Ranking::new(), tally: Tally::default() }
    }

    fn key(&self, object: u64) -> Reverse<u64> {
        match self.references.future(object) {
            Future::At(at) => Reverse(at),
            Future::Unknown | Future::Dead => Reverse(u64::MAX),
        }
    }
}

impl Default for Belady {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy for Belady {
    fn name(&self) -> &'static str {
        "belady"
    }

    fn observe(&mut self, accesses: &[Access]) {
        for access in accesses {
            self.references.observe(access.object);
            self.ranking.update(access.object, self.key(access.object), ());
        }
    }

    fn hint(&mut self, hint: &Hint<'_>) {
        self.references.hint(hint);
        if let Hint::Append { objects, .. } = *hint {
            for &object in objects {
                self.ranking.update(object, self.key(object), ());
            }
        }
    }

    fn inserted(&mut self, object: u64, bytes: u64) {
        self.ranking.set(object, bytes, self.key(object), ());
    }

    fn resized(&mut self, object: u64, bytes: u64) {
        self.ranking.resize(object, bytes);
    }

    fn removed(&mut self, object: u64) {
        self.ranking.remove(object);
    }

    fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        let admission = super::make_room(self, candidate, room, out);
        self.tally.admission(admission)
    }

    fn victims(&mut self, demand: &Demand<'_>, out: &mut Vec<Victim>) -> u64 {
        let before = out.len();
        let freed = self.ranking.give_up(demand, out, |_| {});
        self.tally.victims += (out.len() - before) as u64;
        freed
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            objects: self.ranking.len(),
            bytes: self.ranking.bytes(),
            ahead: self.references.ahead(),
            ..self.tally.snapshot()
        }
    }
}
