//! Operations on the backing store that took effect though their answer got lost.

use super::*;

/// The rule with which the `n`th operation of a kind is done and its answer is lost.
fn lost(operation: Operation, n: u64) -> Rule {
    Rule { fault: Verdict::Lost(libc::EIO), ..Rule::nth(operation, n, libc::EIO) }
}

/// A bench whose store loses answers.
fn losing() -> (Bench, Arc<Flaky>) {
    let flaky = Arc::new(Flaky::new(1));
    (Bench::with(flaky.clone(), |_| {}), flaky)
}

#[test]
fn a_version_whose_commit_got_no_answer_when_written_again_then_replaced_without_conflict() {
    let (bench, flaky) = losing();
    bench.write("file", b"first");
    bench.drained();
    let ino = bench.write("file", b"second");
    flaky.set_rules(vec![lost(Operation::Commit, 1)]);
    bench.node.writeback.reconcile(ino).expect_err("the answer was lost");
    assert_eq!(bench.read("file"), b"second");
    bench.write("file", b"the third");
    bench.drained();
    assert_eq!(bench.read("file"), b"the third");
    assert_eq!((bench.node.writeback.conflicts().0, bench.names("")), (0, vec!["file".to_owned()]));
}

#[test]
fn a_version_whose_commit_got_no_answer_when_removed_then_gone_without_conflict() {
    let (bench, flaky) = losing();
    bench.write("file", b"first");
    bench.drained();
    let ino = bench.write("file", b"second");
    flaky.set_rules(vec![lost(Operation::Commit, 1)]);
    bench.node.writeback.reconcile(ino).expect_err("the answer was lost");
    bench.unlink("file");
    bench.drained();
    assert_eq!((bench.node.writeback.conflicts().0, bench.names("")), (0, vec![]));
}

#[test]
fn times_whose_change_got_no_answer_when_removed_then_gone_without_conflict() {
    let (bench, flaky) = losing();
    let ino = bench.write("file", b"bytes");
    bench.drained();
    let update = |record: &mut Record| {
        record.attr.mtime = forebay_meta::Timestamp::new(1_000_000_000, 0);
        record.backing.attrs_differ = true;
        Queue::Yes
    };
    bench.node.meta.update(ino, Some(crate::clock::wall_time()), update).expect("it is there");
    flaky.set_rules(vec![lost(Operation::SetAttributes, 1)]);
    bench.node.writeback.reconcile(ino).expect_err("the answer was lost");
    bench.unlink("file");
    bench.drained();
    assert_eq!((bench.node.writeback.conflicts().0, bench.names("")), (0, vec![]));
}

#[test]
fn a_directory_whose_making_got_no_answer_twice_when_renamed_then_there_is_one() {
    let (bench, flaky) = losing();
    let ino = bench.mkdir("old");
    flaky.set_rules(vec![Rule::nth(Operation::Create, 1, libc::EIO)]);
    bench.node.writeback.reconcile(ino).expect_err("not made");
    flaky.set_rules(vec![lost(Operation::Create, 1)]);
    bench.node.writeback.reconcile(ino).expect_err("the answer was lost");
    bench.rename("old", "new", false);
    bench.drained();
    assert_eq!(bench.names(""), ["new"]);
}

#[test]
fn a_second_name_when_the_first_is_only_claimed_then_not_made_of_what_stands_there() {
    let bench = Bench::new();
    let old = bench.make("one", FileKind::Symlink, 0o777);
    bench.drained();
    bench.rename("one", "elsewhere", false);
    let new = bench.write("one", b"bytes");
    {
        let _busy = bench.node.writeback.own(old, Duration::ZERO).expect("nobody works on it");
        let mut batch = super::super::Batch::new(&bench.node.writeback);
        let claimed = bench.node.writeback.reconcile_in(new, &mut batch);
        assert!(matches!(claimed, Err(crate::error::NodeError::Busy)), "{claimed:?}");
    }
    bench.node.meta.link(new, Ino::ROOT, b"two", crate::clock::wall_time()).expect("linked");
    {
        let _busy = bench.node.writeback.own(old, Duration::ZERO).expect("nobody works on it");
        bench
            .node
            .writeback
            .reconcile_in(new, &mut super::super::Batch::new(&bench.node.writeback))
            .ok();
    }
    bench.drained();
    assert_eq!((bench.read("one"), bench.read("two")), (b"bytes".to_vec(), b"bytes".to_vec()));
}

#[test]
fn a_file_that_only_claims_its_name_when_another_clears_its_old_one_then_still_made() {
    let bench = Bench::new();
    let empty = bench.make("here", FileKind::Regular, 0o600);
    let meta = &bench.node.meta;
    let link = |name: &str| forebay_meta::Link::new(Ino::ROOT, name.as_bytes());
    // As an interrupted worker leaves it: nothing was made under either name.
    meta.claim(empty, &link("there")).expect("claimed");
    meta.claim(empty, &link("here")).expect("claimed");
    let other = bench.make("there", FileKind::Symlink, 0o777);
    bench.node.writeback.reconcile(other).expect("made");
    bench.drained();
    assert_eq!(bench.names(""), ["here", "there"]);
}

#[test]
fn two_removed_claimants_of_a_name_when_a_third_takes_it_then_no_conflict() {
    let (bench, flaky) = losing();
    bench.write("name", b"first");
    bench.drained();
    let second = bench.write("other", b"the second");
    bench.rename("other", "name", false);
    // Replaced, and neither the one nor the other could be reported.
    for nth in 1..6 {
        flaky.set_rules(vec![Rule::nth(Operation::Sync, nth, libc::EIO)]);
        if bench.node.writeback.reconcile(second).is_err() && bench.read("name") == b"the second" {
            break;
        }
    }
    flaky.set_rules(vec![]);
    assert_eq!(bench.node.meta.stale_inodes_at(Ino::ROOT, b"name").expect("stale names").len(), 1);
    bench.write("newest", b"the third one");
    bench.rename("newest", "name", false);
    assert_eq!(bench.node.meta.stale_inodes_at(Ino::ROOT, b"name").expect("stale names").len(), 2);
    bench.drained();
    assert_eq!(bench.read("name"), b"the third one");
    assert_eq!((bench.node.writeback.conflicts().0, bench.names("")), (0, vec!["name".to_owned()]));
}

#[test]
fn file_that_was_moved_when_it_could_not_be_looked_at_afterwards_then_not_taken_for_changed() {
    for nth in 1..16 {
        let (bench, flaky) = losing();
        bench.write("other", b"it is in the way");
        let ino = bench.write("file", b"first");
        bench.drained();
        bench.rename("file", "there", false);
        flaky.set_rules(vec![lost(Operation::Stat, nth)]);
        let _failed_or_not = bench.node.writeback.reconcile(ino);
        flaky.set_rules(Vec::new());
        bench.write("there", b"second");
        bench.drained();
        assert_eq!(bench.read("there"), b"second", "look {nth}");
        let names = vec!["other".to_owned(), "there".to_owned()];
        assert_eq!((bench.node.writeback.conflicts().0, bench.names("")), (0, names), "look {nth}");
    }
}

/// What a server says when it has done what it was asked for, and is asked once more since its answer was
/// lost, as NFS does.
const ASKED_TWICE: [(Operation, i32); 7] = [
    (Operation::Create, libc::EEXIST),
    (Operation::Link, libc::EEXIST),
    (Operation::Rename, libc::ENOENT),
    (Operation::Remove, libc::ENOENT),
    (Operation::Commit, libc::ENOENT),
    (Operation::Limbo, libc::ENOENT),
    (Operation::Rename, libc::ESTALE),
];

#[test]
fn changes_that_a_server_was_asked_for_twice_when_drained_then_nothing_is_lost_or_a_conflict() {
    for (operation, errno) in ASKED_TWICE {
        for nth in 1..=10 {
            let (bench, flaky) = losing();
            for name in ["moved", "over", "by", "gone", "x", "y", "linked"] {
                bench.write(name, name.as_bytes());
            }
            for dir in ["dir", "empty"] {
                bench.mkdir(dir);
            }
            bench.write("dir/in", b"inside");
            bench.drained();
            let linked = bench.find(Ino::ROOT, "linked").expect("there").ino;
            bench
                .node
                .meta
                .link(linked, Ino::ROOT, b"second", crate::clock::wall_time())
                .expect("linked");
            bench.rename("moved", "there", false);
            bench.rename("by", "over", false);
            bench.rename("x", "y", true);
            bench.rename("dir", "other", false);
            bench.unlink("gone");
            bench.rmdir("empty");
            bench.mkdir("new");
            bench.write("new/file", b"new file");
            bench.make("symlink", FileKind::Symlink, 0o777);
            let lost = Verdict::Lost(errno);
            flaky.set_rules(vec![Rule { fault: lost, ..Rule::nth(operation, nth, errno) }]);
            bench.drained();
            let at = format!("{operation:?} {nth} answered with {errno}");
            assert_eq!(
                bench.node.writeback.conflicts().0,
                0,
                "{at}: {:?}",
                bench.node.writeback.conflicts()
            );
            let wanted = ["linked", "new", "other", "over", "second", "symlink", "there", "x", "y"];
            assert_eq!(bench.names(""), wanted, "{at}");
            for (name, bytes) in [
                ("linked", "linked"),
                ("new/file", "new file"),
                ("other/in", "inside"),
                ("over", "by"),
                ("second", "linked"),
                ("there", "moved"),
                ("x", "y"),
                ("y", "x"),
            ] {
                assert_eq!(bench.read(name), bytes.as_bytes(), "{name}, {at}");
                let (dir, last) = bench.split(name);
                assert!(bench.find(dir, last).is_some(), "{name} is gone here, {at}");
            }
        }
    }
}

/// A rename puts the names of a file in another order here than in the backing store.
#[test]
fn renamed_file_of_two_names_when_its_change_in_place_got_no_answer_then_written_again() {
    let (bench, flaky) = losing();
    let ino = bench.write("one", b"first");
    let linked = bench.node.meta.link(ino, Ino::ROOT, b"two", clock::wall_time());
    linked.expect("it can be linked");
    bench.drained();
    bench.rename("one", "three", false);
    bench.drained();
    let record = bench.node.meta.get(ino).expect("known");
    assert!(record.links.same(&record.backing.links) && record.links != record.backing.links);
    bench.fill(ino, b"the second");
    flaky.set_rules(vec![lost(Operation::SetAttributes, 1)]);
    bench.node.writeback.reconcile(ino).expect_err("the answer was lost");
    flaky.set_rules(vec![]);
    bench.drained();
    for name in ["two", "three"] {
        assert_eq!(bench.read(name), b"the second", "{name}");
    }
    assert_eq!(bench.node.writeback.conflicts().0, 0);
}
