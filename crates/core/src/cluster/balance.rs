//! Which nodes have too much and which too little.
//!
//! Writes are always local, so nothing spreads load by itself (HyCache+ II-D has a periodical
//! re-balance for that). This plans how much goes from where to where; which objects go is for
//! [`Repair::shift`](super::repair::Repair::shift) to choose.

use super::NodeId;
use crate::unit::Tick;

/// How loaded a node is: in bytes, or in whatever else can be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// The node.
    pub node: NodeId,
    /// What it has.
    pub load: u64,
    /// What it can bear, in the same unit; 0: it takes part in nothing.
    pub capacity: u64,
}

/// So much goes from one node to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shift {
    /// From.
    pub from: NodeId,
    /// To.
    pub to: NodeId,
    /// How much.
    pub amount: u64,
}

/// When to move, and how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BalanceConfig {
    /// Nothing moves from a node that is fuller than the mean by at most so many per cent of it.
    pub tolerance_percent: u32,
    /// At most so much is moved by one plan.
    pub most: u64,
}

impl Default for BalanceConfig {
    /// Ten per cent, and no limit.
    fn default() -> Self {
        Self { tolerance_percent: 10, most: u64::MAX }
    }
}

/// The mean load for each unit of capacity, and the fullest node's as a multiple of it. 1 is
/// perfect; 1 also where there is nothing.
#[must_use]
pub fn imbalance(levels: &[Level]) -> f64 {
    let (load, capacity) = totals(levels);
    if load == 0 || capacity == 0 {
        return 1.0;
    }
    let mean = load as f64 / capacity as f64;
    let fullness = levels.iter().filter(|level| level.capacity > 0);
    fullness.map(|level| level.load as f64 / level.capacity as f64 / mean).fold(0.0, f64::max)
}

fn totals(levels: &[Level]) -> (u128, u128) {
    let able = || levels.iter().filter(|level| level.capacity > 0);
    let load = able().map(|level| u128::from(level.load)).sum();
    (load, able().map(|level| u128::from(level.capacity)).sum())
}

/// The fullest give to the emptiest: no node above the tolerance remains if the plan is carried out
/// and was not cut short by [`BalanceConfig::most`], nobody is filled above the mean, and nobody
/// gives below it. Nothing to do gives nothing: planning again after a plan is quiet.
#[must_use]
pub fn plan(levels: &[Level], config: &BalanceConfig) -> Vec<Shift> {
    let (load, capacity) = totals(levels);
    if load == 0 || capacity == 0 {
        return Vec::new();
    }
    let mean = |level: &Level| {
        u64::try_from(u128::from(level.capacity) * load / capacity).unwrap_or(u64::MAX)
    };
    let able = || levels.iter().filter(|level| level.capacity > 0);
    let tolerated = |level: &Level| {
        let mean = u128::from(mean(level));
        mean + mean * u128::from(config.tolerance_percent) / 100 + 1
    };
    let over = |level: &&Level| u128::from(level.load) > tolerated(level);
    // A giver goes down to the mean, else the next small change would make it give again.
    let mut givers: Vec<(u64, NodeId)> =
        able().filter(over).map(|level| (level.load - mean(level), level.node)).collect();
    let lacks = |level: &Level| (mean(level).saturating_sub(level.load), level.node);
    let mut takers: Vec<(u64, NodeId)> = able().map(lacks).filter(|(lack, _)| *lack > 0).collect();
    givers.sort_unstable_by(|a, b| b.cmp(a));
    takers.sort_unstable_by(|a, b| b.cmp(a));
    let (mut shifts, mut left) = (Vec::new(), config.most);
    let (mut giver, mut taker) = (0, 0);
    while left > 0 && giver < givers.len() && taker < takers.len() {
        let amount = givers[giver].0.min(takers[taker].0).min(left);
        shifts.push(Shift { from: givers[giver].1, to: takers[taker].1, amount });
        left -= amount;
        givers[giver].0 -= amount;
        takers[taker].0 -= amount;
        giver += usize::from(givers[giver].0 == 0);
        taker += usize::from(takers[taker].0 == 0);
    }
    shifts
}

/// The part of what a node gives that one of those falls to whose copies it has: in proportion to its
/// own, and no more.
#[must_use]
pub fn share(amount: u64, own: u64, all: u64) -> u64 {
    let part = u128::from(amount) * u128::from(own) / u128::from(all.max(own).max(1));
    u64::try_from(part).unwrap_or(u64::MAX).min(own)
}

/// Decides from time to time whether anything is to move: only what has been out of balance for a
/// while does, and each plan is given time to be carried out.
#[derive(Debug, Clone)]
pub struct Balancer {
    config: BalanceConfig,
    /// Nanoseconds that an imbalance lasts before it counts.
    delay: u64,
    /// Nanoseconds from one plan to the next.
    period: u64,
    since: Option<Tick>,
    rests_until: Tick,
}

impl Default for Balancer {
    /// What is fuller than the mean by a quarter for 20 seconds gives, once a minute.
    fn default() -> Self {
        let config = BalanceConfig { tolerance_percent: 25, ..BalanceConfig::default() };
        Self::new(config, 20 * Tick::SECOND, 60 * Tick::SECOND)
    }
}

impl Balancer {
    /// One that waits `delay` nanoseconds before it believes an imbalance, and `period` between
    /// plans.
    #[must_use]
    pub fn new(config: BalanceConfig, delay: u64, period: u64) -> Self {
        Self { config, delay, period, since: None, rests_until: Tick(0) }
    }

    /// How full the nodes are now; what is to move.
    pub fn look(&mut self, now: Tick, levels: &[Level]) -> Vec<Shift> {
        let shifts = plan(levels, &self.config);
        if shifts.is_empty() {
            self.since = None;
            return shifts;
        }
        let since = *self.since.get_or_insert(now);
        if now < since.after(self.delay) || now < self.rests_until {
            return Vec::new();
        }
        self.rests_until = now.after(self.period);
        self.since = None;
        shifts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shares_of_all_owners_then_no_more_than_the_amount_and_each_no_more_than_its_own(
            amount in 0u64..1 << 50,
            own in proptest::collection::vec(0u64..1 << 40, 1..20),
        ) {
            let all: u64 = own.iter().sum();
            let shares: Vec<u64> = own.iter().map(|own| share(amount, *own, all)).collect();
            prop_assert!(shares.iter().sum::<u64>() <= amount);
            prop_assert!(shares.iter().zip(&own).all(|(share, own)| share <= own));
            let least = amount.min(all).saturating_sub(own.len() as u64);
            prop_assert!(shares.iter().sum::<u64>() >= least, "nearly all of it");
        }

        #[test]
        fn balancer_any_history_then_no_plan_before_the_delay_and_no_two_in_a_period(
            looks in proptest::collection::vec((1u64..30, 0u64..100, 0u64..100), 1..100),
        ) {
            let mut balancer = Balancer::default();
            let (mut now, mut last, mut since) = (Tick(0), None, None);
            for (seconds, a, b) in looks {
                now = now.after(seconds * Tick::SECOND);
                let level = |node, load| Level { node: NodeId(node), load, capacity: 100 };
                let levels = [level(0, a), level(1, b)];
                let out = imbalance(&levels) > 1.25 && !plan(&levels, &balancer.config).is_empty();
                since = if out { since.or(Some(now)) } else { None };
                let shifts = balancer.look(now, &levels);
                if shifts.is_empty() {
                    continue;
                }
                prop_assert!(since.is_some_and(|since: Tick| now.0 - since.0 >= 20 * Tick::SECOND));
                prop_assert!(last.is_none_or(|last: Tick| now.0 - last.0 >= 60 * Tick::SECOND));
                (last, since) = (Some(now), None);
            }
        }

        #[test]
        fn plan_any_loads_then_balanced_conserved_and_quiet_after_it(
            loads in proptest::collection::vec((0u64..1 << 40, 0u64..8), 1..50),
            tolerance_percent in 0u32..50,
        ) {
            let mut levels: Vec<Level> = loads.iter().enumerate().map(|(at, (load, capacity))| {
                Level { node: NodeId(at as u32), load: *load, capacity: *capacity << 38 }
            }).collect();
            let before = totals(&levels);
            let config = BalanceConfig { tolerance_percent, most: u64::MAX };
            for shift in plan(&levels, &config) {
                prop_assert!(shift.amount > 0 && shift.from != shift.to);
                levels[shift.from.0 as usize].load -= shift.amount;
                levels[shift.to.0 as usize].load += shift.amount;
                prop_assert!(levels[shift.to.0 as usize].capacity > 0);
            }
            prop_assert_eq!(totals(&levels), before);
            let bound = 1.0 + f64::from(tolerance_percent) / 100.0;
            prop_assert!(imbalance(&levels) <= bound + 1e-6, "{}", imbalance(&levels));
            prop_assert!(plan(&levels, &config).is_empty(), "a plan after the plan");
        }
    }

    #[test]
    fn plan_with_a_limit_then_the_fullest_gives_first_and_no_more_than_that() {
        let level = |node, load| Level { node: NodeId(node), load, capacity: 100 };
        let levels = [level(0, 90), level(1, 70), level(2, 10), level(3, 10)];
        let shifts = plan(&levels, &BalanceConfig { tolerance_percent: 5, most: 30 });
        assert_eq!(shifts, [Shift { from: NodeId(0), to: NodeId(3), amount: 30 }]);
        assert!((imbalance(&levels) - 2.0).abs() < 1e-9);
        assert!((imbalance(&[]) - 1.0).abs() < 1e-9);
    }
}
