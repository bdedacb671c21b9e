//! What a record says of bytes that were written back while something else changed.

use forebay_meta::{
    BytesHere, FileKind, Fingerprint, Ino, Link, Memory, MetaStore, NameIn, NewInode, Options,
    Queue, Record, RenameFlags, Timestamp,
};

const ROOT: Ino = Ino::ROOT;
const NOW: Timestamp = Timestamp { sec: 100, nsec: 5 };
const LATER: Timestamp = Timestamp { sec: 200, nsec: 0 };

fn store() -> MetaStore {
    MetaStore::open(Box::new(Memory::new()), &Options::default()).unwrap()
}

fn create(store: &MetaStore, name: &str) -> Ino {
    let new = NewInode::new(FileKind::Regular, 0o644, 10, 20);
    store.create(ROOT, name.as_bytes(), new, NOW).unwrap().ino
}

fn write(record: &mut Record) -> Queue {
    record.mark_dirty();
    record.spilled = true;
    Queue::Yes
}

fn clean(store: &MetaStore) {
    let report = store.check(false).unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

#[test]
fn bytes_written_back_when_attributes_changed_meanwhile_then_they_count_as_written() {
    let store = store();
    for bytes_too in [false, true] {
        let ino = create(&store, if bytes_too { "x" } else { "y" });
        store.update(ino, None, write).unwrap();
        let seen = store.get(ino).unwrap();
        store.claim(ino, seen.links.first().unwrap()).unwrap();
        if bytes_too {
            store.update(ino, None, write).unwrap();
        }
        let chmod = |record: &mut Record| {
            record.backing.attrs_differ = true;
            Queue::Yes
        };
        store.update(ino, None, chmod).unwrap();
        let facts = |record: &mut Record| {
            record.backing.attrs_differ = false;
            record.spilled = false;
            record.mark_clean();
        };
        // A count that no record has reports nothing.
        assert!(store.reconciled(ino, u64::MAX, facts).unwrap());
        assert!(store.get(ino).unwrap().is_dirty());
        assert!(store.reconciled(ino, seen.change, facts).unwrap());
        let record = store.get(ino).unwrap();
        assert!(record.backing.attrs_differ && record.queued.is_some());
        assert_eq!((record.is_dirty(), record.spilled), (bytes_too, bytes_too));
    }
    clean(&store);
}

#[test]
fn file_that_is_as_it_was_published_when_others_remove_it_then_goes_though_its_record_says_dirty() {
    let store = store();
    let [goes, renamed] = ["goes", "renamed"].map(|name| {
        let ino = create(&store, name);
        let seen = store.get(ino).unwrap();
        store.claim(ino, seen.links.first().unwrap()).unwrap();
        let facts = |record: &mut Record| record.backing.fingerprint = Some(Fingerprint::default());
        store.reconciled(ino, seen.change, facts).unwrap();
        store.update(ino, None, write).unwrap();
        ino
    });
    let flags = RenameFlags::default();
    store
        .rename(NameIn::new(ROOT, b"renamed"), NameIn::new(ROOT, b"new"), flags, LATER, &|_| false)
        .unwrap();
    let bytes = |_| BytesHere::AsPublished;
    let gone = store.vanished(ROOT, b"goes", goes, LATER, &bytes, &mut |_, _| ()).unwrap();
    assert_eq!((gone.removed, gone.kept.len()), (1, 0));
    store.claim(renamed, &Link::new(ROOT, *b"new")).unwrap();
    // It has a name that the backing store has not seen yet.
    let kept = store.vanished(ROOT, b"new", renamed, LATER, &bytes, &mut |_, _| ()).unwrap();
    assert_eq!((kept.removed, &kept.kept[..]), (0, &[renamed][..]));
    assert!(store.get(renamed).unwrap().is_dirty());
    clean(&store);
}

#[test]
fn record_changed_while_a_worker_was_at_it_then_stays_queued_with_its_differences() {
    let store = store();
    let ino = create(&store, "x");
    let seen = store.get(ino).unwrap();
    store.claim(ino, seen.links.first().unwrap()).unwrap();
    let chmod = |record: &mut Record| {
        record.backing.attrs_differ = true;
        record.mark_dirty();
        Queue::Yes
    };
    store.update(ino, None, chmod).unwrap();
    let facts = |record: &mut Record| {
        record.backing.links = seen.links.clone();
        record.backing.attrs_differ = false;
        record.mark_clean();
    };
    assert!(store.reconciled(ino, seen.change, facts).unwrap());
    let record = store.get(ino).unwrap();
    assert!(record.backing.attrs_differ && record.is_dirty() && record.queued.is_some());
    assert!(!store.reconciled(ino, record.change, facts).unwrap());
    assert_eq!(store.backlog_len(), 0);
    clean(&store);
}

#[test]
fn record_when_its_bytes_are_reported_as_written_back_then_surely_clean_only_after_a_sync() {
    let store = store();
    let ino = create(&store, "x");
    store.sync().unwrap();
    store.update(ino, None, write).unwrap();
    let report = |store: &MetaStore| {
        let seen = store.get(ino).unwrap();
        store.claim(ino, seen.links.first().unwrap()).unwrap();
        let facts = |record: &mut Record| {
            record.spilled = false;
            record.mark_clean();
        };
        store.reconciled(ino, seen.change, facts).unwrap();
        assert!(!store.get(ino).unwrap().is_dirty());
    };
    assert!(store.is_surely_clean(ino), "nothing says yet that it is clean");
    report(&store);
    assert!(!store.is_surely_clean(ino));
    store.sync().unwrap();
    assert!(store.is_surely_clean(ino));
    // Again, and what else is changed says nothing of that.
    store.update(ino, None, write).unwrap();
    report(&store);
    store.update(ino, None, |_| Queue::Yes).unwrap();
    assert!(!store.is_surely_clean(ino));
}
