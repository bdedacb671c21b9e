//! W-TinyLFU (Einziger, Friedman, Manes: "TinyLFU: A Highly Efficient Cache Admission Policy", ACM
//! TOS 2017, section 4), counted in bytes: a window of one per cent in LRU order, a main part in
//! segmented LRU order (four fifths protected), and a sketch of recent uses by which what falls out
//! of the window contests with what would leave the main part.
//!
//! With objects of one size it is the paper's algorithm. What is larger than the window has none to
//! wait in: it contests at once, with everything that would have to leave for it, and is read past
//! the tier if one of these was used as often (after the second paper of Einziger, Eytan, Friedman
//! and Manes: "Lightweight Robust Size Aware Cache Management", ACM TOS 2022).

use super::order::admit_what_fits;
use super::queues::Queues;
use super::sketch::Sketch;
use super::{Access, Admission, Candidate, Order, PolicyConfig, Room, Snapshot, Victim};

const WINDOW: u8 = 0;
const PROBATION: u8 = 1;
const PROTECTED: u8 = 2;

/// W-TinyLFU.
#[derive(Debug)]
pub struct WTinyLfu {
    queues: Queues<3, 3, ()>,
    sketch: Sketch,
    window_capacity: u64,
    main_capacity: u64,
    /// Bytes of the newcomer for which room is being made; it will be in the window.
    newcomer: u64,
}

impl WTinyLfu {
    /// An empty one for a tier of `config.capacity` bytes.
    #[must_use]
    pub fn new(config: &PolicyConfig) -> Self {
        let window_capacity = (config.capacity / 100).max(1);
        Self {
            queues: Queues::default(),
            sketch: Sketch::new(),
            window_capacity,
            main_capacity: config.capacity - window_capacity.min(config.capacity),
            newcomer: 0,
        }
    }

    /// What the window cannot hold goes to the main part while there is room.
    fn spill(&mut self) {
        while self.queues.bytes(WINDOW) > self.window_capacity {
            let Some(slot) = self.queues.oldest(WINDOW) else { break };
            let main = self.queues.bytes(PROBATION) + self.queues.bytes(PROTECTED);
            if main + self.queues.node(slot).bytes > self.main_capacity {
                break;
            }
            self.queues.shift(slot, PROBATION);
        }
    }

    /// Protects an object of the main part, and moves down what is too much then.
    fn protect(&mut self, slot: u32) {
        self.queues.shift(slot, PROTECTED);
        while self.queues.bytes(PROTECTED) > self.main_capacity / 5 * 4
            && self.queues.len(PROTECTED) > 1
        {
            let Some(oldest) = self.queues.oldest(PROTECTED) else { break };
            self.queues.shift(oldest, PROBATION);
        }
    }

    /// The slot that leaves next; the winner of a contest enters the main part.
    fn loser(&mut self) -> Option<u32> {
        let main = self.queues.oldest(PROBATION).or(self.queues.oldest(PROTECTED));
        let overflows = self.queues.bytes(WINDOW) + self.newcomer > self.window_capacity;
        let window = self.queues.oldest(WINDOW).filter(|_| overflows || main.is_none());
        let (Some(candidate), Some(victim)) = (window, main) else { return window.or(main) };
        let uses = |slot: u32| self.sketch.estimate(self.queues.object(slot));
        if uses(candidate) > uses(victim) {
            self.queues.shift(candidate, PROBATION);
            Some(victim)
        } else {
            Some(candidate)
        }
    }

    /// Whether a newcomer that contests itself was used more often than each of those that would
    /// leave the main part for it.
    fn wins(&self, candidate: &Candidate, room: &Room<'_>) -> bool {
        let need = room.lacking(candidate.incoming());
        let uses = self.sketch.estimate(candidate.object);
        let mut freed = 0;
        for list in [PROBATION, PROTECTED] {
            let mut next = self.queues.oldest(list);
            while let Some(slot) = next.filter(|_| freed < need) {
                next = self.queues.newer(slot);
                let object = self.queues.object(slot);
                if !(room.busy)(object) {
                    if self.sketch.estimate(object) >= uses {
                        return false;
                    }
                    freed += self.queues.node(slot).bytes;
                }
            }
        }
        true
    }
}

impl Order for WTinyLfu {
    fn name(&self) -> &'static str {
        "wtinylfu"
    }

    fn number(&mut self, objects: usize) {
        self.queues.number(objects);
    }

    fn touch(&mut self, access: &Access) {
        self.sketch.count(access.object);
        match self.queues.find(access.object) {
            Some(slot) if self.queues.node(slot).queue == WINDOW => self.queues.shift(slot, WINDOW),
            Some(slot) => self.protect(slot),
            None => {}
        }
    }

    fn insert(&mut self, object: u64, bytes: u64) {
        if !self.queues.resize(object, bytes) {
            self.queues.add(WINDOW, object, bytes, ());
            self.sketch.fit(self.queues.books().objects);
            self.spill();
        }
    }

    fn resize(&mut self, object: u64, bytes: u64) {
        self.queues.resize(object, bytes);
    }

    fn remove(&mut self, object: u64) {
        self.queues.remove_resident(object);
    }

    fn evict(&mut self, busy: &dyn Fn(u64) -> bool) -> Option<Victim> {
        // What is busy is as good as used: two rounds see everything.
        for _ in 0..2 * self.queues.books().objects {
            let slot = self.loser()?;
            let victim = self.queues.victim(slot);
            if !busy(victim.object) {
                self.queues.remove(slot);
                return Some(victim);
            }
            self.protect(slot);
        }
        None
    }

    fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        let incoming = candidate.incoming();
        let contests = incoming > self.window_capacity && room.lacking(incoming) > 0;
        if contests && !self.wins(candidate, room) {
            return Admission::Bypass;
        }
        // Who has won needs no room in the window.
        self.newcomer = if contests { 0 } else { incoming };
        let admission = admit_what_fits(self, candidate, room, out);
        self.newcomer = 0;
        admission
    }

    fn books(&self) -> Snapshot {
        self.queues.books()
    }
}

#[cfg(test)]
mod tests {
    use super::super::AccessKind;
    use super::*;

    const CAPACITY: u64 = 6;

    fn list(policy: &WTinyLfu, queue: u8) -> Vec<u64> {
        let queues = &policy.queues;
        let slots = std::iter::successors(queues.oldest(queue), |slot| queues.newer(*slot));
        slots.map(|slot| queues.object(slot)).collect()
    }

    /// Asks for an object as a driver does; gives back the answer, if it was not there, and who left.
    fn ask(policy: &mut WTinyLfu, object: u64, size: u64) -> (Option<Admission>, Vec<u64>) {
        policy.touch(&Access { object, size, kind: AccessKind::Read });
        if policy.queues.find_resident(object).is_some() {
            return (None, Vec::new());
        }
        let mut out = Vec::new();
        let candidate = Candidate { object, size, resident: 0, prefetch: false };
        let used = policy.books().bytes;
        let room = Room { capacity: CAPACITY, used, limit: 8, busy: &|other| other == object };
        let admission = policy.admit(&candidate, &room, &mut out);
        if admission == Admission::Whole {
            policy.insert(object, size);
        }
        (Some(admission), out.iter().map(|victim| victim.object).collect())
    }

    /// By hand: a window of one page, a main part of five of which four may be protected. After each
    /// request who left, and the window, probation, and protected part from the oldest on.
    #[test]
    #[rustfmt::skip]
    fn requests_worked_by_hand_then_the_segments_of_the_paper() {
        type Step<'a> = (u64, &'a [u64], [&'a [u64]; 3]);
        let steps: [Step<'_>; 20] = [
            (1, &[], [&[1], &[], &[]]),
            (2, &[], [&[2], &[1], &[]]),                   // main has room: no contest
            (3, &[], [&[3], &[1, 2], &[]]),
            (1, &[], [&[3], &[2], &[1]]),                  // probation, hit: protected
            (3, &[], [&[3], &[2], &[1]]),                  // window, hit: stays
            (4, &[], [&[4], &[2, 3], &[1]]),
            (5, &[], [&[5], &[2, 3, 4], &[1]]),
            (6, &[], [&[6], &[2, 3, 4, 5], &[1]]),         // full
            (7, &[6], [&[7], &[2, 3, 4, 5], &[1]]),        // 6 (1 use) against 2 (1): the tie loses
            (7, &[], [&[7], &[2, 3, 4, 5], &[1]]),
            (8, &[2], [&[8], &[3, 4, 5, 7], &[1]]),        // 7 (2) against 2 (1)
            (6, &[8], [&[6], &[3, 4, 5, 7], &[1]]),        // 8 (1) against 3 (2)
            (9, &[6], [&[9], &[3, 4, 5, 7], &[1]]),        // 6 (2, from memory) against 3 (2)
            (6, &[9], [&[6], &[3, 4, 5, 7], &[1]]),
            (9, &[3], [&[9], &[4, 5, 7, 6], &[1]]),        // 6 (3) against 3 (2)
            (4, &[], [&[9], &[5, 7, 6], &[1, 4]]),
            (5, &[], [&[9], &[7, 6], &[1, 4, 5]]),
            (7, &[], [&[9], &[6], &[1, 4, 5, 7]]),
            (6, &[], [&[9], &[1], &[4, 5, 7, 6]]),         // one too many: 1 goes down
            (2, &[9], [&[2], &[1], &[4, 5, 7, 6]]),        // 9 (2) against 1 (2)
        ];
        let mut policy = WTinyLfu::new(&PolicyConfig::new(CAPACITY));
        for (at, (object, left, segments)) in steps.into_iter().enumerate() {
            assert_eq!(ask(&mut policy, object, 1).1, left, "request {at}");
            let now = [WINDOW, PROBATION, PROTECTED].map(|queue| list(&policy, queue));
            assert_eq!(now, segments, "request {at}");
        }
    }

    #[test]
    fn newcomer_larger_than_the_window_then_it_contests_with_all_who_would_leave() {
        let mut policy = WTinyLfu::new(&PolicyConfig::new(CAPACITY));
        for object in [1, 2, 2, 3] {
            ask(&mut policy, object, 2);
        }
        assert_eq!(
            ask(&mut policy, 4, 2),
            (Some(Admission::Bypass), vec![]),
            "1 was used as often"
        );
        // It is let in; 3 has had no room but in the window, and contests with 1 for what there is.
        assert_eq!(ask(&mut policy, 4, 2), (Some(Admission::Whole), vec![3]));
        ask(&mut policy, 5, 4);
        assert_eq!(
            ask(&mut policy, 5, 4),
            (Some(Admission::Bypass), vec![]),
            "2 was used as often"
        );
        assert_eq!(ask(&mut policy, 5, 4).0, Some(Admission::Whole));
    }
}
