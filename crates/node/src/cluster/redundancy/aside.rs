//! What others have taken over from this node, and it keeps aside: objects that do not count any more,
//! and may hold bytes that no sync and no close had followed. One that is, byte by byte, what the
//! backing store has of its file holds nothing else, and goes by itself.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_meta::{Error as MetaError, Fingerprint};
use forebay_store::BackingFile;
use forebay_store::backing::Access;
use forebay_types::Ino;
use parking_lot::Mutex;

use super::held::FileTotals;
use crate::cluster::Cluster;
use crate::error::Result;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(10);
/// Bytes compared at a time.
const PIECE: u64 = 1 << 20;

/// An object that is kept.
struct Object {
    tier: u8,
    charged: u64,
    /// The version of the backing store that it was compared with, and differs from.
    differs: Option<Fingerprint>,
}

/// The objects that are kept.
#[derive(Default)]
pub(super) struct Aside {
    objects: Mutex<HashMap<PathBuf, Object>>,
    looked: Mutex<Option<Instant>>,
    /// A look is under way.
    looking: AtomicBool,
}

impl Aside {
    pub fn totals(&self) -> FileTotals {
        let objects = self.objects.lock();
        let bytes = objects.values().map(|object| object.charged).sum();
        FileTotals { files: objects.len() as u64, bytes }
    }

    /// One that was found or made, for which the tier was charged.
    pub fn add(&self, path: PathBuf, tier: u8, charged: u64) {
        self.objects.lock().insert(path, Object { tier, charged, differs: None });
    }

    /// Whether it is time for a look; it is then under way.
    fn begin(&self) -> bool {
        let mut looked = self.looked.lock();
        let due = looked.is_none_or(|looked| looked.elapsed() >= LOOK)
            && !self.objects.lock().is_empty()
            && !self.looking.swap(true, Ordering::AcqRel);
        if due {
            *looked = Some(Instant::now());
        }
        due
    }
}

/// The name of an object that is kept aside, of which there may be several of a file.
pub(super) fn name(ino: Ino, number: u32) -> String {
    format!("{:016x}-{number}", ino.0)
}

fn ino_of(path: &Path) -> Option<Ino> {
    let (number, _) = path.file_name()?.to_str()?.split_once('-')?;
    u64::from_str_radix(number, 16).ok().map(Ino)
}

impl Cluster {
    /// Has those that hold nothing of their own removed, now and then.
    pub(super) fn look_at_aside_sometimes(&self) {
        if !self.safety.held.aside.begin() {
            return;
        }
        let begun = self.later(|cluster| {
            cluster.look_at_aside(&cluster.safety.held.aside);
            cluster.safety.held.aside.looking.store(false, Ordering::Release);
        });
        if !begun {
            self.safety.held.aside.looking.store(false, Ordering::Release);
        }
    }

    fn look_at_aside(&self, aside: &Aside) {
        let paths: Vec<_> = aside.objects.lock().keys().cloned().collect();
        for path in paths {
            if self.stopping.load(Ordering::Acquire) {
                return;
            }
            match self.is_published(aside, &path) {
                Ok(false) => {}
                Ok(true) => match fs::remove_file(&path) {
                    Ok(()) => {
                        if let Some(object) = aside.objects.lock().remove(&path) {
                            self.residency.tiers[usize::from(object.tier)]
                                .room
                                .give_all(object.charged);
                        }
                        tracing::info!(path = %path.display(), "the backing store has all that was kept aside here: it is removed");
                    }
                    Err(error) => {
                        tracing::warn!(
                            %error,
                            path = %path.display(),
                            "can't remove what was kept aside, though the backing store has all of \
                             it; it will be tried again"
                        );
                    }
                },
                Err(error) => {
                    tracing::debug!(%error, path = %path.display(), "what is kept aside can't be compared");
                }
            }
        }
    }

    /// Whether what the backing store has of the file counts, and is what is kept.
    fn is_published(&self, aside: &Aside, path: &Path) -> Result<bool> {
        let Some(ino) = ino_of(path) else { return Ok(false) };
        let record = match self.meta.get_now(ino) {
            Ok(record) => record,
            // It was removed: nobody has it.
            Err(MetaError::Stale(_)) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let version = record.backing.fingerprint.filter(|_| !record.is_dirty() && !record.spilled);
        let Some(version) = version else { return Ok(false) };
        let known = aside.objects.lock().get(path).map(|object| object.differs);
        let file = File::open(path)?;
        if known == Some(Some(version)) || file.metadata()?.size() != version.size {
            return Ok(false);
        }
        let published = self.writeback.open_backing(&record, Access::Read)?;
        let is_that =
            || Ok::<_, crate::NodeError>(published.stat()?.fingerprint().same_content(&version));
        let same = is_that()? && is_equal(&file, &*published, version.size)? && is_that()?;
        if !same && let Some(object) = aside.objects.lock().get_mut(path) {
            object.differs = Some(version);
        }
        Ok(same)
    }
}

fn is_equal(file: &File, published: &dyn BackingFile, size: u64) -> Result<bool> {
    let mut at = 0;
    while at < size {
        let len = PIECE.min(size - at) as usize;
        let (mut ours, mut theirs) = (vec![0; len], vec![0; len]);
        file.read_exact_at(&mut ours, at)?;
        let mut read = 0;
        while read < len {
            match published.read_at(&mut theirs[read..], at + read as u64)? {
                0 => return Ok(false),
                some => read += some,
            }
        }
        if ours != theirs {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}
