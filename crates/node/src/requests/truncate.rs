//! Changing the length of a file.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_meta::{Queue, Record};
use forebay_store::Presence;
use forebay_types::{Ino, Timestamp};
use parking_lot::RwLockWriteGuard;
use rustix::io::Errno;

use crate::clock;
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::failpoints::fail_at;
use crate::node::Node;
use crate::requests::in_use::InUse;
use crate::residency::Residency;
use crate::residency::data_location::{DataLocation, TierObject, Underlay};
use crate::residency::files::FileRef;
use crate::residency::spill::is_no_room;
use crate::writeback::in_place::Cut;

impl Node {
    /// Sets the length of a file. The record follows.
    pub(crate) fn truncate(
        &self,
        context: &Context,
        record: &Arc<Record>,
        size: u64,
    ) -> Result<()> {
        if size > i64::MAX as u64 {
            return Err(NodeError::Posix(Errno::FBIG));
        }
        self.writeback.check_writable_below(context, record)?;
        let file = self.residency.files.get(record.ino);
        if size == 0 && self.residency.troubles.is_lost(record.ino) {
            context.wait()?;
            self.residency.replace_lost(&file)?;
        }
        // It counts as open meanwhile: an eviction would leave it without bytes between two looks.
        let in_use = InUse::new(&file);
        let mut done = self.truncate_in_use(context, &file, record, size);
        if size == 0 && done.is_ok() {
            self.writeback.forget_rest_gone(file.ino);
        }
        if done.as_ref().is_err_and(|error| self.residency.may_try_again(&file, error)) {
            done = self.truncate_in_use(context, &file, record, size);
        }
        if done.as_ref().is_err_and(is_no_room)
            && size > 0
            && self.writeback.cut_below(context, &file, &Cut::To(size))?
        {
            done = Ok(());
        }
        drop(in_use);
        if !file.is_open() {
            if !self.meta.get(file.ino).is_ok_and(|record| !record.orphan) {
                // Whoever removed it has left it to its users to let go of it.
                self.last_close(&file);
            } else if done.is_ok() {
                self.residency.settle(&file)?;
            }
        }
        done
    }

    fn truncate_in_use(
        &self,
        context: &Context,
        file: &FileRef,
        record: &Arc<Record>,
        size: u64,
    ) -> Result<()> {
        self.residency.load(context, file)?;
        fail_at!("node.truncate.loaded");
        if !context.may_wait() && !self.is_cut_at_once(file, size) {
            context.wait()?;
        }
        self.drop_privileges(context, file)?;
        let needs_base = {
            let location = file.location.read();
            location.place.is_none()
                && size > 0
                && !self.residency.begins_empty(file.ino, &location)?
        };
        if needs_base {
            context.wait()?;
            self.residency.begin_partial(file, record)?;
        } else if size > 0
            && file.location.read().place.is_none()
            && !self.residency.ensure_place(file, record)?
        {
            context.wait()?;
        }
        fail_at!("node.truncate.looked");
        let mut location = self.location_to_change(context, file, size == 0)?;
        self.given_up.check(context)?;
        file.count_write();
        fail_at!("node.truncate.before_object");
        self.change_length(file, &mut location, record.ino, size)
    }

    /// Whether nobody has the file in hand, and its length can be changed without waiting.
    fn is_cut_at_once(&self, file: &FileRef, size: u64) -> bool {
        let waits = |place: &TierObject| {
            Residency::needs_sync_to_change(place) || self.writeback.needs_rest_below(place)
        };
        file.location.try_write().is_some_and(|location| {
            !matches!(location.base, Underlay::Spill(_))
                && (size == 0 || !location.place.as_ref().is_some_and(waits))
        })
    }

    /// What lies where, to be changed; all of it is taken from the file if it is `emptied`. A caller that
    /// may not wait yet has looked before whether it has to, but something may have come between: a
    /// write past the tier, for one.
    pub(crate) fn location_to_change<'a>(
        &self,
        context: &Context,
        file: &'a FileRef,
        emptied: bool,
    ) -> Result<RwLockWriteGuard<'a, DataLocation>> {
        if !context.may_wait() {
            let is_quick = |location: &RwLockWriteGuard<'_, DataLocation>| match emptied {
                true => !matches!(location.base, Underlay::Spill(_)),
                false => location.place.as_ref().is_some_and(|place| {
                    place.is_marked_whole() && !Residency::needs_sync_to_change(place)
                }),
            };
            if let Some(location) = file.location.try_write().filter(is_quick) {
                return Ok(location);
            }
            context.wait()?;
        }
        Ok(file.location.write())
    }

    /// A record never says more than there is: it comes first where the file becomes shorter, and last
    /// where it becomes longer. So bytes that are missing after the death of a daemon are a damage.
    fn change_length(
        &self,
        file: &FileRef,
        location: &mut DataLocation,
        ino: Ino,
        size: u64,
    ) -> Result<()> {
        let now = clock::wall_time();
        let before = self.meta.get(ino)?;
        let shrinks = size < before.attr.size;
        if shrinks {
            self.record_length(ino, size, now)?;
        }
        let changed = self.change_bytes(file, location, size, now).and_then(|()| match shrinks {
            true => Ok(()),
            false => self.record_length(ino, size, now),
        });
        if changed.is_err() {
            self.take_back_length(location, &before);
        }
        changed
    }

    fn change_bytes(
        &self,
        file: &FileRef,
        location: &mut DataLocation,
        size: u64,
        now: Timestamp,
    ) -> Result<()> {
        if size == 0 {
            self.empty(file, location)?;
        } else {
            if let Some(place) = &location.place {
                self.writeback.check_rest_below(file, location, place)?;
            }
            self.resize(file, location, size)?;
        }
        if let Some(place) = &location.place {
            place.object.set_times(None, Some(now))?;
        }
        Ok(())
    }

    /// With the file in hand: what is written and published after this has the last word.
    fn record_length(&self, ino: Ino, size: u64, now: Timestamp) -> Result<()> {
        fail_at!("node.truncate.before_record");
        self.meta.update(ino, Some(now), |record| {
            record.attr.size = size;
            record.attr.mtime = now;
            record.mark_dirty();
            Queue::Yes
        })?;
        Ok(())
    }

    /// After a failure the record says what there is.
    fn take_back_length(&self, location: &DataLocation, before: &Record) {
        let (len, dirty) = match (&location.place, &location.base) {
            (Some(place), _) => (place.object.len().ok(), place.dirty.load(Ordering::Acquire)),
            (None, Underlay::Spill(spill)) => (Some(spill.size_and_mtime().0), true),
            (None, _) => (None, false),
        };
        let put_back = self.meta.update(before.ino, None, |record| {
            record.attr.size = len.unwrap_or(before.attr.size);
            if dirty || before.is_dirty() {
                record.mark_dirty();
            } else {
                record.mark_clean();
                record.attr.mtime = before.attr.mtime;
            }
            Queue::Yes
        });
        if let Err(error) = put_back {
            tracing::warn!(
                ino = %before.ino,
                %error,
                "a file's length could not be changed, and its record can't be set back: `stat` \
                 may show the new length. Check it, and set it again"
            );
        }
    }

    /// Nothing is left: no extent, no base. But of a file that has nothing else a spill file of which a
    /// program was told stays, empty: what the backing store has is older.
    fn empty(&self, file: &FileRef, location: &mut DataLocation) -> Result<()> {
        let spill = match &location.base {
            Underlay::Spill(spill) => Some(spill.clone()),
            Underlay::Backing(_) | Underlay::Zeros => None,
        };
        if let Some(place) = &mut location.place {
            // Cut first: what is cut need not be durable before the object counts. Should the daemon
            // die now, a clean copy of another length is none.
            self.residency.note_syncs_before_emptying(place)?;
            place.object.set_len(0)?;
            if let Err(error) = self.residency.mark_dirty(file, place) {
                if !place.dirty.load(Ordering::Acquire) {
                    let tier = &self.residency.tiers[usize::from(place.tier)].tier;
                    drop(tier.remove(file.ino.0));
                    self.residency.forget_resident(file.ino, location.place.take().as_ref());
                }
                return Err(error);
            }
            self.residency.note_emptied(place)?;
            if place.presence.take().is_some() {
                let mut header = place.object.header()?;
                header.whole = true;
                header.spilled = false;
                place.set_header(&header)?;
                self.residency.tiers[usize::from(place.tier)].tier.remove_map(file.ino.0)?;
            }
            self.residency.true_up(file, place)?;
        }
        if let Some(spill) = spill {
            match &location.place {
                None if spill.is_acknowledged() => return spill.set_len(0),
                None => {}
                Some(place) => {
                    self.residency.settle_emptied(file.ino, place, spill.is_acknowledged())?;
                }
            }
            fail_at!("node.truncate.emptied");
            self.let_go_of_emptied_spill(file.ino)?;
        }
        location.base = Underlay::Zeros;
        Ok(())
    }

    fn let_go_of_emptied_spill(&self, ino: Ino) -> Result<()> {
        self.residency.let_go_of_spill(ino)?;
        // Also the length: without the spill file, an older version would show.
        self.meta.update(ino, None, |record| {
            record.spilled = false;
            record.attr.size = 0;
            record.mark_dirty();
            Queue::Yes
        })?;
        self.residency.drop_spill_soon(ino);
        Ok(())
    }

    pub(crate) fn resize(
        &self,
        file: &FileRef,
        location: &mut DataLocation,
        size: u64,
    ) -> Result<()> {
        let Some(place) = &mut location.place else {
            // No tier has room for it.
            return self.residency.ensure_spill(file, location)?.set_len(size);
        };
        self.residency.mark_dirty(file, place)?;
        let map = place.presence.as_ref().map_or(0, |presence| {
            let presence = presence.read();
            Presence::sidecar_bytes_for(presence.extent_size(), size.max(presence.size()))
                - presence.sidecar_bytes()
        });
        if !self.residency.take_room(place.tier, map) {
            let spill = self.residency.ensure_spill(file, location)?;
            self.residency.evacuate(file, location, &spill)?;
            return spill.set_len(size);
        }
        place.charge.bytes.fetch_add(map, Ordering::AcqRel);
        let before = place.object.len()?;
        if size < before {
            self.residency.note_cut(place, size)?;
        }
        // The object first: a restart cuts the map to it, and what the map forgets too early would
        // read as zeros.
        place.object.set_len(size)?;
        fail_at!("node.truncate.object_cut");
        if let Some(presence) = &place.presence {
            presence.write().set_len(size)?;
        }
        if size < before {
            self.residency.true_up(file, place)?;
        }
        Ok(())
    }
}
