//! Which cycle a set of streams gets.

use super::{Admission, Approach, Assurance, Demand, MAX_CYCLES, Plan, ReservedShares, Shortage};

/// A cycle is at most so many times as long as it must be, with a statistical guarantee.
pub(super) const LONGER: u64 = 4;
/// For certain it is so long that it would do with this share of the device less.
const AHEAD: f64 = 0.1;
/// Cycles that are tried between one that the device is too slow for and one that is too long for the
/// memory.
const STEPS: u32 = 8;

impl Admission {
    /// The longest cycle to choose. For certain, buffers grow before the stream that needs it starts, which
    /// takes the longer the less time the others leave: 4 s are the shortest of the usual cycles that
    /// carry as many as GPMP in 64 MB on the disk of its paper.
    fn longest_cycle(&self) -> u64 {
        match self.config.assurance {
            Assurance::Deterministic => self.config.startup.saturating_add(self.config.startup / 3),
            Assurance::Statistical(_) => u64::MAX,
        }
    }

    /// The plan with the shortest cycle that carries these streams.
    pub(super) fn shortest(
        &self,
        reserved: ReservedShares,
        approach: Approach,
        demands: &[Demand],
    ) -> Result<Plan, Shortage> {
        let mut shortage = Shortage::Device;
        let mut short = None;
        let last = self.longest_cycle();
        for at in 0..self.config.cycles.len().min(MAX_CYCLES) {
            let cycle = self.config.cycles[at];
            if at > 0 && cycle > last {
                break;
            }
            match self.try_cycle(cycle, reserved, approach, demands) {
                Ok(plan) => return Ok(plan),
                // More memory is needed for every longer cycle.
                Err(Shortage::Memory) => {
                    let between = short.map(|short| (short, cycle));
                    return self.try_between(between, reserved, approach, demands);
                }
                Err(other) => (shortage, short) = (other, Some(cycle)),
            }
        }
        Err(shortage)
    }

    /// A plan between a cycle that the device is too slow for and one that is too long for the memory.
    fn try_between(
        &self,
        between: Option<(u64, u64)>,
        reserved: ReservedShares,
        approach: Approach,
        demands: &[Demand],
    ) -> Result<Plan, Shortage> {
        let (mut short, mut long) = between.ok_or(Shortage::Memory)?;
        for _ in 0..STEPS {
            let middle = short.midpoint(long);
            match self.try_cycle(middle, reserved, approach, demands) {
                Ok(plan) => return Ok(plan),
                Err(Shortage::Memory) => long = middle,
                Err(_) => short = middle,
            }
        }
        Err(Shortage::Memory)
    }

    /// A plan with a longer cycle, which needs no more than `plan`: buffers that grow before somebody can
    /// start do so the slower the less time the others leave, so they are there before.
    pub(super) fn lengthened(
        &self,
        plan: Plan,
        reserved: ReservedShares,
        approach: Approach,
        demands: &[Demand],
    ) -> Plan {
        if self.profile.parallel > 1 {
            return plan;
        }
        let last = self.config.cycles[self.config.cycles.len().min(MAX_CYCLES) - 1];
        let longest = match self.config.assurance {
            Assurance::Deterministic => {
                // Whoever starts is told when, which a longer cycle puts off: as long as a tenth more needs.
                let more = ReservedShares { margin: reserved.margin + AHEAD, ..reserved };
                match self.shortest(more, approach, demands) {
                    Ok(longer) => Plan { margin: reserved.margin, ..longer },
                    Err(_) => {
                        let most = self.longest_cycle().min(last);
                        self.longest_up_to(most, plan, reserved, approach, demands)
                    }
                }
            }
            Assurance::Statistical(_) => {
                let most = LONGER.saturating_mul(plan.cycle).min(last);
                self.longest_up_to(most, plan, reserved, approach, demands)
            }
        };
        let sweep = (longest.busy + longest.budget) as f64 / (1.0 - reserved.margin);
        let hurried = (sweep as u64).clamp(plan.cycle, longest.cycle);
        Plan { needs: plan.needs, hurried, ..longest }
    }

    /// The plan with the longest cycle up to `most` that the memory allows.
    fn longest_up_to(
        &self,
        most: u64,
        plan: Plan,
        reserved: ReservedShares,
        approach: Approach,
        demands: &[Demand],
    ) -> Plan {
        let (mut longest, mut short, mut long) = (plan, plan.cycle, most);
        let mut cycle = long;
        for _ in 0..STEPS {
            if short >= long {
                break;
            }
            match self.try_cycle(cycle, reserved, approach, demands) {
                Ok(found) => (longest, short) = (found, cycle),
                Err(_) => long = cycle,
            }
            cycle = short.midpoint(long);
        }
        longest
    }
}
