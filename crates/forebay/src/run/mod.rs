//! `forebay run`: jobs with their inputs, in an order and on nodes that follow from where bytes are.
//!
//! - [`job`]: what a job is, and what must hold of many.
//! - [`batch`], [`snakemake`], [`parsl`]: jobs as they are written down.
//! - [`files`]: the files that jobs name, and what the daemon knows of them.
//! - [`plan`]: the order, by `forebay-schedule`.
//! - [`reference`]: the reference sequence of a run, as its mount is given it.
//! - [`children`], [`output`], [`watch`]: processes, what they print, and that none outlives the run.
//! - [`local`]: runs the jobs of a batch on this machine.
//! - [`slurm`]: the commands of Slurm.
//! - [`record`]: what `forebay jobs` shows.
//!
//! No process of a run outlives it, however it ends (`tests/jobs.rs`).

pub mod batch;
pub mod children;
pub mod files;
pub mod job;
pub mod local;
pub mod output;
pub mod parsl;
pub mod plan;
pub mod record;
pub mod reference;
pub mod slurm;
pub mod snakemake;
pub mod watch;
