//! Room held back on a disk for the moment when it is full.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate, statvfs};

const LEAST: u64 = 1 << 20;
const MOST: u64 = 16 << 20;
/// The share of its disk that a ballast takes.
const SHARE: u64 = 64;
/// How often a missing ballast is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// A file that takes up room until somebody needs it.
pub(super) struct Ballast {
    path: PathBuf,
    there: bool,
    tried: Option<Instant>,
}

impl Ballast {
    /// The ballast of a directory: a file beside it.
    pub fn beside(directory: &Path) -> Self {
        let path = directory.with_extension("ballast");
        let there = path.exists();
        Ballast { path, there, tried: None }
    }

    /// Gives its room up; says whether there was any.
    pub fn drop_to_make_room(&mut self) -> bool {
        self.there = false;
        self.tried = Some(Instant::now());
        std::fs::remove_file(&self.path).is_ok()
    }

    /// Takes its room again if the disk has plenty: three times as much, so that it is not taken
    /// and given up in turn.
    pub fn keep(&mut self) {
        self.tried = Some(Instant::now());
        let Some(dir) = self.path.parent() else { return };
        let Ok(disk) = statvfs(dir) else { return };
        let bytes = (disk.f_blocks * disk.f_frsize / SHARE).clamp(LEAST, MOST);
        if self.there || disk.f_bavail * disk.f_frsize < 3 * bytes {
            return;
        }
        let made = File::create(&self.path)
            .is_ok_and(|file| fallocate(&file, FallocateFlags::empty(), 0, bytes).is_ok());
        if made {
            self.there = true;
        } else {
            // A half of it is of no use.
            drop(std::fs::remove_file(&self.path));
        }
    }

    /// As [`Ballast::keep`], but asks the disk only every second.
    pub fn keep_now_and_then(&mut self) {
        if !self.there && self.tried.is_none_or(|tried| tried.elapsed() >= PAUSE) {
            self.keep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ballast_when_dropped_then_comes_back_only_after_a_pause() {
        let dir = tempfile::tempdir().unwrap();
        let mut ballast = Ballast::beside(&dir.path().join("meta"));
        ballast.keep();
        let file = dir.path().join("meta.ballast");
        assert!(std::fs::metadata(&file).unwrap().len() >= LEAST);
        assert!(ballast.drop_to_make_room());
        assert!(!file.exists());
        ballast.keep_now_and_then();
        assert!(!file.exists(), "too early");
        ballast.tried = None;
        ballast.keep_now_and_then();
        assert!(file.exists());
    }
}
