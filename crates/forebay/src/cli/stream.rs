//! Arguments of `forebay stream`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::help;
use crate::units::{parse_bytes, parse_duration};

/// What to do with streams.
#[derive(Debug, Subcommand)]
pub enum StreamCommand {
    /// Serve the files of a directory to players, each at its rate, no more than the device carries
    #[command(long_about = help::STREAM_SERVE, after_long_help = help::STREAM_SERVE_EXAMPLES)]
    Serve(Box<StreamServeArgs>),
    /// Measure a device into a profile, by which streams are admitted
    #[command(long_about = help::STREAM_PROFILE, after_long_help = help::STREAM_PROFILE_EXAMPLES)]
    Profile(StreamProfileArgs),
    /// Play a file of a mount as a stream: its bytes go to standard output
    #[command(long_about = help::STREAM_OPEN, after_long_help = help::STREAM_OPEN_EXAMPLES)]
    Open(StreamOpenArgs),
    /// Show the streams of the running servers and every glitch with its cause
    Status(StreamStatusArgs),
}

/// How sure admission is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Assurance {
    /// Room for the longest access times: no glitch as long as the profile is true
    Deterministic,
    /// Room for the mean and four standard deviations: more streams
    Statistical,
}

/// Arguments of `stream serve`.
#[derive(Debug, Args)]
pub struct StreamServeArgs {
    /// The directory whose files are served, and everything below it
    pub dir: PathBuf,
    /// Where to listen
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8480")]
    pub listen: SocketAddr,
    /// The device: a file of `forebay stream profile`, or table1, disk, ssd or object [default: a
    /// measurement of some seconds]
    #[arg(long, value_name = "FILE|NAME")]
    pub profile: Option<String>,
    /// Memory for what is read ahead
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_bytes)]
    pub memory: u64,
    /// Memory is handed out in pieces of this size
    #[arg(long, value_name = "SIZE", default_value = "16K", value_parser = parse_bytes)]
    pub chunk: u64,
    /// Memory for the beginnings of popular files, beside the other: who opens one starts at once
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_bytes)]
    pub beginnings: u64,
    /// Take as long for each read as such a device would, whatever the files really lie on: a file
    /// of `forebay stream profile`, or table1, disk, ssd or object
    #[arg(long, value_name = "FILE|NAME")]
    pub emulate: Option<String>,
    /// How sure admission is
    #[arg(long, value_enum, default_value = "deterministic")]
    pub assurance: Assurance,
    /// The rate of files of which none is known, in bits a second [default: none, they are served
    /// beside the admitted streams]
    #[arg(long, value_name = "RATE", value_parser = forebay_streams::parse_rate)]
    pub rate: Option<u64>,
    /// Streams begin at so many times their rate, and segments of HLS and DASH come so fast, as long as
    /// nobody else needs it; 1 for never
    #[arg(long, value_name = "FACTOR", default_value = "2", value_parser = parse_factor)]
    pub burst: f64,
    /// Connections at once
    #[arg(long, value_name = "N", default_value = "4096")]
    pub connections: u32,
    /// Close the connection of a client that has taken nothing for so long
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = parse_duration)]
    pub idle: Duration,
    /// Close the connection of a client that has taken nothing for so long before it has taken the
    /// beginning of what it asked for
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub stall: Duration,
    /// Connections of one address at once; 0 for no limit
    #[arg(long, value_name = "N", default_value = "64")]
    pub client_connections: u32,
    /// Streams to one address at once; 0 for no limit
    #[arg(long, value_name = "N", default_value = "16")]
    pub client_streams: u32,
    /// Rates of the streams to one address together, in bits a second; 0 for no limit [default: a
    /// quarter of what the device reads at its slowest place]
    #[arg(long, value_name = "RATE", value_parser = parse_rate_or_none)]
    pub client_rate: Option<u64>,
    /// A proxy that says by X-Forwarded-For for whom it asks; may be given again
    #[arg(long, value_name = "ADDR")]
    pub proxy: Vec<IpAddr>,
    /// Serve only who has one of the tokens in this file (one a line), as `Authorization: Bearer` or
    /// `?token=` [default: everybody]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Let pages of this origin read what is served, in a browser: `https://films.example`, or * for all;
    /// may be given again [default: none]
    #[arg(long, value_name = "ORIGIN")]
    pub cors: Vec<String>,
    /// Show the names in directories
    #[arg(long)]
    pub index: bool,
    /// Where the rates that were found out are kept over restarts [default: $STATE_DIRECTORY,
    /// /var/lib/forebay for root, else ~/.local/state/forebay]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Serve metrics for Prometheus here
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,
    /// What to log: error, warn, info, debug, or a filter
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub log_level: String,
}

/// A factor of rates.
fn parse_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse::<f64>().ok().filter(|factor| (1.0..=16.0).contains(factor));
    factor.ok_or_else(|| format!("'{text}': a number from 1 to 16, such as 2"))
}

/// A rate, or 0 for none.
fn parse_rate_or_none(text: &str) -> Result<u64, String> {
    if text.trim() == "0" { Ok(0) } else { forebay_streams::parse_rate(text) }
}

/// Arguments of `stream open`.
#[derive(Debug, Args)]
pub struct StreamOpenArgs {
    /// A file on a mount with --stream-profile
    pub path: PathBuf,
    /// Give the file this rate first, in bits a second [default: the one that it has]
    #[arg(long, value_name = "RATE", value_parser = forebay_streams::parse_rate)]
    pub rate: Option<u64>,
    /// Go on without a guarantee if it is refused
    #[arg(long)]
    pub best_effort: bool,
}

/// Arguments of `stream profile`.
#[derive(Debug, Args)]
pub struct StreamProfileArgs {
    /// A block device, a large file, or a directory: then the large files below it are measured in
    #[arg(value_name = "DEVICE|DIR")]
    pub target: PathBuf,
    /// Where the profile goes [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// How long to measure
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub time: Duration,
    /// Print no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Arguments of `stream status`.
#[derive(Debug, Args)]
pub struct StreamStatusArgs {
    /// The address that the server listens on; all servers if left out
    pub listen: Option<SocketAddr>,
    /// Print JSON: a list
    #[arg(long)]
    pub json: bool,
}
