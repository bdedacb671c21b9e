//! Locks of programs, in a cluster: what the kernel would keep by itself on one node.
//!
//! Each is a round trip to the metadata servers at least, hence never done by a thread that reads
//! requests. Who waits for a lock holds no thread: the reply waits with the node.

use std::sync::Arc;
use std::time::Instant;

use forebay_node::{Cluster, Family, Ino, LockRequest, Mode, NodeError, Result, Span, Waited};
use fusewire::{Header, Lock, Operation, Reply, Request, opcode};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::answer::Answer;
use crate::front::FrontState;
use crate::replayed_requests;
use crate::request_log::{self, Followed};
use crate::serve::Serve;

/// Whether the kernel asks for, or about, a lock.
pub fn is_lock(code: u32) -> bool {
    matches!(code, opcode::GETLK | opcode::SETLK | opcode::SETLKW)
}

/// Serves such a request on a thread that may wait.
pub fn serve(shared: &Arc<FrontState>, request: Request, reply: Reply, began: Instant) {
    let header = *request.header();
    let reply = Arc::new(Mutex::new(Some(reply)));
    let (here, kept) = (Arc::clone(shared), Arc::clone(&reply));
    let job = move || {
        let Some(reply) = kept.lock().take() else { return };
        carry_out(&here, &request, reply, began);
    };
    if shared.node.slow_pool().run_for(header.uid, job).is_err()
        && let Some(reply) = reply.lock().take()
    {
        shared.answer(&header, Err(NodeError::Busy), reply, began);
    }
}

/// Who has the locks; without a cluster the kernel itself.
fn cluster(shared: &FrontState) -> Result<&Cluster> {
    shared.node.cluster().ok_or(NodeError::Posix(Errno::NOSYS))
}

fn carry_out(shared: &Arc<FrontState>, request: &Request, reply: Reply, began: Instant) {
    let header = *request.header();
    let (ino, _) = forebay_node::of_node_id(header.node);
    let followed = Followed::of(request);
    followed.scope(|| {
        let outcome = match request.operation() {
            Ok(Operation::Getlk { fh, owner, lock, flock }) => {
                find(shared, ino, &wanted(fh, owner, lock, flock), lock)
            }
            Ok(
                Operation::Setlk { fh, owner, lock, flock }
                | Operation::Setlkw { fh, owner, lock, flock },
            ) if lock.kind == libc::F_UNLCK => {
                let wanted = wanted(fh, owner, lock, flock);
                cluster(shared)
                    .and_then(|cluster| cluster.unlock(ino, &wanted))
                    .map(|()| Answer::Done)
            }
            Ok(Operation::Setlk { fh, owner, lock, flock }) => {
                let wanted = wanted(fh, owner, lock, flock);
                cluster(shared)
                    .and_then(|cluster| cluster.try_lock(ino, &wanted))
                    .map(|()| Answer::Done)
            }
            Ok(Operation::Setlkw { fh, owner, lock, flock }) => {
                followed.waits(began);
                return wait(shared, request, wanted(fh, owner, lock, flock), reply, began);
            }
            _ => Err(NodeError::Posix(Errno::IO)),
        };
        followed.ended(&outcome, began);
        shared.answer(&header, outcome, reply, began);
    });
}

fn wait(
    shared: &Arc<FrontState>,
    request: &Request,
    wanted: LockRequest,
    reply: Reply,
    began: Instant,
) {
    let header: Header = *request.header();
    let interrupt = request.interrupt_token();
    let here = Arc::clone(shared);
    let done = move |waited: Waited| match waited {
        Waited::Ended(outcome) => {
            request_log::ended(&header, outcome.as_ref().err(), began);
            here.answer(&header, outcome.map(|()| Answer::Done), reply, began);
        }
        Waited::HandedOn => reply.leave_unanswered(),
    };
    // The kernel gives no two requests of a mount one number, and one that comes again keeps its.
    let ticket = replayed_requests::number(request);
    let (ino, _) = forebay_node::of_node_id(header.node);
    let cluster = match cluster(shared) {
        Ok(cluster) => cluster,
        Err(error) => return done(Waited::Ended(Err(error))),
    };
    cluster.lock(ino, wanted, ticket, Box::new(done));
    // The signal may have come before the waiter could be found.
    if interrupt.is_set() {
        cluster.stop_waiting(ticket);
    }
}

fn wanted(fh: u64, owner: u64, lock: Lock, flock: bool) -> LockRequest {
    let Lock { start, end, kind, pid } = lock;
    let mode = if kind == libc::F_WRLCK { Mode::Exclusive } else { Mode::Shared };
    // To the end of the file means wherever that will be.
    let last = if end >= i64::MAX.cast_unsigned() { u64::MAX } else { end };
    let (family, span) = match flock {
        true => (Family::Whole, Span::ALL),
        false => (Family::Ranges, Span { first: start, last: last.max(start) }),
    };
    LockRequest { fh, owner, family, span, mode, pid }
}

fn find(shared: &FrontState, ino: Ino, wanted: &LockRequest, asked: Lock) -> Result<Answer> {
    Ok(Answer::Lock(match cluster(shared)?.find_lock(ino, wanted)? {
        None => Lock { kind: libc::F_UNLCK, ..asked },
        Some(found) => Lock {
            start: found.span.first,
            end: found.span.last.min(i64::MAX.cast_unsigned()),
            kind: if found.mode == Mode::Exclusive { libc::F_WRLCK } else { libc::F_RDLCK },
            pid: found.pid,
        },
    }))
}

impl Serve<'_> {
    /// A process closes a file: what is to be shown to others is settled, then its locks go.
    pub(crate) fn close(&self, fh: u64, owner: u64) -> Result<Answer> {
        let (node, context) = (self.node, &self.context);
        let flushed = match node.closes_freely(fh) {
            true => Ok(()),
            false => node.flush(context, fh),
        };
        if let Some(cluster) = node.cluster() {
            cluster.unlock_all(context, self.ino(), owner)?;
        }
        flushed.map(|()| Answer::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_of_the_kernel_then_span_and_family_as_it_means_them() {
        let lock = |start, end, kind: i32| Lock { start, end, kind, pid: 7 };
        let end = i64::MAX.cast_unsigned();
        let range = wanted(1, 2, lock(10, 19, libc::F_RDLCK), false);
        assert_eq!(range.span, Span { first: 10, last: 19 });
        assert_eq!((range.family, range.mode, range.pid), (Family::Ranges, Mode::Shared, 7));
        let to_the_end = wanted(1, 2, lock(10, end, libc::F_WRLCK), false);
        assert_eq!(to_the_end.span, Span { first: 10, last: u64::MAX });
        assert_eq!(to_the_end.mode, Mode::Exclusive);
        let whole = wanted(1, 2, lock(0, end, libc::F_WRLCK), true);
        assert_eq!((whole.family, whole.span), (Family::Whole, Span::ALL));
    }
}
