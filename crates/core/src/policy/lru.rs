//! LRU: the least recently used object leaves first. The papers' default.

use super::list::{Arena, List};
use super::{Access, Admission, Candidate, Demand, Policy, Room, Snapshot, Tally, Victim};

/// Least recently used.
#[derive(Debug)]
pub struct Lru {
    arena: Arena<()>,
    list: List,
    tally: Tally,
}

impl Lru {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self { arena: Arena::new(), list: List::EMPTY, tally: Tally::default() }
    }

    /// Bytes resident of an object on its books.
    pub(super) fn bytes_of(&self, object: u64) -> Option<u64> {
        self.arena.find(object).map(|slot| self.arena.node(slot).bytes)
    }
}

impl Default for Lru {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn observe(&mut self, accesses: &[Access]) {
        for access in accesses {
            if let Some(slot) = self.arena.find(access.object) {
                self.arena.touch(&mut self.list, slot);
            }
        }
    }

    fn inserted(&mut self, object: u64, bytes: u64) {
        if let Some(slot) = self.arena.find(object) {
            self.arena.resize(&mut self.list, slot, bytes);
        } else {
            let slot = self.arena.add(object, bytes, ());
            self.arena.push_front(&mut self.list, slot);
        }
    }

    fn resized(&mut self, object: u64, bytes: u64) {
        if let Some(slot) = self.arena.find(object) {
            self.arena.resize(&mut self.list, slot, bytes);
        }
    }

    fn removed(&mut self, object: u64) {
        if let Some(slot) = self.arena.find(object) {
            self.arena.unlink(&mut self.list, slot);
            self.arena.forget(slot);
        }
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
        let mut freed = 0;
        let mut given = 0;
        // One round at most: what is busy is in use, and goes to the front.
        for _ in 0..self.list.len {
            if freed >= demand.bytes || given == demand.limit {
                break;
            }
            let Some(slot) = self.list.back() else { break };
            let node = *self.arena.node(slot);
            if (demand.busy)(node.object) {
                self.arena.touch(&mut self.list, slot);
                continue;
            }
            self.arena.unlink(&mut self.list, slot);
            self.arena.forget(slot);
            out.push(Victim::whole(node.object, node.bytes));
            freed += node.bytes;
            given += 1;
        }
        self.tally.victims += given as u64;
        freed
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot { objects: self.list.len, bytes: self.list.bytes, ..self.tally.snapshot() }
    }
}
