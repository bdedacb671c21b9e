//! Looks of a start that get no answer: one file pays for that, by name, and nothing of it is taken for
//! damaged or gone, nor moved or removed.

mod rig;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use forebay_meta::{Embedded, EmbeddedOptions, Engine, Key, MiniTransaction, Outcome, Write};
use forebay_node::{CheckRequest, Ino, check};
use forebay_store::decorators::{Interceptor, Operation, Transparent, Verdict};
use forebay_testing::wait_until;
use rig::{CONTEXT, KIB, MIB, Rig, noise, same};

/// Answers nothing but this error, so often.
struct Silent {
    operation: Operation,
    errno: AtomicI32,
    times: AtomicU32,
}

impl Silent {
    fn of(operation: Operation) -> Arc<Self> {
        Arc::new(Silent { operation, errno: AtomicI32::new(0), times: AtomicU32::new(0) })
    }

    fn answer(&self, errno: i32, times: u32) {
        self.errno.store(errno, Ordering::SeqCst);
        self.times.store(times, Ordering::SeqCst);
    }
}

impl Interceptor for Silent {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        let left = |times: u32| times.checked_sub(1);
        let fails = operation == self.operation
            && self.times.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok();
        if fails { Verdict::Fail(self.errno.load(Ordering::SeqCst)) } else { Verdict::Pass }
    }
}

const FOR_EVER: u32 = u32::MAX;

fn shows(rig: &Rig, name: &str) -> Result<Vec<u8>, String> {
    let opened = rig.node().open(&CONTEXT, rig.ino(name), libc::O_RDONLY);
    let fh = opened.map_err(|error| error.to_string())?.fh;
    let mut bytes = vec![0; 4 << 20];
    let read = rig.node().read(&CONTEXT, fh, 0, &mut bytes).map_err(|error| error.to_string());
    rig.node().release(fh);
    bytes.truncate(read?);
    Ok(bytes)
}

fn is_named(rig: &Rig, name: &str, what: &str) {
    assert!(shows(rig, name).is_err(), "{what}: an older version is shown, without a word");
    let unseen = rig.node().residency().unseen_here();
    assert_eq!(unseen.list, [name.as_bytes().to_vec()], "{what}");
    assert_eq!(rig.node().residency().lost_files().files, 0, "{what}");
    assert_eq!(rig.node().residency().set_aside().files, 0, "{what}");
}

/// A file that is changed here and not below, some of it or all.
fn changed_file(rig: &Rig, whole: bool, open: bool) -> Vec<u8> {
    let mut bytes = noise(1, if whole { 20_000 } else { 2 * MIB });
    std::fs::write(rig.backing().join("file"), &bytes).unwrap();
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 5000, b"not below");
    bytes[5000..5009].copy_from_slice(b"not below");
    if !open {
        rig.node().release(fh);
    }
    bytes
}

fn rig_over(by: &Arc<Silent>, tiers: &[u64]) -> Rig {
    let mut rig =
        Rig::unstarted(tiers, Arc::new(Transparent), |config| config.attr_timeout = Duration::ZERO);
    rig.by_tier = Some(by.clone());
    rig.start();
    rig
}

#[test]
fn dirty_object_when_a_start_gets_no_answer_then_its_file_gives_errors_until_it_does() {
    for errno in [libc::EACCES, libc::ESTALE, libc::EMFILE] {
        for (operation, whole, open) in [
            (Operation::Open, true, false),
            (Operation::Open, false, true),
            (Operation::Map, false, false),
        ] {
            let what = format!("{errno}, {operation:?}, whole: {whole}, open: {open}");
            let silent = Silent::of(operation);
            let mut rig = rig_over(&silent, &[16 * MIB]);
            let bytes = changed_file(&rig, whole, open);
            rig.crash();
            silent.answer(errno, FOR_EVER);
            rig.start();
            silent.answer(0, 0);
            is_named(&rig, "file", &what);
            rig.crash();
            rig.start();
            same(&shows(&rig, "file").unwrap(), &bytes, &what);
            rig.drain();
            same(&rig.plain("file"), &bytes, &format!("{what}, below"));
            assert_eq!(rig.node().writeback().conflicts().0, 0, "{what}");
        }
    }
}

#[test]
fn object_when_a_start_is_short_of_descriptors_for_a_moment_then_it_is_as_it_was() {
    for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN] {
        let silent = Silent::of(Operation::Open);
        let mut rig = rig_over(&silent, &[16 * MIB]);
        // Both are there before the directory is looked at.
        std::fs::write(rig.backing().join("copy"), noise(3, 20_000)).unwrap();
        let bytes = changed_file(&rig, true, true);
        rig.get("copy");
        rig.crash();
        rig.start();
        let used = rig.used();
        rig.crash();
        silent.answer(errno, 3);
        rig.start();
        assert_eq!(rig.used(), used, "{errno}: a copy is forgotten");
        same(&rig.get("file"), &bytes, &errno.to_string());
    }
}

#[test]
fn spill_file_when_a_start_gets_no_answer_then_its_file_gives_errors_until_it_does() {
    for errno in [libc::EACCES, libc::ESTALE, libc::EIO] {
        let silent = Silent::of(Operation::Open);
        let mut rig = Rig::new(&[256 * KIB], silent.clone(), |_| {});
        let bytes = noise(2, 2 * MIB);
        rig.put("file", &bytes);
        rig.crash();
        silent.answer(errno, FOR_EVER);
        rig.start();
        silent.answer(0, 0);
        is_named(&rig, "file", &errno.to_string());
        rig.crash();
        rig.start();
        same(&shows(&rig, "file").unwrap(), &bytes, &errno.to_string());
        rig.drain();
        same(&rig.plain("file"), &bytes, &errno.to_string());
    }
}

/// A file that was given up by a program that writes it anew, or removes it, does not come back.
#[test]
fn file_of_which_a_start_got_no_answer_when_it_is_written_anew_or_removed_then_nothing_comes_back()
{
    for removed in [false, true] {
        let what = format!("removed: {removed}");
        let silent = Silent::of(Operation::Open);
        let mut rig = rig_over(&silent, &[16 * MIB, 16 * MIB]);
        changed_file(&rig, true, false);
        rig.crash();
        silent.answer(libc::EACCES, FOR_EVER);
        rig.start();
        silent.answer(0, 0);
        is_named(&rig, "file", &what);
        match removed {
            true => rig.node().unlink(&CONTEXT, Ino::ROOT, b"file").unwrap(),
            false => {
                let fh = rig.open("file", libc::O_WRONLY | libc::O_TRUNC);
                rig.write(fh, 0, b"new");
                rig.node().release(fh);
            }
        }
        rig.crash();
        rig.start();
        rig.drain();
        assert_eq!(rig.node().residency().set_aside().files, 0, "{what}");
        match removed {
            true => assert!(!rig.backing().join("file").exists(), "{what}"),
            false => assert_eq!(rig.plain("file"), b"new", "{what}"),
        }
    }
}

/// A move was cut short, and what was made by it has been written since.
#[test]
fn older_object_of_a_moved_file_when_it_gets_no_answer_what_is_newer_then_its_file_is_usable() {
    let silent = Silent::of(Operation::Open);
    let mut rig = rig_over(&silent, &[MIB, 16 * MIB]);
    let mut bytes = noise(3, 600 * KIB);
    rig.put("file", &bytes);
    let ino = rig.ino("file");
    let mut found = Vec::new();
    files_of(&rig.dir.join("tier0/objects"), ino, &mut found);
    let (old, old_bytes) = found.pop().expect("an object");
    let mut header = vec![0; 4096];
    let len = rustix::fs::getxattr(&old, "user.forebay", &mut header[..]).unwrap();
    for name in ["filler1", "filler2"] {
        rig.put(name, &noise(77, 700 * KIB));
    }
    assert!(!old.exists(), "it was not moved");
    for name in ["filler1", "filler2"] {
        rig.node().unlink(&CONTEXT, Ino::ROOT, name.as_bytes()).unwrap();
    }
    bytes[1000..1010].copy_from_slice(b"newer data");
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 1000, b"newer data");
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    rig.node().release(fh);
    wait_until("the others are gone", || {
        let fans = std::fs::read_dir(rig.dir.join("tier0/objects")).unwrap();
        fans.flatten().all(|fan| std::fs::read_dir(fan.path()).unwrap().next().is_none())
    });
    rig.crash();
    std::fs::create_dir_all(old.parent().unwrap()).unwrap();
    std::fs::write(&old, &old_bytes).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&old, "user.forebay", &header[..len], flags).unwrap();
    silent.answer(libc::ESTALE, 1);
    rig.start();
    silent.answer(0, 0);
    assert!(!old.exists(), "it stays, and nothing says any more that it is older");
    assert_eq!(rig.node().residency().lost_files().files, 0);
    same(&shows(&rig, "file").unwrap(), &bytes, "file");
    rig.drain();
    same(&rig.plain("file"), &bytes, "below");
    rig.crash();
    rig.start();
    same(&shows(&rig, "file").unwrap(), &bytes, "file");
    assert_eq!(rig.node().residency().set_aside().files, 0);
}

/// The machine goes down, and the device has no block of an object, nor its length if that is `cut`.
fn lose_power(rig: &mut Rig, ino: Ino, cut: bool) {
    rig.crash();
    let mut found = Vec::new();
    files_of(&rig.dir.join("tier0/objects"), ino, &mut found);
    for (path, bytes) in found.into_iter().filter(|(path, _)| path.extension().is_none()) {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        file.set_len(0).unwrap();
        file.set_len(if cut { 0 } else { bytes.len() as u64 }).unwrap();
        file.set_modified(modified).unwrap();
    }
    std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
}

fn end(rig: &mut Rig, in_order: bool) {
    match in_order {
        true => drop(rig.node.take().unwrap().stop(Duration::from_secs(20))),
        false => rig.crash(),
    }
}

#[test]
fn copy_when_the_start_after_a_power_cut_gets_no_answer_then_the_next_one_does_not_believe_it() {
    for in_order in [false, true] {
        let silent = Silent::of(Operation::Open);
        let mut rig = rig_over(&silent, &[16 * MIB]);
        let bytes = noise(3, 20_000);
        std::fs::write(rig.backing().join("copy"), &bytes).unwrap();
        rig.get("copy");
        let ino = rig.ino("copy");
        lose_power(&mut rig, ino, false);
        silent.answer(libc::EACCES, FOR_EVER);
        rig.start();
        silent.answer(0, 0);
        end(&mut rig, in_order);
        rig.start();
        same(&shows(&rig, "copy").unwrap(), &bytes, &format!("ended in order: {in_order}"));
    }
}

#[test]
fn what_nobody_synced_when_the_start_after_a_power_cut_gets_no_answer_then_the_next_one_drops_it() {
    for (silence, whole, in_order) in [
        (false, true, false),
        (true, true, false),
        (true, true, true),
        (true, false, false),
        (true, false, true),
    ] {
        let what = format!("silence: {silence}, whole: {whole}, ended in order: {in_order}");
        let silent = Silent::of(Operation::Open);
        let mut rig = rig_over(&silent, &[16 * MIB]);
        changed_file(&rig, whole, false);
        let before = noise(1, if whole { 20_000 } else { 2 * MIB });
        let ino = rig.ino("file");
        lose_power(&mut rig, ino, true);
        if silence {
            silent.answer(libc::EACCES, FOR_EVER);
            rig.start();
            silent.answer(0, 0);
            is_named(&rig, "file", &what);
            end(&mut rig, in_order);
        }
        rig.start();
        same(&shows(&rig, "file").unwrap(), &before, &what);
        rig.drain();
        same(&rig.plain("file"), &before, &format!("{what}, below"));
        assert_eq!(rig.node().residency().lost_files().files, 0, "{what}");
        rig.crash();
        let unseen = std::fs::read_dir(rig.dir.join("tier0/state/unseen"));
        assert_eq!(unseen.into_iter().flatten().count(), 0, "{what}: it is judged for ever");
    }
}

/// The start after a power cut gets no answer and ends in order: the next one would believe all that it has left
/// but for its note.
fn unseen_after_a_power_cut(write: impl FnOnce(&Rig), cut: bool) -> Rig {
    let silent = Silent::of(Operation::Open);
    let mut rig = rig_over(&silent, &[16 * MIB]);
    write(&rig);
    let ino = rig.ino("file");
    lose_power(&mut rig, ino, cut);
    silent.answer(libc::EACCES, FOR_EVER);
    rig.start();
    silent.answer(0, 0);
    end(&mut rig, true);
    rig
}

#[test]
fn what_a_start_could_not_look_at_when_repaired_then_it_is_judged_as_by_that() {
    let mut rig = unseen_after_a_power_cut(|rig| drop(changed_file(rig, true, false)), true);
    let request = CheckRequest {
        tiers: vec![rig.dir.join("tier0")],
        backing: Some(rig.backing()),
        repair: true,
        ..CheckRequest::default()
    };
    let checked = check(&request, &mut |_| true).unwrap();
    assert_eq!(checked.problems, 0, "{:?}", checked.details);
    rig.start();
    same(&shows(&rig, "file").unwrap(), &noise(1, 20_000), "after the repair");
    assert_eq!(rig.node().residency().lost_files().files, 0);
}

#[test]
fn what_a_start_could_not_look_at_when_the_index_is_built_anew_then_it_is_judged_as_by_that() {
    let written_anew = |rig: &Rig| {
        std::fs::write(rig.backing().join("file"), noise(1, 20_000)).unwrap();
        let fh = rig.open("file", libc::O_WRONLY | libc::O_TRUNC);
        rig.write(fh, 0, &noise(2, 20_000));
        rig.node().release(fh);
    };
    let mut rig = unseen_after_a_power_cut(written_anew, false);
    let said = rig.check(true).details;
    rig.start();
    rig.drain();
    same(&rig.plain("file"), &noise(1, 20_000), &format!("below, {said:?}"));
}

/// The files below a directory that belong to an inode, with what they are.
fn files_of(dir: &Path, ino: Ino, found: &mut Vec<(PathBuf, Vec<u8>)>) {
    for path in std::fs::read_dir(dir).into_iter().flatten().map(|it| it.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let is_its =
            name.starts_with(&format!("{:016x}", ino.0)) || name.contains(&format!(".{:x}", ino.0));
        match path.is_dir() {
            true => files_of(&path, ino, found),
            false if is_its => found.push((path.clone(), std::fs::read(&path).unwrap())),
            false => {}
        }
    }
    found.sort();
}

fn all_files_of(rig: &Rig, ino: Ino) -> Vec<PathBuf> {
    let mut found = Vec::new();
    files_of(&rig.dir.join("tier0/objects"), ino, &mut found);
    files_of(&rig.backing().join(".forebay"), ino, &mut found);
    found.into_iter().map(|(path, _)| path).collect()
}

/// Has the record of an inode begin with another byte, its version; what it was.
fn change_version(rig: &Rig, ino: Ino, version: u8) -> u8 {
    let dir = rig.dir.join("tier0/state/meta");
    let engine = Embedded::open(&dir, &EmbeddedOptions::default()).unwrap();
    let mut bytes = vec![b'I'];
    bytes.extend_from_slice(&ino.0.to_be_bytes());
    let key = Key::new(ino.partition(), &bytes);
    let look = MiniTransaction { read: vec![key.clone()], ..MiniTransaction::default() };
    let Outcome::Committed(found) = engine.execute(&look).unwrap() else { panic!("a conflict") };
    let mut value = found[0].clone().expect("a record");
    let before = std::mem::replace(&mut value[0], version);
    let write = vec![Write::Put(key, value)];
    engine.execute(&MiniTransaction { write, ..MiniTransaction::default() }).unwrap();
    before
}

#[test]
fn record_that_can_not_be_decoded_when_started_then_all_that_speaks_of_it_stays() {
    for (version, spilled) in [(0, false), (99, false), (0, true), (99, true)] {
        let what = format!("version {version}, spilled: {spilled}");
        let mut rig = Rig::small(if spilled { 256 * KIB } else { 8 * MIB });
        let bytes = noise(1, 2 * MIB);
        rig.put("file", &bytes);
        let ino = rig.ino("file");
        rig.crash();
        let there = all_files_of(&rig, ino);
        assert!(!there.is_empty(), "{what}");
        let before = change_version(&rig, ino, version);
        for _ in 0..2 {
            rig.start();
            rig.node().lookup(&CONTEXT, Ino::ROOT, b"file").expect_err("it can't be known");
            rig.crash();
            assert_eq!(all_files_of(&rig, ino), there, "{what}");
        }
        let request = CheckRequest {
            tiers: vec![rig.dir.join("tier0")],
            backing: Some(rig.backing()),
            ..CheckRequest::default()
        };
        let told = match check(&request, &mut |_| true) {
            Ok(checked) => format!("{checked:?}"),
            Err(error) => error.to_string(),
        };
        assert!(told.contains(&ino.0.to_string()), "{what}: fsck does not name it: {told}");
        assert_eq!(all_files_of(&rig, ino), there, "{what}, after fsck");
        change_version(&rig, ino, before);
        rig.start();
        same(&rig.get("file"), &bytes, &what);
        rig.drain();
        same(&rig.plain("file"), &bytes, &format!("{what}, below"));
    }
}

/// What a program removed while it had it open, and what waits in limbo for a name.
#[test]
fn removed_file_of_which_the_record_can_not_be_decoded_when_started_then_all_else_is_served() {
    for version in [0, 99] {
        let mut rig = Rig::small(8 * MIB);
        rig.put("other", b"other");
        let fh = rig.create("file");
        rig.write(fh, 0, &noise(1, 100 * KIB));
        let ino = rig.ino("file");
        rig.node().unlink(&CONTEXT, Ino::ROOT, b"file").unwrap();
        rig.crash();
        let owner = forebay_store::tier::identity(&rig.config.tiers[0].dir).unwrap().unwrap();
        let limbo = rig.backing().join(".forebay/limbo");
        std::fs::create_dir_all(&limbo).unwrap();
        std::fs::write(limbo.join(format!("{owner}.{:x}", ino.0)), b"of nobody knows what")
            .unwrap();
        let there = all_files_of(&rig, ino);
        assert_eq!(there.len(), 2, "{there:?}");
        let before = change_version(&rig, ino, version);
        for repair in [false, true] {
            rig.start();
            assert_eq!(rig.get("other"), b"other", "{version}");
            rig.crash();
            let request = CheckRequest {
                tiers: vec![rig.dir.join("tier0")],
                backing: Some(rig.backing()),
                repair,
                ..CheckRequest::default()
            };
            match check(&request, &mut |_| true) {
                Ok(checked) => {
                    let said = checked.details.join("\n");
                    assert!(said.contains(&ino.0.to_string()), "{version}: {said}");
                }
                // Of a newer version.
                Err(error) => assert_eq!(version, 99, "{error}"),
            }
            assert_eq!(all_files_of(&rig, ino), there, "{version}");
        }
        change_version(&rig, ino, before);
        rig.start();
        rig.drain();
        let left: Vec<_> = all_files_of(&rig, ino);
        assert!(!left.iter().any(|path| path.starts_with(rig.dir.join("tier0"))), "{left:?}");
    }
}

/// Gives no answer about attributes from some time on.
struct SilentSince(AtomicU32);

impl Interceptor for SilentSince {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        let counted = |left: u32| left.checked_sub(1);
        if operation != Operation::Stat {
            return Verdict::Pass;
        }
        match self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, counted) {
            Ok(_) => Verdict::Pass,
            Err(_) => Verdict::Fail(libc::EACCES),
        }
    }
}

/// No tier has anything of a file any more, and the backing store may have it.
#[test]
fn file_without_an_object_when_the_store_gives_no_answer_then_it_is_not_called_lost() {
    let silent = Arc::new(SilentSince(AtomicU32::new(FOR_EVER)));
    let mut rig = Rig::new(&[16 * MIB], silent.clone(), |_| {});
    changed_file(&rig, true, false);
    let ino = rig.ino("file");
    rig.crash();
    let mut found = Vec::new();
    files_of(&rig.dir.join("tier0/objects"), ino, &mut found);
    found.iter().for_each(|(path, _)| std::fs::remove_file(path).unwrap());
    let mut unseen = 0;
    for answers in 0..30 {
        silent.0.store(answers, Ordering::SeqCst);
        // Without a look at its root no mount begins.
        let started = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| rig.start()));
        silent.0.store(FOR_EVER, Ordering::SeqCst);
        if started.is_ok() {
            unseen += rig.node().residency().unseen_here().files;
            rig.crash();
        }
        if unseen > 0 {
            break;
        }
    }
    assert!(unseen > 0, "it is called lost while the store does not answer");
    rig.start();
    assert_eq!(rig.node().residency().lost_files().files, 1, "it is, as is seen now");
    assert_eq!(rig.node().residency().unseen_here().files, 0);
}
