//! Which bytes of the pool the program has written, exactly: those between them may be newer in the
//! file, where others write who opened it by themselves.

use std::collections::BTreeMap;
use std::ops::Range;

/// Written bytes of slots, apart from each other.
#[derive(Debug, Default)]
pub struct Soil {
    /// Ends by slot and beginning.
    ranges: BTreeMap<(u32, u32), u32>,
}

impl Soil {
    /// These were written.
    pub fn add(&mut self, slot: u32, range: Range<u32>) {
        let (mut start, mut end) = (range.start, range.end);
        if start >= end {
            return;
        }
        if let Some((key, before)) = self.ranges.range(..=(slot, start)).next_back()
            && key.0 == slot
            && *before >= start
        {
            start = key.1;
            end = end.max(*before);
        }
        let inside: Vec<_> = self.ranges.range((slot, start)..=(slot, end)).map(entry).collect();
        for (key, after) in inside {
            end = end.max(after);
            self.ranges.remove(&key);
        }
        self.ranges.insert((slot, start), end);
    }

    /// Takes those out of a range.
    pub fn take(&mut self, slot: u32, range: Range<u32>) -> Vec<Range<u32>> {
        let touching: Vec<_> = self
            .ranges
            .range((slot, 0)..(slot, range.end))
            .filter(|(_, end)| **end > range.start)
            .map(entry)
            .collect();
        let mut taken = Vec::new();
        for ((_, start), end) in touching {
            self.ranges.remove(&(slot, start));
            taken.push(start.max(range.start)..end.min(range.end));
            self.add(slot, start..range.start.min(end));
            self.add(slot, range.end.max(start)..end);
        }
        taken
    }

    /// The slot has another page.
    pub fn clear(&mut self, slot: u32) {
        let all: Vec<_> = self.ranges.range((slot, 0)..=(slot, u32::MAX)).map(entry).collect();
        for (key, _) in all {
            self.ranges.remove(&key);
        }
    }
}

fn entry((key, end): (&(u32, u32), &u32)) -> ((u32, u32), u32) {
    (*key, *end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn soil_after_any_changes_then_the_bytes_of_a_set(
            changes in proptest::collection::vec((0u32..3, 0u32..20, 0u32..8, 0u8..6), 0..40),
        ) {
            let (mut soil, mut model) = (Soil::default(), BTreeSet::new());
            for (slot, start, len, what) in changes {
                let range = start..start + len;
                match what {
                    0 => {
                        soil.clear(slot);
                        model.retain(|(other, _)| *other != slot);
                    }
                    1 => {
                        let taken: Vec<u32> = soil.take(slot, range.clone()).into_iter().flatten().collect();
                        let wanted: Vec<u32> = range.filter(|at| model.remove(&(slot, *at))).collect();
                        prop_assert_eq!(taken, wanted);
                    }
                    _ => {
                        soil.add(slot, range.clone());
                        model.extend(range.map(|at| (slot, at)));
                    }
                }
            }
            for slot in 0..3 {
                let left: Vec<u32> = soil.take(slot, 0..40).into_iter().flatten().collect();
                let wanted: Vec<u32> = model.iter().filter(|it| it.0 == slot).map(|it| it.1).collect();
                prop_assert_eq!(left, wanted);
            }
        }
    }
}
