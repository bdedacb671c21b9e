//! `auto` against LRU and against the policies that it chooses from, on traces of the kinds that
//! mounts meet: never more than one per cent above LRU, and near the best choice in hindsight.

use forebay_core::policy::CHOICES;
use forebay_sim::cache::generate::{Kind, generate};
use forebay_sim::cache::run::{Options, count};
use forebay_sim::cache::trace::Trace;

const KINDS: [Kind; 4] = [Kind::Drift, Kind::LoopScan, Kind::Workflow, Kind::Epochs];

/// As a mount has it.
fn missed(trace: &Trace, policy: &str, capacity: u64) -> f64 {
    let mut options = Options::new(policy, capacity);
    options.config.admit_large = true;
    count(trace, &options).expect("a policy").miss_bytes as f64
}

/// Of what each trace at each size gives over LRU: the geometric mean and the largest for `auto`, and
/// the mean of the best single choice.
fn compared(files: u64, requests: u64, seeds: std::ops::Range<u64>) -> (f64, f64, f64) {
    let (mut auto, mut worst, mut best, mut runs) = (0.0, 0.0f64, 0.0, 0.0);
    for kind in KINDS {
        for seed in seeds.clone() {
            let trace = generate(kind, files, requests, seed);
            for share in [30, 10, 3] {
                let capacity = trace.footprint() / share;
                let lru = missed(&trace, "lru", capacity);
                let own = missed(&trace, "auto", capacity) / lru;
                let choices = CHOICES.map(|choice| missed(&trace, choice, capacity) / lru);
                auto += own.ln();
                best += choices.into_iter().fold(f64::INFINITY, f64::min).ln();
                worst = worst.max(own);
                runs += 1.0;
                println!("{kind:?}, seed {seed}, 1/{share}: auto {own:.3} of {choices:.3?}");
            }
        }
    }
    let mean = |sum: f64| (sum / runs).exp();
    println!("auto {:.4}, at most {worst:.4}, best choice {:.4}", mean(auto), mean(best));
    (mean(auto), worst, mean(best))
}

/// What a policy misses over what LRU does, in the geometric mean.
fn over_lru(policy: &str, files: u64, requests: u64) -> f64 {
    let mut logarithms = Vec::new();
    for kind in KINDS {
        for seed in 1..4 {
            let trace = generate(kind, files, requests, seed);
            for share in [30, 10, 3] {
                let capacity = trace.footprint() / share;
                let lru = missed(&trace, "lru", capacity);
                logarithms.push((missed(&trace, policy, capacity) / lru).ln());
            }
        }
    }
    (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp()
}

#[test]
fn clock2q_on_every_kind_then_below_s3fifo_in_the_mean() {
    for (files, requests) in [(400, 12_000), (2_000, 60_000)] {
        let [clock2q, s3fifo] = ["clock2q+", "s3fifo"].map(|of| over_lru(of, files, requests));
        println!("{files} files: clock2q+ {clock2q:.4}, s3fifo {s3fifo:.4}");
        assert!(clock2q <= 0.99 * s3fifo, "{files} files: {clock2q}, s3fifo {s3fifo}");
    }
}

#[test]
fn gittins_on_every_kind_then_below_every_classical_policy_in_the_mean() {
    for (files, requests) in [(400, 12_000), (2_000, 60_000)] {
        let gittins = over_lru("gittins", files, requests);
        println!("{files} files: gittins {gittins:.4}");
        assert!(gittins <= 0.91, "{files} files: {gittins}");
        for other in ["sieve", "s3fifo", "arc", "wtinylfu", "clock2q+"] {
            let over = over_lru(other, files, requests);
            assert!(gittins <= 0.98 * over, "{files} files: {gittins}, {other} {over}");
        }
    }
}

#[test]
fn auto_on_every_kind_then_well_below_lru_and_never_a_percent_above() {
    for (files, requests) in [(400, 12_000), (2_000, 60_000)] {
        let (mean, worst, best) = compared(files, requests, 1..4);
        assert!(worst <= 1.01, "{files} files: {worst}");
        assert!(mean <= 0.89 && mean <= best + 0.03, "{files} files: {mean}, best {best}");
    }
}
