//! Listings that the kernel keeps, on a real mount. Skipped, with the reason printed, where there is no
//! `/dev/fuse`.

mod lab;

use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_node::metrics::Op;
use forebay_node::{Node, NodeConfig};
use rustix::fs::{Mode, OFlags, RawDir};

use lab::{Lab, names};

impl Lab {
    fn with(adapt: impl FnOnce(&mut NodeConfig)) -> Option<Self> {
        Self::start(adapt, Node::start)
    }

    fn below(&self, name: &str) -> PathBuf {
        self.home.path().join("backing").join(name)
    }

    /// How many requests it takes to list a directory: two if the kernel has it, for the open and the
    /// close, of which it does not wait for the latter.
    fn requests_to_list(&self, dir: &str) -> u64 {
        let at_rest = || {
            std::thread::sleep(Duration::from_millis(20));
            self.node.metrics().op_seconds.of(Op::Readdir).count()
        };
        let before = at_rest();
        names(&self.path(dir));
        at_rest() - before
    }

    /// Lists a directory until the kernel has it: a close that it has not sent yet has the next open ask.
    fn is_kept(&self, dir: &str) -> bool {
        (0..20).any(|_| self.requests_to_list(dir) <= 2)
    }
}

fn make(dir: &Path, files: std::ops::Range<u32>) {
    for number in files {
        File::create(dir.join(format!("f{number:03}"))).expect("made");
    }
}

#[test]
fn directory_when_listed_again_then_the_kernel_has_it_until_a_name_changes() {
    let Some(lab) = Lab::with(|_| {}) else { return };
    let dir = lab.path("d");
    fs::create_dir(&dir).expect("mkdir");
    make(&dir, 0..30);
    assert!(lab.is_kept("d"));
    type Change<'a> = Box<dyn Fn() + 'a>;
    let changes: [(&str, Change<'_>, usize); 5] = [
        ("create", Box::new(|| make(&dir, 30..31)), 31),
        ("link", Box::new(|| fs::hard_link(dir.join("f000"), dir.join("g")).expect("link")), 32),
        ("rename", Box::new(|| fs::rename(dir.join("g"), dir.join("h")).expect("rename")), 32),
        ("unlink", Box::new(|| fs::remove_file(dir.join("h")).expect("unlink")), 31),
        ("move", Box::new(|| fs::rename(dir.join("f000"), lab.path("m")).expect("move")), 30),
    ];
    for (what, change, count) in changes {
        change();
        assert_eq!(names(&dir).len(), count, "{what}");
        assert!(lab.is_kept("d"), "{what}");
        assert_eq!(names(&dir).len(), count, "{what}, kept");
    }
}

#[test]
fn directory_when_a_file_of_it_is_read_then_listed_with_new_attributes() {
    let Some(lab) = Lab::with(|_| {}) else { return };
    fs::create_dir(lab.path("d")).expect("mkdir");
    make(&lab.path("d"), 0..3);
    fs::write(lab.path("d/f001"), b"contents").expect("written");
    assert!(lab.is_kept("d"));
    assert_eq!(fs::read(lab.path("d/f001")).expect("read"), b"contents");
    assert!(lab.requests_to_list("d") > 2);
    assert!(lab.is_kept("d"));
}

#[test]
fn directory_that_is_kept_when_others_change_it_below_then_seen_after_the_time_out() {
    let short = Duration::from_millis(400);
    let set =
        |config: &mut NodeConfig| (config.attr_timeout, config.entry_timeout) = (short, short);
    let Some(lab) = Lab::with(set) else { return };
    fs::create_dir(lab.below("d")).expect("mkdir");
    make(&lab.below("d"), 0..5);
    assert!(lab.is_kept("d"));
    make(&lab.below("d"), 5..7);
    fs::remove_file(lab.below("d/f000")).expect("removed");
    std::thread::sleep(short * 2);
    assert_eq!(names(&lab.path("d")), ["f001", "f002", "f003", "f004", "f005", "f006"]);
}

/// Its last entry is not in what the kernel keeps meanwhile.
#[test]
fn listing_under_way_when_its_last_entry_goes_and_another_lists_then_shows_what_stays() {
    let Some(lab) = Lab::with(|_| {}) else { return };
    let dir = lab.path("d");
    fs::create_dir(&dir).expect("mkdir");
    make(&dir, 0..100);
    assert!(lab.is_kept("d"));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let fd: OwnedFd = rustix::fs::open(&dir, flags, Mode::empty()).expect("opened");
    // For some ten entries at a time, as programs with small buffers read.
    let mut buffer = [MaybeUninit::uninit(); 320];
    let mut seen = Vec::new();
    let mut entries = RawDir::new(&fd, &mut buffer);
    while let Some(entry) = entries.next() {
        let name = entry.expect("an entry").file_name().to_str().expect("text").to_owned();
        if name.starts_with('f') {
            fs::remove_file(dir.join(&name)).expect("removed");
            seen.push(name);
        }
        // Twice, so that one of them is kept if any may be.
        let left = names(&dir);
        assert_eq!((left.len(), names(&dir)), (100 - seen.len(), left));
    }
    assert_eq!(seen.len(), 100);
    drop(fd);
    fs::remove_dir(&dir).expect("nothing is left in it");
}

#[test]
fn directory_when_several_list_it_and_change_it_then_each_sees_what_it_changed() {
    let Some(lab) = Lab::with(|_| {}) else { return };
    let dir = lab.path("d");
    fs::create_dir(&dir).expect("mkdir");
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let dir = &dir;
            scope.spawn(move || {
                for round in 0..150 {
                    let mine = format!("w{worker}-{round}");
                    File::create(dir.join(&mine)).expect("made");
                    assert!(names(dir).contains(&mine), "{mine} was made");
                    fs::remove_file(dir.join(&mine)).expect("removed");
                    assert!(!names(dir).contains(&mine), "{mine} was removed");
                }
            });
        }
    });
}

#[test]
fn mount_without_time_outs_then_nothing_is_kept() {
    let zero = |config: &mut NodeConfig| config.attr_timeout = Duration::ZERO;
    let Some(lab) = Lab::with(zero) else { return };
    fs::create_dir(lab.path("d")).expect("mkdir");
    assert!(!lab.is_kept("d"));
}
