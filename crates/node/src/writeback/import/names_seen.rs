//! Which names a listing has seen, in a fixed amount of memory.

use std::hash::{BuildHasher, RandomState};

const BITS: u64 = 1 << 25;

/// A Bloom filter (Bloom, *Space/time trade-offs in hash coding with allowable errors*, CACM 1970)
/// of 4 MiB with two hash functions: at a million names one absent name in 300 passes for seen.
/// Its hash functions are drawn anew for every listing, so that the next listing finds those.
/// Memory is touched only as names come in.
pub(super) struct NamesSeen {
    words: Vec<u64>,
    hash: RandomState,
}

impl NamesSeen {
    pub(super) fn new() -> Self {
        NamesSeen { words: vec![0; (BITS / 64) as usize], hash: RandomState::new() }
    }

    fn bits(&self, name: &[u8]) -> [u64; 2] {
        let hash = self.hash.hash_one(name);
        [hash % BITS, (hash >> 32) % BITS]
    }

    pub(super) fn add(&mut self, name: &[u8]) {
        for bit in self.bits(name) {
            self.words[(bit / 64) as usize] |= 1 << (bit % 64);
        }
    }

    /// False: certainly not seen. True: almost certainly seen.
    pub(super) fn may_contain(&self, name: &[u8]) -> bool {
        self.bits(name).iter().all(|bit| self.words[(bit / 64) as usize] & 1 << (bit % 64) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_seen_when_many_then_none_missed_and_few_mistaken() {
        let mut seen = NamesSeen::new();
        for index in 0..100_000_u32 {
            seen.add(&index.to_le_bytes());
        }
        assert!((0..100_000_u32).all(|index| seen.may_contain(&index.to_le_bytes())));
        let mistaken =
            (100_000..200_000_u32).filter(|index| seen.may_contain(&index.to_le_bytes())).count();
        assert!(mistaken < 100, "{mistaken} of 100,000");
    }
}
