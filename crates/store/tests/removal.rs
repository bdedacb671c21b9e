//! Removals of what somebody has looked at, under foreign changes: nothing else goes.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use forebay_store::BackingStore;
use forebay_store::backing::{DirBacking, Known, Removed};

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
fn removal_when_others_have_put_something_there_then_theirs_stays() {
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

/// What came along in the place of a directory, and could not be given back, is not the node's to remove.
#[test]
fn file_of_others_that_was_moved_for_a_directory_when_its_node_is_shut_out_then_it_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (
        DirBacking::open(dir.path(), "one").unwrap(),
        DirBacking::open(dir.path(), "two").unwrap(),
    );
    one.act_as(1).unwrap();
    two.act_as(1).unwrap();
    let nodes = fs::read_dir(dir.path().join(".forebay/nodes")).unwrap();
    let mut names = nodes.map(|entry| entry.unwrap().path());
    let is_ones =
        |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("one.");
    let own = names.find(is_ones).unwrap();
    fs::write(own.join("e.1"), "of others").unwrap();
    let cleaned = two.shut_out("one", Some(1)).unwrap();
    assert_eq!(cleaned.kept, ["e.1"]);
    let kept = fs::read_to_string(dir.path().join(".forebay/limbo/e.1")).unwrap();
    assert_eq!(kept, "of others");
}
