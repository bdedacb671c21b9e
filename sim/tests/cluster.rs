//! `forebay sim cluster` as scripts see it, and what must hold whatever the machine's numbers are.

use clap::Parser;
use forebay_core::cluster::repair::Redundancy;
use forebay_sim::cluster::failures::{self, Failures};
use forebay_sim::cluster::io::{self, Mode};
use forebay_sim::cluster::metadata::{self, MetadataLoad, MetadataReport};
use forebay_sim::cluster::model::Machine;
use forebay_sim::cluster::warm_up::{self, WarmUp};
use forebay_sim::{SimCommand, SimError, run};
use serde_json::Value;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: SimCommand,
}

fn call(words: &[&str]) -> Result<String, SimError> {
    let words = [&["sim", "cluster"], words].concat();
    let line = Line::try_parse_from(words).expect("sound arguments");
    let mut out = Vec::new();
    run(&line.command, &mut out)?;
    Ok(String::from_utf8(out).expect("text"))
}

#[test]
fn every_figure_with_one_seed_then_the_same_numbers_and_a_table_csv_and_chart() {
    let dir = tempfile::tempdir().expect("a directory");
    for figure in ["metadata", "hot-directory", "io", "warm-up", "failures", "balance"] {
        let (csv, plot) = (dir.path().join("c.csv"), dir.path().join("c.svg"));
        let (csv, plot) = (csv.to_str().expect("plain"), plot.to_str().expect("plain"));
        let nodes = ["--nodes", "8,40", "--operations", "4000", "--blocks", "8", "--extents", "8"];
        let words = [&["--figure", figure, "--hours", "5"], &nodes[..]].concat();
        let table = call(&[&words[..], &["--csv", csv, "--plot", plot]].concat()).expect("runs");
        assert_eq!(table, call(&words).expect("runs"), "{figure}: by the seed alone");
        let rows: Value =
            serde_json::from_str(&call(&[&words[..], &["--json"]].concat()).expect("runs"))
                .expect("JSON");
        let csv = std::fs::read_to_string(csv).expect("written");
        assert_eq!(rows.as_array().map(Vec::len), Some(csv.lines().count() - 1), "{figure}");
        let columns = csv.lines().next().map(|line| line.split(',').count());
        assert!(csv.lines().all(|line| Some(line.split(',').count()) == columns), "{figure}");
        let svg = std::fs::read_to_string(plot).expect("written");
        assert!(svg.contains("<polyline") && !svg.contains("NaN"), "{figure}");
    }
}

#[test]
fn paper_table_then_the_ratios_that_the_model_can_have() {
    let rows: Value = serde_json::from_str(&call(&["--json"]).expect("runs")).expect("JSON");
    let value = |what: &str| {
        let row = rows
            .as_array()
            .expect("rows")
            .iter()
            .find(|row| row["what"].as_str().is_some_and(|name| name.starts_with(what)));
        row.and_then(|row| row["model"].as_f64()).unwrap_or_else(|| panic!("{what}: no number"))
    };
    assert!((value("fig. 6: cached") - 8.0).abs() < 0.2);
    assert!((value("fig. 6: swapping") - 8.0).abs() < 0.4);
    let (asynchronous, synchronous) = (value("IV-D: asynchronous"), value("IV-D: synchronous"));
    assert!(synchronous < asynchronous && asynchronous <= 1.0);
    assert!(
        value("HyCache fig. 10: creates/s; 512") > 1.8 * value("HyCache fig. 10: creates/s; 256")
    );
}

#[test]
fn bad_arguments_then_refused_with_advice() {
    for words in [
        &["--per-hour", "0"][..],
        &["--hours", "-1"],
        &["--per-hour", "1e9"],
        &["--dying", "1"],
        &["--figure", "paper", "--plot", "/dev/null"],
    ] {
        let words: Vec<String> =
            words.chunks(2).map(|pair| format!("{}={}", pair[0], pair[1])).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert!(matches!(call(&words), Err(SimError::Usage(_))), "{words:?}");
    }
    for words in [["--redundancy", "0"], ["--redundancy", "4+"], ["--nodes", "1"]] {
        assert!(Line::try_parse_from([&["sim", "cluster"], &words[..]].concat()).is_err());
    }
}

fn creates(nodes: u32, servers: u32, replicas: u32) -> MetadataReport {
    let load = MetadataLoad {
        nodes,
        servers,
        clients: 2,
        directories: 16,
        shared: false,
        replicas,
        operations: 50_000,
        seed: 3,
    };
    metadata::run(&Machine::Today.hardware(), &load)
}

#[test]
fn metadata_with_a_server_on_each_node_then_linear_and_one_server_is_not() {
    let (small, large) = (creates(64, 64, 0), creates(1024, 1024, 0));
    let growth = large.rate / small.rate;
    assert!((14.0..=16.5).contains(&growth), "{growth}");
    // The limit of one server is its service time.
    let one = creates(1024, 1, 0).rate;
    assert!((one / 200_000.0 - 1.0).abs() < 0.05, "{one}");
    let safe = creates(64, 64, 1);
    assert!(safe.rate < small.rate && safe.median > small.median);
    // One round trip between racks, and the service.
    assert!((20_000..30_000).contains(&large.median), "{large:?}");
}

#[test]
fn writes_with_redundancy_then_as_many_bytes_on_the_network_as_it_takes() {
    let run = |mode| io::run(&Machine::Today.hardware(), 64, mode, 16, 1);
    let local = run(Mode::Local);
    assert_eq!(local.network, 0.0);
    for (mode, network) in
        [(Mode::Asynchronous(1), 1.0), (Mode::Synchronous(2), 2.0), (Mode::Code(4, 2), 1.25)]
    {
        let report = run(mode);
        assert!((report.network - network).abs() < 1e-9, "{report:?}");
        assert!(report.rate <= local.rate * 1.001, "{report:?}");
    }
    assert!(run(Mode::Asynchronous(1)).rate > run(Mode::Synchronous(1)).rate);
    let twice = io::run(&Machine::Today.hardware(), 128, Mode::Local, 16, 1);
    assert!((twice.rate / local.rate - 2.0).abs() < 0.05);
}

#[test]
fn warm_up_without_deaths_then_each_byte_from_the_backing_store_once() {
    for nodes in [2, 33, 500] {
        let load =
            WarmUp { nodes, extents: 12, bytes: 4e6, depth: 4, dying: 0.0, seed: u64::from(nodes) };
        let report = warm_up::run(&Machine::Today.hardware(), &load);
        assert_eq!((report.from_backing, report.complete), (1.0, nodes), "{report:?}");
        assert!(nodes < 500 || report.seconds < report.alone, "{report:?}");
    }
}

#[test]
fn warm_up_with_deaths_then_the_living_have_everything_for_few_more_reads() {
    let load = WarmUp { nodes: 300, extents: 16, bytes: 16e6, depth: 4, dying: 0.3, seed: 5 };
    let report = warm_up::run(&Machine::Today.hardware(), &load);
    assert!((180..=240).contains(&report.complete), "{report:?}");
    assert!((1.0..4.0).contains(&report.from_backing), "{report:?}");
}

fn failing(redundancy: Redundancy) -> failures::FailureReport {
    let load = Failures {
        nodes: 256,
        redundancy,
        groups: 4,
        shard: 4 << 30,
        per_hour: 4.0,
        replaced_after: 1.0,
        hours: 24.0,
        rate: 64 << 20,
        seed: 2,
    };
    failures::run(&Machine::Today.hardware(), &load)
}

#[test]
fn failures_when_repaired_in_time_then_nothing_lost_and_without_redundancy_all_that_failed() {
    let one = failing(Redundancy::Replicas(1));
    assert!(one.failures > 60 && one.lost > one.failures && one.repaired == 0.0, "{one:?}");
    for redundancy in [Redundancy::Replicas(3), Redundancy::Code { data: 4, parity: 2 }] {
        let report = failing(redundancy);
        assert_eq!(report.lost, 0, "{report:?}");
        // By arithmetic a loss in the day that was simulated is unlikely as well.
        assert!(report.repaired > 0.0 && report.expected_year / 365.25 < 0.1, "{report:?}");
        // The lease, then at least one shard at the rate.
        assert!(report.repair_median > 10.0 + 60.0, "{report:?}");
    }
}

#[test]
fn balance_of_skewed_writers_then_within_the_tolerance() {
    let report = failures::balance(&Machine::Today.hardware(), 128, 64, 1 << 30, 64 << 20, 1);
    assert!(report.skewed > 1.5 && report.balanced < 1.2, "{report:?}");
    assert!(report.moved > 0.02 && report.moved < 0.5 && report.drain > 10.0, "{report:?}");
}
