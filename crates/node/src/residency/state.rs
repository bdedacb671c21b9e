//! Whether a file is clean, dirty or resident: its states, and the transitions by which it leaves them.
//!
//! What says it are the header of its object and its map, the entry in [`Residents`](super::residents), the
//! data location while the file is in use, and its record. Nobody but this room changes the first three: the
//! compiler sees to that. Nor does anybody else in the node say of a record that it is dirty, clean or spilled:
//! `cargo xtask tidy` sees to that.
//!
//! A file is in one of these states, and leaves it by the transitions named, which have the location for
//! themselves, or hold `Charge::growing` where they only mark.
//!
//! | State | Object, its header | Underlay | Goes to |
//! |---|---|---|---|
//! | below | none | the version below, or zeros | partial: `begin_partial`; whole: `fetch_whole`; whole, dirty: `ensure_place` of a file without bytes, `adopt_object`; spilled: `ensure_spill`; below: `was_cut_below` |
//! | partial, clean | map, clean | the version below | whole: `finish_if_whole`; partial, dirty: `mark_dirty`; below: `evict`, `drop_copy`, `forget_copy`, `make_way` |
//! | whole, clean | no map, clean | none | whole, dirty: `mark_dirty`, `whole_copy_counts`; partial: `evict_tail`; below: `evict`, `drop_copy`, `forget_copy`, `make_way` |
//! | partial, dirty | map, dirty | the version that its header names | whole, dirty: `finish_if_whole`; partial, clean: `become_published`; spilled: `evacuate`; set aside: `make_way` |
//! | whole, dirty | no map, dirty | none | whole, clean: `become_published`, or `settle` if nobody has written; spilled: `evacuate`; partial, dirty, spilled: `write_around`; empty: `change_length`; set aside: `make_way` |
//! | spilled | none, or what was yielded to a spill file | a spill file over the version below | below, or what is on the tier: `spill_published`; empty: `change_length` |
//! | lost | none, and the record says dirty | none that counts | whole: `replace_lost`, by a change of the length to 0; below: `give_up_lost` |
//!
//! An object in any state but "spilled" moves between tiers (`move_object`) and keeps its state. A file that is
//! removed loses everything (`discard_data`). At a start each object that counts is entered by
//! `found_on_tier`, after `found_dirty`, `found_spilled`, `follow_version` or `nothing_is_left` has brought
//! its record in line with it; a daemon that takes over from one at rest enters what that hands on.
//!
//! Where the transitions are: those of programs' changes in `changes.rs`, of bytes that come, go past the tiers
//! and leave in `fetch.rs`, `spill.rs`, `evict.rs` and `data.rs`, of write-back in `written_back.rs`, of files
//! that other nodes write or take in `taken_over.rs`, of starts in `recovered.rs`. Here is what they are made of.
//!
//! Invariants:
//! - An object whose header says clean has, in each extent that is there, the bytes of the version below.
//!   The random tests compare them after each step (`tests/tests/mount_clean.rs`).
//! - A byte changes only after the header says dirty, and the map too, if there is one (`changes.rs`).
//! - The record never says that a file is longer than what is there, and follows the object when the last
//!   writer closes (`settle`): until then the header alone knows of the changes.
//! - A file that others have taken away below stays as it is for those who have it open (`File::gone`), and
//!   nothing makes it dirty any more.

use std::sync::atomic::Ordering;

use forebay_core::steward::Event;
use forebay_meta::{Queue, Record};
use forebay_store::Header;
use forebay_types::{Fingerprint, Ino, Timestamp};
use rustix::io::Errno;

use crate::error::Result;
use crate::failpoints::fail_at;
use crate::residency::Residency;
use crate::residency::data::show_written;
use crate::residency::data_location::TierObject;
use crate::residency::files::File;
use crate::residency::residents::Resident;
use crate::residency::synced::len_to_first_hole;

impl Residency {
    /// Whether [`Residency::mark_dirty`] has to wait for the tier's device.
    pub(crate) fn needs_sync_to_change(place: &TierObject) -> bool {
        !place.is_dirty() && place.is_marked_whole() && place.object.len().is_ok_and(|len| len > 0)
    }

    /// Marks the object dirty, durably against the death of the daemon, before its first change.
    ///
    /// A header that says dirty makes the object what counts. So the bytes that it was fetched with,
    /// or that were written back from it, are durable before: else a power cut would leave them as
    /// zeros in place of those that the backing store has. (A map knows which of them are.)
    pub(super) fn mark_dirty(&self, file: &File, place: &TierObject) -> Result<()> {
        if file.gone.get().is_some() {
            return Err(Errno::STALE.into());
        }
        if place.is_dirty() {
            return Ok(());
        }
        let _growing = place.charge.growing.lock();
        if place.is_dirty() {
            return Ok(());
        }
        self.keep_out_left_behind(file.ino)?;
        let record = self.meta.get(file.ino)?;
        if Self::needs_sync_to_change(place) {
            self.write_clean_again(file, place)?;
            self.sync_object(file, place, true)?;
        }
        let mut header = place.object.header()?;
        header.dirty = true;
        header.writing = true;
        // What changed that before may have failed, and have been carried out all the same: from here on
        // just that map is kept up to date which is in use.
        header.whole = place.is_marked_whole();
        // Whatever a power cut leaves of it has what it was a copy of, or what was written since.
        header.covered = header.base.is_some() && place.object.len()? > 0;
        // With size 0 it would have been empty.
        header.size = len_to_first_hole(place)?.max(u64::from(header.covered));
        let path = self.header_for(&record, header.whole, true);
        header.path = path.path;
        header.path_truncated = path.path_truncated;
        fail_at!("node.dirty.before_header");
        place.set_header(&header)?;
        fail_at!("node.dirty.after_header");
        place.dirty.store(true, Ordering::Release);
        self.set_resident(file.ino, place);
        self.decide(Event::Dirty { object: file.ino });
        Ok(())
    }

    /// The object equals the backing store's version (`base`, or the one it had before).
    pub(super) fn mark_clean(
        &self,
        file: &File,
        place: &TierObject,
        base: Option<Fingerprint>,
    ) -> Result<()> {
        let _one_at_a_time = place.charge.growing.lock();
        let mut header = place.object.header()?;
        header.dirty = false;
        header.writing = false;
        // From here on the backing store has what was synced.
        (header.synced, header.covered) = (false, false);
        if base.is_some() {
            header.spilled = false;
            header.base = base;
            // Only now: a flush under way may be about to publish what it announced there.
            header.pending = None;
        }
        fail_at!("node.clean.before_header");
        place.set_header(&header)?;
        fail_at!("node.clean.after_header");
        place.dirty.store(false, Ordering::Release);
        self.set_resident(file.ino, place);
        if let Some(version) = base {
            self.peers.pages_published(file.ino, version);
        }
        self.say_clean_if_known_so(file.ino);
        Ok(())
    }

    /// Enters an object into the residency index as it is now.
    pub(super) fn set_resident(&self, ino: Ino, place: &TierObject) {
        let resident = Resident {
            tier: place.tier,
            whole: place.is_marked_whole(),
            dirty: place.is_dirty(),
            charged: place.charge.bytes(),
        };
        self.residents.set(ino.0, resident);
    }

    /// Takes an object out of the residency index and gives its room back: what it is charged now,
    /// if the file is in use.
    pub(super) fn forget_resident(&self, ino: Ino, place: Option<&TierObject>) {
        if let Some(resident) = self.residents.remove(ino.0) {
            let charged = place.map_or(resident.charged, |place| place.charge.bytes());
            if !self.leave_to_kernel(ino, place, (resident.tier, charged)) {
                self.tiers[usize::from(resident.tier)].room.give_all(charged);
            }
            self.decide(Event::Removed { object: ino });
        }
        self.failed_syncs.forget(ino);
    }

    /// An object that the kernel reads by itself takes up its room until it is closed; whether it
    /// does.
    fn leave_to_kernel(&self, ino: Ino, place: Option<&TierObject>, charged: (u8, u64)) -> bool {
        let (Some(place), Some(file)) = (place, self.files.peek(ino)) else { return false };
        let mut opens = file.opens.lock();
        let Some(registered) = opens.now.registered.as_mut().filter(|r| !r.bypass) else {
            return false;
        };
        let this = registered.object == crate::residency::inode_alias::object_id(place.object.fd());
        if this {
            registered.charged = Some(charged);
        }
        this
    }

    /// Changes the header of an object. Others may want to at the same time, under the read lock of
    /// the location as well, and neither change may be lost.
    pub(super) fn edit_header(
        &self,
        place: &TierObject,
        edit: impl FnOnce(&mut Header) -> Result<()>,
    ) -> Result<()> {
        let _one_at_a_time = place.charge.growing.lock();
        let mut header = place.object.header()?;
        edit(&mut header)?;
        place.set_header(&header)
    }

    /// The header that an object of this file should carry.
    pub(super) fn header_for(&self, record: &Record, whole: bool, dirty: bool) -> Header {
        let path = self.meta.path(record.ino).ok().flatten().unwrap_or_default();
        let cut = path.len().saturating_sub(Header::PATH_MAX);
        Header {
            ino: record.ino.0,
            dirty,
            whole,
            writing: dirty,
            spilled: record.spilled,
            size: record.attr.size,
            base: record.backing.fingerprint,
            mode: record.attr.perm,
            uid: record.attr.uid,
            gid: record.attr.gid,
            mtime: record.attr.mtime,
            path: std::os::unix::ffi::OsStringExt::from_vec(path[cut..].to_vec()),
            path_truncated: cut > 0,
            ..Header::default()
        }
    }

    /// Whether a tier has bytes of a file of which its record may not speak yet: it is open, and
    /// was written to.
    pub(crate) fn is_unsettled(&self, ino: Ino) -> bool {
        self.residents.get(ino.0).is_some_and(|resident| resident.dirty)
    }

    /// The record follows what was written to a file; false if it is gone.
    pub(super) fn record_written(&self, ino: Ino, size: u64, mtime: Timestamp) -> Result<bool> {
        let mut mine = true;
        let settled = self.meta.update(ino, None, |record| {
            mine = self.peers.may_have_written(record);
            if !mine {
                // Another node has taken the file over: what was written here does not count.
                return Queue::No;
            }
            show_written(&mut record.attr, size, mtime);
            record.mark_dirty();
            Queue::Yes
        });
        match settled {
            Ok(_) if !mine => Err(Errno::STALE.into()),
            Ok(_) => Ok(true),
            Err(forebay_meta::Error::Stale(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The record of a file follows the version that the backing store has.
    pub(crate) fn revert_to(&self, ino: Ino, found: forebay_meta::Fingerprint) -> Result<()> {
        self.follow_version(ino, found, false)
    }

    /// As [`Residency::revert_to`]; of a file that was written back and not reported, as its daemon was
    /// killed, what programs have set since stays (`killed`).
    pub(crate) fn follow_version(
        &self,
        ino: Ino,
        found: forebay_meta::Fingerprint,
        killed: bool,
    ) -> Result<()> {
        self.meta.update(ino, None, |record| {
            record.mark_clean();
            record.attr.size = found.size;
            if !(killed && record.backing.attrs_differ) {
                record.attr.mtime = found.mtime;
            }
            record.backing.fingerprint = Some(found);
            Queue::Yes
        })?;
        Ok(())
    }

    /// Before an object counts as clean, and its size and time as those of the record: whoever has
    /// closed the file may not have come to settle it yet, and finds nothing to do then.
    pub(crate) fn settle_before_clean(&self, file: &File, place: &TierObject) -> Result<()> {
        if !place.is_dirty() {
            return Ok(());
        }
        let one_at_a_time = file.times.lock();
        let stat = place.object.stat()?;
        let mtime = stat.mtime;
        match self.meta.get(file.ino) {
            Ok(record) if record.attr.size != stat.size || record.attr.mtime != mtime => {
                self.record_written(file.ino, stat.size, mtime)?;
            }
            Ok(_) | Err(forebay_meta::Error::Stale(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        drop(one_at_a_time);
        // Perhaps by a mapping that outlasted its open file, of which nobody has told the kernel.
        self.forget_object(file.ino, false);
        Ok(())
    }
}
