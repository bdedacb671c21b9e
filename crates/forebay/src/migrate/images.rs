//! A private directory for the image of a task, removed with the value.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::plan::{self, Room};
use crate::error::Error;
use crate::units::format_bytes;

/// Where images go unless somebody says otherwise.
const IN_MEMORY: &str = "/dev/shm";
const ON_DISK: &str = "/var/tmp";

/// The directory.
#[derive(Debug)]
pub struct Images(PathBuf);

impl Images {
    /// Makes one, in this directory or where a tree of this size has room.
    pub fn make(within: Option<&Path>, tree_bytes: u64) -> Result<Self, Error> {
        let within = match within {
            Some(within) => within.to_owned(),
            None => choose(tree_bytes)?,
        };
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = within.join(format!("forebay-image.{}.{number}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(Error::io(path.display().to_string()))?;
        Ok(Self(path))
    }

    /// Its path.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// What the image comes to. Logs are no part of it.
    pub fn bytes(&self) -> u64 {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let images =
            entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "img"));
        images.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn choose(tree_bytes: u64) -> Result<PathBuf, Error> {
    let room = Room {
        memory_bytes: available_memory(),
        in_memory_bytes: free(Path::new(IN_MEMORY)),
        on_disk_bytes: free(Path::new(ON_DISK)),
    };
    match plan::place(tree_bytes, &room) {
        Some(plan::Place::Memory) => Ok(IN_MEMORY.into()),
        Some(plan::Place::Disk) => Ok(ON_DISK.into()),
        None => Err(Error::Failed(format!(
            "there is no room for the image of the task and for its copy ({} each): {} of memory are \
             free, {} in {ON_DISK}; --images names another directory",
            format_bytes(tree_bytes),
            format_bytes(room.memory_bytes),
            format_bytes(room.on_disk_bytes),
        ))),
    }
}

fn free(dir: &Path) -> u64 {
    rustix::fs::statvfs(dir).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize))
}

fn available_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_when_done_with_then_its_directory_is_gone_and_was_private() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let images = Images::make(Some(dir.path()), 0).unwrap();
        let other = Images::make(Some(dir.path()), 0).unwrap();
        assert_ne!(images.dir(), other.dir());
        assert_eq!(fs::metadata(images.dir()).unwrap().mode() & 0o777, 0o700);
        fs::write(images.dir().join("pages-1.img"), [0; 100]).unwrap();
        fs::write(images.dir().join("dump.log"), [0; 1000]).unwrap();
        assert_eq!(images.bytes(), 100);
        let at = images.dir().to_owned();
        drop((images, other));
        assert!(!at.exists());
    }

    #[test]
    fn room_when_asked_of_this_machine_then_known() {
        assert!(available_memory() > 0 && free(Path::new("/")) > 0);
        assert_eq!(free(Path::new("/no/such/directory")), 0);
    }
}
