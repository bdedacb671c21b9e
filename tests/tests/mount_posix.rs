//! The POSIX suite on a mount, through the daemon and in passthrough.

use forebay_tests::posix;
use forebay_tests::subject::{ForebayMount, MountOptions, Passthrough, Subject};

fn passes_with(passthrough: Passthrough) {
    let options = MountOptions { passthrough: Some(passthrough), ..MountOptions::default() };
    let mut mount = ForebayMount::new(options).unwrap_or_else(|error| panic!("{error}"));
    let mut lines = Vec::new();
    let report = posix::run(mount.dir(), "", &mut lines).expect("writing to memory works");
    let text = String::from_utf8_lossy(&lines);
    assert!(report.failed.is_empty(), "{}:\n{text}", mount.name());
    assert!(report.passed > 300, "only {} checks ran", report.passed);
    mount.unmount().unwrap();
    let list =
        |dir| std::fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
    // The private area stays; of what is in it, only the mark of the store.
    let private = mount.backing().join(".forebay");
    let left = list(mount.backing().to_owned()).filter(|path| *path != private);
    let left: Vec<_> = left.chain(list(private.clone())).collect();
    let left: Vec<_> = left.iter().filter(|path| **path != private.join("store")).collect();
    assert!(left.is_empty(), "the backing store keeps {left:?}");
}

#[test]
fn posix_suite_when_passthrough_is_off_then_every_check_passes() {
    passes_with(Passthrough::Off);
}

#[test]
fn posix_suite_when_passthrough_reads_then_every_check_passes() {
    passes_with(Passthrough::Read);
}

#[test]
fn posix_suite_when_passthrough_reads_and_writes_then_every_check_passes() {
    passes_with(Passthrough::ReadWrite);
}
