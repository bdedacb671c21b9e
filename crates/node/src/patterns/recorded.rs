//! What was recorded, as other nodes get to know it.

use std::time::Duration;

use forebay_profile::pattern::Pattern;

use super::Recording;
use crate::node::Node;

/// What was recorded of a task.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecordedTask {
    /// What it is.
    pub label: String,
    /// How long ago it accessed anything.
    pub age: Duration,
    /// Accesses that were not served from tiers of this node, since the recording began.
    pub elsewhere: u64,
    /// Its newest accesses, in their order: when, in nanoseconds; inode; row; reads; writes.
    pub entries: Vec<(u64, u64, u64, u32, u32)>,
}

impl Node {
    /// What was recorded of each task so far; nothing if nothing is recorded.
    pub fn recorded_tasks(&self) -> Vec<RecordedTask> {
        self.take_patterns();
        let now = self.patterns.now();
        let books = self.patterns.books.lock();
        books.recording.as_ref().map_or_else(Vec::new, |recording| tasks(recording, now))
    }
}

fn tasks(recording: &Recording, now: u64) -> Vec<RecordedTask> {
    let task = |(number, task): (u64, &forebay_profile::profiler::Task)| {
        let mut entries: Vec<_> = task.recent().flat_map(Pattern::entries).collect();
        entries.sort_by_key(|entry| entry.at);
        let last = entries.last()?.at;
        let (label, _) = recording.tasks.label(number)?;
        let elsewhere = recording.elsewhere_of.get(&number).copied().unwrap_or(0);
        let entries = entries
            .into_iter()
            .map(|entry| (entry.at, entry.row.file, entry.row.piece, entry.reads, entry.writes));
        Some(RecordedTask {
            label: label.clone(),
            age: Duration::from_nanos(now.saturating_sub(last)),
            elsewhere,
            entries: entries.collect(),
        })
    };
    recording.profiler.tasks().filter_map(task).collect()
}
