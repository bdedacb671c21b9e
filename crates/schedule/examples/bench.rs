//! How long plans take: `cargo run --release -p forebay-schedule --example bench -- [JOBS] [NODES]`.

use std::time::Instant;

use forebay_schedule::{Effort, File, Instance, Job, Node, Policy, Problem, plan};

fn main() {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<usize>().expect("a number"));
    let jobs = words.next().unwrap_or(10_000);
    let nodes = words.next().unwrap_or(1_000);
    for (slots, chained) in [(1, false), (4, false), (4, true)] {
        let problem = Problem::new(instance(jobs, nodes, slots, chained)).expect("sound");
        for policy in Policy::ALL {
            let begin = Instant::now();
            let plan = plan(&problem, policy, Effort::default()).expect("a plan");
            let (took, name) = (begin.elapsed().as_secs_f64(), policy.name());
            println!(
                "{jobs} jobs, {nodes} nodes, {slots} slots, {}: {name}: {took:.3} s, makespan \
                 {:.1} s, {:.1} GB",
                if chained { "in chains of 3" } else { "independent" },
                plan.makespan_s,
                plan.bytes as f64 / 1e9
            );
        }
    }
}

/// Twice as many files as jobs, two copies each; a job reads three, the first ones most often.
fn instance(jobs: usize, nodes: usize, slots: u32, chained: bool) -> Instance {
    let mut state = 1u64;
    let mut draw = move |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound as u64) as usize
    };
    let files: Vec<File> = (0..2 * jobs)
        .map(|_| File {
            size: 6_000_000 + draw(244_000_000) as u64,
            holders: vec![draw(nodes), draw(nodes)],
        })
        .collect();
    let jobs = (0..jobs)
        .map(|at| {
            let compute_s = 1.0 + draw(4000) as f64 / 1000.0;
            let reads = (0..3).map(|_| draw(files.len()).min(draw(files.len()))).collect();
            let after = if chained && at % 3 > 0 { vec![at - 1] } else { vec![] };
            Job { after, ..Job::reading(compute_s, reads) }
        })
        .collect();
    let node = Node { slots, store: 50e6, ..Node::with_rate(100e6) };
    Instance { nodes: vec![node; nodes], files, jobs, running: vec![], store_total: f64::INFINITY }
}
