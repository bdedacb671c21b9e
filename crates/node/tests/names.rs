//! Names and attributes through a node: listings read ahead, removed files, access times.

mod rig;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use forebay_node::{Ino, NameIn, NewFile, Node, NodeConfig, SetAttr, SetTime, Timestamp};
use forebay_store::decorators::Transparent;
use forebay_testing::wait_until;
use rig::{CONTEXT, MIB, Rig};

const FILES: usize = 3000;
const PAGE: usize = 100;

fn rig() -> Rig {
    Rig::new(&[64 * MIB], Arc::new(Transparent), |_| {})
}

fn make(node: &Node, dir: Ino, name: &str) -> Ino {
    let (stat, opened) = node
        .create_and_open(
            &CONTEXT,
            dir,
            name.as_bytes(),
            NewFile { mode: 0o644, umask: 0 },
            libc::O_RDWR,
        )
        .expect("created");
    node.release(opened.fh);
    stat.ino
}

fn directory(node: &Node) -> Ino {
    let dir = node.mkdir(&CONTEXT, Ino::ROOT, b"dir", 0o755, 0).expect("a directory").ino;
    for number in 0..FILES {
        make(node, dir, &format!("file{number}"));
    }
    dir
}

/// What one page of a listing with attributes shows: inode and permissions by name.
type Shown = BTreeMap<String, (Ino, u32)>;

/// The offset behind a page of a listing; the same one at the end.
fn page(node: &Node, dir: Ino, offset: u64, shown: &mut Shown) -> u64 {
    let (mut next, mut emitted) = (offset, 0);
    node.read_dir(&CONTEXT, dir, offset, PAGE, true, &mut |entry| {
        if emitted == PAGE {
            return false;
        }
        emitted += 1;
        next = entry.offset;
        if let Some(stat) = &entry.stat {
            assert_eq!(entry.ino, stat.ino);
            let name = String::from_utf8(entry.name.to_vec()).expect("a name of ours");
            let before = shown.insert(name.clone(), (stat.ino, stat.attr.perm));
            assert!(before.is_none(), "{name} twice");
        }
        true
    })
    .expect("listed");
    next
}

fn rest(node: &Node, dir: Ino, mut offset: u64, shown: &mut Shown) {
    loop {
        let next = page(node, dir, offset, shown);
        if next == offset {
            return;
        }
        offset = next;
    }
}

#[test]
fn listing_with_attributes_when_files_change_between_its_pages_then_shows_them_as_they_are() {
    let rig = rig();
    let node = rig.node().clone();
    let dir = directory(&node);
    let mut all = Shown::new();
    rest(&node, dir, 0, &mut all);
    assert_eq!(all.len(), FILES);

    let mut shown = Shown::new();
    let mut offset = 0;
    for _ in 0..3 {
        offset = page(&node, dir, offset, &mut shown);
    }
    let mut ahead = all.iter().filter(|(name, _)| !shown.contains_key(*name));
    let mut next = || ahead.next().map(|(name, (ino, _))| (name.clone(), *ino)).expect("one more");
    let ((locked, locked_ino), (gone, _), (moved, _), (replaced, _)) =
        (next(), next(), next(), next());
    let mode = SetAttr { mode: Some(0o400), ..SetAttr::default() };
    node.setattr(&CONTEXT, locked_ino, &mode).expect("chmod");
    node.unlink(&CONTEXT, dir, gone.as_bytes()).expect("unlink");
    node.rename(&CONTEXT, NameIn::new(dir, moved.as_bytes()), NameIn::new(Ino::ROOT, b"moved"), 0)
        .expect("rename");
    let other = make(&node, Ino::ROOT, "other");
    let from = NameIn::new(Ino::ROOT, b"other");
    node.rename(&CONTEXT, from, NameIn::new(dir, replaced.as_bytes()), 0).expect("replace");
    rest(&node, dir, offset, &mut shown);

    assert_eq!(shown.get(&locked), Some(&(locked_ino, 0o400)));
    assert_eq!((shown.get(&gone), shown.get(&moved)), (None, None));
    assert_eq!(shown.get(&replaced).map(|(ino, _)| *ino), Some(other));
    let changed = [locked, gone, moved, replaced];
    for (name, entry) in all.iter().filter(|(name, _)| !changed.contains(name)) {
        assert_eq!(shown.get(name), Some(entry), "{name}");
    }
    // From the beginning again, it shows what is there now.
    make(&node, dir, "new");
    let mut again = Shown::new();
    rest(&node, dir, 0, &mut again);
    assert!(again.contains_key("new") && again.len() == FILES - 1);
    node.stop(Duration::from_secs(10));
}

#[test]
fn listing_when_all_entries_of_a_page_are_removed_then_goes_on_behind_them() {
    let rig = rig();
    let node = rig.node().clone();
    let dir = directory(&node);
    let mut all = Shown::new();
    rest(&node, dir, 0, &mut all);
    let mut shown = Shown::new();
    let offset = page(&node, dir, 0, &mut shown);
    let offset = page(&node, dir, offset, &mut shown);
    let mut removed = Shown::new();
    let mut behind = offset;
    for _ in 0..3 {
        behind = page(&node, dir, behind, &mut removed);
    }
    for name in removed.keys() {
        node.unlink(&CONTEXT, dir, name.as_bytes()).expect("unlink");
    }
    rest(&node, dir, offset, &mut shown);
    assert_eq!(shown.len(), FILES - removed.len());
    node.stop(Duration::from_secs(10));
}

fn objects(rig: &Rig) -> usize {
    let fans = std::fs::read_dir(rig.dir.join("tier0/objects")).expect("a tier");
    let count = |fan: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_dir(fan.expect("an entry").path()).expect("a directory").count()
    };
    fans.map(count).sum()
}

fn fill(node: &Node, name: &str, bytes: usize) {
    let (_, opened) = node
        .create_and_open(
            &CONTEXT,
            Ino::ROOT,
            name.as_bytes(),
            NewFile { mode: 0o644, umask: 0 },
            libc::O_RDWR,
        )
        .expect("created");
    let block = vec![7; MIB as usize];
    for at in (0..bytes).step_by(block.len()) {
        let len = block.len().min(bytes - at);
        assert_eq!(
            node.write(&CONTEXT, opened.fh, at as u64, &block[..len]).expect("written"),
            len
        );
    }
    node.release(opened.fh);
}

#[test]
fn files_when_removed_then_their_objects_go_and_the_end_leaves_none() {
    let rig = rig();
    let node = rig.node().clone();
    for number in 0..50 {
        fill(&node, &format!("f{number}"), 5000);
    }
    assert_eq!(objects(&rig), 50);
    for number in 0..40 {
        node.unlink(&CONTEXT, Ino::ROOT, format!("f{number}").as_bytes()).expect("unlink");
    }
    wait_until("the objects go, too", || objects(&rig) <= 10);
    assert_eq!(objects(&rig), 10);
    for number in 40..50 {
        node.unlink(&CONTEXT, Ino::ROOT, format!("f{number}").as_bytes()).expect("unlink");
    }
    node.stop(Duration::from_secs(10));
    assert_eq!(objects(&rig), 0);
}

#[test]
fn full_tier_when_files_are_removed_then_their_room_is_the_next_writers_at_once() {
    let rig = rig();
    let node = rig.node().clone();
    for round in 0..8 {
        // More than half of the tier each time: the last one must be gone before.
        fill(&node, "large", 40 << 20);
        let spilled = std::fs::read_dir(rig.dir.join("backing"))
            .expect("the backing store")
            .any(|entry| entry.expect("an entry").file_name().to_string_lossy().contains("spill"));
        assert!(!spilled, "round {round}");
        node.unlink(&CONTEXT, Ino::ROOT, b"large").expect("unlink");
    }
    node.stop(Duration::from_secs(10));
}

#[test]
fn file_when_read_then_its_access_time_shows_at_once_and_is_kept() {
    let rig = rig();
    let node = rig.node().clone();
    fill(&node, "file", 5000);
    let ino = node.lookup(&CONTEXT, Ino::ROOT, b"file").expect("looked up").expect("there").ino;
    let before = node.getattr(&CONTEXT, ino).expect("attributes").attr.atime;
    std::thread::sleep(Duration::from_millis(20));
    let read = || {
        let opened = node.open(&CONTEXT, ino, libc::O_RDONLY).expect("opened");
        let mut buffer = [0; 100];
        node.read(&CONTEXT, opened.fh, 0, &mut buffer).expect("read");
        node.release(opened.fh);
    };
    read();
    let seen = node.getattr(&CONTEXT, ino).expect("attributes").attr.atime;
    assert!(seen > before, "{seen:?} {before:?}");
    wait_until("the record has it, too", || node.record(ino).expect("a record").attr.atime == seen);

    // What is set counts, whatever was read a moment before.
    let old = forebay_node::Timestamp::new(1000, 5);
    let at = |time| SetAttr { atime: Some(time), ..SetAttr::default() };
    node.setattr(&CONTEXT, ino, &at(forebay_node::SetTime::At(old))).expect("utimens");
    read();
    let later = forebay_node::Timestamp::new(2000, 7);
    node.setattr(&CONTEXT, ino, &at(forebay_node::SetTime::At(later))).expect("utimens");
    std::thread::sleep(Duration::from_millis(250));
    assert_eq!(node.getattr(&CONTEXT, ino).expect("attributes").attr.atime, later);
    node.stop(Duration::from_secs(10));
}

#[test]
fn file_when_read_and_access_times_are_kept_then_its_time_stays() {
    let keeps = |config: &mut NodeConfig| config.keep_access_times = true;
    let rig = Rig::new(&[64 * MIB], Arc::new(Transparent), keeps);
    let node = rig.node().clone();
    fill(&node, "file", 5000);
    let ino = node.lookup(&CONTEXT, Ino::ROOT, b"file").expect("looked up").expect("there").ino;
    let before = node.getattr(&CONTEXT, ino).expect("attributes").attr;
    std::thread::sleep(Duration::from_millis(20));
    for flags in [libc::O_RDONLY, libc::O_RDWR] {
        let opened = node.open(&CONTEXT, ino, flags).expect("opened");
        node.read(&CONTEXT, opened.fh, 0, &mut [0; 100]).expect("read");
        let attr = node.getattr(&CONTEXT, ino).expect("attributes").attr;
        assert_eq!(attr.atime, before.atime, "while it is open");
        node.release(opened.fh);
        let attr = node.getattr(&CONTEXT, ino).expect("attributes").attr;
        assert_eq!(attr.atime, before.atime, "when it is closed");
    }
    // Writes go on to move the other times.
    let opened = node.open(&CONTEXT, ino, libc::O_WRONLY).expect("opened");
    rig.write(opened.fh, 0, &[1; 100]);
    node.release(opened.fh);
    let after = node.getattr(&CONTEXT, ino).expect("attributes").attr;
    assert!(after.mtime > before.mtime, "{after:?}");
    assert_eq!(after.atime, before.atime);
    node.stop(Duration::from_secs(10));
}

#[test]
fn file_handle_when_the_kernel_has_forgotten_the_inode_then_means_it_as_long_as_it_has_a_name() {
    let rig = rig();
    let node = rig.node().clone();
    let look = |ino, name: &[u8]| node.lookup(&CONTEXT, ino, name).map(|stat| stat.map(|s| s.ino));
    let dir = node.mkdir(&CONTEXT, Ino::ROOT, b"dir", 0o755, 0).expect("a directory").ino;
    let file = make(&node, dir, "file");
    assert_eq!(look(file, b".").expect("itself"), Some(file));
    assert_eq!(look(file, b"..").expect("its directory"), Some(dir));
    assert_eq!(look(dir, b".").expect("itself"), Some(dir));
    assert_eq!(look(dir, b"..").expect("the root"), Some(Ino::ROOT));
    assert_eq!(look(Ino::ROOT, b".").expect("itself"), Some(Ino::ROOT));

    node.link(&CONTEXT, file, Ino::ROOT, b"other").expect("linked");
    node.unlink(&CONTEXT, dir, b"file").expect("unlinked");
    assert_eq!(look(file, b".").expect("by its other name"), Some(file));
    node.unlink(&CONTEXT, Ino::ROOT, b"other").expect("unlinked");
    node.rmdir(&CONTEXT, Ino::ROOT, b"dir").expect("removed");
    for gone in [file, dir] {
        assert!(look(gone, b".").is_err(), "no name is left");
    }
    node.stop(Duration::from_secs(10));
}

/// No worker has anything to do in the directory then.
#[test]
fn directory_whose_names_come_and_go_before_they_are_written_then_it_has_its_time_in_the_store() {
    const BEFORE: Timestamp = Timestamp::new(1_000_000_000, 0);
    let changes: [fn(&Node, Ino, Ino); 4] = [
        |node, dir, _| {
            make(node, dir, "new");
            node.unlink(&CONTEXT, dir, b"new").unwrap();
        },
        |node, dir, _| {
            node.mkdir(&CONTEXT, dir, b"new", 0o755, 0).unwrap();
            node.rmdir(&CONTEXT, dir, b"new").unwrap();
        },
        |node, dir, other| {
            make(node, dir, "new");
            let [from, to] = [NameIn::new(dir, b"new"), NameIn::new(other, b"new")];
            node.rename(&CONTEXT, from, to, 0).unwrap();
        },
        |node, dir, other| {
            let [from, to] = [NameIn::new(dir, b"file"), NameIn::new(other, b"file")];
            node.rename(&CONTEXT, from, to, 0).unwrap();
            node.rename(&CONTEXT, to, from, 0).unwrap();
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let rig = rig();
        let [dir, other] = [b"dir".as_slice(), b"other"].map(|name| {
            rig.node().mkdir(&CONTEXT, Ino::ROOT, name, 0o755, 0).expect("a directory").ino
        });
        make(rig.node(), dir, "file");
        let set = SetAttr { mtime: Some(SetTime::At(BEFORE)), ..SetAttr::default() };
        rig.node().setattr(&CONTEXT, dir, &set).unwrap();
        rig.drain();
        let below = || std::fs::metadata(rig.backing().join("dir")).unwrap().mtime();
        assert_eq!(below(), BEFORE.sec, "change {number}");
        change(rig.node(), dir, other);
        rig.drain();
        let here = rig.node().getattr(&CONTEXT, dir).unwrap().attr.mtime.sec;
        assert!(here > BEFORE.sec, "change {number}");
        assert_eq!(below(), here, "change {number}");
    }
}
