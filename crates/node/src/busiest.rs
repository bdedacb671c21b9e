//! The files that programs open most often, in bounded memory.
//!
//! Space-Saving (Metwally, Agrawal and El Abbadi, 2005): a file that is not counted yet takes the
//! place of the one with the smallest count, and remembers that count as its possible error.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Files counted at a time.
const COUNTED: usize = 128;
/// All counts are halved after this many opens, so that "often" means "often lately".
const MEMORY: u64 = 1 << 16;

#[derive(Clone, Copy)]
struct Count {
    opens: u64,
    /// At most so many of them belong to files that had the place before.
    error: u64,
}

#[derive(Default)]
struct Counts {
    counts: HashMap<u64, Count>,
    seen: u64,
}

/// Counts opens by inode number.
#[derive(Default)]
pub struct Busiest(Mutex<Counts>);

impl Busiest {
    /// Counts one open.
    pub fn count(&self, ino: u64) {
        let mut state = self.0.lock();
        state.seen += 1;
        if state.seen >= MEMORY {
            state.seen = 0;
            state.counts.retain(|_, count| {
                count.opens /= 2;
                count.error /= 2;
                count.opens > 0
            });
        }
        if let Some(count) = state.counts.get_mut(&ino) {
            count.opens += 1;
            return;
        }
        let mut error = 0;
        if state.counts.len() >= COUNTED
            && let Some((&least, count)) = state.counts.iter().min_by_key(|(_, count)| count.opens)
        {
            error = count.opens;
            state.counts.remove(&least);
        }
        state.counts.insert(ino, Count { opens: error + 1, error });
    }

    /// Up to `most` inode numbers with opens that are certain, busiest first.
    pub fn list(&self, most: usize) -> Vec<(u64, u64)> {
        let state = self.0.lock();
        let certain = state.counts.iter().map(|(&ino, count)| (ino, count.opens - count.error));
        let mut list: Vec<_> = certain.filter(|(_, opens)| *opens > 0).collect();
        drop(state);
        list.sort_unstable_by_key(|&(ino, opens)| (std::cmp::Reverse(opens), ino));
        list.truncate(most);
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_file_is_found_among_many_that_are_opened_once() {
        let busiest = Busiest::default();
        for ino in 0..10_000 {
            busiest.count(1_000_000 + ino);
            if ino % 10 == 0 {
                busiest.count(7);
            }
        }
        let list = busiest.list(3);
        let (ino, opens) = list[0];
        assert_eq!(ino, 7);
        assert!((900..=1000).contains(&opens), "{opens} of 1000");
        assert!(list[1].1 <= 1, "opened once each: {list:?}");
        assert!(busiest.0.lock().counts.len() <= COUNTED);
    }

    #[test]
    fn what_was_busy_long_ago_is_overtaken() {
        let busiest = Busiest::default();
        for _ in 0..10_000 {
            busiest.count(1);
        }
        for round in 0..MEMORY * 4 {
            busiest.count(2 + round % 50);
        }
        assert_ne!(busiest.list(1)[0].0, 1);
    }
}
