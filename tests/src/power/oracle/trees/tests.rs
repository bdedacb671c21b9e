//! What may be found of trees after steps that are written out.

use super::*;
use crate::power::oracle::block;
use crate::power::work::Sync;

fn make(name: &str) -> Op {
    Op::MakeDir { name: name.into() }
}

fn write(name: &str, stamp: u64, sync: Sync) -> Op {
    Op::Write { name: name.into(), at: 0, count: 1, stamp, fresh: false, sync }
}

fn moved(from: &str, to: &str, dir: bool) -> Op {
    Op::Move { from: from.into(), to: to.into(), dir }
}

fn sync_dir_of(name: &str) -> Op {
    Op::SyncDir { name: name.into() }
}

fn removed(name: &str, dir: bool) -> Op {
    Op::RemoveTree { name: name.into(), dir }
}

fn seen(kind: Kind, ino: u64, mode: u32) -> Seen {
    Seen { kind, ino, links: 1, mode, mark: None }
}

fn file(stamp: u64) -> Seen {
    seen(Kind::File(block(stamp)), stamp, 0o644)
}

fn dir(ino: u64, entries: &[(&str, Seen)]) -> Seen {
    let entries = entries.iter().map(|(name, seen)| (name.to_string(), seen.clone()));
    seen(Kind::Dir(entries.collect()), ino, NEW_DIR)
}

/// The directories that are made get the numbers from 1 on. All steps but the last are done, and that if it
/// `is_told`.
fn oracle_after(steps: &[Op], is_told: bool) -> Oracle {
    let (mut oracle, mut made) = (Oracle::default(), 0);
    for (number, step) in steps.iter().enumerate() {
        oracle.carried_out(1, step, is_told || number + 1 < steps.len());
        if let Op::MakeDir { name } = step {
            made += 1;
            oracle.is_made(name, made);
        }
    }
    oracle
}

fn wrong(steps: &[Op], found: &[(&str, Seen)]) -> Vec<String> {
    oracle_after(steps, true).compare(&dir(0, found), &Below::new()).wrong
}

fn may_be(steps: &[Op], found: &[(&str, Seen)]) -> bool {
    wrong(steps, found).is_empty()
}

#[test]
fn tree_when_a_file_in_it_is_synced_then_all_above_is_there() {
    let steps =
        |sync| [make("a"), make("a/b"), write("a/b/f", 10, sync), write("a/g", 20, Sync::None)];
    let whole = [("a", dir(1, &[("b", dir(2, &[("f", file(10))]))]))];
    for sync in [Sync::None, Sync::Fsync] {
        assert_eq!(wrong(&steps(sync), &whole), Vec::<String>::new());
        let is_free = sync == Sync::None;
        assert_eq!(may_be(&steps(sync), &[]), is_free);
        assert_eq!(may_be(&steps(sync), &[("a", dir(1, &[]))]), is_free);
        assert_eq!(may_be(&steps(sync), &[("a", dir(1, &[("b", dir(2, &[]))]))]), is_free);
    }
}

#[test]
fn directory_that_is_kept_when_moved_then_is_under_one_of_both_names_until_one_is_synced() {
    let begun = [make("a"), write("a/f", 10, Sync::Fsync), make("b"), sync_dir_of("b")];
    let a = || dir(1, &[("f", file(10))]);
    let before = [("a", a()), ("b", dir(2, &[]))];
    let after = [("b", dir(2, &[("c", a())]))];
    let both = [("a", a()), ("b", dir(2, &[("c", a())]))];
    let neither = [("b", dir(2, &[]))];
    for (last, may_be_before) in
        [(None, true), (Some(sync_dir_of("a")), false), (Some(sync_dir_of("b/c")), false)]
    {
        let steps: Vec<_> =
            begun.iter().cloned().chain([moved("a", "b/c", false)]).chain(last).collect();
        assert_eq!(may_be(&steps, &before), may_be_before, "{:?}", steps.last());
        assert_eq!(wrong(&steps, &after), Vec::<String>::new());
        assert!(!may_be(&steps, &both), "both: {:?}", steps.last());
        assert!(!may_be(&steps, &neither), "neither: {:?}", steps.last());
    }
    // Another directory below its name is not it.
    let steps: Vec<_> = begun.iter().cloned().chain([moved("a", "b/c", false)]).collect();
    assert!(!may_be(&steps, &[("b", dir(2, &[("c", dir(7, &[]))]))]));
}

#[test]
fn file_that_is_kept_when_moved_then_is_under_one_of_both_names() {
    let begun = [make("a"), make("b"), write("a/f", 10, Sync::Fsync), sync_dir_of("a")];
    let steps: Vec<_> = begun.into_iter().chain([moved("a/f", "b/f", false)]).collect();
    let tree = |a: &[(&str, Seen)], b: &[(&str, Seen)]| [("a", dir(1, a)), ("b", dir(2, b))];
    let f = || [("f", file(10))];
    assert!(may_be(&steps, &tree(&f(), &[])));
    assert!(may_be(&steps, &tree(&[], &f())));
    assert!(!may_be(&steps, &tree(&f(), &f())), "both");
    assert!(!may_be(&steps, &tree(&[], &[])), "neither");
    let linked = Op::Link { from: "b/f".into(), to: "a/g".into(), dir: false };
    let steps: Vec<_> = steps.into_iter().chain([linked]).collect();
    let g = || [("g", file(10))];
    assert!(may_be(&steps, &tree(&g(), &f())), "two names");
    let copy = [("g", seen(Kind::File(block(10)), 11, 0o644))];
    assert!(!may_be(&steps, &tree(&copy, &f())), "two files");
}

#[test]
fn tree_that_is_removed_and_made_again_when_that_is_synced_then_is_the_new_one() {
    let begun = [
        make("a"),
        write("a/f", 10, Sync::Fsync),
        removed("a", false),
        make("a"),
        write("a/f", 20, Sync::None),
    ];
    let synced: Vec<_> =
        begun.iter().cloned().chain([sync_dir_of("a"), sync_dir_of("a/f")]).collect();
    let (old, new) = (dir(1, &[("f", file(10))]), dir(2, &[("f", file(20))]));
    for found in [&[][..], &[("a", old.clone())], &[("a", dir(1, &[]))], &[("a", dir(2, &[]))]] {
        assert!(may_be(&begun, found), "{found:?}");
        assert!(!may_be(&synced, found), "{found:?}");
    }
    assert!(may_be(&begun, &[("a", new.clone())]));
    assert!(may_be(&synced, &[("a", new)]));
    // What was removed is not in what is new, whichever number that has.
    for number in [2, 3] {
        assert!(!may_be(&begun, &[("a", dir(number, &[("f", file(10)), ("g", file(20))]))]));
    }
    assert!(!may_be(&begun, &[("a", dir(2, &[("f", file(10))]))]));
}

#[test]
fn name_that_nobody_has_made_when_found_then_is_wrong() {
    let steps = [make("a"), write("a/f", 10, Sync::Fsync)];
    for stranger in [file(10), dir(9, &[]), seen(Kind::Way("1".into()), 9, 0o777)] {
        let found = [("a", dir(1, &[("f", file(10)), ("x", stranger)]))];
        assert!(!may_be(&steps, &found));
    }
}

#[test]
fn unnamed_file_when_it_gets_a_name_then_that_is_durable_with_its_directory() {
    for (sync, dir_too) in [(false, false), (true, false), (true, true)] {
        let (name, count) = ("a/f".to_string(), 1);
        let named = Op::Unnamed { name, count, stamp: 10, sync, dir: dir_too };
        let steps = [make("a"), sync_dir_of("a"), named];
        assert!(may_be(&steps, &[("a", dir(1, &[("f", file(10))]))]));
        assert_eq!(may_be(&steps, &[("a", dir(1, &[]))]), !dir_too);
        let empty = seen(Kind::File(Vec::new()), 5, 0o644);
        assert_eq!(may_be(&steps, &[("a", dir(1, &[("f", empty)]))]), !sync);
    }
}

#[test]
fn attributes_of_a_directory_when_synced_then_only_those_since_may_be_found() {
    let name = || "a".to_string();
    let steps = [
        make("a"),
        Op::Mode { name: name(), mode: 0o700, sync: true },
        Op::Mark { name: name(), mark: 3, sync: true },
        Op::Mark { name: name(), mark: 4, sync: false },
    ];
    for (mode, mark, is_allowed) in [
        (0o700, Some(3), true),
        (0o700, Some(4), true),
        (0o755, Some(4), false),
        (0o700, None, false),
        (0o700, Some(5), false),
    ] {
        let found = Seen { mode, mark, ..dir(1, &[]) };
        assert_eq!(may_be(&steps, &[("a", found)]), is_allowed, "{mode:o} {mark:?}");
    }
    assert!(!may_be(&steps, &[]), "fsync of a directory keeps it");
}

#[test]
fn directory_held_open_when_moved_and_synced_then_what_is_in_it_is_durable() {
    let steps = [
        make("a"),
        sync_dir_of("a"),
        Op::HoldDir { name: "a".into() },
        make("a/b"),
        moved("a", "c", false),
        Op::Renamed { name: "a".into(), to: "c".into() },
        Op::SyncHeld { name: "c".into() },
    ];
    for name in ["a", "c"] {
        assert!(may_be(&steps, &[(name, dir(1, &[("b", dir(2, &[]))]))]));
        assert!(!may_be(&steps, &[(name, dir(1, &[]))]));
    }
}

#[test]
fn symbolic_link_when_made_anew_then_says_what_one_of_both_said() {
    let way = |way, dir| Op::Symlink { name: "w".into(), way, dir };
    let steps = [way(1, true), Op::Remove { name: "w".into(), dir: false }, way(2, false)];
    let found = |says: &str| [("w", seen(Kind::Way(says.into()), 1, 0o777))];
    for (says, is_allowed) in [("1", true), ("2", true), ("3", false)] {
        assert_eq!(may_be(&steps, &found(says)), is_allowed);
    }
    assert!(may_be(&steps, &[]));
    assert!(!may_be(&steps[..1], &[]));
}

#[test]
fn tree_as_it_was_found_when_cut_again_then_is_as_it_was_found() {
    let steps = [make("a"), write("a/f", 10, Sync::Fsync), moved("a", "b", false), make("c")];
    let mut oracle = oracle_after(&steps, true);
    let b = || dir(1, &[("f", file(10))]);
    let found = dir(0, &[("b", b())]);
    assert_eq!(oracle.compare(&found, &Below::new()).wrong, Vec::<String>::new());
    assert_eq!(oracle.paths(), ["b/", "b/f"]);
    let again = |found: &[(&str, Seen)]| {
        let wrong = oracle.clone().compare(&dir(0, found), &Below::new()).wrong;
        wrong.is_empty()
    };
    assert!(again(&[("b", b())]));
    assert!(!again(&[("a", b())]));
    assert!(!again(&[("b", b()), ("c", dir(2, &[]))]));
    assert!(!again(&[]));
}

#[test]
fn file_that_comes_back_when_the_one_instead_of_it_was_not_synced_then_nobody_asks_for_its_mode() {
    let name = || "f".to_string();
    let mode = Op::Mode { name: name(), mode: 0o600, sync: true };
    let replace = Op::Replace { name: name(), count: 1, stamp: 20, sync: false, dir: true };
    let steps = [write("f", 10, Sync::Fsync), mode, replace];
    assert!(may_be(&steps, &[("f", file(10))]));
    assert!(may_be(&steps, &[("f", file(20))]));
    assert!(!may_be(&steps[..2], &[("f", file(10))]), "it was not replaced");
}

#[test]
fn what_is_held_open_when_removed_and_written_then_may_come_back_so_or_as_it_was() {
    let hold = Op::Hold { name: "a/f".into(), fresh: false };
    let gone = Op::Renamed { name: "a".into(), to: "gone1".into() };
    let held = "gone1/f".to_string();
    let over = Op::WriteHeld { name: held, at: 0, count: 1, stamp: 20, sync: true };
    let begun = [make("a"), write("a/f", 10, Sync::Fsync), hold, removed("a", false), gone, over];
    for (stamp, is_allowed) in [(10, true), (20, true), (30, false)] {
        assert_eq!(may_be(&begun, &[("a", dir(1, &[("f", file(stamp))]))]), is_allowed);
    }
    assert!(may_be(&begun, &[]));
}

#[test]
fn names_that_nobody_knows_when_asked_for_then_the_uppermost_are_told() {
    let oracle = oracle_after(&[make("a"), write("a/f", 10, Sync::None)], true);
    let a = dir(1, &[("f", file(10)), ("x", file(20))]);
    let found = dir(0, &[("a", a), ("b", dir(9, &[("f", file(30))]))]);
    assert_eq!(oracle.strangers(&found), ["a/x", "b"]);
}
