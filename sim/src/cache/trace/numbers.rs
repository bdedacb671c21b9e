//! The files of a trace numbered, so that a replay finds them in arrays.

use super::Request;

/// The files of a trace numbered from 0.
#[derive(Debug, Clone)]
pub struct Numbers {
    /// The number of each request's file.
    pub of: Vec<u32>,
    /// The id behind each number.
    pub ids: Vec<u64>,
}

/// Ids are small if they are below so many times the requests: then a cell for each is little memory.
const SMALL: u64 = 2;

impl Numbers {
    /// In the order of their first requests: those that are asked for most often are near each other then,
    /// so that more of what a replay looks at is in the processor's cache.
    pub(super) fn by_arrival(requests: &[Request]) -> Self {
        let limit = SMALL.saturating_mul(requests.len() as u64);
        if requests.iter().all(|request| request.id < limit) {
            return Self::of_small(requests);
        }
        let mut seen = Seen::new();
        let mut of: Vec<u32> = Vec::with_capacity(requests.len());
        for together in requests.chunks(Seen::TOGETHER) {
            seen.warm(together);
            of.extend(together.iter().map(|request| seen.number(request.id)));
        }
        Self { of, ids: seen.ids }
    }

    /// The same of ids that are small, as inode numbers often are.
    fn of_small(requests: &[Request]) -> Self {
        let most = requests.iter().map(|request| request.id).max().unwrap_or(0);
        let (mut numbers, mut ids) = (vec![NONE; most as usize + 1], Vec::new());
        let number = |request: &Request| {
            let number = &mut numbers[request.id as usize];
            if *number == NONE {
                *number = next(&ids);
                ids.push(request.id);
            }
            *number
        };
        Self { of: requests.iter().map(number).collect(), ids }
    }

    /// In the order of their ids, so that ties go to the smaller id as they do without numbers.
    pub(super) fn by_id(requests: &[Request]) -> Self {
        let Self { mut of, ids } = Self::by_arrival(requests);
        // Each id beside its number: sorted by the ids alone, every comparison would wait for memory.
        let mut order: Vec<(u64, u32)> = ids.into_iter().zip(0..).collect();
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

/// The number after those of these ids.
fn next(ids: &[u64]) -> u32 {
    let number = u32::try_from(ids.len()).ok().filter(|number| *number != NONE);
    number.expect("fewer than 2^32 - 1 files fit into memory")
}

/// Ids in the order in which they came first, and where each is: open addressing, at most half full.
/// Of millions of files nearly every look-up waits for memory, as everything else in a replay does, so
/// that this is looked at ahead, too.
struct Seen {
    ids: Vec<u64>,
    /// A part of the hash above a number, or `EMPTY`; a power of two of them.
    cells: Vec<u64>,
}

const NONE: u32 = u32::MAX;
const EMPTY: u64 = u64::MAX;

impl Seen {
    /// How many requests are best looked for together.
    const TOGETHER: usize = 16;

    fn new() -> Self {
        Self { ids: Vec::new(), cells: vec![EMPTY; 1 << 10] }
    }

    /// Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4). Ids may be multiples of
    /// anything, so that their upper bits are folded in first.
    fn hash(id: u64) -> u64 {
        (id ^ id >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Where a hash belongs.
    fn home(&self, hash: u64) -> usize {
        (hash >> (64 - self.cells.len().trailing_zeros())) as usize
    }

    /// The cell of a number: other ids are told apart by it without a look at them.
    fn cell(hash: u64, number: u32) -> u64 {
        (hash >> 8) << 32 | u64::from(number)
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.cells.len() - 1)
    }

    fn warm(&self, requests: &[Request]) {
        let mut met = 0;
        for request in requests {
            met ^= self.cells[self.home(Self::hash(request.id))];
        }
        std::hint::black_box(met);
        let Some(last) = self.ids.len().checked_sub(1) else { return };
        for request in requests {
            let number = self.cells[self.home(Self::hash(request.id))] as u32;
            met ^= self.ids[(number as usize).min(last)];
        }
        std::hint::black_box(met);
    }

    fn number(&mut self, id: u64) -> u32 {
        let hash = Self::hash(id);
        let mut at = self.home(hash);
        loop {
            let cell = self.cells[at];
            if cell == EMPTY {
                break;
            }
            let number = cell as u32;
            if cell == Self::cell(hash, number) && self.ids[number as usize] == id {
                return number;
            }
            at = self.after(at);
        }
        let number = next(&self.ids);
        self.cells[at] = Self::cell(hash, number);
        self.ids.push(id);
        if self.ids.len() * 2 > self.cells.len() {
            self.grow();
        }
        number
    }

    fn grow(&mut self) {
        self.cells = vec![EMPTY; self.cells.len() * 2];
        for (number, id) in (0..).zip(&self.ids) {
            let hash = Self::hash(*id);
            let mut at = self.home(hash);
            while self.cells[at] != EMPTY {
                at = self.after(at);
            }
            self.cells[at] = Self::cell(hash, number);
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
        let requests = requests(&[1 << 60, 5, 9, 5]);
        let by_id = Numbers::by_id(&requests);
        assert_eq!((by_id.of, by_id.ids), (vec![2, 0, 1, 0], vec![5, 9, 1 << 60]));
        let by_arrival = Numbers::by_arrival(&requests);
        assert_eq!((by_arrival.of, by_arrival.ids), (vec![0, 1, 2, 1], vec![1 << 60, 5, 9]));
    }

    proptest! {
        #[test]
        fn numbers_any_requests_then_as_positions_in_a_sorted_set_or_a_list(
            steps in prop::collection::vec((0..2_000u64, 0..4u32), 0..6_000),
            small in any::<bool>(),
        ) {
            // Neighbours, multiples of powers of two, and numbers near the end.
            let of = |(low, kind): (u64, u32)| {
                if small { low } else { [low, low << 32, low << 50, u64::MAX - low][kind as usize] }
            };
            let ids: Vec<u64> = steps.into_iter().map(of).collect();
            let requests = requests(&ids);
            let numbers = Numbers::by_id(&requests);
            let sorted: Vec<u64> = ids.iter().copied().collect::<BTreeSet<u64>>().into_iter().collect();
            let back = |numbers: &Numbers| -> Vec<u64> {
                numbers.of.iter().map(|at| numbers.ids[*at as usize]).collect()
            };
            prop_assert_eq!(&numbers.ids, &sorted);
            prop_assert_eq!(back(&numbers), ids.clone());
            let arrived = Numbers::by_arrival(&requests);
            let mut seen = BTreeSet::new();
            let first: Vec<u64> = ids.iter().copied().filter(|id| seen.insert(*id)).collect();
            prop_assert_eq!(&arrived.ids, &first);
            prop_assert_eq!(back(&arrived), ids);
        }
    }
}
