//! Bytes of data a second that one core encodes, and makes good after the worst loss.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use forebay_erasure::{Code, Kernel, Seal};
use std::hint::black_box;

fn shards(count: usize, length: usize) -> Vec<Vec<u8>> {
    let byte = |shard: usize, at: usize| (at.wrapping_mul(2_654_435_761) >> 9) as u8 ^ shard as u8;
    (0..count).map(|shard| (0..length).map(|at| byte(shard, at)).collect()).collect()
}

fn codes(criterion: &mut Criterion) {
    for (data, parity) in [(4, 2), (8, 3), (10, 4)] {
        let mut group = criterion.benchmark_group(format!("{data}+{parity}"));
        for length in [16 << 10, 256 << 10, 4 << 20] {
            group.throughput(Throughput::Bytes((data * length) as u64));
            let input = shards(data, length);
            let mut output = shards(parity, length);
            for kernel in Kernel::available() {
                let code = Code::with_kernel(data, parity, kernel).expect("a code");
                let name = BenchmarkId::new(format!("encode {}", kernel.name()), length);
                group.bench_function(name, |bencher| {
                    bencher.iter(|| code.encode(black_box(&input), &mut output));
                });
            }
            let code = Code::new(data, parity).expect("a code");
            let present: Vec<usize> = (parity..data + parity).collect();
            let lost: Vec<usize> = (0..parity).collect();
            let recovery = code.recovery(&present, &lost).expect("enough is left");
            group.bench_function(BenchmarkId::new("reconstruct", length), |bencher| {
                bencher.iter(|| recovery.run(black_box(&input), &mut output));
            });
            group.bench_function(BenchmarkId::new("seal", length), |bencher| {
                bencher.iter(|| {
                    input
                        .iter()
                        .enumerate()
                        .map(|(at, shard)| Seal::of(1, at, shard).checksum)
                        .fold(0, |sum, checksum| sum ^ checksum)
                });
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_secs(1));
    targets = codes
}
criterion_main!(benches);
