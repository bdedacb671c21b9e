//! How nodes of a cluster talk to each other: one protocol over several transports.
//!
//! - [`Server`] answers others by what the node implements, a [`Service`].
//! - [`Client`] asks one other node, from any number of threads.
//! - [`message`] has the requests and answers.
//! - [`transport`] has the ways: TCP with mutual TLS or in plain text, QUIC, Unix sockets, UDP, and
//!   as features UDT and MPI.
//! - [`secret`] has what makes a node a member of its cluster.
//! - [`conformance`] is the suite that every transport must pass.
//!
//! All of it is blocking calls on threads. A node has few peers at a time and moves much with each,
//! and its own work is done by threads; so a thread for each connection is the shortest way from a
//! file to a socket.

mod address;
mod body;
mod budget;
mod buffer;
pub mod client;
mod codec;
pub mod conformance;
mod error;
pub mod fetch;
mod limits;
pub mod message;
pub mod secret;
pub mod server;
mod service;
pub mod transport;
mod version;
mod wire;

pub use address::Address;
pub use body::{Body, FileRange};
pub use buffer::{Buffer, BufferPool};
pub use client::{Client, ClientConfig, Started};
pub use error::{Error, Result};
pub use fetch::Fetcher;
pub use limits::Limits;
pub use secret::{ClusterSecret, Security, TlsIdentity};
pub use server::{Identity, Server};
pub use service::{Call, Found, Service};
pub use version::{PROTOCOL, Versions};
