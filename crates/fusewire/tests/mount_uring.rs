//! Real mounts served by io_uring. Skipped, with the reason printed, where the kernel does not offer
//! it: `echo Y > /sys/module/fuse/parameters/enable_uring` switches it on (Linux 6.14).

#[path = "common/behaviour.rs"]
mod behaviour;
#[path = "common/lab.rs"]
mod lab;
#[path = "../examples/ramfs/fs.rs"]
mod ramfs;

use std::fs;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fusewire::{End, Options, Parts, Session, Transport};
use lab::{Lab, Served};

const LIMIT: Duration = Duration::from_secs(60);

fn options() -> Option<Options> {
    let switch = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    if !switch.is_ok_and(|text| text.starts_with('Y')) {
        println!("skipped: FUSE over io_uring is not enabled in this kernel");
        return None;
    }
    Some(Options { transport: Transport::Uring, ..Options::default() })
}

#[test]
fn transport_when_auto_then_rings_serve_where_the_kernel_has_them() {
    let auto = Options { transport: Transport::Auto, ..Options::default() };
    let Some(served) = Served::start(&auto, Lab::default()) else { return };
    assert_eq!(served.running().is_on_rings(), options().is_some());
    fs::write(served.path("a"), [7; 100_000]).expect("written");
    assert_eq!(fs::read(served.path("a")).expect("read"), [7; 100_000]);
}

#[test]
fn transport_when_uring_is_asked_for_in_vain_then_mounting_fails_with_the_reason() {
    if options().is_some() {
        return println!("skipped: the kernel would grant it");
    }
    let directory = tempfile::tempdir().expect("mount point");
    let wanted = Options { transport: Transport::Uring, ..Options::default() };
    let Ok(mount) = fusewire::Mount::new(directory.path(), &wanted) else {
        return println!("skipped: cannot mount");
    };
    let session = fusewire::Session::new(mount, &wanted, std::sync::Arc::new(Lab::default()));
    let error = session.expect_err("refused");
    assert!(error.to_string().contains("io_uring"), "{error}");
}

/// More slow requests than a queue has entries: those of the other CPU and the rest of the session
/// go on, and all of them are answered.
#[test]
fn slow_requests_when_more_than_entries_then_all_are_answered() {
    let Some(options) = options() else { return };
    let Some(served) = Served::start(&options, Lab::default()) else { return };
    let start = Instant::now();
    let waiting: Vec<_> = (0..40)
        .map(|i| {
            let path = served.path(&format!("slow {i}"));
            std::thread::spawn(move || fs::metadata(path).unwrap_err().raw_os_error())
        })
        .collect();
    for waiter in waiting {
        assert_eq!(waiter.join().expect("no panic"), Some(libc::ENOENT));
    }
    assert!(start.elapsed() < Duration::from_secs(20));
    // A client may hear of its answer before the thread that has committed it goes on.
    assert_eq!(served.running().drain(LIMIT), 0);
    assert_eq!(served.lab.lookups.load(Ordering::SeqCst), 40);
}

#[test]
fn release_when_on_rings_under_load_then_a_successor_goes_on_without_an_error() {
    let Some(options) = options() else { return };
    let Some(mut served) = Served::start(&options, Lab::default()) else { return };
    let stop = Arc::new(AtomicBool::new(false));
    let clients = behaviour::load(&served, &stop);
    for round in 0..20 {
        std::thread::sleep(Duration::from_millis(20));
        let running = served.running.take().expect("running");
        let parts = running.release(LIMIT).expect("released");
        assert_eq!(running.join().expect("ended"), End::Released);
        drop(running);
        assert!(parts.rings.is_some(), "round {round}");
        let handler = Arc::clone(&served.lab);
        let session = Session::from_parts(parts, &options, handler).expect("adopted");
        let running = session.spawn().expect("threads start");
        assert!(running.is_on_rings());
        served.running = Some(running);
    }
    stop.store(true, Ordering::SeqCst);
    let rounds: u64 = clients.into_iter().map(|client| client.join().expect("no error")).sum();
    assert!(rounds > 20, "only {rounds} rounds");
    let lab = &served.lab;
    assert_eq!(lab.resent.load(Ordering::SeqCst), 0, "nothing was begun before");
    assert_eq!(lab.destroyed.load(Ordering::SeqCst), 0);
    served.running().unmount(true).expect("the successor can unmount");
    assert_eq!(served.running().join().expect("clean end"), End::Unmounted);
    assert_eq!(served.lab.destroyed.load(Ordering::SeqCst), 1);
}

/// As after the death of a process: its entries are known, and it does nothing any more.
#[test]
fn requests_when_taken_and_never_answered_then_the_successor_gets_them_marked() {
    let Some(options) = options() else { return };
    let Some(mut served) = Served::start(&options, Lab::default()) else { return };
    fs::write(served.path("before"), "text").expect("written");
    served.lab.swallow.store(true, Ordering::SeqCst);
    let clients: Vec<_> = (0..3)
        .map(|index| {
            let path = served.path(&format!("made before the death {index}"));
            std::thread::spawn(move || fs::write(path, "kept"))
        })
        .collect();
    // The kernel gives a directory to one of them at a time.
    let start = Instant::now();
    while served.lab.swallowed.load(Ordering::SeqCst) == 0 && start.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(1));
    }
    let running = served.running.take().expect("running");
    running.park(LIMIT).expect("parks");
    served.lab.swallow.store(false, Ordering::SeqCst);
    let device = running.connection().as_fd().try_clone_to_owned().expect("duplicated");
    let (negotiated, mountpoint) = (*running.connection().negotiated(), running.mountpoint());
    let parts = Parts { device, negotiated, mountpoint, rings: running.rings() };
    std::mem::forget(running);
    let handler = Arc::clone(&served.lab);
    let session = Session::from_parts(parts, &options, handler).expect("adopted");
    served.running = Some(session.spawn().expect("threads start"));
    for client in clients {
        client.join().expect("no panic").expect("the client notices nothing");
    }
    assert!(served.lab.resent.load(Ordering::SeqCst) >= 1);
    for index in 0..3 {
        let path = served.path(&format!("made before the death {index}"));
        assert_eq!(fs::read(path).expect("read"), b"kept");
    }
    assert_eq!(fs::read(served.path("before")).expect("read"), b"text");
}

#[test]
fn entries_when_many_cpus_or_little_memory_then_requests_become_smaller() {
    let Some(options) = options() else { return };
    let little = Options { ring_memory: 2 << 20, ..options };
    let Some(served) = Served::start(&little, Lab::default()) else { return };
    assert!(served.running().connection().negotiated().max_write < 1 << 20);
    let content: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 253) as u8).collect();
    fs::write(served.path("a"), &content).expect("written");
    assert!(fs::read(served.path("a")).expect("read") == content);
}
