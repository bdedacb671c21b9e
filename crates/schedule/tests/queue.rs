//! Jobs that come and go.

use forebay_schedule::queue::{Queue, Refused, Task};
use forebay_schedule::{Effort, File, Instance, Job, Node, Policy, Problem, plan};
use proptest::collection::vec;
use proptest::prelude::*;

const EFFORT: Effort = Effort { touches: 100_000 };

fn node(slots: u32) -> Node {
    Node { slots, memory_bytes: 8, ..Node::with_rate(10.0) }
}

fn task(compute: u32, reads: Vec<u64>) -> Task {
    let (writes, after, slots, memory_bytes) = (vec![], vec![], 1, 1);
    Task { compute_s: f64::from(compute) / 4.0, reads, writes, after, slots, memory_bytes }
}

#[derive(Debug, Clone)]
enum Step {
    Arrive { compute: u32, reads: Vec<u64>, after: Vec<u64>, slots: u32, writes: bool },
    Start,
    Finish(u64),
    Requeue(u64),
    Replan(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let some = || vec(0u64..8, 0..3);
    prop_oneof![
        4 => (0u32..40, some(), vec(0u64..30, 0..3), 1u32..3, any::<bool>()).prop_map(
            |(compute, reads, after, slots, writes)| {
                Step::Arrive { compute, reads, after, slots, writes }
            }
        ),
        2 => Just(Step::Start),
        3 => (0u64..30).prop_map(Step::Finish),
        1 => (0u64..30).prop_map(Step::Requeue),
        1 => any::<bool>().prop_map(Step::Replan),
    ]
}

/// What must hold of what runs.
struct Model {
    runs: Vec<(u64, usize)>,
    tasks: Vec<Task>,
    done: Vec<u64>,
}

impl Model {
    fn started(&mut self, started: Vec<(u64, usize)>, nodes: &[Node]) -> Result<(), TestCaseError> {
        for (job, node) in started {
            let task = &self.tasks[job as usize];
            for earlier in &task.after {
                prop_assert!(*earlier >= self.tasks.len() as u64 || self.done.contains(earlier));
            }
            self.runs.push((job, node));
        }
        for (node, spec) in nodes.iter().enumerate() {
            let here = self.runs.iter().filter(|(_, on)| *on == node);
            let tasks = here.map(|(job, _)| &self.tasks[*job as usize]);
            let used = tasks.fold((0, 0), |(s, m), t| (s + t.slots, m + t.memory_bytes));
            prop_assert!(used.0 <= spec.slots && used.1 <= spec.memory_bytes);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn queue_any_history_then_limits_and_order_are_kept_and_all_jobs_run(
        steps in vec(step(), 0..60),
    ) {
        let nodes = vec![node(2), node(4), node(3)];
        let mut queue = Queue::new(nodes.clone(), f64::INFINITY).expect("sound");
        for file in 0..8 {
            queue.file(file, 10 * file, &[(file % 3) as usize]);
        }
        let mut model = Model { runs: vec![], tasks: vec![], done: vec![] };
        let mut now = 0.0;
        for step in steps {
            now += 1.0;
            match step {
                Step::Arrive { compute, reads, after, slots, writes } => {
                    let job = model.tasks.len() as u64;
                    let after: Vec<u64> = after.into_iter().filter(|other| *other < job).collect();
                    let writes = if writes { vec![100 + job] } else { vec![] };
                    // Half of the jobs read what another one writes.
                    let made = after.first().filter(|_| slots == 1).map(|other| 100 + other);
                    let made = made.filter(|file| {
                        model.tasks[(file - 100) as usize].writes.contains(file)
                    });
                    let reads = reads.into_iter().chain(made).collect();
                    let task = Task { writes, after, slots, ..task(compute, reads) };
                    queue.arrive(now, job, task.clone()).expect("taken");
                    model.tasks.push(task);
                }
                Step::Start => model.started(queue.start(now), &nodes)?,
                Step::Finish(job) => {
                    let before = model.runs.len();
                    model.runs.retain(|(other, _)| *other != job);
                    if model.runs.len() < before {
                        queue.finish(job);
                        model.done.push(job);
                    }
                }
                Step::Requeue(job) => {
                    model.runs.retain(|(other, _)| *other != job);
                    queue.requeue(job);
                }
                Step::Replan(search) => {
                    let policy = if search { Policy::EctLs } else { Policy::Ect };
                    queue.replan(now, policy, EFFORT).expect("a plan");
                }
            }
            let known = queue.waiting() + model.runs.len() + model.done.len();
            prop_assert_eq!(known, model.tasks.len());
        }
        for _ in 0..2 * model.tasks.len() {
            model.started(queue.start(now), &nodes)?;
            let Some((job, _)) = model.runs.pop() else { break };
            queue.finish(job);
            model.done.push(job);
        }
        prop_assert_eq!(model.done.len(), model.tasks.len());
        prop_assert_eq!(queue.waiting(), 0);
    }

    #[test]
    fn jobs_that_come_one_by_one_when_longest_first_then_placed_as_if_together(
        jobs in vec((0u32..40, vec(0u64..8, 0..4)), 0..20),
    ) {
        let nodes = vec![node(1), node(2), node(1)];
        let file = |file: u64| File { size: 10 * file, holders: vec![(file % 3) as usize] };
        let all = |(compute, reads): &(u32, Vec<u64>)| Job {
            memory_bytes: 1,
            ..Job::reading(f64::from(*compute) / 4.0, reads.iter().map(|f| *f as usize).collect())
        };
        let problem = Problem::new(Instance {
            nodes: nodes.clone(),
            files: (0..8).map(file).collect(),
            jobs: jobs.iter().map(all).collect(),
            running: vec![],
            store_total: f64::INFINITY,
        }).expect("sound");
        let together = plan(&problem, Policy::Ect, EFFORT).expect("a plan");
        let mut queue = Queue::new(nodes.clone(), f64::INFINITY).expect("sound");
        (0..8).for_each(|f| queue.file(f, 10 * f, &[(f % 3) as usize]));
        let length = |job: usize| {
            let mut reads = jobs[job].1.clone();
            reads.sort_unstable();
            reads.dedup();
            let bytes: u64 = reads.iter().map(|file| 10 * file).sum();
            f64::from(jobs[job].0) / 4.0 + bytes as f64 / 10.0
        };
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        order.sort_by(|a, b| length(*b).total_cmp(&length(*a)).then(a.cmp(b)));
        for job in order {
            let (compute, reads) = jobs[job].clone();
            let at = queue.arrive(0.0, job as u64, task(compute, reads)).expect("taken");
            prop_assert_eq!(at, together.assign[job]);
        }
        for policy in Policy::ALL {
            queue.replan(0.0, policy, EFFORT).expect("a plan");
            let planned = plan(&problem, policy, EFFORT).expect("a plan").assign;
            let placed: Vec<usize> = queue.placement().into_values().collect();
            prop_assert_eq!(placed, planned);
        }
    }

    #[test]
    fn replan_after_any_history_then_as_a_new_queue_with_what_is_left(
        before in vec((0u32..40, vec(0u64..8, 0..4)), 0..10),
        left in vec((0u32..40, vec(0u64..8, 0..4)), 0..10),
    ) {
        let nodes = vec![node(1), node(2)];
        let mut queue = Queue::new(nodes.clone(), f64::INFINITY).expect("sound");
        let mut fresh = queue.clone();
        for file in 0..8 {
            queue.file(file, 10 * file, &[(file % 2) as usize]);
            // Jobs that ran have brought files along: the new queue is told.
        }
        for (at, (compute, reads)) in before.into_iter().enumerate() {
            queue.arrive(0.0, at as u64, task(compute, reads)).expect("taken");
        }
        for round in 0..20 {
            for (job, _) in queue.start(f64::from(round)) {
                queue.finish(job);
            }
        }
        prop_assert_eq!(queue.waiting(), 0);
        for file in 0..8 {
            queue.file(file, 10 * file, &[(file % 2) as usize]);
            fresh.file(file, 10 * file, &[(file % 2) as usize]);
        }
        for (at, (compute, reads)) in left.into_iter().enumerate() {
            let job = 100 + at as u64;
            queue.arrive(30.0, job, task(compute, reads.clone())).expect("taken");
            fresh.arrive(5.0, job, task(compute, reads)).expect("taken");
        }
        prop_assert_eq!(queue.placement(), fresh.placement());
        queue.replan(30.0, Policy::EctLs, EFFORT).expect("a plan");
        fresh.replan(5.0, Policy::EctLs, EFFORT).expect("a plan");
        prop_assert_eq!(queue.placement(), fresh.placement());
    }
}

#[test]
fn job_that_is_wrong_when_it_comes_then_refused_and_the_queue_is_as_before() {
    let mut queue = Queue::new(vec![node(1)], f64::INFINITY).expect("sound");
    queue.file(1, 10, &[0]);
    queue.arrive(0.0, 1, task(4, vec![1])).expect("taken");
    assert_eq!(queue.arrive(0.0, 1, task(4, vec![])), Err(Refused::Known(1)));
    assert_eq!(queue.arrive(0.0, 2, task(4, vec![7])), Err(Refused::UnknownFile(7)));
    let large = Task { memory_bytes: 9, ..task(4, vec![]) };
    assert!(matches!(queue.arrive(0.0, 2, large), Err(Refused::Unsound(_))));
    assert_eq!(queue.waiting(), 1);
    assert_eq!(queue.start(0.0), [(1, 0)]);
    assert_eq!(queue.running_on(1), Some(0));
}

#[test]
fn nodes_that_can_take_no_more_when_a_job_comes_then_refused() {
    let mut queue =
        Queue::new(vec![Node { most_jobs: 1, ..node(4) }], f64::INFINITY).expect("sound");
    queue.arrive(0.0, 1, task(4, vec![])).expect("taken");
    assert!(matches!(queue.arrive(0.0, 2, task(4, vec![])), Err(Refused::NoPlan(_))));
    queue.start(0.0);
    queue.finish(1);
    queue.arrive(1.0, 2, task(4, vec![])).expect("there is a place again");
}

#[test]
fn job_that_needs_what_another_is_bringing_then_lets_others_go_first() {
    let nodes = vec![Node { slots: 2, ..Node::with_rate(10.0) }];
    let mut queue = Queue::new(nodes, f64::INFINITY).expect("sound");
    queue.file(1, 100, &[]);
    queue.file(2, 100, &[]);
    for (job, file) in [(0, 1), (1, 1), (2, 2), (3, 2)] {
        queue.arrive(0.0, job, task(4, vec![file])).expect("taken");
    }
    let names = |started: Vec<(u64, usize)>| -> Vec<u64> {
        started.into_iter().map(|(job, _)| job).collect()
    };
    assert_eq!(names(queue.start(0.0)), [0, 2], "not 1, which reads what 0 brings");
    queue.finish(0);
    assert_eq!(names(queue.start(1.0)), [1]);
    queue.requeue(2);
    assert_eq!(names(queue.start(1.0)), [2]);
    queue.finish(1);
    assert_eq!(names(queue.start(2.0)), [3]);
    queue.file(5, 100, &[]);
    queue.finish(2);
    queue.finish(3);
    for job in [4, 5] {
        queue.arrive(3.0, job, task(4, vec![5])).expect("taken");
    }
    assert_eq!(names(queue.start(3.0)), [4, 5], "rather than leave a slot empty");
}

#[test]
fn order_for_fetching_then_by_what_is_left_to_bring_and_long_ones_last() {
    let nodes = vec![Node { slots: 1, ..Node::with_rate(10.0) }];
    let mut queue = Queue::new(nodes, f64::INFINITY).expect("sound");
    for (file, size, holders) in [(1, 50, &[][..]), (2, 20, &[]), (3, 500, &[0])] {
        queue.file(file, size, holders);
    }
    queue.file(4, 90, &[]);
    // 0: 5 s to bring for 2 s; 1: 2 s for 9; 2: there; 3: shares with 1; 4: 9 s for 3.
    for (job, compute, reads) in
        [(0, 8, vec![1]), (1, 36, vec![2]), (2, 4, vec![3]), (3, 16, vec![2, 3]), (4, 12, vec![4])]
    {
        queue.arrive(0.0, job, task(compute, reads)).expect("taken");
    }
    queue.order_for_fetching();
    assert_eq!(queue.line(0).collect::<Vec<_>>(), [2, 1, 3, 4, 0]);
}
