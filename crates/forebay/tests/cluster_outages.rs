//! Metadata servers that go away, come back with less, or are others than before.

mod kept;
mod ring;
mod site;

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use forebay_testing::stop_process;
use kept::{LONG, contents, count, sync};
use ring::{Ring, Server, can_cluster};
use rustix::process::Signal;
use site::{alive, outcome, signal, wait_for};

/// Nothing is written back but what has to be.
const KEPT: [&str; 4] = ["--writeback", "evict", "--redundancy", "replicas=1"];

/// Longer than nodes may be silent.
const OUTAGE: Duration = Duration::from_millis(13_500);

#[test]
fn node_when_nobody_could_hear_it_for_long_then_it_keeps_its_files_and_its_place() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(3);
    ring.mount_all(&KEPT);
    let bytes = contents(1, 40_000);
    fs::write(ring.at(0, "f"), &bytes).unwrap();
    let daemon = ring.daemon(0);
    ring.server.kill();
    // It is not the first to be heard again: as on a machine that is slow.
    stop_process(daemon);
    std::thread::sleep(OUTAGE);
    ring.server.restart();
    let (one, two) = (ring.at(1, "f"), ring.at(2, "f"));
    let readers = [one, two].map(|path| std::thread::spawn(move || fs::read(path)));
    std::thread::sleep(Duration::from_secs(3));
    signal(daemon, Signal::CONT);
    for reader in readers {
        let read = reader.join().unwrap();
        assert!(
            read.as_ref().is_ok_and(|read| *read == bytes),
            "{:?}",
            read.map(|read| read.len())
        );
    }
    let again = contents(2, 50_000);
    let works = || fs::write(ring.at(0, "f"), &again).is_ok();
    assert!(wait_for(LONG, works), "it was expelled\n{}", ring.log(0));
    for node in 0..3 {
        assert!(fs::read(ring.at(node, "f")).unwrap() == again);
        assert!(!ring.log(node).contains("may not write any more"), "{}", ring.log(node));
    }
    ring.umount_all();
}

#[test]
fn node_when_it_dies_with_leases_of_nested_directories_then_others_wait_for_it_once() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    ring.mount_all(&["--writeback", "evict"]);
    let mut dir = String::new();
    for name in ["a", "b", "c", "d", "e", "f"] {
        dir = format!("{dir}{name}/");
        fs::create_dir(ring.at(0, &dir)).unwrap();
        for number in 0..12 {
            fs::write(ring.at(0, &format!("{dir}file{number}")), b"here").unwrap();
        }
    }
    ring.kill(0);
    let died = Instant::now();
    let deepest = ring.at(1, &dir);
    assert!(wait_for(Duration::from_secs(150), || fs::metadata(&deepest).is_ok()));
    // Twelve seconds for the node, and not once more for each directory.
    assert!(died.elapsed() < Duration::from_secs(35), "{:?}\n{}", died.elapsed(), ring.log(1));
    ring.umount(1);
}

/// A directory in which a node has made files of which the servers have not heard.
struct Unheard {
    name: String,
    dir: fs::File,
    made: Vec<fs::File>,
}

/// Makes files at the first node while the servers are stopped, which they are then. `None`, and they go on,
/// where the node has no lease of the directory any more, as its heartbeats are late on a busy machine: then
/// a call waits for the servers.
fn make_unheard(ring: &Ring, name: String) -> Option<Unheard> {
    fs::create_dir(ring.at(0, &name)).unwrap();
    let dir = fs::File::open(ring.at(0, &name)).unwrap();
    for number in 0..40 {
        fs::write(ring.at(0, &format!("{name}/before{number}")), b"").unwrap();
    }
    dir.sync_all().unwrap();
    ring.server.freeze(true);
    // From the directory that it has the lease of: what is above it may have to be asked for.
    let at = format!("/proc/self/fd/{}", dir.as_raw_fd());
    let until = Instant::now() + Duration::from_millis(1500);
    let (made, each) = mpsc::channel();
    let maker = std::thread::spawn(move || {
        for number in 0..40 {
            std::thread::sleep(Duration::from_millis(5));
            let file = fs::File::create(format!("{at}/new{number}"));
            if made.send(file).is_err() || Instant::now() > until {
                break;
            }
        }
    });
    let ended = wait_for(Duration::from_secs(3), || maker.is_finished());
    if !ended {
        ring.server.freeze(false);
    }
    maker.join().unwrap();
    let made: Vec<_> = each.into_iter().collect();
    ended.then(|| Unheard { name, dir, made: made.into_iter().map(Result::unwrap).collect() })
}

/// Has the first node, which stays stopped, lose changes to the second: what it had made, and the numbers
/// of those that are not there.
fn lose_changes(ring: &Ring, daemon: i32) -> (Unheard, Vec<usize>) {
    let until = Instant::now() + 3 * LONG;
    for attempt in 0.. {
        assert!(Instant::now() < until, "nothing was lost, so nothing is tested\n{}", ring.log(0));
        let Some(unheard) = make_unheard(ring, format!("d{attempt}")) else {
            // Its next heartbeats may be in time.
            std::thread::sleep(Duration::from_secs(2));
            continue;
        };
        stop_process(daemon);
        ring.server.freeze(false);
        let name = &unheard.name;
        let others = || fs::write(ring.at(1, &format!("{name}/other")), b"").is_ok();
        assert!(wait_for(LONG, others), "{}", ring.log(1));
        let there = ring::names(&ring.at(1, name));
        let numbers = 0..unheard.made.len();
        let lost: Vec<_> = numbers.filter(|it| !there.contains(&format!("new{it}"))).collect();
        if !lost.is_empty() {
            return (unheard, lost);
        }
        // The little that it could make had been sent before.
        signal(daemon, Signal::CONT);
        drop(unheard);
        let works = || fs::write(ring.at(0, "works"), b"").is_ok();
        assert!(wait_for(LONG, works), "{}", ring.log(0));
    }
    unreachable!("it ends in between")
}

#[test]
fn changes_when_lost_with_a_lease_then_the_next_calls_fail_once_and_status_names_them() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    ring.mount_all(&["--writeback", "evict"]);
    let daemon = ring.daemon(0);
    let (Unheard { name, dir, made }, lost) = lose_changes(&ring, daemon);
    signal(daemon, Signal::CONT);

    let eio = |done: std::io::Result<()>, what: &str| {
        let error = done.expect_err(what).raw_os_error();
        assert_eq!(error, Some(libc::EIO), "{what}\n{}", ring.log(0));
    };
    eio(dir.sync_all(), "a sync of the directory");
    let _ = wait_for(LONG, || dir.sync_all().is_ok());
    dir.sync_all().unwrap();
    made[lost[0]].sync_all().expect_err("a sync of a file that is not there any more");
    let create = |name: &str| fs::File::create(ring.at(0, name)).map(drop);
    let after = format!("{name}/after");
    eio(create(&after), "a change in the directory");
    create(&after).unwrap();
    create("elsewhere").unwrap();

    let status = ring.status(0);
    let named = status["lost_changes"]["paths"].as_array().unwrap();
    assert!(named.iter().any(|path| *path == format!("{name}/new{}", lost[0])), "{status}");
    assert!(status["lost_changes"]["changes"].as_u64() >= Some(lost.len() as u64), "{status}");
    // Also to those who ask another node.
    let mnt = ring.site.text("mnt1");
    let told = || {
        let (code, text) = ring.site.run(&["cluster", "status", "--json", &mnt]);
        let status: serde_json::Value = serde_json::from_str(&text).unwrap();
        code == 0 && status["nodes"][0]["lost_changes"] == ring.status(0)["lost_changes"]["changes"]
    };
    assert!(wait_for(LONG, told));
    fs::remove_file(status["lost_changes"]["kept"].as_str().unwrap()).unwrap();
    assert_eq!(ring.status(0)["lost_changes"]["changes"], 0);
    drop((dir, made));
    ring.umount_all();
}

#[test]
fn daemon_when_started_again_then_its_copies_have_versions_that_none_had_before() {
    if !can_cluster() {
        return;
    }
    let mut ring = Ring::talking(3);
    ring.supervised = true;
    ring.mount_all(&KEPT);
    let mut newest = Vec::new();
    for (round, size) in [(1, 31_000), (2, 32_000)] {
        newest = contents(round, size);
        fs::write(ring.at(0, "f"), &newest).unwrap();
        if round == 1 {
            let daemon = ring.daemon(0);
            signal(daemon, Signal::KILL);
            assert!(wait_for(LONG, || !alive(daemon)));
            let back = || fs::read(ring.at(0, "f")).is_ok();
            assert!(wait_for(LONG, back), "{}", ring.log(0));
        }
    }
    // One of the two has the copy that counts, once the one before has gone.
    let held = || count(&ring, 1, "held_files") + count(&ring, 2, "held_files");
    assert!(wait_for(2 * LONG, || held() == 1), "{} copies", held());
    ring.supervised = false;
    ring.end(0);
    let there = || fs::read(ring.at(1, "f")).is_ok_and(|read| read == newest);
    assert!(wait_for(LONG, there), "{:?}\n{}", fs::read(ring.at(1, "f")).map(drop), ring.log(1));
    ring.umount(1);
    ring.umount(2);
}

#[test]
fn daemon_when_killed_with_the_lease_of_the_root_then_the_next_does_not_wait_for_it() {
    if !can_cluster() {
        return;
    }
    let mut ring = Ring::new(1);
    ring.supervised = true;
    ring.mount_all(&["--writeback", "evict"]);
    for number in 0..100 {
        fs::write(ring.at(0, &format!("file{number}")), b"here").unwrap();
    }
    let daemon = ring.daemon(0);
    for number in 0..100 {
        fs::write(ring.at(0, &format!("more{number}")), b"here").unwrap();
    }
    signal(daemon, Signal::KILL);
    assert!(wait_for(LONG, || !alive(daemon)));
    assert!(wait_for(LONG, || fs::read(ring.at(0, "more99")).is_ok()), "{}", ring.log(0));
    // Others would have taken it for dead by the time that it could break the lease.
    assert!(!ring.log(0).contains("its lease is broken"), "{}", ring.log(0));
    assert!(ring.log(0).contains("shipped after a restart"), "it had no lease\n{}", ring.log(0));
    ring.umount(0);
}

fn copy_dir(from: &Path, to: &Path) {
    let (code, text) = outcome(Command::new("cp").arg("-a").args([from, to]));
    assert_eq!(code, 0, "{text}");
}

#[test]
fn metadata_when_older_than_what_was_synced_then_the_bytes_are_set_aside_and_named() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(1);
    ring.mount(0, &["--writeback", "evict"]);
    fs::write(ring.at(0, "old"), b"written back").unwrap();
    sync(&ring, 0..1);
    ring.umount(0);
    ring.server.kill();
    let saved = ring.site.path("saved");
    copy_dir(ring.server.dir(), &saved);
    ring.server.restart();
    ring.mount(0, &["--writeback", "evict"]);
    for (name, bytes) in [("old", &b"changed since"[..]), ("new", b"made since")] {
        let file = fs::File::create(ring.at(0, name)).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file.sync_all().unwrap();
    }
    ring.kill(0);
    // As after a fail-over to a server that had not heard the last of it.
    ring.server.kill();
    fs::remove_dir_all(ring.server.dir()).unwrap();
    copy_dir(&saved, ring.server.dir());
    ring.server.restart();
    ring.mount(0, &["--writeback", "evict"]);
    let status = ring.status(0);
    assert_eq!(status["set_aside"]["files"], 2, "{status}\n{}", ring.log(0));
    let kept = status["set_aside"]["list"].as_array().unwrap();
    let kept: Vec<Vec<u8>> =
        kept.iter().map(|path| fs::read(path.as_str().unwrap()).unwrap()).collect();
    for bytes in [&b"changed since"[..], b"made since"] {
        assert!(kept.iter().any(|kept| kept == bytes), "{status}");
    }
    assert_eq!(fs::read(ring.at(0, "old")).unwrap(), b"written back");
    ring.umount(0);
}

#[test]
fn metadata_when_they_get_older_under_a_mount_then_no_synced_byte_is_removed() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(1);
    let options = ["--writeback", "evict", "--cluster-leases", "off"];
    ring.mount(0, &options);
    fs::write(ring.at(0, "old"), b"before").unwrap();
    ring.server.kill();
    let saved = ring.site.path("saved");
    copy_dir(ring.server.dir(), &saved);
    ring.server.restart();
    let write = || fs::write(ring.at(0, "new"), b"made since");
    assert!(wait_for(LONG, || write().is_ok()));
    let open = fs::File::open(ring.at(0, "new")).unwrap();
    open.sync_all().unwrap();
    ring.server.kill();
    fs::remove_dir_all(ring.server.dir()).unwrap();
    copy_dir(&saved, ring.server.dir());
    ring.server.restart();
    // Nobody uses it any more, and its record is not there.
    drop(open);
    assert!(wait_for(LONG, || fs::read(ring.at(0, "old")).is_ok()));
    assert!(fs::read(ring.at(0, "new")).is_err());
    let kept = || {
        let status = ring.status(0);
        let list = status["set_aside"]["list"].as_array().cloned().unwrap_or_default();
        list.iter()
            .any(|path| fs::read(path.as_str().unwrap()).is_ok_and(|kept| kept == b"made since"))
    };
    let found = wait_for(LONG, kept);
    assert!(found, "{}\n{}", ring.status(0), ring.log(0));
    // What is removed goes as ever.
    fs::write(ring.at(0, "gone"), b"not needed").unwrap();
    let open = fs::File::open(ring.at(0, "gone")).unwrap();
    fs::remove_file(ring.at(0, "gone")).unwrap();
    drop(open);
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(ring.status(0)["set_aside"]["files"], 1, "{}", ring.log(0));
    ring.kill(0);
}

#[test]
fn servers_when_several_are_named_that_are_no_cluster_then_the_mount_is_refused() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(1);
    let other = ring.site.path("other");
    fs::create_dir(&other).unwrap();
    let other = Server::start(&other);
    let mount = |address: &str| {
        let tier = format!("{}=64M", ring.site.text("tier0"));
        let (backing, mnt) = (ring.site.text("backing"), ring.site.text("mnt0"));
        let args = ["mount", &backing, &mnt, "--tier", &tier, "--cluster", address];
        ring.site.run(&args)
    };
    let both = format!("redis://127.0.0.1:{},127.0.0.1:{}/test", ring.server.port, other.port);
    let (code, text) = mount(&both);
    assert!(code != 0 && text.contains("is no cluster"), "{code} {text}");
    // Also when it is the only one that answers.
    ring.server.kill();
    let (code, text) = mount(&both);
    assert!(code != 0 && text.contains("is no cluster"), "{code} {text}");
    // A replica is no server to begin with either.
    ring.server.restart();
    let follow =
        ["-p", &other.port.to_string(), "replicaof", "127.0.0.1", &ring.server.port.to_string()];
    let (code, text) = outcome(Command::new("redis-cli").args(follow));
    assert_eq!(code, 0, "{text}");
    let (code, text) = mount(&format!("redis://127.0.0.1:{}/test", other.port));
    assert!(code != 0 && text.contains("replica"), "{code} {text}");
}

#[test]
fn server_when_it_comes_back_empty_then_nothing_is_believed_until_it_has_its_data() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(1);
    ring.mount(0, &["--writeback", "evict"]);
    fs::write(ring.at(0, "f"), b"kept").unwrap();
    ring.server.kill();
    let saved = ring.site.path("saved");
    fs::rename(ring.server.dir(), &saved).unwrap();
    fs::create_dir(ring.server.dir()).unwrap();
    ring.server.restart();
    // Longer than its kernel goes by what it was told.
    std::thread::sleep(Duration::from_secs(10));
    let error = fs::read(ring.at(0, "f")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}\n{}", ring.log(0));
    assert!(fs::write(ring.at(0, "g"), b"nowhere").is_err());
    ring.server.kill();
    fs::remove_dir_all(ring.server.dir()).unwrap();
    fs::rename(&saved, ring.server.dir()).unwrap();
    ring.server.restart();
    let back = || fs::read(ring.at(0, "f")).is_ok_and(|read| read == b"kept");
    assert!(wait_for(LONG, back), "{}", ring.log(0));
    fs::write(ring.at(0, "g"), b"somewhere").unwrap();
    ring.umount(0);
    assert_eq!(fs::read(ring.backing("g")).unwrap(), b"somewhere");
}
