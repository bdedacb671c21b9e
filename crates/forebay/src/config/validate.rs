//! Checks of a configuration against the machine, before anything is touched.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::parse::{MountConfig, SpaceSize, Transport};
use crate::mountinfo::{self, Mount};
use crate::units::format_bytes;

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The mount can't work, or would do harm.
    Error(String),
    /// The mount works, but not as its user may think.
    Warning(String),
}

/// A directory as far as the checks are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Whether it holds nothing.
    pub empty: bool,
    /// Device and inode, which identify it whatever its path.
    pub identity: (u64, u64),
}

/// A file system as far as the checks are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Its device, which identifies it.
    pub device: u64,
    /// Its size in bytes.
    pub total_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
}

/// What the checks must know of the machine; tests give their own answers.
pub trait Facts {
    /// The path without symbolic links.
    fn canonical(&self, path: &Path) -> io::Result<PathBuf>;
    /// Opens and looks at a directory.
    fn directory(&self, path: &Path) -> io::Result<Directory>;
    /// The file system that an existing path lies on.
    fn file_system(&self, path: &Path) -> io::Result<FileSystem>;
    /// Whether this process may make files in a directory.
    fn writable(&self, path: &Path) -> io::Result<()>;
    /// Owner and permission bits.
    fn owner(&self, path: &Path) -> io::Result<(u32, u32)> {
        let found = std::fs::metadata(path)?;
        Ok((found.uid(), found.mode() & 0o7777))
    }
    /// All mounts.
    fn mounts(&self) -> Vec<Mount>;
    /// Opens /dev/fuse.
    fn fuse_device(&self) -> io::Result<()>;
    /// Whether this process may mount without help.
    fn may_mount(&self) -> bool;
    /// Whether fusermount3 is installed.
    fn has_fusermount(&self) -> bool;
    /// Whether plain users may let others use their mounts.
    fn user_allow_other(&self) -> bool;
}

/// The machine as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemFacts;

impl Facts for SystemFacts {
    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        std::fs::canonicalize(path)
    }

    fn directory(&self, path: &Path) -> io::Result<Directory> {
        let metadata = std::fs::metadata(path)?;
        let empty = std::fs::read_dir(path)?.next().is_none();
        Ok(Directory { empty, identity: (metadata.dev(), metadata.ino()) })
    }

    fn file_system(&self, path: &Path) -> io::Result<FileSystem> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(FileSystem {
            device: std::fs::metadata(path)?.dev(),
            total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }

    fn writable(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::access(path, rustix::fs::Access::WRITE_OK)?)
    }

    fn mounts(&self) -> Vec<Mount> {
        mountinfo::read().unwrap_or_default()
    }

    fn fuse_device(&self) -> io::Result<()> {
        std::fs::File::options().read(true).write(true).open("/dev/fuse").map(drop)
    }

    fn may_mount(&self) -> bool {
        has_capability(CAP_SYS_ADMIN)
    }

    fn has_fusermount(&self) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        std::env::split_paths(&path).any(|dir| dir.join("fusermount3").is_file())
    }

    fn user_allow_other(&self) -> bool {
        let text = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
        text.lines().any(|line| line.trim() == "user_allow_other")
    }
}

/// The capability that mount(2) and passthrough need (capabilities(7)).
pub const CAP_SYS_ADMIN: u32 = 21;

/// Whether this process has a capability in effect.
pub fn has_capability(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << number) != 0
}

/// Checks everything that can be checked without touching anything. All findings are told, so
/// that the user need not try again for each.
pub fn validate(config: &MountConfig, facts: &dyn Facts) -> Vec<Finding> {
    let mut check = Check { config, facts, findings: Vec::new() };
    check.fuse();
    check.transport();
    let backing = check.backing();
    let mountpoint = check.mountpoint();
    if let (Some(backing), Some(mountpoint)) = (&backing, &mountpoint) {
        check.backing_against_mountpoint(backing, mountpoint);
    }
    let mut seen: Vec<PathBuf> = Vec::new();
    for index in 0..config.tiers.len() {
        let dir = check.tier(index, backing.as_deref(), mountpoint.as_deref());
        if seen.contains(&dir) {
            check.error(format!(
                "--tier {}: given twice; each tier needs a directory of its own",
                dir.display()
            ));
        } else if let Some(outer) = seen.iter().find(|other| nested(other, &dir)) {
            check.error(format!(
                "--tier {}: one of it and {} lies inside the other; tiers must be apart",
                dir.display(),
                outer.display()
            ));
        }
        seen.push(dir);
    }
    check.findings
}

/// What is said of a mount point that has a mount.
pub const MOUNTED_ALREADY: &str = "a Forebay mount is here already";

/// A smaller tier has no room for a file and its header beside the reserve.
const LEAST_TIER: u64 = 32 << 10;

/// Checks that directories which are to be made have a parent; with `create` they need none.
pub fn check_parents(config: &MountConfig, create: bool) -> Vec<Finding> {
    let state = config.state_dir_given.then_some(("--state-dir", &config.state_dir));
    let tiers = config.tiers.iter().map(|tier| ("--tier", &tier.dir));
    let orphaned = tiers.chain(state).filter(|(_, dir)| !create && !dir.exists());
    let missing = orphaned.filter_map(|(flag, dir)| {
        let parent = dir.parent().filter(|parent| !parent.is_dir())?;
        Some(Finding::Error(format!(
            "{flag} {}: {} does not exist; is its device mounted? With --create-tier both are made",
            dir.display(),
            parent.display()
        )))
    });
    missing.collect()
}

/// Whether one of two paths lies inside the other.
fn nested(a: &Path, b: &Path) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

struct Check<'a> {
    config: &'a MountConfig,
    facts: &'a dyn Facts,
    findings: Vec<Finding>,
}

impl Check<'_> {
    fn transport(&mut self) {
        let supervised = !self.config.no_supervisor && !self.config.foreground;
        if self.config.transport == Transport::Uring && supervised {
            self.warn(
                "--transport uring: what the kernel is giving to a daemon in the moment when it is \
                 killed fails with ECANCELED, once; leave the transport to `auto` if programs can't \
                 bear that"
                    .into(),
            );
        }
    }

    fn error(&mut self, message: String) {
        self.findings.push(Finding::Error(message));
    }

    fn warn(&mut self, message: String) {
        self.findings.push(Finding::Warning(message));
    }

    fn fuse(&mut self) {
        if let Err(error) = self.facts.fuse_device() {
            self.error(match error.kind() {
                io::ErrorKind::NotFound => "/dev/fuse is missing: load the kernel module (`modprobe fuse`), or in a container add `--device /dev/fuse`".into(),
                io::ErrorKind::PermissionDenied => format!("/dev/fuse can't be opened by this user ({error}), nor by fusermount3, which opens it with the rights of its caller: `chmod 666 /dev/fuse` as root, as udev has it by default, or mount as root"),
                _ => format!("/dev/fuse can't be opened ({error}): run as root, or give your user access to it"),
            });
        } else if !self.facts.may_mount() && !self.facts.has_fusermount() {
            self.error(
                "without root, mounting needs fusermount3: install the package fuse3".into(),
            );
        }
        if self.facts.may_mount() {
            return;
        }
        if self.config.allow_other == Some(true) && !self.facts.user_allow_other() {
            self.error(
                "--allow-other: plain users need the line user_allow_other in /etc/fuse.conf"
                    .into(),
            );
        }
        for (wanted, flag) in [(self.config.suid, "--suid"), (self.config.dev, "--dev")] {
            if wanted == Some(true) {
                self.error(format!("{flag}: only root's mounts can have it; leave it out"));
            }
        }
    }

    /// Checks that the backing store is a readable directory; returns its true path.
    fn backing(&mut self) -> Option<PathBuf> {
        let path = &self.config.backing;
        let found =
            self.facts.canonical(path).and_then(|real| self.facts.directory(&real).map(|_| real));
        match found {
            Ok(real) => {
                if mountinfo::containing(&self.facts.mounts(), &real).is_some_and(Mount::is_forebay)
                {
                    self.error(format!("{}: lies on a Forebay mount itself; name the directory beneath it (`findmnt -T {0}` shows it as SOURCE)", path.display()));
                }
                self.backing_mounted(&real);
                self.backing_writable(&real);
                Some(real)
            }
            Err(error) => {
                self.error(match error.kind() {
                    io::ErrorKind::NotFound => format!(
                        "backing store {}: does not exist; is its file system mounted?",
                        path.display()
                    ),
                    io::ErrorKind::NotADirectory => {
                        format!("backing store {}: is not a directory", path.display())
                    }
                    io::ErrorKind::PermissionDenied => format!(
                        "backing store {}: can't be read by this user; run as its owner or as root",
                        path.display()
                    ),
                    _ => format!("backing store {}: {error}", path.display()),
                });
                None
            }
        }
    }

    /// An empty directory is there in place of a file system that is not mounted.
    fn backing_mounted(&mut self, real: &Path) {
        if !self.config.require_mounted {
            return;
        }
        let mounts = self.facts.mounts();
        let mount = mountinfo::containing(&mounts, real);
        if mount.is_none_or(|mount| mount.mountpoint == Path::new("/")) {
            self.error(format!("backing store {}: is on the root file system, and --require-mounted is given; mount its own file system there first", self.config.backing.display()));
        }
    }

    /// What is written could never be stored.
    fn backing_writable(&mut self, real: &Path) {
        let Err(error) = self.facts.writable(real) else { return };
        if self.config.read_only {
            return;
        }
        let shown = self.config.backing.display();
        self.error(match error.kind() {
            io::ErrorKind::ReadOnlyFilesystem => format!("backing store {shown}: is read-only, and what is written could never be stored there; mount with --read-only, or remount it"),
            _ => format!("backing store {shown}: can't be written by this user ({error}); run as its owner or as root, or mount with --read-only"),
        });
    }

    fn mountpoint(&mut self) -> Option<PathBuf> {
        let path = &self.config.mountpoint;
        // The parent alone is resolved: a mount point whose daemon died can't be looked at.
        let real = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => {
                self.facts.canonical(parent).ok().map(|parent| parent.join(name))
            }
            _ => None,
        };
        if real
            .as_deref()
            .and_then(|real| mountinfo::at(&self.facts.mounts(), real).map(Mount::is_forebay))
            == Some(true)
        {
            self.error(format!("{}: {MOUNTED_ALREADY}; `forebay status {0}` shows it, `forebay umount {0}` ends it", path.display()));
            return None;
        }
        let found = self
            .facts
            .canonical(path)
            .and_then(|real| self.facts.directory(&real).map(|dir| (real, dir)));
        match found {
            Ok((real, dir)) => {
                if !dir.empty
                    && self.facts.canonical(&self.config.backing).ok().as_ref() != Some(&real)
                {
                    self.warn(format!(
                        "{}: is not empty; its files are hidden while Forebay is mounted on it",
                        path.display()
                    ));
                }
                if mountinfo::containing(&self.facts.mounts(), &real).is_some_and(Mount::is_forebay)
                {
                    self.error(format!("{}: lies on a Forebay mount; mount somewhere else, nested mounts are not possible", path.display()));
                }
                Some(real)
            }
            Err(error) => {
                self.error(match error.kind() {
                    io::ErrorKind::NotFound => format!("mount point {}: does not exist; create it with `mkdir -p {0}`", path.display()),
                    io::ErrorKind::NotADirectory => format!("mount point {}: is not a directory", path.display()),
                    io::ErrorKind::NotConnected => format!("mount point {}: another FUSE mount is here whose daemon is dead; remove it with `fusermount3 -uz {0}`", path.display()),
                    _ => format!("mount point {}: {error}", path.display()),
                });
                None
            }
        }
    }

    fn backing_against_mountpoint(&mut self, backing: &Path, mountpoint: &Path) {
        if mountpoint != backing && mountpoint.starts_with(backing) {
            self.error(format!("mount point {}: lies inside the backing store, which would then contain itself; choose a place outside {}", mountpoint.display(), backing.display()));
        } else if backing != mountpoint && backing.starts_with(mountpoint) {
            self.error(format!(
                "mount point {}: contains the backing store {}, which the mount would hide",
                mountpoint.display(),
                backing.display()
            ));
        } else if backing == mountpoint {
            self.error(format!(
                "mount point {}: is the backing store itself; choose another directory",
                mountpoint.display()
            ));
        }
    }

    /// Checks one tier; returns its true path as far as it exists.
    fn tier(&mut self, index: usize, backing: Option<&Path>, mountpoint: Option<&Path>) -> PathBuf {
        let tier = &self.config.tiers[index];
        let shown = tier.dir.display();
        let (existing, real) = self.existing_ancestor(&tier.dir);
        if tier.size.is_zero() {
            self.error(format!("--tier {shown}: a size of 0 keeps nothing; give it some space"));
        } else if matches!(tier.size, SpaceSize::Bytes(bytes) if bytes < LEAST_TIER) {
            self.error(format!(
                "--tier {shown}: {} keeps nothing; give it at least {}",
                tier.size,
                format_bytes(LEAST_TIER)
            ));
        }
        if real == existing
            && let Err(error) = self.facts.directory(&real)
        {
            self.error(match error.kind() {
                io::ErrorKind::NotADirectory => format!("--tier {shown}: is not a directory"),
                _ => format!("--tier {shown}: {error}"),
            });
        }
        if let Some(backing) = backing.filter(|backing| nested(backing, &real)) {
            self.error(if real.starts_with(backing) {
                format!("--tier {shown}: lies inside the backing store, where it would appear as a file of the user; choose a directory on a fast local device")
            } else {
                format!("--tier {shown}: contains the backing store; choose a directory of its own")
            });
        }
        if let Some(mountpoint) = mountpoint.filter(|mountpoint| nested(mountpoint, &real)) {
            self.error(if mountpoint.starts_with(&real) {
                format!(
                    "mount point {}: lies inside the tier {shown}; choose a place outside",
                    mountpoint.display()
                )
            } else {
                format!("--tier {shown}: lies below the mount point, which will hide it")
            });
        }
        self.tier_space(index, &existing, backing);
        self.tier_place(&tier.dir, &existing, &real);
        real
    }

    /// Whether another user can put another directory in the place of a tier. The directory itself is
    /// looked at when it is opened.
    fn tier_place(&mut self, shown: &Path, existing: &Path, real: &Path) {
        const WRITABLE: u32 = 0o022;
        const STICKY: u32 = 0o1000;
        let me = rustix::process::geteuid().as_raw();
        let above = existing.ancestors().filter(|dir| *dir != real);
        let others = above.filter_map(|dir| {
            let (owner, mode) = self.facts.owner(dir).ok()?;
            match mode & WRITABLE != 0 && mode & STICKY == 0 {
                _ if ![0, me].contains(&owner) => Some((dir, format!("belongs to user {owner}"))),
                true => Some((dir, format!("can be written by others (mode {mode:o})"))),
                false => None,
            }
        });
        let found = others.last();
        if let Some((dir, why)) = found {
            self.warn(format!("--tier {}: {} {why}, who can put another directory in the tier's place and so exchange what it holds; choose a place below directories of root or your own", shown.display(), dir.display()));
        }
    }

    fn tier_space(&mut self, index: usize, existing: &Path, backing: Option<&Path>) {
        let tier = &self.config.tiers[index];
        let shown = tier.dir.display();
        let Ok(system) = self.facts.file_system(existing) else { return };
        let size = tier.size.of(system.total_bytes);
        if size > system.total_bytes {
            self.error(format!("--tier {shown}: {} is more than its file system has ({}); give at most that, or a percentage such as 80%", tier.size, format_bytes(system.total_bytes)));
        } else if size > system.free_bytes && !tier.dir.exists() {
            self.warn(format!("--tier {shown}: only {} of {} are free now; Forebay uses what it gets and writes the rest to the backing store", format_bytes(system.free_bytes), tier.size));
        }
        let same = backing
            .and_then(|backing| self.facts.file_system(backing).ok())
            .is_some_and(|other| other.device == system.device);
        if same {
            self.warn(format!("--tier {shown}: lies on the backing store's own file system, so nothing becomes faster and each file takes its space twice; name a directory on a faster device, such as /dev/shm"));
        }
    }

    /// The nearest ancestor that exists, and the true path that the whole would have.
    fn existing_ancestor(&self, path: &Path) -> (PathBuf, PathBuf) {
        for ancestor in path.ancestors() {
            if let Ok(real) = self.facts.canonical(ancestor) {
                let rest = path.strip_prefix(ancestor).unwrap_or(Path::new(""));
                let whole =
                    if rest.as_os_str().is_empty() { real.clone() } else { real.join(rest) };
                return (real, whole);
            }
        }
        (PathBuf::from("/"), path.to_owned())
    }
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
