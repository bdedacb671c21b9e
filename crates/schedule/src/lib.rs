//! Jobs to nodes: which node runs which job, so that the last one ends early and few bytes move.
//! Pure: no I/O, clock, thread or randomness; equal problems give equal plans.
//!
//! - [`model`]: nodes, files, jobs; a [`Problem`] is what was checked of an [`Instance`].
//! - [`locality`]: Algorithm 1 of HyCache+ (section III-A), as printed and corrected.
//! - [`flow`]: min-cost flow: fewest bytes for jobs with at most so many jobs on a node.
//! - [`earliest`]: longest jobs first, each to the node where it is done earliest (ECT).
//! - [`search`]: local search from there; the default.
//! - [`measure`]: when everything is done, and what moved, for any assignment.
//! - [`queue`]: jobs that come and go.
//!
//! # What a plan costs
//! A job occupies its slots and memory from its begin to its end. It begins when they are free and
//! the jobs that it depends on have ended; jobs of a node begin in the order of their ranks. Then
//! what is not on the node yet comes: from other nodes at the rate of the link, from the backing
//! store (files that no node has) at the rate of the store, one transfer after the other; then the
//! job computes. What came stays for later jobs as long as the node has room for it; what does not
//! fit is read through, and paid for by every job that reads it. Outputs are on the node that made
//! them. With one slot this is: makespan = max over nodes of (sum of compute + bytes of distinct
//! missing files / link).
//!
//! # Invariants
//! - A plan keeps slots, memory, limits and order, and search never makes it later
//!   (`tests/properties.rs`, `tests/queue.rs`).
#![forbid(unsafe_code)]

mod board;
pub mod earliest;
pub mod flow;
pub mod locality;
pub mod measure;
pub mod model;
pub mod queue;
pub mod search;

pub use measure::{Plan, Span};
pub use model::{File, Instance, Job, Node, Problem, Unsound};
pub use search::Effort;

/// How jobs are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Algorithm 1 as it is printed: the cost does not depend on the node, so the first one wins.
    Algorithm1Printed,
    /// Algorithm 1 as it was meant: fewest missing bytes for each job.
    Algorithm1,
    /// Fewest missing bytes of all jobs, with at most so many on a node.
    Flow,
    /// Earliest completion time.
    Ect,
    /// Earliest completion time, then local search.
    EctLs,
}

impl Policy {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Self; 5] =
        [Self::Algorithm1Printed, Self::Algorithm1, Self::Flow, Self::Ect, Self::EctLs];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Algorithm1Printed => "algorithm1-printed",
            Self::Algorithm1 => "algorithm1",
            Self::Flow => "flow",
            Self::Ect => "ect",
            Self::EctLs => "ect-ls",
        }
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoPlan {
    /// The limits of jobs for each node leave this job without one.
    #[error("job {0} finds no node: the limits of jobs a node are too low for all jobs")]
    NoRoom(usize),
}

/// A plan by a policy.
///
/// # Errors
/// [`NoPlan`], if the nodes' `most_jobs` are too low for all jobs.
pub fn plan(problem: &Problem, policy: Policy, effort: Effort) -> Result<Plan, NoPlan> {
    let assign = match policy {
        Policy::Algorithm1Printed => locality::printed(problem),
        Policy::Algorithm1 => locality::corrected(problem),
        Policy::Flow => flow::assign(problem)?,
        Policy::Ect => earliest::assign(problem)?,
        Policy::EctLs => {
            let first = earliest::assign(problem)?;
            search::improve(problem, &first, effort)
        }
    };
    Ok(measure::plan(problem, assign))
}
