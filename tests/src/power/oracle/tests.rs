//! What may be found after steps that are written out.

use super::*;
use crate::power::work::RWF_DSYNC;

fn write(name: &str, (at, count): (usize, usize), stamp: u64, sync: Sync) -> Op {
    Op::Write { name: name.into(), at, count, stamp, fresh: false, sync }
}

/// What a file system shows of a file that was written, written over and moved over a durable one.
fn is_allowed(sync: Sync, stamps: &[u64]) -> bool {
    let mut oracle = Oracle::default();
    oracle.add("old", 2, 100);
    let steps = [
        write("new", (0, 2), 10, Sync::None),
        write("new", (1, 1), 20, sync),
        write("new", (1, 1), 30, Sync::None),
        write("new", (2, 1), 40, Sync::None),
        Op::Move { from: "new".into(), to: "old".into(), dir: false },
    ];
    steps.iter().for_each(|step| oracle.carried_out(1, step, true));
    let found: Vec<u8> = stamps.iter().flat_map(|stamp| block(*stamp)).collect();
    oracle.clone().found(&oracle, "old", Some(&found), &Below::new()).0.is_none()
}

#[test]
fn file_replaced_without_a_sync_when_written_back_before_it_changed_then_it_may_be_as_it_was_then()
{
    let mut oracle = Oracle::default();
    let below = Below::new();
    oracle.add("name", 1, 100);
    for stamp in [10, 20] {
        oracle.carried_out(1, &write("name", (0, 1), stamp, Sync::None), true);
        let before = oracle.clone();
        assert_eq!(oracle.found(&before, "name", Some(&block(stamp)), &below).0, None);
        if stamp == 10 {
            oracle.all_written_back();
        }
    }
    let (name, sync, dir) = ("name".to_string(), false, true);
    let replace = Op::Replace { name, count: 1, stamp: 30, sync, dir };
    oracle.carried_out(2, &replace, true);
    for (stamp, may_be) in [(10, true), (20, true), (30, true), (100, false)] {
        let found = oracle.clone().found(&oracle, "name", Some(&block(stamp)), &below).0;
        assert_eq!(found.is_none(), may_be, "{stamp}: {found:?}");
    }
}

#[test]
fn file_found_as_nobody_has_synced_it_when_changed_then_may_be_as_it_was_before() {
    let mut oracle = Oracle::default();
    let below = Below::new();
    oracle.add("name", 1, 100);
    for stamp in [10, 20, 30] {
        oracle.carried_out(1, &write("name", (0, 1), stamp, Sync::None), true);
    }
    // The last is gone.
    let before = oracle.clone();
    assert_eq!(oracle.found(&before, "name", Some(&block(20)), &below).0, None);
    oracle.carried_out(2, &write("name", (0, 1), 40, Sync::None), true);
    for (stamp, may_be) in [(100, true), (10, true), (20, true), (30, false), (40, true)] {
        let wrong = oracle.clone().found(&oracle, "name", Some(&block(stamp)), &below).0;
        assert_eq!(wrong.is_none(), may_be, "{stamp}: {wrong:?}");
    }
}

#[test]
fn file_that_replaced_one_when_written_and_moved_over_another_then_may_be_as_it_first_replaced() {
    let mut oracle = Oracle::default();
    oracle.add("old", 2, 100);
    oracle.add("older", 2, 200);
    let (name, sync, dir) = ("old".to_string(), false, false);
    let steps = [
        Op::Replace { name, count: 2, stamp: 10, sync, dir },
        write("old", (1, 1), 20, Sync::None),
        Op::Move { from: "old".into(), to: "older".into(), dir: true },
    ];
    steps.iter().for_each(|step| oracle.carried_out(1, step, true));
    for (stamps, may_be) in
        [([10, 11], true), ([10, 20], true), ([200, 201], true), ([10, 101], false)]
    {
        let found: Vec<u8> = stamps.iter().flat_map(|stamp| block(*stamp)).collect();
        let wrong = oracle.clone().found(&oracle, "older", Some(&found), &Below::new()).0;
        assert_eq!(wrong.is_none(), may_be, "{stamps:?}: {wrong:?}");
    }
}

#[test]
fn file_moved_over_a_durable_one_when_synced_in_part_then_that_part_may_be_as_it_was_then() {
    for sync in [Sync::None, RWF_DSYNC, Sync::Fsync] {
        assert!(is_allowed(sync, &[100, 101]), "the old one");
        assert!(is_allowed(sync, &[10, 30, 40]), "the new one");
        assert!(!is_allowed(sync, &[10, 30]), "without its end");
        assert!(!is_allowed(sync, &[10, 50, 40]), "what was never written");
    }
    assert!(is_allowed(RWF_DSYNC, &[10, 20, 40]), "as synced");
    assert!(is_allowed(Sync::Fsync, &[10, 20, 40]), "as synced");
    assert!(!is_allowed(Sync::None, &[10, 20, 40]), "nobody has synced that");
}

/// What may be found under a name after these steps, of which each is done.
fn after(steps: &[Op], name: &str, found: Option<u64>) -> bool {
    let mut oracle = Oracle::default();
    oracle.add("old", 1, 100);
    steps.iter().for_each(|step| oracle.carried_out(1, step, true));
    let found = found.map(block);
    oracle.clone().found(&oracle, name, found.as_deref(), &Below::new()).0.is_none()
}

#[test]
fn files_whose_exchange_is_under_way_when_one_is_empty_then_each_may_have_its_name_still() {
    let mut oracle = Oracle::default();
    oracle.add("a", 0, 0);
    let exchange = Op::Exchange { one: "a".into(), other: "b".into(), dir: true };
    let steps = [write("b", (0, 1), 10, Sync::None), Op::SyncDir { name: "b".into() }];
    steps.iter().for_each(|step| oracle.carried_out(1, step, true));
    oracle.carried_out(1, &exchange, false);
    let before = oracle.clone();
    assert_eq!(oracle.found(&before, "a", Some(&[]), &Below::new()).0, None);
    assert_eq!(oracle.found(&before, "b", Some(&block(10)), &Below::new()).0, None);
}

/// Both names may show the file that was about to be empty: what one of them shows says nothing of the
/// other.
#[test]
fn files_whose_exchange_is_under_way_when_one_was_written_anew_then_each_stays_as_it_was_found() {
    let mut oracle = Oracle::default();
    oracle.add("b", 0, 0);
    let (name, sync, dir) = ("a".to_string(), true, true);
    let replace = Op::Replace { name, count: 1, stamp: 10, sync, dir };
    let mut anew = write("a", (0, 2), 20, Sync::None);
    if let Op::Write { fresh, .. } = &mut anew {
        *fresh = true;
    }
    [replace, anew].iter().for_each(|step| oracle.carried_out(1, step, true));
    let exchange = Op::Exchange { one: "a".into(), other: "b".into(), dir: true };
    oracle.carried_out(1, &exchange, false);
    let whole = [block(20), block(21)].concat();
    for _ in 0..2 {
        let before = oracle.clone();
        assert_eq!(oracle.found(&before, "a", Some(&whole), &Below::new()).0, None);
        assert_eq!(oracle.found(&before, "b", Some(&[]), &Below::new()).0, None);
        oracle.tell_apart(&BTreeMap::from([("a".to_string(), 1), ("b".to_string(), 2)]));
    }
}

#[test]
fn file_moved_over_a_durable_one_when_that_is_lost_then_its_first_name_has_what_was_written_since()
{
    let mut oracle = Oracle::default();
    oracle.add("old", 1, 100);
    let steps = [
        write("new", (0, 1), 10, Sync::None),
        Op::Move { from: "new".into(), to: "old".into(), dir: false },
        write("old", (0, 1), 20, Sync::None),
    ];
    steps.iter().for_each(|step| oracle.carried_out(1, step, true));
    for stamp in [10, 20] {
        let found = oracle.clone().found(&oracle, "new", Some(&block(stamp)), &Below::new());
        assert_eq!(found.0, None, "{stamp}");
    }
}

fn move_over_old() -> Op {
    Op::Move { from: "new".into(), to: "old".into(), dir: true }
}

#[test]
fn file_moved_durably_over_another_when_a_part_of_it_was_synced_then_the_other_is_gone() {
    for (sync, may_be_old) in [(Sync::None, true), (Sync::Syncfs, true), (RWF_DSYNC, false)] {
        let steps = [write("new", (0, 1), 10, sync), move_over_old()];
        assert_eq!(after(&steps, "old", Some(100)), may_be_old, "{sync:?}");
        assert!(after(&steps, "old", Some(10)));
    }
    let over = write("new", (0, 1), 20, Sync::None);
    let steps = [write("new", (0, 1), 10, RWF_DSYNC), over, move_over_old()];
    assert!(after(&steps, "old", Some(100)), "nothing of it is durable any more");
}

#[test]
fn files_exchanged_or_linked_when_that_is_durable_then_each_name_has_its_file() {
    let new = write("new", (0, 1), 10, Sync::Fsync);
    let (one, other) = ("new".to_string(), "old".to_string());
    for (dir, may_be) in [(false, true), (true, false)] {
        let exchange = Op::Exchange { one: one.clone(), other: other.clone(), dir };
        let steps = [new.clone(), exchange];
        assert_eq!(after(&steps, "old", Some(100)), may_be);
        assert!(after(&steps, "old", Some(10)));
        assert!(!after(&steps, "new", None));
        let link = Op::Link { from: one.clone(), to: "link".into(), dir };
        let steps = [new.clone(), link.clone()];
        assert_eq!(after(&steps, "link", None), may_be);
        assert!(after(&steps, "link", Some(10)));
        let synced = write("new", (0, 1), 20, Sync::Fsync);
        assert!(!after(&[new.clone(), link, synced], "link", None), "fsync has all names");
    }
}

/// Whether a name has permissions that it may have.
fn has_mode(oracle: &mut Oracle, name: &str, mode: u32) -> bool {
    let State::File(file) = oracle.now(name) else { panic!("{name} is no file") };
    oracle.files[file].traits.found(mode, None).is_none()
}

#[test]
fn permissions_when_synced_then_only_those_since_may_be_found() {
    let mut oracle = Oracle::default();
    oracle.add("old", 1, 100);
    let mode = |mode, sync| Op::Mode { name: "old".into(), mode, sync };
    for step in [mode(0o600, false), mode(0o640, true), mode(0o660, false)] {
        oracle.carried_out(1, &step, true);
    }
    for (mode, may_be) in [(0o644, false), (0o600, false), (0o640, true), (0o660, true)] {
        assert_eq!(has_mode(&mut oracle.clone(), "old", mode), may_be, "{mode:o}");
    }
}

#[test]
fn file_written_anew_and_moved_over_another_when_written_back_there_then_may_be_as_it_was_before() {
    let mut oracle = Oracle::default();
    oracle.add("old", 1, 100);
    oracle.add("saved", 1, 200);
    let steps = [
        // It is longer now.
        write("saved", (0, 2), 10, Sync::None),
        Op::Move { from: "saved".into(), to: "old".into(), dir: true },
    ];
    steps.iter().for_each(|step| oracle.carried_out(1, step, true));
    for (place, may_be) in [("saved", true), ("old", true), ("other", false)] {
        let below = Below::from([(place.to_string(), block(200))]);
        let found = oracle.clone().found(&oracle, "old", Some(&block(200)), &below);
        assert_eq!(found.0.is_none(), may_be, "as the backing store has {place}");
    }
}

#[test]
fn permissions_when_found_as_they_were_before_a_change_then_a_sync_is_of_these() {
    let (mut oracle, below) = (Oracle::default(), Below::new());
    oracle.add("name", 1, 100);
    let mode = |mode, sync| Op::Mode { name: "name".into(), mode, sync };
    oracle.carried_out(1, &mode(0o600, true), true);
    oracle.carried_out(1, &mode(0o640, false), true);
    let before = oracle.clone();
    assert_eq!(oracle.found(&before, "name", Some(&block(100)), &below).0, None);
    assert!(has_mode(&mut oracle, "name", 0o600));
    oracle.carried_out(2, &write("name", (0, 1), 20, Sync::Fsync), true);
    assert!(has_mode(&mut oracle, "name", 0o600));
    assert!(!has_mode(&mut oracle, "name", 0o640));
}
