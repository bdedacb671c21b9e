//! Unmodified programs on a mount, through the daemon and in passthrough.

use forebay_tests::programs;
use forebay_tests::subject::{ForebayMount, MountOptions, Passthrough, Subject};

fn work_with(passthrough: Passthrough) {
    let options = MountOptions { passthrough: Some(passthrough), ..MountOptions::default() };
    let mut mount = ForebayMount::new(options).unwrap_or_else(|error| panic!("{error}"));
    let failures = programs::run(mount.dir());
    assert!(failures.is_empty(), "{failures:#?}");
    mount.unmount().unwrap();
}

#[test]
fn programs_when_passthrough_is_off_then_they_work() {
    work_with(Passthrough::Off);
}

#[test]
fn programs_when_passthrough_reads_and_writes_then_they_work() {
    work_with(Passthrough::ReadWrite);
}
