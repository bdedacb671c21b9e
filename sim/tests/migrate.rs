//! `forebay sim migrate` as scripts see it, and what it must show.

use clap::Parser;
use forebay_sim::{SimCommand, SimError, run};
use serde_json::Value;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: SimCommand,
}

fn call(words: &[&str]) -> Result<String, SimError> {
    let line = Line::try_parse_from([&["sim", "migrate"], words].concat()).expect("arguments");
    let mut out = Vec::new();
    run(&line.command, &mut out)?;
    Ok(String::from_utf8(out).expect("text"))
}

/// The rows of a workload on eight nodes, at half the paper's size.
fn rows(workload: &str) -> Vec<Value> {
    let words = ["--workload", workload, "--nodes", "8", "--size", "0.5", "--json"];
    serde_json::from_str(&call(&words).expect("runs")).expect("JSON")
}

fn of(rows: &[Value], placement: &str, field: &str) -> f64 {
    let row = rows.iter().find(|row| row["placement"] == placement).expect("there");
    row[field].as_f64().expect("a number")
}

#[test]
fn disjoint_tasks_when_run_then_ours_moves_none_and_the_paper_s_grid_some() {
    for workload in ["bursts", "scans"] {
        let rows = rows(workload);
        assert_eq!(of(&rows, "ours", "migrations"), 0.0, "{workload}");
        let (moved, stray) =
            (of(&rows, "paper-grid", "migrations"), of(&rows, "paper-grid", "stray"));
        assert!(moved > 0.0 && moved == stray, "{workload}: {moved} {stray}");
    }
}

#[test]
fn consumers_that_lag_when_run_then_ours_finds_all_and_sooner_than_the_paper_s_measure() {
    let rows = rows("lag");
    assert_eq!(of(&rows, "ours", "missed"), 0.0);
    assert_eq!(of(&rows, "ours", "wrong"), 0.0);
    assert!(of(&rows, "ours", "local_pct") > of(&rows, "paper", "local_pct"));
    assert!(of(&rows, "ours", "io_gain_pct") > of(&rows, "paper", "io_gain_pct"));
}

#[test]
fn many_readers_of_one_file_when_busy_then_ours_leaves_them_where_they_are() {
    assert_eq!(of(&rows("overload"), "ours", "migrations"), 0.0);
}

#[test]
fn figures_when_shown_then_table_csv_and_plot_and_equal_every_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let (csv, plot) = (dir.path().join("m.csv"), dir.path().join("m.svg"));
    let files = [csv.to_str().expect("plain"), plot.to_str().expect("plain")];
    let small = ["--nodes", "4", "--size", "0.05", "--csv", files[0], "--plot", files[1]];
    for figure in ["workloads", "rounds", "nodes"] {
        let words = [&["--figure", figure], &small[..]].concat();
        let first = call(&words).expect("shown");
        let rows = std::fs::read_to_string(&csv).expect("written");
        assert!(rows.lines().count() > 5 && rows.contains("ours"), "{rows}");
        assert!(std::fs::read_to_string(&plot).expect("written").starts_with("<svg"));
        assert_eq!(call(&words).expect("shown"), first);
    }
    assert!(call(&["--size", "0"]).is_err());
}
