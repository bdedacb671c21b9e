//! A rebuild of the index brings back what it can vouch for, and guesses nothing: what is cut, missing or
//! unreadable is set aside and named, and never takes the place of the version in the backing store.
#![cfg(feature = "failpoints")]

mod rig;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_node::SetAttr;
use forebay_store::decorators::Transparent;
use rig::kept::{cut, end, files_below, is_map, lose_index, objects, only, spills};
use rig::{CONTEXT, KIB, MIB, Rig, noise, same};

const HEADER: &str = "user.forebay";

/// Rebuilds; what was said.
fn rebuild(rig: &Rig) -> String {
    let checked = rig.check(true);
    let said = checked.details.join("\n");
    assert!(checked.problems > checked.repaired, "all is said to be well: {said}");
    said
}

/// After a rebuild, a start and a drain the backing store has this under that name, and nothing beside it.
fn stays(rig: &mut Rig, name: &str, bytes: &[u8], what: &str) {
    rig.start();
    same(&rig.get(name), bytes, what);
    rig.drain();
    same(&rig.plain(name), bytes, what);
    let names = std::fs::read_dir(rig.backing()).unwrap().map(|it| it.unwrap().file_name());
    let beside: Vec<_> =
        names.filter(|name| name.to_string_lossy().contains("recovered")).collect();
    assert!(beside.is_empty(), "{what}: {beside:?}");
}

/// A file of the backing store of which the beginning was overwritten here and synced, all else being
/// there alone; what was there.
fn with_a_part() -> (Rig, Vec<u8>) {
    let mut rig = Rig::small(8 * MIB);
    let old = noise(1, 640 * KIB);
    std::fs::write(rig.backing().join("file"), &old).unwrap();
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 0, &noise(2, 64 * KIB));
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    rig.node().release(fh);
    end(&mut rig);
    (rig, old)
}

#[test]
fn part_of_a_file_that_is_cut_when_the_index_is_built_anew_then_no_length_is_invented() {
    for lost in [false, true] {
        let what = format!("index lost: {lost}");
        let (mut rig, old) = with_a_part();
        cut(&only(&objects(&rig), false), 100 * KIB);
        if lost {
            lose_index(&rig);
        }
        let said = rebuild(&rig);
        assert!(said.contains("of file:") && said.contains("set aside as"), "{what}: {said}");
        stays(&mut rig, "file", &old, &what);
    }
}

#[test]
fn part_of_a_file_whose_version_below_is_gone_when_the_index_is_built_anew_then_no_empty_file_is_made()
 {
    let (mut rig, _) = with_a_part();
    std::fs::remove_file(rig.backing().join("file")).unwrap();
    lose_index(&rig);
    let said = rebuild(&rig);
    assert!(said.contains("of file:") && said.contains("set aside as"), "{said}");
    rig.start();
    rig.drain();
    assert!(!rig.backing().join("file").exists(), "an empty file was made");
    let aside = only(&rig.dir.join("tier0/lost"), false);
    same(&std::fs::read(aside).unwrap()[..64 << 10], &noise(2, 64 * KIB), "set aside");
}

#[test]
fn whole_file_that_is_cut_when_the_index_that_knows_its_length_is_built_anew_then_it_is_set_aside()
{
    let mut rig = Rig::small(8 * MIB);
    let old = noise(1, 200 * KIB);
    std::fs::write(rig.backing().join("file"), &old).unwrap();
    let fh = rig.open("file", libc::O_RDWR | libc::O_TRUNC);
    rig.write(fh, 0, &noise(2, 200 * KIB));
    rig.node().release(fh);
    end(&mut rig);
    cut(&only(&objects(&rig), false), 100 * KIB);
    let said = rebuild(&rig);
    assert!(said.contains("of file:") && said.contains("set aside as"), "{said}");
    stays(&mut rig, "file", &old, "of which the half was left");
}

/// A file of which all that was written lies past the tier, over a version of the backing store.
fn with_a_spill_file_over() -> (Rig, Vec<u8>) {
    let mut rig = Rig::small(4 * KIB);
    let old = noise(1, MIB);
    std::fs::write(rig.backing().join("file"), &old).unwrap();
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 0, &noise(2, 320 * KIB));
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    rig.node().release(fh);
    end(&mut rig);
    assert!(files_below(&objects(&rig)).is_empty());
    (rig, old)
}

#[test]
fn spill_file_whose_map_is_cut_or_gone_when_the_index_is_built_anew_then_no_older_bytes_are_mixed_in()
 {
    for gone in [false, true] {
        let what = format!("gone: {gone}");
        let (mut rig, old) = with_a_spill_file_over();
        let map = only(&spills(&rig), true);
        match gone {
            true => std::fs::remove_file(map).unwrap(),
            false => cut(&map, 64 + 2),
        }
        let said = rebuild(&rig);
        assert!(said.contains("of file:") && said.contains("set aside as"), "{what}: {said}");
        stays(&mut rig, "file", &old, &what);
    }
}

#[test]
fn spill_file_that_is_cut_when_the_index_is_built_anew_then_no_length_is_invented() {
    let (mut rig, old) = with_a_spill_file_over();
    cut(&only(&spills(&rig), false), 200 * KIB);
    let said = rebuild(&rig);
    assert!(said.contains("of file:") && said.contains("set aside as"), "{said}");
    stays(&mut rig, "file", &old, "cut");
}

/// A file of which one part is on the tier and another one in a spill file; `over` a version of the
/// backing store or without any.
fn in_two_parts(over: bool) -> (Rig, Vec<u8>, Vec<u8>) {
    // Room is left for a map.
    let mut rig = Rig::new(&[MIB + 32 * KIB], Arc::new(Transparent), |_| {});
    let old = if over { noise(1, 700 * KIB) } else { Vec::new() };
    if over {
        std::fs::write(rig.backing().join("file"), &old).unwrap();
    }
    let mut new = old.clone();
    let fh = if over { rig.open("file", libc::O_RDWR) } else { rig.create("file") };
    let bytes = noise(2, if over { 640 } else { 900 } * KIB);
    let mut pieces = bytes.chunks(64 << 10).zip((0..).step_by(64 << 10));
    if over {
        // So that it has a map before there is no room for one.
        rig.node().read(&CONTEXT, fh, 0, &mut [0; 1000]).unwrap();
        pieces.by_ref().take(2).for_each(|(piece, at)| rig.write(fh, at, piece));
    }
    // It is open, and so stays where it is.
    let filler = rig.create("filler");
    rig.write(filler, 0, &noise(3, if over { 600 } else { 320 } * KIB));
    pieces.for_each(|(piece, at)| rig.write(fh, at, piece));
    new.resize(new.len().max(bytes.len()), 0);
    new[..bytes.len()].copy_from_slice(&bytes);
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    let ino = rig.ino("file");
    end(&mut rig);
    let object = objects(&rig);
    let own = files_below(&object).into_iter().find(|path| is_of(path, ino.0));
    own.expect("a part is on the tier");
    only(&spills(&rig), false);
    std::fs::write(rig.dir.join("ino"), ino.0.to_le_bytes()).unwrap();
    (rig, old, new)
}

/// The object of that file, or its map.
fn object_in_two_parts(rig: &Rig, map: bool) -> PathBuf {
    let ino = u64::from_le_bytes(std::fs::read(rig.dir.join("ino")).unwrap().try_into().unwrap());
    let mut all = files_below(&objects(rig)).into_iter();
    all.find(|path| is_of(path, ino) && is_map(path) == map).expect("an object with a map")
}

fn is_of(path: &Path, ino: u64) -> bool {
    path.file_stem().is_some_and(|stem| stem.to_string_lossy() == format!("{ino:016x}"))
}

#[test]
fn file_in_two_parts_when_the_index_is_built_anew_then_it_comes_back() {
    for (over, lost) in [(false, false), (false, true), (true, false), (true, true)] {
        let what = format!("over: {over}, index lost: {lost}");
        let (mut rig, _, new) = in_two_parts(over);
        if lost {
            lose_index(&rig);
        }
        let checked = rig.check(true);
        assert_eq!(checked.problems, checked.repaired, "{what}: {:?}", checked.details);
        stays(&mut rig, "file", &new, &what);
    }
}

#[test]
fn file_of_which_the_part_in_the_spill_file_is_gone_or_cut_when_the_index_is_built_anew_then_it_is_set_aside()
 {
    for over in [false, true] {
        for (gone, lost) in [(false, false), (false, true), (true, false), (true, true)] {
            let what = format!("over: {over}, gone: {gone}, index lost: {lost}");
            let (mut rig, old, _) = in_two_parts(over);
            let spill = only(&spills(&rig), false);
            match gone {
                true => std::fs::remove_file(spill).unwrap(),
                false => cut(&spill, std::fs::metadata(&spill).unwrap().len() - 100 * KIB),
            }
            if lost {
                lose_index(&rig);
            }
            let said = rebuild(&rig);
            assert!(said.contains("of file:") && said.contains("set aside as"), "{what}: {said}");
            if over {
                stays(&mut rig, "file", &old, &what);
            } else {
                rig.start();
                rig.drain();
                assert!(!rig.backing().join("file").exists(), "{what}: it was made up");
            }
        }
    }
}

#[test]
fn file_in_two_parts_when_the_header_and_map_of_one_are_gone_then_the_other_is_not_removed() {
    let (mut rig, _, _) = in_two_parts(false);
    let object = object_in_two_parts(&rig, false);
    std::fs::remove_file(object_in_two_parts(&rig, true)).unwrap();
    rustix::fs::removexattr(&object, HEADER).unwrap();
    let spill = std::fs::read(only(&spills(&rig), false)).unwrap();
    let said = rebuild(&rig);
    let aside = only(&rig.backing().join(".forebay/lost"), false);
    assert!(said.contains(&*aside.to_string_lossy()), "{said}");
    same(&std::fs::read(&aside).unwrap(), &spill, "the spill file");
    rig.start();
    rig.drain();
    assert!(!rig.backing().join("file").exists(), "{said}");
}

/// The object still says what they were when it was made.
#[test]
fn mode_and_owner_that_were_changed_here_when_the_index_is_built_anew_then_are_those_of_the_old_one()
 {
    let mut rig = Rig::small(8 * MIB);
    rig.put("file", &noise(1, 20_000));
    let closed = SetAttr { mode: Some(0o600), uid: Some(12), gid: Some(13), ..SetAttr::default() };
    rig.node().setattr(&CONTEXT, rig.ino("file"), &closed).unwrap();
    end(&mut rig);
    let checked = rig.check(true);
    assert_eq!(checked.problems, checked.repaired, "{checked:?}");
    rig.start();
    let found = rig.node().getattr(&CONTEXT, rig.ino("file")).unwrap().attr;
    assert_eq!((found.perm, found.uid, found.gid), (0o600, 12, 13));
}
