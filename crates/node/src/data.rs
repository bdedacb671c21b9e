//! What the namespace asks of the data side.

use std::sync::Arc;

use forebay_meta::{Attr, Ino, Record};
use forebay_store::{Attributes, Dir, Fingerprint};

use crate::context::Context;
use crate::error::Result;
use crate::files::FileRef;
use crate::node::Node;

/// How a flush of a file's bytes ended.
pub(crate) enum Flushed {
    /// The backing store has them, as this version.
    Done(Fingerprint),
    /// Something else is there now (`None`: nothing). Nothing was overwritten.
    Conflict(Option<Attributes>),
    /// They changed during the copy, or a program may still store into them: later.
    Busy,
}

/// Where a flush publishes a file.
pub(crate) struct Target<'a> {
    /// The directory.
    pub parent: Ino,
    /// A handle on it in the backing store. A commit there is best made inside
    /// [`Node::own_change`], so that it is not taken for a change by others.
    pub dir: &'a Dir,
    /// The name in it.
    pub name: &'a [u8],
    /// The version that should be there now; `None`: nothing.
    pub expect: Option<Fingerprint>,
    /// The name has other hard links in the backing store, or is otherwise to keep its inode: write
    /// in place instead of replacing it.
    pub in_place: bool,
}

impl Node {
    /// The attributes of a regular file as programs see them now: those of the record, or of the
    /// object while that is newer.
    pub(crate) fn live_attr(&self, record: &Record) -> (Attr, u64 /* blocks of 512 bytes */) {
        todo!()
    }

    /// Whether a program has `ino` open.
    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        todo!()
    }

    /// Copies a dirty file's bytes, mode, owner, times and extended attributes to the backing store
    /// and publishes them.
    pub(crate) fn flush_data(&self, record: &Arc<Record>, target: &Target<'_>) -> Result<Flushed> {
        todo!()
    }

    /// The file is removed and nobody uses it: drops all its bytes.
    pub(crate) fn discard_data(&self, ino: Ino) {
        todo!()
    }

    /// The copy of a clean file is stale: drops it, for new opens at least.
    pub(crate) fn drop_copy(&self, ino: Ino) {
        todo!()
    }

    /// Sets the length of a file.
    pub(crate) fn truncate(
        &self,
        context: &Context,
        record: &Arc<Record>,
        size: u64,
    ) -> Result<()> {
        todo!()
    }

    /// A file's times, mode or owner were set: the object on the tier follows.
    pub(crate) fn attributes_changed(&self, record: &Record) {
        todo!()
    }

    /// Bytes that only the tiers hold.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        todo!()
    }
}
