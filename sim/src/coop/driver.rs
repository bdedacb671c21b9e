//! Processes on the modelled machine, with the core's cache or without any, by discrete events.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use forebay_coop::message::{Access, CallId, Extent, File, Io, Piece, Rank, Request};
use forebay_coop::sizing::Observation;
use forebay_coop::{Action, Event, Message, Options, Process};

use super::load::{Load, Step};
use super::model::{Below, Hardware, Locks};

/// How the file is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Each call goes to the file system.
    Native,
    /// The same, with a byte-range lock around each.
    Locks,
    /// The paper's cooperative cache.
    Paper,
    /// Ours.
    Ours,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Native, Self::Locks, Self::Paper, Self::Ours];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "no cache",
            Self::Locks => "no cache, locks",
            Self::Paper => "paper",
            Self::Ours => "ours",
        }
    }
}

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The machine.
    pub hardware: Hardware,
    /// How the file is accessed.
    pub scheme: Scheme,
    /// The program.
    pub load: Load,
    /// Its processes.
    pub ranks: u32,
    /// Bytes of a page in the paper's scheme.
    pub page: u32,
    /// Bytes of a process's pool.
    pub pool: u64,
}

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Report {
    /// Seconds from open to close.
    pub seconds: f64,
    /// Bytes that the program read and wrote.
    pub bytes: u64,
    /// Bytes that the file system read and wrote.
    pub moved: u64,
    /// Requests that it got.
    pub requests: u64,
    /// Messages between processes.
    pub messages: u64,
    /// Bytes of a page.
    pub page: u32,
}

impl Report {
    /// Bytes a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-12)
    }
}

const FILE: File = File(0);

enum What {
    /// A process goes on with its program.
    Next(u32),
    /// A range lock was granted.
    Locked(u32),
    /// A message arrives.
    Arrives { from: u32, to: u32, message: Message },
    /// An access to the file has ended.
    Ended(u32, Io),
}

struct At {
    time: f64,
    number: u64,
    what: What,
}

impl PartialEq for At {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for At {}
impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for At {
    fn cmp(&self, other: &Self) -> Ordering {
        other.time.total_cmp(&self.time).then(other.number.cmp(&self.number))
    }
}

/// What a process does next, when a step is made of several.
#[derive(Debug, Clone)]
enum Part {
    Access {
        writes: bool,
        extents: Vec<(u64, u64)>,
        collective: bool,
    },
    /// Waits for all, and for so many bytes to be exchanged.
    Meet(u64),
    Close,
}

struct World {
    run: Run,
    below: Below,
    locks: Locks,
    heap: BinaryHeap<At>,
    number: u64,
    processes: Vec<Process>,
    /// Until when each process is busy with the cache.
    busy: Vec<f64>,
    steps: Vec<u64>,
    parts: Vec<Vec<Part>>,
    closed: Vec<bool>,
    met: Vec<u32>,
    exchanged: u64,
    calls: u64,
    report: Report,
}

/// Runs a program.
#[must_use]
pub fn run(run: Run) -> Report {
    let options = options(&run);
    let coop = matches!(run.scheme, Scheme::Paper | Scheme::Ours);
    let ranks = if coop { run.ranks } else { 0 };
    let processes =
        (0..ranks).map(|rank| Process::new(Rank(rank), run.ranks, options.clone())).collect();
    let count = run.ranks as usize;
    let mut world = World {
        run,
        below: Below::new(run.hardware, run.ranks, run.load.length()),
        locks: Locks::default(),
        heap: BinaryHeap::new(),
        number: 0,
        processes,
        busy: vec![0.0; count],
        steps: vec![0; count],
        parts: vec![Vec::new(); count],
        closed: vec![false; count],
        met: Vec::new(),
        exchanged: 0,
        calls: 0,
        report: Report { page: if coop { options.page_size } else { 0 }, ..Report::default() },
    };
    for rank in 0..ranks {
        let length = run.load.length();
        world.event(0.0, rank, Event::Open { file: FILE, length });
    }
    for rank in 0..run.ranks {
        world.at(0.0, What::Next(rank));
    }
    while let Some(At { time, what, .. }) = world.heap.pop() {
        world.happen(time, what);
    }
    world.report.moved = world.below.bytes;
    world.report.requests = world.below.requests;
    world.report
}

fn options(run: &Run) -> Options {
    let slots = |page: u32| u32::try_from(run.pool / u64::from(page)).unwrap_or(u32::MAX).max(1);
    if run.scheme != Scheme::Ours {
        return Options::paper(run.page, slots(run.page));
    }
    let mut seen = Observation::default();
    for rank in 0..run.ranks.min(16) {
        let mut one = Observation::default();
        for number in 0..16 {
            if let Some(Step::Access { extents, .. } | Step::Collective { extents, .. }) =
                run.load.step(run.ranks, rank, number)
            {
                one.see(&to_extents(&extents));
            }
        }
        seen.add(&one);
    }
    let page = seen.page_size(64 << 10, 1 << 20).unwrap_or(run.page);
    Options::full(page, slots(page))
}

fn to_extents(list: &[(u64, u64)]) -> Vec<Extent> {
    list.iter().map(|(offset, len)| Extent { offset: *offset, len: *len }).collect()
}

impl World {
    fn at(&mut self, time: f64, what: What) {
        self.number += 1;
        self.heap.push(At { time, number: self.number, what });
    }

    fn happen(&mut self, now: f64, what: What) {
        match what {
            What::Next(rank) => self.next(now, rank),
            What::Locked(rank) => self.locked(now, rank),
            What::Arrives { from, to, message } => {
                self.event(now, to, Event::Message { from: Rank(from), message });
            }
            What::Ended(rank, io) => self.event(now, rank, Event::Finished { io, ok: true }),
        }
    }

    /// The parts that a step is made of in this scheme, the last first.
    fn refill(&mut self, rank: u32) {
        let number = self.steps[rank as usize];
        self.steps[rank as usize] += 1;
        let ours = self.run.scheme == Scheme::Ours;
        let count = u64::from(self.run.ranks);
        let parts = match self.run.load.step(self.run.ranks, rank, number) {
            Some(Step::Barrier) => vec![Part::Meet(0)],
            Some(Step::Access { writes, extents }) => {
                vec![Part::Access { writes, extents, collective: false }]
            }
            Some(Step::Collective { writes, extents, .. }) if ours => {
                vec![Part::Meet(0), Part::Access { writes, extents, collective: true }]
            }
            // Two phases: each process accesses an equal share, and they exchange what they have.
            Some(Step::Collective { writes, extents, whole: (start, len) }) => {
                let share = |rank: u64| start + rank * len / count;
                let (from, to) = (share(rank.into()), share(u64::from(rank) + 1));
                let bytes = extents.iter().map(|(_, len)| len).sum();
                let own = vec![(from, to - from)];
                let access = Part::Access { writes, extents: own, collective: false };
                let meet = Part::Meet(bytes);
                if writes { vec![access, meet] } else { vec![meet, access] }
            }
            None if !self.closed[rank as usize] => {
                self.closed[rank as usize] = true;
                vec![Part::Close, Part::Meet(0)]
            }
            None => Vec::new(),
        };
        self.parts[rank as usize] = parts;
    }

    fn next(&mut self, now: f64, rank: u32) {
        if self.parts[rank as usize].is_empty() {
            self.refill(rank);
        }
        self.report.seconds = self.report.seconds.max(now);
        match self.parts[rank as usize].last().cloned() {
            None => {}
            Some(Part::Meet(bytes)) => {
                self.parts[rank as usize].pop();
                self.meet(now, rank, bytes);
            }
            Some(Part::Access { writes, extents, collective }) => {
                self.report.bytes += extents.iter().map(|(_, len)| len).sum::<u64>();
                if self.run.scheme == Scheme::Locks {
                    return self.lock(now, rank, writes, &extents);
                }
                self.parts[rank as usize].pop();
                if self.run.scheme == Scheme::Native {
                    let end = self.direct(now, rank, writes, &extents);
                    return self.at(end, What::Next(rank));
                }
                let access = if writes { Access::Write } else { Access::Read };
                let extents = to_extents(&extents);
                let request = Request::Access { file: FILE, access, collective, extents };
                self.start(now, rank, request);
            }
            Some(Part::Close) => {
                self.parts[rank as usize].pop();
                if self.processes.is_empty() {
                    return self.at(now, What::Next(rank));
                }
                self.start(now, rank, Request::Close { file: FILE });
            }
        }
    }

    fn start(&mut self, now: f64, rank: u32, request: Request) {
        self.calls += 1;
        let call = CallId(self.calls);
        self.event(now, rank, Event::Start { call, request });
    }

    /// Waits for all others; they exchange what they bring.
    fn meet(&mut self, now: f64, rank: u32, bytes: u64) {
        self.met.push(rank);
        self.exchanged = self.exchanged.max(bytes);
        if self.met.len() < self.run.ranks as usize {
            return;
        }
        let rounds = f64::from(self.run.ranks.max(2).ilog2() + 1);
        let time = rounds * self.run.hardware.latency
            + std::mem::take(&mut self.exchanged) as f64 / self.run.hardware.link;
        for rank in std::mem::take(&mut self.met) {
            self.at(now + time, What::Next(rank));
        }
    }

    fn direct(&mut self, now: f64, rank: u32, writes: bool, extents: &[(u64, u64)]) -> f64 {
        extents
            .iter()
            .fold(now, |time, (offset, len)| self.below.access(time, rank, writes, *offset, *len))
    }

    fn lock(&mut self, now: f64, rank: u32, writes: bool, extents: &[(u64, u64)]) {
        let start = extents.first().map_or(0, |extent| extent.0);
        let end = extents.last().map_or(0, |extent| extent.0 + extent.1);
        let wanted = (rank, start, end, writes);
        if let Some(time) = self.locks.lock(now, &self.run.hardware, wanted) {
            self.at(time, What::Locked(rank));
        }
    }

    fn locked(&mut self, now: f64, rank: u32) {
        let Some(Part::Access { writes, extents, .. }) = self.parts[rank as usize].pop() else {
            return;
        };
        let end = self.direct(now, rank, writes, &extents);
        for (other, time) in self.locks.unlock(end, &self.run.hardware, rank) {
            self.at(time, What::Locked(other));
        }
        self.at(end + 2.0 * self.run.hardware.latency, What::Next(rank));
    }

    /// An event of the cache: it takes its time, and what comes of it begins then.
    fn event(&mut self, now: f64, rank: u32, event: Event) {
        let hardware = self.run.hardware;
        let mut actions = Vec::new();
        self.processes[rank as usize].step(event, &mut actions);
        let mut time = self.busy[rank as usize].max(now) + hardware.event;
        for action in actions {
            match action {
                Action::Copy { len, .. } => time += len as f64 / hardware.memory,
                Action::Send { to, message, bytes } => {
                    self.report.messages += 1;
                    let size = total(&bytes);
                    let arrival = self.below.send(time, rank, to.0, size);
                    self.at(arrival, What::Arrives { from: rank, to: to.0, message });
                }
                Action::Read { io, offset, pieces, .. } => {
                    let end = self.below.access(time, rank, false, offset, total(&pieces));
                    self.at(end, What::Ended(rank, io));
                }
                Action::Write { io, offset, pieces, .. } => {
                    let end = self.below.access(time, rank, true, offset, total(&pieces));
                    self.at(end, What::Ended(rank, io));
                }
                Action::Sync { io, .. } => {
                    self.at(time + 2.0 * hardware.latency, What::Ended(rank, io));
                }
                Action::Done { .. } => self.at(time, What::Next(rank)),
                Action::Zero { .. }
                | Action::Buffer { .. }
                | Action::Free { .. }
                | Action::Lost { .. } => {}
            }
        }
        self.busy[rank as usize] = time;
    }
}

fn total(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.len).sum()
}
