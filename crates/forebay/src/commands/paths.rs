//! Commands on paths: `where`, `warm`, `evict`, `pin`, `unpin`, `sync`, and `hint`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::progress::Meter;
use super::{print, print_json};
use crate::cli::{HintArgs, PathArgs, QueryArgs};
use crate::control::{Client, Outcome, Request, WirePath};
use crate::error::{Error, Exit};
use crate::{mountinfo, render};

/// Bytes of paths in one request; JSON makes them up to four times as long.
const REQUEST_PATH_BYTES: usize = 200 << 10;

/// The longest path in a list, beyond PATH_MAX.
const LIST_PATH_MAX: u64 = 16 << 10;

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
fn portions(paths: Vec<WirePath>) -> Vec<Vec<WirePath>> {
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

fn add(total: &mut Outcome, part: Outcome) {
    total.files += part.files;
    total.bytes += part.bytes;
    total.skipped += part.skipped;
    total.failed += part.failed;
    total.complete &= part.complete;
    total.failures.extend(part.failures);
    total.failures.truncate(1000);
}

/// Sends the reference sequence of a job.
pub fn hint(args: &HintArgs) -> Result<(), Error> {
    if args.job.is_empty() || args.job.len() > 255 || args.job.chars().any(char::is_control) {
        return Err(Error::Usage("--job: give a name of 1 to 255 printable bytes".into()));
    }
    let mut client = Client::for_path(&args.mountpoint)?;
    let input: Box<dyn Read> = if args.list == Path::new("-") {
        Box::new(io::stdin())
    } else {
        let open = File::open(&args.list);
        Box::new(open.map_err(|source| Error::File { path: args.list.clone(), source })?)
    };
    let end = if args.null { 0 } else { b'\n' };
    let mut list = BufReader::new(input);
    let (mut portion, mut bytes, mut count) = (Vec::new(), 0, 0u64);
    while let Some(path) = next_path(&mut list, end, count + 1)? {
        count += 1;
        let below = below(&path, client.mountpoint()).map_err(|why| {
            Error::Usage(format!(
                "{}: entry {count}: {}: {why}",
                args.list.display(),
                path.display()
            ))
        })?;
        bytes += below.0.as_os_str().len() + 4;
        portion.push(below);
        if bytes >= REQUEST_PATH_BYTES {
            send(&mut client, &args.job, std::mem::take(&mut portion), false)?;
            bytes = 0;
        }
    }
    send(&mut client, &args.job, portion, true)?;
    if args.json {
        print_json(&serde_json::json!({ "job": args.job, "paths": count }))
    } else {
        print(&format!("job {}: {count} paths\n", args.job))
    }
}

fn send(client: &mut Client, job: &str, paths: Vec<WirePath>, last: bool) -> Result<(), Error> {
    let request = Request::Hint { job: job.to_owned(), paths, last };
    client.order(request, Duration::from_secs(60))
}

/// The next path of a list; empty ones are left out.
fn next_path(list: &mut impl BufRead, end: u8, number: u64) -> Result<Option<PathBuf>, Error> {
    loop {
        let mut text = Vec::new();
        let read = list.by_ref().take(LIST_PATH_MAX).read_until(end, &mut text);
        if read.map_err(Error::io("reading the list"))? == 0 {
            return Ok(None);
        }
        if text.last() == Some(&end) {
            text.pop();
        } else if text.len() as u64 == LIST_PATH_MAX {
            return Err(Error::Usage(format!(
                "entry {number} of the list is longer than a path can be; is it separated by NUL? then give -0"
            )));
        }
        if !text.is_empty() {
            return Ok(Some(OsString::from_vec(text).into()));
        }
    }
}

/// A path of a list as the daemon knows it.
fn below(path: &Path, mountpoint: &Path) -> Result<WirePath, &'static str> {
    let inside = if path.is_absolute() {
        path.strip_prefix(mountpoint).map_err(|_| "is not below the mount point")?
    } else {
        path
    };
    let mut plain = PathBuf::new();
    for component in inside.components() {
        match component {
            Component::Normal(name) => plain.push(name),
            Component::CurDir => {}
            _ => return Err("must not contain '..'"),
        }
    }
    if plain.as_os_str().is_empty() { Err("is the mount point itself") } else { Ok(plain.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_when_absolute_or_relative_then_the_same_path() {
        let mount = Path::new("/mnt/x");
        assert_eq!(below(Path::new("/mnt/x/a/b"), mount), Ok("a/b".into()));
        assert_eq!(below(Path::new("./a//b"), mount), Ok("a/b".into()));
        assert!(below(Path::new("/mnt/xy/a"), mount).is_err());
        assert!(below(Path::new("../a"), mount).is_err());
        assert!(below(Path::new("/mnt/x"), mount).is_err());
    }

    #[test]
    fn next_path_when_separators_differ_then_both_are_read_and_long_ones_refused() {
        let mut list = &b"a\n\nb"[..];
        assert_eq!(next_path(&mut list, b'\n', 1).unwrap(), Some("a".into()));
        assert_eq!(next_path(&mut list, b'\n', 2).unwrap(), Some("b".into()));
        assert_eq!(next_path(&mut list, b'\n', 3).unwrap(), None);
        let mut list = &b"a\nb\0c\0"[..];
        assert_eq!(next_path(&mut list, 0, 1).unwrap(), Some("a\nb".into()));
        let long = vec![b'x'; 20 << 10];
        assert!(next_path(&mut &long[..], b'\n', 1).is_err());
    }

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
