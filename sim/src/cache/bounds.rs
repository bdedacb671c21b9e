//! What any cache must miss, in bytes, and what a plan with whole knowledge can reach: the bounds of
//! Berger, Beckmann and Harchol-Balter ("Practical bounds on optimal caching with variable object
//! sizes", SIGMETRICS 2018) for the bytes missed.
//!
//! The view is theirs: a file kept from one request to the next occupies its bytes for that
//! *interval* and saves reading them at its end.

use forebay_core::policy::PolicyConfig;

use super::run::{Options, count};
use super::trace::Trace;

/// The bounds for one cache size: `pfoo_l <= foo <= pfoo_u`, all in bytes missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Bounds {
    /// Room counted over the whole trace only, not at each moment. Below anything possible.
    pub pfoo_l: u64,
    /// The fractional optimum: no cache does better, and one that keeps parts of files attains it.
    pub foo: u64,
    /// A plan that keeps whole files and is always feasible.
    pub pfoo_u: u64,
}

impl Bounds {
    /// All three; O(n log n).
    #[must_use]
    pub fn of(trace: &Trace, capacity: u64) -> Self {
        let intervals = Intervals::of(trace);
        Self {
            pfoo_l: intervals.relaxed(capacity),
            foo: foo(trace, capacity),
            pfoo_u: intervals.planned(capacity),
        }
    }
}

/// FOO, by a cache that attains it: MIN with bypass that keeps files by single bytes.
#[must_use]
pub fn foo(trace: &Trace, capacity: u64) -> u64 {
    let config = PolicyConfig { chunk: 1, ..PolicyConfig::new(capacity) };
    let options = Options { config, ..Options::new("min", capacity) };
    count(trace, &options).expect("there is a policy min").miss_bytes
}

struct Interval {
    start: usize,
    end: usize,
    bytes: u64,
}

struct Intervals {
    /// Shortest first: what is saved for the room taken is one over the length.
    shortest: Vec<Interval>,
    requests: usize,
    /// Bytes of all requests.
    total: u64,
}

impl Intervals {
    fn of(trace: &Trace) -> Self {
        let next = trace.next_requests();
        let pairs = trace.requests.iter().zip(next).enumerate();
        let mut shortest: Vec<Interval> = pairs
            .filter_map(|(start, (request, next))| {
                // A file that changes its size in between is another one.
                let end = next.filter(|next| trace.requests[*next].size == request.size)?;
                Some(Interval { start, end, bytes: request.size })
            })
            .collect();
        shortest.sort_by_key(|interval| (interval.end - interval.start, interval.start));
        let total = trace.requests.iter().map(|request| request.size).sum();
        Self { shortest, requests: trace.requests.len(), total }
    }

    /// PFOO-L: the shortest intervals until the room of all moments together is used up.
    fn relaxed(&self, capacity: u64) -> u64 {
        let mut room = u128::from(capacity) * self.requests as u128;
        let mut saved = 0;
        for interval in self.shortest.iter().filter(|interval| interval.bytes <= capacity) {
            let length = (interval.end - interval.start) as u128;
            let bytes = u128::from(interval.bytes).min(room / length) as u64;
            saved += bytes;
            room -= u128::from(bytes) * length;
            if bytes < interval.bytes {
                break;
            }
        }
        self.total - saved
    }

    /// PFOO-U: the shortest intervals that still fit beside those chosen before, at every moment.
    fn planned(&self, capacity: u64) -> u64 {
        let mut load = Load::new(self.requests);
        let mut saved = 0;
        for interval in self.shortest.iter().filter(|interval| interval.bytes <= capacity) {
            if load.most(interval.start, interval.end) + interval.bytes <= capacity {
                load.add(interval.start, interval.end, interval.bytes);
                saved += interval.bytes;
            }
        }
        self.total - saved
    }
}

/// Bytes occupied between requests: a segment tree of sums over ranges and their maxima.
struct Load {
    /// The largest load below a node, what was added to the node itself included.
    most: Vec<u64>,
    added: Vec<u64>,
    leaves: usize,
}

impl Load {
    fn new(moments: usize) -> Self {
        let leaves = moments.next_power_of_two().max(1);
        Self { most: vec![0; 2 * leaves], added: vec![0; 2 * leaves], leaves }
    }

    /// The largest load from `start` to before `end`.
    fn most(&self, start: usize, end: usize) -> u64 {
        self.search(1, 0, self.leaves, start, end)
    }

    fn search(&self, node: usize, low: usize, high: usize, start: usize, end: usize) -> u64 {
        if end <= low || high <= start {
            return 0;
        }
        if start <= low && high <= end {
            return self.most[node];
        }
        let middle = low.midpoint(high);
        let left = self.search(2 * node, low, middle, start, end);
        let right = self.search(2 * node + 1, middle, high, start, end);
        left.max(right) + self.added[node]
    }

    /// Adds bytes from `start` to before `end`.
    fn add(&mut self, start: usize, end: usize, bytes: u64) {
        self.descend(1, (0, self.leaves), (start, end), bytes);
    }

    fn descend(&mut self, node: usize, here: (usize, usize), range: (usize, usize), bytes: u64) {
        let ((low, high), (start, end)) = (here, range);
        if end <= low || high <= start {
            return;
        }
        if start <= low && high <= end {
            self.most[node] += bytes;
            self.added[node] += bytes;
            return;
        }
        let middle = low.midpoint(high);
        self.descend(2 * node, (low, middle), range, bytes);
        self.descend(2 * node + 1, (middle, high), range, bytes);
        self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]) + self.added[node];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::generate::{Kind, generate};
    use crate::cache::trace::Request;
    use crate::rng::Rng;

    /// FOO as its authors define it: a min-cost flow from each request to the next one, through the
    /// cache at no cost or past it at the price of its bytes; by successive shortest paths (Bellman
    /// and Ford), for tiny traces.
    fn foo_by_flow(trace: &Trace, capacity: u64) -> u64 {
        let next = trace.next_requests();
        let n = trace.requests.len();
        // (from, to, room, cost of one byte)
        let mut arcs: Vec<(usize, usize, i64, i64)> = Vec::new();
        let mut arc = |from, to, room: u64, cost| {
            arcs.push((from, to, room as i64, cost));
            arcs.push((to, from, 0, -cost));
        };
        let (source, sink) = (n, n + 1);
        for at in 0..n - 1 {
            arc(at, at + 1, capacity, 0);
        }
        let mut first = vec![true; n];
        for (at, request) in trace.requests.iter().enumerate() {
            if let Some(next) = next[at] {
                arc(at, next, request.size, 1);
                first[next] = false;
            }
            match (first[at], next[at]) {
                (true, Some(_)) => arc(source, at, request.size, 0),
                (false, None) => arc(at, sink, request.size, 0),
                _ => {}
            }
        }
        let mut cost = 0;
        loop {
            let mut least = vec![i64::MAX; n + 2];
            let mut by = vec![usize::MAX; n + 2];
            least[source] = 0;
            for _ in 0..n + 2 {
                for (index, &(from, to, room, price)) in arcs.iter().enumerate() {
                    if room > 0 && least[from] < i64::MAX && least[from] + price < least[to] {
                        least[to] = least[from] + price;
                        by[to] = index;
                    }
                }
            }
            if least[sink] == i64::MAX {
                break;
            }
            let path = || {
                std::iter::successors(Some(sink), |at| {
                    (by[*at] != usize::MAX).then(|| arcs[by[*at]].0)
                })
                .filter(|at| by[*at] != usize::MAX)
                .map(|at| by[at])
                .collect::<Vec<_>>()
            };
            let path = path();
            let flow = path.iter().map(|index| arcs[*index].2).min().expect("a path");
            for index in path {
                arcs[index].2 -= flow;
                arcs[index ^ 1].2 += flow;
            }
            cost += flow * least[sink];
        }
        let compulsory: u64 =
            (0..n).filter(|at| first[*at]).map(|at| trace.requests[at].size).sum();
        compulsory + cost as u64
    }

    #[test]
    fn foo_on_tiny_traces_then_the_min_cost_flow_itself() {
        let mut rng = Rng::new(11);
        for _ in 0..60 {
            let files = rng.between(2, 8);
            let sizes: Vec<u64> = (0..files).map(|_| rng.between(1, 30)).collect();
            let requests = (0..rng.between(5, 40)).map(|_| {
                let id = rng.between(0, files - 1);
                Request { id, size: sizes[id as usize] }
            });
            let trace = Trace::new(requests.collect());
            let capacity = rng.between(5, 80);
            assert_eq!(foo(&trace, capacity), foo_by_flow(&trace, capacity), "{trace:?}");
        }
    }

    #[test]
    fn bounds_of_every_kind_then_in_their_order_and_the_plan_is_near() {
        for kind in [Kind::RoundRobin, Kind::Zipf, Kind::Epochs, Kind::Workflow] {
            let trace = generate(kind, 200, 6_000, 5);
            for share in [50, 10, 3] {
                let bounds = Bounds::of(&trace, trace.footprint() / share);
                let Bounds { pfoo_l, foo, pfoo_u } = bounds;
                assert!(pfoo_l <= foo && foo <= pfoo_u, "{kind:?}: {bounds:?}");
                assert!(pfoo_u as f64 <= 1.05 * foo as f64, "{kind:?}, 1/{share}: {bounds:?}");
            }
        }
    }
}
