//! Requests that have to wait, on a small real mount: they go on where they stand, and the threads
//! that take requests serve others meanwhile. Skipped, with the reason printed, where there is no
//! `/dev/fuse`; by io_uring as well where the kernel has that switched on.
#![cfg(feature = "failpoints")]

mod lab;

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_fuse::{MountOptions, Transport};
use forebay_node::Node;
use forebay_store::DirBacking;
use forebay_store::decorators::{InterceptedBacking, Stuck};
use forebay_testing::wait_until;
use lab::Lab;
use rustix::fs::XattrFlags;

/// Fail points are the process's.
static ONE_AT_A_TIME: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

/// Threads that may wait.
const SLOW: usize = 4;
const LIMIT: Duration = Duration::from_secs(60);

/// Counts who comes by a fail point.
struct Counted(&'static str, Arc<AtomicUsize>);

impl Counted {
    fn at(point: &'static str) -> Self {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        let one_more = move || {
            counter.fetch_add(1, Ordering::SeqCst);
        };
        fail::cfg_callback(point, one_more).expect("a point");
        Counted(point, count)
    }

    fn get(&self) -> usize {
        self.1.load(Ordering::SeqCst)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        fail::remove(self.0);
    }
}

/// A mount with one thread that takes requests, and the files `f0`, `f1`, ... in a backing store that
/// hangs when told to.
fn lab(transport: Transport, files: usize, timeout: Duration) -> Option<(Lab, Arc<Stuck>)> {
    let stuck = Arc::new(Stuck::default());
    let interceptor = Arc::clone(&stuck);
    let options =
        MountOptions { allow_other: false, threads: 1, transport, ..MountOptions::default() };
    let lab = Lab::start_with(
        &options,
        |config| {
            config.slow_threads = SLOW;
            config.backing_timeout = timeout;
            for file in 0..files {
                fs::write(config.backing.join(format!("f{file}")), content(file)).expect("made");
            }
        },
        |config| {
            let backing = Arc::new(DirBacking::open(&config.backing, "test")?);
            Node::start_on(config, Arc::new(InterceptedBacking::new(backing, interceptor)))
        },
    )?;
    Some((lab, stuck))
}

fn content(file: usize) -> Vec<u8> {
    vec![u8::try_from(file % 251).expect("small"); 100_000]
}

/// The threads of this process with this name.
fn threads_named(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("listed");
    let named = |path: &std::path::Path| fs::read_to_string(path).is_ok_and(|it| it.trim() == name);
    tasks.filter_map(Result::ok).filter(|task| named(&task.path().join("comm"))).count()
}

fn transports() -> Vec<Transport> {
    let switch = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    match switch.is_ok_and(|on| on.trim() == "Y") {
        true => vec![Transport::Classic, Transport::Uring],
        false => vec![Transport::Classic],
    }
}

#[test]
fn request_that_has_to_wait_when_carried_out_then_each_step_is_taken_once() {
    let _alone = ONE_AT_A_TIME.lock();
    for transport in transports() {
        let Some((lab, stuck)) = lab(transport, 3, LIMIT) else { return };
        // The kernel and the namespace know them; their bytes are not here.
        assert_eq!(lab::names(&lab.path("")).len(), 3);
        let (opens, cuts) = (Counted::at("node.open.begin"), Counted::at("node.truncate.loaded"));
        stuck.hang(&[]);
        let path = lab.path("f0");
        let reader = std::thread::spawn(move || fs::read(path));
        wait_until("the open waits", || stuck.waiting() > 0);
        let mounted = lab.mounted.as_ref().expect("mounted");
        assert!(mounted.stuck(Duration::ZERO).iter().all(|stuck| !stuck.holds_reader));
        assert_eq!(opens.get(), 1, "{transport:?}: it is on its way");
        stuck.release();
        let read = reader.join().expect("no panic").expect("read");
        assert!(read == content(0));
        assert_eq!((opens.get(), cuts.get()), (1, 0), "{transport:?}");
        // One that changes something, and then has to wait.
        let file = OpenOptions::new().write(true).open(lab.path("f1")).expect("opened");
        file.set_len(50_000).expect("cut");
        assert_eq!((opens.get(), cuts.get()), (2, 1), "{transport:?}");
        file.write_all_at(b"new", 49_999).expect("written");
        drop(file);
        let read = fs::read(lab.path("f1")).expect("read");
        assert!(read[..49_999] == content(1)[..49_999] && read[49_999..] == *b"new");
    }
}

#[test]
fn readers_when_many_requests_wait_then_serve_what_needs_no_waiting() {
    const MANY: usize = 60;
    let _alone = ONE_AT_A_TIME.lock();
    for transport in transports() {
        let Some((lab, stuck)) = lab(transport, MANY, LIMIT) else { return };
        assert_eq!(lab::names(&lab.path("")).len(), MANY);
        fs::write(lab.path("here"), b"on the tier").expect("written");
        let here = File::options().read(true).write(true).open(lab.path("here")).expect("opened");
        let opens = Counted::at("node.open.begin");
        // An entry of a ring belongs to its request until that is answered.
        let many = if transport == Transport::Uring { 3 } else { MANY };
        stuck.hang(&[]);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..many)
                .map(|file| (file, lab.path(&format!("f{file}"))))
                .map(|(file, path)| scope.spawn(move || (file, fs::read(path))))
                .collect();
            wait_until("all of them wait", || opens.get() == many);
            let begin = Instant::now();
            for round in 0..50_u64 {
                here.write_all_at(b"0n", 0).expect("written");
                fs::write(lab.path(&format!("new{round}")), b"x").expect("made");
                let mut text = String::new();
                let read =
                    File::open(lab.path("here")).and_then(|mut f| f.read_to_string(&mut text));
                assert_eq!((read.expect("read"), &text[..2]), (11, "0n"));
            }
            let took = begin.elapsed();
            assert!(threads_named("slow") <= SLOW, "{}", threads_named("slow"));
            assert_eq!(stuck.waiting().min(SLOW + 1), stuck.waiting(), "no more wait at the store");
            stuck.release();
            assert!(took < LIMIT / 2, "{transport:?}: {took:?}");
            for reader in readers {
                let (file, read) = reader.join().expect("no panic");
                assert!(read.expect("read") == content(file), "f{file}");
            }
        });
        assert_eq!(opens.get(), many + 50, "{transport:?}: none was begun anew");
    }
}

#[test]
fn request_that_waits_for_a_thread_when_given_up_then_does_nothing() {
    let _alone = ONE_AT_A_TIME.lock();
    let Some((lab, stuck)) = lab(Transport::Classic, SLOW + 1, Duration::from_secs(1)) else {
        return;
    };
    assert_eq!(lab::names(&lab.path("")).len(), SLOW + 1);
    let last = lab.path(&format!("f{SLOW}"));
    stuck.hang(&[]);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..SLOW)
            .map(|file| lab.path(&format!("f{file}")))
            .map(|path| scope.spawn(move || fs::read(path)))
            .collect();
        wait_until("all threads are busy", || stuck.waiting() >= SLOW);
        // What the store has is looked at before.
        let set = rustix::fs::setxattr(&last, "user.late", b"1", XattrFlags::empty());
        assert_eq!(set, Err(rustix::io::Errno::IO));
        stuck.release();
        for reader in readers {
            let _at_its_time_limit = reader.join().expect("no panic");
        }
    });
    let mounted = lab.mounted.as_ref().expect("mounted");
    wait_until("all have come to their ends", || mounted.stuck(Duration::ZERO).is_empty());
    let found = rustix::fs::getxattr(&last, "user.late", &mut [0_u8; 8][..]);
    assert_eq!(found, Err(rustix::io::Errno::NODATA));
}

#[test]
fn request_that_has_to_wait_when_nobody_takes_it_then_is_refused_and_has_changed_nothing() {
    let _alone = ONE_AT_A_TIME.lock();
    let Some((lab, _)) = lab(Transport::Classic, 2, LIMIT) else { return };
    assert_eq!(lab::names(&lab.path("")).len(), 2);
    fs::write(lab.path("here"), b"on the tier").expect("written");
    assert!(lab.node.slow_pool().close(LIMIT), "nothing is under way");
    let refused = fs::read(lab.path("f0")).map_err(|error| error.raw_os_error());
    assert_eq!(refused, Err(Some(libc::EAGAIN)));
    let emptied = OpenOptions::new().write(true).open(lab.path("f1")).and_then(|f| f.set_len(7));
    assert_eq!(emptied.map_err(|error| error.raw_os_error()), Err(Some(libc::EAGAIN)));
    assert_eq!(fs::metadata(lab.path("f1")).expect("there").len(), 100_000);
    assert_eq!(fs::read(lab.path("here")).expect("others are served"), b"on the tier");
}
