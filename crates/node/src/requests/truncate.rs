//! Changing the length of a file.

use std::sync::Arc;

use forebay_meta::Record;
use parking_lot::RwLockWriteGuard;

use crate::context::Context;
use crate::error::Result;
use crate::failpoints::fail_at;
use crate::node::Node;
use crate::requests::in_use::InUse;
use crate::residency::Residency;
use crate::residency::data_location::{DataLocation, TierObject};
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
        self.residency.check_length(size)?;
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
            location.place().is_none()
                && size > 0
                && !self.residency.begins_empty(file.ino, &location)?
        };
        if needs_base {
            context.wait()?;
            self.residency.begin_partial(file, record)?;
        } else if size > 0
            && file.location.read().place().is_none()
            && !self.residency.ensure_place(file)?
        {
            context.wait()?;
        }
        fail_at!("node.truncate.looked");
        let mut location = self.location_to_change(context, file, size == 0)?;
        self.given_up.check(context)?;
        file.count_write();
        fail_at!("node.truncate.before_object");
        if let Some(place) = location.place().filter(|_| size > 0) {
            self.writeback.check_rest_below(file, &location, place)?;
        }
        self.residency.change_length(file, &mut location, size)
    }

    /// Whether nobody has the file in hand, and its length can be changed without waiting.
    fn is_cut_at_once(&self, file: &FileRef, size: u64) -> bool {
        let waits = |place: &TierObject| {
            Residency::needs_sync_to_change(place) || self.writeback.needs_rest_below(place)
        };
        file.location.try_write().is_some_and(|location| match size {
            0 => is_emptied_at_once(&location),
            _ => !location.is_spilled() && !location.place().is_some_and(waits),
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
                true => is_emptied_at_once(location),
                false => location.place().is_some_and(|place| {
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
}

/// Whether all can be taken from a file without waiting for a device: neither has it a spill file, nor a map
/// that goes only when the header is durable.
fn is_emptied_at_once(location: &DataLocation) -> bool {
    let in_part = location.place().is_some_and(|place| !place.is_marked_whole());
    !in_part && !location.is_spilled()
}
