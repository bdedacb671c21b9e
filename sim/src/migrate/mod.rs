//! Tasks that move to where those are that they exchange data with.
//!
//! The decisions are those of `forebay_profile`; nodes, links, caches, storage servers and programs
//! are modelled, with discrete events in virtual time.

mod machine;
mod workload;

use std::io::Write;
use std::path::PathBuf;

use clap::ValueEnum;

use self::machine::{Machine, Mover, Report};
pub use self::workload::Kind;
use self::workload::Workload;
use crate::SimError;
use crate::cluster::figures::short;
use crate::plot::{Chart, Line};
use crate::table::Table;

/// A result to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Figure {
    /// Throughput, run time and migrations of every workload
    Workloads,
    /// Throughput of mpi-io by round (figure 5 of the paper)
    Rounds,
    /// Throughput of mpi-io by nodes (figure 6 of the paper)
    Nodes,
}

/// What to run.
#[derive(Debug, Clone, clap::Args)]
pub struct MigrateArgs {
    /// Result to show
    #[arg(long, value_enum, default_value = "workloads")]
    pub figure: Figure,
    /// Workloads, separated by commas [default: all]
    #[arg(long, value_delimiter = ',', value_enum)]
    pub workload: Vec<Kind>,
    /// Numbers of nodes, separated by commas (2 to 256)
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NODES",
        default_value = "16",
        value_parser = clap::value_parser!(u32).range(2..=256)
    )]
    pub nodes: Vec<u32>,
    /// How much of everything there is; 1 is as much as in the paper
    #[arg(long, default_value_t = 1.0)]
    pub size: f64,
    /// Events of a window
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..=65_536))]
    pub window: u32,
    /// MiB of each node's cache
    #[arg(long, default_value_t = 64, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub cache_mib: u32,
    /// MiB that a migration carries
    #[arg(long, default_value_t = 45, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub image_mib: u32,
    /// Seconds that a migrating task stands still, besides what its image takes
    #[arg(long, default_value_t = 0.2)]
    pub downtime: f64,
    /// Tasks that a node may have, as times those that it begins with
    #[arg(long, default_value_t = 2.0)]
    pub slots: f64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Also write the rows to a file
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Also draw a chart, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

impl MigrateArgs {
    /// 1 Gb/s links, four storage servers of 400 MB/s for 16 nodes, images at 200 MB/s.
    fn machine(&self, nodes: u32) -> Machine {
        let nodes = nodes as usize;
        Machine {
            nodes,
            link: 117e6,
            servers: nodes.div_ceil(4),
            server: 400e6,
            local: 2e9,
            latency_s: 200e-6,
            cache_blocks: self.cache_mib as usize * 16,
            image_bytes: u64::from(self.image_mib) << 20,
            image_rate: 200e6,
            downtime_s: self.downtime,
            slots: self.slots,
        }
    }

    fn run(&self, kind: Kind, nodes: u32) -> (usize, Vec<(Mover, Report)>) {
        let workload = Workload::make(kind, nodes as usize, self.size);
        let machine = self.machine(nodes);
        let run = |mover| (mover, machine::run(&workload, &machine, mover, self.window));
        (workload.ops.len(), Mover::ALL.into_iter().map(run).collect())
    }
}

/// What the arguments ask for, done and printed.
///
/// # Errors
/// [`SimError`]; its text tells the user what to do.
pub fn run_cli(args: &MigrateArgs, out: &mut dyn Write) -> Result<(), SimError> {
    if !(args.size > 0.0 && args.size <= 16.0) {
        return Err(SimError::Usage("--size must be more than 0 and at most 16"));
    }
    if !(args.downtime >= 0.0 && args.downtime <= 3600.0) {
        return Err(SimError::Usage("--downtime must be from 0 to 3600"));
    }
    if !(args.slots >= 1.0 && args.slots <= 1000.0) {
        return Err(SimError::Usage("--slots must be from 1 to 1000"));
    }
    let table = match args.figure {
        Figure::Workloads => workloads(args),
        Figure::Rounds => rounds(args),
        Figure::Nodes => by_nodes(args),
    };
    table.show(args.json, args.csv.as_deref(), args.plot.as_deref(), out)
}

const COLUMNS: [&str; 13] = [
    "workload",
    "nodes",
    "placement",
    "io_MB_s",
    "io_gain_pct",
    "run_s",
    "run_gain_pct",
    "local_pct",
    "migrations",
    "wrong",
    "stray",
    "missed",
    "moved_MB",
];

/// How much more (or less) in per cent.
fn more(value: f64, than: f64) -> f64 {
    (value / than.max(1e-9) - 1.0) * 100.0
}

fn row(
    args: &MigrateArgs,
    kind: Kind,
    nodes: u32,
    tasks: usize,
    runs: &[(Mover, Report)],
) -> Vec<Vec<String>> {
    let none = &runs[0].1;
    let one = |(mover, report): &(Mover, Report)| {
        let rate = report.io_rate(tasks);
        let local = 100.0 * report.local_blocks as f64 / report.read_blocks.max(1) as f64;
        let mut fields = vec![kind.name().to_owned(), nodes.to_string(), mover.name().to_owned()];
        fields.extend([
            format!("{:.0}", rate / 1e6),
            format!("{:.1}", more(rate, none.io_rate(tasks))),
            format!("{:.2}", report.run_s),
            format!("{:.1}", more(report.run_s, none.run_s)),
            format!("{local:.1}"),
        ]);
        let counts = [report.migrations, report.wrong, report.stray, report.missed];
        fields.extend(counts.map(|count| count.to_string()));
        fields.push((report.migrations * u64::from(args.image_mib)).to_string());
        fields
    };
    runs.iter().map(one).collect()
}

fn lines() -> Vec<Line> {
    let line = |mover: Mover| Line { name: mover.name().into(), points: vec![] };
    Mover::ALL.into_iter().map(line).collect()
}

fn chart(title: &str, x_label: &str, y_label: &str, log_x: bool, lines: Vec<Line>) -> Chart {
    let (title, x_label, y_label) = (title.into(), x_label.into(), y_label.into());
    Chart { title, x_label, y_label, log_x, log_y: false, lines }.by_span()
}

fn workloads(args: &MigrateArgs) -> Table {
    let all = Kind::value_variants();
    let kinds = if args.workload.is_empty() { all } else { &args.workload };
    let (mut rows, mut lines) = (Vec::new(), lines());
    for (at, kind) in kinds.iter().enumerate() {
        for nodes in &args.nodes {
            let (tasks, runs) = args.run(*kind, *nodes);
            rows.extend(row(args, *kind, *nodes, tasks, &runs));
            for (line, (_, report)) in lines.iter_mut().zip(&runs) {
                let times = report.io_rate(tasks) / runs[0].1.io_rate(tasks).max(1e-9);
                line.points.push(((at + 1) as f64, times));
            }
        }
    }
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    let title = "I/O throughput, times that without migration";
    let chart = chart(title, &names.join(", "), "times", false, lines);
    let notes = vec![
        "wrong: what a migration saves to the end of the programs is less than it costs. stray: to \
         a node where nobody has data in common with the task. missed: tasks that read from another \
         node to the end though there was a slot."
            .into(),
    ];
    Table { columns: COLUMNS.to_vec(), rows, notes, chart: Some(chart) }
}

fn rounds(args: &MigrateArgs) -> Table {
    let (mut rows, mut lines) = (Vec::new(), lines());
    let nodes = args.nodes[0];
    let (_, runs) = args.run(Kind::MpiIo, nodes);
    for (line, (mover, report)) in lines.iter_mut().zip(&runs) {
        for (round, (blocks, seconds)) in report.rounds.iter().enumerate() {
            let rate = |(blocks, seconds): (u64, f64)| {
                blocks as f64 * machine::BLOCK / seconds.max(1e-9) / 1e6
            };
            let (mine, none) = (rate((*blocks, *seconds)), rate(runs[0].1.rounds[round]));
            let fields = [short(mine), format!("{:.1}", more(mine, none))];
            let mut row = vec![mover.name().to_owned(), (round + 1).to_string()];
            row.extend(fields);
            rows.push(row);
            line.points.push(((round + 1) as f64, mine));
        }
    }
    let columns = vec!["placement", "round", "MB_s", "gain_pct"];
    let chart = chart("mpi-io: task N reads what N + i writes", "round i", "MB/s", false, lines);
    Table { columns, rows, notes: vec![], chart: Some(chart) }
}

fn by_nodes(args: &MigrateArgs) -> Table {
    let (mut rows, mut lines) = (Vec::new(), lines());
    for nodes in &args.nodes {
        let (tasks, runs) = args.run(Kind::MpiIo, *nodes);
        rows.extend(row(args, Kind::MpiIo, *nodes, tasks, &runs));
        for (line, (_, report)) in lines.iter_mut().zip(&runs) {
            line.points.push((f64::from(*nodes), report.io_rate(tasks) / 1e6));
        }
    }
    let chart = chart("mpi-io by nodes", "nodes", "MB/s", true, lines);
    Table { columns: COLUMNS.to_vec(), rows, notes: vec![], chart: Some(chart) }
}
