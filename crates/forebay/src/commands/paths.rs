//! Commands on paths: `where`, `warm`, `evict`, `pin`, `unpin`, `sync`.

use std::path::PathBuf;

use super::progress::Meter;
use super::{print, print_json};
use crate::cli::{PathArgs, QueryArgs};
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
}

impl Work {
    fn request(self, paths: Vec<WirePath>) -> Request {
        match self {
            Work::Warm => Request::Warm { paths },
            Work::Evict => Request::Evict { paths },
            Work::Pin => Request::Pin { paths },
            Work::Unpin => Request::Unpin { paths },
            Work::Sync => Request::Sync { paths },
        }
    }

    fn past(self) -> &'static str {
        match self {
            Work::Warm => "warmed",
            Work::Evict => "evicted",
            Work::Pin => "pinned",
            Work::Unpin => "unpinned",
            Work::Sync => "synced",
        }
    }
}

/// The paths that lie on one mount, below its mount point.
struct Group {
    client: Client,
    paths: Vec<WirePath>,
}

/// Connects to the mount of each path.
fn group(paths: &[PathBuf]) -> Result<Vec<Group>, Error> {
    let mut groups: Vec<Group> = Vec::new();
    for path in paths {
        let real = mountinfo::resolve(path).map_err(Error::io(path.display().to_string()))?;
        let mounts = mountinfo::read().map_err(Error::io("/proc/self/mountinfo"))?;
        let listed = mountinfo::containing(&mounts, &real).filter(|mount| mount.is_forebay());
        let place = listed.map_or(&real, |mount| &mount.mountpoint);
        let index = match groups.iter().position(|group| group.client.mountpoint() == place) {
            Some(index) => index,
            None => {
                groups.push(Group { client: Client::for_path(place)?, paths: Vec::new() });
                groups.len() - 1
            }
        };
        let below = real.strip_prefix(place).map_err(|_| Error::NotMounted(path.clone()))?;
        groups[index].paths.push(below.into());
    }
    Ok(groups)
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
pub fn locate(args: &QueryArgs) -> Result<(), Error> {
    let mut all = Vec::new();
    for mut group in group(&args.paths)? {
        for paths in portions(group.paths) {
            all.extend(group.client.locate(paths)?);
        }
    }
    if args.json { print_json(&all) } else { print(&render::locations(&all)) }
}

/// Carries out an operation on paths and prints its outcome.
pub fn work(work: Work, args: &PathArgs) -> Result<u8, Error> {
    let mut exit = Exit::Ok;
    for mut group in group(&args.paths)? {
        let mut meter = Meter::new(args.quiet || args.json);
        let mut total = Outcome { complete: true, ..Outcome::default() };
        for paths in portions(group.paths) {
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
