//! A start after a crash of the machine that comes to its end half-way.
#![cfg(feature = "failpoints")]

mod rig;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_node::Ino;
use forebay_store::decorators::{Interceptor, Operation, Transparent, Verdict};
use forebay_testing::wait_until;
use parking_lot::Mutex;
use rig::{CONTEXT, KIB, MIB, Rig, noise};

fn objects(rig: &Rig, tier: usize) -> usize {
    let fans = std::fs::read_dir(rig.config.tiers[tier].dir.join("objects"));
    let fans = fans.into_iter().flatten().flatten();
    fans.map(|fan| std::fs::read_dir(fan.path()).unwrap().count()).sum()
}

#[test]
fn start_after_a_crash_when_it_ends_half_way_then_the_next_one_believes_no_more() {
    let _alone = rig::alone();
    let mut rig = Rig::new(&[MIB, 16 * MIB], Arc::new(Transparent), |_| {});
    let bytes = noise(3, 600 * KIB);
    rig.put("file", &bytes);
    rig.drain();
    for name in ["other", "another"] {
        rig.put(name, &noise(4, 700 * KIB));
    }
    rig.drain();
    assert!(objects(&rig, 1) > 0, "no copy has moved");
    rig.crash();
    let running = rig.dir.join("tier0/state/running");
    std::fs::write(&running, "another boot").unwrap();
    // After the first tier, and before the second.
    fail::cfg("node.recover.tier", "1*return").unwrap();
    let ended = catch_unwind(AssertUnwindSafe(|| rig.start()));
    assert!(ended.is_err(), "the start did not fail");
    fail::remove("node.recover.tier");
    assert!(objects(&rig, 1) > 0, "the second tier was looked at");
    rig.start();
    assert_eq!(rig.used(), 0, "copies of before the crash are believed");
    rig::same(&rig.get("file"), &bytes, "file");
}

#[test]
fn file_that_was_removed_while_open_when_the_start_ends_half_way_then_the_next_one_removes_it() {
    let _alone = rig::alone();
    let mut rig = Rig::new(&[MIB, 16 * MIB], Arc::new(Transparent), |_| {});
    rig.put("file", &noise(3, 600 * KIB));
    for name in ["other", "another"] {
        rig.put(name, &noise(4, 700 * KIB));
    }
    wait_until("it has moved", || objects(&rig, 1) > 0);
    rig.open("file", libc::O_RDONLY);
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"file").unwrap();
    rig.crash();
    fail::cfg("node.recover.tier", "1*return").unwrap();
    let ended = catch_unwind(AssertUnwindSafe(|| rig.start()));
    assert!(ended.is_err(), "the start did not fail");
    fail::remove("node.recover.tier");
    rig.start();
    assert_eq!(rig.node().residency().set_aside().files, 0);
}

/// The device of a tier has of its maps what a sync of the tier has covered.
#[derive(Default)]
struct MapsOnDevice {
    objects: PathBuf,
    maps: Mutex<Vec<(PathBuf, Vec<u8>)>>,
}

impl MapsOnDevice {
    fn note(&self) {
        let fans = std::fs::read_dir(&self.objects).into_iter().flatten().flatten();
        let files = fans.flat_map(|fan| std::fs::read_dir(fan.path()).unwrap().flatten());
        let maps = files.map(|file| file.path());
        let maps = maps.filter(|path| path.extension().is_some_and(|end| end == "map"));
        *self.maps.lock() = maps.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    }

    /// The power is back, in another run of the machine.
    fn bring_back(&self, rig: &Rig) {
        for (path, bytes) in &*self.maps.lock() {
            let mut bytes = bytes.clone();
            bytes[40] ^= 1;
            let sum = xxhash_rust::xxh3::xxh3_64(&bytes[..56]);
            bytes[56..64].copy_from_slice(&sum.to_le_bytes());
            std::fs::write(path, bytes).unwrap();
        }
        let running = rig.dir.join("tier0/state/running");
        if running.exists() {
            std::fs::write(running, "another boot").unwrap();
        }
    }
}

impl Interceptor for MapsOnDevice {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        if operation == Operation::Sync {
            self.note();
        }
        Verdict::Pass
    }
}

/// A file below, into which something was written that no program has synced, when the mount ends in order.
fn with_a_written_part() -> (Rig, Arc<MapsOnDevice>, Vec<u8>) {
    let mut rig = Rig::unstarted(&[16 * MIB], Arc::new(Transparent), |_| {});
    let device = MapsOnDevice { objects: rig.dir.join("tier0/objects"), ..Default::default() };
    let device = Arc::new(device);
    rig.by_tier = Some(device.clone());
    rig.start();
    let mut bytes = noise(1, 2 * MIB);
    std::fs::write(rig.backing().join("file"), &bytes).unwrap();
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 300_000, &noise(2, 100_000));
    bytes[300_000..400_000].copy_from_slice(&noise(2, 100_000));
    rig.node().release(fh);
    assert!(rig.node.take().unwrap().stop(Duration::from_secs(20)));
    assert_eq!(device.maps.lock().len(), 1, "the file is not partly resident");
    (rig, device, bytes)
}

/// All was durable at that end, and stays so: whatever becomes of the starts after it.
#[test]
fn write_that_was_durable_at_an_end_in_order_when_the_power_fails_in_the_next_start_then_it_is_there()
 {
    let _alone = rig::alone();
    let (mut rig, device, bytes) = with_a_written_part();
    for _ in 0..2 {
        device.bring_back(&rig);
        fail::cfg("node.recover.tier", "1*return").unwrap();
        let ended = catch_unwind(AssertUnwindSafe(|| rig.start()));
        assert!(ended.is_err(), "the start did not fail");
        fail::remove("node.recover.tier");
    }
    device.bring_back(&rig);
    rig.start();
    rig::same(&rig.get("file"), &bytes, "file");
}

#[test]
fn write_that_was_durable_at_an_end_in_order_when_the_power_fails_after_the_next_start_then_it_is_there()
 {
    let _alone = rig::alone();
    let (mut rig, device, bytes) = with_a_written_part();
    device.bring_back(&rig);
    rig.start();
    rig.crash();
    device.bring_back(&rig);
    rig.start();
    rig::same(&rig.get("file"), &bytes, "file");
    rig.drain();
    rig::same(&rig.plain("file"), &bytes, "below");
}

/// There is no room for a note of the run of the machine: the one before says what it says.
#[test]
fn note_of_the_run_when_it_can_not_be_written_then_what_was_not_synced_is_believed_as_before() {
    let _alone = rig::alone();
    let mut rig = Rig::small(16 * MIB);
    let bytes = noise(1, 200_000);
    rig.put("file", &bytes);
    rig.crash();
    fail::cfg("node.state_file.made", "return").unwrap();
    rig.start();
    rig.crash();
    fail::remove("node.state_file.made");
    rig.start();
    rig::same(&rig.get("file"), &bytes, "file");
    let left = std::fs::read_dir(rig.dir.join("tier0/state")).unwrap();
    let left =
        left.filter(|it| it.as_ref().unwrap().path().extension().is_some_and(|e| e == "new"));
    assert_eq!(left.count(), 0);
}

#[test]
fn start_on_full_tiers_when_it_ends_by_a_crash_then_a_tier_that_is_away_is_missed() {
    let _alone = rig::alone();
    let mut rig = Rig::new(&[MIB, 16 * MIB], Arc::new(Transparent), |_| {});
    rig.put("file", &noise(3, 600 * KIB));
    rig.drain();
    assert!(rig.node().stop(Duration::from_secs(10)));
    rig.crash();
    // There is no room for a file, as where others have filled the devices.
    fail::cfg("node.state_file.made", "return").unwrap();
    rig.start();
    fail::remove("node.state_file.made");
    rig.crash();
    let tier = &rig.config.tiers[1].dir;
    let away = rig.dir.join("away");
    std::fs::rename(tier, &away).unwrap();
    rig.config.create_tier = true;
    let ended = catch_unwind(AssertUnwindSafe(|| rig.start()));
    assert!(ended.is_err(), "a mount whose tier is away");
    let tier = &rig.config.tiers[1].dir;
    drop(std::fs::remove_dir_all(tier));
    std::fs::rename(&away, tier).unwrap();
    rig.start();
    rig::same(&rig.get("file"), &noise(3, 600 * KIB), "file");
}
