//! Who asks, and how his request waits.
//!
//! # Invariants
//! - Whoever calls [`Context::wait`] holds no guard of a lock.
//! - What a request has not done when it is given up it never does (`tests/late_requests.rs`).

use std::collections::HashSet;
use std::fmt;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::error::{NodeError, Result};

/// How a request waits that was begun on a thread with others to serve, such as one that reads
/// requests. What makes it wait does not know how: it says so ([`Context::wait`]) and goes on.
pub trait Waiter: fmt::Debug {
    /// Returns when the request may wait for slow devices: on another thread, perhaps. Anything may
    /// have happened meanwhile.
    ///
    /// # Errors
    /// It is not to be carried out any more: too many wait, or its program was told that it failed.
    /// From then on it fails whenever it is asked.
    fn wait(&self) -> Result<()>;

    /// Whether the request may wait already.
    fn may_wait(&self) -> bool;

    /// The number of a request that somebody may give up while it waits; 0 for one that nobody does.
    fn number(&self) -> u64;
}

/// For what must be done at once or not at all.
#[derive(Debug, Clone, Copy)]
pub struct AtOnce;

impl Waiter for AtOnce {
    fn wait(&self) -> Result<()> {
        Err(NodeError::Busy)
    }

    fn may_wait(&self) -> bool {
        false
    }

    fn number(&self) -> u64 {
        0
    }
}

/// The circumstances of a request.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// User of the calling process.
    pub uid: u32,
    /// Group of the calling process.
    pub gid: u32,
    /// The calling process; 0 for the daemon itself.
    pub pid: u32,
    /// How it waits; `None` on a thread that may wait as it is.
    pub waiter: Option<&'a dyn Waiter>,
}

impl Context<'static> {
    /// The daemon on its own account, on a thread that may wait.
    pub const DAEMON: Self = Context { uid: 0, gid: 0, pid: 0, waiter: None };
}

impl Context<'_> {
    /// The door to everything slow: returns when the request may wait for devices, the backing store,
    /// other nodes and whoever has a file in hand while he waits for those. To be called
    /// - without any lock, for whoever has one of the threads that may wait may want it: what was
    ///   looked at under a lock is looked at again;
    /// - before anything was changed, for the request may end here.
    ///
    /// # Errors
    /// As [`Waiter::wait`].
    pub fn wait(&self) -> Result<()> {
        self.waiter.map_or(Ok(()), Waiter::wait)
    }

    /// Whether it may wait already.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.waiter.is_none_or(Waiter::may_wait)
    }
}

/// The requests under way whose programs were told that they failed.
#[derive(Default)]
pub(crate) struct GivenUp(Mutex<HashSet<u64>>);

impl GivenUp {
    /// To be called between the last wait of a request and its first change: for a change of bytes
    /// with the file in hand, so that newer ones come after it.
    ///
    /// # Errors
    /// `EINTR` if it was given up; nobody waits for that answer any more.
    pub(crate) fn check(&self, context: &Context) -> Result<()> {
        let number = context.waiter.map_or(0, Waiter::number);
        if number != 0 && self.0.lock().contains(&number) {
            return Err(Errno::INTR.into());
        }
        Ok(())
    }

    /// A request is given up: see [`Node::give_up_request`](crate::Node::give_up_request).
    pub(crate) fn give_up(&self, request: u64) {
        self.0.lock().insert(request);
    }

    /// Its thread is done.
    pub(crate) fn forget(&self, request: u64) {
        self.0.lock().remove(&request);
    }
}
