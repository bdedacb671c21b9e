//! Continuous media with deadlines: streams that are admitted only if the device carries them, and
//! then get their bytes in time.
//!
//! - [`Service`] drives the machine of `forebay_core::streams`: [`Service::open_stream`] gives a
//!   [`Stream`], or says why not ([`Rejected`]).
//! - [`device`] reads: real files by io_uring or threads, or an emulated disk.
//! - [`mod@measure`] makes a profile of a device.
//! - [`http`] serves streams to players.
//! - [`metrics`] renders what a service has done.
//!
//! A stream is, for the machine, as its reader has it: bytes are consumed when the reader drops
//! them, and a stream leaves when the last of its bytes is dropped. So the machine seldom gives
//! memory away that somebody still reads. When it does, since a reader has fallen behind the others
//! of its title, `service/driver/behind.rs` leaves that memory to the reader and has other memory
//! take its place.
//!
//! The HTTP server is asynchronous code: thousands of idle connections are what that is for.
//! Whatever blocks goes to tokio's bounded blocking threads.
//!
//! # Invariants
//! - Admitted streams run without a glitch beside whatever else is read, and start within the bound
//!   that they were given (`service/tests.rs`, `crates/node/tests/streams.rs`).
//! - A device that drifts takes guarantees away one by one, the last admitted first
//!   (`service/tests.rs`).
//! - Bytes that a reader has in hand never change, whatever becomes of its stream
//!   (`service/driver/tests.rs`, `pool.rs`).
//! - A slow, stalled or vanished client costs the others nothing (`service/tests.rs`,
//!   `tests/http.rs`). One client takes no more than its share, and media do nothing to the server
//!   (`tests/http_limits.rs`).
//! - Nothing outside its directory is ever streamed (`media.rs`, `tests/http.rs`).

pub mod device;
mod error;
mod extents;
pub mod http;
pub mod measure;
pub mod media;
pub mod metrics;
mod model;
mod mp4;
pub mod pool;
mod priority;
mod rate;
mod sandbox;
mod service;

pub use bytes::Bytes;
pub use error::Error;
pub use extents::{may_be_on_device, place_of};
pub use rate::parse_rate;
pub use service::{
    Class, Histogram, IDLE, OpenError, Rejected, Service, ServiceConfig, Status, Stream,
    StreamError, StreamLine, StreamRequest, Turn,
};
