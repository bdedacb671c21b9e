//! What every node does when: jobs are put on it one by one, in the order of their ranks.

use crate::model::{Job, Node, Problem};

/// A job that occupies a node.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Running {
    end: f64,
    slots: u32,
    memory: u64,
}

/// A node over time.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Lane {
    /// By their ends.
    running: Vec<Running>,
    /// When the last job began: no later one begins before it.
    begun: f64,
    /// When the last transfer is over.
    link_free: f64,
    /// Bytes brought here and kept.
    kept: u64,
    /// Jobs put here.
    pub(crate) jobs: usize,
}

/// What a job misses on a node.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Missing {
    /// Bytes from other nodes.
    pub(crate) link: u64,
    /// Bytes from the backing store.
    pub(crate) store: u64,
    /// When what is on its way here will have come.
    pub(crate) coming: f64,
}

impl Missing {
    /// How long it takes to get there.
    pub(crate) fn transfer(&self, node: &Node) -> f64 {
        self.link as f64 / node.link + self.store as f64 / node.store
    }
}

/// When a job would run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Offer {
    pub(crate) begin: f64,
    pub(crate) end: f64,
    /// When its transfers are over; `begin`, if there are none.
    data: f64,
}

impl Offer {
    /// When everything that the job brings is there.
    pub(crate) fn data(&self) -> f64 {
        self.data
    }
}

impl Lane {
    /// Whether nothing is on it.
    pub(crate) fn is_free(&self) -> bool {
        self.running.is_empty()
    }

    /// A job that is on the node already.
    pub(crate) fn occupy(&mut self, job: &Job, end: f64) {
        let running = Running { end, slots: job.slots, memory: job.memory_bytes };
        let at = self.running.partition_point(|other| other.end <= end);
        self.running.insert(at, running);
        self.jobs += 1;
    }

    /// When the last job on it ends.
    pub(crate) fn done(&self) -> f64 {
        self.running.last().map_or(0.0, |running| running.end)
    }

    /// The earliest moment at which any job could begin, and any transfer.
    pub(crate) fn soonest(&self, node: &Node) -> (f64, f64) {
        (self.free_at(node, 1, 0, 0.0), self.link_free)
    }

    /// The earliest moment from `ready` on at which so many slots and so much memory are free.
    fn free_at(&self, node: &Node, slots: u32, memory: u64, ready: f64) -> f64 {
        let mut at = self.begun.max(ready);
        let first = self.running.partition_point(|running| running.end <= at);
        let busy = &self.running[first..];
        let (mut slots, mut memory) = (u64::from(slots), u128::from(memory));
        for running in busy {
            slots += u64::from(running.slots);
            memory += u128::from(running.memory);
        }
        for running in busy {
            if slots <= u64::from(node.slots) && memory <= u128::from(node.memory_bytes) {
                break;
            }
            at = running.end;
            slots -= u64::from(running.slots);
            memory -= u128::from(running.memory);
        }
        at
    }

    pub(crate) fn offer(&self, node: &Node, job: &Job, ready: f64, missing: Missing) -> Offer {
        let begin = self.free_at(node, job.slots, job.memory_bytes, ready);
        let transfer = missing.transfer(node);
        let from = if transfer > 0.0 { begin.max(self.link_free) } else { begin };
        let data = from + transfer;
        let end = if missing.coming > data {
            missing.coming + job.compute_s
        } else {
            from + job.compute_s + transfer
        };
        Offer { begin, end, data }
    }

    pub(crate) fn take(&mut self, job: &Job, offer: Offer) {
        self.begun = offer.begin;
        self.running.retain(|running| running.end > offer.begin);
        self.occupy(job, offer.end);
        if offer.data > offer.begin {
            self.link_free = self.link_free.max(offer.data);
        }
    }

    /// Whether so many bytes more are kept; if so, they are.
    pub(crate) fn keep(&mut self, node: &Node, bytes: u64) -> bool {
        let fits = self.kept.checked_add(bytes).is_some_and(|kept| kept <= node.room_bytes);
        if fits {
            self.kept += bytes;
        }
        fits
    }
}

/// All nodes, and where the files are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Board {
    pub(crate) lanes: Vec<Lane>,
    /// Of each file: who has it, since when; by node.
    copies: Vec<Vec<(usize, f64)>>,
    /// Ends of the jobs put so far.
    pub(crate) ends: Vec<f64>,
    /// Bytes that nodes get from other nodes.
    pub(crate) link_bytes: u64,
    /// Bytes that nodes get from the backing store.
    pub(crate) store_bytes: u64,
}

impl Board {
    /// A board with the jobs that run already.
    pub(crate) fn new(problem: &Problem) -> Self {
        let mut board = Self {
            lanes: vec![Lane::default(); problem.nodes.len()],
            copies: vec![],
            ends: vec![],
            link_bytes: 0,
            store_bytes: 0,
        };
        board.grow(problem);
        for (job, fixed) in problem.fixed.iter().enumerate() {
            let Some((node, end)) = *fixed else { continue };
            board.lanes[node].occupy(&problem.jobs[job], end);
            board.ends[job] = end;
            for &file in &problem.jobs[job].writes {
                board.held(file, node, end);
            }
        }
        board
    }

    /// Room for files and jobs that came later.
    pub(crate) fn grow(&mut self, problem: &Problem) {
        for file in &problem.files[self.copies.len()..] {
            self.copies.push(file.holders.iter().map(|node| (*node, 0.0)).collect());
        }
        self.ends.resize(problem.jobs.len(), 0.0);
    }

    /// Nothing begins before then any more.
    pub(crate) fn advance(&mut self, now: f64) {
        self.lanes.iter_mut().for_each(|lane| lane.begun = lane.begun.max(now));
    }

    /// When all that a job waits for has ended.
    pub(crate) fn ready(&self, problem: &Problem, job: usize) -> f64 {
        problem.before[job].iter().map(|earlier| self.ends[*earlier]).fold(0.0, f64::max)
    }

    pub(crate) fn copies(&self, file: usize) -> &[(usize, f64)] {
        &self.copies[file]
    }

    pub(crate) fn missing(&self, problem: &Problem, job: usize, node: usize) -> Missing {
        let mut missing = Missing::default();
        for &file in &problem.jobs[job].reads {
            match self.copies[file].binary_search_by_key(&node, |copy| copy.0) {
                Ok(at) => missing.coming = missing.coming.max(self.copies[file][at].1),
                Err(_) if problem.writer[file] == Some(job) => {}
                Err(_) if problem.in_store(file) => missing.store += problem.files[file].size,
                Err(_) => missing.link += problem.files[file].size,
            }
        }
        missing
    }

    /// Puts a job on a node.
    pub(crate) fn put(&mut self, problem: &Problem, job: usize, node: usize) -> Offer {
        let missing = self.missing(problem, job, node);
        let ready = self.ready(problem, job);
        let (spec, on) = (&problem.jobs[job], &problem.nodes[node]);
        let offer = self.lanes[node].offer(on, spec, ready, missing);
        self.lanes[node].take(spec, offer);
        self.ends[job] = offer.end;
        self.link_bytes += missing.link;
        self.store_bytes += missing.store;
        for &file in &spec.reads {
            let Err(at) = self.copies[file].binary_search_by_key(&node, |copy| copy.0) else {
                continue;
            };
            let own = problem.writer[file] == Some(job);
            if !own && self.lanes[node].keep(on, problem.files[file].size) {
                self.copies[file].insert(at, (node, offer.data));
            }
        }
        for &file in &spec.writes {
            self.held(file, node, offer.end);
        }
        offer
    }

    /// A file is on a node since then.
    fn held(&mut self, file: usize, node: usize, since: f64) {
        if let Err(at) = self.copies[file].binary_search_by_key(&node, |copy| copy.0) {
            self.copies[file].insert(at, (node, since));
        }
    }
}
