//! One side of a connection over MPI.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read};
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use super::super::socket::stalled;
use super::super::{Closer, Sink, Source, TimeLimits, Wire};
use super::engine::{Engine, HEAD, Key, Kind, message};

/// Bytes of one message.
const CHUNK: usize = 256 << 10;
/// Bytes that may be under way, or received and not read.
const WINDOW: usize = 4 << 20;

/// What is under way.
pub(super) struct Connection {
    key: Key,
    state: Mutex<State>,
    /// Bytes have come, or none will come any more.
    readable: Condvar,
    /// The other side accepted or has read something, or nothing can be sent any more.
    writable: Condvar,
}

struct State {
    accepted: bool,
    /// The other side said that nothing more will come.
    ended: bool,
    /// Closed on this side.
    closed: bool,
    /// Messages that were not read yet; of the first one the bytes before `at` are done.
    ready: VecDeque<Vec<u8>>,
    at: usize,
    /// Bytes that were read, which the other side was not told of.
    untold: usize,
    /// Bytes that the other side has room for.
    room: usize,
    /// When something came last.
    progress: Instant,
}

impl Connection {
    pub fn new(key: Key) -> Connection {
        let state = State {
            accepted: false,
            ended: false,
            closed: false,
            ready: VecDeque::new(),
            at: HEAD,
            untold: 0,
            room: WINDOW,
            progress: Instant::now(),
        };
        let (readable, writable) = (Condvar::new(), Condvar::new());
        Connection { key, state: Mutex::new(state), readable, writable }
    }

    /// Takes a message from the engine's thread, which waits for nobody.
    pub fn take(&self, kind: Kind, value: u64, message: Vec<u8>) {
        let mut state = self.state.lock();
        state.progress = Instant::now();
        match kind {
            Kind::Connect => {}
            Kind::Accept => state.accepted = true,
            Kind::Bytes if state.closed => {}
            Kind::Bytes => state.ready.push_back(message),
            Kind::Credit => {
                let more = usize::try_from(value).unwrap_or(WINDOW);
                state.room = state.room.saturating_add(more).min(WINDOW);
            }
            Kind::Bye => state.ended = true,
        }
        self.readable.notify_all();
        self.writable.notify_all();
    }

    /// There is no MPI any more.
    pub fn lost(&self) {
        self.state.lock().ended = true;
        self.readable.notify_all();
        self.writable.notify_all();
    }
}

/// This side's hold of a connection.
#[derive(Clone)]
pub(super) struct End {
    engine: Arc<Engine>,
    connection: Arc<Connection>,
}

impl End {
    pub fn new(engine: Arc<Engine>, connection: Arc<Connection>) -> End {
        End { engine, connection }
    }

    /// Connects to the listener `port` of a process.
    pub fn handshake(
        engine: &Arc<Engine>,
        rank: u16,
        port: u16,
        timeout: TimeLimits,
    ) -> io::Result<End> {
        let key = (rank, engine.number(), true);
        let end = End::new(engine.clone(), Arc::new(Connection::new(key)));
        engine.enter(key, end.connection.clone());
        let shook_hands = end.try_handshake(port, timeout);
        if shook_hands.is_err() {
            end.close();
        }
        shook_hands.map(|()| end)
    }

    fn try_handshake(&self, port: u16, timeout: TimeLimits) -> io::Result<()> {
        self.say(Kind::Connect, port.into())?;
        let until = Instant::now() + timeout.connect;
        let mut state = self.connection.state.lock();
        loop {
            if state.accepted {
                return Ok(());
            }
            if state.ended {
                return Err(ErrorKind::ConnectionRefused.into());
            }
            if self.connection.writable.wait_until(&mut state, until).timed_out() {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }

    /// Lets the other side use the connection.
    pub fn accept(&self) -> io::Result<()> {
        self.connection.state.lock().accepted = true;
        self.say(Kind::Accept, 0)
    }

    /// The two directions, for those who send and receive frames.
    pub fn wire(self, timeout: TimeLimits) -> Wire {
        let out = message(Kind::Bytes, self.connection.key, 0, &[]);
        let source = MpiSource { end: self.clone(), timeout: timeout.stall };
        let sink = MpiSink { end: self.clone(), out, timeout: timeout.stall };
        Wire { source: Box::new(source), sink: Box::new(sink), closer: Arc::new(self) }
    }

    fn say(&self, kind: Kind, value: u64) -> io::Result<()> {
        let key = self.connection.key;
        self.engine.send(key.0, message(kind, key, value, &[]))
    }
}

impl Closer for End {
    fn close(&self) {
        let told = {
            let mut state = self.connection.state.lock();
            std::mem::replace(&mut state.closed, true) || state.ended
        };
        self.connection.readable.notify_all();
        self.connection.writable.notify_all();
        self.engine.leave(self.connection.key);
        if !told {
            // If that fails, MPI is gone, and the other side has noticed.
            let _ = self.say(Kind::Bye, 0);
        }
    }
}

struct MpiSource {
    end: End,
    timeout: Duration,
}

impl MpiSource {
    /// Waits until there is something to read; `None` at the end.
    fn wait(&self) -> io::Result<Option<MutexGuard<'_, State>>> {
        let begun = Instant::now();
        let mut state = self.end.connection.state.lock();
        loop {
            if state.closed {
                return Err(ErrorKind::ConnectionAborted.into());
            }
            if !state.ready.is_empty() {
                return Ok(Some(state));
            }
            if state.ended {
                return Ok(None);
            }
            let until = begun + self.timeout;
            if Instant::now() >= until {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.end.connection.readable.wait_until(&mut state, until);
        }
    }
}

impl Read for MpiSource {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let Some(mut state) = self.wait()? else { return Ok(0) };
        let mut done = 0;
        while done < buffer.len()
            && let Some(message) = state.ready.front()
        {
            let rest = &message[state.at..];
            let len = rest.len().min(buffer.len() - done);
            buffer[done..done + len].copy_from_slice(&rest[..len]);
            let all = len == rest.len();
            done += len;
            state.at += len;
            if all {
                state.ready.pop_front();
                state.at = HEAD;
            }
        }
        state.untold += done;
        // Told in large parts, so that not every read costs a message.
        if state.untold >= WINDOW / 4 {
            let read = std::mem::take(&mut state.untold) as u64;
            drop(state);
            self.end.say(Kind::Credit, read)?;
        }
        Ok(done)
    }
}

impl Source for MpiSource {
    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.timeout = timeout;
        Ok(())
    }
}

/// What goes out: messages that begin anywhere in a frame, and end with it at the latest.
struct MpiSink {
    end: End,
    /// The next message, its head in front.
    out: Vec<u8>,
    timeout: Duration,
}

impl MpiSink {
    fn flush(&mut self) -> io::Result<()> {
        let len = self.out.len() - HEAD;
        if len == 0 {
            return Ok(());
        }
        let connection = &self.end.connection;
        let (begun, key) = (Instant::now(), connection.key);
        let mut state = connection.state.lock();
        loop {
            if state.ended || state.closed {
                return Err(ErrorKind::BrokenPipe.into());
            }
            if state.room >= len {
                break;
            }
            let until = state.progress.max(begun) + self.timeout;
            if Instant::now() >= until {
                return Err(stalled());
            }
            connection.writable.wait_until(&mut state, until);
        }
        state.room -= len;
        drop(state);
        let out = std::mem::replace(&mut self.out, message(Kind::Bytes, key, 0, &[]));
        self.end.engine.send(key.0, out)
    }
}

impl Sink for MpiSink {
    fn send(&mut self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        for part in parts {
            let mut rest = &part[..];
            while !rest.is_empty() {
                if self.out.len() == HEAD + CHUNK {
                    self.flush()?;
                }
                let room = HEAD + CHUNK - self.out.len();
                let (now, later) = rest.split_at(rest.len().min(room));
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
