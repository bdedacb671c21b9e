//! ARC (Megiddo, Modha: "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003), counted in
//! bytes: a list of what was used once, one of what was used again, the ghosts of both, and a target
//! for the first that moves towards the list whose ghosts are asked for.

use super::ghost::Recalled;
use super::list::{Arena, List};
use super::{
    Access, Admission, Candidate, Demand, Policy, PolicyConfig, Room, Snapshot, Tally, Victim,
};

/// T1, T2, B1, B2 of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Once = 0,
    Again = 1,
    OnceGhost = 2,
    AgainGhost = 3,
}
use Which::{Again, AgainGhost, Once, OnceGhost};

/// Adaptive replacement.
#[derive(Debug)]
pub struct Arc {
    arena: Arena<Which>,
    lists: [List; 4],
    capacity: u64,
    /// Bytes that T1 should have: `p` of the paper.
    target: u64,
    recalled: Recalled,
    tally: Tally,
}

impl Arc {
    /// An empty one for a tier of `config.capacity` bytes.
    #[must_use]
    pub fn new(config: &PolicyConfig) -> Self {
        Self {
            arena: Arena::new(),
            lists: [List::EMPTY; 4],
            capacity: config.capacity,
            target: 0,
            recalled: Recalled::default(),
            tally: Tally::default(),
        }
    }

    fn bytes(&self, which: Which) -> u64 {
        self.lists[which as usize].bytes
    }

    fn shift(&mut self, slot: u32, to: Which) {
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

    /// Moves the target: a ghost of one list says that it should have been longer.
    fn learn(&mut self, ghost: Which, bytes: u64) {
        let (own, other) = (self.bytes(ghost).max(1), {
            self.bytes(if ghost == OnceGhost { AgainGhost } else { OnceGhost })
        });
        let factor = (other as f64 / own as f64).max(1.0);
        let step = (bytes as f64 * factor) as u64;
        self.target = if ghost == OnceGhost {
            self.target.saturating_add(step).min(self.capacity)
        } else {
            self.target.saturating_sub(step)
        };
    }

    /// Ghosts of T1 and T1 hold no more than the capacity, all four lists no more than twice that.
    fn trim(&mut self) {
        while self.bytes(Once) + self.bytes(OnceGhost) > self.capacity {
            let Some(oldest) = self.lists[OnceGhost as usize].back() else { break };
            self.forget(oldest);
        }
        while self.lists.iter().map(|list| list.bytes).sum::<u64>() > 2 * self.capacity {
            let Some(oldest) = self.lists[AgainGhost as usize].back() else { break };
            self.forget(oldest);
        }
    }

    fn resident(&self, object: u64) -> Option<u32> {
        let resident = |slot: &u32| matches!(self.arena.node(*slot).tag, Once | Again);
        self.arena.find(object).filter(resident)
    }
}

impl Policy for Arc {
    fn name(&self) -> &'static str {
        "arc"
    }

    fn observe(&mut self, accesses: &[Access]) {
        for access in accesses {
            let Some(slot) = self.arena.find(access.object) else { continue };
            let node = *self.arena.node(slot);
            match node.tag {
                Once | Again => self.shift(slot, Again),
                ghost @ (OnceGhost | AgainGhost) => {
                    self.learn(ghost, node.bytes);
                    self.forget(slot);
                    self.recalled.push(access.object);
                }
            }
        }
    }

    fn inserted(&mut self, object: u64, bytes: u64) {
        if self.resident(object).is_some() {
            return self.resized(object, bytes);
        }
        let ghost = self.arena.find(object);
        if let Some(ghost) = ghost {
            self.forget(ghost);
        }
        let to = if self.recalled.take(object) || ghost.is_some() { Again } else { Once };
        let slot = self.arena.add(object, bytes, to);
        self.arena.push_front(&mut self.lists[to as usize], slot);
        self.trim();
    }

    fn resized(&mut self, object: u64, bytes: u64) {
        if let Some(slot) = self.resident(object) {
            let list = self.arena.node(slot).tag as usize;
            self.arena.resize(&mut self.lists[list], slot, bytes);
        }
    }

    fn removed(&mut self, object: u64) {
        if let Some(slot) = self.resident(object) {
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
        // What is busy goes to the front of T2, so that two rounds see everything.
        for _ in 0..2 * (self.lists[Once as usize].len + self.lists[Again as usize].len) {
            if freed >= demand.bytes || given == demand.limit {
                break;
            }
            let (once, again) = (self.bytes(Once), self.lists[Again as usize].len);
            let first =
                self.lists[Once as usize].back().filter(|_| once > self.target || again == 0);
            let Some(slot) = first.or(self.lists[Again as usize].back()) else { break };
            let node = *self.arena.node(slot);
            if (demand.busy)(node.object) {
                self.shift(slot, Again);
                continue;
            }
            self.shift(slot, if node.tag == Once { OnceGhost } else { AgainGhost });
            out.push(Victim::whole(node.object, node.bytes));
            freed += node.bytes;
            given += 1;
        }
        self.trim();
        self.tally.victims += given as u64;
        freed
    }

    fn snapshot(&self) -> Snapshot {
        let [once, again, once_ghost, again_ghost] = &self.lists;
        Snapshot {
            objects: once.len + again.len,
            bytes: once.bytes + again.bytes,
            ghosts: once_ghost.len + again_ghost.len,
            ..self.tally.snapshot()
        }
    }
}
