//! A directory that is there is never taken for gone, whoever moves it, or makes another of its
//! name, at the worst moment of a comparison with the backing store.

use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::*;

type Deed = Box<dyn FnOnce() + Send>;

/// Does something once, right before an operation of one kind, which may fail then: as if its answer
/// had been found before.
#[derive(Default)]
struct Meanwhile {
    next: Mutex<Option<(Operation, Deed, Verdict)>>,
    /// So many of these operations are let pass before.
    skipped: AtomicU64,
}

impl Meanwhile {
    fn set(&self, at: Operation, verdict: Verdict, deed: impl FnOnce() + Send + 'static) {
        *self.next.lock() = Some((at, Box::new(deed), verdict));
    }

    fn after(&self, skipped: u64, at: Operation, deed: impl FnOnce() + Send + 'static) {
        self.skipped.store(skipped, Ordering::Relaxed);
        self.set(at, Verdict::Pass, deed);
    }

    fn is_done(&self) -> bool {
        self.next.lock().is_none()
    }
}

impl Interceptor for Meanwhile {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        let mut next = self.next.lock();
        if next.as_ref().is_none_or(|(at, ..)| *at != operation) {
            return Verdict::Pass;
        }
        let skipped = &self.skipped;
        if skipped
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_ok()
        {
            return Verdict::Pass;
        }
        let Some((_, deed, verdict)) = next.take() else { return Verdict::Pass };
        drop(next);
        deed();
        verdict
    }
}

impl Bench {
    /// A new file with these bytes, made without a look at the backing store.
    pub(super) fn write_unseen(&self, dir: Ino, name: &str, bytes: &[u8]) -> Ino {
        let new = NewInode::new(FileKind::Regular, 0o644, 0, 0);
        let made = self.node.meta.create(dir, name.as_bytes(), new, crate::clock::wall_time());
        let ino = made.expect("it can be made").ino;
        self.fill(ino, bytes);
        ino
    }
}

const ABSENT: Verdict = Verdict::Fail(libc::ENOENT);

fn bench() -> (Arc<Bench>, Arc<Meanwhile>) {
    let meanwhile = Arc::new(Meanwhile::default());
    (Arc::new(Bench::with(meanwhile.clone(), |_| {})), meanwhile)
}

fn listed(bench: &Bench, dir: Ino) {
    bench.node.writeback.ensure_listed(&Context::DAEMON, dir).expect("a directory that is there");
}

#[test]
fn directory_renamed_by_a_worker_while_it_is_compared_then_neither_stale_nor_gone() {
    let (bench, meanwhile) = bench();
    let dir = bench.mkdir("old");
    bench.write("old/file", b"x");
    bench.drained();
    bench.node.writeback.drop_handle(dir);
    bench.rename("old", "new", false);
    let worker = bench.clone();
    // Not found under its old name, and by then it is reported under the new one.
    meanwhile.set(Operation::Open, ABSENT, move || {
        worker.node.writeback.reconcile(dir).expect("renamed");
    });
    bench.time_passes(dir);
    listed(&bench, dir);
    assert!(meanwhile.is_done());
    assert_eq!(bench.find(Ino::ROOT, "new").expect("still there").ino, dir);
    assert!(bench.find(dir, "file").is_some());
}

#[test]
fn directory_whose_parent_is_renamed_by_a_worker_while_it_is_compared_then_stays() {
    let (bench, meanwhile) = bench();
    let above = bench.mkdir("old");
    let dir = bench.mkdir("old/dir");
    let file = bench.write("old/dir/file", b"x");
    bench.drained();
    bench.node.writeback.drop_handle(above);
    bench.node.writeback.drop_handle(dir);
    bench.rename("old", "new", false);
    let worker = bench.clone();
    meanwhile.set(Operation::Open, ABSENT, move || {
        worker.node.writeback.reconcile(above).expect("renamed");
    });
    bench.time_passes(dir);
    listed(&bench, dir);
    assert!(meanwhile.is_done());
    assert_eq!((bench.dir("new/dir"), bench.find(dir, "file").map(|file| file.ino)), {
        (dir, Some(file))
    });
}

#[test]
fn file_whose_parent_is_renamed_by_a_worker_while_it_is_compared_then_stays() {
    let (bench, meanwhile) = bench();
    let above = bench.mkdir("old");
    let file = bench.write("old/file", b"x");
    bench.drained();
    bench.node.writeback.drop_handle(above);
    bench.rename("old", "new", false);
    let worker = bench.clone();
    meanwhile.set(Operation::Open, ABSENT, move || {
        worker.node.writeback.reconcile(above).expect("renamed");
    });
    let record = bench.node.meta.get(file).expect("known");
    let now = bench.node.writeback.revalidate(&Context::DAEMON, record).expect("still there");
    assert!(meanwhile.is_done());
    assert_eq!((now.ino, bench.find(above, "file").map(|file| file.ino)), (file, Some(file)));
    assert!(!bench.contents.stale.lock().contains(&file.0), "its copy was kept");
}

#[test]
fn file_whose_parent_is_about_to_be_renamed_when_not_found_then_stays() {
    let (bench, meanwhile) = bench();
    let above = bench.mkdir("old");
    let file = bench.write("old/file", b"x");
    bench.drained();
    bench.node.writeback.drop_handle(above);
    bench.rename("old", "new", false);
    // Neither the first nor the second look finds it: its parent is on the move.
    let again = meanwhile.clone();
    meanwhile.set(Operation::Open, ABSENT, move || again.set(Operation::Open, ABSENT, || {}));
    let record = bench.node.meta.get(file).expect("known");
    let now = bench.node.writeback.revalidate(&Context::DAEMON, record).expect("still there");
    assert!(meanwhile.is_done());
    assert_eq!((now.ino, bench.find(above, "file").map(|file| file.ino)), (file, Some(file)));
}

#[test]
fn extended_attributes_read_while_a_worker_moves_the_directory_then_not_taken_for_none() {
    let (bench, meanwhile) = bench();
    let above = bench.mkdir("old");
    bench.drained();
    let path = bench.root.join("old/file");
    fs::write(&path, b"x").expect("written by others");
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(&path, "user.color", b"red", flags).is_err() {
        return; // No user attributes on this file system.
    }
    bench.time_passes(above);
    let file = bench.find(above, "file").expect("imported").ino;
    bench.node.writeback.drop_handle(above);
    bench.rename("old", "new", false);
    // Neither the first nor the second look finds it: its parent is on the move.
    let again = meanwhile.clone();
    meanwhile.set(Operation::Open, ABSENT, move || again.set(Operation::Open, ABSENT, || {}));
    let value = bench.node.get_xattr(&Context::DAEMON, file, b"user.color").expect("it has it");
    assert!(meanwhile.is_done());
    assert_eq!(value, b"red");
}

#[test]
fn directory_in_which_others_make_something_before_the_first_look_then_shown() {
    let (bench, meanwhile) = bench();
    let dir = bench.mkdir("dir");
    let (again, root) = (meanwhile.clone(), bench.root.clone());
    // After it was made, and before anybody knows what it looks like.
    meanwhile.set(Operation::Create, Verdict::Pass, move || {
        again.set(Operation::Stat, Verdict::Pass, move || {
            fs::write(root.join("dir/theirs"), b"x").expect("written by others");
        });
    });
    bench.node.writeback.reconcile(dir).expect("made");
    assert!(meanwhile.is_done());
    bench.drained();
    bench.time_passes(dir);
    assert!(bench.find(dir, "theirs").is_some());
}

#[test]
fn directory_removed_while_it_is_compared_then_another_of_its_name_stays() {
    let (bench, meanwhile) = bench();
    let first = bench.mkdir("dir");
    bench.drained();
    let program = bench.clone();
    meanwhile.set(Operation::Stat, Verdict::Pass, move || {
        program.rmdir("dir");
        program.drained();
        program.mkdir("dir");
        program.drained();
    });
    bench.time_passes(first);
    // Whoever lists the first one: it is removed, which is no failure of his.
    listed(&bench, first);
    assert!(meanwhile.is_done());
    let second = bench.find(Ino::ROOT, "dir").expect("nobody removed it").ino;
    assert_ne!(first, second);
    assert!(bench.node.meta.get(second).is_ok());
}

#[test]
fn directory_that_waits_for_its_name_when_listed_then_is_not_taken_for_the_one_that_has_it() {
    let (bench, meanwhile) = bench();
    bench.mkdir("dir");
    bench.write("dir/of the first", b"1");
    bench.drained();
    bench.rename("dir", "moved", false);
    let second = bench.mkdir("dir");
    let program = bench.clone();
    // The second has claimed its name, under which the first still stands.
    meanwhile.set(Operation::Limbo, Verdict::Pass, move || listed(&program, second));
    bench.node.writeback.reconcile(second).expect("made");
    assert!(meanwhile.is_done());
    assert!(bench.find(second, "of the first").is_none(), "it has no such file");
    bench.write("dir/of the second", b"2");
    bench.drained();
    assert_eq!(bench.names("dir"), ["of the second"]);
    assert_eq!(bench.names("moved"), ["of the first"]);
}

#[test]
fn directory_made_anew_while_the_removed_one_is_emptied_then_nothing_of_it_comes_back() {
    let (bench, meanwhile) = bench();
    bench.mkdir("dir");
    for index in 0..20 {
        bench.write(&format!("dir/{index}"), b"1");
    }
    bench.drained();
    for index in 0..20 {
        bench.unlink(&format!("dir/{index}"));
    }
    bench.rmdir("dir");
    let second = bench.mkdir("dir");
    let program = bench.clone();
    meanwhile.set(Operation::Remove, Verdict::Pass, move || listed(&program, second));
    bench.node.writeback.reconcile(second).expect("made");
    assert!(meanwhile.is_done());
    listed(&bench, second);
    assert!(bench.node.meta.entries(second, 0, 100).expect("entries").is_empty());
    bench.write("dir/file", b"2");
    bench.drained();
    assert_eq!(bench.names("dir"), ["file"]);
}

#[test]
fn directory_not_listed_yet_when_renamed_by_a_worker_meanwhile_then_listed() {
    let (bench, meanwhile) = bench();
    fs::create_dir(bench.root.join("old")).expect("made");
    fs::write(bench.root.join("old/file"), b"x").expect("written");
    let dir = bench.dir("old");
    bench.rename("old", "new", false);
    let worker = bench.clone();
    meanwhile.set(Operation::Open, ABSENT, move || {
        worker.node.writeback.reconcile(dir).expect("renamed");
    });
    listed(&bench, dir);
    assert!(meanwhile.is_done());
    assert!(bench.find(dir, "file").is_some());
}

#[test]
fn entry_removed_between_the_listing_and_its_comparison_then_the_listing_goes_on() {
    let (bench, _) = bench();
    let file = bench.write("file", b"x");
    let sub = bench.mkdir("sub");
    bench.drained();
    for (name, ino) in [("file", file), ("sub", sub)] {
        let record = bench.node.meta.get(ino).expect("known");
        let path = bench.root.join(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("changed outside");
        let handle = bench.node.backing.root();
        let found = bench.node.backing.stat(&handle, name.as_ref()).expect("there");
        let found = bench.node.writeback.found(&handle, name.as_bytes(), &found).expect("there");
        if record.is_directory() {
            bench.rmdir(name);
        } else {
            bench.unlink(name);
        }
        bench.drained();
        assert!(bench.node.meta.get(ino).is_err(), "nothing is left of it");
        bench.node.writeback.compare_listed(Ino::ROOT, &record, &found).expect("nobody's failure");
    }
}

/// What became of an inode in a turn of its own.
fn turn(bench: &Bench, ino: Ino) -> Option<super::super::queue::Turn> {
    let mut became = None;
    bench.node.writeback.take_turns(&[(ino, 0)], Wanted::Due, &mut |_, turn| became = Some(turn));
    became
}

fn told_of_a_failure(bench: &Bench, ino: Ino) -> bool {
    let node = &bench.node;
    node.writeback.write_error(ino).is_some()
        || node.writeback.last_backlog_error().is_some()
        || node.metrics.flush_failures.get() > 0
}

#[test]
fn file_removed_with_its_directory_during_its_turn_then_no_failure_and_no_retry() {
    let (bench, meanwhile) = bench();
    let dir = bench.mkdir("dir");
    bench.drained();
    let file = bench.write("dir/file", b"x");
    let program = bench.clone();
    meanwhile.set(Operation::Commit, ABSENT, move || {
        let (meta, now) = (&program.node.meta, crate::clock::wall_time());
        meta.unlink(dir, b"file", now, false).expect("unlinked");
        meta.rmdir(Ino::ROOT, b"dir", now, false).expect("removed");
    });
    assert_eq!(turn(&bench, file), Some(super::super::queue::Turn::Done));
    assert!(meanwhile.is_done() && !told_of_a_failure(&bench, file));
    assert!(bench.node.meta.get(file).is_err(), "nothing is left to be tried again");
    bench.drained();
    assert!(bench.names("").is_empty());
}

#[test]
fn file_whose_directory_is_another_than_the_handle_says_then_written_in_the_same_turn() {
    let (bench, meanwhile) = bench();
    let dir = bench.mkdir("dir");
    bench.drained();
    bench.node.writeback.backing_dir(dir).expect("there");
    // Removed and made again by others: the handle leads to what is gone.
    fs::remove_dir(bench.root.join("dir")).expect("removed");
    fs::create_dir(bench.root.join("dir")).expect("made");
    let file = bench.write_unseen(dir, "file", b"x");
    assert_eq!(turn(&bench, file), Some(super::super::queue::Turn::Done));
    assert!(meanwhile.is_done() && !told_of_a_failure(&bench, file));
    assert_eq!(bench.read("dir/file"), b"x");
}

#[test]
fn file_that_is_there_when_its_turn_fails_then_told_and_tried_again() {
    let (bench, meanwhile) = bench();
    let file = bench.write("file", b"x");
    meanwhile.set(Operation::Commit, ABSENT, || {});
    assert_eq!(turn(&bench, file), Some(super::super::queue::Turn::Failed));
    assert!(meanwhile.is_done() && told_of_a_failure(&bench, file));
    bench.drained();
    assert_eq!(bench.read("file"), b"x");
}

#[test]
fn directory_removed_by_others_when_compared_then_goes() {
    let (bench, _) = bench();
    let above = bench.mkdir("above");
    let dir = bench.mkdir("above/dir");
    bench.write("above/dir/file", b"x");
    bench.drained();
    fs::remove_dir_all(bench.root.join("above/dir")).expect("removed");
    bench.time_passes(dir);
    let stale = bench.node.writeback.ensure_listed(&Context::DAEMON, dir);
    assert!(matches!(stale, Err(crate::NodeError::Posix(rustix::io::Errno::STALE))), "{stale:?}");
    assert!(bench.node.meta.lookup(above, b"dir").expect("a look-up").is_none());
}

#[test]
fn directory_made_again_while_another_worker_has_its_forerunner_then_nothing_new_is_made_in_that() {
    let bench = Bench::new();
    let old = bench.mkdir("dir");
    bench.write("dir/file", b"old");
    bench.drained();
    bench.unlink("dir/file");
    bench.rmdir("dir");
    let dir = bench.mkdir("dir");
    let file = bench.write_unseen(dir, "file", b"the new one");
    {
        let _busy = bench.node.writeback.own(old, Duration::ZERO).expect("nobody works on it");
        bench.node.writeback.take_turns(&[(dir, 0), (file, 0)], Wanted::All, &mut |_, _| {});
    }
    bench.drained();
    assert_eq!(bench.node.writeback.conflicts().0, 0, "{:?}", bench.node.writeback.conflicts());
    assert_eq!((bench.names("dir"), bench.read("dir/file")), {
        (vec!["file".to_owned()], b"the new one".to_vec())
    });
}

#[test]
fn file_that_only_claims_its_name_when_its_directory_is_gone_before_it_then_goes_too() {
    let bench = Bench::new();
    let dir = bench.mkdir("dir");
    bench.drained();
    let file = bench.write("dir/file", b"x");
    // As an interrupted worker leaves it.
    let link = forebay_meta::Link::new(dir, *b"file");
    bench.node.meta.claim(file, &link).expect("claimed");
    bench.unlink("dir/file");
    bench.rmdir("dir");
    bench.node.writeback.reconcile(dir).expect("removed");
    assert!(bench.node.meta.get(dir).is_err() && bench.node.meta.get(file).is_ok());
    bench.drained();
}

#[test]
fn directory_with_another_mode_when_others_have_removed_it_then_made_again() {
    let bench = Bench::new();
    let dir = bench.mkdir("dir");
    bench.write("dir/file", b"x");
    bench.drained();
    fs::remove_dir_all(bench.root.join("dir")).expect("removed");
    let update = |record: &mut Record| {
        record.attr.perm = 0o700;
        record.backing.attrs_differ = true;
        Queue::Yes
    };
    bench.node.meta.update(dir, Some(crate::clock::wall_time()), update).expect("it is there");
    bench.drained();
    assert_eq!(bench.names(""), ["dir"]);
    assert!(bench.names("dir").is_empty(), "the file was clean, and is gone");
    assert!(bench.find(dir, "file").is_none());
}

#[test]
fn directory_that_others_replaced_when_it_is_kept_beside_theirs_then_shows_nothing_that_is_theirs()
{
    let bench = Bench::new();
    let dir = bench.mkdir("dir");
    bench.write("dir/clean", b"x");
    bench.drained();
    bench.write("dir/new", b"only here");
    fs::remove_dir_all(bench.root.join("dir")).expect("removed");
    fs::write(bench.root.join("dir"), b"a file of others").expect("made");
    bench.rename("dir", "elsewhere", false);
    bench.rename("elsewhere", "dir", false);
    bench.drained();
    let shown = bench.node.meta.entries(dir, 0, 10).expect("entries");
    let shown: Vec<&[u8]> = shown.iter().map(|entry| &*entry.name).collect();
    assert_eq!(shown, [&b"new"[..]]);
}

#[test]
fn file_that_others_replace_while_its_attributes_are_set_then_theirs_keeps_its_own() {
    let kinds = [Operation::Open, Operation::Stat, Operation::SetAttributes, Operation::Xattr];
    for kind in [FileKind::Regular, FileKind::Directory, FileKind::Fifo] {
        for (at, skipped) in kinds.into_iter().flat_map(|at| (0..4).map(move |skip| (at, skip))) {
            let (bench, meanwhile) = bench();
            let ino = match kind {
                FileKind::Directory => bench.mkdir("name"),
                FileKind::Regular => bench.write("name", b"ours"),
                kind => bench.make("name", kind, 0o644),
            };
            bench.drained();
            let (name, theirs) = (bench.root.join("name"), bench.root.join("theirs"));
            fs::create_dir(&theirs).expect("made");
            let old = std::time::UNIX_EPOCH + Duration::from_secs(12345);
            fs::File::open(&theirs).and_then(|file| file.set_modified(old)).expect("set");
            fs::set_permissions(&theirs, fs::Permissions::from_mode(0o751)).expect("set");
            let ours = bench.root.join("ours");
            let replace = move || {
                fs::rename(&name, &ours).expect("moved by others");
                fs::rename(&theirs, &name).expect("put there by others");
            };
            let update = |record: &mut Record| {
                record.attr.perm = 0o600;
                record.attr.mtime.sec += 7;
                record.backing.attrs_differ = true;
                Queue::Yes
            };
            bench
                .node
                .meta
                .update(ino, Some(crate::clock::wall_time()), update)
                .expect("it is there");
            let set = forebay_meta::XattrFlags::Either;
            let set =
                bench.node.meta.xattr_set(ino, b"user.a", b"x", set, crate::clock::wall_time());
            set.expect("it is kept");
            meanwhile.after(skipped, at, replace);
            // Whatever it makes of it.
            let _ = bench.node.writeback.reconcile(ino);
            if !meanwhile.is_done() {
                continue;
            }
            let found = fs::metadata(bench.root.join("name")).expect("theirs");
            let told = format!("{kind:?}, replaced before {at:?} number {skipped}");
            assert_eq!((found.mode() & 0o7777, found.mtime()), (0o751, 12345), "{told}");
        }
    }
}

/// What others write into a file in place, in the moment before an operation of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InPlace {
    Longer,
    SameSize,
    /// And the times are put back to those that it had.
    SameSizeAndTime,
}

impl InPlace {
    fn bytes(self) -> &'static [u8] {
        if self == InPlace::Longer { b"what others wrote" } else { b"THEM" }
    }

    fn is_done_to(self, path: &Path) {
        use std::os::unix::fs::FileExt;
        let file = fs::File::options().write(true).open(path).expect("there");
        let before = file.metadata().and_then(|found| found.modified()).expect("a time");
        file.write_all_at(self.bytes(), 0).expect("changed by others");
        if self == InPlace::SameSizeAndTime {
            file.set_modified(before).expect("set");
        }
    }
}

/// Whatever others write into a file while a worker sets its attributes or writes it back is kept: under
/// its name, or beside it as a conflict.
#[test]
fn file_that_others_change_in_place_at_any_operation_of_a_worker_then_their_bytes_are_kept() {
    const KINDS: [Operation; 12] = [
        Operation::Open,
        Operation::Stat,
        Operation::SetAttributes,
        Operation::Xattr,
        Operation::Commit,
        Operation::Create,
        Operation::Read,
        Operation::Write,
        Operation::Sync,
        Operation::Rename,
        Operation::Link,
        Operation::Limbo,
    ];
    let mut tried = 0;
    for written in [false, true] {
        for how in [InPlace::Longer, InPlace::SameSize, InPlace::SameSizeAndTime] {
            for (at, skipped) in KINDS.into_iter().flat_map(|at| (0..6).map(move |n| (at, n))) {
                tried += u32::from(others_change_in_place(written, how, at, skipped));
            }
        }
    }
    assert!(tried > 30, "{tried} moments");
}

/// Says whether the worker came to this operation.
fn others_change_in_place(written: bool, how: InPlace, at: Operation, skipped: u64) -> bool {
    let (bench, meanwhile) = bench();
    let ino = bench.write("name", b"ours");
    bench.drained();
    // So that times tell of what comes now.
    std::thread::sleep(Duration::from_millis(12));
    let update = |record: &mut Record| {
        record.attr.perm = 0o600;
        record.attr.mtime.sec += 7;
        record.backing.attrs_differ = true;
        Queue::Yes
    };
    let now = crate::clock::wall_time();
    bench.node.meta.update(ino, Some(now), update).expect("it is there");
    let set = forebay_meta::XattrFlags::Either;
    bench.node.meta.xattr_set(ino, b"user.a", b"x", set, now).expect("it is kept");
    if written {
        bench.fill(ino, b"ours, and newer");
    }
    let name = bench.root.join("name");
    meanwhile.after(skipped, at, move || how.is_done_to(&name));
    let _whatever_it_makes_of_it = bench.node.writeback.reconcile(ino);
    if !meanwhile.is_done() {
        return false;
    }
    let told = format!("written {written}, {how:?} before {at:?} number {skipped}");
    let bytes_of =
        |name: &str| bench.read(name)[..how.bytes().len().min(bench.read(name).len())].to_vec();
    let is_kept = || bench.names("").iter().any(|name| bytes_of(name) == how.bytes());
    assert!(is_kept(), "{told}: {:?}", bench.names(""));
    // Nor is it written over when the backlog goes on.
    bench.drained();
    assert!(is_kept(), "{told}, after the drain: {:?}", bench.names(""));
    // Right before the time is set nothing can tell any more, nor where it is put back meanwhile.
    let unseen = at == Operation::SetAttributes || how == InPlace::SameSizeAndTime;
    // What was written here as well is beside it by then.
    if written || bytes_of("name") != how.bytes() || unseen {
        return true;
    }
    // What has the name is what is shown.
    bench.time_passes(Ino::ROOT);
    let record = bench.node.meta.get(ino).expect("known");
    let now = bench.node.writeback.revalidate(&Context::DAEMON, record).expect("there");
    let found = fs::metadata(bench.root.join("name")).expect("there");
    assert_eq!(now.attr.size, found.size(), "{told}");
    let is_ours = now.ino == ino && !bench.contents.stale.lock().contains(&ino.0);
    assert!(!is_ours, "{told}: the old copy is shown");
    true
}

#[test]
fn file_that_a_worker_has_moved_when_that_is_reported_between_two_looks_then_it_is_found() {
    let (bench, meanwhile) = bench();
    let ino = bench.write("name", b"bytes");
    bench.drained();
    bench.rename("name", "new", false);
    // As a worker does before it reports; that is, when the file was looked for twice.
    fs::rename(bench.root.join("name"), bench.root.join("new")).expect("moved");
    let worker = bench.clone();
    meanwhile
        .after(1, Operation::Open, move || worker.node.writeback.reconcile(ino).expect("reported"));
    let opened = bench.node.writeback.open_version(ino).expect("it is there");
    assert!(meanwhile.is_done());
    assert_eq!(opened.len().expect("open"), 5);
    bench.drained();
    assert_eq!((bench.names(""), bench.node.writeback.conflicts().0), (vec!["new".to_string()], 0));
}

#[test]
fn directory_that_others_removed_when_it_is_renamed_here_then_what_was_in_it_goes_from_sight() {
    let bench = Bench::new();
    let dir = bench.mkdir("dir");
    bench.write("dir/clean", b"x");
    let changed = bench.write("dir/changed", b"x");
    bench.drained();
    bench.node.writeback.ensure_listed(&Context::DAEMON, dir).expect("listed");
    bench.fill(changed, b"changed here");
    fs::remove_dir_all(bench.root.join("dir")).expect("removed by others");
    bench.rename("dir", "new", false);
    bench.drained();
    let shown = bench.node.meta.entries(dir, 0, 10).expect("entries");
    let shown: Vec<&[u8]> = shown.iter().map(|entry| &*entry.name).collect();
    assert_eq!((shown, bench.names("new")), (vec![&b"changed"[..]], vec!["changed".to_string()]));
    assert_eq!(bench.read("new/changed"), b"changed here");
}

/// A store that says of a name that the handle of its directory is stale, until that is opened anew.
struct Stale {
    dir: &'static str,
    name: &'static str,
    /// Said so often.
    said: AtomicUsize,
    is: AtomicBool,
}

impl Interceptor for Stale {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }

    fn before_at(&self, operation: Operation, _: u64, label: &Path) -> Verdict {
        if operation == Operation::Open && label == Path::new(self.dir) {
            self.is.store(false, Ordering::Relaxed);
        }
        // The handle itself is asked for as a name that is empty.
        let by_handle = label == Path::new(self.name) || label.as_os_str().is_empty();
        if !by_handle || !self.is.load(Ordering::Relaxed) {
            return Verdict::Pass;
        }
        self.said.fetch_add(1, Ordering::Relaxed);
        Verdict::Fail(libc::ESTALE)
    }
}

#[test]
fn directory_whose_handle_is_stale_when_drained_then_opened_anew_by_its_name() {
    // The directory of the file, and the one above it.
    for dir in ["dir", "above"] {
        let name = if dir == "dir" { "file" } else { "dir" };
        let (said, is) = (AtomicUsize::default(), AtomicBool::default());
        let stale = Arc::new(Stale { dir, name, said, is });
        let bench = Bench::with(stale.clone(), |_| {});
        bench.mkdir("above");
        let inner = bench.mkdir("above/dir");
        bench.write("above/dir/file", b"old");
        bench.drained();
        if dir == "above" {
            bench.node.writeback.drop_handle(inner);
        }
        bench.write("above/dir/file", b"newer");
        stale.is.store(true, Ordering::Relaxed);
        bench.drained();
        assert!(stale.said.load(Ordering::Relaxed) > 0, "{dir}: nobody used the handle");
        assert_eq!(bench.read("above/dir/file"), b"newer", "{dir}");
    }
}
