//! What nodes ask each other, and what they answer.
//!
//! Every request and answer has a number (its code) and fields; `wire.rs` says how they
//! travel. Inode numbers, versions and epochs are those of the metadata; this crate does not
//! interpret them.

mod answer;
mod fault;
mod request;

pub use answer::{Answer, Conflict, Load, Presence, Written};
pub use fault::Fault;
pub use request::{
    CallId, Hello, LockKind, LockOp, LockSpace, ObjectId, Position, Put, Read, ReadMap, Recall,
    RecallKind, Request, Sync, Truncate, Write, WriteBack,
};

#[cfg(test)]
mod tests;
