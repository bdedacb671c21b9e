//! What requests do with the bytes of files: open, read, write, punch, truncate, and what an open file
//! is. Names and attributes have a room of their own (`namespace`), as have streams (`stream`).
//!
//! It stands on all other rooms. The calls by which lower rooms still use it are counted in
//! `xtask/src/tidy/calls.rs`, and none may be added.

pub(crate) mod handle;
pub(crate) mod hints;
pub(crate) mod io;
pub(crate) mod open;
pub(crate) mod paths;
pub(crate) mod ranges;
pub(crate) mod truncate;
