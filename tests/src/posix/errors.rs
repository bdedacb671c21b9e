//! x
pub(super) const CHECKS: &[super::Check] = &[];
