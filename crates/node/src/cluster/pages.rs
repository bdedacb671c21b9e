//! Which version of a file the kernel's pages of it are, so that they may stay over opens.
//!
//! The kernel drops the pages of an inode at each open that does not tell it to keep them. Pages are
//! those of the version that an open showed once it is certain that the kernel has dropped older ones:
//! its handle has been used since, so that the open had returned. What takes another version's place
//! here, or changes bytes on behalf of other nodes, makes the kernel's pages those of no version.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_meta::Record;
use forebay_types::{Fingerprint, Ino};
use parking_lot::Mutex;

use super::Cluster;
use crate::handles::{Handle, OpenMode};
use crate::residency::files::File;

const SHARDS: usize = 64;
/// Files of which something is known, in each shard.
const MAX: usize = 1024;

/// A version of a file, as this node shows it.
#[derive(Clone, Copy, Debug)]
enum Version {
    /// What programs of this node have written, and the backing store does not have.
    Own,
    /// One in the backing store; `None` if it has none.
    Published(Option<Fingerprint>),
}

impl Version {
    fn is(&self, other: &Version) -> bool {
        match (self, other) {
            (Version::Own, Version::Own) => true,
            (Version::Published(Some(one)), Version::Published(Some(other))) => {
                one.same_content(other)
            }
            (Version::Published(None), Version::Published(None)) => true,
            _ => false,
        }
    }
}

/// Of which version the kernel's pages are, by inode, and which alias has them.
pub(super) struct Pages([Mutex<HashMap<u64, (u8, Version)>>; SHARDS]);

impl Default for Pages {
    fn default() -> Self {
        Pages(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Pages {
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<u64, (u8, Version)>> {
        &self.0[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SHARDS]
    }

    /// Notes of which version they are, if that is `certain`.
    fn note(&self, ino: Ino, alias: u8, version: Version, certain: impl FnOnce() -> bool) {
        let mut shard = self.shard(ino).lock();
        if !certain() {
            return;
        }
        if shard.len() >= MAX && !shard.contains_key(&ino.0) {
            // Any one: it costs its next open the pages.
            if let Some(other) = shard.keys().next().copied() {
                shard.remove(&other);
            }
        }
        shard.insert(ino.0, (alias, version));
    }
}

/// What an open showed.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    version: Option<Version>,
    /// How often the bytes had been replaced then.
    replaced: u64,
    /// Nothing is to be noted any more.
    done: AtomicBool,
}

impl Cluster {
    /// Whether the kernel may keep the pages of a file that is being opened, and what this open shows
    /// of it. The caller has the location in hand and has compared versions ([`Cluster::match_version`]).
    pub(crate) fn keeps_pages(&self, file: &File, record: &Record, alias: u8) -> (bool, Seen) {
        let replaced = file.cluster.pages_replaced.load(Ordering::Acquire);
        if file.cluster.remote_opens.load(Ordering::Acquire) > 0 {
            return (false, Seen::default());
        }
        let unreported = record.is_dirty() && self.is_mine(record);
        let dirty = self.residency.is_unsettled(file.ino);
        let version = match dirty || unreported {
            true => Version::Own,
            false => {
                let published = record.backing.fingerprint;
                Version::Published(published)
            }
        };
        let mut shard = self.pages.shard(file.ino).lock();
        let kept =
            shard.get(&file.ino.0).is_some_and(|(of, known)| *of == alias && known.is(&version));
        if !kept {
            shard.remove(&file.ino.0);
        }
        (kept, Seen { version: Some(version), replaced, done: AtomicBool::new(kept) })
    }

    /// A handle is closed: its open has returned, and the kernel has dropped what it had before.
    pub(crate) fn note_pages(&self, handle: &Handle) {
        let wrote = handle.mode == OpenMode::Direct && handle.wrote.swap(false, Ordering::AcqRel);
        if handle.write && wrote {
            // The kernel drops the pages in the way of such a write before it sends it: a reader may
            // have brought the bytes back that were there before. Not at the release that follows the
            // last close some time later: what was read between the two is what was written.
            self.pages_replaced(&handle.file);
        }
        let Some(version) = handle.seen.version else { return };
        if handle.seen.done.swap(true, Ordering::AcqRel) {
            return;
        }
        let file = &handle.file;
        // Whoever replaces bytes says so first, and takes away then what was noted.
        let same = || file.cluster.pages_replaced.load(Ordering::Acquire) == handle.seen.replaced;
        self.pages.note(file.ino, handle.alias, version, same);
    }

    /// Bytes of a file were replaced, and not by the kernel: it may have pages of older ones.
    pub(crate) fn pages_replaced(&self, file: &File) {
        file.cluster.pages_replaced.fetch_add(1, Ordering::AcqRel);
        self.pages.shard(file.ino).lock().remove(&file.ino.0);
    }

    /// The backing store has what this node's programs have written: pages stay what they are.
    pub(crate) fn pages_published(&self, ino: Ino, version: Fingerprint) {
        if let Some((_, known)) = self.pages.shard(ino).lock().get_mut(&ino.0)
            && known.is(&Version::Own)
        {
            *known = Version::Published(Some(version));
        }
    }

    /// A file became this node's: what it had written before, it had written to another version.
    pub(super) fn pages_of_former_term(&self, ino: Ino) {
        let mut shard = self.pages.shard(ino).lock();
        if shard.get(&ino.0).is_some_and(|(_, known)| known.is(&Version::Own)) {
            shard.remove(&ino.0);
        }
    }
}
