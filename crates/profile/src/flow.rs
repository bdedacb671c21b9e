//! Who should move, by what that saves.
//!
//! Of each task it is known how often a second it reads and writes which rows, summed over the
//! intervals, newer patterns counting more: what one writes now and another reads later is common to
//! both, whatever the lag. What a task has in common with the tasks of a node is what would be local
//! there: its reads of rows that they write or read, and their reads of rows that it writes. A move is
//! worth what is local there less what is local here, in seconds saved over a horizon, less what the
//! tasks of the fuller node are slowed down by. It is made if that is more than a few times the cost.
//!
//! A move must have paid in each of the task's newest patterns, and tasks that have moved stay for a
//! while: what changes faster than moving pays is left alone. Where a node has no slot, two tasks may
//! change places.

use std::collections::BTreeMap;

use crate::pattern::{Pattern, Row};
use crate::profiler::{Profiler, Task};
use crate::{Migration, Node, has_memory};

/// What moving costs and saves.
#[derive(Debug, Clone, PartialEq)]
pub struct Terms {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bytes a second from elsewhere.
    pub remote: f64,
    /// Bytes a second from the node itself.
    pub local: f64,
    /// Bytes a second at which images move.
    pub image: f64,
    /// Seconds that a task stands still, whatever its size.
    pub downtime_s: f64,
    /// Seconds for which things are expected to go on as they are.
    pub horizon_s: f64,
    /// How many times its cost a move must save.
    pub margin: f64,
    /// Least overlap with a task at the destination ([`overlap`]).
    pub overlap: f64,
    /// Newest patterns in each of which the move must pay.
    pub agree: usize,
    /// Seconds for which a task that has moved stays.
    pub cool_down_s: f64,
    /// Whether two tasks may change places.
    pub exchange: bool,
    /// Whether a node that has its even share of the tasks gives one back for one that it gets, where
    /// that pays, and never has more than it has cores or its share: tasks share links, too.
    pub even: bool,
    /// Moves and exchanges in one plan; each is made with those before it done.
    pub moves: usize,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            block_bytes: 64 << 10,
            remote: 100e6,
            local: 2e9,
            image: 200e6,
            downtime_s: 0.2,
            horizon_s: 20.0,
            margin: 2.0,
            overlap: 0.25,
            agree: 2,
            cool_down_s: 10.0,
            exchange: true,
            even: true,
            moves: 8,
        }
    }
}

/// Reads and writes a second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Rate {
    reads: f64,
    writes: f64,
}

type Rates = BTreeMap<Row, Rate>;

/// Rows that more tasks access than this are common to these many, the busiest.
const MAX_SHARERS: usize = 64;
/// Exchanges that are looked at for a task.
const MAX_EXCHANGES: usize = 64;

fn add(rates: &mut Rates, pattern: &Pattern, weight: f64) {
    for entry in pattern.entries() {
        let rate = rates.entry(entry.row).or_default();
        rate.reads += weight * f64::from(entry.reads);
        rate.writes += weight * f64::from(entry.writes);
    }
}

/// Seconds that a pattern took; at least a microsecond.
fn span_s(pattern: &Pattern) -> f64 {
    pattern.bounds().map_or(0.0, |(from, to)| (to - from) as f64 / 1e9).max(1e-6)
}

/// Over all patterns, each counting half of the one after it.
fn rates(task: &Task) -> Rates {
    let (mut rates, mut span, mut weight) = (Rates::new(), 0.0, 1.0);
    for pattern in task.patterns() {
        add(&mut rates, pattern, weight);
        span += weight * span_s(pattern);
        weight /= 2.0;
    }
    let scale = |rate: &mut Rate| {
        rate.reads /= span;
        rate.writes /= span;
    };
    rates.values_mut().for_each(scale);
    rates
}

fn of_pattern(pattern: &Pattern) -> Rates {
    let mut rates = Rates::new();
    add(&mut rates, pattern, 1.0 / span_s(pattern));
    rates
}

/// How much of what two tasks access is the same rows: 0 for none, 1 for all, as often (twice the
/// sum of the lesser rates over the sum of all).
#[must_use]
pub fn overlap(a: &Task, b: &Task) -> f64 {
    overlap_of(&rates(a), &rates(b))
}

fn overlap_of(a: &Rates, b: &Rates) -> f64 {
    let all = |rates: &Rates| rates.values().map(|rate| rate.reads + rate.writes).sum::<f64>();
    let total = all(a) + all(b);
    let common = a.iter().filter_map(|(row, mine)| {
        let other = b.get(row)?;
        Some((mine.reads + mine.writes).min(other.reads + other.writes))
    });
    if total > 0.0 { 2.0 * common.sum::<f64>() / total } else { 0.0 }
}

/// What of a row would be local to a task beside others that write and read it.
fn local(mine: Rate, writes: f64, most_reads: f64, all_reads: f64) -> f64 {
    mine.reads.min(writes + most_reads) + mine.writes.min(all_reads)
}

/// What two tasks have in common, in accesses a second.
fn between(mine: &Rates, other: &Rates) -> f64 {
    let common = mine.iter().filter_map(|(row, mine)| {
        let other = other.get(row)?;
        Some(local(*mine, other.writes, other.reads, other.reads))
    });
    common.sum()
}

/// Everything that a plan looks at.
struct Scene<'a> {
    terms: &'a Terms,
    nodes: &'a [Node],
    now: u64,
    tasks: Vec<(u64, &'a Task, Rates)>,
    /// Where each of them is, with the moves planned so far.
    place: Vec<usize>,
    /// Whether it moves already.
    moves: Vec<bool>,
    /// Who accesses a row: index into `tasks`.
    sharers: BTreeMap<Row, Vec<usize>>,
    /// Tasks and busy processors of each node.
    load: Vec<(usize, f64)>,
}

/// A task might go there.
#[derive(Debug, Clone, Copy)]
struct Choice {
    at: usize,
    to: usize,
    /// Accesses a second that become local, less those that cease to be.
    gain: f64,
}

impl<'a> Scene<'a> {
    fn new(profiler: &'a Profiler, nodes: &'a [Node], terms: &'a Terms, now: u64) -> Self {
        let mut load = vec![(0, 0.0); nodes.len()];
        let mut tasks = Vec::new();
        for (number, task) in profiler.tasks() {
            let Some(load) = load.get_mut(task.node as usize) else { continue };
            *load = (load.0 + 1, load.1 + task.cpu);
            if task.patterns().len() > 0 {
                tasks.push((number, task, rates(task)));
            }
        }
        let mut sharers: BTreeMap<Row, Vec<usize>> = BTreeMap::new();
        for (at, (_, _, rates)) in tasks.iter().enumerate() {
            rates.keys().for_each(|row| sharers.entry(*row).or_default().push(at));
        }
        sharers.retain(|_, tasks| tasks.len() > 1);
        for (row, of) in sharers.iter_mut().filter(|(_, of)| of.len() > MAX_SHARERS) {
            let busy =
                |at: usize| tasks[at].2.get(row).map_or(0.0, |rate| rate.reads + rate.writes);
            of.sort_by(|a, b| busy(*b).total_cmp(&busy(*a)).then(a.cmp(b)));
            of.truncate(MAX_SHARERS);
        }
        let place = tasks.iter().map(|(_, task, _)| task.node as usize).collect();
        let moves = vec![false; tasks.len()];
        Self { terms, nodes, now, tasks, place, moves, sharers, load }
    }

    fn node(&self, at: usize) -> usize {
        self.place[at]
    }

    /// Tasks of a node if all had as many.
    fn share(&self) -> usize {
        let tasks: usize = self.load.iter().map(|load| load.0).sum();
        tasks.div_ceil(self.nodes.len().max(1))
    }

    /// Whether a node takes one more task.
    fn has_place(&self, node: usize) -> bool {
        let spec = &self.nodes[node];
        let most = if self.terms.even { self.share().max(spec.cores as usize) } else { usize::MAX };
        self.load[node].0 < most.min(spec.slots as usize)
    }

    /// Whether a task may move.
    fn is_free(&self, at: usize) -> bool {
        let cooled =
            |moved: u64| self.now.saturating_sub(moved) as f64 / 1e9 >= self.terms.cool_down_s;
        !self.moves[at] && self.tasks[at].1.moved_at.is_none_or(cooled)
    }

    /// Takes moves for done.
    fn apply(&mut self, moves: &[Migration]) {
        for moved in moves {
            let Ok(at) = self.tasks.binary_search_by_key(&moved.task, |task| task.0) else {
                continue;
            };
            let (to, cpu) = (moved.to as usize, self.tasks[at].1.cpu);
            let from = std::mem::replace(&mut self.place[at], to);
            self.moves[at] = true;
            self.load[from] = (self.load[from].0.saturating_sub(1), self.load[from].1 - cpu);
            self.load[to] = (self.load[to].0 + 1, self.load[to].1 + cpu);
        }
    }

    /// What of these accesses of a task would be local on each node that has any of it.
    fn local(&self, at: usize, rates: &Rates) -> BTreeMap<usize, f64> {
        let mut total = BTreeMap::new();
        for (row, mine) in rates {
            let Some(sharers) = self.sharers.get(row) else { continue };
            let mut nodes: BTreeMap<usize, (f64, f64, f64)> = BTreeMap::new();
            for &other in sharers.iter().filter(|other| **other != at) {
                let rate = self.tasks[other].2.get(row).copied().unwrap_or_default();
                let (writes, most, all) = nodes.entry(self.node(other)).or_default();
                *writes += rate.writes;
                *most = rate.reads.max(*most);
                *all += rate.reads;
            }
            for (node, (writes, most, all)) in nodes {
                *total.entry(node).or_default() += local(*mine, writes, most, all);
            }
        }
        total
    }

    /// Where a task could go so that more is local than here, in each of its newest patterns.
    fn choices(&self, at: usize) -> Vec<Choice> {
        let task = self.tasks[at].1;
        let agree = self.terms.agree.max(1);
        if !self.is_free(at) || task.patterns().len() < agree {
            return vec![];
        }
        let newest: Vec<BTreeMap<usize, f64>> = task
            .patterns()
            .take(agree)
            .map(|pattern| self.local(at, &of_pattern(pattern)))
            .collect();
        let home = self.node(at);
        let mut choices = Vec::new();
        for &to in newest[0].keys().filter(|to| **to != home) {
            let gain = |local: &BTreeMap<usize, f64>| {
                let of = |node: usize| local.get(&node).copied().unwrap_or(0.0);
                of(to) - of(home)
            };
            let gain = newest.iter().map(gain).fold(f64::INFINITY, f64::min);
            if gain > 0.0 {
                choices.push(Choice { at, to, gain });
            }
        }
        choices
    }

    /// The task at a node that one has most in common with, if that is enough.
    fn partner(&self, at: usize, node: usize) -> Option<u64> {
        let mine = &self.tasks[at].2;
        let there = (0..self.tasks.len()).filter(|other| self.node(*other) == node);
        let common =
            there.map(|other| (overlap_of(mine, &self.tasks[other].2), self.tasks[other].0));
        let best = common.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)))?;
        (best.0 >= self.terms.overlap && best.0 > 0.0).then_some(best.1)
    }

    /// Seconds that so many accesses a second save over the horizon.
    fn saved(&self, accesses: f64) -> f64 {
        let bytes = accesses * self.terms.block_bytes as f64;
        bytes * (1.0 / self.terms.remote - 1.0 / self.terms.local) * self.terms.horizon_s
    }

    fn cost(&self, at: usize) -> f64 {
        self.tasks[at].1.image_bytes as f64 / self.terms.image + self.terms.downtime_s
    }

    /// Seconds of work that a node's tasks lose to each other in a second.
    fn crowding(&self, node: usize, cpu: f64) -> f64 {
        cpu * (cpu / self.nodes[node].cores.max(1e-3) - 1.0).max(0.0)
    }

    /// What changes in that over the horizon if so much work goes from a node to another.
    fn crowded(&self, from: usize, to: usize, cpu: f64) -> f64 {
        let (here, there) = (self.load[from].1, self.load[to].1);
        let after = self.crowding(from, here - cpu) + self.crowding(to, there + cpu);
        let before = self.crowding(from, here) + self.crowding(to, there);
        (after - before) * self.terms.horizon_s
    }

    fn migration(&self, at: usize, to: usize, worth: f64) -> Option<Migration> {
        let with = self.partner(at, to)?;
        let (task, from) = (self.tasks[at].0, self.node(at) as u32);
        Some(Migration { task, from, to: to as u32, with, worth })
    }

    /// The move of one task, if it pays.
    fn single(&self, choice: Choice) -> Option<(f64, Vec<Migration>)> {
        let (task, node) = (self.tasks[choice.at].1, &self.nodes[choice.to]);
        if !self.has_place(choice.to) || !has_memory(node, task.image_bytes) {
            return None;
        }
        let crowded = self.crowded(self.node(choice.at), choice.to, task.cpu);
        let saved = self.saved(choice.gain) - crowded;
        let cost = self.cost(choice.at);
        if saved <= self.terms.margin * cost {
            return None;
        }
        let worth = saved - cost;
        Some((worth, vec![self.migration(choice.at, choice.to, worth)?]))
    }

    /// The best move or exchange, if any pays.
    fn best(&self) -> Option<Vec<Migration>> {
        let mut best: Option<(f64, Vec<Migration>)> = None;
        for at in 0..self.tasks.len() {
            for choice in self.choices(at) {
                let full = self.terms.even && self.load[choice.to].0 >= self.share();
                let full = full || !self.has_place(choice.to);
                let exchanged = if full { self.exchange(choice) } else { None };
                let Some(moves) = exchanged.or_else(|| self.single(choice)) else { continue };
                if best.as_ref().is_none_or(|best| moves.0 > best.0) {
                    best = Some(moves);
                }
            }
        }
        best.map(|(_, moves)| moves)
    }

    /// The best exchange of a task with one at a node that is full, if it pays.
    fn exchange(&self, choice: Choice) -> Option<(f64, Vec<Migration>)> {
        let Choice { at, to, gain } = choice;
        let home = self.node(at);
        if !self.terms.exchange {
            return None;
        }
        let (mine, spec) = (&self.tasks[at].2, self.tasks[at].1);
        let there = (0..self.tasks.len()).filter(|other| self.node(*other) == to);
        let mut best: Option<(f64, usize)> = None;
        for other in there.take(MAX_EXCHANGES) {
            let (_, task, rates) = &self.tasks[other];
            let fits = has_memory(&self.nodes[home], task.image_bytes)
                && has_memory(&self.nodes[to], spec.image_bytes);
            if !self.is_free(other) || !fits {
                continue;
            }
            let local = self.local(other, rates);
            let of = |node: usize| local.get(&node).copied().unwrap_or(0.0);
            // What the two have in common was counted as won by both, and neither has it.
            let apart = between(mine, rates) + between(rates, mine);
            let saved = self.saved(gain + of(home) - of(to) - apart)
                - self.crowded(home, to, spec.cpu - task.cpu);
            let cost = self.cost(at) + self.cost(other);
            let pays = saved > self.terms.margin * cost;
            if pays && best.is_none_or(|(worth, _)| saved - cost > worth) {
                best = Some((saved - cost, other));
            }
        }
        let (worth, other) = best?;
        let first = self.migration(at, to, worth)?;
        let (task, from) = (self.tasks[other].0, to as u32);
        let back = Migration { task, from, to: first.from, with: first.task, worth: 0.0 };
        Some((worth, vec![first, back]))
    }
}

/// The moves of a scan that pay, the best first: each of one task, or of two that change places. No
/// task moves twice.
#[must_use]
pub fn plan(profiler: &Profiler, nodes: &[Node], terms: &Terms, now: u64) -> Vec<Vec<Migration>> {
    let mut scene = Scene::new(profiler, nodes, terms, now);
    let mut all = Vec::new();
    while all.len() < terms.moves {
        let Some(moves) = scene.best() else { break };
        scene.apply(&moves);
        all.push(moves);
    }
    all
}
