//! From an object to its slot: a hash table without random state, so that runs repeat exactly.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::slab::mix;

/// Objects to whatever is kept for them.
pub(crate) type Map<V> = HashMap<u64, V, BuildHasherDefault<Mix>>;

/// The finalizer of MurmurHash3 (Appleby, 2011): a bijection, so inode numbers never collide
/// before the table reduces them.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mix(self.0 ^ value);
    }
}
