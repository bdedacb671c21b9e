//! What a start believes of what nobody has synced: all of it after an end in order, whatever the
//! machine did since, and else only if it has not restarted.

mod rig;

use std::path::PathBuf;
use std::time::Duration;

use rig::{KIB, MIB, Rig, noise, same};

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
