//! The caching experiment of HyCache+ (section IV-E, figure 7): files of 6 to 250 MB read round
//! robin on every node with 256 MB of cache, LRU against the heuristic, "29X".
//!
//! The paper gives neither the number of distinct files nor the bandwidths, so that one number
//! cannot be reproduced; the curve that it lies on can. With W bytes read in a loop on a node, C of
//! cache, K <= C of them kept, r = cache bandwidth / disk bandwidth, and a = 2 if eviction writes
//! back (1 if not): LRU misses everything as soon as W > C, and the ratio of the times is
//! a / ((1 - K/W) + K/(W r)). It reaches 29 only where W is a few per cent above C.

mod volume;

use std::io::Write;
use std::path::PathBuf;

use forebay_core::policy::replay::Counts;
use serde::Serialize;

use crate::SimError;
use crate::cache::generate::MB;
use crate::cache::parallel;
use crate::cache::run::{Options, count};
use crate::cache::trace::{Request, Trace};
use crate::plot::{Chart, Line};
use crate::rng::Rng;

/// The cache of a node.
const CACHE: u64 = 256 * MB;
/// The ratio that the paper reports.
const CLAIM: f64 = 29.0;
/// Compared with LRU: the paper's policy, and Forebay's with whole files and by chunks.
const POLICIES: [&str; 3] = ["heuristic", "min-whole", "min"];

/// What to vary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Figure {
    /// The files of a node's loop: where the paper's ratio is reached
    Files,
    /// The gigabytes read, as figure 7 is drawn: seconds of LRU and of the heuristic
    Volume,
}

/// How to run the experiment.
#[derive(Debug, Clone, clap::Args)]
pub struct Paper29xArgs {
    /// What to show.
    #[arg(long, value_enum, default_value_t = Figure::Files)]
    pub figure: Figure,
    /// Nodes; each draws its own files.
    #[arg(long, default_value_t = 512)]
    pub nodes: u64,
    /// Gigabytes that each node reads (the paper: 64,000 GB on 512 nodes).
    #[arg(long, default_value_t = 125)]
    pub volume: u64,
    /// Cache bandwidth / disk bandwidth; `inf` for a cache that costs no time.
    #[arg(long, value_delimiter = ',', default_value = "10,100,inf")]
    pub bandwidth_ratio: Vec<f64>,
    /// Seed of the files' sizes.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Threads; as many as processors if not given.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Write all points as CSV.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write the curve as an SVG chart.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// A setting and what it gives: how many times LRU takes the time of each policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// Which part of the experiment: `random`, `fixed` or `curve`.
    pub part: &'static str,
    /// The files: how many at random, or their sizes in MB.
    pub files: String,
    /// Bytes in a node's loop / bytes of its cache, on average.
    pub working_set: f64,
    /// Cache bandwidth / disk bandwidth; null if the cache costs no time.
    pub bandwidth_ratio: f64,
    /// Whether eviction writes back.
    pub write_back: bool,
    /// Time of LRU / time of the heuristic.
    pub heuristic: f64,
    /// Time of LRU / time of Forebay-MIN with whole files.
    pub min_whole: f64,
    /// Time of LRU / time of Forebay-MIN by chunks.
    pub min: f64,
}

/// Bytes moved by LRU and by each of the policies, over all nodes of a setting.
#[derive(Debug, Clone, Default)]
struct Moved {
    lru: Counts,
    others: [Counts; 3],
}

/// The loop of one node: its files in MB, over and over for so many megabytes.
fn loop_over(sizes: &[u64], volume: u64) -> Trace {
    let mut requests = Vec::new();
    let mut read = 0;
    for (id, size) in sizes.iter().enumerate().cycle() {
        if read >= volume {
            break;
        }
        requests.push(Request { id: id as u64, size: size * MB });
        read += size;
    }
    Trace::new(requests)
}

fn add(sum: &mut Counts, more: Counts) {
    sum.hit_bytes += more.hit_bytes;
    sum.miss_bytes += more.miss_bytes;
    sum.evicted_bytes += more.evicted_bytes;
}

/// All nodes of a setting.
fn moved(nodes: &[Vec<u64>], volume: u64) -> Result<Moved, SimError> {
    let mut sum = Moved::default();
    for sizes in nodes {
        let trace = loop_over(sizes, volume);
        add(&mut sum.lru, count(&trace, &Options::new("lru", CACHE))?);
        for (sum, policy) in sum.others.iter_mut().zip(POLICIES) {
            add(sum, count(&trace, &Options::new(policy, CACHE))?);
        }
    }
    Ok(sum)
}

/// Seconds, with a disk that gives a byte a second.
fn time(counts: &Counts, bandwidth_ratio: f64, write_back: bool) -> f64 {
    let written = if write_back { counts.evicted_bytes } else { 0 };
    (counts.miss_bytes + written) as f64 + counts.hit_bytes as f64 / bandwidth_ratio
}

/// A setting before it is run.
struct Setting {
    part: &'static str,
    files: String,
    nodes: Vec<Vec<u64>>,
}

fn settings(args: &Paper29xArgs) -> Vec<Setting> {
    let mut rng = Rng::new(args.seed);
    let mut settings = Vec::new();
    for files in [2, 3, 4, 5, 8, 16, 64] {
        let draw = |_| (0..files).map(|_| rng.between(6, 250)).collect();
        let nodes = (0..args.nodes.max(1)).map(draw).collect();
        settings.push(Setting { part: "random", files: format!("{files} random"), nodes });
    }
    let fixed: [&[u64]; 6] =
        [&[250, 7], &[250, 8], &[250, 9], &[125, 125, 9], &[85, 85, 85, 9], &[250, 20]];
    for sizes in fixed {
        let names: Vec<String> = sizes.iter().map(u64::to_string).collect();
        settings.push(Setting {
            part: "fixed",
            files: names.join("+"),
            nodes: vec![sizes.to_vec()],
        });
    }
    // So many files of a 64th of the cache: a policy for whole files can fill it.
    let part = CACHE / MB / 64;
    for files in [63, 65, 66, 67, 68, 70, 72, 76, 80, 96, 128, 192, 320, 512] {
        let nodes = vec![vec![part; files]];
        settings.push(Setting { part: "curve", files: format!("{files} x {part}"), nodes });
    }
    settings
}

/// Runs the experiment.
///
/// # Errors
/// None in practice: the policies' names are known.
pub fn experiment(args: &Paper29xArgs) -> Result<Vec<Point>, SimError> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let settings = settings(args);
    let threads = args.threads.unwrap_or(processors);
    let results = parallel(threads, &settings, |s| moved(&s.nodes, args.volume * 1_000));
    let mut points = Vec::new();
    for (setting, result) in settings.iter().zip(results) {
        let moved = result?;
        let total: u64 = setting.nodes.iter().flatten().sum();
        let working_set = total as f64 / setting.nodes.len() as f64 / (CACHE / MB) as f64;
        for &bandwidth_ratio in &args.bandwidth_ratio {
            for write_back in [false, true] {
                let lru = time(&moved.lru, bandwidth_ratio, write_back);
                let [heuristic, min_whole, min] =
                    moved.others.map(|counts| lru / time(&counts, bandwidth_ratio, write_back));
                points.push(Point {
                    part: setting.part,
                    files: setting.files.clone(),
                    working_set,
                    bandwidth_ratio,
                    write_back,
                    heuristic,
                    min_whole,
                    min,
                });
            }
        }
    }
    Ok(points)
}

/// Where the heuristic's curve falls below the claim: the largest working set that still has it.
fn knife_edge(points: &[Point], bandwidth_ratio: f64, write_back: bool) -> Option<f64> {
    let curve = points.iter().filter(|point| {
        point.part == "curve"
            && point.bandwidth_ratio == bandwidth_ratio
            && point.write_back == write_back
            && point.heuristic >= CLAIM
    });
    curve.map(|point| point.working_set).max_by(f64::total_cmp)
}

/// Runs the experiment and prints it.
///
/// # Errors
/// [`SimError`]; its text tells the user what to do.
pub fn run_cli(args: &Paper29xArgs, out: &mut dyn Write) -> Result<(), SimError> {
    let (csv, chart) = match args.figure {
        Figure::Files => {
            let points = experiment(args)?;
            if !print_json(args, &points, out)? {
                print_table(args, &points, out)?;
            }
            (to_csv(&points), chart(&points))
        }
        Figure::Volume => {
            let points = volume::curve(args)?;
            if !print_json(args, &points, out)? {
                volume::print_table(args, &points, out)?;
            }
            (volume::to_csv(&points), volume::chart(args, &points))
        }
    };
    if let Some(path) = &args.csv {
        std::fs::write(path, csv).map_err(SimError::file(path))?;
    }
    if let Some(path) = &args.plot {
        std::fs::write(path, chart.to_svg()).map_err(SimError::file(path))?;
    }
    Ok(())
}

/// Prints JSON if that is what is asked for, and says whether.
fn print_json<T: Serialize>(
    args: &Paper29xArgs,
    points: &[T],
    out: &mut dyn Write,
) -> Result<bool, SimError> {
    if args.json {
        serde_json::to_writer(&mut *out, points)?;
        writeln!(out)?;
    }
    Ok(args.json)
}

fn print_table(args: &Paper29xArgs, points: &[Point], out: &mut dyn Write) -> Result<(), SimError> {
    writeln!(
        out,
        "Time of LRU / time of each policy; {} MB of cache, {} GB read on each node.\n\n\
         {:<14} {:>6} {:>8} {:>6} {:>10} {:>10} {:>10}",
        CACHE / MB,
        args.volume,
        "files (MB)",
        "W/C",
        "Bc/Bd",
        "back",
        "heuristic",
        "min-whole",
        "min"
    )?;
    for point in points {
        writeln!(
            out,
            "{:<14} {:>6.3} {:>8} {:>6} {:>10.2} {:>10.2} {:>10.2}",
            point.files,
            point.working_set,
            point.bandwidth_ratio,
            if point.write_back { "yes" } else { "no" },
            point.heuristic,
            point.min_whole,
            point.min
        )?;
    }
    writeln!(out)?;
    for &ratio in &args.bandwidth_ratio {
        for back in [false, true] {
            let with = if back { "with write-back" } else { "read only" };
            match knife_edge(points, ratio, back) {
                Some(edge) => writeln!(
                    out,
                    "Bc/Bd {ratio}, {with}: {CLAIM}X or more only up to W = {edge:.3} C"
                )?,
                None => writeln!(out, "Bc/Bd {ratio}, {with}: never {CLAIM}X")?,
            }
        }
    }
    Ok(())
}

fn to_csv(points: &[Point]) -> String {
    let mut csv =
        String::from("part,files,working_set,bandwidth_ratio,write_back,heuristic,min_whole,min\n");
    for p in points {
        csv.push_str(&format!(
            "{},{},{},{},{},{},{},{}\n",
            p.part,
            p.files,
            p.working_set,
            p.bandwidth_ratio,
            p.write_back,
            p.heuristic,
            p.min_whole,
            p.min
        ));
    }
    csv
}

fn chart(points: &[Point]) -> Chart {
    let mut lines: Vec<Line> = Vec::new();
    for point in points.iter().filter(|point| point.part == "curve") {
        let back = if point.write_back { ", write-back" } else { "" };
        let name = format!("r = {}{back}", point.bandwidth_ratio);
        let at = (point.working_set, point.heuristic);
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(at),
            None => lines.push(Line { name, points: vec![at] }),
        }
    }
    Chart {
        title: "HyCache+'s heuristic against LRU on a loop".into(),
        x_label: "bytes in the loop / bytes of cache".into(),
        y_label: "time of LRU / time of the heuristic".into(),
        log_x: true,
        log_y: false,
        lines,
    }
    .by_span()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn args() -> Paper29xArgs {
        Paper29xArgs {
            figure: Figure::Files,
            nodes: 24,
            volume: 125,
            bandwidth_ratio: vec![100.0, f64::INFINITY],
            seed: 1,
            threads: Some(2),
            json: false,
            csv: None,
            plot: None,
        }
    }

    #[test]
    fn experiment_then_29_on_a_knife_edge_and_modest_ratios_for_random_files() {
        let points = experiment(&args()).expect("known policies");
        let at = |files: &str, ratio: f64, back: bool| {
            let found = points
                .iter()
                .find(|p| p.files == files && p.bandwidth_ratio == ratio && p.write_back == back);
            found.unwrap_or_else(|| panic!("{files}")).heuristic
        };
        // Volumes and arithmetic as in the text above.
        assert!((33.0..36.0).contains(&at("250+7", f64::INFINITY, false)));
        assert!((26.0..28.5).contains(&at("250+9", f64::INFINITY, false)));
        assert!((20.5..22.5).contains(&at("250+9", 100.0, false)));
        // Files drawn as described: nowhere near.
        for files in ["4 random", "8 random", "16 random", "64 random"] {
            assert!(at(files, 100.0, false) < 3.0, "{files}");
            assert!(at(files, 100.0, true) < 6.0, "{files}");
        }
        let edge = knife_edge(&points, f64::INFINITY, false).expect("somewhere");
        assert!((1.0..1.05).contains(&edge), "{edge}");
        let chunked = points.iter().all(|p| p.min >= 0.97 * p.heuristic.max(p.min_whole));
        assert!(chunked, "by chunks is never behind");
        let below = points.iter().find(|p| p.part == "curve" && p.working_set < 1.0);
        assert!((below.expect("a point").heuristic - 1.0).abs() < 1e-9);
    }
}
