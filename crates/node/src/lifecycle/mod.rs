//! The start after an end of any kind, the hand-over to another daemon, and fsck: check, repair, rebuild.

pub(crate) mod admission;
pub(crate) mod check;
pub(crate) mod check_cluster;
pub(crate) mod hand_over;
pub(crate) mod members;
pub(crate) mod mounts_below;
pub(crate) mod nested_tiers;
pub(crate) mod rebuild;
pub(crate) mod recover;
#[cfg(test)]
mod recover_tests;
pub(crate) mod start;
pub(crate) mod stop;
