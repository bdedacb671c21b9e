//! QUIC (RFC 9000), by quinn: encryption, congestion control and retransmission over datagrams.
//!
//! A connection has one stream in both directions, which carries the same frames as a TCP
//! connection. Both sides prove who they are by the certificates of [`crate::secret`], as with TLS
//! over TCP; without them there is no QUIC. quinn works on a few threads of tokio of its own, those
//! who read and write wait for it as they wait for a socket.

use bytes::Bytes;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    Connection, Endpoint, EndpointConfig, Incoming, RecvStream, SendStream, TokioRuntime,
    TransportConfig, VarInt,
};
use std::future::Future;
use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex, watch};

use super::socket::stalled;
use super::{Arrival, Closer, Listener, Sink, Source, TimeLimits, Transport, Wire, resolve};
use crate::address::Address;
use crate::error::{Error, Result};
use crate::secret::{NAME, Security};

/// Threads that encrypt, decrypt and talk to the system for all connections.
const THREADS: usize = 2;
/// How long what was sent before a close is waited for.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(250);
/// A side of which nothing is heard for so long is gone.
const IDLE: Duration = Duration::from_secs(20);
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Bytes of a connection that may be under way, or received and not read.
const WINDOW: u32 = 8 << 20;
/// The largest datagram that is tried: what fits a jumbo frame of Ethernet.
const LARGEST: u16 = 8952;
/// Bytes that are handed to quinn in one go.
const CHUNK: usize = 256 << 10;
/// Who has shaken hands and was not looked at yet.
const MAX_HANDSHAKES: usize = 256;

/// QUIC between nodes.
#[derive(Clone)]
pub struct Quic {
    threads: Arc<Threads>,
    client: quinn::ClientConfig,
    server: quinn::ServerConfig,
}

impl std::fmt::Debug for Quic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Quic")
    }
}

impl Quic {
    /// QUIC between those who share a secret.
    ///
    /// # Errors
    /// [`Error::Settings`] if `security` is off, as there is no QUIC without encryption;
    /// [`Error::Thread`] if there can't be another thread.
    pub fn new(security: &Security) -> Result<Quic> {
        let Security::Tls(us) = security else {
            return Err(Error::Settings(
                "quic:// is always encrypted: give the cluster's secret, or use tcp://".into(),
            ));
        };
        let unfit = |error| Error::Settings(format!("QUIC by these certificates: {error}"));
        let ours = QuicClientConfig::try_from(us.client.clone()).map_err(unfit)?;
        let theirs = QuicServerConfig::try_from(us.server.clone()).map_err(unfit)?;
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(1))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .datagram_receive_buffer_size(None)
            .stream_receive_window(VarInt::from_u32(WINDOW))
            .receive_window(VarInt::from_u32(WINDOW))
            .send_window(WINDOW.into())
            .max_idle_timeout(Some(IDLE.try_into().expect("20 s fit")))
            .keep_alive_interval(Some(KEEP_ALIVE));
        let mut discovery = quinn::MtuDiscoveryConfig::default();
        discovery.upper_bound(LARGEST);
        transport.mtu_discovery_config(Some(discovery));
        let transport = Arc::new(transport);
        let mut client = quinn::ClientConfig::new(Arc::new(ours));
        client.transport_config(transport.clone());
        let mut server = quinn::ServerConfig::with_crypto(Arc::new(theirs));
        server.transport_config(transport);
        // Before anybody has said who he is, little is kept of what he sends.
        server.max_incoming(MAX_HANDSHAKES).incoming_buffer_size(64 << 10);
        server.incoming_buffer_size_total(4 << 20);
        Ok(Quic { threads: Threads::start()?, client, server })
    }

    fn try_connect(&self, address: &Address, timeout: TimeLimits) -> io::Result<Wire> {
        let Address::Quic(at) = address else { return Err(ErrorKind::Unsupported.into()) };
        let to = resolve(at)?;
        let any: SocketAddr = match to {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
        };
        let connected = self.threads.wait(async {
            let endpoint = endpoint(any, None)?;
            let connecting = endpoint.connect_with(self.client.clone(), to, NAME);
            let mut connecting = connecting.map_err(io::Error::other)?;
            in_time(timeout.connect, connecting.handshake_data()).await?;
            let connection = in_time(timeout.handshake, connecting).await?;
            let (send, receive) = connection.open_bi().await?;
            Ok::<_, io::Error>((connection, endpoint, send, receive))
        });
        let (connection, endpoint, send, receive) = connected?;
        let shared = QuicConnection {
            threads: self.threads.clone(),
            connection,
            endpoint,
            send: Mutex::new(send),
            waits_on_close: false,
        };
        Ok(shared.wire(receive, timeout))
    }

    fn try_listen(&self, address: &Address) -> io::Result<QuicDoor> {
        let Address::Quic(at) = address else { return Err(ErrorKind::Unsupported.into()) };
        let at = resolve(at)?;
        // A predecessor may still be closing its connections.
        let end = Instant::now() + CLOSE_TIMEOUT * 8;
        let listening = || self.threads.wait(async { endpoint(at, Some(self.server.clone())) });
        let endpoint = loop {
            match listening() {
                Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                other => break other?,
            }
        };
        let address = Address::Quic(endpoint.local_addr()?.to_string());
        let (closed, _) = watch::channel(false);
        Ok(QuicDoor { threads: self.threads.clone(), endpoint, address, closed })
    }
}

impl Transport for Quic {
    fn connect(&self, address: &Address, timeout: TimeLimits) -> Result<Wire> {
        self.try_connect(address, timeout).map_err(|error| Error::Connect {
            address: address.to_string(),
            why: error.to_string(),
        })
    }

    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>> {
        let door = self.try_listen(address).map_err(|error| Error::Listen {
            address: address.to_string(),
            why: error.to_string(),
        })?;
        Ok(Box::new(door))
    }
}

/// A socket at `at`, and quinn's work on it.
fn endpoint(at: SocketAddr, server: Option<quinn::ServerConfig>) -> io::Result<Endpoint> {
    let socket = UdpSocket::bind(at)?;
    // As much as the system grants; what does not fit is lost, and sent again.
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 << 20)?;
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, 4 << 20)?;
    Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime))
}

/// Something that may take so long; what fails in it, as the system would say it.
async fn in_time<T, E: Into<io::Error>>(
    within: Duration,
    work: impl Future<Output = std::result::Result<T, E>>,
) -> io::Result<T> {
    match tokio::time::timeout(within, work).await {
        Ok(done) => done.map_err(Into::into),
        Err(_) => Err(ErrorKind::TimedOut.into()),
    }
}

/// The threads on which quinn works, until the last connection is gone.
struct Threads(Option<Runtime>);

impl Threads {
    fn start() -> Result<Arc<Threads>> {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(THREADS).max_blocking_threads(1).thread_name("peer-quic");
        let runtime = builder.enable_io().enable_time().build();
        let runtime = runtime.map_err(|error| Error::Thread(error.to_string()))?;
        Ok(Arc::new(Threads(Some(runtime))))
    }

    fn runtime(&self) -> &Runtime {
        self.0.as_ref().expect("it is taken only when this is dropped")
    }

    /// Waits on this thread, which is none of tokio's.
    fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime().block_on(work)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // The last one to let go may be one of these threads, which can't wait for itself.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

struct QuicDoor {
    threads: Arc<Threads>,
    endpoint: Endpoint,
    address: Address,
    closed: watch::Sender<bool>,
}

impl Listener for QuicDoor {
    fn accept(&self) -> io::Result<Box<dyn Arrival>> {
        let mut closed = self.closed.subscribe();
        let arrived = self.threads.wait(async {
            tokio::select! {
                biased;
                _ = closed.wait_for(|closed| *closed) => None,
                arrived = self.endpoint.accept() => arrived,
            }
        });
        let incoming = arrived.ok_or(ErrorKind::ConnectionAborted)?;
        let (threads, endpoint) = (self.threads.clone(), self.endpoint.clone());
        Ok(Box::new(QuicArrival { threads, endpoint, incoming }))
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn close(&self) {
        self.closed.send_replace(true);
        self.endpoint.set_server_config(None);
    }
}

impl Drop for QuicDoor {
    fn drop(&mut self) {
        // Whoever ends may end the process next: what was said last is still sent.
        let _ = self.threads.wait(async {
            tokio::time::timeout(CLOSE_TIMEOUT * 2, self.endpoint.wait_idle()).await
        });
    }
}

struct QuicArrival {
    threads: Arc<Threads>,
    endpoint: Endpoint,
    incoming: Incoming,
}

impl Arrival for QuicArrival {
    fn admit(self: Box<Self>, timeout: TimeLimits) -> Result<Wire> {
        let QuicArrival { threads, endpoint, incoming } = *self;
        let address = format!("quic://{}", incoming.remote_address());
        let admitted = threads.wait(in_time(timeout.handshake, async {
            // It is there only when the other side's certificate was found good.
            let connection = incoming.accept()?.await?;
            let (send, receive) = connection.accept_bi().await?;
            Ok::<_, io::Error>((connection, send, receive))
        }));
        let (connection, send, receive) =
            admitted.map_err(|error| Error::Connect { address, why: error.to_string() })?;
        let send = Mutex::new(send);
        let shared = QuicConnection { threads, connection, endpoint, send, waits_on_close: true };
        Ok(shared.wire(receive, timeout))
    }
}

/// What both directions of a connection have in common.
struct QuicConnection {
    threads: Arc<Threads>,
    connection: Connection,
    endpoint: Endpoint,
    send: Mutex<SendStream>,
    /// Whether what was sent before a close is to arrive: answers are, questions that nobody waits
    /// for are not.
    waits_on_close: bool,
}

impl QuicConnection {
    fn wire(self, receive: RecvStream, timeout: TimeLimits) -> Wire {
        let shared = Arc::new(self);
        let source =
            QuicSource { threads: shared.threads.clone(), receive, timeout: timeout.stall };
        let sink = QuicSink { shared: shared.clone(), out: Vec::new(), timeout: timeout.stall };
        Wire {
            source: Box::new(source),
            sink: Box::new(sink),
            closer: Arc::new(QuicCloser { shared }),
        }
    }
}

struct QuicCloser {
    shared: Arc<QuicConnection>,
}

impl Closer for QuicCloser {
    fn close(&self) {
        let shared = self.shared.clone();
        if !shared.waits_on_close {
            shared.connection.close(VarInt::from_u32(0), b"");
            return;
        }
        let threads = shared.threads.clone();
        threads.runtime().spawn(async move {
            let arrived = async {
                let stopped = {
                    let mut send = shared.send.lock().await;
                    let _ = send.finish();
                    send.stopped()
                };
                let _ = stopped.await;
            };
            // Who does not take it in time does not want it.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, arrived).await;
            shared.connection.close(VarInt::from_u32(0), b"");
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, shared.endpoint.wait_idle()).await;
        });
    }
}

struct QuicSource {
    threads: Arc<Threads>,
    receive: RecvStream,
    timeout: Duration,
}

impl Read for QuicSource {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let QuicSource { threads, receive, timeout } = self;
        match threads.wait(async { tokio::time::timeout(*timeout, receive.read(buffer)).await }) {
            Ok(read) => Ok(read?.unwrap_or(0)),
            Err(_) => Err(ErrorKind::WouldBlock.into()),
        }
    }
}

impl Source for QuicSource {
    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.timeout = timeout;
        Ok(())
    }
}

struct QuicSink {
    shared: Arc<QuicConnection>,
    /// Not handed to quinn yet.
    out: Vec<u8>,
    timeout: Duration,
}

impl QuicSink {
    fn flush(&mut self) -> io::Result<()> {
        let mut chunks = [Bytes::from(std::mem::take(&mut self.out))];
        let QuicSink { shared, timeout, .. } = self;
        shared.threads.wait(async {
            let mut send = shared.send.lock().await;
            while !chunks[0].is_empty() {
                match tokio::time::timeout(*timeout, send.write_chunks(&mut chunks)).await {
                    Ok(written) => written.map(|_| ())?,
                    Err(_) => return Err(stalled()),
                }
            }
            Ok(())
        })
    }
}

impl Sink for QuicSink {
    fn send(&mut self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        for part in parts {
            let mut rest = &part[..];
            while !rest.is_empty() {
                if self.out.len() == CHUNK {
                    self.flush()?;
                }
                let (now, later) = rest.split_at(rest.len().min(CHUNK - self.out.len()));
                self.out.extend_from_slice(now);
                rest = later;
            }
        }
        Ok(())
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.flush()
    }
}
