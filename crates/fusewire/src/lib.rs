//! A FUSE transport: wire codec and request loop, without a file system of its own.
//!
//! The kernel's FUSE client sends requests through `/dev/fuse`; this crate mounts, negotiates
//! (ABI 7.31 to 7.45), reads and decodes them, hands each to a [`Handler`] and encodes what the
//! handler replies. A [`Reply`] can be sent from any thread, so slow work never holds up a
//! reader. Readers can be parked without losing a request, and a live connection can be adopted
//! by a successor process ([`Session::from_parts`]).
//!
//! See `examples/ramfs.rs` for a complete small file system.
//!
//! # Invariants
//! - Every request is answered: a [`Reply`] that is dropped, refused or lost in a panic answers
//!   `EIO` (`tests/common/behaviour.rs`).
//! - No bytes of a request make the process panic (`tests/fuzzing.rs`, `operation/tests.rs`).
//! - The steady state allocates nothing (`tests/allocation.rs`), and what large requests take up is
//!   bounded: readers wait at the limit and can still be parked (`tests/wire.rs`).
//!
//! # Inside
//! `reader.rs` is the loop over the device, `ring/` the same over io_uring. `dispatch.rs` is what
//! both do with a request, `gate.rs` where all of them come to rest, `operation.rs` the decoder.
//! `inflight.rs` knows what is unanswered and what was interrupted, also before it came.

mod abi;
mod buffer;
mod connection;
mod directory;
mod dispatch;
mod error;
mod flags;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod handler;
mod inflight;
mod mount;
mod negotiate;
mod operation;
mod options;
mod reader;
mod reply;
mod request;
mod ring;
mod session;
mod types;

pub use abi::opcode;
pub use buffer::Buffer;
pub use connection::Connection;
pub use directory::DirectoryBuffer;
pub use error::{DecodeError, Error, Result};
pub use flags::{
    AttrFlags, Features, IoctlFlags, OpenInFlags, OpenOutFlags, PollFlags, ReleaseFlags,
    SetxattrFlags, WriteFlags,
};
pub use handler::Handler;
pub use inflight::Interrupt;
pub use mount::Mount;
pub use negotiate::{MAXIMUM_MINOR, MINIMUM_MINOR, Negotiated};
pub use operation::{CopyRange, MappingRange, MappingRanges, Operation};
pub use options::{Options, Transport};
pub use reply::Reply;
pub use request::{Extensions, Header, Request, SecurityContext};
pub use ring::RingParts;
pub use session::{End, Parts, Running, Session};
pub use types::{
    Attr, Entry, FileKind, Lock, Opened, SetAttributes, SetTime, Statfs, Statx, Timestamp,
};

/// The node id of the root directory of every FUSE file system.
pub const ROOT_NODE: u64 = 1;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
