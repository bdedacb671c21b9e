//! The command line as typed. What it says is in [`help`]; what it does is in `commands`.

pub mod cluster;
pub mod help;
mod mount_args;
#[cfg(test)]
mod reference;
pub mod run;
pub mod stream;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub use mount_args::MountArgs;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    about = "A caching file system in front of a large, slow directory",
    long_about = help::OVERVIEW,
    after_help = help::SEE_ALSO,
    after_long_help = help::EPILOGUE.as_str(),
    propagate_version = true,
    max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Mount a cache in front of a backing store
    #[command(long_about = help::MOUNT, after_long_help = help::MOUNT_EXAMPLES)]
    Mount(Box<MountArgs>),
    /// Write everything to the backing store, unmount, and end the daemon
    #[command(visible_alias = "unmount", long_about = help::UMOUNT, after_long_help = help::UMOUNT_EXAMPLES)]
    Umount(UmountArgs),
    /// Have the installed program take a mount over from the running daemon
    #[command(long_about = help::UPGRADE, after_long_help = help::UPGRADE_EXAMPLES)]
    Upgrade(UpgradeArgs),
    /// Show tiers, what is not yet in the backing store, hit ratio and troubles
    #[command(long_about = help::STATUS, after_long_help = help::STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Show where the bytes of files are
    #[command(long_about = help::WHERE)]
    Where(QueryArgs),
    /// Bring files into the tiers
    #[command(long_about = help::WARM, after_long_help = help::WARM_EXAMPLES)]
    Warm(WarmArgs),
    /// Remove files from the tiers, after writing back what is dirty
    #[command(long_about = help::EVICT)]
    Evict(PathArgs),
    /// Keep files in the tiers until they are unpinned
    #[command(long_about = help::PIN)]
    Pin(PathArgs),
    /// Allow the eviction of pinned files again
    Unpin(PathArgs),
    /// Write files to the backing store now
    #[command(long_about = help::SYNC)]
    Sync(PathArgs),
    /// Look at the backing store now, for changes that others made
    #[command(long_about = help::REFRESH)]
    Refresh(PathArgs),
    /// List, resolve and forget files that were changed both here and by others
    #[command(subcommand, long_about = help::CONFLICTS)]
    Conflicts(ConflictsCommand),
    /// Tell which files a job will use, in which order
    #[command(long_about = help::HINT, after_long_help = help::HINT_EXAMPLES)]
    Hint(HintArgs),
    /// Record and show what programs open
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Run jobs in an order that follows from where their files are, which are kept and fetched ahead
    #[command(long_about = help::RUN, after_long_help = help::RUN_EXAMPLES)]
    Run(Box<run::RunArgs>),
    /// Show the jobs of `forebay run`: which run, since when, which have ended and how
    #[command(long_about = help::JOBS, after_long_help = help::JOBS_EXAMPLES)]
    Jobs(run::JobsArgs),
    /// Have a running task go on at another node, or at another mount of its files
    #[command(long_about = help::MIGRATE, after_long_help = help::MIGRATE_EXAMPLES)]
    Migrate(run::MigrateArgs),
    /// Record and show which pieces of which files tasks read and write
    #[command(long_about = help::PATTERNS, after_long_help = help::PATTERNS_EXAMPLES)]
    Patterns(run::PatternsArgs),
    /// Check the state on tiers that are not mounted
    #[command(long_about = help::FSCK, after_long_help = help::FSCK_EXAMPLES)]
    Fsck(FsckArgs),
    /// Watch a mount live
    #[command(long_about = help::TOP)]
    Top(TopArgs),
    /// Check whether this machine is fit for Forebay
    #[command(long_about = help::DOCTOR)]
    Doctor(DoctorArgs),
    /// Several nodes that share one tree: their metadata servers, who lives, who has what
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Streams of media: served at their rates, never more of them than the device carries
    #[command(subcommand)]
    Stream(stream::StreamCommand),
    /// Simulations and the papers' experiments
    #[command(subcommand)]
    Sim(forebay_sim::SimCommand),
    /// Show the settings that a mount would have, and where each comes from
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Questions for developers
    #[command(subcommand, hide = true)]
    Debug(DebugCommand),
    /// The daemon that `mount` leaves behind
    #[command(hide = true)]
    Daemon(DaemonArgs),
    /// Ends the jobs of a run that was killed
    #[command(hide = true)]
    RunWatch {
        /// The run
        run: String,
    },
    /// Keeps a task that can be migrated
    #[command(hide = true)]
    RunTask(run::RunTaskArgs),
    /// Has a task of another node
    #[command(hide = true)]
    HostTask(run::HostTaskArgs),
    /// Sends notices of a daemon to the kernel
    #[command(hide = true)]
    Notices {
        /// The mount point.
        mountpoint: PathBuf,
        /// Another daemon takes the place of this one when it dies.
        #[arg(long)]
        kept: bool,
    },
    /// Print completions for a shell
    #[command(hide = true)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write manual pages into a directory
    #[command(hide = true)]
    Man {
        /// The directory.
        dir: PathBuf,
    },
}

/// Arguments of `umount`.
#[derive(Debug, Args)]
pub struct UmountArgs {
    /// The mount point
    pub mountpoint: PathBuf,
    /// Do not write dirty files to the backing store first; they stay on the tiers, and the next
    /// mount with the same tiers continues
    #[arg(long)]
    pub no_drain: bool,
    /// Unmount even if programs have files open
    #[arg(long)]
    pub detach: bool,
    /// How long to wait for the drain, such as 10min [default: the mount's --drain-timeout]
    #[arg(long, value_name = "TIME", value_parser = crate::units::parse_duration)]
    pub timeout: Option<std::time::Duration>,
    /// Print no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Arguments of `upgrade`.
#[derive(Debug, Args)]
pub struct UpgradeArgs {
    /// The mount point
    #[arg(required_unless_present = "config")]
    pub mountpoint: Option<PathBuf>,
    /// Take the mount point from this configuration file
    #[arg(long, value_name = "FILE", conflicts_with = "mountpoint")]
    pub config: Option<PathBuf>,
    /// The program to take over [default: the one that this command is]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// How long the running daemon may take to come to rest
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = crate::units::parse_duration)]
    pub timeout: std::time::Duration,
    /// Print the outcome as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The mount point, or any path below it; all mounts if left out
    pub mountpoint: Option<PathBuf>,
    /// Print JSON: an object for one mount, a list if no mount was named
    #[arg(long)]
    pub json: bool,
    /// Show how the mount works as well: the transport, why opens were not handed to the kernel, what the
    /// policy counts
    #[arg(long, short)]
    pub verbose: bool,
}

/// Arguments of a question about paths.
#[derive(Debug, Args)]
pub struct QueryArgs {
    /// Files or directories on a mount
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Print JSON: a list
    #[arg(long)]
    pub json: bool,
}

/// Arguments of an operation on paths.
#[derive(Debug, Args)]
pub struct PathArgs {
    /// Files or directories on a mount; directories with everything below them, symbolic links with
    /// what they lead to
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Print the outcome as JSON: an object for each mount concerned, one a line
    #[arg(long)]
    pub json: bool,
    /// Print no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Arguments of `warm`.
#[derive(Debug, Args)]
pub struct WarmArgs {
    /// What is brought in.
    #[command(flatten)]
    pub paths: PathArgs,
    /// Return at once; `forebay status` shows how far it is
    #[arg(long)]
    pub background: bool,
}

/// What to do with conflicts.
#[derive(Debug, Subcommand)]
pub enum ConflictsCommand {
    /// List the conflicts that nobody has resolved or forgotten
    List(ConflictsListArgs),
    /// Keep one of the two versions, and remove the other
    #[command(long_about = help::CONFLICTS_RESOLVE)]
    Resolve(ConflictsResolveArgs),
    /// Take conflicts off the list; both versions stay where they are
    Forget(ConflictsForgetArgs),
}

/// Arguments of `conflicts list`.
#[derive(Debug, Args)]
pub struct ConflictsListArgs {
    /// The mount point, or any path below it; all mounts if left out
    pub mountpoint: Option<PathBuf>,
    /// Print JSON: a list
    #[arg(long)]
    pub json: bool,
}

/// Which of two versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Keep {
    /// What was written through this mount, now beside the other under the name of the conflict
    Ours,
    /// What others made in the backing store, under the name of the file
    Theirs,
}

/// Arguments of `conflicts resolve`.
#[derive(Debug, Args)]
pub struct ConflictsResolveArgs {
    /// The path of the file, or of this mount's version of it
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Which version counts
    #[arg(long, value_name = "VERSION")]
    pub keep: Keep,
}

/// Arguments of `conflicts forget`.
#[derive(Debug, Args)]
pub struct ConflictsForgetArgs {
    /// The path of the file, or of this mount's version of it; a mount point with --all
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// All conflicts of the mounts
    #[arg(long)]
    pub all: bool,
}

/// Arguments of `hint`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("source").args(["paths", "from", "trace", "permutation", "withdraw"])))]
pub struct HintArgs {
    /// The mount point
    pub mountpoint: PathBuf,
    /// A name for the job; a later hint with the same name replaces this one
    #[arg(long, value_name = "ID")]
    pub job: String,
    /// A file that lies elsewhere with one path a line, in the order of use (`-` reads standard
    /// input); or files on the mount, directories for all files below them, and patterns
    #[arg(value_name = "LIST|PATH|PATTERN")]
    pub paths: Vec<PathBuf>,
    /// Read the paths from this list, wherever it lies; `-` reads standard input
    #[arg(long, value_name = "LIST")]
    pub from: Option<PathBuf>,
    /// Take the opens of an earlier run, as `forebay trace record` wrote them
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Take the entries of --files in the order of these numbers, from 0 on, as samplers of training
    /// programs give them
    #[arg(long, value_name = "FILE", requires = "files")]
    pub permutation: Option<PathBuf>,
    /// The list of paths that --permutation counts in
    #[arg(long, value_name = "LIST", requires = "permutation")]
    pub files: Option<PathBuf>,
    /// Add to what the job was given before
    #[arg(long)]
    pub append: bool,
    /// More will be appended: files that were used and are not named again yet may still be needed
    #[arg(long)]
    pub open: bool,
    /// Forget what the job was given
    #[arg(long, conflicts_with_all = ["append", "open"])]
    pub withdraw: bool,
    /// When the job is forgotten by itself
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = crate::units::parse_duration)]
    pub expires: std::time::Duration,
    /// Paths in lists end with NUL instead of a newline, as `find -print0` writes them
    #[arg(long, short = '0')]
    pub null: bool,
    /// Print the outcome as JSON
    #[arg(long)]
    pub json: bool,
}

/// What to do with traces.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Record which files programs open on a mount, until interrupted
    #[command(long_about = help::TRACE_RECORD, after_long_help = help::TRACE_EXAMPLES)]
    Record(TraceRecordArgs),
    /// Show what is in a trace
    Show(TraceShowArgs),
}

/// Arguments of `trace record`.
#[derive(Debug, Args)]
pub struct TraceRecordArgs {
    /// The mount point
    pub mountpoint: PathBuf,
    /// Where the trace goes; a file that is there is replaced
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
    /// End after so many seconds
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Print the outcome as JSON
    #[arg(long)]
    pub json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds > 0.0);
    seconds.ok_or_else(|| format!("'{text}' is not a number of seconds above 0"))
}

/// Arguments of `trace show`.
#[derive(Debug, Args)]
pub struct TraceShowArgs {
    /// The trace; `-` reads standard input
    pub trace: PathBuf,
    /// Print the paths of all opens in their order, and nothing else
    #[arg(long, conflicts_with = "json")]
    pub paths: bool,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `fsck`.
#[derive(Debug, Args)]
pub struct FsckArgs {
    /// The tiers of the mount, fastest first: DIR or DIR=SIZE
    #[arg(value_name = "TIER")]
    pub tiers: Vec<OsString>,
    /// Take the tiers from this configuration file
    #[arg(long, value_name = "FILE", conflicts_with = "tiers")]
    pub config: Option<PathBuf>,
    /// In place of tiers, check the names of a cluster on its metadata servers: what its mounts have
    /// as --cluster. No node may be mounted
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["tiers", "config", "backing", "state_dir", "rebuild"],
        value_parser = crate::config::cluster_address)]
    pub cluster: Option<String>,
    /// With --cluster: replicas of each server that must have a repair before it counts
    #[arg(long, value_name = "N", default_value_t = 0, requires = "cluster")]
    pub cluster_replicas: u32,
    /// Compare with this backing store too
    #[arg(long, value_name = "DIR")]
    pub backing: Option<PathBuf>,
    /// Where the state is, if the mount had --state-dir
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Throw the index away and build it anew from what the files on the tiers say of themselves
    #[arg(long)]
    pub rebuild: bool,
    /// Repair what can be repaired without losing data
    #[arg(long)]
    pub repair: bool,
    /// Repair, and give up for good what is lost: tiers of the mount that are not named, and files that
    /// were written and of which nothing is left. They show what the backing store has of them, or are
    /// empty. With --rebuild: end it also without files that can't be brought back now; they are set aside
    #[arg(long, conflicts_with = "cluster")]
    pub accept_loss: bool,
    /// Have the tiers belong to what is now in the directory given by --backing, where the mount says
    /// that it is another store: after it was moved or restored. Changes of both sides are kept as
    /// conflicts. Nothing else is checked
    #[arg(long, requires = "backing", conflicts_with_all = ["rebuild", "repair", "accept_loss", "cluster"])]
    pub accept_store: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// The mount point; may be left out if there is only one mount
    pub mountpoint: Option<PathBuf>,
    /// How often to look
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = crate::units::parse_duration)]
    pub interval: std::time::Duration,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Directories that are meant as tiers
    #[arg(long = "tier", value_name = "DIR")]
    pub tiers: Vec<PathBuf>,
    /// The directory that is meant as backing store
    pub backing: Option<PathBuf>,
    /// The metadata servers of a cluster that is to be joined: what mounts have as --cluster
    #[arg(long, value_name = "ADDRESS", value_parser = crate::config::cluster_address)]
    pub cluster: Option<String>,
    /// Print JSON: a list of checks
    #[arg(long)]
    pub json: bool,
}

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show the value of each setting and where it comes from; takes the arguments of `mount`
    Show(Box<MountArgs>),
}

/// Questions for developers.
#[derive(Debug, Subcommand)]
pub enum DebugCommand {
    /// Print the metrics of a mount
    Metrics {
        /// The mount point
        mountpoint: PathBuf,
    },
    /// Change what the daemon of a mount logs
    LogLevel {
        /// The mount point
        mountpoint: PathBuf,
        /// The new filter, as for --log-level
        filter: String,
    },
    /// Print the fail points of this build, one a line; none unless it was built for tests
    #[command(name = "failpoints")]
    FailPoints,
    /// Print the process id of a mount's daemon
    Pid {
        /// The mount point
        mountpoint: PathBuf,
    },
    /// Print the path at which the socket of a mount point is looked for first
    Socket {
        /// The mount point
        mountpoint: PathBuf,
    },
}

/// Arguments of the daemon. Its settings, already decided by `mount`, come by a descriptor: every
/// user of the machine can read a command line.
#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// The mount point, for people who list processes
    pub mountpoint: PathBuf,
    /// Take a mount over from the daemon at the other end of standard input
    #[arg(long, conflicts_with_all = ["supervise", "supervised"])]
    pub successor: bool,
    /// Be the supervisor of a daemon
    #[arg(long, conflicts_with = "supervised")]
    pub supervise: bool,
    /// Be the daemon of the supervisor at the other end of standard input
    #[arg(long)]
    pub supervised: bool,
    /// Go on where a daemon of the same supervisor died
    #[arg(long, requires = "supervised")]
    pub revived: bool,
    /// Log that the supervisor starts no more daemons
    #[arg(long, requires = "supervised")]
    pub given_up: bool,
}
