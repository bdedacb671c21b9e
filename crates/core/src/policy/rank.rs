//! Objects in order of a key: a four-ary heap whose entries know their places, so that a key can
//! change (Johnson, 1975, d-heaps; four children share a cache line).

use super::index::Map;
use super::{Demand, Victim};

const ARITY: usize = 4;
const NIL: u32 = u32::MAX;
/// The object has no place in the heap: it could not leave when its turn came.
const ASIDE: u32 = u32::MAX - 1;

#[derive(Debug, Clone, Copy)]
struct Slot<T> {
    object: u64,
    bytes: u64,
    /// Place in the heap, [`ASIDE`], or the next free slot.
    place: u32,
    tag: T,
}

/// Objects with their bytes, a tag, and a key; the smallest key is the first to leave.
#[derive(Debug)]
pub(crate) struct Ranking<K, T> {
    index: Map<u32>,
    slots: Vec<Slot<T>>,
    free: u32,
    heap: Vec<(K, u32)>,
    bytes: u64,
}

/// An object taken off a [`Ranking`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ranked<K> {
    pub object: u64,
    pub bytes: u64,
    pub key: K,
}

impl<K: Ord + Copy, T: Copy> Ranking<K, T> {
    pub fn new() -> Self {
        Self { index: Map::default(), slots: Vec::new(), free: NIL, heap: Vec::new(), bytes: 0 }
    }

    pub fn len(&self) -> u64 {
        self.index.len() as u64
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes and the tag of an object.
    pub fn get(&self, object: u64) -> Option<(u64, T)> {
        let slot = self.slots[*self.index.get(&object)? as usize];
        Some((slot.bytes, slot.tag))
    }

    /// Whether the object is known but set aside.
    pub fn is_aside(&self, object: u64) -> bool {
        self.index.get(&object).is_some_and(|slot| self.slots[*slot as usize].place == ASIDE)
    }

    /// Adds the object, or gives it these bytes, this key and this tag; brings it back if it was
    /// set aside.
    pub fn set(&mut self, object: u64, bytes: u64, key: K, tag: T) {
        let slot = match self.index.get(&object) {
            Some(&slot) => slot,
            None => self.add(object, tag),
        };
        let entry = &mut self.slots[slot as usize];
        self.bytes = self.bytes - entry.bytes + bytes;
        entry.bytes = bytes;
        entry.tag = tag;
        let place = entry.place;
        if place == ASIDE {
            self.heap.push((key, slot));
            self.rise(self.heap.len() - 1);
        } else {
            self.rekey(place as usize, key);
        }
    }

    /// Gives a ranked object another key and tag; what is unknown or set aside keeps its place.
    pub fn update(&mut self, object: u64, key: K, tag: T) {
        let Some(&slot) = self.index.get(&object) else { return };
        let entry = &mut self.slots[slot as usize];
        entry.tag = tag;
        if entry.place != ASIDE {
            let place = entry.place as usize;
            self.rekey(place, key);
        }
    }

    /// Changes the bytes of a known object.
    pub fn resize(&mut self, object: u64, bytes: u64) {
        if let Some(&slot) = self.index.get(&object) {
            let entry = &mut self.slots[slot as usize];
            self.bytes = self.bytes - entry.bytes + bytes;
            entry.bytes = bytes;
        }
    }

    /// Takes objects off from the first on until the demand is met, tells `each` of them, and
    /// returns the bytes freed. What is busy is set aside.
    pub fn give_up(
        &mut self,
        demand: &Demand<'_>,
        out: &mut Vec<Victim>,
        mut each: impl FnMut(&Ranked<K>),
    ) -> u64 {
        let mut freed = 0;
        let mut given = 0;
        while freed < demand.bytes && given < demand.limit {
            let Some(first) = self.first() else { break };
            if (demand.busy)(first.object) {
                self.set_first_aside();
                continue;
            }
            self.remove(first.object);
            each(&first);
            out.push(Victim::whole(first.object, first.bytes));
            freed += first.bytes;
            given += 1;
        }
        freed
    }

    /// Takes the object off, wherever it is.
    pub fn remove(&mut self, object: u64) -> Option<T> {
        let slot = self.index.remove(&object)?;
        let entry = self.slots[slot as usize];
        if entry.place != ASIDE {
            self.take(entry.place as usize);
        }
        self.release(slot);
        Some(entry.tag)
    }

    /// The first to leave.
    pub fn first(&self) -> Option<Ranked<K>> {
        let &(key, slot) = self.heap.first()?;
        let Slot { object, bytes, .. } = self.slots[slot as usize];
        Some(Ranked { object, bytes, key })
    }

    /// Takes the first to leave off.
    pub fn pop(&mut self) -> Option<Ranked<K>> {
        let first = self.first()?;
        self.remove(first.object);
        Some(first)
    }

    /// Sets the first to leave aside until it is [`Self::set`] again.
    pub fn set_first_aside(&mut self) {
        if let Some(&(_, slot)) = self.heap.first() {
            self.take(0);
            self.slots[slot as usize].place = ASIDE;
        }
    }

    fn add(&mut self, object: u64, tag: T) -> u32 {
        let entry = Slot { object, bytes: 0, place: ASIDE, tag };
        let slot = if self.free == NIL {
            let slot = u32::try_from(self.slots.len()).expect("fewer than 2^32 objects");
            self.slots.push(entry);
            slot
        } else {
            let slot = self.free;
            self.free = self.slots[slot as usize].place;
            self.slots[slot as usize] = entry;
            slot
        };
        self.index.insert(object, slot);
        slot
    }

    fn release(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        self.bytes -= entry.bytes;
        entry.place = self.free;
        self.free = slot;
    }

    /// Takes the entry at a place out of the heap.
    fn take(&mut self, place: usize) {
        let last = self.heap.len() - 1;
        self.heap.swap_remove(place);
        if place < last {
            self.slots[self.heap[place].1 as usize].place = place as u32;
            self.settle(place);
        }
    }

    fn rekey(&mut self, place: usize, key: K) {
        self.heap[place].0 = key;
        self.settle(place);
    }

    fn settle(&mut self, place: usize) {
        if self.rise(place) == place {
            self.sink(place);
        }
    }

    fn put(&mut self, place: usize, entry: (K, u32)) {
        self.heap[place] = entry;
        self.slots[entry.1 as usize].place = place as u32;
    }

    fn rise(&mut self, mut place: usize) -> usize {
        let entry = self.heap[place];
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if self.heap[parent].0 <= entry.0 {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, entry);
        place
    }

    fn sink(&mut self, mut place: usize) {
        let entry = self.heap[place];
        loop {
            let first = place * ARITY + 1;
            let children = first..(first + ARITY).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child].0) else { break };
            if self.heap[least].0 >= entry.0 {
                break;
            }
            self.put(place, self.heap[least]);
            place = least;
        }
        self.put(place, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Debug, Clone)]
    enum Step {
        Set(u64, u64),
        Update(u64, u64),
        Remove(u64),
        Pop,
        Aside,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..40u64, 0..100u64).prop_map(|(o, k)| Step::Set(o, k)),
            (0..40u64, 0..100u64).prop_map(|(o, k)| Step::Update(o, k)),
            (0..40u64).prop_map(Step::Remove),
            Just(Step::Pop),
            Just(Step::Aside),
        ]
    }

    proptest! {
        #[test]
        fn ranking_any_steps_then_like_a_sorted_map(steps in prop::collection::vec(step(), 0..300)) {
            let mut ranking: Ranking<(u64, u64), ()> = Ranking::new();
            let mut model: BTreeMap<u64, Option<u64>> = BTreeMap::new();
            let first = |model: &BTreeMap<u64, Option<u64>>| {
                model.iter().filter_map(|(o, k)| k.map(|k| (k, *o))).min()
            };
            for step in steps {
                match step {
                    Step::Set(o, k) => {
                        ranking.set(o, 7, (k, o), ());
                        model.insert(o, Some(k));
                    }
                    Step::Update(o, k) => {
                        ranking.update(o, (k, o), ());
                        if let Some(Some(key)) = model.get_mut(&o) {
                            *key = k;
                        }
                    }
                    Step::Remove(o) => {
                        prop_assert_eq!(ranking.remove(o).is_some(), model.remove(&o).is_some());
                    }
                    Step::Pop => {
                        let expected = first(&model);
                        prop_assert_eq!(ranking.pop().map(|r| r.key), expected);
                        expected.map(|(_, o)| model.remove(&o));
                    }
                    Step::Aside => {
                        if let Some((_, o)) = first(&model) {
                            model.insert(o, None);
                        }
                        ranking.set_first_aside();
                    }
                }
                prop_assert_eq!(ranking.first().map(|r| r.key), first(&model));
                prop_assert_eq!(ranking.len(), model.len() as u64);
                prop_assert_eq!(ranking.bytes(), 7 * model.len() as u64);
            }
        }
    }
}
