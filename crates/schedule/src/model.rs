//! Nodes, files and jobs, and what must hold of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A node that runs jobs. Rates are bytes a second and may be infinite.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Slots (cores) that jobs occupy.
    pub slots: u32,
    /// Memory that jobs occupy.
    pub memory_bytes: u64,
    /// Room on its tier for what a plan brings there.
    pub room_bytes: u64,
    /// What comes from other nodes.
    pub link: f64,
    /// What comes from the backing store.
    pub store: f64,
    /// Jobs that a plan may give it in all.
    pub most_jobs: usize,
}

impl Node {
    /// One job at a time, no other limits, everything comes at `rate`.
    #[must_use]
    pub fn with_rate(rate: f64) -> Self {
        let (memory_bytes, room_bytes) = (u64::MAX, u64::MAX);
        Self { slots: 1, memory_bytes, room_bytes, link: rate, store: rate, most_jobs: usize::MAX }
    }
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Bytes.
    pub size: u64,
    /// Nodes that have it; if none, and no job writes it, it comes from the backing store.
    pub holders: Vec<usize>,
}

/// A job.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Seconds that it computes.
    pub compute_s: f64,
    /// Files that it reads. A file that another job writes makes this one depend on it.
    pub reads: Vec<usize>,
    /// Files that it writes; they are on its node when it ends.
    pub writes: Vec<usize>,
    /// Jobs that must have ended before.
    pub after: Vec<usize>,
    /// Slots that it occupies.
    pub slots: u32,
    /// Memory that it occupies.
    pub memory_bytes: u64,
}

impl Job {
    /// A job of one slot that only reads.
    #[must_use]
    pub fn reading(compute_s: f64, reads: Vec<usize>) -> Self {
        Self { compute_s, reads, writes: vec![], after: vec![], slots: 1, memory_bytes: 0 }
    }
}

/// A job that runs already: it stays where it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Running {
    /// The job.
    pub job: usize,
    /// Its node.
    pub node: usize,
    /// Seconds until it ends, as far as one knows.
    pub ends_s: f64,
}

/// What is to be planned, unchecked.
#[derive(Debug, Clone, PartialEq)]
pub struct Instance {
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The files.
    pub files: Vec<File>,
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Jobs that run already.
    pub running: Vec<Running>,
    /// Bytes a second that the backing store gives all nodes together; may be infinite.
    pub store_total: f64,
}

/// What is wrong with an instance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsound {
    /// No nodes.
    #[error("there are no nodes")]
    NoNodes,
    /// A number that is none, or of the wrong sign.
    #[error("{what} {index}: {wrong}")]
    Number {
        /// Node, file or job.
        what: &'static str,
        /// Which.
        index: usize,
        /// What is wrong with it.
        wrong: &'static str,
    },
    /// Something is named that is not there.
    #[error("{what} {index} names {named}, which is not there")]
    Unknown {
        /// File or job.
        what: &'static str,
        /// Which.
        index: usize,
        /// What it names.
        named: String,
    },
    /// Two jobs write one file.
    #[error("file {0} is written by two jobs")]
    WrittenTwice(usize),
    /// Jobs wait for each other.
    #[error("job {0} depends on itself")]
    Circle(usize),
    /// A job asks for more than any node has.
    #[error("job {0} fits on no node")]
    FitsNowhere(usize),
}

/// Files and jobs may be at most so many bytes in all, so that sums stay exact.
const MAX_BYTES: u64 = 1 << 60;

/// An instance that is sound, with what follows from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    pub(crate) nodes: Vec<Node>,
    pub(crate) files: Vec<File>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) store_total: f64,
    /// Where jobs run already, and until when.
    pub(crate) fixed: Vec<Option<(usize, f64)>>,
    /// Jobs that each one waits for, without repetitions.
    pub(crate) before: Vec<Vec<usize>>,
    /// Which job writes a file.
    pub(crate) writer: Vec<Option<usize>>,
    /// Jobs by rank: whoever has most after him first; never before what he waits for.
    pub(crate) order: Vec<usize>,
    /// Place of each job in `order`.
    pub(crate) place: Vec<usize>,
}

impl Problem {
    /// Checks an instance.
    ///
    /// # Errors
    /// [`Unsound`] says what is wrong.
    pub fn new(instance: Instance) -> Result<Self, Unsound> {
        let Instance { nodes, mut files, mut jobs, running, store_total } = instance;
        check_nodes(&nodes, store_total)?;
        let mut bytes = 0u64;
        for (index, file) in files.iter_mut().enumerate() {
            bytes = bytes.saturating_add(file.size);
            if bytes > MAX_BYTES {
                return Err(Unsound::Number {
                    what: "file",
                    index,
                    wrong: "too many bytes in all",
                });
            }
            file.holders.sort_unstable();
            file.holders.dedup();
            if let Some(node) = file.holders.iter().find(|node| **node >= nodes.len()) {
                return Err(Unsound::Unknown {
                    what: "file",
                    index,
                    named: format!("node {node}"),
                });
            }
        }
        let mut writer = vec![None; files.len()];
        let mut reading = 0u64;
        for (index, job) in jobs.iter_mut().enumerate() {
            job.reads.sort_unstable();
            job.reads.dedup();
            check_job(index, job, files.len(), &nodes)?;
            let read = job.reads.iter().fold(0u64, |sum, file| sum + files[*file].size);
            reading = reading.saturating_add(read);
            if reading > MAX_BYTES {
                return Err(Unsound::Number { what: "job", index, wrong: "reads too many bytes" });
            }
            for file in &job.writes {
                if writer[*file].replace(index).is_some() {
                    return Err(Unsound::WrittenTwice(*file));
                }
                // What it is before it is written is read by nobody.
                files[*file].holders.clear();
            }
        }
        let fixed = fixed(&running, jobs.len(), nodes.len())?;
        let before = dependencies(&jobs, &writer)?;
        let mut problem = Self {
            nodes,
            files,
            jobs,
            store_total,
            fixed,
            before,
            writer,
            order: vec![],
            place: vec![],
        };
        problem.rank()?;
        Ok(problem)
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Number of jobs.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Jobs that a job waits for.
    #[must_use]
    pub fn before(&self, job: usize) -> &[usize] {
        &self.before[job]
    }

    /// Whether a job can run on a node at all.
    #[must_use]
    pub fn fits(&self, job: usize, node: usize) -> bool {
        let (job, node) = (&self.jobs[job], &self.nodes[node]);
        job.slots <= node.slots && job.memory_bytes <= node.memory_bytes
    }

    /// Adds a file.
    pub(crate) fn push_file(&mut self, file: File) -> usize {
        self.files.push(file);
        self.writer.push(None);
        self.files.len() - 1
    }

    /// Adds a job, last in order.
    pub(crate) fn push_job(&mut self, mut job: Job) -> Result<usize, Unsound> {
        let index = self.jobs.len();
        job.reads.sort_unstable();
        job.reads.dedup();
        check_job(index, &job, self.files.len(), &self.nodes)?;
        if let Some(file) = job.writes.iter().find(|file| self.writer[**file].is_some()) {
            return Err(Unsound::WrittenTwice(*file));
        }
        for &file in &job.writes {
            self.writer[file] = Some(index);
        }
        let writers = job.reads.iter().filter_map(|file| self.writer[*file]);
        let writers = writers.filter(|writer| *writer != index);
        let mut before: Vec<usize> = job.after.iter().copied().chain(writers).collect();
        before.sort_unstable();
        before.dedup();
        if before.last().is_some_and(|earlier| *earlier >= index) {
            return Err(Unsound::Circle(index));
        }
        self.before.push(before);
        self.place.push(self.order.len());
        self.order.push(index);
        self.fixed.push(None);
        self.jobs.push(job);
        Ok(index)
    }

    /// Jobs that are to be placed, by rank.
    pub(crate) fn open_jobs(&self) -> impl Iterator<Item = usize> + '_ {
        self.order.iter().copied().filter(|job| self.fixed[*job].is_none())
    }

    /// The nodes of jobs that run already, 0 for others.
    pub(crate) fn fixed_or_first(&self) -> Vec<usize> {
        self.fixed.iter().map(|fixed| fixed.map_or(0, |(node, _)| node)).collect()
    }

    /// Whether no job waits for another.
    pub(crate) fn independent(&self) -> bool {
        let open = |job: &usize| self.fixed[*job].is_none();
        (0..self.jobs.len()).filter(open).all(|job| self.before[job].is_empty())
    }

    /// Whether a file comes from the backing store to who has not got it.
    pub(crate) fn in_store(&self, file: usize) -> bool {
        self.files[file].holders.is_empty() && self.writer[file].is_none()
    }

    /// Bytes that a job reads: those that other nodes have, those of the backing store.
    pub(crate) fn read_bytes(&self, job: usize) -> (u64, u64) {
        let mut bytes = (0, 0);
        for &file in &self.jobs[job].reads {
            let of = if self.in_store(file) { &mut bytes.1 } else { &mut bytes.0 };
            *of += self.files[file].size;
        }
        bytes
    }

    /// Sets `order` and `place`. The rank of a job is what it and all that wait for it take along
    /// the longest way, with everything to be brought at the slowest rate (as in HEFT, Topcuoglu,
    /// Hariri, Wu, 2002); without dependencies these are simply the longest jobs first.
    fn rank(&mut self) -> Result<(), Unsound> {
        let topological = topological(&self.before)?;
        let slowest =
            |rate: fn(&Node) -> f64| self.nodes.iter().map(rate).fold(f64::INFINITY, f64::min);
        let (link, store) = (slowest(|node| node.link), slowest(|node| node.store));
        let mut rank = vec![0.0f64; self.jobs.len()];
        let mut behind = vec![0.0f64; self.jobs.len()];
        for &job in topological.iter().rev() {
            let (from_nodes, in_store) = self.read_bytes(job);
            let length = self.jobs[job].compute_s + from_nodes as f64 / link;
            rank[job] = length + in_store as f64 / store + behind[job];
            for &earlier in &self.before[job] {
                behind[earlier] = behind[earlier].max(rank[job]);
            }
        }
        let mut position = vec![0; self.jobs.len()];
        for (at, &job) in topological.iter().enumerate() {
            position[job] = at;
        }
        self.order = topological;
        // Jobs of no length may share a rank with what they wait for: their order decides then.
        self.order.sort_by(|a, b| {
            rank[*b].total_cmp(&rank[*a]).then_with(|| position[*a].cmp(&position[*b]))
        });
        self.place = vec![0; self.jobs.len()];
        for (at, &job) in self.order.iter().enumerate() {
            self.place[job] = at;
        }
        Ok(())
    }
}

fn check_nodes(nodes: &[Node], store_total: f64) -> Result<(), Unsound> {
    if nodes.is_empty() {
        return Err(Unsound::NoNodes);
    }
    let no_rate = |rate: f64| rate.is_nan() || rate <= 0.0;
    for (index, node) in nodes.iter().enumerate() {
        let wrong = if no_rate(node.link) || no_rate(node.store) || no_rate(store_total) {
            "rates must be more than 0"
        } else if node.slots == 0 {
            "needs at least one slot"
        } else {
            continue;
        };
        return Err(Unsound::Number { what: "node", index, wrong });
    }
    Ok(())
}

fn check_job(index: usize, job: &Job, files: usize, nodes: &[Node]) -> Result<(), Unsound> {
    let number = |wrong| Err(Unsound::Number { what: "job", index, wrong });
    if !job.compute_s.is_finite() || job.compute_s < 0.0 {
        return number("computes for no time that could be waited for");
    }
    if job.slots == 0 {
        return number("needs at least one slot");
    }
    if let Some(file) = job.reads.iter().chain(&job.writes).find(|file| **file >= files) {
        return Err(Unsound::Unknown { what: "job", index, named: format!("file {file}") });
    }
    let room = |node: &Node| job.slots <= node.slots && job.memory_bytes <= node.memory_bytes;
    if !nodes.iter().any(room) {
        return Err(Unsound::FitsNowhere(index));
    }
    Ok(())
}

fn fixed(
    running: &[Running],
    jobs: usize,
    nodes: usize,
) -> Result<Vec<Option<(usize, f64)>>, Unsound> {
    let mut fixed = vec![None; jobs];
    for (index, job) in running.iter().enumerate() {
        if job.job >= jobs || job.node >= nodes {
            let named = format!("job {} on node {}", job.job, job.node);
            return Err(Unsound::Unknown { what: "running job", index, named });
        }
        if !job.ends_s.is_finite() {
            return Err(Unsound::Number { what: "running job", index, wrong: "never ends" });
        }
        fixed[job.job] = Some((job.node, job.ends_s.max(0.0)));
    }
    Ok(fixed)
}

fn dependencies(jobs: &[Job], writer: &[Option<usize>]) -> Result<Vec<Vec<usize>>, Unsound> {
    let mut all = Vec::with_capacity(jobs.len());
    for (index, job) in jobs.iter().enumerate() {
        if let Some(other) = job.after.iter().find(|other| **other >= jobs.len()) {
            let named = format!("job {other}");
            return Err(Unsound::Unknown { what: "job", index, named });
        }
        // A job may read what it writes itself.
        let writers = job.reads.iter().filter_map(|file| writer[*file]);
        let writers = writers.filter(|writer| *writer != index);
        let mut before: Vec<usize> = job.after.iter().copied().chain(writers).collect();
        before.sort_unstable();
        before.dedup();
        all.push(before);
    }
    Ok(all)
}

/// Jobs so that none stands before what it waits for, otherwise by their numbers.
fn topological(before: &[Vec<usize>]) -> Result<Vec<usize>, Unsound> {
    let mut waits: Vec<usize> = before.iter().map(Vec::len).collect();
    let mut after = vec![vec![]; before.len()];
    for (job, earlier) in before.iter().enumerate() {
        for &other in earlier {
            after[other].push(job);
        }
    }
    let free = waits.iter().enumerate().filter(|(_, waits)| **waits == 0);
    let mut ready: BinaryHeap<Reverse<usize>> = free.map(|(job, _)| Reverse(job)).collect();
    let mut order = Vec::with_capacity(before.len());
    while let Some(Reverse(job)) = ready.pop() {
        order.push(job);
        for &next in &after[job] {
            waits[next] -= 1;
            if waits[next] == 0 {
                ready.push(Reverse(next));
            }
        }
    }
    match waits.iter().position(|waits| *waits > 0) {
        Some(job) => Err(Unsound::Circle(job)),
        None => Ok(order),
    }
}
