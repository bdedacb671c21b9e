//! Clean implies equal: whatever a mount says is clean has every byte in the backing store, at every
//! step of the random suites, on tiers whose file systems tell of every store and on those that do not.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_tests::os::{self, Map, OFlags};
use forebay_tests::random::{pattern, seed_from_env};
use forebay_tests::subject::{ForebayMount, MountOptions, NativeDir, Passthrough, Subject};
use forebay_tests::{Failure, Outcome, fsx, model};
use rustix::fs::{fsync, futimens, stat};

/// Where tiers lie: on tmpfs and on a disk.
const TIERS: [&str; 2] = ["/dev/shm", "/tmp"];
const PAGE: usize = 4096;

/// A mount, and the directory of its tier.
fn mounted(
    tier: &str,
    passthrough: Passthrough,
    writeback: &str,
) -> (ForebayMount, tempfile::TempDir) {
    let place = tempfile::Builder::new().prefix("forebay-tier-").tempdir_in(tier).unwrap();
    let options = MountOptions {
        passthrough: Some(passthrough),
        writeback: Some(writeback.into()),
        tiers: vec![(place.path().join("tier"), 1 << 30)],
        ..MountOptions::default()
    };
    let mount = ForebayMount::new(options).unwrap_or_else(|error| panic!("{error}"));
    (mount, place)
}

/// What is said of one path: whether it is clean, and its place in the backing store.
fn said(found: &serde_json::Value) -> (bool, PathBuf) {
    let backing = found["backing"].as_str().unwrap_or_default();
    (found["dirty"] == false && found["kind"] == "file", backing.into())
}

/// A worker that moves what is above a file has noted its new place, and is there in a moment.
const ON_THE_WAY: Duration = Duration::from_secs(2);

/// The first of some files that is clean and differs from the backing store. What is found twice was
/// not renamed or written back in between; where nothing is found, somebody may be moving it.
fn differing(mount: &ForebayMount, files: &[(PathBuf, Vec<u8>)]) -> Outcome {
    // An empty one may not be there yet, and another one under its name: names are written back later.
    let mut suspects: Vec<_> = files.iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
    let mut what = String::new();
    let (begun, mut looks) = (Instant::now(), 0);
    while looks < 2 {
        if suspects.is_empty() {
            return Ok(());
        }
        let paths: Vec<_> = suspects.iter().map(|(path, _)| path.clone()).collect();
        let found = mount.locate(&paths)?;
        let (mut differ, mut absent) = (Vec::new(), false);
        for (suspect, found) in suspects.into_iter().zip(&found) {
            let (clean, below) = said(found);
            let read = std::fs::read(&below);
            let same = read.as_ref().is_ok_and(|bytes| *bytes == suspect.1);
            if clean && !same {
                differ.push(suspect);
                absent |= read.is_err();
                let there = read.map(|bytes| bytes.len());
                what = format!("with {} bytes, but there are {there:?}: {found}", suspect.1.len());
            }
        }
        suspects = differ;
        if absent && begun.elapsed() < ON_THE_WAY {
            std::thread::sleep(Duration::from_millis(20));
        } else {
            looks += 1;
        }
    }
    match suspects.first() {
        None => Ok(()),
        Some((path, _)) => {
            Err(Failure::at(format_args!("{} counts as clean {what}", path.display())))
        }
    }
}

#[test]
fn fsx_when_looked_at_after_every_step_then_clean_implies_equal() {
    for tier in TIERS {
        for passthrough in [Passthrough::Read, Passthrough::ReadWrite] {
            let (mut mount, _place) = mounted(tier, passthrough, "20ms");
            let look = |index: usize, op: fsx::Op, path: &Path, content: &[u8]| {
                if matches!(op, fsx::Op::Rest { .. }) && index.is_multiple_of(2) {
                    mount.sync(mount.mountpoint())?;
                }
                differing(&mount, &[(path.to_owned(), content.to_vec())])?;
                if matches!(op, fsx::Op::Rest { .. }) && index.is_multiple_of(3) {
                    mount.evict(path)?;
                }
                Ok(())
            };
            fsx::run_with(mount.dir(), seed_from_env("FOREBAY_SEED"), 500, 300_000, look)
                .unwrap_or_else(|failure| panic!("{} on {tier}: {failure}", mount.name()));
            mount.unmount().unwrap();
        }
    }
}

/// The regular files of a tree and what they hold.
fn files_below(root: &Path, found: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files_below(&entry.path(), found),
            // What the user who acts may not read is left out.
            Ok(kind) if kind.is_file() => {
                found.extend(os::read_all(entry.path()).map(|bytes| (entry.path(), bytes)));
            }
            _ => {}
        }
    }
}

#[test]
fn model_when_looked_at_now_and_then_then_clean_implies_equal() {
    const STEPS: usize = 20;
    for tier in TIERS {
        let (mut mount, _place) = mounted(tier, Passthrough::ReadWrite, "20ms");
        let reference = NativeDir::on_disk().unwrap();
        let look = |index: usize, _: model::Op, root: &Path| {
            if !(index + 1).is_multiple_of(STEPS) {
                return Ok(());
            }
            let mut files = Vec::new();
            files_below(root, &mut files);
            differing(&mount, &files)
        };
        let seed = seed_from_env("FOREBAY_SEED");
        model::run_with(mount.dir(), reference.dir(), seed, 2000, look)
            .unwrap_or_else(|failure| panic!("{} on {tier}: {failure}", mount.name()));
        mount.unmount().unwrap();
    }
}

/// A file of the backing store, older than a second.
fn put_old(mount: &ForebayMount, name: &str, content: &[u8]) {
    let below = mount.backing().join(name);
    if !below.exists() {
        os::write_file(&below, content).unwrap();
        os::utimens(&below, &os::times((1_000_000, 0), (1_000_000, 0))).unwrap();
    }
}

/// One that is resident as well.
fn resident(mount: &ForebayMount, name: &str, content: &[u8]) -> PathBuf {
    put_old(mount, name, content);
    let path = mount.dir().join(name);
    assert_eq!(os::read_all(&path).unwrap(), content);
    path
}

fn kept(mount: &ForebayMount, path: &Path, content: &[u8]) {
    mount.sync(mount.mountpoint()).unwrap();
    let below = mount.backing().join(path.file_name().unwrap());
    assert!(os::read_all(below).unwrap() == content, "the backing store has other bytes");
    mount.evict(path).unwrap();
    assert!(os::read_all(path).unwrap() == content, "the eviction brought others back");
}

#[test]
fn array_in_a_mapping_when_stored_into_after_loads_then_reaches_the_backing_store() {
    for tier in TIERS {
        let (mut mount, _place) = mounted(tier, Passthrough::ReadWrite, "5s");
        // What others make later is not seen at once.
        put_old(&mount, "late", &pattern(1, 20 * PAGE));
        for late in [false, true] {
            let mut content = pattern(1, 20 * PAGE);
            let path = resident(&mount, if late { "late" } else { "array" }, &content);
            let fd = os::open(&path, OFlags::RDWR, 0).unwrap();
            let mut map = Map::new(fd.as_fd(), 0, content.len(), true, true).unwrap();
            map.load();
            map.write(5 * PAGE, b"stored");
            content[5 * PAGE..5 * PAGE + 6].copy_from_slice(b"stored");
            map.sync().unwrap();
            fsync(&fd).unwrap();
            drop(fd);
            if late {
                std::thread::sleep(Duration::from_millis(50));
                map.write(9 * PAGE, b"later");
                content[9 * PAGE..9 * PAGE + 5].copy_from_slice(b"later");
            }
            drop(map);
            kept(&mount, &path, &content);
        }
        mount.unmount().unwrap();
    }
}

#[test]
fn write_when_its_times_are_put_back_then_reaches_the_backing_store() {
    for tier in TIERS {
        for passthrough in [Passthrough::Off, Passthrough::ReadWrite] {
            let (mut mount, _place) = mounted(tier, passthrough, "5s");
            let mut content = pattern(2, 20 * PAGE);
            let path = resident(&mount, "file", &content);
            let fd = os::open(&path, OFlags::RDWR, 0).unwrap();
            let before = stat(&path).unwrap();
            os::write_at(&fd, 100, b"written").unwrap();
            content[100..107].copy_from_slice(b"written");
            futimens(&fd, &os::times(os::atime(&before), os::mtime(&before))).unwrap();
            drop(fd);
            assert_eq!(os::mtime(&stat(&path).unwrap()), os::mtime(&before));
            kept(&mount, &path, &content);
            assert_eq!(os::mtime(&stat(mount.backing().join("file")).unwrap()), os::mtime(&before));
            mount.unmount().unwrap();
        }
    }
}

#[test]
fn times_when_asked_for_right_after_a_store_into_a_mapping_then_have_moved() {
    let (mut mount, _place) = mounted("/tmp", Passthrough::ReadWrite, "5s");
    let content = pattern(3, 4 * PAGE);
    let path = resident(&mount, "file", &content);
    for round in 0..50_usize {
        os::utimens(&path, &os::times((1_000_000, 0), (1_000_000, 0))).unwrap();
        let before = stat(&path).unwrap();
        let fd = os::open(&path, OFlags::RDWR, 0).unwrap();
        let mut map = Map::new(fd.as_fd(), 0, content.len(), true, true).unwrap();
        map.load();
        assert_eq!(os::mtime(&stat(&path).unwrap()), os::mtime(&before), "in round {round}");
        map.write(round, b"x");
        drop(fd);
        drop(map);
        let after = stat(&path).unwrap();
        assert!(os::mtime(&after) > os::mtime(&before), "the old mtime in round {round}");
        assert!(os::ctime(&after) >= os::ctime(&before), "the old ctime in round {round}");
        mount.sync(mount.mountpoint()).unwrap();
        assert!(os::mtime(&stat(&path).unwrap()) == os::mtime(&after), "moved in round {round}");
    }
    mount.unmount().unwrap();
}

#[test]
fn allocation_beyond_all_room_then_no_space() {
    let (mut mount, _place) = mounted("/dev/shm", Passthrough::ReadWrite, "5s");
    let path = mount.dir().join("file");
    let fd = os::open(&path, OFlags::RDWR | OFlags::CREATE, 0o644).unwrap();
    let whole = rustix::fs::statvfs(mount.dir()).unwrap();
    let more = whole.f_bavail * whole.f_frsize + (2 << 30);
    let refused = rustix::fs::fallocate(&fd, os::FallocateFlags::empty(), 0, more);
    assert_eq!(refused, Err(os::Errno::NOSPC));
    assert_eq!(stat(&path).unwrap().st_size, 0);
    drop(fd);
    mount.unmount().unwrap();
}
