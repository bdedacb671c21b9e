//! The offline rules: what leaves is decided by next uses alone, and everything is admitted. They
//! need a reference sequence; what none names counts as used never.
//!
//! Belady's rule (L. A. Belady, IBM Systems Journal 5(2), 1966): what is used farthest in the future
//! leaves first. Belady-size: what occupies the most bytes for the longest time to its next use
//! does, the exact maximum of size x (next use - now) where libCacheSim samples; what is used never
//! again is not kept.

use super::next_use::{Farthest, Known, NEVER, NextUseOrder, Weighted};
use super::order::admit_what_fits;
use super::{Access, Admission, Candidate, Hint, Order, Room, Snapshot, Victim};
use crate::reference::{Future, References};

/// An offline rule.
#[derive(Debug)]
struct Offline<O> {
    name: &'static str,
    references: References,
    residents: O,
    keeps_dead: bool,
}

/// Belady's rule, without knowledge yet.
#[must_use]
pub fn belady() -> impl Order {
    let residents = Farthest::default();
    Offline { name: "belady", references: References::new(), residents, keeps_dead: true }
}

/// Belady-size, without knowledge yet.
#[must_use]
pub fn belady_size() -> impl Order {
    let residents = Weighted::by_bytes();
    Offline { name: "belady-size", references: References::new(), residents, keeps_dead: false }
}

impl<O: NextUseOrder> Offline<O> {
    fn next_use(&self, object: u64) -> u64 {
        match self.references.future(object) {
            Future::At(at) => at,
            Future::Unknown | Future::Dead => NEVER,
        }
    }

    /// Puts a resident object where its next use says.
    fn refile(&mut self, object: u64) {
        if let Some(bytes) = self.residents.bytes_of(object) {
            self.insert(object, bytes);
        }
    }
}

impl<O: NextUseOrder> Order for Offline<O> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn touch(&mut self, access: &Access) {
        self.references.observe(access.object);
        self.residents.warm(self.references.soon());
        self.refile(access.object);
    }

    fn looks_ahead(&self) -> bool {
        true
    }

    fn hint(&mut self, hint: &Hint<'_>) {
        self.references.hint(hint);
        hint.objects().iter().for_each(|object| self.refile(*object));
    }

    fn insert(&mut self, object: u64, bytes: u64) {
        self.residents.set(Known { object, bytes, next: self.next_use(object) });
    }

    fn resize(&mut self, object: u64, bytes: u64) {
        if self.residents.bytes_of(object).is_some() {
            self.insert(object, bytes);
        }
    }

    fn remove(&mut self, object: u64) {
        self.residents.remove(object);
    }

    fn evict(&mut self, busy: &dyn Fn(u64) -> bool) -> Option<Victim> {
        // The reference being served has been consumed; distances count from it.
        let now = self.references.now().saturating_sub(1);
        let first = self.residents.first_free(now, busy)?;
        self.residents.remove(first.object);
        let mut victim = first.victim();
        victim.dead &= !self.keeps_dead;
        Some(victim)
    }

    fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        let admission = admit_what_fits(self, candidate, room, out);
        let dead = self.next_use(candidate.object) == NEVER;
        if dead && !self.keeps_dead { Admission::Bypass } else { admission }
    }

    fn books(&self) -> Snapshot {
        Snapshot { ahead: self.references.ahead(), ..self.residents.books() }
    }
}
