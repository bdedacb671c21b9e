//! Suites that judge a file system from the outside, through system calls only.
//!
//! Every suite takes a directory: on a native file system it proves itself (a check that a native
//! file system fails is a wrong check), on a Forebay mount it proves the mount.
//!
//! - [`posix`]: named conformance checks by area;
//! - [`fsx`]: random I/O on one file against an in-memory model;
//! - [`model`]: random namespace and data operations on two directories that must stay equal;
//! - [`histories`]: the same over unmounts, kills and write-backs, also of a plain user;
//! - [`crash`]: a mixed load whose acknowledged operations must survive a killed daemon;
//! - [`power`]: disks that fail at once with all that was not synced;
//! - [`soak`]: programs, faults, upgrades and kills for as long as one likes, with level curves;
//! - [`space`]: full tiers and full backing stores;
//! - [`programs`]: unmodified programs.

#[macro_use]
pub mod failure;
pub mod crash;
pub mod fsx;
pub mod histories;
pub mod model;
pub mod os;
pub mod posix;
pub mod power;
pub mod process;
pub mod programs;
pub mod random;
pub mod shrink;
pub mod soak;
pub mod space;
pub mod subject;
pub mod watchdog;

pub use failure::{Failure, Outcome};
