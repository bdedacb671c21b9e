//! A backing store that is not there, or is another one than before, at the path of the old one.

mod site;

use std::fs;
use std::path::PathBuf;

use site::{Site, can_mount, outcome};

const USAGE: i32 = 2;
const BAD_STATE: i32 = 6;

/// A directory on a file system of its own, mounted at the place of the backing store or not.
struct Device<'a> {
    site: &'a Site,
}

impl<'a> Device<'a> {
    fn new(site: &'a Site) -> Self {
        fs::create_dir(site.path("device")).unwrap();
        let device = Self { site };
        device.command("mount", &["-t", "tmpfs", "none", &site.text("device")]);
        device.attach();
        device
    }

    fn command(&self, program: &str, args: &[&str]) {
        let (code, text) = outcome(self.site.command(program).args(args));
        assert_eq!(code, 0, "{program} {args:?}: {text}");
    }

    fn attach(&self) {
        self.command("mount", &["--bind", &self.site.text("device"), &self.site.text("backing")]);
    }

    fn detach(&self) {
        self.command("umount", &[&self.site.text("backing")]);
    }
}

impl Drop for Device<'_> {
    fn drop(&mut self) {
        for dir in ["mnt", "backing", "device"] {
            let _ = outcome(self.site.command("umount").args(["-l", &self.site.text(dir)]));
        }
    }
}

fn umount_dirty(site: &Site) {
    let (code, text) = site.run(&["umount", "--no-drain", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
}

/// The mount is refused and says how to go on; nothing was made where the store should be.
fn is_refused(site: &Site) {
    let (code, text) = site.mount_with(&[]);
    assert_eq!(code, BAD_STATE, "{text}");
    assert!(text.contains(&site.text("backing")) && text.contains("--accept-store"), "{text}");
    assert_eq!(text.matches("--accept-store").count(), 1, "said once: {text}");
    assert!(!site.is_mounted());
    // Nor does a check say what can't be done now.
    let (code, text) = site.run(&["fsck", "--backing", &site.text("backing"), &site.text("tier")]);
    assert!(code == BAD_STATE && text.contains("--accept-store"), "{code} {text}");
    assert!(!text.contains("run `forebay fsck --repair`"), "{text}");
}

fn accept(site: &Site) {
    let (backing, tier) = (site.text("backing"), site.text("tier"));
    let (code, text) = site.run(&["fsck", "--accept-store", "--backing", &backing, &tier]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(&backing), "{text}");
}

#[test]
fn store_when_its_file_system_is_not_mounted_then_the_mount_is_refused_until_it_is() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let device = Device::new(&site);
    site.mount(&["--writeback", "evict", "--require-mounted"]);
    fs::write(site.path("mnt/file"), "new").unwrap();
    umount_dirty(&site);
    device.detach();
    is_refused(&site);
    assert_eq!(fs::read_dir(site.path("backing")).unwrap().count(), 0, "nothing was made there");
    device.attach();
    site.mount(&[]);
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"new");
    site.umount();
    assert_eq!(fs::read(site.path("backing/file")).unwrap(), b"new");
    // Now the tiers have nothing that the store lacks, but know its names.
    device.detach();
    is_refused(&site);
    device.attach();
    site.mount(&[]);
    site.umount();
}

#[test]
fn store_when_it_was_moved_to_another_file_system_then_it_can_be_accepted_without_loss() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let device = Device::new(&site);
    fs::write(site.path("backing/old"), "old").unwrap();
    fs::write(site.path("backing/both"), "one").unwrap();
    site.mount(&["--writeback", "evict"]);
    fs::write(site.path("mnt/new"), "new").unwrap();
    fs::write(site.path("mnt/both"), "ours").unwrap();
    umount_dirty(&site);
    device.detach();
    fs::copy(site.path("device/old"), site.path("backing/old")).unwrap();
    fs::write(site.path("backing/both"), "theirs").unwrap();
    is_refused(&site);
    accept(&site);
    site.mount(&[]);
    assert_eq!(fs::read(site.path("mnt/old")).unwrap(), b"old");
    assert_eq!(fs::read(site.path("mnt/new")).unwrap(), b"new");
    site.umount();
    assert_eq!(fs::read(site.path("backing/new")).unwrap(), b"new");
    let entries = fs::read_dir(site.path("backing")).unwrap().map(|entry| entry.unwrap().path());
    let versions: Vec<PathBuf> =
        entries.filter(|path| path.to_string_lossy().contains("both")).collect();
    let mut bytes: Vec<_> = versions.iter().map(|path| fs::read(path).unwrap()).collect();
    bytes.sort();
    assert_eq!(bytes, [b"ours".to_vec(), b"theirs".to_vec()], "{versions:?}");
    // The mount knows it now, and the one before is another.
    device.attach();
    is_refused(&site);
}

#[test]
fn store_when_its_private_area_was_removed_then_it_is_known_by_its_directory_and_marked_again() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--writeback", "evict"]);
    fs::write(site.path("mnt/file"), "new").unwrap();
    umount_dirty(&site);
    fs::remove_dir_all(site.path("backing/.forebay")).unwrap();
    site.mount(&["--writeback", "evict"]);
    assert!(site.path("backing/.forebay/store").exists());
    umount_dirty(&site);
    fs::rename(site.path("backing"), site.path("elsewhere")).unwrap();
    fs::create_dir(site.path("backing")).unwrap();
    is_refused(&site);
    fs::remove_dir(site.path("backing")).unwrap();
    fs::rename(site.path("elsewhere"), site.path("backing")).unwrap();
    site.mount(&[]);
    site.umount();
    assert_eq!(fs::read(site.path("backing/file")).unwrap(), b"new");
}

#[test]
fn store_when_it_must_be_mounted_and_is_on_the_root_file_system_then_it_is_refused() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let (kind, point) = (fs::read_to_string("/proc/self/mountinfo").unwrap(), site.text("root"));
    let on_root = kind.lines().all(|line| {
        line.split(' ').nth(4).is_none_or(|mount| mount == "/" || !point.starts_with(mount))
    });
    if !on_root {
        eprintln!("skipped: temporary files are not on the root file system");
        return;
    }
    let (code, text) = site.mount_with(&["--require-mounted"]);
    assert_eq!(code, USAGE, "{text}");
    assert!(text.contains(&site.text("backing")) && text.contains("--require-mounted"), "{text}");
    let options = format!("require-mounted,tier={}=64M", site.text("tier"));
    let (code, text) =
        site.run(&["mount", &site.text("backing"), &site.text("mnt"), "-o", &options]);
    assert_eq!(code, USAGE, "{text}");
}

#[test]
fn mount_below_the_store_when_it_is_away_then_the_mount_is_refused_until_it_is_back_or_given_up() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let device = Device::new(&site);
    fs::create_dir_all(site.path("backing/project/data")).unwrap();
    let data = site.text("backing/project/data");
    let attach = || device.command("mount", &["-t", "tmpfs", "none", &data]);
    let detach = || device.command("umount", &[&data]);
    let refused = || {
        let (code, text) = site.mount_with(&[]);
        assert_eq!(code, BAD_STATE, "{text}");
        assert!(text.contains(&data) && text.contains("--accept-store"), "{text}");
    };
    attach();
    site.mount(&["--writeback", "evict"]);
    fs::write(site.path("mnt/project/data/file"), "new").unwrap();
    umount_dirty(&site);
    let kept = site.path("kept");
    fs::create_dir(&kept).unwrap();
    device.command("mount", &["--bind", &data, &site.text("kept")]);
    detach();
    refused();
    assert_eq!(fs::read_dir(&data).unwrap().count(), 0, "nothing was written beside it");
    device.command("mount", &["--bind", &site.text("kept"), &data]);
    device.command("umount", &[&site.text("kept")]);
    site.mount(&[]);
    site.umount();
    assert_eq!(fs::read(site.path("backing/project/data/file")).unwrap(), b"new");
    // Now the tiers have nothing that belongs there.
    detach();
    site.mount(&["--writeback", "evict"]);
    // Mounted while the daemon serves.
    attach();
    fs::write(site.path("mnt/other"), "new").unwrap();
    umount_dirty(&site);
    detach();
    refused();
    accept(&site);
    site.mount(&[]);
    site.umount();
    assert_eq!(fs::read(site.path("backing/other")).unwrap(), b"new");
}
