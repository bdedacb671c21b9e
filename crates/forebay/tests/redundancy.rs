//! What other nodes keep of what is written: nothing that was acknowledged is lost with its node.

mod kept;
mod ring;
mod site;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;

use forebay_testing::stop_process;
use kept::{LONG, check_all, contents, count, held, safety, sync, write_all};
use ring::{Ring, can_cluster};
use site::{alive, outcome, signal, wait_for};

/// Nothing is written back but what has to be.
const KEPT: [&str; 4] = ["--writeback", "evict", "--redundancy", "replicas=1"];

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
fn file_kept_aside_when_the_backing_store_has_its_bytes_then_it_goes_and_another_stays() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&KEPT);
    let bytes = vec![7; 3 << 20];
    fs::write(ring.at(0, "same"), &bytes).unwrap();
    fs::write(ring.at(0, "more"), &bytes).unwrap();
    let open = OpenOptions::new().write(true).open(ring.at(0, "more")).unwrap();
    let daemon = ring.daemon(0);
    open.write_all_at(b"nobody was told that this is safe", 2 << 20).unwrap();
    signal(daemon, rustix::process::Signal::KILL);
    assert!(wait_for(LONG, || !alive(daemon)));
    ring.detach(0);
    drop(open);
    for name in ["same", "more"] {
        assert!(wait_for(LONG, || fs::read(ring.at(1, name)).is_ok_and(|read| read == bytes)));
    }
    ring.mount(0, &KEPT);
    assert_eq!(count(&ring, 0, "aside_files"), 2, "{}", ring.log(0));
    sync(&ring, 1..2);
    assert!(wait_for(LONG, || count(&ring, 0, "aside_files") == 1), "{}", ring.log(0));
    let aside = ring.site.path("tier0/aside");
    let left: Vec<_> = fs::read_dir(aside).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [left] = &left[..] else { panic!("{left:?}") };
    assert!(fs::read(left).unwrap()[2 << 20..].starts_with(b"nobody was told"));
    for name in ["same", "more"] {
        assert_eq!(fs::read(ring.at(0, name)).unwrap(), bytes);
    }
    ring.umount_all();
}

#[test]
fn node_when_fenced_then_a_new_file_is_refused_and_leaves_no_name() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(3);
    ring.mount_all(&KEPT);
    fs::write(ring.at(0, "kept"), b"closed").unwrap();
    let daemon = ring.daemon(0);
    stop_process(daemon);
    let taken = || fs::read(ring.at(1, "kept")).is_ok_and(|bytes| bytes == b"closed");
    assert!(wait_for(LONG, taken), "it is not taken over\n{}", ring.log(1));
    signal(daemon, rustix::process::Signal::CONT);
    let write = || OpenOptions::new().write(true).open(ring.at(0, "kept"));
    let fenced = || write().is_err_and(|error| error.raw_os_error() == Some(libc::ESTALE));
    assert!(wait_for(LONG, fenced), "{}", ring.log(0));
    let made = File::create_new(ring.at(0, "new")).map(drop);
    assert_eq!(made.unwrap_err().raw_os_error(), Some(libc::ESTALE));
    let made = fs::create_dir(ring.at(0, "dir"));
    assert_eq!(made.unwrap_err().raw_os_error(), Some(libc::ESTALE));
    for name in ["new", "dir"] {
        assert!(!fs::exists(ring.at(1, name)).unwrap(), "{name} was made");
    }
    // What is there can be read.
    assert_eq!(fs::read(ring.at(0, "kept")).unwrap(), b"closed");
    ring.kill(0);
}

#[test]
fn node_when_fenced_then_no_name_and_no_attribute_is_changed_there() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(3);
    ring.mount_all(&KEPT);
    fs::create_dir(ring.at(0, "dir")).unwrap();
    for name in ["kept", "other"] {
        fs::write(ring.at(0, name), b"closed").unwrap();
    }
    let daemon = ring.daemon(0);
    stop_process(daemon);
    // Waits for the daemon, and is carried out before that has heard of anything.
    let (from, to) = (ring.at(0, "other"), ring.at(0, "renamed"));
    let renaming = std::thread::spawn(move || fs::rename(from, to));
    let taken = || fs::read(ring.at(1, "kept")).is_ok_and(|bytes| bytes == b"closed");
    assert!(wait_for(LONG, taken), "it is not taken over\n{}", ring.log(1));
    signal(daemon, rustix::process::Signal::CONT);
    let stale = |what: &str, done: std::io::Result<()>| {
        let raw = done.expect_err(what).raw_os_error();
        assert_eq!(raw, Some(libc::ESTALE), "{what}\n{}", ring.log(0));
    };
    stale("the rename that had waited", renaming.join().unwrap());
    let at = |name: &str| ring.at(0, name);
    stale("a rename", fs::rename(at("other"), at("renamed")));
    stale("a rename over another", fs::rename(at("other"), at("kept")));
    stale("a removal", fs::remove_file(at("other")));
    stale("the removal of a directory", fs::remove_dir(at("dir")));
    stale("a link", fs::hard_link(at("other"), at("link")));
    stale("a symbolic link", std::os::unix::fs::symlink("other", at("link")));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    stale("a mode", fs::set_permissions(at("other"), mode));
    let read = File::open(at("other")).unwrap();
    stale("times", read.set_modified(std::time::SystemTime::UNIX_EPOCH));
    let set = rustix::fs::setxattr(at("other"), "user.x", b"y", rustix::fs::XattrFlags::empty());
    stale("an attribute", set.map_err(std::io::Error::from));
    drop(read);
    assert_eq!(ring::names(&ring.at(1, "")), ["dir", "kept", "other"]);
    let found = fs::metadata(ring.at(1, "other")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::nlink(&found), 1);
    assert!(found.modified().unwrap() > std::time::SystemTime::UNIX_EPOCH);
    ring.kill(0);
}

#[test]
fn node_with_copies_when_killed_then_they_are_made_again_and_the_owner_may_go() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(3);
    ring.mount_all(&KEPT);
    let (written, open) = write_all(&ring, 0);
    let held = |node| held(&ring, node);
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
        held(&ring, 1) > 0
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
    let held = |node| held(&ring, node);
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
    assert_eq!(held(&ring, 1), 1);
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
    assert!(wait_for(LONG, || held(&ring, 1) == 20), "{}", safety(&ring, 0));
    assert!(wait_for(LONG, || count(&ring, 0, "waiting_files") == 0));
    sync(&ring, 0..1);
    assert!(wait_for(LONG, || held(&ring, 1) == 0), "{}", safety(&ring, 1));
    ring.umount_all();
}

/// Bytes that a node has sent to be kept by others.
fn bytes_copied(ring: &Ring, node: usize) -> u64 {
    let (code, text) = ring.site.run(&["debug", "metrics", &ring.site.text(&format!("mnt{node}"))]);
    assert_eq!(code, 0, "{text}");
    let line = text.lines().find(|line| line.starts_with("forebay_copied_bytes_total"));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("a number")
}

#[test]
fn file_when_a_duplicate_is_closed_before_it_is_written_then_each_byte_is_sent_once() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "evict", "--redundancy", "replicas=1"]);
    assert!(wait_for(LONG, || ring.log(0).contains("another node can be talked to")));
    let whole = contents(3, 32 << 20);
    let (start, rest) = whole.split_at(24 << 20);
    let mut file = fs::File::create(ring.at(0, "f")).unwrap();
    // As `dd` does, and shells for what they redirect.
    drop(file.try_clone().unwrap());
    for piece in start.chunks(1 << 20) {
        file.write_all(piece).unwrap();
    }
    assert!(wait_for(LONG, || bytes_copied(&ring, 0) > 0), "nothing is sent ahead");
    file.write_all(rest).unwrap();
    drop(file);
    assert_eq!(bytes_copied(&ring, 0), whole.len() as u64);
    assert_eq!(count(&ring, 1, "held_files"), 1);
    ring.umount_all();
}

#[test]
fn file_when_removed_before_its_copies_are_made_then_it_waits_for_none() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "evict", "--redundancy", "replicas=1,async"]);
    assert!(wait_for(LONG, || ring.log(0).contains("another node can be talked to")));
    for number in 0..40u64 {
        let path = ring.at(0, &format!("f{number}"));
        fs::write(&path, contents(number, 1_000_000)).unwrap();
        fs::remove_file(&path).unwrap();
    }
    assert!(wait_for(LONG, || count(&ring, 0, "waiting_files") == 0), "{}", safety(&ring, 0));
    assert!(wait_for(LONG, || count(&ring, 1, "held_files") == 0), "{}", safety(&ring, 1));
    ring.umount_all();
}

#[test]
fn closed_file_whose_copies_come_later_then_copied_and_not_written_back() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "evict", "--redundancy", "replicas=1,async"]);
    // Closed before anybody gets to them, so that nobody has them open then.
    for number in 0..60u64 {
        fs::write(ring.at(0, &format!("f{number}")), contents(number, 30_000)).unwrap();
    }
    assert!(wait_for(LONG, || count(&ring, 0, "waiting_files") == 0));
    assert!(wait_for(LONG, || held(&ring, 1) == 60), "{}", safety(&ring, 0));
    let there = (0..60).filter(|number| ring.backing(&format!("f{number}")).exists());
    assert_eq!(there.count(), 0, "written back");
    ring.umount_all();
}

/// What the kernel writes by itself, and makes durable without asking, no other node would have.
#[test]
fn writer_whose_syncs_wait_for_copies_then_is_not_handed_to_the_kernel() {
    if !can_cluster() {
        return;
    }
    for (options, waits) in [(&KEPT[..], true), (&KEPT[..2], false)] {
        let ring = Ring::talking(2);
        ring.mount_all(&[options, &["--passthrough", "readwrite"]].concat());
        let counted = |what: &str| {
            let (code, text) = ring.site.run(&["debug", "metrics", &ring.site.text("mnt0")]);
            assert_eq!(code, 0, "{text}");
            let lines = text.lines().filter(|line| line.starts_with(what));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
        };
        let passed = || counted("forebay_passthrough_opens_total");
        let refused = || counted("forebay_passthrough_refusals_total{reason=\"durability\"}");
        fs::write(ring.at(0, "file"), contents(1, 70_000)).unwrap();
        drop(File::open(ring.at(0, "file")).unwrap());
        if passed() == 0 {
            eprintln!("skipped: this kernel has no passthrough");
            return;
        }
        let (passed_before, refused_before) = (passed(), refused());
        let file = OpenOptions::new().write(true).open(ring.at(0, "file")).unwrap();
        let (passed, refused) = (passed() - passed_before, refused() - refused_before);
        assert_eq!((passed, refused), if waits { (0, 1) } else { (1, 0) }, "waits: {waits}");
        file.write_all_at(b"synced", 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        sync(&ring, 0..2);
        assert!(fs::read(ring.backing("file")).unwrap().starts_with(b"synced"), "{waits}");
    }
}
