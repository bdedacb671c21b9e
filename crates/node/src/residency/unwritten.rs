//! What proves that a file is as the backing store has it although programs had it open to write.
//!
//! The kernel writes a passthrough file without the daemon, so the object is marked dirty before the
//! open is answered, and whether anything was written is found out afterwards. Only two things prove
//! that nothing was:
//!
//! - The object looks as it did: size, modification time and change time. A write(2) moves the times,
//!   and only the daemon can put them back. A store into a mapping moves them as well where the tier's
//!   file system is told of it ([`forebay_store::Tier::tells_stores`]); on tmpfs a store into a page
//!   that was loaded before leaves no trace, so there this proves nothing. It proves nothing either
//!   while a mapping lives that outlasted its open file.
//! - The bytes are those of the published version. They are compared before a flush if size and
//!   modification time are those of that version; what was not written has both.
//!
//! Clean is proved, never inferred: until one of the two holds, the file is dirty
//! (`tests/clean.rs`, `tests/tests/mount_clean.rs`).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use forebay_meta::Record;
use forebay_store::Attributes;
use forebay_store::backing::Access;
use forebay_types::{Fingerprint, Timestamp};

use crate::clock;
use crate::error::Result;
use crate::residency::Residency;
use crate::residency::data_location::{TierObject, Underlay};
use crate::residency::doubt::is_equal;
use crate::residency::files::{File, FileRef};
use crate::residency::seams::Target;

/// Larger files are written anew rather than compared: both take as long, and a difference may be at
/// the end.
const MAX_COMPARED: u64 = 256 << 20;

/// How an object looks from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    size: u64,
    mtime: Timestamp,
    ctime: Timestamp,
}

impl Look {
    fn of(stat: &Attributes) -> Self {
        Look { size: stat.size, mtime: stat.mtime, ctime: stat.ctime }
    }
}

impl Residency {
    /// Whether a mapping of the object may live that outlasted its open file, and that may be stored
    /// into. Readers whose open files the kernel reads by itself are not in the way, once it was seen
    /// that no mapping of a writer is left.
    pub(crate) fn maybe_stored_into(&self, file: &File, place: &TierObject) -> bool {
        let Some(seen) = file.stored_unseen.pending() else { return false };
        let mapped = self.maybe_mapped(place);
        if !mapped {
            // Not of a writer that came or went meanwhile. Until here it stands, for others who ask.
            file.stored_unseen.settle(seen);
        }
        mapped
    }

    /// Whether a mapping of the object may live that outlasted its open file.
    pub(crate) fn maybe_mapped(&self, place: &TierObject) -> bool {
        match place.object.exclusive() {
            Ok(lease) => lease.is_none(),
            // Without leases only passthrough hides mappings.
            Err(_) => self.kernel.get().is_some_and(|kernel| kernel.passthrough()),
        }
    }

    /// As [`Residency::mark_dirty`] for an open whose writes nobody will see: remembers how the object
    /// looks. The caller holds [`File::opens`].
    pub(crate) fn mark_dirty_for_passthrough(&self, file: &File, place: &TierObject) -> Result<()> {
        // Before all that is looked at: what others change after the first look is newer.
        let now = clock::wall_time();
        if place.is_dirty() {
            return Ok(());
        }
        file.clean_as.lock().take();
        self.follow_record(file, place)?;
        let before = place.object.stat()?;
        self.mark_dirty(file, place)?;
        let tells = self.tiers[usize::from(place.tier)].tier.tells_stores();
        if tells && is_old(before.mtime, now) {
            // The header has moved the change time.
            let look = Look::of(&place.object.stat()?);
            if (look.size, look.mtime) == (before.size, before.mtime) {
                *file.clean_as.lock() = Some(look);
            }
        }
        Ok(())
    }

    /// Changes nothing but the header of an object: that moves its change time, and what proves that
    /// nobody has written it is to stay.
    pub(crate) fn keep_proof(
        &self,
        file: &File,
        place: &TierObject,
        edit: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // No time is put back meanwhile: it would hide a write between the two looks.
        let _one_at_a_time = file.times.lock();
        let Some(look) = *file.clean_as.lock() else { return edit() };
        let is_unwritten = Look::of(&place.object.stat()?) == look;
        edit()?;
        let now = Look::of(&place.object.stat()?);
        if is_unwritten && (now.size, now.mtime) == (look.size, look.mtime) {
            // Only of this open: another look may have been taken instead.
            let mut clean_as = file.clean_as.lock();
            if *clean_as == Some(look) {
                *clean_as = Some(now);
            }
        }
        Ok(())
    }

    /// The time of a clean object begins to count: it is that of the record.
    pub(super) fn follow_record(&self, file: &File, place: &TierObject) -> Result<()> {
        let _one_at_a_time = file.times.lock();
        let record = self.as_seen_here(&self.meta.get(file.ino)?);
        let mtime = record.attr.mtime;
        if place.object.stat()?.mtime != mtime {
            place.object.set_times(None, Some(mtime))?;
        }
        Ok(())
    }

    /// Whether an object that is dirty for a passthrough writer alone was not written. The caller has
    /// the location for itself.
    pub(crate) fn is_proved_unwritten(&self, file: &File, place: &TierObject) -> Result<bool> {
        if file.opens.lock().writers > 0 {
            return Ok(false);
        }
        let Some(look) = file.clean_as.lock().take() else { return Ok(false) };
        // First: what a mapping stored before it went shows afterwards.
        Ok(!self.maybe_stored_into(file, place) && Look::of(&place.object.stat()?) == look)
    }

    /// Whether an object may be just what the backing store has: its size and time are.
    pub(crate) fn may_be_published(&self, record: &Record, place: &TierObject) -> Result<bool> {
        let Some(known) = record.backing.fingerprint else { return Ok(false) };
        let stat = place.object.stat()?;
        let same = (known.size, known.mtime) == (stat.size, stat.mtime);
        Ok(place.is_marked_whole() && same && stat.size <= MAX_COMPARED)
    }

    /// The version under a name of which a file that counts as dirty has every byte, so that nothing
    /// has to be published. `record` knows the version that is expected there.
    pub(crate) fn equals_published(
        &self,
        file: &FileRef,
        record: &Record,
        target: &Target<'_>,
    ) -> Result<Option<Fingerprint>> {
        let Some(expect) = target.expect else { return Ok(None) };
        let name = OsStr::from_bytes(target.name);
        let (object, clean) = {
            let location = file.location.read();
            let Some(place) = location.place.as_ref() else { return Ok(None) };
            let header = place.object.header()?;
            let based = header.base.is_some_and(|base| base.same_content(&expect));
            if place.presence.is_some() {
                let over =
                    matches!(location.base, Underlay::Backing(_)) && header.pending.is_none();
                if !(over && based && shows_all_of(place, &expect)?) {
                    return Ok(None);
                }
                let now = self.backing.stat(target.dir, name)?.fingerprint();
                return Ok(now.same_content(&expect).then_some(now));
            }
            let clean = based && !place.is_dirty();
            // What was announced may be there already.
            if location.is_spilled()
                || header.pending.is_some()
                || !clean && !self.may_be_published(record, place)?
            {
                return Ok(None);
            }
            (place.object.clone(), clean)
        };
        let Ok(backing) = self.backing.open_file(target.dir, name, Access::Read) else {
            return Ok(None);
        };
        let opened = backing.stat()?.fingerprint();
        let is_copy = || -> Result<bool> {
            Ok(object.len()? == expect.size && is_equal(&*object, &*backing, 0..expect.size)?)
        };
        if !opened.same_content(&expect) || !clean && !is_copy()? {
            return Ok(None);
        }
        let now = self.backing.stat(target.dir, name)?.fingerprint();
        Ok((now == opened).then_some(now))
    }
}

/// Whether a part has no byte of its own that the version under it lacks, as after the publication of a
/// spill file: a copy of that version would take room, and say nothing new.
fn shows_all_of(place: &TierObject, version: &Fingerprint) -> Result<bool> {
    let Some(presence) = &place.presence else { return Ok(false) };
    let presence = presence.read();
    let whole = presence.size() == version.size && presence.base_limit() == version.size;
    Ok(whole && !presence.is_dirty() && place.object.stat()?.mtime == version.mtime)
}

/// Whether a change now can't have the same time as one then, by however coarse a clock.
fn is_old(then: Timestamp, now: Timestamp) -> bool {
    (then.sec + 1, then.nsec) <= (now.sec, now.nsec)
}
