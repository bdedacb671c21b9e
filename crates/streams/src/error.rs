//! Why something about streams could not be done.

use std::io;
use std::path::PathBuf;

/// Failures of this crate; the messages say what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory can't be used.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The device failed.
    #[error("reading from the device failed: {0}; see the kernel's log")]
    Device(#[source] io::Error),
    /// A device could not be measured.
    #[error("{0}")]
    Profile(String),
    /// Settings contradict each other.
    #[error("{0}")]
    Settings(String),
    /// The network can't be used.
    #[error("{doing}: {source}; choose a free address of this machine")]
    Network {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Memory for streams could not be had.
    #[error("memory for streams: {0}; change --memory")]
    Memory(#[source] io::Error),
    /// A thread could not be started.
    #[error("starting a thread: {0}; look at the limits of processes (ulimit -u)")]
    Thread(#[source] io::Error),
}
