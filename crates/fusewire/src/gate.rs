//! Where the threads that take requests come to rest.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::dispatch::Dispatch;
use crate::handler::Handler;
use crate::session::End;

/// How often a thread without chores looks up.
const IDLE: Duration = Duration::from_secs(1);

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

/// Why a thread ends.
#[derive(Debug)]
pub(crate) enum Leaving {
    /// The gate has dismissed it.
    Dismissed,
    /// The connection has ended, in this way if it is known.
    Ended(Option<End>),
    /// It can't go on; others may.
    Failed(io::Error),
}

impl Gate {
    /// For up to `readers` threads.
    pub fn new(readers: usize, signal: i32) -> Arc<Self> {
        Arc::new(Self {
            closed: AtomicBool::new(false),
            state: Mutex::new(GateState::default()),
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

    /// Closes the gate before anybody has passed it.
    pub fn hold(&self) {
        self.closed.store(true, Ordering::SeqCst);
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

    /// A thread is about to start; it must [`Gate::leave`] in the end.
    pub fn enter(&self) {
        self.state.lock().alive += 1;
    }

    /// Makes the calling thread the one that the signal of `index` wakes.
    pub fn accept_signal(&self, index: usize) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.readers[index].thread.store(thread, Ordering::SeqCst);
        // SAFETY: plain libc calls on a local signal set.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, self.signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        }
    }

    /// Makes a system call that a closing gate interrupts.
    pub fn wait_in<T>(&self, index: usize, call: impl FnOnce() -> T) -> T {
        self.readers[index].reading.store(1, Ordering::SeqCst);
        let result = call();
        self.readers[index].reading.store(0, Ordering::SeqCst);
        result
    }

    /// Whether the threads are to rest.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Rests while the gate is closed. False: the thread shall end.
    pub fn pass(&self) -> bool {
        !self.is_closed() || self.rest(IDLE, || ())
    }

    /// Rests while the gate is closed, and does `chores` now and then. False: the thread shall end.
    pub fn rest(&self, pause: Duration, mut chores: impl FnMut()) -> bool {
        let mut state = self.state.lock();
        state.parked += 1;
        self.changed.notify_all();
        while self.is_closed() && !state.leaving {
            MutexGuard::unlocked(&mut state, &mut chores);
            if self.is_closed() && !state.leaving {
                self.changed.wait_for(&mut state, pause);
            }
        }
        state.parked -= 1;
        !state.leaving
    }

    /// A thread ends. The connection counts as ended when one of them has seen its end, or none is
    /// left; the last one tells the handler, unless they were dismissed.
    pub fn leave_for_good<H: Handler>(&self, why: Leaving, dispatch: &Dispatch<H>) {
        let dismissed = matches!(why, Leaving::Dismissed);
        if matches!(why, Leaving::Ended(_)) {
            dispatch.connection.set_ended();
        }
        let end = match why {
            Leaving::Dismissed => None,
            Leaving::Ended(end) => end.map(Ok),
            Leaving::Failed(error) => Some(Err(error)),
        };
        if self.leave(end) && !dismissed {
            dispatch.connection.set_ended();
            dispatch.destroy_once();
        }
    }

    /// A thread ends. True for the last one.
    pub fn leave(&self, end: Option<io::Result<End>>) -> bool {
        let mut state = self.state.lock();
        state.alive -= 1;
        // What one could not go on for does not count where the others saw an orderly end.
        if state.end.is_none() || matches!((&state.end, &end), (Some(Err(_)), Some(Ok(_)))) {
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
