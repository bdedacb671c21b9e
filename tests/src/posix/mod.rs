//! POSIX conformance checks, one file per area.
//!
//! A check is a named function on a fresh directory. It states what POSIX, or Linux where POSIX is
//! silent, demands of every file system; what a file system may choose is not checked. All checks
//! pass on native ext4 and tmpfs, which is tested.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::failure::{Failure, Outcome};
use crate::os::{self, OFlags};
use crate::watchdog;

mod access;
mod acl;
mod allocate;
mod copy;
mod create;
mod errors;
mod links;
mod locks;
mod mapping;
mod modes;
mod names;
mod notify;
mod open;
mod owners;
mod readdir;
mod rename;
mod statfs;
mod sync;
mod times;
mod truncate;
mod unlink;
mod vectored;
mod xattr;

/// What a check gets: a fresh, empty directory that every user may write to.
pub struct Ctx {
    dir: PathBuf,
}

/// One named check.
pub struct Check {
    /// The area, which is the module's name.
    pub area: &'static str,
    /// The function's name.
    pub name: &'static str,
    /// The check itself.
    pub run: fn(&Ctx) -> Outcome,
}

/// Declares the table of an area from the names of its functions.
macro_rules! checks {
    ($area:literal: $($name:ident),+ $(,)?) => {
        pub(super) const CHECKS: &[$crate::posix::Check] = &[
            $($crate::posix::Check { area: $area, name: stringify!($name), run: $name }),+
        ];
    };
}
use checks;

const AREAS: &[&[Check]] = &[
    create::CHECKS,
    modes::CHECKS,
    owners::CHECKS,
    access::CHECKS,
    links::CHECKS,
    rename::CHECKS,
    unlink::CHECKS,
    open::CHECKS,
    mapping::CHECKS,
    truncate::CHECKS,
    allocate::CHECKS,
    copy::CHECKS,
    vectored::CHECKS,
    xattr::CHECKS,
    acl::CHECKS,
    times::CHECKS,
    statfs::CHECKS,
    locks::CHECKS,
    readdir::CHECKS,
    names::CHECKS,
    errors::CHECKS,
    notify::CHECKS,
    sync::CHECKS,
];

/// Every check, in order.
pub fn all() -> impl Iterator<Item = &'static Check> {
    AREAS.iter().copied().flatten()
}

impl Ctx {
    /// The check's own directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path in it.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }

    /// A new file with this content, mode 0644.
    pub fn file(&self, name: &str, content: &[u8]) -> Outcome<PathBuf> {
        let path = self.path(name);
        os::write_file(&path, content)?;
        os::chmod(&path, 0o644)?;
        Ok(path)
    }

    /// A new empty file with exactly this mode.
    pub fn file_with_mode(&self, name: &str, mode: u32) -> Outcome<PathBuf> {
        let path = self.file(name, b"")?;
        os::chmod(&path, mode)?;
        Ok(path)
    }

    /// A new directory with exactly this mode.
    pub fn subdir(&self, name: &str, mode: u32) -> Outcome<PathBuf> {
        let path = self.path(name);
        os::mkdir(&path, 0o700)?;
        os::chmod(&path, mode)?;
        Ok(path)
    }

    /// A new file of this content, open for reading and writing.
    pub fn open_new(&self, name: &str, content: &[u8]) -> Outcome<OwnedFd> {
        let path = self.file(name, content)?;
        Ok(os::open(path, OFlags::RDWR, 0)?)
    }

    /// Skips the check unless it runs as root.
    pub fn need_root(&self) -> Outcome {
        if os::is_root() { Ok(()) } else { Err(Failure::Skipped("needs root".into())) }
    }
}

/// What a run found.
#[derive(Debug, Default)]
pub struct Report {
    /// How many passed.
    pub passed: usize,
    /// Name and reason of each that failed.
    pub failed: Vec<(String, String)>,
    /// Name and reason of each that could not run.
    pub skipped: Vec<(String, String)>,
}

/// One run at a time in a process: checks fork, and a child of one run would hold the other run's
/// descriptors (and with them its locks) for a while.
static ONE_RUN: Mutex<()> = Mutex::new(());

/// Longer than any check takes.
const CHECK_LIMIT: Duration = Duration::from_secs(120);

/// Runs every check whose `area.name` contains `filter` inside `root`, which must be writable and
/// enterable by every user, and writes one line for each to `out`.
pub fn run(root: &Path, filter: &str, out: &mut dyn Write) -> std::io::Result<Report> {
    let _one = ONE_RUN.lock();
    let mut report = Report::default();
    for check in all() {
        let name = format!("{}.{}", check.area, check.name);
        if !name.contains(filter) {
            continue;
        }
        let guard = watchdog::guard(CHECK_LIMIT, name.clone());
        let started = Instant::now();
        let outcome = run_one(root, check, &name);
        drop(guard);
        let millis = started.elapsed().as_millis();
        match outcome {
            Ok(()) => {
                writeln!(out, "ok   {name} ({millis} ms)")?;
                report.passed += 1;
            }
            Err(Failure::Skipped(reason)) => {
                writeln!(out, "skip {name}: {reason}")?;
                report.skipped.push((name, reason));
            }
            Err(Failure::Failed(reason)) => {
                writeln!(out, "FAIL {name}: {reason}")?;
                report.failed.push((name, reason));
            }
        }
    }
    Ok(report)
}

fn run_one(root: &Path, check: &Check, name: &str) -> Outcome {
    let ctx = Ctx { dir: root.join(name) };
    os::mkdir(&ctx.dir, 0o777)?;
    os::chmod(&ctx.dir, 0o777)?;
    let outcome = (check.run)(&ctx);
    // Also a check: a file system must be able to remove what was made on it.
    let removed = std::fs::remove_dir_all(&ctx.dir);
    outcome?;
    Ok(removed?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_when_listed_then_every_name_is_unique() {
        let mut names: Vec<String> = all().map(|c| format!("{}.{}", c.area, c.name)).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
