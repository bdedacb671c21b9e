//! What a worker that was killed, or others, have done, and nobody has looked at yet.

use forebay_meta::{Link, NameIn};
use forebay_store::decorators::RenumberedBacking;

use super::*;

fn link(dir: Ino, name: &str) -> Link {
    Link::new(dir, name.as_bytes())
}

/// The time of a change in the backing store, and as it is known here.
fn times_of(bench: &Bench, path: &str, ino: Ino) -> ((i64, i64), (i64, i64)) {
    let found = fs::symlink_metadata(bench.root.join(path)).expect("there");
    let known = bench.node.meta.get(ino).expect("known").attr.mtime;
    ((found.mtime(), found.mtime_nsec()), (known.sec, i64::from(known.nsec)))
}

#[test]
fn directory_that_wants_a_name_of_others_when_it_yields_then_what_is_in_it_stays() {
    let bench = Bench::new();
    let dir = bench.mkdir("here");
    let file = bench.write("here/file", b"ours");
    bench.drained();
    bench.rename("here", "there", false);
    fs::create_dir(bench.root.join("there")).expect("made by others");
    fs::write(bench.root.join("there/theirs"), b"theirs").expect("written by others");
    bench.drained();
    assert_eq!(bench.node.writeback.conflicts().0, 1);
    let now = bench.find(dir, "file").map(|record| record.ino);
    assert_eq!(now, Some(file), "it is the same file as before");
    let shown = bench.dir("there");
    assert_ne!(shown, dir);
    assert!(bench.find(shown, "theirs").is_some());
}

#[test]
fn directory_that_may_have_two_names_when_others_made_one_of_them_then_the_backlog_empties() {
    let bench = Bench::new();
    let dir = bench.mkdir("one");
    bench.write("one/file", b"1");
    bench.drained();
    let mode = fs::Permissions::from_mode(0o711);
    fs::set_permissions(bench.root.join("one"), mode).expect("changed by others");
    // So that it is noticed: not in the tick of the clock in which we changed the directory.
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::write(bench.root.join("beside"), b"x").expect("written by others");
    bench.time_passes(Ino::ROOT);
    bench.node.writeback.ensure_listed(&Context::DAEMON, Ino::ROOT).expect("listed");
    assert_eq!(bench.find(Ino::ROOT, "one").expect("known").attr.perm, 0o711);
    bench.rename("one", "two", false);
    // The worker was killed before it could rename, and others were quicker.
    bench.node.meta.claim(dir, &link(Ino::ROOT, "two")).expect("claimed");
    fs::create_dir(bench.root.join("two")).expect("made by others");
    bench.drained();
    assert!(bench.find(dir, "file").is_some());
    assert_eq!(bench.names("").len(), 3, "{:?}", bench.names(""));
    assert!(bench.names("two").is_empty(), "it is the others'");
}

#[test]
fn directory_made_by_a_killed_worker_when_what_is_in_it_is_renamed_then_nothing_comes_back() {
    let bench = Bench::new();
    let (above, dir) = (bench.mkdir("above"), bench.mkdir("above/old"));
    for (ino, at, path) in
        [(above, link(Ino::ROOT, "above"), "above"), (dir, link(above, "old"), "above/old")]
    {
        bench.node.meta.claim(ino, &at).expect("claimed");
        fs::create_dir(bench.root.join(path)).expect("made");
    }
    bench.rename("above/old", "above/new", false);
    bench.node.writeback.reconcile(dir).expect("in line");
    bench.drained();
    bench.time_passes(above);
    assert_eq!(bench.names("above"), ["new"]);
    assert!(bench.find(above, "old").is_none());
    assert_eq!(bench.find(above, "new").map(|record| record.ino), Some(dir));
}

#[test]
fn directory_made_by_a_killed_worker_when_it_is_removed_with_what_is_in_it_then_both_go() {
    let bench = Bench::new();
    let (above, dir) = (bench.mkdir("above"), bench.mkdir("above/dir"));
    for (ino, at, path) in
        [(above, link(Ino::ROOT, "above"), "above"), (dir, link(above, "dir"), "above/dir")]
    {
        bench.node.meta.claim(ino, &at).expect("claimed");
        fs::create_dir(bench.root.join(path)).expect("made");
    }
    bench.rmdir("above/dir");
    bench.rmdir("above");
    bench.drained();
    assert_eq!((bench.names(""), bench.node.writeback.conflicts().0), (vec![], 0));
}

#[test]
fn directory_that_two_claim_when_neither_knows_whose_it_is_then_one_of_them_sees_to_it() {
    for renamed in [false, true] {
        let bench = Bench::new();
        let old = bench.mkdir("dir");
        bench.node.meta.claim(old, &link(Ino::ROOT, "dir")).expect("claimed");
        fs::create_dir(bench.root.join("dir")).expect("made, and answered with an error");
        bench.rmdir("dir");
        let new = bench.mkdir("dir");
        bench.node.meta.claim(new, &link(Ino::ROOT, "dir")).expect("claimed");
        // The old one could not be removed for its sake.
        match renamed {
            true => bench.rename("dir", "other", false),
            false => bench.rmdir("dir"),
        }
        bench.drained();
        let wanted = if renamed { vec!["other"] } else { vec![] };
        assert_eq!(bench.names(""), wanted);
        assert_eq!(bench.node.writeback.conflicts().0, 0);
        bench.time_passes(Ino::ROOT);
        assert!(bench.find(Ino::ROOT, "dir").is_none());
    }
}

#[test]
fn directory_that_a_worker_has_made_and_not_reported_when_another_claims_its_name_then_it_is_not_taken()
 {
    let bench = Bench::new();
    let old = bench.mkdir("dir");
    let file = bench.write("dir/file", b"old");
    bench.node.meta.claim(old, &link(Ino::ROOT, "dir")).expect("claimed");
    fs::create_dir(bench.root.join("dir")).expect("made");
    bench.rename("dir", "other", false);
    let new = bench.mkdir("dir");
    bench.node.meta.claim(new, &link(Ino::ROOT, "dir")).expect("claimed");
    let fingerprint_of = |ino| bench.node.meta.get(ino).expect("there").backing.fingerprint;
    let (held, (done, until)) = (std::sync::Barrier::new(2), std::sync::mpsc::channel::<()>());
    std::thread::scope(|scope| {
        let (held, node) = (&held, &bench.node);
        scope.spawn(move || {
            let _in_hand = node.writeback.own(old, Duration::ZERO).expect("nobody works on it");
            held.wait();
            let _told = until.recv();
        });
        held.wait();
        let _not_in_line = bench.node.writeback.reconcile(new);
        assert_eq!(fingerprint_of(new), None, "what another worker made is not its own");
        drop(done);
    });
    bench.drained();
    let known = [old, new].map(|ino| fingerprint_of(ino).expect("made").ino);
    assert_ne!(known[0], known[1], "each has a directory of its own");
    assert_eq!(
        (bench.names(""), bench.node.writeback.conflicts().0),
        (vec!["dir".into(), "other".into()], 0)
    );
    assert_eq!((bench.names("dir"), bench.names("other")), (vec![], vec!["file".to_owned()]));
    assert_eq!(bench.find(old, "file").map(|record| record.ino), Some(file));
}

#[test]
fn directory_that_a_killed_worker_made_when_another_has_its_name_by_now_then_what_is_in_it_stays_its_own()
 {
    let bench = Bench::new();
    let old = bench.mkdir("dir");
    bench.write("dir/file", b"old");
    bench.node.meta.claim(old, &link(Ino::ROOT, "dir")).expect("claimed");
    fs::create_dir(bench.root.join("dir")).expect("made");
    bench.rename("dir", "other", false);
    let new = bench.mkdir("dir");
    bench.node.meta.claim(new, &link(Ino::ROOT, "dir")).expect("claimed");
    let made = fs::metadata(bench.root.join("dir")).expect("there").ino();
    bench.drained();
    assert_eq!(fs::metadata(bench.root.join("other")).expect("there").ino(), made);
    assert_eq!(
        (bench.names(""), bench.node.writeback.conflicts().0),
        (vec!["dir".into(), "other".into()], 0)
    );
    assert_eq!((bench.names("dir"), bench.names("other")), (vec![], vec!["file".to_owned()]));
}

#[test]
fn what_a_killed_worker_has_made_when_found_then_gets_its_attributes() {
    let bench = Bench::new();
    let ino = bench.make("link", FileKind::Symlink, 0o777);
    bench.node.meta.claim(ino, &link(Ino::ROOT, "link")).expect("claimed");
    std::os::unix::fs::symlink("to/nowhere", bench.root.join("link")).expect("made");
    bench.drained();
    let (found, known) = times_of(&bench, "link", ino);
    assert_eq!(found, known);
}

#[test]
fn what_was_made_when_its_attributes_fail_then_they_are_written_later() {
    let flaky = Arc::new(Flaky::new(1));
    let bench = Bench::with(flaky.clone(), |_| {});
    let ino = bench.make("pipe", FileKind::Fifo, 0o600);
    flaky.set_rules(vec![Rule::nth(Operation::SetAttributes, 1, libc::EIO)]);
    bench.node.writeback.reconcile(ino).expect_err("its times could not be set");
    bench.drained();
    let (found, known) = times_of(&bench, "pipe", ino);
    assert_eq!(found, known);
}

#[test]
fn file_that_others_removed_while_it_waited_for_a_turn_without_a_difference_then_gone() {
    let bench = Bench::new();
    bench.write("file", b"x");
    bench.write("other", b"y");
    bench.drained();
    bench.node.writeback.ensure_listed(&Context::DAEMON, Ino::ROOT).expect("listed");
    bench.rename("file", "elsewhere", false);
    bench.rename("elsewhere", "file", false);
    fs::remove_file(bench.root.join("file")).expect("removed by others");
    bench.time_passes(Ino::ROOT);
    assert!(bench.find(Ino::ROOT, "other").is_some());
    // Its turn finds nothing to do, and does not look for it.
    bench.drained();
    bench.time_passes(Ino::ROOT);
    assert!(bench.find(Ino::ROOT, "file").is_none(), "others removed it");
}

#[test]
fn file_that_others_removed_before_its_directory_was_listed_then_gone() {
    let bench = Bench::new();
    fs::create_dir(bench.root.join("dir")).expect("made");
    for name in ["one", "two"] {
        fs::write(bench.root.join("dir").join(name), b"x").expect("written");
    }
    let dir = bench.dir("dir");
    // Known by itself, and the directory is not listed.
    bench.node.writeback.import_name(dir, b"one").expect("imported").expect("there");
    fs::remove_file(bench.root.join("dir/one")).expect("removed by others");
    bench.node.writeback.ensure_listed(&Context::DAEMON, dir).expect("listed");
    assert!(bench.node.meta.lookup(dir, b"one").expect("a look-up").is_none());
    assert!(bench.node.meta.lookup(dir, b"two").expect("a look-up").is_some());
}

#[test]
fn file_whose_only_known_name_is_anothers_when_moved_then_the_other_stays() {
    let bench = Bench::new();
    let one = bench.write("one", b"first");
    let two = bench.write("two", b"second");
    bench.drained();
    bench.rename("one", "three", false);
    bench.rename("two", "one", false);
    // As it may be after a start that had to give up what it knew of the names.
    fs::rename(bench.root.join("two"), bench.root.join("one")).expect("moved");
    let moved = |record: &mut Record| {
        record.backing.links.remove(&link(Ino::ROOT, "two"));
        record.backing.links.push(link(Ino::ROOT, "one"));
    };
    bench.node.meta.reconciled_at_start(two, u64::MAX, moved).expect("noted");
    bench.fill(one, b"first, changed");
    bench.node.writeback.reconcile(one).expect("in line");
    bench.drained();
    assert_eq!((bench.read("one"), bench.read("three")), {
        (b"second".to_vec(), b"first, changed".to_vec())
    });
    assert_eq!((bench.node.writeback.conflicts().0, bench.names("").len()), (0, 2));
}

#[test]
fn file_that_is_set_aside_when_it_also_claims_the_name_of_another_then_that_stays() {
    let bench = Bench::new();
    let one = bench.write("one", b"first");
    let two = bench.write("two", b"second");
    bench.drained();
    bench.rename("one", "two", true);
    // A worker has exchanged both below, and was killed before it could report.
    for (ino, name) in [(one, "two"), (two, "one")] {
        bench.node.meta.claim(ino, &link(Ino::ROOT, name)).expect("claimed");
    }
    for (from, to) in [("one", "x"), ("two", "one"), ("x", "two")] {
        fs::rename(bench.root.join(from), bench.root.join(to)).expect("moved");
    }
    // What was written to it since was not synced when the machine stopped.
    bench.fill(one, b"not synced");
    bench.contents.bytes.lock().insert(one.0, Vec::new());
    let record = bench.node.meta.get(one).expect("known");
    bench.node.writeback.set_aside_if_cut(&record, 0).expect("set aside");
    bench.drained();
    assert_eq!((bench.read("one"), bench.read("two")), (b"second".to_vec(), b"first".to_vec()));
    assert_eq!(bench.find(Ino::ROOT, "one").map(|record| record.ino), Some(two));
    assert_eq!(bench.names("").len(), 3, "{:?}", bench.names(""));
    assert_eq!(bench.node.writeback.conflicts().0, 1);
}

/// Renames `new` over `old`, which a program has open.
fn replace_in_use(bench: &Bench, old: Ino) {
    bench.contents.open.lock().insert(old.0);
    let flags = RenameFlags::default();
    let (from, to) = ((Ino::ROOT, b"new"), (Ino::ROOT, b"old"));
    let now = crate::clock::wall_time();
    let renamed = bench.node.meta.rename(
        NameIn::new(from.0, from.1),
        NameIn::new(to.0, to.1),
        flags,
        now,
        &|_| true,
    );
    renamed.expect("it can be renamed");
}

#[test]
fn name_of_a_replaced_file_in_use_when_the_new_one_is_not_there_yet_then_shows_the_old_version() {
    let refusing = Arc::new(Refusing { works: true.into(), ..Refusing::default() });
    let bench = Bench::with(refusing.clone(), |_| {});
    let old = bench.write("old", b"the old version");
    bench.drained();
    let new = bench.write("new", b"new");
    replace_in_use(&bench, old);
    refusing.works.store(false, Ordering::Release);
    for _ in 0..3 {
        bench.node.writeback.reconcile(new).expect_err("it can't be published");
        assert_eq!(bench.read("old"), b"the old version");
    }
    // The machine stops, and nothing of the new one was synced.
    bench.contents.open.lock().clear();
    bench.contents.bytes.lock().insert(new.0, Vec::new());
    refusing.works.store(true, Ordering::Release);
    bench.node.meta.release_orphan(old, crate::clock::wall_time()).expect("released");
    let record = bench.node.meta.get(new).expect("known");
    bench.node.writeback.set_aside_if_cut(&record, 0).expect("set aside");
    bench.drained();
    assert_eq!(bench.read("old"), b"the old version");
    let shown = bench.find(Ino::ROOT, "old").expect("there");
    assert_eq!((shown.attr.size, shown.attr.nlink), (15, 1));
    assert_eq!(fs::metadata(bench.root.join("old")).expect("there").nlink(), 1);
    assert_eq!((bench.node.writeback.conflicts().0, bench.names("").len()), (1, 2));
    assert!(bench.node.backing.list_parked().expect("limbo").is_empty());
}

#[test]
fn replaced_file_in_use_when_the_new_one_is_there_then_is_in_limbo_until_its_last_close() {
    let bench = Bench::new();
    let old = bench.write("old", b"the old version");
    bench.drained();
    let new = bench.write("new", b"new");
    replace_in_use(&bench, old);
    bench.node.writeback.reconcile(new).expect("published");
    bench.node.writeback.reconcile(old).expect("hidden");
    assert_eq!(bench.read("old"), b"new");
    assert_eq!(bench.node.backing.list_parked().expect("limbo"), [old.0]);
    bench.contents.open.lock().clear();
    bench.node.meta.release_orphan(old, crate::clock::wall_time()).expect("released");
    bench.drained();
    assert!(bench.node.backing.list_parked().expect("limbo").is_empty());
    assert_eq!((bench.read("old"), bench.node.writeback.conflicts().0), (b"new".to_vec(), 0));
}

/// A name in limbo of which nothing is known: the file's own, or what an older one has left.
#[test]
fn removed_file_in_use_when_something_is_in_limbo_already_then_leaves_its_name_all_the_same() {
    for own in [true, false] {
        let bench = Bench::new();
        let ino = bench.write("name", b"its bytes");
        bench.drained();
        let (backing, root) = (&bench.node.backing, bench.node.backing.root());
        fs::write(bench.root.join("other"), b"of another").expect("written");
        let parked = if own { "name" } else { "other" };
        backing.park_link(&root, std::ffi::OsStr::new(parked), ino.0).expect("a second name");
        bench.contents.open.lock().insert(ino.0);
        let now = crate::clock::wall_time();
        bench.node.meta.unlink(Ino::ROOT, b"name", now, true).expect("unlinked");
        bench.node.writeback.reconcile(ino).expect("hidden");
        assert!(!bench.root.join("name").exists(), "own: {own}");
        assert_eq!(backing.list_parked().expect("limbo"), [ino.0]);
        bench.contents.open.lock().clear();
        bench.node.meta.release_orphan(ino, now).expect("released");
        bench.drained();
        assert!(backing.list_parked().expect("limbo").is_empty(), "own: {own}");
    }
}

#[test]
fn directory_made_by_a_killed_worker_when_it_is_removed_and_made_again_then_nothing_comes_back() {
    let bench = Bench::new();
    let old = bench.mkdir("dir");
    let inner = bench.mkdir("dir/inner");
    // A worker has made both, and was killed before it could report.
    bench.node.meta.claim(old, &link(Ino::ROOT, "dir")).expect("claimed");
    bench.node.meta.claim(inner, &link(old, "inner")).expect("claimed");
    fs::create_dir_all(bench.root.join("dir/inner")).expect("made");
    bench.rmdir("dir/inner");
    bench.rmdir("dir");
    let new = bench.mkdir("dir");
    for _ in 0..4 {
        let _again = bench.node.writeback.reconcile(new);
    }
    bench.drained();
    assert_eq!(bench.names("dir"), Vec::<String>::new());
    bench.node.writeback.ensure_listed(&Context::DAEMON, new).expect("listed");
    assert_eq!(bench.node.meta.entries(new, 0, 10).expect("entries").len(), 0);
    assert_eq!(bench.node.writeback.conflicts().0, 0);
}

/// Does something once, right before directories are synced: all is done, and nothing is reported.
struct BeforeReport<F>(Mutex<Option<F>>);

impl<F: FnOnce() + Send> Interceptor for BeforeReport<F> {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        if operation == Operation::Sync
            && let Some(deed) = self.0.lock().take()
        {
            deed();
        }
        Verdict::Pass
    }
}

/// The number of the removed directory is that of the file which others make next, and the store knows
/// no times of birth.
#[test]
fn file_of_others_when_it_has_the_number_and_name_of_a_directory_just_removed_then_it_is_listed() {
    let scratch = Scratch::new();
    let root = scratch.0.clone();
    let contents = Arc::new(Contents::default());
    let inner = Arc::new(DirBacking::open(&root, "test").expect("opens"));
    let node: Arc<OnceLock<Arc<Node>>> = Arc::default();
    let (listing, at) = (node.clone(), root.join("name"));
    let by = BeforeReport(Mutex::new(None));
    let by = Arc::new(by);
    let numbered = Arc::new(RenumberedBacking::new(inner));
    let backing = Arc::new(InterceptedBacking::new(numbered, by.clone()));
    let meta = MetaStore::open(Box::new(Memory::new()), &Options::default()).expect("opens");
    let made = node_on(backing, meta, &contents, |_| {});
    made.writeback.import_root().expect("the root is there");
    node.set(made.clone()).ok();
    let bench = Bench { node: made, contents, root, _scratch: scratch };
    let dir = bench.mkdir("name");
    bench.write("beside", b"x");
    bench.drained();
    bench.rmdir("name");
    // Our own removal does not tell what the root looks like then.
    fs::rename(bench.root.join("beside"), bench.root.join("elsewhere")).expect("by others");
    *by.0.lock() = Some(move || {
        fs::write(at, b"of others").expect("written by others");
        let node = listing.get().expect("set above");
        node.writeback.doubt_directory(Ino::ROOT);
        node.writeback.ensure_listed(&Context::DAEMON, Ino::ROOT).expect("listed");
    });
    bench.node.writeback.reconcile(dir).expect("removed");
    assert!(by.0.lock().is_none(), "it was listed before the report");
    bench.drained();
    bench.time_passes(Ino::ROOT);
    bench.node.writeback.ensure_listed(&Context::DAEMON, Ino::ROOT).expect("listed");
    let shown = bench.find(Ino::ROOT, "name").expect("it is there");
    assert_eq!(shown.attr.kind, FileKind::Regular);
}

/// A worker that wants the old name of a directory finds nothing there, and reports it.
#[test]
fn directory_removed_by_others_when_another_gets_its_old_name_first_then_it_is_made_again_empty() {
    let bench = Bench::new();
    let moved = bench.mkdir("old");
    bench.write("old/file", b"x");
    bench.drained();
    bench.rename("old", "new", false);
    fs::remove_dir_all(bench.root.join("old")).expect("removed by others");
    let other = bench.mkdir("old");
    bench.node.writeback.reconcile(other).expect("made");
    bench.drained();
    assert_eq!(bench.names("new"), Vec::<String>::new());
    let shown = bench.node.meta.entries(moved, 0, 10).expect("entries");
    assert!(shown.is_empty(), "what is shown and is nowhere: {shown:?}");
}

#[test]
fn file_in_limbo_when_others_wrote_it_before_it_is_removed_then_it_is_set_aside_and_told() {
    let bench = Bench::new();
    let ino = bench.write("file", b"bytes");
    bench.drained();
    let below = fs::OpenOptions::new().append(true).open(bench.root.join("file"));
    let meta = &bench.node.meta;
    meta.unlink(Ino::ROOT, b"file", crate::clock::wall_time(), true).expect("unlinked");
    bench.drained();
    assert_eq!(bench.node.backing.list_parked().expect("limbo"), [ino.0]);
    std::io::Write::write_all(&mut below.expect("open below"), b" of others").expect("written");
    meta.release_orphan(ino, crate::clock::wall_time()).expect("released");
    bench.node.writeback.reconcile(ino).expect("removed for good");
    assert_eq!(bench.node.backing.list_parked().expect("limbo"), Vec::<u64>::new());
    let (count, conflicts) = bench.node.writeback.conflicts();
    assert_eq!(count, 1, "{conflicts:?}");
    let kept = conflicts[0].ours.clone().expect("it says where");
    let kept = bench.root.join(super::super::names::os(&kept));
    assert_eq!(fs::read(kept).expect("kept"), b"bytes of others");
}

/// A worker was killed when it had made a directory and published a file in it. Both are removed, and
/// another directory claims the name before they are gone.
#[test]
fn directory_made_by_a_killed_worker_when_another_claims_its_name_then_what_is_in_it_goes() {
    for is_removed_again in [false, true] {
        let bench = Bench::new();
        bench.mkdir("above");
        bench.drained();
        let (above, dir) = (bench.dir("above"), bench.mkdir("above/dir"));
        let meta = &bench.node.meta;
        meta.claim(dir, &link(above, "dir")).expect("claimed");
        fs::create_dir(bench.root.join("above/dir")).expect("made");
        let file = bench.write("above/dir/file", b"x");
        meta.claim(file, &link(dir, "file")).expect("claimed");
        let at = bench.root.join("above/dir/file");
        fs::write(&at, b"x").expect("published");
        let opened = bench.node.backing.hold(&bench.node.backing.root(), "above".as_ref());
        let opened = bench.node.backing.hold(&opened.expect("there"), "dir".as_ref());
        let found = bench.node.backing.stat(&opened.expect("there"), "file".as_ref());
        let print = found.expect("there").fingerprint();
        meta.intend(file, None, print).expect("noted before");
        bench.unlink("above/dir/file");
        bench.rmdir("above/dir");
        let other = bench.mkdir("above/dir");
        bench.node.meta.claim(other, &link(above, "dir")).expect("claimed");
        if is_removed_again {
            bench.rmdir("above/dir");
        }
        bench.node.writeback.reconcile(dir).expect("removed");
        bench.drained();
        assert!(!at.exists(), "a removed file comes back");
        assert_eq!(bench.names("above").len(), usize::from(!is_removed_again));
        assert_eq!(bench.node.writeback.conflicts().0, 0, "{:?}", bench.node.writeback.conflicts());
    }
}

/// A worker was killed when it had moved a directory out of another, made a new one in it, and moved that
/// other one into the new one. The names that it noted before lead in a circle.
#[test]
fn directories_turned_around_by_a_killed_worker_when_each_may_be_in_the_other_then_both_are_found()
{
    let bench = Bench::new();
    let (outer, inner, beside) = (bench.mkdir("x"), bench.mkdir("x/y"), bench.mkdir("p"));
    bench.drained();
    bench.rename("x/y", "p/y", false);
    let fresh = bench.mkdir("p/y/n");
    bench.rename("x", "p/y/n/x", false);
    let claims = [(inner, link(beside, "y")), (fresh, link(inner, "n")), (outer, link(fresh, "x"))];
    for (ino, at) in claims {
        bench.node.meta.claim(ino, &at).expect("claimed");
    }
    let below = |path: &str| bench.root.join(path);
    fs::rename(below("x/y"), below("p/y")).expect("moved");
    fs::create_dir(below("p/y/n")).expect("made");
    fs::rename(below("x"), below("p/y/n/x")).expect("moved");
    for ino in [outer, inner, beside] {
        bench.node.writeback.drop_handle(ino);
    }
    bench.drained();
    assert_eq!((bench.names(""), bench.names("p/y/n")), (vec!["p".into()], vec!["x".into()]));
    assert_eq!((bench.names("p/y/n/x"), bench.node.writeback.conflicts().0), (vec![], 0));
}

#[test]
fn directories_that_may_each_be_in_the_other_when_both_are_known_then_the_backlog_empties() {
    for moved in [false, true] {
        let bench = Bench::new();
        let (one, other) = (bench.mkdir("one"), bench.mkdir("other"));
        bench.drained();
        // It could not be moved there, and is to stay now; that was not reported.
        bench.node.meta.claim(one, &link(other, "n")).expect("claimed");
        bench.rename("other", "one/other", false);
        bench.node.meta.claim(other, &link(one, "other")).expect("claimed");
        if moved {
            fs::rename(bench.root.join("other"), bench.root.join("one/other")).expect("moved");
        }
        for ino in [one, other] {
            bench.node.writeback.drop_handle(ino);
        }
        bench.drained();
        let below = (bench.names(""), bench.names("one"));
        assert_eq!(below, (vec!["one".into()], vec!["other".into()]), "{moved}");
        assert_eq!(bench.node.writeback.conflicts().0, 0);
    }
}

/// What a worker has claimed in limbo and not put there is not there: else the name that it has goes for a
/// name that it has not.
#[test]
fn removed_file_in_use_when_limbo_refused_it_then_its_name_stays_until_it_is_there() {
    for unseen in [false, true] {
        let flaky = Arc::new(Flaky::new(1));
        let bench = Bench::with(flaky.clone(), |_| {});
        let ino = bench.write("name", b"its bytes");
        bench.drained();
        if unseen {
            fs::hard_link(bench.root.join("name"), bench.root.join("unseen")).expect("linked");
            let update = |record: &mut Record| {
                record.attr.nlink += 1;
                Queue::No
            };
            bench.node.meta.update(ino, None, update).expect("known");
        }
        bench.contents.open.lock().insert(ino.0);
        let now = crate::clock::wall_time();
        bench.node.meta.unlink(Ino::ROOT, b"name", now, true).expect("unlinked");
        for _ in 0..3 {
            flaky.set_rules(vec![Rule::always(Operation::Limbo, libc::EIO)]);
            bench.node.writeback.reconcile(ino).expect_err("refused");
            assert_eq!(bench.read("name"), b"its bytes", "unseen: {unseen}");
        }
        flaky.set_rules(vec![]);
        bench.node.writeback.reconcile(ino).expect("hidden");
        assert!(!bench.root.join("name").exists());
        assert_eq!(bench.node.backing.list_parked().expect("limbo"), [ino.0]);
        bench.contents.open.lock().clear();
        bench.node.meta.release_orphan(ino, now).expect("released");
        bench.drained();
        assert!(bench.node.backing.list_parked().expect("limbo").is_empty());
    }
}

#[test]
fn file_moved_out_of_a_removed_directory_when_limbo_refused_it_then_it_is_not_lost() {
    let flaky = Arc::new(Flaky::new(1));
    let bench = Bench::with(flaky.clone(), |_| {});
    let dir = bench.mkdir("dir");
    bench.write("dir/file", b"its bytes");
    bench.drained();
    bench.rename("dir/file", "file", false);
    let now = crate::clock::wall_time();
    bench.node.meta.rmdir(Ino::ROOT, b"dir", now, false).expect("removed");
    for _ in 0..3 {
        flaky.set_rules(vec![Rule::always(Operation::Limbo, libc::EIO)]);
        bench.node.writeback.reconcile(dir).expect_err("refused");
    }
    flaky.set_rules(vec![]);
    bench.drained();
    assert_eq!((bench.names(""), bench.read("file")), (vec!["file".into()], b"its bytes".to_vec()));
    assert_eq!(bench.node.writeback.conflicts().0, 0);
}
