//! Nodes of a cluster whose daemons are replaced or killed under programs that must not notice.

mod load;
mod ring;
mod site;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use load::Load;
use ring::{Ring, can_cluster};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::Signal;
use site::{alive, signal, wait_for};

/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

fn supervised() -> Ring {
    let mut ring = Ring::talking(2);
    ring.supervised = true;
    // What the next daemons speak more than this program is in a file that is not there yet.
    let next = format!("node.peers.newest=return({})", ring.site.text("newest"));
    for node in 0..2 {
        ring.mount_failing(node, &next, &["--restart-limit", "10000"]);
    }
    for node in 0..2 {
        fs::create_dir(ring.at(node, &format!("of{node}"))).unwrap();
    }
    ring
}

fn upgrade(ring: &Ring, node: usize) {
    let last = ring.daemon(node);
    let mnt = ring.site.text(&format!("mnt{node}"));
    let (code, text) = ring.site.run(&["upgrade", &mnt]);
    assert_eq!(code, 0, "{text}");
    assert_ne!(ring.daemon(node), last);
}

fn kill(ring: &Ring, node: usize) {
    let last = ring.daemon(node);
    signal(last, Signal::KILL);
    assert!(wait_for(LIMIT, || !alive(last)));
}

/// Two programs, of which the second writes through the first one's node: each checks what it has
/// written, and after the end each finds the last of the other.
struct Shared {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
    files: Vec<File>,
}

impl Shared {
    fn start(ring: &Ring) -> Self {
        fs::write(ring.at(0, "shared"), [0; 4096]).unwrap();
        let open = |node| File::options().read(true).write(true).open(ring.at(node, "shared"));
        // In this order: who opens it first for writing is its owner.
        let files = [0, 1].map(|node| open(node).unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let threads = files.iter().enumerate().map(|(node, file)| {
            let (file, stop) = (file.try_clone().unwrap(), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut count = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    count += 1;
                    let at = 8 * node as u64;
                    file.write_all_at(&count.to_le_bytes(), at)
                        .unwrap_or_else(|error| panic!("write {count} on node {node}: {error}"));
                    let mut found = [0; 8];
                    file.read_exact_at(&mut found, at)
                        .unwrap_or_else(|error| panic!("read {count} on node {node}: {error}"));
                    assert_eq!(u64::from_le_bytes(found), count, "on node {node}");
                    std::thread::sleep(Duration::from_millis(1));
                }
                count
            })
        });
        let threads = threads.collect();
        Self { stop, threads, files: files.into() }
    }

    fn stop(self, ring: &Ring) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(wait_for(LIMIT, || self.threads.iter().all(JoinHandle::is_finished)), "it hangs");
        let counts: Vec<u64> =
            self.threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
        drop(self.files);
        for node in 0..2 {
            let bytes = fs::read(ring.at(node, "shared")).unwrap();
            let found = [&bytes[..8], &bytes[8..16]];
            let found = found.map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            assert_eq!(found.as_slice(), counts, "on node {node}");
        }
    }
}

/// Programs that have locked a file on the first node, or wait for one.
struct Locked {
    held: File,
    other: PathBuf,
    waits: Vec<JoinHandle<Result<(), Errno>>>,
}

impl Locked {
    fn start(ring: &Ring) -> Self {
        fs::write(ring.at(0, "locked"), b"x").unwrap();
        let held = File::open(ring.at(0, "locked")).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        // One of each node waits, and gets it after the other.
        let waits = [0, 1].map(|node| {
            let file = File::open(ring.at(node, "locked")).unwrap();
            std::thread::spawn(move || {
                let done = flock(&file, FlockOperation::LockExclusive);
                drop(file);
                done
            })
        });
        Self { held, other: ring.at(1, "locked"), waits: waits.into() }
    }

    fn check_held(&self) {
        let file = File::open(&self.other).unwrap();
        let taken = flock(&file, FlockOperation::NonBlockingLockShared);
        assert_eq!(taken, Err(Errno::WOULDBLOCK), "it was given to somebody else");
        assert!(self.waits.iter().all(|wait| !wait.is_finished()), "who waits has got it");
    }

    fn stop(self) {
        self.check_held();
        drop(self.held);
        assert!(wait_for(LIMIT, || self.waits.iter().all(JoinHandle::is_finished)), "one waits");
        for wait in self.waits {
            assert_eq!(wait.join().unwrap(), Ok(()));
        }
        let free = || {
            let file = File::open(&self.other).unwrap();
            flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        };
        assert!(wait_for(LIMIT, free), "nobody has it, and it is not free");
    }
}

/// Loads on both nodes while `change` happens to their daemons.
fn under_load(change: impl Fn(&Ring, usize), rounds: &[usize]) {
    let ring = supervised();
    let epochs = |ring: &Ring| {
        let (code, text) = ring.site.run(&["cluster", "status", "--json", &ring.site.text("mnt0")]);
        assert_eq!(code, 0, "{text}");
        let status: serde_json::Value = serde_json::from_str(&text).unwrap();
        status["nodes"].as_array().unwrap().iter().map(|n| n["epoch"].clone()).collect::<Vec<_>>()
    };
    let before = epochs(&ring);
    // A listing would be made of hundreds of files first, each some round trips.
    let start = |node| Load::start_without(&ring.at(node, &format!("of{node}")), &["listing"]);
    let loads = [0, 1].map(start);
    let (shared, locked) = (Shared::start(&ring), Locked::start(&ring));
    for &node in rounds {
        let done = loads.each_ref().map(Load::operations);
        change(&ring, node);
        // All go on.
        let more = || loads.iter().zip(done).all(|(load, done)| load.operations() > done + 20);
        let failed = || loads.iter().any(Load::has_failed);
        assert!(wait_for(LIMIT, || more() || failed()), "a load stands still");
        if failed() {
            break;
        }
        locked.check_held();
    }
    for (node, load) in loads.into_iter().enumerate() {
        let result = load.stop(LIMIT);
        eprintln!("node {node}: {result:?}");
        assert!(result.complaints.is_empty(), "{result:?}");
    }
    shared.stop(&ring);
    locked.stop();
    assert_eq!(epochs(&ring), before, "another incarnation");
    ring.umount_all();
}

#[test]
fn nodes_when_their_daemons_change_under_load_then_no_program_of_any_sees_an_error() {
    if can_cluster() {
        under_load(upgrade, &[0, 1]);
    }
}

#[test]
fn nodes_when_they_are_upgraded_one_after_the_other_then_talk_all_the_time() {
    if !can_cluster() {
        return;
    }
    let now = forebay_peer::PROTOCOL;
    // The second node asks the first, by whom it writes.
    let said = |ring: &Ring, version: u16| {
        let said = format!("version={version}");
        let log = ring.log(1);
        log.lines().filter(|l| l.contains("protocol spoken") && l.contains(&said)).count()
    };
    let change = |ring: &Ring, node: usize| {
        let before = (said(ring, now), said(ring, now + 1));
        fs::write(ring.site.path("newest"), "1").unwrap();
        upgrade(ring, node);
        let after = || match node {
            1 => said(ring, now) > before.0 && said(ring, now + 1) == 0,
            _ => said(ring, now + 1) > before.1,
        };
        assert!(wait_for(LIMIT, after), "node {node}: {before:?}");
    };
    under_load(change, &[1, 0]);
}

#[test]
fn nodes_when_their_daemons_are_killed_under_load_then_no_program_of_any_sees_an_error() {
    if can_cluster() {
        under_load(kill, &[0, 1]);
    }
}

/// A handle of `O_SYNC` through the node that owns the file, of which another daemon takes care: what
/// changes the file through it is in the backing store when the call returns, also when the file has come
/// to its own node.
fn synchronous_by_way_of_the_owner(change: impl Fn(&Ring, usize)) {
    let mut ring = Ring::talking(2);
    ring.supervised = true;
    let durable = ["--durability", "backing", "--writeback", "evict"];
    ring.mount_all(&[&["--restart-limit", "100"][..], &durable].concat());
    fs::write(ring.at(0, "source"), b"copied").unwrap();
    fs::write(ring.at(0, "file"), b"").unwrap();
    // In this order: who opens it first for writing is its owner.
    let owners = File::options().write(true).open(ring.at(0, "file")).unwrap();
    let mut options = File::options();
    let file = options.read(true).write(true).custom_flags(libc::O_SYNC);
    let file = file.open(ring.at(1, "file")).unwrap();
    let source = File::open(ring.at(1, "source")).unwrap();
    let mut wanted: Vec<u8> = Vec::new();
    let mut copy = |what: &str| {
        let (mut from, mut to) = (0, wanted.len() as u64);
        let copied =
            rustix::fs::copy_file_range(&source, Some(&mut from), &file, Some(&mut to), 6).unwrap();
        assert_eq!(copied, 6);
        wanted.extend(b"copied");
        assert_eq!(fs::read(ring.backing("file")).unwrap(), wanted, "{what}");
    };
    copy("before");
    change(&ring, 1);
    copy("through the owner");
    drop(owners);
    ring.umount(0);
    let flags = rustix::fs::FallocateFlags::empty();
    // Nobody can do that through another node.
    assert!(
        wait_for(LIMIT, || {
            let mut byte = [0];
            file.read_exact_at(&mut byte, 0).unwrap();
            rustix::fs::fallocate(&file, flags, 0, 20).is_ok()
        }),
        "the file does not come here"
    );
    assert_eq!(fs::metadata(ring.backing("file")).unwrap().len(), 20);
    drop((source, file));
    ring.umount(1);
}

#[test]
fn synchronous_handle_by_way_of_an_owner_when_upgraded_then_changes_are_durable_when_they_return() {
    if can_cluster() {
        synchronous_by_way_of_the_owner(upgrade);
    }
}

#[test]
fn synchronous_handle_by_way_of_an_owner_when_killed_then_changes_are_durable_when_they_return() {
    if can_cluster() {
        synchronous_by_way_of_the_owner(kill);
    }
}
