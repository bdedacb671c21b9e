//! What requests do with the bytes of files: open, read, write, punch, truncate, and what an open file
//! is. Names and attributes have a room of their own (`namespace`), as have streams (`stream`).
//!
//! It stands on all rooms below; what other nodes ask for (`serving`) stands on it.

pub(crate) mod forwarded;
pub(crate) mod hints;
pub(crate) mod in_use;
pub(crate) mod io;
pub(crate) mod open;
pub(crate) mod ranges;
pub(crate) mod set_attributes;
pub(crate) mod truncate;
