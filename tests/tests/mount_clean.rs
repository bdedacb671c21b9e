//! Clean implies equal: whatever a mount says is clean has every byte in the backing store, at every
//! step of the random suites, on tiers whose file systems tell of every store and on those that do not.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_tests::os::{self, Map, OFlags};
use forebay_tests::random::{pattern, seed_from_env};
use forebay_tests::subject::{ForebayMount, MountOptions, NativeDir, Passthrough, Subject};
use forebay_tests::{Failure, Outcome, fsx, model, watchdog};
use rustix::fs::{fsync, futimens, stat};

const PAGE: usize = 4096;
const MODES: [Passthrough; 3] = [Passthrough::Off, Passthrough::Read, Passthrough::ReadWrite];
const MIB: u64 = 1 << 20;
const TIER_BYTES: u64 = 256 * MIB;

/// Where tiers lie: a directory in memory, or an ext4 on a loop device.
struct Place {
    dir: PathBuf,
    is_disk: bool,
    _home: tempfile::TempDir,
}

impl Place {
    fn in_memory() -> Self {
        let home = tempfile::Builder::new().prefix("forebay-tier-").tempdir_in("/dev/shm").unwrap();
        Self { dir: home.path().to_owned(), is_disk: false, _home: home }
    }

    /// Nothing where there can't be any.
    fn ext4() -> Option<Self> {
        if !os::is_root() {
            eprintln!("no tier on ext4: that needs root");
            return None;
        }
        let home = tempfile::Builder::new().prefix("forebay-ext4-").tempdir().unwrap();
        let (image, dir) = (home.path().join("image"), home.path().join("disk"));
        std::fs::create_dir(&dir).unwrap();
        std::fs::File::create(&image).unwrap().set_len(2 * TIER_BYTES).unwrap();
        let steps: [(&str, &[&str], &[&Path]); 2] = [
            ("mkfs.ext4", &["-q", "-F", "-b", "4096"], &[&image]),
            ("mount", &["-o", "loop"], &[&image, &dir]),
        ];
        for (program, options, paths) in steps {
            let done = std::process::Command::new(program).args(options).args(paths).output();
            if !done.as_ref().is_ok_and(|output| output.status.success()) {
                eprintln!("no tier on ext4: {program}: {done:?}");
                return None;
            }
        }
        watchdog::register_disk(&dir);
        Some(Self { dir, is_disk: true, _home: home })
    }

    /// All that there are here.
    fn all() -> Vec<Self> {
        [Self::in_memory()].into_iter().chain(Self::ext4()).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_disk {
            return;
        }
        let plain = rustix::mount::UnmountFlags::empty();
        watchdog::unregister_disk(&self.dir);
        for _ in 0..100 {
            match rustix::mount::unmount(&self.dir, plain) {
                Err(os::Errno::BUSY) => std::thread::sleep(Duration::from_millis(50)),
                _ => return,
            }
        }
        // A daemon that hangs has it: the kernel takes it apart when that ends.
        let _ = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH);
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_disk { "ext4" } else { "tmpfs" })
    }
}

/// A mount, and the directory of its tier.
fn mounted(
    place: &Place,
    passthrough: Passthrough,
    writeback: &str,
) -> (ForebayMount, tempfile::TempDir) {
    mounted_on(place, passthrough, writeback, &[TIER_BYTES])
}

/// A mount with tiers of these sizes, and the directory of them all.
fn mounted_on(
    place: &Place,
    passthrough: Passthrough,
    writeback: &str,
    sizes: &[u64],
) -> (ForebayMount, tempfile::TempDir) {
    let dir = tempfile::Builder::new().prefix("tier-").tempdir_in(&place.dir).unwrap();
    let tier = |(number, size): (usize, &u64)| (dir.path().join(format!("tier{number}")), *size);
    let options = MountOptions {
        passthrough: Some(passthrough),
        writeback: Some(writeback.into()),
        tiers: sizes.iter().enumerate().map(tier).collect(),
        ..MountOptions::default()
    };
    let mount = ForebayMount::new(options).unwrap_or_else(|error| panic!("{error}"));
    (mount, dir)
}

/// What is said of one path: whether it is clean, and its place in the backing store.
fn said(found: &serde_json::Value) -> (bool, PathBuf) {
    let backing = found["backing"].as_str().unwrap_or_default();
    (found["dirty"] == false && found["kind"] == "file", backing.into())
}

/// A worker that moves what is above a file has noted its new place, and is there in a moment.
const ON_THE_WAY: Duration = Duration::from_secs(2);

/// Whether names are in the backing store what they are on the mount.
#[derive(Clone, Copy, PartialEq)]
enum Names {
    /// Or not there at all.
    Same,
    /// They are written back later: an empty file may not be there yet, and another one under its name.
    Behind,
}

/// The first of some files that is clean and differs from the backing store. What is found twice was
/// not renamed or written back in between; where nothing is found, somebody may be moving it.
fn differing(mount: &ForebayMount, files: &[(PathBuf, Vec<u8>)], names: Names) -> Outcome {
    let is_told = |bytes: &[u8]| names == Names::Same || !bytes.is_empty();
    let mut suspects: Vec<_> = files.iter().filter(|(_, bytes)| is_told(bytes)).collect();
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
            let is_absent = matches!(&read, Err(error) if error.kind() == ErrorKind::NotFound);
            let same = match &read {
                Ok(bytes) => *bytes == suspect.1,
                // A new one.
                Err(_) => is_absent && suspect.1.is_empty(),
            };
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

/// Each starts a command after each of its steps: together they would keep each other from their limits of
/// time.
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs fsx, and looks at what counts as clean after each of so many steps. Its file has the one name.
fn look_at_fsx(mount: &ForebayMount, count: usize, max_len: u64, each: usize) -> Outcome {
    let look = |index: usize, op: fsx::Op, path: &Path, content: &[u8]| {
        let is_rest = matches!(op, fsx::Op::Rest { .. });
        if is_rest && index.is_multiple_of(2) {
            mount.sync(mount.mountpoint())?;
        }
        if is_rest || index.is_multiple_of(each) {
            differing(mount, &[(path.to_owned(), content.to_vec())], Names::Same)?;
        }
        if is_rest && index.is_multiple_of(3) {
            mount.evict(path)?;
        }
        Ok(())
    };
    fsx::run_with(mount.dir(), seed_from_env("FOREBAY_SEED"), count, max_len, look)
}

#[test]
fn fsx_when_looked_at_after_every_step_then_clean_implies_equal() {
    let _alone = alone();
    for place in Place::all() {
        for passthrough in MODES {
            let (mut mount, _dir) = mounted(&place, passthrough, "20ms");
            look_at_fsx(&mount, 500, 300_000, 1)
                .unwrap_or_else(|failure| panic!("{} on {place}: {failure}", mount.name()));
            mount.unmount().unwrap();
        }
    }
}

/// Looks at mounts of tiers that do not hold what is written, one or two of so many units: files are partly
/// resident, spilled, demoted and evicted all the time.
fn with_small_tiers(unit: u64, look: impl Fn(&ForebayMount) -> Outcome) {
    for (number, place) in Place::all().into_iter().enumerate() {
        for (mode, passthrough) in MODES.into_iter().enumerate() {
            let sizes =
                if (number + mode) % 2 == 0 { vec![2 * unit] } else { vec![unit, 2 * unit] };
            let (mut mount, _dir) = mounted_on(&place, passthrough, "20ms", &sizes);
            look(&mount).unwrap_or_else(|failure| {
                panic!("{} {sizes:?} on {place}: {failure}", mount.name())
            });
            mount.unmount().unwrap();
        }
    }
}

#[test]
fn fsx_when_its_file_is_larger_than_the_tiers_then_clean_implies_equal() {
    let _alone = alone();
    with_small_tiers(MIB, |mount| look_at_fsx(mount, 250, 6 * MIB, 10));
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

/// Whether an operation of the model can change what is clean, or what clean bytes are.
fn changes(op: model::Op) -> bool {
    use model::Op::{Fstat, Readdir, Readlink, Stat, User};
    !matches!(op, Fstat { .. } | Readdir { .. } | Readlink { .. } | Stat { .. } | User { .. })
}

/// Runs the model, and looks at what counts as clean after each of so many steps.
fn look_at_model(mount: &ForebayMount, count: usize, each: usize) -> Outcome {
    let reference = NativeDir::on_disk().unwrap();
    let look = |index: usize, op: model::Op, root: &Path| {
        let is_turn = index % 40 == 39;
        if !changes(op) || !is_turn && !index.is_multiple_of(each) {
            return Ok(());
        }
        let mut names = Names::Behind;
        if is_turn {
            // Much of it is clean from here on, and some is only in the backing store.
            mount.sync(mount.mountpoint())?;
            names = Names::Same;
        }
        let mut files = Vec::new();
        files_below(root, &mut files);
        differing(mount, &files, names)?;
        if is_turn && let Some((path, _)) = files.get(index / 40 % files.len().max(1)) {
            mount.evict(path)?;
        }
        Ok(())
    };
    let seed = seed_from_env("FOREBAY_SEED");
    model::run_with(mount.dir(), reference.dir(), seed, count, look)
}

#[test]
fn model_when_looked_at_after_every_step_then_clean_implies_equal() {
    let _alone = alone();
    for place in Place::all() {
        for passthrough in MODES {
            let (mut mount, _dir) = mounted(&place, passthrough, "20ms");
            look_at_model(&mount, 600, 1)
                .unwrap_or_else(|failure| panic!("{} on {place}: {failure}", mount.name()));
            mount.unmount().unwrap();
        }
    }
}

#[test]
fn model_when_the_tiers_are_small_then_clean_implies_equal() {
    let _alone = alone();
    with_small_tiers(300 << 10, |mount| look_at_model(mount, 250, 20));
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
    for place in Place::all() {
        let (mut mount, _dir) = mounted(&place, Passthrough::ReadWrite, "5s");
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
    for place in Place::all() {
        for passthrough in [Passthrough::Off, Passthrough::ReadWrite] {
            let (mut mount, _dir) = mounted(&place, passthrough, "5s");
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
    // tmpfs does not tell of each store.
    let Some(place) = Place::ext4() else { return };
    let (mut mount, _dir) = mounted(&place, Passthrough::ReadWrite, "5s");
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
    let place = Place::in_memory();
    let (mut mount, _dir) = mounted(&place, Passthrough::ReadWrite, "5s");
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
