//! CRIU, the program that writes process trees down and brings them to life again. It is looked for,
//! never brought along.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::mounts::Instead;
use super::tree::parent_of;
use crate::error::Error;

/// The oldest version that copes with kernels of today.
const OLDEST: (u32, u32) = (4, 1);

/// What CRIU says if the directory `proc.crtools`, which it makes for a moment in the working directory of
/// a tree's first process, is there already. Those of all jobs of a run have one working directory.
const IN_ITS_WAY: &str = "CRIU: Can't create a directory (-17)";
const OTHERS_DONE_WITHIN: Duration = Duration::from_secs(10);
const BETWEEN_TRIES: Duration = Duration::from_millis(20);
/// The variable that names the program.
pub const VARIABLE: &str = "FOREBAY_CRIU";
/// What is said where it is missing.
const HOW_TO_INSTALL: &str = "install the package criu of Debian 13 (trixie) or newer, or of \
    another distribution that has CRIU 4.1 or newer, or set FOREBAY_CRIU to the program";

/// CRIU on this machine.
#[derive(Clone, Debug)]
pub struct Criu {
    program: PathBuf,
}

/// Outputs of a task that is restored: the pipe of its image, and the one that takes its place.
pub struct Outputs<'a> {
    /// Inode numbers of the pipes when the image was made.
    pub old: [u64; 2],
    /// The ends to write to.
    pub new: &'a [OwnedFd; 2],
}

impl Criu {
    /// Looks for it, and at its version.
    pub fn find() -> Result<Self, Error> {
        let program = match std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
            Some(program) => PathBuf::from(program),
            None => in_path().ok_or_else(|| {
                Error::Unsupported(format!(
                    "tasks are migrated by CRIU, which is not installed: {HOW_TO_INSTALL}"
                ))
            })?,
        };
        let output =
            Command::new(&program).arg("--version").stdin(Stdio::null()).output().map_err(
                |error| {
                    Error::Unsupported(format!(
                        "{}: {error}: tasks are migrated by CRIU: {HOW_TO_INSTALL}",
                        program.display()
                    ))
                },
            )?;
        let text = String::from_utf8_lossy(&output.stdout);
        let wrong = |what: String| {
            Error::Unsupported(format!("{}: {what}: {HOW_TO_INSTALL}", program.display()))
        };
        let Some((version, numbers)) = version_of(&text) else {
            return Err(wrong("does not say its version as CRIU does".into()));
        };
        if numbers < OLDEST {
            return Err(wrong(format!(
                "is CRIU {version}, and {}.{} is needed: older ones fail on kernels of today",
                OLDEST.0, OLDEST.1
            )));
        }
        Ok(Self { program })
    }

    /// Whether kernel and privileges suffice.
    pub fn check(&self) -> Result<(), Error> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Unsupported(
                "tasks are migrated by root only: CRIU needs its privileges".into(),
            ));
        }
        let output = Command::new(&self.program)
            .arg("check")
            .stdin(Stdio::null())
            .output()
            .map_err(Error::io(self.program.display().to_string()))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Error::Unsupported(format!(
                "`criu check` says that this kernel, or what this process may do, does not suffice: \
                 {}",
                reason(&String::from_utf8_lossy(&output.stderr))
            ))),
        }
    }

    /// Writes a tree down and leaves it stopped; if that fails, it goes on.
    pub fn dump(&self, init: i32, images: &Path) -> Result<(), Error> {
        let until = Instant::now() + OTHERS_DONE_WITHIN;
        loop {
            match self.dump_once(init, images) {
                Err(Error::Failed(why)) if why == IN_ITS_WAY => match Instant::now() < until {
                    true => std::thread::sleep(BETWEEN_TRIES),
                    false => {
                        return Err(Error::Failed(format!(
                            "where the task was started there is a directory `proc.crtools`, which \
                             CRIU needs for a moment: another one uses it, or has left it ({why})"
                        )));
                    }
                },
                dumped => return dumped,
            }
        }
    }

    fn dump_once(&self, init: i32, images: &Path) -> Result<(), Error> {
        let mut command = self.command("dump", images);
        command.args(["--tree", &init.to_string(), "--leave-stopped", "--tcp-established"]);
        // Files without a name, or whose name the kernel has forgotten.
        command.args(["--ghost-limit", "64M", "--link-remap"]);
        let namespace = std::fs::File::open(format!("/proc/{init}/ns/mnt"))
            .map_err(Error::io("the task's mount namespace"))?;
        // SAFETY: what runs between fork and exec makes a system call and allocates nothing. CRIU then
        // sees the task's mounts as its own, and does not write them down.
        unsafe {
            command.pre_exec(move || match libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        run(command, images, "dump.log")
    }

    /// Restores a tree, stopped, as a child of the calling thread, and returns its first process. What
    /// it has opened below `mount.0` it opens below `mount.1`. If that fails, it may leave children.
    pub fn restore(
        &self,
        images: &Path,
        outputs: &Outputs<'_>,
        mount: Option<(&Path, &Path)>,
    ) -> Result<i32, Error> {
        let mut command = self.command("restore", images);
        command.args(["--restore-detached", "--restore-sibling", "--leave-stopped"]);
        command.args(["--tcp-established", "--pidfile", "restored.pid"]);
        let fds = [outputs.new[0].as_raw_fd(), outputs.new[1].as_raw_fd()];
        for (fd, pipe) in fds.into_iter().zip(outputs.old) {
            command.arg("--inherit-fd").arg(format!("fd[{fd}]:pipe:[{pipe}]"));
        }
        let namespace = Namespace::new(fds, mount)?;
        // SAFETY: what runs between fork and exec makes system calls and allocates nothing.
        unsafe { command.pre_exec(move || namespace.enter()) };
        run(command, images, "restore.log")?;
        let path = images.join("restored.pid");
        let text = std::fs::read_to_string(&path).map_err(Error::io(path.display().to_string()))?;
        let pid = text.trim().parse().ok().filter(|pid| *pid > 1);
        let pid = pid.ok_or_else(|| Error::Failed(format!("CRIU wrote {text:?} as a process")))?;
        if parent_of(pid) != Some(std::process::id()) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            return Err(Error::Unsupported(format!(
                "{}: a script that starts CRIU must do so with `exec`",
                self.program.display()
            )));
        }
        Ok(pid)
    }

    fn command(&self, what: &str, images: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(what).arg("--images-dir").arg(images);
        command.arg("--log-file").arg(format!("{what}.log"));
        command.arg("--manage-cgroups=ignore");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

fn run(mut command: Command, images: &Path, log: &str) -> Result<(), Error> {
    let status = command.status().map_err(Error::io("starting CRIU"))?;
    if status.success() {
        return Ok(());
    }
    let text = std::fs::read(images.join(log)).unwrap_or_default();
    Err(Error::Failed(reason(&String::from_utf8_lossy(&text))))
}

/// The mount namespace of a task that is restored: that of this process, with a mount in the place of
/// another.
struct Namespace {
    fds: [RawFd; 2],
    instead: Instead,
}

impl Namespace {
    fn new(fds: [RawFd; 2], mount: Option<(&Path, &Path)>) -> Result<Self, Error> {
        let instead = Instead::of(mount).map_err(Error::io("the mount of the task"))?;
        Ok(Self { fds, instead })
    }

    /// System calls only.
    fn enter(&self) -> io::Result<()> {
        let null = std::ptr::null();
        // SAFETY: the strings end with NUL and outlive the calls; the descriptors are open.
        let well = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    null,
                    c"/".as_ptr(),
                    null,
                    libc::MS_REC | libc::MS_SLAVE,
                    null.cast(),
                ) == 0
                && self.instead.put()
                && self.fds.iter().all(|fd| libc::fcntl(*fd, libc::F_SETFD, 0) == 0)
        };
        if well { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

fn in_path() -> Option<PathBuf> {
    // Debian's is where ordinary users have no path to.
    let more = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = std::env::split_paths(&path).chain(more).collect();
    dirs.into_iter().map(|dir| dir.join("criu")).find(|program| program.is_file())
}

/// The version in what `criu --version` prints.
fn version_of(text: &str) -> Option<(&str, (u32, u32))> {
    let version = text.lines().find_map(|line| line.strip_prefix("Version:"))?.trim();
    let mut numbers = version.split(['.', '-']).map(|number| number.parse().ok());
    let major = numbers.next()??;
    Some((version, (major, numbers.next()??)))
}

/// Why CRIU failed, by its log, in words for the one who wanted to migrate.
pub fn reason(log: &str) -> String {
    for (said, meant) in [
        ("Some file locks are hold", "it holds locks on files, which can't be moved"),
        ("Can't dump half of stream unix connection", "it has a connection to another program"),
        ("External socket is used", "it has a connection to another program"),
        ("Connected TCP socket, consider", "it has a connection over the network"),
        ("Found dangling tty", "it uses a terminal"),
        // SO_PASSCRED, which newer kernels know for Unix sockets alone.
        (
            "Can't get 1:16 opt",
            "it has sockets of the network, which this CRIU can't write down on this kernel",
        ),
    ] {
        if log.contains(said) {
            return meant.to_owned();
        }
    }
    let errors = log.lines().filter_map(|line| line.split_once("Error (").map(|(_, rest)| rest));
    let told: Vec<&str> = errors
        .filter_map(|rest| rest.split_once("): ").map(|(_, text)| text.trim()))
        .filter(|text| !text.contains("RLIMIT_NOFILE"))
        .collect();
    match told.first() {
        // The first says what was wrong, those after it what could not be done therefore.
        Some(first) => format!("CRIU: {first}"),
        None => "CRIU failed and does not say why".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_when_printed_in_any_way_of_criu_then_understood() {
        let of = |text| version_of(text).map(|(_, numbers)| numbers);
        assert_eq!(of("Version: 4.1.1\n"), Some((4, 1)));
        assert_eq!(of("Version: 3.17.1\nGitID: v3.17.1\n"), Some((3, 17)));
        assert_eq!(of("Version: 4.2-rc1\n"), Some((4, 2)));
        assert_eq!(of("usage: ls"), None);
        assert!((3, 17) < OLDEST && (4, 1) >= OLDEST);
    }

    #[test]
    fn reason_when_criu_says_many_things_then_the_first_that_matters() {
        let log = "(00.1) Error (criu/util.c:1533): rlimit: Can't setup RLIMIT_NOFILE for self\n\
                   (00.2) Error (criu/files-reg.c:1): Can't lookup mount=27 for fd=-3\n\
                   (00.3) Error (criu/cr-dump.c:2): Dumping FAILED.\n";
        assert_eq!(reason(log), "CRIU: Can't lookup mount=27 for fd=-3");
        let locks = "Error (criu/file-lock.c:1): Some file locks are hold by dumping tasks!";
        assert!(reason(locks).contains("locks on files"));
        assert!(reason("").contains("does not say why"));
    }
}
