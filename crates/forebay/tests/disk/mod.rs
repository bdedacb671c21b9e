//! A disk of its own, for one test.
#![allow(dead_code, missing_docs, reason = "each user of this module needs a part of it")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::site::{Site, outcome, wait_for};

/// Takes all room of a disk.
pub fn fill(disk: &Path) -> PathBuf {
    let path = disk.join("filler");
    let mut filler = fs::File::create(&path).unwrap();
    for chunk in [1 << 20, 4096] {
        while filler.write_all(&vec![0; chunk]).is_ok() {}
    }
    path
}

/// An ext4 file system in a file, for one test.
pub struct Disk {
    pub dir: PathBuf,
    device: String,
}

impl Disk {
    /// Nothing where there are no loop devices or tools.
    pub fn new(site: &Site, name: &str, size: u64) -> Option<Self> {
        let (image, dir) = (site.path(&format!("{name}.img")), site.path(name));
        fs::File::create(&image).unwrap().set_len(size).unwrap();
        fs::create_dir(&dir).unwrap();
        let image = image.to_str().unwrap();
        let (made, _) = outcome(site.command("mkfs.ext4").args(["-q", "-b", "4096", image]));
        let (looped, device) = outcome(site.command("losetup").args(["-f", "--show", image]));
        if made != 0 || looped != 0 {
            eprintln!("skipped: no loop device with ext4");
            return None;
        }
        let disk = Disk { dir, device: device.trim().to_owned() };
        let (code, text) = outcome(site.command("mount").arg(&disk.device).arg(&disk.dir));
        assert_eq!(code, 0, "{text}");
        Some(disk)
    }

    /// As the kernel does after an error that the file system finds in itself, by default.
    pub fn make_read_only(&self, site: &Site) {
        let dir = self.dir.to_str().unwrap();
        let how = ["-o", "remount,errors=remount-ro", dir];
        let (code, text) = outcome(site.command("mount").args(how));
        assert_eq!(code, 0, "{text}");
        let name = Path::new(&self.device).file_name().unwrap().to_str().unwrap();
        fs::write(format!("/sys/fs/ext4/{name}/trigger_fs_error"), "x").unwrap();
        assert!(fs::write(self.dir.join("probe"), "").is_err(), "it takes files");
    }

    /// As an administrator does then.
    pub fn repair(&self, site: &Site) {
        let (code, text) = outcome(site.command("umount").arg(&self.dir));
        assert_eq!(code, 0, "{text}");
        // Another test's namespace may have a copy of the mount for a moment.
        let check = || outcome(site.command("e2fsck").args(["-fy", &self.device])).0;
        assert!(wait_for(Duration::from_secs(60), || check() < 4), "it is not repaired");
        let (code, text) = outcome(site.command("mount").arg(&self.device).arg(&self.dir));
        assert_eq!(code, 0, "{text}");
    }

    /// As the kernel does after an error of the device that it can't go on with.
    pub fn shut_down(&self) {
        use std::os::fd::AsRawFd;
        const EXT4_IOC_SHUTDOWN: libc::Ioctl = 0x8004_587d_u32 as libc::Ioctl;
        const WITHOUT_LOG: u32 = 2;
        let dir = fs::File::open(&self.dir).unwrap();
        // SAFETY: the descriptor is open, and the argument is a number that lives on.
        let done = unsafe { libc::ioctl(dir.as_raw_fd(), EXT4_IOC_SHUTDOWN, &WITHOUT_LOG) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH);
        let _ = std::process::Command::new("losetup").args(["-d", &self.device]).output();
    }
}

/// A file system of its own in the place of the backing store of a site, on a loop device.
pub struct StoreDisk<'a>(&'a Site);

impl<'a> StoreDisk<'a> {
    /// Made by this program with these options. Nothing where there are no loop devices or tools.
    pub fn new(site: &'a Site, size: u64, mkfs: &str, options: &[&str]) -> Option<Self> {
        let (image, backing) = (site.text("image"), site.text("backing"));
        fs::File::create(site.path("image")).unwrap().set_len(size).unwrap();
        let made = [
            (mkfs, [options, &[&image]].concat()),
            ("mount", vec!["-o", "loop", &image, &backing]),
        ];
        for (program, args) in made {
            let (code, text) = outcome(site.command(program).args(args));
            if code != 0 {
                eprintln!("skipped: {program}: {text}");
                return None;
            }
        }
        Some(Self(site))
    }
}

impl Drop for StoreDisk<'_> {
    fn drop(&mut self) {
        for dir in ["mnt", "backing"] {
            let _ = outcome(self.0.command("umount").args(["-l", &self.0.text(dir)]));
        }
    }
}

/// A file that nobody can open for writing, remove or move, root included.
pub struct Immutable(PathBuf);

impl Immutable {
    pub fn new(path: PathBuf) -> Self {
        change(&path, "+i");
        Immutable(path)
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        change(&self.0, "-i");
    }
}

fn change(path: &Path, how: &str) {
    let (code, text) = outcome(Command::new("chattr").arg(how).arg(path));
    assert_eq!(code, 0, "{text}");
}
