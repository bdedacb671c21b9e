//! Objects in slots: the book-keeping under every policy. An object is looked up once and then
//! addressed by its slot, a `u32` that stays its own until it is removed.
//!
//! The table is open addressing with linear probing (Knuth, The Art of Computer Programming 3, 6.4,
//! algorithms L and R: removal without tombstones). It holds eight bytes for an object, a part of its
//! hash and its slot, so that a look-up touches one cache line of the table and one of the slots, and
//! nothing but the table when it grows or an object leaves. Where it is known that objects have small
//! numbers, an array takes the table's place for them.

use std::ops::{Index, IndexMut};

/// No slot.
pub(crate) const NIL: u32 = u32::MAX;

/// How many objects are best looked for together: see [`Slab::warm`].
pub(crate) const TOGETHER: usize = 16;

const EMPTY: u64 = u64::MAX;

/// From hash tags to slots.
#[derive(Debug, Clone)]
struct Table {
    /// A tag above a slot, or [`EMPTY`]; a power of two of them.
    cells: Vec<u64>,
    bits: u32,
    len: usize,
}

impl Table {
    fn new() -> Self {
        let bits = 5;
        Self { cells: vec![EMPTY; 1 << bits], bits, len: 0 }
    }

    fn tag(object: u64) -> u64 {
        mix(object) >> 32
    }

    /// Where a tag belongs.
    fn home(&self, tag: u64) -> usize {
        (tag >> (32 - self.bits)) as usize
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.cells.len() - 1)
    }

    fn find(&self, tag: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let mut at = self.home(tag);
        loop {
            let cell = self.cells[at];
            if cell >> 32 == tag && cell != EMPTY && is(cell as u32) {
                return Some(cell as u32);
            }
            if cell == EMPTY {
                return None;
            }
            at = self.after(at);
        }
    }

    fn insert(&mut self, tag: u64, slot: u32) {
        if (self.len + 1) * 8 > self.cells.len() * 5 {
            self.grow();
        }
        self.put(tag << 32 | u64::from(slot));
        self.len += 1;
    }

    fn put(&mut self, cell: u64) {
        let mut at = self.home(cell >> 32);
        while self.cells[at] != EMPTY {
            at = self.after(at);
        }
        self.cells[at] = cell;
    }

    fn grow(&mut self) {
        self.bits += 1;
        let cells = std::mem::replace(&mut self.cells, vec![EMPTY; 1 << self.bits]);
        for cell in cells.into_iter().filter(|cell| *cell != EMPTY) {
            self.put(cell);
        }
    }

    /// Takes a cell out and closes the gap with those that it had displaced.
    fn remove(&mut self, tag: u64, slot: u32) {
        let mut gap = self.home(tag);
        while self.cells[gap] != tag << 32 | u64::from(slot) {
            gap = self.after(gap);
        }
        let mask = self.cells.len() - 1;
        let mut at = self.after(gap);
        while self.cells[at] != EMPTY {
            let home = self.home(self.cells[at] >> 32);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.cells[gap] = self.cells[at];
                gap = at;
            }
            at = self.after(at);
        }
        self.cells[gap] = EMPTY;
        self.len -= 1;
    }
}

/// The alignment of a slot of 32 bytes that is never in two lines of the processor's cache.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(crate) struct HalfLine;

/// An object and its value, or a free slot.
#[derive(Debug, Clone, Copy)]
struct SlabSlot<T, A> {
    /// The object, or the next free slot.
    object: u64,
    value: T,
    _aligned: [A; 0],
}

/// Objects with a value each, in slots that are aligned as `A` is.
#[derive(Debug, Clone)]
pub(crate) struct Slab<T, A = ()> {
    table: Table,
    /// The slots of objects with small numbers, [`NIL`] for those that have none.
    numbered: Vec<u32>,
    /// How many of them have one.
    of_numbered: u64,
    slots: Vec<SlabSlot<T, A>>,
    free: u32,
}

impl<T, A> Default for Slab<T, A> {
    fn default() -> Self {
        let (table, numbered, slots) = (Table::new(), Vec::new(), Vec::new());
        Self { table, numbered, of_numbered: 0, slots, free: NIL }
    }
}

impl<T: Copy, A: Copy> Slab<T, A> {
    pub fn len(&self) -> u64 {
        self.table.len as u64 + self.of_numbered
    }

    /// To be called of an empty one: most objects are numbered from 0 to below `objects`.
    pub fn number(&mut self, objects: usize) {
        debug_assert_eq!(self.len(), 0, "numbered before the first object");
        self.numbered = vec![NIL; objects];
    }

    pub fn find(&self, object: u64) -> Option<u32> {
        match self.numbered.get(object as usize) {
            Some(&slot) => (slot != NIL).then_some(slot),
            None => {
                let is = |slot: u32| self.slots[slot as usize].object == object;
                self.table.find(Table::tag(object), is)
            }
        }
    }

    /// Looks for objects without a use for the answers yet. With a million objects nearly every
    /// look-up waits for memory, which is many times slower than the look-up itself but answers many
    /// requests at once: those of a few objects ([`TOGETHER`]) that will be looked for in earnest one
    /// by one take hardly longer than those of one. Nothing here branches on what comes from memory, as
    /// the processor takes back what it has asked for beyond a branch that it had guessed wrong.
    pub fn warm(&self, objects: &[u64]) {
        let mut slots = 0;
        for &object in objects {
            slots ^= self.likely(object);
        }
        std::hint::black_box(slots);
        let Some(last) = self.slots.len().checked_sub(1) else { return };
        let mut found = 0;
        for &object in objects {
            found ^= self.slots[(self.likely(object) as usize).min(last)].object;
        }
        std::hint::black_box(found);
    }

    /// The slot of an object if it has one and nothing is in the way of it; any number otherwise.
    pub fn likely(&self, object: u64) -> u32 {
        match self.numbered.get(object as usize) {
            Some(&slot) => slot,
            None => self.table.cells[self.table.home(Table::tag(object))] as u32,
        }
    }

    /// The value of a slot, or of another one if there is none of that number.
    pub fn near(&self, slot: u32) -> Option<&T> {
        let last = self.slots.len().checked_sub(1)?;
        Some(&self.slots[(slot as usize).min(last)].value)
    }

    /// The value of a slot, if there is one of that number; free slots keep their last one.
    pub fn get(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize).map(|entry| &entry.value)
    }

    pub fn object(&self, slot: u32) -> u64 {
        self.slots[slot as usize].object
    }

    /// A slot for an object that has none.
    pub fn insert(&mut self, object: u64, value: T) -> u32 {
        debug_assert!(self.find(object).is_none(), "{object} has a slot");
        let entry = SlabSlot { object, value, _aligned: [] };
        let slot = if self.free == NIL {
            let slot = u32::try_from(self.slots.len()).expect("fewer than 2^32 objects");
            if self.slots.len() == self.slots.capacity() {
                // By a quarter, not by half: memory counts more than copying here.
                self.slots.reserve_exact(self.slots.len() / 4 + 16);
            }
            self.slots.push(entry);
            slot
        } else {
            let slot = self.free;
            self.free = self.slots[slot as usize].object as u32;
            self.slots[slot as usize] = entry;
            slot
        };
        match self.numbered.get_mut(object as usize) {
            Some(cell) => {
                *cell = slot;
                self.of_numbered += 1;
            }
            None => self.table.insert(Table::tag(object), slot),
        }
        slot
    }

    /// Frees a slot; gives back what it held.
    pub fn remove(&mut self, slot: u32) -> T {
        let entry = &mut self.slots[slot as usize];
        match self.numbered.get_mut(entry.object as usize) {
            Some(cell) => {
                *cell = NIL;
                self.of_numbered -= 1;
            }
            None => self.table.remove(Table::tag(entry.object), slot),
        }
        entry.object = u64::from(self.free);
        self.free = slot;
        entry.value
    }
}

impl<T, A> Index<u32> for Slab<T, A> {
    type Output = T;
    fn index(&self, slot: u32) -> &T {
        &self.slots[slot as usize].value
    }
}

impl<T, A> IndexMut<u32> for Slab<T, A> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        &mut self.slots[slot as usize].value
    }
}

/// The finalizer of MurmurHash3 (Appleby, 2011): scrambles a number, one to one.
pub(crate) fn mix(value: u64) -> u64 {
    let mut x = value;
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn slab_any_history_then_like_a_map(
            steps in prop::collection::vec((0..300u64, any::<bool>(), 0..3u64), 0..600),
            numbered in prop::sample::select(vec![0, 1, 150, 1_000]),
        ) {
            let mut slab: Slab<u64> = Slab::default();
            slab.number(numbered);
            let mut model = BTreeMap::new();
            for (at, (low, insert, stride)) in steps.into_iter().enumerate() {
                // Neighbours, multiples of a power of two, and numbers near the end.
                let object = [low, low << 40, u64::MAX - low][stride as usize];
                match slab.find(object) {
                    Some(slot) if insert => slab[slot] = at as u64,
                    Some(slot) => prop_assert_eq!(Some(slab.remove(slot)), model.remove(&object)),
                    None if insert => { slab.insert(object, at as u64); }
                    None => {}
                }
                if insert {
                    model.insert(object, at as u64);
                }
                prop_assert_eq!(slab.len(), model.len() as u64);
            }
            for (object, value) in &model {
                let slot = slab.find(*object).expect("known");
                prop_assert_eq!((slab.object(slot), slab[slot]), (*object, *value));
            }
        }
    }
}
