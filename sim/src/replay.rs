//! A node's recorded event log through the same steward again: the actions must be the same, byte
//! for byte.

use std::io::Write;
use std::path::PathBuf;

use forebay_core::steward::log;

use crate::SimError;

/// What to replay.
#[derive(Debug, Clone, clap::Args)]
pub struct ReplayArgs {
    /// The event log of a node.
    pub log: PathBuf,
    /// Print the counts as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Replays the log and prints how many events and actions agree.
///
/// # Errors
/// [`SimError::Divergence`] if an action differs; others if the log cannot be read.
pub fn run_cli(args: &ReplayArgs, out: &mut dyn Write) -> Result<(), SimError> {
    let text = std::fs::read_to_string(&args.log).map_err(SimError::file(&args.log))?;
    let replay =
        log::replay(&text).map_err(|source| SimError::Log { path: args.log.clone(), source })?;
    if let Some(log::Divergence { line, recorded, replayed }) = replay.divergence {
        return Err(SimError::Divergence { path: args.log.clone(), line, recorded, replayed });
    }
    if args.json {
        let counts = serde_json::json!({ "events": replay.events, "actions": replay.actions });
        writeln!(out, "{counts}")?;
    } else {
        writeln!(out, "{} events, {} actions: all the same", replay.events, replay.actions)?;
    }
    Ok(())
}
