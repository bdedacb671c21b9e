//! The thread that calls MPI, and what it knows of connections.

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::connection::Connection;
use super::native::{Native, UnderWay};
use crate::error::{Error, Result};
use crate::server::spawn;

/// Messages that wait to be sent, and that are under way in each direction.
const WAITING: usize = 64;
/// Connections of a process.
const CONNECTIONS: usize = 4096;
/// Arrivals that nobody has looked at.
const MAX_HANDSHAKES: usize = 64;
/// How often nothing may be found before the thread sleeps, and then for how long. Few: who spins
/// where others want the processor, too, waits for its turn when something comes.
const SPINS: u32 = 20;
const SLEEPS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(1));

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Asks for a connection to the listener of a number.
    Connect = 1,
    /// It may be used.
    Accept = 2,
    /// Bytes.
    Bytes = 3,
    /// So many bytes were read, and as many more may come.
    Credit = 4,
    /// Nothing more will come.
    Bye = 5,
}

/// Bytes in front of those that a message carries: kind (1), whether it comes from the side that
/// connected (1), 6 of zeros, the connection (8), a number (8); all little-endian.
pub(super) const HEAD: usize = 24;

/// A connection, as one of its sides names it: the other process, the number that the connecting
/// side gave, and whether that was this one.
pub(super) type Key = (u16, u64, bool);

/// A message, ready to be sent.
pub(super) fn message(kind: Kind, key: Key, value: u64, bytes: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEAD + bytes.len());
    message.extend_from_slice(&[kind as u8, u8::from(key.2), 0, 0, 0, 0, 0, 0]);
    message.extend_from_slice(&key.1.to_le_bytes());
    message.extend_from_slice(&value.to_le_bytes());
    message.extend_from_slice(bytes);
    message
}

/// Of which connection a message is, from the view of the one who gets it.
fn decode(rank: u16, message: &[u8]) -> Option<(Kind, Key, u64)> {
    let number = |at: usize| Some(u64::from_le_bytes(message.get(at..at + 8)?.try_into().ok()?));
    let kind = match message.first()? {
        1 => Kind::Connect,
        2 => Kind::Accept,
        3 => Kind::Bytes,
        4 => Kind::Credit,
        5 => Kind::Bye,
        _ => return None,
    };
    let theirs = *message.get(1)? == 1;
    Some((kind, (rank, number(8)?, !theirs), number(16)?))
}

type Message = (u16, Vec<u8>);

/// MPI in this process.
pub(super) struct Engine {
    rank: u16,
    size: u16,
    next: AtomicU64,
    table: Arc<Table>,
    /// To the thread; taken away at the end.
    outgoing: Option<Sender<Message>>,
    /// The thread is to end, whoever still has connections.
    ending: Arc<AtomicBool>,
    ended: Receiver<()>,
}

/// What is known of connections.
#[derive(Default)]
struct Table {
    connections: Mutex<HashMap<Key, Arc<Connection>>>,
    doors: Mutex<HashMap<u16, Sender<Arc<Connection>>>>,
}

impl Engine {
    /// The engine of this process, started if there is none.
    pub fn get() -> Result<Arc<Engine>> {
        /// MPI can be initialized once.
        static ONE: Mutex<Option<Weak<Engine>>> = Mutex::new(None);
        let mut one = ONE.lock();
        match &*one {
            Some(known) => known.upgrade().ok_or_else(|| {
                Error::Settings("mpi:// was closed, and can't be opened again in a process".into())
            }),
            None => {
                let engine = Arc::new(Engine::start()?);
                *one = Some(Arc::downgrade(&engine));
                Ok(engine)
            }
        }
    }

    fn start() -> Result<Engine> {
        let (outgoing, messages) = bounded(WAITING);
        let (started, starts) = bounded(1);
        let (end, ended) = bounded(0);
        let table = Arc::new(Table::default());
        let known = table.clone();
        let ending = Arc::new(AtomicBool::new(false));
        let ends = ending.clone();
        // What it answers to connections that nobody knows goes the same way as the rest.
        spawn("peer-mpi", move || {
            let native =
                match Native::start().and_then(|native| Ok((native.rank_and_size()?, native))) {
                    Ok((place, native)) => {
                        let _ = started.send(Ok(place));
                        native
                    }
                    Err(error) => return drop(started.send(Err(error))),
                };
            let mut turn = Turn::default();
            if let Err(error) = turn.run(&native, &messages, &known, &ends) {
                tracing::error!(%error, "MPI has failed, other nodes can't be reached any more");
            }
            known.connections.lock().drain().for_each(|(_, connection)| connection.lost());
            native.finalize();
            // Whoever waits for the end notices that this is gone.
            drop(end);
        })?;
        let place = starts.recv().map_err(|_| Error::Settings("MPI does not start".into()))?;
        let (rank, size) = place?;
        let outgoing = Some(outgoing);
        Ok(Engine { rank, size, next: AtomicU64::new(1), table, outgoing, ending, ended })
    }

    pub fn rank(&self) -> u16 {
        self.rank
    }

    pub fn size(&self) -> u16 {
        self.size
    }

    /// A number for a connection that this process begins.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Gives a message to the thread.
    pub fn send(&self, rank: u16, message: Vec<u8>) -> io::Result<()> {
        let outgoing = self.outgoing.as_ref().ok_or(ErrorKind::BrokenPipe)?;
        // Longer than any timeout: who waits so long finds out by itself that nothing moves.
        let sent = outgoing.send_timeout((rank, message), Duration::from_secs(60));
        sent.map_err(|_| ErrorKind::BrokenPipe.into())
    }

    /// Lets messages for a connection come.
    pub fn enter(&self, key: Key, connection: Arc<Connection>) {
        self.table.connections.lock().insert(key, connection);
    }

    pub fn leave(&self, key: Key) {
        self.table.connections.lock().remove(&key);
    }

    /// Takes those who connect to `port`, or to any free number if it is 0.
    pub fn open(&self, port: u16) -> io::Result<(u16, Receiver<Arc<Connection>>)> {
        let mut doors = self.table.doors.lock();
        let port = match port {
            0 => (1..=u16::MAX).find(|port| !doors.contains_key(port)),
            port => Some(port).filter(|port| !doors.contains_key(port)),
        };
        let port = port.ok_or(ErrorKind::AddrInUse)?;
        let (to, arrivals) = bounded(MAX_HANDSHAKES);
        doors.insert(port, to);
        Ok((port, arrivals))
    }

    pub fn shut(&self, port: u16) {
        self.table.doors.lock().remove(&port);
    }

    /// Ends MPI in this process. Before a process of a job may end it must have done that, or the job
    /// is taken for failed.
    pub fn end(&self) {
        self.ending.store(true, Ordering::Release);
        // The job's processes end together; one that does not is not waited for here.
        let _ = self.ended.recv_timeout(Duration::from_secs(30));
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.outgoing = None;
        self.end();
    }
}

/// What the thread has in hand.
#[derive(Default)]
struct Turn {
    sending: VecDeque<UnderWay>,
    receiving: VecDeque<UnderWay>,
    /// Answers of the thread itself.
    own: VecDeque<Message>,
}

impl Turn {
    /// Moves messages until nobody can give any, and all are sent.
    fn run(
        &mut self,
        native: &Native,
        messages: &Receiver<Message>,
        table: &Table,
        ending: &AtomicBool,
    ) -> Result<()> {
        let (mut quiet, mut open) = (0_u32, true);
        while open || !self.sending.is_empty() || !self.own.is_empty() {
            open &= !ending.load(Ordering::Acquire);
            let mut moved = self.receive(native, table)?;
            while self.sending.len() < WAITING
                && let Some((rank, message)) = self.own.pop_front()
            {
                self.sending.push_back(native.send(rank, message)?);
            }
            while self.sending.len() < WAITING {
                match messages.try_recv() {
                    Ok((rank, message)) => self.sending.push_back(native.send(rank, message)?),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        open = false;
                        break;
                    }
                }
                moved = true;
            }
            moved |= self.finish_sending(native)?;
            quiet = if moved { 0 } else { quiet.saturating_add(1) };
            if quiet > SPINS && open && self.sending.len() < WAITING {
                let doubled = SLEEPS.0.saturating_mul(1 << (quiet - SPINS).min(8));
                match messages.recv_timeout(doubled.min(SLEEPS.1)) {
                    Ok((rank, message)) => {
                        self.sending.push_back(native.send(rank, message)?);
                        quiet = 0;
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => open = false,
                }
            } else {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    fn finish_sending(&mut self, native: &Native) -> Result<bool> {
        let before = self.sending.len();
        let mut failed = None;
        self.sending.retain_mut(|one| match native.is_done(one) {
            Ok(done) => !done,
            Err(error) => {
                failed = Some(error);
                true
            }
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(self.sending.len() < before),
        }
    }

    /// Takes messages that have come, those of one process in their order.
    fn receive(&mut self, native: &Native, table: &Table) -> Result<bool> {
        let mut moved = false;
        while self.receiving.len() < WAITING
            && let Some(one) = native.receive()?
        {
            self.receiving.push_back(one);
            moved = true;
        }
        let mut waits: Vec<u16> = Vec::new();
        let mut at = 0;
        while at < self.receiving.len() {
            let one = &mut self.receiving[at];
            let behind = waits.contains(&one.rank);
            if behind || !native.is_done(one)? {
                waits.push(one.rank);
                at += 1;
                continue;
            }
            if let Some(UnderWay { rank, bytes, .. }) = self.receiving.remove(at) {
                self.take(rank, bytes, table);
                moved = true;
            }
        }
        Ok(moved)
    }

    fn take(&mut self, rank: u16, bytes: Vec<u8>, table: &Table) {
        let Some((kind, key, value)) = decode(rank, &bytes) else { return };
        let known = table.connections.lock().get(&key).cloned();
        match (known, kind) {
            (Some(connection), kind) => connection.take(kind, value, bytes),
            (None, Kind::Connect) if self.let_in(key, value, table) => {}
            (None, Kind::Connect | Kind::Bytes) => {
                self.own.push_back((rank, message(Kind::Bye, key, 0, &[])));
            }
            (None, _) => {}
        }
    }

    fn let_in(&self, key: Key, port: u64, table: &Table) -> bool {
        let door = u16::try_from(port).ok().and_then(|port| table.doors.lock().get(&port).cloned());
        let Some(door) = door else { return false };
        let mut connections = table.connections.lock();
        if connections.len() >= CONNECTIONS {
            return false;
        }
        let connection = Arc::new(Connection::new(key));
        let let_in = door.try_send(connection.clone()).is_ok();
        if let_in {
            connections.insert(key, connection);
        }
        let_in
    }
}
