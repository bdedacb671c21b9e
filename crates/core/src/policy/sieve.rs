//! SIEVE (Zhang, Yang, Yue, Vigfusson, Rashmi: "SIEVE is Simpler than LRU", NSDI 2024): a queue in
//! order of insertion, one visited bit each, and a hand that sweeps from the oldest to the newest,
//! clears bits and takes the first object without one.

use super::queues::Queues;
use super::{Access, Order, Snapshot, Victim};

const ALL: u8 = 0;

/// SIEVE.
#[derive(Debug, Default)]
pub struct Sieve {
    /// Visited or not.
    queues: Queues<1, 1, bool>,
    hand: Option<u32>,
}

impl Order for Sieve {
    fn name(&self) -> &'static str {
        "sieve"
    }

    fn warm(&self, objects: &[u64]) {
        self.queues.warm(objects);
    }

    fn number(&mut self, objects: usize) {
        self.queues.number(objects);
    }

    fn heeds_numbers(&self) -> bool {
        false
    }

    fn touch(&mut self, access: &Access) {
        if let Some(slot) = self.queues.find(access.object) {
            *self.queues.tag(slot) = true;
        }
    }

    fn insert(&mut self, object: u64, bytes: u64) {
        if !self.queues.resize(object, bytes) {
            self.queues.add(ALL, object, bytes, false);
        }
    }

    fn resize(&mut self, object: u64, bytes: u64) {
        self.queues.resize(object, bytes);
    }

    fn remove(&mut self, object: u64) {
        if let Some(slot) = self.queues.find(object) {
            if self.hand == Some(slot) {
                self.hand = self.queues.newer(slot);
            }
            self.queues.remove(slot);
        }
    }

    fn evict(&mut self, busy: &dyn Fn(u64) -> bool) -> Option<Victim> {
        // Two rounds clear every bit; what is busy is passed over like a visited object.
        for _ in 0..2 * self.queues.len(ALL) {
            let slot = self.hand.or(self.queues.oldest(ALL))?;
            self.hand = self.queues.newer(slot);
            let victim = self.queues.victim(slot);
            let visited = std::mem::take(self.queues.tag(slot));
            if !visited && !busy(victim.object) {
                self.queues.remove(slot);
                return Some(victim);
            }
        }
        None
    }

    fn books(&self) -> Snapshot {
        self.queues.books()
    }
}
