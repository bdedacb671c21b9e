//! What was acknowledged outlives everything on the node with `--durability backing`, and a cut with any.

mod site;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use site::*;

fn sync_dir(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let names = entries.map(|name| name.into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name != ".forebay").collect();
    names.sort();
    names
}

/// The daemon dies, and the tier with the state on it is gone.
fn lose_everything_local(site: &Site) {
    let daemon = site.daemon();
    signal(daemon, rustix::process::Signal::KILL);
    assert!(wait_for(Duration::from_secs(60), || !alive(daemon)));
    let (code, text) = outcome(site.command("fusermount3").args(["-uz", &site.text("mnt")]));
    assert_eq!(code, 0, "{text}");
    fs::remove_dir_all(site.path("tier")).unwrap();
}

/// With the options of a mount that by itself writes nothing back.
fn mounted(passthrough: &str, durability: &str) -> Site {
    let site = Site::new();
    fs::write(site.path("backing/known"), vec![1; 60_000]).unwrap();
    fs::write(site.path("backing/gone"), "gone").unwrap();
    let how = ["--durability", durability, "--writeback", "evict", "--no-supervisor"];
    site.mount(&[&how[..], &["--passthrough", passthrough]].concat());
    site
}

#[test]
fn fsync_when_durability_is_backing_then_the_file_outlives_everything_local() {
    if !can_mount() {
        return;
    }
    for passthrough in ["off", "readwrite"] {
        let site = mounted(passthrough, "backing");
        let (mnt, backing) = (site.path("mnt"), site.path("backing"));
        let (_, status) = site.run(&["status", &site.text("mnt")]);
        let why = if passthrough == "off" { "asked not to use it" } else { "--durability backing" };
        assert!(status.contains(why), "{status}");
        let below = |name: &str| fs::read(backing.join(name)).unwrap_or_default();
        // A new file in new directories, still open.
        fs::create_dir_all(mnt.join("a/b")).unwrap();
        let mut new = File::create(mnt.join("a/b/new")).unwrap();
        new.write_all(b"new").unwrap();
        new.sync_all().unwrap();
        assert_eq!(below("a/b/new"), b"new", "passthrough {passthrough}");
        // What is written to the same open file later.
        new.write_all(b", and more").unwrap();
        new.sync_data().unwrap();
        assert_eq!(below("a/b/new"), b"new, and more", "passthrough {passthrough}");
        // A part of a known one, and its mode.
        fs::read(mnt.join("known")).unwrap();
        let known = OpenOptions::new().write(true).open(mnt.join("known")).unwrap();
        known.write_all_at(b"changed", 30_000).unwrap();
        known.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
        known.sync_all().unwrap();
        assert_eq!(below("known")[30_000..30_007], *b"changed", "passthrough {passthrough}");
        let mode = fs::metadata(backing.join("known")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o640, "passthrough {passthrough}");
        // A file that replaces another, as editors do.
        let mut other = File::create(mnt.join("known.new")).unwrap();
        other.write_all(b"saved anew").unwrap();
        other.sync_all().unwrap();
        drop(other);
        fs::rename(mnt.join("known.new"), mnt.join("known")).unwrap();
        fs::remove_file(mnt.join("gone")).unwrap();
        sync_dir(&mnt);
        assert_eq!(below("known"), b"saved anew", "passthrough {passthrough}");
        assert_eq!(names(&backing), ["a", "known"], "passthrough {passthrough}");
        // A rename from one directory to another.
        fs::rename(mnt.join("a/b/new"), mnt.join("a/moved")).unwrap();
        sync_dir(&mnt.join("a"));
        sync_dir(&mnt.join("a/b"));
        assert_eq!(names(&backing.join("a")), ["b", "moved"], "passthrough {passthrough}");
        assert!(names(&backing.join("a/b")).is_empty(), "passthrough {passthrough}");
        drop((new, known));
        lose_everything_local(&site);
        assert_eq!(below("a/moved"), b"new, and more", "passthrough {passthrough}");
        assert_eq!(below("known"), b"saved anew", "passthrough {passthrough}");
        assert_eq!(names(&backing), ["a", "known"]);
    }
}

#[test]
fn synchronous_writes_when_durability_is_backing_then_outlive_everything_local() {
    if !can_mount() {
        return;
    }
    for passthrough in ["off", "readwrite"] {
        let site = mounted(passthrough, "backing");
        let (mnt, backing) = (site.path("mnt"), site.path("backing"));
        for (name, flag) in [("sync", libc::O_SYNC), ("dsync", libc::O_DSYNC)] {
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).custom_flags(flag).open(mnt.join(name));
            let file = file.unwrap();
            for (at, piece) in [(0, &b"first"[..]), (5, b", second")] {
                file.write_all_at(piece, at).unwrap();
                let found = fs::read(backing.join(name)).unwrap_or_default();
                assert!(found.ends_with(piece), "{name}, passthrough {passthrough}: {found:?}");
            }
        }
        lose_everything_local(&site);
        for name in ["sync", "dsync"] {
            assert_eq!(fs::read(backing.join(name)).unwrap(), b"first, second");
        }
    }
}

/// Stores bytes at the beginning of a file through a mapping, and waits until they are durable.
fn store_by_mapping(file: &File, bytes: &[u8]) {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    const LEN: usize = 4096;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the mapping is new, as long as the file, and gone at the end of this function.
    unsafe {
        let at = mmap(std::ptr::null_mut(), LEN, prot, MapFlags::SHARED, file, 0).unwrap();
        at.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        msync(at, LEN, MsyncFlags::SYNC).unwrap();
        munmap(at, LEN).unwrap();
    }
}

/// Of files that are resident, which the kernel could write by itself, beside a reader and alone.
#[test]
fn known_file_when_durability_is_backing_then_no_kind_of_sync_leaves_anything_local() {
    if !can_mount() {
        return;
    }
    for passthrough in ["read", "readwrite"] {
        let site = mounted(passthrough, "backing");
        let (mnt, below) = (site.path("mnt/known"), site.path("backing/known"));
        let starts = |with: &[u8]| fs::read(&below).unwrap().starts_with(with);
        fs::read(&mnt).unwrap();
        for beside_a_reader in [false, true] {
            let _reader = beside_a_reader.then(|| File::open(&mnt).unwrap());
            let open = |flag| {
                let mut options = OpenOptions::new();
                options.read(true).write(true).custom_flags(flag).open(&mnt).unwrap()
            };
            let what = format!("passthrough {passthrough}, {beside_a_reader}");
            for (flag, bytes) in [(libc::O_SYNC, b"by sync"), (libc::O_DSYNC, b"by data")] {
                open(flag).write_all_at(bytes, 0).unwrap();
                assert!(starts(bytes), "{what}");
            }
            let file = open(0);
            store_by_mapping(&file, b"mapped");
            assert!(starts(b"mapped"), "{what}");
            let piece = [std::io::IoSlice::new(b"flagged")];
            let flags = rustix::io::ReadWriteFlags::DSYNC;
            assert_eq!(rustix::io::pwritev2(&file, &piece, 0, flags).unwrap(), 7);
            assert!(starts(b"flagged"), "{what}");
        }
        site.umount();
    }
}

/// The other level of the table: nothing but the tier is waited for, and that outlives the daemon.
#[test]
fn fsync_when_durability_is_local_then_it_does_not_wait_for_the_backing_store() {
    if !can_mount() {
        return;
    }
    let site = mounted("off", "local");
    let mut file = File::create(site.path("mnt/file")).unwrap();
    file.write_all(b"on the tier").unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert!(!site.path("backing/file").exists());
    let daemon = site.daemon();
    signal(daemon, rustix::process::Signal::KILL);
    assert!(wait_for(Duration::from_secs(60), || !alive(daemon)));
    let (code, text) = outcome(site.command("fusermount3").args(["-uz", &site.text("mnt")]));
    assert_eq!(code, 0, "{text}");
    site.mount(&[]);
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"on the tier");
    site.umount();
    assert_eq!(fs::read(site.path("backing/file")).unwrap(), b"on the tier");
}

/// After a power cut nobody could tell what the kernel has made durable of it from what nobody has synced.
#[test]
fn file_that_is_written_anew_when_the_store_has_an_older_version_then_the_kernel_is_not_handed_it()
{
    if !can_mount() {
        return;
    }
    for passthrough in ["read", "readwrite"] {
        let site = mounted(passthrough, "local");
        let counted = |what: &str| {
            let (code, text) = site.run(&["debug", "metrics", &site.text("mnt")]);
            assert_eq!(code, 0, "{text}");
            let lines = text.lines().filter(|line| line.starts_with(what));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
        };
        let refused =
            |why: &str| counted(&format!("forebay_passthrough_refusals_total{{reason=\"{why}\"}}"));
        let anew = |name: &str| loop {
            let (emptied, mixed) = (refused("emptied"), refused("mixed-open"));
            let how = OpenOptions::new().write(true).create(true).truncate(true).clone();
            let file = how.open(site.path("mnt").join(name)).unwrap();
            file.write_all_at(b"anew", 0).unwrap();
            // The kernel tells of the last close later: until then it counts as one more open file.
            if refused("mixed-open") == mixed {
                break refused("emptied") - emptied;
            }
        };
        assert_eq!(fs::read(site.path("mnt/known")).unwrap(), vec![1; 60_000]);
        assert_eq!(anew("known"), 1, "{passthrough}");
        assert_eq!(anew("new"), 0, "{passthrough}: there is no older version");
        assert_eq!(anew("new"), 0, "{passthrough}: still not");
        let (code, text) = site.run(&["sync", &site.text("mnt")]);
        assert_eq!(code, 0, "{text}");
        assert_eq!(anew("new"), 1, "{passthrough}: now there is one");
        site.umount();
        assert_eq!(fs::read(site.path("backing/known")).unwrap(), b"anew");
    }
}
