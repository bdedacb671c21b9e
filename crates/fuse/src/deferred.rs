//! Requests that wait for slow devices, and the watch over them.
//!
//! A request that was handed to the slow pool is answered by whoever comes first: the thread that
//! does the work; the watch, when the time limit has passed (`EIO`: the store hangs); or a signal
//! that kills the client (`EINTR`). The thread is left to finish; a request with which no thread has
//! gone on yet when it is given up does nothing any more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use fusewire::{Header, Reply};
use parking_lot::{Condvar, Mutex};

use crate::fiber::{Refusal, Verdict};
use crate::turn::{UnderWay, Wait};

/// How often the watch looks while anything is deferred.
const TICK: Duration = Duration::from_millis(250);
/// A client that was hit by a signal it handles itself gets `EINTR` only after this: programs do
/// not expect it from file systems, and timers and profilers send signals all the time.
const HANDLED_SIGNAL: Duration = Duration::from_secs(5);
/// How many times longer an operation may take whose work grows with a file or a directory.
const LONG: u32 = 20;

/// An operation that the slow store keeps waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// Number of the operation in the protocol ([`fusewire::opcode`]).
    pub opcode: u32,
    /// The inode concerned; for operations on names, the directory.
    pub ino: u64,
    /// The process that asked for it.
    pub pid: u32,
    /// For how long it has been waiting.
    pub waiting: Duration,
    /// Whether its client was told `EIO` or `EINTR` already.
    pub given_up: bool,
    /// Whether it holds up one of the threads that read requests, which never wait for the backing
    /// store: then it is a tier that does not answer.
    pub holds_reader: bool,
}

/// A request that waits, or goes on in the slow pool.
pub struct Deferred {
    header: Header,
    since: Instant,
    limit: Duration,
    abandonable: bool,
    signalled: AtomicBool,
    paused: Mutex<Option<UnderWay>>,
    /// A thread goes on with it. Set with the reply locked.
    goes_on: AtomicBool,
    reply: Mutex<Option<Reply>>,
    on_give_up: OnGiveUp,
}

impl Deferred {
    /// The request, once, for the thread that goes on with it, and whether it is still wanted.
    pub fn begin(&self) -> Option<(UnderWay, Verdict)> {
        let reply = self.reply.lock();
        let paused = self.paused.lock().take()?;
        self.goes_on.store(true, Ordering::Release);
        Some((paused, reply.as_ref().map(drop).ok_or(Refusal::GivenUp)))
    }

    /// The right to answer; `None` if somebody else has answered.
    pub fn reply(&self) -> Option<Reply> {
        self.reply.lock().take()
    }

    fn give_up(&self, errno: i32) -> bool {
        let mut slot = self.reply.lock();
        let Some(reply) = slot.take() else { return false };
        // One that goes on hears that it is not wanted before its program hears that it failed; the
        // other one when a thread has come to it.
        if self.goes_on.load(Ordering::Acquire) {
            (self.on_give_up)(&self.header);
        }
        drop(slot);
        reply.error(errno);
        true
    }

    /// Answers when it is time; says whether the time limit was the reason.
    fn check(&self) -> bool {
        let waiting = self.since.elapsed();
        if self.signalled.load(Ordering::Acquire) && waiting >= HANDLED_SIGNAL {
            self.give_up(libc::EINTR);
            false
        } else if waiting >= self.limit && self.give_up(libc::EIO) {
            let Header { opcode, node, pid, .. } = self.header;
            tracing::warn!(
                opcode,
                node,
                pid,
                seconds = waiting.as_secs(),
                "the backing store does not answer: check it, or raise --backing-timeout"
            );
            true
        } else {
            false
        }
    }

    fn signal(&self) {
        if !self.abandonable {
            return;
        }
        if is_being_killed(self.header.pid) {
            self.give_up(libc::EINTR);
        } else {
            self.signalled.store(true, Ordering::Release);
        }
    }
}

/// Hears of a request that is given up while a thread is at it.
type OnGiveUp = Arc<dyn Fn(&Header) + Send + Sync>;

/// Hears of a request that was given up, and how long it had waited.
type OnTimeout = Box<dyn Fn(&Header, Duration) + Send + Sync>;

/// The watch over all deferred requests of a mount. Their number is bounded by the slow pool.
pub struct Watch {
    limit: Duration,
    on_give_up: OnGiveUp,
    on_timeout: OnTimeout,
    deferred: Mutex<HashMap<u64, Arc<Deferred>>>,
    next: AtomicU64,
    wake: Condvar,
}

/// A request's place under the watch; ends with the work.
pub struct Watched {
    watch: Arc<Watch>,
    number: u64,
    /// The request.
    pub deferred: Arc<Deferred>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watch.deferred.lock().remove(&self.number);
    }
}

impl Watch {
    /// A watch that gives ordinary operations `limit` and tells `on_timeout` of each that it gave
    /// up, and how long it had waited; `on_give_up` hears before the program of each that goes on.
    /// Its thread ends with it.
    pub fn new(
        limit: Duration,
        on_give_up: impl Fn(&Header) + Send + Sync + 'static,
        on_timeout: impl Fn(&Header, Duration) + Send + Sync + 'static,
    ) -> std::io::Result<Arc<Self>> {
        let watch = Arc::new(Watch {
            limit,
            on_give_up: Arc::new(on_give_up),
            on_timeout: Box::new(on_timeout),
            deferred: Mutex::default(),
            next: AtomicU64::new(0),
            wake: Condvar::new(),
        });
        let weak = Arc::downgrade(&watch);
        thread::Builder::new().name("fuse-watch".into()).spawn(move || keep(&weak))?;
        Ok(watch)
    }

    /// Enters a request.
    pub fn enter(
        self: &Arc<Self>,
        header: Header,
        Wait { limits, interrupt, .. }: Wait,
        paused: UnderWay,
        reply: Reply,
    ) -> Watched {
        let deferred = Arc::new(Deferred {
            header,
            since: Instant::now(),
            limit: if limits.long { self.limit * LONG } else { self.limit },
            abandonable: limits.abandonable,
            signalled: AtomicBool::new(false),
            paused: Mutex::new(Some(paused)),
            goes_on: AtomicBool::new(false),
            reply: Mutex::new(Some(reply)),
            on_give_up: Arc::clone(&self.on_give_up),
        });
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.deferred.lock().insert(number, Arc::clone(&deferred));
        self.wake.notify_one();
        // The signal may have come before the request could be found here.
        if interrupt.is_set() {
            deferred.signal();
        }
        Watched { watch: Arc::clone(self), number, deferred }
    }

    /// The client of a request was hit by a signal.
    pub fn interrupt(&self, unique: u64) {
        let all = self.deferred.lock();
        let found = all.values().find(|deferred| deferred.header.unique == unique).cloned();
        drop(all);
        if let Some(deferred) = found {
            deferred.signal();
        }
    }

    /// What has been waiting for longer than `least`.
    pub fn stuck(&self, least: Duration) -> Vec<Stuck> {
        let all: Vec<_> = self.deferred.lock().values().cloned().collect();
        all.iter()
            .map(|deferred| Stuck {
                opcode: deferred.header.opcode,
                ino: deferred.header.node,
                pid: deferred.header.pid,
                waiting: deferred.since.elapsed(),
                given_up: deferred.reply.lock().is_none(),
                holds_reader: false,
            })
            .filter(|stuck| stuck.waiting >= least)
            .collect()
    }
}

fn keep(watch: &Weak<Watch>) {
    while let Some(watch) = watch.upgrade() {
        let mut deferred = watch.deferred.lock();
        if deferred.is_empty() {
            // Wakes now and then to see whether the watch is still wanted.
            watch.wake.wait_for(&mut deferred, Duration::from_secs(1));
        }
        let all: Vec<_> = deferred.values().cloned().collect();
        drop(deferred);
        for deferred in &all {
            if deferred.check() {
                (watch.on_timeout)(&deferred.header, deferred.since.elapsed());
            }
        }
        drop((all, watch));
        thread::sleep(TICK);
    }
}

/// Whether a thread has a deadly signal before it. The kernel turns every signal that is going to
/// end a process (but not those that dump core) into `SIGKILL` for each of its threads.
fn is_being_killed(pid: u32) -> bool {
    const SIGKILL_BIT: u64 = 1 << (libc::SIGKILL - 1);
    if pid == 0 {
        return false;
    }
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return false;
    };
    let pending = status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")))
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    pending.fold(0, |all, mask| all | mask) & SIGKILL_BIT != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn killed_when_no_signal_is_pending_then_false() {
        assert!(!is_being_killed(std::process::id()));
        assert!(!is_being_killed(0));
        assert!(!is_being_killed(u32::MAX));
    }

    #[test]
    fn watch_when_dropped_then_its_thread_ends() {
        let watch = Watch::new(Duration::from_secs(1), |_| {}, |_, _| {}).expect("a thread");
        assert!(watch.stuck(Duration::ZERO).is_empty());
        let weak = Arc::downgrade(&watch);
        drop(watch);
        let begin = Instant::now();
        while weak.strong_count() > 0 && begin.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(weak.strong_count(), 0);
    }
}
