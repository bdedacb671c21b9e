use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// What can go wrong while mounting, negotiating and running a session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The mount point cannot be used.
    #[error("cannot use mount point {path}: {source}; it must be an existing directory or file")]
    MountPoint {
        /// The path as given.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// `/dev/fuse` cannot be opened.
    #[error("cannot open /dev/fuse: {0}; load the fuse module or grant access to the device")]
    Device(#[source] io::Error),
    /// mount(2) refused.
    #[error("cannot mount on {path}: {source}")]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// fusermount3 could not be run, or reported a failure.
    #[error("cannot mount {path} as an ordinary user: {message}")]
    Fusermount {
        /// The mount point.
        path: PathBuf,
        /// Its own message, or why it could not be run.
        message: String,
    },
    /// The file system could not be unmounted.
    #[error("cannot unmount {path}: {source}; close what uses it, or unmount lazily")]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An option has a value that cannot work.
    #[error("option {name}: {reason}")]
    Option {
        /// Field of [`Options`](crate::Options).
        name: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The kernel speaks a protocol that is too old (or of another major version).
    #[error("the kernel speaks FUSE {major}.{minor}, at least 7.31 is needed (Linux 5.4)")]
    KernelTooOld {
        /// Major version of the kernel.
        major: u32,
        /// Minor version of the kernel.
        minor: u32,
    },
    /// The kernel did not start the conversation with a valid INIT request.
    #[error("no valid INIT request from the kernel: {0}")]
    Handshake(String),
    /// Readers did not come to rest within the limit; they go on serving.
    #[error("{busy} of the readers did not park within {limit:?}: a handler call blocks")]
    ParkTimeout {
        /// Readers that were still in a handler call.
        busy: usize,
        /// The limit that was given.
        limit: Duration,
    },
    /// Requests were to come by io_uring, and cannot.
    #[error("FUSE over io_uring is not possible: {0}; use the classic transport")]
    Uring(#[source] io::Error),
    /// The rings could not be brought to rest; they serve on.
    #[error("a connection served by io_uring cannot be handed over now: {0}")]
    UringHandOver(#[source] io::Error),
    /// Any other system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// Result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A request whose bytes do not form what its opcode says. Answer `EIO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Fewer bytes than the opcode's arguments need.
    #[error("opcode {opcode}: {need} bytes of arguments needed, {have} present")]
    Truncated {
        /// The request's opcode.
        opcode: u32,
        /// Bytes needed.
        need: usize,
        /// Bytes present.
        have: usize,
    },
    /// The length in the header is not the number of bytes received.
    #[error("the header says {header} bytes, {received} were received")]
    Length {
        /// Length in the header.
        header: usize,
        /// Length received.
        received: usize,
    },
    /// A name without its terminating zero byte.
    #[error("opcode {opcode}: a name is not terminated")]
    Unterminated {
        /// The request's opcode.
        opcode: u32,
    },
    /// The extensions at the end of the request are malformed.
    #[error("malformed request extensions")]
    Extensions,
}
