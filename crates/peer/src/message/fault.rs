//! Why a node did not do what it was asked.

use std::time::Duration;

use crate::codec::{Decoder, Encoder};
use crate::error::{Error, Result};

/// What a node answers to a request that it did not carry out. Nothing has changed, except with
/// `Io` and `Cancelled`, where nobody knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It does not have these bytes, or this object.
    #[error("the other node does not have it")]
    NotHere,
    /// It has another version.
    #[error("the other node has version {version}")]
    Stale {
        /// Which.
        version: u64,
    },
    /// The caller's epoch is not the one that counts.
    #[error("the epoch is {epoch} by now; read the metadata again")]
    WrongEpoch {
        /// The epoch that the answering node knows.
        epoch: u64,
    },
    /// It does not own the file.
    #[error("the other node does not own the file (any more); read the metadata again")]
    NotOwner {
        /// Who does, if it knows.
        owner: Option<u64>,
    },
    /// It has too much to do.
    #[error("the other node has too much to do; ask again in {} ms", pause.as_millis())]
    Busy {
        /// When to ask again.
        pause: Duration,
    },
    /// Its tiers, or the quota, are full.
    #[error("no space is left on the other node")]
    NoSpace,
    /// A device of its failed.
    #[error("the other node failed with errno {errno}")]
    Io {
        /// The error's number.
        errno: i32,
    },
    /// A lock is held by somebody else.
    #[error("the lock is held by somebody else")]
    Locked,
    /// It does not know the request.
    #[error("the other node does not know such a request; are the versions the same?")]
    Unsupported,
    /// The request makes no sense.
    #[error("the other node calls the request invalid: {0}")]
    Invalid(String),
    /// The request's body did not have its checksum.
    #[error("the request was changed on its way")]
    Corrupt,
    /// It is about to end.
    #[error("the other node is about to end")]
    Closing,
    /// The caller is not welcome.
    #[error("the other node refuses: {0}")]
    Refused(String),
    /// The caller gave up, or its time was over, before it was done.
    #[error("given up before it was done")]
    Cancelled,
}

impl Fault {
    pub(crate) fn code(&self) -> u16 {
        match self {
            Fault::NotHere => 1,
            Fault::Stale { .. } => 2,
            Fault::WrongEpoch { .. } => 3,
            Fault::NotOwner { .. } => 4,
            Fault::Busy { .. } => 5,
            Fault::NoSpace => 6,
            Fault::Io { .. } => 7,
            Fault::Locked => 8,
            Fault::Unsupported => 9,
            Fault::Invalid(_) => 10,
            Fault::Corrupt => 11,
            Fault::Closing => 12,
            Fault::Refused(_) => 13,
            Fault::Cancelled => 14,
        }
    }

    pub(crate) fn encode(&self, to: &mut Encoder) {
        match self {
            Fault::Stale { version: number } | Fault::WrongEpoch { epoch: number } => {
                to.u64(*number);
            }
            Fault::NotOwner { owner } => {
                to.maybe(*owner);
            }
            Fault::Busy { pause } => {
                to.u32(u32::try_from(pause.as_millis()).unwrap_or(u32::MAX));
            }
            Fault::Io { errno } => {
                to.u32(errno.unsigned_abs());
            }
            Fault::Invalid(why) | Fault::Refused(why) => {
                to.text(why);
            }
            _ => {}
        }
    }

    pub(crate) fn decode(code: u16, fields: &[u8]) -> Result<Fault> {
        let mut from = Decoder(fields);
        let f = &mut from;
        let fault = match code {
            1 => Fault::NotHere,
            2 => Fault::Stale { version: f.u64()? },
            3 => Fault::WrongEpoch { epoch: f.u64()? },
            4 => Fault::NotOwner { owner: f.maybe()? },
            5 => Fault::Busy { pause: Duration::from_millis(f.u32()?.into()) },
            6 => Fault::NoSpace,
            7 => Fault::Io { errno: f.u32()?.min(4095) as i32 },
            8 => Fault::Locked,
            9 => Fault::Unsupported,
            10 => Fault::Invalid(f.text()?),
            11 => Fault::Corrupt,
            12 => Fault::Closing,
            13 => Fault::Refused(f.text()?),
            14 => Fault::Cancelled,
            other => return Err(Error::Protocol(format!("there is no fault {other}"))),
        };
        from.end()?;
        Ok(fault)
    }
}
