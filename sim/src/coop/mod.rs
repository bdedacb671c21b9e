//! The cooperative page cache at scale: the paper's programs with the core's cache and without any.
//!
//! - [`model`]: links, a file system with tokens, a lock service.
//! - [`load`]: what the programs do.
//! - [`driver`]: runs them.

pub mod driver;
pub mod load;
pub mod model;

use std::io::Write;
use std::path::PathBuf;

use self::driver::{Report, Run, Scheme};
use self::load::Load;
use self::model::Machine;
use crate::SimError;
use crate::plot::{Chart, Line};
use crate::table::Table;

/// A figure of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Figure {
    /// The sliding window (figure 4): bandwidth by processes
    Window,
    /// BTIO class A, 64 cells an edge (figure 5)
    BtioA,
    /// BTIO class B, 102 cells an edge (figure 5)
    BtioB,
    /// FLASH I/O with blocks of 8x8x8 (figure 6)
    #[value(name = "flash-8")]
    Flash8,
    /// FLASH I/O with blocks of 16x16x16 (figure 6)
    #[value(name = "flash-16")]
    Flash16,
}

/// What to simulate.
#[derive(Debug, Clone, clap::Args)]
pub struct CoopArgs {
    /// Program to run
    #[arg(long, value_enum, default_value = "window")]
    pub figure: Figure,
    /// Numbers of processes, separated by commas (2 to 16,384); BTIO takes the squares among them
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "4,9,16,25,32,36,49,64",
        value_parser = clap::value_parser!(u32).range(2..=16_384)
    )]
    pub ranks: Vec<u32>,
    /// Machine to model
    #[arg(long, value_enum, default_value = "sp")]
    pub machine: Machine,
    /// MiB of the file, for window
    #[arg(long, default_value_t = 128, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub file_mib: u64,
    /// KiB of a page in the paper's scheme, and of a page of the window
    #[arg(long, default_value_t = 256, value_name = "KIB", value_parser = clap::value_parser!(u32).range(4..=1 << 16))]
    pub page_kib: u32,
    /// MiB that each process has for pages
    #[arg(long, default_value_t = 512, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub pool_mib: u64,
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
pub fn run_cli(args: &CoopArgs, out: &mut dyn Write) -> Result<(), SimError> {
    let page = u64::from(args.page_kib) << 10;
    let load = match args.figure {
        Figure::Window => Load::Window { file: args.file_mib << 20, page },
        Figure::BtioA => Load::Btio { edge: 64 },
        Figure::BtioB => Load::Btio { edge: 102 },
        Figure::Flash8 => Load::Flash { edge: 8 },
        Figure::Flash16 => Load::Flash { edge: 16 },
    };
    let ranks: Vec<u32> = args.ranks.iter().copied().filter(|ranks| load.fits(*ranks)).collect();
    if ranks.is_empty() {
        return Err(SimError::Usage(
            "no number of processes fits: BTIO takes squares, the window two pages of the file for each",
        ));
    }
    figure(args, load, &ranks).show(args.json, args.csv.as_deref(), args.plot.as_deref(), out)
}

/// Bandwidth by processes and scheme.
fn figure(args: &CoopArgs, load: Load, ranks: &[u32]) -> Table {
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for scheme in Scheme::ALL {
        let mut points = Vec::new();
        for ranks in ranks.iter().copied() {
            let report = driver::run(Run {
                hardware: args.machine.hardware(),
                scheme,
                load,
                ranks,
                page: args.page_kib << 10,
                pool: args.pool_mib << 20,
            });
            points.push((f64::from(ranks), report.rate() / 1e6));
            rows.push(row(scheme, ranks, &report));
        }
        lines.push(Line { name: scheme.name().into(), points });
    }
    let name = match args.figure {
        Figure::Window => "Sliding window (the paper's figure 4)",
        Figure::BtioA => "BTIO class A (the paper's figure 5)",
        Figure::BtioB => "BTIO class B (the paper's figure 5)",
        Figure::Flash8 => "FLASH I/O 8x8x8 (the paper's figure 6)",
        Figure::Flash16 => "FLASH I/O 16x16x16 (the paper's figure 6)",
    };
    Table {
        columns: vec![
            "scheme",
            "ranks",
            "MB_s",
            "seconds",
            "program_MB",
            "file_MB",
            "requests",
            "messages",
            "page_KiB",
        ],
        rows,
        notes: vec![
            "The decisions are the cache's own; machine and file system are a model whose numbers \
             are assumptions (docs/design/coop.md)."
                .into(),
        ],
        chart: Some(Chart {
            title: name.into(),
            x_label: "processes".into(),
            y_label: "MB/s".into(),
            log_x: true,
            log_y: true,
            lines,
        }),
    }
}

fn row(scheme: Scheme, ranks: u32, report: &Report) -> Vec<String> {
    vec![
        scheme.name().replace(',', " and"),
        ranks.to_string(),
        format!("{:.1}", report.rate() / 1e6),
        format!("{:.4}", report.seconds),
        format!("{:.1}", report.bytes as f64 / 1e6),
        format!("{:.1}", report.moved as f64 / 1e6),
        report.requests.to_string(),
        report.messages.to_string(),
        (report.page >> 10).to_string(),
    ]
}
