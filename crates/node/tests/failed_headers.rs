//! A tier that fails once, at a header or in the middle of a write: of a map and a header that disagree the
//! one counts that says what the object has, and what has changed is dirty.

mod rig;

use std::sync::Arc;

use forebay_node::SetAttr;
use forebay_store::decorators::{Interceptor, Operation, Verdict};
use parking_lot::Mutex;
use rig::{CONTEXT, KIB, MIB, Rig, noise, same};

/// After so many operations of that kind the next one has the verdict.
#[derive(Default)]
struct Once(Mutex<Option<(Operation, u32, Verdict)>>);

impl Once {
    fn arm(&self, operation: Operation, after: u32, verdict: Verdict) {
        *self.0.lock() = Some((operation, after, verdict));
    }
}

impl Interceptor for Once {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        let mut armed = self.0.lock();
        match &mut *armed {
            Some((wanted, after, _)) if *wanted == operation && *after > 0 => {
                *after -= 1;
                Verdict::Pass
            }
            Some((wanted, _, verdict)) if *wanted == operation => {
                let verdict = *verdict;
                *armed = None;
                verdict
            }
            _ => Verdict::Pass,
        }
    }
}

fn rig_over(once: &Arc<Once>) -> Rig {
    let none = Arc::new(forebay_store::decorators::Transparent);
    let mut rig = Rig::unstarted(&[8 * MIB], none, |_| {});
    rig.by_tier = Some(once.clone());
    rig.start();
    rig
}

fn empty(rig: &Rig, name: &str) -> bool {
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    rig.node().setattr(&CONTEXT, rig.ino(name), &set).is_ok()
}

/// Before, what was written and synced after the second try read as the old version where the map lacked it.
#[test]
fn part_whose_emptying_fails_at_any_header_when_emptied_again_then_what_is_synced_stays() {
    for verdict in [Verdict::Fail(libc::EIO), Verdict::Lost(libc::EIO)] {
        for headers in 0..12 {
            let once = Arc::new(Once::default());
            let mut rig = rig_over(&once);
            std::fs::write(rig.backing().join("file"), noise(3, MIB)).unwrap();
            let fh = rig.open("file", libc::O_RDWR);
            rig.write(fh, 500 * KIB, b"a part of it");
            once.arm(Operation::Header, headers, verdict);
            let failed = !empty(&rig, "file");
            *once.0.lock() = None;
            assert!(empty(&rig, "file"), "{verdict:?} after {headers}");
            let data = noise(4, 100 * KIB);
            rig.write(fh, 0, &data);
            rig.node().fsync(&CONTEXT, fh, false).unwrap();
            rig.crash();
            rig.start();
            let what = format!("{verdict:?} after {headers}, failed: {failed}");
            same(&rig.get("file"), &data, &what);
            rig.drain();
            same(&rig.plain("file"), &data, &what);
        }
    }
}

/// A file of several names is written back by what its map says has changed.
#[test]
fn part_that_a_failed_write_has_changed_when_written_back_then_the_backing_store_has_what_is_read()
{
    let once = Arc::new(Once::default());
    let rig = rig_over(&once);
    std::fs::write(rig.backing().join("file"), noise(3, 600 * KIB)).unwrap();
    std::fs::hard_link(rig.backing().join("file"), rig.backing().join("link")).unwrap();
    rig.ino("link");
    // The first extent alone.
    rig.node().residency().warm_file(rig.ino("file"), &mut |_| false).unwrap();
    let fh = rig.open("file", libc::O_RDWR);
    once.arm(Operation::Write, 0, Verdict::Torn { bytes: 30 * KIB, errno: libc::EIO });
    let data = noise(4, 128 * KIB);
    assert!(rig.node().write(&CONTEXT, fh, 0, &data).is_err(), "it was not written to the tier");
    let mut found = [0; 1000];
    // No more of it, or all of it would be fetched.
    assert_eq!(rig.node().read(&CONTEXT, fh, 0, &mut found).unwrap(), 1000);
    assert!(found == data[..1000], "nothing of it is there");
    rig.node().release(fh);
    rig.drain();
    let below = rig.plain("link");
    same(&rig.get("file"), &below, "here and below");
}

/// What the tier is asked for, in this order.
#[derive(Default)]
struct Asked(Mutex<Vec<Operation>>);

impl Interceptor for Asked {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        self.0.lock().push(operation);
        Verdict::Pass
    }
}

/// A power cut may undo the header, and not the removal of the map.
#[test]
fn map_of_what_was_synced_when_it_goes_then_the_header_that_needs_none_is_durable_before() {
    for emptied in [false, true] {
        let asked = Arc::new(Asked::default());
        let none = Arc::new(forebay_store::decorators::Transparent);
        let mut rig = Rig::unstarted(&[8 * MIB], none, |_| {});
        rig.by_tier = Some(asked.clone());
        rig.start();
        std::fs::write(rig.backing().join("file"), noise(3, MIB)).unwrap();
        let fh = rig.open("file", libc::O_RDWR);
        rig.write(fh, 500 * KIB, b"a part of it");
        rig.node().fsync(&CONTEXT, fh, false).unwrap();
        asked.0.lock().clear();
        match emptied {
            true => assert!(empty(&rig, "file")),
            false => {
                rig.node().residency().warm_file(rig.ino("file"), &mut |_| true).unwrap();
            }
        }
        let kinds = [Operation::Header, Operation::Map, Operation::Sync];
        let mut asked = asked.0.lock();
        asked.retain(|operation| kinds.contains(operation));
        let gone = asked.iter().rposition(|operation| *operation == Operation::Map);
        let gone = gone.expect("the map goes");
        assert_eq!(asked[gone - 1], Operation::Sync, "{:?}", &asked[..=gone]);
    }
}
