//! Side-by-side benchmarks of directories: native, Forebay and its peers, alternating in one run
//! so that whatever else the machine does falls on all of them alike.

mod cold;
mod copy;
mod hit;
mod load;
mod meta;
mod procs;
mod report;
mod streams;
mod svg;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use report::Report;

/// Why a benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call to the system failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Error::Io { doing, source }
    }
}

/// A directory under test: `NAME=DIR`. The first one is the reference of all ratios.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The name in tables and plots.
    pub name: String,
    /// The directory; a subdirectory of it is used and removed.
    pub dir: PathBuf,
}

fn parse_subject(text: &str) -> Result<Subject, String> {
    let (name, dir) = text.split_once('=').ok_or("write NAME=DIR, such as native=/dev/shm/x")?;
    if !PathBuf::from(dir).is_dir() {
        return Err(format!("{dir}: not a directory"));
    }
    Ok(Subject { name: name.into(), dir: dir.into() })
}

/// Side-by-side benchmarks. Results go to standard output as a table, and with --out to
/// PREFIX.csv, PREFIX.json and PREFIX.svg.
#[derive(Debug, Parser)]
#[command(name = "forebay-bench", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Write PREFIX.csv, PREFIX.json and PREFIX.svg too
    #[arg(long, global = true, value_name = "PREFIX")]
    out: Option<PathBuf>,
    /// Alternations between the subjects
    #[arg(long, global = true, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Length of a burst in milliseconds
    #[arg(long, global = true, default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    burst_ms: u64,
    /// Numbers of processes
    #[arg(long, global = true, value_delimiter = ',', default_value = "1,2,12")]
    procs: Vec<usize>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Read and write resident files: 1 MiB, 64 KiB, 4 KiB, sequential and random
    Hit {
        /// Subjects, the reference first
        #[arg(required = true, value_parser = parse_subject, value_name = "NAME=DIR")]
        subjects: Vec<Subject>,
        /// Bytes of each process's file, in MiB
        #[arg(long, default_value_t = 64)]
        file_mib: usize,
    },
    /// Create new files and write 1 MiB blocks to them
    Newfile {
        /// Subjects, the reference first
        #[arg(required = true, value_parser = parse_subject, value_name = "NAME=DIR")]
        subjects: Vec<Subject>,
        /// Bytes of each file, in MiB
        #[arg(long, default_value_t = 64)]
        file_mib: usize,
    },
    /// 4 KiB random reads by one process, 64 KiB random reads by 12
    Rand {
        /// Subjects, the reference first
        #[arg(required = true, value_parser = parse_subject, value_name = "NAME=DIR")]
        subjects: Vec<Subject>,
        /// Bytes of each process's file, in MiB
        #[arg(long, default_value_t = 64)]
        file_mib: usize,
        /// Drop the page cache before each burst
        #[arg(long)]
        drop_caches: bool,
    },
    /// Create, stat, open, rename, unlink, list
    Meta {
        /// Subjects, the reference first
        #[arg(required = true, value_parser = parse_subject, value_name = "NAME=DIR")]
        subjects: Vec<Subject>,
        /// Files of each process
        #[arg(long, default_value_t = 2000)]
        files: usize,
        /// Entries of the directory that is listed
        #[arg(long, default_value_t = 100_000)]
        entries: usize,
    },
    /// Print the seconds that random 4 KiB reads of an existing file take
    Probe {
        /// The file
        file: PathBuf,
        /// Number of reads
        #[arg(long, default_value_t = 1000)]
        reads: u64,
    },
    /// Play titles at a rate, from a server or straight from files, and print what the players saw
    Streams {
        /// The directory of the titles
        dir: PathBuf,
        /// A server of this directory, such as http://127.0.0.1:8480; else the files are read
        #[arg(long)]
        url: Option<String>,
        /// Added to each address, such as `?rate=8M`
        #[arg(long, default_value = "")]
        query: String,
        /// Bytes a second of each player
        #[arg(long, default_value_t = 1_000_000)]
        rate_bytes: u64,
        /// Players
        #[arg(long, default_value_t = 10)]
        players: usize,
        /// Milliseconds between the starts of two players
        #[arg(long, default_value_t = 200)]
        apart_ms: u64,
        /// Seconds that each plays
        #[arg(long, default_value_t = 20)]
        seconds: u64,
        /// Milliseconds of media that a player gathers before it begins (VLC's default)
        #[arg(long, default_value_t = 1000)]
        buffer_ms: u64,
    },
    /// Use a directory in many ways and check all that is seen, until a file appears; print what came
    /// of it as JSON
    Load {
        /// The directory; it is made
        dir: PathBuf,
        /// The file
        #[arg(long)]
        stop: PathBuf,
    },
    /// Send a file over TCP to whoever connects, without anything that Forebay adds
    TcpServe {
        /// The file
        file: PathBuf,
        /// Where to listen
        #[arg(long, value_name = "HOST:PORT")]
        listen: std::net::SocketAddr,
    },
    /// Get what `tcp-serve` sends into a file, and print bytes and seconds as JSON
    TcpGet {
        /// Where it listens
        address: std::net::SocketAddr,
        /// The file
        to: PathBuf,
    },
    /// Make table, JSON and plot from a CSV file of the form that --out writes
    Plot {
        /// The file
        csv: PathBuf,
        /// The heading
        #[arg(long, default_value = "Results")]
        title: String,
    },
    /// First reads of existing files, with the page cache dropped before each (needs root)
    Cold {
        /// Subjects, the reference first; each must show the same files
        #[arg(required = true, value_parser = parse_subject, value_name = "NAME=DIR")]
        subjects: Vec<Subject>,
        /// A large file below each subject; give one for each round
        #[arg(long = "large", value_name = "PATH")]
        large: Vec<PathBuf>,
        /// A directory of small files below each subject; give one for each round
        #[arg(long = "small", value_name = "PATH")]
        small: Vec<PathBuf>,
        /// A directory of files of which only the first byte is read, each once, while the disk has
        /// nothing else to do
        #[arg(long, value_name = "PATH")]
        first: Option<PathBuf>,
        /// A command run by sh after each measurement that makes the subjects cold again, such as
        /// `forebay evict /mnt`
        #[arg(long, value_name = "COMMAND")]
        chill: Option<String>,
    },
}

/// What all benchmarks need.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Alternations.
    pub rounds: u32,
    /// Length of a burst.
    pub burst: Duration,
    /// Numbers of processes.
    pub procs: Vec<usize>,
}

/// What is not a comparison, and prints JSON.
fn alone(command: &Command) -> Option<Result<serde_json::Value, Error>> {
    match command {
        Command::Load { dir, stop } => {
            Some(load::run(dir, stop).map(|outcome| serde_json::json!(outcome)))
        }
        Command::Streams { .. } => {
            play(command).map(|played| played.map(|outcome| serde_json::json!(outcome)))
        }
        Command::TcpServe { file, listen } => {
            Some(copy::serve(file, *listen).map(|()| serde_json::json!(null)))
        }
        Command::TcpGet { address, to } => {
            Some(copy::get(*address, to).map(|outcome| serde_json::json!(outcome)))
        }
        _ => None,
    }
}

/// Runs the players, if that is what is asked for.
fn play(command: &Command) -> Option<Result<streams::Outcome, Error>> {
    let Command::Streams { dir, url, query, rate_bytes, players, apart_ms, seconds, buffer_ms } =
        command
    else {
        return None;
    };
    Some(streams::run(&streams::Load {
        url: url.clone(),
        dir: dir.clone(),
        query: query.clone(),
        rate: (*rate_bytes).max(1),
        players: *players,
        apart: Duration::from_millis(*apart_ms),
        length: Duration::from_secs(*seconds),
        buffer: Duration::from_millis(*buffer_ms),
    }))
}

fn run(cli: &Cli) -> Result<Report, Error> {
    if cli.procs.iter().any(|count| !(1..=256).contains(count)) {
        return Err(Error::Usage("--procs: give numbers from 1 to 256".into()));
    }
    let plan = Plan {
        rounds: cli.rounds,
        burst: Duration::from_millis(cli.burst_ms),
        procs: cli.procs.clone(),
    };
    match &cli.command {
        Command::Hit { subjects, file_mib } => hit::hit(subjects, &plan, file_mib << 20),
        Command::Newfile { subjects, file_mib } => hit::newfile(subjects, &plan, file_mib << 20),
        Command::Rand { subjects, file_mib, drop_caches } => {
            hit::rand(subjects, &plan, file_mib << 20, *drop_caches)
        }
        Command::Meta { subjects, files, entries } => meta::meta(subjects, &plan, *files, *entries),
        Command::Cold { subjects, large, small, first, chill } => {
            let (large, small, first) = (large.clone(), small.clone(), first.clone());
            let files = cold::Files { large, small, first };
            cold::cold(subjects, &plan, &files, chill.as_deref())
        }
        Command::Probe { file, reads } => {
            let mut report = Report::new("Random 4 KiB reads");
            report.add("probe", &file.display().to_string(), "s", hit::probe(file, *reads)?);
            Ok(report)
        }
        Command::Streams { .. }
        | Command::Load { .. }
        | Command::TcpServe { .. }
        | Command::TcpGet { .. } => Err(Error::Usage("there is nothing to compare".into())),
        Command::Plot { csv, title } => {
            let text =
                std::fs::read_to_string(csv).map_err(Error::io(csv.display().to_string()))?;
            Report::from_csv(title, &text)
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(done) = alone(&cli.command) {
        return match done {
            Ok(outcome) => {
                println!("{outcome}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("forebay-bench: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let written = run(&cli).and_then(|report| {
        match &cli.command {
            Command::Probe { .. } => {
                report.series.iter().for_each(|s| println!("{}", s.samples[0]));
            }
            _ => print!("{}", report.table()),
        }
        cli.out.as_deref().map_or(Ok(()), |prefix| report.write(prefix))
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay-bench: {error}");
            ExitCode::from(if matches!(error, Error::Usage(_)) { 2 } else { 1 })
        }
    }
}
