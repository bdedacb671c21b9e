//! Files that are used through their owners, while these are slow or meet others in the metadata.

mod ring;
mod site;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use ring::{Ring, can_cluster};
use site::wait_for;

/// How long a node waits for one answer of an owner.
const ANSWER: Duration = Duration::from_secs(15);
/// Nothing takes so long.
const LONG: Duration = Duration::from_secs(120);
/// Nothing is written back but what has to be.
const KEPT: [&str; 2] = ["--writeback", "evict"];

/// A file that is open for writing on a node, and through that one on another.
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

fn late_writes(ring: &Ring, owner: usize) -> usize {
    ring.log(owner).matches("a write came too late").count()
}

#[test]
fn append_when_its_answer_is_late_then_it_is_asked_for_again_and_there_once() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    let late = format!("node.owner.written=1*sleep({})", (ANSWER + ANSWER / 10).as_millis());
    ring.mount_failing(0, &late, &KEPT);
    ring.mount(1, &KEPT);
    let (_here, _) = open_on_both(&ring, 0, "log");
    let mut through = File::options().append(true).open(ring.at(1, "log")).unwrap();
    let begun = Instant::now();
    through.write_all(b"once").unwrap();
    assert!(begun.elapsed() > ANSWER * 9 / 10, "it was answered in time: {:?}", begun.elapsed());
    through.write_all(b"+more").unwrap();
    drop(through);
    assert_eq!(fs::read(ring.at(1, "log")).unwrap(), b"0123456789once+more");
}

#[test]
fn write_that_comes_late_when_it_was_made_again_then_what_was_written_since_stays() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    let late = format!("node.owner.late=1*sleep({})", (ANSWER * 3 / 2).as_millis());
    ring.mount_failing(0, &late, &KEPT);
    ring.mount(1, &KEPT);
    let (_here, through) = open_on_both(&ring, 0, "file");
    through.write_all_at(b"abc", 2).unwrap();
    assert_eq!(late_writes(&ring, 0), 0, "the first one did not come late");
    through.write_all_at(b"xyz", 2).unwrap();
    assert!(wait_for(LONG, || late_writes(&ring, 0) == 1), "{}", ring.log(0));
    let mut found = [0; 10];
    through.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"01xyz56789");
}

#[test]
fn write_and_append_when_given_up_then_they_are_not_carried_out_later() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    // Each is made twice until it is given up, after three fifths of the time limit.
    let late = format!("node.owner.late=4*sleep({})", (ANSWER * 2).as_millis());
    ring.mount_failing(0, &late, &KEPT);
    ring.mount(1, &["--writeback", "evict", "--backing-timeout", "28s"]);
    let (_here, through) = open_on_both(&ring, 0, "file");
    // Another file, as the kernel makes one write to a file at a time.
    let (_log, _) = open_on_both(&ring, 0, "log");
    let mut adds = File::options().append(true).open(ring.at(1, "log")).unwrap();
    let adding = std::thread::spawn(move || (adds.write_all(b"lost"), adds));
    let refused = through.write_all_at(b"abc", 2).unwrap_err();
    let (lost, mut adds) = adding.join().unwrap();
    for refused in [refused, lost.unwrap_err()] {
        let raw = refused.raw_os_error();
        assert!(raw == Some(libc::EHOSTDOWN) || raw == Some(libc::EIO), "{refused}");
    }
    assert_eq!(late_writes(&ring, 0), 0, "they did not come late");
    through.write_all_at(b"xyz", 2).unwrap();
    adds.write_all(b"+kept").unwrap();
    assert!(wait_for(LONG, || late_writes(&ring, 0) == 4), "{}", ring.log(0));
    assert_eq!(fs::read(ring.at(1, "file")).unwrap(), b"01xyz56789");
    assert_eq!(fs::read(ring.at(1, "log")).unwrap(), b"0123456789+kept");
}
