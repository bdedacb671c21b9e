//! Nodes that talk to each other: reads from the tiers of others, writes through the owner.

mod kept;
mod ring;
mod site;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_meta::{MetaStore, NodeName, Options, Redis, RedisOptions};
use forebay_peer::message::{Fault, Presence, ReadMap};
use forebay_peer::transport::tcp::Tcp;
use forebay_peer::{
    Address, Body, Call, Client, ClientConfig, ClusterSecret, Found, Identity, Limits, Security,
    Server, Service,
};
use kept::{LONG, contents};
use ring::{Random, Ring, SECRET, can_cluster};
use site::wait_for;

/// Where a node listens, as its log says.
fn reach(ring: &Ring, node: usize) -> String {
    let log = ring.log(node);
    let said = log.split("reach=").nth(1).unwrap_or_else(|| panic!("it does not listen: {log}"));
    said.split_whitespace().next().unwrap().trim_matches('"').to_owned()
}

/// What tells the cluster of a test from others.
fn cluster(ring: &Ring) -> String {
    fs::read_to_string(ring.site.path("tier0/state/cluster")).unwrap()
}

fn security(secret: &[u8]) -> Security {
    Security::Tls(ClusterSecret::new(secret).unwrap().identity().unwrap())
}

fn ping(address: &str, security: Security, cluster: String) -> bool {
    let me = Identity::new(cluster, 900, 1);
    let address: Address = address.parse().unwrap();
    let client = Client::new(Arc::new(Tcp::new(security)), address, ClientConfig::new(me));
    client.ping(Duration::from_secs(20)).is_ok()
}

#[test]
fn stranger_without_the_secret_when_it_talks_to_a_daemon_then_gets_nothing() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(1);
    ring.mount_all(&[]);
    let address = reach(&ring, 0);
    assert!(ping(&address, security(SECRET), cluster(&ring)), "{}", ring.log(0));
    assert!(!ping(&address, security(&[7; 32]), cluster(&ring)));
    assert!(!ping(&address, Security::Off, cluster(&ring)));
    assert!(!ping(&address, security(SECRET), "another".into()));
    let mut stranger = TcpStream::connect(address.strip_prefix("tcp://").unwrap()).unwrap();
    stranger.set_read_timeout(Some(LONG)).unwrap();
    stranger.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut heard = Vec::new();
    // An alert of TLS at most (RFC 8446, section 6), and nothing of ours.
    let _ = stranger.read_to_end(&mut heard);
    assert!(heard.len() <= 7 && heard.first().is_none_or(|kind| *kind == 21), "{heard:?}");
    ring.umount_all();
}

#[test]
fn secret_when_others_can_read_it_or_there_is_none_then_no_mount() {
    if !can_cluster() {
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let ring = Ring::new(1);
    let (code, text) = ring.mount_with(0, &["--cluster-listen", "127.0.0.1:0"]);
    assert!(code != 0 && text.contains("needs --cluster-secret"), "{code} {text}");
    fs::write(ring.site.path("open"), SECRET).unwrap();
    fs::set_permissions(ring.site.path("open"), fs::Permissions::from_mode(0o644)).unwrap();
    let open = ring.site.text("open");
    let args = ["--cluster-listen", "127.0.0.1:0", "--cluster-secret", &open];
    let (code, text) = ring.mount_with(0, &args);
    assert!(code != 0 && text.contains("others can read it"), "{code} {text}");
    ring.mount(0, &["--cluster-listen", "127.0.0.1:0", "--cluster-tls", "off"]);
    assert!(ping(&reach(&ring, 0), Security::Off, cluster(&ring)));
    ring.umount_all();
}

/// The files of a tree: some of all kinds, and so many small ones that each node is home of some.
fn sizes() -> impl Iterator<Item = (usize, usize)> {
    let kinds = [0, 10, 4_096, 100_000, 600_000, 1_048_576, 1_500_000, 9_000_001];
    kinds.into_iter().chain([2_000; 40]).enumerate()
}

/// A tree in the backing store; its length.
fn plant(ring: &Ring) -> u64 {
    fs::create_dir_all(ring.backing("tree/below")).unwrap();
    for (number, size) in sizes() {
        fs::write(ring.backing(&name(number)), contents(number as u64, size)).unwrap();
    }
    sizes().map(|(_, size)| size as u64).sum()
}

fn name(number: usize) -> String {
    format!("tree/{}f{number}", if number.is_multiple_of(2) { "below/" } else { "" })
}

fn check_tree(ring: &Ring, node: usize) {
    for (number, size) in sizes() {
        let found = fs::read(ring.at(node, &name(number))).unwrap();
        assert!(found == contents(number as u64, size), "{} on node {node}", name(number));
    }
}

fn warm(ring: &Ring, node: usize) {
    let tree = ring.site.text(&format!("mnt{node}/tree"));
    let (code, text) = ring.site.run(&["warm", "--quiet", &tree]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn tree_when_another_node_has_it_then_it_is_read_from_there_also_by_one_that_joins() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(3);
    let total = plant(&ring);
    ring.mount(0, &[]);
    ring.mount(1, &[]);
    warm(&ring, 0);
    assert_eq!(ring.bytes_from_backing(0), total);
    check_tree(&ring, 1);
    assert_eq!((ring.bytes_from_backing(1), ring.bytes(1, "peers")), (0, total));
    // It is the home of some files, of which it knows nothing.
    ring.mount(2, &[]);
    check_tree(&ring, 2);
    assert_eq!((ring.bytes_from_backing(2), ring.bytes(2, "peers")), (0, total));
    // A new version is not taken from who has the one before.
    let new = contents(77, 2_000_000);
    fs::write(ring.at(0, &name(7)), &new).unwrap();
    for node in [1, 2, 0] {
        assert!(fs::read(ring.at(node, &name(7))).unwrap() == new, "node {node}");
    }
    ring.umount_all();
}

#[test]
fn file_when_evicted_and_read_again_then_from_the_other_node_each_time() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    let whole = contents(5, 20 << 20);
    fs::write(ring.backing("f"), &whole).unwrap();
    ring.mount_all(&[]);
    let (code, text) = ring.site.run(&["warm", "--quiet", &ring.site.text("mnt0/f")]);
    assert_eq!(code, 0, "{text}");
    for round in 1..=4 {
        assert!(fs::read(ring.at(1, "f")).unwrap() == whole, "round {round}");
        let (peers, backing) = (ring.bytes(1, "peers"), ring.bytes_from_backing(1));
        assert_eq!((peers, backing), (round * whole.len() as u64, 0), "round {round}");
        // The kernel keeps its pages of a file that nobody has changed.
        let opened = File::open(ring.at(1, "f")).unwrap();
        rustix::fs::fadvise(&opened, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        drop(opened);
        let file = ring.site.text("mnt1/f");
        // The kernel closes a file a moment after the program has.
        let gone = || {
            let (code, text) = ring.site.run(&["evict", "--json", &file]);
            let said: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            code == 0 && said["files"] == 1
        };
        assert!(wait_for(LONG, gone), "not evicted in round {round}");
    }
    ring.umount_all();
}

#[test]
fn file_when_its_beginning_was_read_before_nodes_met_then_that_is_read_from_there_too() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    let whole = contents(6, 48 << 20);
    let total = whole.len() as u64;
    fs::write(ring.backing("f"), &whole).unwrap();
    ring.mount(0, &[]);
    let mut start = vec![0; 1 << 20];
    File::open(ring.at(0, "f")).unwrap().read_exact(&mut start).unwrap();
    assert!(start == whole[..start.len()]);
    let alone = ring.bytes_from_backing(0);
    assert!(alone > 0 && alone < total, "{alone} of {total}");
    ring.mount(1, &[]);
    let met = |node| ring.log(node).matches("another node can be talked to").count() == 1;
    assert!(wait_for(LONG, || met(0) && met(1)), "they do not meet");
    let (code, text) = ring.site.run(&["warm", "--quiet", &ring.site.text("mnt0/f")]);
    assert_eq!(code, 0, "{text}");
    assert!(fs::read(ring.at(1, "f")).unwrap() == whole);
    assert_eq!((ring.bytes(1, "peers"), ring.bytes_from_backing(1)), (total, 0));
    ring.umount_all();
}

#[test]
fn tree_when_three_nodes_warm_it_at_once_then_each_byte_is_read_once() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(3);
    let total = plant(&ring);
    ring.mount_all(&[]);
    let met = |node| ring.log(node).matches("another node can be talked to").count() == 2;
    assert!(wait_for(LONG, || (0..3).all(met)), "they do not meet");
    std::thread::scope(|scope| {
        for node in 0..3 {
            let ring = &ring;
            scope.spawn(move || warm(ring, node));
        }
    });
    let from_backing: u64 = (0..3).map(|node| ring.bytes_from_backing(node)).sum();
    let from_peers: u64 = (0..3).map(|node| ring.bytes(node, "peers")).sum();
    assert_eq!(from_backing + from_peers, 3 * total);
    assert!(from_backing * 100 <= total * 105, "{from_backing} of {total}");
    (0..3).for_each(|node| check_tree(&ring, node));
    ring.umount_all();
}

#[test]
fn peer_when_killed_then_its_copies_are_read_from_the_backing_store() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    plant(&ring);
    ring.mount_all(&[]);
    warm(&ring, 0);
    let mut first = vec![0; 100_000];
    let file = File::open(ring.at(1, &name(7))).unwrap();
    file.read_exact_at(&mut first, 0).unwrap();
    site::signal(ring.daemon(0), rustix::process::Signal::KILL);
    check_tree(&ring, 1);
    assert!(ring.bytes_from_backing(1) > 0);
    drop(file);
    ring.detach(0);
    ring.umount(1);
}

/// A node that says it has everything, and does not.
#[derive(Default)]
struct Liar {
    asked: AtomicU64,
    stopped: AtomicBool,
}

impl Service for Liar {
    fn read(&self, _: &Call, read: &forebay_peer::message::Read) -> Result<Found, Fault> {
        let bytes = Body::Bytes(vec![0xee; read.len as usize]);
        match self.asked.fetch_add(1, Ordering::Relaxed) % 3 {
            0 => Ok(Found { version: read.version.unwrap_or(0) ^ 1, body: bytes }),
            1 => Ok(Found { version: read.version.unwrap_or(0), body: Body::Bytes(vec![1]) }),
            _ => Err(Fault::NotHere),
        }
    }

    fn read_map(&self, _: &Call, map: &ReadMap) -> Result<Presence, Fault> {
        let (version, size) = (map.version.unwrap_or(0), 1 << 30);
        Ok(Presence { version, size, runs: vec![(0, size)], next: None })
    }
}

#[test]
fn peer_when_it_lies_about_version_or_length_then_the_backing_store_is_read() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(1);
    let total = plant(&ring);
    ring.mount_all(&[]);
    // A node that is only the metadata's idea of one.
    let engine = Redis::open(&ring.address(), &RedisOptions::default()).unwrap();
    let node = Some(NodeName { id: "liar".into(), address: "here".into() });
    let options = Options { node, ..Options::default() };
    let meta = MetaStore::open(Box::new(engine), &options).unwrap();
    let member = meta.member().unwrap();
    let me = Identity::new(cluster(&ring), member.node.into(), member.epoch);
    let liar = Arc::new(Liar::default());
    let mut server = Server::start(liar.clone(), me, Limits::default()).unwrap();
    let listening =
        server.listen(&Tcp::new(security(SECRET)), &"tcp://127.0.0.1:0".parse().unwrap());
    meta.listen_at(&listening.unwrap().to_string()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !liar.stopped.load(Ordering::Relaxed) {
                meta.beat().unwrap();
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        let read = || {
            check_tree(&ring, 0);
            let (code, text) = ring.site.run(&["evict", &ring.site.text("mnt0/tree")]);
            assert_eq!(code, 0, "{text}");
            liar.asked.load(Ordering::Relaxed) > 3
        };
        let read = || match ring.log(0).contains("another node can be talked to") {
            true => read(),
            false => false,
        };
        let lied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wait_for(LONG, read)));
        liar.stopped.store(true, Ordering::Relaxed);
        assert!(lied.unwrap(), "it was never asked");
    });
    check_tree(&ring, 0);
    assert!(ring.bytes_from_backing(0) >= total);
    assert_eq!(ring.bytes(0, "peers"), 0);
    server.close(Duration::ZERO);
    meta.leave().unwrap();
    ring.umount_all();
}

#[test]
fn dirty_file_when_read_elsewhere_then_from_its_owner_without_a_write_back() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "evict"]);
    let mut model = contents(1, 3_000_000);
    fs::write(ring.at(0, "f"), &model).unwrap();
    let early = File::open(ring.at(1, "f")).unwrap();
    assert!(fs::read(ring.at(1, "f")).unwrap() == model);
    assert!(fs::read(ring.at(1, "f")).unwrap() == model);
    assert_eq!(ring.bytes(0, "flushed"), 0);
    assert!(ring.bytes(1, "owners") >= 6_000_000);
    // Who has it open goes on reading when the owner has given it up.
    let file = OpenOptions::new().write(true).open(ring.at(1, "f")).unwrap();
    file.write_all_at(b"here", 1_500_000).unwrap();
    drop(file);
    model[1_500_000..1_500_004].copy_from_slice(b"here");
    let mut found = vec![0; model.len()];
    early.read_exact_at(&mut found, 0).unwrap();
    assert!(found == model);
    assert!(fs::read(ring.at(0, "f")).unwrap() == model);
    drop(early);
    ring.umount_all();
    assert!(fs::read(ring.backing("f")).unwrap() == model);
}

fn writer(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn appender(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

#[test]
fn file_when_written_on_two_nodes_at_once_then_both_see_all_and_nothing_is_lost() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(3);
    ring.mount_all(&["--writeback", "1s"]);
    let mut model = contents(5, 2_000_000);
    fs::write(ring.at(0, "f"), &model).unwrap();
    let (a, b) = (writer(&ring.at(0, "f")).unwrap(), writer(&ring.at(1, "f")).unwrap());
    for round in 0..50_usize {
        let (node, file) = if round % 2 == 0 { (0, &a) } else { (1, &b) };
        let at = round * 39_000;
        let bytes = vec![round as u8; 1_000];
        file.write_all_at(&bytes, at as u64).unwrap_or_else(|e| panic!("{round} on {node}: {e}"));
        model[at..at + 1_000].copy_from_slice(&bytes);
        let other = if node == 0 { &b } else { &a };
        let seen = || {
            let mut seen = vec![0; 1_000];
            other.read_exact_at(&mut seen, at as u64).unwrap();
            seen == bytes
        };
        // The owner's kernel is told that its pages are old, and takes a moment.
        assert!(wait_for(LONG, seen), "round {round}");
    }
    b.write_all_at(b"beyond", 2_100_000).unwrap();
    model.resize(2_100_000, 0);
    model.extend_from_slice(b"beyond");
    assert_eq!(b.metadata().unwrap().len(), 2_100_006);
    assert_eq!(a.metadata().unwrap().len(), 2_100_006);
    b.sync_all().unwrap();
    for node in 0..3 {
        assert!(fs::read(ring.at(node, "f")).unwrap() == model, "node {node}");
    }
    b.set_len(500).unwrap();
    assert_eq!((a.metadata().unwrap().len(), b.metadata().unwrap().len()), (500, 500));
    model.truncate(500);
    drop(a);
    // The owner has closed it: who still writes takes it over, when it is given up.
    b.write_all_at(b"last", 500).unwrap();
    model.extend_from_slice(b"last");
    drop(b);
    for node in 0..3 {
        assert!(fs::read(ring.at(node, "f")).unwrap() == model, "node {node}");
    }
    ring.umount_all();
    assert!(fs::read(ring.backing("f")).unwrap() == model);
}

#[test]
fn appenders_on_three_nodes_that_keep_the_file_open_then_no_line_is_lost() {
    if !can_cluster() {
        return;
    }
    const LINES: usize = 60;
    let ring = Ring::talking(3);
    ring.mount_all(&["--writeback", "close"]);
    File::create(ring.at(0, "log")).unwrap();
    std::thread::scope(|scope| {
        for node in 0..3 {
            let path = ring.at(node, "log");
            scope.spawn(move || {
                let mut file = appender(&path).unwrap();
                for line in 0..LINES {
                    if line % 20 == 19 {
                        file = appender(&path).unwrap();
                    }
                    file.write_all(format!("node {node} line {line}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    ring.umount_all();
    let text = fs::read_to_string(ring.backing("log")).unwrap();
    for node in 0..3 {
        let prefix = format!("node {node} ");
        let own: Vec<&str> = text.lines().filter(|line| line.starts_with(&prefix)).collect();
        let all: Vec<String> = (0..LINES).map(|line| format!("{prefix}line {line}")).collect();
        assert_eq!(own, all);
    }
}

/// Closes a file; what the program is told.
fn close(file: File) -> std::io::Result<()> {
    use std::os::fd::IntoRawFd;
    // SAFETY: nobody else has the descriptor.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn append_when_its_owner_is_asked_for_the_file_while_copies_are_made_then_its_close_succeeds() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(3);
    let options = ["--writeback", "evict", "--redundancy", "replicas=1"];
    // The owner is slow to say that copies are made.
    ring.mount_failing(0, "node.copies.sent=1*off->sleep(2000)", &options);
    ring.mount(1, &options);
    ring.mount(2, &options);
    let mut owner = appender(&ring.at(0, "log")).unwrap();
    owner.write_all(b"one\n").unwrap();
    let mut other = appender(&ring.at(1, "log")).unwrap();
    close(owner).unwrap();
    other.write_all(b"two\n").unwrap();
    std::thread::scope(|scope| {
        let closes = scope.spawn(move || close(other));
        std::thread::sleep(Duration::from_millis(700));
        let mut third = appender(&ring.at(2, "log")).unwrap();
        third.write_all(b"three\n").unwrap();
        close(third).unwrap();
        closes.join().unwrap().unwrap();
    });
    assert_eq!(fs::read(ring.at(0, "log")).unwrap(), b"one\ntwo\nthree\n");
    ring.umount_all();
}

#[test]
fn appenders_that_open_and_close_with_copies_then_no_call_fails_and_no_line_is_lost() {
    if !can_cluster() {
        return;
    }
    const LINES: usize = 120;
    let ring = Ring::talking(3);
    ring.mount_all(&["--writeback", "evict", "--redundancy", "replicas=1"]);
    File::create(ring.at(0, "log")).unwrap();
    std::thread::scope(|scope| {
        for node in 0..3 {
            let path = ring.at(node, "log");
            scope.spawn(move || {
                for line in 0..LINES {
                    let mut file = appender(&path).unwrap();
                    file.write_all(format!("node {node} line {line}\n").as_bytes()).unwrap();
                    close(file).unwrap_or_else(|error| panic!("node {node} line {line}: {error}"));
                }
            });
        }
    });
    let text = fs::read_to_string(ring.at(1, "log")).unwrap();
    assert_eq!(text.lines().count(), 3 * LINES, "{text}");
    ring.umount_all();
}

#[test]
fn appenders_on_three_nodes_that_open_and_close_then_no_call_fails_and_nobody_starves() {
    if !can_cluster() {
        return;
    }
    for redundancy in ["none", "replicas=1"] {
        let ring = Ring::talking(3);
        ring.mount_all(&["--writeback", "evict", "--redundancy", redundancy]);
        File::create(ring.at(0, "log")).unwrap();
        let end = Instant::now() + Duration::from_secs(8);
        let append = &|node: usize| {
            let path = ring.at(node, "log");
            let mut longest = Duration::ZERO;
            for line in 0.. {
                let begin = Instant::now();
                if begin > end {
                    return (line, longest);
                }
                let done = appender(&path).and_then(|mut file| {
                    file.write_all(format!("{node}.{line}\n").as_bytes())?;
                    close(file)
                });
                done.unwrap_or_else(|error| panic!("{redundancy}, {node}.{line}: {error}"));
                longest = longest.max(begin.elapsed());
            }
            unreachable!("it appends until the time is over")
        };
        let lines: Vec<(usize, Duration)> = std::thread::scope(|scope| {
            let all = [0, 1, 2].map(|node| scope.spawn(move || append(node)));
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let text = fs::read_to_string(ring.at(1, "log")).unwrap();
        for (node, (count, _)) in lines.iter().enumerate() {
            let prefix = format!("{node}.");
            let own: Vec<&str> = text.lines().filter(|line| line.starts_with(&prefix)).collect();
            let all: Vec<String> = (0..*count).map(|line| format!("{prefix}{line}")).collect();
            assert_eq!(own, all, "{redundancy}");
        }
        // Shares are not equal: the owner is quicker than those who write through it. What nobody does
        // is wait for good.
        let starved = lines.iter().any(|(_, longest)| *longest > Duration::from_secs(20));
        assert!(!starved, "{redundancy}: {lines:?}");
        ring.umount_all();
    }
}

#[test]
fn file_that_is_open_since_it_was_made_when_taken_over_then_what_others_wrote_stays() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "evict"]);
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_CREAT);
    let made = options.open(ring.at(0, "f")).unwrap();
    let mut first = appender(&ring.at(1, "f")).unwrap();
    first.write_all(b"one").unwrap();
    let mut second = appender(&ring.at(0, "f")).unwrap();
    second.write_all(b"+two").unwrap();
    drop(first);
    ring.umount(1);
    // Nobody owns it now.
    second.write_all(b"+three").unwrap();
    assert_eq!(fs::read(ring.at(0, "f")).unwrap(), b"one+two+three");
    drop((made, second));
    ring.umount(0);
    assert_eq!(fs::read(ring.backing("f")).unwrap(), b"one+two+three");
}

#[test]
fn owner_when_killed_then_who_writes_by_way_of_it_gets_an_error_and_other_files_go_on() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "evict"]);
    fs::write(ring.at(0, "f"), b"before").unwrap();
    let owner = appender(&ring.at(0, "f")).unwrap();
    let mut other = appender(&ring.at(1, "f")).unwrap();
    other.write_all(b"+through").unwrap();
    other.sync_all().unwrap();
    ring.kill(0);
    drop(owner);
    let refused = other.write_all(b"+lost").unwrap_err();
    let raw = refused.raw_os_error();
    assert!(raw == Some(libc::EHOSTDOWN) || raw == Some(libc::EIO), "{refused}");
    // The owner would put its own times over these.
    let refused = other.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EHOSTDOWN), "{refused}");
    // How long the file is by now, nobody else knows.
    let refused = other.metadata().map(|found| found.len()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EHOSTDOWN), "{refused}");
    fs::write(ring.at(1, "g"), b"goes on").unwrap();
    assert_eq!(fs::read(ring.at(1, "g")).unwrap(), b"goes on");
    drop(other);
    ring.mount(0, &["--writeback", "evict"]);
    assert_eq!(fs::read(ring.at(1, "f")).unwrap(), b"before+through");
    ring.umount_all();
    assert_eq!(fs::read(ring.backing("f")).unwrap(), b"before+through");
}

const SEED: u64 = 0x5eed_0004;

/// Writes where a writer does, and the same to the model.
fn write_somewhere(
    random: &mut Random,
    (by, append, file): &(usize, bool, File),
    whole: &mut Vec<u8>,
    bytes: &[u8],
    said: &str,
) {
    let mut file = file;
    let (at, done) = match append {
        true => (whole.len(), file.write_all(bytes)),
        false => {
            let at = random.below(whole.len() as u64 + 1_000);
            (at as usize, file.write_all_at(bytes, at))
        }
    };
    done.unwrap_or_else(|e| panic!("{said}: write on {by}: {e}"));
    let end = whole.len().max(at + bytes.len());
    whole.resize(end, 0);
    whole[at..at + bytes.len()].copy_from_slice(bytes);
    assert_eq!(file.metadata().unwrap().len(), whole.len() as u64, "{said}: length");
}

/// Files stay open for writing on several nodes while others write them, too. Each operation is over
/// before the next begins, so each open must show all that was written before, wherever.
#[test]
fn random_operations_with_two_writers_at_once_then_each_open_sees_all_that_was_written() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(3);
    ring.mount_all(&["--writeback", "1s"]);
    let mut random = Random(SEED);
    let mut model: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    // By file: its writers, with their nodes and whether they append.
    let mut open: BTreeMap<usize, Vec<(usize, bool, File)>> = BTreeMap::new();
    for step in 0..150_usize {
        let node = random.below(3) as usize;
        let number = random.below(4) as usize;
        let path = ring.at(node, &format!("f{number}"));
        let said = format!("step {step} (seed {SEED:#x}): node {node}, file {number}");
        let bytes = contents(step as u64, [10, 3_000, 60_000][random.below(3) as usize]);
        let whole = model.entry(number).or_default();
        let writers = open.entry(number).or_default();
        let what = random.below(8);
        let said = format!("{said}, operation {what}");
        match what {
            0 | 1 if writers.len() < 4 => {
                let append = random.below(2) == 0;
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).append(append);
                let file = options.open(&path).unwrap_or_else(|e| panic!("{said}: open: {e}"));
                writers.push((node, append, file));
            }
            2..=4 if !writers.is_empty() => {
                write_somewhere(&mut random, &writers[0], whole, &bytes, &said);
                writers.rotate_left(1);
            }
            5 if !writers.is_empty() => {
                let len = random.below(whole.len() as u64 + 2_000) as usize;
                let (by, _, file) = &writers[0];
                file.set_len(len as u64).unwrap_or_else(|e| panic!("{said}: on {by}: {e}"));
                whole.resize(len, 0);
            }
            6 if !writers.is_empty() => drop(writers.swap_remove(0)),
            _ => {
                let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
                file.write_all(&bytes).unwrap_or_else(|e| panic!("{said}: append: {e}"));
                whole.extend_from_slice(&bytes);
            }
        }
        let reader = random.below(3) as usize;
        let other = random.below(4) as usize;
        for (number, whole) in model.iter().filter(|(n, _)| [number, other].contains(n)) {
            let path = ring.at(reader, &format!("f{number}"));
            let found = fs::read(path);
            let Ok(found) = found else {
                assert!(whole.is_empty(), "{said}; {number} on {reader}: {found:?}");
                continue;
            };
            assert_eq!(found.len(), whole.len(), "{said}; {number} on {reader}");
            let differs = (0..found.len()).find(|at| found[*at] != whole[*at]);
            assert_eq!(differs, None, "{said}; {number} on {reader}");
        }
    }
    drop(open);
    ring.umount_all();
    for (number, whole) in model {
        let found = fs::read(ring.backing(&format!("f{number}"))).unwrap_or_default();
        assert!(found == whole, "{number} in the backing store");
    }
}
