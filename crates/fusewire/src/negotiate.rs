//! INIT: version and capabilities.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::abi::{self, Wire, opcode};
use crate::error::{Error, Result};
use crate::flags::Features;
use crate::options::Options;

/// Oldest minor version of protocol 7 that is spoken (Linux 5.4).
pub const MINIMUM_MINOR: u32 = 31;
/// Newest minor version of protocol 7 that is spoken (Linux 6.18).
pub const MAXIMUM_MINOR: u32 = 45;

const MAJOR: u32 = 7;
/// How long the kernel may take to send INIT after the mount; it does so at once.
const INIT_TIMEOUT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// Pages per request without `MAX_PAGES`.
const DEFAULT_PAGES: u32 = 32;
const PAGE: u32 = 4096;

/// Taken whenever offered: the codec handles them, and the handler need not know.
const ALWAYS: Features = Features::BIG_WRITES
    .with(Features::MAX_PAGES)
    .with(Features::INIT_EXT)
    .with(Features::SETXATTR_EXT)
    .with(Features::HAS_RESEND);
/// Never taken: this transport does not implement them.
const NEVER: Features = Features::ALLOW_IDMAP;

/// What was agreed at INIT; fixed for the life of the mount, and handed on to a successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Minor version in use.
    pub minor: u32,
    /// Minor version of the kernel.
    pub kernel_minor: u32,
    /// Capabilities in use.
    pub features: Features,
    /// Capabilities that the kernel offered.
    pub offered: Features,
    /// Largest WRITE in bytes.
    pub max_write: u32,
    /// Pages per request at most.
    pub max_pages: u16,
    /// Read-ahead in bytes.
    pub max_readahead: u32,
}

/// Reads INIT from a freshly mounted device and answers it. [`Features::OVER_IO_URING`] must be among
/// the features only if rings are ready.
pub(crate) fn handshake(device: BorrowedFd<'_>, options: &Options) -> Result<Negotiated> {
    let mut buffer = vec![0; abi_minimum_read()];
    // A kernel of a later major version sends INIT again once it knows ours.
    for _ in 0..3 {
        let mut ready = [PollFd::new(&device, PollFlags::IN)];
        match poll(&mut ready, Some(&INIT_TIMEOUT)) {
            Ok(0) => return Err(Error::Handshake("none came".into())),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io("waiting for INIT")(error.into())),
        }
        let length = rustix::io::read(device, &mut buffer[..])
            .map_err(|error| Error::io("reading INIT")(error.into()))?;
        let bytes = &buffer[..length];
        let header = abi::InHeader::read(bytes)
            .filter(|header| header.opcode == opcode::INIT)
            .ok_or_else(|| Error::Handshake(format!("{length} bytes of something else")))?;
        let body = &bytes[size_of::<abi::InHeader>()..];
        match answer(body, options) {
            Ok((out, negotiated)) => {
                respond(device, header.unique, 0, out.as_bytes())?;
                if let Some(negotiated) = negotiated {
                    return Ok(negotiated);
                }
            }
            Err(error) => {
                // Best effort: the mount is of no use either way.
                let _ = respond(device, header.unique, -libc::EPROTO, &[]);
                return Err(error);
            }
        }
    }
    Err(Error::Handshake("the kernel insists on another major version".into()))
}

/// Large enough before any `max_write` is agreed.
fn abi_minimum_read() -> usize {
    64 << 10
}

fn respond(device: BorrowedFd<'_>, unique: u64, error: i32, body: &[u8]) -> Result<()> {
    let len = u32::try_from(size_of::<abi::OutHeader>() + body.len()).expect("a few bytes");
    let header = abi::OutHeader { len, error, unique };
    let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(body)];
    rustix::io::writev(device, &parts)
        .map(drop)
        .map_err(|error| Error::io("answering INIT")(error.into()))
}

/// The answer to the arguments of INIT. Without [`Negotiated`] if another INIT must come first.
pub(crate) fn answer(body: &[u8], options: &Options) -> Result<(abi::InitOut, Option<Negotiated>)> {
    let short = || Error::Handshake("INIT is too short".into());
    let abi::InitInCompat { major, minor, max_readahead, flags } =
        abi::InitInCompat::read(body).ok_or_else(short)?;
    if major > MAJOR {
        let out = abi::InitOut { major: MAJOR, minor: MAXIMUM_MINOR, ..Default::default() };
        return Ok((out, None));
    }
    if major < MAJOR || minor < MINIMUM_MINOR {
        return Err(Error::KernelTooOld { major, minor });
    }
    let mut offered = u64::from(flags);
    if Features::from_bits(offered).contains(Features::INIT_EXT) {
        let long = abi::InitIn::read(body).ok_or_else(short)?;
        offered |= u64::from(long.flags2) << 32;
    }
    let offered = Features::from_bits(offered);
    let wanted = options.features.with(ALWAYS).without(NEVER);
    let features = Features::from_bits(offered.bits() & wanted.bits());
    let has = |feature| features.contains(feature);

    let limit = if has(Features::MAX_PAGES) { u32::MAX } else { DEFAULT_PAGES * PAGE };
    let negotiated = Negotiated {
        minor: minor.min(MAXIMUM_MINOR),
        kernel_minor: minor,
        features,
        offered,
        max_write: options.max_write.min(limit),
        max_pages: u16::try_from(options.max_write.min(limit).div_ceil(PAGE)).unwrap_or(u16::MAX),
        max_readahead: options.max_readahead.min(max_readahead),
    };
    let out = abi::InitOut {
        major: MAJOR,
        minor: negotiated.minor,
        max_readahead: negotiated.max_readahead,
        flags: features.bits() as u32,
        flags2: (features.bits() >> 32) as u32,
        max_background: options.max_background,
        congestion_threshold: options.congestion_threshold,
        max_write: negotiated.max_write,
        time_gran: 1,
        max_pages: negotiated.max_pages,
        max_stack_depth: if has(Features::PASSTHROUGH) { options.max_stack_depth } else { 0 },
        request_timeout: match has(Features::REQUEST_TIMEOUT) {
            true => options.request_timeout,
            false => 0,
        },
        ..Default::default()
    };
    Ok((out, Some(negotiated)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn init(major: u32, minor: u32, offered: Features) -> Vec<u8> {
        let bits = offered.bits();
        abi::InitIn {
            major,
            minor,
            max_readahead: 131_072,
            flags: bits as u32,
            flags2: (bits >> 32) as u32,
            unused: [0; 11],
        }
        .as_bytes()
        .to_vec()
    }

    #[test]
    fn answer_when_kernel_is_new_then_takes_what_both_know() {
        let offered = Features::from_bits(u64::MAX);
        let options = Options {
            features: Features::PASSTHROUGH | Features::ALLOW_IDMAP | Features::POSIX_ACL,
            ..Options::default()
        };
        let (out, negotiated) = answer(&init(7, 99, offered), &options).expect("accepted");
        let negotiated = negotiated.expect("complete");
        assert_eq!((out.major, out.minor, out.max_stack_depth), (7, 45, 1));
        assert_eq!((negotiated.max_write, negotiated.max_pages), (1 << 20, 256));
        assert!(negotiated.features.contains(Features::PASSTHROUGH | Features::POSIX_ACL));
        assert!(negotiated.features.contains(ALWAYS));
        assert!(!negotiated.features.contains(Features::ALLOW_IDMAP));
        assert!(!negotiated.features.contains(Features::OVER_IO_URING), "was not wanted");
        assert!(!negotiated.features.contains(Features::ASYNC_READ), "was not wanted");
        assert_eq!(u64::from(out.flags) | u64::from(out.flags2) << 32, negotiated.features.bits());
    }

    #[test]
    fn answer_when_kernel_is_old_then_short_init_and_small_requests_work() {
        let mut bytes = init(7, 31, Features::ASYNC_READ);
        bytes.truncate(16);
        let (out, negotiated) = answer(&bytes, &Options::default()).expect("accepted");
        let negotiated = negotiated.expect("complete");
        assert_eq!((out.minor, out.flags2, out.max_write), (31, 0, 128 << 10));
        assert_eq!(negotiated.features, Features::ASYNC_READ);
        assert_eq!(negotiated.max_readahead, 131_072);
    }

    #[test]
    fn answer_when_version_does_not_fit_then_refuses_or_asks_again() {
        let options = Options::default();
        for (major, minor) in [(7, 30), (6, 40)] {
            let error = answer(&init(major, minor, Features::NONE), &options).unwrap_err();
            assert!(error.to_string().contains("at least 7.31"), "{error}");
        }
        let (out, negotiated) =
            answer(&init(8, 0, Features::NONE), &options).expect("asks for another INIT");
        assert_eq!((out.major, negotiated), (7, None));
        assert!(answer(&[1, 2, 3], &options).is_err());
    }
}
