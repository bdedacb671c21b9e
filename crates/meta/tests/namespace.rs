//! The store's rules one by one, on the engine in memory. `namespace_partitioned.rs` runs them on
//! one that commits only within a partition.

use std::sync::Arc;
use std::time::Duration;

use forebay_meta::{
    Attr, BytesHere, Error, FileKind, Fingerprint, Found, Ino, Link, Links, Memory, MetaStore,
    NameIn, NewInode, Options, Queue, Record, Refreshed, RenameFlags, Seq, Spanning, Timestamp,
    Vanished, XattrFlags, XattrState,
};

const ROOT: Ino = Ino::ROOT;
const NOW: Timestamp = Timestamp { sec: 100, nsec: 5 };
const LATER: Timestamp = Timestamp { sec: 200, nsec: 0 };

fn memory() -> Memory {
    match module_path!().starts_with("namespace_partitioned") {
        true => Memory::partitioned(),
        false => Memory::new(),
    }
}

fn store() -> MetaStore {
    MetaStore::open(Box::new(memory()), &Options::default()).unwrap()
}

fn file() -> NewInode {
    NewInode::new(FileKind::Regular, 0o644, 10, 20)
}

fn create(store: &MetaStore, dir: Ino, name: &str) -> Arc<Record> {
    store.create(dir, name.as_bytes(), file(), NOW).unwrap()
}

fn mkdir(store: &MetaStore, dir: Ino, name: &str) -> Arc<Record> {
    let new = NewInode::new(FileKind::Directory, 0o755, 10, 20);
    store.create(dir, name.as_bytes(), new, NOW).unwrap()
}

fn named(dir: Ino, name: &[u8]) -> NameIn<'_> {
    NameIn::new(dir, name)
}

fn rename(store: &MetaStore, from: &str, to: &str) {
    let flags = RenameFlags::default();
    let (from, to) = (named(ROOT, from.as_bytes()), named(ROOT, to.as_bytes()));
    store.rename(from, to, flags, LATER, &|_| false).unwrap();
}

fn found(name: &str, kind: FileKind, nlink: u32, backing_ino: u64) -> Found {
    let attr = Attr {
        kind,
        perm: 0o600,
        uid: 1,
        gid: 2,
        nlink,
        rdev: 0,
        size: 7,
        atime: NOW,
        mtime: NOW,
        ctime: NOW,
        btime: NOW,
    };
    let fingerprint =
        Fingerprint { size: 7, mtime: NOW, ctime: NOW, ino: backing_ino, ..Default::default() };
    Found { name: name.as_bytes().into(), attr, target: None, fingerprint }
}

/// What a worker does that puts everything in line.
fn reconcile_all(store: &MetaStore) {
    while let Some((_, ino)) = store.backlog_oldest().unwrap() {
        let seen = store.get(ino).unwrap();
        let all = |record: &mut Record| {
            record.backing.links = seen.links.clone();
            record.backing.attrs_differ = false;
            record.backing.xattrs_differ = false;
            record.mark_clean();
        };
        assert!(!store.reconciled(ino, seen.change, all).unwrap());
    }
}

fn clean(store: &MetaStore) {
    let report = store.check(false).unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

fn inos(queued: &[(Seq, Ino)]) -> Vec<Ino> {
    queued.iter().map(|(_, ino)| *ino).collect()
}

#[test]
fn file_created_and_removed_before_its_turn_then_nothing_is_left() {
    let store = store();
    let before = store.counts();
    let ino = create(&store, ROOT, "x").ino;
    assert_eq!(store.backlog_len(), 1);
    let unlinked = store.unlink(ROOT, b"x", LATER, false).unwrap();
    assert!(unlinked.gone);
    assert_eq!(store.counts(), before);
    assert!(store.backlog(Seq(0), 10).unwrap().is_empty());
    assert!(matches!(store.get(ino), Err(Error::Stale(_))));
    clean(&store);
}

#[test]
fn file_created_renamed_and_changed_then_has_one_place_in_the_backlog() {
    let store = store();
    let ino = create(&store, ROOT, "x").ino;
    let other = create(&store, ROOT, "later").ino;
    rename(&store, "x", "y");
    let chmod = |record: &mut Record| {
        record.attr.perm = 0o600;
        record.backing.attrs_differ = true;
        Queue::Yes
    };
    let record = store.update(ino, Some(LATER), chmod).unwrap();
    assert_eq!((record.attr.perm, record.attr.ctime), (0o600, LATER));
    assert_eq!(inos(&store.backlog(Seq(0), 10).unwrap()), [ino, other]);
    store.requeue_last(ino).unwrap();
    assert_eq!(inos(&store.backlog(Seq(0), 10).unwrap()), [other, ino]);
    let first = store.backlog(Seq(0), 1).unwrap();
    assert_eq!(inos(&store.backlog(first[0].0, 10).unwrap()), [ino]);
    clean(&store);
}

#[test]
fn removed_file_that_the_backing_store_has_then_stays_as_a_tombstone_and_stale_backing_name() {
    let store = store();
    store.import(ROOT, &[found("old", FileKind::Regular, 1, 9)]).unwrap();
    let ino = store.lookup(ROOT, b"old").unwrap().unwrap().ino;
    assert_eq!(store.backlog_len(), 0);
    let unlinked = store.unlink(ROOT, b"old", LATER, false).unwrap();
    assert!(unlinked.gone && unlinked.record.attr.nlink == 0);
    assert_eq!(store.stale_names(ROOT).unwrap(), [(b"old"[..].into(), ino)]);
    assert_eq!(store.stale_inodes_at(ROOT, b"old").unwrap(), [ino]);
    assert_eq!(store.backing_path(ino).unwrap().unwrap(), b"old");
    // The listing read before the removal reached the backing store must not bring it back.
    assert_eq!(store.import(ROOT, &[found("old", FileKind::Regular, 1, 9)]).unwrap(), 0);
    assert!(store.lookup(ROOT, b"old").unwrap().is_none());
    clean(&store);
    reconcile_all(&store);
    assert!(matches!(store.get(ino), Err(Error::Stale(_))));
    assert!(store.stale_names(ROOT).unwrap().is_empty());
    assert_eq!(store.import(ROOT, &[found("old", FileKind::Regular, 1, 10)]).unwrap(), 1);
    clean(&store);
}

#[test]
fn renamed_directory_then_leads_to_its_old_backing_path_until_reconciled() {
    let store = store();
    store.import(ROOT, &[found("d", FileKind::Directory, 3, 2)]).unwrap();
    let dir = store.lookup(ROOT, b"d").unwrap().unwrap().ino;
    store.import(dir, &[found("f", FileKind::Regular, 1, 3)]).unwrap();
    let inside = store.lookup(dir, b"f").unwrap().unwrap().ino;
    rename(&store, "d", "e");
    assert_eq!(store.path(inside).unwrap().unwrap(), b"e/f");
    assert_eq!(store.backing_path(inside).unwrap().unwrap(), b"d/f");
    assert_eq!(store.stale_inodes_at(ROOT, b"d").unwrap(), [dir]);
    assert_eq!(inos(&store.backlog(Seq(0), 10).unwrap()), [dir]);
    reconcile_all(&store);
    assert_eq!(store.backing_path(inside).unwrap().unwrap(), b"e/f");
    let new = create(&store, dir, "new").ino;
    assert_eq!(store.backing_path(new).unwrap(), None);
    clean(&store);
}

#[test]
fn file_removed_after_a_worker_claimed_its_name_then_is_remembered() {
    let store = store();
    let ino = create(&store, ROOT, "x").ino;
    store.claim(ino, &Link::new(ROOT, &b"x"[..])).unwrap();
    store.unlink(ROOT, b"x", LATER, false).unwrap();
    assert_eq!(store.stale_inodes_at(ROOT, b"x").unwrap(), [ino]);
    assert_eq!(store.backlog_len(), 1);
    clean(&store);
    reconcile_all(&store);
    assert_eq!(store.counts().inodes, 1);
}

#[test]
fn orphan_when_released_then_goes_unless_the_backing_store_has_it() {
    let store = store();
    let ino = create(&store, ROOT, "x").ino;
    let unlinked = store.unlink(ROOT, b"x", LATER, true).unwrap();
    assert!(!unlinked.gone && unlinked.record.orphan);
    assert_eq!((store.orphans().unwrap(), store.backlog_len()), (vec![ino], 0));
    clean(&store);
    assert!(store.release_orphan(ino, LATER).unwrap());
    assert!(matches!(store.get(ino), Err(Error::Stale(_))));
    let unnamed = store.create_unlinked(ROOT, file(), NOW).unwrap().ino;
    let named = store.link(unnamed, ROOT, b"named", LATER).unwrap();
    assert_eq!((named.attr.nlink, named.orphan, named.queued.is_some()), (1, false, true));
    clean(&store);
}

#[test]
fn imported_hard_links_then_share_one_inode_with_the_link_count_of_the_backing_store() {
    let store = store();
    let dir = mkdir(&store, ROOT, "d").ino;
    store
        .import(ROOT, &[found("a", FileKind::Regular, 3, 50), found("b", FileKind::Regular, 3, 50)])
        .unwrap();
    store.import(dir, &[found("c", FileKind::Regular, 3, 50)]).unwrap();
    let a = store.lookup(ROOT, b"a").unwrap().unwrap();
    assert_eq!(store.lookup(ROOT, b"b").unwrap().unwrap().ino, a.ino);
    assert_eq!(store.lookup(dir, b"c").unwrap().unwrap().ino, a.ino);
    assert_eq!((a.attr.nlink, store.get(a.ino).unwrap().links.len()), (3, 3));
    assert_eq!(store.unlink(ROOT, b"a", LATER, false).unwrap().record.attr.nlink, 2);
    clean(&store);
    reconcile_all(&store);
    clean(&store);
    // The number was used again for another file: not the same inode.
    let mut reused = found("z", FileKind::Regular, 2, 50);
    reused.fingerprint.size = 99;
    store.import(ROOT, &[reused]).unwrap();
    assert_ne!(store.lookup(ROOT, b"z").unwrap().unwrap().ino, a.ino);
    clean(&store);
}

#[test]
fn last_known_name_of_a_hard_linked_file_removed_then_its_other_name_can_still_be_imported() {
    let store = store();
    store.import(ROOT, &[found("a", FileKind::Regular, 2, 50)]).unwrap();
    let a = store.lookup(ROOT, b"a").unwrap().unwrap().ino;
    let unlinked = store.unlink(ROOT, b"a", LATER, false).unwrap();
    assert_eq!(unlinked.record.attr.nlink, 1);
    store.import(ROOT, &[found("b", FileKind::Regular, 2, 50)]).unwrap();
    let b = store.lookup(ROOT, b"b").unwrap().unwrap();
    assert_eq!((b.ino, b.attr.nlink), (a, 1));
    clean(&store);
    reconcile_all(&store);
    assert_eq!(store.get(a).unwrap().backing.links.len(), 1);
    clean(&store);
}

#[test]
fn import_then_keeps_what_is_here_and_counts_subdirectories() {
    let store = store();
    let mine = create(&store, ROOT, "same").ino;
    let many: Vec<Found> = (0..700)
        .map(|n| {
            let kind = if n % 7 == 0 { FileKind::Directory } else { FileKind::Regular };
            found(&format!("n{n}"), kind, 1, 100 + n)
        })
        .chain([found("same", FileKind::Regular, 1, 5)])
        .collect();
    assert_eq!(store.import(ROOT, &many).unwrap(), 700);
    assert_eq!(store.import(ROOT, &many).unwrap(), 0);
    assert_eq!(store.lookup(ROOT, b"same").unwrap().unwrap().ino, mine);
    let root = store.set_listed(ROOT, many[0].fingerprint).unwrap();
    assert_eq!((root.attr.nlink, root.subdirs, root.listed), (102, 100, true));
    let imported = store.lookup(ROOT, b"n1").unwrap().unwrap();
    assert_eq!(imported.xattrs, XattrState::Unknown);
    assert!(!imported.differs() && imported.attr.size == 7);
    clean(&store);
}

#[test]
fn refresh_then_follows_the_backing_store_unless_changes_are_pending() {
    let store = store();
    store.import(ROOT, &[found("a", FileKind::Regular, 1, 9)]).unwrap();
    let ino = store.lookup(ROOT, b"a").unwrap().unwrap().ino;
    let mut changed = found("a", FileKind::Regular, 1, 9);
    assert!(matches!(store.refresh(ino, &changed, &|_| false).unwrap(), Refreshed::Unchanged(_)));
    changed.attr.size = 70;
    changed.fingerprint.size = 70;
    let Refreshed::Updated(record) = store.refresh(ino, &changed, &|_| false).unwrap() else {
        panic!()
    };
    assert_eq!(record.attr.size, 70);
    let write = |record: &mut Record| {
        record.mark_dirty();
        Queue::Yes
    };
    store.update(ino, Some(LATER), write).unwrap();
    changed.fingerprint.size = 71;
    assert!(matches!(store.refresh(ino, &changed, &|_| false).unwrap(), Refreshed::Conflict(_)));
    clean(&store);
}

#[test]
fn file_with_unsettled_bytes_when_others_change_or_remove_it_then_kept_and_dirty() {
    let store = store();
    store.import(ROOT, &[found("d", FileKind::Directory, 2, 2)]).unwrap();
    let dir = store.lookup(ROOT, b"d").unwrap().unwrap().ino;
    let files = [found("open", FileKind::Regular, 1, 3), found("closed", FileKind::Regular, 1, 4)];
    store.import(dir, &files).unwrap();
    let open = store.lookup(dir, b"open").unwrap().unwrap().ino;
    let mut changed = found("open", FileKind::Regular, 1, 3);
    changed.fingerprint.size = 70;
    let unsettled = |ino| ino == open;
    let refreshed = store.refresh(open, &changed, &unsettled).unwrap();
    assert!(matches!(refreshed, Refreshed::Conflict(_)));
    let bytes = |ino| if ino == open { BytesHere::Unsettled } else { BytesHere::AsRecorded };
    let result = store.vanished(ROOT, b"d", dir, LATER, &bytes, &mut |_, _| ()).unwrap();
    assert_eq!((result.removed, &result.kept[..]), (1, &[open, dir][..]));
    let kept = store.get(open).unwrap();
    assert!(kept.is_dirty() && kept.queued.is_some() && kept.backing.links.is_empty());
    assert_eq!(store.path(open).unwrap().unwrap(), b"d/open");
    clean(&store);
}

#[test]
fn vanished_directory_then_takes_clean_files_along_and_keeps_pending_ones() {
    let store = store();
    store.import(ROOT, &[found("d", FileKind::Directory, 2, 2)]).unwrap();
    let dir = store.lookup(ROOT, b"d").unwrap().unwrap().ino;
    let all: Vec<Found> =
        (0..600).map(|n| found(&format!("f{n}"), FileKind::Regular, 1, n)).collect();
    store.import(dir, &all).unwrap();
    store.import(dir, &[found("sub", FileKind::Directory, 2, 3)]).unwrap();
    let sub = store.lookup(dir, b"sub").unwrap().unwrap().ino;
    store.import(sub, &[found("x", FileKind::Regular, 1, 700)]).unwrap();
    let mut gone = Vec::new();
    // Nothing pending: all goes.
    let fresh = create(&store, dir, "fresh").ino;
    let result = store
        .vanished(ROOT, b"d", dir, LATER, &|_| BytesHere::AsRecorded, &mut |ino, _| gone.push(ino))
        .unwrap();
    assert_eq!((result.removed, gone.len()), (602, 602));
    assert_eq!(result.kept, [fresh, dir]);
    let kept = store.get(dir).unwrap();
    assert!(kept.queued.is_some() && kept.backing.links.is_empty() && kept.listed);
    assert_eq!(store.path(fresh).unwrap().unwrap(), b"d/fresh");
    clean(&store);
    // A name that means another inode by now is not the one that vanished.
    assert_eq!(
        store
            .vanished(ROOT, b"d", fresh, LATER, &|_| BytesHere::AsRecorded, &mut |_, _| ())
            .unwrap(),
        Vanished::default()
    );
    // A name the backing store never had can't vanish.
    assert_eq!(
        store
            .vanished(dir, b"fresh", fresh, LATER, &|_| BytesHere::AsRecorded, &mut |_, _| ())
            .unwrap()
            .removed,
        0
    );
    reconcile_all(&store);
    let result =
        store.vanished(ROOT, b"d", dir, LATER, &|_| BytesHere::AsRecorded, &mut |_, _| ()).unwrap();
    assert_eq!((result.removed, result.kept.len()), (2, 0));
    assert_eq!(store.counts().inodes, 1);
    clean(&store);
}

/// A worker notes the new name of a directory before it renames it there, and others remove the
/// directory above the new name before it gets to that.
#[test]
fn vanished_directory_when_another_is_only_claimed_to_be_in_it_then_that_keeps_what_it_has() {
    let store = store();
    let both = [found("from", FileKind::Directory, 2, 2), found("to", FileKind::Directory, 2, 3)];
    store.import(ROOT, &both).unwrap();
    let [from, to] = ["from", "to"].map(|name| store.lookup(ROOT, name.as_bytes()).unwrap());
    let (from, to) = (from.unwrap().ino, to.unwrap().ino);
    store.import(from, &[found("moved", FileKind::Directory, 2, 4)]).unwrap();
    let moved = store.lookup(from, b"moved").unwrap().unwrap().ino;
    store.import(moved, &[found("file", FileKind::Regular, 1, 5)]).unwrap();
    let flags = RenameFlags::default();
    store.rename(named(from, b"moved"), named(to, b"moved"), flags, LATER, &|_| false).unwrap();
    store.claim(moved, &Link::new(to, *b"moved")).unwrap();
    store.import(from, &[found("plain", FileKind::Regular, 1, 6)]).unwrap();
    let plain = store.lookup(from, b"plain").unwrap().unwrap().ino;
    store.rename(named(from, b"plain"), named(to, b"plain"), flags, LATER, &|_| false).unwrap();
    store.claim(plain, &Link::new(to, *b"plain")).unwrap();
    let bytes = |_| BytesHere::AsRecorded;
    for (dir, name, ino) in [(to, "moved", moved), (ROOT, "to", to)] {
        let result = store.vanished(dir, name.as_bytes(), ino, LATER, &bytes, &mut |_, _| ());
        let result = result.unwrap();
        assert_eq!(result.removed, 0);
        assert!(result.kept.contains(&moved), "{name}: {:?}", result.kept);
        assert!(store.get(moved).unwrap().queued.is_some());
        assert!(store.lookup(moved, b"file").unwrap().is_some(), "it never went with {name}");
    }
    // It is known where it may stand.
    assert_eq!(store.get(moved).unwrap().backing.links.len(), 2);
    // So is a file, and which one it is.
    let plain = store.get(plain).unwrap();
    assert!(plain.backing.links.has(from, b"plain") && plain.backing.fingerprint.is_some());
    clean(&store);
}

#[test]
fn user_who_comes_while_a_name_is_removed_then_is_counted_or_finds_it_removed() {
    let store = store();
    let ino = create(&store, ROOT, "x").ino;
    let ended = std::sync::atomic::AtomicBool::new(false);
    let unlinked = std::thread::scope(|scope| {
        let mut late = None;
        let come = std::sync::Mutex::new(&mut late);
        let in_use = |of: Ino| {
            // Too late to be counted.
            let user = scope.spawn(|| {
                let found = store.get_settled(ino);
                ended.store(true, std::sync::atomic::Ordering::Release);
                found.map(drop)
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!ended.load(std::sync::atomic::Ordering::Acquire), "it waits");
            **come.lock().unwrap() = Some(user);
            of != ino
        };
        let unlinked = store.unlink_asking(ROOT, b"x", LATER, &in_use).unwrap();
        let found = late.expect("somebody came").join().unwrap();
        assert!(matches!(found, Err(Error::Stale(_))), "{found:?}");
        unlinked
    });
    assert!(unlinked.gone);
    let used = create(&store, ROOT, "y").ino;
    let unlinked = store.unlink_asking(ROOT, b"y", LATER, &|ino| ino == used).unwrap();
    assert!(!unlinked.gone && unlinked.record.orphan);
    clean(&store);
}

#[test]
fn extended_attributes_then_follow_their_flags_and_states() {
    let store = store();
    let ino = create(&store, ROOT, "x").ino;
    assert_eq!(store.xattr_get(ino, b"user.a").unwrap(), None);
    let set = |name: &[u8], flags| store.xattr_set(ino, name, b"v", flags, LATER);
    assert!(matches!(set(b"user.a", XattrFlags::Replace), Err(Error::NoXattr)));
    set(b"user.a", XattrFlags::Create).unwrap();
    assert!(matches!(set(b"user.a", XattrFlags::Create), Err(Error::Exists)));
    set(b"user.b", XattrFlags::Either).unwrap();
    assert_eq!(store.xattr_list(ino).unwrap(), [b"user.a".to_vec(), b"user.b".to_vec()]);
    assert!(store.get(ino).unwrap().backing.xattrs_differ);
    store.xattr_remove(ino, b"user.a", LATER).unwrap();
    assert!(matches!(store.xattr_remove(ino, b"user.a", LATER), Err(Error::NoXattr)));
    store.xattr_remove(ino, b"user.b", LATER).unwrap();
    assert_eq!(store.get(ino).unwrap().xattrs, XattrState::None);
    set(b"user.c", XattrFlags::Either).unwrap();
    clean(&store);
    store.unlink(ROOT, b"x", LATER, false).unwrap();
    clean(&store);

    store.import(ROOT, &[found("i", FileKind::Regular, 1, 9)]).unwrap();
    let ino = store.lookup(ROOT, b"i").unwrap().unwrap().ino;
    assert!(matches!(store.xattr_get(ino, b"user.a"), Err(Error::XattrsUnknown(_))));
    store.xattr_replace_all(ino, &[(b"user.a".to_vec(), b"1".to_vec())]).unwrap();
    assert_eq!(store.xattr_get(ino, b"user.a").unwrap().unwrap(), b"1");
    assert_eq!(store.backlog_len(), 0);
    clean(&store);
}

#[test]
fn warm_operations_then_take_at_most_one_round_trip() {
    let store = store();
    let dir = mkdir(&store, ROOT, "d").ino;
    create(&store, dir, "warm");
    let cost = |operation: &dyn Fn()| {
        let before = store.round_trips();
        operation();
        let after = store.round_trips();
        (after.executes - before.executes, after.scans - before.scans)
    };
    assert_eq!(cost(&|| drop(create(&store, dir, "x"))), (1, 0));
    assert_eq!(cost(&|| drop(store.lookup(dir, b"x"))), (0, 0));
    let ino = store.lookup(dir, b"x").unwrap().unwrap().ino;
    assert_eq!(cost(&|| drop(store.get(ino))), (0, 0));
    assert_eq!(cost(&|| drop(store.lookup(dir, b"no such name"))), (1, 0));
    assert_eq!(cost(&|| drop(store.touch_times(ino, Default::default()))), (0, 0));
    let chmod = |record: &mut Record| {
        record.attr.perm = 0;
        Queue::Yes
    };
    assert_eq!(cost(&|| drop(store.update(ino, None, chmod))), (1, 0));
    assert_eq!(cost(&|| drop(store.unlink(dir, b"x", NOW, false))), (1, 0));
    assert_eq!(cost(&|| drop(store.entries_plus(dir, 0, 100))), (0, 1));
}

#[test]
fn names_when_the_engine_is_exclusive_then_missing_ones_are_known_without_a_round_trip() {
    let place = tempfile::tempdir().unwrap();
    let engine = forebay_meta::Embedded::open(&place.path().join("meta"), &Default::default());
    let store = MetaStore::open(Box::new(engine.unwrap()), &Options::default()).unwrap();
    let dir = mkdir(&store, ROOT, "d").ino;
    create(&store, dir, "warm");
    let cost = |operation: &dyn Fn()| {
        let before = store.round_trips().executes;
        operation();
        store.round_trips().executes - before
    };
    let missing = |name: &'static [u8]| {
        let store = &store;
        move || assert!(store.lookup(dir, name).unwrap().is_none())
    };
    assert_eq!(cost(&missing(b"x")), 1);
    assert_eq!(cost(&missing(b"x")), 0);
    assert_eq!(cost(&|| drop(create(&store, dir, "x"))), 1);
    assert_eq!(store.lookup(dir, b"x").unwrap().map(|found| found.attr.nlink), Some(1));
    assert_eq!(cost(&missing(b"y")), 1);
    let rename = || {
        let flags = RenameFlags::default();
        store.rename(named(dir, b"x"), named(dir, b"y"), flags, NOW, &|_| false).unwrap();
    };
    assert_eq!(cost(&rename), 1);
    assert_eq!(cost(&missing(b"x")), 0);
    assert_eq!(cost(&|| drop(store.unlink(dir, b"y", NOW, false).unwrap())), 1);
    assert_eq!(cost(&missing(b"y")), 0);
    assert_eq!(cost(&|| drop(create(&store, dir, "y"))), 1);
    assert!(store.lookup(dir, b"y").unwrap().is_some());
    clean(&store);
}

#[test]
fn records_when_changed_since_a_moment_then_told_apart_from_others() {
    let store = store();
    let changed = create(&store, ROOT, "changed").ino;
    let removed = create(&store, ROOT, "removed").ino;
    let same = create(&store, ROOT, "same").ino;
    let moment = store.moment();
    for ino in [changed, removed, same] {
        assert!(!store.changed_since(ino, moment));
    }
    store
        .update(changed, None, |record| {
            record.attr.perm = 0;
            Queue::Yes
        })
        .unwrap();
    store.unlink(ROOT, b"removed", NOW, false).unwrap();
    assert!(store.changed_since(changed, moment) && store.changed_since(removed, moment));
    assert!(!store.changed_since(same, moment));
    assert!(!store.changed_since(changed, store.moment()));
}

#[test]
fn access_times_when_moved_together_then_in_one_round_trip_and_never_over_one_that_was_set() {
    use forebay_meta::{Accessed, Times};

    let store = store();
    let inos: Vec<Ino> = (0..8).map(|n| create(&store, ROOT, &format!("f{n}")).ino).collect();
    let accessed: Vec<_> =
        inos.iter().map(|&ino| Accessed { ino, known: NOW, seen: LATER }).collect();
    let set = Timestamp::new(5, 5);
    store.touch_times(inos[3], Times { atime: Some(set), ..Times::default() }).unwrap();
    store.unlink(ROOT, b"f4", NOW, false).unwrap();
    let (before, backlog) = (store.round_trips().executes, store.backlog_len());
    store.touch_accessed(&accessed).unwrap();
    // One of them finds that the removed one is gone.
    assert_eq!(store.round_trips().executes - before, 2);
    assert_eq!(store.backlog_len(), backlog, "an access is nothing for the backing store");
    for (at, ino) in inos.iter().enumerate().filter(|(at, _)| *at != 4) {
        let atime = store.get(*ino).unwrap().attr.atime;
        assert_eq!(atime, if at == 3 { set } else { LATER }, "{at}");
    }
    clean(&store);
}

#[test]
fn listing_while_others_insert_and_remove_then_shows_every_lasting_entry_once() {
    let store = store();
    for n in 0..3000 {
        create(&store, ROOT, &format!("lasting-{n}"));
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                let name = format!("passing-{n}");
                create(&store, ROOT, &name);
                store.unlink(ROOT, name.as_bytes(), NOW, false).unwrap();
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
        });
        for limit in [1, 7, 100] {
            let (mut cursor, mut seen) = (0, Vec::new());
            loop {
                let page = store.entries(ROOT, cursor, limit).unwrap();
                let Some(last) = page.last() else { break };
                assert!(page.windows(2).all(|pair| pair[0].cursor <= pair[1].cursor));
                cursor = last.cursor;
                seen.extend(page.into_iter().filter(|e| e.name.starts_with(b"lasting")));
            }
            let names: std::collections::BTreeSet<_> = seen.iter().map(|e| &e.name).collect();
            assert_eq!((seen.len(), names.len()), (3000, 3000));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn large_directory_then_lists_completely_with_records() {
    let store = store();
    for start in (0..100_000).step_by(5000) {
        let part: Vec<Found> = (start..start + 5000)
            .map(|n| found(&format!("{n}"), FileKind::Regular, 1, n))
            .collect();
        store.import(ROOT, &part).unwrap();
    }
    let all = store.entries_plus(ROOT, 0, usize::MAX).unwrap();
    assert_eq!(all.len(), 100_000);
    assert!(all.iter().all(|e| e.record.ino == e.entry.ino && e.entry.cursor >= 16));
}

#[test]
fn concurrent_operations_then_leave_a_sound_tree() {
    let store = store();
    let dirs: Vec<Ino> = (0..3).map(|n| mkdir(&store, ROOT, &format!("d{n}")).ino).collect();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (store, dirs) = (&store, &dirs);
            scope.spawn(move || {
                for n in 0..400usize {
                    let (a, b) = (dirs[(n + thread) % 3], dirs[n % 3]);
                    let name = [b'a' + (n * 7 % 5) as u8];
                    let other = [b'a' + (n * 3 % 5) as u8];
                    let _ = match n % 4 {
                        0 => store.create(a, &name, file(), NOW).map(|_| ()),
                        1 => {
                            let new = NewInode::new(FileKind::Directory, 0o755, 0, 0);
                            store.create(b, &other, new, NOW).map(|_| ())
                        }
                        2 => {
                            let flags =
                                RenameFlags { exchange: n % 8 == 2, ..RenameFlags::default() };
                            store
                                .rename(named(a, &name), named(b, &other), flags, NOW, &|_| false)
                                .map(|_| ())
                        }
                        _ => (store.unlink(a, &other, NOW, false))
                            .or_else(|_| store.rmdir(b, &name, NOW, false))
                            .map(|_| ()),
                    };
                }
            });
        }
    });
    clean(&store);
}

#[test]
fn backlog_read_beside_writers_then_a_cursor_misses_nothing() {
    let store = store();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let store = &store;
            scope.spawn(move || {
                let dir = mkdir(store, ROOT, &format!("d{thread}")).ino;
                for n in 0..500 {
                    create(store, dir, &format!("{n}"));
                }
            });
        }
        let (mut cursor, mut seen) = (Seq(0), 0);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while seen < 1503 && std::time::Instant::now() < deadline {
            for (seq, _) in store.backlog(cursor, 64).unwrap() {
                assert!(seq > cursor);
                cursor = seq;
                seen += 1;
            }
        }
        assert_eq!(seen, 1503);
    });
}

#[test]
fn damage_when_checked_then_is_named_and_repaired() {
    use forebay_meta::{Engine, Key, MiniTransaction, Write};

    let engine = Arc::new(Spanning::new(memory(), Duration::from_secs(1)).unwrap());
    let store = MetaStore::open(Box::new(engine.clone()), &Options::default()).unwrap();
    let dir = mkdir(&store, ROOT, "d").ino;
    create(&store, dir, "f");
    let keep = create(&store, dir, "keep").ino;
    // Lose the marks and entries of these inodes, and leave a stray one of each.
    let mut damage = MiniTransaction::default();
    for (key, _) in engine.sweep(None, 1000).unwrap() {
        if matches!(key.bytes()[0], b'D' | b'Q') {
            damage.write.push(Write::Delete(key));
        }
    }
    for tag in [b'O', b'H', b'Q'] {
        let mut bytes = vec![tag];
        bytes.extend_from_slice(&77u64.to_be_bytes());
        damage.write.push(Write::Put(Key::new(0, &bytes), vec![1, 8, 99]));
    }
    engine.execute(&damage).unwrap();
    let found = store.check(false).unwrap();
    assert!(found.violations.len() >= 9 && found.violations.iter().all(|v| !v.repaired));
    let repaired = store.check(true).unwrap();
    assert!(repaired.violations.iter().all(|v| v.repaired), "{repaired:#?}");
    let again = store.check(true).unwrap();
    assert!(again.is_clean(), "{again:#?}");
    assert_eq!(store.lookup(dir, b"keep").unwrap().unwrap().ino, keep);
    assert_eq!((store.backlog_len(), store.counts().inodes), (3, 4));
}

#[test]
fn invalid_requests_then_get_the_errors_posix_names() {
    let store = store();
    let plain = create(&store, ROOT, "f").ino;
    let dir = mkdir(&store, ROOT, "d").ino;
    let inside = mkdir(&store, dir, "e").ino;
    let long = [b'x'; 256];
    assert!(matches!(store.create(ROOT, &long, file(), NOW), Err(Error::NameTooLong)));
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
        assert!(matches!(store.create(ROOT, bad, file(), NOW), Err(Error::Invalid(_))));
    }
    assert!(matches!(store.create(plain, b"x", file(), NOW), Err(Error::NotDirectory)));
    assert!(matches!(store.lookup(plain, b"x"), Err(Error::NotDirectory)));
    assert!(matches!(store.link(dir, ROOT, b"x", NOW), Err(Error::NotPermitted(_))));
    assert!(matches!(store.rmdir(ROOT, b"d", NOW, false), Err(Error::NotEmpty)));
    let into_itself =
        store.rename(named(ROOT, b"d"), named(inside, b"x"), RenameFlags::default(), NOW, &|_| {
            false
        });
    assert!(matches!(into_itself, Err(Error::Invalid(_))));
    assert_eq!(store.get(ROOT).unwrap().attr.nlink, 3);
    assert_eq!(store.get(dir).unwrap().attr.nlink, 3);
}

#[test]
fn times_then_follow_posix() {
    let store = store();
    let dir = mkdir(&store, ROOT, "d").ino;
    let ino = store.create(dir, b"f", file(), LATER).unwrap().ino;
    let parent = store.get(dir).unwrap();
    assert_eq!((parent.attr.mtime, parent.attr.ctime, parent.attr.atime), (LATER, LATER, NOW));
    assert_eq!(parent.change, 1);
    let end = Timestamp::new(300, 0);
    let record = store.link(ino, ROOT, b"g", end).unwrap();
    assert_eq!((record.attr.ctime, record.attr.mtime, record.attr.nlink), (end, LATER, 2));
    assert_eq!(store.get(ROOT).unwrap().attr.mtime, end);
}

#[test]
fn entries_found_in_a_directory_that_was_removed_meanwhile_then_are_not_imported() {
    let store = store();
    let dir = mkdir(&store, ROOT, "dir").ino;
    store.claim(dir, &Link::new(ROOT, *b"dir")).unwrap();
    store.rmdir(ROOT, b"dir", LATER, false).unwrap();
    // The backing store still has it: a listing of it may have begun before.
    assert_eq!(store.import(dir, &[found("name", FileKind::Regular, 1, 7)]).unwrap(), 0);
    let change = store.get(dir).unwrap().change;
    store.reconciled(dir, change, |record| record.backing.links = Links::new()).unwrap();
    clean(&store);
}

#[test]
fn inodes_whose_directory_is_lost_when_repaired_then_what_only_is_here_gets_a_name_in_the_root() {
    use forebay_meta::{Engine, MiniTransaction, Write};

    let engine = Arc::new(Spanning::new(memory(), Duration::from_secs(1)).unwrap());
    let store = MetaStore::open(Box::new(engine.clone()), &Options::default()).unwrap();
    let dir = mkdir(&store, ROOT, "d").ino;
    let new = create(&store, dir, "new").ino;
    let below = mkdir(&store, dir, "below").ino;
    create(&store, below, "deeper");
    store.import(dir, &[found("clean", FileKind::Regular, 1, 50)]).unwrap();
    let clean_one = store.lookup(dir, b"clean").unwrap().unwrap().ino;
    let key = engine
        .sweep(None, 1000)
        .unwrap()
        .into_iter()
        .map(|(key, _)| key)
        .find(|key| key.bytes()[0] == b'I' && key.bytes()[1..9] == dir.0.to_be_bytes());
    let lost = vec![Write::Delete(key.expect("its record"))];
    engine.execute(&MiniTransaction { write: lost, ..MiniTransaction::default() }).unwrap();
    assert!(!store.check(false).unwrap().is_clean());
    let repaired = store.check(true).unwrap();
    assert!(repaired.violations.iter().all(|v| v.repaired), "{repaired:#?}");
    clean(&store);
    for (ino, name) in [(new, "new"), (below, "below")] {
        let name = format!("{name}.forebay-recovered-{:x}", ino.0);
        assert_eq!(store.lookup(ROOT, name.as_bytes()).unwrap().unwrap().ino, ino);
    }
    assert!(store.lookup(below, b"deeper").unwrap().is_some());
    assert!(matches!(store.get(clean_one), Err(Error::Stale(_))));
}
