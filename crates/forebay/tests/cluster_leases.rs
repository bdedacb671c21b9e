//! Nodes that take leases of directories: what one does there alone, and what becomes of it when
//! others want to look, or the node dies.
#![allow(missing_docs, reason = "a test program")]

mod ring;
mod site;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ring::{Random, Ring, can_cluster, names};

/// Makes files that hold their own names.
fn make(dir: &Path, names: impl Iterator<Item = String>) {
    for name in names {
        fs::write(dir.join(&name), &name).unwrap();
    }
}

fn numbered(kind: &str, count: usize) -> impl Iterator<Item = String> {
    let kind = kind.to_string();
    (0..count).map(move |n| format!("{kind}{n:04}"))
}

#[test]
fn nodes_when_each_works_alone_and_then_in_the_others_directory_then_both_see_all() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "1s"]);
    for node in 0..2 {
        fs::create_dir(ring.at(node, &format!("of{node}"))).unwrap();
    }
    std::thread::scope(|scope| {
        for node in 0..2 {
            let ring = &ring;
            scope.spawn(move || make(&ring.at(node, &format!("of{node}")), numbered("a", 150)));
        }
    });
    // Each looks at once at what the other has just done.
    let begun = Instant::now();
    for node in 0..2 {
        let dir = format!("of{}", 1 - node);
        let found = names(&ring.at(node, &dir));
        assert_eq!(found, numbered("a", 150).collect::<Vec<_>>());
        assert_eq!(fs::read(ring.at(node, &format!("{dir}/a0149"))).unwrap(), b"a0149");
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "recalled, not broken");
    // Both in both, with all kinds of changes.
    std::thread::scope(|scope| {
        for node in 0..2usize {
            let ring = &ring;
            scope.spawn(move || {
                let (mine, other) = (format!("of{node}"), format!("of{}", 1 - node));
                make(&ring.at(node, &other), numbered(&format!("b{node}"), 60));
                for n in 0..60 {
                    let from = ring.at(node, &format!("{other}/b{node}{n:04}"));
                    match n % 3 {
                        0 => fs::rename(&from, ring.at(node, &format!("{mine}/c{n:04}"))).unwrap(),
                        1 => fs::remove_file(&from).unwrap(),
                        _ => {
                            let name = format!("{other}/d{node}{n:04}");
                            fs::rename(&from, ring.at(node, &name)).unwrap();
                        }
                    }
                }
            });
        }
    });
    for dir in ["of0", "of1"] {
        let [one, two] = [0, 1].map(|node| names(&ring.at(node, dir)));
        assert_eq!(one, two);
        assert_eq!(one.len(), 150 + 20 + 20);
    }
    ring.umount_all();
    for dir in ["of0", "of1"] {
        assert_eq!(names(&ring.backing(dir)).len(), 190);
    }
}

#[test]
fn daemon_when_killed_while_it_works_alone_then_all_that_it_acknowledged_is_there_after_it_is_back()
{
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    ring.mount_all(&["--writeback", "evict"]);
    fs::create_dir(ring.at(0, "dir")).unwrap();
    let mut made: Vec<String> = Vec::new();
    for round in 0..3 {
        let stop = AtomicBool::new(false);
        let acknowledged = std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let mut done = Vec::new();
                for n in 0.. {
                    let name = format!("{round}-{n}");
                    let made = fs::write(ring.at(0, &format!("dir/{name}")), &name);
                    if made.is_err() || stop.load(Ordering::Acquire) {
                        return done;
                    }
                    done.push(name);
                }
                done
            });
            let dir = ring.at(0, "dir");
            std::thread::sleep(Duration::from_millis(400 + 300 * round));
            let pid = ring.daemon(0);
            site::signal(pid, rustix::process::Signal::KILL);
            assert!(site::wait_for(Duration::from_secs(60), || !site::alive(pid)));
            stop.store(true, Ordering::Release);
            ring.detach(0);
            drop(dir);
            worker.join().unwrap()
        });
        assert!(!acknowledged.is_empty());
        made.extend(acknowledged);
        ring.mount(0, &["--writeback", "evict"]);
        for name in &made {
            let path = format!("dir/{name}");
            assert_eq!(fs::read(ring.at(0, &path)).unwrap(), name.as_bytes(), "{name}");
        }
    }
    assert!(made.len() > 20, "only {}", made.len());
    for name in &made {
        assert!(fs::metadata(ring.at(1, &format!("dir/{name}"))).is_ok(), "{name}");
    }
    assert!(!ring.site.path("tier0").join("state/leases/refused").exists());
    ring.umount_all();
    for name in &made {
        assert_eq!(fs::read(ring.backing(&format!("dir/{name}"))).unwrap(), name.as_bytes());
    }
}

#[test]
fn node_when_it_dies_while_it_works_alone_then_others_go_on_in_its_directory() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    ring.mount_all(&["--writeback", "evict"]);
    fs::create_dir(ring.at(0, "dir")).unwrap();
    make(&ring.at(0, "dir"), numbered("a", 60));
    ring.kill(0);
    // It waits for the dead one's time, and then works there.
    let begun = Instant::now();
    make(&ring.at(1, "dir"), numbered("b", 20));
    assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
    let found = names(&ring.at(1, "dir"));
    assert!(numbered("b", 20).all(|name| found.contains(&name)));
    // What had arrived is there without gaps, and what had not the node that comes back reports.
    let arrived = found.iter().filter(|name| name.starts_with('a')).count();
    assert!(numbered("a", arrived).all(|name| found.contains(&name)), "{found:?}");
    ring.mount(0, &["--writeback", "evict"]);
    assert_eq!(names(&ring.at(0, "dir")), names(&ring.at(1, "dir")));
    let refused = ring.site.path("tier0").join("state/leases/refused").exists();
    // The last may have arrived without an answer: then it is reported as well.
    assert!(refused || arrived == 60, "{arrived} had arrived");
    ring.umount_all();
    assert!(names(&ring.backing("dir")).len() >= 20 + arrived);
}

#[test]
fn leases_when_switched_off_then_the_servers_have_each_change_at_once() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    ring.mount_all(&["--cluster-leases", "off", "--writeback", "evict"]);
    fs::create_dir(ring.at(0, "dir")).unwrap();
    make(&ring.at(0, "dir"), numbered("a", 60));
    ring.kill(0);
    let begun = Instant::now();
    assert_eq!(names(&ring.at(1, "dir")).len(), 60);
    assert!(begun.elapsed() < Duration::from_secs(10));
    ring.mount(0, &["--writeback", "evict"]);
    ring.umount_all();
    assert_eq!(names(&ring.backing("dir")).len(), 60);
}

/// Some changes by one node, then a look by another: all mounts are one file system.
#[test]
fn random_changes_by_nodes_in_turn_then_the_next_sees_what_any_has_done() {
    if !can_cluster() {
        return;
    }
    const SEED: u64 = 0x5eed_0007;
    let ring = Ring::talking(3);
    ring.mount_all(&["--writeback", "1s"]);
    let mut random = Random(SEED);
    for dir in ["d0", "d1"] {
        fs::create_dir(ring.at(0, dir)).unwrap();
    }
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let begun = Instant::now();
    let (mut turns, mut steps) = (0, 0u64);
    while turns < 40 && begun.elapsed() < Duration::from_secs(20) {
        turns += 1;
        let node = random.below(3) as usize;
        for _ in 0..random.below(25) {
            steps += 1;
            let mut pick = || format!("d{}/f{}", random.below(8) / 7, random.below(12));
            let (name, other) = (pick(), pick());
            let (path, to) = (ring.at(node, &name), ring.at(node, &other));
            let said = format!("step {steps} (seed {SEED:#x}): node {node}, {name}, {other}");
            match random.below(6) {
                0..=2 => {
                    let contents = vec![steps as u8; random.below(5000) as usize];
                    fs::write(&path, &contents).unwrap_or_else(|e| panic!("{said}: {e}"));
                    model.insert(name, contents);
                }
                3 => {
                    let done = fs::rename(&path, &to);
                    assert_eq!(done.is_ok(), model.contains_key(&name), "{said}: {done:?}");
                    if let Some(contents) = model.remove(&name) {
                        model.insert(other, contents);
                    }
                }
                4 => {
                    let done = fs::remove_file(&path);
                    assert_eq!(done.is_ok(), model.remove(&name).is_some(), "{said}: {done:?}");
                }
                _ => {
                    let found = fs::metadata(&path).ok().map(|found| found.len());
                    assert_eq!(found, model.get(&name).map(|c| c.len() as u64), "{said}");
                }
            }
        }
        let other = random.below(3) as usize;
        for dir in ["d0", "d1"] {
            let below = model.keys().filter_map(|name| name.strip_prefix(&format!("{dir}/")));
            let found = names(&ring.at(other, dir));
            let mut expected: Vec<&str> = below.collect();
            expected.sort_unstable();
            assert_eq!(
                found, expected,
                "turn {turns}, step {steps}, {dir} on {other} after {node}"
            );
        }
        for (name, contents) in model.iter().skip(turns % 5).step_by(5) {
            let found = fs::read(ring.at(other, name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(&found == contents, "turn {turns}, step {steps}: {name} on {other}");
        }
    }
    assert!(turns > 5, "only {turns} turns in time");
    ring.umount_all();
    for (name, contents) in model {
        assert!(fs::read(ring.backing(&name)).unwrap() == contents, "{name} in the backing store");
    }
}
