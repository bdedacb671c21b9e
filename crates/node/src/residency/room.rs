//! Room on the tiers: who may put how many bytes where, so that a tier's configured size holds.
//!
//! # Invariants
//! - What is charged to a tier never exceeds its size, whoever takes room at once (tests of this
//!   file). One exception: what an object grows by that the kernel reads by itself is charged
//!   beyond it, since such an object can't give bytes away (`spill.rs`).
//! - What an object and its map take up never exceeds its charge: it grows before the bytes are
//!   written, in whole blocks, and shrinks only while nobody writes (`tests/past_the_tier.rs`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forebay_store::{Bytes, ErrorClass, StoreError};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::error::{NodeError, Result};

/// So often room was given back, and was known not to come.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Freed {
    given: u64,
    vain: u64,
}

/// How waiting for room has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// Some was given back, or some that was expected does not come.
    News,
    /// The time is over.
    Long,
}

/// The room of one tier, in bytes. Objects are charged before they grow; what is charged never
/// exceeds the size.
#[derive(Debug)]
pub struct Room {
    size: u64,
    used: AtomicU64,
    /// Promised to passthrough writers beyond what their files take up.
    promised: AtomicU64,
    freed: (Mutex<Freed>, Condvar),
    /// Objects that went, their bytes, and how many had gone when somebody waited for the next in vain.
    gone: AtomicU64,
    gone_bytes: AtomicU64,
    vain: AtomicU64,
    /// Writers that want room. The steward is told under this lock that none does any more.
    wanting: Mutex<usize>,
}

impl Room {
    /// An empty room of `size` bytes.
    pub fn new(size: u64) -> Self {
        Room {
            size,
            used: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            freed: Default::default(),
            gone: AtomicU64::new(0),
            gone_bytes: AtomicU64::new(0),
            vain: AtomicU64::new(u64::MAX),
            wanting: Mutex::new(0),
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
        self.gone_bytes.fetch_add(bytes, Ordering::AcqRel);
        self.gone.fetch_add(1, Ordering::AcqRel);
        self.give(bytes);
    }

    /// Objects that went, and their bytes.
    pub fn gone(&self) -> (u64, u64) {
        (self.gone.load(Ordering::Acquire), self.gone_bytes.load(Ordering::Acquire))
    }

    /// A writer wants room until [`Room::stop_wanting`].
    pub fn start_wanting(&self) {
        *self.wanting.lock() += 1;
    }

    /// The writer wants it no more. If it was the last, `told` is called before the next one comes.
    pub fn stop_wanting(&self, told: impl FnOnce()) {
        let mut wanting = self.wanting.lock();
        *wanting = wanting.saturating_sub(1);
        if *wanting == 0 {
            told();
        }
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
        self.freed.0.lock().given += 1;
        self.freed.1.notify_all();
    }

    /// What somebody waits for does not come: he looks for other room.
    pub fn disappoint(&self) {
        self.freed.0.lock().vain += 1;
        self.freed.1.notify_all();
    }

    /// What has come until now.
    pub fn freed(&self) -> Freed {
        *self.freed.0.lock()
    }

    /// Waits until there is news since `seen`, but not for longer than until `until`.
    pub fn wait(&self, seen: Freed, until: Instant) -> Waited {
        let mut freed = self.freed.0.lock();
        while *freed == seen {
            if self.freed.1.wait_until(&mut freed, until).timed_out() {
                return Waited::Long;
            }
        }
        Waited::News
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
    fn room_given_back_before_somebody_waits_for_it_then_he_does_not() {
        let room = Room::new(100);
        assert!(room.take(100));
        let seen = room.freed();
        room.give(10);
        let long = Instant::now() + std::time::Duration::from_secs(60);
        assert_eq!(room.wait(seen, long), Waited::News);
        let seen = room.freed();
        room.disappoint();
        assert_eq!(room.wait(seen, long), Waited::News);
        assert_eq!(room.wait(room.freed(), Instant::now()), Waited::Long);
    }

    #[test]
    fn writers_that_want_room_when_the_last_has_gone_then_that_is_told() {
        let (room, mut told) = (Room::new(100), 0);
        room.start_wanting();
        room.start_wanting();
        room.stop_wanting(|| told += 1);
        assert_eq!(told, 0);
        room.stop_wanting(|| told += 1);
        assert_eq!(told, 1);
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
