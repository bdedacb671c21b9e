//! Continuous media: streams that must be fed at their rates, from a device that takes time to get
//! to each of them.
//!
//! - [`profile`]: what a device can do; [`disk`]: a rotating disk as a formula.
//! - [`rate`], [`layout`]: how fast a stream is consumed, and where its file is.
//! - [`closed_form`]: what rounds of fixed length carry, by arithmetic.
//! - [`admission`]: which streams a device carries.
//! - [`machine`]: which stream is read when and into which buffers.
//! - [`popular`]: which beginnings are worth keeping on a faster device.
//!
//! The schemes Sweep, Sweep & Prefetch, Gradual Prefetching and Grouped Periodic Multiround
//! Prefetching are those of Harizopoulos, Harizakis, Triantafillou: "Hierarchical Caching and
//! Prefetching for Continuous Media Servers with Smart Disks", IEEE Concurrency 8(3), 2000.

pub mod admission;
pub mod closed_form;
pub mod disk;
pub mod layout;
pub mod machine;
pub mod popular;
pub mod profile;
pub mod rate;
mod ring;
mod sweep;

pub use ring::ChunkId;
