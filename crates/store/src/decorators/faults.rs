//! Interceptors: slow, failing, stuck.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{Interceptor, Operation, Verdict};
use crate::copy::{Cancel, RateLimiter};

/// A device of limited speed: bytes per second, operations per second and a latency for each
/// operation. All users of one `Throttled` share the rates, as they would share a disk.
pub struct Throttled {
    bytes: RateLimiter,
    operations: RateLimiter,
    latency: Duration,
}

impl Throttled {
    /// A rate of 0 means no limit.
    #[must_use]
    pub fn new(bytes_per_second: u64, operations_per_second: u64, latency: Duration) -> Self {
        Self {
            bytes: RateLimiter::new(bytes_per_second),
            operations: RateLimiter::new(operations_per_second),
            latency,
        }
    }
}

impl Interceptor for Throttled {
    fn before(&self, operation: Operation, bytes: u64) -> Verdict {
        let never = Cancel::default();
        // A length is none that is moved.
        let bytes = if operation == Operation::SetLen { 0 } else { bytes };
        std::thread::sleep(self.latency);
        // Without a cancel there is nothing that could fail.
        let _ = self.operations.take(1, &never);
        let _ = self.bytes.take(bytes, &never);
        Verdict::Pass
    }
}

/// When and how [`Flaky`] fails.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Which operations; `None` means all.
    pub operation: Option<Operation>,
    /// The fault. `Pass` makes a rule that only exempts.
    pub fault: Verdict,
    /// Matching operations that pass before the first fault.
    pub skip: u64,
    /// Faults until the rule is spent; `u64::MAX` for all that follow.
    pub times: u64,
    /// Of each 1000 operations that would fail, this many do, chosen by the seed.
    pub per_mille: u32,
}

impl Rule {
    /// Every operation of a kind fails.
    #[must_use]
    pub fn always(operation: Operation, errno: i32) -> Self {
        Self {
            operation: Some(operation),
            fault: Verdict::Fail(errno),
            skip: 0,
            times: u64::MAX,
            per_mille: 1000,
        }
    }

    /// Only the `n`th operation of a kind fails, counted from 1.
    #[must_use]
    pub fn nth(operation: Operation, n: u64, errno: i32) -> Self {
        Self { skip: n.saturating_sub(1), times: 1, ..Self::always(operation, errno) }
    }
}

/// A device that fails by rules, which can be changed while it is in use. The first rule that
/// matches decides. Faults by probability follow from the seed alone.
pub struct Flaky {
    state: Mutex<FlakyState>,
    faults: AtomicU64,
}

struct FlakyState {
    rules: Vec<Rule>,
    random: u64,
}

impl Flaky {
    /// Without rules nothing fails.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = Mutex::new(FlakyState { rules: Vec::new(), random: seed });
        Self { state, faults: AtomicU64::new(0) }
    }

    /// Replaces the rules.
    pub fn set_rules(&self, rules: impl Into<Vec<Rule>>) {
        self.state.lock().rules = rules.into();
    }

    /// Operations that have failed so far.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }
}

/// The next number of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Interceptor for Flaky {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        let mut state = self.state.lock();
        let FlakyState { rules, random } = &mut *state;
        let matching = |rule: &&mut Rule| rule.operation.is_none_or(|kind| kind == operation);
        let Some(rule) = rules.iter_mut().find(matching) else { return Verdict::Pass };
        if rule.skip > 0 {
            rule.skip -= 1;
            return Verdict::Pass;
        }
        if rule.times == 0 || split_mix(random) % 1000 >= u64::from(rule.per_mille) {
            return Verdict::Pass;
        }
        if rule.times != u64::MAX {
            rule.times -= 1;
        }
        if rule.fault != Verdict::Pass {
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
        rule.fault
    }
}

/// A device that hangs: while it is stuck, operations of the chosen kinds wait until released.
#[derive(Default)]
pub struct Stuck {
    state: Mutex<StuckState>,
    released: Condvar,
}

#[derive(Default)]
struct StuckState {
    stuck: bool,
    kinds: Vec<Operation>,
    waiting: usize,
}

impl Stuck {
    /// From now on operations of these kinds hang; an empty list means all.
    pub fn hang(&self, kinds: &[Operation]) {
        let mut state = self.state.lock();
        state.stuck = true;
        state.kinds = kinds.to_vec();
    }

    /// Lets all go on.
    pub fn release(&self) {
        self.state.lock().stuck = false;
        self.released.notify_all();
    }

    /// Operations that hang at this moment.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting
    }
}

impl Interceptor for Stuck {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        let mut state = self.state.lock();
        let concerned =
            |s: &StuckState| s.stuck && (s.kinds.is_empty() || s.kinds.contains(&operation));
        state.waiting += 1;
        self.released.wait_while(&mut state, |s| concerned(s));
        state.waiting -= 1;
        Verdict::Pass
    }
}
