//! `forebay sim schedule` as scripts see it.

use clap::Parser;
use forebay_sim::{SimCommand, SimError, run};
use serde_json::{Value, json};

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: SimCommand,
}

fn call(words: &[&str]) -> Result<String, SimError> {
    let line = Line::try_parse_from([&["sim", "schedule"], words].concat()).expect("arguments");
    let mut out = Vec::new();
    run(&line.command, &mut out)?;
    Ok(String::from_utf8(out).expect("text"))
}

const GOLDEN: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/schedule/tests/golden/schedules.json");

fn golden() -> Value {
    let text = std::fs::read_to_string(GOLDEN).expect("there");
    serde_json::from_str(&text).expect("JSON")
}

fn seconds(value: &Value) -> f64 {
    value.as_f64().expect("seconds")
}

#[test]
fn instance_alone_when_placed_then_the_contract() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("instance.json");
    let golden = golden();
    for case in golden["cases"].as_array().expect("cases") {
        std::fs::write(&file, case["instance"].to_string()).expect("written");
        let file = file.to_str().expect("a plain name");
        for (policy, name) in [
            ("algorithm1-printed", "algorithm1_printed"),
            ("algorithm1", "algorithm1_corrected"),
            ("ect", "ect"),
        ] {
            let said = call(&["--instance", file, "--policy", policy, "--json"]).expect("placed");
            let report: Value = serde_json::from_str(&said).expect("JSON");
            let expected = &case["expect"][name];
            let keys: Vec<&String> = report.as_object().expect("an object").keys().collect();
            assert_eq!(keys, ["assign", "bytes", "makespan", "max_jobs"]);
            assert_eq!(report["assign"], expected["assign"]);
            assert_eq!(report["bytes"], expected["bytes"]);
            assert_eq!(report["max_jobs"], expected["maxjobs"]);
            assert!((seconds(&report["makespan"]) - seconds(&expected["makespan"])).abs() < 1e-9);
        }
        let said = call(&["--instance", file, "--policy", "ect-ls", "--json"]).expect("placed");
        let report: Value = serde_json::from_str(&said).expect("JSON");
        let limit = 1.02 * seconds(&case["expect"]["ect_ls"]["makespan"]);
        let limit = limit.min(seconds(&case["expect"]["ect"]["makespan"]));
        assert!(seconds(&report["makespan"]) <= limit);
    }
}

#[test]
fn file_of_instances_when_placed_then_a_list_or_the_one_that_is_named() {
    let said = call(&["--instance", GOLDEN, "--policy", "algorithm1,flow", "--json"]);
    let list: Value = serde_json::from_str(&said.expect("placed")).expect("JSON");
    assert_eq!(list.as_array().map(Vec::len), Some(12));
    assert_eq!((&list[3]["name"], &list[3]["policy"]), (&json!("rand-0"), &json!("flow")));
    let words = ["--instance", GOLDEN, "--name", "all-on-one", "--policy", "flow", "--json"];
    let one: Value = serde_json::from_str(&call(&words).expect("placed")).expect("JSON");
    let expected =
        json!({"assign": [0, 1, 2, 3, 0, 1, 2, 3], "makespan": 30.0, "bytes": 3000, "max_jobs": 2});
    assert_eq!(one, expected);
    let none = call(&["--instance", GOLDEN, "--name", "other"]).expect_err("not there");
    assert!(none.to_string().contains("there is no instance `other`"), "{none}");
}

#[test]
fn instance_that_is_wrong_when_placed_then_the_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("instance.json");
    let mut case = golden()["cases"][0]["instance"].clone();
    case["after"] = json!([[0]]);
    std::fs::write(&file, case.to_string()).expect("written");
    let words = ["--instance", file.to_str().expect("a plain name")];
    let error = call(&words).expect_err("wrong").to_string();
    assert!(error.contains("job 0 depends on itself"), "{error}");
    std::fs::write(&file, "{\"machines\": 3}").expect("written");
    let error = call(&words).expect_err("wrong").to_string();
    assert!(error.contains("missing field"), "{error}");
}

#[test]
fn figures_when_shown_then_table_csv_and_plot() {
    let dir = tempfile::tempdir().expect("a directory");
    let (csv, plot) = (dir.path().join("s.csv"), dir.path().join("s.svg"));
    let files = [csv.to_str().expect("plain"), plot.to_str().expect("plain")];
    let small = ["--runs", "1", "--effort", "20000", "--csv", files[0], "--plot", files[1]];
    for figure in [&["--figure", "skew"][..], &["--figure", "nodes", "--nodes", "2,8"]] {
        call(&[figure, &small].concat()).expect("shown");
        let rows = std::fs::read_to_string(&csv).expect("written");
        assert!(rows.lines().count() > 10 && rows.contains("ect-ls"), "{rows}");
        assert!(std::fs::read_to_string(&plot).expect("written").starts_with("<svg"));
    }
}

#[test]
fn hot_file_when_all_read_it_then_locality_puts_all_jobs_on_its_node_and_the_default_does_not() {
    let rows: Value =
        serde_json::from_str(&call(&["--figure", "hot-file", "--json"]).expect("shown"))
            .expect("JSON");
    let of = |policy: &str| {
        let rows = rows.as_array().expect("rows").iter();
        rows.clone().find(|row| row["policy"] == policy).expect("there").clone()
    };
    for (policy, makespan, moved) in [
        ("algorithm1-printed", 92.0, 1.2),
        ("algorithm1", 92.0, 1.2),
        ("flow", 30.0, 3.0),
        ("ect", 30.0, 3.0),
        ("ect-ls", 30.0, 3.0),
    ] {
        assert_eq!(seconds(&of(policy)["makespan_s"]), makespan);
        assert!((seconds(&of(policy)["moved_GB"]) - moved).abs() < 1e-9);
    }
}
