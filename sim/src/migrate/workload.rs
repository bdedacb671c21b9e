//! What the tasks do: blocks of 64 KiB read and written, computing, waiting for each other.

/// One step of a task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Op {
    Read(u32),
    Write(u32),
    /// Seconds on a processor.
    Compute(f32),
    /// All tasks wait for each other: the end of a round.
    Barrier,
}

/// Made-up programs of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Each writes its part and reads the part of another, which changes by round
    MpiIo,
    /// Sensors write images, others make knowledge of them; as SSCA #3
    Ssca3,
    /// Two models exchange files in each cycle; as SPEEDY and LETKF
    Coupled,
    /// Partners that change faster than moving pays
    PingPong,
    /// Many that compute read one file: gathered on one node they slow each other down
    Overload,
    /// Bursts at the same moments to different blocks
    Bursts,
    /// Consumers that lag behind their producers
    Lag,
    /// Scans of different parts of one large file
    Scans,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::MpiIo => "mpi-io",
            Self::Ssca3 => "ssca3",
            Self::Coupled => "coupled",
            Self::PingPong => "ping-pong",
            Self::Overload => "overload",
            Self::Bursts => "bursts",
            Self::Lag => "lag",
            Self::Scans => "scans",
        }
    }
}

/// All tasks, where they begin, and what is common to them.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Workload {
    pub(super) ops: Vec<Vec<Op>>,
    pub(super) start: Vec<usize>,
    pub(super) cores: f64,
    /// Of each block: its file and its number there.
    pub(super) blocks: Vec<(u64, u64)>,
    /// Who writes it; `NOBODY` if it is there from the beginning.
    pub(super) writer: Vec<u32>,
    pub(super) readers: Vec<Vec<u32>>,
    files: u64,
}

pub(super) const NOBODY: u32 = u32::MAX;

impl Workload {
    /// `size` gives how much of everything there is: 1 is as much as in the paper.
    pub(super) fn make(kind: Kind, nodes: usize, size: f64) -> Self {
        let mut made = Self { cores: 4.0, ..Self::default() };
        let blocks = |full: f64| (full * size).ceil().max(1.0) as u32;
        match kind {
            Kind::MpiIo => made.mpi_io(nodes, blocks(4096.0)),
            Kind::Ssca3 => made.ssca3(nodes, blocks(64.0)),
            Kind::Coupled => made.coupled(nodes, blocks(24.0)),
            Kind::PingPong => made.ping_pong(nodes, blocks(96.0)),
            Kind::Overload => made.overload(nodes, blocks(4096.0)),
            Kind::Bursts => made.bursts(nodes, blocks(24.0)),
            Kind::Lag => made.lag(nodes, blocks(8192.0)),
            Kind::Scans => made.scans(nodes, blocks(4096.0)),
        }
        made.index();
        made
    }

    fn task(&mut self, node: usize) -> usize {
        self.ops.push(vec![]);
        self.start.push(node);
        self.ops.len() - 1
    }

    /// Consecutive blocks of a new file.
    fn file(&mut self, blocks: u32) -> u32 {
        let first = self.blocks.len() as u32;
        let file = self.files;
        self.blocks.extend((0..u64::from(blocks)).map(|block| (file, block)));
        self.files += 1;
        first
    }

    fn do_all(&mut self, task: usize, ops: impl IntoIterator<Item = Op>) {
        self.ops[task].extend(ops);
    }

    fn index(&mut self) {
        self.writer = vec![NOBODY; self.blocks.len()];
        self.readers = vec![vec![]; self.blocks.len()];
        for (task, ops) in self.ops.iter().enumerate() {
            for op in ops {
                match *op {
                    Op::Write(block) => self.writer[block as usize] = task as u32,
                    Op::Read(block)
                        if self.readers[block as usize].last() != Some(&(task as u32)) =>
                    {
                        self.readers[block as usize].push(task as u32);
                    }
                    _ => {}
                }
            }
        }
    }

    /// One writes block after block of a file; another reads them `lag` blocks later.
    fn pipe(&mut self, file: u32, blocks: u32, from: usize, to: usize, lag: u32) {
        for step in 0..blocks + lag {
            if step < blocks {
                self.ops[from].push(Op::Write(file + step));
            }
            if step >= lag {
                self.ops[to].push(Op::Read(file + step - lag));
            }
        }
    }

    /// Four tasks a node, one file a round; in round i task N reads what N + i writes.
    fn mpi_io(&mut self, nodes: usize, blocks: u32) {
        let tasks = 4 * nodes;
        for task in 0..tasks {
            self.task(task % nodes);
        }
        for round in 1..=3 {
            let file = self.file(blocks * tasks as u32);
            for task in 0..tasks {
                let (own, other) = (task as u32 * blocks, ((task + round) % tasks) as u32 * blocks);
                for step in 0..blocks + 8 {
                    if step < blocks {
                        self.ops[task].push(Op::Write(file + own + step));
                    }
                    if step >= 8 {
                        self.ops[task].push(Op::Read(file + other + step - 8));
                    }
                }
                self.ops[task].push(Op::Barrier);
            }
        }
    }

    /// On each node a sensor that reads raw data and writes images of 52 blocks, and one that makes
    /// knowledge of the images of a sensor on another node. Three rounds.
    fn ssca3(&mut self, nodes: usize, images: u32) {
        let tasks: Vec<[usize; 2]> =
            (0..nodes).map(|n| [self.task(n), self.task((n + nodes / 2) % nodes)]).collect();
        for _ in 0..3 {
            for [sensor, knowledge] in tasks.iter().copied() {
                let (raw, formed) = (self.file(52 * images), self.file(52 * images));
                let known = self.file(8 * images);
                for image in 0..images {
                    let of = |file: u32| file + 52 * image..file + 52 * (image + 1);
                    self.do_all(sensor, of(raw).map(Op::Read));
                    self.ops[sensor].push(Op::Compute(0.15));
                    self.do_all(sensor, of(formed).map(Op::Write));
                    self.do_all(knowledge, of(formed).map(Op::Read));
                    self.ops[knowledge].push(Op::Compute(0.15));
                    let of = known + 8 * image..known + 8 * (image + 1);
                    self.do_all(knowledge, of.map(Op::Write));
                }
                self.ops[sensor].push(Op::Barrier);
                self.ops[knowledge].push(Op::Barrier);
            }
        }
    }

    /// Two members: on each node two tasks of each model; the pairs begin at opposite ends. 12.6 MB go
    /// one way in each cycle, 4.1 MB back.
    fn coupled(&mut self, nodes: usize, cycles: u32) {
        for member in 0..2 * nodes {
            let node = member % nodes;
            let (model, filter) = (self.task(node), self.task(nodes - 1 - node));
            for _ in 0..cycles {
                let (forward, back) = (self.file(192), self.file(63));
                self.ops[model].push(Op::Compute(0.4));
                self.do_all(model, (forward..forward + 192).map(Op::Write));
                self.do_all(filter, (forward..forward + 192).map(Op::Read));
                self.ops[filter].push(Op::Compute(0.2));
                self.do_all(filter, (back..back + 63).map(Op::Write));
                self.do_all(model, (back..back + 63).map(Op::Read));
            }
        }
    }

    /// Groups of two producers on different nodes and a consumer that turns from one to the other
    /// with every 256 blocks, and says so to the producer whose turn it is then. Two nodes have two
    /// cores each, so that one task is always elsewhere.
    fn ping_pong(&mut self, nodes: usize, windows: u32) {
        self.cores = 2.0;
        for group in 0..nodes / 2 {
            let (a, b) = (self.task(2 * group), self.task(2 * group + 1));
            let consumer = self.task(2 * group);
            let turns = self.file(windows);
            for window in 0..windows {
                let producer = if window % 2 == 0 { a } else { b };
                if window > 0 {
                    self.ops[producer].push(Op::Read(turns + window - 1));
                }
                let file = self.file(256);
                self.pipe(file, 256, producer, consumer, 8);
                self.ops[consumer].push(Op::Write(turns + window));
            }
        }
    }

    /// Two tasks a node compute on what they read of one file, again and again.
    fn overload(&mut self, nodes: usize, reads: u32) {
        self.cores = 2.0;
        let file = self.file(1024);
        for task in 0..2 * nodes {
            self.task(task % nodes);
            for read in 0..reads {
                self.ops[task].push(Op::Read(file + read % 1024));
                self.ops[task].push(Op::Compute(0.005));
            }
        }
    }

    /// Two tasks a node; at the same moments each writes 64 blocks of its own, four times.
    fn bursts(&mut self, nodes: usize, windows: u32) {
        let tasks: Vec<usize> = (0..2 * nodes).map(|task| self.task(task % nodes)).collect();
        let file = self.file(windows * 64 * tasks.len() as u32);
        for window in 0..windows {
            for &task in &tasks {
                let first = file + (task as u32 * windows + window) * 64;
                self.do_all(task, (0..256).map(|at| Op::Write(first + at % 64)));
                self.ops[task].push(Op::Compute(0.5));
                self.ops[task].push(Op::Barrier);
            }
        }
    }

    /// A producer on each node, its consumer on the next one, 200 blocks behind. The producer takes
    /// 2 ms for a block: faster, and it would be ahead by more than is remembered of it.
    fn lag(&mut self, nodes: usize, blocks: u32) {
        for node in 0..nodes {
            let (from, to) = (self.task(node), self.task((node + 1) % nodes));
            let file = self.file(blocks);
            self.pipe(file, blocks, from, to, 200);
            let slow = |op: &Op| [*op, Op::Compute(0.002)];
            self.ops[from] = self.ops[from].iter().flat_map(slow).collect();
        }
    }

    /// Two tasks a node read a part each of one file.
    fn scans(&mut self, nodes: usize, blocks: u32) {
        let file = self.file(blocks * 2 * nodes as u32);
        for task in 0..2 * nodes {
            self.task(task % nodes);
            let first = file + task as u32 * blocks;
            self.do_all(task, (first..first + blocks).map(Op::Read));
        }
    }

    /// Where tasks should be for the first round, as one knows who knows the programs: those that
    /// exchange most together, as many on each node as in the beginning.
    pub(super) fn optimal(&self, nodes: usize) -> Vec<usize> {
        let tasks = self.ops.len();
        let most = tasks.div_ceil(nodes);
        let mut weight = vec![vec![0u64; tasks]; tasks];
        for (task, ops) in self.ops.iter().enumerate() {
            for op in ops.iter().take_while(|op| **op != Op::Barrier) {
                let Op::Read(block) = op else { continue };
                let writer = self.writer[*block as usize];
                if writer != NOBODY && writer as usize != task {
                    weight[task][writer as usize] += 1;
                    weight[writer as usize][task] += 1;
                }
            }
        }
        // Groups that exchange most are put together as long as they fit on a node.
        let mut groups: Vec<Vec<usize>> = (0..tasks).map(|task| vec![task]).collect();
        loop {
            let mut best: Option<(u64, usize, usize)> = None;
            for a in 0..groups.len() {
                for b in a + 1..groups.len() {
                    if groups[a].len() + groups[b].len() > most || groups[b].is_empty() {
                        continue;
                    }
                    let between = groups[a]
                        .iter()
                        .map(|x| groups[b].iter().map(|y| weight[*x][*y]).sum::<u64>());
                    let between = between.sum();
                    if between > 0 && best.is_none_or(|best| between > best.0) {
                        best = Some((between, a, b));
                    }
                }
            }
            let Some((_, a, b)) = best else { break };
            let moved = groups.swap_remove(b);
            groups[a].extend(moved);
        }
        groups.sort_by_key(|group| (std::cmp::Reverse(group.len()), group[0]));
        let mut place = vec![0; tasks];
        let mut full = vec![0usize; nodes];
        for group in groups {
            let node = (0..nodes).min_by_key(|node| (full[*node], *node)).unwrap_or(0);
            full[node] += group.len();
            group.into_iter().for_each(|task| place[task] = node);
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn workloads_when_made_then_each_block_has_one_writer_and_barriers_match() {
        for kind in Kind::value_variants() {
            let made = Workload::make(*kind, 4, 0.01);
            let mut written: Vec<Vec<usize>> = vec![vec![]; made.blocks.len()];
            let barriers = |ops: &Vec<Op>| ops.iter().filter(|op| **op == Op::Barrier).count();
            for (task, ops) in made.ops.iter().enumerate() {
                assert_eq!(barriers(ops), barriers(&made.ops[0]), "{}", kind.name());
                for op in ops {
                    if let Op::Write(block) = op {
                        written[*block as usize].push(task);
                    }
                }
            }
            let one = |by: &Vec<usize>| by.iter().all(|task| *task == by[0]);
            assert!(written.iter().all(one), "{}", kind.name());
            assert!(made.start.iter().all(|node| *node < 4));
        }
    }

    #[test]
    fn optimal_placement_of_a_ring_then_neighbours_together() {
        let made = Workload::make(Kind::MpiIo, 4, 0.01);
        let place = made.optimal(4);
        let local = (0..16).filter(|task| place[*task] == place[(task + 1) % 16]).count();
        assert_eq!(local, 12, "{place:?}");
        let made = Workload::make(Kind::Coupled, 4, 0.01);
        let place = made.optimal(4);
        assert!((0..8).all(|pair| place[2 * pair] == place[2 * pair + 1]), "{place:?}");
    }
}
