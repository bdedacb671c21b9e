//! Changes by others that keep length and modification time: only the change time tells of them. And
//! hard links that they make.

use forebay_types::Timestamp;

use super::*;

/// Others put these bytes into a file in place, and its modification time back.
fn change_in_place(bench: &Bench, path: &str, bytes: &[u8]) {
    let path = bench.root.join(path);
    let file = fs::OpenOptions::new().write(true).open(&path).expect("it is there");
    let before = file.metadata().expect("it is there");
    assert_eq!(before.len(), bytes.len() as u64);
    // The next change time is another one.
    std::thread::sleep(Duration::from_millis(20));
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).expect("written");
    file.set_modified(before.modified().expect("a time")).expect("set");
    assert_ne!(before.ctime_nsec(), fs::metadata(&path).expect("it is there").ctime_nsec());
}

/// Whether the next open drops the copy of a file.
fn is_stale(bench: &Bench, ino: Ino) -> bool {
    bench.doubt_version(ino);
    let record = bench.node.meta.get(ino).expect("it is there");
    bench.node.writeback.revalidate(&Context::DAEMON, record).expect("it is there");
    bench.contents.stale.lock().remove(&ino.0)
}

fn set_mode(bench: &Bench, ino: Ino, perm: u32) {
    let change = |record: &mut Record| {
        record.attr.perm = perm;
        record.backing.attrs_differ = true;
        Queue::Yes
    };
    bench.node.meta.update(ino, Some(crate::clock::wall_time()), change).expect("it is there");
}

#[test]
fn file_changed_in_place_with_its_times_kept_when_looked_at_then_the_copy_is_stale() {
    let bench = Bench::new();
    let ino = bench.write("file", b"one");
    bench.drained();
    assert!(!is_stale(&bench, ino));
    change_in_place(&bench, "file", b"two");
    assert!(is_stale(&bench, ino));
    assert!(!is_stale(&bench, ino), "what is there now is known");
}

#[test]
fn our_own_changes_of_names_and_attributes_when_looked_at_then_the_copy_stays() {
    let bench = Bench::new();
    let ino = bench.write("file", b"one");
    let one = bench.write("one", b"1");
    let two = bench.write("two", b"2");
    bench.mkdir("dir");
    bench.drained();
    let steps: [&dyn Fn(); 5] = [
        &|| set_mode(&bench, ino, 0o600),
        &|| bench.rename("file", "dir/moved", false),
        &|| {
            let dir = bench.dir("dir");
            bench.node.meta.link(ino, dir, b"other", crate::clock::wall_time()).expect("linked");
        },
        &|| bench.unlink("dir/moved"),
        &|| bench.rename("one", "two", true),
    ];
    for (number, step) in steps.iter().enumerate() {
        std::thread::sleep(Duration::from_millis(20));
        step();
        bench.drained();
        for file in [ino, one, two] {
            assert!(!is_stale(&bench, file), "after step {number}");
        }
    }
    change_in_place(&bench, "dir/other", b"two");
    assert!(is_stale(&bench, ino), "and others are seen after them");
}

#[test]
fn file_changed_in_place_before_a_change_of_ours_when_looked_at_then_the_copy_is_stale() {
    let bench = Bench::new();
    type Change<'a> = &'a dyn Fn(&str, Ino);
    let steps: [Change<'_>; 4] = [
        &|_, ino| set_mode(&bench, ino, 0o600),
        &|name, _| bench.rename(name, "moved", false),
        &|_, ino| {
            bench
                .node
                .meta
                .link(ino, Ino::ROOT, b"second", crate::clock::wall_time())
                .expect("linked");
        },
        &|name, _| {
            let other = bench.find(Ino::ROOT, "other").expect("known");
            bench.rename(name, "other", true);
            assert_ne!(bench.find(Ino::ROOT, "other").expect("known").ino, other.ino);
        },
    ];
    bench.write("other", b"x");
    for (number, step) in steps.iter().enumerate() {
        let name = format!("file-{number}");
        let ino = bench.write(&name, b"one");
        bench.drained();
        change_in_place(&bench, &name, b"two");
        step(&name, ino);
        bench.drained();
        assert!(is_stale(&bench, ino), "after step {number}");
    }
}

#[test]
fn file_changed_in_place_with_its_times_kept_when_written_here_then_both_are_kept() {
    let bench = Bench::new();
    let ino = bench.write("file", b"one");
    bench.drained();
    change_in_place(&bench, "file", b"two");
    bench.fill(ino, b"ours");
    bench.drained();
    assert_eq!(bench.read("file"), b"two");
    let names = bench.names("");
    let ours = names.iter().find(|name| name.contains(".forebay-conflict-")).expect("kept");
    assert_eq!(bench.read(ours), b"ours");
}

/// The known inodes of two names; writes through both reach one file without a conflict.
fn one_file(bench: &Bench, one: &str, other: &str) {
    let (dir, name) = bench.split(one);
    let ino = bench.find(dir, name).expect("known").ino;
    let (other_dir, other_name) = bench.split(other);
    let found = bench.find(other_dir, other_name).expect("found");
    assert_eq!((found.ino, found.attr.nlink), (ino, 2));
    for (path, bytes) in [(one, &b"through one"[..]), (other, &b"through the other"[..])] {
        bench.write(path, bytes);
        bench.drained();
        assert_eq!((bench.read(one), bench.read(other)), (bytes.to_vec(), bytes.to_vec()));
    }
    assert_eq!(bench.node.writeback.conflicts().0, 0);
    let report = bench.node.meta.check(false).expect("checked");
    assert!(report.is_clean(), "{:?}", report.violations);
}

#[test]
fn hard_link_made_by_others_to_a_known_file_when_found_then_another_name_of_it() {
    let bench = Bench::new();
    fs::create_dir(bench.root.join("dir")).expect("made");
    fs::write(bench.root.join("imported"), b"x").expect("written");
    assert!(bench.find(Ino::ROOT, "imported").is_some());
    bench.write("written", b"y");
    bench.drained();
    let link = |from: &str, to: &str| {
        fs::hard_link(bench.root.join(from), bench.root.join(to)).expect("linked");
    };
    // By a look-up, and by a listing.
    link("imported", "dir/one");
    one_file(&bench, "imported", "dir/one");
    let dir = bench.dir("dir");
    bench.node.writeback.ensure_listed(&Context::DAEMON, dir).expect("listed");
    link("written", "dir/two");
    bench.time_passes(dir);
    bench.node.writeback.ensure_listed(&Context::DAEMON, dir).expect("listed");
    one_file(&bench, "written", "dir/two");
}

#[test]
fn hard_link_made_by_others_and_not_found_yet_when_the_file_is_written_then_shows_the_same() {
    let bench = Bench::new();
    let ino = bench.write("file", b"one");
    bench.drained();
    std::thread::sleep(Duration::from_millis(20));
    fs::hard_link(bench.root.join("file"), bench.root.join("link")).expect("linked");
    bench.fill(ino, b"ours");
    bench.drained();
    assert_eq!((bench.read("file"), bench.read("link")), (b"ours".to_vec(), b"ours".to_vec()));
    assert_eq!(bench.names("").len(), 2);
}

impl Bench {
    /// What a directory had is looked at again. What was begun before, in the background, has ended.
    pub(super) fn time_passes(&self, dir: Ino) {
        assert!(self.node.writeback.slow.rest(Duration::from_secs(20)), "listings that do not end");
        self.node.writeback.doubt_directory(dir);
    }

    /// The same of a file.
    pub(super) fn doubt_version(&self, file: Ino) {
        assert!(self.node.writeback.slow.rest(Duration::from_secs(20)), "listings that do not end");
        self.node.writeback.doubt_version(file);
    }
}

/// Lists a directory as when its freshness has run out.
fn listed_anew(bench: &Bench, dir: Ino) {
    bench.time_passes(dir);
    bench.node.writeback.ensure_listed(&Context::DAEMON, dir).expect("listed");
}

/// The inode of a path and the version of it that counts, once an open has compared it.
fn looked_at(bench: &Bench, path: &str) -> Arc<Record> {
    let (dir, name) = bench.split(path);
    let record = bench.find(dir, name).expect("known");
    bench.doubt_version(record.ino);
    bench.node.writeback.revalidate(&Context::DAEMON, record).expect("it is there")
}

/// What is known of these paths is what the backing store has: names of one inode there are names of one
/// here, with its count of names, its length and its mode.
fn all_as_below(bench: &Bench, paths: &[&str]) {
    let shown: Vec<_> = paths
        .iter()
        .map(|path| {
            let (known, found) = (looked_at(bench, path), fs::metadata(bench.root.join(path)));
            let found = found.expect("there");
            assert_eq!(known.attr.size, found.len(), "{path}");
            assert_eq!(u64::from(known.attr.nlink), found.nlink(), "{path}");
            (known.ino, found.ino())
        })
        .collect();
    for (path, (here, below)) in paths.iter().zip(&shown) {
        for (other, (here_too, below_too)) in paths.iter().zip(&shown) {
            assert_eq!(here == here_too, below == below_too, "{path} and {other}");
        }
    }
    let report = bench.node.meta.check(false).expect("checked");
    assert!(report.is_clean(), "{:?}", report.violations);
    assert_eq!(bench.node.writeback.conflicts().0, 0);
}

/// A directory with a file of two names and one of one name, all known, and nothing in the backlog.
fn linked_pair(made_below: bool) -> (Bench, Ino) {
    let bench = Bench::new();
    let dir = bench.mkdir("dir");
    bench.drained();
    let file = |name: &str| bench.root.join("dir").join(name);
    if made_below {
        fs::write(file("one"), b"old").expect("written");
        fs::write(file("single"), b"a single one").expect("written");
    } else {
        bench.write("dir/one", b"old");
        bench.write("dir/single", b"a single one");
        bench.drained();
    }
    fs::hard_link(file("one"), file("two")).expect("linked");
    listed_anew(&bench, dir);
    all_as_below(&bench, &["dir/one", "dir/two", "dir/single"]);
    (bench, dir)
}

#[test]
fn name_of_several_when_others_put_another_file_there_then_that_file_and_the_rest_stays() {
    for (made_below, name, other) in
        [(true, "one", "two"), (true, "two", "one"), (false, "one", "two"), (false, "two", "one")]
    {
        let (bench, dir) = linked_pair(made_below);
        fs::write(bench.root.join("new"), b"the new one").expect("written");
        fs::rename(bench.root.join("new"), bench.root.join("dir").join(name)).expect("moved");
        listed_anew(&bench, dir);
        all_as_below(&bench, &["dir/one", "dir/two", "dir/single"]);
        let path = format!("dir/{name}");
        bench.write(&path, b"written here");
        bench.drained();
        assert_eq!(bench.read(&path), b"written here");
        assert_eq!(bench.read(&format!("dir/{other}")), b"old");
        listed_anew(&bench, dir);
        all_as_below(&bench, &["dir/one", "dir/two", "dir/single"]);
    }
}

#[test]
fn name_of_several_when_others_remove_it_and_make_another_file_then_that_file() {
    let (bench, dir) = linked_pair(true);
    fs::remove_file(bench.root.join("dir/one")).expect("removed");
    fs::write(bench.root.join("dir/one"), b"made anew").expect("written");
    listed_anew(&bench, dir);
    all_as_below(&bench, &["dir/one", "dir/two", "dir/single"]);
    fs::write(bench.root.join("dir/two"), b"another").expect("written");
    fs::rename(bench.root.join("dir/two"), bench.root.join("dir/one")).expect("moved");
    listed_anew(&bench, dir);
    all_as_below(&bench, &["dir/one", "dir/single"]);
    assert!(bench.find(dir, "two").is_none());
}

#[test]
fn link_when_others_point_it_elsewhere_then_known() {
    use std::os::unix::fs::symlink;
    let bench = Bench::new();
    let link = bench.root.join("link");
    symlink("target1", &link).expect("made");
    bench.node.writeback.list_now(Ino::ROOT).expect("listed");
    listed_anew(&bench, Ino::ROOT);
    symlink("target2", bench.root.join("new")).expect("made");
    fs::rename(bench.root.join("new"), &link).expect("moved");
    listed_anew(&bench, Ino::ROOT);
    let found = bench.find(Ino::ROOT, "link").expect("known");
    assert_eq!(found.target.as_deref(), Some(&b"target2"[..]));
}

#[test]
fn name_when_others_make_it_one_of_another_known_file_then_both_are_one() {
    for (from, to) in [("single", "one"), ("one", "single"), ("two", "single")] {
        for made_below in [false, true] {
            let (bench, dir) = linked_pair(made_below);
            fs::hard_link(bench.root.join("dir").join(from), bench.root.join("new")).expect("made");
            fs::rename(bench.root.join("new"), bench.root.join("dir").join(to)).expect("moved");
            listed_anew(&bench, dir);
            all_as_below(&bench, &["dir/one", "dir/two", "dir/single"]);
        }
    }
}

/// The mode and the user that a directory has here.
fn mode_and_owner(bench: &Bench, dir: Ino) -> (u32, u32) {
    let attr = &bench.node.meta.get(dir).expect("known").attr;
    (attr.perm, attr.uid)
}

#[test]
fn owner_that_the_store_does_not_take_when_a_directory_is_listed_again_then_kept() {
    let refuses = Rule {
        operation: Some(Operation::SetAttributes),
        fault: Verdict::Fail(libc::EPERM),
        skip: 0,
        times: u64::MAX,
        per_mille: 1000,
    };
    let flaky = Arc::new(Flaky::new(1));
    let bench = Bench::with(flaky.clone(), |_| {});
    flaky.set_rules(vec![refuses]);
    let dir = bench.mkdir("dir");
    let give = |record: &mut Record| {
        record.attr.uid = 12_345;
        record.backing.attrs_differ = true;
        Queue::Yes
    };
    bench.node.meta.update(dir, Some(crate::clock::wall_time()), give).expect("there");
    bench.drained();
    let ours = mode_and_owner(&bench, dir);
    assert_eq!(ours.1, 12_345);
    for others in ["beside", "dir/within"] {
        fs::write(bench.root.join(others), b"x").expect("written");
        for path in ["", "dir"] {
            listed_anew(&bench, bench.dir(path));
            assert_eq!(mode_and_owner(&bench, dir), ours, "{others} {path}");
        }
    }
    // Until others give it another one.
    let path = bench.root.join("dir");
    fs::set_permissions(path, fs::Permissions::from_mode(0o711)).expect("changed");
    listed_anew(&bench, dir);
    assert_eq!(mode_and_owner(&bench, dir), (0o711, rustix::process::geteuid().as_raw()));
}

#[test]
fn mode_set_here_while_a_listing_is_under_way_then_what_it_has_read_is_looked_at_again() {
    let bench = Bench::new();
    let dir = bench.mkdir("dir");
    bench.drained();
    let root = bench.node.backing.root();
    let found = bench.node.backing.stat(&root, "dir".as_ref()).expect("there");
    let found = bench.node.writeback.found(&root, b"dir", &found).expect("there");
    set_mode(&bench, dir, 0o710);
    bench.drained();
    let record = bench.node.meta.get(dir).expect("known");
    bench.node.writeback.compare_listed(Ino::ROOT, &record, &found).expect("compared");
    assert_eq!(mode_and_owner(&bench, dir).0, 0o710);
}

#[test]
fn directory_when_others_change_its_mode_again_and_again_then_always_known() {
    let bench = Bench::new();
    fs::create_dir_all(bench.root.join("above/dir")).expect("made");
    let above = bench.dir("above");
    let dir = bench.dir("above/dir");
    for (round, mode) in [0o700, 0o755, 0o711, 0o750].into_iter().enumerate() {
        let path = bench.root.join("above/dir");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
        fs::write(bench.root.join(format!("above/{round}")), b"").expect("made");
        listed_anew(&bench, above);
        assert_eq!(mode_and_owner(&bench, dir).0, mode);
    }
    // The first look at its own entries, and one at what is in doubt.
    for mode in [0o701, 0o702] {
        let path = bench.root.join("above/dir");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
        listed_anew(&bench, dir);
        assert_eq!(mode_and_owner(&bench, dir).0, mode);
        bench.node.writeback.doubt_listing(dir).expect("noted");
    }
}

#[test]
fn hard_link_made_by_others_when_they_write_to_it_before_it_is_found_then_another_name() {
    // Found by a listing that shows the known name as well, and by a look-up.
    for link in ["dir/zero", "link"] {
        let (bench, dir) = linked_pair(true);
        fs::hard_link(bench.root.join("dir/single"), bench.root.join(link)).expect("linked");
        fs::write(bench.root.join(link), b"another length of it").expect("written");
        bench.time_passes(Ino::ROOT);
        assert!(bench.find(Ino::ROOT, "link").is_some() || link != "link");
        listed_anew(&bench, dir);
        all_as_below(&bench, &["dir/one", "dir/two", "dir/single", link]);
    }
}

#[test]
fn directory_when_others_change_its_mode_then_known_whichever_is_listed_first() {
    let mode = |bench: &Bench, dir: Ino| bench.node.meta.get(dir).expect("known").attr.perm;
    for (first, second) in [("", "dir"), ("dir", "")] {
        let bench = Bench::new();
        let dir = bench.mkdir("dir");
        bench.write("dir/file", b"x");
        bench.drained();
        for path in ["", "dir"] {
            listed_anew(&bench, bench.dir(path));
        }
        for path in ["", "dir"] {
            let ino = bench.dir(path);
            bench.node.writeback.import_xattrs(&Context::DAEMON, ino).expect("read");
            let path = bench.root.join(path);
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&path, "user.by-others", b"1", flags).expect("set");
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("changed");
        }
        for path in [first, second] {
            listed_anew(&bench, bench.dir(path));
        }
        assert_eq!((mode(&bench, dir), mode(&bench, Ino::ROOT)), (0o700, 0o700));
        for ino in [dir, Ino::ROOT] {
            bench.node.writeback.import_xattrs(&Context::DAEMON, ino).expect("read");
            let value = bench.node.meta.xattr_get(ino, b"user.by-others").expect("looked up");
            assert_eq!(value.as_deref(), Some(&b"1"[..]));
        }
        // And what an earlier program left behind: its times are known, and its mode is not.
        let forgets = |record: &mut Record| {
            record.attr.perm = 0o755;
            Queue::No
        };
        bench.node.meta.update(dir, None, forgets).expect("there");
        bench.node.writeback.list_now(Ino::ROOT).expect("listed");
        assert_eq!(mode(&bench, dir), 0o700);
    }
}

#[test]
fn directory_when_others_change_its_attributes_and_times_then_known_once_it_is_listed() {
    let bench = Bench::new();
    let dir = bench.mkdir("dir");
    bench.write("dir/file", b"x");
    bench.drained();
    let flags = rustix::fs::XattrFlags::empty();
    let attribute = |ino: Ino, name: &[u8]| {
        bench.node.writeback.import_xattrs(&Context::DAEMON, ino).expect("read");
        bench.node.meta.xattr_get(ino, name).expect("looked up")
    };
    for path in ["", "dir"] {
        let (ino, below) = (bench.dir(path), bench.root.join(path));
        listed_anew(&bench, ino);
        for value in [b"1", b"2"] {
            rustix::fs::setxattr(&below, "user.theirs", value, flags).expect("set");
            listed_anew(&bench, ino);
            assert_eq!(attribute(ino, b"user.theirs").as_deref(), Some(&value[..]), "{path}");
        }
        rustix::fs::removexattr(&below, "user.theirs").expect("removed");
        listed_anew(&bench, ino);
        assert_eq!(attribute(ino, b"user.theirs"), None, "{path}");
        // What is set here, and not there yet, stays; with what they set then, if it is another.
        let now = clock::wall_time();
        let (xattrs, either) = (&bench.node.meta, forebay_meta::XattrFlags::Either);
        xattrs.xattr_set(ino, b"user.ours", b"here", either, now).expect("set");
        rustix::fs::setxattr(&below, "user.ours", b"there", flags).expect("set");
        listed_anew(&bench, ino);
        assert_eq!(attribute(ino, b"user.ours").as_deref(), Some(&b"here"[..]), "{path}");
        bench.drained();
    }
    // A new name of theirs moves the time, and so do a removal and a replacement.
    let below = bench.root.join("dir");
    let times_below = || {
        let found = fs::metadata(&below).expect("there");
        Timestamp::new(found.mtime(), u32::try_from(found.mtime_nsec()).expect("nanoseconds"))
    };
    let time_here = || bench.node.meta.get(dir).expect("known").attr.mtime;
    let changes: [&dyn Fn() -> std::io::Result<()>; 4] = [
        &|| fs::write(below.join("theirs"), b"x"),
        &|| fs::write(below.join("new"), b"another"),
        &|| fs::rename(below.join("new"), below.join("theirs")),
        &|| fs::remove_file(below.join("theirs")),
    ];
    for change in changes {
        change().expect("changed");
        let time = times_below();
        std::thread::sleep(Duration::from_millis(20));
        listed_anew(&bench, dir);
        assert_eq!((time_here(), times_below()), (time, time));
    }
    // What a worker did moves it below alone, until it is set again; also if nothing was listed before.
    let unlisted = bench.mkdir("unlisted");
    for (ino, path) in [(dir, "dir/ours"), (unlisted, "unlisted/ours")] {
        bench.write(path, b"x");
        let old = Timestamp::new(1_000_000_000, 0);
        let set = |record: &mut Record| {
            record.attr.mtime = old;
            record.backing.attrs_differ = true;
            Queue::Yes
        };
        bench.node.meta.update(ino, None, set).expect("known");
        bench.node.writeback.reconcile(ino).expect("its attributes are written");
        bench.node.writeback.reconcile(bench.find(ino, "ours").expect("known").ino).expect("made");
        listed_anew(&bench, ino);
        assert_eq!(bench.node.meta.get(ino).expect("known").attr.mtime, old, "{path}");
        bench.drained();
        bench.node.writeback.restore_directory_times();
        let found = fs::metadata(bench.root.join(path).parent().expect("a directory"));
        assert_eq!(found.expect("there").mtime(), 1_000_000_000, "{path}");
    }
}

#[test]
fn name_of_several_when_written_here_and_replaced_by_others_then_nothing_is_lost() {
    for (name, other) in [("one", "two"), ("two", "one")] {
        let (bench, dir) = linked_pair(true);
        let ino = bench.find(dir, "one").expect("known").ino;
        fs::write(bench.root.join("new"), b"the new one").expect("written");
        fs::rename(bench.root.join("new"), bench.root.join("dir").join(name)).expect("moved");
        bench.fill(ino, b"ours");
        listed_anew(&bench, dir);
        bench.drained();
        listed_anew(&bench, dir);
        // What others put there stays theirs, and what was written here is under the other name.
        assert_eq!(bench.read(&format!("dir/{name}")), b"the new one");
        assert_eq!(bench.read(&format!("dir/{other}")), b"ours");
        let report = bench.node.meta.check(false).expect("checked");
        assert!(report.is_clean(), "{:?}", report.violations);
        assert_eq!(looked_at(&bench, &format!("dir/{name}")).attr.size, 11);
        assert_eq!(looked_at(&bench, &format!("dir/{other}")).attr.size, 4);
    }
}

/// Makes a file that is younger than another one, as whatever gets the number of a removed file later
/// is: a file system tells births apart that are some milliseconds apart.
fn later_born(bench: &Bench, name: &str, than: &str) {
    let born = |name| {
        let found = fs::metadata(bench.root.join(name)).expect("there");
        found.created().expect("the file system knows births")
    };
    loop {
        fs::write(bench.root.join(name), b"another").expect("written");
        if born(name) > born(than) {
            return;
        }
        fs::remove_file(bench.root.join(name)).expect("removed");
    }
}

#[test]
fn number_used_again_by_a_file_of_others_when_found_then_not_taken_for_the_removed_one() {
    let bench = Bench::new();
    let ino = bench.write("file", b"one");
    bench.drained();
    let number = fs::metadata(bench.root.join("file")).expect("there").ino();
    // As a file system that gives the number to the next file.
    later_born(&bench, "new", "file");
    fs::hard_link(bench.root.join("new"), bench.root.join("newer")).expect("linked");
    let reused = fs::metadata(bench.root.join("new")).expect("there").ino();
    assert_ne!(number, reused);
    let set = |record: &mut Record| {
        record.backing.fingerprint.as_mut().expect("published").ino = reused;
        Queue::No
    };
    bench.node.meta.update(ino, None, set).expect("there");
    bench.time_passes(Ino::ROOT);
    let new = bench.find(Ino::ROOT, "new").expect("found").ino;
    assert_ne!(new, ino);
    assert_eq!(bench.find(Ino::ROOT, "newer").expect("found").ino, new);
}

#[test]
fn file_of_two_names_when_changed_here_and_by_others_then_one_conflict_for_each_name() {
    both_change_a_file_of_two_names("one");
}

/// A rename puts the names of a file in another order here than in the backing store.
#[test]
fn renamed_file_of_two_names_when_changed_here_and_by_others_then_one_conflict_for_each_name() {
    both_change_a_file_of_two_names("three");
}

/// A file is `dir/two`, and `dir/one`, which is given another name if it is to have one.
fn both_change_a_file_of_two_names(one: &str) {
    let (bench, dir) = linked_pair(true);
    if one != "one" {
        bench.rename("dir/one", &format!("dir/{one}"), false);
        bench.drained();
    }
    std::thread::sleep(Duration::from_millis(20));
    let ino = bench.find(dir, one).expect("known").ino;
    bench.fill(ino, b"ours");
    let one = format!("dir/{one}");
    fs::write(bench.root.join(&one), b"of others").expect("written");
    bench.drained();
    listed_anew(&bench, dir);
    bench.drained();
    for name in [&*one, "dir/two"] {
        assert_eq!(bench.read(name), b"of others", "{name}");
        let known = looked_at(&bench, name);
        assert_ne!(known.ino, ino, "{name} is the others' file");
    }
    let names = bench.names("dir");
    let (ours, theirs): (Vec<_>, Vec<_>) =
        names.iter().partition(|name| name.contains("forebay-conflict"));
    assert_eq!((ours.len(), theirs.len()), (2, 3), "{names:?}");
    for name in ours {
        assert_eq!(bench.read(&format!("dir/{name}")), b"ours", "{name}");
    }
    let report = bench.node.meta.check(false).expect("checked");
    assert!(report.is_clean(), "{:?}", report.violations);
}
