//! Ways to another node, behind one trait.
//!
//! A [`Transport`] makes [`Wire`]s: two directions of bytes in which frames are sent one after the
//! other. Frames do not depend on each other, so a wire may deliver them in another order, if each
//! of them is whole.

#[cfg(any(feature = "mpi", feature = "udt"))]
mod library;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "quic")]
pub mod quic;
mod schemes;
pub(crate) mod socket;
pub mod tcp;
pub mod tls;
pub mod udp;
#[cfg(feature = "udt")]
pub mod udt;
pub mod unix;

pub use schemes::Ways;

use std::fs::File;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use crate::address::Address;
use crate::error::Result;

/// Comes to other nodes, and lets them come.
pub trait Transport: Send + Sync {
    /// Connects to `address`. At most `connect` passes until the other side answers at all, and
    /// `handshake` until both know who the other is.
    fn connect(&self, address: &Address, timeout: TimeLimits) -> Result<Wire>;

    /// Listens on `address`.
    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>>;

    /// The process is about to end. What was sent is sent; nothing works any more after that.
    fn end(&self) {}
}

/// How long to wait for what.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimits {
    /// Until the other side answers at all.
    pub connect: Duration,
    /// Until both sides know who the other is.
    pub handshake: Duration,
    /// Until a write, or a read in the middle of a frame, is given up.
    pub stall: Duration,
}

/// Waits for connections.
pub trait Listener: Send + Sync {
    /// The next one. An error of the class `ConnectionAborted` says that the listener is closed.
    fn accept(&self) -> io::Result<Box<dyn Arrival>>;

    /// Where others connect to.
    fn address(&self) -> Address;

    /// Ends `accept`, now and for ever.
    fn close(&self);
}

/// Somebody who has connected and is not known yet.
pub trait Arrival: Send {
    /// Finds out whether it may talk to us. Called on a thread of its own.
    fn admit(self: Box<Self>, timeout: TimeLimits) -> Result<Wire>;
}

/// A connection.
pub struct Wire {
    /// What comes in.
    pub source: Box<dyn Source>,
    /// What goes out.
    pub sink: Box<dyn Sink>,
    /// Ends both.
    pub closer: Arc<dyn Closer>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wire")
    }
}

/// Bytes that come in. Reading fails with `WouldBlock` when nothing came for the timeout set, and
/// may then be tried again.
pub trait Source: io::Read + Send {
    /// How long a read waits.
    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()>;
}

/// Bytes that go out. Whatever fails in the middle of a frame ends the wire.
pub trait Sink: Send {
    /// Sends all of `parts`, one after the other.
    fn send(&mut self, parts: &mut [IoSlice<'_>]) -> io::Result<()>;

    /// Whether [`Sink::send_file`] spares a copy.
    fn sends_files(&self) -> bool {
        false
    }

    /// Sends `len` bytes of a file from `offset` on; `UnexpectedEof` says that it is shorter, and
    /// how many bytes were sent is in `sent`.
    fn send_file(
        &mut self,
        _file: &File,
        _offset: u64,
        _len: usize,
        _sent: &mut usize,
    ) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The frame is complete: everything must be on its way.
    fn end_frame(&mut self) -> io::Result<()>;
}

/// Ends a wire from any thread.
pub trait Closer: Send + Sync {
    /// Wakes whoever reads or writes; both fail from now on.
    fn close(&self);
}

/// The first address of `host:port`.
fn resolve(at: &str) -> io::Result<SocketAddr> {
    let none = || io::Error::new(io::ErrorKind::NotFound, "the host's name has no address");
    at.to_socket_addrs()?.next().ok_or_else(none)
}
