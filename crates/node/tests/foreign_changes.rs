//! Changes that others make in the backing store while a program has the file open here, or while a
//! worker has something to do for it: nobody's bytes are lost, and nothing of others is touched.

mod rig;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_node::{Ino, NameIn, SetAttr, SetTime, Timestamp};
use forebay_store::decorators::Transparent;
use forebay_testing::wait_until;
use rig::hold::{removed_by_others, replaced_by_others};
use rig::{CONTEXT, MIB, Rig, noise};

/// A node that looks at the backing store each time.
fn rig() -> Rig {
    Rig::new(&[16 * MIB], Arc::new(Transparent), |config| config.attr_timeout = Duration::ZERO)
}

/// A file below, known here, that a program has open, has written to and synced.
fn written_and_synced(rig: &Rig) -> (u64, Vec<u8>) {
    std::fs::write(rig.backing().join("file"), noise(1, 20_000)).unwrap();
    rig.age("file");
    let fh = rig.open("file", libc::O_RDWR);
    let ours = noise(2, 25_000);
    rig.write(fh, 0, &ours);
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    (fh, ours)
}

fn conflict_copy(rig: &Rig) -> Vec<u8> {
    let names = rig.names_below();
    let ours = names.iter().find(|name| name.starts_with("file.forebay-conflict-"));
    rig.plain(ours.unwrap_or_else(|| panic!("nothing was kept beside: {names:?}")))
}

#[test]
fn file_written_and_synced_when_others_remove_it_meanwhile_then_its_bytes_come_back() {
    let rig = rig();
    let (fh, ours) = written_and_synced(&rig);
    let ino = rig.ino("file");
    std::fs::remove_file(rig.backing().join("file")).unwrap();
    rig.look(ino);
    assert!(rig.read_all(fh) == ours, "what was synced is read again");
    rig.write(fh, 0, b"more");
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    rig.node().release(fh);
    rig.drain();
    assert_eq!(rig.plain("file")[..4], *b"more");
    assert!(rig.plain("file")[4..] == ours[4..]);
}

#[test]
fn file_written_and_synced_when_others_rename_it_meanwhile_then_both_are_there() {
    let rig = rig();
    let (fh, ours) = written_and_synced(&rig);
    let ino = rig.ino("file");
    std::fs::rename(rig.backing().join("file"), rig.backing().join("moved")).unwrap();
    rig.look(ino);
    rig.node().release(fh);
    rig.drain();
    assert!(rig.plain("file") == ours);
    assert!(rig.plain("moved") == noise(1, 20_000));
}

#[test]
fn file_written_and_synced_when_others_change_it_meanwhile_then_both_versions_are_kept() {
    let rig = rig();
    let (fh, ours) = written_and_synced(&rig);
    let ino = rig.ino("file");
    std::fs::write(rig.backing().join("file"), b"theirs").unwrap();
    rig.look(ino);
    assert!(rig.read_all(fh) == ours);
    rig.node().release(fh);
    rig.look(ino);
    rig.drain();
    assert_eq!(rig.plain("file"), b"theirs");
    assert!(conflict_copy(&rig) == ours);
    assert_eq!(rig.node().writeback().conflicts().0, 1);
}

#[test]
fn file_written_and_synced_when_its_directory_is_removed_below_then_it_comes_back() {
    let rig = rig();
    std::fs::create_dir(rig.backing().join("dir")).unwrap();
    std::fs::write(rig.backing().join("dir/file"), noise(1, 20_000)).unwrap();
    let dir = rig.ino("dir");
    let file = rig.node().lookup(&CONTEXT, dir, b"file").unwrap().unwrap().ino;
    let fh = rig.node().open(&CONTEXT, file, libc::O_RDWR).unwrap().fh;
    let ours = noise(2, 25_000);
    rig.write(fh, 0, &ours);
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    std::fs::remove_dir_all(rig.backing().join("dir")).unwrap();
    rig.look(dir);
    rig.look(file);
    assert!(rig.read_all(fh) == ours);
    rig.node().release(fh);
    rig.drain();
    assert!(rig.plain("dir/file") == ours);
}

/// As where a file system that is mounted below the store is away at a start, and its empty mount point is
/// there.
#[test]
fn directory_when_an_empty_one_is_in_its_place_at_a_start_then_what_is_dirty_is_kept() {
    let mut rig = rig();
    let backing = rig.backing();
    let below = |name: &str| backing.join(name);
    std::fs::create_dir(below("sub")).unwrap();
    std::fs::write(below("sub/file"), noise(1, 20_000)).unwrap();
    std::fs::write(below("sub/clean"), noise(3, 100)).unwrap();
    let find = |rig: &Rig, name: &[u8]| {
        let found = rig.node().lookup(&CONTEXT, rig.ino("sub"), name).unwrap();
        found.map(|found| found.ino)
    };
    assert!(find(&rig, b"clean").is_some());
    let file = find(&rig, b"file").unwrap();
    let fh = rig.node().open(&CONTEXT, file, libc::O_RDWR).unwrap().fh;
    let ours = noise(2, 25_000);
    rig.write(fh, 0, &ours);
    rig.node().release(fh);
    rig.crash();
    std::fs::rename(below("sub"), below("away")).unwrap();
    std::fs::create_dir(below("sub")).unwrap();
    rig.start();
    rig.look(rig.ino("sub"));
    rig.look(file);
    let fh = rig.node().open(&CONTEXT, file, libc::O_RDONLY).unwrap().fh;
    assert!(rig.read_all(fh) == ours, "it is read all the while");
    rig.node().release(fh);
    rig.drain();
    assert!(rig.plain("sub/file") == ours, "written to what is there");
    rig.crash();
    std::fs::rename(below("sub"), below("under")).unwrap();
    std::fs::rename(below("away"), below("sub")).unwrap();
    rig.start();
    // A directory that was listed rests for a while before it is looked at again.
    wait_until("all of it is seen again", || {
        rig.look(rig.ino("sub"));
        drop(rig.node().read_dir(&CONTEXT, rig.ino("sub"), 0, 100, true, &mut |_| true));
        find(&rig, b"clean").is_some()
    });
    rig.drain();
    assert!(rig.plain("sub/file") == noise(1, 20_000), "nothing of what came back is touched");
    assert!(rig.plain("under/file") == ours, "what was written then is covered");
}

#[test]
fn file_written_and_renamed_here_when_others_remove_it_meanwhile_then_its_bytes_come_back() {
    let rig = rig();
    let (fh, ours) = written_and_synced(&rig);
    let ino = rig.ino("file");
    let (from, to) = (NameIn::new(Ino::ROOT, b"file"), NameIn::new(Ino::ROOT, b"renamed"));
    let held = rig.hold_workers();
    rig.node().rename(&CONTEXT, from, to, 0).unwrap();
    removed_by_others(&rig);
    drop(held);
    drop(rig.node().writeback().reconcile(ino));
    assert!(rig.read_all(fh) == ours);
    rig.node().release(fh);
    rig.drain();
    assert!(rig.plain("renamed") == ours);
}

/// Sets mode and time of a file that is on the tier. Then others do something, before a worker comes to it.
fn attributes_set(rig: &Rig, others: impl FnOnce(&Rig)) -> Ino {
    std::fs::write(rig.backing().join("file"), noise(1, 20_000)).unwrap();
    rig.age("file");
    assert_eq!(rig.get("file").len(), 20_000);
    let ino = rig.ino("file");
    let set = SetAttr {
        mode: Some(0o600),
        mtime: Some(SetTime::At(Timestamp::new(1_000_000_000, 0))),
        ..SetAttr::default()
    };
    let _held = rig.hold_workers();
    rig.node().setattr(&CONTEXT, ino, &set).unwrap();
    others(rig);
    ino
}

#[test]
fn file_whose_attributes_are_due_when_others_changed_it_then_it_is_theirs_and_seen() {
    let rig = rig();
    // Of the same length: only the time tells.
    let theirs = noise(7, 20_000);
    let changed = |rig: &Rig| std::fs::write(rig.backing().join("file"), &theirs).unwrap();
    let ino = attributes_set(&rig, changed);
    let before = std::fs::metadata(rig.backing().join("file")).unwrap();
    drop(rig.node().writeback().reconcile(ino));
    rig.drain();
    let after = std::fs::metadata(rig.backing().join("file")).unwrap();
    assert_eq!(after.modified().unwrap(), before.modified().unwrap(), "their time stays");
    assert_eq!(after.permissions().mode() & 0o7777, before.permissions().mode() & 0o7777);
    assert!(rig.get("file") == theirs, "no stale copy is shown");
    assert_eq!(rig.size("file"), 20_000);
    assert_eq!(rig.node().writeback().conflicts().0, 1, "that the attributes were not set is said");
    // What is written here now builds upon theirs.
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 0, b"ours");
    rig.node().release(fh);
    rig.drain();
    assert_eq!(rig.plain("file")[..4], *b"ours");
    assert!(rig.plain("file")[4..] == theirs[4..]);
}

#[test]
fn file_whose_attributes_are_due_when_others_replaced_it_then_theirs_is_not_touched() {
    let rig = rig();
    let ino = attributes_set(&rig, replaced_by_others);
    let before = std::fs::metadata(rig.backing().join("file")).unwrap();
    drop(rig.node().writeback().reconcile(ino));
    rig.drain();
    let after = std::fs::metadata(rig.backing().join("file")).unwrap();
    assert_eq!((after.mode(), after.mtime()), (before.mode(), before.mtime()));
    assert_eq!(rig.get("file"), b"theirs");
}

#[test]
fn attributes_when_nobody_else_is_there_then_they_are_set() {
    let rig = rig();
    attributes_set(&rig, |_| ());
    rig.drain();
    let after = std::fs::metadata(rig.backing().join("file")).unwrap();
    assert_eq!((after.mode() & 0o7777, after.mtime()), (0o600, 1_000_000_000));
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

/// A name of ours that never reaches the backing store covers one of others only as long as it is there.
#[test]
fn file_of_others_under_a_name_that_goes_again_before_it_is_written_then_it_is_shown() {
    let evict = |config: &mut forebay_node::NodeConfig| {
        config.attr_timeout = Duration::ZERO;
        config.writeback = forebay_node::WritebackPolicy::OnEviction;
    };
    let rig = Rig::new(&[16 * MIB], Arc::new(Transparent), evict);
    // Listings alone: a look-up of a single name asks for that name.
    let listed = |name: &str| {
        let mut names = Vec::new();
        let mut note = |entry: forebay_node::DirEntry<'_>| {
            names.push(entry.name.to_vec());
            true
        };
        rig.node().read_dir(&CONTEXT, Ino::ROOT, 0, 100, true, &mut note).unwrap();
        names.contains(&name.as_bytes().to_vec())
    };
    // A directory that was listed rests for a multiple of the time that this took, before it is looked
    // at again.
    let appears = |name: &str| wait_until(name, || listed(name));
    assert!(!listed("file"));
    rig.put("file", b"ours");
    std::fs::write(rig.backing().join("file"), b"of others").unwrap();
    std::fs::write(rig.backing().join("witness"), b"of others").unwrap();
    appears("witness");
    assert!(listed("file"));
    assert_eq!(rig.get("file"), b"ours");
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"file").unwrap();
    appears("file");
    assert_eq!(rig.get("file"), b"of others");
}

/// A file of which the beginning is resident, with others' version put in its place since it was looked
/// at: by a rename, or in place.
fn partly_resident_and_changed(in_place: bool, extents: usize) -> (Rig, Vec<u8>) {
    let tier = [16 * MIB];
    let rig = Rig::new(&tier, Arc::new(Transparent), |config| {
        config.attr_timeout = Duration::from_secs(60);
    });
    let old = vec![b'1'; 640 << 10];
    std::fs::write(rig.backing().join("file"), &old).unwrap();
    rig.age("file");
    // Looked at, so that it is not again for a minute.
    let fh = rig.open("file", libc::O_RDONLY);
    let mut buffer = vec![0; 64 << 10];
    for at in 0..2 * extents as u64 {
        let read = rig.node().read(&CONTEXT, fh, at % extents as u64 * 65_536, &mut buffer);
        assert_eq!(read.unwrap(), buffer.len());
    }
    wait_until("something of it is resident", || rig.used() >= 65_536);
    rig.node().release(fh);
    std::thread::sleep(Duration::from_millis(100));
    let new = vec![b'2'; 700 << 10];
    let at = if in_place { "file" } else { "new" };
    std::fs::write(rig.backing().join(at), &new).unwrap();
    if !in_place {
        std::fs::rename(rig.backing().join("new"), rig.backing().join("file")).unwrap();
    }
    (rig, new)
}

/// As [`partly_resident_and_changed`], but the beginning is written here before others come. What stands
/// beside theirs in the end.
fn partly_written_and_changed(in_place: bool, held_open: bool) -> (Vec<u8>, String) {
    let mut rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |config| {
        config.attr_timeout = Duration::from_secs(60);
    });
    let (old, new) = (vec![b'1'; 640 << 10], vec![b'2'; 700 << 10]);
    std::fs::write(rig.backing().join("file"), &old).unwrap();
    rig.age("file");
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 0, &[b'0'; 64 << 10]);
    if held_open {
        // What is not here is read, so the version below is open.
        let mut buffer = [0; 100];
        rig.node().read(&CONTEXT, fh, 600 << 10, &mut buffer).unwrap();
        assert_eq!(buffer, [b'1'; 100]);
    } else {
        rig.node().release(fh);
        // Nobody has it in hand any more, and nothing of it is open.
        rig.crash();
        rig.start();
    }
    let at = if in_place { "file" } else { "new" };
    std::fs::write(rig.backing().join(at), &new).unwrap();
    if !in_place {
        std::fs::rename(rig.backing().join("new"), rig.backing().join("file")).unwrap();
    }
    if held_open {
        rig.node().release(fh);
    }
    rig.drain();
    assert!(rig.plain("file") == new, "theirs stays");
    let (count, conflicts) = rig.node().writeback().conflicts();
    assert_eq!(count, 1);
    (conflict_copy(&rig), conflicts[0].why.clone().into_owned())
}

#[test]
fn file_written_in_part_when_others_put_another_in_its_place_then_no_copy_mixes_versions() {
    for in_place in [false, true] {
        let (copy, why) = partly_written_and_changed(in_place, false);
        assert!(copy[..64 << 10] == [b'0'; 64 << 10], "what was written here is kept");
        assert!(
            copy[64 << 10..] == [0; 576 << 10],
            "the rest is gone, and not theirs: {}, {why}",
            copy[64 << 10..][..8].escape_ascii()
        );
        assert!(why.contains("zeros in the copy"), "{why}");
    }
    // What was opened before others came is read to the end.
    let (copy, why) = partly_written_and_changed(false, true);
    assert!(copy[..64 << 10] == [b'0'; 64 << 10] && copy[64 << 10..] == [b'1'; 576 << 10]);
    assert!(!why.contains("zeros in the copy"), "{why}");
    // Unless they changed the very file.
    let (copy, why) = partly_written_and_changed(true, true);
    assert!(copy[..64 << 10] == [b'0'; 64 << 10] && copy[64 << 10..] == [0; 576 << 10]);
    assert!(why.contains("zeros in the copy"), "{why}");
}

/// A file of 3 MiB of which the first has changes here, on a tier with room for all or for little of it.
fn changed_in_part(tier: u64, is_read_before: bool) -> (Rig, u64) {
    let mut rig = Rig::new(&[tier], Arc::new(Transparent), |config| {
        config.attr_timeout = Duration::from_secs(60);
    });
    std::fs::write(rig.backing().join("file"), vec![b'1'; 3 << 20]).unwrap();
    rig.age("file");
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 0, &[b'0'; 1 << 20]);
    if is_read_before {
        let mut buffer = [0; 100];
        rig.node().read(&CONTEXT, fh, 2 << 20, &mut buffer).unwrap();
        assert_eq!(buffer, [b'1'; 100]);
        return (rig, fh);
    }
    // The version below is open no more.
    rig.node().release(fh);
    rig.crash();
    rig.start();
    let fh = rig.open("file", libc::O_RDWR);
    (rig, fh)
}

#[test]
fn file_changed_in_part_when_others_change_what_lies_below_then_no_read_and_no_write_mixes_versions()
 {
    // The second tier is too small: what is written goes to a spill file.
    for tier in [16 * MIB, 512 << 10] {
        for (how, is_read_before) in [
            ("in place", false),
            ("in place", true),
            ("replaced", false),
            ("replaced", true),
            ("removed", false),
            ("removed", true),
        ] {
            let what = format!("{how}, read before: {is_read_before}, a tier of {tier}");
            let (rig, fh) = changed_in_part(tier, is_read_before);
            let (at, new) = (rig.backing().join("file"), vec![b'2'; 3 << 20]);
            match how {
                "in place" => std::fs::write(&at, &new).unwrap(),
                "replaced" => {
                    std::fs::write(rig.backing().join("new"), &new).unwrap();
                    std::fs::rename(rig.backing().join("new"), &at).unwrap();
                }
                _ => std::fs::remove_file(&at).unwrap(),
            }
            let is_there = is_read_before && how != "in place";
            let mut buffer = vec![0; 1 << 20];
            assert_eq!(rig.node().read(&CONTEXT, fh, 0, &mut buffer).unwrap(), 1 << 20);
            assert!(buffer == [b'0'; 1 << 20], "what was written here: {what}");
            let read = rig.node().read(&CONTEXT, fh, 2 << 20, &mut buffer);
            // A few bytes in the middle of what is not here.
            let written = rig.node().write(&CONTEXT, fh, (2 << 20) + 100, b"ours");
            if is_there {
                assert_eq!(read.unwrap(), 1 << 20, "{what}");
                assert!(buffer == [b'1'; 1 << 20], "the version that was written over: {what}");
                written.unwrap();
            } else {
                let failed = |error| matches!(error, forebay_node::NodeError::RestGone);
                let first = buffer[0];
                assert!(read.is_err_and(failed), "{what}: {first}");
                assert!(written.is_err_and(failed), "{what}");
            }
            rig.node().release(fh);
            rig.drain();
            let copy = match how {
                "removed" => rig.plain("file"),
                _ => {
                    assert!(rig.plain("file") == new, "theirs stays: {what}");
                    conflict_copy(&rig)
                }
            };
            // Whoever comes to it is told once that not all of it is there, and people by a conflict.
            let (_, conflicts) = rig.node().writeback().conflicts();
            let gone =
                conflicts.iter().any(|conflict| conflict.why.contains("are gone, and zeros"));
            assert_eq!(gone, !is_there, "{what}: {conflicts:?}");
            let ino = conflicts.first().map_or(rig.ino("file"), |conflict| match &conflict.ours {
                Some(ours) => rig.ino(std::str::from_utf8(ours).unwrap()),
                None => rig.ino("file"),
            });
            let open = || rig.node().open(&CONTEXT, ino, libc::O_RDONLY);
            let first = open().map(|opened| rig.node().release(opened.fh));
            let failed = |error| matches!(error, forebay_node::NodeError::RestGone);
            assert_eq!(first.is_err_and(failed), !is_there, "{what}");
            rig.node().release(open().expect("told once").fh);
            let mut wanted = vec![if is_there { b'1' } else { 0 }; 3 << 20];
            wanted[..1 << 20].fill(b'0');
            if is_there {
                wanted[(2 << 20) + 100..][..4].copy_from_slice(b"ours");
            }
            assert!(copy == wanted, "what is written back: {what}");
        }
    }
}

#[test]
fn file_of_which_a_part_is_resident_when_others_put_another_in_its_place_then_no_versions_are_mixed()
 {
    for in_place in [false, true] {
        let (rig, new) = partly_resident_and_changed(in_place, 1);
        let fh = rig.open("file", libc::O_RDONLY);
        assert!(rig.read_all(fh) == new, "in place: {in_place}");
        rig.node().release(fh);
        assert!(rig.get("file") == new, "in place: {in_place}");
        assert_eq!(rig.size("file"), 700 << 10);
        let (rig, new) = partly_resident_and_changed(in_place, 1);
        // A write that needs the rest of an extent which is not there.
        let fh = rig.open("file", libc::O_RDWR);
        rig.write(fh, 200 << 10, b"ours");
        rig.node().release(fh);
        rig.drain();
        assert_eq!(rig.names_below(), ["file"], "in place: {in_place}");
        let mut wanted = new;
        wanted[200 << 10..][..4].copy_from_slice(b"ours");
        assert!(rig.plain("file") == wanted, "in place: {in_place}");
        let (rig, new) = partly_resident_and_changed(in_place, 1);
        rig.node().residency().warm_file(rig.ino("file"), &mut |_| true).unwrap();
        assert!(rig.get("file") == new, "in place: {in_place}");
    }
}

/// Another one's change in place, after which size and time of the file are what they were.
fn changed_in_place_with_its_time_kept(rig: &Rig, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).open(rig.backing().join("file")).unwrap();
    let before = file.metadata().unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    let after = file.metadata().unwrap();
    assert_eq!(
        (after.len(), after.mtime(), after.mtime_nsec()),
        (before.len(), before.mtime(), before.mtime_nsec())
    );
}

#[test]
fn file_that_is_resident_when_changed_in_place_with_size_and_time_kept_then_no_old_byte_is_shown() {
    // Whole on the tier, and a part of a larger one.
    for len in [20_000, 700_000] {
        let rig = rig();
        let (old, new) = (noise(1, len), noise(2, len));
        std::fs::write(rig.backing().join("file"), &old).unwrap();
        rig.age("file");
        assert!(rig.get("file") == old);
        assert!(rig.used() > 0, "it is resident");
        changed_in_place_with_its_time_kept(&rig, &new);
        assert!(rig.get("file") == new, "{len} bytes");
        // What is written now builds upon theirs, and is no conflict.
        changed_in_place_with_its_time_kept(&rig, &old);
        let fh = rig.open("file", libc::O_RDWR);
        rig.write(fh, len - 4, b"ours");
        rig.node().release(fh);
        rig.drain();
        assert_eq!(rig.names_below(), ["file"]);
        let found = rig.plain("file");
        assert!(found[..len as usize - 4] == old[..len as usize - 4], "{len} bytes");
        assert_eq!(found[len as usize - 4..], *b"ours");
    }
}

#[test]
fn file_that_was_written_here_when_changed_in_place_with_size_and_time_kept_then_both_are_kept() {
    for len in [20_000, 700_000] {
        let rig = rig();
        std::fs::write(rig.backing().join("file"), noise(1, len)).unwrap();
        rig.age("file");
        drop(rig.get("file"));
        let fh = rig.open("file", libc::O_RDWR);
        let ours = noise(3, len);
        rig.write(fh, 0, &ours);
        rig.node().release(fh);
        let theirs = noise(2, len);
        changed_in_place_with_its_time_kept(&rig, &theirs);
        rig.drain();
        assert!(rig.plain("file") == theirs, "{len} bytes");
        assert!(conflict_copy(&rig) == ours, "{len} bytes");
        assert_eq!(rig.node().writeback().conflicts().0, 1);
    }
}

/// Files of which more are in conflict at the same time than are held open.
#[test]
fn files_in_conflict_when_too_many_to_be_held_then_each_waits_and_none_gets_zeros() {
    const FILES: usize = 80;
    let rig = Rig::new(&[32 * MIB], Arc::new(Transparent), |config| {
        config.attr_timeout = Duration::from_secs(60);
    });
    let (old, new) = (vec![b'1'; 640 << 10], vec![b'2'; 700 << 10]);
    let names = |file| format!("file{file}");
    for name in (0..FILES).map(names) {
        std::fs::write(rig.backing().join(&name), &old).unwrap();
        rig.age(&name);
    }
    let mut opened = Vec::new();
    for name in (0..FILES).map(names) {
        let fh = rig.open(&name, libc::O_RDWR);
        rig.write(fh, 0, &[b'0'; 64 << 10]);
        let mut buffer = [0; 100];
        rig.node().read(&CONTEXT, fh, 600 << 10, &mut buffer).unwrap();
        opened.push(fh);
    }
    for name in (0..FILES).map(names) {
        std::fs::write(rig.backing().join("new"), &new).unwrap();
        std::fs::rename(rig.backing().join("new"), rig.backing().join(name)).unwrap();
    }
    let until = std::time::Instant::now() + Duration::from_secs(60);
    rig.node().writeback().sync_subtree(Ino::ROOT, until, &mut |_| true).unwrap();
    for (file, fh) in opened.into_iter().enumerate() {
        let mut wanted = old.clone();
        wanted[..64 << 10].fill(b'0');
        assert!(rig.read_all(fh) == wanted, "of file {file} is read what it was");
        rig.node().release(fh);
    }
    let (count, conflicts) = rig.node().writeback().conflicts();
    assert_eq!(count, FILES as u64);
    for conflict in conflicts {
        assert!(!conflict.why.contains("zeros"), "{conflict:?}");
    }
}

#[test]
fn file_whose_rest_is_gone_when_written_back_to_make_room_only_then_is_settled_all_the_same() {
    let mut rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |config| {
        config.attr_timeout = Duration::from_secs(60);
        config.writeback = forebay_node::WritebackPolicy::OnEviction;
    });
    std::fs::write(rig.backing().join("file"), vec![b'1'; 3 << 20]).unwrap();
    rig.age("file");
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 0, &[b'0'; 1 << 20]);
    rig.node().release(fh);
    rig.crash();
    rig.start();
    std::fs::remove_file(rig.backing().join("file")).unwrap();
    let fh = rig.open("file", libc::O_RDWR);
    let read = rig.node().read(&CONTEXT, fh, 2 << 20, &mut [0; 100]);
    assert!(matches!(read, Err(forebay_node::NodeError::RestGone)), "{read:?}");
    rig.node().release(fh);
    wait_until("somebody is told", || rig.node().writeback().conflicts().0 > 0);
    // Nobody has come to it since: the next daemon tells it.
    rig.drain();
    rig.crash();
    rig.start();
    let open = |rig: &Rig| rig.node().open(&CONTEXT, rig.ino("file"), libc::O_RDONLY);
    let first = open(&rig).map(|opened| opened.fh);
    assert!(matches!(first, Err(forebay_node::NodeError::RestGone)), "{first:?}");
    rig.node().release(open(&rig).expect("told once").fh);
}

#[test]
fn store_that_was_made_again_while_unmounted_when_nobody_else_uses_it_then_is_shown_as_it_is() {
    let mut rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |config| {
        config.coherence = forebay_node::Coherence::Exclusive;
    });
    std::fs::create_dir(rig.backing().join("dir")).unwrap();
    for (name, content) in [("dir/changed", "old"), ("dir/gone", "old"), ("same", "old")] {
        std::fs::write(rig.backing().join(name), content).unwrap();
    }
    let listed = |rig: &Rig, dir: &str| {
        let ino = if dir.is_empty() { Ino::ROOT } else { rig.ino(dir) };
        let mut names = Vec::new();
        let mut take = |entry: forebay_node::DirEntry<'_>| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        };
        rig.node().read_dir(&CONTEXT, ino, 0, 100, true, &mut take).unwrap();
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        names
    };
    assert_eq!(listed(&rig, ""), ["dir", "same"]);
    assert_eq!(listed(&rig, "dir"), ["changed", "gone"]);
    let read = |rig: &Rig, dir: &str, name: &str| {
        let dir = if dir.is_empty() { Ino::ROOT } else { rig.ino(dir) };
        let found = rig.node().lookup(&CONTEXT, dir, name.as_bytes()).unwrap().unwrap();
        let fh = rig.node().open(&CONTEXT, found.ino, libc::O_RDONLY).unwrap().fh;
        let content = rig.read_all(fh);
        rig.node().release(fh);
        String::from_utf8(content).unwrap()
    };
    assert_eq!(read(&rig, "dir", "changed"), "old");
    assert_eq!(read(&rig, "", "same"), "old");
    assert!(rig.node.take().unwrap().stop(Duration::from_secs(10)));
    std::fs::rename(rig.backing(), rig.dir.join("before")).unwrap();
    std::fs::create_dir_all(rig.backing().join("dir")).unwrap();
    for (name, content) in [("dir/changed", "new"), ("dir/new", "new"), ("same", "new")] {
        std::fs::write(rig.backing().join(name), content).unwrap();
    }
    rig.start();
    assert_eq!(listed(&rig, "dir"), ["changed", "new"]);
    assert_eq!(read(&rig, "dir", "changed"), "new");
    assert_eq!(read(&rig, "dir", "new"), "new");
    assert_eq!(read(&rig, "", "same"), "new");
    assert!(rig.node().writeback().conflicts().1.is_empty());
}

/// How a program comes to a file whose rest is gone.
type Comes = fn(&Rig, u64) -> forebay_node::Result<()>;

#[test]
fn file_whose_rest_is_gone_when_it_is_open_then_its_next_sync_or_read_fails_once() {
    let sync: Comes = |rig, fh| rig.node().fsync(&CONTEXT, fh, false);
    let read: Comes = |rig, fh| rig.node().read(&CONTEXT, fh, 2 << 20, &mut [7; 100]).map(drop);
    for (what, comes) in [("sync", sync), ("read", read)] {
        let (rig, fh) = changed_in_part(16 * MIB, false);
        rig.node().release(fh);
        // With a kernel that leaves nothing to its cache of what it may be given later.
        let rig = rig::passing::PassingRig::over(rig);
        let fh = rig.open("file", libc::O_RDWR);
        std::fs::remove_file(rig.backing().join("file")).unwrap();
        let first = rig.node().read(&CONTEXT, fh, 2 << 20, &mut [0; 100]);
        assert!(matches!(first, Err(forebay_node::NodeError::RestGone)), "{what}: {first:?}");
        // The write-back settles that zeros stand for what is gone. What is open stays dirty.
        let until = std::time::Instant::now() + Duration::from_secs(20);
        let left = rig.node().writeback().drain(until, &mut |_| true).unwrap();
        assert_eq!(left.entries, 1, "{what}");
        assert_eq!(rig.node().writeback().conflicts().0, 1, "{what}");
        let told = comes(&rig, fh);
        assert!(matches!(told, Err(forebay_node::NodeError::RestGone)), "{what}: {told:?}");
        comes(&rig, fh).unwrap_or_else(|error| panic!("{what} fails twice: {error}"));
        let bytes = rig.read_all(fh);
        assert!(bytes[..1 << 20] == [b'0'; 1 << 20] && bytes[1 << 20..] == [0; 2 << 20], "{what}");
        rig.node().release(fh);
    }
}

#[test]
fn file_with_two_names_when_others_write_it_as_its_flush_begins_then_both_versions_are_kept() {
    let _alone = rig::alone();
    let rig = rig();
    let below = rig.backing().join("file");
    std::fs::write(&below, noise(1, 20_000)).unwrap();
    std::fs::hard_link(&below, rig.backing().join("second")).unwrap();
    rig.age("file");
    let ours = noise(2, 25_000);
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 0, &ours);
    rig.node().release(fh);
    // What is about to happen has been noted, which takes as long as a device does.
    let others = AtomicBool::new(true);
    fail::cfg_callback("node.flush.in_place", move || {
        if others.swap(false, Ordering::AcqRel) {
            std::fs::write(&below, b"of others").unwrap();
        }
    })
    .unwrap();
    rig.drain();
    fail::remove("node.flush.in_place");
    for name in ["file", "second"] {
        assert!(rig.plain(name) == b"of others", "{name} has {} bytes", rig.plain(name).len());
    }
    assert!(conflict_copy(&rig) == ours);
}
