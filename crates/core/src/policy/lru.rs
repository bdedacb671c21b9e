//! LRU: the least recently used object leaves first. The papers' default.

use super::queues::Queues;
use super::{Access, Order, Snapshot, Victim};

const ALL: u8 = 0;

/// Least recently used.
#[derive(Debug, Default)]
pub struct Lru {
    queues: Queues<1, 1, ()>,
}

impl Lru {
    /// Bytes resident of an object on its books.
    pub(super) fn bytes_of(&self, object: u64) -> Option<u64> {
        self.queues.bytes_of(object)
    }
}

impl Order for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn warm(&self, objects: &[u64]) {
        self.queues.warm(objects);
    }

    fn warm_leaving(&self, most: usize, out: &mut Vec<u64>) {
        self.queues.warm_oldest(ALL, most, out);
    }

    fn number(&mut self, objects: usize) {
        self.queues.number(objects);
    }

    fn heeds_numbers(&self) -> bool {
        false
    }

    fn touch(&mut self, access: &Access) {
        if let Some(slot) = self.queues.find(access.object) {
            self.queues.shift(slot, ALL);
        }
    }

    fn insert(&mut self, object: u64, bytes: u64) {
        if !self.queues.resize(object, bytes) {
            self.queues.add(ALL, object, bytes, ());
        }
    }

    fn resize(&mut self, object: u64, bytes: u64) {
        self.queues.resize(object, bytes);
    }

    fn remove(&mut self, object: u64) {
        self.queues.remove_resident(object);
    }

    fn evict(&mut self, busy: &dyn Fn(u64) -> bool) -> Option<Victim> {
        // One round at most: what is busy is in use, and is the most recent now.
        for _ in 0..self.queues.len(ALL) {
            let slot = self.queues.oldest(ALL)?;
            let victim = self.queues.victim(slot);
            if !busy(victim.object) {
                self.queues.remove(slot);
                return Some(victim);
            }
            self.queues.shift(slot, ALL);
        }
        None
    }

    fn books(&self) -> Snapshot {
        self.queues.books()
    }
}
