//! LFU: the object with the fewest accesses since it came in leaves first; among equals the one
//! least recently touched.

use super::rank::Ranking;
use super::{Access, Admission, Candidate, Demand, Policy, Room, Snapshot, Tally, Victim};

/// Accesses in the upper bits, the moment of the last touch in the lower 40.
fn key(uses: u64, touched: u64) -> u64 {
    (uses.min((1 << 24) - 1) << 40) | (touched & ((1 << 40) - 1))
}

/// Least frequently used while resident.
#[derive(Debug)]
pub struct Lfu {
    ranking: Ranking<u64, u32>,
    now: u64,
    tally: Tally,
}

impl Lfu {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self { ranking: Ranking::new(), now: 0, tally: Tally::default() }
    }
}

impl Default for Lfu {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy for Lfu {
    fn name(&self) -> &'static str {
        "lfu"
    }

    fn observe(&mut self, accesses: &[Access]) {
        for access in accesses {
            self.now += 1;
            if let Some((_, uses)) = self.ranking.get(access.object) {
                let uses = uses.saturating_add(1);
                self.ranking.update(access.object, key(uses.into(), self.now), uses);
            }
        }
    }

    fn inserted(&mut self, object: u64, bytes: u64) {
        let uses = self.ranking.get(object).map_or(1, |(_, uses)| uses);
        self.ranking.set(object, bytes, key(uses.into(), self.now), uses);
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
            ..self.tally.snapshot()
        }
    }
}
