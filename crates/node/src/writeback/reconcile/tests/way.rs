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
