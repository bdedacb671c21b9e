//! A store whose exchanges are repeated: it carries one out and answers with ESTALE, on which the system
//! asks for it once more by itself.
#![cfg(feature = "failpoints")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_store::backing::DirBacking;
use forebay_store::{BackingStore, Commit, Expect};
use rustix::fs::{CWD, RenameFlags};

/// What is about to be exchanged, or was.
fn in_hand(area: &Path) -> Option<PathBuf> {
    let prefixes = ["x.", "y."];
    let entries = std::fs::read_dir(area).into_iter().flatten().flatten().map(|e| e.path());
    entries.into_iter().find(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        prefixes.iter().any(|prefix| name.starts_with(prefix))
    })
}

#[test]
fn exchange_that_is_carried_out_twice_when_a_file_is_published_then_no_conflict_and_no_stray() {
    let dir = tempfile::tempdir().unwrap();
    let store = DirBacking::open(dir.path(), "n").unwrap();
    let (root, name) = (store.root(), OsStr::new("file"));
    let file = dir.path().join("file");
    std::fs::write(&file, "there").unwrap();
    let private = dir.path().join(".forebay");
    let times = Arc::new(AtomicUsize::new(0));
    let (left, at, areas) =
        (times.clone(), file.clone(), ["tmp", "spill"].map(|a| private.join(a)));
    fail::cfg_callback("store.commit.after_exchange", move || {
        if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
            let held = areas.iter().find_map(|area| in_hand(area)).unwrap();
            rustix::fs::renameat_with(CWD, &held, CWD, &at, RenameFlags::EXCHANGE).unwrap();
        }
    })
    .unwrap();
    for (number, bytes) in [b"first", b"later"].iter().enumerate() {
        let version = store.stat(&root, name).unwrap().fingerprint();
        let mut made = match number {
            0 => store.temporary(1).unwrap(),
            _ => store.spill(1).unwrap(),
        };
        made.file().write_at(&bytes[..], 0).unwrap();
        times.store(1 + number, Ordering::Relaxed);
        let done = store.commit(&mut made, &root, name, Expect::Version(version)).unwrap();
        assert!(matches!(done, Commit::Done(_)), "{done:?}");
        assert_eq!(std::fs::read(&file).unwrap(), &bytes[..]);
        drop(made);
        store.remove_strays().unwrap();
        for area in ["tmp", "spill"] {
            let left = std::fs::read_dir(private.join(area)).map_or(0, Iterator::count);
            assert_eq!(left, 0, "{area} is not empty");
        }
    }
}
