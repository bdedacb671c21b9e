//! The way to what is looked for: handles that can't be asked, and directories that are not there.

use super::*;

/// Fails what is asked of handles while it is to, and counts operations.
#[derive(Default)]
struct Handles {
    fail: AtomicBool,
    all: AtomicU64,
}

impl Interceptor for Handles {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        self.all.fetch_add(1, Ordering::Relaxed);
        Verdict::Pass
    }

    fn before_at(&self, operation: Operation, bytes: u64, label: &Path) -> Verdict {
        let of_handle = operation == Operation::Stat && label.as_os_str().is_empty();
        if of_handle && self.fail.load(Ordering::Relaxed) {
            return Verdict::Fail(libc::EIO);
        }
        self.before(operation, bytes)
    }
}

#[test]
fn name_that_is_absent_when_the_store_can_not_say_what_its_directory_is_then_an_error_that_passes()
{
    let handles = Arc::new(Handles::default());
    let bench = Bench::with(handles.clone(), |_| {});
    bench.mkdir("d");
    let file = bench.write("d/f", b"bytes");
    bench.drained();
    bench.unlink("d/f");
    fs::remove_file(bench.root.join("d/f")).expect("removed");
    handles.fail.store(true, Ordering::Relaxed);
    bench.node.writeback.reconcile(file).expect_err("nobody can say");
    handles.fail.store(false, Ordering::Relaxed);
    bench.drained();
    assert_eq!(bench.names("d"), Vec::<String>::new());
}

#[test]
fn directory_with_a_claim_in_a_deep_tree_when_others_moved_the_tree_then_it_is_sought_in_few_steps()
{
    let handles = Arc::new(Handles::default());
    let bench = Bench::with(handles.clone(), |_| {});
    let mut path = String::from("old");
    let mut dirs = vec![bench.mkdir(&path)];
    for level in 1..=14 {
        path.push_str(&format!("/e{level}"));
        dirs.push(bench.mkdir(&path));
    }
    path.push_str("/x");
    let moved = bench.mkdir(&path);
    bench.drained();
    // A worker was killed when it had announced the move.
    bench.rename(&path, "new", false);
    let new = Link::new(Ino::ROOT, &b"new"[..]);
    bench.node.meta.claim(moved, &new).expect("claimed");
    fs::rename(bench.root.join("old"), bench.root.join("elsewhere")).expect("renamed");
    dirs.iter().chain([&moved]).for_each(|dir| bench.node.writeback.drop_handle(*dir));
    let before = handles.all.load(Ordering::Relaxed);
    let sought = bench.node.writeback.backing_dir(moved);
    assert_eq!(sought.expect_err("not there").class(), Some(forebay_store::ErrorClass::NotFound));
    let steps = handles.all.load(Ordering::Relaxed) - before;
    assert!(steps < 200, "{steps}");
}
