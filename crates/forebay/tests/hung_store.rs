//! A backing store that does not answer: opens for writing in a frozen file system wait.

mod disk;
mod site;

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use disk::StoreDisk;
use site::{Site, can_mount, outcome, wait_for};

const NOT_DRAINED: i32 = 4;

/// The backing store on a file system of its own, which can be frozen.
struct Device<'a> {
    site: &'a Site,
    frozen: bool,
    // Dropped last: a frozen one can't be unmounted.
    _disk: StoreDisk<'a>,
}

impl<'a> Device<'a> {
    /// Nothing where there are no loop devices.
    fn new(site: &'a Site) -> Option<Self> {
        let _disk = StoreDisk::new(site, 96 << 20, "mkfs.ext4", &["-q", "-F"])?;
        Some(Self { site, frozen: false, _disk })
    }

    fn freeze(&mut self, how: &str) {
        let (code, text) =
            outcome(self.site.command("fsfreeze").args([how, &self.site.text("backing")]));
        assert_eq!(code, 0, "{text}");
        self.frozen = how == "-f";
    }
}

impl Drop for Device<'_> {
    fn drop(&mut self) {
        if self.frozen {
            self.freeze("-u");
        }
    }
}

/// A program that opens a file for writing, and waits for it.
fn opener(site: &Site) -> Child {
    let file = site.text("mnt/large");
    Command::new("dd")
        .args(["if=/dev/zero", &format!("of={file}"), "bs=4k", "count=1", "conv=notrunc"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn umount_when_an_open_hangs_then_its_time_limit_is_kept_and_it_stays_mounted() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let Some(mut device) = Device::new(&site) else { return };
    // No part of it has room on the tier: what is written goes past it.
    fs::write(site.path("backing/large"), vec![7; 24 << 20]).unwrap();
    let tier = format!("{}=900K", site.text("small"));
    let (backing, mnt) = (site.text("backing"), site.text("mnt"));
    let args = ["mount", &backing, &mnt, "--tier", &tier, "--backing-timeout", "3s"];
    let (code, text) = site.run(&args);
    assert_eq!(code, 0, "{text}");
    device.freeze("-f");
    let mut program = opener(&site);
    let program = std::thread::spawn(move || program.wait());
    let hangs = || site.status()["stuck"].as_array().is_some_and(|stuck| !stuck.is_empty());
    assert!(wait_for(Duration::from_secs(60), hangs), "{}", site.status());
    // The program gets its error, the open goes on.
    assert!(wait_for(Duration::from_secs(60), || program.is_finished()));
    let began = Instant::now();
    let (code, text) = site.run(&["umount", "--timeout", "4s", &mnt]);
    let took = began.elapsed();
    assert!(site.is_mounted(), "{code}: {text}");
    assert_eq!(code, NOT_DRAINED, "{text}");
    assert!(text.contains("still mounted") && text.contains("--detach"), "{text}");
    assert!(took < Duration::from_secs(12), "{took:?}: {text}");
    device.freeze("-u");
    assert!(wait_for(Duration::from_secs(60), || !hangs()));
    let (code, text) = site.run(&["umount", "--timeout", "30s", &mnt]);
    assert_eq!(code, 0, "{text}");
    assert!(!site.is_mounted());
}
