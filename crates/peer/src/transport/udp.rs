//! Datagrams, for closed networks: `[message_id, packet_id]` in front of each packet, reassembly in
//! sorted maps, acknowledgement and retransmission, all in bounded memory.
//!
//! A frame is a message, a message is cut into packets. Packets of a connection are numbered
//! through as well; the receiver acknowledges by the number up to which it has all of them and a
//! bitmap of those beyond. What is not acknowledged is sent again: at once when three later ones
//! have arrived, else after a time-out from the measured round trips (RFC 6298). How many may be
//! under way follows losses, as in TCP (additive increase, multiplicative decrease). Messages are
//! delivered as they become whole, so one does not wait for a lost packet of another.
//!
//! There is no encryption: [`Udp`] must be told that security is off. QUIC has both.

mod assembly;
mod connection;
mod endpoint;
mod packet;

use crossbeam_channel::Receiver;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Arrival, Closer, Listener, TimeLimits, Transport, Wire};
use crate::address::Address;
use crate::error::{Error, Result};
use crate::secret::Security;

use connection::Connection;
use endpoint::Endpoint;

pub use assembly::Assembly;

/// A socket for datagrams; tests put a lossy one in its place.
pub trait Datagrams: Send + Sync {
    /// Sends one datagram. May lose it.
    fn send_to(&self, packet: &[u8], to: SocketAddr) -> io::Result<()>;

    /// Receives one datagram, or fails with `WouldBlock` when none came within `timeout`; zero
    /// means not to wait.
    fn receive(&self, packet: &mut [u8], timeout: Duration) -> io::Result<(usize, SocketAddr)>;

    /// Where others send to.
    fn local_address(&self) -> io::Result<SocketAddr>;
}

/// Makes sockets that are bound to an address.
pub type Bind = Arc<dyn Fn(SocketAddr) -> io::Result<Arc<dyn Datagrams>> + Send + Sync>;

/// UDP between nodes.
#[derive(Clone)]
pub struct Udp {
    bind: Bind,
}

impl std::fmt::Debug for Udp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Udp")
    }
}

impl Udp {
    /// UDP without protection.
    ///
    /// # Errors
    /// [`Error::Settings`] if `security` is not off: datagrams are not encrypted.
    pub fn new(security: &Security) -> Result<Udp> {
        Udp::over(security, Arc::new(system_socket))
    }

    /// UDP without protection over sockets of another kind.
    ///
    /// # Errors
    /// As [`Udp::new`].
    pub fn over(security: &Security, bind: Bind) -> Result<Udp> {
        match security {
            Security::Off => Ok(Udp { bind }),
            Security::Tls(_) => Err(Error::Settings(
                "udp:// has no encryption; use quic://, or turn TLS off where the network is closed"
                    .into(),
            )),
        }
    }
}

fn resolve(address: &Address) -> io::Result<SocketAddr> {
    let Address::Udp(at) = address else { return Err(io::ErrorKind::Unsupported.into()) };
    super::resolve(at)
}

impl Transport for Udp {
    fn connect(&self, address: &Address, timeout: TimeLimits) -> Result<Wire> {
        let connect = || {
            let to = resolve(address)?;
            let any: SocketAddr = match to {
                SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
                SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
            };
            let endpoint = Endpoint::start((self.bind)(any)?, None)?;
            let connected = endpoint.connect(to, timeout);
            // It goes on for as long as its connection does.
            endpoint.close();
            connected
        };
        let connection = connect().map_err(|error: io::Error| Error::Connect {
            address: address.to_string(),
            why: error.to_string(),
        })?;
        Ok(connection.wire(timeout))
    }

    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>> {
        let listen = || {
            let at = resolve(address)?;
            // A predecessor may still be waiting for the last acknowledgements.
            let end = Instant::now() + endpoint::CLOSE_TIMEOUT * 2;
            let socket = loop {
                match (self.bind)(at) {
                    Err(error)
                        if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < end =>
                    {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    other => break other?,
                }
            };
            let address = Address::Udp(socket.local_address()?.to_string());
            let (to, arrivals) = crossbeam_channel::bounded(64);
            Ok(UdpDoor { endpoint: Endpoint::start(socket, Some(to))?, arrivals, address })
        };
        let door = listen().map_err(|error: io::Error| Error::Listen {
            address: address.to_string(),
            why: error.to_string(),
        })?;
        Ok(Box::new(door))
    }
}

struct UdpDoor {
    endpoint: Arc<Endpoint>,
    arrivals: Receiver<Arc<Connection>>,
    address: Address,
}

impl Listener for UdpDoor {
    fn accept(&self) -> io::Result<Box<dyn Arrival>> {
        match self.arrivals.recv() {
            Ok(connection) => Ok(Box::new(UdpArrival(Some(connection)))),
            Err(_) => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn close(&self) {
        self.endpoint.close();
    }
}

/// Closes the connection if nobody admits it.
struct UdpArrival(Option<Arc<Connection>>);

impl Arrival for UdpArrival {
    fn admit(mut self: Box<Self>, timeout: TimeLimits) -> Result<Wire> {
        let connection = self.0.take().ok_or(Error::Closed)?;
        Ok(connection.wire(timeout))
    }
}

impl Drop for UdpArrival {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.close();
        }
    }
}

/// A socket of the system, bound to an address.
///
/// # Errors
/// What the system says.
pub fn system_socket(at: SocketAddr) -> io::Result<Arc<dyn Datagrams>> {
    Ok(Arc::new(System::bind(at)?))
}

/// A socket of the system.
struct System(UdpSocket);

impl System {
    fn bind(at: SocketAddr) -> io::Result<System> {
        let socket = UdpSocket::bind(at)?;
        // As much as the system grants; what does not fit is lost, and sent again.
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 << 20)?;
        Ok(System(socket))
    }
}

impl Datagrams for System {
    fn send_to(&self, packet: &[u8], to: SocketAddr) -> io::Result<()> {
        self.0.send_to(packet, to).map(|_| ())
    }

    fn receive(&self, packet: &mut [u8], timeout: Duration) -> io::Result<(usize, SocketAddr)> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        if !timeout.is_zero() {
            let timeout = Timespec {
                tv_sec: timeout.as_secs() as i64,
                tv_nsec: timeout.subsec_nanos().into(),
            };
            let mut waiting = [PollFd::new(&self.0, PollFlags::IN)];
            poll(&mut waiting, Some(&timeout))?;
        }
        let flags = rustix::net::RecvFlags::DONTWAIT;
        let (_, len, from) = rustix::net::recvfrom(&self.0, packet, flags)?;
        let from = from.and_then(|from| SocketAddr::try_from(from).ok());
        let from = from.ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock))?;
        Ok((len, from))
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}
