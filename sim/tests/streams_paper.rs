//! Rounds of fixed length against golden results.

use forebay_core::streams::closed_form;
use forebay_core::streams::disk::Disk;
use forebay_sim::streams::paper::{DEPTHS, Model, Variant};
use serde_json::Value;

fn golden(text: &str) -> Value {
    serde_json::from_str(text).expect("the golden file")
}

#[test]
fn toy_disk_then_exactly_the_golden_results() {
    let golden = golden(include_str!("golden/media_toy.json"));
    let mut checked = 0;
    for row in golden["rows"].as_array().expect("rows") {
        let round = row["T"].as_f64().expect("a round");
        let model =
            closed_form::Model { overhead: 0.015, device_rate: 10e6, stream_rate: 0.25e6, round };
        let sweep = model.sweep().expect("a model");
        assert_eq!(Some(sweep.streams), row["sweep"].as_u64(), "{round}");
        assert_eq!(Some(sweep.memory_bytes), row["sweep_mem"].as_f64());
        for cache in [2.0, 4.0, 8.0, 12.0] {
            let expect = &row[format!("sp_{cache}MB")];
            let prefetch = model.sweep_and_prefetch(1, Some(cache * 1e6)).expect("a model");
            let found = [prefetch.streams, prefetch.v, prefetch.p].map(Some);
            let expect = ["N", "v", "p"].map(|field| expect[field].as_u64());
            assert_eq!(found, expect, "{round} s, {cache} MB");
            checked += 1;
        }
        for (k, expect) in row["gpmp"].as_object().expect("groups") {
            let groups = model.gpmp(k.parse().expect("a number")).expect("a model");
            let found = [groups.streams, groups.v].map(Some);
            assert_eq!(found, ["N", "v"].map(|field| expect[field].as_u64()), "{round} s, {k}");
            assert_eq!(Some(groups.memory_bytes), expect["mem"].as_f64());
            checked += 1;
        }
    }
    assert_eq!(checked, 7 * (4 + 9));
}

#[test]
fn table_1_disk_then_the_golden_results_within_their_tolerance() {
    let golden = golden(include_str!("golden/media_table1.json"));
    let rows = golden["rows"].as_array().expect("rows");
    let variant = |row: &Value| match row["variant"].as_str().expect("a variant") {
        "avg rot" => Variant::default(),
        "+1 ms controller" => Variant { controller: 1e-3, ..Variant::default() },
        _ => Variant { full_rotation: true, ..Variant::default() },
    };
    let mut wrong = Vec::new();
    for row in rows {
        let number = |field: &str| row[field].as_f64().expect("a number");
        let (mbps, round) = (number("mbps"), number("T"));
        let model = Model::new(&Disk::table_1(), variant(row), mbps * 125e3, round);
        let (sweep, expect) = (model.sweep() as f64, number("sweep"));
        let off = (sweep - expect).abs();
        if off > 1.0 && off > 0.05 * expect {
            wrong.push(format!("{mbps} Mb/s, {round} s: {sweep}, not {expect}"));
        }
        for (cache, carried) in row["sp"].as_object().expect("caches") {
            let bytes = cache.parse::<f64>().expect("megabytes") * 1e6;
            for (field, deepest) in [("one_block", 1), ("multi", DEPTHS)] {
                let found = model.sweep_and_prefetch(deepest, bytes).streams as f64;
                let gain = found / sweep - 1.0;
                let golden = carried[field].as_f64().expect("streams") / expect - 1.0;
                if (gain - golden).abs() > 0.06 {
                    wrong.push(format!(
                        "{} {mbps} Mb/s, {round} s, {cache} MB, {field}: {gain:.3}, not {golden:.3}",
                        row["variant"]
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.len() * 9, wrong.join("\n"));
}
