//! The side that is asked.
//!
//! A connection has a thread that reads its requests. What takes a moment goes to a bounded pool of
//! threads, of which one part is for what may wait for long, so that reads never queue behind a
//! write-back. An answer is sent by whoever made it; if somebody is sending on that connection
//! already, it is left to them.

mod connection;
mod pool;

use crossbeam_channel::Sender;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::address::Address;
use crate::budget::Budget;
use crate::buffer::BufferPool;
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::message::Hello;
use crate::service::Service;
use crate::transport::{Arrival, Listener, TimeLimits, Transport};
use crate::version::Versions;

use connection::Connection;
use pool::Job;

/// Which node this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the cluster.
    pub cluster: String,
    /// The node's number.
    pub node: u64,
    /// Its incarnation, which grows with each start.
    pub epoch: u64,
    /// The versions of the protocol that it understands.
    pub versions: Versions,
}

impl Identity {
    /// A node that understands all versions that this crate does.
    pub fn new(cluster: String, node: u64, epoch: u64) -> Identity {
        Identity { cluster, node, epoch, versions: Versions::default() }
    }

    pub(crate) fn hello(&self, limits: &Limits) -> Hello {
        Hello {
            versions: self.versions,
            cluster: self.cluster.clone(),
            node: self.node,
            epoch: self.epoch,
            calls: limits.calls.max(1),
            bytes: limits.bytes.max(1),
            body: limits.body.min(Limits::MAX_BODY),
        }
    }
}

/// Answers other nodes, on any number of addresses. Dropping it closes it at once.
pub struct Server {
    shared: Arc<PeerServerState>,
    jobs: Option<Lanes>,
    workers: Vec<JoinHandle<()>>,
    doors: Vec<Door>,
}

struct Door {
    listener: Arc<dyn Listener>,
    thread: JoinHandle<()>,
}

/// What all threads of a server use.
struct PeerServerState {
    service: Arc<dyn Service>,
    me: Identity,
    limits: Limits,
    memory: Arc<Budget>,
    buffers: Arc<BufferPool>,
    closing: AtomicBool,
    strangers: AtomicUsize,
    next_connection: AtomicU64,
    connections: Mutex<HashMap<u64, ServedConnection>>,
}

/// A connection, and the thread that reads it.
struct ServedConnection {
    connection: Option<Arc<Connection>>,
    thread: Option<JoinHandle<()>>,
}

/// Where requests wait for a thread.
#[derive(Clone)]
struct Lanes {
    quick: Sender<Job>,
    slow: Sender<Job>,
}

impl Server {
    /// Starts the threads that carry out what `service` is asked.
    ///
    /// # Errors
    /// [`Error::Thread`] if there can't be so many.
    pub fn start(service: Arc<dyn Service>, me: Identity, limits: Limits) -> Result<Server> {
        let (quick, quick_jobs) = crossbeam_channel::bounded(limits.queue.max(1));
        let (slow, slow_jobs) = crossbeam_channel::bounded(limits.queue.max(1));
        let mut workers = Vec::new();
        for _ in 0..limits.quick_threads.max(1) {
            workers.push(pool::worker("peer-quick", quick_jobs.clone(), service.clone())?);
        }
        for _ in 0..limits.slow_threads.max(1) {
            workers.push(pool::worker("peer-slow", slow_jobs.clone(), service.clone())?);
        }
        let shared = Arc::new(PeerServerState {
            service,
            me,
            memory: Budget::new(limits.memory),
            buffers: BufferPool::new(usize::try_from(limits.memory / 4).unwrap_or(usize::MAX)),
            closing: AtomicBool::new(false),
            strangers: AtomicUsize::new(0),
            next_connection: AtomicU64::new(1),
            connections: Mutex::default(),
            limits,
        });
        Ok(Server { shared, jobs: Some(Lanes { quick, slow }), workers, doors: Vec::new() })
    }

    /// Listens on one more address, and tells where exactly (a port 0 was replaced).
    ///
    /// # Errors
    /// [`Error::Listen`] if the address can't be had, [`Error::Closed`] after [`Server::close`].
    pub fn listen(&mut self, transport: &dyn Transport, address: &Address) -> Result<Address> {
        let lanes = self.jobs.clone().ok_or(Error::Closed)?;
        let listener: Arc<dyn Listener> = transport.listen(address)?.into();
        let address = listener.address();
        let (shared, door) = (self.shared.clone(), listener.clone());
        let thread = spawn("peer-accept", move || shared.accept(&*door, &lanes))?;
        self.doors.push(Door { listener, thread });
        Ok(address)
    }

    /// How many nodes' connections there are.
    pub fn connections(&self) -> usize {
        self.shared.connections.lock().values().filter(|one| one.connection.is_some()).count()
    }

    /// Takes no new requests, waits up to `grace` for those under way, says goodbye and closes all
    /// connections.
    pub fn close(&mut self, grace: Duration) {
        let end = Instant::now() + grace;
        self.shared.closing.store(true, Ordering::Release);
        for door in &self.doors {
            door.listener.close();
        }
        let live = |shared: &PeerServerState| -> Vec<Arc<Connection>> {
            shared.connections.lock().values().filter_map(|one| one.connection.clone()).collect()
        };
        while Instant::now() < end && live(&self.shared).iter().any(|one| !one.is_quiet()) {
            std::thread::sleep(Duration::from_millis(2));
        }
        for connection in live(&self.shared) {
            connection.part();
        }
        self.jobs = None;
        // The wires are closed, so whoever reads or writes them ends; only a service that is still
        // busy with a request may take longer, and nobody waits for that.
        let end = end.max(Instant::now() + Duration::from_secs(1));
        let doors = self.doors.drain(..).map(|door| door.thread);
        let readers = std::mem::take(&mut *self.shared.connections.lock());
        let readers = readers.into_values().filter_map(|one| one.thread);
        for thread in doors.chain(readers).chain(self.workers.drain(..)) {
            while !thread.is_finished() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() && thread.join().is_err() {
                tracing::error!("a thread that served other nodes has panicked");
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.jobs.is_some() {
            self.close(Duration::ZERO);
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("me", &self.shared.me).finish_non_exhaustive()
    }
}

impl PeerServerState {
    /// Lets nodes in until the server is closed.
    fn accept(self: &Arc<Self>, door: &dyn Listener, lanes: &Lanes) {
        loop {
            let arrived = door.accept();
            if self.closing.load(Ordering::Acquire) {
                return;
            }
            match arrived {
                Ok(arrival) => self.clone().welcome(arrival, lanes.clone()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(
                        %error,
                        address = %door.address(),
                        "connections of other nodes can't be accepted; it is tried again. Check \
                         the limit of open files"
                    );
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Gives an arrival a thread, if there may be one more.
    fn welcome(self: Arc<Self>, arrival: Box<dyn Arrival>, lanes: Lanes) {
        let id = self.next_connection.fetch_add(1, Ordering::Relaxed);
        let mut connections = self.connections.lock();
        let too_many = connections.len() >= self.limits.connections
            || self.strangers.load(Ordering::Acquire) >= self.limits.strangers;
        if too_many || self.closing.load(Ordering::Acquire) {
            tracing::warn!("a connection of another node is turned away: there are too many");
            return;
        }
        self.strangers.fetch_add(1, Ordering::AcqRel);
        let shared = self.clone();
        let thread = spawn("peer-reader", move || {
            let admitted = shared.admit(id, arrival);
            shared.strangers.fetch_sub(1, Ordering::AcqRel);
            match admitted {
                Ok((connection, source)) => {
                    let ended = connection.serve(&shared, source, &lanes);
                    tracing::debug!(
                        node = connection.who.node,
                        ?ended,
                        "a node's connection ended"
                    );
                    shared.service.connection_ended(&connection.who, id);
                }
                Err(error) => tracing::debug!(%error, "a connection was not let in"),
            }
            shared.connections.lock().remove(&id);
        });
        match thread {
            Ok(thread) => {
                connections.insert(id, ServedConnection { connection: None, thread: Some(thread) });
            }
            Err(error) => {
                self.strangers.fetch_sub(1, Ordering::AcqRel);
                tracing::warn!(
                    %error,
                    "a connection of another node is turned away: there is no thread for it. Raise \
                     the limit of threads"
                );
            }
        }
    }

    fn timeout(&self) -> TimeLimits {
        TimeLimits {
            connect: self.limits.connect,
            handshake: self.limits.handshake,
            stall: self.limits.stall,
        }
    }
}

/// Starts a thread.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(512 << 10);
    builder.spawn(run).map_err(|error| Error::Thread(error.to_string()))
}
