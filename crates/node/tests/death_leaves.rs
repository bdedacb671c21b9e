//! What a death at one certain moment leaves, and what the next start makes of it.
#![cfg(feature = "failpoints")]

mod rig;

use std::sync::Arc;

use forebay_node::{Ino, SetAttr};
use forebay_store::decorators::Transparent;
use forebay_testing::{LIMIT, wait_for};
use rig::{CONTEXT, KIB, MIB, Rig, noise, same};

fn spilled_names(rig: &Rig) -> Vec<std::ffi::OsString> {
    let found = std::fs::read_dir(rig.backing().join(".forebay/spill"));
    found.into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
}

fn truncate(rig: &Rig, name: &str, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    rig.node().setattr(&CONTEXT, rig.ino(name), &set).unwrap();
}

#[test]
fn start_when_the_first_tier_is_over_its_mark_then_nothing_moves_before_all_tiers_are_read() {
    let _alone = rig::alone();
    let mut rig = Rig::new(&[8 * MIB, 8 * MIB], Arc::new(Transparent), |_| {});
    let names: Vec<String> = (0..40).map(|index| format!("file{index}")).collect();
    for (index, name) in names.iter().enumerate() {
        rig.put(name, &noise(index as u64, 150_000));
    }
    rig.crash();
    rig.config.tiers[0].size_bytes = 2 * MIB;
    fail::cfg("node.recover.tier", "sleep(300)").unwrap();
    rig.start();
    fail::remove("node.recover.tier");
    for (index, name) in names.iter().enumerate() {
        same(&rig.get(name), &noise(index as u64, 150_000), name);
    }
}

#[test]
fn spilled_file_when_removed_while_nobody_uses_it_then_its_spill_file_goes() {
    let _alone = rig::alone();
    let rig = Rig::small(MIB);
    let fh = rig.create("new");
    rig.write(fh, 0, &noise(4, 3 * MIB));
    // While it is open nobody writes it back.
    assert!(!spilled_names(&rig).is_empty(), "some of it went past the tier");
    rig.node().release(fh);
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"new").unwrap();
    assert!(wait_for(LIMIT, || spilled_names(&rig).is_empty()), "{:?}", spilled_names(&rig));
}

#[test]
fn spill_file_when_published_right_before_the_death_then_its_map_goes() {
    let _alone = rig::alone();
    let mut rig = Rig::small(MIB);
    let mut data = noise(3, 3 * MIB);
    std::fs::write(rig.backing().join("old"), &data).unwrap();
    let fh = rig.open("old", libc::O_RDWR);
    let piece = noise(5, 2 * MIB);
    rig.write(fh, 0, &piece);
    data[..piece.len()].copy_from_slice(&piece);
    rig.node().release(fh);
    assert_eq!(spilled_names(&rig).len(), 2, "a spill file and its map");
    fail::cfg("node.flush.spill_published", "1*return->off").unwrap();
    assert!(rig.node().writeback().reconcile(rig.ino("old")).is_err());
    fail::remove("node.flush.spill_published");
    rig.crash();
    rig.start();
    same(&rig.get("old"), &data, "after the death");
    rig.drain();
    same(&rig.plain("old"), &data, "after the drain");
    assert_eq!(spilled_names(&rig).len(), 0);
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

#[test]
fn file_with_two_names_when_the_death_comes_after_it_was_emptied_below_then_that_is_no_conflict() {
    let _alone = rig::alone();
    let mut rig = Rig::small(8 * MIB);
    std::fs::write(rig.backing().join("file"), noise(3, 300 * KIB)).unwrap();
    std::fs::hard_link(rig.backing().join("file"), rig.backing().join("link")).unwrap();
    rig.ino("link");
    truncate(&rig, "file", 0);
    fail::cfg("node.flush.in_place_copied", "1*return->off").unwrap();
    assert!(rig.node().writeback().reconcile(rig.ino("file")).is_err());
    fail::remove("node.flush.in_place_copied");
    assert_eq!(rig.plain("link").len(), 0);
    rig.crash();
    rig.start();
    rig.drain();
    assert_eq!(rig.node().writeback().conflicts().0, 0);
    assert_eq!(rig.size("link"), 0);
}

/// The record of a file says that it is dirty only when there is something to be dirty.
#[test]
fn file_that_no_tier_admits_when_the_death_comes_while_it_is_cut_then_it_is_there() {
    let _alone = rig::alone();
    for point in ["node.spill.made", "node.spill.noted"] {
        let mut rig = Rig::small(MIB);
        let data = noise(3, 3 * MIB);
        std::fs::write(rig.backing().join("file"), &data).unwrap();
        rig.ino("file");
        // Open and dirty, so that nothing makes room.
        let filler = rig.create("filler");
        while rig.used() + 8 * KIB <= MIB {
            rig.write(filler, rig.size("filler"), &noise(1, 4 * KIB));
        }
        fail::cfg(point, "1*panic->off").unwrap();
        let cut = std::panic::AssertUnwindSafe(|| truncate(&rig, "file", MIB));
        assert!(std::panic::catch_unwind(cut).is_err(), "{point} is not on the way");
        fail::remove(point);
        rig.crash();
        rig.start();
        assert_eq!(rig.node().residency().lost_files().files, 0, "{point}");
        let found = rig.get("file");
        assert!([3 * MIB, MIB].contains(&(found.len() as u64)), "{point}: {}", found.len());
        same(&found, &data[..found.len()], point);
        truncate(&rig, "file", MIB);
        rig.drain();
        same(&rig.plain("file"), &data[..MIB as usize], point);
    }
}

/// Nothing said that its object is nobody's any more: it was set aside, and fsck called it lost.
#[test]
fn written_file_when_the_death_comes_right_after_its_removal_then_nothing_of_it_is_set_aside() {
    let _alone = rig::alone();
    for (point, is_open) in [("node.unlink.removed", false), ("node.orphan.released", true)] {
        let mut rig = Rig::small(8 * MIB);
        rig.put("file", &noise(3, 300 * KIB));
        let fh = is_open.then(|| rig.open("file", libc::O_RDONLY));
        fail::cfg(point, "1*panic->off").unwrap();
        let removed = std::panic::AssertUnwindSafe(|| {
            rig.node().unlink(&CONTEXT, Ino::ROOT, b"file").unwrap();
            fh.into_iter().for_each(|fh| rig.node().release(fh));
        });
        assert!(std::panic::catch_unwind(removed).is_err(), "{point} is not on the way");
        fail::remove(point);
        rig.crash();
        let checked = rig.check(false);
        assert_eq!(checked.problems, 0, "{point}: {:?}", checked.details);
        rig.start();
        assert_eq!(rig.node().residency().set_aside().files, 0, "{point}");
        assert_eq!(rig.used(), 0, "{point}");
    }
}
