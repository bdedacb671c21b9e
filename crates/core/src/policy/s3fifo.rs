//! S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction",
//! SOSP 2023): a small queue of a tenth of the bytes, a main queue with two-bit counters, and a
//! ghost queue of what left the small one. The readings of the paper where it is silent (what fits,
//! the warm-up, sizes in bytes) are libCacheSim's, against which the tests compare.

use super::ghost::Recalled;
use super::list::{Arena, List};
use super::{
    Access, Admission, Candidate, Demand, Policy, PolicyConfig, Room, Snapshot, Tally, Victim,
};

/// Uses in the small queue that earn a place in the main one.
const PROMOTE_AFTER: u8 = 2;
/// Most uses that the main queue remembers.
const MOST_USES: u8 = 3;
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    Small,
    Main,
    Ghost,
}

#[derive(Debug, Clone, Copy)]
struct Tag {
    queue: Queue,
    uses: u8,
}

/// S3-FIFO.
#[derive(Debug)]
pub struct S3Fifo {
    arena: Arena<Tag>,
    small: List,
    main: List,
    ghost: List,
    small_capacity: u64,
    main_capacity: u64,
    ghost_capacity: u64,
    admit_large: bool,
    /// Before the first eviction a full small queue spills into the main one.
    warm: bool,
    recalled: Recalled,
    tally: Tally,
}

impl S3Fifo {
    /// An empty one for a tier of `config.capacity` bytes.
    #[must_use]
    pub fn new(config: &PolicyConfig) -> Self {
        // The products are taken in floating point as the reference does.
        let small_capacity = (config.capacity as f64 * 0.1) as u64;
        Self {
            arena: Arena::new(),
            small: List::EMPTY,
            main: List::EMPTY,
            ghost: List::EMPTY,
            small_capacity,
            main_capacity: config.capacity - small_capacity,
            ghost_capacity: (config.capacity as f64 * 0.9) as u64,
            admit_large: config.admit_large,
            warm: false,
            recalled: Recalled::default(),
            tally: Tally::default(),
        }
    }

    fn list(&mut self, queue: Queue) -> (&mut Arena<Tag>, &mut List) {
        let list = match queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
            Queue::Ghost => &mut self.ghost,
        };
        (&mut self.arena, list)
    }

    /// Moves a slot to the front of a queue.
    fn shift(&mut self, slot: u32, to: Queue, uses: u8) {
        let from = self.arena.node(slot).tag.queue;
        let (arena, list) = self.list(from);
        arena.unlink(list, slot);
        *arena.tag(slot) = Tag { queue: to, uses };
        let (arena, list) = self.list(to);
        arena.push_front(list, slot);
    }

    fn forget(&mut self, slot: u32) {
        let queue = self.arena.node(slot).tag.queue;
        let (arena, list) = self.list(queue);
        arena.unlink(list, slot);
        arena.forget(slot);
    }

    /// Remembers what left the small queue, if the ghost queue can hold it at all.
    fn haunt(&mut self, slot: u32) {
        let bytes = self.arena.node(slot).bytes;
        if bytes > self.ghost_capacity {
            self.forget(slot);
            return;
        }
        while self.ghost.bytes + bytes > self.ghost_capacity {
            let Some(oldest) = self.ghost.back() else { break };
            self.forget(oldest);
        }
        self.shift(slot, Queue::Ghost, 0);
    }

    /// The queue that the next victim comes from. It is searched until it gives one or is empty,
    /// even if what moves on overfills the main queue meanwhile.
    fn turn(&self) -> Queue {
        let full = self.main.bytes > self.main_capacity;
        if full || self.small.len == 0 { Queue::Main } else { Queue::Small }
    }

    /// Looks at the oldest object of a queue: it leaves, moves on, or goes round.
    fn step(&mut self, queue: Queue, busy: &dyn Fn(u64) -> bool) -> Option<Victim> {
        let from_main = queue == Queue::Main;
        let list = if from_main { &self.main } else { &self.small };
        let slot = list.back()?;
        let node = *self.arena.node(slot);
        let victim = Victim::whole(node.object, node.bytes);
        if busy(node.object) {
            // In use: as good as used again.
            self.shift(slot, Queue::Main, node.tag.uses);
        } else if from_main {
            if node.tag.uses == 0 {
                self.forget(slot);
                return Some(victim);
            }
            self.shift(slot, Queue::Main, node.tag.uses.min(MOST_USES) - 1);
        } else if node.tag.uses >= PROMOTE_AFTER {
            self.shift(slot, Queue::Main, 0);
        } else {
            self.haunt(slot);
            return Some(victim);
        }
        None
    }

    /// Bytes resident of an object on its books.
    pub(super) fn bytes_of(&self, object: u64) -> Option<u64> {
        self.resident(object).map(|slot| self.arena.node(slot).bytes)
    }

    fn resident(&self, object: u64) -> Option<u32> {
        self.arena.find(object).filter(|&slot| self.arena.node(slot).tag.queue != Queue::Ghost)
    }
}

impl Policy for S3Fifo {
    fn name(&self) -> &'static str {
        "s3fifo"
    }

    fn observe(&mut self, accesses: &[Access]) {
        for access in accesses {
            let Some(slot) = self.arena.find(access.object) else { continue };
            let tag = self.arena.tag(slot);
            if tag.queue == Queue::Ghost {
                self.forget(slot);
                self.recalled.push(access.object);
            } else {
                tag.uses = tag.uses.saturating_add(1);
            }
        }
    }

    fn inserted(&mut self, object: u64, bytes: u64) {
        if self.resident(object).is_some() {
            return self.resized(object, bytes);
        }
        if let Some(ghost) = self.arena.find(object) {
            self.forget(ghost);
        }
        let spills = !self.warm && self.small.bytes >= self.small_capacity;
        let to_main = self.recalled.take(object) || spills || bytes > self.small_capacity;
        let queue = if to_main { Queue::Main } else { Queue::Small };
        let slot = self.arena.add(object, bytes, Tag { queue, uses: 0 });
        let (arena, list) = self.list(queue);
        arena.push_front(list, slot);
    }

    fn resized(&mut self, object: u64, bytes: u64) {
        if let Some(slot) = self.resident(object) {
            let queue = self.arena.node(slot).tag.queue;
            let (arena, list) = self.list(queue);
            arena.resize(list, slot, bytes);
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
        let rejected = !self.admit_large && candidate.size > self.small_capacity;
        if rejected {
            return self.tally.admission(Admission::Bypass);
        }
        let mut admission = super::make_room(self, candidate, room, out);
        // The reference makes room for what just fills the small queue, and refuses it then, unless
        // it was called back.
        let recalled = self.recalled.contains(candidate.object);
        if !self.admit_large && candidate.size >= self.small_capacity && !recalled {
            admission = Admission::Bypass;
        }
        self.tally.admission(admission)
    }

    fn victims(&mut self, demand: &Demand<'_>, out: &mut Vec<Victim>) -> u64 {
        let mut freed = 0;
        let mut given = 0;
        self.warm = true;
        // Every object moves to the main queue at most once and goes round it as often as it was
        // used; more steps than that only if all are busy.
        let rounds = u64::from(MOST_USES) + 2;
        let mut turn = self.turn();
        for _ in 0..rounds * (self.small.len + self.main.len) {
            if freed >= demand.bytes || given == demand.limit {
                break;
            }
            if let Some(victim) = self.step(turn, demand.busy) {
                out.push(victim);
                freed += victim.bytes;
                given += 1;
                turn = self.turn();
            } else if turn == Queue::Small && self.small.len == 0 {
                turn = self.turn();
            }
        }
        self.tally.victims += given as u64;
        freed
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            objects: self.small.len + self.main.len,
            bytes: self.small.bytes + self.main.bytes,
            ghosts: self.ghost.len,
            ..self.tally.snapshot()
        }
    }
}
