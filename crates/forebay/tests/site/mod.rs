//! Directories, commands and mounts of one test.
#![allow(dead_code, missing_docs, reason = "each user of this module needs a part of it")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use parking_lot::RwLock;

/// No single command may take longer; `timeout` ends it then.
pub const COMMAND_LIMIT: &str = "90";

/// Who must not be root.
pub const NOBODY: &str = "65534";

pub fn can_mount() -> bool {
    let able = rustix::process::geteuid().is_root()
        && fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !able {
        eprintln!("skipped: needs root and /dev/fuse");
    }
    able
}

/// From here on this thread, and those that it begins, have mounts of their own. Tests beside it, in
/// namespaces made of the one that all began in, do not keep its mounts alive, and it none of theirs.
pub fn use_own_mounts() {
    use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
    // SAFETY: a plain call; what this thread has open stays open.
    let done = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let (temporary, home) = (std::env::temp_dir(), std::env::current_dir().unwrap());
    for line in mounts.lines() {
        let Some(point) = line.split(' ').nth(4).map(std::path::Path::new) else { continue };
        // Others' mounts on this machine would show in what commands say of all mounts.
        let is_forebay = line.contains(" - fuse.forebay ");
        let of_tests = [&*temporary, "/dev/shm".as_ref()]
            .iter()
            .any(|dir| point.starts_with(dir) && point != *dir);
        if (of_tests || is_forebay) && !home.starts_with(point) {
            // Its path has no blanks, or it is none of a test.
            let _gone_or_in_use = unmount(point, UnmountFlags::DETACH);
        }
    }
}

/// Directories of one test; ends all mounts in them when the test is over, however it ends.
pub struct Site {
    pub root: tempfile::TempDir,
}

impl Site {
    pub fn new() -> Self {
        Self::in_dir(tempfile::tempdir().unwrap())
    }

    /// In a directory that is empty, but for what a new file system has.
    pub fn in_dir(root: tempfile::TempDir) -> Self {
        for dir in ["backing", "mnt", "run", "home"] {
            fs::create_dir(root.path().join(dir)).unwrap();
        }
        Self { root }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.root.path()).unwrap().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// A command with nothing of this process's environment.
    pub fn command(&self, program: &str) -> Command {
        self.command_within(COMMAND_LIMIT, program)
    }

    /// The same with a limit of its own, in seconds.
    pub fn command_within(&self, limit: &str, program: &str) -> Command {
        let mut command = Command::new("/usr/bin/timeout");
        command
            .args(["-k", "5", limit, program])
            .env_clear()
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", self.path("home"))
            .env("FOREBAY_RUNTIME_DIR", self.path("run"))
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[&str]) -> (i32, String) {
        if args.first() == Some(&"umount") {
            // Until it runs, a program that another test starts has copies of all that was open here.
            drop(STARTING.write());
        }
        outcome(self.command(env!("CARGO_BIN_EXE_forebay")).args(args))
    }

    pub fn mount_with(&self, more: &[&str]) -> (i32, String) {
        let tier = format!("{}=256M", self.text("tier"));
        let (backing, mnt) = (self.text("backing"), self.text("mnt"));
        let mut args = vec!["mount", &backing, &mnt, "--tier", &tier];
        args.extend(more);
        self.run(&args)
    }

    pub fn mount(&self, more: &[&str]) {
        let (code, text) = self.mount_with(more);
        assert_eq!(code, 0, "{text}");
    }

    pub fn umount(&self) {
        let (code, text) = self.run(&["umount", &self.text("mnt")]);
        assert_eq!(code, 0, "{text}");
    }

    pub fn status(&self) -> serde_json::Value {
        let (code, text) = self.run(&["status", "--json", &self.text("mnt")]);
        assert_eq!(code, 0, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    pub fn daemon(&self) -> i32 {
        self.status()["pid"].as_i64().unwrap().try_into().unwrap()
    }

    /// The names in the backing store, and whatever Forebay has left of its own.
    pub fn left_in_backing(&self) -> Vec<String> {
        let list = |dir: &str| {
            let entries = fs::read_dir(self.path(dir)).into_iter().flatten();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap())
        };
        let own = list("backing/.forebay").filter(|name| name != "store");
        let users = list("backing").filter(|name| name != ".forebay");
        let mut names: Vec<_> = users.chain(own.map(|name| format!(".forebay/{name}"))).collect();
        names.sort();
        names
    }

    pub fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.contains(&format!(" {} ", self.text("mnt")))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let mnt = self.text("mnt");
        // The kernel lets go of a mount whose server is dead; a live one ends with its mount.
        let _ = outcome(self.command("fusermount3").args(["-uz", &mnt]));
        let mine = self.root.path().as_os_str().as_encoded_bytes();
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Ok(pid) = process.file_name().to_string_lossy().parse::<i32>() else { continue };
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let is_daemon = line.windows(mine.len()).any(|part| part == mine)
                && line.split(|byte| *byte == 0).nth(1) == Some(b"daemon");
            if is_daemon {
                let _ = wait_for(Duration::from_secs(5), || !alive(pid));
                if alive(pid) {
                    signal(pid, rustix::process::Signal::KILL);
                }
            }
        }
    }
}

/// Held by each who starts a program, until it runs.
static STARTING: RwLock<()> = RwLock::new(());

pub fn outcome(command: &mut Command) -> (i32, String) {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = {
        let _starting = STARTING.read();
        command.spawn()
    };
    let output = started.unwrap().wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

pub fn alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

pub fn signal(pid: i32, signal: rustix::process::Signal) {
    let _ = rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal);
}

pub use forebay_testing::wait_for;
