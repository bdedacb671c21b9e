//! Continuous media: the core's round machine over modelled devices, and the paper's results.
//!
//! - [`device`], [`driver`]: devices, clients, and the machine between them, in virtual time.
//! - [`paper`]: how many streams rounds of fixed length carry on the paper's disk.
//! - [`figures`]: the paper's figures, with the elastic ring beside them.
//! - [`ring`]: the elastic ring at its limits.
//! - [`truth`]: whether admission tells the truth.
//! - [`admitted`]: how many streams are admitted, and how they play.
//! - [`load`]: requests at random over hours.

pub mod admitted;
pub mod device;
pub mod driver;
pub mod figures;
pub mod load;
pub mod paper;
pub mod ring;
pub mod truth;

use std::io::Write;
use std::path::PathBuf;

use forebay_core::streams::closed_form::{Model, Outcome};

use self::device::DeviceKind;
use crate::SimError;
pub use crate::table::Table;

/// A scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Scheme {
    /// Every stream once a round, in the order of position
    Sweep,
    /// Sweep & Prefetch: some visits read a block more
    Sp,
    /// Gradual Prefetching: half of the visits do, from the start
    Gradual,
    /// Grouped Periodic Multiround Prefetching
    Gpmp,
    /// GPMP in groups that may differ by one stream
    GpmpUnequal,
    /// The elastic ring
    Ring,
}

/// A result to repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Figure {
    /// Figure 2: Sweep against Sweep & Prefetch on the paper's simple device
    Prefetch,
    /// Figure 3: GPMP by the number of groups on the same device
    Groups,
    /// Figure 4: streams against memory on the disk of Table 1
    Throughput,
    /// Figure 5: start-up latency against load on the disk of Table 1
    Startup,
    /// Gain of Sweep & Prefetch over Sweep, by stream rate, round and disk cache
    Gains,
    /// The elastic ring at a number of streams, without admission: does a stream run dry?
    Ring,
    /// What admission of the elastic ring admits and refuses: does it play, would it have?
    Truth,
    /// How many streams are admitted in the memories of figure 4, beside GPMP, and whether they play;
    /// for certain, or with --statistical
    Admitted,
}

/// What to simulate.
#[derive(Debug, Clone, clap::Args)]
pub struct StreamsArgs {
    /// Arithmetic alone, for a device with a constant overhead
    #[arg(long, requires_all = ["overhead_ms", "rate_bytes", "stream_bytes", "round_s"])]
    pub closed_form: bool,
    /// Repeat a result of the paper
    #[arg(long, value_enum, conflicts_with = "closed_form")]
    pub figure: Option<Figure>,
    /// Scheme
    #[arg(long, value_enum, default_value = "ring")]
    pub policy: Scheme,
    /// Milliseconds to get to a block
    #[arg(long, value_name = "MS")]
    pub overhead_ms: Option<f64>,
    /// Bytes a second that the device reads
    #[arg(long, value_name = "BYTES")]
    pub rate_bytes: Option<f64>,
    /// Bytes a second of a stream [default: 250000, 2 Mb/s]
    #[arg(long, value_name = "BYTES")]
    pub stream_bytes: Option<f64>,
    /// Seconds of a round [default: 1]
    #[arg(long, value_name = "SECONDS")]
    pub round_s: Option<f64>,
    /// Bytes of the disk's own cache, for sp and gradual [default: as many as it can use]
    #[arg(long, value_name = "BYTES")]
    pub disk_cache_bytes: Option<f64>,
    /// Rounds that a visit reads for: groups of gpmp, blocks of sp
    #[arg(long)]
    pub k: Option<u64>,
    /// Device
    #[arg(long, value_enum, default_value = "table1")]
    pub device: DeviceKind,
    /// Streams, for --figure ring
    #[arg(long, default_value_t = 38)]
    pub streams: u64,
    /// Seconds of a sweep, for --figure ring [default: as many as the memory allows]
    #[arg(long, value_name = "SECONDS")]
    pub cycle_s: Option<f64>,
    /// Sweeps, for --figure ring
    #[arg(long, default_value_t = 4000)]
    pub sweeps: u64,
    /// Placements of the files, for --figure ring, truth and admitted
    #[arg(long, default_value_t = 5)]
    pub placements: u64,
    /// Bytes of memory
    #[arg(long, default_value = "64e6", value_name = "BYTES")]
    pub memory: f64,
    /// Megabytes of the memories for --figure admitted, separated by commas [default: those of figure 4]
    #[arg(long, value_name = "MB", value_delimiter = ',')]
    pub memories: Vec<f64>,
    /// Titles
    #[arg(long, default_value_t = 100)]
    pub titles: u64,
    /// Exponent of their popularity
    #[arg(long, default_value_t = 1.0)]
    pub zipf: f64,
    /// Requests an hour
    #[arg(long, default_value_t = 15.0)]
    pub arrivals_per_hour: f64,
    /// Hours
    #[arg(long, default_value_t = 6.0)]
    pub hours: f64,
    /// Standard deviations that admission of the ring allows for, instead of the longest times
    #[arg(long, value_name = "DEVIATIONS")]
    pub statistical: Option<f64>,
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

impl StreamsArgs {
    /// Bytes a second of a stream.
    #[must_use]
    pub fn stream_rate(&self) -> f64 {
        self.stream_bytes.unwrap_or(250_000.0)
    }

    /// Seconds of a round.
    #[must_use]
    pub fn round(&self) -> f64 {
        self.round_s.unwrap_or(1.0)
    }
}

/// The arithmetic of one scheme.
///
/// # Errors
/// [`SimError`] for numbers that make no system, or the ring, for which there is no closed form.
pub fn closed_form(args: &StreamsArgs) -> Result<Outcome, SimError> {
    let need = "--closed-form needs --overhead-ms, --rate-bytes, --stream-bytes and --round-s";
    let model = Model {
        overhead: args.overhead_ms.ok_or(SimError::Usage(need))? / 1000.0,
        device_rate: args.rate_bytes.ok_or(SimError::Usage(need))?,
        stream_rate: args.stream_rate(),
        round: args.round(),
    };
    let (cache, k) = (args.disk_cache_bytes, args.k);
    if k == Some(0) {
        return Err(SimError::Usage("--k must be 1 at least"));
    }
    Ok(match args.policy {
        Scheme::Sweep => model.sweep()?,
        Scheme::Sp => model.sweep_and_prefetch(k.unwrap_or(2) - 1, cache)?,
        Scheme::Gradual => model.gradual(cache)?,
        Scheme::Gpmp => model.gpmp(k.unwrap_or(1))?,
        Scheme::GpmpUnequal => model.gpmp_unequal(k.unwrap_or(1))?,
        Scheme::Ring => {
            return Err(SimError::Usage(
                "there is no closed form for ring; give --policy sweep|sp|gradual|gpmp",
            ));
        }
    })
}

/// What the arguments ask for, done and printed.
///
/// # Errors
/// [`SimError`]; its text tells the user what to do.
pub fn run_cli(args: &StreamsArgs, out: &mut dyn Write) -> Result<(), SimError> {
    if args.closed_form {
        let outcome = closed_form(args)?;
        if args.json {
            serde_json::to_writer(&mut *out, &outcome)?;
            writeln!(out)?;
        } else {
            let Outcome { streams, v, p, memory_bytes, startup_mean_s, startup_max_s } = outcome;
            writeln!(out, "{streams} streams: {v} accesses and {p} prefetched blocks a round")?;
            writeln!(out, "{memory_bytes} bytes of memory")?;
            writeln!(out, "start-up {startup_mean_s} s on average, {startup_max_s} s at most")?;
        }
        return Ok(());
    }
    let positive = |value: f64| value.is_finite() && value > 0.0;
    if ![args.stream_rate(), args.round(), args.memory, args.cycle_s.unwrap_or(1.0)]
        .into_iter()
        .chain(args.memories.iter().copied())
        .all(positive)
    {
        return Err(SimError::Usage("rates, times and memory must be more than 0"));
    }
    let table = match args.figure {
        Some(Figure::Prefetch) => figures::prefetch()?,
        Some(Figure::Groups) => figures::groups()?,
        Some(Figure::Throughput) => figures::throughput(args)?,
        Some(Figure::Startup) => figures::startup(args)?,
        Some(Figure::Gains) => figures::gains(),
        Some(Figure::Ring) => ring::table(args)?,
        Some(Figure::Admitted) => admitted::table(args)?,
        Some(Figure::Truth) => truth::table(args, truth::LENGTH)?,
        None => load::table(args)?,
    };
    table.show(args.json, args.csv.as_deref(), args.plot.as_deref(), out)
}
