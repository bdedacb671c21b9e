//! What lies on a file system that is mounted below the root of the backing store is durable when it was synced.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_store::backing::{DirBacking, SetAttributes};
use forebay_store::{BackingStore, Dir};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};

/// `EXT4_IOC_SHUTDOWN`, with what is neither in the log nor on the disk thrown away.
const SHUTDOWN: libc::Ioctl = 0x8004_587d;
const WITHOUT_LOG: u32 = 2;

/// An ext4 of its own, seen by this thread alone; says why if the machine can't.
fn disk(image: &Path, at: &Path) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root".into());
    }
    // SAFETY: a plain call; what this thread has open stays open.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err("no mount namespace".into());
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    File::create(image).unwrap().set_len(64 << 20).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(image).output();
    if !made.is_ok_and(|made| made.status.success()) {
        return Err("mkfs.ext4 fails".into());
    }
    std::fs::create_dir(at).unwrap();
    mounted(image, at).then_some(()).ok_or_else(|| "mount: no loop device".into())
}

fn mounted(image: &Path, at: &Path) -> bool {
    let mount = Command::new("mount").args(["-o", "loop"]).args([image, at]).output();
    mount.is_ok_and(|mount| mount.status.success())
}

/// The power goes and comes back.
fn cut_power(image: &Path, at: &Path) {
    let disk = File::open(at).unwrap();
    let how = WITHOUT_LOG;
    // SAFETY: the descriptor is open, and the kernel reads the number, which outlives the call.
    let done = unsafe { libc::ioctl(disk.as_raw_fd(), SHUTDOWN, &raw const how) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    drop(disk);
    let begin = Instant::now();
    // A process that another test starts has all descriptors for a moment.
    while let Err(error) = unmount(at, UnmountFlags::empty()) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(mounted(image, at));
}

#[test]
fn file_on_a_disk_below_the_root_when_the_whole_store_is_synced_then_durable() {
    let site = tempfile::tempdir().unwrap();
    let root = site.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let (image, at) = (site.path().join("image"), root.join("nested"));
    if let Err(why) = disk(&image, &at) {
        eprintln!("skipped: {why}");
        return;
    }
    let store = DirBacking::open(&root, "n").unwrap();
    std::fs::write(at.join("file"), "bytes").unwrap();
    store.sync().unwrap();
    cut_power(&image, &at);
    assert_eq!(std::fs::read(at.join("file")).unwrap(), b"bytes");
    unmount(&at, UnmountFlags::DETACH).unwrap();
}

#[test]
fn symbolic_link_on_a_disk_below_the_root_when_synced_then_durable() {
    let site = tempfile::tempdir().unwrap();
    let root = site.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let (image, at) = (site.path().join("image"), root.join("nested"));
    if let Err(why) = disk(&image, &at) {
        eprintln!("skipped: {why}");
        return;
    }
    let link = OsStr::new("link");
    let store = DirBacking::open(&root, "n").unwrap();
    let dir: Dir = store.open_dir(&store.root(), OsStr::new("nested")).unwrap();
    store.symlink(OsStr::new("to"), &dir, link).unwrap();
    let held = store.hold(&dir, link).unwrap();
    let owner = SetAttributes { uid: Some(12), gid: Some(34), ..SetAttributes::default() };
    store.set_attributes(&held, OsStr::new(""), &owner).unwrap();
    store.sync_held(&[held]).unwrap();
    drop(dir);
    cut_power(&image, &at);
    let found = at.join("link").symlink_metadata().unwrap();
    assert_eq!((found.uid(), found.gid()), (12, 34));
    unmount(&at, UnmountFlags::DETACH).unwrap();
}
