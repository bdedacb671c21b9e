//! Full tiers and full backing stores: a full tier is never the user's problem, and a full backing
//! store is a clean error to the writer with nothing lost.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::failure::{Failure, Outcome};
use crate::os::{self, Errno, OFlags};
use crate::random::pattern;
use crate::subject::{ForebayMount, MountOptions, Passthrough, Subject, run_checked};
use crate::watchdog;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// A tmpfs of a given size, unmounted and removed on drop. Needs root.
pub struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts a tmpfs of `bytes`.
    pub fn new(bytes: u64) -> Outcome<Self> {
        if !os::is_root() {
            return Err(Failure::Skipped("mounting a small disk needs root".into()));
        }
        let dir = tempfile::Builder::new().prefix("forebay-test-").tempdir()?;
        let mut command = Command::new("mount");
        command
            .args(["-t", "tmpfs", "-o"])
            .arg(format!("size={bytes}"))
            .arg("tmpfs")
            .arg(dir.path());
        run_checked(&mut command, LIMIT)?;
        Ok(Self { dir })
    }

    /// Its root.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, because a daemon that died badly may still hold it open.
        let _ = run_checked(Command::new("umount").arg("-l").arg(self.dir.path()), LIMIT);
    }
}

fn mounted(tier: (PathBuf, u64), passthrough: Passthrough) -> Outcome<ForebayMount> {
    Ok(ForebayMount::new(MountOptions {
        tiers: vec![tier],
        passthrough: Some(passthrough),
        // Long: nothing is flushed for age while a test runs.
        writeback: Some("1h".into()),
        ..MountOptions::default()
    })?)
}

fn write_and_check(path: &Path, tag: u64, len: u64) -> Outcome {
    let fd = os::open(path, OFlags::CREATE | OFlags::RDWR, 0o644)?;
    for at in (0..len).step_by(MIB as usize) {
        os::write_at(&fd, at, &pattern(tag + at, MIB as usize))?;
    }
    rustix::fs::fsync(&fd)?;
    check(path, tag, len)
}

fn check(path: &Path, tag: u64, len: u64) -> Outcome {
    let fd = os::open(path, OFlags::RDONLY, 0)?;
    let size = os::size(path)?;
    ensure!(size == len, "{} has {size} bytes, not {len}", path.display());
    for at in (0..len).step_by(MIB as usize) {
        let (found, wanted) =
            (os::read_at(&fd, at, MIB as usize)?, pattern(tag + at, MIB as usize));
        let first = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
        ensure!(
            found == wanted,
            "{} differs in the MiB at {at}, {} bytes long, first at {first:?}",
            path.display(),
            found.len()
        );
    }
    Ok(())
}

/// The bytes that the files below `dir` occupy.
fn usage(dir: &Path) -> u64 {
    let text = run_checked(Command::new("du").args(["-s", "--block-size=1"]).arg(dir), LIMIT);
    let text = text.unwrap_or_default();
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The bytes that the objects of a tier occupy, with their maps.
fn occupied(tier: &Path) -> u64 {
    usage(&tier.join("objects"))
}

/// Runs `work` and looks all the while whether the objects of any tier occupy more than its size.
fn sizes_hold(tiers: &[(PathBuf, u64)], work: impl FnOnce() -> Outcome) -> Outcome {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                for (tier, size) in tiers {
                    let found = occupied(tier);
                    ensure!(found <= *size, "a tier of {size} bytes holds {found}");
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        });
        let worked = work();
        over.store(true, Ordering::Release);
        let watched = watch.join().unwrap_or_else(|_| Err(Failure::at("the watch panicked")));
        worked.and(watched)
    })
}

/// One file of four times the tier's size is written, read back, and drained.
pub fn file_larger_than_the_tier(passthrough: Passthrough) -> Outcome {
    let disk = SmallDisk::new(256 * MIB)?;
    let tier = (disk.path().join("tier"), 32 * MIB);
    let mut mount = mounted(tier.clone(), passthrough)?;
    let _guard = watchdog::guard(LIMIT * 3, "file larger than the tier");
    sizes_hold(&[tier], || write_and_check(&mount.dir().join("large"), 1, 128 * MIB))?;
    mount.unmount()?;
    check(&mount.backing().join("large"), 1, 128 * MIB)
}

/// Sixteen writers at once exceed the tier twice over while nothing is flushed for age.
pub fn sixteen_writers_exceed_the_tier(passthrough: Passthrough) -> Outcome {
    let disk = SmallDisk::new(256 * MIB)?;
    let tier = (disk.path().join("tier"), 64 * MIB);
    let mut mount = mounted(tier.clone(), passthrough)?;
    let _guard = watchdog::guard(LIMIT * 3, "sixteen writers");
    sizes_hold(&[tier], || write_files(mount.dir(), 16, 8 * MIB))?;
    mount.unmount()?;
    (0..16_u64).try_for_each(|id| check(&mount.backing().join(format!("w{id}")), id << 32, 8 * MIB))
}

/// Writes files at once, one thread each.
fn write_files(dir: &Path, count: u64, len: u64) -> Outcome {
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..count)
            .map(|id| {
                let path = dir.join(format!("w{id}"));
                scope.spawn(move || write_and_check(&path, id << 32, len))
            })
            .collect();
        writers.into_iter().try_for_each(|writer| {
            writer.join().unwrap_or_else(|_| Err(Failure::at("a writer panicked")))
        })
    })
}

/// Two tiers fill up and objects move down from the first to the second, then past both.
pub fn two_tiers_fill_and_demote(passthrough: Passthrough) -> Outcome {
    let disk = SmallDisk::new(256 * MIB)?;
    let tiers = vec![(disk.path().join("fast"), 16 * MIB), (disk.path().join("slow"), 32 * MIB)];
    let mut mount = ForebayMount::new(MountOptions {
        tiers: tiers.clone(),
        passthrough: Some(passthrough),
        writeback: Some("1h".into()),
        ..MountOptions::default()
    })?;
    let _guard = watchdog::guard(LIMIT * 3, "two tiers");
    sizes_hold(&tiers, || {
        for round in 0..5_u64 {
            let dir = mount.dir().join(format!("d{round}"));
            std::fs::create_dir(&dir)?;
            write_files(&dir, 4, 4 * MIB)?;
        }
        let demoted = crate::process::eventually(LIMIT, || occupied(&tiers[1].0) > 0);
        ensure!(demoted, "nothing has moved to the second tier");
        Ok(())
    })?;
    let all = |root: &Path| {
        (0..20_u64).try_for_each(|file| {
            let (round, id) = (file / 4, file % 4);
            check(&root.join(format!("d{round}/w{id}")), id << 32, 4 * MIB)
        })
    };
    all(mount.dir())?;
    mount.unmount()?;
    all(mount.backing())
}

/// A file grows on a full tier while a program has it open to read, by passthrough where there is
/// any: nobody sees ENOSPC, and the reader sees every byte.
pub fn file_grows_under_a_reader(passthrough: Passthrough) -> Outcome {
    let disk = SmallDisk::new(64 * MIB)?;
    let mut mount = mounted((disk.path().join("tier"), 16 * MIB), passthrough)?;
    let _guard = watchdog::guard(LIMIT * 3, "file grows under a reader");
    let path = mount.dir().join("read");
    write_and_check(&path, 1, 6 * MIB)?;
    let reader = os::open(&path, OFlags::RDONLY, 0)?;
    os::read_at(&reader, 0, 4096)?;
    // Open, so that nothing of it can be written back to make room.
    let filler = os::open(mount.dir().join("filler"), OFlags::CREATE | OFlags::RDWR, 0o644)?;
    for at in (0..24 * MIB).step_by(MIB as usize) {
        os::write_at(&filler, at, &pattern(at, MIB as usize))?;
    }
    let writer = os::open(&path, OFlags::WRONLY, 0)?;
    for at in (0..12 * MIB).step_by(MIB as usize) {
        os::write_at(&writer, at, &pattern(77 + at, MIB as usize))?;
        let found = os::read_at(&reader, at, MIB as usize)?;
        ensure!(found == pattern(77 + at, MIB as usize), "the reader sees other bytes at {at}");
    }
    drop((reader, writer, filler));
    check(&path, 77, 12 * MIB)?;
    mount.unmount()?;
    check(&mount.backing().join("read"), 77, 12 * MIB)?;
    check(&mount.backing().join("filler"), 0, 24 * MIB)
}

/// The tier's disk is filled by somebody else: writers go on, and what was written stays.
pub fn tier_filled_by_somebody_else(passthrough: Passthrough) -> Outcome {
    let disk = SmallDisk::new(64 * MIB)?;
    let mut mount = mounted((disk.path().join("tier"), 48 * MIB), passthrough)?;
    let _guard = watchdog::guard(LIMIT * 3, "tier filled by somebody else");
    write_and_check(&mount.dir().join("before"), 1, 8 * MIB)?;
    let intruder = os::open(disk.path().join("intruder"), OFlags::CREATE | OFlags::WRONLY, 0o644)?;
    // In one step: whoever fills the disk bit by bit may also get what the namespace has kept back for
    // this moment and has just given up.
    loop {
        let free = rustix::fs::statvfs(disk.path())?;
        let free = free.f_bavail * free.f_frsize;
        match rustix::fs::fallocate(&intruder, rustix::fs::FallocateFlags::empty(), 0, free) {
            // The daemon has just taken some of it.
            Err(Errno::NOSPC) => {}
            done => break done?,
        }
    }
    write_and_check(&mount.dir().join("after"), 2, 16 * MIB)?;
    check(&mount.dir().join("before"), 1, 8 * MIB)?;
    mount.unmount()?;
    check(&mount.backing().join("before"), 1, 8 * MIB)?;
    check(&mount.backing().join("after"), 2, 16 * MIB)
}

/// Writes files of a MiB until one is refused, which must be with this error, and takes that one away:
/// which were acknowledged. All of those are there.
fn write_until_refused(mount: &ForebayMount, expected: Errno) -> Outcome<Vec<u64>> {
    let mut kept = Vec::new();
    for i in 0..64 {
        let path = mount.dir().join(format!("f{i}"));
        let Err(errno) = acknowledged(&path, i) else {
            kept.push(i);
            continue;
        };
        ensure!(errno == expected, "a store without room gave {errno:?}, not {expected:?}");
        for i in &kept {
            check(&mount.dir().join(format!("f{i}")), *i, MIB)?;
        }
        rustix::fs::unlink(&path)?;
        return Ok(kept);
    }
    Err(Failure::at("64 MiB fit into a tier of 16 and a store with less room"))
}

/// The backing store is full: the writer gets ENOSPC (at the latest from fsync), what fsync has
/// acknowledged stays readable, and after space is made the drain succeeds.
pub fn backing_store_full(passthrough: Passthrough) -> Outcome {
    let backing = SmallDisk::new(32 * MIB)?;
    let tier = SmallDisk::new(64 * MIB)?;
    let ballast = backing.path().join("ballast");
    os::write_file(&ballast, &vec![1; 24 * MIB as usize])?;
    let mut mount = ForebayMount::new(MountOptions {
        backing: Some(backing.path().to_owned()),
        tiers: vec![(tier.path().join("tier"), 16 * MIB)],
        passthrough: Some(passthrough),
        writeback: Some("1h".into()),
        ..MountOptions::default()
    })?;
    let _guard = watchdog::guard(LIMIT * 3, "backing store full");
    let kept = write_until_refused(&mount, Errno::NOSPC)?;
    rustix::fs::unlink(mount.dir().join("ballast"))?;
    mount.unmount()?;
    kept.iter().try_for_each(|i| check(&backing.path().join(format!("f{i}")), *i, MIB))
}

/// A directory with a quota of the kernel's: a subvolume of Btrfs on a loop device. Needs root,
/// a loop device and the tools of Btrfs; unmounted and removed on drop.
struct QuotaDisk {
    dir: tempfile::TempDir,
}

impl QuotaDisk {
    fn new(quota: u64) -> Outcome<Self> {
        let skipped = |what: &str, why: &dyn std::fmt::Display| {
            Failure::Skipped(format!("no quota can be set here: {what}: {why}"))
        };
        if !os::is_root() {
            return Err(skipped("mount", &"it needs root"));
        }
        let disk = Self { dir: tempfile::Builder::new().prefix("forebay-test-").tempdir()? };
        let image = disk.dir.path().join("image");
        std::fs::File::create(&image).and_then(|file| file.set_len(256 * MIB))?;
        std::fs::create_dir(disk.mount())?;
        let (image, mount, volume) = (image.as_os_str(), disk.mount(), disk.path());
        let (quota, mount, volume) = (quota.to_string(), mount.as_os_str(), volume.as_os_str());
        let steps: [(&str, &[&std::ffi::OsStr]); 5] = [
            ("mkfs.btrfs", &["-q".as_ref(), image]),
            ("mount", &["-o".as_ref(), "loop".as_ref(), image, mount]),
            ("btrfs", &["quota".as_ref(), "enable".as_ref(), mount]),
            ("btrfs", &["subvolume".as_ref(), "create".as_ref(), volume]),
            ("btrfs", &["qgroup".as_ref(), "limit".as_ref(), quota.as_ref(), volume]),
        ];
        for (program, arguments) in steps {
            run_checked(Command::new(program).args(arguments), LIMIT)
                .map_err(|error| skipped(program, &error))?;
        }
        Ok(disk)
    }

    fn mount(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    fn path(&self) -> PathBuf {
        self.mount().join("volume")
    }

    /// Takes the limit away: all quotas, and through the root of the disk, which has none itself.
    /// To change the limit of a volume that is full can be refused for its quota.
    fn lift(&self) -> Outcome {
        let mut command = Command::new("btrfs");
        command.args(["quota", "disable"]).arg(self.mount());
        run_checked(&mut command, LIMIT)?;
        Ok(())
    }
}

impl Drop for QuotaDisk {
    fn drop(&mut self) {
        let _ = run_checked(Command::new("umount").arg("-l").arg(self.mount()), LIMIT);
    }
}

/// A quota of the backing store's, used up while the tier is full: the writer gets `EDQUOT`, what was
/// acknowledged is there, and reaches the backing store when the quota is raised.
pub fn quota_used_up(passthrough: Passthrough) -> Outcome {
    let backing = QuotaDisk::new(12 * MIB)?;
    let tier = SmallDisk::new(64 * MIB)?;
    let mut mount = ForebayMount::new(MountOptions {
        backing: Some(backing.path()),
        tiers: vec![(tier.path().join("tier"), 16 * MIB)],
        passthrough: Some(passthrough),
        writeback: Some("1h".into()),
        ..MountOptions::default()
    })?;
    let _guard = watchdog::guard(LIMIT * 3, "quota used up");
    let kept = write_until_refused(&mount, Errno::DQUOT)?;
    backing.lift()?;
    mount.unmount()?;
    kept.iter().try_for_each(|i| check(&backing.path().join(format!("f{i}")), *i, MIB))
}

fn acknowledged(path: &Path, tag: u64) -> os::Call {
    let fd = os::open(path, OFlags::CREATE | OFlags::WRONLY, 0o644)?;
    os::write_at(&fd, 0, &pattern(tag, MIB as usize))?;
    rustix::fs::fsync(&fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_disk_when_overfilled_then_the_writer_gets_enospc() {
        let disk = match SmallDisk::new(MIB) {
            Err(Failure::Skipped(_)) => return,
            other => other.unwrap(),
        };
        assert_eq!(os::write_file(disk.path().join("f"), &vec![0; 2 << 20]), Err(Errno::NOSPC));
        let path = disk.path().to_owned();
        drop(disk);
        assert!(!path.exists());
    }

    #[test]
    fn check_when_one_byte_differs_then_it_fails() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        write_and_check(&path, 9, 2 * MIB).unwrap();
        os::write_at(os::open(&path, OFlags::WRONLY, 0).unwrap(), MIB + 5, b"\0\0").unwrap();
        assert!(check(&path, 9, 2 * MIB).is_err());
    }
}
