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

#[test]
fn record_that_cannot_be_decoded_when_repaired_then_it_is_named_and_its_name_and_turn_are_kept() {
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
    value.truncate(value.len() / 2);
    let write = vec![Write::Put(key, value)];
    damaged.execute(&MiniTransaction { write, ..MiniTransaction::default() }).unwrap();
    let before = keys(&damaged);
    drop(damaged);
    let store = MetaStore::open(Box::new(engine(dir.path())), &Options::default()).unwrap();
    let report = store.check(true).unwrap();
    assert!(report.violations.iter().any(|it| !it.repaired), "{report:?}");
    store.close();
    drop(store);
    let after = keys(&engine(dir.path()));
    let missing: Vec<_> = before.iter().filter(|it| !after.contains(it)).collect();
    assert!(missing.is_empty(), "gone are {missing:?}");
}
