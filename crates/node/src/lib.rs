//! A node: namespace, residency and workers put together, with their threads.
pub mod metrics;
