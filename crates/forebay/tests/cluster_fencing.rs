//! A node that others took for dead while it lived changes nothing that they have written since.

mod kept;
mod ring;
mod site;

use std::fs;
use std::time::Duration;

use forebay_testing::stop_process;
use kept::{LONG, contents, sync};
use ring::{Ring, can_cluster};
use rustix::process::Signal;
use site::{signal, wait_for};

/// Nothing is written back but what has to be.
const KEPT: [&str; 4] = ["--writeback", "evict", "--redundancy", "replicas=1"];

/// The points at which the node is stopped: before the version is announced, after it was, and
/// between the last look at the store and the change of it.
const POINTS: [&str; 3] = ["node.flush.copied", "node.flush.publish", "store.commit.before_rename"];

#[test]
fn node_when_stopped_while_it_writes_back_then_what_others_have_written_since_stays() {
    if !can_cluster() {
        return;
    }
    let cases = POINTS.into_iter().flat_map(|point| [(point, false), (point, true)]);
    // Each spends most of its time waiting for others to take it for dead.
    std::thread::scope(|scope| {
        for (point, published) in cases {
            scope.spawn(move || stopped_while_it_writes_back(point, published));
        }
    });
}

/// `published`: the backing store has a version of the file before.
fn stopped_while_it_writes_back(point: &str, published: bool) {
    let ring = Ring::talking(3);
    let late = format!("{point}={}sleep(3000)", if published { "1*off->" } else { "" });
    ring.mount_failing(0, &late, &KEPT);
    ring.mount(1, &KEPT);
    ring.mount(2, &KEPT);
    let daemon = ring.daemon(0);
    let (here, there) = (ring.at(0, "f"), ring.at(1, "f"));
    if published {
        fs::write(&here, contents(1, 50_000)).unwrap();
        sync(&ring, 0..1);
    }
    let old = contents(2, 300_000);
    fs::write(&here, &old).unwrap();
    let text = ring.site.text("mnt0");
    let forebay = env!("CARGO_BIN_EXE_forebay");
    let syncing = ring.site.command(forebay).args(["sync", &text]).spawn().unwrap();
    let syncing = std::cell::RefCell::new(syncing);
    // It has begun when it has a file of its own for that.
    let private = ring.backing(".forebay");
    let began = || {
        let mut dirs = vec![private.clone()];
        let mut found = false;
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    true => dirs.push(entry.path()),
                    false => {
                        let own = entry.file_name().to_string_lossy().starts_with("t.");
                        let whole = |meta: fs::Metadata| meta.len() == old.len() as u64;
                        found |= own && entry.metadata().is_ok_and(whole);
                    }
                }
            }
        }
        found
    };
    assert!(wait_for(LONG, began), "{point}: it does not write back\n{}", ring.log(0));
    std::thread::sleep(Duration::from_millis(1000));
    stop_process(daemon);
    let taken = || fs::read(&there).is_ok_and(|bytes| bytes == old);
    assert!(wait_for(LONG, taken), "{point}: it is not taken over\n{}", ring.log(1));
    let new = contents(3, 200_000);
    fs::write(&there, &new).unwrap();
    sync(&ring, 1..2);
    let backing = ring.backing("f");
    assert!(fs::read(&backing).unwrap() == new, "{point}: not written back");
    signal(daemon, Signal::CONT);
    // Until it has done what it was about to do.
    let ends = wait_for(LONG, || syncing.borrow_mut().try_wait().unwrap().is_some());
    assert!(ends, "{point}: {}", ring.log(0));
    std::thread::sleep(Duration::from_millis(1500));
    assert!(fs::read(&backing).unwrap() == new, "{point}: overwritten\n{}", ring.log(0));
    for node in 1..3 {
        assert!(fs::read(ring.at(node, "f")).unwrap() == new, "{point}: lost on {node}");
    }
    assert_eq!(ring::names(&ring.backing("")).first().map(String::as_str), Some(".forebay/mounts"));
    ring.kill(0);
}

#[test]
fn node_when_stopped_in_the_middle_of_a_change_in_place_then_it_does_not_go_on() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(3);
    ring.mount_failing(0, "store.copy.before_chunk=sleep(300)", &KEPT);
    ring.mount(1, &KEPT);
    ring.mount(2, &KEPT);
    let daemon = ring.daemon(0);
    let (here, there, backing) = (ring.at(0, "f"), ring.at(1, "f"), ring.backing("f"));
    fs::write(&here, contents(1, 50_000)).unwrap();
    fs::hard_link(&here, ring.at(0, "g")).unwrap();
    sync(&ring, 0..1);
    let old = contents(2, 24 << 20);
    fs::write(&here, &old).unwrap();
    let text = ring.site.text("mnt0");
    let forebay = env!("CARGO_BIN_EXE_forebay");
    let syncing = ring.site.command(forebay).args(["sync", &text]).spawn().unwrap();
    let syncing = std::cell::RefCell::new(syncing);
    let is_begun = || fs::metadata(&backing).unwrap().len() > 2 << 20;
    assert!(wait_for(LONG, is_begun), "it does not write back\n{}", ring.log(0));
    stop_process(daemon);
    assert!(fs::read(&backing).unwrap() != old, "stopped too late to show anything");
    let taken = || fs::read(&there).is_ok_and(|bytes| bytes == old);
    assert!(wait_for(LONG, taken), "it is not taken over\n{}", ring.log(1));
    let new = contents(3, 24 << 20);
    fs::write(&there, &new).unwrap();
    sync(&ring, 1..2);
    assert!(fs::read(&backing).unwrap() == new, "not written back");
    signal(daemon, Signal::CONT);
    assert!(
        wait_for(LONG, || syncing.borrow_mut().try_wait().unwrap().is_some()),
        "{}",
        ring.log(0)
    );
    std::thread::sleep(Duration::from_millis(1500));
    assert!(fs::read(&backing).unwrap() == new, "overwritten\n{}", ring.log(0));
    ring.kill(0);
}
