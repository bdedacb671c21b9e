//! The life of a session.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::connection::Connection;
use crate::error::Result;
use crate::handler::Handler;
use crate::mount::Mount;
use crate::negotiate::Negotiated;
use crate::options::Options;

/// A negotiated connection with its handler, not yet served.
pub struct Session<H: Handler> {
    handler: Arc<H>,
    connection: Connection,
    options: Options,
    mountpoint: Option<PathBuf>,
}

impl<H: Handler> Session<H> {
    /// Negotiates with the kernel over a fresh mount.
    pub fn new(mount: Mount, options: &Options, handler: Arc<H>) -> Result<Self> {
        let _ = (mount, options, handler);
        todo!()
    }

    /// Adopts a live connection: no INIT takes place. With `mountpoint`, the running session can
    /// unmount, and does when dropped.
    pub fn from_parts(
        device: OwnedFd,
        negotiated: Negotiated,
        mountpoint: Option<PathBuf>,
        options: &Options,
        handler: Arc<H>,
    ) -> Result<Self> {
        let _ = (device, negotiated, mountpoint, options, handler);
        todo!()
    }

    /// The connection.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Starts the readers.
    pub fn spawn(self) -> Result<Running> {
        let _ = (self.handler, self.options, self.mountpoint);
        todo!()
    }

    /// Serves until the file system is unmounted.
    pub fn run(self) -> Result<End> {
        self.spawn()?.join()
    }
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The file system was unmounted.
    Unmounted,
    /// The connection was aborted by force.
    Aborted,
    /// The connection was given away ([`Running::release`]).
    Released,
}

/// A session that is being served.
#[derive(Debug)]
pub struct Running {
    connection: Connection,
}

impl Running {
    /// The connection.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Brings all readers to rest without losing a request, within `limit`. Requests that were
    /// handed to other threads can still be answered: see [`Running::drain`].
    pub fn park(&self, limit: Duration) -> Result<()> {
        let _ = limit;
        todo!()
    }

    /// Lets parked readers go on.
    pub fn resume(&self) {
        todo!()
    }

    /// Waits until every request that was read is answered; returns how many are not, after
    /// `limit`. Meaningful while parked.
    pub fn drain(&self, limit: Duration) -> usize {
        let _ = limit;
        todo!()
    }

    /// Unmounts; `lazy` even while it is in use.
    pub fn unmount(&self, lazy: bool) -> Result<()> {
        let _ = lazy;
        todo!()
    }

    /// Gives the connection away while it lives: parks the readers for good, ends them, and
    /// returns what [`Session::from_parts`] needs. Nothing is unmounted.
    pub fn release(self, limit: Duration) -> Result<(OwnedFd, Negotiated, Option<PathBuf>)> {
        let _ = limit;
        todo!()
    }

    /// Waits until the file system is unmounted.
    pub fn join(self) -> Result<End> {
        todo!()
    }
}
