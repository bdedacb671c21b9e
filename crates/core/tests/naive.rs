//! Every policy against the plainest program that does the same: lists and scans, no structure, and
//! nothing shared with the policies. Random traces of the kinds that policies meet; each request must
//! be a hit in both or in neither, and the same bytes must be missed.

#[path = "naive/adaptive.rs"]
mod adaptive;
#[path = "naive/families.rs"]
mod families;
#[path = "naive/online.rs"]
mod online;
#[path = "naive/told.rs"]
mod told;

use families::{Family, Trace};
use forebay_core::policy::replay::Cache;
use forebay_core::policy::{Hint, PolicyConfig};

/// Traces of each family.
const SEEDS: u64 = 12;

/// What a run comes to: a digit for each request, and the bytes missed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Run {
    hits: String,
    missed: u64,
}

impl Run {
    /// Takes note of a request of which so many bytes were there.
    fn note(&mut self, size: u64, there: u64) {
        self.hits.push(if there == size { '1' } else { '0' });
        self.missed += size - there;
    }
}

fn run(trace: &Trace, policy: &str, config: &PolicyConfig) -> Run {
    let mut cache = Cache::new(policy, config).expect("a policy");
    let objects: Vec<u64> = trace.requests.iter().map(|(id, _)| *id).collect();
    cache.policy().hint(&Hint::Append { job: 0, objects: &objects });
    cache.policy().hint(&Hint::Close { job: 0 });
    let mut run = Run::default();
    for &(id, size) in &trace.requests {
        run.note(size, cache.request(id, size).hit_bytes);
    }
    run
}

/// The policy does what the plain program does, on every family.
fn assert_same(policy: &str, plain: impl Fn(&Trace) -> Run) {
    for family in Family::ALL {
        for seed in 0..SEEDS {
            let trace = family.trace(seed);
            let (got, expected) =
                (run(&trace, policy, &PolicyConfig::new(trace.capacity)), plain(&trace));
            let first = got.hits.bytes().zip(expected.hits.bytes()).position(|(a, b)| a != b);
            let at = format!("{policy} on {family:?}, seed {seed}");
            assert_eq!(first, None, "{at}: first request that differs");
            assert_eq!(got.missed, expected.missed, "{at}: bytes missed");
        }
    }
}

#[test]
fn lru_then_as_a_list_by_last_use() {
    assert_same("lru", online::lru);
}

#[test]
fn lfu_then_as_a_scan_for_the_fewest_uses() {
    assert_same("lfu", online::lfu);
}

#[test]
fn sieve_then_as_a_list_with_a_hand() {
    assert_same("sieve", online::sieve);
}

#[test]
fn gdsf_then_as_a_scan_for_the_least_priority() {
    assert_same("gdsf", online::gdsf);
}

#[test]
fn s3fifo_then_as_three_lists() {
    assert_same("s3fifo", online::s3fifo);
}

/// Files of one size, of which so many fit as would of the trace's own in the mean.
fn in_pages(trace: &Trace) -> Trace {
    let bytes: u64 = trace.requests.iter().map(|request| request.1).sum();
    let mean = (bytes / trace.requests.len() as u64).max(1);
    let requests = trace.requests.iter().map(|request| (request.0, 1)).collect();
    Trace { requests, capacity: (trace.capacity / mean).max(2) }
}

#[test]
fn arc_on_pages_then_as_the_figure_of_its_paper() {
    for family in Family::ALL {
        for seed in 0..SEEDS {
            let trace = in_pages(&family.trace(seed));
            for capacity in [trace.capacity, 3, 40] {
                let trace = Trace { requests: trace.requests.clone(), capacity };
                let got = run(&trace, "arc", &PolicyConfig::new(capacity));
                assert_eq!(got, adaptive::arc(&trace), "{family:?}, seed {seed}, {capacity} pages");
            }
        }
    }
}

/// A small queue of fewer than two pages has no room for the newcomer itself: then there is none.
#[test]
fn clock2q_on_pages_then_as_three_lists_and_a_window() {
    for family in Family::ALL {
        for seed in 0..SEEDS {
            let trace = in_pages(&family.trace(seed));
            for capacity in [trace.capacity.max(20), 20, 40, 60] {
                let trace = Trace { requests: trace.requests.clone(), capacity };
                let got = run(&trace, "clock2q+", &PolicyConfig::new(capacity));
                let expected = online::clock2q(&trace);
                assert_eq!(got, expected, "{family:?}, seed {seed}, {capacity} pages");
            }
        }
    }
}

#[test]
fn heuristic_then_as_algorithms_2_and_3_line_by_line() {
    assert_same("heuristic", told::heuristic);
}

#[test]
fn belady_then_as_a_scan_for_the_farthest() {
    assert_same("belady", told::belady);
}

#[test]
fn belady_size_then_as_a_scan_for_the_largest_product() {
    assert_same("belady-size", told::belady_size);
}

#[test]
fn min_whole_then_as_a_sorted_list() {
    assert_same("min-whole", told::min_whole);
}

#[test]
fn min_then_as_a_list_of_heads() {
    assert_same("min", |trace| told::min(trace, PolicyConfig::new(trace.capacity).chunk));
}

/// The bound by a plain program: single bytes.
fn bound(trace: &Trace) -> u64 {
    told::min(trace, 1).missed
}

#[test]
fn min_on_every_family_then_within_two_percent_of_the_bound() {
    for family in Family::ALL {
        for seed in 0..SEEDS {
            let trace = family.trace(seed);
            let config = PolicyConfig::new(trace.capacity);
            let ratio = run(&trace, "min", &config).missed as f64 / bound(&trace) as f64;
            assert!(ratio <= 1.02, "{family:?}, seed {seed}: {ratio}");
        }
    }
}

/// What is larger than the cache, or a good part of it, can only be kept in part: the bound does so,
/// and whole files do not reach it. Where a dozen of the largest fit they do.
#[test]
fn min_whole_where_a_dozen_of_the_largest_fit_then_within_five_percent_of_the_bound() {
    let mut judged = 0;
    for family in Family::ALL {
        for seed in 0..SEEDS {
            let trace = family.trace(seed);
            if trace.capacity < 12 * trace.largest() {
                continue;
            }
            judged += 1;
            let config = PolicyConfig::new(trace.capacity);
            let ratio = run(&trace, "min-whole", &config).missed as f64 / bound(&trace) as f64;
            assert!(ratio <= 1.05, "{family:?}, seed {seed}: {ratio}");
        }
    }
    assert!(judged >= 3 * SEEDS, "{judged} traces");
}
