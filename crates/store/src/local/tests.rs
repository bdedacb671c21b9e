use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};

use super::*;

/// `EXT4_IOC_SHUTDOWN` and `XFS_IOC_GOINGDOWN`, with what is not in the log thrown away.
const SHUTDOWN: libc::Ioctl = 0x8004_587d;
const WITHOUT_LOG: u32 = 2;

/// A file system of its own, seen by this thread alone; says why if the machine can't.
fn disk(kind: &str, image: &Path, at: &Path) -> std::result::Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root".into());
    }
    // SAFETY: a plain call; what this thread has open stays open.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err("no mount namespace".into());
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    // XFS takes no less.
    File::create(image).unwrap().set_len(320 << 20).unwrap();
    std::fs::create_dir(at).unwrap();
    let force = if kind == "ext4" { "-F" } else { "-f" };
    let mut make = Command::new(format!("mkfs.{kind}"));
    let mut mount = Command::new("mount");
    for command in
        [make.args(["-q", force]).arg(image), mount.args(["-o", "loop"]).args([image, at])]
    {
        if !command.output().is_ok_and(|done| done.status.success()) {
            return Err(format!("{:?} fails", command.get_program()));
        }
    }
    Ok(())
}

/// Confirms a sync as a file system may that goes down in the middle of it.
fn go_down(fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let how = WITHOUT_LOG;
    // SAFETY: the descriptor is open, and the kernel reads the number, which outlives the call.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), SHUTDOWN, &raw const how) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    Ok(())
}

fn let_go(at: &Path) {
    // A process that another test starts has all descriptors for a moment.
    for _ in 0..1000 {
        if unmount(at, UnmountFlags::empty()).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{} is in use", at.display());
}

#[test]
fn sync_when_its_file_system_goes_down_and_confirms_it_all_the_same_then_fails() {
    let site = tempfile::tempdir().unwrap();
    for kind in ["ext4", "xfs"] {
        for is_dir in [false, true] {
            let name = format!("{kind}-{is_dir}");
            let (image, at) = (site.path().join(format!("{name}.img")), site.path().join(name));
            if let Err(why) = disk(kind, &image, &at) {
                eprintln!("skipped: {why}");
                return;
            }
            let file = at.join("file");
            std::fs::write(&file, "bytes").unwrap();
            let open = File::open(if is_dir { &at } else { &file }).unwrap();
            sync_by(&open, |fd| fs::fsync(fd)).unwrap();
            let synced = sync_by(&open, go_down);
            drop(open);
            let_go(&at);
            assert_eq!(synced, Err(Errno::IO), "{kind}, a directory: {is_dir}");
        }
    }
}
