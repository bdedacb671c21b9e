//! The store's rules on an engine that commits only within a partition.

#[path = "namespace.rs"]
mod rules;
