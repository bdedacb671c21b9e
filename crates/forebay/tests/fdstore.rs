//! Daemons of a service, without a supervisor: the test plays the service manager. It keeps what a
//! daemon stores (sd_notify(3), FDSTORE), and gives it to the next one (sd_listen_fds(3)).
//!
//! While no daemon serves, whoever uses the mount waits, and nobody can make a process of one whose
//! thread waits in a page fault. So the programs on the mount run in a process of their own, and this
//! one never touches it.

mod load;
mod site;

use std::fs::{self, File};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use load::Load;
use parking_lot::Mutex;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::Signal;
use site::*;

const LIMIT: Duration = Duration::from_secs(60);
/// How often the daemon dies; `FOREBAY_TEST_KILLS` asks for more.
const KILLS: u32 = 3;
/// The first descriptor that is passed.
const FIRST: RawFd = 3;

/// What the manager has heard and keeps.
#[derive(Default)]
struct Store {
    kept: Vec<(String, OwnedFd)>,
    main: i32,
    ready: u32,
    /// Without one in the unit nothing is kept.
    closed: bool,
}

impl Store {
    fn names(&self) -> Vec<&str> {
        self.kept.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn hear(&mut self, text: &str, descriptors: Vec<OwnedFd>) {
        let value = |key: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
                .map(str::to_owned)
        };
        let name = value("FDNAME").unwrap_or_default();
        if value("FDSTOREREMOVE").is_some() {
            self.kept.retain(|(other, _)| *other != name);
        } else if value("FDSTORE").is_some() && !self.closed {
            assert_eq!(value("FDPOLL").as_deref(), Some("0"), "{text}");
            for descriptor in descriptors {
                // As the real one: what is there already is not kept twice.
                if !self.kept.iter().any(|(_, other)| are_same(other, &descriptor)) {
                    self.kept.push((name.clone(), descriptor));
                }
            }
        }
        if let Some(pid) = value("MAINPID") {
            self.main = pid.parse().unwrap();
        }
        self.ready += u32::from(value("READY").is_some());
    }
}

fn are_same(one: &OwnedFd, other: &OwnedFd) -> bool {
    let me = std::process::id();
    // SAFETY: numbers only. Where the kernel can't say, nothing is the same.
    unsafe { libc::syscall(libc::SYS_kcmp, me, me, 0, one.as_raw_fd(), other.as_raw_fd()) == 0 }
}

/// A service manager with one service.
struct Manager {
    store: Arc<Mutex<Store>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    socket: PathBuf,
    child: Option<Child>,
}

impl Manager {
    fn new(site: &Site) -> Self {
        let socket = site.path("notify");
        let listener = UnixDatagram::bind(&socket).unwrap();
        listener.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let (store, stop) =
            (Arc::new(Mutex::new(Store::default())), Arc::new(AtomicBool::new(false)));
        let (for_thread, until) = (Arc::clone(&store), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::SeqCst) {
                if let Some((text, descriptors)) = receive(&listener) {
                    for_thread.lock().hear(&text, descriptors);
                }
            }
        });
        Self { store, stop, thread: Some(thread), socket, child: None }
    }

    /// Starts the service with what is kept, and waits until it is ready.
    fn start(&mut self, site: &Site, more: &[&str]) {
        let (ready, names, passed) = {
            let store = self.store.lock();
            let copy =
                |(_, fd): &(String, OwnedFd)| rustix::io::fcntl_dupfd_cloexec(fd, 200).unwrap();
            (store.ready, store.names().join(":"), store.kept.iter().map(copy).collect::<Vec<_>>())
        };
        let log = File::options().create(true).append(true).open(site.path("home/log")).unwrap();
        let tier = format!("{}=256M", site.text("tier"));
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "read go; export LISTEN_PID=$$; exec \"$@\" </dev/null", "sh"])
            .arg(env!("CARGO_BIN_EXE_forebay"))
            .args(["mount", &site.text("backing"), &site.text("mnt"), "--tier", &tier])
            .arg("--foreground")
            .args(more)
            .env_clear()
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", site.path("home"))
            .env("FOREBAY_RUNTIME_DIR", site.path("run"))
            .env("NOTIFY_SOCKET", &self.socket)
            .env("LISTEN_FDS", passed.len().to_string())
            .env("LISTEN_FDNAMES", names)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        // So that the places of the passed ones are free of what is needed to start a process.
        let _filled: Vec<File> = (0..16).map(|_| File::open("/dev/null").unwrap()).collect();
        let numbers: Vec<RawFd> = passed.iter().map(AsRawFd::as_raw_fd).collect();
        let place = move || {
            for (place, number) in (FIRST..).zip(&numbers) {
                // SAFETY: numbers only; allowed between fork and exec.
                if unsafe { libc::dup2(*number, place) } < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: the closure makes system calls only.
        let mut child = unsafe { command.pre_exec(place) }.spawn().unwrap();
        // As long as any copy is open, the mount lives: the daemon must find none but its own.
        drop(passed);
        drop(child.stdin.take());
        self.store.lock().main = child.id().cast_signed();
        self.child = Some(child);
        let is_ready = || self.store.lock().ready > ready;
        assert!(wait_for(LIMIT, is_ready), "not ready:\n{}", log_of(site));
    }

    fn main(&self) -> i32 {
        self.store.lock().main
    }

    fn names(&self) -> Vec<String> {
        self.store.lock().names().into_iter().map(str::to_owned).collect()
    }

    /// Ends the daemon at once, and waits until it is gone.
    fn kill(&mut self) {
        signal(self.main(), Signal::KILL);
        self.await_end();
    }

    fn await_end(&mut self) {
        let main = self.main();
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
        // After an upgrade the daemon is no child of this process.
        assert!(wait_for(LIMIT, || !alive(main)), "it does not end");
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // Nobody must wait for a mount that nobody will serve any more.
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let mut store = self.store.lock();
        store.kept.clear();
        if store.main != 0 {
            signal(store.main, Signal::KILL);
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn receive(socket: &UnixDatagram) -> Option<(String, Vec<OwnedFd>)> {
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut data = [IoSliceMut::new(&mut bytes)];
    let received = rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC);
    let length = received.ok()?.bytes;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    Some((String::from_utf8_lossy(&bytes[..length]).into_owned(), descriptors))
}

fn log_of(site: &Site) -> String {
    fs::read_to_string(site.path("home/log")).unwrap_or_default()
}

/// Programs on the mount, in a process of their own.
struct Programs {
    child: Child,
    dir: PathBuf,
}

const PROGRAMS_ON: &str = "FOREBAY_TEST_PROGRAMS_ON";
const PROGRAMS_TELL: &str = "FOREBAY_TEST_PROGRAMS_TELL";

impl Programs {
    fn start(site: &Site) -> Self {
        let dir = site.path("home");
        let log = File::create(site.path("home/programs")).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "programs_of_the_other_tests", "--nocapture"])
            .env(PROGRAMS_ON, site.path("mnt"))
            .env(PROGRAMS_TELL, &dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, dir }
    }

    fn operations(&self) -> u64 {
        let text = fs::read_to_string(self.dir.join("operations")).unwrap_or_default();
        text.parse().unwrap_or(0)
    }

    /// Until much has been done.
    fn await_work(&self) {
        let enough = self.operations() + 300;
        let done = || self.operations() > enough || self.dir.join("result").exists();
        assert!(wait_for(LIMIT, done), "no work is done");
    }

    /// Ends them, and gives what they have to complain about.
    fn stop(mut self) -> String {
        fs::write(self.dir.join("stop"), "").unwrap();
        let ended = wait_for(LIMIT, || self.dir.join("result").exists());
        assert!(ended, "{}", fs::read_to_string(self.dir.join("programs")).unwrap_or_default());
        let _ = self.child.wait();
        fs::read_to_string(self.dir.join("result")).unwrap()
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // Not waited for: on a mount that nobody serves it could not end yet.
    }
}

/// What runs in the other process.
#[test]
fn programs_of_the_other_tests() {
    let Some(mount) = std::env::var_os(PROGRAMS_ON) else { return };
    let dir = PathBuf::from(std::env::var_os(PROGRAMS_TELL).unwrap());
    let load = Load::start(Path::new(&mount));
    while !dir.join("stop").exists() && !load.has_failed() {
        fs::write(dir.join("new"), load.operations().to_string()).unwrap();
        fs::rename(dir.join("new"), dir.join("operations")).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    let result = load.stop(Duration::from_secs(30));
    eprintln!("{result:?}");
    fs::write(dir.join("last"), result.complaints.join("\n")).unwrap();
    fs::rename(dir.join("last"), dir.join("result")).unwrap();
}

fn times(variable: &str, usual: u32) -> u32 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Whether the kernel can send requests again, without which nobody takes over from a dead daemon.
fn stores(manager: &Manager, site: &Site) -> bool {
    let log = log_of(site);
    if log.contains("no restart after a crash") {
        eprintln!("skipped: {log}");
        return false;
    }
    assert!(wait_for(LIMIT, || manager.names().len() == 5), "{:?}", manager.names());
    true
}

#[test]
fn daemon_of_a_service_when_killed_under_a_load_then_the_next_takes_the_mount_from_the_store() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let mut manager = Manager::new(&site);
    manager.start(&site, &[]);
    if !stores(&manager, &site) {
        return;
    }
    let programs = Programs::start(&site);
    for round in 0..times("FOREBAY_TEST_KILLS", KILLS) {
        programs.await_work();
        let last = manager.main();
        manager.kill();
        manager.start(&site, &[]);
        assert_ne!(manager.main(), last);
        assert_eq!(manager.names().len(), 5, "round {round}: {:?}", manager.names());
        // Killed daemons and upgraded ones take turns; the new one stores, too.
        if round == 0 {
            programs.await_work();
            let last = manager.main();
            let (code, text) = site.run(&["upgrade", &site.text("mnt")]);
            assert_eq!(code, 0, "{text}");
            assert!(wait_for(LIMIT, || manager.main() != last), "who serves is not told");
            assert!(wait_for(LIMIT, || manager.names().len() == 5), "{:?}", manager.names());
        }
    }
    programs.await_work();
    let complaints = programs.stop();
    assert_eq!(complaints, "", "{}", log_of(&site));
    site.umount();
    manager.await_end();
    assert!(wait_for(LIMIT, || manager.names().is_empty()), "{:?}", manager.names());
    assert!(!site.is_mounted());
    let (code, text) = site.run(&["fsck", &format!("{}=256M", site.text("tier"))]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(fs::read_dir(site.path("backing/load/listing")).unwrap().count(), 400);
}

#[test]
fn service_when_the_store_has_nothing_of_use_then_mounts_anew() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let mut manager = Manager::new(&site);
    manager.start(&site, &[]);
    if !stores(&manager, &site) {
        return;
    }
    fs::write(site.path("mnt/file"), "text").unwrap();
    // What makes the rest useful is missing.
    manager.kill();
    manager.store.lock().kept.retain(|(name, _)| !name.starts_with("forebay-journal"));
    manager.start(&site, &[]);
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"text");
    assert!(wait_for(LIMIT, || manager.names().len() == 5), "{:?}", manager.names());
    // All is there, but the mount was taken away meanwhile.
    manager.kill();
    let (code, text) = outcome(site.command("fusermount3").args(["-uz", &site.text("mnt")]));
    assert_eq!(code, 0, "{text}");
    manager.start(&site, &[]);
    assert!(log_of(&site).contains("the mount that the last daemon served is gone"));
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"text");
    // A unit that keeps nothing.
    manager.kill();
    {
        let mut store = manager.store.lock();
        store.kept.clear();
        store.closed = true;
    }
    manager.start(&site, &[]);
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"text");
    assert!(manager.names().is_empty());
    // The end by the service manager's own word.
    signal(manager.main(), Signal::TERM);
    manager.await_end();
    assert!(!site.is_mounted());
    assert_eq!(fs::read(site.path("backing/file")).unwrap(), b"text");
}

#[test]
fn service_when_its_settings_changed_before_a_crash_then_goes_on_with_those_it_had() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let mut manager = Manager::new(&site);
    manager.start(&site, &["--writeback", "5min"]);
    if !stores(&manager, &site) {
        return;
    }
    fs::write(site.path("mnt/file"), "text").unwrap();
    manager.kill();
    // Settings that no mount can be made with.
    manager.start(&site, &["--writeback", "close", "--tier", "/nowhere/at/all=1G"]);
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"text");
    assert!(!site.path("backing/file").exists(), "written back after five minutes");
    site.umount();
    manager.await_end();
    assert_eq!(fs::read(site.path("backing/file")).unwrap(), b"text");
}
