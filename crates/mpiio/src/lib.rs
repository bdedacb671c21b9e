//! MPI-IO of unmodified programs through one page cache of all processes that opened a file.
//!
//! This crate knows no MPI: a shim in C, `shim/`, is compiled for each one, takes the place of its
//! `MPI_File_*` functions, and calls what is below here. `make mpiio` links the two to a shared
//! object for each MPI that is installed. What belongs in the cache and what passes through is said
//! in docs/guide/mpiio.md; the protocol is that of `forebay-coop`.
//!
//! - `file`: an open file, as MPI's calls see it; `view` and `flat`: datatypes.
//! - `group`: the driver of the protocol's machine; `pool`, `soil`, `disk`: its bytes.
//! - `post`, `bell`, `wire`: envelopes between processes; `lanes`: the same, and the pools, in the
//!   memory of the node's daemon.
//! - `runtime`: what a process has once; [`ffi`]: what the shim calls.

use std::io::Write as _;

mod bell;
mod disk;
pub mod ffi;
mod file;
pub mod flat;
mod group;
mod lanes;
mod mpi;
mod pool;
mod post;
mod runtime;
mod settings;
mod soil;
pub mod view;
mod wire;

/// Why a call has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// It is MPI's own business.
    Pass,
    /// The file could not be read or written.
    Failed,
    /// There is no space for it.
    NoSpace,
    /// The program asked for what there is not.
    Argument,
}

impl Error {
    /// The number that the shim knows it by.
    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            Self::Pass => -1,
            Self::Failed => -2,
            Self::NoSpace => -3,
            Self::Argument => -4,
        }
    }
}

/// A line for the user, whose program goes on whether it is read or not.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "forebay: {line}");
}
