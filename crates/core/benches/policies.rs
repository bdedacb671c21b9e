//! What an access costs the processor with a million objects resident: hits, and a stream of which
//! a part misses and evicts. The hints of the policies that look ahead are given before the clock
//! starts. Also prints the bytes of memory that each policy has for an object.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay_core::policy::{
    Access, AccessKind, Admission, Candidate, Hint, Policy, PolicyConfig, Room, by_name,
};

const OBJECTS: u64 = 1_000_000;
const SIZE: u64 = 4096;
const STREAM: usize = 1 << 20;
const BATCH: usize = 1 << 10;

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; the counter is beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A skewed stream over one and a half times as many objects as fit.
fn stream() -> Vec<u64> {
    let mut state = 1u64;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..STREAM).map(|_| (unit().powi(3) * OBJECTS as f64 * 1.5) as u64).collect()
}

/// One request as a driver makes it: observe, and admit on a miss.
fn request(
    policy: &mut dyn Policy,
    resident: &mut [bool],
    victims: &mut Vec<forebay_core::policy::Victim>,
    used: &mut u64,
    object: u64,
) {
    policy.observe(&[Access { object, size: SIZE, kind: AccessKind::Read }]);
    if resident[object as usize] {
        return;
    }
    victims.clear();
    let candidate = Candidate { object, size: SIZE, resident: 0, prefetch: false };
    let room = Room { capacity: OBJECTS * SIZE, used: *used, limit: usize::MAX, busy: &|_| false };
    let admission = policy.admit(&candidate, &room, victims);
    for victim in victims.iter() {
        if std::mem::take(&mut resident[victim.object as usize]) {
            *used -= SIZE;
        }
    }
    if admission == Admission::Whole {
        resident[object as usize] = true;
        *used += SIZE;
        policy.inserted(object, SIZE);
    }
}

fn policies(criterion: &mut Criterion) {
    let stream = stream();
    let mut group = criterion.benchmark_group("access");
    group.throughput(Throughput::Elements(1));
    for name in [
        "lru",
        "lfu",
        "s3fifo",
        "sieve",
        "gdsf",
        "wtinylfu",
        "arc",
        "heuristic",
        "min",
        "min-whole",
        "belady",
        "belady-size",
    ] {
        let before = HELD.load(Ordering::Relaxed);
        let config = PolicyConfig { admit_large: true, ..PolicyConfig::new(OBJECTS * SIZE) };
        let mut policy = by_name(name, &config).expect("a policy");
        let mut resident = vec![false; OBJECTS as usize * 2];
        let (mut used, mut victims) = (0, Vec::new());
        for object in 0..OBJECTS {
            request(&mut *policy, &mut resident, &mut victims, &mut used, object);
        }
        let held = HELD.load(Ordering::Relaxed) - before - resident.len();
        println!("{name}: {} bytes an object", held as u64 / OBJECTS);
        let ahead = matches!(name, "heuristic" | "min" | "min-whole" | "belady" | "belady-size");
        if ahead {
            policy.hint(&Hint::Append { job: 0, objects: &stream });
        }
        // The stream goes round, and what was consumed is hinted again a thousand at a time.
        let (mut next, mut told) = (0, 0);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                request(&mut *policy, &mut resident, &mut victims, &mut used, stream[next]);
                next += 1;
                if ahead && next == told + BATCH {
                    policy.hint(&Hint::Append { job: 0, objects: &stream[told..next] });
                    told = next % STREAM;
                }
                next %= STREAM;
            });
        });
        println!("{name}: {:?}", policy.snapshot());
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_secs(2));
    targets = policies
}
criterion_main!(benches);
