//! A backing store on ext4, whose files have room for few extended attributes: with inodes of 128 bytes
//! and with those that mkfs makes by itself.

mod disk;
mod site;

use std::fs::{self, File};
use std::io::Write;
use std::time::{Duration, Instant};

use disk::StoreDisk;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use site::*;

/// More than one block of 4 KiB.
const LARGE: usize = 5000;

/// An ext4 as the backing store.
fn ext4<'a>(site: &'a Site, options: &[&str]) -> Option<StoreDisk<'a>> {
    let options = [&["-q", "-F", "-b", "4096"], options].concat();
    StoreDisk::new(site, 96 << 20, "mkfs.ext4", &options)
}

fn set(path: &std::path::Path, name: &str, len: usize) -> Result<(), Errno> {
    rustix::fs::setxattr(path, name, &vec![b'v'; len], XattrFlags::empty())
}

fn get(path: &std::path::Path, name: &str) -> Option<usize> {
    let mut value = vec![0; 1 << 16];
    rustix::fs::getxattr(path, name, &mut value[..]).ok()
}

/// A file that is new, or known and dirty, gets an attribute that ext4 does not take: by one large value,
/// or by many that are too much together.
fn attributes_beyond_ext4(inode: &[&str], known: bool, open: bool) {
    let what = format!("mkfs.ext4 {inode:?}, known {known}, open {open}");
    let site = Site::new();
    let Some(_ext4) = ext4(&site, inode) else { return };
    fs::write(site.path("backing/file"), "old").unwrap();
    site.mount(&["--writeback", "1h", "--attr-timeout", "0s"]);
    let name = if known { "file" } else { "new" };
    let path = site.path("mnt").join(name);
    let bytes = b"what was written ".repeat(3000);
    let mut file = File::create(&path).unwrap();
    file.write_all(&bytes).unwrap();
    let held = open.then_some(file);
    set(&path, "user.small", 10).unwrap();
    let large = set(&path, "user.large", LARGE);
    // Each of them fits, and all of them do not.
    let many: Vec<_> = (0..8).map(|index| set(&path, &format!("user.part{index}"), 900)).collect();
    // No file of this store can have it.
    assert!([Err(Errno::NOSPC), Err(Errno::TOOBIG)].contains(&large), "{what}: {large:?}");
    assert_eq!(get(&path, "user.large"), None, "{what}: refused and shown");
    for set in &many {
        let allowed = [Ok(()), Err(Errno::NOSPC), Err(Errno::TOOBIG)];
        assert!(allowed.contains(set), "{what}: {set:?}");
    }
    let (sync_code, sync_text) = site.run(&["sync", &site.text("mnt")]);
    let below = site.path("backing").join(name);
    // The attribute is not in the way of the bytes.
    assert!(fs::read(&below).is_ok_and(|found| found == bytes), "{what}: {sync_text}");
    assert_eq!(get(&below, "user.small"), Some(10), "{what}");
    let acknowledged = (0..8).map(|index| format!("user.part{index}")).zip(many);
    let missing: Vec<String> = acknowledged
        .filter(|(name, set)| set.is_ok() && get(&below, name).is_none())
        .map(|(name, _)| name)
        .collect();
    if missing.is_empty() {
        assert_eq!(sync_code, 0, "{what}: {sync_text}");
    } else {
        let (_, status) = site.run(&["status", &site.text("mnt")]);
        assert!(status.contains(name), "{what}: {missing:?} are not reported: {status}");
        assert!(missing.iter().all(|name| get(&path, name).is_some()), "{what}: not kept");
    }
    drop(held);
    let began = Instant::now();
    let (code, text) = site.run(&["umount", "--timeout", "20s", &site.text("mnt")]);
    assert_eq!(code, 0, "{what}: {text}");
    assert!(began.elapsed() < Duration::from_secs(20), "{what}: {:?}", began.elapsed());
    assert!(fs::read(&below).is_ok_and(|found| found == bytes), "{what}");
}

#[test]
fn attribute_that_ext4_does_not_take_then_refused_or_kept_and_never_in_the_way_of_the_bytes() {
    if !can_mount() {
        return;
    }
    for inode in [&["-I", "128"][..], &[]] {
        for (known, open) in [(false, false), (false, true), (true, false), (true, true)] {
            attributes_beyond_ext4(inode, known, open);
        }
    }
}
