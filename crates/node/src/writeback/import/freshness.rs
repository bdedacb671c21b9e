//! For how long what is known counts, and whether the backing store answers at all.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use forebay_types::Ino;
use parking_lot::Mutex;

use crate::clock;

const SHARDS: usize = 16;
const PER_SHARD: usize = 4096;

/// Until when inodes count as fresh. Bounded: a full shard forgets those whose time has passed,
/// then any, which only costs another comparison.
#[derive(Default)]
pub(super) struct Freshness {
    shards: [Mutex<HashMap<u64, Instant>>; SHARDS],
}

impl Freshness {
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<u64, Instant>> {
        let spread = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.shards[spread as usize % SHARDS]
    }

    pub(super) fn is_fresh(&self, ino: Ino) -> bool {
        self.shard(ino).lock().get(&ino.0).is_some_and(|until| clock::now() < *until)
    }

    pub(super) fn set_fresh(&self, ino: Ino, lasting: Duration) {
        let now = clock::now();
        let mut shard = self.shard(ino).lock();
        if shard.len() >= PER_SHARD && !shard.contains_key(&ino.0) {
            shard.retain(|_, until| now < *until);
            if shard.len() >= PER_SHARD {
                let mut keep = false;
                shard.retain(|_, _| {
                    keep = !keep;
                    keep
                });
            }
        }
        shard.insert(ino.0, now + lasting);
    }

    pub(super) fn expire(&self, ino: Ino) {
        self.shard(ino).lock().remove(&ino.0);
    }
}

/// Which operations of the backing store requests wait for now, and since when: each single one, as the
/// age of the oldest says whether the store answers.
#[derive(Default)]
pub(crate) struct Health {
    under_way: Mutex<(u64, BTreeMap<u64, Instant>)>,
}

impl Health {
    /// An operation begins; it ends with the value returned.
    pub(crate) fn begin(&self) -> Asked<'_> {
        let mut under_way = self.under_way.lock();
        under_way.0 += 1;
        let number = under_way.0;
        under_way.1.insert(number, clock::now());
        Asked { health: self, number }
    }

    /// How long the oldest operation has been under way.
    pub(crate) fn waiting_for(&self) -> Duration {
        let under_way = self.under_way.lock();
        under_way
            .1
            .first_key_value()
            .map_or(Duration::ZERO, |(_, since)| clock::now().saturating_duration_since(*since))
    }

    pub(super) fn is_unresponsive(&self) -> bool {
        self.waiting_for() > super::UNRESPONSIVE
    }
}

/// An operation of the backing store that somebody waits for.
pub(crate) struct Asked<'a> {
    health: &'a Health,
    number: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.health.under_way.lock().1.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freshness_when_millions_pass_through_then_stays_bounded() {
        let table = Freshness::default();
        for ino in 0..200_000 {
            table.set_fresh(Ino(ino), Duration::from_secs(60));
        }
        let held: usize = table.shards.iter().map(|shard| shard.lock().len()).sum();
        assert!(held <= SHARDS * PER_SHARD, "{held}");
        assert!(table.is_fresh(Ino(199_999)));
        table.set_fresh(Ino(5), Duration::ZERO);
        assert!(!table.is_fresh(Ino(5)));
    }

    #[test]
    fn health_when_an_operation_hangs_then_says_so_until_it_ends() {
        let health = Health::default();
        let slow = health.begin();
        drop(health.begin());
        std::thread::sleep(Duration::from_millis(20));
        assert!(health.waiting_for() >= Duration::from_millis(20));
        drop(slow);
        assert_eq!(health.waiting_for(), Duration::ZERO);
    }
}
