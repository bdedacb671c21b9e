//! LFU: the object with the fewest accesses since it came in leaves first; among equals the one
//! least recently touched.

use super::rank::Ranking;
use super::{Access, Order, Snapshot, Victim};

/// Accesses in the upper bits, the moment of the last touch in the lower 40.
fn key(uses: u64, touched: u64) -> u64 {
    (uses.min((1 << 24) - 1) << 40) | (touched & ((1 << 40) - 1))
}

/// Least frequently used while resident.
#[derive(Debug, Default)]
pub struct Lfu {
    /// Accesses since it came in.
    ranking: Ranking<u64, u32>,
    now: u64,
}

impl Order for Lfu {
    fn name(&self) -> &'static str {
        "lfu"
    }

    fn touch(&mut self, access: &Access) {
        self.now += 1;
        if let Some(slot) = self.ranking.find(access.object) {
            let uses = self.ranking.tag(slot).saturating_add(1);
            self.ranking.rekey(slot, key(uses.into(), self.now), uses);
        }
    }

    fn insert(&mut self, object: u64, bytes: u64) {
        match self.ranking.find(object) {
            Some(slot) => {
                self.ranking.resize(slot, bytes);
                self.ranking.bring_back(slot, key(self.ranking.tag(slot).into(), self.now));
            }
            None => self.ranking.add(object, bytes, key(1, self.now), 1),
        }
    }

    fn resize(&mut self, object: u64, bytes: u64) {
        if let Some(slot) = self.ranking.find(object) {
            self.ranking.resize(slot, bytes);
        }
    }

    fn remove(&mut self, object: u64) {
        self.ranking.forget(object);
    }

    fn evict(&mut self, busy: &dyn Fn(u64) -> bool) -> Option<Victim> {
        self.ranking.evict(busy).map(|(victim, _)| victim)
    }

    fn books(&self) -> Snapshot {
        self.ranking.books()
    }
}
