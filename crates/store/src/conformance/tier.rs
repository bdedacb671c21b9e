use std::ops::ControlFlow;
use std::sync::Arc;

use super::{bytes, class_of};
use crate::{Believed, ErrorClass, Header, Presence, StoreError, Tier};

fn header(ino: u64) -> Header {
    let mut header = Header { ino, moves: 1, mode: 0o644, whole: true, ..Header::default() };
    header.set_path("some/where".as_ref());
    header
}

/// Checks a tier; `make` gives a new, empty one at each call.
pub fn tier(make: impl Fn() -> Box<dyn Tier>) {
    objects(&*make());
    headers(&*make());
    maps(&*make());
    leases(&*make());
    locks(&*make());
    let tier = make();
    let usage = tier.usage().expect("usage works");
    assert!(usage.total >= usage.free && usage.free > 0 && usage.free_inodes > 0);
    tier.sync().expect("sync works");
}

fn inodes(tier: &dyn Tier) -> Vec<u64> {
    let mut found = Vec::new();
    tier.list(&mut |ino, header| {
        assert_eq!(header.expect("the header is sound").ino, ino);
        found.push(ino);
        ControlFlow::Continue(())
    })
    .expect("list works");
    found.sort_unstable();
    found
}

fn objects(tier: &dyn Tier) {
    assert_eq!(inodes(tier), []);
    for ino in [1, 2, 3, u64::MAX, 1 << 40] {
        let object = tier.create(ino, &header(ino)).expect("create works");
        assert_eq!(object.ino(), ino);
        bytes(&*object);
        tier.sync_dir(ino).expect("sync_dir works");
    }
    assert_eq!(class_of(tier.create(2, &header(2))), ErrorClass::Exists);
    assert_eq!(class_of(tier.open(99)), ErrorClass::NotFound);
    assert_eq!(class_of(tier.remove(99)), ErrorClass::NotFound);
    assert_eq!(inodes(tier), [1, 2, 3, 1 << 40, u64::MAX]);
    let mut seen = 0;
    tier.list(&mut |_, _| {
        seen += 1;
        ControlFlow::Break(())
    })
    .expect("list works");
    assert_eq!(seen, 1);

    let open = tier.open(2).expect("open works");
    open.write_at(b"abc", 0).expect("write works");
    let other = tier.open(2).expect("open works twice");
    let mut read = [0; 3];
    assert_eq!(other.read_at(&mut read, 0).expect("read works"), 3);
    assert_eq!(&read, b"abc");
    let len = open.len().expect("len works");
    assert_eq!(tier.stat(2).expect("stat works").size, len);
    assert_eq!(class_of(tier.stat(4)), ErrorClass::NotFound);
    tier.remove(2).expect("remove works");
    assert_eq!(open.read_at(&mut read, 0).expect("an open object outlives its name"), 3);
    assert_eq!(class_of(tier.open(2)), ErrorClass::NotFound);
    assert_eq!(inodes(tier), [1, 3, 1 << 40, u64::MAX]);
}

fn headers(tier: &dyn Tier) {
    let object = tier.create(5, &header(5)).expect("create works");
    assert_eq!(object.header().expect("header reads"), header(5));
    let mut changed = Header { dirty: true, writing: true, size: 77, ..header(5) };
    changed.set_path(["dir/"; 2000].concat().as_ref());
    object.set_header(&changed).expect("set_header works");
    drop(object);
    let read = tier.open(5).and_then(|object| object.header()).expect("header reads");
    assert!(read.path_truncated);
    assert_eq!(read, changed);
}

fn maps(tier: &dyn Tier) {
    let extent = Presence::DEFAULT_EXTENT;
    tier.create(7, &Header { whole: false, ..header(7) }).expect("create works");
    assert!(tier.open_map(7, Believed::Written).expect("open_map works").is_none());
    let mut map = tier.create_map(7, extent, 10 * extent).expect("create_map works");
    map.mark_clean(0..2 * extent).expect("mark works");
    map.mark_dirty(5 * extent..5 * extent + 1).expect("mark works");
    // What a killed daemon leaves is what was marked, without any sync or drop.
    let reread =
        tier.open_map(7, Believed::Written).expect("open_map works").expect("there is a map");
    assert_eq!((reread.present_bytes(), reread.dirty_bytes()), (3 * extent, extent));
    assert_eq!(inodes(tier), [7], "maps are no objects");
    tier.remove_map(7).expect("remove_map works");
    tier.remove_map(7).expect("remove_map of none works");
    assert!(tier.open_map(7, Believed::Written).expect("open_map works").is_none());
    tier.create_map(7, extent, 1).expect("create_map works");
    tier.remove(7).expect("remove works");
    assert!(tier.open_map(7, Believed::Written).expect("open_map works").is_none());
}

fn leases(tier: &dyn Tier) {
    let object = tier.create(9, &header(9)).expect("create works");
    match object.exclusive() {
        Err(e) => {
            assert_eq!(e.class(), ErrorClass::Unsupported, "{e}");
            return;
        }
        Ok(lease) => assert!(lease.is_some_and(|lease| !lease.broken())),
    }
    let other: Arc<_> = tier.open(9).expect("the lease ended with its guard");
    assert!(object.exclusive().expect("leases work").is_none(), "another descriptor is open");
    drop(other);
    assert!(object.exclusive().expect("leases work").is_some());
}

fn locks(tier: &dyn Tier) {
    let lock = tier.lock().expect("lock works");
    match tier.lock() {
        Err(StoreError::Locked { pid, .. }) => assert_eq!(pid, std::process::id()),
        other => panic!("locked twice: {other:?}"),
    }
    std::thread::scope(|scope| {
        let next = scope.spawn(|| tier.lock().map(drop));
        drop(lock);
        next.join().unwrap().expect("who waits has it after its release");
    });
}
