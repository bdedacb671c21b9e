//! The second scene: two tiers and the state apart from them, with all that is there only now and then.
//!
//! A file that was removed while it is open (`limbo`), an unresolved conflict, an object that was left
//! behind, one that was set aside, a sync that failed, an object that a start could not look at, a file on
//! the second tier, and what a daemon leaves in `tmp` and `spill` that dies while it publishes.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{IFlags, ioctl_setflags};

use super::case::Case;
use super::{HEADER, files_below, pattern};
use crate::site::wait_for;

/// Blocks of the small files.
const SMALL: usize = 2;

/// The dirty files, in the order in which they are written. The last ones are larger than the first tier has
/// room for: they send small ones to the second tier, and are in the spill area in part.
const DIRTY: [(&str, usize); 8] = [
    ("dirty-aside", SMALL),
    ("dirty-small", SMALL),
    ("dirty-through", 3),
    ("dirty-beyond", 3),
    ("dirty-last", 8),
    ("dirty-over", 4),
    ("dirty-large", 600),
    ("dirty-late", 150),
];

impl Case {
    pub fn fill_two_tiers(&mut self) {
        self.fill_backing(&[
            ("dirty-over", 175),
            ("dirty-through", 175),
            ("dirty-beyond", 600),
            ("dirty-held", 6),
            ("removed", 600),
            ("fought", SMALL),
        ]);
        self.set_one_aside();
        let removed = self.remove_while_open();
        self.fight();
        let left = self.leave_behind();
        for (name, blocks) in DIRTY {
            self.write(name, blocks);
        }
        let held = self.write_and_hold("dirty-held", 6);
        let numbers = ["dirty-small", "dirty-large", "dirty-over"].map(|name| self.number_of(name));
        self.kill();
        drop((removed, held));
        set_flags(&left, IFlags::empty());
        let [small, large, over] = numbers;
        self.leave_notes([small, over]);
        self.leave_temporaries([small, large]);
    }

    /// Mounts with an object whose header is damaged: it is set aside, and its file gets other bytes.
    fn set_one_aside(&mut self) {
        let (code, text) = self.mount();
        assert_eq!(code, 0, "{text}");
        let old = self.blocks("older-aside");
        fs::write(self.site.path("mnt/dirty-aside"), &old).unwrap();
        let (code, text) = self.umount(&["--no-drain"]);
        assert_eq!(code, 0, "{text}");
        let object = self.object_with("tier", &old).expect("it is on the tier");
        rustix::fs::removexattr(&object, HEADER).unwrap();
        let (code, text) = self.mount_with("2M", &["--no-supervisor"]);
        assert_eq!(code, 0, "{text}");
        assert_eq!(files_below(&self.site.path("tier/lost")).len(), 1);
        fs::write(self.site.path("mnt/dirty-aside"), "in between").unwrap();
        self.kept.push(("older-aside", SMALL));
    }

    fn blocks(&self, name: &str) -> Vec<u8> {
        (0..SMALL).flat_map(|block| pattern(name, block)).collect()
    }

    /// Removes a file that is open, and of which the tiers do not have all.
    fn remove_while_open(&mut self) -> File {
        let path = self.site.path("mnt/removed");
        let open = File::open(&path).unwrap();
        fs::remove_file(path).unwrap();
        self.sync();
        assert_eq!(files_below(&self.site.path("backing/.forebay/limbo")).len(), 1);
        self.removed.push("removed");
        open
    }

    /// Changes a file here and below.
    fn fight(&mut self) {
        let [ours, theirs] = ["ours", "theirs"].map(|name| self.blocks(name));
        fs::write(self.site.path("mnt/fought"), ours).unwrap();
        fs::write(self.site.path("backing/fought"), theirs).unwrap();
        self.sync();
        assert!(self.site.path("state/conflicts").exists());
        self.kept.extend([("ours", SMALL), ("theirs", SMALL)]);
    }

    fn sync(&self) {
        let (code, text) = self.site.run(&["sync", &self.site.text("mnt")]);
        assert_eq!(code, 0, "{text}");
    }

    /// Removes a file whose object the tier does not give up. The directory of the object, in which
    /// nothing can be removed.
    fn leave_behind(&self) -> PathBuf {
        let path = self.site.path("mnt/left");
        let bytes = self.blocks("left");
        fs::write(&path, &bytes).unwrap();
        let object = self.object_with("tier", &bytes).expect("it is on the tier");
        let dir = object.parent().unwrap().to_owned();
        if set_flags(&dir, IFlags::APPEND) {
            fs::remove_file(path).unwrap();
            let notes = self.site.path("state/left-behind");
            let limit = std::time::Duration::from_secs(10);
            assert!(wait_for(limit, || files_below(&notes).len() == 1));
        }
        dir
    }

    /// The number of a file, as the tiers know it.
    fn number_of(&self, name: &str) -> u64 {
        fs::metadata(self.site.path("mnt").join(name)).unwrap().ino()
    }

    /// The identity of the mount, as the private area knows it: that of its first tier.
    fn owner(&self) -> String {
        let notes = files_below(&self.site.path("backing/.forebay/mounts"));
        notes[0].file_name().unwrap().to_str().unwrap().to_owned()
    }

    /// Notes of the state that only a device in trouble brings about.
    fn leave_notes(&self, [small, over]: [u64; 2]) {
        let failed: Vec<u8> = [small, over].iter().flat_map(|ino| ino.to_le_bytes()).collect();
        fs::write(self.site.path("state/failed-syncs"), failed).unwrap();
        let unseen = self.site.path("state/unseen");
        fs::create_dir_all(&unseen).unwrap();
        fs::write(unseen.join(format!("{over:016x}.{}", self.owner())), "").unwrap();
    }

    /// What a daemon leaves that dies while it publishes.
    fn leave_temporaries(&mut self, [small, large]: [u64; 2]) {
        let (owner, private) = (self.owner(), self.site.path("backing/.forebay"));
        let tmp = private.join("tmp");
        fs::create_dir_all(&tmp).unwrap();
        fs::write(tmp.join(format!("t.{owner}.{small:x}.1234")), self.blocks("begun")).unwrap();
        // A version of others, which came in between.
        let theirs = tmp.join(format!("x.{owner}.{small:x}.1.2.3.4.5"));
        fs::write(theirs, self.blocks("others")).unwrap();
        self.kept.push(("others", SMALL));
        // The file itself, which was about to be exchanged with a published one.
        let spill = private.join(format!("spill/{owner}.{large:x}"));
        let own = fs::metadata(&spill).unwrap().ino();
        let moved = private.join(format!("spill/y.{owner}.{large:x}.{own:x}.2.3.4.5"));
        fs::rename(spill, moved).unwrap();
    }
}

/// Sets the flags of a directory, where its file system has them.
fn set_flags(dir: &Path, flags: IFlags) -> bool {
    let done = ioctl_setflags(File::open(dir).unwrap(), flags);
    if let Err(error) = done {
        eprintln!("no object is left behind: {}: {error}", dir.display());
    }
    done.is_ok()
}
