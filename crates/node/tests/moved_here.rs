//! Files that are only moved or linked here, and whose old names others remove or replace before the
//! backlog comes to it: their names stay as long as all their bytes are on a tier.

mod rig;

use std::sync::Arc;
use std::time::Duration;

use forebay_node::{Ino, NameIn, SetAttr};
use forebay_store::decorators::{Flaky, Operation, Rule, Transparent};
use forebay_testing::wait_until;
use rig::hold::{removed_by_others, replaced_by_others};
use rig::{CONTEXT, MIB, Rig, noise};

/// A node that looks at the backing store each time.
fn rig() -> Rig {
    Rig::new(&[16 * MIB], Arc::new(Transparent), |config| config.attr_timeout = Duration::ZERO)
}

/// A file below that is only moved here, not changed; its bytes are on the tier, or not. Then others do
/// something, before a worker comes to it.
fn unchanged_and_renamed(rig: &Rig, resident: bool, others: fn(&Rig)) -> (Ino, Vec<u8>) {
    let bytes = noise(1, 20_000);
    std::fs::write(rig.backing().join("file"), &bytes).unwrap();
    rig.age("file");
    let ino = rig.ino("file");
    if resident {
        assert!(rig.get("file") == bytes);
        assert!(rig.used() >= 20_000, "it is on the tier");
    }
    let _held = rig.hold_workers();
    rename(rig, "file", "renamed");
    others(rig);
    (ino, bytes)
}

fn rename(rig: &Rig, from: &str, to: &str) {
    let [from, to] = [from, to].map(|name| NameIn::new(Ino::ROOT, name.as_bytes()));
    rig.node().rename(&CONTEXT, from, to, 0).unwrap();
}

#[test]
fn file_moved_here_when_others_replace_its_old_name_then_it_is_put_back_from_the_tier() {
    old_name_is_replaced(false);
    old_name_is_replaced(true);
}

fn old_name_is_replaced(seen_first: bool) {
    let rig = rig();
    let (ino, bytes) = unchanged_and_renamed(&rig, true, replaced_by_others);
    if seen_first {
        rig.look(ino);
        assert!(rig.get("renamed") == bytes);
        rig.look(ino);
    }
    drop(rig.node().writeback().reconcile(ino));
    rig.drain();
    assert_eq!(rig.names_below(), ["file", "renamed"]);
    assert!(rig.plain("renamed") == bytes && rig.get("renamed") == bytes);
    assert_eq!(rig.plain("file"), b"theirs");
    assert_eq!(rig.get("file"), b"theirs");
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

#[test]
fn file_moved_here_when_others_remove_its_old_name_then_it_is_put_back_from_the_tier() {
    let rig = rig();
    let (ino, bytes) = unchanged_and_renamed(&rig, true, removed_by_others);
    drop(rig.node().writeback().reconcile(ino));
    rig.drain();
    assert_eq!(rig.names_below(), ["renamed"]);
    assert!(rig.plain("renamed") == bytes && rig.get("renamed") == bytes);
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

#[test]
fn file_moved_here_when_nothing_of_it_is_on_the_tier_then_its_loss_is_named() {
    let rig = rig();
    let (ino, _) = unchanged_and_renamed(&rig, false, replaced_by_others);
    drop(rig.node().writeback().reconcile(ino));
    rig.drain();
    assert_eq!(rig.names_below(), ["file"]);
    assert_eq!(rig.plain("file"), b"theirs");
    let (count, conflicts) = rig.node().writeback().conflicts();
    assert_eq!((count, &conflicts[0].path[..]), (1, &b"renamed"[..]));
}

#[test]
fn file_moved_here_when_it_is_lost_twice_under_one_name_then_both_losses_are_named() {
    let rig = rig();
    for count in 1..=2 {
        let (ino, _) = unchanged_and_renamed(&rig, false, replaced_by_others);
        drop(rig.node().writeback().reconcile(ino));
        rig.drain();
        let (told, conflicts) = rig.node().writeback().conflicts();
        assert_eq!((told, conflicts.len()), (count, count as usize), "{conflicts:?}");
    }
}

/// A file below that only gets a second name here.
fn unchanged_and_linked(rig: &Rig, resident: bool, others: fn(&Rig)) -> (Ino, Vec<u8>) {
    let bytes = noise(1, 20_000);
    std::fs::write(rig.backing().join("file"), &bytes).unwrap();
    rig.age("file");
    let ino = rig.ino("file");
    if resident {
        assert!(rig.get("file") == bytes);
    }
    let _held = rig.hold_workers();
    rig.node().link(&CONTEXT, ino, Ino::ROOT, b"second").unwrap();
    others(rig);
    (ino, bytes)
}

#[test]
fn file_linked_here_when_others_remove_its_old_name_then_only_the_new_one_is_written() {
    for seen_first in [false, true] {
        let rig = rig();
        let (ino, bytes) = unchanged_and_linked(&rig, true, removed_by_others);
        if seen_first {
            rig.look(ino);
        }
        drop(rig.node().writeback().reconcile(ino));
        rig.drain();
        assert_eq!(rig.names_below(), ["second"], "seen first: {seen_first}");
        assert!(rig.plain("second") == bytes && rig.get("second") == bytes);
        assert!(rig.node().lookup(&CONTEXT, Ino::ROOT, b"file").unwrap().is_none());
        assert_eq!(rig.node().getattr(&CONTEXT, ino).unwrap().attr.nlink, 1);
        assert_eq!(rig.node().writeback().conflicts().0, 0);
    }
}

#[test]
fn file_linked_here_when_others_replace_its_old_name_then_that_is_theirs_without_a_conflict() {
    for seen_first in [false, true] {
        let rig = rig();
        let (ino, bytes) = unchanged_and_linked(&rig, true, replaced_by_others);
        if seen_first {
            rig.look(ino);
        }
        drop(rig.node().writeback().reconcile(ino));
        rig.drain();
        assert_eq!(rig.names_below(), ["file", "second"], "seen first: {seen_first}");
        assert!(rig.plain("second") == bytes && rig.get("second") == bytes);
        assert_eq!(rig.plain("file"), b"theirs");
        assert_eq!(rig.get("file"), b"theirs");
        assert_eq!(rig.node().writeback().conflicts().0, 0);
    }
}

#[test]
fn file_linked_here_when_nothing_of_it_is_on_the_tier_then_the_loss_of_the_new_name_is_named() {
    let rig = rig();
    let (ino, _) = unchanged_and_linked(&rig, false, removed_by_others);
    drop(rig.node().writeback().reconcile(ino));
    rig.drain();
    assert!(rig.names_below().is_empty());
    let (count, conflicts) = rig.node().writeback().conflicts();
    assert_eq!((count, &conflicts[0].path[..]), (1, &b"second"[..]), "{conflicts:?}");
}

/// A file below, in a directory, whose bytes are on the tier, and a second name of it here.
fn linked_out_of_a_directory(rig: &Rig) -> (Ino, Ino, Vec<u8>) {
    let bytes = noise(1, 20_000);
    std::fs::create_dir(rig.backing().join("dir")).unwrap();
    std::fs::write(rig.backing().join("dir/file"), &bytes).unwrap();
    rig.age("dir/file");
    let dir = rig.ino("dir");
    let ino = rig.node().lookup(&CONTEXT, dir, b"file").unwrap().unwrap().ino;
    let fh = rig.node().open(&CONTEXT, ino, libc::O_RDONLY).unwrap().fh;
    assert!(rig.read_all(fh) == bytes);
    rig.node().release(fh);
    rig.node().link(&CONTEXT, ino, Ino::ROOT, b"linked").unwrap();
    (dir, ino, bytes)
}

fn its_directory_is_gone(rig: &Rig, dir: Ino) {
    std::fs::remove_dir_all(rig.backing().join("dir")).unwrap();
    rig.look(dir);
    // Changes within one tick of the clock are not seen at once.
    wait_until("the directory is gone", || {
        rig.node().lookup(&CONTEXT, Ino::ROOT, b"dir").unwrap().is_none()
    });
}

fn is_written_as_linked(rig: &Rig, bytes: &[u8]) {
    rig.drain();
    assert_eq!(rig.names_below(), ["linked"]);
    assert!(rig.plain("linked") == bytes && rig.get("linked") == bytes);
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

/// The start took the copy for one of nothing, and unlinked it.
#[test]
fn file_linked_here_when_others_remove_its_directory_and_the_daemon_dies_then_it_is_written() {
    for dies in [false, true] {
        let mut rig = rig();
        let (dir, _, bytes) = linked_out_of_a_directory(&rig);
        its_directory_is_gone(&rig, dir);
        if dies {
            // Before the workers come to it.
            rig.crash();
            rig.start();
        }
        is_written_as_linked(&rig, &bytes);
    }
}

/// Nothing of it is changed here but its permissions.
#[test]
fn file_with_two_names_when_its_mode_is_changed_and_others_remove_both_directories_then_it_is_gone()
{
    for second in ["dir/second", "other/second"] {
        let rig = rig();
        for dir in ["dir", "other"] {
            std::fs::create_dir(rig.backing().join(dir)).unwrap();
        }
        std::fs::write(rig.backing().join("dir/file"), noise(1, 20_000)).unwrap();
        std::fs::hard_link(rig.backing().join("dir/file"), rig.backing().join(second)).unwrap();
        let find = |path: &str| {
            let (dir, name) = path.split_once('/').unwrap();
            rig.node().lookup(&CONTEXT, rig.ino(dir), name.as_bytes()).unwrap().unwrap().ino
        };
        let ino = find("dir/file");
        assert_eq!(find(second), ino);
        let fh = rig.node().open(&CONTEXT, ino, libc::O_RDONLY).unwrap().fh;
        assert_eq!(rig.read_all(fh).len(), 20_000);
        rig.node().release(fh);
        let held = rig.hold_workers();
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        rig.node().setattr(&CONTEXT, ino, &mode).unwrap();
        for dir in ["dir", "other"] {
            let known = rig.ino(dir);
            std::fs::remove_dir_all(rig.backing().join(dir)).unwrap();
            rig.look(known);
            wait_until("the directory is gone", || {
                rig.node().lookup(&CONTEXT, Ino::ROOT, dir.as_bytes()).unwrap().is_none()
            });
        }
        drop(held);
        rig.drain();
        assert!(rig.names_below().is_empty(), "{second}: {:?}", rig.names_below());
        assert_eq!(rig.node().writeback().conflicts().0, 0, "{second}");
    }
}

/// The name that a worker had claimed, and not made, passed for one that stood.
#[test]
fn file_linked_here_when_that_fails_and_others_remove_its_directory_then_it_is_written() {
    let _alone = rig::alone();
    let rig = rig();
    fail::cfg("node.reconcile.before_link", "return").unwrap();
    let (dir, ino, bytes) = linked_out_of_a_directory(&rig);
    rig.node().writeback().reconcile(ino).unwrap_err();
    its_directory_is_gone(&rig, dir);
    fail::remove("node.reconcile.before_link");
    is_written_as_linked(&rig, &bytes);
}

#[test]
fn file_moved_here_when_its_copy_is_of_an_older_version_then_that_does_not_come_back() {
    let rig = rig();
    let (ino, _) = unchanged_and_renamed(&rig, true, |_| {});
    let theirs = std::fs::File::options().write(true).open(rig.backing().join("file")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&theirs, b"in place", 0).unwrap();
    rig.node().writeback().reconcile(ino).unwrap();
    assert_eq!(rig.names_below(), ["renamed"]);
    rename(&rig, "renamed", "again");
    std::fs::remove_file(rig.backing().join("renamed")).unwrap();
    drop(rig.node().writeback().reconcile(ino));
    rig.drain();
    assert!(rig.names_below().is_empty());
    let (count, conflicts) = rig.node().writeback().conflicts();
    assert_eq!((count, &conflicts[0].path[..]), (1, &b"again"[..]), "{conflicts:?}");
}

/// A file whose copy is the only one that is left, on a tier whose headers fail three turns long.
fn fails_for_three_turns(
    errno: i32,
    make: fn(&Rig) -> (Ino, Vec<u8>),
) -> (Rig, Arc<Flaky>, Ino, Vec<u8>) {
    let flaky = Arc::new(Flaky::new(1));
    let mut rig = Rig::unstarted(&[16 * MIB], Arc::new(Transparent), |config| {
        config.attr_timeout = Duration::ZERO;
    });
    rig.by_tier = Some(flaky.clone());
    rig.start();
    let (ino, bytes) = make(&rig);
    flaky.set_rules([Rule::always(Operation::Header, errno)]);
    for _ in 0..3 {
        drop(rig.node().writeback().reconcile(ino));
    }
    (rig, flaky, ino, bytes)
}

#[test]
fn file_moved_here_when_its_tier_can_not_read_the_copy_then_that_is_set_aside_and_its_loss_named() {
    let replaced = |rig: &Rig| unchanged_and_renamed(rig, true, replaced_by_others);
    let (rig, flaky, _, bytes) = fails_for_three_turns(libc::EIO, replaced);
    flaky.set_rules([]);
    let (count, conflicts) = rig.node().writeback().conflicts();
    assert_eq!((count, &conflicts[0].path[..]), (1, &b"renamed"[..]), "{conflicts:?}");
    rig.drain();
    assert_eq!(rig.names_below(), ["file"]);
    let aside = rig.node().residency().set_aside();
    assert_eq!(aside.files, 1, "{aside:?}");
    assert!(std::fs::read(&aside.list[0]).unwrap() == bytes);
}

/// What passes says nothing of the copy, the only one that there was. It was unlinked at once, or by a start, as no
/// version was known any more, or when a name that was only claimed was not found.
#[test]
fn file_moved_or_linked_here_when_its_tier_is_short_of_something_for_a_moment_then_it_is_written() {
    type Make = fn(&Rig) -> (Ino, Vec<u8>);
    let replaced: Make = |rig| unchanged_and_renamed(rig, true, replaced_by_others);
    let removed: Make = |rig| unchanged_and_renamed(rig, true, removed_by_others);
    let linked: Make = |rig| unchanged_and_linked(rig, true, removed_by_others);
    let scenes: [(&str, Make, &[&str]); 3] = [
        ("replaced", replaced, &["file", "renamed"]),
        ("removed", removed, &["renamed"]),
        ("linked", linked, &["second"]),
    ];
    for (what, make, names) in scenes {
        for errno in [libc::EMFILE, libc::ENOMEM, libc::ENOSPC, libc::EROFS, libc::EACCES] {
            for dies in [false, true] {
                let (mut rig, flaky, ino, bytes) = fails_for_three_turns(errno, make);
                if dies {
                    rig.crash();
                    flaky.set_rules([]);
                    rig.start();
                } else {
                    flaky.set_rules([]);
                    rig.look(ino);
                }
                rig.drain();
                assert_eq!(rig.names_below(), names, "{what}, {errno}, dies: {dies}");
                let name = names[names.len() - 1];
                assert!(rig.plain(name) == bytes && rig.get(name) == bytes, "{what}, {errno}");
                assert_eq!(rig.node().writeback().conflicts().0, 0, "{what}, {errno}");
            }
        }
    }
}

/// Its name was only claimed, and passed for one that stands.
#[test]
fn symbolic_link_moved_here_when_that_fails_once_and_others_remove_the_old_name_then_it_is_made() {
    let _alone = rig::alone();
    let rig = rig();
    std::os::unix::fs::symlink("anywhere", rig.backing().join("link")).unwrap();
    let ino = rig.ino("link");
    fail::cfg("node.reconcile.before_make", "return").unwrap();
    rename(&rig, "link", "renamed");
    std::fs::remove_file(rig.backing().join("link")).unwrap();
    rig.node().writeback().reconcile(ino).unwrap_err();
    fail::remove("node.reconcile.before_make");
    rig.look(ino);
    rig.drain();
    assert_eq!(rig.names_below(), ["renamed"]);
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

/// The new name was only claimed, and others have removed its directory as well.
#[test]
fn file_moved_here_when_that_fails_and_others_remove_both_directories_then_it_is_written() {
    let _alone = rig::alone();
    let rig = rig();
    let bytes = noise(1, 20_000);
    for dir in ["dir", "other"] {
        std::fs::create_dir(rig.backing().join(dir)).unwrap();
    }
    std::fs::write(rig.backing().join("dir/file"), &bytes).unwrap();
    rig.age("dir/file");
    let [dir, other] = ["dir", "other"].map(|name| rig.ino(name));
    let ino = rig.node().lookup(&CONTEXT, dir, b"file").unwrap().unwrap().ino;
    let fh = rig.node().open(&CONTEXT, ino, libc::O_RDONLY).unwrap().fh;
    assert!(rig.read_all(fh) == bytes);
    rig.node().release(fh);
    fail::cfg("node.reconcile.before_rename", "return").unwrap();
    let (from, to) = (NameIn::new(dir, b"file"), NameIn::new(other, b"renamed"));
    rig.node().rename(&CONTEXT, from, to, 0).unwrap();
    rig.node().writeback().reconcile(ino).unwrap_err();
    for name in ["dir", "other"] {
        std::fs::remove_dir_all(rig.backing().join(name)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(20));
    rig.look(dir);
    rig.look(other);
    fail::remove("node.reconcile.before_rename");
    rig.drain();
    let kept = rig.backing().join("other/renamed");
    assert!(std::fs::read(&kept).is_ok_and(|found| found == bytes), "{:?}", rig.names_below());
}

/// Nothing but this copy has the file: it is no clean one that can be had again.
#[test]
fn file_moved_here_when_its_copy_is_to_be_evicted_then_it_stays_until_it_is_written() {
    let removed = |rig: &Rig| unchanged_and_renamed(rig, true, removed_by_others);
    let (rig, flaky, ino, bytes) = fails_for_three_turns(libc::EMFILE, removed);
    assert!(!rig.node().residency().evict_file(ino).unwrap());
    flaky.set_rules([]);
    rig.drain();
    assert!(rig.plain("renamed") == bytes && rig.get("renamed") == bytes);
}

/// Nobody has looked for its old name yet: that the backing store has the file is only believed.
#[test]
fn file_moved_here_when_evicted_before_its_old_name_is_found_gone_then_it_is_written() {
    type Make = fn(&Rig) -> (Ino, Vec<u8>);
    let moved: Make = |rig| unchanged_and_renamed(rig, true, removed_by_others);
    let linked: Make = |rig| unchanged_and_linked(rig, true, removed_by_others);
    for (make, name) in [(moved, "renamed"), (linked, "second")] {
        let rig = rig();
        let (ino, bytes) = make(&rig);
        // It may have been written meanwhile, and have gone then.
        rig.node().residency().evict_file(ino).unwrap();
        rig.drain();
        assert_eq!(rig.names_below(), [name]);
        assert!(rig.plain(name) == bytes && rig.get(name) == bytes);
        assert_eq!(rig.node().writeback().conflicts().0, 0);
        assert!(rig.node().residency().evict_file(ino).unwrap(), "it is in line");
    }
}
