//! Files that others know under names which nobody has looked at here: what is changed under a known name is
//! shown under the others, also when the known one is gone before that was written back.

mod rig;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::time::Duration;

use forebay_node::{Ino, NameIn, NewFile, SetAttr};
use forebay_store::decorators::Transparent;
use forebay_testing::{wait_until, wait_until_found};
use rig::{CONTEXT, MIB, Rig};
use rustix::fs::XattrFlags;

const BEFORE: &[u8] = b"what was there";

/// A started rig whose backing store has one file under `a/x` and `b/x`.
fn rig() -> Rig {
    rig_that_looks_after(Duration::from_millis(100))
}

/// One for which a look at the backing store counts for so long.
fn rig_that_looks_after(timeout: Duration) -> Rig {
    let counts = |config: &mut forebay_node::NodeConfig| config.attr_timeout = timeout;
    let mut rig = Rig::unstarted(&[8 * MIB], Arc::new(Transparent), counts);
    for dir in ["a", "b"] {
        std::fs::create_dir(rig.backing().join(dir)).unwrap();
    }
    let (known, unseen) = (rig.backing().join("a/x"), rig.backing().join("b/x"));
    std::fs::write(&known, BEFORE).unwrap();
    std::fs::hard_link(known, unseen).unwrap();
    rig.start();
    rig
}

fn at(rig: &Rig, dir: &str, name: &str) -> Option<Ino> {
    let dir = rig.ino(dir);
    rig.node().lookup(&CONTEXT, dir, name.as_bytes()).unwrap().map(|stat| stat.ino)
}

/// How the known name goes.
#[derive(Debug, Clone, Copy)]
enum Goes {
    Removed,
    Replaced,
    /// Removed while it is open; what is written is written after that.
    RemovedBefore,
}

fn take_the_known_name(rig: &Rig, goes: Goes) {
    let dir = rig.ino("a");
    match goes {
        Goes::Removed | Goes::RemovedBefore => rig.node().unlink(&CONTEXT, dir, b"x").unwrap(),
        Goes::Replaced => {
            let new = rig.node().create_and_open(
                &CONTEXT,
                dir,
                b"new",
                NewFile { mode: 0o644, umask: 0 },
                libc::O_RDWR,
            );
            rig.node().release(new.unwrap().1.fh);
            rig.node()
                .rename(&CONTEXT, NameIn::new(dir, b"new"), NameIn::new(dir, b"x"), 0)
                .unwrap();
        }
    }
}

/// Appends under the known name, which goes.
fn append(rig: &Rig, goes: Goes, is_synced: bool) {
    let known = at(rig, "a", "x").expect("there");
    let opened = rig.node().open(&CONTEXT, known, libc::O_RDWR).unwrap();
    if matches!(goes, Goes::RemovedBefore) {
        take_the_known_name(rig, goes);
    }
    rig.write(opened.fh, BEFORE.len() as u64, b", and more");
    if is_synced {
        rig.node().fsync(&CONTEXT, opened.fh, false).unwrap();
    }
    rig.node().release(opened.fh);
    if !matches!(goes, Goes::RemovedBefore) {
        take_the_known_name(rig, goes);
    }
}

const AFTER: &[u8] = b"what was there, and more";

#[test]
fn file_with_a_name_that_nobody_has_looked_at_when_its_known_one_goes_then_the_other_shows_it() {
    for goes in [Goes::Removed, Goes::Replaced, Goes::RemovedBefore] {
        for is_synced in [false, true] {
            for is_looked_at in [false, true] {
                let what = format!("{goes:?}, synced: {is_synced}, looked at: {is_looked_at}");
                let rig = rig();
                append(&rig, goes, is_synced);
                if is_looked_at {
                    let other = at(&rig, "b", "x").expect("there");
                    let opened = rig.node().open(&CONTEXT, other, libc::O_RDONLY).unwrap();
                    let shown = rig.read_all(opened.fh);
                    rig.node().release(opened.fh);
                    assert_eq!(shown, AFTER, "{what}");
                }
                rig.drain();
                assert_eq!(rig.plain("b/x"), AFTER, "{what}");
                let gone = !rig.backing().join("a/x").exists();
                assert_eq!(gone, !matches!(goes, Goes::Replaced), "{what}");
                assert_eq!(rig.node().writeback().conflicts().0, 0, "{what}");
                let other = at(&rig, "b", "x").expect("there");
                assert_eq!(rig.node().getattr(&CONTEXT, other).unwrap().attr.size, 24, "{what}");
                let checked = rig.node().writeback().unwritten(10).unwrap();
                assert!(checked.is_empty(), "{what}: {checked:?}");
            }
        }
    }
}

#[test]
fn file_with_a_name_that_nobody_has_looked_at_when_removed_while_written_then_a_sync_takes_its_name()
 {
    let rig = rig();
    let known = at(&rig, "a", "x").expect("there");
    let opened = rig.node().open(&CONTEXT, known, libc::O_RDWR).unwrap();
    rig.write(opened.fh, BEFORE.len() as u64, b", and");
    take_the_known_name(&rig, Goes::Removed);
    let until = std::time::Instant::now() + Duration::from_secs(5);
    let synced = rig.node().writeback().sync_subtree(Ino::ROOT, until, &mut |_| true).unwrap();
    assert!(!rig.backing().join("a/x").exists());
    // Who says that all is there has written it.
    let is_written = rig.plain("b/x") == b"what was there, and";
    assert!(is_written || synced.in_use > 0, "{synced:?}");
    rig.write(opened.fh, BEFORE.len() as u64 + 5, b" more");
    rig.node().release(opened.fh);
    rig.drain();
    assert_eq!(rig.plain("b/x"), AFTER);
    assert_eq!(std::fs::metadata(rig.backing().join("b/x")).unwrap().nlink(), 1);
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

#[test]
fn file_with_a_name_that_nobody_has_looked_at_when_the_daemon_dies_then_the_other_shows_it() {
    for goes in [Goes::Removed, Goes::Replaced, Goes::RemovedBefore] {
        let mut rig = rig();
        append(&rig, goes, true);
        rig.crash();
        rig.start();
        rig.drain();
        assert_eq!(rig.plain("b/x"), AFTER, "{goes:?}");
    }
}

#[test]
fn attributes_of_a_file_when_its_known_name_goes_then_its_other_has_them() {
    let rig = rig();
    let known = at(&rig, "a", "x").expect("there");
    let set = SetAttr { mode: Some(0o600), size: Some(4), ..SetAttr::default() };
    rig.node().setattr(&CONTEXT, known, &set).unwrap();
    rig.node().set_xattr(&CONTEXT, known, b"user.k", b"value", 0, false).unwrap();
    take_the_known_name(&rig, Goes::Removed);
    rig.drain();
    let found = std::fs::metadata(rig.backing().join("b/x")).unwrap();
    assert_eq!((found.permissions().mode() & 0o777, found.size(), found.nlink()), (0o600, 4, 1));
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(rig.backing().join("b/x"), "user.k", &mut value).unwrap();
    assert_eq!(&value[..length], b"value");
}

/// The file that takes the name was changed before, so that its turn comes first.
#[test]
fn changes_of_a_file_when_one_that_waits_already_takes_its_known_name_then_its_other_has_them() {
    for is_removed_before in [false, true] {
        let rig = rig();
        let (dir, known) = (rig.ino("a"), at(&rig, "a", "x").expect("there"));
        let heir = rig.node().create_and_open(
            &CONTEXT,
            dir,
            b"heir",
            NewFile { mode: 0o644, umask: 0 },
            libc::O_RDWR,
        );
        rig.node().release(heir.unwrap().1.fh);
        rig.drain();
        let heir = at(&rig, "a", "heir").expect("made");
        let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
        rig.node().setattr(&CONTEXT, heir, &mode(0o640)).unwrap();
        rig.node().setattr(&CONTEXT, known, &mode(0o600)).unwrap();
        rig.node().set_xattr(&CONTEXT, known, b"user.k", b"value", 0, false).unwrap();
        let opened = rig.node().open(&CONTEXT, known, libc::O_RDWR).unwrap();
        rig.write(opened.fh, BEFORE.len() as u64, b", and more");
        rig.node().release(opened.fh);
        if is_removed_before {
            rig.node().unlink(&CONTEXT, dir, b"x").unwrap();
        }
        let [from, to] = [NameIn::new(dir, b"heir"), NameIn::new(dir, b"x")];
        rig.node().rename(&CONTEXT, from, to, 0).unwrap();
        rig.node().writeback().reconcile(heir).unwrap();
        rig.drain();
        let found = std::fs::metadata(rig.backing().join("b/x")).unwrap();
        assert_eq!((found.permissions().mode() & 0o777, found.nlink()), (0o600, 1));
        assert_eq!((rig.plain("b/x"), rig.plain("a/x")), (AFTER.to_vec(), Vec::new()));
        let mut value = [0; 16];
        let length = rustix::fs::getxattr(rig.backing().join("b/x"), "user.k", &mut value).unwrap();
        assert_eq!(&value[..length], b"value");
        assert_eq!(rig.node().writeback().conflicts().0, 0);
    }
}

/// The file keeps its inode in the backing store, and with it what it had there.
#[test]
fn extended_attribute_that_is_removed_when_bytes_of_a_file_with_two_names_change_then_it_is_gone() {
    for is_changed_first in [true, false] {
        let rig = rig();
        for name in ["user.k", "user.l"] {
            let below = rig.backing().join("a/x");
            rustix::fs::setxattr(below, name, b"value", XattrFlags::empty()).unwrap();
        }
        let known = at(&rig, "a", "x").expect("there");
        let append = || {
            let opened = rig.node().open(&CONTEXT, known, libc::O_RDWR).unwrap();
            rig.write(opened.fh, BEFORE.len() as u64, b", and more");
            rig.node().release(opened.fh);
        };
        if is_changed_first {
            append();
        }
        rig.node().remove_xattr(&CONTEXT, known, b"user.k").unwrap();
        if !is_changed_first {
            append();
        }
        rig.drain();
        assert_eq!(rig.plain("b/x"), AFTER);
        let mut names = [0; 64];
        let length = rustix::fs::listxattr(rig.backing().join("b/x"), &mut names).unwrap();
        let names = String::from_utf8_lossy(&names[..length]).into_owned();
        assert!(names.contains("user.l") && !names.contains("user.k"), "{names}");
    }
}

/// Nothing is left on the tier of what is gone for good, and nothing in the backlog if others remove the other
/// name as well.
#[test]
fn file_that_loses_all_names_here_and_there_then_nothing_of_it_stays() {
    for others_first in [true, false] {
        let rig = rig();
        append(&rig, Goes::Removed, false);
        if others_first {
            std::fs::remove_file(rig.backing().join("b/x")).unwrap();
            rig.drain();
        } else {
            rig.drain();
            std::fs::remove_file(rig.backing().join("b/x")).unwrap();
        }
        assert_eq!(at(&rig, "b", "x"), None);
        assert_eq!(rig.occupied(0), 0, "others first: {others_first}");
        assert!(rig.node().writeback().unwritten(10).unwrap().is_empty());
    }
}

/// That they did is not known here when the only known name goes, and what was written with it.
#[test]
fn file_that_others_link_before_its_name_goes_then_their_name_shows_what_they_linked() {
    for is_written_back in [false, true] {
        // So long that no look comes between their link and the removal, which would find it.
        let rig = rig_that_looks_after(Duration::from_secs(3));
        std::fs::write(rig.backing().join("a/f"), BEFORE).unwrap();
        let file = at(&rig, "a", "f").expect("there");
        let opened = rig.node().open(&CONTEXT, file, libc::O_RDWR).unwrap();
        rig.write(opened.fh, BEFORE.len() as u64, b", and more");
        rig.node().release(opened.fh);
        if is_written_back {
            rig.drain();
        }
        let below = rig.backing().join("a");
        std::fs::hard_link(below.join("f"), below.join("theirs")).unwrap();
        rig.node().unlink(&CONTEXT, rig.ino("a"), b"f").unwrap();
        let theirs = wait_until_found("what others did is seen", || at(&rig, "a", "theirs"));
        let expected = if is_written_back { AFTER } else { BEFORE };
        rig.drain();
        let opened = rig.node().open(&CONTEXT, theirs, libc::O_RDONLY).unwrap();
        let shown = rig.read_all(opened.fh);
        rig.node().release(opened.fh);
        let what = format!("written back: {is_written_back}");
        assert_eq!((&*shown, &*rig.plain("a/theirs")), (expected, expected), "{what}");
        assert!(!below.join("f").exists(), "{what}");
        assert_eq!(rig.node().writeback().conflicts().0, 0, "{what}");
        // And when they take it away again.
        std::fs::remove_file(below.join("theirs")).unwrap();
        wait_until("what others did is seen", || at(&rig, "a", "theirs").is_none());
        rig.drain();
        assert!(!below.join("theirs").exists(), "{what}");
    }
}
