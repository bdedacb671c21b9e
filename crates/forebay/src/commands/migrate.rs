//! `migrate`: has a running task go on elsewhere.

use std::path::{Path, PathBuf};

use super::{print, print_json};
use crate::cli::run::{HostTaskArgs, MigrateArgs, RunTaskArgs};
use crate::error::Error;
use crate::migrate::keeper::{self, Settings};
use crate::migrate::protocol::{self, Ask, HOME, Moved};
use crate::mountinfo;
use crate::units::format_bytes;

/// Carries the command out.
pub fn run(args: &MigrateArgs) -> Result<(), Error> {
    let (target, also) = match is_name(&args.target) {
        true => nodes(&args.target.to_string_lossy())?,
        false => {
            let failed = Error::io(args.target.display().to_string());
            (mountinfo::resolve(&args.target).map_err(failed)?, Vec::new())
        }
    };
    let save_within_ms = u64::try_from(args.save_within.as_millis()).unwrap_or(u64::MAX);
    let images = args
        .images
        .as_ref()
        .map(|dir| std::fs::canonicalize(dir).map_err(Error::io(dir.display().to_string())));
    let images = images.transpose()?.map(Into::into);
    let ask = Ask { target: target.into(), also, save_within_ms, images };
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

/// The node where the task goes, and those that it uses beside.
fn nodes(list: &str) -> Result<(PathBuf, Vec<String>), Error> {
    let mut names = list.split(',').map(str::to_owned);
    let first = names.next().unwrap_or_default();
    let others: Vec<String> = names.collect();
    match first.is_empty() || others.iter().any(String::is_empty) {
        true => Err(Error::Usage(format!("{list:?}: a node between two commas has no name"))),
        false => Ok((first.into(), others)),
    }
}

fn told(moved: &Moved) -> String {
    if moved.by_itself {
        return format!(
            "{} went from {} to {}: saved its state in {:.0} ms ({} files synced), and began there {:.0} ms \
             later\n",
            moved.task, moved.from, moved.to, moved.dump_ms, moved.files, moved.restore_ms,
        );
    }
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
    let dir = std::env::current_dir().map_err(Error::io("the current directory"))?;
    keeper::run(Settings { run, job, mount, command, dir })
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
    fn nodes_when_several_are_named_then_the_first_is_where_the_task_goes() {
        let of = |list: &str| nodes(list).ok();
        assert_eq!(of("3"), Some(("3".into(), vec![])));
        assert_eq!(of("home,n2,4"), Some(("home".into(), vec!["n2".into(), "4".into()])));
        for list in ["", ",3", "3,", "3,,4"] {
            assert_eq!(of(list), None, "{list:?}");
        }
    }

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
