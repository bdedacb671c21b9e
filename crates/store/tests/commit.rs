//! Commits under foreign changes: nobody's bytes are ever lost.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_store::backing::DirBacking;
use forebay_store::{BackingStore, Commit, Expect, Result};
use rustix::fs::{CWD, RenameFlags, renameat_with};

fn name() -> &'static OsStr {
    OsStr::new("f")
}

fn commit_result(store: &DirBacking, data: &[u8], expect: Expect) -> Result<Commit> {
    let mut temporary = store.temporary(1)?;
    temporary.file().write_at(data, 0)?;
    store.commit(&mut temporary, &store.root(), name(), expect)
}

fn commit(store: &DirBacking, data: &[u8], expect: Expect) -> Commit {
    commit_result(store, data, expect).unwrap()
}

/// All file contents below a directory.
fn contents(dir: &Path, into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            contents(&path, into);
        } else {
            into.insert(std::fs::read_to_string(path).unwrap());
        }
    }
}

/// What the foreign program knows: the files that it made and those that came out of its swaps.
#[derive(Default)]
struct Foreign {
    made: BTreeSet<u64>,
    replaced: BTreeSet<u64>,
}

/// Ends the foreign program, also when the test fails: else nobody would hear of it.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Swaps new files with `f` until told to stop.
fn foreign_program(dir: &Path, stop: &AtomicBool) -> Foreign {
    let (new, target) = (dir.join("new"), dir.join("f"));
    let mut foreign = Foreign::default();
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        std::fs::write(&new, format!("foreign {round}")).unwrap();
        foreign.made.insert(std::fs::metadata(&new).unwrap().ino());
        renameat_with(CWD, &new, CWD, &target, RenameFlags::EXCHANGE).unwrap();
        foreign.replaced.insert(std::fs::metadata(&new).unwrap().ino());
        std::fs::remove_file(&new).unwrap();
    }
    foreign
}

/// Each version that a foreign program makes must be accounted for: it replaced it itself, or a
/// commit that had been shown this version did, or it is still there.
#[test]
fn commit_against_a_foreign_renamer_never_replaces_an_unseen_version() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = DirBacking::open(dir.path(), "n").unwrap();
    let stop = AtomicBool::new(false);
    std::fs::write(dir.path().join("f"), "start").unwrap();
    let (mut seen, mut conflicts) = (BTreeSet::new(), 0);
    let foreign = std::thread::scope(|scope| {
        let foreign = scope.spawn(|| foreign_program(dir.path(), &stop));
        let end = AtEnd(&stop);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1500) {
            let version = store.stat(&store.root(), name()).unwrap().fingerprint();
            match commit_result(&store, b"ours", Expect::Version(version)) {
                Ok(Commit::Done(_)) => _ = seen.insert(version.ino),
                Ok(Commit::Conflict(found)) => conflicts += usize::from(found.is_some()),
                Err(e) => assert_eq!(e.errno(), libc::EAGAIN, "{e}"),
            }
        }
        drop(end);
        foreign.join().unwrap()
    });
    assert!(!seen.is_empty() && conflicts > 0, "{} commits, {conflicts} conflicts", seen.len());
    store.clean_temporaries("n").unwrap();
    let mut left = BTreeSet::from([std::fs::metadata(dir.path().join("f")).unwrap().ino()]);
    if let Ok(limbo) = std::fs::read_dir(dir.path().join(".forebay/limbo")) {
        left.extend(limbo.map(|entry| entry.unwrap().metadata().unwrap().ino()));
    }
    for made in &foreign.made {
        let accounted =
            foreign.replaced.contains(made) || seen.contains(made) || left.contains(made);
        assert!(accounted, "inode {made} is lost");
    }
}

#[test]
fn commit_over_a_version_changed_in_place_conflicts_and_keeps_both() {
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let store = DirBacking::open(dir.path(), "n").unwrap();
    let Commit::Done(version) = commit(&store, b"one", Expect::Absent) else { panic!() };
    std::fs::write(dir.path().join("f"), "two").unwrap();
    let outcome = commit(&store, b"mine", Expect::Version(version));
    assert!(matches!(outcome, Commit::Conflict(Some(found)) if found.size == 3));
    let mut left = BTreeSet::new();
    contents(dir.path(), &mut left);
    assert_eq!(left, BTreeSet::from(["two".to_owned()]));
}

#[test]
fn clean_temporaries_tells_displaced_files_from_its_own() {
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let store = DirBacking::open(dir.path(), "n").unwrap();
    drop(store.temporary(1).unwrap());
    let tmp = dir.path().join(".forebay/tmp");
    let put = |name: &str| {
        std::fs::write(tmp.join(name), name).unwrap();
        std::fs::metadata(tmp.join(name)).unwrap()
    };
    put("t.n.1.abc");
    put("t.other.1.abc");
    let rename = |from: &str, to: &str| std::fs::rename(tmp.join(from), tmp.join(to)).unwrap();
    let meta = put("own");
    rename("own", &format!("x.n.2.{:x}.1.1.1.1", meta.ino()));
    let meta = put("spill");
    rename("spill", &format!("y.n.3.{:x}.1.1.1.1", meta.ino()));
    let meta = put("replaced");
    let (ino, size, s, ns) = (meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec());
    rename("replaced", &format!("x.n.4.0.{ino:x}.{size:x}.{s:x}.{ns:x}"));
    put("foreign");
    rename("foreign", "x.n.5.0.1.1.1.1");

    let cleaned = store.clean_temporaries("n").unwrap();
    assert_eq!((cleaned.removed, &cleaned.spills[..], cleaned.kept.len()), (3, &[3][..], 1));
    let mut left = BTreeSet::new();
    contents(dir.path(), &mut left);
    assert_eq!(left, ["foreign", "spill", "t.other.1.abc"].map(String::from).into());
    assert_eq!(store.list_spills().unwrap(), [3]);
}

#[test]
fn spill_files_when_one_was_about_to_be_published_then_they_are_all_listed() {
    let dir = tempfile::tempdir().unwrap();
    let store = DirBacking::open(dir.path(), "n").unwrap();
    for ino in 1..=3 {
        drop(store.spill(ino).unwrap());
    }
    let spill = dir.path().join(".forebay/spill");
    for (ino, owner, own) in [(2, "n", true), (3, "n", false), (3, "other", true)] {
        let name = if own { spill.join(format!("n.{ino}")) } else { dir.path().join("published") };
        if !name.exists() {
            std::fs::write(&name, "").unwrap();
        }
        let number = std::fs::metadata(&name).unwrap().ino() - u64::from(!own);
        std::fs::rename(name, spill.join(format!("y.{owner}.{ino}.{number:x}.1.1.1.1"))).unwrap();
    }
    assert_eq!(store.spills_on_their_way().unwrap(), [2]);
    assert_eq!(store.list_spills().unwrap(), [1, 2]);
    assert!(store.open_spill(2).unwrap().is_some());
    assert_eq!(store.spills_on_their_way().unwrap(), []);
    assert_eq!(store.list_spills().unwrap(), [1, 2]);
}

/// A mount below the backing root: renames from the private area cannot go there.
#[test]
fn commit_into_another_mount_below_the_root_is_atomic_too() {
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let inner = dir.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let mounted =
        std::process::Command::new("mount").args(["-t", "tmpfs", "t"]).arg(&inner).status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("not allowed to mount: nothing to check");
        return;
    }
    let result = std::panic::catch_unwind(|| {
        let store = DirBacking::open(dir.path(), "n").unwrap();
        let root = store.open_dir(&store.root(), OsStr::new("inner")).unwrap();
        let mut first = store.temporary(1).unwrap();
        first.file().write_at(b"first", 0).unwrap();
        let Commit::Done(one) = store.commit(&mut first, &root, name(), Expect::Absent).unwrap()
        else {
            panic!("conflict")
        };
        let mut second = store.temporary_beside(1, &root).unwrap();
        second.file().write_at(b"second", 0).unwrap();
        let pending = second.pending().unwrap();
        let two = store.commit(&mut second, &root, name(), Expect::Version(one)).unwrap();
        assert!(matches!(two, Commit::Done(two) if two.same_content(&pending)));
        assert_eq!(std::fs::read(inner.join("f")).unwrap(), b"second");
        assert_eq!(std::fs::read_dir(&inner).unwrap().count(), 1, "nothing is left behind");
    });
    std::process::Command::new("umount").arg("-l").arg(&inner).status().unwrap();
    assert!(result.is_ok());
}

#[test]
fn file_in_limbo_when_another_node_put_it_there_then_comes_out_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|owner| DirBacking::open(dir.path(), owner).unwrap());
    std::fs::write(dir.path().join("f"), b"bytes").unwrap();
    one.park(&one.root(), "f".as_ref(), 9).unwrap();
    assert!(two.unpark(7, &two.root(), "g".as_ref()).is_err());
    two.unpark(9, &two.root(), "g".as_ref()).unwrap();
    assert_eq!(std::fs::read(dir.path().join("g")).unwrap(), b"bytes");
}

/// Else others see it for a moment, and after a kill for good; and it is taken for a file of theirs.
#[cfg(feature = "failpoints")]
#[test]
fn temporary_beside_its_target_when_it_replaces_that_then_no_name_of_it_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let store = DirBacking::open(dir.path(), "me").unwrap();
    let (target, root) = (dir.path().join("f"), store.root());
    std::fs::write(&target, "old").unwrap();
    let known = store.stat(&root, name()).unwrap().fingerprint();
    let mut temporary = store.temporary_beside(1, &root).unwrap();
    temporary.file().write_at(b"new", 0).unwrap();
    let names = |dir: &Path| -> BTreeSet<String> {
        let found = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        found.map(|name| name.to_string_lossy().into()).collect()
    };
    let (seen, place) = (std::sync::Arc::new(std::sync::Mutex::new(BTreeSet::new())), dir.path());
    let (all, place) = (seen.clone(), place.to_path_buf());
    fail::cfg_callback("store.commit.before_unlink", move || {
        all.lock().unwrap().extend(names(&place));
    })
    .unwrap();
    let done = store.commit(&mut temporary, &root, name(), Expect::Version(known)).unwrap();
    fail::remove("store.commit.before_unlink");
    assert!(matches!(done, Commit::Done(_)), "{done:?}");
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "new");
    let seen = seen.lock().unwrap();
    assert!(seen.len() >= 2, "{seen:?}");
    let strange = |name: &&String| *name != "f" && !name.starts_with(".forebay");
    assert_eq!(seen.iter().find(strange), None, "{seen:?}");
}
