//! Many nodes: the core's decisions over modelled links and devices, with discrete events.
//!
//! - [`model`]: machines, links, servers, the queue of events.
//! - [`metadata`]: a hash table over all nodes; one directory of all.
//! - [`io`]: local writes, redundancy, reads from peers, swapping with the backing store.
//! - [`warm_up`]: many nodes want one data set.
//! - [`failures`]: nodes that fail, repair, rebalancing, drain.
//! - [`figures`]: these as tables and charts; [`paper`]: beside what the papers measured.

pub mod failures;
pub mod figures;
pub mod io;
pub mod metadata;
pub mod model;
pub mod paper;
pub mod warm_up;

use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

use forebay_core::cluster::repair::Redundancy;

use self::model::Machine;
use crate::SimError;

/// A result to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Figure {
    /// What HyCache and HyCache+ measured, beside the model at the same scale
    Paper,
    /// Creates a second and their latency, by nodes
    Metadata,
    /// Creates in one directory of all, by the parts that it is split in
    HotDirectory,
    /// Writes with and without redundancy, and reads from peers, by nodes
    Io,
    /// Throughput over time while caches fill and then swap (HyCache+, figures 5 and 6)
    Swap,
    /// All nodes read one data set at once
    WarmUp,
    /// Node failures, time of repair, losses
    Failures,
    /// How evenly nodes are filled; rebalancing and drain
    Balance,
}

/// How files are kept, as it is written on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept(pub Redundancy);

impl FromStr for Kept {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u8>().ok().filter(|n| (1..=32).contains(n));
        let redundancy = match text.split_once('+') {
            None => number(text).map(Redundancy::Replicas),
            Some((data, parity)) => number(data)
                .zip(number(parity))
                .map(|(data, parity)| Redundancy::Code { data, parity }),
        };
        let advice = || format!("`{text}`: give a number of copies (1 to 32), or K+M such as 4+2");
        redundancy.map(Self).ok_or_else(advice)
    }
}

impl std::fmt::Display for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Redundancy::Replicas(copies) => write!(f, "{copies}"),
            Redundancy::Code { data, parity } => write!(f, "{data}+{parity}"),
            Redundancy::Whole { data, fragments } => write!(f, "1 and {fragments} of {data}"),
        }
    }
}

/// What to simulate.
#[derive(Debug, Clone, clap::Args)]
pub struct ClusterArgs {
    /// Result to show
    #[arg(long, value_enum, default_value = "paper")]
    pub figure: Figure,
    /// Numbers of nodes, separated by commas (2 to 65,536)
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NODES",
        default_value = "16,64,256,1024,4096,16384",
        value_parser = clap::value_parser!(u32).range(2..=65_536)
    )]
    pub nodes: Vec<u32>,
    /// Machine to model
    #[arg(long, value_enum, default_value = "today")]
    pub machine: Machine,
    /// Clients on each node, for metadata and hot-directory
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub clients: u32,
    /// Operations in all, about, for metadata and hot-directory
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub operations: u64,
    /// Blocks of 1 MiB that each node writes or reads, for io
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(4..=65_536))]
    pub blocks: u32,
    /// Extents of the data set, for warm-up
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub extents: u32,
    /// MiB of an extent, for warm-up
    #[arg(long, default_value_t = 16, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub extent_mib: u32,
    /// Shares of the nodes that die during the warm-up
    #[arg(long, value_delimiter = ',', value_name = "SHARE", default_value = "0,0.01")]
    pub dying: Vec<f64>,
    /// Copies, or K+M, for failures
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4+2")]
    pub redundancy: Vec<Kept>,
    /// Node failures an hour in all, for failures
    #[arg(long, value_delimiter = ',', value_name = "FAILURES", default_value = "10")]
    pub per_hour: Vec<f64>,
    /// Hours to simulate, for failures
    #[arg(long, default_value_t = 24.0)]
    pub hours: f64,
    /// GiB that each node has, for failures and balance
    #[arg(long, default_value_t = 256, value_name = "GIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub node_gib: u64,
    /// Groups (files or stripes) whose owner a node is, for failures and balance
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub groups: u32,
    /// MiB a second that each node spends on repair and rebalancing
    #[arg(long, default_value_t = 64, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub repair_mib: u64,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
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

/// What the arguments ask for, done and printed.
///
/// # Errors
/// [`SimError`]; its text tells the user what to do.
pub fn run_cli(args: &ClusterArgs, out: &mut dyn Write) -> Result<(), SimError> {
    let positive = |value: &f64| value.is_finite() && *value > 0.0;
    if !args.per_hour.iter().chain([&args.hours]).all(positive) {
        return Err(SimError::Usage("--per-hour and --hours must be more than 0"));
    }
    if args.per_hour.iter().any(|rate| rate * args.hours > 1e6) {
        return Err(SimError::Usage("more than a million failures: lower --per-hour or --hours"));
    }
    if !args.dying.iter().all(|share| (0.0..=0.9).contains(share)) {
        return Err(SimError::Usage("--dying must be from 0 to 0.9"));
    }
    let table = match args.figure {
        Figure::Paper => paper::table(args.seed),
        Figure::Metadata => figures::metadata(args),
        Figure::HotDirectory => figures::hot_directory(args),
        Figure::Io => figures::io(args),
        Figure::Swap => paper::swap(),
        Figure::WarmUp => figures::warm_up(args),
        Figure::Failures => figures::failures(args),
        Figure::Balance => figures::balance(args),
    };
    table.show(args.json, args.csv.as_deref(), args.plot.as_deref(), out)
}
