//! Which directories lie in which: the facts behind refusing a tier inside the backing store or a
//! mount point inside a tier.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, CWD, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::{Result, StoreError};

/// How two directories lie to each other. Symbolic links and bind mounts are looked through, as far
/// as a directory's parents tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relation {
    /// Both are the same directory.
    pub same: bool,
    /// The first lies below the second.
    pub first_inside_second: bool,
    /// The second lies below the first.
    pub second_inside_first: bool,
    /// Both are on the same file system (device): their space is shared.
    pub same_file_system: bool,
    /// Both are on the same mount: renames between them are possible.
    pub same_mount: bool,
}

impl Relation {
    /// Whether neither is the other or lies in the other.
    #[must_use]
    pub fn is_separate(&self) -> bool {
        !(self.same || self.first_inside_second || self.second_inside_first)
    }
}

/// Device and inode: what makes a directory itself.
type Identity = (u64, u64);

fn identity(path: &Path) -> Result<Identity> {
    fs::stat(path)
        .map(|stat| (stat.st_dev, stat.st_ino))
        .map_err(|e| StoreError::io("stat", path, e))
}

fn mount_of(path: &Path) -> Result<u64> {
    fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)
        .map(|stat| stat.stx_mnt_id)
        .map_err(|e| StoreError::io("stat", path, e))
}

/// The path without links, also of a directory that does not exist yet: its nearest ancestor counts.
fn resolved(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path).map_err(|e| StoreError::io("resolve", path, e))?;
    let mut at: &Path = &absolute;
    loop {
        match std::fs::canonicalize(at) {
            Ok(found) => {
                let rest = absolute.strip_prefix(at).unwrap_or(Path::new(""));
                return Ok(found.join(rest));
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => match at.parent() {
                Some(parent) => at = parent,
                None => return Err(StoreError::io("resolve", path, e)),
            },
            Err(e) => return Err(StoreError::io("resolve", path, e)),
        }
    }
}

/// The identities of a directory and all its existing ancestors, itself first (`None` while it does
/// not exist).
fn line(path: &Path) -> Result<Vec<Option<Identity>>> {
    path.ancestors()
        .map(|ancestor| match identity(ancestor) {
            Ok(id) => Ok(Some(id)),
            Err(e) if e.errno() == libc::ENOENT => Ok(None),
            Err(e) => Err(e),
        })
        .collect()
}

fn existing(path: &Path) -> &Path {
    path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("/"))
}

/// Finds out how two directories lie to each other. They need not exist yet.
pub fn relation(first: &Path, second: &Path) -> Result<Relation> {
    let (first, second) = (resolved(first)?, resolved(second)?);
    let (first_line, second_line) = (line(&first)?, line(&second)?);
    let inside = |line: &[Option<Identity>], of: Option<Identity>, path: &Path, dir: &Path| {
        (of.is_some() && line[1..].contains(&of)) || (path != dir && path.starts_with(dir))
    };
    let same = first == second || (first_line[0].is_some() && first_line[0] == second_line[0]);
    let (there, here) = (existing(&first), existing(&second));
    Ok(Relation {
        same,
        first_inside_second: !same && inside(&first_line, second_line[0], &first, &second),
        second_inside_first: !same && inside(&second_line, first_line[0], &second, &first),
        same_file_system: identity(there)?.0 == identity(here)?.0,
        same_mount: mount_of(there)? == mount_of(here)?,
    })
}

/// Type of the file system that a path is on, as in `/proc/mounts` ("ext4", "fuse.forebay"), with
/// the mount point. The path need not exist yet.
pub fn mount_at(path: &Path) -> Result<(String, PathBuf)> {
    const MOUNTS: &str = "/proc/self/mountinfo";
    let id = mount_of(existing(&resolved(path)?))?.to_string();
    let text = std::fs::read_to_string(MOUNTS).map_err(|e| StoreError::io("read", MOUNTS, e))?;
    let line = text.lines().find(|line| line.split(' ').next() == Some(&id));
    let found = line.and_then(|line| {
        let (mount, source) = line.split_once(" - ")?;
        Some((source.split(' ').next()?.to_owned(), unescape(mount.split(' ').nth(4)?)))
    });
    found.ok_or(StoreError::Damaged { path: MOUNTS.into(), what: "mount table" })
}

/// Mounts below a directory that are looked at.
const MAX_MOUNTS: usize = 1000;
/// Mounts below a directory that say nothing of what belongs there: triggers, and our own.
const NO_STORES: [&str; 2] = ["autofs", "fuse.forebay"];

/// The directories below a directory on which other file systems are mounted, as paths from there.
pub fn mounts_below(dir: &Path) -> Result<Vec<PathBuf>> {
    const MOUNTS: &str = "/proc/thread-self/mountinfo";
    let dir = resolved(dir)?;
    let text = std::fs::read(MOUNTS).map_err(|e| StoreError::io("read", MOUNTS, e))?;
    let text = String::from_utf8_lossy(&text);
    let mut found: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| {
            let (mount, source) = line.split_once(" - ")?;
            if NO_STORES.contains(&source.split(' ').next()?) {
                return None;
            }
            let point = unescape(mount.split(' ').nth(4)?);
            let below = point.strip_prefix(&dir).ok()?;
            (!below.as_os_str().is_empty() && is_mounted(&point)).then(|| below.to_owned())
        })
        .take(MAX_MOUNTS)
        .collect();
    found.sort();
    found.dedup();
    Ok(found)
}

/// Whether a file system is mounted on a directory; one that mounts itself when it is asked for is.
/// If it can't be asked, it is there.
#[must_use]
pub fn is_mounted(dir: &Path) -> bool {
    // What is known here will do: its server may not answer.
    match fs::statx(CWD, dir, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE) {
        Ok(found) => {
            let known = found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
            !known || found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
        }
        Err(e) => !matches!(e, Errno::NOENT | Errno::NOTDIR),
    }
}

/// Undoes the octal escapes of blanks and backslashes in mountinfo (proc(5)).
fn unescape(field: &str) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                out.push(byte);
                rest = &tail[3..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relation_of_nested_linked_and_new_directories_is_seen() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::create_dir(at("ab")).unwrap();
        std::os::unix::fs::symlink(at("a/b"), at("link")).unwrap();
        let of = |a: &str, b: &str| relation(&at(a), &at(b)).unwrap();
        assert!(of("a", "ab").is_separate() && of("a", "ab").same_mount);
        assert!(of("a/b", "a").first_inside_second);
        assert!(of("a", "link").second_inside_first);
        assert!(of("link", "a/b").same);
        assert!(of("a/new/newer", "a").first_inside_second);
        assert!(of("link/new", "a/b").first_inside_second);
        assert!(of("new", "new").same && of("new", "new2").is_separate());
        let other = relation(base.path(), Path::new("/dev/shm")).unwrap();
        assert!(!other.same_file_system && !other.same_mount && other.is_separate());
    }

    #[test]
    fn mount_at_a_known_mount_gives_its_type() {
        let (kind, point) = mount_at(Path::new("/dev/shm/not/there")).unwrap();
        assert_eq!((kind.as_str(), point.as_path()), ("tmpfs", Path::new("/dev/shm")));
        assert_eq!(unescape(r"/a\040b\134c"), Path::new(r"/a b\c"));
    }
}
