//! Files that are used by way of their owners, while these are slow or meet others in the metadata.

mod ring;
mod site;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use ring::{Ring, can_cluster};

/// How long a node waits for one answer of an owner.
const ANSWER: Duration = Duration::from_secs(15);

/// A file that is open for writing on a node, and by way of that one on another.
fn open_on_both(ring: &Ring, owner: usize, name: &str) -> (File, File) {
    let mut how = File::options();
    how.read(true).write(true).create(true).truncate(false);
    let first = how.open(ring.at(owner, name)).unwrap();
    first.write_all_at(b"0123456789", 0).unwrap();
    (first, how.open(ring.at(1 - owner, name)).unwrap())
}

#[test]
fn owner_when_its_changes_meet_others_in_the_metadata_then_it_tries_again_a_few_times() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_failing(0, "node.owner.attempt=5*return", &[]);
    ring.mount_failing(1, "node.owner.attempt=return", &[]);
    let (here, through) = open_on_both(&ring, 0, "now and then");
    through.write_all_at(b"abc", 2).unwrap();
    through.sync_all().unwrap();
    let mut found = [0; 10];
    through.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"01abc56789");
    drop((here, through));
    // Not for ever.
    let (_here, through) = open_on_both(&ring, 1, "always");
    let begun = Instant::now();
    let refused = through.write_all_at(b"abc", 2).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EIO), "{refused}");
    assert!(begun.elapsed() < ANSWER, "{:?}", begun.elapsed());
}

#[test]
fn owner_when_it_does_not_answer_in_time_then_it_is_asked_again() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    let late = format!("node.owner.read=1*sleep({})", (ANSWER + ANSWER / 10).as_millis());
    ring.mount_failing(0, &late, &["--writeback", "evict"]);
    ring.mount(1, &["--writeback", "evict"]);
    let (here, through) = open_on_both(&ring, 0, "file");
    let (begun, mut found) = (Instant::now(), [0; 10]);
    through.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"0123456789");
    assert!(begun.elapsed() > ANSWER * 9 / 10, "it answered in time: {:?}", begun.elapsed());
    drop((here, through));
    assert_eq!(fs::read(ring.at(1, "file")).unwrap(), b"0123456789");
    ring.umount_all();
}
