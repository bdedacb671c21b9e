//! Write-back of everything while removed files are kept by those who have them open.

mod rig;

use std::time::{Duration, Instant};

use forebay_node::{Ino, Remaining};
use rig::{CONTEXT, MIB, Rig, noise};

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(20);
/// Longer than a drain takes that waits for nobody.
const MEANWHILE: Duration = Duration::from_millis(300);

fn drain(rig: &Rig) -> Remaining {
    rig.node().drain(Instant::now() + LIMIT, &mut |_| true).unwrap()
}

#[test]
fn drain_when_a_removed_file_is_closed_meanwhile_then_ends_after_it() {
    let rig = Rig::small(16 * MIB);
    let fh = rig.create("gone");
    rig.write(fh, 0, &noise(1, 10_000));
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"gone").unwrap();
    let left = std::thread::scope(|scope| {
        let drained = scope.spawn(|| (drain(&rig), rig.used()));
        std::thread::sleep(MEANWHILE);
        rig.node().release(fh);
        drained.join().unwrap()
    });
    assert_eq!(left, (Remaining::default(), 0));
}

#[test]
fn drain_when_a_removed_file_stays_open_then_says_that_it_is_in_use() {
    let rig = Rig::small(16 * MIB);
    rig.put("stays", b"written back");
    let fh = rig.create("gone");
    rig.write(fh, 0, &noise(1, 10_000));
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"gone").unwrap();
    let begun = Instant::now();
    let left = drain(&rig);
    assert_eq!((left.entries, left.in_use), (0, true), "{left:?}");
    assert!(begun.elapsed() < LIMIT / 2, "{:?}", begun.elapsed());
    assert_eq!(rig.plain("stays"), b"written back");
    rig.node().release(fh);
    assert_eq!((drain(&rig), rig.node().removed_in_use()), (Remaining::default(), 0));
}
