//! Any problem: limits and order hold, policies are as good as they say, and small problems are
//! compared with all assignments there are.

use forebay_schedule::measure::{self, job_bytes};
use forebay_schedule::model::Running;
use forebay_schedule::{Effort, File, Instance, Job, Node, Policy, Problem, Unsound, flow, plan};
use proptest::collection::vec;
use proptest::prelude::*;

const EFFORT: Effort = Effort { touches: 300_000 };

fn nodes() -> impl Strategy<Value = Vec<Node>> {
    let node =
        (1u32..4, 1u64..5, 0u64..600, 1u32..4).prop_map(|(slots, memory, room, rate)| Node {
            slots,
            memory_bytes: memory,
            room_bytes: room,
            link: f64::from(rate) * 10.0,
            store: f64::from(rate) * 3.0,
            most_jobs: usize::MAX,
        });
    // The first one has everything, so that every job fits somewhere.
    vec(node, 1..5).prop_map(|mut nodes| {
        (nodes[0].slots, nodes[0].memory_bytes) = (4, 8);
        nodes
    })
}

fn instance(dependent: bool) -> impl Strategy<Value = Instance> {
    let file = (1u64..200, vec(0usize..5, 0..3));
    let job = (0u32..50, vec(0usize..8, 0..4), vec(0usize..20, 0..3), 1u32..4, 0u64..5);
    (nodes(), vec(file, 8), vec(job, 0..14), any::<bool>()).prop_map(
        move |(nodes, files, jobs, writes)| {
            let file = |(size, holders): (u64, Vec<usize>)| File {
                size,
                holders: holders.into_iter().filter(|node| *node < nodes.len()).collect(),
            };
            let files = files.into_iter().map(file).collect();
            let jobs =
                jobs.into_iter().enumerate().map(|(at, (compute, reads, after, slots, memory))| {
                    Job {
                        compute_s: f64::from(compute) / 4.0,
                        reads: reads
                            .iter()
                            .map(|file| if dependent && writes { file % 7 } else { *file })
                            .collect(),
                        // File 7 is written by the first job and read by the last.
                        writes: if dependent && writes && at == 0 { vec![7] } else { vec![] },
                        after: after
                            .into_iter()
                            .filter(|earlier| dependent && *earlier < at)
                            .collect(),
                        slots,
                        memory_bytes: memory,
                    }
                });
            let mut jobs: Vec<Job> = jobs.collect();
            if dependent && writes && jobs.len() > 1 {
                jobs.last_mut().expect("not empty").reads.push(7);
            }
            Instance { nodes, files, jobs, running: vec![], store_total: 40.0 }
        },
    )
}

/// One slot a node, nothing else limited: where the makespan is a simple sum.
fn plain() -> impl Strategy<Value = Instance> {
    let file = (1u64..200, vec(0usize..3, 1..3));
    let job = (0u32..50, vec(0usize..6, 0..4));
    (1usize..4, vec(file, 6), vec(job, 1..7)).prop_map(|(nodes, files, jobs)| {
        let file = |(size, holders): (u64, Vec<usize>)| File {
            size,
            holders: holders.into_iter().map(|node| node % nodes).collect(),
        };
        let job = |(compute, reads)| Job::reading(f64::from(compute) / 4.0, reads);
        Instance {
            nodes: vec![Node::with_rate(20.0); nodes],
            files: files.into_iter().map(file).collect(),
            jobs: jobs.into_iter().map(job).collect(),
            running: vec![],
            store_total: f64::INFINITY,
        }
    })
}

/// The makespan as the golden README says it, by plain sums.
fn plain_makespan(instance: &Instance, assign: &[usize]) -> f64 {
    let of = |node: usize| {
        let jobs = instance.jobs.iter().zip(assign).filter(|(_, on)| **on == node);
        let mut files: Vec<usize> = jobs.clone().flat_map(|(job, _)| job.reads.clone()).collect();
        files.sort_unstable();
        files.dedup();
        let missing = files.iter().filter(|file| !instance.files[**file].holders.contains(&node));
        let bytes: u64 = missing.map(|file| instance.files[*file].size).sum();
        jobs.map(|(job, _)| job.compute_s).sum::<f64>() + bytes as f64 / 20.0
    };
    (0..instance.nodes.len()).map(of).fold(0.0, f64::max)
}

fn assignments(jobs: usize, nodes: usize) -> impl Iterator<Item = Vec<usize>> {
    let all = nodes.pow(jobs as u32);
    (0..all).map(move |mut number| {
        let mut digit = || {
            let node = number % nodes;
            number /= nodes;
            node
        };
        (0..jobs).map(|_| digit()).collect()
    })
}

/// The fewest bytes that jobs miss, of all assignments with the same least limit for all nodes at
/// which there are any; and the limits.
fn fewest_bytes(problem: &Problem, instance: &Instance) -> (Option<u64>, Vec<usize>) {
    let (jobs, nodes) = (instance.jobs.len(), instance.nodes.len());
    for each in jobs.div_ceil(nodes)..=jobs {
        let limits = flow::limits(problem, each);
        let allowed = |assign: &Vec<usize>| {
            let fits = assign.iter().enumerate().all(|(job, node)| problem.fits(job, *node));
            let of = |n: usize| assign.iter().filter(|on| **on == n).count();
            fits && (0..nodes).all(|n| of(n) <= limits[n])
        };
        let bytes = assignments(jobs, nodes).filter(allowed).map(|a| job_bytes(problem, &a)).min();
        if bytes.is_some() {
            return (bytes, limits);
        }
    }
    (None, vec![])
}

/// Slots, memory, order.
fn check(problem: &Problem, instance: &Instance, policy: Policy) -> Result<(), TestCaseError> {
    let plan = plan(problem, policy, EFFORT).expect("no limits of jobs");
    prop_assert_eq!(plan.assign.len(), instance.jobs.len());
    for (job, node) in plan.assign.iter().enumerate() {
        prop_assert!(problem.fits(job, *node), "job {} on node {}", job, node);
        for earlier in problem.before(job) {
            prop_assert!(plan.spans[job].begin_s >= plan.spans[*earlier].end_s);
        }
        prop_assert!(
            plan.spans[job].end_s >= plan.spans[job].begin_s + instance.jobs[job].compute_s
        );
        prop_assert!(plan.spans[job].end_s <= plan.makespan_s + 1e-9);
        // Whoever runs when this one begins.
        let at = plan.spans[job].begin_s;
        let beside = (0..plan.assign.len()).filter(|other| {
            let span = plan.spans[*other];
            plan.assign[*other] == *node && span.begin_s <= at && at < span.end_s
        });
        let (slots, memory) = beside.fold((0, 0), |(slots, memory), other| {
            let other = &instance.jobs[other];
            (slots + other.slots, memory + other.memory_bytes)
        });
        prop_assert!(slots <= instance.nodes[*node].slots);
        prop_assert!(memory <= instance.nodes[*node].memory_bytes);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn plans_any_problem_then_slots_memory_and_order_are_kept(
        instance in prop_oneof![instance(true), instance(false)],
    ) {
        let problem = Problem::new(instance.clone()).expect("sound");
        for policy in Policy::ALL {
            check(&problem, &instance, policy)?;
        }
    }

    #[test]
    fn local_search_any_problem_then_never_later_than_where_it_began(
        instance in prop_oneof![instance(true), instance(false)],
    ) {
        let problem = Problem::new(instance).expect("sound");
        let ect = plan(&problem, Policy::Ect, EFFORT).expect("a plan");
        let searched = plan(&problem, Policy::EctLs, EFFORT).expect("a plan");
        prop_assert!(searched.makespan_s <= ect.makespan_s);
        let again = plan(&problem, Policy::EctLs, EFFORT).expect("a plan");
        prop_assert_eq!(searched, again);
    }

    #[test]
    fn plans_when_all_assignments_are_tried_then_none_is_better_than_the_best(instance in plain()) {
        let problem = Problem::new(instance.clone()).expect("sound");
        let all = assignments(instance.jobs.len(), instance.nodes.len());
        let best = all.map(|assign| plain_makespan(&instance, &assign)).fold(f64::INFINITY, f64::min);
        for policy in Policy::ALL {
            let plan = plan(&problem, policy, EFFORT).expect("a plan");
            let sum = plain_makespan(&instance, &plan.assign);
            prop_assert!((plan.makespan_s - sum).abs() < 1e-9, "{} is {}", plan.makespan_s, sum);
            prop_assert!(plan.makespan_s >= best - 1e-9);
        }
        let searched = plan(&problem, Policy::EctLs, EFFORT).expect("a plan");
        prop_assert!(searched.makespan_s <= 1.02 * best + 1e-9, "{} above {}", searched.makespan_s, best);
    }

    #[test]
    fn flow_when_all_assignments_are_tried_then_no_fewer_bytes_within_the_limits(
        instance in plain(),
        limits in vec(0usize..5, 3),
    ) {
        let mut instance = instance;
        for (node, limit) in instance.nodes.iter_mut().zip(&limits) {
            node.most_jobs = *limit;
        }
        let problem = Problem::new(instance.clone()).expect("sound");
        let (best, limits) = fewest_bytes(&problem, &instance);
        let found = flow::assign(&problem);
        prop_assert_eq!(found.is_ok(), best.is_some());
        if let Ok(assign) = found {
            for (node, limit) in limits.iter().enumerate() {
                prop_assert!(assign.iter().filter(|on| **on == node).count() <= *limit);
            }
            prop_assert_eq!(Some(job_bytes(&problem, &assign)), best);
        }
    }

    #[test]
    fn flow_when_jobs_fit_on_some_nodes_only_then_no_fewer_bytes_either(
        instance in plain(),
        picky in vec(1u32..3, 7),
    ) {
        let mut instance = instance;
        instance.nodes[0].slots = 2;
        for (job, slots) in instance.jobs.iter_mut().zip(&picky) {
            job.slots = *slots;
        }
        let problem = Problem::new(instance.clone()).expect("sound");
        let (best, _) = fewest_bytes(&problem, &instance);
        let found = flow::assign(&problem).ok().map(|assign| job_bytes(&problem, &assign));
        prop_assert_eq!(found, best);
    }

    #[test]
    fn limits_of_jobs_any_then_no_policy_that_knows_them_goes_above(
        instance in instance(false),
        limits in vec(1usize..6, 4),
    ) {
        let mut instance = instance;
        for (node, limit) in instance.nodes.iter_mut().zip(&limits) {
            node.most_jobs = *limit;
        }
        let problem = Problem::new(instance.clone()).expect("sound");
        for policy in [Policy::Flow, Policy::Ect, Policy::EctLs] {
            let Ok(plan) = plan(&problem, policy, EFFORT) else { continue };
            for (node, limit) in instance.nodes.iter().enumerate() {
                let jobs = plan.assign.iter().filter(|on| **on == node).count();
                prop_assert!(jobs <= limit.most_jobs);
            }
        }
    }
}

fn two_nodes(jobs: Vec<Job>) -> Instance {
    let file = |size, node| File { size, holders: vec![node] };
    Instance {
        nodes: vec![Node::with_rate(10.0); 2],
        files: vec![file(100, 0), file(100, 0)],
        jobs,
        running: vec![],
        store_total: f64::INFINITY,
    }
}

#[test]
fn room_on_the_tier_when_too_small_then_what_does_not_fit_is_paid_for_by_every_job() {
    let mut instance = two_nodes(vec![Job::reading(1.0, vec![0]); 3]);
    let with_room = Problem::new(instance.clone()).expect("sound");
    assert_eq!(measure::plan(&with_room, vec![1, 1, 1]).bytes, 100);
    instance.nodes[1].room_bytes = 99;
    let without = Problem::new(instance).expect("sound");
    let plan = measure::plan(&without, vec![1, 1, 1]);
    assert_eq!((plan.bytes, plan.makespan_s), (300, 33.0));
}

#[test]
fn store_for_all_when_slow_then_nothing_ends_before_it_has_given_everything() {
    let mut instance = two_nodes(vec![Job::reading(1.0, vec![0]), Job::reading(1.0, vec![1])]);
    instance.files.iter_mut().for_each(|file| file.holders.clear());
    instance.store_total = 4.0;
    let problem = Problem::new(instance).expect("sound");
    let plan = plan(&problem, Policy::EctLs, EFFORT).expect("a plan");
    assert_eq!((plan.makespan_s, plan.bytes), (50.0, 200));
}

#[test]
fn output_of_a_job_when_read_by_another_then_it_waits_and_goes_where_the_output_is() {
    let producer = Job { writes: vec![1], ..Job::reading(5.0, vec![0]) };
    let problem = Problem::new(two_nodes(vec![Job::reading(1.0, vec![1]), producer]));
    let plan = plan(&problem.expect("sound"), Policy::EctLs, EFFORT).expect("a plan");
    assert_eq!((plan.assign, plan.makespan_s, plan.bytes), (vec![0, 0], 6.0, 0));
}

#[test]
fn job_that_runs_when_others_are_planned_then_stays_and_counts() {
    let mut instance = two_nodes(vec![Job::reading(1.0, vec![0]); 3]);
    instance.running = vec![Running { job: 0, node: 0, ends_s: 50.0 }];
    let problem = Problem::new(instance).expect("sound");
    for policy in Policy::ALL {
        assert_eq!(plan(&problem, policy, EFFORT).expect("a plan").assign[0], 0);
    }
    let plan = plan(&problem, Policy::EctLs, EFFORT).expect("a plan");
    assert_eq!((plan.assign, plan.makespan_s), (vec![0, 1, 1], 50.0));
}

#[test]
fn instances_when_unsound_then_refused_with_the_reason() {
    let sound = two_nodes(vec![Job::reading(1.0, vec![0]); 2]);
    let refused = |change: fn(&mut Instance)| {
        let mut instance = sound.clone();
        change(&mut instance);
        Problem::new(instance).expect_err("unsound")
    };
    assert_eq!(refused(|i| i.nodes.clear()), Unsound::NoNodes);
    assert_eq!(refused(|i| i.jobs[0].after = vec![0]), Unsound::Circle(0));
    assert_eq!(refused(|i| i.jobs[1].slots = 2), Unsound::FitsNowhere(1));
    assert!(matches!(refused(|i| i.jobs[1].reads = vec![2]), Unsound::Unknown { .. }));
    assert!(matches!(refused(|i| i.files[0].holders = vec![2]), Unsound::Unknown { .. }));
    assert!(matches!(refused(|i| i.jobs[0].compute_s = f64::NAN), Unsound::Number { .. }));
    assert!(matches!(refused(|i| i.nodes[0].link = 0.0), Unsound::Number { .. }));
    assert!(matches!(refused(|i| i.files[0].size = u64::MAX), Unsound::Number { .. }));
    let twice = refused(|i| i.jobs.iter_mut().for_each(|job| job.writes = vec![1]));
    assert_eq!(twice, Unsound::WrittenTwice(1));
}
