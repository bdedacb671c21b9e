//! The command line of Forebay and everything around a node: configuration, daemon, control
//! socket, live view. What a mount *does* is behind [`Engine`]; this crate knows no file system.

pub mod cli;
mod clients;
mod commands;
pub mod config;
pub mod control;
pub mod courier;
mod daemon;
mod descriptors;
mod engine;
mod error;
mod glob;
mod hand_over;
mod headway;
mod logging;
mod metrics_http;
pub mod migrate;
mod printable;
mod render;
mod run;
mod service;
mod service_manager;
mod signals;
mod supervisor;
mod top;
mod trace_file;
pub mod units;

pub use commands::run;
pub use engine::{
    ClusterSetUp, CrashState, Ended, Engine, FsckReport, FsckRequest, HandOver, Keeper, Mounted,
};
pub use error::{Error, Exit};
pub use forebay_client::mountinfo;
