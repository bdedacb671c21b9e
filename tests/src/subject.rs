//! What a suite runs on: a directory, native or on a Forebay mount.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::process::{eventually, spawn, wait_for_starts};
use crate::watchdog;

/// How long a mount or any other command may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// And one that waits until all is on a disk, which others may keep busy for that long.
const SYNC_LIMIT: Duration = Duration::from_secs(180);

/// Why a subject could not be set up or taken down.
#[derive(Debug, thiserror::Error)]
pub enum SubjectError {
    /// The binary is not where it should be.
    #[error(
        "no forebay binary at {0}: build it with `cargo build -p forebay`, or name one in FOREBAY_BIN"
    )]
    NoBinary(PathBuf),
    /// The daemon ended, or its mount did not appear.
    #[error("forebay mount of {mountpoint} failed ({reason}); its log ends:\n{log}")]
    Mount {
        /// Where it should have been.
        mountpoint: PathBuf,
        /// What was seen.
        reason: String,
        /// The end of the daemon's standard error.
        log: String,
    },
    /// A command returned an error or did not return in time.
    #[error("`{command}` failed ({reason}): {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// Exit status or time limit.
        reason: String,
        /// What it printed.
        stderr: String,
    },
    /// A system call around the subject failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> SubjectError {
    let what = what.into();
    move |source| SubjectError::Io { what, source }
}

/// Something that offers a directory to test.
pub trait Subject {
    /// The empty directory under test; every user can enter it.
    fn dir(&self) -> &Path;
    /// What to call it in reports.
    fn name(&self) -> String;
}

/// A directory on a native file system, removed on drop.
pub struct NativeDir {
    dir: TempDir,
}

impl NativeDir {
    /// A fresh directory inside `parent`.
    pub fn inside(parent: &Path) -> Result<Self, SubjectError> {
        Ok(Self { dir: open_dir(parent)? })
    }

    /// A fresh directory on the disk behind the system's temporary directory.
    pub fn on_disk() -> Result<Self, SubjectError> {
        Self::inside(&std::env::temp_dir())
    }

    /// A fresh directory in shared memory (tmpfs).
    pub fn in_memory() -> Result<Self, SubjectError> {
        Self::inside(Path::new("/dev/shm"))
    }
}

impl Subject for NativeDir {
    fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn name(&self) -> String {
        format!("native {}", self.dir.path().display())
    }
}

/// A temporary directory that other users can enter.
fn open_dir(parent: &Path) -> Result<TempDir, SubjectError> {
    let dir = tempfile::Builder::new()
        .prefix("forebay-test-")
        .tempdir_in(parent)
        .map_err(io_error(format!("temporary directory in {}", parent.display())))?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))
        .map_err(io_error("permissions of the temporary directory"))?;
    Ok(dir)
}

/// The values of `--passthrough`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passthrough {
    /// Everything through the daemon.
    Off,
    /// Reads of resident files by the kernel.
    Read,
    /// Reads and writes by the kernel.
    ReadWrite,
}

impl Passthrough {
    /// As on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Read => "read",
            Self::ReadWrite => "readwrite",
        }
    }
}

/// How to mount.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// The backing store; None makes a fresh directory on disk.
    pub backing: Option<PathBuf>,
    /// The tiers, fastest first, with their sizes in bytes; empty makes one in shared memory.
    pub tiers: Vec<(PathBuf, u64)>,
    /// Without `tiers`: the sizes in bytes of those made in shared memory; empty makes one of
    /// [`DEFAULT_TIER_BYTES`].
    pub tier_sizes: Vec<u64>,
    /// `--passthrough`; None leaves the default.
    pub passthrough: Option<Passthrough>,
    /// `--writeback`, as written there; None leaves the default.
    pub writeback: Option<String>,
    /// More arguments.
    pub arguments: Vec<OsString>,
    /// Environment of the daemon, for example FAILPOINTS.
    pub environment: Vec<(String, String)>,
    /// The plain user who mounts, and who runs all commands; None is whoever runs the test. A backing
    /// store that is named must be his already. Needs root.
    pub user: Option<u32>,
}

/// The size of the tier that a mount gets when its options name none.
pub const DEFAULT_TIER_BYTES: u64 = 1 << 30;

/// A Forebay mount with its daemon in the foreground as our child.
///
/// Dropping it unmounts lazily, kills the daemon by its id and removes what it made, also when a
/// test panics.
pub struct ForebayMount {
    options: MountOptions,
    place: TempDir,
    shared_memory: TempDir,
    mountpoint: PathBuf,
    daemon: Option<Child>,
}

/// The binary under test: `FOREBAY_BIN`, else `forebay` in the directory that cargo builds into.
pub fn binary() -> Result<PathBuf, SubjectError> {
    let path = match std::env::var_os("FOREBAY_BIN") {
        Some(path) => PathBuf::from(path),
        None => {
            let test = std::env::current_exe().map_err(io_error("path of this executable"))?;
            let build =
                test.ancestors().skip(1).find(|dir| dir.file_name() != Some("deps".as_ref()));
            build.unwrap_or(Path::new(".")).join("forebay")
        }
    };
    if path.is_file() { Ok(path) } else { Err(SubjectError::NoBinary(path)) }
}

/// Runs a command to its end, at most `limit`; its output comes back whatever its status.
pub fn run_command(command: &mut Command, limit: Duration) -> Result<Output, SubjectError> {
    let text = format!("{command:?}");
    let mut out = tempfile::tempfile().map_err(io_error("temporary file"))?;
    let mut err = tempfile::tempfile().map_err(io_error("temporary file"))?;
    let clone = |file: &File| file.try_clone().map_err(io_error("temporary file"));
    command.stdin(Stdio::null()).stdout(clone(&out)?).stderr(clone(&err)?);
    let mut child = spawn(command).map_err(io_error(text.clone()))?;
    let ended = wait_at_most(&mut child, limit);
    let read = |file: &mut File| -> Result<Vec<u8>, SubjectError> {
        use std::io::{Read, Seek};
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map_err(io_error("output"))?;
        Ok(bytes)
    };
    let (stdout, stderr) = (read(&mut out)?, read(&mut err)?);
    match ended {
        Some(status) => Ok(Output { status, stdout, stderr }),
        None => {
            // It ignored its limit; SIGKILL ends it as soon as the kernel lets go of it.
            let _ = child.kill();
            Err(SubjectError::Command {
                command: text,
                reason: format!("no end within {limit:?}"),
                stderr: String::from_utf8_lossy(&stderr).into_owned(),
            })
        }
    }
}

/// Runs a command that must succeed and returns what it printed.
pub fn run_checked(command: &mut Command, limit: Duration) -> Result<String, SubjectError> {
    let output = run_command(command, limit)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let both = [output.stderr, output.stdout].concat();
    Err(SubjectError::Command {
        command: format!("{command:?}"),
        reason: output.status.to_string(),
        stderr: String::from_utf8_lossy(&both).into_owned(),
    })
}

fn wait_at_most(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let mut status = None;
    eventually(limit, || {
        status = child.try_wait().ok().flatten();
        status.is_some()
    });
    status
}

/// True when something is mounted at `path`, by the kernel's own list: a dead mount cannot hang it.
pub fn is_mounted(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(point) == path))
}

impl ForebayMount {
    /// Mounts and waits until the mount is usable.
    pub fn new(options: MountOptions) -> Result<Self, SubjectError> {
        let mut mount = Self::prepare(options)?;
        mount.mount()?;
        Ok(mount)
    }

    /// Makes what a mount needs, but does not mount yet.
    pub fn prepare(options: MountOptions) -> Result<Self, SubjectError> {
        binary()?;
        let place = open_dir(&std::env::temp_dir())?;
        let shared_memory = open_dir(Path::new("/dev/shm"))?;
        let mountpoint = place.path().join("mount");
        std::fs::create_dir(&mountpoint).map_err(io_error("mount point"))?;
        let mut options = options;
        if options.backing.is_none() {
            let backing = place.path().join("backing");
            std::fs::create_dir(&backing).map_err(io_error("backing directory"))?;
            options.backing = Some(backing);
        }
        if options.tiers.is_empty() {
            if options.tier_sizes.is_empty() {
                options.tier_sizes.push(DEFAULT_TIER_BYTES);
            }
            let sizes = options.tier_sizes.iter().enumerate();
            let made =
                sizes.map(|(at, size)| (shared_memory.path().join(format!("tier{at}")), *size));
            options.tiers = made.collect();
        }
        for (dir, _) in &options.tiers {
            std::fs::create_dir_all(dir).map_err(io_error("tier directory"))?;
        }
        let mount = Self { options, place, shared_memory, mountpoint, daemon: None };
        mount.give_to_user()?;
        Ok(mount)
    }

    /// Gives the user who mounts the directories that were made for him.
    fn give_to_user(&self) -> Result<(), SubjectError> {
        let Some(user) = self.options.user else { return Ok(()) };
        let made = [self.shared_memory.path(), &self.mountpoint, self.backing()];
        let tiers = self.options.tiers.iter().map(|(dir, _)| dir.as_path());
        for dir in made.into_iter().chain(tiers) {
            chown(dir, Some(user), Some(user)).map_err(io_error("owner of a directory"))?;
        }
        Ok(())
    }

    /// Mounts again after [`ForebayMount::unmount`] or [`ForebayMount::kill_daemon`].
    pub fn mount(&mut self) -> Result<(), SubjectError> {
        let log = File::options()
            .append(true)
            .create(true)
            .open(self.log_path())
            .map_err(io_error("daemon log"))?;
        binary()?;
        let mut command = self.command("mount");
        command.arg(self.backing()).arg(&self.mountpoint).arg("--foreground");
        for (dir, size) in &self.options.tiers {
            let mut tier = dir.clone().into_os_string();
            tier.push(format!("={size}"));
            command.arg("--tier").arg(tier);
        }
        if let Some(passthrough) = self.options.passthrough {
            command.args(["--passthrough", passthrough.as_str()]);
        }
        if let Some(writeback) = &self.options.writeback {
            command.args(["--writeback", writeback]);
        }
        if let Ok(level) = std::env::var("FOREBAY_LOG_LEVEL") {
            command.args(["--log-level", &level]);
        }
        command.args(&self.options.arguments).envs(self.options.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let daemon = spawn(&mut command).map_err(io_error("starting forebay"))?;
        watchdog::register(&self.mountpoint, daemon.id() as i32);
        let daemon = self.daemon.insert(daemon);
        let deadline = Instant::now() + COMMAND_LIMIT;
        let reason = loop {
            if is_mounted(&self.mountpoint) {
                return Ok(());
            }
            if let Ok(Some(status)) = daemon.try_wait() {
                break format!("the daemon ended: {status}");
            }
            if Instant::now() > deadline {
                break format!("no mount within {COMMAND_LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let log = self.log_tail();
        Err(SubjectError::Mount { mountpoint: self.mountpoint.clone(), reason, log })
    }

    /// `forebay umount`: drains, and returns when the daemon has ended.
    pub fn unmount(&mut self) -> Result<(), SubjectError> {
        self.unmount_with(&[])
    }

    /// `forebay umount` with more arguments, for example `--no-drain`.
    pub fn unmount_with(&mut self, arguments: &[&str]) -> Result<(), SubjectError> {
        let mut command = self.command("umount");
        wait_for_starts();
        run_checked(command.arg(&self.mountpoint).args(arguments), SYNC_LIMIT)?;
        if let Some(mut daemon) = self.daemon.take()
            && wait_at_most(&mut daemon, Duration::from_secs(5)).is_none()
        {
            self.daemon = Some(daemon);
            return Err(SubjectError::Command {
                command: "forebay umount".into(),
                reason: "it returned, but the daemon still runs".into(),
                stderr: self.log_tail(),
            });
        }
        watchdog::unregister(&self.mountpoint);
        Ok(())
    }

    /// kill -9 of the daemon, then the dead mount is detached. Nothing is drained.
    pub fn kill_daemon(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            // It may have died by itself (a fail point); then there is nothing to kill.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        for _ in 0..10 {
            if !is_mounted(&self.mountpoint) {
                break;
            }
            watchdog::unmount_lazily(&self.mountpoint);
        }
        watchdog::unregister(&self.mountpoint);
    }

    /// True while the daemon runs.
    pub fn daemon_runs(&mut self) -> bool {
        self.daemon.as_mut().is_some_and(|daemon| matches!(daemon.try_wait(), Ok(None)))
    }

    /// A `forebay SUBCOMMAND` command.
    pub fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(binary().unwrap_or_else(|_| "forebay".into()));
        command.arg(subcommand);
        if let Some(user) = self.options.user {
            // Of root's environment only what does not lead into root's directories.
            command.env_remove("XDG_RUNTIME_DIR").env("HOME", self.scratch());
            command.env("FOREBAY_RUNTIME_DIR", self.scratch().join("run")).uid(user).gid(user);
        }
        command
    }

    /// `forebay sync PATH`: returns when the backing store has everything below it.
    pub fn sync(&self, path: &Path) -> Result<(), SubjectError> {
        run_checked(self.command("sync").arg(path), SYNC_LIMIT).map(drop)
    }

    /// `forebay where --json` of paths.
    pub fn locate(&self, paths: &[PathBuf]) -> Result<Vec<serde_json::Value>, SubjectError> {
        let text = run_checked(self.command("where").arg("--json").args(paths), COMMAND_LIMIT)?;
        serde_json::from_str(&text).map_err(|error| SubjectError::Command {
            command: "forebay where --json".into(),
            reason: format!("not JSON: {error}"),
            stderr: text,
        })
    }

    /// `forebay evict PATH`, for what can be evicted.
    pub fn evict(&self, path: &Path) -> Result<(), SubjectError> {
        run_command(self.command("evict").arg(path), COMMAND_LIMIT).map(drop)
    }

    /// `forebay status --json`.
    pub fn status(&self) -> Result<serde_json::Value, SubjectError> {
        let text =
            run_checked(self.command("status").arg("--json").arg(&self.mountpoint), COMMAND_LIMIT)?;
        serde_json::from_str(&text).map_err(|error| SubjectError::Command {
            command: "forebay status --json".into(),
            reason: format!("not JSON: {error}"),
            stderr: text,
        })
    }

    /// `forebay fsck` of the unmounted tiers; a finding is an error.
    pub fn fsck_tiers(&self) -> Result<(), SubjectError> {
        let mut command = self.command("fsck");
        for (dir, _) in &self.options.tiers {
            command.arg(dir);
        }
        run_checked(&mut command, COMMAND_LIMIT).map(drop)
    }

    /// Removes the index of the unmounted tiers, as a lost or damaged device of it would.
    pub fn lose_index(&self) -> Result<(), SubjectError> {
        let Some((first, _)) = self.options.tiers.first() else { return Ok(()) };
        std::fs::remove_dir_all(first.join("state")).map_err(io_error("index"))
    }

    /// `forebay fsck --rebuild`. What it brings back it reports as problems that were repaired.
    pub fn rebuild_index(&self) -> Result<(), SubjectError> {
        let mut command = self.command("fsck");
        command.arg("--rebuild").arg("--backing").arg(self.backing());
        for (dir, _) in &self.options.tiers {
            command.arg(dir);
        }
        run_checked(&mut command, COMMAND_LIMIT).map(drop)
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// The backing store.
    pub fn backing(&self) -> &Path {
        self.options.backing.as_deref().unwrap_or(Path::new("/nonexistent"))
    }

    /// The options it is mounted with; a change counts from the next [`ForebayMount::mount`].
    pub fn options_mut(&mut self) -> &mut MountOptions {
        &mut self.options
    }

    /// A directory in shared memory that lives as long as this mount, outside every tier.
    pub fn scratch(&self) -> &Path {
        self.shared_memory.path()
    }

    /// Copies the tiers and the backing store, as they are, into a directory of their own below
    /// `FOREBAY_KEEP_STATE`, if that is set, and says where.
    pub fn keep_state(&self) -> Option<PathBuf> {
        let below = std::env::var_os("FOREBAY_KEEP_STATE")?;
        let kept = Path::new(&below).join(self.place.path().file_name().unwrap_or_default());
        std::fs::create_dir_all(&kept).ok()?;
        let mut copy = Command::new("cp");
        copy.args(["-a", "--sparse=always"]).arg(self.backing());
        copy.args(self.options.tiers.iter().map(|(dir, _)| dir)).arg(&kept);
        run_checked(&mut copy, COMMAND_LIMIT).ok()?;
        Some(kept)
    }

    /// The end of the daemon's log.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(4000)..]).into_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.place.path().join("daemon.log")
    }
}

impl Subject for ForebayMount {
    fn dir(&self) -> &Path {
        &self.mountpoint
    }

    fn name(&self) -> String {
        let mode = self.options.passthrough.map_or("default", Passthrough::as_str);
        format!("forebay, passthrough {mode}")
    }
}

impl Drop for ForebayMount {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("end of the daemon's log:\n{}", self.log_tail());
        }
        self.kill_daemon();
        if let Some(dir) = std::env::var_os("FOREBAY_KEEP_LOGS") {
            let name = self.place.path().file_name().unwrap_or_default();
            let _ = std::fs::copy(self.log_path(), Path::new(&dir).join(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_command_when_it_exceeds_its_limit_then_the_error_says_so() {
        let error = run_command(Command::new("sleep").arg("30"), Duration::from_millis(50));
        assert!(
            matches!(error, Err(SubjectError::Command { reason, .. }) if reason.contains("50ms"))
        );
    }

    #[test]
    fn run_checked_when_the_command_fails_then_its_words_are_kept() {
        let error = run_checked(Command::new("ls").arg("/nonexistent/x"), COMMAND_LIMIT);
        assert!(error.unwrap_err().to_string().contains("/nonexistent/x"));
    }

    #[test]
    fn is_mounted_when_asked_for_proc_then_yes_and_for_a_plain_directory_then_no() {
        assert!(is_mounted(Path::new("/proc")));
        assert!(!is_mounted(Path::new("/proc/self")));
    }
}
