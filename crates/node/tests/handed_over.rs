//! What one daemon of a mount hands to the next in an upgrade.
#![cfg(feature = "failpoints")]

mod rig;

use std::time::Duration;

use forebay_node::Node;
use rig::{KIB, MIB, Rig, noise, same};

/// As when the disk of the state is full.
#[test]
fn closed_file_whose_record_could_not_be_written_when_handed_over_then_the_next_daemon_writes_it() {
    let mut rig = Rig::small(8 * MIB);
    rig.put("file", &noise(1, 100 * KIB));
    rig.drain();
    fail::cfg("node.settle.before_record", "return").unwrap();
    let fh = rig.open("file", libc::O_RDWR);
    let data = noise(2, 300 * KIB);
    rig.write(fh, 0, &data);
    rig.node().release(fh);
    let limit = Duration::from_secs(20);
    rig.node().rest(limit).unwrap();
    let state = rig.node().hand_over_state(limit).unwrap();
    fail::remove("node.settle.before_record");
    rig.crash();
    rig.node = Some(Node::start_after(rig.config.clone(), Some(&state)).unwrap());
    assert_eq!(rig.size("file"), 300 * KIB, "as it was written");
    rig.drain();
    same(&rig.plain("file"), &data, "in the backing store");
}
