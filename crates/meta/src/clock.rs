//! The clock by which a process believes what it was promised for a time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// For how long the machine is said to have slept.
static SLEPT: AtomicU64 = AtomicU64::new(0);

/// A moment of the time since the machine was started, in which the time that it slept counts, too: a
/// machine that was suspended may have been taken for dead meanwhile. [`std::time::Instant`] stands
/// still then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// This moment.
    #[must_use]
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        let whole = Duration::from_secs(now.tv_sec.unsigned_abs());
        let slept = Duration::from_nanos(SLEPT.load(Ordering::Relaxed));
        BootInstant(whole + Duration::from_nanos(now.tv_nsec.unsigned_abs()) + slept)
    }

    /// The time since then.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// The time from another moment to this one; none if that one is later.
    #[must_use]
    pub fn since(self, other: Self) -> Duration {
        self.0.saturating_sub(other.0)
    }

    /// As if the machine had just slept for so long, for tests.
    #[doc(hidden)]
    pub fn sleep_for(time: Duration) {
        SLEPT.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
