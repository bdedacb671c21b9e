//! Doubly linked lists with their links inside a slab: no allocation for an access.

use super::index::Map;

/// No slot.
const NIL: u32 = u32::MAX;

/// One object of an [`Arena`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node<T> {
    pub object: u64,
    pub bytes: u64,
    prev: u32,
    next: u32,
    /// What the policy remembers about it.
    pub tag: T,
}

/// A list of slots of one arena, newest at the front, with the bytes it holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List {
    front: u32,
    back: u32,
    pub len: u64,
    pub bytes: u64,
}

impl List {
    pub const EMPTY: Self = Self { front: NIL, back: NIL, len: 0, bytes: 0 };

    /// The oldest slot.
    pub fn back(&self) -> Option<u32> {
        (self.back != NIL).then_some(self.back)
    }
}

/// Objects found by their number, each in at most one list.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    nodes: Vec<Node<T>>,
    free: u32,
    index: Map<u32>,
}

impl<T: Copy> Arena<T> {
    pub fn new() -> Self {
        Self { nodes: Vec::new(), free: NIL, index: Map::default() }
    }

    pub fn find(&self, object: u64) -> Option<u32> {
        self.index.get(&object).copied()
    }

    pub fn node(&self, slot: u32) -> &Node<T> {
        &self.nodes[slot as usize]
    }

    pub fn tag(&mut self, slot: u32) -> &mut T {
        &mut self.nodes[slot as usize].tag
    }

    /// The slot nearer to the front of its list.
    pub fn newer(&self, slot: u32) -> Option<u32> {
        let slot = self.node(slot).prev;
        (slot != NIL).then_some(slot)
    }

    /// A slot for a new object, in no list yet.
    pub fn add(&mut self, object: u64, bytes: u64, tag: T) -> u32 {
        let node = Node { object, bytes, prev: NIL, next: NIL, tag };
        let slot = if self.free == NIL {
            let slot = u32::try_from(self.nodes.len()).expect("fewer than 2^32 objects");
            self.nodes.push(node);
            slot
        } else {
            let slot = self.free;
            self.free = self.nodes[slot as usize].next;
            self.nodes[slot as usize] = node;
            slot
        };
        self.index.insert(object, slot);
        slot
    }

    /// Forgets an object that is in no list.
    pub fn forget(&mut self, slot: u32) {
        let object = self.node(slot).object;
        self.index.remove(&object);
        self.nodes[slot as usize].next = self.free;
        self.free = slot;
    }

    pub fn push_front(&mut self, list: &mut List, slot: u32) {
        let bytes = {
            let node = &mut self.nodes[slot as usize];
            node.prev = NIL;
            node.next = list.front;
            node.bytes
        };
        match list.front {
            NIL => list.back = slot,
            front => self.nodes[front as usize].prev = slot,
        }
        list.front = slot;
        list.len += 1;
        list.bytes += bytes;
    }

    pub fn unlink(&mut self, list: &mut List, slot: u32) {
        let Node { prev, next, bytes, .. } = self.nodes[slot as usize];
        match prev {
            NIL => list.front = next,
            prev => self.nodes[prev as usize].next = next,
        }
        match next {
            NIL => list.back = prev,
            next => self.nodes[next as usize].prev = prev,
        }
        list.len -= 1;
        list.bytes -= bytes;
    }

    /// Makes a slot of the list its newest.
    pub fn touch(&mut self, list: &mut List, slot: u32) {
        if list.front != slot {
            self.unlink(list, slot);
            self.push_front(list, slot);
        }
    }

    /// Changes the bytes of a slot of the list.
    pub fn resize(&mut self, list: &mut List, slot: u32, bytes: u64) {
        let node = &mut self.nodes[slot as usize];
        list.bytes = list.bytes - node.bytes + bytes;
        node.bytes = bytes;
    }
}
