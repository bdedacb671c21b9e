//! From an object to its slot: a hash table without random state, so that runs repeat exactly.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

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

/// Scrambles a number, one to one.
pub(crate) fn mix(value: u64) -> u64 {
    let mut x = value;
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}
