//! All ways of a node, each made when an address first asks for it.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};
use std::sync::Arc;

use super::Transport;
use super::tcp::Tcp;
use super::udp::Udp;
use super::unix::Unix;
use crate::address::Address;
use crate::error::{Error, Result};
use crate::secret::Security;

/// Finds the transport of an address.
pub struct Ways {
    security: Security,
    made: Mutex<HashMap<Discriminant<Address>, Arc<dyn Transport>>>,
}

impl Ways {
    /// Ways that are protected so.
    pub fn new(security: Security) -> Ways {
        Ways { security, made: Mutex::default() }
    }

    /// The transport for `address`, the same for all addresses of its kind.
    ///
    /// # Errors
    /// [`Error::Settings`] if it goes without the protection that was asked for, was not built in,
    /// or lacks its library.
    pub fn to(&self, address: &Address) -> Result<Arc<dyn Transport>> {
        let mut made = self.made.lock();
        if let Some(known) = made.get(&discriminant(address)) {
            return Ok(known.clone());
        }
        let transport = make(address, &self.security)?;
        made.insert(discriminant(address), transport.clone());
        Ok(transport)
    }

    /// Ends all that were made: the process is about to end.
    pub fn end(&self) {
        let made: Vec<_> = self.made.lock().values().cloned().collect();
        made.iter().for_each(|transport| transport.end());
    }
}

fn make(address: &Address, security: &Security) -> Result<Arc<dyn Transport>> {
    Ok(match address {
        Address::Tcp(_) => Arc::new(Tcp::new(security.clone())),
        Address::Unix(_) => Arc::new(Unix::default()),
        Address::Udp(_) => Arc::new(Udp::new(security)?),
        #[cfg(feature = "quic")]
        Address::Quic(_) => Arc::new(super::quic::Quic::new(security)?),
        #[cfg(feature = "udt")]
        Address::Udt(_) => Arc::new(super::udt::Udt::new(security.clone())?),
        #[cfg(feature = "mpi")]
        Address::Mpi(_) => Arc::new(super::mpi::Mpi::new(security)?),
        #[allow(unreachable_patterns, reason = "with all features nothing is left")]
        other => return Err(not_built(other)),
    })
}

fn not_built(address: &Address) -> Error {
    let text = address.to_string();
    let name = text.split(':').next().unwrap_or_default();
    Error::Settings(format!(
        "{text}: this program was built without {name}; build it with `cargo build --features {name}`"
    ))
}

impl std::fmt::Debug for Ways {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ways")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transport_when_not_built_in_then_the_error_says_what_to_build() {
        let text = not_built(&"quic://node7:1".parse().unwrap()).to_string();
        assert!(text.contains("cargo build --features quic"), "{text}");
    }

    #[test]
    fn transport_when_asked_for_twice_then_the_same_and_without_protection_only_if_that_is_wanted()
    {
        let ways = Ways::new(Security::Off);
        let at = |text: &str| ways.to(&text.parse().unwrap());
        let one = at("tcp://a:1").unwrap();
        assert!(Arc::ptr_eq(&one, &at("tcp://b:2").unwrap()));
        at("udp://a:1").unwrap();
        let secret = crate::secret::ClusterSecret::generate().unwrap();
        let ways = Ways::new(Security::Tls(secret.identity().unwrap()));
        assert!(ways.to(&"udp://a:1".parse().unwrap()).is_err());
    }
}
