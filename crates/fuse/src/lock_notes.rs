//! Who may have locks of which file, in the memory that outlives a daemon: the locks themselves are in
//! the metadata of the cluster, but not through which open files they were taken.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use forebay_node::LockOwner;
use parking_lot::Mutex;

/// Owners and handles that are remembered; who comes beyond can't lock.
pub const LOCKS: usize = 1 << 16;

const USED: u32 = 1;
const WHOLE: u32 = 2;

/// One owner with one of his handles.
#[repr(C)]
pub struct LockSlot {
    fh: AtomicU64,
    ino: AtomicU64,
    owner: AtomicU64,
    bits: AtomicU32,
    _rest: AtomicU32,
}

impl LockSlot {
    /// What is noted, if anything.
    pub fn read(&self) -> Option<LockOwner> {
        let bits = self.bits.load(Ordering::Acquire);
        let owner = LockOwner {
            ino: self.ino.load(Ordering::Relaxed),
            fh: self.fh.load(Ordering::Relaxed),
            owner: self.owner.load(Ordering::Relaxed),
            whole: bits & WHOLE != 0,
        };
        (bits & USED != 0).then_some(owner)
    }

    fn write(&self, known: &LockOwner) {
        self.ino.store(known.ino, Ordering::Relaxed);
        self.fh.store(known.fh, Ordering::Relaxed);
        self.owner.store(known.owner, Ordering::Relaxed);
        let bits = USED | if known.whole { WHOLE } else { 0 };
        self.bits.store(bits, Ordering::Release);
    }
}

/// Where who is noted.
#[derive(Default)]
pub struct LockPlaces(Mutex<Places>);

#[derive(Default)]
struct Places {
    /// Handles and slots of each owner of a file.
    of: HashMap<(u64, u64, bool), Vec<(u64, u32)>>,
    free: Vec<u32>,
    next: u32,
}

impl LockPlaces {
    /// Notes an owner with a handle; false if there is no room.
    pub fn note(&self, slots: &[LockSlot], known: &LockOwner) -> bool {
        let mut places = self.0.lock();
        let key = (known.ino, known.owner, known.whole);
        let is_noted = |noted: &Vec<(u64, u32)>| noted.iter().any(|(fh, _)| *fh == known.fh);
        if places.of.get(&key).is_some_and(is_noted) {
            return true;
        }
        let place = match places.free.pop() {
            Some(place) => place,
            None if (places.next as usize) < slots.len() => {
                places.next += 1;
                places.next - 1
            }
            None => return false,
        };
        places.of.entry(key).or_default().push((known.fh, place));
        // Under the lock: whoever forgets him comes after.
        if let Some(slot) = slots.get(place as usize) {
            slot.write(known);
        }
        true
    }

    /// Forgets an owner with all his handles.
    pub fn forget(&self, slots: &[LockSlot], known: &LockOwner) {
        let mut places = self.0.lock();
        let noted = places.of.remove(&(known.ino, known.owner, known.whole));
        for (_, place) in noted.into_iter().flatten() {
            if let Some(slot) = slots.get(place as usize) {
                slot.bits.store(0, Ordering::Release);
            }
            places.free.push(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(count: usize) -> Vec<LockSlot> {
        let slot = || LockSlot {
            fh: AtomicU64::new(0),
            ino: AtomicU64::new(0),
            owner: AtomicU64::new(0),
            bits: AtomicU32::new(0),
            _rest: AtomicU32::new(0),
        };
        (0..count).map(|_| slot()).collect()
    }

    #[test]
    fn lock_owners_when_noted_and_forgotten_then_those_that_are_left() {
        let (slots, places) = (slots(3), LockPlaces::default());
        let owner = |fh, owner| LockOwner { ino: 5, fh, owner, whole: owner == 2 };
        for (fh, number) in [(1, 1), (1, 1), (2, 1), (1, 2)] {
            assert!(places.note(&slots, &owner(fh, number)));
        }
        let left = || slots.iter().filter_map(LockSlot::read).collect::<Vec<_>>();
        assert_eq!(left(), [owner(1, 1), owner(2, 1), owner(1, 2)]);
        assert!(!places.note(&slots, &owner(9, 9)), "there is no room");
        places.forget(&slots, &owner(0, 1));
        places.forget(&slots, &owner(0, 1));
        assert_eq!(left(), [owner(1, 2)]);
        assert!(places.note(&slots, &owner(9, 9)));
        assert_eq!(left().len(), 2);
    }
}
