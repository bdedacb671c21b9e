//! Min-cost flow: fewest missing bytes of all jobs, with at most so many jobs on a node.
//!
//! A job that goes where none of its files are costs all its bytes, wherever that is. So only what
//! jobs save counts: a matching of greatest weight, in which each node takes so many jobs, and who is
//! left over goes to any node with a place. It is found by shortest augmenting paths with prices on
//! the nodes (Jonker, Volgenant, 1987), in whole bytes, so it is exact.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::NoPlan;
use crate::model::Problem;

/// Jobs that each node takes at most: `each`, or its `most_jobs` if that is less.
#[must_use]
pub fn limits(problem: &Problem, each: usize) -> Vec<usize> {
    problem.nodes.iter().map(|node| node.most_jobs.min(each)).collect()
}

/// What a job saves on a node.
#[derive(Debug, Clone, Copy)]
struct Edge {
    node: usize,
    saves: i64,
}

/// The matching while it grows.
struct Matching {
    edges: Vec<Vec<Edge>>,
    /// Whether a job can run anywhere.
    anywhere: Vec<bool>,
    limit: Vec<usize>,
    on: Vec<Vec<usize>>,
    /// What each job saves where it is.
    saves: Vec<i64>,
    price: Vec<i64>,
    // Of one search.
    round: u32,
    seen: Vec<u32>,
    settled: Vec<u32>,
    distance: Vec<i64>,
    /// The job that would come to a node, and the node that it would leave.
    by: Vec<(usize, Option<usize>)>,
}

/// Where a path ends.
#[derive(Debug, Clone, Copy)]
enum End {
    /// A node with a place.
    Place(usize),
    /// This job of this node (or the new one) goes anywhere.
    Anywhere(usize, Option<usize>),
}

impl Matching {
    fn new(problem: &Problem, limit: Vec<usize>) -> Self {
        let nodes = problem.nodes();
        let mut there = vec![0i64; nodes];
        let mut edges = Vec::with_capacity(problem.jobs());
        let mut anywhere = Vec::with_capacity(problem.jobs());
        for job in 0..problem.jobs() {
            let mut touched = Vec::new();
            for &file in &problem.jobs[job].reads {
                for &node in &problem.files[file].holders {
                    touched.push(node);
                    // Sums are below 2^60, as a problem checks.
                    there[node] += problem.files[file].size as i64;
                }
            }
            let fixed = problem.fixed[job].map(|(node, _)| node);
            let may = |node: usize| fixed.map_or(problem.fits(job, node), |fixed| fixed == node);
            let everywhere = (0..nodes).all(may);
            if !everywhere {
                touched = (0..nodes).collect();
            }
            touched.sort_unstable();
            touched.dedup();
            let fitting = touched.iter().filter(|node| may(**node));
            edges.push(fitting.map(|node| Edge { node: *node, saves: there[*node] }).collect());
            touched.iter().for_each(|node| there[*node] = 0);
            anywhere.push(everywhere);
        }
        Self {
            saves: vec![0; edges.len()],
            edges,
            anywhere,
            limit,
            on: vec![vec![]; nodes],
            price: vec![0; nodes],
            round: 0,
            seen: vec![0; nodes],
            settled: vec![0; nodes],
            distance: vec![0; nodes],
            by: vec![(0, None); nodes],
        }
    }

    /// Looks along the edges of a job that has `best` at `from`, `so_far` away.
    fn spread(
        &mut self,
        job: usize,
        from: Option<usize>,
        so_far: i64,
        best: i64,
        end: Option<i64>,
        heap: &mut BinaryHeap<(Reverse<i64>, Reverse<usize>)>,
    ) {
        for at in 0..self.edges[job].len() {
            let Edge { node, saves } = self.edges[job][at];
            if self.settled[node] == self.round || self.limit[node] == 0 {
                continue;
            }
            let distance = so_far + best - (saves - self.price[node]);
            if end.is_some_and(|end| end <= distance) {
                continue;
            }
            if self.seen[node] != self.round || distance < self.distance[node] {
                self.seen[node] = self.round;
                self.distance[node] = distance;
                self.by[node] = (job, from);
                heap.push((Reverse(distance), Reverse(node)));
            }
        }
    }

    /// Takes a job in; others move over where that saves more.
    fn add(&mut self, job: usize) -> Result<(), NoPlan> {
        self.round += 1;
        let worth = self.edges[job].iter().filter(|edge| self.limit[edge.node] > 0);
        let worth = worth.map(|edge| edge.saves - self.price[edge.node]).max();
        let own = self.anywhere[job].then_some(0);
        let best = worth.max(own).ok_or(NoPlan::NoRoom(job))?;
        // The best end so far, and how far away it is.
        let mut end = own.map(|own| (best - own, End::Anywhere(job, None)));
        let mut heap = BinaryHeap::new();
        let mut settled = Vec::new();
        self.spread(job, None, 0, best, end.map(|end| end.0), &mut heap);
        while let Some((Reverse(distance), Reverse(node))) = heap.pop() {
            if end.is_some_and(|(end, _)| end <= distance) {
                break;
            }
            if self.settled[node] == self.round || distance > self.distance[node] {
                continue;
            }
            if self.on[node].len() < self.limit[node] {
                end = Some((distance, End::Place(node)));
                break;
            }
            self.settled[node] = self.round;
            settled.push(node);
            for at in 0..self.on[node].len() {
                let other = self.on[node][at];
                let best = self.saves[other] - self.price[node];
                let leaves = distance + best;
                if self.anywhere[other] && end.is_none_or(|(end, _)| leaves < end) {
                    end = Some((leaves, End::Anywhere(other, Some(node))));
                }
                let so_far = end.map(|end| end.0);
                self.spread(other, Some(node), distance, best, so_far, &mut heap);
            }
        }
        let (length, end) = end.ok_or(NoPlan::NoRoom(job))?;
        for node in settled {
            self.price[node] += length - self.distance[node];
        }
        self.follow(end);
        Ok(())
    }

    /// Moves the jobs along a path, from its end on.
    fn follow(&mut self, end: End) {
        let mut free = match end {
            End::Place(node) => Some(node),
            End::Anywhere(job, from) => {
                if let Some(node) = from {
                    self.on[node].retain(|other| *other != job);
                }
                self.saves[job] = 0;
                from
            }
        };
        while let Some(node) = free {
            let (job, from) = self.by[node];
            if let Some(from) = from {
                self.on[from].retain(|other| *other != job);
            }
            let edge = self.edges[job].iter().find(|edge| edge.node == node);
            self.saves[job] = edge.map_or(0, |edge| edge.saves);
            self.on[node].push(job);
            free = from;
        }
    }
}

/// The assignment; jobs that save nothing fill the nodes with fewest jobs.
///
/// All nodes have the same limit: their share of the jobs, or as much more as is needed for all jobs
/// to find a place. Where `most_jobs` is less, that counts.
///
/// # Errors
/// [`NoPlan`], if the nodes' `most_jobs` are too low for all jobs.
pub fn assign(problem: &Problem) -> Result<Vec<usize>, NoPlan> {
    let mut each = problem.jobs().div_ceil(problem.nodes());
    loop {
        match within(problem, limits(problem, each)) {
            Err(_) if each < problem.jobs() => each += (each / 8).max(1),
            result => return result,
        }
    }
}

fn within(problem: &Problem, limit: Vec<usize>) -> Result<Vec<usize>, NoPlan> {
    let places = limit.iter().fold(0usize, |sum, limit| sum.saturating_add(*limit));
    if places < problem.jobs() {
        return Err(NoPlan::NoRoom(places));
    }
    let mut matching = Matching::new(problem, limit);
    // Who can save most first: later ones give up sooner, so their searches are short.
    let most = |job: &usize| matching.edges[*job].iter().map(|edge| edge.saves).max();
    let mut order: Vec<usize> = (0..problem.jobs()).collect();
    order.sort_by_cached_key(|job| Reverse(most(job)));
    for job in order {
        matching.add(job)?;
    }
    let mut assign = vec![None; problem.jobs()];
    for (node, jobs) in matching.on.iter().enumerate() {
        jobs.iter().for_each(|job| assign[*job] = Some(node));
    }
    let open = (0..problem.nodes()).filter(|node| matching.on[*node].len() < matching.limit[*node]);
    let mut open: BinaryHeap<_> =
        open.map(|node| Reverse((matching.on[node].len(), node))).collect();
    let mut placed = Vec::with_capacity(assign.len());
    for (job, node) in assign.into_iter().enumerate() {
        if let Some(node) = node {
            placed.push(node);
            continue;
        }
        let Reverse((jobs, node)) = open.pop().ok_or(NoPlan::NoRoom(job))?;
        placed.push(node);
        if jobs + 1 < matching.limit[node] {
            open.push(Reverse((jobs + 1, node)));
        }
    }
    Ok(placed)
}
