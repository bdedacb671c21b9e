//! What HyCache and HyCache+ measured, beside the model at the same scale.

use super::figures::{row, short};
use super::io::{self, Mode};
use super::metadata::{self, MetadataLoad};
use super::model::{Hardware, Machine};
use crate::plot::{Chart, Line};
use crate::table::Table;

/// Bytes that a client writes to its cache in figures 5 and 6 of HyCache+: 63 times 256 MB.
const CACHED: f64 = 63.0 * 256e6;
/// And then swaps.
const SWAPPED: f64 = 256e6;
/// Seconds of a point of the curve.
const BIN: f64 = 5.0;

/// The curve of a number of nodes: its cached level, its swapping level, when it drops.
struct Levels {
    cached: f64,
    swapping: f64,
    drop: f64,
}

fn levels(hardware: &Hardware, nodes: u32) -> (Vec<f64>, Levels) {
    let curve = io::swap(hardware, nodes, CACHED, SWAPPED, BIN);
    let cached = curve.iter().copied().fold(0.0, f64::max);
    let drop = curve.iter().position(|rate| *rate < cached / 2.0).unwrap_or(curve.len());
    // The first and the last bin of the swapping are not full.
    let end = curve.len().saturating_sub(1).max(drop + 2);
    let swapping = &curve[(drop + 1).min(curve.len())..end.min(curve.len())];
    let mean = swapping.iter().sum::<f64>() / swapping.len().max(1) as f64;
    (curve, Levels { cached, swapping: mean, drop: drop as f64 * BIN })
}

/// Throughput over time at 64 and 512 nodes.
#[must_use]
pub fn swap() -> Table {
    let hardware = Machine::Bluegene.hardware();
    let (small, large) = (levels(&hardware, 64).0, levels(&hardware, 512).0);
    let length = small.len().max(large.len());
    let at = |curve: &[f64], bin: usize| curve.get(bin).copied().unwrap_or(0.0) / 1e9;
    let rows: Vec<Vec<String>> =
        (0..length).map(|bin| row(&[bin as f64 * BIN, at(&small, bin), at(&large, bin)])).collect();
    let line = |name: &str, curve: &[f64]| Line {
        name: name.into(),
        points: (0..curve.len()).map(|bin| (bin as f64 * BIN, at(curve, bin))).collect(),
    };
    Table {
        columns: vec!["second", "nodes_64_GB_s", "nodes_512_GB_s"],
        rows,
        notes: vec![
            "HyCache+ figures 5 and 6: each client writes 15.75 GB to its cache, then 256 MB that \
             swap with GPFS; the paper has the drop at about 90 s, and both levels about 8 times \
             higher at 512 nodes. The rates themselves are not in its text."
                .into(),
        ],
        chart: Some(Chart {
            title: "Caches that fill, then swap (bluegene)".into(),
            x_label: "seconds".into(),
            y_label: "GB/s".into(),
            log_x: false,
            log_y: true,
            lines: vec![line("64 nodes", &small), line("512 nodes", &large)],
        }),
    }
}

/// Creates a second of so many nodes of Kodiak, one client each.
fn kodiak(nodes: u32, servers: u32, seed: u64) -> f64 {
    let load = MetadataLoad {
        nodes,
        servers,
        clients: 1,
        directories: 16,
        shared: false,
        replicas: 0,
        operations: 50_000,
        seed,
    };
    metadata::run(&Machine::Kodiak.hardware(), &load).rate
}

/// One row for each number that the papers state.
#[must_use]
pub fn table(seed: u64) -> Table {
    let bluegene = Machine::Bluegene.hardware();
    let (small, large) = (levels(&bluegene, 64).1, levels(&bluegene, 512).1);
    let write = |mode| io::run(&bluegene, 128, mode, 64, seed).rate;
    let local = write(Mode::Local);
    let mut rows = Vec::new();
    let mut add = |what: &str, paper: &str, model: f64, note: &str| {
        rows.push(vec![what.into(), paper.into(), short(model), note.into()]);
    };
    add("fig. 5: drop of 64 nodes (s)", "90", small.drop, "assumed: rate of a client from it");
    add("fig. 6: cached, 512 to 64 nodes", "8", large.cached / small.cached, "stated");
    add("fig. 6: swapping, 512 to 64 nodes", "8", large.swapping / small.swapping, "stated");
    let ratio = small.cached / small.swapping;
    add("cached to GPFS, 64 nodes", "100", ratio, "stated as two orders of magnitude");
    let ratio = write(Mode::Asynchronous(1)) / local;
    add("IV-D: asynchronous, 128 nodes", "0.90", ratio, "stated; burst within the lag allowed");
    let ratio = write(Mode::Synchronous(1)) / local;
    add("IV-D: synchronous, 128 nodes", "0.68", ratio, "stated; number of copies not stated");
    let ratio = write(Mode::Code(4, 2)) / local;
    add("II-E: erasure code 4+2, 128 nodes", "-", ratio, "not measured in the paper");
    add("fig. 7: heuristic to LRU", "29", f64::NAN, "forebay sim paper-29x");
    let (cached, plain) = figure_8(seed);
    add("fig. 8: with cache to without, 64 nodes", "2.2", cached / plain, "stated");
    for nodes in [1, 64, 128, 256, 512] {
        let paper = if nodes == 512 { "509022" } else { "-" };
        let note = if nodes == 512 { "stated" } else { "in the drawing only" };
        let what = format!("HyCache fig. 10: creates/s, {nodes} nodes");
        add(&what, paper, kodiak(nodes, nodes, seed), note);
    }
    let note = "HDFS on Kodiak; the model's server is far faster than a name node";
    add("HyCache fig. 10: one server, 512 nodes", "57", kodiak(512, 1, seed), note);
    for fields in &mut rows {
        if fields[2] == "NaN" {
            fields[2] = "-".into();
        }
        fields[3] = fields[3].replace(',', ";");
        fields[0] = fields[0].replace(',', ";");
    }
    Table {
        columns: vec!["what", "paper", "model", "the paper's number"],
        rows,
        notes: vec![
            "The model has one metadata round trip for a create, and no FUSE or operating system but \
             as a rate; its machines' numbers are partly assumed (docs/design/sim-cluster.md). What it can \
             show is how things scale, not whether the papers' systems were fast."
                .into(),
        ],
        chart: None,
    }
}

/// HyCache+ figure 8: 64 nodes with 1 Gb/s and a hard disk each, with and without a cache in memory.
fn figure_8(seed: u64) -> (f64, f64) {
    let disks = Hardware {
        // 64 disks of about 100 MB/s, behind each node's own link: chunks lie on other nodes.
        backing: 64.0 * 100e6,
        gateway_nodes: 1,
        gateway: 100e6,
        ..Machine::Kodiak.hardware()
    };
    let rate = |mode| io::run(&disks, 64, mode, 64, seed).rate;
    (rate(Mode::Local), rate(Mode::Backing))
}
