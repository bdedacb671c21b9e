//! `conflicts`: what was changed both here and by others.

use std::path::{Path, PathBuf};

use super::{print, print_json};
use crate::cli::{
    ConflictsCommand, ConflictsForgetArgs, ConflictsListArgs, ConflictsResolveArgs, Keep,
};
use crate::control::{Client, Conflict, Request, WirePath};
use crate::error::{Error, Exit};
use crate::{mountinfo, render};

/// Carries a command on conflicts out.
pub fn run(command: &ConflictsCommand) -> Result<u8, Error> {
    match command {
        ConflictsCommand::List(args) => list(args),
        ConflictsCommand::Resolve(args) => resolve(args),
        ConflictsCommand::Forget(args) => forget(args),
    }
}

fn list(args: &ConflictsListArgs) -> Result<u8, Error> {
    let (mut all, mut exit) = (Vec::new(), Exit::Ok);
    match &args.mountpoint {
        Some(path) => {
            must_exist(path)?;
            all = conflicts_of(Client::for_path(path)?)?;
        }
        None => {
            let mounts = mountinfo::read().map_err(Error::io("/proc/self/mountinfo"))?;
            for mount in mounts.iter().filter(|mount| mount.is_forebay()) {
                match Client::for_mount(mount, &mounts).and_then(conflicts_of) {
                    Ok(conflicts) => all.extend(conflicts),
                    Err(error) => {
                        super::tell(&format!("{}: {error}", WirePath::from(&mount.mountpoint)));
                        exit = error.exit();
                    }
                }
            }
        }
    }
    if args.json {
        print_json(&all)?;
    } else if exit == Exit::Ok || !all.is_empty() {
        print(&render::conflicts(&all))?;
    }
    Ok(exit.code())
}

/// The directory above what is not there may be on a mount, of which nobody has asked.
fn must_exist(path: &Path) -> Result<(), Error> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::io(path.display().to_string())(error))
        }
        _ => Ok(()),
    }
}

/// The conflicts of a mount, with whole paths.
fn conflicts_of(mut client: Client) -> Result<Vec<Conflict>, Error> {
    let conflicts = client.conflicts()?;
    let at = |path: WirePath| match path.0.as_os_str().is_empty() {
        true => Some(path),
        false => client.outside(&path.0).map(WirePath::from),
    };
    // A bind mount of a part shows those that are there.
    let whole = |conflict: Conflict| {
        Some(Conflict { path: at(conflict.path)?, kept_as: at(conflict.kept_as)?, ..conflict })
    };
    Ok(conflicts.into_iter().filter_map(whole).collect())
}

/// The mount of a path that need not be there any more, and the path below its mount point.
fn mount_of(path: &Path) -> Result<(Client, PathBuf), Error> {
    let whole = std::path::absolute(path).map_err(Error::io(path.display().to_string()))?;
    let known =
        whole.ancestors().skip(1).find_map(|dir| Some((dir, mountinfo::resolve(dir).ok()?)));
    let (dir, real) = known.ok_or_else(|| Error::NotMounted(path.to_owned()))?;
    let client = Client::for_path(&real)?;
    let rest = whole.strip_prefix(dir).unwrap_or(&whole);
    let real = real.join(rest);
    let below = client.inside(&real).ok_or_else(|| Error::NotMounted(path.to_owned()))?;
    Ok((client, below))
}

fn resolve(args: &ConflictsResolveArgs) -> Result<u8, Error> {
    for path in &args.paths {
        let (mut client, below) = mount_of(path)?;
        let known = client.conflicts()?;
        let mut of_path = known.iter().filter(|conflict| {
            conflict.kept_as.0 == below || conflict.path.0 == below && conflict.has_copy()
        });
        let conflict = of_path.next().ok_or_else(|| no_conflict(path))?;
        if of_path.next().is_some() {
            return Err(Error::Usage(format!(
                "{}: has several conflicts; name the version that you mean, as `forebay conflicts \
                 list` shows it",
                path.display()
            )));
        }
        let at = |path: &WirePath| {
            client.outside(&path.0).ok_or_else(|| Error::NotMounted(path.0.clone()))
        };
        let (theirs, ours) = (at(&conflict.path)?, at(&conflict.kept_as)?);
        ours_must_be_there(&ours)?;
        must_be_files(&ours, &theirs)?;
        if args.keep == Keep::Theirs {
            must_be_there(&mut client, conflict, &ours, &theirs)?;
        }
        let kept = match args.keep {
            Keep::Ours => std::fs::rename(&ours, &theirs).map(|()| "the version of this mount"),
            Keep::Theirs => std::fs::remove_file(&ours).map(|()| "the version of the others"),
        };
        let kept = kept.map_err(Error::io(ours.display().to_string()))?;
        client.forget_conflicts(vec![conflict.kept_as.clone()])?;
        print(&format!("{} is {kept}\n", WirePath(theirs)))?;
    }
    Ok(Exit::Ok.code())
}

/// What is not where the list has it can be neither kept nor removed.
fn ours_must_be_there(ours: &Path) -> Result<(), Error> {
    match ours.symlink_metadata() {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::Failed(format!(
            "{path} is not there: its directory was moved or removed in the backing store; look for this \
             name there, and then take the conflict off the list by `forebay conflicts forget {path}`",
            path = WirePath::from(ours)
        ))),
        Err(error) => Err(Error::io(ours.display().to_string())(error)),
    }
}

/// No call puts a directory in place of what is there, and what is in one nobody has looked at.
fn must_be_files(ours: &Path, theirs: &Path) -> Result<(), Error> {
    let is_directory = |path: &&Path| path.symlink_metadata().is_ok_and(|found| found.is_dir());
    match [ours, theirs].into_iter().find(is_directory) {
        None => Ok(()),
        Some(directory) => Err(Error::Failed(format!(
            "{} is a directory: move or remove one of the two yourself, and then take the conflict off \
             the list by `forebay conflicts forget {}`",
            WirePath::from(directory),
            WirePath::from(theirs)
        ))),
    }
}

/// Whoever removes one of two versions must have the other one.
fn must_be_there(
    client: &mut Client,
    conflict: &Conflict,
    ours: &Path,
    theirs: &Path,
) -> Result<(), Error> {
    // Others may have removed it, and the kernel remember it still.
    let paths = vec![conflict.path.clone()];
    client.work(Request::Refresh { paths }, None, &mut |_| {})?;
    match theirs.symlink_metadata() {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::Failed(format!(
            "{} is not there any more: {} is the only version; keep that with `--keep ours`, or remove \
             it yourself",
            WirePath::from(theirs),
            WirePath::from(ours)
        ))),
        Err(error) => Err(Error::io(theirs.display().to_string())(error)),
    }
}

fn forget(args: &ConflictsForgetArgs) -> Result<u8, Error> {
    let mut forgotten = 0;
    for path in &args.paths {
        if args.all {
            let mut client = Client::for_path(path)?;
            let mut all: Vec<WirePath> =
                client.conflicts()?.into_iter().map(|conflict| conflict.path).collect();
            all.retain(|path| client.outside(&path.0).is_some());
            forgotten += client.forget_conflicts(all)?;
            continue;
        }
        let (mut client, below) = mount_of(path)?;
        match client.forget_conflicts(vec![below.into()])? {
            0 => return Err(no_conflict(path)),
            some => forgotten += some,
        }
    }
    let conflicts = if forgotten == 1 { "conflict" } else { "conflicts" };
    print(&format!("forgot {forgotten} {conflicts}\n"))?;
    Ok(Exit::Ok.code())
}

fn no_conflict(path: &Path) -> Error {
    Error::Failed(format!(
        "{}: no such conflict is known; see `forebay conflicts list`",
        WirePath::from(path)
    ))
}
