//! `doctor`: is this machine fit for Forebay, and what to do if not.

use std::path::Path;

use rustix::process::Resource;
use serde::Serialize;

use super::{print, print_json};
use crate::cli::DoctorArgs;
use crate::config::{CAP_SYS_ADMIN, Facts, SystemFacts, has_capability};
use crate::control::runtime_dir;
use crate::error::{Error, Exit};
use crate::mountinfo;
use crate::units::format_bytes;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but slower or with less than possible.
    Limited,
    /// Forebay will not work.
    Missing,
}

#[derive(Debug, Serialize)]
struct Check {
    what: &'static str,
    verdict: Verdict,
    found: String,
}

/// Runs all checks; fails with the code for missing features if Forebay will not work.
pub fn run(args: &DoctorArgs) -> Result<u8, Error> {
    let mut checks = vec![
        kernel(),
        fuse_device(),
        mounting(),
        passthrough(),
        io_uring(),
        descriptors(),
        runtime(),
    ];
    checks.extend(args.backing.as_deref().map(backing));
    checks.extend(args.tiers.iter().map(|dir| tier(dir, args.backing.as_deref())));
    if args.json {
        print_json(&checks)?;
    } else {
        print(&checks.iter().map(line).collect::<String>())?;
    }
    let fit = checks.iter().all(|check| check.verdict != Verdict::Missing);
    Ok(if fit { Exit::Ok.code() } else { Exit::Unsupported.code() })
}

fn line(check: &Check) -> String {
    let verdict = match check.verdict {
        Verdict::Ok => "ok     ",
        Verdict::Limited => "limited",
        Verdict::Missing => "MISSING",
    };
    format!("{verdict}  {:13}  {}\n", check.what, check.found)
}

fn check(what: &'static str, verdict: Verdict, found: impl Into<String>) -> Check {
    Check { what, verdict, found: found.into() }
}

/// Major and minor version of a kernel release such as `6.18.44-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn kernel_version() -> (String, Option<(u32, u32)>) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let parsed = version(&release);
    (release, parsed)
}

fn kernel() -> Check {
    let (release, parsed) = kernel_version();
    match parsed {
        Some(version) if version >= (6, 9) => check("kernel", Verdict::Ok, release),
        Some(version) if version >= (5, 4) => check(
            "kernel",
            Verdict::Limited,
            format!(
                "{release}: before 6.9 the kernel can't serve resident files itself (passthrough)"
            ),
        ),
        _ => check("kernel", Verdict::Missing, format!("{release}: Linux 5.4 or later is needed")),
    }
}

fn fuse_device() -> Check {
    match SystemFacts.fuse_device() {
        Ok(()) => check("/dev/fuse", Verdict::Ok, "can be opened"),
        Err(error)
            if error.kind() == std::io::ErrorKind::PermissionDenied
                && SystemFacts.has_fusermount() =>
        {
            check("/dev/fuse", Verdict::Ok, "is opened by fusermount3")
        }
        Err(error) => check(
            "/dev/fuse",
            Verdict::Missing,
            format!("{error}: `modprobe fuse`; in a container `--device /dev/fuse`"),
        ),
    }
}

fn mounting() -> Check {
    match (SystemFacts.may_mount(), SystemFacts.has_fusermount()) {
        (true, _) => check("mounting", Verdict::Ok, "by this process itself"),
        (false, true) if SystemFacts.user_allow_other() => {
            check("mounting", Verdict::Ok, "by fusermount3; --allow-other is permitted")
        }
        (false, true) => check(
            "mounting",
            Verdict::Limited,
            "by fusermount3; --allow-other needs user_allow_other in /etc/fuse.conf",
        ),
        (false, false) => {
            check("mounting", Verdict::Missing, "needs root, or fusermount3 from the package fuse3")
        }
    }
}

fn passthrough() -> Check {
    let (release, parsed) = kernel_version();
    if parsed < Some((6, 9)) {
        return check(
            "passthrough",
            Verdict::Limited,
            format!("not in Linux {release}; the daemon serves all reads and writes"),
        );
    }
    if has_capability(CAP_SYS_ADMIN) {
        check("passthrough", Verdict::Ok, "resident files at the tier's own speed")
    } else {
        check(
            "passthrough",
            Verdict::Limited,
            "needs CAP_SYS_ADMIN: mount as root for the tier's own speed",
        )
    }
}

fn io_uring() -> Check {
    match std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring")
        .as_deref()
        .map(str::trim)
    {
        Ok("Y") => check("io_uring", Verdict::Ok, "enabled for FUSE"),
        Ok(_) => check(
            "io_uring",
            Verdict::Limited,
            "in the kernel but off: `echo Y > /sys/module/fuse/parameters/enable_uring`",
        ),
        Err(_) => check(
            "io_uring",
            Verdict::Limited,
            "this kernel has none for FUSE (6.14 brought it); metadata is somewhat slower",
        ),
    }
}

fn descriptors() -> Check {
    let limit = rustix::process::getrlimit(Resource::Nofile).maximum;
    match limit {
        Some(maximum) if maximum < 65_536 => check(
            "open files",
            Verdict::Limited,
            format!(
                "at most {maximum}; each open file takes one: raise `ulimit -Hn` or LimitNOFILE="
            ),
        ),
        Some(maximum) => check("open files", Verdict::Ok, format!("at most {maximum}")),
        None => check("open files", Verdict::Ok, "no limit"),
    }
}

fn runtime() -> Check {
    let dir = runtime_dir(rustix::process::geteuid().as_raw());
    let existing = dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
    match rustix::fs::access(existing, rustix::fs::Access::WRITE_OK) {
        Ok(()) => check("runtime dir", Verdict::Ok, dir.display().to_string()),
        Err(error) => check(
            "runtime dir",
            Verdict::Missing,
            format!("{}: {error}; set FOREBAY_RUNTIME_DIR", dir.display()),
        ),
    }
}

fn backing(dir: &Path) -> Check {
    match SystemFacts.directory(dir).and_then(|_| SystemFacts.file_system(dir)) {
        Ok(system) => check(
            "backing store",
            Verdict::Ok,
            format!(
                "{}: {} of {} free",
                dir.display(),
                format_bytes(system.free_bytes),
                format_bytes(system.total_bytes)
            ),
        ),
        Err(error) => {
            check("backing store", Verdict::Missing, format!("{}: {error}", dir.display()))
        }
    }
}

/// File systems that keep their files in memory.
const MEMORY_FILE_SYSTEMS: [&str; 2] = ["tmpfs", "ramfs"];

fn tier(dir: &Path, backing: Option<&Path>) -> Check {
    let Some(existing) = dir.ancestors().find_map(|dir| std::fs::canonicalize(dir).ok()) else {
        return check("tier", Verdict::Missing, format!("{}: not found", dir.display()));
    };
    let shown = dir.display();
    let system = match SystemFacts.file_system(&existing) {
        Ok(system) => system,
        Err(error) => return check("tier", Verdict::Missing, format!("{shown}: {error}")),
    };
    if let Err(error) = try_attribute(&existing) {
        return check(
            "tier",
            Verdict::Missing,
            format!("{shown}: {error}; a tier must be writable and keep extended attributes"),
        );
    }
    let mounts = SystemFacts.mounts();
    let kind = mountinfo::containing(&mounts, &existing).map_or("", |mount| mount.kind.as_str());
    let free = format!("{shown}: {kind}, {} free", format_bytes(system.free_bytes));
    let same = backing
        .and_then(|backing| SystemFacts.file_system(backing).ok())
        .is_some_and(|other| other.device == system.device);
    if same {
        check(
            "tier",
            Verdict::Limited,
            format!("{free}; the backing store's own file system: nothing becomes faster"),
        )
    } else if MEMORY_FILE_SYSTEMS.contains(&kind) {
        check(
            "tier",
            Verdict::Limited,
            format!("{free}; in memory: a power cut loses what is not yet written back"),
        )
    } else {
        check("tier", Verdict::Ok, free)
    }
}

/// Writes an extended attribute to a file without a name.
fn try_attribute(dir: &Path) -> Result<(), rustix::io::Errno> {
    use rustix::fs::{Mode, OFlags, XattrFlags, fsetxattr, open};
    let file =
        open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?;
    fsetxattr(&file, "user.forebay.doctor", b"1", XattrFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_when_releases_are_odd_then_the_first_two_numbers_count() {
        assert_eq!(version("6.18.44-amd64"), Some((6, 18)));
        assert_eq!(version("5.4-rc1"), Some((5, 4)));
        assert_eq!(version("unknown"), None);
    }

    #[test]
    fn tier_when_it_is_the_backing_stores_file_system_then_limited() {
        let dir = tempfile::tempdir().unwrap();
        let found = tier(dir.path(), Some(dir.path()));
        assert_eq!(found.verdict, Verdict::Limited, "{found:?}");
        assert!(found.found.contains("nothing becomes faster"), "{found:?}");
    }

    #[test]
    fn tier_when_it_can_not_keep_attributes_then_missing() {
        assert_eq!(tier(Path::new("/proc/self"), None).verdict, Verdict::Missing);
    }

    #[test]
    fn backing_when_missing_then_missing() {
        assert_eq!(backing(Path::new("/nowhere/at/all")).verdict, Verdict::Missing);
    }
}
