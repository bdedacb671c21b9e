//! Which blocks tasks read and write, which tasks have blocks in common, and which task should move
//! to whose node. Pure: no I/O, clock, thread or randomness.
//!
//! - [`access`]: events, with where they come from.
//! - [`pattern`]: what a task did during a window of events.
//! - [`diagram`]: access counting diagrams, compression, similarity (equations 1 and 2).
//! - [`profiler`]: patterns of all tasks, in bounded memory.
//! - [`paper`]: plans by similarity, as the paper has it.
//! - [`flow`]: plans by what would be local, what that saves, and what moving costs.
//!
//! The paper is Liao, Trahay, Xiao: *Dynamic process migration based on block access patterns
//! occurring in storage servers* (ACM TACO 13:2, 2016). What it leaves open is settled like this:
//!
//! - **Grid** "32 x 8": a row is 32 consecutive blocks of a file, counted from its beginning; 8
//!   intervals. A pair is compared over the rows that either has touched ([`diagram::Grid::Touched`]);
//!   the other reading, a grid of fixed height, is [`diagram::Grid::Rows`].
//! - **Blocks** are those of files, not of disks, and of all servers together.
//! - **Intervals** are equal pieces of time between the first and the last event of both windows.
//! - **Max_event** is the greatest count in either diagram at the level compared, so it is another
//!   one after compression. With an empty diagram the similarity is 0.
//! - **Compression** sums squares of N x N cells; what is missing at the edge counts as 0.
//! - **Larger than** the threshold is meant strictly.
//! - **Three patterns**: the newest of one task is compared with the newest of the other, the one
//!   before with the one before, and so on; one similar pair is enough. Both steps must hold for it.
//! - **Reads and writes** are recorded apart. The paper's measure adds them up, as the paper does
//!   (apart, a producer and its consumer would never be similar); the other one needs them apart.
//! - **Who moves**: the task of the smaller scale goes to the node of the larger one. Tasks of equal
//!   scale are ordered by their numbers.
//! - **A quarter of the memory** is that of the destination; the image must also fit into what is free.
//! - **A scan** is due when two tasks have had 2 windows of events since the last one.
//! - **Load**: the destination must have a slot. The paper knows no cool-down and no cost.
//!
//! # Invariants
//! - Tasks without common rows are never moved together, and patterns stay within their memory
//!   (`tests/tasks.rs`).
#![forbid(unsafe_code)]

pub mod access;
pub mod diagram;
pub mod flow;
pub mod paper;
pub mod pattern;
pub mod profiler;

pub use access::{Access, Kind, Origin};
pub use profiler::{Config, Profiler};

/// A node that tasks run on.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Tasks that it may have.
    pub slots: u32,
    /// Processors that they share.
    pub cores: f64,
    /// Its memory.
    pub memory_bytes: u64,
    /// What of it is free.
    pub free_bytes: u64,
}

/// A task should move.
#[derive(Debug, Clone, PartialEq)]
pub struct Migration {
    /// Which one.
    pub task: u64,
    /// From which node.
    pub from: u32,
    /// To which node.
    pub to: u32,
    /// The task there because of which it moves.
    pub with: u64,
    /// The similarity, or the seconds that are saved, less those that moving costs.
    pub worth: f64,
}

/// Whether a node has room for a task's image: at most a quarter of its memory, and free.
pub(crate) fn has_memory(node: &Node, image_bytes: u64) -> bool {
    image_bytes <= node.memory_bytes / 4 && image_bytes <= node.free_bytes
}
