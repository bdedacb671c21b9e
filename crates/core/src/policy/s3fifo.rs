//! S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction",
//! SOSP 2023): a small queue of a tenth of the bytes, a main queue with two-bit counters, and a
//! ghost queue of what left the small one. The readings of the paper where it is silent (what fits,
//! the warm-up, sizes in bytes) are libCacheSim's, against which the tests compare.

use super::ghost::Recalled;
use super::order::admit_what_fits;
use super::queues::Queues;
use super::{Access, Admission, Candidate, Order, PolicyConfig, Room, Snapshot, Victim};

/// Uses in the small queue that earn a place in the main one.
const PROMOTE_AFTER: u8 = 2;
/// Most uses that the main queue remembers.
const MAX_USES: u8 = 3;

const SMALL: u8 = 0;
const MAIN: u8 = 1;
const GHOST: u8 = 2;

/// S3-FIFO.
#[derive(Debug)]
pub struct S3Fifo {
    /// Uses since the last move.
    queues: Queues<2, 3, u8>,
    small_capacity: u64,
    main_capacity: u64,
    ghost_capacity: u64,
    admit_large: bool,
    /// Before the first eviction a full small queue spills into the main one.
    warm: bool,
    refills: bool,
    recalled: Recalled,
}

impl S3Fifo {
    /// An empty one for a tier of `config.capacity` bytes.
    #[must_use]
    pub fn new(config: &PolicyConfig) -> Self {
        // The products are taken in floating point as the reference does.
        let small_capacity = (config.capacity as f64 * 0.1) as u64;
        Self {
            queues: Queues::default(),
            small_capacity,
            main_capacity: config.capacity - small_capacity,
            ghost_capacity: (config.capacity as f64 * 0.9) as u64,
            admit_large: config.admit_large,
            warm: false,
            refills: false,
            recalled: Recalled::default(),
        }
    }

    /// Moves a slot to the front of a queue.
    fn shift(&mut self, slot: u32, to: u8, uses: u8) {
        *self.queues.tag(slot) = uses;
        self.queues.shift(slot, to);
    }

    /// Remembers what left the small queue, if the ghost queue can hold it at all.
    fn push_ghost(&mut self, slot: u32) {
        let bytes = self.queues.node(slot).bytes;
        if bytes > self.ghost_capacity {
            return self.queues.remove(slot);
        }
        while self.queues.bytes(GHOST) + bytes > self.ghost_capacity {
            let Some(oldest) = self.queues.oldest(GHOST) else { break };
            self.queues.remove(oldest);
        }
        self.shift(slot, GHOST, 0);
    }

    /// The queue that the next victim comes from. It is searched until it gives one or is empty,
    /// even if what moves on overfills the main queue meanwhile.
    fn turn(&self) -> u8 {
        let full = self.queues.bytes(MAIN) > self.main_capacity;
        if full || self.queues.len(SMALL) == 0 { MAIN } else { SMALL }
    }

    /// Looks at the oldest object of a queue: it leaves, moves on, or goes round.
    fn step(&mut self, queue: u8, busy: &dyn Fn(u64) -> bool) -> Option<Victim> {
        let slot = self.queues.oldest(queue)?;
        let uses = self.queues.node(slot).tag;
        let victim = self.queues.victim(slot);
        if busy(victim.object) {
            // In use: as good as used again.
            self.shift(slot, MAIN, uses);
        } else if queue == MAIN {
            if uses == 0 {
                self.queues.remove(slot);
                return Some(victim);
            }
            self.shift(slot, MAIN, uses.min(MAX_USES) - 1);
        } else if uses >= PROMOTE_AFTER {
            self.shift(slot, MAIN, 0);
        } else {
            self.push_ghost(slot);
            return Some(victim);
        }
        None
    }

    /// Whether a main queue that has lost its room to others is filled again as before the first
    /// eviction. In a tier of its own that makes no difference: the main queue stays full, as an
    /// eviction takes it from above its capacity of 0.9 C to no less than 0.1 C below.
    pub(super) fn set_refills(&mut self, refills: bool) {
        self.refills = refills;
    }

    /// A resident object that was used goes on here: had it been here all the time, the main queue is
    /// where it would be, with this use to its credit.
    pub(super) fn insert_used(&mut self, object: u64, bytes: u64) {
        if let Some(ghost) = self.queues.find(object) {
            self.queues.remove(ghost);
        }
        self.queues.add(MAIN, object, bytes, 1);
    }

    /// Bytes resident of an object on its books.
    pub(super) fn bytes_of(&self, object: u64) -> Option<u64> {
        self.queues.bytes_of(object)
    }
}

impl Order for S3Fifo {
    fn name(&self) -> &'static str {
        "s3fifo"
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
        if self.queues.is_resident(slot) {
            let uses = self.queues.tag(slot);
            *uses = uses.saturating_add(1);
        } else {
            self.queues.remove(slot);
            self.recalled.push(access.object);
        }
    }

    fn insert(&mut self, object: u64, bytes: u64) {
        if self.queues.resize(object, bytes) {
            return;
        }
        if let Some(ghost) = self.queues.find(object) {
            self.queues.remove(ghost);
        }
        let lost = self.refills && self.queues.bytes(MAIN) < self.main_capacity / 8 * 7;
        let hollow = !self.warm || lost;
        let spills = hollow && self.queues.bytes(SMALL) >= self.small_capacity;
        let to_main = self.recalled.take(object) || spills || bytes > self.small_capacity;
        self.queues.add(if to_main { MAIN } else { SMALL }, object, bytes, 0);
    }

    fn resize(&mut self, object: u64, bytes: u64) {
        self.queues.resize(object, bytes);
    }

    fn remove(&mut self, object: u64) {
        self.queues.remove_resident(object);
    }

    fn evict(&mut self, busy: &dyn Fn(u64) -> bool) -> Option<Victim> {
        self.warm = true;
        // Every object moves to the main queue at most once and goes round it as often as it was
        // used; more steps than that only if all are busy.
        let rounds = u64::from(MAX_USES) + 2;
        let mut turn = self.turn();
        for _ in 0..rounds * (self.queues.len(SMALL) + self.queues.len(MAIN)) {
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
        // The reference makes room for what just fills the small queue, and refuses it then, unless
        // it was called back.
        let recalled = self.recalled.contains(candidate.object);
        let refused = !self.admit_large && candidate.size >= self.small_capacity && !recalled;
        if refused { Admission::Bypass } else { admission }
    }

    fn books(&self) -> Snapshot {
        self.queues.books()
    }
}
