//! What a visit costs the processor with 10,000 streams, in the deterministic ring: the report of the
//! client that took its chunks, the read that is done, and the choice of the next one.

use criterion::{Criterion, criterion_group, criterion_main};

#[path = "../tests/streams_load/mod.rs"]
mod load;

const STREAMS: u64 = 10_000;
const VISITS: u64 = 1_000;

fn visits(criterion: &mut Criterion) {
    let mut load = load::Load::new(STREAMS);
    load.warm_up();
    println!("{:?}, {:?}", load.machine.population(), load.machine.plan());
    let mut group = criterion.benchmark_group("streams");
    group.throughput(criterion::Throughput::Elements(VISITS));
    group.bench_function("1000 visits of 10000 streams", |bencher| {
        bencher.iter(|| load.visits(VISITS));
    });
    group.finish();
    assert_eq!(load.machine.counters().glitches, 0, "the load is one that the machine carries");
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(std::time::Duration::from_secs(3));
    targets = visits
}
criterion_main!(benches);
