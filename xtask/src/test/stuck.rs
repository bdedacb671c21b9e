//! File systems in user space that were left waiting for a daemon which never answers.
//!
//! A process in such a wait ends by no signal, and whoever waits for the process waits for ever.
//! The kernel lets it go when its connection is aborted.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// A request that waits longer than this, while its program is being ended, is not answered.
const PATIENCE: Duration = Duration::from_secs(2);

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
        std::thread::sleep(PATIENCE);
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
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
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
}
