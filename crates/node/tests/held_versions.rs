//! Files that programs have open while others put other files in their place in the backing store: an open
//! file stays the one that was opened.

mod rig;

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_node::{Ino, NodeError};
use forebay_store::decorators::Transparent;
use rig::{CONTEXT, KIB, MIB, Rig};

const SIZE: usize = 640 << 10;

/// A node that looks at the backing store each time, and a file below.
fn rig(tier: u64) -> Rig {
    let rig =
        Rig::new(&[tier], Arc::new(Transparent), |config| config.attr_timeout = Duration::ZERO);
    std::fs::write(rig.backing().join("file"), vec![b'1'; SIZE]).unwrap();
    rig
}

/// Others put another file in its place. It is shorter, so that its end could be taken for that of the
/// old one.
fn replace(rig: &Rig) -> Vec<u8> {
    let new = vec![b'2'; 300 << 10];
    std::fs::write(rig.backing().join("new"), &new).unwrap();
    std::fs::rename(rig.backing().join("new"), rig.backing().join("file")).unwrap();
    new
}

/// Everything that makes the node look at the backing store.
fn look(rig: &Rig, ino: Ino) {
    let node = rig.node();
    for _ in 0..2 {
        drop(node.getattr(&CONTEXT, ino));
        drop(node.lookup(&CONTEXT, Ino::ROOT, b"file"));
        drop(node.read_dir(&CONTEXT, Ino::ROOT, 0, 100, true, &mut |_| true));
    }
}

/// Which of the pieces of an open file are read; each is that of the old one, or can't be had.
fn read_pieces(rig: &Rig, fh: u64, what: &str) -> Vec<bool> {
    let mut buffer = vec![0; 64 << 10];
    let mut read_at = |at: usize| match rig.node().read(&CONTEXT, fh, at as u64, &mut buffer) {
        Ok(read) => {
            assert!(buffer[..read] == vec![b'1'; 64 << 10], "{read} bytes at {at}: {what}");
            true
        }
        Err(error) => {
            assert!(is_stale(&error), "at {at}: {error}, {what}");
            false
        }
    };
    (0..SIZE).step_by(64 << 10).map(&mut read_at).collect()
}

/// Whether anything of a file is on the tier.
fn has_object(rig: &Rig, ino: Ino) -> bool {
    let fans = std::fs::read_dir(rig.config.tiers[0].dir.join("objects")).unwrap();
    let mut names = fans.flat_map(|fan| std::fs::read_dir(fan.unwrap().path()).unwrap());
    let name = format!("{:016x}", ino.0);
    names.any(|found| found.unwrap().file_name().to_str().unwrap().starts_with(&name))
}

fn is_stale(error: &NodeError) -> bool {
    matches!(error, NodeError::Posix(errno) if errno.raw_os_error() == libc::ESTALE)
        || matches!(error, NodeError::Meta(forebay_meta::Error::Stale(_)))
}

#[test]
fn open_file_when_others_put_another_in_its_place_then_it_stays_the_one_that_was_opened() {
    // All of it has room on the first tier, some on the second, and nothing on the third.
    for tier in [16 * MIB, 320 * KIB, 64 * KIB] {
        for (flags, looked) in [
            (libc::O_RDONLY, true),
            (libc::O_RDONLY, false),
            (libc::O_RDWR, true),
            (libc::O_RDWR, false),
        ] {
            let what = format!("a tier of {tier}, opened by {flags}, looked at: {looked}");
            let rig = rig(tier);
            let (old, fh) = (rig.ino("file"), rig.open("file", flags));
            let mut buffer = vec![0; 64 << 10];
            for at in [0, 64 << 10, 0, 64 << 10] {
                rig.node().read(&CONTEXT, fh, at, &mut buffer).unwrap();
            }
            let new = replace(&rig);
            if looked {
                look(&rig, old);
                assert_ne!(rig.ino("file"), old, "{what}");
            }
            let pieces = read_pieces(&rig, fh, &what);
            assert!(pieces.iter().all(|read| *read), "it was opened before: {pieces:?}, {what}");
            let attr = rig.node().getattr(&CONTEXT, old).unwrap().attr;
            assert_eq!(attr.size, SIZE as u64, "{what}");
            if flags == libc::O_RDWR {
                // Nobody would find it any more.
                let written = rig.node().write(&CONTEXT, fh, 200 << 10, b"ours");
                assert!(written.is_err_and(|error| is_stale(&error)), "{what}");
                read_pieces(&rig, fh, &what);
            }
            look(&rig, old);
            let other = rig.open("file", libc::O_RDWR);
            assert!(rig.read_all(other) == new, "{what}");
            rig.write(other, 100 << 10, b"here");
            read_pieces(&rig, fh, &what);
            rig.node().release(other);
            rig.node().release(fh);
            rig.drain();
            let mut wanted = new;
            wanted[100 << 10..][..4].copy_from_slice(b"here");
            assert!(rig.plain("file") == wanted, "{what}");
            assert!(rig.get("file") == wanted, "{what}");
            let mut left = rig.left_in_backing();
            left.retain(|name| !name.starts_with(".forebay"));
            assert_eq!(left, ["file"], "{what}");
            assert!(!has_object(&rig, old), "{what}");
        }
    }
}

#[test]
fn open_file_when_others_take_it_away_then_what_is_here_is_read_until_it_is_closed() {
    for tier in [16 * MIB, 320 * KIB, 64 * KIB] {
        for moved in [false, true] {
            let what = format!("a tier of {tier}, moved: {moved}");
            let rig = rig(tier);
            let (old, fh) = (rig.ino("file"), rig.open("file", libc::O_RDWR));
            let mut buffer = vec![0; 64 << 10];
            for at in [0, 64 << 10, 0, 64 << 10] {
                rig.node().read(&CONTEXT, fh, at, &mut buffer).unwrap();
            }
            let (at, away) = (rig.backing().join("file"), rig.backing().join("away"));
            if moved { std::fs::rename(at, away) } else { std::fs::remove_file(at) }.unwrap();
            look(&rig, old);
            // A directory whose listing took long on a busy machine rests for longer.
            let is_gone = || rig.node().lookup(&CONTEXT, Ino::ROOT, b"file").unwrap().is_none();
            forebay_testing::wait_until("it is seen that its name is gone", is_gone);
            let pieces = read_pieces(&rig, fh, &what);
            assert!(pieces.iter().all(|read| *read), "it was opened before: {pieces:?}, {what}");
            let attr = rig.node().getattr(&CONTEXT, old).unwrap().attr;
            assert_eq!((attr.size, attr.nlink), (SIZE as u64, 0), "{what}");
            let written = rig.node().write(&CONTEXT, fh, 0, b"ours");
            assert!(written.is_err_and(|error| is_stale(&error)), "{what}");
            rig.node().release(fh);
            rig.drain();
            assert!(!has_object(&rig, old), "{what}");
            if moved {
                assert!(rig.plain("away") == vec![b'1'; SIZE], "{what}");
            }
        }
    }
}

#[test]
fn open_file_when_others_move_it_and_write_into_it_then_no_read_mixes_versions() {
    for tier in [320 * KIB, 64 * KIB] {
        let what = format!("a tier of {tier}");
        let rig = rig(tier);
        let (old, fh) = (rig.ino("file"), rig.open("file", libc::O_RDONLY));
        let mut buffer = vec![0; 64 << 10];
        for at in [0, 64 << 10, 0, 64 << 10] {
            rig.node().read(&CONTEXT, fh, at, &mut buffer).unwrap();
        }
        let away = rig.backing().join("away");
        std::fs::rename(rig.backing().join("file"), &away).unwrap();
        look(&rig, old);
        assert!(read_pieces(&rig, fh, &what).iter().all(|read| *read), "{what}");
        let file = std::fs::File::options().write(true).open(away).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![b'3'; SIZE], 0).unwrap();
        let read = read_pieces(&rig, fh, &what);
        assert!(read.iter().any(|read| !read), "all of it can't be on the tier, {what}");
        rig.node().release(fh);
    }
}

#[test]
fn open_file_that_others_have_removed_when_many_more_are_removed_then_its_attributes_are_known() {
    let rig = rig(16 * MIB);
    let (old, fh) = (rig.ino("file"), rig.open("file", libc::O_RDONLY));
    std::fs::remove_file(rig.backing().join("file")).unwrap();
    look(&rig, old);
    for number in 0..4200 {
        let name = format!("n{number}");
        let new = rig.create(&name);
        rig.node().release(new);
        rig.node().unlink(&CONTEXT, Ino::ROOT, name.as_bytes()).unwrap();
    }
    let attr = rig.node().getattr(&CONTEXT, old).unwrap().attr;
    assert_eq!((attr.size, attr.nlink), (SIZE as u64, 0));
    rig.node().release(fh);
}

#[test]
fn attributes_by_a_descriptor_when_they_find_out_that_the_file_was_removed_then_are_those_it_had() {
    for moved_away in [false, true] {
        for written in [false, true] {
            let rig = rig(4 * MIB);
            let (ino, fh) = (rig.ino("file"), rig.open("file", libc::O_RDWR));
            if written {
                rig.write(fh, 0, b"1");
                let until = Instant::now() + Duration::from_secs(5);
                rig.node().writeback().sync_subtree(Ino::ROOT, until, &mut |_| true).unwrap();
            }
            match moved_away {
                true => std::fs::rename(rig.backing().join("file"), rig.dir.join("away")),
                false => std::fs::remove_file(rig.backing().join("file")),
            }
            .unwrap();
            for _ in 0..2 {
                let found = rig.node().getattr(&CONTEXT, ino).unwrap().attr;
                // One that was written may be made again when it is closed.
                let links = if written { found.nlink } else { 0 };
                assert_eq!((found.size, found.nlink), (SIZE as u64, links), "{moved_away}");
            }
            rig.node().release(fh);
        }
    }
}
