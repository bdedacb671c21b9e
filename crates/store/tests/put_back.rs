//! What came out of an exchange and is others' gets its name back, whatever they do meanwhile.
#![cfg(feature = "failpoints")]

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use forebay_store::backing::{DirBacking, RenameMode};
use forebay_store::{BackingStore, Commit, ErrorClass, Expect};

const BEFORE_SWAP_BACK: &str = "store.replace.before_swap_back";

fn os(name: &str) -> &OsStr {
    OsStr::new(name)
}

fn read(dir: &Path, name: &str) -> String {
    fs::read_to_string(dir.join(name)).unwrap()
}

/// Others do something right before what came out is put back.
fn meanwhile(dir: &Path, what: fn(&Path)) {
    let dir = dir.to_path_buf();
    fail::cfg_callback(BEFORE_SWAP_BACK, move || what(&dir)).unwrap();
}

fn replace_by_a_newer_one(dir: &Path) {
    fs::write(dir.join("new"), "newer").unwrap();
    fs::rename(dir.join("new"), dir.join("f")).unwrap();
}

#[test]
fn version_put_back_when_others_replace_or_remove_ours_meanwhile_then_their_newest_has_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = DirBacking::open(dir.path(), "n").unwrap();
    let (dir, root) = (dir.path(), store.root());
    let rename = || {
        fs::write(dir.join("f"), "known").unwrap();
        fs::write(dir.join("ours"), "ours").unwrap();
        let known = store.stat(&root, os("f")).unwrap().fingerprint();
        fs::write(dir.join("f"), "changed").unwrap();
        let mode = RenameMode::ReplaceVersion(known);
        store.rename(&root, os("ours"), &root, os("f"), mode).unwrap_err().class()
    };
    meanwhile(dir, |_| {});
    assert_eq!(rename(), ErrorClass::Exists);
    assert_eq!((read(dir, "f"), read(dir, "ours")), ("changed".into(), "ours".into()));
    meanwhile(dir, replace_by_a_newer_one);
    assert_eq!(rename(), ErrorClass::Exists);
    assert_eq!((read(dir, "f"), read(dir, "ours")), ("newer".into(), "changed".into()));
    meanwhile(dir, |dir| fs::remove_file(dir.join("f")).unwrap());
    assert_eq!(rename(), ErrorClass::Exists);
    assert_eq!(read(dir, "f"), "changed");
    assert!(!dir.join("ours").exists());

    let commit = || {
        fs::write(dir.join("f"), "known").unwrap();
        let known = store.stat(&root, os("f")).unwrap().fingerprint();
        let mut ours = store.temporary(1).unwrap();
        ours.file().write_at(b"ours", 0).unwrap();
        let path = dir.join("f");
        let change = move || fs::write(&path, "changed").unwrap();
        fail::cfg_callback("store.commit.before_exchange", change).unwrap();
        store.commit(&mut ours, &root, os("f"), Expect::Version(known))
    };
    meanwhile(dir, |_| {});
    assert!(matches!(commit(), Ok(Commit::Conflict(Some(_)))));
    assert_eq!(read(dir, "f"), "changed");
    meanwhile(dir, replace_by_a_newer_one);
    assert_eq!(commit().unwrap_err().errno(), libc::EAGAIN);
    assert_eq!(read(dir, "f"), "newer");
    meanwhile(dir, |dir| fs::remove_file(dir.join("f")).unwrap());
    assert!(matches!(commit(), Ok(Commit::Conflict(Some(_)))));
    assert_eq!(read(dir, "f"), "changed");
    fail::remove(BEFORE_SWAP_BACK);
    fail::remove("store.commit.before_exchange");
    answers_that_say_nothing(dir, &store);
}

/// A store may carry something out and answer with an error all the same.
fn answers_that_say_nothing(dir: &Path, store: &DirBacking) {
    let root = store.root();
    let replace = || {
        fs::write(dir.join("f"), "known").unwrap();
        fs::write(dir.join("ours"), "ours").unwrap();
        let known = store.stat(&root, os("f")).unwrap().fingerprint();
        let mode = RenameMode::ReplaceVersion(known);
        store.rename(&root, os("ours"), &root, os("f"), mode)
    };
    for answer in ["store.replace.answer_of_exchange", "store.replace.answer_of_unlink"] {
        fail::cfg(answer, "1*return").unwrap();
        replace().unwrap();
        assert_eq!(read(dir, "f"), "ours");
        assert!(!dir.join("ours").exists());
    }
}
