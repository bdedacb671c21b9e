//! The clock by which a node judges for how long something has been so. The tests that take one step
//! after the other have a clock of their own (`lockstep.rs`), so that it is part of their seed how much
//! time passes between two steps.

use std::time::Instant;

/// Now.
pub(crate) fn now() -> Instant {
    #[cfg(test)]
    if let Some(now) = crate::lockstep::now() {
        return now;
    }
    Instant::now()
}
