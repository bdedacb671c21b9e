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
    /// What is in use, counted `now` unless that is not due. `count` says how long it took as well.
    pub(crate) fn get(&mut self, now: Instant, count: impl FnOnce() -> (u64, Duration)) -> u64 {
        if self.again.is_none_or(|again| now >= again) {
            let (bytes, took) = count();
            (self.bytes, self.again) = (bytes, now.checked_add(took * REST));
        }
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_use_when_they_are_many_then_counted_in_a_small_part_of_the_time() {
        let (mut in_use, mut now, mut counted) = (InUse::default(), Instant::now(), 0);
        for _ in 0..1000 {
            in_use.get(now, || {
                counted += 1;
                (counted, Duration::from_millis(20))
            });
            now += Duration::from_millis(1);
        }
        assert_eq!(counted, 1000 / 400 + 1);
        assert_eq!(in_use.get(now, || (7, Duration::ZERO)), counted);
    }

    #[test]
    fn files_in_use_when_they_are_few_then_what_is_told_is_as_it_is_now() {
        let (mut in_use, now) = (InUse::default(), Instant::now());
        for bytes in 0..10 {
            assert_eq!(in_use.get(now, || (bytes, Duration::ZERO)), bytes);
        }
    }
}
