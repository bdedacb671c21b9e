//! Requests in the log, one by one: with the log level `info,forebay::request=debug` each has a span
//! with its operation, inode, handle and process, and a line with its result and time. Whatever the
//! node logs while it serves a request stands in that span. Off by default, when it costs the look at
//! one atomic variable.

use std::time::Instant;

use forebay_node::NodeError;
use fusewire::{Header, Operation, Request};
use tracing::{Level, Span, debug, debug_span};

use crate::answer::Answer;
use crate::errno::errno;
use crate::names::operation_name;

/// What the log calls requests.
const TARGET: &str = "forebay::request";

/// The span of a request, if requests are logged. One that has to wait is in it on each thread that is
/// at it.
#[derive(Clone)]
pub struct Followed(Option<Span>);

impl Followed {
    /// Of a request that is about to be served.
    pub fn of(request: &Request) -> Self {
        if !tracing::enabled!(target: TARGET, Level::DEBUG) {
            return Followed(None);
        }
        let header = request.header();
        let (inode, _) = forebay_node::of_node_id(header.node);
        let handle = request.operation().ok().and_then(|operation| handle_of(&operation));
        Followed(Some(debug_span!(
            target: TARGET,
            "request",
            number = header.unique,
            operation = operation_name(header.opcode),
            inode = inode.0,
            handle,
            pid = header.pid,
        )))
    }

    /// Does something in it, on one thread.
    pub fn scope<T>(&self, work: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(span) => span.in_scope(work),
            None => work(),
        }
    }

    /// The request has to wait.
    pub fn waits(&self, began: Instant) {
        if self.0.is_some() {
            debug!(target: TARGET, us = microseconds(began), "has to wait");
        }
    }

    /// It is served.
    pub fn ended(&self, outcome: &Result<Answer, NodeError>, began: Instant) {
        if self.0.is_none() {
            return;
        }
        let us = microseconds(began);
        match outcome {
            Ok(answer) => debug!(target: TARGET, us, opened = answer.handle(), "served"),
            Err(error) => debug!(target: TARGET, us, errno = errno(error), %error, "failed"),
        }
    }
}

fn microseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Logs the end of a request that waited without a thread, as those for locks do.
pub fn ended(header: &Header, error: Option<&NodeError>, began: Instant) {
    let errno = error.map(errno);
    let us = microseconds(began);
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
