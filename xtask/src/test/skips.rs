//! Tests that skip what they are for. Where it is known what a machine lacks, a skip for any other
//! reason is a failure: the test would count as passed for ever without having run.

use super::program::Outcome;

/// The skips whose reason has none of the words in `FOREBAY_TEST_SKIPS` (separated by commas); none
/// if that is not set. What the machine refuses when it is tried ([`REFUSED`]) may always be missing.
pub fn unexplained(outcomes: &[Outcome]) -> Vec<String> {
    let Ok(words) = std::env::var("FOREBAY_TEST_SKIPS") else { return Vec::new() };
    let words: Vec<&str> = words.split(',').map(str::trim).filter(|it| !it.is_empty()).collect();
    let skips = outcomes.iter().flat_map(|outcome| {
        outcome.skipped.iter().map(move |(test, why)| (&outcome.program.name, test, why))
    });
    skips
        .filter(|(_, _, why)| !is_explained(why, &words))
        .map(|(program, test, why)| format!("{program} {test} {why}"))
        .collect()
}

/// What tests say that have tried, with all that they need installed, and were refused by the machine: a
/// container that allows no namespaces, no job of MPI, no checkpoints or few open files.
const REFUSED: [&str; 11] = [
    "in this kernel",
    "this kernel ",
    "the kernel ",
    "needs Linux",
    "can't be used here",
    "is forbidden here",
    "no tmpfs here",
    "no access lists here",
    "does not come up",
    "no job of two processes",
    "open files allowed",
];

fn is_explained(why: &str, words: &[&str]) -> bool {
    REFUSED.iter().chain(words).any(|word| why.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skip_when_something_else_is_missing_then_it_is_not_explained() {
        assert!(is_explained("skipped: redis-server is not installed", &["CRIU", "redis-server"]));
        assert!(is_explained("skipped: not enabled in this kernel", &[]));
        assert!(is_explained("skipped: CRIU can't be used here: no CAP_SYS_ADMIN", &[]));
        assert!(!is_explained("skipped: redis-server is not installed", &["CRIU"]));
        assert!(!is_explained("skipped: redis-server is not installed", &[]));
    }
}
