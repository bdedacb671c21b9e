//! Requests a second of a replay on one thread, over a million objects.

use std::time::Instant;

use forebay_sim::cache::generate::{Kind, generate};
use forebay_sim::cache::run::{Options, count};

fn main() {
    let trace = generate(Kind::Zipf, 1_000_000, 10_000_000, 1);
    let capacity = trace.footprint() / 10;
    println!("{} files", trace.numbers().ids.len());
    for policy in ["lru", "sieve", "s3fifo", "arc", "heuristic", "min"] {
        // The best of three: other programs on the machine only ever slow it down.
        let mut seconds = f64::INFINITY;
        let mut counts = forebay_core::policy::replay::Counts::default();
        for _ in 0..3 {
            let start = Instant::now();
            counts = count(&trace, &Options::new(policy, capacity)).expect("a policy");
            seconds = start.elapsed().as_secs_f64().min(seconds);
        }
        println!(
            "{policy:<8} {:>6.2} million requests a second, {:.4} of them missed",
            trace.requests.len() as f64 / seconds / 1e6,
            counts.misses as f64 / trace.requests.len() as f64
        );
    }
}
