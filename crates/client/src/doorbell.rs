//! How one process wakes a thread of another that has nothing to do: two words in memory that both
//! have. Nobody spins.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex;

/// A doorbell, as it lies in memory; zeros to begin with.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Doorbell {
    /// Changes with every ring.
    rung: AtomicU32,
    /// Whether somebody sleeps.
    asleep: AtomicU32,
}

impl Doorbell {
    /// Wakes who sleeps there.
    pub fn ring(&self) {
        self.rung.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) != 0 {
            let _ = futex::wake(&self.rung, futex::Flags::empty(), 1);
        }
    }

    /// Sleeps until it rings, for `most` at the longest, unless `awake` says that there is something
    /// to do already. One thread does so. It may wake without cause.
    pub fn sleep(&self, most: Duration, awake: impl FnOnce() -> bool) {
        let rung = self.rung.load(Ordering::SeqCst);
        self.asleep.store(1, Ordering::SeqCst);
        if !awake() {
            let limit = rustix::thread::Timespec {
                tv_sec: most.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: most.subsec_nanos().into(),
            };
            let _ = futex::wait(&self.rung, futex::Flags::empty(), rung, Some(&limit));
        }
        self.asleep.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn sleeper_when_it_rings_then_awake_and_none_is_missed() {
        let (ping, pong) = (Doorbell::default(), Doorbell::default());
        let count = AtomicU32::new(0);
        let begun = Instant::now();
        let wait_for = |bell: &Doorbell, least: u32| {
            while count.load(Ordering::SeqCst) < least {
                bell.sleep(LONG, || count.load(Ordering::SeqCst) >= least);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 0..1000 {
                    wait_for(&ping, 2 * turn + 1);
                    count.fetch_add(1, Ordering::SeqCst);
                    pong.ring();
                }
            });
            for turn in 0..1000 {
                count.fetch_add(1, Ordering::SeqCst);
                ping.ring();
                wait_for(&pong, 2 * turn + 2);
            }
        });
        assert!(begun.elapsed() < LONG, "a ring was missed");
    }
}
