//! Nodes, their links and caches, storage servers; tasks that run on them and move.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use forebay_profile::flow::{self, Terms};
use forebay_profile::{Access, Config, Kind, Migration, Node, Origin, Profiler, paper};

use super::workload::{NOBODY, Op, Workload};

/// Bytes of a block.
pub(super) const BLOCK: f64 = 65_536.0;

/// What things take. Rates are bytes a second.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Machine {
    pub(super) nodes: usize,
    pub(super) link: f64,
    pub(super) servers: usize,
    pub(super) server: f64,
    pub(super) local: f64,
    pub(super) latency_s: f64,
    pub(super) cache_blocks: usize,
    pub(super) image_bytes: u64,
    pub(super) image_rate: f64,
    pub(super) downtime_s: f64,
    /// Tasks that a node may have, times those that it begins with.
    pub(super) slots: f64,
}

/// Who decides where tasks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mover {
    Nobody,
    /// Somebody who knows the programs places them in the beginning.
    Static,
    /// The paper's measure over touched rows.
    Paper,
    /// The paper's measure on a grid as high as the files.
    PaperGrid,
    Flow,
}

impl Mover {
    pub(super) const ALL: [Self; 5] =
        [Self::Nobody, Self::Static, Self::Paper, Self::PaperGrid, Self::Flow];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nobody => "none",
            Self::Static => "static",
            Self::Paper => "paper",
            Self::PaperGrid => "paper-grid",
            Self::Flow => "ours",
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Report {
    pub(super) run_s: f64,
    /// Seconds of input and output, of all tasks.
    pub(super) io_s: f64,
    pub(super) read_blocks: u64,
    pub(super) written_blocks: u64,
    /// Of those read, what was on the node.
    pub(super) local_blocks: u64,
    pub(super) migrations: u64,
    /// Of these, those that saved less than they cost.
    pub(super) wrong: u64,
    /// Of these, those to a node with nobody who ever has data in common with the task.
    pub(super) stray: u64,
    /// Pairs that exchange data, on different nodes at the end, though there was a slot.
    pub(super) missed: u64,
    /// Blocks and seconds of each round.
    pub(super) rounds: Vec<(u64, f64)>,
}

impl Report {
    /// Bytes a second of all tasks while they read and write.
    pub(super) fn io_rate(&self, tasks: usize) -> f64 {
        let bytes = (self.read_blocks + self.written_blocks) as f64 * BLOCK;
        bytes / (self.io_s / tasks as f64).max(1e-9)
    }
}

/// Blocks that were used last.
#[derive(Debug, Default)]
struct Cache {
    stamp: HashMap<u32, u64>,
    order: BTreeMap<u64, u32>,
    next: u64,
}

impl Cache {
    /// Whether it has a block, which is the last one used from now on.
    fn touch(&mut self, block: u32) -> bool {
        let Some(stamp) = self.stamp.get_mut(&block) else { return false };
        self.order.remove(stamp);
        self.next += 1;
        *stamp = self.next;
        self.order.insert(self.next, block);
        true
    }

    fn put(&mut self, block: u32, most: usize) {
        if self.touch(block) {
            return;
        }
        self.next += 1;
        self.stamp.insert(block, self.next);
        self.order.insert(self.next, block);
        if self.order.len() > most
            && let Some((_, old)) = self.order.pop_first()
        {
            self.stamp.remove(&old);
        }
    }
}

/// Not yet.
const NEVER: u64 = u64::MAX;

fn ns(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

struct World<'a> {
    workload: &'a Workload,
    machine: &'a Machine,
    mover: Mover,
    terms: Terms,
    profiler: Profiler,
    slots: usize,
    place: Vec<usize>,
    /// The next step of each task.
    step: Vec<usize>,
    /// What a task has to stand still for.
    pause: Vec<u64>,
    computing: Vec<Option<usize>>,
    busy: Vec<usize>,
    cpu_ns: Vec<u64>,
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    up: Vec<u64>,
    down: Vec<u64>,
    server: Vec<u64>,
    cache: Vec<Cache>,
    /// When the servers have what was written.
    stored: Vec<u64>,
    waiting: HashMap<u32, Vec<(usize, u64)>>,
    at_barrier: Vec<(usize, u64)>,
    alive: usize,
    round: (u64, u64),
    report: Report,
}

/// Runs a workload to its end.
pub(super) fn run(workload: &Workload, machine: &Machine, mover: Mover, window: u32) -> Report {
    let mut world = World::new(workload, machine, mover, window);
    world.run();
    world.report
}

impl<'a> World<'a> {
    fn new(workload: &'a Workload, machine: &'a Machine, mover: Mover, window: u32) -> Self {
        let (tasks, nodes) = (workload.ops.len(), machine.nodes);
        let place = match mover {
            Mover::Static => workload.optimal(nodes),
            _ => workload.start.clone(),
        };
        let height = workload.blocks.iter().map(|(_, block)| block / 32 + 1).max().unwrap_or(1);
        let grid = match mover {
            Mover::PaperGrid => forebay_profile::diagram::Grid::Rows(height),
            _ => forebay_profile::diagram::Grid::Touched,
        };
        let config = Config { window, grid, ..Config::default() };
        let mut profiler = Profiler::new(config);
        for (task, node) in place.iter().enumerate() {
            profiler.task(task as u64, *node as u32, machine.image_bytes, 0.0);
        }
        let begun = |block: &u32| if *block == NOBODY { 0 } else { NEVER };
        Self {
            workload,
            machine,
            mover,
            terms: Terms {
                remote: machine.link / tasks.div_ceil(nodes) as f64,
                local: machine.local,
                image: machine.image_rate,
                downtime_s: machine.downtime_s,
                ..Terms::default()
            },
            profiler,
            slots: (tasks.div_ceil(nodes) as f64 * machine.slots).floor() as usize,
            place,
            step: vec![0; tasks],
            pause: vec![0; tasks],
            computing: vec![None; tasks],
            busy: vec![0; nodes],
            cpu_ns: vec![0; tasks],
            queue: (0..tasks).map(|task| Reverse((0, task))).collect(),
            up: vec![0; nodes],
            down: vec![0; nodes],
            server: vec![0; machine.servers],
            cache: (0..nodes).map(|_| Cache::default()).collect(),
            stored: workload.writer.iter().map(begun).collect(),
            waiting: HashMap::new(),
            at_barrier: vec![],
            alive: tasks,
            round: (0, 0),
            report: Report::default(),
        }
    }

    fn run(&mut self) {
        let mut last = 0;
        while let Some(Reverse((now, task))) = self.queue.pop() {
            last = last.max(now);
            if let Some(node) = self.computing[task].take() {
                self.busy[node] -= 1;
            }
            let pause = std::mem::take(&mut self.pause[task]);
            if pause > 0 {
                self.queue.push(Reverse((now + pause, task)));
                continue;
            }
            match self.workload.ops[task].get(self.step[task]) {
                Some(op) => self.perform(now, task, *op),
                None => {
                    self.alive -= 1;
                    self.missed_by(task);
                    self.profiler.ended(task as u64);
                    self.pass_barrier();
                }
            }
        }
        self.report.run_s = last as f64 / 1e9;
    }

    fn perform(&mut self, now: u64, task: usize, op: Op) {
        match op {
            Op::Read(block) if self.stored[block as usize] == NEVER => {
                self.waiting.entry(block).or_default().push((task, now));
                return;
            }
            Op::Read(block) => {
                let done = self.read(now, task, block);
                self.io(now, done, task);
            }
            Op::Write(block) => {
                let done = self.write(now, task, block);
                for (reader, _) in self.waiting.remove(&block).unwrap_or_default() {
                    self.queue.push(Reverse((done, reader)));
                }
                self.io(now, done, task);
            }
            Op::Compute(seconds) => {
                let node = self.place[task];
                self.busy[node] += 1;
                self.computing[task] = Some(node);
                let crowd = (self.busy[node] as f64 / self.workload.cores).max(1.0);
                self.cpu_ns[task] += ns(f64::from(seconds));
                self.queue.push(Reverse((now + ns(f64::from(seconds) * crowd), task)));
            }
            Op::Barrier => {
                self.at_barrier.push((task, now));
                self.step[task] += 1;
                self.pass_barrier();
                return;
            }
        }
        self.step[task] += 1;
        if matches!(op, Op::Read(_) | Op::Write(_)) {
            self.scan(now);
        }
    }

    fn pass_barrier(&mut self) {
        if self.at_barrier.is_empty() || self.at_barrier.len() < self.alive {
            return;
        }
        let at = self.at_barrier.iter().map(|(_, at)| *at).max().unwrap_or(0);
        for (task, _) in std::mem::take(&mut self.at_barrier) {
            self.queue.push(Reverse((at, task)));
        }
        let blocks = self.report.read_blocks + self.report.written_blocks;
        let seconds = at.saturating_sub(self.round.1) as f64 / 1e9;
        self.report.rounds.push((blocks - self.round.0, seconds));
        self.round = (blocks, at);
    }

    fn io(&mut self, from: u64, to: u64, task: usize) {
        self.report.io_s += (to - from) as f64 / 1e9;
        self.queue.push(Reverse((to, task)));
    }

    /// Some time of something that does one thing after the other.
    fn occupy(free: &mut u64, now: u64, seconds: f64) -> u64 {
        *free = (*free).max(now) + ns(seconds);
        *free
    }

    fn read(&mut self, now: u64, task: usize, block: u32) -> u64 {
        let (node, machine) = (self.place[task], self.machine);
        self.report.read_blocks += 1;
        let hit = self.cache[node].touch(block);
        self.record(now, task, block, Kind::Read, hit);
        if hit {
            self.report.local_blocks += 1;
            return now + ns(BLOCK / machine.local);
        }
        let server = block as usize % machine.servers;
        let served = Self::occupy(&mut self.server[server], now, BLOCK / machine.server);
        let came = Self::occupy(&mut self.down[node], now, BLOCK / machine.link);
        self.cache[node].put(block, machine.cache_blocks);
        served.max(came).max(self.stored[block as usize]) + ns(machine.latency_s)
    }

    fn write(&mut self, now: u64, task: usize, block: u32) -> u64 {
        let (node, machine) = (self.place[task], self.machine);
        self.report.written_blocks += 1;
        self.record(now, task, block, Kind::Write, false);
        self.cache[node].put(block, machine.cache_blocks);
        let sent = Self::occupy(&mut self.up[node], now, BLOCK / machine.link);
        let server = block as usize % machine.servers;
        let served = Self::occupy(&mut self.server[server], now, BLOCK / machine.server);
        self.stored[block as usize] = sent.max(served) + ns(machine.latency_s);
        // Half of the cache may wait to be sent.
        let ahead = ns(machine.cache_blocks as f64 / 2.0 * BLOCK / machine.link);
        (now + ns(BLOCK / machine.local)).max(sent.max(served).saturating_sub(ahead))
    }

    fn record(&mut self, at: u64, task: usize, block: u32, kind: Kind, hit: bool) {
        let records = match self.mover {
            Mover::Nobody | Mover::Static => false,
            // The storage servers do not see what is served on the node.
            Mover::Paper | Mover::PaperGrid => !hit,
            Mover::Flow => true,
        };
        if records {
            let node = self.place[task] as u32;
            let origin = Origin { node, task: Some(task as u64), handle: 0 };
            let (file, block) = self.workload.blocks[block as usize];
            self.profiler.record(&Access { at, origin, file, block, kind, count: 1 });
        }
    }

    fn scan(&mut self, now: u64) {
        if matches!(self.mover, Mover::Nobody | Mover::Static) || !self.profiler.due() {
            return;
        }
        self.profiler.scanned();
        let node = Node {
            slots: self.slots as u32,
            cores: self.workload.cores,
            memory_bytes: 4 << 30,
            free_bytes: 2 << 30,
        };
        let nodes = vec![node; self.machine.nodes];
        let moves = if self.mover == Mover::Flow {
            for task in 0..self.place.len() {
                if self.profiler.get(task as u64).is_some() {
                    let cpu = self.cpu_ns[task] as f64 / now.max(1) as f64;
                    let (node, image) = (self.place[task] as u32, self.machine.image_bytes);
                    self.profiler.task(task as u64, node, image, cpu);
                }
            }
            flow::plan(&self.profiler, &nodes, &self.terms, now)
        } else {
            paper::plan(&self.profiler, &nodes).into_iter().map(|moved| vec![moved]).collect()
        };
        for step in moves {
            self.judge(&step);
            step.iter().for_each(|moved| self.migrate(now, moved));
        }
    }

    fn migrate(&mut self, now: u64, moved: &Migration) {
        let (task, to, machine) = (moved.task as usize, moved.to as usize, self.machine);
        let seconds = machine.image_bytes as f64 / machine.link;
        Self::occupy(&mut self.up[moved.from as usize], now, seconds);
        Self::occupy(&mut self.down[to], now, seconds);
        self.pause[task] += ns(self.downtime());
        self.place[task] = to;
        self.profiler.moved(moved.task, moved.to, now);
        self.report.migrations += 1;
    }

    fn downtime(&self) -> f64 {
        self.machine.downtime_s + self.machine.image_bytes as f64 / self.machine.image_rate
    }

    /// Whether moves save what they cost, by what the programs are still going to do.
    fn judge(&mut self, moves: &[Migration]) {
        let tasks: Vec<usize> = moves.iter().map(|moved| moved.task as usize).collect();
        let before = self.ahead(&tasks);
        let old = self.place.clone();
        moves.iter().for_each(|moved| self.place[moved.task as usize] = moved.to as usize);
        let after = self.ahead(&tasks);
        self.place = old;
        let saved = after.saturating_sub(before) as f64 * BLOCK;
        let saved = saved * (1.0 / self.terms.remote - 1.0 / self.terms.local);
        if saved < self.downtime() * moves.len() as f64 {
            self.report.wrong += moves.len() as u64;
        }
        if after == 0 {
            self.report.stray += moves.len() as u64;
        }
    }

    /// Blocks that these tasks will read of their nodes' tasks, or those of them.
    fn ahead(&self, tasks: &[usize]) -> u64 {
        let mut blocks = 0;
        for &task in tasks {
            let beside = |other: u32| {
                other as usize != task && self.place[other as usize] == self.place[task]
            };
            for op in &self.workload.ops[task][self.step[task].min(self.workload.ops[task].len())..]
            {
                match *op {
                    Op::Read(block) => {
                        let writer = self.workload.writer[block as usize];
                        let readers = &self.workload.readers[block as usize];
                        let local = match writer {
                            NOBODY => readers.iter().any(|other| beside(*other)),
                            writer => beside(writer),
                        };
                        blocks += u64::from(local);
                    }
                    Op::Write(block) => {
                        let readers = self.workload.readers[block as usize].iter();
                        let others = readers.filter(|other| !tasks.contains(&(**other as usize)));
                        blocks += others.filter(|other| beside(**other)).count() as u64;
                    }
                    Op::Compute(_) | Op::Barrier => {}
                }
            }
        }
        blocks
    }

    /// A task that has ended: did it read of a writer elsewhere to the end, though one of the two
    /// nodes had a slot?
    fn missed_by(&mut self, task: usize) {
        let ops = &self.workload.ops[task];
        let last = ops.iter().rev().find_map(|op| match op {
            Op::Read(block) => Some(self.workload.writer[*block as usize]),
            _ => None,
        });
        let Some(writer) = last.filter(|writer| *writer != NOBODY && *writer as usize != task)
        else {
            return;
        };
        let (here, there) = (self.place[task], self.place[writer as usize]);
        let tasks = |node: usize| self.place.iter().filter(|other| **other == node).count();
        if here != there && tasks(here).min(tasks(there)) < self.slots {
            self.report.missed += 1;
        }
    }
}
