//! Made-up traces: the paper's round robin, Zipf with heavy-tailed sizes, training epochs, a
//! workflow of stages. Equal seeds give equal traces.

use super::trace::{Request, Trace};
use crate::rng::Rng;

/// Bytes of a megabyte as the papers count them.
pub const MB: u64 = 1_000_000;

/// The kinds of traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Files of 6 to 250 MB, read one after the other, again and again (HyCache+, section IV-E).
    RoundRobin,
    /// Popularity by Zipf's law (exponent 0.9), log-normal sizes with a heavy tail.
    Zipf,
    /// All files once in each epoch, in a new random order each time.
    Epochs,
    /// Three stages: tasks read shared inputs and the outputs of the stage before.
    Workflow,
    /// Popularity by Zipf's law that moves: every so often other files take the first ranks.
    Drift,
    /// By turns: a loop over half of the files, popular files by Zipf's law, and scans of what is
    /// never read again.
    LoopScan,
}

/// Makes a trace of about `requests` requests over `files` files.
#[must_use]
pub fn generate(kind: Kind, files: u64, requests: u64, seed: u64) -> Trace {
    let mut rng = Rng::new(seed);
    let files = files.max(1);
    let requests = match kind {
        Kind::RoundRobin => round_robin(&mut rng, files, requests),
        Kind::Zipf => zipf(&mut rng, files, requests, 0.9),
        Kind::Epochs => epochs(&mut rng, files, requests),
        Kind::Workflow => workflow(&mut rng, files, requests),
        Kind::Drift => drift(&mut rng, files, requests),
        Kind::LoopScan => loop_scan(&mut rng, files, requests),
    };
    Trace::new(requests)
}

fn round_robin(rng: &mut Rng, files: u64, requests: u64) -> Vec<Request> {
    let sizes: Vec<u64> = (0..files).map(|_| rng.between(6 * MB, 250 * MB)).collect();
    (0..requests).map(|at| at % files).map(|id| Request { id, size: sizes[id as usize] }).collect()
}

/// Sizes of median 64 KiB; one in a thousand is above 8 MiB.
fn heavy_tailed(rng: &mut Rng) -> u64 {
    (65_536.0 * (1.6 * rng.normal()).exp()).clamp(1.0, 1e12) as u64
}

/// Ranks by Zipf's law, from 0.
struct Ranks {
    cumulative: Vec<f64>,
}

impl Ranks {
    fn new(files: u64, exponent: f64) -> Self {
        let mut total = 0.0;
        let weigh = |rank: u64| {
            total += (rank as f64).powf(-exponent);
            total
        };
        Self { cumulative: (1..=files).map(weigh).collect() }
    }

    fn draw(&self, rng: &mut Rng) -> usize {
        let last = self.cumulative.len() - 1;
        let point = rng.unit() * self.cumulative[last];
        self.cumulative.partition_point(|sum| *sum <= point).min(last)
    }
}

/// Requests by Zipf's law over `files` files of heavy-tailed sizes.
fn zipf(rng: &mut Rng, files: u64, requests: u64, exponent: f64) -> Vec<Request> {
    let ranks = Ranks::new(files, exponent);
    let sizes: Vec<u64> = (0..files).map(|_| heavy_tailed(rng)).collect();
    let draw = |_| {
        let rank = ranks.draw(rng);
        // Scatter popularity over the numbers, one to one.
        Request { id: (rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15), size: sizes[rank] }
    };
    (0..requests).map(draw).collect()
}

/// Requests by Zipf's law; a hundred times in the trace one rank in twenty changes its file with
/// another, whatever their places.
fn drift(rng: &mut Rng, files: u64, requests: u64) -> Vec<Request> {
    let ranks = Ranks::new(files, 0.9);
    let sizes: Vec<u64> = (0..files).map(|_| heavy_tailed(rng)).collect();
    let mut of_rank: Vec<u64> = (0..files).collect();
    let pause = (requests / 100).max(1);
    let mut trace = Vec::new();
    for at in 0..requests {
        if at % pause == 0 {
            for _ in 0..files.div_ceil(20) {
                let places = [rng.between(0, files - 1), rng.between(0, files - 1)];
                of_rank.swap(places[0] as usize, places[1] as usize);
            }
        }
        let id = of_rank[ranks.draw(rng)];
        trace.push(Request { id, size: sizes[id as usize] });
    }
    trace
}

/// Four rounds of a loop over half of the files, then as many requests by Zipf's law over all, then a
/// scan of a quarter as many new files, and again.
fn loop_scan(rng: &mut Rng, files: u64, requests: u64) -> Vec<Request> {
    let ranks = Ranks::new(files, 0.9);
    let sizes: Vec<u64> = (0..files).map(|_| rng.between(50_000, 250_000)).collect();
    let looped = (files / 2).max(1);
    let mut scanned = files;
    let mut trace: Vec<Request> = Vec::new();
    while (trace.len() as u64) < requests {
        let known = |id: u64| Request { id, size: sizes[id as usize] };
        trace.extend((0..4 * looped).map(|at| known(at % looped)));
        trace.extend((0..4 * looped).map(|_| known(ranks.draw(rng) as u64)));
        let scan = scanned..scanned + files.div_ceil(4);
        scanned = scan.end;
        trace.extend(scan.map(|id| Request { id, size: rng.between(50_000, 250_000) }));
    }
    trace.truncate(requests as usize);
    trace
}

fn epochs(rng: &mut Rng, files: u64, requests: u64) -> Vec<Request> {
    let sizes: Vec<u64> = (0..files).map(|_| rng.between(50_000, 250_000)).collect();
    let mut order: Vec<u64> = (0..files).collect();
    let mut trace = Vec::new();
    while (trace.len() as u64) < requests {
        rng.shuffle(&mut order);
        trace.extend(order.iter().map(|&id| Request { id, size: sizes[id as usize] }));
    }
    trace.truncate(requests as usize);
    trace
}

/// A tenth of the files is shared by all tasks; each task reads one of its own, writes one, and the
/// next stage reads four of those in other groupings. Every write is a request too.
fn workflow(rng: &mut Rng, files: u64, requests: u64) -> Vec<Request> {
    let shared = (files / 10).max(1);
    let tasks = (files / 4).max(4);
    let mut sizes: Vec<u64> = Vec::new();
    let mut ask = |rng: &mut Rng, trace: &mut Vec<Request>, id: u64| {
        while sizes.len() as u64 <= id {
            sizes.push(heavy_tailed(rng));
        }
        trace.push(Request { id, size: sizes[id as usize] });
    };
    let mut trace = Vec::new();
    let mut base = shared;
    while (trace.len() as u64) < requests {
        for stage in 0..3u64 {
            let mut order: Vec<u64> = (0..tasks).collect();
            rng.shuffle(&mut order);
            for task in order {
                let common = rng.between(0, shared - 1);
                ask(rng, &mut trace, common);
                if stage == 0 {
                    ask(rng, &mut trace, base + task);
                } else {
                    let group = task / 4 * 4;
                    for member in 0..4 {
                        let from = (group + member * (stage + 1)) % tasks;
                        ask(rng, &mut trace, base + stage * tasks + from);
                    }
                }
                ask(rng, &mut trace, base + (stage + 1) * tasks + task);
            }
        }
        base += 4 * tasks;
    }
    trace.truncate(requests as usize);
    trace
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const KINDS: [Kind; 6] =
        [Kind::RoundRobin, Kind::Zipf, Kind::Epochs, Kind::Workflow, Kind::Drift, Kind::LoopScan];

    #[test]
    fn generate_twice_then_equal_and_each_file_keeps_its_size() {
        for kind in KINDS {
            let trace = generate(kind, 50, 2_000, 7);
            assert_eq!(trace, generate(kind, 50, 2_000, 7));
            assert_ne!(trace, generate(kind, 50, 2_000, 8));
            assert_eq!(trace.requests.len(), 2_000);
            let mut sizes = HashMap::new();
            for request in &trace.requests {
                assert_eq!(*sizes.entry(request.id).or_insert(request.size), request.size);
            }
        }
    }

    #[test]
    fn epochs_then_every_file_once_in_each() {
        let trace = generate(Kind::Epochs, 30, 90, 1);
        for epoch in trace.requests.chunks(30) {
            let mut ids: Vec<u64> = epoch.iter().map(|request| request.id).collect();
            ids.sort_unstable();
            assert_eq!(ids, (0..30).collect::<Vec<u64>>());
        }
    }

    #[test]
    fn zipf_then_the_first_rank_is_asked_for_most() {
        let trace = generate(Kind::Zipf, 1_000, 20_000, 3);
        let mut uses: HashMap<u64, u64> = HashMap::new();
        for request in &trace.requests {
            *uses.entry(request.id).or_default() += 1;
        }
        let most = uses.values().max().copied().expect("requests");
        assert_eq!(uses[&0], most);
        assert!(most > 1_000, "{most}");
    }
}
