//! Why a node could not be asked, or did not answer.

use std::io;
use std::time::Duration;

use crate::message::Fault;

/// What this crate's operations return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Failures of talking to another node; the messages say what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text is no address.
    #[error("`{text}` is no address of a node: {why}; write tcp://host:port or unix:/path")]
    Address {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Settings that contradict each other, or a secret that can't be used.
    #[error("{0}")]
    Settings(String),
    /// An address can't be listened on.
    #[error("listening on {address}: {why}; choose a free address of this machine")]
    Listen {
        /// Where.
        address: String,
        /// What the system said.
        why: String,
    },
    /// No connection came about.
    #[error("connecting to {address}: {why}")]
    Connect {
        /// Where to.
        address: String,
        /// What the system, or the other side, said.
        why: String,
    },
    /// The last attempt to connect failed a moment ago; the next one is not due yet.
    #[error("{address} could not be reached; it is tried again in {} ms", wait.as_millis())]
    Resting {
        /// Which node.
        address: String,
        /// How long until the next attempt.
        wait: Duration,
    },
    /// The other side is no node of this cluster, or does not want this one.
    #[error("{address} refuses: {why}")]
    Refused {
        /// Which node.
        address: String,
        /// What it, or this node, found wrong.
        why: String,
    },
    /// The connection ended before the answer was there.
    #[error("the connection ended: {why}")]
    Lost {
        /// Why.
        why: String,
        /// Whether the request may have been carried out.
        sent: bool,
    },
    /// The answer was not there in time.
    #[error("no answer in time")]
    TimedOut {
        /// Whether the request may have been carried out.
        sent: bool,
    },
    /// The caller gave the call up.
    #[error("cancelled")]
    Cancelled,
    /// Bytes changed on their way.
    #[error("the bytes of an answer do not have their checksum; look at {0}")]
    Corrupt(String),
    /// A message is larger than both sides agreed on.
    #[error("{len} bytes are more than the {limit} that one message may have")]
    TooLarge {
        /// How many there are.
        len: u64,
        /// How many are allowed.
        limit: u64,
    },
    /// The other side speaks, but not this protocol.
    #[error("no valid message: {0}")]
    Protocol(String),
    /// This client or server was closed.
    #[error("closed")]
    Closed,
    /// A thread could not be started.
    #[error("starting a thread: {0}; look at the limits of processes (ulimit -u)")]
    Thread(String),
    /// The other node answered that it did not do it.
    #[error("{0}")]
    Fault(#[from] Fault),
}

impl Error {
    /// Whether it is certain that the request was not carried out, so that it may be made again
    /// (or elsewhere) whatever it was.
    pub fn not_done(&self) -> bool {
        match self {
            Error::Lost { sent, .. } | Error::TimedOut { sent } => !sent,
            Error::Cancelled | Error::Corrupt(_) | Error::Protocol(_) => false,
            Error::Fault(fault) => !matches!(fault, Fault::Io { .. } | Fault::Cancelled),
            _ => true,
        }
    }

    /// Whether making the same request again may succeed.
    pub fn passes(&self) -> bool {
        match self {
            Error::Lost { .. } | Error::Corrupt(_) | Error::Protocol(_) => true,
            Error::Fault(fault) => {
                matches!(fault, Fault::Busy { .. } | Fault::Corrupt | Fault::Closing)
            }
            _ => false,
        }
    }

    pub(crate) fn lost(why: &io::Error) -> Error {
        Error::Lost { why: why.to_string(), sent: true }
    }
}
