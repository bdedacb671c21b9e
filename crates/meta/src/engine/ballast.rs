//! Room held back on a disk for the moment when it is full.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate, statfs, statvfs};

const LEAST: u64 = 1 << 20;
const MAX: u64 = 16 << 20;
/// The share of its disk that a ballast takes.
const SHARE: u64 = 64;
/// How often a missing ballast is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// A disk with less room than this is full; what removes something may take some of the last.
const FLOOR: u64 = 256 << 10;
const FLOOR_TO_REMOVE: u64 = 64 << 10;
/// With so much room the disk is asked only now and then.
const PLENTY: u64 = 64 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// ext4 keeps a fiftieth of its blocks for itself, and at most so many. Not even root gets them, and they
/// count as free. (Of those that are told of, it is more than a fiftieth: what the file system itself takes
/// up is not among them.)
const EXT4_KEEPS: u64 = 4096;
const EXT4_SHARE: u64 = 32;
const EXT4: u64 = 0xef53;

/// A file that takes up room until somebody needs it.
pub(super) struct Ballast {
    path: PathBuf,
    there: bool,
    tried: Option<Instant>,
    /// When the disk had plenty of room.
    plenty: Option<Instant>,
}

impl Ballast {
    /// The ballast of a directory: a file beside it.
    pub fn beside(directory: &Path) -> Self {
        let path = directory.with_extension("ballast");
        let there = path.exists();
        Ballast { path, there, tried: None, plenty: None }
    }

    /// Gives its room up; says whether there was any.
    pub fn drop_to_make_room(&mut self) -> bool {
        self.there = false;
        self.tried = Some(Instant::now());
        self.plenty = None;
        std::fs::remove_file(&self.path).is_ok()
    }

    /// Takes its room again if the disk has plenty: three times as much, so that it is not taken
    /// and given up in turn.
    pub fn keep(&mut self) {
        self.tried = Some(Instant::now());
        let Some(dir) = self.path.parent() else { return };
        let Ok(disk) = statvfs(dir) else { return };
        let bytes = (disk.f_blocks * disk.f_frsize / SHARE).clamp(LEAST, MAX);
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

    /// Whether the disk has room for a change; a ballast that is in the way goes first.
    pub fn has_room(&mut self, removes: bool) -> bool {
        if self.plenty.is_some_and(|looked| looked.elapsed() < LOOK_EVERY) {
            return true;
        }
        let floor = if removes { FLOOR_TO_REMOVE } else { FLOOR };
        let room = self.room();
        self.plenty = (room >= PLENTY).then(Instant::now);
        room >= floor || self.there && self.drop_to_make_room() && self.room() >= floor
    }

    /// Free bytes for this process; all there can be if the disk does not say.
    fn room(&self) -> u64 {
        let disk = self.path.parent().and_then(|dir| statfs(dir).ok());
        disk.map_or(u64::MAX, |disk| {
            let is_ext4 = disk.f_type as u64 == EXT4;
            let kept = if is_ext4 { (disk.f_blocks / EXT4_SHARE).min(EXT4_KEEPS) } else { 0 };
            let root = rustix::process::geteuid().is_root();
            let blocks = if root { disk.f_bfree.saturating_sub(kept) } else { disk.f_bavail };
            blocks.saturating_mul(disk.f_frsize as u64)
        })
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
