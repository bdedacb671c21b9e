//! W-TinyLFU (Einziger, Friedman, Manes: "TinyLFU: A Highly Efficient Cache Admission Policy", ACM
//! TOS 2017), counted in bytes: a window of one per cent in LRU order, a main part in segmented LRU
//! order (four fifths protected), and a sketch of recent uses by which what falls out of the window
//! contests with what would leave the main part.

use super::queues::Queues;
use super::sketch::Sketch;
use super::{Access, Order, PolicyConfig, Snapshot, Victim};

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
        let overflows = self.queues.bytes(WINDOW) > self.window_capacity || main.is_none();
        let window = self.queues.oldest(WINDOW).filter(|_| overflows);
        let (Some(candidate), Some(victim)) = (window, main) else { return window.or(main) };
        let uses = |slot: u32| self.sketch.estimate(self.queues.object(slot));
        if uses(candidate) > uses(victim) {
            self.queues.shift(candidate, PROBATION);
            Some(victim)
        } else {
            Some(candidate)
        }
    }
}

impl Order for WTinyLfu {
    fn name(&self) -> &'static str {
        "wtinylfu"
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

    fn books(&self) -> Snapshot {
        self.queues.books()
    }
}
