//! W-TinyLFU (Einziger, Friedman, Manes: "TinyLFU: A Highly Efficient Cache Admission Policy", ACM
//! TOS 2017), counted in bytes: a window of one per cent in LRU order, a main part in segmented LRU
//! order (four fifths protected), and a sketch of recent uses by which what falls out of the window
//! contests with what would leave the main part.

use super::list::{Arena, List};
use super::sketch::Sketch;
use super::{
    Access, Admission, Candidate, Demand, Policy, PolicyConfig, Room, Snapshot, Tally, Victim,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Segment {
    Window = 0,
    Probation = 1,
    Protected = 2,
}
use Segment::{Probation, Protected, Window};

/// W-TinyLFU.
#[derive(Debug)]
pub struct WTinyLfu {
    arena: Arena<Segment>,
    lists: [List; 3],
    sketch: Sketch,
    window_capacity: u64,
    main_capacity: u64,
    tally: Tally,
}

impl WTinyLfu {
    /// An empty one for a tier of `config.capacity` bytes.
    #[must_use]
    pub fn new(config: &PolicyConfig) -> Self {
        let window_capacity = (config.capacity / 100).max(1);
        Self {
            arena: Arena::new(),
            lists: [List::EMPTY; 3],
            sketch: Sketch::new(),
            window_capacity,
            main_capacity: config.capacity - window_capacity.min(config.capacity),
            tally: Tally::default(),
        }
    }

    fn list(&self, segment: Segment) -> &List {
        &self.lists[segment as usize]
    }

    fn len(&self) -> u64 {
        self.lists.iter().map(|list| list.len).sum()
    }

    fn shift(&mut self, slot: u32, to: Segment) {
        let from = self.arena.node(slot).tag;
        self.arena.unlink(&mut self.lists[from as usize], slot);
        *self.arena.tag(slot) = to;
        self.arena.push_front(&mut self.lists[to as usize], slot);
    }

    fn forget(&mut self, slot: u32) {
        let from = self.arena.node(slot).tag;
        self.arena.unlink(&mut self.lists[from as usize], slot);
        self.arena.forget(slot);
    }

    /// What the window cannot hold goes to the main part while there is room.
    fn spill(&mut self) {
        while self.list(Window).bytes > self.window_capacity {
            let Some(slot) = self.list(Window).back() else { break };
            let main = self.list(Probation).bytes + self.list(Protected).bytes;
            if main + self.arena.node(slot).bytes > self.main_capacity {
                break;
            }
            self.shift(slot, Probation);
        }
    }

    /// Protects an object of the main part, and moves down what is too much then.
    fn protect(&mut self, slot: u32) {
        self.shift(slot, Protected);
        while self.list(Protected).bytes > self.main_capacity / 5 * 4
            && self.list(Protected).len > 1
        {
            let Some(oldest) = self.list(Protected).back() else { break };
            self.shift(oldest, Probation);
        }
    }

    /// The slot that leaves next; the winner of a contest enters the main part.
    fn loser(&mut self) -> Option<u32> {
        let main = self.list(Probation).back().or(self.list(Protected).back());
        let overflows = self.list(Window).bytes > self.window_capacity || main.is_none();
        let window = self.list(Window).back().filter(|_| overflows);
        let (Some(candidate), Some(victim)) = (window, main) else { return window.or(main) };
        let uses = |slot: u32| self.sketch.estimate(self.arena.node(slot).object);
        if uses(candidate) > uses(victim) {
            self.shift(candidate, Probation);
            Some(victim)
        } else {
            Some(candidate)
        }
    }
}

impl Policy for WTinyLfu {
    fn name(&self) -> &'static str {
        "wtinylfu"
    }

    fn observe(&mut self, accesses: &[Access]) {
        for access in accesses {
            self.sketch.count(access.object);
            let Some(slot) = self.arena.find(access.object) else { continue };
            match self.arena.node(slot).tag {
                Window => self.shift(slot, Window),
                Probation | Protected => self.protect(slot),
            }
        }
    }

    fn inserted(&mut self, object: u64, bytes: u64) {
        if self.arena.find(object).is_some() {
            return self.resized(object, bytes);
        }
        let slot = self.arena.add(object, bytes, Window);
        self.arena.push_front(&mut self.lists[Window as usize], slot);
        self.sketch.fit(self.len());
        self.spill();
    }

    fn resized(&mut self, object: u64, bytes: u64) {
        if let Some(slot) = self.arena.find(object) {
            let segment = self.arena.node(slot).tag as usize;
            self.arena.resize(&mut self.lists[segment], slot, bytes);
        }
    }

    fn removed(&mut self, object: u64) {
        if let Some(slot) = self.arena.find(object) {
            self.forget(slot);
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
        // What is busy is as good as used: two rounds see everything.
        for _ in 0..2 * self.len() {
            if freed >= demand.bytes || given == demand.limit {
                break;
            }
            let Some(slot) = self.loser() else { break };
            let node = *self.arena.node(slot);
            if (demand.busy)(node.object) {
                self.protect(slot);
                continue;
            }
            self.forget(slot);
            out.push(Victim::whole(node.object, node.bytes));
            freed += node.bytes;
            given += 1;
        }
        self.tally.victims += given as u64;
        freed
    }

    fn snapshot(&self) -> Snapshot {
        let bytes = self.lists.iter().map(|list| list.bytes).sum();
        Snapshot { objects: self.len(), bytes, ..self.tally.snapshot() }
    }
}
