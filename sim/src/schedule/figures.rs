//! Made-up instances, and what every policy makes of them.
//!
//! HyCache+ has no measurement of its first layer (section III-A), only the claim that Algorithm 1
//! makes the overhead of the network least. So here is what it would have shown: bytes moved, and
//! when the last job is done, which is what users wait for.

use forebay_schedule::measure::{self, job_bytes};
use forebay_schedule::{File, Instance, Job, Node, Plan, Policy, Problem, plan};

use super::{Named, ScheduleArgs, fields};
use crate::SimError;
use crate::plot::{Chart, Line};
use crate::rng::Rng;
use crate::table::Table;

/// Who places jobs: nobody who knows where files are, or a policy.
#[derive(Debug, Clone, Copy)]
enum Placer {
    Random,
    RoundRobin,
    By(Policy),
}

impl Placer {
    fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::RoundRobin => "round-robin",
            Self::By(policy) => policy.name(),
        }
    }

    fn place(
        self,
        problem: &Problem,
        args: &ScheduleArgs,
        rng: &mut Rng,
    ) -> Result<Plan, SimError> {
        let last = problem.nodes() as u64 - 1;
        let jobs = 0..problem.jobs();
        Ok(match self {
            Self::Random => {
                let assign = jobs.map(|_| rng.between(0, last) as usize).collect();
                measure::plan(problem, assign)
            }
            Self::RoundRobin => {
                measure::plan(problem, jobs.map(|job| job % problem.nodes()).collect())
            }
            Self::By(policy) => plan(problem, policy, args.effort())?,
        })
    }
}

fn placers(args: &ScheduleArgs) -> Vec<Placer> {
    if !args.policy.is_empty() {
        return args.policy.iter().map(|Named(policy)| Placer::By(*policy)).collect();
    }
    let all = Policy::ALL.into_iter().map(Placer::By);
    [Placer::Random, Placer::RoundRobin].into_iter().chain(all).collect()
}

/// Makes instances of HyCache+'s sizes: files of 6 to 250 MB, read by Zipf's law, one to four a job.
struct Maker {
    nodes: usize,
    jobs: usize,
    files: usize,
    /// Share of the files that is on the first node.
    skew: f64,
    /// Mean seconds of a job.
    compute_s: f64,
}

/// Bytes a second of each node.
const LINK: f64 = 100e6;

impl Maker {
    fn make(&self, rng: &mut Rng) -> Problem {
        let last = self.nodes as u64 - 1;
        let files: Vec<File> = (0..self.files)
            .map(|_| {
                let node = if rng.unit() < self.skew { 0 } else { rng.between(0, last) as usize };
                File { size: rng.between(6, 250) * 1_000_000, holders: vec![node] }
            })
            .collect();
        let mut total = 0.0;
        let popularity = (1..=self.files).map(|rank| {
            total += (rank as f64).powf(-0.8);
            total
        });
        let popularity: Vec<f64> = popularity.collect();
        let total = popularity.last().copied().unwrap_or(0.0);
        let jobs = (0..self.jobs).map(|_| {
            let reads = (0..rng.between(1, 4)).map(|_| {
                let point = rng.unit() * total;
                popularity.partition_point(|sum| *sum <= point).min(self.files - 1)
            });
            let reads = reads.collect();
            Job::reading(self.compute_s * (0.5 + rng.unit()), reads)
        });
        let jobs = jobs.collect();
        Problem::new(Instance {
            nodes: vec![Node::with_rate(LINK); self.nodes],
            files,
            jobs,
            running: vec![],
            store_total: f64::INFINITY,
        })
        .expect("numbers from ranges that are sound")
    }
}

/// Means over the runs: makespan, gigabytes, jobs of the fullest node, and how many times the
/// default's makespan it is.
fn means(maker: &Maker, args: &ScheduleArgs) -> Result<Vec<(Placer, [f64; 4])>, SimError> {
    let placers = placers(args);
    let mut sums = vec![[0.0; 4]; placers.len()];
    for run in 0..args.runs {
        let mut rng = Rng::new(args.seed.wrapping_add(u64::from(run) << 32));
        let problem = maker.make(&mut rng);
        let best = plan(&problem, Policy::EctLs, args.effort())?.makespan_s;
        for (placer, sums) in placers.iter().zip(&mut sums) {
            let plan = placer.place(&problem, args, &mut rng)?;
            let jobs = plan.max_jobs as f64;
            let of =
                [plan.makespan_s, plan.bytes as f64 / 1e9, jobs, plan.makespan_s / best.max(1e-9)];
            sums.iter_mut().zip(of).for_each(|(sum, value)| *sum += value / f64::from(args.runs));
        }
    }
    Ok(placers.into_iter().zip(sums).collect())
}

fn chart(title: &str, x_label: &str, log_x: bool, lines: Vec<Line>) -> Chart {
    let y_label = "makespan, times that of ect-ls".into();
    Chart { title: title.into(), x_label: x_label.into(), y_label, log_x, log_y: true, lines }
}

fn add(lines: &mut Vec<Line>, placer: Placer, point: (f64, f64)) {
    match lines.iter_mut().find(|line| line.name == placer.name()) {
        Some(line) => line.points.push(point),
        None => lines.push(Line { name: placer.name().into(), points: vec![point] }),
    }
}

/// Eight nodes, 40 jobs, 80 files: by how many files are on the first node, and how long jobs compute.
pub(super) fn skew(args: &ScheduleArgs) -> Result<Table, SimError> {
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for compute_s in [10.0, 2.0, 0.67] {
        for skew in [0.0, 0.25, 0.5, 0.75, 0.9] {
            let maker = Maker { nodes: 8, jobs: 40, files: 80, skew, compute_s };
            for (placer, means) in means(&maker, args)? {
                let mut row = fields(&[compute_s, skew]);
                row.push(placer.name().into());
                row.extend(fields(&means));
                rows.push(row);
                if compute_s == 2.0 {
                    add(&mut lines, placer, (skew, means[3]));
                }
            }
        }
    }
    let columns =
        vec!["compute_s", "skew", "policy", "makespan_s", "moved_GB", "max_jobs", "times_ect_ls"];
    let title = "Jobs of 2 s on 8 nodes";
    let chart = chart(title, "share of the files on one node", false, lines);
    let notes = vec![
        "HyCache+ III-A claims the least overhead of the network; it has no measurement of this layer."
            .into(),
    ];
    Ok(Table { columns, rows, notes, chart: Some(chart) })
}

/// Five jobs and ten files for each node.
pub(super) fn nodes(args: &ScheduleArgs) -> Result<Table, SimError> {
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for nodes in args.nodes.iter().map(|nodes| *nodes as usize) {
        let (jobs, files) = (5 * nodes, 10 * nodes);
        let maker = Maker { nodes, jobs, files, skew: 0.0, compute_s: 2.0 };
        for (placer, means) in means(&maker, args)? {
            let mut row = vec![nodes.to_string(), placer.name().into()];
            row.extend(fields(&means));
            rows.push(row);
            add(&mut lines, placer, (nodes as f64, means[3]));
        }
    }
    let columns = vec!["nodes", "policy", "makespan_s", "moved_GB", "max_jobs", "times_ect_ls"];
    let chart = chart("Five jobs of 2 s for each node", "nodes", true, lines);
    Ok(Table { columns, rows, notes: vec![], chart: Some(chart) })
}

/// Four nodes, eight jobs of 10 s; all read a file of 1 GB on the first node, and one of 200 MB each.
pub(super) fn hot_file(args: &ScheduleArgs) -> Result<Table, SimError> {
    let hot = File { size: 1_000_000_000, holders: vec![0] };
    let own = (0..8).map(|job| File { size: 200_000_000, holders: vec![job % 4] });
    let problem = Problem::new(Instance {
        nodes: vec![Node::with_rate(LINK); 4],
        files: std::iter::once(hot).chain(own).collect(),
        jobs: (1..=8).map(|own| Job::reading(10.0, vec![0, own])).collect(),
        running: vec![],
        store_total: f64::INFINITY,
    });
    let problem = problem.expect("sound by construction");
    let mut rng = Rng::new(args.seed);
    let mut rows = Vec::new();
    for placer in placers(args) {
        let plan = placer.place(&problem, args, &mut rng)?;
        let missed = job_bytes(&problem, &plan.assign) as f64 / 1e9;
        let mut row = vec![placer.name().to_owned()];
        row.extend(fields(&[plan.makespan_s, plan.bytes as f64 / 1e9, missed]));
        row.push(plan.max_jobs.to_string());
        rows.push(row);
    }
    let columns = vec!["policy", "makespan_s", "moved_GB", "missed_by_jobs_GB", "max_jobs"];
    Ok(Table { columns, rows, notes: vec![], chart: None })
}
