//! What a start has found of files, and what a rebuild of the namespace brings back: their records are brought in
//! line with that. `lifecycle/` decides what counts.

use std::sync::Arc;

use forebay_meta::{Queue, Record};
use forebay_store::copy::{self, Cancel, Limits, Priority};
use forebay_store::{Header, Object, Tier, recover};
use forebay_types::{Fingerprint, Ino, Timestamp};

use crate::error::Result;
use crate::residency::Residency;
use crate::residency::data::show_written;
use crate::residency::data_location::{DataLocation, Underlay};
use crate::residency::files::File;
use crate::residency::overlay::Spill;

impl Residency {
    /// An object has what the backing store lacks, as far as is known: its size and times count. `published` is
    /// the version that a flush of it has made.
    pub(crate) fn found_dirty(
        &self,
        ino: Ino,
        header: &Header,
        object: &dyn Object,
        published: Option<Fingerprint>,
    ) -> Result<()> {
        let stat = object.stat()?;
        self.found_newer(ino, stat.size, stat.mtime, published)?;
        if !header.dirty {
            object.set_header(&Header { dirty: true, writing: true, ..header.clone() })?;
        }
        Ok(())
    }

    /// The spill file of a file has all of it that is newer than the backing store.
    pub(crate) fn found_spilled(&self, record: &Record, spill: &Spill) -> Result<()> {
        let size = spill.size_and_mtime().0;
        self.found_newer(record.ino, size, spill.mtime_known_by(&record.attr), None)
    }

    /// A file is newer than the backing store, with this size and time.
    pub(crate) fn found_newer(
        &self,
        ino: Ino,
        size: u64,
        mtime: Timestamp,
        published: Option<Fingerprint>,
    ) -> Result<()> {
        self.meta.update(ino, None, |record| {
            show_written(&mut record.attr, size, mtime);
            record.mark_dirty();
            record.backing.fingerprint = published.or(record.backing.fingerprint);
            Queue::Yes
        })?;
        Ok(())
    }

    /// Of a dirty file, whose bytes nobody has synced, nothing is left, here or below: it is empty.
    pub(crate) fn nothing_is_left(&self, ino: Ino) -> Result<()> {
        self.meta.update(ino, None, |record| {
            record.attr.size = 0;
            Queue::Yes
        })?;
        Ok(())
    }

    /// A spill file for a file that is brought back: like a new one of which no tier has anything.
    pub(crate) fn begin_spill_anew(
        &self,
        file: &File,
        location: &mut DataLocation,
    ) -> Result<Arc<Spill>> {
        (location.base, location.loaded) = (Underlay::Zeros, true);
        self.ensure_spill(file, location)
    }

    /// An object with all bytes of a dirty one that had another number, durably; `fill` gives it those that
    /// the old one lacks. Until it has all of them it is nobody's.
    pub(crate) fn readopt_object(
        &self,
        tier: &dyn Tier,
        record: &Record,
        old: &dyn Object,
        header: &Header,
        fill: &dyn Fn(&dyn Object) -> Result<()>,
    ) -> Result<()> {
        let (ino, len) = (record.ino.0, old.len()?);
        let mut fresh = Header { ino, whole: false, dirty: false, ..header.clone() };
        drop(tier.remove(ino));
        self.forget_left_behind_on(tier, record.ino)?;
        let object = tier.create(ino, &fresh)?;
        let limits = Limits::plain(Priority::Rebalance);
        copy::copy_range(old, &*object, 0..len, &limits, &Cancel::default())?;
        object.set_len(len)?;
        fill(&*object)?;
        let stat = old.stat()?;
        object.set_times(Some(stat.atime), Some(stat.mtime))?;
        object.sync(false)?;
        (fresh.whole, fresh.dirty, fresh.base) = (true, true, record.backing.fingerprint);
        // What it had in a spill file it has itself.
        (fresh.writing, fresh.spilled) = (true, false);
        object.set_header(&fresh)?;
        object.sync(false)?;
        Ok(tier.sync_dir(ino)?)
    }
}

/// Gives an object that was set aside its place back, with a header that says that it is dirty.
pub(crate) fn put_back_as_dirty(
    tier: &dyn Tier,
    aside: &recover::Aside,
    ino: u64,
    header: Header,
) -> Result<()> {
    let header = Header { dirty: true, writing: true, ..header };
    Ok(recover::put_back(tier, aside, ino, &header)?)
}
