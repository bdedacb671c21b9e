//! Requests that threads which read them work on at this moment: a device below that hangs where it
//! never should must show, too.
//!
//! Each such thread writes to a slot of its own and nobody waits for anybody: whoever looks takes
//! a slot as it is if it did not change meanwhile.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fusewire::Header;

use crate::deferred::Stuck;

/// Threads that are told apart. Of more, some share a slot, and one of them is not seen.
const SLOTS: usize = 512;

/// What one thread does, on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct ThreadSlot {
    /// When it began, in nanoseconds since the table was made, and never 0. 0: it does nothing.
    since: AtomicU64,
    node: AtomicU64,
    opcode: AtomicU32,
    pid: AtomicU32,
}

/// The requests under way in the threads that read them.
pub struct InReaders {
    made: Instant,
    slots: Box<[ThreadSlot]>,
}

/// A request under way; ends when it is dropped.
pub struct Entered<'a>(&'a ThreadSlot);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.since.store(0, Ordering::Release);
    }
}

/// The number of this thread among those that have asked for one.
fn own_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    }
    NUMBER.get().unwrap_or_else(|| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        NUMBER.set(Some(number));
        number
    })
}

impl InReaders {
    pub fn new() -> Self {
        let slots = (0..SLOTS).map(|_| ThreadSlot::default()).collect();
        Self { made: Instant::now(), slots }
    }

    /// Notes what the calling thread does from `began` on.
    pub fn enter(&self, header: &Header, began: Instant) -> Entered<'_> {
        let slot = &self.slots[own_number() % SLOTS];
        let since = began.saturating_duration_since(self.made).as_nanos();
        slot.since.store(0, Ordering::Release);
        slot.node.store(header.node, Ordering::Release);
        slot.opcode.store(header.opcode, Ordering::Release);
        slot.pid.store(header.pid, Ordering::Release);
        slot.since.store(u64::try_from(since).unwrap_or(u64::MAX).max(1), Ordering::Release);
        Entered(slot)
    }

    /// What has been under way for at least `least`.
    pub fn longer_than(&self, least: Duration) -> impl Iterator<Item = Stuck> {
        let now = self.made.elapsed();
        self.slots.iter().filter_map(move |slot| {
            let since = slot.since.load(Ordering::Acquire);
            let waiting = now.saturating_sub(Duration::from_nanos(since));
            if since == 0 || waiting < least {
                return None;
            }
            let stuck = Stuck {
                opcode: slot.opcode.load(Ordering::Acquire),
                ino: slot.node.load(Ordering::Acquire),
                pid: slot.pid.load(Ordering::Acquire),
                waiting,
                given_up: false,
                holds_reader: true,
            };
            // Else it is another request's by now, or half of one's.
            (slot.since.load(Ordering::Acquire) == since).then_some(stuck)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(opcode: u32) -> Header {
        Header { unique: 2, opcode, node: 7, uid: 0, gid: 0, pid: 9, extension_size: 0 }
    }

    #[test]
    fn requests_when_under_way_in_readers_then_listed_until_they_end() {
        let table = InReaders::new();
        let listed = || table.longer_than(Duration::ZERO).collect::<Vec<_>>();
        let entered = table.enter(&header(3), Instant::now());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let _entered = table.enter(&header(4), Instant::now());
                listed()
            });
            let mut opcodes: Vec<u32> =
                other.join().unwrap().iter().map(|stuck| stuck.opcode).collect();
            opcodes.sort_unstable();
            assert_eq!(opcodes, [3, 4]);
        });
        let found = listed();
        assert_eq!(found.len(), 1, "{found:?}");
        let stuck = &found[0];
        assert_eq!((stuck.opcode, stuck.ino, stuck.pid), (3, 7, 9));
        assert!(stuck.holds_reader && !stuck.given_up);
        assert!(table.longer_than(Duration::from_secs(3600)).next().is_none());
        drop(entered);
        assert!(listed().is_empty());
    }
}
