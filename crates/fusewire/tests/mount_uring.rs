//! Real mounts served by io_uring. Skipped, with the reason printed, where the kernel does not offer
//! it: `echo Y > /sys/module/fuse/parameters/enable_uring` switches it on (Linux 6.14).

#[path = "common/behaviour.rs"]
mod behaviour;
#[path = "common/lab.rs"]
mod lab;
#[path = "../examples/ramfs/fs.rs"]
mod ramfs;

use std::fs;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fusewire::{Options, Transport};
use lab::{Lab, Served};

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
    assert_eq!(served.running().connection().in_flight(), 0);
    assert_eq!(served.lab.lookups.load(Ordering::SeqCst), 40);
}

#[test]
fn release_when_on_rings_then_refused_and_the_session_goes_on() {
    let Some(options) = options() else { return };
    let Some(served) = Served::start(&options, Lab::default()) else { return };
    let refused = served.running().release(Duration::from_secs(5)).expect_err("not possible");
    assert!(refused.to_string().contains("io_uring"), "{refused}");
    fs::write(served.path("after"), "works").expect("still served");
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
