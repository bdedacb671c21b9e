//! A start after a crash of the machine that comes to its end half-way.
#![cfg(feature = "failpoints")]

mod rig;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forebay_store::decorators::Transparent;
use rig::{KIB, MIB, Rig, noise};

fn objects(rig: &Rig, tier: usize) -> usize {
    let fans = std::fs::read_dir(rig.config.tiers[tier].dir.join("objects"));
    let fans = fans.into_iter().flatten().flatten();
    fans.map(|fan| std::fs::read_dir(fan.path()).unwrap().count()).sum()
}

#[test]
fn start_after_a_crash_when_it_ends_half_way_then_the_next_one_believes_no_more() {
    let mut rig = Rig::new(&[MIB, 16 * MIB], Arc::new(Transparent), |_| {});
    let bytes = noise(3, 600 * KIB);
    rig.put("file", &bytes);
    rig.drain();
    for name in ["other", "another"] {
        rig.put(name, &noise(4, 700 * KIB));
    }
    rig.drain();
    assert!(objects(&rig, 1) > 0, "no copy has moved");
    rig.crash();
    let running = rig.dir.join("tier0/state/running");
    std::fs::write(&running, "another boot").unwrap();
    // After the first tier, and before the second.
    fail::cfg("node.recover.tier", "1*return").unwrap();
    let ended = catch_unwind(AssertUnwindSafe(|| rig.start()));
    assert!(ended.is_err(), "the start did not fail");
    fail::remove("node.recover.tier");
    assert!(objects(&rig, 1) > 0, "the second tier was looked at");
    rig.start();
    assert_eq!(rig.used(), 0, "copies of before the crash are believed");
    rig::same(&rig.get("file"), &bytes, "file");
}
