//! Inode numbers are given once, whatever a namespace is told to number above.

use forebay_meta::{Embedded, EmbeddedOptions, MetaStore, NewInode, Options};
use forebay_types::{FileKind, Ino, Timestamp};

fn open(dir: &std::path::Path) -> MetaStore {
    let engine = Embedded::open(dir, &EmbeddedOptions::default()).unwrap();
    MetaStore::open(Box::new(engine), &Options::default()).unwrap()
}

fn sequence_of_a_new_file(store: &MetaStore, name: &str) -> u64 {
    let new = NewInode::new(FileKind::Regular, 0o644, 0, 0);
    let made = store.create(Ino::ROOT, name.as_bytes(), new, Timestamp::new(1, 0)).unwrap();
    made.ino.0 & ((1 << Ino::SEQUENCE_BITS) - 1)
}

#[test]
fn numbers_when_told_to_lie_above_what_was_given_long_ago_then_none_is_given_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let first = sequence_of_a_new_file(&store, "first");
    let second = sequence_of_a_new_file(&store, "second");
    store.number_above(Ino(0)).unwrap();
    assert!(sequence_of_a_new_file(&store, "third") > second);
    drop(store);
    for above in [0, 1, first] {
        let store = open(dir.path());
        store.number_above(Ino(above)).unwrap();
        let next = sequence_of_a_new_file(&store, &format!("after {above}"));
        assert!(next > second, "above {above}: {next}, which is given");
    }
    let store = open(dir.path());
    store.number_above(Ino(1 << 30)).unwrap();
    assert!(sequence_of_a_new_file(&store, "last") > 1 << 30);
}
