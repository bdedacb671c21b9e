//! Schedules made by independent programs: `golden/README.md` says what the fields mean.

use forebay_schedule::measure::job_bytes;
use forebay_schedule::{Effort, File, Instance, Job, Node, Plan, Policy, Problem, plan};
use serde_json::Value;

fn numbers(value: &Value) -> Vec<usize> {
    let list = value.as_array().expect("a list");
    list.iter().map(|number| number.as_u64().expect("a number") as usize).collect()
}

fn problem(instance: &Value) -> Problem {
    let nodes = instance["machines"].as_u64().expect("a number") as usize;
    let rate = instance["bandwidth"].as_f64().expect("a number");
    let sizes = instance["size"].as_object().expect("sizes");
    let file = |at: usize| File {
        size: sizes[&at.to_string()].as_u64().expect("bytes"),
        holders: vec![instance["placement"][&at.to_string()].as_u64().expect("a node") as usize],
    };
    let computes = instance["compute"].as_array().expect("a list").iter();
    let reads = instance["files"].as_array().expect("a list").iter().map(numbers);
    let jobs = computes
        .zip(reads)
        .map(|(compute, reads)| Job::reading(compute.as_f64().expect("seconds"), reads));
    Problem::new(Instance {
        nodes: vec![Node::with_rate(rate); nodes],
        files: (0..sizes.len()).map(file).collect(),
        jobs: jobs.collect(),
        running: vec![],
        store_total: f64::INFINITY,
    })
    .expect("sound")
}

fn cases() -> Vec<Value> {
    let text = include_str!("golden/schedules.json");
    let file: Value = serde_json::from_str(text).expect("JSON");
    file["cases"].as_array().expect("cases").clone()
}

fn planned(case: &Value, policy: Policy) -> Plan {
    plan(&problem(&case["instance"]), policy, Effort::default()).expect("a plan")
}

fn check_equal(policy: Policy, name: &str) {
    for case in cases() {
        let (plan, expected) = (planned(&case, policy), &case["expect"][name]);
        assert_eq!(plan.assign, numbers(&expected["assign"]), "{}", case["name"]);
        // JSON numbers are read to within one unit in the last place.
        let makespan = expected["makespan"].as_f64().expect("seconds");
        assert!((plan.makespan_s - makespan).abs() < 1e-12 * makespan, "{}", case["name"]);
        assert_eq!(plan.bytes, expected["bytes"].as_u64().expect("bytes"));
        assert_eq!(plan.max_jobs as u64, expected["maxjobs"].as_u64().expect("jobs"));
    }
}

#[test]
fn algorithm_1_as_printed_on_golden_instances_then_equal() {
    check_equal(Policy::Algorithm1Printed, "algorithm1_printed");
}

#[test]
fn algorithm_1_on_golden_instances_then_equal() {
    check_equal(Policy::Algorithm1, "algorithm1_corrected");
}

#[test]
fn earliest_completion_on_golden_instances_then_equal() {
    check_equal(Policy::Ect, "ect");
}

#[test]
fn flow_on_golden_instances_then_the_same_cost_and_no_node_above_its_limit() {
    for case in cases() {
        let plan = planned(&case, Policy::Flow);
        let expected = &case["expect"]["mcf_balanced"];
        let bytes = job_bytes(&problem(&case["instance"]), &plan.assign);
        assert_eq!(bytes, expected["total_job_bytes"].as_u64().expect("bytes"), "{}", case["name"]);
        assert!(plan.max_jobs as u64 <= expected["cap"].as_u64().expect("jobs"));
    }
}

#[test]
fn default_on_golden_instances_then_near_the_reference_and_never_above_earliest_completion() {
    for case in cases() {
        let plan = planned(&case, Policy::EctLs);
        let makespan = |name: &str| case["expect"][name]["makespan"].as_f64().expect("seconds");
        println!(
            "{}: {} s, reference {}, optimum {}",
            case["name"],
            plan.makespan_s,
            makespan("ect_ls"),
            makespan("optimum")
        );
        assert!(plan.makespan_s <= 1.02 * makespan("ect_ls"), "{}", case["name"]);
        assert!(plan.makespan_s <= makespan("ect"), "{}", case["name"]);
        assert!(plan.makespan_s >= makespan("optimum") - 1e-9, "better than the optimum?");
    }
}
