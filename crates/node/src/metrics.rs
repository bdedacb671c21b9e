//! Counters.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// The sum so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "named in the table")]
pub struct Metrics {
    pub hits: Counter,
    pub misses: Counter,
    pub passthrough_opens: Counter,
    pub passthrough_refused_room: Counter,
    pub passthrough_refused_kernel: Counter,
    pub bytes_from_tier: Counter,
    pub bytes_from_spill: Counter,
    pub bytes_from_backing: Counter,
    pub bytes_fetched: Counter,
    pub bytes_written: Counter,
    pub bytes_spilled: Counter,
    pub bytes_flushed: Counter,
    pub flushes: Counter,
    pub evictions: Counter,
    pub demotions: Counter,
}
