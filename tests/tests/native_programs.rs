//! The programs on a native file system: the expectations must hold there first.

use forebay_tests::programs;
use forebay_tests::subject::{NativeDir, Subject};

#[test]
fn programs_when_run_on_a_native_directory_then_they_work() {
    let dir = NativeDir::in_memory().unwrap();
    let failures = programs::run(dir.dir());
    assert!(failures.is_empty(), "{failures:#?}");
}
