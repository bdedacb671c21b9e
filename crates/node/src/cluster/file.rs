//! What the cluster has of a file in use.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use forebay_types::Fingerprint;
use parking_lot::Mutex;

use super::redundancy::Begun;

/// The cluster's part of a file in use: no lower room looks into it.
pub(crate) struct FileInCluster {
    /// Whoever writes at the end holds it between the look where that is and the write.
    pub(crate) appending: Mutex<()>,
    /// The version in the backing store that counted at the last open.
    pub(crate) shown: Mutex<Option<Option<Fingerprint>>>,
    /// Opens through the owner since the file came into use, whatever they are now.
    pub(crate) remote_opens: AtomicU32,
    /// Counts replacements of bytes that the kernel had not asked for.
    pub(crate) pages_replaced: AtomicU64,
    /// One at a time makes copies of it on other nodes, of which this was sent ahead.
    pub(crate) copying: Mutex<Option<Begun>>,
    /// Who waits to make copies, for which sending ahead stops.
    pub(crate) copies_wanted: AtomicU32,
    /// Somebody is about to send it ahead.
    pub(crate) ahead_queued: AtomicBool,
    /// There is no use in sending it ahead until copies of it were made.
    pub(crate) ahead_refused: AtomicBool,
    /// The first byte that was written since a part was last begun to be sent ahead; `u64::MAX` for
    /// nothing.
    pub(crate) lowest_write: AtomicU64,
    /// The first byte that was changed since copies of it were last made; `u64::MAX` for
    /// nothing.
    pub(crate) changed_from: AtomicU64,
}

impl Default for FileInCluster {
    fn default() -> Self {
        FileInCluster {
            appending: Mutex::new(()),
            shown: Mutex::default(),
            remote_opens: AtomicU32::new(0),
            pages_replaced: AtomicU64::new(0),
            copying: Mutex::default(),
            copies_wanted: AtomicU32::new(0),
            ahead_queued: AtomicBool::new(false),
            ahead_refused: AtomicBool::new(false),
            lowest_write: AtomicU64::new(u64::MAX),
            changed_from: AtomicU64::new(0),
        }
    }
}

impl FileInCluster {
    /// The contents change, nowhere before `offset`.
    pub(crate) fn bytes_changed_from(&self, offset: u64) {
        self.changed_from.fetch_min(offset, Ordering::AcqRel);
        self.lowest_write.fetch_min(offset, Ordering::AcqRel);
    }
}
