//! A socket and the thread that receives for all connections over it.

use crossbeam_channel::Sender;
use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::TimeLimits;
use super::Datagrams;
use super::connection::Connection;
use super::packet::Packet;
use crate::server::spawn;

/// How long the last acknowledgements are waited for.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_millis(250);
/// How often what is overdue is looked for.
const TICK: Duration = Duration::from_millis(5);
/// Datagrams that are received before their acknowledgements are sent.
const BATCH: usize = 32;
/// Connections over one socket.
const CONNECTIONS: usize = 4096;

type Key = (SocketAddr, u64);

/// A socket with its connections. Its thread ends when it was closed and has none.
pub(super) struct Endpoint {
    socket: Arc<dyn Datagrams>,
    connections: Mutex<HashMap<Key, Arc<Connection>>>,
    arrivals: Mutex<Option<Sender<Arc<Connection>>>>,
    closed: AtomicBool,
}

impl Endpoint {
    /// Starts to receive; who connects is given to `arrivals`, if there is one.
    pub fn start(
        socket: Arc<dyn Datagrams>,
        arrivals: Option<Sender<Arc<Connection>>>,
    ) -> io::Result<Arc<Endpoint>> {
        let endpoint = Arc::new(Endpoint {
            socket,
            connections: Mutex::default(),
            arrivals: Mutex::new(arrivals),
            closed: AtomicBool::new(false),
        });
        let receiver = endpoint.clone();
        spawn("peer-udp", move || receiver.run()).map_err(io::Error::other)?;
        Ok(endpoint)
    }

    /// Connects to a listening endpoint.
    pub fn connect(&self, to: SocketAddr, timeout: TimeLimits) -> io::Result<Arc<Connection>> {
        let mut id = [0; 8];
        SystemRandom::new().fill(&mut id).map_err(|_| io::Error::other("no random bytes"))?;
        let id = u64::from_le_bytes(id);
        let connection = Arc::new(Connection::new(id, to, self.socket.clone()));
        self.connections.lock().insert((to, id), connection.clone());
        let let_in = connection.handshake(timeout.connect);
        if let_in.is_err() {
            self.connections.lock().remove(&(to, id));
        }
        let_in.map(|()| connection)
    }

    /// Lets nobody in any more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        *self.arrivals.lock() = None;
    }

    fn run(&self) {
        let mut buffer = vec![0; 64 << 10];
        let mut touched: Vec<Arc<Connection>> = Vec::new();
        let mut ticked = Instant::now();
        loop {
            let mut timeout = TICK;
            for _ in 0..BATCH {
                match self.socket.receive(&mut buffer, timeout) {
                    Ok((len, from)) => self.take(&buffer[..len], from, &mut touched),
                    Err(_) if timeout.is_zero() => break,
                    // Nothing came, or the system tells of a host that is not there: the
                    // connection will find out.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
                timeout = Duration::ZERO;
            }
            touched.drain(..).for_each(|connection| connection.acknowledge());
            let now = Instant::now();
            if now.saturating_duration_since(ticked) >= TICK {
                ticked = now;
                let mut connections = self.connections.lock();
                connections.retain(|_, connection| !connection.tick(now));
                if connections.is_empty() && self.closed.load(Ordering::Acquire) {
                    return;
                }
            }
        }
    }

    fn take(&self, bytes: &[u8], from: SocketAddr, touched: &mut Vec<Arc<Connection>>) {
        let Some((id, packet)) = Packet::decode(bytes) else { return };
        let known = self.connections.lock().get(&(from, id)).cloned();
        match (known, packet) {
            (Some(connection), packet) => {
                connection.take(&packet, Instant::now());
                if !touched.iter().any(|one| Arc::ptr_eq(one, &connection)) {
                    touched.push(connection);
                }
            }
            (None, Packet::Connect) => self.let_in(id, from),
            // One that we know nothing of, after a restart for example: its other side is told.
            (None, Packet::Data { .. }) => {
                let mut bytes = Vec::new();
                Packet::Bye.encode(id, &mut bytes);
                let _ = self.socket.send_to(&bytes, from);
            }
            (None, _) => {}
        }
    }

    fn let_in(&self, id: u64, from: SocketAddr) {
        let arrivals = self.arrivals.lock();
        let Some(to) = arrivals.as_ref() else { return };
        let mut connections = self.connections.lock();
        if connections.len() >= CONNECTIONS {
            return;
        }
        let connection = Arc::new(Connection::new(id, from, self.socket.clone()));
        if to.try_send(connection.clone()).is_ok() {
            connection.send(&Packet::Accept);
            connections.insert((from, id), connection);
        }
    }
}
