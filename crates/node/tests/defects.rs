//! Work in the background that has ended a daemon, as the next one is told.

mod rig;

use std::time::{Duration, Instant};

use forebay_node::{BackgroundKind, BackgroundWork, Coverage, HandOverState, Node, Remaining};
use rig::{MIB, Rig, noise, same};

const FILE: u64 = 700 << 10;

/// Ends the node and starts another one that is told of this.
fn start_again(rig: &mut Rig, defects: &[(BackgroundKind, u64)]) {
    assert!(rig.node().stop(Duration::from_secs(20)), "it does not end");
    rig.crash();
    let work = |(kind, number): &(BackgroundKind, u64)| BackgroundWork {
        kind: (*kind).into(),
        number: *number,
    };
    let defects = defects.iter().map(work).collect();
    let handed_over = HandOverState { defects, ..HandOverState::default() };
    let started = Node::start_after(rig.config.clone(), Some(&handed_over));
    rig.node = Some(started.expect("a node"));
}

fn drained(rig: &Rig) -> Remaining {
    rig.node()
        .writeback()
        .drain(Instant::now() + Duration::from_secs(20), &mut |_| true)
        .expect("it works")
}

fn is_here(rig: &Rig, name: &str) -> bool {
    rig.node().whereabouts(rig.ino(name)).expect("known").residency != Coverage::Absent
}

#[test]
fn work_that_ended_a_daemon_when_it_is_due_again_then_it_is_left_and_all_else_is_done() {
    let mut rig = Rig::small(4 * MIB);
    for name in ["stays", "waits", "goes"] {
        rig.put(name, &noise(1, FILE));
    }
    rig.drain();
    let (stays, waits) = (rig.ino("stays").0, rig.ino("waits").0);
    let defects = [
        (BackgroundKind::Tiering, stays),
        (BackgroundKind::WriteBack, waits),
        (BackgroundKind::Metrics, 0),
        (BackgroundKind::Upkeep, 3),
    ];
    start_again(&mut rig, &defects);
    let mut told = rig.node().set_aside_work();
    told.sort_by(|a, b| a.path.cmp(&b.path));
    let paths: Vec<_> = told.iter().map(|work| work.path.as_slice()).collect();
    assert_eq!(paths, [&b""[..], b"", b"stays", b"waits"], "{told:?}");
    assert!(rig.node().render_metrics().contains("has ended a daemon"));
    rig.put("waits", &noise(2, FILE));
    for number in 0..8 {
        rig.put(&format!("new{number}"), &noise(number, FILE));
        let left = drained(&rig);
        assert_eq!((left.entries, left.refused), (1, 1), "{left:?}");
    }
    assert!(is_here(&rig, "stays") && is_here(&rig, "waits"));
    assert!(!is_here(&rig, "goes"), "nothing was evicted");
    let new = (0..8).filter(|number| is_here(&rig, &format!("new{number}"))).count();
    assert!(new < 8, "the tier has room for fewer");
    same(&rig.plain("waits"), &noise(1, FILE), "the old version");
    same(&rig.get("waits"), &noise(2, FILE), "the new one");
    for number in 0..8 {
        same(&rig.plain(&format!("new{number}")), &noise(number, FILE), "written back");
    }
    // A mount begins without that.
    start_again(&mut rig, &[]);
    assert_eq!(drained(&rig), Remaining::default());
    same(&rig.plain("waits"), &noise(2, FILE), "written back in the end");
    assert!(rig.node().render_metrics().contains("forebay_"));
}
