//! Objects that move between tiers: whatever ends a move, or undoes its last step, of two objects of
//! one file that counts which has what was written last.
#![cfg(feature = "failpoints")]

mod rig;

use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rig::{CONTEXT, KIB, MIB, Rig, noise};
use std::sync::Arc;

use forebay_store::decorators::{Interceptor, Operation, Transparent, Verdict};

const HEADER: &str = "user.forebay";

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
    let _alone = rig::alone();
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
    let _alone = rig::alone();
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

/// The device of the first tier is dying: an object that was moved away can't be removed there, and then
/// something else fails, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dying {
    /// It can't be opened any more.
    Unopened,
    /// It takes no new header, nor can the copy on the other tier be removed.
    Unwritten,
}

struct DyingTier {
    how: Dying,
    first: PathBuf,
    object: Mutex<String>,
    refused: Mutex<Vec<Operation>>,
}

impl Interceptor for DyingTier {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }

    fn before_at(&self, operation: Operation, _: u64, label: &Path) -> Verdict {
        let object = self.object.lock().clone();
        if object.is_empty() {
            return Verdict::Pass;
        }
        let mut refused = self.refused.lock();
        let is_first = label.starts_with(&self.first);
        let began = refused.contains(&Operation::Remove);
        let refuses = match (operation, self.how) {
            (Operation::Remove, Dying::Unopened) => is_first && !began,
            (Operation::Remove, Dying::Unwritten) => !(is_first && began),
            (Operation::Open, Dying::Unopened) => {
                is_first && began && !refused.contains(&Operation::Open)
            }
            (Operation::Header, Dying::Unwritten) => {
                let headers = refused.iter().filter(|it| **it == Operation::Header).count();
                let is_its = is_first && began && label.ends_with(&object);
                if is_its && headers < 3 {
                    refused.push(Operation::Header);
                }
                // What it says can be read, twice; what it is to say is refused.
                is_its && headers == 2
            }
            _ => false,
        };
        if refuses {
            refused.push(operation);
        }
        if refuses { Verdict::Fail(libc::EIO) } else { Verdict::Pass }
    }
}

fn moved_from_a_dying_tier(how: Dying) {
    let _alone = rig::alone();
    let mut rig = Rig::unstarted(&[MIB, 16 * MIB], Arc::new(Transparent), |_| {});
    let dying = Arc::new(DyingTier {
        how,
        first: rig.config.tiers[0].dir.clone(),
        object: Mutex::default(),
        refused: Mutex::default(),
    });
    rig.by_tier = Some(dying.clone());
    rig.start();
    let mut bytes = noise(7, 600 * KIB);
    rig.put("file", &bytes);
    write_over(&rig, "file", 0, &bytes[..10]);
    let name = only_object(&rig, 0).file_name().unwrap().to_str().unwrap().to_owned();
    *dying.object.lock() = name.clone();
    demote_all(&rig);
    assert!(dying.refused.lock().len() > 1, "{how:?}: {:?}", dying.refused.lock());
    let copy = objects(&rig, 1).into_iter().find(|path| path.ends_with(&name));
    let copy = copy.unwrap_or_else(|| panic!("{how:?}: the good copy is gone"));
    rig::same(&std::fs::read(copy).unwrap(), &bytes, "the copy");
    dying.object.lock().clear();
    bytes[1000..1010].copy_from_slice(b"newer data");
    write_over(&rig, "file", 1000, b"newer data");
    rig.crash();
    rig.start();
    rig::same(&rig.get("file"), &bytes, &format!("{how:?}: after the start"));
    rig.drain();
    rig::same(&rig.plain("file"), &bytes, &format!("{how:?}: below"));
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

#[test]
fn object_that_was_moved_when_its_old_tier_is_dying_then_the_good_copy_stays() {
    moved_from_a_dying_tier(Dying::Unopened);
}

#[test]
fn object_that_was_moved_when_neither_it_nor_its_copy_can_be_removed_then_the_newest_counts() {
    moved_from_a_dying_tier(Dying::Unwritten);
}

/// What could not be removed where it was is removed before the file leaves the other tier: at the next
/// start it would be all that there is, and dirty.
#[test]
fn object_that_was_left_behind_when_its_file_leaves_the_tiers_then_it_does_not_come_back() {
    let _alone = rig::alone();
    let mut rig = Rig::unstarted(&[MIB, 16 * MIB], Arc::new(Transparent), |_| {});
    let dying = Arc::new(DyingTier {
        how: Dying::Unopened,
        first: rig.config.tiers[0].dir.clone(),
        object: Mutex::default(),
        refused: Mutex::default(),
    });
    rig.by_tier = Some(dying.clone());
    rig.start();
    let mut bytes = noise(8, 600 * KIB);
    rig.put("file", &bytes);
    let object = only_object(&rig, 0);
    *dying.object.lock() = object.file_name().unwrap().to_str().unwrap().to_owned();
    demote_all(&rig);
    assert!(object.exists(), "it was removed all the same");
    // From here on it may go at any moment.
    dying.object.lock().clear();
    bytes[1000..1010].copy_from_slice(b"newer data");
    write_over(&rig, "file", 1000, b"newer data");
    rig.drain();
    let ino = rig.ino("file");
    assert!(rig.node().residency().evict_file(ino).unwrap());
    assert!(!object.exists(), "it is left behind");
    rig.crash();
    rig.start();
    rig::same(&rig.get("file"), &bytes, "after the start");
}
