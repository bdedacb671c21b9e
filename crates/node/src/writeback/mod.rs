//! The node and its backing store: what is to be brought there (`reconcile`, the backlog), how bytes get
//! there (`flush`, `staging`), and how what is there, also by others, becomes known (`import`).
//!
//! It stands on `residency` and the namespace. It knows no requests.

pub(crate) mod flush;
pub(crate) mod import;
pub(crate) mod parked;
pub(crate) mod reconcile;
pub(crate) mod rest_gone;
pub(crate) mod restamp;
pub(crate) mod staging;
pub(crate) mod upkeep;
