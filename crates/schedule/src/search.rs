//! Local search: from the assignment by earliest completion, single jobs move from the busiest node
//! to another, or change places with a job there, as long as the list of loads, largest first, falls.
//!
//! Where nothing helps any more and the problem is small, a few jobs are thrown elsewhere and the
//! search goes on from there; the best assignment is kept. The throws come from a fixed sequence of
//! numbers, so equal problems have equal plans. At the end jobs move where that saves bytes and costs
//! no time. The result is never worse than where the search began.

use crate::board::{Board, Lane};
use crate::measure::{self, Load, Scale};
use crate::model::Problem;

/// How much work a search may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Files looked at, about; a million takes a few milliseconds.
    pub touches: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { touches: 15_000_000 }
    }
}

/// Up to so many nodes all of them are looked at in each step.
const ALL_NODES: usize = 64;
/// With more of them, so many of those with least to do, and as many that have files.
const NEAR_NODES: usize = 24;
/// Up to so many pairs of jobs and nodes it pays to throw jobs about.
const SMALL: usize = 20_000;
/// What counts as less: a share of the time.
const LESS: f64 = 1e-9;

/// An assignment that is at least as good as `first`: an earlier end, or the same end with no more
/// bytes.
#[must_use]
pub fn improve(problem: &Problem, first: &[usize], effort: Effort) -> Vec<usize> {
    let found = if problem.independent() {
        let mut hill = Hill::new(problem, first.to_vec(), effort);
        hill.search();
        hill.assign
    } else {
        dependent(problem, first, effort)
    };
    let key = |assign: &[usize]| {
        let plan = measure::plan(problem, assign.to_vec());
        (plan.makespan_s, plan.bytes)
    };
    let (new, old) = (key(&found), key(first));
    let better = new.0 < old.0 || new.0 <= old.0 && new.1 <= old.1;
    if better { found } else { first.to_vec() }
}

fn less(a: f64, b: f64) -> bool {
    a < b - LESS * b.abs().max(1e-6)
}

/// Whether the sorted list `a` comes before `b`.
fn falls<const N: usize>(mut a: [f64; N], mut b: [f64; N]) -> bool {
    a.sort_unstable_by(|x, y| y.total_cmp(x));
    b.sort_unstable_by(|x, y| y.total_cmp(x));
    for (a, b) in a.into_iter().zip(b) {
        if less(a, b) {
            return true;
        }
        if less(b, a) {
            return false;
        }
    }
    false
}

/// One job goes from the busiest node to another, and perhaps one comes for it.
#[derive(Debug, Clone, Copy)]
struct Step {
    job: usize,
    to: usize,
    swap: Option<usize>,
    here: Load,
    there: Load,
}

/// Independent jobs: what a node has to do depends on its own jobs only.
struct Hill<'a> {
    problem: &'a Problem,
    scale: Scale<'a>,
    assign: Vec<usize>,
    on: Vec<Vec<usize>>,
    load: Vec<Load>,
    store: u64,
    effort: u64,
    scratch: Vec<usize>,
    throws: u64,
}

impl<'a> Hill<'a> {
    fn new(problem: &'a Problem, assign: Vec<usize>, effort: Effort) -> Self {
        let nodes = problem.nodes();
        let mut hill = Self {
            problem,
            scale: Scale::new(problem),
            assign: vec![],
            on: vec![vec![]; nodes],
            load: vec![Load::default(); nodes],
            store: 0,
            effort: effort.touches,
            scratch: vec![],
            throws: 0x9e37_79b9_7f4a_7c15,
        };
        hill.begin(assign);
        hill
    }

    fn begin(&mut self, assign: Vec<usize>) {
        self.on.iter_mut().for_each(Vec::clear);
        for (job, node) in assign.iter().enumerate() {
            if self.problem.fixed[job].is_none() {
                self.on[*node].push(job);
            }
        }
        for node in 0..self.on.len() {
            self.load[node] = self.scale.load(node, &self.on[node]);
        }
        self.store = self.load.iter().map(|load| load.store).sum();
        self.assign = assign;
    }

    fn spent(&self) -> bool {
        self.scale.touches >= self.effort
    }

    /// The makespan and the bytes.
    fn worth(&self) -> (f64, u64) {
        let last = self.load.iter().map(|load| load.time).fold(0.0, f64::max);
        let bytes = self.load.iter().map(|load| load.link + load.store).sum();
        (last.max(self.store_time(self.store)), bytes)
    }

    fn store_time(&self, bytes: u64) -> f64 {
        bytes as f64 / self.problem.store_total
    }

    /// The load of a node without one job and with another.
    fn weigh(&mut self, node: usize, without: usize, with: usize) -> Load {
        self.scratch.clear();
        let mut with = (with != NONE).then_some(with);
        for &job in &self.on[node] {
            if with.is_some_and(|with| with < job) {
                self.scratch.extend(with.take());
            }
            if job != without {
                self.scratch.push(job);
            }
        }
        self.scratch.extend(with);
        self.scale.load(node, &self.scratch)
    }

    fn take(&mut self, step: Step) {
        let from = self.assign[step.job];
        self.go(step.job, step.to);
        if let Some(other) = step.swap {
            self.go(other, from);
        }
        for (node, load) in [(from, step.here), (step.to, step.there)] {
            self.store = self.store - self.load[node].store + load.store;
            self.load[node] = load;
        }
    }

    fn go(&mut self, job: usize, to: usize) {
        let from = std::mem::replace(&mut self.assign[job], to);
        self.on[from].retain(|other| *other != job);
        let at = self.on[to].partition_point(|other| *other < job);
        self.on[to].insert(at, job);
    }

    fn can_take(&self, job: usize, node: usize) -> bool {
        let jobs = self.on[node].len() + self.scale.lanes[node].jobs;
        jobs < self.problem.nodes[node].most_jobs && self.problem.fits(job, node)
    }

    /// What the loads that a step changes become, with those of another one's partner beside them.
    fn outcome(&self, step: &Step, beside: usize) -> [f64; 4] {
        let from = self.assign[step.job];
        let changed = self.load[from].store + self.load[step.to].store;
        let store = self.store - changed + step.here.store + step.there.store;
        let beside = self.load[beside].time;
        [step.here.time, step.there.time, beside, self.store_time(store)]
    }

    fn better(&self, step: &Step, than: Option<&Step>) -> bool {
        let from = self.assign[step.job];
        match than {
            Some(than) => falls(self.outcome(step, than.to), self.outcome(than, step.to)),
            None => {
                let (here, there) = (self.load[from].time, self.load[step.to].time);
                let now = [here, there, 0.0, self.store_time(self.store)];
                let [a, b, _, store] = self.outcome(step, from);
                falls([a, b, 0.0, store], now)
            }
        }
    }

    /// The best step from a node, if any makes the loads fall.
    fn best_step(&mut self, from: usize, near: &[usize]) -> Option<Step> {
        let mut best: Option<Step> = None;
        let jobs = self.on[from].clone();
        for &job in &jobs {
            let without = self.weigh(from, job, NONE);
            for &to in near {
                if to == from || !self.can_take(job, to) || self.spent() {
                    continue;
                }
                let there = self.weigh(to, NONE, job);
                let step = Step { job, to, swap: None, here: without, there };
                if self.better(&step, None) && self.better(&step, best.as_ref()) {
                    best = Some(step);
                }
            }
        }
        for &job in &jobs {
            for &to in near {
                if to == from || !self.problem.fits(job, to) {
                    continue;
                }
                for at in 0..self.on[to].len() {
                    let other = self.on[to][at];
                    if !self.problem.fits(other, from) || self.spent() {
                        continue;
                    }
                    let here = self.weigh(from, job, other);
                    if !less(here.time, self.load[from].time) {
                        continue;
                    }
                    let there = self.weigh(to, other, job);
                    let step = Step { job, to, swap: Some(other), here, there };
                    if self.better(&step, None) && self.better(&step, best.as_ref()) {
                        best = Some(step);
                    }
                }
            }
        }
        best
    }

    /// The nodes that a step may go to.
    fn near(&self, from: usize) -> Vec<usize> {
        let nodes = self.on.len();
        let mut near: Vec<usize> = (0..nodes).collect();
        if nodes <= ALL_NODES {
            return near;
        }
        near.select_nth_unstable_by(NEAR_NODES, |a, b| {
            self.load[*a].time.total_cmp(&self.load[*b].time).then(a.cmp(b))
        });
        near.truncate(NEAR_NODES);
        let files = self.on[from].iter().flat_map(|job| &self.problem.jobs[*job].reads);
        let holders = files.flat_map(|file| &self.problem.files[*file].holders);
        near.extend(holders.take(NEAR_NODES));
        near.sort_unstable();
        near.dedup();
        near
    }

    /// Steps until none helps.
    fn descend(&mut self) {
        while !self.spent() {
            let busiest = (0..self.load.len())
                .max_by(|a, b| self.load[*a].time.total_cmp(&self.load[*b].time).then(b.cmp(a)));
            let Some(busiest) = busiest else { return };
            let near = self.near(busiest);
            let Some(step) = self.best_step(busiest, &near) else { return };
            self.take(step);
        }
    }

    /// The next of a fixed sequence of numbers below `bound` (xorshift, Marsaglia, 2003).
    fn throw(&mut self, bound: usize) -> usize {
        self.throws ^= self.throws << 13;
        self.throws ^= self.throws >> 7;
        self.throws ^= self.throws << 17;
        (self.throws % bound.max(1) as u64) as usize
    }

    /// Throws a few jobs elsewhere.
    fn kick(&mut self) {
        for _ in 0..2 + self.throw(3) {
            let job = self.throw(self.assign.len());
            let to = self.throw(self.on.len());
            let from = self.assign[job];
            if to == from || !self.can_take(job, to) || self.problem.fixed[job].is_some() {
                continue;
            }
            let here = self.weigh(from, job, NONE);
            let there = self.weigh(to, NONE, job);
            self.take(Step { job, to, swap: None, here, there });
        }
    }

    fn search(&mut self) {
        self.descend();
        self.save_bytes();
        let small = self.assign.len().saturating_mul(self.on.len()) <= SMALL;
        if self.assign.len() < 2 || self.on.len() < 2 || !small {
            return;
        }
        let mut best = (self.worth(), self.assign.clone());
        let mut vain = 0;
        // A search that finds nothing for long has found the best, or will not.
        while !self.spent() && vain < 400 {
            self.kick();
            self.descend();
            let worth = self.worth();
            let shorter = less(worth.0, best.0.0);
            let lighter = worth.0 <= best.0.0 && worth.1 < best.0.1;
            if shorter {
                self.save_bytes();
            }
            vain += 1;
            if shorter || lighter {
                best = (self.worth(), self.assign.clone());
                vain = 0;
            } else {
                self.begin(best.1.clone());
            }
        }
        self.begin(best.1);
    }

    /// Moves jobs where that saves bytes and makes nothing later.
    fn save_bytes(&mut self) {
        let (last, _) = self.worth();
        for job in self.problem.open_jobs() {
            let from = self.assign[job];
            let files = &self.problem.jobs[job].reads;
            let holders = files.iter().flat_map(|file| &self.problem.files[*file].holders);
            let mut targets: Vec<usize> = holders.copied().filter(|to| *to != from).collect();
            targets.sort_unstable();
            targets.dedup();
            targets.truncate(NEAR_NODES);
            for to in targets {
                if self.spent() || !self.can_take(job, to) {
                    continue;
                }
                let here = self.weigh(from, job, NONE);
                let there = self.weigh(to, NONE, job);
                let bytes = |load: &Load| load.link + load.store;
                let now = bytes(&self.load[from]) + bytes(&self.load[to]);
                let saves = bytes(&here) + bytes(&there) < now;
                if saves && here.time <= last && there.time <= last {
                    self.take(Step { job, to, swap: None, here, there });
                    break;
                }
            }
        }
    }
}

/// No job.
const NONE: usize = usize::MAX;

/// Jobs that depend on others: everything is put on the board again for every try, so only jobs of
/// the chain that ends last are moved.
fn dependent(problem: &Problem, first: &[usize], effort: Effort) -> Vec<usize> {
    let reads: usize = problem.jobs.iter().map(|job| job.reads.len() + 4).sum();
    let cost = 12 * (reads + problem.files.len()) as u64 + 1;
    let mut tries = effort.touches / cost;
    let mut assign = first.to_vec();
    let mut at = Times::of(problem, &assign);
    'steps: loop {
        let chain = at.chain(problem, &assign);
        for job in chain.into_iter().filter(|job| problem.fixed[*job].is_none()) {
            let from = assign[job];
            for to in at.near(problem, job) {
                let jobs = assign.iter().filter(|node| **node == to).count();
                let full = jobs >= problem.nodes[to].most_jobs;
                if to == from || full || !problem.fits(job, to) {
                    continue;
                }
                if tries == 0 {
                    return assign;
                }
                tries -= 1;
                assign[job] = to;
                let then = Times::of(problem, &assign);
                if less(then.last, at.last) {
                    at = then;
                    continue 'steps;
                }
                assign[job] = from;
            }
        }
        return assign;
    }
}

/// When jobs begin and end.
struct Times {
    begin: Vec<f64>,
    end: Vec<f64>,
    last: f64,
    /// When each node is done.
    done: Vec<f64>,
}

impl Times {
    fn of(problem: &Problem, assign: &[usize]) -> Self {
        let mut board = Board::new(problem);
        let mut begin = vec![0.0; problem.jobs()];
        let mut done: Vec<f64> = board.lanes.iter().map(Lane::done).collect();
        for job in problem.open_jobs() {
            let offer = board.put(problem, job, assign[job]);
            begin[job] = offer.begin;
            done[assign[job]] = done[assign[job]].max(offer.end);
        }
        let last = done.iter().copied().fold(0.0, f64::max);
        let last = last.max(board.store_bytes as f64 / problem.store_total);
        Self { begin, end: board.ends, last, done }
    }

    /// From the job that ends last back to what each one waited for.
    fn chain(&self, problem: &Problem, assign: &[usize]) -> Vec<usize> {
        let ends = |a: &usize, b: &usize| self.end[*a].total_cmp(&self.end[*b]).then(b.cmp(a));
        let mut chain: Vec<usize> = (0..problem.jobs()).max_by(ends).into_iter().collect();
        while let Some(&job) = chain.last() {
            let node = assign[job];
            let beside = (0..problem.jobs()).filter(|other| {
                let earlier = problem.place[*other] < problem.place[job];
                assign[*other] == node && earlier && self.end[*other] <= self.begin[job]
            });
            let next = problem.before[job].iter().copied().chain(beside).max_by(ends);
            match next {
                Some(next) => chain.push(next),
                None => break,
            }
        }
        chain
    }

    fn near(&self, problem: &Problem, job: usize) -> Vec<usize> {
        let mut near: Vec<usize> = (0..problem.nodes()).collect();
        if near.len() > ALL_NODES {
            near.select_nth_unstable_by(NEAR_NODES, |a, b| {
                self.done[*a].total_cmp(&self.done[*b]).then(a.cmp(b))
            });
            near.truncate(NEAR_NODES);
            let reads = problem.jobs[job].reads.iter();
            let holders = reads.flat_map(|file| &problem.files[*file].holders);
            near.extend(holders.take(NEAR_NODES));
            near.sort_unstable();
            near.dedup();
        }
        near
    }
}
