//! Closed files of which the records can't say yet what was written to them.
#![cfg(feature = "failpoints")]

mod rig;

use std::time::{Duration, Instant};

use forebay_node::{Ino, Synced};
use rig::kept::{files_below, objects};
use rig::{MIB, Rig, noise};

const POINT: &str = "node.settle.before_record";
/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(20);

fn sync(rig: &Rig, below: Ino) -> Synced {
    rig.node().writeback().sync_subtree(below, Instant::now() + LIMIT, &mut |_| true).unwrap()
}

/// Objects of the tier that this process has open.
fn open_objects(rig: &Rig) -> usize {
    let objects = rig.backing().parent().unwrap().join("tier0/objects");
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    // In directories, of which the tier has some open.
    let below = targets.filter(|path| {
        path.strip_prefix(&objects).is_ok_and(|below| below.components().count() > 1)
    });
    below.count()
}

#[test]
fn sync_when_it_can_not_be_noted_what_was_written_then_names_the_files_and_few_are_held_open() {
    let _alone = rig::alone();
    const MANY: usize = 100;
    let rig = Rig::small(16 * MIB);
    let other = rig.create("other");
    rig.node().release(other);
    fail::cfg(POINT, "return").unwrap();
    for number in 0..MANY {
        let fh = rig.create(&format!("file{number}"));
        rig.write(fh, 0, &noise(number as u64, 5000));
        rig.node().release(fh);
    }
    let synced = sync(&rig, Ino::ROOT);
    assert!(!synced.complete);
    assert_eq!(synced.failed, MANY as u64);
    let (path, why) = synced.failures.first().expect("it is named");
    assert!(path.starts_with(b"file") && why.contains("sync again"), "{why}");
    // One that has nothing to do with them.
    assert!(sync(&rig, rig.ino("other")).complete);
    let held = open_objects(&rig);
    assert!((1..80).contains(&held), "{held} objects are open");
    // All of them show what was written.
    for number in 0..MANY {
        assert_eq!(rig.size(&format!("file{number}")), 5000, "{number}");
    }
    fail::remove(POINT);
    let synced = sync(&rig, Ino::ROOT);
    assert!(synced.complete, "{synced:?}");
    for number in 0..MANY {
        assert_eq!(rig.plain(&format!("file{number}")), noise(number as u64, 5000));
    }
}

/// The tier has lost its only object while no daemon worked.
#[test]
fn sync_when_the_bytes_of_a_file_are_lost_then_names_it_and_ends() {
    let mut rig = Rig::small(16 * MIB);
    for name in ["lost", "other"] {
        rig.put(name, &noise(7, 5000));
    }
    let ino = rig.ino("lost");
    rig.crash();
    let name = format!("{:016x}", ino.0);
    let object = files_below(&objects(&rig)).into_iter().find(|path| path.ends_with(&name));
    std::fs::remove_file(object.expect("it is on the tier")).unwrap();
    rig.start();
    let began = Instant::now();
    let synced = sync(&rig, Ino::ROOT);
    assert!(began.elapsed() < LIMIT / 2, "it waits for what no waiting brings");
    assert_eq!((synced.complete, synced.failed), (false, 1), "{synced:?}");
    let (path, why) = &synced.failures[0];
    assert!(path == b"lost" && why.contains("fsck --repair"), "{synced:?}");
    assert_eq!(rig.plain("other"), noise(7, 5000));
}
