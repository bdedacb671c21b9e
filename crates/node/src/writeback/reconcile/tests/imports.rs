//! Lazy import and outside changes.

use super::*;
use crate::error::NodeError;

const READER: Context = Context { uid: 0, gid: 0, pid: 1, waiter: Some(&crate::AtOnce) };

fn populated() -> Bench {
    let bench = Bench::new();
    fs::create_dir_all(bench.root.join("dir/sub")).expect("made");
    for index in 0..2500 {
        fs::write(bench.root.join(format!("dir/{index}")), b"x").expect("written");
    }
    bench
}

#[test]
fn find_when_nothing_is_known_then_must_wait_and_imports() {
    let bench = populated();
    let unknown = bench.node.writeback.find(&READER, Ino::ROOT, b"dir");
    assert!(matches!(unknown, Err(NodeError::Busy)));
    let dir = bench.dir("dir");
    assert_eq!(bench.find(dir, "17").expect("imported").attr.size, 1);
    assert!(bench.find(dir, "absent").is_none());
    assert!(bench.find(Ino::ROOT, ".forebay").is_none());
}

#[test]
fn ensure_listed_when_many_entries_then_all_once_though_many_ask() {
    let bench = populated();
    let dir = bench.dir("dir");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                bench.node.writeback.ensure_listed(&Context::DAEMON, dir).expect("listed");
            });
        }
    });
    let (mut count, mut cursor) = (0, 0);
    loop {
        let page = bench.node.meta.entries(dir, cursor, 100).expect("entries");
        let Some(last) = page.last() else { break };
        cursor = last.cursor;
        count += page.len();
    }
    assert_eq!(count, 2501);
}

#[test]
fn outside_changes_when_the_time_has_passed_then_seen() {
    let bench = populated();
    let dir = bench.dir("dir");
    bench.node.writeback.ensure_listed(&Context::DAEMON, dir).expect("listed");
    let changed = bench.find(dir, "5").expect("known").ino;
    fs::write(bench.root.join("dir/5"), b"longer than before").expect("written");
    fs::write(bench.root.join("dir/new"), b"new").expect("written");
    fs::remove_file(bench.root.join("dir/6")).expect("removed");
    bench.time_passes(dir);
    assert!(bench.find(dir, "6").is_none());
    assert_eq!(bench.find(dir, "new").expect("seen").attr.size, 3);
    assert_eq!(bench.find(dir, "5").expect("seen").attr.size, 18);
    assert!(bench.contents.stale.lock().contains(&changed.0), "its copy was dropped");
}

#[test]
fn revalidate_when_changed_or_removed_outside_then_says_so() {
    let bench = Bench::new();
    fs::write(bench.root.join("file"), b"1").expect("written");
    fs::write(bench.root.join("other"), b"1").expect("written");
    let file = bench.find(Ino::ROOT, "file").expect("imported");
    let other = bench.find(Ino::ROOT, "other").expect("imported");
    // The listing that follows an import in the background might see the removal first.
    bench.node.writeback.ensure_listed(&Context::DAEMON, Ino::ROOT).expect("listed");
    fs::write(bench.root.join("file"), b"22").expect("written");
    fs::remove_file(bench.root.join("other")).expect("removed");
    assert!(matches!(bench.node.writeback.revalidate(&READER, file.clone()), Err(NodeError::Busy)));
    let now = bench.node.writeback.revalidate(&Context::DAEMON, file).expect("there");
    assert_eq!(now.attr.size, 2);
    let gone = bench.node.writeback.revalidate(&Context::DAEMON, other);
    assert!(matches!(gone, Err(NodeError::Meta(forebay_meta::Error::Stale(_)))));
    assert!(bench.node.meta.lookup(Ino::ROOT, b"other").expect("a look-up").is_none());
}

#[test]
fn our_own_changes_when_checked_then_not_taken_for_changes_by_others() {
    let counter = Arc::new(Counter::default());
    let bench = Bench::with(counter.clone(), |_| {});
    // The private area in the root is made once, and is not what is looked for.
    drop(bench.node.backing.temporary(1).expect("made"));
    // A directory that was changed right before is read once more.
    std::thread::sleep(2 * crate::residency::data::CLOCK_STEP);
    bench.node.writeback.ensure_listed(&Context::DAEMON, Ino::ROOT).expect("listed");
    for index in 0..10 {
        bench.write(&format!("file-{index}"), b"x");
    }
    bench.mkdir("dir");
    bench.drained();
    bench.rename("file-1", "dir/file-1", false);
    bench.unlink("file-2");
    bench.drained();
    for dir in [Ino::ROOT, bench.dir("dir")] {
        let handle = bench.node.writeback.backing_dir(dir).expect("there");
        let (as_known, _) = bench.node.writeback.looks_as_known(dir, &handle).expect("stat");
        assert!(as_known, "{dir}");
    }
    fs::write(bench.root.join("foreign"), b"x").expect("written");
    bench.write("file-3", b"changed");
    bench.drained();
    bench.time_passes(Ino::ROOT);
    assert!(bench.find(Ino::ROOT, "foreign").is_some(), "changes by others still count");
}

#[test]
fn a_name_given_up_when_a_listing_has_seen_it_then_not_imported_again() {
    let bench = Bench::new();
    bench.write("file", b"x");
    bench.drained();
    // A listing that read the name before, and hands it over after it was removed.
    let handle = bench.node.writeback.backing_dir(Ino::ROOT).expect("root");
    let mut removed = false;
    bench
        .node
        .writeback
        .import_all(Ino::ROOT, &handle, &mut |found| {
            if !removed && found.iter().any(|found| &*found.name == b"file") {
                removed = true;
                let meta = &bench.node.meta;
                let gone = meta
                    .unlink(Ino::ROOT, b"file", crate::clock::wall_time(), false)
                    .expect("removed");
                bench.node.writeback.reconcile(gone.record.ino).expect("removed below");
            }
            Ok(())
        })
        .expect("listed");
    assert!(removed);
    assert!(bench.node.meta.lookup(Ino::ROOT, b"file").expect("a look-up").is_none());
}

#[test]
fn a_store_that_hangs_when_known_names_are_asked_for_then_served() {
    let stuck = Arc::new(forebay_store::decorators::Stuck::default());
    let bench = Bench::with(stuck.clone(), |_| {});
    fs::write(bench.root.join("file"), b"1").expect("written");
    bench.node.writeback.ensure_listed(&Context::DAEMON, Ino::ROOT).expect("listed");
    stuck.hang(&[Operation::Stat, Operation::List]);
    let node = bench.node.clone();
    let asked = stuck.clone();
    let first = std::thread::spawn(move || {
        // The first of them that asks the store hangs.
        let began = Instant::now();
        while asked.waiting() == 0 && began.elapsed() < Duration::from_secs(5) {
            node.writeback.find(&Context::DAEMON, Ino::ROOT, b"file").ok();
        }
    });
    let began = Instant::now();
    while stuck.waiting() == 0 && began.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(stuck.waiting(), 1);
    assert!(bench.find(Ino::ROOT, "file").is_some());
    let limited = Instant::now();
    assert!(bench.find(Ino::ROOT, "file").is_some());
    let served_within = limited.elapsed();
    stuck.release();
    first.join().expect("it ends");
    assert!(served_within < Duration::from_millis(500), "{served_within:?}");
}

#[test]
fn xattrs_when_asked_for_then_imported_and_written_back() {
    let bench = Bench::new();
    let path = bench.root.join("file");
    fs::write(&path, b"1").expect("written");
    let set = rustix::fs::setxattr(&path, "user.color", b"red", rustix::fs::XattrFlags::empty());
    if set.is_err() {
        return; // No user attributes on this file system.
    }
    let ino = bench.find(Ino::ROOT, "file").expect("imported").ino;
    bench.node.writeback.import_xattrs(&Context::DAEMON, ino).expect("imported");
    let meta = &bench.node.meta;
    assert_eq!(meta.xattr_get(ino, b"user.color").expect("known"), Some(b"red".to_vec()));
    let either = forebay_meta::XattrFlags::Either;
    meta.xattr_set(ino, b"user.shape", b"round", either, crate::clock::wall_time()).expect("set");
    meta.xattr_remove(ino, b"user.color", crate::clock::wall_time()).expect("removed");
    bench.drained();
    let mut value = [0; 16];
    let found = rustix::fs::getxattr(&path, "user.shape", &mut value[..]).expect("written");
    assert_eq!(&value[..found], b"round");
    assert!(rustix::fs::getxattr(&path, "user.color", &mut value[..]).is_err());
}

#[test]
fn xattrs_that_nobody_asked_for_when_the_file_is_written_then_stay() {
    let bench = Bench::new();
    let path = bench.root.join("file");
    fs::write(&path, b"1").expect("written");
    let set = rustix::fs::setxattr(&path, "user.color", b"red", rustix::fs::XattrFlags::empty());
    if set.is_err() {
        return; // No user attributes on this file system.
    }
    // A new version takes the place of the old one.
    bench.write("file", b"changed");
    bench.drained();
    assert_eq!(bench.read("file"), b"changed");
    let mut value = [0; 16];
    let found = rustix::fs::getxattr(&path, "user.color", &mut value[..]).expect("still there");
    assert_eq!(&value[..found], b"red");
}

#[test]
fn exclusive_when_others_change_then_nothing_is_asked() {
    let counter = Arc::new(Counter::default());
    let bench = Bench::with(counter.clone(), |config| config.coherence = Coherence::Exclusive);
    fs::write(bench.root.join("file"), b"1").expect("written");
    bench.node.writeback.ensure_listed(&Context::DAEMON, Ino::ROOT).expect("listed");
    let before = counter.all.load(Ordering::Relaxed);
    for _ in 0..100 {
        let file = bench.node.writeback.find(&READER, Ino::ROOT, b"file").expect("no waiting");
        bench.node.writeback.revalidate(&READER, file.expect("known")).expect("no waiting");
        assert!(
            bench.node.writeback.find(&READER, Ino::ROOT, b"absent").expect("no waiting").is_none()
        );
    }
    assert_eq!(counter.all.load(Ordering::Relaxed), before);
}

#[test]
fn conflict_in_a_removed_directory_when_it_is_noticed_then_it_has_its_whole_path() {
    let bench = Bench::new();
    bench.mkdir("above");
    bench.mkdir("above/dir");
    bench.drained();
    bench.rmdir("above/dir");
    bench.rmdir("above");
    fs::write(bench.root.join("above/dir/theirs"), "theirs").expect("written");
    bench.drained();
    let (_, conflicts) = bench.node.writeback.conflicts();
    let mut paths: Vec<_> = conflicts.iter().map(|it| String::from_utf8_lossy(&it.path)).collect();
    paths.sort();
    assert_eq!(paths, ["above", "above/dir"]);
    assert_eq!(bench.read("above/dir/theirs"), b"theirs");
}
