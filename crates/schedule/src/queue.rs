//! Jobs that come and go: what waits, what runs, where what waits is going to run.
//!
//! A job that comes is put where it is done earliest, behind what waits already; nothing else moves
//! ([`Queue::arrive`]). [`Queue::replan`] places all that waits anew, as if it had come together;
//! what runs stays. Times are seconds of any clock that does not go back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::board::Board;
use crate::earliest::There;
use crate::model::{File, Instance, Job, Node, Problem, Running, Unsound};
use crate::{Effort, NoPlan, Policy};

/// A job as it comes, with the numbers that its giver knows files and jobs by.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Seconds that it computes, as far as one knows.
    pub compute_s: f64,
    /// Files that it reads.
    pub reads: Vec<u64>,
    /// Files that it writes.
    pub writes: Vec<u64>,
    /// Jobs that must have ended before. One that is not in the queue counts as ended.
    pub after: Vec<u64>,
    /// Slots that it occupies.
    pub slots: u32,
    /// Memory that it occupies.
    pub memory_bytes: u64,
}

/// Why a job is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is a job of this number.
    #[error("job {0} is in the queue already")]
    Known(u64),
    /// It reads what nobody has told of and no job in the queue writes.
    #[error("file {0} is not known")]
    UnknownFile(u64),
    /// It is wrong by itself.
    #[error(transparent)]
    Unsound(#[from] Unsound),
    /// No node takes it.
    #[error(transparent)]
    NoPlan(#[from] NoPlan),
}

#[derive(Debug, Clone, PartialEq)]
struct Known {
    size: u64,
    holders: BTreeSet<usize>,
}

/// A job that has not ended.
#[derive(Debug, Clone, PartialEq)]
struct QueuedJob {
    task: Task,
    /// Where it runs, and until when as far as one knows.
    runs: Option<(usize, f64)>,
}

/// The problem that the last plan was made for, and what came since.
#[derive(Debug, Clone, PartialEq)]
struct Sketch {
    problem: Problem,
    board: Board,
    /// The moment that is 0 in it.
    zero: f64,
    jobs: BTreeMap<u64, usize>,
    files: BTreeMap<u64, usize>,
}

/// Jobs that wait and jobs that run.
#[derive(Debug, Clone, PartialEq)]
pub struct Queue {
    nodes: Vec<Node>,
    store_total: f64,
    files: BTreeMap<u64, Known>,
    jobs: BTreeMap<u64, QueuedJob>,
    /// Waiting jobs of each node, in the order in which they begin.
    lines: Vec<VecDeque<u64>>,
    /// Slots and memory in use on each node.
    used: Vec<(u32, u64)>,
    /// Which job in the queue writes a file.
    writers: BTreeMap<u64, u64>,
    /// What running jobs bring to their nodes, by node and file.
    bringing: BTreeMap<(usize, u64), u64>,
    sketch: Option<Sketch>,
}

impl Queue {
    /// An empty queue.
    ///
    /// # Errors
    /// [`Unsound`], if the nodes are.
    pub fn new(nodes: Vec<Node>, store_total: f64) -> Result<Self, Unsound> {
        let (files, jobs, running) = (vec![], vec![], vec![]);
        Problem::new(Instance { nodes: nodes.clone(), files, jobs, running, store_total })?;
        Ok(Self {
            lines: vec![VecDeque::new(); nodes.len()],
            used: vec![(0, 0); nodes.len()],
            nodes,
            store_total,
            files: BTreeMap::new(),
            jobs: BTreeMap::new(),
            writers: BTreeMap::new(),
            bringing: BTreeMap::new(),
            sketch: None,
        })
    }

    /// Tells of a file, or that it has changed. Nodes that are not there are left out.
    pub fn file(&mut self, file: u64, size: u64, holders: &[usize]) {
        let there = holders.iter().copied().filter(|node| *node < self.nodes.len());
        self.files.insert(file, Known { size, holders: there.collect() });
    }

    /// Forgets a file that no job in the queue reads any more.
    pub fn forget(&mut self, file: u64) {
        let read = self.jobs.values().any(|queued| queued.task.reads.contains(&file));
        if !read {
            self.files.remove(&file);
        }
    }

    /// Jobs that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lines.iter().map(VecDeque::len).sum()
    }

    /// Where a job runs.
    #[must_use]
    pub fn running_on(&self, job: u64) -> Option<usize> {
        self.jobs.get(&job).and_then(|queued| queued.runs).map(|(node, _)| node)
    }

    /// Where the waiting jobs are going to run, by job.
    #[must_use]
    pub fn placement(&self) -> BTreeMap<u64, usize> {
        let of = |(node, line): (usize, &VecDeque<u64>)| {
            line.iter().map(|job| (*job, node)).collect::<Vec<_>>()
        };
        self.lines.iter().enumerate().flat_map(of).collect()
    }

    /// A job comes, and gets the node where it is done earliest behind all that waits.
    ///
    /// # Errors
    /// [`Refused`]; the queue is as before then.
    pub fn arrive(&mut self, now: f64, job: u64, task: Task) -> Result<usize, Refused> {
        if self.jobs.contains_key(&job) {
            return Err(Refused::Known(job));
        }
        let unknown = task.reads.iter().find(|file| !self.files.contains_key(*file));
        if let Some(file) = unknown {
            return Err(Refused::UnknownFile(*file));
        }
        for file in &task.writes {
            self.files.entry(*file).or_insert(Known { size: 0, holders: BTreeSet::new() });
        }
        let mut sketch = match self.sketch.take() {
            Some(sketch) => sketch,
            None => self.sketch(now)?,
        };
        sketch.board.advance(now - sketch.zero);
        // What a failure leaves half added is not put back: the next one draws it anew.
        let node = self.append(&mut sketch, job, &task)?;
        self.sketch = Some(sketch);
        self.lines[node].push_back(job);
        self.writers.extend(task.writes.iter().map(|file| (*file, job)));
        self.jobs.insert(job, QueuedJob { task, runs: None });
        Ok(node)
    }

    fn append(&self, sketch: &mut Sketch, job: u64, task: &Task) -> Result<usize, Refused> {
        for file in task.reads.iter().chain(&task.writes) {
            if !sketch.files.contains_key(file) {
                let at = sketch.problem.push_file(self.files[file].to_file());
                sketch.files.insert(*file, at);
            }
        }
        let spec = to_job(task, &sketch.files, &sketch.jobs);
        let index = sketch.problem.push_job(spec)?;
        sketch.jobs.insert(job, index);
        sketch.board.grow(&sketch.problem);
        let mut there = There::new(&sketch.problem, &sketch.board);
        let best = there.best(&sketch.problem, &sketch.board, index);
        let (node, _) = best.ok_or(NoPlan::NoRoom(index))?;
        sketch.board.put(&sketch.problem, index, node);
        Ok(node)
    }

    /// Places all that waits anew.
    ///
    /// # Errors
    /// [`Refused`]; the queue is as before then.
    pub fn replan(&mut self, now: f64, policy: Policy, effort: Effort) -> Result<(), Refused> {
        let mut sketch = self.empty_sketch(now)?;
        let plan = crate::plan(&sketch.problem, policy, effort)?;
        let names: Vec<u64> = sketch.jobs.keys().copied().collect();
        self.lines.iter_mut().for_each(VecDeque::clear);
        let order: Vec<usize> = sketch.problem.open_jobs().collect();
        for job in order {
            sketch.board.put(&sketch.problem, job, plan.assign[job]);
            self.lines[plan.assign[job]].push_back(names[job]);
        }
        self.sketch = Some(sketch);
        Ok(())
    }

    /// The waiting jobs of a node, in the order in which they begin.
    pub fn line(&self, node: usize) -> impl Iterator<Item = u64> + '_ {
        self.lines.get(node).into_iter().flatten().copied()
    }

    /// Orders what waits on each node for nodes that bring what is next while jobs compute: first
    /// those for which least is to be brought, each time after what was brought for those before, so
    /// that what is there is used before it has to leave; at last those that take longer to bring than
    /// to compute, the longest first. Without files in common this is Johnson's rule, which is optimal
    /// for two stations in a row (Johnson, *Optimal two- and three-stage production schedules*, 1954).
    /// A job of 0 seconds is one of which nobody knows how long it computes. Where jobs wait for each
    /// other, they stay in the order of their ranks.
    pub fn order_for_fetching(&mut self) {
        let waits = |queued: &QueuedJob| {
            let written = |file: &u64| self.writers.contains_key(file);
            queued.task.after.iter().any(|job| self.jobs.contains_key(job))
                || queued.task.reads.iter().any(written)
        };
        if self.jobs.values().any(waits) {
            return;
        }
        for node in 0..self.nodes.len() {
            let line: Vec<u64> = self.lines[node].drain(..).collect();
            self.lines[node] = self.by_bringing(node, line).into();
        }
    }

    fn by_bringing(&self, node: usize, line: Vec<u64>) -> Vec<u64> {
        let mut readers: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        let mut left = vec![0.0f64; line.len()];
        let seconds = |file: &u64| {
            let known = self.files.get(file).filter(|known| !known.holders.contains(&node));
            known.map_or(0.0, |known| {
                let from_store = known.holders.is_empty();
                let rate = if from_store { self.nodes[node].store } else { self.nodes[node].link };
                known.size as f64 / rate
            })
        };
        for (at, job) in line.iter().enumerate() {
            let mut reads = self.jobs[job].task.reads.clone();
            reads.sort_unstable();
            reads.dedup();
            for file in reads {
                let takes = seconds(&file);
                if takes > 0.0 {
                    left[at] += takes;
                    readers.entry(file).or_default().push(at);
                }
            }
        }
        let compute = |at: usize| self.jobs[&line[at]].task.compute_s;
        let (first, mut last): (Vec<usize>, Vec<usize>) =
            (0..line.len()).partition(|at| compute(*at) == 0.0 || left[*at] <= compute(*at));
        last.sort_by(|a, b| compute(*b).total_cmp(&compute(*a)).then(a.cmp(b)));
        let key = |left: f64, at: usize| (left.max(0.0).to_bits(), at);
        let mut waiting: BTreeSet<(u64, usize)> =
            first.into_iter().map(|at| key(left[at], at)).collect();
        let mut order = Vec::with_capacity(line.len());
        while let Some((_, at)) = waiting.pop_first() {
            order.push(line[at]);
            for file in &self.jobs[&line[at]].task.reads {
                for other in readers.remove(file).unwrap_or_default() {
                    let was = key(left[other], other);
                    left[other] -= seconds(file);
                    if waiting.remove(&was) {
                        waiting.insert(key(left[other], other));
                    }
                }
            }
        }
        order.extend(last.into_iter().map(|at| line[at]));
        order
    }

    /// Begins every job that can begin: its turn has come, what it waits for has ended, slots and
    /// memory are free. Who waits for others keeps nobody behind him waiting. Where several can begin,
    /// one that needs what another is just bringing lets others go first, so that it finds it there.
    pub fn start(&mut self, now: f64) -> Vec<(u64, usize)> {
        let mut started = Vec::new();
        for node in 0..self.nodes.len() {
            while let Some(at) = self.next_of(node) {
                let Some(job) = self.lines[node].remove(at) else { break };
                let task = &self.jobs[&job].task;
                let (slots, memory) = self.used[node];
                self.used[node] =
                    (slots.saturating_add(task.slots), memory.saturating_add(task.memory_bytes));
                self.begin(now, job, node);
                started.push((job, node));
            }
        }
        started
    }

    /// The place in a node's line of the job that begins next.
    fn next_of(&self, node: usize) -> Option<usize> {
        let mut first = None;
        for (at, job) in self.lines[node].iter().enumerate() {
            if !self.may_begin(*job) {
                continue;
            }
            let task = &self.jobs[job].task;
            let (slots, memory) = self.used[node];
            let fits = slots.saturating_add(task.slots) <= self.nodes[node].slots
                && memory.saturating_add(task.memory_bytes) <= self.nodes[node].memory_bytes;
            if !fits {
                // What does not fit is not overtaken, or large jobs would never begin.
                break;
            }
            first = first.or(Some(at));
            let comes = |file: &u64| self.bringing.contains_key(&(node, *file));
            if !task.reads.iter().any(comes) {
                return Some(at);
            }
        }
        first
    }

    fn may_begin(&self, job: u64) -> bool {
        let task = &self.jobs[&job].task;
        let written = |file: &u64| self.writers.get(file).is_none_or(|writer| *writer == job);
        task.after.iter().all(|earlier| !self.jobs.contains_key(earlier))
            && task.reads.iter().all(written)
    }

    fn begin(&mut self, now: f64, job: u64, node: usize) {
        let Some(queued) = self.jobs.get_mut(&job) else { return };
        let mut lasts = queued.task.compute_s;
        for file in &queued.task.reads {
            let Some(known) = self.files.get_mut(file) else { continue };
            let rate = if known.holders.is_empty() {
                self.nodes[node].store
            } else {
                self.nodes[node].link
            };
            if known.holders.insert(node) {
                self.bringing.insert((node, *file), job);
                lasts += known.size as f64 / rate;
            }
        }
        queued.runs = Some((node, now + lasts));
    }

    /// A job has ended. What it wrote is on its node: tell of it by [`Queue::file`], if it is
    /// larger than was said before.
    pub fn finish(&mut self, job: u64) {
        let Some(queued) = self.jobs.remove(&job) else { return };
        self.brought(job, &queued);
        for file in &queued.task.writes {
            self.writers.remove(file);
        }
        match queued.runs {
            Some((node, _)) => {
                self.give_back(node, &queued.task);
                for file in &queued.task.writes {
                    if let Some(known) = self.files.get_mut(file) {
                        known.holders = BTreeSet::from([node]);
                    }
                }
            }
            None => self.lines.iter_mut().for_each(|line| line.retain(|other| *other != job)),
        }
        // Whoever comes next is placed by what is true then.
        self.sketch = None;
    }

    /// A running job waits again, first in its node's line: its node was lost, say.
    pub fn requeue(&mut self, job: u64) {
        let Some(queued) = self.jobs.get_mut(&job) else { return };
        let before = queued.clone();
        let Some((node, _)) = queued.runs.take() else { return };
        let task = queued.task.clone();
        self.brought(job, &before);
        self.give_back(node, &task);
        self.lines[node].push_front(job);
        self.sketch = None;
    }

    /// What a job brought is there.
    fn brought(&mut self, job: u64, queued: &QueuedJob) {
        let Some((node, _)) = queued.runs else { return };
        for file in &queued.task.reads {
            if self.bringing.get(&(node, *file)) == Some(&job) {
                self.bringing.remove(&(node, *file));
            }
        }
    }

    fn give_back(&mut self, node: usize, task: &Task) {
        let (slots, memory) = &mut self.used[node];
        *slots = slots.saturating_sub(task.slots);
        *memory = memory.saturating_sub(task.memory_bytes);
    }

    /// What there is, with no waiting job on the board.
    fn empty_sketch(&self, now: f64) -> Result<Sketch, Unsound> {
        let named = |(at, name): (usize, &u64)| (*name, at);
        let files: BTreeMap<u64, usize> = self.files.keys().enumerate().map(named).collect();
        let jobs: BTreeMap<u64, usize> = self.jobs.keys().enumerate().map(named).collect();
        let runs = |(at, queued): (usize, &QueuedJob)| {
            queued.runs.map(|(node, end)| Running { job: at, node, ends_s: (end - now).max(0.0) })
        };
        let problem = Problem::new(Instance {
            nodes: self.nodes.clone(),
            files: self.files.values().map(Known::to_file).collect(),
            jobs: self.jobs.values().map(|queued| to_job(&queued.task, &files, &jobs)).collect(),
            running: self.jobs.values().enumerate().filter_map(runs).collect(),
            store_total: self.store_total,
        })?;
        let board = Board::new(&problem);
        Ok(Sketch { problem, board, zero: now, jobs, files })
    }

    /// What there is, with the waiting jobs where they wait.
    fn sketch(&self, now: f64) -> Result<Sketch, Unsound> {
        let mut sketch = self.empty_sketch(now)?;
        let node_of = self.placement();
        let names: Vec<u64> = sketch.jobs.keys().copied().collect();
        let order: Vec<usize> = sketch.problem.open_jobs().collect();
        for job in order {
            if let Some(node) = node_of.get(&names[job]) {
                sketch.board.put(&sketch.problem, job, *node);
            }
        }
        Ok(sketch)
    }
}

impl Known {
    fn to_file(&self) -> File {
        File { size: self.size, holders: self.holders.iter().copied().collect() }
    }
}

fn to_job(task: &Task, files: &BTreeMap<u64, usize>, jobs: &BTreeMap<u64, usize>) -> Job {
    let numbers = |names: &[u64], of: &BTreeMap<u64, usize>| {
        names.iter().filter_map(|name| of.get(name).copied()).collect()
    };
    Job {
        compute_s: task.compute_s,
        reads: numbers(&task.reads, files),
        writes: numbers(&task.writes, files),
        after: numbers(&task.after, jobs),
        slots: task.slots,
        memory_bytes: task.memory_bytes,
    }
}
