//! Figure 7 as it is drawn: seconds of LRU and of the heuristic over the gigabytes that all nodes read.
//!
//! The paper gives one point, 86,232 s against 3,009 s at 64,000 GB. Its seconds of LRU there, where
//! every byte comes from the disk, give the rate of the model's disks; all else follows from what the
//! policies move.

use std::io::Write;

use serde::Serialize;

use super::{CACHE, Counts, MB, Options, Paper29xArgs, add, count, loop_over, time};
use crate::SimError;
use crate::cache::parallel;
use crate::plot::{Chart, Line};
use crate::rng::Rng;

/// What the paper reports at its largest volume: gigabytes of all nodes, seconds of LRU.
const PAPER: (f64, f64) = (64_000.0, 86_232.0);
/// Its nodes.
const PAPER_NODES: f64 = 512.0;
/// The largest volume is divided by these.
const PARTS: [u64; 8] = [128, 64, 32, 16, 8, 4, 2, 1];

/// What the loop of a node consists of.
const SETS: [(&str, Files); 4] = [
    ("250+7", Files::Fixed(&[250, 7])),
    ("2 random", Files::Random(2)),
    ("4 random", Files::Random(4)),
    ("16 random", Files::Random(16)),
];

#[derive(Debug, Clone, Copy)]
enum Files {
    Fixed(&'static [u64]),
    Random(usize),
}

/// One volume with one set of files.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VolumePoint {
    /// The files of a node: how many at random, or their sizes in MB.
    pub files: &'static str,
    /// Gigabytes that all nodes read.
    pub gigabytes: f64,
    /// Cache bandwidth / disk bandwidth; null if the cache costs no time.
    pub bandwidth_ratio: f64,
    /// Whether eviction writes back.
    pub write_back: bool,
    /// Seconds of LRU.
    pub lru_s: f64,
    /// Seconds of the heuristic.
    pub heuristic_s: f64,
}

impl VolumePoint {
    fn ratio(&self) -> f64 {
        self.lru_s / self.heuristic_s
    }
}

/// A set of files and the megabytes that each node reads of it.
struct Setting {
    files: &'static str,
    nodes: Vec<Vec<u64>>,
    megabytes: u64,
}

fn settings(args: &Paper29xArgs) -> Vec<Setting> {
    let mut rng = Rng::new(args.seed);
    let mut settings = Vec::new();
    for (files, set) in SETS {
        let nodes: Vec<Vec<u64>> = (0..args.nodes.max(1))
            .map(|_| match set {
                Files::Fixed(sizes) => sizes.to_vec(),
                Files::Random(many) => (0..many).map(|_| rng.between(6, 250)).collect(),
            })
            .collect();
        for part in PARTS {
            let megabytes = args.volume * 1_000 / part;
            settings.push(Setting { files, nodes: nodes.clone(), megabytes });
        }
    }
    settings
}

/// Bytes moved by LRU and by the heuristic on all nodes.
fn moved(setting: &Setting) -> Result<[Counts; 2], SimError> {
    let mut sums = [Counts::default(), Counts::default()];
    for sizes in &setting.nodes {
        let trace = loop_over(sizes, setting.megabytes);
        for (sum, policy) in sums.iter_mut().zip(["lru", "heuristic"]) {
            add(sum, count(&trace, &Options::new(policy, CACHE))?);
        }
    }
    Ok(sums)
}

/// Runs every volume.
///
/// # Errors
/// None in practice: the policies' names are known.
pub fn curve(args: &Paper29xArgs) -> Result<Vec<VolumePoint>, SimError> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let settings = settings(args);
    let results = parallel(args.threads.unwrap_or(processors), &settings, moved);
    let nodes = args.nodes.max(1) as f64;
    // All nodes work at once, so that a node's share of the seconds counts.
    let disk = PAPER.0 * 1e9 / PAPER.1 / PAPER_NODES;
    let mut points = Vec::new();
    for (setting, result) in settings.iter().zip(results) {
        let [lru, heuristic] = result?;
        for &bandwidth_ratio in &args.bandwidth_ratio {
            for write_back in [false, true] {
                let seconds = |counts| time(counts, bandwidth_ratio, write_back) / nodes / disk;
                points.push(VolumePoint {
                    files: setting.files,
                    gigabytes: setting.megabytes as f64 / 1e3 * nodes,
                    bandwidth_ratio,
                    write_back,
                    lru_s: seconds(&lru),
                    heuristic_s: seconds(&heuristic),
                });
            }
        }
    }
    Ok(points)
}

/// The points that the table and the chart show, of many ratios of the devices.
fn shown<'a>(
    args: &Paper29xArgs,
    points: &'a [VolumePoint],
    write_back: bool,
) -> impl Iterator<Item = &'a VolumePoint> {
    let ratio = args.bandwidth_ratio.iter().copied().fold(0.0, f64::max);
    points.iter().filter(move |p| p.bandwidth_ratio == ratio && p.write_back == write_back)
}

/// Prints the curve for the fastest cache that was asked for.
pub fn print_table(
    args: &Paper29xArgs,
    points: &[VolumePoint],
    out: &mut dyn Write,
) -> Result<(), SimError> {
    writeln!(
        out,
        "Seconds of LRU and of the heuristic by gigabytes that {} nodes read; {} MB of cache on each,\n\
         the cache {} times as fast as the disk, {:.2} MB/s from it (the paper's LRU at 64,000 GB).\n\n\
         {:<10} {:>8} {:>10} {:>10} {:>6}   {:>10} {:>10} {:>6}\n\
         {:<10} {:>8} {:>28}   {:>28}",
        args.nodes.max(1),
        CACHE / MB,
        args.bandwidth_ratio.iter().copied().fold(0.0, f64::max),
        PAPER.0 * 1e3 / PAPER.1 / PAPER_NODES,
        "files (MB)",
        "GB",
        "LRU s",
        "heur. s",
        "ratio",
        "LRU s",
        "heur. s",
        "ratio",
        "",
        "",
        "read only",
        "with write-back"
    )?;
    for (read, back) in shown(args, points, false).zip(shown(args, points, true)) {
        writeln!(
            out,
            "{:<10} {:>8.0} {:>10.0} {:>10.0} {:>6.2}   {:>10.0} {:>10.0} {:>6.2}",
            read.files,
            read.gigabytes,
            read.lru_s,
            read.heuristic_s,
            read.ratio(),
            back.lru_s,
            back.heuristic_s,
            back.ratio()
        )?;
    }
    writeln!(out, "\nThe paper at 64,000 GB: 86,232 s and 3,009 s, 28.66 times.")?;
    Ok(())
}

/// All points.
pub fn to_csv(points: &[VolumePoint]) -> String {
    let mut csv =
        String::from("files,gigabytes,bandwidth_ratio,write_back,lru_s,heuristic_s,ratio\n");
    for p in points {
        csv.push_str(&format!(
            "{},{},{},{},{},{},{}\n",
            p.files,
            p.gigabytes,
            p.bandwidth_ratio,
            p.write_back,
            p.lru_s,
            p.heuristic_s,
            p.ratio()
        ));
    }
    csv
}

/// The curves of the table, read only, with the paper's two points.
pub fn chart(args: &Paper29xArgs, points: &[VolumePoint]) -> Chart {
    let mut lines: Vec<Line> = Vec::new();
    let mut add = |name: String, at: (f64, f64)| match lines.iter_mut().find(|l| l.name == name) {
        Some(line) => line.points.push(at),
        None => lines.push(Line { name, points: vec![at] }),
    };
    for point in shown(args, points, false) {
        add(format!("heuristic {}", point.files), (point.gigabytes, point.heuristic_s));
    }
    for point in shown(args, points, false).filter(|point| point.files == "16 random") {
        add("lru 16 random".into(), (point.gigabytes, point.lru_s));
    }
    add("lru (paper)".into(), PAPER);
    add("heuristic (paper)".into(), (PAPER.0, 3_009.0));
    Chart {
        title: "HyCache+ figure 7: a loop over files, 256 MB of cache, read only".into(),
        x_label: "GB read by all nodes".into(),
        y_label: "seconds".into(),
        log_x: true,
        log_y: true,
        lines,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::args;
    use super::*;

    #[test]
    fn curve_then_seconds_of_lru_as_in_the_paper_and_ratios_that_grow_with_the_volume() {
        let mut args = args();
        args.bandwidth_ratio = vec![f64::INFINITY];
        let points = curve(&args).expect("known policies");
        let of = |files: &str| -> Vec<&VolumePoint> {
            points.iter().filter(|p| p.files == files && !p.write_back).collect()
        };
        // 125 GB on each node, all from the disk: the paper's own seconds, but for the last file.
        let last = of("16 random")[7];
        assert!((last.lru_s / PAPER.1 - 1.0).abs() < 0.02, "{last:?}");
        for (files, most) in [("250+7", 37.0), ("2 random", 6.0), ("4 random", 3.0)] {
            let ratios: Vec<f64> = of(files).iter().map(|p| p.ratio()).collect();
            assert!(ratios.is_sorted_by(|a, b| *b >= a * 0.97), "{files}: {ratios:?}");
            assert!(ratios[0] < ratios[7] && ratios[7] < most, "{files}: {ratios:?}");
        }
        assert!(of("250+7")[0].ratio() < 10.0, "the first round is read by both");
        assert!(of("250+7")[7].ratio() > 29.0);
        let chart = chart(&args, &points).to_svg();
        assert!(chart.contains("lru (paper)") && !chart.contains("NaN"), "{chart}");
        assert_eq!(to_csv(&points).lines().count(), 1 + points.len());
    }
}
