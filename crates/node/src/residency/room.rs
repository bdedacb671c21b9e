//! Room on the tiers: who may put how many bytes where, so that a tier's configured size holds.
//!
//! # Invariants
//! - What is charged to a tier never exceeds its size, whoever takes room at once (tests of this
//!   file). One exception: what an object grows by that the kernel reads by itself is charged
//!   beyond it, since such an object can't give bytes away (`spill.rs`).
//! - What an object and its map take up never exceeds its charge: it grows before the bytes are
//!   written, in whole blocks, and shrinks only while nobody writes (`tests/past_the_tier.rs`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_store::{Bytes, ErrorClass, StoreError};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::error::{NodeError, Result};

/// The room of one tier, in bytes. Objects are charged before they grow; what is charged never
/// exceeds the size.
#[derive(Debug)]
pub struct Room {
    size: u64,
    used: AtomicU64,
    /// Promised to passthrough writers beyond what their files take up.
    promised: AtomicU64,
    freed: (Mutex<u64>, Condvar),
    /// Objects that went, and how many had gone when somebody waited for the next in vain.
    gone: AtomicU64,
    vain: AtomicU64,
}

impl Room {
    /// An empty room of `size` bytes.
    pub fn new(size: u64) -> Self {
        Room {
            size,
            used: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            freed: (Mutex::new(0), Condvar::new()),
            gone: AtomicU64::new(0),
            vain: AtomicU64::new(u64::MAX),
        }
    }

    /// The configured size.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes charged to objects.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes promised to passthrough writers.
    pub fn promised(&self) -> u64 {
        self.promised.load(Ordering::Relaxed)
    }

    /// Bytes that may still be charged.
    pub fn free(&self) -> u64 {
        self.size.saturating_sub(self.used() + self.promised())
    }

    /// Charges `bytes` if they fit. A growth of nothing always fits.
    #[must_use]
    pub fn take(&self, bytes: u64) -> bool {
        if bytes == 0 {
            return true;
        }
        let promised = self.promised();
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |used| {
                let after = used.checked_add(bytes)?;
                (after.checked_add(promised)? <= self.size).then_some(after)
            })
            .is_ok()
    }

    /// Charges `bytes` whether or not they fit: they are there already.
    pub fn force(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Gives `bytes` back and wakes those who wait for room.
    pub fn give(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let before = self.used.fetch_sub(bytes, Ordering::AcqRel);
        debug_assert!(before >= bytes, "more room given back than was taken");
        self.announce();
    }

    /// As [`Room::give`], of an object that went.
    pub fn give_all(&self, bytes: u64) {
        self.gone.fetch_add(1, Ordering::AcqRel);
        self.give(bytes);
    }

    /// Whether it is worth while to wait for room: not after somebody did in vain, until an object
    /// has gone since.
    pub fn is_worth_waiting(&self) -> bool {
        self.vain.load(Ordering::Acquire) != self.gone.load(Ordering::Acquire)
    }

    /// Somebody has waited in vain.
    pub fn waited_in_vain(&self) {
        self.vain.store(self.gone.load(Ordering::Acquire), Ordering::Release);
    }

    /// Promises `bytes` to a passthrough writer. All promises together leave half of the room that
    /// objects don't take up to others: most of what is promised is never used, and a tier full of
    /// promises would send new files past it.
    #[must_use]
    pub fn promise(&self, bytes: u64) -> bool {
        let promised =
            self.promised.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |promised| {
                let after = promised.checked_add(bytes)?;
                (after <= self.size.saturating_sub(self.used()) / 2).then_some(after)
            });
        if promised.is_err() {
            return false;
        }
        // What was charged meanwhile did not know of it.
        if self.used() + self.promised() <= self.size {
            return true;
        }
        self.promised.fetch_sub(bytes, Ordering::AcqRel);
        false
    }

    /// Takes a promise back.
    pub fn unpromise(&self, bytes: u64) {
        self.promised.fetch_sub(bytes, Ordering::AcqRel);
        self.announce();
    }

    fn announce(&self) {
        *self.freed.0.lock() += 1;
        self.freed.1.notify_all();
    }

    /// Waits until room was given back or `limit` has passed; says which.
    pub fn wait(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut count = self.freed.0.lock();
        let before = *count;
        while *count == before {
            if self.freed.1.wait_until(&mut count, until).timed_out() {
                return false;
            }
        }
        true
    }
}

/// Whether an operation failed for want of room.
pub(crate) fn no_room(error: &StoreError) -> bool {
    error.class() == ErrorClass::NoSpace
}

/// Writes all of `data`; `None` when the device has no room.
pub(crate) fn write_all<B: Bytes + ?Sized>(
    target: &B,
    data: &[u8],
    offset: u64,
) -> Result<Option<usize>> {
    match write_all_or_fail(target, data, offset) {
        Err(NodeError::Posix(Errno::NOSPC | Errno::DQUOT)) => Ok(None),
        written => written.map(Some),
    }
}

/// Writes as much of `data` as the device has room for, as a write that has nowhere else to go does.
///
/// # Errors
/// As [`write_all_or_fail`], if not a byte has room.
pub(crate) fn write_what_fits<B: Bytes + ?Sized>(
    target: &B,
    data: &[u8],
    offset: u64,
) -> Result<usize> {
    let mut done = 0;
    while done < data.len() {
        match target.write_at(&data[done..], offset + done as u64) {
            Ok(0) if done == 0 => return Err(NodeError::Posix(Errno::IO)),
            Ok(0) => break,
            Ok(written) => done += written,
            Err(error) if no_room(&error) && done > 0 => break,
            Err(error) if no_room(&error) => {
                return Err(NodeError::Posix(Errno::from_raw_os_error(error.errno())));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

/// Writes all of `data`, where a device without room is the writer's affair: with the errno that
/// the device gives.
pub(crate) fn write_all_or_fail<B: Bytes + ?Sized>(
    target: &B,
    data: &[u8],
    offset: u64,
) -> Result<usize> {
    let mut done = 0;
    while done < data.len() {
        done += write_what_fits(target, &data[done..], offset + done as u64)?;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_not_charged() {
        let room = Room::new(100);
        assert!(room.take(40));
        assert!(!room.take(61));
        assert!(room.promise(30));
        assert!(!room.take(31));
        assert!(!room.promise(1));
        room.unpromise(30);
        assert!(room.take(60));
        assert_eq!(room.free(), 0);
        room.give(100);
        assert_eq!(room.used(), 0);
    }

    #[test]
    fn promises_when_there_are_many_then_leave_half_of_the_room_to_others() {
        let room = Room::new(4096);
        assert!(room.take(1000));
        let kept = (0..100).filter(|_| room.promise(64)).count();
        assert_eq!(kept, 3096 / 2 / 64);
        assert!(room.take(3096 / 2));
        assert!(!room.promise(1));
    }

    #[test]
    fn waiting_in_vain_is_not_repeated_until_an_object_goes() {
        let room = Room::new(100);
        assert!(room.take(100) && room.is_worth_waiting());
        room.waited_in_vain();
        room.give(10);
        assert!(!room.is_worth_waiting(), "a correction is no sign that more will come");
        room.give_all(90);
        assert!(room.is_worth_waiting());
    }

    #[test]
    fn many_threads_never_overfill() {
        let room = Room::new(1000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        if room.take(300) {
                            assert!(room.used() <= 1000);
                            room.give(300);
                        }
                    }
                });
            }
        });
        assert_eq!(room.used(), 0);
    }
}
