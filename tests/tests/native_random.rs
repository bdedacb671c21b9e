//! The random suites on native file systems.

use forebay_tests::random::seed_from_env;
use forebay_tests::subject::{NativeDir, Subject};
use forebay_tests::{fsx, model};

#[test]
fn fsx_when_run_on_disk_then_the_file_equals_its_model() {
    let dir = NativeDir::on_disk().unwrap();
    let seed = seed_from_env("FOREBAY_SEED");
    fsx::run(dir.dir(), seed, 3000, 300_000).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn fsx_when_run_in_memory_then_the_file_equals_its_model() {
    let dir = NativeDir::in_memory().unwrap();
    let seed = seed_from_env("FOREBAY_SEED");
    fsx::run(dir.dir(), seed, 5000, 300_000).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn model_when_disk_is_compared_with_disk_then_both_trees_stay_equal() {
    let (subject, reference) = (NativeDir::on_disk().unwrap(), NativeDir::on_disk().unwrap());
    let seed = seed_from_env("FOREBAY_SEED");
    model::run(subject.dir(), reference.dir(), seed, 3000)
        .unwrap_or_else(|failure| panic!("{failure}"));
}
