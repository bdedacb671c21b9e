//! How much of a tier is held by files in use, as it was when they were last counted. To count them takes
//! longer the more there are, and who asks writes past a full tier, and asks again at each write.

use std::time::{Duration, Instant};

/// So much longer than it took to count them nobody does it again.
const REST: u32 = 20;

/// What was counted, and when it is counted again.
#[derive(Debug, Default)]
pub(crate) struct InUse {
    bytes: u64,
    again: Option<Instant>,
}

impl InUse {
    /// What is in use, unless it is to be counted `now`. The caller counts with no lock in hand.
    pub(crate) fn known(&self, now: Instant) -> Option<u64> {
        self.again.is_some_and(|again| now < again).then_some(self.bytes)
    }

    /// What was counted from `begun` on, and how long that took.
    pub(crate) fn counted(&mut self, bytes: u64, begun: Instant, took: Duration) {
        (self.bytes, self.again) = (bytes, begun.checked_add(took * REST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_use_when_they_are_many_then_counted_in_a_small_part_of_the_time() {
        let (mut in_use, mut now, mut counts) = (InUse::default(), Instant::now(), 0);
        for _ in 0..1000 {
            if in_use.known(now).is_none() {
                counts += 1;
                in_use.counted(counts, now, Duration::from_millis(20));
            }
            now += Duration::from_millis(1);
        }
        assert_eq!(counts, 1000 / 400 + 1);
        assert_eq!(in_use.known(now), Some(counts));
    }

    #[test]
    fn files_in_use_when_they_are_few_then_counted_each_time() {
        let (mut in_use, now) = (InUse::default(), Instant::now());
        for bytes in 0..10 {
            assert_eq!(in_use.known(now), None);
            in_use.counted(bytes, now, Duration::ZERO);
        }
    }
}
