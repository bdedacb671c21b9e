//! Bytes of data that a core encodes in a second of its own time, whatever else runs on it (the
//! benchmark of the same crate measures by the wall clock).

use std::hint::black_box;

use forebay_erasure::{Code, Kernel};

/// Nanoseconds that this thread has run (Linux).
fn ran() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|field| field.parse().ok()).unwrap_or(0)
}

fn main() -> Result<(), forebay_erasure::Error> {
    for (data, parity) in [(4, 2), (8, 3), (10, 4)] {
        for length in [16 << 10, 256 << 10, 4 << 20] {
            let byte = |at: usize| (at.wrapping_mul(2_654_435_761) >> 9) as u8;
            let input: Vec<Vec<u8>> =
                (0..data).map(|shard| (0..length).map(|at| byte(at ^ shard)).collect()).collect();
            let mut output = vec![vec![0; length]; parity];
            for kernel in Kernel::available() {
                let code = Code::with_kernel(data, parity, kernel)?;
                let rounds = ((if kernel == Kernel::PORTABLE { 64 << 20 } else { 1 << 30 })
                    / (data * length))
                    .max(1);
                code.encode(&input, &mut output)?;
                let begin = ran();
                for _ in 0..rounds {
                    code.encode(black_box(&input), black_box(&mut output))?;
                }
                let rate = (rounds * data * length) as f64 / (ran() - begin).max(1) as f64;
                println!("{data}+{parity} {length:>8} {:>8} {rate:6.2} GB/s", kernel.name());
            }
        }
    }
    Ok(())
}
