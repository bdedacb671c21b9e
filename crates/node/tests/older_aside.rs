//! Objects that were set aside before their file got what it has now: no command takes one of them for the
//! newest version.

mod rig;

use std::path::PathBuf;

use forebay_node::{CheckRequest, SetAttr, SetTime, Timestamp, check};
use rig::kept::{files_below, objects};
use rig::{CONTEXT, MIB, Rig, noise, same};

/// A file of which an object was set aside, which was written anew since and written back, and of which the
/// object that has been changed after that is gone. Where the older one is.
fn with_an_older_one_aside(times_set_back: bool) -> (Rig, PathBuf) {
    let mut rig = Rig::small(8 * MIB);
    rig.put("file", &noise(1, 20_000));
    let name = format!("{:016x}", rig.ino("file").0);
    rig.crash();
    let lost = rig.dir.join("tier0/lost");
    std::fs::create_dir_all(&lost).unwrap();
    let aside = lost.join(name);
    std::fs::rename(files_below(&objects(&rig)).remove(0), &aside).unwrap();
    rig.start();
    assert_eq!(rig.node().residency().lost_files().files, 1);
    let fh = rig.open("file", libc::O_WRONLY | libc::O_TRUNC);
    rig.write(fh, 0, &noise(2, 15_000));
    rig.node().release(fh);
    rig.drain();
    let fh = rig.open("file", libc::O_WRONLY);
    rig.write(fh, 0, b"newest");
    rig.node().release(fh);
    if times_set_back {
        let then = SetTime::At(Timestamp::new(1_000_000_000, 0));
        let set = SetAttr { mtime: Some(then), ..SetAttr::default() };
        rig.node().setattr(&CONTEXT, rig.ino("file"), &set).unwrap();
    }
    rig.crash();
    std::fs::remove_file(files_below(&objects(&rig)).remove(0)).unwrap();
    (rig, aside)
}

#[test]
fn older_object_set_aside_when_the_newest_is_gone_then_a_repair_does_not_put_it_back() {
    for times_set_back in [false, true] {
        let (mut rig, aside) = with_an_older_one_aside(times_set_back);
        let request = CheckRequest {
            tiers: vec![rig.dir.join("tier0")],
            repair: true,
            ..CheckRequest::default()
        };
        let checked = check(&request, &mut |_| true).unwrap();
        let said = checked.details.join("\n");
        assert!(said.contains("file: ") && said.contains("--accept-loss"), "{said}");
        assert!(aside.exists(), "{times_set_back}: {said}");
        rig.start();
        assert_eq!(rig.node().residency().lost_files().list, [b"file".to_vec()], "{said}");
    }
}

#[test]
fn older_object_set_aside_when_the_index_is_built_anew_then_it_stays_there() {
    for times_set_back in [false, true] {
        let (mut rig, aside) = with_an_older_one_aside(times_set_back);
        let said = rig.check(true).details.join("\n");
        assert!(aside.exists(), "{times_set_back}: {said}");
        rig.start();
        same(&rig.get("file"), &noise(2, 15_000), "as the backing store has it");
    }
}
