//! Requests that were read and not yet answered, and which of them were interrupted.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use crate::abi::UNIQUE_RESEND;
use crate::connection::Connection;

const SHARDS: usize = 16;
/// Targets of interrupts that came too early which are remembered.
const EARLY_TARGETS: usize = 64;
/// How often one of them is sent back to the kernel before it is given up.
const EARLY_RETRIES: u32 = 1000;

/// One entry per request in flight, so its size is bounded by what the kernel has in flight.
#[derive(Default)]
pub(crate) struct InFlight {
    shards: [Mutex<HashMap<u64, bool>>; SHARDS],
    early: Mutex<VecDeque<(u64, u32)>>,
}

/// What to do about an INTERRUPT.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// The request is marked.
    Marked,
    /// Its request is not known: answered already, or read by another thread that has not
    /// registered it yet. The kernel shall send the interrupt again, if the request still exists.
    Retry,
    /// Sent back too often: whoever has the request is not this process.
    GiveUp,
}

impl InFlight {
    fn shard(&self, unique: u64) -> &Mutex<HashMap<u64, bool>> {
        // The kernel counts uniques up by 2.
        &self.shards[(unique >> 1) as usize % SHARDS]
    }

    pub fn register(&self, unique: u64) {
        let unique = unique & !UNIQUE_RESEND;
        self.shard(unique).lock().insert(unique, false);
    }

    pub fn remove(&self, unique: u64) {
        let unique = unique & !UNIQUE_RESEND;
        self.shard(unique).lock().remove(&unique);
    }

    pub fn interrupt(&self, unique: u64) -> Interrupted {
        let unique = unique & !UNIQUE_RESEND;
        if let Some(interrupted) = self.shard(unique).lock().get_mut(&unique) {
            *interrupted = true;
            return Interrupted::Marked;
        }
        let mut early = self.early.lock();
        if let Some((_, tries)) = early.iter_mut().find(|(target, _)| *target == unique) {
            *tries += 1;
            if *tries > EARLY_RETRIES {
                return Interrupted::GiveUp;
            }
        } else {
            if early.len() == EARLY_TARGETS {
                early.pop_front();
            }
            early.push_back((unique, 1));
        }
        Interrupted::Retry
    }

    pub fn is_interrupted(&self, unique: u64) -> bool {
        let unique = unique & !UNIQUE_RESEND;
        self.shard(unique).lock().get(&unique).copied().unwrap_or(false)
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
        assert_eq!(table.interrupt(10), Interrupted::Marked);
        assert!(table.is_interrupted(10));
        assert!(table.is_interrupted(10 | UNIQUE_RESEND));
        table.remove(10 | UNIQUE_RESEND);
        assert!(!table.is_interrupted(10));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn interrupt_when_unknown_then_retried_a_bounded_number_of_times() {
        let table = InFlight::default();
        for _ in 0..EARLY_RETRIES {
            assert_eq!(table.interrupt(4), Interrupted::Retry);
        }
        assert_eq!(table.interrupt(4), Interrupted::GiveUp);
        for target in 0..10 * EARLY_TARGETS as u64 {
            table.interrupt(1000 + 2 * target);
        }
        assert!(table.early.lock().len() <= EARLY_TARGETS);
    }
}
