//! Where a node listens.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::Error;

/// An address of a node, written as `tcp://host:port`, `unix:/path`, `quic://host:port`,
/// `udp://host:port`, `udt://host:port` or `mpi://rank:port`. A host is a name, an IPv4 address, or
/// an IPv6 address in brackets; port 0 means any free one where it is listened on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// TCP, by `host:port`.
    Tcp(String),
    /// A Unix socket, by its path.
    Unix(PathBuf),
    /// Datagrams, by `host:port`.
    Udp(String),
    /// QUIC, by `host:port`.
    Quic(String),
    /// UDT, by `host:port`.
    Udt(String),
    /// MPI, by `rank:port`: the number of a process of the job, or `self` for one's own, and a number
    /// that tells listeners of one process apart.
    Mpi(String),
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address, Error> {
        let wrong = |why| Error::Address { text: text.to_owned(), why };
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.starts_with('/') {
                true => Ok(Address::Unix(path.into())),
                false => Err(wrong("the path of a Unix socket must be absolute")),
            };
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("there is no scheme"))?;
        let (host, port) = rest.rsplit_once(':').ok_or_else(|| wrong("there is no port"))?;
        if host.is_empty() {
            return Err(wrong("there is no host"));
        }
        if port.parse::<u16>().is_err() {
            return Err(wrong("the port is no number up to 65535"));
        }
        if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
            return Err(wrong("an IPv6 address needs brackets"));
        }
        match scheme {
            "tcp" => Ok(Address::Tcp(rest.to_owned())),
            "udp" => Ok(Address::Udp(rest.to_owned())),
            "quic" => Ok(Address::Quic(rest.to_owned())),
            "udt" => Ok(Address::Udt(rest.to_owned())),
            "mpi" if host == "self" || host.parse::<u16>().is_ok() => {
                Ok(Address::Mpi(rest.to_owned()))
            }
            "mpi" => Err(wrong("neither `self` nor the number of a process of the job")),
            _ => Err(wrong("the scheme is none of tcp, unix, quic, udp, udt and mpi")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(at) => write!(f, "tcp://{at}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Udp(at) => write!(f, "udp://{at}"),
            Address::Quic(at) => write!(f, "quic://{at}"),
            Address::Udt(at) => write!(f, "udt://{at}"),
            Address::Mpi(at) => write!(f, "mpi://{at}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_when_written_and_read_then_the_same() {
        for text in [
            "tcp://node7:7000",
            "unix:/run/f.sock",
            "udp://[::1]:9",
            "quic://127.0.0.1:65535",
            "udt://node7:1",
            "mpi://17:0",
            "mpi://self:0",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn address_when_malformed_then_refused() {
        for text in ["", "tcp://", "tcp://host", "tcp://:1", "tcp://h:65536", "unix:rel", "x://h:1"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        for text in ["tcp://::1:5", "mpi://node7:1", "mpi://-1:0", "mpi://1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
