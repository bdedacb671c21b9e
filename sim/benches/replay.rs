//! Requests a second of a replay on one thread, over a million objects.

use std::time::Instant;

use forebay_sim::cache::generate::{Kind, generate};
use forebay_sim::cache::run::{Options, count};

fn main() {
    let trace = generate(Kind::Zipf, 1_000_000, 10_000_000, 1);
    let capacity = trace.footprint() / 10;
    for policy in ["lru", "sieve", "s3fifo", "min"] {
        let start = Instant::now();
        let counts = count(&trace, &Options::new(policy, capacity)).expect("a policy");
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{policy:<8} {:>6.2} million requests a second, {:.4} of them missed",
            trace.requests.len() as f64 / seconds / 1e6,
            counts.misses as f64 / trace.requests.len() as f64
        );
    }
}
