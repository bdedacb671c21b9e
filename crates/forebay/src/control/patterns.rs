//! What a daemon tells of who accesses which pieces of which files.

use serde::{Deserialize, Serialize};

use super::WirePath;

/// What was recorded of accesses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Patterns {
    /// For how long, in milliseconds.
    pub recorded_ms: u64,
    /// Accesses to blocks of 64 KiB that were served from tiers of this node.
    pub here: u64,
    /// Others: from the backing store, and through other nodes.
    pub elsewhere: u64,
    /// Accesses that came faster than they could be taken.
    pub lost: u64,
    /// Accesses of which nobody knows whose they are.
    pub unattributed: u64,
    /// From when the diagrams go, in milliseconds since the daemon's first recording.
    pub from_ms: u64,
    /// Until when.
    pub to_ms: u64,
    /// The tasks, the busiest first; at most 256.
    pub tasks: Vec<PatternTask>,
    /// How many there are.
    pub tasks_total: u64,
    /// Pairs of tasks that access the same, by the measure of Liao, Trahay and Xiao.
    pub similar: Vec<SimilarTasks>,
}

/// What one task did in its newest windows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PatternTask {
    /// What it is.
    pub label: String,
    /// The process that it was first seen as.
    pub pid: u32,
    /// Blocks read.
    pub reads: u64,
    /// Blocks written.
    pub writes: u64,
    /// Rows of its diagram, by file and place; the busiest 256.
    pub rows: Vec<PatternRow>,
    /// How many there are.
    pub rows_total: u64,
}

/// Accesses to 2 MiB of a file, in eight equal pieces of the time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PatternRow {
    /// The file, below the mount point; empty if it has no name any more.
    pub path: WirePath,
    /// Where the row begins, in bytes.
    pub offset: u64,
    /// Blocks read, by interval.
    pub reads: Vec<u64>,
    /// Blocks written, by interval.
    pub writes: Vec<u64>,
}

/// Two tasks that access the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SimilarTasks {
    /// One.
    pub a: String,
    /// The other.
    pub b: String,
    /// How similar their diagrams are, above 0.9.
    pub similarity: f64,
}
