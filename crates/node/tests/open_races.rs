//! Removals at the very moment of an open.
#![cfg(feature = "failpoints")]

use std::path::PathBuf;
use std::sync::Arc;

use forebay_node::{Context, Ino, NameIn, NewFile, Node, NodeConfig, SetAttr, TierConfig};
use forebay_testing::new_dir;

const CONTEXT: Context = Context::DAEMON;
const WRITE: i32 = libc::O_RDWR | libc::O_CREAT;

/// A node and its directories.
struct Rig {
    node: Arc<Node>,
    dir: PathBuf,
}

impl Rig {
    fn new(name: &str) -> Self {
        let dir = new_dir(std::env::temp_dir(), &format!("forebay-races-{name}"));
        std::fs::create_dir_all(dir.join("backing")).unwrap();
        std::fs::write(dir.join("backing/old"), b"imported").unwrap();
        let tier = TierConfig { dir: dir.join("tier"), size_bytes: 16 << 20 };
        std::fs::create_dir_all(&tier.dir).unwrap();
        let node = Node::start(NodeConfig::new(dir.join("backing"), vec![tier])).unwrap();
        Rig { node, dir }
    }

    /// Inodes without a name that count as in use.
    fn orphans(&self) -> u64 {
        self.node.writeback().removed_in_use()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.node.stop(std::time::Duration::from_secs(10));
        std::fs::remove_dir_all(&self.dir).ok();
    }
}

/// Removes a name when the fail point is reached.
fn unlink_at(point: &str, node: &Arc<Node>, name: &'static [u8]) {
    let node = Arc::downgrade(node);
    let unlink = move || {
        if let Some(node) = node.upgrade() {
            node.unlink(&CONTEXT, Ino::ROOT, name).ok();
        }
    };
    fail::cfg_callback(point, unlink).unwrap();
}

#[test]
fn created_when_removed_before_it_is_open_then_usable_until_the_close() {
    let _scenario = fail::FailScenario::setup();
    let rig = Rig::new("created");
    unlink_at("node.open.attach", &rig.node, b"new");
    let made = rig.node.create_and_open(
        &CONTEXT,
        Ino::ROOT,
        b"new",
        NewFile { mode: 0o600, umask: 0 },
        WRITE,
    );
    let (stat, opened) = made.unwrap();
    fail::remove("node.open.attach");
    assert!(rig.node.lookup(&CONTEXT, Ino::ROOT, b"new").unwrap().is_none(), "it was removed");
    assert_eq!(rig.node.write(&CONTEXT, opened.fh, 0, b"bytes").unwrap(), 5);
    assert_eq!(rig.node.getattr(&CONTEXT, stat.ino).unwrap().attr.nlink, 0);
    rig.node.release(opened.fh);
    assert_eq!(rig.orphans(), 0);
}

#[test]
fn created_when_removed_and_the_open_fails_then_nothing_stays() {
    let _scenario = fail::FailScenario::setup();
    let rig = Rig::new("failed");
    fail::cfg("node.open.attach", "return").unwrap();
    let made = rig.node.create_and_open(
        &CONTEXT,
        Ino::ROOT,
        b"new",
        NewFile { mode: 0o600, umask: 0 },
        WRITE,
    );
    assert!(made.is_err());
    rig.node.unlink(&CONTEXT, Ino::ROOT, b"new").unwrap();
    assert_eq!(rig.orphans(), 0);
}

#[test]
fn open_when_the_file_is_removed_and_the_open_fails_then_nothing_stays() {
    let _scenario = fail::FailScenario::setup();
    let rig = Rig::new("opened");
    let ino = rig.node.lookup(&CONTEXT, Ino::ROOT, b"old").unwrap().unwrap().ino;
    unlink_at("node.fetch.copied", &rig.node, b"old");
    fail::cfg("node.open.attach", "return").unwrap();
    assert!(rig.node.open(&CONTEXT, ino, libc::O_RDONLY).is_err());
    assert!(rig.node.lookup(&CONTEXT, Ino::ROOT, b"old").unwrap().is_none(), "it was removed");
    assert_eq!(rig.orphans(), 0);
}

#[test]
fn set_id_bits_when_set_while_the_file_is_looked_up_then_the_next_write_takes_them_away() {
    let _scenario = fail::FailScenario::setup();
    let rig = Rig::new("setid");
    let stat = rig.node.lookup(&CONTEXT, Ino::ROOT, b"old").unwrap().unwrap();
    let node = Arc::downgrade(&rig.node);
    let chmod = move || {
        fail::remove("node.look_up.record");
        let set = SetAttr { mode: Some(0o2777), ..SetAttr::default() };
        node.upgrade().unwrap().setattr(&CONTEXT, stat.ino, &set).unwrap();
    };
    fail::cfg_callback("node.look_up.record", chmod).unwrap();
    let opened = rig.node.open(&CONTEXT, stat.ino, libc::O_RDWR).unwrap();
    let stranger = Context { uid: 1234, gid: 1234, ..CONTEXT };
    assert_eq!(rig.node.write(&stranger, opened.fh, 0, b"x").unwrap(), 1);
    rig.node.release(opened.fh);
    assert_eq!(rig.node.getattr(&CONTEXT, stat.ino).unwrap().attr.perm, 0o777);
}

#[test]
fn opened_while_it_is_removed_then_usable_or_refused() {
    let _scenario = fail::FailScenario::setup();
    let rig = Rig::new("raced");
    let mut opened = 0;
    for round in 0..400_u32 {
        let (stat, made) = rig
            .node
            .create_and_open(&CONTEXT, Ino::ROOT, b"file", NewFile { mode: 0o600, umask: 0 }, WRITE)
            .unwrap();
        assert_eq!(rig.node.write(&CONTEXT, made.fh, 0, b"bytes").unwrap(), 5);
        rig.node.release(made.fh);
        let ready = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ready.wait();
                rig.node.unlink(&CONTEXT, Ino::ROOT, b"file").unwrap();
            });
            ready.wait();
            (0..round % 40).for_each(|_| std::thread::yield_now());
            let Ok(handle) = rig.node.open(&CONTEXT, stat.ino, libc::O_RDWR) else { return };
            opened += 1;
            assert_eq!(rig.node.write(&CONTEXT, handle.fh, 5, b" more").unwrap(), 5);
            let mut read = [0; 16];
            assert_eq!(rig.node.read(&CONTEXT, handle.fh, 0, &mut read).unwrap(), 10);
            assert_eq!(&read[..10], b"bytes more");
            assert_eq!(rig.node.getattr(&CONTEXT, stat.ino).unwrap().attr.size, 10);
            rig.node.release(handle.fh);
        });
        assert_eq!(rig.orphans(), 0, "round {round}");
    }
    eprintln!("{opened} of 400 were in time");
}

#[test]
fn file_when_replaced_before_its_last_close_then_whoever_looked_it_up_can_still_open_it() {
    let _scenario = fail::FailScenario::setup();
    let rig = Rig::new("replaced");
    let make = |name: &[u8]| {
        let made = rig
            .node
            .create_and_open(&CONTEXT, Ino::ROOT, name, NewFile { mode: 0o600, umask: 0 }, WRITE)
            .unwrap();
        assert_eq!(rig.node.write(&CONTEXT, made.1.fh, 0, name).unwrap(), name.len());
        made
    };
    let (first, still_open) = make(b"first");
    let (_, second) = make(b"second");
    rig.node.release(second.fh);
    // Somebody has looked "first" up, and another program replaces it before its writer's last
    // close comes in, which the kernel sends when it likes.
    rig.node
        .rename(&CONTEXT, NameIn::new(Ino::ROOT, b"second"), NameIn::new(Ino::ROOT, b"first"), 0)
        .unwrap();
    rig.node.release(still_open.fh);
    let found = rig.node.open(&CONTEXT, first.ino, libc::O_RDONLY).unwrap();
    let mut bytes = [0; 8];
    assert_eq!(rig.node.read(&CONTEXT, found.fh, 0, &mut bytes).unwrap(), 5);
    assert_eq!(&bytes[..5], b"first");
    rig.node.release(found.fh);
    // After its grace it goes, as all that were replaced.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while rig.orphans() > 0 {
        assert!(std::time::Instant::now() < until, "a replaced file stays for ever");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn file_when_closed_in_the_middle_of_its_removal_then_nothing_stays() {
    let _scenario = fail::FailScenario::setup();
    let rig = Rig::new("closed");
    let made = rig
        .node
        .create_and_open(&CONTEXT, Ino::ROOT, b"file", NewFile { mode: 0o600, umask: 0 }, WRITE)
        .unwrap();
    assert_eq!(rig.node.write(&CONTEXT, made.1.fh, 0, b"bytes").unwrap(), 5);
    let (asked, told) = std::sync::mpsc::sync_channel(1);
    let point = "node.unlink.asked";
    // The removal has found the file open. It goes on when the close has had all the time it needs
    // to look at the record, unless it waits for the removal.
    let meet = move || {
        asked.try_send(()).ok();
        std::thread::sleep(std::time::Duration::from_millis(300));
    };
    fail::cfg_callback(point, meet).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| rig.node.unlink(&CONTEXT, Ino::ROOT, b"file").unwrap());
        told.recv_timeout(std::time::Duration::from_secs(20)).unwrap();
        rig.node.release(made.1.fh);
    });
    fail::remove(point);
    assert_eq!(rig.orphans(), 0);
    assert_eq!(rig.node.writeback().remaining().bytes, 0);
}
