//! What write-back has of a file in use.

use std::sync::atomic::AtomicU64;

use forebay_types::Fingerprint;
use parking_lot::Mutex;

use super::staging::Staged;

/// The part of write-back of a file in use: no lower room looks into it.
#[derive(Default)]
pub(crate) struct FileInWriteback {
    /// One at a time copies it to the backing store.
    pub(crate) flushing: Mutex<()>,
    /// A copy that is ready to be published.
    pub(crate) staged: Mutex<Option<Staged>>,
    /// Numbers the flushes of this file.
    pub(crate) flush_begun: AtomicU64,
    /// The number of the latest flush that the backing store has durably, its name as well.
    pub(crate) flush_done: AtomicU64,
    /// The version below when it was last seen to be the one that is known.
    pub(crate) below: Mutex<Option<Fingerprint>>,
}
