//! `forebay sim cache` as scripts see it: the JSON of one run, and the same actions from a node's
//! recorded log.

use clap::Parser;
use forebay_core::steward::{Event, Steward, StewardConfig, TierConfig, log};
use forebay_core::unit::{Bytes, Ino, Tick, Tier};
use forebay_sim::{SimCommand, SimError, run};
use serde_json::Value;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: SimCommand,
}

fn call(words: &[&str]) -> Result<String, SimError> {
    let line = Line::try_parse_from([&["sim"], words].concat()).expect("sound arguments");
    let mut out = Vec::new();
    run(&line.command, &mut out)?;
    Ok(String::from_utf8(out).expect("text"))
}

#[test]
fn cache_on_the_worked_example_then_the_contract() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("trace.csv");
    std::fs::write(&file, "1,20\n2,40\n3,9\n4,40\n3,9\n1,20\n2,40\n4,40\n3,9\n").expect("written");
    let file = file.to_str().expect("a plain name");
    let words = ["cache", "--trace", file, "--size", "100", "--policy", "heuristic", "--json"];
    let report: Value = serde_json::from_str(&call(&words).expect("runs")).expect("JSON");
    let expected = serde_json::json!({
        "hits": 3, "misses": 6, "hit_bytes": 100, "miss_bytes": 127,
        "hit_vector": "000001110", "evictions": [[3, 3]], "lower_bound_bytes": 118,
    });
    assert_eq!(report, expected);
    let words = ["cache", "--trace", file, "--size", "100", "--policy", "min", "--json"];
    let by_bytes = [&words[..], &["--chunk", "1"]].concat();
    let report: Value = serde_json::from_str(&call(&by_bytes).expect("runs")).expect("JSON");
    assert_eq!(report["miss_bytes"], 118);
}

#[test]
fn cache_with_many_policies_and_sizes_then_table_csv_and_plot() {
    let dir = tempfile::tempdir().expect("a directory");
    let (csv, plot) = (dir.path().join("c.csv"), dir.path().join("c.svg"));
    let table = call(&[
        "cache",
        "--generate",
        "zipf",
        "--files",
        "100",
        "--requests",
        "2000",
        "--size",
        "1M,4M",
        "--policy",
        "lru,min",
        "--time",
        "--prefetch",
        "256K",
        "--csv",
        csv.to_str().expect("a name"),
        "--plot",
        plot.to_str().expect("a name"),
    ])
    .expect("runs");
    assert_eq!(table.lines().count(), 5, "{table}");
    let csv = std::fs::read_to_string(csv).expect("written");
    assert_eq!(csv.lines().count(), 5, "{csv}");
    assert!(std::fs::read_to_string(plot).expect("written").contains("lower bound"));
}

#[test]
fn cache_on_many_devices_and_depths_then_a_row_each_and_every_chart() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str| dir.path().join(name).to_str().expect("a name").to_owned();
    let (bytes, misses, time) = (file("b.svg"), file("m.svg"), file("t.svg"));
    let words = "cache --generate workflow --files 100 --requests 2000 --size 1M,4M,16M \
                 --policy lru,min --bounds --time --device disk,objects --prefetch 0,1M --json";
    let files = ["--plot", &bytes, "--plot-misses", &misses, "--plot-time", &time];
    let words: Vec<&str> = words.split_whitespace().chain(files).collect();
    let rows: Value = serde_json::from_str(&call(&words).expect("runs")).expect("JSON");
    let rows = rows.as_array().expect("a list");
    // 3 sizes x (2 policies x 2 devices x 2 depths + 3 bounds).
    assert_eq!(rows.len(), 3 * (2 * 2 * 2 + 3));
    for row in rows {
        let bound = row["lower_bound_bytes"].as_u64().expect("bytes");
        let missed = row["miss_bytes"].as_u64().expect("bytes");
        assert!(missed >= bound || row["policy"] == "(pfoo-l)", "{row}");
    }
    let lines =
        |path: &str| std::fs::read_to_string(path).expect("written").matches("<polyline").count();
    assert_eq!((lines(&bytes), lines(&misses), lines(&time)), (6, 2, 8));
}

#[test]
fn cache_saved_as_oracle_general_then_the_same_results_when_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("t.oracleGeneral");
    let path = path.to_str().expect("a plain name");
    let made = ["cache", "--generate", "zipf", "--files", "200", "--requests", "5000"];
    call(&[&made[..], &["--save", path, "--save-format", "oracle"]].concat()).expect("written");
    let run = ["--size", "1M", "--policy", "s3fifo", "--json"];
    let from_file = call(&[&["cache", "--trace", path], &run[..]].concat()).expect("runs");
    assert_eq!(from_file, call(&[&made[..], &run[..]].concat()).expect("runs"));
}

#[test]
fn cache_with_a_wrong_name_then_the_names_that_there_are() {
    let error = call(&["cache", "--generate", "zipf", "--size", "1M", "--policy", "nope"]);
    let text = error.expect_err("no such policy").to_string();
    assert!(text.contains("nope") && text.contains("min-whole"), "{text}");
}

#[test]
fn replay_of_a_recorded_node_then_the_same_actions_and_a_forged_one_is_found() {
    let config = StewardConfig::new(vec![TierConfig::new(Bytes(400))], "s3fifo");
    let mut steward = Steward::new(&config).expect("sound");
    let mut text = String::new();
    log::write_head(&config, &mut text);
    let mut actions = Vec::new();
    for at in 0..400u64 {
        let object = Ino(at * at % 37);
        let size = Bytes(20 + object.0);
        for event in [
            Event::Access { object, size, write: false },
            Event::Wanted { object, size, prefetch: false },
            Event::Resident { object, tier: Tier(0), bytes: size },
        ] {
            actions.clear();
            steward.step(Tick(at), &event, &mut actions);
            log::write_step(Tick(at), &event, &actions, &mut text);
        }
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("events.log");
    std::fs::write(&path, &text).expect("written");
    let name = path.to_str().expect("a plain name");
    assert!(call(&["replay", name]).expect("agrees").contains("all the same"));
    let evict = text.lines().find(|line| line.starts_with("> evict")).expect("evictions");
    std::fs::write(&path, text.replacen(evict, "> evict 999 0", 1)).expect("written");
    assert!(matches!(call(&["replay", name]), Err(SimError::Divergence { .. })));
}
