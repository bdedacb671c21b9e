//! What other nodes keep of what is written: nothing that was acknowledged is lost with its node.

mod ring;
mod site;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use ring::{Ring, can_cluster};
use site::{alive, outcome, signal, wait_for};

/// Nothing that the machine does takes longer.
const LONG: Duration = Duration::from_secs(60);

/// Nothing is written back but what has to be.
const KEPT: [&str; 4] = ["--writeback", "evict", "--redundancy", "replicas=1"];

/// Bytes that tell where in which file they are.
fn contents(seed: u64, size: usize) -> Vec<u8> {
    let word = |at: u64| (at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..size.div_ceil(8) as u64).flat_map(word).take(size).collect()
}

/// What `cluster status` says of a node's part in keeping what is written.
fn safety(ring: &Ring, node: usize) -> serde_json::Value {
    let mnt = ring.site.text(&format!("mnt{node}"));
    let (code, text) = ring.site.run(&["cluster", "status", "--json", &mnt]);
    assert_eq!(code, 0, "{text}");
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    status["safety"].clone()
}

fn count(ring: &Ring, node: usize, what: &str) -> u64 {
    safety(ring, node)[what].as_u64().unwrap_or_else(|| panic!("no {what}"))
}

/// Writes files in all ways: closed, synced and kept open, added to, and overwritten.
fn write_all(ring: &Ring, node: usize) -> (Vec<(String, Vec<u8>)>, Vec<File>) {
    let (mut written, mut open) = (Vec::new(), Vec::new());
    for (number, size) in [0, 5, 4096, 70_000, 5_000_000].into_iter().enumerate() {
        let (name, bytes) = (format!("closed{number}"), contents(number as u64, size));
        fs::write(ring.at(node, &name), &bytes).unwrap();
        written.push((name, bytes));
    }
    let mut log = File::create(ring.at(node, "log")).unwrap();
    let mut lines = Vec::new();
    for line in 0..40 {
        let text = format!("line {line}\n");
        log.write_all(text.as_bytes()).unwrap();
        log.sync_data().unwrap();
        lines.extend_from_slice(text.as_bytes());
    }
    written.push(("log".into(), lines));
    open.push(log);
    let base = File::create(ring.at(node, "base")).unwrap();
    let mut bytes = contents(7, 300_000);
    base.write_all_at(&bytes, 0).unwrap();
    base.sync_all().unwrap();
    base.write_all_at(b"over what was there", 1000).unwrap();
    base.set_len(200_000).unwrap();
    base.sync_all().unwrap();
    bytes[1000..1019].copy_from_slice(b"over what was there");
    bytes.truncate(200_000);
    written.push(("base".into(), bytes));
    open.push(base);
    (written, open)
}

/// Has nodes write everything back. Each does what is its own, and says so when nothing is left of
/// what others have.
fn sync(ring: &Ring, nodes: std::ops::Range<usize>) {
    let one = |node: usize| {
        let mnt = ring.site.text(&format!("mnt{node}"));
        ring.site.run(&["sync", &mnt]).0 == 0
    };
    // All of them, also after one that has something left.
    let all = || nodes.clone().filter(|node| !one(*node)).count() == 0;
    assert!(wait_for(LONG, all), "{}", ring.log(nodes.start));
}

/// Reads a file as soon as that can be done.
fn read_soon(path: &PathBuf) -> Vec<u8> {
    let found = std::cell::RefCell::new(None);
    let read = wait_for(LONG, || match fs::read(path) {
        Ok(bytes) => found.borrow_mut().replace(bytes).is_none_or(|_| true),
        Err(_) => false,
    });
    assert!(read, "{} can't be read: {:?}", path.display(), fs::read(path).err());
    found.into_inner().unwrap()
}

fn check_all(ring: &Ring, node: usize, written: &[(String, Vec<u8>)]) {
    for (name, bytes) in written {
        let found = read_soon(&ring.at(node, name));
        let differs = found.iter().zip(bytes).position(|(found, meant)| found != meant);
        let lengths = (found.len(), bytes.len());
        assert!(
            found == *bytes,
            "{name} on node {node}: {lengths:?} bytes, differs at {differs:?}"
        );
    }
}

#[test]
fn owner_when_killed_then_all_that_was_acknowledged_is_there_and_what_it_returns_with_is_not_served()
 {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(3);
    ring.mount_all(&KEPT);
    let (mut written, open) = write_all(&ring, 0);
    assert!(!ring.backing("closed1").exists(), "it was written back");
    // What no sync and no close follows is not promised, and must not come back over what is. No
    // program may be started before the daemon dies: the new process closes what it inherits.
    let daemon = ring.daemon(0);
    open[1].write_all_at(b"nobody was told that this is safe", 0).unwrap();
    signal(daemon, rustix::process::Signal::KILL);
    assert!(wait_for(LONG, || !alive(daemon)));
    ring.detach(0);
    drop(open);
    check_all(&ring, 1, &written);
    check_all(&ring, 2, &written);
    // A writer elsewhere goes on with it.
    let mut log = OpenOptions::new().append(true).open(ring.at(2, "log")).unwrap();
    log.write_all(b"a line of another node\n").unwrap();
    drop(log);
    let lines = written.iter_mut().find(|(name, _)| name == "log").unwrap();
    lines.1.extend_from_slice(b"a line of another node\n");
    check_all(&ring, 1, &written);

    ring.mount(0, &KEPT);
    let with_bytes = written.iter().filter(|(_, bytes)| !bytes.is_empty()).count();
    assert_eq!(count(&ring, 0, "aside_files"), with_bytes as u64, "{}", ring.log(0));
    check_all(&ring, 0, &written);
    sync(&ring, 0..3);
    for (name, bytes) in &written {
        assert!(fs::read(ring.backing(name)).unwrap() == *bytes, "{name}");
    }
}

#[test]
fn node_with_copies_when_killed_then_they_are_made_again_and_the_owner_may_go() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(3);
    ring.mount_all(&KEPT);
    let (written, open) = write_all(&ring, 0);
    let held = |node| count(&ring, node, "held_files");
    let mut all = written.len() as u64;
    // What was replaced goes a moment later.
    assert!(wait_for(LONG, || held(1) + held(2) == all), "{} {} {all}", held(1), held(2));
    // Where they lie is drawn by lot.
    while held(1) == 0 || held(2) == 0 {
        fs::write(ring.at(0, &format!("more{all}")), b"more").unwrap();
        all += 1;
        assert!(all < 100, "all copies are on one node");
    }
    ring.kill(1);
    assert!(wait_for(LONG, || held(2) == all), "{}\n{}", held(2), safety(&ring, 0));
    assert!(wait_for(LONG, || count(&ring, 0, "lacking_files") == 0));
    ring.kill(0);
    drop(open);
    check_all(&ring, 2, &written);
    sync(&ring, 2..3);
    for (name, bytes) in &written {
        assert!(fs::read(ring.backing(name)).unwrap() == *bytes, "{name}");
    }
}

#[test]
fn copies_when_too_few_nodes_can_take_them_then_the_backing_store_has_all_at_close() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    let (code, text) = ring.mount_with(0, &["--redundancy", "replicas=none"]);
    assert!(code != 0 && text.contains("replicas=N"), "{text}");
    ring.mount(0, &KEPT);
    fs::write(ring.at(0, "alone"), b"closed").unwrap();
    assert_eq!(fs::read(ring.backing("alone")).unwrap(), b"closed");
    let open = File::create(ring.at(0, "synced")).unwrap();
    open.write_all_at(b"synced", 0).unwrap();
    open.sync_all().unwrap();
    assert_eq!(fs::read(ring.backing("synced")).unwrap(), b"synced");
    drop(open);
    // A second node joins, and holds copies from then on.
    ring.mount(1, &KEPT);
    let number = std::cell::Cell::new(0);
    assert!(wait_for(LONG, || {
        number.set(number.get() + 1);
        fs::write(ring.at(0, &format!("two{}", number.get())), b"closed").unwrap();
        count(&ring, 1, "held_files") > 0
    }));
    ring.umount_all();
}

#[test]
fn node_with_copies_when_drained_then_they_move_before_it_leaves() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(3);
    ring.mount_all(&KEPT);
    let (written, open) = write_all(&ring, 0);
    let all = written.len() as u64;
    let held = |node| count(&ring, node, "held_files");
    assert!(wait_for(LONG, || held(1) + held(2) == all));
    let status = ring.site.text("mnt1");
    let (_, text) = ring.site.run(&["cluster", "status", "--json", &status]);
    let number = serde_json::from_str::<serde_json::Value>(&text).unwrap()["this"].to_string();
    let (code, text) = ring.site.run(&["cluster", "drain", &number, &ring.site.text("mnt0")]);
    assert_eq!(code, 0, "{text}\n{}", ring.log(1));
    assert!(wait_for(LONG, || held(2) == all), "{}", held(2));
    drop(open);
    ring.umount(0);
    ring.umount(2);
}

#[test]
fn directory_when_it_says_otherwise_than_the_mount_then_that_counts_also_below() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "evict"]);
    let set = |dir: &str, level: &str| {
        let dir = ring.site.text(&format!("mnt0/{dir}"));
        let arguments = ["-n", "user.forebay.redundancy", "-v", level, dir.as_str()];
        outcome(ring.site.command("setfattr").args(arguments))
    };
    fs::create_dir(ring.at(0, "safe")).unwrap();
    let (code, text) = set("safe", "replicas=1");
    if code == 127 {
        eprintln!("skipped: there is no setfattr");
        return;
    }
    assert_eq!(code, 0, "{text}");
    assert_ne!(set("safe", "twice").0, 0);
    fs::create_dir(ring.at(0, "safe/below")).unwrap();
    fs::write(ring.at(0, "unsafe"), b"here").unwrap();
    fs::write(ring.at(0, "safe/below/one"), b"there, too").unwrap();
    assert_eq!(count(&ring, 1, "held_files"), 1);
    ring.umount_all();
}

#[test]
fn copies_when_nobody_waits_for_them_then_they_come_later_and_go_with_the_write_back() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "evict", "--redundancy", "replicas=1,async"]);
    // Before it knows another node it writes back at once.
    assert!(wait_for(LONG, || ring.log(0).contains("another node can be talked to")));
    for number in 0..20u64 {
        fs::write(ring.at(0, &format!("f{number}")), contents(number, 3000)).unwrap();
    }
    assert!(wait_for(LONG, || count(&ring, 1, "held_files") == 20), "{}", safety(&ring, 0));
    assert!(wait_for(LONG, || count(&ring, 0, "waiting_files") == 0));
    sync(&ring, 0..1);
    assert!(wait_for(LONG, || count(&ring, 1, "held_files") == 0), "{}", safety(&ring, 1));
    ring.umount_all();
}
