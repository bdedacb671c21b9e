//! Continuous media: the core's round machine over modelled devices, and the paper's arithmetic.

pub mod device;
pub mod driver;
