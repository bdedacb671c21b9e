//! From a tier to the backing store: a file's bytes, written under a temporary name and published
//! at once, or in place where the file in the backing store must keep its inode or is too large to
//! be written anew.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_meta::{Ino, Queue, Record, XattrState};
use forebay_store::backing::{Access, SetAttributes};
use forebay_store::copy::{self, Cancel, Priority};
use forebay_store::{
    Attributes, BackingFile, Commit, Dir, ErrorClass, Expect, Fingerprint, Temporary,
};

use crate::convert;
use crate::error::Result;
use crate::failpoints::fail_at;
use crate::files::FileRef;
use crate::metrics::Source;
use crate::node::Node;
use crate::place::{Base, Place};

/// How a flush of a file's bytes ended.
pub(crate) enum Flushed {
    /// The backing store has them.
    Done {
        /// As this version.
        fingerprint: Fingerprint,
        /// Nothing was written meanwhile and nobody can write now: the file is clean.
        clean: bool,
    },
    /// Something else is there now (`None`: nothing). Nothing was overwritten.
    Conflict(Option<Attributes>),
    /// They changed during the copy: later.
    Busy,
}

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

/// Dirty extents are flushed this many bytes at a time.
const PIECE: u64 = 64 << 20;

/// Where it is noted that a file in the backing store holds a part of a newer version.
fn half_setting(ino: Ino) -> String {
    format!("half.{:x}", ino.0)
}

impl Node {
    /// Copies a dirty file's bytes, mode, owner, times and extended attributes to the backing store
    /// and publishes them there. On a thread that may wait.
    ///
    /// The bytes are those at one moment: if a program wrote during the copy, nothing is published
    /// and the answer is `Busy`, except for a file that is kept open for writing (a drain takes it
    /// as it is, and it stays dirty).
    pub(crate) fn flush_data(&self, record: &Arc<Record>, target: &Target<'_>) -> Result<Flushed> {
        let began = Instant::now();
        let flushed = self.flush_now(record, target)?;
        if matches!(flushed, Flushed::Done { .. }) {
            self.metrics.flushes.inc();
            self.metrics.flush_seconds.observe(began.elapsed());
        }
        Ok(flushed)
    }

    fn flush_now(&self, record: &Arc<Record>, target: &Target<'_>) -> Result<Flushed> {
        let file = self.files.get(record.ino);
        let _one = file.flushing.lock();
        self.load(&file)?;
        let number = file.flush_begun.fetch_add(1, Ordering::AcqRel) + 1;
        let seen = file.writes.load(Ordering::Acquire);
        let kept_open = file.opens.lock().writers > 0;
        fail_at!("node.flush.begin");
        let now = self.meta.get(record.ino)?;
        if now.backing.fingerprint != record.backing.fingerprint || now.spilled != record.spilled {
            // What the caller decided upon was overtaken.
            return Ok(Flushed::Busy);
        }
        let residence = file.residence.read();
        let partial = residence.place.as_ref().is_some_and(|place| place.presence.is_some());
        let beneath = matches!(residence.base, Base::Backing(_));
        let absent = residence.place.is_none();
        let mapped = residence.place.as_ref().is_some_and(|place| self.maybe_mapped(place));
        let spill = match &residence.base {
            Base::Spill(spill) => Some(spill.clone()),
            _ => None,
        };
        drop(residence);
        // What the backing store has under the name may be another file, which this one replaces.
        let own = target.expect.is_some()
            && target.expect == record.backing.fingerprint.map(convert::store_fingerprint);
        if absent && spill.is_none() && record.attr.size > 0 && !(beneath && own) {
            tracing::error!(ino = %record.ino, "the bytes of a file are gone from the tiers");
            return Err(rustix::io::Errno::IO.into());
        }
        let in_place = target.in_place || beneath && (partial || absent);
        let flushed = match spill {
            Some(spill) if target.in_place && own => {
                self.flush_spill_in_place(&file, record, target, &spill)?
            }
            Some(spill) => self.flush_spilled(&file, record, target, &spill)?,
            None if in_place && own => self.flush_in_place(&file, record, target)?,
            None => self.flush_anew(&file, record, target, (!kept_open).then_some(seen))?,
        };
        let Flushed::Done { fingerprint, .. } = flushed else { return Ok(flushed) };
        fail_at!("node.flush.published");
        file.flush_done.store(number, Ordering::Release);
        let clean = self.settle_flush(&file, fingerprint, seen, mapped)?;
        Ok(Flushed::Done { fingerprint, clean })
    }

    /// Whether a version in the backing store is what a flush of the file made, and could not report.
    pub(crate) fn is_own_version(&self, ino: Ino, found: &Attributes) -> Result<bool> {
        let file = self.files.get(ino);
        self.load(&file)?;
        let residence = file.residence.read();
        let Some(place) = &residence.place else { return Ok(false) };
        let header = place.object.header()?;
        let found = found.fingerprint();
        Ok([header.pending, header.base].iter().flatten().any(|own| own.same_content(&found)))
    }

    /// After the backing store has the bytes: the object is clean if nobody has written since the
    /// copy began and nobody can. `mapped`: a mapping may have lived then; it may have gone since,
    /// and what it stored with it.
    fn settle_flush(
        &self,
        file: &FileRef,
        fingerprint: Fingerprint,
        seen: u64,
        mapped: bool,
    ) -> Result<bool> {
        let residence = file.residence.write();
        // What was opened of the backing store may be the version that was replaced.
        if let Base::Backing(opened) = &residence.base {
            *opened.lock() = None;
        }
        let base = fingerprint;
        let Some(place) = &residence.place else {
            // All its bytes are in the backing store, also those of writers that are still at it.
            let quiet = file.writes.load(Ordering::Acquire) == seen;
            if !quiet || file.opens.lock().writers > 0 {
                file.around.store(true, Ordering::Release);
            }
            return Ok(true);
        };
        let quiet = file.writes.load(Ordering::Acquire) == seen
            && file.opens.lock().writers == 0
            && !mapped
            && !self.maybe_mapped(place);
        if quiet {
            self.mark_clean(file, place, Some(base))?;
        } else {
            // A writer for whom the tier has no room goes on changing the published file in place.
            let goes_on = place.presence.is_some() && matches!(residence.base, Base::Backing(_));
            self.edit_header(place, |header| {
                header.base = Some(base);
                header.pending = goes_on.then_some(base);
                Ok(())
            })?;
        }
        Ok(quiet)
    }

    /// Whether a mapping of the object may live that outlasted its open file.
    pub(crate) fn maybe_mapped(&self, place: &Place) -> bool {
        match place.object.exclusive() {
            Ok(lease) => lease.is_none(),
            // Without leases only passthrough hides mappings.
            Err(_) => self.kernel.get().is_some_and(|kernel| kernel.passthrough()),
        }
    }

    /// Writes the whole file under a temporary name and publishes it.
    fn flush_anew(
        &self,
        file: &FileRef,
        record: &Arc<Record>,
        target: &Target<'_>,
        seen: Option<u64>,
    ) -> Result<Flushed> {
        let mut temporary = match file.take_staged(record) {
            Some(staged) => staged,
            None => {
                let object = file.residence.read().place.as_ref().map(|place| place.object.clone());
                let mut temporary = self.copy_to_temporary(record, object.as_deref())?;
                fail_at!("node.flush.copied");
                // Before the commit: the copy is long, and the moment between the check and the
                // rename short.
                temporary.seal()?;
                temporary
            }
        };
        if seen.is_some_and(|seen| file.writes.load(Ordering::Acquire) != seen) {
            return Ok(Flushed::Busy);
        }
        self.publish_file(file, &mut temporary, target)
    }

    /// Notes what is about to appear, and lets it.
    fn publish_file(
        &self,
        file: &FileRef,
        temporary: &mut Temporary,
        target: &Target<'_>,
    ) -> Result<Flushed> {
        let name = OsStr::from_bytes(target.name);
        let mut expect = target.expect;
        if let Some(place) = &file.residence.read().place {
            // An earlier flush may have got this far without being able to say so.
            let found = match self.backing.stat(target.dir, name) {
                Ok(found) => Some(found.fingerprint()),
                Err(error) if error.class() == ErrorClass::NotFound => None,
                Err(error) => return Err(error.into()),
            };
            self.edit_header(place, |header| {
                if let Some(found) = found {
                    let own = header.pending.is_some_and(|pending| pending.same_content(&found))
                        || header.base == Some(found);
                    if own && expect != Some(found) {
                        expect = Some(found);
                        header.base = expect;
                    }
                }
                header.pending = Some(temporary.pending()?);
                Ok(())
            })?;
        }
        let expect = expect.map_or(Expect::Absent, Expect::Version);
        fail_at!("node.flush.publish");
        let committed = self.own_change(&[(target.parent, target.dir)], || {
            Ok(self.backing.commit(temporary, target.dir, name, expect)?)
        })?;
        Ok(match committed {
            Commit::Done(fingerprint) => Flushed::Done { fingerprint, clean: false },
            Commit::Conflict(found) => Flushed::Conflict(found),
        })
    }

    /// Completes a spill file with what is still on the tier, and publishes it.
    fn flush_spilled(
        &self,
        file: &FileRef,
        record: &Arc<Record>,
        target: &Target<'_>,
        spill: &Arc<Temporary>,
    ) -> Result<Flushed> {
        let mtime = self.flush_extents(file, &**spill.file())?.unwrap_or(record.attr.mtime);
        let mut fresh = match self.backing.open_spill(record.ino.0)? {
            Some(fresh) => fresh,
            None => return Ok(Flushed::Busy),
        };
        self.copy_attributes(record, mtime, &**fresh.file())?;
        let flushed = self.publish_file(file, &mut fresh, target)?;
        if matches!(flushed, Flushed::Done { .. }) {
            fail_at!("node.flush.spill_published");
            let Flushed::Done { fingerprint, .. } = flushed else { return Ok(flushed) };
            self.forget_spill(file, fingerprint)?;
            fail_at!("node.flush.spill_noted");
        }
        Ok(flushed)
    }

    /// What was spilled is in the backing store's file now: what the tier lacks is read from there.
    fn forget_spill(&self, file: &FileRef, fingerprint: Fingerprint) -> Result<()> {
        let mut residence = file.residence.write();
        residence.base = Base::backing();
        if let Some(place) = &residence.place {
            let mut header = place.object.header()?;
            header.spilled = false;
            place.object.set_header(&header)?;
            if let Some(presence) = &place.presence {
                presence.write().rebase()?;
            }
        }
        // Not left to the report of the worker: from here on nothing but this record knows it.
        let on_tier = residence.place.is_some();
        self.meta.update(file.ino, None, |record| {
            record.spilled = false;
            record.dirty &= on_tier;
            record.backing.fingerprint = Some(convert::fingerprint(fingerprint));
            Queue::Yes
        })?;
        drop(residence);
        self.drop_spill(file.ino)
    }

    /// Completes a spill file, and copies it into a file that must keep its inode.
    fn flush_spill_in_place(
        &self,
        file: &FileRef,
        record: &Arc<Record>,
        target: &Target<'_>,
        spill: &Arc<Temporary>,
    ) -> Result<Flushed> {
        let mtime = self.flush_extents(file, &**spill.file())?.unwrap_or(record.attr.mtime);
        let name = OsStr::from_bytes(target.name);
        let backing = self.backing.open_file(target.dir, name, Access::ReadWrite)?;
        let found = backing.stat()?;
        let half = self.meta.setting(&half_setting(file.ino))?;
        let interrupted = half.as_deref() == Some(&found.ino.to_le_bytes()[..]);
        if !interrupted
            && !target.expect.is_some_and(|print| print.same_content(&found.fingerprint()))
        {
            return Ok(Flushed::Conflict(Some(found)));
        }
        self.meta.set_setting(&half_setting(file.ino), &found.ino.to_le_bytes())?;
        let size = spill.file().len()?;
        let limits = self.limits(Priority::WriteBack);
        copy::copy_range(&**spill.file(), &*backing, 0..size, &limits, &Cancel::default())?;
        self.metrics.bytes.of(Source::Flush).add(size);
        backing.set_len(size)?;
        self.copy_attributes(record, mtime, &*backing)?;
        backing.sync(false)?;
        let fingerprint = backing.stat()?.fingerprint();
        // As one step for a restart: the spill file is not needed any more.
        self.forget_spill(file, fingerprint)?;
        self.meta.remove_setting(&half_setting(file.ino))?;
        Ok(Flushed::Done { fingerprint, clean: false })
    }

    /// Writes the changed bytes into the file that the backing store has. The tier keeps them until
    /// they are synced there: after a crash they are written again.
    fn flush_in_place(
        &self,
        file: &FileRef,
        record: &Arc<Record>,
        target: &Target<'_>,
    ) -> Result<Flushed> {
        let name = OsStr::from_bytes(target.name);
        let backing = self.backing.open_file(target.dir, name, Access::ReadWrite)?;
        let found = backing.stat()?;
        let expected = target.expect;
        let interrupted = {
            let residence = file.residence.read();
            match &residence.place {
                Some(place) => {
                    place.object.header()?.pending.map(|print| print.ino) == Some(found.ino)
                }
                None => false,
            }
        };
        let same = expected.is_some_and(|print| {
            print.same_content(&found.fingerprint()) || interrupted && print.ino == found.ino
        });
        if !same {
            return Ok(Flushed::Conflict(Some(found)));
        }
        if let Some(place) = &file.residence.read().place {
            self.edit_header(place, |header| {
                header.pending = Some(found.fingerprint());
                Ok(())
            })?;
        }
        fail_at!("node.flush.in_place");
        let mtime = match self.flush_extents(file, &*backing)? {
            Some(mtime) => mtime,
            None => {
                if record.attr.size == 0 {
                    backing.set_len(0)?;
                }
                record.attr.mtime
            }
        };
        fail_at!("node.flush.in_place_copied");
        self.copy_attributes(record, mtime, &*backing)?;
        backing.sync(false)?;
        if let Some(place) = &file.residence.read().place
            && let Some(presence) = &place.presence
        {
            presence.write().rebase()?;
        }
        let fingerprint = backing.stat()?.fingerprint();
        Ok(Flushed::Done { fingerprint, clean: false })
    }

    /// Takes off what a truncation took from the file, before anything is put there anew. From then
    /// on the base has all of the file's length, with zeros where it was cut.
    fn cut_before_flush(&self, file: &FileRef, to: &dyn BackingFile) -> Result<()> {
        let residence = file.residence.read();
        let presence = residence.place.as_ref().and_then(|place| place.presence.as_ref());
        let Some(presence) = presence else { return Ok(()) };
        let mut presence = presence.write();
        let (limit, size) = (presence.base_limit(), presence.size());
        if limit < size {
            if to.len()? > limit {
                to.set_len(limit)?;
            }
            to.set_len(size)?;
            to.sync(true)?;
            presence.rebase()?;
        }
        Ok(())
    }

    /// Copies what the tier has and `to` lacks, and the length. The modification time, if there is
    /// an object.
    fn flush_extents(
        &self,
        file: &FileRef,
        to: &dyn BackingFile,
    ) -> Result<Option<forebay_meta::Timestamp>> {
        let limits = self.limits(Priority::WriteBack);
        self.cut_before_flush(file, to)?;
        loop {
            let residence = file.residence.read();
            let Some(place) = &residence.place else { return Ok(None) };
            let stat = place.object.stat()?;
            let Some(presence) = &place.presence else {
                copy::copy_range(&*place.object, to, 0..stat.size, &limits, &Cancel::default())?;
                self.metrics.bytes.of(Source::Flush).add(stat.size);
                to.set_len(stat.size)?;
                return Ok(Some(convert::time(stat.mtime)));
            };
            let Some(flush) = presence.write().take_flush(PIECE) else {
                to.set_len(stat.size)?;
                return Ok(Some(convert::time(stat.mtime)));
            };
            let copied = flush.runs().iter().try_for_each(|run| {
                let run = run.start..run.end.min(stat.size);
                if run.is_empty() {
                    return Ok(());
                }
                self.metrics.bytes.of(Source::Flush).add(run.end - run.start);
                copy::copy_range(&*place.object, to, run, &limits, &Cancel::default()).map(drop)
            });
            // Extents count as clean only once they are durable where they went.
            match copied.and_then(|()| to.sync(true)) {
                Ok(()) => presence.write().finish_flush(flush)?,
                Err(error) => {
                    presence.write().abort_flush(flush);
                    return Err(error.into());
                }
            }
        }
    }

    /// Mode, owner, times and extended attributes of a file that is about to be published.
    pub(crate) fn copy_attributes(
        &self,
        record: &Record,
        mtime: forebay_meta::Timestamp,
        to: &dyn BackingFile,
    ) -> Result<()> {
        if record.xattrs == XattrState::Some {
            for (name, value) in self.meta.xattr_all(record.ino)? {
                let name = OsStr::from_bytes(&name);
                if let Err(error) = to.set_xattr(name, &value) {
                    tracing::warn!(ino = %record.ino, %error, "the backing store keeps no such attribute");
                }
            }
        }
        to.set_attributes(&SetAttributes {
            mode: Some(record.attr.perm),
            uid: Some(record.attr.uid),
            gid: Some(record.attr.gid),
            atime: Some(convert::store_time(record.attr.atime)),
            mtime: Some(convert::store_time(mtime)),
        })?;
        Ok(())
    }
}
