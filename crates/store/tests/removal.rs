//! Removals of what somebody has looked at, under foreign changes: nothing else goes.
#![cfg(feature = "failpoints")]

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use forebay_store::BackingStore;
use forebay_store::backing::{DirBacking, Known, Removed};

const BEFORE_BACK: &str = "store.removal.before_back";

fn os(name: &str) -> &OsStr {
    OsStr::new(name)
}

fn version(store: &DirBacking, name: &str) -> Known {
    Known::Version(store.stat(&store.root(), os(name)).unwrap().fingerprint())
}

fn left_in_private(dir: &Path) -> usize {
    let areas = ["tmp", "limbo", "lost", "nodes"].map(|area| dir.join(".forebay").join(area));
    let count = |area: &std::path::PathBuf| fs::read_dir(area).map_or(0, Iterator::count);
    areas.iter().map(count).sum()
}

fn replace(dir: &Path, text: &str) {
    fs::write(dir.join("new"), text).unwrap();
    fs::rename(dir.join("new"), dir.join("f")).unwrap();
}

#[test]
fn removal_when_others_have_put_something_there_then_theirs_stays_and_twice_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = DirBacking::open(dir.path(), "n").unwrap();
    let (path, root) = (dir.path(), store.root());
    let f = path.join("f");
    let remove = |known: &Known| store.unlink_known(&root, os("f"), known);

    fs::write(&f, "known").unwrap();
    assert_eq!(remove(&version(&store, "f")).unwrap(), Removed::Done);
    assert!(!f.exists());
    assert_eq!(remove(&Known::Version(Default::default())).unwrap_err().errno(), libc::ENOENT);

    fs::write(&f, "known").unwrap();
    let known = version(&store, "f");
    replace(path, "of others");
    assert_eq!(remove(&known).unwrap(), Removed::Other);
    assert_eq!(fs::read_to_string(&f).unwrap(), "of others");

    let known = version(&store, "f");
    fs::remove_file(&f).unwrap();
    fs::create_dir(&f).unwrap();
    fs::write(f.join("in"), "of others").unwrap();
    assert_eq!(remove(&known).unwrap(), Removed::Other);
    assert_eq!(fs::read_to_string(f.join("in")).unwrap(), "of others");
    fs::remove_dir_all(&f).unwrap();

    // Whatever is in it.
    fs::write(&f, "known").unwrap();
    let known = Known::Object(store.stat(&root, os("f")).unwrap().fingerprint());
    fs::write(&f, "changed in place").unwrap();
    assert_eq!(remove(&known).unwrap(), Removed::Done);
    assert_eq!(left_in_private(path), 0);

    // They take the name again while theirs is looked at.
    fs::write(&f, "known").unwrap();
    let known = version(&store, "f");
    replace(path, "of others");
    let meanwhile = path.to_path_buf();
    fail::cfg_callback(BEFORE_BACK, move || replace(&meanwhile, "newer")).unwrap();
    let Removed::Kept(kept) = remove(&known).unwrap() else { panic!("not kept") };
    fail::remove(BEFORE_BACK);
    assert_eq!(fs::read_to_string(&f).unwrap(), "newer");
    assert_eq!(fs::read_to_string(kept).unwrap(), "of others");

    answers_that_say_nothing(path, &store);
}

/// A store may carry something out and answer with an error all the same.
fn answers_that_say_nothing(dir: &Path, store: &DirBacking) {
    for answer in ["store.removal.answer_of_move", "store.removal.answer_of_unlink"] {
        fs::write(dir.join("f"), "known").unwrap();
        let known = version(store, "f");
        fail::cfg(answer, "1*return->off").unwrap();
        assert_eq!(store.unlink_known(&store.root(), os("f"), &known).unwrap(), Removed::Done);
        fail::remove(answer);
        assert!(!dir.join("f").exists());
    }
    store.remove_strays().unwrap();
    // Only what was kept above.
    assert_eq!(left_in_private(dir), 1);
}

#[test]
fn removal_of_a_directory_when_others_have_put_another_there_then_theirs_stays() {
    for shares in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let store = DirBacking::open(dir.path(), "n").unwrap();
        if shares {
            store.act_as(1).unwrap();
        }
        let (root, d) = (store.root(), dir.path().join("d"));
        fs::create_dir(&d).unwrap();
        let known = store.stat(&root, os("d")).unwrap().fingerprint();
        fs::rename(&d, dir.path().join("aside")).unwrap();
        fs::create_dir(&d).unwrap();
        assert_eq!(store.rmdir_known(&root, os("d"), &known).unwrap(), Removed::Other);
        assert!(d.is_dir());
        fs::remove_dir(&d).unwrap();
        fs::write(&d, "of others").unwrap();
        assert_eq!(store.rmdir_known(&root, os("d"), &known).unwrap(), Removed::Other);
        assert!(d.is_file());
        assert_eq!(store.rmdir_known(&root, os("aside"), &known).unwrap(), Removed::Done);
        assert!(!dir.path().join("aside").exists());
    }
}
