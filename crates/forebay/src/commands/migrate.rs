//! `migrate`: has a running task go on elsewhere.

use std::path::Path;

use super::{print, print_json};
use crate::cli::run::{HostTaskArgs, MigrateArgs, RunTaskArgs};
use crate::error::Error;
use crate::migrate::keeper::{self, Settings};
use crate::migrate::protocol::{self, Ask, HOME, Moved};
use crate::mountinfo;
use crate::units::format_bytes;

/// Carries the command out.
pub fn run(args: &MigrateArgs) -> Result<(), Error> {
    let target = match is_name(&args.target) {
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

/// Whether it is `home`, or the number or the machine of a node, and no path.
fn is_name(target: &Path) -> bool {
    target == Path::new(HOME)
        || (!target.as_os_str().as_encoded_bytes().contains(&b'/') && !target.exists())
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

/// The process that has a task of another node.
pub fn host(args: HostTaskArgs) -> Result<u8, Error> {
    let HostTaskArgs { mount, listen, secret, other_secret } = args;
    crate::migrate::host::run(&crate::migrate::host::Settings {
        mount,
        listen,
        secret,
        other_secret,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_when_a_path_or_the_name_of_a_node_then_told_apart() {
        for name in ["home", "2", "node7"] {
            assert!(is_name(Path::new(name)), "{name}");
        }
        // There is a directory of this name where tests run.
        for path in ["/mnt/b", "./b", "src"] {
            assert!(!is_name(Path::new(path)), "{path}");
        }
    }
}
