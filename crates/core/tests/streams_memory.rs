//! Steady visits take nothing from the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[path = "streams_load/mod.rs"]
mod load;

thread_local! {
    // Of this thread alone.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; the counter is beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is going down has no counter any more.
        _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn steady_visits_then_no_allocation() {
    let mut load = load::Load::new(200);
    load.warm_up();
    let (calls, bytes) = (CALLS.get(), load.machine.counters().bytes);
    load.visits(10_000);
    assert_eq!(CALLS.get() - calls, 0, "10,000 visits of 200 streams");
    assert!(load.machine.counters().bytes > bytes && load.machine.counters().glitches == 0);
}
