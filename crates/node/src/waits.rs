//! Where threads of write-back wait for one another. In unit tests that run threads in lockstep
//! (`lockstep.rs`) such a wait is a step: another part goes on, in an order that follows from a seed. This
//! module and `clock.rs` are the only ones that know of it.

#[cfg(not(test))]
pub(crate) use alone::*;
#[cfg(test)]
pub(crate) use in_lockstep::*;

#[cfg(not(test))]
mod alone {
    use std::time::{Duration, Instant};

    use parking_lot::{Condvar, Mutex, MutexGuard};

    /// A wait that comes to an end.
    pub(crate) struct Wait(Instant);

    impl Wait {
        /// Until this moment at most.
        pub(crate) fn until(until: Instant) -> Self {
            Wait(until)
        }

        /// Waits until somebody signals; false if it took too long.
        pub(crate) fn goes_on<T>(
            &mut self,
            signal: &Condvar,
            guard: &mut MutexGuard<'_, T>,
        ) -> bool {
            !signal.wait_until(guard, self.0).timed_out()
        }
    }

    /// Locks what is held over operations of the backing store.
    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock()
    }

    /// Lets others go on for so long.
    pub(crate) fn pause(time: Duration) {
        std::thread::sleep(time);
    }

    /// Here another thread may do anything before this one goes on.
    pub(crate) fn step() {}

    /// While it lives, what others do to a directory is taken for a part of what its thread does.
    pub(crate) struct Unwatched;

    /// Begins what is described at [`Unwatched`].
    pub(crate) fn unwatched() -> Unwatched {
        Unwatched
    }

    /// Begins a thread that looks at something again and again; false if there can't be one.
    pub(crate) fn attend(name: &str, job: impl FnOnce() + Send + 'static) -> bool {
        std::thread::Builder::new().name(name.into()).spawn(job).is_ok()
    }
}

#[cfg(test)]
mod in_lockstep {
    use std::time::{Duration, Instant};

    use parking_lot::{Condvar, MutexGuard};

    use crate::lockstep::{blocked, is_on};
    pub(crate) use crate::lockstep::{lock, step, unwatched};

    /// So often another part has gone on, and the one that is waited for has not: as long as a time-out.
    const LOOKS: u32 = 200;

    pub(crate) struct Wait {
        until: Instant,
        looks: u32,
    }

    impl Wait {
        pub(crate) fn until(until: Instant) -> Self {
            Wait { until, looks: 0 }
        }

        pub(crate) fn goes_on<T>(
            &mut self,
            signal: &Condvar,
            guard: &mut MutexGuard<'_, T>,
        ) -> bool {
            if !is_on() {
                return !signal.wait_until(guard, self.until).timed_out();
            }
            self.looks += 1;
            if self.looks <= LOOKS {
                MutexGuard::unlocked(guard, blocked);
            }
            self.looks <= LOOKS
        }
    }

    pub(crate) fn pause(time: Duration) {
        match is_on() {
            true => blocked(),
            false => std::thread::sleep(time),
        }
    }

    pub(crate) fn attend(name: &str, job: impl FnOnce() + Send + 'static) -> bool {
        // Of a test in lockstep one of its parts does it.
        is_on() || std::thread::Builder::new().name(name.into()).spawn(job).is_ok()
    }
}
