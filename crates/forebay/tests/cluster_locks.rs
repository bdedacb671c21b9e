//! `flock` and `fcntl` over several mounts that share a namespace.

mod ring;
mod site;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use ring::{Ring, can_cluster};
use site::wait_for;

/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

fn done(returned: i32) -> Result<(), i32> {
    match returned {
        -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(-1)),
        _ => Ok(()),
    }
}

fn flock(file: &File, how: i32) -> Result<(), i32> {
    // SAFETY: the descriptor is open as long as the reference lives.
    done(unsafe { libc::flock(file.as_raw_fd(), how) })
}

/// `fcntl` with a lock of `len` bytes from `start` on (0: to the end); what it left in the structure.
fn fcntl(file: &File, call: i32, kind: i32, start: i64, len: i64) -> Result<libc::flock, i32> {
    let whence = libc::SEEK_SET as i16;
    let (l_type, l_start, l_len) = (kind as i16, start, len);
    let mut lock = libc::flock { l_type, l_whence: whence, l_start, l_len, l_pid: 0 };
    // SAFETY: the descriptor is open, and the structure is what these calls take.
    done(unsafe { libc::fcntl(file.as_raw_fd(), call, &raw mut lock) }).map(|()| lock)
}

fn read_only(ring: &Ring, node: usize, name: &str) -> File {
    File::open(ring.at(node, name)).unwrap()
}

fn becomes_free(attempt: impl Fn() -> bool) {
    assert!(wait_for(LIMIT, attempt), "the lock did not become free");
}

#[test]
fn lock_when_the_heartbeat_is_late_and_the_servers_are_up_then_it_is_given() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(1);
    // As on a machine that has much to do: later than half the time after which nodes count as dead.
    ring.mount_failing(0, "node.cluster.beat=sleep(8000)", &[]);
    fs::write(ring.at(0, "f"), b"x").unwrap();
    let file = read_only(&ring, 0, "f");
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(9) {
        assert_eq!(flock(&file, libc::LOCK_EX), Ok(()), "after {:?}", begun.elapsed());
        assert_eq!(flock(&file, libc::LOCK_UN), Ok(()));
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(file);
    ring.umount(0);
}

#[test]
fn flock_on_three_nodes_then_one_at_a_time_has_it_alone() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(3);
    ring.mount_all(&[]);
    fs::write(ring.at(0, "f"), b"x").unwrap();
    let first = read_only(&ring, 0, "f");
    flock(&first, libc::LOCK_EX).unwrap();
    for node in 1..3 {
        let other = read_only(&ring, node, "f");
        assert_eq!(flock(&other, libc::LOCK_EX | libc::LOCK_NB), Err(libc::EWOULDBLOCK));
        assert_eq!(flock(&other, libc::LOCK_SH | libc::LOCK_NB), Err(libc::EWOULDBLOCK));
        // The other family of locks knows nothing of it.
        fcntl(&other, libc::F_SETLK, libc::F_RDLCK, 0, 0).unwrap();
    }
    flock(&first, libc::LOCK_SH).unwrap();
    let second = read_only(&ring, 1, "f");
    flock(&second, libc::LOCK_SH | libc::LOCK_NB).unwrap();
    assert_eq!(flock(&second, libc::LOCK_EX | libc::LOCK_NB), Err(libc::EWOULDBLOCK));
    // The kernel tells of the end of an open file a moment later.
    drop((first, second));
    let third = read_only(&ring, 2, "f");
    becomes_free(|| flock(&third, libc::LOCK_EX | libc::LOCK_NB).is_ok());
    drop(third);

    let inside = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for node in [0, 0, 1, 1, 2, 2] {
            let (ring, inside) = (&ring, &inside);
            scope.spawn(move || {
                let file = read_only(ring, node, "f");
                for _ in 0..15 {
                    flock(&file, libc::LOCK_EX).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::AcqRel), 0, "two have it");
                    inside.fetch_sub(1, Ordering::AcqRel);
                    flock(&file, libc::LOCK_UN).unwrap();
                }
            });
        }
    });
    ring.umount_all();
}

#[test]
fn ranges_locked_on_one_node_then_in_the_way_on_the_other_until_unlocked_or_closed() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    ring.mount_all(&[]);
    fs::write(ring.at(0, "f"), vec![0; 100]).unwrap();
    let writer = OpenOptions::new().read(true).write(true).open(ring.at(0, "f")).unwrap();
    let reader = read_only(&ring, 1, "f");
    let free = |start, len| {
        let seen = fcntl(&reader, libc::F_GETLK, libc::F_RDLCK, start, len).unwrap();
        i32::from(seen.l_type) == libc::F_UNLCK
    };
    fcntl(&writer, libc::F_SETLK, libc::F_WRLCK, 10, 10).unwrap();
    let seen = fcntl(&reader, libc::F_GETLK, libc::F_RDLCK, 0, 0).unwrap();
    assert_eq!((i32::from(seen.l_type), seen.l_start, seen.l_len), (libc::F_WRLCK, 10, 10));
    assert_eq!(seen.l_pid, 0, "a process of another node");
    fcntl(&reader, libc::F_SETLK, libc::F_RDLCK, 0, 10).unwrap();
    let refused = fcntl(&reader, libc::F_SETLK, libc::F_RDLCK, 19, 1).map(|_| ());
    assert_eq!(refused, Err(libc::EAGAIN));
    // A hole in the middle, and what the reader has is in the writer's way.
    fcntl(&writer, libc::F_SETLK, libc::F_UNLCK, 13, 2).unwrap();
    assert!(free(13, 2) && !free(12, 2) && !free(14, 2));
    let refused = fcntl(&writer, libc::F_SETLK, libc::F_WRLCK, 9, 1).map(|_| ());
    assert_eq!(refused, Err(libc::EAGAIN));
    // The close of any descriptor of the file drops what the process has of it on that mount.
    drop(read_only(&ring, 0, "f"));
    assert!(free(0, 0));
    // But not what belongs to an open file, which goes with that one.
    let other = OpenOptions::new().read(true).write(true).open(ring.at(0, "f")).unwrap();
    fcntl(&other, libc::F_OFD_SETLK, libc::F_WRLCK, 50, 0).unwrap();
    assert_eq!(
        fcntl(&writer, libc::F_OFD_SETLK, libc::F_WRLCK, 99, 1).map(|_| ()),
        Err(libc::EAGAIN)
    );
    drop(read_only(&ring, 0, "f"));
    assert!(!free(1 << 40, 1));
    drop(other);
    becomes_free(|| free(0, 0));
    drop((writer, reader));
    ring.umount_all();
}

#[test]
fn node_when_killed_and_back_then_what_its_programs_had_locked_is_free() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    ring.mount_all(&[]);
    fs::write(ring.at(0, "f"), b"x").unwrap();
    let lost = read_only(&ring, 0, "f");
    flock(&lost, libc::LOCK_EX).unwrap();
    let file = read_only(&ring, 1, "f");
    assert_eq!(flock(&file, libc::LOCK_EX | libc::LOCK_NB), Err(libc::EWOULDBLOCK));
    let (told, tells) = mpsc::channel();
    let waiter = std::thread::spawn(move || told.send(flock(&file, libc::LOCK_EX)).unwrap());
    ring.kill(0);
    drop(lost);
    ring.mount(0, &[]);
    // The next incarnation knows nothing of them.
    assert_eq!(tells.recv_timeout(LIMIT).unwrap(), Ok(()));
    waiter.join().unwrap();
    let again = read_only(&ring, 0, "f");
    becomes_free(|| flock(&again, libc::LOCK_EX | libc::LOCK_NB).is_ok());
    drop(again);
    ring.umount_all();
}

/// A program on each node has locked a file, and each but the last waits for that of the next: the
/// last, who closes the circle, is told, and all others get what they wait for.
fn wait_in_a_circle(count: usize) {
    let ring = Ring::new(count);
    ring.mount_all(&[]);
    let name = |number: usize| format!("f{}", number % count);
    for number in 0..count {
        fs::write(ring.at(0, &name(number)), b"x").unwrap();
    }
    let asked = forebay_meta::Redis::open(&ring.address(), &Default::default()).unwrap();
    let store = forebay_meta::MetaStore::open(Box::new(asked), &Default::default()).unwrap();
    let is_waited_for = |number: usize| {
        let file = store.lookup(forebay_meta::Ino::ROOT, name(number).as_bytes()).unwrap().unwrap();
        !store.locks(file.ino).unwrap().waiting().is_empty()
    };
    let own = |node: usize| {
        OpenOptions::new().read(true).write(true).open(ring.at(node, &name(node))).unwrap()
    };
    let own: Vec<File> = (0..count).map(own).collect();
    let next: Vec<File> = (0..count).map(|node| read_only(&ring, node, &name(node + 1))).collect();
    let lock = |file: &File, kind| fcntl(file, libc::F_SETLKW, kind, 0, 0).map(|_| ());
    for file in &own {
        lock(file, libc::F_WRLCK).unwrap();
    }
    std::thread::scope(|scope| {
        let mut waiters = Vec::new();
        for node in 0..count - 1 {
            let (next, own) = (&next[node], &own[node]);
            waiters.push(scope.spawn(move || {
                let told = lock(next, libc::F_RDLCK);
                lock(next, libc::F_UNLCK).and(lock(own, libc::F_UNLCK)).unwrap();
                told
            }));
            assert!(wait_for(LIMIT, || is_waited_for(node + 1)), "node {node} does not wait");
        }
        assert_eq!(lock(&next[count - 1], libc::F_RDLCK), Err(libc::EDEADLK));
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "only the last is told");
        lock(&own[count - 1], libc::F_UNLCK).unwrap();
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Ok(()));
        }
    });
    // Whoever waits without a circle just waits.
    lock(&own[0], libc::F_WRLCK).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| lock(&next[count - 1], libc::F_RDLCK));
        assert!(wait_for(LIMIT, || is_waited_for(0)), "it does not wait");
        lock(&own[0], libc::F_UNLCK).unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(()));
    });
    drop((own, next));
    ring.umount_all();
}

#[test]
fn waiters_in_a_circle_over_two_or_three_nodes_then_the_one_who_closes_it_is_told() {
    if !can_cluster() {
        return;
    }
    for count in [2, 3] {
        wait_in_a_circle(count);
    }
}

#[test]
fn forty_waiters_on_two_nodes_when_some_get_a_signal_then_every_other_gets_the_lock() {
    use std::process::{Child, Command, Stdio};
    if !can_cluster() {
        return;
    }
    if Command::new("flock").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: flock(1) is not installed");
        return;
    }
    let ring = Ring::new(2);
    ring.mount_all(&[]);
    fs::write(ring.at(0, "f"), b"x").unwrap();
    let held = read_only(&ring, 0, "f");
    flock(&held, libc::LOCK_EX).unwrap();
    let wait = |waiter: usize| -> Child {
        // The program ends by itself should the test not see to it.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "flock"]).arg(ring.at(waiter % 2, "f"));
        command.args(["-c", "true"]).stdin(Stdio::null()).spawn().unwrap()
    };
    let mut waiters: Vec<Child> = (0..40).map(wait).collect();
    let queue = || {
        let asked = forebay_meta::Redis::open(&ring.address(), &Default::default()).unwrap();
        let store = forebay_meta::MetaStore::open(Box::new(asked), &Default::default()).unwrap();
        let file = store.lookup(forebay_meta::Ino::ROOT, b"f").unwrap().unwrap();
        store.locks(file.ino).unwrap().waiting().len()
    };
    assert!(wait_for(LIMIT, || queue() == 40), "{} wait", queue());
    for waiter in waiters.iter().step_by(4) {
        site::signal(waiter.id() as i32, rustix::process::Signal::TERM);
    }
    // Some leave the queue while others get the lock.
    flock(&held, libc::LOCK_UN).unwrap();
    let mut left: Vec<usize> = (0..40).collect();
    let begin = std::time::Instant::now();
    while !left.is_empty() && begin.elapsed() < LIMIT {
        left.retain(|waiter| match waiters[*waiter].try_wait().unwrap() {
            Some(status) => {
                let signalled = waiter.is_multiple_of(4);
                assert!(status.success() || signalled, "waiter {waiter}: {status}");
                false
            }
            None => true,
        });
        std::thread::sleep(Duration::from_millis(20));
    }
    for waiter in &mut waiters {
        let _ = waiter.kill();
        let _ = waiter.wait();
    }
    assert!(left.is_empty(), "{left:?} wait for ever");
    becomes_free(|| flock(&held, libc::LOCK_EX | libc::LOCK_NB).is_ok());
    drop(held);
    ring.umount_all();
}
