//! Objects that move between tiers: whatever ends a move, or undoes its last step, of two objects of
//! one file that counts which has what was written last.
#![cfg(feature = "failpoints")]

mod rig;

use std::path::PathBuf;

use parking_lot::Mutex;
use rig::{CONTEXT, KIB, MIB, Rig, noise};
use std::sync::Arc;

use forebay_store::decorators::Transparent;

const HEADER: &str = "user.forebay";

/// The fail points are those of the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn two_tiers() -> Rig {
    Rig::new(&[MIB, 16 * MIB], Arc::new(Transparent), |_| {})
}

fn objects(rig: &Rig, tier: usize) -> Vec<PathBuf> {
    let fans = std::fs::read_dir(rig.config.tiers[tier].dir.join("objects"));
    let fans = fans.into_iter().flatten().flatten();
    fans.flat_map(|fan| std::fs::read_dir(fan.path()).unwrap())
        .map(|it| it.unwrap().path())
        .collect()
}

/// An object as it lies on its tier.
struct Saved {
    path: PathBuf,
    bytes: Vec<u8>,
    header: Vec<u8>,
    modified: std::time::SystemTime,
}

impl Saved {
    fn of(path: PathBuf) -> Self {
        let mut header = vec![0; 4096];
        let len = rustix::fs::getxattr(&path, HEADER, &mut header[..]).unwrap();
        header.truncate(len);
        let modified = path.metadata().unwrap().modified().unwrap();
        Saved { bytes: std::fs::read(&path).unwrap(), header, modified, path }
    }

    /// Its removal was not durable when the power failed.
    fn is_back(&self) {
        std::fs::create_dir_all(self.path.parent().unwrap()).unwrap();
        std::fs::write(&self.path, &self.bytes).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&self.path, HEADER, &self.header, flags).unwrap();
        std::fs::File::options()
            .write(true)
            .open(&self.path)
            .unwrap()
            .set_modified(self.modified)
            .unwrap();
    }
}

fn only_object(rig: &Rig, tier: usize) -> PathBuf {
    let found = objects(rig, tier);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

/// What is on the first tier goes to the second one.
fn demote_all(rig: &Rig) {
    for name in ["filler1", "filler2"] {
        rig.put(name, &noise(77, 700 * KIB));
    }
}

fn restart_the_machine(rig: &Rig) {
    std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
}

fn write_over(rig: &Rig, name: &str, at: u64, bytes: &[u8]) {
    let fh = rig.open(name, libc::O_RDWR);
    rig.write(fh, at, bytes);
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    rig.node().release(fh);
}

fn moved_and_written(published: bool, power_cut: bool) {
    let _one = ONE_AT_A_TIME.lock();
    let mut rig = two_tiers();
    let mut bytes = noise(3, 600 * KIB);
    rig.put("file", &bytes);
    if published {
        rig.drain();
    }
    let old = Saved::of(only_object(&rig, 0));
    demote_all(&rig);
    assert!(!old.path.exists(), "it was not moved");
    bytes[1000..1010].copy_from_slice(b"newer data");
    write_over(&rig, "file", 1000, b"newer data");
    rig.crash();
    old.is_back();
    if power_cut {
        restart_the_machine(&rig);
    }
    rig.start();
    rig::same(&rig.get("file"), &bytes, "after the start");
    rig.drain();
    rig::same(&rig.plain("file"), &bytes, "below");
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

#[test]
fn dirty_object_that_was_moved_when_the_old_one_is_back_then_what_was_written_since_counts() {
    moved_and_written(false, true);
    moved_and_written(false, false);
}

#[test]
fn clean_object_that_was_moved_when_the_old_one_is_back_then_what_was_written_since_counts() {
    moved_and_written(true, true);
    moved_and_written(true, false);
}

/// A step of a move fails; the file is there and can be written, also by the next daemon, whichever
/// objects are left.
fn move_that_fails_at(point: &str, keeps_rest: bool) {
    let _one = ONE_AT_A_TIME.lock();
    let mut rig = two_tiers();
    let mut bytes = noise(5, 600 * KIB);
    rig.put("file", &bytes);
    fail::cfg(point, "1*return").unwrap();
    if keeps_rest {
        fail::cfg("store.remove.before", "1*return->off").unwrap();
    }
    demote_all(&rig);
    fail::remove(point);
    fail::remove("store.remove.before");
    rig::same(&rig.get("file"), &bytes, point);
    bytes[1000..1010].copy_from_slice(b"newer data");
    write_over(&rig, "file", 1000, b"newer data");
    rig.crash();
    rig.start();
    rig::same(&rig.get("file"), &bytes, point);
    rig.drain();
    rig::same(&rig.plain("file"), &bytes, point);
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

#[test]
fn move_between_tiers_when_any_step_fails_then_nothing_is_lost() {
    for point in ["node.move.copied", "node.move.whole", "node.move.before_remove"] {
        for keeps_rest in [false, true] {
            move_that_fails_at(point, keeps_rest);
        }
    }
    // After the deed.
    move_that_fails_at("store.remove.before_map", false);
}
