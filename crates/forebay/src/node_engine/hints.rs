//! Hints and traces between the command line and the node.

use std::time::Duration;

use forebay::control::{
    ControlError, ControlResult, ErrorKind, HintPart, HintState, HintStatus, OnProgress, Opening,
    Outcome, Progress, Recorded, WirePath,
};
use forebay_node::{HintReport, Node, NodeError};
use rustix::io::Errno;

use super::convert::{control_error, wire_path};

/// Takes a part of a job's sequence.
pub fn take(node: &Node, part: &HintPart, progress: OnProgress<'_>) -> ControlResult<Outcome> {
    let total = part.paths.len() as u64;
    let given = forebay_node::HintPart {
        job: &part.job,
        replace: part.replace,
        last: part.last,
        expires: Duration::from_millis(part.expires_ms),
    };
    let mut paths = part.paths.iter().map(WirePath::as_path);
    let hinted = node.hint(&given, &mut paths, &mut |done| {
        progress(Progress { files_done: done, files_total: total, ..Progress::default() })
    });
    let hinted = hinted.map_err(|error| match error {
        NodeError::Config(message) => ControlError::new(ErrorKind::Failed, message),
        NodeError::Posix(Errno::INTR) => ControlError::new(ErrorKind::Cancelled, "interrupted"),
        other => control_error(&other),
    })?;
    Ok(Outcome {
        files: hinted.accepted,
        bytes: hinted.bytes,
        complete: hinted.refused_count == 0,
        failures: hinted.refused.into_iter().map(|(path, why)| (path.into(), why)).collect(),
        failed: hinted.refused_count,
        ..Outcome::default()
    })
}

/// Forgets a job's sequence.
pub fn withdraw(node: &Node, job: &str) -> ControlResult<()> {
    if node.withdraw_hint(job) {
        return Ok(());
    }
    let message = format!("no job {job:?} has hints; `forebay status` lists those that have");
    Err(ControlError::new(ErrorKind::Failed, message))
}

/// The jobs that have hints.
pub fn status(node: &Node) -> Vec<HintStatus> {
    node.hint_reports().into_iter().map(one).collect()
}

fn one(report: HintReport) -> HintStatus {
    let (progress, counts) = (report.state.progress, report.state.counts);
    let state = if progress.ahead == 0 {
        HintState::Done
    } else if report.state.silent || !progress.trusted {
        HintState::Silent
    } else if progress.followed == 0 {
        HintState::Waiting
    } else {
        HintState::Following
    };
    HintStatus {
        job: report.job,
        state,
        references: progress.given,
        followed: progress.followed,
        skipped: progress.skipped,
        ahead: progress.ahead,
        refused: report.refused,
        fetched: counts.fetched,
        fetched_bytes: counts.fetched_bytes,
        used: counts.used,
        late: counts.late,
        wasted: counts.wasted,
        wasted_bytes: counts.wasted_bytes,
        outstanding_bytes: report.state.outstanding.0,
        expires_s: report.expires.as_secs(),
    }
}

/// Begins to record opens.
pub fn start_trace(node: &Node) -> ControlResult<()> {
    node.start_trace().map_err(|error| match error {
        NodeError::Posix(Errno::BUSY) => ControlError::new(
            ErrorKind::Failed,
            "somebody records this mount already; wait for the end of that recording",
        ),
        other => control_error(&other),
    })
}

/// What was recorded since the last call.
pub fn take_trace(node: &Node, most: usize, stop: bool) -> ControlResult<Recorded> {
    let recorded = node.take_trace(most, stop).map_err(|error| match error {
        NodeError::Posix(Errno::NOENT) => ControlError::new(
            ErrorKind::Failed,
            "the recording has ended: it was not asked for too long, or somebody else ended it",
        ),
        other => control_error(&other),
    })?;
    let opening = |open: forebay_node::Opening| Opening {
        at_ns: u64::try_from(open.at.as_nanos()).unwrap_or(u64::MAX),
        ino: open.ino,
        size: open.size,
        write: open.write,
        path: wire_path(open.path),
    };
    Ok(Recorded { opens: recorded.opens.into_iter().map(opening).collect(), lost: recorded.lost })
}
