//! What policies take from the allocator: nothing for an access once they are warm, and at most 100
//! bytes for each resident object.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use forebay_core::policy::replay::Cache;
use forebay_core::policy::{
    AccessKind, Admission, Candidate, Hint, NAMES, Policy, PolicyConfig, Room, by_name,
};

thread_local! {
    // Of this thread alone: tests run beside each other.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn note(bytes: isize) {
    // A thread that is going down has no counters any more.
    _ = HELD.try_with(|held| held.set(held.get() + bytes));
    if bytes > 0 {
        _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
    }
}

// SAFETY: every call goes to the system's allocator unchanged; the counters are beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SIZE: u64 = 4096;

/// Fills a tier of so many objects; returns the policy and what it holds of the allocator.
fn filled(name: &str, objects: u64, hinted: bool) -> (Box<dyn Policy>, isize) {
    let config = PolicyConfig { admit_large: true, ..PolicyConfig::new(objects * SIZE) };
    let sequence: Vec<u64> = (0..2 * objects).map(|at| at % objects).collect();
    let mut victims = Vec::new();
    let before = HELD.get();
    let mut policy = by_name(name, &config).expect("a policy");
    if hinted {
        policy.hint(&Hint::Append { job: 1, objects: &sequence });
    }
    for object in 0..objects {
        policy.observe(&[forebay_core::policy::Access {
            object,
            size: SIZE,
            kind: AccessKind::Read,
        }]);
        let candidate = Candidate { object, size: SIZE, resident: 0, prefetch: false };
        let room = Room {
            capacity: objects * SIZE,
            used: object * SIZE,
            limit: usize::MAX,
            busy: &|_| false,
        };
        let admission = policy.admit(&candidate, &room, &mut victims);
        // Belady-size does not keep what has no known use, the printed heuristic not the first file.
        let keeps = name != "belady-size" && (name != "heuristic-printed" || object > 0);
        assert!(admission == Admission::Whole || !keeps, "{name}");
        policy.inserted(object, SIZE);
    }
    assert_eq!(policy.snapshot().objects, objects, "{name}");
    (policy, HELD.get() - before)
}

/// All policies but the one that is made of others, and the one that differs in its decisions only.
fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().copied().filter(|name| !matches!(*name, "portfolio" | "heuristic-printed"))
}

fn assert_small(name: &str, objects: u64, most: f64) {
    let (_policy, held) = filled(name, objects, false);
    let each = held as f64 / objects as f64;
    assert!(each <= most, "{name}: {each:.1} bytes an object at {objects}");
}

/// With every object known. The references, two for each object, are not counted: they are the
/// sequence's, not the residents'.
fn assert_small_when_known(name: &str, objects: u64) {
    let mut references = forebay_core::reference::References::new();
    let sequence: Vec<u64> = (0..2 * objects).map(|at| at % objects).collect();
    let before = HELD.get();
    references.hint(&Hint::Append { job: 1, objects: &sequence });
    let of_references = HELD.get() - before;
    let (_policy, held) = filled(name, objects, true);
    let each = (held - of_references) as f64 / objects as f64;
    assert!(each <= 100.0, "{name}: {each:.1} bytes a known object at {objects}");
}

#[test]
fn a_million_objects_then_at_most_a_hundred_bytes_each() {
    names().for_each(|name| assert_small(name, 1_000_000, 100.0));
}

#[test]
fn a_million_known_objects_then_at_most_a_hundred_bytes_each() {
    for name in ["heuristic", "min", "min-whole", "belady"] {
        assert_small_when_known(name, 1_000_000);
    }
}

#[test]
fn just_after_everything_has_grown_then_at_most_a_hundred_bytes_each_and_auto_some_more() {
    // Tables double at five eighths of a power of two. The shadows of `auto`, of at most 2^15 objects,
    // count less the larger the tier is.
    for name in names() {
        assert_small(name, (1 << 17) / 8 * 5 + 1, if name == "auto" { 130.0 } else { 100.0 });
    }
}

#[test]
fn accesses_in_the_steady_state_then_no_allocation() {
    for name in NAMES {
        let trace: Vec<u64> = {
            let mut state = 7u64;
            let mut unit = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 11) as f64 / (1u64 << 53) as f64
            };
            (0..150_000).map(|_| (unit().powi(2) * 3_000.0) as u64).collect()
        };
        let mut cache = Cache::new(name, &PolicyConfig::new(1_000 * SIZE)).expect("a policy");
        cache.policy().hint(&Hint::Append { job: 0, objects: &trace });
        // The sequence goes on after them, so that what is known stays as much.
        let (warm, steady) = trace[..100_000].split_at(80_000);
        for object in warm {
            cache.request(*object, SIZE);
        }
        let calls = CALLS.get();
        for object in steady {
            cache.request(*object, SIZE);
        }
        assert_eq!(CALLS.get() - calls, 0, "{name}: allocations in 20,000 accesses");
    }
}
