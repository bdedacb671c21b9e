//! Which names a listing has seen, in a fixed amount of memory.

use std::hash::{BuildHasher, RandomState};

const BITS: u64 = 1 << 27;
const HASHES: u64 = 8;

/// A Bloom filter (Bloom, *Space/time trade-offs in hash coding with allowable errors*, CACM 1970)
/// of 16 MiB with eight hash functions, two of which make the others (Kirsch and Mitzenmacher 2006): at a
/// million names one absent name in some thousands of millions passes for seen, at four million one in
/// 200,000. Its hash functions are drawn anew for every listing, so that another listing finds those.
/// Memory is touched only as names come in.
pub(super) struct NamesSeen {
    words: Vec<u64>,
    hash: RandomState,
    names: u64,
}

impl NamesSeen {
    pub(super) fn new() -> Self {
        NamesSeen { words: vec![0; (BITS / 64) as usize], hash: RandomState::new(), names: 0 }
    }

    fn bits(&self, name: &[u8]) -> [u64; HASHES as usize] {
        let hash = self.hash.hash_one(name);
        let (first, step) = (hash >> 32, hash & 0xffff_ffff | 1);
        std::array::from_fn(|index| (first + index as u64 * step) % BITS)
    }

    pub(super) fn add(&mut self, name: &[u8]) {
        self.names += 1;
        for bit in self.bits(name) {
            self.words[(bit / 64) as usize] |= 1 << (bit % 64);
        }
    }

    /// False: certainly not seen. True: almost certainly seen.
    pub(super) fn may_contain(&self, name: &[u8]) -> bool {
        self.bits(name).iter().all(|bit| self.words[(bit / 64) as usize] & 1 << (bit % 64) != 0)
    }

    /// Whether there are so many that among many absent names one may well pass for seen.
    pub(super) fn is_crowded(&self) -> bool {
        self.names > BITS / 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_seen_when_many_then_none_missed_and_none_mistaken() {
        let mut seen = NamesSeen::new();
        for index in 0..240_000_u32 {
            seen.add(&index.to_le_bytes());
        }
        assert!((0..240_000_u32).all(|index| seen.may_contain(&index.to_le_bytes())));
        // With two hash functions and 4 MiB some twenty were taken for seen.
        let mistaken =
            (240_000..340_000_u32).filter(|index| seen.may_contain(&index.to_le_bytes())).count();
        assert_eq!(mistaken, 0);
        assert!(!seen.is_crowded());
        seen.names = BITS / 32 + 1;
        assert!(seen.is_crowded());
    }
}
