//! When a node takes the lease of a partition of the namespace, and when it gives it back.
//!
//! While a node alone works in a directory, it has the lease of its partition: it commits on its own
//! and ships what it committed in batches. Another node's access recalls the lease (Gray, Cheriton:
//! "Leases: an efficient fault-tolerant mechanism for distributed file cache consistency", SOSP 1989;
//! delegations of NFSv4, RFC 7530 section 10.4, are taken and recalled alike). What that costs is
//! paid back by some number of changes; so whoever changes a partition often, or looks at it very often, takes its lease, and if
//! it is soon recalled, waits longer before the next time, so that nodes which share a directory do
//! not pass its lease to and fro.

use std::collections::HashMap;

use crate::unit::Tick;

/// When leases are taken and given back. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// So many changes by this node, none further than `within` from the last use, make it take a
    /// lease.
    pub changes: u32,
    /// So many looks count as a change.
    pub looks: u32,
    /// The longest pause between two uses that belong together.
    pub within: u64,
    /// A lease that was not used for so long is given back.
    pub idle: u64,
    /// After a recall, none is taken of the partition for so long.
    pub first_pause: u64,
    /// If recalls go on, the pause doubles up to this.
    pub longest_pause: u64,
    /// A lease that lasted so many pauses was worth it: the next pause is the first one again.
    pub worth: u64,
    /// The most leases that a node has.
    pub most: usize,
}

impl Default for Terms {
    fn default() -> Self {
        Terms {
            changes: 6,
            looks: 8,
            within: Tick::SECOND,
            idle: 10 * Tick::SECOND,
            first_pause: Tick::SECOND / 2,
            longest_pause: 60 * Tick::SECOND,
            worth: 8,
            most: 256,
        }
    }
}

/// Why a lease has ended, or was not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Another node wanted it, or has it.
    Recalled,
    /// Nobody used it.
    Idle,
    /// The partition has grown beyond what a node keeps in memory.
    TooLarge,
    /// It was broken, or the servers did not answer.
    Lost,
}

/// Partitions of which something is remembered; far more than are changed within a second.
const MAX_KNOWN: usize = 8192;

#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// In looks.
    uses: u32,
    used: Tick,
    /// Since when there is a lease.
    held: Option<Tick>,
    pause: u64,
    not_before: Tick,
}

/// What a node knows of partitions that it changes.
#[derive(Debug, Clone)]
pub struct Leases {
    terms: Terms,
    known: HashMap<u16, Known>,
    held: usize,
}

impl Leases {
    /// No leases yet.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        Leases { terms, known: HashMap::new(), held: 0 }
    }

    /// This node has used a partition without a lease, and changed it or only looked. Whether to take
    /// the lease.
    pub fn used(&mut self, now: Tick, partition: u16, changed: bool) -> bool {
        if self.known.len() >= MAX_KNOWN {
            self.forget(now);
        }
        let Terms { within, changes, looks, .. } = self.terms;
        let is_full = self.held >= self.terms.most || self.known.len() > MAX_KNOWN;
        let known = self.known.entry(partition).or_default();
        if now.0.saturating_sub(known.used.0) > within {
            known.uses = 0;
        }
        known.uses = known.uses.saturating_add(if changed { looks } else { 1 });
        known.used = now;
        let enough = known.uses >= changes.saturating_mul(looks);
        enough && known.held.is_none() && now >= known.not_before && !is_full
    }

    /// The lease was taken.
    pub fn took(&mut self, now: Tick, partition: u16) {
        let known = self.known.entry(partition).or_default();
        known.uses = 0;
        if known.held.replace(now).is_none() {
            self.held += 1;
        }
    }

    /// It has ended, or was not to be had.
    pub fn ended(&mut self, now: Tick, partition: u16, end: End) {
        let Terms { first_pause, longest_pause, worth, .. } = self.terms;
        let known = self.known.entry(partition).or_default();
        let lasted = known.held.map_or(0, |since| now.0.saturating_sub(since.0));
        if known.held.take().is_some() {
            self.held -= 1;
        }
        known.uses = 0;
        known.pause = match end {
            End::Idle => 0,
            End::TooLarge => longest_pause,
            End::Recalled | End::Lost => match known.pause {
                0 => first_pause,
                pause if lasted >= pause.saturating_mul(worth) => first_pause,
                pause => pause.saturating_mul(2).min(longest_pause),
            },
        };
        known.not_before = now.after(known.pause);
    }

    /// Whether a lease that was used at `used` is to be given back.
    #[must_use]
    pub fn is_idle(&self, now: Tick, used: Tick) -> bool {
        now.0.saturating_sub(used.0) >= self.terms.idle
    }

    /// Leases held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    /// Forgets what makes no difference any more; all that is not held if that is not enough.
    fn forget(&mut self, now: Tick) {
        let within = self.terms.within;
        self.known.retain(|_, known| {
            let is_recent = now.0.saturating_sub(known.used.0) <= within;
            known.held.is_some() || known.not_before > now || is_recent
        });
        if self.known.len() >= MAX_KNOWN {
            self.known.retain(|_, known| known.held.is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Tick {
        Tick(ms * MS)
    }

    /// When the lease is taken by a node that changes a partition every `step` milliseconds from
    /// `from` on.
    fn taken_after(leases: &mut Leases, from: u64, step: u64) -> u64 {
        let mut now = from;
        while !leases.used(at(now), 1, true) {
            now += step;
            assert!(now < from + 1_000_000, "never taken");
        }
        leases.took(at(now), 1);
        now
    }

    #[test]
    fn lease_when_changes_follow_each_other_then_taken_and_else_not() {
        let mut leases = Leases::new(Terms::default());
        assert_eq!(taken_after(&mut leases, 0, 1), 5);
        assert!(!leases.used(at(6), 1, true), "it is held");
        let mut leases = Leases::new(Terms::default());
        assert!((0..100).all(|n| !leases.used(at(n * 1001), 1, true)), "too seldom");
        let mut leases = Leases::new(Terms::default());
        assert!((0..47).all(|n| !leases.used(at(n), 1, false)) && leases.used(at(47), 1, false));
    }

    #[test]
    fn lease_when_recalled_again_and_again_then_pauses_double_and_once_it_lasts_begin_anew() {
        let mut leases = Leases::new(Terms::default());
        let mut now = taken_after(&mut leases, 0, 1);
        for pause in [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000] {
            leases.ended(at(now + 1), 1, End::Recalled);
            let taken = taken_after(&mut leases, now + 1, 1);
            assert!((now + pause..=now + pause + 10).contains(&taken), "{taken} {now} {pause}");
            now = taken;
        }
        leases.ended(at(now + 480_000), 1, End::Recalled);
        let taken = taken_after(&mut leases, now + 480_000, 1);
        assert!(taken < now + 480_000 + 510);
        leases.ended(at(taken + 1), 1, End::Idle);
        assert!(taken_after(&mut leases, taken + 1, 1) < taken + 10);
    }

    proptest! {
        #[test]
        fn leases_any_history_then_counted_and_bounded(
            history in proptest::collection::vec((0u16..6, 0u8..6, 0u64..400), 1..300),
        ) {
            let mut leases = Leases::new(Terms { most: 3, changes: 2, ..Terms::default() });
            let mut held = std::collections::BTreeSet::new();
            let mut now = 0;
            for (partition, what, pause) in history {
                now += pause;
                match what {
                    0..=3 => {
                        if leases.used(at(now), partition, true) {
                            prop_assert!(!held.contains(&partition));
                            leases.took(at(now), partition);
                            held.insert(partition);
                        }
                    }
                    4 => {
                        leases.ended(at(now), partition, End::Recalled);
                        held.remove(&partition);
                        prop_assert!(!leases.used(at(now), partition, true));
                    }
                    _ => {
                        leases.ended(at(now), partition, End::Idle);
                        held.remove(&partition);
                    }
                }
                prop_assert_eq!(leases.held(), held.len());
                prop_assert!(held.len() <= 3);
            }
        }
    }

    #[test]
    fn partitions_when_very_many_are_changed_then_memory_stays_bounded() {
        let mut leases = Leases::new(Terms::default());
        leases.took(at(0), 7);
        for n in 0..60_000u64 {
            leases.used(at(n / 100), (n % 60_000) as u16, n.is_multiple_of(2));
            assert!(leases.known.len() <= MAX_KNOWN + 1);
        }
        assert_eq!(leases.held(), 1);
    }
}
