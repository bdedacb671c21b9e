//! Policies that are an order of leaving and nothing else: what is common to LRU, LFU, S3-FIFO and
//! their like is written once here, and each of them is one short file.

use super::{Access, Admission, Candidate, Demand, Hint, Policy, Room, Snapshot, Tally, Victim};

/// Who leaves next. A new policy is one type with this trait, wrapped into [`Ordered`].
pub trait Order: Send + std::fmt::Debug {
    /// The name of the policy.
    fn name(&self) -> &'static str;

    /// An object was accessed, resident or not.
    fn touch(&mut self, access: &Access);

    /// These objects will be looked for soon: see [`Policy::warm`].
    fn warm(&self, _objects: &[u64]) {}

    /// These will probably leave next: see [`Policy::warm_leaving`].
    fn warm_leaving(&self, _most: usize, _out: &mut Vec<u64>) {}

    /// Objects have small numbers: see [`Policy::number`].
    fn number(&mut self, _objects: usize) {}

    /// Whether numbers matter: see [`Policy::heeds_numbers`].
    fn heeds_numbers(&self) -> bool {
        true
    }

    /// Whether it looks ahead: see [`Policy::looks_ahead`].
    fn looks_ahead(&self) -> bool {
        false
    }

    /// News about reference sequences.
    fn hint(&mut self, _hint: &Hint<'_>) {}

    /// The object is resident with `bytes`. If it was so before, they changed, or it was found busy
    /// and is back.
    fn insert(&mut self, object: u64, bytes: u64);

    /// The bytes changed of an object that may be on the books.
    fn resize(&mut self, object: u64, bytes: u64);

    /// The object leaves the books, if it is on them.
    fn remove(&mut self, object: u64);

    /// Takes the next victim off the books, passing over what is busy; `None` if nothing can leave.
    fn evict(&mut self, busy: &dyn Fn(u64) -> bool) -> Option<Victim>;

    /// Takes victims off the books until they free the bytes demanded; returns what they free.
    fn make_room(&mut self, demand: &Demand<'_>, out: &mut Vec<Victim>) -> u64 {
        let (mut freed, most) = (0, out.len().saturating_add(demand.limit));
        while freed < demand.bytes && out.len() < most {
            let Some(victim) = self.evict(demand.busy) else { break };
            freed += victim.bytes;
            out.push(victim);
        }
        freed
    }

    /// Decides on a newcomer. The classical policies admit whatever can fit at all.
    fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        admit_what_fits(self, candidate, room, out)
    }

    /// What is on the books: objects, bytes, ghosts, references ahead.
    fn books(&self) -> Snapshot;
}

/// The policy of an [`Order`].
#[derive(Debug)]
pub struct Ordered<O> {
    order: O,
    tally: Tally,
}

impl<O: Order> Ordered<O> {
    /// The policy that follows this order.
    #[must_use]
    pub fn new(order: O) -> Self {
        Self { order, tally: Tally::default() }
    }

    /// The order.
    pub(super) fn order(&mut self) -> &mut O {
        &mut self.order
    }
}

impl<O: Order> Policy for Ordered<O> {
    fn name(&self) -> &'static str {
        self.order.name()
    }

    fn observe(&mut self, accesses: &[Access]) {
        for access in accesses {
            self.order.touch(access);
        }
    }

    fn inserted(&mut self, object: u64, bytes: u64) {
        self.order.insert(object, bytes);
    }

    fn resized(&mut self, object: u64, bytes: u64) {
        self.order.resize(object, bytes);
    }

    fn removed(&mut self, object: u64) {
        self.order.remove(object);
    }

    fn number(&mut self, objects: usize) {
        self.order.number(objects);
    }

    fn heeds_numbers(&self) -> bool {
        self.order.heeds_numbers()
    }

    fn looks_ahead(&self) -> bool {
        self.order.looks_ahead()
    }

    fn hint(&mut self, hint: &Hint<'_>) {
        self.order.hint(hint);
    }

    fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        let before = out.len();
        let admission = self.order.admit(candidate, room, out);
        self.tally.decided(admission, out.len() - before)
    }

    fn victims(&mut self, demand: &Demand<'_>, out: &mut Vec<Victim>) -> u64 {
        let before = out.len();
        let freed = self.order.make_room(demand, out);
        self.tally.victims += (out.len() - before) as u64;
        freed
    }

    fn warm(&self, objects: &[u64]) {
        self.order.warm(objects);
    }

    fn warm_leaving(&self, most: usize, out: &mut Vec<u64>) {
        self.order.warm_leaving(most, out);
    }

    fn snapshot(&self) -> Snapshot {
        self.tally.with(self.order.books())
    }
}

/// Makes room for the newcomer if it can fit at all.
pub(super) fn admit_what_fits<O: Order + ?Sized>(
    order: &mut O,
    candidate: &Candidate,
    room: &Room<'_>,
    out: &mut Vec<Victim>,
) -> Admission {
    let need = room.lacking(candidate.incoming());
    if candidate.size <= room.capacity && order.make_room(&room.demand(need), out) >= need {
        Admission::Whole
    } else {
        Admission::Bypass
    }
}
