use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;

use super::{bytes, class_of};
use crate::backing::{Access, Node, PRIVATE, RenameMode, SetAttributes, XattrMode};
use crate::{
    BackingStore, Believed, Commit, Dir, ErrorClass, Expect, FileKind, Fingerprint, Temporary,
    Timestamp,
};

const OK: &str = "a plain operation works";

fn os(name: &str) -> &OsStr {
    OsStr::new(name)
}

/// Checks a backing store; `make` gives a new, empty one at each call.
pub fn backing(make: impl Fn() -> Box<dyn BackingStore>) {
    entries(&*make());
    confinement(&*make());
    renames(&*make());
    listings(&*make());
    attributes(&*make());
    xattrs(&*make());
    commits(&*make());
    private_area(&*make());
    let store = make();
    assert!(store.statfs().expect(OK).blocks > 0);
    syncs(&*make());
}

fn syncs(store: &dyn BackingStore) {
    let root = store.root();
    store.mkdir(&root, os("dir"), 0o755).expect(OK);
    store.mknod(&root, os("file"), Node::Regular, 0o200).expect(OK);
    store.mknod(&root, os("pipe"), Node::Fifo, 0o644).expect(OK);
    store.symlink(os("nowhere"), &root, os("link")).expect(OK);
    let mut held = vec![root.clone()];
    held.extend(["dir", "file", "pipe", "link"].map(|name| store.hold(&root, os(name)).expect(OK)));
    // A handle of something that is removed is as good as another.
    store.unlink(&root, os("file")).expect(OK);
    for handle in &held {
        store.sync_held(std::slice::from_ref(handle)).expect(OK);
    }
    store.sync_held(&held).expect(OK);
    store.sync_held(&[]).expect(OK);
    store.sync().expect(OK);
}

fn names(store: &dyn BackingStore, dir: &Dir) -> Vec<OsString> {
    let mut names = Vec::new();
    store
        .list(dir, &mut |batch| {
            names.extend(batch.iter().map(|entry| entry.name.clone()));
            ControlFlow::Continue(())
        })
        .expect(OK);
    names.sort();
    names
}

fn read(store: &dyn BackingStore, dir: &Dir, name: &str) -> Vec<u8> {
    let file = store.open_file(dir, os(name), Access::Read).expect(OK);
    let mut bytes = vec![0; file.len().expect(OK) as usize];
    file.read_at(&mut bytes, 0).expect(OK);
    bytes
}

fn write(store: &dyn BackingStore, dir: &Dir, name: &str, data: &[u8]) {
    if class_is(&store.stat(dir, os(name)), ErrorClass::NotFound) {
        store.mknod(dir, os(name), Node::Regular, 0o644).expect(OK);
    }
    let file = store.open_file(dir, os(name), Access::ReadWrite).expect(OK);
    file.set_len(0).expect(OK);
    file.write_at(data, 0).expect(OK);
}

fn class_is<T>(result: &crate::Result<T>, class: ErrorClass) -> bool {
    result.as_ref().is_err_and(|e| e.class() == class)
}

fn version(store: &dyn BackingStore, dir: &Dir, name: &str) -> Fingerprint {
    store.stat(dir, os(name)).expect(OK).fingerprint()
}

fn entries(store: &dyn BackingStore) {
    let root = store.root();
    store.mkdir(&root, os("d"), 0o1751).expect(OK);
    assert_eq!(class_of(store.mkdir(&root, os("d"), 0o755)), ErrorClass::Exists);
    assert_eq!(store.stat(&root, os("d")).expect(OK).mode, 0o1751);
    let dir = store.open_dir(&root, os("d")).expect(OK);
    store.mknod(&dir, os("f"), Node::Regular, 0o4640).expect(OK);
    assert_eq!(store.stat(&dir, os("f")).expect(OK).mode, 0o4640);
    bytes(&*store.open_file(&dir, os("f"), Access::ReadWrite).expect(OK));
    let reader = store.open_file(&dir, os("f"), Access::Read).expect(OK);
    assert!(reader.write_at(b"x", 0).is_err());
    store.mknod(&dir, os("p"), Node::Fifo, 0o600).expect(OK);
    store.mknod(&dir, os("s"), Node::Socket, 0o600).expect(OK);
    assert_eq!(store.stat(&dir, os("p")).expect(OK).kind, FileKind::Fifo);
    assert_eq!(store.stat(&dir, os("s")).expect(OK).kind, FileKind::Socket);
    assert_eq!(class_of(store.open_file(&dir, os("p"), Access::Read)), ErrorClass::Invalid);
    store.symlink(os("../../etc/passwd"), &dir, os("l")).expect(OK);
    assert_eq!(store.readlink(&dir, os("l")).expect(OK), "../../etc/passwd");
    store.link(&dir, os("f"), &root, os("g")).expect(OK);
    assert_eq!(store.stat(&root, os("g")).expect(OK).nlink, 2);
    assert_eq!(names(store, &dir), ["f", "l", "p", "s"]);
    assert_eq!(class_of(store.rmdir(&root, os("d"))), ErrorClass::Exists);
    for name in ["f", "l", "p", "s"] {
        store.unlink(&dir, os(name)).expect(OK);
    }
    assert_eq!(class_of(store.unlink(&dir, os("f"))), ErrorClass::NotFound);
    assert_eq!(class_of(store.stat(&dir, os("f"))), ErrorClass::NotFound);
    assert_eq!(class_of(store.open_dir(&root, os("g"))), ErrorClass::NotFound);
    store.rmdir(&root, os("d")).expect(OK);
}

fn confinement(store: &dyn BackingStore) {
    let root = store.root();
    store.symlink(os("/etc"), &root, os("out")).expect(OK);
    assert!(store.open_dir(&root, os("out")).is_err());
    assert!(store.open_file(&root, os("out"), Access::Read).is_err());
    store.mkdir(&root, os("in"), 0o755).expect(OK);
    let long = "n".repeat(256);
    for name in ["..", ".", "in/..", "/etc", "a\0b", long.as_str()] {
        let name = os(name);
        assert!(store.open_dir(&root, name).is_err(), "{name:?}");
        assert!(store.stat(&root, name).is_err(), "{name:?}");
        assert!(store.mkdir(&root, name, 0o755).is_err(), "{name:?}");
        assert!(store.open_file(&root, name, Access::Read).is_err(), "{name:?}");
        assert!(store.get_xattr(&root, name, os("user.a")).is_err(), "{name:?}");
        assert!(store.rename(&root, os("in"), &root, name, RenameMode::Replace).is_err());
    }
    assert!(store.mkdir(&root, os(""), 0o755).is_err());
}

fn renames(store: &dyn BackingStore) {
    let root = store.root();
    store.mkdir(&root, os("a"), 0o755).expect(OK);
    let dir = store.open_dir(&root, os("a")).expect(OK);
    write(store, &dir, "one", b"1");
    store.rename(&root, os("a"), &root, os("b"), RenameMode::Replace).expect(OK);
    assert_eq!(read(store, &dir, "one"), b"1", "a handle follows its directory");
    write(store, &root, "two", b"2");
    let taken = store.rename(&dir, os("one"), &root, os("two"), RenameMode::NoReplace);
    assert_eq!(class_of(taken), ErrorClass::Exists);
    store.rename(&dir, os("one"), &root, os("two"), RenameMode::Exchange).expect(OK);
    assert_eq!((read(store, &dir, "one"), read(store, &root, "two")), (b"2".into(), b"1".into()));
    store.rename(&dir, os("one"), &root, os("two"), RenameMode::Replace).expect(OK);
    store.rename(&root, os("two"), &root, os("three"), RenameMode::NoReplace).expect(OK);
    assert_eq!(names(store, &root), ["b", "three"]);
}

fn listings(store: &dyn BackingStore) {
    let root = store.root();
    store.mkdir(&root, os("big"), 0o755).expect(OK);
    let dir = store.open_dir(&root, os("big")).expect(OK);
    let expected: Vec<_> = (0..1000).map(|i| OsString::from(format!("file-{i:04}"))).collect();
    for name in &expected {
        store.mknod(&dir, name, Node::Regular, 0o600).expect(OK);
    }
    assert_eq!(names(store, &dir), expected);
    let mut seen = 0;
    store
        .list_plus(&dir, &mut |batch| {
            seen += batch.len();
            assert!(batch.iter().all(|e| e.attributes.is_some_and(|a| a.mode == 0o600)));
            assert!(batch.iter().all(|e| e.kind == Some(FileKind::Regular)));
            ControlFlow::Continue(())
        })
        .expect(OK);
    assert_eq!(seen, 1000);
    let mut batches = 0;
    store
        .list(&dir, &mut |_| {
            batches += 1;
            ControlFlow::Break(())
        })
        .expect(OK);
    assert_eq!(batches, 1);
}

fn attributes(store: &dyn BackingStore) {
    let root = store.root();
    let time = |seconds| Some(Timestamp::new(seconds, 123_456_789));
    write(store, &root, "f", b"x");
    store.symlink(os("nowhere"), &root, os("l")).expect(OK);
    store.mkdir(&root, os("d"), 0o700).expect(OK);
    for name in ["f", "l", "d"] {
        let set = SetAttributes { atime: time(5), mtime: time(-5), ..SetAttributes::default() };
        store.set_attributes(&root, os(name), &set).expect(OK);
        let found = store.stat(&root, os(name)).expect(OK);
        assert_eq!((Some(found.atime), Some(found.mtime)), (time(5), time(-5)), "{name}");
    }
    let dir = store.open_dir(&root, os("d")).expect(OK);
    let mode = SetAttributes { mode: Some(0o2711), ..SetAttributes::default() };
    store.set_attributes(&dir, os(""), &mode).expect(OK);
    assert_eq!(store.stat(&dir, os("")).expect(OK).mode, 0o2711);
    assert_eq!(class_of(store.set_attributes(&root, os("l"), &mode)), ErrorClass::Unsupported);
    if rustix::process::geteuid().is_root() {
        let own = SetAttributes { uid: Some(7), gid: Some(8), ..mode };
        for name in ["f", "d"] {
            store.set_attributes(&root, os(name), &own).expect(OK);
            let found = store.stat(&root, os(name)).expect(OK);
            assert_eq!((found.uid, found.gid, found.mode), (7, 8, 0o2711), "{name}");
        }
        let own = SetAttributes { uid: Some(9), ..SetAttributes::default() };
        store.set_attributes(&root, os("l"), &own).expect(OK);
        assert_eq!(store.stat(&root, os("l")).expect(OK).uid, 9);
    }
}

fn xattrs(store: &dyn BackingStore) {
    let root = store.root();
    write(store, &root, "f", b"x");
    store.mkdir(&root, os("d"), 0o755).expect(OK);
    let dir = store.open_dir(&root, os("d")).expect(OK);
    let key = os("user.key");
    if class_is(
        &store.set_xattr(&root, os("f"), key, b"v", XattrMode::Any),
        ErrorClass::Unsupported,
    ) {
        return;
    }
    for (dir, name) in [(&root, os("f")), (&dir, os(""))] {
        assert_eq!(class_of(store.get_xattr(dir, name, os("user.no"))), ErrorClass::NotFound);
        let _ = store.remove_xattr(dir, name, key);
        let missing = store.set_xattr(dir, name, key, b"v", XattrMode::Replace);
        assert_eq!(class_of(missing), ErrorClass::NotFound);
        store.set_xattr(dir, name, key, &[7; 2000], XattrMode::Create).expect(OK);
        let taken = store.set_xattr(dir, name, key, b"v", XattrMode::Create);
        assert_eq!(class_of(taken), ErrorClass::Exists);
        assert_eq!(store.get_xattr(dir, name, key).expect(OK), [7; 2000]);
        assert!(store.list_xattrs(dir, name).expect(OK).contains(&key.to_owned()));
        store.remove_xattr(dir, name, key).expect(OK);
        assert!(!store.list_xattrs(dir, name).expect(OK).contains(&key.to_owned()));
    }
}

fn filled(store: &dyn BackingStore, data: &[u8]) -> Temporary {
    let temporary = store.temporary(42).expect(OK);
    temporary.file().write_at(data, 0).expect(OK);
    let mode = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
    temporary.file().set_attributes(&mode).expect(OK);
    temporary
}

fn done(outcome: Commit) -> Fingerprint {
    match outcome {
        Commit::Done(version) => version,
        Commit::Conflict(found) => panic!("conflict with {found:?}"),
    }
}

fn commits(store: &dyn BackingStore) {
    let root = store.root();
    let mut first = filled(store, b"first");
    let pending = first.pending().expect(OK);
    let one = done(store.commit(&mut first, &root, os("f"), Expect::Absent).expect(OK));
    assert_eq!(one, version(store, &root, "f"));
    assert!(one.same_content(&pending));
    assert_eq!(store.stat(&root, os("f")).expect(OK).mode, 0o640);
    assert!(store.commit(&mut first, &root, os("again"), Expect::Any).is_err());

    let mut second = filled(store, b"second");
    let taken = store.commit(&mut second, &root, os("f"), Expect::Absent).expect(OK);
    assert!(matches!(taken, Commit::Conflict(Some(found)) if found.fingerprint() == one));
    let gone = store.commit(&mut second, &root, os("no"), Expect::Version(one)).expect(OK);
    assert_eq!(gone, Commit::Conflict(None));
    let old = store.open_file(&root, os("f"), Access::Read).expect(OK);
    let two = done(store.commit(&mut second, &root, os("f"), Expect::Version(one)).expect(OK));
    assert_eq!((two, read(store, &root, "f")), (version(store, &root, "f"), b"second".into()));
    let mut bytes = [0; 5];
    assert_eq!(old.read_at(&mut bytes, 0).expect("readers keep the old version"), 5);
    assert_eq!(&bytes, b"first");

    write(store, &root, "f", b"changed by someone else");
    let mut third = filled(store, b"third");
    let changed = store.commit(&mut third, &root, os("f"), Expect::Version(two)).expect(OK);
    assert!(matches!(changed, Commit::Conflict(Some(_))));
    assert_eq!(read(store, &root, "f"), b"changed by someone else");
    done(store.commit(&mut third, &root, os("f (conflict)"), Expect::Absent).expect(OK));
    done(store.commit(&mut filled(store, b"any"), &root, os("f"), Expect::Any).expect(OK));
    assert_eq!(read(store, &root, "f"), b"any");
    drop(filled(store, b"dropped"));
    store.tidy().expect(OK);
    assert_eq!(names(store, &root), [PRIVATE, "f", "f (conflict)"], "nothing else is left behind");
    let private = store.open_dir(&root, os(PRIVATE)).expect("the private area stays");
    assert_eq!(names(store, &private), [""; 0], "and there is nothing in it");
}

fn private_area(store: &dyn BackingStore) {
    let root = store.root();
    store.tidy().expect("tidy of nothing works");
    assert_eq!(store.list_spills().expect(OK), []);
    assert!(store.open_spill(3).expect(OK).is_none());
    store.spill(3).expect(OK).file().write_at(b"spilled", 0).expect(OK);
    assert_eq!(store.list_spills().expect(OK), [3]);
    store.tidy().expect(OK);
    assert_eq!(names(store, &root), [PRIVATE]);
    let mut spill = store.open_spill(3).expect(OK).expect("a spill file outlives its handle");
    done(store.commit(&mut spill, &root, os("big"), Expect::Absent).expect(OK));
    assert_eq!(read(store, &root, "big"), b"spilled");
    assert_eq!(store.list_spills().expect(OK), []);
    store.spill(4).expect(OK);
    assert!(
        store.open_spill_map(4, Believed::Written).expect(OK).is_none(),
        "without a map it has all bytes"
    );
    let mut map = store.spill_map(4, 4096, 10_000).expect(OK);
    map.mark_dirty(0..5000).expect(OK);
    drop(map);
    let map =
        store.open_spill_map(4, Believed::Written).expect(OK).expect("a map outlives its handle");
    assert!(map.is_present(0..8192) && !map.is_present(8192..10_000));
    assert_eq!(store.list_spills().expect(OK), [4], "the map is no spill file of its own");
    store.remove_spill(4).expect(OK);
    assert!(
        store.open_spill_map(4, Believed::Written).expect(OK).is_none(),
        "it goes with its file"
    );
    store.remove_spill(4).expect(OK);

    store.mkdir(&root, os("d"), 0o755).expect(OK);
    store.park(&root, os("d"), 9).expect(OK);
    assert_eq!(class_of(store.park(&root, os("d"), 10)), ErrorClass::NotFound);
    assert_eq!(class_of(store.park(&root, os("big"), 9)), ErrorClass::Exists);
    assert_eq!(store.list_parked().expect(OK), [9]);
    assert_eq!(class_of(store.unpark(9, &root, os("big"))), ErrorClass::Exists);
    store.unpark(9, &root, os("e")).expect(OK);
    assert_eq!(class_of(store.unpark(9, &root, os("f"))), ErrorClass::NotFound);
    store.tidy().expect(OK);
    assert_eq!(names(store, &root), [PRIVATE, "big", "e"]);
    filled(store, b"after tidy");
}
