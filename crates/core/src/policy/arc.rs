//! ARC (Megiddo, Modha: "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003), counted in
//! bytes: a list of what was used once, one of what was used again, the ghosts of both, and a target
//! for the first that moves towards the list whose ghosts are asked for. With objects of one size it
//! is the paper's algorithm, request by request (figure 4); `tests/naive/adaptive.rs` has that line by
//! line.

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
    /// Bytes that T1 should have: `p` of the paper, which moves by fractions.
    target: f64,
    /// The last access was to a ghost of T2.
    asks_again: bool,
    recalled: Recalled,
}

impl Arc {
    /// An empty one for a tier of `config.capacity` bytes.
    #[must_use]
    pub fn new(config: &PolicyConfig) -> Self {
        Self {
            queues: Queues::default(),
            capacity: config.capacity,
            target: 0.0,
            asks_again: false,
            recalled: Recalled::default(),
        }
    }

    /// Moves the target: a ghost of one list says that it should have been longer.
    fn learn(&mut self, ghost: u8, bytes: u64) {
        let other = if ghost == ONCE_GHOST { AGAIN_GHOST } else { ONCE_GHOST };
        let (own, other) = (self.queues.bytes(ghost).max(1), self.queues.bytes(other));
        let step = bytes as f64 * (other as f64 / own as f64).max(1.0);
        self.target = if ghost == ONCE_GHOST {
            (self.target + step).min(self.capacity as f64)
        } else {
            (self.target - step).max(0.0)
        };
    }

    /// The choice of REPLACE: whether T1 gives the next victim if it has one.
    fn shortens_once(&self) -> bool {
        let once = self.queues.bytes(ONCE) as f64;
        once > self.target || (self.asks_again && once == self.target)
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
        self.asks_again = false;
        let Some(slot) = self.queues.find(access.object) else { return };
        if self.queues.is_resident(slot) {
            return self.queues.shift(slot, AGAIN);
        }
        let ghost = *self.queues.node(slot);
        self.learn(ghost.queue, ghost.bytes);
        self.asks_again = ghost.queue == AGAIN_GHOST;
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
            let first = self.queues.oldest(ONCE).filter(|_| self.shortens_once());
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

#[cfg(test)]
mod tests {
    use super::super::{AccessKind, Admission, Candidate, Room};
    use super::*;

    fn list(arc: &Arc, queue: u8) -> Vec<u64> {
        let slots = std::iter::successors(arc.queues.oldest(queue), |slot| arc.queues.newer(*slot));
        slots.map(|slot| arc.queues.object(slot)).collect()
    }

    /// Asks for a page as a driver does; gives back what left for it.
    fn ask(arc: &mut Arc, page: u64) -> Vec<u64> {
        arc.touch(&Access { object: page, size: 1, kind: AccessKind::Read });
        if arc.queues.find_resident(page).is_some() {
            return Vec::new();
        }
        let mut out = Vec::new();
        let candidate = Candidate { object: page, size: 1, resident: 0, prefetch: false };
        let used = arc.books().bytes;
        let room = Room { capacity: 4, used, limit: 8, busy: &|object| object == page };
        assert_eq!(arc.admit(&candidate, &room, &mut out), Admission::Whole);
        arc.insert(page, 1);
        out.iter().map(|victim| victim.object).collect()
    }

    /// Figure 4 of the paper by hand, with c = 4: after each request who left, p, and the lists
    /// T1, T2, B1, B2 from their oldest page to their newest.
    #[test]
    #[rustfmt::skip]
    fn requests_worked_by_hand_then_the_lists_and_target_of_the_paper() {
        type Step<'a> = (u64, &'a [u64], f64, [&'a [u64]; 4]);
        let steps: [Step<'_>; 17] = [
            (1, &[], 0.0, [&[1], &[], &[], &[]]),
            (2, &[], 0.0, [&[1, 2], &[], &[], &[]]),
            (1, &[], 0.0, [&[2], &[1], &[], &[]]),                         // I
            (3, &[], 0.0, [&[2, 3], &[1], &[], &[]]),
            (4, &[], 0.0, [&[2, 3, 4], &[1], &[], &[]]),
            (5, &[2], 0.0, [&[3, 4, 5], &[1], &[2], &[]]),                 // IV B, |T1| > p
            (2, &[3], 1.0, [&[4, 5], &[1, 2], &[3], &[]]),                 // II
            (6, &[4], 1.0, [&[5, 6], &[1, 2], &[3, 4], &[]]),
            (5, &[], 1.0, [&[6], &[1, 2, 5], &[3, 4], &[]]),               // I
            (7, &[1], 1.0, [&[6, 7], &[2, 5], &[3, 4], &[1]]),             // |T1| = p: T2 gives
            (1, &[6], 0.0, [&[7], &[2, 5, 1], &[3, 4, 6], &[]]),           // III, by |B1| / |B2| = 2
            (8, &[7], 0.0, [&[8], &[2, 5, 1], &[4, 6, 7], &[]]),           // IV A: B1 forgets 3
            (4, &[2], 1.0, [&[8], &[5, 1, 4], &[6, 7], &[2]]),             // II
            (7, &[5], 2.0, [&[8], &[1, 4, 7], &[6], &[2, 5]]),             // II
            (2, &[8], 1.0, [&[], &[1, 4, 7, 2], &[6, 8], &[5]]),           // III, |T1| = p: T1 gives
            (9, &[1], 1.0, [&[9], &[4, 7, 2], &[6, 8], &[5, 1]]),          // T1 is empty
            (10, &[4], 1.0, [&[9, 10], &[7, 2], &[6, 8], &[1, 4]]),        // IV B, 2c: B2 forgets 5
        ];
        let mut arc = Arc::new(&PolicyConfig::new(4));
        for (at, (page, left, target, lists)) in steps.into_iter().enumerate() {
            assert_eq!(ask(&mut arc, page), left, "request {at}");
            assert_eq!(arc.target, target, "request {at}");
            let now = [ONCE, AGAIN, ONCE_GHOST, AGAIN_GHOST].map(|queue| list(&arc, queue));
            assert_eq!(now, lists, "request {at}");
        }
    }
}
