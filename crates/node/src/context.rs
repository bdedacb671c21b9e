//! Who asks, and whether the asking thread may wait.

use crate::error::{NodeError, Result};

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
}

impl Context {
    /// The daemon on its own account, on a thread that may wait.
    pub const DAEMON: Context = Context { uid: 0, gid: 0, pid: 0, may_wait: true };

    /// The door to everything slow: passes only on a thread that may wait. To be called before
    /// anything was changed, since the request starts anew elsewhere.
    ///
    /// # Errors
    /// [`NodeError::MustWait`].
    pub fn wait(&self) -> Result<()> {
        if self.may_wait { Ok(()) } else { Err(NodeError::MustWait) }
    }
}
