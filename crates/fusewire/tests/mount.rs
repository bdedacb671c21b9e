//! Real mounts. Skipped, with the reason printed, where there is no `/dev/fuse`.

#[path = "common/behaviour.rs"]
mod behaviour;
#[path = "common/lab.rs"]
mod lab;
#[path = "../examples/ramfs/fs.rs"]
mod ramfs;

use std::fs::{self};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use behaviour::{load, wait};
use fusewire::{End, Features, Options, Session};
use lab::{Lab, Served};

fn options() -> Option<Options> {
    Some(Options::default())
}

fn serve() -> Option<Served> {
    Served::start(&options()?, Lab::default())
}

#[test]
fn release_when_under_load_then_a_successor_goes_on_without_an_error() {
    let Some(mut served) = serve() else { return };
    let stop = Arc::new(AtomicBool::new(false));
    let clients = load(&served, &stop);
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(20));
        let running = served.running.take().expect("running");
        let parts = running.release(Duration::from_secs(5)).expect("released");
        assert_eq!(running.join().expect("ended"), End::Released);
        drop(running);
        let handler = Arc::clone(&served.lab);
        let session = Session::from_parts(parts, &Options::default(), handler).expect("adopted");
        served.running = Some(session.spawn().expect("readers start"));
    }
    stop.store(true, Ordering::SeqCst);
    let rounds: u64 = clients.into_iter().map(|client| client.join().expect("no error")).sum();
    assert!(rounds > 20, "only {rounds} rounds");
    assert_eq!(served.lab.destroyed.load(Ordering::SeqCst), 0);
    served.running().unmount(true).expect("the successor can unmount");
    assert_eq!(served.running().join().expect("clean end"), End::Unmounted);
    assert_eq!(served.lab.destroyed.load(Ordering::SeqCst), 1);
}

#[test]
fn resend_when_requests_were_read_and_never_answered_then_the_successor_gets_them() {
    let Some(mut served) = serve() else { return };
    let offered = served.running().connection().negotiated().features;
    if !offered.contains(Features::HAS_RESEND) {
        return println!("skipped: no RESEND (needs Linux 6.9)");
    }
    served.lab.swallow.store(true, Ordering::SeqCst);
    let path = served.path("made before the crash");
    let client = std::thread::spawn(move || fs::write(path, "kept"));
    let start = Instant::now();
    while served.lab.swallowed.load(Ordering::SeqCst) == 0 && start.elapsed().as_secs() < 10 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let running = served.running.take().expect("running");
    let parts = running.release(Duration::from_secs(5)).expect("released");
    served.lab.swallow.store(false, Ordering::SeqCst);
    let handler = Arc::clone(&served.lab);
    let session = Session::from_parts(parts, &Options::default(), handler).expect("adopted");
    session.connection().notify_resend().expect("asked for");
    served.running = Some(session.spawn().expect("readers start"));
    client.join().expect("no panic").expect("the client notices nothing");
    assert_eq!(served.lab.resent.load(Ordering::SeqCst), 1);
    assert_eq!(fs::read(served.path("made before the crash")).expect("read"), b"kept");
}

#[test]
fn mount_when_point_or_options_are_wrong_then_says_so() {
    let missing = fusewire::Mount::new("/nonexistent/fusewire", &Options::default());
    assert!(missing.unwrap_err().to_string().contains("/nonexistent/fusewire"));
    let wrong = Options { max_write: 1, ..Options::default() };
    assert!(fusewire::Mount::new("/tmp", &wrong).is_err());
}

/// Ends what a test started, whatever happens to the test. Its mount is in a mount namespace of
/// its own, which goes with it.
struct Cleanup(Child);

impl Drop for Cleanup {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn mount_when_unprivileged_then_fusermount_does_it() {
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        return println!("skipped: needs /dev/fuse, and root in order to become nobody");
    }
    let test_binary = std::env::current_exe().expect("own path");
    let example = test_binary.ancestors().nth(2).expect("target").join("examples/ramfs");
    let directory = tempfile::tempdir().expect("directory");
    let (program, point) = (directory.path().join("ramfs"), directory.path().join("mnt"));
    fs::copy(&example, &program).expect("the example was built");
    fs::create_dir(&point).expect("mount point");
    for path in [directory.path(), &program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("open to all");
    }
    std::os::unix::fs::chown(&point, Some(65534), Some(65534)).expect("chown");

    // Where the device is closed to others, which even fusermount3 respects, they get one of
    // their own.
    let server = "cd \"$0\"; mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse; \
        exec setpriv --reuid=65534 --regid=65534 --clear-groups -- ./ramfs mnt";
    let child = Command::new("unshare")
        .args(["--mount", "--", "sh", "-ec", server])
        .arg(directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut child = Cleanup(child);
    let mut output = BufReader::new(child.0.stdout.take().expect("piped")).lines();
    let first = output.next().expect("a line").expect("text");
    assert!(first.starts_with("serving"), "{first}");

    let client = "cd \"$0\"; id -u; echo hello > f; cat f; cd /; fusermount3 -u \"$0\"";
    let script = Command::new("timeout")
        .args(["20", "nsenter", "--mount", "-t", &child.0.id().to_string(), "--"])
        .args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .args(["sh", "-ec", client])
        .arg(&point)
        .output()
        .expect("runs");
    assert_eq!(String::from_utf8_lossy(&script.stdout), "65534\nhello\n", "{script:?}");
    let status = wait(&mut child.0, Duration::from_secs(10)).expect("the session ends");
    assert!(status.success(), "{status}");
    assert_eq!(output.next().expect("a line").expect("text"), "Unmounted");
}
