//! `migrate`: has a running task go on elsewhere.

use std::path::Path;

use super::{print, print_json};
use crate::cli::run::{MigrateArgs, RunTaskArgs};
use crate::error::Error;
use crate::migrate::keeper::{self, Settings};
use crate::migrate::protocol::{self, Ask, HOME, Moved};
use crate::mountinfo;
use crate::units::format_bytes;

/// Carries the command out.
pub fn run(args: &MigrateArgs) -> Result<(), Error> {
    let target = match args.target == Path::new(HOME) {
        true => args.target.clone(),
        false => mountinfo::resolve(&args.target)
            .map_err(Error::io(args.target.display().to_string()))?,
    };
    let images = args
        .images
        .as_ref()
        .map(|dir| std::fs::canonicalize(dir).map_err(Error::io(dir.display().to_string())));
    let ask = Ask { target: target.into(), images: images.transpose()?.map(Into::into) };
    let (_, spot) = protocol::choose(protocol::all(), &args.task)?;
    let moved = spot.ask(&ask, &mut |text| {
        if !args.quiet && !args.json {
            super::tell(text);
        }
    })?;
    if args.json {
        return print_json(&moved);
    }
    if args.quiet { Ok(()) } else { print(&told(&moved)) }
}

fn told(moved: &Moved) -> String {
    format!(
        "{} went from {} to {}: stood still for {:.0} ms ({:.0} ms to write {} down, {:.0} ms to \
         restore it), {} processes, {} files written\n",
        moved.task,
        moved.from,
        moved.to,
        moved.downtime_ms,
        moved.dump_ms,
        format_bytes(moved.bytes),
        moved.restore_ms,
        moved.processes,
        moved.files,
    )
}

/// The process that keeps a task.
pub fn keep(args: RunTaskArgs) -> Result<u8, Error> {
    let RunTaskArgs { run, job, mount, command } = args;
    keeper::run(Settings { run, job, mount, command })
}
