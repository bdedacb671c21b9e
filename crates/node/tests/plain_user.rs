//! The mount of a user without privilege, in a process of that user: what he may write but not give
//! away reaches the backing store.

mod rig;

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use forebay_node::{Context, Ino, NewFile, NodeError, Remaining, SetAttr, SetTime, Timestamp};
use forebay_store::decorators::{Interceptor, Operation, Transparent, Verdict};
use forebay_testing::new_dir;
use rig::{KIB, MIB, Rig, noise};

const DIR: &str = "FOREBAY_USER_DIR";
const USER: u32 = 65_534;
const OTHER_GROUP: u32 = 12_345;
const CONTEXT: Context = Context { uid: USER, gid: USER, pid: 0, waiter: None };

fn drain(rig: &Rig) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
    let left = rig.node().writeback().drain(until, &mut |_| true).unwrap();
    assert_eq!(left, Remaining::default(), "{:?}", rig.node().writeback().last_backlog_error());
}

fn append(rig: &Rig, name: &str, bytes: &[u8]) {
    let fh = rig.node().open(&CONTEXT, rig.ino(name), libc::O_RDWR).unwrap().fh;
    let mut at = rig.size(name);
    for piece in bytes.chunks(64 << 10) {
        rig.node().write(&CONTEXT, fh, at, piece).unwrap();
        at += piece.len() as u64;
    }
    rig.node().release(fh);
}

/// What the user does, in his own process.
#[test]
#[ignore = "started by the other test of this file"]
fn as_the_user() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let mut rig = Rig::at(PathBuf::from(dir), &[MIB], Arc::new(Transparent), |_| {});
    rig.start();
    // Small, whole on the tier.
    append(&rig, "theirs", b"more");
    drain(&rig);
    assert_eq!(rig.plain("theirs"), b"something more");
    append(&rig, "theirs", b", and more");
    drain(&rig);
    assert_eq!(rig.plain("theirs"), b"something more, and more");
    // Of it only a part is on the tier, and some is spilled.
    let added = noise(8, 3 * MIB);
    append(&rig, "large", &added);
    drain(&rig);
    let large = rig.plain("large");
    assert!(large[..500 * KIB as usize] == noise(7, 500 * KIB));
    assert!(large[500 * KIB as usize..] == added);
    // Emptied.
    let fh = rig.node().open(&CONTEXT, rig.ino("emptied"), libc::O_RDWR | libc::O_TRUNC).unwrap();
    rig.node().release(fh.fh);
    drain(&rig);
    assert_eq!(rig.plain("emptied"), b"");
    // A new file belongs to the group of its directory, of which the user is no member.
    let dir = rig.ino("shared");
    let made = rig
        .node()
        .create_and_open(&CONTEXT, dir, b"new", NewFile { mode: 0o664, umask: 0o002 }, libc::O_RDWR)
        .unwrap();
    rig.node().write(&CONTEXT, made.1.fh, 0, b"new").unwrap();
    rig.node().release(made.1.fh);
    assert_eq!(made.0.attr.gid, OTHER_GROUP);
    drain(&rig);
    assert_eq!(rig.plain("shared/new"), b"new");
    assert_eq!(rig.node().writeback().conflicts().0, 0);
    let refused = rig.node().writeback().refused();
    assert!(refused.is_empty(), "{refused:?}");
    // Nobody but an administrator can have set an owner that the user may not set.
    let set = forebay_node::SetAttr { gid: Some(OTHER_GROUP + 1), ..Default::default() };
    rig.node().setattr(&Context::DAEMON, rig.ino("own"), &set).unwrap();
    append(&rig, "own", b"!");
    drain(&rig);
    assert_eq!(rig.plain("own"), b"own!");
    assert_eq!(rig.node().writeback().refused().len(), 1);
    assert!(rig.node().lookup(&CONTEXT, Ino::ROOT, b"own").unwrap().is_some());
    // What it made is looked at by the other user.
    rig.node.take().unwrap().stop(std::time::Duration::from_secs(5));
    std::mem::forget(rig);
}

#[test]
fn files_of_others_when_a_plain_user_writes_them_then_written_in_place() {
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can make the files of another user");
        return;
    }
    let dir = new_dir("/dev/shm", "forebay-user");
    let backing = dir.join("backing");
    std::fs::create_dir_all(backing.join("shared")).unwrap();
    let mode = |path: &PathBuf, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&dir, 0o777);
    mode(&backing, 0o777);
    let files = [
        ("theirs", b"something ".to_vec(), 0),
        ("large", noise(7, 500 * KIB), 0),
        ("emptied", b"full".to_vec(), 0),
        ("own", b"own".to_vec(), USER),
    ];
    for (name, bytes, owner) in files {
        let path = backing.join(name);
        std::fs::write(&path, bytes).unwrap();
        chown(&path, Some(owner), Some(USER)).unwrap();
        mode(&path, 0o664);
    }
    let shared = backing.join("shared");
    chown(&shared, Some(0), Some(OTHER_GROUP)).unwrap();
    mode(&shared, 0o2777);
    let theirs = std::fs::metadata(backing.join("theirs")).unwrap();
    let (passed, why) = run_as_the_user("as_the_user", &dir);
    if backing.exists() && passed {
        let now = std::fs::metadata(backing.join("theirs")).unwrap();
        assert_eq!((now.ino(), now.uid(), now.gid()), (theirs.ino(), 0, USER), "{why}");
        let new = std::fs::metadata(backing.join("shared/new"));
        assert!(new.is_ok_and(|new| new.gid() == OTHER_GROUP), "{why}");
    }
    drop(std::fs::remove_dir_all(&dir));
    assert!(passed, "{why}");
}

/// Runs one of the tests of this file as the user. Says whether it passed, and what it said.
fn run_as_the_user(test: &str, dir: &Path) -> (bool, String) {
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--include-ignored", "--nocapture"])
        .env(DIR, dir)
        .uid(USER)
        .gid(USER)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let why = String::from_utf8_lossy(&ended.stderr).into_owned();
    (ended.status.success() && said.contains("1 passed"), why)
}

/// The kernel lets a program do all this: what it must not do it does not ask for.
#[test]
#[ignore = "started by the other test of this file"]
fn in_closed_directories() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let mut rig = Rig::at(PathBuf::from(dir), &[MIB], Arc::new(Transparent), |_| {});
    rig.start();
    let [entered, listed] = ["entered", "listed"].map(|name| rig.ino(name));
    let found = |name: &[u8]| rig.node().lookup(&CONTEXT, entered, name).unwrap().is_some();
    assert!(found(b"file") && !found(b"none"));
    let mut names = Vec::new();
    rig.node()
        .read_dir(&CONTEXT, listed, 0, 100, false, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .unwrap();
    assert!(names.contains(&b"file".to_vec()), "{names:?}");
    let full = rig.node().rmdir(&CONTEXT, Ino::ROOT, b"full");
    assert!(matches!(full, Err(NodeError::Meta(forebay_meta::Error::NotEmpty))), "{full:?}");
    rig.node().rmdir(&CONTEXT, Ino::ROOT, b"empty").unwrap();
    drain(&rig);
    assert!(!rig.backing().join("empty").exists());
    for (name, mode) in CLOSED.iter().filter(|(name, _)| *name != "empty") {
        let below = std::fs::metadata(rig.backing().join(name)).unwrap();
        assert_eq!(below.permissions().mode() & 0o777, *mode, "{name}");
        assert_eq!(rig.node().getattr(&CONTEXT, rig.ino(name)).unwrap().attr.perm, *mode, "{name}");
    }
    rig.node.take().unwrap().stop(std::time::Duration::from_secs(5));
    std::mem::forget(rig);
}

/// Directories of the backing store that their owner has closed to himself.
const CLOSED: [(&str, u32); 4] = [("entered", 0o300), ("listed", 0o400), ("full", 0), ("empty", 0)];

#[test]
fn directories_that_a_plain_user_has_closed_when_looked_at_or_removed_then_as_natively() {
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can make the files of another user");
        return;
    }
    let dir = new_dir("/dev/shm", "forebay-closed");
    let backing = dir.join("backing");
    std::fs::create_dir_all(&backing).unwrap();
    for (name, mode) in CLOSED {
        let closed = backing.join(name);
        std::fs::create_dir(&closed).unwrap();
        if name != "empty" {
            std::fs::write(closed.join("file"), b"bytes").unwrap();
        }
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(mode)).unwrap();
        chown(&closed, Some(USER), Some(USER)).unwrap();
    }
    for open in [&dir, &backing] {
        chown(open, Some(USER), Some(USER)).unwrap();
    }
    let (passed, why) = run_as_the_user("in_closed_directories", &dir);
    drop(std::fs::remove_dir_all(&dir));
    assert!(passed, "{why}");
}

/// What is in use is written for a sync, and nobody looks for names ahead of time where that would take
/// opening a directory.
#[test]
#[ignore = "started by the other test of this file"]
fn while_in_use() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let mut rig = Rig::at(PathBuf::from(dir), &[MIB], Arc::new(Transparent), |_| {});
    rig.start();
    let about = |name: &str| {
        let found = std::fs::metadata(rig.backing().join(name)).unwrap();
        (found.permissions().mode() & 0o777, found.mtime(), found.mtime_nsec())
    };
    let before = about("closed");
    let file = rig.node().lookup(&CONTEXT, rig.ino("closed"), b"file").unwrap().unwrap().ino;
    let fh = rig.node().open(&CONTEXT, file, libc::O_RDWR).unwrap().fh;
    rig.node().write(&CONTEXT, fh, 0, b"BYTES").unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
    let synced = rig.node().writeback().sync_subtree(Ino::ROOT, until, &mut |_| true).unwrap();
    assert_eq!((synced.in_use, synced.failed), (1, 0), "{synced:?}");
    // At once: nothing is waited for.
    assert_eq!(about("closed"), before);
    rig.node().release(fh);
    drain(&rig);
    assert_eq!(about("closed"), before);
    closed_both_while_in_use(&rig);
    // A directory that names can be looked up in, and not listed.
    let changed = || {
        let found = std::fs::metadata(rig.backing().join("entered")).unwrap();
        (found.ctime(), found.ctime_nsec())
    };
    let (entered, before) = (rig.ino("entered"), changed());
    for number in 0..100 {
        let name = format!("none{number}");
        assert!(rig.node().lookup(&CONTEXT, entered, name.as_bytes()).unwrap().is_none());
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(changed(), before, "it was opened, and closed again");
    rig.node.take().unwrap().stop(std::time::Duration::from_secs(5));
    std::mem::forget(rig);
}

/// A directory and one in it are closed while a file below is written: to close the one may take opening
/// the other.
fn closed_both_while_in_use(rig: &Rig) {
    let node = rig.node();
    let mut dir = Ino::ROOT;
    let mut dirs = Vec::new();
    for name in ["outer", "inner"] {
        dir = node.mkdir(&CONTEXT, dir, name.as_bytes(), 0o755, 0).unwrap().ino;
        dirs.push(dir);
    }
    let new = NewFile { mode: 0o644, umask: 0 };
    let fh = node.create_and_open(&CONTEXT, dir, b"file", new, libc::O_RDWR).unwrap().1.fh;
    let until = || std::time::Instant::now() + std::time::Duration::from_secs(5);
    node.writeback().sync_subtree(Ino::ROOT, until(), &mut |_| true).unwrap();
    for turn in 0..2 {
        node.write(&CONTEXT, fh, 0, format!("turn {turn}").as_bytes()).unwrap();
        let time = SetTime::At(Timestamp::new(195_817_208, 0));
        let set = SetAttr { mtime: Some(time), ..SetAttr::default() };
        node.setattr(&CONTEXT, dirs[0], &set).unwrap();
        for (dir, mode) in [(dirs[1], 0o200), (dirs[0], 0o600)] {
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            node.setattr(&CONTEXT, dir, &set).unwrap();
        }
        node.writeback().sync_subtree(Ino::ROOT, until(), &mut |_| true).unwrap();
        let outer = std::fs::metadata(rig.backing().join("outer")).unwrap();
        assert_eq!(outer.permissions().mode() & 0o777, 0o600, "turn {turn}");
        for dir in &dirs {
            let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
            node.setattr(&CONTEXT, *dir, &set).unwrap();
        }
    }
    node.release(fh);
    drain(rig);
}

#[test]
fn closed_directories_when_what_is_in_them_is_in_use_then_they_are_open_no_longer_than_needed() {
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can make the files of another user");
        return;
    }
    let dir = new_dir("/dev/shm", "forebay-used");
    let backing = dir.join("backing");
    std::fs::create_dir_all(&backing).unwrap();
    for (name, mode) in [("closed", 0), ("entered", 0o300)] {
        let closed = backing.join(name);
        std::fs::create_dir(&closed).unwrap();
        std::fs::write(closed.join("file"), b"bytes").unwrap();
        chown(closed.join("file"), Some(USER), Some(USER)).unwrap();
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(mode)).unwrap();
        chown(&closed, Some(USER), Some(USER)).unwrap();
    }
    for open in [&dir, &backing] {
        chown(open, Some(USER), Some(USER)).unwrap();
    }
    let (passed, why) = run_as_the_user("while_in_use", &dir);
    let written = std::fs::read(backing.join("closed/file"));
    drop(std::fs::remove_dir_all(&dir));
    assert!(passed && written.unwrap() == b"BYTES", "{why}");
}

/// A store that refuses something once: by then another thread has opened what was closed.
#[derive(Default)]
struct RefusesOnce(parking_lot::Mutex<Option<Operation>>);

impl Interceptor for RefusesOnce {
    fn before(&self, operation: Operation, _bytes: u64) -> Verdict {
        let mut refused = self.0.lock();
        match *refused == Some(operation) {
            true => {
                *refused = None;
                Verdict::Fail(libc::EACCES)
            }
            false => Verdict::Pass,
        }
    }
}

#[test]
fn what_another_opens_after_a_refusal_then_is_not_refused() {
    let store = Arc::new(RefusesOnce::default());
    let rig = Rig::new(&[MIB], store.clone(), |_| {});
    let refuse = |operation| *store.0.lock() = Some(operation);
    let refused = || assert!(store.0.lock().is_none(), "nothing was refused");
    let old = noise(3, 3 * MIB);
    std::fs::write(rig.backing().join("old"), &old).unwrap();
    refuse(Operation::Stat);
    let fh = rig.open("old", libc::O_RDWR);
    refused();
    // What is beyond the tier is read from, and laid over, the published version.
    for (operation, at) in [(Operation::Open, 0), (Operation::Open, 2 * MIB)] {
        refuse(operation);
        rig.write(fh, at, b"new bytes");
        store.0.lock().take();
    }
    rig.node().release(fh);
    refuse(Operation::Stat);
    drain(&rig);
    refused();
    let mut wanted = old;
    for at in [0, 2 * MIB as usize] {
        wanted[at..at + 9].copy_from_slice(b"new bytes");
    }
    assert!(rig.plain("old") == wanted);
}
