//! What lies on the tiers: one small entry for every object, whether its file is in use or not.
//!
//! An entry also says whether the pages that the kernel keeps of the file are those of this object. It
//! is set anew whenever the object is replaced, or before its bytes change, and knows nothing of pages
//! then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::RwLock;

/// An object on a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resident {
    /// Which tier, 0 the fastest.
    pub tier: u8,
    /// Whether every byte of the file is there.
    pub whole: bool,
    /// Whether the backing store lacks some of it.
    pub dirty: bool,
    /// Bytes charged to the tier.
    pub charged: u64,
}

/// What is known of the kernel's pages of a file, as long as its object is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pages(u32);

impl Pages {
    /// Nothing.
    const UNKNOWN: Pages = Pages(0);
    /// They are those of the object.
    const SAME: Pages = Pages(u32::MAX);

    /// The open of this number has the kernel drop all that it had before, once it returns.
    fn dropped_by(number: u32) -> Self {
        Pages(number % (u32::MAX - 1) + 1)
    }
}

/// There may be millions of entries, so they are small.
#[derive(Debug)]
struct Slot {
    charged: u64,
    pages: Pages,
    /// The alias under which the kernel has them.
    alias: u8,
    tier: u8,
    whole: bool,
    dirty: bool,
}

impl Slot {
    fn new(resident: Resident) -> Self {
        let Resident { tier, whole, dirty, charged } = resident;
        Slot { charged, pages: Pages::UNKNOWN, alias: 0, tier, whole, dirty }
    }

    fn resident(&self) -> Resident {
        let Slot { tier, whole, dirty, charged, .. } = *self;
        Resident { tier, whole, dirty, charged }
    }
}

const SHARDS: usize = 64;

/// The residency index of a node, by inode number.
#[derive(Debug)]
pub struct Residents {
    shards: [RwLock<HashMap<u64, Slot>>; SHARDS],
    /// The number of the next open that has pages dropped.
    next: AtomicU32,
}

impl Default for Residents {
    fn default() -> Self {
        let shards = std::array::from_fn(|_| RwLock::default());
        Residents { shards, next: AtomicU32::new(0) }
    }
}

impl Residents {
    fn shard(&self, ino: u64) -> &RwLock<HashMap<u64, Slot>> {
        let spread = ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.shards[spread as usize % SHARDS]
    }

    /// The entry of `ino`.
    pub fn get(&self, ino: u64) -> Option<Resident> {
        self.shard(ino).read().get(&ino).map(Slot::resident)
    }

    /// Sets the entry of `ino` and returns the one before.
    pub fn set(&self, ino: u64, resident: Resident) -> Option<Resident> {
        let before = self.shard(ino).write().insert(ino, Slot::new(resident));
        before.map(|slot| slot.resident())
    }

    /// Removes the entry of `ino`.
    pub fn remove(&self, ino: u64) -> Option<Resident> {
        let mut shard = self.shard(ino).write();
        let removed = shard.remove(&ino);
        // A table that was large once gives its memory back.
        if shard.capacity() > 1024 && shard.len() < shard.capacity() / 8 {
            shard.shrink_to_fit();
        }
        removed.map(|slot| slot.resident())
    }

    /// Whether the pages that the kernel has under an alias of `ino` are those of the object.
    pub fn has_pages(&self, ino: u64, alias: u8) -> bool {
        let shard = self.shard(ino).read();
        shard.get(&ino).is_some_and(|slot| slot.pages == Pages::SAME && slot.alias == alias)
    }

    /// An open has the kernel drop the pages that it has under an alias of `ino`: the number of that
    /// open, for [`Residents::pages_dropped`]. `None` if the object may change at any time.
    pub fn drop_pages(&self, ino: u64, alias: u8) -> Option<u32> {
        let mut shard = self.shard(ino).write();
        let slot = shard.get_mut(&ino).filter(|slot| slot.whole && !slot.dirty)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (slot.pages, slot.alias) = (Pages::dropped_by(number), alias);
        Some(number)
    }

    /// The open of this number has returned: the pages that the kernel has since are those of the
    /// object, if that is what it was.
    pub fn pages_dropped(&self, ino: u64, number: u32) {
        let mut shard = self.shard(ino).write();
        let by = Pages::dropped_by(number);
        if let Some(slot) = shard.get_mut(&ino).filter(|slot| slot.pages == by) {
            slot.pages = Pages::SAME;
        }
    }

    /// Calls `visit` with every entry; entries that come or go meanwhile may be missed.
    pub fn for_each(&self, mut visit: impl FnMut(u64, Resident)) {
        for shard in &self.shards {
            for (&ino, slot) in shard.read().iter() {
                visit(ino, slot.resident());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: Resident = Resident { tier: 0, whole: true, dirty: false, charged: 4096 };

    fn with_pages() -> Residents {
        let residents = Residents::default();
        residents.set(7, CLEAN);
        let open = residents.drop_pages(7, 0).expect("clean and whole");
        assert!(!residents.has_pages(7, 0), "the open has not returned");
        residents.pages_dropped(7, open);
        assert!(residents.has_pages(7, 0));
        residents
    }

    #[test]
    fn pages_when_the_object_is_entered_anew_then_unknown() {
        for next in [CLEAN, Resident { dirty: true, ..CLEAN }, Resident { tier: 1, ..CLEAN }] {
            let residents = with_pages();
            assert_eq!(residents.set(7, next), Some(CLEAN));
            assert!(!residents.has_pages(7, 0));
            assert_eq!(residents.get(7), Some(next));
        }
        let residents = with_pages();
        assert_eq!(residents.remove(7), Some(CLEAN));
        assert!(!residents.has_pages(7, 0));
    }

    #[test]
    fn pages_when_the_object_changes_while_the_open_lives_then_unknown() {
        let residents = Residents::default();
        residents.set(7, CLEAN);
        let open = residents.drop_pages(7, 0).expect("clean and whole");
        residents.set(7, Resident { dirty: true, ..CLEAN });
        residents.set(7, CLEAN);
        residents.pages_dropped(7, open);
        assert!(!residents.has_pages(7, 0));
    }

    #[test]
    fn pages_when_another_open_has_dropped_them_since_then_by_that_one_only() {
        let residents = Residents::default();
        residents.set(7, CLEAN);
        let first = residents.drop_pages(7, 0).expect("clean and whole");
        let second = residents.drop_pages(7, 0).expect("clean and whole");
        residents.pages_dropped(7, first);
        assert!(!residents.has_pages(7, 0));
        residents.pages_dropped(7, second);
        assert!(residents.has_pages(7, 0));
        assert!(!residents.has_pages(7, 1), "of another alias");
    }

    #[test]
    fn pages_of_an_object_that_may_change_then_no_open_counts() {
        let residents = Residents::default();
        assert_eq!(residents.drop_pages(7, 0), None);
        for changing in [Resident { dirty: true, ..CLEAN }, Resident { whole: false, ..CLEAN }] {
            residents.set(7, changing);
            assert_eq!(residents.drop_pages(7, 0), None);
        }
    }

    #[test]
    fn entry_then_no_larger_than_it_must_be() {
        assert!(size_of::<Slot>() <= 16);
    }
}
