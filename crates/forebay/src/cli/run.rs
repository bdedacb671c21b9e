//! Arguments of `run`, `jobs`, `migrate` and `patterns`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::units::{parse_bytes, parse_duration};

/// How jobs are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Via {
    /// As processes of this machine
    Local,
    /// By Slurm, on the nodes of the cluster that have the files
    Slurm,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("jobs").args(["batch", "snakemake", "parsl"])))]
pub struct RunArgs {
    /// The command, after `--`; with --parsl how each task is called
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
    /// A file that the job reads, in the order of use: a name, a directory for all files below it, a
    /// pattern, or @LIST for a file with one path a line (@- for standard input). Several may be given
    #[arg(
        long,
        short,
        visible_alias = "reads",
        value_name = "PATH|PATTERN|@LIST",
        conflicts_with = "jobs"
    )]
    pub input: Vec<OsString>,
    /// The job reads what was opened in an earlier run, as `forebay trace record` wrote it
    #[arg(long, value_name = "FILE", conflicts_with = "jobs")]
    pub trace: Option<PathBuf>,
    /// A file that the job makes. It has failed if the file is not there at its end
    #[arg(long, short, value_name = "PATH", conflicts_with = "jobs")]
    pub output: Vec<PathBuf>,
    /// The name of the job
    #[arg(long, value_name = "NAME", conflicts_with = "jobs")]
    pub name: Option<String>,
    /// Jobs with their files and dependencies, in TOML (*.toml) or JSON; `-` reads JSON from standard
    /// input
    #[arg(long, value_name = "FILE")]
    pub batch: Option<PathBuf>,
    /// Jobs of a workflow of Snakemake: what `snakemake -n -p` prints
    #[arg(long, value_name = "FILE")]
    pub snakemake: Option<PathBuf>,
    /// Tasks of a run of Parsl: what `sqlite3 -json monitoring.db 'select * from task'` prints
    #[arg(long, value_name = "FILE")]
    pub parsl: Option<PathBuf>,
    /// Cores that a job occupies, where the batch does not say
    #[arg(long, short, visible_alias = "cpu", value_name = "N", default_value_t = 1)]
    pub cores: u32,
    /// Memory that a job occupies, where the batch does not say [default: none]
    #[arg(long, short, value_name = "SIZE", value_parser = parse_bytes)]
    pub memory: Option<u64>,
    /// Seconds that a job computes, where the batch does not say [default: unknown]
    #[arg(long, value_name = "N")]
    pub seconds: Option<f64>,
    /// How often a job that has failed is tried again, where the batch does not say
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub retries: u32,
    /// The mount that has the files [default: that of the first file, else of this directory]
    #[arg(long, value_name = "MOUNTPOINT")]
    pub mount: Option<PathBuf>,
    /// Cores that all jobs together may use [default: all of the machine]
    #[arg(long, value_name = "N")]
    pub use_cores: Option<u32>,
    /// Memory that all jobs together may use [default: all of the machine]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub use_memory: Option<u64>,
    /// How jobs are started
    #[arg(long, value_enum, default_value = "local")]
    pub via: Via,
    /// Write what each job prints to NAME.out and NAME.err in this directory
    #[arg(long, value_name = "DIR")]
    pub logs: Option<PathBuf>,
    /// Begin no more jobs when one has failed
    #[arg(long)]
    pub fail_fast: bool,
    /// How long a job may take to end when it is asked to, before it is killed
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub grace: std::time::Duration,
    /// Run each job in namespaces of its own, so that `forebay migrate` can have it go on elsewhere
    #[arg(long)]
    pub migratable: bool,
    /// As --migratable, for jobs that save their state themselves: CRIU need not be there
    #[arg(long, conflicts_with = "migratable")]
    pub cooperative: bool,
    /// Do not tell the mount which files the jobs will read
    #[arg(long)]
    pub no_hints: bool,
    /// Print in which order, and where, the jobs would run, and run none
    #[arg(long)]
    pub dry_run: bool,
    /// Say nothing of jobs that begin and end
    #[arg(long, short)]
    pub quiet: bool,
    /// Print what became of the jobs as JSON at the end; what they print goes to standard error
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// The task: RUN/JOB, or the run or the job alone where that is one task; `forebay jobs` shows them
    pub task: String,
    /// Where it shall go on: a node of the cluster, by its number or its machine; the mount point of
    /// another mount of the same files on this machine; or `home`, where it was started. A task that
    /// saves its state itself may be given several nodes: it goes to the first, and is told of all
    #[arg(value_name = "NODE[,NODE...]")]
    pub target: PathBuf,
    /// How long a task that saves its state itself may take for that
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = parse_duration)]
    pub save_within: std::time::Duration,
    /// Put the image of the task here in between [default: into memory if there is plenty, else into
    /// /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,
    /// Print what it came to as JSON
    #[arg(long)]
    pub json: bool,
    /// Print nothing if all goes well
    #[arg(long, short)]
    pub quiet: bool,
}

/// Arguments of `run-task`.
#[derive(Debug, Args)]
pub struct RunTaskArgs {
    /// The run
    #[arg(long)]
    pub run: String,
    /// The job
    #[arg(long)]
    pub job: String,
    /// The mount that has its files
    #[arg(long)]
    pub mount: Option<PathBuf>,
    /// The command
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// Arguments of `host-task`.
#[derive(Debug, Args)]
pub struct HostTaskArgs {
    /// The mount that has the files of the task
    #[arg(long)]
    pub mount: PathBuf,
    /// The host to listen on
    #[arg(long)]
    pub listen: String,
    /// The file with the secret of the cluster
    #[arg(long)]
    pub secret: PathBuf,
    /// The file with another secret that is believed, too
    #[arg(long)]
    pub other_secret: Option<PathBuf>,
}

/// Arguments of `patterns`.
#[derive(Debug, Args)]
pub struct PatternsArgs {
    /// The mount point
    pub mountpoint: PathBuf,
    /// Begin to record
    #[arg(long, conflicts_with_all = ["stop", "for_time"])]
    pub start: bool,
    /// Show what was recorded, and end the recording
    #[arg(long)]
    pub stop: bool,
    /// Record for this time, then show it and end
    #[arg(long = "for", value_name = "TIME", id = "for_time", value_parser = parse_duration, conflicts_with = "stop")]
    pub for_time: Option<std::time::Duration>,
    /// Draw the diagrams as a heat map into this file
    #[arg(long, value_name = "FILE", conflicts_with = "start")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "start")]
    pub json: bool,
}

/// Arguments of `jobs`.
#[derive(Debug, Args)]
pub struct JobsArgs {
    /// Only runs whose files are on this mount
    pub mountpoint: Option<PathBuf>,
    /// Only this run
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
    /// Runs that have ended, too, and all jobs of each
    #[arg(long, short)]
    pub all: bool,
    /// Print JSON: a list of all runs, the newest last
    #[arg(long)]
    pub json: bool,
}
