//! Rings that the kernel refuses after INIT, when there is no way back to another INIT.

use std::cell::Cell;
use std::process::{Command, Output};
use std::sync::atomic::AtomicU64;

use super::*;
use crate::operation::Operation;
use crate::reply::Reply;
use crate::request::Request;
use crate::types::Attr;

thread_local! {
    /// How many threads can still be started by this one, if that is bounded.
    static THREADS: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Fails as the system does where it lacks threads.
pub(super) fn lack_threads() -> io::Result<()> {
    match THREADS.get() {
        Some(0) => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        left => {
            THREADS.set(left.map(|left| left - 1));
            Ok(())
        }
    }
}

const LIMIT: Duration = Duration::from_secs(60);

/// An empty directory.
#[derive(Default)]
struct Empty {
    lookups: AtomicU64,
    destroyed: AtomicU64,
}

impl Handler for Empty {
    fn handle(&self, request: Request, reply: Reply) {
        match request.operation() {
            Ok(Operation::Getattr { .. }) => {
                let attr = Attr { ino: 1, mode: 0o40755, nlink: 2, ..Attr::default() };
                reply.attr(&attr, Duration::ZERO);
            }
            Ok(Operation::Lookup { .. }) => {
                self.lookups.fetch_add(1, Ordering::SeqCst);
                reply.error(libc::ENOENT);
            }
            _ => reply.error(libc::ENOSYS),
        }
    }
    fn forget(&self, _node: u64, _lookups: u64) {}
    fn destroy(&self) {
        self.destroyed.fetch_add(1, Ordering::SeqCst);
    }
}

/// A session with rings, whether the kernel offers them or not. `None`, with the reason printed,
/// where there can be none.
fn session(transport: Transport, point: &Path) -> Option<Session<Empty>> {
    let options = Options { transport: Transport::Auto, ..Options::default() };
    let mount = match Mount::new(point, &options) {
        Ok(mount) => mount,
        Err(error) => {
            println!("skipped: {error}");
            return None;
        }
    };
    let rings = match Rings::make(&options) {
        Ok(rings) => rings,
        Err(error) => {
            println!("skipped: no io_uring at all: {error}");
            return None;
        }
    };
    let handler = Arc::new(Empty::default());
    let mut session = Session::greeted(mount, &options, handler, Rings::make).expect("negotiated");
    if session.rings.is_none() {
        println!("the kernel does not offer it, and will refuse every ring");
        session.rings = Some(rings);
    }
    session.options.transport = transport;
    Some(session)
}

/// What somebody else sees there. In a process of its own: whoever hangs is ended.
fn look(point: &Path) -> Output {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60", "stat", "--"]).env("LC_ALL", "C");
    command.args((0..20).map(|index| point.join(index.to_string()))).output().expect("runs")
}

fn assert_served(point: &Path) {
    let seen = look(point);
    let text = String::from_utf8_lossy(&seen.stderr);
    assert_eq!(text.matches("No such file or directory").count(), 20, "{seen:?}");
}

#[test]
fn rings_when_refused_after_init_then_requests_come_by_the_device() {
    let _one_at_a_time = ring::ADDRESSES.lock();
    let cpus = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    println!("CPUs {}", cpus.trim());
    // The only ring, the last one after the others were accepted, the first one, all of them.
    let last = std::thread::available_parallelism().map_or(0, |count| count.get() - 1);
    for spoilt in [0..=0, last..=last, 0..=usize::MAX] {
        let directory = tempfile::tempdir().expect("mount point");
        let Some(session) = session(Transport::Auto, directory.path()) else { return };
        session.rings.as_ref().expect("made").spoil(|cpu| spoilt.contains(&cpu));
        let handler = Arc::clone(&session.handler);
        let running = session.spawn().expect("goes on by the device");
        assert!(!running.is_on_rings() && running.rings().is_none());
        let features = running.connection().negotiated().features;
        assert!(!features.contains(Features::OVER_IO_URING));
        assert_served(directory.path());
        // And so does whoever takes it over.
        let parts = running.release(LIMIT).expect("released");
        assert_eq!(running.join().expect("ended"), End::Released);
        let next = Session::from_parts(parts, &Options::default(), Arc::clone(&handler));
        let running = next.expect("adopted").spawn().expect("served");
        assert_served(directory.path());
        running.unmount(true).expect("unmounted");
        assert_eq!(running.join().expect("clean end"), End::Unmounted);
        assert!(handler.lookups.load(Ordering::SeqCst) >= 40);
        assert_eq!(handler.destroyed.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn rings_when_refused_and_nothing_else_will_do_then_mounting_fails_and_nothing_stays() {
    let _one_at_a_time = ring::ADDRESSES.lock();
    let directory = tempfile::tempdir().expect("mount point");
    let Some(session) = session(Transport::Uring, directory.path()) else { return };
    session.rings.as_ref().expect("made").spoil(|_| true);
    let error = session.spawn().expect_err("refused");
    assert!(matches!(error, Error::Uring(_)), "{error}");
    std::fs::write(directory.path().join("file"), "text").expect("it is the plain directory again");
}

/// Rings are ready, and then the kernel does not offer them.
#[test]
fn rings_when_not_offered_at_init_then_requests_come_by_the_device() {
    let _one_at_a_time = ring::ADDRESSES.lock();
    let directory = tempfile::tempdir().expect("mount point");
    let options = Options { transport: Transport::Auto, ..Options::default() };
    let mount = match Mount::new(directory.path(), &options) {
        Ok(mount) => mount,
        Err(error) => return println!("skipped: {error}"),
    };
    let handler = Arc::new(Empty::default());
    let session = Session::greeted(mount, &options, handler, Rings::make).expect("negotiated");
    if session.rings.is_some() {
        return println!("skipped: the kernel offers it");
    }
    let running = session.spawn().expect("served");
    assert!(!running.is_on_rings());
    assert_served(directory.path());
}

/// Those of two daemons may be more than the system allows, for as long as one takes over from the other.
#[test]
fn mount_when_who_takes_it_over_lacks_threads_then_it_stays_and_its_requests_are_untouched() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options { transport: Transport::Classic, threads: 3, ..Options::default() };
    let mount = match Mount::new(dir.path(), &options) {
        Ok(mount) => mount,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let handler = Arc::new(Empty::default());
    let running = Session::new(mount, &options, Arc::clone(&handler)).expect("negotiated");
    let running = running.spawn().expect("served");
    let parts = running.release(LIMIT).expect("released");
    let point = parts.mountpoint.clone().expect("known");
    for lacking in 0..3 {
        let negotiated = parts.negotiated;
        let device = parts.device.try_clone().expect("a copy");
        let copy = Parts { device, negotiated, mountpoint: Some(point.clone()), rings: None };
        let fails = Arc::new(Empty::default());
        let session = Session::from_parts(copy, &options, Arc::clone(&fails)).expect("adopted");
        THREADS.set(Some(lacking));
        let failed = session.spawn();
        THREADS.set(None);
        assert!(failed.is_err(), "{lacking}");
        assert_eq!(fails.lookups.load(Ordering::SeqCst), 0);
    }
    // Nor does one that is dropped before it serves.
    let device = parts.device.try_clone().expect("a copy");
    let copy = Parts { device, mountpoint: Some(point.clone()), rings: None, ..parts };
    drop(Session::from_parts(copy, &options, Arc::clone(&handler)).expect("adopted"));
    let mounted = std::fs::read_to_string("/proc/self/mounts").expect("listed");
    assert!(mounted.contains(point.to_str().expect("text")), "it was unmounted");
    let last = Session::from_parts(parts, &options, Arc::clone(&handler)).expect("adopted");
    let last = last.spawn().expect("served");
    assert_served(&point);
    last.unmount(true).expect("unmounted");
    last.join().expect("ended");
}
