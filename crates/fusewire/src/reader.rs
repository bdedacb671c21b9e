//! The readers: threads that take requests from the device, and how they come to rest.

use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::abi::{self, Wire, opcode};
use crate::buffer::Buffer;
use crate::connection::{Connection, REQUEST_START, SMALL};
use crate::handler::Handler;
use crate::inflight::Interrupted;
use crate::operation::{Arguments, fixed_size};
use crate::reply::Reply;
use crate::request::Request;
use crate::session::End;

/// How long a reader waits for a buffer before it looks whether it shall park.
const BUFFER_PATIENCE: Duration = Duration::from_millis(20);

/// Where the readers wait when they are to rest.
pub(crate) struct Gate {
    closed: AtomicBool,
    state: Mutex<GateState>,
    changed: Condvar,
    readers: Vec<ReaderState>,
    signal: i32,
}

#[derive(Default)]
struct GateState {
    alive: usize,
    parked: usize,
    leaving: bool,
    end: Option<io::Result<End>>,
}

/// What the parking thread must know to wake a reader out of read(2).
#[derive(Default)]
struct ReaderState {
    thread: AtomicI32,
    reading: AtomicU8,
}

impl Gate {
    pub fn new(readers: usize, signal: i32) -> Arc<Self> {
        Arc::new(Self {
            closed: AtomicBool::new(false),
            state: Mutex::new(GateState { alive: readers, ..GateState::default() }),
            changed: Condvar::new(),
            readers: (0..readers).map(|_| ReaderState::default()).collect(),
            signal,
        })
    }

    /// Closes the gate and waits until every reader rests at it; `Err` with the number of those
    /// that do not, and the gate open again, after `limit`.
    pub fn close(&self, limit: Duration) -> Result<(), usize> {
        let deadline = Instant::now() + limit;
        self.closed.store(true, Ordering::SeqCst);
        let mut pause = Duration::from_micros(100);
        let mut state = self.state.lock();
        while state.parked < state.alive {
            if Instant::now() >= deadline {
                let busy = state.alive - state.parked;
                drop(state);
                self.open();
                return Err(busy);
            }
            // Repeated, since a signal that comes between a reader's last look at the gate and
            // its read(2) is lost.
            self.signal_readers();
            self.changed.wait_for(&mut state, pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        Ok(())
    }

    fn signal_readers(&self) {
        for reader in &self.readers {
            if reader.reading.load(Ordering::SeqCst) == 1 {
                let thread = reader.thread.load(Ordering::SeqCst);
                // SAFETY: no memory is involved; the signal has an empty handler.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, self.signal) };
            }
        }
    }

    pub fn open(&self) {
        let _state = self.state.lock();
        self.closed.store(false, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// Lets parked readers end instead of going on.
    pub fn dismiss(&self) {
        let mut state = self.state.lock();
        state.leaving = true;
        state.end = Some(Ok(End::Released));
        self.changed.notify_all();
    }

    /// Rests while the gate is closed. False: the reader shall end.
    fn pass(&self) -> bool {
        if !self.closed.load(Ordering::SeqCst) {
            return true;
        }
        let mut state = self.state.lock();
        state.parked += 1;
        self.changed.notify_all();
        while self.closed.load(Ordering::SeqCst) && !state.leaving {
            self.changed.wait(&mut state);
        }
        state.parked -= 1;
        !state.leaving
    }

    /// A reader ends. True for the last one.
    fn leave(&self, end: Option<io::Result<End>>) -> bool {
        let mut state = self.state.lock();
        state.alive -= 1;
        if state.end.is_none() {
            state.end = end;
        }
        self.changed.notify_all();
        state.alive == 0
    }

    /// Why the session ended, once all readers have.
    pub fn take_end(&self) -> io::Result<End> {
        let mut state = self.state.lock();
        match &state.end {
            Some(Err(_)) => state.end.replace(Ok(End::Aborted)).expect("just seen"),
            Some(Ok(end)) => Ok(*end),
            None => Ok(End::Unmounted),
        }
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("closed", &self.closed).finish_non_exhaustive()
    }
}

/// Installs the empty handler, without SA_RESTART, that makes the signal interrupt read(2).
pub(crate) fn install_signal(signal: i32) -> io::Result<()> {
    extern "C" fn ignore(_: i32) {}
    // SAFETY: a zeroed sigaction is valid; the handler does nothing, so it is
    // async-signal-safe.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(i32) as usize;
        libc::sigaction(signal, &action, std::ptr::null_mut())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What one reader thread works with.
pub(crate) struct Reader<H> {
    pub handler: Arc<H>,
    pub connection: Connection,
    pub gate: Arc<Gate>,
    pub index: usize,
    /// Large buffers in use at most, those that readers wait with included.
    pub buffer_limit: usize,
    /// Set by whoever called [`Handler::destroy`].
    pub destroyed: Arc<AtomicBool>,
}

impl<H: Handler> Reader<H> {
    /// Serves until the file system is gone or the gate dismisses.
    pub fn run(self) {
        self.accept_signal();
        let end = self.serve_all();
        let dismissed = end.is_none();
        if !dismissed {
            self.connection.set_ended();
        }
        if self.gate.leave(end) && !dismissed {
            self.destroy_once();
        }
    }

    fn accept_signal(&self) {
        let state = &self.gate.readers[self.index];
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        state.thread.store(thread, Ordering::SeqCst);
        // SAFETY: plain libc calls on a local signal set.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, self.gate.signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        }
    }

    /// Why it ended; `None` when dismissed.
    fn serve_all(&self) -> Option<io::Result<End>> {
        let state = &self.gate.readers[self.index];
        let mut kept: Option<Buffer> = None;
        loop {
            if !self.gate.pass() {
                return None;
            }
            // Before reading: with a request in hand there is no way back.
            let pool = self.connection.large_pool();
            let Some(mut buffer) =
                kept.take().or_else(|| pool.take_within(self.buffer_limit, BUFFER_PATIENCE))
            else {
                continue;
            };
            buffer = buffer.starting_at(REQUEST_START);
            state.reading.store(1, Ordering::SeqCst);
            let read = rustix::io::read(&self.connection, &mut buffer[..]);
            state.reading.store(0, Ordering::SeqCst);
            match read {
                Ok(0) | Err(Errno::NODEV | Errno::NOTCONN | Errno::CONNRESET) => {
                    return Some(Ok(End::Unmounted));
                }
                Err(Errno::CONNABORTED) => return Some(Ok(End::Aborted)),
                Ok(length) => kept = self.serve(buffer, length),
                // ENOENT: the request was aborted while it was being read.
                Err(Errno::INTR | Errno::NOENT) => kept = Some(buffer),
                Err(Errno::AGAIN) => {
                    kept = Some(buffer);
                    self.wait_readable();
                }
                Err(error) => {
                    tracing::error!(%error, "reading requests failed");
                    return Some(Err(error.into()));
                }
            }
        }
    }

    /// Waits for a request (or a signal): the descriptor is in non-blocking mode.
    fn wait_readable(&self) {
        let device = self.connection.as_fd();
        let state = &self.gate.readers[self.index];
        state.reading.store(1, Ordering::SeqCst);
        // Any outcome leads to another read, which tells.
        let _ = poll(&mut [PollFd::new(&device, PollFlags::IN)], None);
        state.reading.store(0, Ordering::SeqCst);
    }

    /// Serves one request. Returns the buffer if it is not needed any longer.
    fn serve(&self, buffer: Buffer, length: usize) -> Option<Buffer> {
        let bytes = &buffer[..length];
        let Some(header) = abi::InHeader::read(bytes) else {
            tracing::error!(length, "a request without a whole header was ignored");
            return Some(buffer);
        };
        let body = &bytes[size_of::<abi::InHeader>()..];
        match header.opcode {
            opcode::FORGET | opcode::BATCH_FORGET => self.forget(&header, body),
            opcode::INTERRUPT => self.interrupt(&header, body),
            opcode::DESTROY => {
                self.guard(|| self.destroy_once());
                Reply::new(self.connection.clone(), header.unique).ok();
            }
            opcode::INIT => Reply::new(self.connection.clone(), header.unique).error(libc::EPROTO),
            opcode::NOTIFY_REPLY => {
                return self
                    .dispatch(buffer, length, |connection| Reply::mute(connection, header.unique));
            }
            _ => {
                self.connection.in_flight_table().register(header.unique);
                return self
                    .dispatch(buffer, length, |connection| Reply::new(connection, header.unique));
            }
        }
        Some(buffer)
    }

    fn dispatch(
        &self,
        buffer: Buffer,
        length: usize,
        reply: impl FnOnce(Connection) -> Reply,
    ) -> Option<Buffer> {
        let (owned, kept) = if length <= SMALL {
            let mut small = self.connection.small_pool().take();
            small[..length].copy_from_slice(&buffer[..length]);
            (small, Some(buffer))
        } else {
            (buffer, None)
        };
        let reply = reply(self.connection.clone());
        match Request::new(owned, length, self.connection.clone()) {
            Some(request) => self.guard(|| self.handler.handle(request, reply)),
            None => reply.error(libc::EIO),
        }
        kept
    }

    fn forget(&self, header: &abi::InHeader, body: &[u8]) {
        let drop_lookups = |node, lookups| self.guard(|| self.handler.forget(node, lookups));
        let decoded = Arguments::split(header.opcode, body, false).and_then(|mut arguments| {
            if header.opcode == opcode::FORGET {
                let abi::ForgetIn { nlookup } = arguments.fixed()?;
                drop_lookups(header.nodeid, nlookup);
                return Ok(());
            }
            let abi::BatchForgetIn { count, .. } = arguments.fixed()?;
            let one = size_of::<abi::ForgetOne>();
            let list = arguments.bytes(u64::from(count) * one as u64)?;
            for forget in list.chunks_exact(one).filter_map(abi::ForgetOne::read) {
                drop_lookups(forget.nodeid, forget.nlookup);
            }
            Ok(())
        });
        if let Err(error) = decoded {
            tracing::error!(%error, "a FORGET was ignored");
        }
    }

    fn interrupt(&self, header: &abi::InHeader, body: &[u8]) {
        debug_assert_eq!(fixed_size(opcode::INTERRUPT, false), size_of::<abi::InterruptIn>());
        let Some(abi::InterruptIn { unique }) = abi::InterruptIn::read(body) else { return };
        match self.connection.in_flight_table().interrupt(unique) {
            Interrupted::Marked => self.guard(|| self.handler.interrupt(unique)),
            Interrupted::Retry => {
                // The thread that has the request may be waiting for this CPU.
                std::thread::yield_now();
                // Fails with ENOENT when the request was answered meanwhile, as it should.
                let _ = self.connection.send(header.unique, -libc::EAGAIN, &[]);
            }
            Interrupted::GiveUp => {}
        }
    }

    fn destroy_once(&self) {
        if !self.destroyed.swap(true, Ordering::SeqCst) {
            self.guard(|| self.handler.destroy());
        }
    }

    /// Keeps a panic of the handler from ending the reader; a reply it held answers EIO.
    fn guard(&self, call: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(call)).is_err() {
            tracing::error!("the handler panicked; its request fails with EIO");
        }
    }
}
