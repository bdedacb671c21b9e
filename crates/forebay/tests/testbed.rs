//! Nodes with networks of their own (`tests/testbed.sh`), which are cut while programs work.

mod acknowledged;
mod netbed;
mod site;

use std::fs;

use acknowledged::Load;
use netbed::Testbed;

#[test]
fn node_when_cut_off_under_load_then_gets_errors_and_nothing_is_lost_or_stale() {
    let Some(bed) = Testbed::up(&["--", "--writeback", "evict"]) else { return };
    for node in ["1", "2", "3"] {
        bed.tell(&["mount", node]);
    }
    let mounts = bed.mounts();
    let mut load = Load::start(mounts.clone());
    let all_work = || {
        let marks: Vec<u64> = (0..3).map(|node| load.written(node)).collect();
        let reads: Vec<u64> = (0..9).map(|at| load.read(at / 3, at % 3)).collect();
        load.wait("work on all nodes", || {
            (0..3).all(|node| load.written(node) > marks[node])
                && (0..9).all(|at| load.read(at / 3, at % 3) > reads[at])
        });
    };
    all_work();
    assert!((0..3).all(|node| load.write_errors(node).is_empty()), "{}", load.told());
    fs::write(mounts[0].join("kept"), b"written before").unwrap();
    let open = fs::File::open(mounts[0].join("kept")).unwrap();
    bed.tell(&["cut", "1"]);
    // That nobody can say what becomes of a file at its last close is no reason to drop it.
    drop(open);
    let since = load.written(0);
    // The one answers with errors, and what it alone has is not to be had elsewhere.
    // Its kernel goes by what it was told for as long as nobody else can change that.
    load.wait("that it answers with errors", || {
        fs::metadata(&mounts[0]).is_err_and(|error| error.raw_os_error() == Some(libc::EIO))
    });
    load.wait("that the node counts as dead", || {
        (1..3).all(|node| load.read_errors(node, 0).contains_key(&libc::EHOSTDOWN))
    });
    assert!(load.written(0) <= since + 1, "{since} {}", load.told());
    // The others go on.
    let (second, third) = (load.written(1), load.written(2));
    load.wait("work on the other nodes", || {
        load.written(1) > second + 5 && load.written(2) > third + 5
    });
    bed.tell(&["heal"]);
    all_work();
    assert_eq!(fs::read(mounts[0].join("kept")).unwrap(), b"written before");
    assert_eq!(fs::read(mounts[1].join("kept")).unwrap(), b"written before");
    assert!((1..3).all(|node| load.write_errors(node).is_empty()), "{}", load.told());
    load.stop();
    for node in 0..3 {
        load.verify(node, &mounts[(node + 1) % 3]);
    }
    for node in ["1", "2", "3"] {
        bed.tell(&["umount", node]);
    }
    for node in 0..3 {
        load.verify(node, &bed.dir().join("backing"));
    }
    load.check();
}

/// The owner of files is cut off while everybody works: others take over what it had acknowledged.
fn owner_is_cut_off(level: &str) {
    let options = ["--", "--writeback", "evict", "--redundancy", level];
    let Some(bed) = Testbed::up(&options) else { return };
    for node in ["1", "2", "3"] {
        bed.tell(&["mount", node]);
    }
    let mounts = bed.mounts();
    let mut load = Load::start(mounts.clone());
    let written: Vec<u64> = (0..3).map(|node| load.written(node)).collect();
    load.wait("work on all nodes", || (0..3).all(|node| load.written(node) > written[node] + 3));
    assert!((0..3).all(|node| load.write_errors(node).is_empty()), "{}", load.told());
    bed.tell(&["cut", "1"]);
    // What it had is had elsewhere; that it is not older than what was acknowledged, the readers see to.
    let mine = bed.dir().join("mnt/2/counter0");
    load.wait("that others have taken over", || fs::read(&mine).is_ok());
    let reads: Vec<u64> = (1..3).map(|node| load.read(node, 0)).collect();
    let written: Vec<u64> = (1..3).map(|node| load.written(node)).collect();
    load.wait("work on the other nodes", || {
        (1..3).all(|node| load.read(node, 0) > reads[node - 1])
            && (1..3).all(|node| load.written(node) > written[node - 1] + 3)
    });
    bed.tell(&["heal"]);
    // It finds that it may not write any more, whatever it has.
    load.wait("that the node is fenced", || load.write_errors(0).contains_key(&libc::ESTALE));
    load.stop();
    for node in 0..3 {
        load.verify(node, &mounts[1 + node % 2]);
    }
    bed.tell(&["kill", "1"]);
    bed.tell(&["mount", "1"]);
    for node in 0..3 {
        load.verify(node, &mounts[0]);
    }
    load.check();
}

#[test]
fn owner_with_copies_when_cut_off_under_load_then_others_have_all_and_it_is_fenced() {
    owner_is_cut_off("replicas=1");
}

#[test]
fn owner_with_fragments_when_cut_off_under_load_then_others_have_all_and_it_is_fenced() {
    owner_is_cut_off("ec=2+1");
}
