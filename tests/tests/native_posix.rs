//! The POSIX suite on native file systems: a check that fails here is a wrong check.

use forebay_tests::os;
use forebay_tests::posix;
use forebay_tests::subject::{NativeDir, Subject};

fn passes_on(subject: &dyn Subject) {
    let mut lines = Vec::new();
    let report = posix::run(subject.dir(), "", &mut lines).expect("writing to memory works");
    let text = String::from_utf8_lossy(&lines);
    assert!(report.failed.is_empty(), "{}:\n{text}", subject.name());
    // Only what tmpfs lacks, and the accounts of users, may be left out.
    let unexpected = report.skipped.iter().find(|(_, why)| {
        !why.contains("not supported") && (os::is_root() || !why.contains("root"))
    });
    assert!(unexpected.is_none(), "{unexpected:?}");
    assert!(report.passed > 300, "only {} checks ran", report.passed);
}

#[test]
fn posix_suite_when_run_on_disk_then_every_check_passes() {
    passes_on(&NativeDir::on_disk().unwrap());
}

#[test]
fn posix_suite_when_run_in_memory_then_every_check_passes() {
    passes_on(&NativeDir::in_memory().unwrap());
}
