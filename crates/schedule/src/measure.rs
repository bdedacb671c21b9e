//! What an assignment comes to.

use crate::board::{Board, Lane, Missing};
use crate::model::Problem;

/// When a job runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// When it has its slots and memory, in seconds.
    pub begin_s: f64,
    /// When it is done.
    pub end_s: f64,
}

/// Where every job runs, and what that comes to.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The node of each job.
    pub assign: Vec<usize>,
    /// When each job runs.
    pub spans: Vec<Span>,
    /// When the last one is done; not before the backing store has given what is asked of it.
    pub makespan_s: f64,
    /// Bytes that move: each file once to each node that keeps it.
    pub bytes: u64,
    /// Jobs of the node that has most.
    pub max_jobs: usize,
}

/// Bytes that jobs do not find on their nodes, counted for each job: what the flow makes least.
/// Files that jobs write count as found nowhere.
#[must_use]
pub fn job_bytes(problem: &Problem, assign: &[usize]) -> u64 {
    let mut bytes = 0;
    for (job, node) in problem.jobs.iter().zip(assign) {
        let missing = job.reads.iter().filter(|file| {
            let holders = &problem.files[**file].holders;
            holders.binary_search(node).is_err()
        });
        bytes += missing.map(|file| problem.files[*file].size).sum::<u64>();
    }
    bytes
}

/// The plan of an assignment. Whoever assigned sees to it that jobs fit on their nodes.
#[must_use]
pub fn plan(problem: &Problem, assign: Vec<usize>) -> Plan {
    let mut board = Board::new(problem);
    let running = |end_s: &f64| Span { begin_s: 0.0, end_s: *end_s };
    let mut spans: Vec<Span> = board.ends.iter().map(running).collect();
    for job in problem.open_jobs() {
        let offer = board.put(problem, job, assign[job]);
        spans[job] = Span { begin_s: offer.begin, end_s: offer.end };
    }
    let bytes = board.link_bytes + board.store_bytes;
    let max_jobs = board.lanes.iter().map(|lane| lane.jobs).max().unwrap_or(0);
    let last = if problem.independent() {
        // The same by other sums: so that it does not depend on the order of additions.
        let mut scale = Scale::new(problem);
        let mut on = vec![vec![]; problem.nodes()];
        for (job, node) in assign.iter().enumerate() {
            if problem.fixed[job].is_none() {
                on[*node].push(job);
            }
        }
        let loads = on.iter().enumerate().map(|(node, jobs)| scale.load(node, jobs).time);
        loads.fold(0.0, f64::max)
    } else {
        spans.iter().map(|span| span.end_s).fold(0.0, f64::max)
    };
    let makespan_s = last.max(board.store_bytes as f64 / problem.store_total);
    Plan { assign, spans, makespan_s, bytes, max_jobs }
}

/// What a node has to do.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Load {
    /// When it is done.
    pub(crate) time: f64,
    /// Bytes from other nodes.
    pub(crate) link: u64,
    /// Bytes from the backing store.
    pub(crate) store: u64,
}

/// Weighs sets of jobs of single nodes; for jobs that depend on none.
pub(crate) struct Scale<'a> {
    problem: &'a Problem,
    round: u32,
    seen: Vec<u32>,
    since: Vec<f64>,
    order: Vec<usize>,
    /// The nodes with what runs there already.
    pub(crate) lanes: Vec<Lane>,
    /// Files looked at, as a measure of the work done.
    pub(crate) touches: u64,
}

impl<'a> Scale<'a> {
    pub(crate) fn new(problem: &'a Problem) -> Self {
        let files = problem.files.len();
        let (seen, since) = (vec![0; files], vec![0.0; files]);
        let lanes = Board::new(problem).lanes;
        Self { problem, round: 0, seen, since, order: vec![], lanes, touches: 0 }
    }

    /// Begins with no file seen.
    fn next_round(&mut self) {
        if self.round == u32::MAX {
            self.seen.fill(0);
            self.round = 0;
        }
        self.round += 1;
    }

    /// What these jobs, in the order of their numbers, are for a node.
    pub(crate) fn load(&mut self, node: usize, jobs: &[usize]) -> Load {
        self.next_round();
        let on = &self.problem.nodes[node];
        if on.slots > 1 || on.room_bytes < u64::MAX || !self.lanes[node].is_free() {
            return self.replay(node, jobs);
        }
        let mut load = Load::default();
        let mut compute = 0.0;
        for &job in jobs {
            let job = &self.problem.jobs[job];
            compute += job.compute_s;
            self.touches += 1 + job.reads.len() as u64;
            for &file in &job.reads {
                if self.seen[file] == self.round {
                    continue;
                }
                self.seen[file] = self.round;
                self.count(node, file, &mut load.link, &mut load.store);
            }
        }
        load.time = compute + load.link as f64 / on.link + load.store as f64 / on.store;
        load
    }

    fn count(&self, node: usize, file: usize, link: &mut u64, store: &mut u64) -> bool {
        let spec = &self.problem.files[file];
        if spec.holders.is_empty() {
            *store += spec.size;
        } else if spec.holders.binary_search(&node).is_err() {
            *link += spec.size;
        } else {
            return false;
        }
        true
    }

    fn replay(&mut self, node: usize, jobs: &[usize]) -> Load {
        let on = &self.problem.nodes[node];
        let mut lane = self.lanes[node].clone();
        let mut load = Load { time: lane.done(), ..Load::default() };
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend_from_slice(jobs);
        order.sort_unstable_by_key(|job| self.problem.place[*job]);
        for &job in &order {
            let job = &self.problem.jobs[job];
            self.touches += 4 + job.reads.len() as u64;
            let mut missing = Missing::default();
            let mut brings = 0;
            for &file in &job.reads {
                if self.seen[file] == self.round {
                    missing.coming = missing.coming.max(self.since[file]);
                } else if self.count(node, file, &mut missing.link, &mut missing.store) {
                    brings += 1;
                }
            }
            let offer = lane.offer(on, job, 0.0, missing);
            lane.take(job, offer);
            load.time = load.time.max(offer.end);
            load.link += missing.link;
            load.store += missing.store;
            if brings == 0 {
                continue;
            }
            for &file in &job.reads {
                let held = self.problem.files[file].holders.binary_search(&node).is_ok();
                let known = held || self.seen[file] == self.round;
                if !known && lane.keep(on, self.problem.files[file].size) {
                    self.seen[file] = self.round;
                    self.since[file] = offer.data();
                }
            }
        }
        self.order = order;
        load
    }
}
