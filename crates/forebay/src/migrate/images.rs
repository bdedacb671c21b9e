//! A private directory for the image of a task, removed with the value.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::plan::{self, Room};
use crate::error::Error;
use crate::units::format_bytes;

/// Where images go unless somebody says otherwise.
const IN_MEMORY: &str = "/dev/shm";
const ON_DISK: &str = "/var/tmp";

/// How its name begins.
const NAME: &str = "forebay-image.";
/// Names that are tried: others may have taken some.
const TRIES: usize = 100;

/// The directory. It is locked while it is used, so that one whose keeper was killed is known.
#[derive(Debug)]
pub struct Images {
    path: PathBuf,
    _lock: File,
}

impl Images {
    /// Makes one, in this directory or where a tree of this size has room. What dead ones have left
    /// there is removed before.
    pub fn make(within: Option<&Path>, tree_bytes: u64) -> Result<Self, Error> {
        remove_left_behind();
        within.into_iter().for_each(remove_left);
        let within = match within {
            Some(within) => within.to_owned(),
            None => choose(tree_bytes)?,
        };
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut refused = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..TRIES {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = within.join(format!("{NAME}{}.{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    refused = error;
                    continue;
                }
                Err(error) => return Err(Error::io(path.display().to_string())(error)),
            }
            // Somebody may have removed it before it was locked.
            if let Some(lock) = locked(&path) {
                return Ok(Self { path, _lock: lock });
            }
        }
        Err(Error::io(within.display().to_string())(refused))
    }

    /// Its path.
    pub fn dir(&self) -> &Path {
        &self.path
    }

    /// What the image comes to. Logs are no part of it.
    pub fn bytes(&self) -> u64 {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let images =
            entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "img"));
        images.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A directory of this user that nobody else has locked and that is still there.
fn locked(path: &Path) -> Option<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let found = file.metadata().ok()?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).ok()?;
    let named = fs::symlink_metadata(path).ok()?;
    let same = (named.dev(), named.ino()) == (found.dev(), found.ino());
    (own && same).then_some(file)
}

/// Removes what keepers that were killed have left where images go unless somebody says otherwise.
pub fn remove_left_behind() {
    [IN_MEMORY, ON_DISK].map(Path::new).into_iter().for_each(remove_left);
}

/// Removes images whose keepers were killed: an image is as large as its task.
fn remove_left(within: &Path) {
    let entries = fs::read_dir(within).into_iter().flatten().flatten();
    for entry in
        entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(NAME.as_bytes()))
    {
        if let Some(_lock) = locked(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn choose(tree_bytes: u64) -> Result<PathBuf, Error> {
    let room = Room {
        memory_bytes: available_memory(),
        in_memory_bytes: free(Path::new(IN_MEMORY)),
        on_disk_bytes: free(Path::new(ON_DISK)),
    };
    match plan::image_storage(tree_bytes, &room) {
        Some(plan::ImageStorage::Memory) => Ok(IN_MEMORY.into()),
        Some(plan::ImageStorage::Disk) => Ok(ON_DISK.into()),
        None => Err(Error::Failed(format!(
            "there is no room for the image of the task and for its copy ({} each): {} of memory are \
             free, {} in {ON_DISK}",
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
    fn image_when_its_keeper_was_killed_then_removed_by_the_next_and_others_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let used = Images::make(Some(dir.path()), 0).unwrap();
        let left = dir.path().join("forebay-image.1.0");
        fs::create_dir(&left).unwrap();
        fs::write(left.join("pages-1.img"), [0; 100]).unwrap();
        let (other, file) = (dir.path().join("other"), dir.path().join("forebay-image.2.0"));
        fs::create_dir(&other).unwrap();
        fs::write(&file, "").unwrap();
        let link = dir.path().join("forebay-image.3.0");
        std::os::unix::fs::symlink(&other, &link).unwrap();
        let next = Images::make(Some(dir.path()), 0).unwrap();
        assert!(!left.exists());
        for kept in [used.dir(), next.dir(), &other, &file, &link] {
            assert!(kept.exists(), "{}", kept.display());
        }
    }

    #[test]
    fn room_when_asked_of_this_machine_then_known() {
        assert!(available_memory() > 0 && free(Path::new("/")) > 0);
        assert_eq!(free(Path::new("/no/such/directory")), 0);
    }
}
