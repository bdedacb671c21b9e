//! A program's side of a Forebay daemon: processes of one node that have a file of its mount open
//! get memory in common, and talk to each other through it.
//!
//! No async runtime, no threads, nothing that runs at exit or at a fork: what is here are blocking
//! calls on one socket, and memory. The daemon's side is in the room `clients` of `forebay`;
//! docs/design/client.md has the messages, the layout of rings and who is believed.
//!
//! - [`Client`], [`Member`]: to find the daemon, to join a group, to leave it.
//! - [`Memory`]: the group's memory; [`ring`] and [`Doorbell`]: to talk through it.
//! - [`protocol`], [`socket`]: what goes over the socket; [`address`], [`mountinfo`]: where it is.

pub mod address;
mod doorbell;
mod member;
mod memory;
pub mod mountinfo;
pub mod protocol;
pub mod ring;
pub mod socket;

pub use doorbell::Doorbell;
pub use member::{Client, Member};
pub use memory::{Memory, make};

/// Why there is no shared memory.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file lies elsewhere.
    #[error("not on a Forebay mount")]
    NotOnMount,
    /// Nobody answers for the mount.
    #[error("no daemon answers for the mount: {0}")]
    NoDaemon(String),
    /// The daemon said no, and why.
    #[error("the daemon refused: {1}")]
    Refused(protocol::Refusal, String),
    /// The daemon said what it must not.
    #[error("the daemon's answer makes no sense: {0}")]
    Protocol(&'static str),
    /// The system said no.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The connection belongs to the process before a fork.
    #[error("the connection belongs to another process")]
    Forked,
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}
