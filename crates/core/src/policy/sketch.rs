//! How often objects were used lately: the frequency sketch of TinyLFU (Einziger, Friedman, Manes:
//! "TinyLFU: A Highly Efficient Cache Admission Policy", ACM TOS 2017, section 3). A doorkeeper, a
//! Bloom filter, takes the first use of each object; the others go to counters of half a byte, of
//! which only the smallest of an object grow (minimal increment). After a sample of uses everything
//! counts half and the doorkeeper is emptied (reset).

use super::slab::mix;

const ROWS: u64 = 4;
const MAX: u64 = 15;
/// Counters in one word.
const LANES: u64 = 16;
/// Bits of the doorkeeper for each object, and those that one object sets.
const DOOR_BITS: u64 = 64;
const DOOR_ROWS: u64 = 3;
/// Uses in a sample for each object that the sketch is made for.
const SAMPLE: u64 = 10;

/// The sketch. All rows of counters share one table.
#[derive(Debug)]
pub(crate) struct Sketch {
    table: Vec<u64>,
    door: Vec<u64>,
    counted: u64,
}

impl Sketch {
    pub fn new() -> Self {
        let words = 64;
        Self { table: vec![0; words], door: vec![0; words * Self::DOORS], counted: 0 }
    }

    /// Words of the doorkeeper for each word of counters.
    const DOORS: usize = (DOOR_BITS * LANES / ROWS / 64) as usize;

    /// Makes it wide enough for so many objects. A counter is copied to both places that its
    /// objects may have in a table of twice the width, so no count is lost.
    pub fn fit(&mut self, objects: u64) {
        while (self.table.len() as u64) * LANES < objects * ROWS {
            self.table.extend_from_within(..);
            self.door.extend_from_within(..);
        }
    }

    pub fn estimate(&self, object: u64) -> u64 {
        self.least(object) + u64::from(self.has_come(object))
    }

    pub fn count(&mut self, object: u64) {
        if self.has_come(object) {
            self.raise(object);
        } else {
            for row in 0..DOOR_ROWS {
                let (word, bit) = self.door_place(object, row);
                self.door[word] |= 1 << bit;
            }
        }
        self.counted += 1;
        if self.counted >= SAMPLE * self.table.len() as u64 * LANES / ROWS {
            for word in &mut self.table {
                *word = (*word >> 1) & 0x7777_7777_7777_7777;
            }
            self.door.fill(0);
            self.counted /= 2;
        }
    }

    /// The smallest of an object's counters.
    fn least(&self, object: u64) -> u64 {
        let count = |row| {
            let (word, shift) = self.place(object, row);
            (self.table[word] >> shift) & MAX
        };
        (0..ROWS).map(count).min().unwrap_or(0)
    }

    /// One more in those counters of an object that are its smallest.
    fn raise(&mut self, object: u64) {
        let least = self.least(object);
        if least == MAX {
            return;
        }
        for row in 0..ROWS {
            let (word, shift) = self.place(object, row);
            // Two rows may share a counter, which has grown then.
            if (self.table[word] >> shift) & MAX == least {
                self.table[word] += 1 << shift;
            }
        }
    }

    fn has_come(&self, object: u64) -> bool {
        (0..DOOR_ROWS).all(|row| {
            let (word, bit) = self.door_place(object, row);
            self.door[word] >> bit & 1 == 1
        })
    }

    fn place(&self, object: u64, row: u64) -> (usize, u64) {
        let hash = mix(object ^ row.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let word = hash & (self.table.len() as u64 - 1);
        (word as usize, (hash >> 60) * 4)
    }

    fn door_place(&self, object: u64, row: u64) -> (usize, u64) {
        let hash = mix(!object ^ row.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        ((hash & (self.door.len() as u64 - 1)) as usize, hash >> 58)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(uses: &[(u64, u64)]) -> Sketch {
        let mut sketch = Sketch::new();
        for &(object, times) in uses {
            (0..times).for_each(|_| sketch.count(object));
        }
        sketch
    }

    /// By hand: the doorkeeper has the first use, the counters the others, up to 15.
    #[test]
    fn counts_worked_by_hand_then_doorkeeper_and_counters() {
        let sketch = after(&[(1, 1), (2, 2), (3, 7), (4, 40)]);
        let counted = [1, 2, 3, 4, 5].map(|object| (sketch.least(object), sketch.estimate(object)));
        assert_eq!(counted, [(0, 1), (1, 2), (6, 7), (15, 16), (0, 0)]);
    }

    /// By hand: 64 words are made for 256 objects, a sample is 2,560 uses. At its end the counters
    /// are halved, the doorkeeper forgets, and half a sample is left to the next one.
    #[test]
    fn sample_when_complete_then_halved_and_the_doorkeeper_emptied() {
        let mut sketch = after(&[(1, 1), (2, 2), (3, 7), (4, 2_549)]);
        assert_eq!((sketch.counted, sketch.estimate(3), sketch.estimate(4)), (2_559, 7, 16));
        sketch.count(4);
        assert_eq!(sketch.counted, 1_280);
        assert_eq!([1, 2, 3, 4].map(|object| sketch.estimate(object)), [0, 0, 3, 7]);
        sketch.count(3);
        assert_eq!((sketch.least(3), sketch.estimate(3)), (3, 4), "the door opens anew");
    }

    /// Minimal increment: of the counters of an object that share a place with those of another only
    /// the smallest grow, so that an estimate never exceeds what all rows were counted for.
    #[test]
    fn counters_shared_with_another_then_only_the_smallest_grow() {
        let mut sketch = after(&[(1, 11)]);
        let (word, shift) = sketch.place(2, 0);
        sketch.table[word] += 5 << shift;
        (0..4).for_each(|_| sketch.count(2));
        assert_eq!(sketch.least(2), 3);
        assert_eq!((sketch.table[word] >> shift) & MAX, 5, "the larger one stays");
    }

    #[test]
    fn estimate_after_growth_then_never_below_the_count() {
        let mut sketch = Sketch::new();
        for object in 0..100 {
            for _ in 0..object % 5 {
                sketch.count(object);
            }
        }
        sketch.fit(100_000);
        for object in 0..100 {
            assert!(sketch.estimate(object) >= object % 5, "{object}");
        }
    }

    #[test]
    fn count_for_long_then_old_counts_fade() {
        let mut sketch = after(&[(1, 15)]);
        for object in 0..100_000 {
            sketch.count(1_000 + object % 50);
        }
        assert!(sketch.estimate(1) < 15);
        assert!(sketch.estimate(1_001) > sketch.estimate(1));
    }
}
