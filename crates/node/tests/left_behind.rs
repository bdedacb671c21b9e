//! Objects that count no more and that their tier does not give up: no later start takes one for what its
//! file is.
#![cfg(feature = "failpoints")]

mod rig;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{ThreadId, current};
use std::time::Duration;

use forebay_node::{CheckRequest, Ino, SetAttr, check};
use forebay_store::decorators::{Interceptor, Operation, Transparent, Verdict};
use forebay_testing::wait_until;
use parking_lot::Mutex;
use rig::{CONTEXT, KIB, MIB, Rig, noise, same};

/// The first tier removes nothing as long as that is on.
struct Keeps {
    first: PathBuf,
    on: AtomicBool,
    /// Nor can be opened once what was to be removed.
    opens_once_less: AtomicBool,
    /// Who was to remove something: others open something meanwhile.
    removed: Mutex<Option<ThreadId>>,
    /// Nor takes a header.
    takes_no_header: AtomicBool,
    /// Nor anything else.
    is_dead: AtomicBool,
}

impl Interceptor for Keeps {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }

    fn before_at(&self, operation: Operation, _: u64, label: &Path) -> Verdict {
        let is_its = self.on.load(Ordering::SeqCst) && label.starts_with(&self.first);
        let refuses = match operation {
            Operation::Remove => is_its,
            Operation::Open => {
                is_its
                    && self.removed.lock().take_if(|by| *by == current().id()).is_some()
                    && self.opens_once_less.swap(false, Ordering::SeqCst)
            }
            Operation::Header => is_its && self.takes_no_header.load(Ordering::SeqCst),
            _ => false,
        };
        let is_dead = is_its && self.is_dead.load(Ordering::SeqCst);
        let refuses = refuses || is_dead && operation != Operation::Usage;
        if is_its && operation == Operation::Remove {
            *self.removed.lock() = Some(current().id());
        }
        if refuses { Verdict::Fail(libc::EIO) } else { Verdict::Pass }
    }
}

fn rig_that_keeps(tiers: &[u64]) -> (Rig, Arc<Keeps>) {
    let rig =
        Rig::unstarted(tiers, Arc::new(Transparent), |config| config.attr_timeout = Duration::ZERO);
    over_one_that_keeps(rig)
}

fn over_one_that_keeps(mut rig: Rig) -> (Rig, Arc<Keeps>) {
    let keeps = Keeps {
        first: rig.config.tiers[0].dir.clone(),
        on: AtomicBool::new(false),
        opens_once_less: AtomicBool::new(false),
        removed: Mutex::default(),
        takes_no_header: AtomicBool::new(false),
        is_dead: AtomicBool::new(false),
    };
    let keeps = Arc::new(keeps);
    rig.by_tier = Some(keeps.clone());
    rig.start();
    (rig, keeps)
}

fn objects(rig: &Rig, tier: usize) -> Vec<PathBuf> {
    let fans = std::fs::read_dir(rig.config.tiers[tier].dir.join("objects"));
    let fans = fans.into_iter().flatten().flatten();
    fans.flat_map(|fan| std::fs::read_dir(fan.path()).unwrap())
        .map(|it| it.unwrap().path())
        .collect()
}

fn object_of(rig: &Rig, tier: usize, name: &str) -> Option<PathBuf> {
    let object = format!("{:016x}", rig.ino(name).0);
    objects(rig, tier).into_iter().find(|path| path.ends_with(&object))
}

/// What is on the first tier goes to the second one.
fn demote_all(rig: &Rig) {
    for name in ["filler1", "filler2"] {
        rig.put(name, &noise(77, 700 * KIB));
    }
}

fn write_over(rig: &Rig, name: &str, at: u64, bytes: &[u8]) {
    let fh = rig.open(name, libc::O_RDWR);
    rig.write(fh, at, bytes);
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    rig.node().release(fh);
}

/// A file that is moved away from the first tier, where a dirty object of it is left.
fn moved_and_left(rig: &Rig, keeps: &Keeps) -> Vec<u8> {
    let bytes = noise(8, 600 * KIB);
    rig.put("file", &bytes);
    let before = object_of(rig, 0, "file").expect("an object");
    keeps.on.store(true, Ordering::SeqCst);
    keeps.opens_once_less.store(true, Ordering::SeqCst);
    demote_all(rig);
    wait_until("it is moved", || object_of(rig, 1, "file").is_some());
    assert!(before.exists(), "it was removed all the same");
    bytes
}

#[test]
fn dirty_object_left_behind_by_a_move_when_its_file_was_written_back_since_then_that_counts() {
    for gone in [false, true] {
        let (mut rig, keeps) = rig_that_keeps(&[MIB, 16 * MIB]);
        let mut bytes = moved_and_left(&rig, &keeps);
        bytes[1000..1010].copy_from_slice(b"newer data");
        write_over(&rig, "file", 1000, b"newer data");
        rig.drain();
        if gone {
            assert!(rig.node().residency().evict_file(rig.ino("file")).unwrap(), "it stays");
        }
        rig.crash();
        rig.start();
        let what = format!("evicted since: {gone}");
        same(&rig.get("file"), &bytes, &what);
        rig.drain();
        same(&rig.plain("file"), &bytes, &format!("{what}, below"));
        assert_eq!(rig.node().writeback().conflicts().0, 0, "{what}");
        keeps.on.store(false, Ordering::SeqCst);
        rig.crash();
        rig.start();
        assert_eq!(object_of(&rig, 0, "file"), None, "{what}: it stays for ever");
        same(&rig.get("file"), &bytes, &what);
    }
}

/// Neither its file nor the mount pays for that.
#[test]
fn note_that_can_not_be_read_when_started_then_its_object_counts_no_more() {
    let (mut rig, keeps) = rig_that_keeps(&[MIB, 16 * MIB]);
    let mut bytes = moved_and_left(&rig, &keeps);
    bytes[1000..1010].copy_from_slice(b"newer data");
    write_over(&rig, "file", 1000, b"newer data");
    rig.drain();
    rig.crash();
    let notes = rig.dir.join("tier0/state/left-behind");
    for note in std::fs::read_dir(&notes).unwrap().map(|note| note.unwrap().path()) {
        std::fs::remove_file(&note).unwrap();
        std::fs::create_dir(&note).unwrap();
    }
    rig.start();
    same(&rig.get("file"), &bytes, "file");
    rig.drain();
    same(&rig.plain("file"), &bytes, "below");
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

/// Others change a file below whose copy can't be removed, and then it is written here.
#[test]
fn stale_copy_that_stays_when_its_file_is_written_elsewhere_then_that_counts() {
    let (mut rig, keeps) = rig_that_keeps(&[MIB, 16 * MIB]);
    std::fs::write(rig.backing().join("file"), noise(1, 20_000)).unwrap();
    let fh = rig.open("file", libc::O_RDONLY);
    rig.node().release(fh);
    assert!(object_of(&rig, 0, "file").is_some(), "no copy");
    keeps.on.store(true, Ordering::SeqCst);
    let mut bytes = noise(2, 20_007);
    std::fs::write(rig.backing().join("file"), &bytes).unwrap();
    same(&rig.get("file"), &bytes, "theirs");
    bytes[1000..1010].copy_from_slice(b"newer data");
    write_over(&rig, "file", 1000, b"newer data");
    rig.crash();
    rig.start();
    same(&rig.get("file"), &bytes, "after the start");
    rig.drain();
    same(&rig.plain("file"), &bytes, "below");
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

/// It was removed by a program. Its bytes are not told as what may be the only copy of anything.
#[test]
fn object_of_a_removed_file_that_stays_over_several_starts_then_it_is_not_set_aside() {
    let (mut rig, keeps) = rig_that_keeps(&[4 * MIB]);
    rig.put("file", &noise(1, 20_000));
    let object = object_of(&rig, 0, "file").expect("an object");
    keeps.on.store(true, Ordering::SeqCst);
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"file").unwrap();
    rig.drain();
    for _ in 0..3 {
        rig.crash();
        rig.start();
        assert_eq!(rig.node().residency().set_aside().files, 0);
        assert!(object.exists());
    }
    keeps.on.store(false, Ordering::SeqCst);
    rig.crash();
    rig.start();
    assert!(!object.exists(), "it stays for ever");
    assert_eq!(rig.node().residency().set_aside().files, 0, "it comes back");
    rig.crash();
    let request = CheckRequest { tiers: vec![rig.dir.join("tier0")], ..CheckRequest::default() };
    assert_eq!(check(&request, &mut |_| true).unwrap().problems, 0);
}

fn fsck(rig: &Rig, how: &str) -> forebay_node::Checked {
    let request = CheckRequest {
        tiers: rig.config.tiers.iter().map(|tier| tier.dir.clone()).collect(),
        backing: Some(rig.backing()),
        repair: how == "--repair",
        accept_loss: how == "--accept-loss",
        ..CheckRequest::default()
    };
    check(&request, &mut |_| true).unwrap()
}

/// Its file is as the backing store has it.
#[test]
fn stale_copy_that_stays_and_whose_header_is_damaged_when_repaired_then_its_file_is_no_newer() {
    let (mut rig, keeps) = rig_that_keeps(&[MIB, 16 * MIB]);
    std::fs::write(rig.backing().join("file"), noise(1, 20_000)).unwrap();
    rig.get("file");
    let object = object_of(&rig, 0, "file").expect("no copy");
    keeps.on.store(true, Ordering::SeqCst);
    let bytes = noise(2, 200_007);
    std::fs::write(rig.backing().join("file"), &bytes).unwrap();
    same(&rig.get("file"), &bytes, "theirs");
    rig.crash();
    assert!(object.exists(), "it was removed all the same");
    rustix::fs::removexattr(&object, "user.forebay").unwrap();
    for how in ["fsck", "--repair"] {
        let found = fsck(&rig, how);
        assert_eq!(found.problems, 0, "{how}: {found:?}");
        assert!(found.leftovers > 0, "{how}: {found:?}");
    }
    rig.start();
    same(&rig.get("file"), &bytes, "after the repair");
    assert_eq!(rig.node().residency().lost_files().files, 0);
}

/// What was left behind is no reason to call it usable.
#[test]
fn file_whose_object_is_gone_when_an_older_one_was_left_behind_then_it_is_said_and_given_up() {
    let (mut rig, keeps) = rig_that_keeps(&[MIB, 16 * MIB]);
    moved_and_left(&rig, &keeps);
    let object = object_of(&rig, 1, "file").expect("it was moved");
    rig.crash();
    std::fs::remove_file(object).unwrap();
    let found = fsck(&rig, "fsck");
    assert!(
        found.details.iter().any(|it| it.contains("file: ") && it.contains("gone")),
        "{found:?}"
    );
    let found = fsck(&rig, "--accept-loss");
    assert!(found.details.iter().any(|it| it.contains("given up")), "{found:?}");
    assert_eq!(fsck(&rig, "fsck").problems, 0);
}

/// Its tier has cut it, and refuses all that follows.
#[test]
fn clean_copy_that_is_cut_and_can_neither_be_removed_nor_noted_when_read_then_it_is_as_below() {
    let (rig, keeps) = rig_that_keeps(&[4 * MIB]);
    let bytes = noise(1, 20_000);
    std::fs::write(rig.backing().join("file"), &bytes).unwrap();
    same(&rig.get("file"), &bytes, "before");
    assert!(object_of(&rig, 0, "file").is_some(), "no copy");
    std::fs::write(rig.dir.join("tier0/state/left-behind"), "no directory").unwrap();
    keeps.takes_no_header.store(true, Ordering::SeqCst);
    keeps.on.store(true, Ordering::SeqCst);
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    rig.node().setattr(&CONTEXT, rig.ino("file"), &set).unwrap_err();
    keeps.on.store(false, Ordering::SeqCst);
    assert_eq!(rig.size("file"), 20_000, "it is empty");
    same(&rig.get("file"), &bytes, "after");
}

/// Whoever goes on knows of the notes alone.
#[test]
fn object_that_stays_and_is_not_noted_when_handed_over_then_that_waits_until_it_is() {
    let (rig, keeps) = rig_that_keeps(&[4 * MIB]);
    rig.put("file", &noise(1, 20_000));
    let notes = rig.dir.join("tier0/state/left-behind");
    std::fs::write(&notes, "no directory").unwrap();
    keeps.on.store(true, Ordering::SeqCst);
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"file").unwrap();
    rig.drain();
    let limit = Duration::from_secs(5);
    rig.node().rest(limit).unwrap();
    assert!(rig.node().hand_over_state(limit).is_err(), "what it knows is lost");
    std::fs::remove_file(&notes).unwrap();
    rig.node().hand_over_state(limit).unwrap();
    assert!(notes.is_dir(), "it is not noted");
}

fn header_of(object: &Path) -> Vec<u8> {
    let mut header = vec![0; 4096];
    let len = rustix::fs::getxattr(object, "user.forebay", &mut header[..]).unwrap();
    header.truncate(len);
    header
}

/// The note of what was left behind.
fn note(rig: &Rig) -> PathBuf {
    let notes = std::fs::read_dir(rig.dir.join("tier0/state/left-behind")).unwrap();
    notes.map(|note| note.unwrap().path()).next().expect("a note")
}

/// After [`moved_and_left`]: another object, which was made since by a Forebay that
/// knows no such notes, has the name, and is all that there is of the file. What it has, and the header of
/// the older one.
fn replaced_by_a_newer_one(rig: &mut Rig, keeps: &Keeps) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = moved_and_left(rig, keeps);
    let old = object_of(rig, 0, "file").expect("it is left behind");
    let new = object_of(rig, 1, "file").expect("it was moved");
    rig.crash();
    keeps.on.store(false, Ordering::SeqCst);
    bytes[1000..1010].copy_from_slice(b"newer data");
    let file = std::fs::File::options().write(true).open(&new).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"newer data", 1000).unwrap();
    let header = header_of(&old);
    std::fs::remove_file(&old).unwrap();
    std::fs::rename(new, old).unwrap();
    (bytes, header)
}

#[test]
fn newer_object_that_has_the_name_of_one_left_behind_when_started_then_it_is_not_removed() {
    let (mut rig, keeps) = rig_that_keeps(&[MIB, 16 * MIB]);
    let (bytes, _) = replaced_by_a_newer_one(&mut rig, &keeps);
    // Nothing could be read of it.
    std::fs::write(note(&rig), "").unwrap();
    rig.start();
    rig.node().residency().remove_left_behind();
    let aside = rig.node().residency().set_aside().list;
    assert_eq!(aside.len(), 1, "{aside:?}");
    same(&std::fs::read(&aside[0]).unwrap(), &bytes, "what is set aside");
    assert_eq!(rig.node().residency().lost_files().list, [b"file".to_vec()]);
    rig.crash();
    let found = fsck(&rig, "--repair");
    assert!(found.details.iter().any(|it| it.contains("is put back")), "{found:?}");
    rig.start();
    same(&rig.get("file"), &bytes, "after the repair");
    rig.drain();
    same(&rig.plain("file"), &bytes, "below");
}

/// What was noted tells it from the one that was left behind.
#[test]
fn newer_object_when_the_header_of_the_one_left_behind_is_known_then_it_counts() {
    let (mut rig, keeps) = rig_that_keeps(&[MIB, 16 * MIB]);
    let (bytes, header) = replaced_by_a_newer_one(&mut rig, &keeps);
    assert!(std::fs::read(note(&rig)).unwrap().ends_with(&header));
    // As it was before more was noted.
    std::fs::write(note(&rig), header).unwrap();
    rig.start();
    rig.node().residency().remove_left_behind();
    same(&rig.get("file"), &bytes, "after the start");
    rig.crash();
    rig.start();
    same(&rig.get("file"), &bytes, "after another one");
}

/// It can't be told whether it is the one that was noted.
#[test]
fn object_whose_header_is_gone_when_another_was_left_behind_under_its_name_then_a_rebuild_keeps_it()
{
    let (mut rig, keeps) = rig_that_keeps(&[MIB, 16 * MIB]);
    let (bytes, _) = replaced_by_a_newer_one(&mut rig, &keeps);
    let noted = note(&rig);
    let object = objects(&rig, 0).into_iter().find(|it| it.file_name() == noted.file_stem());
    rustix::fs::removexattr(object.expect("the newer one"), "user.forebay").unwrap();
    std::fs::remove_dir_all(rig.dir.join("tier0/state/meta")).unwrap();
    let request = CheckRequest {
        tiers: rig.config.tiers.iter().map(|tier| tier.dir.clone()).collect(),
        backing: Some(rig.backing()),
        rebuild: true,
        ..CheckRequest::default()
    };
    let found = check(&request, &mut |_| true).unwrap();
    rig.start();
    let aside = rig.node().residency().set_aside().list;
    assert_eq!(aside.len(), 1, "{aside:?}: {found:?}");
    same(&std::fs::read(&aside[0]).unwrap(), &bytes, "what is set aside");
}

#[test]
fn object_that_may_be_another_than_was_left_behind_when_tried_again_then_it_stays() {
    let (rig, keeps) = rig_that_keeps(&[MIB, 16 * MIB]);
    moved_and_left(&rig, &keeps);
    let object = object_of(&rig, 0, "file").expect("it is left behind");
    keeps.on.store(false, Ordering::SeqCst);
    let other = object.with_extension("other");
    std::fs::write(&other, b"newer").unwrap();
    std::fs::rename(&other, &object).unwrap();
    rig.node().residency().remove_left_behind();
    assert_eq!(std::fs::read(&object).unwrap(), b"newer");
}

/// Its header could not be read when it was noted.
#[test]
fn object_that_was_left_behind_when_its_header_can_be_read_again_then_it_goes() {
    let (mut rig, keeps) = rig_that_keeps(&[MIB, 16 * MIB]);
    let bytes = moved_and_left(&rig, &keeps);
    let old = object_of(&rig, 0, "file").expect("it is left behind");
    rig.crash();
    keeps.on.store(false, Ordering::SeqCst);
    let noted = std::fs::read(note(&rig)).unwrap();
    std::fs::write(note(&rig), noted.strip_suffix(&header_of(&old)[..]).unwrap()).unwrap();
    rig.start();
    assert_eq!(object_of(&rig, 0, "file"), None);
    assert_eq!(rig.node().residency().set_aside().files, 0);
    same(&rig.get("file"), &bytes, "file");
}

/// Its file system was shut down: it answers nothing.
#[test]
fn tier_that_is_dead_when_files_are_opened_that_it_never_had_then_they_are_served_and_not_noted() {
    for elsewhere in [false, true] {
        let mut rig = Rig::unstarted(&[16 * MIB], Arc::new(Transparent), |_| {});
        let state = if elsewhere { rig.dir.join("state") } else { rig.dir.join("tier0/state") };
        rig.config.state_dir = elsewhere.then(|| state.clone());
        let (rig, keeps) = over_one_that_keeps(rig);
        for file in 0..5 {
            let size = if file < 3 { 20_000 } else { 300 * KIB };
            std::fs::write(rig.backing().join(format!("{file}")), noise(file, size)).unwrap();
        }
        (0..5).for_each(|file| assert_ne!(rig.ino(&format!("{file}")), Ino::ROOT));
        let away = rig.dir.join("away");
        keeps.is_dead.store(true, Ordering::SeqCst);
        keeps.on.store(true, Ordering::SeqCst);
        std::fs::rename(rig.dir.join("tier0"), &away).unwrap();
        for file in 0..5 {
            let size = if file < 3 { 20_000 } else { 300 * KIB };
            let found = rig.get(&format!("{file}"));
            same(&found, &noise(file, size), &format!("{file}, state elsewhere: {elsewhere}"));
        }
        std::fs::rename(&away, rig.dir.join("tier0")).unwrap();
        assert!(!state.join("left-behind").exists(), "it was noted");
    }
}
