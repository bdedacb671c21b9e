//! Algorithm 1 of HyCache+ (section III-A).
//!
//! Line 8 as printed adds the size of every file, whatever the machine: the cost is the same for all
//! of them, and with the strict comparison of line 10 the first machine gets every job. Meant is the
//! cost of what is not there. Both know neither load nor slots, and so the node that has a hot file
//! gets every job that reads it.

use crate::model::Problem;

/// As printed: the first node on which a job fits.
#[must_use]
pub fn printed(problem: &Problem) -> Vec<usize> {
    let first = |job| (0..problem.nodes()).find(|node| problem.fits(job, *node)).unwrap_or(0);
    let fixed = |job: usize| problem.fixed[job].map(|(node, _)| node);
    (0..problem.jobs()).map(|job| fixed(job).unwrap_or_else(|| first(job))).collect()
}

/// Corrected: the node that misses fewest bytes of the job's files; among equals the one with fewest
/// jobs so far, then the first. A replica counts as the file. Files that jobs write are nowhere yet.
#[must_use]
pub fn corrected(problem: &Problem) -> Vec<usize> {
    let mut jobs = vec![0usize; problem.nodes()];
    let mut there = vec![0u64; problem.nodes()];
    let mut assign = Vec::with_capacity(problem.jobs());
    for job in 0..problem.jobs() {
        there.fill(0);
        for &file in &problem.jobs[job].reads {
            for &node in &problem.files[file].holders {
                there[node] += problem.files[file].size;
            }
        }
        if let Some((node, _)) = problem.fixed[job] {
            jobs[node] += 1;
            assign.push(node);
            continue;
        }
        let fitting = (0..problem.nodes()).filter(|node| problem.fits(job, *node));
        let best = fitting.min_by_key(|node| (u64::MAX - there[*node], jobs[*node], *node));
        let node = best.unwrap_or(0);
        jobs[node] += 1;
        assign.push(node);
    }
    assign
}
