//! Requests that were read and not yet answered, and which of them were interrupted.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::abi::UNIQUE_RESEND;
use crate::connection::Connection;

const SHARDS: usize = 16;
/// Targets of interrupts that came too early which are remembered.
const EARLY_TARGETS: usize = 1024;
/// How often one of them is sent back to the kernel before it is given up.
const EARLY_RETRIES: u32 = 1000;
/// How long one is remembered: by then its request was taken, or answered before.
const EARLY_AGE: Duration = Duration::from_secs(10);

/// One entry per request in flight, so its size is bounded by what the kernel has in flight.
#[derive(Default)]
pub(crate) struct InFlight {
    shards: [Mutex<HashMap<u64, InFlightRequest>>; SHARDS],
    /// Locked below a shard.
    early: Mutex<VecDeque<Early>>,
    /// Whether there is an early target. Changed with `early` locked, set with the target's shard too.
    has_early: AtomicBool,
}

/// The target of an interrupt that came too early.
struct Early {
    target: u64,
    tries: u32,
    since: Instant,
}

/// A request that was read and not answered yet.
struct InFlightRequest {
    /// The number by which the handler knows the request: with the mark of one that comes again, which
    /// an INTERRUPT of it has or has not.
    given: u64,
    interrupted: bool,
}

/// What to do about an INTERRUPT.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// The request is marked; the handler knows it by this number.
    Marked(u64),
    /// Its request is not known: answered already, or taken by another thread that has not
    /// registered it yet, and finds the mark when it does. The kernel shall send the interrupt again,
    /// if the request still exists. (Of a request that came by a ring it will not: it looks for it
    /// among those that were read from the device.)
    Retry,
    /// Sent back too often: whoever has the request is not this process.
    GiveUp,
}

/// The number of a request when it came first.
fn first(unique: u64) -> u64 {
    unique & !UNIQUE_RESEND
}

impl InFlight {
    fn shard(&self, unique: u64) -> &Mutex<HashMap<u64, InFlightRequest>> {
        // The kernel counts uniques up by 2.
        &self.shards[(first(unique) >> 1) as usize % SHARDS]
    }

    /// A request is about to be given to the handler, by this number.
    pub fn register(&self, given: u64) {
        let mut shard = self.shard(given).lock();
        let interrupted = self.has_early.load(Ordering::Acquire) && self.take_early(first(given));
        shard.insert(first(given), InFlightRequest { given, interrupted });
    }

    /// Whether an interrupt of this request came before it.
    fn take_early(&self, unique: u64) -> bool {
        let mut early = self.early.lock();
        while early.front().is_some_and(|early| early.since.elapsed() > EARLY_AGE) {
            early.pop_front();
        }
        let at = early.iter().position(|early| early.target == unique);
        let found = at.and_then(|at| early.remove(at)).is_some();
        self.has_early.store(!early.is_empty(), Ordering::Release);
        found
    }

    pub fn remove(&self, unique: u64) {
        self.shard(unique).lock().remove(&first(unique));
    }

    pub fn interrupt(&self, unique: u64) -> Interrupted {
        let mut shard = self.shard(unique).lock();
        if let Some(request) = shard.get_mut(&first(unique)) {
            request.interrupted = true;
            return Interrupted::Marked(request.given);
        }
        let mut early = self.early.lock();
        if let Some(known) = early.iter_mut().find(|early| early.target == first(unique)) {
            known.tries += 1;
            if known.tries > EARLY_RETRIES {
                return Interrupted::GiveUp;
            }
        } else {
            if early.len() == EARLY_TARGETS {
                early.pop_front();
            }
            early.push_back(Early { target: first(unique), tries: 1, since: Instant::now() });
            self.has_early.store(true, Ordering::Release);
        }
        Interrupted::Retry
    }

    pub fn is_interrupted(&self, unique: u64) -> bool {
        self.shard(unique).lock().get(&first(unique)).is_some_and(|request| request.interrupted)
    }

    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

/// Tells whether a request's client was hit by a signal and waits no longer. May be cloned and
/// kept by whatever works on the request; the answer to give is `EINTR`.
#[derive(Clone, Debug)]
pub struct Interrupt {
    connection: Connection,
    unique: u64,
}

impl Interrupt {
    pub(crate) fn new(connection: Connection, unique: u64) -> Self {
        Self { connection, unique }
    }

    /// Whether the request was interrupted. False again once it has been answered.
    pub fn is_set(&self) -> bool {
        self.connection.in_flight_table().is_interrupted(self.unique)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupt_when_registered_then_marks_until_answered() {
        let table = InFlight::default();
        table.register(10);
        assert!(!table.is_interrupted(10));
        assert_eq!(table.interrupt(10), Interrupted::Marked(10));
        assert!(table.is_interrupted(10));
        assert!(table.is_interrupted(10 | UNIQUE_RESEND));
        table.remove(10 | UNIQUE_RESEND);
        assert!(!table.is_interrupted(10));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn interrupt_of_a_request_that_came_again_then_the_handler_knows_it_by_its_own_number() {
        let table = InFlight::default();
        let resent = 10 | UNIQUE_RESEND;
        table.register(resent);
        // The kernel puts the mark into those that it sends again itself, but not where the request
        // stayed in an entry of a ring.
        assert_eq!(table.interrupt(10), Interrupted::Marked(resent));
        assert_eq!(table.interrupt(resent), Interrupted::Marked(resent));
        table.remove(10);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn interrupt_when_it_comes_before_its_request_then_the_request_is_marked_from_the_start() {
        let table = InFlight::default();
        assert_eq!(table.interrupt(10), Interrupted::Retry);
        table.register(12);
        assert!(!table.is_interrupted(12));
        table.register(10 | UNIQUE_RESEND);
        assert!(table.is_interrupted(10));
        table.remove(10);
        table.register(10);
        assert!(!table.is_interrupted(10), "it counts once");
        assert!(!table.has_early.load(Ordering::Relaxed), "nobody looks for early ones in vain");
    }

    #[test]
    fn interrupt_when_unknown_then_retried_a_bounded_number_of_times() {
        let table = InFlight::default();
        for _ in 0..EARLY_RETRIES {
            assert_eq!(table.interrupt(4), Interrupted::Retry);
        }
        assert_eq!(table.interrupt(4), Interrupted::GiveUp);
        for target in 0..3 * EARLY_TARGETS as u64 {
            table.interrupt(1000 + 2 * target);
        }
        assert!(table.early.lock().len() <= EARLY_TARGETS);
    }
}
