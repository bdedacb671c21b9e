//! Which names a listing has seen, in a fixed amount of memory.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

const BITS: u64 = 1 << 27;
const HASHES: u64 = 8;

/// So many names are known by their hashes alone.
const FEW: usize = 1 << 16;

/// The hashes of some ten thousand names, and of more a Bloom filter (Bloom, *Space/time trade-offs in
/// hash coding with allowable errors*, CACM 1970) of 16 MiB with eight hash functions, two of which make
/// the others (Kirsch and Mitzenmacher, *Less hashing, same performance*, 2006): at a million names one
/// absent name in some thousands of millions passes for seen, at four million one in 200,000. The hash
/// functions are drawn anew for every listing, so that another listing finds those.
pub(super) struct NamesSeen {
    few: HashSet<u64>,
    words: Vec<u64>,
    hash: RandomState,
    names: u64,
}

fn bits(hash: u64) -> [u64; HASHES as usize] {
    let (first, step) = (hash >> 32, hash & 0xffff_ffff | 1);
    std::array::from_fn(|index| (first + index as u64 * step) % BITS)
}

impl NamesSeen {
    pub(super) fn new() -> Self {
        let (few, words) = (HashSet::new(), Vec::new());
        NamesSeen { few, words, hash: RandomState::new(), names: 0 }
    }

    pub(super) fn add(&mut self, name: &[u8]) {
        self.names += 1;
        let hash = self.hash.hash_one(name);
        if self.words.is_empty() {
            self.few.insert(hash);
            if self.few.len() <= FEW {
                return;
            }
            self.words = vec![0; (BITS / 64) as usize];
            for hash in std::mem::take(&mut self.few) {
                self.mark(hash);
            }
        }
        self.mark(hash);
    }

    fn mark(&mut self, hash: u64) {
        for bit in bits(hash) {
            self.words[(bit / 64) as usize] |= 1 << (bit % 64);
        }
    }

    /// False: certainly not seen. True: almost certainly seen.
    pub(super) fn may_contain(&self, name: &[u8]) -> bool {
        let hash = self.hash.hash_one(name);
        if self.words.is_empty() {
            return self.few.contains(&hash);
        }
        bits(hash).iter().all(|bit| self.words[(bit / 64) as usize] & 1 << (bit % 64) != 0)
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
        seen.add(b"one");
        assert!(seen.may_contain(b"one") && !seen.may_contain(b"another"));
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
