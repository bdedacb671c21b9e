//! Counters.
#[derive(Default)]
/// Counters.
pub struct Metrics {}
