//! Nothing is left of a run of tests, however it ends.

use forebay_testing::wait_until;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

/// A guard that runs a script.
struct Run {
    guard: Child,
    said: BufReader<ChildStdout>,
    directory: PathBuf,
    _home: tempfile::TempDir,
}

impl Run {
    fn start(script: &str) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let directory = home.path().join("run");
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.arg("guard").arg(&directory).args(["/bin/sh", "-c", script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut guard = command.spawn().expect("a guard");
        let said = BufReader::new(guard.stdout.take().expect("its output"));
        Self { guard, said, directory, _home: home }
    }

    /// The next number that the script says.
    fn number(&mut self) -> i32 {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("a line");
        line.trim().parse().unwrap_or_else(|_| panic!("{line}"))
    }

    /// What else was said, and how the guard ended.
    fn end(mut self) -> (String, ExitStatus, PathBuf) {
        let text: Vec<String> =
            self.said.by_ref().lines().map(|line| line.expect("text")).collect();
        let status = self.guard.wait().expect("it ends");
        (text.join("\n"), status, self.directory.clone())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Let go of, it cleans up.
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

fn is_there(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Whether a process sees a mount.
fn is_mounted(process: u32, point: &Path) -> bool {
    let mounts = std::fs::read_to_string(format!("/proc/{process}/mountinfo"));
    let mounts = mounts.unwrap_or_default();
    let point = point.to_str().expect("plain text");
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(point))
}

/// A daemon as tests start them: in a session of its own, its parent gone.
const DAEMON: &str = "setsid sh -c 'echo $$; exec sleep 1000' & ";

#[test]
fn program_when_it_ends_as_it_should_then_its_code_and_no_directory_is_left() {
    let run = Run::start("echo well >$TMPDIR/file; echo 7; exit 101");
    let (said, status, directory) = run.end();
    assert_eq!((said.as_str(), status.code()), ("7", Some(101)));
    assert!(!directory.exists());
    let (_, status, _) = Run::start("kill -9 $$").end();
    assert_eq!(status.code(), Some(128 + 9));
}

#[test]
fn program_when_it_leaves_a_daemon_then_that_is_killed_named_and_a_failure() {
    let mut run = Run::start(&format!("({DAEMON}) ; exit 0"));
    let daemon = run.number();
    assert!(is_there(daemon));
    let (said, status, directory) = run.end();
    assert_eq!(status.code(), Some(97), "{said}");
    assert!(said.contains(&format!("left behind: process {daemon}: sleep 1000")), "{said}");
    assert!(!is_there(daemon) && !directory.exists());
}

#[test]
fn run_when_who_wanted_it_is_gone_then_processes_files_and_mounts_are_too() {
    let memory = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
    let script = format!(
        "{DAEMON} mkdir $TMPDIR/m; mount -t tmpfs x $TMPDIR/m 2>/dev/null; \
         new=$(mktemp -d /dev/shm/guard.XXXXXX); exec >/dev/null 3>$new/open; basename $new >{}/name; \
         sleep 1000",
        memory.path().display()
    );
    let mut run = Run::start(&script);
    let daemon = run.number();
    let name = memory.path().join("name");
    wait_until("the script is under way", || {
        std::fs::read_to_string(&name).is_ok_and(|name| name.ends_with('\n'))
    });
    let name = std::fs::read_to_string(&name).expect("its name");
    let of_memory = Path::new("/dev/shm").join(name.trim());
    let (point, directory) = (run.directory.join("m"), run.directory.clone());
    assert!(of_memory.is_dir() && point.is_dir());
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root for a mount");
    } else {
        assert!(is_mounted(run.guard.id(), &point));
        assert!(!is_mounted(std::process::id(), &point), "others see it");
    }
    drop(run.guard.stdin.take());
    let (said, status, _) = run.end();
    assert!(!status.success() && said.contains("left behind"), "{said}");
    assert!(!is_there(daemon) && !is_mounted(std::process::id(), &point) && !directory.exists());
    assert!(!of_memory.exists() && memory.path().exists());
}

#[test]
fn run_when_its_owner_is_killed_then_the_guard_sees_to_the_rest() {
    // The owner is a shell, then a sleeper, that has the other end of the guard's standard input.
    let home = tempfile::tempdir().expect("a temporary directory");
    let directory = home.path().join("run");
    std::fs::write(home.path().join("script"), format!("{DAEMON} sleep 1000")).expect("room");
    let script = format!(
        "mkfifo {0}/f; {1} guard {0}/run /bin/sh {0}/script <{0}/f & \
         exec sleep 1000 >{0}/f",
        home.path().display(),
        env!("CARGO_BIN_EXE_xtask"),
    );
    let mut owner = Command::new("/bin/sh");
    owner.args(["-c", &script]).stdout(Stdio::piped()).stdin(Stdio::null());
    let mut owner = owner.spawn().expect("a shell");
    let mut said = BufReader::new(owner.stdout.take().expect("its output"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    let daemon = line.trim().parse().unwrap_or_else(|_| panic!("{line}"));
    assert!(is_there(daemon) && directory.is_dir());
    owner.kill().expect("it runs");
    owner.wait().expect("it ends");
    wait_until("the daemon is gone", || !is_there(daemon));
    wait_until("its files are gone", || !directory.exists());
}
