//! Namespaces that an older version, killed at the wrong moment, could have left: what is acknowledged
//! there never gets to the backing store, or nothing ends that waits for it. The check sees each of them,
//! and a repair gets the mount out of it without loss.

mod rig;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_meta::{Embedded, EmbeddedOptions, Engine, Key, MiniTransaction, Write};
use forebay_node::{CheckRequest, Checked, Ino, NewFile};
use rig::{CONTEXT, MIB, Rig, noise};

/// What the keys of the namespace begin with, as the reference of its format says.
const RECORD: u8 = b'I';
const ENTRY: u8 = b'D';
const PLACE: u8 = b'Q';
const SETTING: u8 = b'S';

/// What is in the mount: files that were written back, files that were not, in a directory and beside it.
struct Scene {
    rig: Rig,
    dir: Ino,
    /// A file that nobody has synced, of which a test takes the record.
    gone: Ino,
}

const FILES: [(&str, u64); 4] = [("old", 1), ("new", 2), ("dir/old", 3), ("dir/new", 4)];

fn bytes_of(seed: u64) -> Vec<u8> {
    noise(seed, 20_000 + seed)
}

impl Scene {
    fn new() -> Self {
        let rig = Rig::small(8 * MIB);
        let dir = rig.node().mkdir(&CONTEXT, Ino::ROOT, b"dir", 0o755, 0).unwrap().ino;
        for part in ["old", "new"] {
            for (path, seed) in FILES.into_iter().filter(|(path, _)| path.ends_with(part)) {
                let (parent, name) = match path.split_once('/') {
                    Some((_, name)) => (dir, name),
                    None => (Ino::ROOT, path),
                };
                let (node, name) = (rig.node(), name.as_bytes());
                let new = NewFile { mode: 0o644, umask: 0o022 };
                let made = node.create_and_open(&CONTEXT, parent, name, new, libc::O_RDWR);
                let fh = made.unwrap().1.fh;
                rig.write(fh, 0, &bytes_of(seed));
                node.fsync(&CONTEXT, fh, false).unwrap();
                node.release(fh);
            }
            if part == "old" {
                rig.drain();
            }
        }
        let gone = rig.create("gone");
        rig.write(gone, 0, b"not acknowledged");
        rig.node().release(gone);
        let gone = rig.ino("gone");
        let mut scene = Scene { rig, dir, gone };
        scene.rig.crash();
        scene
    }

    /// Changes the keys of the namespace, which nobody uses meanwhile.
    fn edit(&self, change: impl Fn(&Key, &[u8]) -> Option<Write>) -> usize {
        let path = self.rig.dir.join("tier0/state/meta");
        let engine = Embedded::open(&path, &EmbeddedOptions::default()).unwrap();
        let keys = engine.sweep(None, 10_000).unwrap();
        let mut edit = MiniTransaction::default();
        edit.write.extend(keys.iter().filter_map(|(key, value)| change(key, value)));
        engine.execute(&edit).unwrap();
        engine.sync().unwrap();
        edit.write.len()
    }

    fn fsck(&self, repair: bool) -> Checked {
        let tiers = vec![self.rig.dir.join("tier0")];
        let request = CheckRequest {
            tiers,
            backing: Some(self.rig.backing()),
            repair,
            ..CheckRequest::default()
        };
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            match forebay_node::check(&request, &mut |_| true) {
                // A thread of the node before is at its last breath.
                Err(error) if error.to_string().contains("in use") && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                checked => return checked.unwrap(),
            }
        }
    }

    /// Whether a mount of it does not come to an end: something waits that no turn can see to, or
    /// something that was acknowledged is not in the backing store afterwards.
    fn is_stuck(&mut self) -> bool {
        self.rig.start();
        let until = Instant::now() + Duration::from_secs(3);
        let left = self.rig.node().writeback().drain(until, &mut |_| true);
        let ends = left.is_ok_and(|left| (left.entries, left.bytes) == (0, 0));
        self.rig.crash();
        !ends || !self.missing().is_empty()
    }

    /// Files of whose bytes the backing store has nothing anywhere.
    fn missing(&self) -> Vec<&'static str> {
        let mut found = BTreeSet::new();
        collect(&self.rig.backing(), &mut found);
        let missing = FILES.into_iter().filter(|(_, seed)| !found.contains(&bytes_of(*seed)));
        missing.map(|(path, _)| path).collect()
    }

    /// What the mount shows under a path.
    fn on_the_mount(&self, path: &str) -> Option<Vec<u8>> {
        let node = self.rig.node();
        let mut at = Ino::ROOT;
        for name in path.split('/') {
            at = node.lookup(&CONTEXT, at, name.as_bytes()).unwrap()?.ino;
        }
        let fh = node.open(&CONTEXT, at, libc::O_RDONLY).unwrap().fh;
        let bytes = self.rig.read_all(fh);
        node.release(fh);
        Some(bytes)
    }

    /// The check sees what is wrong, and changes nothing; a repair sees to all of it; the mount ends then,
    /// with everything that was acknowledged, and none of it twice.
    fn gets_out(mut self, what: &str, stays: &[&str]) {
        let seen = self.fsck(false);
        assert!(seen.problems > 0, "{what}: the check does not see it");
        let again = self.fsck(false);
        assert_eq!(again.problems, seen.problems, "{what}: a look has changed something");
        let repaired = self.fsck(true);
        assert_eq!(repaired.problems, repaired.repaired, "{what}: {repaired:?}");
        assert_eq!(self.fsck(false).problems, 0, "{what}: {repaired:?}");
        self.rig.start();
        self.rig.drain();
        assert_eq!(self.rig.node().writeback().conflicts().0, 0, "{what}");
        assert_eq!(self.missing(), [] as [&str; 0], "{what}: {repaired:?}");
        for path in stays {
            let (_, seed) = FILES.into_iter().find(|(name, _)| name == path).unwrap();
            assert!(self.rig.plain(path) == bytes_of(seed), "{what}: {path} is another");
            let shown = self.on_the_mount(path);
            assert!(shown == Some(bytes_of(seed)), "{what}: {path} is another on the mount");
        }
        assert!(self.rig.node().stop(Duration::from_secs(10)), "{what}: it does not end");
        self.rig.node = None;
        assert_eq!(self.fsck(false).problems, 0, "{what}: after the mount");
    }
}

fn collect(dir: &Path, found: &mut BTreeSet<Vec<u8>>) {
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            if entry.file_name() != ".forebay" {
                collect(&entry.path(), found);
            }
        } else {
            found.insert(std::fs::read(entry.path()).unwrap());
        }
    }
}

fn is(tag: u8, key: &Key) -> bool {
    key.bytes().first() == Some(&tag)
}

fn is_record_of(ino: Ino, key: &Key) -> bool {
    is(RECORD, key) && key.bytes()[1..] == ino.0.to_be_bytes()
}

const ALL: [&str; 4] = ["old", "new", "dir/old", "dir/new"];

#[test]
fn inode_of_the_backlog_that_does_not_exist_when_repaired_then_the_mount_drains() {
    let mut scene = Scene::new();
    let gone = scene.gone;
    let edited = scene.edit(|key, _| is_record_of(gone, key).then(|| Write::Delete(key.clone())));
    assert_eq!(edited, 1, "it has no record");
    assert!(scene.is_stuck(), "it is seen to by itself");
    scene.gets_out("an inode that does not exist", &ALL);
}

#[test]
fn files_without_their_places_in_the_backlog_when_repaired_then_they_get_to_the_backing_store() {
    let mut scene = Scene::new();
    let lost = scene.edit(|key, _| is(PLACE, key).then(|| Write::Delete(key.clone())));
    assert!(lost >= 2, "{lost} places");
    assert!(scene.is_stuck(), "nothing waits for what no turn comes to");
    scene.gets_out("no places in the backlog", &ALL);
}

#[test]
fn count_of_the_backlog_that_is_too_high_when_repaired_then_a_drain_ends() {
    let mut scene = Scene::new();
    let edited = scene.edit(|key, value| {
        let is_count = is(SETTING, key) && key.bytes()[1..].ends_with(b"counts");
        is_count.then(|| {
            let mut value = value.to_vec();
            // Behind the version: field 1, the inodes; field 2, how many of them wait.
            assert_eq!((value[1], value[3]), (0x08, 0x10), "{value:?}");
            value[4] += 5;
            Write::Put(key.clone(), value)
        })
    });
    assert_eq!(edited, 1, "there is no count");
    assert!(scene.is_stuck(), "it is seen to by itself");
    scene.gets_out("a count that is too high", &ALL);
}

#[test]
fn directory_that_is_lost_when_repaired_then_what_is_in_it_gets_to_the_backing_store() {
    let mut scene = Scene::new();
    let dir = scene.dir;
    let edited = scene.edit(|key, _| is_record_of(dir, key).then(|| Write::Delete(key.clone())));
    assert_eq!(edited, 1, "it has no record");
    assert!(scene.is_stuck(), "what is in it has got to the backing store");
    scene.gets_out("a lost directory", &["old", "new", "dir/old"]);
}

#[test]
fn directory_whose_entries_are_lost_when_repaired_then_nothing_in_it_is_lost() {
    let mut scene = Scene::new();
    let dir = scene.dir;
    let in_dir = |key: &Key| is(ENTRY, key) && key.bytes()[1..9] == dir.0.to_be_bytes();
    let edited = scene.edit(|key, _| in_dir(key).then(|| Write::Delete(key.clone())));
    assert!(edited >= 2, "{edited} entries");
    scene.rig.start();
    assert_eq!(scene.on_the_mount("dir/new"), None, "nothing is lost by it");
    scene.rig.crash();
    scene.gets_out("lost entries", &ALL);
}
