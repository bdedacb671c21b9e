//! Earliest completion time: jobs by rank, each to the node where it would be done first.

use crate::NoPlan;
use crate::board::{Board, Missing, Offer};
use crate::model::Problem;

/// What of a job's files each node has, gathered from the files' copies.
#[derive(Debug, Default)]
pub(crate) struct There {
    missing: Vec<Missing>,
    touched: Vec<usize>,
    /// When each node has anything free at all: what most nodes are ruled out by.
    free: Vec<f64>,
    /// When its transfers are over.
    link_free: Vec<f64>,
}

impl There {
    pub(crate) fn new(problem: &Problem, board: &Board) -> Self {
        let nodes = problem.nodes.len();
        let (missing, touched) = (vec![Missing::default(); nodes], vec![]);
        let (free, link_free) = (vec![0.0; nodes], vec![0.0; nodes]);
        let mut there = Self { missing, touched, free, link_free };
        (0..nodes).for_each(|node| there.changed(problem, board, node));
        there
    }

    /// A job was put on a node.
    pub(crate) fn changed(&mut self, problem: &Problem, board: &Board, node: usize) {
        (self.free[node], self.link_free[node]) = board.lanes[node].soonest(&problem.nodes[node]);
    }

    /// What a job misses on each node: the same everywhere but where copies are.
    fn gather(&mut self, problem: &Problem, board: &Board, job: usize) -> Missing {
        for node in self.touched.drain(..) {
            self.missing[node] = Missing::default();
        }
        let mut all = Missing::default();
        for &file in &problem.jobs[job].reads {
            if problem.writer[file] == Some(job) {
                continue;
            }
            let (size, stored) = (problem.files[file].size, problem.in_store(file));
            if stored {
                all.store += size;
            } else {
                all.link += size;
            }
            for &(node, since) in board.copies(file) {
                let there = &mut self.missing[node];
                if stored {
                    there.store += size;
                } else {
                    there.link += size;
                }
                there.coming = there.coming.max(since);
                self.touched.push(node);
            }
        }
        all
    }

    /// The node where the job is done first, and what it is offered there.
    pub(crate) fn best(
        &mut self,
        problem: &Problem,
        board: &Board,
        job: usize,
    ) -> Option<(usize, Offer)> {
        let all = self.gather(problem, board, job);
        let ready = board.ready(problem, job);
        let spec = &problem.jobs[job];
        let mut best: Option<(f64, f64, usize, Offer)> = None;
        // What a node without any of the files needs to get them, at the rates of the last one seen.
        let mut rates = (0.0, 0.0, 0.0);
        for (node, on) in problem.nodes.iter().enumerate() {
            let there = self.missing[node];
            if there == Missing::default() {
                if rates.0 != on.link || rates.1 != on.store {
                    rates = (on.link, on.store, all.transfer(on));
                }
                let link = if rates.2 > 0.0 { self.link_free[node] } else { 0.0 };
                let soonest = self.free[node].max(link).max(ready) + spec.compute_s + rates.2;
                if best.as_ref().is_some_and(|best| soonest >= best.0) {
                    continue;
                }
            }
            let lane = &board.lanes[node];
            if lane.jobs >= on.most_jobs || !problem.fits(job, node) {
                continue;
            }
            let missing = Missing {
                link: all.link - there.link,
                store: all.store - there.store,
                coming: there.coming,
            };
            let offer = lane.offer(on, spec, ready, missing);
            // The backing store serves all of them, and not faster than it can.
            let store = (board.store_bytes + missing.store) as f64 / problem.store_total;
            let key = (offer.end.max(store), offer.end);
            if best.as_ref().is_none_or(|best| key < (best.0, best.1)) {
                best = Some((key.0, key.1, node, offer));
            }
        }
        best.map(|(_, _, node, offer)| (node, offer))
    }
}

/// The assignment.
///
/// # Errors
/// [`NoPlan`], if the nodes' `most_jobs` are too low for all jobs.
pub fn assign(problem: &Problem) -> Result<Vec<usize>, NoPlan> {
    let mut board = Board::new(problem);
    let mut assign = problem.fixed_or_first();
    let mut there = There::new(problem, &board);
    for job in problem.open_jobs() {
        let (node, _) = there.best(problem, &board, job).ok_or(NoPlan::NoRoom(job))?;
        board.put(problem, job, node);
        there.changed(problem, &board, node);
        assign[job] = node;
    }
    Ok(assign)
}
