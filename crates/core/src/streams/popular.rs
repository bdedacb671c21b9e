//! Which beginnings of titles are worth keeping on a faster device, and how much of each.
//!
//! A stream starts when its first visit is over, which takes up to a cycle and more. Whoever has the
//! beginning at hand starts at once, and the stream goes on where the beginning ends: as much is
//! worth keeping as is played until then, and not a byte more. So a title is worth its popularity
//! times the time that it saves, for the bytes that it takes; as in GreedyDual-Size (Cao, Irani:
//! "Cost-Aware WWW Proxy Caching Algorithms", USENIX Symposium on Internet Technologies and Systems,
//! 1997) the titles with the highest worth of a byte are kept, but popularity fades by half-lives
//! instead of an inflating clock, since what is kept costs nothing while nobody comes.
//!
//! Pure: time comes in as an argument.
//!
//! What is kept stays within its budget (tests of this file).

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use crate::unit::Tick;

/// Titles that are remembered beside those that are kept; the least popular are forgotten.
const REMEMBERED: usize = 1 << 14;

/// What is kept changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<T> {
    /// Keep so many bytes of the title, from its beginning on.
    Keep {
        /// Which.
        title: T,
        /// Bytes.
        bytes: u64,
    },
    /// Keep nothing of it any more.
    Drop {
        /// Which.
        title: T,
    },
}

/// A title as far as it is known.
#[derive(Debug, Clone, Copy)]
struct TitleStats {
    /// Opens, each halved once for each half-life since, at the time `at`.
    opens: f64,
    at: Tick,
    /// Bytes that bridge the start.
    bytes: u64,
    /// Seconds that they save.
    saves: f64,
}

impl TitleStats {
    fn popularity(&self, now: Tick, half_life: u64) -> f64 {
        let passed = now.0.saturating_sub(self.at.0) as f64 / half_life as f64;
        self.opens * (-passed).exp2()
    }

    /// Seconds saved by a byte.
    fn worth(&self, now: Tick, half_life: u64) -> f64 {
        self.popularity(now, half_life) * self.saves / self.bytes.max(1) as f64
    }
}

/// The popularity of titles, and what is kept of them.
#[derive(Debug)]
pub struct Popular<T> {
    budget: u64,
    unit: u64,
    half_life: u64,
    /// What is kept, in bytes, and all of it.
    kept: BTreeMap<T, u64>,
    kept_bytes: u64,
    titles: HashMap<T, TitleStats>,
}

/// How a title was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening<T> {
    /// Which.
    pub title: T,
    /// Bytes of it.
    pub size: u64,
    /// Bytes a second.
    pub rate: u64,
    /// Nanoseconds that its stream takes to start, at the most.
    pub startup: u64,
}

impl<T: Copy + Eq + Hash + Ord> Popular<T> {
    /// Keeps at most `budget` bytes, in whole `unit`s, by opens that count half after `half_life`
    /// nanoseconds.
    #[must_use]
    pub fn new(budget: u64, unit: u64, half_life: u64) -> Self {
        let (unit, half_life) = (unit.max(1), half_life.max(1));
        let (kept, titles) = (BTreeMap::new(), HashMap::new());
        Self { budget, unit, half_life, kept, kept_bytes: 0, titles }
    }

    /// Bytes that are kept.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Bytes that are kept of a title.
    #[must_use]
    pub fn kept(&self, title: T) -> u64 {
        self.kept.get(&title).copied().unwrap_or(0)
    }

    /// Forgets a title, whose bytes have changed or are gone.
    pub fn forget(&mut self, title: T) {
        self.titles.remove(&title);
        self.let_go(title);
    }

    /// A title was opened at `now`; what is to be kept from now on goes to `out`. Drops come first.
    pub fn opened(&mut self, now: Tick, opening: Opening<T>, out: &mut Vec<Change<T>>) {
        let Opening { title, size, rate, startup } = opening;
        let bridge = (u128::from(rate) * u128::from(startup)).div_ceil(1_000_000_000);
        let bridge = u64::try_from(bridge).unwrap_or(u64::MAX).max(1);
        let bytes = bridge.checked_next_multiple_of(self.unit).unwrap_or(bridge).min(size);
        let saves = startup as f64 / 1e9;
        let half_life = self.half_life;
        self.make_place(now, title);
        let had = self.kept(title);
        let fresh = TitleStats { opens: 0.0, at: now, bytes, saves };
        let stats = self.titles.entry(title).or_insert(fresh);
        stats.opens = stats.popularity(now, half_life) + 1.0;
        stats.at = now;
        if had > 0 && bytes <= had {
            // More than is needed now: the next one may start later again.
            return;
        }
        (stats.bytes, stats.saves) = (bytes, saves);
        let worth = stats.worth(now, half_life);
        if bytes == 0 || startup == 0 || bytes > self.budget {
            out.extend(self.let_go(title));
            return;
        }
        let missing = (self.kept_bytes - had + bytes).saturating_sub(self.budget);
        match self.cheapest(now, title, worth, missing) {
            Some(victims) => {
                for victim in victims {
                    out.extend(self.let_go(victim));
                }
                self.kept.insert(title, bytes);
                self.kept_bytes = self.kept_bytes - had + bytes;
                out.push(Change::Keep { title, bytes });
            }
            None => out.extend(self.let_go(title)),
        }
    }

    fn let_go(&mut self, title: T) -> Option<Change<T>> {
        self.kept_bytes -= self.kept.remove(&title)?;
        Some(Change::Drop { title })
    }

    /// Kept titles of less worth that make `missing` bytes free, the cheapest first; `None` if there
    /// are not enough of them.
    fn cheapest(&self, now: Tick, but: T, worth: f64, missing: u64) -> Option<Vec<T>> {
        if missing == 0 {
            return Some(Vec::new());
        }
        let mut kept: Vec<(f64, T, u64)> = self
            .kept
            .iter()
            .filter(|(title, _)| **title != but)
            .map(|(title, bytes)| (self.worth_of(*title, now), *title, *bytes))
            .filter(|(other, ..)| *other < worth)
            .collect();
        // By the title where all else is equal: the same history gives the same answers.
        kept.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let (mut free, mut victims) = (0, Vec::new());
        for (_, title, bytes) in kept {
            if free >= missing {
                break;
            }
            free += bytes;
            victims.push(title);
        }
        (free >= missing).then_some(victims)
    }

    fn worth_of(&self, title: T, now: Tick) -> f64 {
        self.titles.get(&title).map_or(0.0, |stats| stats.worth(now, self.half_life))
    }

    /// Forgets half of the titles that are not kept, the least popular, when there are too many.
    fn make_place(&mut self, now: Tick, but: T) {
        if self.titles.len() < REMEMBERED || self.titles.contains_key(&but) {
            return;
        }
        let half_life = self.half_life;
        let mut known: Vec<(f64, T)> = self
            .titles
            .iter()
            .filter(|(title, _)| !self.kept.contains_key(title))
            .map(|(title, stats)| (stats.popularity(now, half_life), *title))
            .collect();
        known.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        for (_, title) in &known[..known.len().div_ceil(2)] {
            self.titles.remove(title);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn opening(title: u32, rate: u64, startup_ms: u64) -> Opening<u32> {
        Opening { title, size: 1 << 30, rate, startup: startup_ms * 1_000_000 }
    }

    fn open(popular: &mut Popular<u32>, at_s: u64, what: Opening<u32>) -> Vec<Change<u32>> {
        let mut out = Vec::new();
        popular.opened(Tick(at_s * SECOND), what, &mut out);
        out
    }

    #[test]
    fn beginning_when_kept_then_as_long_as_the_start_takes() {
        let mut popular = Popular::new(10 << 20, 4096, 3600 * SECOND);
        let kept = open(&mut popular, 0, opening(1, 250_000, 1_500));
        let bytes = 375_000_u64.next_multiple_of(4096);
        assert_eq!(kept, [Change::Keep { title: 1, bytes }]);
        assert_eq!((popular.kept(1), popular.kept_bytes()), (bytes, bytes));
        // A start that takes longer needs more, a shorter one keeps what is there.
        let more = 500_000_u64.next_multiple_of(4096);
        let grown = open(&mut popular, 1, opening(1, 250_000, 2_000));
        assert_eq!(grown, [Change::Keep { title: 1, bytes: more }]);
        assert!(open(&mut popular, 2, opening(1, 250_000, 100)).is_empty());
        let short = Opening { size: 1000, ..opening(2, 250_000, 2_000) };
        assert_eq!(open(&mut popular, 3, short), [Change::Keep { title: 2, bytes: 1000 }]);
    }

    #[test]
    fn budget_when_full_then_only_the_more_popular_displace_others() {
        let mut popular = Popular::new(100_000, 1, 3600 * SECOND);
        for title in 0..10 {
            assert_eq!(open(&mut popular, 0, opening(title, 10_000, 1_000)).len(), 1);
        }
        assert!(open(&mut popular, 1, opening(3, 10_000, 1_000)).is_empty());
        // As popular as most of them, and not more.
        let newcomer = open(&mut popular, 0, opening(77, 10_000, 1_000));
        assert!(newcomer.is_empty(), "{newcomer:?}");
        let second = open(&mut popular, 0, opening(77, 10_000, 1_000));
        let keep = Change::Keep { title: 77, bytes: 10_000 };
        assert_eq!(second, [Change::Drop { title: 0 }, keep]);
        // One that needs ten times the bytes is worth a tenth for each of them.
        assert!(open(&mut popular, 0, opening(99, 100_000, 1_000)).is_empty());
        assert!(open(&mut popular, 0, opening(100, 100_001, 1_000)).is_empty(), "never fits");
    }

    #[test]
    fn popularity_when_time_passes_then_fades() {
        let mut popular = Popular::new(10_000, 1, 60 * SECOND);
        for _ in 0..4 {
            open(&mut popular, 0, opening(1, 10_000, 1_000));
        }
        assert!(open(&mut popular, 0, opening(2, 10_000, 1_000)).is_empty());
        // After three half-lives four opens count as half a one.
        let changes = open(&mut popular, 180, opening(2, 10_000, 1_000));
        let keep = Change::Keep { title: 2, bytes: 10_000 };
        assert_eq!(changes, [Change::Drop { title: 1 }, keep]);
        popular.forget(2);
        assert_eq!((popular.kept(2), popular.kept_bytes()), (0, 0));
    }

    #[test]
    fn titles_when_millions_are_opened_then_few_are_remembered() {
        let mut popular = Popular::new(100_000, 1, 60 * SECOND);
        for title in 0..50_000 {
            open(&mut popular, u64::from(title), opening(title, 10_000, 1_000));
        }
        assert!(popular.titles.len() <= REMEMBERED, "{}", popular.titles.len());
    }

    proptest! {
        /// Whatever is opened: what the changes add up to is what is said to be kept, and fits.
        #[test]
        fn beginnings_any_history_then_within_the_budget_and_as_told(
            history in prop::collection::vec((0_u32..12, 1_u64..50_000, 0_u64..3_000, 0_u64..100, any::<bool>()), 0..200),
            budget in 0_u64..200_000,
        ) {
            let mut popular = Popular::new(budget, 512, 30 * SECOND);
            let (mut told, mut now) = (std::collections::BTreeMap::new(), 0);
            for (title, rate, startup, passed, forgotten) in history {
                now += passed;
                for change in open(&mut popular, now, opening(title, rate, startup)) {
                    match change {
                        Change::Keep { title, bytes } => { told.insert(title, bytes); }
                        Change::Drop { title } => prop_assert!(told.remove(&title).is_some()),
                    }
                    prop_assert!(told.values().sum::<u64>() <= budget);
                }
                if forgotten && startup % 7 == 0 {
                    popular.forget(title);
                    told.remove(&title);
                }
                prop_assert_eq!(popular.kept_bytes(), told.values().sum::<u64>());
                prop_assert!(told.iter().all(|(title, bytes)| popular.kept(*title) == *bytes));
            }
        }
    }
}
