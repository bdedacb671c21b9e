//! A daemon that dies at each fail point: a child process runs one commit and is gone at the point;
//! what it leaves is checked here. Needs the feature `failpoints`.
#![cfg(feature = "failpoints")]

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use forebay_store::backing::{Access, DirBacking, RenameMode};
use forebay_store::tier::DirTier;
use forebay_store::{BackingStore, Commit, Expect, FAILPOINTS, Header, Tier};

const DIED: i32 = 86;

fn name() -> &'static OsStr {
    OsStr::new("f")
}

/// What a child does before it dies.
const RENAME: &str = "rename";
const RENAME_REFUSED: &str = "rename over a version of others";

/// The child of the kill test of renames over a version.
#[test]
fn child_of_names() {
    let (Ok(dir), Ok(point)) = (std::env::var("CRASH_DIR"), std::env::var("CRASH_POINT")) else {
        return;
    };
    let what = std::env::var("CRASH_WORK").unwrap();
    let store = DirBacking::open(format!("{dir}/backing"), "n").unwrap();
    let (root, other) = (store.root(), OsStr::new("g"));
    let known = store.stat(&root, name()).unwrap().fingerprint();
    if what == RENAME_REFUSED {
        std::fs::write(format!("{dir}/new"), "theirs").unwrap();
        std::fs::rename(format!("{dir}/new"), format!("{dir}/backing/f")).unwrap();
    }
    // SAFETY: ends the process at once, as a kill would, without touching any memory.
    fail::cfg_callback(&point, || unsafe { libc::_exit(DIED) }).unwrap();
    let mode = RenameMode::ReplaceVersion(known);
    let renamed = store.rename(&root, other, &root, name(), mode);
    assert_eq!(renamed.is_err(), what == RENAME_REFUSED);
}

/// All that users find: below the root, and where the clean-up says that it has kept something.
fn texts(backing: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for dir in
        [backing.to_path_buf(), backing.join(".forebay/limbo"), backing.join(".forebay/lost")]
    {
        let Ok(entries) = std::fs::read_dir(dir) else { continue };
        let files = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        found.extend(files.map(|path| std::fs::read_to_string(path).unwrap()));
    }
    found.sort();
    found
}

#[test]
fn daemon_killed_in_a_rename_over_a_version_then_nothing_of_others_is_lost() {
    let mut died = std::collections::BTreeSet::new();
    let is_of_names = |point: &&str| point.starts_with("store.replace.");
    for point in FAILPOINTS.iter().copied().filter(is_of_names) {
        for what in [RENAME, RENAME_REFUSED] {
            let dir = tempfile::tempdir_in("/dev/shm").unwrap();
            let backing = dir.path().join("backing");
            std::fs::create_dir(&backing).unwrap();
            std::fs::write(backing.join("f"), "old").unwrap();
            std::fs::write(backing.join("g"), "ours").unwrap();
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "child_of_names"])
                .env("CRASH_DIR", dir.path())
                .env("CRASH_POINT", point)
                .env("CRASH_WORK", what)
                .output()
                .unwrap()
                .status;
            match status.code() {
                Some(DIED) => _ = died.insert(point),
                code => assert_eq!(code, Some(0), "{point} {what}"),
            }
            let store = DirBacking::open(&backing, "n").unwrap();
            store.clean_temporaries("n").unwrap();
            let left = texts(&backing);
            let has = |text: &str| left.iter().any(|left| left == text);
            assert!(has("ours"), "{point} {what}: {left:?}");
            assert_eq!(has("theirs"), what == RENAME_REFUSED, "{point} {what}: {left:?}");
            // The version that was known is gone, or stands under one of the names.
            assert!(left.len() <= 2, "{point} {what}: {left:?}");
            let tmp = std::fs::read_dir(backing.join(".forebay/tmp")).map_or(0, Iterator::count);
            assert_eq!(tmp, 0, "{point} {what}");
        }
    }
    let all: std::collections::BTreeSet<_> =
        FAILPOINTS.iter().copied().filter(is_of_names).collect();
    assert_eq!(died, all, "every point on the way was reached");
}

/// The child: commits as a flush does, and dies at the point named in its environment.
#[test]
fn child() {
    let (Ok(dir), Ok(point)) = (std::env::var("CRASH_DIR"), std::env::var("CRASH_POINT")) else {
        return;
    };
    let tier = DirTier::open(format!("{dir}/tier")).unwrap();
    let store = DirBacking::open(format!("{dir}/backing"), "n").unwrap();
    let old = store.stat(&store.root(), name()).unwrap().fingerprint();
    // SAFETY: ends the process at once, as a kill would, without touching any memory.
    fail::cfg_callback(&point, || unsafe { libc::_exit(DIED) }).unwrap();
    let mut header = Header { ino: 1, dirty: true, base: Some(old), ..Header::default() };
    let object = tier.create(1, &header).unwrap();
    object.write_at(b"new", 0).unwrap();
    let mut map = tier.create_map(1, 4096, 3).unwrap();
    map.mark_dirty(0..3).unwrap();
    map.sync(&*object).unwrap();
    let mut temporary = store.temporary(1).unwrap();
    let limits = forebay_store::copy::Limits::plain(forebay_store::copy::Priority::WriteBack);
    let never = forebay_store::copy::Cancel::default();
    forebay_store::copy::copy_range(&*object, &**temporary.file(), 0..3, &limits, &never).unwrap();
    header.pending = Some(temporary.pending().unwrap());
    object.set_header(&header).unwrap();
    let done = store.commit(&mut temporary, &store.root(), name(), Expect::Version(old)).unwrap();
    let Commit::Done(base) = done else { panic!("conflict") };
    store.sync_held(&[store.root()]).unwrap();
    header = Header { dirty: false, pending: None, base: Some(base), ..header };
    object.set_header(&header).unwrap();
    map.clear(0..3).unwrap();
    tier.remove(1).unwrap();
}

fn content(dir: &Path) -> Vec<u8> {
    std::fs::read(dir.join("backing/f")).unwrap()
}

/// What the next daemon does with a dirty object: flushes it, unless it was published already.
fn recover(dir: &Path) {
    let tier = DirTier::open(dir.join("tier")).unwrap();
    let store = DirBacking::open(dir.join("backing"), "n").unwrap();
    let cleaned = store.clean_temporaries("n").unwrap();
    assert!(cleaned.kept.is_empty() && cleaned.spills.is_empty());
    let Ok(object) = tier.open(1) else { return };
    let Ok(header) = object.header() else {
        assert!(object.is_empty().unwrap(), "without a header there are no bytes");
        return;
    };
    let found = store.stat(&store.root(), name()).unwrap().fingerprint();
    let published = header.pending.is_some_and(|pending| pending.same_content(&found));
    if header.dirty && !published && !object.is_empty().unwrap() {
        let mut bytes = [0; 3];
        assert_eq!(object.read_at(&mut bytes, 0).unwrap(), 3);
        assert_eq!(&bytes, b"new");
        let mut temporary = store.temporary(1).unwrap();
        temporary.file().write_at(&bytes, 0).unwrap();
        let base = header.base.expect("the header says what it is based on");
        let done = store.commit(&mut temporary, &store.root(), name(), Expect::Version(base));
        assert!(matches!(done.unwrap(), Commit::Done(_)), "no false conflict after a crash");
    }
}

#[test]
fn daemon_killed_at_any_fail_point_loses_nothing_and_leaves_no_litter() {
    let mut died = Vec::new();
    for point in FAILPOINTS {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let backing = dir.path().join("backing");
        std::fs::create_dir(&backing).unwrap();
        std::fs::write(backing.join("f"), "old").unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child"])
            .env("CRASH_DIR", dir.path())
            .env("CRASH_POINT", point)
            .output()
            .unwrap()
            .status;
        match status.code() {
            Some(DIED) => died.push(*point),
            code => assert_eq!(code, Some(0), "{point}"),
        }
        let now = content(dir.path());
        assert!(now == b"old" || now == b"new", "{point}: {now:?}");
        recover(dir.path());
        let wrote = *point != "store.create.before_header" && *point != "store.header.before_set";
        let first = *point == "store.header.after_set";
        if wrote && !first {
            assert_eq!(content(dir.path()), b"new", "{point}");
        }
        let store = DirBacking::open(&backing, "n").unwrap();
        store.tidy().unwrap();
        let left = std::fs::read_dir(&backing).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(left.filter(|name| name != ".forebay").count(), 1, "{point} leaves litter");
        let private = std::fs::read_dir(backing.join(".forebay"));
        assert_eq!(private.map_or(0, Iterator::count), 0, "{point} leaves litter");
        store.open_file(&store.root(), name(), Access::Read).unwrap();
    }
    // A commit does not come by those of a rename over a known version.
    let expected: Vec<_> = FAILPOINTS
        .iter()
        .filter(|p| !p.starts_with("store.replace."))
        .filter(|p| !matches!(**p, "store.commit.before_copy_beside" | "store.limbo.before_move"))
        .copied()
        .filter(|p| !matches!(*p, "store.presence.after_clear" | "store.make.before_mode"))
        .collect();
    assert_eq!(died, expected, "every point on the way was reached");
}
