//! What write-back has of a file in use.

use std::sync::atomic::AtomicBool;

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
    /// Whether a flush of it has begun since it came into use.
    pub(crate) flush_begun: AtomicBool,
    /// The version below when it was last seen to be the one that is known.
    pub(crate) below: Mutex<Option<Fingerprint>>,
}
