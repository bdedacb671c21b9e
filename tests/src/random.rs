//! A small seeded generator, so that a printed seed repeats a run on any machine.

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): 64 bits of state, passes BigCrush.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose whole output follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64 }
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

/// The seed named by environment variable `name`, else one from the clock.
pub fn seed_from_env(name: &str) -> u64 {
    if let Some(seed) = std::env::var(name).ok().and_then(|text| text.parse().ok()) {
        return seed;
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |since| since.as_nanos() as u64)
}

/// `len` bytes that follow from `tag` alone, and differ between tags from the first byte on.
pub fn pattern(tag: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(tag);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.bits().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_when_drawn_often_then_reaches_both_ends_and_never_beyond() {
        let mut random = Random::new(7);
        let drawn: Vec<u64> = (0..1000).map(|_| random.between(3, 6)).collect();
        assert!(drawn.iter().all(|n| (3..=6).contains(n)));
        assert!(drawn.contains(&3) && drawn.contains(&6));
    }

    #[test]
    fn pattern_when_same_tag_then_a_longer_one_starts_with_the_shorter() {
        assert_eq!(pattern(5, 100)[..30], pattern(5, 30)[..]);
        assert_ne!(pattern(5, 30), pattern(6, 30));
    }
}
