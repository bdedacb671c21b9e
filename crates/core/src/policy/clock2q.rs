//! Clock2Q+ (Zhai and others: "Clock2Q+: A Simple and Efficient Replacement Algorithm for Metadata
//! Cache in VMware vSAN", arXiv 2511.21958, 2025), counted in bytes: the small queue, the clock and
//! the ghosts of S3-FIFO with one bit for each object, and a correlation window. What came into the
//! small queue within the window, half of the queue, is used again by whoever brought it in; such a
//! use does not count.
//!
//! Where the paper is silent (what fits, the warm-up) it does as the authors' program, which does as
//! S3-FIFO. Their program remembers ghosts of 0.9 of the cache, the paper of half; it is the paper's.

use super::ghost::Recalled;
use super::order::admit_what_fits;
use super::queues::Queues;
use super::{Access, Admission, Candidate, Order, PolicyConfig, Room, Snapshot, Victim};

const SMALL: u8 = 0;
const MAIN: u8 = 1;
const GHOST: u8 = 2;

/// What is remembered about an object.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    /// Bytes that had come into the small queue with it and before it.
    came_at: u64,
    used: bool,
}

/// Clock2Q+.
#[derive(Debug)]
pub struct Clock2QPlus {
    queues: Queues<2, 3, Mark, ()>,
    small_capacity: u64,
    main_capacity: u64,
    ghost_capacity: u64,
    /// A use does not count until so many bytes have come into the small queue after the object.
    window: f64,
    /// Bytes that have ever come into the small queue.
    came: u64,
    admit_large: bool,
    /// Before the first eviction a full small queue spills into the clock.
    warm: bool,
    recalled: Recalled,
}

impl Clock2QPlus {
    /// An empty one for a tier of `config.capacity` bytes.
    #[must_use]
    pub fn new(config: &PolicyConfig) -> Self {
        // The products are taken in floating point as the authors' program does.
        let part = |bytes: u64, of: f64| (bytes as f64 * of) as u64;
        let small_capacity = part(config.capacity, 0.1);
        Self {
            queues: Queues::default(),
            small_capacity,
            main_capacity: config.capacity - small_capacity,
            ghost_capacity: part(config.capacity, 0.5),
            window: small_capacity as f64 * 0.5,
            came: 0,
            admit_large: config.admit_large,
            warm: false,
            recalled: Recalled::default(),
        }
    }

    /// Moves a slot to the front of a queue.
    fn shift(&mut self, slot: u32, to: u8, used: bool) {
        self.queues.tag(slot).used = used;
        self.queues.shift(slot, to);
    }

    /// Remembers what left the small queue, if the ghosts have room for it at all.
    fn push_ghost(&mut self, slot: u32) {
        let bytes = self.queues.node(slot).bytes;
        if bytes > self.ghost_capacity {
            return self.queues.remove(slot);
        }
        while self.queues.bytes(GHOST) + bytes > self.ghost_capacity {
            let Some(oldest) = self.queues.oldest(GHOST) else { break };
            self.queues.remove(oldest);
        }
        self.shift(slot, GHOST, false);
    }

    /// Looks at the oldest object of a queue: it leaves, moves on, or goes round.
    fn step(&mut self, queue: u8, busy: &dyn Fn(u64) -> bool) -> Option<Victim> {
        let slot = self.queues.oldest(queue)?;
        let used = self.queues.node(slot).tag.used;
        let victim = self.queues.victim(slot);
        if busy(victim.object) {
            // In use: as good as used again.
            self.shift(slot, MAIN, used);
        } else if used {
            self.shift(slot, MAIN, false);
        } else {
            if queue == MAIN {
                self.queues.remove(slot);
            } else {
                self.push_ghost(slot);
            }
            return Some(victim);
        }
        None
    }
}

impl Order for Clock2QPlus {
    fn name(&self) -> &'static str {
        "clock2q+"
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
        let Some(slot) = self.queues.find(access.object) else { return };
        let node = *self.queues.node(slot);
        if !self.queues.is_resident(slot) {
            self.queues.remove(slot);
            self.recalled.push(access.object);
        } else if node.queue == MAIN || (self.came - node.tag.came_at) as f64 >= self.window {
            self.queues.tag(slot).used = true;
        }
    }

    fn insert(&mut self, object: u64, bytes: u64) {
        if self.queues.resize(object, bytes) {
            return;
        }
        if let Some(ghost) = self.queues.find(object) {
            self.queues.remove(ghost);
        }
        let spills = !self.warm && self.queues.bytes(SMALL) >= self.small_capacity;
        if self.recalled.take(object) || spills || bytes > self.small_capacity {
            self.queues.add(MAIN, object, bytes, Mark::default());
        } else {
            self.came += bytes;
            self.queues.add(SMALL, object, bytes, Mark { came_at: self.came, used: false });
        }
    }

    fn resize(&mut self, object: u64, bytes: u64) {
        self.queues.resize(object, bytes);
    }

    fn remove(&mut self, object: u64) {
        self.queues.remove_resident(object);
    }

    fn evict(&mut self, busy: &dyn Fn(u64) -> bool) -> Option<Victim> {
        self.warm = true;
        let full = self.queues.bytes(MAIN) > self.main_capacity;
        let mut turn = if full || self.queues.len(SMALL) == 0 { MAIN } else { SMALL };
        // Every object moves to the clock at most once, loses its bit there and is met once more; more
        // steps than that only if all are busy.
        for _ in 0..3 * (self.queues.len(SMALL) + self.queues.len(MAIN)) {
            let victim = self.step(turn, busy);
            if victim.is_some() {
                return victim;
            }
            if turn == SMALL && self.queues.len(SMALL) == 0 {
                turn = MAIN;
            }
        }
        None
    }

    fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        if !self.admit_large && candidate.size > self.small_capacity {
            return Admission::Bypass;
        }
        let admission = admit_what_fits(self, candidate, room, out);
        // As in S3-FIFO: what just fills the small queue is refused when there is room for it, unless
        // it was called back.
        let recalled = self.recalled.contains(candidate.object);
        let refused = !self.admit_large && candidate.size >= self.small_capacity && !recalled;
        if refused { Admission::Bypass } else { admission }
    }

    fn books(&self) -> Snapshot {
        self.queues.books()
    }
}

#[cfg(test)]
mod tests {
    use super::super::AccessKind;
    use super::*;

    const CAPACITY: u64 = 40;

    fn list(policy: &Clock2QPlus, queue: u8) -> Vec<u64> {
        let queues = &policy.queues;
        let slots = std::iter::successors(queues.oldest(queue), |slot| queues.newer(*slot));
        slots.map(|slot| queues.object(slot)).collect()
    }

    /// Asks for a page as a driver does; gives back whether it was there, and what left for it.
    fn ask(policy: &mut Clock2QPlus, page: u64) -> (bool, Vec<u64>) {
        policy.touch(&Access { object: page, size: 1, kind: AccessKind::Read });
        if policy.queues.find_resident(page).is_some() {
            return (true, Vec::new());
        }
        let mut out = Vec::new();
        let candidate = Candidate { object: page, size: 1, resident: 0, prefetch: false };
        let used = policy.books().bytes;
        let room = Room { capacity: CAPACITY, used, limit: 8, busy: &|object| object == page };
        assert_eq!(policy.admit(&candidate, &room, &mut out), Admission::Whole);
        policy.insert(page, 1);
        (false, out.iter().map(|victim| victim.object).collect())
    }

    /// By hand, of 40 pages: a small queue of four, a window of two, a clock of 36, 20 ghosts. After
    /// each request who left, the small queue and the ghosts from their oldest page to their newest.
    #[test]
    #[rustfmt::skip]
    fn requests_worked_by_hand_then_the_window_the_clock_and_the_ghosts_of_the_paper() {
        type Step<'a> = (u64, bool, &'a [u64], [&'a [u64]; 2]);
        let mut policy = Clock2QPlus::new(&PolicyConfig::new(CAPACITY));
        // Before anything has left, what the small queue has no room for goes to the clock.
        for page in 0..40 {
            assert_eq!(ask(&mut policy, page), (false, vec![]));
        }
        assert_eq!(list(&policy, SMALL), [0, 1, 2, 3]);
        assert_eq!(list(&policy, MAIN), (4..40).collect::<Vec<u64>>());
        let steps: [Step<'_>; 16] = [
            (3, true, &[], [&[0, 1, 2, 3], &[]]),                  // none came since: in the window
            (2, true, &[], [&[0, 1, 2, 3], &[]]),                  // one came since: in the window
            (1, true, &[], [&[0, 1, 2, 3], &[]]),                  // two: it counts
            (40, false, &[0], [&[1, 2, 3, 40], &[0]]),             // 0 was not used
            (41, false, &[2], [&[3, 40, 41], &[0, 2]]),            // 1 moves to the clock, 2 leaves
            (0, false, &[4], [&[3, 40, 41], &[2]]),                // a ghost: to the clock, too full by 1
            (3, true, &[], [&[3, 40, 41], &[2]]),                  // two came since: it counts
            (42, false, &[5], [&[3, 40, 41, 42], &[2]]),           // the clock is too full by 0
            (43, false, &[40], [&[41, 42, 43], &[2, 40]]),         // 3 moves on, 40 leaves
            (6, true, &[], [&[41, 42, 43], &[2, 40]]),             // one bit, however often
            (6, true, &[], [&[41, 42, 43], &[2, 40]]),
            (44, false, &[7], [&[41, 42, 43, 44], &[2, 40]]),      // 6 loses its bit and goes round
            (41, true, &[], [&[41, 42, 43, 44], &[2, 40]]),        // three came since: it counts
            (45, false, &[42], [&[43, 44, 45], &[2, 40, 42]]),     // 41 moves on
            (2, false, &[8], [&[43, 44, 45], &[40, 42]]),          // called back
            (46, false, &[9], [&[43, 44, 45, 46], &[40, 42]]),
        ];
        for (at, (page, there, left, lists)) in steps.into_iter().enumerate() {
            assert_eq!(ask(&mut policy, page), (there, left.to_vec()), "request {at}");
            assert_eq!([SMALL, GHOST].map(|queue| list(&policy, queue)), lists, "request {at}");
        }
        let clock: Vec<u64> = (10..40).chain([1, 0, 3, 6, 41, 2]).collect();
        assert_eq!(list(&policy, MAIN), clock);
        assert!(!policy.queues.node(policy.queues.find(6).unwrap()).tag.used, "its bit is gone");
    }

    #[test]
    fn ghosts_of_many_then_half_as_many_as_pages_fit() {
        let mut policy = Clock2QPlus::new(&PolicyConfig::new(CAPACITY));
        for page in 0..200 {
            ask(&mut policy, page);
        }
        assert_eq!(list(&policy, GHOST), (176..196).collect::<Vec<u64>>());
        assert_eq!(list(&policy, MAIN), (4..40).collect::<Vec<u64>>(), "a scan leaves it alone");
    }
}
