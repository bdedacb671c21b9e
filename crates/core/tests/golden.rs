//! Every policy against recorded runs of independent implementations: the same hits, and the same
//! evictions at the same requests. See `golden/README.md`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use forebay_core::policy::replay::Cache;
use forebay_core::policy::{Hint, PolicyConfig};
use serde_json::Value;

struct Case {
    name: String,
    capacity: u64,
    trace: Vec<(u64, u64)>,
    expect: Value,
    lower_bound: u64,
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

fn cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| {
        let text = include_str!("golden/cache.json");
        let all: Value = serde_json::from_str(text).expect("sound JSON");
        let cases = all["cases"].as_array().expect("a list");
        cases.iter().map(read_case).collect()
    })
}

fn read_case(case: &Value) -> Case {
    let sizes: BTreeMap<u64, u64> = case["sizes"]
        .as_object()
        .expect("a map")
        .iter()
        .map(|(id, size)| (id.parse().expect("an id"), number(size)))
        .collect();
    let trace = case["trace"].as_array().expect("a list").iter().map(number);
    Case {
        name: case["name"].as_str().expect("a name").to_owned(),
        capacity: number(&case["cache"]),
        trace: trace.map(|id| (id, sizes[&id])).collect(),
        expect: case["expect"].clone(),
        lower_bound: case["lower_bound"].as_f64().expect("a number") as u64,
    }
}

struct Run {
    hits: String,
    evictions: Vec<(u64, u64)>,
    hit_bytes: u64,
    miss_bytes: u64,
}

fn run(case: &Case, policy: &str, config: &PolicyConfig) -> Run {
    let mut cache = Cache::new(policy, config).expect("a policy");
    let objects: Vec<u64> = case.trace.iter().map(|(id, _)| *id).collect();
    cache.policy().hint(&Hint::Append { job: 0, objects: &objects });
    cache.policy().hint(&Hint::Close { job: 0 });
    let mut hits = String::new();
    let mut evictions = Vec::new();
    for (t, &(id, size)) in case.trace.iter().enumerate() {
        hits.push(if cache.request(id, size).is_hit() { '1' } else { '0' });
        let departed = cache.departed().iter().filter(|victim| !victim.dead && victim.keep == 0);
        evictions.extend(departed.map(|victim| (t as u64, victim.object)));
    }
    let counts = cache.counts();
    Run { hits, evictions, hit_bytes: counts.hit_bytes, miss_bytes: counts.miss_bytes }
}

fn assert_golden(policy: &str, recorded: &str) {
    for case in cases() {
        let run = run(case, policy, &PolicyConfig::new(case.capacity));
        let expect = &case.expect[recorded];
        let at = format!("{policy} on {}", case.name);
        assert_eq!(run.hits, expect["hit_vector"].as_str().expect("a vector"), "{at}: hits");
        assert_eq!(run.miss_bytes, number(&expect["miss_bytes"]), "{at}: bytes missed");
        assert_eq!(run.hit_bytes, number(&expect["hit_bytes"]), "{at}: bytes hit");
        if let Some(list) = expect["evict"].as_array() {
            let expected: Vec<(u64, u64)> =
                list.iter().map(|pair| (number(&pair[0]), number(&pair[1]))).collect();
            assert_eq!(run.evictions, expected, "{at}: evictions");
        }
    }
}

#[test]
fn lru_on_golden_traces_then_equal() {
    assert_golden("lru", "lru");
}

#[test]
fn lfu_on_golden_traces_then_equal() {
    assert_golden("lfu", "lfu");
}

#[test]
fn gdsf_on_golden_traces_then_equal() {
    assert_golden("gdsf", "gdsf");
}

#[test]
fn sieve_on_golden_traces_then_equal() {
    assert_golden("sieve", "sieve");
}

#[test]
fn s3fifo_on_golden_traces_then_equal() {
    assert_golden("s3fifo", "s3fifo");
}

#[test]
fn heuristic_on_golden_traces_then_equal() {
    assert_golden("heuristic", "paper");
}

#[test]
fn belady_on_golden_traces_then_equal_but_for_the_order_of_the_dead() {
    assert_golden("belady", "belady");
}

#[test]
fn belady_size_on_golden_traces_then_equal() {
    assert_golden("belady-size", "belady_size");
}

#[test]
fn min_whole_on_golden_traces_then_equal() {
    assert_golden("min-whole", "min_whole");
}

/// Whole files cannot reach the fractional bound where few of them fit. Every decision of MIN for
/// whole files is recorded (the test above), so that these figures are what the rule gives:
/// - worked-example, tiny-*: three or four files fit; the best whole-file plan is itself 1.08 to
///   1.13 times the bound;
/// - round-robin-4: a loop of which two files fit (packing: see `portfolio`);
/// - files-big: seven of forty files fit, and farthest-first gives 1.0515. No plan for whole files is
///   known below 1.041 (PFOO-U, which plans all requests at once).
#[test]
fn min_whole_against_the_bound_then_within_five_percent_but_where_few_files_fit() {
    let few = ["worked-example", "tiny-0", "tiny-1", "tiny-2", "round-robin-4"];
    for case in cases() {
        let run = run(case, "min-whole", &PolicyConfig::new(case.capacity));
        let ratio = run.miss_bytes as f64 / case.lower_bound as f64;
        let limit = match case.name.as_str() {
            "files-big" => 1.0516,
            name if few.contains(&name) => 1.4354,
            _ => 1.05,
        };
        assert!(ratio <= limit, "{}: {ratio}", case.name);
    }
}

#[test]
fn min_by_single_bytes_on_golden_traces_then_the_lower_bound_itself() {
    for case in cases() {
        let config = PolicyConfig { chunk: 1, ..PolicyConfig::new(case.capacity) };
        let run = run(case, "min", &config);
        assert_eq!(run.miss_bytes, case.lower_bound, "{}", case.name);
        assert_eq!(run.hit_bytes, number(&case.expect["min_chunk1"]["hit_bytes"]), "{}", case.name);
    }
}

#[test]
fn min_by_chunks_on_golden_traces_then_within_two_percent_of_the_bound() {
    for case in cases() {
        let run = run(case, "min", &PolicyConfig::new(case.capacity));
        let limit = case.lower_bound as f64 * 1.02;
        assert!(run.miss_bytes as f64 <= limit, "{}: {} > {limit}", case.name, run.miss_bytes);
    }
}
