//! What write-back asks of the rooms that stand on it: of the other nodes of a cluster, which work on the
//! same backing store, and of the namespace. It calls them by these traits alone.

use std::time::Instant;

use forebay_meta::{Attr, Record};
use forebay_types::Ino;

use crate::error::Result;
use crate::residency::files::FileRef;

/// Who of the nodes works on what. What is given here is how it is for a mount alone, which has
/// [`AllRights`].
pub(crate) trait WorkRights: Send + Sync {
    /// Whether other nodes have a part in the backlog: what is busy, or removed, may be theirs to see to.
    fn shares_work(&self) -> bool {
        false
    }

    /// Gets the right to work on an inode for a thread that has it among those of this node. False if
    /// another node has it for longer than until `until`.
    fn begin_work(&self, _ino: Ino, _until: Instant) -> bool {
        true
    }

    /// Gives it back.
    fn end_work(&self, _ino: Ino) {}

    /// Whether this node may change the backing store.
    fn may_change_store(&self) -> Result<()> {
        Ok(())
    }

    /// Whether a worker has to leave an inode to another node.
    fn is_others_work(&self, _record: &Record) -> bool {
        false
    }

    /// Whether another node removed a file that this one owns, and no program here uses it.
    fn is_left_orphan(&self, _record: &Record) -> bool {
        false
    }

    /// What remains of an inode that is in line. Whether anything was there to be done.
    fn let_go_of_owned(&self, _record: &Record) -> Result<bool> {
        Ok(false)
    }

    /// All nodes know what is in the directories from which names are about to be taken.
    fn list_before_removal(&self, _record: &Record) -> Result<()> {
        Ok(())
    }

    /// An inode that was looked at is not in this node's backlog, perhaps no longer.
    fn doubt_place(&self, _ino: Ino) {}
}

/// A mount alone.
pub(crate) struct AllRights;

impl WorkRights for AllRights {}

/// The rooms above.
pub(crate) trait AboveWriteback: Send + Sync {
    /// The extended attributes of a file, read from the backing store if they were not known.
    fn known_xattrs(&self, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;

    /// What is due when nobody has the file open any more.
    fn last_close(&self, file: &FileRef);

    /// Lets go at once of the files that others have replaced and somebody may still ask for.
    fn let_go_of_replaced(&self);

    /// Others have removed an inode that programs may be in, or have open.
    fn has_vanished(&self, ino: Ino, attr: Attr);

    /// Asks the backing store how much room it has.
    fn refresh_statfs(&self);

    /// Notes what was mounted below the backing store's root since the last look.
    fn note_new_mounts(&self) -> Result<()>;
}
