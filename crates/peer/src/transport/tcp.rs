//! TCP, with mutual TLS unless that was turned off.

use rustix::net::sockopt;
use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::socket::{Socket, SocketSink};
use super::{Arrival, Closer, Listener, TimeLimits, Transport, Wire, tls};
use crate::address::Address;
use crate::error::{Error, Result};
use crate::secret::Security;

/// TCP between nodes.
#[derive(Clone, Debug)]
pub struct Tcp {
    security: Security,
}

impl Tcp {
    /// TCP that is protected so.
    pub fn new(security: Security) -> Tcp {
        Tcp { security }
    }
}

impl Transport for Tcp {
    fn connect(&self, address: &Address, timeout: TimeLimits) -> Result<Wire> {
        let failed = |error: io::Error| Error::Connect {
            address: address.to_string(),
            why: error.to_string(),
        };
        let stream = connect(address, timeout.connect).map_err(failed)?;
        let socket = prepare(stream, timeout.stall).map_err(failed)?;
        match &self.security {
            Security::Tls(us) => tls::connect(socket, us, timeout.handshake).map_err(failed),
            Security::Off => Ok(plain(socket, false)),
        }
    }

    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>> {
        let failed = |error: io::Error| Error::Listen {
            address: address.to_string(),
            why: error.to_string(),
        };
        let Address::Tcp(at) = address else {
            return Err(failed(io::ErrorKind::Unsupported.into()));
        };
        let listener = TcpListener::bind(at).map_err(failed)?;
        let address = Address::Tcp(listener.local_addr().map_err(failed)?.to_string());
        let security = self.security.clone();
        Ok(Box::new(TcpDoor { listener, address, security, closed: AtomicBool::new(false) }))
    }
}

/// Tries all addresses that the host's name has, within `timeout` altogether.
fn connect(address: &Address, timeout: Duration) -> io::Result<TcpStream> {
    let Address::Tcp(at) = address else { return Err(io::ErrorKind::Unsupported.into()) };
    let addresses: Vec<_> = at.to_socket_addrs()?.take(4).collect();
    let each = timeout / addresses.len().max(1) as u32;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host's name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, each.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Sends at once what is complete, and finds out about hosts that vanished.
fn prepare(stream: TcpStream, stall: Duration) -> io::Result<Socket> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let fd = stream.as_fd();
    sockopt::set_socket_keepalive(fd, true)?;
    sockopt::set_tcp_keepidle(fd, Duration::from_secs(15))?;
    sockopt::set_tcp_keepintvl(fd, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(fd, 3)?;
    let unacknowledged = stall.saturating_mul(2).as_millis();
    sockopt::set_tcp_user_timeout(fd, u32::try_from(unacknowledged).unwrap_or(u32::MAX))?;
    let socket = Socket::new(stream.into());
    socket.write_timeout(stall)?;
    Ok(socket)
}

/// Both directions without encryption.
///
/// `sendfile` pays on Unix sockets, where the receiver gets the file's own pages. Over TCP it took
/// more of the processor's time than to read a file piece by piece and to send each piece while it is
/// in the cache, which is also how it gets its sum (`cargo bench -p forebay-peer --bench reads`).
pub(super) fn plain(socket: Socket, sends_files: bool) -> Wire {
    Wire {
        source: Box::new(socket.clone()),
        sink: Box::new(SocketSink { socket: socket.clone(), sends_files }),
        closer: Arc::new(socket),
    }
}

struct TcpDoor {
    listener: TcpListener,
    address: Address,
    security: Security,
    closed: AtomicBool,
}

impl Listener for TcpDoor {
    fn accept(&self) -> io::Result<Box<dyn Arrival>> {
        let accepted = self.listener.accept();
        if self.closed.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let (stream, from) = accepted?;
        Ok(Box::new(TcpArrival { stream, from: from.to_string(), security: self.security.clone() }))
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // On Linux this wakes whoever waits for a connection.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

struct TcpArrival {
    stream: TcpStream,
    from: String,
    security: Security,
}

impl Arrival for TcpArrival {
    fn admit(self: Box<Self>, timeout: TimeLimits) -> Result<Wire> {
        let address = format!("tcp://{}", self.from);
        let failed = |error: io::Error| Error::Connect { address, why: error.to_string() };
        let socket = match prepare(self.stream, timeout.stall) {
            Ok(socket) => socket,
            Err(error) => return Err(failed(error)),
        };
        match &self.security {
            Security::Tls(us) => {
                let shaken = tls::accept(socket.clone(), us, timeout.handshake);
                if shaken.is_err() {
                    socket.close();
                }
                shaken.map_err(failed)
            }
            Security::Off => Ok(plain(socket, false)),
        }
    }
}
