//! Commands on paths: `where`, `warm`, `evict`, `pin`, `unpin`, `sync`, `refresh`.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::progress::Meter;
use super::{print, print_json};
use crate::cli::{PathArgs, QueryArgs, WarmArgs};
use crate::control::{Client, Outcome, Request, WirePath};
use crate::error::{Error, Exit};
use crate::{mountinfo, render};

/// Bytes of paths in one request; JSON makes them up to four times as long.
pub(super) const REQUEST_PATH_BYTES: usize = 200 << 10;

/// An operation on paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Bring in.
    Warm,
    /// Remove copies.
    Evict,
    /// Keep.
    Pin,
    /// Keep no longer.
    Unpin,
    /// Write back.
    Sync,
    /// Compare with the backing store.
    Refresh,
}

impl Work {
    fn request(self, paths: Vec<WirePath>) -> Request {
        match self {
            Work::Warm => Request::Warm { paths },
            Work::Evict => Request::Evict { paths },
            Work::Pin => Request::Pin { paths },
            Work::Unpin => Request::Unpin { paths },
            Work::Sync => Request::Sync { paths },
            Work::Refresh => Request::Refresh { paths },
        }
    }

    fn past(self) -> &'static str {
        match self {
            Work::Warm => "warmed",
            Work::Evict => "evicted",
            Work::Pin => "pinned",
            Work::Unpin => "unpinned",
            Work::Sync => "synced",
            Work::Refresh => "refreshed",
        }
    }
}

/// The paths that lie on one mount, below its mount point.
struct Group {
    client: Client,
    paths: Vec<WirePath>,
}

/// Paths by their mounts, and what is wrong with those that are on none.
struct Groups {
    groups: Vec<Group>,
    errors: Vec<Error>,
}

impl Groups {
    /// Connects to the mount of each path.
    ///
    /// # Errors
    /// If none of the paths is on a mount that answers: why the first is not.
    fn of(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut all = Self { groups: Vec::new(), errors: Vec::new() };
        for path in paths {
            if let Err(error) = all.add(path) {
                all.errors.push(error);
            }
        }
        match all.groups.is_empty() {
            true => Err(all.errors.swap_remove(0)).inspect_err(|_| all.complain()),
            false => Ok(all),
        }
    }

    /// A symbolic link counts with what it leads to; with a slash behind its name, only that is meant.
    fn add(&mut self, path: &Path) -> Result<(), Error> {
        let failed = || Error::io(path.display().to_string());
        let real = mountinfo::resolve(path).map_err(failed())?;
        if !real.symlink_metadata().is_ok_and(|found| found.is_symlink()) {
            return self.add_real(path, &real);
        }
        let target = std::fs::canonicalize(path);
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return self.add_real(path, &target.map_err(failed())?);
        }
        let link = self.add_real(path, &real);
        let Ok(target) = target else { return link };
        let led_to = self.add_real(path, &target);
        if link.is_ok() && led_to.is_err() {
            super::tell(&format!(
                "{} leads to {}, which is on no Forebay mount: the link alone is meant",
                path.display(),
                target.display()
            ));
        }
        link.or(led_to)
    }

    fn add_real(&mut self, path: &Path, real: &Path) -> Result<(), Error> {
        let mounts = mountinfo::read().map_err(Error::io("/proc/self/mountinfo"))?;
        let listed = mountinfo::containing(&mounts, real).filter(|mount| mount.is_forebay());
        let place = listed.map_or(real, |mount| &mount.mountpoint);
        let below = |client: &Client| {
            let below = client.inside(real).ok_or_else(|| Error::NotMounted(path.to_owned()))?;
            Ok::<_, Error>(WirePath::from(below))
        };
        match self.groups.iter_mut().find(|group| group.client.mountpoint() == place) {
            Some(group) => group.paths.push(below(&group.client)?),
            None => {
                let client = Client::for_path(place)?;
                let paths = vec![below(&client)?];
                self.groups.push(Group { client, paths });
            }
        }
        Ok(())
    }

    /// Tells what is wrong with paths.
    fn complain(&self) {
        for error in &self.errors {
            super::tell(&error.to_string());
        }
    }
}

/// Cuts a list into portions that fit a request each.
pub(crate) fn portions(paths: Vec<WirePath>) -> Vec<Vec<WirePath>> {
    let mut portions = vec![Vec::new()];
    let mut bytes = 0;
    for path in paths {
        let length = path.0.as_os_str().len() + 4;
        if bytes + length > REQUEST_PATH_BYTES && bytes > 0 {
            portions.push(Vec::new());
            bytes = 0;
        }
        bytes += length;
        if let Some(portion) = portions.last_mut() {
            portion.push(path);
        }
    }
    portions
}

/// Prints where paths are.
pub fn locate(args: &QueryArgs) -> Result<u8, Error> {
    let mut groups = Groups::of(&args.paths)?;
    let mut all = Vec::new();
    for group in &mut groups.groups {
        for paths in portions(std::mem::take(&mut group.paths)) {
            match group.client.locate(paths.clone()) {
                Ok(found) => all.extend(found),
                // One of them is not there, or all: each by itself.
                Err(Error::Control(_)) => {
                    for path in paths {
                        match group.client.locate(vec![path]) {
                            Ok(found) => all.extend(found),
                            Err(error) => groups.errors.push(error),
                        }
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
    if args.json {
        print_json(&all)?;
    } else {
        print(&render::locations(&all))?;
    }
    groups.complain();
    Ok(if groups.errors.is_empty() { Exit::Ok } else { Exit::Failed }.code())
}

/// Carries out an operation on paths and prints its outcome.
pub fn work(work: Work, args: &PathArgs) -> Result<u8, Error> {
    let mut groups = Groups::of(&args.paths)?;
    groups.complain();
    let mut exit = if groups.errors.is_empty() { Exit::Ok } else { Exit::Failed };
    for group in &mut groups.groups {
        let mut meter = Meter::new(args.quiet || args.json);
        let mut total = Outcome { complete: true, ..Outcome::default() };
        for paths in portions(std::mem::take(&mut group.paths)) {
            let request = work.request(paths);
            add(
                &mut total,
                group.client.work(request, None, &mut |progress| meter.show(progress))?,
            );
        }
        drop(meter);
        if args.json {
            print_json(&total)?;
        } else {
            print(&render::outcome(work.past(), &total))?;
        }
        if total.failed > 0 || !total.complete {
            exit = Exit::Failed;
        }
    }
    Ok(exit.code())
}

/// `warm`, of which another process waits for the end where that is wished.
pub fn warm(args: &WarmArgs) -> Result<u8, Error> {
    if !args.background {
        return work(Work::Warm, &args.paths);
    }
    let groups = Groups::of(&args.paths.paths)?;
    groups.complain();
    let program = std::env::current_exe().map_err(Error::io("this program"))?;
    let mut command = Command::new(program);
    command.args(["warm", "--quiet", "--"]).stdin(Stdio::null());
    for group in &groups.groups {
        command.args(group.paths.iter().filter_map(|path| group.client.outside(&path.0)));
    }
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: setsid(2) is safe between fork and exec. It outlives the terminal so.
    unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
    let child = command.spawn().map_err(Error::io("forebay warm"))?;
    if !args.paths.quiet {
        print(&format!(
            "warming in the background, process {}; `forebay status` shows how far it is, and the \
             log of the mount how it ended\n",
            child.id()
        ))?;
    }
    Ok(if groups.errors.is_empty() { Exit::Ok } else { Exit::Failed }.code())
}

pub(super) fn add(total: &mut Outcome, part: Outcome) {
    total.files += part.files;
    total.bytes += part.bytes;
    total.skipped += part.skipped;
    total.failed += part.failed;
    total.complete &= part.complete;
    total.elsewhere += part.elsewhere;
    total.written_in_use += part.written_in_use;
    total.cut_short |= part.cut_short;
    total.failures.extend(part.failures);
    total.failures.truncate(1000);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_when_the_list_is_long_then_all_paths_are_in_order_and_requests_small() {
        let paths: Vec<WirePath> = (0..10_000).map(|n| format!("{n:0100}").into()).collect();
        let cut = portions(paths.clone());
        assert!(cut.len() > 4);
        assert!(
            cut.iter()
                .all(|p| p.iter().map(|p| p.0.as_os_str().len()).sum::<usize>()
                    <= REQUEST_PATH_BYTES)
        );
        assert_eq!(cut.concat(), paths);
    }
}
