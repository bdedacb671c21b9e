//! What a change costs does not depend on how much of its kind there is: names of a file, entries of a
//! directory, extended attributes, open files, changed pieces, conflicts. Counted are questions to the
//! backing store and the tiers, not seconds.

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_node::{Ino, WritebackPolicy};
use forebay_store::decorators::{Interceptor, Operation, Verdict};
use rig::{CONTEXT, KIB, MIB, Rig};

/// Counts what it stands before.
#[derive(Default)]
struct Counter(AtomicU64);

impl Interceptor for Counter {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        self.0.fetch_add(1, Ordering::Relaxed);
        Verdict::Pass
    }
}

/// Changes that are counted.
const CHANGES: usize = 100;

/// Makes much of one kind, and says how to make one change more.
type Kind = fn(&Rig, usize) -> Change;
type Change = Box<dyn Fn(&Rig, usize)>;

fn link(rig: &Rig, file: Ino, name: &str) {
    rig.node().link(&CONTEXT, file, Ino::ROOT, name.as_bytes()).unwrap();
}

fn names(rig: &Rig, count: usize) -> Change {
    rig.put("name-0", b"bytes");
    let file = rig.ino("name-0");
    (1..count).for_each(|number| link(rig, file, &format!("name-{number}")));
    Box::new(move |rig, step| {
        link(rig, file, &format!("more-{step}"));
        rig.node().writeback().reconcile(file).unwrap();
        rig.node().unlink(&CONTEXT, Ino::ROOT, format!("name-{step}").as_bytes()).unwrap();
        rig.node().writeback().reconcile(file).unwrap();
    })
}

fn entries(rig: &Rig, count: usize) -> Change {
    (0..count).for_each(|number| rig.put(&format!("file-{number}"), b"bytes"));
    Box::new(|rig, step| {
        let name = format!("more-{step}");
        rig.put(&name, b"bytes");
        rig.node().writeback().reconcile(rig.ino(&name)).unwrap();
    })
}

fn attributes(rig: &Rig, count: usize) -> Change {
    rig.put("file", b"bytes");
    let file = rig.ino("file");
    let set = move |rig: &Rig, number: usize, value: &[u8]| {
        let name = format!("user.{number}");
        rig.node().set_xattr(&CONTEXT, file, name.as_bytes(), value, 0, false).unwrap();
    };
    (0..count).for_each(|number| set(rig, number, b"first"));
    Box::new(move |rig, step| {
        set(rig, step % 10, format!("value {step}").as_bytes());
        rig.node().writeback().reconcile(file).unwrap();
    })
}

fn open_files(rig: &Rig, count: usize) -> Change {
    for number in 0..count {
        let fh = rig.create(&format!("open-{number}"));
        rig.write(fh, 0, b"bytes");
    }
    entries(rig, 0)
}

fn pieces(rig: &Rig, count: usize) -> Change {
    let len = count as u64 * 128 * KIB;
    std::fs::File::create(rig.backing().join("pieces")).unwrap().set_len(len).unwrap();
    let fh = rig.open("pieces", libc::O_RDWR);
    (0..count).for_each(|piece| rig.write(fh, piece as u64 * 128 * KIB, b"changed"));
    Box::new(move |rig, step| {
        rig.write(fh, step as u64 % 10 * 128 * KIB, b"again");
        rig.node().fsync(&CONTEXT, fh, false).unwrap();
    })
}

fn conflicts(rig: &Rig, count: usize) -> Change {
    for number in 0..count {
        let name = format!("both-{number}");
        rig.put(&name, b"ours");
        std::fs::write(rig.backing().join(&name), b"of others").unwrap();
    }
    rig.drain();
    assert_eq!(rig.node().writeback().conflicts().0, count as u64);
    entries(rig, 0)
}

/// Operations of the store and of tiers for a hundred changes, written back, and perhaps a sync.
fn cost(kind: Kind, count: usize, with_sync: bool) -> u64 {
    let counter = Arc::new(Counter::default());
    let mut rig = Rig::unstarted(&[64 * MIB], counter.clone(), |config| {
        config.writeback = WritebackPolicy::OnEviction;
        config.attr_timeout = Duration::from_secs(3600);
    });
    rig.by_tier = Some(counter.clone());
    rig.start();
    let change = kind(&rig, count);
    let sync = |rig: &Rig| {
        let until = std::time::Instant::now() + Duration::from_secs(300);
        let synced = rig.node().writeback().sync_subtree(Ino::ROOT, until, &mut |_| true).unwrap();
        assert!(synced.complete && !synced.cut_short, "{synced:?}");
    };
    sync(&rig);
    let before = counter.0.load(Ordering::Relaxed);
    (0..CHANGES).for_each(|step| change(&rig, step));
    if with_sync {
        sync(&rig);
    }
    counter.0.load(Ordering::Relaxed) - before
}

#[test]
fn changes_when_there_is_much_of_their_kind_then_cost_as_with_little() {
    // A sync writes files back that are open to be written, with all their pieces: that is not one change.
    let kinds: [(&str, Kind, usize, bool); 5] = [
        ("names of a file", names, 100, true),
        ("entries of a directory", entries, 100, true),
        ("open files", open_files, 50, false),
        ("changed pieces", pieces, 50, false),
        ("conflicts", conflicts, 50, true),
    ];
    let mut grows = Vec::new();
    for (what, kind, count, with_sync) in kinds {
        let (few, many) = (cost(kind, count, with_sync), cost(kind, 4 * count, with_sync));
        println!("{what}: {few} operations with {count}, {many} with {}", 4 * count);
        if many > few + few / 4 {
            grows.push(format!("{what}: {few}, then {many}"));
        }
    }
    assert!(grows.is_empty(), "{grows:?}");
}

#[test]
fn attributes_when_there_are_many_then_a_change_costs_one_look_at_each() {
    const FEW: usize = 15;
    let (few, many) = (cost(attributes, FEW, true), cost(attributes, 4 * FEW, true));
    let looks = (CHANGES * 3 * FEW) as u64;
    assert!(many <= few + looks + few / 4, "{few} operations, then {many}");
}
