//! Rounds of fixed length against golden results.

use forebay_core::streams::closed_form;
use forebay_core::streams::disk::Disk;
use forebay_sim::streams::figures;
use forebay_sim::streams::paper::{DEPTHS, Model, Variant};
use proptest::prelude::*;
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

/// A device in whole numbers, so that the independent arithmetic is exact.
#[derive(Debug, Clone, Copy)]
struct Whole {
    overhead_ns: u128,
    rate: u128,
    stream: u128,
    round_ns: u128,
}

impl Whole {
    /// Device time of one round, of getting to a block, and of reading one; all in one unit.
    fn times(self) -> (u128, u128, u128) {
        (self.round_ns * self.rate, self.overhead_ns * self.rate, self.stream * self.round_ns)
    }

    fn model(self) -> closed_form::Model {
        closed_form::Model {
            overhead: self.overhead_ns as f64 / 1e9,
            device_rate: self.rate as f64,
            stream_rate: self.stream as f64,
            round: self.round_ns as f64 / 1e9,
        }
    }

    /// Streams, accesses and prefetched blocks of Sweep & Prefetch, by trying all.
    fn sweep_and_prefetch(self, depth: u128, cache: u128) -> (u128, u128, u128) {
        let (round, access, read) = self.times();
        let mut best = (0, 0, 0);
        for v in (0..=round / (access + read)).rev() {
            // A block has stream * round / 1e9 bytes.
            let held = self.stream * self.round_ns * depth * (depth + 1) / 2;
            let in_cache = cache * 1_000_000_000 / held;
            let in_time = (round - v * (access + read)) / (depth * read);
            let m = v.min(in_cache).min(in_time);
            if v + m * depth > best.0 {
                best = (v + m * depth, v, m * depth);
            }
        }
        best
    }
}

#[test]
fn gpmp_plan_when_clients_may_stop_with_full_buffers_then_it_carries_fewer_than_by_its_arithmetic()
{
    // In 2 and 4 MB: what the ring admits for certain there is 19 or 20, and 25 or 26.
    for (memory, arithmetic, at_best) in [(2e6, 20, 18), (4e6, 26, 24)] {
        assert_eq!(figures::gpmp_most(0.25e6, memory), arithmetic, "{memory}");
        assert_eq!(figures::gpmp_at_best(0.25e6, memory), at_best, "{memory}");
    }
}

fn close(found: f64, expect: f64) -> bool {
    (found - expect).abs() <= 1e-9 * expect.abs()
}

proptest! {
    #[test]
    fn any_device_then_what_trying_all_finds(
        overhead_ns in 0..60_000_000u128,
        rate in 100_000..400_000_000u128,
        stream in 10_000..4_000_000u128,
        round_ns in prop_oneof![Just(1_000_000_000u128), 1_000_000..8_000_000_000u128],
        cache in prop_oneof![0..20_000_000u128, Just(1u128 << 60)],
        k in 1..40u64,
    ) {
        let device = Whole { overhead_ns, rate, stream, round_ns };
        let (round, access, read) = device.times();
        prop_assume!(round / (access + read) < 5_000);
        let (model, block) = (device.model(), stream as f64 * round_ns as f64 / 1e9);
        let (wide, seconds) = (u128::from(k), round_ns as f64 / 1e9);

        let sweep = model.sweep().expect("a model");
        prop_assert_eq!(u128::from(sweep.streams), round / (access + read));
        prop_assert!(close(sweep.memory_bytes, 2.0 * sweep.streams as f64 * block));
        prop_assert!(close(sweep.startup_mean_s, 1.5 * seconds));

        let groups = model.gpmp(k).expect("a model");
        let visits = round / (access + wide * read);
        prop_assert_eq!((u128::from(groups.v), u128::from(groups.streams)), (visits, visits * wide));
        let memory = groups.streams as f64 * block * (k as f64 + 3.0) / 2.0;
        prop_assert!(close(groups.memory_bytes, memory));
        prop_assert!(close(groups.startup_max_s, (k + 1) as f64 * seconds));

        for depth in [1, k] {
            let found = model.sweep_and_prefetch(depth, Some(cache as f64)).expect("a model");
            let expect = device.sweep_and_prefetch(u128::from(depth), cache);
            let parts = [found.streams, found.v, found.p].map(u128::from);
            prop_assert_eq!((parts[0], parts[1], parts[2]), expect, "depth {}", depth);
        }
        let gradual = model.gradual(Some(cache as f64)).expect("a model");
        let paper = model.sweep_and_prefetch(1, Some(cache as f64)).expect("a model");
        let own = 2.0 * gradual.streams as f64 * block + gradual.p as f64 * block;
        prop_assert_eq!((gradual.streams, gradual.v, gradual.p), (paper.streams, paper.v, paper.p));
        prop_assert!(close(gradual.memory_bytes, own));
        prop_assert!(close(gradual.startup_mean_s, 1.5 * seconds));
        prop_assert!(close(paper.startup_mean_s, 2.5 * seconds));
    }
}
