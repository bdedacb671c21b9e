//! The first scene: one tier with the state in it.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use super::case::Case;
use super::pattern;

/// The files of the first scene, in the order in which they are written. One is larger than the tier.
pub const DIRTY: [(&str, usize); 6] = [
    ("dirty-small", 2),
    ("dirty-large", 600),
    ("dirty-through", 3),
    ("dirty-beyond", 3),
    // Last: so nothing evicts them, and objects with and without a map stay on the tier.
    ("dirty-last", 8),
    ("dirty-over", 4),
];

impl Case {
    /// What the backing store has before anything is mounted: older versions.
    pub fn fill_backing(&self, files: &[(&str, usize)]) {
        for (name, blocks) in files {
            let old: Vec<u8> = (0..*blocks).flat_map(|block| pattern("old", block)).collect();
            fs::write(self.site.path("backing").join(name), old).unwrap();
        }
    }

    /// Writes a file, or the first blocks of one, durably.
    pub fn write(&mut self, name: &'static str, blocks: usize) {
        let path = self.site.path("mnt").join(name);
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).unwrap();
        for block in 0..blocks {
            file.write_all(&pattern(name, block)).unwrap();
        }
        file.sync_all().unwrap();
        self.dirty.push((name, blocks));
    }

    /// Opens a file that the backing store has, and writes into it. It is on the tier before that.
    pub fn write_and_hold(&mut self, name: &'static str, blocks: usize) -> fs::File {
        let path = self.site.path("mnt").join(name);
        fs::read(&path).unwrap();
        let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
        for block in 0..blocks {
            file.write_all(&pattern(name, block)).unwrap();
        }
        self.dirty.push((name, blocks));
        file
    }

    /// Dirty files of every kind: whole, partly resident over a published version, in the spill area
    /// with and without a map.
    pub fn fill_one_tier(&mut self) {
        self.fill_backing(&[
            ("dirty-over", 175),
            ("dirty-through", 175),
            ("dirty-beyond", 600),
            ("dirty-held", 6),
        ]);
        let (code, text) = self.mount();
        assert_eq!(code, 0, "{text}");
        for (name, blocks) in DIRTY {
            self.write(name, blocks);
        }
        let (code, text) = self.umount(&["--no-drain"]);
        assert_eq!(code, 0, "{text}");
    }

    /// Mounts, opens a file, writes into it, and kills the daemon.
    pub fn kill_while_open(&mut self) {
        // With room for all: what is on the tier stays there, however long this takes.
        let (code, text) = self.mount_with("8M", &["--no-supervisor"]);
        assert_eq!(code, 0, "{text}");
        let file = self.write_and_hold("dirty-held", 6);
        self.kill();
        drop(file);
    }

    /// Begins to make the index anew, and ends before that is done.
    pub fn interrupt_a_rebuild(&self) {
        let (code, text) = self.fsck_with("--rebuild", "node.rebuild.copied=1*off->panic");
        assert_ne!(code, 0, "{text}");
        assert!(self.site.path("tier/state/rebuilding").exists(), "{text}");
    }

    /// Makes one more dirty file, while there is room for all: it is on the tier, and nowhere else. Its
    /// name, its object, and what is in it.
    pub fn file_whole_on_the_tier(&mut self) -> (&'static str, PathBuf, Vec<u8>) {
        let (code, text) = self.mount_with("8M", &[]);
        assert_eq!(code, 0, "{text}");
        self.write("dirty-whole", 2);
        let (code, text) = self.umount(&["--no-drain"]);
        assert_eq!(code, 0, "{text}");
        assert!(!self.site.path("backing/dirty-whole").exists());
        let bytes: Vec<u8> = (0..2).flat_map(|block| pattern("dirty-whole", block)).collect();
        let object = self.object_with("tier", &bytes).expect("it is on the tier");
        ("dirty-whole", object, bytes)
    }
}
