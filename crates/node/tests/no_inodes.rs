//! A tier whose file system has no inodes left, though it has bytes: what has no place there goes to the
//! next tier, or past the tiers.

mod rig;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use forebay_node::Ino;
use forebay_store::decorators::Transparent;
use forebay_testing::wait_until;
use rig::{CONTEXT, KIB, MIB, Rig, noise, same};

/// File systems in memory with so many inodes, mounted at the tiers; unmounted on drop.
struct Tiers(Vec<PathBuf>);

impl Tiers {
    fn mount(rig: &Rig, inodes: &[u64]) -> Option<Self> {
        let mut tiers = Tiers(Vec::new());
        for (tier, inodes) in rig.config.tiers.iter().zip(inodes) {
            std::fs::create_dir_all(&tier.dir).unwrap();
            let how = format!("size=64m,nr_inodes={inodes}");
            let mut mount = Command::new("mount");
            let mount = mount.args(["-t", "tmpfs", "-o", &how, "none"]);
            if !mount.arg(&tier.dir).status().is_ok_and(|done| done.success()) {
                eprintln!("skipped: no mounts here");
                return None;
            }
            tiers.0.push(tier.dir.clone());
        }
        Some(tiers)
    }
}

impl Drop for Tiers {
    fn drop(&mut self) {
        for tier in &self.0 {
            drop(Command::new("umount").arg("-l").arg(tier).status());
        }
    }
}

const FILES: u64 = 400;
const INODES: u64 = 600;

fn name(file: u64) -> String {
    format!("file-{file}")
}

fn put_and_get(rig: &Rig) {
    for file in 0..FILES {
        rig.put(&name(file), &noise(file, 5000));
    }
    for file in 0..FILES {
        same(&rig.get(&name(file)), &noise(file, 5000), &name(file));
    }
}

fn check_below(rig: &Rig) {
    rig.drain();
    for file in 0..FILES {
        same(&rig.plain(&name(file)), &noise(file, 5000), &name(file));
    }
}

/// What the namespace has left for its tables and its log, which lie on the first tier.
fn assert_inodes_are_left(rig: &Rig) {
    let left = rustix::fs::statvfs(&rig.config.tiers[0].dir).unwrap().f_favail;
    assert!(left > 60, "{left} inodes left");
}

fn has_object(rig: &Rig, ino: Ino) -> bool {
    let fans = std::fs::read_dir(rig.config.tiers[0].dir.join("objects")).unwrap().flatten();
    let name = format!("{:016x}", ino.0);
    fans.into_iter().any(|fan| fan.path().join(&name).exists())
}

fn spilled(rig: &Rig) -> usize {
    std::fs::read_dir(rig.backing().join(".forebay/spill")).map_or(0, Iterator::count)
}

#[test]
fn tier_when_its_inodes_are_used_up_then_new_files_go_past_it_and_the_namespace_works_on() {
    let mut rig = Rig::unstarted(&[48 * MIB], Arc::new(Transparent), |_| {});
    let Some(_tiers) = Tiers::mount(&rig, &[INODES]) else { return };
    rig.start();
    put_and_get(&rig);
    assert_inodes_are_left(&rig);
    assert!(spilled(&rig) > 0);
    rig.crash();
    rig.start();
    check_below(&rig);
}

#[test]
fn tier_when_its_inodes_are_used_up_then_new_files_go_to_the_next() {
    let mut rig = Rig::unstarted(&[48 * MIB, 48 * MIB], Arc::new(Transparent), |_| {});
    let Some(_tiers) = Tiers::mount(&rig, &[INODES, 4000]) else { return };
    rig.start();
    put_and_get(&rig);
    assert_inodes_are_left(&rig);
    assert_eq!(spilled(&rig), 0);
    check_below(&rig);
}

#[test]
fn large_files_below_when_the_tier_has_no_inodes_left_then_they_are_read_and_written() {
    let mut rig = Rig::unstarted(&[48 * MIB], Arc::new(Transparent), |_| {});
    let Some(_tiers) = Tiers::mount(&rig, &[INODES]) else { return };
    for file in 0..FILES {
        std::fs::write(rig.backing().join(name(file)), noise(file, 80 * KIB)).unwrap();
    }
    rig.start();
    for file in 0..FILES {
        same(&rig.get(&name(file)), &noise(file, 80 * KIB), &name(file));
        let fh = rig.open(&name(file), libc::O_RDWR);
        rig.write(fh, 70_000, b"written");
        rig.node().release(fh);
    }
    assert_inodes_are_left(&rig);
    rig.drain();
    for file in 0..FILES {
        assert_eq!(rig.plain(&name(file))[70_000..70_007], *b"written", "{file}");
    }
}

#[test]
fn clean_files_when_a_new_one_finds_no_inode_then_they_make_way_for_those_after_it() {
    let mut rig = Rig::unstarted(&[48 * MIB], Arc::new(Transparent), |_| {});
    let Some(_tiers) = Tiers::mount(&rig, &[INODES]) else { return };
    rig.start();
    put_and_get(&rig);
    check_below(&rig);
    wait_until("a new file has a place on the tier", || {
        rig.put("new", b"bytes");
        let on_tier = has_object(&rig, rig.ino("new"));
        rig.node().unlink(&CONTEXT, Ino::ROOT, b"new").unwrap();
        on_tier
    });
}
