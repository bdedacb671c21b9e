//! fsck knows whether it sees the backing store that the tiers belong to: where that is not mounted, or is
//! another one, no file is taken for gone, and nothing is changed that depends on it.
#![cfg(feature = "failpoints")]

mod rig;

use std::path::{Path, PathBuf};

use forebay_node::{CheckRequest, Checked, NodeError, accept_store, check};
use rig::kept::{end, files_below, objects, only, spills};
use rig::{CONTEXT, KIB, MIB, Rig, noise, same};

const HEADER: &str = "user.forebay";

#[derive(Clone, Copy, Debug)]
enum Instead {
    /// The mount point of the store, without it.
    Empty,
    /// Another store that has been used.
    Another,
    /// Nothing at all.
    Nothing,
}

/// Runs with something else in the place of the store.
fn without_store<T>(rig: &Rig, instead: Instead, run: impl FnOnce() -> T) -> T {
    let (backing, away) = (rig.backing(), rig.dir.join("away"));
    std::fs::rename(&backing, &away).unwrap();
    match instead {
        Instead::Empty => std::fs::create_dir(&backing).unwrap(),
        Instead::Another => {
            std::fs::create_dir(&backing).unwrap();
            forebay_store::DirBacking::open(&backing, "n").unwrap().marked_identity().unwrap();
        }
        Instead::Nothing => {}
    }
    let before = files_below(&backing);
    let outcome = run();
    assert_eq!(files_below(&backing), before, "{instead:?}: something was made there");
    drop(std::fs::remove_dir_all(&backing));
    std::fs::rename(&away, &backing).unwrap();
    outcome
}

fn run(rig: &Rig, how: &str) -> Result<Checked, NodeError> {
    let request = CheckRequest {
        tiers: vec![rig.dir.join("tier0")],
        backing: Some(rig.backing()),
        rebuild: how == "--rebuild",
        repair: how == "--repair",
        accept_loss: how == "--accept-loss",
        ..CheckRequest::default()
    };
    check(&request, &mut |_| true)
}

/// What is on the tier, but for what a look at the namespace changes.
fn on_tier(dir: &Path) -> Vec<PathBuf> {
    let mut files = files_below(dir);
    files.retain(|path| !path.to_string_lossy().contains("/state/meta/"));
    files
}

const WITHOUT: [Instead; 3] = [Instead::Empty, Instead::Another, Instead::Nothing];

#[test]
fn file_past_the_tier_when_the_store_is_not_seen_then_it_is_not_taken_for_gone() {
    for instead in WITHOUT {
        let mut rig = Rig::small(4 * KIB);
        let bytes = noise(1, 300 * KIB);
        let fh = rig.create("file");
        rig.write(fh, 0, &bytes);
        rig.node().fsync(&CONTEXT, fh, false).unwrap();
        rig.node().release(fh);
        end(&mut rig);
        only(&spills(&rig), false);
        let before = on_tier(&rig.dir.join("tier0"));
        without_store(&rig, instead, || {
            for how in ["fsck", "--repair"] {
                let found = run(&rig, how).unwrap();
                let said = found.details.join("\n");
                assert!(found.problems > found.repaired, "{instead:?} {how}: {said}");
                assert!(!said.contains("gone"), "{instead:?} {how}: {said}");
                assert!(said.contains("Mount its file system"), "{instead:?} {how}: {said}");
            }
            for how in ["--accept-loss", "--rebuild"] {
                let said = run(&rig, how).expect_err(how).to_string();
                assert!(said.contains("Mount its file system"), "{instead:?} {how}: {said}");
            }
        });
        assert_eq!(on_tier(&rig.dir.join("tier0")), before, "{instead:?}");
        assert_eq!(rig.check(false).problems, 0, "{instead:?}");
        rig.start();
        same(&rig.get("file"), &bytes, "there again");
    }
}

#[test]
fn copy_with_a_damaged_header_when_the_store_is_not_seen_then_its_file_is_not_taken_for_newer() {
    for instead in WITHOUT {
        let mut rig = Rig::small(8 * MIB);
        let bytes = noise(1, 20_000);
        std::fs::write(rig.backing().join("file"), &bytes).unwrap();
        let fh = rig.open("file", libc::O_RDONLY);
        assert_eq!(rig.read_all(fh), bytes);
        rig.node().release(fh);
        end(&mut rig);
        let object = only(&objects(&rig), false);
        rustix::fs::removexattr(&object, HEADER).unwrap();
        without_store(&rig, instead, || {
            let found = run(&rig, "--repair").unwrap();
            assert!(found.problems > found.repaired, "{instead:?}: {found:?}");
        });
        assert!(object.exists(), "{instead:?}: it was set aside");
        rig.start();
        same(&rig.get("file"), &bytes, "as the store has it");
        assert_eq!(rig.node().residency().lost_files().files, 0, "{instead:?}");
    }
}

/// Nothing is left then that says that it is the store, but the administrator.
#[test]
fn moved_store_whose_mark_is_damaged_when_accepted_then_it_is_used_again() {
    let mut rig = Rig::small(8 * MIB);
    let bytes = noise(1, 20_000);
    rig.put("file", &bytes);
    end(&mut rig);
    let moved = rig.dir.join("moved");
    std::fs::create_dir(&moved).unwrap();
    for entry in std::fs::read_dir(rig.backing()).unwrap().map(|it| it.unwrap()) {
        std::fs::rename(entry.path(), moved.join(entry.file_name())).unwrap();
    }
    std::fs::remove_dir(rig.backing()).unwrap();
    std::fs::rename(&moved, rig.backing()).unwrap();
    std::fs::write(rig.backing().join(".forebay/store"), b"torn").unwrap();
    let said = run(&rig, "--rebuild").expect_err("it is not known").to_string();
    assert!(said.contains("--accept-store"), "{said}");
    let tiers = [rig.dir.join("tier0")];
    let accepted = accept_store(&rig.backing(), &tiers, None).unwrap();
    assert_eq!(accepted.problems, accepted.repaired, "{accepted:?}");
    assert_eq!(rig.check(false).problems, 0);
    rig.start();
    rig.drain();
    same(&rig.plain("file"), &bytes, "below");
}
