//! Simulations that drive the real core over modelled disks, links and nodes.
//!
//! - [`cache`]: replacement policies on traces: miss ratios, bytes, elapsed time, lower bounds.
//! - [`cluster`]: many nodes, up to 16,384: metadata, bytes, warm-up, failures, balance.
//! - [`coop`]: the page cache that processes of an MPI program share, up to 16,384 of them.
//! - [`paper_29x`]: the caching experiment of HyCache+ (section IV-E), with the curve around it.
//! - [`streams`]: continuous media: the paper's schemes and the elastic ring on modelled devices.
//! - [`migrate`]: tasks that move to those that they exchange data with.
//! - [`schedule`]: jobs to nodes: Algorithm 1 of HyCache+ and better.
//! - [`replay`]: a node's recorded event log through the same steward again.
//! - [`plot`], [`table`]: line charts as SVG; tables as text, CSV and JSON.
//!
//! [`SimCommand`] and [`run`] are the whole command line of `forebay sim`.
#![forbid(unsafe_code)]

pub mod cache;
pub mod cluster;
pub mod coop;
pub mod migrate;
pub mod paper_29x;
pub mod plot;
pub mod replay;
pub mod rng;
pub mod schedule;
pub mod streams;
pub mod table;

use std::io::Write;
use std::path::PathBuf;

use forebay_core::policy::UnknownPolicy;
use forebay_core::steward::log::LogError;

const CACHE_EXAMPLES: &str = "\
Examples:
  A miss ratio curve of five policies on a made-up trace, as a table and a chart:
    forebay sim cache --generate zipf --size 64M,256M,1G --policy lru,s3fifo,arc,gdsf,min --plot-misses m.svg
  One run in full, for scripts:
    forebay sim cache --trace t.csv --size 100M --policy min --json
  How long a program takes with and without prefetch, on two kinds of storage:
    forebay sim cache --trace t.csv --size 1G,4G --policy lru,min --time --device disk,objects --prefetch 0,256M
  A trace in CSV whose file is named in column 5 and its size in column 4:
    forebay sim cache --trace w89.csv --csv-columns obj-id-col=5,obj-size-col=4 --size 10G --policy lru,s3fifo
  A long compressed trace, without its lower bound:
    zcat day1.csv.gz day2.csv.gz | forebay sim cache --trace - --size 10G --policy lru,auto --no-bound
  A trace for libCacheSim:
    forebay sim cache --generate epochs --save t.oracleGeneral --save-format oracle";

const STREAMS_EXAMPLES: &str = "\
Examples:
  The paper's example, 28 streams where Sweep has 25:
    forebay sim streams --closed-form --overhead-ms 15 --rate-bytes 10e6 --stream-bytes 250000 \\
      --round-s 1 --disk-cache-bytes 2e6 --policy sp --json
  How much Sweep & Prefetch gains at each stream rate, as a table and a chart:
    forebay sim streams --figure gains --csv gains.csv --plot gains.svg
  The elastic ring at 38 streams in 7 MB, five placements, 4,000 sweeps each:
    forebay sim streams --figure ring --streams 38 --cycle-s 1 --memory 7e6
  An evening on a disk of today:
    forebay sim streams --device disk --policy ring --stream-bytes 1e6 --arrivals-per-hour 60";

const CLUSTER_EXAMPLES: &str = "\
Examples:
  What the papers measured, beside what the model gives at the same scale:
    forebay sim cluster
  Creates a second from 16 to 16,384 nodes, as a table, a file and a chart:
    forebay sim cluster --figure metadata --csv m.csv --plot m.svg
  A thousand nodes warm up 4 GiB at once, and one in a hundred dies meanwhile:
    forebay sim cluster --figure warm-up --nodes 1024 --extents 256 --dying 0.01
  What 100 failures an hour do to 4,096 nodes with two copies and with 4+2:
    forebay sim cluster --figure failures --nodes 4096 --redundancy 2,4+2 --per-hour 100 --json";

const SCHEDULE_EXAMPLES: &str = "\
Examples:
  One instance by the default, for scripts:
    forebay sim schedule --instance jobs.json --json
  All instances of a file by three policies, as a table:
    forebay sim schedule --instance cases.json --policy algorithm1,flow,ect-ls
  What every policy comes to, by how unevenly files lie, as a table, a file and a chart:
    forebay sim schedule --figure skew --csv skew.csv --plot skew.svg
  The same up to 512 nodes:
    forebay sim schedule --figure nodes --nodes 8,64,512 --runs 3";

const MIGRATE_EXAMPLES: &str = "\
Examples:
  All workloads, with no migration, placed by who knows them, by the paper's measure and by ours:
    forebay sim migrate
  The paper's figure 5: throughput while partners change from round to round:
    forebay sim migrate --figure rounds --plot rounds.svg
  One workload on more nodes, with larger windows and larger tasks:
    forebay sim migrate --workload coupled --nodes 16,64 --window 512 --image-mib 256";
const COOP_EXAMPLES: &str = "\
Examples:
  The sliding window of the paper with 4 to 64 processes, as a table, a file and a chart:
    forebay sim coop --csv w.csv --plot w.svg
  BTIO class B, and FLASH I/O with large blocks:
    forebay sim coop --figure btio-b
    forebay sim coop --figure flash-16 --ranks 4,8,16,32,64
  Four thousand processes on a machine of today:
    forebay sim coop --figure flash-8 --ranks 1024,4096 --machine today --json";

/// The simulations.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum SimCommand {
    /// Replay traces against replacement policies
    ///
    /// Reads or makes up a trace, and replays it for every policy at every size of the cache. Prints
    /// for each the share of requests and of bytes missed, the bytes missed, and how many times the
    /// lower bound (FOO, the fractional optimum) they are; with --time also how long a program takes
    /// on each --device. One policy at one size with --json gives every hit and eviction.
    ///
    /// Policies that look ahead (heuristic, belady, belady-size, min, min-whole, portfolio) are told
    /// the trace in advance: all of it, or --window requests; --displaced and --missing spoil it.
    #[command(after_long_help = CACHE_EXAMPLES)]
    Cache(Box<cache::CacheArgs>),
    /// Reproduce the 29X experiment of HyCache+, with the curve around it.
    #[command(name = "paper-29x")]
    Paper29x(paper_29x::Paper29xArgs),
    /// Serve continuous media from modelled devices
    ///
    /// Runs the round machine that also serves real streams, in virtual time, with one of four
    /// devices, titles by popularity (Zipf), requests at random (Poisson) and sessions of 90 to 120
    /// minutes. --figure repeats a result of the paper, with the elastic ring beside it;
    /// --closed-form does its arithmetic alone.
    #[command(after_long_help = STREAMS_EXAMPLES)]
    Streams(Box<streams::StreamsArgs>),
    /// Many nodes on modelled links and devices
    ///
    /// Drives the decisions that real nodes take (placement, membership, sources, repair,
    /// rebalancing) over modelled nodes, links, metadata servers and a shared backing store, with
    /// discrete events in virtual time. Equal seeds give equal results. 16,384 nodes take seconds.
    ///
    /// It shows how things scale and where limits are, not what a certain machine will do: the
    /// numbers of the machine are assumptions, which docs/design/sim-cluster.md lists.
    #[command(after_long_help = CLUSTER_EXAMPLES)]
    Cluster(Box<cluster::ClusterArgs>),
    /// Place jobs where their files are
    ///
    /// Reads an instance (nodes, files, jobs), and prints where each policy has the jobs run, when
    /// the last one is done, the bytes that move, and the jobs of the fullest node. Without one,
    /// makes some up and compares the policies: Algorithm 1 of HyCache+ as printed and as meant,
    /// min-cost flow, earliest completion with and without local search, and nobody who knows where
    /// files are.
    ///
    /// An instance is a JSON object: `machines` (how many), `bandwidth` (bytes a second), `compute`
    /// (seconds of each job), `size` (bytes by file), `placement` (node or nodes by file; none: the
    /// backing store), `files` (those that each job reads). It may have `slots`, `memory`, `room`,
    /// `store_bandwidth` and `most_jobs` (one for all nodes, or a list), `store_total`, `job_slots`
    /// and `job_memory` (one for all jobs, or a list), `after` (jobs that each job waits for), and
    /// `writes` (files that each job makes). A file may also hold a list of instances, or an object
    /// with `cases`, each with `name` and `instance`: --name chooses one; without it all are placed,
    /// and --json prints a list. docs/design/schedule.md says more.
    #[command(after_long_help = SCHEDULE_EXAMPLES)]
    Schedule(Box<schedule::ScheduleArgs>),
    /// Move tasks to those that they exchange data with
    ///
    /// Runs made-up programs on modelled nodes with caches, links and storage servers; records which
    /// blocks tasks access, and moves tasks by these patterns. Compares no migration, the best static
    /// placement for the first round, the similarity of Liao, Trahay and Xiao (over touched rows, and
    /// on a grid as high as the files), and Forebay's measure: what would be local, against what
    /// moving costs. Every migration is judged by what the programs do afterwards.
    ///
    /// docs/design/profile.md says how patterns are compared, and what is modelled.
    #[command(after_long_help = MIGRATE_EXAMPLES)]
    Migrate(Box<migrate::MigrateArgs>),
    /// One page cache of all processes of a program
    ///
    /// Runs the programs with which cooperative caching was measured by its authors (a sliding
    /// window, BTIO, FLASH I/O) over a modelled network and parallel file system: without a cache,
    /// with a byte-range lock around each call, with the paper's scheme, and with Forebay's, which
    /// keeps copies for readers, moves pages, sends collective calls to the homes of pages, writes
    /// behind and chooses the page size. The caches are the real protocol; the machine's numbers are
    /// assumptions, which docs/design/coop.md lists.
    #[command(after_long_help = COOP_EXAMPLES)]
    Coop(Box<coop::CoopArgs>),
    /// Replay a node's event log and check that the same actions come out.
    Replay(replay::ReplayArgs),
}

/// Runs a simulation and prints its results to `out`.
///
/// # Errors
/// [`SimError`]; its text tells the user what to do.
pub fn run(command: &SimCommand, out: &mut dyn Write) -> Result<(), SimError> {
    match command {
        SimCommand::Cache(args) => cache::run_cli(args, out),
        SimCommand::Paper29x(args) => paper_29x::run_cli(args, out),
        SimCommand::Streams(args) => streams::run_cli(args, out),
        SimCommand::Cluster(args) => cluster::run_cli(args, out),
        SimCommand::Schedule(args) => schedule::run_cli(args, out),
        SimCommand::Migrate(args) => migrate::run_cli(args, out),
        SimCommand::Coop(args) => coop::run_cli(args, out),
        SimCommand::Replay(args) => replay::run_cli(args, out),
    }
}

/// Why a simulation did not run.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The results cannot be printed.
    #[error("cannot print the results: {0}")]
    Output(#[from] std::io::Error),
    /// The results cannot be written as JSON.
    #[error("cannot print the results: {0}")]
    Json(#[from] serde_json::Error),
    /// A trace is not in the format that it was taken for.
    #[error(
        "{what}; give --format csv|oracle|forebay|log if it is in another format, --csv-columns if it \
         is CSV with other columns"
    )]
    Trace {
        /// What is wrong, and where.
        what: String,
    },
    /// There is nothing to do.
    #[error("{0}")]
    Usage(&'static str),
    /// Numbers that make no system.
    #[error(transparent)]
    Model(#[from] forebay_core::streams::closed_form::BadModel),
    /// A machine that cannot be.
    #[error(transparent)]
    Machine(#[from] forebay_core::streams::machine::BadConfig),
    /// No such policy.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// An instance of jobs and nodes that cannot be placed.
    #[error("{}: {what}", path.display())]
    Instance {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Jobs that find no node.
    #[error(transparent)]
    NoPlan(#[from] forebay_schedule::NoPlan),
    /// An event log that cannot be replayed.
    #[error("{}: {source}", path.display())]
    Log {
        /// The log.
        path: PathBuf,
        /// What is wrong with it.
        source: LogError,
    },
    /// A replay decided otherwise.
    #[error("{}: line {line}: recorded\n{recorded}replayed\n{replayed}", path.display())]
    Divergence {
        /// The log.
        path: PathBuf,
        /// The line of the event.
        line: usize,
        /// The actions in the log.
        recorded: String,
        /// The actions of the replay.
        replayed: String,
    },
}

impl SimError {
    /// An error about a file.
    fn file(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }
}
