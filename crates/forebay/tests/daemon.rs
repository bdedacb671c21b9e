//! Daemons as processes: start, refusal, status, drain, signals, end. They mount nothing.

use forebay_testing::wait_until;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The command line with the engine in memory; cargo builds it with the tests.
fn program() -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_forebay")).parent().unwrap();
    beside.join("examples/fake_forebay")
}

struct Site {
    root: tempfile::TempDir,
    environment: Vec<(&'static str, String)>,
}

impl Site {
    fn new(environment: &[(&'static str, &str)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        for dir in ["backing", "mnt", "run", "home"] {
            std::fs::create_dir(root.path().join(dir)).unwrap();
        }
        let environment =
            environment.iter().map(|(name, value)| (*name, (*value).into())).collect();
        Self { root, environment }
    }

    fn path(&self, name: &str) -> String {
        std::fs::canonicalize(self.root.path()).unwrap().join(name).to_str().unwrap().to_owned()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program());
        command
            .args(args)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.path("home"))
            .env("FOREBAY_RUNTIME_DIR", self.path("run"))
            .envs(self.environment.iter().map(|(name, value)| (*name, value.as_str())))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> (i32, String) {
        let Output { status, stdout, stderr } = self.command(args).output().unwrap();
        let text = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
        (status.code().unwrap_or(-1), text)
    }

    fn mount(&self, more: &[&str]) -> (i32, String) {
        let tier = format!("{}=64M", self.path("tier"));
        let (backing, mnt) = (self.path("backing"), self.path("mnt"));
        let mut args = vec!["mount", &backing, &mnt, "--tier", &tier];
        args.extend(more);
        self.run(&args)
    }

    fn pid(&self) -> i32 {
        let (code, text) = self.run(&["debug", "pid", &self.path("mnt")]);
        assert_eq!(code, 0, "{text}");
        text.trim().parse().unwrap()
    }

    fn leftovers(&self) -> usize {
        std::fs::read_dir(self.path("run")).unwrap().count()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // A test that failed must not leave its daemon behind.
        let mnt = self.path("mnt");
        let _ = self.command(&["umount", "--no-drain", "--detach", "--quiet", &mnt]).output();
        // Nor a mount whose daemon is dead, which is no business of that command's if it failed.
        if is_mounted(&mnt) {
            let _ = Command::new("fusermount3").args(["-uz", &mnt]).output();
        }
    }
}

/// By the kernel's own list, which a dead mount can't hang.
fn is_mounted(place: &str) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(place))
}

fn alive(pid: i32) -> bool {
    // A daemon whose parent is gone is reaped by init; one that only waits for that is gone too.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

fn signal(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[test]
fn mount_when_it_returns_then_the_daemon_answers_and_umount_ends_it() {
    let site = Site::new(&[("FAKE_DIRTY", "30")]);
    let (code, text) = site.mount(&[]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = site.run(&["status", &site.path("mnt"), "--json"]);
    assert_eq!(code, 0, "{text}");
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status["backing"], site.path("backing"));
    assert_eq!(status["dirty"]["files"], 30);
    let pid = site.pid();
    assert!(alive(pid));
    let (code, text) = site.run(&["umount", &site.path("mnt")]);
    assert_eq!(code, 0, "{text}");
    assert!(!alive(pid), "umount returned before the daemon was gone");
    assert_eq!(site.leftovers(), 0);
    let (code, text) = site.run(&["status", &site.path("mnt")]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("not on a Forebay mount"), "{text}");
    let log = std::fs::read_to_string(site.path("tier/state/forebay.log")).unwrap();
    assert!(log.contains("mounted") && log.contains("unmounted"), "{log}");
}

#[test]
fn mount_when_the_engine_refuses_then_its_reason_and_exit_code_arrive() {
    for (style, code, part) in [
        ("locked", 7, "another daemon (process 7) uses it"),
        ("fail", 6, "format 99 is unknown"),
        ("die", 1, "ended before it was ready (exit status: 17)"),
    ] {
        let site = Site::new(&[("FAKE_MOUNT", style)]);
        let (exit, text) = site.mount(&[]);
        assert_eq!(exit, code, "{text}");
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn mount_when_a_daemon_serves_the_place_already_then_locked() {
    let site = Site::new(&[]);
    assert_eq!(site.mount(&[]).0, 0);
    let (code, text) = site.mount(&[]);
    assert_eq!(code, 7, "{text}");
    assert!(text.contains("another daemon (process"), "{text}");
    assert_eq!(site.run(&["umount", &site.path("mnt")]).0, 0);
}

#[test]
fn mount_when_a_daemon_was_killed_then_its_leavings_do_not_matter() {
    let site = Site::new(&[]);
    assert_eq!(site.mount(&[]).0, 0);
    let pid = site.pid();
    signal(pid, rustix::process::Signal::KILL);
    wait_until("the daemon is dead", || !alive(pid));
    assert_eq!(site.leftovers(), 2);
    let (code, text) = site.run(&["status", &site.path("mnt")]);
    assert_eq!(code, 3, "{text}");
    assert_eq!(site.mount(&[]).0, 0);
    assert_eq!(site.run(&["umount", &site.path("mnt")]).0, 0);
}

#[test]
fn daemon_when_it_runs_then_others_see_its_mount_point_and_none_of_its_settings() {
    let site = Site::new(&[]);
    assert_eq!(site.mount(&["--log-level", "warn,secret=info"]).0, 0);
    let daemon = site.pid();
    for pid in [daemon, parent(daemon)] {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        assert!(line.contains(&site.path("mnt")), "{line}");
        assert!(!line.contains("secret") && !line.contains('='), "{line}");
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        assert!(name.starts_with("forebay"), "{name}");
    }
    assert_eq!(site.run(&["umount", &site.path("mnt")]).0, 0);
}

#[test]
fn daemon_when_it_runs_then_it_has_nothing_that_its_caller_had_open_and_may_open_many() {
    let site = Site::new(&[]);
    // Not closed by exec: as what a shell or a batch system leaves open.
    let (ours, _theirs) = rustix::pipe::pipe().unwrap();
    use std::os::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", ours.as_raw_fd());
    let of_caller = std::fs::read_link(link).unwrap();
    assert_eq!(site.mount(&[]).0, 0);
    let daemon = site.pid();
    for pid in [daemon, parent(daemon)] {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let held = open.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        assert!(!held.into_iter().any(|file| file == of_caller), "process {pid}");
    }
    let limits = std::fs::read_to_string(format!("/proc/{daemon}/limits")).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let mut words = files.split_ascii_whitespace().skip(3);
    assert_eq!(words.next(), words.next(), "the soft limit is the hard one: {files}");
    assert_eq!(site.run(&["umount", &site.path("mnt")]).0, 0);
}

/// The process that started another.
fn parent(pid: i32) -> i32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    line.trim().parse().unwrap()
}

/// Leaves a mount whose daemon is dead: the kernel's side of a connection that is closed at once.
/// Only root can; other users get false.
fn make_dead_mount(place: &str) -> bool {
    use std::os::fd::AsRawFd;
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    let Ok(device) = device else { return false };
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let options = std::ffi::CString::new(options).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("/slow", place, "fuse.forebay", flags, Some(options.as_c_str())).is_ok()
}

#[test]
fn dead_mount_when_left_by_a_daemon_then_it_is_told_and_umount_and_mount_remove_it() {
    let site = Site::new(&[]);
    let mnt = site.path("mnt");
    if !make_dead_mount(&mnt) {
        assert_ne!(rustix::process::geteuid().as_raw(), 0, "root could not make a FUSE mount");
        return;
    }
    let (code, text) = site.run(&["status", &mnt]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("the daemon does not answer"), "{text}");
    let (code, text) = site.run(&["umount", &mnt]);
    assert_eq!(code, 4, "what the dead daemon had not written back is not there: {text}");
    assert!(text.contains("the daemon is dead") && std::fs::metadata(&mnt).is_ok(), "{text}");
    assert!(make_dead_mount(&mnt));
    assert_eq!(site.run(&["umount", "--no-drain", &mnt]).0, 0);
    assert!(make_dead_mount(&mnt));
    let (code, text) = site.mount(&[]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("removing the mount of a daemon that died"), "{text}");
    assert_eq!(site.run(&["umount", &mnt]).0, 0);
}

#[test]
fn dead_mount_when_the_test_that_made_it_fails_then_it_does_not_stay() {
    let site = Site::new(&[]);
    let mnt = site.path("mnt");
    if !make_dead_mount(&mnt) {
        assert_ne!(rustix::process::geteuid().as_raw(), 0, "root could not make a FUSE mount");
        return;
    }
    assert!(is_mounted(&mnt));
    let failed = std::thread::spawn(move || {
        let _site = site;
        std::panic::resume_unwind(Box::new("as a check that fails"));
    });
    assert!(failed.join().is_err());
    assert!(!is_mounted(&mnt) && !Path::new(&mnt).exists());
}

#[test]
fn umount_when_time_runs_out_then_it_tells_what_remains_and_the_mount_stays() {
    let site = Site::new(&[("FAKE_DIRTY", "5"), ("FAKE_DRAIN", "stuck")]);
    assert_eq!(site.mount(&[]).0, 0);
    let (code, text) = site.run(&["umount", "--timeout", "200ms", &site.path("mnt")]);
    assert_eq!(code, 4, "{text}");
    assert!(
        text.contains("5 files, 20.0 KiB")
            && text.contains("dirty0")
            && text.contains("and 2 more"),
        "{text}"
    );
    assert_eq!(site.run(&["status", &site.path("mnt")]).0, 0);
    assert_eq!(site.run(&["umount", "--no-drain", &site.path("mnt")]).0, 0);
}

#[test]
fn umount_when_files_are_open_then_it_says_so_and_detach_works() {
    let site = Site::new(&[("FAKE_BUSY", "1")]);
    assert_eq!(site.mount(&[]).0, 0);
    let holder = std::fs::File::open(site.path("mnt")).unwrap();
    let (code, text) = site.run(&["umount", &site.path("mnt")]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("in use; end them, or use --detach"), "{text}");
    assert!(text.contains(&format!("{} (", std::process::id())), "{text}");
    drop(holder);
    assert_eq!(site.run(&["umount", "--detach", &site.path("mnt")]).0, 0);
}

#[test]
fn sigterm_when_received_then_the_daemon_drains_and_ends() {
    let site = Site::new(&[("FAKE_DIRTY", "20")]);
    assert_eq!(site.mount(&[]).0, 0);
    let pid = site.pid();
    signal(pid, rustix::process::Signal::TERM);
    wait_until("the daemon ends", || !alive(pid));
    assert_eq!(site.leftovers(), 0);
    let log = std::fs::read_to_string(site.path("tier/state/forebay.log")).unwrap();
    assert!(log.contains("drained"), "{log}");
}

#[test]
fn sigterm_when_received_twice_then_the_daemon_leaves_at_once() {
    let site = Site::new(&[("FAKE_DIRTY", "20"), ("FAKE_DRAIN", "stuck"), ("FAKE_BUSY", "1")]);
    assert_eq!(site.mount(&[]).0, 0);
    let pid = site.pid();
    let started = Instant::now();
    signal(pid, rustix::process::Signal::TERM);
    std::thread::sleep(Duration::from_millis(200));
    assert!(alive(pid), "the first signal did not drain");
    signal(pid, rustix::process::Signal::TERM);
    wait_until("the daemon ends", || !alive(pid));
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn foreground_when_started_by_a_service_manager_then_it_is_told() {
    let site = Site::new(&[]);
    let socket = std::os::unix::net::UnixDatagram::bind(site.path("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let tier = format!("{}=64M", site.path("tier"));
    let mut child: Child = site
        .command(&[
            "mount",
            "--foreground",
            "--log-format=json",
            &site.path("backing"),
            &site.path("mnt"),
            "--tier",
            &tier,
        ])
        .env("NOTIFY_SOCKET", site.path("notify"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut message = [0; 64];
    let length = socket.recv(&mut message).unwrap();
    assert_eq!(&message[..length], b"READY=1\n");
    assert_eq!(site.run(&["debug", "log-level", &site.path("mnt"), "debug"]).0, 0);
    signal(child.id() as i32, rustix::process::Signal::INT);
    let output = child.wait().unwrap();
    assert!(output.success(), "{output}");
    let mut log = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut log).unwrap();
    assert!(
        log.lines().all(|line| line.contains("backing store's own")
            || serde_json::from_str::<serde_json::Value>(line).is_ok()),
        "{log}"
    );
    assert!(log.contains("\"mounted\""), "{log}");
}

#[test]
fn mount_when_metrics_are_asked_for_then_they_are_served() {
    let site = Site::new(&[]);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(site.mount(&["--metrics", &free.to_string()]).0, 0);
    let mut stream = std::net::TcpStream::connect(free).unwrap();
    std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
    assert!(text.contains("forebay_hits_total 3"), "{text}");
    let (code, text) = site.run(&["debug", "metrics", &site.path("mnt")]);
    assert_eq!((code, text.as_str()), (0, "forebay_hits_total 3\n"));
    assert_eq!(site.run(&["umount", &site.path("mnt")]).0, 0);
}

#[test]
fn command_line_when_wrong_then_exit_code_2_and_a_remedy() {
    let site = Site::new(&[]);
    let (backing, mnt) = (site.path("backing"), site.path("mnt"));
    for (args, part) in [
        (vec!["mount", &backing, &mnt], "--tier DIR=SIZE"),
        (vec!["mount", &backing, &mnt, "--tier", "/x"], "is not DIR=SIZE"),
        (
            vec!["mount", &backing, &mnt, "--tier", "/dev/shm/x=1M", "--policy", "s3-fifo"],
            "did you mean 's3fifo'?",
        ),
        (vec!["mount", "/nowhere", &mnt, "--tier", "/dev/shm/x=1M"], "does not exist"),
        (vec!["mount", "--config", "/nowhere.toml"], "/nowhere.toml"),
        (vec!["mont"], "mount"),
        (vec!["umount"], "MOUNTPOINT"),
        (vec!["hint", &mnt, "--job", "", "-"], "--job"),
        (vec!["fsck"], "name the tiers"),
    ] {
        let (code, text) = site.run(&args);
        assert_eq!(code, 2, "{args:?}: {text}");
        assert!(text.contains(part), "{args:?}: {text}");
    }
    assert_eq!(site.leftovers(), 0);
}

#[test]
fn fsck_when_problems_remain_then_exit_code_6() {
    let site = Site::new(&[]);
    let (code, text) = site.run(&["fsck", &site.path("backing")]);
    assert_eq!(code, 6, "{text}");
    assert!(text.contains("index says clean"), "{text}");
    assert_eq!(site.run(&["fsck", "--repair", &site.path("backing")]).0, 0);
}

#[test]
fn config_show_when_asked_then_origins_are_told() {
    let site = Site::new(&[("FOREBAY_WRITEBACK", "close")]);
    let (code, text) = site.run(&["config", "show", "--policy", "lfu", "--json"]);
    assert_eq!(code, 0, "{text}");
    let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(shown["policy"]["origin"], "flag");
    assert_eq!(shown["writeback"]["origin"], "environment");
    assert_eq!(shown["coherence"]["origin"], "default");
}

#[test]
fn mount_helper_when_called_as_mount_does_then_it_mounts() {
    let site = Site::new(&[]);
    let helper = site.path("mount.forebay");
    std::os::unix::fs::symlink(program(), &helper).unwrap();
    let options = format!("rw,noauto,user,_netdev,tier={}=64M,policy=lfu", site.path("tier"));
    let output = Command::new(&helper)
        .args([&site.path("backing"), &site.path("mnt"), "-o", &options])
        .env("FOREBAY_RUNTIME_DIR", site.path("run"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(site.run(&["status", &site.path("mnt")]).0, 0);
    assert_eq!(site.run(&["umount", &site.path("mnt")]).0, 0);
}

#[test]
fn help_when_asked_then_exit_codes_and_environment_are_in_it() {
    let site = Site::new(&[]);
    let (code, text) = site.run(&["--help"]);
    assert_eq!(code, 0);
    for part in [
        "Exit codes:",
        "4  not everything is in the backing store",
        "FOREBAY_RUNTIME_DIR",
        "Examples:",
        "umount",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (code, text) = site.run(&["mount", "--help"]);
    assert_eq!(code, 0);
    assert!(
        text.contains("[env: FOREBAY_WRITEBACK] [default: 5s]") && text.contains("fstab(5)"),
        "{text}"
    );
    assert!(!text.contains("--throttle"), "{text}");
    assert_eq!(site.run(&["man", &site.path("man")]).0, 0);
    assert!(Path::new(&site.path("man/forebay-mount.1")).exists());
    assert!(site.run(&["completions", "bash"]).1.contains("_forebay"));
}

#[test]
fn documented_exit_codes_when_compared_then_equal_to_the_table() {
    let document = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/exit-codes.md"
    ))
    .unwrap();
    for (exit, meaning) in forebay::Exit::TABLE {
        assert!(document.contains(&format!("| {} | {meaning} |", exit.code())), "{}", exit.code());
    }
}
