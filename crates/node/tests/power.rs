//! What a failure of the machine's power leaves on a tier, and what a start makes of it. The cuts
//! themselves are those of `mount_power` in the tests of the whole.

mod rig;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_node::{CheckRequest, check};
use forebay_store::decorators::{Interceptor, Operation, Verdict};
use parking_lot::Mutex;
use rig::device::{Device, TierSyncs};
use rig::{CONTEXT, MIB, Rig, noise};

/// The maps of partly resident files.
fn maps(rig: &Rig) -> Vec<PathBuf> {
    let fans = std::fs::read_dir(rig.dir.join("tier0/objects")).unwrap();
    let files = fans.flat_map(|fan| std::fs::read_dir(fan.unwrap().path()).unwrap());
    let maps = files.map(|file| file.unwrap().path());
    maps.filter(|path| path.extension().is_some_and(|end| end == "map")).collect()
}

/// A file in the backing store of which a part is on the tier, if so changed there, and whose map is
/// of length 0 now, as after a power cut before anything of it was synced.
fn rig_with_a_map_cut_short(written: bool) -> (Rig, Vec<u8>) {
    let (mut rig, bytes) = rig_with_a_part(written, false);
    cut_the_map(&mut rig);
    (rig, bytes)
}

fn rig_with_a_part(written: bool, synced: bool) -> (Rig, Vec<u8>) {
    let rig = Rig::small(8 * MIB);
    let bytes = noise(7, 2_000_000);
    std::fs::write(rig.backing().join("large"), &bytes).unwrap();
    let fh = rig.open("large", libc::O_RDWR);
    let mut part = vec![0; 1000];
    rig.node().read(&CONTEXT, fh, 1_000_000, &mut part).unwrap();
    if written {
        rig.write(fh, 100_000, b"written and perhaps synced");
    }
    if synced {
        rig.node().fsync(&CONTEXT, fh, false).unwrap();
    }
    rig.node().release(fh);
    (rig, bytes)
}

/// The machine stops and starts again, and nothing of the only map was on its device.
fn cut_the_map(rig: &mut Rig) {
    rig.crash();
    let maps = maps(rig);
    assert_eq!(maps.len(), 1, "the file is not partly resident");
    std::fs::File::options().write(true).open(&maps[0]).unwrap().set_len(0).unwrap();
    std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
}

/// The backing store publishes no version until it is told to.
#[derive(Default)]
struct Unpublished {
    publishes: AtomicBool,
}

impl Unpublished {
    fn publish(&self) {
        self.publishes.store(true, Ordering::SeqCst);
    }
}

impl Interceptor for Unpublished {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        match operation == Operation::Commit && !self.publishes.load(Ordering::SeqCst) {
            true => Verdict::Fail(libc::EIO),
            false => Verdict::Pass,
        }
    }
}

/// A new file of which a part is in a spill file, and another on the tier: nothing has room to move
/// before the store publishes.
fn rig_with_a_spilled_file(synced: bool) -> (Rig, Vec<u8>, Arc<Unpublished>) {
    let store = Arc::new(Unpublished::default());
    let rig = Rig::new(&[MIB], store.clone(), |_| {});
    let bytes = noise(2, 900_000);
    rig.put("filler", &noise(1, MIB - 300_000));
    let fh = rig.create("spilled");
    for (piece, at) in bytes.chunks(100_000).zip((0..).step_by(100_000)) {
        rig.write(fh, at, piece);
    }
    if synced {
        rig.node().fsync(&CONTEXT, fh, false).unwrap();
    }
    rig.node().release(fh);
    (rig, bytes, store)
}

fn read_of(rig: &Rig, name: &str) -> Result<Vec<u8>, String> {
    let opened = rig.node().open(&CONTEXT, rig.ino(name), libc::O_RDONLY);
    let fh = opened.map_err(|error| error.to_string())?.fh;
    let mut all = vec![0; 3_000_000];
    let read = rig.node().read(&CONTEXT, fh, 0, &mut all).map_err(|error| error.to_string());
    rig.node().release(fh);
    read.map(|read| all[..read].to_vec())
}

/// Of a file in two parts the spill file is gone, and the other part is on the tier.
#[test]
fn lost_file_with_an_object_when_it_is_written_anew_then_it_is_as_written() {
    let (mut rig, _, store) = rig_with_a_spilled_file(true);
    rig.crash();
    let spills = rig::kept::files_below(&rig::kept::spills(&rig));
    assert!(!spills.is_empty(), "no spill file");
    spills.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    rig.start();
    assert_eq!(rig.node().residency().lost_files().files, 1);
    let used = rig.used();
    let fh = rig.open("spilled", libc::O_WRONLY | libc::O_TRUNC);
    rig.write(fh, 0, b"written anew");
    rig.node().release(fh);
    assert_eq!(read_of(&rig, "spilled"), Ok(b"written anew".to_vec()));
    assert!(rig.used() < used, "its room stays charged");
    store.publish();
    rig.drain();
    assert_eq!(rig.plain("spilled"), b"written anew");
    rig.crash();
    rig.start();
    assert_eq!(read_of(&rig, "spilled"), Ok(b"written anew".to_vec()));
}

/// What lies in the spill file is the file, where nobody was told that what lies on the tier lasts.
#[test]
fn map_of_a_spilled_file_when_cut_short_and_nothing_was_synced_then_the_spill_file_counts() {
    let (mut rig, bytes, store) = rig_with_a_spilled_file(false);
    cut_the_map(&mut rig);
    store.publish();
    rig.start();
    let found = read_of(&rig, "spilled").unwrap();
    let pairs = || found.iter().zip(&bytes);
    assert!(pairs().all(|(found, written)| *found == 0 || found == written));
    assert_eq!(rig.node().residency().lost_files().files, 0);
    assert_eq!(lost(&rig), 2, "object and map");
    rig.drain();
    assert_eq!(rig.plain("spilled"), found);
}

#[test]
fn map_of_a_spilled_file_when_damaged_after_a_sync_then_no_part_is_shown_without_the_other() {
    let (mut rig, _, store) = rig_with_a_spilled_file(true);
    cut_the_map(&mut rig);
    store.publish();
    rig.start();
    read_of(&rig, "spilled").unwrap_err();
    assert_eq!(rig.node().residency().lost_files().files, 1);
}

/// Before, the older version came back in silence.
#[test]
fn map_of_what_was_synced_when_damaged_then_the_file_is_lost_by_name_and_not_as_it_was() {
    let (mut rig, _) = rig_with_a_part(true, true);
    cut_the_map(&mut rig);
    rig.start();
    read_of(&rig, "large").unwrap_err();
    assert_eq!(rig.node().residency().lost_files().files, 1);
    assert_eq!(lost(&rig), 2, "object and map");
}

fn check_rig(rig: &Rig, repair: bool) -> forebay_node::Checked {
    let tiers = vec![rig.dir.join("tier0")];
    check(&CheckRequest { tiers, repair, ..CheckRequest::default() }, &mut |_| true).unwrap()
}

fn lost(rig: &Rig) -> usize {
    std::fs::read_dir(rig.dir.join("tier0/lost")).map_or(0, Iterator::count)
}

#[test]
fn map_of_a_copy_when_cut_short_then_the_copy_goes_and_the_file_is_there() {
    let (mut rig, bytes) = rig_with_a_map_cut_short(false);
    let checked = check_rig(&rig, true);
    assert_eq!((checked.problems, checked.leftovers), (0, 1), "{checked:?}");
    rig.start();
    assert_eq!(rig.get("large"), bytes);
    assert_eq!(lost(&rig), 0);
}

#[test]
fn map_of_what_was_written_when_cut_short_then_the_object_is_set_aside_and_the_mount_starts() {
    let (mut rig, bytes) = rig_with_a_map_cut_short(true);
    let checked = check_rig(&rig, false);
    assert_eq!((checked.problems, checked.repaired), (1, 0), "{checked:?}");
    rig.start();
    assert_eq!(rig.get("large"), bytes, "nobody has synced the change");
    assert_eq!(lost(&rig), 2, "object and map");
}

/// The next start believed what had kept its name, and called the file lost.
#[test]
fn object_without_its_map_when_it_can_not_be_set_aside_then_each_start_has_the_file_as_below() {
    for is_read_at_first in [false, true] {
        let (mut rig, bytes) = rig_with_a_map_cut_short(true);
        std::fs::write(rig.dir.join("tier0/lost"), "in the way").unwrap();
        for start in 0..3 {
            rig.start();
            assert_eq!(rig.node().residency().lost_files().files, 0, "start {start}");
            if is_read_at_first || start == 2 {
                rig::same(&read_of(&rig, "large").unwrap(), &bytes, "nobody has synced it");
            }
            rig.crash();
        }
    }
}

#[test]
fn fsck_repair_when_a_map_is_cut_short_then_what_was_written_is_set_aside() {
    let (mut rig, bytes) = rig_with_a_map_cut_short(true);
    let checked = check_rig(&rig, true);
    assert_eq!((checked.problems, checked.repaired), (2, 1), "object and file: {checked:?}");
    assert_eq!(lost(&rig), 2, "object and map");
    assert_eq!(check_rig(&rig, true).problems, 1, "the file, until the next mount");
    rig.start();
    assert_eq!(rig.get("large"), bytes);
}

#[test]
fn copies_when_their_tier_was_mounted_anew_then_are_not_believed() {
    let mut rig = Rig::small(8 * MIB);
    let bytes = noise(3, 20_000);
    std::fs::write(rig.backing().join("small"), &bytes).unwrap();
    assert_eq!(rig.get("small"), bytes);
    rig.crash();
    rig.start();
    assert!(rig.used() > 0, "the daemon's death alone costs no copy");
    rig.crash();
    let running = rig.dir.join("tier0/state/running");
    let noted = std::fs::read_to_string(&running).unwrap();
    // The last line ends with the number of the tier's mount.
    std::fs::write(&running, format!("{}7\n", noted.trim_end())).unwrap();
    rig.start();
    assert_eq!(rig.used(), 0);
    assert_eq!(rig.get("small"), bytes);
}

/// What was synced is there after a power cut, also where the name was made in the backing store before
/// it was, or got other times there.
#[test]
fn file_that_is_open_and_synced_when_its_name_was_written_back_empty_then_its_bytes_count() {
    for set_times in [false, true] {
        let mut rig = Rig::small(8 * MIB);
        let fh = rig.create("file");
        rig.write(fh, 0, b"the first bytes");
        rig.node().writeback().reconcile(rig.ino("file")).ok();
        assert_eq!(rig.plain("file"), b"", "its name is there");
        if set_times {
            let mtime = Some(forebay_node::SetTime::At(forebay_node::Timestamp::new(1_000_000, 5)));
            let set = forebay_node::SetAttr { mtime, ..Default::default() };
            let _set = rig.node().setattr(&CONTEXT, rig.ino("file"), &set).unwrap();
            rig.node().writeback().reconcile(rig.ino("file")).ok();
        }
        rig.write(fh, 0, b"THE FIRST");
        rig.node().fsync(&CONTEXT, fh, false).unwrap();
        rig.crash();
        std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
        rig.start();
        assert_eq!(rig.get("file"), b"THE FIRST bytes", "times set: {set_times}");
        rig.drain();
        assert_eq!(rig.plain("file"), b"THE FIRST bytes");
        assert_eq!(rig.node().writeback().conflicts().0, 0);
    }
}

/// Notes, at each sync of the backing store after a publication, whether the header of the only object
/// still says that it is dirty; has those fail if so wanted.
#[derive(Default)]
struct AfterPublication {
    tier: std::sync::OnceLock<PathBuf>,
    published: AtomicBool,
    fails: AtomicBool,
    dirty: Mutex<Vec<bool>>,
}

fn is_dirty(tier: &std::path::Path) -> bool {
    let fans = std::fs::read_dir(tier.join("objects")).unwrap();
    let files = fans.flat_map(|fan| std::fs::read_dir(fan.unwrap().path()).unwrap());
    let objects = files.map(|file| file.unwrap().path());
    let mut objects = objects.filter(|path| path.extension().is_none());
    let object = objects.next().expect("an object");
    assert!(objects.next().is_none(), "several objects");
    let mut header = vec![0; 4096];
    let len = rustix::fs::getxattr(&object, "user.forebay", &mut header[..]).unwrap();
    assert!(len > 12);
    header[10] & 1 != 0
}

impl Interceptor for AfterPublication {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        if operation != Operation::Sync || !self.published.load(Ordering::SeqCst) {
            return Verdict::Pass;
        }
        self.dirty.lock().push(is_dirty(self.tier.get().unwrap()));
        match self.fails.load(Ordering::SeqCst) {
            true => Verdict::Fail(libc::EIO),
            false => Verdict::Pass,
        }
    }

    fn after(&self, operation: Operation) {
        if operation == Operation::Commit {
            self.published.store(true, Ordering::SeqCst);
        }
    }
}

/// As long as the name of a version is not known to be durable, a power cut may bring the one before it
/// back, and the object is the only copy.
#[test]
fn object_when_its_version_was_published_then_clean_only_after_the_name_is_durable() {
    for known in [false, true] {
        let watch = Arc::new(AfterPublication::default());
        let rig = Rig::new(&[8 * MIB], watch.clone(), |_| {});
        watch.tier.set(rig.dir.join("tier0")).unwrap();
        if known {
            std::fs::write(rig.backing().join("file"), noise(1, 20_000)).unwrap();
            let fh = rig.open("file", libc::O_RDWR);
            rig.write(fh, 0, b"written");
            rig.node().release(fh);
        } else {
            rig.put("file", b"written");
        }
        watch.fails.store(true, Ordering::SeqCst);
        for _ in 0..2 {
            drop(rig.node().writeback().reconcile(rig.ino("file")));
            assert_eq!(rig.plain("file")[..7], *b"written", "it was published");
            assert!(is_dirty(&rig.dir.join("tier0")), "known: {known}");
        }
        let looks = watch.dirty.lock().len();
        assert!(looks > 0, "nothing is synced after the publication");
        watch.fails.store(false, Ordering::SeqCst);
        rig.drain();
        assert!(!is_dirty(&rig.dir.join("tier0")), "known: {known}");
        let seen = watch.dirty.lock().clone();
        assert!(seen.len() > looks, "clean without a sync of the name");
        // What comes after that makes the times of the directory durable.
        assert!(seen[..=looks].iter().all(|dirty| *dirty), "clean before: {seen:?}");
        assert_eq!(rig.node().writeback().conflicts().0, 0);
    }
}

/// A file that is emptied and written anew while a worker sets the times of the version below.
#[test]
fn file_that_is_emptied_and_synced_when_its_version_below_gets_other_attributes_then_its_bytes_count()
 {
    for reconciled_before_sync in [false, true] {
        let mut rig = Rig::small(8 * MIB);
        std::fs::write(rig.backing().join("file"), noise(1, 20_480)).unwrap();
        let ino = rig.ino("file");
        let mtime = Some(forebay_node::SetTime::At(forebay_node::Timestamp::new(1_000_000, 5)));
        let set = forebay_node::SetAttr { mtime, ..Default::default() };
        let _set = rig.node().setattr(&CONTEXT, ino, &set).unwrap();
        let fh = rig.node().open(&CONTEXT, ino, libc::O_WRONLY | libc::O_TRUNC).unwrap().fh;
        let bytes = noise(2, 12_288);
        rig.write(fh, 0, &bytes);
        if reconciled_before_sync {
            rig.node().writeback().reconcile(ino).ok();
        }
        rig.node().fsync(&CONTEXT, fh, true).unwrap();
        rig.node().writeback().reconcile(ino).ok();
        rig.crash();
        std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
        rig.start();
        assert!(rig.get("file") == bytes, "before the sync: {reconciled_before_sync}");
        rig.drain();
        assert!(rig.plain("file") == bytes);
        assert_eq!(rig.node().writeback().conflicts().0, 0);
    }
}

/// A worker published a version and could not report it; what is written after the next start is newer.
#[test]
fn file_that_is_emptied_and_synced_when_its_version_was_not_reported_then_its_bytes_count() {
    let _alone = rig::alone();
    let mut rig = Rig::small(8 * MIB);
    rig.put("file", &noise(1, 20_480));
    let ino = rig.ino("file");
    fail::cfg("node.flush.published", "return").unwrap();
    rig.node().writeback().reconcile(ino).ok();
    fail::remove("node.flush.published");
    assert_eq!(rig.plain("file").len(), 20_480);
    rig.crash();
    std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
    for object in objects(&rig) {
        std::fs::remove_file(object).unwrap();
    }
    rig.start();
    let fh = rig.node().open(&CONTEXT, ino, libc::O_WRONLY | libc::O_TRUNC).unwrap().fh;
    let bytes = noise(2, 12_288);
    rig.write(fh, 0, &bytes);
    rig.node().fsync(&CONTEXT, fh, true).unwrap();
    rig.crash();
    std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
    rig.start();
    assert!(rig.get("file") == bytes);
    rig.drain();
    assert!(rig.plain("file") == bytes);
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

/// The objects of the tier.
fn objects(rig: &Rig) -> Vec<PathBuf> {
    let fans = std::fs::read_dir(rig.dir.join("tier0/objects")).unwrap();
    fans.flat_map(|fan| std::fs::read_dir(fan.unwrap().path()).unwrap())
        .map(|file| file.unwrap().path())
        .collect()
}

/// A write behind the end of what is in a spill file: its bytes and the new length were on the device of
/// the tier, and the mark of the extent was not.
#[test]
fn end_of_a_spilled_file_when_its_bytes_have_no_mark_then_mount_and_backing_store_show_the_same() {
    for same_boot in [false, true] {
        let (mut rig, bytes, store) = rig_with_a_spilled_file(true);
        rig.crash();
        store.publish();
        let spilled = objects(&rig).into_iter().filter(|path| path.with_extension("map").exists());
        let spilled: Vec<PathBuf> = spilled.filter(|path| path.extension().is_none()).collect();
        assert_eq!(spilled.len(), 1);
        let object = std::fs::File::options().write(true).open(&spilled[0]).unwrap();
        assert_eq!(object.metadata().unwrap().len(), 900_000);
        std::os::unix::fs::FileExt::write_all_at(&object, &noise(5, 8192), 900_000).unwrap();
        drop(object);
        if !same_boot {
            std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
        }
        rig.start();
        let seen = rig.get("spilled");
        assert!(seen[..900_000] == bytes, "same boot: {same_boot}");
        rig.drain();
        assert!(rig.plain("spilled") == seen, "in the backing store, same boot: {same_boot}");
        assert!(rig.get("spilled") == seen, "afterwards, same boot: {same_boot}");
    }
}

/// The header was on the device right before a version appeared, and right after it was reported.
struct HeaderAtCommit(Arc<Device>);

impl Interceptor for HeaderAtCommit {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        if operation == Operation::Commit {
            self.0.note_header();
        }
        Verdict::Pass
    }
}

/// The header of an object came to its device with the announcement of a version, as others synced, and
/// the bytes of that version did not, as nobody had synced them.
#[test]
fn bytes_when_written_back_and_only_the_header_was_on_the_device_then_they_are_there() {
    for synced_before in [false, true] {
        let device = Arc::new(Device::default());
        let by = Arc::new(HeaderAtCommit(device.clone()));
        let mut rig = Rig::unstarted(&[8 * MIB], by, |_| {});
        device.objects.set(rig.dir.join("tier0/objects")).unwrap();
        rig.by_tier = Some(Arc::new(TierSyncs(device.clone())));
        rig.start();
        let mut bytes = noise(1, 20_480);
        let fh = rig.create("file");
        rig.write(fh, 0, &bytes);
        rig.node().fsync(&CONTEXT, fh, false).unwrap();
        rig.node().release(fh);
        if synced_before {
            rig.drain();
        }
        let fh = rig.open("file", libc::O_RDWR);
        bytes[8192..12_288].copy_from_slice(&noise(2, 4096));
        rig.write(fh, 8192, &bytes[8192..12_288]);
        rig.node().release(fh);
        rig.drain();
        assert!(rig.plain("file") == bytes);
        rig.crash();
        device.bring_back();
        std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
        rig.start();
        assert!(rig.get("file") == bytes, "written back before: {synced_before}");
        rig.drain();
        assert!(rig.plain("file") == bytes, "written back before: {synced_before}");
        assert_eq!(rig.node().writeback().conflicts().0, 0);
    }
}

/// A copy of all that the tier has of a file, as of this moment.
fn on_the_device(rig: &Rig, ino: u64) -> (PathBuf, PathBuf) {
    let name = format!("{ino:016x}");
    let is_his = |path: &PathBuf| path.file_stem().is_some_and(|stem| stem == name.as_str());
    let there = objects(rig).into_iter().find(is_his).expect("an object");
    let kept = rig.dir.join("on the device");
    std::fs::create_dir_all(&kept).unwrap();
    copy_all(there.parent().unwrap(), &name, &kept);
    (there.parent().unwrap().to_owned(), kept)
}

/// With their extended attributes.
fn copy_all(from: &std::path::Path, name: &str, to: &std::path::Path) {
    for end in ["", ".map"] {
        let file = from.join(format!("{name}{end}"));
        if file.exists() {
            let mut copy = std::process::Command::new("cp");
            assert!(copy.arg("-a").arg(file).arg(to).status().unwrap().success());
        }
    }
}

/// The power is back, and the tier has of a file what it had then.
fn bring_back(rig: &mut Rig, ino: u64, (there, kept): &(PathBuf, PathBuf)) {
    rig.crash();
    copy_all(kept, &format!("{ino:016x}"), there);
    std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
    rig.start();
}

/// The header on the tier is from before the spill file was published, and says that there is one.
#[test]
fn spilled_file_when_written_back_and_the_tier_has_what_was_before_then_the_newer_version_counts() {
    let _alone = rig::alone();
    for reported in [true, false] {
        let (mut rig, mut bytes, store) = rig_with_a_spilled_file(true);
        let ino = rig.ino("spilled");
        let device = on_the_device(&rig, ino.0);
        store.publish();
        let fh = rig.open("spilled", libc::O_RDWR);
        for at in (0..900_000).step_by(50_000) {
            let newer = noise(at as u64 + 7, 4096);
            bytes[at..at + 4096].copy_from_slice(&newer);
            rig.write(fh, at as u64, &newer);
        }
        rig.node().release(fh);
        if reported {
            rig.drain();
        } else {
            fail::cfg("node.flush.spill_published", "return").unwrap();
            rig.node().writeback().reconcile(ino).ok();
            fail::remove("node.flush.spill_published");
        }
        assert!(rig.plain("spilled") == bytes, "reported: {reported}");
        bring_back(&mut rig, ino.0, &device);
        assert!(rig.get("spilled") == bytes, "reported: {reported}");
        rig.drain();
        assert!(rig.plain("spilled") == bytes, "reported: {reported}");
        assert_eq!(rig.node().writeback().conflicts().0, 0);
    }
}

/// Copies all that the tier has right before the name of a version is made durable.
#[derive(Default)]
struct TierAtPublication {
    dir: std::sync::OnceLock<PathBuf>,
    published: AtomicBool,
}

fn copy_tree(from: &std::path::Path, to: &std::path::Path) {
    drop(std::fs::remove_dir_all(to));
    let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.unwrap().success());
}

impl Interceptor for TierAtPublication {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        if operation == Operation::Sync && self.published.load(Ordering::SeqCst) {
            let dir = self.dir.get().unwrap();
            copy_tree(&dir.join("tier0/objects"), &dir.join("objects"));
        }
        Verdict::Pass
    }

    fn after(&self, operation: Operation) {
        if operation == Operation::Commit {
            self.published.store(true, Ordering::SeqCst);
        }
    }
}

/// A file of which a part is on the tier, synced, gets a longer end, which nobody syncs. When it is
/// written back, its map on the device must be no older: that knows of no such end.
#[test]
fn part_with_a_new_end_when_written_back_and_the_tier_has_what_was_synced_then_its_end_is_there() {
    let device = Arc::new(TierAtPublication::default());
    let mut rig = Rig::new(&[8 * MIB], device.clone(), |_| {});
    device.dir.set(rig.dir.clone()).unwrap();
    let mut bytes = noise(7, 2_000_000);
    std::fs::write(rig.backing().join("large"), &bytes).unwrap();
    let fh = rig.open("large", libc::O_RDWR);
    bytes[100_000..104_096].copy_from_slice(&noise(8, 4096));
    rig.write(fh, 100_000, &bytes[100_000..104_096]);
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    assert_eq!(maps(&rig).len(), 1, "the file is not partly resident");
    rig.write(fh, 2_000_000, &noise(9, 100_000));
    bytes.extend(noise(9, 100_000));
    rig.node().release(fh);
    rig.drain();
    assert!(rig.plain("large") == bytes);
    rig.crash();
    // What was done since to header and map is lost, and of the map only what was synced counts.
    copy_tree(&rig.dir.join("objects"), &rig.dir.join("tier0/objects"));
    std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
    rig.start();
    assert!(rig.get("large") == bytes, "what was written back is not shown");
    rig.drain();
    assert!(rig.plain("large") == bytes, "what was written back is not there any more");
    assert_eq!(rig.node().writeback().conflicts().0, 0);
}

/// A removal of an object comes to the device with the next sync of a directory.
#[derive(Default)]
struct LastRemoved {
    objects: std::sync::OnceLock<PathBuf>,
    kept: Mutex<Option<(PathBuf, PathBuf)>>,
}

impl Interceptor for LastRemoved {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        let mut kept = self.kept.lock();
        match operation {
            Operation::Remove => {
                let fans = std::fs::read_dir(self.objects.get().unwrap()).unwrap().flatten();
                let files = fans.flat_map(|fan| std::fs::read_dir(fan.path()).unwrap().flatten());
                let mut files = files.map(|file| file.path());
                let is_empty = |path: &PathBuf| path.metadata().unwrap().len() == 0;
                let object =
                    files.find(|path| path.extension().is_none() && is_empty(path)).unwrap();
                let aside = self.objects.get().unwrap().with_file_name("removed");
                drop(std::fs::remove_file(&aside));
                std::fs::hard_link(&object, &aside).unwrap();
                *kept = Some((aside, object));
            }
            Operation::Sync => *kept = None,
            _ => {}
        }
        Verdict::Pass
    }
}

/// Another writer takes the last room of the tier while a spill file is made.
#[derive(Default)]
struct TakesTheRoom {
    writer: Mutex<Option<(Arc<forebay_node::Node>, u64, u64)>>,
}

impl Interceptor for TakesTheRoom {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        if operation == Operation::Create
            && let Some((node, fh, end)) = self.writer.lock().take()
        {
            let used: u64 = node.tier_reports().iter().map(|tier| tier.used).sum();
            let left = noise(3, (MIB - used) / 4096 * 4096);
            assert_eq!(node.write(&CONTEXT, fh, end, &left).unwrap(), left.len());
        }
        Verdict::Pass
    }
}

/// A new file whose object was begun, for which there is no room any more: all of it goes to a spill file,
/// and the empty object goes, which the power brings back.
#[test]
fn new_file_past_the_tier_when_synced_and_its_object_comes_back_empty_then_it_is_whole() {
    let device = Arc::new(LastRemoved::default());
    let other = Arc::new(TakesTheRoom::default());
    let mut rig = Rig::unstarted(&[MIB], other.clone(), |_| {});
    device.objects.set(rig.dir.join("tier0/objects")).unwrap();
    rig.by_tier = Some(device.clone());
    rig.start();
    let end = MIB - 65_536;
    let filler = rig.create("filler");
    rig.write(filler, 0, &noise(1, end));
    let bytes = noise(2, 200_000);
    let fh = rig.create("file");
    *other.writer.lock() = Some((rig.node().clone(), filler, end));
    rig.write(fh, 0, &bytes);
    assert!(other.writer.lock().is_none(), "no spill file was made");
    assert!(device.kept.lock().is_some(), "no object was begun and removed");
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    rig.crash();
    if let Some((aside, object)) = &*device.kept.lock() {
        std::fs::rename(aside, object).unwrap();
    }
    std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
    rig.start();
    assert!(rig.get("file") == bytes);
    rig.drain();
    assert!(rig.plain("file") == bytes);
}

/// What of a spill file and its map is not on the device when the machine stops.
#[derive(Clone, Copy, Debug)]
enum Missing {
    BytesOfTheMap,
    Map,
    Both,
}

impl Missing {
    const ALL: [(Missing, bool); 6] = [
        (Missing::BytesOfTheMap, false),
        (Missing::BytesOfTheMap, true),
        (Missing::Map, false),
        (Missing::Map, true),
        (Missing::Both, false),
        (Missing::Both, true),
    ];

    fn take_away(self, rig: &Rig) {
        let spills = rig::kept::spills(rig);
        let map = rig::kept::only(&spills, true);
        match self {
            Missing::BytesOfTheMap => rig::kept::cut(&map, 0),
            Missing::Map => std::fs::remove_file(map).unwrap(),
            Missing::Both => std::fs::remove_dir_all(spills).unwrap(),
        }
    }
}

/// A file of the backing store to which was written past the tier, and to its part on the tier as well
/// (`in_parts`), when the machine stops.
fn rig_with_a_begun_spill_file(missing: Missing, in_parts: bool, synced: bool) -> (Rig, Vec<u8>) {
    // No part of it comes to a tier that is smaller.
    let tier = if in_parts { 4 * MIB } else { MIB };
    let mut rig = Rig::small(tier);
    let bytes = noise(7, 2_000_000);
    std::fs::write(rig.backing().join("large"), &bytes).unwrap();
    let fh = rig.open("large", libc::O_RDWR);
    rig.node().read(&CONTEXT, fh, 1_000_000, &mut [0; 1000]).unwrap();
    if in_parts {
        rig.write(fh, 100_000, b"written here");
    }
    let filler = rig.create("filler");
    rig.write(filler, 0, &noise(1, tier - 300_000));
    for at in (1_000_000..1_900_000).step_by(100_000) {
        rig.write(fh, at, b"written past the tier");
    }
    if synced {
        rig.node().fsync(&CONTEXT, fh, false).unwrap();
    }
    let name = format!("{:016x}", rig.ino("large").0);
    rig.crash();
    let objects = rig::kept::files_below(&rig::kept::objects(&rig));
    assert_eq!(objects.iter().any(|path| path.ends_with(&name)), in_parts, "{objects:?}");
    missing.take_away(&rig);
    std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
    (rig, bytes)
}

/// Nobody was told that the change lasts, and the backing store has what was there before.
#[test]
fn spill_file_when_the_power_took_its_map_and_nothing_was_synced_then_the_file_is_as_below() {
    for (missing, in_parts) in Missing::ALL {
        let what = format!("{missing:?}, in parts: {in_parts}");
        let (mut rig, bytes) = rig_with_a_begun_spill_file(missing, in_parts, false);
        rig.start();
        assert_eq!(rig.node().residency().lost_files().files, 0, "{what}");
        rig::same(&read_of(&rig, "large").unwrap(), &bytes, &what);
        let aside = rig.node().residency().set_aside().files;
        let left = u64::from(in_parts) + u64::from(!matches!(missing, Missing::Both));
        assert!(aside >= left, "{what}: {aside} of what there is of the change");
        rig.drain();
        rig::same(&rig.plain("large"), &bytes, "below");
        rig.crash();
        rig.start();
        rig::same(&read_of(&rig, "large").unwrap(), &bytes, "after one more start");
    }
}

/// Then the file is not as below yet: the next start would lay the object over that.
#[test]
fn object_beside_a_spill_file_without_its_map_when_it_can_not_be_set_aside_then_no_versions_are_mixed()
 {
    let (mut rig, bytes) = rig_with_a_begun_spill_file(Missing::Map, true, false);
    let lost = rig.dir.join("tier0/lost");
    assert!(!lost.exists());
    std::fs::write(&lost, "in the way").unwrap();
    rig.start();
    read_of(&rig, "large").expect_err("it is neither version");
    assert_eq!(rig.node().residency().lost_files().files, 0, "that can't be told yet");
    rig.crash();
    std::fs::remove_file(&lost).unwrap();
    rig.start();
    rig::same(&read_of(&rig, "large").unwrap(), &bytes, "after another start");
}

#[test]
fn spill_file_when_the_power_took_its_map_after_a_sync_then_no_older_version_is_shown() {
    for (missing, in_parts) in Missing::ALL {
        let what = format!("{missing:?}, in parts: {in_parts}");
        let (mut rig, _) = rig_with_a_begun_spill_file(missing, in_parts, true);
        rig.start();
        assert_eq!(rig.node().residency().lost_files().files, 1, "{what}");
        read_of(&rig, "large").expect_err(&what);
    }
}
