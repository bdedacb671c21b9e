//! Objects whose header or map can't be read: what they may have that the backing store lacks is
//! never given up for an older version without a word.
#![cfg(feature = "failpoints")]

mod rig;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_meta::{
    Embedded, EmbeddedOptions, Engine, MetaStore, MiniTransaction, Options, Queue, Write,
};
use forebay_node::{CheckRequest, Checked, Ino, NameIn, NewFile, SetAttr, check};
use forebay_store::tier::DirTier;
use forebay_store::{Header, Tier};
use forebay_testing::{LIMIT, wait_for};
use rig::{CONTEXT, KIB, MIB, Rig, noise};

const HEADER: &str = "user.forebay";

fn object(rig: &Rig) -> PathBuf {
    let fans = std::fs::read_dir(rig.dir.join("tier0/objects")).unwrap();
    let files = fans.flat_map(|fan| std::fs::read_dir(fan.unwrap().path()).unwrap());
    let mut files = files.map(|it| it.unwrap().path()).filter(|path| path.extension().is_none());
    let found = files.next().expect("no object");
    assert!(files.next().is_none(), "several objects");
    found
}

fn object_of(rig: &Rig, ino: Ino) -> PathBuf {
    let fans = std::fs::read_dir(rig.dir.join("tier0/objects")).unwrap();
    let name = format!("{:016x}", ino.0);
    let mut paths = fans.map(|fan| fan.unwrap().path().join(&name));
    paths.find(|path| path.exists()).expect("no object")
}

fn flip_header(rig: &Rig) {
    flip_header_of(object(rig));
}

fn flip_header_of(path: PathBuf) {
    let mut header = vec![0; 4096];
    let len = rustix::fs::getxattr(&path, HEADER, &mut header[..]).unwrap();
    header.truncate(len);
    header[20] ^= 8;
    rustix::fs::setxattr(&path, HEADER, &header, rustix::fs::XattrFlags::empty()).unwrap();
}

fn fsck(rig: &Rig, repair: bool, accept_loss: bool) -> Checked {
    let tiers = vec![rig.dir.join("tier0")];
    let request = CheckRequest { tiers, repair, accept_loss, ..CheckRequest::default() };
    check(&request, &mut |_| true).unwrap()
}

fn read(rig: &Rig, name: &str) -> Result<Vec<u8>, i32> {
    let found = rig.node().open(&CONTEXT, rig.ino(name), libc::O_RDONLY);
    let fh = found.map_err(|_| libc::EIO)?.fh;
    let bytes = rig.read_all(fh);
    rig.node().release(fh);
    Ok(bytes)
}

fn is_lost_and_named(rig: &Rig, name: &str) {
    assert_eq!(read(rig, name), Err(libc::EIO), "an older version is shown");
    assert_eq!(rig.node().residency().lost_files().list, [name.as_bytes().to_vec()]);
    assert!(rig.node().residency().set_aside().files > 0);
}

/// A published file, open and written when the daemon dies.
fn rig_with_a_file_that_was_open() -> (Rig, Vec<u8>) {
    let mut rig = Rig::small(8 * MIB);
    let mut bytes = noise(7, 20_000);
    std::fs::write(rig.backing().join("file"), &bytes).unwrap();
    let fh = rig.open("file", libc::O_RDWR);
    assert_eq!(rig.read_all(fh), bytes);
    rig.write(fh, 5000, b"not below");
    bytes[5000..5009].copy_from_slice(b"not below");
    rig.crash();
    (rig, bytes)
}

#[test]
fn file_that_was_open_when_its_header_is_damaged_then_it_is_lost_and_named_and_comes_back_by_repair()
 {
    let (mut rig, bytes) = rig_with_a_file_that_was_open();
    flip_header(&rig);
    rig.start();
    is_lost_and_named(&rig, "file");
    rig.crash();
    rig.start();
    is_lost_and_named(&rig, "file");
    rig.crash();
    fsck(&rig, true, false);
    rig.start();
    assert_eq!(read(&rig, "file"), Ok(bytes.clone()));
    rig.drain();
    assert_eq!(rig.plain("file"), bytes);
}

/// Says in the header of an object that a newer version has written it, as that would.
fn make_newer(path: &std::path::Path) {
    const CHECKSUM: std::ops::Range<usize> = 144..152;
    let mut header = vec![0; 4096];
    let len = rustix::fs::getxattr(path, HEADER, &mut header[..]).unwrap();
    header.truncate(len);
    header[8] += 1;
    header[CHECKSUM].fill(0);
    let sum = xxhash_rust::xxh3::xxh3_64(&header);
    header[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    rustix::fs::setxattr(path, HEADER, &header, rustix::fs::XattrFlags::empty()).unwrap();
}

#[test]
fn file_whose_object_a_newer_version_has_written_when_repaired_then_it_is_kept_as_it_is_and_named()
{
    let mut rig = Rig::small(8 * MIB);
    let bytes = noise(3, 20_000);
    rig.put("file", &bytes);
    assert!(rig.node().stop(Duration::from_secs(10)));
    rig.crash();
    make_newer(&object(&rig));
    rig.start();
    is_lost_and_named(&rig, "file");
    rig.crash();
    for rebuild in [false, false, true] {
        let told = match rebuild {
            false => fsck(&rig, true, false),
            true => rig.check(true),
        };
        let told = format!("{told:?}");
        assert!(told.contains("file: its object") && told.contains("newer version"), "{told}");
        let kept: Vec<PathBuf> = std::fs::read_dir(rig.dir.join("tier0/lost"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert_eq!(kept.len(), 1, "{told}");
        assert!(std::fs::read(&kept[0]).unwrap() == bytes, "its bytes have changed");
        let mut header = [0; 4096];
        let len = rustix::fs::getxattr(&kept[0], HEADER, &mut header[..]).unwrap();
        assert_eq!(
            Header::decode(&header[..len]).map(drop),
            Err(forebay_store::HeaderFault::Version(2))
        );
    }
}

#[test]
fn file_that_was_open_when_fsck_sets_its_object_aside_then_it_is_not_the_old_version() {
    let (mut rig, bytes) = rig_with_a_file_that_was_open();
    flip_header(&rig);
    assert!(fsck(&rig, false, false).problems > 0);
    fsck(&rig, true, false);
    rig.start();
    let found = read(&rig, "file");
    assert!(found.is_err() || found == Ok(bytes), "an older version is shown");
}

#[test]
fn file_that_was_emptied_and_written_when_its_header_is_damaged_then_it_is_lost() {
    let mut rig = Rig::small(8 * MIB);
    std::fs::write(rig.backing().join("file"), b"old").unwrap();
    let fh = rig.open("file", libc::O_RDWR | libc::O_TRUNC);
    rig.write(fh, 0, b"all that there is");
    rig.crash();
    flip_header(&rig);
    rig.start();
    is_lost_and_named(&rig, "file");
    rig.crash();
    rig.start();
    is_lost_and_named(&rig, "file");
}

#[test]
fn file_when_its_end_is_missing_after_a_clean_end_then_it_is_lost_and_named() {
    let (mut rig, bytes) = rig_with_a_file_that_was_open();
    rig.start();
    assert_eq!(read(&rig, "file"), Ok(bytes.clone()));
    assert!(rig.node().stop(Duration::from_secs(10)));
    rig.crash();
    let path = object(&rig);
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(10_000).unwrap();
    assert!(fsck(&rig, false, false).problems > 0);
    rig.start();
    is_lost_and_named(&rig, "file");
    rig.crash();
    fsck(&rig, true, false);
    rig.start();
    is_lost_and_named(&rig, "file");
}

#[test]
fn copy_when_its_header_is_damaged_then_the_file_is_as_the_backing_store_has_it() {
    for whole in [true, false] {
        let mut rig = Rig::small(8 * MIB);
        let bytes = noise(7, if whole { 20_000 } else { 2_000_000 });
        std::fs::write(rig.backing().join("file"), &bytes).unwrap();
        let fh = rig.open("file", libc::O_RDONLY);
        let mut part = vec![0; 1000];
        rig.node().read(&CONTEXT, fh, 10_000, &mut part).unwrap();
        rig.node().release(fh);
        rig.crash();
        flip_header(&rig);
        rig.start();
        assert_eq!(read(&rig, "file"), Ok(bytes), "whole: {whole}");
        assert_eq!(rig.node().residency().lost_files().files, 0);
    }
}

/// The map followed the length of the object, was dirty by that alone, and a part of the file took the
/// place of the version that the backing store had.
#[test]
fn part_of_a_copy_when_its_object_has_another_length_then_the_file_is_as_the_backing_store_has_it()
{
    for (len, clean_end) in [(5000, false), (5000, true), (2_500_000, false), (2_500_000, true)] {
        let what = format!("{len}, clean end: {clean_end}");
        let mut rig = Rig::small(8 * MIB);
        let mut bytes = noise(7, 2_000_000);
        std::fs::write(rig.backing().join("file"), &bytes).unwrap();
        let fh = rig.open("file", libc::O_WRONLY);
        rig.write(fh, 3000, b"written back");
        bytes[3000..3012].copy_from_slice(b"written back");
        rig.node().release(fh);
        rig.drain();
        if clean_end {
            assert!(rig.node().stop(Duration::from_secs(10)), "{what}");
        }
        rig.crash();
        let object = std::fs::File::options().write(true).open(object(&rig)).unwrap();
        assert_eq!(object.metadata().unwrap().len(), 2_000_000, "{what}");
        object.set_len(len).unwrap();
        let checked = fsck(&rig, false, false);
        assert_eq!((checked.problems, checked.leftovers), (0, 1), "{what}");
        rig.start();
        assert!(read(&rig, "file").as_ref() == Ok(&bytes), "{what}");
        assert_eq!(rig.node().dirty_files(9), [], "{what}");
        rig.drain();
        assert_eq!(rig.plain("file"), bytes, "{what}");
    }
}

#[test]
fn copy_with_a_damaged_header_when_others_changed_the_file_then_it_is_not_guessed_at() {
    let (mut rig, _) = rig_with_a_file_that_was_open();
    flip_header(&rig);
    std::fs::write(rig.backing().join("file"), noise(9, 20_000)).unwrap();
    rig.start();
    is_lost_and_named(&rig, "file");
}

#[test]
fn file_with_a_part_in_a_spill_file_when_its_object_is_damaged_then_no_part_is_shown_without_it() {
    let mut rig = Rig::small(MIB);
    let old = noise(5, 700 * KIB);
    std::fs::write(rig.backing().join("file"), &old).unwrap();
    let fh = rig.open("file", libc::O_RDWR);
    let mut part = vec![0; 1000];
    rig.node().read(&CONTEXT, fh, 0, &mut part).unwrap();
    rig.write(fh, 0, &noise(6, 100 * KIB));
    // Open, so that nothing makes room.
    rig.write(rig.create("other"), 0, &noise(7, 600 * KIB));
    for at in (100 * KIB..700 * KIB).step_by(100 * KIB as usize) {
        rig.write(fh, at, &noise(at, 100 * KIB));
    }
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    let path = object_of(&rig, rig.ino("file"));
    rig.crash();
    assert!(std::fs::read_dir(rig.backing().join(".forebay/spill")).unwrap().count() > 0);
    flip_header_of(path);
    for _ in 0..2 {
        rig.start();
        is_lost_and_named(&rig, "file");
        rig.crash();
    }
    fsck(&rig, true, false);
    rig.start();
    is_lost_and_named(&rig, "file");
    rig.crash();
    fsck(&rig, false, true);
    rig.start();
    assert_eq!(read(&rig, "file"), Ok(old), "given up");
}

/// As when the end of the index's log is lost: a spill file is noted, and no record speaks of it.
#[test]
fn spill_file_when_its_record_is_older_than_its_note_then_it_is_set_aside_and_not_removed() {
    let mut rig = Rig::small(256 * KIB);
    let bytes = noise(8, 2 * MIB);
    rig.put("file", &bytes);
    let ino = rig.ino("file");
    rig.crash();
    assert!(std::fs::read_dir(rig.backing().join(".forebay/spill")).unwrap().count() > 0);
    let engine = Embedded::open(&rig.dir.join("tier0/state/meta"), &EmbeddedOptions::default());
    let meta = MetaStore::open(Box::new(engine.unwrap()), &Options::default()).unwrap();
    meta.update(ino, None, |record| {
        (record.spilled, record.attr.size) = (false, 0);
        record.mark_clean();
        Queue::No
    })
    .unwrap();
    drop(meta);
    rig.start();
    let aside = rig.node().residency().set_aside();
    assert_eq!(aside.files, 1, "{aside:?}");
    // Its beginning is on the tier.
    let kept = std::fs::read(&aside.list[0]).unwrap();
    assert!(kept.ends_with(&bytes[MIB as usize..]));
}

/// The namespace is whole but for the record of one file, or for its note as well: nobody asks for the spill
/// file any more, which may be the only copy.
#[test]
fn spill_file_when_the_namespace_has_no_record_of_its_file_then_a_start_sets_it_aside() {
    const RECORD: u8 = b'I';
    for without_notes in [false, true] {
        let mut rig = Rig::small(256 * KIB);
        let bytes = noise(8, 2 * MIB);
        rig.put("file", &bytes);
        rig.put("other", b"other");
        let ino = rig.ino("file").0.to_be_bytes();
        rig.crash();
        let spill = rig.backing().join(".forebay/spill");
        assert_eq!(std::fs::read_dir(&spill).unwrap().count(), 1);
        let path = rig.dir.join("tier0/state/meta");
        let engine = Embedded::open(&path, &EmbeddedOptions::default()).unwrap();
        let mut edit = MiniTransaction::default();
        for (key, _) in engine.sweep(None, 10_000).unwrap() {
            let is_record = key.bytes()[0] == RECORD && key.bytes()[1..] == ino;
            let is_about = key.bytes().windows(ino.len()).any(|part| part == ino);
            if is_record || without_notes && is_about {
                edit.write.push(Write::Delete(key));
            }
        }
        assert!(!edit.write.is_empty(), "it has no record");
        engine.execute(&edit).unwrap();
        engine.sync().unwrap();
        drop(engine);
        rig.start();
        let aside = rig.node().residency().set_aside();
        let kept: Vec<Vec<u8>> =
            aside.list.iter().map(|path| std::fs::read(path).unwrap()).collect();
        let is_kept = kept.iter().any(|kept| kept.ends_with(&bytes[MIB as usize..]));
        assert!(is_kept, "without notes: {without_notes}: {aside:?}");
        assert!(std::fs::read_dir(&spill).unwrap().next().is_none(), "it is there twice");
        assert_eq!(rig.get("other"), b"other");
    }
}

/// Makes the value under a key one of a newer version.
fn make_value_newer(rig: &Rig, is_it: impl Fn(&[u8]) -> bool) {
    let path = rig.dir.join("tier0/state/meta");
    let engine = Embedded::open(&path, &EmbeddedOptions::default()).unwrap();
    let mut all = engine.sweep(None, 10_000).unwrap().into_iter();
    let (key, mut value) = all.find(|(key, _)| is_it(key.bytes())).expect("no such key");
    value[0] = 9;
    let write = vec![Write::Put(key, value)];
    engine.execute(&MiniTransaction { write, ..MiniTransaction::default() }).unwrap();
    engine.sync().unwrap();
}

/// It ended at the first of them: what came later in the walk was not written, and nobody was told which it was.
#[test]
fn record_that_cannot_be_decoded_when_synced_and_checked_then_it_is_named_and_all_else_is_done() {
    for (name, tag) in [("b/file", b'I'), ("b", b'I'), ("b/file", b'D')] {
        let mut rig = Rig::small(16 * MIB);
        for dir in ["a", "b", "c"] {
            let dir = rig.node().mkdir(&CONTEXT, Ino::ROOT, dir.as_bytes(), 0o755, 0).unwrap().ino;
            for name in ["file", "second"] {
                let made = rig.node().create_and_open(
                    &CONTEXT,
                    dir,
                    name.as_bytes(),
                    NewFile { mode: 0o644, umask: 0 },
                    libc::O_RDWR,
                );
                let fh = made.unwrap().1.fh;
                rig.write(fh, 0, b"bytes");
                rig.node().release(fh);
            }
        }
        let dir = rig.ino("b");
        let file = rig.node().lookup(&CONTEXT, dir, b"file").unwrap().unwrap().ino;
        rig.crash();
        let about = if name == "b" { dir } else { file };
        make_value_newer(&rig, |key| match tag {
            b'I' => key == [&b"I"[..], &about.0.to_be_bytes()].concat(),
            _ => {
                key.starts_with(&[&b"D"[..], &dir.0.to_be_bytes()].concat())
                    && key.ends_with(b"file")
            }
        });
        let checked = fsck(&rig, false, false);
        let told = checked.details.join("\n");
        assert!(told.contains("newer Forebay") && told.contains(name), "{name}: {told}");
        rig.start();
        let until = Instant::now() + Duration::from_secs(20);
        let synced = rig.node().writeback().sync_subtree(Ino::ROOT, until, &mut |_| true).unwrap();
        assert!(!synced.complete && synced.failed > 0, "{name}: {synced:?}");
        let shown = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let is_named = synced.failures.iter().any(|(path, why)| {
            (shown(path) == name || tag == b'D' && shown(path) == "b")
                && why.contains("newer Forebay")
        });
        assert!(is_named, "{name}: {synced:?}");
        for dir in ["a", "c"] {
            for file in ["file", "second"] {
                assert_eq!(rig.plain(&format!("{dir}/{file}")), b"bytes", "{name}: {dir}/{file}");
            }
        }
        if name == "b/file" && tag == b'I' {
            assert_eq!(rig.plain("b/second"), b"bytes");
        }
    }
}

/// Written back, not reported, and changed by others before the next start: that is theirs now.
#[test]
fn file_written_back_and_not_reported_when_others_change_it_then_it_is_theirs_and_not_lost() {
    let _alone = rig::alone();
    for whole in [true, false] {
        let mut rig = Rig::small(8 * MIB);
        let len = if whole { 20_000 } else { 2_000_000 };
        std::fs::write(rig.backing().join("file"), noise(7, len)).unwrap();
        let fh = rig.open("file", libc::O_RDWR);
        rig.write(fh, 100, b"ours");
        rig.node().release(fh);
        fail::cfg("node.clean.after_header", "return").unwrap();
        drop(rig.node().writeback().reconcile(rig.ino("file")));
        fail::remove("node.clean.after_header");
        rig.crash();
        let theirs = noise(8, len + 7);
        std::fs::write(rig.backing().join("file"), &theirs).unwrap();
        rig.start();
        assert_eq!(read(&rig, "file"), Ok(theirs.clone()), "whole: {whole}");
        rig.drain();
        assert_eq!(rig.plain("file"), theirs);
        assert_eq!(rig.node().writeback().conflicts().0, 0);
    }
}

#[test]
fn lost_file_when_it_is_replaced_in_any_way_then_it_is_the_new_one() {
    for way in ["open to truncate", "truncate", "rename over", "unlink"] {
        let (mut rig, _) = rig_with_a_file_that_was_open();
        flip_header(&rig);
        rig.start();
        is_lost_and_named(&rig, "file");
        let node = rig.node().clone();
        match way {
            "open to truncate" => {
                let fh = rig.open("file", libc::O_WRONLY | libc::O_TRUNC);
                rig.write(fh, 0, b"new");
                node.release(fh);
            }
            "truncate" => {
                let set = forebay_node::SetAttr { size: Some(0), ..Default::default() };
                let _cut = node.setattr(&CONTEXT, rig.ino("file"), &set).unwrap();
                let fh = rig.open("file", libc::O_WRONLY);
                rig.write(fh, 0, b"new");
                node.release(fh);
            }
            "rename over" => {
                rig.put("other", b"new");
                let root = forebay_node::Ino::ROOT;
                node.rename(&CONTEXT, NameIn::new(root, b"other"), NameIn::new(root, b"file"), 0)
                    .unwrap();
            }
            _ => {
                node.unlink(&CONTEXT, forebay_node::Ino::ROOT, b"file").unwrap();
                rig.put("file", b"new");
            }
        }
        assert_eq!(read(&rig, "file"), Ok(b"new".to_vec()), "{way}");
        // A replaced file can still be opened for a moment.
        let lost = || node.residency().lost_files();
        assert!(wait_for(LIMIT, || lost().files == 0), "{way}: {:?}", lost());
        drop(node);
        rig.crash();
        rig.start();
        assert_eq!(read(&rig, "file"), Ok(b"new".to_vec()), "{way}, after a start");
        rig.drain();
        assert_eq!(rig.plain("file"), b"new", "{way}");
        assert_eq!(rig.node().writeback().conflicts().0, 0, "{way}");
    }
}

/// A cut is noted before it is made, so what is missing after the death of a daemon is a damage. Before,
/// the file was as long as what was left of it, in silence.
#[test]
fn object_whose_end_is_missing_when_its_daemon_was_killed_then_lost_and_named() {
    for open in [false, true] {
        let mut rig = Rig::small(8 * MIB);
        std::fs::write(rig.backing().join("file"), noise(8, 20_000)).unwrap();
        let fh = rig.open("file", libc::O_RDWR);
        assert_eq!(rig.read_all(fh).len(), 20_000);
        rig.write(fh, 0, &noise(7, 20_000));
        if !open {
            rig.node().release(fh);
        }
        rig.crash();
        let object = std::fs::File::options().write(true).open(object(&rig)).unwrap();
        object.set_len(10_000).unwrap();
        assert!(fsck(&rig, false, false).problems > 0, "open: {open}");
        rig.start();
        is_lost_and_named(&rig, "file");
    }
}

#[test]
fn file_that_was_cut_or_emptied_when_its_daemon_is_killed_then_it_is_as_it_was_cut() {
    for open in [false, true] {
        for size in [0, 5000, 30_000] {
            let mut rig = Rig::small(8 * MIB);
            std::fs::write(rig.backing().join("file"), noise(8, 20_000)).unwrap();
            let fh = rig.open("file", libc::O_RDWR);
            rig.write(fh, 0, &noise(7, 20_000));
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            rig.node().setattr(&CONTEXT, rig.ino("file"), &set).unwrap();
            if !open {
                rig.node().release(fh);
            }
            rig.crash();
            assert_eq!(fsck(&rig, false, false).problems, 0, "{size}, open: {open}");
            rig.start();
            let mut wanted = noise(7, 20_000);
            wanted.resize(size as usize, 0);
            assert_eq!(read(&rig, "file"), Ok(wanted), "{size}, open: {open}");
        }
    }
}

/// A copy was begun beside a spill file, and the daemon died before it saw that there is one: the empty
/// object counted, and the file had no bytes.
#[test]
fn copy_begun_beside_a_spill_file_when_the_daemon_dies_then_the_spill_file_counts() {
    // No room for any object.
    let mut rig = Rig::small(4 * KIB);
    let spilled = rig.create("spilled");
    let bytes = noise(50, 300_000);
    for (piece, at) in bytes.chunks(100_000).zip((0..).step_by(100_000)) {
        rig.write(spilled, at, piece);
    }
    let ino = rig.ino("spilled");
    rig.node().release(spilled);
    rig.crash();
    {
        let tier = DirTier::open(rig.dir.join("tier0")).unwrap();
        assert!(tier.open(ino.0).is_err(), "all of it is in the spill file");
        drop(tier.create_map(ino.0, 64 * KIB, bytes.len() as u64).unwrap());
        let header = Header { ino: ino.0, spilled: true, ..Header::default() };
        drop(tier.create(ino.0, &header).unwrap());
    }
    rig.start();
    assert_eq!(read(&rig, "spilled"), Ok(bytes.clone()));
    rig.drain();
    assert_eq!(rig.plain("spilled"), bytes);
}

/// The maps below a directory.
fn maps_below(dir: PathBuf) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|it| it.path());
    let (dirs, files): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
    let mut maps: Vec<_> = dirs.into_iter().flat_map(maps_below).collect();
    maps.extend(files.into_iter().filter(|path| path.extension().is_some_and(|it| it == "map")));
    maps
}

/// What was written and synced of a file of which only a part is here: a bit of its map, or the end of the
/// map, is gone.
#[test]
fn map_of_which_a_state_is_damaged_then_the_file_is_lost_by_name_and_not_as_it_was() {
    for (spilled, cut) in [(false, false), (false, true), (true, false), (true, true)] {
        let what = format!("spilled: {spilled}, cut: {cut}");
        let mut rig = Rig::small(if spilled { 128 * KIB } else { 16 * MIB });
        std::fs::write(rig.backing().join("file"), noise(1, 2 * MIB)).unwrap();
        let fh = rig.open("file", libc::O_RDWR);
        for (piece, at) in noise(2, MIB).chunks(100_000).zip((0..).step_by(100_000)) {
            rig.write(fh, at, piece);
        }
        rig.node().fsync(&CONTEXT, fh, false).unwrap();
        rig.node().release(fh);
        rig.crash();
        let dir = if spilled { rig.backing().join(".forebay") } else { rig.dir.join("tier0") };
        let maps = maps_below(dir);
        assert_eq!(maps.len(), 1, "{what}: {maps:?}");
        let mut map = std::fs::read(&maps[0]).unwrap();
        match cut {
            true => map.truncate(64 + 10),
            // Some extent in the middle was there, and is not any more.
            false => map[64 + 8] ^= 1,
        }
        std::fs::write(&maps[0], map).unwrap();
        rig.start();
        assert!(read(&rig, "file").is_err(), "{what}: an older version is shown, without a word");
        assert_eq!(rig.node().residency().lost_files().files, 1, "{what}");
    }
}
