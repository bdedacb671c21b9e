//! A rebuild of the index that was interrupted can be run again and loses nothing, and until then nothing
//! else uses what it has made.
#![cfg(feature = "failpoints")]

mod rig;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forebay_meta::{Embedded, EmbeddedOptions};
use forebay_node::{CheckRequest, Node, NodeError};
use forebay_store::Tier;
use forebay_store::decorators::Transparent;
use rig::kept::{end, files_below, lose_index, objects, spills};
use rig::{CONTEXT, KIB, MIB, Rig, noise, same};

/// Where a rebuild is interrupted.
const POINTS: [&str; 9] = [
    "node.rebuild.begun",
    "node.rebuild.filled",
    "node.rebuild.copied",
    "node.rebuild.durable",
    "node.rebuild.spill_gone",
    "node.rebuild.spill_begun",
    "node.rebuild.spill_durable",
    "node.rebuild.noted",
    "node.rebuild.stopped",
];

/// Dirty files of every kind: whole, a part of a version, in two parts, past the tier over a version, and
/// past the tier without one.
fn scene() -> (Rig, Vec<(&'static str, Vec<u8>)>) {
    let mut rig = Rig::new(&[MIB + 32 * KIB], Arc::new(Transparent), |_| {});
    let mut files = Vec::new();
    for (name, below) in [("part", 700 * KIB), ("over", 900 * KIB)] {
        std::fs::write(rig.backing().join(name), noise(below, below)).unwrap();
    }
    let mut write = |rig: &Rig, name: &'static str, below: u64, ours: u64| {
        let mut bytes = noise(below, below);
        let fh = match below {
            0 => rig.create(name),
            _ => rig.open(name, libc::O_RDWR),
        };
        let new = noise(ours, ours);
        for (piece, at) in new.chunks(64 << 10).zip((0..).step_by(64 << 10)) {
            rig.write(fh, at, piece);
        }
        bytes.resize(bytes.len().max(new.len()), 0);
        bytes[..new.len()].copy_from_slice(&new);
        // It stays open, and so where it is.
        rig.node().fsync(&CONTEXT, fh, false).unwrap();
        files.push((name, bytes));
    };
    write(&rig, "whole", 0, 256 * KIB);
    write(&rig, "part", 700 * KIB, 64 * KIB);
    write(&rig, "both", 0, 900 * KIB);
    write(&rig, "over", 900 * KIB, 320 * KIB);
    write(&rig, "past", 0, 400 * KIB);
    end(&mut rig);
    assert!(files_below(&objects(&rig)).len() >= 3, "{:?}", files_below(&objects(&rig)));
    assert!(files_below(&spills(&rig)).len() >= 4, "{:?}", files_below(&spills(&rig)));
    (rig, files)
}

/// Rebuilds until the fail point is come by for the `nth` time. Whether it was.
fn interrupted(rig: &Rig, point: &str, nth: usize) -> bool {
    fail::cfg(point, &format!("{nth}*off->panic")).unwrap();
    let ended = catch_unwind(AssertUnwindSafe(|| rig.check(true)));
    fail::remove(point);
    ended.is_err()
}

fn refused(rig: &Rig) {
    let backing = Arc::new(forebay_store::DirBacking::open(rig.backing(), "n").unwrap());
    let started = loop {
        match Node::start_on(rig.config.clone(), backing.clone()) {
            Err(NodeError::Store(forebay_store::StoreError::Locked { .. })) => {}
            started => break started,
        }
    };
    let said =
        started.err().map(|error| error.to_string()).expect("half of a namespace is mounted");
    assert!(said.contains("fsck --rebuild"), "{said}");
    let tiers = vec![rig.dir.join("tier0")];
    for (repair, accept_loss) in [(false, false), (true, false), (false, true)] {
        let request =
            CheckRequest { tiers: tiers.clone(), repair, accept_loss, ..CheckRequest::default() };
        let said = forebay_node::check(&request, &mut |_| true).unwrap_err().to_string();
        assert!(said.contains("fsck --rebuild"), "{said}");
    }
}

fn all_there(rig: &mut Rig, files: &[(&str, Vec<u8>)], what: &str) {
    let checked = rig.check(true);
    assert_eq!(checked.problems, checked.repaired, "{what}: {:?}", checked.details);
    rig.start();
    for (name, bytes) in files {
        same(&rig.get(name), bytes, &format!("{what}: {name}"));
    }
    rig.drain();
    let names = std::fs::read_dir(rig.backing()).unwrap().map(|it| it.unwrap().file_name());
    let mut names: Vec<_> = names.filter(|name| name != ".forebay").collect();
    names.sort();
    let mut wanted: Vec<_> = files.iter().map(|(name, _)| *name).collect();
    wanted.sort_unstable();
    assert_eq!(names, wanted, "{what}");
}

#[test]
fn rebuild_when_interrupted_anywhere_then_it_can_be_run_again_and_nothing_else_uses_the_half() {
    let _alone = rig::alone();
    for point in POINTS {
        for nth in 0..5 {
            let (mut rig, files) = scene();
            let what = format!("{point} {nth}");
            if !interrupted(&rig, point, nth) {
                assert!(nth > 0, "{what} is never come by");
                break;
            }
            refused(&rig);
            all_there(&mut rig, &files, &what);
        }
    }
}

#[test]
fn rebuild_when_interrupted_again_and_again_then_nothing_is_lost() {
    let _alone = rig::alone();
    let (mut rig, files) = scene();
    let mut times = 0;
    for (at, point) in POINTS.into_iter().enumerate() {
        times += usize::from(interrupted(&rig, point, at % 3));
    }
    assert!(times > 3, "{times}");
    all_there(&mut rig, &files, "again and again");
}

#[test]
fn rebuild_of_a_lost_index_when_interrupted_then_it_can_be_run_again() {
    let _alone = rig::alone();
    for point in ["node.rebuild.begun", "node.rebuild.copied", "node.rebuild.durable"] {
        let mut rig = Rig::small(4 * MIB);
        let files = [("first", noise(1, 100 * KIB)), ("second", noise(2, 200 * KIB))];
        for (name, bytes) in &files {
            rig.put(name, bytes);
        }
        end(&mut rig);
        lose_index(&rig);
        assert!(interrupted(&rig, point, 0));
        refused(&rig);
        all_there(&mut rig, &files, point);
    }
}

#[test]
fn note_of_a_rebuild_when_it_is_of_a_newer_version_then_it_is_refused_and_nothing_is_lost() {
    let _alone = rig::alone();
    let (mut rig, files) = scene();
    assert!(interrupted(&rig, "node.rebuild.spill_durable", 0));
    let note = rig.dir.join("tier0/state/rebuilding");
    let text = std::fs::read_to_string(&note).unwrap();
    std::fs::write(&note, text.replacen("forebay-rebuild 1 ", "forebay-rebuild 2 ", 1)).unwrap();
    let request = CheckRequest {
        tiers: vec![rig.dir.join("tier0")],
        backing: Some(rig.backing()),
        rebuild: true,
        ..CheckRequest::default()
    };
    let said = forebay_node::check(&request, &mut |_| true).unwrap_err().to_string();
    assert!(said.contains("newer version") && said.contains("rebuilding"), "{said}");
    std::fs::write(&note, text).unwrap();
    all_there(&mut rig, &files, "after all");
}

/// Runs a rebuild that must be refused, and gives what it says.
fn refused_rebuild(rig: &Rig) -> String {
    let request = CheckRequest {
        tiers: vec![rig.dir.join("tier0")],
        backing: Some(rig.backing()),
        rebuild: true,
        ..CheckRequest::default()
    };
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        match forebay_node::check(&request, &mut |_| true) {
            Err(NodeError::Store(forebay_store::StoreError::Locked { .. })) => {
                // A thread of the node before is at its last breath.
                assert!(std::time::Instant::now() < until, "the tier stays locked");
            }
            checked => {
                return checked.expect_err("a rebuild goes on without the index").to_string();
            }
        }
    }
}

fn open_index(path: &std::path::Path) -> Embedded {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        match Embedded::open(path, &EmbeddedOptions::default()) {
            Err(error) => assert!(std::time::Instant::now() < until, "{error}"),
            Ok(opened) => return opened,
        }
    }
}

/// That of a daemon, or of another rebuild.
#[test]
fn rebuild_when_somebody_has_the_index_open_then_it_stays_where_it_is() {
    let _alone = rig::alone();
    let (mut rig, files) = scene();
    let index = rig.dir.join("tier0/state/meta");
    let opened = open_index(&index);
    let said = refused_rebuild(&rig);
    assert!(said.contains("in use"), "{said}");
    assert!(index.join("version").exists(), "it was moved");
    assert!(!rig.dir.join("tier0/state/rebuilding").exists());
    drop(opened);
    all_there(&mut rig, &files, "in use");
}

/// Spill files whose names only it knows would be set aside for good.
#[test]
fn rebuild_when_the_old_index_cannot_be_read_for_a_moment_then_it_is_refused_and_the_next_loses_nothing()
 {
    let _alone = rig::alone();
    let (mut rig, files) = scene();
    assert!(interrupted(&rig, "node.rebuild.begun", 0));
    let opened = open_index(&rig.dir.join("tier0/state/meta.before-rebuild"));
    let said = refused_rebuild(&rig);
    assert!(said.contains("meta.before-rebuild") && said.contains("--accept-loss"), "{said}");
    drop(opened);
    all_there(&mut rig, &files, "for a moment");
}

/// Between the look and the rebuild a mount could begin, whose index would be moved away under it.
#[test]
fn tiers_when_they_are_rebuilt_then_locked_from_the_first_look_on() {
    let _alone = rig::alone();
    let (mut rig, files) = scene();
    let tier = rig.dir.join("tier0");
    let locked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = locked.clone();
    fail::cfg_callback("node.rebuild.begun", move || {
        let lock = forebay_store::tier::DirTier::open(&tier).unwrap().lock();
        seen.lock().unwrap().push(lock.is_err());
    })
    .unwrap();
    all_there(&mut rig, &files, "locked");
    fail::remove("node.rebuild.begun");
    assert_eq!(*locked.lock().unwrap(), [true]);
}

/// The sequence of an inode number.
fn sequence(ino: u64) -> u64 {
    ino & 0xffff_ffff_ffff
}

/// Else a file could get the number of something that was set aside, and a repair give it those bytes.
#[test]
fn numbers_of_new_files_when_the_index_is_new_then_lie_above_all_that_was_set_aside() {
    for rebuilt in [false, true] {
        for place in ["tier0/lost", "backing/.forebay/lost"] {
            let mut rig = Rig::small(4 * MIB);
            rig.put("file", &noise(1, 10 * KIB));
            rig.drain();
            end(&mut rig);
            lose_index(&rig);
            let owner = forebay_store::tier::identity(&rig.config.tiers[0].dir).unwrap().unwrap();
            let name = match place {
                "tier0/lost" => "8bf3000000123456".to_owned(),
                _ => format!("{owner}.8bf3000000123456-1"),
            };
            std::fs::create_dir_all(rig.dir.join(place)).unwrap();
            std::fs::write(rig.dir.join(place).join(name), "set aside").unwrap();
            // A name that no node has given keeps nobody from going on.
            std::fs::write(rig.dir.join("tier0/lost/ffffffffffffffff"), "").ok();
            if rebuilt {
                rig.check(true);
            }
            rig.start();
            rig.put("new", b"new");
            let given = sequence(rig.ino("new").0);
            assert!(given > 0x123456, "{place}, rebuilt: {rebuilt}: {given:x}");
        }
    }
}

/// As one of which the device does not give up the inode. A rebuild that ends there can't be ended at all.
#[test]
fn rebuild_when_a_tier_gives_up_no_object_then_it_ends_and_nothing_comes_back_twice() {
    let _alone = rig::alone();
    for lost in [false, true] {
        let mut rig = Rig::small(4 * MIB);
        let copied = noise(1, 20 * KIB);
        std::fs::write(rig.backing().join("copied"), &copied).unwrap();
        same(&rig.get("copied"), &copied, "copied");
        let written = noise(2, 100 * KIB);
        rig.put("written", &written);
        end(&mut rig);
        assert_eq!(files_below(&objects(&rig)).len(), 2);
        if lost {
            lose_index(&rig);
        }
        for _ in 0..2 {
            fail::cfg("store.remove.before", "return").unwrap();
            let checked = rig.check(true);
            fail::remove("store.remove.before");
            assert_eq!(checked.problems, checked.repaired, "{lost}: {:?}", checked.details);
        }
        for _ in 0..2 {
            rig.start();
            same(&rig.get("copied"), &copied, "copied, after");
            same(&rig.get("written"), &written, "written, after");
            assert_eq!(rig.node().residency().set_aside().files, 0, "{lost}");
            rig.drain();
            let mut names: Vec<_> = rig.left_in_backing();
            names.retain(|name| !name.starts_with(".forebay"));
            assert_eq!(names, ["copied", "written"], "{lost}");
            end(&mut rig);
        }
    }
}
