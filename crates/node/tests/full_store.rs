//! A backing store without room: the reason is told as long as something is kept back by it. And what one
//! name more costs it.

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_node::{Ino, WritebackPolicy};
use forebay_store::decorators::{Flaky, Interceptor, Operation, Rule, Verdict};
use rig::{CONTEXT, MIB, Rig};

fn rig(by: Arc<dyn Interceptor>) -> Rig {
    Rig::new(&[4 * MIB], by, |config| config.writeback = WritebackPolicy::OnEviction)
}

#[test]
fn full_store_when_it_keeps_files_back_then_the_reason_says_what_to_do_until_all_are_written() {
    let flaky = Arc::new(Flaky::new(7));
    let rig = rig(flaky.clone());
    let node = rig.node();
    for name in ["first", "second", "third"] {
        rig.put(name, b"bytes");
    }
    let told = || node.writeback().last_backlog_error().unwrap_or_default();
    for (name, errno) in [("first", libc::ENOSPC), ("second", libc::EDQUOT)] {
        flaky.set_rules([Rule::always(Operation::Commit, errno)]);
        node.writeback().reconcile(rig.ino(name)).expect_err("there is no room");
        assert!(told().starts_with(&format!("/{name}: ")), "{}", told());
        assert!(told().contains("is full") && told().contains("make room"), "{}", told());
    }
    flaky.set_rules([]);
    node.writeback().reconcile(rig.ino("second")).expect("there is room");
    assert!(told().starts_with("/first: "), "what is kept back still: {}", told());
    node.writeback().reconcile(rig.ino("first")).expect("there is room");
    assert_eq!((told(), node.writeback().backlog_len()), (String::new(), 1));
    rig.drain();
}

#[test]
fn sync_of_what_a_full_store_keeps_back_when_its_time_passes_then_it_fails_with_the_reason() {
    let flaky = Arc::new(Flaky::new(7));
    let rig = rig(flaky.clone());
    rig.put("file", b"bytes");
    flaky.set_rules([Rule::always(Operation::Commit, libc::ENOSPC)]);
    for limit in [0, 1, 100, 3000] {
        let until = Instant::now() + Duration::from_millis(limit);
        let synced = rig.node().writeback().sync_subtree(Ino::ROOT, until, &mut |_| true);
        let synced = synced.expect("it ends");
        assert!(!synced.complete, "{limit} ms: {synced:?}");
        if limit >= 3000 {
            let [(path, why)] = &synced.failures[..] else { panic!("{limit} ms: {synced:?}") };
            assert!(path == b"file" && why.contains("make room"), "{why}");
        }
    }
    flaky.set_rules([]);
    rig.drain();
}

/// Counts what the backing store is asked.
#[derive(Default)]
struct Counter(AtomicU64);

impl Interceptor for Counter {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        self.0.fetch_add(1, Ordering::Relaxed);
        Verdict::Pass
    }
}

/// Operations for a hundred names more, and a hundred less, of a file that has so many.
fn cost(count: usize) -> u64 {
    let counter = Arc::new(Counter::default());
    let rig = rig(counter.clone());
    let (node, root) = (rig.node(), Ino::ROOT);
    rig.put("name-0", b"bytes");
    let file = rig.ino("name-0");
    let link = |name: usize| {
        let name = format!("name-{name}");
        node.link(&CONTEXT, file, root, name.as_bytes()).expect("linked");
    };
    (1..count).for_each(link);
    rig.drain();
    let before = counter.0.load(Ordering::Relaxed);
    for step in 0..100 {
        link(count + step);
        node.writeback().reconcile(file).expect("the new name is there");
        node.unlink(&CONTEXT, root, format!("name-{step}").as_bytes()).expect("unlinked");
        node.writeback().reconcile(file).expect("the old one is gone");
    }
    let cost = counter.0.load(Ordering::Relaxed) - before;
    rig.drain();
    let names = std::fs::read_dir(rig.backing()).expect("the store").flatten();
    let names = names.filter(|entry| entry.file_name().to_string_lossy().starts_with("name-"));
    assert_eq!(names.count(), count);
    cost
}

#[test]
fn names_of_a_file_when_there_are_many_then_one_more_is_written_back_as_with_few() {
    let (few, many) = (cost(10), cost(1000));
    // The root may be listed in the background.
    assert!(many <= few + few / 4, "{many} operations with a thousand names, {few} with ten");
}
