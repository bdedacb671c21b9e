//! A record that can't be decoded: it is named, and what speaks of it is kept.

use forebay_meta::{Embedded, EmbeddedOptions, Engine, Key, MetaStore, MiniTransaction};
use forebay_meta::{NewInode, Options, Write};
use forebay_types::{FileKind, Ino, Timestamp};

fn engine(dir: &std::path::Path) -> Embedded {
    Embedded::open(dir, &EmbeddedOptions::default()).unwrap()
}

fn keys(engine: &dyn Engine) -> Vec<(Key, Vec<u8>)> {
    engine.sweep(None, 10_000).unwrap()
}

/// A namespace with a file, and something done to the value of its record by a program that is not this one.
fn with_a_record(
    change: fn(&mut Vec<u8>),
    others: &[Key],
) -> (tempfile::TempDir, Vec<(Key, Vec<u8>)>) {
    let dir = tempfile::tempdir().unwrap();
    let store = MetaStore::open(Box::new(engine(dir.path())), &Options::default()).unwrap();
    let new = NewInode::new(FileKind::Regular, 0o644, 0, 0);
    let ino = store.create(Ino::ROOT, b"file", new, Timestamp::new(1, 0)).unwrap().ino;
    store.sync().unwrap();
    drop(store);
    let damaged = engine(dir.path());
    let is_its = |key: &Key| key.bytes() == [&b"I"[..], &ino.0.to_be_bytes()].concat();
    let mut all = keys(&damaged).into_iter();
    let (key, mut value) = all.find(|(key, _)| is_its(key)).expect("a record");
    change(&mut value);
    let mut write = vec![Write::Put(key, value)];
    write.extend(others.iter().map(|key| Write::Put(key.clone(), b"new".to_vec())));
    damaged.execute(&MiniTransaction { write, ..MiniTransaction::default() }).unwrap();
    let before = keys(&damaged);
    drop(damaged);
    (dir, before)
}

fn missing_after(dir: &std::path::Path, before: &[(Key, Vec<u8>)]) -> Vec<(Key, Vec<u8>)> {
    let after = keys(&engine(dir));
    before.iter().filter(|it| !after.contains(it)).cloned().collect()
}

#[test]
fn record_that_cannot_be_decoded_when_repaired_then_it_is_named_and_its_name_and_turn_are_kept() {
    let (dir, before) = with_a_record(|value| value.truncate(value.len() / 2), &[]);
    let store = MetaStore::open(Box::new(engine(dir.path())), &Options::default()).unwrap();
    let report = store.check(true).unwrap();
    assert!(report.violations.iter().any(|it| !it.repaired), "{report:?}");
    store.close();
    drop(store);
    assert_eq!(missing_after(dir.path(), &before), []);
}

/// The check ended at the first of them, with all that it had repaired by then: also what only that version
/// knows, which it took for something that nobody needs.
#[test]
fn record_of_a_newer_version_when_repaired_then_it_is_named_all_is_checked_and_nothing_is_changed()
{
    let unknown = Key::new(0, b"~12345678");
    let (dir, before) = with_a_record(|value| value[0] = 9, &[unknown]);
    for repair in [false, true] {
        let store = MetaStore::open(Box::new(engine(dir.path())), &Options::default()).unwrap();
        let report = store.check(repair).unwrap();
        let told: Vec<_> = report.violations.iter().map(|it| &*it.what).collect();
        let is_told =
            |what: &[&str]| told.iter().any(|it| what.iter().all(|part| it.contains(part)));
        assert!(is_told(&["file", "newer Forebay"]) && is_told(&["unknown key"]), "{told:?}");
        assert!(report.violations.iter().all(|it| !it.repaired), "{told:?}");
        store.close();
        drop(store);
        assert_eq!(missing_after(dir.path(), &before), []);
    }
}
