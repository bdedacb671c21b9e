//! What wrong hints cost Forebay-MIN: at most a few per cent more bytes than S3-FIFO misses without
//! any, on every kind of trace; and right ones still give the optimum.

use forebay_sim::cache::bounds::foo;
use forebay_sim::cache::generate::{Kind, generate};
use forebay_sim::cache::run::{Options, Oracle, count, count_told};
use forebay_sim::cache::trace::Trace;
use forebay_sim::rng::Rng;

const KINDS: [Kind; 4] = [Kind::RoundRobin, Kind::Zipf, Kind::Epochs, Kind::Workflow];

fn numbers(trace: &Trace) -> Vec<u64> {
    trace.numbers().of.iter().map(|number| u64::from(*number)).collect()
}

/// Wrong hints of every sort, each with its name.
fn wrong_hints(trace: &Trace, kind: Kind) -> Vec<(&'static str, Vec<u64>)> {
    let right = numbers(trace);
    let files = trace.numbers().ids.len() as u64;
    let mut rng = Rng::new(17);
    let mut permuted = right.clone();
    rng.shuffle(&mut permuted);
    let stale = numbers(&generate(kind, 300, 16_000, 77));
    let random = (0..right.len()).map(|_| rng.between(0, files - 1)).collect();
    let half = right.len() / 2;
    vec![
        ("a random permutation of the references", permuted),
        ("another run's references", stale.iter().map(|number| number % files).collect()),
        ("references drawn at random", random),
        ("files that are never accessed", right.iter().map(|number| number + files).collect()),
        ("half accessed, half never", {
            right.iter().flat_map(|number| [*number, number + files]).collect()
        }),
        ("every reference to another file", right.iter().map(|n| (n + 1) % files).collect()),
        ("the second half first", [&right[half..], &right[..half]].concat()),
        ("backwards", right.iter().rev().copied().collect()),
    ]
}

/// Bytes missed with these hints / bytes missed by the same policy without any, which is S3-FIFO.
fn cost(trace: &Trace, policy: &str, hints: Vec<u64>, capacity: u64) -> f64 {
    let options = Options::new(policy, capacity);
    let told = count_told(trace, &options, &mut Oracle::of(hints)).expect("a policy");
    let alone = Options { window: Some(0), ..options };
    told.miss_bytes as f64 / count(trace, &alone).expect("a policy").miss_bytes as f64
}

#[test]
fn min_without_hints_then_the_fallback_to_the_byte() {
    for kind in KINDS {
        let trace = generate(kind, 300, 10_000, 5);
        let capacity = trace.footprint() / 10;
        let mut fallback = Options::new("s3fifo", capacity);
        fallback.config.admit_large = true;
        let alone = Options { window: Some(0), ..Options::new("min", capacity) };
        let missed = |options| count(&trace, options).expect("a policy").miss_bytes;
        assert_eq!(missed(&alone), missed(&fallback), "{kind:?}");
    }
}

fn assert_harmless(kind: Kind) {
    let mut failures = Vec::new();
    let trace = generate(kind, 300, 16_000, 5);
    for share in [20, 5] {
        let capacity = trace.footprint() / share;
        for (name, hints) in wrong_hints(&trace, kind) {
            for policy in ["min", "min-whole"] {
                let cost = cost(&trace, policy, hints.clone(), capacity);
                if cost > 1.05 {
                    failures.push(format!("{policy}, 1/{share} of the files: {name}: {cost:.3}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn wrong_hints_on_loops_then_at_most_five_per_cent_more_than_the_fallback() {
    assert_harmless(Kind::RoundRobin);
}

#[test]
fn wrong_hints_on_zipf_then_at_most_five_per_cent_more_than_the_fallback() {
    assert_harmless(Kind::Zipf);
}

#[test]
fn wrong_hints_on_epochs_then_at_most_five_per_cent_more_than_the_fallback() {
    assert_harmless(Kind::Epochs);
}

#[test]
fn wrong_hints_on_workflows_then_at_most_five_per_cent_more_than_the_fallback() {
    assert_harmless(Kind::Workflow);
}

#[test]
fn right_hints_then_within_two_per_cent_of_the_bound() {
    for kind in KINDS {
        let trace = generate(kind, 300, 20_000, 5);
        for share in [20, 5, 2] {
            let capacity = trace.footprint() / share;
            let missed =
                count(&trace, &Options::new("min", capacity)).expect("a policy").miss_bytes;
            let bound = foo(&trace, capacity);
            let ratio = missed as f64 / bound as f64;
            assert!(ratio <= 1.02, "{kind:?}, 1/{share}: {ratio}");
        }
    }
}

#[test]
fn hints_wrong_at_first_and_right_later_then_believed_again() {
    let trace = generate(Kind::Epochs, 300, 60_000, 5);
    let capacity = trace.footprint() / 3;
    let right = numbers(&trace);
    let (start, rest) = right.split_at(20_000);
    let mut wrong = start.to_vec();
    Rng::new(3).shuffle(&mut wrong);
    let hints = [&wrong, rest].concat();
    let options = Options::new("min", capacity);
    let told = count_told(&trace, &options, &mut Oracle::of(hints)).expect("a policy").miss_bytes;
    let alone = Options { window: Some(0), ..options.clone() };
    let fallback = count(&trace, &alone).expect("a policy").miss_bytes;
    let bound = foo(&trace, capacity);
    let won = (fallback - told) as f64 / (fallback - bound) as f64;
    assert!(won > 0.5, "{won}: {bound} {told} {fallback}");
}
