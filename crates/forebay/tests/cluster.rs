//! Several mounts on one machine that share a namespace and a backing store.

mod kept;
mod ring;
mod site;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use kept::sync;
use ring::{Random, Ring, can_cluster, names};

fn append(path: &Path, text: &[u8]) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(text).unwrap();
}

const SEED: u64 = 0x5eed_0001;

#[test]
fn names_when_changed_on_one_node_then_seen_on_the_other_at_once() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    fs::create_dir(ring.backing("old")).unwrap();
    fs::write(ring.backing("old/there"), b"before").unwrap();
    ring.mount_all(&[]);
    let (a, b) = (|path: &str| ring.at(0, path), |path: &str| ring.at(1, path));
    assert_eq!(fs::read(a("old/there")).unwrap(), b"before");
    assert_eq!(names(&b("old")), ["there"]);
    fs::create_dir(a("dir")).unwrap();
    fs::write(b("dir/one"), b"1").unwrap();
    fs::write(a("dir/two"), b"2").unwrap();
    assert_eq!(names(&a("dir")), ["one", "two"]);
    assert_eq!(names(&b("dir")), ["one", "two"]);
    fs::rename(a("dir/one"), a("dir/three")).unwrap();
    assert!(fs::metadata(b("dir/one")).is_err());
    assert_eq!(fs::metadata(b("dir/three")).unwrap().len(), 1);
    fs::set_permissions(b("dir/three"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fs::metadata(a("dir/three")).unwrap().mode() & 0o777, 0o600);
    fs::hard_link(a("dir/two"), a("dir/four")).unwrap();
    assert_eq!(fs::metadata(b("dir/four")).unwrap().nlink(), 2);
    std::os::unix::fs::symlink("three", b("dir/link")).unwrap();
    assert_eq!(fs::read(a("dir/link")).unwrap(), b"1");
    fs::remove_file(b("dir/two")).unwrap();
    assert!(fs::metadata(a("dir/two")).is_err());
    fs::rename(b("dir"), b("moved")).unwrap();
    assert_eq!(names(&a("moved")), ["four", "link", "three"]);
    fs::remove_file(a("old/there")).unwrap();
    fs::remove_dir(b("old")).unwrap();
    assert_eq!(names(&a("")), ["moved"]);
    let taken = OpenOptions::new().write(true).create_new(true).open(b("moved/four"));
    assert_eq!(taken.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    ring.umount_all();
    assert_eq!(names(&ring.backing("")), ["moved"], "{}{}", ring.log(0), ring.log(1));
    assert_eq!(names(&ring.backing("moved")), ["four", "link", "three"]);
    assert_eq!(fs::read(ring.backing("moved/four")).unwrap(), b"2");
}

#[test]
fn file_when_closed_on_one_node_then_an_open_on_another_sees_it() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    // Nothing is written back unless somebody wants it.
    ring.mount_all(&["--writeback", "evict"]);
    for (round, size) in [10, 5_000, 700_000, 3_000_000, 100, 0, 2_000_000].into_iter().enumerate()
    {
        let (writer, reader) = (round % 2, (round + 1) % 2);
        let contents: Vec<u8> = (0..size).map(|at: usize| (at / 7 + round) as u8).collect();
        fs::write(ring.at(writer, "f"), &contents).unwrap();
        assert_eq!(fs::metadata(ring.at(reader, "f")).unwrap().len(), size as u64);
        assert!(fs::read(ring.at(reader, "f")).unwrap() == contents, "round {round}");
        assert!(fs::read(ring.at(writer, "f")).unwrap() == contents, "round {round}");
    }
    // Also who has it open, and has read from it, sees it when he opens it again.
    fs::write(ring.at(0, "g"), vec![1; 1_500_000]).unwrap();
    let mut early = File::open(ring.at(1, "g")).unwrap();
    let mut start = [0; 4096];
    early.read_exact(&mut start).unwrap();
    let mut file = OpenOptions::new().write(true).open(ring.at(0, "g")).unwrap();
    file.seek(SeekFrom::Start(1_000_000)).unwrap();
    file.write_all(&[2; 1000]).unwrap();
    drop(file);
    let again = fs::read(ring.at(1, "g")).unwrap();
    assert_eq!((again[999_999], again[1_000_000], again[1_001_000]), (1, 2, 1));
    let mut file = OpenOptions::new().write(true).open(ring.at(1, "g")).unwrap();
    file.write_all(b"x").unwrap();
    file.set_len(5).unwrap();
    drop(file);
    assert_eq!(fs::read(ring.at(0, "g")).unwrap(), [b'x', 1, 1, 1, 1]);
    drop(early);
    ring.umount_all();
    assert_eq!(fs::read(ring.backing("g")).unwrap(), [b'x', 1, 1, 1, 1]);
}

#[test]
fn file_open_for_writing_when_read_elsewhere_then_all_closed_before_is_there() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    ring.mount_all(&["--writeback", "evict"]);
    fs::write(ring.at(0, "f"), b"first").unwrap();
    let mut writer = OpenOptions::new().append(true).open(ring.at(0, "f")).unwrap();
    assert_eq!(fs::read(ring.at(1, "f")).unwrap(), b"first");
    append(&ring.at(0, "f"), b"+second");
    assert_eq!(fs::read(ring.at(1, "f")).unwrap(), b"first+second");
    writer.write_all(b"+third").unwrap();
    let began = Instant::now();
    let refused = OpenOptions::new().write(true).open(ring.at(1, "f")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EBUSY), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(40));
    drop(writer);
    append(&ring.at(1, "f"), b"+fourth");
    assert_eq!(fs::read(ring.at(0, "f")).unwrap(), b"first+second+third+fourth");
    ring.umount_all();
}

/// A file of two names is written in place: it keeps its inode.
#[test]
fn file_when_written_in_place_with_its_old_length_and_time_then_others_show_what_was_written() {
    if !can_cluster() {
        return;
    }
    for ring in [Ring::new(2), Ring::talking(2)] {
        ring.mount_all(&["--writeback", "close"]);
        fs::write(ring.at(0, "f"), b"").unwrap();
        fs::hard_link(ring.at(0, "f"), ring.at(0, "g")).unwrap();
        let put = |text: &[u8]| {
            let mut file = OpenOptions::new().write(true).open(ring.at(0, "f")).unwrap();
            file.write_all(text).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
            drop(file);
            sync(&ring, 0..1);
            let found = fs::metadata(ring.backing("f")).unwrap();
            assert_eq!(fs::read(ring.backing("g")).unwrap(), text);
            (found.ino(), found.len(), found.mtime(), found.mtime_nsec())
        };
        let first = put(b"one");
        assert_eq!(fs::read(ring.at(1, "f")).unwrap(), b"one");
        assert_eq!(put(b"two"), first, "looks do not tell the versions apart");
        assert_eq!(fs::read(ring.at(1, "f")).unwrap(), b"two");
        assert_eq!(fs::read(ring.at(1, "g")).unwrap(), b"two");
        ring.umount_all();
    }
}

#[test]
fn appenders_on_two_nodes_then_no_line_is_lost() {
    if !can_cluster() {
        return;
    }
    const LINES: usize = 40;
    let ring = Ring::new(2);
    ring.mount_all(&[]);
    File::create(ring.at(0, "log")).unwrap();
    std::thread::scope(|scope| {
        for node in 0..2 {
            let path = ring.at(node, "log");
            scope.spawn(move || {
                for line in 0..LINES {
                    append(&path, format!("node {node} line {line}\n").as_bytes());
                }
            });
        }
    });
    let text = fs::read_to_string(ring.at(0, "log")).unwrap();
    assert_eq!(text, fs::read_to_string(ring.at(1, "log")).unwrap());
    for node in 0..2 {
        let prefix = format!("node {node} ");
        let own: Vec<&str> = text.lines().filter(|line| line.starts_with(&prefix)).collect();
        let all: Vec<String> = (0..LINES).map(|line| format!("{prefix}line {line}")).collect();
        assert_eq!(own, all);
    }
    assert_eq!(text.lines().count(), 2 * LINES);
    ring.umount_all();
}

#[test]
fn directory_when_filled_by_two_nodes_at_once_then_both_and_the_backing_store_have_all() {
    if !can_cluster() {
        return;
    }
    const FILES: usize = 40;
    let ring = Ring::new(2);
    ring.mount_all(&["--writeback", "close"]);
    fs::create_dir_all(ring.at(0, "a/b")).unwrap();
    std::thread::scope(|scope| {
        for node in 0..2 {
            let dir = ring.at(node, "a/b");
            scope.spawn(move || {
                for number in 0..FILES {
                    let name = dir.join(format!("{node}.{number}"));
                    fs::write(&name, format!("{number}")).unwrap();
                    match number % 4 {
                        0 => fs::remove_file(&name).unwrap(),
                        1 => fs::rename(&name, dir.join(format!("{node}.{number}.moved"))).unwrap(),
                        _ => {}
                    }
                }
            });
        }
    });
    let all = names(&ring.at(0, "a/b"));
    assert_eq!(all.len(), 2 * FILES * 3 / 4);
    assert_eq!(all, names(&ring.at(1, "a/b")));
    ring.umount_all();
    assert_eq!(all, names(&ring.backing("a/b")), "{}{}", ring.log(0), ring.log(1));
    for name in all {
        let contents = fs::read_to_string(ring.backing("a/b").join(&name)).unwrap();
        assert_eq!(name.split('.').nth(1), Some(contents.as_str()), "{name}");
    }
}

/// Whether a node shows a file, and all names, as the model has them.
fn check_seen(ring: &Ring, node: usize, name: &str, model: &BTreeMap<String, Vec<u8>>, said: &str) {
    let path = ring.at(node, name);
    if let Some(contents) = model.get(name) {
        let found = fs::read(path).unwrap_or_else(|e| panic!("{said}; {name} on {node}: {e}"));
        assert_eq!(found.len(), contents.len(), "{said}; {name} on {node}");
        let differs = (0..found.len()).find(|at| found[*at] != contents[*at]);
        assert_eq!(differs, None, "{said}; {name} on {node}");
    } else {
        assert!(fs::metadata(path).is_err(), "{said}; {name} is there");
    }
    assert_eq!(names(&ring.at(node, "")), model.keys().cloned().collect::<Vec<_>>(), "{said}");
}

/// Every operation is over before the next begins, wherever that is: then all mounts are one file
/// system.
#[test]
fn random_operations_on_three_nodes_then_each_sees_what_any_has_closed() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(3);
    ring.mount_all(&["--writeback", "1s"]);
    let mut random = Random(SEED);
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut readers: Vec<File> = Vec::new();
    let began = Instant::now();
    let mut steps = 0;
    while steps < 300 && began.elapsed() < Duration::from_secs(40) {
        steps += 1;
        let node = random.below(3) as usize;
        let name = format!("f{}", random.below(6));
        let path = ring.at(node, &name);
        let said = format!("step {steps} (seed {SEED:#x}): node {node}, {name}");
        let size = [10, 3_000, 600_000, 1_200_000][random.below(4) as usize];
        match random.below(10) {
            0 | 1 => {
                let contents = vec![steps as u8; size];
                fs::write(&path, &contents).unwrap_or_else(|e| panic!("{said}: write: {e}"));
                model.insert(name.clone(), contents);
            }
            2 | 3 => {
                append(&path, &[steps as u8; 999]);
                model.entry(name.clone()).or_default().extend([steps as u8; 999]);
            }
            4 => {
                let other = format!("f{}", random.below(6));
                let done = fs::rename(&path, ring.at(node, &other));
                assert_eq!(done.is_ok(), model.contains_key(&name), "{said}: rename: {done:?}");
                if let Some(contents) = model.remove(&name) {
                    model.insert(other, contents);
                }
            }
            5 => {
                let done = fs::remove_file(&path);
                assert_eq!(done.is_ok(), model.remove(&name).is_some(), "{said}: {done:?}");
            }
            6 => {
                if let Some(contents) = model.get_mut(&name) {
                    let len = random.below(contents.len() as u64 + 2_000);
                    let file = OpenOptions::new().write(true).open(&path).unwrap();
                    file.set_len(len).unwrap_or_else(|e| panic!("{said}: truncate: {e}"));
                    contents.resize(len as usize, 0);
                }
            }
            7 => {
                if let Some(contents) = model.get_mut(&name).filter(|c| c.len() > 100) {
                    let at = random.below(contents.len() as u64 - 50) as usize;
                    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
                    file.seek(SeekFrom::Start(at as u64)).unwrap();
                    file.write_all(&[steps as u8; 50]).unwrap();
                    contents[at..at + 50].fill(steps as u8);
                }
            }
            8 => readers.extend(File::open(&path).ok().filter(|_| model.contains_key(&name))),
            _ => readers.clear(),
        }
        let other = random.below(3) as usize;
        let name = format!("f{}", random.below(6));
        check_seen(&ring, other, &name, &model, &said);
    }
    assert!(steps > 60, "only {steps} steps in time");
    drop(readers);
    ring.umount_all();
    assert_eq!(names(&ring.backing("")), model.keys().cloned().collect::<Vec<_>>());
    for (name, contents) in model {
        assert!(fs::read(ring.backing(&name)).unwrap() == contents, "{name} in the backing store");
    }
}

#[test]
fn node_when_killed_then_what_it_had_dirty_is_not_served_stale_and_comes_back_with_it() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    fs::write(ring.backing("old"), b"version 1").unwrap();
    ring.mount_all(&["--writeback", "evict"]);
    fs::write(ring.at(0, "old"), b"version 2").unwrap();
    fs::write(ring.at(0, "new"), vec![7; 900_000]).unwrap();
    fs::create_dir(ring.at(0, "dir")).unwrap();
    fs::write(ring.at(1, "other"), b"of the other").unwrap();
    assert_eq!(fs::read(ring.at(0, "other")).unwrap(), b"of the other");
    let mut unfinished = File::create(ring.at(0, "unfinished")).unwrap();
    unfinished.write_all(b"never closed").unwrap();
    ring.kill(0);
    drop(unfinished);
    // Names and attributes are the namespace's; bytes are with the dead node alone.
    assert_eq!(names(&ring.at(1, "")), ["dir", "new", "old", "other", "unfinished"]);
    assert_eq!(fs::metadata(ring.at(1, "new")).unwrap().len(), 900_000);
    for name in ["old", "new", "unfinished"] {
        let refused = fs::read(ring.at(1, name)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EHOSTDOWN), "{name}: {refused}");
    }
    let refused = OpenOptions::new().append(true).open(ring.at(1, "old")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EHOSTDOWN), "{refused}");
    assert_eq!(fs::read(ring.backing("old")).unwrap(), b"version 1");
    // What the dead node does not own goes on.
    append(&ring.at(1, "other"), b" and more");
    fs::write(ring.at(1, "dir/below"), b"in a directory of the dead one").unwrap();
    ring.mount(0, &["--writeback", "evict"]);
    assert_eq!(fs::read(ring.at(1, "old")).unwrap(), b"version 2");
    assert!(fs::read(ring.at(1, "new")).unwrap() == vec![7; 900_000]);
    assert_eq!(fs::read(ring.at(1, "unfinished")).unwrap(), b"never closed");
    append(&ring.at(1, "old"), b"+");
    assert_eq!(fs::read(ring.at(0, "old")).unwrap(), b"version 2+");
    assert_eq!(fs::read(ring.at(0, "other")).unwrap(), b"of the other and more");
    ring.umount_all();
    assert_eq!(names(&ring.backing("")), ["dir", "new", "old", "other", "unfinished"]);
    assert_eq!(names(&ring.backing("dir")), ["below"]);
}

#[test]
fn tier_when_of_a_cluster_or_not_then_is_not_taken_for_the_other() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(1);
    ring.mount(0, &[]);
    fs::write(ring.at(0, "f"), b"x").unwrap();
    ring.umount(0);
    let tier = format!("{}=64M", ring.site.text("tier0"));
    let (backing, mnt) = (ring.site.text("backing"), ring.site.text("mnt0"));
    let (code, text) = ring.site.run(&["mount", &backing, &mnt, "--tier", &tier]);
    assert!(code != 0 && text.contains("belongs to a cluster"), "{code} {text}");
    let (code, text) = ring.site.run(&["fsck", &ring.site.text("tier0")]);
    assert!(code != 0 && text.contains("belongs to a cluster"), "{code} {text}");
    let alone = ring.site.text("tier");
    ring.site.mount(&[]);
    ring.site.umount();
    let tier = format!("{alone}=64M");
    let args = ["mount", &backing, &mnt, "--tier", &tier, "--cluster", &ring.address()];
    let (code, text) = ring.site.run(&args);
    assert!(code != 0 && text.contains("without a cluster"), "{code} {text}");
}
