//! A number of bytes that many share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many bytes may be in use at a time.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicU64,
    limit: u64,
}

impl Budget {
    pub fn new(limit: u64) -> Arc<Budget> {
        Arc::new(Budget { used: AtomicU64::new(0), limit })
    }

    /// A share of `bytes`, or `None` if they are not left.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Charge> {
        let grown = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, grown).ok()?;
        Some(Charge { budget: self.clone(), bytes })
    }
}

/// A share of a budget, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_when_used_up_then_refuses_until_something_is_given_back() {
        let budget = Budget::new(10);
        let first = budget.take(7).unwrap();
        assert!(budget.take(4).is_none());
        assert!(budget.take(u64::MAX).is_none());
        drop(first);
        assert!(budget.take(10).is_some());
    }
}
