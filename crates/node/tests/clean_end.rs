//! What a start believes of what nobody has synced: all of it after an end in order, whatever the
//! machine and the devices did since, and else only if neither the machine nor a device was away.

mod rig;

use std::path::PathBuf;
use std::time::Duration;

use rig::{CONTEXT, KIB, MIB, Rig, noise, same};

/// The files below a directory that have this ending.
fn with_ending(dir: PathBuf, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => found.extend(with_ending(path, ending)),
            false if path.extension().map_or("", |it| it.to_str().unwrap()) == ending => {
                found.push(path);
            }
            false => {}
        }
    }
    found
}

/// The maps of partly resident files and of spill files.
fn maps(rig: &Rig) -> Vec<PathBuf> {
    let mut maps = with_ending(rig.dir.join("tier0/objects"), "map");
    maps.extend(with_ending(rig.backing().join(".forebay/spill"), "map"));
    maps
}

/// The machine has restarted: no map was written in this boot, and no daemon ran in it.
fn another_boot(rig: &Rig) {
    for path in maps(rig) {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[40] ^= 1;
        let sum = xxhash_rust::xxh3::xxh3_64(&bytes[..56]);
        bytes[56..64].copy_from_slice(&sum.to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
    }
    std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
}

fn end_in_order(rig: &mut Rig) {
    assert!(rig.node.take().unwrap().stop(Duration::from_secs(20)));
}

/// A file of the backing store into which something was written that nobody has synced, and what it is
/// then. Of some files most is in a spill file.
fn with_a_written_part(spilled: bool) -> (Rig, Vec<u8>) {
    let rig = Rig::small(if spilled { 256 * KIB } else { 16 * MIB });
    let mut bytes = noise(1, 2 * MIB);
    std::fs::write(rig.backing().join("file"), &bytes).unwrap();
    let fh = rig.open("file", libc::O_RDWR);
    let written = if spilled { MIB } else { 200 * KIB };
    for (index, piece) in noise(2, written).chunks(100_000).enumerate() {
        let at = 300_000 + index * 100_000;
        rig.write(fh, at as u64, piece);
        bytes[at..at + piece.len()].copy_from_slice(piece);
    }
    rig.node().release(fh);
    let spill_maps = with_ending(rig.backing().join(".forebay/spill"), "map");
    assert_eq!(!spill_maps.is_empty(), spilled, "{spill_maps:?}");
    assert!(spilled || !maps(&rig).is_empty(), "the file is not partly resident");
    (rig, bytes)
}

#[test]
fn write_that_was_not_synced_when_the_machine_restarts_after_an_end_in_order_then_it_is_there() {
    for spilled in [false, true] {
        let what = format!("spilled: {spilled}");
        let (mut rig, bytes) = with_a_written_part(spilled);
        end_in_order(&mut rig);
        another_boot(&rig);
        let before: Vec<_> = maps(&rig).iter().map(|path| std::fs::read(path).unwrap()).collect();
        assert_eq!(rig.check(false).problems, 0, "{what}");
        let after: Vec<_> = maps(&rig).iter().map(|path| std::fs::read(path).unwrap()).collect();
        assert!(before == after, "{what}: fsck changed a map");
        rig.start();
        same(&rig.get("file"), &bytes, &what);
        // From then on it lasts: all of it was synced at that end.
        rig.crash();
        another_boot(&rig);
        rig.start();
        same(&rig.get("file"), &bytes, &format!("{what}, after a power cut"));
        rig.drain();
        same(&rig.plain("file"), &bytes, &what);
    }
}

#[test]
fn write_that_was_not_synced_when_the_power_fails_then_it_is_not_believed() {
    for spilled in [false, true] {
        let (mut rig, _) = with_a_written_part(spilled);
        rig.crash();
        another_boot(&rig);
        rig.start();
        let bytes = noise(1, 2 * MIB);
        same(&rig.get("file"), &bytes, &format!("spilled: {spilled}"));
    }
}

/// What is mounted where, as the last daemon has noted it, is another mount now.
fn mounted_anew(rig: &Rig, which: impl Fn(&str) -> bool) {
    let running = rig.dir.join("tier0/state/running");
    let noted = std::fs::read_to_string(&running).unwrap();
    let changed = noted.lines().map(|line| match line.rsplit_once(' ') {
        Some((name, number)) if which(name) => format!("{name} {number}7\n"),
        _ => format!("{line}\n"),
    });
    std::fs::write(&running, changed.collect::<String>()).unwrap();
}

/// The identity of the tier, as the note has it.
fn is_tier(name: &str) -> bool {
    !["/", "state", "store"].contains(&name)
}

#[test]
fn synced_file_when_its_tier_was_away_within_one_boot_then_it_is_as_it_was_synced() {
    let mut rig = Rig::small(16 * MIB);
    let bytes = noise(3, MIB);
    rig.put("file", &bytes);
    let fh = rig.open("file", libc::O_RDWR);
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    rig.write(fh, MIB, b"nobody has synced this");
    rig.node().release(fh);
    rig.crash();
    let objects = with_ending(rig.dir.join("tier0/objects"), "");
    assert_eq!(objects.len(), 1);
    std::fs::File::options().write(true).open(&objects[0]).unwrap().set_len(MIB).unwrap();
    mounted_anew(&rig, is_tier);
    assert_eq!(rig.check(false).problems, 0);
    rig.start();
    same(&rig.get("file"), &bytes, "read");
    rig.drain();
    same(&rig.plain("file"), &bytes, "below");
}

#[test]
fn write_that_was_not_synced_when_its_device_was_away_within_one_boot_then_it_is_not_believed() {
    for spilled in [false, true] {
        let (mut rig, _) = with_a_written_part(spilled);
        rig.crash();
        mounted_anew(&rig, |name| if spilled { name == "store" } else { is_tier(name) });
        rig.start();
        same(&rig.get("file"), &noise(1, 2 * MIB), &format!("spilled: {spilled}"));
    }
}

#[test]
fn write_that_was_not_synced_when_only_a_container_was_started_anew_then_it_is_there() {
    for spilled in [false, true] {
        let what = format!("spilled: {spilled}");
        let (mut rig, bytes) = with_a_written_part(spilled);
        rig.crash();
        mounted_anew(&rig, |_| true);
        rig.start();
        same(&rig.get("file"), &bytes, &what);
        end_in_order(&mut rig);
        // After an end in order a disk may be taken out and put back.
        mounted_anew(&rig, |name| name != "/");
        rig.start();
        same(&rig.get("file"), &bytes, &format!("{what}, after an end in order"));
    }
}
