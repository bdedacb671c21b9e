//! Publishing.
/// Where a temporary stands.
pub(crate) struct Place;
