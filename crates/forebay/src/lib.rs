//! The command line of Forebay and everything around a node: configuration, daemon, control
//! socket, live view. What a mount *does* is behind [`Engine`]; this crate knows no file system.
//!
//! - `cli/`, `config/`: flags, environment and files become one checked `MountConfig`; every
//!   setting is one row of the table in `config/settings.rs`.
//! - `daemon.rs`, `service.rs`: a daemon starts, serves and ends. `hand_over.rs`: two daemons, one
//!   of which takes over. `supervisor.rs`, `service_manager.rs`: who restarts a dead one.
//! - `control/`, `clients/`, `metrics_http.rs`: its sockets. `courier.rs`: the process that sends
//!   notices to the kernel.
//! - `commands/`, `render.rs`, `top/`: what people see; `printable.rs` escapes what names of files
//!   could do to a terminal.
//! - `run/`: jobs. `migrate/`: tasks that can go on elsewhere.
//! - `node_engine/`: the engine; only it knows the node.

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
pub mod headway;
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
