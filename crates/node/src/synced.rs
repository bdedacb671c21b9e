//! What an object says of syncs that a start after a crash of the machine has to know.
//!
//! The namespace may know of a length that the object never had on its device. Was it synced before it
//! grew, then what was synced counts, for it was acknowledged. Was it not, then the version counts
//! that the backing store has: see `reconcile/unsynced.rs`. Two flags of the header tell these apart:
//!
//! - `synced`: a program was told that the file is durable. Written before the sync that makes both
//!   durable, never taken back before the object is clean.
//! - `covered`: as long as it has any bytes the object is no less than what was durable before: it was
//!   whole when it was changed first. Also of an empty one that the kernel writes without asking: what
//!   it makes durable by itself, nobody hears of. Taken back when the object is emptied, after that, and
//!   so before it grows again: the device gets changes of one inode's attributes in their order.

use std::path::Path;
use std::sync::atomic::Ordering;

use forebay_meta::Record;
use forebay_store::Header;

use crate::error::Result;
use crate::node::Node;
use crate::place::Place;
use crate::recover::{CLEAN_END, RUNNING, SETTLED, boot_id};

/// Whether an object that is so long after a crash of the machine has what was acknowledged of its file,
/// whatever length the namespace knows of.
pub(crate) fn is_acknowledged(header: &Header, len: u64) -> bool {
    header.synced || header.covered && len > 0
}

/// Whether no object is shorter than its record says, unless it was damaged: the last daemon ended with
/// nothing in hand, or was killed, and has noted each cut before it was made.
pub(crate) fn lengths_count(state_dir: &Path) -> bool {
    match std::fs::read(state_dir.join(CLEAN_END)) {
        Ok(said) => said == SETTLED.as_bytes(),
        Err(_) => is_same_boot(state_dir),
    }
}

/// Whether the machine has not restarted since a daemon worked here.
pub(crate) fn is_same_boot(state_dir: &Path) -> bool {
    let (boot, last) = (boot_id(), std::fs::read_to_string(state_dir.join(RUNNING)));
    !boot.is_empty() && last.is_ok_and(|last| last.starts_with(&boot))
}

/// Whether an object that has what the backing store lacks has lost its end.
pub(crate) fn is_cut(record: &Record, header: &Header, len: u64) -> bool {
    (header.dirty || record.dirty) && len < record.attr.size
}

impl Node {
    /// The sync that follows is one of which a program will be told.
    pub(crate) fn note_sync(&self, place: &Place) -> Result<()> {
        if place.headers.say_synced() || !place.dirty.load(Ordering::Acquire) {
            return Ok(());
        }
        self.edit_header_if(place, |header| {
            let change = header.dirty && !header.synced;
            header.synced |= change;
            place.headers.hear_synced(header.synced);
            change
        })
    }

    /// From here on the kernel may sync an object that is empty now without asking.
    pub(crate) fn note_unseen_syncs(&self, place: &Place) -> Result<()> {
        self.edit_header_if(place, |header| {
            let change = header.dirty && !header.synced && !header.covered;
            (header.covered, header.size) =
                (header.covered || change, if change { 0 } else { header.size });
            change
        })
    }

    /// What the kernel may have synced without asking counts after the object was emptied as well.
    pub(crate) fn note_syncs_before_emptying(&self, place: &Place) -> Result<()> {
        if place.headers.say_synced() || !place.dirty.load(Ordering::Acquire) {
            return Ok(());
        }
        let len = place.object.len()?;
        self.edit_header_if(place, |header| {
            // What covers a copy was not empty, and an open by which it is written unseen syncs it.
            let change = header.covered && header.size == 0 && len > 0 && !header.synced;
            header.synced |= change;
            change
        })
    }

    /// The object was cut to nothing: of what was durable before it has nothing any more.
    pub(crate) fn note_emptied(&self, place: &Place) -> Result<()> {
        if place.headers.say_synced() {
            return Ok(());
        }
        self.edit_header_if(place, |header| {
            let change = header.covered;
            (header.covered, header.size) = (false, 0);
            change
        })
    }

    fn edit_header_if(&self, place: &Place, edit: impl FnOnce(&mut Header) -> bool) -> Result<()> {
        let _one_at_a_time = place.charge.growing.lock();
        let mut header = place.object.header()?;
        if edit(&mut header) { place.set_header(&header) } else { Ok(()) }
    }
}
