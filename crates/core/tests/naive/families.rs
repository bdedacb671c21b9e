//! Kinds of traces, after the recorded ones of `golden/`: a few files, Zipf's law with sizes of
//! three kinds, large files, loops, training epochs, workflows.

use std::collections::BTreeMap;

/// Files with their sizes in the order of their requests, and the bytes of the cache.
#[derive(Debug)]
pub struct Trace {
    pub requests: Vec<(u64, u64)>,
    pub capacity: u64,
}

impl Trace {
    /// Bytes of its largest file.
    pub fn largest(&self) -> u64 {
        self.requests.iter().map(|request| request.1).max().unwrap_or(0)
    }

    /// The position of the next request for the same file, for each request.
    pub fn next(&self) -> Vec<Option<usize>> {
        let mut later = BTreeMap::new();
        let mut next: Vec<Option<usize>> = (0..self.requests.len())
            .rev()
            .map(|at| later.insert(self.requests[at].0, at))
            .collect();
        next.reverse();
        next
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Family {
    Tiny,
    ZipfUnit,
    ZipfSmall,
    ZipfHeavy,
    FilesBig,
    Loop,
    Epochs,
    Workflow,
}

/// A linear congruential generator (Knuth's constants), upper bits.
struct Rng(u64);

impl Rng {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + (self.unit() * (high - low + 1) as f64) as u64
    }

    /// A rank from 0 by Zipf's law.
    fn zipf(&mut self, files: u64, exponent: f64) -> u64 {
        let weight = |rank: u64| ((rank + 1) as f64).powf(-exponent);
        let total: f64 = (0..files).map(weight).sum();
        let mut point = self.unit() * total;
        (0..files - 1)
            .find(|rank| {
                point -= weight(*rank);
                point < 0.0
            })
            .unwrap_or(files - 1)
    }

    fn heavy(&mut self) -> u64 {
        let normal =
            (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
        (20.0 * (1.3 * normal).exp()).clamp(1.0, 5_000.0) as u64
    }

    fn shuffled(&mut self, files: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..files).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, self.between(0, at as u64) as usize);
        }
        order
    }
}

impl Family {
    pub const ALL: [Self; 8] = [
        Self::Tiny,
        Self::ZipfUnit,
        Self::ZipfSmall,
        Self::ZipfHeavy,
        Self::FilesBig,
        Self::Loop,
        Self::Epochs,
        Self::Workflow,
    ];

    pub fn trace(self, seed: u64) -> Trace {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self as u64);
        rng.unit();
        let (capacity, ids, sizes): (u64, Vec<u64>, Vec<u64>) = match self {
            Self::Tiny => {
                let sizes = (0..8).map(|_| rng.between(5, 60)).collect();
                (120, (0..40).map(|_| rng.between(0, 7)).collect(), sizes)
            }
            Self::ZipfUnit => (20, (0..500).map(|_| rng.zipf(120, 0.9)).collect(), vec![1; 120]),
            Self::ZipfSmall => {
                let sizes = (0..150).map(|_| rng.between(1, 200)).collect();
                (4_000, (0..500).map(|_| rng.zipf(150, 0.8)).collect(), sizes)
            }
            Self::ZipfHeavy => {
                let sizes = (0..150).map(|_| rng.heavy()).collect();
                (1_500, (0..500).map(|_| rng.zipf(150, 0.9)).collect(), sizes)
            }
            Self::FilesBig => {
                let sizes = (0..40).map(|_| rng.between(6, 250)).collect();
                (1_000, (0..400).map(|_| rng.zipf(40, 0.6)).collect(), sizes)
            }
            Self::Loop => {
                let files = rng.between(2, 10);
                let sizes = (0..files).map(|_| rng.between(6, 250)).collect();
                (256, (0..120).map(|at| at % files).collect(), sizes)
            }
            Self::Epochs => {
                let sizes = (0..80).map(|_| rng.between(50, 250)).collect();
                (4_000, (0..5).flat_map(|_| rng.shuffled(80)).collect(), sizes)
            }
            Self::Workflow => workflow(&mut rng),
        };
        // Numbers that say nothing about the order in which files were made up; sizes stay.
        let requests = ids.iter().map(|&id| (id * 7919 % 10_007, sizes[id as usize])).collect();
        Trace { requests, capacity }
    }
}

/// Three stages of tasks: each reads a shared file and those of the stage before, and writes one.
fn workflow(rng: &mut Rng) -> (u64, Vec<u64>, Vec<u64>) {
    const TASKS: u64 = 16;
    const SHARED: u64 = 10;
    let mut ids = Vec::new();
    for stage in 0..3 {
        for task in rng.shuffled(TASKS) {
            ids.push(rng.between(0, SHARED - 1));
            let before = SHARED + stage * TASKS;
            if stage == 0 {
                ids.push(before + task);
            } else {
                ids.extend((0..4).map(|member| before + (task / 4 * 4 + member * stage) % TASKS));
            }
            ids.push(before + TASKS + task);
        }
    }
    let sizes: Vec<u64> = (0..SHARED + 4 * TASKS).map(|_| rng.heavy()).collect();
    (sizes.iter().sum::<u64>() / 20, ids, sizes)
}
