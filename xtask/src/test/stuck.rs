//! File systems in user space that were left waiting for a daemon which never answers.
//!
//! A process in such a wait ends by no signal, and whoever waits for the process waits for ever.
//! The kernel lets it go when its connection is aborted.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::mount::UnmountFlags;

const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// A request that waits longer than this, while its program is being ended, is not answered.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The connections that were there before the tests: never touched.
#[derive(Debug)]
pub struct Before(BTreeSet<u32>);

impl Before {
    /// Looks now.
    pub fn look() -> Self {
        Self(connections().collect())
    }

    /// Aborts the connections made since then that have requests waiting, unless they are mounted
    /// where no test mounts anything. How many.
    pub fn abort_waiting(&self) -> usize {
        let first: BTreeSet<u32> = self.waiting().collect();
        std::thread::sleep(ANSWER_TIMEOUT);
        let elsewhere = mounted_elsewhere();
        let still = self.waiting().filter(|id| first.contains(id) && !elsewhere.contains(id));
        still.filter(|id| std::fs::write(entry(*id, "abort"), "1").is_ok()).count()
    }

    fn waiting(&self) -> impl Iterator<Item = u32> {
        connections().filter(|id| !self.0.contains(id)).filter(|id| {
            let waiting = std::fs::read_to_string(entry(*id, "waiting")).unwrap_or_default();
            waiting.trim().parse::<u64>().is_ok_and(|count| count > 0)
        })
    }
}

/// Mounts, those last made first.
#[derive(Debug)]
pub struct Mounts(Vec<(u32, PathBuf)>);

impl Mounts {
    /// What is mounted below these directories.
    pub fn below(places: &BTreeSet<PathBuf>) -> Self {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut found: Vec<_> = mounts.lines().filter_map(mount).collect();
        found.retain(|(_, point)| places.iter().any(|place| point.starts_with(place)));
        found.reverse();
        Self(found)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends them, and says which they were. Connections of file systems in user space are aborted
    /// before: to look at a mount whose daemon does not answer would take for ever.
    pub fn end(self) -> Vec<String> {
        for (minor, _) in &self.0 {
            // Of other file systems there is none.
            let _ = std::fs::write(entry(*minor, "abort"), "1");
        }
        self.0
            .iter()
            .map(|(_, point)| format!("mount {}{}", point.display(), unmount(point)))
            .collect()
    }
}

/// Takes a mount away, also one in use. What to add to its name where that fails.
fn unmount(point: &Path) -> &'static str {
    if rustix::mount::unmount(point, UnmountFlags::DETACH).is_ok() {
        return "";
    }
    // Who is not root may do it by this program only. Its end may be seen by another thread.
    let mut helper = Command::new("fusermount3");
    helper.arg("-uz").arg(point).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _ = helper.status();
    let there = Mounts::below(&BTreeSet::from([point.to_owned()]));
    if there.is_empty() { "" } else { ", which can't be unmounted" }
}

/// The minor device number and the place of a line of mountinfo.
fn mount(line: &str) -> Option<(u32, PathBuf)> {
    let mut fields = line.split(' ').skip(2);
    let (device, point) = (fields.next()?, fields.nth(1)?);
    let (major, minor) = device.split_once(':')?;
    // Only devices without a number of their own can be such connections.
    let minor = if major == "0" { minor.parse().ok()? } else { u32::MAX };
    Some((minor, unescape(point)))
}

/// The kernel writes blanks and the like as three octal digits.
fn unescape(text: &str) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let code = after.first_chunk::<3>().filter(|_| *first == b'\\');
        let code = code.and_then(|code| u8::from_str_radix(str::from_utf8(code).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    std::ffi::OsString::from_vec(bytes).into()
}

fn entry(id: u32, file: &str) -> PathBuf {
    Path::new(CONNECTIONS).join(id.to_string()).join(file)
}

fn connections() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir(CONNECTIONS).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The minor device numbers, which are the connections' numbers, of what is mounted outside the
/// directories for temporary files.
fn mounted_elsewhere() -> BTreeSet<u32> {
    // A run has mounts of its own; those of the machine are the first process's.
    let read = |process: &str| std::fs::read_to_string(format!("/proc/{process}/mountinfo"));
    let mounts = ["self", "1"].map(|process| read(process).unwrap_or_default()).concat();
    let ours = [std::env::temp_dir(), "/dev/shm".into(), "/var/tmp".into()];
    mounts.lines().filter_map(|line| elsewhere(line, &ours)).collect()
}

fn elsewhere(line: &str, ours: &[PathBuf]) -> Option<u32> {
    let mut fields = line.split(' ').skip(2);
    let (device, point) = (fields.next()?, fields.nth(1)?);
    let minor = device.strip_prefix("0:")?.parse().ok()?;
    (!ours.iter().any(|directory| Path::new(point).starts_with(directory))).then_some(minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elsewhere_when_a_mount_is_outside_then_its_connection_else_none() {
        let ours = [PathBuf::from("/tmp/x"), PathBuf::from("/dev/shm")];
        let line =
            |point: &str| format!("97 28 0:57 / {point} rw,nosuid - fuse.forebay forebay rw");
        assert_eq!(elsewhere(&line("/home/me/photos"), &ours), Some(57));
        assert_eq!(elsewhere(&line("/tmp/x/mount"), &ours), None);
        assert_eq!(elsewhere(&line("/dev/shm/t/m"), &ours), None);
        assert_eq!(elsewhere(&line("/tmp/xy"), &ours), Some(57));
        assert_eq!(elsewhere("28 1 254:0 / / rw - ext4 /dev/vda rw", &ours), None);
        assert_eq!(elsewhere("", &ours), None);
    }

    #[test]
    fn mount_when_its_place_has_blanks_then_they_are_read() {
        let line = r"97 28 0:57 / /tmp/a\040b\134c rw - fuse.forebay forebay rw";
        assert_eq!(mount(line), Some((57, PathBuf::from(r"/tmp/a b\c"))));
        assert_eq!(mount("28 1 254:0 / / rw"), Some((u32::MAX, PathBuf::from("/"))));
    }
}
