//! Requests in the log, one by one: with the log level `info,forebay::request=debug` each has a span
//! with its operation, inode, handle and process, and a line with its result and time. Whatever the
//! node logs while it serves a request stands in that span. Off by default, when it costs the look at
//! one atomic variable.

use std::time::Instant;

use forebay_node::NodeError;
use fusewire::{Header, Operation, Request};
use tracing::{Level, debug, debug_span};

use crate::answer::Answer;
use crate::errno::errno;
use crate::names::operation_name;

/// What the log calls requests.
const TARGET: &str = "forebay::request";

/// Serves a request that was received at `began`, in its span. A request that has to wait is served
/// a second time, by another thread, and logged then as well.
pub fn followed(
    request: &Request,
    began: Instant,
    serve: impl FnOnce() -> Result<Answer, NodeError>,
) -> Result<Answer, NodeError> {
    if !tracing::enabled!(target: TARGET, Level::DEBUG) {
        return serve();
    }
    let header = request.header();
    let (inode, _) = forebay_node::of_node_id(header.node);
    let handle = request.operation().ok().and_then(|operation| handle_of(&operation));
    let span = debug_span!(
        target: TARGET,
        "request",
        number = header.unique,
        operation = operation_name(header.opcode),
        inode = inode.0,
        handle,
        pid = header.pid,
    );
    span.in_scope(|| {
        let outcome = serve();
        let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        match &outcome {
            Ok(answer) => debug!(target: TARGET, us, opened = answer.handle(), "served"),
            Err(NodeError::MustWait) => debug!(target: TARGET, us, "has to wait"),
            Err(error) => debug!(target: TARGET, us, errno = errno(error), %error, "failed"),
        }
        outcome
    })
}

/// Logs the end of a request that waited without a thread, as those for locks do.
pub fn ended(header: &Header, error: Option<&NodeError>, began: Instant) {
    let errno = error.map(errno);
    let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    debug!(target: TARGET, number = header.unique, us, errno, "waited");
}

/// The open file or directory that an operation is on, if it names one.
fn handle_of(operation: &Operation<'_>) -> Option<u64> {
    match operation {
        Operation::Getattr { fh } | Operation::Statx { fh, .. } => *fh,
        Operation::Read { fh, .. }
        | Operation::Write { fh, .. }
        | Operation::Release { fh, .. }
        | Operation::Fsync { fh, .. }
        | Operation::Flush { fh, .. }
        | Operation::Readdir { fh, .. }
        | Operation::Readdirplus { fh, .. }
        | Operation::Releasedir { fh, .. }
        | Operation::Fsyncdir { fh, .. }
        | Operation::Getlk { fh, .. }
        | Operation::Setlk { fh, .. }
        | Operation::Setlkw { fh, .. }
        | Operation::Ioctl { fh, .. }
        | Operation::Fallocate { fh, .. }
        | Operation::Lseek { fh, .. } => Some(*fh),
        Operation::Setattr(set) => set.fh,
        _ => None,
    }
}
