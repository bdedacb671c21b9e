//! The command line as typed. What it says is in [`help`]; what it does is in `commands`.

pub mod help;
mod mount_args;

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
    /// Show tiers, what is not yet in the backing store, hit ratio and troubles
    #[command(long_about = help::STATUS, after_long_help = help::STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Show where the bytes of files are
    #[command(long_about = help::WHERE)]
    Where(QueryArgs),
    /// Bring files into the tiers
    #[command(long_about = help::WARM)]
    Warm(PathArgs),
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
    /// Tell which files a job will read, in which order
    #[command(hide = true, long_about = help::HINT, after_long_help = help::HINT_EXAMPLES)]
    Hint(HintArgs),
    /// Check the state on tiers that are not mounted
    #[command(long_about = help::FSCK, after_long_help = help::FSCK_EXAMPLES)]
    Fsck(FsckArgs),
    /// Watch a mount live
    #[command(long_about = help::TOP)]
    Top(TopArgs),
    /// Check whether this machine is fit for Forebay
    #[command(long_about = help::DOCTOR)]
    Doctor(DoctorArgs),
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

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The mount point, or any path below it; all mounts if left out
    pub mountpoint: Option<PathBuf>,
    /// Print JSON: an object for one mount, a list if no mount was named
    #[arg(long)]
    pub json: bool,
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
    /// Files or directories on a mount; directories with everything below them
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Print the outcome as JSON: an object for each mount concerned, one a line
    #[arg(long)]
    pub json: bool,
    /// Print no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Arguments of `hint`.
#[derive(Debug, Args)]
pub struct HintArgs {
    /// The mount point
    pub mountpoint: PathBuf,
    /// A name for the job; a later hint with the same name replaces this one
    #[arg(long, value_name = "ID")]
    pub job: String,
    /// A file with one path a line, in the order of reading; `-` reads standard input
    pub list: PathBuf,
    /// Paths in the list end with NUL instead of a newline, as `find -print0` writes them
    #[arg(long, short = '0')]
    pub null: bool,
    /// Print the outcome as JSON
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

/// Arguments of the daemon: every setting, already decided by `mount`.
#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// KEY=VALUE of a setting
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<OsString>,
}
