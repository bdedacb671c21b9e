//! Continuous media with deadlines: streams that are admitted only if the device carries them, and
//! then get their bytes in time.
//!
//! - [`Service`] drives the machine of `forebay_core::streams`: [`Service::open_stream`] gives a
//!   [`Stream`], or says why not ([`Rejected`]).
//! - [`device`] reads: real files by io_uring or threads, or an emulated disk.
//! - [`mod@measure`] makes a profile of a device.
//! - [`http`] serves streams to players.
//! - [`metrics`] renders what a service has done.

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
