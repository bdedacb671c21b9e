//! A backing store without room: the reason is told as long as something is kept back by it.

use super::*;

#[test]
fn full_store_when_it_keeps_files_back_then_the_reason_says_what_to_do_until_all_are_written() {
    let flaky = Arc::new(Flaky::new(7));
    let bench = Bench::with(flaky.clone(), |_| {});
    let writeback = &bench.node.writeback;
    let first = bench.write("first", b"bytes");
    let second = bench.write("second", b"bytes");
    bench.write("third", b"bytes");
    for (ino, errno) in [(first, libc::ENOSPC), (second, libc::EDQUOT)] {
        flaky.set_rules(vec![Rule::always(Operation::Commit, errno)]);
        writeback.reconcile(ino).expect_err("there is no room");
        let why = writeback.write_error(ino).expect("noted");
        assert!(why.contains("is full") && why.contains("make room"), "{why}");
    }
    flaky.set_rules(vec![]);
    let told = || writeback.last_backlog_error().unwrap_or_default();
    assert!(told().starts_with("/second: "), "{}", told());
    writeback.reconcile(second).expect("there is room");
    assert!(told().starts_with("/first: ") && told().contains("make room"), "{}", told());
    writeback.reconcile(first).expect("there is room");
    assert_eq!((told(), writeback.backlog_len() > 0), (String::new(), true));
    bench.drained();
}

#[test]
fn sync_of_what_a_full_store_keeps_back_when_its_time_passes_then_it_fails_with_the_reason() {
    let flaky = Arc::new(Flaky::new(7));
    let bench = Bench::with(flaky.clone(), |_| {});
    bench.write("file", b"bytes");
    flaky.set_rules(vec![Rule::always(Operation::Commit, libc::ENOSPC)]);
    for limit in [0, 1, 100, 400] {
        let until = Instant::now() + Duration::from_millis(limit);
        let synced = bench.node.writeback.sync_subtree(Ino::ROOT, until, &mut |_| true);
        let synced = synced.expect("it ends");
        assert!(!synced.complete && synced.left.entries <= 1, "{limit} ms: {synced:?}");
        if limit >= 100 {
            let [(path, why)] = &synced.failures[..] else { panic!("{synced:?}") };
            assert!(path == b"file" && why.contains("make room"), "{why}");
        }
    }
    flaky.set_rules(vec![]);
    bench.drained();
}
