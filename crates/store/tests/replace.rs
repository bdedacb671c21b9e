//! Renames over a version that is known, under foreign changes: nobody's bytes are ever lost.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_store::backing::{DirBacking, RenameMode};
use forebay_store::{BackingStore, ErrorClass};

fn os(name: &str) -> &OsStr {
    OsStr::new(name)
}

fn store() -> (tempfile::TempDir, DirBacking) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = DirBacking::open(dir.path(), "n").unwrap();
    (dir, store)
}

fn known(store: &DirBacking, name: &str) -> RenameMode {
    let found = store.stat(&store.root(), os(name)).unwrap();
    RenameMode::ReplaceVersion(found.fingerprint())
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != ".forebay");
    names.sort();
    names
}

#[test]
fn replace_when_the_version_stands_there_then_it_goes_with_the_old_name() {
    let (dir, store) = store();
    std::fs::write(dir.path().join("f"), "old").unwrap();
    std::fs::write(dir.path().join("g"), "new").unwrap();
    let root = store.root();
    store.rename(&root, os("g"), &root, os("f"), known(&store, "f")).unwrap();
    assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), b"new");
    assert_eq!(names(dir.path()), ["f"]);
}

#[test]
fn replace_when_others_changed_or_replaced_or_removed_it_then_theirs_stays() {
    let (dir, store) = store();
    let (f, g, root) = (dir.path().join("f"), dir.path().join("g"), store.root());
    std::fs::write(&f, "old").unwrap();
    std::fs::write(&g, "new").unwrap();
    let version = known(&store, "f");
    std::fs::write(&f, "changed in place").unwrap();
    let refused = store.rename(&root, os("g"), &root, os("f"), version).unwrap_err();
    assert_eq!(refused.class(), ErrorClass::Exists);
    assert_eq!(std::fs::read(&f).unwrap(), b"changed in place");
    assert_eq!(std::fs::read(&g).unwrap(), b"new");
    std::fs::remove_file(&f).unwrap();
    std::fs::create_dir(&f).unwrap();
    std::fs::write(f.join("below"), "theirs").unwrap();
    let refused = store.rename(&root, os("g"), &root, os("f"), version).unwrap_err();
    assert_eq!(refused.class(), ErrorClass::Exists);
    assert_eq!(std::fs::read(f.join("below")).unwrap(), b"theirs");
    std::fs::remove_dir_all(&f).unwrap();
    store.rename(&root, os("g"), &root, os("f"), version).unwrap();
    assert_eq!(std::fs::read(&f).unwrap(), b"new");
    let gone = store.rename(&root, os("g"), &root, os("f"), version).unwrap_err();
    assert_eq!(gone.class(), ErrorClass::NotFound);
    assert_eq!(names(dir.path()), ["f"]);
}

/// Ends the foreign program, also when the test fails: else nobody would hear of it.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Puts new files in the place of `f` until told to stop. Those that were there when it did so.
fn foreign_program(dir: &Path, stop: &AtomicBool) -> (u64, BTreeSet<String>) {
    let (new, target) = (dir.join("theirs"), dir.join("f"));
    let (mut made, mut replaced) = (0, BTreeSet::new());
    while !stop.load(Ordering::Relaxed) {
        std::fs::write(&new, format!("foreign {made}")).unwrap();
        made += 1;
        let (cwd, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
        match rustix::fs::renameat_with(cwd, &new, cwd, &target, flags) {
            Ok(()) => _ = replaced.insert(std::fs::read_to_string(&new).unwrap()),
            Err(_) => std::fs::rename(&new, &target).unwrap(),
        }
        std::fs::remove_file(&new).ok();
    }
    (made, replaced)
}

#[test]
fn replace_against_a_foreign_renamer_never_replaces_an_unseen_version() {
    let (dir, store) = store();
    let (stop, root) = (AtomicBool::new(false), store.root());
    std::fs::write(dir.path().join("f"), "start").unwrap();
    let mut seen = BTreeSet::new();
    let (mut refused, mut done) = (0, 0);
    let (made, replaced) = std::thread::scope(|scope| {
        let foreign = scope.spawn(|| foreign_program(dir.path(), &stop));
        let end = AtEnd(&stop);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1500) {
            std::fs::write(dir.path().join("ours"), "ours").unwrap();
            let Ok(found) = store.stat(&root, os("f")) else { continue };
            let looked = std::fs::read_to_string(dir.path().join("f")).unwrap_or_default();
            let now = store.stat(&root, os("f")).map(|now| now.fingerprint());
            if now.ok() != Some(found.fingerprint()) {
                continue;
            }
            let version = RenameMode::ReplaceVersion(found.fingerprint());
            // Now and then others get on between the look and the rename.
            if (done + refused) % 2 == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
            match store.rename(&root, os("ours"), &root, os("f"), version) {
                Ok(()) => {
                    done += 1;
                    seen.insert(looked);
                }
                Err(error) => {
                    assert_eq!(error.class(), ErrorClass::Exists, "{error}");
                    refused += 1;
                    // What has come out stays here if others have replaced ours meanwhile.
                    seen.extend(std::fs::read_to_string(dir.path().join("ours")));
                }
            }
        }
        drop(end);
        foreign.join().unwrap()
    });
    assert!(done + refused > 0);
    let left: BTreeSet<_> = names(dir.path())
        .into_iter()
        .filter_map(|name| std::fs::read_to_string(dir.path().join(name)).ok())
        .collect();
    for number in 0..made {
        let text = format!("foreign {number}");
        let known = seen.contains(&text) || replaced.contains(&text) || left.contains(&text);
        assert!(known, "{text} was replaced unseen");
    }
}
