//! `doctor`: is this machine fit for Forebay, and what to do if not.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::process::Resource;
use serde::Serialize;

use super::{print, print_json};
use crate::cli::DoctorArgs;
use crate::commands::cluster::Outlook;
use crate::config::{CAP_SYS_ADMIN, Facts, SystemFacts, has_capability};
use crate::control::{ClusterLook, ClusterServer, ServerLog, runtime_dir};
use crate::engine::Engine;
use crate::error::{Error, Exit};
use crate::mountinfo;
use crate::units::format_bytes;

/// linux/capability.h: limits of locked memory do not count.
const CAP_IPC_LOCK: u32 = 14;

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
pub fn run(args: &DoctorArgs, engine: &dyn Engine) -> Result<u8, Error> {
    let mut checks = vec![
        kernel(),
        fuse_device(),
        mounting(),
        passthrough(),
        io_uring(),
        descriptors(),
        locked_memory(),
        runtime(),
    ];
    if let Some(dir) = &args.backing {
        checks.push(backing(dir));
        checks.extend(stack_depth(dir));
    }
    for dir in &args.tiers {
        checks.push(tier(dir, args.backing.as_deref()));
        checks.extend(stack_depth(dir));
        checks.extend(leases(dir));
    }
    if let Some(address) = &args.cluster {
        checks.extend(cluster(&engine.look_at_cluster(address)?, args.backing.as_deref()));
    }
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
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => check(
            "/dev/fuse",
            Verdict::Missing,
            format!(
                "{error}; fusermount3 opens it with the rights of its caller: `chmod 666 /dev/fuse` \
                 as root, as udev has it by default, or mount as root"
            ),
        ),
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
    if !has_capability(CAP_SYS_ADMIN) {
        check(
            "passthrough",
            Verdict::Limited,
            "needs CAP_SYS_ADMIN: mount as root for the tier's own speed",
        )
    } else if !in_first_user_namespace() {
        check(
            "passthrough",
            Verdict::Limited,
            "CAP_SYS_ADMIN of a user namespace does not count: mount outside of it, or in a \
             privileged container, for the tier's own speed",
        )
    } else {
        check("passthrough", Verdict::Ok, "resident files at the tier's own speed")
    }
}

/// Whether root here is root of the machine: all ids are mapped to themselves.
fn in_first_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn io_uring() -> Check {
    let read = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    io_uring_from(
        read("/sys/module/fuse/parameters/enable_uring").as_deref(),
        read("/proc/sys/kernel/io_uring_disabled").as_deref(),
    )
}

/// From what the module's parameter and the sysctl say, if they are there.
fn io_uring_from(enabled: Option<&str>, disabled: Option<&str>) -> Check {
    let (verdict, found) = match (enabled, disabled) {
        (None, _) => (
            Verdict::Limited,
            "this kernel has none for FUSE (6.14 brought it); metadata is somewhat slower",
        ),
        (_, Some("2")) => (
            Verdict::Limited,
            "forbidden on this machine: `sysctl kernel.io_uring_disabled=0`, or 1 for the privileged",
        ),
        (Some("Y"), Some("1")) => (Verdict::Ok, "enabled for FUSE; for the privileged only"),
        (Some("Y"), _) => (Verdict::Ok, "enabled for FUSE"),
        (Some(_), _) => (
            Verdict::Limited,
            "in the kernel but off: `echo Y > /sys/module/fuse/parameters/enable_uring`",
        ),
    };
    check("io_uring", verdict, found)
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

/// Below this much locked memory old kernels refused rings; larger amounts nobody needs.
const RING_MEMORY: u64 = 8 << 20;

fn locked_memory() -> Check {
    match rustix::process::getrlimit(Resource::Memlock).current {
        Some(bytes) if bytes < RING_MEMORY && !has_capability(CAP_IPC_LOCK) => check(
            "locked memory",
            Verdict::Limited,
            format!(
                "at most {}: io_uring may be refused; raise `ulimit -l` or LimitMEMLOCK= to 8 MiB",
                format_bytes(bytes)
            ),
        ),
        Some(bytes) => {
            check("locked memory", Verdict::Ok, format!("at most {}", format_bytes(bytes)))
        }
        None => check("locked memory", Verdict::Ok, "no limit"),
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
        Ok(_) if SystemFacts.writable(dir).is_err() => check(
            "backing store",
            Verdict::Limited,
            format!("{}: can't be written: mount it with --read-only", dir.display()),
        ),
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
            format!(
                "{shown}: {error}; a tier must be writable and keep extended attributes of {HEADER} \
                 bytes (ext4 with blocks of 1 KiB does not)"
            ),
        );
    }
    let mounts = SystemFacts.mounts();
    let kind = mountinfo::containing(&mounts, &existing).map_or("", |mount| mount.kind.as_str());
    let free = format!("{shown}: {kind}, {} free", format_bytes(system.free_bytes));
    if !dir.exists() {
        let parent = dir.parent().unwrap_or(dir);
        if !parent.as_os_str().is_empty() && !parent.is_dir() {
            return check(
                "tier",
                Verdict::Missing,
                format!(
                    "{shown}: neither it nor {} exists; is its device mounted? (`forebay mount \
                     --create-tier` would make both on {kind})",
                    parent.display()
                ),
            );
        }
        return check(
            "tier",
            Verdict::Limited,
            format!("{free}; does not exist yet, a mount makes it on this file system"),
        );
    }
    let me = rustix::process::geteuid().as_raw();
    if let Ok((owner, _)) = SystemFacts.owner(dir)
        && owner != me
    {
        let what =
            format!("{shown}: belongs to user {owner} and not to user {me}; a mount refuses it");
        return check("tier", Verdict::Missing, what);
    }
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

/// Whether a cluster can be joined from here.
fn cluster(look: &ClusterLook, backing: Option<&Path>) -> Vec<Check> {
    let mut checks: Vec<Check> = look.servers.iter().map(metadata_server).collect();
    checks.push(match &look.trouble {
        None => check("names", Verdict::Ok, super::cluster::agreed(&look.terms)),
        Some(why) => check("names", Verdict::Missing, why.clone()),
    });
    let (outlook, text) = super::cluster::survives(look);
    let verdict = match outlook {
        Outlook::GoesOn => Verdict::Ok,
        Outlook::Waits => Verdict::Limited,
        Outlook::Unfit => Verdict::Missing,
    };
    checks.push(check("server dies", verdict, text));
    checks.extend(backing.and_then(|backing| shared_store(look, backing)));
    checks
}

fn metadata_server(server: &ClusterServer) -> Check {
    let what = format!(
        "{}: {}, {}, log {}",
        server.address,
        server.version.as_deref().unwrap_or("version unknown"),
        if server.primary { "primary" } else { "replica" },
        super::cluster::log_of(server)
    );
    match (&server.trouble, server.log) {
        // Others have taken its part over, or it will be missed by them.
        (Some(why), _) if !server.serves => {
            check("server", Verdict::Limited, format!("{}: {why}", server.address))
        }
        (Some(why), _) => check("server", Verdict::Missing, format!("{}: {why}", server.address)),
        (None, Some(ServerLog::Nothing)) => check(
            "server",
            if server.primary { Verdict::Missing } else { Verdict::Limited },
            format!("{what}: set `appendonly yes` there, or its end loses all names"),
        ),
        (None, Some(ServerLog::EverySecond)) => check(
            "server",
            Verdict::Limited,
            format!("{what}: a loss of power may take the last two seconds; `appendfsync always`"),
        ),
        (None, _) => check("server", Verdict::Ok, what),
    }
}

/// Whether a directory is the backing store that the nodes of a cluster have; nothing before any has
/// mounted.
fn shared_store(look: &ClusterLook, backing: &Path) -> Option<Check> {
    let known = look.terms.backing.as_ref()?.as_path();
    let path = std::fs::canonicalize(backing).unwrap_or_else(|_| backing.to_owned());
    let shown = path.display();
    if path != known {
        let known = known.display();
        let why = format!("{shown}: the nodes have theirs at {known}, and all must have it there");
        return Some(check("shared store", Verdict::Missing, why));
    }
    let mark = look.terms.store.as_deref()?;
    let here = std::fs::read_to_string(path.join(".forebay/store")).unwrap_or_default();
    Some(match here.split_whitespace().last() == Some(mark) {
        true => check("shared store", Verdict::Ok, format!("{shown}: that of the other nodes")),
        false => check(
            "shared store",
            Verdict::Missing,
            format!(
                "{shown}: not that of the other nodes (mark {mark}): mount its file system there"
            ),
        ),
    })
}

/// A file without a name.
fn try_file(dir: &Path) -> Result<OwnedFd, rustix::io::Errno> {
    use rustix::fs::{Mode, OFlags, open};
    open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
}

/// Bytes of the longest header of an object: docs/reference/format.md.
const HEADER: usize = 2200;

/// Writes an extended attribute as long as a header to a file without a name.
fn try_attribute(dir: &Path) -> Result<(), rustix::io::Errno> {
    use rustix::fs::{XattrFlags, fsetxattr};
    fsetxattr(try_file(dir)?, "user.forebay.doctor", &[0; HEADER], XattrFlags::empty())
}

/// File systems on top of others: the kernel passes nothing through to their files, since a mount
/// asks for a stack of one.
const STACKED: [&str; 2] = ["overlay", "ecryptfs"];

/// Whether the kernel can pass through to files below `dir`; nothing if that is not to be told.
fn stack_depth(dir: &Path) -> Option<Check> {
    let existing = dir.ancestors().find_map(|dir| std::fs::canonicalize(dir).ok())?;
    let mounts = SystemFacts.mounts();
    let mount = mountinfo::containing(&mounts, &existing)?;
    Some(stack_depth_on(dir, &mount.kind, mount.is_forebay()))
}

fn stack_depth_on(dir: &Path, kind: &str, is_forebay: bool) -> Check {
    let shown = dir.display();
    if STACKED.contains(&kind) || is_forebay {
        return check(
            "stack depth",
            Verdict::Limited,
            format!(
                "{shown}: {kind} lies on another file system, and nothing is passed through to it; \
                 use a directory of the file system below (in a container, a volume)"
            ),
        );
    }
    check("stack depth", Verdict::Ok, format!("{shown}: {kind} is no stack"))
}

/// Whether the file system gives leases, by which the daemon knows that nobody has a file mapped;
/// nothing if no file can be made, which another check tells.
fn leases(dir: &Path) -> Option<Check> {
    let existing = dir.ancestors().find_map(|dir| std::fs::canonicalize(dir).ok())?;
    let file = try_file(&existing).ok()?;
    // SAFETY: a descriptor that is open, and commands that take a number and touch no memory.
    let taken = unsafe {
        let taken = libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK);
        let error = std::io::Error::last_os_error();
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK);
        if taken < 0 { Err(error) } else { Ok(()) }
    };
    let switched_off =
        std::fs::read_to_string("/proc/sys/fs/leases-enable").is_ok_and(|text| text.trim() == "0");
    let shown = dir.display();
    Some(match taken {
        Ok(()) => check("leases", Verdict::Ok, format!("{shown}: given")),
        Err(_) if switched_off => check(
            "leases",
            Verdict::Limited,
            format!("{shown}: switched off, so nothing is evicted: `sysctl fs.leases-enable=1`"),
        ),
        Err(error) => check(
            "leases",
            Verdict::Limited,
            format!(
                "{shown}: {error}; without them nothing is evicted: use a local file system (ext4, \
                 XFS, Btrfs, tmpfs), or --passthrough off"
            ),
        ),
    })
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
    fn stack_depth_when_the_file_system_lies_on_another_then_limited() {
        let on = |kind, is_forebay| stack_depth_on(Path::new("/tier"), kind, is_forebay).verdict;
        assert_eq!(on("ext4", false), Verdict::Ok);
        assert_eq!(on("overlay", false), Verdict::Limited);
        assert_eq!(on("fuse.forebay", true), Verdict::Limited);
    }

    #[test]
    fn io_uring_when_switched_off_somewhere_then_says_where() {
        let found = |enabled, disabled| {
            let check = io_uring_from(enabled, disabled);
            (check.verdict, check.found)
        };
        assert_eq!(found(Some("Y"), Some("0")).0, Verdict::Ok);
        assert_eq!(found(Some("Y"), None).0, Verdict::Ok);
        assert!(found(Some("N"), Some("0")).1.contains("enable_uring"));
        assert!(found(Some("Y"), Some("2")).1.contains("kernel.io_uring_disabled"));
        assert!(found(None, Some("0")).1.contains("6.14"));
    }

    #[test]
    fn leases_when_the_directory_is_local_or_unwritable_then_told_or_left_out() {
        let dir = tempfile::tempdir().unwrap();
        // Whether there are any depends on the machine; that something is said does not.
        let found = leases(dir.path()).map(|check| check.what);
        assert_eq!(found, try_file(dir.path()).ok().map(|_| "leases"));
        assert!(leases(Path::new("/proc/self")).is_none());
    }

    #[test]
    fn backing_when_missing_then_missing() {
        assert_eq!(backing(Path::new("/nowhere/at/all")).verdict, Verdict::Missing);
    }
}
