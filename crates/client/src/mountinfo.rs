//! The kernel's list of mounts, as /proc/self/mountinfo gives it (proc_pid_mountinfo(5)).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The type under which the kernel lists our mounts.
pub const FILE_SYSTEM_TYPE: &str = "fuse.forebay";

/// One mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// Device number, `major:minor`; bind mounts of one file system share it.
    pub device: String,
    /// Which directory or file of the file system is there, from its root: not `/` for bind mounts of
    /// parts of it.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Type and subtype, such as `fuse.forebay`.
    pub kind: String,
    /// What is mounted; for our mounts the backing store.
    pub source: OsString,
    /// Options of the file system.
    pub options: String,
}

impl Mount {
    /// Whether it is one of ours.
    pub fn is_forebay(&self) -> bool {
        self.kind == FILE_SYSTEM_TYPE
    }

    /// Whether it is a bind mount of a part of its file system.
    pub fn is_of_part(&self) -> bool {
        !self.root.as_os_str().is_empty() && self.root != Path::new("/")
    }

    /// Whether two mounts, perhaps of different moments or mount namespaces, show one file system. The number
    /// of the device of one that is gone is given to the next one.
    pub fn shows_same(&self, other: &Mount) -> bool {
        (&self.device, &self.kind, &self.source) == (&other.device, &other.kind, &other.source)
    }

    /// The user who mounted it, as the kernel knows it.
    pub fn user_id(&self) -> Option<u32> {
        self.options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
    }
}

/// Reads the list for this process.
pub fn read() -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Parses the list; lines that are not understood are left out.
pub fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    Some(Mount {
        device: text(fields.get(2)?),
        root: unescape(fields.get(3)?).into(),
        mountpoint: unescape(fields.get(4)?).into(),
        kind: text(fields.get(dash + 1)?),
        source: unescape(fields.get(dash + 2)?),
        options: fields.get(dash + 3).map(|field| text(field)).unwrap_or_default(),
    })
}

/// Undoes the kernel's octal escapes of space, tab, newline and backslash.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match octal {
            Some(digits) => {
                let value =
                    digits.iter().fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                out.push(value as u8);
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

/// The device of the mount with this number, in a list that any process sees.
#[must_use]
pub fn device_of(text: &[u8], number: u64) -> Option<String> {
    text.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let first = std::str::from_utf8(fields.next()?).ok()?;
        let device = fields.nth(1)?;
        (first.parse() == Ok(number)).then(|| String::from_utf8_lossy(device).into_owned())
    })
}

/// The uppermost mount at exactly this path; a later line hides an earlier one.
pub fn at<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts.iter().rev().find(|mount| mount.mountpoint == path)
}

/// The mount that an absolute path without symbolic links lies on.
pub fn containing<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts
        .iter()
        .enumerate()
        .filter(|(_, mount)| path.starts_with(&mount.mountpoint))
        .max_by_key(|(index, mount)| (mount.mountpoint.as_os_str().len(), *index))
        .map(|(_, mount)| mount)
}

/// Makes a path absolute and removes symbolic links. A mount point of ours is named without
/// touching it, so that this also works while its daemon is dead or stuck.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    let absolute = lexical(&std::env::current_dir()?.join(path));
    let mounts = read()?;
    if at(&mounts, &absolute).is_some_and(Mount::is_forebay) {
        return Ok(absolute);
    }
    let real = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            std::fs::canonicalize(parent).map(|parent| parent.join(name))
        }
        _ => std::fs::canonicalize(path),
    };
    // A dead mount above the path: the name as typed is all that there is.
    real.or_else(|error| {
        let ours = containing(&mounts, &absolute).is_some_and(Mount::is_forebay);
        if ours { Ok(absolute) } else { Err(error) }
    })
}

/// Removes `.` and resolves `..` by the text alone.
fn lexical(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            std::path::Component::ParentDir => {
                out.pop();
            }
            std::path::Component::CurDir => {}
            other => out.push(other),
        }
    }
    if out.as_os_str().is_empty() { PathBuf::from(OsStr::from_bytes(b"/")) } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
        61 22 0:52 / /mnt/a rw,nosuid - fuse.forebay /slow/tree rw,user_id=1000,group_id=0\n\
        62 22 0:53 /in\\040it /mnt/a\\040b rw - tmpfs tmpfs rw\n\
        broken line\n\
        63 61 0:54 / /mnt/a rw shared:7 - fuse.forebay /upper rw\n";

    #[test]
    fn mount_when_another_got_the_number_of_its_device_then_is_not_taken_for_it() {
        let gone = parse(b"61 22 0:52 / /mnt/a rw - fuse.forebay /slow/tree rw\n").remove(0);
        let bound = parse(b"90 22 0:52 /in /mnt/b rw - fuse.forebay /slow/tree rw\n").remove(0);
        let next = parse(b"91 22 0:52 / /mnt/c rw - fuse.forebay /other/tree rw\n").remove(0);
        assert!(gone.shows_same(&bound));
        assert!(!gone.shows_same(&next));
    }

    #[test]
    fn parse_when_fields_are_optional_or_escaped_then_all_is_read() {
        let mounts = parse(TEXT);
        assert_eq!(mounts.len(), 4);
        assert_eq!(mounts[1].user_id(), Some(1000));
        assert_eq!(mounts[1].source, "/slow/tree");
        assert_eq!(mounts[2].mountpoint, Path::new("/mnt/a b"));
        assert_eq!(mounts[2].root, Path::new("/in it"));
        assert!(mounts[3].is_forebay() && !mounts[2].is_forebay());
    }

    #[test]
    fn containing_when_mounts_are_stacked_then_the_uppermost_longest_counts() {
        let mounts = parse(TEXT);
        assert_eq!(containing(&mounts, Path::new("/mnt/a/x/y")).unwrap().source, "/upper");
        assert_eq!(containing(&mounts, Path::new("/mnt/ab")).unwrap().source, "/dev/vda");
        assert_eq!(at(&mounts, Path::new("/mnt/a")).unwrap().source, "/upper");
        assert!(at(&mounts, Path::new("/mnt")).is_none());
    }

    #[test]
    fn device_of_a_number_then_that_of_the_mount() {
        assert_eq!(device_of(TEXT, 62).as_deref(), Some("0:53"));
        assert_eq!(device_of(TEXT, 1), None);
        assert_eq!(device_of(b"62 22", 62), None);
    }

    #[test]
    fn lexical_when_dots_occur_then_they_are_gone() {
        assert_eq!(lexical(Path::new("/a/./b/../c")), Path::new("/a/c"));
        assert_eq!(lexical(Path::new("/..")), Path::new("/"));
    }
}
