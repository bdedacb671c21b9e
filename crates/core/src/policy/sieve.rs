//! SIEVE (Zhang, Yang, Yue, Vigfusson, Rashmi: "SIEVE is Simpler than LRU", NSDI 2024): a queue in
//! order of insertion, one visited bit each, and a hand that sweeps from the oldest to the newest,
//! clears bits and takes the first object without one.

use super::list::{Arena, List};
use super::{Access, Admission, Candidate, Demand, Policy, Room, Snapshot, Tally, Victim};

/// SIEVE.
#[derive(Debug)]
pub struct Sieve {
    arena: Arena<bool>,
    list: List,
    hand: Option<u32>,
    tally: Tally,
}

impl Sieve {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self { arena: Arena::new(), list: List::EMPTY, hand: None, tally: Tally::default() }
    }

    fn drop(&mut self, slot: u32) {
        if self.hand == Some(slot) {
            self.hand = self.arena.newer(slot);
        }
        self.arena.unlink(&mut self.list, slot);
        self.arena.forget(slot);
    }
}

impl Default for Sieve {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy for Sieve {
    fn name(&self) -> &'static str {
        "sieve"
    }

    fn observe(&mut self, accesses: &[Access]) {
        for access in accesses {
            if let Some(slot) = self.arena.find(access.object) {
                *self.arena.tag(slot) = true;
            }
        }
    }

    fn inserted(&mut self, object: u64, bytes: u64) {
        if let Some(slot) = self.arena.find(object) {
            self.arena.resize(&mut self.list, slot, bytes);
        } else {
            let slot = self.arena.add(object, bytes, false);
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
            self.drop(slot);
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
        // Two rounds clear every bit; what is busy is passed over like a visited object.
        for _ in 0..2 * self.list.len {
            if freed >= demand.bytes || given == demand.limit {
                break;
            }
            let Some(slot) = self.hand.or(self.list.back()) else { break };
            let node = *self.arena.node(slot);
            if node.tag || (demand.busy)(node.object) {
                *self.arena.tag(slot) = false;
                self.hand = self.arena.newer(slot);
                continue;
            }
            self.hand = self.arena.newer(slot);
            self.drop(slot);
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
