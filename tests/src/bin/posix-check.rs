//! The suites on any directory, from the command line.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use forebay_tests::histories::{self, End, Ends};
use forebay_tests::{Failure, Outcome, fsx, model, os, posix, power, programs, random, soak};

/// Checks a directory's file system: POSIX conformance by default, random operations on request.
///
/// Exit code 0: all passed; 1: something failed; 2: wrong command line.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    suite: Option<Suite>,
    #[command(flatten)]
    posix: Option<Posix>,
}

#[derive(Args)]
struct Posix {
    /// Directory to test in; what is made there is removed again.
    dir: PathBuf,
    /// Only checks whose `area.name` contains this.
    #[arg(long, default_value = "")]
    filter: String,
}

#[derive(Args)]
struct Length {
    /// Repeats a run; without it the clock chooses.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of operations.
    #[arg(long, default_value_t = 10_000)]
    ops: usize,
}

#[derive(Args)]
struct Histories {
    /// The first history; without it the clock chooses.
    #[arg(long)]
    seed: Option<u64>,
    /// How many histories, each with the seed that follows.
    #[arg(long, default_value_t = 1)]
    histories: usize,
    /// Phases of each, between which the mount is ended or written back.
    #[arg(long, default_value_t = 4)]
    phases: usize,
    /// Operations of a phase.
    #[arg(long, default_value_t = 150)]
    ops: usize,
    /// A plain user (a number) who mounts and works. Needs root, and /etc/fuse.conf as it is anywhere.
    #[arg(long)]
    user: Option<u32>,
    /// How phases end; the last one always ends by a clean unmount.
    #[arg(long, value_enum, default_value_t = PhaseEnd::Mixed)]
    end: PhaseEnd,
    /// The mount's option of this name.
    #[arg(long, default_value = "200ms")]
    writeback: String,
    /// The size of the tier, in KiB, or in MiB with the letter M.
    #[arg(long, default_value = "2M", value_parser = kib)]
    size: u64,
    /// Tries so many shorter histories when one has failed.
    #[arg(long, default_value_t = 0, conflicts_with = "others")]
    attempts: usize,
    /// Others work in the backing store meanwhile. Nothing is compared with a twin, and the mount is not
    /// ended before the end.
    #[arg(long, conflicts_with_all = ["user", "end"])]
    others: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum PhaseEnd {
    /// A clean `forebay umount`.
    Umount,
    /// kill -9 of the daemon.
    Kill,
    /// `forebay sync`, with files open.
    Sync,
    /// Workers write all back.
    Worker,
    /// Any of these.
    Mixed,
}

impl From<PhaseEnd> for Ends {
    fn from(end: PhaseEnd) -> Self {
        match end {
            PhaseEnd::Umount => Self::All(End::Umount),
            PhaseEnd::Kill => Self::All(End::Kill),
            PhaseEnd::Sync => Self::All(End::Sync),
            PhaseEnd::Worker => Self::All(End::Worker),
            PhaseEnd::Mixed => Self::Mixed,
        }
    }
}

/// Bytes of what is given in KiB or MiB.
fn kib(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.strip_suffix('M') {
        Some(number) => (number, 1 << 20),
        None => (text, 1 << 10),
    };
    let number: u64 = number.parse().map_err(|error| format!("{error}"))?;
    number.checked_mul(unit).ok_or_else(|| "too large".to_owned())
}

#[derive(Subcommand)]
enum Suite {
    /// POSIX conformance checks.
    Posix(Posix),
    /// Random I/O on one file against an in-memory model.
    Fsx {
        /// Directory to test in.
        dir: PathBuf,
        #[command(flatten)]
        length: Length,
        /// Largest size of the file in bytes.
        #[arg(long, default_value_t = 300_000)]
        max: u64,
    },
    /// Random operations on two directories that must stay equal.
    Model {
        /// Directory to test in.
        dir: PathBuf,
        /// Directory on a file system that is right.
        reference: PathBuf,
        #[command(flatten)]
        length: Length,
    },
    /// Cuts the power of the disks below a mount again and again, and looks for what was acknowledged.
    /// Needs root, loop devices, and the forebay binary.
    Power {
        /// Number of cuts.
        #[arg(long, default_value_t = 1000)]
        cuts: usize,
        /// Repeats the steps of a run (not its timing); without it the clock chooses.
        #[arg(long)]
        seed: Option<u64>,
        /// Directed cases, one cut for each, instead of random steps: those that are always tried, and as
        /// many others as there are to be cuts.
        #[arg(long)]
        cases: bool,
        /// Of the directed cases only those whose description contains this; again for each further word.
        /// None of them is always tried then.
        #[arg(long, requires = "cases")]
        only: Vec<String>,
        /// In cases that are not always tried the daemon is killed after one of the steps, drawn by the
        /// seed, and another one goes on.
        #[arg(long, requires = "cases")]
        killed: bool,
        /// While the daemon stands at one of its fail points, drawn for each cut. Needs a binary with the
        /// feature `failpoints`, and fails when the daemon never stood at one.
        #[arg(long, conflicts_with = "cases")]
        at_points: bool,
        /// Most steps are about directories: made, moved, removed with all that is in them and made again,
        /// with links, attributes, and files and directories that are held open.
        #[arg(long, conflicts_with = "cases")]
        trees: bool,
        /// The file system of all disks; without it each has one by the seed.
        #[arg(long, value_parser = ["ext4", "xfs"])]
        disks: Option<String>,
    },
    /// Programs, a backing store that fails now and then, upgrades and kills of daemons on one mount.
    /// Fails when something acknowledged is missing, or when memory, descriptors, threads or files left
    /// behind grow. Needs root and a forebay binary, for faults one with the feature `failpoints`.
    Soak {
        /// How long, in minutes; the drain at the end comes on top.
        #[arg(long, default_value_t = 60.0)]
        minutes: f64,
        /// Repeats the steps of a run (not its timing); without it the clock chooses.
        #[arg(long)]
        seed: Option<u64>,
        /// A directory for soak.csv and soak.svg.
        #[arg(long)]
        results: Option<PathBuf>,
    },
    /// Random histories of a mount beside a native twin: programs work, workers write back, the mount is
    /// ended and made again, and mount, backing store and twin must be equal. Needs the forebay binary.
    Histories(Histories),
    /// Unmodified programs.
    Programs {
        /// Directory to test in.
        dir: PathBuf,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let passed = match (cli.suite, cli.posix) {
        (Some(Suite::Posix(posix)), _) | (None, Some(posix)) => check(&posix),
        (Some(Suite::Fsx { dir, length, max }), _) => {
            let seed = seed(&length);
            report(fsx::run(&dir, seed, length.ops, max), seed)
        }
        (Some(Suite::Model { dir, reference, length }), _) => {
            let seed = seed(&length);
            report(model::run(&dir, &reference, seed, length.ops), seed)
        }
        (
            Some(Suite::Power { cuts: count, seed, cases, only, killed, at_points, trees, disks }),
            _,
        ) => {
            let seed = seed.unwrap_or_else(|| random::seed_from_env("FOREBAY_SEED"));
            let kinds = match disks.as_deref() {
                Some("ext4") => power::Kinds::Ext4,
                Some(_) => power::Kinds::Xfs,
                None => power::Kinds::Drawn,
            };
            let done = match cases {
                true => {
                    power::known_cases(seed, &power::Choice { most: count, only, kinds, killed })
                }
                false => power::run(seed, power::Cuts { count, at_points, trees, kinds }),
            };
            report(done, seed)
        }
        (Some(Suite::Soak { minutes, seed, results }), _) => {
            let seed = seed.unwrap_or_else(|| random::seed_from_env("FOREBAY_SEED"));
            let length = Duration::from_secs_f64(minutes.clamp(0.0, 1e6) * 60.0);
            println!("seed {seed}");
            report(soak::run(&soak::Settings { length, seed, results }), seed)
        }
        (Some(Suite::Histories(asked)), _) => run_histories(asked),
        (Some(Suite::Programs { dir }), _) => programs::run(&dir).is_empty(),
        (None, None) => {
            eprintln!("name a directory to check; `posix-check --help` tells more");
            return ExitCode::from(2);
        }
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_histories(asked: Histories) -> bool {
    let seed = asked.seed.unwrap_or_else(|| random::seed_from_env("FOREBAY_SEED"));
    let settings = histories::Settings {
        seed,
        histories: asked.histories,
        phases: asked.phases,
        ops: asked.ops,
        ends: asked.end.into(),
        user: asked.user,
        writeback: asked.writeback,
        tier_bytes: asked.size,
        attempts: asked.attempts,
    };
    let run = if asked.others { histories::others::run } else { histories::run };
    report(run(&settings), seed)
}

fn seed(length: &Length) -> u64 {
    length.seed.unwrap_or_else(|| random::seed_from_env("FOREBAY_SEED"))
}

fn report(outcome: Outcome, seed: u64) -> bool {
    match outcome {
        Ok(()) => println!("ok, seed {seed}"),
        Err(skipped @ Failure::Skipped(_)) => println!("{skipped}"),
        Err(failure) => {
            println!("{failure}");
            return false;
        }
    }
    true
}

fn check(posix: &Posix) -> bool {
    if !os::is_root() {
        println!("not root: checks of other users, owners and devices are skipped");
    }
    match posix::run(&posix.dir, &posix.filter, &mut std::io::stdout()) {
        Ok(report) => {
            let (failed, skipped) = (report.failed.len(), report.skipped.len());
            println!("{} passed, {failed} failed, {skipped} skipped", report.passed);
            failed == 0
        }
        Err(error) => {
            eprintln!("cannot print the report: {error}");
            false
        }
    }
}
