//! What lies on the tiers: one small entry for every object, whether its file is in use or not.

use std::collections::HashMap;

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

const SHARDS: usize = 64;

/// The residency index of a node, by inode number.
#[derive(Debug)]
pub struct Residents {
    shards: [RwLock<HashMap<u64, Resident>>; SHARDS],
}

impl Default for Residents {
    fn default() -> Self {
        Residents { shards: std::array::from_fn(|_| RwLock::default()) }
    }
}

impl Residents {
    fn shard(&self, ino: u64) -> &RwLock<HashMap<u64, Resident>> {
        let spread = ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.shards[spread as usize % SHARDS]
    }

    /// The entry of `ino`.
    pub fn get(&self, ino: u64) -> Option<Resident> {
        self.shard(ino).read().get(&ino).copied()
    }

    /// Sets the entry of `ino` and returns the one before.
    pub(super) fn set(&self, ino: u64, resident: Resident) -> Option<Resident> {
        self.shard(ino).write().insert(ino, resident)
    }

    /// Removes the entry of `ino`.
    pub(super) fn remove(&self, ino: u64) -> Option<Resident> {
        let mut shard = self.shard(ino).write();
        let removed = shard.remove(&ino);
        // A table that was large once gives its memory back.
        if shard.capacity() > 1024 && shard.len() < shard.capacity() / 8 {
            shard.shrink_to_fit();
        }
        removed
    }

    /// Sets or removes the entry of `ino`, for a test without tiers.
    #[cfg(test)]
    pub(crate) fn enter(&self, ino: u64, resident: Option<Resident>) {
        match resident {
            Some(resident) => drop(self.set(ino, resident)),
            None => drop(self.remove(ino)),
        }
    }

    /// Calls `visit` with every entry; entries that come or go meanwhile may be missed.
    pub fn for_each(&self, mut visit: impl FnMut(u64, Resident)) {
        for shard in &self.shards {
            for (&ino, &resident) in shard.read().iter() {
                visit(ino, resident);
            }
        }
    }
}
