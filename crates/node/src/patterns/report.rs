//! What was recorded, as people look at it: access counting diagrams of all tasks on one clock.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use forebay_profile::paper;
use forebay_profile::pattern::{Row, RowAccesses};
use forebay_types::Ino;

use super::{ROW, Recording};
use crate::node::Node;

/// Intervals of a diagram.
pub(super) const INTERVALS: usize = 8;
/// Tasks, and rows of each, that are reported; the busiest.
const MAX_TASKS: usize = 256;
const MAX_ROWS: usize = 256;
/// Tasks that are compared with each other.
const COMPARED: usize = 64;

/// What was recorded of accesses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Patterns {
    /// For how long.
    pub recorded: Duration,
    /// Accesses to blocks that were served from tiers of this node.
    pub here: u64,
    /// Others: from the backing store, and through other nodes.
    pub elsewhere: u64,
    /// Accesses that came faster than they could be taken.
    pub lost: u64,
    /// Accesses of which nobody knows whose they are.
    pub unattributed: u64,
    /// Since the recording began, from when to when the diagrams go.
    pub span: (Duration, Duration),
    /// The tasks, the busiest first.
    pub tasks: Vec<PatternTask>,
    /// How many there are.
    pub tasks_total: u64,
    /// Tasks that access the same, by the measure of Liao, Trahay and Xiao.
    pub similar: Vec<SimilarTasks>,
}

/// What one task did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PatternTask {
    /// What it is.
    pub label: String,
    /// The process that it was first seen as.
    pub pid: u32,
    /// Blocks read in the windows that are kept.
    pub reads: u64,
    /// Blocks written.
    pub writes: u64,
    /// Its rows, by file and place.
    pub rows: Vec<PatternRow>,
    /// How many there are.
    pub rows_total: u64,
}

/// Accesses to 2 MiB of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PatternRow {
    /// The file, from the root.
    pub path: Vec<u8>,
    /// Where the row begins.
    pub offset: u64,
    /// Blocks read, by interval.
    pub reads: [u64; INTERVALS],
    /// Blocks written, by interval.
    pub writes: [u64; INTERVALS],
}

/// Two tasks that access the same.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SimilarTasks {
    /// One.
    pub a: String,
    /// The other.
    pub b: String,
    /// How similar their diagrams are.
    pub similarity: f64,
}

pub(super) fn of(node: &Node, recording: &Recording, lost: u64) -> Patterns {
    let tasks: Vec<(u64, &forebay_profile::profiler::Task)> = recording.profiler.tasks().collect();
    let entries = |task: &forebay_profile::profiler::Task| -> Vec<RowAccesses> {
        task.recent().flat_map(|pattern| pattern.entries().iter().copied()).collect()
    };
    let all: Vec<(u64, Vec<RowAccesses>)> =
        tasks.iter().map(|(number, task)| (*number, entries(task))).collect();
    let times = || all.iter().flat_map(|(_, entries)| entries.iter().map(|entry| entry.at));
    let (from, to) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    let mut paths = HashMap::new();
    let mut path = |ino: u64| -> Vec<u8> {
        paths.entry(ino).or_insert_with(|| node.path_of(Ino(ino))).clone()
    };
    let mut reported: Vec<PatternTask> = all
        .iter()
        .filter(|(_, entries)| !entries.is_empty())
        .map(|(number, entries)| {
            let label = recording.tasks.label(*number).cloned();
            let (label, pid) = label.unwrap_or_else(|| (format!("task {number}"), 0));
            task_of(entries, label, pid, from, to, &mut path)
        })
        .collect();
    reported.sort_by_key(|task| (std::cmp::Reverse(task.reads + task.writes), task.label.clone()));
    let tasks_total = reported.len() as u64;
    reported.truncate(MAX_TASKS);
    Patterns {
        recorded: recording.began.elapsed(),
        here: recording.here,
        elsewhere: recording.elsewhere,
        lost,
        unattributed: recording.profiler.lost().0,
        span: (Duration::from_nanos(from), Duration::from_nanos(to)),
        tasks: reported,
        tasks_total,
        similar: similar(recording),
    }
}

fn task_of(
    entries: &[RowAccesses],
    label: String,
    pid: u32,
    from: u64,
    to: u64,
    path: &mut dyn FnMut(u64) -> Vec<u8>,
) -> PatternTask {
    let mut rows: BTreeMap<Row, ([u64; INTERVALS], [u64; INTERVALS])> = BTreeMap::new();
    for entry in entries {
        let since = u128::from(entry.at - from) * INTERVALS as u128;
        let interval = (since / (u128::from(to - from) + 1)) as usize;
        let (reads, writes) = rows.entry(entry.row).or_default();
        reads[interval] += u64::from(entry.reads);
        writes[interval] += u64::from(entry.writes);
    }
    let sum = |cells: &[u64; INTERVALS]| cells.iter().sum::<u64>();
    let (reads, writes) = rows
        .values()
        .map(|(reads, writes)| (sum(reads), sum(writes)))
        .fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    let rows_total = rows.len() as u64;
    let mut busiest: Vec<_> = rows.into_iter().collect();
    if busiest.len() > MAX_ROWS {
        busiest.sort_by_key(|(row, (reads, writes))| {
            (std::cmp::Reverse(sum(reads) + sum(writes)), *row)
        });
        busiest.truncate(MAX_ROWS);
        busiest.sort_by_key(|(row, _)| *row);
    }
    let rows = busiest.into_iter().map(|(row, (reads, writes))| PatternRow {
        path: path(row.file),
        offset: row.piece * ROW,
        reads,
        writes,
    });
    PatternTask { label, pid, reads, writes, rows: rows.collect(), rows_total }
}

fn similar(recording: &Recording) -> Vec<SimilarTasks> {
    let config = recording.profiler.config();
    let mut tasks: Vec<_> =
        recording.profiler.tasks().filter(|(_, task)| task.scale() > 0).collect();
    tasks.sort_by_key(|(number, task)| (std::cmp::Reverse(task.scale()), *number));
    tasks.truncate(COMPARED);
    let label = |number: u64| {
        recording.tasks.label(number).map_or(format!("task {number}"), |(label, _)| label.clone())
    };
    let mut found = Vec::new();
    for (at, (one, a)) in tasks.iter().enumerate() {
        for (other, b) in &tasks[at + 1..] {
            if let Some(similarity) = paper::similarity(config, a, b) {
                found.push(SimilarTasks { a: label(*one), b: label(*other), similarity });
            }
        }
    }
    found.sort_by(|a, b| b.similarity.total_cmp(&a.similarity));
    found
}
