//! ARC (Megiddo, Modha: "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003), counted in
//! bytes: a list of what was used once, one of what was used again, the ghosts of both, and a target
//! for the first that moves towards the list whose ghosts are asked for.

use super::ghost::Recalled;
use super::queues::Queues;
use super::{Access, Order, PolicyConfig, Snapshot, Victim};

// T1, T2, B1, B2 of the paper.
const ONCE: u8 = 0;
const AGAIN: u8 = 1;
const ONCE_GHOST: u8 = 2;
const AGAIN_GHOST: u8 = 3;

/// Adaptive replacement.
#[derive(Debug)]
pub struct Arc {
    queues: Queues<2, 4, ()>,
    capacity: u64,
    /// Bytes that T1 should have: `p` of the paper.
    target: u64,
    recalled: Recalled,
}

impl Arc {
    /// An empty one for a tier of `config.capacity` bytes.
    #[must_use]
    pub fn new(config: &PolicyConfig) -> Self {
        Self {
            queues: Queues::default(),
            capacity: config.capacity,
            target: 0,
            recalled: Recalled::default(),
        }
    }

    /// Moves the target: a ghost of one list says that it should have been longer.
    fn learn(&mut self, ghost: u8, bytes: u64) {
        let other = if ghost == ONCE_GHOST { AGAIN_GHOST } else { ONCE_GHOST };
        let (own, other) = (self.queues.bytes(ghost).max(1), self.queues.bytes(other));
        let factor = (other as f64 / own as f64).max(1.0);
        let step = (bytes as f64 * factor) as u64;
        self.target = if ghost == ONCE_GHOST {
            self.target.saturating_add(step).min(self.capacity)
        } else {
            self.target.saturating_sub(step)
        };
    }

    /// T1 and its ghosts hold no more than the capacity, all four lists no more than twice that.
    fn trim(&mut self) {
        let bytes = |arc: &Self, lists: &[u8]| -> u64 {
            lists.iter().map(|list| arc.queues.bytes(*list)).sum()
        };
        while bytes(self, &[ONCE, ONCE_GHOST]) > self.capacity {
            let Some(oldest) = self.queues.oldest(ONCE_GHOST) else { break };
            self.queues.remove(oldest);
        }
        while bytes(self, &[ONCE, AGAIN, ONCE_GHOST, AGAIN_GHOST]) > 2 * self.capacity {
            let Some(oldest) = self.queues.oldest(AGAIN_GHOST) else { break };
            self.queues.remove(oldest);
        }
    }
}

impl Order for Arc {
    fn name(&self) -> &'static str {
        "arc"
    }

    fn touch(&mut self, access: &Access) {
        let Some(slot) = self.queues.find(access.object) else { return };
        if self.queues.is_resident(slot) {
            return self.queues.shift(slot, AGAIN);
        }
        let ghost = *self.queues.node(slot);
        self.learn(ghost.queue, ghost.bytes);
        self.queues.remove(slot);
        self.recalled.push(access.object);
    }

    fn insert(&mut self, object: u64, bytes: u64) {
        if self.queues.resize(object, bytes) {
            return;
        }
        let ghost = self.queues.find(object);
        if let Some(ghost) = ghost {
            self.queues.remove(ghost);
        }
        let again = self.recalled.take(object) || ghost.is_some();
        self.queues.add(if again { AGAIN } else { ONCE }, object, bytes, ());
        self.trim();
    }

    fn resize(&mut self, object: u64, bytes: u64) {
        self.queues.resize(object, bytes);
    }

    fn remove(&mut self, object: u64) {
        self.queues.remove_resident(object);
    }

    fn evict(&mut self, busy: &dyn Fn(u64) -> bool) -> Option<Victim> {
        // What is busy goes to the front of T2, so that two rounds see everything.
        for _ in 0..2 * (self.queues.len(ONCE) + self.queues.len(AGAIN)) {
            let from_once = self.queues.bytes(ONCE) > self.target || self.queues.len(AGAIN) == 0;
            let first = self.queues.oldest(ONCE).filter(|_| from_once);
            let slot = first.or(self.queues.oldest(AGAIN)).or(self.queues.oldest(ONCE))?;
            let victim = self.queues.victim(slot);
            if busy(victim.object) {
                self.queues.shift(slot, AGAIN);
                continue;
            }
            let ghost = if self.queues.node(slot).queue == ONCE { ONCE_GHOST } else { AGAIN_GHOST };
            self.queues.shift(slot, ghost);
            self.trim();
            return Some(victim);
        }
        None
    }

    fn books(&self) -> Snapshot {
        self.queues.books()
    }
}
