//! Files that are only moved or linked here, and whose old names others remove or replace before the
//! backlog comes to it: their names stay as long as all their bytes are on a tier.

mod rig;

use std::sync::Arc;
use std::time::Duration;

use forebay_node::{Ino, NameIn};
use forebay_store::decorators::{Flaky, Operation, Rule, Transparent};
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

#[test]
fn file_moved_here_when_its_tier_fails_to_say_that_it_counts_then_its_loss_is_named() {
    for errno in [libc::EIO, libc::ENOSPC] {
        let flaky = Arc::new(Flaky::new(1));
        let mut rig = Rig::unstarted(&[16 * MIB], Arc::new(Transparent), |_| {});
        rig.by_tier = Some(flaky.clone());
        rig.start();
        let (ino, _) = unchanged_and_renamed(&rig, true, replaced_by_others);
        flaky.set_rules([Rule::always(Operation::Header, errno)]);
        for _ in 0..3 {
            drop(rig.node().writeback().reconcile(ino));
        }
        flaky.set_rules([]);
        let (count, conflicts) = rig.node().writeback().conflicts();
        assert_eq!((count, &conflicts[0].path[..]), (1, &b"renamed"[..]), "{conflicts:?}");
        rig.drain();
        assert_eq!(rig.names_below(), ["file"]);
    }
}
