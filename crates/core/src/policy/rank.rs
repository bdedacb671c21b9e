//! Objects in order of a key: a four-ary heap whose entries know their places, so that a key can
//! change (Johnson, 1975, d-heaps).
//!
//! With a million objects time goes by the cache lines touched. Every level that an entry rises or
//! sinks moves another one, whose place is written down: these places lie together, four bytes each,
//! and not with the rest of what is known of an object, which is not needed for that.

use super::slab::Slab;
use super::{Snapshot, Victim};

const ARITY: usize = 4;
/// The object has no place in the heap: it could not leave when its turn came.
const ASIDE: u32 = u32::MAX;

/// What the slot of an object holds.
#[derive(Debug, Clone, Copy)]
struct SizeAndTag<T> {
    bytes: u64,
    tag: T,
}

/// Objects with their bytes, a tag, and a key; the smallest key is the first to leave.
#[derive(Debug)]
pub(crate) struct Ranking<K, T> {
    slab: Slab<SizeAndTag<T>>,
    heap: Vec<(K, u32)>,
    /// Place in the heap of each slot, or [`ASIDE`].
    places: Vec<u32>,
    bytes: u64,
}

/// An object of a [`Ranking`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ranked<K> {
    pub object: u64,
    pub bytes: u64,
    pub key: K,
}

impl<K, T> Default for Ranking<K, T> {
    fn default() -> Self {
        Self { slab: Slab::default(), heap: Vec::new(), places: Vec::new(), bytes: 0 }
    }
}

impl<K: Ord + Copy, T: Copy> Ranking<K, T> {
    /// What is on the books.
    pub fn books(&self) -> Snapshot {
        Snapshot { objects: self.slab.len(), bytes: self.bytes, ..Snapshot::default() }
    }

    /// The slot of an object.
    pub fn find(&self, object: u64) -> Option<u32> {
        self.slab.find(object)
    }

    /// Looks for objects that will be moved soon: see [`Slab::warm`].
    pub fn warm(&self, objects: &[u64]) {
        self.slab.warm(objects);
        for slot in objects.iter().filter_map(|object| self.find(*object)) {
            std::hint::black_box(self.heap.get(self.places[slot as usize] as usize).map(|at| at.1));
        }
    }

    pub fn bytes_at(&self, slot: u32) -> u64 {
        self.slab[slot].bytes
    }

    pub fn bytes_of(&self, object: u64) -> Option<u64> {
        self.find(object).map(|slot| self.slab[slot].bytes)
    }

    pub fn tag(&self, slot: u32) -> T {
        self.slab[slot].tag
    }

    /// Whether the object is set aside.
    pub fn is_aside(&self, slot: u32) -> bool {
        self.places[slot as usize] == ASIDE
    }

    /// Adds an object that is not there yet.
    pub fn add(&mut self, object: u64, bytes: u64, key: K, tag: T) {
        let slot = self.slab.insert(object, SizeAndTag { bytes, tag });
        if slot as usize == self.places.len() {
            make_room(&mut self.places);
            self.places.push(ASIDE);
        }
        self.bytes += bytes;
        self.enter(slot, key);
    }

    /// Gives an object this key and this tag; what was set aside stays there.
    pub fn rekey(&mut self, slot: u32, key: K, tag: T) {
        self.slab[slot].tag = tag;
        self.move_to(slot, key);
    }

    /// Brings an object back that was set aside.
    pub fn bring_back(&mut self, slot: u32, key: K) {
        if self.is_aside(slot) {
            self.enter(slot, key);
        }
    }

    /// Gives an object this key, and a place in the order if it was set aside.
    pub fn place(&mut self, slot: u32, key: K) {
        if self.is_aside(slot) {
            self.enter(slot, key);
        } else {
            self.move_to(slot, key);
        }
    }

    /// Changes the bytes of an object.
    pub fn resize(&mut self, slot: u32, bytes: u64) {
        let entry = &mut self.slab[slot];
        self.bytes = self.bytes - entry.bytes + bytes;
        entry.bytes = bytes;
    }

    /// Takes an object off, wherever it is.
    pub fn remove(&mut self, slot: u32) {
        let place = std::mem::replace(&mut self.places[slot as usize], ASIDE);
        if place != ASIDE {
            self.take(place as usize);
        }
        self.bytes -= self.slab.remove(slot).bytes;
    }

    /// Takes an object off if it is there; gives back its bytes.
    pub fn forget(&mut self, object: u64) -> Option<u64> {
        let slot = self.find(object)?;
        let bytes = self.bytes_at(slot);
        self.remove(slot);
        Some(bytes)
    }

    /// The first to leave.
    pub fn first(&self) -> Option<Ranked<K>> {
        let &(key, slot) = self.heap.first()?;
        Some(Ranked { object: self.slab.object(slot), bytes: self.slab[slot].bytes, key })
    }

    /// Takes the first to leave off.
    pub fn pop(&mut self) -> Option<Ranked<K>> {
        let first = self.first()?;
        self.remove(self.heap[0].1);
        Some(first)
    }

    /// Sets the first to leave aside until it is brought back.
    pub fn set_first_aside(&mut self) {
        if let Some(&(_, slot)) = self.heap.first() {
            self.take(0);
            self.places[slot as usize] = ASIDE;
        }
    }

    /// Takes the first that is not busy off; what is busy is set aside.
    pub fn evict(&mut self, busy: &dyn Fn(u64) -> bool) -> Option<(Victim, K)> {
        while busy(self.first()?.object) {
            self.set_first_aside();
        }
        self.pop().map(|first| (Victim::whole(first.object, first.bytes), first.key))
    }

    fn enter(&mut self, slot: u32, key: K) {
        make_room(&mut self.heap);
        self.heap.push((key, slot));
        self.rise(self.heap.len() - 1);
    }

    /// Moves an object to where this key belongs, unless it is set aside.
    fn move_to(&mut self, slot: u32, key: K) {
        let place = self.places[slot as usize];
        if place != ASIDE && self.heap[place as usize].0 != key {
            self.heap[place as usize].0 = key;
            self.settle(place as usize);
        }
    }

    /// Takes the entry at a place out of the heap.
    fn take(&mut self, place: usize) {
        let last = self.heap.len() - 1;
        self.heap.swap_remove(place);
        if place < last {
            self.settle(place);
        }
    }

    fn settle(&mut self, place: usize) {
        if self.rise(place) == place {
            self.sink(place);
        }
    }

    fn put(&mut self, place: usize, entry: (K, u32)) {
        self.heap[place] = entry;
        self.places[entry.1 as usize] = place as u32;
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

/// Room for one more, by a quarter and not by half: memory counts more than copying here.
fn make_room<T>(list: &mut Vec<T>) {
    if list.len() == list.capacity() {
        list.reserve_exact(list.len() / 4 + 16);
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
            let mut ranking: Ranking<(u64, u64), ()> = Ranking::default();
            let mut model: BTreeMap<u64, Option<u64>> = BTreeMap::new();
            let first = |model: &BTreeMap<u64, Option<u64>>| {
                model.iter().filter_map(|(o, k)| k.map(|k| (k, *o))).min()
            };
            for step in steps {
                match step {
                    Step::Set(o, k) => {
                        match ranking.find(o) {
                            Some(slot) if ranking.is_aside(slot) => ranking.bring_back(slot, (k, o)),
                            Some(slot) => ranking.rekey(slot, (k, o), ()),
                            None => ranking.add(o, 7, (k, o), ()),
                        }
                        model.insert(o, Some(k));
                    }
                    Step::Update(o, k) => {
                        if let Some(slot) = ranking.find(o) {
                            ranking.rekey(slot, (k, o), ());
                        }
                        if let Some(Some(key)) = model.get_mut(&o) {
                            *key = k;
                        }
                    }
                    Step::Remove(o) => {
                        prop_assert_eq!(ranking.forget(o).is_some(), model.remove(&o).is_some());
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
                let books = ranking.books();
                prop_assert_eq!(books.objects, model.len() as u64);
                prop_assert_eq!(books.bytes, 7 * model.len() as u64);
            }
        }
    }
}
