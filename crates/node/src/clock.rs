//! The clock by which a node judges for how long something has been so. The tests that take one step
//! after the other have a clock of their own (`lockstep.rs`), so that it is part of their seed how much
//! time passes between two steps.

use std::time::Instant;

use forebay_types::Timestamp;

/// Now.
pub(crate) fn now() -> Instant {
    #[cfg(test)]
    if let Some(now) = crate::lockstep::now() {
        return now;
    }
    Instant::now()
}

/// The time of the wall clock, as files are stamped with.
pub fn wall_time() -> Timestamp {
    #[cfg(test)]
    if let Some((sec, nsec)) = crate::lockstep::wall_now() {
        return Timestamp { sec, nsec };
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Timestamp { sec: now.tv_sec, nsec: u32::try_from(now.tv_nsec).unwrap_or(0) }
}
