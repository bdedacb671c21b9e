//! How often objects were used lately, in half a byte each: a count-min sketch with aging
//! (Einziger, Friedman, Manes: "TinyLFU: A Highly Efficient Cache Admission Policy", ACM TOS 2017).

use super::slab::mix;

const ROWS: u64 = 4;
const MOST: u64 = 15;
/// Counters in one word.
const LANES: u64 = 16;

/// The sketch. All four rows share one table.
#[derive(Debug)]
pub(crate) struct Sketch {
    table: Vec<u64>,
    counted: u64,
}

impl Sketch {
    pub fn new() -> Self {
        Self { table: vec![0; 64], counted: 0 }
    }

    /// Makes it wide enough for so many objects. A counter is copied to both places that its
    /// objects may have in a table of twice the width, so no count is lost.
    pub fn fit(&mut self, objects: u64) {
        while (self.table.len() as u64) * LANES < objects * ROWS {
            self.table.extend_from_within(..);
        }
    }

    pub fn estimate(&self, object: u64) -> u64 {
        let count = |row| {
            let (word, shift) = self.place(object, row);
            (self.table[word] >> shift) & MOST
        };
        (0..ROWS).map(count).min().unwrap_or(0)
    }

    pub fn count(&mut self, object: u64) {
        for row in 0..ROWS {
            let (word, shift) = self.place(object, row);
            if (self.table[word] >> shift) & MOST < MOST {
                self.table[word] += 1 << shift;
            }
        }
        self.counted += 1;
        // Ten uses for each object that the table is made for, then everything counts half.
        if self.counted >= 10 * self.table.len() as u64 * LANES / ROWS {
            for word in &mut self.table {
                *word = (*word >> 1) & 0x7777_7777_7777_7777;
            }
            self.counted /= 2;
        }
    }

    fn place(&self, object: u64, row: u64) -> (usize, u64) {
        let hash = mix(object ^ row.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let word = hash & (self.table.len() as u64 - 1);
        (word as usize, (hash >> 60) * 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut sketch = Sketch::new();
        for _ in 0..15 {
            sketch.count(1);
        }
        for object in 0..100_000 {
            sketch.count(1_000 + object % 50);
        }
        assert!(sketch.estimate(1) < 15);
        assert!(sketch.estimate(1_001) > sketch.estimate(1));
    }
}
