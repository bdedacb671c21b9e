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

use std::sync::atomic::Ordering;

use forebay_meta::{FileKind, Record};
use forebay_store::Header;

use crate::context::Context;
use crate::error::Result;
use crate::node::Node;
use crate::place::Place;

/// Whether an object that is so long after a crash of the machine has what was acknowledged of its file,
/// whatever length the namespace knows of.
pub(crate) fn is_acknowledged(header: &Header, len: u64) -> bool {
    header.synced || header.covered && len > 0
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

    /// Before a file takes the name of another one that was synced, and that the backing store does not
    /// have: the bytes of that one go with its name, so those of the new one must be durable before. A
    /// version that the backing store has comes back by itself: see `reconcile/unsynced.rs`.
    pub(crate) fn sync_what_replaces_synced(
        &self,
        context: &Context,
        source: &Record,
        target: &Record,
    ) -> Result<()> {
        let files = source.attr.kind == FileKind::File && target.attr.kind == FileKind::File;
        let is_newer =
            |record: &Record| record.dirty || record.spilled || self.is_unsettled(record.ino);
        if !files || !is_newer(source) || !is_newer(target) {
            return Ok(());
        }
        let file = self.files.get(target.ino);
        self.load(context, &file)?;
        let synced = match &file.residence_for(context)?.place {
            Some(place) => is_acknowledged(&place.object.header()?, place.object.len()?),
            // Written past the tiers, or by another node: whether it was synced nobody says here.
            None => true,
        };
        if synced {
            context.wait()?;
            let file = self.files.get(source.ino);
            self.load(context, &file)?;
            self.sync_file(&file, true)?;
        }
        Ok(())
    }

    fn edit_header_if(&self, place: &Place, edit: impl FnOnce(&mut Header) -> bool) -> Result<()> {
        let _one_at_a_time = place.charge.growing.lock();
        let mut header = place.object.header()?;
        if edit(&mut header) { place.set_header(&header) } else { Ok(()) }
    }
}
