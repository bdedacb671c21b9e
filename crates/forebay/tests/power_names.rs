//! What one sync makes durable, on the layout that the guide shows: one tier with the state on it, here on
//! an ext4 whose power is cut right after. Names, and what `O_SYNC` and its like have acknowledged.

mod site;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::mount::UnmountFlags;
use site::*;

/// `EXT4_IOC_SHUTDOWN`, with what is neither in the log nor on the disk thrown away.
const SHUTDOWN: libc::Ioctl = 0x8004_587d;
const WITHOUT_LOG: u32 = 2;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A machine with a disk for the tier and the state, of which the power can be cut.
struct Machine {
    site: Site,
    boots: u32,
}

impl Machine {
    /// Nothing where there are no loop devices.
    fn new() -> Option<Self> {
        let site = Site::new();
        fs::create_dir(site.path("disk")).unwrap();
        let image = site.text("image");
        File::create(&image).unwrap().set_len(256 << 20).unwrap();
        let args =
            ["-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0", &image];
        let (code, text) = outcome(site.command("mkfs.ext4").args(args));
        if code != 0 {
            eprintln!("skipped: mkfs.ext4: {text}");
            return None;
        }
        fs::write(site.path("boot"), "").unwrap();
        rustix::mount::mount_bind(site.path("boot"), BOOT_ID).unwrap();
        let mut machine = Self { site, boots: 0 };
        machine.boot().then_some(machine)
    }

    /// Another boot id, and the disk is mounted.
    fn boot(&mut self) -> bool {
        self.boots += 1;
        let id = format!("00000000-0000-4000-8000-{:012x}\n", self.boots);
        fs::write(self.site.path("boot"), id).unwrap();
        let (image, disk) = (self.site.text("image"), self.site.text("disk"));
        let (code, text) = outcome(self.site.command("mount").args(["-o", "loop", &image, &disk]));
        if code != 0 {
            eprintln!("skipped: mount: {text}");
        }
        code == 0
    }

    fn mount(&self) {
        let tier = format!("{}=64M", self.site.text("disk/tier"));
        let (backing, mnt) = (self.site.text("backing"), self.site.text("mnt"));
        let how = ["--writeback", "1h", "--no-supervisor", "--attr-timeout", "1h"];
        let args = [&["mount", &backing, &mnt, "--tier", &tier][..], &how].concat();
        let (code, text) = self.site.run(&args);
        assert_eq!(code, 0, "{text}");
    }

    /// The power goes: what the disk has not got is gone, and nobody is left to bring it.
    fn cut(&mut self, open: Option<File>) {
        let daemon = self.site.daemon();
        let disk = File::open(self.site.path("disk")).unwrap();
        let how = WITHOUT_LOG;
        // SAFETY: the descriptor is open, and the kernel reads the number, which outlives the call.
        let done = unsafe { libc::ioctl(disk.as_raw_fd(), SHUTDOWN, &raw const how) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        drop(disk);
        signal(daemon, rustix::process::Signal::KILL);
        assert!(wait_for(Duration::from_secs(10), || !alive(daemon)));
        // The kernel has what it reads and writes by itself open as long as programs have.
        drop(open);
        let _gone = rustix::mount::unmount(self.site.path("mnt"), UnmountFlags::DETACH);
        let disk = self.site.path("disk");
        let gone = || rustix::mount::unmount(&disk, UnmountFlags::empty()).is_ok();
        assert!(wait_for(Duration::from_secs(20), gone), "the disk is in use");
        assert!(self.boot());
        self.mount();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.site.path("mnt"), UnmountFlags::DETACH);
        let _ = rustix::mount::unmount(self.site.path("disk"), UnmountFlags::DETACH);
        let _ = rustix::mount::unmount(BOOT_ID, UnmountFlags::DETACH);
    }
}

const BYTES: &[u8] = b"what was acknowledged";

fn put(path: &Path, bytes: &[u8]) -> File {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn synced(path: &Path) -> Option<File> {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    Some(file)
}

fn has(path: &Path, bytes: &[u8]) -> bool {
    fs::read(path).is_ok_and(|found| found == bytes)
}

/// What is there before, which is durable; what is done and synced; and what is there after the cut.
struct Case {
    what: &'static str,
    before: fn(&Path),
    /// Gives what is open when the power goes.
    synced: fn(&Path) -> Option<File>,
    holds: fn(&Path) -> bool,
}

const NOTHING: fn(&Path) = |_| {};

fn old(mnt: &Path) {
    put(&mnt.join("old"), b"the old version").sync_all().unwrap();
    synced(mnt);
}

fn written_with(mnt: &Path, name: &str, flags: i32) -> Option<File> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .custom_flags(flags)
        .open(mnt.join(name))
        .unwrap();
    file.write_all(BYTES).unwrap();
    Some(file)
}

const NAMES: [Case; 9] = [
    Case {
        what: "a new file, synced",
        before: NOTHING,
        synced: |mnt| {
            put(&mnt.join("new"), BYTES);
            synced(&mnt.join("new"))
        },
        holds: |mnt| has(&mnt.join("new"), BYTES),
    },
    Case {
        what: "a new file in new directories, synced",
        before: NOTHING,
        synced: |mnt| {
            fs::create_dir_all(mnt.join("a/b")).unwrap();
            put(&mnt.join("a/b/new"), BYTES);
            synced(&mnt.join("a/b/new"))
        },
        holds: |mnt| has(&mnt.join("a/b/new"), BYTES),
    },
    Case {
        what: "another name of a file, synced",
        before: old,
        synced: |mnt| {
            fs::hard_link(mnt.join("old"), mnt.join("name")).unwrap();
            synced(&mnt.join("name"))
        },
        holds: |mnt| has(&mnt.join("name"), b"the old version") && mnt.join("old").exists(),
    },
    Case {
        what: "a renamed file, synced",
        before: old,
        synced: |mnt| {
            fs::rename(mnt.join("old"), mnt.join("name")).unwrap();
            synced(&mnt.join("name"))
        },
        holds: |mnt| has(&mnt.join("name"), b"the old version") && !mnt.join("old").exists(),
    },
    Case {
        what: "a new directory, and its parent synced",
        before: NOTHING,
        synced: |mnt| {
            fs::create_dir(mnt.join("dir")).unwrap();
            synced(mnt)
        },
        holds: |mnt| mnt.join("dir").is_dir(),
    },
    Case {
        what: "a rename, and the directory synced",
        before: old,
        synced: |mnt| {
            fs::rename(mnt.join("old"), mnt.join("name")).unwrap();
            synced(mnt)
        },
        holds: |mnt| has(&mnt.join("name"), b"the old version") && !mnt.join("old").exists(),
    },
    Case {
        what: "a removal, and the directory synced",
        before: old,
        synced: |mnt| {
            fs::remove_file(mnt.join("old")).unwrap();
            synced(mnt)
        },
        holds: |mnt| !mnt.join("old").exists(),
    },
    Case {
        what: "a symbolic link, and the directory synced",
        before: NOTHING,
        synced: |mnt| {
            std::os::unix::fs::symlink("target", mnt.join("link")).unwrap();
            synced(mnt)
        },
        holds: |mnt| fs::read_link(mnt.join("link")).is_ok_and(|to| to == Path::new("target")),
    },
    Case {
        what: "a file saved safely: written, synced, renamed, the directory synced",
        before: old,
        synced: |mnt| {
            put(&mnt.join("new"), BYTES).sync_all().unwrap();
            fs::rename(mnt.join("new"), mnt.join("old")).unwrap();
            synced(mnt)
        },
        holds: |mnt| has(&mnt.join("old"), BYTES) && !mnt.join("new").exists(),
    },
];

const WRITES: [Case; 9] = [
    Case {
        what: "a new file, written with O_SYNC",
        before: NOTHING,
        synced: |mnt| written_with(mnt, "new", libc::O_SYNC),
        holds: |mnt| has(&mnt.join("new"), BYTES),
    },
    Case {
        what: "a new file, written with O_DSYNC",
        before: NOTHING,
        synced: |mnt| written_with(mnt, "new", libc::O_DSYNC),
        holds: |mnt| has(&mnt.join("new"), BYTES),
    },
    Case {
        what: "a file that is here, written over with O_DSYNC",
        before: |mnt| old(mnt),
        synced: |mnt| written_with(mnt, "old", libc::O_DSYNC | libc::O_TRUNC),
        holds: |mnt| has(&mnt.join("old"), BYTES),
    },
    Case {
        what: "a copy of a file of the backing store, written over with O_DSYNC",
        before: NOTHING,
        synced: |mnt| {
            fs::read(mnt.join("below")).unwrap();
            let mut how = OpenOptions::new();
            let file = how.write(true).custom_flags(libc::O_DSYNC).open(mnt.join("below")).unwrap();
            file.write_all_at(BYTES, 4096).unwrap();
            Some(file)
        },
        holds: |mnt| {
            fs::read(mnt.join("below")).is_ok_and(|found| found[4096..].starts_with(BYTES))
        },
    },
    Case {
        what: "a copy of a file of the backing store, stored into through a mapping, msync",
        before: NOTHING,
        synced: |mnt| {
            fs::read(mnt.join("below")).unwrap();
            let file = File::options().read(true).write(true).open(mnt.join("below")).unwrap();
            use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync};
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a fresh range of the kernel's choice, within the file.
            unsafe {
                let map =
                    mmap(std::ptr::null_mut(), 8192, prot, MapFlags::SHARED, &file, 0).unwrap();
                let bytes = map.cast::<u8>();
                std::ptr::copy_nonoverlapping(BYTES.as_ptr(), bytes.add(4096), BYTES.len());
                msync(map, 8192, MsyncFlags::SYNC).unwrap();
                rustix::mm::munmap(map, 8192).unwrap();
            }
            Some(file)
        },
        holds: |mnt| {
            fs::read(mnt.join("below")).is_ok_and(|found| found[4096..].starts_with(BYTES))
        },
    },
    Case {
        what: "a file that is here, appended to with RWF_DSYNC",
        before: old,
        synced: |mnt| {
            let file = File::options().write(true).open(mnt.join("old")).unwrap();
            let bytes = [std::io::IoSlice::new(BYTES)];
            let flags = rustix::io::ReadWriteFlags::DSYNC;
            let written = rustix::io::pwritev2(&file, &bytes, 15, flags).unwrap();
            assert_eq!(written, BYTES.len());
            Some(file)
        },
        holds: |mnt| has(&mnt.join("old"), &[b"the old version", BYTES].concat()),
    },
    Case {
        what: "a file that is here, appended to with RWF_SYNC",
        before: old,
        synced: |mnt| {
            let file = File::options().write(true).open(mnt.join("old")).unwrap();
            let bytes = [std::io::IoSlice::new(BYTES)];
            let flags = rustix::io::ReadWriteFlags::SYNC;
            let written = rustix::io::pwritev2(&file, &bytes, 15, flags).unwrap();
            assert_eq!(written, BYTES.len());
            Some(file)
        },
        holds: |mnt| has(&mnt.join("old"), &[b"the old version", BYTES].concat()),
    },
    Case {
        what: "a file that is here, which gets a copy of a part of another through O_SYNC",
        before: old,
        synced: |mnt| {
            let file = synchronous(&mnt.join("old"));
            let from = File::open(mnt.join("below")).unwrap();
            let mut at = 15;
            let copied = rustix::fs::copy_file_range(from, None, &file, Some(&mut at), 5000);
            assert_eq!(copied, Ok(5000));
            Some(file)
        },
        holds: |mnt| has(&mnt.join("old"), &[&b"the old version"[..], &[b'b'; 5000]].concat()),
    },
    Case {
        what: "a file that is here, allocated beyond its end through O_SYNC",
        before: old,
        synced: |mnt| {
            let file = synchronous(&mnt.join("old"));
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 9000).unwrap();
            Some(file)
        },
        holds: |mnt| has(&mnt.join("old"), &[&b"the old version"[..], &[0; 8985]].concat()),
    },
];

fn synchronous(path: &Path) -> File {
    OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(path).unwrap()
}

fn cut_after(cases: &[Case]) {
    if !can_mount() {
        return;
    }
    use_own_mounts();
    for case in cases {
        let Some(mut machine) = Machine::new() else { return };
        fs::write(machine.site.path("backing/below"), vec![b'b'; 20_000]).unwrap();
        machine.mount();
        let mnt = machine.site.path("mnt");
        (case.before)(&mnt);
        let open = (case.synced)(&mnt);
        machine.cut(open);
        assert!((case.holds)(&mnt), "{}: lost by the power cut", case.what);
        let (code, text) = machine.site.run(&["umount", &machine.site.text("mnt")]);
        assert_eq!(code, 0, "{}: {text}", case.what);
        assert!((case.holds)(&machine.site.path("backing")), "{}: not written back", case.what);
        let (code, text) = machine.site.run(&["fsck", &machine.site.text("disk/tier")]);
        assert_eq!(code, 0, "{}: {text}", case.what);
    }
}

#[test]
fn names_when_the_power_goes_right_after_a_sync_then_are_as_they_were_at_the_sync() {
    cut_after(&NAMES);
}

#[test]
fn writes_that_sync_by_themselves_when_the_power_goes_right_after_then_are_there() {
    cut_after(&WRITES);
}
