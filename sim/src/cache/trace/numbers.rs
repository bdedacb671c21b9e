//! The files of a trace numbered, so that a replay finds them in arrays.

use super::Request;

/// The files of a trace numbered from 0 in the order of their ids, so that ties go to the smaller id
/// as they do without numbers.
#[derive(Debug, Clone)]
pub struct Numbers {
    /// The number of each request's file.
    pub of: Vec<u32>,
    /// The id behind each number.
    pub ids: Vec<u64>,
}

impl Numbers {
    pub(super) fn new(requests: &[Request]) -> Self {
        let mut seen = Seen::new();
        let mut of: Vec<u32> = Vec::with_capacity(requests.len());
        for together in requests.chunks(Seen::TOGETHER) {
            seen.warm(together);
            of.extend(together.iter().map(|request| seen.number(request.id)));
        }
        // Each id beside its number: sorted by the ids alone, every comparison would wait for memory.
        let mut order: Vec<(u64, u32)> = seen.ids.into_iter().zip(0..).collect();
        order.sort_unstable();
        let mut rank = vec![0u32; order.len()];
        for (at, (_, number)) in order.iter().enumerate() {
            rank[*number as usize] = at as u32;
        }
        of.iter_mut().for_each(|number| *number = rank[*number as usize]);
        let ids = order.into_iter().map(|(id, _)| id).collect();
        Self { of, ids }
    }
}

/// Ids in the order in which they came first, and where each is: open addressing, at most half full.
/// Of millions of files nearly every look-up waits for memory, as everything else in a replay does, so
/// that this is looked at ahead, too.
struct Seen {
    ids: Vec<u64>,
    /// A number, or `NONE`; a power of two of them.
    cells: Vec<u32>,
}

const NONE: u32 = u32::MAX;

impl Seen {
    /// How many requests are best looked for together.
    const TOGETHER: usize = 16;

    fn new() -> Self {
        Self { ids: Vec::new(), cells: vec![NONE; 1 << 10] }
    }

    /// Where an id belongs (Fibonacci hashing; Knuth, The Art of Computer Programming 3, 6.4). Ids may
    /// be multiples of anything, so that their upper bits are folded in first.
    fn home(&self, id: u64) -> usize {
        let folded = (id ^ id >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (folded >> (64 - self.cells.len().trailing_zeros())) as usize
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.cells.len() - 1)
    }

    fn warm(&self, requests: &[Request]) {
        for request in requests {
            std::hint::black_box(self.cells[self.home(request.id)]);
        }
        for request in requests {
            let number = self.cells[self.home(request.id)];
            std::hint::black_box(self.ids.get(number as usize));
        }
    }

    fn number(&mut self, id: u64) -> u32 {
        let mut at = self.home(id);
        while self.cells[at] != NONE {
            if self.ids[self.cells[at] as usize] == id {
                return self.cells[at];
            }
            at = self.after(at);
        }
        let number = u32::try_from(self.ids.len()).ok().filter(|number| *number != NONE);
        let number = number.expect("fewer than 2^32 - 1 files fit into memory");
        self.cells[at] = number;
        self.ids.push(id);
        if self.ids.len() * 2 > self.cells.len() {
            self.grow();
        }
        number
    }

    fn grow(&mut self) {
        self.cells = vec![NONE; self.cells.len() * 2];
        for number in 0..self.ids.len() {
            let mut at = self.home(self.ids[number]);
            while self.cells[at] != NONE {
                at = self.after(at);
            }
            self.cells[at] = number as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn requests(ids: &[u64]) -> Vec<Request> {
        ids.iter().map(|&id| Request { id, size: 1 }).collect()
    }

    #[test]
    fn numbers_of_any_ids_then_dense_and_in_their_order() {
        let numbers = Numbers::new(&requests(&[1 << 60, 5, 9, 5]));
        assert_eq!(numbers.of, [2, 0, 1, 0]);
        assert_eq!(numbers.ids, [5, 9, 1 << 60]);
    }

    proptest! {
        #[test]
        fn numbers_any_requests_then_as_positions_in_a_sorted_set(
            steps in prop::collection::vec((0..2_000u64, 0..4u32), 0..6_000),
        ) {
            // Neighbours, multiples of powers of two, and numbers near the end.
            let of = |(low, kind): (u64, u32)| {
                [low, low << 32, low << 50, u64::MAX - low][kind as usize]
            };
            let ids: Vec<u64> = steps.into_iter().map(of).collect();
            let numbers = Numbers::new(&requests(&ids));
            let sorted: Vec<u64> = ids.iter().copied().collect::<BTreeSet<u64>>().into_iter().collect();
            let back: Vec<u64> = numbers.of.iter().map(|at| numbers.ids[*at as usize]).collect();
            prop_assert_eq!(&numbers.ids, &sorted);
            prop_assert_eq!(back, ids);
        }
    }
}
