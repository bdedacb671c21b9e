//! Requests whose programs were told that they failed, as the backing store kept them waiting, and
//! that go on: they must not undo what was acknowledged since.
#![cfg(feature = "failpoints")]

mod rig;

use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use forebay_node::{Context, FilePosition, Ino, NameIn, NewFile, Result, SetAttr, Waiter};
use forebay_store::decorators::{Operation, Stuck, Transparent};
use rig::{CONTEXT, KIB, MIB, Rig, noise};

/// A request that waits already and has a number, by which it is given up.
const LATE: Context = Context { waiter: Some(&Numbered), ..CONTEXT };
const NUMBER: u64 = 7;

#[derive(Debug)]
struct Numbered;

impl Waiter for Numbered {
    fn wait(&self) -> Result<()> {
        Ok(())
    }

    fn may_wait(&self) -> bool {
        true
    }

    fn number(&self) -> u64 {
        NUMBER
    }
}

/// A request that waits once, while others do something.
struct Meanwhile<'a> {
    waited: Cell<bool>,
    others: &'a dyn Fn(),
}

impl<'a> Meanwhile<'a> {
    fn others(others: &'a dyn Fn()) -> Self {
        Meanwhile { waited: Cell::new(false), others }
    }

    fn context(&self) -> Context<'_> {
        Context { waiter: Some(self), ..CONTEXT }
    }
}

impl Waiter for Meanwhile<'_> {
    fn wait(&self) -> Result<()> {
        if !self.waited.replace(true) {
            (self.others)();
        }
        Ok(())
    }

    fn may_wait(&self) -> bool {
        self.waited.get()
    }

    fn number(&self) -> u64 {
        0
    }
}

impl fmt::Debug for Meanwhile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meanwhile").field("waited", &self.waited).finish_non_exhaustive()
    }
}

/// Whether what the tier has of a file counts as durable.
fn is_synced(rig: &Rig, ino: Ino) -> bool {
    let fans = std::fs::read_dir(rig.dir.join("tier0/objects")).unwrap();
    let paths = fans.map(|fan| fan.unwrap().path().join(format!("{:016x}", ino.0)));
    let object = paths.into_iter().find(|path| path.exists()).expect("an object");
    let mut header = vec![0; 4096];
    rustix::fs::getxattr(&object, "user.forebay", &mut header[..]).unwrap();
    header[10] & 128 != 0
}

/// Has `late` stop at a point; then it is given up, `newer` is done, and it may go on.
fn given_up_at<T: Send>(
    point: &str,
    rig: &Rig,
    late: impl FnOnce() -> T + Send,
    newer: impl FnOnce(),
) -> T {
    fail::cfg(point, "1*pause->off").unwrap();
    std::thread::scope(|scope| {
        let late = scope.spawn(late);
        std::thread::sleep(Duration::from_millis(200));
        rig.node().give_up_request(NUMBER);
        newer();
        fail::remove(point);
        let outcome = late.join().unwrap();
        rig.node().forget_request(NUMBER);
        outcome
    })
}

fn start_of(fh: u64) -> FilePosition {
    FilePosition { fh, offset: 0 }
}

#[test]
fn write_that_was_given_up_when_it_goes_on_then_a_newer_one_stays() {
    let _alone = rig::alone();
    let rig = Rig::new(&[MIB], Arc::new(Transparent), |_| {});
    let fh = rig.create("file");
    rig.write(fh, 0, &noise(1, 100 * KIB));
    // Far more than the tier has room for.
    let old = noise(2, 3 * MIB);
    let newer = noise(3, 50 * KIB);
    let outcome = given_up_at(
        "node.spill.begin",
        &rig,
        || rig.node().write(&LATE, fh, 0, &old),
        || rig.write(fh, 0, &newer),
    );
    assert!(outcome.is_err(), "{outcome:?}");
    assert!(rig.read_all(fh)[..newer.len()] == newer);
    assert_eq!(rig.read_all(fh).len() as u64, 100 * KIB);
    rig.node().release(fh);
}

#[test]
fn truncation_that_was_given_up_when_it_goes_on_then_newer_bytes_stay() {
    let _alone = rig::alone();
    let rig = Rig::small(16 * MIB);
    let fh = rig.create("file");
    rig.write(fh, 0, b"old");
    let ino = rig.ino("file");
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    let outcome = given_up_at(
        "node.truncate.loaded",
        &rig,
        || rig.node().setattr(&LATE, ino, &set),
        || rig.write(fh, 0, b"newer"),
    );
    assert!(outcome.is_err());
    assert_eq!(rig.read_all(fh), b"newer");
    rig.node().release(fh);
}

#[test]
fn rename_that_was_given_up_while_it_synced_when_it_goes_on_then_a_newer_file_keeps_the_name() {
    let _alone = rig::alone();
    let rig = Rig::small(16 * MIB);
    rig.put("from", b"old");
    let (from, to) = (NameIn::new(Ino::ROOT, b"from"), NameIn::new(Ino::ROOT, b"to"));
    let outcome = given_up_at(
        "node.rename.decided",
        &rig,
        || rig.node().rename(&LATE, from, to, 0),
        || rig.put("to", b"newer"),
    );
    assert!(outcome.is_err());
    assert_eq!((rig.get("from"), rig.get("to")), (b"old".to_vec(), b"newer".to_vec()));
}

/// A program has the old file synced when it is decided already that the new one needs no sync.
#[test]
fn file_that_is_synced_right_before_another_takes_its_name_then_that_one_is_durable_first() {
    let _alone = rig::alone();
    let rig = Rig::small(8 * MIB);
    rig.put("new", &noise(1, 20_480));
    let old = rig.create("name");
    rig.write(old, 0, &noise(2, 20_480));
    let (node, ino) = (rig.node().clone(), rig.ino("new"));
    fail::cfg_callback("node.rename.decided", move || {
        node.fsync(&CONTEXT, old, false).unwrap();
    })
    .unwrap();
    let (from, to) = (NameIn::new(Ino::ROOT, b"new"), NameIn::new(Ino::ROOT, b"name"));
    rig.node().rename(&CONTEXT, from, to, 0).unwrap();
    fail::remove("node.rename.decided");
    assert_eq!(rig.ino("name"), ino);
    assert!(is_synced(&rig, ino));
    rig.node().release(old);
}

#[test]
fn rename_that_waits_when_its_file_is_another_one_then_that_one_is_durable_first() {
    let rig = Rig::small(8 * MIB);
    for name in ["new", "newer"] {
        rig.put(name, &noise(1, 20_480));
    }
    let old = rig.create("name");
    rig.write(old, 0, &noise(2, 20_480));
    rig.node().fsync(&CONTEXT, old, false).unwrap();
    let newer = rig.ino("newer");
    let at = |name: &'static str| NameIn::new(Ino::ROOT, name.as_bytes());
    let others = || rig.node().rename(&CONTEXT, at("newer"), at("new"), 0).unwrap();
    let waits = Meanwhile::others(&others);
    rig.node().rename(&waits.context(), at("new"), at("name"), 0).unwrap();
    assert!(waits.waited.get(), "what it moves was not synced");
    assert_eq!(rig.ino("name"), newer);
    assert!(is_synced(&rig, newer));
    rig.node().release(old);
}

#[test]
fn allocation_that_waits_for_the_room_of_the_store_then_has_not_the_file_in_hand() {
    let rig = Rig::new(&[MIB], Arc::new(Transparent), |_| {});
    let fh = rig.create("file");
    rig.write(fh, 0, &noise(1, 100 * KIB));
    let others = || {
        let (send, receive) = mpsc::channel();
        let node = rig.node().clone();
        std::thread::spawn(move || {
            let set = SetAttr { size: Some(7), ..SetAttr::default() };
            let ino = node.lookup(&CONTEXT, Ino::ROOT, b"file").unwrap().unwrap().ino;
            send.send(node.setattr(&CONTEXT, ino, &set).is_ok())
        });
        assert_eq!(receive.recv_timeout(Duration::from_secs(20)), Ok(true), "nobody gets the file");
    };
    let waits = Meanwhile::others(&others);
    // Far more than the tier has room for.
    rig.node().fallocate(&waits.context(), fh, 0, 3 * MIB, 0).unwrap();
    assert!(waits.waited.get(), "the room was known");
    let bytes = rig.read_all(fh);
    assert_eq!(bytes.len() as u64, 3 * MIB);
    assert!(bytes[..7] == noise(1, 7) && bytes[7..].iter().all(|byte| *byte == 0));
    rig.node().release(fh);
}

#[test]
fn range_that_was_given_up_when_it_goes_on_then_newer_bytes_stay() {
    let _alone = rig::alone();
    let zero = libc::FALLOC_FL_ZERO_RANGE;
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    for mode in [zero, punch, 0] {
        let rig = Rig::small(16 * MIB);
        let fh = rig.create("file");
        rig.write(fh, 0, &noise(1, 100 * KIB));
        let newer = noise(3, 100 * KIB);
        let outcome = given_up_at(
            "node.range.begin",
            &rig,
            || rig.node().fallocate(&LATE, fh, 0, 200 * KIB, mode),
            || rig.write(fh, 0, &newer),
        );
        assert!(outcome.is_err(), "{mode}");
        assert!(rig.read_all(fh) == newer, "{mode}");
        rig.node().release(fh);
    }
}

#[test]
fn copy_that_was_given_up_when_it_goes_on_then_newer_bytes_stay() {
    let _alone = rig::alone();
    let rig = Rig::small(16 * MIB);
    let old = noise(2, 3 * MIB);
    rig.put("from", &old);
    let (from, to) = (rig.open("from", libc::O_RDONLY), rig.create("to"));
    let newer = noise(3, 100 * KIB);
    let outcome = given_up_at(
        "node.range.copy",
        &rig,
        || rig.node().copy_range(&LATE, start_of(from), start_of(to), 3 * MIB),
        || rig.write(to, 0, &newer),
    );
    assert!(outcome.is_err(), "{outcome:?}");
    assert!(rig.read_all(to) == newer);
    // Nor is any copy so long that it has to be given up.
    let (from, to) = (rig.open("from", libc::O_RDWR), rig.create("long"));
    let set = SetAttr { size: Some(200 * MIB), ..SetAttr::default() };
    rig.node().setattr(&CONTEXT, rig.ino("from"), &set).unwrap();
    let copied = rig.node().copy_range(&CONTEXT, start_of(from), start_of(to), 200 * MIB).unwrap();
    assert!((MIB..100 * MIB).contains(&copied), "{copied} in one call");
}

#[test]
fn names_given_up_while_the_store_hangs_when_it_goes_on_then_nothing_is_changed() {
    let stuck = Arc::new(Stuck::default());
    let rig = Rig::new(&[16 * MIB], stuck.clone(), |config| config.attr_timeout = Duration::ZERO);
    for name in ["a", "b"] {
        std::fs::write(rig.backing().join(name), name).unwrap();
    }
    std::fs::create_dir(rig.backing().join("dir")).unwrap();
    let node = rig.node().clone();
    let root = Ino::ROOT;
    let late: [&(dyn Fn() -> bool + Sync); 6] = [
        &|| node.unlink(&LATE, root, b"a").is_ok(),
        &|| node.rename(&LATE, NameIn::new(root, b"a"), NameIn::new(root, b"b"), 0).is_ok(),
        &|| node.rmdir(&LATE, root, b"dir").is_ok(),
        &|| node.link(&LATE, rig.ino("b"), root, b"c").is_ok(),
        &|| node.mkdir(&LATE, root, b"d", 0o755, 0).is_ok(),
        &|| {
            node.create_and_open(&LATE, root, b"e", NewFile { mode: 0o644, umask: 0 }, libc::O_RDWR)
                .is_ok()
        },
    ];
    for (index, late) in late.into_iter().enumerate() {
        // Listed, so that it is compared, which hangs.
        drop(rig.node().read_dir(&CONTEXT, root, 0, 100, false, &mut |_| true));
        // It counts as fresh for a moment.
        std::thread::sleep(Duration::from_millis(200));
        stuck.hang(&[Operation::Stat, Operation::List]);
        let done = std::thread::scope(|scope| {
            let late = scope.spawn(late);
            while stuck.waiting() == 0 && !late.is_finished() {
                std::thread::sleep(Duration::from_millis(5));
            }
            rig.node().give_up_request(NUMBER);
            stuck.release();
            late.join().unwrap()
        });
        rig.node().forget_request(NUMBER);
        assert!(!done, "number {index} was carried out");
        assert_eq!(rig.get("a"), b"a");
        assert_eq!(rig.get("b"), b"b");
        for name in ["c", "d", "e"] {
            assert!(rig.node().lookup(&CONTEXT, root, name.as_bytes()).unwrap().is_none());
        }
        assert!(rig.node().lookup(&CONTEXT, root, b"dir").unwrap().is_some());
    }
}
