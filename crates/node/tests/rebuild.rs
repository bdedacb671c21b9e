//! An index that is lost is rebuilt from what the objects say of themselves.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_node::{
    CheckRequest, Context, Ino, NameIn, NewFile, Node, NodeConfig, TierConfig, WritebackPolicy,
};
use forebay_testing::new_dir;

const CONTEXT: Context = Context::DAEMON;
const WRITE: i32 = libc::O_RDWR | libc::O_CREAT;

/// A node and its directories.
struct Rig {
    config: NodeConfig,
    node: Option<Arc<Node>>,
    dir: PathBuf,
}

impl Rig {
    fn new(name: &str) -> Self {
        let dir = new_dir(std::env::temp_dir(), &format!("forebay-rebuild-{name}"));
        std::fs::create_dir_all(dir.join("backing")).unwrap();
        let tier = TierConfig { dir: dir.join("tier"), size_bytes: 16 << 20 };
        std::fs::create_dir_all(&tier.dir).unwrap();
        let mut config = NodeConfig::new(dir.join("backing"), vec![tier]);
        config.writeback = WritebackPolicy::OnEviction;
        let node = Some(Node::start(config.clone()).unwrap());
        Rig { config, node, dir }
    }

    fn node(&self) -> &Arc<Node> {
        self.node.as_ref().expect("it runs")
    }

    /// As programs save safely: a new file, renamed over the old one.
    fn save(&self, name: &str, bytes: &[u8]) {
        let node = self.node();
        let (_, opened) = node
            .create_and_open(&CONTEXT, Ino::ROOT, b"new", NewFile { mode: 0o600, umask: 0 }, WRITE)
            .unwrap();
        node.write(&CONTEXT, opened.fh, 0, bytes).unwrap();
        node.release(opened.fh);
        node.rename(
            &CONTEXT,
            NameIn::new(Ino::ROOT, b"new"),
            NameIn::new(Ino::ROOT, name.as_bytes()),
            0,
        )
        .unwrap();
    }

    /// Stops without a drain, loses the index and rebuilds it.
    fn rebuild(&mut self) {
        assert!(self.node.take().expect("it runs").stop(Duration::from_secs(10)));
        let tier = &self.config.tiers[0].dir;
        std::fs::remove_dir_all(tier.join("state")).unwrap();
        let request = CheckRequest {
            tiers: vec![tier.clone()],
            backing: Some(self.config.backing.clone()),
            rebuild: true,
            ..CheckRequest::default()
        };
        let checked = forebay_node::check(&request, &mut |_| true).unwrap();
        assert_eq!(checked.problems, checked.repaired, "{:?}", checked.details);
        let check = CheckRequest { rebuild: false, ..request };
        let checked = forebay_node::check(&check, &mut |_| true).unwrap();
        assert_eq!(checked.problems, 0, "after the rebuild: {:?}", checked.details);
        self.node = Some(Node::start(self.config.clone()).unwrap());
    }

    /// The contents of all files, read back.
    fn contents(&self) -> Vec<Vec<u8>> {
        let until = std::time::Instant::now() + Duration::from_secs(20);
        let left = self.node().writeback().drain(until, &mut |_| true).unwrap();
        assert_eq!(left.entries, 0);
        let entries = std::fs::read_dir(&self.config.backing).unwrap();
        let files = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        let mut contents: Vec<_> = files.map(|path| std::fs::read(path).unwrap()).collect();
        contents.sort();
        contents
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            node.stop(Duration::from_secs(10));
        }
        std::fs::remove_dir_all(&self.dir).ok();
    }
}

#[test]
fn files_written_under_one_name_when_the_index_is_lost_then_all_come_back() {
    let mut rig = Rig::new("one-name");
    for name in ["a", "b", "c"] {
        rig.save(name, name.as_bytes());
    }
    rig.rebuild();
    assert_eq!(rig.contents(), [b"a", b"b", b"c"]);
}

#[test]
fn file_that_had_no_name_for_a_moment_when_the_index_is_lost_then_it_is_set_aside_and_named() {
    let mut rig = Rig::new("limbo");
    rig.save("kept", b"kept");
    let owner = forebay_store::tier::identity(&rig.config.tiers[0].dir).unwrap().unwrap();
    let limbo = rig.dir.join("backing/.forebay/limbo");
    std::fs::create_dir_all(&limbo).unwrap();
    std::fs::write(limbo.join(format!("{owner}.42f500000000002e")), b"only copy").unwrap();
    rig.rebuild();
    let aside = rig.node().residency().set_aside().list;
    assert_eq!(aside.len(), 1, "{aside:?}");
    assert_eq!(std::fs::read(&aside[0]).unwrap(), b"only copy");
    assert_eq!(rig.contents(), [b"kept"]);
}

#[test]
fn a_file_whose_name_another_has_now_when_the_index_is_lost_then_both_come_back() {
    let mut rig = Rig::new("two-names");
    rig.save("first", b"published");
    assert_eq!(rig.contents(), [b"published"]);
    let node = rig.node();
    node.rename(&CONTEXT, NameIn::new(Ino::ROOT, b"first"), NameIn::new(Ino::ROOT, b"moved"), 0)
        .unwrap();
    let (_, opened) = node
        .create_and_open(&CONTEXT, Ino::ROOT, b"first", NewFile { mode: 0o600, umask: 0 }, WRITE)
        .unwrap();
    node.write(&CONTEXT, opened.fh, 0, b"newer").unwrap();
    node.release(opened.fh);
    rig.rebuild();
    assert_eq!(rig.contents(), [b"newer".to_vec(), b"published".to_vec()]);
}

#[test]
fn file_that_others_changed_in_place_when_the_index_is_lost_then_both_versions_come_back() {
    let mut rig = Rig::new("in-place");
    rig.save("file", b"published");
    assert_eq!(rig.contents(), [b"published"]);
    let node = rig.node();
    let ino = node.lookup(&CONTEXT, Ino::ROOT, b"file").unwrap().unwrap().ino;
    let opened = node.open(&CONTEXT, ino, libc::O_RDWR).unwrap();
    node.write(&CONTEXT, opened.fh, 0, b"ours").unwrap();
    node.release(opened.fh);
    std::fs::write(rig.dir.join("backing/file"), b"of others").unwrap();
    rig.rebuild();
    assert_eq!(rig.contents(), [b"of others".to_vec(), b"oursished".to_vec()]);
    assert_eq!(std::fs::read(rig.dir.join("backing/file")).unwrap(), b"of others");
}

#[test]
fn file_of_which_a_part_is_here_when_others_changed_it_in_place_then_a_rebuild_mixes_no_versions() {
    let mut rig = Rig::new("in-place-part");
    assert!(rig.node.take().unwrap().stop(Duration::from_secs(10)));
    rig.config.extent_bytes = 64 << 10;
    rig.config.fetch_on_open_bytes = 32 << 10;
    let path = rig.dir.join("backing/file");
    std::fs::write(&path, vec![b'1'; 640 << 10]).unwrap();
    let node = Node::start(rig.config.clone()).unwrap();
    let ino = node.lookup(&CONTEXT, Ino::ROOT, b"file").unwrap().unwrap().ino;
    let opened = node.open(&CONTEXT, ino, libc::O_RDWR).unwrap();
    node.write(&CONTEXT, opened.fh, 0, &[b'0'; 64 << 10]).unwrap();
    node.release(opened.fh);
    assert!(node.stop(Duration::from_secs(10)));
    drop(node);
    let theirs = vec![b'2'; 700 << 10];
    std::fs::write(&path, &theirs).unwrap();
    let tier = rig.config.tiers[0].dir.clone();
    std::fs::remove_dir_all(tier.join("state")).unwrap();
    let request = CheckRequest {
        tiers: vec![tier.clone()],
        backing: Some(rig.config.backing.clone()),
        rebuild: true,
        ..CheckRequest::default()
    };
    let checked = forebay_node::check(&request, &mut |_| true).unwrap();
    let said = checked.details.join("\n");
    assert!(said.contains("of file:") && said.contains("set aside as"), "{said}");
    assert_eq!(std::fs::read_dir(tier.join("lost")).unwrap().count(), 2, "object and map");
    rig.node = Some(Node::start(rig.config.clone()).unwrap());
    assert_eq!(rig.contents(), [theirs]);
}

/// A file of the backing store of which a part was overwritten here and synced, and whose map is then
/// damaged by `damage`, as is the index; and what its rebuild says.
fn rebuilt_with_a_bad_map(name: &str, damage: impl Fn(&std::path::Path)) -> (Rig, String) {
    let mut rig = Rig::new(name);
    assert!(rig.node.take().unwrap().stop(Duration::from_secs(10)));
    rig.config.extent_bytes = 64 << 10;
    rig.config.fetch_on_open_bytes = 32 << 10;
    std::fs::write(rig.dir.join("backing/file"), vec![b'1'; 640 << 10]).unwrap();
    let node = Node::start(rig.config.clone()).unwrap();
    let ino = node.lookup(&CONTEXT, Ino::ROOT, b"file").unwrap().unwrap().ino;
    let opened = node.open(&CONTEXT, ino, libc::O_RDWR).unwrap();
    node.write(&CONTEXT, opened.fh, 0, &[b'0'; 64 << 10]).unwrap();
    node.fsync(&CONTEXT, opened.fh, false).unwrap();
    node.release(opened.fh);
    assert!(node.stop(Duration::from_secs(10)));
    drop(node);
    let tier = rig.config.tiers[0].dir.clone();
    let fans = std::fs::read_dir(tier.join("objects")).unwrap();
    let files = fans.flat_map(|fan| std::fs::read_dir(fan.unwrap().path()).unwrap());
    let paths = files.map(|file| file.unwrap().path());
    let maps: Vec<_> = paths.filter(|path| path.extension().is_some()).collect();
    assert_eq!(maps.len(), 1, "{maps:?}");
    damage(&maps[0]);
    std::fs::remove_dir_all(tier.join("state")).unwrap();
    let request = CheckRequest {
        tiers: vec![tier],
        backing: Some(rig.config.backing.clone()),
        rebuild: true,
        ..CheckRequest::default()
    };
    let checked = forebay_node::check(&request, &mut |_| true).unwrap();
    rig.node = Some(Node::start(rig.config.clone()).unwrap());
    (rig, checked.details.join("\n"))
}

#[test]
fn part_of_a_file_whose_map_is_gone_when_the_index_is_lost_then_it_is_set_aside_and_nothing_is_guessed()
 {
    let (rig, said) = rebuilt_with_a_bad_map("no-map", |map| std::fs::remove_file(map).unwrap());
    assert!(said.contains("of file:") && said.contains("set aside as"), "{said}");
    let aside = rig.node().residency().set_aside().list;
    assert_eq!(aside.len(), 1, "{aside:?}");
    assert_eq!(std::fs::read(&aside[0]).unwrap()[..64 << 10], [b'0'; 64 << 10]);
    assert_eq!(rig.contents(), [vec![b'1'; 640 << 10]], "zeros in the place of what was below");
}

#[test]
fn map_beside_a_whole_object_when_the_index_is_lost_then_it_does_not_count() {
    let mut rig = Rig::new("stale-map");
    rig.save("file", &[b'1'; 100 << 10]);
    assert_eq!(rig.contents().len(), 1);
    let node = rig.node().clone();
    let ino = node.lookup(&CONTEXT, Ino::ROOT, b"file").unwrap().unwrap().ino;
    let opened = node.open(&CONTEXT, ino, libc::O_RDWR).unwrap();
    node.write(&CONTEXT, opened.fh, 0, &[b'2'; 100 << 10]).unwrap();
    node.release(opened.fh);
    drop(node);
    assert!(rig.node.take().expect("it runs").stop(Duration::from_secs(10)));
    // As a daemon leaves it that dies after the header says whole, and before the map is removed.
    let tier = forebay_store::tier::DirTier::open(&rig.config.tiers[0].dir).unwrap();
    drop(forebay_store::Tier::create_map(&tier, ino.0, 4096, 100 << 10).unwrap());
    drop(tier);
    rig.node = Some(Node::start(rig.config.clone()).unwrap());
    rig.rebuild();
    assert_eq!(rig.contents(), [vec![b'2'; 100 << 10]]);
}

#[test]
fn names_when_files_and_directories_were_renamed_and_the_index_is_lost_then_the_last_ones() {
    let mut rig = Rig::new("renamed");
    let node = rig.node().clone();
    let dir = node.mkdir(&CONTEXT, Ino::ROOT, b"dir", 0o755, 0).unwrap().ino;
    for (parent, name) in [(dir, "in"), (Ino::ROOT, "linked"), (Ino::ROOT, "gone")] {
        let made = node.create_and_open(
            &CONTEXT,
            parent,
            name.as_bytes(),
            NewFile { mode: 0o600, umask: 0 },
            WRITE,
        );
        let (stat, opened) = made.unwrap();
        node.write(&CONTEXT, opened.fh, 0, name.as_bytes()).unwrap();
        node.release(opened.fh);
        if name == "linked" {
            node.link(&CONTEXT, stat.ino, Ino::ROOT, b"second").unwrap();
        }
    }
    rig.save("saved", b"saved");
    node.rename(&CONTEXT, NameIn::new(Ino::ROOT, b"dir"), NameIn::new(Ino::ROOT, b"other"), 0)
        .unwrap();
    node.unlink(&CONTEXT, Ino::ROOT, b"linked").unwrap();
    node.unlink(&CONTEXT, Ino::ROOT, b"gone").unwrap();
    drop(node);
    rig.rebuild();
    assert_eq!(rig.contents(), [b"linked", &b"saved"[..]]);
    let read = |path: &str| std::fs::read(rig.dir.join("backing").join(path)).ok();
    for (path, contents) in [("other/in", "in"), ("saved", "saved"), ("second", "linked")] {
        assert_eq!(read(path).as_deref(), Some(contents.as_bytes()), "{path}");
    }
    for path in ["dir", "new", "linked", "gone"] {
        assert_eq!(read(path), None, "{path}");
    }
}
