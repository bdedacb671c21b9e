//! A crash of the machine that takes from a tier what was never synced there, while the namespace
//! knows of it: the version that the backing store has is not replaced by what is left.

mod rig;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_node::{Ino, NameIn, SetAttr};
use forebay_store::decorators::Transparent;
use rig::{CONTEXT, KIB, MIB, Rig, noise};

const V1: u64 = 40 * KIB;
const V2: u64 = 50 * KIB;

fn rig() -> Rig {
    let rig = Rig::new(&[16 * MIB], Arc::new(Transparent), |_| {});
    rig.put("file", &noise(1, V1));
    rig.drain();
    rig
}

/// The objects of the tier that are as long as this.
fn objects(rig: &Rig, len: u64) -> Vec<PathBuf> {
    let fans = std::fs::read_dir(rig.config.tiers[0].dir.join("objects")).unwrap();
    let files = fans.flat_map(|fan| std::fs::read_dir(fan.unwrap().path()).unwrap());
    let files = files.map(|file| file.unwrap().path());
    files.filter(|file| file.metadata().unwrap().len() == len).collect()
}

/// The machine stops, and of the objects of a length so many bytes were on the device.
fn power_cut(rig: &mut Rig, len: u64, left: u64) {
    rig.crash();
    let lost = objects(rig, len);
    assert_eq!(lost.len(), 1);
    std::fs::File::options().write(true).open(&lost[0]).unwrap().set_len(left).unwrap();
    std::fs::write(rig.config.tiers[0].dir.join("state/running"), "another boot").unwrap();
    rig.start();
}

/// The machine stops, and of the object of a length nothing was on the device, not even its name.
fn power_cut_without_object(rig: &mut Rig, len: u64) {
    rig.crash();
    let lost = objects(rig, len);
    assert_eq!(lost.len(), 1);
    std::fs::remove_file(&lost[0]).unwrap();
    std::fs::write(rig.config.tiers[0].dir.join("state/running"), "another boot").unwrap();
    rig.start();
}

fn replace(rig: &Rig) {
    let (from, to) = (NameIn::new(Ino::ROOT, b"file.new"), NameIn::new(Ino::ROOT, b"file"));
    rig.node().rename(&CONTEXT, from, to, 0).unwrap();
}

/// The good version is under its name, here and below, and what is left beside it, and named.
fn kept(rig: &Rig, left: u64) {
    for drained in [false, true] {
        assert!(rig.get("file") == noise(1, V1), "drained: {drained}");
        assert!(rig.plain("file") == noise(1, V1), "drained: {drained}");
        rig.drain();
    }
    let conflicts = rig.node().writeback().conflicts().1;
    assert_eq!(conflicts.len(), 1, "{conflicts:?}");
    assert_eq!(conflicts[0].path, b"file");
    let beside = String::from_utf8(conflicts[0].kept_as()).unwrap();
    assert_eq!(rig.plain(&beside).len() as u64, left);
    assert!(rig.get(&beside) == rig.plain(&beside));
}

#[test]
fn file_replaced_by_rename_without_a_sync_when_the_machine_stops_then_the_old_version_stays() {
    for left in [0, 4096] {
        let mut rig = rig();
        rig.put("file.new", &noise(2, V2));
        replace(&rig);
        power_cut(&mut rig, V2, left);
        kept(&rig, left);
        assert!(rig.node().lookup(&CONTEXT, Ino::ROOT, b"file.new").unwrap().is_none());
    }
}

#[test]
fn file_replaced_by_one_whose_bytes_are_holes_when_the_machine_stops_then_the_old_version_stays() {
    // As file systems leave it that make a length durable before the bytes.
    for from in [0, 8192] {
        let mut rig = rig();
        rig.put("file.new", &noise(2, V2));
        replace(&rig);
        rig.crash();
        let lost = objects(&rig, V2);
        let object = std::fs::File::options().write(true).open(&lost[0]).unwrap();
        object.set_len(from).and_then(|()| object.set_len(V2)).unwrap();
        drop(object);
        std::fs::write(rig.config.tiers[0].dir.join("state/running"), "another boot").unwrap();
        rig.start();
        kept(&rig, V2);
    }
}

#[test]
fn file_replaced_by_one_of_which_the_device_has_nothing_when_the_machine_stops_then_it_stays() {
    let mut rig = rig();
    rig.put("file.new", &noise(2, V2));
    replace(&rig);
    power_cut_without_object(&mut rig, V2);
    kept(&rig, 0);
    assert!(rig.node().lookup(&CONTEXT, Ino::ROOT, b"file.new").unwrap().is_none());
}

#[test]
fn new_file_of_which_the_device_has_nothing_when_the_machine_stops_then_it_is_empty() {
    let mut rig = rig();
    rig.put("other", &noise(2, V2));
    power_cut_without_object(&mut rig, V2);
    assert!(rig.get("other").is_empty() && rig.get("file") == noise(1, V1));
    rig.drain();
    assert!(rig.plain("other").is_empty());
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

#[test]
fn file_replaced_by_one_that_is_still_open_when_the_machine_stops_then_the_old_version_stays() {
    let mut rig = rig();
    let fh = rig.create("file.new");
    rig.write(fh, 0, &noise(2, V2));
    replace(&rig);
    power_cut(&mut rig, V2, 0);
    kept(&rig, 0);
}

#[test]
fn file_written_anew_without_a_sync_when_the_machine_stops_then_the_old_version_stays() {
    let mut rig = rig();
    let fh = rig.open("file", libc::O_RDWR | libc::O_TRUNC);
    rig.write(fh, 0, &noise(2, V2));
    rig.node().release(fh);
    power_cut(&mut rig, V2, 0);
    kept(&rig, 0);
}

/// The attributes are of the file, not of what was written to it, or renamed over it, last.
#[test]
fn attributes_when_synced_and_the_file_is_written_anew_and_the_machine_stops_then_are_as_synced() {
    const TAG: &[u8] = b"user.tag";
    for is_replaced in [false, true] {
        let mut rig = rig();
        let held = rig.hold_workers();
        let (node, ino) = (rig.node(), rig.ino("file"));
        let fh = rig.open("file", libc::O_RDWR);
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        node.setattr(&CONTEXT, ino, &mode).unwrap();
        node.set_xattr(&CONTEXT, ino, TAG, b"new", 0, false).unwrap();
        node.fsync(&CONTEXT, fh, false).unwrap();
        node.release(fh);
        if is_replaced {
            rig.put("file.new", &noise(2, V2));
            replace(&rig);
        } else {
            let fh = rig.open("file", libc::O_RDWR | libc::O_TRUNC);
            rig.write(fh, 0, &noise(2, V2));
            rig.node().release(fh);
        }
        drop(held);
        power_cut(&mut rig, V2, 0);
        let (node, ino) = (rig.node(), rig.ino("file"));
        let perm = node.getattr(&CONTEXT, ino).unwrap().attr.perm & 0o7777;
        assert_eq!(perm, 0o600, "replaced: {is_replaced}");
        assert_eq!(node.get_xattr(&CONTEXT, ino, TAG).unwrap(), b"new");
        kept(&rig, 0);
        let below = rig.backing().join("file");
        assert_eq!(below.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
        let mut value = [0; 8];
        let len = rustix::fs::getxattr(&below, "user.tag", &mut value).unwrap();
        assert_eq!(value[..len], *b"new");
    }
}

fn header_of(object: &Path) -> forebay_store::Header {
    let mut header = [0; 4096];
    let len = rustix::fs::getxattr(object, "user.forebay", &mut header[..]).unwrap();
    forebay_store::Header::decode(&header[..len]).unwrap()
}

/// The object that is to be cut has this length; it need not be the only one.
fn power_cut_unless_synced(rig: &mut Rig, len: u64) {
    rig.crash();
    for object in objects(rig, len) {
        if !header_of(&object).synced {
            std::fs::File::options().write(true).open(&object).unwrap().set_len(0).unwrap();
        }
    }
    std::fs::write(rig.config.tiers[0].dir.join("state/running"), "another boot").unwrap();
    rig.start();
}

/// What was replaced could come back under one name only, and if it has no other one.
#[test]
fn file_replaced_without_a_sync_when_one_of_both_has_two_names_and_the_machine_stops_then_old_or_new()
 {
    for second in ["file.new", "file after it", "file"] {
        let mut rig = rig();
        rig.put("file.new", &noise(2, V2));
        let link = |from: &str| {
            let ino = rig.ino(from);
            rig.node().link(&CONTEXT, ino, Ino::ROOT, b"second").unwrap();
        };
        match second {
            "file after it" => {
                replace(&rig);
                link("file");
            }
            from => {
                link(from);
                replace(&rig);
            }
        }
        power_cut_unless_synced(&mut rig, V2);
        for drained in [false, true] {
            let shown = rig.get("file");
            let whole = shown == noise(1, V1) || shown == noise(2, V2);
            assert!(whole, "{} bytes, second name of {second}, drained: {drained}", shown.len());
            rig.drain();
        }
        assert!(rig.plain("file") == rig.get("file"));
    }
}

/// The old file or the new one is seen, and not what the new one was before, of which nobody knows under this
/// name.
#[test]
fn file_written_anew_since_its_write_back_when_it_replaces_another_and_the_machine_stops_then_old_or_new()
 {
    for is_moved in [false, true] {
        let mut rig = rig();
        let first: &[u8] = if is_moved { b"first" } else { b"file.new" };
        rig.put(std::str::from_utf8(first).unwrap(), &noise(3, V1));
        rig.drain();
        if is_moved {
            let names = [first, b"file.new"].map(|name| NameIn::new(Ino::ROOT, name));
            rig.node().rename(&CONTEXT, names[0], names[1], 0).unwrap();
        }
        let fh = rig.open("file.new", libc::O_RDWR | libc::O_TRUNC);
        rig.write(fh, 0, &noise(2, V2));
        rig.node().release(fh);
        replace(&rig);
        power_cut_unless_synced(&mut rig, V2);
        for drained in [false, true] {
            let shown = rig.get("file");
            let whole = shown == noise(1, V1) || shown == noise(2, V2);
            assert!(whole, "{} bytes, moved: {is_moved}, drained: {drained}", shown.len());
            rig.drain();
        }
        assert!(rig.plain("file") == rig.get("file"));
    }
}

/// Its first version is below, and only its announcement is in the record: it is what the file was before, too.
#[test]
fn file_written_anew_during_its_first_write_back_when_it_replaces_another_then_old_or_new() {
    let _alone = rig::alone();
    let mut rig = rig();
    let held = rig.hold_workers();
    rig.put("file.new", &noise(3, V1));
    fail::cfg("node.flush.published", "return").unwrap();
    rig.node().writeback().reconcile(rig.ino("file.new")).unwrap_err();
    assert!(rig.plain("file.new") == noise(3, V1));
    let fh = rig.open("file.new", libc::O_RDWR | libc::O_TRUNC);
    rig.write(fh, 0, &noise(2, V2));
    rig.node().release(fh);
    replace(&rig);
    drop(held);
    power_cut_unless_synced(&mut rig, V2);
    fail::remove("node.flush.published");
    for drained in [false, true] {
        let shown = rig.get("file");
        let whole = shown == noise(1, V1) || shown == noise(2, V2);
        assert!(whole, "{} bytes, drained: {drained}", shown.len());
        rig.drain();
    }
    assert!(rig.plain("file") == rig.get("file"));
}

/// What is replaced need not be a file.
#[test]
fn file_written_anew_when_it_replaces_a_symbolic_link_and_the_machine_stops_then_old_or_new() {
    let mut rig = rig();
    rig.node().symlink(&CONTEXT, Ino::ROOT, b"link", b"elsewhere").unwrap();
    rig.drain();
    let fh = rig.open("file", libc::O_RDWR | libc::O_TRUNC);
    rig.write(fh, 0, &noise(2, V2));
    rig.node().release(fh);
    let (from, to) = (NameIn::new(Ino::ROOT, b"file"), NameIn::new(Ino::ROOT, b"link"));
    rig.node().rename(&CONTEXT, from, to, 0).unwrap();
    power_cut_unless_synced(&mut rig, V2);
    let is_link = rig.node().readlink(rig.ino("link")).is_ok();
    assert!(is_link || rig.get("link") == noise(2, V2));
}

/// Nothing comes back in the place of what takes a free name.
#[test]
fn file_written_anew_when_it_takes_a_free_name_then_nobody_waits_for_a_sync() {
    let rig = rig();
    let fh = rig.open("file", libc::O_RDWR | libc::O_TRUNC);
    rig.write(fh, 0, &noise(2, V2));
    rig.node().release(fh);
    let (from, to) = (NameIn::new(Ino::ROOT, b"file"), NameIn::new(Ino::ROOT, b"free"));
    rig.node().rename(&CONTEXT, from, to, 0).unwrap();
    let object = objects(&rig, V2).pop().unwrap();
    assert!(!header_of(&object).synced);
}

/// What replaced the old file was durable: not the old one comes back, but what the other was before.
#[test]
fn file_moved_over_another_and_written_anew_when_the_machine_stops_then_its_own_version_stays() {
    let mut rig = rig();
    rig.put("file.new", &noise(3, V1));
    rig.drain();
    replace(&rig);
    let fh = rig.open("file", libc::O_RDWR | libc::O_TRUNC);
    rig.write(fh, 0, &noise(2, V2));
    rig.node().release(fh);
    power_cut(&mut rig, V2, 0);
    assert!(rig.get("file") == noise(3, V1));
    rig.drain();
    assert!(rig.plain("file") == noise(3, V1));
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

/// The backing store has the new file as well, but empty, under the name that it had before.
#[test]
fn file_replaced_by_one_that_was_empty_below_when_the_machine_stops_then_the_old_version_stays() {
    for left in [Some(0), Some(4096), None] {
        let mut rig = rig();
        rig.put("file.new", b"");
        rig.drain();
        let fh = rig.open("file.new", libc::O_RDWR);
        rig.write(fh, 0, &noise(2, V2));
        rig.node().release(fh);
        replace(&rig);
        match left {
            Some(left) => power_cut(&mut rig, V2, left),
            None => power_cut_without_object(&mut rig, V2),
        }
        kept(&rig, left.unwrap_or(0));
        assert!(rig.node().lookup(&CONTEXT, Ino::ROOT, b"file.new").unwrap().is_none());
    }
}

#[test]
fn new_file_without_a_sync_when_the_machine_stops_then_what_is_left_is_there() {
    let mut rig = rig();
    rig.put("other", &noise(2, V2));
    power_cut(&mut rig, V2, 4096);
    assert!(rig.get("other") == noise(2, V2)[..4096]);
    rig.drain();
    assert!(rig.plain("other") == noise(2, V2)[..4096]);
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

#[test]
fn file_synced_before_it_replaces_another_when_the_machine_stops_then_it_is_published() {
    let mut rig = rig();
    let fh = rig.create("file.new");
    rig.write(fh, 0, &noise(2, V2));
    replace(&rig);
    // Longer than when it was renamed, and synced.
    rig.write(fh, V2, &noise(3, V2));
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    power_cut(&mut rig, 2 * V2, 2 * V2);
    rig.drain();
    assert_eq!(rig.plain("file").len() as u64, 2 * V2);
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

/// Changes of a file that has `V1` bytes in the backing store, the last of which makes them durable;
/// their end is lost with the power.
#[derive(Clone, Copy, Debug)]
enum Synced {
    WrittenOver,
    WrittenAnew,
    Replaced,
    ByEachWrite,
}

/// The file was synced with the second content, and is open.
fn synced(rig: &Rig, how: Synced) -> u64 {
    let flags = match how {
        Synced::WrittenOver | Synced::Replaced => libc::O_RDWR,
        Synced::WrittenAnew => libc::O_RDWR | libc::O_TRUNC,
        Synced::ByEachWrite => libc::O_RDWR | libc::O_TRUNC | libc::O_DSYNC,
    };
    let fh = match how {
        Synced::Replaced => rig.create("file.new"),
        _ => rig.open("file", flags),
    };
    rig.write(fh, 0, &noise(2, V2));
    rig.node().fsync(&CONTEXT, fh, true).unwrap();
    if matches!(how, Synced::Replaced) {
        replace(rig);
        rig.node().fsync_dir(&CONTEXT, Ino::ROOT).unwrap();
    }
    fh
}

const EVERY_WAY: [Synced; 4] =
    [Synced::WrittenOver, Synced::WrittenAnew, Synced::Replaced, Synced::ByEachWrite];

#[test]
fn file_synced_and_made_longer_when_the_machine_stops_then_what_was_synced_is_there() {
    for how in EVERY_WAY {
        let mut rig = rig();
        let fh = synced(&rig, how);
        rig.write(fh, V2, &noise(3, V2));
        rig.node().release(fh);
        power_cut(&mut rig, 2 * V2, V2);
        for drained in [false, true] {
            assert!(rig.get("file") == noise(2, V2), "{how:?}, drained: {drained}");
            rig.drain();
        }
        assert!(rig.plain("file") == noise(2, V2), "{how:?}");
        assert_eq!(rig.node().writeback().conflicts().0, 0, "{how:?}");
    }
}

#[test]
fn file_synced_and_emptied_when_the_machine_stops_then_no_older_version_comes_back() {
    for how in EVERY_WAY {
        let mut rig = rig();
        let fh = synced(&rig, how);
        rig.node().release(fh);
        let fh = rig.open("file", libc::O_RDWR | libc::O_TRUNC);
        rig.write(fh, 0, &noise(3, V1 / 2));
        rig.node().release(fh);
        power_cut(&mut rig, V1 / 2, 0);
        assert!(rig.get("file").is_empty(), "{how:?}");
        rig.drain();
        assert!(rig.plain("file").is_empty(), "{how:?}");
    }
}

#[test]
fn copy_made_longer_without_a_sync_when_the_machine_stops_then_there_is_no_conflict() {
    let mut rig = rig();
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, V1, &noise(3, V2));
    rig.node().release(fh);
    power_cut(&mut rig, V1 + V2, V1);
    assert!(rig.get("file") == noise(1, V1));
    rig.drain();
    assert!(rig.plain("file") == noise(1, V1));
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

#[test]
fn copy_emptied_and_made_longer_without_a_sync_when_the_machine_stops_then_the_old_version_stays() {
    let mut rig = rig();
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 0, &noise(3, 100));
    rig.node().release(fh);
    let fh = rig.open("file", libc::O_RDWR | libc::O_TRUNC);
    rig.write(fh, 0, &noise(2, V2));
    rig.node().release(fh);
    power_cut(&mut rig, V2, 4096);
    kept(&rig, 4096);
}

#[test]
fn file_replaced_twice_without_a_sync_when_the_machine_stops_then_the_old_version_stays() {
    let mut rig = rig();
    rig.put("file.new", &noise(3, 1000));
    replace(&rig);
    rig.put("file.new", &noise(2, V2));
    replace(&rig);
    power_cut(&mut rig, V2, 0);
    kept(&rig, 0);
}

/// A name is free, durably, and is given to a new file, by a creation or by a rename; nobody has synced
/// that. What had the name before does not get it back.
#[test]
fn name_that_was_free_when_a_new_file_is_cut_short_then_what_was_removed_stays_removed() {
    for renamed in [false, true] {
        let mut rig = rig();
        rig.node().unlink(&CONTEXT, Ino::ROOT, b"file").unwrap();
        rig.node().fsync_dir(&CONTEXT, Ino::ROOT).unwrap();
        rig.put(if renamed { "file.new" } else { "file" }, &noise(2, V2));
        if renamed {
            replace(&rig);
        }
        power_cut(&mut rig, V2, 4096);
        for drained in [false, true] {
            let found = rig.get("file");
            assert!(found == noise(2, V2)[..4096], "renamed: {renamed}, drained: {drained}");
            rig.drain();
        }
        assert!(rig.plain("file") == noise(2, V2)[..4096], "renamed: {renamed}");
        assert_eq!(rig.node().writeback().conflicts().0, 0, "renamed: {renamed}");
    }
}

#[test]
fn name_of_a_file_that_was_moved_when_a_new_one_is_cut_short_then_both_are_there() {
    let mut rig = rig();
    let (from, to) = (NameIn::new(Ino::ROOT, b"file"), NameIn::new(Ino::ROOT, b"moved"));
    rig.node().rename(&CONTEXT, from, to, 0).unwrap();
    rig.node().fsync_dir(&CONTEXT, Ino::ROOT).unwrap();
    rig.put("file", &noise(2, V2));
    power_cut(&mut rig, V2, 4096);
    for drained in [false, true] {
        assert!(rig.get("file") == noise(2, V2)[..4096], "drained: {drained}");
        assert!(rig.get("moved") == noise(1, V1), "drained: {drained}");
        rig.drain();
    }
    assert!(rig.plain("moved") == noise(1, V1));
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

/// A file that the backing store has, written anew and synced while the only tier is full; the handle of
/// what fills it.
fn rig_past_the_tier() -> (Rig, u64) {
    let rig = Rig::small(MIB);
    rig.put("file", &noise(1, V1));
    rig.drain();
    let filler = rig.create("filler");
    rig.write(filler, 0, &noise(3, MIB - 8 * KIB));
    let fh = rig.open("file", libc::O_WRONLY | libc::O_TRUNC);
    rig.write(fh, 0, &noise(2, V2));
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    rig.node().release(fh);
    assert_eq!(spill_files(&rig).len(), 1);
    (rig, filler)
}

fn spill_files(rig: &Rig) -> Vec<PathBuf> {
    let found = std::fs::read_dir(rig.backing().join(".forebay/spill")).unwrap();
    let files = found.map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_none_or(|end| end != "map")).collect()
}

/// The machine stops, and of each spill file at most so many bytes were on the device.
fn power_cut_of_the_store(rig: &mut Rig, left: u64) {
    rig.crash();
    for spill in spill_files(rig) {
        let file = std::fs::File::options().write(true).open(spill).unwrap();
        file.set_len(left.min(file.metadata().unwrap().len())).unwrap();
    }
    std::fs::write(rig.config.tiers[0].dir.join("state/running"), "another boot").unwrap();
}

#[test]
fn file_past_the_tier_when_synced_and_made_longer_and_the_machine_stops_then_it_is_there() {
    let (mut rig, _filler) = rig_past_the_tier();
    let fh = rig.open("file", libc::O_WRONLY);
    rig.write(fh, V2, &noise(4, V2));
    rig.node().release(fh);
    power_cut_of_the_store(&mut rig, V2);
    rig.start();
    for drained in [false, true] {
        // Where nothing of the new end is there are zeros, if its length was on the tier's device.
        assert!(rig.get("file").starts_with(&noise(2, V2)), "drained: {drained}");
        rig.drain();
    }
    assert!(rig.plain("file").starts_with(&noise(2, V2)));
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

#[test]
fn file_past_the_tier_when_synced_and_emptied_and_the_machine_stops_then_none_older_comes_back() {
    for written in [0, V1] {
        let (mut rig, filler) = rig_past_the_tier();
        let fh = rig.open("file", libc::O_WRONLY | libc::O_TRUNC);
        rig.node().release(filler);
        rig.node().unlink(&CONTEXT, Ino::ROOT, b"filler").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        rig.write(fh, 0, &noise(5, written));
        rig.node().release(fh);
        // Nothing of that is on any device, wherever it went.
        power_cut_of_the_store(&mut rig, 0);
        for object in objects(&rig, written) {
            std::fs::File::options().write(true).open(object).unwrap().set_len(0).unwrap();
        }
        rig.start();
        for drained in [false, true] {
            assert!(rig.get("file").is_empty(), "written: {written}, drained: {drained}");
            rig.drain();
        }
        assert!(rig.plain("file").is_empty());
        assert_eq!(rig.node().writeback().conflicts().0, 0);
    }
}
