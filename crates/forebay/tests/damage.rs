//! Every file that Forebay keeps, damaged in every way, and then every command: no dirty byte is
//! unlinked, no file shows an older version without a word, and every refusal names a command that
//! works. Also of a daemon that was killed with a file open, of two tiers with all that is kept only now
//! and then, and of an index that was half made anew.
//!
//! A part of the matrix in each run; all of it with `FOREBAY_DAMAGE=all`, one of N shares of that with
//! `FOREBAY_DAMAGE=K/N`, and with another value those whose names contain it.

mod bad_disk;
mod harm;
mod site;

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use harm::case::{Case, Scene};
use harm::trials::{FIRST, Trial, Wanted, kind};
use harm::{HEADER, files_below, values};
use site::*;

/// Cases that are tried at the same time.
const LANES: usize = 3;

/// What came of a trial.
enum Tried {
    Damaged,
    NothingToDamage,
    /// The scene had fewer files of this kind than the one by which the trials were chosen.
    NoSuchFile,
}

#[test]
fn file_when_damaged_in_any_way_then_no_dirty_byte_is_unlinked_and_there_is_a_way_on() {
    matrix(Scene::Ended, &OF_ONE_TIER, 15);
}

#[test]
fn file_of_a_killed_daemon_when_damaged_then_no_older_version_is_shown_without_a_word() {
    matrix(Scene::Killed, &OF_ONE_TIER, 15);
}

#[test]
fn what_two_tiers_keep_now_and_then_when_damaged_then_nothing_is_lost_or_older_without_a_word() {
    let needed = [
        "object false",
        "object true",
        "slow object false",
        "lost false",
        "limbo false",
        "tmp t",
        "tmp x",
        "spill y",
        "spill false",
        "spill true",
        "state conflicts",
        "state failed-syncs",
        "unseen",
    ];
    matrix(Scene::TwoTiers, &needed, 15);
}

#[test]
fn state_when_nothing_is_damaged_then_all_is_there_whatever_is_done_first() {
    if !can_mount() {
        return;
    }
    use_own_mounts();
    std::thread::scope(|scope| {
        for first in FIRST {
            scope.spawn(move || all_is_right(&Scene::TwoTiers.made(false).unwrap(), first));
        }
    });
    if has_fail_points() {
        all_is_right(&Scene::HalfRebuilt.made(false).unwrap(), "mount");
    }
}

#[test]
fn index_that_is_half_made_anew_when_damaged_then_nothing_is_lost_and_there_is_a_way_on() {
    if has_fail_points() {
        matrix(Scene::HalfRebuilt, &["state rebuilding", "former index"], 1);
    }
}

/// What the scenes with one tier must have.
const OF_ONE_TIER: [&str; 5] =
    ["spill false", "spill true", "object false", "object true", "mounts false"];

fn has_fail_points() -> bool {
    let has = !Site::new().run(&["debug", "failpoints"]).1.is_empty();
    assert!(
        has || cfg!(not(feature = "failpoints")),
        "a build without the fail points it was to have"
    );
    if !has {
        eprintln!("skipped: built without fail points");
    }
    has
}

/// Tries all cases of this run.
fn matrix(scene: Scene, needed: &[&str], least: usize) {
    if !can_mount() {
        return;
    }
    use_own_mounts();
    let wanted = Wanted::from_environment();
    let trials = {
        let case = scene.made(false).unwrap();
        let plan = case.kept();
        let kinds: Vec<String> = plan.iter().map(|path| kind(path)).collect();
        for needed in needed {
            assert!(kinds.iter().any(|kind| kind == needed), "{needed}: {plan:?}");
        }
        wanted.trials(&case)
    };
    let next = AtomicUsize::new(0);
    let (damaged, missing) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failed = Mutex::new(Vec::new());
    let one_more = |count: &AtomicUsize| _ = count.fetch_add(1, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                while let Some(trial) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // All that is wrong is told, at the end.
                    match std::panic::catch_unwind(|| try_one(scene, trial)) {
                        Ok(Tried::Damaged) => one_more(&damaged),
                        Ok(Tried::NothingToDamage) => {}
                        Ok(Tried::NoSuchFile) => one_more(&missing),
                        Err(why) => {
                            let text = why.downcast_ref::<String>().cloned();
                            let text = text.unwrap_or_else(|| "a panic".into());
                            failed.lock().unwrap().push(text);
                        }
                    }
                }
            });
        }
    });
    let (failed, damaged) = (failed.into_inner().unwrap(), damaged.into_inner());
    eprintln!(
        "{scene:?}: {} cases: {damaged} damaged, {} without the file, {} failed",
        trials.len(),
        missing.into_inner(),
        failed.len()
    );
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), trials.len(), failed.join("\n"));
    assert!(damaged > least || !matches!(wanted, Wanted::Some));
}

/// Whether a scene in which nothing is damaged is as it should be, whatever is done first.
fn all_is_right(case: &Case, first: &str) {
    let before = case.findable();
    let (told, is_mounted) = case.go_on(first);
    assert!(is_mounted, "{told}");
    let finds_nothing = told.starts_with(&format!("$ {first}: 0\n"));
    assert!(finds_nothing || case.scene == Scene::HalfRebuilt, "{told}");
    assert_eq!(case.older_blocks(), [], "{told}");
    for (name, _) in &case.dirty {
        let read = fs::read(case.site.path("mnt").join(name)).map(drop);
        assert!(read.is_ok(), "{name}: {read:?}\n{told}");
    }
    let (code, text) = case.umount(&[]);
    assert_eq!(code, 0, "{told}{text}");
    let after = case.findable();
    let gone: Vec<_> = before.iter().filter(|block| !after.contains(block)).take(5).collect();
    assert!(gone.is_empty(), "gone are {gone:?}\n{told}");
}

/// Makes a scene, damages the file in it, and goes on from there.
fn try_one(scene: Scene, trial: &Trial) -> Tried {
    // Where bytes lie differs a little from scene to scene.
    for _ in 0..3 {
        let Some(case) = scene.made(trial.how.is_of_the_disk()) else {
            return Tried::NothingToDamage;
        };
        let kept = case.kept();
        let mut same_kind = kept.iter().filter(|path| kind(path) == trial.kind);
        let Some(path) = same_kind.nth(trial.nth) else { continue };
        let whole = case.findable();
        let Some(undo) = case.damage(path, trial.how) else { return Tried::NothingToDamage };
        let began = std::time::Instant::now();
        // What can't be read is there, and counts.
        let before = if trial.how.is_of_the_disk() { whole } else { case.findable() };
        let name = trial.name(path);
        let is_value = values::is_value(path);
        case.check(&name, trial.first, &before, is_value, &|| undo.carry_out());
        eprintln!("{name}: {:?}", began.elapsed());
        return Tried::Damaged;
    }
    Tried::NoSuchFile
}

#[test]
fn object_whose_header_the_disk_does_not_give_then_it_is_named_and_there_again_when_the_disk_is_well()
 {
    if !can_mount() {
        return;
    }
    use_own_mounts();
    // What is given up does not come back.
    for first in FIRST.into_iter().filter(|first| *first != "--accept-loss") {
        let Some(mut case) = Scene::Ended.made(true) else { return };
        let (name, object, wanted) = case.file_whole_on_the_tier();
        assert!(
            case.disk.as_ref().unwrap().spoil_attributes(&object),
            "its header is in the inode"
        );
        let unreadable = rustix::fs::getxattr(&object, HEADER, &mut [0; 4096][..]);
        assert_eq!(unreadable, Err(rustix::io::Errno::IO));
        let (told, is_mounted) = case.go_on(first);
        assert!(is_mounted, "{told}");
        let (_, status) = case.site.run(&["status", &case.site.text("mnt")]);
        assert!(
            format!("{told}{status}").contains(name),
            "{first}: it is not named: {told}{status}"
        );
        let seen = fs::read(case.site.path("mnt").join(name));
        assert!(
            seen.as_ref().map_or(true, |seen| *seen == wanted),
            "{first}: another version: {told}"
        );
        let (code, text) = case.umount(&["--no-drain"]);
        assert_eq!(code, 0, "{first}: {text}");
        case.disk.as_mut().unwrap().heal();
        // A start, or what the guide says of what was set aside.
        let mut told = told + &status;
        for how in ["mount", "--repair"] {
            if how == "--repair" {
                told += &case.fsck(how).1;
            }
            let (code, text) = case.mount();
            assert_eq!(code, 0, "{first}: {told}{text}");
            let found = fs::read(case.site.path("mnt").join(name));
            let (code, text) = case.umount(&["--no-drain"]);
            assert_eq!(code, 0, "{first}: {told}{text}");
            // The index that knew the file was replaced: it is set aside under the path that was said.
            let is_aside = || {
                let aside = files_below(&case.site.path("tier/lost"));
                let has = |path: &&PathBuf| fs::read(path).is_ok_and(|found| found == wanted);
                let path = aside.iter().find(has);
                path.is_some_and(|path| told.contains(&*path.to_string_lossy()))
            };
            if first == "--rebuild" && is_aside() {
                break;
            }
            if found.as_ref().is_ok_and(|found| *found == wanted) {
                eprintln!("{first}: there again after {how}");
                break;
            }
            assert!(how == "mount", "{first}: its bytes are not there again: {found:?}\n{told}");
        }
    }
}
