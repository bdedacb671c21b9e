//! Files that a rename has replaced, and that nobody can let go of yet.

use forebay_types::Ino;

use super::*;
use crate::residency::residents::Resident;

/// As many as live on at once, and some more.
const MANY: usize = 1024 + 100;

/// Removed files that may have names which nobody has looked at, and bytes that no record tells of.
fn replaced_files(bench: &Bench, count: usize) -> Vec<Ino> {
    let (node, now) = (&bench.node, clock::wall_time());
    let elsewhere = bench.root.join("elsewhere");
    fs::create_dir(&elsewhere).expect("made");
    for number in 0..count {
        let (name, path) = (number.to_string(), bench.root.join(number.to_string()));
        fs::write(&path, "imported").expect("written");
        fs::hard_link(&path, elsewhere.join(&name)).expect("linked");
    }
    let make = |number: usize| {
        let name = number.to_string();
        let ino = bench.find(Ino::ROOT, &name).expect("imported").ino;
        node.meta.unlink(Ino::ROOT, name.as_bytes(), now, true).expect("unlinked");
        let dirty = Resident { tier: 0, whole: true, dirty: true, charged: 1 };
        node.residency.residents.enter(ino.0, Some(dirty));
        ino
    };
    (0..count).map(make).collect()
}

#[test]
fn replaced_files_that_nobody_can_let_go_of_when_more_come_than_live_on_then_all_wait_and_go_later()
{
    let bench = Bench::new();
    let node = &bench.node;
    let inos = replaced_files(&bench, MANY);
    let files: Vec<_> = inos.iter().map(|ino| node.residency.files.get(*ino)).collect();
    // As whoever waits for a slow device has them.
    let in_hand: Vec<_> = files.iter().map(|file| file.location.write()).collect();
    for ino in &inos {
        node.begin_unlink_grace(*ino);
    }
    assert!(inos.iter().all(|ino| node.names.unlink_grace.has(*ino)));
    assert_eq!(node.meta.counts().orphans, MANY as u64);
    drop(in_hand);
    for ino in &inos {
        node.residency.residents.enter(ino.0, None);
    }
    node.let_go_of_replaced();
    assert!(!inos.iter().any(|ino| node.names.unlink_grace.has(*ino)));
    assert_eq!(node.meta.counts().orphans, 0);
}
