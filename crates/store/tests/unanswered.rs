//! A store that is away for a moment: a rename is carried out and its answer lost, and neither can be
//! looked at what was renamed.
#![cfg(feature = "failpoints")]

use std::ffi::OsStr;

use forebay_store::backing::DirBacking;
use forebay_store::{BackingStore, Expect};

#[test]
fn spill_file_whose_rename_and_look_got_no_answer_when_the_store_is_back_then_found_and_no_stray_stays()
 {
    let dir = tempfile::tempdir().unwrap();
    let store = DirBacking::open(dir.path(), "n").unwrap();
    let (root, name) = (store.root(), OsStr::new("file"));
    std::fs::write(dir.path().join("file"), "there").unwrap();
    let version = store.stat(&root, name).unwrap().fingerprint();
    let away = || {
        for point in ["store.commit.answer_of_rename", "store.commit.answer_of_own"] {
            fail::cfg(point, "1*return->off").unwrap();
        }
    };
    let mut spill = store.spill(1).unwrap();
    spill.file().write_at(b"newer", 0).unwrap();
    away();
    store.commit(&mut spill, &root, name, Expect::Version(version)).unwrap_err();
    drop(spill);
    let mut spill = store.open_spill(1).unwrap().expect("its only copy");
    let mut bytes = [0; 5];
    spill.file().read_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"newer");
    store.commit(&mut spill, &root, name, Expect::Version(version)).unwrap();
    assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"newer");
    // Of a temporary nothing stays.
    let version = store.stat(&root, name).unwrap().fingerprint();
    let mut temporary = store.temporary(2).unwrap();
    away();
    store.commit(&mut temporary, &root, name, Expect::Version(version)).unwrap_err();
    drop(temporary);
    store.remove_strays().unwrap();
    assert_eq!(std::fs::read_dir(dir.path().join(".forebay/tmp")).unwrap().count(), 0);
}
