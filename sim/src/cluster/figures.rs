//! Tables and charts over numbers of nodes.

use super::failures::{self, Failures};
use super::io::{self, Mode};
use super::metadata::{self, MetadataLoad};
use super::warm_up::{self, WarmUp};
use super::{ClusterArgs, Kept};
use crate::plot::{Chart, Line};
use crate::table::Table;

/// A number with few digits, and no more than it has.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

pub(crate) fn row(fields: &[f64]) -> Vec<String> {
    fields.iter().map(|field| short(*field)).collect()
}

fn chart(title: String, x_label: &str, y_label: &str, log_y: bool, lines: Vec<Line>) -> Chart {
    Chart { title, x_label: x_label.into(), y_label: y_label.into(), log_x: true, log_y, lines }
}

/// Creates by nodes: a server on each, the same with one replica each, and one server for all.
#[must_use]
pub fn metadata(args: &ClusterArgs) -> Table {
    let hardware = args.machine.hardware();
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for (name, replicas, central) in
        [("hash table", 0, false), ("hash table, 1 replica", 1, false), ("one server", 0, true)]
    {
        let mut points = Vec::new();
        for nodes in args.nodes.iter().copied() {
            let report = metadata::run(
                &hardware,
                &MetadataLoad {
                    nodes,
                    servers: if central { 1 } else { nodes },
                    clients: args.clients,
                    directories: 16,
                    shared: false,
                    replicas,
                    operations: args.operations,
                    seed: args.seed,
                },
            );
            points.push((f64::from(nodes), report.rate));
            let mut fields = vec![name.replace(',', ""), nodes.to_string()];
            fields.extend(row(&[
                report.rate,
                report.rate / f64::from(nodes),
                report.median as f64 / 1e3,
                report.p99 as f64 / 1e3,
                report.imbalance,
            ]));
            rows.push(fields);
        }
        lines.push(Line { name: name.into(), points });
    }
    let title = format!("Creates a second, {} clients a node, {}", args.clients, hardware.name);
    Table {
        columns: vec![
            "metadata",
            "nodes",
            "per_s",
            "per_s_node",
            "p50_us",
            "p99_us",
            "busiest/mean",
        ],
        rows,
        notes: vec![
            "Latency is from the request to its answer; the client's own time is left out.".into(),
        ],
        chart: Some(chart(title, "nodes", "creates a second", true, lines)),
    }
}

/// All clients create in one directory that is split in more and more parts.
#[must_use]
pub fn hot_directory(args: &ClusterArgs) -> Table {
    let hardware = args.machine.hardware();
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for nodes in args.nodes.iter().copied() {
        let mut points = Vec::new();
        let mut parts = 1;
        while parts <= 16 * nodes && parts <= 65_536 {
            let load = MetadataLoad {
                nodes,
                servers: nodes,
                clients: args.clients,
                directories: parts,
                shared: true,
                replicas: 0,
                operations: args.operations / 4,
                seed: args.seed,
            };
            let report = metadata::run(&hardware, &load);
            points.push((f64::from(parts), report.rate));
            rows.push(row(&[
                f64::from(nodes),
                f64::from(parts),
                report.rate,
                report.median as f64 / 1e3,
                report.p99 as f64 / 1e3,
                report.imbalance,
            ]));
            parts *= 4;
        }
        lines.push(Line { name: format!("{nodes} nodes"), points });
    }
    Table {
        columns: vec!["nodes", "parts", "per_s", "p50_us", "p99_us", "busiest/mean"],
        rows,
        notes: vec!["All clients create in one directory; parts: what it is split in.".into()],
        chart: Some(chart(
            format!("Creates a second in one directory, {}", hardware.name),
            "parts of the directory",
            "creates a second",
            true,
            lines,
        )),
    }
}

/// What each node does with blocks of 1 MiB, by nodes.
#[must_use]
pub fn io(args: &ClusterArgs) -> Table {
    let hardware = args.machine.hardware();
    let modes = [
        Mode::Local,
        Mode::Asynchronous(1),
        Mode::Synchronous(1),
        Mode::Synchronous(2),
        Mode::Code(4, 2),
        Mode::Peer,
        Mode::Backing,
    ];
    let mut rows = Vec::new();
    let mut lines: Vec<Line> =
        modes.iter().map(|mode| Line { name: mode.name(), points: Vec::new() }).collect();
    for nodes in args.nodes.iter().copied() {
        let mut local = None;
        for (mode, line) in modes.into_iter().zip(&mut lines) {
            let report = io::run(&hardware, nodes, mode, args.blocks, args.seed);
            let local = *local.get_or_insert(report.rate);
            line.points.push((f64::from(nodes), report.rate / 1e9));
            let mut fields = vec![mode.name(), nodes.to_string()];
            fields.extend(row(&[
                report.rate / 1e9,
                report.rate / 1e6 / f64::from(nodes),
                report.rate / local,
                report.network,
                report.settled,
            ]));
            rows.push(fields);
        }
    }
    Table {
        columns: vec!["io", "nodes", "GB_s", "MB_s_node", "of_local", "network/byte", "settled_s"],
        rows,
        notes: vec![
            format!(
                "Each node does {} blocks of 1 MiB; async-2: two copies, ec-4+2: shards.",
                args.blocks
            ),
            "settled_s: when asynchronous copies were there as well.".into(),
        ],
        chart: Some(chart(
            format!("Throughput of all nodes, {}", hardware.name),
            "nodes",
            "GB/s",
            true,
            lines,
        )),
    }
}

/// One data set on all nodes, by nodes and by how many die meanwhile.
#[must_use]
pub fn warm_up(args: &ClusterArgs) -> Table {
    let hardware = args.machine.hardware();
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for dying in args.dying.iter().copied() {
        let (mut points, mut alone) = (Vec::new(), Vec::new());
        for nodes in args.nodes.iter().copied() {
            let load = WarmUp {
                nodes,
                extents: args.extents,
                bytes: f64::from(args.extent_mib) * 1_048_576.0,
                depth: 4,
                dying,
                seed: args.seed,
            };
            let report = warm_up::run(&hardware, &load);
            points.push((f64::from(nodes), report.seconds));
            alone.push((f64::from(nodes), report.alone));
            rows.push(row(&[
                f64::from(nodes),
                dying,
                report.seconds,
                report.alone,
                report.from_backing,
                report.near,
                report.taken_over as f64,
                f64::from(report.complete),
            ]));
        }
        if lines.is_empty() {
            lines.push(Line { name: "each by itself".into(), points: alone });
        }
        lines.push(Line { name: format!("together, {} % die", dying * 100.0), points });
    }
    let set = args.extents * args.extent_mib;
    Table {
        columns: vec![
            "nodes",
            "dying",
            "seconds",
            "alone_s",
            "backing/set",
            "in_rack",
            "taken_over",
            "complete",
        ],
        rows,
        notes: vec![
            format!("The data set has {set} MiB. backing/set: how often each byte was read there."),
            "alone_s: arithmetic, everything for everybody from the backing store at its best."
                .into(),
        ],
        chart: Some(chart(
            format!("Seconds until all nodes have {set} MiB, {}", hardware.name),
            "nodes",
            "seconds",
            true,
            lines,
        )),
    }
}

fn failing(args: &ClusterArgs, kept: Kept, nodes: u32, per_hour: f64) -> Failures {
    let stored = kept.0.shards() as u64 * u64::from(args.groups);
    Failures {
        nodes,
        redundancy: kept.0,
        groups: args.groups,
        shard: (args.node_gib << 30) / stored,
        per_hour,
        replaced_after: 1.0,
        hours: args.hours,
        rate: args.repair_mib << 20,
        seed: args.seed,
    }
}

/// Failures, by nodes, failures an hour and redundancy.
#[must_use]
pub fn failures(args: &ClusterArgs) -> Table {
    let hardware = args.machine.hardware();
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for kept in args.redundancy.iter().copied() {
        for per_hour in args.per_hour.iter().copied() {
            let mut points = Vec::new();
            for nodes in args.nodes.iter().copied() {
                if kept.0.shards() > nodes as usize {
                    continue;
                }
                let report = failures::run(&hardware, &failing(args, kept, nodes, per_hour));
                if report.repair_median > 0.0 {
                    points.push((f64::from(nodes), report.repair_median));
                }
                let mut fields = vec![kept.to_string()];
                fields.extend(row(&[
                    f64::from(nodes),
                    per_hour,
                    report.failures as f64,
                    report.groups as f64,
                    report.lost as f64,
                    report.lost as f64 / report.groups as f64,
                    report.expected_year / report.groups as f64,
                    report.repair_median,
                    report.repair_p99,
                    report.repaired / 1e12,
                ]));
                rows.push(fields);
            }
            if !points.is_empty() {
                let name = format!("{kept}, {per_hour}/h");
                lines.push(Line { name, points });
            }
        }
    }
    Table {
        columns: vec![
            "kept",
            "nodes",
            "failures/h",
            "failures",
            "groups",
            "lost",
            "lost/group",
            "per_year",
            "repair_p50_s",
            "repair_p99_s",
            "repaired_TB",
        ],
        rows,
        notes: vec![
            format!(
                "{} hours; {} GiB a node; {} MiB/s of each node for repair; a dead node comes back \
                 empty after an hour.",
                args.hours, args.node_gib, args.repair_mib
            ),
            "per_year: how often a group is lost in a year, by arithmetic from the measured time of \
             repair."
                .into(),
        ],
        chart: Some(chart(
            format!("Seconds until all is whole after a node's death, {}", hardware.name),
            "nodes",
            "seconds (median)",
            true,
            lines,
        )),
    }
}

/// How evenly nodes are filled, by nodes.
#[must_use]
pub fn balance(args: &ClusterArgs) -> Table {
    let hardware = args.machine.hardware();
    let names = ["written locally", "after rebalancing", "placed by the core"];
    let mut lines = names.map(|name| Line { name: name.into(), points: Vec::new() });
    let mut rows = Vec::new();
    for nodes in args.nodes.iter().copied() {
        let groups = args.groups.max(32);
        let shard = (args.node_gib << 30) / (2 * u64::from(groups));
        let rate = args.repair_mib << 20;
        let report = failures::balance(&hardware, nodes, groups, shard, rate, args.seed);
        for (line, y) in lines.iter_mut().zip([report.skewed, report.balanced, report.placed]) {
            line.points.push((f64::from(nodes), y));
        }
        rows.push(row(&[
            f64::from(nodes),
            report.skewed,
            report.balanced,
            report.placed,
            report.moved,
            report.seconds,
            report.drain,
        ]));
    }
    Table {
        columns: vec!["nodes", "skewed", "balanced", "placed", "moved", "seconds", "drain_s"],
        rows,
        notes: vec![
            "skewed, balanced, placed: the fullest node as a multiple of the mean, where files stay \
             with skewed writers, after rebalancing, and where the core places both copies."
                .into(),
            "moved: share of all bytes; drain_s: seconds to empty one node.".into(),
        ],
        chart: Some(chart(
            format!("Fullest node, as a multiple of the mean, {}", hardware.name),
            "nodes",
            "multiple of the mean",
            false,
            lines.into(),
        )),
    }
}
