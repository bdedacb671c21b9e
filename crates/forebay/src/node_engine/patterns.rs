//! Access patterns between the command line and the node.

use std::sync::Arc;

use forebay::control::{
    ControlError, ControlResult, ErrorKind, PatternRow, PatternTask, Patterns, SimilarTasks,
};
use forebay_node::{Node, NodeError};
use rustix::io::Errno;

use super::convert::{control_error, wire_path};

/// Begins to record.
pub fn start(node: &Arc<Node>) -> ControlResult<()> {
    node.start_patterns().map_err(|error| match error {
        NodeError::Posix(Errno::BUSY) => {
            ControlError::new(ErrorKind::Failed, "this mount is recorded already")
        }
        other => control_error(&other),
    })
}

fn not_recorded() -> ControlError {
    let how = "nothing is recorded on this mount; begin with `forebay patterns MOUNT --start`";
    ControlError::new(ErrorKind::Failed, how)
}

/// Ends the recording.
pub fn stop(node: &Node) -> ControlResult<()> {
    if node.stop_patterns() { Ok(()) } else { Err(not_recorded()) }
}

/// What was recorded.
pub fn report(node: &Node) -> ControlResult<Patterns> {
    let patterns = node.patterns().map_err(|error| match error {
        NodeError::Posix(Errno::NOENT) => not_recorded(),
        other => control_error(&other),
    })?;
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let similar = |pair: forebay_node::SimilarTasks| SimilarTasks {
        a: pair.a,
        b: pair.b,
        similarity: pair.similarity,
    };
    Ok(Patterns {
        recorded_ms: ms(patterns.recorded),
        here: patterns.here,
        elsewhere: patterns.elsewhere,
        lost: patterns.lost,
        unattributed: patterns.unattributed,
        from_ms: ms(patterns.span.0),
        to_ms: ms(patterns.span.1),
        tasks: patterns.tasks.into_iter().map(task).collect(),
        tasks_total: patterns.tasks_total,
        similar: patterns.similar.into_iter().map(similar).collect(),
    })
}

fn task(task: forebay_node::PatternTask) -> PatternTask {
    let row = |row: forebay_node::PatternRow| PatternRow {
        path: wire_path(row.path),
        offset: row.offset,
        reads: row.reads.to_vec(),
        writes: row.writes.to_vec(),
    };
    PatternTask {
        label: task.label,
        pid: task.pid,
        reads: task.reads,
        writes: task.writes,
        rows: task.rows.into_iter().map(row).collect(),
        rows_total: task.rows_total,
    }
}
