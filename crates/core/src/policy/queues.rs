//! Doubly linked lists with their links inside the slots: no allocation for an access, and a move
//! from one list to another without a look-up. The first lists are of resident objects, the rest of
//! ghosts, which left and are remembered.

use super::slab::{HalfLine, NIL, Slab};
use super::{Snapshot, Victim};

/// An object of one of the lists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node<T> {
    pub bytes: u64,
    prev: u32,
    next: u32,
    /// The list that it is in.
    pub queue: u8,
    /// What the policy remembers about it.
    pub tag: T,
}

/// One list: its newest and its oldest slot, and what it holds.
#[derive(Debug, Clone, Copy)]
struct List {
    newest: u32,
    oldest: u32,
    len: u64,
    bytes: u64,
}

/// `N` lists, the first `RESIDENT` of them of resident objects; each object is in one of them. `A` is how
/// its slot is aligned: where tags are of six bytes at most it is half a line of the cache.
#[derive(Debug)]
pub(crate) struct Queues<const RESIDENT: u8, const N: usize, T, A = HalfLine> {
    slab: Slab<Node<T>, A>,
    lists: [List; N],
}

fn some(slot: u32) -> Option<u32> {
    (slot != NIL).then_some(slot)
}

impl<const RESIDENT: u8, const N: usize, T, A> Default for Queues<RESIDENT, N, T, A> {
    fn default() -> Self {
        let empty = List { newest: NIL, oldest: NIL, len: 0, bytes: 0 };
        Self { slab: Slab::default(), lists: [empty; N] }
    }
}

impl<const RESIDENT: u8, const N: usize, T: Copy, A: Copy> Queues<RESIDENT, N, T, A> {
    /// To be called of empty ones: see [`Slab::number`].
    pub fn number(&mut self, objects: usize) {
        self.slab.number(objects);
    }

    /// The slot of an object, resident or a ghost.
    pub fn find(&self, object: u64) -> Option<u32> {
        self.slab.find(object)
    }

    /// Looks for objects that will be moved soon: see [`Slab::warm`].
    pub fn warm(&self, objects: &[u64]) {
        self.slab.warm(objects);
        // A move also writes to both neighbours.
        let mut met = 0;
        for &object in objects {
            let Some(node) = self.slab.near(self.slab.likely(object)) else { return };
            for other in [node.prev, node.next] {
                met ^= self.slab.near(other).map_or(0, |node| node.bytes);
            }
        }
        std::hint::black_box(met);
    }

    /// Looks for the oldest of a list, which will probably leave soon, and appends them.
    pub fn warm_oldest(&self, queue: u8, most: usize, out: &mut Vec<u64>) {
        let (mut slot, mut met) = (self.lists[usize::from(queue)].oldest, 0);
        for _ in 0..most {
            if slot == NIL {
                break;
            }
            let object = self.slab.object(slot);
            met ^= self.slab.likely(object);
            out.push(object);
            slot = self.slab[slot].prev;
        }
        std::hint::black_box(met);
    }

    /// Whether a slot is one of a resident object.
    pub fn is_resident(&self, slot: u32) -> bool {
        self.slab[slot].queue < RESIDENT
    }

    /// The slot of a resident object.
    pub fn find_resident(&self, object: u64) -> Option<u32> {
        self.find(object).filter(|&slot| self.is_resident(slot))
    }

    /// The bytes of a resident object.
    pub fn bytes_of(&self, object: u64) -> Option<u64> {
        self.find_resident(object).map(|slot| self.slab[slot].bytes)
    }

    pub fn object(&self, slot: u32) -> u64 {
        self.slab.object(slot)
    }

    pub fn node(&self, slot: u32) -> &Node<T> {
        &self.slab[slot]
    }

    pub fn tag(&mut self, slot: u32) -> &mut T {
        &mut self.slab[slot].tag
    }

    /// All of an object, as a victim.
    pub fn victim(&self, slot: u32) -> Victim {
        Victim::whole(self.object(slot), self.node(slot).bytes)
    }

    pub fn len(&self, queue: u8) -> u64 {
        self.lists[usize::from(queue)].len
    }

    pub fn bytes(&self, queue: u8) -> u64 {
        self.lists[usize::from(queue)].bytes
    }

    pub fn oldest(&self, queue: u8) -> Option<u32> {
        some(self.lists[usize::from(queue)].oldest)
    }

    /// The next newer slot of the same list.
    pub fn newer(&self, slot: u32) -> Option<u32> {
        some(self.slab[slot].prev)
    }

    /// Adds an object that is in none of the lists, as the newest of one.
    pub fn add(&mut self, queue: u8, object: u64, bytes: u64, tag: T) -> u32 {
        let slot = self.slab.insert(object, Node { bytes, prev: NIL, next: NIL, queue, tag });
        self.link(slot, queue);
        slot
    }

    /// Makes a slot the newest of a list.
    pub fn shift(&mut self, slot: u32, queue: u8) {
        if self.lists[usize::from(queue)].newest != slot {
            self.unlink(slot);
            self.link(slot, queue);
        }
    }

    pub fn remove(&mut self, slot: u32) {
        self.unlink(slot);
        self.slab.remove(slot);
    }

    /// Takes a resident object off, if it is one.
    pub fn remove_resident(&mut self, object: u64) {
        if let Some(slot) = self.find_resident(object) {
            self.remove(slot);
        }
    }

    /// Changes the bytes of a resident object; whether it is one.
    pub fn resize(&mut self, object: u64, bytes: u64) -> bool {
        let slot = self.find_resident(object);
        if let Some(slot) = slot {
            let node = &mut self.slab[slot];
            let list = &mut self.lists[usize::from(node.queue)];
            list.bytes = list.bytes - node.bytes + bytes;
            node.bytes = bytes;
        }
        slot.is_some()
    }

    /// What is resident, and how many ghosts there are.
    pub fn books(&self) -> Snapshot {
        let (resident, ghosts) = self.lists.split_at(usize::from(RESIDENT));
        let len = |lists: &[List]| lists.iter().map(|list| list.len).sum();
        let bytes = resident.iter().map(|list| list.bytes).sum();
        Snapshot { objects: len(resident), bytes, ghosts: len(ghosts), ..Snapshot::default() }
    }

    fn link(&mut self, slot: u32, queue: u8) {
        let list = &mut self.lists[usize::from(queue)];
        let newest = std::mem::replace(&mut list.newest, slot);
        let node = &mut self.slab[slot];
        (node.prev, node.next, node.queue) = (NIL, newest, queue);
        list.len += 1;
        list.bytes += node.bytes;
        match newest {
            NIL => list.oldest = slot,
            newest => self.slab[newest].prev = slot,
        }
    }

    fn unlink(&mut self, slot: u32) {
        let Node { bytes, prev, next, queue, .. } = self.slab[slot];
        let list = &mut self.lists[usize::from(queue)];
        list.len -= 1;
        list.bytes -= bytes;
        match prev {
            NIL => list.newest = next,
            prev => self.slab[prev].next = next,
        }
        match next {
            NIL => list.oldest = prev,
            next => self.slab[next].prev = prev,
        }
    }
}
