//! A disk below a tier that fails to write once: what a later sync acknowledges is on the disk, whichever
//! way programs write, and whatever the kernel believes to have written. And one that was away.

mod bad_disk;
mod site;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bad_disk::BadDisk;
use site::*;

const LENGTH: usize = 64 << 10;

/// The object of a file of the mount.
fn object_of(tier: &Path, file: &Path) -> PathBuf {
    let name = format!("{:016x}", fs::metadata(file).unwrap().ino());
    let fans = fs::read_dir(tier.join("objects")).unwrap().flatten();
    let mut places = fans.map(|fan| fan.path().join(&name));
    places.find(|place| place.exists()).expect("it has an object")
}

fn errno<T>(outcome: std::io::Result<T>) -> Option<i32> {
    outcome.err().and_then(|error| error.raw_os_error())
}

/// How a program changes the file that it has open.
type Changes = fn(&File, &[u8]);

fn by_write(file: &File, bytes: &[u8]) {
    file.write_all_at(bytes, 0).unwrap();
}

fn by_mapping(file: &File, bytes: &[u8]) {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let (len, prot) = (bytes.len(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a fresh range of the kernel's choice, as long as the file is.
    unsafe {
        let map = mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0).unwrap();
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.cast::<u8>(), len);
        munmap(map, len).unwrap();
    }
}

#[test]
fn sync_when_the_disk_has_failed_to_write_once_then_what_the_next_one_acknowledges_is_on_it() {
    if !can_mount() {
        return;
    }
    use_own_mounts();
    for passthrough in ["off", "readwrite"] {
        let site = Site::new();
        fs::create_dir(site.path("disk")).unwrap();
        let Some(disk) = BadDisk::mounted_on(&site.path("disk")) else { return };
        let tier = format!("{}=64M", site.text("disk/tier"));
        let (backing, mnt) = (site.text("backing"), site.text("mnt"));
        let args = ["mount", &backing, &mnt, "--tier", &tier, "--passthrough", passthrough];
        let (code, text) = site.run(&[&args[..], &["--writeback", "1h"]].concat());
        assert_eq!(code, 0, "{text}");
        let mut names = Vec::new();
        for (how, change) in [("written", by_write as Changes), ("mapped", by_mapping as Changes)] {
            for closed in [false, true] {
                let name = format!("{how}-{closed}");
                sync_fails_once(&site, &disk, &site.path("mnt").join(&name), (change, closed));
                names.push(name);
            }
        }
        let (code, text) = site.run(&["umount", &mnt]);
        assert_eq!(code, 0, "{text}");
        for name in names {
            let found = fs::read(site.path("backing").join(&name)).unwrap();
            assert!(found == vec![b'n'; LENGTH], "{name}, passthrough {passthrough}");
        }
    }
}

/// A file is changed, its disk can't write it, and is well again for the next sync, after a close if so
/// wanted.
fn sync_fails_once(site: &Site, disk: &BadDisk, path: &Path, (change, closed): (Changes, bool)) {
    let what = path.display();
    fs::write(path, vec![b'o'; LENGTH]).unwrap();
    File::open(path).unwrap().sync_all().unwrap();
    let object = object_of(&site.path("disk/tier"), path);
    assert!(disk.has_of(&object) == vec![b'o'; LENGTH], "{what}: not synced");
    disk.refuse_writes(&object);
    let mut file = File::options().read(true).write(true).open(path).unwrap();
    change(&file, &vec![b'n'; LENGTH]);
    assert_eq!(errno(file.sync_all()), Some(libc::EIO), "{what}: a sync that wrote nothing");
    disk.heal();
    if closed {
        drop(file);
        file = File::options().read(true).write(true).open(path).unwrap();
    }
    let synced = file.sync_all();
    let is_there = disk.has_of(&object) == vec![b'n'; LENGTH];
    assert!(synced.is_err() || is_there, "{what}: acknowledged, and not on the disk");
    assert!(synced.is_ok(), "{what}: the disk is well, and {synced:?}");
    assert!(fs::read(path).unwrap() == vec![b'n'; LENGTH], "{what}: read");
}

#[test]
fn copies_when_their_disk_was_away_within_one_boot_then_are_not_believed() {
    if !can_mount() {
        return;
    }
    use_own_mounts();
    let site = Site::new();
    fs::create_dir(site.path("disk")).unwrap();
    let Some(disk) = BadDisk::mounted_on(&site.path("disk")) else { return };
    fs::write(site.path("backing/file"), vec![b'b'; LENGTH]).unwrap();
    let tier = format!("{}=64M", site.text("disk/tier"));
    let (backing, mnt, state) = (site.text("backing"), site.text("mnt"), site.text("state"));
    let mount = || {
        let args = ["mount", &backing, &mnt, "--tier", &tier, "--no-supervisor"];
        let (code, text) = site.run(&[&args[..], &["--state-dir", &state]].concat());
        assert_eq!(code, 0, "{text}");
    };
    fs::create_dir(&state).unwrap();
    mount();
    let path = site.path("mnt/file");
    assert!(fs::read(&path).unwrap() == vec![b'b'; LENGTH]);
    let object = object_of(&site.path("disk/tier"), &path);
    assert_eq!(fs::metadata(&object).unwrap().len(), LENGTH as u64, "it is a copy");
    let daemon = site.daemon();
    signal(daemon, rustix::process::Signal::KILL);
    assert!(wait_for(Duration::from_secs(10), || !alive(daemon)));
    let (code, text) = outcome(site.command("fusermount3").args(["-uz", &mnt]));
    assert_eq!(code, 0, "{text}");
    disk.is_away_and_loses(&object);
    mount();
    let found = fs::read(&path).unwrap();
    assert!(found == vec![b'b'; LENGTH], "what the disk has lost is shown: {:?}", &found[..4]);
    let (code, text) = site.run(&["umount", &mnt]);
    assert_eq!(code, 0, "{text}");
    drop(disk);
}
