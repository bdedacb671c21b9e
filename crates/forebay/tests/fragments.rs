//! Fragments on other nodes: nothing that was acknowledged is lost with as many nodes as the code bears.

mod kept;
mod ring;
mod site;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

use kept::{LONG, check_all, contents, count, held, safety, sync, write_all};
use ring::{Ring, can_cluster};
use site::wait_for;

fn options(level: &'static str) -> [&'static str; 4] {
    ["--writeback", "evict", "--redundancy", level]
}

#[test]
fn owner_and_a_holder_when_killed_then_all_is_there_and_what_returns_is_fenced() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(4);
    ring.mount_all(&options("ec=2+2"));
    let (written, open) = write_all(&ring, 0);
    assert!(!ring.backing("closed1").exists(), "it was written back");
    // What was replaced goes a moment later.
    let all = written.len() as u64;
    let there = || (1..4).all(|node| held(&ring, node) == all);
    assert!(wait_for(LONG, there), "{} {}", safety(&ring, 1), safety(&ring, 3));
    // As many nodes as the code bears the loss of, at once.
    ring.kill(2);
    ring.kill(0);
    drop(open);
    check_all(&ring, 1, &written);
    check_all(&ring, 3, &written);
    ring.mount(2, &options("ec=2+2"));
    ring.mount(0, &options("ec=2+2"));
    assert!(count(&ring, 0, "aside_files") > 0, "{}", ring.log(0));
    check_all(&ring, 0, &written);
    sync(&ring, 0..4);
    for (name, bytes) in &written {
        assert!(fs::read(ring.backing(name)).unwrap() == *bytes, "{name}");
    }
}

#[test]
fn holder_of_fragments_when_killed_then_made_again_and_the_owner_may_go() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(4);
    ring.mount_all(&options("ec=2+1"));
    let (written, open) = write_all(&ring, 0);
    let all = written.len() as u64;
    let lives = |node: usize| (1..4).filter(|other| *other != node).collect::<Vec<_>>();
    let total = |nodes: &[usize]| nodes.iter().map(|node| held(&ring, *node)).sum::<u64>();
    assert!(wait_for(LONG, || total(&[1, 2, 3]) == 2 * all));
    let gone = (1..4).max_by_key(|node| held(&ring, *node)).unwrap();
    ring.kill(gone);
    let left = lives(gone);
    let made = || left.iter().all(|node| held(&ring, *node) == all);
    assert!(wait_for(LONG, made), "{}\n{}", safety(&ring, 0), ring.log(0));
    assert!(wait_for(LONG, || count(&ring, 0, "lacking_files") == 0));
    ring.kill(0);
    drop(open);
    for node in left {
        check_all(&ring, node, &written);
    }
}

#[test]
fn large_file_when_its_owner_is_gone_then_read_before_it_is_taken_over_and_after() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(4);
    ring.mount_all(&options("ec=2+2"));
    // More than is sent at once, in pieces as a program writes it, so that much is sent ahead.
    let bytes = contents(3, (20 << 20) + 12_345);
    let mut file = File::create(ring.at(0, "large")).unwrap();
    for piece in bytes.chunks(1 << 20) {
        file.write_all(piece).unwrap();
    }
    drop(file);
    // Another one is written again where it had been sent already.
    let mut changed = bytes.clone();
    let mut file = File::create(ring.at(0, "changed")).unwrap();
    for piece in bytes.chunks(1 << 20) {
        file.write_all(piece).unwrap();
    }
    file.write_all_at(b"not what was there when it was sent", 70_000).unwrap();
    changed[70_000..70_035].copy_from_slice(b"not what was there when it was sent");
    drop(file);
    assert!(wait_for(LONG, || (1..4).all(|node| held(&ring, node) == 2)), "{}", safety(&ring, 1));
    ring.kill(0);
    let found = std::cell::RefCell::new(Vec::new());
    let read = || match fs::read(ring.at(2, "large")) {
        Ok(bytes) => {
            *found.borrow_mut() = bytes;
            true
        }
        Err(_) => false,
    };
    assert!(wait_for(LONG, read), "{:?}", fs::read(ring.at(2, "large")).err());
    assert!(*found.borrow() == bytes, "{} bytes", found.borrow().len());
    // A part of it, from another node.
    let mut part = vec![0; 100_000];
    let mut file = None;
    assert!(wait_for(LONG, || File::open(ring.at(3, "large")).is_ok()));
    file.replace(File::open(ring.at(3, "large")).unwrap()).into_iter().for_each(drop);
    let mut file = file.unwrap();
    file.read_exact(&mut part).unwrap();
    assert!(part == bytes[..100_000]);
    check_all(&ring, 3, &[("large".into(), bytes), ("changed".into(), changed)]);
}

#[test]
fn fragments_when_another_node_joins_then_some_move_there_and_give_the_file_back() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(4);
    let level = options("ec=2+1");
    for node in 0..3 {
        ring.mount(node, &level);
    }
    let files: Vec<(String, Vec<u8>)> =
        (0..8u64).map(|at| (format!("f{at}"), contents(at, 1_000_000))).collect();
    for (name, bytes) in &files {
        fs::write(ring.at(0, name), bytes).unwrap();
    }
    assert!(wait_for(LONG, || held(&ring, 1) == 8 && held(&ring, 2) == 8));
    ring.mount(3, &level);
    let (code, text) = ring.site.run(&["cluster", "rebalance", &ring.site.text("mnt1")]);
    assert_eq!(code, 0, "{text}");
    // What each had said of itself may have been older than the files.
    let moved = || {
        held(&ring, 3) > 0
            || ring.site.run(&["cluster", "rebalance", &ring.site.text("mnt0")]).0 != 0
                && held(&ring, 3) > 0
    };
    assert!(wait_for(LONG, moved), "{}\n{}", safety(&ring, 0), ring.log(0));
    let rest = || held(&ring, 1) + held(&ring, 2) + held(&ring, 3) == 16;
    assert!(wait_for(LONG, rest), "{} {}", held(&ring, 1), held(&ring, 3));
    assert!(held(&ring, 3) <= 8, "more than its share");
    ring.kill(0);
    check_all(&ring, 3, &files);
    check_all(&ring, 1, &files);
}

#[test]
fn node_with_fragments_when_drained_then_they_move_before_it_leaves() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(4);
    ring.mount_all(&options("ec=2+1"));
    let (written, open) = write_all(&ring, 0);
    let all = written.len() as u64;
    assert!(wait_for(LONG, || (1..4).map(|node| held(&ring, node)).sum::<u64>() == 2 * all));
    let (_, text) = ring.site.run(&["cluster", "status", "--json", &ring.site.text("mnt1")]);
    let number = serde_json::from_str::<serde_json::Value>(&text).unwrap()["this"].to_string();
    let (code, text) = ring.site.run(&["cluster", "drain", &number, &ring.site.text("mnt0")]);
    assert_eq!(code, 0, "{text}\n{}", ring.log(1));
    assert!(wait_for(LONG, || held(&ring, 2) == all && held(&ring, 3) == all));
    ring.kill(0);
    drop(open);
    check_all(&ring, 2, &written);
}

#[test]
fn fragments_when_too_few_nodes_can_take_them_then_status_says_so_and_all_is_written_back() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    let (code, text) = ring.mount_with(0, &["--redundancy", "ec=4"]);
    assert!(code != 0 && text.contains("ec=K+M"), "{text}");
    ring.mount_all(&options("ec=4+2,async"));
    fs::write(ring.at(0, "alone"), b"closed").unwrap();
    let back = || fs::read(ring.backing("alone")).is_ok_and(|bytes| bytes == b"closed");
    assert!(wait_for(LONG, back));
    let (_, text) = ring.site.run(&["cluster", "status", &ring.site.text("mnt0")]);
    assert!(text.contains("takes 5 others, 1 can be had"), "{text}");
    ring.umount_all();
}
