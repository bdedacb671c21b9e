//! INIT: version and capabilities.

use std::os::fd::BorrowedFd;

use crate::error::Result;
use crate::flags::Features;
use crate::options::Options;

/// Oldest minor version of protocol 7 that is spoken (Linux 5.4).
pub const MINIMUM_MINOR: u32 = 31;
/// Newest minor version of protocol 7 that is spoken (Linux 6.18).
pub const MAXIMUM_MINOR: u32 = 45;

/// What was agreed at INIT; fixed for the life of the mount, and handed on to a successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Minor version in use.
    pub minor: u32,
    /// Minor version of the kernel.
    pub kernel_minor: u32,
    /// Capabilities in use.
    pub features: Features,
    /// Largest WRITE in bytes.
    pub max_write: u32,
    /// Pages per request at most.
    pub max_pages: u16,
    /// Read-ahead in bytes.
    pub max_readahead: u32,
}

pub(crate) fn handshake(device: BorrowedFd<'_>, options: &Options) -> Result<Negotiated> {
    let _ = (device, options);
    todo!()
}
