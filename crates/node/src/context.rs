//! Who asks, and whether the asking thread may wait.

use std::collections::HashSet;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::error::{NodeError, Result};
use crate::node::Node;

/// The circumstances of a request.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    /// User of the calling process.
    pub uid: u32,
    /// Group of the calling process.
    pub gid: u32,
    /// The calling process; 0 for the daemon itself.
    pub pid: u32,
    /// Whether this thread may wait for slow devices. Threads that read requests may not.
    pub may_wait: bool,
    /// The number of a request that somebody may give up while it waits; 0 for one that nobody does.
    pub request: u64,
}

impl Context {
    /// The daemon on its own account, on a thread that may wait.
    pub const DAEMON: Context = Context { uid: 0, gid: 0, pid: 0, may_wait: true, request: 0 };

    /// The door to everything slow: passes only on a thread that may wait. To be called before
    /// anything was changed, since the request starts anew elsewhere.
    ///
    /// # Errors
    /// [`NodeError::MustWait`].
    pub fn wait(&self) -> Result<()> {
        if self.may_wait { Ok(()) } else { Err(NodeError::MustWait) }
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
    /// `EINTR`, which nobody hears, if it was given up.
    pub(crate) fn check(&self, context: &Context) -> Result<()> {
        if context.request != 0 && self.0.lock().contains(&context.request) {
            return Err(Errno::INTR.into());
        }
        Ok(())
    }
}

impl Node {
    /// The program that made a request is about to be told that it failed, while a thread is still
    /// at it: what the thread has not done yet it must not do any more, for the program may make
    /// the same call again, and others after it.
    pub fn give_up_request(&self, request: u64) {
        self.given_up.0.lock().insert(request);
    }

    /// The thread is done.
    pub fn forget_request(&self, request: u64) {
        self.given_up.0.lock().remove(&request);
    }
}
