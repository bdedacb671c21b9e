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
fn cache_with_every_policy_chunk_and_window_then_the_sums_hold_and_the_bound_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("t.csv");
    let file = file.to_str().expect("a plain name");
    let made = "cache --generate zipf --files 60 --requests 400 --seed 9 --save-format csv --save";
    call(&[&made.split(' ').collect::<Vec<_>>()[..], &[file]].concat()).expect("written");
    let mut bounds = std::collections::BTreeSet::new();
    for policy in forebay_core::policy::NAMES {
        for more in
            ["", "--chunk 1", "--chunk 64K", "--window 0", "--window 40", "--request-cost 1M"]
        {
            let run = ["cache", "--trace", file, "--size", "1M", "--policy", policy, "--json"];
            let words: Vec<&str> = run.into_iter().chain(more.split_whitespace()).collect();
            let report: Value = serde_json::from_str(&call(&words).expect("runs")).expect("JSON");
            let number = |name: &str| report[name].as_u64().expect("a number");
            let vector = report["hit_vector"].as_str().expect("a vector");
            let at = format!("{policy} {more}: {report}");
            assert_eq!(vector.matches('1').count() as u64, number("hits"), "{at}");
            assert_eq!((vector.len(), number("hits") + number("misses")), (400, 400), "{at}");
            let times: Vec<u64> = report["evictions"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|pair| pair[0].as_u64().expect("a request"))
                .collect();
            assert!(times.is_sorted() && times.iter().all(|t| *t < 400), "{at}");
            assert!(number("miss_bytes") >= number("lower_bound_bytes"), "{at}");
            if *policy == "min" && more == "--chunk 1" {
                assert_eq!(number("miss_bytes"), number("lower_bound_bytes"), "{at}");
            }
            bounds
                .insert((number("lower_bound_bytes"), number("hit_bytes") + number("miss_bytes")));
        }
    }
    assert_eq!(bounds.len(), 1, "the bound and all bytes are the trace's: {bounds:?}");
}

#[test]
fn cache_on_columns_of_another_simulator_then_the_same_results() {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("a plain name").to_owned()
    };
    let ours = write("ours.csv", "1,20\n2,40\n3,9\n1,20\n2,40\n");
    let theirs = write("theirs.csv", "0;w;20;1\n1;r;40;2\n2;r;9;3\n3;r;20;1\n4;w;40;2\n");
    let run = ["--size", "60", "--policy", "lru", "--json"];
    let expected = call(&[&["cache", "--trace", &ours][..], &run].concat()).expect("runs");
    let columns = "time-col=1, obj-id-col=4, obj-size-col=3, op-col=2, delimiter=;";
    let words = [&["cache", "--trace", &theirs, "--csv-columns", columns][..], &run].concat();
    assert_eq!(call(&words).expect("runs"), expected);
    let error = call(&[&["cache", "--trace", &theirs][..], &run].concat()).expect_err("no columns");
    assert!(error.to_string().contains("--csv-columns"), "{error}");
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
fn cache_on_a_compressed_trace_then_the_same_results() {
    use std::io::Write;
    let dir = tempfile::tempdir().expect("a directory");
    let plain: Vec<u8> = (0..3_000u32)
        .flat_map(|at| format!("{},{}\n", at * at % 97, 50 + at * at % 97).into_bytes())
        .collect();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&plain).expect("memory");
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let zstandard = ruzstd::encoding::compress_to_vec(&plain[..], level);
    let files =
        [("t.csv", plain), ("t.csv.gz", gzip.finish().expect("memory")), ("t.zst", zstandard)];
    let reports = files.map(|(name, content)| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).expect("written");
        let path = path.to_str().expect("a plain name");
        call(&["cache", "--trace", path, "--size", "2000", "--json"]).expect("runs")
    });
    assert_eq!(reports[0], reports[1]);
    assert_eq!(reports[0], reports[2]);
}

#[test]
fn cache_on_random_bytes_then_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("t.oracleGeneral");
    let mut rng = forebay_sim::rng::Rng::new(1);
    let content: Vec<u8> = (0..240).map(|_| rng.bits() as u8).collect();
    std::fs::write(&path, content).expect("written");
    let path = path.to_str().expect("a plain name");
    let error = call(&["cache", "--trace", path, "--size", "1M"]).expect_err("no trace");
    assert!(error.to_string().contains("not oracleGeneral"), "{error}");
}

#[test]
fn cache_without_bound_then_the_rest_is_the_same() {
    let made = "cache --generate zipf --files 100 --requests 2000 --size 1M,2M --policy lru,arc";
    let words: Vec<&str> = made.split(' ').collect();
    let rows = |more: &[&str]| -> Vec<Value> {
        let json = call(&[&words[..], &["--json"], more].concat()).expect("runs");
        serde_json::from_str(&json).expect("JSON")
    };
    let (with, without) = (rows(&[]), rows(&["--no-bound"]));
    assert_eq!(with.len(), 4);
    for (mut one, other) in with.into_iter().zip(without) {
        one.as_object_mut().expect("an object").remove("lower_bound_bytes").expect("a bound");
        assert_eq!(one, other);
    }
    let table = call(&[&words[..], &["--no-bound"]].concat()).expect("runs");
    assert_eq!(table.lines().count(), 5, "{table}");
}

/// A mount's S3-FIFO admits files larger than its small queue; that of the paper does not.
#[test]
fn cache_by_default_then_large_files_are_admitted_as_in_mounts() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("t.csv");
    std::fs::write(&path, "1,50\n1,50\n1,50\n").expect("written");
    let path = path.to_str().expect("a plain name");
    let words = ["cache", "--trace", path, "--size", "100", "--policy", "s3fifo", "--json"];
    let hits = |more: &[&str]| {
        let json = call(&[&words[..], more].concat()).expect("runs");
        serde_json::from_str::<Value>(&json).expect("JSON")["hits"].clone()
    };
    assert_eq!((hits(&[]), hits(&["--admit-large=false"])), (2.into(), 0.into()));
}

/// Of 4 MiB a mount's files take 93.1 %, by blocks, each with one more: 317 times 12 KiB, not 318.
#[test]
fn cache_as_mounted_then_the_marks_and_the_blocks_count() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("t.csv");
    let path = path.to_str().expect("a plain name");
    let misses = |files: u64, more: &[&str]| {
        let twice = (0..2 * files).map(|at| format!("{},5000\n", at % files));
        std::fs::write(path, twice.collect::<String>()).expect("written");
        let words = ["cache", "--trace", path, "--size", "4M", "--policy", "lru", "--json"];
        let json = call(&[&words[..], more].concat()).expect("runs");
        let report: Value = serde_json::from_str(&json).expect("JSON");
        (report["misses"].clone(), report["lower_bound_bytes"].as_u64().expect("a bound"))
    };
    assert_eq!(misses(317, &["--mounted"]), (317.into(), 317 * 12_288));
    let (above, bound) = misses(318, &["--mounted"]);
    assert_eq!(above, 636, "a loop larger than the tier");
    assert!(bound > 318 * 12_288, "the bound has the same room: {bound}");
    assert_eq!(misses(318, &[]), (318.into(), 318 * 5_000));
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
