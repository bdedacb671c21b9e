//! What every transport must do, on a real mount. The tests that include this say which transport.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fusewire::{End, Features, Options, Session};

use crate::lab::{Lab, Served};
use crate::options;

fn serve() -> Option<Served> {
    Served::start(&options()?, Lab::default())
}

/// Waits for a child, but not for ever.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if let Some(status) = child.try_wait().expect("waited") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().expect("killed");
    None
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).expect("listed");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}

#[test]
fn files_when_used_through_the_mount_then_behave_as_files() {
    let Some(served) = serve() else { return };
    let path = |name: &str| served.path(name);
    let content: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    fs::write(path("a"), &content).expect("written");
    assert_eq!(fs::read(path("a")).expect("read"), content);
    assert_eq!(fs::metadata(path("a")).expect("stat").len(), content.len() as u64);
    let file = File::options().write(true).open(path("a")).expect("opened");
    file.write_all_at(b"patch", 1000).expect("patched");
    file.set_len(2000).expect("truncated");
    drop(file);
    let mut expected = content[..2000].to_vec();
    expected[1000..1005].copy_from_slice(b"patch");
    assert_eq!(fs::read(path("a")).expect("read"), expected);

    fs::create_dir(path("d")).expect("mkdir");
    fs::rename(path("a"), path("d/b")).expect("renamed");
    assert_eq!(fs::metadata(path("a")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    fs::hard_link(path("d/b"), path("d/c")).expect("linked");
    symlink("d/b", path("s")).expect("symlink");
    assert_eq!(fs::read_link(path("s")).expect("readlink"), Path::new("d/b"));
    assert_eq!(fs::read(path("s")).expect("through the link").len(), 2000);
    assert_eq!(fs::metadata(path("d/c")).expect("stat").nlink(), 2);
    assert_eq!(names(&path("d")), ["b", "c"]);
    let error = fs::remove_dir(path("d")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTEMPTY));
    fs::set_permissions(path("d/b"), fs::Permissions::from_mode(0o600)).expect("chmod");
    assert_eq!(fs::metadata(path("d/c")).expect("stat").mode() & 0o7777, 0o600);

    let mut open = File::open(path("d/b")).expect("opened");
    for name in ["d/b", "d/c", "s"] {
        fs::remove_file(path(name)).expect("removed");
    }
    let mut rest = Vec::new();
    open.read_to_end(&mut rest).expect("unlinked, but open");
    assert_eq!(rest, expected);
    fs::remove_dir(path("d")).expect("rmdir");
    assert!(names(&served.path("")).is_empty());
}

#[test]
fn directory_when_it_has_thousands_of_entries_then_all_are_listed_once() {
    let Some(served) = serve() else { return };
    let mut expected: Vec<_> = (0..3000).map(|i| format!("a file with number {i}")).collect();
    for name in &expected {
        File::create(served.path(name)).expect("created");
    }
    expected.sort();
    assert_eq!(names(&served.path("")), expected);
}

#[test]
fn unmount_when_asked_then_session_ends_and_handler_is_told_once() {
    let Some(mut served) = serve() else { return };
    let file = File::create(served.path("open")).expect("created");
    served.running().unmount(false).expect_err("busy");
    drop(file);
    let running = served.running.take().expect("running");
    running.unmount(false).expect("unmounted");
    assert_eq!(running.join().expect("clean end"), End::Unmounted);
    assert!(running.connection().has_ended());
    assert_eq!(served.lab.destroyed.load(Ordering::SeqCst), 1);
    assert!(!served.path("open").exists(), "the directory underneath is bare");
}

#[test]
fn mount_and_session_when_dropped_unserved_then_nothing_stays_mounted() {
    if !Path::new("/dev/fuse").exists() {
        return println!("skipped: there is no /dev/fuse");
    }
    let Some(options) = options() else { return };
    let directory = tempfile::tempdir().expect("mount point");
    let device = || fs::metadata(directory.path()).expect("not a dead mount").dev();
    let before = device();
    drop(fusewire::Mount::new(directory.path(), &options).expect("mounts"));
    assert_eq!(device(), before);
    let mount = fusewire::Mount::new(directory.path(), &options).expect("mounts");
    drop(Session::new(mount, &options, Arc::new(Lab::default())).expect("negotiates"));
    assert_eq!(device(), before);
}

#[test]
fn reply_when_dropped_refused_or_panicked_away_then_the_client_gets_eio() {
    let Some(served) = serve() else { return };
    for name in ["dropped", "panics", "oversized"] {
        let error = fs::metadata(served.path(name)).unwrap_err();
        // With io_uring the kernel itself answers in place of what does not fit.
        let fitting = [libc::EIO, if name == "oversized" { libc::EINVAL } else { libc::EIO }];
        assert!(fitting.map(Some).contains(&error.raw_os_error()), "{name}: {error}");
    }
    fs::write(served.path("after"), "works").expect("still served");
}

#[test]
fn interrupt_when_a_request_is_stuck_then_the_client_is_freed() {
    let Some(served) = serve() else { return };
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::KILL] {
        let mut child = Command::new("stat").arg(served.path("stuck")).spawn().expect("runs");
        std::thread::sleep(Duration::from_millis(150));
        assert!(child.try_wait().expect("waited").is_none(), "it should be stuck");
        let id = rustix::process::Pid::from_child(&child);
        let start = Instant::now();
        rustix::process::kill_process(id, signal).expect("signalled");
        let status = wait(&mut child, Duration::from_secs(5)).expect("freed by the signal");
        assert_eq!(status.signal(), Some(signal.as_raw()));
        println!("freed after {:?}", start.elapsed());
    }
    assert_eq!(served.lab.interrupts.load(Ordering::SeqCst), 2);
}

#[test]
fn slow_requests_when_offloaded_then_others_go_on() {
    let Some(served) = serve() else { return };
    fs::write(served.path("quick"), "x").expect("written");
    let slow = served.path("slow");
    let clients: Vec<_> = (0..6)
        .map(|_| {
            let slow = slow.clone();
            std::thread::spawn(move || fs::metadata(slow).unwrap_err().raw_os_error())
        })
        .collect();
    std::thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    for round in 0..20 {
        fs::write(served.path("quick"), format!("round {round}")).expect("written");
    }
    let elapsed = start.elapsed();
    assert!(served.running().connection().in_flight() > 0, "the slow ones were still waiting");
    assert!(elapsed < Duration::from_millis(350), "20 writes took {elapsed:?}");
    for client in clients {
        assert_eq!(client.join().expect("no panic"), Some(libc::ENOENT));
    }
}

#[test]
fn passthrough_when_granted_then_data_do_not_pass_the_handler() {
    let mut backing = tempfile::tempfile_in("/dev/shm").expect("tmpfs file");
    backing.write_all(&[7; 100_000]).expect("written");
    let lab = Lab::default();
    *lab.backing.lock() = Some((backing, 0));
    let Some(options) = options() else { return };
    let options = Options { features: options.features | Features::PASSTHROUGH, ..options };
    let Some(served) = Served::start(&options, lab) else { return };
    let offered = served.running().connection().negotiated().features;
    let id = served.lab.backing.lock().as_ref().expect("set").1;
    if !offered.contains(Features::PASSTHROUGH) || id == 0 {
        return println!("skipped: no passthrough (needs Linux 6.9 and CAP_SYS_ADMIN)");
    }
    let file = File::options().read(true).write(true).open(served.path("backed")).expect("opened");
    let mut content = vec![0; 100_000];
    file.read_exact_at(&mut content, 0).expect("read");
    assert!(content.iter().all(|&byte| byte == 7));
    file.write_all_at(b"new", 10).expect("written");
    let mut start = [0; 3];
    let read = served.lab.backing.lock().as_ref().expect("set").0.read_at(&mut start, 10);
    assert_eq!((read.expect("read"), &start), (3, b"new"));
    assert_eq!(served.lab.reads.load(Ordering::SeqCst), 0);
    drop(file);
    served.running().connection().backing_close(id).expect("closed");
}

#[test]
fn notifications_when_sent_then_the_kernel_obeys() {
    let Some(served) = serve() else { return };
    let (lab, connection) = (&served.lab, served.running().connection());
    fs::write(served.path("a"), "0123456789").expect("written");
    let node = fs::metadata(served.path("a")).expect("stat").ino();
    let looked_up_by_stat = || {
        let before = lab.lookups.load(Ordering::SeqCst);
        fs::metadata(served.path("a")).expect("stat");
        lab.lookups.load(Ordering::SeqCst) - before
    };
    assert_eq!(looked_up_by_stat(), 0, "cached");
    connection.notify_inval_entry(1, b"a", false).expect("invalidated");
    assert_eq!(looked_up_by_stat(), 1);
    connection.notify_inval_entry(1, b"a", true).expect("expired");
    assert_eq!(looked_up_by_stat(), 1);
    let minor = connection.negotiated().kernel_minor;
    if minor >= 44 {
        connection.notify_inc_epoch().expect("all expired");
        assert_eq!(looked_up_by_stat(), 1);
    }
    if minor >= 45 {
        connection.notify_prune(&[node]).expect("pruned");
    }
    let file = File::open(served.path("a")).expect("opened");
    connection.notify_inval_inode(node, 0, 0).expect("invalidated");
    connection.notify_store(node, 0, b"ABCDE56789").expect("stored");
    let mut content = [0; 10];
    file.read_exact_at(&mut content, 0).expect("read");
    assert_eq!(&content, b"ABCDE56789", "what was put into the page cache");
    connection.notify_retrieve(4711, node, 0, 10).expect("asked");
    let start = Instant::now();
    while lab.retrieved.lock().is_empty() && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(*lab.retrieved.lock(), [(4711, b"ABCDE56789".to_vec())]);
    connection.notify_delete(1, node, b"a").expect("deleted");
    connection.notify_resend().expect("nothing to send again");
}

/// Clients that create, write, read, rename and remove until told to stop; each error is a panic.
pub fn load(served: &Served, stop: &Arc<AtomicBool>) -> Vec<std::thread::JoinHandle<u64>> {
    let client = |id: usize| {
        let (base, stop) = (served.path(""), Arc::clone(stop));
        std::thread::spawn(move || {
            let mut rounds = 0_u64;
            while !stop.load(Ordering::SeqCst) {
                let (one, two) = (base.join(format!("{id}")), base.join(format!("{id} moved")));
                let content = rounds.to_ne_bytes().repeat(1000);
                fs::write(&one, &content).expect("written");
                fs::rename(&one, &two).expect("renamed");
                assert_eq!(fs::read(&two).expect("read"), content);
                fs::remove_file(&two).expect("removed");
                rounds += 1;
            }
            rounds
        })
    };
    (0..3).map(client).collect()
}

#[test]
fn park_when_under_load_then_nothing_is_lost() {
    let Some(served) = serve() else { return };
    let stop = Arc::new(AtomicBool::new(false));
    let clients = load(&served, &stop);
    let mut longest = Duration::ZERO;
    for _ in 0..100 {
        let start = Instant::now();
        served.running().park(Duration::from_secs(5)).expect("parks");
        longest = longest.max(start.elapsed());
        assert_eq!(served.running().drain(Duration::from_secs(5)), 0);
        std::thread::sleep(Duration::from_millis(2));
        served.running().resume();
        std::thread::sleep(Duration::from_millis(5));
    }
    stop.store(true, Ordering::SeqCst);
    let rounds: u64 = clients.into_iter().map(|client| client.join().expect("no error")).sum();
    println!("{rounds} rounds, longest park {longest:?}");
    assert!(rounds > 100, "only {rounds} rounds");
}
