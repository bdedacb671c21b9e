//! Events: who accessed what.

/// Reading or writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Bytes were read.
    Read,
    /// Bytes were written.
    Write,
}

/// Where a request comes from: what a node adds to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The node.
    pub node: u32,
    /// The task, if the node knows it: write-back and read-ahead come from nobody.
    pub task: Option<u64>,
    /// The open file. Whoever opened it is asked for when the task is not known.
    pub handle: u64,
}

/// Blocks were accessed: one by a request that was served, or many of one row that were found on
/// the node itself, and of which only the count was sent. Without those a pair of tasks on one node
/// would vanish from view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// When, in nanoseconds of any clock.
    pub at: u64,
    /// From where.
    pub origin: Origin,
    /// Which file.
    pub file: u64,
    /// Which block, or the first one.
    pub block: u64,
    /// Reading or writing.
    pub kind: Kind,
    /// How many accesses.
    pub count: u32,
}
