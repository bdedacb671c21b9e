//! The command line of Forebay and everything around a node: configuration, daemon, control
//! socket, live view. What a mount *does* is behind [`Engine`]; this crate knows no file system.

pub mod config;
pub mod control;
mod engine;
mod error;
pub mod mountinfo;
pub mod units;

pub use engine::{Engine, FsckReport, FsckRequest, Mounted};
pub use error::{Error, Exit};
