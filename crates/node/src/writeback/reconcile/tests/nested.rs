//! Removed directories within removed directories, deeper than a worker's stack follows.

use super::*;

/// Makes directories within each other, each with a file, brings them in line and removes them all as
/// `rm -r` does. What a sync of the root makes of it, and the operations that it costs the backing store.
fn sync_after_removal(depth: usize) -> (crate::writeback::reconcile::Synced, u64) {
    let counter = Arc::new(Counter::default());
    let bench = Bench::with(counter.clone(), |_| {});
    let meta = &bench.node.meta;
    let mut dirs = vec![Ino::ROOT];
    for _ in 0..depth {
        let at = dirs[dirs.len() - 1];
        let new = NewInode::new(FileKind::Directory, 0o755, 0, 0);
        let dir = meta.create(at, b"d", new, clock::wall_time()).expect("made").ino;
        bench.write_unseen(dir, "f", b"x");
        dirs.push(dir);
    }
    bench.drained();
    for pair in dirs.windows(2).rev() {
        meta.unlink(pair[1], b"f", clock::wall_time(), false).expect("unlinked");
        meta.rmdir(pair[0], b"d", clock::wall_time(), false).expect("removed");
    }
    let before = counter.all.load(Ordering::Relaxed);
    let until = Instant::now() + Duration::from_secs(60);
    let synced = bench.node.writeback.sync_subtree(Ino::ROOT, until, &mut |_| true);
    let cost = counter.all.load(Ordering::Relaxed) - before;
    assert_eq!(bench.names(""), Vec::<String>::new(), "{depth}");
    (synced.expect("the namespace works"), cost)
}

#[test]
fn deep_tree_removed_when_synced_then_gone_at_a_cost_in_proportion_and_nothing_counts_as_open() {
    let (synced, cost) = sync_after_removal(150);
    assert_eq!((synced.complete, synced.in_use, &synced.left), (true, 0, &Remaining::default()));
    let (synced, cost_of_four_times) = sync_after_removal(600);
    assert_eq!((synced.complete, synced.in_use, &synced.left), (true, 0, &Remaining::default()));
    assert!(cost_of_four_times < 5 * cost, "{cost} operations, and {cost_of_four_times}");
}
