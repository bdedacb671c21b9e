//! What residency asks of the rooms that stand on it: of the other nodes of a cluster, and of write-back.
//! It calls them by these traits alone; `crate::seams` has them reach the node.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_meta::{Fingerprint, Link, Record};
use forebay_store::backing::Dir;
use forebay_store::copy::Turns;
use forebay_store::{Attributes, BackingFile, Bytes, Header};
use forebay_types::Ino;
use prost::Message;

use crate::error::{NodeError, Result};
use crate::metrics::Source;
use crate::residency::data_location::{DataLocation, TierObject};
use crate::residency::fetch::FetchMode;
use crate::residency::files::{File, FileRef};
use crate::residency::residents::Resident;

/// Where a flush publishes a file.
pub(crate) struct Target<'a> {
    /// The directory.
    pub parent: Ino,
    /// A handle on it in the backing store.
    pub dir: &'a Dir,
    /// The name in it.
    pub name: &'a [u8],
    /// The version that should be there now; `None`: nothing.
    pub expect: Option<Fingerprint>,
    /// The name has other hard links in the backing store: write in place instead of replacing it.
    pub in_place: bool,
}

/// Extents of a version of a file.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Extents {
    #[prost(fixed64, tag = "1")]
    pub ino: u64,
    #[prost(fixed64, tag = "2")]
    pub version: u64,
    /// The length of the file, in bytes.
    #[prost(uint64, tag = "3")]
    pub size: u64,
    /// The length of an extent, in bytes.
    #[prost(uint64, tag = "4")]
    pub unit: u64,
    /// Which ones, by their numbers in the file.
    #[prost(uint64, repeated, tag = "5")]
    pub indexes: Vec<u64>,
}

/// A version of a file that nodes read from each other, in extents of one length.
pub(crate) struct SharedCopy {
    pub(crate) of: Extents,
    /// The file comes as one, and what is here of it can be lent only when it is there as a whole.
    pub(crate) at_once: bool,
}

impl SharedCopy {
    /// The same, to be had as one; whoever gets it says so by [`Peers::announce`] or
    /// [`Peers::renounce`].
    pub(crate) fn at_once(self) -> Self {
        SharedCopy { at_once: true, ..self }
    }
}

/// Takes the bytes of a range, and from where they came; false if there is no room for more.
pub(crate) type Deliver<'a> = &'a mut dyn FnMut(Range<u64>, &[u8], Source) -> Result<bool>;

/// The other nodes. What is given here is how it is for a mount alone, which has [`NoPeers`].
pub(crate) trait Peers: Send + Sync {
    /// Whether nobody else changes the namespace: what this node knows of it holds, what has no record was
    /// removed here, and what a daemon notes there is for the one that comes after it.
    fn changes_namespace_alone(&self) -> bool {
        true
    }

    /// Whether this node judges alone what it finds in the backing store: a version that it does not know is of
    /// others, and is taken in as that. Else it may be of another node that is about to say so.
    fn judges_store_alone(&self) -> bool {
        true
    }

    /// Whether this node may write a file where it stands in the backing store for as long as it has it open
    /// there: no other node comes to own it.
    fn may_write_below(&self) -> bool {
        true
    }

    /// Whether another node owns the file.
    fn is_elsewhere(&self, record: &Record) -> bool {
        record.owner.is_some()
    }

    /// Whether what lies dirty on a tier of this node can be newer than what all know.
    fn may_have_written(&self, _record: &Record) -> bool {
        true
    }

    /// Makes an object of the copy of a file that this node has taken over.
    fn adopt_copy(&self, _record: &Record) -> Result<Option<Resident>> {
        Ok(None)
    }

    /// The backing store has what this node's programs have written: pages stay what they are.
    fn pages_published(&self, _ino: Ino, _version: Fingerprint) {}

    /// A version of a file as nodes share it; `None` if there is nobody to share it with.
    fn shared(&self, _ino: Ino, _print: &Fingerprint, _unit: u64) -> Option<SharedCopy> {
        None
    }

    /// Gets extents of a file from where that costs the backing store the least.
    fn fetch_from_peers(
        &self,
        _shared: &SharedCopy,
        _backing: &dyn BackingFile,
        _indexes: &[u64],
        _deliver: Deliver<'_>,
    ) -> Result<bool> {
        Ok(false)
    }

    /// Brings the extents in a range to the tier, as far as other nodes have a part in that.
    fn fill_shared(
        &self,
        _file: &FileRef,
        _range: Range<u64>,
        _mode: FetchMode<'_>,
    ) -> Result<bool> {
        Ok(true)
    }

    /// Tells others that extents of a file are here.
    fn announce(&self, _shared: &SharedCopy, _indexes: Vec<u64>) {}

    /// Tells others that extents of a file did not come here.
    fn renounce(&self, _shared: &SharedCopy, _indexes: Vec<u64>) {}
}

/// A mount alone.
pub(crate) struct NoPeers;

impl Peers for NoPeers {}

/// Write-back, and what it knows of the backing store's tree.
pub(crate) trait AboveResidency: Send + Sync {
    /// The inode has something for the backing store from `delay` on.
    fn reconcile_later(&self, ino: Ino, delay: Duration);

    /// The inode is to be written back now, though files may be only when they are evicted; false if that has
    /// failed and comes again in its time.
    fn flush_soon(&self, ino: Ino) -> bool;

    /// Whether somebody has asked for that.
    fn is_wanted(&self, ino: Ino) -> bool;

    /// Whether nobody works on the backing store.
    fn is_idle(&self) -> bool;

    /// A directory as it stands now in the backing store.
    fn backing_dir(&self, dir: Ino) -> Result<Dir>;

    /// After a refusal: opens the directories above a file to their owner, if he is this user and has
    /// closed them. Whether there were any.
    fn open_closed_dirs(&self, record: &Record) -> Result<bool>;

    /// A file of the backing store, wherever it stands now.
    fn open_version(&self, ino: Ino) -> Result<Arc<dyn BackingFile>>;

    /// As `open_version`, which must be the version that is known.
    fn open_known_version(&self, ino: Ino) -> Result<Arc<dyn BackingFile>>;

    /// An opened backing file must be of the version that is known.
    fn check_known_version(&self, ino: Ino, opened: &dyn BackingFile) -> Result<()>;

    /// What is read from beneath a changed file must be of the version that was written over.
    fn check_rest_below(
        &self,
        file: &File,
        location: &DataLocation,
        place: &TierObject,
    ) -> Result<()>;

    /// Whether an error came of a newer version in the backing store, which is known now.
    fn takes_newer_version(&self, file: &File, error: &NodeError) -> bool;

    /// What stands under a name of a file, before the backlog has begun.
    fn found_at_start(&self, record: &Record, link: &Link) -> Result<Option<Attributes>>;

    /// The version that a worker has published and not reported, as its daemon died.
    fn published_meanwhile(&self, record: &Record, header: &Header) -> Result<Option<Fingerprint>>;

    /// No copy of a spill file is half written any more.
    fn forget_half_written(&self, ino: Ino) -> Result<()>;

    /// Keeps what a file has open until it is written back; false if there are too many.
    fn keep_open(&self, file: &FileRef) -> bool;

    /// As `keep_open`, of a file that has something open which others may take away.
    fn hold_opened_rest(&self, file: &FileRef, location: &DataLocation);

    /// What is kept open for a file is not needed any more.
    fn let_go_of_rest(&self, ino: Ino);

    /// A file has zeros for what others took away below.
    fn note_rest_gone(&self, ino: Ino);

    /// A file is gone, or nothing is left of what it had; says whether parts of it were gone.
    fn forget_rest_gone(&self, ino: Ino) -> bool;

    /// The kernel may have written a file without the daemon, which takes its set-id bits away.
    fn look_for_lost_set_ids_later(&self, ino: Ino);
}

/// Turns of the device below the backing store, while streams are played from it.
pub(crate) trait ColdReads: Turns + Send + Sync {
    /// Waits, while streams are open, until the device has time for names and attributes: as often as
    /// for a small read. Such a turn is over before it is used, since nobody knows which blocks a file
    /// system looks at; so this bounds how many come in a cycle, not when the device is at them.
    fn pace(&self);

    /// Reads a file of the backing store that is no stream.
    fn read_cold(&self, backing: &dyn BackingFile, buffer: &mut [u8], offset: u64)
    -> Result<usize>;

    /// Copies a small file of the backing store to an object; says whether that was necessary: with
    /// no stream open, there are better ways. What is missing at the end is left to the caller.
    fn copied_cold(&self, backing: &dyn BackingFile, object: &dyn Bytes, size: u64)
    -> Result<bool>;
}
